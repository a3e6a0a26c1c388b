"""Check the contract of environments and games by tracing: shapes, dtypes and structure.

Nothing is computed, so training does it for every configuration.
"""

from __future__ import annotations

import functools
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.environments.environment import COMPONENTS, METRICS, Environment, action_mask_of, attribute
from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple, as_space, head_sizes
from rljax.core.environments.wrappers import Wrapper
from rljax.core.errors import ConfigError, RljaxWarning, first_line
from rljax.core.games.chance import outcomes_of
from rljax.core.games.game import RESULT, Game
from rljax.core.memory import check_memory, tree_bytes

FOREIGN = "gymnax."
"""Prefix of another library's modules. If its observations do not fit their spaces, rljax only warns: it cannot mend them."""

KNOWN = ("rljax.", FOREIGN)
"""Prefixes of modules whose environments and wrappers are not the user's own: the tests have played them."""

BY_HAND = {"step": "step_env", "reset": "reset_env"}
"""Functions of environments for loops written by hand, and those that rljax calls instead."""

FLAGS = ("hides_state", "step_is_random", "announces_actions", "zero_sum")
"""Attributes of games that are True or False; `zero_sum` may be None. Any text would count as true."""

MAX_LAYERS = 20
"""Number of wrappers after which no more are looked for: one may be inside itself."""

MAX_ENTRIES = 2**31 - 1
"""Largest number of entries of an array that XLA can index with an i32."""


class Subject:
    """Environment under check: its name in messages, and the faults for which it is not refused.

    Args:
        env: the environment to check.
        check: function that returns the doubts about another environment, found in the same way. The user's wrapper is not
            blamed for a fault of the library's environment inside it.
    """

    def __init__(self, env: Any, check: Callable[[Any], list[str]] | None = None):
        self.is_game = isinstance(env, Game)
        self.title = f"{'game' if self.is_game else 'environment'} {name_of(env)}"
        self.doubts: list[str] = []
        self._env, self._check = env, check

    def refuse(self, problem: str, cause: BaseException | None = None) -> NoReturn:
        raise ConfigError(f"{self.title}: {problem}") from cause

    def doubt(self, problem: str) -> None:
        """Refuse a fault in an environment or wrapper of the user's; note it as a doubt in one of another library."""
        if problem not in self._doubts_within and not (is_known(self._env) and is_foreign(self._env)):
            self.refuse(problem)
        self.doubts.append(problem)

    @functools.cached_property
    def _doubts_within(self) -> list[str]:
        """Doubts about the other library's environment inside the user's outermost wrapper."""
        if self._check is None or is_known(self._env) or not isinstance(self._env, Wrapper) or not is_foreign(self._env):
            return []
        try:
            return self._check(self._env.env)
        except Exception:  # the inner environment may take other parameters
            return []


def layers(env: Any) -> list[Any]:
    """Return an environment's layers: its wrappers, the outermost first, and the environment inside them."""
    found = [env]
    while True:
        inner = env.env if isinstance(env, Wrapper) else getattr(env, "_env", None) if _is_from(env, FOREIGN) else None
        if inner is None:
            return found
        found.append(env := inner)


def innermost(env: Any) -> Any:
    """Return the environment inside all wrappers."""
    return layers(env)[-1]


def is_known(env: Any, modules: tuple[str, ...] = KNOWN) -> bool:
    """Return whether neither an environment nor any wrapper around it is the user's own."""
    return all(_is_from(layer, modules) for layer in layers(env))


def is_foreign(env: Any) -> bool:
    """Return whether the environment inside all wrappers belongs to another library."""
    return _is_from(innermost(env), FOREIGN)


def _is_from(layer: Any, modules: str | tuple[str, ...]) -> bool:
    return type(layer).__module__.startswith(modules)


def warn_of(env: Any, doubts: Sequence[str]) -> None:
    """Issue one warning for each distinct doubt about an environment."""
    for doubt in dict.fromkeys(doubts):
        warnings.warn(f"{Subject(env).title}: {doubt}", RljaxWarning, stacklevel=3)


