"""The matrix products of a program alone: how often it computes each, and that none is left out when they run."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import rljax
from rljax.core.errors import RljaxError
from rljax.core.operations import trace_needed
from rljax.run.bench import rejax_peer
from rljax.run.bench.products import Product, products_alone, products_of
from rljax.run.bench.rejax_peer import dqn_settings, ppo_settings, rejax_program
from rljax.run.bench.workers import Worker
from rljax.run.compile.costs import kernels_of
from rljax.run.compile.hlo import Program

MATRIX = (((1,), (0,)), ((), ()))


def product(rows: int, inner: int, columns: int) -> Product:
    left, right = jax.ShapeDtypeStruct((rows, inner), jnp.float32), jax.ShapeDtypeStruct((inner, columns), jnp.float32)
    return Product(left, right, MATRIX)


def test_products_count_once_for_each_trip_of_the_loops_around_them_and_of_the_larger_branch() -> None:
    def program(key: jax.Array) -> jax.Array:
        a, b = jnp.ones((2, 3)), jnp.ones((3, 3))

        def inner(a: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.cond(a[0, 0] > 0, lambda a: a @ b @ b, lambda a: a @ b, a), None

        def outer(a: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.scan(inner, a, length=5)[0], None

        a, _unused = jax.lax.scan(outer, a, length=7)[0], b @ jnp.ones((3, 9))
        return jax.jit(lambda a: a @ jnp.ones((3, 4)))(a)

    assert products_of(trace_needed(program, jax.random.key(0))[0]) == Counter({product(2, 3, 3): 70, product(2, 3, 4): 1})


def test_all_products_of_a_run_are_computed() -> None:
    """XLA leaves out what nothing depends on, and computes once what does not change: the compiled loops have each product."""
    train = rljax.make_train(
        rljax.PPOConfig(env="CartPole-v1", total_timesteps=64, num_envs=4, num_steps=8, network={"hidden": [8]})
    )
    key = jax.random.key(0)
    counts = products_of(trace_needed(train, key)[0])
    found = products_of(trace_needed(products_alone(train), key)[0])
    assert found == counts
    # The actor in 8 steps of two iterations; the critic's values of all steps are computed together.
    assert counts[product(4, 4, 8)] == 2 * 8
    compiled = Program(jax.jit(products_alone(train)).lower(key).compile().as_text())
    computed = sum(kernel.times * flops for kernel in kernels_of(compiled) for _, flops in kernel.products)
    # XLA computes products that sum over one number by multiplications.
    assert computed == sum(times * flops_of(each) for each, times in counts.items() if summed(each) > 1) > 0


def summed(product: Product) -> int:
    (axes, _), _ = product.axes
    return math.prod(product.left.shape[axis] for axis in axes)


def flops_of(product: Product) -> int:
    return 2 * product.left.size * product.right.size // summed(product)


def test_rejax_computes_as_many_products_of_minibatches() -> None:
    """Its budgets are rounded up to whole spells between evaluations: with two of them it would train twice as long."""
    pytest.importorskip("rejax")
    ppo = rljax.load_config("cartpole_ppo_cleanrl", eval_every=None, total_timesteps=2_000)
    dqn = rljax.load_config("cartpole_dqn_rejax", eval_every=None, total_timesteps=10_025)
    for config, settings, rows in ((ppo, ppo_settings, 128), (dqn, dqn_settings, 100)):
        programs = (rljax.make_train(config), rejax_program(settings(config)))
        counts = [products_of(trace_needed(program, jax.random.key(0))[0]) for program in programs]
        gradients, theirs = (
            sum(times for each, times in found.items() if each.left.shape == (rows, 64) and each.axes[0] == ((0,), (0,)))
            for found in counts
        )
        assert gradients == theirs > 0


def test_a_process_of_a_benchmark_that_has_ended_is_one_line() -> None:
    with Worker(["rljax.run.bench.rejax_peer", "no settings"], {}) as worker:
        with pytest.raises(RljaxError, match="a process of the benchmark ended"):
            worker.seconds()
        worker.process.wait()
        with pytest.raises(RljaxError, match="a process of the benchmark ended"):
            worker.run(0)


def test_the_process_of_a_peer_leaves_jax_as_it_is() -> None:
    """rljax compiles JAX's random numbers as a shorter loop, in its own processes only: rejax is timed as its users run it."""
    changes = "'rljax.core.threefry' in sys.modules"
    code = f"import sys, rljax.run.bench.rejax_peer; print({changes}); import rljax.core.keys; print({changes})"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert said.stdout.split() == ["False", "True"]


def test_imports_of_a_peer_do_not_count_as_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, begun = [0.0], []

    def program(settings: dict[str, Any]) -> Any:
        clock[0] += 5.0
        return lambda key: key

    monkeypatch.setattr(rejax_peer, "rejax_program", program)
    monkeypatch.setattr(rejax_peer.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(rejax_peer, "serve", lambda run, started: begun.append(started))
    rejax_peer._serve({})
    assert begun == [5.0]
