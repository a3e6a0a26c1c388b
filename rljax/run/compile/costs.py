"""Count what a compiled program starts, computes and moves: its operations, multiplied by the trips of the loops around them.

XLA's own `cost_analysis` counts the body of a loop once, however often it runs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from rljax.run.compile.hlo import Computation, Operation, Program

NOT_STARTED = {
    "parameter", "get-tuple-element", "tuple", "constant", "bitcast", "after-all", "partition-id", "replica-id", "opt-barrier",
    "async-done", "async-update", "copy-start", "copy-done", "send", "send-done", "recv", "recv-done", "all-reduce-done",
    "all-gather-done", "collective-permute-done", "domain",
}  # fmt: skip
"""Operations that compute nothing, or that only start or await what another counts."""

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
               "collective-broadcast")  # fmt: skip

UNCOUNTED = {
    "copy", "broadcast", "iota", "reshape", "transpose", "slice", "dynamic-slice", "dynamic-update-slice", "pad",
    "concatenate", "reverse", "gather", "select", "convert", "bitcast-convert", "rng-bit-generator", "sort",
}  # fmt: skip
"""Operations that move floating-point numbers, and compute none."""

HOST = 5
"""XLA's number of the host's memory."""

MOVED = ("bitcast", "reshape", "copy", "convert")
"""Operations of a fusion through which an operand is only passed on."""


class Kernel(NamedTuple):
    """One operation that the device starts.

    Attributes:
        opcode: XLA's name of it; `while` for the trips of a loop.
        times: how often an iteration starts it, those of loops with an unknown number of trips counted once.
        flops: floating-point operations of one execution outside products of matrices.
        products: floating-point operations of products of matrices and convolutions, by `(element type, precision)`.
        moved: bytes of the device's memory that one execution reads and writes.
        sent: bytes that a collective operation combines on each device; None for other operations.
        bus: bytes that one execution moves between the device and the host's memory.
        waits: whether it is a loop whose trips are known only at run time.
        launched: whether it is counted as a launch. On a TPU loops, single numbers and copies beside the computation are not.
    """

    opcode: str
    times: int = 1
    flops: int = 0
    products: tuple[tuple[tuple[str, str], int], ...] = ()
    moved: int = 0
    sent: int | None = None
    bus: int = 0
    waits: bool = False
    launched: bool = True


def kernels_of(program: Program, on_tpu: bool = False) -> list[Kernel]:
    """Return everything that one run of a program starts.

    Of a conditional the branch with the most operations is counted, of a loop without a known number of trips one trip.
    """
    control = not on_tpu  # a TPU decides by its own scalar unit, and starts nothing for it
    done: dict[str, list[Kernel]] = {}
    channels: set[int] = set()

    def of(name: str) -> list[Kernel]:
        if name not in done:
            computation = program.computations[name]
            done[name] = [kernel for operation in computation.operations.values() for kernel in started(operation, computation)]
        return done[name]

    def started(operation: Operation, computation: Computation) -> Iterator[Kernel]:
        if operation.opcode == "while":
            trips = program.trips(operation, computation)
            times = 1 if trips is None else trips
            yield Kernel("while", times, waits=trips is None, launched=control)
            yield from (kernel._replace(times=kernel.times * times) for kernel in of(operation.called("body")))
        elif operation.opcode == "conditional":
            yield Kernel("conditional", launched=control)
            yield from max(map(of, operation.branches), key=lambda kernels: sum(kernel.times for kernel in kernels))
        elif operation.opcode == "call":
            yield from of(operation.called("to_apply"))
        elif operation.opcode == "async-start":
            yield from of(operation.called("calls"))
        elif operation.opcode == "copy-start":
            moved = sum(x.device_bytes for x in operation.shapes[:2])
            yield Kernel("copy-start", moved=moved, bus=_over_the_bus(operation), launched=control)
        elif operation.opcode not in NOT_STARTED and not operation.opcode.endswith("-done"):
            for collective, inside in _fused_collectives(program, operation):
                # A TPU begins one in a fusion, goes on with it in others, and ends it in another: all name its channel.
                channel = collective.integer("channel_id", -1)
                if channel not in channels or channel == -1:
                    channels.add(channel)
                    yield kernel_of(program, collective, inside)._replace(moved=0)
            kernel = kernel_of(program, operation, computation)
            numbers = operation.opcode not in ("fusion", "custom-call") and all(x.elements == 1 for x in operation.shapes)
            yield kernel._replace(launched=control or not numbers or kernel.sent is not None)

    return of(program.entry_name)


def _fused_collectives(program: Program, operation: Operation) -> Iterator[tuple[Operation, Computation]]:
    """Return the collective operations inside a fusion, each with its computation."""
    if operation.opcode != "fusion":
        return
    inner = program.computations[operation.called("calls")]
    for each in inner.operations.values():
        if each.opcode.removesuffix("-start") in COLLECTIVES:
            yield each, inner
        yield from _fused_collectives(program, each)


def kernel_of(program: Program, operation: Operation, computation: Computation) -> Kernel:
    """Return the costs of one operation that is no control flow."""
    collective = operation.opcode.removesuffix("-start")
    if collective in COLLECTIVES:
        operands = sum(x.bytes for name in operation.operands for x in computation.operations[name].shapes)
        results = sum(x.bytes for x in operation.shapes) - (operands if operation.opcode.endswith("-start") else 0)
        return Kernel(collective, moved=operands + max(results, 0), sent=max(operands, results))
    products: dict[tuple[str, str], int] = {}
    flops = _count_flops(program, operation, computation, products)
    moved, bus = _moved(program, operation, computation), _over_the_bus(operation)
    return Kernel(operation.opcode, flops=flops, products=tuple(products.items()), moved=moved, bus=bus)


def _over_the_bus(operation: Operation) -> int:
    """Return the bytes that a transfer moves between device and host: its arrays on the device, if others are on the host.

    Transfers begin and end apart, and the results of their beginning list their operands, too.
    """
    if not operation.opcode.endswith("-start") or not any(x.space == HOST for x in operation.shapes):
        return 0
    return sum(x.device_bytes for x in operation.shapes)


def _count_flops(program: Program, operation: Operation, computation: Computation, products: dict[tuple[str, str], int]) -> int:
    """Return the floating-point operations outside products of an operation, and add those of its products to `products`."""
    kind = operation.opcode
    if kind == "fusion":
        inner = program.computations[operation.called("calls")]
        return sum(_count_flops(program, each, inner, products) for each in inner.operations.values())
    if kind in ("dot", "convolution", "custom-call"):
        count = _product_flops(operation, computation)
        if count:
            precision = re.search(r"operand_precision=\{(\w+)", operation.attributes)
            key = (computation.operations[operation.operands[0]].shapes[0].dtype, precision[1] if precision else "default")
            products[key] = products.get(key, 0) + count
        return 0
    if kind in ("reduce", "reduce-window"):
        values = [computation.operations[name].shapes[0] for name in operation.operands]
        window = math.prod(_window(operation).get("size", [1]))
        read = values[0].elements if kind == "reduce" else operation.shapes[0].elements * window
        return read * sum(x.is_float for x in values[: len(values) // 2])
    if kind in NOT_STARTED or kind in UNCOUNTED or kind.endswith("-start"):
        return 0
    return sum(shape.elements for shape in operation.shapes if shape.is_float)


def _product_flops(operation: Operation, computation: Computation) -> int:
    """Return twice the multiplications of a product of matrices or a convolution; 0 for other calls."""
    shapes = [computation.operations[name].shapes[0] for name in operation.operands]
    if operation.opcode == "dot":
        return 2 * operation.shapes[0].elements * math.prod(shapes[0].dims[i] for i in operation.numbers("lhs_contracting_dims"))
    cudnn = re.search(r'custom_call_target="__cudnn\$conv(\w+)"', operation.attributes)
    if operation.opcode == "convolution" or cudnn:
        image, kernel, result = shapes[0].dims, shapes[1].dims, operation.shapes[0].dims
        if cudnn and cudnn[1] == "BackwardInput":  # gradients are described as the convolution whose gradients they are
            image, result = result, image
        elif cudnn and cudnn[1] == "BackwardFilter":
            kernel, result = result, kernel
        return _convolution_flops(operation, image, kernel, result)
    found = re.search(r'"lhs_contracting_dimensions":(\[[^\]]*\])', operation.attributes)  # a product by cuBLAS
    if not found:
        return 0
    return 2 * operation.shapes[0].elements * math.prod(shapes[0].dims[int(i)] for i in json.loads(found[1]))


def _convolution_flops(operation: Operation, image: tuple[int, ...], kernel: tuple[int, ...], out: tuple[int, ...]) -> int:
    """Count only products with numbers of the image, not with its padding: on TPUs a batched product is a padded convolution."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", operation.attributes)
    assert labels is not None
    window = _window(operation)
    count = out[labels[3].index("b")] * out[labels[3].index("f")] * kernel[labels[2].index("i")]
    for axis in range(len(labels[1]) - 2):
        places = image[labels[1].index(str(axis))]
        size, stride, dilation, holes = (
            window.get(name, [1] * (axis + 1))[axis] for name in ("size", "stride", "rhs_dilate", "lhs_dilate")
        )
        low = window.get("pad", [0] * (axis + 1))[axis]
        reach, valid = (places - 1) * holes, 0
        for step in range(out[labels[3].index(str(axis))]):
            begins = step * stride - low
            valid += sum(
                0 <= place <= reach and place % holes == 0 for place in range(begins, begins + size * dilation, dilation)
            )
        count *= valid
    return 2 * count


