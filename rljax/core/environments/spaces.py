"""Action and observation spaces: shapes, dtypes and bounds of an environment's inputs and outputs.

Attribute names (`n`, `nvec`, `low`, `high`, `shape`, `dtype`) are those of gymnax and Gymnasium, so `as_space` reads their spaces
too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Discrete:
    """Space of the integers `0 .. n - 1`; an element is an i32 scalar."""

    n: int
    dtype: Any = jnp.int32

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"Discrete(n={self.n}): n must be at least 1")

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def flat_dim(self) -> int:
        """Length of the one-hot encoding of an element."""
        return self.n

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 0, self.n, self.dtype)

    def contains(self, x: Any) -> jax.Array:
        x = jnp.asarray(x)
        return (x >= 0) & (x < self.n)


@dataclass(frozen=True)
class MultiDiscrete:
    """Space of several independent integers, the k-th in `0 .. nvec[k] - 1`; an element is i32 `[len(nvec)]`.

    Attributes:
        nvec: number of actions of each head.
        only_if: None, or for each head None or `(j, actions)`: the environment reads the head only if head j, which it always
            reads, takes one of these actions. Policies then leave unread heads out of the probability of an action.
            Auto-regressive policies do so where head j comes first; heads after both do not see what an unread one chose.
    """

    nvec: tuple[int, ...]
    dtype: Any = jnp.int32
    only_if: tuple[tuple[int, tuple[int, ...]] | None, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "nvec", tuple(int(n) for n in self.nvec))
        if not self.nvec or min(self.nvec) < 1:
            raise ValueError(f"MultiDiscrete(nvec={self.nvec}): at least one head, each of at least 1 action")
        if self.only_if is not None and len(self.only_if) != len(self.nvec):
            raise ValueError(
                f"MultiDiscrete: only_if has {len(self.only_if)} entries, expected one for each of {len(self.nvec)} heads"
            )
        for head, condition in enumerate(self.only_if or ()):
            if condition is not None and not self._allows(condition):
                expected = "the number of a head that is always read, and some of its actions: (0, (1, 2))"
                raise ValueError(f"MultiDiscrete: only_if[{head}] = {condition}, expected {expected}")
        if self.only_if is not None:
            conditions = tuple(None if c is None else (int(c[0]), tuple(int(a) for a in c[1])) for c in self.only_if)
            object.__setattr__(self, "only_if", conditions)

    def _allows(self, condition: Any) -> bool:
        """Return whether this is the number of a head that is always read, and some of its actions."""
        try:
            head, actions = operator.index(condition[0]), [operator.index(action) for action in condition[1]]
        except (TypeError, IndexError):
            return False
        always = self.only_if is not None and 0 <= head < len(self.nvec) and self.only_if[head] is None
        return len(condition) == 2 and always and len(actions) > 0 and all(0 <= action < self.nvec[head] for action in actions)

    def repeated(self, times: int) -> MultiDiscrete:
        """Return the space of several elements, their heads one after the other."""
        if self.only_if is None:
            return MultiDiscrete(self.nvec * times, self.dtype)
        shifts = [len(self.nvec) * number for number in range(times)]
        only_if = tuple(c and (c[0] + shift, c[1]) for shift in shifts for c in self.only_if)
        return MultiDiscrete(self.nvec * times, self.dtype, only_if)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)

    @property
    def flat_dim(self) -> int:
        """Length of the concatenated one-hot encodings of an element."""
        return sum(self.nvec)

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, self.shape, 0, jnp.asarray(self.nvec), self.dtype)

    def contains(self, x: Any) -> jax.Array:
        x = jnp.asarray(x)
        return jnp.all((x >= 0) & (x < jnp.asarray(self.nvec)))


@dataclass(frozen=True, eq=False)
class Box:
    """Space of arrays of a fixed shape, with bounds `low` and `high` (scalars or arrays of that shape; may be infinite)."""

    low: Any
    high: Any
    shape: tuple[int, ...] = ()
    dtype: Any = jnp.float32

    @property
    def flat_dim(self) -> int:
        return math.prod(self.shape)

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw an element: uniform where both bounds are finite, else standard normal clipped to the bounds.

        For whole numbers and flags both bounds are included.
        """
        low, high = jnp.asarray(self.low, jnp.float32), jnp.asarray(self.high, jnp.float32)
        uniform_key, normal_key = jax.random.split(key)
        # finfo.max stands for "no bound" in many environments, and high - low would overflow.
        bounded = (jnp.abs(low) < 1e30) & (jnp.abs(high) < 1e30)
        unit = jax.random.uniform(uniform_key, self.shape)
        inside = _between(jnp.where(bounded, low, 0.0), jnp.where(bounded, high, 1.0), unit, self.dtype)
        normal = jnp.clip(jax.random.normal(normal_key, self.shape), low, high)
        return jnp.where(bounded, inside, normal).astype(self.dtype)

    def contains(self, x: Any) -> jax.Array:
        x = jnp.asarray(x)
        return jnp.all((x >= self.low) & (x <= self.high))


