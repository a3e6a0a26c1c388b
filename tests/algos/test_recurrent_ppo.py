"""Policies with memory: resets at episode starts, what is remembered across rollouts, and minibatches of whole trajectories."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import ConfigError, ImpalaConfig, PPOConfig, make_agent
from rljax.algos.common.policy import policy_unroll
from rljax.algos.impala import impala_collect, impala_init, impala_loss, impala_parts, impala_streams
from rljax.algos.ppo import Minibatch, PPOParts, PPOState, ppo_collect, ppo_init, ppo_loss, ppo_parts, ppo_update
from rljax.collect.rollout import reset_carry
from rljax.collect.streams import episode_starts
from rljax.core.agent import _checking_carry
from rljax.envs.tmaze import TMaze

CELLS = ("lstm", "gru", "block_gru")


def config_of(cell: str, **changes: Any) -> PPOConfig:
    """Episodes of 3 to 6 steps in rollouts of 8, so that they end inside rollouts and go on across them."""
    network = {"type": cell, "hidden": [6], "size": 8, "head_hidden": [5]} | ({"blocks": 2} if cell == "block_gru" else {})
    return PPOConfig(
        **{
            "env": "TMaze-v0",
            "env_params": {"length": 2, "max_steps_in_episode": 6},
            "num_envs": 4,
            "num_steps": 8,
            "num_minibatches": 2,
            "num_epochs": 2,
            "total_timesteps": 320,
            "learning_rate": 1e-2,
            "normalize_observations": True,
            "network": network,
            **changes,
        }
    )


@functools.cache
def rollouts_of(cell: str) -> tuple[PPOParts, list[tuple[PPOState, PPOState, Any]]]:
    """Three iterations: `(parts, [(state before, state after collecting, rollout)])`."""
    parts = ppo_parts(config_of(cell))
    state, collected = ppo_init(parts, jax.random.key(3)), []
    collect, update = jax.jit(lambda s: ppo_collect(parts, s)), jax.jit(lambda s, r: ppo_update(parts, s, r)[0])
    for _ in range(3):
        after, rollout = collect(state)
        collected.append((state, after, rollout))
        state = update(after, rollout)
    return parts, collected


class Counts(nn.Module):
    """A user's network: it remembers how many steps there have been."""

    fault: str = ""

    def setup(self) -> None:
        self.policy, self.value = nn.Dense(3), nn.Dense(1)

    def initial_carry(self, batch: tuple[int, ...]) -> jax.Array:
        size = self.policy.features if self.fault == "bound" else 1
        return jnp.full((*batch, size), float(self.fault == "ones"))

    def embed(self, obs: jax.Array) -> jax.Array:
        return obs

    def advance(self, carry: jax.Array, x: jax.Array) -> jax.Array:
        if self.fault == "shape":
            return jnp.zeros((*carry.shape, 2))
        return (carry + 0.1).astype(jnp.bfloat16 if self.fault == "dtype" else jnp.float32)

    def heads(self, carry: jax.Array, x: jax.Array, privileged: None) -> tuple[jax.Array, jax.Array]:
        y = jnp.concatenate([x, carry.reshape((*x.shape[:-1], -1)).astype(jnp.float32)], axis=-1)
        return self.policy(y), self.value(y)[..., 0]


