"""Leagues with every feature of games at once hold the same memory after 10,000 iterations, as one compiled program."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.envs import GoalGame, TicTacToe

MEGABYTE = 2**20
CHUNK = 25
"""Iterations of a call from the host: a call may leave something behind, too."""


class TwoRoles(GoalGame):
    """Tic-tac-toe with goals, in which beginning is another role than following; counts how often its step is traced."""

    def __init__(self) -> None:
        super().__init__(TicTacToe(), 2)
        self.traces = 0

    @property
    def roles(self) -> tuple[int, ...]:
        return (0, 1)

    def step_env(self, *args: Any) -> Any:
        self.traces += 1
        return super().step_env(*args)


EVERYTHING: dict[str, Any] = {
    "num_envs": 6,
    "num_slots": 1,
    "num_steps": 4,
    "num_epochs": 1,
    "num_minibatches": 1,
    "pool_size": 6,
    "main_exploiters": 1,
    "league_exploiters": 1,
    "snapshot_every": 24 * 20,
    "snapshot_timeout": 24 * 40,
    "branch_after": 24 * 30,
    "branch_gain": 0.3,
    "network": {"type": "gru", "hidden": [4], "size": 4, "head_hidden": []},
    "weights": "role",
    "central_critic": True,
    "normalize_observations": True,
    "normalize_rewards": True,
    "value_heads": ("win", "follow"),
    "exploiter_head_weights": (1.0, 1.0),
    "learning_rate": 1e-3,
    "anneal_lr": False,
}
LEARNERS: dict[str, dict[str, Any]] = {
    "V-trace of older policies": {
        "learner": "impala",
        "policy_lag": 2,
        "reset_to": "main",
        "intrinsic": {"type": "count", "bins": 64},
    },
    "PPO with a magnet": {
        "magnet_coef": 0.1,
        "average_decay": 0.9,
        "intrinsic": {"type": "rnd", "features": 4, "hidden": [4]},
    },
}


class Held(NamedTuple):
    """Memory in use: the number of arrays on the device, their bytes, and the resident bytes of the process (0 where unknown)."""

    arrays: int
    bytes: int
    resident: int


def held() -> Held:
    gc.collect()
    arrays = jax.live_arrays()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)  # what compiling has freed would hide what is added since
    statm = Path("/proc/self/statm")
    pages = int(statm.read_text().split()[1]) if statm.exists() else 0
    return Held(len(arrays), sum(x.nbytes for x in arrays), pages * os.sysconf("SC_PAGE_SIZE"))


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The programs that are compiled while it is open."""
    seen: list[str] = []

    def note(event: str, _: float, **__: Any) -> None:
        if event.endswith("backend_compile_duration"):
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def memory_over(config: Any, iterations: int, between: Callable[[Any], Any] = lambda state: None) -> tuple[list[Held], Any, Any]:
    """Train for a number of iterations in calls of `CHUNK`; nothing is compiled after the first one.

    Returns:
        What is held after each tenth of the iterations, the last state, and the number of resets and of branches.
    """
    agent = rljax.make_agent(config)

    def chunk(carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        def iteration(_: Any, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            state, metrics = agent.step(carry[0])
            return state, carry[1] + jnp.stack([metrics["league/resets"], metrics["league/branches"]])

        return jax.lax.fori_loop(0, CHUNK, iteration, carry)

    compiled = jax.jit(chunk, donate_argnums=0)
    carry = jax.block_until_ready(compiled((jax.jit(agent.init)(jax.random.key(0)), jnp.zeros(2))))
    between(carry[0])
    traces, calls = config.env.traces, iterations // CHUNK - 1
    found = []
    with compilations() as seen:
        for call in range(1, calls + 1):
            carry = compiled(carry)
            between(carry[0])
            if call % (calls // 10) == 0:
                jax.block_until_ready(carry)
                found.append(held())
    assert not seen
    assert config.env.traces == traces > 0
    assert compiled._cache_size() == 1
    return found, *carry


def check(name: str, iterations: int, megabytes: float, show: Callable[[str], None]) -> None:
    config = rljax.LeagueConfig(env=TwoRoles(), total_timesteps=24 * iterations, **EVERYTHING, **LEARNERS[name])
    found, state, (resets, branches) = memory_over(config, iterations)
    assert int(state.iteration) == iterations
    assert state.league.pool.filled.all()
    assert int(state.league.pool.offered) > iterations / 20
    assert float(branches) > iterations / 200
    # Of resets, those to the main agent are branches.
    assert float(resets) == float(branches) if config.reset_to == "main" else float(resets) > float(branches)
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((state.params, state.league.pool.params)))
    assert len({x[:2] for x in found}) == 1
    grown = (found[-1].resident - found[0].resident) / MEGABYTE
    show(
        f"{name}, {iterations} iterations: {found[-1].arrays} arrays of {found[-1].bytes:,} bytes throughout, "
        f"{resets:.0f} resets, {branches:.0f} branches; resident memory {found[-1].resident / MEGABYTE:.0f} MiB, {grown:+.1f}"
    )
    assert grown < megabytes


@pytest.mark.long
@pytest.mark.parametrize("name", ["V-trace of older policies", "PPO with a magnet"])
def test_memory_is_flat_with_every_feature_of_games(name: str, figure: Callable[[str], None]) -> None:
    check(name, 600, 4.0, figure)


@pytest.mark.long
@pytest.mark.parametrize("name", LEARNERS)
def test_memory_is_flat_over_ten_thousand_iterations_with_every_feature_of_games(
    name: str, figure: Callable[[str], None]
) -> None:
    check(name, 10_000, 4.0, figure)


@pytest.mark.long
def test_what_is_left_behind_is_seen() -> None:
    """The measure itself: a copy of the state after each call, on the device or in the process's memory."""
    config = rljax.LeagueConfig(env=TwoRoles(), total_timesteps=24 * 600, **EVERYTHING, **LEARNERS["PPO with a magnet"])
    kept: list[Any] = []

    def keep(state: Any) -> None:
        kept.append((jax.tree.map(jnp.copy, state.params), np.ones(MEGABYTE // 8)))

    (first, *_, last), *_ = memory_over(config, 600, keep)
    assert last.arrays > first.arrays
    assert last.bytes > first.bytes
    assert not first.resident or last.resident - first.resident > 10 * MEGABYTE
