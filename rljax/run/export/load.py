"""Read an exported policy back."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from rljax.core.contract import is_array
from rljax.core.environments.environment import same_structure
from rljax.core.errors import ConfigError, first_line
from rljax.core.places import as_path
from rljax.run.export.metadata import (
    FORMAT,
    GREEDY_FILE,
    METADATA_FILE,
    ONNX_FILE,
    READ_FORMATS,
    SAMPLING_FILE,
    SAMPLING_ONNX_FILE,
    describe_tree,
)
from rljax.run.export.signature import leaf_names


class Artifact(NamedTuple):
    """A function of an exported policy, and the shapes of its arguments by name, unbatched, in their order."""

    call: Callable[..., Any]
    arguments: dict[str, Any]


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
    _greedy: Artifact
    _sampling: Artifact

    def step(
        self, obs: Any, carry: Any = None, *, key: Any = None, mask: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """Return `(action, carry)`, as `agent.act` does; the form of every policy, with memory or without.

        Args:
            obs: one observation `[...]` or a batch `[b, ...]`.
            carry: what the last step returned; None begins an episode. Where single episodes of a batch end, set their part of
                each array to 0. Policies without memory return None.
            key: a `jax.random.key` or raw u32 `[2]`, to sample, and for policies that draw random numbers in every step.
            mask: legal actions, see `greedy`.
            deterministic: whether to take the most likely action; False samples.

        Raises:
            ConfigError: `obs`, `carry`, `mask` or `key` does not have the shape that the policy takes, or there is no key.
        """
        artifact = self._greedy if deterministic else self._sampling
        given: dict[str, Any] = {}
        given["obs"], batch = _prepare_tree("obs", obs, artifact.arguments["obs"])
        if "carry" in artifact.arguments:
            given["carry"] = self._prepare_carry(carry, artifact.arguments["carry"], batch)
        elif carry is not None:
            raise ConfigError("carry: this policy has no memory, expected None")
        if "key" in artifact.arguments:
            given["key"] = _prepare_key(key)
        if "mask" in artifact.arguments:
            given["mask"] = _prepare_mask(mask, artifact.arguments["mask"], batch)
        elif mask is not None:
            raise ConfigError("mask: this policy takes none, its environment has no action mask")
        result = artifact.call(*(given[name] for name in artifact.arguments))
        action, carry = result if "carry" in artifact.arguments else (result, None)
        # Heads of a Dict are Discrete.
        single = batch is None and self.metadata["action_space"]["type"] in ("Discrete", "Dict")
        return _match_inputs(action, batch, obs, single), _match_inputs(carry, batch, obs, False)

    def initial_carry(self, batch: int | None = None) -> Any:
        """Return the carry that begins an episode: zeros, with a leading axis if there is a batch; None without memory."""
        shapes = self._greedy.arguments.get("carry")
        axes = () if batch is None else (batch,)
        return jax.tree.map(lambda x: np.zeros((*axes, *x.shape), x.dtype), shapes)

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
            ConfigError: `obs` or `mask` does not have the shape that the policy takes, or the policy has a memory (see `step`).
        """
        self._check_memoryless("greedy(obs)", "step(obs, carry)")
        return self.step(obs, mask=mask)[0]

    def sample(self, obs: Any, key: Any, mask: Any = None) -> Any:
        """Sample an action from the policy with `key`, a `jax.random.key` or raw u32 `[2]`; see `greedy`."""
        self._check_memoryless("sample(obs, key)", "step(obs, carry, key=key, deterministic=False)")
        return self.step(obs, key=key, mask=mask, deterministic=False)[0]

    def _check_memoryless(self, called: str, instead: str) -> None:
        if "carry" in self._greedy.arguments:
            raise ConfigError(f"{called}: this policy has a memory; call {instead}, which returns (action, carry)")

    def _prepare_carry(self, carry: Any, shapes: Any, batch: int | None) -> Any:
        if carry is None:
            axis = 1 if batch is None else batch
            return jax.tree.map(lambda x: jnp.zeros((axis, *x.shape), x.dtype), shapes)
        prepared, carry_batch = _prepare_tree("carry", carry, shapes)
        if carry_batch != batch:
            raise ConfigError(f"carry: expected the batch of obs, {batch}, got {carry_batch}")
        return prepared


