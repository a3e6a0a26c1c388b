"""metadata.json: inputs and outputs of an exported policy, for readers without rljax."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.environments.spaces import Dict
from rljax.run.export.signature import Signature, leaf_names
from rljax.run.export.steps import PolicyStep
from rljax.version import __version__

FORMAT = 2
"""Format of the folder."""

READ_FORMATS = (1, 2)
"""Formats that can be read: 1 is for policies without memory, and those are the same in 2."""

GREEDY_FILE, SAMPLING_FILE, METADATA_FILE = "greedy.jax", "sampling.jax", "metadata.json"
ONNX_FILE, SAMPLING_ONNX_FILE = "greedy.onnx", "sampling.onnx"


def describe_tree(tree: Any) -> Any:
    """Describe the shapes and dtypes of a tree for JSON."""
    if tree is None:
        return {"type": "none"}
    if isinstance(tree, dict):
        return {"type": "dict", "parts": {name: describe_tree(part) for name, part in tree.items()}}
    if isinstance(tree, (tuple, list)):
        return {"type": type(tree).__name__, "parts": [describe_tree(part) for part in tree]}
    shape = [n if isinstance(n, int) else str(n) for n in tree.shape]
    return {"type": "array", "shape": shape, "dtype": jnp.dtype(tree.dtype).name}


def describe_space(space: Any) -> dict[str, Any]:
    """Describe an action space for JSON, with its number of actions or its bounds; an infinite bound becomes null.

    Named heads are listed in their order, which the pytree of an action does not keep.
    """
    if isinstance(space, Dict):
        return {"type": "Dict", "heads": [{"name": name, **describe_space(part)} for name, part in space.spaces.items()]}
    description: dict[str, Any] = {"type": type(space).__name__, "shape": list(space.shape), "dtype": jnp.dtype(space.dtype).name}
    bounds = {name: np.asarray(getattr(space, name)).tolist() for name in ("n", "nvec", "low", "high") if hasattr(space, name)}
    return description | bounds


def describe_artifact(step: PolicyStep, exported: Any) -> dict[str, Any]:
    """Describe the arguments and the result of a `jax.export` artifact's function."""
    arguments = {name: describe_tree(tree) for name, tree in step.inputs(key=True).items()}
    return {"arguments": arguments, "result": describe_tree(results_of(exported))}


def describe_onnx(step: PolicyStep, exported: Any) -> dict[str, Any]:
    """Describe the inputs and outputs of an ONNX file, each an array."""
    results = results_of(exported)
    named = {"action": results} if step.carry is None else {"action": results[0], "next_carry": results[1]}
    names = [name for root, tree in named.items() for name in leaf_names(root, tree)]
    return {"arguments": onnx_inputs(step), "result": dict(zip(names, map(describe_tree, jax.tree.leaves(named)), strict=True))}


def onnx_inputs(step: PolicyStep) -> dict[str, Any]:
    """Describe the inputs of an ONNX file by name; of random numbers also the distribution."""
    leaves = [describe_tree(x) for x in jax.tree.leaves(list(step.inputs(key=False).values()))]
    inputs = dict(zip(step.input_names(), leaves, strict=True))
    for i, draw in enumerate(step.draws):
        inputs[f"noise.{i}"]["distribution"] = draw.distribution
    return inputs


def results_of(exported: Any) -> Any:
    """Return the shapes of what an artifact returns, `[b, ...]`."""
    return jax.tree.unflatten(exported.out_tree, exported.out_avals)


def versions(onnx: bool) -> dict[str, str]:
    from importlib.metadata import version

    versions = {"rljax": __version__, "jax": jax.__version__}
    return versions | ({name: version(name) for name in ("jax2onnx", "onnx")} if onnx else {})


def example(signature: Signature, greedy: PolicyStep) -> list[str]:
    """Return lines of Python that use the artifacts from within their folder."""
    memory = greedy.carry is not None
    mask = "" if signature.mask is None else f", jnp.ones({(1, *signature.mask.shape)}, bool)"
    inputs, results = ("obs, carry", "action, carry") if memory else ("obs", "action")
    key = ", jax.random.PRNGKey(0)"
    return [
        "import jax",
        "import jax.numpy as jnp",
        "from jax import export  # reading artifacts also needs the package flatbuffers",
        "",
        f'with open("{GREEDY_FILE}", "rb") as file:',
        "    greedy = export.deserialize(bytearray(file.read()))",
        f'with open("{SAMPLING_FILE}", "rb") as file:',
        "    sampling = export.deserialize(bytearray(file.read()))",
        f"obs = {_zeros_code(signature.obs)}  # any batch size in place of 1",
        *([f"carry = {_zeros_code(greedy.carry)}  # zeros begin an episode"] if memory else []),
        f"{results} = jax.jit(greedy.call)({inputs}{key if greedy.draws else ''}{mask})",
        f"{results} = jax.jit(sampling.call)({inputs}{key}{mask})",
    ]


def _zeros_code(tree: Any) -> str:
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {_zeros_code(part)}" for name, part in tree.items()) + "}"
    if isinstance(tree, (tuple, list)):
        parts = "".join(_zeros_code(part) + ", " for part in tree)
        return f"({parts})" if isinstance(tree, tuple) else f"[{parts}]"
    return "None" if tree is None else f"jnp.zeros({(1, *tree.shape)}, {jnp.dtype(tree.dtype).name!r})"


def plain(value: Any) -> Any:
    """Convert a value for JSON; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
