"""Operations, arithmetic and bytes counted in a program's text equal those counted by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rljax.run.compile.costs import Kernel, kernels_of
from rljax.run.compile.hlo import Program, shapes_of

N, TRIPS = 32, 7


def compiled_text(function: Callable[..., Any], *shapes: tuple[int, ...]) -> str:
    """The CPU's program, optimised as in use: tests compile without."""
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    lowered = jax.jit(function).lower(*arguments)
    return lowered.compile({"xla_backend_optimization_level": 3}).as_text()


def products(kernels: list[Kernel]) -> int:
    return sum(kernel.times * flops for kernel in kernels for _, flops in kernel.products)


def repeated(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        x = jnp.tanh(x @ weights)
        return x, x.sum()

    return jax.lax.scan(step, x, None, length=TRIPS)


def test_products_in_a_loop_count_once_for_each_of_its_trips() -> None:
    text = compiled_text(repeated, (N, N), (4, N))
    kernels = kernels_of(Program(text))
    assert products(kernels) == TRIPS * 2 * 4 * N * N
    (loop,) = (kernel for kernel in kernels if kernel.opcode == "while")
    assert loop.times == TRIPS
    assert not loop.waits


def test_xla_itself_counts_the_body_of_a_loop_once() -> None:
    """If this fails, XLA has learned it, and `costs.py` may be shorter."""
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((N, N), (4, N))]
    costs = jax.jit(repeated).lower(*arguments).compile().cost_analysis()
    assert costs["flops"] < 2 * (2 * 4 * N * N)


def test_trips_are_found_without_the_compilers_note() -> None:
    """The compiler for TPUs leaves no such note; they follow from the start, the step and the bound of the counter."""
    text = compiled_text(repeated, (N, N), (4, N))
    without = "\n".join(line.replace("known_trip_count", "no_such_count") for line in text.splitlines())
    assert "known_trip_count" in text
    assert products(kernels_of(Program(without))) == TRIPS * 2 * 4 * N * N


def test_loops_inside_loops_multiply() -> None:
    def nested(x: jax.Array) -> jax.Array:
        def outer(_: int, x: jax.Array) -> jax.Array:
            return jax.lax.fori_loop(0, 5, lambda _, y: jnp.sin(y @ y), x)

        return jax.lax.fori_loop(0, 3, outer, x)

    assert products(kernels_of(Program(compiled_text(nested, (8, 8))))) == 15 * 2 * 8**3


def test_a_loop_of_unknown_length_is_counted_once_and_said_to_wait() -> None:
    def until_small(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: jnp.abs(x).max() > 1, lambda x: x @ x / 3, x)

    kernels = kernels_of(Program(compiled_text(until_small, (8, 8))))
    assert [kernel.times for kernel in kernels if kernel.waits] == [1]
    assert products(kernels) == 2 * 8**3


def test_of_a_conditional_the_longer_branch_counts() -> None:
    def either(x: jax.Array) -> jax.Array:
        return jax.lax.cond(x[0, 0] > 0, lambda x: jnp.sin(x @ x) @ x, lambda x: x, x)

    assert products(kernels_of(Program(compiled_text(either, (8, 8))))) == 2 * 2 * 8**3


def test_gradients_of_a_layer_take_three_products() -> None:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x) @ weights).sum()

    text = compiled_text(jax.value_and_grad(loss, argnums=(0, 1)), (16, 8), (4, 16))
    assert products(kernels_of(Program(text))) == 3 * 2 * 4 * 16 * 8


def test_floating_point_operations_outside_products_are_counted_by_element() -> None:
    text = compiled_text(lambda x: x * x + 1.0, (1000,))
    assert sum(kernel.flops for kernel in kernels_of(Program(text))) == 2000


def test_a_slice_of_an_array_is_read_without_the_rest() -> None:
    def rows(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda total, i: (total + x[i], None), jnp.zeros(x.shape[1]), jnp.arange(x.shape[0]))[0]

    text = compiled_text(rows, (100, 64))
    moved = sum(kernel.times * kernel.moved for kernel in kernels_of(Program(text)))
    row = 64 * 4
    assert 100 * 3 * row <= moved < 100 * 12 * row  # a trip that read all of the array would move 100 rows


