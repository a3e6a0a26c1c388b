"""From a configuration to its environment, wrapped for training or for evaluation."""

from __future__ import annotations

from typing import Any

from rljax.core.config import Config
from rljax.core.environment import check_environment
from rljax.core.errors import ConfigError
from rljax.core.game import Game
from rljax.core.spaces import Dict, as_space
from rljax.core.versus import Versus
from rljax.core.wrappers import PRIVILEGED, ClipReward, EpisodeStatistics, FlattenObservation, PublicObservation, TimeLimit
from rljax.envs import game_ids, resolve_env


def make_evaluation_env(config: Config) -> tuple[Any, Any]:
    """`(env, env_params)` as the policy sees it, rewards untouched, with episode statistics.

    Raises:
        ConfigError: unknown environment or parameter, or an environment that breaks the contract.
    """
    if config.of_games:
        # A run of a game is evaluated against random play; the wrappers below are not for games.
        game, env_params = make_game(config)
        return EpisodeStatistics(Versus(game)), env_params
    env, env_params = resolve_env(config.env, config.env_params)
    check_environment(env, env_params)
    if config.time_limit is not None:
        env = TimeLimit(env, config.time_limit)
    space = as_space(env.observation_space(env_params))
    if isinstance(space, Dict) and PRIVILEGED in space.spaces:
        if len(space.spaces) == 1:
            raise ConfigError(f"environment {env.name}: all of its observations are privileged, and a policy would see none")
        if not config.privileged_critic:
            env = PublicObservation(env)
        elif config.flatten_observations:
            raise ConfigError(
                f"flatten_observations = true: the observations of {env.name} have a part that only the critic sees; "
                "networks flatten each part on their own"
            )
    if config.flatten_observations:
        env = FlattenObservation(env)
    return EpisodeStatistics(env), env_params


def make_game(config: Config) -> tuple[Game, Any]:
    """The game of a configuration, and its parameters.

    Raises:
        ConfigError: an unknown game or parameter, no game, or one that breaks the contract.
    """
    env, env_params = resolve_env(config.env, config.env_params)
    if not isinstance(env, Game):
        raise ConfigError(f"env = {env.name!r}: is no game of several players, expected for example {', '.join(game_ids())}")
    sizes = {env.teams.count(team) for team in env.teams}
    if len(sizes) > 1 or len(set(env.teams)) < 2:
        raise ConfigError(f"env = {env.name!r}: has teams {env.teams}, expected at least two, of one size")
    check_environment(Versus(env), env_params)
    return env, env_params


def make_training_env(config: Config) -> tuple[Any, Any]:
    """The same with clipped rewards where the config asks for it; episode statistics stay those of the true rewards."""
    env, env_params = make_evaluation_env(config)
    return (env if config.clip_rewards is None else ClipReward(env, config.clip_rewards)), env_params
