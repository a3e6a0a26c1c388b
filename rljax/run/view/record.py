"""Recordings: whole episodes of an agent in any environment, as a GIF or an MP4."""

from __future__ import annotations

import errno
import importlib
import itertools
import numbers
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.environments import make_evaluation_env, make_game
from rljax.core.agent import Agent, check_agent, initial_carry, state_explained
from rljax.core.config import Config
from rljax.core.environments.environment import action_mask_of, is_outside_jax, plays_greedily, strong, tree_where
from rljax.core.environments.wrappers import EpisodeStatistics, can_render, flatten_observation
from rljax.core.errors import ConfigError, check_bool_or_none, check_whole, first_line, how_to_install, shown
from rljax.core.games.versus import Player, Versus, advance_carry
from rljax.core.host import failures_explained
from rljax.core.keys import as_key
from rljax.envs import drawing, resolve_env
from rljax.run.files.outputs import atomic_file, output_path
from rljax.run.players import Source, find_opponent
from rljax.run.view.layout import format_number

SUFFIXES = (".gif", ".mp4")
FULL_DISK = 1 << 20
"""Free bytes below which a failure of FFmpeg, which says no reason, is that of a full disk."""
MAX_STEPS = 1000
"""Default number of steps after which an episode is cut: half a minute at 30 frames a second."""

CHUNK = 32
"""Number of steps to play, and of pictures in memory, at a time."""

MIN_SIDE = 256
"""Smallest number of pixels of a picture's long side; smaller pictures are enlarged."""

FPS, TURN_FPS = 30.0, 1.0
"""Default number of pictures per second, and that for games in which players take turns, where each move must be seen."""

MAX_GIF_FPS = 50
"""Largest number of pictures per second in a GIF: viewers show anything faster at 10 pictures per second."""

MAX_GIF_DURATION = 10 * (2**16 - 1)
"""Longest time for which a GIF shows a picture, in milliseconds: 65,535 hundredths of a second."""

_PALETTE_CHUNKS, _PALETTE_FRAMES = 8, 4

# Colours of the channels of an observation, on a dark background; colour-blind viewers can distinguish them.
_CHANNELS = (
    (86, 180, 233),
    (240, 228, 66),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (255, 255, 255),
    (230, 159, 0),
    (0, 114, 178),
    (150, 150, 150),
    (120, 80, 200),
)
_DARK = (24, 27, 33)


class Recording(NamedTuple):
    """A recording of E episodes.

    Attributes:
        path: file of the recording.
        returns: sums of the true rewards, f32 `[E]`; up to the cut if an episode did not end.
        lengths: numbers of steps, in games of the moves of all players, i32 `[E]`.
        ended: False if an episode was cut at `max_steps`, bool `[E]`.
        num_frames: total number of pictures: for each episode the first one and one per step.
        sides: which player the agent was in each game ("player 1"), or which team; empty for environments, and with one team.
    """

    path: Path
    returns: np.ndarray
    lengths: np.ndarray
    ended: np.ndarray
    num_frames: int
    sides: tuple[str, ...] = ()

    def __str__(self) -> str:
        cut = int((~self.ended).sum())
        if len(self.returns) == 1:
            ending = " (cut there)" if cut else ""
            side = f" as {self.sides[0]}" if self.sides else ""
            return (
                f"return {format_number(self.returns[0])}{side} in {self.lengths[0]:,} steps{ending}, {self.num_frames:,} frames"
            )
        mean, low, high = (format_number(x) for x in (self.returns.mean(), self.returns.min(), self.returns.max()))
        spread = f"mean {mean}, min {low}, max {high}"
        ending = f", {cut} of them cut at {self.lengths.max():,} steps" if cut else ""
        length = f"mean length {self.lengths.mean():.1f}"
        sides = f" as {', '.join(f'{side} ({self.sides.count(side)})' for side in sorted(set(self.sides)))}" if self.sides else ""
        return f"{len(self.returns)} episodes{sides}{ending}: return {spread}; {length}, {self.num_frames:,} frames"


class _Loop(NamedTuple):
    """State of an episode being played; once `done`, it no longer changes."""

    env_state: Any
    obs: Any
    carry: Any
    done: jax.Array
    time: jax.Array


