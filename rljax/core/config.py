"""Configuration: frozen dataclasses that are pytrees, read from and written to TOML.

Floats that enter the computation are leaves, so they may be traced and swept with vmap. Fields that fix shapes or structure are
static.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.resources
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import jax
import numpy as np
from flax.core import FrozenDict

from rljax.algorithms import MODULES
from rljax.core.errors import ConfigError, did_you_mean, shortened, shown
from rljax.core.own import path_of
from rljax.core.plain import freeze, is_real, to_plain
from rljax.moved import moved_names

T = TypeVar("T")


NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
"""An algorithm's name, which is also that of the folders of its runs."""

MAX_COUNT = 2**31 - 1
"""Largest count: compiled programs count in 32 bits."""

MAX_STEPS = 2**53
"""Largest number of environment steps: they are counted on the host, and every JSON reader knows whole numbers up to here."""


MAX_FLOAT = float(np.finfo(np.float32).max)
"""Largest float: a larger number is infinite in a compiled program."""

MIN_DIVISOR = 1e-30
"""Smallest float of a field that a program divides by, or takes the logarithm of: smaller ones may count as 0 there."""


class Algorithms(MutableMapping[str, Any]):
    """Configuration class by algorithm name. The modules of those that come with rljax are imported when they are asked for."""

    def __init__(self) -> None:
        self._modules = dict(MODULES)
        self._classes: dict[str, type[Config]] = {}

    def __getitem__(self, name: str) -> type[Config]:
        if name in self._modules:  # Also where the class is there: its module may not be done, in another thread.
            importlib.import_module(self._modules[name])
        return self._classes[name]

    def __setitem__(self, name: str, config_class: type[Config]) -> None:
        if name in self._modules and not config_class.__module__.startswith(self._modules[name]):
            importlib.import_module(self._modules[name])  # It would replace this class when it is imported.
        self._classes[name] = config_class

    def __delitem__(self, name: str) -> None:
        self[name]  # Its module might be imported later, and bring it back.
        self._modules.pop(name, None)
        del self._classes[name]

    def __contains__(self, name: object) -> bool:
        return name in self._modules or name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._modules, *self._classes)))

    def __len__(self) -> int:
        return len({*self._modules, *self._classes})

    def __repr__(self) -> str:
        return f"Algorithms({list(self)})"


ALGORITHMS = Algorithms()
"""Configuration class by algorithm name; `algorithm` adds to it."""


def leaf(
    *,
    default: float | tuple[float, ...] | None,
    doc: str,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Any:
    """Declare a field that is a leaf of the pytree: a number in the computation, which may be traced, swept with vmap, and tuned.

    Args:
        default: value where none is given; None switches off what the field is for, and then its type is `float | None`.
        doc: what `rljax list ALGORITHM` says of the field.
        ge: smallest value.
        gt: number below every value.
        le: largest value.
        lt: number above every value.

    A configuration with another value raises a ConfigError, which names the field, the value and what is allowed.
    """
    return dataclasses.field(default=default, metadata={"leaf": True, "doc": doc, "ge": ge, "gt": gt, "le": le, "lt": lt})


def static(
    *,
    default: Any,
    doc: str,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    choices: tuple[str, ...] | None = None,
    steps: bool = False,
    runs: bool = False,
) -> Any:
    """Declare a field that fixes shapes or structure: part of the tree's structure, never traced.

    Args:
        default: value where none is given.
        doc: what `rljax list ALGORITHM` says of the field.
        ge: smallest value.
        gt: number below every value.
        le: largest value; without one, a whole number is at most `MAX_STEPS` if it counts environment steps, else `MAX_COUNT`.
        choices: the allowed strings.
        steps: whether the field counts environment steps.
        runs: whether it names folders of runs, and so may name earlier phases in a run of several phases.

    A configuration with another value raises a ConfigError, which names the field, the value and what is allowed.
    """
    metadata = {"leaf": False, "doc": doc, "ge": ge, "gt": gt, "le": le, "choices": choices, "steps": steps, "runs": runs}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(leaf, static))
