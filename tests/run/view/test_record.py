"""Recordings: the frames of whole episodes, the last one included, of every environment."""

from __future__ import annotations

import contextlib
import itertools
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageSequence

import rljax
from rljax.core.agent import Agent
from rljax.core.games.versus import Versus
from rljax.run.view import record as record_module
from rljax.run.view.record import Recording, record

CONFIG = rljax.PPOConfig(num_envs=2, num_steps=4, num_minibatches=1, total_timesteps=8, network={"hidden": [8]})
KEY = jax.random.key(1)


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that episodes of a few steps span several."""
    monkeypatch.setattr(record_module, "CHUNK", 4)


class Counter(rljax.Environment):
    """Ends after 10 steps; the reward is the action. Its picture has the level 20 * time everywhere; at a reset time is 0."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, rljax.EnvState]:
        return jnp.zeros(3), rljax.EnvState(jnp.int32(0))

    def step_env(self, key: jax.Array, state: rljax.EnvState, action: jax.Array, params: Any) -> Any:
        time = state.time + 1
        reward = jnp.asarray(action, jnp.float32)
        return jnp.arange(3.0) * time, rljax.EnvState(time), reward, time >= 10, {}

    def observation_space(self, params: Any) -> rljax.Box:
        return rljax.Box(-100.0, 100.0, (3,))

    def action_space(self, params: Any) -> rljax.Discrete:
        return rljax.Discrete(100)

    def render(self, state: rljax.EnvState, params: Any) -> jax.Array:
        return jnp.full((5, 7, 3), 20 * state.time, jnp.uint8)


def scripted(config: Any, act: Any) -> Agent:
    return Agent(init=lambda key: None, step=lambda state: (state, {}), act=act, config=config)


def zero(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False, mask: Any = None) -> tuple[Any, Any]:
    return jnp.int32(0), None


def agent_of(env: Any, **changes: Any) -> tuple[Agent, Any]:
    agent = rljax.make_agent(CONFIG.replace(env=env, **changes))
    return agent, jax.jit(agent.init)(jax.random.key(0))


