"""Several value heads: they add up to one where they should, and each learns its own stream; bonuses as one of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import ConfigError, PPOConfig, gae, make_agent, make_train
from rljax.algos.common.value_heads import combined, head_settings, reward_streams
from rljax.algos.ppo import Minibatch, PPOParts, ppo_collect, ppo_init, ppo_loss, ppo_parts, ppo_update
from rljax.collect.environments import make_training_env
from rljax.core.environments.environment import Environment
from rljax.core.environments.step_wrappers import ActionRepeat, EndOnNaN, ScaleReward, ShapeReward
from rljax.core.environments.wrappers import ClipReward, Wrapper
from rljax.envs import CartPole
from rljax.nn.policy import Policy


class Split(Wrapper):
    """CartPole whose reward comes in two parts, and which says how unsure an observer is."""

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        left = jnp.where(obs[0] < 0, 0.75, 0.25) * reward
        info = {**info, "reward_components": {"right": reward - left, "left": left}, "belief_entropy": jnp.abs(obs[2])}
        return obs, state, reward, terminated, info


def config_of(**changes: Any) -> PPOConfig:
    return PPOConfig(
        **{
            "env": Split(CartPole()),
            "num_envs": 4,
            "num_steps": 32,
            "num_epochs": 1,
            "num_minibatches": 1,
            "total_timesteps": 1280,
            "learning_rate": 1e-2,
            "network": {"hidden": [8]},
            **changes,
        }
    )


TWO: dict[str, Any] = {"value_heads": ("left", "right")}


def minibatch_of(parts: PPOParts, state: Any, rollout: Any) -> Minibatch:
    """What the loss is given."""
    given: list[Minibatch] = []

    def look(parts: PPOParts, params: Any, batch: Minibatch) -> Any:
        given.append(batch)
        return ppo_loss(parts, params, batch)

    names = ("advantage", "value", "target")

    def keep(parts: PPOParts, params: Any, batch: Minibatch) -> Any:
        loss, metrics = look(parts, params, batch)
        # Minibatches are traced: what they hold comes out as metrics.
        flat = jnp.concatenate([jnp.ravel(getattr(batch, name)) for name in names])
        return loss, metrics | {f"{i:05d}": x for i, x in enumerate(flat)}

    _, metrics = ppo_update(parts, state, rollout, loss_fn=keep)
    shapes = [getattr(given[0], name).shape for name in names]
    flat = np.array([metrics[key] for key in sorted(metrics) if key.isdigit()])
    parts_of = np.split(flat, np.cumsum([np.prod(s) for s in shapes])[:-1].astype(int))
    return given[0]._replace(**{name: x.reshape(s) for name, x, s in zip(names, parts_of, shapes, strict=True)})


@pytest.mark.slow
def test_heads_that_share_weights_and_discounts_are_one_head() -> None:
    """The single head has the sum of the two as its critic: advantages and targets must be the same."""
    double = ppo_parts(config_of(num_steps=8, num_envs=2, **TWO))
    state = ppo_init(double, jax.random.key(0))
    state, rollout = jax.jit(lambda s: ppo_collect(double, s))(state)
    assert rollout.value.shape == (8, 2, 2)
    np.testing.assert_allclose(sum(rollout.steps.extras["reward_components"].values()), rollout.steps.reward, rtol=1e-6)
    single = ppo_parts(config_of(num_steps=8, num_envs=2))
    summed = rollout._replace(value=rollout.value.sum(-1), next_value=rollout.next_value.sum(-1))
    one = ppo_init(single, jax.random.key(0)).replace(env_state=state.env_state, obs=state.obs)
    ours, theirs = minibatch_of(double, state, rollout), minibatch_of(single, one, summed)
    np.testing.assert_allclose(ours.advantage, theirs.advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.target.sum(-1), theirs.target, rtol=1e-4, atol=1e-5)
    assert np.abs(ours.target[..., 0] - ours.target[..., 1]).max() > 0.1


@pytest.mark.slow
def test_each_head_has_the_returns_of_its_own_stream_discounted_on_its_own() -> None:
    gammas, lambdas, weights = (0.5, 0.99), (0.3, 0.9), (2.0, -0.5)
    config = config_of(**TWO, head_gammas=gammas, head_lambdas=lambdas, head_weights=weights)
    parts = ppo_parts(config)
    state, rollout = jax.jit(lambda s: ppo_collect(parts, s))(ppo_init(parts, jax.random.key(1)))
    steps = rollout.steps
    assert steps.terminated.any()
    heads, streams = head_settings(config), reward_streams(parts, state, steps, jax.random.key(0))[0]
    ours = gae(
        streams.reward, rollout.value, rollout.next_value, streams.terminated, streams.truncated, heads.gamma, heads.gae_lambda
    )
    for k, name in enumerate(config.value_heads):
        component = steps.extras["reward_components"][name]
        alone = (rollout.value[..., k], rollout.next_value[..., k], steps.terminated, steps.truncated, gammas[k], lambdas[k])
        np.testing.assert_allclose(ours[..., k], gae(component, *alone), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(combined(heads, ours), 2.0 * ours[..., 0] - 0.5 * ours[..., 1], rtol=1e-5, atol=1e-6)
    del state


@pytest.mark.slow
def test_the_value_loss_is_differentiable_for_each_head_on_its_own() -> None:
    parts = ppo_parts(config_of(**TWO, vf_clip_eps=None))
    state, rollout = ppo_collect(parts, ppo_init(parts, jax.random.key(2)))
    size = 64
    obs = rollout.steps.obs.reshape(-1, 4)[:size]
    zeros = jnp.zeros(size)
    rng = np.random.default_rng(0)
    target = jnp.asarray(rng.normal(size=(size, 2)), jnp.float32)
    batch = Minibatch(obs, rollout.steps.action.ravel()[:size], None, zeros, jnp.zeros((size, 2)), zeros, target)

    def head_gradient(batch: Minibatch) -> np.ndarray:
        gradient = jax.grad(lambda p: ppo_loss(parts, p, batch)[0])(state.params)
        return np.asarray(gradient["params"]["network"]["value_head"]["kernel"])

    before = head_gradient(batch)
    assert (np.abs(before) > 0).any(0).all()
    after = head_gradient(batch._replace(target=target.at[:, 0].add(1.0)))
    assert np.abs(after[:, 0] - before[:, 0]).max() > 1e-3
    np.testing.assert_array_equal(after[:, 1], before[:, 1])
    metrics = ppo_loss(parts, state.params, batch)[1]
    assert float(metrics["train/value_loss"]) == pytest.approx(
        float(metrics["train/value_loss_left"] + metrics["train/value_loss_right"]), rel=1e-6
    )
    _, value, _ = parts.policy.apply(state.params, obs)
    for k, name in enumerate(TWO["value_heads"]):
        expected = 0.5 * np.mean((np.asarray(value[:, k]) - np.asarray(target[:, k])) ** 2)
        assert float(metrics[f"train/value_loss_{name}"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_discounts_of_heads_are_leaves_that_can_be_swept() -> None:
    config = config_of(total_timesteps=256, **TWO, head_gammas=(0.9, 0.9))

    def value(gamma: jax.Array) -> jax.Array:
        return make_train(config.replace(head_gammas=(gamma, 0.9)))(jax.random.key(0)).metrics["train/value_loss_left"][0]

    low, high = jax.jit(jax.vmap(value))(jnp.array([0.0, 0.99]))
    assert float(high) > 1.5 * float(low)

    def value_of_both(gammas: jax.Array) -> jax.Array:
        return make_train(config.replace(head_gammas=gammas))(jax.random.key(0)).metrics["train/value_loss_left"][0]

    both = jax.jit(jax.vmap(value_of_both))(jnp.array([[0.0, 0.9], [0.99, 0.9]]))
    np.testing.assert_allclose(both, jnp.stack([low, high]), rtol=1e-5)
    assert config.replace(head_gammas=np.array([0.5, 0.25])).head_gammas == (0.5, 0.25)
    with pytest.raises(ConfigError, match=r"head_gammas\[1\] = 2.0: expected a number"):
        config.replace(head_gammas=jnp.array([0.5, 2.0]))


@pytest.mark.slow
def test_scaled_components_are_parts_of_the_scaled_reward() -> None:
    config = config_of(**TWO, normalize_rewards=True)
    parts = ppo_parts(config)
    state, rollout = ppo_collect(parts, ppo_init(parts, jax.random.key(1)))
    target = minibatch_of(parts, state, rollout).target
    after, _ = ppo_update(parts, state, rollout)
    scale = 1.0 / np.sqrt(float(after.reward_statistics.statistics.var) + 1e-8)
    rewards = [np.asarray(rollout.steps.extras["reward_components"][name]) * scale for name in config.value_heads]
    ends = (rollout.steps.terminated, rollout.steps.truncated)
    for k, reward in enumerate(rewards):
        v, next_v = rollout.value[..., k], rollout.next_value[..., k]
        expected = gae(jnp.asarray(reward), v, next_v, *ends, config.gamma, config.gae_lambda) + v
        np.testing.assert_allclose(target[:, k], np.asarray(expected).ravel(), rtol=1e-4, atol=1e-5)


class Counting(Environment):
    """Its n-th step has the reward 11 n in two components, n and 10 n; the fourth ends the episode, the tenth shows a NaN."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(1), jnp.zeros(())

    def step_env(self, key: jax.Array, state: jax.Array, action: Any, params: Any) -> Any:
        n = state + 1
        obs = jnp.where(n == 10, jnp.nan, n)[None]
        return obs, n, 11.0 * n, n == 4, {"reward_components": {"small": n, "large": 10.0 * n}}

    def is_truncated(self, state: jax.Array, params: Any) -> jax.Array:
        return jnp.asarray(False)


