"""Export: a trained policy as a folder of files that run without rljax.

    greedy.jax     greedy(obs [b, ...]) -> action [b, ...]               a `jax.export` artifact for CPU, CUDA and TPU
    sampling.jax   sampling(obs [b, ...], key u32 [2]) -> action [b, ...]
    greedy.onnx    the same greedy policy for ONNX runtimes (only if jax2onnx is installed)
    metadata.json  inputs and outputs, the origin of the policy, and an example that needs only jax

Parameters and observation normaliser are constants of the artifacts, and `b` is any batch size. If the environment has an action
mask, both functions take `mask` bool `[b, flat_dim]` (`[b, flat_dim, flat_dim]` if heads rule out actions of later ones) after
their other arguments. An action with named heads is a dictionary of arrays `[b]`, with an ONNX output for each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import export as jax_export

from rljax.core.agent import Agent
from rljax.core.errors import ConfigError, first_line
from rljax.run.export.metadata import (
    FORMAT,
    GREEDY_FILE,
    METADATA_FILE,
    ONNX_FILE,
    SAMPLING_FILE,
    describe_artifacts,
    describe_space,
    describe_tree,
    example,
    plain,
    versions,
)
from rljax.run.export.onnx import onnx_or_reason
from rljax.run.export.signature import batched, check_memoryless, check_state, read_signature

PLATFORMS = ("cpu", "cuda", "tpu")


class ExportReport(NamedTuple):
    """Result of `export_policy`: the folder, the bytes of each file, and why there is no ONNX file (None if there is one)."""

    path: Path
    files: dict[str, int]
    no_onnx: str | None


def export_policy(
    agent: Agent,
    state: Any,
    out: str | os.PathLike[str],
    *,
    step: int | None = None,
    run_info: Mapping[str, Any] | None = None,
    onnx: bool = True,
) -> ExportReport:
    """Write the policy of `state` to a new folder `out`, which appears whole or not at all.

    Args:
        agent: agent from `make_agent`.
        state: the agent's state, unbatched; the files contain only the parts that `agent.act` reads.
        out: path of a folder to create, or of an empty one.
        step: number of environment steps of training, for the metadata.
        run_info: further entries for the metadata.
        onnx: write `greedy.onnx`, too, if the policy can be converted; the report says why not.

    Raises:
        ConfigError: there is something at `out` already (nothing is touched), it cannot be written, or `jax.export` cannot
            export the policy.
    """
    folder = Path(os.path.abspath(out))
    _check_free(folder)
    signature = read_signature(agent)
    check_state(agent, state)
    check_memoryless(agent, state, signature)

    def greedy(obs: Any, *mask: jax.Array) -> Any:
        return agent.act(state, obs, None, jax.random.key(0), True, *mask)[0]

    def sampling(obs: Any, key: jax.Array, *mask: jax.Array) -> Any:
        # Take raw bits for a fixed generator: for a typed key the reader would need more than jax's defaults.
        return agent.act(state, obs, None, jax.random.wrap_key_data(key, impl="threefry2x32"), False, *mask)[0]

    obs, *mask = batched(signature)
    exported = {
        GREEDY_FILE: _export(greedy, obs, *mask),
        SAMPLING_FILE: _export(sampling, obs, jax.ShapeDtypeStruct((2,), jnp.uint32), *mask),
    }
    contents = {name: _serialize(artifact) for name, artifact in exported.items()}
    no_onnx: str | None = "not requested"
    if onnx:
        model, no_onnx = onnx_or_reason(greedy, exported[GREEDY_FILE], signature)
        contents |= {} if model is None else {ONNX_FILE: model}
    metadata = {
        "format": FORMAT,
        "algorithm": agent.config.algorithm,
        "environment": signature.env_name,
        "step": step,
        "run": None if run_info is None else dict(run_info),
        "observation": describe_tree(signature.obs),
        "action_space": describe_space(signature.action_space),
        "mask": None if signature.mask is None else describe_tree(signature.mask),
        "platforms": list(PLATFORMS),
        "artifacts": describe_artifacts(signature, exported, ONNX_FILE in contents),
        "versions": versions(ONNX_FILE in contents),
        "files": {name: {"bytes": len(x), "sha256": hashlib.sha256(x).hexdigest()} for name, x in contents.items()},
        "example": example(signature),
    }
    contents[METADATA_FILE] = (json.dumps(plain(metadata), indent=2, allow_nan=False) + "\n").encode()
    _write_whole(folder, contents)
    return ExportReport(folder, {name: len(content) for name, content in contents.items()}, no_onnx)


def _check_free(folder: Path) -> None:
    try:
        if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
            raise ConfigError(f"{folder} exists already: choose another folder for the policy, or delete it first")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from None


def _write_whole(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files to a temporary folder and rename it, so that no reader finds only some of them."""
    aside = folder.with_name(f".writing_{folder.name}_{os.getpid()}")
    try:
        aside.mkdir(parents=True)
        for name, content in contents.items():
            (aside / name).write_bytes(content)
        aside.rename(folder)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _export(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the function as a `jax.export.Exported`. JIT drops the parts that the action does not need, such as the critic."""
    try:
        with _no_source_locations():
            return jax_export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
    except Exception as error:
        raise ConfigError(f"the policy cannot be exported for any batch size: {first_line(error)}") from error


def _serialize(exported: Any) -> bytes:
    try:
        return bytes(exported.serialize())
    except ImportError:
        raise ConfigError("exporting a policy needs flatbuffers: pip install flatbuffers") from None


@contextlib.contextmanager
def _no_source_locations() -> Iterator[None]:
    """Trace programs without source locations: otherwise an artifact would contain the file names of its author."""
    option = "jax_traceback_in_locations_limit"
    before = getattr(jax.config, option)
    jax.config.update(option, 0)
    try:
        yield
    finally:
        jax.config.update(option, before)
