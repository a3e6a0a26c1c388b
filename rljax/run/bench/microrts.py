"""`rljax bench microrts`: cycles of MicroRTS per second on one core, beside the Java engine's and those of Gym-microRTS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.backend import clear_backends

from rljax.core.compilation_cache import use_compilation_cache
from rljax.core.errors import RljaxError
from rljax.envs.microrts.actions import biased_choice, orders_at, random_choice
from rljax.envs.microrts.java.engine import Java, start_java
from rljax.envs.microrts.java.install import is_there, microrts_folder
from rljax.envs.microrts.rules import engine
from rljax.envs.microrts.rules.layout import games_last
from rljax.envs.microrts.rules.units import NONE
from rljax.envs.microrts.scripted.bots import PAUSE
from rljax.envs.registry import make_env
from rljax.run.bench.timing import Program, Run, Timing, hardware, time_interleaved
from rljax.run.microrts.gym_microrts import GymMicroRTS

NUM_GAMES = {"basesWorkers8x8": (128, 128), "basesWorkers16x16": (128, 32)}
"""For each map the games at once of the engine, so that planes stay in a processor's cache, and of the game, whose observations
and masks are larger."""
ENGINE_STEPS, GAME_STEPS, JAVA_CYCLES = 10_000, 1_000, 1_000_000
"""Steps of a run of the engine and of the game, and cycles of one of Java: the best part of a second, or more."""
WARM_UP_CYCLES, JAVA_WARM_UP = 100_000, 2
"""How long, and how often, Java plays each map before it is timed: it compiles what runs often."""
GYM_GAMES, GYM_STEPS = 16, 2_000
"""Games at once (4 and 64 were slower) and steps of a run of Gym-microRTS: a whole game, as its units become more."""
ENGINE, GAME = "engine", "game, with observations and masks"
JAVA, GYM = "Java engine, two random bots", "Gym-microRTS, with observations and masks"


def print_microrts(repeats: int) -> None:
    """Print cycles per second of random legal play: the engine and the game with observations and masks, here and in Java."""
    with one_core() as kept:
        use_compilation_cache(False)
        print(hardware())
        print(f"\non {'one core' if kept else 'all cores'}; medians of {repeats} interleaved runs")
        java = find_java()
        print("\n| map | games at once | program | trace + compile, s | cycles/s |" + (" times its peer |" if java else ""))
        print("| --- | --- | --- | --- | --- |" + (" --- |" if java else ""))
        # The engine on both maps first: after Gym-microRTS the Java engine, in the same virtual machine, is much slower.
        for name in NUM_GAMES:
            print_engine(name, java, repeats)
        shares = [print_game(name, java, repeats) for name in NUM_GAMES]
        if java:
            inside = " and ".join(f"{share:.0%}" for share in shares)
            print(
                f"\n{inside} of the time of Gym-microRTS on these maps is inside Java; the rest draws actions, and copies arrays"
            )


@contextmanager
def one_core() -> Iterator[bool]:
    """Keep this process on one core, where the system can, and say whether it does; arrays of before cannot be used after it."""
    if not hasattr(os, "sched_setaffinity"):
        yield False
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    # JAX has as many threads as cores when it starts: two of them on one core take twice the time.
    clear_backends()
    try:
        yield True
    finally:
        os.sched_setaffinity(0, cores)
        clear_backends()


def find_java() -> Java | None:
    """Return the Java engine, warmed up, if it is installed; if not, print a line and return None."""
    try:
        if is_there(microrts_folder()):
            java = start_java()
            for name in JAVA_WARM_UP * list(NUM_GAMES):
                java.play_random(name, WARM_UP_CYCLES)
            return java
        print("\nwithout the Java engine, which is not here")
    except RljaxError as error:
        print(f"\nwithout the Java engine: {error}")
    return None


def print_engine(name: str, java: Java | None, repeats: int) -> None:
    """Print the rows of the engine on a map, and of Java's."""
    games, _ = NUM_GAMES[name]
    program = engine_program(name, games)
    beside: dict[str, Run] = {JAVA: lambda _: java.play_random(name, JAVA_CYCLES)} if java else {}
    timings = time_interleaved({ENGINE: program}, repeats, beside=beside)
    # A step plays one cycle or several: those of the runs above are counted by playing the same games again.
    again = jax.jit(program)
    played = [int(again(jax.random.key(i))[1].sum()) for i in range(repeats)]
    _print_rows(name, timings, {ENGINE: (games, sum(played) / repeats), JAVA: (1, JAVA_CYCLES)})


def print_game(name: str, java: Java | None, repeats: int) -> float:
    """Print the rows of the game on a map, and of Gym-microRTS; return the share of its time inside Java (0 without it)."""
    _, games = NUM_GAMES[name]
    gym, rng = gym_microrts(java, name) if java else None, np.random.default_rng(0)
    beside: dict[str, Run] = {GYM: lambda _: gym.play_random(GYM_STEPS, rng)} if gym else {}
    before = gym.java_seconds if gym else 0.0
    timings = time_interleaved({GAME: game_program(name, games)}, repeats, beside=beside)
    _print_rows(name, timings, {GAME: (games, games * GAME_STEPS), GYM: (GYM_GAMES, GYM_GAMES * GYM_STEPS)})
    return (gym.java_seconds - before) / sum(timings[GYM].runs) if gym else 0.0