def seen(state: PPOState, obs: Any) -> np.ndarray:
    mean, var = np.asarray(state.obs_statistics.mean), np.asarray(state.obs_statistics.var)
    return np.clip((np.asarray(obs) - mean) / np.sqrt(var + 1e-8), -10, 10)


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["lstm", "gru", "block_gru"])
def test_a_rollout_is_what_the_policy_does_step_by_step_when_it_forgets_at_every_end(cell: str) -> None:
    """Against one environment at a time, one step at a time, in plain Python."""
    parts, collected = rollouts_of(cell)
    apply = jax.jit(parts.policy.apply)
    ends_inside = goes_on_across = 0
    for state, after, rollout in collected:
        steps = jax.tree.map(np.asarray, rollout.steps)
        done = steps.terminated | steps.truncated
        ends_inside += done[:-1].sum()
        goes_on_across += (~done[-1]).sum()
        for n in range(parts.config.num_envs):
            carry = jax.tree.map(lambda x, n=n: x[n], state.carry)
            for t in range(parts.config.num_steps):
                outputs, value, carry = apply(state.params, seen(state, steps.obs[t, n]), carry)
                log_prob = parts.head.distribution(outputs, None).log_prob(steps.action[t, n])
                assert float(log_prob) == pytest.approx(float(rollout.log_prob[t, n]), abs=1e-5)
                assert float(value) == pytest.approx(float(rollout.value[t, n]), abs=1e-5)
                # The observation that followed is the same episode's, whether or not it ended there.
                _, next_value, _ = apply(state.params, seen(state, steps.next_obs[t, n]), carry)
                assert float(next_value) == pytest.approx(float(rollout.next_value[t, n]), abs=1e-5)
                if done[t, n]:
                    carry = jax.tree.map(jnp.zeros_like, carry)
            for ours, kept in zip(jax.tree.leaves(carry), jax.tree.leaves(after.carry), strict=True):
                np.testing.assert_allclose(ours, kept[n], atol=1e-5)
    assert ends_inside >= 6
    assert goes_on_across >= 6


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_the_ratio_is_1_on_the_first_minibatch_of_every_rollout(cell: str) -> None:
    collected = rollouts_of(cell)[1]
    once = ppo_parts(config_of(cell, num_epochs=1, num_minibatches=1))

    def furthest(parts: PPOParts, params: Any, batch: Minibatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        outputs, value, _ = policy_unroll(parts, params, batch.obs, batch.carry, batch.begins)
        log_ratio = parts.head.distribution(outputs, batch.mask).log_prob(batch.action) - batch.log_prob
        return jnp.sum(outputs) * 0.0, {"ratio": jnp.max(jnp.abs(log_ratio)), "value": jnp.max(jnp.abs(value - batch.value))}

    for _, after, rollout in collected:
        metrics = jax.jit(lambda s, r: ppo_update(once, s, r, loss_fn=furthest)[1])(after, rollout)
        assert float(metrics["ratio"]) < 1e-5
        assert float(metrics["value"]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["never resets", "resets one step late", "begins every rollout anew"])
def test_the_ratio_would_show_a_wrong_reset(wrong: str) -> None:
    """The test above can fail: each of these faults moves the ratio far from 1."""
    parts, collected = rollouts_of("gru")
    state, _, rollout = collected[-1]
    begins = episode_starts(rollout.steps)
    carry = rollout.carry
    if wrong == "never resets":
        begins = jnp.zeros_like(begins)
    elif wrong == "resets one step late":
        begins = jnp.concatenate([begins[:1], begins[:-1]])
    else:
        carry = jnp.zeros_like(carry)
    outputs, _, _ = policy_unroll(parts, state.params, jnp.asarray(seen(state, rollout.steps.obs)), carry, begins)
    log_prob = parts.head.distribution(outputs, None).log_prob(rollout.steps.action)
    assert float(jnp.max(jnp.abs(log_prob - rollout.log_prob))) > 1e-3


@pytest.mark.slow
def test_the_gradient_goes_through_time_but_not_over_the_start_of_an_episode() -> None:
    parts, collected = rollouts_of("lstm")
    state, _, rollout = collected[1]
    begins = np.asarray(episode_starts(rollout.steps))
    obs = jnp.asarray(seen(state, rollout.steps.obs))
    last_start = [int(np.flatnonzero(begins[:, n])[-1]) for n in range(4) if begins[:, n].any()]
    environments = [n for n in range(4) if begins[:, n].any()]
    gradient = jax.grad(lambda o: jnp.sum(policy_unroll(parts, state.params, o, rollout.carry, jnp.asarray(begins))[1][-1]))(obs)
    checked = 0
    for n, start in zip(environments, last_start, strict=True):
        np.testing.assert_array_equal(gradient[:start, n], 0.0)
        if start < 6:
            checked += 1
            assert float(jnp.abs(gradient[start, n]).max()) > 0.0
    assert checked


@pytest.mark.slow
def test_the_loss_gets_whole_trajectories_with_what_was_remembered_before_them() -> None:
    parts, collected = rollouts_of("gru")
    _, after, rollout = collected[-1]
    shapes: list[Any] = []

    def look(parts: PPOParts, params: Any, batch: Minibatch) -> Any:
        shapes.append(jax.tree.map(jnp.shape, (batch.obs, batch.action, batch.begins, batch.advantage, batch.carry)))
        # Which environment each carry is of, by its first observation.
        place = jnp.argmin(jnp.sum(jnp.abs(batch.obs[0][:, None] - first), -1), -1)
        wrong = jnp.max(jnp.abs(batch.carry - rollout.carry[place]))
        return ppo_loss(parts, params, batch)[0], {"wrong": wrong}

    # Distinct first observations, so that each says whose trajectory it begins.
    marked = rollout._replace(steps=rollout.steps._replace(obs=rollout.steps.obs.at[0, :, 0].add(jnp.arange(4.0))))
    first = jnp.asarray(seen(after, marked.steps.obs[0]))
    metrics = ppo_update(parts, after, marked, loss_fn=look)[1]
    assert shapes[0] == ((8, 2, 4), (8, 2), (8, 2), (8, 2), (2, 8))
    assert float(metrics["wrong"]) < 1e-6


@pytest.mark.slow
def test_act_remembers_and_none_or_zeros_begin_an_episode() -> None:
    config = config_of("gru")
    agent = make_agent(config)
    state = jax.jit(agent.init)(jax.random.key(0))
    sign = jnp.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    junction = jnp.tile(jnp.array([0, 0, 0, 1.0]), (2, 1))
    key = jax.random.key(1)
    action, carry = agent.act(state, sign, None, key, True)
    assert action.shape == (2,)
    assert carry.shape == (2, 8)
    parts = ppo_parts(config)
    outputs = [parts.policy.apply(state.params, junction, c)[0] for c in (carry, None, jnp.zeros_like(carry))]
    assert float(jnp.abs(outputs[0][0] - outputs[0][1]).max()) > 1e-7, "the sign is remembered"
    np.testing.assert_array_equal(outputs[1], outputs[2])
    np.testing.assert_array_equal(outputs[1][0], outputs[1][1])
    # Any batch axes, and a sample as well as the mode.
    action, carry = agent.act(state, jnp.ones((3, 5, 4)), None, key)
    assert action.shape == (3, 5)
    assert carry.shape == (3, 5, 8)


def test_forget_zeroes_only_what_ended() -> None:
    carry = (jnp.ones((3, 2)), jnp.full((3, 2, 4), 2, jnp.int32))
    done = jnp.array([False, True, False])
    first, second = reset_carry(carry, done)
    np.testing.assert_array_equal(first, [[1, 1], [0, 0], [1, 1]])
    np.testing.assert_array_equal(second.sum((1, 2)), [16, 0, 16])
    assert second.dtype == jnp.int32


def scans_in(function: Any, *arguments: Any) -> list[int]:
    """Lengths of all scans of a function, nested ones too."""

    def lengths(jaxpr: Any) -> list[int]:
        found: list[int] = []
        for equation in jaxpr.eqns:
            if equation.primitive.name == "scan":
                found.append(equation.params["length"])
            for value in equation.params.values():
                for inner in value if isinstance(value, (tuple, list)) else (value,):
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        found += lengths(inner)
        return found

    return lengths(jax.make_jaxpr(function)(*arguments).jaxpr)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_the_rollout_and_the_loss_are_one_scan_over_time_each(cell: str) -> None:
    """7 steps, a number that no other loop here has. The gradient of a scan is another one, backwards."""
    config = config_of(cell, num_steps=7, num_minibatches=1)
    parts = ppo_parts(config)
    state = ppo_init(parts, jax.random.key(0))
    assert scans_in(lambda s: ppo_collect(parts, s), state).count(7) == 1
    rollout = jax.eval_shape(lambda s: ppo_collect(parts, s), state)[1]
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), rollout)
    value = zeros.steps.reward
    batch = Minibatch(zeros.steps.obs, zeros.steps.action, None, value, value, value, value, zeros.steps.terminated, zeros.carry)
    assert scans_in(lambda p: ppo_loss(parts, p, batch), state.params).count(7) == 1
    assert scans_in(jax.grad(lambda p: ppo_loss(parts, p, batch)[0]), state.params).count(7) == 2