@pytest.mark.parametrize(
    ("wrap", "before", "factor"),
    [
        (lambda env: ActionRepeat(env, 3), 0.0, 1 + 2 + 3),
        (lambda env: ActionRepeat(env, 3), 2.0, 3 + 4),
        (lambda env: ScaleReward(env, 0.5), 4.0, 2.5),
        (EndOnNaN, 4.0, 5),
        (EndOnNaN, 9.0, 0),
    ],
)
def test_wrappers_change_the_components_of_a_reward_as_they_do_the_reward(wrap: Any, before: float, factor: float) -> None:
    env = wrap(Counting())
    _, state = env.reset_env(jax.random.key(0), None)
    state = jax.tree.map(lambda x: jnp.full_like(x, before) if x.dtype == jnp.float32 else x, state)
    _, _, reward, _, info = env.step_env(jax.random.key(0), state, 0, None)
    components = {name: float(x) for name, x in info["reward_components"].items()}
    assert (float(reward), components) == (11.0 * factor, {"small": factor, "large": 10.0 * factor})


def test_repeated_and_scaled_rewards_of_training_are_those_of_the_heads() -> None:
    env, params = make_training_env(config_of(**TWO, action_repeat=3, scale_rewards=0.1))
    _, state = env.reset_env(jax.random.key(0), params)
    _, _, reward, _, info = env.step_env(jax.random.key(0), state, 1, params)
    assert float(reward) == pytest.approx(0.3)
    assert sum(map(float, info["reward_components"].values())) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value_heads": ("lefft",)}, "no reward component 'lefft': did you mean 'left'"),
        ({"value_heads": ("left", "left")}, "expected different names"),
        ({"value_heads": ("left", "intrinsic")}, "expected different names, none of them 'intrinsic'"),
        ({"value_heads": "left"}, "value_heads = 'left': expected a list"),
        ({**TWO, "head_gammas": (0.9,)}, "head_gammas = .0.9.: expected one number for each of value_heads"),
        ({"head_weights": (1.0,)}, "head_weights = .1.0.: expected none without value_heads"),
        ({**TWO, "head_gammas": (0.9, 1.1)}, r"head_gammas\[1\] = 1.1: expected a number >= 0 and <= 1"),
        ({"env": "CartPole-v1", **TWO}, "CartPole-v1 does not split its reward"),
        ({**TWO, "clip_rewards": 1.0}, "clip_rewards = 1.0: expected none with value_heads"),
        ({**TWO, "env": ShapeReward(Split(CartPole()), lambda state, params: 0.0, 0.9)}, "; ShapeReward leaves it out"),
        ({**TWO, "env": ClipReward(Split(CartPole()), 1.0)}, "; ClipReward leaves it out"),
        ({"intrinsic": {"type": "count", "bins": 2**31}}, "intrinsic.bins = 2147483648: expected a power of two up to"),
        ({"intrinsic": {"type": "entropy_reduction"}, "env": "CartPole-v1"}, "the info of CartPole-v1 has no 'belief_entropy'"),
        ({"intrinsic": {"type": "counts"}}, "did you mean 'count'"),
        ({"intrinsic": {"type": "rnd", "num_minibatches": 3}}, "num_minibatches = 3"),
    ],
)
def test_a_bad_head_is_one_line(changes: dict[str, Any], message: str) -> None:
    def traced() -> None:
        agent = make_agent(config_of(**changes))
        jax.eval_shape(agent.step, jax.eval_shape(agent.init, jax.random.key(0)))

    with pytest.raises(ConfigError, match=message) as error:
        traced()
    assert "\n" not in str(error.value)


