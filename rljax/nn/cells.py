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

from rljax.core.errors import ConfigError
from rljax.nn.modules.images import Convolution
from rljax.nn.modules.layers import dense_layers, hidden_layers, perceptron, together, values
from rljax.nn.modules.recurrent import CellMemory
from rljax.nn.observations import ravel_observation


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
        x = _convolved(self, obs)
        mean, most = jnp.mean(x, axis=(1, 2)), jnp.max(x, axis=(1, 2))
        summary = [mean, most] if privileged is None else [mean, most, ravel_observation(privileged)]
        return _heads(self, x, mean, jnp.concatenate(summary, axis=-1))


class RecurrentCellActorCritic(CellMemory, _Cells):
    """`CellActorCritic` with a memory of the whole grid: a recurrent cell takes the means and the maxima over the grid, and its
    output joins the features of every cell, and is what the value depends on.

    `Policy` documents the methods.

    Attributes:
        cell: a `GRUCell` or another cell with the same methods.
    """

    cell: Any = None

    def setup(self) -> None:
        told = {each.name: getattr(self, each.name) for each in dataclasses.fields(_Cells) if each.name not in ("parent", "name")}
        self.stem, self.both_heads = CellStem(**told), CellHeads(**told)

    def embed(self, obs: Any) -> CellFeatures:
        x = self.stem(obs)
        summary = jnp.concatenate([jnp.mean(x, axis=(1, 2)), jnp.max(x, axis=(1, 2))], axis=-1)
        return CellFeatures(self.cell.project(summary), x)

    def heads(self, carry: Any, x: CellFeatures, privileged: Any) -> tuple[jax.Array, jax.Array]:
        memory = self.cell.output(carry)
        parts = [memory, *(leaf.astype(jnp.float32).reshape((*memory.shape[:-1], -1)) for leaf in jax.tree.leaves(privileged))]
        outputs, value = self.both_heads(x.cells, memory, jnp.concatenate(parts, axis=-1))
        return outputs, value


class CellFeatures(NamedTuple):
    """The input's part of the cell's gates `[B, D]`, and the features of the grid `[B, H, W, C]`."""

    x: jax.Array
    cells: jax.Array


class CellStem(_Cells):
    """Convolutions that keep the sides of the grid: `obs [B, ...] -> [B, H, W, C]`, f32."""

    @nn.compact
    def __call__(self, obs: Any) -> jax.Array:
        return _convolved(self, obs)


class CellHeads(_Cells):
    """Policy of each cell and value of the grid: `(cells [..., H, W, C], context [..., D], whole [..., E]) -> (outputs, value)`;
    see `_heads`."""

    @nn.compact
    def __call__(self, cells: jax.Array, context: jax.Array, whole: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _heads(self, cells, context, whole)


def _convolved(module: _Cells, obs: Any) -> jax.Array:
    """Apply the convolutions that a module describes, f32 `[B, H, W, C]`; for use inside its compact method."""
    x = _grid(obs)
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
    inputs = (x.shape[-1], *module.channels)
    shapes = {f"conv_{i}": ((k * k * inputs[i], inputs[i + 1]), 2.0**0.5) for i, k in enumerate(module.kernels)}
    drawn = together(module, shapes)

    def convolution(i: int) -> Any:
        kernel, dilation, name = module.kernels[i], dilations[i], f"conv_{i}"

        def init(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
            flat: jax.Array = drawn[name](key, shapes[name][0], dtype)
            return flat.reshape(shape)

        layer = Convolution(module.channels[i], kernel, 1, init, module.dtype, dilation, name=name)
        edge = kernel // 2 * dilation
        return lambda x: layer(jnp.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0))))

    x = perceptron(x, [convolution(i) for i in range(len(module.channels))], module.activation)
    # Means over the grid, and so sums of gradients over it, are in f32.
    return x.astype(jnp.float32)


def _heads(module: _Cells, cells: jax.Array, context: jax.Array, whole: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the policy's outputs `[..., H W K]`, from the features of each cell and what all cells know, and the value, from a
    summary of the whole; for use inside a compact method.
    """
    sizes = (whole.shape[-1], *module.hidden)
    per_cell = module.num_outputs // (cells.shape[-3] * cells.shape[-2])
    layers = {
        "policy_head": ((cells.shape[-1] + context.shape[-1], per_cell), module.policy_gain),
        **hidden_layers("value", sizes),
        "value_head": ((sizes[-1], module.num_values), 1.0),
    }
    dense = dense_layers(module, layers, module.dtype, last=("policy_head", "value_head"))
    known = jnp.broadcast_to(context[..., None, None, :], (*cells.shape[:-1], context.shape[-1]))
    policy = dense["policy_head"](jnp.concatenate([cells, known], axis=-1))
    outputs = policy.reshape(*policy.shape[:-3], -1)  # no `len`: an exported policy is for any number of rows
    value = perceptron(whole, [dense[f"value_{i}"] for i in range(len(module.hidden))], module.activation)
    return outputs, values(dense["value_head"](value))


def _grid(obs: Any) -> jax.Array:
    """Return observations as one grid f32 `[B, H, W, C]`.

    Raises:
        ConfigError: there is none, or there are several.
    """
    entries = dict(obs) if isinstance(obs, Mapping) else {"": obs}
    grids = [name for name, x in entries.items() if isinstance(x, jax.Array) and x.ndim == 4]
    if len(grids) != 1:
        raise ConfigError("network.encoder = 'cells': expected observations with one grid, [height, width, channels]")
    grid = entries.pop(grids[0])
    grid = grid.astype(jnp.float32) / (255.0 if grid.dtype == jnp.uint8 else 1.0)
    if not entries:
        return grid
    more = ravel_observation(entries)[:, None, None]
    return jnp.concatenate([grid, jnp.broadcast_to(more, (*grid.shape[:-1], more.shape[-1]))], axis=-1)
