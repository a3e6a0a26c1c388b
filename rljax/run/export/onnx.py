"""Convert a policy to ONNX with jax2onnx; the result is kept only if it acts like the artifact."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import first_line, how_to_install
from rljax.core.spaces import head_sizes
from rljax.run.export.signature import Signature, action_shapes, batched, input_names, leaf_names

ONNX_CHECKS = 1000
"""Number of observations on which a converted file must act like the artifact to be kept."""


def onnx_or_reason(greedy: Callable[..., Any], exported: Any, signature: Signature) -> tuple[bytes | None, str | None]:
    """Return `(the greedy policy as an ONNX file that acts like the artifact, None)`, or `(None, one line with the reason)`."""
    try:
        with _restore_modules():
            model = _convert(greedy, exported, signature)
    except ImportError as error:
        return None, f"jax2onnx cannot be imported ({first_line(error)}): {how_to_install('onnx')}"
    except Exception as error:
        return None, f"jax2onnx cannot convert this policy: {first_line(error)}"
    try:
        disagreement = _disagreement(model, exported, signature)
    except Exception as error:
        return None, f"the converted policy cannot be checked: {first_line(error)}"
    return (model, None) if disagreement is None else (None, disagreement)


def _convert(greedy: Callable[..., Any], exported: Any, signature: Signature) -> bytes:
    """Convert the greedy policy to ONNX: inputs are the leaves of the observation and the mask, outputs those of the action."""
    from jax.interpreters import partial_eval

    leaves, structure = jax.tree.flatten(batched(signature))
    # Trace here and hand over primitives instead of Python. While jax2onnx traces, it replaces functions of jax.numpy and flax by
    # its own: JAX would cache them and break the next program, and many of them do not support a symbolic batch size.
    closed = jax.make_jaxpr(lambda *xs: greedy(*jax.tree.unflatten(structure, xs)))(*leaves)
    jaxpr, used, _ = partial_eval.dce_jaxpr_consts(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    consts = [x for x, is_used in zip(closed.consts, used, strict=True) if is_used]

    def policy(*xs: Any) -> Any:
        actions = _evaluate(jaxpr, consts, xs)
        return actions[0] if len(actions) == 1 else tuple(actions)

    model = importlib.import_module("jax2onnx").to_onnx(
        policy,
        leaves,
        model_name="policy",
        input_names=input_names(signature),
        output_names=leaf_names("action", action_shapes(exported)),
    )
    return bytes(model.SerializeToString())


def _evaluate(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Evaluate a program with its inner `jit`s inlined: jax2onnx converts those only for some versions of JAX."""
    from jax.extend.core import Literal

    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))
    for equation in jaxpr.eqns:
        inputs = [x.val if isinstance(x, Literal) else values[x] for x in equation.invars]
        if equation.primitive.name in ("jit", "pjit"):
            inner = equation.params["jaxpr"]
            outputs = _evaluate(inner.jaxpr, inner.consts, inputs)
        elif equation.primitive.name == "stack":  # jax2onnx has no converter for it
            axis = equation.params["axis"]
            outputs = [jax.lax.concatenate([jax.lax.expand_dims(x, (axis,)) for x in inputs], axis)]
        else:
            bound = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
            outputs = bound if equation.primitive.multiple_results else [bound]
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return [x.val if isinstance(x, Literal) else values[x] for x in jaxpr.outvars]


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


def _disagreement(model: bytes, exported: Any, signature: Signature) -> str | None:
    """Return how the ONNX file's actions differ from the artifact's on random observations, or None if they do not."""
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, and are in the report
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = _random_inputs(signature, ONNX_CHECKS)
    # Run both on the CPU: an accelerator's matmuls may have a lower precision.
    expected = [np.asarray(x) for x in jax.tree.leaves(exported.call(*jax.device_put(inputs, jax.devices("cpu")[0])))]
    actions = session.run(None, dict(zip(input_names(signature), map(np.asarray, jax.tree.leaves(inputs)), strict=True)))
    wrong = np.zeros(ONNX_CHECKS, bool)
    # Two actions may have almost equal logits, and then rounding decides.
    allowed = ONNX_CHECKS // 500
    for action, wanted in zip(actions, expected, strict=True):
        if action.shape != wanted.shape or action.dtype != wanted.dtype:
            return f"the converted policy gave {action.dtype} {list(action.shape)}, not {wanted.dtype} {list(wanted.shape)}"
        if np.issubdtype(wanted.dtype, np.integer):
            differs = action != wanted
        else:
            differs, allowed = ~np.isclose(action, wanted, rtol=1e-5, atol=1e-5), 0
        wrong |= differs.reshape(ONNX_CHECKS, -1).any(axis=1)
    if np.count_nonzero(wrong) > allowed:
        return f"the converted policy acted differently on {np.count_nonzero(wrong)} of {ONNX_CHECKS} observations"
    return None


def _random_inputs(signature: Signature, count: int) -> list[Any]:
    """Return `[obs]` or `[obs, mask]` with `count` random observations of the space, and masks with a legal action per head."""
    obs_key, legal_key, action_key = jax.random.split(jax.random.key(0), 3)
    obs = jax.vmap(signature.obs_space.sample)(jax.random.split(obs_key, count))
    obs = jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype).reshape((count, *like.shape)), obs, signature.obs)
    if signature.mask is None:
        return [obs]
    nvec = head_sizes(signature.action_space)
    assert nvec is not None  # check_environment allows masks for no other
    action = jax.random.randint(action_key, (count, len(nvec)), 0, jnp.asarray(nvec))
    taken = jnp.concatenate([jax.nn.one_hot(action[:, head], n, dtype=bool) for head, n in enumerate(nvec)], axis=1)
    if len(signature.mask.shape) > 1:
        # Legality depends only on the last axis here: the action taken is legal after every choice of earlier heads.
        taken = jnp.broadcast_to(taken[:, None], (count, *signature.mask.shape))
    return [obs, taken | jax.random.bernoulli(legal_key, 0.5, taken.shape)]