# Bonuses


@pytest.mark.parametrize("kind", ["count", "rnd", "entropy_reduction"])
@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, TWO], ids=["one stream", "two streams"])
def test_a_bonus_is_a_stream_with_a_head_of_its_own_that_no_episode_ends(kind: str, more: dict[str, Any]) -> None:
    config = config_of(intrinsic={"type": kind}, intrinsic_gamma=0.7, **more)
    parts = ppo_parts(config)
    state = ppo_init(parts, jax.random.key(1))
    after, rollout = jax.jit(lambda s: ppo_collect(parts, s))(state)
    heads = len(config.value_heads or ("extrinsic",)) + 1
    assert rollout.value.shape == (32, 4, heads)
    assert rollout.steps.terminated.any()
    # The value of what followed, which is the next episode where one ended.
    np.testing.assert_array_equal(rollout.next_value[:-1, :, -1], rollout.value[1:, :, -1])
    assert isinstance(parts.policy, Policy)
    last = parts.policy.apply(state.params, after.obs)[1]
    np.testing.assert_allclose(rollout.next_value[-1, :, -1], last[:, -1], rtol=1e-5, atol=1e-6)
    # The other heads' is that of the final observation.
    final = parts.policy.apply(state.params, rollout.steps.next_obs)[1]
    np.testing.assert_allclose(rollout.next_value[..., 0], final[..., 0], rtol=1e-5, atol=1e-6)
    never = jnp.zeros_like(rollout.steps.terminated)
    stepped, metrics = jax.jit(lambda s, r: ppo_update(parts, s, r))(after, rollout)
    extras = rollout.steps.extras.get("belief_entropy")
    key = jax.random.fold_in(jax.random.split(after.key)[1], 1)
    done = rollout.steps.terminated | rollout.steps.truncated
    intrinsic, bonus, _ = parts.intrinsic.update(after.intrinsic, key, rollout.steps.next_obs, done, extras)
    expected = gae(bonus, rollout.value[..., -1], rollout.next_value[..., -1], never, never, 0.7, config.gae_lambda)
    target = minibatch_of(parts, after, rollout).target[..., -1]
    np.testing.assert_allclose(target, np.ravel(expected + rollout.value[..., -1]), rtol=1e-3, atol=1e-4)
    for x, y in zip(jax.tree.leaves(stepped.intrinsic), jax.tree.leaves(intrinsic), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    assert float(metrics["train/intrinsic_reward"]) == pytest.approx(float(jnp.mean(bonus)), rel=1e-4)


@pytest.mark.slow
def test_a_bonus_without_weight_leaves_the_policy_alone() -> None:
    config = config_of(intrinsic={"type": "count"}, intrinsic_coef=0.0, normalize_advantages=False)
    parts = ppo_parts(config)
    state, rollout = ppo_collect(parts, ppo_init(parts, jax.random.key(1)))
    ends = (rollout.steps.terminated, rollout.steps.truncated)
    alone = gae(rollout.steps.reward, rollout.value[..., 0], rollout.next_value[..., 0], *ends, config.gamma, config.gae_lambda)
    np.testing.assert_allclose(minibatch_of(parts, state, rollout).advantage, alone.ravel(), rtol=1e-5, atol=1e-6)
    weighted = minibatch_of(ppo_parts(config.replace(intrinsic_coef=1.0)), state, rollout).advantage
    assert np.abs(weighted - alone.ravel()).max() > 0.1


def test_counts_take_in_every_step_once_and_the_bonus_fades() -> None:
    config = config_of(intrinsic={"type": "count", "resolution": 0.5}, total_timesteps=1280)
    result = jax.jit(make_train(config))(jax.random.key(0))
    assert float(result.state.intrinsic.counts.sum()) == 1280
    bonus = np.asarray(result.metrics["train/intrinsic_reward"])
    assert bonus[-1] < 0.7 * bonus[0]


@pytest.mark.slow
def test_the_bonus_of_a_policy_with_memory_goes_on_with_the_next_episode_as_it_begins() -> None:
    """After the last step its value is that of the next observation, with nothing remembered of an episode that ended."""
    config = config_of(intrinsic={"type": "count"}, network={"type": "gru", "hidden": [6], "size": 8}, num_steps=16, num_envs=8)
    parts = ppo_parts(config)
    state = ppo_init(parts, jax.random.key(5))
    rng = np.random.default_rng(0)
    state = state.replace(params=jax.tree.map(lambda x: x + jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype), state.params))
    after, rollout = jax.jit(lambda s: ppo_collect(parts, s))(state)
    remembered = np.abs(np.asarray(after.carry)).max(1) > 0
    assert remembered.any()
    expected = parts.policy.apply(state.params, after.obs, after.carry)[1][:, -1]
    np.testing.assert_allclose(rollout.next_value[-1, :, -1], expected, rtol=1e-4, atol=1e-5)
    forgetful = parts.policy.apply(state.params, after.obs)[1][:, -1]
    assert np.abs(np.asarray(forgetful - expected))[remembered].max() > 1e-3


