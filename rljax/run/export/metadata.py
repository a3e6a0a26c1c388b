"""metadata.json: inputs and outputs of an exported policy, for readers without rljax."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.spaces import Dict
from rljax.run.export.signature import Signature, action_shapes, batched, input_names, leaf_names
from rljax.version import __version__

FORMAT = 1
"""Format of the folder; a reader refuses any other."""

GREEDY_FILE, SAMPLING_FILE, ONNX_FILE, METADATA_FILE = "greedy.jax", "sampling.jax", "greedy.onnx", "metadata.json"


def describe_tree(tree: Any) -> Any:
    """Describe the shapes and dtypes of a tree for JSON."""
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


def describe_artifacts(signature: Signature, exported: Mapping[str, Any], onnx: bool) -> dict[str, Any]:
    """Describe the arguments and the result of each file's function."""
    shapes = dict(zip(("obs", "mask"), batched(signature), strict=False))
    arguments = {name: describe_tree(x) for name, x in shapes.items()}
    key = {"key": {"type": "array", "shape": [2], "dtype": "uint32"}}
    action = describe_tree(action_shapes(exported[GREEDY_FILE]))
    mask = {name: x for name, x in arguments.items() if name == "mask"}
    calls = {
        GREEDY_FILE: {"arguments": arguments, "result": action},
        SAMPLING_FILE: {"arguments": {"obs": arguments["obs"], **key, **mask}, "result": action},
    }
    if onnx:
        inputs = dict(zip(input_names(signature), map(describe_tree, jax.tree.leaves(batched(signature))), strict=True))
        leaves = jax.tree.leaves(action_shapes(exported[GREEDY_FILE]))
        outputs = dict(zip(leaf_names("action", action_shapes(exported[GREEDY_FILE])), map(describe_tree, leaves), strict=True))
        calls[ONNX_FILE] = {"arguments": inputs, "result": outputs}
    return calls


def versions(onnx: bool) -> dict[str, str]:
    from importlib.metadata import version

    versions = {"rljax": __version__, "jax": jax.__version__}
    return versions | ({name: version(name) for name in ("jax2onnx", "onnx")} if onnx else {})


def example(signature: Signature) -> list[str]:
    """Return lines of Python that use the artifacts from within their folder."""
    mask = "" if signature.mask is None else f", jnp.ones({(1, *signature.mask.shape)}, bool)"
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
        f"action = jax.jit(greedy.call)(obs{mask})",
        f"action = jax.jit(sampling.call)(obs, jax.random.PRNGKey(0){mask})",
    ]


def _zeros_code(tree: Any) -> str:
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {_zeros_code(part)}" for name, part in tree.items()) + "}"
    if isinstance(tree, (tuple, list)):
        parts = "".join(_zeros_code(part) + ", " for part in tree)
        return f"({parts})" if isinstance(tree, tuple) else f"[{parts}]"
    return f"jnp.zeros({(1, *tree.shape)}, {jnp.dtype(tree.dtype).name!r})"


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
