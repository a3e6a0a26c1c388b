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

In the cells of this module (`IN_PARTS`), `advance` has two parts, which `rljax.algos.common.cell_scan` takes apart, so that the
gradient of the hidden kernel is one product for all steps and not one in each step. Parameters are read by `hidden` and
`transposed` only:

- `hidden(carry) -> hidden`: the product with the hidden kernel, and its bias.
- `transposed() -> kernel` and `back(kernel, d_hidden) -> d_carry`: the gradient of `hidden`, by the transposed kernel. It is made
  before a scan, since on the CPU a small product with a kernel that is read across takes four times as long.
- `step(carry, split(gates), hidden) -> (carry, saved)`: the rest, with what its gradient needs.
- `gradient(saved, d_carry) -> (d_carry, d_gates [..., G], d_hidden)`: the gradient of `step`, from that of the carry after it.
- `split(gates)`: the gates as `step` takes them; before a scan, since XLA's loops on the CPU are slow where they also slice.

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


class LSTMSaved(NamedTuple):
    """Values for the gradient of an LSTM's step: i, f, g and o `[..., 4 S]`, the cell state before it, and the tanh of the one
    after it, `[..., S]`.
    """

    gates: jax.Array
    cell: jax.Array
    squashed: jax.Array


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
        return self.step(carry, gates, self.hidden(carry))[0]

    def hidden(self, carry: LSTMCarry) -> jax.Array:
        """The hidden half of the gates, `[..., 4 S]`."""
        return matmul(carry.hidden, self.get_variable("params", "hidden_kernel"), self.dtype)

    def transposed(self) -> jax.Array:
        """The hidden kernel for `back`, `[4 S, S]`."""
        return _transposed(self.get_variable("params", "hidden_kernel"), self.dtype)

    @nn.nowrap
    def back(self, kernel: jax.Array, d_hidden: jax.Array) -> LSTMCarry:
        """The gradient of `hidden`."""
        d_carry = matmul(d_hidden, kernel, self.dtype)
        return LSTMCarry(d_carry, jnp.zeros_like(d_carry))

    @nn.nowrap
    def split(self, gates: jax.Array) -> jax.Array:
        """The gates as they are: one tanh takes all of them."""
        return gates

    @nn.nowrap
    def step(self, carry: LSTMCarry, gates: jax.Array, hidden: jax.Array) -> tuple[LSTMCarry, LSTMSaved]:
        """The next carry from both halves of the gates."""
        # One tanh for all gates, with sigmoids by the formula of `sigmoid`: one kernel, and one array to keep for the gradient.
        scale = np.repeat(np.array([0.5, 0.5, 1.0, 0.5], np.float32), self.size)
        gates = jnp.tanh((gates + hidden) * scale) * scale + (1.0 - scale)
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        cell = f * carry.cell + i * g
        squashed = jnp.tanh(cell)
        return LSTMCarry(o * squashed, cell), LSTMSaved(gates, carry.cell, squashed)

    @nn.nowrap
    def gradient(self, saved: LSTMSaved, d_carry: LSTMCarry) -> tuple[LSTMCarry, jax.Array, jax.Array]:
        """The gradient of `step`."""
        i, f, g, o = jnp.split(saved.gates, 4, axis=-1)
        d_cell = d_carry.cell + d_carry.hidden * o * (1.0 - saved.squashed * saved.squashed)
        d_gates = jnp.concatenate(
            [
                d_cell * g * (i * (1.0 - i)),
                d_cell * saved.cell * (f * (1.0 - f)),
                d_cell * i * (1.0 - g * g),
                d_carry.hidden * saved.squashed * (o * (1.0 - o)),
            ],
            axis=-1,
        )
        return LSTMCarry(jnp.zeros_like(d_cell), d_cell * f), d_gates, d_gates

    @nn.nowrap
    def output(self, carry: LSTMCarry) -> jax.Array:
        """`[..., S]`."""
        return carry.hidden

    def __call__(self, carry: LSTMCarry, x: jax.Array) -> tuple[LSTMCarry, jax.Array]:
        """One step: `(carry, x [..., D]) -> (carry, y [..., S])`."""
        carry = self.advance(carry, self.project(x))
        return carry, self.output(carry)


class GRUSaved(NamedTuple):
    """Values for the gradient of a GRU's step, f32 `[..., S]` each: the carry before it, r, z and n, and the hidden part of n."""

    carry: jax.Array
    reset: jax.Array
    keep: jax.Array
    new: jax.Array
    hidden_new: jax.Array


Parts = tuple[jax.Array, jax.Array, jax.Array]
"""Those of r, z and n, f32 `[..., S]` each."""


