"""Behavioural cloning: a policy learns to do what demonstrations did (Pomerleau, "ALVINN", 1989), and a value head what they
earned. A clone is where self-play and leagues begin (Silver et al., 2016; Vinyals et al., 2019).

An iteration reads the next window of the dataset: T steps of S streams of whole episodes. A policy with memory carries it from
window to window. `bc_update` is public, so a user can own the loop:

    parts = bc_parts(config)
    state = bc_init(parts, key)
    windows = rljax.open_dataset(path).windows(config.num_envs, config.num_steps)
    state, metrics = bc_update(parts, state, windows.read(0))
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.algos.common.config import ActionConfig
from rljax.algos.common.feed import demonstrated, make_feed
from rljax.algos.common.losses import choices_loss, huber_value_loss
from rljax.algos.common.optimizer import adam
from rljax.algos.common.policy import policy_act, policy_unroll, unroll
from rljax.algos.common.state import normalize_obs
from rljax.algos.imitation.parts import (
    Agreement,
    ImitationParts,
    ImitationState,
    agreement,
    agreement_metrics,
    example_obs,
    heads_of,
    illegal_share,
    imitate,
    imitation_parts,
    initial_params,
    is_game,
    policy_action,
    positions_of,
    seen_obs,
)
from rljax.collect.demos import Dataset, Window, open_fitting
from rljax.collect.environments import training_reward
from rljax.collect.minibatches import init_optimizer
from rljax.collect.normalizers import init_reward_statistics, init_statistics, normalize_rewards
from rljax.collect.returns import gae
from rljax.collect.streams import own_mean
from rljax.core.agent import Agent, Metrics, averaged, register_agent
from rljax.core.config import algorithm, env_name, leaf, static
from rljax.core.errors import ConfigError
from rljax.core.keys import as_single_key


@algorithm("bc")
class BCConfig(ActionConfig):
    """Behavioural cloning. All numbers of steps count steps of demonstrations; `env` is for evaluation."""

    dataset: str | None = static(default=None, doc="folder of recorded episodes to learn from (see `rljax demo`)")
    held_out: float = static(
        default=0.1, doc="share of the episodes that are set apart, on which evaluations measure loss and accuracy", ge=0, le=0.9
    )
    total_timesteps: int = static(
        default=500_000,
        doc="budget of steps of demonstrations, each counted as often as it is read; rounded down to whole iterations",
        gt=0,
        steps=True,
    )
    num_envs: int = static(default=16, doc="number of streams of demonstrations that are read in parallel", gt=0)
    num_steps: int = static(default=64, doc="number of steps of each stream in an iteration", gt=0)
    num_epochs: int = static(default=1, doc="number of passes over the steps of an iteration", gt=0)
    learning_rate: float = leaf(default=1e-3, doc="Adam step size", ge=0)
    label_smoothing: float = leaf(
        default=0.0, doc="share of a label that is spread over all legal actions, for discrete actions", ge=0, le=1
    )
    vf_coef: float = leaf(default=0.5, doc="weight of the loss of the value head, which fits the returns; 0: not trained", ge=0)
    huber_delta: float | None = leaf(
        default=1.0, doc="error from which on the value loss is linear (Huber loss); none: squared error", gt=0
    )

    @property
    def of_games(self) -> bool:  # type: ignore[override]
        """True if `env` is a game; its demonstrations are those of single players."""
        return is_game(self)


class Lesson(NamedTuple):
    """Steps to imitate, arrays `[B, ...]`, or of a policy with memory trajectories `[T, B, ...]`.

    Attributes:
        obs: normalised observations.
        action: actions as the policy has them.
        mask: legal actions; None without masks.
        target: target of the value, f32.
        known: whether the target is known, bool.
        begins: where an episode begins, bool.
        carry: memory before the first step, `[B, ...]`; None without memory.
    """

    obs: Any
    action: jax.Array
    mask: jax.Array | None
    target: jax.Array
    known: jax.Array
    begins: jax.Array | None
    carry: Any


def bc_parts(config: BCConfig) -> ImitationParts:
    """Build environment, policy and action head.

    Raises:
        ConfigError: environment or network do not fit the contract, or each other.
    """
    parts = imitation_parts(config)
    smoothing = config.label_smoothing
    if parts.head.choices is None and not isinstance(smoothing, jax.core.Tracer) and float(smoothing) != 0.0:
        raise ConfigError(f"label_smoothing = {smoothing}: is for discrete actions, expected 0 in {env_name(config)}")
    return parts


def bc_init(parts: ImitationParts, key: jax.Array) -> ImitationState:
    """Return the state before the first iteration."""
    config = parts.config
    params_key, _, eval_key, key = jax.random.split(as_single_key(key), 4)
    params = initial_params(parts, params_key)
    return ImitationState(
        params=params,
        opt_state=init_optimizer(adam(config), params),
        obs_statistics=init_statistics(example_obs(parts)) if config.normalize_observations else None,
        reward_statistics=init_reward_statistics(config.num_envs) if config.normalize_rewards else None,
        carry=parts.policy.initial_carry((config.num_envs,)),
        env_state=None,
        obs=None,
        key=key,
        eval_key=eval_key,
        iteration=jnp.zeros((), jnp.int32),
    )


def bc_update(parts: ImitationParts, state: ImitationState, window: Window) -> tuple[ImitationState, Metrics]:
    """Learn from a window of demonstrations: `num_epochs` passes of `num_minibatches` gradient steps.

    Args:
        parts: from `bc_parts`.
        state: its `carry` is the memory of the streams before the window.
        window: arrays `[T, S, ...]`.

    Returns:
        The next state, and metrics `train/...`, means over the gradient steps.
    """
    rewards, reward = _rewards(parts, state, window)
    obs = normalize_obs(state, window.obs)
    target, known = value_targets(parts, state, obs, reward, window)
    has_memory = state.carry is not None
    lesson = Lesson(
        obs=obs,
        action=policy_action(parts.env, parts.env_params, parts.head, window.action),
        mask=window.mask,
        target=target,
        known=known,
        begins=window.begins if has_memory else None,
        carry=state.carry,
    )
    after, metrics = imitate(parts, state, lesson, lambda params, minibatch: bc_loss(parts, params, minibatch))
    # The memory with which the next window begins is that of the parameters that read it.
    carry = unroll(parts, after.params, obs, state.carry, window.begins)[3] if has_memory else None
    return after.replace(carry=carry, obs_statistics=seen_obs(state, window.obs), reward_statistics=rewards), metrics


def _rewards(parts: ImitationParts, state: ImitationState, window: Window) -> tuple[Any, jax.Array]:
    """Return the statistics of rewards, and rewards f32 `[T, S]` clipped and scaled as training with these fields has them."""
    reward = training_reward(parts.config, jnp.asarray(window.reward))
    if state.reward_statistics is None:
        return None, reward
    return normalize_rewards(state.reward_statistics, reward, window.terminated | window.truncated, parts.config.gamma)


def value_targets(
    parts: ImitationParts, state: ImitationState, obs: Any, reward: jax.Array, window: Window
) -> tuple[jax.Array, jax.Array]:
    """Return the discounted rewards from each step to the end of its episode, f32 `[T, S]`, and whether they are known.

    Where a window ends within an episode, the value of the last step stands for what follows, and that step has no target of its
    own. An episode that was cut goes on with the value of its last step, since algorithms bootstrap there.
    """
    gamma = parts.config.gamma
    _, value, _ = policy_unroll(parts, state.params, obs, state.carry, window.begins)
    done = window.terminated | window.truncated
    following = jnp.where(done, value, jnp.concatenate([value[1:], value[-1:]]))
    open_end = jnp.zeros_like(done).at[-1].set(~done[-1])
    # A last step that goes on is worth its value, whatever its reward.
    reward = jnp.where(open_end, (1.0 - gamma) * value, reward)
    target = gae(reward, value, following, window.terminated, window.truncated | open_end, gamma, 1.0) + value
    return target, ~open_end


def bc_loss(parts: ImitationParts, params: Any, lesson: Lesson) -> tuple[jax.Array, Metrics]:
    """Return the loss f32 [] of one minibatch, and metrics: minus the log-probability of the demonstrated actions, of the heads
    that are read, with `label_smoothing`, plus the Huber loss of the values.
    """
    config, head = parts.config, parts.head
    outputs, value, _ = policy_unroll(parts, params, lesson.obs, lesson.carry, lesson.begins)
    distribution = head.distribution(outputs, lesson.mask)
    policy_loss, metrics = _policy_loss(parts, distribution, lesson.action)
    value_loss = own_mean(huber_value_loss(value, lesson.target, config.huber_delta), lesson.known)
    loss = policy_loss + config.vf_coef * value_loss
    return loss, metrics | {
        "train/loss": loss,
        "train/policy_loss": policy_loss,
        "train/value_loss": value_loss,
        "train/value": jnp.mean(value),
        "train/entropy": jnp.mean(head.entropy(distribution, lesson.action)),
    }


def _policy_loss(parts: ImitationParts, distribution: Any, action: jax.Array) -> tuple[jax.Array, Metrics]:
    """Return the loss of the policy f32 [], and how well it agrees with the actions."""
    if parts.head.choices is None:
        error = jnp.mean(jnp.abs(distribution.mode() - action))
        return -jnp.mean(distribution.log_prob(action)), {"train/action_error": error}
    choices = parts.head.choices(distribution, action)
    of_heads = agreement_metrics(agreement(choices), heads_of(parts.env, parts.env_params), "train/", 1.0)
    loss = jnp.mean(choices_loss(choices, parts.config.label_smoothing))
    return loss, of_heads | {"train/illegal_actions": illegal_share(choices)}


def make_bc(config: BCConfig) -> Agent:
    """The cloning agent of a configuration. Its dataset is opened when it first trains: to act, a clone needs none."""
    parts = bc_parts(config)

    @functools.cache
    def dataset() -> Dataset:
        return open_fitting(config, parts.env, parts.env_params, config.held_out)

    @functools.cache
    def feed() -> Callable[[jax.Array], Window]:
        return make_feed(dataset().windows(config.num_envs, config.num_steps, seed=config.seed))

    @functools.cache
    def held_out() -> tuple[Callable[[jax.Array], Window], int]:
        windows, count = dataset().held_out_windows(config.num_envs, config.num_steps, seed=config.seed)
        return make_feed(windows), count

    def init(key: jax.Array) -> ImitationState:
        return bc_init(parts, key)

    def step(state: ImitationState) -> tuple[ImitationState, Metrics]:
        window = feed()(state.iteration)
        state, metrics = bc_update(parts, state, window)
        return state, demonstrated(dataset(), window) | metrics

    def report(state: ImitationState) -> Metrics:
        if not config.held_out:
            return {}
        return held_out_metrics(parts, averaged(state), *held_out())

    positions = positions_of(parts)
    return Agent(init, step, policy_act(parts), config, report=report, policy_and_value=positions, data=lambda: dataset().digest)


def held_out_metrics(parts: ImitationParts, state: ImitationState, feed: Callable[[jax.Array], Window], count: int) -> Metrics:
    """Return loss and accuracy on the steps of the first `count` windows of held-out episodes, `eval/held_out_...`; NaN without a
    choice."""

    def step(carry: Any, number: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array, Any]]:
        window = feed(number)
        own = window.episode >= 0
        obs = normalize_obs(state, window.obs)
        outputs, _, _, carry = unroll(parts, state.params, obs, carry, window.begins)
        distribution = parts.head.distribution(outputs, window.mask)
        action = policy_action(parts.env, parts.env_params, parts.head, window.action)
        if parts.head.choices is None:
            losses, found = -distribution.log_prob(action), None
        else:
            choices = parts.head.choices(distribution, action)
            losses, found = choices_loss(choices), agreement(choices, own)
        return carry, (jnp.sum(jnp.where(own, losses, 0.0)), jnp.sum(own), found)

    carry = parts.policy.initial_carry((parts.config.num_envs,))
    _, (losses, steps, found) = jax.lax.scan(step, carry, jnp.arange(count, dtype=jnp.int32))
    metrics = {"eval/held_out_loss": jnp.sum(losses) / jnp.sum(steps)}
    if found is None:
        return metrics
    total = Agreement(*(jnp.sum(x, axis=0) for x in found))
    return metrics | agreement_metrics(total, heads_of(parts.env, parts.env_params), "eval/held_out_", jnp.nan)


register_agent(BCConfig, make_bc)
