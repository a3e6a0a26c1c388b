"""metadata.json: what goes into a policy and comes out of it, for readers without rljax."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.spaces import Dict
from rljax.run.export.signature import Signature, action_of, batched, input_names, leaf_names
from rljax.version import __version__

FORMAT = 1
"""Of the folder; a reader refuses another."""

GREEDY_FILE, SAMPLING_FILE, ONNX_FILE, METADATA_FILE = "greedy.jax", "sampling.jax", "greedy.onnx", "metadata.json"


def described(tree: Any) -> Any:
    """Shapes and dtypes of a tree as JSON can hold them."""
    if isinstance(tree, dict):
        return {"type": "dict", "parts": {name: described(part) for name, part in tree.items()}}
    if isinstance(tree, (tuple, list)):
        return {"type": type(tree).__name__, "parts": [described(part) for part in tree]}
    shape = [n if isinstance(n, int) else str(n) for n in tree.shape]
    return {"type": "array", "shape": shape, "dtype": jnp.dtype(tree.dtype).name}


def space_described(space: Any) -> dict[str, Any]:
    """The same for an action space, with its number of actions or its bounds; no bound is null, as JSON has no infinity.

    Named heads are in their order, which the pytree of an action does not have.
    """
    if isinstance(space, Dict):
        return {"type": "Dict", "heads": [{"name": name, **space_described(part)} for name, part in space.spaces.items()]}
    description: dict[str, Any] = {"type": type(space).__name__, "shape": list(space.shape), "dtype": jnp.dtype(space.dtype).name}
    bounds = {name: np.asarray(getattr(space, name)).tolist() for name in ("n", "nvec", "low", "high") if hasattr(space, name)}
    return description | bounds


def artifacts(signature: Signature, exported: Mapping[str, Any], onnx: bool) -> dict[str, Any]:
    """How each file is called."""
    shapes = dict(zip(("obs", "mask"), batched(signature), strict=False))
    arguments = {name: described(x) for name, x in shapes.items()}
    key = {"key": {"type": "array", "shape": [2], "dtype": "uint32"}}
    action = described(action_of(exported[GREEDY_FILE]))
    mask = {name: x for name, x in arguments.items() if name == "mask"}
    calls = {
        GREEDY_FILE: {"arguments": arguments, "result": action},
        SAMPLING_FILE: {"arguments": {"obs": arguments["obs"], **key, **mask}, "result": action},
    }
    if onnx:
        inputs = dict(zip(input_names(signature), map(described, jax.tree.leaves(batched(signature))), strict=True))
        leaves = jax.tree.leaves(action_of(exported[GREEDY_FILE]))
        outputs = dict(zip(leaf_names("action", action_of(exported[GREEDY_FILE])), map(described, leaves), strict=True))
        calls[ONNX_FILE] = {"arguments": inputs, "result": outputs}
    return calls


def versions(onnx: bool) -> dict[str, str]:
    from importlib.metadata import version

    versions = {"rljax": __version__, "jax": jax.__version__}
    return versions | ({name: version(name) for name in ("jax2onnx", "onnx")} if onnx else {})


def example(signature: Signature) -> list[str]:
    """Lines of Python that use the artifacts from within their folder."""
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
    """The value as JSON knows it; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
