"""Recording: what is in a dataset is what was seen and done, whole episodes of it, all that were begun."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax.collect.demos import Dataset, DatasetInfo, check_dataset, open_fitting
from rljax.collect.demos.schema import tree_of
from rljax.collect.environments import make_game
from rljax.core.environments.spaces import head_sizes
from rljax.core.environments.wrappers import FlattenObservation
from rljax.core.errors import ConfigError
from rljax.core.games.versus import OnePlayer
from rljax.envs import TicTacToe, make_env
from rljax.run.demos import recording
from rljax.run.demos.sources import find_cast
from rljax.run.demos.writer import DatasetWriter, Episode, write_dataset
from tests.collect.demos.made import INFO, episodes
from tests.league.test_scripted import FirstCell
from tests.run.tiny_runs import assert_refused

TINY_PPO = rljax.PPOConfig(env="CartPole-v1", num_envs=2, num_steps=4, num_minibatches=1, network={"hidden": [8]})


def trained(config: Any, **changes: Any) -> tuple[Any, Any]:
    agent = rljax.make_agent(config.replace(**changes))
    return agent, agent.init(jax.random.key(3))


def whole(dataset: Dataset) -> list[dict[str, np.ndarray]]:
    return [dataset.episode(number) for number in range(dataset.num_episodes)]


def assert_same_episodes(first: Dataset, second: Dataset) -> None:
    assert first.num_episodes == second.num_episodes
    for name in ("length", "returns", "seat", "game"):
        np.testing.assert_array_equal(getattr(first.episodes, name), getattr(second.episodes, name))
    for one, other in zip(whole(first), whole(second), strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "network"),
    [("CartPole-v1", {"hidden": [8]}), ("TMaze-v0", {"type": "gru", "hidden": [8], "size": 8}), ("Pendulum-v1", {"hidden": [8]})],
)
def test_a_greedy_agent_did_what_act_returns_for_what_it_saw(tmp_path: Path, env: str, network: dict[str, Any]) -> None:
    agent, state = trained(TINY_PPO, env=env, network=network)
    dataset = rljax.demonstrations((agent, state), tmp_path / "data", num_episodes=5, max_steps=30)
    assert sorted(dataset.episodes.game.tolist()) == list(range(5))
    act = jax.jit(lambda obs, carry: agent.act(state, obs, carry, jax.random.key(0), True))
    for number, episode in enumerate(whole(dataset)):
        carry = None
        for step, action in enumerate(episode["action"]):
            if carry is None:
                carry = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(act, episode["obs"][0], None)[1])
            chosen, carry = act(episode["obs"][step], carry)
            np.testing.assert_allclose(chosen, action, rtol=1e-5, atol=1e-6)
        length = len(episode["action"])
        assert len(episode["obs"]) == length + 1
        assert not episode["terminated"][:-1].any()
        assert not episode["truncated"][:-1].any()
        assert episode["terminated"][-1] or episode["truncated"][-1]
        assert episode["terminated"][-1] != episode["truncated"][-1]
        assert dataset.episodes.returns[number] == pytest.approx(episode["reward"].sum(dtype=np.float64), rel=1e-6)


def test_recorded_steps_are_steps_of_the_environment(tmp_path: Path) -> None:
    """CartPole has no chance but in its first state: the environment repeats each episode from there."""
    dataset = rljax.demonstrations("random", tmp_path / "data", num_episodes=12, env="CartPole-v1", num_envs=5)
    env, params = make_env("CartPole-v1")
    step = jax.jit(lambda state, action: env.step_env(jax.random.key(0), state, action, params))
    _, state = env.reset_env(jax.random.key(0), params)
    for episode in whole(dataset):
        x, x_dot, theta, theta_dot = map(jnp.float32, episode["obs"][0])
        state = state.replace(x=x, x_dot=x_dot, theta=theta, theta_dot=theta_dot, time=0)
        for number, action in enumerate(episode["action"]):
            obs, state, reward, terminated, _ = step(state, action)
            np.testing.assert_allclose(obs, episode["obs"][number + 1], rtol=1e-4, atol=1e-5)
            assert reward == episode["reward"][number]
            assert bool(terminated) == bool(episode["terminated"][number])
    assert len({episode["obs"].tobytes() for episode in whole(dataset)}) == 12
    assert dataset.info.env == "CartPole-v1"
    check_dataset(dataset, env, params, "CartPole-v1")


def test_games_are_recorded_from_every_seat_as_they_were_played(tmp_path: Path) -> None:
    """The moves of both seats, played again on a board in plain Python, give the recorded boards, masks and results."""
    dataset = rljax.demonstrations("random", tmp_path / "data", num_episodes=30, env="TicTacToe-v0", num_envs=16)
    episodes = whole(dataset)
    for game in range(30):
        first, second = (
            next(i for i in range(60) if (dataset.episodes.game[i], dataset.episodes.seat[i]) == (game, seat)) for seat in (0, 1)
        )
        moves = sum(len(episodes[i]["action"]) for i in (first, second))
        board = [-1] * 9
        for move in range(moves):
            seat, number = move % 2, move // 2
            episode = episodes[(first, second)[seat]]
            assert episode["mask"][number].tolist() == [cell < 0 for cell in board]
            action = int(episode["action"][number])
            assert board[action] < 0
            board[action] = seat
        lines = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
        won = [any(all(board[cell] == seat for cell in line) for line in lines) for seat in (0, 1)]
        for seat, i in enumerate((first, second)):
            assert episodes[i]["reward"].sum() == float(won[seat]) - float(won[1 - seat])
            assert not episodes[i]["reward"][:-1].any()
            assert episodes[i]["terminated"][-1]


@pytest.mark.slow
def test_a_scripted_player_is_recorded_at_its_own_seats_against_each_opponent(tmp_path: Path) -> None:
    dataset = rljax.demonstrations(
        "first", tmp_path / "data", num_episodes=24, env=FirstCell(), against=["random", "first"], num_envs=6
    )
    assert dataset.info.recorded["against"] == ["random", "first"]
    assert dataset.episodes.seat.tolist() == [game % 2 for game in range(24)]
    for game, episode in enumerate(whole(dataset)):
        np.testing.assert_array_equal(episode["action"], episode["mask"][:-1].argmax(axis=1))
        if game // 6 % 2:  # against itself it repeats the same two games, one for each seat
            assert episode["action"].tolist() == ([0, 2, 4, 6] if game % 2 == 0 else [1, 3, 5])
    # One game at a time: each opponent is met from both seats.
    single = rljax.demonstrations(
        "first", tmp_path / "single", num_episodes=4, env=FirstCell(), against=["random", "self"], num_envs=1
    )
    assert single.episodes.game.tolist() == [0, 1, 1, 2, 3, 3]
    assert single.episodes.seat.tolist() == [0, 0, 1, 1, 0, 1]
    one = rljax.demonstrations("first", tmp_path / "seat", num_episodes=4, env=FirstCell(), against="random", seat=1)
    assert set(one.episodes.seat) == {1}


def test_openings_are_not_recorded_and_make_games_differ(tmp_path: Path) -> None:
    dataset = rljax.demonstrations("first", tmp_path / "data", num_episodes=16, env=FirstCell(), openings=2)
    episodes = whole(dataset)
    assert all(episode["mask"][0].sum() == 7 - seat for episode, seat in zip(episodes, dataset.episodes.seat, strict=True))
    assert len({episode["action"].tobytes() for episode in episodes}) > 4


@pytest.mark.slow
def test_a_search_player_is_recorded(tmp_path: Path) -> None:
    dataset = rljax.demonstrations("mcts", tmp_path / "data", num_episodes=8, env=TicTacToe(), against="random", simulations=16)
    assert dataset.episodes.returns.mean() > 0.5
    assert dataset.info.recorded["player"] == "mcts"


@pytest.mark.slow
def test_recorded_games_of_agents_with_frames_hold_what_the_game_shows_and_clones_stack_it(tmp_path: Path) -> None:
    """The frames that the agent saw are the observations of the episode's steps before, since these are the seat's own moves."""
    config = rljax.SelfPlayConfig(
        env="TicTacToe-v0", frame_stack=3, num_envs=2, num_steps=4, num_minibatches=1, network={"hidden": [8]}
    )
    agent, state = trained(config)
    dataset = rljax.demonstrations((agent, state), tmp_path / "data", num_episodes=8, against="random", openings=1)
    for episode in whole(dataset):
        obs = episode["obs"][: len(episode["action"])]
        stacked = np.concatenate([np.concatenate([obs[:1]] * shift + [obs[: len(obs) - shift]]) for shift in (2, 1, 0)], axis=-1)
        wanted, _ = agent.act(
            state, jnp.asarray(stacked), None, jax.random.key(0), True, jnp.asarray(episode["mask"][: len(obs)])
        )
        np.testing.assert_array_equal(episode["action"], wanted)
    clone = rljax.BCConfig(
        env="TicTacToe-v0", dataset=str(tmp_path / "data"), frame_stack=3, num_envs=4, num_steps=8,
        num_minibatches=1, network={"hidden": [8]}, total_timesteps=32 * 300, learning_rate=1e-2, held_out=0.0, eval_every=None
    )  # fmt: skip
    accuracy = np.asarray(rljax.fit(clone).metrics["train/accuracy"])
    assert accuracy[-10:].mean() > 0.95 > accuracy[0]
    # For what the clone reads, the agent does what it did.
    game, params = make_game(clone)
    window = open_fitting(clone, OnePlayer(game), params).windows(2, 16).read(0)
    wanted, _ = agent.act(state, window.obs, None, jax.random.key(0), True, window.mask)
    np.testing.assert_array_equal(window.action, wanted)


@pytest.mark.slow
def test_an_interrupted_recording_continues_with_the_same_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C within a round keeps all episodes of those before it, although they are too few for a shard."""
    how: dict[str, Any] = {"num_episodes": 22, "env": "CartPole-v1", "num_envs": 4, "seed": 5}
    straight = rljax.demonstrations("random", tmp_path / "straight", **how)
    assert len(list((tmp_path / "straight" / "shards").iterdir())) == 6  # a kill would lose one round, more than an eighth
    add, added = DatasetWriter.add, []

    def interrupted(self: DatasetWriter, episode: Episode) -> None:
        add(self, episode)
        added.append(episode)
        if len(added) == 13:
            raise KeyboardInterrupt

    monkeypatch.setattr(DatasetWriter, "add", interrupted)
    monkeypatch.setattr(recording, "PARTS", 1)
    with pytest.raises(rljax.TrainingInterrupted, match="12 of 22 episodes are in"):
        rljax.demonstrations("random", tmp_path / "parts", **how)
    monkeypatch.undo()
    part = rljax.open_dataset(tmp_path / "parts")
    assert part.num_episodes == part.episodes_begun == 12
    assert any("12 of 22 episodes" in line for line in part.describe())
    with pytest.raises(ConfigError, match="seed = 5, and cannot go on with 6"):
        rljax.demonstrations("random", tmp_path / "parts", **{**how, "seed": 6}, resume=True)
    with pytest.raises(ConfigError, match="exists already"):
        rljax.demonstrations("random", tmp_path / "parts", **how)
    continued = rljax.demonstrations("random", tmp_path / "parts", **how, shard_bytes=2000, resume=True)
    assert_same_episodes(continued, straight)
    assert_same_episodes(rljax.demonstrations("random", tmp_path / "parts", **how, resume=True), straight)


