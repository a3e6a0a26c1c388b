"""`rljax list`: list all names with a line of description each, or describe one of them."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from inspect import Parameter, getdoc, getsourcefile
from typing import Any

import jax
import numpy as np

from rljax.cli.options import List
from rljax.core.config import ALGORITHMS, Config
from rljax.core.config_files import (
    dump_config,
    find_algorithm,
    load_config,
    preset_names,
    preset_text,
)
from rljax.core.contract import check_contract, innermost, is_known
from rljax.core.environments.environment import Environment, attribute
from rljax.core.environments.spaces import space_text
from rljax.core.errors import ConfigError, did_you_mean, how_to_install, shortened
from rljax.core.games.chance import is_random
from rljax.core.games.game import Game
from rljax.core.plain import to_plain
from rljax.envs import env_ids, game_ids, gymnax_env_ids, make_env
from rljax.envs.about import constructor_arguments, describe_env, is_probe, sentence
from rljax.envs.adapters import SUITES, Suite, suite_ids
from rljax.envs.pgx_api import pgx_ids
from rljax.envs.registry import PGX_PREFIX, is_own
from rljax.run.files.zoo import find_agent
from rljax.run.view.card import print_card
from rljax.run.view.layout import columns, say, wrap_text

LISTED: dict[str, Callable[[], Iterable[str]]] = {
    "gymnax": gymnax_env_ids,
    "pgx": lambda: [f"{PGX_PREFIX}{game_id}" for game_id in pgx_ids()],
    **{suite: partial(suite_ids, suite) for suite in SUITES},
}
"""Functions that return the ids of a library's environments, by its name."""


def list_names(options: List) -> None:
    """`rljax list`: print all names, or the details of one."""
    name = options.name
    if name is not None and name in ALGORITHMS:
        _print_fields(ALGORITHMS[name])
        return
    agent = None if name is None else find_agent(name)
    if agent is not None:
        print_card(agent, str(name))
        return
    no_algorithm: ConfigError | None = None
    if name is not None and is_own(name):
        try:
            _print_fields(find_algorithm(name))
            return
        except ConfigError as error:  # an environment, or nothing
            no_algorithm = error
    if name in preset_names():
        print(dump_config(load_config(name)), end="")
        return
    if name is None:
        print_all()
        return
    if name in LISTED:
        for env_id in LISTED[name]():
            say(env_id)
        return
    try:
        print_env(name)
    except ConfigError as error:
        if no_algorithm is not None and str(error).endswith("it has no environments"):
            raise (error if str(no_algorithm).endswith("it has no algorithms") else no_algorithm) from None
        if not str(error).startswith("unknown environment"):
            raise
        known = [*ALGORITHMS, *preset_names(), *env_ids(), *game_ids(), *gymnax_env_ids(), *LISTED]
        raise ConfigError(f"unknown name '{shortened(name)}': {did_you_mean(name, known, 'rljax list')}") from None


def _print_fields(config_class: type[Config]) -> None:
    """Print a line per field: its flag, default and description."""
    fields = dataclasses.fields(config_class)
    flags = [f"--{field.name.replace('_', '-')}" for field in fields]
    texts = [_describe_default(field.default) for field in fields]
    first, second = (max(map(len, column)) + 2 for column in (flags, texts))
    for flag, text, field in zip(flags, texts, fields, strict=True):
        print(wrap_text(field.metadata["doc"], columns(), flag.ljust(first) + text.ljust(second), " " * (first + second)))


def _describe_default(default: Any) -> str:
    if isinstance(default, Mapping):
        entries = ", ".join(f"{name} = {json.dumps(to_plain(value))}" for name, value in default.items())
        return f"{{ {entries} }}" if entries else "{}"
    return "none" if default is None else str(default)


def print_all() -> None:
    """Print all presets, algorithms and environments by group."""
    own = env_ids()
    # A library is a line here: to import one for its ids takes longer than all the rest (gymnax brings seaborn).
    groups = (
        ("presets (rljax train PRESET)", [(name, _describe_preset(name)) for name in preset_names()]),
        (
            "algorithms (rljax list ALGORITHM shows its fields)",
            [(name, sentence(getdoc(ALGORITHMS[name]) or "")) for name in sorted(ALGORITHMS)],
        ),
        ("environments (rljax list ENVIRONMENT explains one)", _describe_all(i for i in own if not is_probe(i))),
        ("games of several players", _describe_all(game_ids())),
        ("other libraries (rljax list LIBRARY lists its environments)", _describe_libraries()),
        ("probes: environments that test one thing that a learner must get right", _describe_all(filter(is_probe, own))),
    )
    for title, entries in groups:
        say(title)
        width = max(len(name) for name, _ in entries)
        for name, text in entries:
            print(_wrap_beside(f"  {name:{width}}", text))
    say('your own environments, games and algorithms are "module:Class"')


