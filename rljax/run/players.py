"""Players of a game: trained agents, and players that need no training, which have names."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.environments import RULES, USUAL_STEPS, make_base_game
from rljax.collect.games.matches import policy_player
from rljax.collect.randomize import GameRandomizeParams
from rljax.core.agent import Agent, make_agent
from rljax.core.config import Config, env_name
from rljax.core.config_files import config_table
from rljax.core.environments.environment import Environment
from rljax.core.errors import ConfigError, did_you_mean, is_whole, shown
from rljax.core.games.game import Game
from rljax.core.games.game_step_wrappers import GameActionRepeat, GameEndOnNaN, GameStickyActions
from rljax.core.games.game_wrappers import GameTimeLimit
from rljax.core.games.versus import Player, Versus, random_player, without_view
from rljax.core.plain import is_object
from rljax.envs import resolve_env
from rljax.planning.mcts import MAX_SIMULATIONS, check_evaluates, check_searchable, make_mcts, search_player, searching
from rljax.run.files.folder import Run, load_run
from rljax.run.files.zoo import is_address

UNTRAINED = ("random", "mcts")
"""Names of players that need no training: random legal moves, and UCT with 100 simulations."""

MCTS_SIMULATIONS = 100
"""Number of positions that the player "mcts" searches before each move."""

SELF = "self"
"""Name of the opponent that is the player itself."""

OPPONENTS = (*UNTRAINED, SELF)
"""Names of opponents that need no training."""

GAME_FIELDS = ("env", "env_params", *RULES)
"""Fields of configurations that say which game is played."""


Contestant = Any
"""A run folder or checkpoint (its best seed plays), a `Run`, or `(agent, state)`."""

Source = Any
"""A `Contestant`, or the name of a player that needs no training."""


class Actor(NamedTuple):
    """Player: its name, and the agent with its state; None for players that need no training."""

    name: str
    agent: Agent | None = None
    state: Any = None

    @property
    def config(self) -> Config | None:
        return None if self.agent is None else self.agent.config


def trained_agent(contestant: Contestant) -> tuple[Agent, Any]:
    """Return a contestant's agent and its state.

    Raises:
        ConfigError: it is no contestant, or there is no run.
    """
    if is_pair(contestant):
        return contestant
    if isinstance(contestant, (str, os.PathLike)):
        contestant = load_run(contestant, seed_index="best")
    if isinstance(contestant, Run):
        return make_agent(contestant.config), contestant.state
    raise ConfigError(f"{type(contestant).__name__}: expected a run folder, a Run, or (agent, state)")


def is_pair(contestant: Contestant) -> bool:
    """Return whether a contestant is `(agent, state)`."""
    return isinstance(contestant, tuple) and len(contestant) == 2 and isinstance(contestant[0], Agent)


def find_actor(source: Source, field: str = "source") -> Actor:
    """Return a player, which an argument `field` gives. A text that is no path is a name, whose game is not known yet.

    Raises:
        ConfigError: it is none of `Source`, or a folder without a run.
    """
    if isinstance(source, str) and not is_address(source) and not Path(source).exists():
        return Actor(source)
    if isinstance(source, (str, os.PathLike)):
        run = load_run(source, seed_index="best")
        return Actor(f"{source} at step {run.step}", *trained_agent(run))
    if not isinstance(source, Run) and not is_pair(source):
        raise ConfigError(f"{field} = {shown(source)}: expected a run folder, a Run, (agent, state), or the name of a player")
    agent, state = trained_agent(source)
    step = f" at step {source.step}" if isinstance(source, Run) else ""
    return Actor(f"{agent.config.algorithm}{step}", agent, state)


def actor_player(
    actor: Actor, game: Game, params: Any, sample: bool = False, simulations: int = 0, others: Sequence[str] = UNTRAINED
) -> Callable[[Any], Player]:
    """Return the function from a state to a player of a game. Where nobody has its name, the message says that the names are
    `others` and those of the game's scripted players.

    Raises:
        ConfigError: nobody has this name, or a search is asked for that cannot be.
    """
    if actor.agent is not None:
        return agent_player(actor.agent, sample, simulations)
    player: Player
    if actor.name == "random":
        player = random_player
    elif actor.name == "mcts":
        player = searching(make_mcts(game, params, num_simulations=simulations or MCTS_SIMULATIONS), game)
    elif actor.name in game.scripted:
        player = without_view(game.scripted[actor.name], params)
    else:
        raise ConfigError(f"{shown(actor.name)}: no run folder, and no player of {game.name}: "
                          f"{did_you_mean(actor.name, (*others, *game.scripted))}")  # fmt: skip
    return lambda _: player


def agent_player(agent: Agent, sample: bool = False, simulations: int = 0) -> Callable[[Any], Player]:
    """Return a function from an agent's state to a player: its greedy policy, its sampled policy, or a search.

    Raises:
        ConfigError: `simulations` is not allowed, or is given with `sample`, or the agent cannot search.
    """
    if not is_whole(simulations, 0, MAX_SIMULATIONS):
        raise ConfigError(f"simulations = {simulations}: expected 0 (the policy alone) to {MAX_SIMULATIONS}")
    if simulations and sample:
        raise ConfigError(f"simulations = {simulations}: a search does not sample; expected 0, or no --sample")
    if simulations:
        check_searchable(*game_of(agent.config))
        check_evaluates(agent)
        return partial(search_player, agent, num_simulations=simulations)
    return partial(policy_player, agent, deterministic=False if sample else None)


def find_opponent(agent: Agent, state: Any, source: Source, deterministic: bool | None = None) -> tuple[Player, Config | None]:
    """Return a player as the opponent of an agent in its game, and its configuration if the rules of the game are those of it
    and not the agent's, or else None; "self" is the agent. Policies are greedy if `deterministic`; None: as in `rljax.evaluate`.

    Raises:
        ConfigError: the agent plays no game, or one of a single team; the opponent is unknown or plays another game.
    """
    game, params = game_of(agent.config)
    if game.num_teams == 1:
        raise ConfigError(f"against = {shown(source)}: all players of {game.name} are one team, so there is no opponent")
    own = isinstance(source, str) and source == SELF
    actor = Actor(SELF, agent, state) if own else find_actor(source, "against")
    if actor.config is not None:
        check_one_game(actor.name, actor.config, "the agent", Played(game_table(agent.config), game, params))
    giver = game_giver((Actor("the agent", agent, state), actor))
    if actor.agent is not None:
        player = policy_player(actor.agent, actor.state, deterministic)
    else:
        player = actor_player(actor, game, params, others=OPPONENTS)(actor.state)
    return player, actor.config if giver is actor else None


def game_of(config: Config) -> tuple[Game, Any]:
    """Return the game of a configuration and its parameters.

    Raises:
        ConfigError: its environment is not a game.
    """
    if not config.of_games and _against_fixed(config) is None:
        raise ConfigError(
            f"{config.algorithm} on {env_name(config)}: is no agent of a game, expected a run of self_play, league or alphazero, "
            "or one against a fixed player of a game"
        )
    return make_base_game(config)


def _against_fixed(config: Config) -> Versus | None:
    """Return the environment of a configuration if it is a game against a fixed player."""
    env = None if config.of_games else resolve_env(config.env, config.env_params)[0]
    return env if isinstance(env, Versus) else None


def game_table(config: Config) -> dict[str, Any]:
    """Return `GAME_FIELDS` of a configuration; those of an environment that is a game against a fixed player name the game.

    A rule that changes nothing is "none", as in `RULES`. A rule of None is left to the other players: matches leave the wrappers
    of such an environment out, and a `time_limit` where it counts only the agent's own moves (see `make_base_game`).
    """
    table = config_table(config)
    env = _against_fixed(config)
    if env is not None:
        of_env, of_game = (inspect.signature(type(x)).parameters for x in (env, env.env))
        env_params = {name: value for name, value in table["env_params"].items() if name in of_game or name not in of_env}
        limit = None if env.skips_turns else table["time_limit"]
        table |= {"env": env.env.name, "env_params": env_params, **dict.fromkeys(RULES), "time_limit": limit}
    return {field: RULES[field] if table[field] == USUAL_STEPS.get(field, ()) else table[field] for field in GAME_FIELDS}


def game_giver(actors: Sequence[Actor]) -> Actor:
    """Return the player whose game all of them play: the first of the agents that leave the fewest rules to others, or the first
    player without agents."""
    tables = ((actor, game_table(actor.config)) for actor in actors if actor.config is not None)
    left = [(actor, sum(table[rule] is None for rule in RULES)) for actor, table in tables]
    return min(left, key=lambda x: x[1], default=(actors[0], 0))[0]


class Played(NamedTuple):
    """Game that a player plays: `GAME_FIELDS` of its table, the game, and its parameters."""

    table: Mapping[str, Any]
    game: Game
    params: Any


def played_game(config: Config) -> Played:
    """Return the game of a configuration.

    Raises:
        ConfigError: its environment is not a game.
    """
    return Played(game_table(config), *game_of(config))


def check_one_game(name: str, config: Config, other: str, expected: Played) -> None:
    """Check that a player plays a game, too: one class with the same settings, however its configuration names it.

    Args:
        name: name of the player.
        config: configuration of the player.
        other: name of the player that plays the expected game.
        expected: its game.

    Raises:
        ConfigError: they do not; the message names the players and what differs.
    """
    table = game_table(config)
    if table == expected.table and not is_object(table["env"]):
        return  # it need not be made
    played = Played(table, *game_of(config))
    env, params = played.table["env"], (played.table["env_params"], expected.table["env_params"])
    if _classes(played.game) != _classes(expected.game):
        raise ConfigError(f"{name}: plays {env}, but {other} plays {expected.table['env']}: expected one game")
    shared = [rule for rule in RULES if None not in (played.table[rule], expected.table[rule])]
    rules = ({rule: x.table[rule] for rule in shared} for x in (played, expected))
    ours, first = (given | dict(own) for given, own in zip(rules, params, strict=True))
    our_settings, settings = _settings(played), _settings(expected)
    for field in dict.fromkeys([*ours, *first, *our_settings]):
        if field in our_settings and field in settings:
            values, differ = (our_settings[field], settings[field]), _differ(our_settings[field], settings[field])
        else:
            # A game that is named in another way has no table of such arguments.
            values = (ours.get(field, "its default"), first.get(field, "its default"))
            differ = values[0] != values[1] and (field in RULES or env == expected.table["env"])
        if differ:
            raise ConfigError(
                f"{name}: plays {env} with {field} = {shown(values[0])}, but {shown(values[1])} in {other}: expected one game"
            )


def _layers(game: Any) -> list[Any]:
    """Return a game and the games or environments that it wraps, without what `RULES` and `end_on_nan` make of it."""
    layers = []
    while isinstance(game, Environment):
        # Players with and without `end_on_nan` play by the same rules.
        if not isinstance(game, (GameRandomizeParams, GameEndOnNaN, GameStickyActions, GameActionRepeat, GameTimeLimit)):
            layers.append(game)
        game = getattr(game, "env", None)
    return layers


def _classes(game: Game) -> list[str]:
    """Return the name of a game and the paths of its classes; a class that is defined anew, as in a notebook, keeps its path."""
    return [game.name, *(f"{type(layer).__module__}:{type(layer).__qualname__}" for layer in _layers(game))]


def _settings(played: Played) -> dict[str, Any]:
    """Return the arguments of a game's constructor that it keeps under their names, or these with an underscore, and its
    parameters."""
    found: dict[str, Any] = {}
    for layer in _layers(played.game):
        names = {x: kept for x in inspect.signature(type(layer)).parameters for kept in (x, f"_{x}") if hasattr(layer, kept)}
        found = {name: getattr(layer, kept) for name, kept in names.items() if name != "env"} | found
    if dataclasses.is_dataclass(played.params):
        found |= {field.name: getattr(played.params, field.name) for field in dataclasses.fields(played.params)}
    return found


NUMBERS = (bool, int, float, np.ndarray, np.generic, jax.Array)


def _numbers(x: Any) -> np.ndarray:
    """Return numbers, or those of random keys, as an array."""
    is_key = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def _differ(one: Any, other: Any) -> bool:
    """Return whether two settings are different numbers, texts, or arrays or collections of them; of others nothing is known."""
    if isinstance(one, NUMBERS) and isinstance(other, NUMBERS):
        a, b = _numbers(one), _numbers(other)
        return a.shape != b.shape or not bool(np.all((a == b) | ((a != a) & (b != b))))  # NaN is like NaN
    if isinstance(one, str) and isinstance(other, str):
        return one != other
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) != len(other) or any(map(_differ, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() != other.keys() or any(_differ(one[key], other[key]) for key in one)
    return (one is None) != (other is None)
