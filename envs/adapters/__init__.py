"""Environments of other libraries by id, "SUITE:ID": one file for each suite, which is imported only when an id names it.

A file of a suite has `ids()`, all names; `factory(name)`, which returns a function that builds the environment of that name, and
whose named arguments `make_env` takes like parameters (see `with_arguments`); and `adapt(env)`, which takes an environment that
the suite has made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import Environment
from rljax.core.errors import ConfigError, did_you_mean, first_line, how_to_install
from rljax.core.imports import import_quietly

PLAIN = (bool, int, float, str)
"""Types of the arguments that a configuration can give."""
NONE = type(None)


class Suite(NamedTuple):
    """A library of environments: its package and what it has. The extra of rljax that installs it has the suite's name."""

    package: str
    about: str


SUITES = {
    "brax": Suite("brax", "robots and pendulums in Brax's physics"),
    "craftax": Suite("craftax", "Craftax and Craftax-Classic"),
    "jaxmarl": Suite("jaxmarl", "games of several players: SMAX, MPE, Overcooked, Hanabi"),
    "jumanji": Suite("jumanji", "puzzles, packing, routing and games"),
    "navix": Suite("navix", "MiniGrid in JAX"),
    "playground": Suite("mujoco_playground", "DeepMind's control suite and robots in MuJoCo's physics"),
    "xland": Suite("xminigrid", "XLand and MiniGrid, as grids that are seen in part"),
    "envpool": Suite("envpool", "Atari, MuJoCo, control and more in C++, simulated outside JAX"),
    "gymnasium": Suite("gymnasium", "whatever is registered there, simulated outside JAX"),
}
"""Suites by the prefix of their ids."""


@struct.dataclass
class SuiteParams:
    """Parameters of an environment that has none of its own."""


class FromSuite(Environment):
    """Base class of adapters.

    Args:
        env: the environment that the suite has made, without wrappers and without auto-reset.
        name: its name, for messages and records.
    """

    def __init__(self, env: Any, name: str):
        self.env, self._name = env, name

    @property
    def name(self) -> str:
        return self._name

    @property
    def default_params(self) -> Any:
        return SuiteParams()


def suite_of(env_id: str) -> str | None:
    """Return the suite that an id names, or None."""
    suite, colon, _ = env_id.partition(":")
    return suite if colon and suite in SUITES else None


def suite_module(suite: str, what: str) -> ModuleType:
    """Import the file of a suite.

    Raises:
        ConfigError: the library is not installed; `what` says what needs it.
    """
    try:
        return import_quietly(f"{__name__}.{suite}")
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed"
        raise ConfigError(f"{what}: {missing}: {how_to_install(suite)}") from error
    except (ImportError, AttributeError) as error:  # as of a version that does not fit this JAX
        raise ConfigError(
            f"{what}: {SUITES[suite].package} cannot be used: {first_line(error)}: {how_to_install(suite)}"
        ) from error


def suite_factory(env_id: str) -> Callable[..., Any]:
    """Return the function that builds the environment of an id of a suite.

    Raises:
        ConfigError: the library is not installed, or has no such environment.
    """
    suite, _, name = env_id.partition(":")
    return suite_module(suite, f"env = '{env_id}'").factory(name)


def suite_ids(suite: str) -> list[str]:
    """Return the ids of a suite, prefix included.

    Raises:
        ConfigError: its library is not installed.
    """
    return [f"{suite}:{name}" for name in suite_module(suite, suite).ids()]


def adapt(env: Any, given: Mapping[str, Any] | None = None) -> Any | None:
    """Return an environment that a suite has made as one of rljax, or None if it is of no suite; `given` is `env_params`."""
    packages = {part.__module__.partition(".")[0] for part in type(env).__mro__}
    wrapper = next((name for name in _wrappers_of(env) if _resets_or_logs(name)), None)
    if packages & {suite.package for suite in SUITES.values()} and wrapper is not None:
        raise ConfigError(f"env: {wrapper} begins or ends episodes itself: give the environment inside it")
    for suite, (package, _) in SUITES.items():
        if package in packages:
            module = suite_module(suite, f"env: {type(env).__name__}")
            return module.adapt(env, given) if suite == "xland" else module.adapt(env)  # whose objects lack their size
    return None


def _wrappers_of(env: Any) -> list[str]:
    """Return the names of the classes of an object and of what is in it, the outermost first."""
    found: list[str] = []
    while env is not None and len(found) < 20:
        found.append(type(env).__name__)
        env = vars(env).get("env", vars(env).get("_env")) if hasattr(env, "__dict__") else None
    return found


def _resets_or_logs(name: str) -> bool:
    return ("AutoReset" in name and "NoAutoReset" not in name) or name in ("EpisodeWrapper", "LogWrapper")


def check_name(suite: str, name: str, known: Iterable[str]) -> None:
    """Raise ConfigError unless a suite has an environment of this name."""
    known = tuple(known)
    if name not in known:
        raise ConfigError(f"env = '{suite}:{name}': {did_you_mean(name, known, f'rljax list {suite}', f'{suite}:')}")


def with_arguments(build: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """Say which arguments a function takes by name, with their defaults: `make_env` takes those like parameters."""
    named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value) for name, value in arguments.items()]
    signed: Any = build
    signed.__signature__ = inspect.Signature(named)
    return build


def plain_arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of a function that a configuration can give, with their defaults: numbers, texts and flags, or None
    where such a one may be given.
    """
    table = {p.name: p.default for p in inspect.signature(function).parameters.values()}
    try:
        hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except Exception:  # an annotation may be any text, or name what only type checkers import
        hints = {}
    optional = [name for name, hint in hints.items() if _is_optional(hint)]
    return plain_values(table) | {name: None for name in optional if table.get(name, ...) is None}


def _is_optional(hint: Any) -> bool:
    """Return whether an annotation is that of numbers, texts or flags, or None."""
    if get_origin(hint) not in (Union, UnionType):
        return False
    kinds = get_args(hint)
    return NONE in kinds and all(kind is NONE or kind in PLAIN for kind in kinds)


def plain_values(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a table that are numbers, texts or flags."""
    return {name: value for name, value in table.items() if isinstance(value, PLAIN)}


def raw_key(key: jax.Array) -> jax.Array:
    """Return a key as data, u32 `[2]` by default: some libraries take no typed keys."""
    data = jax.random.key_data(key)
    shape = jax.eval_shape(lambda: jax.random.PRNGKey(0)).shape
    return data if data.shape == shape else jax.random.bits(key, shape, jnp.uint32)


def like(tree: Any, before: Any) -> Any:
    """Return a state with the dtypes of the state before the step: in a loop, they must not change."""
    return jax.tree.map(lambda x, first: jnp.asarray(x, jnp.result_type(first)), tree, before)
