"""Parts that cloning and distillation share: policies for environments and games, demonstrated actions, and accuracies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp

from rljax.algos.common.config import ActionConfig
from rljax.algos.common.game_policy import build_game_policy, evaluate_positions, game_act
from rljax.algos.common.optimizer import adam, annealed
from rljax.algos.common.policy import build_policy
from rljax.algos.common.state import NormalizedState
from rljax.algos.common.teacher import Teacher
from rljax.collect.environments import make_training_env
from rljax.collect.games.matches import acting_player
from rljax.collect.minibatches import minibatch_steps
from rljax.collect.normalizers import update_statistics
from rljax.collect.streams import batch_major, flat_steps, own_mean
from rljax.core.agent import Metrics, PolicyAndValue
from rljax.core.config import Config
from rljax.core.environments.spaces import Dict, as_space, head_sizes
from rljax.core.environments.wrappers import EpisodeStatistics
from rljax.core.errors import ConfigError
from rljax.core.games.game import Game
from rljax.core.games.game_wrappers import FreeForAll
from rljax.core.games.versus import Versus
from rljax.core.state import per_environment
from rljax.envs import resolve_env
from rljax.nn.outputs.actions import ActionHead
from rljax.nn.outputs.choices import Choices
from rljax.nn.policy import Policy

S = TypeVar("S")
B = TypeVar("B")

MAX_HEADS = 32
"""Largest number of heads that have metrics of their own; where every cell of a grid has a head, only whole actions do."""


class ImitationParts(NamedTuple):
    """Environment and policy of a configuration, built once. Of a game, `env` is an example of what one player sees and does."""

    config: Any
    env: Any
    env_params: Any
    policy: Policy
    head: ActionHead


class ImitationState(NormalizedState, kw_only=True):
    """State of a learner that imitates.

    Attributes:
        carry: memory of the policy in the streams under way, `[S, ...]`, zeros where one begins; None without memory.
    """

    carry: Any = per_environment(depends_on=("dataset", "held_out", "num_steps", "seed"))  # which say what the streams read


def is_game(config: Config) -> bool:
    """Return whether the environment of a configuration is a game of several players."""
    return isinstance(resolve_env(config.env, config.env_params)[0], Game)


def imitation_parts(config: ActionConfig, values: int = 1) -> ImitationParts:
    """Build environment, policy and action head, for an environment or for one player of a game.

    Args:
        config: the configuration.
        values: number of value heads of the policy.

    Raises:
        ConfigError: environment or network do not fit the contract, or each other.
    """
    if config.of_games:
        _, env_params, env, policy, head = build_game_policy(config, values)
    else:
        env, env_params = make_training_env(config)
        policy, head = build_policy(
            config.network,
            env,
            env_params,
            action_heads=config.action_heads,
            log_std=config.log_std,
            num_values=values,
            dtype=config.dtype,
        )
    if policy.initial_carry((1,)) is not None and config.num_envs % config.num_minibatches:
        raise ConfigError(
            f"num_minibatches = {config.num_minibatches}: must divide num_envs = {config.num_envs} for a network with memory, "
            "whose minibatches are whole streams"
        )
    return ImitationParts(config, env, env_params, policy, head)


def against_itself(parts: ImitationParts, policy: Teacher, values: int) -> ImitationParts:
    """Return the parts of a game's policy with an environment in which it plays all players but one, which is drawn for each
    episode; where teams have several players, also the mates of that one.

    Args:
        parts: from `imitation_parts`, of a game.
        policy: parameters of one player, and the statistics that normalise its observations.
        values: number of value heads of the policy.
    """
    game = parts.env.env
    act = game_act(
        game, parts.env_params, parts.policy, parts.head, lambda policy: (policy.params, policy.obs_statistics), values
    )
    player = acting_player(game, lambda obs, carry, key, mask: act(policy, obs, carry, key, False, mask))
    return parts._replace(env=EpisodeStatistics(Versus(FreeForAll(game), player)))


def positions_of(parts: ImitationParts) -> PolicyAndValue | None:
    """Return `Agent.policy_and_value` of a game's policy without memory; None of others."""
    has_memory = parts.policy.initial_carry((1,)) is not None
    return partial(evaluate_positions, parts) if parts.config.of_games and not has_memory else None


def example_obs(parts: ImitationParts) -> Any:
    """Return the shapes and dtypes of an observation."""
    return jax.eval_shape(lambda: parts.env.reset_env(jax.random.key(0), parts.env_params))[0]


def initial_params(parts: ImitationParts, key: jax.Array) -> Any:
    """Return random parameters of the policy."""
    return parts.policy.init(key, jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), example_obs(parts)))


