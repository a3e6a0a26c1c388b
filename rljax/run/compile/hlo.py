"""Read an optimised XLA program from its text (`compiled.as_text()`): operations, their shapes, and the trips of loops."""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import NamedTuple

BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}
"""Size of the element types whose names do not end in it."""

FLOATS = ("f", "bf", "c")
"""How names of floating-point types begin."""

_SHAPE = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{")
_OPERATION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_TILE = re.compile(r"T\(([\d,]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")


class Shape(NamedTuple):
    """Array of a program.

    Attributes:
        dtype: XLA's name of the element type, `f32`.
        dims: sizes of its axes.
        layout: axes from the fastest to the slowest.
        tile: sizes to which a TPU rounds up the fastest axes, slowest first; empty without tiles.
        space: 0 for the device's memory, 5 for the host's; other numbers are memories on the chip.
    """

    dtype: str
    dims: tuple[int, ...]
    layout: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    space: int = 0

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(FLOATS)

    @property
    def bytes(self) -> int:
        """Bytes that the array takes, those that fill up its tiles included."""
        digits = re.search(r"^[a-z]+(\d+)", self.dtype)
        bits = BITS[self.dtype] if self.dtype in BITS else int(digits[1]) if digits else 0
        sizes = [self.dims[axis] for axis in reversed(self.layout)] if len(self.layout) == len(self.dims) else list(self.dims)
        sizes = [1] * (len(self.tile) - len(sizes)) + sizes
        first = len(sizes) - len(self.tile)
        sizes[first:] = [-(-n // tile) * tile for n, tile in zip(sizes[first:], self.tile, strict=True)]
        return math.prod(sizes) * bits // 8

    @property
    def device_bytes(self) -> int:
        """Bytes in the device's memory: none of an array that stays on the chip, or on the host."""
        return 0 if self.space else self.bytes


class Operation(NamedTuple):
    """Operation of a computation.

    Attributes:
        name: its name, unique in the program.
        opcode: `fusion`, `dot`, `while`, ...
        shapes: results; several if it returns a tuple.
        operands: names of its operands.
        literal: text between its brackets: operands, the value of a constant, or the index of a parameter.
        attributes: text behind them.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: str

    def called(self, attribute: str) -> str:
        """Return the name of the computation that an attribute (`calls`, `body`) gives, or "" without it."""
        found = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.attributes)
        return found[1] if found else ""

    def numbers(self, attribute: str) -> tuple[int, ...]:
        """Return the numbers of an attribute such as `lhs_contracting_dims={1}`."""
        found = re.search(rf"\b{attribute}=\{{([\d,]*)\}}", self.attributes)
        return _integers(found[1]) if found else ()

    def integer(self, attribute: str, default: int) -> int:
        found = re.search(rf"\b{attribute}=(\d+)", self.attributes)
        return int(found[1]) if found else default

    @property
    def branches(self) -> list[str]:
        """Names of the computations of a conditional."""
        found = re.search(r"branch_computations=\{([^}]*)\}", self.attributes)
        if found:
            return [name.strip().lstrip("%") for name in found[1].split(",")]
        return [self.called("true_computation"), self.called("false_computation")]


class Computation(NamedTuple):
    """Operations by name, in order, and the name of the one whose result is returned."""

    operations: dict[str, Operation]
    root: str

    def parameters(self) -> list[Operation]:
        """Return the parameters in their order."""
        found = [operation for operation in self.operations.values() if operation.opcode == "parameter"]
        return sorted(found, key=lambda parameter: int(parameter.literal))

    def users(self, name: str) -> list[Operation]:
        """Return the operations with an operand of this name."""
        return [operation for operation in self.operations.values() if name in operation.operands]

    def through(self, name: str, opcodes: tuple[str, ...] = ("copy", "bitcast", "convert", "reshape")) -> Operation:
        """Return the operation of this name, or what it copies."""
        operation = self.operations[name]
        while operation.opcode in opcodes:
            operation = self.operations[operation.operands[0]]
        return operation


class Program:
    """Optimised program: its computations by name, and the one that runs first."""

    def __init__(self, text: str):
        self.computations: dict[str, Computation] = {}
        self.entry_name = ""
        name, root, operations = "", "", {}  # type: str, str, dict[str, Operation]
        for line in text.splitlines():
            head = _COMPUTATION.match(line)
            if head:
                name, root, operations = head[2], "", {}
                self.entry_name = name if head[1] else self.entry_name
            elif line.startswith("}") and name:
                self.computations[name] = Computation(operations, root)
                name = ""
            elif name and (start := _OPERATION.match(line)):
                operation = _operation(start[2], line[start.end() :])
                operations[operation.name] = operation
                root = operation.name if start[1] else root

    @cached_property
    def entry(self) -> Computation:
        return self.computations[self.entry_name]

    def trips(self, loop: Operation, inside: Computation) -> int | None:
        """Return the trips of a `while` of the computation `inside`; None if they are known only when it runs."""
        known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
        if known:
            return int(known[1])
        condition, body = (self.computations[loop.called(name)] for name in ("condition", "body"))
        test = condition.through(condition.root)
        if test.opcode == "fusion":  # a comparison on its own, with the same operands
            inner = self.computations[test.called("calls")]
            compare, parameters = inner.through(inner.root), [p.name for p in inner.parameters()]
            names = [inner.through(operand) for operand in compare.operands]
            if compare.opcode != "compare" or any(x.opcode not in ("parameter", "constant") for x in names):
                return None
            sides = [x if x.opcode == "constant" else condition.through(test.operands[parameters.index(x.name)]) for x in names]
            test = compare
        elif test.opcode == "compare":
            sides = [condition.through(operand) for operand in test.operands]
        else:
            return None
        start = inside.through(loop.operands[0])
        if "direction=LT" not in test.attributes or start.opcode != "tuple" or sides[0].opcode != "get-tuple-element":
            return None
        index = sides[0].integer("index", -1)
        first, last = _constant(inside.through(start.operands[index])), self._bound(sides[1], body, start, inside)
        step = _step(self, body, index)
        return None if first is None or last is None or step is None else max(0, -(-(last - first) // step))

    def _bound(self, side: Operation, body: Computation, start: Operation, inside: Computation) -> int | None:
        """Return the value of a constant, or of an element of a loop's tuple that begins as a constant and never changes."""
        if side.opcode != "get-tuple-element":
            return _constant(side)
        index, last = side.integer("index", -1), body.operations[body.root]
        if last.opcode != "tuple":
            return None
        kept = body.through(last.operands[index])
        if kept.opcode != "get-tuple-element" or kept.integer("index", -1) != index:
            return None
        return _constant(inside.through(start.operands[index]))


def _step(program: Program, body: Computation, index: int) -> int | None:
    """Return the constant that a trip adds to an element of the loop's tuple, or None."""
    root = body.operations[body.root]
    if root.opcode != "tuple":
        return None
    following = body.through(root.operands[index])
    if following.opcode == "fusion":
        inner = program.computations[following.called("calls")]
        given = dict(zip((parameter.name for parameter in inner.parameters()), following.operands, strict=True))
        following = inner.through(inner.root)
        terms = [inner.through(name) for name in following.operands]
        terms = [body.through(given[term.name]) if term.name in given else term for term in terms]
    else:
        terms = [body.through(name) for name in following.operands]
    steps = [value for value in map(_constant, terms) if value is not None] if following.opcode == "add" else []
    return steps[0] if len(steps) == 1 and steps[0] > 0 else None


def _constant(operation: Operation) -> int | None:
    found = re.fullmatch(r"-?\d+", operation.literal) if operation.opcode == "constant" else None
    return int(found[0]) if found else None


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def shapes_of(text: str) -> tuple[Shape, ...]:
    """Return the arrays of a type as XLA prints it, `(f32[4]{0:T(128)S(1)}, s32[])`."""
    found = []
    for dtype, dims, layout in _SHAPE.findall(text):
        order, _, properties = layout.partition(":")
        tile, space = _TILE.search(properties), _SPACE.search(properties)
        found.append(
            Shape(
                dtype,
                _integers(dims.replace("<=", "")),
                _integers(order),
                _integers(tile[1]) if tile else (),
                int(space[1]) if space else 0,
            )
        )
    return tuple(found)


def _operation(name: str, text: str) -> Operation:
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    kind, rest = text[:end], text[end:].lstrip()
    opcode, _, _ = rest.partition("(")
    last = _closing(rest, len(opcode))
    literal = rest[len(opcode) + 1 : last]
    return Operation(name, opcode, shapes_of(kind), tuple(re.findall(r"%([\w.\-]+)", literal)), literal.strip(), rest[last + 1 :])


def _closing(text: str, start: int) -> int:
    """Return the place of the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place
    return len(text)