class _Moments(NamedTuple):
    """Consecutive moments of an episode, each `[CHUNK, ...]`; pictures are made from `view`."""

    view: Any
    done: jax.Array
    episode_return: jax.Array


class _Episode(NamedTuple):
    """Episode from its first moment to moment number `length`; `views` has one entry per chunk, `start` is its first state."""

    views: list[Any]
    length: int
    episode_return: float
    ended: bool
    start: Any


Pictures = Callable[[Any], np.ndarray]
"""Function from the views of a chunk to their pictures, uint8 `[CHUNK, H, W, 3]`."""


def record(
    agent: Agent,
    state: Any,
    out: str | os.PathLike[str],
    *,
    episodes: int = 1,
    max_steps: int = MAX_STEPS,
    key: jax.Array,
    deterministic: bool | None = None,
    fps: float | None = None,
    against: Source | None = None,
) -> Recording:
    """Play whole episodes and write them to a GIF or MP4 file. An existing file is replaced.

    If the environment defines `render`, its pictures are shown. Otherwise its observations are drawn: images `[H, W]` in grey,
    images `[H, W, C]` with a colour per channel, and everything else as bars, one per component.

    Args:
        agent: agent from `make_agent`.
        state: the agent's state, unbatched (of one seed).
        out: file to write; its suffix gives the format.
        episodes: number of episodes to record, one after the other.
        max_steps: number of steps after which to cut an episode; in games these are the moves of all players.
        key: random key; the episodes depend on nothing else.
        deterministic: as in `rljax.evaluate`.
        fps: pictures per second; if None, 30, or 1 for games in which players take turns. In a GIF, a picture that equals the
            previous one prolongs it, to 655 seconds at most.
        against: the opponent in a game: a run folder or checkpoint, a `Run`, `(agent, state)`, or the name of a player that
            needs no training: "random", "mcts", one of the game's scripted players ("workerrush", "java:coac"), or "self", the
            agent itself. If None, the one that the agent is evaluated against. `deterministic` is for policies of both.

    Raises:
        ConfigError: an argument is not allowed, the opponent is unknown or plays another game, the environment's `render`
            breaks the contract, no encoder for MP4 is installed, or the state is not one of the agent's.
    """
    check_agent(agent)
    path = output_path(out, SUFFIXES)
    check_whole(1, episodes=episodes, max_steps=max_steps)
    check_bool_or_none(deterministic=deterministic)
    deterministic = None if deterministic is None else bool(deterministic)  # NumPy's False is not False
    opponent, rules = (None, None) if against is None else find_opponent(agent, state, against, deterministic)
    in_game = agent.config.of_games or opponent is not None
    if fps is None:
        fps = TURN_FPS if in_game and make_game(agent.config)[0].turn_gap else FPS
    if not isinstance(fps, numbers.Real) or isinstance(fps, bool) or not 0 < fps < float("inf"):
        raise ConfigError(f"fps = {shown(fps)}: expected a number > 0")
    gif = path.suffix.lower() == ".gif"
    if gif and fps > MAX_GIF_FPS:
        raise ConfigError(f"fps = {fps:g}: a GIF plays at most {MAX_GIF_FPS} pictures per second; lower it or write an .mp4")
    if not gif:
        _check_encoder()
    env, env_params = _scene(agent.config, opponent, rules)
    rendered = can_render(env)
    start, advance = _make_player(agent, plays_greedily(env, deterministic), env, env_params, rendered, in_game)
    keys = [jax.random.fold_in(as_key(key), i) for i in range(episodes)]
    with failures_explained(), state_explained(agent, state):
        played = [_play(start, advance, state, k, max_steps) for k in keys]
    pictures = _make_renderer(env, env_params, played[0]) if rendered else _make_painter(played)
    num_frames = sum(e.length + 1 for e in played)
    with atomic_file(path) as aside:
        if gif:
            _write_gif(aside, _sample(played, pictures), _frames(played, pictures), num_frames, fps)
        else:
            _write_mp4(aside, _frames(played, pictures), fps)
    return Recording(
        path,
        np.array([e.episode_return for e in played], np.float32),
        np.array([e.length for e in played], np.int32),
        np.array([e.ended for e in played]),
        num_frames,
        tuple(_side(env.env, e.start.env_state) for e in played) if in_game and env.env.env.num_teams > 1 else (),
    )


