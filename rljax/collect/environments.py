"""Make the environment of a configuration, wrapped for training or for evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.curriculum.rules import Curriculum
from rljax.collect.curriculum.spec import make_curriculum
from rljax.collect.randomize import randomized
from rljax.core.check import check_play
from rljax.core.config import Config
from rljax.core.contract import KNOWN, check_contract, is_foreign, is_known, warn_of
from rljax.core.environments.environment import SimulatorParams, is_outside_jax
from rljax.core.environments.observation_wrappers import FrameStack
from rljax.core.environments.spaces import Dict, as_space
from rljax.core.environments.step_wrappers import ActionRepeat, EndOnNaN, ScaleReward, StickyActions
from rljax.core.environments.wrappers import (
    PRIVILEGED,
    ClipReward,
    EpisodeStatistics,
    FlattenObservation,
    PublicObservation,
    TimeLimit,
    Wrapper,
)
from rljax.core.errors import ConfigError, shown
from rljax.core.games.game import Game
from rljax.core.games.game_step_wrappers import GameActionRepeat, GameEndOnNaN, GameStickyActions
from rljax.core.games.game_wrappers import CentralCritic, FlattenPlayers, GameFrameStack, GameTimeLimit, PlayerGroups
from rljax.core.games.versus import Versus
from rljax.envs import game_ids, resolve_env

EVALUATION_OPPONENT = "random play"
"""The opponent of a game's evaluations: random legal moves."""

RULES: Mapping[str, Any] = {"randomize": {}, "sticky_actions": "none", "action_repeat": "none", "time_limit": "none"}
"""Fields of configurations that change the rules of a game, with their values in the table of a configuration without them."""


USUAL_STEPS: Mapping[str, Any] = {"action_repeat": 1, "sticky_actions": 0.0}
"""Fields of configurations that change what a step does, and their values that change nothing."""


def evaluation_opponent(config: Config) -> str | None:
    """Return whom a game's policy is evaluated against, in words; None for environments, and for games of a single team.

    Raises:
        ConfigError: as for `resolve_env`.
    """
    if not config.of_games:
        return None
    game, _ = resolve_env(config.env, config.env_params)
    return EVALUATION_OPPONENT if getattr(game, "num_teams", 2) > 1 else None


def make_evaluation_env(config: Config, every_move: bool = False) -> tuple[Any, Any]:
    """Return `(env, env_params)` for evaluation: observations as the policy sees them, true rewards, episode statistics.

    With `every_move`, a step of a game is one of any player, as in `Versus`.

    Raises:
        ConfigError: unknown environment or parameter, or an environment that breaks the contract.
    """
    if config.of_games:
        # Against EVALUATION_OPPONENT; the wrappers below are not for games.
        game, env_params = make_game(config)
        return EpisodeStatistics(Versus(game, joint=False, every_move=every_move)), env_params
    env, env_params = resolve_env(config.env, config.env_params)
    if isinstance(env, Game):
        players = "1 player" if env.num_players == 1 else f"{env.num_players} players"
        raise ConfigError(
            f"env = {env.name!r}: is a game of {players}, expected an environment of one agent; "
            "games are for self_play, league and alphazero"
        )
    check_contract(env, env_params)
    inside: Any = getattr(env, "env", None)
    if is_outside_jax(env):
        _check_outside(config, env)
    elif is_outside_jax(inside):
        raise ConfigError(
            f"env: {type(env).__name__} is around {inside.name}, which is outside JAX: derive it from rljax.wrappers.Wrapper"
        )
    env = with_steps(env, env_params, config)
    space = as_space(env.observation_space(env_params))
    if isinstance(space, Dict) and PRIVILEGED in space.spaces:
        if len(space.spaces) == 1:
            raise ConfigError(f"environment {env.name}: all of its observations are privileged, so a policy would see none")
        if not config.privileged_critic:
            env = PublicObservation(env)
        elif config.flatten_observations:
            raise ConfigError(
                f"flatten_observations = true: the observations of {env.name} have a part that only the critic sees; "
                "networks flatten each part on their own"
            )
    if config.flatten_observations:
        env = FlattenObservation(env)
    if config.frame_stack is not None:
        env = FrameStack(env, config.frame_stack)
    return EpisodeStatistics(env), env_params


def with_steps(env: Any, env_params: Any, config: Config) -> Any:
    """Return the environment or game with what the configuration's fields change of its parameters, steps and ends.

    Raises:
        ConfigError: it cannot be done with this one.
    """
    end_on_nan, sticky_actions, action_repeat, time_limit = _OF_GAMES if isinstance(env, Game) else _OF_ENVIRONMENTS
    if config.randomize:
        _check_levels_apart(config)
        env = randomized(env, env_params, config.randomize)
    if config.end_on_nan:
        env = end_on_nan(env)
    probability, times = changed_steps(config, "sticky_actions"), changed_steps(config, "action_repeat")
    if probability is not None:
        env = sticky_actions(env, probability)
    if times is not None:
        env = action_repeat(env, times)
    if probability is not None or times is not None:
        jax.eval_shape(lambda key: env.reset_env(key, env_params), jax.random.key(0))  # refuses action masks
    if config.time_limit is not None:
        env = time_limit(env, config.time_limit)
    return env