def load_policy(path: str | os.PathLike[str]) -> ExportedPolicy:
    """Read a folder that `export_policy` wrote. A policy is a program: calling a stranger's policy runs their code.

    ONNX files in the folder are not read, but compared with the metadata, too.

    Raises:
        ConfigError: there is no exported policy, or a file of it is damaged or of another format.
    """
    folder = as_path(path, "path")
    try:
        metadata = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
        version, files = metadata["format"], metadata["files"]
        names = (GREEDY_FILE, SAMPLING_FILE) if version in READ_FORMATS else ()
        others = [name for name in (ONNX_FILE, SAMPLING_ONNX_FILE) if name in files and (folder / name).exists()]
        digests = {name: files[name]["sha256"] for name in (*names, *others)}
        arguments = {name: list(metadata["artifacts"][name]["arguments"]) for name in names}
    except OSError:
        raise ConfigError(f"{folder}: no exported policy there (no {METADATA_FILE})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder / METADATA_FILE}: damaged ({type(error).__name__}: {error}): export it again") from None
    if version not in READ_FORMATS:
        raise ConfigError(f"{folder}: an exported policy of format {version}, but this rljax reads {FORMAT}: export it again")
    contents = {name: _read_file(folder / name, digest) for name, digest in digests.items()}
    artifacts = []
    for name in names:
        artifact = _read_artifact(folder / name, contents[name])
        shapes = [jax.ShapeDtypeStruct(x.shape if x.shape == (2,) else x.shape[1:], x.dtype) for x in artifact.in_avals]
        given = jax.tree.unflatten(artifact.in_tree, shapes)[0]
        if len(given) != len(arguments[name]):
            raise ConfigError(f"{folder / METADATA_FILE}: damaged (other arguments than those of {name}): export it again")
        artifacts.append(Artifact(jax.jit(artifact.call), dict(zip(arguments[name], given, strict=True))))
    return ExportedPolicy(metadata, *artifacts)


def _read_file(path: Path, digest: str) -> bytes:
    """Return the content of a file, after checking its digest: a damaged artifact can crash the process."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise ConfigError(f"{path}: damaged (not the file that {METADATA_FILE} describes): export it again")
    return data


def _read_artifact(path: Path, data: bytes) -> Any:
    """Return the `jax.export.Exported` that a file has as its content."""
    try:
        return jax_export.deserialize(bytearray(data))
    except ImportError:
        raise ConfigError("reading an exported policy needs flatbuffers: pip install flatbuffers") from None
    except Exception as error:
        raise ConfigError(f"{path}: JAX {jax.__version__} cannot read it: {first_line(error)}") from error


def _match_inputs(result: Any, batch: int | None, obs: Any, single: bool) -> Any:
    """Convert a result `[b, ...]` of an artifact to the kind of array of `obs`, without the axis `b` unless `obs` has it."""
    result = result if batch is not None else jax.tree.map(lambda x: x[0], result)
    if any(isinstance(x, jax.Array) for x in jax.tree.leaves(obs)):
        return result
    # Copy, since NumPy's view of a JAX array is read-only.
    return jax.tree.map(lambda x: int(x) if single else np.array(x), result)


def _prepare_tree(root: str, tree: Any, shapes: Any) -> tuple[Any, int | None]:
    """Check a tree of arrays and add a batch axis; return it and the size of its batch (None if it had no such axis)."""
    leaves, structure = jax.tree.flatten(shapes)
    # A single array may be given as a list of numbers; within a tree, lists are structure.
    given = [tree] if is_array(shapes) else jax.tree.leaves(tree)
    if not is_array(shapes) and not same_structure(tree, shapes):
        raise ConfigError(f"{root}: expected {json.dumps(describe_tree(shapes))}, got {jax.tree.structure(tree)}")
    names = leaf_names(root, shapes)
    checked, batches = zip(*map(_prepare_leaf, names, given, leaves), strict=True)
    if len(set(batches)) > 1:
        raise ConfigError(f"{root}: its parts have batches of different sizes: {dict(zip(names, batches, strict=True))}")
    return jax.tree.unflatten(structure, checked), batches[0]


def _prepare_mask(mask: Any, shape: jax.ShapeDtypeStruct, batch: int | None) -> jax.Array:
    if mask is None:
        mask = jnp.ones(shape.shape if batch is None else (batch, *shape.shape), bool)
    legal, mask_batch = _prepare_leaf("mask", mask, shape)
    if mask_batch != batch:
        raise ConfigError(f"mask: expected the batch of obs, {batch}, got {mask_batch}")
    return legal


def _prepare_key(key: Any) -> jax.Array:
    if key is None:
        raise ConfigError("key: expected jax.random.key(0) or its data, for the random numbers of this step, got None")
    is_typed = is_array(key) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    key = jax.random.key_data(key) if is_typed else jnp.asarray(key)
    if key.shape != (2,) or key.dtype != jnp.uint32:
        raise ConfigError(f"key: expected jax.random.key(0) or its data, uint32 [2], got {key.dtype} {list(key.shape)}")
    return key


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