@pytest.mark.slow
def test_the_bonus_does_not_see_what_is_privileged() -> None:
    """A bit that never changes what the policy sees must not make a place new."""
    parts = ppo_parts(PPOConfig(env="HiddenBit-v0", num_envs=4, num_steps=8, total_timesteps=32, intrinsic={"type": "count"}))
    state, rollout = ppo_collect(parts, ppo_init(parts, jax.random.key(0)))
    next_obs = rollout.steps.next_obs
    flipped = rollout.steps._replace(next_obs={**next_obs, "privileged": -next_obs["privileged"]})
    bonuses = [reward_streams(parts, state, steps, jax.random.key(0))[0].reward[..., -1] for steps in (rollout.steps, flipped)]
    np.testing.assert_array_equal(*bonuses)
    parts_of = jax.tree.leaves(ppo_parts(parts.config.replace(intrinsic={"type": "rnd"})).intrinsic.init(
        jax.random.key(0), {"observation": jnp.zeros(5)}, 4).obs_statistics.mean)  # fmt: skip
    state = ppo_init(ppo_parts(parts.config.replace(intrinsic={"type": "rnd"})), jax.random.key(0))
    assert [x.shape for x in jax.tree.leaves(state.intrinsic.obs_statistics.mean)] == [x.shape for x in parts_of]
