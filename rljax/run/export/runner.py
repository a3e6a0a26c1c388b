"""The part of a policy for NumPy that is the same for all policies; `rljax.run.export.numpy_policy` puts the rest around it."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

METADATA: Any = {}
MAKERS: Any = {}


class Policy:
    """The policy, with weights read from a file.

    Args:
        weights: path of the weights; None: weights.npz beside this file.

    Raises:
        ValueError: the weights cannot be read, or belong to another policy.
    """

    def __init__(self, weights: Any = None) -> None:
        path = Path(weights) if weights is not None else Path(__file__).with_name(METADATA["weights"]["file"])
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ValueError(f"{path}: the weights cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != METADATA["weights"]["sha256"]:
            raise ValueError(f"{path}: damaged, or the weights of another policy: export the policy again")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        self.metadata = METADATA
        self._steps = {kind: make(arrays) for kind, make in MAKERS.items()}

    def initial_carry(self, batch: Any = None) -> Any:
        """Return the carry that begins an episode: zeros, with a leading axis if there is a batch; None without memory."""
        if METADATA["carry"] is None:
            return None
        leaves = [np.zeros(((batch,) if batch else ()) + tuple(d["shape"]), d["dtype"]) for _, d in _leaves(METADATA["carry"])]
        return _build(METADATA["carry"], iter(leaves))

    def step(
        self, obs: Any, carry: Any = None, *, mask: Any = None, rng: Any = None, noise: Any = None, deterministic: bool = True
    ) -> Any:
        """Return `(action, carry)`.

        Args:
            obs: one observation, or a batch with a leading axis; METADATA["observation"] says its shape.
            carry: what the last step returned; None begins an episode. Where single episodes of a batch end, set their part of
                each array to 0. Policies without memory return None.
            mask: legal actions, bool, if METADATA["mask"] is not None; None: all are legal.
            rng: numpy.random.Generator, to sample, and for policies that draw random numbers in every step.
            noise: the random numbers themselves, arrays as METADATA["noise"] says, in place of `rng`.
            deterministic: whether to take the most likely action; False samples.

        Raises:
            ValueError: an argument has another shape or dtype than the policy takes, or random numbers are missing.
        """
        arrays, batch = _prepare("obs", obs, METADATA["observation"])
        kind = "greedy" if deterministic else "sampling"
        count = 1 if batch is None else batch
        if METADATA["carry"] is not None:
            before = self.initial_carry(batch) if carry is None else carry
            arrays += _prepare("carry", before, METADATA["carry"], batch)[0]
        elif carry is not None:
            raise ValueError("carry: this policy has no memory, expected None")
        draws = METADATA["noise"][kind]
        if draws:
            arrays += _random(draws, count, rng) if noise is None else _given_noise(draws, count, noise)
        if METADATA["mask"] is not None:
            legal = np.ones((count, *METADATA["mask"]["shape"]), bool) if mask is None else None
            arrays += [legal] if mask is None else _prepare("mask", mask, METADATA["mask"], batch)[0]
        elif mask is not None:
            raise ValueError("mask: this policy takes none, its environment has no action mask")
        with np.errstate(all="ignore"):
            results = self._steps[kind](*arrays)
        if batch is None:
            results = [x[0] for x in results]
            # Heads of a Dict are Discrete.
            if METADATA["action_space"]["type"] in ("Discrete", "Dict"):
                number = sum(1 for _ in _leaves(METADATA["action"]))
                results[:number] = [int(x) for x in results[:number]]
        left = iter(results)
        action = _build(METADATA["action"], left)
        return action, None if METADATA["carry"] is None else _build(METADATA["carry"], left)


def _leaves(tree: Any, keys: Any = ()) -> Any:
    """Yield `(keys, description)` of each array of a described tree, in the order of the arguments."""
    if tree["type"] == "array":
        yield keys, tree
    elif tree["type"] == "dict":
        for name in sorted(tree["parts"]):
            yield from _leaves(tree["parts"][name], (*keys, name))
    elif tree["type"] != "none":
        for i, part in enumerate(tree["parts"]):
            yield from _leaves(part, (*keys, i))


def _build(tree: Any, leaves: Any) -> Any:
    """Return the described tree with these arrays."""
    if tree["type"] == "array":
        return next(leaves)
    if tree["type"] == "dict":
        built = {name: _build(tree["parts"][name], leaves) for name in sorted(tree["parts"])}
        return {name: built[name] for name in tree["parts"]}
    if tree["type"] == "none":
        return None
    return (tuple if tree["type"] == "tuple" else list)(_build(part, leaves) for part in tree["parts"])


def _part(tree: Any, keys: Any, name: str, path: str) -> Any:
    """Return the array of an argument at these keys; `path` is what messages call it."""
    for key in keys:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"{name}: there is no {path}; METADATA describes what the policy takes") from None
    return tree


def _prepare(name: str, tree: Any, described: Any, batch: Any = "") -> Any:
    """Return the arrays of an argument with a batch axis, and the size of its batch, None without that axis."""
    arrays = []
    for keys, expected in _leaves(described):
        path = ".".join([name, *map(str, keys)])
        try:
            x = np.asarray(_part(tree, keys, name, path))
        except ValueError as error:
            raise ValueError(f"{path}: expected an array: {error}") from None
        shape = tuple(expected["shape"])
        if x.shape != shape and (x.shape[1:] != shape or x.ndim != len(shape) + 1 or x.shape[0] == 0):
            wanted = f"{list(shape)}, or [b, ...] of these for b of them"
            raise ValueError(f"{path}: expected shape {wanted}, got {list(x.shape)}")
        if x.dtype != expected["dtype"]:
            if not np.can_cast(x.dtype, expected["dtype"], "same_kind"):
                raise ValueError(f"{path}: expected dtype {expected['dtype']}, got {x.dtype}")
            x = x.astype(expected["dtype"])
        found = None if x.shape == shape else len(x)
        if batch == "":
            batch = found
        if found != batch:
            raise ValueError(f"{path}: expected a batch of {batch}, as the arrays before it, got {found}")
        arrays.append(x[None] if found is None else x)
    return arrays, batch


def _random(draws: Any, count: int, rng: Any) -> Any:
    """Draw the random numbers of a step."""
    if rng is None:
        raise ValueError("rng: expected numpy.random.default_rng(0), for the random numbers of this step, got None")
    arrays = []
    for draw in draws:
        shape = (count, *draw["shape"])
        if draw["distribution"] == "uniform":
            x = rng.random(shape, np.float32)
        elif draw["distribution"] == "normal":
            x = rng.standard_normal(shape, np.float32)
        elif draw["distribution"] == "gumbel":
            x = rng.gumbel(size=shape)
        else:
            x = rng.integers(0, 2**32, shape, np.uint32)
        arrays.append(x.astype(draw["dtype"]))
    return arrays


def _given_noise(draws: Any, count: int, noise: Any) -> Any:
    arrays = [np.asarray(x) for x in noise]
    shapes = [(count, *draw["shape"]) for draw in draws]
    if [x.shape for x in arrays] != shapes:
        raise ValueError(f"noise: expected arrays of shapes {shapes}, got {[x.shape for x in arrays]}")
    return [x.astype(draw["dtype"]) for x, draw in zip(arrays, draws, strict=True)]


def _gather(x: Any, indices: Any, axes: Any, sizes: Any, collapsed: Any, offset: Any) -> Any:
    """Return the entries of x from `indices[..., k]` on, `sizes[k]` of them along axis `axes[k]`, as XLA's gather does."""
    batch = indices.ndim - 1
    kept = [axis for axis in range(x.ndim) if axis not in collapsed]
    index = []
    for axis in range(x.ndim):
        place, size = np.zeros((1,) * batch, int), x.shape[axis]
        if axis in axes:
            size = sizes[axes.index(axis)]
            place = np.clip(indices[..., axes.index(axis)], 0, x.shape[axis] - size)
        place = place.reshape(place.shape + (1,) * len(kept))
        if axis in kept:
            place = place + np.arange(size).reshape([size if i == axis else 1 for i in kept])
        index.append(place)
    return np.moveaxis(x[tuple(index)], range(batch, batch + len(kept)), offset)
