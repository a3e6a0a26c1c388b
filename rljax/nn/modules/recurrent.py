"""Recurrent cells in two parts: the input's part of the gates for all steps at once, and the hidden part inside the scan over
time.

Every cell has the same methods. `D` is the length of an input, `S` that of an output (`size`), `G` that of all gates together:

- `initial_carry(batch) -> carry`: the carry at the start of an episode, zeros. Needs no parameters.
- `project(x [..., D]) -> gates f32 [..., G]`: the input's part of the gates, with the biases.
- `advance(carry, gates [..., G]) -> carry`: the hidden part, and the step.
- `output(carry) -> y f32 [..., S]`: the output. Needs no parameters.
- `__call__(carry, x [..., D]) -> (carry, y [..., S])`: one whole step.

Over a sequence `[T, N, D]`, call `project` once, scan `advance` over time, then call `output` once for all carries. `project`
makes all parameters of a cell, from one random draw (see `orthogonal_kernels`): initialise with it or with a whole step.
`advance` only reads them, so it may be called inside any JAX transformation.

Kernels are orthogonal for each gate, and biases 0 (1 for the LSTM's forget gate; Jozefowicz et al., 2015).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import ConfigError
from rljax.nn.modules.initializers import orthogonal_kernels
from rljax.nn.modules.layers import matmul, sigmoid


class LSTMCarry(NamedTuple):
    """The carry of an LSTM: its output and its cell state, f32 `[..., S]` each."""

    hidden: jax.Array
    cell: jax.Array


class LSTMCell(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997) with forget gates (Gers et al., 2000).

    i, f, o = sigmoid(W x + U h + b) each, g = tanh(W x + U h + b); c' = f c + i g; h' = o tanh(c'). The columns of the kernels
    are those of i, f, g, o in this order, as in PyTorch.

    Attributes:
        size: S.
        dtype: dtype of the products; None: f32, as the carry and the gates always are.
    """

    size: int
    dtype: Any = None

    @nn.nowrap
    def initial_carry(self, batch: tuple[int, ...]) -> LSTMCarry:
        """Zeros `[*batch, S]`."""
        # Two separate arrays: a donated carry must not hold the same buffer twice.
        return LSTMCarry(jnp.zeros((*batch, self.size)), jnp.zeros((*batch, self.size)))

    @nn.compact
    def project(self, x: jax.Array) -> jax.Array:
        """The input's half of the gates with their biases: `[..., D] -> [..., 4 S]`."""
        kernel = _make_kernels(self, x.shape[-1], self.size, gates=4)
        forget = jnp.zeros((4, self.size)).at[1].set(1.0).reshape(-1)
        return matmul(x, kernel, self.dtype) + self.param("bias", lambda _: forget)

    def advance(self, carry: LSTMCarry, gates: jax.Array) -> LSTMCarry:
        """The next carry, from this one and the input's half of the gates `[..., 4 S]`."""
        gates = gates + matmul(carry.hidden, self.get_variable("params", "hidden_kernel"), self.dtype)
        # One tanh for all gates, with sigmoids by the formula of `sigmoid`: one kernel, and one array to keep for the gradient.
        scale = np.repeat(np.array([0.5, 0.5, 1.0, 0.5], np.float32), self.size)
        i, f, g, o = jnp.split(scale * jnp.tanh(scale * gates) + (1.0 - scale), 4, axis=-1)
        cell = f * carry.cell + i * g
        return LSTMCarry(o * jnp.tanh(cell), cell)

    @nn.nowrap
    def output(self, carry: LSTMCarry) -> jax.Array:
        """`[..., S]`."""
        return carry.hidden

    def __call__(self, carry: LSTMCarry, x: jax.Array) -> tuple[LSTMCarry, jax.Array]:
        """One step: `(carry, x [..., D]) -> (carry, y [..., S])`."""
        carry = self.advance(carry, self.project(x))
        return carry, self.output(carry)


