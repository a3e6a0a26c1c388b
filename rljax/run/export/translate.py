"""Write a program of JAX's primitives as a Python function of NumPy.

The function is a closure, `make(w) -> step`: what depends on weights alone is computed once, when it is made. Broadcasting is
left to NumPy: an array is written with axes of length 1 (`held`) until something reads all of its axes.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal

from rljax.core.errors import ConfigError
from rljax.run.export.program import Program

LINE = 100
"""Number of characters up to which expressions are nested in each other."""

OPERATORS = {
    **{"add": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    **{"and": "&", "or": "|", "xor": "^", "pow": "**", "shift_right_logical": ">>", "shift_left": "<<"},
}
FUNCTIONS = {
    **{name: name for name in ("tanh", "exp", "exp2", "log", "log1p", "expm1", "sqrt", "square", "abs", "sign", "floor", "ceil")},
    **{"sin": "sin", "cos": "cos", "max": "maximum", "min": "minimum", "rem": "fmod", "is_finite": "isfinite", "cbrt": "cbrt"},
    "atan2": "arctan2",
}
FORMS = {
    "neg": "(-{0})",
    "not": "(~{0})",
    "rsqrt": "(1.0 / np.sqrt({0}))",
    "logistic": "(1.0 / (1.0 + np.exp(-{0})))",
    "clamp": "np.minimum(np.maximum({1}, {0}), {2})",
}
REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod", "reduce_or": "any"}
REDUCTIONS |= {"reduce_and": "all"}


class Written(NamedTuple):
    """A value as an expression.

    Attributes:
        text: the expression.
        held: its shape, in which axes that were broadcast have length 1; () for numbers.
        once: whether it depends on weights alone.
    """

    text: str
    held: tuple[Any, ...]
    once: bool


def translate(program: Program, function: str) -> tuple[str, dict[str, np.ndarray]]:
    """Return the source of `def FUNCTION(w)`, and the arrays that it reads from `w`, by name.

    Raises:
        ConfigError: the program has a primitive that is not known here.
    """
    writer = _Writer(program, f"constants/{function}")
    for equation in program.equations:
        writer.write(equation)
    results = [writer.whole(writer.read(x), x.aval) for x in program.results.values()]
    names = list(writer.arguments.values())
    body = [*writer.body, f"return [{', '.join(result.text for result in results)}]"]
    if any(re.search(r"\bb\b", line) for line in body):
        body = [f"b = len({names[0]})", *body]
    inner = [f"    def step({', '.join(names)}):", *("        " + line for line in body)]
    lines = [f"def {function}(w):", *("    " + line for line in writer.head), "", *inner, "", "    return step"]
    return "\n".join(lines) + "\n", writer.arrays


class _Writer:
    """The lines of a function as they are written."""

    def __init__(self, program: Program, constants: str):
        self.head: list[str] = []
        self.body: list[str] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.values: dict[Any, Written] = {}
        self.names = (f"x{i}" for i in itertools.count())
        atoms = [x for e in program.equations for x in e.invars] + list(program.results.values())
        self.uses = Counter(x for x in atoms if not isinstance(x, Literal))
        self.arguments = {name: re.sub(r"[^a-zA-Z0-9_]", "_", name) for name in program.arguments}
        if len(set(self.arguments.values())) < len(self.arguments):
            self.arguments = {name: f"{name.split('.')[0]}_{i}" for i, name in enumerate(self.arguments)}
        taken = {"w", "b", "np", "step", *self.arguments.values()}
        for name, (variable, array) in program.weights.items():
            self._array(variable, name, array, _short(name, taken))
        for i, (variable, array) in enumerate(program.constants):
            self._array(variable, f"{constants}/{i}", array, f"constant_{i}")
        for name, variable in program.arguments.items():
            self.values[variable] = Written(self.arguments[name], variable.aval.shape, False)

    def _array(self, variable: Any, name: str, array: np.ndarray, short: str) -> None:
        _check_dtype(array.dtype)
        self.arrays[name] = array
        self.head.append(f'{short} = w["{name}"]')
        self.values[variable] = Written(short, array.shape, True)

    def read(self, x: Any) -> Written:
        return Written(_number(x.val), (), True) if isinstance(x, Literal) else self.values[x]

    def write(self, equation: Any) -> None:
        name, params = equation.primitive.name, equation.params
        inputs = [self.read(x) for x in equation.invars]
        avals = [x.aval for x in equation.invars]
        for variable in equation.outvars:
            _check_dtype(variable.aval.dtype)
        if name == "split":
            starts = [0, *itertools.accumulate(params["sizes"])]
            x = self.named(self.whole(inputs[0], avals[0]))
            for variable, (start, end) in zip(equation.outvars, itertools.pairwise(starts), strict=True):
                index = [":"] * len(avals[0].shape)
                index[params["axis"]] = f"{start}:{end}"
                self.keep(variable, f"{x.text}[{', '.join(index)}]", variable.aval.shape, [x])
            return
        if len(equation.outvars) != 1:
            raise _no_code(name)
        (variable,) = equation.outvars
        out = variable.aval
        if name in OPERATORS or name in FUNCTIONS or name in FORMS or name in ("div", "integer_pow", "select_n"):
            self.keep(variable, _elementwise(name, params, inputs, avals, out), _joined(inputs), inputs)
        elif name == "broadcast_in_dim":
            text, held = _broadcast(inputs[0], params["broadcast_dimensions"], len(out.shape))
            self.keep(variable, text, held, inputs)
        elif name == "convert_element_type":
            text = inputs[0].text if avals[0].dtype == out.dtype else _converted(inputs[0], out.dtype)
            self.keep(variable, text, inputs[0].held, inputs)
        elif name == "iota":
            length, axis = out.shape[params["dimension"]], params["dimension"]
            held = tuple(length if i == axis else 1 for i in range(len(out.shape)))
            shaped = "" if len(held) == 1 else f".reshape({_list(held)})"
            self.keep(variable, f"np.arange({length}, dtype=np.{out.dtype}){shaped}", held, [])
        else:
            wholes = [self.whole(x, aval) for x, aval in zip(inputs, avals, strict=True)]
            found = _structural(name, params, wholes, avals, out) if wholes else None
            if found is None:
                raise _no_code(name)
            self.keep(variable, found, out.shape, wholes)

    def keep(self, variable: Any, text: str, held: tuple[Any, ...], inputs: Sequence[Written]) -> None:
        """Take an expression as the value of a variable; name it if it is read more than once, or long."""
        # The batch is known in a step only.
        once = all(x.once for x in inputs) and not re.search(r"\bb\b", text)
        written = Written(text, held, once)
        nested = self.uses[variable] == 1 and len(text) < LINE and (not once or held == ())
        self.values[variable] = written if nested or re.fullmatch(r"-?\w[\w.]*", text) else self.named(written)

    def named(self, x: Written) -> Written:
        """Return a value under a name of its own."""
        if x.text.isidentifier():
            return x
        name = next(self.names)
        text = x.text[1:-1] if x.text.startswith("(") and _closes_at(x.text) == len(x.text) - 1 else x.text
        (self.head if x.once else self.body).append(f"{name} = {text}")
        return Written(name, x.held, x.once)

    def whole(self, x: Written, aval: Any) -> Written:
        """Return a value with all of its axes as long as they are."""
        if x.held == tuple(aval.shape):
            return x
        text = _number_of(x.text, aval.dtype) if x.held == () else x.text
        shape = "(" + _list(aval.shape) + ("," if len(aval.shape) == 1 else "") + ")"
        text = f"np.broadcast_to({text}, {shape})"
        return Written(text, tuple(aval.shape), x.once and not re.search(r"\bb\b", text))


def _no_code(primitive: str) -> ConfigError:
    return ConfigError(f"it uses {primitive}, for which there is no code in NumPy")


def _elementwise(name: str, params: Any, inputs: Sequence[Written], avals: Sequence[Any], out: Any) -> str:
    texts = [x.text for x in inputs]
    if name == "and" and "True" in texts:
        return texts[1 - texts.index("True")]
    if name in OPERATORS:
        return f"({texts[0]} {OPERATORS[name]} {texts[1]})"
    if name in FUNCTIONS:
        return f"np.{FUNCTIONS[name]}({', '.join(texts)})"
    if name == "div":
        if not _is_float(out.dtype):
            raise ConfigError("it divides whole numbers, for which there is no code in NumPy")
        return f"({texts[0]} / {texts[1]})"
    if name == "integer_pow":
        return f"np.square({texts[0]})" if params["y"] == 2 else f"({texts[0]} ** {float(params['y'])})"
    if name == "select_n":
        if len(inputs) != 3 or avals[0].dtype != np.bool_:
            raise ConfigError("it selects by whole numbers, for which there is no code in NumPy")
        yes, no = (_number_of(x.text, out.dtype) if x.held == () else x.text for x in (inputs[2], inputs[1]))
        return f"np.where({texts[0]}, {yes}, {no})"
    return FORMS[name].format(*texts)


def _joined(inputs: Sequence[Written]) -> tuple[Any, ...]:
    """Return the shape of an elementwise result."""
    shapes = [x.held for x in inputs if x.held != ()]
    if not shapes:
        return ()
    return tuple(next((n for n in axes if not (isinstance(n, int) and n == 1)), 1) for axes in zip(*shapes, strict=True))


def _broadcast(x: Written, dimensions: Sequence[int], rank: int) -> tuple[str, tuple[Any, ...]]:
    """Return `(expression, held shape)` of an array with new axes; those are left at length 1."""
    if x.held == ():
        return x.text, ()
    held = [x.held[dimensions.index(axis)] if axis in dimensions else 1 for axis in range(rank)]
    if len(dimensions) == rank:
        return x.text, tuple(held)
    index = [":" if axis in dimensions else "None" for axis in range(rank)]
    return f"{x.text}[{', '.join(index)}]", tuple(held)


def _converted(x: Written, dtype: Any) -> str:
    if x.held == ():
        return f"np.{_type_name(dtype)}({x.text})"
    return f"{x.text}.astype(np.{_type_name(dtype)})"


def _dot(params: Any, inputs: Sequence[Written], avals: Sequence[Any], _: Any) -> str:
    (left, right), (left_batch, right_batch) = params["dimension_numbers"]
    ranks = [len(aval.shape) for aval in avals]
    if not left_batch and ranks[1] == 2 and tuple(left) == (ranks[0] - 1,) and len(right) == 1:
        return f"({inputs[0].text} @ {inputs[1].text}{'' if right[0] == 0 else '.T'})"
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names: list[list[str]] = [[""] * rank for rank in ranks]
    for a, b in [*zip(left_batch, right_batch, strict=True), *zip(left, right, strict=True)]:
        names[0][a] = names[1][b] = next(letters)
    for side in names:
        side[:] = [name or next(letters) for name in side]
    result = [names[0][a] for a in left_batch]
    for side, used in ((names[0], (*left_batch, *left)), (names[1], (*right_batch, *right))):
        result += [name for i, name in enumerate(side) if i not in used]
    spec = f"{''.join(names[0])},{''.join(names[1])}->{''.join(result)}"
    return f'np.einsum("{spec}", {inputs[0].text}, {inputs[1].text})'


def _slice(params: Any, inputs: Sequence[Written], avals: Sequence[Any], _: Any) -> str:
    strides = params["strides"] or (1,) * len(avals[0].shape)
    index = []
    for start, end, stride, length in zip(params["start_indices"], params["limit_indices"], strides, avals[0].shape, strict=True):
        part = ":" if (start, end) == (0, length) else f"{start}:{end}"
        index.append(part if stride == 1 else f"{part}:{stride}" if part != ":" else f"::{stride}")
    return f"{inputs[0].text}[{', '.join(index)}]"


def _gather(params: Any, inputs: Sequence[Written], avals: Sequence[Any], _: Any) -> str:
    """Write `x[:, 2:5]` or `x[:, 2]` where that is all, else a call of the runner's `_gather`."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    axes, collapsed = tuple(numbers.start_index_map), tuple(numbers.collapsed_slice_dims)
    others = [i for i in range(len(avals[0].shape)) if i not in axes]
    if numbers.operand_batching_dims or any(sizes[i] != avals[0].shape[i] or i in collapsed for i in others):
        raise ConfigError("it reads arrays in a way for which there is no code in NumPy")
    found = re.fullmatch(r"(?:np\.broadcast_to\(np\.int32\()?(\d+)(?:\), \(1,\)\))?", inputs[1].text)
    if found and tuple(avals[1].shape) == (1,):
        start, size, axis = int(found[1]), sizes[axes[0]], axes[0]
        part = str(start) if collapsed else f"{start}:{start + size}"
        return f"{inputs[0].text}[{', '.join([':'] * axis + [part])}]"
    given = [inputs[0].text, inputs[1].text, axes, tuple(sizes[i] for i in axes), collapsed, tuple(numbers.offset_dims)]
    return f"_gather({', '.join(map(str, given))})"


