"""IMPALA's actor-critic with V-trace (Espeholt et al., 2018), and the upgoing policy gradient of AlphaStar
(Vinyals et al., 2019).

In one compiled program the actor does not lag behind the learner by itself, so `policy_lag` sets a lag in iterations. Further
passes over a rollout (`num_epochs`) are off-policy, too. Every gradient step recomputes V-trace with the current policy and
values.

One iteration is `impala_collect` then `impala_update`; both are public, so a user can own the loop:

    parts = impala_parts(config)
    state = impala_init(parts, key)
    state, rollout = impala_collect(parts, state)
    state, metrics = impala_update(parts, state, rollout)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rljax.algos.common.config import PolicyConfig
from rljax.algos.common.losses import masked_reinforce
from rljax.algos.common.optimizer import adam, annealed
from rljax.algos.common.policy import (
    build_policy,
    policy_act,
    policy_and_value,
    policy_rollout,
    policy_unroll,
    rollout_outputs,
)
from rljax.algos.common.state import after_update, initial_fields, normalize_obs, scaled_rewards
from rljax.algos.common.teacher import TaughtState, TeacherParts, faded, teacher_fields, teacher_of_rollout, teacher_term
from rljax.algos.common.value_heads import HeadConfig, Heads, combined, head_settings, seat_of_heads
from rljax.collect.environments import make_training_env
from rljax.collect.minibatches import init_optimizer, minibatch_steps, ravel, unraveler
from rljax.collect.returns import explained_variance, importance_ratio, upgo, vtrace
from rljax.collect.rollout import Steps, episode_metrics
from rljax.collect.streams import Streams, batch_major, episode_starts, own_mean, traced_seat
from rljax.core.agent import Agent, Halves, Metrics, register_agent
from rljax.core.config import algorithm, leaf, static
from rljax.core.environments.environment import is_outside_jax
from rljax.core.environments.spaces import action_heads
from rljax.core.errors import ConfigError
from rljax.core.keys import apart
from rljax.core.memory import check_memory, tree_bytes
from rljax.core.state import buffer, copy_of_params, per_environment
from rljax.nn.outputs.actions import ActionHead
from rljax.nn.policy import Policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class VtraceConfig(PolicyConfig):
    """Fields of V-trace, for whatever learns by it."""

    rho_bar: float = leaf(
        default=1.0, doc="V-trace's upper bound of the importance weights of value errors and of the policy gradient", gt=0
    )
    c_bar: float = leaf(default=1.0, doc="V-trace's upper bound of the importance weights of the traces", ge=0)
    vtrace_lambda: float = leaf(default=1.0, doc="trace decay of V-trace's targets", ge=0, le=1)
    policy_lag: int = static(default=0, doc="age in iterations of the policy that collects experience", ge=0)
    off_policy_correction: bool = static(
        default=True, doc="whether to correct for an older policy; false treats every action as taken by the current policy"
    )


@algorithm("impala")
class ImpalaConfig(VtraceConfig):
    """V-trace actor-critic. The weights of the losses are the paper's; the optimiser is Adam."""

    num_steps: int = static(default=20, doc="steps per environment in one rollout", gt=0)
    num_epochs: int = static(default=1, doc="passes over each rollout", gt=0)
    num_minibatches: int = static(default=1, doc="minibatches of whole trajectories per pass; must divide num_envs", gt=0)
    learning_rate: float = leaf(default=6e-4, doc="Adam step size", ge=0)
    overlap: bool = static(
        default=False,
        doc="whether a rollout is collected while the one before is learned from, by a policy that is one update older; for "
        "environments outside JAX",
    )

    def check_minibatches(self) -> None:
        if self.num_envs % self.num_minibatches:
            raise ConfigError(f"num_minibatches = {self.num_minibatches}: must divide num_envs = {self.num_envs}")


class ImpalaParts(NamedTuple):
    """Environment and policy of a configuration, built once."""

    config: ImpalaConfig
    env: Any
    env_params: Any
    policy: Policy
    head: ActionHead


class ImpalaState(TaughtState, kw_only=True):
    """State of an IMPALA run.

    Attributes:
        past_params: parameters of past iterations, raveled, oldest first, f32 `[policy_lag, P]`; None without lag.
        carry: memory of the policy in the episodes under way, `[N, ...]`, zeros where one begins; None without memory.
        rollout: what the next update learns from, `[T, N, ...]`, with `overlap`; else None.
    """

    past_params: jax.Array | None = copy_of_params(lambda params, past: jnp.tile(ravel(params), (past.shape[0], 1)))
    carry: Any = per_environment()
    rollout: Any = buffer(default=None)


