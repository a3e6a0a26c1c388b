"""Environments and games of configurations: what is refused, and what training sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rljax
from rljax.envs import KuhnPoker, Versus
from rljax.wrappers import ClipReward, FrameStack, TimeLimit, Wrapper


class Mine(Wrapper):
    """A user's own wrapper, which derives from that of environments."""


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda game: TimeLimit(game, 3), "TimeLimit"),
        (lambda game: FrameStack(game, 2), "FrameStack"),
        (lambda game: ClipReward(Mine(game), 1.0), "ClipReward"),
        (Mine, "Mine"),
        (Versus, "Versus"),
    ],
)
@pytest.mark.parametrize("kind", [rljax.SelfPlayConfig, rljax.AlphaZeroConfig])
def test_wrappers_of_environments_around_a_game_are_refused_by_name(kind: Any, wrap: Callable[[Any], Any], name: str) -> None:
    expected = (
        rf"env: {name} around KuhnPoker-v0 is an environment of one agent, expected a game: give the game itself with "
        r"time_limit, frame_stack, scale_rewards or clip_rewards, or a wrapper derived from "
        r"rljax\.core\.games\.game_wrappers\.WrappedGame$"
    )
    with pytest.raises(rljax.ConfigError, match=expected):
        rljax.make_agent(kind(env=wrap(KuhnPoker())))
    with pytest.raises(rljax.ConfigError, match=r"env = 'CartPole-v1': is not a game of several players"):
        rljax.make_agent(kind(env=TimeLimit(rljax.make_env("CartPole-v1")[0], 3)))
