"""What a dataset holds: its spaces as tables, the names of its arrays, and the fields of its dataset.json.

A dataset is a folder: `dataset.json` (sealed, see `rljax.core.sealed`), and `shards/00000`, `shards/00001`, ... with one plain
array of NumPy for each leaf of a step, the steps of whole episodes one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jax.numpy as jnp
import numpy as np

from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple, as_space
from rljax.core.errors import ConfigError, shown
from rljax.core.sealed import Field, list_of, whole

DATASET_FILE = "dataset.json"
SHARDS = "shards"

STEP_LEAVES = ("reward", "terminated", "truncated")
"""Arrays with a row for each step, besides those of the action."""

EPISODE_LEAVES = {"length": "int64", "return": "float32", "seat": "int32", "game": "int64"}
"""Arrays with a row for each episode, and their dtypes. Episodes of several seats of one game have the same number `game`."""


BITS = "bits"
"""Dtype of masks: bool, of which 8 along the last axis are a byte in the file (`np.packbits`)."""


WRAPPERS = "wrappers"
"""Entry of `DatasetInfo.recorded`: the configuration's fields that wrapped the environment, where there are any."""


class DatasetInfo(NamedTuple):
    """What the steps of a dataset are.

    Attributes:
        env: name of the environment or game.
        env_params: parameters of it that differ from its own.
        observation_space: space of an observation (of one player).
        action_space: space of an action (of one player).
        masks: whether steps have the legal actions.
        recorded: who acted, against whom, and how, as a table of texts and numbers.
        frames: number of observations of an episode that are joined to one when it is read, see `frames_taken`; no part of the
            files.
    """

    env: str
    env_params: dict[str, Any]
    observation_space: Space
    action_space: Space
    masks: bool
    recorded: dict[str, Any] = {}  # noqa: RUF012
    frames: int = 1

    @property
    def wrappers(self) -> dict[str, Any]:
        """Fields of the recorded run's configuration that wrapped the environment, by name."""
        fields: dict[str, Any] = self.recorded.get(WRAPPERS, {})
        return fields


def rows_per_episode(leaf: str) -> int:
    """Return how many rows more than steps an episode has: 1 for what is seen after the last step, too, else 0."""
    return int(leaf == "mask" or leaf == "obs" or leaf.startswith("obs."))


def stored_row(shape: Sequence[int], dtype: str) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and dtype that a row has in its file."""
    if dtype != BITS:
        return tuple(shape), np.dtype(dtype)
    return (*shape[:-1], -(-shape[-1] // 8)), np.dtype(np.uint8)


def named_leaves(name: str, tree: Any) -> dict[str, Any]:
    """Return the leaves of nested dictionaries and tuples by name: "obs", or "obs.KEY" and "obs.0" of a dictionary and a tuple.

    Raises:
        ConfigError: the tree has nodes of other types.
    """
    if isinstance(tree, Mapping):
        parts = [(_quoted(key), tree[key]) for key in sorted(tree)]
    elif isinstance(tree, (tuple, list)):
        parts = [(str(index), part) for index, part in enumerate(tree)]
    elif hasattr(tree, "shape") and hasattr(tree, "dtype"):
        return {name: tree}
    else:
        raise ConfigError(f"{name}: a {type(tree).__name__} cannot be recorded, expected arrays, dictionaries and tuples of them")
    return {key: leaf for part, below in parts for key, leaf in named_leaves(f"{name}.{part}", below).items()}


def tree_of(name: str, space: Any, leaves: Mapping[str, Any]) -> Any:
    """Undo `named_leaves` for elements of a space."""
    if isinstance(space, Dict):
        return {
            key: tree_of(f"{name}.{quote(str(key), safe='').replace('.', '%2E')}", s, leaves) for key, s in space.spaces.items()
        }
    if isinstance(space, Tuple):
        return tuple(tree_of(f"{name}.{index}", part, leaves) for index, part in enumerate(space.spaces))
    return leaves[name]


def _quoted(key: str) -> str:
    """Return the key of a dictionary as a part of a file's name."""
    return quote(str(key), safe="").replace(".", "%2E")


def space_table(space: Any) -> dict[str, Any]:
    """Return a space as a table of JSON; bounds of a Box that are the same everywhere are one number, and null has no bound."""
    space = as_space(space)
    if isinstance(space, Discrete):
        return {"type": "Discrete", "n": space.n, "dtype": np.dtype(space.dtype).name}
    if isinstance(space, MultiDiscrete):
        table = {"type": "MultiDiscrete", "nvec": list(space.nvec), "dtype": np.dtype(space.dtype).name}
        conditions = [c and [c[0], list(c[1])] for c in space.only_if or ()]
        return table | ({"only_if": conditions} if conditions else {})
    if isinstance(space, Dict):
        return {"type": "Dict", "spaces": [[name, space_table(part)] for name, part in space.spaces.items()]}
    if isinstance(space, Tuple):
        return {"type": "Tuple", "spaces": [space_table(part) for part in space.spaces]}
    bounds = {"low": _bound(space.low, space.shape), "high": _bound(space.high, space.shape)}
    return {"type": "Box", **bounds, "shape": list(space.shape), "dtype": np.dtype(space.dtype).name}


