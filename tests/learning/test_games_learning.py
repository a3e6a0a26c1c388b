"""What self-play and leagues learn, against exact values and controls; several seeds each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.collect.games.matches import play_match, policy_player
from rljax.core.games.versus import Player, random_player
from rljax.league import exact_report, exploitability, exploited, tree_policies
from rljax.run.reproduce.playing.game_features import as_game
from rljax.run.reproduce.playing.games import greedy_painter
from rljax.run.reproduce.playing.perfect import perfect_player

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def trained(config: Any, seeds: int, key: int = 0) -> Any:
    return jax.jit(jax.vmap(rljax.make_train(config)))(jax.random.split(jax.random.key(key), seeds))


def last_exploitability(config: Any, state: Any) -> np.ndarray:
    parts = rljax.game_parts(config)
    assert parts.tree is not None

    def of(state: Any) -> jax.Array:
        return exploitability(parts.tree, tree_policies(parts, jax.tree.map(lambda x: x[0], state.params)))

    return np.asarray(jax.jit(jax.vmap(of))(state))


def exact_reports(config: Any, state: Any) -> Any:
    """`exact_report` of every seed."""
    return jax.jit(jax.vmap(lambda s: exact_report(rljax.game_parts(config), s)))(state)


def rounded(x: Any) -> list[float]:
    return np.round(np.asarray(x, np.float64), 3).tolist()


@pytest.mark.long
def test_a_league_comes_to_the_equilibrium_of_unequal_stakes(figure: Any) -> None:
    """Biased rock, paper, scissors over 50: last iterate, pool average, meta-Nash; self-play and a uniform pool beside them."""
    config, seeds = rljax.load_config("biased_rps_league", exploitability_every=1_000_000), 3
    result = trained(config, seeds)
    report = exact_reports(config, result.state)
    found = {name: rounded(getattr(report, name)) for name in ("last", "average", "meta_nash")}
    figure(f"biased RPS, exploitability of the league: {found}")
    shared = {
        name: getattr(config, name)
        for name in (
            "env", "total_timesteps", "num_envs", "num_steps", "num_epochs", "num_minibatches", "network", "learning_rate",
            "normalize_advantages", "vf_clip_eps", "max_grad_norm", "num_slots", "snapshot_every", "exploitability_every",
        )
    }  # fmt: skip
    controls = {
        "self-play without entropy": {"ent_coef": 0.0},
        "uniform pool": {"ent_coef": 0.0, "opponents": "uniform"},
    }
    controlled = {}
    for name, changes in controls.items():
        control = rljax.SelfPlayConfig(**{**shared, **changes})
        controlled[name] = last_exploitability(control, trained(control, seeds).state)
        figure(f"biased RPS, {name}: last {rounded(controlled[name])}")
    assert report.last.max() <= 0.05
    assert report.meta_nash.max() <= 0.02
    for name in controls:
        assert report.last.mean() < 0.6 * controlled[name].mean()


def nash_conv(report: Any, value: float) -> str:
    """A line of what `exact_reports` found in poker, and the game's own value."""
    found = {name: rounded(2 * getattr(report, name)) for name in ("last", "average", "meta_nash", "averaged")}
    return f"NashConv: {found}; value {rounded(report.average_value)} ({value:.3f})"


@pytest.mark.long
def test_kuhn_poker(figure: Any) -> None:
    """On demand: minutes of a processor. The last policy, the averaged parameters and the average of the pool; uniform play has
    a NashConv of .92.
    """
    config = rljax.load_config("kuhn_league")
    result = trained(config, 5)
    report = exact_reports(config, result.state)
    figure(f"Kuhn poker, {nash_conv(report, -1 / 18)}")
    for part in (report.last, report.averaged, report.average):
        assert (2 * part).mean() <= 0.03
    assert abs(float(report.average_value.mean()) + 1 / 18) <= 0.01


