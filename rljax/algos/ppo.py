"""Proximal policy optimisation (Schulman et al., 2017), with the details of Huang et al.,
"The 37 implementation details of PPO" (2022).

One iteration is `ppo_collect` then `ppo_update`; both are public, so a user can own the loop:

    parts = ppo_parts(config)
    state = ppo_init(parts, key)
    state, rollout = ppo_collect(parts, state)
    state, metrics = ppo_update(parts, state, rollout)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rljax.algos.common.magnet import divergence_from_magnet, magnet_view
from rljax.algos.common.optimizer import adam, annealed
from rljax.algos.common.policy import (
    build_policy,
    policy_act,
    policy_and_value,
    policy_rollout,
    policy_unroll,
    rollout_outputs,
)
from rljax.algos.common.state import after_update, initial_fields, normalize_obs
from rljax.algos.common.teacher import TaughtState, faded, teacher_fields, teacher_of_rollout, teacher_term
from rljax.algos.common.value_heads import (
    HeadConfig,
    combined,
    head_names,
    head_settings,
    info_keys,
    num_values,
    reward_streams,
    seat_of_heads,
)
from rljax.collect.curriculum.levels import LEVEL, LEVEL_SCORE
from rljax.collect.curriculum.rules import Curriculum, EpisodeSteps, rollout_episodes, with_probabilities
from rljax.collect.curriculum.spec import make_curriculum
from rljax.collect.environments import make_training_env
from rljax.collect.intrinsic import Intrinsic, make_intrinsic
from rljax.collect.minibatches import init_optimizer, minibatch_steps
from rljax.collect.returns import explained_variance, gae, importance_ratio, upgo
from rljax.collect.rollout import Steps, episode_metrics
from rljax.collect.streams import Streams, batch_major, episode_starts, flat_steps, own_mean, own_std, own_steps, traced_seat
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.config import algorithm, leaf, static
from rljax.core.environments.spaces import action_heads
from rljax.core.environments.wrappers import split_privileged
from rljax.core.errors import ConfigError
from rljax.core.state import per_environment, statistics
from rljax.nn.outputs.actions import ActionHead
from rljax.nn.policy import Policy


@algorithm("ppo")
class PPOConfig(HeadConfig):
    """Proximal policy optimisation. Defaults are those of the reference implementations for small problems."""

    clip_eps: float = leaf(default=0.2, doc="PPO's clip range of the probability ratio around 1", gt=0)
    vf_clip_eps: float | None = leaf(default=0.2, doc="clip range of a value's change in the value loss; none: no clipping", gt=0)
    dual_clip: float | None = leaf(
        default=None,
        doc="dual clip: lower bound of the objective for negative advantages, c > 1 times the advantage; none: no bound",
        gt=1,
    )
    normalize_advantages: bool = static(default=True, doc="standardise the advantages of each minibatch")
    target_kl: float | None = leaf(
        default=None,
        doc="skip the remaining gradient steps of an iteration once the approximate KL divergence exceeds this; none: never",
        gt=0,
    )
    magnet_coef: float | None = leaf(
        default=None,
        doc="weight of the KL divergence from the policy to a magnet, the policy of the averaged parameters; none: without",
        ge=0,
    )
    curriculum: Mapping[str, Any] | None = static(
        default=None,
        doc="levels of the environment's parameters: { type = 'uniform', 'success' or 'plr', levels = [{ ... }, ...] }",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.of_games:
            self.check_minibatch_size(self.steps_per_iteration // self.num_minibatches)
        if self.magnet_coef is not None and self.average_decay is None:
            raise ConfigError(
                f"magnet_coef = {self.magnet_coef}: the magnet is the policy of the averaged parameters, set average_decay"
            )

    def check_minibatch_size(self, steps: int) -> None:
        """Refuse minibatches of one step where advantages are standardised.

        Raises:
            ConfigError: names the field, its value and what is allowed.
        """
        if steps == 1 and self.normalize_advantages:
            raise ConfigError(
                f"num_minibatches = {self.num_minibatches}: leaves one step in each, whose advantage would be standardised to 0: "
                "expected fewer, or normalize_advantages = false"
            )


class PPOParts(NamedTuple):
    """Environment and policy of a configuration, built once.

    `intrinsic` makes the bonus and `curriculum` the distribution over levels, where the config asks for them; `keep` are the
    entries of the infos that value heads and the curriculum need.
    """

    config: PPOConfig
    env: Any
    env_params: Any
    policy: Policy
    head: ActionHead
    intrinsic: Intrinsic | None
    keep: tuple[str, ...]
    curriculum: Curriculum | None = None


class PPOState(TaughtState, kw_only=True):
    """State of a PPO run.

    Attributes:
        intrinsic: state of the bonus; None without one.
        curriculum: state of the curriculum; None without one.
        carry: memory of the policy in the episodes under way, `[N, ...]`, zeros where one begins; None without memory.
    """

    env_state: Any = per_environment(depends_on=("curriculum",))
    intrinsic: Any = statistics(depends_on=("env", "env_params", "intrinsic"))
    curriculum: Any = statistics(depends_on=("env", "env_params", "curriculum"))
    carry: Any = per_environment()


class Rollout(NamedTuple):
    """T steps of N environments, with the values and log-probabilities of the policy that took them. Arrays are `[T, N, ...]`.

    With several value heads the values are `[T, N, K]`. `carry` is what the policy remembered before the first step, `[N, ...]`.
    """

    steps: Steps
    log_prob: jax.Array
    value: jax.Array
    next_value: jax.Array
    carry: Any = None


class Minibatch(NamedTuple):
    """B transitions, with advantages and value targets; `obs` is normalised already. Arrays are `[B, ...]`.

    Of a policy with memory they are B trajectories, `[T, B, ...]`; `begins` says where an episode does, and `carry [B, ...]` is
    what is remembered before the first step (`seat`, `carry` and `teacher` are those of `Streams`). With several value heads
    `value` and `target` are `[..., K]`. `own`, bool, says which steps count; None: all. The advantages that a loss gets are
    standardised with `normalize_advantages` (see `with_standard_advantages`).
    """

    obs: Any
    action: jax.Array
    mask: jax.Array | None
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    begins: jax.Array | None = None
    carry: Any = None
    seat: jax.Array | None = None
    own: jax.Array | None = None
    magnet: Any = None
    teacher: Any = None


LossFn = Callable[[PPOParts, Any, Minibatch], tuple[jax.Array, Metrics]]


def ppo_parts(config: PPOConfig) -> PPOParts:
    """Build environment, policy and action head.

    Raises:
        ConfigError: environment or network do not fit the contract, or each other.
    """
    env, env_params = make_training_env(config)
    curriculum: Curriculum | None = None
    level: tuple[str, ...] = ()
    if config.curriculum is not None:
        curriculum, env, env_params = make_curriculum(config.curriculum, env, env_params)
        level = (LEVEL, LEVEL_SCORE)
    policy, head = build_policy(
        config.network,
        env,
        env_params,
        action_heads=config.action_heads,
        log_std=config.log_std,
        num_values=num_values(config),
        dtype=config.dtype,
    )
    if policy.initial_carry((1,)) is not None and config.num_envs % config.num_minibatches:
        raise ConfigError(
            f"num_minibatches = {config.num_minibatches}: must divide num_envs = {config.num_envs} for a network with memory, "
            "whose minibatches are whole trajectories"
        )
    intrinsic = None
    if config.intrinsic is not None:
        intrinsic = make_intrinsic(config.intrinsic, config.steps_per_iteration, gamma=config.intrinsic_gamma)
    keep = info_keys(config, env, env_params) + level
    return PPOParts(config, env, env_params, policy, head, intrinsic, keep, curriculum)


def ppo_init(parts: PPOParts, key: jax.Array) -> PPOState:
    """The state before the first iteration."""
    config = parts.config
    params_key, fields = initial_fields(config, parts.env, parts.env_params, key)
    params = parts.policy.init(params_key, fields["obs"])
    intrinsic = None
    if parts.intrinsic is not None:
        first_obs = jax.tree.map(lambda x: x[0], split_privileged(fields["obs"])[0])
        intrinsic = parts.intrinsic.init(jax.random.fold_in(params_key, 1), first_obs, config.num_envs)
    carry = parts.policy.initial_carry((config.num_envs,))
    return PPOState(
        params=params,
        opt_state=init_optimizer(adam(config), params),
        intrinsic=intrinsic,
        curriculum=None if parts.curriculum is None else parts.curriculum.init(),
        carry=carry,
        **teacher_fields(config, params, fields["obs_statistics"], carry),
        **fields,
    )


def ppo_collect(parts: PPOParts, state: PPOState) -> tuple[PPOState, Rollout]:
    """Step the environments `num_steps` times with the policy of `state`; values and log-probabilities in one pass after."""
    before = state.carry
    parts = parts._replace(env_params=with_probabilities(parts.curriculum, state.curriculum, parts.env_params))
    state, steps = policy_rollout(parts, state, state.params, parts.keep)
    obs, next_obs = normalize_obs(state, steps.obs), normalize_obs(state, steps.next_obs)
    outputs, value = rollout_outputs(parts, state.params, obs, steps.carry)
    # Evaluated with the memory of its own episode, even if that ended.
    _, next_value, _ = policy_and_value(parts, state.params, next_obs, steps.carry)
    if parts.intrinsic is not None:
        # The bonus's stream goes on with the next episode (see `reward_streams`).
        _, last, _ = policy_and_value(parts, state.params, normalize_obs(state, state.obs), state.carry)
        following = jnp.concatenate([value[1:], last[None]])
        next_value = jnp.concatenate([next_value[..., :-1], following[..., -1:]], axis=-1)
    log_prob = parts.head.distribution(outputs, steps.mask).log_prob(steps.action)
    chex.assert_equal_shape([log_prob, steps.reward])
    chex.assert_equal_shape([value, next_value])
    return state, Rollout(steps, log_prob, value, next_value, before)


def ppo_update(parts: PPOParts, state: PPOState, rollout: Rollout, loss_fn: LossFn | None = None) -> tuple[PPOState, Metrics]:
    """Improve the policy on a rollout: `num_epochs` passes of `num_minibatches` gradient steps.

    Args:
        parts: from `ppo_parts`.
        state: as `ppo_collect` returned it; its observation statistics are still those of the rollout.
        rollout: arrays `[T, N, ...]`.
        loss_fn: `(parts, params, minibatch) -> (loss, metrics)`, `ppo_loss` unless given.

    Returns:
        The next state, and metrics `train/...`, means over the gradient steps taken.
    """
    steps, has_memory = rollout.steps, rollout.carry is not None
    key, shuffle_key = jax.random.split(state.key)
    rewards, moved, bonus_metrics = reward_streams(parts, state, steps, jax.random.fold_in(shuffle_key, 1))
    teacher, teacher_carry = teacher_of_rollout(parts, state, steps)
    streams = Streams(
        obs=normalize_obs(state, steps.obs),
        action=steps.action,
        mask=steps.mask,
        reward=rewards.reward,
        terminated=rewards.terminated,
        truncated=rewards.truncated,
        log_prob=rollout.log_prob,
        begins=episode_starts(steps) if has_memory else None,
        carry=rollout.carry,
        teacher=teacher,
    )
    rate = annealed(parts.config, state.iteration)
    parts = parts._replace(config=faded(parts.config, state.iteration, state.teacher))
    values = (rollout.value, rollout.next_value)
    if parts.curriculum is not None:
        advantage = combined(head_settings(parts.config), stream_advantages(parts.config, streams, *values))
        ended = steps.terminated | steps.truncated
        seen = EpisodeSteps(steps.episode_return, steps.episode_length, ended, steps.metrics, steps.extras)
        episodes, moved["env_state"] = rollout_episodes(parts.curriculum, seen, state.env_state, advantage)
        moved["curriculum"], level_metrics = parts.curriculum.update(state.curriculum, episodes)
        bonus_metrics |= level_metrics
    params, opt_state, metrics = ppo_learn(
        parts, state.params, state.opt_state, streams, *values, shuffle_key, rate, loss_fn, magnet=state.average_params
    )
    metrics |= bonus_metrics | {"train/learning_rate": rate}
    changes = {"params": params, "opt_state": opt_state, "teacher_carry": teacher_carry, "key": key, **moved}
    return after_update(state, steps, **changes), metrics


def ppo_learn(
    parts: PPOParts,
    params: Any,
    opt_state: Any,
    streams: Streams,
    value: jax.Array,
    next_value: jax.Array,
    key: jax.Array,
    learning_rate: jax.Array,
    loss_fn: LossFn | None = None,
    size: int | None = None,
    drawn: bool = True,
    magnet: Any = None,
) -> tuple[Any, Any, Metrics]:
    """Improve the policy on streams, wherever they come from.

    Args:
        parts: from `ppo_parts`.
        params: parameters of the policy.
        opt_state: the optimiser's state, from `init_optimizer`.
        streams: `[T, S, ...]`.
        value: f32 `[T, S]`, or `[T, S, K]` for K value heads.
        next_value: value of what each step led to, shape of `value`.
        key: random key.
        learning_rate: f32 [].
        loss_fn: `(parts, params, minibatch) -> (loss, metrics)`, `ppo_loss` unless given.
        size: number of steps to learn from; None: all. A policy with memory learns from whole streams, so it has no size.
        drawn: whether that many of the learner's own steps are drawn; False: the first ones of all steps are taken. Those that
            are not the learner's own weigh nothing in the loss.
        magnet: parameters of the policy that the loss pulls towards; only needed with `magnet_coef`.

    Returns:
        `(params, opt_state, metrics)`; the metrics are means over the gradient steps taken.
    """
    config, heads, has_memory = parts.config, head_settings(parts.config), streams.carry is not None
    advantages = stream_advantages(config, streams, value, next_value)
    target = advantages + value
    if config.upgo_coef is not None:
        seat = seat_of_heads(traced_seat(streams), value)
        after = (streams.reward, value, next_value, streams.terminated, streams.truncated)
        advantages += config.upgo_coef * (upgo(*after, heads.gamma, seat) - value)
    batch = Minibatch(
        obs=streams.obs,
        action=streams.action,
        mask=streams.mask,
        log_prob=streams.log_prob,
        value=value,
        advantage=combined(heads, advantages),
        target=target,
        begins=streams.begins,
        carry=streams.carry,
        seat=streams.seat if has_memory else None,
        own=streams.own,
        magnet=magnet_view(parts, magnet, streams),
        teacher=streams.teacher,
    )
    batch = batch_major(batch) if has_memory else flat_steps(batch)
    if size is not None:
        key, own_key = jax.random.split(key)
        if drawn:
            assert batch.own is not None
            batch = own_steps(batch, batch.own, own_key, size)
        else:
            batch = jax.tree.map(lambda x: x[:size], batch)

    def loss(parts: PPOParts, params: Any, minibatch: Minibatch) -> tuple[jax.Array, Metrics]:
        return (loss_fn or ppo_loss)(parts, params, batch_major(minibatch) if has_memory else minibatch)

    params, opt_state, metrics = ppo_gradient_steps(parts, params, opt_state, batch, key, learning_rate, loss)
    return params, opt_state, metrics | value_metrics(combined(heads, batch.target), combined(heads, batch.value), batch.own)


def stream_advantages(config: HeadConfig, streams: Streams, value: jax.Array, next_value: jax.Array) -> jax.Array:
    """Return the generalised advantages of steps (Schulman et al., 2016) in the shape of `value`; a seat's traces follow its own
    moves.

    Args:
        config: discounts and trace decays of the value heads.
        streams: `[T, S, ...]`.
        value: f32 `[T, S]`, or `[T, S, K]` for K value heads.
        next_value: value of what each step led to, shape of `value`.
    """
    heads, seat = head_settings(config), seat_of_heads(traced_seat(streams), value)
    return gae(streams.reward, value, next_value, streams.terminated, streams.truncated, heads.gamma, heads.gae_lambda, seat)


def ppo_gradient_steps(
    parts: PPOParts,
    params: Any,
    opt_state: Any,
    batch: Minibatch,
    key: jax.Array,
    learning_rate: jax.Array,
    loss_fn: LossFn | None = None,
) -> tuple[Any, Any, Metrics]:
    """Take `num_epochs` passes of `num_minibatches` gradient steps over a batch, fewer where `target_kl` stops them.

    Args:
        parts: from `ppo_parts`.
        params: parameters of the policy.
        opt_state: the optimiser's state, from `init_optimizer`.
        batch: steps `[B, ...]`, or whole trajectories `[N, T, ...]`.
        key: random key of the orders.
        learning_rate: f32 [].
        loss_fn: `(parts, params, minibatch) -> (loss, metrics)`, `ppo_loss` unless given.

    Returns:
        `(params, opt_state, metrics)`, the metrics means over the gradient steps taken; `train/approx_kl` and
        `train/clip_fraction` include the first that `target_kl` stopped.
    """
    config, target_kl = parts.config, parts.config.target_kl
    return minibatch_steps(
        lambda params, minibatch: (loss_fn or ppo_loss)(parts, params, minibatch),
        adam(config),
        params,
        opt_state,
        batch,
        key,
        num_epochs=config.num_epochs,
        num_minibatches=config.num_minibatches,
        learning_rate=learning_rate,
        prepare=with_standard_advantages if config.normalize_advantages else None,
        stop=None if target_kl is None else lambda metrics: _approx_kl(metrics) > target_kl,
        with_stopped=("train/approx_kl", "train/clip_fraction"),
    )


def value_metrics(target: jax.Array, value: jax.Array, own: jax.Array | None = None) -> Metrics:
    """Return the mean predicted value and the explained share of the targets' variance, both of one's own steps."""
    return {"train/value": own_mean(value, own), "train/explained_variance": explained_variance(target, value, own)}


def _approx_kl(metrics: Metrics) -> jax.Array:
    if "train/approx_kl" not in metrics:
        raise ConfigError(
            "target_kl: needs the metric 'train/approx_kl' from the loss, as ppo_loss returns it; or target_kl = none"
        )
    return metrics["train/approx_kl"]


def with_standard_advantages(batch: Minibatch) -> Minibatch:
    """Return the minibatch with advantages of mean 0 and standard deviation 1 over its own steps.

    All are 0 where they are equal but for rounding, which would otherwise be made as large as true differences.

    The loss leaves it to this: for all minibatches of an epoch at once, several devices exchange two sums. In the loss they would
    exchange two for each minibatch.
    """
    advantage, own = batch.advantage, batch.own
    mean, deviation = own_mean(advantage, own), own_std(advantage, own)
    equal = deviation <= 1e-6 * jnp.abs(mean)  # False where one is NaN, which must show
    return batch._replace(advantage=jnp.where(equal, 0.0, (advantage - mean) / (deviation + 1e-8)))


def ppo_loss(parts: PPOParts, params: Any, batch: Minibatch) -> tuple[jax.Array, Metrics]:
    """The clipped surrogate objective, value loss and entropy bonus of one minibatch (Schulman et al., 2017, eq. 7 and 9).

    Advantages are taken as they are: `ppo_gradient_steps` standardises them before, if `normalize_advantages` is set.
    With `dual_clip` c the objective of an action with negative advantage is at least c A (Ye et al., 2020, eq. 5).
    `teacher_kl_coef` adds the divergence from the policy that the run began with (see `rljax.algos.common.teacher`).
    `magnet_coef` adds the KL divergence from the policy to a magnet that follows it slowly (see `rljax.algos.common.magnet`).

    Returns:
        The loss f32 [], and metrics; `train/approx_kl` among them is what `target_kl` is compared with: the mean of
        (ratio - 1) - log ratio (Schulman, "Approximating KL divergence", 2020).
    """
    config = parts.config
    outputs, value, _ = policy_unroll(parts, params, batch.obs, batch.carry, batch.begins, batch.seat)
    own = batch.own
    distribution = parts.head.distribution(outputs, batch.mask)
    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = importance_ratio(log_ratio)
    advantage = batch.advantage
    objective = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - config.clip_eps, 1.0 + config.clip_eps) * advantage)
    if config.dual_clip is not None:
        objective = jnp.where(advantage < 0.0, jnp.maximum(objective, config.dual_clip * advantage), objective)
    policy_loss = -own_mean(objective, own)

    squared_error = jnp.square(value - batch.target)
    if config.vf_clip_eps is not None:
        clipped = batch.value + jnp.clip(value - batch.value, -config.vf_clip_eps, config.vf_clip_eps)
        squared_error = jnp.maximum(squared_error, jnp.square(clipped - batch.target))
    # [] of one head, [K] of several: every head learns as if it were alone.
    of_heads = own if own is None or squared_error.ndim == own.ndim else own[..., None]
    value_losses = 0.5 * own_mean(squared_error, of_heads, tuple(range(log_ratio.ndim)))
    value_loss = jnp.sum(value_losses)

    entropy = own_mean(parts.head.entropy(distribution, batch.action), own)
    loss = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
    if config.magnet_coef is not None:
        loss += config.magnet_coef * own_mean(divergence_from_magnet(parts, distribution, batch), own)
    towards_teacher, teacher_metrics = teacher_term(parts, distribution, batch)
    by_name = {f"train/value_loss_{name}": value_losses[k] for k, name in enumerate(head_names(config)) if value_losses.ndim}
    return loss + towards_teacher, by_name | teacher_metrics | {
        "train/policy_loss": policy_loss,
        "train/value_loss": value_loss,
        "train/entropy": entropy,
        "train/approx_kl": own_mean(ratio - 1.0 - log_ratio, own),
        "train/clip_fraction": own_mean((jnp.abs(ratio - 1.0) > config.clip_eps).astype(jnp.float32), own),
    }


def make_ppo(config: PPOConfig, loss_fn: LossFn | None = None) -> Agent:
    """The PPO agent of a configuration, with a loss in place of `ppo_loss` where one is given."""
    parts = ppo_parts(config)
    nvec = action_heads(parts.env, parts.env_params)

    def init(key: jax.Array) -> PPOState:
        return ppo_init(parts, key)

    def step(state: PPOState) -> tuple[PPOState, Metrics]:
        state, rollout = ppo_collect(parts, state)
        state, metrics = ppo_update(parts, state, rollout, loss_fn)
        return state, episode_metrics(rollout.steps, nvec) | metrics

    return Agent(init, step, policy_act(parts), config)


register_agent(PPOConfig, make_ppo, takes_loss=True)
