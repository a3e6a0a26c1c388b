"""Data inside compiled steps: the same as read on the host, under every transformation."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rljax.algos.common.feed import WAITING, make_feed
from rljax.collect.demos import open_dataset
from rljax.core.devices import make_mesh, on_mesh, over_devices
from rljax.core.errors import RljaxError
from tests.collect.demos.made import made
from tests.run.simulated_devices import printed_on_devices


def scanned(feed: Any, length: int, first: int = 0) -> Any:
    def step(number: jax.Array, _: None) -> tuple[jax.Array, Any]:
        return number + 1, feed(number)

    return jax.lax.scan(step, jnp.int32(first), None, length)[1]


def test_a_scan_gets_the_windows_in_order_from_any_number_on(tmp_path: Path) -> None:
    made(tmp_path / "data")
    windows = open_dataset(tmp_path / "data").windows(3, 4)
    wanted = [windows.read(number) for number in range(12)]
    feed = make_feed(windows)
    for first, length in ((0, 12), (5, 7), (0, 3)):
        found = jax.jit(lambda first, length=length: scanned(feed, length, first))(first)
        for number in range(length):
            jax.tree.map(lambda x, y, n=number: np.testing.assert_array_equal(x[n], y), found, wanted[first + number])


def test_runs_under_vmap_share_one_read_without_copies(tmp_path: Path) -> None:
    made(tmp_path / "data")
    reads = []

    class Counted:
        def __init__(self, source: Any):
            self.source, self.example = source, source.example

        def read(self, number: int) -> Any:
            reads.append(number)
            return self.source.read(number)

    windows = open_dataset(tmp_path / "data").windows(3, 4)
    feed = make_feed(Counted(windows), ahead=1)

    def one(start: jax.Array) -> jax.Array:
        def step(number: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            return number + 1, jnp.sum(feed(number).reward) * 2.0

        return jax.lax.scan(step, start, None, 5)[1]

    found = jax.jit(jax.vmap(one))(jnp.zeros(8, jnp.int32))
    wanted = [2.0 * windows.read(number).reward.sum() for number in range(5)]
    np.testing.assert_allclose(found, np.tile(wanted, (8, 1)), rtol=1e-5, atol=1e-6)
    assert sorted(reads) in (list(range(5)), list(range(6))), "each once, and perhaps the next one"
    shape = jax.make_jaxpr(jax.vmap(feed))(jnp.zeros(8, jnp.int32))
    assert "pure_callback" in str(shape)
    assert "f32[8,4,3]" not in str(shape.eqns[0].params)


def test_the_next_windows_are_read_while_the_device_computes(tmp_path: Path) -> None:
    """The reader is never more than `ahead` in front, and is in front when the device asks."""
    made(tmp_path / "data")
    windows = open_dataset(tmp_path / "data").windows(3, 4)
    asked, read = [], []
    both = threading.Lock()

    class Watched:
        example = windows.example

        def read(self, number: int) -> Any:
            with both:
                read.append(number)
                assert number <= max(asked, default=0) + 3
            return windows.read(number)

    feed = make_feed(Watched(), ahead=3)
    ready = []

    def note(number: Any) -> Any:
        with both:
            asked.append(int(number))
        deadline = threading.Event()
        for _ in range(2000):  # what the device computes meanwhile
            if max(read, default=-1) >= min(int(number) - 1, 6) + 3 or deadline.wait(0.001):
                break
        ready.append(max(read, default=-1))
        return np.int32(number)

    def step(number: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        window = feed(number)
        after = jax.pure_callback(note, jax.ShapeDtypeStruct((), jnp.int32), number + 0 * window.begins.sum(dtype=jnp.int32))
        return after + 1, window.reward.sum()

    jax.block_until_ready(jax.jit(lambda: jax.lax.scan(step, jnp.int32(0), None, 8))())
    assert ready[-1] >= 8
    assert sorted(read) == list(range(max(read) + 1)), "each window is read once"


def test_a_file_that_vanishes_is_reported_by_its_name(tmp_path: Path) -> None:
    made(tmp_path / "data")
    windows = open_dataset(tmp_path / "data", budget=0).windows(3, 4)
    for file in (tmp_path / "data" / "shards").rglob("reward.npy"):
        file.unlink()
    WAITING.take_failure()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"reward.npy: cannot be read any more"):
        jax.block_until_ready(jax.jit(lambda: scanned(make_feed(windows), 9))())
    failure = WAITING.take_failure()
    assert isinstance(failure, RljaxError)
    assert "reward.npy: cannot be read any more: No such file" in str(failure)


@pytest.mark.slow
def test_xla_splits_data_over_devices_without_a_warning(tmp_path: Path) -> None:
    made(tmp_path / "data")
    printed = printed_on_devices(4, tmp_path, __file__)
    assert printed.splitlines()[-1] == "4 True"
    assert "rematerialization" not in printed


def main() -> None:
    """Print over how many devices the data of a step is split, and whether it is that of the host; with what XLA has to say."""
    os.dup2(1, 2)
    windows = open_dataset("data").windows(4, 4)
    feed, mesh = make_feed(windows), make_mesh(4)

    def step(number: jax.Array) -> Any:
        with on_mesh(mesh):
            return over_devices(feed(number))

    found = jax.jit(step, in_shardings=NamedSharding(mesh, PartitionSpec()))(jnp.int32(0))
    same = jax.tree.map(np.array_equal, found, windows.read(0))
    print(len({str(shard.index) for shard in found.reward.addressable_shards}), all(jax.tree.leaves(same)))


if __name__ == "__main__":
    main()
