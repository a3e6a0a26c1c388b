"""Parts of the algorithms for games: the game with the policy of its players, and `Agent.act`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rljax.algos.common.config import OnPolicyConfig
from rljax.algos.common.policy import HasPolicy, build_policy, policy_and_value, with_zeros_for_critic
from rljax.algos.common.state import normalize_obs
from rljax.collect.environments import make_game, training_reward
from rljax.collect.normalizers import RewardStatistics, normalize, return_deviation, update_reward_statistics
from rljax.core.agent import Act
from rljax.core.environments.wrappers import split_privileged
from rljax.core.errors import ConfigError
from rljax.core.games.game import Game
from rljax.core.games.game_wrappers import GROUP, OBS, PlayerGroups
from rljax.core.games.versus import OnePlayer
from rljax.nn.groups import GroupedPolicy, grouped_head
from rljax.nn.outputs.actions import ActionHead


class GamePolicy(NamedTuple):
    """A game, its parameters, an example of one player's observation, and the policy of its players.

    `policy` is a `Policy`, or a `GroupedPolicy` where groups of players have parameters of their own.
    """

    game: Game
    game_params: Any
    one: OnePlayer
    policy: Any
    head: ActionHead


def build_game_policy(config: OnPolicyConfig, num_values: int = 1, made: tuple[Game, Any] | None = None) -> GamePolicy:
    """The game of a configuration, and the policy.

    Args:
        config: the configuration.
        num_values: number of value heads of the policy.
        made: the game as training takes it, and its parameters; None: those of `make_game`.

    Raises:
        ConfigError: `env` is not a game, the network does not fit, or a rollout is too short.
    """
    game, params = make_game(config) if made is None else made
    if config.num_steps <= game.turn_gap:
        raise ConfigError(f"num_steps = {config.num_steps}: expected more than {game.turn_gap} in {game.name}")
    one = OnePlayer(game)
    policy, head = build_policy(
        config.network,
        OnePlayer(game.env) if isinstance(game, PlayerGroups) else one,
        params,
        action_heads=getattr(config, "action_heads", "independent"),
        log_std=getattr(config, "log_std", "parameter"),
        num_values=num_values,
        dtype=config.dtype,
    )
    if isinstance(game, PlayerGroups):
        return GamePolicy(game, params, one, GroupedPolicy(policy, game.num_groups), grouped_head(head))
    return GamePolicy(game, params, one, policy, head)


def game_act(
    game: Game, game_params: Any, policy: Any, head: ActionHead, acting: Callable[[Any], tuple[Any, Any]], num_values: int = 1
) -> Act:
    """`Agent.act` of a game's policy, for observations of single players with any leading axes.

    Observations may come without what only the critic sees.

    Args:
        game: the game, unbatched.
        game_params: its parameters.
        policy: policy of one player.
        head: its action head.
        acting: `state -> (params, obs_statistics)`; the statistics are None without normalised observations.
        num_values: number of value heads of the policy.
    """
    one = OnePlayer(game)
    whole = jax.eval_shape(lambda: one.reset_env(jax.random.key(0), game_params))[0]

    def act(
        state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[Any, Any]:
        params, statistics = acting(state)
        obs = _with_critics_part(game, obs, whole)
        outputs, value, carry = policy.apply(params, obs if statistics is None else normalize(statistics, obs), carry)
        batch = value.shape if num_values == 1 else value.shape[:-1]
        return head.to_env(head.choose(head.distribution(outputs, mask), key, batch, deterministic)), carry

    return act


def seen_game_rewards(
    config: OnPolicyConfig, rewards: RewardStatistics | None, reward: jax.Array, done: jax.Array
) -> RewardStatistics | None:
    """Return the statistics of rewards after T steps of E games; None if `rewards`, those before, are None.

    Args:
        config: the configuration, for `gamma` and for what training sees of rewards.
        rewards: statistics before, of E * P seats.
        reward: the game's rewards, f32 `[T, E, P]`.
        done: whether the step ended the game, bool `[T, E]`.
    """
    if rewards is None:
        return None
    seats = training_reward(config, reward).reshape(len(reward), -1)
    ended = jnp.broadcast_to(done[..., None], reward.shape).reshape(len(reward), -1)
    return update_reward_statistics(rewards, seats, ended, config.gamma)


def value_in_game(config: OnPolicyConfig, rewards: RewardStatistics | None, value: jax.Array) -> jax.Array:
    """Return values of a network, f32 `[...]`, in the unit of the game's rewards, to which a search adds them.

    Args:
        config: the configuration, which may scale rewards.
        rewards: statistics by which rewards are divided for training; None: they are not.
        value: values as the network has them.
    """
    if rewards is not None:
        # Before the first rewards, and in agents packed without statistics, the deviation is not known.
        value = value * jnp.where(rewards.statistics.count > 0, return_deviation(rewards), 1.0)
    return value if config.scale_rewards is None else value / config.scale_rewards


class GameNetwork(HasPolicy, Protocol):
    """Parts of an algorithm with a policy of single players of a game, without memory and without groups."""

    @property
    def config(self) -> Any: ...


def evaluate_positions(parts: GameNetwork, state: Any, obs: Any) -> tuple[jax.Array, jax.Array]:
    """Return `(logits [..., A], value [...])` of observations `[..., *obs_shape]` of single players, values in the unit of the
    game's rewards: `Agent.policy_and_value` of a network with one value head.
    """
    logits, value, _ = policy_and_value(parts, state.params, normalize_obs(state, obs))
    return logits, value_in_game(parts.config, state.reward_statistics, value)


def _with_critics_part(game: Game, obs: Any, whole: Any) -> Any:
    """Return observations as the networks take them: with zeros in place of what only the critic sees.

    Args:
        game: the game.
        obs: observations of single players, with or without that.
        whole: the shapes of one player's observation.

    Raises:
        ConfigError: the policy is of several groups, and the observation does not say which.
    """
    if isinstance(game, PlayerGroups):
        if not isinstance(obs, Mapping) or set(obs) != {OBS, GROUP}:
            groups = game.num_groups
            raise ConfigError(
                f'observation: players have weights of {groups} groups here, so expected {{"obs": ..., "group": one-hot bool '
                f"[{groups}]}} of the player that acts; players of rljax.collect.games.policy_player add it"
            )
        return {OBS: _with_critics_part(game.env, obs[OBS], whole[OBS]), GROUP: obs[GROUP]}
    if split_privileged(whole)[1] is None:
        return obs
    named = obs if isinstance(obs, Mapping) else {OBS: obs}  # as `central_critic` has it
    return with_zeros_for_critic(named, whole)[0]
