"""`rljax bench simulators`: environments outside JAX beside the vector runners of their suites, and overlapped learning."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.impala import ImpalaConfig
from rljax.collect.environments import make_training_env
from rljax.collect.resets import environment_noise, initial_environments
from rljax.collect.rollout import rollout_scan
from rljax.core.config import Config
from rljax.core.devices import usable_cores
from rljax.core.environments.spaces import as_space
from rljax.envs.simulators.environment import close_simulators
from rljax.run.bench.timing import hardware
from rljax.run.fit import fit

NUM_ENVS, NUM_STEPS = 16, 128
ITERATIONS = 24


class Case(NamedTuple):
    """An environment, the package without which it is left out, and whether IMPALA trains on it."""

    env: str
    package: str
    trains: bool = False


CASES = (
    Case("gymnasium:CartPole-v1", "gymnasium"),
    Case("gymnasium:HalfCheetah-v5", "mujoco", trains=True),
    Case("gymnasium:rljax.run.bench.waiting:Waits-v0", "gymnasium", trains=True),
    Case("envpool:CartPole-v1", "envpool"),
    Case("envpool:HalfCheetah-v4", "envpool", trains=True),
    Case("envpool:Pong-v5", "envpool"),
)


def print_simulators(repeats: int) -> None:
    """Print steps per second of random play, ours and the suite's, then of IMPALA with and without overlapped halves."""
    print(hardware())
    cases = [case for case in CASES if importlib.util.find_spec(case.package) is not None]
    missing = sorted({case.package for case in CASES} - {case.package for case in cases})
    if missing:
        print(f"\nwithout environments of {' and '.join(missing)}: not installed")
    print(f"\nrandom play, {NUM_ENVS} environments, {NUM_STEPS} steps of each, {repeats} interleaved runs")
    print("\n| environment | rljax, steps/s | the suite's vector runner, steps/s | ratio |")
    print("| --- | --- | --- | --- |")
    for case in cases:
        ours, theirs = _ours(case.env), _theirs(case.env)
        # The first runs compile and start processes.
        rates = [(_rate(ours, seed), _rate(theirs, seed)) for seed in range(repeats + 1)][1:]
        mine, other = (median(x) for x in zip(*rates, strict=True))
        print(f"| {case.env} | {mine:,.0f} | {other:,.0f} | {median(a / b for a, b in rates):.2f} |")
        close_simulators()
    print(f"\nIMPALA, {NUM_ENVS} environments, {ITERATIONS} iterations of {NUM_STEPS} steps, {repeats} interleaved runs")
    print("\n| environment | overlap | steps/s | share of the time waiting for simulators | times without overlap |")
    print("| --- | --- | --- | --- | --- |")
    for case in (case for case in cases if case.trains):
        runs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for _ in range(repeats):
            for overlap, found in runs.items():
                found.append(_train(case.env, overlap))
        for overlap, found in runs.items():
            speed, waits = (median(x) for x in zip(*found, strict=True))
            ratio = median(a[0] / b[0] for a, b in zip(found, runs[False], strict=True))
            print(f"| {case.env} | {'yes' if overlap else 'no'} | {speed:,.0f} | {waits:.2f} | {ratio:.2f} |")


def _rate(play: Callable[[int], None], seed: int) -> float:
    started = time.perf_counter()
    play(seed)
    return NUM_ENVS * NUM_STEPS / (time.perf_counter() - started)


def _ours(env_id: str) -> Callable[[int], None]:
    """Return a function that takes random steps in a compiled rollout."""
    env, params = make_training_env(Config(env=env_id, num_envs=NUM_ENVS, total_timesteps=NUM_ENVS * NUM_STEPS))
    space = as_space(env.action_space(params))
    state, obs = jax.jit(lambda key: initial_environments(env, params, key, NUM_ENVS))(jax.random.key(0))

    def act(_obs: Any, carry: Any, _mask: Any, keys: jax.Array) -> tuple[Any, Any]:
        return jax.vmap(space.sample)(keys), carry

    @jax.jit
    def play(state: Any, obs: Any, key: jax.Array) -> tuple[Any, Any, Any]:
        noise_key, env_key = jax.random.split(key)
        noise = environment_noise(env, params, env_key, NUM_STEPS, NUM_ENVS)
        keys = jax.random.split(noise_key, (NUM_STEPS, NUM_ENVS))
        state, obs, _, steps = rollout_scan(env, params, act, lambda action: action, state, obs, keys, noise)
        return state, obs, jnp.sum(steps.reward)

    now = [state, obs]

    def run(seed: int) -> None:
        now[0], now[1], _ = jax.block_until_ready(play(now[0], now[1], jax.random.key(seed)))

    return run


def _theirs(env_id: str) -> Callable[[int], None]:
    """Return a function that takes random steps in the suite's own runner: Gymnasium's of one process each, or EnvPool."""
    suite, _, name = env_id.partition(":")
    if suite == "envpool":
        make = importlib.import_module("envpool").make
        envs = make(name, env_type="gymnasium", num_envs=NUM_ENVS, num_threads=usable_cores())
        space = envs.action_space
        one: Callable[[], Any] = space.sample
    else:
        gymnasium = importlib.import_module("gymnasium")
        envs = gymnasium.make_vec(name, num_envs=NUM_ENVS, vectorization_mode="async")
        one = envs.single_action_space.sample
    envs.reset()

    def run(_seed: int) -> None:
        actions = [np.stack([one() for _ in range(NUM_ENVS)]) for _ in range(8)]
        for t in range(NUM_STEPS):
            envs.step(actions[t % 8])

    return run


def _train(env_id: str, overlap: bool) -> tuple[float, float]:
    """Return steps per second after compiling, and the share of the time waiting for simulators."""
    config = ImpalaConfig(
        env=env_id,
        num_envs=NUM_ENVS,
        num_steps=NUM_STEPS,
        num_epochs=4,
        num_minibatches=4,
        total_timesteps=ITERATIONS * NUM_ENVS * NUM_STEPS,
        overlap=overlap,
    )
    seen: list[tuple[float, float, float]] = []

    def note(step: int, metrics: dict[str, float]) -> None:
        seen.append((time.perf_counter(), step, metrics.get("perf/simulator_wait", np.nan)))

    fit(config, callback=note)
    close_simulators()
    (first, begun, _), (last, done, _) = seen[len(seen) // 4], seen[-1]
    return (done - begun) / (last - first), float(np.nanmedian([wait for _, _, wait in seen[len(seen) // 4 :]]))
