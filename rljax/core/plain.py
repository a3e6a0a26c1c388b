"""Values of configurations as TOML and JSON can hold them, and as programs can keep them: hashable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict

from rljax.core.errors import ConfigError, shown

OBJECT_PREFIX = "object:"
"""Prefix with which an environment or network given as an object is written to TOML, "object:module:Class"; this is no id."""

MAX_INTEGER = 2**63 - 1
"""TOML's largest whole number."""

MAX_DEPTH = 32
"""Largest depth of nested tables and lists in a configuration."""


def freeze(name: str, value: Any, depth: int = 0) -> Any:
    """Return a hashable value, so that a config can be static under jit: tables become FrozenDict and lists become tuples."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"{name}: tables and lists are nested more than {MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        strange = [key for key in value if not isinstance(key, str)]
        if strange:
            raise ConfigError(f"{name}: expected names as keys of a table, got {shown(strange[0])}")
        return FrozenDict({k: freeze(name, v, depth + 1) for k, v in value.items()})
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ConfigError(f"{name}: got {shown(value)}, expected whole numbers of 64 bits")
    return tuple(freeze(name, v, depth + 1) for v in value) if isinstance(value, (list, tuple)) else value


def to_plain(value: Any) -> Any:
    """Return a value of a configuration as TOML and JSON can hold it."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return {k: to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)) and jnp.ndim(value) == 0 and _is_plain(value.dtype):
        # As a Python float, an f32 prints digits it does not have (0.0003 as 0.00030000000142492354): use the shortest.
        return float(str(np.asarray(value))) if jnp.issubdtype(value.dtype, jnp.floating) else np.asarray(value).item()
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (jax.Array, np.ndarray)) and value.ndim:
        raise ConfigError(f"a configuration with a batch of values (shape {value.shape}) cannot be written: one file is one run")
    return f"{OBJECT_PREFIX}{type(value).__module__}:{type(value).__qualname__}"


def is_real(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating))


def _is_plain(dtype: Any) -> bool:
    """Return whether a scalar of this dtype can be written in TOML and JSON."""
    return is_real(dtype) or bool(jnp.issubdtype(dtype, jnp.bool_) or jnp.issubdtype(dtype, np.str_))


def is_object(value: Any) -> bool:
    """Return whether a plain value stands for an object, "object:module:Class"."""
    return isinstance(value, str) and value.startswith(OBJECT_PREFIX)


def class_name(text: str) -> str:
    """Return the class name of an object's text, "object:module:Class"; return any other text as it is."""
    return text.rpartition(":")[2] if text.startswith(OBJECT_PREFIX) else text