class GRUCell(nn.Module):
    """Gated recurrent unit with PyTorch's (and cuDNN's) reset.

    r, z = sigmoid(W x + b + U h) each, n = tanh(W x + b + r (U h + b_hn)); h' = (1 - z) n + z h. Cho et al. (2014, eq. 8) apply
    the reset to the hidden state before the product, U (r h); here it applies to the product and its bias, so that all gates take
    one product. The columns of the kernels are those of r, z, n in this order, as in PyTorch. PyTorch's hidden biases of r and z
    are left out, since they only add to those of the input.

    Attributes:
        size: length S of the output. The carry is the output, f32 `[..., S]`.
        dtype: dtype of the products; None: f32, as the carry and the gates always are.
    """

    size: int
    dtype: Any = None

    @nn.nowrap
    def initial_carry(self, batch: tuple[int, ...]) -> jax.Array:
        """Zeros `[*batch, S]`."""
        return jnp.zeros((*batch, self.size))

    @nn.compact
    def project(self, x: jax.Array) -> jax.Array:
        """The input's half of the gates with their biases: `[..., D] -> [..., 3 S]`."""
        kernel = _make_kernels(self, x.shape[-1], self.size, gates=3)
        self.param("hidden_bias", nn.initializers.zeros, (self.size,))
        return matmul(x, kernel, self.dtype) + self.param("bias", nn.initializers.zeros, (3 * self.size,))

    def advance(self, carry: jax.Array, gates: jax.Array) -> jax.Array:
        """The next carry, from this one and the input's half of the gates `[..., 3 S]`."""
        hidden = matmul(carry, self.get_variable("params", "hidden_kernel"), self.dtype)
        return _gru_step(carry, gates, jnp.split(hidden, 3, axis=-1), self.get_variable("params", "hidden_bias"))

    @nn.nowrap
    def output(self, carry: jax.Array) -> jax.Array:
        """`[..., S]`."""
        return carry

    def __call__(self, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step: `(carry, x [..., D]) -> (carry, y [..., S])`."""
        carry = self.advance(carry, self.project(x))
        return carry, self.output(carry)


class BlockGRUCell(nn.Module):
    """GRU with a block-diagonal hidden kernel: each block of the state depends on itself and on the whole input.

    For the same size, the hidden kernel has `blocks` times fewer parameters and multiplications in the scan (as in DreamerV3,
    Hafner et al., 2025). With one block it is `GRUCell`. The hidden kernel is `[blocks, S / blocks, 3 S / blocks]`; the columns
    of a block are those of its r, z, n.

    Attributes:
        size: length S of the output. The carry is the output, f32 `[..., S]`.
        blocks: number of blocks of the state.
        dtype: dtype of the products; None: f32, as the carry and the gates always are.

    Raises:
        ConfigError: `blocks` does not divide `size`.
    """

    size: int
    blocks: int = 8
    dtype: Any = None

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.size % self.blocks:
            raise ConfigError(f"blocks = {self.blocks}: expected a divisor of the size, which is {self.size}")
        super().__post_init__()

    @nn.nowrap
    def initial_carry(self, batch: tuple[int, ...]) -> jax.Array:
        """Zeros `[*batch, S]`."""
        return jnp.zeros((*batch, self.size))

    @nn.compact
    def project(self, x: jax.Array) -> jax.Array:
        """The input's half of the gates with their biases: `[..., D] -> [..., 3 S]`."""
        kernel = _make_kernels(self, x.shape[-1], self.size, gates=3, blocks=self.blocks)
        self.param("hidden_bias", nn.initializers.zeros, (self.size,))
        return matmul(x, kernel, self.dtype) + self.param("bias", nn.initializers.zeros, (3 * self.size,))

    def advance(self, carry: jax.Array, gates: jax.Array) -> jax.Array:
        """The next carry, from this one and the input's half of the gates `[..., 3 S]`."""
        blocks = carry.reshape(*carry.shape[:-1], self.blocks, -1)
        product = partial(jnp.einsum, "...bi,bio->...bo")
        hidden = matmul(blocks, self.get_variable("params", "hidden_kernel"), self.dtype, product)
        parts = [part.reshape(carry.shape) for part in jnp.split(hidden, 3, axis=-1)]
        return _gru_step(carry, gates, parts, self.get_variable("params", "hidden_bias"))

    @nn.nowrap
    def output(self, carry: jax.Array) -> jax.Array:
        """`[..., S]`."""
        return carry

    def __call__(self, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step: `(carry, x [..., D]) -> (carry, y [..., S])`."""
        carry = self.advance(carry, self.project(x))
        return carry, self.output(carry)


def _make_kernels(module: nn.Module, inputs: int, size: int, gates: int, blocks: int | None = None) -> jax.Array:
    """Make "hidden_kernel" and "input_kernel" `[inputs, gates size]` of a cell in one draw; return the latter."""
    side = size // (blocks or 1)
    if not module.is_initializing():
        # flax then only compares shapes with those of the given parameters.
        hidden_shape = (side, gates * side) if blocks is None else (blocks, side, gates * side)
        module.param("hidden_kernel", nn.initializers.zeros, hidden_shape)
        return module.param("input_kernel", nn.initializers.zeros, (inputs, gates * size))
    shapes = [(inputs, size)] * gates + [(side, side)] * (gates * (blocks or 1))
    kernels = orthogonal_kernels(module.make_rng("params"), shapes, [1.0] * len(shapes))
    of_blocks = [jnp.concatenate(kernels[i : i + gates], axis=-1) for i in range(gates, len(kernels), gates)]
    module.param("hidden_kernel", lambda _: of_blocks[0] if blocks is None else jnp.stack(of_blocks))
    return module.param("input_kernel", lambda _: jnp.concatenate(kernels[:gates], axis=-1))


def _gru_step(carry: jax.Array, gates: jax.Array, hidden: list[jax.Array], hidden_bias: jax.Array) -> jax.Array:
    """Return the next carry from the input's part of the gates `[..., 3 S]` and the hidden part, a list of r, z, n, `[..., S]`
    each.
    """
    r, z, n = jnp.split(gates, 3, axis=-1)
    hidden_r, hidden_z, hidden_n = hidden
    reset, keep = sigmoid(r + hidden_r), sigmoid(z + hidden_z)
    new = jnp.tanh(n + reset * (hidden_n + hidden_bias))
    return new + keep * (carry - new)