class ImpalaRollout(NamedTuple):
    """T steps of N environments, and the log-probabilities f32 `[T, N]` that the policy which took them gave its actions.

    `carry` is what that policy remembered before the first step, `[N, ...]`; None without memory.
    """

    steps: Steps
    log_prob: jax.Array
    carry: Any = None


class VtraceParts(TeacherParts, Protocol):
    """Fields of an algorithm's parts that `impala_loss` needs; the configuration has those of `VtraceConfig`."""


LossFn = Callable[[Any, Any, Streams], tuple[jax.Array, Metrics]]


def impala_parts(config: ImpalaConfig) -> ImpalaParts:
    """Build environment, policy and action head.

    Raises:
        ConfigError: environment or network do not fit the contract, or each other.
    """
    env, env_params = make_training_env(config)
    if config.overlap and not is_outside_jax(env):
        raise ConfigError(f"overlap = true: {env.name} is in JAX, where collecting does not wait for anything; expected false")
    policy, head = build_policy(
        config.network, env, env_params, action_heads=config.action_heads, log_std=config.log_std, dtype=config.dtype
    )
    if config.policy_lag:
        obs = jax.eval_shape(lambda: env.reset_env(jax.random.key(0), env_params))[0]
        per_policy = tree_bytes(jax.eval_shape(policy.init, jax.random.key(0), obs))
        what = f"policy_lag = {config.policy_lag}: that many past policies"
        check_memory(config.policy_lag * per_policy, what, f"a policy takes {per_policy:,} bytes")
    return ImpalaParts(config, env, env_params, policy, head)


def impala_init(parts: ImpalaParts, key: jax.Array) -> ImpalaState:
    """Return the state before the first iteration; policies from before it, for `policy_lag`, are the initial one."""
    config = parts.config
    params_key, fields = initial_fields(config, parts.env, parts.env_params, key)
    params = parts.policy.init(params_key, fields["obs"])
    carry = parts.policy.initial_carry((config.num_envs,))
    return ImpalaState(
        params=params,
        past_params=jnp.tile(ravel(params), (config.policy_lag, 1)) if config.policy_lag else None,
        opt_state=init_optimizer(adam(config), params),
        carry=carry,
        **teacher_fields(config, params, fields["obs_statistics"], carry),
        **fields,
    )


class Lagging(Protocol):
    """A state, or a part of one, with the parameters of past iterations."""

    @property
    def params(self) -> Any: ...
    @property
    def past_params(self) -> jax.Array | None: ...


def behaviour_params(state: Lagging) -> Any:
    """Return the parameters that collect: those of `policy_lag` iterations ago."""
    return state.params if state.past_params is None else unraveler(state.params)(state.past_params[0])


def next_past_params(state: Lagging) -> jax.Array | None:
    """Return the past parameters after an iteration, f32 `[policy_lag, P]`: the current ones come in, the oldest drop out; None
    without lag.
    """
    past = state.past_params
    return None if past is None else jnp.concatenate([past[1:], ravel(state.params)[None]])


def impala_collect(parts: ImpalaParts, state: ImpalaState) -> tuple[ImpalaState, ImpalaRollout]:
    """Step the environments `num_steps` times with the policy of `policy_lag` iterations ago."""
    params, before = behaviour_params(state), state.carry
    collected, steps = policy_rollout(parts, state, params)
    # Both policies get observations standardised by the current statistics, which are those that the actor acted on.
    outputs, _ = rollout_outputs(parts, params, normalize_obs(state, steps.obs), steps.carry)
    log_prob = parts.head.distribution(outputs, steps.mask).log_prob(steps.action)
    return collected, ImpalaRollout(steps, log_prob, before)


def impala_streams(state: ImpalaState, rollout: ImpalaRollout, reward: jax.Array) -> Streams:
    """Return a rollout as the loss takes it: observations normalised, and `reward` f32 `[T, N]` in place of the raw one."""
    steps = rollout.steps
    return Streams(
        obs=normalize_obs(state, steps.obs),
        action=steps.action,
        mask=steps.mask,
        reward=reward,
        terminated=steps.terminated,
        truncated=steps.truncated,
        log_prob=rollout.log_prob,
        next_obs=normalize_obs(state, steps.next_obs),
        begins=episode_starts(steps),
        carry=rollout.carry,
    )


