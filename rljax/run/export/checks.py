"""Compare a converted policy with the policy itself on random observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rljax.core.environments.spaces import Box, Dict, Discrete, Tuple, as_space, head_sizes
from rljax.run.export.signature import Signature
from rljax.run.export.steps import PolicyStep

CHECKS = 1000
"""Number of observations on which a converted policy must act like the policy to be kept."""

CHECK_STEPS = 3
"""Number of steps for which the memory of a policy is followed."""


def disagreement(
    step: PolicyStep, state: Any, converted: Callable[[dict[str, np.ndarray]], list[np.ndarray]], count: int = CHECKS
) -> str | None:
    """Return how the results of a converted policy differ from the policy's on random observations, or None if they do not.

    Args:
        step: step of the policy.
        state: the agent's state.
        converted: function from the arguments by name, arrays `[count, ...]`, to the list of results.
        count: number of observations.
    """
    # Run on the CPU: an accelerator's matmuls may have a lower precision.
    cpu = jax.devices("cpu")[0]
    key = jax.device_put(jax.random.key(0), cpu)
    policy = jax.jit(lambda state, arguments: jax.tree.leaves(step.noised(state, key, arguments)))
    state = jax.device_put(state, cpu)
    results = jax.eval_shape(policy, state, random_inputs(step, 1))
    # Two actions may have almost equal logits, and then rounding decides.
    discrete = bool(step.draws) or any(np.issubdtype(x.dtype, np.integer) for x in results)
    allowed = count // 500 if discrete else 0
    wrong = np.zeros(count, bool)
    carry = None
    for number in range(1 if step.carry is None else CHECK_STEPS):
        arguments = random_inputs(step, count, number, carry)
        expected = [np.asarray(x) for x in policy(state, jax.device_put(arguments, cpu))]
        given = dict(zip(step.input_names(), map(np.asarray, jax.tree.leaves(arguments)), strict=True))
        for found, wanted in zip(converted(given), expected, strict=True):
            found = np.asarray(found)
            if found.shape != wanted.shape or found.dtype != wanted.dtype:
                return f"the converted policy gave {found.dtype} {list(found.shape)}, not {wanted.dtype} {list(wanted.shape)}"
            wrong |= (~np.isclose(found, wanted, rtol=1e-5, atol=1e-5)).reshape(count, -1).any(axis=1)
        if step.carry is not None:
            leaves = expected[-len(jax.tree.leaves(step.carry)) :]
            carry = jax.tree.unflatten(jax.tree.structure(step.carry), leaves)
    if np.count_nonzero(wrong) > allowed:
        return f"the converted policy acted differently on {np.count_nonzero(wrong)} of {count} observations"
    return None


def random_inputs(step: PolicyStep, count: int, seed: int = 0, carry: Any = None) -> list[Any]:
    """Return arguments of `PolicyStep.noised`: random observations of the space, and masks with a legal action per head.

    They are drawn by NumPy, since JAX would compile a program for each kind of array.

    Args:
        step: step of the policy.
        count: number of observations.
        seed: seed of all random numbers.
        carry: memory `[count, ...]`; None begins episodes.
    """
    rng = np.random.default_rng(seed)
    signature = step.signature
    obs = _random_elements(signature.obs_space, count, rng)
    obs = jax.tree.map(lambda x, like: np.asarray(x, like.dtype).reshape((count, *like.shape)), obs, signature.obs)
    arguments = [obs]
    if step.carry is not None:
        zeros = jax.tree.map(lambda x: np.zeros((count, *x.shape), x.dtype), step.carry)
        arguments.append(zeros if carry is None else carry)
    if step.draws:
        samplers: dict[str, Any] = {
            "uniform": rng.random,
            "normal": rng.standard_normal,
            "gumbel": lambda shape: rng.gumbel(size=shape),
            "bits": lambda shape: rng.integers(0, 2**32, shape),
        }
        arguments.append([samplers[d.distribution]((count, *d.shape)).astype(d.dtype) for d in step.draws])
    return arguments if signature.mask is None else [*arguments, _random_masks(signature, count, rng)]


def _random_elements(space: Any, count: int, rng: np.random.Generator) -> Any:
    """Return random elements of a space, `[count, ...]`; where a Box has no bounds, normal ones."""
    space = as_space(space)
    if isinstance(space, Dict):
        return {name: _random_elements(part, count, rng) for name, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_random_elements(part, count, rng) for part in space.spaces)
    if not isinstance(space, Box):
        sizes = np.asarray(space.n if isinstance(space, Discrete) else space.nvec)
        return rng.integers(0, sizes, (count, *sizes.shape))
    low, high = (np.broadcast_to(np.asarray(bound, np.float64), space.shape) for bound in (space.low, space.high))
    bounded = (np.abs(low) < 1e30) & (np.abs(high) < 1e30)  # larger numbers stand for infinity in many environments
    low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    whole = np.issubdtype(space.dtype, np.integer) or space.dtype == np.bool_
    within = low + rng.random((count, *space.shape)) * (high - low + whole)
    drawn = np.where(bounded, within, rng.standard_normal((count, *space.shape)))
    return np.minimum(np.floor(drawn), high) if whole else drawn


def _random_masks(signature: Signature, count: int, rng: np.random.Generator) -> np.ndarray:
    assert signature.mask is not None
    nvec = head_sizes(signature.action_space)
    assert nvec is not None  # check_environment allows masks for no other
    taken = np.concatenate([np.arange(n) == rng.integers(0, n, (count, 1)) for n in nvec], axis=1)
    if len(signature.mask.shape) > 1:
        # Legality depends only on the last axis here: the action taken is legal after every choice of earlier heads.
        taken = np.broadcast_to(taken[:, None], (count, *signature.mask.shape))
    return taken | (rng.random(taken.shape) < 0.5)
