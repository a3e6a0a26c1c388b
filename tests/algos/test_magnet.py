"""The magnet of PPO's loss: its term by hand, and that it is the policy of the averaged parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.policy import policy_and_value
from rljax.algos.ppo import Minibatch, ppo_collect, ppo_init, ppo_loss, ppo_parts, ppo_update

CONFIG = rljax.PPOConfig(
    env="CartPole-v1", num_envs=4, num_steps=16, num_minibatches=1, num_epochs=1, network={"hidden": [8]}, average_decay=0.9
)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.slow
def test_the_magnet_adds_its_weighted_divergence_to_the_loss() -> None:
    parts = ppo_parts(CONFIG)
    params, other = (parts.policy.init(jax.random.key(i), jnp.zeros((1, 4))) for i in range(2))
    obs = 5.0 * jax.random.normal(jax.random.key(2), (6, 4))
    outputs, value, _ = policy_and_value(parts, params, obs)
    magnet = policy_and_value(parts, other, obs)[0] * 50.0
    batch = Minibatch(obs, jnp.zeros(6, jnp.int32), None, -jnp.ones(6), value, jnp.arange(6.0), value, magnet=magnet)
    losses = [ppo_loss(parts._replace(config=CONFIG.replace(magnet_coef=x)), params, batch)[0] for x in (None, 0.0, 0.3)]
    policy, towards = (log_softmax(np.asarray(x, np.float64)) for x in (outputs, magnet))
    divergence = (np.exp(policy) * (policy - towards)).sum(-1).mean()
    assert divergence > 0.01
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
    np.testing.assert_allclose(losses[2] - losses[0], 0.3 * divergence, rtol=1e-3)


@pytest.mark.slow
def test_an_update_pulls_the_policy_to_the_averaged_parameters() -> None:
    """All else has no weight: the loss's only gradient is the magnet's, and none where the average is the policy."""
    config = CONFIG.replace(
        vf_coef=0.0, ent_coef=0.0, magnet_coef=1.0, normalize_advantages=False, clip_eps=1e-6, learning_rate=1e-2
    )
    parts = ppo_parts(config)

    @jax.jit
    def updated(average: object) -> tuple[object, jax.Array]:
        state = ppo_init(parts, jax.random.key(0)).replace(average_params=average)
        state, rollout = ppo_collect(parts, state)
        none = jnp.zeros_like(rollout.value)
        nothing = rollout._replace(steps=rollout.steps._replace(reward=none), value=none, next_value=none)

        def divergence(params: object) -> jax.Array:
            logits, magnet = (jax.nn.log_softmax(policy_and_value(parts, x, rollout.steps.obs)[0]) for x in (params, average))
            return jnp.mean(jnp.sum(jnp.exp(logits) * (logits - magnet), axis=-1))

        after, metrics = ppo_update(parts, state, nothing)
        return (divergence(state.params), divergence(after.params)), metrics["train/grad_norm"]

    same = ppo_init(parts, jax.random.key(0)).params
    (_, after), gradient = updated(same)
    assert float(gradient) < 1e-6
    rng = np.random.default_rng(0)
    other = jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(np.float32), same)
    (before, after), gradient = updated(other)
    assert float(gradient) > 1e-4
    assert float(after) < 0.95 * float(before)


def test_a_magnet_needs_an_average_and_a_policy_with_a_divergence() -> None:
    with pytest.raises(
        rljax.ConfigError, match=r"magnet_coef = 0\.1: the magnet is the policy of the averaged parameters, set average_decay"
    ):
        rljax.PPOConfig(magnet_coef=0.1)
    with pytest.raises(rljax.ConfigError, match="action_heads = 'autoregressive': expected 'independent' with magnet_coef"):
        rljax.PPOConfig(magnet_coef=0.1, average_decay=0.9, action_heads="autoregressive")
    parts = ppo_parts(CONFIG.replace(magnet_coef=0.1))
    state = jax.eval_shape(lambda: ppo_init(parts, jax.random.key(0)))
    with pytest.raises(rljax.ConfigError, match=r"a loop of your own must keep state\.average_params"):
        jax.eval_shape(lambda s: ppo_update(parts, *ppo_collect(parts, s)), state)
