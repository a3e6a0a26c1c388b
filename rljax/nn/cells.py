"""Actor-critic for grids whose every cell has actions of its own (GridNet; Han et al., "Grid-wise control for multi-agent
reinforcement learning in video games", 2019).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.core.environments.wrappers import split_privileged
from rljax.core.errors import ConfigError
from rljax.nn.modules.images import Convolution
from rljax.nn.modules.layers import dense_layers, hidden_layers, perceptron, together, values
from rljax.nn.modules.recurrent import CellMemory
from rljax.nn.observations import ravel_observation

ONE_GRID = "network.encoder = 'cells': expected observations with one grid, [height, width, channels]"


class _Cells(nn.Module):
    """Attributes that the modules of a policy for each cell share.

    Attributes:
        num_outputs: length of the policy output, a multiple of H W.
        num_values: number of value heads.
        channels: number of channels of each convolution.
        kernels: width of each kernel, odd numbers.
        dilations: distance between the cells that a kernel sees, for each convolution; None: 1, neighbours.
        hidden: sizes of the dense layers before the value.
        activation: a name in `ACTIVATIONS`.
        policy_gain: gain of the policy's last layer.
        dtype: dtype of the products before the last layer, such as `jnp.bfloat16`; None: f32.
    """

    num_outputs: int
    num_values: int = 1
    channels: tuple[int, ...] = (32, 32)
    kernels: tuple[int, ...] = (3, 3)
    dilations: tuple[int, ...] | None = None
    hidden: tuple[int, ...] = (64,)
    activation: str = "relu"
    policy_gain: float = 0.01
    dtype: Any = None


class CellActorCritic(_Cells):
    """Convolutions that keep the sides of the grid, then a policy for each cell and a value of the whole grid.

    It maps observations `[B, H, W, C]` to `(outputs [B, H W K], value [B])`, or `value [B, num_values]`; the outputs are those of
    the cells, row by row, K for each. A cell's outputs depend on the features around it, and on the means over the grid; the
    value depends on the means and the maxima over the grid. A cell sees `sum(dilation * (kernel // 2))` cells to each side;
    dilations that double (Yu and Koltun, "Multi-scale context aggregation by dilated convolutions", 2016) let it see a large
    grid, at the price of a small one. `privileged`, if given, joins the input of the value only. Of observations that are
    dictionaries, one entry is the grid, and the numbers of all others (a goal) are channels of every cell.
    """

    @nn.compact
    def __call__(self, obs: Any, privileged: Any = None) -> tuple[jax.Array, jax.Array]:
        return _heads(self, _convolved(self, _grid(obs), range(len(self.channels))), privileged)


class RecurrentCellActorCritic(CellMemory, _Cells):
    """`CellActorCritic` with a memory in every cell of the grid, which remembers what was where: a recurrent cell, the same for
    all of them, takes the features after the first convolution and their means over the grid, and its output is among the
    features that the other convolutions see.

    `Policy` documents the methods.

    Attributes:
        cell: a `GRUCell` or another cell with the same methods.
        num_cells: H W, the number of cells of the grid. The carry is the recurrent cell's, `[..., H W, S]`.
    """

    cell: Any = None
    num_cells: int = 1

    def setup(self) -> None:
        told = {each.name: getattr(self, each.name) for each in dataclasses.fields(_Cells) if each.name not in ("parent", "name")}
        self.stem, self.both_heads = CellStem(**told), CellHeads(**told)

    def initial_carry(self, batch: tuple[int, ...]) -> Any:
        return super().initial_carry((*batch, self.num_cells))

    def embed(self, obs: Any) -> CellFeatures:
        x = self.stem(obs)
        cells = x.reshape(-1, self.num_cells, x.shape[-1])
        mean = jnp.mean(cells, axis=-2, keepdims=True)
        return CellFeatures(self.cell.project(jnp.concatenate([cells, jnp.broadcast_to(mean, cells.shape)], axis=-1)), x)

    def heads(self, carry: Any, x: CellFeatures, privileged: Any) -> tuple[jax.Array, jax.Array]:
        outputs, value = self.both_heads(x.cells, self.cell.output(carry), privileged)
        return outputs, value


class CellFeatures(NamedTuple):
    """The input's part of the recurrent cell's gates `[B, H W, G]`, and the features of the grid `[B, H, W, C]`."""

    x: jax.Array
    cells: jax.Array


class CellStem(_Cells):
    """The first convolution: `obs [B, ...] -> [B, H, W, C]`, f32."""

    @nn.compact
    def __call__(self, obs: Any) -> jax.Array:
        return _convolved(self, _grid(obs), range(1))


class CellHeads(_Cells):
    """The other convolutions, the policy of each cell and the value of the grid:
    `(cells [..., H, W, C], memory [..., H W, S], privileged [..., *]) -> (outputs [..., H W K], value [...])`."""

    @nn.compact
    def __call__(self, cells: jax.Array, memory: jax.Array, privileged: Any) -> tuple[jax.Array, jax.Array]:
        batch, sides = cells.shape[:-3], cells.shape[-3:-1]
        x = jnp.concatenate([cells, memory.reshape(*batch, *sides, memory.shape[-1])], axis=-1)
        x = x.reshape(-1, *sides, x.shape[-1])
        privileged = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(batch) :]), privileged)
        outputs, value = _heads(self, _convolved(self, x, range(1, len(self.channels))), privileged)
        return outputs.reshape(*batch, -1), value.reshape(*batch, *value.shape[1:])


def _convolved(module: _Cells, x: jax.Array, which: range) -> jax.Array:
    """Apply some of the convolutions that a module describes, `[B, H, W, *] -> f32 [B, H, W, C]`; for use inside its compact
    method.
    """
    cells = x.shape[1] * x.shape[2]
    if module.num_outputs % cells:
        raise ConfigError(
            f"network.encoder = 'cells': expected actions for each of {cells} cells, {module.num_outputs} is no multiple of that"
        )
    dilations = module.dilations or (1,) * len(module.kernels)
    side = max(x.shape[1:3])
    for kernel, dilation in zip(module.kernels, dilations, strict=True):
        if kernel > 1 and dilation >= max(side, 2):
            raise ConfigError(f"network.dilations = {list(dilations)}: expected numbers below {side}, the grid's longer side")
    if not which:
        return x.astype(jnp.float32)
    inputs = (x.shape[-1], *(module.channels[i] for i in which))
    shapes = {
        f"conv_{i}": ((module.kernels[i] ** 2 * into, module.channels[i]), 2.0**0.5)
        for i, into in zip(which, inputs[:-1], strict=True)
    }
    drawn = together(module, shapes)

    def convolution(i: int) -> Any:
        kernel, dilation, name = module.kernels[i], dilations[i], f"conv_{i}"

        def init(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
            flat: jax.Array = drawn[name](key, shapes[name][0], dtype)
            return flat.reshape(shape)

        layer = Convolution(module.channels[i], kernel, 1, init, module.dtype, dilation, name=name)
        edge = kernel // 2 * dilation
        return lambda x: layer(jnp.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0))))

    x = perceptron(x, [convolution(i) for i in which], module.activation)
    # Means over the grid, and so sums of gradients over it, are in f32.
    return x.astype(jnp.float32)


def _heads(module: _Cells, x: jax.Array, privileged: Any) -> tuple[jax.Array, jax.Array]:
    """Return the policy's outputs `[B, H W K]` and the value, from the features of each cell `[B, H, W, C]`; for use inside a
    compact method.
    """
    mean, most = jnp.mean(x, axis=(1, 2)), jnp.max(x, axis=(1, 2))
    whole = jnp.concatenate([mean, most] if privileged is None else [mean, most, ravel_observation(privileged)], axis=-1)
    sizes = (whole.shape[-1], *module.hidden)
    per_cell = module.num_outputs // (x.shape[1] * x.shape[2])
    layers = {
        "policy_head": ((2 * x.shape[-1], per_cell), module.policy_gain),
        **hidden_layers("value", sizes),
        "value_head": ((sizes[-1], module.num_values), 1.0),
    }
    dense = dense_layers(module, layers, module.dtype, last=("policy_head", "value_head"))
    known = jnp.broadcast_to(mean[:, None, None], x.shape)
    policy = dense["policy_head"](jnp.concatenate([x, known], axis=-1))
    outputs = policy.reshape(policy.shape[0], -1)  # no `len`: an exported policy is for any number of rows
    value = perceptron(whole, [dense[f"value_{i}"] for i in range(len(module.hidden))], module.activation)
    return outputs, values(dense["value_head"](value))


def num_cells(obs: Any) -> int | None:
    """Return H W of the one grid `[H, W, C]` of an observation; None if it has none, or several."""
    public = split_privileged(obs)[0]
    grids = [x for x in (public.values() if isinstance(public, Mapping) else [public]) if getattr(x, "ndim", None) == 3]
    return grids[0].shape[0] * grids[0].shape[1] if len(grids) == 1 else None


def _grid(obs: Any) -> jax.Array:
    """Return observations as one grid f32 `[B, H, W, C]`.

    Raises:
        ConfigError: there is none, or there are several.
    """
    entries = dict(obs) if isinstance(obs, Mapping) else {"": obs}
    grids = [name for name, x in entries.items() if isinstance(x, jax.Array) and x.ndim == 4]
    if len(grids) != 1:
        raise ConfigError(ONE_GRID)
    grid = entries.pop(grids[0])
    grid = grid.astype(jnp.float32) / (255.0 if grid.dtype == jnp.uint8 else 1.0)
    if not entries:
        return grid
    more = ravel_observation(entries)[:, None, None]
    return jnp.concatenate([grid, jnp.broadcast_to(more, (*grid.shape[:-1], more.shape[-1]))], axis=-1)
