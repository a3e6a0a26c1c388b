"""Datasets that are not as they were written: each fault is one line that names the file, and nothing is touched."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rljax.collect.demos import open_dataset
from rljax.core.errors import ConfigError
from rljax.core.sealed import seal
from tests.collect.demos.made import made

REWARD = "shards/00001/reward.npy"


def cut(folder: Path) -> None:
    file = folder / REWARD
    file.write_bytes(file.read_bytes()[:-3])


def flip(folder: Path) -> None:
    content = bytearray((folder / REWARD).read_bytes())
    content[-1] ^= 1
    (folder / REWARD).write_bytes(bytes(content))


def flip_table(folder: Path) -> None:
    file = folder / "dataset.json"
    file.write_text(file.read_text().replace('"Made-v0"', '"Fake-v0"'))


def reseal(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "dataset.json"
        table = json.loads(file.read_text())
        del table["checksum"]
        file.write_text(seal(table | changes))

    return change


def other_array(folder: Path) -> None:
    """A file of the same size and with the right sum in dataset.json, but of other numbers."""
    import hashlib

    file = folder / REWARD
    array = np.load(file)
    np.save(file, array.view(np.int32))
    table = json.loads((folder / "dataset.json").read_text())
    del table["checksum"]
    content = file.read_bytes()
    table["shards"][1]["files"]["reward"] = [len(content), hashlib.sha256(content).hexdigest()]
    (folder / "dataset.json").write_text(seal(table))


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (cut, r"reward.npy is damaged: it has \d+ bytes, expected \d+"),
    "flipped": (flip, r"reward.npy is damaged: its SHA-256 is not that in dataset.json"),
    "missing": (lambda folder: (folder / REWARD).unlink(), r"reward.npy is missing"),
    "other array": (other_array, r"reward.npy: has int32\[\d+\], expected float32"),
    "table": (flip_table, r"dataset.json is damaged, or not of a dataset: differs from what was written"),
    "no table": (lambda folder: (folder / "dataset.json").unlink(), r"no dataset there \(no dataset.json\)"),
    "cut table": (
        lambda folder: (folder / "dataset.json").write_text((folder / "dataset.json").read_text()[:99]),
        "cannot be read",
    ),
    "newer": (reseal(format=2, rljax="9.0"), r"has format 2 \(rljax 9.0\): this version of rljax reads format 1"),
    "foreign": (reseal(kind="pictures"), "kind = 'pictures': expected demonstrations"),
    "foreign table": (lambda folder: (folder / "dataset.json").write_text('{"a": 1}'), "not of a dataset: has no format"),
    "other spaces": (reseal(action_space={"type": "Sphere"}), "action_space = .*: expected a space"),
    "outside": (reseal(leaves={"../../x": [[], "int32"]}), "leaves = "),
    "empty": (reseal(shards=[]), "no episode yet"),
    "other shards": (reseal(leaves={}), "it has no array"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_or_foreign_dataset_is_one_line(tmp_path: Path, fault: str) -> None:
    made(tmp_path / "data")
    damage, words = FAULTS[fault]
    damage(tmp_path / "data")
    before = {file: file.read_bytes() for file in sorted(tmp_path.rglob("*")) if file.is_file()}
    with pytest.raises(ConfigError, match=words) as caught:
        open_dataset(tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert before == {file: file.read_bytes() for file in sorted(tmp_path.rglob("*")) if file.is_file()}


def test_paths_that_are_no_datasets_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(ConfigError, match=str(path)):
            open_dataset(path)


def test_sizes_alone_are_checked_where_the_files_are_trusted(tmp_path: Path) -> None:
    made(tmp_path / "data")
    flip(tmp_path / "data")
    assert open_dataset(tmp_path / "data", verify=False).num_episodes == 20
    cut(tmp_path / "data")
    with pytest.raises(ConfigError, match="damaged"):
        open_dataset(tmp_path / "data", verify=False)


def test_a_dataset_is_read_with_numpy_alone(tmp_path: Path) -> None:
    """As docs/guides/demonstrations.md says how."""
    episodes = made(tmp_path / "data")
    script = """
import json, sys
from pathlib import Path
import numpy as np

folder = Path(sys.argv[1])
table = json.loads((folder / "dataset.json").read_text())
for number in range(len(table["shards"])):
    arrays = {file.stem: np.load(file, mmap_mode="r") for file in (folder / "shards" / f"{number:05}").glob("*.npy")}
    step = 0
    for episode, length in enumerate(arrays["length"]):
        reward = arrays["reward"][step : step + length]
        obs = arrays["obs.place"][step + episode : step + episode + length + 1]
        mask = np.unpackbits(arrays["mask"][step + episode : step + episode + length + 1], axis=-1, count=5)
        print(float(reward.sum()), int(obs[0, 0]), int(obs[-1, 1]), int(mask.sum()))
        step += length
assert "jax" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-c", script, str(tmp_path / "data")], check=True, capture_output=True, text=True)
    for number, (line, episode) in enumerate(zip(result.stdout.splitlines(), episodes, strict=True)):
        total, first, last, legal = line.split()
        assert float(total) == pytest.approx(float(episode.reward.sum()), rel=1e-5)
        assert (int(first), int(last), int(legal)) == (number, len(episode.reward), int(episode.mask.sum()))


BIG = """
import resource, sys
import numpy as np
from rljax.collect.demos import open_dataset
dataset = open_dataset(sys.argv[1], budget=2**19)
windows, batches = dataset.windows(8, 16), dataset.batches(64)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
for number in range(4):
    windows.read(number), batches.read(number)
before = peak()
for number in range(200):
    windows.read(number), batches.read(number)
print(dataset.store.total_bytes, peak() - before)
"""


@pytest.mark.slow
def test_a_dataset_larger_than_the_budget_is_read_with_flat_memory(tmp_path: Path) -> None:
    """Ten times the budget and more; all of it is read several times."""
    made(tmp_path / "data", 1000, shard_bytes=10**6, longest=800)
    result = subprocess.run([sys.executable, "-c", BIG, str(tmp_path / "data")], check=True, capture_output=True, text=True)
    size, growth = map(int, result.stdout.split())
    assert size > 10 * 2**19
    assert growth < 2**20
