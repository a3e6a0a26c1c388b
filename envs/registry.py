"""Environments by id: those of rljax, those that a user registers, all of gymnax, and those of other suites."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.contract import attribute, name_of
from rljax.core.environments.environment import Environment, field_names, outside_bounds, with_fields
from rljax.core.environments.spaces import as_space
from rljax.core.environments.wrappers import Wrapper
from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.core.own import is_path, path_of
from rljax.core.plain import OBJECT_PREFIX, freeze
from rljax.envs import adapters
from rljax.envs.acrobot import Acrobot
from rljax.envs.cartpole import CartPole
from rljax.envs.command import Command
from rljax.envs.composite import Composite
from rljax.envs.connect_four import ConnectFour
from rljax.envs.draft import Draft
from rljax.envs.gridworld import GridWorld, GridWorldPixels
from rljax.envs.habit_rps import HabitRPS
from rljax.envs.heavy_box import HeavyBox
from rljax.envs.hidden_bit import HiddenBit
from rljax.envs.kuhn_poker import KuhnPoker
from rljax.envs.leduc_poker import LeducPoker
from rljax.envs.lunar_lander import LunarLander
from rljax.envs.lunar_lander_continuous import LunarLanderContinuous
from rljax.envs.matrix_game import BIASED_RPS, RPS, MatrixGame
from rljax.envs.maze import Maze
from rljax.envs.microrts.against_bots import MicroRTSBots
from rljax.envs.microrts.game import MicroRTS
from rljax.envs.mountain_car import MountainCar
from rljax.envs.mountain_car_continuous import MountainCarContinuous
from rljax.envs.number_duel import NumberDuel
from rljax.envs.own import how_to_name, import_env, object_error
from rljax.envs.pendulum import Pendulum
from rljax.envs.pgx_api import load_pgx
from rljax.envs.pgx_env import PgxEnv
from rljax.envs.pgx_game import PgxGame
from rljax.envs.probes import (
    ActionReward,
    BoxTarget,
    ConstantReward,
    DelayedReward,
    MaskedBandit,
    MultiDiscreteMatch,
    ObservationReward,
    TruncationProbe,
)
from rljax.envs.race import Race
from rljax.envs.scouting import Scouting
from rljax.envs.sparse_gridworld import SparseGridWorld
from rljax.envs.target_pick import TargetPick
from rljax.envs.territory import Territory
from rljax.envs.tic_tac_toe import TicTacToe
from rljax.envs.tmaze import TMaze

EnvFactory = Callable[..., Any]

GYMNAX_PREFIX, PGX_PREFIX, RACE_PREFIX = "gymnax:", "pgx:", "race:"
_REQUIRED = ("reset_env", "step_env", "is_truncated", "observation_space", "action_space", "default_params", "name")

_factories: dict[str, EnvFactory] = {
    "CartPole-v1": CartPole,
    "Pendulum-v1": Pendulum,
    "Acrobot-v1": Acrobot,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "LunarLander-v3": LunarLander,
    "LunarLanderContinuous-v3": LunarLanderContinuous,
    "GridWorld-v0": GridWorld,
    "MicroRTSBots-v0": MicroRTSBots,
    "GridWorldPixels-v0": GridWorldPixels,
    "SparseGridWorld-v0": SparseGridWorld,
    "Maze-v0": Maze,
    "TMaze-v0": TMaze,
    "TargetPick-v0": TargetPick,
    "Composite-v0": Composite,
    "HiddenBit-v0": HiddenBit,
    "Command-v0": Command,
    "Scouting-v0": Scouting,
    "ConstantReward-v0": ConstantReward,
    "ObservationReward-v0": ObservationReward,
    "DelayedReward-v0": DelayedReward,
    "ActionReward-v0": ActionReward,
    "TruncationProbe-v0": TruncationProbe,
    "MaskedBandit-v0": MaskedBandit,
    "MultiDiscreteMatch-v0": MultiDiscreteMatch,
    "BoxTarget-v0": BoxTarget,
}

_games: dict[str, EnvFactory] = {
    "BiasedRPS-v0": functools.partial(MatrixGame, BIASED_RPS, "BiasedRPS-v0"),
    "RPS-v0": functools.partial(MatrixGame, RPS, "RPS-v0"),
    "KuhnPoker-v0": KuhnPoker,
    "LeducPoker-v0": LeducPoker,
    "TicTacToe-v0": TicTacToe,
    "ConnectFour-v0": ConnectFour,
    "NumberDuel-v0": NumberDuel,
    "Territory-v0": Territory,
    "HeavyBox-v0": HeavyBox,
    "Draft-v0": Draft,
    "HabitRPS-v0": HabitRPS,
    "MicroRTS-v0": MicroRTS,
}


_SHIPPED = frozenset((*_factories, *_games))
"""Ids that every process knows."""


def env_ids() -> list[str]:
    """Return the ids of rljax's environments and of those added with `register_env`, in the order they were added."""
    return list(_factories)