def imitate(
    parts: ImitationParts, state: S, batch: B, loss_fn: Callable[[Any, B], tuple[jax.Array, Metrics]]
) -> tuple[S, Metrics]:
    """Take `num_epochs` passes of `num_minibatches` gradient steps over steps `[T, S, ...]`, which count as an iteration.

    Args:
        parts: parts of the algorithm.
        state: the state so far.
        batch: steps with a field `carry`, the memory before the first one; None without memory.
        loss_fn: `(params, minibatch) -> (loss, metrics)`; minibatches are steps `[B, ...]`, with memory whole streams
            `[T, B, ...]`.

    Returns:
        The state with other parameters, and metrics, means over the gradient steps.
    """
    config, steps, before = parts.config, cast(Any, batch), cast(Any, state)
    key, shuffle_key = jax.random.split(before.key)
    has_memory, rate = steps.carry is not None, annealed(config, before.iteration)
    params, opt_state, metrics = minibatch_steps(
        lambda params, minibatch: loss_fn(params, batch_major(minibatch) if has_memory else minibatch),
        adam(config),
        before.params,
        before.opt_state,
        batch_major(steps) if has_memory else flat_steps(steps),
        shuffle_key,
        num_epochs=config.num_epochs,
        num_minibatches=config.num_minibatches,
        learning_rate=rate,
    )
    after: S = before.replace(params=params, opt_state=opt_state, key=key, iteration=before.iteration + 1)
    return after, metrics | {"train/learning_rate": rate}


def seen_obs(state: Any, obs: Any) -> Any:
    """Return the statistics of observations after these raw ones `[T, S, ...]`; None where they are not normalised."""
    return None if state.obs_statistics is None else update_statistics(state.obs_statistics, obs)


def policy_action(env: Any, env_params: Any, head: ActionHead, action: Any) -> jax.Array:
    """Undo `ActionHead.to_env`: of named heads, stack the dictionary's actions `[...]` to i32 `[..., K]`."""
    space = as_space(env.action_space(env_params))
    if isinstance(space, Dict) and isinstance(action, Mapping):
        action = jnp.stack([jnp.asarray(action[name]) for name in space.spaces], axis=-1)
    return jnp.asarray(action).astype(head.action.dtype)


def heads_of(env: Any, env_params: Any) -> tuple[str, ...]:
    """Return the names of an action's heads, or their numbers; none for one head, for more than `MAX_HEADS`, or for numbers."""
    space = as_space(env.action_space(env_params))
    sizes = head_sizes(space)
    if sizes is None or not 2 <= len(sizes) <= MAX_HEADS:
        return ()
    return tuple(space.spaces) if isinstance(space, Dict) else tuple(map(str, range(len(sizes))))


class Agreement(NamedTuple):
    """How often a policy's most likely action was the one taken, as sums over steps, f32 `[1 + K]` each: of whole actions, and of
    each head. Only steps count in which there was a choice, and heads that the environment reads.

    Attributes:
        right: number of steps in which it was.
        decided: number of steps in which there was a choice.
    """

    right: jax.Array
    decided: jax.Array


def agreement(choices: Choices, own: jax.Array | None = None) -> Agreement:
    """Count agreement along the actions of `choices`, arrays `[..., K]`; `own`, bool `[...]`, says which steps count."""
    decides = choices.decides if own is None else choices.decides & own[..., None]
    same = (choices.likeliest == choices.action) | ~decides
    of_heads, of_all = (same & decides, decides), (jnp.all(same, axis=-1) & jnp.any(decides, axis=-1), jnp.any(decides, axis=-1))
    axes = tuple(range(choices.action.ndim - 1))
    sums = [
        jnp.append(jnp.sum(whole, dtype=jnp.float32), jnp.sum(each, axes, dtype=jnp.float32))
        for whole, each in zip(of_all, of_heads, strict=True)
    ]
    return Agreement(*sums)


def agreement_metrics(found: Agreement, heads: tuple[str, ...], prefix: str, empty: float) -> Metrics:
    """Return accuracies by name, `PREFIXaccuracy` and `PREFIXaccuracy_HEAD`; `empty` where there was no choice."""
    share = jnp.where(found.decided > 0, found.right / jnp.maximum(found.decided, 1.0), empty)
    names = ("accuracy", *(f"accuracy_{name}" for name in heads))
    return {prefix + name: share[i] for i, name in enumerate(names)}


def illegal_share(choices: Choices, own: jax.Array | None = None) -> jax.Array:
    """Return the share of steps whose action is not legal in a head that is read, f32 []."""
    return own_mean(jnp.any(choices.read & ~choices.valid, axis=-1).astype(jnp.float32), own)