@pytest.mark.long
def test_leduc_poker(figure: Any) -> None:
    """A few of the preset's steps. Uniform play has a NashConv of 4.75; published policy gradients end at .60 to 1.05."""
    config = rljax.load_config("leduc_league", total_timesteps=6_000_000, snapshot_every=30_000)
    result = trained(config, 2)
    report = exact_reports(config, result.state)
    figure(f"Leduc poker, {nash_conv(report, -0.0856)}")
    assert (2 * report.average).max() <= 0.8
    assert np.abs(np.asarray(report.average_value) + 0.0856).max() <= 0.07


def lost_to_a_perfect_player(config: Any, state: Any) -> jax.Array:
    """Count the games that the greedy policy loses, of 100 in each seat, `[2]`."""
    game, params = rljax.make_env(config.env)
    player = policy_player(rljax.make_agent(config), state, True)
    match = play_match(game, params, player, perfect_player(), jax.random.key(5), 200)
    return jnp.stack([jnp.sum((match.result < 0) & (match.seat == seat)) for seat in (0, 1)])


@pytest.mark.long
def test_tic_tac_toe_is_never_lost_to_a_perfect_player(figure: Any) -> None:
    """Two seeds, for time; five are in the record of `rljax reproduce`."""
    config = rljax.load_config("tictactoe_selfplay", eval_every=None)
    result = trained(config, 2)
    losses = np.asarray(jax.jit(jax.vmap(lambda state: lost_to_a_perfect_player(config, state)))(result.state))
    figure(f"tic-tac-toe: of 100 games in each seat against a perfect player lost {losses.tolist()}")
    assert losses.sum() == 0


@pytest.mark.long
def test_alphazero_learns_tic_tac_toe(figure: Any) -> None:
    """Moves without a search; an untrained policy loses all games of one seat or more. Connect Four is learned on demand."""
    config = rljax.load_config("tictactoe_alphazero", total_timesteps=300_000, eval_every=None)
    state = trained(config, 2).state
    losses = np.asarray(jax.jit(jax.vmap(lambda state: lost_to_a_perfect_player(config, state)))(state))
    figure(f"AlphaZero, tic-tac-toe: of 100 games in each seat against a perfect player lost {losses.tolist()}")
    assert (losses.sum(axis=1) <= 20).all()


@pytest.mark.long
def test_exploiters_gain_less_from_a_league(figure: Any) -> None:
    """Number Duel: what a fresh PPO wins from the main agent, and from plain self-play of as many steps; 5 is all there is.

    Much of it is the entropy bonus, so self-play with the same one is shown as well.
    """
    config = rljax.load_config("number_duel_league", total_timesteps=600_000, eval_every=None)
    control = rljax.SelfPlayConfig(
        **{name: getattr(config, name) for name in (
            "env", "total_timesteps", "num_envs", "num_steps", "num_epochs", "num_minibatches", "network", "learning_rate",
            "gamma",
        )},
        ent_coef=0.0,
    )  # fmt: skip
    gains = {}
    arms = {"league": config, "self-play": control, "self-play with its entropy bonus": control.replace(ent_coef=config.ent_coef)}
    for name, arm in arms.items():
        agent, state = rljax.make_agent(arm), trained(arm, 3).state

        def gain(state: Any, key: jax.Array, agent: Any = agent) -> jax.Array:
            budget: dict[str, Any] = {
                "total_timesteps": 200_000,
                "num_envs": 64,
                "num_steps": 16,
                "learning_rate": 1e-3,
                "gamma": 1.0,
            }
            return exploited(agent, state, key, network={"hidden": [64, 64]}, **budget).value

        gains[name] = np.asarray(jax.jit(jax.vmap(gain))(state, jax.random.split(jax.random.key(9), 3)))
        figure(f"Number Duel: a fresh exploiter wins {rounded(gains[name])} a game from {name}")
    assert gains["league"].mean() < 0.6 * gains["self-play"].mean()


