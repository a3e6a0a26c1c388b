"""Recurrent cells against flax and against the formulas of PyTorch's documentation, in one step and split over a scan."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.errors import ConfigError
from rljax.nn.modules.recurrent import BlockGRUCell, GRUCell, LSTMCarry, LSTMCell

SIZE, INPUTS, BATCH, STEPS = 6, 5, 3, 7
CELLS = [LSTMCell(SIZE), GRUCell(SIZE), BlockGRUCell(SIZE, 2)]


def name_of(cell: Any) -> str:
    return type(cell).__name__


def random_params(cell: Any, seed: int = 0) -> Any:
    """Parameters drawn by numpy, biases too, which start at 0."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(cell.init, jax.random.key(0), cell.initial_carry((1,)), jnp.zeros((1, INPUTS)))["params"]
    return {name: jnp.asarray(rng.normal(size=x.shape), jnp.float32) for name, x in shapes.items()}


def inputs(*shape: int, seed: int = 1) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def columns(kernel: jax.Array, gates: int) -> list[np.ndarray]:
    """The gates' parts of a kernel or bias."""
    return np.split(np.asarray(kernel, np.float64), gates, axis=-1)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def test_lstm_is_the_formula_of_pytorch() -> None:
    cell = LSTMCell(SIZE)
    params, x, h, c = random_params(cell), inputs(BATCH, INPUTS), inputs(BATCH, SIZE, seed=2), inputs(BATCH, SIZE, seed=3)
    (h_next, c_next), y = cell.apply({"params": params}, LSTMCarry(h, c), x)
    parts = zip(*(columns(params[name], 4) for name in ("input_kernel", "hidden_kernel", "bias")), strict=True)
    i, f, g, o = (np.asarray(x) @ w + np.asarray(h) @ u + b for w, u, b in parts)
    cell_state = sigmoid(f) * np.asarray(c) + sigmoid(i) * np.tanh(g)
    np.testing.assert_allclose(c_next, cell_state, atol=1e-5)
    np.testing.assert_allclose(h_next, sigmoid(o) * np.tanh(cell_state), atol=1e-5)
    np.testing.assert_array_equal(y, h_next)


def test_gru_is_the_formula_of_pytorch_which_resets_the_product_with_its_bias() -> None:
    cell = GRUCell(SIZE)
    params, x, h = random_params(cell), inputs(BATCH, INPUTS), inputs(BATCH, SIZE, seed=2)
    carry, y = cell.apply({"params": params}, h, x)
    w, u, b = (columns(params[name], 3) for name in ("input_kernel", "hidden_kernel", "bias"))
    x64, h64 = np.asarray(x, np.float64), np.asarray(h, np.float64)
    r, z = (sigmoid(x64 @ w[k] + b[k] + h64 @ u[k]) for k in (0, 1))
    n = np.tanh(x64 @ w[2] + b[2] + r * (h64 @ u[2] + np.asarray(params["hidden_bias"])))
    np.testing.assert_allclose(carry, (1 - z) * n + z * h64, atol=1e-5)
    np.testing.assert_array_equal(y, carry)


@pytest.mark.parametrize("reference", [nn.LSTMCell, nn.OptimizedLSTMCell])
def test_lstm_is_flax_with_copied_weights(reference: Any) -> None:
    cell = LSTMCell(SIZE)
    params, xs = random_params(cell), inputs(STEPS, BATCH, INPUTS)
    w, u, b = (jnp.split(params[name], 4, axis=-1) for name in ("input_kernel", "hidden_kernel", "bias"))
    theirs = {f"i{gate}": {"kernel": w[k]} for k, gate in enumerate("ifgo")}
    theirs |= {f"h{gate}": {"kernel": u[k], "bias": b[k]} for k, gate in enumerate("ifgo")}
    carry, (c, h) = cell.initial_carry((BATCH,)), (jnp.zeros((BATCH, SIZE)), jnp.zeros((BATCH, SIZE)))
    step, flax_step = jax.jit(cell.apply), jax.jit(reference(SIZE).apply)
    for x in xs:
        carry, y = step({"params": params}, carry, x)
        (c, h), want = flax_step({"params": theirs}, (c, h), x)
        np.testing.assert_allclose(y, want, atol=1e-5)
        np.testing.assert_allclose(carry.cell, c, atol=1e-5)