class _GRU(nn.Module):
    """The steps of `GRUCell` and `BlockGRUCell`, which differ in the hidden kernel."""

    @nn.nowrap
    def split(self, gates: jax.Array) -> Parts:
        """The gates of r, z and n, `[..., S]` each."""
        r, z, n = jnp.split(gates, 3, axis=-1)
        return r, z, n

    @nn.nowrap
    def step(self, carry: jax.Array, gates: Parts, hidden: Parts) -> tuple[jax.Array, GRUSaved]:
        """The next carry from both parts of the gates."""
        reset, keep = sigmoid(gates[0] + hidden[0]), sigmoid(gates[1] + hidden[1])
        new = jnp.tanh(gates[2] + reset * hidden[2])
        return new + keep * (carry - new), GRUSaved(carry, reset, keep, new, hidden[2])

    @nn.nowrap
    def gradient(self, saved: GRUSaved, d_carry: jax.Array) -> tuple[jax.Array, jax.Array, Parts]:
        """The gradient of `step`."""
        carry, reset, keep, new, hidden_new = saved
        d_n = d_carry * (1.0 - keep) * (1.0 - new * new)
        d_r = d_n * hidden_new * (reset * (1.0 - reset))
        d_z = d_carry * (carry - new) * (keep * (1.0 - keep))
        return d_carry * keep, jnp.concatenate([d_r, d_z, d_n], axis=-1), (d_r, d_z, d_n * reset)


class GRUCell(_GRU):
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
        return self.step(carry, self.split(gates), self.hidden(carry))[0]

    def hidden(self, carry: jax.Array) -> Parts:
        """The hidden parts of r, z and n, `[..., S]` each."""
        r, z, n = jnp.split(matmul(carry, self.get_variable("params", "hidden_kernel"), self.dtype), 3, axis=-1)
        return r, z, n + self.get_variable("params", "hidden_bias")

    def transposed(self) -> jax.Array:
        """The hidden kernel for `back`, `[3 S, S]`."""
        return _transposed(self.get_variable("params", "hidden_kernel"), self.dtype)

    @nn.nowrap
    def back(self, kernel: jax.Array, d_hidden: Parts) -> jax.Array:
        """The gradient of `hidden`."""
        return matmul(jnp.concatenate(d_hidden, axis=-1), kernel, self.dtype)

    @nn.nowrap
    def output(self, carry: jax.Array) -> jax.Array:
        """`[..., S]`."""
        return carry

    def __call__(self, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step: `(carry, x [..., D]) -> (carry, y [..., S])`."""
        carry = self.advance(carry, self.project(x))
        return carry, self.output(carry)


class BlockGRUCell(_GRU):
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
        return self.step(carry, self.split(gates), self.hidden(carry))[0]

    def hidden(self, carry: jax.Array) -> Parts:
        """The hidden parts of r, z and n, `[..., S]` each."""
        blocks = carry.reshape(*carry.shape[:-1], self.blocks, -1)
        product = partial(jnp.einsum, "...bi,bio->...bo")
        hidden = matmul(blocks, self.get_variable("params", "hidden_kernel"), self.dtype, product)
        r, z, n = (part.reshape(carry.shape) for part in jnp.split(hidden, 3, axis=-1))
        return r, z, n + self.get_variable("params", "hidden_bias")

    def transposed(self) -> jax.Array:
        """The hidden kernel for `back`, `[blocks, 3 S / blocks, S / blocks]`."""
        return _transposed(self.get_variable("params", "hidden_kernel"), self.dtype)

    @nn.nowrap
    def back(self, kernel: jax.Array, d_hidden: Parts) -> jax.Array:
        """The gradient of `hidden`."""
        parts = [part.reshape(*part.shape[:-1], self.blocks, -1) for part in d_hidden]
        product = partial(jnp.einsum, "...bo,boi->...bi")
        return matmul(jnp.concatenate(parts, axis=-1), kernel, self.dtype, product).reshape(d_hidden[0].shape)

    @nn.nowrap
    def output(self, carry: jax.Array) -> jax.Array:
        """`[..., S]`."""
        return carry

    def __call__(self, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step: `(carry, x [..., D]) -> (carry, y [..., S])`."""
        carry = self.advance(carry, self.project(x))
        return carry, self.output(carry)


IN_PARTS = (LSTMCell, GRUCell, BlockGRUCell)
"""Classes of cells whose `advance` is `step` with what `hidden` returns. A subclass may advance otherwise."""


def _transposed(kernel: jax.Array, dtype: Any) -> jax.Array:
    return jnp.swapaxes(kernel if dtype is None else kernel.astype(dtype), -1, -2)


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


class CellMemory:
    """Mixin of networks that remember by a cell, their attribute `cell`, and by nothing else: methods that `Policy` asks for.
    What `embed` returns has the input's part of the gates as `x`.
    """

    # `cell` is not declared here: the reference would take it for the first field of a subclass.

    def initial_carry(self: Any, batch: tuple[int, ...]) -> Any:
        return None if self.cell is None else self.cell.initial_carry(batch)

    def advance(self: Any, carry: Any, x: Any) -> Any:
        return self.cell.advance(carry, x.x)