def read_gif(path: Path) -> tuple[np.ndarray, list[int]]:
    """Pictures uint8 [K, H, W, 3] and their times in hundredths of a second."""
    pictures, times = [], []
    with Image.open(path) as gif:
        assert gif.info["loop"] == 0 or getattr(gif, "n_frames", 1) == 1
        for i in range(getattr(gif, "n_frames", 1)):
            gif.seek(i)
            pictures.append(np.asarray(gif.convert("RGB")))
            times.append(gif.info["duration"] // 10)
    return np.stack(pictures), times


def test_a_picture_stands_still_for_as_long_as_a_gif_can_show_it(tmp_path: Path) -> None:
    dark, light = np.zeros((2, 4, 4, 3), np.uint8) + np.array([0, 255], np.uint8)[:, None, None, None]
    frames = [dark] * 700 + [light] * 2
    record_module._write_gif(tmp_path / "a.gif", np.stack([dark, light]), iter(frames), len(frames), 1.0)
    pictures, times = read_gif(tmp_path / "a.gif")
    np.testing.assert_array_equal(pictures, [dark, light])
    assert times == [65535, 200]


def test_frames_are_those_of_the_states_up_to_the_one_that_ended_the_episode(tmp_path: Path) -> None:
    result = record(scripted(CONFIG.replace(env=Counter()), zero), None, tmp_path / "a.gif", key=KEY, episodes=2)
    assert result.path == tmp_path / "a.gif"
    assert result.num_frames == 22
    np.testing.assert_array_equal(result.lengths, [10, 10])
    np.testing.assert_array_equal(result.ended, [True, True])
    pictures, times = read_gif(result.path)
    np.testing.assert_array_equal(pictures[:, 0, 0, 0], [*range(0, 220, 20), *range(0, 220, 20)])
    assert pictures.shape[1:] == (5 * 37, 7 * 37, 3)  # at least 256 wide
    assert all((p == p[0, 0]).all() for p in pictures)
    assert sum(times) == round(22 * 100 / 30)
    assert set(times) == {3, 4}
    assert [p.name for p in tmp_path.iterdir()] == ["a.gif"]


@pytest.mark.slow
def test_an_episode_is_cut_at_max_steps(tmp_path: Path) -> None:
    agent = scripted(CONFIG.replace(env=Counter()), zero)
    for max_steps in (1, 3, 4, 9):
        result = record(agent, None, tmp_path / "a.gif", key=KEY, max_steps=max_steps)
        assert (result.lengths[0], result.ended[0], result.num_frames) == (max_steps, False, max_steps + 1)
        assert len(read_gif(result.path)[0]) == max_steps + 1
        assert "cut" in str(result)
    result = record(agent, None, tmp_path / "a.gif", key=KEY, max_steps=10)
    assert (result.lengths[0], result.ended[0]) == (10, True)
    assert str(result) == "return 0 in 10 steps, 11 frames"


def test_small_returns_are_told_with_their_digits() -> None:
    one = Recording(Path("a.gif"), np.array([0.9375]), np.array([4]), np.array([True]), 5)
    assert str(one) == "return 0.9375 in 4 steps, 5 frames"
    two = Recording(Path("a.gif"), np.array([0.9375, 1234.5]), np.array([4, 4]), np.array([True, True]), 10)
    assert "return mean 617.7, min 0.9375, max 1,234.5; mean length 4.0" in str(two)


def test_what_a_policy_remembers_begins_with_zeros_and_is_carried_on(tmp_path: Path) -> None:
    def act(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False, mask: Any = None) -> tuple[Any, Any]:
        memory = {"count": (jnp.int32(0) if carry is None else carry["count"]) + 1}
        return memory["count"], memory

    result = record(scripted(CONFIG.replace(env=Counter()), act), None, tmp_path / "a.gif", key=KEY, episodes=2)
    np.testing.assert_array_equal(result.returns, [sum(range(1, 11))] * 2)


@pytest.mark.slow
def test_the_episode_is_the_one_that_a_python_loop_plays(tmp_path: Path) -> None:
    agent, state = agent_of("CartPole-v1", normalize_observations=True)
    result = record(agent, state, tmp_path / "a.gif", key=KEY)
    env, params = rljax.make_env("CartPole-v1")
    # Greedy on CartPole: only the first state is random.
    reset_key, _ = jax.random.split(jax.random.fold_in(KEY, 0))
    obs, env_state = env.reset_env(reset_key, params)
    step, render = jax.jit(env.step_env), jax.jit(env.render)
    act = jax.jit(lambda obs: agent.act(state, obs, None, KEY, True)[0])
    frames, terminated = [render(env_state, params)], False
    while not terminated:
        obs, env_state, _, terminated, _ = step(KEY, env_state, act(obs), params)
        frames.append(render(env_state, params))
    assert result.returns[0] == result.lengths[0] == len(frames) - 1
    pictures, _ = read_gif(result.path)
    difference = np.abs(pictures.astype(int) - np.stack(frames))
    assert difference.max() < 40  # 256 colours
    assert (difference > 8).mean() < 0.001


@pytest.mark.slow
def test_the_mask_and_sampling_reach_the_policy(tmp_path: Path) -> None:
    seen: list[Any] = []

    def act(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False, mask: Any = None) -> tuple[Any, Any]:
        seen.append((deterministic, mask.shape))
        return jnp.argmax(mask), None

    for deterministic in (True, False):
        agent = scripted(CONFIG.replace(env="MaskedBandit-v0"), act)
        record(agent, None, tmp_path / "a.gif", key=KEY, deterministic=deterministic, max_steps=2)
        env, params = rljax.make_env("MaskedBandit-v0")
        assert {mask for _, mask in seen} == {(env.action_space(params).n,)}
        assert seen[-1][0] == deterministic
        seen.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    "env_id", [pytest.param(name, marks=[pytest.mark.long] * (name == "MicroRTSBots-v0")) for name in rljax.env_ids()]
)
def test_every_environment_records(env_id: str, tmp_path: Path) -> None:
    agent, state = agent_of(env_id)
    result = record(agent, state, tmp_path / "a.gif", key=KEY, deterministic=False, max_steps=6, fps=20)
    assert result.num_frames == result.lengths[0] + 1
    pictures, times = read_gif(result.path)
    # A picture that equals the one before is stored as a longer one.
    assert sum(times) == 5 * result.num_frames
    assert len(pictures) <= result.num_frames
    assert max(pictures.shape[1:3]) >= 256
    assert pictures.std() > 5


