"""Environments of Gymnasium for tests, in a module that simulators' processes import."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Odd(gymnasium.Env[Any, Any]):
    """Nested observations with integers that begin at 3, actions that begin at 2, and whatever goes wrong in a step."""

    observation_space = spaces.Dict(
        {"b": spaces.Tuple((spaces.Discrete(5, start=3), spaces.Box(-1, 1, (2,), np.float64))), "a": spaces.MultiBinary(3)}
    )
    action_space = spaces.Discrete(4, start=2)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, fails: str = "", after: int = 5, render_mode: str | None = None):
        self.fails, self.after, self.time, self.render_mode = fails, after, 0, render_mode

    def render(self) -> Any:
        picture = np.zeros((20, 30, 3), np.uint8)
        picture[:, 3 * self.time] = 255
        return picture

    def _obs(self) -> Any:
        flags = np.array([self.time % 2, 0, 1], np.int8)
        numbers = np.array([self.time / 100, 0.5])
        return {"b": (np.int64(3 + self.time % 5), numbers), "a": flags if self.fails != "shape" else flags[:2]}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.time += 1
        if self.time == self.after:
            if self.fails == "raises":
                raise ValueError("the wheel came off\nand rolled away")
            if self.fails == "hangs":
                time.sleep(1000)
            if self.fails == "exits":
                os._exit(3)
            if self.fails == "dies":
                os.kill(os.getpid(), signal.SIGSEGV)
        return self._obs(), float(action), self.time == 9, False, {}


class Masked(gymnasium.Env[Any, Any]):
    """Two heads, of which masks show what is legal; anything else is an error. At the end there is no mask."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.MultiDiscrete([3, 2])

    def __init__(self, flags: int = 5):
        self.flags, self.time = flags, 0

    def _mask(self) -> Any:
        first = np.arange(3) == self.time % 3
        second = np.ones(2, bool) if self.time % 2 else np.array([False, True])
        return np.concatenate([first, second])[: self.flags]

    def _shown(self) -> Any:
        return np.array([self.time / 7], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._shown(), self._info()

    def _info(self) -> dict[str, Any]:
        flags = self._mask().astype(np.int8)
        return {} if self.time == 7 else {"action_mask": (flags[:3], flags[3:])}  # as `action_space.sample` takes it

    def step(self, action: Any) -> Any:
        first, second = action
        if not (self._mask()[first] and self._mask()[3 + second]):
            raise ValueError(f"{action} at {self.time} is illegal")
        self.time += 1
        return self._shown(), float(second), self.time == 7, False, self._info()


class MaskedByMethod(Masked):
    """The same by the method of MaskablePPO; what `info` says is not that."""

    def __init__(self, broken: bool = False):
        super().__init__()
        self.broken = broken

    def action_masks(self) -> Any:
        if self.broken or self.time == 7:
            raise IndexError("no hand left")
        return self._mask()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0], {"action_mask": "of something else"}


gymnasium.register("Odd-v0", Odd)
gymnasium.register("Masked-v0", Masked)
gymnasium.register("MaskedByMethod-v0", MaskedByMethod, max_episode_steps=20)
gymnasium.register("Limited-v0", Odd, max_episode_steps=3)
