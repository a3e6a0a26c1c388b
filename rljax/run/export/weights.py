"""Weights of an agent in a safetensors file, for programs in any language, and back."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rljax.core.agent import Agent, check_agent, check_state
from rljax.core.config_files import config_table
from rljax.core.errors import ConfigError, first_line, how_to_install
from rljax.core.places import as_path
from rljax.run.export.metadata import plain
from rljax.run.export.program import leaves_read
from rljax.run.export.signature import read_signature
from rljax.run.files.checkpoint import named_leaves
from rljax.run.files.outputs import atomic_file, output_path
from rljax.version import __version__

SUFFIX = ".safetensors"


def export_weights(agent: Agent, state: Any, out: str | os.PathLike[str], *, step: int | None = None) -> Path:
    """Write the parameters of `state`, and what else its policy reads (such as the statistics of observations), to a new file.

    Tensors have the names of a checkpoint's arrays, `params/params/network/actor_0/kernel` or `obs_statistics/mean`. The file's
    metadata has the algorithm, the environment, the configuration (JSON), the number of steps and the version of rljax.

    Args:
        agent: agent from `make_agent`.
        state: the agent's state, unbatched.
        out: path of the file, which ends in `.safetensors`.
        step: number of environment steps of training, for the metadata.

    Returns:
        The path.

    Raises:
        ConfigError: there is something at `out` already (nothing is touched), it cannot be written, or safetensors is not
            installed.
    """
    check_agent(agent)
    path = free_file(out)
    safetensors = _safetensors()
    signature = read_signature(agent)
    check_state(agent, state)
    # Whole fields, so that a state that reads them back is whole, too.
    fields = {"params"} | {name.split("/")[0] for name in leaves_read(agent, state, signature)}
    tensors = {name: np.array(x, order="C") for name, x in named_leaves(state) if name.split("/")[0] in fields}
    metadata = {
        "algorithm": agent.config.algorithm,
        "environment": signature.env_name,
        "config": json.dumps(plain(config_table(agent.config))),
        "step": "" if step is None else str(step),
        "rljax": __version__,
    }
    with atomic_file(path) as aside:
        aside.write_bytes(safetensors.save(tensors, metadata=metadata))
    return path


def load_weights(path: str | os.PathLike[str], state: Any) -> Any:
    """Return `state` with the arrays of a safetensors file in place of its own.

    Args:
        path: a file that `export_weights` wrote, or one with the same names.
        state: state of an agent with the same network: `agent.init(key)`, say.

    Raises:
        ConfigError: the file cannot be read, has none of the state's arrays, has only some of a field's, or does not fit.
    """
    file = as_path(path, "path")
    safetensors = _safetensors()
    try:
        tensors = safetensors.load(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from None
    except Exception as error:
        raise ConfigError(f"{file}: damaged, or no safetensors file: {first_line(error)}") from None
    named = named_leaves(state)
    here = {name for name, _ in named}
    unknown = sorted(set(tensors) - here)
    if unknown or not tensors:
        raise ConfigError(f"{file}: does not fit the state, which has no {unknown[0] if unknown else 'array of it'}")
    fields = {name.split("/")[0] for name in tensors}
    leaves = []
    for name, x in named:
        if name.split("/")[0] not in fields:
            leaves.append(x)
            continue
        if name not in tensors:
            raise ConfigError(f"{file}: does not fit the state: {name} is not in it")
        found = tensors[name]
        if found.shape != x.shape or found.dtype != x.dtype:
            there, expected = f"{found.dtype}{list(found.shape)}", f"{x.dtype}{list(x.shape)}"
            raise ConfigError(f"{file}: does not fit the state: {name} is {there}, expected {expected}")
        leaves.append(jax.numpy.asarray(found))
    return jax.tree.unflatten(jax.tree.structure(state), leaves)


def free_file(out: str | os.PathLike[str]) -> Path:
    """Return the path of a file to create.

    Raises:
        ConfigError: it has another suffix, or there is something at it already.
    """
    path = output_path(out, (SUFFIX,))
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already: choose another file for the weights, or delete it first")
    return path


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.numpy")
    except ImportError:
        raise ConfigError(f"safetensors is not installed: {how_to_install('safetensors')}") from None