FUSED = """
%begin (a: f32[4]) -> (f32[4], f32[64]) {
  %a = f32[4]{0} parameter(0)
  %gathered = f32[64]{0} all-gather(%a), channel_id=3, dimensions={0}
  ROOT %both = (f32[4]{0}, f32[64]{0}) tuple(%a, %gathered)
}

%end (b: f32[4]) -> f32[64] {
  %b = f32[4]{0} parameter(0)
  ROOT %gathered.1 = f32[64]{0} all-gather(%b), channel_id=3, dimensions={0}
}

ENTRY %main (x: f32[4]) -> f32[64] {
  %x = f32[4]{0} parameter(0)
  %start = (f32[4]{0}, f32[64]{0}) fusion(%x), kind=kCustom, calls=%begin
  %part = f32[4]{0} get-tuple-element(%start), index=0
  ROOT %done = f32[64]{0} fusion(%part), kind=kCustom, calls=%end
}
"""


def test_a_collective_in_the_pieces_of_several_fusions_counts_once() -> None:
    sent = [kernel.sent for kernel in kernels_of(Program(FUSED)) if kernel.sent is not None]
    assert sent == [64 * 4]


CONVOLUTION = """
ENTRY %main (a: f32[5,3,4], b: f32[5,4,6]) -> f32[5,3,6] {{
  %a = f32[5,3,4]{{2,1,0}} parameter(0)
  %b = f32[5,4,6]{{2,1,0}} parameter(1)
  ROOT %product = f32[5,3,6]{{2,1,0}} convolution(%a, %b), window={{{window}}}, dim_labels={labels}
}}
"""


def test_a_batched_product_as_a_padded_convolution_counts_without_the_padding() -> None:
    """So XLA writes batched products for TPUs: of five times five pairs only the five on the diagonal are there."""
    window = "size=5 stride=4 pad=0_0 lhs_dilate=5"
    (kernel,) = kernels_of(Program(CONVOLUTION.format(window=window, labels="0bf_0io->0bf")))
    assert kernel.products == ((("f32", "default"), 2 * 5 * 3 * 4 * 6),)


@pytest.mark.parametrize(
    ("call", "result", "first", "second"),
    [
        ("Forward", "16,10,10,8", "16,12,12,3", "8,3,3,3"),
        ("BiasActivationForward", "16,10,10,8", "16,12,12,3", "8,3,3,3"),
        ("BackwardInput", "16,12,12,3", "16,10,10,8", "8,3,3,3"),
        ("BackwardFilter", "8,3,3,3", "16,12,12,3", "16,10,10,8"),
    ],
)
def test_a_convolution_by_cudnn_and_its_gradients_count_like_its_definition(
    call: str, result: str, first: str, second: str
) -> None:
    text = f"""
ENTRY %main (a: f32[{first}], b: f32[{second}]) -> f32[{result}] {{
  %a = f32[{first}]{{3,2,1,0}} parameter(0)
  %b = f32[{second}]{{3,2,1,0}} parameter(1)
  %conv = (f32[{result}]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%a, %b), window={{size=3x3}}, dim_labels=b01f_o01i->b01f, \
custom_call_target="__cudnn$conv{call}", backend_config={{"cudnn_conv_backend_config":{{"activation_mode":"kNone"}}}}
  ROOT %result = f32[{result}]{{3,2,1,0}} get-tuple-element(%conv), index=0
}}
"""
    assert products(kernels_of(Program(text))) == 2 * (16 * 10 * 10 * 8) * (3 * 3 * 3)


def test_a_convolution_counts_like_its_definition() -> None:
    x, kernel = (2, 3, 9, 9), (4, 3, 3, 3)

    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv(x, kernel, (2, 2), "VALID")

    text = jax.jit(convolve).lower(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in (x, kernel))).compile().as_text()
    assert products(kernels_of(Program(text))) == 2 * (2 * 4 * 4 * 4) * (3 * 3 * 3)