@pytest.mark.slow
def test_impala_judges_trajectories_as_the_policy_that_took_them() -> None:
    network = {"type": "gru", "hidden": [6], "size": 8}
    config = ImpalaConfig(
        env="TMaze-v0", env_params={"length": 2}, num_envs=4, num_steps=8, network=network, total_timesteps=320, policy_lag=2
    )
    parts = impala_parts(config)
    state = impala_init(parts, jax.random.key(0))
    agent = make_agent(config)
    step = jax.jit(agent.step)
    for _ in range(2):
        state, _ = step(state)
    _, rollout = jax.jit(lambda s: impala_collect(parts, s))(state)
    # Two iterations of lag: the first policy still collects, and to itself its ratio is 1.
    first = impala_init(parts, jax.random.key(0)).params
    assert (rollout.steps.terminated[:-1]).any()
    assert float(jnp.abs(rollout.carry).max()) > 0
    streams = impala_streams(state, rollout, rollout.steps.reward)
    loss = jax.jit(lambda p: impala_loss(parts, p, streams)[1])
    assert float(loss(first)["train/approx_kl"]) == pytest.approx(0.0, abs=1e-6)
    assert float(loss(first)["train/mean_rho"]) == pytest.approx(1.0, abs=1e-5)
    assert float(loss(state.params)["train/approx_kl"]) > 1e-8


