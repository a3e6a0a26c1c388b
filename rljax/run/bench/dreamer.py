"""`rljax bench dreamer`: updates per second, the times of their parts, and the cost of many seeds in one program."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from rljax.algos.dreamer.config import DreamerConfig
from rljax.algos.dreamer.dreamer import (
    DreamerParts,
    DreamerState,
    dreamer_collect,
    dreamer_init,
    dreamer_noise,
    dreamer_parts,
    dreamer_update,
    loss_noise,
)
from rljax.algos.dreamer.losses import actor_critic_loss, imagine, world_model_loss
from rljax.algos.dreamer.replay import replayed_normalized
from rljax.collect.replay import sample_online
from rljax.core.agent import make_agent
from rljax.run.bench.timing import run_in_turn
from rljax.run.chunks import vectorized_iteration

UPDATES = 8
"""Updates per timed program: the first use of fresh memory, a fifth of one update's time, is spread over this many."""


def print_dreamer(config: DreamerConfig, repeats: int) -> None:
    """Print the compile time of an iteration, the times of an update and its parts, and the throughput of vmapped seeds."""
    agent, parts = make_agent(config), dreamer_parts(config)
    every, updates, _ = config.schedule
    state = jax.tree.map(lambda x: x[0], warm_states(config, 1))
    started = time.perf_counter()
    jax.jit(agent.step).lower(state).compile()
    compiling = time.perf_counter() - started
    keys = jax.random.split(jax.random.key(1), UPDATES)
    programs = {name: jax.jit(repeat_and_sum(piece)) for name, piece in dreamer_pieces(parts).items()}
    times = _median_seconds({name: partial(program, state, keys) for name, program in programs.items()}, repeats)
    seconds = {name: spent / UPDATES for name, spent in times.items()}
    dtype = jnp.dtype(parts.networks.rssm.dtype or jnp.float32)
    work = f"{config.num_steps} steps of {config.num_envs} environments, {updates * config.num_steps // every} updates"
    print(
        f"\nDreamer {config.size} on {config.env}, {config.batch_size} x {config.batch_length}, horizon {config.horizon}, "
        f"{dtype}; trace + compile of an iteration ({work}): {compiling:.1f} s;\n"
        f"medians of {repeats} interleaved runs of {UPDATES}\n"
    )
    print("| part | ms | of an update |")
    print("| --- | --- | --- |")
    for name, spent in seconds.items():
        print(f"| {name} | {1e3 * spent:.1f} | {spent / seconds['update']:.0%} |")
    print(f"\n{1.0 / seconds['update']:.2f} updates/s\n")
    print("| seeds in one vmap | s per iteration | environment steps/s, all seeds | updates/s, all seeds | time against one |")
    print("| --- | --- | --- | --- | --- |")
    iterations: dict[str, Callable[[], Any]] = {}
    for seeds in (1, 4) if jax.default_backend() == "cpu" else (1, 4, 16, 64):
        iteration = jax.jit(partial(vectorized_iteration(agent, seeds), i=jnp.int32(0)))
        iterations[str(seeds)] = partial(iteration, warm_states(config, seeds))
    times = _median_seconds(iterations, repeats)
    for seeds, spent in zip(map(int, times), times.values(), strict=True):
        steps, all_updates = (
            seeds * count / spent for count in (config.steps_per_iteration, updates * config.num_steps // every)
        )
        print(f"| {seeds} | {spent:.2f} | {steps:,.1f} | {all_updates:.2f} | {spent / times['1']:.2f} |", flush=True)


def repeat_and_sum(piece: Callable[[DreamerState, jax.Array], Any]) -> Callable[[DreamerState, jax.Array], jax.Array]:
    """Return a program that runs `piece` for each of several keys and sums all its results, so that XLA removes none of them."""

    def program(state: DreamerState, keys: jax.Array) -> jax.Array:
        def once(total: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
            made = [x for x in jax.tree.leaves(piece(state, key)) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
            return total + sum(jnp.sum(x.astype(jnp.float32)) for x in made), None

        return jax.lax.scan(once, jnp.zeros(()), keys)[0]

    return program


def dreamer_pieces(parts: DreamerParts) -> dict[str, Callable[[DreamerState, jax.Array], Any]]:
    """Return functions of a state with sequences in its buffer and a key: an environment step, an update, and its parts.

    `observe` is the world model's loss with its gradient; `actor and critic` are their losses on imagined states with gradients.
    """
    config, networks = parts.config, parts.networks

    def drawn(state: DreamerState, key: jax.Array) -> Any:
        bits = jax.random.bits(key, (config.batch_size,))
        places, _ = sample_online(state.replay, state.queue, bits, config.batch_length)
        return replayed_normalized(networks.rssm, state, places, config.batch_length), loss_noise(parts, key)

    def rollout(state: DreamerState, key: jax.Array) -> Any:
        # Return all but the buffer: summing it, as is done with every result here, would take most of the time.
        state, noise = dreamer_noise(parts, state.replace(key=key))
        state, _ = dreamer_collect(parts, state, jax.tree.map(lambda x: x[:1], noise.collect))
        return state.carry, state.env_state, state.obs, state.arrival

    def observe(state: DreamerState, key: jax.Array) -> Any:
        batch, noise = drawn(state, key)
        loss = lambda params: world_model_loss(parts, params, state, batch, noise)[0]  # noqa: E731
        return jax.grad(loss)(state.params)

    def ahead(state: DreamerState, key: jax.Array) -> Any:
        noise = loss_noise(parts, key)
        starts = networks.rssm.initial((config.batch_size * config.batch_length,))
        return imagine(parts, state.params, starts, noise)

    def behaviour(state: DreamerState, key: jax.Array) -> Any:
        shapes = jax.eval_shape(ahead, state, key)
        imagined = jax.tree.map(lambda x: jax.random.uniform(key, x.shape, jnp.float32).astype(x.dtype), shapes)
        loss = lambda params: actor_critic_loss(parts, params, state, imagined)[0]  # noqa: E731
        return jax.grad(loss)(state.params)

    def update(state: DreamerState, key: jax.Array) -> Any:
        _, noise = dreamer_noise(parts, state.replace(key=key))
        return dreamer_update(parts, state, jax.tree.map(lambda x: x[:1], noise.update))[0].params

    return {
        "rollout (a step of all environments)": rollout,
        "observe": observe,
        "imagine": ahead,
        "actor and critic": behaviour,
        "update": update,
    }


def warm_states(config: DreamerConfig, seeds: int) -> DreamerState:
    """Return states `[seeds, ...]` with enough steps in their buffers to learn from."""
    parts = dreamer_parts(config)
    steps = 2 * max(config.window, -(-config.learning_starts // config.num_envs))

    def warm(key: jax.Array) -> DreamerState:
        state, noise = dreamer_noise(parts, dreamer_init(parts, key), -(-steps // config.schedule[0]))
        warmed: DreamerState
        warmed, _ = jax.lax.scan(lambda state, noise: dreamer_collect(parts, state, noise.collect), state, noise)
        return warmed

    return jax.jit(jax.vmap(warm))(jax.random.split(jax.random.key(0), seeds))


def _median_seconds(programs: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median times of programs that run in turn, after the first run of each, which compiles."""
    for program in programs.values():
        jax.block_until_ready(program())

    def nth(program: Callable[[], Any]) -> Callable[[int], Any]:
        return lambda _: program()

    runs = run_in_turn({name: nth(program) for name, program in programs.items()}, repeats)
    return {name: median(seconds) for name, seconds in runs.items()}
