"""Episodes that begin where one ends: for every environment at every step, from a pool, or a few at every step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from flax import struct

from rljax.core.config import Config
from rljax.core.environments.environment import is_outside_jax, strong
from rljax.core.games.chance import step_shapes
from rljax.core.keys import apart, draw
from rljax.core.memory import tree_bytes
from rljax.core.operations import count_operations


def initial_environments(env: Any, env_params: Any, key: jax.Array, num_envs: int) -> tuple[Any, Any]:
    """`(env_state, obs)` of `num_envs` fresh episodes, `[N, ...]`."""
    obs, env_state = _begun(env, env_params, jax.random.split(key, num_envs))
    return env_state, obs


def _begun(env: Any, env_params: Any, keys: jax.Array) -> tuple[Any, Any]:
    return strong(jax.vmap(env.reset_env, (0, None))(keys, env_params))


MAX_FRESH_BYTES = 2**20
"""Largest size of the initial states that a rollout computes before its scan; larger ones are computed at each step, because
thousands of rollouts may be vmapped.
"""

CHEAP_RESET = 8_000
"""Number of operations below which a reset never matters: a small network's forward pass takes as many."""

CHEAP_STEPS = 2
"""Number of steps whose operations a reset must exceed to matter."""

STEPS_PER_FRESH = 16
"""Number of steps, or of environments, for which one fresh state is made, unless the configuration says how many."""


class Resets(NamedTuple):
    """How episodes begin.

    Attributes:
        kind: "each", "pool" or "optimistic", as in `Config.reset`; "outside" if simulators outside JAX begin their episodes.
        states: number of fresh states: of a pool, or of each step.
        at_once: whether each environment's own states are so small that those of all steps are made together.
    """

    kind: str
    states: int
    at_once: bool


class ResetCost(NamedTuple):
    """Operations of a reset and of a step, counted (`count_operations`)."""

    reset: int
    step: int

    @property
    def matters(self) -> bool:
        return self.reset > max(CHEAP_RESET, CHEAP_STEPS * self.step)


def reset_cost(env: Any, env_params: Any) -> ResetCost:
    """Count what a reset and a step of an environment cost; nothing is compiled."""
    state, action, key = step_shapes(env, env_params)
    return ResetCost(
        count_operations(lambda k: env.reset_env(k, env_params), key),
        count_operations(lambda k, s, a: env.step_env(k, s, a, env_params), key, state, action),
    )


