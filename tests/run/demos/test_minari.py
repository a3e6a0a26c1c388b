"""Datasets of Minari, made here with Gymnasium, as datasets of rljax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rljax
from rljax.cli.main import main
from rljax.collect.demos import check_dataset
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.errors import ConfigError
from rljax.envs import make_env
from rljax.run.demos.minari import import_minari

minari: Any = pytest.importorskip("minari")
pytest.importorskip("h5py")
gymnasium: Any = pytest.importorskip("gymnasium")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A dataset `test/NAME-v0` of a few random episodes, and the same episodes from Gymnasium."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))

    def collect(env: Any, name: str, episodes: int = 4, steps: int = 12) -> list[dict[str, Any]]:
        collector, found = minari.DataCollector(env), []
        env.action_space.seed(0)
        for number in range(episodes):
            obs, _ = collector.reset(seed=number)
            episode: dict[str, Any] = {"obs": [obs], "action": [], "reward": [], "terminated": False}
            for _ in range(steps):
                action = env.action_space.sample()
                obs, reward, episode["terminated"], truncated, _ = collector.step(action)
                episode["obs"].append(obs)
                episode["action"].append(action)
                episode["reward"].append(reward)
                if episode["terminated"] or truncated:
                    break
            found.append(episode)
        collector.create_dataset(dataset_id=f"test/{name}-v0", algorithm_name="random")
        return found

    return collect


def test_a_minari_dataset_is_imported_as_gymnasium_played_it(tmp_path: Path, collected: Any) -> None:
    episodes = collected(gymnasium.make("CartPole-v1"), "cartpole")
    dataset = import_minari("test/cartpole-v0", tmp_path / "data")
    assert dataset.info.env == "CartPole-v1"
    assert dataset.num_episodes == len(episodes)
    for number, episode in enumerate(episodes):
        found = dataset.episode(number)
        np.testing.assert_allclose(found["obs"], np.stack(episode["obs"]), rtol=1e-6)
        assert found["action"].tolist() == episode["action"]
        assert found["action"].dtype == np.int32
        assert found["reward"].tolist() == episode["reward"]
        assert found["terminated"][-1] == episode["terminated"]
        assert found["truncated"][-1] == (not episode["terminated"]), "an episode that was not finished is cut"
    check_dataset(dataset, *make_env("CartPole-v1"), "CartPole-v1")
    assert isinstance(dataset.info.action_space, Discrete)


class Odd(gymnasium.Env):  # type: ignore[misc]
    """Dictionaries and tuples of 64-bit numbers, and actions that count from 3."""

    observation_space = gymnasium.spaces.Dict({
        "place": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64),
        "flag": gymnasium.spaces.Box(0, 1, (1,), np.bool_),
        "gray": gymnasium.spaces.Box(0, 255, (3, 4), np.uint8),
        "count": gymnasium.spaces.Discrete(9, start=2),
        "both": gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(5), gymnasium.spaces.Box(0, 255, (2, 2), np.uint8))),
    })  # fmt: skip
    action_space = gymnasium.spaces.Discrete(4, start=3)
    time = 0

    def _obs(self) -> Any:
        return {
            "place": np.full(2, self.time / 7), "both": (np.int64(self.time % 5), np.full((2, 2), self.time, np.uint8)),
            "flag": np.array([self.time % 2 == 1]), "gray": np.full((3, 4), self.time, np.uint8),
            "count": np.int64(2 + self.time),
        }  # fmt: skip

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return self._obs(), {}

    def step(self, action: int) -> Any:
        assert 3 <= action < 7
        self.time += 1
        return self._obs(), float(action), self.time == 5, False, {}


def test_nested_spaces_become_32_bit_and_actions_count_from_zero(tmp_path: Path, collected: Any) -> None:
    episodes = collected(Odd(), "odd")
    dataset = import_minari("test/odd-v0", tmp_path / "data", env="Odd-v0")
    batch = dataset.batches(32).read(0)
    assert dataset.info.env == "Odd-v0"
    assert batch.obs["place"].dtype == np.float32
    assert batch.obs["both"][1].dtype == np.uint8
    np.testing.assert_array_equal(batch.obs["both"][1][:, 0, 0, 0] % 5, batch.obs["both"][0])
    np.testing.assert_array_equal(batch.next_obs["both"][1], batch.obs["both"][1] + 1)
    np.testing.assert_allclose(batch.action + 3.0, batch.reward)
    np.testing.assert_array_equal(batch.obs["flag"][:, 0], batch.obs["count"] % 2 == 1)
    assert batch.obs["gray"].shape[1:] == dataset.info.observation_space.spaces["gray"].shape == (3, 4, 1)
    np.testing.assert_array_equal(batch.obs["gray"][:, 0, 0, 0], batch.obs["count"])
    assert dataset.num_steps == sum(len(episode["reward"]) for episode in episodes)
    assert isinstance(dataset.info.observation_space.spaces["place"], Box)


def test_unknown_and_unreadable_minari_datasets_are_one_line(
    tmp_path: Path, collected: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="minari:test/nothing-v0: no such dataset on this machine: minari download"):
        import_minari("test/nothing-v0", tmp_path / "data")
    with pytest.raises(ConfigError, match="minari:no id at all: no such dataset"):
        import_minari("no id at all", tmp_path / "data")
    collected(gymnasium.make("CartPole-v1"), "cartpole")
    folder = tmp_path / "minari" / "test" / "cartpole-v0"
    main(["demo", f"minari:{folder}", "--out", str(tmp_path / "data")])
    assert "CartPole-v1" in capsys.readouterr().out
    assert rljax.open_dataset(tmp_path / "data").num_episodes == 4
    (folder / "data" / "main_data.hdf5").write_bytes(b"no file of HDF5")
    with pytest.raises(ConfigError, match="cannot be read"):
        import_minari(folder, tmp_path / "again")
    assert not (tmp_path / "again").exists()