def name_of(env: Any) -> str:
    """Return `env.name`.

    Raises:
        ConfigError: the name is not a string, or reading it raises.
    """
    name = attribute(env, "name")
    if not isinstance(name, str):
        raise ConfigError(f"environment {type(env).__name__}: name is a {type(name).__name__}, expected a string")
    return name


def check_contract(env: Any, params: Any) -> list[str]:
    """Trace one reset and one step and compare the results with the contract; nothing is computed.

    Returns:
        Faults of an environment from another library for which it is not refused.

    Raises:
        ConfigError: one line that names the environment, the part that is wrong and what was expected.
    """
    subject = Subject(env, lambda inner: check_contract(inner, params))
    _check_overridden(subject, env)
    players = _num_players(subject, env) if subject.is_game else None
    lead = () if players is None else (players,)
    key = jax.eval_shape(lambda: jax.random.key(0))
    obs, state = _trace_tuple(subject, "reset_env", ("obs", "state"), lambda k: env.reset_env(k, params), key)
    obs_space = _read_space(subject, "observation_space", env.observation_space, params)
    action_space = _read_space(subject, "action_space", env.action_space, params)
    if isinstance(action_space, Dict) and head_sizes(action_space) is None:
        subject.refuse(f"a Dict as action_space takes at least one head, each Discrete: {action_space}")
    if isinstance(action_space, Box) and not jnp.issubdtype(action_space.dtype, jnp.floating):
        # Policies of a Box choose real numbers, which would be cut to the whole ones below them.
        expected = "floats; for whole numbers use Discrete or MultiDiscrete"
        subject.refuse(f"action_space is a Box of {_dtype_name(action_space.dtype)}, expected one of {expected}")
    if players is not None and head_sizes(action_space) is None and not isinstance(action_space, Box):
        expected = "a Box, or heads that are Discrete, for one player"
        subject.refuse(f"action_space is {type(action_space).__name__}, expected {expected}")
    action = _trace(subject, "action_space", action_space.sample, key)
    action = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype), action)
    if players is not None:
        # First, as masks are often made of who is to move, and the default step draws by chance.
        moves = _trace(subject, "to_move", env.to_move, state)
        if not is_array(moves) or moves.shape != lead or moves.dtype != jnp.bool_:
            subject.refuse(f"to_move is {describe(moves)}, expected one flag for each player, bool[{players}]")
        outcomes_of(env, _trace(subject, "chance", lambda s, a: env.chance(s, a, params), state, action))
    stepped = ("obs", "state", "reward", "terminated", "info")
    next_obs, next_state, reward, terminated, info = _trace_tuple(
        subject, "step_env", stepped, lambda k, s, a: env.step_env(k, s, a, params), key, state, action
    )
    check_fits(subject, "observation", obs, obs_space, lead)
    check_same(subject, "observation", next_obs, obs)
    check_same(subject, "state", next_state, state)
    _check_size(subject, obs)
    # Whole numbers become floats where episodes are counted (`EpisodeStatistics`), which games do elsewhere.
    numbers = (jnp.floating,) if lead else (jnp.floating, jnp.integer)
    if not is_array(reward) or reward.shape != lead or not any(jnp.issubdtype(reward.dtype, kind) for kind in numbers):
        expected = f"one for each player, float32[{players}]" if lead else "a float scalar float32[]"
        subject.refuse(f"step_env returned a reward {describe(reward)}, expected {expected}")
    truncated = _trace(subject, "is_truncated", lambda s: env.is_truncated(s, params), state)
    for label, flag in (("terminated flag", terminated), ("is_truncated result", truncated)):
        if not is_array(flag) or flag.shape != () or flag.dtype != jnp.bool_:
            subject.refuse(f"the {label} is {describe(flag)}, expected bool[]{', of the whole game' if lead else ''}")
    if not isinstance(info, Mapping):
        subject.refuse(f"step_env returned an info {describe(info)}, expected a dictionary, such as {{}}")
    _check_metrics(subject, info.get(METRICS, {}))
    if lead and RESULT in info:
        result = info[RESULT]
        if not (is_array(result) and result.shape == lead and jnp.issubdtype(result.dtype, jnp.floating)):
            subject.refuse(f"info['{RESULT}'] is {describe(result)}, expected one for each player, float32[{players}]")
    _check_components(subject, info.get(COMPONENTS, {}), lead)
    mask = _trace(subject, "action_mask", lambda s: action_mask_of(env, s, params), state)
    if mask is not None or (lead and not isinstance(action_space, Box)):
        _check_mask(subject, mask, action_space, lead)
    if players is not None:
        if type(env).observe is not Game.observe:
            observed = _trace(subject, "observe", lambda s: env.observe(s, params), state)
            check_same(subject, "observation", observed, obs, "observe")
        _check_names(subject, env, params, action_space)
    return subject.doubts


