"""The networks of DreamerV3 in plain NumPy, f64 and one vector at a time: what the compiled ones are compared with.

Written from the paper and the specification; of rljax it has nothing but the names of the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

BLOCKS, GROUPS = 8, 32


def plain(tree: Any) -> Any:
    """Arrays of any tree as NumPy's, floats in f64."""

    def leaf(x: Any) -> np.ndarray:
        array = np.asarray(x)
        return array.astype(np.float64) if array.dtype.kind == "f" else array

    return jax.tree.map(leaf, tree)


def perturbed(params: Any, seed: int, scale: float = 0.2) -> Any:
    """Parameters away from where they start, so that no bias is 0 and no scale 1."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + np.asarray(scale * rng.normal(size=x.shape), np.float32), params)


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def linear(p: Any, x: np.ndarray) -> np.ndarray:
    return x @ p["kernel"] + p["bias"]


def rms_silu(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    x = x / np.sqrt(np.mean(x * x) + 1e-4) * scale
    return x * sigmoid(x)


def normed(p: Any, x: np.ndarray) -> np.ndarray:
    return rms_silu(linear(p, x), p["scale"])


def perceptron(p: Any, x: np.ndarray) -> np.ndarray:
    """Hidden layers `dense_i`, `norm_i`, and a linear `head` where there is one."""
    for i in range(sum(name.startswith("dense") for name in p)):
        x = rms_silu(linear(p[f"dense_{i}"], x), p[f"norm_{i}"]["scale"])
    return linear(p["head"], x) if "head" in p else x


def unimix(logits: np.ndarray) -> np.ndarray:
    """Probabilities, 1 % of them uniform."""
    return 0.99 * softmax(logits) + 0.01 / logits.shape[-1]


def transition(p: Any, deter: np.ndarray, stoch: np.ndarray, action: np.ndarray) -> np.ndarray:
    """The deterministic state `[D]` that follows."""
    action = action / np.maximum(1.0, np.abs(action))
    branches = [normed(p["deter_in"], deter), normed(p["stoch_in"], stoch.ravel()), normed(p["action_in"], action)]
    blocks = np.split(deter, BLOCKS)
    x = np.concatenate([np.concatenate([b, *branches]) @ p["core_in"]["kernel"][i] for i, b in enumerate(blocks)])
    x = rms_silu(x + p["core_in"]["bias"], p["core_in"]["scale"])
    biases = np.split(p["core_gates"]["bias"], BLOCKS)
    after = []
    for i, (before, hidden) in enumerate(zip(blocks, np.split(x, BLOCKS), strict=True)):
        reset, candidate, update = np.split(hidden @ p["core_gates"]["kernel"][i] + biases[i], 3)
        u = sigmoid(update - 1.0)
        after.append(u * np.tanh(sigmoid(reset) * candidate) + (1.0 - u) * before)
    return np.concatenate(after)


def posterior(p: Any, deter: np.ndarray, token: np.ndarray) -> np.ndarray:
    """Probabilities `[G, C]`."""
    x = normed(p["posterior_in"], np.concatenate([deter, token]))
    return unimix(linear(p["posterior_out"], x).reshape(GROUPS, -1))


def prior(p: Any, deter: np.ndarray) -> np.ndarray:
    """Probabilities `[G, C]`."""
    x = normed(p["prior_hidden"], normed(p["prior_in"], deter))
    return unimix(linear(p["prior_out"], x).reshape(GROUPS, -1))


def observe(p: Any, latent: Any, tokens: Any, actions: Any, is_first: Any, samples: Any) -> tuple[np.ndarray, np.ndarray]:
    """`(deter [T, B, D], posterior probabilities [T, B, G, C])`, where the samples `[T, B, G, C]` were drawn already."""
    length, batch = is_first.shape
    deters, probs = [], []
    for b in range(batch):
        deter, stoch = latent.deter[b], latent.stoch[b]
        for t in range(length):
            action = actions[t, b]
            if is_first[t, b]:
                deter, stoch, action = 0 * deter, 0 * stoch, 0 * action
            deter = transition(p, deter, stoch, action)
            deters.append(deter)
            probs.append(posterior(p, deter, tokens[t, b]))
            stoch = samples[t, b]
    return _time_major(deters, batch), _time_major(probs, batch)


def imagine(p: Any, latent: Any, actions: Any, samples: Any) -> tuple[np.ndarray, np.ndarray]:
    """`(deter [H, N, D], prior probabilities [H, N, G, C])` of actions `[H, N, A]`, where the samples were drawn already."""
    horizon, batch = samples.shape[:2]
    deters, probs = [], []
    for n in range(batch):
        deter, stoch = latent.deter[n], latent.stoch[n]
        for h in range(horizon):
            deter = transition(p, deter, stoch, actions[h, n])
            deters.append(deter)
            probs.append(prior(p, deter))
            stoch = samples[h, n]
    return _time_major(deters, batch), _time_major(probs, batch)


def _time_major(steps: Sequence[np.ndarray], batch: int) -> np.ndarray:
    """Steps of one sequence after those of another, as `[T, B, ...]`."""
    array = np.asarray(steps)
    return array.reshape(batch, -1, *array.shape[1:]).swapaxes(0, 1)