def _pad(params: Any, inputs: Sequence[Written], _avals: Any, _out: Any) -> str:
    config = params["padding_config"]
    if any(low < 0 or high < 0 or inside for low, high, inside in config):
        raise ConfigError("it crops by padding, for which there is no code in NumPy")
    widths = ", ".join(f"({low}, {high})" for low, high, _ in config)
    return f"np.pad({inputs[0].text}, ({widths},), constant_values={inputs[1].text})"


def _structural(name: str, params: Any, inputs: Sequence[Written], avals: Sequence[Any], out: Any) -> str | None:
    """Return the expression of a primitive that reads whole arrays; None for one that is not known."""
    x = inputs[0].text
    if name in WHOLE:
        return WHOLE[name](params, inputs, avals, out)
    if name in REDUCTIONS:
        axes = params["axes"]
        axis = str(axes[0]) if len(axes) == 1 else f"({_list(axes)})"
        # NumPy sums whole numbers in 64 bits.
        dtype = f", dtype=np.{out.dtype}" if name in ("reduce_sum", "reduce_prod") and not _is_float(out.dtype) else ""
        return f"{x}.{REDUCTIONS[name]}(axis={axis}{dtype})"
    if name in ("argmax", "argmin"):
        return f"{x}.{name}(axis={params['axes'][0]}).astype(np.{out.dtype})"
    if name in ("reshape", "expand_dims"):
        return f"{x}.reshape({_list(out.shape)})"
    if name == "squeeze":
        return f"{x}.squeeze(({_list(params['dimensions'])},))"
    if name == "transpose":
        return f"{x}.transpose({_list(params['permutation'])})"
    if name == "concatenate":
        return f"np.concatenate([{', '.join(part.text for part in inputs)}], axis={params['dimension']})"
    if name == "tile":
        return f"np.tile({x}, ({_list(params['reps'])},))"
    if name == "rev":
        return f"np.flip({x}, ({_list(params['dimensions'])},))"
    if name == "cumsum" and not params["reverse"]:
        return f"np.cumsum({x}, axis={params['axis']}, dtype=np.{out.dtype})"
    return None


