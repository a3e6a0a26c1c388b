"""What only the critic sees, and what the agent is asked to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import ConfigError, DQNConfig, ImpalaConfig, PPOConfig, PQNConfig, make_agent
from rljax.algos.ppo import ppo_init, ppo_parts

SMALL: dict[str, Any] = {"num_envs": 4, "num_steps": 8, "total_timesteps": 64}
NETWORKS = [
    {"hidden": [8]},
    {"type": "gru", "hidden": [6], "size": 8, "head_hidden": [5]},
    {"encoder": "dict", "hidden": [8]},
]


def observations(count: int) -> dict[str, jax.Array]:
    return {
        "observation": jax.random.normal(jax.random.key(1), (count, 5)),
        "privileged": jax.random.normal(jax.random.key(2), (count, 1)),
    }


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.slow
@pytest.mark.parametrize("normalize", [False, True])
def test_the_actor_provably_ignores_what_is_privileged_and_the_critic_does_not(network: dict[str, Any], normalize: bool) -> None:
    config = PPOConfig(env="HiddenBit-v0", network=network, normalize_observations=normalize, **SMALL)
    parts, agent = ppo_parts(config), make_agent(config)
    state = jax.jit(lambda s: agent.step(s)[0])(ppo_init(parts, jax.random.key(0)))
    obs = observations(6)

    def actor(privileged: jax.Array) -> jax.Array:
        return parts.policy.apply(state.params, {**obs, "privileged": privileged})[0]

    def critic(privileged: jax.Array) -> jax.Array:
        return parts.policy.apply(state.params, {**obs, "privileged": privileged})[1]

    # NaN spreads to whatever is computed from it.
    nothing = jnp.full((6, 1), jnp.nan)
    np.testing.assert_array_equal(actor(nothing), actor(obs["privileged"]))
    assert np.isnan(critic(nothing)).all()
    assert float(jnp.abs(jax.jacrev(actor)(obs["privileged"])).max()) == 0.0
    assert float(jnp.abs(jax.jacrev(critic)(obs["privileged"])).max()) > 1e-3
    # Nor does anything of it reach what an agent does: it need not be there.
    public = {"observation": obs["observation"]}
    for deterministic in (True, False):
        with_it, _ = agent.act(state, {**obs, "privileged": nothing}, None, jax.random.key(3), deterministic)
        without, _ = agent.act(state, public, None, jax.random.key(3), deterministic)
        np.testing.assert_array_equal(with_it, without)
    one, _ = agent.act(state, {"observation": jnp.zeros(5)}, None, jax.random.key(3), True)
    assert one.shape == ()


def test_the_policy_gradient_of_the_actor_does_not_reach_what_reads_the_privileged_part() -> None:
    parts = ppo_parts(PPOConfig(env="HiddenBit-v0", network={"hidden": [8]}, **SMALL))
    params = ppo_init(parts, jax.random.key(0)).params
    gradient = jax.grad(lambda p: jnp.sum(parts.policy.apply(p, observations(6))[0] ** 2))(params)["params"]["network"]
    for name, layer in gradient.items():
        touched = float(jnp.abs(layer["kernel"]).max()) > 0
        assert touched == name.startswith(("actor", "policy")), name


@pytest.mark.slow
@pytest.mark.parametrize("config_class", [DQNConfig, PQNConfig])
def test_algorithms_without_such_a_critic_never_see_it(config_class: Any) -> None:
    small = {**SMALL, "total_timesteps": 4096} if config_class is DQNConfig else SMALL
    agent = make_agent(config_class(env="HiddenBit-v0", network={"hidden": [8]}, **small))
    state = jax.jit(agent.init)(jax.random.key(0))
    assert set(state.obs) == {"observation"}
    assert state.params["params"]["dense_0"]["kernel"].shape == (5, 8)
    state, _ = jax.jit(agent.step)(state)
    assert set(state.obs) == {"observation"}


@pytest.mark.slow
def test_impala_has_such_a_critic_too() -> None:
    agent = make_agent(ImpalaConfig(env="HiddenBit-v0", network={"hidden": [8]}, **SMALL))
    state = jax.jit(lambda k: agent.step(agent.init(k))[0])(jax.random.key(0))
    network = state.params["params"]["network"]
    assert (network["actor_0"]["kernel"].shape, network["critic_0"]["kernel"].shape) == ((5, 8), (6, 8))


@pytest.mark.slow
def test_an_exported_policy_takes_only_what_the_actor_sees(tmp_path: Path) -> None:
    agent = make_agent(PPOConfig(env="HiddenBit-v0", network={"hidden": [8]}, **SMALL))
    state = jax.jit(agent.init)(jax.random.key(0))
    policy = rljax.load_policy(rljax.export_policy(agent, state, tmp_path / "policy").path)
    obs = {"observation": observations(7)["observation"]}
    expected, _ = agent.act(state, obs, None, jax.random.key(0), True)
    np.testing.assert_array_equal(policy.greedy(obs), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flatten_observations": True}, "flatten_observations = true: .* a part that only the critic sees"),
        ({"network": {"shared": True}}, "network.shared = true: a critic with privileged observations needs a torso of its own"),
    ],
)
def test_what_would_show_it_to_the_actor_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_agent(PPOConfig(env="HiddenBit-v0", **SMALL, **changes))


# Goals


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_a_goal_modulates_the_first_layer_and_begins_by_changing_nothing(kind: str) -> None:
    network = {"type": kind, "hidden": [8], "goal": "film"}
    parts = ppo_parts(PPOConfig(env="Command-v0", network=network, **SMALL))
    state = ppo_init(parts, jax.random.key(0))
    size = state.obs["observation"].shape[-1]
    obs = {"observation": jnp.ones((2, size)), "goal": jnp.stack([jnp.zeros(size), jnp.ones(size)])}
    outputs, value, _ = parts.policy.apply(state.params, obs)
    np.testing.assert_array_equal(outputs[0], outputs[1])
    shifted = jax.tree.map(lambda x: x + 0.1, state.params)
    outputs, value, _ = parts.policy.apply(shifted, obs)
    assert float(jnp.abs(outputs[0] - outputs[1]).max()) > 1e-3
    assert float(jnp.abs(value[0] - value[1])) > 1e-3


@pytest.mark.slow
def test_a_goal_joins_the_observation_unless_it_modulates() -> None:
    parts = ppo_parts(PPOConfig(env="Command-v0", network={"hidden": [8]}, **SMALL))
    state = ppo_init(parts, jax.random.key(0))
    sizes = {name: x.shape[-1] for name, x in state.obs.items()}
    assert state.params["params"]["network"]["actor_0"]["kernel"].shape == (sum(sizes.values()), 8)
    film = ppo_parts(PPOConfig(env="Command-v0", network={"hidden": [8], "goal": "film"}, **SMALL))
    network = ppo_init(film, jax.random.key(0)).params["params"]["network"]
    assert network["actor_0"]["kernel"].shape == (sizes["observation"], 8)
    assert {"actor_film", "critic_film"} <= set(network)
