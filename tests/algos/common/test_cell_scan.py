"""`scan_cell` against a plain scan of the same cell, whose gradient JAX derives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from rljax import PPOConfig
from rljax.algos.common import cell_scan
from rljax.algos.common.cell_scan import scan_cell
from rljax.algos.common.policy import policy_and_value, policy_unroll
from rljax.algos.ppo import ppo_parts
from rljax.collect.rollout import reset_carry
from rljax.collect.streams import of_seat, with_seat
from rljax.nn.actor_critic import TrunkActorCritic
from rljax.nn.modules.recurrent import BlockGRUCell, GRUCell, LSTMCell
from tests.jaxprs import num_carried

T, N, INPUTS, SEATS = 11, 5, 4, 3
CELLS = {"gru": GRUCell(8), "lstm": LSTMCell(8), "block_gru": BlockGRUCell(8, 2)}

Scan = Callable[[Any, Any, jax.Array], Any]


def scans(cell: Any, seats: int | None) -> tuple[Scan, Scan, tuple[Any, Any, jax.Array]]:
    """Return `scan_cell` and the plain scan as functions of `(params, carry, x)`, and such arguments. Episodes end on the way; of
    the seats one moves at most steps, and none at some."""
    keys = jax.random.split(jax.random.key(1), 6)
    x = jax.random.normal(keys[0], (T, N, INPUTS))
    params = jax.tree.map(
        lambda p: p + 0.1 * jax.random.normal(keys[2], p.shape), cell.init(keys[1], x, method="project")
    )  # biases too
    batch = (N,) if seats is None else (N, seats)
    carry = jax.tree.map(lambda z: jax.random.normal(keys[3], z.shape), cell.initial_carry(batch))
    begins = jax.random.bernoulli(keys[4], 0.2, (T, N))
    moves = jax.random.randint(keys[5], (T, N), 0, SEATS + 1)
    seat = None if seats is None else jax.nn.one_hot(moves, seats, dtype=bool)

    def apply(params: Any, name: str, *arguments: Any) -> Any:
        return cell.apply(params, *arguments, method=name)

    def ours(params: Any, carry: Any, x: jax.Array) -> Any:
        return scan_cell(cell, apply, params, carry, cell.apply(params, x, method="project"), begins, seat)

    def plain(params: Any, carry: Any, x: jax.Array) -> Any:
        def step(carry: Any, inputs: Any) -> tuple[Any, Any]:
            gates, begins, seat = inputs
            carry = reset_carry(carry, begins)
            after = cell.apply(params, of_seat(carry, seat), gates, method="advance")
            return with_seat(carry, seat, after), after

        return jax.lax.scan(step, carry, (cell.apply(params, x, method="project"), begins, seat))

    return ours, plain, (params, carry, x)


def with_gradients(scan: Scan) -> Callable[..., Any]:
    """Return `(params, carry, x) -> ((loss, result), gradients)` of a loss that every number of the result is part of."""

    def loss(params: Any, carry: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        result = scan(params, carry, x)
        return sum(jnp.sum((i + 1) * jnp.sin(3.0 * leaf)) for i, leaf in enumerate(jax.tree.leaves(result))), result

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("seats", [None, SEATS])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_results_and_gradients_are_those_of_a_plain_scan(
    cell: Any, seats: int | None, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_scan, "platform", lambda: platform)  # they save different things for the gradient
    ours, plain, arguments = scans(cell, seats)
    (_, result), gradients = with_gradients(ours)(*arguments)
    (_, expected), wanted = with_gradients(plain)(*arguments)
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for found, right in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
    assert jax.tree.structure(gradients) == jax.tree.structure(wanted)
    for found, right in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True):
        assert np.any(right != 0)
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5 * float(jnp.abs(right).max()))


def test_several_seeds_in_one_program_have_the_gradients_of_each() -> None:
    ours, _, (params, carry, x) = scans(CELLS["gru"], None)
    several = jax.tree.map(lambda p: jnp.stack([p, 0.5 * p]), params)
    _, together = jax.vmap(with_gradients(ours), (0, None, None))(several, carry, x)
    for seed in range(2):
        _, alone = with_gradients(ours)(jax.tree.map(lambda p, seed=seed: p[seed], several), carry, x)
        for found, right in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(found[seed], right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_a_step_of_a_policys_gradient_has_one_product(cell: str) -> None:
    """A step forward and a step back have a product each; the gradient of the hidden kernel is taken after all steps."""
    parts, arguments = policy_of({"type": cell, "size": 8, "hidden": [4], "head_hidden": []})
    assert [products for products, _ in loops_of(partial(policy_unroll, parts), arguments)] == [1, 1]


@pytest.mark.parametrize(("cell", "arrays"), [("gru", 1), ("lstm", 2)])
def test_a_step_on_a_gpu_keeps_its_carry_alone(cell: str, arrays: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each array that a scan keeps is a kernel in each step; a step back keeps the gradient of the carry."""
    monkeypatch.setattr(cell_scan, "platform", lambda: "gpu")
    parts, arguments = policy_of({"type": cell, "size": 8, "hidden": [4], "head_hidden": []})
    assert [kept for _, kept in loops_of(partial(policy_unroll, parts), arguments)] == [arrays, arrays]