def impala_update(
    parts: ImpalaParts, state: ImpalaState, rollout: ImpalaRollout, loss_fn: LossFn | None = None
) -> tuple[ImpalaState, Metrics]:
    """Improve the policy on a rollout: `num_epochs` passes of `num_minibatches` gradient steps on whole trajectories.

    Args:
        parts: from `impala_parts`.
        state: as `impala_collect` returned it.
        rollout: arrays `[T, N, ...]`.
        loss_fn: `(parts, params, streams) -> (loss, metrics)`, `impala_loss` unless given; it gets streams
            `[T, N / num_minibatches, ...]`, with observations and rewards as the networks see them.

    Returns:
        The next state, and metrics `train/...`, means over the gradient steps.
    """
    config, steps = parts.config, rollout.steps
    reward_statistics, reward = scaled_rewards(state, steps, config.gamma)
    teacher, teacher_carry = teacher_of_rollout(parts, state, steps)
    streams = impala_streams(state, rollout, reward)._replace(teacher=teacher)
    parts = parts._replace(config=faded(config, state.iteration, state.teacher))
    learning_rate = annealed(config, state.iteration)
    key, shuffle_key = jax.random.split(state.key)
    params, opt_state, metrics = impala_learn(parts, state.params, state.opt_state, streams, shuffle_key, learning_rate, loss_fn)
    state = after_update(
        state,
        steps,
        params=params,
        past_params=next_past_params(state),
        opt_state=opt_state,
        reward_statistics=reward_statistics,
        teacher_carry=teacher_carry,
        key=key,
    )
    return state, metrics | {"train/learning_rate": learning_rate}


def impala_learn(
    parts: VtraceParts,
    params: Any,
    opt_state: Any,
    streams: Streams,
    key: jax.Array,
    learning_rate: jax.Array,
    loss_fn: LossFn | None = None,
) -> tuple[Any, Any, Metrics]:
    """Improve the policy on streams, wherever they come from: `num_epochs` passes of `num_minibatches` gradient steps on whole
    streams.

    Args:
        parts: `impala_parts`, or other parts that `impala_loss` takes.
        params: parameters of the policy.
        opt_state: the optimiser's state, from `init_optimizer`.
        streams: `[T, S, ...]`.
        key: random key.
        learning_rate: f32 [].
        loss_fn: `(parts, params, streams) -> (loss, metrics)`, `impala_loss` unless given; it gets streams
            `[T, S / num_minibatches, ...]`.

    Returns:
        `(params, opt_state, metrics)`; the metrics are means over the gradient steps.
    """
    config = parts.config

    def loss(params: Any, trajectories: Streams) -> tuple[jax.Array, Metrics]:
        return (loss_fn or impala_loss)(parts, params, batch_major(trajectories))

    return minibatch_steps(
        loss,
        adam(config),
        params,
        opt_state,
        batch_major(streams),
        key,
        num_epochs=config.num_epochs,
        num_minibatches=config.num_minibatches,
        learning_rate=learning_rate,
    )


