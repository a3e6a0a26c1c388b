"""Environments and games of configurations: what is refused, and what training sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import rljax
from rljax.collect.environments import make_game, make_training_env
from rljax.core.games.game_step_wrappers import GameStickyActions
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


@pytest.mark.parametrize("unchanged", [{"action_repeat": 1}, {"sticky_actions": 0.0}])
def test_values_that_leave_steps_as_they_are_wrap_nothing(unchanged: dict[str, Any]) -> None:
    """Not even games and environments whose masks change refuse them."""
    for kind in (rljax.SelfPlayConfig, rljax.AlphaZeroConfig):
        plain, usual = (make_game(kind(env="TicTacToe-v0", **fields))[0] for fields in ({}, unchanged))
        assert type(usual) is type(plain)
    plain, usual = (make_training_env(rljax.PPOConfig(env="MaskedBandit-v0", **fields))[0] for fields in ({}, unchanged))
    assert type(usual.env) is type(plain.env)


def test_a_traced_probability_wraps_whatever_its_value() -> None:
    config = rljax.SelfPlayConfig(env="BiasedRPS-v0")
    made = []
    jax.eval_shape(jax.vmap(lambda x: made.append(make_game(config.replace(sticky_actions=x))[0])), jnp.zeros(2))
    assert isinstance(made[0], GameStickyActions)
