"""Gym-microRTS as its learners use it: many games in Java, which sends observations, masks and rewards of both players.

This is the Java half of the package (Huang et al., "Gym-microRTS: toward affordable full game real-time strategy games research
with deep reinforcement learning", 2021), and what its Python half must do at least: bring arrays to NumPy, and actions back.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from rljax.core.errors import RljaxError, first_line
from rljax.envs.microrts.java.engine import Java
from rljax.envs.microrts.rules.units import HEADS

# The rewards of Gym-microRTS and its limit of a game.
REWARDS = ("WinLoss", "ResourceGather", "ProduceWorker", "ProduceBuilding", "Attack", "ProduceCombatUnit")
MAX_CYCLES = 2000


class Step(NamedTuple):
    """A step of S players, two of each game.

    Attributes:
        obs: features of the cells, i32 `[S, 5, H, W]`.
        reward: rewards in the order of `REWARDS`, f64 `[S, 6]`.
        done: whether the game is over, bool `[S]`.
    """

    obs: np.ndarray
    reward: np.ndarray
    done: np.ndarray


class GymMicroRTS:
    """Games of Gym-microRTS; each of both players is steered from here. `java_seconds` is the time spent inside Java so far."""

    def __init__(self, java: Java, map_name: str, num_games: int):
        jpype = java.jpype
        rewards = [jpype.JClass(f"ai.rewardfunction.{name}RewardFunction")() for name in REWARDS]
        rewards = jpype.JArray(jpype.JClass("ai.rewardfunction.RewardFunctionInterface"))(rewards)
        nobody = jpype.JArray(jpype.JClass("ai.core.AI"))(0)
        try:
            make = jpype.JClass("tests.JNIGridnetVecClient")
        except TypeError as error:
            raise RljaxError(f"microRTS in Java: an engine without Gym-microRTS: {first_line(error)}") from None
        path = str(java.map_path(map_name))
        self._client = make(2 * num_games, 0, MAX_CYCLES, rewards, "", path, nobody, java.types, False)
        self._players = [0] * (2 * num_games)
        self._jpype, self._int = jpype, jpype.JInt
        self.java_seconds = 0.0
        self._client.reset(self._players)

    def masks(self) -> np.ndarray:
        """Return for each player and cell whether its unit may be ordered, then what its heads allow, i32 `[S, H, W, 79]`."""
        return np.array(self._timed(self._client.getMasks, 0))

    def step(self, actions: list[np.ndarray]) -> Step:
        """Play a cycle of each game; those that are over begin again.

        Args:
            actions: for each player the orders of its units, i32 `[K, 8]`: a cell, and the action of each head.
        """
        array = self._jpype.JArray
        orders = array(array(array(self._int)))([array.of(x) if len(x) else array(array(self._int))(0) for x in actions])
        answer = self._timed(self._client.gameStep, orders, self._players)
        return Step(np.array(answer.observation), np.array(answer.reward), np.array(answer.done)[:, 0])

    def play_random(self, steps: int, rng: np.random.Generator) -> None:
        """Play steps of all games with random actions that the masks allow."""
        for _ in range(steps):
            self.step(random_actions(self.masks(), rng))

    def _timed(self, call: Any, *arguments: Any) -> Any:
        """Return what a call of Java returns, and add its time to `java_seconds`."""
        started = time.perf_counter()
        answer = call(*arguments)
        self.java_seconds += time.perf_counter() - started
        return answer


def random_actions(masks: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return a random action of each unit that may be ordered; the masks are those of `GymMicroRTS.masks`."""
    masks = masks.reshape(len(masks), -1, masks.shape[-1])
    player, cell = np.nonzero(masks[:, :, 0])
    allowed = np.split(masks[player, cell, 1:], np.cumsum(HEADS)[:-1], axis=-1)
    # A head that allows nothing is not read.
    heads = [np.argmax(rng.random(head.shape) * (head + 1e-9), axis=-1) for head in allowed]
    actions = np.stack([cell, *heads], axis=-1).astype(np.int32)
    return np.split(actions, np.searchsorted(player, np.arange(1, len(masks))))