def _scene(config: Config, opponent: Player | None, rules: Config | None) -> tuple[Any, Any]:
    """Return the environment to show, in which each step of a game is one, whoever moves, and its parameters; `rules` is the
    configuration of the opponent if the game goes by its rules.
    """
    if opponent is not None:
        game, params = make_game(config, rules)
        return EpisodeStatistics(Versus(game, opponent, joint=False, every_move=True)), params
    # Observations are flattened only for the policy: a picture needs their true shape.
    config = config if config.of_games else with_pictures(config).replace(flatten_observations=False)
    return make_evaluation_env(config, every_move=True)


def _side(game: Versus, state: Any) -> str:
    """Return which player or team the agent is, in words."""
    return f"{'player' if game.team_size == 1 else 'team'} {int(state.team)}"


def with_pictures(config: Config) -> Config:
    """Return a configuration whose environment, if it is outside JAX and can draw, has pictures.

    Raises:
        ConfigError: what it needs for drawing is not installed.
    """
    env, _ = resolve_env(config.env, config.env_params)
    draw = getattr(env, "drawn", None) if is_outside_jax(env) else None
    if draw is None:
        return config
    try:
        return config.replace(env=draw(), env_params={})
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"env = '{env.name}': cannot be drawn: {first_line(error)}") from error


def _make_player(
    agent: Agent, deterministic: bool, env: Any, env_params: Any, rendered: bool, in_game: bool
) -> tuple[Callable[..., _Loop], Callable[..., tuple[_Loop, _Moments]]]:
    """Return `start(state, key) -> loop` and `advance(state, loop, key) -> (loop, moments)` of CHUNK steps, compiled once."""
    # The observations of a game's players are flattened by the game.
    flat = agent.config.flatten_observations and not in_game
    see = flatten_observation if flat else lambda obs: obs

    def act(state: Any, loop: _Loop, key: jax.Array) -> tuple[Any, Any]:
        mask = action_mask_of(env, loop.env_state, env_params)
        action, after = agent.act(state, see(loop.obs), loop.carry, key, deterministic, mask)
        return action, advance_carry(env.env.own_moves(loop.env_state.env_state), loop.carry, after) if in_game else after

    def start(state: Any, key: jax.Array) -> _Loop:
        obs, env_state = strong(env.reset_env(key, env_params))
        carry = initial_carry(agent, state, see(obs), action_mask_of(env, env_state, env_params))
        return _Loop(env_state, obs, carry, jnp.asarray(False), jnp.zeros((), jnp.int32))

    def advance(state: Any, loop: _Loop, key: jax.Array) -> tuple[_Loop, _Moments]:
        def step(loop: _Loop, _: None) -> tuple[_Loop, _Moments]:
            act_key, env_key = jax.random.split(jax.random.fold_in(key, loop.time))
            action, carry = act(state, loop, act_key)
            # Not `step`, which resets: the last picture must show the state in which the episode ended.
            obs, env_state, _, terminated, _ = env.step_env(env_key, loop.env_state, action, env_params)
            done = terminated | env.is_truncated(env_state, env_params)
            after = strong(_Loop(env_state, obs, carry, done, loop.time + 1))
            view = loop.env_state if rendered else loop.obs
            return tree_where(loop.done, loop, after), _Moments(view, loop.done, loop.env_state.episode_return)

        return jax.lax.scan(step, loop, length=CHUNK)

    return jax.jit(start), jax.jit(advance)


def _play(start: Callable[..., Any], advance: Callable[..., Any], state: Any, key: jax.Array, max_steps: int) -> _Episode:
    reset_key, loop_key = jax.random.split(key)
    loop = start(state, reset_key)
    first_state = loop.env_state
    views: list[Any] = []
    while True:
        first = CHUNK * len(views)
        loop, moments = advance(state, loop, loop_key)
        views.append(moments.view)
        done = np.asarray(moments.done)
        last = int(np.argmax(done)) if done.any() else CHUNK
        last = min(last, max_steps - first)
        if last < CHUNK:
            return _Episode(views, first + last, float(moments.episode_return[last]), bool(done[last]), first_state)


