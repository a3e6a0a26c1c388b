"""Actions of several heads in PPO: named heads, heads that see the ones before, and masks that depend on them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import ConfigError, ImpalaConfig, PPOConfig, make_agent, make_train
from rljax.algos.common.policy import policy_unroll
from rljax.algos.ppo import Minibatch, PPOParts, ppo_collect, ppo_init, ppo_parts, ppo_update

MASKED = {"env": "Composite-v0", "env_params": {"masked": True}}


def config_of(**changes: Any) -> PPOConfig:
    return PPOConfig(
        **{
            "env": "Composite-v0",
            "num_envs": 8,
            "num_steps": 8,
            "num_epochs": 1,
            "num_minibatches": 1,
            "total_timesteps": 640,
            "network": {"hidden": [16]},
            "action_heads": "autoregressive",
            **changes,
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        MASKED,
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in ({"action_heads": "independent"}, {"network": {"type": "gru", "size": 8}})
        ),
    ],
)
def test_the_ratio_is_1_on_the_first_minibatch(changes: dict[str, Any]) -> None:
    parts = ppo_parts(config_of(**changes))
    state, rollout = jax.jit(lambda s: ppo_collect(parts, s))(ppo_init(parts, jax.random.key(0)))
    assert rollout.steps.action.shape == (8, 8, 3)

    def furthest(parts: PPOParts, params: Any, batch: Minibatch) -> Any:
        outputs, _, _ = policy_unroll(parts, params, batch.obs, batch.carry, batch.begins)
        log_ratio = parts.head.distribution(outputs, batch.mask).log_prob(batch.action) - batch.log_prob
        return jnp.sum(log_ratio) * 0.0, {"furthest": jnp.max(jnp.abs(log_ratio))}

    assert float(ppo_update(parts, state, rollout, loss_fn=furthest)[1]["furthest"]) < 1e-5


@pytest.mark.slow
def test_a_mask_that_depends_on_earlier_heads_is_kept_by_every_action() -> None:
    """Only actions that agree are legal there, so every one of the first policy's pays unless it has paid before."""
    agent = make_agent(config_of(**MASKED))
    result = jax.jit(make_train(agent.config))(jax.random.key(0))
    parts = ppo_parts(agent.config)
    _, rollout = jax.jit(lambda s: ppo_collect(parts, s))(result.state)
    verb, target, amount = np.moveaxis(np.asarray(rollout.steps.action), -1, 0)
    shift = np.argmax(np.asarray(rollout.steps.obs), -1)
    np.testing.assert_array_equal(target, (verb + shift) % 4)
    np.testing.assert_array_equal(amount, (verb + shift) % 2)
    assert len(np.unique(verb)) == 4
    assert all(np.isfinite(x).all() for name, x in result.metrics.items() if name.startswith("train/"))


@pytest.mark.slow
def test_actions_of_named_heads_are_dictionaries_in_the_order_of_the_heads() -> None:
    config = config_of(action_heads="independent")
    parts, agent = ppo_parts(config), make_agent(config)
    state = ppo_init(parts, jax.random.key(0))
    for deterministic in (True, False):
        action, _ = agent.act(state, jnp.ones((5, 4)), None, jax.random.key(1), deterministic)
        assert list(action) == ["verb", "target", "amount"]
        assert {x.shape for x in action.values()} == {(5,)}
        assert int(action["amount"].max()) <= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "CartPole-v1"}, "action_heads = 'autoregressive': the actions of CartPole-v1 do not have heads"),
        ({"log_std": "network"}, "log_std = 'network': the actions of .* are not continuous; use 'parameter'"),
        ({"action_heads": "joint"}, "action_heads = 'joint': expected one of 'independent', 'autoregressive'"),
        ({**MASKED, "action_heads": "independent"}, "depends on the actions of earlier heads; expected 'autoregressive'"),
    ],
)
def test_heads_that_do_not_fit_the_actions_are_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make_agent(config_of(**changes))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_impala_takes_such_heads_too() -> None:
    config = ImpalaConfig(
        **MASKED, num_envs=4, num_steps=8, total_timesteps=128, network={"hidden": [8]}, action_heads="autoregressive"
    )
    metrics = jax.jit(make_train(config))(jax.random.key(0)).metrics
    assert np.allclose(metrics["train/mean_rho"][0], 1.0, atol=1e-5)
    # The first policy is nearly uniform over the four actions that agree.
    assert float(metrics["train/entropy"][0]) == pytest.approx(np.log(4), abs=0.01)