@pytest.mark.slow
def test_channels_have_colours_and_flattening_for_the_policy_does_not_matter(tmp_path: Path) -> None:
    agent, state = agent_of("Breakout-MinAtar", flatten_observations=True)
    result = record(agent, state, tmp_path / "a.gif", key=KEY, max_steps=5)
    pictures, _ = read_gif(result.path)
    assert pictures.shape[1:] == (260, 260, 3)
    cells = pictures[-1, 13::26, 13::26].reshape(100, 3)
    obs, _ = rljax.make_env("Breakout-MinAtar")[0].reset(KEY)
    assert obs.shape == (10, 10, 4)
    colors = {tuple(c) for c in cells}
    assert len(colors) == 5  # ground, paddle, ball, trail, bricks
    bricks = {tuple(c) for c in pictures[0, 13::26, 13::26][1:4].reshape(-1, 3)}
    assert len(bricks) == 1


@pytest.mark.slow
def test_matrices_are_grey_and_vectors_are_bars(tmp_path: Path) -> None:
    agent, state = agent_of("Catch-bsuite", flatten_observations=True)
    pictures, _ = read_gif(record(agent, state, tmp_path / "a.gif", key=KEY, max_steps=4).path)
    assert pictures.shape[1:] == (260, 130, 3)
    assert {tuple(c) for c in pictures.reshape(-1, 3)} == {(0, 0, 0), (255, 255, 255)}
    assert (pictures[0, 13::26, 13::26, 0] == 255).sum() == 2  # ball and paddle

    class Bars(Counter):
        render = rljax.Environment.render

    result = record(scripted(CONFIG.replace(env=Bars()), zero), None, tmp_path / "b.gif", key=KEY)
    pictures, _ = read_gif(result.path)
    assert len(pictures) == result.num_frames == 11
    blue = (pictures[..., 2].astype(int) - pictures[..., 0] > 60).sum(axis=(1, 2))
    # The components are 0, t and 2 t, each drawn to its own greatest value: what is painted grows evenly.
    np.testing.assert_allclose(blue / blue[-1], np.arange(11) / 10, atol=0.02)
    heights = (pictures[-1, ..., 2].astype(int) - pictures[-1, ..., 0] > 60).sum(axis=0)
    np.testing.assert_allclose(heights[heights > 0], 256 / 2.4, atol=3)


