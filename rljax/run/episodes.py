"""New episodes for a saved state, as where its simulators are outside JAX and were not saved with it."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rljax.collect.intrinsic import NO_ENTROPY, EntropyState
from rljax.collect.normalizers import RewardStatistics
from rljax.collect.replay import Replay
from rljax.core.agent import Agent
from rljax.core.config import Config, env_name
from rljax.core.environments.environment import is_outside_jax
from rljax.core.errors import ConfigError
from rljax.core.host import failures_explained
from rljax.core.state import Role, roles_of
from rljax.envs import resolve_env


def runs_outside_jax(config: Config) -> bool:
    """Return whether the environment of a configuration is simulated outside JAX."""
    return not config.of_games and is_outside_jax(resolve_env(config.env, config.env_params)[0])


def check_one_run(config: Config, what: str) -> None:
    """Refuse several runs in one program, which `what` names, if their environment is outside JAX or their buffer on the host."""
    if getattr(config, "replay_memory", "device") == "host":
        raise ConfigError(f"{what}: expected replay_memory = 'device', as one program has one buffer in the host's memory")
    if runs_outside_jax(config):
        raise ConfigError(
            f"{what}: env = '{env_name(config)}' is simulated outside JAX, where one program trains one run: start one command "
            "after the other"
        )


def with_new_episodes(agent: Agent, state: Any) -> Any:
    """Compile and do `new_episodes`."""
    with failures_explained():
        return jax.block_until_ready(jax.jit(partial(new_episodes, agent))(state))


def new_episodes(agent: Agent, state: Any) -> Any:
    """Return a state whose episodes begin anew: those under way count as truncated in its buffers, and end in its statistics.

    A rollout that waits for the next update of an agent with `halves` gives way to one of the new episodes.
    """
    # Other episodes than those with which the run began, and than those of another resume.
    init = agent.init if agent.halves is None else agent.halves.init
    fresh = init(jax.random.fold_in(state.key, state.iteration))
    changes = {}
    for name, role in roles_of(state).items():
        value = getattr(state, name)
        if role.role is Role.PER_ENVIRONMENT:
            changes[name] = getattr(fresh, name)
        elif isinstance(value, Replay):
            changes[name] = _cut(value)
    state = end_in_statistics(state.replace(**changes))
    # The update goes on from what was remembered before its rollout, so both must be of the same episodes.
    return state if agent.halves is None else agent.halves.collect(state)


def end_in_statistics(state: Any) -> Any:
    """Return a state whose statistics do not go on with the episodes that were under way; leaves may have an axis of seeds."""
    changes: dict[str, Any] = {}
    for name in roles_of(state):
        value = getattr(state, name)
        if isinstance(value, RewardStatistics):
            changes[name] = value._replace(discounted_return=jnp.zeros_like(value.discounted_return))
        elif isinstance(value, EntropyState):
            changes[name] = EntropyState(jnp.full_like(value.previous, NO_ENTROPY))
    return state.replace(**changes)


def _cut(replay: Replay) -> Replay:
    """Return a buffer whose newest steps do not go on in what is written next."""
    row = (replay.position - 1) % replay.capacity
    data = replay.data
    name = "truncated" if hasattr(data, "truncated") else "is_last"
    going = ~data.terminated[row] if hasattr(data, "terminated") else True
    flags = getattr(data, name)
    return replay.replace(data=data._replace(**{name: flags.at[row].set(flags[row] | going)}))