def _window(operation: Operation) -> dict[str, list[int]]:
    """Return the sizes, strides, dilations and low paddings of `window={size=3x3 pad=1_1x1_1}`."""
    found = re.search(r"window=\{([^}]*)\}", operation.attributes)
    parts = dict(part.split("=") for part in found[1].split()) if found else {}
    return {name: [int(number.partition("_")[0]) for number in value.split("x")] for name, value in parts.items()}


def _moved(program: Program, operation: Operation, computation: Computation) -> int:
    """Return the bytes of the device's memory that an operation reads and writes.

    A slice of an array, and what replaces one, are moved without the rest of it.
    """
    operands = [computation.operations[name] for name in operation.operands]
    written = sum(x.device_bytes for x in operation.shapes)
    if operation.opcode == "fusion":
        inner = program.computations[operation.called("calls")]
        read = 0
        for operand, parameter in zip(operands, inner.parameters(), strict=True):
            whole = sum(x.device_bytes for x in operand.shapes)
            read += min(whole, _read(program, inner, parameter.name)) if whole else 0
        return read + sum(
            min(shape.device_bytes, result) if shape.device_bytes else 0
            for shape, result in zip(operation.shapes, _written(program, inner), strict=True)
        )
    sizes = [sum(x.device_bytes for x in operand.shapes) for operand in operands]
    if operation.opcode in ("slice", "dynamic-slice"):
        return 2 * written
    if operation.opcode == "gather":
        return 2 * written + sizes[1]
    if operation.opcode in ("dynamic-update-slice", "scatter"):
        changes = sizes[1] if operation.opcode == "dynamic-update-slice" else sum(sizes[1:])
        return 2 * min(changes, written)
    return written + sum(sizes)