def impala_loss(parts: VtraceParts, params: Any, streams: Streams) -> tuple[jax.Array, Metrics]:
    """Policy gradient, value loss and entropy bonus of V-trace (Espeholt et al., 2018, section 4.2), and with `upgo_coef` the
    upgoing policy gradient (Vinyals et al., 2019): rho_t (G_t - V(x_t)) grad log pi(a_t | x_t).

    Targets and advantages are constants; their values are those of `params`. With K value heads each has targets of its own, and
    the policy follows the weighted sum of their advantages.

    Args:
        parts: `impala_parts`, or other parts with a policy, an action head and a configuration with V-trace's fields.
        params: parameters of the policy.
        streams: `[T, S, ...]`, with `next_obs`, or with `follows` of seats that take turns.

    Returns:
        The loss f32 [], and metrics. `train/mean_rho` is the mean of the clipped ratios of `params` to the policy that acted,
        `train/rho_clip_fraction` the share of those clipped, `train/approx_kl` the mean of (ratio - 1) - log ratio.
    """
    config, own = parts.config, streams.own
    heads = trace_settings(config)
    outputs, value, carry = policy_unroll(parts, params, streams.obs, streams.carry, streams.begins, streams.seat)
    next_value, seat = _next_values(parts, params, streams, value, carry), seat_of_heads(traced_seat(streams), value)
    distribution = parts.head.distribution(outputs, streams.mask)
    log_prob = distribution.log_prob(streams.action)

    log_rho = jax.lax.stop_gradient(log_prob) - streams.log_prob
    ratio = importance_ratio(log_rho)
    used_log_rho = log_rho if config.off_policy_correction else jnp.zeros_like(log_rho)
    baseline = jax.lax.stop_gradient(value)
    ends = (streams.terminated, streams.truncated)
    of_heads = used_log_rho if value.ndim == log_rho.ndim else jnp.broadcast_to(used_log_rho[..., None], value.shape)
    target, advantages = vtrace(
        streams.reward,
        baseline,
        next_value,
        *ends,
        of_heads,
        heads.gamma,
        config.rho_bar,
        config.c_bar,
        heads.gae_lambda,
        seat,
    )
    policy_loss = masked_reinforce(log_prob, combined(heads, advantages), own)
    own_of_heads = own if own is None or value.ndim == own.ndim else own[..., None]
    value_loss = jnp.sum(0.5 * own_mean(jnp.square(value - target), own_of_heads, tuple(range(log_rho.ndim))))
    entropy = own_mean(parts.head.entropy(distribution, streams.action), own)
    loss = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
    metrics = {
        "train/policy_loss": policy_loss,
        "train/value_loss": value_loss,
        "train/entropy": entropy,
        "train/value": own_mean(combined(heads, value), own),
        "train/explained_variance": explained_variance(combined(heads, target), combined(heads, baseline), own),
        "train/mean_rho": own_mean(jnp.minimum(config.rho_bar, ratio), own),
        # Ratios of one policy with itself are 1 up to rounding.
        "train/rho_clip_fraction": own_mean((ratio > config.rho_bar * (1.0 + 1e-5)).astype(jnp.float32), own),
        "train/approx_kl": own_mean(ratio - 1.0 - log_rho, own),
    }
    if config.upgo_coef is not None:
        rho = jnp.minimum(config.rho_bar, importance_ratio(used_log_rho))
        returns = upgo(streams.reward, baseline, next_value, *ends, heads.gamma, seat)
        metrics["train/upgo_loss"] = masked_reinforce(log_prob, rho * combined(heads, returns - baseline), own)
        loss += config.upgo_coef * metrics["train/upgo_loss"]
    towards_teacher, teacher_metrics = teacher_term(parts, distribution, streams)
    return loss + towards_teacher, metrics | teacher_metrics


def trace_settings(config: VtraceConfig) -> Heads:
    """Discounts, trace decays and weights of the value heads; the trace decay is `vtrace_lambda`, unless heads have their own."""
    if not isinstance(config, HeadConfig):
        return Heads(config.gamma, config.vtrace_lambda, 1.0)
    return head_settings(config.replace(gae_lambda=config.vtrace_lambda))


def _next_values(parts: VtraceParts, params: Any, streams: Streams, value: jax.Array, carry: Any) -> jax.Array:
    """Return the values of what the steps led to, shape of `value`; no gradient flows through them."""
    if streams.follows is None:
        _, next_value, _ = policy_and_value(parts, *jax.lax.stop_gradient((params, streams.next_obs, carry)))
        return next_value
    index = streams.follows.reshape(*streams.follows.shape, *(1,) * (value.ndim - streams.follows.ndim))
    return jax.lax.stop_gradient(jnp.take_along_axis(value, index, axis=0))


def make_impala(config: ImpalaConfig, loss_fn: LossFn | None = None) -> Agent:
    """The IMPALA agent of a configuration, with a loss in place of `impala_loss` where one is given."""
    parts = impala_parts(config)
    nvec = action_heads(parts.env, parts.env_params)

    def init(key: jax.Array) -> ImpalaState:
        state = impala_init(parts, key)
        return collect(state) if config.overlap else state

    def collect(state: ImpalaState) -> ImpalaState:
        # Other random numbers than those of the update.
        collected, rollout = impala_collect(parts, state.replace(key=apart(state.key)))
        return collected.replace(rollout=rollout)

    def update(state: ImpalaState) -> tuple[ImpalaState, Metrics]:
        after, metrics = impala_update(parts, state, state.rollout, loss_fn)
        return after, episode_metrics(state.rollout.steps, nvec) | metrics

    def join(collected: ImpalaState, updated: ImpalaState) -> ImpalaState:
        new = {name: getattr(collected, name) for name in ("env_state", "obs", "carry", "rollout")}
        return updated.replace(**new)

    def step(state: ImpalaState) -> tuple[ImpalaState, Metrics]:
        state, rollout = impala_collect(parts, state)
        state, metrics = impala_update(parts, state, rollout, loss_fn)
        return state, episode_metrics(rollout.steps, nvec) | metrics

    if config.overlap:
        halves = Halves(partial(impala_init, parts), collect, update, join)
        return Agent(init, halves.step, policy_act(parts), config, halves=halves)
    return Agent(init, step, policy_act(parts), config)


register_agent(ImpalaConfig, make_impala, takes_loss=True)