@pytest.mark.parametrize(
    ("text", "size", "in_memory"),
    [
        ("f32[10]", 40, True),
        ("f32[10]{0:T(128)}", 512, True),
        ("f32[4,64]{1,0:T(8,128)}", 8 * 128 * 4, True),
        ("f32[4,64]{0,1:T(8,128)}", 64 * 128 * 4, True),
        ("bf16[4,64]{1,0:T(8,128)(2,1)}", 8 * 128 * 2, True),
        ("f32[]{:T(128)}", 512, True),
        ("pred[3,5]{1,0}", 15, True),
        ("f32[10]{0:T(128)S(1)}", 512, False),
        ("token[]", 0, True),
    ],
)
def test_sizes_include_what_fills_up_tiles(text: str, size: int, in_memory: bool) -> None:
    (shape,) = shapes_of(text)
    assert shape.bytes == size
    assert shape.device_bytes == (size if in_memory else 0)


COLLECTIVE = """
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from rljax.run.compile.costs import kernels_of
from rljax.run.compile.estimate import collectives_of
from rljax.run.compile.hlo import Program

mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

def step(x):
    def body(total, _):
        return jax.lax.psum(total * x, "data"), None
    total = jax.lax.scan(body, x, None, length=5)[0]
    return total, jax.lax.all_gather(x, "data")

sharded = jax.shard_map(step, mesh=mesh, in_specs=P("data"), out_specs=(P(), P(None, "data")), check_vma=False)
text = jax.jit(sharded).lower(jax.ShapeDtypeStruct((2 * 48,), jnp.float32)).compile().as_text()
print([tuple(x) for x in collectives_of(kernels_of(Program(text)))])
"""


def test_collectives_of_two_devices_are_counted_with_their_bytes() -> None:
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", COLLECTIVE], env=env, capture_output=True, text=True, timeout=120, check=True)
    gathered, summed = ("all-gather", 1, 2 * 48 * 4), ("all-reduce", 5, 5 * 48 * 4)
    assert done.stdout.strip() == str([gathered, summed])


def test_transfers_between_device_and_host_are_counted_as_such() -> None:
    """As an H200's program has them: a row is written to the host's buffer, the host gathers what is sampled."""
    ring, row = "f32[100,4,8]{2,1,0:S(5)}", "f32[1,4,8]{2,1,0}"
    text = f"""HloModule step, is_scheduled=true

%write (a: f32[100,4,8], b: f32[1,4,8], c: s32[]) -> f32[100,4,8] {{
  %a = {ring} parameter(0)
  %b = {row} parameter(1)
  %c = s32[] parameter(2)
  ROOT %put = {ring} dynamic-update-slice(%a, %b, %c, %c, %c)
}}

ENTRY %main (p: f32[100,4,8], q: f32[1,4,8], r: s32[], i: s32[6]) -> f32[6,8] {{
  %p = {ring} parameter(0)
  %q = {row} parameter(1)
  %r = s32[] parameter(2)
  %i = s32[6]{{0:S(5)}} parameter(3)
  %begin = (({ring}, {row}, s32[]), {ring}, u32[]) fusion-start(%p, %q, %r), kind=kLoop, calls=%write
  %end = {ring} fusion-done(%begin)
  %call = (({ring}, s32[6]{{0:S(5)}}), f32[6,8]{{1,0}}, u32[]) custom-call-start(%end, %i), custom_call_target="HostExecute"
  ROOT %found = f32[6,8]{{1,0}} custom-call-done(%call)
}}
"""
    kernels = kernels_of(Program(text))
    assert [kernel.opcode for kernel in kernels] == ["fusion-start", "custom-call-start"]
    scalars = 2 * 4  # where the row goes, and what the operation is known by
    assert [kernel.bus for kernel in kernels] == [4 * 8 * 4 + scalars, 6 * 8 * 4 + 4]
    assert sum(kernel.flops for kernel in kernels) == 0