def game_ids() -> list[str]:
    """Return the ids of rljax's games of several players; pgx's games are made by "pgx:ID"."""
    return list(_games)


def gymnax_env_ids() -> list[str]:
    """Return the ids of gymnax's environments. This imports gymnax, which takes over a second the first time."""
    import gymnax

    return list(gymnax.registered_envs)


def register_env(env_id: str, factory: EnvFactory) -> None:
    """Register an id, so that `make_env(env_id)` and `env = "env_id"` in a configuration build `factory(**arguments)`.

    Args:
        env_id: a new id. It may be one of gymnax's, whose environment then remains available as "gymnax:ID".
        factory: an Environment class, or any callable that returns an environment. Its named arguments can be given
            like parameters: `make_env(env_id, size=5)`.

    Raises:
        ConfigError: the id is taken or not allowed, or the factory cannot be called.
    """
    if not isinstance(env_id, str) or not env_id or env_id.startswith(GYMNAX_PREFIX):
        raise ConfigError(f"register_env: the id {shown(env_id)} is not a non-empty string that does not start with 'gymnax:'")
    if not callable(factory):
        raise ConfigError(f"register_env('{env_id}'): the factory {shown(factory)} is not a callable that returns an environment")
    taken = _factories.get(env_id) or _games.get(env_id)
    if taken is not None:
        raise ConfigError(f"register_env('{env_id}'): this id is taken by {_label(taken)}; choose another id")
    _factories[env_id] = factory


def unknown_to_commands(env: Any) -> str | None:
    """Return advice on how to name an environment that commands cannot find (an object, or one registered here), else None."""
    if not isinstance(env, str):
        return how_to_name(path_of(type(env)))
    return None if env in _SHIPPED or env not in _factories else how_to_name(path_of(_factories[env]))


def make_env(env_id: str, /, **params: Any) -> tuple[Any, Any]:
    """Build an environment by id; return `(env, env_params)`, like `gymnax.make`.

    Args:
        env_id: one of `env_ids()`, `game_ids()` or `gymnax_env_ids()`, "pgx:ID", "SUITE:ID" for a suite of
            `rljax.envs.adapters.SUITES`, "race:ID" (see `rljax.envs.race.Race`), or "package.module:Class", a class of your own.
            If both rljax and gymnax have an id, rljax's environment is built; "gymnax:ID" builds gymnax's.
        params: changes to fields of `env.default_params`, and arguments of the constructor that fix shapes (`size` of
            GridWorld).

    Raises:
        ConfigError: there is no such id or parameter (the closest match is named), or a value has the wrong type.
    """
    return resolve_env(env_id, params)