@dataclass(frozen=True, eq=False)
class Dict:
    """Dictionary of spaces; an element is a dictionary with the same keys.

    As an action space it has named heads, each Discrete. An auto-regressive policy chooses them in the order of `spaces`. (The
    pytree of an action has its keys sorted, so only `spaces` keeps the order of insertion.)
    """

    spaces: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.spaces, Mapping):
            raise ValueError(f"Dict({self.spaces!r}): expected a dictionary of spaces")

    @property
    def flat_dim(self) -> int:
        return sum(space.flat_dim for space in self.spaces.values())

    def sample(self, key: jax.Array) -> dict[str, Any]:
        keys = jax.random.split(key, len(self.spaces))
        return {name: space.sample(k) for k, (name, space) in zip(keys, self.spaces.items(), strict=True)}

    def contains(self, x: Any) -> jax.Array:
        return jnp.all(jnp.stack([space.contains(x[name]) for name, space in self.spaces.items()]))


@dataclass(frozen=True, eq=False)
class Tuple:
    """Fixed sequence of spaces; an element is a tuple of the same length."""

    spaces: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.spaces, Sequence):
            raise ValueError(f"Tuple({self.spaces!r}): expected a tuple of spaces")

    @property
    def flat_dim(self) -> int:
        return sum(space.flat_dim for space in self.spaces)

    def sample(self, key: jax.Array) -> tuple[Any, ...]:
        keys = jax.random.split(key, len(self.spaces))
        return tuple(space.sample(k) for k, space in zip(keys, self.spaces, strict=True))

    def contains(self, x: Any) -> jax.Array:
        return jnp.all(jnp.stack([space.contains(part) for space, part in zip(self.spaces, x, strict=True)]))


Space = Discrete | MultiDiscrete | Box | Dict | Tuple


def head_sizes(space: Space) -> tuple[int, ...] | None:
    """Return the number of actions of each head of a Discrete (one head), a MultiDiscrete or a Dict of Discrete, else None."""
    if isinstance(space, Discrete):
        return (space.n,)
    if isinstance(space, MultiDiscrete):
        return space.nvec
    if isinstance(space, Dict) and space.spaces:
        heads = [as_space(part) for part in space.spaces.values()]
        sizes = tuple(head.n for head in heads if isinstance(head, Discrete))
        return sizes if len(sizes) == len(heads) else None
    return None


def action_heads(env: Any, env_params: Any) -> tuple[int, ...]:
    """Return the number of actions of each head of an environment's action space; () if actions are continuous."""
    return head_sizes(as_space(env.action_space(env_params))) or ()


