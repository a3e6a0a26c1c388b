"""Windows of streams, and batches of transitions: each is a pure function of a seed and a number."""

from __future__ import annotations

import heapq
import threading
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.collect.demos.draws import raw_bits, shuffled
from rljax.collect.demos.schema import DatasetInfo, tree_of
from rljax.collect.demos.store import Store
from rljax.core.errors import check_int


class Window(NamedTuple):
    """T steps of S streams, arrays `[T, S, ...]`.

    Attributes:
        obs: observations as the environment gives them, to one player of a game; with `DatasetInfo.frames`, stacks of them.
        action: actions as the environment takes them.
        mask: legal actions, bool `[T, S, A]` or `[T, S, A, A]`; None without masks.
        reward: f32 `[T, S]`.
        terminated: bool `[T, S]`.
        truncated: bool `[T, S]`.
        begins: whether an episode begins with the step, bool `[T, S]`.
        episode: number of the episode in the dataset, i32 `[T, S]`; -1 for steps that do not count, see `Windows`.
    """

    obs: Any
    action: Any
    mask: Any
    reward: Any
    terminated: Any
    truncated: Any
    begins: Any
    episode: Any


class Transitions(NamedTuple):
    """B random steps, arrays `[B, ...]`, or `[count, B, ...]`.

    Attributes:
        obs: observations before the step.
        action: actions.
        mask: legal actions at `obs`; None without masks.
        reward: f32 `[B]`.
        terminated: bool `[B]`.
        truncated: bool `[B]`.
        next_obs: observations after the step, before any reset.
        next_mask: legal actions at `next_obs`; None without masks.
        return_to_go: discounted sum of the rewards from the step to the end of its episode, f32 `[B]`; None if not asked for.
        episode: number of the episode in the dataset, i32 `[B]`.
    """

    obs: Any
    action: Any
    mask: Any
    reward: Any
    terminated: Any
    truncated: Any
    next_obs: Any
    next_mask: Any
    return_to_go: Any
    episode: Any


def frames_taken(store: Store, leaf: str, rows: np.ndarray, first: np.ndarray, frames: int) -> np.ndarray:
    """Return observations joined with the `frames - 1` before them along the last axis, the oldest first, `[..., frames * C]`, as
    `FrameStack` and `GameFrameStack` do; where an episode has no more, its first one stands for them.

    Args:
        store: the arrays.
        leaf: name of the observations.
        rows: rows to read, i64 `[...]`.
        first: row of the first observation of the episode of each, i64 `[...]`.
        frames: number of observations of a stack; 1: as they are.
    """
    if frames == 1:
        return store.take(leaf, rows)
    each = np.stack([np.maximum(rows - back, first) for back in reversed(range(frames))])
    return np.concatenate(list(store.take(leaf, each)), axis=-1)


