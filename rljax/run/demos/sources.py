"""Who acts in a recording, against whom, and in which environment or game."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax

from rljax.collect.demos.schema import WRAPPERS, DatasetInfo
from rljax.collect.environments import RULES, USUAL_STEPS, make_evaluation_env
from rljax.core.config import Config, env_name
from rljax.core.config_files import config_table
from rljax.core.contract import check_contract
from rljax.core.environments.environment import action_mask_of, plays_greedily
from rljax.core.environments.spaces import as_space
from rljax.core.errors import ConfigError, did_you_mean, is_whole, shown
from rljax.core.games.game import Game
from rljax.core.games.versus import Player, Remembering, random_player
from rljax.envs import resolve_env
from rljax.run.demos.playing import Solo, Table
from rljax.run.demos.writer import Episode
from rljax.run.players import (
    OPPONENTS,
    SELF,
    Actor,
    Played,
    Source,
    actor_player,
    check_one_game,
    find_actor,
    game_giver,
    game_of,
    game_table,
)

WRAPPER_FIELDS = (
    "randomize", "end_on_nan", "sticky_actions", "action_repeat", "time_limit", "flatten_observations", "frame_stack"
)  # fmt: skip
"""Fields of configurations that wrap a run's environment, also in its recordings."""

Play = Callable[[int, int, int, int], Iterator[Episode]]
"""A round of games, to their episodes: the opponent's number, how many games, the number of the first one in the dataset, and how
many were played against this opponent before: the recorded player takes its seats in turn."""


class Cast(NamedTuple):
    """Everybody in a recording.

    Attributes:
        info: what the dataset is to say.
        tables: for each opponent, what is played.
        states: for each opponent, the states of the players.
    """

    info: DatasetInfo
    tables: list[Table]
    states: list[tuple[Any, ...]]


def find_cast(
    source: Source,
    env: Any = None,
    env_params: Mapping[str, Any] | None = None,
    against: Sequence[Source] = (SELF,),
    seat: int | None = None,
    sample: bool = False,
    simulations: int = 0,
) -> Cast:
    """Find the players of a recording and what they play; the arguments are those of `rljax.demonstrations`.

    Raises:
        ConfigError: a player is unknown or cannot play there, or an argument is not allowed; one line says which.
    """
    actor = find_actor(source)
    if actor.config is not None and (env is not None or env_params):
        raise ConfigError(f"env: {actor.name} is a run, which is recorded in its own environment; leave env and env_params out")
    if actor.config is None and env is None:
        raise ConfigError(
            f"{actor.name}: no run there; for a player that needs no training give the environment: env = 'CartPole-v1', say "
            "(--env)"
        )
    others = [None if isinstance(other, str) and other == SELF else find_actor(other, "against") for other in against]
    given = [other for other in others if other is not None]
    giver = actor if actor.config is None or not given else game_giver((actor, *given))
    game, params, name, table = _game(actor, env, env_params, giver.config if given else None)
    if isinstance(game, Solo):
        if given or seat is not None:
            raise ConfigError(f"{name}: is an environment of one agent, so there is no opponent and no seat to choose")
        if simulations:
            raise ConfigError(f"simulations = {simulations}: {name} is an environment of one agent, expected 0 (no search)")
        make = _solo_maker(actor, game, sample)
    else:
        make = actor_player(actor, game, params, sample, simulations)
    check_seat(game, seat, bool(given))
    for player in (actor, *given) if given else ():
        if player.config is not None:
            check_one_game(player.name, player.config, giver.name, Played(table, game, params))
    tables: list[Table] = []
    states: list[tuple[Any, ...]] = []
    for opponent in others:
        if opponent is None:
            tables.append(Table(game, params, (make,)))
            states.append((actor.state,))
        else:
            other = actor_player(opponent, game, params, sample, simulations, OPPONENTS)
            tables.append(Table(game, params, (make, other), seat))
            states.append((actor.state, opponent.state))
    masks = jax.eval_shape(lambda: action_mask_of(game, game.reset_env(jax.random.key(0), params)[1], params)) is not None
    observation, action = as_space(game.observation_space(params)), as_space(game.action_space(params))
    whom = {} if isinstance(game, Solo) else {"against": ["itself" if other is None else other.name for other in others]}
    recorded = {"player": actor.name} | whom | _wrapped(game, table)
    info = DatasetInfo(name, plain_table(table["env_params"]), observation, action, masks, recorded)
    return Cast(info, tables, states)


def _wrapped(game: Game, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that wrapped what was recorded, as an entry of dataset.json; nothing if there are none.

    Of a game's fields only those that change its rules are there: players see their own views of what it gives.
    """
    names = WRAPPER_FIELDS if isinstance(game, Solo) else tuple(RULES)
    nothing: tuple[Any, ...] = (None, "none", False, {})
    fields = {name: table[name] for name in names if table.get(name) not in (*nothing, USUAL_STEPS.get(name))}
    return {WRAPPERS: fields} if fields else {}


def plain_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as dataset.json has them: what is no number, text or list is written as a text."""
    return {key: x if isinstance(x, (bool, int, float, str, list, tuple)) else str(x) for key, x in table.items()}


def _game(
    actor: Actor, env: Any, env_params: Mapping[str, Any] | None, giver: Config | None
) -> tuple[Game, Any, str, dict[str, Any]]:
    """Return the game (an environment as one of one player), its parameters, its name, and the table of what is played.

    A run that meets others plays the game of `giver`; None without others.
    """
    if actor.config is None:
        made, params = resolve_env(env, env_params)
        check_contract(made, params)
        name = env if isinstance(env, str) else made.name
        game = made if isinstance(made, Game) else Solo(made)
        return game, params, name, {"env": name, "env_params": dict(env_params or {}), **RULES}
    if actor.config.of_games or giver is not None:
        giver = giver or actor.config
        game, params = game_of(giver)
        table = config_table(actor.config) | game_table(giver)
        return game, params, table["env"], table
    made, params = make_evaluation_env(actor.config)
    return Solo(made), params, env_name(actor.config), config_table(actor.config)


def _solo_maker(actor: Actor, game: Solo, sample: bool) -> Callable[[Any], Player]:
    """Return the function from a state to a player of an environment of one agent."""
    if actor.agent is None:
        if actor.name == "random":
            return lambda _: random_player
        raise ConfigError(f"{shown(actor.name)}: no run folder, and no player of {game.name}, which is an environment of one "
                          f"agent: {did_you_mean(actor.name, ['random'])}")  # fmt: skip
    agent, greedy = actor.agent, plays_greedily(game.env, False if sample else None)

    def act(state: Any, key: jax.Array, _: Any, obs: Any, mask: Any, carry: Any) -> tuple[Any, Any]:
        return agent.act(state, obs, carry, key, greedy, mask)

    return lambda state: Remembering(partial(act, state))


def check_seat(game: Game, seat: int | None, opposed: bool) -> None:
    """Check that a seat to record is a team of the game, and that there are opponents at the others.

    Raises:
        ConfigError: it is not, or there are none.
    """
    if seat is None:
        return
    if not opposed:
        raise ConfigError(f"seat = {seat}: a player against itself is recorded at all seats; give an opponent (--against)")
    if not is_whole(seat, 0, game.num_teams - 1):
        raise ConfigError(f"seat = {shown(seat)}: expected a team of {game.name}, 0 to {game.num_teams - 1}")
