"""Many runs in one program: they share a structure and differ in leaves of the configuration and in their keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from rljax.algos.common.training import train_iteration
from rljax.collect.environments import try_environment
from rljax.collect.evaluation import evaluate
from rljax.collect.rollout import NO_ACTION
from rljax.core.agent import MakeAgent, make_agent
from rljax.core.config import Config, env_name
from rljax.core.devices import AXIS, make_mesh, replicated
from rljax.core.errors import ConfigError, TrainingError
from rljax.core.keys import apart
from rljax.core.memory import device_memory, out_of_memory, tree_bytes
from rljax.run.chunks import run_iterations, vmap_runs
from rljax.run.divergence import bad_losses
from rljax.run.files.records import last_finite
from rljax.run.files.scores import SCORES

MAX_CHUNK = 256
"""Largest number of iterations in one call of a program."""

MAX_CHUNK_BYTES = 64 * 2**20
"""Largest size of a chunk's metrics."""

SHARE_OF_MEMORY = 0.8
"""Fraction of the device's memory that a batch of runs may fill."""

MAX_BATCH = {"cpu": 64, "gpu": 4096, "tpu": 4096}
"""Largest number of runs in one program, by platform. More are no faster on a CPU, and an interruption would lose more."""


class Programs:
    """Compiled programs of runs that share a structure: one for each number of runs, for any values of the leaves.

    Args:
        config: configuration of all runs; the leaves in `names` are replaced.
        names: names of the leaves in which the runs differ.
        make: function from a configuration to its agent.
    """

    def __init__(self, config: Config, names: tuple[str, ...], make: MakeAgent = make_agent):
        # Here each device has its own runs: no run is split over devices.
        self.config, self.names = config.replace(num_devices=1), names
        config = self.config
        try_environment(config)
        self.make = lambda values: make(config.replace(**values))
        self._init = jax.vmap(lambda values, key: self.make(values).init(key))
        example = jax.eval_shape(self._init, *self._example(1))
        single = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), example)
        values = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in names}
        metrics = jax.eval_shape(lambda v, s, i: train_iteration(self.make(v), s, i)[1], values, single, _INT32)
        self.metric_names = sorted(metrics)
        self.evaluate = jax.jit(
            jax.vmap(
                lambda values, state, key, episodes: jnp.mean(evaluate(self.make(values), state, key, episodes)),
                in_axes=(0, 0, 0, None),
            ),
            static_argnums=3,
        )
        self.bytes_each = tree_bytes(example)
        self.devices = jax.local_device_count()
        self._chunks: dict[int, tuple[Any, int]] = {}

    def _example(self, count: int) -> tuple[Any, Any]:
        values = {name: jax.ShapeDtypeStruct((count,), jnp.float32) for name in self.names}
        return values, jax.eval_shape(lambda: jax.random.split(jax.random.key(0), count))

    def init(self, values: Any, keys: jax.Array) -> Any:
        """Return the states of runs before their first iteration, each on its device."""
        layout = self._layout(len(keys))
        program = jax.jit(self._init) if layout is None else jax.jit(self._init, out_shardings=layout)
        return program(values, keys)

    def place(self, tree: Any, count: int) -> Any:
        """Split arrays `[count, ...]` of runs over all devices, if their number divides `count`; else put them on one, for which
        `chunk` compiles.
        """
        if self.devices == 1:
            return tree
        return jax.device_put(tree, self._layout(count) or jnp.zeros(()).sharding)

    def _layout(self, count: int) -> NamedSharding | None:
        if self.devices == 1 or count % self.devices:
            return None
        return NamedSharding(make_mesh(self.devices), PartitionSpec(AXIS))

    def chunk(self, count: int) -> tuple[Callable[..., Any], int]:
        """Compile `(values, states, first, length) -> (states, metrics f32 [size, count, M])` for `count` runs.

        Returns:
            The program and its size, the largest number of iterations that it can do at once.
        """
        if count not in self._chunks:
            size = max(1, min(MAX_CHUNK, self.config.num_iterations, MAX_CHUNK_BYTES // (4 * count * len(self.metric_names))))
            states = jax.eval_shape(self._init, *self._example(count))
            layout = self._layout(count)
            shardings: dict[str, Any] = {}
            if layout is not None:
                # Runs do not communicate, so inputs and outputs stay on their devices.
                shardings = {"in_shardings": (layout, layout, None, None), "out_shardings": (layout, replicated(layout))}
            program = jax.jit(self._chunk(count, size), donate_argnums=1, **shardings)
            self._chunks[count] = program.lower(self._example(count)[0], states, _INT32, _INT32).compile(), size
        return self._chunks[count]

    def _chunk(self, count: int, size: int) -> Callable[..., Any]:
        def one(values: Any, state: Any, i: jax.Array) -> Any:
            return train_iteration(self.make(values), state, i)

        def chunk(values: Any, states: Any, first: jax.Array, length: jax.Array) -> tuple[Any, jax.Array]:
            return run_iterations(
                lambda states, i: vmap_runs(one, count, values, states, i),
                states, first, length, (size, count, len(self.metric_names)),
            )  # fmt: skip

        return chunk

    def fits(self, count: int) -> bool:
        """Return whether `count` runs fit into the device's memory, according to their compiled program."""
        limit = device_memory()
        if limit is None:
            return True
        here = count if self._layout(count) is None else count // self.devices
        if here * self.bytes_each > SHARE_OF_MEMORY * limit:
            return False
        analysis = self.chunk(count)[0].memory_analysis()  # type: ignore[attr-defined]
        if analysis is None:
            return True
        # The states are donated: outputs take the place of inputs.
        needed = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
        return bool(needed + analysis.output_size_in_bytes - analysis.alias_size_in_bytes <= SHARE_OF_MEMORY * limit)

    def halve(self, size: int) -> int:
        """Return about half of a batch size, with as many runs on each device.

        Raises:
            ConfigError: each device has only one run already.
        """
        if size == 1 or size == self.devices:
            raise ConfigError("one run alone does not fit in this device's memory: take a smaller buffer, network or num_envs")
        # Fewer runs than devices are all on the first one.
        return max(size // 2 // self.devices, 1) * self.devices if size > self.devices else size // 2

    def batch_size(self, runs: int, most: int | None = None) -> int:
        """Return how many of `runs` to train at once: as many as fit, in batches of similar size, as many on each device.

        Args:
            runs: number of runs.
            most: largest number at once; None: that of `MAX_BATCH`.

        Raises:
            ConfigError: not even one run fits.
        """
        limit = most or MAX_BATCH.get(jax.default_backend(), 64)
        if limit > self.devices:
            limit -= limit % self.devices
        size = -(-runs // -(-runs // limit))
        if self.devices < size:
            size = -(-size // self.devices) * self.devices
        while not self.fits(size):
            size = self.halve(size)
        return size


class Population:
    """K runs that train together.

    Args:
        programs: compiled programs of their structure.
        values: values of the leaves in which they differ, each `[K]`.
        seeds: seeds of their keys, `[K]`.
    """

    def __init__(self, programs: Programs, values: Mapping[str, np.ndarray], seeds: np.ndarray):
        self.programs, count = programs, len(seeds)
        self.values = programs.place({name: jnp.asarray(values[name], jnp.float32) for name in programs.names}, count)
        self.keys = programs.place(jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32)), count)
        self.states = programs.init(self.values, self.keys)
        self.done = 0
        self.scores = {name: np.full(count, np.nan) for name in SCORES}
        self.failed = np.zeros(count, bool)

    @property
    def score(self) -> np.ndarray:
        """Score of each run so far, `[K]`: NaN if none is known, minus infinity if a loss was not finite."""
        known = next((self.scores[name] for name in SCORES if np.isfinite(self.scores[name]).any()), self.scores[SCORES[-1]])
        return np.where(self.failed, -np.inf, known)

    def advance(self, iterations: int) -> None:
        """Train for some more iterations, at most to the end of the budget."""
        names = self.programs.metric_names
        stop = min(self.done + iterations, self.programs.config.num_iterations)
        while self.done < stop:
            chunk, size = self.programs.chunk(len(self.failed))
            length = min(size, stop - self.done)
            self.states, buffer = chunk(self.values, self.states, np.int32(self.done), np.int32(length))
            rows = np.asarray(buffer)[:length]
            for name in SCORES:
                if name in names:
                    new = last_finite(rows[:, :, names.index(name)])
                    self.scores[name] = np.where(np.isfinite(new), new, self.scores[name])
            if NO_ACTION in names and (rows[:, :, names.index(NO_ACTION)] > 0).any():
                name = env_name(self.programs.config)
                raise TrainingError(f"stopped: action_mask of {name} allowed no action (of some head) in an unfinished episode")
            self.failed |= bad_losses(rows, names)[0].any((0, 2))
            self.done += length

    def keep(self, which: np.ndarray) -> None:
        """Keep only the runs with the indices `which`."""
        self.failed = self.failed[which]
        self.scores = {name: score[which] for name, score in self.scores.items()}
        kept = jax.tree.map(lambda x: x[which], (self.values, self.states, self.keys))
        self.values, self.states, self.keys = self.programs.place(kept, len(which))

    def play(self, episodes: int) -> np.ndarray:
        """Return the current policies' mean greedy returns (sampled if the best policy is random), f64 `[K]`.

        A run has minus infinity if a loss was not finite.
        """
        keys = jax.vmap(apart)(self.keys)
        returns = np.asarray(self.programs.evaluate(self.values, self.states, keys, episodes), np.float64)
        return np.where(self.failed, -np.inf, returns)


Printer = Callable[[str], None]
"""Function that is called with lines of text about the progress."""


def train_batches(
    programs: Programs,
    next_batch: Callable[[int], list[Any]],
    train: Callable[[list[Any], int], None],
    size: int,
    *,
    seeds: int = 1,
    what: str = "runs",
    progress: Printer,
) -> None:
    """Train one batch after the other, smaller ones once memory has run out.

    Args:
        programs: compiled programs of the runs.
        next_batch: `size -> batch`, at most `size` things to train; an empty list ends the loop.
        train: `(batch, size) -> None`; it fills a short batch up to `size` (see `fill`), as another size is another program.
        size: things in a batch.
        seeds: runs of each.
        what: these things, for a line of progress.
        progress: shows a line.

    Raises:
        ConfigError: memory is not enough for one of them.
    """
    while batch := next_batch(size):
        try:
            train(batch, size)
        except jax.errors.JaxRuntimeError as error:
            if not out_of_memory(error):
                raise
            size = programs.halve(size * seeds) // seeds
            if size < 1:
                raise ConfigError(f"seeds = {seeds}: so many runs do not fit in this device's memory") from None
            progress(f"out of memory: continuing with {size} {what} at once")


def fill(count: int, size: int) -> np.ndarray:
    """Return `size` indices into a batch of `count`, which repeat where it is smaller."""
    return np.arange(size) % count


_INT32 = jax.ShapeDtypeStruct((), jnp.int32)