def changed_steps(config: Config, name: str) -> Any:
    """Return the value of a field of `USUAL_STEPS`, or None if it changes nothing. An array, also a traced one, may change steps
    of some runs, and all of them have one structure.
    """
    value = getattr(config, name)
    return value if isinstance(value, (jax.Array, np.ndarray)) or value != USUAL_STEPS[name] else None


_OF_ENVIRONMENTS: tuple[Any, ...] = (EndOnNaN, StickyActions, ActionRepeat, TimeLimit)
_OF_GAMES: tuple[Any, ...] = (GameEndOnNaN, GameStickyActions, GameActionRepeat, GameTimeLimit)


def _check_levels_apart(config: Config) -> None:
    """Refuse parameters that both a curriculum's levels and `randomize` would set."""
    levels = (getattr(config, "curriculum", None) or {}).get("levels")
    tables = levels if isinstance(levels, (list, tuple)) else [levels]
    both = sorted({name for table in tables if isinstance(table, Mapping) for name in table} & set(config.randomize))
    if both:
        raise ConfigError(f"randomize: {', '.join(both)}: is a parameter of the curriculum's levels, too: let one of them set it")


def _check_outside(config: Config, env: Any) -> None:
    """Refuse what cannot be done with simulators outside JAX."""
    refused = {
        "reset": config.reset not in ("auto", "each") and "its simulators begin episodes where they end",
        "num_devices": config.num_devices > 1 and "its simulators serve one device",
        "end_on_nan": config.end_on_nan and "its simulators cannot go back to the state before",
    }
    for name, why in refused.items():
        if why:
            raise ConfigError(f"{name} = {shown(getattr(config, name))}: {env.name} is simulated outside JAX, and {why}")
    if jax.process_count() > 1:
        raise ConfigError(f"env = '{env.name}': is simulated outside JAX, where a run has one process")


def make_base_game(config: Config) -> tuple[Game, Any]:
    """Return the game of a configuration with its steps and ends (`with_steps`) and its own observations, and its parameters.

    Players with configurations of their own can meet in it: each changes what it sees (see `player_view`). An agent of one
    player that was trained against a fixed one (`Versus`) is a player of that game, of which it changes nothing but the time
    limit, and not that if players take turns.

    Raises:
        ConfigError: an unknown game or parameter, no game, or one that breaks the contract.
    """
    game, env_params = resolve_env(config.env, config.env_params)
    time_limit = config.time_limit
    # Of an environment whose steps are those of all players, the observations before are not those of the agent's own moves.
    others_moves = isinstance(game, Versus) and game.every_move and not game.env.all_move
    if not config.of_games and isinstance(game, Versus) and game.team_size == 1:
        if game.skips_turns:
            time_limit = None  # it counted the agent's moves, and a game's counts those of all players
        game = game.env
    if not config.of_games and isinstance(game, Versus):
        raise ConfigError(
            f"env = {game.name!r}: an agent that moves a team of {game.team_size} against a fixed player plays no matches"
        )
    if not isinstance(game, Game):
        _refuse_around_game(game)
        raise ConfigError(f"env = {game.name!r}: is not a game of several players, expected for example {', '.join(game_ids())}")
    for name in () if config.of_games else ("action_repeat", *(["frame_stack"] if others_moves else [])):
        if (getattr(config, name) or 1) > 1:  # in a match a player decides at every move, by what it sees then
            raise ConfigError(
                f"{name} = {getattr(config, name)}: an agent that was trained with it against a fixed player cannot play matches "
                f"of {game.name}; agents for matches are trained without it"
            )
    check_contract(game, env_params)
    if config.of_games:
        return with_steps(game, env_params, config), env_params
    return game if time_limit is None else GameTimeLimit(game, time_limit), env_params


def _refuse_around_game(env: Any) -> None:
    """Refuse wrappers of environments around a game: these are environments of one agent."""
    inside = env
    while isinstance(inside, Wrapper) and not isinstance(inside, Game):
        inside = inside.env
    if isinstance(inside, Game):
        raise ConfigError(
            f"env: {type(env).__name__} around {inside.name} is an environment of one agent, expected a game: give the game "
            "itself with time_limit, frame_stack, scale_rewards or clip_rewards, or a wrapper derived from "
            "rljax.core.games.game_wrappers.WrappedGame"
        )


