"""Probe environments: each isolates one thing that a learner must get right, and has a value known in closed form.

The idea is from Andy Jones, "Debugging RL, without the agonizing pain" (2021), https://andyljones.com/posts/rl-debugging.html.
In the docstrings g is the discount.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import Environment, EnvParams, bounded
from rljax.core.environments.spaces import Box, Discrete, MultiDiscrete
from rljax.envs import drawing

_Step = tuple[jax.Array, "ProbeState", jax.Array, jax.Array, dict[str, Any]]


@struct.dataclass
class ProbeState:
    """State of a probe: only its observation `obs`, f32 `[n]`, and the time."""

    obs: jax.Array
    time: jax.Array


class Probe(Environment):
    """Base class of probes, whose state is the observation, f32 `[n]` in [-1, 1]; subclasses write `draw_obs` and `step_env`."""

    obs_dim = 1

    @property
    def name(self) -> str:
        return f"{type(self).__name__}-v0"

    def observation_space(self, params: Any) -> Box:
        return Box(-1.0, 1.0, (self.obs_dim,))

    def action_space(self, params: Any) -> Any:
        return Discrete(2)

    def draw_obs(self, key: jax.Array, params: Any) -> jax.Array:
        """Draw the first observation of an episode, f32 `[n]`."""
        raise NotImplementedError

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, ProbeState]:
        obs = self.draw_obs(key, params)
        return obs, ProbeState(obs, jnp.zeros((), jnp.int32))

    def render(self, state: ProbeState, params: Any) -> jax.Array:
        return drawing.bars(state.obs)


def _next(state: ProbeState, obs: jax.Array, reward: Any, terminated: Any) -> _Step:
    reward, terminated = jnp.asarray(reward, jnp.float32), jnp.asarray(terminated, jnp.bool_)
    return obs, ProbeState(obs, state.time + 1), reward, terminated, {}


class ConstantReward(Probe):
    """One step with reward 1 and observation 0. The value is 1: is the value function fitted at all?"""

    def draw_obs(self, key: jax.Array, params: EnvParams) -> jax.Array:
        return jnp.zeros((1,), jnp.float32)

    def step_env(self, key: jax.Array, state: ProbeState, action: jax.Array, params: EnvParams) -> _Step:
        return _next(state, state.obs, 1.0, True)


class ObservationReward(Probe):
    """One step; the observation is -1 or 1 and is also the reward, so the value is the observation: is the observation used?"""

    def draw_obs(self, key: jax.Array, params: EnvParams) -> jax.Array:
        return jax.random.rademacher(key, (1,), jnp.float32)

    def step_env(self, key: jax.Array, state: ProbeState, action: jax.Array, params: EnvParams) -> _Step:
        return _next(state, state.obs, state.obs[0], True)


class DelayedReward(Probe):
    """Two steps with reward 0, then 1, and observation 0, then 1. Values g at 0 and 1 at 1: is the future discounted once?"""

    def draw_obs(self, key: jax.Array, params: EnvParams) -> jax.Array:
        return jnp.zeros((1,), jnp.float32)

    def step_env(self, key: jax.Array, state: ProbeState, action: jax.Array, params: EnvParams) -> _Step:
        return _next(state, jnp.ones((1,), jnp.float32), state.obs[0], state.obs[0] == 1.0)


class ActionReward(Probe):
    """One step; the right action is 0 for observation -1 and 1 for observation 1: reward 1 if right, else -1.

    The best return is 1, that of the uniform policy 0: does the policy use the observation, and is the advantage's sign right?
    """

    def draw_obs(self, key: jax.Array, params: EnvParams) -> jax.Array:
        return jax.random.rademacher(key, (1,), jnp.float32)

    def step_env(self, key: jax.Array, state: ProbeState, action: jax.Array, params: EnvParams) -> _Step:
        right = (action == 1) == (state.obs[0] > 0)
        return _next(state, state.obs, jnp.where(right, 1.0, -1.0), True)


@struct.dataclass
class TruncationProbeParams:
    """Parameters: `first_reward` makes the value of a reset observation differ from that of a final one."""

    first_reward: float = -10.0
    max_steps_in_episode: int = 4


class TruncationProbe(Probe):
    """Reward 1 per step, but `first_reward` for the first step of an episode; never terminates, and is truncated after K steps.

    The observation is [1, 0] after a reset and [0, 1] from then on, so no observation shows the time. If the limit is treated as
    a truncation, the values are `1 / (1 - g)` at [0, 1] and `first_reward + g / (1 - g)` at [1, 0]: with g = 0.9, 10 and -1.
    With a bootstrap from the next episode's reset observation, or with none (truncated treated as terminated), the value at
    [0, 1] is lower: `truncation_probe_values(..., bootstrap="reset")` and `"none"`.
    """

    obs_dim = 2

    @property
    def default_params(self) -> TruncationProbeParams:
        return TruncationProbeParams()

    def draw_obs(self, key: jax.Array, params: TruncationProbeParams) -> jax.Array:
        return jnp.array([1.0, 0.0], jnp.float32)

    def step_env(self, key: jax.Array, state: ProbeState, action: jax.Array, params: TruncationProbeParams) -> _Step:
        return _next(state, jnp.array([0.0, 1.0], jnp.float32), jnp.where(state.obs[0] == 1.0, params.first_reward, 1.0), False)


def truncation_probe_values(discount: float, params: TruncationProbeParams, bootstrap: str = "final") -> tuple[float, float]:
    """Return the values of TruncationProbe's observations [1, 0] and [0, 1] under one-step TD learning.

    The last of the K - 1 steps of an episode that start at [0, 1] is truncated. There TD(0) bootstraps from `v`, the value of the
    final observation ("final", which is right), from `s`, that of the next reset ("reset"), or from nothing ("none").
    """
    first, cut = params.first_reward, 1.0 / (params.max_steps_in_episode - 1)
    if bootstrap == "final":
        going = 1.0 / (1.0 - discount)
    elif bootstrap == "none":
        going = 1.0 / (1.0 - discount * (1.0 - cut))
    elif bootstrap == "reset":
        # v = 1 + g ((1 - cut) v + cut s) with s = first + g v
        going = (1.0 + discount * cut * first) / (1.0 - discount * (1.0 - cut) - discount**2 * cut)
    else:
        raise ValueError(f"bootstrap = {bootstrap!r}, expected 'final', 'reset' or 'none'")
    return first + discount * going, going


@struct.dataclass
class MaskedBanditParams:
    num_steps: int = bounded(4, ge=1)


class MaskedBandit(Probe):
    """Five arms over `num_steps` steps; the observation f32 `[9]` shows the right arm of 0..3 (one-hot), then the legal arms.

    Arm 4 is never legal, and one wrong arm of the others, drawn anew at every step, is illegal, too. The reward is 1 for the
    right arm, 0 for another legal arm, -1 for an illegal one. The best return is `num_steps`; the uniform policy over the legal
    arms gets a third of it.
    """

    obs_dim = 9

    @property
    def default_params(self) -> MaskedBanditParams:
        return MaskedBanditParams()

    def action_space(self, params: MaskedBanditParams) -> Discrete:
        return Discrete(5)

    def draw_obs(self, key: jax.Array, params: MaskedBanditParams) -> jax.Array:
        right, offset = jax.random.randint(key, (2,), jnp.array([0, 1]), 4)
        arms = jnp.arange(5)
        legal = (arms != (right + offset) % 4) & (arms != 4)
        return jnp.concatenate([arms[:4] == right, legal]).astype(jnp.float32)

    def action_mask(self, state: ProbeState, params: MaskedBanditParams) -> jax.Array:
        return state.obs[4:] > 0

    def step_env(self, key: jax.Array, state: ProbeState, action: jax.Array, params: MaskedBanditParams) -> _Step:
        right = jnp.argmax(state.obs[:4]) == action
        reward = jnp.where(right, 1.0, jnp.where(self.action_mask(state, params)[action], 0.0, -1.0))
        return _next(state, self.draw_obs(key, params), reward, state.time + 1 >= params.num_steps)


class MultiDiscreteMatch(Probe):
    """One step with three heads of 3, 4 and 2 actions; the observation f32 `[9]` is the right action of each head, one-hot.

    The last action of each head is masked and never right, so the third head has one legal action. The reward is the fraction of
    right heads: 1 at best, (1/2 + 1/3 + 1) / 3 = 11/18 for the uniform policy over legal actions.
    """

    obs_dim = 9
    nvec = (3, 4, 2)

    def action_space(self, params: EnvParams) -> MultiDiscrete:
        return MultiDiscrete(self.nvec)

    def draw_obs(self, key: jax.Array, params: EnvParams) -> jax.Array:
        target = jax.random.randint(key, (3,), 0, jnp.array(self.nvec) - 1)
        return self._one_hot(target)

    def action_mask(self, state: ProbeState, params: EnvParams) -> jax.Array:
        return jnp.concatenate([jnp.arange(n) < n - 1 for n in self.nvec])

    def step_env(self, key: jax.Array, state: ProbeState, action: jax.Array, params: EnvParams) -> _Step:
        return _next(state, state.obs, jnp.sum(self._one_hot(action) * state.obs) / len(self.nvec), True)

    def _one_hot(self, action: jax.Array) -> jax.Array:
        return jnp.concatenate([jnp.arange(n) == action[head] for head, n in enumerate(self.nvec)]).astype(jnp.float32)


class BoxTarget(Probe):
    """One step; the observation f32 `[2]`, uniform in [-0.8, 0.8], is the right action; actions are clipped to [-1, 1].

    The reward is minus the mean squared error: 0 at best, -(1/3 + 0.64/3) = -0.547 for uniform actions.
    """

    obs_dim = 2

    def action_space(self, params: EnvParams) -> Box:
        return Box(-1.0, 1.0, (2,))

    def draw_obs(self, key: jax.Array, params: EnvParams) -> jax.Array:
        return jax.random.uniform(key, (2,), minval=-0.8, maxval=0.8)

    def step_env(self, key: jax.Array, state: ProbeState, action: jax.Array, params: EnvParams) -> _Step:
        return _next(state, state.obs, -jnp.mean((jnp.clip(action, -1.0, 1.0) - state.obs) ** 2), True)
