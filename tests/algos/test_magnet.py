"""The magnet of PPO's loss: its term by hand, and that it is the policy of the averaged parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.magnet import divergence_from_magnet, magnet_view
from rljax.algos.common.policy import policy_and_value
from rljax.algos.ppo import Minibatch, ppo_collect, ppo_init, ppo_loss, ppo_parts, ppo_update
from rljax.collect.streams import Streams
from rljax.envs.composite import Composite

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


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_of_heads_that_see_each_other_it_is_the_divergence_of_all_actions_together(masked: bool) -> None:
    """Composite-v0 has 32 joint actions. The divergence along an action is right on average over the policy's actions."""
    parts = ppo_parts(
        CONFIG.replace(
            env=Composite(masked), action_heads="autoregressive", magnet_coef=1.0, vf_coef=0.0, ent_coef=0.0, learning_rate=1e-2
        )
    )
    state = ppo_init(parts, jax.random.key(0))
    actions = jnp.stack(jnp.meshgrid(*(jnp.arange(n) for n in (4, 4, 2)), indexing="ij"), -1).reshape(-1, 3)
    obs = jnp.tile(jnp.eye(4)[1], (len(actions), 1))
    mask = None
    if masked:
        env = Composite(masked)
        shifted = env.reset_env(jax.random.key(0), env.default_params)[1].replace(shift=jnp.int32(1))
        mask = jnp.tile(env.action_mask(shifted, env.default_params), (len(actions), 1, 1))
    # Far from each other and from uniform.
    policy, magnet = (
        jax.tree.map(lambda x, i=i: x + 0.7 * jax.random.normal(jax.random.key(i), x.shape), state.params) for i in (1, 2)
    )

    def log_probs(params: object) -> jax.Array:
        outputs = policy_and_value(parts, params, obs)[0]
        return parts.head.distribution(outputs, mask).log_prob(actions)

    def joint(params: object) -> jax.Array:
        own, other = (jnp.where(legal, log_probs(x), 0.0) for x in (params, magnet))
        return jnp.sum(jnp.where(legal, jnp.exp(own) * (own - other), 0.0))

    def along(params: object) -> jax.Array:
        streams = Streams(obs=obs[None], action=actions[None], mask=None if mask is None else mask[None], **nothing)
        view = magnet_view(parts, magnet, streams)[0]
        batch = Minibatch(obs, actions, mask, none, none, none, none, magnet=view)
        return divergence_from_magnet(parts, parts.head.distribution(policy_and_value(parts, params, obs)[0], mask), batch)

    none = jnp.zeros(len(actions))
    nothing = dict.fromkeys(set(Streams._fields) - {"obs", "action", "mask"})
    probability = jnp.exp(log_probs(policy))
    legal = probability > 0
    assert int(legal.sum()) == (4 if masked else 32)
    expected = float(joint(policy))
    assert expected > 0.3
    np.testing.assert_allclose(jnp.sum(probability * along(policy)), expected, rtol=1e-5)
    # What the gradient leaves out does not turn it round.
    left = jax.grad(lambda params: jnp.sum(probability * along(params)))(policy)
    nearer = jax.tree.map(lambda x, g: x - 0.01 * g, policy, left)
    assert float(joint(nearer)) < 0.99 * expected


def test_a_magnet_needs_an_average() -> None:
    with pytest.raises(
        rljax.ConfigError, match=r"magnet_coef = 0\.1: the magnet is the policy of the averaged parameters, set average_decay"
    ):
        rljax.PPOConfig(magnet_coef=0.1)
    parts = ppo_parts(CONFIG.replace(magnet_coef=0.1))
    state = jax.eval_shape(lambda: ppo_init(parts, jax.random.key(0)))
    with pytest.raises(rljax.ConfigError, match=r"a loop of your own must keep state\.average_params"):
        jax.eval_shape(lambda s: ppo_update(parts, *ppo_collect(parts, s)), state)
