"""Compile the step of a run for devices that need not be there, and say what it needs and does."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from rljax.collect.replay import in_host_memory
from rljax.core.agent import Agent, make_agent
from rljax.core.compilation_cache import without_compilation_cache
from rljax.core.config import Config, env_name
from rljax.core.devices import Target, compiling_for, make_mesh, shardings
from rljax.core.errors import ConfigError, RljaxError, first_line, shortened, shown
from rljax.core.host import failures_explained
from rljax.core.memory import out_of_memory, readable_bytes
from rljax.core.operations import asks_host
from rljax.core.state import Role, roles_of
from rljax.run.chunks import surviving_iteration, vmap_runs
from rljax.run.compile.costs import kernels_of
from rljax.run.compile.estimate import BOUNDS, Collective, collectives_of, seconds_by_bound
from rljax.run.compile.hlo import Program
from rljax.run.compile.targets import Chip, parse_target, target_of
from rljax.run.episodes import check_one_run, runs_outside_jax
from rljax.run.files.folder import initial_state
from rljax.run.files.outputs import atomic_file, output_path

PARTS = {
    Role.PARAMETERS: "parameters",
    Role.COPY: "copies of parameters",
    Role.OPTIMIZER: "optimiser",
    Role.BUFFER: "buffer",
    Role.BUFFER_CURSOR: "buffer",
    Role.PER_ENVIRONMENT: "environments",
    Role.STATISTICS: "statistics",
    Role.KEY: "other",
    Role.OTHER: "other",
}
"""Part of a report for each role of a field of the state."""

TEMPORARY, CODE, METRICS = "activations", "program", "metrics"
"""Parts that the compiler adds: temporary arrays, the program itself, and what an iteration returns beside the state."""

SUFFIX = ".xla"
"""Ending of the name of a saved program."""


@dataclass(frozen=True)
class CompileReport:
    """What one iteration of a run needs and does. Numbers are per device, but for `devices`, `devices_there` and `steps`.

    Attributes:
        target: name of the target.
        devices: number of devices that the run uses.
        devices_there: number of devices of the target.
        memory: bytes of memory that a program may use.
        host: bytes of the host's memory that the state takes, of a replay buffer (`replay_memory = "host"`).
        bus: bytes that an iteration moves between the device and the host's memory.
        parts: bytes by part of the state (parameters, optimiser, buffer, ...), and those that the compiler adds: `activations`
            (its temporary arrays), `metrics` and `program`.
        launches: operations that an iteration starts: kernels of a GPU, fusions of a TPU.
        unknown_loops: number of loops whose trips are known only at run time; each is counted as one trip.
        flops: floating-point operations of an iteration, those of products of matrices included.
        product_flops: those of products of matrices and convolutions.
        moved: bytes of the device's memory that an iteration reads and writes.
        collectives: operations that combine arrays of several devices.
        seconds: estimated seconds of an iteration by what takes them; not measured.
        steps: environment steps of an iteration on all devices.
        compile_seconds: seconds that tracing and compiling took.
        compiled: the compiled program.
    """

    target: str
    devices: int
    devices_there: int
    memory: int
    host: int
    bus: int
    parts: dict[str, int]
    launches: int
    unknown_loops: int
    flops: int
    product_flops: int
    moved: int
    collectives: tuple[Collective, ...]
    seconds: dict[str, float]
    steps: int
    compile_seconds: float
    compiled: Any = field(repr=False, compare=False)

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.bytes <= self.memory

    @property
    def iteration_seconds(self) -> float:
        """Estimated seconds of an iteration."""
        return sum(self.seconds.values())

    @property
    def steps_per_second(self) -> float:
        """Estimated environment steps a second, on all devices."""
        return self.steps / self.iteration_seconds

    @property
    def bound_by(self) -> str:
        """The bound, one of `BOUNDS`, with most of the estimated time."""
        return max(BOUNDS, key=lambda name: self.seconds[name])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled program, as `jax.experimental.serialize_executable` makes it.

        Raises:
            ConfigError: XLA cannot save programs for this target, or the file cannot be written.
        """
        file = output_path(path, (SUFFIX,))
        from jax.experimental import serialize_executable

        try:
            payload, _, _ = serialize_executable.serialize(self.compiled)
        except Exception as error:
            raise ConfigError(f"{path}: XLA cannot save a program for {self.target}: {first_line(error)}") from None
        with atomic_file(file) as aside:
            aside.write_bytes(payload)

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers for JSON."""
        table = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "compiled"}
        table["collectives"] = [each._asdict() for each in self.collectives]
        derived = ("bytes", "fits", "iteration_seconds", "steps_per_second", "bound_by")
        return table | {name: getattr(self, name) for name in derived}


def compile_for(config: Config, target: str, *, seeds: int | None = None) -> CompileReport:
    """Compile one iteration of a run for a device that need not be there, and count what it needs and does.

    Nothing is computed. The program is the step that `fit` repeats, with its state donated, and split over `config.num_devices`
    devices of the target. The times are estimates from figures of the device's maker, not measurements.

    Args:
        config: configuration of the run.
        target: name of the device or devices: `v5e-1`, `v5e-16`, `v5p-64`, `v6e-8`, `a100`, `h100`, `h200-8`. TPUs have the names
            of Google Cloud: the number of v5e and v6e counts chips, that of v5p counts cores, two to a chip.
        seeds: number of seeds in one program, as in `fit`; only on one device.

    Returns:
        `CompileReport`; print it with `rljax.run.compile.report.report_lines`.

    Raises:
        ConfigError: an unknown target, or one that needs a package which is not installed (the message names it), or a program
            that the compiler says cannot fit.
    """
    parse_target(target)
    if not isinstance(config, Config):
        raise ConfigError(f"{shown(config)} is not a configuration: expected for example rljax.load_config('cartpole_ppo')")
    if seeds is not None and (isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1):
        raise ConfigError(f"seeds = {shown(seeds)}: expected a whole number from 1")
    if seeds is not None and config.num_devices > 1:
        raise ConfigError(f"seeds = {seeds}: expected none with num_devices = {config.num_devices}")
    if seeds is not None:
        check_one_run(config, f"seeds = {seeds}")
    if runs_outside_jax(config):
        raise ConfigError(f"env = '{env_name(config)}' is simulated outside JAX, on the host: there is no program for {target}")
    # The cache of compiled programs can read none for a device that is not there, and would warn at each.
    with target_of(target) as (devices, chip), without_compilation_cache():
        return compile_on(config, devices, chip, seeds)


def compile_on(config: Config, target: Target, chip: Chip, seeds: int | None = None) -> CompileReport:
    """Compile for the devices of a target; see `compile_for`."""
    started = time.perf_counter()
    with compiling_for(target), failures_explained():
        agent = make_agent(config)
        state = _abstract_state(agent, target, seeds)
        layout = jax.tree.map(lambda x: x.sharding, state)
        step = jax.jit(_step(agent, seeds), donate_argnums=0, keep_unused=True, out_shardings=(layout, None))
        traced = step.trace(state)
        if target.platform != "cpu" and asks_host(traced.jaxpr.jaxpr):
            raise ConfigError(
                f"env = '{env_name(config)}': the run asks the host as it runs (bots in Java, data in files, callbacks, "
                f"jax.debug.print), and no program for {target.name} can do so before the device is there"
            )
        lowered = lower_for(traced, target)
        if target.platform == "gpu":
            _name_host_memory(lowered, jax.tree.leaves(in_host_memory(state)))
        try:
            compiled = lowered.compile(compiler_options=compiler_options(target))
        except jax.errors.JaxRuntimeError as error:
            if not out_of_memory(error):
                raise RljaxError(f"XLA cannot compile this run for {target.name}: {first_line(error)}") from error
            raise ConfigError(_does_not_fit(target, str(error), state)) from None
    return _report(config, target, chip, seeds, state, compiled, time.perf_counter() - started)


def lower_for(traced: Any, target: Target) -> Any:
    """Lower a traced program for the devices of a target."""
    return traced.lower(lowering_platforms=("cuda" if target.platform == "gpu" else target.platform,))


def compiler_options(target: Target) -> dict[str, str] | None:
    """Return what XLA must know to compile for a target that is not there: autotuning times kernels on the device."""
    return {"xla_gpu_autotune_level": "0"} if target.platform == "gpu" else None


def _name_host_memory(lowered: Any, hosts: list[bool]) -> None:
    """Write into a lowered program which leaves of the state, its first arguments and results, are in the host's memory.

    Devices that are not there have memories in JAX if they are TPUs; GPUs have none, so that shardings cannot say it.
    """
    from jax._src.lib.mlir import ir

    module = lowered._lowering.stablehlo()
    main = next(each for each in module.body.operations if ir.StringAttr(each.attributes["sym_name"]).value == "main")
    with module.context:
        for name in ("arg_attrs", "res_attrs") if any(hosts) else ():
            attributes = [{each.name: each.attr for each in table} for table in main.attributes[name]]
            for table, host in zip(attributes, hosts, strict=False):
                table |= {"mhlo.memory_kind": ir.StringAttr.get("pinned_host")} if host else {}
            main.attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get(table) for table in attributes])


def _step(agent: Agent, seeds: int | None) -> Callable[[Any], Any]:
    """Return the step of an agent, or that of several seeds; evaluations are left out.

    With several seeds `fit` keeps the states from before until it knows which seeds have not diverged.
    """
    if seeds is None:
        return agent.step
    without = agent._replace(config=agent.config.replace(eval_every=None))
    one, alive = surviving_iteration(without, agent.config.num_iterations), np.ones(seeds, bool)
    return lambda states: vmap_runs(one, seeds, jnp.asarray(alive), states, jnp.int32(0))


def _abstract_state(agent: Agent, target: Target, seeds: int | None) -> Any:
    """Return shapes, types and shardings of the state of a run."""
    config = agent.config
    keys = jax.eval_shape(lambda: jax.random.key(0) if seeds is None else jax.random.split(jax.random.key(0), seeds))
    state = jax.eval_shape(lambda keys: initial_state(agent, keys, seeds), keys)
    hosts = in_host_memory(state)
    if any(jax.tree.leaves(hosts)):
        mesh = make_mesh(1)
        kinds = {False: "device", True: "pinned_host"}
        layout = jax.tree.map(lambda host: NamedSharding(mesh, PartitionSpec(), memory_kind=kinds[host]), hosts)
    elif config.num_devices == 1:
        layout = jax.tree.map(lambda _: SingleDeviceSharding(target.devices[0]), state)
    else:
        layout = shardings(make_mesh(config.num_devices), state, config.num_envs)
    return jax.tree.map(lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state, layout)


def part_of_leaves(state: Any) -> list[str]:
    """Return the part of a report for each leaf of a state."""
    roles = roles_of(state)
    return [PARTS[roles[path[0].name].role] for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]


def _report(
    config: Config, target: Target, chip: Chip, seeds: int | None, state: Any, compiled: Any, seconds: float
) -> CompileReport:
    program, memory = Program(compiled.as_text()), compiled.memory_analysis()
    parts: dict[str, int] = dict.fromkeys(PARTS.values(), 0)
    # Arrays of the program are those of one device, with what fills up their tiles.
    host, hosts = 0, jax.tree.leaves(in_host_memory(state))
    for name, there, parameter in zip(part_of_leaves(state), hosts, program.entry.parameters(), strict=True):
        parts[name] += 0 if there else parameter.shapes[0].bytes
        host += parameter.shapes[0].bytes if there else 0
    arguments = memory.argument_size_in_bytes + memory.host_argument_size_in_bytes - host
    parts["other"] += max(0, arguments - sum(parts.values()))
    parts[TEMPORARY] = memory.temp_size_in_bytes
    parts[METRICS] = memory.output_size_in_bytes - memory.alias_size_in_bytes
    parts[CODE] = memory.generated_code_size_in_bytes
    kernels = kernels_of(program, on_tpu=target.platform == "tpu")
    products = sum(kernel.times * flops for kernel in kernels for _, flops in kernel.products)
    return CompileReport(
        target=target.name,
        devices=config.num_devices,
        devices_there=len(target.devices),
        memory=target.memory,
        host=host,
        bus=sum(kernel.times * kernel.bus for kernel in kernels),
        parts={name: size for name, size in parts.items() if size},
        launches=sum(kernel.times for kernel in kernels if kernel.launched),
        unknown_loops=sum(kernel.waits for kernel in kernels),
        flops=products + sum(kernel.times * kernel.flops for kernel in kernels),
        product_flops=products,
        moved=sum(kernel.times * kernel.moved for kernel in kernels),
        collectives=collectives_of(kernels),
        seconds=seconds_by_bound(kernels, chip, config.num_devices),
        steps=config.steps_per_iteration * (seeds or 1),
        compile_seconds=seconds,
        compiled=compiled,
    )


def _does_not_fit(target: Target, said: str, state: Any) -> str:
    """Return a message from the compiler's words, and the largest parts of the state."""
    sizes: dict[str, int] = {}
    for name, x in zip(part_of_leaves(state), jax.tree.leaves(state), strict=True):
        sizes[name] = sizes.get(name, 0) + math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    state_says = ", ".join(f"{name} {readable_bytes(sizes[name])}" for name in largest)
    numbers = re.findall(r"\b(\d[\d.]*[KMGT])\b", said)
    needs = f"the compiler counts {numbers[0]} bytes, and a device has {numbers[1]}" if len(numbers) > 1 else shortened(said)
    return (
        f"does not fit on {target.name}: {needs}; largest parts of the state: {state_says}. Take a smaller buffer, network or "
        "batch, fewer environments, or more devices (num_devices)"
    )