def choose_resets(config: Config, env: Any, env_params: Any, num_steps: int, num_envs: int, turns: int = 1) -> Resets:
    """Return how the episodes of rollouts of `num_steps` steps of `num_envs` environments begin, `turns` of them an iteration: as
    the configuration says, or for "auto" by the operations of a reset and of a step, which are the same on every machine. These
    are counted only if the states are too large to be made all at once.
    """
    if is_outside_jax(env):
        return Resets("outside", 0, False)
    kind = config.reset
    at_once = kind in ("auto", "each") and _fits(env, env_params, turns * num_steps * num_envs)
    if kind == "auto":
        dear = not at_once and reset_cost(env, env_params).matters
        # Never a pool: its starts come back, the more often the shorter the episodes are that begin there.
        kind = "optimistic" if dear else "each"
    steps = num_envs if kind == "optimistic" else num_steps * num_envs
    states = config.reset_states or max(steps // STEPS_PER_FRESH, 1)
    return Resets(kind, min(states, num_envs), at_once)


def describe_resets(config: Config, env: Any, env_params: Any) -> str | None:
    """Return a line about the resets of a run, None if they need none: nothing was asked for, and a reset is cheap."""
    whole, steps = config.steps_per_iteration // config.num_envs, config.steps_per_rollout
    resets = choose_resets(config, env, env_params, steps, config.num_envs, max(whole // steps, 1))
    if resets.kind == "outside" or (config.reset == "auto" and resets.kind == "each"):
        return None
    cost = reset_cost(env, env_params)
    rollout = "a rollout" if steps == whole else f"each turn of {steps} {'step' if steps == 1 else 'steps'}"
    kinds = {
        "each": "each environment has its own at every step",
        "pool": f"pool of {resets.states} for {rollout}",
        "optimistic": f"optimistic, {resets.states} a step",
    }
    return f"resets: {kinds[resets.kind]}; a reset costs as many operations as {cost.reset / max(cost.step, 1):,.1f} steps"


def _fits(env: Any, env_params: Any, count: int) -> bool:
    """Return whether `count` fresh states are small enough to be computed before a rollout."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    return count * tree_bytes(jax.eval_shape(lambda k: env.reset_env(k, env_params), key)) <= MAX_FRESH_BYTES


class EnvironmentNoise(struct.PyTreeNode):
    """Random numbers of N environments for T steps.

    Attributes:
        step_key: random keys `[T, N]`, for `step_env`.
        reset_key: random keys for resets after a step, `[T, N]`, or `[T, R]` if R fresh states are made for all environments;
            None where `fresh` is not, and for an environment outside JAX.
        fresh: `(obs, state)` of the episodes that begin where one ends, `[T, N, ...]`; None: they are made from `reset_key`, if
            that is not None.
        which: which fresh state each environment gets, i32 `[T, N]`, if they share some; else None.
        pool: number of fresh states made once for all steps; 0: they are made at each step.
    """

    step_key: jax.Array
    reset_key: jax.Array | None
    fresh: tuple[Any, Any] | None = None
    which: jax.Array | None = None
    pool: int = struct.field(pytree_node=False, default=0)


def environment_noise(
    env: Any,
    env_params: Any,
    key: jax.Array,
    num_steps: int,
    num_envs: int,
    config: Config | None = None,
    turns: int | None = None,
) -> EnvironmentNoise:
    """Draw for T steps of N environments, and begin T times N episodes if they are small: drawing them all at once is several
    times cheaper than at each step, where the draws of an auto-reset are as much work as the step itself.

    Args:
        env: the environment, unbatched.
        env_params: its parameters.
        key: random key.
        num_steps: T.
        num_envs: N.
        config: says by `reset` and `reset_states` how episodes begin; None: each environment has its own fresh state.
        turns: number of rollouts of T steps, a leading axis of the result; None: one, without that axis.
    """
    count = (turns or 1) * num_steps
    shape = (num_steps,) if turns is None else (turns, num_steps)
    keys = draw(jax.random.split, key, (count, num_envs, 2)).reshape(*shape, num_envs, 2)
    step_key, reset_key = keys[..., 0], keys[..., 1]
    if is_outside_jax(env):
        return EnvironmentNoise(step_key, None)
    if config is None:
        resets = Resets("each", 0, _fits(env, env_params, count * num_envs))
    else:
        resets = choose_resets(config, env, env_params, num_steps, num_envs, turns or 1)
    if resets.kind != "each":
        # Which one does not depend on who ends, so that a shared state of one step is as likely to be any as a fresh one of its
        # own. That does not hold for states of a pool, which are begun again.
        which = jax.random.randint(apart(key), (*shape, num_envs), 0, resets.states)
        if resets.kind == "pool":
            return EnvironmentNoise(step_key, reset_key, which=which, pool=resets.states)
        return EnvironmentNoise(step_key, reset_key[..., : resets.states], which=which)
    if not resets.at_once:
        return EnvironmentNoise(step_key, reset_key)
    fresh = _begun(env, env_params, reset_key.reshape(-1))
    return EnvironmentNoise(step_key, None, jax.tree.map(lambda x: x.reshape(*shape, num_envs, *x.shape[1:]), fresh))


def fresh_pool(env: Any, env_params: Any, noise: EnvironmentNoise) -> tuple[Any, Any] | None:
    """`(obs, state)` `[K, ...]` for all steps of a rollout, made before its scan; None unless they have a pool."""
    if not noise.pool:
        return None
    assert noise.reset_key is not None
    return _begun(env, env_params, noise.reset_key.reshape(-1)[: noise.pool])


def fresh_episodes(
    env: Any, env_params: Any, noise: EnvironmentNoise, pool: tuple[Any, Any] | None = None
) -> tuple[Any, Any] | None:
    """`(obs, state)` `[N, ...]` of the episodes that begin where one ends in a step, `noise` that of the step, `pool` from
    `fresh_pool`; None for an environment outside JAX, which begins them itself."""
    if noise.fresh is not None:
        return noise.fresh
    if is_outside_jax(env):
        return None
    if noise.pool:
        assert pool is not None, "a pool is made before the scan, by fresh_pool"
        states = pool
    else:
        assert noise.reset_key is not None
        states = _begun(env, env_params, noise.reset_key)
    return states if noise.which is None else jax.tree.map(lambda x: x[noise.which], states)
