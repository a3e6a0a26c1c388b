"""Convert a policy's step to ONNX with jax2onnx; the result is kept only if it acts like the policy."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import first_line, how_to_install
from rljax.run.export.checks import disagreement
from rljax.run.export.program import read_program
from rljax.run.export.steps import PolicyStep


def onnx_or_reason(step: PolicyStep, state: Any) -> tuple[bytes | None, str | None]:
    """Return `(the step as an ONNX file that acts like the policy, None)`, or `(None, one line with the reason)`.

    Inputs are the arrays of observation, carry, random numbers and mask, outputs those of the action and the next carry.
    """
    if any(draw.distribution == "bits" for draw in step.draws):
        return None, (
            "ONNX runtimes do not compute with unsigned integers, the random bits that this policy draws: it can draw uniform, "
            "normal or gumbel numbers instead"
        )
    try:
        with _restore_modules():
            model = _convert(step, state)
    except ImportError as error:
        return None, f"jax2onnx cannot be imported ({first_line(error)}): {how_to_install('onnx')}"
    except Exception as error:
        return None, f"jax2onnx cannot convert this policy: {first_line(error)}"
    try:
        wrong = _disagreement(model, step, state)
    except Exception as error:
        return None, f"the converted policy cannot be checked: {first_line(error)}"
    return (model, None) if wrong is None else (None, wrong)


def _convert(step: PolicyStep, state: Any) -> bytes:
    # Trace here and hand over primitives instead of Python. While jax2onnx traces, it replaces functions of jax.numpy and flax by
    # its own: JAX would cache them and break the next program, and many of them do not support a symbolic batch size.
    program = read_program(step, state)

    def policy(*xs: Any) -> Any:
        results = program(*xs)
        return results[0] if len(results) == 1 else tuple(results)

    model = importlib.import_module("jax2onnx").to_onnx(
        policy,
        [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.arguments.values()],
        model_name="policy",
        input_names=list(program.arguments),
        output_names=list(program.results),
    )
    return bytes(model.SerializeToString())


@contextlib.contextmanager
def _restore_modules() -> Iterator[None]:
    """Restore JAX's modules at the end, and silence logs: jax2onnx does not undo all of its patches, and it logs a lot."""
    modules = [jax, jnp, jax.lax, jax.nn, jax.random, importlib.import_module("flax.linen")]
    before = [dict(vars(module)) for module in modules]
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        for module, attributes in zip(modules, before, strict=True):
            for name, value in attributes.items():
                if vars(module).get(name) is not value:
                    setattr(module, name, value)


def _disagreement(model: bytes, step: PolicyStep, state: Any) -> str | None:
    """Return how the ONNX file's results differ from the policy's on random observations, or None if they do not."""
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, and are in the report
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    # An argument that nothing reads is no input of the file.
    read = {given.name for given in session.get_inputs()}

    def converted(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        found: list[np.ndarray] = session.run(None, {name: x for name, x in inputs.items() if name in read})
        return found

    return disagreement(step, state, converted)
