"""Actor-critic for grids whose every cell has actions of its own (GridNet; Han et al., "Grid-wise control for multi-agent
reinforcement learning in video games", 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.core.errors import ConfigError
from rljax.nn.modules.images import Convolution
from rljax.nn.modules.layers import dense_layers, hidden_layers, perceptron, together, values
from rljax.nn.observations import ravel_observation


class CellActorCritic(nn.Module):
    """Convolutions that keep the sides of the grid, then a policy for each cell and a value of the whole grid.

    It maps observations `[B, H, W, C]` to `(outputs [B, H W K], value [B])`, or `value [B, num_values]`; the outputs are those of
    the cells, row by row, K for each. A cell's outputs depend on the features around it, and on the means over the grid; the
    value depends on the means and the maxima over the grid. A cell sees `sum(dilation * (kernel // 2))` cells to each side;
    dilations that double (Yu and Koltun, "Multi-scale context aggregation by dilated convolutions", 2016) let it see a large
    grid, at the price of a small one. `privileged`, if given, joins the input of the value only. Of observations that are
    dictionaries, one entry is the grid, and the numbers of all others (a goal) are channels of every cell.

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

    @nn.compact
    def __call__(self, obs: Any, privileged: Any = None) -> tuple[jax.Array, jax.Array]:
        x = _grid(obs)
        cells = x.shape[1] * x.shape[2]
        if self.num_outputs % cells:
            raise ConfigError(
                f"network.encoder = 'cells': expected actions for each of {cells} cells, "
                f"{self.num_outputs} is no multiple of that"
            )
        dilations = self.dilations or (1,) * len(self.kernels)
        side = max(x.shape[1:3])
        for kernel, dilation in zip(self.kernels, dilations, strict=True):
            if kernel > 1 and dilation >= max(side, 2):
                raise ConfigError(f"network.dilations = {list(dilations)}: expected numbers below {side}, the grid's longer side")
        inputs = (x.shape[-1], *self.channels)
        shapes = {f"conv_{i}": ((k * k * inputs[i], inputs[i + 1]), 2.0**0.5) for i, k in enumerate(self.kernels)}
        drawn = together(self, shapes)

        def convolution(i: int) -> Any:
            kernel, dilation, name = self.kernels[i], dilations[i], f"conv_{i}"

            def init(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
                flat: jax.Array = drawn[name](key, shapes[name][0], dtype)
                return flat.reshape(shape)

            layer = Convolution(self.channels[i], kernel, 1, init, self.dtype, dilation, name=name)
            edge = kernel // 2 * dilation
            return lambda x: layer(jnp.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0))))

        x = perceptron(x, [convolution(i) for i in range(len(self.channels))], self.activation)
        # Means over the grid, and so sums of gradients over it, are in f32.
        x = x.astype(jnp.float32)
        mean, most = jnp.mean(x, axis=(1, 2)), jnp.max(x, axis=(1, 2))
        summary = [mean, most] if privileged is None else [mean, most, ravel_observation(privileged)]
        whole = jnp.concatenate(summary, axis=-1)
        sizes = (whole.shape[-1], *self.hidden)
        layers = {
            "policy_head": ((2 * x.shape[-1], self.num_outputs // cells), self.policy_gain),
            **hidden_layers("value", sizes),
            "value_head": ((sizes[-1], self.num_values), 1.0),
        }
        dense = dense_layers(self, layers, self.dtype, last=("policy_head", "value_head"))
        around = jnp.concatenate([x, jnp.broadcast_to(mean[:, None, None], x.shape)], axis=-1)
        outputs = dense["policy_head"](around).reshape(x.shape[0], -1)  # no `len`: an exported policy is for any number of rows
        value = perceptron(whole, [dense[f"value_{i}"] for i in range(len(self.hidden))], self.activation)
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