def algorithm(name: str) -> Callable[[type[T]], type[T]]:
    """Make a `Config` subclass a frozen keyword-only dataclass and a pytree, and register it as `algorithm = name` in TOML.

    Its fields are those of `Config`, and those that it declares with `leaf` and `static`; the annotation is the type that is
    checked: `bool`, `int`, `float`, `str`, a tuple of one of these, a `Mapping`, or `Any`. `register_agent` says what it trains.

    Args:
        name: short name in messages, folders and TOML, of letters, digits, `_` and `-`. In files, commands and run folders an
            algorithm of yours is "module:Class", so that other processes find it. A name of one that comes with rljax means yours
            from then on, also in the presets and runs of that name that this process reads.

    Raises:
        ConfigError: the name is not allowed, or a field is declared by neither `leaf` nor `static`; and, when a configuration is
            made, for an unknown field or a value that is not allowed.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(f"@algorithm({shown(name)}): expected a name of letters, digits, _ and -, as folders of runs have it")

    def decorate(cls: type[T]) -> type[T]:
        config_class: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        for field in dataclasses.fields(config_class):
            if "leaf" not in field.metadata:
                raise ConfigError(
                    f"{cls.__name__}.{field.name}: expected a field declared by leaf or static, such as {field.name}: int = "
                    'static(default=0, doc="what it is")'
                )
        config_class.algorithm = name
        checked_init = config_class.__init__

        @functools.wraps(checked_init)
        def init(self: Any, /, **values: Any) -> None:
            check_known(values, config_class)
            checked_init(self, **values)

        config_class.__init__ = init
        leaves = [f.name for f in dataclasses.fields(config_class) if f.metadata.get("leaf")]
        statics = [f.name for f in dataclasses.fields(config_class) if not f.metadata.get("leaf")]

        def flatten(config: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
            children = [(jax.tree_util.GetAttrKey(n), getattr(config, n)) for n in leaves]
            return children, tuple(getattr(config, n) for n in statics)

        def unflatten(aux: tuple[Any, ...], children: Any) -> Any:
            # Bypass __init__: JAX rebuilds trees with placeholders that would not pass validation.
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
    """Fields that every algorithm shares: the environment, the budget, wrappers and evaluation.

    An algorithm of your own is a subclass under `algorithm`, with fields of its own by `leaf` and `static`, which defines
    `steps_per_iteration`.
    """

    algorithm: ClassVar[str]
    privileged_critic: ClassVar[bool] = False
    """True if the algorithm has a critic that may see the `privileged` part of observations; others never see it."""

    of_games: ClassVar[bool] = False
    """True if `env` is a game of several players, which the algorithm plays against itself or others."""

    env: Any = static(default="CartPole-v1", doc="environment id, or an Environment object")
    env_params: Mapping[str, Any] = static(default=FrozenDict(), doc="environment parameters to change from their defaults")
    total_timesteps: int = static(
        default=500_000, doc="budget of environment steps, rounded down to whole iterations", gt=0, steps=True
    )
    seed: int = static(
        default=0,
        doc="random seed of `fit` and the command line; make_train takes a key as its argument",
        ge=0,
        le=2**32 - 1,
    )
    num_envs: int = static(default=4, doc="number of environments stepped in parallel", gt=0)
    gamma: float = leaf(default=0.99, doc="discount factor per step", ge=0, le=1)
    num_devices: int = static(
        default=1, doc="number of devices to split environments and batches over; must divide num_envs", gt=0
    )

    time_limit: int | None = static(default=None, doc="truncate episodes after this many steps", gt=0)
    clip_rewards: float | None = leaf(default=None, doc="clip rewards to [-x, x] for training", gt=0)
    scale_rewards: float | None = leaf(default=None, doc="multiply rewards by this for training, before they are clipped", gt=0)
    action_repeat: int | None = static(
        default=None, doc="take each action this many times and add up the rewards; steps and time limits count actions", gt=0
    )
    sticky_actions: float | None = leaf(
        default=None, doc="probability that an action is replaced by the one before", ge=0, le=0.999
    )
    frame_stack: int | None = static(
        default=None, doc="observe this many observations at once, joined along their last axis", gt=0, le=1_000
    )
    randomize: Mapping[str, Any] = static(
        default=FrozenDict(), doc="ranges of environment parameters, { mass = [0.5, 2.0] }, that are drawn for each episode"
    )
    end_on_nan: bool = static(default=False, doc="end an episode where the simulation returns a NaN or an infinity")
    flatten_observations: bool = static(default=False, doc="flatten every observation into one vector")
    normalize_observations: bool = static(
        default=False, doc="standardise observations with running statistics and clip them to [-10, 10]"
    )
    normalize_rewards: bool = static(
        default=False,
        doc="divide rewards by the running standard deviation of the discounted return, and clip them to [-10, 10]",
    )

    reset: str = static(
        default="auto",
        doc="how the first states of episodes are made: each environment its own at every step, a pool for a rollout, or "
        "a few at every step (optimistic); auto: each if that is cheap",
        choices=("auto", "each", "pool", "optimistic"),
    )
    reset_states: int | None = static(
        default=None,
        doc="number of fresh states of a pool, or of every step if optimistic, at most num_envs; none: one for 16 steps or "
        "environments",
        gt=0,
    )

    average_decay: float | None = leaf(
        default=None,
        doc="decay per iteration of a moving average of the parameters, which acts outside training",
        gt=0,
        le=0.9999,
    )
    eval_every: int | None = static(
        default=None, doc="number of environment steps between evaluations; the last one is at the end", gt=0, steps=True
    )
    eval_episodes: int = static(default=32, doc="number of episodes per evaluation during training", gt=0)

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for f in dataclasses.fields(self):
            value = _validate(f.name, getattr(self, f.name), hints[f.name], f.metadata)
            object.__setattr__(self, f.name, value)
        if self.num_envs % self.num_devices:
            raise ConfigError(f"num_devices = {self.num_devices}: must divide num_envs = {self.num_envs}")
        if self.reset_states is not None and self.reset == "each":
            raise ConfigError(f"reset_states = {self.reset_states}: expected none with reset = 'each', which shares no states")
        if self.reset_states is not None and self.reset_states > self.num_envs:
            raise ConfigError(f"reset_states = {self.reset_states}: expected at most num_envs = {self.num_envs}")

    @property
    def steps_per_iteration(self) -> int:
        """Number of environment steps in one call of `Agent.step`."""
        raise ConfigError(
            f"{type(self).__name__} defines no steps_per_iteration, the number of environment steps in one call of Agent.step: "
            "expected a property, such as num_envs * num_steps"
        )

    @property
    def steps_per_rollout(self) -> int:
        """Number of steps of each environment between two updates, an iteration unless an algorithm says otherwise."""
        return self.steps_per_iteration // self.num_envs

    @property
    def rows_before_learning(self) -> int:
        """Number of steps per environment in the replay buffer before the first update; 0 without a buffer."""
        return 0

    @property
    def value_names(self) -> tuple[str, ...]:
        """Names of the value heads in the order of the network's outputs, which the shapes of parameters do not tell."""
        return ()

    @property
    def num_iterations(self) -> int:
        """Number of iterations in the budget; `total_timesteps` is never exceeded."""
        return self.total_timesteps // self.steps_per_iteration

    def replace(self, /, **changes: Any) -> Self:
        """Return a changed copy, validated like a new configuration.

        Raises:
            ConfigError: an unknown field (the closest match is named) or a value that is not allowed.
        """
        return dataclasses.replace(self, **changes)


