"""Configuration: frozen dataclasses that are pytrees, read from and written to TOML.

Floats that the maths uses are leaves, so they may be traced and swept with vmap; what fixes shapes or structure is static.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import math
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
import tomli_w
from flax.core import FrozenDict

from rljax.core.errors import ConfigError, did_you_mean

T = TypeVar("T")

OBJECT_PREFIX = "object:"
"""How the name of an environment or network that was given as an object is written to TOML; it is no id."""

ALGORITHMS: dict[str, type[Config]] = {}
"""Configuration class by algorithm name, filled by `algorithm`."""


def leaf(
    *,
    default: float | tuple[float, ...] | None,
    doc: str,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
) -> Any:
    """A field that is a leaf of the pytree: a number that the maths uses, which may be traced, with its allowed range."""
    return dataclasses.field(default=default, metadata={"leaf": True, "doc": doc, "ge": ge, "gt": gt, "le": le})


def static(
    *,
    default: Any,
    doc: str,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A field that fixes shapes or structure: part of the tree's structure, never traced."""
    metadata = {"leaf": False, "doc": doc, "ge": ge, "gt": gt, "le": le, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(leaf, static))
def algorithm(name: str) -> Callable[[type[T]], type[T]]:
    """Make a `Config` subclass a frozen keyword-only dataclass, a pytree, and known to TOML as `algorithm = name`."""

    def decorate(cls: type[T]) -> type[T]:
        config_class: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        config_class.algorithm = name
        checked_init = config_class.__init__

        @functools.wraps(checked_init)
        def init(self: Any, **values: Any) -> None:
            _check_known(values, config_class)
            checked_init(self, **values)

        config_class.__init__ = init
        leaves = [f.name for f in dataclasses.fields(config_class) if f.metadata.get("leaf")]
        statics = [f.name for f in dataclasses.fields(config_class) if not f.metadata.get("leaf")]

        def flatten(config: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
            children = [(jax.tree_util.GetAttrKey(n), getattr(config, n)) for n in leaves]
            return children, tuple(getattr(config, n) for n in statics)

        def unflatten(aux: tuple[Any, ...], children: Any) -> Any:
            # Not through __init__: JAX rebuilds trees with placeholders that no validation would accept.
            config = object.__new__(config_class)
            for key, value in zip((*leaves, *statics), (*children, *aux), strict=True):
                object.__setattr__(config, key, value)
            return config

        jax.tree_util.register_pytree_with_keys(config_class, flatten, unflatten)
        ALGORITHMS[name] = config_class
        return config_class

    return decorate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """What every algorithm shares: the environment, the budget, wrappers and evaluation."""

    algorithm: ClassVar[str]
    privileged_critic: ClassVar[bool] = False
    """Whether the algorithm has a critic that may see the `privileged` part of observations; others never see it."""

    of_games: ClassVar[bool] = False
    """Whether `env` is a game of several players, which the algorithm plays against itself or others."""

    env: Any = static(default="CartPole-v1", doc="environment id, or an Environment object")
    env_params: Mapping[str, Any] = static(default=FrozenDict(), doc="parameters of the environment to change")
    total_timesteps: int = static(default=500_000, doc="budget of environment steps, floored to whole iterations", gt=0)
    seed: int = static(
        default=0,
        doc="the key that `fit` and the command line start from; make_train takes its key as an argument",
        ge=0,
        le=2**32 - 1,
    )
    num_envs: int = static(default=4, doc="environments stepped in parallel", gt=0)
    gamma: float = leaf(default=0.99, doc="discount per step", ge=0, le=1)
    num_devices: int = static(default=1, doc="devices that environments and batches are split over; must divide num_envs", gt=0)

    time_limit: int | None = static(default=None, doc="truncate episodes after this many steps", gt=0)
    clip_rewards: float | None = leaf(default=None, doc="clip rewards to [-x, x] for training", gt=0)
    flatten_observations: bool = static(default=False, doc="make every observation one vector")
    normalize_observations: bool = static(
        default=False, doc="standardise observations by running statistics, clipped to [-10, 10]"
    )
    normalize_rewards: bool = static(default=False, doc="divide rewards by the running deviation of the discounted return")

    eval_every: int | None = static(default=None, doc="evaluate each time this many environment steps have been taken", gt=0)
    eval_episodes: int = static(default=32, doc="episodes per evaluation during training", gt=0)

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for f in dataclasses.fields(self):
            value = _checked(f.name, getattr(self, f.name), hints[f.name], f.metadata)
            object.__setattr__(self, f.name, value)
        if self.num_envs % self.num_devices:
            raise ConfigError(f"num_devices = {self.num_devices}: must divide num_envs = {self.num_envs}")

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps in one call of `Agent.step`."""
        raise NotImplementedError

    @property
    def num_iterations(self) -> int:
        """Iterations in the budget: `total_timesteps` is never exceeded."""
        return self.total_timesteps // self.steps_per_iteration

    def replace(self, **changes: Any) -> Self:
        """A changed copy, validated like a new one.

        Raises:
            ConfigError: an unknown field (the closest match is named) or a value that is not allowed.
        """
        return dataclasses.replace(self, **changes)


def _check_known(changes: Mapping[str, Any], config_class: type[Config]) -> None:
    known = [f.name for f in dataclasses.fields(config_class)]
    for name in changes:
        if name not in known:
            raise ConfigError(f"unknown field '{name}' of {config_class.__name__}: {did_you_mean(name, known)}")


def _checked(name: str, value: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """The value in its canonical type, or a ConfigError that names the field, the value and what is allowed."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if types.NoneType in options and (value is None or (isinstance(value, str) and value == "none")):
        return None
    kind = next(o for o in options if o is not types.NoneType)
    if typing.get_origin(kind) is tuple:
        if isinstance(value, (jax.Array, np.ndarray)) and value.ndim == 1:
            value = tuple(value)
        if not isinstance(value, (tuple, list)):
            example = '["a", "b"]' if typing.get_args(kind)[0] is str else "[1.0, 0.5]"
            raise ConfigError(f"{name} = {value!r}: expected a list, such as {example}")
        return tuple(_checked(f"{name}[{i}]", x, typing.get_args(kind)[0], metadata) for i, x in enumerate(value))
    if isinstance(value, (jax.Array, np.ndarray)) and metadata.get("leaf"):
        if isinstance(value, jax.core.Tracer) or value.ndim:
            return value  # traced or batched: there is no single number to check
        value = _plain(value)
    expected = _expected(kind, metadata, optional=types.NoneType in options)
    wrong = ConfigError(f"{name} = {' '.join(repr(value).split())}: expected {expected}")  # an array's repr has many lines
    if kind is bool:
        if not isinstance(value, bool):
            raise wrong
    elif kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise wrong
        try:
            finite = math.isfinite(value)
        except OverflowError:  # a whole number beyond every float
            finite = False
        if not finite or (kind is int and value != int(value)):
            raise wrong
        value = kind(value)
        low, above, high = metadata.get("ge"), metadata.get("gt"), metadata.get("le")
        if (low is not None and value < low) or (above is not None and value <= above) or (high is not None and value > high):
            raise wrong
    elif kind is str:
        if not isinstance(value, str) or (metadata.get("choices") and value not in metadata["choices"]):
            raise wrong
    elif typing.get_origin(kind) is Mapping and not isinstance(value, Mapping):
        raise wrong
    return _frozen(value)


def _expected(kind: Any, metadata: Mapping[str, Any], optional: bool) -> str:
    if metadata.get("choices"):
        text = "one of " + ", ".join(repr(c) for c in metadata["choices"])
    else:
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
        text = names.get(kind, "a table of key = value")
        bounds = [f"{sign} {metadata[k]}" for k, sign in (("ge", ">="), ("gt", ">"), ("le", "<=")) if metadata.get(k) is not None]
        text += " " + " and ".join(bounds) if bounds else ""
    return text + (' or "none"' if optional else "")


def _frozen(value: Any) -> Any:
    """Hashable: tables become FrozenDict and lists tuples, so that a config can be static under jit."""
    if isinstance(value, Mapping):
        return FrozenDict({k: _frozen(v) for k, v in value.items()})
    return tuple(_frozen(v) for v in value) if isinstance(value, (list, tuple)) else value


def preset_names() -> list[str]:
    """The presets that ship with rljax, sorted."""
    folder = importlib.resources.files("rljax.configs")
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def load_config(preset_or_path: str | Path, **overrides: Any) -> Any:
    """Read a preset by name, or a TOML file by its path, and change fields of it.

    Returns the configuration of the algorithm that the file names (`algorithm = "ppo"`); its keys are the field names.

    Raises:
        ConfigError: unknown preset, algorithm or field (the closest match is named), bad value, or a TOML syntax error
            (with file, line and column).
    """
    text, source = _read(str(preset_or_path))
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: {error}") from None
    if "algorithm" not in table:
        raise ConfigError(f"{source}: no 'algorithm' key, expected for example algorithm = \"ppo\"")
    name = table.pop("algorithm")
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise ConfigError(f"{source}: algorithm = {name!r}: {did_you_mean(str(name), ALGORITHMS)}")
    config_class = ALGORITHMS[name]
    try:
        return config_class(**{**table, **overrides})
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _read(source: str) -> tuple[str, str]:
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        try:
            return path.read_text(encoding="utf-8"), source
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a UTF-8 text file"
            raise ConfigError(f"{source}: cannot read the configuration: {reason}") from None
    if source not in preset_names():
        raise ConfigError(f"unknown preset '{source}': {did_you_mean(source, preset_names())} (a file's name ends in .toml)")
    return (importlib.resources.files("rljax.configs") / f"{source}.toml").read_text(encoding="utf-8"), source


def dump_config(config: Config) -> str:
    """The configuration as TOML, every field written out; `load_config` reads it back to an equal one.

    TOML has no null, so None is written as "none". Objects (an environment, a network module) are written by name.
    """
    return tomli_w.dumps(config_table(config))


def config_table(config: Config) -> dict[str, Any]:
    """The algorithm and every field of a configuration as plain values, as TOML and JSON hold them."""
    fields = {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return {"algorithm": config.algorithm, **fields}


def _plain(value: Any) -> Any:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)) and jnp.ndim(value) == 0:
        # f32 prints with digits it does not have (0.0003 as 0.00030000000142492354): write the shortest that reads back.
        return float(str(np.asarray(value))) if jnp.issubdtype(value.dtype, jnp.floating) else np.asarray(value).item()
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (jax.Array, np.ndarray)):
        raise ConfigError(f"a configuration with a batch of values (shape {value.shape}) cannot be written: one file is one run")
    return f"{OBJECT_PREFIX}{type(value).__qualname__}"