def _read(program: Program, inner: Computation, name: str) -> int:
    """Return the bytes of a parameter that a fusion reads, at most."""
    total = 0
    for user in inner.users(name):
        size = sum(x.bytes for x in user.shapes)
        first = user.operands[0] == name
        if user.opcode in MOVED:
            total += _read(program, inner, user.name) if user.name != inner.root else size
        elif user.opcode == "fusion":
            deeper = program.computations[user.called("calls")]
            same = [p.name for p, operand in zip(deeper.parameters(), user.operands, strict=True) if operand == name]
            total += sum(_read(program, deeper, parameter) for parameter in same)
        elif user.opcode in ("slice", "dynamic-slice", "gather") and first:
            total += size
        elif not (user.opcode in ("dynamic-update-slice", "scatter") and first) and not (
            user.opcode == "tuple" and user.name == inner.root
        ):
            return 2**62  # all of it
    return total


def _written(program: Program, inner: Computation) -> list[int]:
    """Return the bytes that each result of a fusion writes."""
    root = inner.operations[inner.root]
    results = [inner.operations[name] for name in root.operands] if root.opcode == "tuple" else [root]
    sizes = []
    for result in results:
        last = inner.through(result.name, MOVED)
        if last.opcode == "dynamic-update-slice":
            sizes.append(inner.operations[last.operands[1]].shapes[0].bytes)
        elif last.opcode == "scatter":
            sizes.append(sum(inner.operations[name].shapes[0].bytes for name in last.operands[2:]))
        elif last.opcode == "parameter" and root.opcode == "tuple":
            sizes.append(0)  # passed on
        elif last.opcode == "fusion":
            sizes += _written(program, program.computations[last.called("calls")])
        else:
            sizes += [shape.bytes for shape in result.shapes]
    return sizes