def make_game(config: Config, rules: Config | None = None) -> tuple[Game, Any]:
    """Return the game of a configuration, with what its fields change of observations, steps and ends, and its parameters.

    Args:
        config: the configuration.
        rules: configuration of another player of the game, whose steps and ends are taken; by default `config`.

    Raises:
        ConfigError: an unknown game or parameter, no game, or one that breaks the contract.
    """
    game, env_params = make_base_game(config if rules is None else rules)
    return _with_views(game, env_params, config), env_params


def make_training_game(config: Config) -> tuple[Game, Any, Curriculum | None]:
    """Return the game of `make_game`, on the levels of the configuration's curriculum if it has one, its parameters, and the rule
    of the curriculum; None without one.

    Raises:
        ConfigError: as for `make_game` and `make_curriculum`.
    """
    game, env_params = make_base_game(config)
    table, curriculum = getattr(config, "curriculum", None), None
    if table is not None:
        curriculum, game, env_params = make_curriculum(table, game, env_params)
    return _with_views(game, env_params, config), env_params, curriculum


def _with_views(game: Game, env_params: Any, config: Config) -> Game:
    """Return the game with what the configuration's fields change of observations."""
    space = as_space(game.observation_space(env_params))
    if isinstance(space, Dict) and PRIVILEGED in space.spaces:
        if len(space.spaces) == 1:
            raise ConfigError(f"game {game.name}: all of its observations are privileged, so a policy would see none")
        if config.flatten_observations:
            raise ConfigError(
                f"flatten_observations = true: the observations of {game.name} have a part that only the critic sees; "
                "networks flatten each part on their own"
            )
    if config.flatten_observations:
        game = FlattenPlayers(game)
    if config.frame_stack is not None and config.frame_stack > 1:
        game = GameFrameStack(game, config.frame_stack)
    if getattr(config, "central_critic", False):
        if game.num_players < 2:
            raise ConfigError(f"central_critic = true: {game.name} has one player, so there is nobody else to look at")
        game = CentralCritic(game)
    groups = player_groups(game, getattr(config, "weights", "shared"))
    if max(groups):
        game = PlayerGroups(game, groups)
    return game


def player_groups(game: Game, weights: str) -> tuple[int, ...]:
    """Return the group of each player, whose members share their parameters, numbered from 0.

    Args:
        game: the game.
        weights: "shared" (one group), "team", "role" or "player".
    """
    players = game.num_players
    groups = {"shared": (0,) * players, "team": game.teams, "role": game.roles, "player": tuple(range(players))}
    if weights != "shared" and not max(groups[weights]):
        raise ConfigError(f"weights = '{weights}': all players of {game.name} are one {weights}, expected 'shared' or 'player'")
    return groups[weights]


def make_training_env(config: Config) -> tuple[Any, Any]:
    """Return the environment of `make_evaluation_env`, with rewards scaled and clipped as the configuration says; the totals of
    episodes are those of true rewards.
    """
    env, env_params = make_evaluation_env(config)
    if is_outside_jax(env):
        env_params = SimulatorParams(trains=True)
    if config.scale_rewards is not None:
        threshold = env.reward_threshold
        env = ScaleReward(env, config.scale_rewards)
        env.reward_threshold = threshold  # of the totals, in true rewards
    return (env if config.clip_rewards is None else ClipReward(env, config.clip_rewards)), env_params


def training_reward(config: Config, reward: jax.Array) -> jax.Array:
    """Return true rewards, of a dataset for example, as `make_training_env` has them."""
    reward = reward if config.scale_rewards is None else reward * config.scale_rewards
    return reward if config.clip_rewards is None else jnp.clip(reward, -config.clip_rewards, config.clip_rewards)


_TRIED: dict[tuple[Any, str], Any] = {}
"""Environments that were tried, by `id()` and parameters; kept here so that no other object gets the same `id()`."""

MAX_TRIED = 32


def try_environment(config: Config) -> None:
    """Check an environment by random play before training, once per process (see `check_environment`).

    Only a user's own environments and wrappers are played; tests have played all others. Faults of another library's environment
    are warnings.

    Raises:
        ConfigError: the environment breaks the contract; the message says how.
    """
    if isinstance(jnp.zeros(()), jax.core.Tracer):
        return  # `check_play` does nothing under a trace, so do not record it as done
    tried = (config.env if isinstance(config.env, str) else id(config.env), repr(config.env_params))
    if tried in _TRIED:
        return
    env, env_params = resolve_env(config.env, config.env_params)
    known = is_known(env, KNOWN)
    doubts = check_contract(env, env_params) if is_foreign(env) or not known else []
    warn_of(env, doubts if known else doubts + check_play(env, env_params))
    if len(_TRIED) >= MAX_TRIED:
        _TRIED.clear()
    _TRIED[tried] = config.env