def read_space(table: Any) -> Space:
    """Undo `space_table`.

    Raises:
        ValueError, TypeError or KeyError: the table is not of a space.
    """
    kind = table["type"]
    if kind == "Discrete":
        return Discrete(table["n"], _dtype(table))
    if kind == "MultiDiscrete":
        only_if = tuple(c and (c[0], tuple(c[1])) for c in table["only_if"]) if "only_if" in table else None
        return MultiDiscrete(tuple(table["nvec"]), _dtype(table), only_if)
    if kind == "Dict":
        return Dict({name: read_space(part) for name, part in table["spaces"]})
    if kind == "Tuple":
        return Tuple(tuple(read_space(part) for part in table["spaces"]))
    if kind != "Box":
        raise ValueError(f"a space of type {shown(kind)}")
    low, high = (_unbound(table[name], infinity) for name, infinity in (("low", -np.inf), ("high", np.inf)))
    return Box(low, high, tuple(table["shape"]), _dtype(table))


def _dtype(table: Mapping[str, Any]) -> Any:
    return jnp.dtype(table["dtype"]).type


def _bound(bound: Any, shape: tuple[int, ...]) -> Any:
    """Return a bound for JSON: one number if it is the same everywhere, else nested lists; None where there is no bound."""
    array = np.broadcast_to(np.asarray(bound, np.float64), shape)
    array = np.where(np.abs(array) > 1e30, np.nan, array)  # the largest f32 stands for "no bound" in many environments
    if array.size and (np.all(array == array.flat[0]) or np.all(np.isnan(array))):
        return None if np.isnan(array.flat[0]) else float(array.flat[0])
    return _without_nan(array.tolist())


def _without_nan(x: Any) -> Any:
    if isinstance(x, list):
        return [_without_nan(part) for part in x]
    return None if x != x else x


def _unbound(bound: Any, infinity: float) -> Any:
    array = np.array(bound, np.float64)  # None becomes NaN
    return np.where(np.isnan(array), infinity, array).astype(np.float32)


def leaf_path(folder: Path, shard: int, leaf: str) -> Path:
    """Return the file of an array of a shard."""
    return folder / SHARDS / f"{shard:05}" / f"{leaf}.npy"


def _is_space(x: Any) -> bool:
    try:
        read_space(x)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return False
    return True


def _is_leaf(x: Any) -> bool:
    """Return whether a value is `[shape, dtype]` of a row."""
    if not (isinstance(x, list) and len(x) == 2 and isinstance(x[0], list) and all(map(whole().test, x[0]))):
        return False
    if x[1] == BITS:
        return len(x[0]) > 0
    return x[1] in DTYPES


def _is_shard(x: Any) -> bool:
    """Return whether a value is `{"steps", "episodes", "files": {leaf: [size, SHA-256]}}`."""
    counts = isinstance(x, dict) and all(whole(1).test(x.get(name)) for name in ("steps", "episodes"))
    return counts and isinstance(x.get("files"), dict) and all(map(_is_sum, x["files"].values()))


def _is_sum(x: Any) -> bool:
    sized = isinstance(x, list) and len(x) == 2 and whole().test(x[0])
    return sized and isinstance(x[1], str) and re.fullmatch("[0-9a-f]{64}", x[1]) is not None


def _is_leaf_name(x: Any) -> bool:
    return isinstance(x, str) and re.fullmatch(r"[\w.%~-]+", x) is not None and ".." not in x


_TABLE = Field("a table", lambda x: isinstance(x, dict))

FIELDS = {
    "kind": Field("demonstrations", lambda x: x == "demonstrations"),
    "env": Field("the name of an environment", lambda x: isinstance(x, str) and 0 < len(x) < 300),
    "env_params": _TABLE,
    "observation_space": Field("a space", _is_space),
    "action_space": Field("a space", _is_space),
    "masks": Field("true or false", lambda x: isinstance(x, bool)),
    "recorded": _TABLE,
    "episodes_begun": whole(),
    "leaves": Field(
        "a table of [shape, dtype]",
        lambda x: isinstance(x, dict) and all(map(_is_leaf, x.values())) and all(map(_is_leaf_name, x)),
    ),
    "shards": list_of(_is_shard, "shards"),
}
"""Fields of dataset.json. `episodes_begun` counts episodes, including those to record again after a kill."""

DTYPES = ("bool", "uint8", "uint16", "uint32", "int8", "int16", "int32", "int64", "float16", "float32")
"""Dtypes of arrays in a dataset."""