def test_gru_is_flax_with_copied_weights() -> None:
    cell = GRUCell(SIZE)
    params, xs = random_params(cell), inputs(STEPS, BATCH, INPUTS)
    w, u, b = (jnp.split(params[name], 3, axis=-1) for name in ("input_kernel", "hidden_kernel", "bias"))
    theirs = {f"i{gate}": {"kernel": w[k], "bias": b[k]} for k, gate in enumerate("rzn")}
    theirs |= {f"h{gate}": {"kernel": u[k]} for k, gate in enumerate("rzn")}
    theirs["hn"]["bias"] = params["hidden_bias"]
    carry, want = cell.initial_carry((BATCH,)), jnp.zeros((BATCH, SIZE))
    step, flax_step = jax.jit(cell.apply), jax.jit(nn.GRUCell(SIZE).apply)
    for x in xs:
        carry, y = step({"params": params}, carry, x)
        want, _ = flax_step({"params": theirs}, want, x)
        np.testing.assert_allclose(y, want, atol=1e-5)


def test_block_gru_with_one_block_is_the_gru() -> None:
    params, x, h = random_params(GRUCell(SIZE)), inputs(BATCH, INPUTS), inputs(BATCH, SIZE, seed=2)
    want, _ = GRUCell(SIZE).apply({"params": params}, h, x)
    block = {**params, "hidden_kernel": params["hidden_kernel"][None]}
    np.testing.assert_allclose(BlockGRUCell(SIZE, 1).apply({"params": block}, h, x)[0], want, atol=1e-6)


def test_block_gru_is_the_gru_with_a_block_diagonal_kernel() -> None:
    blocks, cell = 2, BlockGRUCell(SIZE, 2)
    params, x, h = random_params(cell), inputs(BATCH, INPUTS), inputs(BATCH, SIZE, seed=2)
    side, dense = SIZE // blocks, np.zeros((SIZE, 3, SIZE), np.float32)
    for block, kernel in enumerate(np.asarray(params["hidden_kernel"])):
        places = slice(block * side, (block + 1) * side)
        dense[places, :, places] = kernel.reshape(side, 3, side)
    want, _ = GRUCell(SIZE).apply({"params": {**params, "hidden_kernel": jnp.asarray(dense.reshape(SIZE, -1))}}, h, x)
    np.testing.assert_allclose(cell.apply({"params": params}, h, x)[0], want, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_projecting_all_steps_and_advancing_in_a_scan_is_stepping(cell: Any) -> None:
    variables, xs = {"params": random_params(cell)}, inputs(STEPS, BATCH, INPUTS)
    carry, ys = cell.initial_carry((BATCH,)), []
    step = jax.jit(cell.apply)
    for x in xs:
        carry, y = step(variables, carry, x)
        ys.append(y)
    gates = jax.jit(lambda v: cell.apply(v, xs, method="project"))(variables)

    def advance(carry: Any, gates: jax.Array) -> Any:
        carry = cell.apply(variables, carry, gates, method="advance")
        return carry, cell.output(carry)

    last, outputs = jax.jit(lambda gates: jax.lax.scan(advance, cell.initial_carry((BATCH,)), gates))(gates)
    np.testing.assert_allclose(outputs, jnp.stack(ys), atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), last, carry)
    assert float(jnp.abs(outputs).max()) > 0.1


