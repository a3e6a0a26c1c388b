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
from rljax.run.export.metadata import FORMAT, GREEDY_FILE, METADATA_FILE, SAMPLING_FILE, describe_tree
from rljax.run.export.signature import leaf_names, same_structure


@dataclass(frozen=True)
class ExportedPolicy:
    """Policy read by `load_policy`.

    It takes one observation (`[...]`, and the action is unbatched, too) or a batch (`[b, ...]`). For NumPy observations, lists
    and numbers the action is of NumPy arrays, or an `int` if it is a single discrete one, as Gymnasium's environments need it. If
    any part of the observation is a JAX array, the action is of JAX arrays, so that the policy works under `jit` and `vmap`.

    Attributes:
        metadata: contents of `metadata.json`.
    """

    metadata: dict[str, Any]
    _greedy: Callable[..., Any]
    _sampling: Callable[..., Any]
    _obs: Any
    _mask: jax.ShapeDtypeStruct | None

    def greedy(self, obs: Any, mask: Any = None) -> Any:
        """Return the policy's most likely action, or a dictionary of actions if the action space has named heads.

        Args:
            obs: one observation `[...]` or a batch `[b, ...]`.
            mask: legal actions, bool `[flat_dim]` or `[b, flat_dim]`, if the environment has a mask (with both axes if it has
                two); None: all are legal.

        Returns:
            For NumPy observations: `int` for one Discrete action, else writable NumPy arrays (`[b]`, i32, for a batch of Discrete
            actions). For JAX arrays: JAX arrays.

        Raises:
            ConfigError: `obs` or `mask` does not have the shape that the policy takes.
        """
        checked, mask, batched = self._prepare_inputs(obs, mask)
        return self._match_inputs(self._greedy(checked, *mask), batched, obs)

    def sample(self, obs: Any, key: Any, mask: Any = None) -> Any:
        """Sample an action from the policy with `key`, a `jax.random.key` or raw u32 `[2]`; see `greedy`."""
        checked, mask, batched = self._prepare_inputs(obs, mask)
        is_typed = is_array(key) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        key = jax.random.key_data(key) if is_typed else jnp.asarray(key)
        if key.shape != (2,) or key.dtype != jnp.uint32:
            raise ConfigError(f"key: expected jax.random.key(0) or its data, uint32 [2], got {key.dtype} {list(key.shape)}")
        return self._match_inputs(self._sampling(checked, key, *mask), batched, obs)

    def _match_inputs(self, action: Any, batched: bool, obs: Any) -> Any:
        """Convert an action `[b, ...]` of the artifact to the kind of array of `obs`, without the axis `b` unless `batched`."""
        action = action if batched else jax.tree.map(lambda x: x[0], action)
        if any(isinstance(x, jax.Array) for x in jax.tree.leaves(obs)):
            return action
        # Copy, since NumPy's view of a JAX array is read-only. Heads of a Dict are Discrete.
        single = not batched and self.metadata["action_space"]["type"] in ("Discrete", "Dict")
        return jax.tree.map(lambda x: int(x) if single else np.array(x), action)

    def _prepare_inputs(self, obs: Any, mask: Any) -> tuple[Any, tuple[jax.Array, ...], bool]:
        """Check the inputs and add a batch axis; return `(obs, mask as further arguments, whether there was a batch axis)`."""
        leaves, structure = jax.tree.flatten(self._obs)
        # A single array may be given as a list of numbers; within a tree, lists are structure.
        given = [obs] if is_array(self._obs) else jax.tree.leaves(obs)
        if not is_array(self._obs) and not same_structure(obs, self._obs):
            raise ConfigError(f"obs: expected {json.dumps(describe_tree(self._obs))}, got {jax.tree.structure(obs)}")
        names = leaf_names("obs", self._obs)
        checked, batches = zip(*map(_prepare_leaf, names, given, leaves), strict=True)
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
        legal, mask_batch = _prepare_leaf("mask", mask, self._mask)
        if mask_batch != batch:
            raise ConfigError(f"mask: expected the batch of obs, {batch}, got {mask_batch}")
        return result, (legal,), batch is not None


def load_policy(path: str | os.PathLike[str]) -> ExportedPolicy:
    """Read a folder that `export_policy` wrote. A policy is a program: calling a stranger's policy runs their code.

    Raises:
        ConfigError: there is no exported policy, or it is damaged or of another format.
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
    """Read the `jax.export.Exported` in a file, after checking its digest: a damaged artifact can crash the process."""
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


def _prepare_leaf(name: str, x: Any, expected: jax.ShapeDtypeStruct) -> tuple[jax.Array, int | None]:
    """Return an array with a batch axis and the artifact's dtype, and the size of its batch (None if it had no such axis)."""
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
