"""A policy as ONNX, by jax2onnx; kept only where it acts as the artifact does."""

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
from rljax.run.export.signature import Signature, action_of, batched, input_names, leaf_names

ONNX_CHECKS = 1000
"""Observations on which a converted file must act as the artifact does before it is kept."""


def onnx_or_reason(greedy: Callable[..., Any], exported: Any, signature: Signature) -> tuple[bytes | None, str | None]:
    """The greedy policy as an ONNX file that acts as the artifact does, or one line that says why there is none."""
    try:
        with _as_found():
            model = _converted(greedy, exported, signature)
    except ImportError as error:
        return None, f"jax2onnx cannot be imported ({first_line(error)}): {how_to_install('onnx')}"
    except Exception as error:
        return None, f"jax2onnx cannot convert this policy: {first_line(error)}"
    try:
        disagreement = _disagreement(model, exported, signature)
    except Exception as error:
        return None, f"the converted policy cannot be checked: {first_line(error)}"
    return (model, None) if disagreement is None else (None, disagreement)


def _converted(greedy: Callable[..., Any], exported: Any, signature: Signature) -> bytes:
    """The greedy policy as ONNX: one input per leaf of the observation, then the mask; one output per leaf of the action."""
    from jax.interpreters import partial_eval

    leaves, structure = jax.tree.flatten(batched(signature))
    # Traced here and handed over as primitives, not as Python. While jax2onnx traces, it replaces functions of jax.numpy and
    # flax by its own, and what JAX caches then would break the next program; and many of those know no symbolic batch size.
    closed = jax.make_jaxpr(lambda *xs: greedy(*jax.tree.unflatten(structure, xs)))(*leaves)
    jaxpr, used, _ = partial_eval.dce_jaxpr_consts(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    consts = [x for x, is_used in zip(closed.consts, used, strict=True) if is_used]

    def policy(*xs: Any) -> Any:
        actions = _evaluated(jaxpr, consts, xs)
        return actions[0] if len(actions) == 1 else tuple(actions)

    model = importlib.import_module("jax2onnx").to_onnx(
        policy,
        leaves,
        model_name="policy",
        input_names=input_names(signature),
        output_names=leaf_names("action", action_of(exported)),
    )
    return bytes(model.SerializeToString())


def _evaluated(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """The outputs of a program, its inner `jit`s inlined: jax2onnx converts those for some versions of JAX only."""
    from jax.extend.core import Literal

    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))
    for equation in jaxpr.eqns:
        inputs = [x.val if isinstance(x, Literal) else values[x] for x in equation.invars]
        if equation.primitive.name in ("jit", "pjit"):
            inner = equation.params["jaxpr"]
            outputs = _evaluated(inner.jaxpr, inner.consts, inputs)
        elif equation.primitive.name == "stack":  # jax2onnx has no converter for it
            axis = equation.params["axis"]
            outputs = [jax.lax.concatenate([jax.lax.expand_dims(x, (axis,)) for x in inputs], axis)]
        else:
            bound = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
            outputs = bound if equation.primitive.multiple_results else [bound]
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return [x.val if isinstance(x, Literal) else values[x] for x in jaxpr.outvars]


@contextlib.contextmanager
def _as_found() -> Iterator[None]:
    """Leaves JAX as it was, and the terminal too: jax2onnx forgets to take back some of its patches, and logs a lot."""
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
    """How the ONNX file's actions differ from the artifact's on random observations; None where they do not."""
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is in the exception, and in the report
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = _random_inputs(signature, ONNX_CHECKS)
    # Both on the CPU: an accelerator's matmuls may keep fewer bits.
    expected = [np.asarray(x) for x in jax.tree.leaves(exported.call(*jax.device_put(inputs, jax.devices("cpu")[0])))]
    actions = session.run(None, dict(zip(input_names(signature), map(np.asarray, jax.tree.leaves(inputs)), strict=True)))
    wrong = np.zeros(ONNX_CHECKS, bool)
    # Two actions may be alike to the last bit, and then rounding decides.
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
        return f"the converted policy acted otherwise on {np.count_nonzero(wrong)} of {ONNX_CHECKS} observations"
    return None


def _random_inputs(signature: Signature, count: int) -> list[Any]:
    """`[obs]` or `[obs, mask]` of `count` observations drawn from the space, and masks with a legal action in each head."""
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
        # By the last axis alone, for whatever comes before: the action that was taken is legal after every other.
        taken = jnp.broadcast_to(taken[:, None], (count, *signature.mask.shape))
    return [obs, taken | jax.random.bernoulli(legal_key, 0.5, taken.shape)]
