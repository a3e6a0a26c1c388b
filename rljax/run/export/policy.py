"""Export: a trained policy as a folder of files that run without rljax.

    greedy.jax     greedy(obs [b, ...]) -> action [b, ...]               a `jax.export` artifact for CPU, CUDA and TPU
    sampling.jax   sampling(obs [b, ...], key u32 [2]) -> action [b, ...]
    greedy.onnx    the same functions for ONNX runtimes (only if jax2onnx is installed), with random numbers as inputs
    sampling.onnx  in place of the key
    metadata.json  inputs and outputs, the origin of the policy, and an example that needs only jax

Parameters and observation normaliser are constants of the artifacts, and `b` is any batch size. A policy with memory takes its
carry after the observation, and returns `(action, carry)`; zeros begin an episode. One that draws random numbers in every step,
as Dreamer's latent states are, takes a key in greedy.jax, too. If the environment has an action mask, all functions take `mask`
bool `[b, flat_dim]` (`[b, flat_dim, flat_dim]` if heads rule out actions of later ones) after their other arguments. An action
with named heads is a dictionary of arrays `[b]`, with an ONNX output for each. In a game, all of this is of one seat.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import export as jax_export

from rljax.core.agent import Agent, check_state
from rljax.core.errors import ConfigError, first_line
from rljax.core.places import LOCK_FILE, as_path, atomic_folder, refuse_working_directory
from rljax.run.export.metadata import (
    FORMAT,
    GREEDY_FILE,
    METADATA_FILE,
    ONNX_FILE,
    SAMPLING_FILE,
    SAMPLING_ONNX_FILE,
    describe_artifact,
    describe_onnx,
    describe_space,
    describe_tree,
    example,
    plain,
    versions,
)
from rljax.run.export.onnx import onnx_or_reason
from rljax.run.export.signature import read_signature, search_note, to_export
from rljax.run.export.steps import read_step

PLATFORMS = ("cpu", "cuda", "tpu")


class ExportReport(NamedTuple):
    """Result of `export_policy`: the folder, the bytes of each file, and for each ONNX file that is not there the reason."""

    path: Path
    files: dict[str, int]
    left_out: dict[str, str]

    @property
    def no_onnx(self) -> str | None:
        """Why there is no greedy.onnx; None if there is one."""
        return self.left_out.get(ONNX_FILE)


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
        onnx: write `greedy.onnx` and `sampling.onnx`, too, if the policy can be converted; the report says why not.

    Raises:
        ConfigError: there is something at `out` already (nothing is touched), it cannot be written, or `jax.export` cannot
            export the policy.
    """
    folder = Path(os.path.abspath(as_path(out, "out")))
    check_free(folder)
    agent = to_export(agent)
    signature = read_signature(agent)
    check_state(agent, state)
    steps = {name: read_step(agent, state, signature, name == GREEDY_FILE) for name in (GREEDY_FILE, SAMPLING_FILE)}
    exported = {name: _export(step.keyed(state), *step.inputs(key=True).values()) for name, step in steps.items()}
    contents = {name: _serialize(artifact) for name, artifact in exported.items()}
    artifacts = {name: describe_artifact(steps[name], exported[name]) for name in exported}
    left_out = {} if onnx else dict.fromkeys((ONNX_FILE, SAMPLING_ONNX_FILE), "not requested")
    for name, source in ((ONNX_FILE, GREEDY_FILE), (SAMPLING_ONNX_FILE, SAMPLING_FILE)):
        if name not in left_out:
            model, reason = onnx_or_reason(steps[source], state)
            if model is None:
                left_out[name] = str(reason)
            else:
                contents[name], artifacts[name] = model, describe_onnx(steps[source], exported[source])
    greedy = steps[GREEDY_FILE]
    metadata = {
        "format": FORMAT,
        "algorithm": agent.config.algorithm,
        "environment": signature.env_name,
        "note": search_note(agent.config),
        "step": step,
        "run": None if run_info is None else dict(run_info),
        "observation": describe_tree(signature.obs),
        "action_space": describe_space(signature.action_space),
        "mask": None if signature.mask is None else describe_tree(signature.mask),
        "carry": None if greedy.carry is None else describe_tree(greedy.carry),
        "platforms": list(PLATFORMS),
        "artifacts": artifacts,
        "versions": versions(ONNX_FILE in contents),
        "files": {name: {"bytes": len(x), "sha256": hashlib.sha256(x).hexdigest()} for name, x in contents.items()},
        "example": example(signature, greedy),
    }
    contents[METADATA_FILE] = (json.dumps(plain(metadata), indent=2, allow_nan=False) + "\n").encode()
    write_whole(folder, contents)
    return ExportReport(folder, {name: len(content) for name, content in contents.items()}, left_out)


def check_free(folder: Path) -> None:
    """Refuse a path at which there is something else than an empty folder, and the working directory."""
    refuse_working_directory(folder)
    try:
        if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
            raise ConfigError(f"{folder} exists already: choose another folder for the policy, or delete it first")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from None


def write_whole(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files to a new folder, which appears whole: no reader finds only some of them."""
    try:
        with atomic_folder(folder) as aside:
            for name, content in contents.items():
                (aside / name).write_bytes(content)
        (folder / LOCK_FILE).unlink(missing_ok=True)  # nothing else will be written there
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from None


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
