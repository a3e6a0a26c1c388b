"""Scouting-v0: an opponent's plan is hidden; looking at it costs a turn and a fee, and pays only if the answer depends on it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import BELIEF, METRICS, Environment, bounded
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.errors import check_int
from rljax.envs import drawing


@struct.dataclass
class ScoutingState:
    """State: the opponent's `plan`, the plan that was last `seen` and how many steps ago (`since`, 0: never), and the number of
    `looks` of the episode, all i32 []."""

    plan: jax.Array
    seen: jax.Array
    since: jax.Array
    looks: jax.Array
    time: jax.Array


@struct.dataclass
class ScoutingParams:
    """Parameters.

    `look_cost` is the fee of a look, and `change` the probability that the plan changes in a step. Where `depends` is false, the
    first answer is right whatever the plan.
    """

    look_cost: float = 0.1
    change: float = bounded(0.05, ge=0, le=1)
    depends: bool = True
    num_steps: int = bounded(8, ge=1)


class Scouting(Environment):
    """An opponent follows one of `num_plans` (K) hidden plans; the agent answers it in each step, or looks at it instead.

    Actions 0 .. K - 1: answers, with a reward of 1 for the answer to the plan (for answer 0 if `depends` is false) and 0 for the
    others. Action K looks: the reward is `-look_cost`, and the plan is seen. Then the plan changes with probability `change`, to
    each of the others alike.
    Observation f32 `[K + 1]`: the probability of each plan given all looks, and the fraction of the episode that is left.
    `info["belief_entropy"]` is the entropy of these probabilities in nats, for `intrinsic = { type = "entropy_reduction" }`, and
    `info["metrics"]["looks"]` the number of looks. An episode has `num_steps` steps.

    A plan seen n steps ago is still followed with probability 1 / K + (1 - 1 / K) (1 - change K / (K - 1))^n. `best_play` gives
    the best return and its looks: 5.69 with one look, against 2.67 (`num_steps` / K) without; if `depends` is false, 8 with none.
    """

    reward_threshold = 5.3

    def __init__(self, num_plans: int = 3):
        check_int("Scouting-v0", 2, num_plans=num_plans)
        self.num_plans = num_plans

    @property
    def name(self) -> str:
        return "Scouting-v0"

    @property
    def default_params(self) -> ScoutingParams:
        return ScoutingParams()

    def observation_space(self, params: ScoutingParams) -> Box:
        return Box(0.0, 1.0, (self.num_plans + 1,))

    def action_space(self, params: ScoutingParams) -> Discrete:
        return Discrete(self.num_plans + 1)

    def reset_env(self, key: jax.Array, params: ScoutingParams) -> tuple[jax.Array, ScoutingState]:
        zero = jnp.zeros((), jnp.int32)
        state = ScoutingState(jax.random.randint(key, (), 0, self.num_plans), zero, zero, zero, zero)
        return self._observe(state, params), state

    def step_env(
        self, key: jax.Array, state: ScoutingState, action: jax.Array, params: ScoutingParams
    ) -> tuple[jax.Array, ScoutingState, jax.Array, jax.Array, dict[str, Any]]:
        change_key, which_key = jax.random.split(key)
        looks = action == self.num_plans
        right = action == jnp.where(params.depends, state.plan, 0)
        reward = jnp.where(looks, -params.look_cost, right).astype(jnp.float32)
        changes = jax.random.uniform(change_key) < params.change
        other = (state.plan + jax.random.randint(which_key, (), 1, self.num_plans)) % self.num_plans
        state = ScoutingState(
            plan=jnp.where(changes, other, state.plan),
            seen=jnp.where(looks, state.plan, state.seen),
            since=jnp.where(looks, 1, jnp.where(state.since > 0, state.since + 1, 0)),
            looks=state.looks + looks,
            time=state.time + 1,
        )
        belief = self.belief(state, params)
        entropy = -jnp.sum(jax.scipy.special.xlogy(belief, belief))
        info = {BELIEF: entropy, METRICS: {"looks": state.looks.astype(jnp.float32)}}
        return self._observe(state, params), state, reward, state.time >= params.num_steps, info

    def belief(self, state: ScoutingState, params: ScoutingParams) -> jax.Array:
        """Return the probability of each plan given all looks, f32 `[K]`."""
        plans = self.num_plans
        # An exponent of 0 would stand for a plan seen just now: without a look, nothing is known.
        kept = jnp.where(state.since > 0, (1.0 - params.change * plans / (plans - 1)) ** state.since, 0.0)
        belief: jax.Array = (1.0 - kept) / plans + kept * (jnp.arange(plans) == state.seen)
        return belief.astype(jnp.float32)

    def render(self, state: ScoutingState, params: ScoutingParams) -> jax.Array:
        picture = drawing.canvas(256, 256, (0.0, 0.0), 8.0)
        belief, plans = self.belief(state, params), self.num_plans
        spacing = 7.0 / plans
        for place in range(plans):
            x = spacing * (place + 0.5) - 3.5
            hidden = jnp.where(state.plan == place, jnp.asarray(drawing.RED), jnp.asarray(drawing.GREY))
            picture = drawing.circle(picture, x, 2.6, 0.36 * spacing, hidden)
            height = 3.0 * belief[place]
            picture = drawing.rectangle(picture, x, height / 2 - 2.2, 0.6 * spacing, height, drawing.BLUE)
        picture = drawing.capsule(picture, -3.5, -2.2, 3.5, -2.2, 0.02, drawing.INK)
        left = 7.0 * jnp.clip(1.0 - state.time / params.num_steps, 0.0, 1.0)
        picture = drawing.rectangle(picture, 0.0, -3.3, 7.0, 0.4, drawing.GREY)
        picture = drawing.rectangle(picture, left / 2 - 3.5, -3.3, left, 0.4, drawing.GOLD)
        return drawing.finish(picture)

    def _observe(self, state: ScoutingState, params: ScoutingParams) -> jax.Array:
        left = (1.0 - state.time / params.num_steps).astype(jnp.float32)
        return jnp.append(self.belief(state, params), left)


def best_play(env: Scouting, params: ScoutingParams) -> tuple[float, int]:
    """Return the best mean return of an episode and its number of looks (the fewest, if several are best), by dynamic programming
    over the steps that are left and since the last look."""
    steps, plans = int(params.num_steps), env.num_plans
    kept = 1.0 - float(params.change) * plans / (plans - 1)

    def answered(since: int) -> float:
        if not params.depends:
            return 1.0
        chances = ((1.0 - kept**since) / plans, (1.0 - kept**since) / plans + kept**since) if since else (1.0 / plans,)
        return max(chances)

    # (return, -looks) from each number of steps since the last look, 0: never.
    best = [(0.0, 0)] * (steps + 2)
    for _ in range(steps):
        look = (best[1][0] - float(params.look_cost), best[1][1] - 1)
        answer = [(answered(n) + best[n + 1 if n else 0][0], best[n + 1 if n else 0][1]) for n in range(steps + 1)]
        best = [max(look, after, key=lambda x: (round(x[0], 9), x[1])) for after in answer] + [best[-1]]
    return best[0][0], -best[0][1]