def _print_rows(name: str, timings: dict[str, Timing], sizes: dict[str, tuple[int, float]]) -> None:
    """Print a row for each program; `sizes` are its games at once, and the cycles of a run. The peer, if it is there, is last."""
    speeds = {label: sizes[label][1] / median(timing.runs) for label, timing in timings.items()}
    peer = [*speeds.values()][-1]
    for label, speed in speeds.items():
        compiling = f"{timings[label].compile:.1f}" if label in (ENGINE, GAME) else ""
        times = f" {speed / peer:.1f} |" if len(speeds) > 1 else ""
        print(f"| {name} | {sizes[label][0]} | {label} | {compiling} | {speed:,.0f} |{times}")


def gym_microrts(java: Java, name: str) -> GymMicroRTS:
    """Return games of Gym-microRTS on a map, warmed up."""
    gym = GymMicroRTS(java, name, GYM_GAMES)
    gym.play_random(GYM_STEPS // 2, np.random.default_rng(0))
    return gym


def engine_program(name: str, games: int) -> Program:
    """Return a program that plays as Java's random bots do, without observations; games that are over start again.

    Units whose order is to wait wait as long as theirs, and a step plays all cycles until a unit is to be given an order: in the
    others nothing can be ordered. The games are on the last axis, where the engine has them. The program returns the states and
    the cycles that each game has played.
    """
    env, params = make_env("MicroRTS-v0", map_name=name)
    start = env.reset_env(jax.random.key(0), params)[1]

    @games_last
    def step(carry: Any, bits: jax.Array, start: Any, walls: Any) -> Any:
        state, played = carry
        choice = biased_choice(engine.legal_orders(state, walls), bits)
        orders = orders_at(choice)
        orders = orders.replace(parameter=jnp.where(orders.action == NONE, jnp.int8(PAUSE), orders.parameter))
        # What was chosen is legal: all but the first, which is to wait, begin an action.
        ordered = engine.carry_out(state, orders, choice > 0)
        after = engine.advance(engine.skip(ordered, params.max_cycles))
        over = (engine.winner(after) != engine.NOT_OVER) | (after.time >= params.max_cycles)
        return jax.tree.map(lambda a, b: jnp.where(over, a, b), start, after), played + after.time - state.time

    def step_from(carry: Any, bits: jax.Array) -> Any:
        return step(carry, bits, start, env.walls)

    carry = (start, jnp.zeros((), jnp.int32))
    return _program(step_from, ENGINE_STEPS, carry, start.unit.shape, games, axis=-1)


def game_program(name: str, games: int) -> Program:
    """Return a program that plays the game as a learner would: steps with observations and masks, and random legal actions."""
    env, params = make_env("MicroRTS-v0", map_name=name)
    obs, start = env.reset_env(jax.random.key(0), params)

    def step(carry: Any, bits: jax.Array) -> Any:
        state, *_ = carry
        choice = random_choice(engine.legal_orders(state, env.walls), bits).reshape(-1)
        obs, state, reward, *_ = env.step(jax.random.key(0), state, jnp.stack([choice, choice]).astype(jnp.int32), params)
        # The carry keeps observations, masks and rewards, so that they are computed.
        return state, obs, env.action_mask(state, params), reward

    carry = (start, obs, env.action_mask(start, params), jnp.zeros(2))
    return _program(step, GAME_STEPS, carry, start.unit.shape, games, axis=0)


def _program(step: Any, steps: int, carry: Any, cells: tuple[int, ...], games: int, axis: int) -> Program:
    """Return a program of so many steps of many games, which are on this axis, from `carry` on; `cells` are the rows and columns
    of the map.
    """
    shape = (games, *cells) if axis == 0 else (*cells, games)

    def play(key: jax.Array) -> Any:
        def draw_and_step(now: tuple[Any, jax.Array], _: None) -> tuple[Any, None]:
            carry, drawn = now[0], _xorshift(now[1])
            # Two numbers of 16 bits from each of 32.
            bits = jnp.concatenate([drawn.astype(jnp.uint16), (drawn >> 16).astype(jnp.uint16)], axis=-1)
            return (jax.vmap(step, axis, axis)(carry, bits), drawn), None

        many = jax.tree.map(lambda x: jnp.repeat(jnp.expand_dims(x, axis), games, axis), carry)
        # No seed may be 0, which would stay 0.
        seeds = jax.random.bits(key, (*shape[:-1], shape[-1] // 2), jnp.uint32) | 1
        return jax.lax.scan(draw_and_step, (many, seeds), None, steps)[0][0]

    return play


def _xorshift(x: jax.Array) -> jax.Array:
    """Return the next random numbers, u32 (Marsaglia, "Xorshift RNGs", 2003): JAX's own would take an eighth of the time."""
    x ^= x << 13
    x ^= x >> 17
    return x ^ (x << 5)
