"""Trained agents that search before each move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.cli.main import main
from rljax.collect.games.matches import play_match, policy_player
from rljax.planning import search_player

TINY: dict[str, Any] = {
    "env": "TicTacToe-v0",
    "num_envs": 8,
    "num_steps": 8,
    "num_minibatches": 2,
    "total_timesteps": 512,
    "network": {"hidden": [8]},
}


@pytest.mark.slow
@pytest.mark.parametrize("config", [rljax.SelfPlayConfig(**TINY), rljax.LeagueConfig(**TINY, num_slots=1)])
def test_policy_and_value_say_what_the_policy_takes(config: Any) -> None:
    agent = rljax.make_agent(config)
    state = agent.init(jax.random.key(0))
    assert agent.policy_and_value is not None
    obs = jnp.asarray(np.random.default_rng(0).integers(0, 2, (5, 18)), jnp.float32)
    logits, value = agent.policy_and_value(state, obs)
    assert (logits.shape, value.shape) == ((5, 9), (5,))
    np.testing.assert_array_equal(agent.act(state, obs, None, jax.random.key(1), True)[0], jnp.argmax(logits, -1))


@pytest.mark.slow
@pytest.mark.parametrize("config", [rljax.SelfPlayConfig(**TINY), rljax.AlphaZeroConfig(**TINY)])
def test_search_makes_a_player_of_an_untrained_network(config: Any) -> None:
    agent = rljax.make_agent(config)
    state = agent.init(jax.random.key(0))
    game, params = rljax.make_env(config.env)
    players = search_player(agent, state, 64), policy_player(agent, state, deterministic=False)
    result = np.asarray(jax.jit(lambda key: play_match(game, params, *players, key, 100).result)(jax.random.key(1)))
    assert (result > 0).mean() > 0.6
    assert (result < 0).mean() < 0.1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (rljax.PPOConfig(), "ppo on CartPole-v1: only agents of games can search"),
        (rljax.SelfPlayConfig(**{**TINY, "env": "NumberDuel-v0"}), "players move at the same time"),
    ],
)
def test_what_cannot_search_is_refused(config: Any, message: str) -> None:
    agent = rljax.make_agent(config)
    with pytest.raises(rljax.ConfigError, match=message):
        search_player(agent, None, 8)


@pytest.mark.slow
def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    rljax.fit(rljax.SelfPlayConfig(**TINY), run_dir="runs/a")
    rljax.fit(rljax.SelfPlayConfig(**{**TINY, "env": "NumberDuel-v0"}), run_dir="runs/b")
    main(["tournament", "runs/a", "--include", "random", "--games", "50", "--simulations", "32"])
    lines = capsys.readouterr().out.splitlines()
    won, lost = next((int(line.split()[-3]), int(line.split()[-2])) for line in lines if line.startswith("a ") and "[" in line)
    assert won > 40
    assert lost < 5
    moves = iter("123456789")
    monkeypatch.setattr("builtins.input", lambda _: next(moves))
    main(["play", "runs/a", "--simulations", "32"])
    assert "rljax" not in capsys.readouterr().err
    for arguments, message in (
        (["tournament", "runs/a", "--include", "random", "--simulations", "-1"], "simulations = -1"),
        (["play", "runs/a", "--simulations", "8", "--sample"], "simulations = 8: a search does not sample"),
        (["play", "runs/b", "--simulations", "8"], "players move at the same time"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert message in error, error
        assert error.count("\n") == 1