RECORD = """
import sys, rljax
rljax.demonstrations("random", sys.argv[1], num_episodes=1200, env="CartPole-v1", num_envs=8, shard_bytes=4000,
                     resume=True, progress=lambda line: print(line, flush=True))
"""


@pytest.mark.slow
def test_a_killed_recording_is_whole_up_to_its_last_shard_and_continues(tmp_path: Path) -> None:
    path = tmp_path / "data"
    killed = 0
    for kill in range(2):
        with subprocess.Popen([sys.executable, "-c", RECORD, str(path)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(3 + 9 * kill):
                process.stdout.readline()
            time.sleep(0.004 * kill)
            process.send_signal(signal.SIGKILL)
        killed += process.returncode == -signal.SIGKILL
        dataset = rljax.open_dataset(path)  # every file is as it was written
        assert dataset.num_episodes == dataset.episodes_begun
        assert dataset.num_episodes % 8 == 0
    assert killed == 2
    how: dict[str, Any] = {"num_episodes": 1200, "env": "CartPole-v1", "num_envs": 8, "shard_bytes": 4000}
    straight = rljax.demonstrations("random", tmp_path / "straight", **how)
    resumed = rljax.demonstrations("random", path, **how, resume=True)
    assert_same_episodes(resumed, straight)
    assert resumed.digest == straight.digest  # runs that read one go on with the other


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"source": "rando", "env": "CartPole-v1"}, "did you mean 'random'"),
        ({"source": "random"}, "give the environment"),
        ({"source": "runs/typo"}, "runs/typo: no run there"),
        ({"source": "random", "env": "CartPole-v1", "against": "random"}, "no opponent"),
        ({"source": "random", "env": "CartPole-v1", "simulations": 3}, "expected 0"),
        ({"source": "random", "env": "CartPole-v1", "num_episodes": 0}, "num_episodes = 0"),
        ({"source": "random", "env": "TicTacToe-v0", "against": []}, "at least one opponent"),
        ({"source": "random", "env": "TicTacToe-v0", "against": "sefl"}, "did you mean 'self'"),
        ({"source": "random", "env": "TicTacToe-v0", "seat": 1}, "recorded at all seats"),
        ({"source": "random", "env": "TicTacToe-v0", "against": "random", "seat": 2}, "seat = 2: expected a team"),
        ({"source": "mcts", "env": "KuhnPoker-v0"}, "KuhnPoker-v0: hides a part of its state"),
        ({"source": 3}, "source = 3: expected"),
        ({"source": "random", "env": "CartPole-v1", "num_envs": 0}, "num_envs = 0, expected an integer of at least 1"),
    ],
)
def test_bad_arguments_are_one_line_and_leave_nothing(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rljax.demonstrations(path=tmp_path / "data", **{"num_episodes": 3, **arguments})
    assert not list(tmp_path.iterdir())


@struct.dataclass
class ClockParams:
    end: int = 100
    broken: int = 100


class ClockState(NamedTuple):
    time: Any
    action: Any


class Clock(rljax.Environment):
    """Observe the time and the action that was taken; after `broken` steps, NaN."""

    name = "Clock"
    default_params = ClockParams()

    def reset_env(self, key: jax.Array, params: ClockParams) -> tuple[Any, ClockState]:
        state = ClockState(jnp.int32(0), jnp.int32(-1))
        return self.seen(state, params), state

    def seen(self, state: ClockState, params: ClockParams) -> dict[str, jax.Array]:
        time = jnp.where(state.time >= params.broken, jnp.nan, state.time)
        return {"time": time[None], "was": state.action[None].astype(jnp.float32)}

    def step_env(self, key: jax.Array, state: ClockState, action: Any, params: ClockParams) -> Any:
        state = ClockState(state.time + 1, jnp.asarray(action, jnp.int32))
        return self.seen(state, params), state, jnp.float32(1), state.time >= params.end, {}

    def observation_space(self, params: ClockParams) -> Any:
        return rljax.Dict({"time": rljax.Box(0.0, 100.0, (1,)), "was": rljax.Box(-1.0, 1.0, (1,))})

    def action_space(self, params: ClockParams) -> Any:
        return rljax.Discrete(2)


def recorded_clock(path: Path, **fields: Any) -> Dataset:
    agent, state = trained(TINY_PPO, env=Clock(), flatten_observations=True, **fields)
    dataset = rljax.demonstrations((agent, state), path, num_episodes=3, sample=True)
    assert dataset.info.wrappers == {"flatten_observations": True, **fields}
    return dataset


@pytest.mark.slow
def test_a_run_is_recorded_with_the_wrappers_that_it_was_trained_with(tmp_path: Path) -> None:
    fields = {"randomize": {"end": [9, 9]}, "sticky_actions": 0.999, "action_repeat": 4, "frame_stack": 2}
    dataset = recorded_clock(tmp_path / "data", **fields)
    actions = np.stack([episode["action"] for episode in whole(dataset)])
    assert len({*actions.ravel()}) == 2
    for episode in whole(dataset):
        assert episode["reward"].tolist() == [4, 4, 1]
        assert episode["terminated"].tolist() == [False, False, True]
        first = episode["action"][0]  # what sticks is not what was decided
        assert episode["obs"].tolist() == [[0, -1, 0, -1], [0, -1, 4, first], [4, first, 8, first], [8, first, 9, first]]
    assert "environment  Clock, randomize = {'end': [9, 9]}, sticky_actions = 0.999" in dataset.describe()[0]
    with pytest.raises(ConfigError, match=r"was begun with wrappers = \{.*'frame_stack': 2}, and cannot go on with \{"):
        rljax.demonstrations(
            trained(TINY_PPO, env=Clock(), flatten_observations=True), tmp_path / "data", num_episodes=3, sample=True, resume=True
        )
    clone = rljax.BCConfig(env=Clock(), dataset=str(tmp_path / "data"), num_envs=2, num_steps=2, network={"hidden": [4]})
    same = rljax.make_agent(clone.replace(flatten_observations=True, **fields))
    jax.eval_shape(same.step, jax.eval_shape(same.init, jax.random.key(0)))
    other = rljax.make_agent(clone.replace(flatten_observations=True))
    with pytest.raises(ConfigError, match=r"with observations \[4\], but those .* are \[2\]: .* and frame_stack = 2"):
        jax.eval_shape(other.step, jax.eval_shape(other.init, jax.random.key(0)))


def test_values_that_leave_steps_as_they_are_are_no_wrappers_of_a_recording() -> None:
    usual = {"action_repeat": 1, "sticky_actions": 0.0}
    for config in (TINY_PPO.replace(env=Clock(), **usual), rljax.SelfPlayConfig(env="BiasedRPS-v0", **usual)):
        assert find_cast((rljax.make_agent(config), None)).info.wrappers == {}


def test_episodes_that_a_limit_or_a_nan_ends_are_recorded_so(tmp_path: Path) -> None:
    dataset = recorded_clock(tmp_path / "data", randomize={"broken": [2, 3]}, end_on_nan=True, time_limit=2)
    ends = [(*episode["reward"].tolist(), bool(episode["terminated"][-1])) for episode in whole(dataset)]
    assert set(ends) == {(1, 0, True), (1, 1, False)}
    assert all(np.isfinite(episode["obs"]).all() for episode in whole(dataset))


def test_a_player_without_training_meets_a_run_of_its_game() -> None:
    config = rljax.SelfPlayConfig(env="TicTacToe-v0", num_envs=2, num_steps=4, num_minibatches=1)
    cast = find_cast("random", env="TicTacToe-v0", against=[(rljax.make_agent(config), None)])
    assert cast.info.recorded["against"] == ["self_play"]
    other = rljax.make_agent(config.replace(time_limit=3))
    with pytest.raises(ConfigError, match="with time_limit = 3, but 'none' in random: expected one game"):
        find_cast("random", env="TicTacToe-v0", against=[(other, None)])


def test_a_folder_that_is_no_dataset_is_said_to_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["demo", str(tmp_path)], "has no dataset.json, so it is no dataset itself", capsys)


