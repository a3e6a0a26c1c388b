"""Read an exported policy back."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from rljax.core.contract import is_array
from rljax.core.errors import ConfigError, first_line
from rljax.run.export.metadata import FORMAT, GREEDY_FILE, METADATA_FILE, SAMPLING_FILE, described
from rljax.run.export.signature import leaf_names, same_structure


@dataclass(frozen=True)
class ExportedPolicy:
    """A policy read back by `load_policy`.

    Observations may be one (`[...]`, the action is unbatched too) or a batch (`[b, ...]`). NumPy observations, lists and numbers
    give NumPy actions, and an `int` for a single discrete one: Gymnasium's environments take them as they come. Where any part of
    the observation is a JAX array, the action is of JAX arrays, so that the policy works under `jit` and `vmap`.

    Attributes:
        metadata: the contents of `metadata.json`.
    """

    metadata: dict[str, Any]
    _greedy: Callable[..., Any]
    _sampling: Callable[..., Any]
    _obs: Any
    _mask: jax.ShapeDtypeStruct | None

    def greedy(self, obs: Any, mask: Any = None) -> Any:
        """The policy's most likely action, or a dictionary of actions where the action space has named heads.

        Args:
            obs: `[...]` or `[b, ...]`.
            mask: legal actions, bool `[flat_dim]` or `[b, flat_dim]`, where the environment has a mask (of both its axes where
                it has two); None: all are.

        Returns:
            For observations in NumPy: `int` of one Discrete action, NumPy arrays of a batch of them (`[b]`, i32) and of all other
            spaces, which may be written to. For JAX arrays: JAX arrays.

        Raises:
            ConfigError: `obs` or `mask` does not have the shape that the policy takes.
        """
        checked, mask, batched = self._checked(obs, mask)
        return self._as_given(self._greedy(checked, *mask), batched, obs)

    def sample(self, obs: Any, key: Any, mask: Any = None) -> Any:
        """An action drawn from the policy with `key`, a `jax.random.key` or raw u32 `[2]`; see `greedy`."""
        checked, mask, batched = self._checked(obs, mask)
        is_typed = is_array(key) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        key = jax.random.key_data(key) if is_typed else jnp.asarray(key)
        if key.shape != (2,) or key.dtype != jnp.uint32:
            raise ConfigError(f"key: expected jax.random.key(0) or its data, uint32 [2], got {key.dtype} {list(key.shape)}")
        return self._as_given(self._sampling(checked, key, *mask), batched, obs)

    def _as_given(self, action: Any, batched: bool, obs: Any) -> Any:
        """An action `[b, ...]` of the artifact, without `b` unless `batched`, of the kind that `obs` was."""
        action = action if batched else jax.tree.map(lambda x: x[0], action)
        if any(isinstance(x, jax.Array) for x in jax.tree.leaves(obs)):
            return action
        # Copies: what NumPy sees of a JAX array cannot be written to. Heads of a Dict are Discrete.
        single = not batched and self.metadata["action_space"]["type"] in ("Discrete", "Dict")
        return jax.tree.map(lambda x: int(x) if single else np.array(x), action)

    def _checked(self, obs: Any, mask: Any) -> tuple[Any, tuple[jax.Array, ...], bool]:
        """`(obs, mask as further arguments, whether they came with a batch axis)`, both with one."""
        leaves, structure = jax.tree.flatten(self._obs)
        # A lone array may come as a list of numbers; within a tree, lists are structure.
        given = [obs] if is_array(self._obs) else jax.tree.leaves(obs)
        if not is_array(self._obs) and not same_structure(obs, self._obs):
            raise ConfigError(f"obs: expected {json.dumps(described(self._obs))}, got {jax.tree.structure(obs)}")
        names = leaf_names("obs", self._obs)
        checked, batches = zip(*map(_checked_leaf, names, given, leaves), strict=True)
        if len(set(batches)) > 1:
            raise ConfigError(f"obs: its parts have batches of different sizes: {dict(zip(names, batches, strict=True))}")
        batch = batches[0]
        result = jax.tree.unflatten(structure, checked)
        if self._mask is None:
            if mask is not None:
                raise ConfigError("mask: this policy takes none, its environment has no action mask")
            return result, (), batch is not None
        if mask is None:
            mask = jnp.ones(self._mask.shape if batch is None else (batch, *self._mask.shape), bool)
        legal, mask_batch = _checked_leaf("mask", mask, self._mask)
        if mask_batch != batch:
            raise ConfigError(f"mask: expected the batch of obs, {batch}, got {mask_batch}")
        return result, (legal,), batch is not None


def load_policy(path: str | os.PathLike[str]) -> ExportedPolicy:
    """Read a folder that `export_policy` wrote. A policy is a program: calling that of a stranger runs what they wrote.

    Raises:
        ConfigError: no exported policy there, or one that is damaged or of another format.
    """
    folder = Path(path)
    try:
        metadata = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
        version, files = metadata["format"], metadata["files"]
        digests = {name: files[name]["sha256"] for name in (GREEDY_FILE, SAMPLING_FILE)} if version == FORMAT else {}
    except OSError:
        raise ConfigError(f"{folder}: no exported policy there (no {METADATA_FILE})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder / METADATA_FILE}: damaged ({type(error).__name__}: {error}): export it again") from None
    if version != FORMAT:
        raise ConfigError(f"{folder}: an exported policy of format {version}, but this rljax reads {FORMAT}: export it again")
    greedy, sampling = (_read_artifact(folder / name, digest) for name, digest in digests.items())
    obs, *mask = jax.tree.unflatten(greedy.in_tree, [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in greedy.in_avals])[0]
    return ExportedPolicy(metadata, jax.jit(greedy.call), jax.jit(sampling.call), obs, mask[0] if mask else None)


def _read_artifact(path: Path, digest: str) -> Any:
    """The `jax.export.Exported` in a file. The digest comes first: a damaged artifact can take the process down with it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise ConfigError(f"{path}: damaged (not the file that {METADATA_FILE} describes): export it again")
    try:
        return jax_export.deserialize(bytearray(data))
    except ImportError:
        raise ConfigError("reading an exported policy needs flatbuffers: pip install flatbuffers") from None
    except Exception as error:
        raise ConfigError(f"{path}: JAX {jax.__version__} cannot read it: {first_line(error)}") from error


def _checked_leaf(name: str, x: Any, expected: jax.ShapeDtypeStruct) -> tuple[jax.Array, int | None]:
    """One array with a batch axis, of the dtype that the artifact takes, and the size of the batch it came with."""
    try:
        x = x if is_array(x) else np.asarray(x)
    except ValueError as error:
        raise ConfigError(f"{name}: expected an array: {error}") from None
    shape = tuple(x.shape)
    whole = ", ".join(["b", *map(str, expected.shape)])
    if shape != expected.shape and (shape[1:] != expected.shape or not shape or shape[0] == 0):
        raise ConfigError(f"{name}: expected shape {list(expected.shape)}, or [{whole}] for b of them, got {list(shape)}")
    if not jnp.can_cast(x.dtype, expected.dtype, "same_kind"):
        raise ConfigError(f"{name}: expected dtype {expected.dtype}, got {x.dtype}")
    batch = None if shape == expected.shape else shape[0]
    return jnp.asarray(x, expected.dtype).reshape((1 if batch is None else batch, *expected.shape)), batch
