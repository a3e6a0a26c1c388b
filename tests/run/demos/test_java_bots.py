"""Recordings of the bots of microRTS' Java engine: games in MicroRTS-v0 with the same actions are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.errors import ConfigError
from rljax.envs import make_env
from rljax.envs.microrts.java.engine import Java

WEIGHTS = {"win_weight": 10.0, "resource_weight": 0.1, "worker_weight": 0.2, "combat_weight": 0.4, "attack_weight": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"actions": "cells"},
        {"actions": "cells", "wait_until_change": True},
        pytest.param({"actions": "gridnet"}, marks=pytest.mark.long),
    ],
)
def test_a_recorded_game_can_be_played_again_in_jax(java_engine: Java, tmp_path: Path, options: dict[str, Any]) -> None:
    env_params: dict[str, Any] = {"wait_cycles": 5, **options, **WEIGHTS}
    path = tmp_path / "games"
    data = rljax.demonstrations("java:lightrush", path, num_episodes=1, env="MicroRTS-v0", env_params=env_params)
    assert (list(data.episodes.seat), list(data.episodes.game)) == ([0, 1], [0, 0])
    assert data.describe()[1].startswith("recorded     player java:lightrush, against ['itself'], num_episodes 1")
    first, second = (data.episode(i) for i in range(2))
    env, params = make_env("MicroRTS-v0", **env_params)
    step = jax.jit(lambda state, action: env.step_env(jax.random.key(0), state, action, params))
    legal = jax.jit(lambda state: env.action_mask(state, params))
    obs, state = env.reset_env(jax.random.key(0), params)
    assert len(first["reward"]) == len(second["reward"]) > 50
    for t in range(len(first["reward"])):
        mask = legal(state)
        for player, episode in enumerate((first, second)):
            np.testing.assert_array_equal(episode["obs"][t], obs[player])
            np.testing.assert_array_equal(episode["mask"][t], mask[player])
        obs, state, reward, terminated, _ = step(state, jnp.stack([first["action"][t], second["action"][t]]))
        np.testing.assert_allclose([first["reward"][t], second["reward"][t]], reward, atol=1e-6)
        assert terminated == first["terminated"][t] == second["terminated"][t]
    np.testing.assert_array_equal(first["obs"][-1], obs[0])
    assert first["terminated"][-1]
    assert not first["truncated"].any()
    assert first["reward"].sum() != 0


@pytest.mark.slow
def test_bots_are_recorded_at_seats_in_turn_against_others_after_random_openings(java_engine: Java, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"num_episodes": 6, "env": "MicroRTS-v0", "env_params": {"wait_cycles": 5}, "num_envs": 2}
    against = ["java:passive", "java:randombiased"]
    lines: list[str] = []
    data = rljax.demonstrations(
        "java:workerrush", tmp_path / "a", against=against, openings=4, progress=lines.append, **arguments
    )
    # Episodes of games that are played side by side come as they end.
    assert dict(zip(data.episodes.game.tolist(), data.episodes.seat.tolist(), strict=True)) == {i: i % 2 for i in range(6)}
    # A bot that does nothing loses; the one that draws at random may not.
    won = dict(zip(data.episodes.game.tolist(), data.episodes.returns.tolist(), strict=True))
    assert [won[i] for i in (0, 1, 4, 5)] == [1.0] * 4
    assert len({data.episode(i)["obs"][0].tobytes() for i in range(6)}) == 6
    assert lines[-1] == f"6 of 6 episodes, {int(data.episodes.length.sum()):,} steps"
    cut = rljax.demonstrations("java:workerrush", tmp_path / "b", against=against, seat=1, max_steps=7, **arguments)
    assert (set(cut.episodes.seat), set(cut.episodes.length)) == ({1}, {7})
    assert cut.episode(0)["truncated"].tolist() == [False] * 6 + [True]
    assert not cut.episode(0)["terminated"].any()


@pytest.mark.slow
def test_games_begin_after_their_openings_where_learners_find_them(java_engine: Java, tmp_path: Path) -> None:
    """Units without an order wait for `wait_cycles` in openings, too: times are multiples of 5. No game ends in its opening."""
    how: dict[str, Any] = {"env": "MicroRTS-v0", "num_envs": 1, "env_params": {"wait_cycles": 5, "max_cycles": 60}}
    bots = ["java:passive", "java:randombiased"]
    data = rljax.demonstrations("java:coac", tmp_path / "a", num_episodes=4, against=bots, openings=4, max_steps=3, **how)
    # Each opponent is met from both seats.
    assert dict(zip(data.episodes.game.tolist(), data.episodes.seat.tolist(), strict=True)) == {0: 0, 1: 0, 2: 1, 3: 1}
    for number in range(4):
        obs = data.episode(number)["obs"]
        cycles, remaining = 60 * obs[0, ..., 36], 200 * obs[0, ..., 31]
        assert cycles.max() > 0
        np.testing.assert_allclose(cycles % 5, 0, atol=1e-3)
        np.testing.assert_allclose(np.round(remaining) % 5, 0, atol=1e-3)
    with pytest.raises(ConfigError, match="openings = 100: random moves ended 20 games in a row, expected fewer of them"):
        rljax.demonstrations("java:coac", tmp_path / "b", num_episodes=1, openings=100, **how)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"source": "java:coak"}, "Java bot 'coak': did you mean 'coac'?"),
        ({"against": "java:coak"}, "Java bot 'coak': did you mean 'coac'?"),
        (
            {"against": "workerrush"},
            "against 'workerrush': expected self or another bot of the Java engine, such as java:workerrush",
        ),
        ({"env": None}, "java:coac: a bot of MicroRTS: give the game: env = 'MicroRTS-v0' (--env)"),
        ({"env": "ConnectFour-v0"}, "java:coac: plays MicroRTS-v0 with actions = 'cells' or 'gridnet', not 'ConnectFour-v0'"),
        ({"env_params": {"actions": "units"}}, "java:coac: plays MicroRTS-v0 with actions = 'cells' or 'gridnet'"),
        ({"seat": 0}, "seat = 0: a player against itself is recorded at all seats; give an opponent (--against)"),
        ({"seat": 2, "against": "java:passive"}, "seat = 2: expected a team of MicroRTS-v0, 0 to 1"),
        ({"sample": True}, "java:coac: a bot of the Java engine has no policy to sample from"),
        ({"seat": 1.0, "against": "java:passive"}, "seat = 1.0: expected a team of MicroRTS-v0, 0 to 1"),
        ({"env": "MicroRTSBots-v0"}, "java:coac: plays MicroRTS-v0 with actions = 'cells' or 'gridnet', not 'MicroRTSBots-v0'"),
        ({"source": "workerrush", "against": "java:droplet"}, "'java:droplet': no run folder, and no player of MicroRTS-v0"),
    ],
)
def test_bad_arguments_are_one_line_and_leave_nothing(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    given = {"source": "java:coac", "env": "MicroRTS-v0", "num_episodes": 2, **arguments}
    with pytest.raises(ConfigError) as error:
        rljax.demonstrations(given.pop("source"), tmp_path / "games", **given)
    assert str(error.value).startswith(words)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "games").exists()


@pytest.mark.slow
def test_others_are_recorded_against_java_bots_in_compiled_games(java_engine: Java, tmp_path: Path) -> None:
    assert java_engine.maps()
    how: dict[str, Any] = {"env": "MicroRTS-v0", "env_params": {"wait_cycles": 5, "max_cycles": 600}, "num_episodes": 4}
    data = rljax.demonstrations("passive", tmp_path / "games", against="java:workerrush", **how)
    assert list(data.episodes.seat) == [0, 1, 0, 1]
    assert data.episodes.returns.tolist() == [-1.0] * 4