def test_a_dataset_where_a_run_is_wanted_is_told_what_takes_datasets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rljax.demonstrations("random", "data", env="CartPole-v1", num_episodes=1, max_steps=8)
    told = "data: a dataset, no run; rljax demo data describes it, and rljax train bc --dataset data learns from it"
    for command in (["demo", "data", "--out", "copy"], ["eval", "data"], ["show", "data"], ["train", "data"]):
        assert_refused(command, told, capsys)
    assert not Path("copy").exists()


def test_a_dataset_of_another_environment_is_refused_by_both_names(tmp_path: Path) -> None:
    dataset = rljax.demonstrations("random", tmp_path / "data", num_episodes=2, env="CartPole-v1")
    env, params = make_env("Acrobot-v1")
    with pytest.raises(ConfigError, match="was recorded in CartPole-v1, but env = 'Acrobot-v1'"):
        check_dataset(dataset, env, params, "Acrobot-v1")
    env, params = make_env("Acrobot-v1")
    with pytest.raises(ConfigError, match=r"observations \[4\], but those of env = 'CartPole-v1' are \[6\]"):
        check_dataset(dataset, env, params, "CartPole-v1")
    env, params = make_env("TargetPick-v0")
    info = DatasetInfo("TargetPick-v0", {}, env.observation_space(params), env.action_space(params), masks=False)
    flat = FlattenObservation(env)
    check_dataset(dataset._replace(info=info), env, params, "TargetPick-v0")
    with pytest.raises(ConfigError, match=r"but the policy sees \[98\]: expected flatten_observations = false"):
        check_dataset(dataset._replace(info=info), flat, params, "TargetPick-v0")
    env, params = make_env("CartPole-v1")
    numbers = dataset.info._replace(action_space=rljax.Box(-1.0, 1.0, (2,)))
    with pytest.raises(ConfigError, match=r"with actions \[2\], but those of env = 'CartPole-v1' are Discrete\(2\)"):
        check_dataset(dataset._replace(info=numbers), env, params, "CartPole-v1")