def check_known(names: Iterable[str], config_class: type[Config]) -> None:
    """Check that names are fields of a configuration.

    Raises:
        ConfigError: one is not; the closest field is named.
    """
    known = [f.name for f in dataclasses.fields(config_class)]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, f"rljax list {algorithm_path(config_class)}")
            raise ConfigError(f"unknown field '{shortened(name)}' of {config_class.__name__}: {hint}")


_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def _validate(name: str, value: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """Return the value in its canonical type.

    Raises:
        ConfigError: the value is not allowed; the message names the field, the value and what is allowed.
    """
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if types.NoneType in options and (value is None or (isinstance(value, str) and value == "none")):
        return None
    kind = next(o for o in options if o is not types.NoneType)
    if typing.get_origin(kind) is tuple:
        if isinstance(value, (jax.Array, np.ndarray)) and value.ndim == 1:
            value = tuple(value)
        if not isinstance(value, (tuple, list)):
            example = '["a", "b"]' if typing.get_args(kind)[0] is str else "[1.0, 0.5]"
            raise ConfigError(f"{name} = {shown(value)}: expected a list, such as {example}")
        return tuple(_validate(f"{name}[{i}]", x, typing.get_args(kind)[0], metadata) for i, x in enumerate(value))
    if isinstance(value, (jax.Array, np.ndarray)) and metadata.get("leaf") and is_real(value.dtype):
        if isinstance(value, jax.core.Tracer):
            return value  # there is no number to check
        if value.ndim:
            numbers = np.asarray(value)
            for extreme in (numbers.min(), numbers.max()) if numbers.size else ():  # a NaN is both
                _validate(name, to_plain(extreme), hint, metadata)
            return value
        value = to_plain(value)
    expected = _describe_allowed(kind, metadata, optional=types.NoneType in options)
    if callable(value) and metadata.get("leaf"):
        expected += '; for a schedule of your own see "A schedule of your own" in the guide "Own the loop"'
    refusal = ConfigError(f"{name} = {shown(value)}: expected {expected}")
    if kind is bool:
        if not isinstance(value, bool):
            raise refusal
    elif kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise refusal
        try:
            finite = math.isfinite(value)
        except OverflowError:  # a whole number beyond every float
            finite = False
        if not finite or (kind is int and value != int(value)):
            raise refusal
        value = kind(value)
        low, above, high, below = (metadata.get(bound) for bound in _SIGNS)
        if (low is not None and value < low) or (above is not None and value <= above) or (high is not None and value > high):
            raise refusal
        if below is not None and value >= below:
            raise refusal
        most = MAX_FLOAT if kind is float else MAX_STEPS if metadata.get("steps") else MAX_COUNT
        if high is None and abs(value) > most:
            bound = {**metadata, "le": most}
            raise ConfigError(f"{name} = {shown(value)}: expected {_describe_allowed(kind, bound, types.NoneType in options)}")
    elif kind is str:
        if not isinstance(value, str) or (metadata.get("choices") and value not in metadata["choices"]):
            raise refusal
    elif typing.get_origin(kind) is Mapping and not isinstance(value, Mapping):
        raise refusal
    return freeze(name, value)


def _describe_allowed(kind: Any, metadata: Mapping[str, Any], optional: bool) -> str:
    if metadata.get("choices"):
        text = "one of " + ", ".join(repr(c) for c in metadata["choices"])
    else:
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
        text = names.get(kind, "a table of key = value")
        bounds = [f"{sign} {metadata[bound]}" for bound, sign in _SIGNS.items() if metadata.get(bound) is not None]
        text += " " + " and ".join(bounds) if bounds else ""
    return text + (' or "none"' if optional else "")


def algorithm_path(config_class: type[Config]) -> str:
    """Return how files and commands name an algorithm: one that comes with rljax by its name, one of the user's own by
    "module:Class", or by its name alone where no other process can import it."""
    name = config_class.algorithm
    ships = name in MODULES and config_class.__module__.startswith(MODULES[name])
    return name if ships else path_of(config_class) or name


def env_name(config: Config) -> str:
    """Return the environment's name for messages: its id, or the class of the object. None of the object's own code runs."""
    return config.env if isinstance(config.env, str) else type(config.env).__qualname__


__getattr__ = moved_names(__name__)
