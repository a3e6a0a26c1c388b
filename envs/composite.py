"""Composite-v0: an action of three named heads that must agree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import Environment, bounded
from rljax.core.environments.spaces import Box, Dict, Discrete
from rljax.envs import drawing

NUM_VERBS = 4
NUM_AMOUNTS = 2


@struct.dataclass
class CompositeState:
    """State: `shift` i32 [] says which actions agree; `paid` bool `[4]` says which verbs were rewarded in this episode."""

    shift: jax.Array
    paid: jax.Array
    time: jax.Array


@struct.dataclass
class CompositeParams:
    num_steps: int = bounded(4, ge=1)


class Composite(Environment):
    """Each of four joint actions pays once per episode; nothing shows which ones have paid, so the best policy is random.

    Observation f32 `[4]`: the shift s, one-hot, drawn at the start of the episode and constant during it.
    Action: a dictionary of the heads "verb" (4), "target" (4) and "amount" (2), in this order. A joint action agrees if
    `target = (verb + s) mod 4` and `amount = (verb + s) mod 2`: four of 32 do, one for each verb. The reward is 1 for an action
    that agrees and has not paid in this episode, else 0. An episode has `num_steps` (T) steps.
    With `masked=True`, an action mask bool `[10, 10]` allows only the joint actions that agree.

    A policy without memory that plays the k-th agreeing action with probability p_k has a mean return of
    `sum_k 1 - (1 - p_k)^T`. It is concave in p, so the best joint policy is uniform over the four: `4 (1 - (3/4)^T)`
    (175/64 = 2.734). For independent heads, p_k is at most the product q_k r_k of the probabilities of its verb and its target,
    and `sum_k sqrt(q_k r_k) <= 1` by Cauchy and Schwarz. The largest return that this allows is `factorised_optimum(T)`, half of
    the joint optimum for T = 3 to 7 (175/128 = 1.367): two verbs of one amount, each half of the time, whose targets are right
    half of the time. A deterministic policy gets 1, the uniform one `4 (1 - (31/32)^T)` (0.477), and one that remembers its
    actions `min(T, 4)` (4). So evaluate sampled actions, not greedy ones.
    Heads that see the choices of earlier heads: Vinyals et al., "Grandmaster level in StarCraft II" (2019).
    """

    # Between the optimum of independent heads and that of joint ones.
    reward_threshold = 2.6
    best_is_random = True

    def __init__(self, masked: bool = False):
        self.masked = masked

    @property
    def name(self) -> str:
        return "Composite-v0"

    @property
    def default_params(self) -> CompositeParams:
        return CompositeParams()

    def observation_space(self, params: CompositeParams) -> Box:
        return Box(0.0, 1.0, (NUM_VERBS,))

    def action_space(self, params: CompositeParams) -> Dict:
        return Dict({"verb": Discrete(NUM_VERBS), "target": Discrete(NUM_VERBS), "amount": Discrete(NUM_AMOUNTS)})

    def reset_env(self, key: jax.Array, params: CompositeParams) -> tuple[jax.Array, CompositeState]:
        shift = (jax.random.bits(key) & (NUM_VERBS - 1)).astype(jnp.int32)
        state = CompositeState(shift, jnp.zeros(NUM_VERBS, jnp.bool_), jnp.zeros((), jnp.int32))
        return self._observe(state), state

    def step_env(
        self, key: jax.Array, state: CompositeState, action: dict[str, jax.Array], params: CompositeParams
    ) -> tuple[jax.Array, CompositeState, jax.Array, jax.Array, dict[str, Any]]:
        place = action["verb"] + state.shift
        agrees = (action["target"] == place % NUM_VERBS) & (action["amount"] == place % NUM_AMOUNTS)
        pays = (jnp.arange(NUM_VERBS) == action["verb"]) & agrees & ~state.paid
        state = CompositeState(state.shift, state.paid | pays, state.time + 1)
        return self._observe(state), state, pays.any().astype(jnp.float32), state.time >= params.num_steps, {}

    def action_mask(self, state: CompositeState, params: CompositeParams) -> jax.Array | None:
        if not self.masked:
            return None
        # Each verb, target or amount stands for a place, known modulo 4, 4 and 2; two of them agree if their places do.
        place = jnp.concatenate(
            [(jnp.arange(NUM_VERBS) + state.shift) % NUM_VERBS, jnp.arange(NUM_VERBS), jnp.arange(NUM_AMOUNTS)]
        )
        is_amount = jnp.arange(place.shape[0]) >= 2 * NUM_VERBS
        modulus = jnp.where(is_amount[:, None] | is_amount[None, :], NUM_AMOUNTS, NUM_VERBS)
        return (place[:, None] - place[None, :]) % modulus == 0

    def render(self, state: CompositeState, params: CompositeParams) -> jax.Array:
        picture = drawing.canvas(256, 256, (0.0, 0.0), 10.0)
        lines = picture
        for verb in range(NUM_VERBS):
            y = 3.3 - 2.2 * verb
            target = (verb + state.shift) % NUM_VERBS
            color = jnp.where(state.paid[verb], jnp.asarray(drawing.GREEN), jnp.asarray(drawing.GREY))
            lines = drawing.capsule(lines, -3.0, y, 3.0, 3.3 - 2.2 * target, 0.14, color)
        for verb in range(NUM_VERBS):
            y = 3.3 - 2.2 * verb
            color = jnp.where(state.paid[verb], jnp.asarray(drawing.GREEN), jnp.asarray(drawing.GOLD))
            lines = drawing.circle(drawing.circle(lines, -3.0, y, 0.8, drawing.INK), -3.0, y, 0.72, color)
            # The dots show the amount, one or two, that a target takes.
            lines = drawing.rectangle(lines, 3.0, y, 1.6, 1.6, drawing.INK)
            lines = drawing.rectangle(lines, 3.0, y, 1.44, 1.44, drawing.BLUE)
            for x in (3.0,) if verb % NUM_AMOUNTS == 0 else (2.7, 3.3):
                lines = drawing.circle(lines, x, y, 0.2, drawing.PAPER)
        left = 9.0 * jnp.clip(1.0 - state.time / params.num_steps, 0.0, 1.0)
        return drawing.finish(drawing.rectangle(lines, left / 2 - 4.5, 4.7, left, 0.2, drawing.BLUE))

    def _observe(self, state: CompositeState) -> jax.Array:
        return (jnp.arange(NUM_VERBS) == state.shift).astype(jnp.float32)


def joint_optimum(num_steps: int) -> float:
    """Return the best mean return of a policy without memory over joint actions."""
    return NUM_VERBS * (1.0 - (1.0 - 1.0 / NUM_VERBS) ** num_steps)


def factorised_optimum(num_steps: int) -> float:
    """Return an upper bound on the mean return of policies without memory and with independent heads; reached for 3 to 7 steps.

    It is the maximum of `sum_k 1 - (1 - x_k^2)^T` over x >= 0 with `sum_k x_k = 1`, where m verbs have the same x.
    """
    return max(m * (1.0 - (1.0 - 1.0 / m**2) ** num_steps) for m in range(1, NUM_VERBS + 1))
