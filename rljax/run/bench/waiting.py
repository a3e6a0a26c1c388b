"""An environment of Gymnasium whose steps take time but no processor, as those of a simulator on another machine."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SECONDS = 0.0005
"""Time of a step."""


class Waits(gymnasium.Env[Any, Any]):
    """Observations are random; episodes have 100 steps."""

    observation_space = spaces.Box(-1.0, 1.0, (17,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (6,), np.float32)

    def __init__(self) -> None:
        self.time = 0

    def _obs(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 17).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        time.sleep(SECONDS)
        self.time += 1
        return self._obs(), -float(np.square(action).sum()), self.time == 100, False, {}


gymnasium.register("Waits-v0", f"{__name__}:Waits")
