"""Reading demonstrations: windows of streams and batches of transitions, against plain loops over the episodes."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

from rljax.collect.demos import open_dataset
from rljax.core.errors import ConfigError
from tests.collect.demos.made import made

SIZES = {"in memory": 2**30, "from files": 0}


@pytest.fixture(params=SIZES)
def budget(request: pytest.FixtureRequest) -> int:
    return SIZES[request.param]


def test_every_episode_is_read_as_it_was_written(tmp_path: Path, budget: int) -> None:
    written = made(tmp_path / "data")
    dataset = open_dataset(tmp_path / "data", budget=budget)
    assert dataset.num_episodes == len(written)
    assert len(list((tmp_path / "data" / "shards").iterdir())) > 3
    for number, episode in enumerate(written):
        found = dataset.episode(number)
        for name, wanted in {
            "obs.place": episode.obs["place"],
            "obs.picture": episode.obs["picture"],
            "action": episode.action,
            "mask": episode.mask,
            "reward": episode.reward,
            "terminated": episode.terminated,
            "truncated": episode.truncated,
        }.items():
            np.testing.assert_array_equal(found[name], wanted)
            assert found[name].dtype == wanted.dtype
        assert dataset.episodes.returns[number] == pytest.approx(sum(map(float, episode.reward)), rel=1e-6)
        assert dataset.episodes.length[number] == len(episode.reward)


def test_windows_deal_shuffled_episodes_to_the_stream_that_is_free_first(tmp_path: Path, budget: int) -> None:
    episodes = made(tmp_path / "data")
    streams, steps = 3, 4
    windows = open_dataset(tmp_path / "data", budget=budget).windows(streams, steps, seed=7)
    tapes: list[list[tuple[int, int]]] = [[] for _ in range(streams)]
    for number in range(40):
        window = windows.read(number)
        assert window.obs["place"].shape == (steps, streams, 2)
        for t in range(steps):
            for stream in range(streams):
                which, at = (int(x) for x in window.obs["place"][t, stream])
                tapes[stream].append((which, at))
                assert window.episode[t, stream] == which
                assert window.begins[t, stream] == (at == 0)
                assert window.action[t, stream] == episodes[which].action[at]
                assert window.reward[t, stream] == episodes[which].reward[at]
                assert window.terminated[t, stream] == episodes[which].terminated[at]
                assert window.truncated[t, stream] == episodes[which].truncated[at]
                np.testing.assert_array_equal(window.mask[t, stream], episodes[which].mask[at])
                np.testing.assert_array_equal(window.obs["picture"][t, stream], episodes[which].obs["picture"][at])
    dealt = []
    for stream, tape in enumerate(tapes):
        assert tape[0][1] == 0
        for (which, at), (following, then) in itertools.pairwise(tape):
            over = at == len(episodes[which].reward) - 1
            assert then == 0 if over else (following, then) == (which, at + 1)
        dealt += [(time, stream, which) for time, (which, at) in enumerate(tape) if at == 0]
    # In the order in which they were dealt, every deck has each episode once, and no two decks are alike.
    order = [which for *_, which in sorted(dealt)]
    decks = [order[i : i + len(episodes)] for i in range(0, len(order) - len(episodes), len(episodes))]
    assert len(decks) > 2
    assert all(sorted(deck) == list(range(len(episodes))) for deck in decks)
    assert len({tuple(deck) for deck in decks}) == len(decks)


def test_a_window_depends_on_its_seed_and_number_only(tmp_path: Path, budget: int) -> None:
    made(tmp_path / "data")
    dataset = open_dataset(tmp_path / "data", budget=budget)
    in_order = [dataset.windows(3, 4, seed=1).read(0)]
    again = dataset.windows(3, 4, seed=1)
    in_order = [again.read(number) for number in range(30)]
    for number in (29, 3, 17, 17, 0, 28):
        jax.tree.map(np.testing.assert_array_equal, again.read(number), in_order[number])
    alone = open_dataset(tmp_path / "data", budget=budget).windows(3, 4, seed=1).read(29)
    jax.tree.map(np.testing.assert_array_equal, alone, in_order[29])
    assert (dataset.windows(3, 4, seed=2).read(0).episode != in_order[0].episode).any()


def test_windows_are_read_by_several_threads_at_once(tmp_path: Path) -> None:
    """A feed reads ahead in its thread; whoever reads another window meanwhile must not change what it gets."""
    made(tmp_path / "data")
    windows = open_dataset(tmp_path / "data").windows(3, 4)
    wanted = [windows.read(number) for number in range(8)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            numbers = [number for _ in range(40) for number in (0, 7, 3, 1, 6, 2, 5, 4)]
            found = list(pool.map(windows.read, numbers))
    finally:
        sys.setswitchinterval(before)
    for number, window in zip(numbers, found, strict=True):
        jax.tree.map(np.testing.assert_array_equal, window, wanted[number])


def test_more_streams_than_episodes_read_full_windows(tmp_path: Path) -> None:
    made(tmp_path / "data", 3)
    windows = open_dataset(tmp_path / "data").windows(8, 50)
    counts = Counter(int(e) for number in range(20) for e in windows.read(number).episode.ravel())
    lengths = open_dataset(tmp_path / "data").episodes.length
    reads = [counts[number] / lengths[number] for number in range(3)]
    assert max(reads) - min(reads) <= 8


@pytest.mark.parametrize("streams", [1, 3, 16])
def test_windows_read_once_have_each_step_once_and_none_after_them(tmp_path: Path, streams: int) -> None:
    made(tmp_path / "data")
    dataset = open_dataset(tmp_path / "data", held_out=0.4)
    windows = dataset.windows(streams, 7, held_out=True, once=True)
    read: Counter[tuple[int, int]] = Counter()
    for number in range(windows.epoch_windows + 2):
        window, (episode, step) = windows.read(number), windows.places(number)
        np.testing.assert_array_equal(window.episode, episode)
        np.testing.assert_array_equal(window.obs["place"][episode >= 0], np.stack([episode, step], -1)[episode >= 0])
        read.update(zip(episode[episode >= 0].tolist(), step[episode >= 0].tolist(), strict=True))
        assert (episode >= 0).any() == (number < windows.epoch_windows)
    lengths = dataset.episodes.length
    assert read == Counter((e, t) for e in dataset.held_out.tolist() for t in range(lengths[e]))
    assert dataset.held_out_windows(streams, 7)[1] == windows.epoch_windows <= 64


@pytest.mark.slow
def test_batches_are_uniform_steps_with_what_followed(tmp_path: Path, budget: int) -> None:
    episodes = made(tmp_path / "data")
    dataset = open_dataset(tmp_path / "data", budget=budget)
    batches = dataset.batches(64, count=2, seed=3, gamma=0.9)
    counts: Counter[tuple[int, int]] = Counter()
    for number in range(60):
        found = batches.read(number)
        assert found.reward.shape == (2, 64)
        for i in np.ndindex(2, 64):
            which, at = (int(x) for x in found.obs["place"][i])
            counts[which, at] += 1
            assert tuple(found.next_obs["place"][i]) == (which, at + 1)
            np.testing.assert_array_equal(found.mask[i], episodes[which].mask[at])
            np.testing.assert_array_equal(found.next_mask[i], episodes[which].mask[at + 1])
            assert found.action[i] == episodes[which].action[at]
            assert found.terminated[i] == episodes[which].terminated[at]
            to_go = sum(0.9**k * float(r) for k, r in enumerate(episodes[which].reward[at:]))
            assert found.return_to_go[i] == pytest.approx(to_go, rel=1e-5, abs=1e-5)
    steps = sum(len(episode.reward) for episode in episodes)
    expected = 60 * 128 / steps
    assert len(counts) == steps
    chi_squared = sum((counts[which, at] - expected) ** 2 / expected for which, at in counts)
    assert chi_squared < steps + 5 * np.sqrt(2 * steps)
    jax.tree.map(np.testing.assert_array_equal, batches.read(5), dataset.batches(64, count=2, seed=3, gamma=0.9).read(5))
    assert dataset.batches(4).read(0).return_to_go is None


def test_held_out_games_are_in_no_training_window_or_batch(tmp_path: Path) -> None:
    made(tmp_path / "data", 40, seats=2)
    dataset = open_dataset(tmp_path / "data", held_out=0.2)
    held = set(dataset.held_out.tolist())
    assert len(held) == 8
    assert {number ^ 1 for number in held} == held, "the two seats of a game stay together"
    trained = {int(e) for number in range(80) for e in dataset.windows(4, 5).read(number).episode.ravel()}
    drawn = {int(e) for number in range(40) for e in dataset.batches(64).read(number).episode.ravel()}
    assert trained == drawn == set(range(40)) - held
    apart = {int(e) for number in range(80) for e in dataset.windows(4, 5, held_out=True).read(number).episode.ravel()}
    assert apart == held
    np.testing.assert_array_equal(open_dataset(tmp_path / "data", held_out=0.2).held_out, dataset.held_out)


@pytest.mark.parametrize(("held_out", "words"), [(1.0, "expected a share"), (True, "expected a share"), (0.99, "none is left")])
def test_a_share_that_leaves_nothing_is_refused(tmp_path: Path, held_out: float, words: str) -> None:
    made(tmp_path / "data", 3)
    with pytest.raises(ConfigError, match=words):
        open_dataset(tmp_path / "data", held_out=held_out)
