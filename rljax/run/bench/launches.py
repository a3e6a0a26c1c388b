"""`rljax bench launches`: how many kernels training starts on a GPU that need not be there, beside a peer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from rljax.algos.common.training import make_train
from rljax.core.compilation_cache import without_compilation_cache
from rljax.core.config_files import load_config
from rljax.core.devices import compiling_for
from rljax.run.bench.timing import Program, hardware, steps_of
from rljax.run.compile.costs import Kernel, kernels_of
from rljax.run.compile.hlo import Program as CompiledProgram
from rljax.run.compile.program import compiler_options, lower_for
from rljax.run.compile.targets import target_of

TARGET = "h200"

PRESETS = ("cartpole_ppo_cleanrl", "cartpole_dqn_rejax", "pendulum_sac", "tmaze_ppo_gru", "kuhn_league", "cartpole_dreamer_debug")


def print_launches(peers: Mapping[str, Callable[[Any], Program | None]]) -> None:
    """Print the kernels that whole runs of presets start, evaluation off, and those of a peer with the same work.

    Args:
        peers: function for a preset that returns the peer's program for its configuration; None where it is not installed.

    Raises:
        ConfigError: what XLA needs to compile for the target is not installed.
    """
    with target_of(TARGET):  # before anything is printed
        pass
    print(hardware())
    print(f"\nwhole runs compiled for {TARGET}, evaluation off; a loop of unknown length counts as one trip each time\n")
    print("| run | environment steps | kernels | of an environment step | loops of unknown length | of the peer's kernels |")
    print("| --- | --- | --- | --- | --- | --- |")
    missing = False
    for name in PRESETS:
        config = load_config(name, eval_every=None)
        steps = steps_of(config)
        peer = peers[name](config) if name in peers else None
        missing |= name in peers and peer is None
        ours = kernels_for(make_train(config), TARGET)
        theirs = None if peer is None else kernels_for(peer, TARGET)
        ratio = "" if theirs is None else f"{_started(ours) / _started(theirs):.2f}"
        print(_row(name, steps, ours, ratio), flush=True)
        if theirs is not None:
            print(_row("rejax, the same work", steps, theirs, "1.00"), flush=True)
    if missing:
        print("\nwithout a peer: rejax is not installed")


def kernels_for(program: Program, target_name: str) -> list[Kernel]:
    """Return what one run of a program, a function of a key, starts on a device that need not be there.

    Raises:
        ConfigError: there is no such target, or what XLA needs to compile for it is not installed.
    """
    with target_of(target_name) as (target, _), compiling_for(target), without_compilation_cache():
        key = jax.eval_shape(lambda: jax.random.key(0))
        key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=SingleDeviceSharding(target.devices[0]))
        lowered = lower_for(jax.jit(program).trace(key), target)
        compiled = lowered.compile(compiler_options=compiler_options(target))
    return kernels_of(CompiledProgram(compiled.as_text()), on_tpu=target.platform == "tpu")


def _started(kernels: list[Kernel]) -> int:
    return sum(kernel.times for kernel in kernels if kernel.launched)


def _row(name: str, steps: int, kernels: list[Kernel], ratio: str) -> str:
    started, waits = _started(kernels), sum(kernel.times for kernel in kernels if kernel.waits)
    return f"| {name} | {steps:,} | {started:,} | {started / steps:.1f} | {waits:,} | {ratio} |"
