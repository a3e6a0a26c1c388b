"""Wrappers of environments: each takes an environment and returns one, so they compose.

`FrameStack(GrayScale(PixelObservation(env)), 4)` observes four grey pictures.
"""

from rljax.collect.randomize import RandomizeParams
from rljax.core.environments.observation_wrappers import FrameStack, GrayScale, Resize
from rljax.core.environments.step_wrappers import ActionRepeat, EndOnNaN, ScaleReward, ShapeReward, StickyActions
from rljax.core.environments.wrappers import (
    ClipReward,
    EpisodeStatistics,
    FlattenObservation,
    PixelObservation,
    TimeLimit,
    Wrapper,
)

__all__ = [
    "ActionRepeat",
    "ClipReward",
    "EndOnNaN",
    "EpisodeStatistics",
    "FlattenObservation",
    "FrameStack",
    "GrayScale",
    "PixelObservation",
    "RandomizeParams",
    "Resize",
    "ScaleReward",
    "ShapeReward",
    "StickyActions",
    "TimeLimit",
    "Wrapper",
]