def legal_action(space: Space, mask: jax.Array | None, noise: jax.Array) -> tuple[Any, jax.Array]:
    """Return a random action that a mask allows, chosen uniformly in each head.

    Args:
        space: the action space.
        mask: as from `Environment.action_mask`, bool `[A]` or `[A, A]`; None: everything is legal.
        noise: random numbers, uniform in [0, 1), f32 `[space.flat_dim]`.

    Returns:
        The action, and whether each head has no legal action, bool `[H]`; its choice is then any.
    """
    sizes = head_sizes(space)
    if sizes is None:
        return _scale_noise(space, noise), jnp.zeros(1, bool)
    mask = jnp.ones(sum(sizes), bool) if mask is None else mask
    legal, picks, stuck, start = mask if mask.ndim == 1 else jnp.diagonal(mask), [], [], 0
    for size in sizes:
        own = legal[start : start + size]
        picks.append(jnp.argmax(jnp.where(own, noise[start : start + size], -1.0)).astype(jnp.int32))
        stuck.append(~jnp.any(own))
        legal = legal if mask.ndim == 1 else legal & mask[start + picks[-1]]
        start += size
    if isinstance(space, Dict):
        return dict(zip(space.spaces, picks, strict=True)), jnp.stack(stuck)
    return (picks[0] if isinstance(space, Discrete) else jnp.stack(picks)), jnp.stack(stuck)


def is_legal(space: Space, mask: jax.Array | None, action: Any) -> jax.Array:
    """Return whether an action lies in its space and a mask allows it in every head that is read, bool [].

    Args:
        space: the action space.
        mask: as from `Environment.action_mask`, bool `[A]` or `[A, A]`; None: everything is legal.
        action: the action.
    """
    sizes = head_sizes(space)
    if isinstance(space, Box):  # but for rounding
        margin = 1e-5 * jnp.maximum(1.0, jnp.abs(action))
        return jnp.all((action >= space.low - margin) & (action <= space.high + margin))
    if sizes is None:
        return space.contains(action)
    picks = jnp.stack([action[name] for name in space.spaces]) if isinstance(space, Dict) else jnp.ravel(action)
    conditions = (space.only_if if isinstance(space, MultiDiscrete) else None) or (None,) * len(sizes)
    mask = jnp.ones(sum(sizes), bool) if mask is None else mask
    legal, fine, start = mask if mask.ndim == 1 else jnp.diagonal(mask), jnp.ones((), bool), 0
    for pick, size, condition in zip(picks, sizes, conditions, strict=True):
        entry = start + jnp.clip(pick, 0, size - 1)
        unread = jnp.zeros((), bool) if condition is None else ~jnp.isin(picks[condition[0]], jnp.asarray(condition[1]))
        fine &= unread | ((pick >= 0) & (pick < size) & legal[entry])
        legal = legal if mask.ndim == 1 else legal & mask[entry]
        start += size
    return fine


def _scale_noise(space: Any, noise: jax.Array) -> Any:
    """Return an element of a Box or a Tuple; where a Box has no bound, within 1 of the other bound or of 0."""
    if isinstance(space, Tuple):
        parts = [as_space(part) for part in space.spaces]
        ends = np.cumsum([part.flat_dim for part in parts])
        pieces = zip(parts, jnp.split(noise, ends[:-1]), strict=True)
        return tuple(legal_action(part, None, piece)[0] for part, piece in pieces)
    low, high = (jnp.broadcast_to(jnp.asarray(bound, jnp.float32), space.shape) for bound in (space.low, space.high))
    # finfo.max stands for "no bound" in many environments.
    no_low, no_high = low < -1e30, high > 1e30
    low, high = (
        jnp.where(no_low, jnp.where(no_high, -1.0, high - 1.0), low),
        jnp.where(no_high, jnp.where(no_low, 1.0, low + 1.0), high),
    )
    return _between(low, high, noise.reshape(space.shape), space.dtype).astype(space.dtype)