class _Rows:
    """Read steps of episodes, given as arrays of the same shape of numbers of episodes and of steps in them."""

    def __init__(self, store: Store, info: DatasetInfo, start: np.ndarray):
        self.store, self.info, self.start = store, info, start

    def obs(self, episode: np.ndarray, step: np.ndarray) -> Any:
        first = self.start[episode] + episode
        return self._tree("obs", self.info.observation_space, first + step, first)

    def mask(self, episode: np.ndarray, step: np.ndarray) -> Any:
        return self.store.take("mask", self.start[episode] + episode + step) if self.info.masks else None

    def action(self, episode: np.ndarray, step: np.ndarray) -> Any:
        return self._tree("action", self.info.action_space, self.start[episode] + step)

    def of_step(self, leaf: str, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
        return self.store.take(leaf, self.start[episode] + step)

    def _tree(self, name: str, space: Any, rows: np.ndarray, first: np.ndarray | None = None) -> Any:
        leaves = [leaf for leaf in self.store.names if leaf == name or leaf.startswith(f"{name}.")]
        store, frames = self.store, self.info.frames
        taken = {
            leaf: store.take(leaf, rows) if first is None else frames_taken(store, leaf, rows, first, frames) for leaf in leaves
        }
        return tree_of(name, space, taken)


def example_of(tree: Any) -> Any:
    """Return the shapes and dtypes of a tree of arrays."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


class Windows:
    """Windows of S streams, each of T steps.

    The episodes of an epoch are a shuffled deck. A stream that has finished its episode takes the next one from the deck, and
    reads it on from window to window; when the deck is empty, the next epoch's is shuffled. So each step is read once an epoch,
    all windows are full, and memory carries over from a window to the next one.

    With `once` there is one epoch only, in the first `epoch_windows` windows: a stream for which the deck has nothing left
    repeats a step, whose `episode` is -1.
    """

    def __init__(
        self,
        store: Store,
        info: DatasetInfo,
        episodes: Any,
        chosen: np.ndarray,
        streams: int,
        steps: int,
        seed: int,
        once: bool = False,
    ):
        check_int("windows", 1, streams=streams, steps=steps)
        check_int("windows", 0, seed=seed)
        self.streams, self.steps, self.seed, self.once = streams, steps, seed, once
        self._chosen, self._length = chosen, episodes.length
        self._rows = _Rows(store, info, episodes.start)
        self._lock = threading.Lock()  # a feed reads ahead in a thread of its own
        self._begin()
        self.example = example_of(self.read(0))

    @property
    def epoch_steps(self) -> int:
        """Number of steps of an epoch: those of all episodes that are read."""
        return int(self._length[self._chosen].sum())

    @property
    def epoch_windows(self) -> int:
        """Number of the first windows that have all steps of the first epoch."""
        ends = [0] * self.streams
        for episode in self._shuffled(0):
            heapq.heapreplace(ends, ends[0] + int(self._length[episode]))
        return -(-max(ends) // self.steps)

    def _shuffled(self, epoch: int) -> np.ndarray:
        return self._chosen[shuffled(len(self._chosen), "deck", self.seed, epoch)]

    def _begin(self) -> None:
        """Go back to before the first window."""
        self._number, self._epoch, self._deck = 0, 0, np.zeros(0, np.int64)
        self._free = [(0, stream) for stream in range(self.streams)]
        self._hands: list[list[tuple[int, int]]] = [[] for _ in range(self.streams)]

    def _deal(self, end: int) -> None:
        """Give episodes to the streams until each has steps up to `end`."""
        while self._free[0][0] < end:
            free, stream = self._free[0]
            if not len(self._deck):
                if self.once and self._epoch:
                    return
                self._deck = self._shuffled(self._epoch)[::-1]
                self._epoch += 1
            episode, self._deck = int(self._deck[-1]), self._deck[:-1]
            self._hands[stream].append((free, episode))
            heapq.heapreplace(self._free, (free + int(self._length[episode]), stream))

    def places(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of the episode (-1: none) and that of the step in it for each step of a window, i64 `[T, S]`."""
        with self._lock:
            return self._places(number)

    def _places(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        if number < self._number:
            self._begin()
        self._number = number
        first, end = number * self.steps, (number + 1) * self.steps
        self._deal(end)
        episode, step = np.full((self.streams, self.steps), -1, np.int64), np.zeros((self.streams, self.steps), np.int64)
        for stream, hand in enumerate(self._hands):
            while len(hand) > 1 and hand[1][0] <= first:
                del hand[0]
            for begin, which in hand:
                low = max(begin - first, 0)
                high = max(min(begin + int(self._length[which]) - first, self.steps), low)
                episode[stream, low:high] = which
                step[stream, low:high] = np.arange(low, high) + first - begin
        return episode.T, step.T

    def read(self, number: int) -> Window:
        """Return a window, counted from 0.

        Raises:
            RljaxError: a file has vanished or changed since the dataset was opened.
        """
        places, step = self.places(number)
        rows, episode = self._rows, np.where(places < 0, self._chosen[0], places)
        return Window(
            obs=rows.obs(episode, step),
            action=rows.action(episode, step),
            mask=rows.mask(episode, step),
            reward=rows.of_step("reward", episode, step),
            terminated=rows.of_step("terminated", episode, step),
            truncated=rows.of_step("truncated", episode, step),
            begins=step == 0,
            episode=places.astype(np.int32),
        )


class Batches:
    """Batches of transitions, drawn uniformly from all steps, with replacement."""

    def __init__(
        self,
        store: Store,
        info: DatasetInfo,
        episodes: Any,
        chosen: np.ndarray,
        size: int,
        count: int | None,
        seed: int,
        gamma: float | None,
    ):
        check_int("batches", 1, size=size, count=1 if count is None else count)
        check_int("batches", 0, seed=seed)
        self.size, self.count, self.seed, self.gamma = size, count, seed, gamma
        self._chosen, self._length = chosen, episodes.length
        self._ends = np.cumsum(episodes.length[chosen])
        self._rows = _Rows(store, info, episodes.start)
        self._to_go: np.ndarray | None = None
        self.example = example_of(self.read(0))

    def places(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of the episode and of the step in it of each transition, i64 `[B]` or `[count, B]` each."""
        shape = (self.size,) if self.count is None else (self.count, self.size)
        drawn = (raw_bits(int(np.prod(shape)), "batch", self.seed, number) % np.uint64(self._ends[-1])).astype(np.int64)
        which = np.searchsorted(self._ends, drawn, side="right")
        episode = self._chosen[which]
        step = drawn - (self._ends[which] - self._length[episode])
        return episode.reshape(shape), step.reshape(shape)

    def read(self, number: int) -> Transitions:
        """Return the batch, or the batches, of a number, counted from 0.

        Raises:
            RljaxError: a file has vanished or changed since the dataset was opened.
        """
        episode, step = self.places(number)
        rows = self._rows
        # What is seen before a step and after it are rows that follow each other: they are read together.
        around, steps = np.stack([episode, episode]), np.stack([step, step + 1])
        obs, mask = rows.obs(around, steps), rows.mask(around, steps)
        part = lambda tree, which: jax.tree.map(lambda x: x[which], tree)  # noqa: E731
        return Transitions(
            obs=part(obs, 0),
            action=rows.action(episode, step),
            mask=part(mask, 0),
            reward=rows.of_step("reward", episode, step),
            terminated=rows.of_step("terminated", episode, step),
            truncated=rows.of_step("truncated", episode, step),
            next_obs=part(obs, 1),
            next_mask=part(mask, 1),
            return_to_go=None if self.gamma is None else self._return_to_go(episode, step),
            episode=episode.astype(np.int32),
        )

    def _return_to_go(self, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
        if self._rows.store.in_memory:
            if self._to_go is None:
                self._to_go = returns_to_go(self._rows.store.whole("reward"), self._rows.start, self._length, self.gamma or 0.0)
            return self._to_go[self._rows.start[episode] + step]
        found = np.empty(episode.size, np.float32)
        for index, (which, first) in enumerate(zip(episode.ravel(), step.ravel(), strict=True)):
            later = np.arange(first, self._length[which])
            reward = self._rows.of_step("reward", np.full_like(later, which), later)
            found[index] = returns_to_go(reward, np.zeros(1, np.int64), np.array([len(later)]), self.gamma or 0.0)[0]
        return found.reshape(episode.shape)


def returns_to_go(reward: np.ndarray, start: np.ndarray, length: np.ndarray, gamma: float) -> np.ndarray:
    """Return the discounted sum of rewards from each step to the end of its episode, f32 `[steps]`.

    Args:
        reward: rewards of episodes one after the other, f32 `[steps]`.
        start: first step of each episode, i64 `[E]`.
        length: number of steps of each episode, i64 `[E]`.
        gamma: discount.
    """
    found = reward.astype(np.float64)
    longest_first = np.argsort(-length, kind="stable")
    start, length = start[longest_first], length[longest_first]
    for step in range(int(length[0]) - 2, -1, -1):
        # Episodes in which another step follows this one.
        row = start[: np.searchsorted(-length, -(step + 1))] + step
        found[row] += gamma * found[row + 1]
    return found.astype(np.float32)
