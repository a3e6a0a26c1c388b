"""State fields that say what they are: sharding and forks read a field's role, never its name.

A state has the fields of `State`, and those of its algorithm. A field without a role (a count, say) is whole on every device,
and a fork keeps it where it fits; so it does with parameters and optimiser.

    class MyState(State, kw_only=True):
        target_params: Any = copy_of_params(lambda params, _: params)
        replay: Any = buffer()
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct


class Role(enum.Enum):
    """Content of a field of a state."""

    PARAMETERS = enum.auto()
    """The trained parameters."""
    OPTIMIZER = enum.auto()
    """The optimiser's state."""
    PER_ENVIRONMENT = enum.auto()
    """Episodes under way, leaves `[N, ...]`: split over devices; a fork keeps all such fields or none."""
    BUFFER = enum.auto()
    """Steps that were taken, leaves `[capacity, N, ...]`: split over devices. A fork keeps all such fields or none, and none
    without the episodes under way, since no step may seem to follow one of another environment."""
    BUFFER_CURSOR = enum.auto()
    """A place in the buffer: a fork keeps it with the buffer only; without it the buffer can stay."""
    COPY = enum.auto()
    """A copy of the parameters, or an average of past ones: a fork that cannot keep it makes it of the parameters."""
    STATISTICS = enum.auto()
    """Running statistics of what was seen."""
    KEY = enum.auto()
    """A random key: a fork with another seed has that seed's."""
    OTHER = enum.auto()
    """Anything else."""


Count = Callable[[np.ndarray], np.ndarray]
"""Function that turns iterations of one run, i64 `[...]`, into those of another run at the same steps, rounded down."""


class FieldRole(NamedTuple):
    """The role of a field.

    Attributes:
        role: content of the field.
        depends_on: fields of the configuration whose change makes a fork begin it anew; others may not fit in shape.
        copy: for a `COPY`, `copy(state, value) -> value`, which makes the field from the parameters of a state (and their
            statistics); `value` has its shapes.
        recount: for a field that holds numbers of iterations, `recount(value, count) -> value`, which replaces them by
            `count(numbers)`, i64 arrays of NumPy: a fork with other steps per iteration counts in its own iterations. Leaves may
            have a leading axis of seeds.
        shares: for a `PER_ENVIRONMENT`, whether the field is a tuple with an entry for each of K equal shares of the
            environments, whose leaves are `[N / K, ...]`.
    """

    role: Role
    depends_on: tuple[str, ...] = ()
    copy: Callable[[Any, Any], Any] | None = None
    recount: Callable[[Any, Count], Any] | None = None
    shares: bool = False


ENVIRONMENT_CONFIG = ("env", "env_params")
"""Fields of a configuration that say which environment it is."""

REWARD_CONFIG = ("action_repeat", "clip_rewards", "scale_rewards")
"""Fields of a configuration that say which rewards training sees."""

STEP_CONFIG = (*ENVIRONMENT_CONFIG, *REWARD_CONFIG, "randomize", "sticky_actions")
"""Fields of a configuration that say what follows an action: steps that were taken with others cannot be learned from."""

_KEY = "rljax_role"


def _field(role: FieldRole, **options: Any) -> Any:
    return struct.field(metadata={_KEY: role}, **options)


def per_environment(depends_on: tuple[str, ...] = (), shares: bool = False) -> Any:
    """Define a field of episodes under way, leaves `[N, ...]`; with `shares`, a tuple of K entries whose leaves are
    `[N / K, ...]`.
    """
    return _field(FieldRole(Role.PER_ENVIRONMENT, (*ENVIRONMENT_CONFIG, *depends_on), shares=shares))


def buffer(depends_on: tuple[str, ...] = (), **options: Any) -> Any:
    """Define a field of steps taken, leaves `[capacity, N, ...]`; `options` are those of `struct.field`."""
    return _field(FieldRole(Role.BUFFER, (*STEP_CONFIG, *depends_on)), **options)


def buffer_cursor(depends_on: tuple[str, ...] = ()) -> Any:
    """Define a field that points into the buffer."""
    return _field(FieldRole(Role.BUFFER_CURSOR, (*STEP_CONFIG, *depends_on)))


def copy_of_params(copy: Callable[[Any, Any], Any]) -> Any:
    """Define a copy of the parameters; `copy(params, value) -> value` makes it of them."""
    return copy_of_state(lambda state, value: copy(state.params, value))


def copy_of_state(
    copy: Callable[[Any, Any], Any], depends_on: tuple[str, ...] = (), recount: Callable[[Any, Count], Any] | None = None
) -> Any:
    """Define a copy of the parameters together with what belongs to them, such as the statistics that normalise observations;
    `copy(state, value) -> value` makes it of a state. The other arguments are those of `FieldRole`.
    """
    return _field(FieldRole(Role.COPY, depends_on, copy, recount))


def statistics(depends_on: tuple[str, ...] = ()) -> Any:
    """Define a field of running statistics."""
    return _field(FieldRole(Role.STATISTICS, depends_on))


def random_key() -> Any:
    """Define a random key."""
    return _field(FieldRole(Role.KEY))


def optimizer_state() -> Any:
    """Define the state of an optimiser."""
    return _field(FieldRole(Role.OPTIMIZER))


class State(struct.PyTreeNode, kw_only=True):
    """Fields of every algorithm's state: the whole truth about a run.

    Attributes:
        params: the trained parameters.
        average_params: their moving average, which acts in their place outside training; None without `average_decay`.
        opt_state: the optimiser's state.
        env_state: states of the N environments or games, `[N, ...]`.
        obs: observations of these states, `[N, ...]`.
        key: random key of training.
        eval_key: random key of evaluations during training.
        iteration: number of iterations so far, i32 [].
    """

    params: Any = _field(FieldRole(Role.PARAMETERS))
    average_params: Any = _field(FieldRole(Role.COPY, copy=lambda state, _: state.params), default=None)
    opt_state: Any = optimizer_state()
    env_state: Any = per_environment()
    obs: Any = per_environment()
    key: jax.Array = random_key()
    eval_key: jax.Array = random_key()
    iteration: jax.Array


def roles_of(state: Any) -> dict[str, FieldRole]:
    """The role of each field of a state, by name."""
    return {field.name: field.metadata.get(_KEY, FieldRole(Role.OTHER)) for field in dataclasses.fields(state)}


def fields_to_reset(
    state: Any, unfit: set[str], there: Mapping[str, Any], here: Mapping[str, Any], same_seed: bool
) -> tuple[set[str], set[str]]:
    """The fields that a fork does not take over: `(reset, reseeded)`.

    Args:
        state: state of the new run.
        unfit: fields whose saved arrays do not fit it.
        there: every field of the saved configuration, by name.
        here: every field of the new one.
        same_seed: whether the seeds of both are the same.

    Returns:
        Names of the fields to begin anew, and of the random keys to take from the new seed.
    """
    roles = {name: role for name, role in roles_of(state).items() if getattr(state, name) is not None}
    reset = set(unfit)
    reset |= {name for name, role in roles.items() if any(there.get(x) != here.get(x) for x in role.depends_on)}
    of = {role: {name for name, field in roles.items() if field.role is role} for role in Role}
    if reset & of[Role.PER_ENVIRONMENT]:
        reset |= of[Role.PER_ENVIRONMENT] | of[Role.BUFFER]
    if reset & of[Role.BUFFER]:
        reset |= of[Role.BUFFER] | of[Role.BUFFER_CURSOR]
    return reset, set() if same_seed else of[Role.KEY]
