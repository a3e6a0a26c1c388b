"""HiddenBit-v0: a hidden bit, which only the critic may see, shifts the rewards up and down."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import Environment, bounded
from rljax.core.environments.spaces import Box, Dict, Discrete
from rljax.envs import drawing

NUM_CUES = 4


@struct.dataclass
class HiddenBitState:
    """State: `cue` is the right action, i32 []; `bit` is -1 or 1, f32 []."""

    cue: jax.Array
    bit: jax.Array
    time: jax.Array


@struct.dataclass
class HiddenBitParams:
    """Parameters: `bit_reward` is the shift of each reward by the hidden bit, noise for a critic that does not see the bit."""

    num_steps: int = bounded(8, ge=1)
    bit_reward: float = 4.0


class HiddenBit(Environment):
    """A cue names the right action of four; a hidden bit, drawn once per episode, shifts the rewards whatever the action.

    Observation, a dictionary: "observation" f32 `[5]`, the cue (one-hot, drawn anew at each step) and the fraction of the episode
    that is left; "privileged" f32 `[1]`, the bit as -1 or 1, which the critic sees and the policy never does.
    The reward is 1 for the right action, else 0; plus `bit_reward` times the bit in the first half of the episode, and minus that
    in the second half (0 in the middle of an odd number of steps). `info["reward_components"]` has the two parts, as "cue" and
    "bit", for value heads. An episode has `num_steps` (T) steps.

    The bit's part sums to zero over an episode, so the return counts the right actions: T at best (8), T / 4 for the uniform
    policy (2). From the t-th step on, the bit's part of the return to go is `-bit_reward min(t, T - t)` times the bit, with a
    standard deviation of up to 16. A critic that sees the bit can remove it from every advantage; for one that does not, it
    remains as noise. Under the best policy and without discount, the first explains all of the variance of the returns to go. The
    other knows only the time that is left and explains at most `v / (v + bit_reward^2 sum_t min(t, T - t)^2 / T)` of it (0.056),
    with `v = (T^2 - 1) / 12`.
    The asymmetric critic: Pinto et al., "Asymmetric actor critic for image-based robot learning" (2018).
    """

    reward_threshold = 7.5

    @property
    def name(self) -> str:
        return "HiddenBit-v0"

    @property
    def default_params(self) -> HiddenBitParams:
        return HiddenBitParams()

    def observation_space(self, params: HiddenBitParams) -> Dict:
        return Dict({"observation": Box(0.0, 1.0, (NUM_CUES + 1,)), "privileged": Box(-1.0, 1.0, (1,))})

    def action_space(self, params: HiddenBitParams) -> Discrete:
        return Discrete(NUM_CUES)

    def reset_env(self, key: jax.Array, params: HiddenBitParams) -> tuple[dict[str, jax.Array], HiddenBitState]:
        bits = jax.random.bits(key)
        bit = 2.0 * (bits >> 31).astype(jnp.float32) - 1.0
        state = HiddenBitState(_cue(bits), bit, jnp.zeros((), jnp.int32))
        return self._observe(state, params), state

    def step_env(
        self, key: jax.Array, state: HiddenBitState, action: jax.Array, params: HiddenBitParams
    ) -> tuple[dict[str, jax.Array], HiddenBitState, jax.Array, jax.Array, dict[str, Any]]:
        half = jnp.sign(params.num_steps - 1 - 2 * state.time).astype(jnp.float32)
        right = (action == state.cue).astype(jnp.float32)
        moved = (params.bit_reward * half * state.bit).astype(jnp.float32)
        components = {"cue": right.astype(jnp.float32), "bit": moved}
        state = HiddenBitState(_cue(jax.random.bits(key)), state.bit, state.time + 1)
        info = {"reward_components": components}
        return self._observe(state, params), state, components["cue"] + moved, state.time >= params.num_steps, info

    def render(self, state: HiddenBitState, params: HiddenBitParams) -> jax.Array:
        picture = drawing.canvas(256, 256, (0.0, 0.0), 8.0)
        for place in range(NUM_CUES):
            x = 1.6 * place - 2.4
            lit = jnp.where(state.cue == place, jnp.asarray(drawing.GOLD), jnp.asarray(drawing.GREY))
            picture = drawing.circle(picture, x, 1.0, 0.64, drawing.INK)
            picture = drawing.circle(picture, x, 1.0, 0.58, lit)
        # The bit is drawn on a screen, which only the critic sees.
        color = jnp.where(state.bit > 0, jnp.asarray(drawing.BLUE), jnp.asarray(drawing.RED))
        picture = drawing.rectangle(picture, 0.0, -1.3, 2.0, 1.6, drawing.INK, rounding=0.2)
        picture = drawing.rectangle(picture, 0.0, -1.3, 1.2, 0.3, color)
        upright = drawing.rectangle(picture, 0.0, -1.3, 0.3, 1.2, color)
        picture = picture._replace(rgb=jnp.where(state.bit > 0, upright.rgb, picture.rgb))
        left = 6.0 * jnp.clip(1.0 - state.time / params.num_steps, 0.0, 1.0)
        picture = drawing.rectangle(picture, 0.0, -3.2, 6.0, 0.4, drawing.GREY)
        return drawing.finish(drawing.rectangle(picture, left / 2 - 3.0, -3.2, left, 0.4, drawing.BLUE))

    def _observe(self, state: HiddenBitState, params: HiddenBitParams) -> dict[str, jax.Array]:
        cue = (jnp.arange(NUM_CUES) == state.cue).astype(jnp.float32)
        left = (1.0 - state.time / params.num_steps).astype(jnp.float32)
        return {"observation": jnp.append(cue, left), "privileged": state.bit[None]}


def _cue(bits: jax.Array) -> jax.Array:
    return (bits & (NUM_CUES - 1)).astype(jnp.int32)