@pytest.mark.long
@pytest.mark.parametrize("actions", ["gridnet", "cells", "units"])
def test_worker_rushes_of_microrts_can_be_played_again_from_their_records(tmp_path: Path, actions: str) -> None:
    """Both seats' recorded actions, given to the game, lead to the recorded observations; every action is legal."""
    params = {"map_name": "basesWorkers8x8", "actions": actions, "observation": "entities", "max_cycles": 150}
    dataset = rljax.demonstrations("workerrush", tmp_path / "data", num_episodes=1, env="MicroRTS-v0", env_params=params)
    game, game_params = make_env("MicroRTS-v0", **params)
    both = [dataset.episode(seat) for seat in range(2)]
    space = dataset.info.action_space
    step = jax.jit(lambda state, action: game.step_env(jax.random.key(0), state, action, game_params))
    obs, state = jax.jit(game.reset_env)(jax.random.key(0), game_params)
    for number in range(len(both[0]["reward"])):
        for seat in range(2):
            np.testing.assert_allclose(obs["entities"][seat], both[seat]["obs.entities"][number], atol=1e-6)
        action = {
            leaf: np.stack([episode[leaf][number] for episode in both]) for leaf in both[0] if leaf.partition(".")[0] == "action"
        }
        obs, state, reward, terminated, _ = step(state, tree_of("action", space, action))
        assert [float(x) for x in reward] == [float(episode["reward"][number]) for episode in both]
        assert all(bool(episode["terminated"][number]) == bool(terminated) for episode in both)
    assert terminated
    for episode in both:
        _assert_legal(episode, head_sizes(space), space)


