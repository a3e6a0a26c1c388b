"""Datasets that were recorded by other rules than those of a configuration."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rljax
from rljax.collect.demos import DatasetInfo, observation_statistics, open_fitting
from rljax.collect.demos.schema import WRAPPERS
from rljax.collect.environments import make_evaluation_env, make_game
from rljax.core.errors import RljaxWarning
from rljax.core.games.versus import Versus, random_player
from rljax.envs import make_env
from rljax.run.demos.writer import Episode, write_dataset

RANGES = {"num_rounds": [2, 3]}


def recorded(path: Path, env: Any, params: Any, name: str, rules: dict[str, Any]) -> str:
    """Write a dataset of one step of an environment or game, recorded with these fields; return its folder."""
    space = env.observation_space(params)
    nothing = np.zeros(1, bool)
    episode = Episode(
        obs=np.zeros((2, *space.shape), space.dtype),
        action=np.zeros(1, np.int32),
        mask=None,
        reward=np.zeros(1, np.float32),
        terminated=~nothing,
        truncated=nothing,
    )
    info = DatasetInfo(name, {}, space, env.action_space(params), masks=False, recorded={WRAPPERS: rules})
    return str(write_dataset(path, info, [episode]))


def warned(config: Any, env: Any, params: Any) -> list[str]:
    """Return the warnings of opening the dataset of a configuration."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", RljaxWarning)
        open_fitting(config, env, params)
    return [str(warning.message) for warning in found if warning.category is RljaxWarning]


def test_a_clone_of_a_game_with_other_rules_is_told_which(tmp_path: Path) -> None:
    game, params = make_env("HabitRPS-v0")
    rules = {"randomize": RANGES, "sticky_actions": 0.25, "time_limit": 9}
    path = recorded(tmp_path / "data", game, params, "HabitRPS-v0", rules)
    config = rljax.BCConfig(env="HabitRPS-v0", dataset=path, sticky_actions=0.25, time_limit=5)
    (line,) = warned(config, *make_game(config))
    assert line == (
        f"dataset = {path!r}: was recorded with randomize = {{'num_rounds': [2, 3]}} and time_limit = 9, but the configuration "
        "has randomize = {} and time_limit = 5: set what was recorded, or the policy is evaluated by other rules, and plays no "
        "matches with the recorded players"
    )
    same = config.replace(randomize={"num_rounds": (2, 3)}, time_limit=9)
    assert warned(same, *make_game(same)) == []


def test_so_is_a_learner_of_an_environment_but_not_one_against_a_fixed_player(tmp_path: Path) -> None:
    """Matches leave the rules to the other players where an agent has learned against a fixed one."""
    env, params = make_env("CartPole-v1")
    path = recorded(tmp_path / "data", env, params, "CartPole-v1", {"sticky_actions": 0.25, "end_on_nan": True})
    config = rljax.BCConfig(env="CartPole-v1", dataset=path)
    (line,) = warned(config, *make_evaluation_env(config))
    assert "was recorded with sticky_actions = 0.25, but the configuration has sticky_actions = none: set" in line
    assert line.endswith("by other rules")
    assert warned(config.replace(sticky_actions=0.25), env, params) == []
    with pytest.warns(RljaxWarning, match="sticky_actions = none"):
        open_fitting(rljax.IQLConfig(env="CartPole-v1", dataset=path), env, params)
    game, params = make_env("HabitRPS-v0")
    path = recorded(tmp_path / "game", game, params, "HabitRPS-v0", {"action_repeat": 2})
    versus = Versus(game, random_player)
    assert warned(rljax.BCConfig(env=versus, dataset=path), versus, params) == []


@pytest.mark.parametrize("of_game", [True, False], ids=["game", "environment"])
def test_observations_without_the_frames_that_a_policy_sees_are_stacked_when_they_are_read(of_game: bool, tmp_path: Path) -> None:
    """Within the episode only, across windows, and after its last step; also in the statistics that normalise them."""
    name = "TicTacToe-v0" if of_game else "CartPole-v1"
    env, params = make_env(name)
    space, rng = env.observation_space(params), np.random.default_rng(0)
    episodes = [
        Episode(
            obs=rng.normal(size=(length + 1, *space.shape)).astype(space.dtype),
            action=np.zeros(length, np.int32),
            mask=None,
            reward=np.zeros(length, np.float32),
            terminated=np.arange(length) == length - 1,
            truncated=np.zeros(length, bool),
        )._replace(game=number)
        for number, length in enumerate([5, 1, 3])
    ]
    info = DatasetInfo(name, {}, space, env.action_space(params), masks=False)
    path = str(write_dataset(tmp_path / "data", info, episodes))
    config = rljax.BCConfig(env=name, dataset=path, frame_stack=3)
    dataset = open_fitting(config, *(make_game if of_game else make_evaluation_env)(config))
    stacked = [np.concatenate([episode.obs[np.maximum(np.arange(len(episode.obs)) - back, 0)] for back in (2, 1, 0)], -1)
               for episode in episodes]  # fmt: skip
    windows = dataset.windows(2, 2)
    for number in range(6):
        window, (_, step) = windows.read(number), windows.places(number)
        wanted = [stacked[episode][at] for episode, at in zip(window.episode.ravel(), step.ravel(), strict=True)]
        np.testing.assert_array_equal(window.obs.reshape(4, -1), wanted)
    batches = dataset.batches(32)
    batch, (episode, step) = batches.read(0), batches.places(0)
    np.testing.assert_array_equal(batch.next_obs, [stacked[e][at + 1] for e, at in zip(episode, step, strict=True)])
    statistics, every = observation_statistics(dataset), np.concatenate(stacked)
    np.testing.assert_allclose(statistics.mean, every.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(statistics.var, every.var(0), rtol=1e-4, atol=1e-6)
    without = open_fitting(config.replace(frame_stack=None), env, params)
    assert (dataset.info.frames, without.info.frames) == (3, 1)