def _check_overridden(subject: Subject, env: Any) -> None:
    """Refuse `step` and `reset` of an environment or a wrapper that change what is inside: rljax would pass them by."""
    layer, depth = env, 0
    # Inside an adapter may be an object of another library, which has none of the functions that rljax calls.
    while depth < MAX_LAYERS and all(hasattr(layer, called) for called in BY_HAND.values()):
        for name, called in BY_HAND.items():
            own = vars(type(layer))
            if isinstance(layer, Environment) and callable(own.get(name)) and called in own:
                subject.doubts.append(f"{type(layer).__name__} defines {name} beside {called}: rljax calls {called} alone")
            if overrides(layer, name, called):
                how = "give what is inside, or use rljax.wrappers" if _is_from(layer, FOREIGN) else f"override {called}"
                subject.refuse(f"{type(layer).__name__} defines {name}, which rljax never calls: {how}")
        passes_on = isinstance(layer, Wrapper) or hasattr(type(layer), "__getattr__")
        inside = getattr(layer, "__dict__", {}) if passes_on else {}
        layer, depth = inside.get("env", inside.get("_env")), depth + 1


def overrides(layer: Any, name: str, called: str) -> bool:
    """Return whether a class changes `name` on top of `called`, the function that rljax calls.

    A base class of environments may define `name` by `called`, as those of rljax and gymnax do: their subclasses define `called`.
    A wrapper that has `called` from what is inside, by `__getattr__`, does not.
    """
    classes = type(layer).__mro__
    number, below = (next((i for i, c in enumerate(classes) if f in vars(c)), len(classes)) for f in (name, called))
    if number == len(classes) or called in getattr(layer, "__dict__", {}):
        return False
    return number < below and callable(vars(classes[number])[name])


def _num_players(subject: Subject, game: Game) -> int:
    """Return the number of players P, after checking what a game says of itself."""
    players = attribute(game, "num_players")
    if not _is_int(players) or players < 2:
        subject.refuse(f"num_players = {players!r}, expected a whole number of at least 2")
    for name, example in (("teams", tuple(range(players))), ("roles", (0,) * players)):
        numbers = attribute(game, name)
        listed = isinstance(numbers, (tuple, list)) and all(map(_is_int, numbers))
        if not listed or len(numbers) != players or set(numbers) != set(range(len(set(numbers)))):
            what = f"the {name[:-1]} of each of {players} players, counted from 0, such as {example}"
            subject.refuse(f"{name} = {numbers!r}, expected {what}")
    for name in ("turn_gap", "opening_moves"):
        number = attribute(game, name)
        if not _is_int(number) or number < 0:
            subject.refuse(f"{name} = {number!r}, expected a whole number of at least 0")
    for name in FLAGS:
        flag, or_none = attribute(game, name), name == "zero_sum"
        if not (isinstance(flag, (bool, np.bool_)) or (or_none and flag is None)):
            found = describe(flag) if callable(flag) else repr(flag)
            subject.refuse(f"{name} = {found}, expected {'True, False or None' if or_none else 'True or False'}")
    return int(players)


def _check_names(subject: Subject, game: Game, params: Any, action_space: Space) -> None:
    sizes = head_sizes(action_space)
    if sizes is None or any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(params)):
        return  # names are for people, and nobody plays under a trace
    for label, count, each in (("head_names", len(sizes), "head"), ("action_names", sum(sizes), "action of each head")):
        try:
            names = getattr(game, label)(params)
        except Exception as error:
            subject.refuse(f"{label} raised {first_line(error)}", error)
        if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
            subject.refuse(f"{label} returned {describe(names)}, expected a tuple of strings, one for each {each}")
        if len(names) != count:
            subject.refuse(f"{label} returned {len(names)} names, expected {count}, one for each {each}")