def _describe_libraries() -> list[tuple[str, str]]:
    """Return a line for each library of environments, with the command that installs it if it is not here."""
    games = ("pgx", "games", Suite("pgx", "board games, cards, 2048, MinAtar"))
    optional = [games, *((name, name, suite) for name, suite in SUITES.items())]
    missing = {name: importlib.util.find_spec(suite.package) is None for name, _, suite in optional}
    described = [(name, suite.about + f" ({how_to_install(extra)})" * missing[name]) for name, extra, suite in optional]
    return [("gymnax", "MinAtar, bsuite, classic control and more"), *described]


def _describe_all(ids: Iterable[str]) -> list[tuple[str, str]]:
    return [(env_id, describe_env(env_id)) for env_id in ids]


def print_env(env_id: str) -> None:
    """Print an environment's description, spaces, parameters with their defaults, time limit, threshold and source.

    Raises:
        ConfigError: there is no such environment, or one of the user's own is not as the contract says.
    """
    env, params = make_env(env_id)
    if not is_known(env):
        check_contract(env, params)
    inner, is_game = innermost(env), isinstance(env, Game)
    lines = [
        ("observation" + " of each player" * is_game, space_text(env.observation_space(params))),
        ("action" + " of each player" * is_game, space_text(env.action_space(params))),
    ]
    if is_game:
        lines.append(("players", _describe_players(env, params)))
    fields = {**constructor_arguments(env_id), **dict(_fields(params))}
    threshold = attribute(env, "reward_threshold", None)
    lines += [
        ("parameters", "env_params = { ... }:" if fields else "none"),
        *((f"  {name}", _describe_value(value)) for name, value in fields.items()),
        ("time limit", _describe_limit(env, params, fields.get("max_steps_in_episode"))),
        ("reward threshold", "none" if threshold is None else f"{threshold:g}; a mean return of at least this solves it"),
    ]
    if attribute(env, "best_is_random", False):
        lines.append(("best policy", "random: judge agents by sampled actions"))
    presets = [name for name in preset_names() if _preset_table(name).get("env") == env_id]
    lines += [("presets", ", ".join(presets) or "none"), ("source", getsourcefile(type(inner)) or type(inner).__module__)]
    print(_wrap_beside(f"{env_id}:", describe_env(env_id)))
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        print(_wrap_beside(f"  {name:{width}}", text))


def _describe_limit(env: Any, params: Any, limit: Any) -> str:
    inner = innermost(env)
    if limit is None:
        of_suite = ("rljax.envs.adapters.", "rljax.envs.simulators.")
        return "that of its suite, if it has one" if is_known(inner, of_suite) else "none"
    if isinstance(inner, Environment) and type(inner).is_truncated is Environment.is_truncated:
        _, state = jax.eval_shape(inner.reset_env, jax.random.key(0), params)
        if not hasattr(state, "time"):
            return "none, as the state has no time: set time_limit in the configuration"
    return f"{limit} steps (max_steps_in_episode)"


def _describe_players(game: Game, params: Any) -> str:
    turns = "all move at every step" if not game.turn_gap else "taking turns"
    teams = "" if len(set(game.teams)) == game.num_players else f", teams {list(game.teams)}"
    hidden = ", part of the state is hidden" * game.hides_state
    return f"{game.num_players}{teams}, {turns}{hidden}{', steps are random' * is_random(game, params)}"


def _fields(params: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(params):
        yield from ((field.name, getattr(params, field.name)) for field in dataclasses.fields(params))
    elif hasattr(params, "_asdict"):
        yield from params._asdict().items()


def _describe_value(value: Any) -> str:
    if value is Parameter.empty:
        return "must be given"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    shape = np.shape(value) if hasattr(value, "dtype") else ()
    if shape:
        return f"{value.dtype.name}[{','.join(map(str, shape))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _preset_table(name: str) -> dict[str, Any]:
    return tomllib.loads(preset_text(name))


def _describe_preset(name: str) -> str:
    """Return the first sentence of the comment at the top of a preset."""
    lines = []
    for line in preset_text(name).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return sentence(" ".join(lines))


def _wrap_beside(start: str, text: str) -> str:
    """Return `start` with a text beside it, wrapped to the terminal's width."""
    return wrap_text(text, columns(), f"{start}  ", " " * (len(start) + 2)) if text else start.rstrip()