def test_mp4_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imageio = pytest.importorskip("imageio.v2")
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.delenv("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = record(scripted(CONFIG.replace(env=Counter()), zero), None, tmp_path / "a.mp4", key=KEY, fps=20)
    assert not [w for w in caught if "fork" in str(w.message)]
    with imageio.get_reader(result.path) as reader:
        meta = reader.get_meta_data()
        frames = np.stack([*reader.iter_data()])
    assert meta["fps"] == 20
    assert meta["size"] == (260, 186)  # 259 x 185, made even
    assert "yuv420p" in meta["pix_fmt"]
    np.testing.assert_allclose(frames.mean(axis=(1, 2, 3)), range(0, 220, 20), atol=3)
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize(("free", "says"), [(0, "No space left on device"), (1 << 40, "FFmpeg ended: the file is not whole")])
def test_an_mp4_that_ffmpeg_did_not_end_is_one_line(
    free: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """imageio does not say that FFmpeg could not write the last part of a file."""
    imageio = pytest.importorskip("imageio.v2")

    class Writer(contextlib.nullcontext):
        def append_data(self, frame: np.ndarray) -> None:
            (next(tmp_path.iterdir())).write_bytes(b"cut off")

    def get_writer(path: Path, **_: Any) -> Writer:
        path.touch()
        return Writer()

    monkeypatch.setattr(imageio, "get_writer", get_writer)
    monkeypatch.setattr(record_module.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(rljax.ConfigError, match=rf"a\.mp4: cannot be written: {says}$"):
        record(scripted(CONFIG.replace(env=Counter()), zero), None, tmp_path / "a.mp4", key=KEY)
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gif").write_text("old")

    def broken(*args: Any) -> Any:
        yield np.zeros((8, 8, 3), np.uint8)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_module, "_frames", broken)
    with pytest.raises(rljax.ConfigError, match=r"a\.gif: cannot be written: No space left on device"):
        record(scripted(CONFIG.replace(env=Counter()), zero), None, tmp_path / "a.gif", key=KEY)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.gif", "old")]


def test_a_small_thing_keeps_its_colour_in_the_palette() -> None:
    noise = np.random.default_rng(0).integers(0, 120, (4, 64, 64, 3), np.uint8)
    noise[:, :32] = 77
    noise[:, 40, 40] = (250, 30, 240)
    palette = record_module._palette(noise).astype(int)
    assert palette.shape == (256, 3)
    assert (np.abs(palette - 77).sum(1) == 0).any()
    assert np.abs(palette - (250, 30, 240)).sum(1).min() < 40


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Float(Counter):
        def render(self, state: Any, params: Any) -> jax.Array:
            return jnp.zeros((5, 7, 3))

    class Raises(Counter):
        def render(self, state: Any, params: Any) -> jax.Array:
            raise ValueError("no\ntwo lines")

    good, out = Counter(), tmp_path / "a.gif"
    cases: list[tuple[rljax.Environment, Path, dict[str, Any], str]] = [
        (good, tmp_path / "a.webm", {}, r"ends in \.gif or \.mp4"),
        (good, tmp_path, {}, "ends in"),
        (good, out, {"episodes": 0}, "episodes = 0"),
        (good, out, {"max_steps": 0}, "max_steps = 0"),
        (good, out, {"fps": 0.0}, "fps = 0"),
        (good, out, {"fps": "30"}, "fps = '30': expected a number > 0"),
        (good, out, {"fps": 60.0}, "at most 50"),
        (Float(), out, {}, r"render returned float32\[5, 7, 3\], expected uint8\[H, W, 3\]"),
        (Raises(), out, {}, "render raised ValueError: no"),
    ]
    for env, path, options, message in cases:
        with pytest.raises(rljax.ConfigError, match=message) as error:
            record(scripted(CONFIG.replace(env=env), zero), None, path, key=KEY, **options)
        assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(rljax.ConfigError, match=r"needs imageio_ffmpeg: pip install 'rljax-jit\[video\]'"):
        record(scripted(CONFIG.replace(env=good), zero), None, tmp_path / "a.mp4", key=KEY)
    assert not list(tmp_path.iterdir())


def test_a_game_is_shown_against_whom_one_asks_for(tmp_path: Path) -> None:
    """An agent that always shows rock, against players who always show one sign, and against itself."""

    def rock(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False, mask: Any = None) -> tuple[Any, Any]:
        return jnp.zeros(obs.shape[:-1], jnp.int32), None

    agent = scripted(rljax.SelfPlayConfig(env="HabitRPS-v0", env_params={"habit": 1.0, "num_rounds": 5}), rock)
    always_paper = scripted(agent.config, lambda *args, **kwargs: (rock(*args, **kwargs)[0] + 1, None))
    for against, gained in (("rock", 0), ("paper", -5), ("scissors", 5), ("self", 0), ((always_paper, None), -5)):
        recorded = record(agent, None, tmp_path / "game.gif", episodes=4, key=jax.random.key(2), against=against)
        assert recorded.returns.tolist() == [gained] * 4
        assert set(recorded.sides) == {"player 0", "player 1"}
        assert str(recorded).startswith("4 episodes as player 0 (1), player 1 (3): return ")
        assert len(read_gif(tmp_path / "game.gif")[0]) <= recorded.num_frames == 4 * 6
    standings = rljax.tournament({"agent": (agent, None)}, include=["paper", "scissors"], num_games=4)
    assert standings.wins.tolist() == [[0, 0, 4], [4, 0, 0], [0, 4, 0]]
    (tmp_path / "game.gif").unlink()
    tictactoe = scripted(rljax.SelfPlayConfig(env="TicTacToe-v0"), rock)
    team = scripted(rljax.SelfPlayConfig(env="HeavyBox-v0"), rock)
    cases: tuple[tuple[Agent, Any, str], ...] = (
        (agent, "papper", "did you mean 'paper'"),
        (agent, "sefl", "did you mean 'self'"),
        (agent, tmp_path, "no run"),
        (agent, (tictactoe, None), "self_play: plays TicTacToe-v0, but the agent plays HabitRPS-v0"),
        (agent, 3, "against = 3: expected a run folder, a Run, "),
        (team, "random", "against = 'random': all players of HeavyBox-v0 are one team"),
        (scripted(CONFIG, zero), "random", "ppo on CartPole-v1: is no agent of a game"),
    )
    for player, against, message in cases:
        with pytest.raises(rljax.ConfigError, match=message) as error:
            record(player, None, tmp_path / "game.gif", key=KEY, against=against)
        assert "\n" not in str(error.value)
    with pytest.raises(rljax.ConfigError, match="include: 'papper': did you mean 'paper'"):
        rljax.tournament({"agent": (agent, None)}, include=["papper"])
    with pytest.raises(rljax.ConfigError, match=r"^pole: ppo on CartPole-v1: is no agent of a game"):
        rljax.tournament({"agent": (agent, None), "pole": (scripted(CONFIG, zero), None)})
    valued = tictactoe._replace(policy_and_value=lambda state, obs: (jnp.zeros(9), jnp.float32(0)))
    with pytest.raises(rljax.ConfigError, match=r"^second: self_play on TicTacToe-v0: only agents of games can search"):
        rljax.tournament({"first": (valued, None), "second": (tictactoe, None)}, simulations=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("deterministic", "gained"), [(None, -5), (True, 0), (False, -5)])
def test_the_opponent_in_a_game_is_as_greedy_as_was_asked_for(deterministic: bool | None, gained: int, tmp_path: Path) -> None:
    """Where the best policy is random, greedy players show rock here, and others paper: the agent always shows rock."""

    def rock(state: Any, obs: Any, carry: Any, key: Any, greedy: bool = False, mask: Any = None) -> tuple[Any, Any]:
        return jnp.zeros(obs.shape[:-1], jnp.int32), None

    def rock_if_greedy(state: Any, obs: Any, carry: Any, key: Any, greedy: bool = False, mask: Any = None) -> tuple[Any, Any]:
        return jnp.full(obs.shape[:-1], 0 if greedy else 1, jnp.int32), None

    config = rljax.SelfPlayConfig(env="HabitRPS-v0", env_params={"habit": 1.0, "num_rounds": 5})
    agent, opponent = scripted(config, rock), scripted(config, rock_if_greedy)
    out = tmp_path / "game.gif"
    recorded = record(agent, None, out, episodes=1, key=KEY, against=(opponent, None), deterministic=deterministic)
    assert recorded.returns.tolist() == [gained]


def test_a_game_of_turns_ends_at_the_opponents_limit_if_the_agents_own_counted_its_moves(tmp_path: Path) -> None:
    def first_cell(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False, mask: Any = None) -> tuple[Any, Any]:
        return jnp.argmax(mask, axis=-1), None

    game, _ = rljax.make_env("TicTacToe-v0")
    agent = scripted(rljax.PPOConfig(env=Versus(game), time_limit=9), first_cell)
    other = scripted(rljax.SelfPlayConfig(time_limit=4), first_cell)
    recorded = record(agent, None, tmp_path / "game.gif", key=KEY, against=(other, None))
    assert recorded.lengths.tolist() == [4]  # by the rules it is over after 7
    assert recorded.ended.all()


@pytest.mark.slow
def test_games_in_turns_are_shown_a_move_a_second_unless_asked(tmp_path: Path) -> None:
    """And each picture shows one move more, also those of the opponent."""
    agent = rljax.make_agent(rljax.SelfPlayConfig(env="TicTacToe-v0", num_envs=8, num_steps=8, num_minibatches=2))
    state = agent.init(jax.random.key(0))
    for seed, (fps, duration) in enumerate(((None, 1000), (10.0, 100), (10.0, 100))):
        recorded = rljax.record(agent, state, tmp_path / "game.gif", key=jax.random.key(seed), fps=fps)
        with Image.open(tmp_path / "game.gif") as picture:
            assert picture.info["duration"] == duration
            pictures = [np.asarray(frame.convert("RGB"), int) for frame in ImageSequence.Iterator(picture)]
        assert 5 <= recorded.lengths[0] <= 9
        assert len(pictures) == recorded.lengths[0] + 1
        size = len(pictures[0]) // 3
        for before, after in itertools.pairwise(pictures[:-1]):  # the last one marks the winner's line, too
            changed = np.abs(after - before).max(-1)[: 3 * size, : 3 * size].reshape(3, size, 3, size).max((1, 3)) > 0
            assert changed.sum() == 1
