"""Composite-v0: an action of three named heads that have to agree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environment import Environment
from rljax.core.spaces import Box, Dict, Discrete
from rljax.envs import drawing

NUM_VERBS = 4
NUM_AMOUNTS = 2


@struct.dataclass
class CompositeState:
    """`shift` i32 [] says which actions agree; `paid` bool [4] which verbs have been rewarded in this episode."""

    shift: jax.Array
    paid: jax.Array
    time: jax.Array


@struct.dataclass
class CompositeParams:
    num_steps: int = 4


class Composite(Environment):
    """Each of four joint actions pays once an episode; nothing shows which have paid, so the best policy draws them at random.

    Observation f32 `[4]`: the shift s, one-hot, drawn at the start of the episode and the same for all of it.
    Action: a dictionary of the heads "verb" (4), "target" (4) and "amount" (2), in this order. A joint action agrees if
    `target = (verb + s) mod 4` and `amount = (verb + s) mod 2`: four of 32 do, one for each verb. Reward 1 for one that agrees
    and has not paid in this episode, else 0. An episode is `num_steps` (T) steps.
    `masked=True` gives an action mask bool `[10, 10]` that allows only the joint actions that agree.

    A policy without memory that plays the k-th agreeing action with probability p_k has a mean return of
    `sum_k 1 - (1 - p_k)^T`. It is concave in p, so the best joint policy is uniform over the four: `4 (1 - (3/4)^T)`
    (175/64 = 2.734). For independent heads p_k is at most the product q_k r_k of the chances of its verb and its target,
    and `sum_k sqrt(q_k r_k) <= 1` by Cauchy and Schwarz. The most that this allows is `factorised_optimum(T)`, half of the joint
    optimum for T = 3 to 7 (175/128 = 1.367): two verbs of one amount, half of the time each, whose targets are right half of
    the time. A deterministic policy gets 1, the uniform one `4 (1 - (31/32)^T)` (0.477), one that remembers what it has
    played `min(T, 4)` (4). So judge sampled actions, not greedy ones.
    Heads that see the ones before: Vinyals et al., "Grandmaster level in StarCraft II" (2019).
    """

    # Between the best of independent heads and that of joint ones.
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
        # By columns: what a verb, a target or an amount stands for is a place, known modulo 4, 4 and 2.
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
            # A target takes an amount of one or of two, shown as dots.
            lines = drawing.rectangle(lines, 3.0, y, 1.6, 1.6, drawing.INK)
            lines = drawing.rectangle(lines, 3.0, y, 1.44, 1.44, drawing.BLUE)
            for x in (3.0,) if verb % NUM_AMOUNTS == 0 else (2.7, 3.3):
                lines = drawing.circle(lines, x, y, 0.2, drawing.PAPER)
        left = 9.0 * jnp.clip(1.0 - state.time / params.num_steps, 0.0, 1.0)
        return drawing.finish(drawing.rectangle(lines, left / 2 - 4.5, 4.7, left, 0.2, drawing.BLUE))

    def _observe(self, state: CompositeState) -> jax.Array:
        return (jnp.arange(NUM_VERBS) == state.shift).astype(jnp.float32)


def joint_optimum(num_steps: int) -> float:
    """The best mean return of a policy without memory, over joint actions."""
    return NUM_VERBS * (1.0 - (1.0 - 1.0 / NUM_VERBS) ** num_steps)


def factorised_optimum(num_steps: int) -> float:
    """No policy without memory whose heads are independent has a higher mean return; those for 3 to 7 steps reach it.

    The greatest `sum_k 1 - (1 - x_k^2)^T` of x >= 0 with `sum_k x_k = 1`: the same x for each of m verbs.
    """
    return max(m * (1.0 - (1.0 - 1.0 / m**2) ** num_steps) for m in range(1, NUM_VERBS + 1))
