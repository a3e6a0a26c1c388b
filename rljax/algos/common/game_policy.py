"""Parts of the algorithms for games: checks of the configuration, the game with the policy of its players, `Agent.act`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.algos.common.config import OnPolicyConfig
from rljax.algos.common.policy import build_policy
from rljax.collect.environments import make_game
from rljax.core.agent import Act
from rljax.core.errors import ConfigError, shown
from rljax.core.game import Game
from rljax.core.versus import OnePlayer
from rljax.nn.actions import ActionHead
from rljax.nn.policy import Policy

_NOT_IN_GAMES = (
    ("value_heads", ()),
    ("intrinsic", None),
    ("time_limit", None),
    ("clip_rewards", None),
    ("flatten_observations", False),
    ("normalize_observations", False),
    ("normalize_rewards", False),
    ("action_heads", "independent"),
)
"""Fields that are not supported in games, and the values that they must have."""


class GamePolicy(NamedTuple):
    """A game, its parameters, an example of one player's observation, and the policy that all players share."""

    game: Game
    game_params: Any
    one: OnePlayer
    policy: Policy
    head: ActionHead


def check_game_fields(config: Any) -> None:
    """Refuse fields that are not supported in games.

    Raises:
        ConfigError: names the field, its value and what is expected.
    """
    for name, needed in _NOT_IN_GAMES:
        value = getattr(config, name, needed)
        if getattr(value, "ndim", 0) or value != needed:  # a batch of values has no truth value
            raise ConfigError(f"{name} = {shown(value)}: is not supported in games, expected {needed!r}")


def build_game_policy(config: OnPolicyConfig, log_std: str = "parameter") -> GamePolicy:
    """The game of a configuration, and the policy.

    Raises:
        ConfigError: `env` is not a game, the network does not fit or has memory, or a rollout is too short.
    """
    game, params = make_game(config)
    one = OnePlayer(game)
    policy, head = build_policy(config.network, one, params, log_std=log_std)
    if policy.initial_carry((1,)) is not None:
        raise ConfigError("network: policies with memory are not supported in games yet, expected a network without memory")
    if config.num_steps <= game.turn_gap:
        raise ConfigError(f"num_steps = {config.num_steps}: expected more than {game.turn_gap} in {game.name}")
    return GamePolicy(game, params, one, policy, head)


def game_act(policy: Any, head: ActionHead, params_of: Callable[[Any], Any]) -> Act:
    """`Agent.act` of the weights `params_of(state)`, for observations of single players with any leading axes."""

    def act(
        state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        outputs, _, _ = policy.apply(params_of(state), obs)
        distribution = head.distribution(outputs, None if mask is None else mask.reshape(outputs.shape))
        action = head.choose(distribution, key, outputs.shape[:-1], deterministic)
        return action.astype(jnp.int32), carry

    return act