class Leaky(GRUCell):
    """A cell of a user's own, which forgets half of what a GRU would change."""

    def advance(self, carry: jax.Array, gates: jax.Array) -> jax.Array:
        return 0.5 * carry + 0.5 * super().advance(carry, gates)


class Stubborn(TrunkActorCritic):
    """A network of a user's own, which forgets half of what its cell would change."""

    def advance(self, carry: jax.Array, x: Any) -> jax.Array:
        return 0.5 * carry + 0.5 * super().advance(carry, x)


@pytest.mark.parametrize(
    "network",
    [
        TrunkActorCritic(3, cell=Leaky(8), hidden=(4,), head_hidden=()),
        Stubborn(3, cell=GRUCell(8), hidden=(4,), head_hidden=()),
    ],
    ids=["cell", "network"],
)
def test_memories_of_ones_own_advance_in_training_as_in_acting(network: TrunkActorCritic) -> None:
    parts, (params, obs, carry, begins) = policy_of(network)
    outputs, _, _ = policy_unroll(parts, params, obs, carry, begins)
    for t in range(T):
        now, _, carry = policy_and_value(parts, params, obs[t], reset_carry(carry, begins[t]))
        np.testing.assert_allclose(outputs[t], now, rtol=1e-5, atol=1e-6)
    assert sum(products for products, _ in loops_of(partial(policy_unroll, parts), (params, obs, carry, begins))) == 3


def policy_of(network: Any) -> tuple[Any, tuple[Any, jax.Array, Any, jax.Array]]:
    """Return parts with a policy of this network, and arguments of `policy_unroll` after `parts`."""
    parts = ppo_parts(PPOConfig(env="TMaze-v0", num_envs=N, num_steps=8, num_minibatches=1, network=network))
    keys = jax.random.split(jax.random.key(2), 4)
    obs = jax.random.normal(keys[0], (T, N, 4))
    params = jax.tree.map(lambda p: p + 0.1 * jax.random.normal(keys[1], p.shape), parts.policy.init(keys[2], obs[0]))
    carry = jax.tree.map(jnp.ones_like, parts.policy.initial_carry((N,)))
    return parts, (params, obs, carry, jax.random.bernoulli(keys[3], 0.2, (T, N)))


def loops_of(function: Callable[..., Any], arguments: Any) -> list[tuple[int, int]]:
    """Return of each loop of the gradient of a function's results the products of matrices in a step, and the arrays it keeps."""
    counts = []

    def visit(jaxpr: Any) -> int:
        count = 0
        for equation in jaxpr.eqns:
            inside = sum(visit(sub) for sub in jaxprs_in_params(equation.params))
            if equation.primitive.name == "scan":
                counts.append((inside, len(equation.outvars) - num_carried(equation)))
            count += inside + (equation.primitive.name == "dot_general")
        return count

    def loss(params: Any, *others: Any) -> jax.Array:
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(function(params, *others)))

    traced = jax.make_jaxpr(jax.grad(loss))(*arguments)
    visit(jax.interpreters.partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))[0])
    return counts