def _trace(subject: Subject, label: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the shapes of the results of an environment's function; any error becomes one line, with its cause kept.

    The function is traced with a batch, as in training: some functions (a `pure_callback` without `vmap_method`) cannot take one.
    """
    batched = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), arguments)

    def checked(*values: Any) -> Any:
        result = function(*values)
        _check_arrays(subject, label, result)
        return result

    try:
        shapes = jax.eval_shape(jax.vmap(checked), *batched)
    except ConfigError:
        raise
    except NotImplementedError as error:
        subject.refuse(f"{error}" if "must define" in str(error) else f"{label} raised {first_line(error)}", error)
    except jax.errors.TracerArrayConversionError as error:
        subject.refuse(f"{label} gives a traced value to NumPy; use jax.numpy", error)
    except jax.errors.ConcretizationTypeError as error:
        subject.refuse(f"{label} looks at a traced value with Python's if, while, bool() or int(); use jnp.where", error)
    except Exception as error:
        subject.refuse(f"{label} raised {first_line(error)}", error)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), shapes)


def _check_arrays(subject: Subject, label: str, result: Any) -> None:
    """Refuse a result with something in it that is no array: JAX looks into no object that it does not know."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(result):
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
            where = jax.tree_util.keystr(path) or "whole"
            subject.refuse(
                f"{label} returned a {type(leaf).__name__} in its result ({where}), expected arrays and numbers in dictionaries, "
                "tuples, NamedTuples and classes of flax.struct"
            )


def _trace_tuple(
    subject: Subject, label: str, parts: tuple[str, ...], function: Callable[..., Any], *arguments: Any
) -> Sequence[Any]:
    result = _trace(subject, label, function, *arguments)
    expected = f"expected {len(parts)}: ({', '.join(parts)})"
    if not isinstance(result, (tuple, list)):
        subject.refuse(f"{label} returned {describe(result)}, {expected}")
    if len(result) != len(parts):
        six = "; that a time limit ends the episode is said by is_truncated(state, params)" if len(result) == 6 else ""
        subject.refuse(f"{label} returned {len(result)} values, {expected}{six}")
    if label == "step_env" and _is_gymnasiums(subject, result):
        subject.refuse(f"{label} returned Gymnasium's (obs, reward, terminated, truncated, info), {expected}")
    return result


def _is_gymnasiums(subject: Subject, result: Sequence[Any]) -> bool:
    """Return whether the second of five values is a reward and the third a flag, where a state and a reward belong."""
    second, third = result[1], result[2]
    return (
        is_array(second)
        and is_array(third)
        and max(second.ndim, third.ndim) <= subject.is_game  # in a game there may be one for each player
        and jnp.issubdtype(second.dtype, jnp.floating)
        and third.dtype == jnp.bool_
    )


def _read_space(subject: Subject, label: str, function: Callable[[Any], Any], params: Any) -> Space:
    try:
        space = as_space(function(params))
    except ConfigError:
        raise
    except NotImplementedError as error:
        subject.refuse(f"{error}", error)
    except (TypeError, ValueError) as error:
        subject.refuse(f"{label}: {first_line(error).partition(': ')[2] or type(error).__name__}", error)
    except Exception as error:
        subject.refuse(f"{label} raised {first_line(error)}", error)
    _check_space(subject, label, space)
    return space


def _check_space(subject: Subject, label: str, space: Space) -> None:
    """Refuse a space without elements, or with elements that are malformed or too large."""
    if isinstance(space, (Dict, Tuple)):
        named = isinstance(space, Dict)
        for name, part in dict(space.spaces).items() if named else enumerate(space.spaces):
            try:
                part = as_space(part)
            except (TypeError, ValueError) as error:
                subject.refuse(f"{label}[{name!r}]: {error}", error)
            _check_space(subject, f"{label}[{name!r}]", part)
    elif isinstance(space, Discrete):
        if isinstance(space.n, jax.Array):  # it has no value where a program is traced
            subject.refuse(f"{label} is Discrete({space.n!r}), expected a number of elements that is no array")
        if not _is_int(space.n):
            subject.refuse(f"{label} is Discrete({space.n!r}), expected a whole number of elements")
    elif isinstance(space, Box):
        if not isinstance(space.shape, tuple) or not all(_is_int(n) and n >= 0 for n in space.shape):
            subject.refuse(f"{label} is a Box of shape {space.shape!r}, expected a tuple of whole numbers")
        if 0 in space.shape:
            subject.refuse(f"{label} is a Box of shape {space.shape}, which has no entries")
        if math.prod(space.shape) > MAX_ENTRIES:
            subject.refuse(f"{label} is a Box of shape {space.shape}, expected at most {MAX_ENTRIES:,} entries")
        _check_bounds(subject, label, space)


def _check_bounds(subject: Subject, label: str, space: Box) -> None:
    if isinstance(space.low, jax.core.Tracer) or isinstance(space.high, jax.core.Tracer):
        return  # made under a trace: the bounds have no values
    try:
        low, high = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
    except (TypeError, ValueError) as error:
        subject.refuse(f"{label}: the bounds of a Box are {space.low!r} and {space.high!r}, expected numbers", error)
    for name, bound in (("low", low), ("high", high)):
        if bound.ndim > len(space.shape) or any(
            n not in (1, m) for n, m in zip(bound.shape[::-1], space.shape[::-1], strict=False)
        ):
            subject.refuse(f"{label}: {name} has shape {bound.shape}, the Box {space.shape}")
        if np.isnan(bound).any():
            subject.refuse(f"{label}: {name} of the Box is NaN")
    if (low > high).any():
        where = np.argmax(np.atleast_1d(low > high))
        first = [np.broadcast_to(bound, np.broadcast_shapes(low.shape, high.shape)).ravel()[where] for bound in (low, high)]
        subject.refuse(f"{label}: low = {first[0]:g} of the Box is above high = {first[1]:g}")


def describe(leaf: Any) -> str:
    """Describe an array as text, such as "float32[3]", or any other value by its kind."""
    if is_array(leaf):
        return f"{_dtype_name(leaf.dtype)}[{','.join(map(str, leaf.shape))}]"
    if isinstance(leaf, Mapping):
        return f"a dictionary with the keys {sorted(map(str, leaf))}"
    if isinstance(leaf, (list, tuple)):
        return f"a {type(leaf).__name__} of {len(leaf)}"
    return "None" if leaf is None else f"a {type(leaf).__name__}"


def _dtype_name(dtype: Any) -> str:
    return str(dtype) if jnp.issubdtype(dtype, jax.dtypes.extended) else jnp.dtype(dtype).name


def is_array(x: Any) -> bool:
    """Return whether this is an array of any kind, or the shape of one."""
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _is_int(x: Any) -> bool:
    try:
        return not isinstance(x, bool) and operator.index(x) == x
    except TypeError:
        return False


def check_same(subject: Subject, label: str, stepped: Any, reset: Any, function: str = "step_env") -> None:
    """Compare the structure, shapes and dtypes of what a function returned with those of what `reset_env` returned."""
    structures: list[Any] = [jax.tree.structure(tree) for tree in (stepped, reset)]
    # Compare them as text, too: the structures of two flax dataclasses of different classes compare equal. Some texts (those of
    # MJX) have addresses of objects in them.
    after, before = (re.sub(r" at 0x[0-9a-f]+", "", str(structure)) for structure in structures)
    if structures[0] != structures[1] or after != before:
        subject.refuse(f"{function} returned {label} of structure {after}, but reset_env {before}")
    for (path, after), before in zip(jax.tree.leaves_with_path(stepped), jax.tree.leaves(reset), strict=True):
        if after.shape != before.shape or after.dtype != before.dtype:
            where = label + jax.tree_util.keystr(path)
            subject.refuse(f"{function} returned {where} {describe(after)}, but reset_env {describe(before)}")


def check_fits(subject: Subject, label: str, value: Any, space: Space, lead: tuple[int, ...]) -> None:
    """Compare the structure, shape and dtype of an observation with a space; `lead` is the axis of players, or ()."""
    if isinstance(space, Dict):
        if not isinstance(value, Mapping):
            subject.refuse(f"{label} is {describe(value)}, but observation_space a Dict of {sorted(space.spaces)}")
        if value.keys() != space.spaces.keys():
            subject.refuse(f"{label} has the keys {sorted(value)}, but observation_space {sorted(space.spaces)}")
        for key, part in space.spaces.items():
            check_fits(subject, f"{label}['{key}']", value[key], as_space(part), lead)
    elif isinstance(space, Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            subject.refuse(f"{label} is {describe(value)}, but observation_space a Tuple of {len(space.spaces)}")
        for i, part in enumerate(space.spaces):
            check_fits(subject, f"{label}[{i}]", value[i], as_space(part), lead)
    else:
        expected = (*lead, *space.shape)
        whole = isinstance(space, (Discrete, MultiDiscrete))
        dtype = "int32" if whole else _dtype_name(space.dtype)
        wanted = f"{dtype}[{','.join(map(str, expected))}]"
        if not is_array(value) or tuple(value.shape) != expected:
            axis = f", whose first axis is that of the {lead[0]} players" if lead else ""
            text = f"{label} {describe(value)} does not fit observation_space of shape {space.shape}: expected {wanted}{axis}"
            subject.refuse(text)
        fits = jnp.issubdtype(value.dtype, jnp.integer) if whole else value.dtype == jnp.dtype(space.dtype)
        if not fits:
            subject.doubt(f"{label} {describe(value)} does not fit observation_space of dtype {dtype}: expected {wanted}")


def _check_size(subject: Subject, obs: Any) -> None:
    if not tree_bytes(obs):
        subject.refuse("the observation is empty, expected at least one number")
    check_memory(tree_bytes(obs), f"{subject.title}: one observation", "make it smaller")


def _check_metrics(subject: Subject, metrics: Any) -> None:
    for what, value in _named(subject, METRICS, metrics, "scalars"):
        real = is_array(value) and (jnp.issubdtype(value.dtype, jnp.number) or value.dtype == jnp.bool_)
        if not real or value.shape != () or jnp.issubdtype(value.dtype, jnp.complexfloating):
            subject.refuse(f"{what} is {describe(value)}, expected a scalar such as float32[]")


def _check_components(subject: Subject, components: Any, lead: tuple[int, ...]) -> None:
    """Check the parts of a reward, of which a game has one for each player. Value heads ask for floats."""
    for what, value in _named(subject, COMPONENTS, components, "rewards"):
        if not is_array(value) or value.shape != lead:
            expected = f"one for each player, float32[{lead[0]}]" if lead else "float32[]"
            subject.refuse(f"{what} is {describe(value)}, expected {expected}")


def _named(subject: Subject, key: str, table: Any, values: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a dictionary in the info, each with what messages call it."""
    if not isinstance(table, Mapping):
        subject.refuse(f"info['{key}'] is {describe(table)}, expected a dictionary of {values}")
    for name, value in table.items():
        if not isinstance(name, str) or not name:
            subject.refuse(f"info['{key}'] has the key {name!r}, expected names")
        yield f"info['{key}']['{name}']", value


def _check_mask(subject: Subject, mask: Any, action_space: Space, lead: tuple[int, ...]) -> None:
    sizes = head_sizes(action_space)
    if sizes is None:
        subject.refuse(
            "action_mask needs an action space that is Discrete, MultiDiscrete or a Dict of Discrete, "
            f"not {type(action_space).__name__}"
        )
    total = sum(sizes)
    shapes = [(*lead, total)] if isinstance(action_space, Discrete) else [(*lead, total), (*lead, total, total)]
    if not is_array(mask) or mask.dtype != jnp.bool_ or mask.shape not in shapes:
        wanted = [f"bool[{','.join(map(str, shape))}]" for shape in shapes]
        expected = wanted[0] + (f", or {wanted[1]} for pairs of heads" if len(wanted) > 1 else "")
        if lead:
            expected += ", a row for each player"
        hint = "; make an array of it with jnp.array" if isinstance(mask, (list, tuple)) else ""
        subject.refuse(f"action_mask is {describe(mask)}, expected {expected}{hint}")