def _make_renderer(env: Any, env_params: Any, example: _Episode) -> Pictures:
    state = jax.eval_shape(lambda views: jax.tree.map(lambda x: x[0], views), example.views[0])
    try:
        picture = jax.eval_shape(env.render, state, env_params)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"environment {env.name}: render raised {first_line(error)}") from error
    shape, dtype = getattr(picture, "shape", None), getattr(picture, "dtype", None)
    if shape is None or len(shape) != 3 or shape[2] != 3 or dtype != jnp.uint8:
        found = type(picture).__name__ if shape is None else f"{dtype}{list(shape)}"
        raise ConfigError(f"environment {env.name}: render returned {found}, expected uint8[H, W, 3]")
    # Draw one picture at a time: the intermediate results are many times its size.
    render = jax.jit(lambda views: jax.lax.map(lambda state: env.render(state, env_params), views))
    return lambda views: np.asarray(render(views))


def _make_painter(played: list[_Episode]) -> Pictures:
    """Return a function that draws observations, on a scale that fits all of these episodes."""
    leaves = jax.tree.leaves(played[0].views[0])
    shape = leaves[0].shape[1:] if len(leaves) == 1 else ()
    if len(shape) in (2, 3) and min(shape[:2]) > 1:
        return _make_image_painter(played, leaves[0].dtype, shape)
    flatten = jax.jit(lambda views: jnp.nan_to_num(jax.vmap(flatten_observation)(views)))
    scale = jnp.max(jnp.stack([jnp.max(jnp.abs(flatten(views)), axis=0) for e in played for views in e.views]), axis=0)
    paint = jax.jit(lambda views: jax.lax.map(drawing.bars, flatten(views) / jnp.where(scale > 0, scale, 1.0)))
    return lambda views: np.asarray(paint(views))


def _make_image_painter(played: list[_Episode], dtype: Any, shape: tuple[int, ...]) -> Pictures:
    """Return a function that draws observations `[H, W]` or `[H, W, C]`."""

    def images(views: Any) -> np.ndarray:
        return np.asarray(jax.tree.leaves(views)[0])

    if dtype == jnp.uint8 and shape[2:] == (3,):
        return images
    low, high = 0.0, 255.0
    if dtype != jnp.uint8:
        seen = [images(views)[: e.length + 1 - CHUNK * i] for e in played for i, views in enumerate(e.views)]
        low, high = min(float(np.nanmin(x)) for x in seen), max(float(np.nanmax(x)) for x in seen)

    def paint(views: Any) -> np.ndarray:
        levels = np.nan_to_num((images(views).astype(np.float32) - low) / ((high - low) or 1.0))
        levels = np.clip(levels, 0.0, 1.0).reshape(*levels.shape[:3], -1)
        if levels.shape[3] == 1:
            return np.repeat(np.round(255 * levels).astype(np.uint8), 3, axis=3)
        picture = np.broadcast_to(np.array(_DARK, np.float32), (*levels.shape[:3], 3))
        for channel in range(levels.shape[3]):
            color = np.array(_CHANNELS[channel % len(_CHANNELS)], np.float32)
            picture = picture + levels[..., channel, None] * (color - picture)
        return np.round(picture).astype(np.uint8)

    return paint


def _frames(played: list[_Episode], pictures: Pictures) -> Iterator[np.ndarray]:
    """Yield all pictures in order, uint8 `[H, W, 3]`, with one chunk in memory at a time."""
    for episode in played:
        for i, views in enumerate(episode.views):
            yield from _enlarge(pictures(views)[: episode.length + 1 - CHUNK * i])


def _sample(played: list[_Episode], pictures: Pictures) -> np.ndarray:
    """Return a few pictures, spread over all episodes, uint8 `[K, H, W, 3]`."""
    chunks = [(views, episode.length + 1 - CHUNK * i) for episode in played for i, views in enumerate(episode.views)]
    chosen = np.unique(np.linspace(0, len(chunks) - 1, _PALETTE_CHUNKS).round().astype(int))
    sample = []
    for views, length in (chunks[i] for i in chosen):
        moments = np.unique(np.linspace(0, min(length, CHUNK) - 1, _PALETTE_FRAMES).round().astype(int))
        sample.append(pictures(views)[moments])
    return np.concatenate(sample)