def _between(low: jax.Array, high: jax.Array, unit: jax.Array, dtype: Any) -> jax.Array:
    """Return numbers between two bounds by numbers in [0, 1), all f32. For a dtype of whole numbers or flags they are whole, each
    equally often.
    """
    if jnp.issubdtype(dtype, jnp.floating):
        return low + unit * (high - low)
    # At most the upper bound, because the product may be rounded up.
    return jnp.minimum(low + jnp.floor(unit * (high - low + 1.0)), high)


def as_space(space: Any) -> Space:
    """Convert a space of rljax, gymnax or Gymnasium to one of rljax, by its attributes.

    Raises:
        TypeError: the object has none of the attributes of a known space.
        ValueError: its elements do not count from 0, or are arrays of several axes.
    """
    if isinstance(space, (Discrete, MultiDiscrete, Box, Dict, Tuple)):
        return space
    kind = type(space).__name__
    if np.any(getattr(space, "start", 0)):
        raise ValueError(f"{kind}: start = {np.asarray(space.start).tolist()}, expected elements that count from 0")
    nvec = getattr(space, "nvec", getattr(space, "num_categories", None))  # the latter of JaxMARL
    if nvec is not None:
        if np.ndim(nvec) != 1:
            raise ValueError(f"{kind}: nvec has shape {np.shape(nvec)}, expected one axis")
        return MultiDiscrete(tuple(np.asarray(nvec).tolist()))
    if hasattr(space, "n"):
        shape = getattr(space, "shape", None)
        if not isinstance(shape, Sequence) or not shape:
            return Discrete(int(space.n))
        if tuple(shape) != (space.n,):
            raise ValueError(f"{kind}: has shape {tuple(shape)}, expected () or (n,)")
        return MultiDiscrete((2,) * shape[0])  # Gymnasium's MultiBinary
    if hasattr(space, "low") and hasattr(space, "high"):
        shape = tuple(space.shape) if np.ndim(space.shape) else (int(space.shape),)
        return Box(space.low, space.high, shape, space.dtype)
    if hasattr(space, "spaces"):
        if isinstance(space.spaces, Mapping):
            return Dict({name: as_space(part) for name, part in space.spaces.items()})
        return Tuple(tuple(as_space(part) for part in space.spaces))
    named = f"an object {kind} of {type(space).__module__}" if type(space).__repr__ is object.__repr__ else repr(space)
    raise TypeError(f"{named} is not a space: expected Discrete, MultiDiscrete, Box, Dict or Tuple")


def space_text(space: Any) -> str:
    """Return a space in words, with its bounds, for a person."""
    space = as_space(space)
    if isinstance(space, Discrete):
        return f"Discrete({space.n}): 0 to {space.n - 1}"
    if isinstance(space, MultiDiscrete):
        return f"MultiDiscrete({list(space.nvec)})"
    if isinstance(space, Dict):
        return "Dict of " + "; ".join(f"{name}: {space_text(part)}" for name, part in space.spaces.items())
    if isinstance(space, Tuple):
        return "Tuple of " + "; ".join(space_text(part) for part in space.spaces)
    shape = ",".join(map(str, space.shape))
    return f"Box {np.dtype(space.dtype).name}[{shape}], {_bounds_text(space)}"


def _bounds_text(space: Box) -> str:
    low, high = (np.unique(np.asarray(bound, np.float64)) for bound in (space.low, space.high))
    if len(low) == len(high) == 1:
        return f"{_number_text(low[0])} to {_number_text(high[0])}"
    pairs = np.stack([np.broadcast_to(np.asarray(b, np.float64), space.shape).ravel() for b in (space.low, space.high)], 1)
    if len(pairs) > 8:
        return f"at least {_number_text(low[0])}, at most {_number_text(high[-1])}"
    return ", ".join(f"{_number_text(a)} to {_number_text(b)}" for a, b in pairs)


def _number_text(x: float) -> str:
    # finfo.max stands for "no bound" in many environments.
    return ("-inf" if x < 0 else "inf") if abs(x) > 1e30 else f"{x:.6g}"
