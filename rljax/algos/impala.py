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

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.algos.common.config import PolicyConfig
from rljax.algos.common.optimizer import adam, annealed
from rljax.algos.common.policy import (
    build_policy,
    policy_act,
    policy_and_value,
    policy_rollout,
    policy_unroll,
    rollout_outputs,
)
from rljax.algos.common.state import NormalizedState, after_update, initial_fields, normalize_obs, scaled_rewards
from rljax.collect.environments import make_training_env
from rljax.collect.minibatches import init_optimizer, minibatch_steps, ravel, unraveler
from rljax.collect.returns import explained_variance, importance_ratio, upgo, vtrace
from rljax.collect.rollout import Steps, episode_metrics
from rljax.collect.streams import Streams, batch_major, episode_starts
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.config import algorithm, leaf, static
from rljax.core.errors import ConfigError
from rljax.core.memory import check_memory, tree_bytes
from rljax.core.spaces import action_heads
from rljax.core.state import copy_of_params, per_environment
from rljax.nn.actions import ActionHead
from rljax.nn.policy import Policy


@algorithm("impala")
class ImpalaConfig(PolicyConfig):
    """V-trace actor-critic. The weights of the losses are the paper's; the optimiser is Adam."""

    num_steps: int = static(default=20, doc="steps per environment in one rollout", gt=0)
    num_epochs: int = static(default=1, doc="passes over each rollout", gt=0)
    num_minibatches: int = static(default=1, doc="minibatches of whole trajectories per pass; must divide num_envs", gt=0)
    learning_rate: float = leaf(default=6e-4, doc="Adam step size", ge=0)
    rho_bar: float = leaf(
        default=1.0, doc="upper bound of the importance weights of value errors and of the policy gradient", gt=0
    )
    c_bar: float = leaf(default=1.0, doc="upper bound of the importance weights of the traces", ge=0)
    vtrace_lambda: float = leaf(default=1.0, doc="trace decay of the V-trace targets", ge=0, le=1)
    policy_lag: int = static(default=0, doc="age in iterations of the policy that collects experience", ge=0)
    off_policy_correction: bool = static(
        default=True, doc="whether to correct for an older policy; false treats every action as taken by the current policy"
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


class ImpalaState(NormalizedState, kw_only=True):
    """State of an IMPALA run.

    Attributes:
        past_params: parameters of past iterations, raveled, oldest first, f32 `[policy_lag, P]`; None without lag.
        carry: memory of the policy in the episodes under way, `[N, ...]`, zeros where one begins; None without memory.
    """

    past_params: jax.Array | None = copy_of_params(lambda params, past: jnp.tile(ravel(params), (past.shape[0], 1)))
    carry: Any = per_environment()


class ImpalaRollout(NamedTuple):
    """T steps of N environments, and the log-probabilities f32 `[T, N]` that the policy which took them gave its actions.

    `carry` is what that policy remembered before the first step, `[N, ...]`; None without memory.
    """

    steps: Steps
    log_prob: jax.Array
    carry: Any = None


LossFn = Callable[[ImpalaParts, Any, Streams], tuple[jax.Array, Metrics]]


def impala_parts(config: ImpalaConfig) -> ImpalaParts:
    """Build environment, policy and action head.

    Raises:
        ConfigError: environment or network do not fit the contract, or each other.
    """
    env, env_params = make_training_env(config)
    policy, head = build_policy(config.network, env, env_params, action_heads=config.action_heads, log_std=config.log_std)
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
    return ImpalaState(
        params=params,
        past_params=jnp.tile(ravel(params), (config.policy_lag, 1)) if config.policy_lag else None,
        opt_state=init_optimizer(adam(config), params),
        carry=parts.policy.initial_carry((config.num_envs,)),
        **fields,
    )


def behaviour_params(state: ImpalaState) -> Any:
    """The parameters that collect: those of `policy_lag` iterations ago."""
    return state.params if state.past_params is None else unraveler(state.params)(state.past_params[0])


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
    streams = impala_streams(state, rollout, reward)

    def loss(params: Any, trajectories: Streams) -> tuple[jax.Array, Metrics]:
        return (loss_fn or impala_loss)(parts, params, batch_major(trajectories))

    learning_rate = annealed(config, state.iteration)
    key, shuffle_key = jax.random.split(state.key)
    params, opt_state, metrics = minibatch_steps(
        loss,
        adam(config),
        state.params,
        state.opt_state,
        batch_major(streams),
        shuffle_key,
        num_epochs=config.num_epochs,
        num_minibatches=config.num_minibatches,
        learning_rate=learning_rate,
    )
    past_params = state.past_params
    if past_params is not None:
        past_params = jnp.concatenate([past_params[1:], ravel(state.params)[None]])
    state = after_update(
        state,
        steps,
        params=params,
        past_params=past_params,
        opt_state=opt_state,
        reward_statistics=reward_statistics,
        key=key,
    )
    return state, metrics | {"train/learning_rate": learning_rate}


def impala_loss(parts: ImpalaParts, params: Any, streams: Streams) -> tuple[jax.Array, Metrics]:
    """Policy gradient, value loss and entropy bonus of V-trace (Espeholt et al., 2018, section 4.2), and with `upgo_coef` the
    upgoing policy gradient (Vinyals et al., 2019): rho_t (G_t - V(x_t)) grad log pi(a_t | x_t).

    Targets and advantages are constants; their values are those of `params`.

    Returns:
        The loss f32 [], and metrics. `train/mean_rho` is the mean of the clipped ratios of `params` to the policy that acted,
        `train/rho_clip_fraction` the share of those clipped, `train/approx_kl` the mean of (ratio - 1) - log ratio.
    """
    if streams.own is not None or streams.seat is not None:
        raise ConfigError("streams: V-trace takes streams of environments, without own steps and seats")
    config = parts.config
    outputs, value, carry = policy_unroll(parts, params, streams.obs, streams.carry, streams.begins)
    _, next_value, _ = policy_and_value(parts, *jax.lax.stop_gradient((params, streams.next_obs, carry)))
    distribution = parts.head.distribution(outputs, streams.mask)
    log_prob = distribution.log_prob(streams.action)

    log_rho = jax.lax.stop_gradient(log_prob) - streams.log_prob
    ratio = importance_ratio(log_rho)
    used_log_rho = log_rho if config.off_policy_correction else jnp.zeros_like(log_rho)
    baseline = jax.lax.stop_gradient(value)
    ends = (streams.terminated, streams.truncated)
    target, advantage = vtrace(
        streams.reward,
        baseline,
        next_value,
        *ends,
        used_log_rho,
        config.gamma,
        config.rho_bar,
        config.c_bar,
        config.vtrace_lambda,
    )
    policy_loss = -jnp.mean(advantage * log_prob)
    value_loss = 0.5 * jnp.mean(jnp.square(value - target))
    entropy = jnp.mean(parts.head.entropy(distribution, streams.action))
    loss = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
    metrics = {
        "train/policy_loss": policy_loss,
        "train/value_loss": value_loss,
        "train/entropy": entropy,
        "train/value": jnp.mean(value),
        "train/explained_variance": explained_variance(target, baseline),
        "train/mean_rho": jnp.mean(jnp.minimum(config.rho_bar, ratio)),
        "train/rho_clip_fraction": jnp.mean(ratio > config.rho_bar, dtype=jnp.float32),
        "train/approx_kl": jnp.mean(ratio - 1.0 - log_rho),
    }
    if config.upgo_coef is not None:
        rho = jnp.minimum(config.rho_bar, importance_ratio(used_log_rho))
        upgoing = upgo(streams.reward, baseline, next_value, *ends, config.gamma) - baseline
        metrics["train/upgo_loss"] = -jnp.mean(rho * upgoing * log_prob)
        loss += config.upgo_coef * metrics["train/upgo_loss"]
    return loss, metrics


def make_impala(config: ImpalaConfig, loss_fn: LossFn | None = None) -> Agent:
    """The IMPALA agent of a configuration, with a loss in place of `impala_loss` where one is given."""
    parts = impala_parts(config)
    nvec = action_heads(parts.env, parts.env_params)

    def init(key: jax.Array) -> ImpalaState:
        return impala_init(parts, key)

    def step(state: ImpalaState) -> tuple[ImpalaState, Metrics]:
        state, rollout = impala_collect(parts, state)
        state, metrics = impala_update(parts, state, rollout, loss_fn)
        return state, episode_metrics(rollout.steps, nvec) | metrics

    return Agent(init, step, policy_act(parts), config)


register_agent(ImpalaConfig, make_impala, takes_loss=True)