def _enlarge(pictures: np.ndarray) -> np.ndarray:
    """Enlarge small pictures `[K, H, W, 3]` by repeating pixels, so that the long side has at least MIN_SIDE."""
    factor = -(-MIN_SIDE // max(pictures.shape[1:3]))
    return pictures.repeat(factor, axis=1).repeat(factor, axis=2) if factor > 1 else pictures


def _write_gif(path: Path, sample: np.ndarray, frames: Iterator[np.ndarray], num_frames: int, fps: float) -> None:
    from PIL import Image

    # Use one palette for all frames and no dithering: different palettes would flicker, and noise does not compress.
    colors = _palette(sample).tobytes()
    palette = Image.new("P", (1, 1))
    palette.putpalette(colors)
    # Durations are in milliseconds, but a GIF stores hundredths of a second: round so that no delay adds up.
    ticks = [round(100 * i / fps) for i in range(num_frames + 1)]
    durations = [10 * (after - before) for before, after in itertools.pairwise(ticks)]

    def quantized() -> Iterator[Any]:
        before, shown = b"", 0
        for i, frame in enumerate(frames):
            image = Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE)
            here = image.tobytes()
            # Equal pictures become one, which a GIF cannot show longer. The writer reads each duration after the picture.
            shown = shown if here == before else 0
            durations[i] = min(durations[i], MAX_GIF_DURATION - shown)
            before, shown = here, shown + durations[i]
            yield image

    images = quantized()
    next(images).save(path, save_all=True, append_images=images, palette=colors, duration=durations, loop=0, optimize=False)


def _palette(sample: np.ndarray) -> np.ndarray:
    """Return 256 colours for pictures `[K, H, W, 3]`, uint8 `[256, 3]`: the most common ones, and median cuts of the rest."""
    from PIL import Image

    packed = sample.reshape(-1, 3).astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    values, counts = np.unique(packed, return_counts=True)
    values = values[np.argsort(-counts, kind="stable")]
    colors = np.stack([values >> 16, values >> 8 & 255, values & 255], axis=1).astype(np.uint8)
    if len(colors) > 256:
        # Count each of the other colours once, whatever its area, so that a small goal or ball keeps its colour.
        cut = Image.fromarray(colors[None, 64:]).quantize(192, method=Image.Quantize.MEDIANCUT).getpalette()
        colors = np.concatenate([colors[:64], np.array(cut, np.uint8).reshape(-1, 3)])
    return np.concatenate([colors, np.repeat(colors[:1], 256 - len(colors), axis=0)])


def _check_encoder() -> None:
    for module in ("imageio", "imageio_ffmpeg"):
        try:
            importlib.import_module(module)
        except ImportError:
            raise ConfigError(f"writing .mp4 needs {module}: {how_to_install('video')} (or write a .gif)") from None


def _write_mp4(path: Path, frames: Iterator[np.ndarray], fps: float) -> None:
    import imageio.v2 as imageio

    # Otherwise imageio would run Python in the forked child, which can hang because of JAX's threads.
    os.environ.setdefault("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")
    writer: Any = imageio.get_writer(
        path, format="FFMPEG", mode="I", fps=fps, codec="libx264", pixelformat="yuv420p", quality=8, macro_block_size=1,
        ffmpeg_log_level="quiet",
    )  # fmt: skip
    try:
        with writer:
            for frame in frames:
                # Colour is stored for blocks of 2 x 2 pixels, so the last line of an odd side is repeated.
                height, width = frame.shape[:2]
                writer.append_data(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))
        if b"moov" not in path.read_bytes():  # the index, which is written last; imageio does not see how FFmpeg ended
            raise OSError("the file is not whole")
    except OSError as error:
        if error.strerror is not None:
            raise
        # Its text is a broken pipe and FFmpeg's command line.
        if shutil.disk_usage(path.parent).free < FULL_DISK:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise OSError(f"FFmpeg ended: {str(error).partition(chr(10))[0]}") from error