def _assert_legal(episode: dict[str, np.ndarray], sizes: Any, space: Any) -> None:
    """Every head that is read takes an action that the mask allows after the earlier heads."""
    names = [f"action.{name}" for name in getattr(space, "spaces", {})] or ["action"]
    action = np.stack([episode[name] for name in names], axis=-1) if len(names) > 1 else episode["action"]
    starts = np.cumsum([0, *sizes[:-1]])
    for mask, heads in zip(episode["mask"][:-1], action, strict=True):
        for number, (start, head) in enumerate(zip(starts, heads, strict=True)):
            condition = None if getattr(space, "only_if", None) is None else space.only_if[number]
            if condition is not None and heads[condition[0]] not in condition[1]:
                continue
            chosen = start + head
            assert mask[chosen] if mask.ndim == 1 else mask[chosen, chosen]
            if mask.ndim == 2:
                assert all(mask[starts[before] + heads[before], chosen] for before in range(number))


def test_an_episode_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    good = episodes(2)
    bad: Episode = good[1]._replace(obs={"place": good[1].obs["place"]})
    with pytest.raises(ConfigError, match=r"lacks obs\.picture"):
        write_dataset(tmp_path / "a", INFO, [good[0], bad])
    bad = good[1]._replace(action=np.zeros((len(good[1].reward), 2), np.int32))
    with pytest.raises(ConfigError, match=r"action is \[\[2\], 'int32'\] in this episode, and \[\[\], 'int32'\]"):
        write_dataset(tmp_path / "b", INFO, [good[0], bad])
    bad = good[0]._replace(obs={**good[0].obs, "place": good[0].obs["place"].astype(jnp.float8_e5m2)})
    with pytest.raises(ConfigError, match=r"obs\.place is float8_e5m2, expected one of bool, uint8"):
        write_dataset(tmp_path / "c", INFO, [bad])


def test_halves_are_stored_as_floats(tmp_path: Path) -> None:
    """NumPy's files have no bfloat16, and a dataset that had it could be written and not be read."""
    (episode,) = episodes(1)
    half = episode._replace(obs={**episode.obs, "place": np.asarray(jnp.asarray(episode.obs["place"], jnp.bfloat16))})
    write_dataset(tmp_path / "a", INFO, [half])
    stored = rljax.open_dataset(tmp_path / "a").episode(0)["obs.place"]
    assert stored.dtype == np.float32
    np.testing.assert_array_equal(stored, half.obs["place"].astype(np.float32))