WHOLE: dict[str, Callable[..., str]] = {"dot_general": _dot, "gather": _gather, "pad": _pad, "slice": _slice}


def _list(values: Sequence[Any]) -> str:
    return ", ".join(str(x) for x in values)


def _number(value: Any) -> str:
    number = np.asarray(value).item()
    if not isinstance(number, float):
        return repr(number)
    # The shortest number that f32 rounds to the same.
    return str(np.float32(number)) if np.isfinite(number) else f'np.float32("{number}")'


def _number_of(text: str, dtype: Any) -> str:
    return f"np.{_type_name(dtype)}({text})"


def _is_float(dtype: Any) -> bool:
    return bool(np.issubdtype(dtype, np.floating))


def _type_name(dtype: Any) -> str:
    return "bool_" if dtype == np.bool_ else str(dtype)


def _check_dtype(dtype: Any) -> None:
    if not hasattr(np, _type_name(dtype)):
        raise ConfigError(f"it computes in {dtype}, which NumPy does not have")


def _short(name: str, taken: set[str]) -> str:
    """Return a name for a variable from the end of a weight's path."""
    parts = [re.sub(r"[^a-zA-Z0-9_]", "_", part) for part in name.split("/")]
    for length in range(2, len(parts) + 1):
        short = "_".join(parts[-length:])
        if short not in taken and short.isidentifier():
            break
    taken.add(short)
    return short


def _closes_at(text: str) -> int:
    """Return where the parenthesis with which a text begins closes."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return i
    return -1
