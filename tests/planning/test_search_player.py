"""Trained agents that search before each move."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.policy import policy_and_value
from rljax.algos.imitation.bc import bc_parts
from rljax.cli.main import main
from rljax.collect.environments import make_base_game, make_game
from rljax.collect.games.matches import play_match, policy_player
from rljax.core.games.versus import seat_player
from rljax.league.parts import game_parts
from rljax.planning import make_mcts, search_player
from rljax.planning.mcts import evaluation_from
from rljax.run.players import agent_player
from tests.run.export.kinds import player_of

TINY: dict[str, Any] = {
    "env": "TicTacToe-v0",
    "num_envs": 8,
    "num_steps": 8,
    "num_minibatches": 2,
    "total_timesteps": 512,
    "network": {"hidden": [8]},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        rljax.SelfPlayConfig(**TINY),
        rljax.LeagueConfig(**TINY, num_slots=1),
        rljax.BCConfig(**TINY, average_decay=0.9),
        rljax.DistillConfig(**TINY, normalize_observations=True),
    ],
)
def test_policy_and_value_say_what_the_policy_takes(config: Any) -> None:
    agent, state = player_of(config)
    assert agent.policy_and_value is not None
    obs = jnp.asarray(np.random.default_rng(0).integers(0, 2, (5, 18)), jnp.float32)
    logits, value = agent.policy_and_value(state, obs)
    assert (logits.shape, value.shape) == ((5, 9), (5,))
    np.testing.assert_array_equal(agent.act(state, obs, None, jax.random.key(1), True)[0], jnp.argmax(logits, -1))


@pytest.mark.slow
@pytest.mark.parametrize("bonus", [None, {"type": "count"}])
def test_values_for_a_search_are_in_the_unit_of_the_games_rewards_and_without_the_bonus(bonus: Any) -> None:
    config = rljax.LeagueConfig(**TINY, num_slots=1, league_exploiters=0, normalize_rewards=True, intrinsic=bonus)
    agent, state = player_of(config)
    var = jnp.array([4.0, 9.0])  # of the main agent, and of the exploiter
    known = state.reward_statistics.statistics.replace(var=var, count=jnp.ones(2))
    rewards = state.reward_statistics._replace(statistics=known)
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(3, 18)), jnp.float32)
    _, heads, _ = policy_and_value(game_parts(config).ppo, jax.tree.map(lambda x: x[0], state.params), obs)
    assert heads.shape == ((3,) if bonus is None else (3, 2))
    assert agent.policy_and_value is not None
    _, value = agent.policy_and_value(state.replace(reward_statistics=rewards), obs)
    np.testing.assert_allclose(value, 2.0 * (heads if bonus is None else heads[..., 0]), rtol=1e-5)
    # Agents packed by earlier versions have no statistics.
    packed = state.replace(reward_statistics=jax.tree.map(jnp.zeros_like, rewards))
    np.testing.assert_allclose(agent.policy_and_value(packed, obs)[1], value / 2.0, rtol=1e-5)
    scaled = rljax.make_agent(config.replace(scale_rewards=0.1))
    assert scaled.policy_and_value is not None
    np.testing.assert_allclose(scaled.policy_and_value(packed, obs)[1], value / 2.0 / 0.1, rtol=1e-5)


@pytest.mark.slow
def test_values_of_a_clone_for_a_search_are_in_the_unit_of_the_games_rewards() -> None:
    config = rljax.BCConfig(**TINY, normalize_rewards=True, scale_rewards=0.1)
    agent, state = player_of(config)
    statistics = state.reward_statistics.statistics
    known = statistics.replace(var=jnp.full_like(statistics.var, 4.0), count=jnp.ones_like(statistics.count))
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(3, 18)), jnp.float32)
    _, value, _ = policy_and_value(bc_parts(config), state.params, obs)
    assert agent.policy_and_value is not None
    after = state.replace(reward_statistics=state.reward_statistics._replace(statistics=known))
    np.testing.assert_allclose(agent.policy_and_value(after, obs)[1], 2.0 * value / 0.1, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("config", [rljax.SelfPlayConfig(**TINY), rljax.AlphaZeroConfig(**TINY), rljax.DistillConfig(**TINY)])
def test_search_makes_a_player_of_an_untrained_network(config: Any) -> None:
    agent = rljax.make_agent(config)
    state = agent.init(jax.random.key(0))
    game, params = rljax.make_env(config.env)
    players = search_player(agent, state, 64), policy_player(agent, state, deterministic=False)
    result = np.asarray(jax.jit(lambda key: play_match(game, params, *players, key, 100).result)(jax.random.key(1)))
    assert (result > 0).mean() > 0.6
    assert (result < 0).mean() < 0.1


@pytest.mark.slow
def test_a_search_of_frames_is_the_same_in_matches_and_in_the_training_game() -> None:
    """Its positions, also those that it looks ahead to, have what both players saw at their own last moves."""
    config = rljax.AlphaZeroConfig(**{**TINY, "num_simulations": 4}, frame_stack=3, flatten_observations=True)
    result = jax.jit(rljax.make_train(config))(jax.random.key(0))
    assert all(np.isfinite(x).all() for name, x in result.metrics.items() if name.startswith("train/"))
    agent, (game, params), (base, _) = rljax.make_agent(config), make_game(config), make_base_game(config)
    assert agent.policy_and_value is not None
    assert jax.tree.leaves(result.state.obs)[0].shape[-1] == 3 * 18
    evaluate = evaluation_from(partial(agent.policy_and_value, result.state))
    player = seat_player(search_player(agent, result.state, 24), base, params)
    plain = make_mcts(game, params, evaluate=evaluate, num_simulations=24)

    @jax.jit
    def both(key: jax.Array, position: Any, carry: Any) -> Any:
        inside = position.env_state
        wanted = plain(key, jax.tree.map(lambda x: x[None], position)).action[0]
        action, carry = player.act(key, inside, base.observe(inside, params), base.action_mask(inside, params), carry)
        _, position, _, over, _ = game.step_env(key, position, action, params)
        return position, carry, wanted, action[0], over

    _, position = game.reset_env(jax.random.key(0), params)
    carry = player.initial(position.env_state, base.observe(position.env_state, params))
    over, moves = False, 0
    while not over:
        position, carry, wanted, action, over = both(jax.random.key(moves), position, carry)
        assert int(wanted) == int(action)
        jax.tree.map(np.testing.assert_array_equal, carry, position.frames)
        moves += 1
    assert moves >= 5


@pytest.mark.slow
@pytest.mark.parametrize("ends", [False, True])
def test_a_search_takes_the_same_move_in_the_game_of_a_player_with_or_without_end_on_nan(ends: bool) -> None:
    config = rljax.SelfPlayConfig(**TINY, num_slots=1, end_on_nan=ends, time_limit=7)
    agent = rljax.make_agent(config)
    player = search_player(agent, agent.init(jax.random.key(0)), 4)
    moves = []
    for config_of_game in (config, config.replace(end_on_nan=not ends)):
        game, params = make_base_game(config_of_game)
        key = jax.random.key(1)
        _, state = game.reset_env(key, params)
        obs, state, *_ = game.step_env(key, state, jnp.array([4, 0]), params)
        moves.append(player(key, state, obs, game.action_mask(state, params)))
    np.testing.assert_array_equal(*moves)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (rljax.PPOConfig(), "ppo on CartPole-v1: only agents of games can search"),
        (rljax.SelfPlayConfig(**{**TINY, "env": "NumberDuel-v0"}), "players move at the same time"),
        (
            rljax.SelfPlayConfig(**TINY, clip_rewards=0.5),
            r"clip_rewards = 0\.5: the agent's values are of clipped rewards, .* expected none",
        ),
        (
            rljax.BCConfig(**TINY, vf_coef=0),
            r"vf_coef = 0\.0: the agent learned no values, and a search needs them; expected more",
        ),
        (rljax.DistillConfig(**{**TINY, "network": {"type": "gru"}}), "only agents of games can search, and only without memory"),
    ],
)
def test_what_cannot_search_is_refused(config: Any, message: str) -> None:
    agent = rljax.make_agent(config)
    with pytest.raises(rljax.ConfigError, match=message):
        search_player(agent, None, 8)
    if agent.config.of_games:  # `rljax tournament` refuses it before any game is played
        with pytest.raises(rljax.ConfigError, match=message):
            agent_player(agent, simulations=8)


@pytest.mark.slow
def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    rljax.fit(rljax.SelfPlayConfig(**TINY), run_dir="runs/a")
    rljax.fit(rljax.SelfPlayConfig(**{**TINY, "env": "NumberDuel-v0"}), run_dir="runs/b")
    main(["tournament", "runs/a", "--include", "random", "--games", "1000", "--simulations", "32"])
    lines = capsys.readouterr().out.splitlines()
    won, lost = next((int(line.split()[-3]), int(line.split()[-2])) for line in lines if line.startswith("a ") and "[" in line)
    assert won > 780  # 818 here; a hundred games would say .82 give or take .04
    assert lost < 90
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