@pytest.mark.slow
def test_impalas_values_of_what_followed_remember_too() -> None:
    """The last step's TD error is r + gamma V(next) - V, in which V(next) is that of a policy which remembers the episode."""
    network = {"type": "gru", "hidden": [6], "size": 8}
    config = ImpalaConfig(env="TMaze-v0", env_params={"length": 2}, num_envs=4, num_steps=5, network=network, total_timesteps=320)
    parts = impala_parts(config)
    state = impala_init(parts, jax.random.key(0))
    # Weights far from the small first ones, so that what is remembered counts.
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: x + jnp.asarray(0.5 * rng.normal(size=x.shape), x.dtype), state.params)
    _, rollout = jax.jit(lambda s: impala_collect(parts, s))(state.replace(params=params))
    steps = jax.tree.map(np.asarray, rollout.steps)
    value, next_value = np.zeros((5, 4)), np.zeros((5, 4))
    for n in range(4):
        carry = rollout.carry[n]
        for t in range(5):
            _, value[t, n], carry = parts.policy.apply(params, jnp.asarray(steps.obs[t, n]), carry)
            next_value[t, n] = parts.policy.apply(params, jnp.asarray(steps.next_obs[t, n]), carry)[1]
            carry = jnp.zeros_like(carry) if steps.terminated[t, n] else carry
    target, _ = rljax.vtrace(
        rollout.steps.reward,
        jnp.asarray(value, jnp.float32),
        jnp.asarray(next_value, jnp.float32),
        rollout.steps.terminated,
        rollout.steps.truncated,
        jnp.zeros((5, 4)),
        config.gamma,
    )
    loss = impala_loss(parts, params, impala_streams(state, rollout, rollout.steps.reward))[1]
    assert float(loss["train/value_loss"]) == pytest.approx(0.5 * float(np.mean((value - target) ** 2)), rel=1e-4)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("ones", "expected an initial_carry of zeros"),
        ("dtype", "advance makes bfloat16.* of a carry float32.*, expected the same shapes and dtypes"),
        ("shape", "expected the same shapes and dtypes"),
        ("bound", "initial_carry, which has no parameters, or a step fails"),
    ],
)
def test_a_users_network_whose_memory_breaks_the_contract_is_one_line(fault: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make_agent(config_of("gru", network=Counts(fault)))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_users_network_with_memory_is_trained() -> None:
    result = jax.jit(rljax.make_train(config_of("gru", network=Counts())))(jax.random.key(0))
    assert result.state.carry.shape == (4, 1)
    assert np.isfinite(result.metrics["train/value_loss"]).all()


@pytest.mark.slow
def test_evaluation_remembers_within_an_episode() -> None:
    """A policy that turns to where the sign was, by hand: perfect with its memory, at chance without."""
    agent = make_agent(config_of("gru", env_params={"length": 3}))
    state = jax.jit(agent.init)(jax.random.key(0))

    def act(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False, mask: Any = None) -> Any:
        carry = jnp.zeros(obs.shape[:-1]) if carry is None else carry
        carry = carry + obs[..., 0] - obs[..., 1]
        turn = jnp.where(carry > 0, 1, 2)
        return jnp.where(obs[..., 3] > 0.5, turn, 0), carry

    remembers = agent._replace(act=act)
    forgets = agent._replace(act=lambda s, o, c, k, d=False, m=None: (act(s, o, None, k)[0], c))
    assert np.all(rljax.evaluate(remembers, state, jax.random.key(1), 64) == 1.0)
    assert abs(float(jnp.mean(rljax.evaluate(forgets, state, jax.random.key(1), 64)))) < 0.5


def test_memory_needs_minibatches_of_whole_trajectories() -> None:
    with pytest.raises(ConfigError, match=r"num_minibatches = 8: must divide num_envs = 4 for a network with memory"):
        make_agent(config_of("gru", num_minibatches=8))


@pytest.mark.parametrize("shape", [(3, 2), (4, 16)])
def test_a_carry_of_another_shape_is_one_line(shape: tuple[int, int]) -> None:
    agent = make_agent(config_of("gru"))
    state = jax.jit(agent.init)(jax.random.key(0))
    obs = jax.tree.map(lambda x: x[:3], state.obs)
    _, carry = agent.act(state, obs, None, jax.random.key(0))
    agent.act(state, obs, carry, jax.random.key(0))
    with pytest.raises(ConfigError, match=r"carry: has the shape .*, expected .*\(3, ") as error:
        agent.act(state, obs, jax.tree.map(lambda _: jnp.zeros(shape), carry), jax.random.key(0))
    assert "\n" not in str(error.value)
    wrong = state.replace(carry=jax.tree.map(lambda x: x[..., :-1], state.carry))
    with pytest.raises(ConfigError, match=r"^state\.carry: has the shape .*, expected .*\(4, .*, as in a state from init$"):
        agent.step(wrong)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"type": "gruu"}, "did you mean 'gru'"),
        ({"type": "gru", "size": 0}, "network.size = 0: expected a whole number > 0"),
        ({"type": "gru", "shared": True}, "network.shared: belongs to type = 'mlp', but the type is 'gru'"),
        ({"type": "block_gru", "size": 10, "blocks": 4}, "network.blocks = 4: must divide network.size = 10"),
        ({"type": "gru", "blocks": 4}, "network.blocks: belongs to type = 'block_gru', but the type is 'gru'"),
        ({"type": "mlp", "size": 4}, "network.size: belongs to type = 'lstm' and 'gru' and 'block_gru', but the type is 'mlp'"),
        ({"type": "gru", "encoder": "entity"}, "did you mean 'entities'"),
        ({"type": "gru", "encoder": "entities"}, "observations of this environment|a dictionary with .entities."),
        ({"type": "gru", "encoder": "entities", "width": 10}, "network.heads = 4: must divide network.width = 10"),
        ({"type": "gru", "pointer": True}, "network.pointer: belongs to encoder = 'entities'"),
        ({"goal": "film"}, "network.goal = 'film'"),
    ],
)
def test_a_bad_table_is_one_line(network: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make_agent(config_of("gru", network=network))
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "env",
    [
        "MemoryChain-bsuite",
        *(
            pytest.param(env, marks=pytest.mark.slow)
            for env in ("UmbrellaChain-bsuite", "BernoulliBandit-misc", "GaussianBandit-misc", "PointRobot-misc", "MetaMaze-misc")
        ),
    ],
)
def test_partially_observed_environments_of_gymnax_train_by_id(env: str) -> None:
    config = config_of("gru", env=env, env_params={}, network={"type": "gru"}, normalize_observations=False)
    result = jax.jit(rljax.make_train(config.replace(total_timesteps=64)))(jax.random.key(0))
    assert result.state.carry.shape == (4, 64)
    assert all(np.isfinite(x).all() for name, x in result.metrics.items() if name.startswith("train/"))
    fresh = jax.eval_shape(make_agent(config).init, jax.random.key(0)).params
    assert jax.tree.structure(fresh) == jax.tree.structure(result.state.params)


def test_the_maze_cannot_be_solved_from_the_last_observation() -> None:
    """What makes the learning test of memory mean something: at the junction both sides look the same."""
    env = TMaze()
    params = env.default_params
    seen_at_junction = set()
    for seed in range(8):
        obs, state = env.reset_env(jax.random.key(seed), params)
        for _ in range(params.length):
            obs, state, *_ = env.step_env(jax.random.key(0), state, jnp.int32(0), params)
        seen_at_junction.add(tuple(np.asarray(obs).tolist()))
    assert len(seen_at_junction) == 1


def test_a_good_carry_costs_no_second_trace() -> None:
    """The policy is traced once more only where an error has to be explained: exports note what a trace of it draws."""
    config, traces = config_of("gru"), []
    plain = make_agent(config)

    def act(*arguments: Any) -> Any:
        traces.append(1)
        return plain.act(*arguments)

    agent = _checking_carry(plain._replace(act=act))
    state = jax.jit(plain.init)(jax.random.key(0))
    _, carry = plain.act(state, state.obs, None, jax.random.key(0))
    agent.act(state, state.obs, carry, jax.random.key(0))
    assert len(traces) == 1