def test_a_team_that_shares_weights_and_rewards_beats_players_who_are_greedy_alone(figure: Any) -> None:
    """Territory: the mean lead in cells at the end, of 200 games each, after half of the preset's budget."""
    config = rljax.load_config("territory_selfplay", total_timesteps=250_000, eval_every=None)
    game, params = rljax.make_env(config.env)
    agent, result = rljax.make_agent(config), trained(config, 2)
    others = {
        "random": random_player,
        "greedy for the next step": greedy_painter(False),
        "greedy for the nearest": greedy_painter(True),
    }
    leads = {}
    for name, other in others.items():

        def lead(state: Any, other: Player = other) -> jax.Array:
            return jnp.mean(
                play_match(game, params, policy_player(agent, state, deterministic=False), other, jax.random.key(1), 200).result
            )

        leads[name] = np.asarray(jax.jit(jax.vmap(lead))(result.state))
        figure(f"Territory, lead of self-play over players who are {name}: {rounded(leads[name])} cells of 49")
    assert leads["random"].min() > 15
    assert leads["greedy for the next step"].min() > 2
    assert leads["greedy for the nearest"].min() > 8


@pytest.mark.long
def test_two_players_push_a_beam_that_is_too_heavy_for_one(figure: Any) -> None:
    """Shared weights with the team's reward; an idle partner makes every return 0 (tests/envs/test_games.py). Two seeds, for
    time; five are in the record of `rljax reproduce`.
    """
    config = rljax.load_config("heavy_box_selfplay", eval_every=None)
    agent, seeds = rljax.make_agent(config), 2
    state = trained(config, seeds).state
    keys = jax.random.split(jax.random.key(1), seeds)
    returns = jax.jit(jax.vmap(lambda s, k: rljax.evaluate(agent, s, k, 100).mean()))(state, keys)
    figure(f"HeavyBox: {rounded(returns)}")
    assert float(returns.min()) > 0.95


@pytest.mark.long
def test_memory_decides_in_a_game_of_turns(figure: Any) -> None:
    """T-maze for each player: with a memory for every seat nobody is wrong, without one it is a guess."""
    for network, low, high in (("gru", 0.95, 1.01), ("mlp", -2.0, 0.3)):
        changes: dict[str, Any] = {} if network == "gru" else {"network": {"hidden": [32, 32]}}
        config = as_game("tmaze_ppo_gru", env_params={"turns": True}, **changes)
        agent, seeds = rljax.make_agent(config), 3
        state = trained(config, seeds).state
        keys = jax.random.split(jax.random.key(1), seeds)
        returns = jax.jit(jax.vmap(lambda s, k, agent=agent: rljax.evaluate(agent, s, k, 100).mean()))(state, keys)
        figure(f"T-maze in turns, {network}: {rounded(returns)}")
        assert low < float(returns.min())
        assert float(returns.max()) < high


@pytest.mark.long
def test_three_players_leave_a_fourth_nothing_to_exploit(figure: Any) -> None:
    """Kuhn poker of three: what a fresh PPO wins a game from two copies of the policy, trained and untrained."""
    config = rljax.load_config("kuhn3_selfplay", eval_every=None, total_timesteps=1_000_000)
    agent, seeds = rljax.make_agent(config), 2
    keys = jax.random.split(jax.random.key(0), seeds)

    @jax.jit
    @jax.vmap
    def found(state: Any, key: jax.Array) -> jax.Array:
        return exploited(agent, state, key, total_timesteps=150_000, num_envs=64, num_steps=32, num_minibatches=4).value

    won = {
        name: found(state, keys)
        for name, state in (("trained", trained(config, seeds).state), ("not", jax.vmap(agent.init)(keys)))
    }
    figure(f"Kuhn poker of three, what a fresh PPO wins: {rounded(won['trained'])}, untrained {rounded(won['not'])}")
    assert float(won["trained"].max()) < 0.15  # of 1,000 games, so within .04 of the mean
    assert float(won["not"].min()) > 0.3