def resolve_env(env: Any, params: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
    """Do `make_env` for an id or an environment object; return `(env, env_params)`.

    Raises:
        ConfigError: as for `make_env`, or `env` is neither an id nor an environment.
    """
    params = dict(params or {})
    constructor: dict[str, Any] = {}
    if isinstance(env, str):
        env, params, constructor = _construct(env, params)
    elif isinstance(env, type):
        raise ConfigError(f"env: {env.__name__} is a class; give an environment made from it: {env.__name__}()")
    elif type(env).__module__.startswith("pgx."):
        env = _pgx_class(env)(env)
    elif not isinstance(env, Environment):
        env = adapters.adapt(env, params) or env
    # Look at the class, too: a property that raises is not missing.
    missing = [name for name in _REQUIRED if not hasattr(type(env), name) and not hasattr(env, name)]
    if missing:
        raise ConfigError(f"env: {shown(env)} is neither an environment id nor an environment: it has no {', '.join(missing)}")
    env_params = _replace_fields(name_of(env), attribute(env, "default_params"), params, also=constructor)
    return _with_float_reward(env, env_params), env_params


class FloatReward(Wrapper):
    """Convert the reward to f32 []; a few environments of gymnax return integers."""

    def step_env(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, jax.Array, jax.Array, dict[str, Any]]:
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return obs, state, jnp.asarray(reward, jnp.float32), terminated, info


def _with_float_reward(env: Any, params: Any) -> Any:
    if not type(env).__module__.startswith("gymnax."):
        return env
    key = jax.eval_shape(lambda: jax.random.key(0))
    _, state = jax.eval_shape(env.reset_env, key, params)
    action = jax.eval_shape(as_space(env.action_space(params)).sample, key)
    reward = jax.eval_shape(env.step_env, key, state, action, params)[2]
    return env if jnp.issubdtype(reward.dtype, jnp.floating) else FloatReward(env)


def _construct(env_id: str, params: dict[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Build an environment with those of `params` that its constructor takes.

    Returns:
        The environment, the rest of `params`, and the defaults of all arguments of the constructor.
    """
    factory = factory_of(env_id)
    arguments: dict[str, Any] = {}
    try:
        takes = named_arguments(factory) if params else {}
        arguments = {name: _cast(env_id, name, params.pop(name), takes[name]) for name in takes.keys() & params.keys()}
        # Compute values even inside a trace: a constructor may look at the arrays that it makes (gymnax's FourRooms does).
        with jax.ensure_compile_time_eval():
            return factory(**arguments), params, takes
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"environment {env_id} cannot be built, it needs data that could not be loaded: {error}") from error
    except Exception as error:
        given = ", ".join(f"{name}={shown(value)}" for name, value in sorted(arguments.items()))
        how = f" with {given}" if given else ""
        raise ConfigError(f"environment {env_id} cannot be built{how}: {error or type(error).__name__}") from error


def factory_of(env_id: str) -> EnvFactory:
    """Return the function that builds the environment of this id.

    Raises:
        ConfigError: there is no such id; the closest match is named.
    """
    factory = _factories.get(env_id) or _games.get(env_id)
    if factory is None and env_id.startswith(PGX_PREFIX):
        factory = _pgx_factory(env_id.removeprefix(PGX_PREFIX))
    if factory is None and adapters.suite_of(env_id):
        factory = adapters.suite_factory(env_id)
    if factory is None and env_id.startswith(RACE_PREFIX):
        factory = _race_factory(env_id.removeprefix(RACE_PREFIX))
    return factory or _gymnax_factory(env_id)


def is_own(env_id: str) -> bool:
    """Return whether an id is "module:Class", and none that is registered or of a library."""
    prefixes = (GYMNAX_PREFIX, PGX_PREFIX, RACE_PREFIX, OBJECT_PREFIX)
    known = env_id in _factories or env_id in _games or env_id.startswith(prefixes) or adapters.suite_of(env_id)
    return is_path(env_id) and not known


def _pgx_factory(game_id: str) -> EnvFactory:
    """Return the function that builds an environment of pgx for one player, or a game for several."""
    return functools.partial(_pgx_class(load_pgx(game_id)), game_id)


def _pgx_class(game: Any) -> type[PgxEnv] | type[PgxGame]:
    return PgxEnv if game.num_players == 1 else PgxGame


def _race_factory(env_id: str) -> EnvFactory:
    """Return the function that builds a race in the environment of this id; it takes the arguments of both constructors."""
    inner = factory_of(env_id)

    def make(*, num_players: int = 2, turns: bool = False, relative: bool = False, **arguments: Any) -> Race:
        return Race(inner(**arguments), num_players, turns, relative)

    own = named_arguments(make)
    others = {name: default for name, default in named_arguments(inner).items() if name not in own}
    return adapters.with_arguments(make, own | others)


def _gymnax_factory(env_id: str) -> EnvFactory:
    """Return the function that builds gymnax's environment of this id, with or without the prefix, or a user's own."""
    if env_id.startswith(OBJECT_PREFIX):
        raise object_error(env_id)
    suite, _, name = env_id.partition(":")
    prefixes = {"gym": "gymnasium"} | {of.package: prefix for prefix, of in adapters.SUITES.items()}
    if name and suite in prefixes:
        raise ConfigError(
            f"unknown environment '{env_id}': there is no suite '{suite}', did you mean '{prefixes[suite]}:{name}'?"
        )
    if is_path(env_id) and not env_id.startswith(GYMNAX_PREFIX):
        return import_env(env_id)
    import gymnax

    gymnax_id = env_id.removeprefix(GYMNAX_PREFIX)
    if gymnax_id not in gymnax.registered_envs:
        if env_id.startswith(GYMNAX_PREFIX):
            meant = did_you_mean(gymnax_id, gymnax.registered_envs, "rljax list gymnax", GYMNAX_PREFIX)
            raise ConfigError(f"unknown environment '{env_id}': {meant}")
        own = '; your own is found by env = "module:Class"'
        if name and suite.isidentifier():
            suites = (*adapters.SUITES, *(prefix.rstrip(":") for prefix in (GYMNAX_PREFIX, PGX_PREFIX, RACE_PREFIX)))
            raise ConfigError(f"unknown environment '{env_id}': there is no suite '{suite}', {did_you_mean(suite, suites)}{own}")
        known = {*_factories, *_games, *gymnax.registered_envs}
        raise ConfigError(f"unknown environment '{env_id}': {did_you_mean(env_id, known, 'rljax list')}{own}")
    return functools.partial(_make_gymnax, gymnax_id)


def _make_gymnax(gymnax_id: str, **arguments: Any) -> Any:
    import gymnax

    return gymnax.make(gymnax_id, **arguments)[0]


def named_arguments(factory: EnvFactory) -> dict[str, Any]:
    """Return the arguments that can be given by name, and their defaults (`inspect.Parameter.empty` if there is none)."""
    if isinstance(factory, functools.partial) and factory.func is _make_gymnax:
        with jax.ensure_compile_time_eval():
            factory = type(factory())
    try:
        signature = inspect.signature(factory)
    except ValueError:
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: parameter.default for name, parameter in signature.parameters.items() if parameter.kind in named}


def _replace_fields(env_name: str, default: Any, changes: dict[str, Any], also: Iterable[str]) -> Any:
    """Return `default` with `changes`; `also` has further names to suggest in place of an unknown one."""
    if not changes:
        return default
    known = field_names(default)
    for name in changes:
        if name not in known:
            hint = did_you_mean(name, [*known, *also]) if known or also else "it has no parameters"
            raise ConfigError(f"environment {env_name} has no parameter '{name}': {hint}")
    cast = {name: _cast(env_name, name, value, getattr(default, name), default) for name, value in changes.items()}
    return with_fields(default, cast)


def _cast(env_name: str, name: str, value: Any, default: Any, params: Any = None) -> Any:
    """Convert `value` to the type of `default`, so that a changed parameter never changes a dtype in the environment; `params`
    are those that it is one of, None for an argument of a constructor.
    """
    expected = _describe(default)
    if isinstance(default, (bool, int, float, np.ndarray, np.number, np.bool_, jax.Array)):
        wanted = jnp.result_type(default)
        try:
            array = value if isinstance(value, jax.Array) else np.asarray(value)
            given = array.dtype
        except ValueError:
            given = np.dtype(object)
        numeric = jnp.issubdtype(given, jnp.number)
        fits = (
            (jnp.issubdtype(wanted, jnp.floating) and numeric and not jnp.issubdtype(given, jnp.complexfloating))
            or (jnp.issubdtype(wanted, jnp.integer) and jnp.issubdtype(given, jnp.integer))
            or (wanted == jnp.bool_ and given == jnp.bool_)
        )
        fits = fits and not (isinstance(array, np.ndarray) and bool((array != array).any()))  # no NaN
        if fits and array.shape == np.shape(default):
            allowed = None if isinstance(value, jax.core.Tracer) else outside_bounds(params, name, array)
            if allowed is not None:
                raise ConfigError(f"environment {env_name}: parameter {name} = {shown(value)}, expected {allowed}")
            if isinstance(array, np.ndarray) and _overflows(array, wanted):
                raise ConfigError(
                    f"environment {env_name}: parameter {name} = {shown(value)}, expected a number of {wanted.name}"
                )
            return _like(value, default)
    elif isinstance(default, tuple) and isinstance(value, list):
        return freeze(name, value)
    elif default is None or default is inspect.Parameter.empty or isinstance(value, type(default)):
        return value
    raise ConfigError(f"environment {env_name}: parameter {name} = {shown(value)}, expected {expected}")


def _overflows(array: np.ndarray, dtype: Any) -> bool:
    """Return whether a finite number of `array` is outside the range of a dtype."""
    if jnp.issubdtype(dtype, jnp.integer):
        bounds = jnp.iinfo(dtype)
        return bool(np.any((array < bounds.min) | (array > bounds.max)))
    with np.errstate(over="ignore"):
        return bool(np.any(np.isfinite(array) & ~np.isfinite(array.astype(dtype))))


def _like(value: Any, default: Any) -> Any:
    if isinstance(value, jax.Array):
        return value.astype(jnp.result_type(default))
    if isinstance(default, (bool, int, float)):
        return type(default)(value)
    return jnp.asarray(value, default.dtype)


def _describe(default: Any) -> str:
    kinds = {bool: "true or false", int: "an integer", float: "a number"}
    if type(default) in kinds:
        return f"{kinds[type(default)]} such as {default!r}"
    if hasattr(default, "dtype"):
        return f"{default.dtype.name}{list(default.shape)}"
    return type(default).__name__


def _label(factory: EnvFactory) -> str:
    return f"{factory.__module__}.{getattr(factory, '__qualname__', repr(factory))}"