class Unrolled(nn.Module):
    """A cell inside another module, in a plain `lax.scan`."""

    cell: nn.Module

    def __call__(self, xs: jax.Array) -> jax.Array:
        cell: Any = self.cell

        def advance(carry: Any, gates: jax.Array) -> Any:
            carry = cell.advance(carry, gates)
            return carry, cell.output(carry)

        return jax.lax.scan(advance, cell.initial_carry(xs.shape[1:-1]), cell.project(xs))[1]


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_a_module_scans_a_cell_it_owns_and_gradients_reach_every_parameter(cell: Any) -> None:
    xs, network = inputs(STEPS, BATCH, INPUTS), Unrolled(cell)
    variables = jax.jit(network.init)(jax.random.key(0), xs)
    first, _ = jax.jit(cell.apply)({"params": variables["params"]["cell"]}, cell.initial_carry((BATCH,)), xs[0])
    np.testing.assert_allclose(jax.jit(network.apply)(variables, xs)[0], cell.output(first), atol=1e-6)
    grads = jax.jit(jax.grad(lambda v: jnp.sum(network.apply(v, xs)[-1])))(variables)
    assert all(jnp.all(jnp.isfinite(g)) and jnp.any(g != 0) for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_a_fresh_cell_is_orthogonal_gate_by_gate_with_biases_of_0_and_1_to_remember(cell: Any) -> None:
    params = jax.jit(lambda key: cell.init(key, inputs(BATCH, INPUTS), method="project"))(jax.random.key(3))["params"]
    params = {name: np.asarray(value) for name, value in params.items()}
    gates = 4 if isinstance(cell, LSTMCell) else 3
    blocks = params["hidden_kernel"].reshape(-1, *params["hidden_kernel"].shape[-2:])
    hidden = [kernel for block in blocks for kernel in np.split(block, gates, axis=-1)]
    for kernel in [*np.split(params["input_kernel"], gates, axis=-1), *hidden]:
        gram = kernel @ kernel.T
        np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-5)
    assert not np.allclose(hidden[0], hidden[1])
    assert not np.allclose(hidden[0], hidden[-1])
    parts = np.split(params["bias"], gates)
    if gates == 4:
        np.testing.assert_array_equal(parts.pop(1), 1.0)
    np.testing.assert_array_equal(np.concatenate([*parts, params.get("hidden_bias", np.zeros(1))]), 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_initialisation_under_vmap_is_that_of_each_seed(cell: Any) -> None:
    def init(key: jax.Array) -> Any:
        return cell.init(key, cell.initial_carry((BATCH,)), jnp.zeros((BATCH, INPUTS)))

    keys = jax.random.split(jax.random.key(0), 2)
    together = jax.jit(jax.vmap(init))(keys)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b, atol=1e-5), together, jax.jit(init)(keys[1]))
    assert float(jnp.abs(together["params"]["hidden_kernel"][0] - together["params"]["hidden_kernel"][1]).max()) > 0.1


@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_the_initial_carry_is_zeros_of_any_batch(cell: Any) -> None:
    for batch in ((), (4,), (2, 3)):
        for leaf in jax.tree.leaves(cell.initial_carry(batch)):
            assert leaf.shape == (*batch, SIZE)
            assert leaf.dtype == jnp.float32
            assert not leaf.any()


def test_the_carry_of_an_lstm_can_be_donated() -> None:
    carry = LSTMCell(SIZE).initial_carry((BATCH,))
    assert carry.hidden.unsafe_buffer_pointer() != carry.cell.unsafe_buffer_pointer()


@pytest.mark.parametrize("blocks", [4, 0, -2, 12])
def test_blocks_that_do_not_divide_the_size_are_one_clear_line(blocks: int) -> None:
    with pytest.raises(ConfigError, match=rf"blocks = {blocks}: expected a divisor of the size, which is 6"):
        BlockGRUCell(SIZE, blocks)


def test_weights_for_another_input_are_refused() -> None:
    cell = GRUCell(SIZE)
    with pytest.raises(Exception, match="input_kernel"):
        cell.apply({"params": random_params(cell)}, cell.initial_carry((1,)), jnp.zeros((1, INPUTS + 1)))
