"""Curricula of games: games keep their levels, scores are those of the learner's own moves, and runs resume bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.policy import policy_and_value
from rljax.collect.curriculum.levels import LEVEL, GameLevels, level_state, with_levels
from rljax.collect.games.rollout import GameSteps, acting_view
from rljax.collect.games.turns import turn_advantages
from rljax.core.errors import ConfigError
from rljax.league.parts import GameParts, game_init, game_parts
from rljax.league.training import game_collect, game_update, make_games
from tests.collect.curriculum.plain_scores import PlainScores
from tests.league.stakes import Stakes, StakesParams
from tests.run.tiny_runs import assert_same_state

STAKES = (0.0, 3.0, 1.0)
PLR = {"type": "plr", "levels": {"stake": list(STAKES)}}
SMALL = {"num_envs": 8, "num_steps": 11, "num_epochs": 1, "num_minibatches": 1, "network": {"hidden": [8]}}
POOL = {"opponents": "uniform", "num_slots": 2, "pool_size": 4, "snapshot_every": 88}
LEAGUE = {"main_exploiters": 1, "league_exploiters": 0, "num_slots": 2, "pool_size": 4, "snapshot_every": 88}
LEARNERS: dict[str, rljax.SelfPlayConfig | rljax.LeagueConfig] = {
    "in turns": rljax.SelfPlayConfig(env=Stakes(), curriculum=PLR, **SMALL),
    "at once": rljax.SelfPlayConfig(env=Stakes(turns=False), curriculum=PLR, **SMALL),
    "against past selves in turns": rljax.SelfPlayConfig(env=Stakes(), curriculum=PLR, **POOL, **SMALL),
    "in a league at once": rljax.LeagueConfig(env=Stakes(turns=False), curriculum=PLR, learner="impala", **LEAGUE, **SMALL),
}


def iterations(parts: GameParts, count: int, seed: int = 0) -> list[tuple[Any, Any, GameSteps, Any]]:
    """Return of each iteration the state before it and after its games, these games, and the state after the update."""

    @jax.jit
    def iteration(state: Any) -> Any:
        played, steps = game_collect(parts, state)
        return played, steps, game_update(parts, played, steps)[0]

    state, found = jax.jit(lambda key: game_init(parts, key))(jax.random.key(seed)), []
    for _ in range(count):
        played, steps, after = iteration(state)
        found.append((state, played, steps, after))
        state = after
    return found


def plain_advantages(parts: GameParts, before: Any, played: Any, steps: GameSteps) -> tuple[np.ndarray, np.ndarray]:
    """Return the advantages of the moves, `[T, E, Q]`, and which are the learner's own with a known outcome."""
    config = parts.config
    last_obs, _, _, last_moves = acting_view(parts.game, played.env_state.game, played.obs, parts.game_params)
    games = config.num_envs // parts.learners
    values, last = [], []
    for learner in range(parts.learners):
        params = jax.tree.map(lambda x, i=learner: x[i], before.params)
        own = slice(learner * games, (learner + 1) * games)
        values.append(policy_and_value(parts.ppo, params, steps.obs[:, own])[1])
        last.append(policy_and_value(parts.ppo, params, last_obs[own])[1])
    found = turn_advantages(
        steps.reward,
        jnp.concatenate(values, axis=1),
        steps.moves,
        steps.done,
        jnp.concatenate(last),
        last_moves,
        config.gamma,
        config.gae_lambda,
        parts.game.turn_gap,
    )
    return np.asarray(found.gae), np.asarray(found.known & steps.mine)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_the_score_of_a_game_is_the_mean_over_the_learners_own_moves(name: str) -> None:
    """Also of games that go on in the next rollout; by plain loops over the moves of each game."""
    parts = game_parts(LEARNERS[name].replace(gamma=0.9, gae_lambda=0.8))
    plain, opponents = PlainScores(games=8, levels=3), 0
    for before, played, steps, after in iterations(parts, 3):
        advantage, own = plain_advantages(parts, before, played, steps)
        opponents += int((~np.asarray(steps.mine)).sum())
        plain.add(advantage, own, steps.done, steps.extras[LEVEL])
        np.testing.assert_allclose(after.curriculum.score, plain.scores, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(after.curriculum.seen, plain.seen)
        sums = np.asarray(level_state(after.env_state.game).score)
        np.testing.assert_allclose(sums, [(sum(x), len(x)) for x in plain.under_way], rtol=1e-4, atol=1e-5)
    assert plain.seen.all()
    assert (opponents > 0) == parts.config.has_pool


@pytest.mark.slow
@pytest.mark.parametrize("name", ["in turns", "in a league at once"])
def test_games_keep_their_level_and_most_have_the_one_with_the_highest_regret(name: str) -> None:
    parts = game_parts(LEARNERS[name].replace(num_envs=32, num_steps=16, curriculum={**PLR, "score": "positive_value"}))
    found = iterations(parts, 12)
    counts = np.zeros(3)
    for number, (before, _, steps, _) in enumerate(found):
        done, level = np.asarray(steps.done), np.asarray(steps.extras[LEVEL])
        np.testing.assert_array_equal(level[1:][~done[:-1]], level[:-1][~done[:-1]])
        stake = np.array(STAKES)[level]
        np.testing.assert_array_equal(np.asarray(steps.obs)[..., 0, 1], stake)
        assert (np.abs(steps.reward)[stake == 0] == 0).all()
        probability = np.asarray(parts.ppo.curriculum.probability(before.curriculum))
        begun = np.bincount(level[1:][done[:-1]], minlength=3)
        expected = probability * begun.sum()
        assert (np.abs(begun - expected) <= 5 * np.sqrt(expected * (1 - probability)) + 1e-6).all()
        counts += begun if number >= 4 else 0
    score = np.asarray(found[-1][3].curriculum.score)
    assert score[1] > 2 * max(score[0], score[2])
    assert counts.sum() > 500
    # Rank 1 of three with temperature 0.1 has nearly all of P_S, 0.9 of the games.
    assert counts[1] / counts.sum() > 0.8
    assert (counts > 0).all()


@pytest.mark.slow
def test_a_level_without_a_move_of_the_learner_has_no_score() -> None:
    """Games of one move in turns: half of them are only the opponent's."""
    table = {"type": "plr", "levels": {"length": [1]}}
    config = rljax.SelfPlayConfig(env=Stakes(), curriculum=table, **POOL, **{**SMALL, "num_steps": 3})
    parts = game_parts(config)
    for before, played, steps, after in iterations(parts, 2):
        advantage, own = plain_advantages(parts, before, played, steps)
        assert 0 < own.sum() < own[:-1].size
        np.testing.assert_allclose(after.curriculum.score, np.abs(advantage[own]).mean(), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["at once", "in a league at once"])
def test_a_run_with_levels_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    config = LEARNERS[name].replace(
        env="tests.league.stakes:Stakes", env_params={"turns": False}, total_timesteps=88 * 6, anneal_lr=False
    )
    rljax.fit(config.replace(total_timesteps=88 * 3), run_dir=tmp_path / "run")
    whole = rljax.fit(config)
    resumed = rljax.fit(resume=tmp_path / "run", total_timesteps=88 * 6)
    assert_same_state(resumed.state, whole.state)
    assert np.asarray(whole.state.curriculum.seen).all()


@pytest.mark.slow
def test_seeds_have_their_own_curricula_and_metrics() -> None:
    agent = rljax.make_agent(LEARNERS["in turns"])

    def run(key: jax.Array) -> Any:
        return jax.lax.scan(lambda state, _: agent.step(state), agent.init(key), None, 3)

    state, metrics = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(5)))
    assert not np.array_equal(state.curriculum.score[0], state.curriculum.score[1])
    assert metrics["curriculum/score_1"].shape == (2, 3)
    assert (metrics["curriculum/seen"] > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("pool", [False, True])
def test_levels_in_order_follow_success(pool: bool) -> None:
    """The bonus makes all games of a level successes: each rollout reaches the next level."""
    table = {"type": "success", "levels": {"bonus": [5.0, 6.0, 0.0]}, "success": 1.0, "min_episodes": 4}
    config = rljax.SelfPlayConfig(env=Stakes(), curriculum=table, **(POOL if pool else {}), **SMALL)
    agent = make_games(config)
    state, reached = agent.init(jax.random.key(0)), []
    step = jax.jit(agent.step)
    for _ in range(5):
        state, metrics = step(state)
        reached.append(int(metrics["curriculum/reached"]))
    assert reached[0] == 1
    assert reached[-1] == 2
    named = config.replace(curriculum={**table, "success": "played"})
    assert jax.eval_shape(lambda key: make_games(named).step(make_games(named).init(key))[1], jax.random.key(0))


@pytest.mark.parametrize("fields", [{"frame_stack": 2}, {"weights": "player"}, {"central_critic": True}, {"time_limit": 3}])
def test_levels_are_inside_of_what_fields_change(fields: dict[str, Any]) -> None:
    config = LEARNERS["at once"].replace(**fields)
    metrics = jax.eval_shape(lambda key: rljax.make_train(config.replace(total_timesteps=88))(key), jax.random.key(0)).metrics
    assert metrics["curriculum/level"].shape == (1,)


@pytest.mark.slow
def test_evaluations_are_on_the_parameters_of_the_configuration() -> None:
    config = rljax.SelfPlayConfig(
        env=Stakes(turns=False), curriculum={"type": "success", "levels": {"bonus": [0.0, 10.0]}, "success": 1e9}, **SMALL
    ).replace(env_params={"stake": 0.0, "bonus": 5.0})
    agent = rljax.make_agent(config)
    returns = np.asarray(rljax.evaluate(agent, agent.init(jax.random.key(0)), jax.random.key(1), 20))
    assert set(returns.tolist()) == {20.0}


class Outcomes(Stakes):
    """A game of a given outcome of chance, which is what the stake is multiplied by."""

    def step_outcome(self, state: Any, action: Any, outcome: jax.Array, params: Any) -> Any:
        obs, after, _, terminated, info = self.step_env(jax.random.key(0), state, action, params)
        return obs, after, params.stake * outcome * jnp.array([1.0, -1.0]), terminated, info


def test_a_step_of_a_given_outcome_is_on_the_games_level() -> None:
    game, params = with_levels(Outcomes(), StakesParams(), PLR["levels"])
    assert isinstance(game, GameLevels)
    _, state = game.reset_env(jax.random.key(0), params)
    for level, stake in enumerate(STAKES):
        now = state._replace(level=jnp.int32(level))
        obs, after, reward, _, info = game.step_outcome(now, jnp.zeros(2, jnp.int32), jnp.int32(2), params)
        assert reward.tolist() == [2 * stake, -2 * stake]
        assert obs[:, 1].tolist() == [stake, stake]
        assert (int(after.level), int(info[LEVEL])) == (level, level)


def test_scripted_players_know_the_level() -> None:
    game, params = with_levels(*rljax.make_env("HabitRPS-v0"), {"habit": [0.0, 1.0]})
    name = next(iter(game.scripted))
    _, state = game.reset_env(jax.random.key(0), params)
    keys = jax.random.split(jax.random.key(1), 32)
    never, always = (
        jax.vmap(lambda key, x=level: game.scripted[name](key, state._replace(level=jnp.int32(x)), params))(keys)
        for level in range(2)
    )
    assert (always == always[0, 0]).all()
    assert (never != always).all()


def test_what_games_cannot_do_with_levels_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^curriculum.levels: Stakes has no parameter 'stakes'.*did you mean 'stake'"):
        game_parts(LEARNERS["in turns"].replace(curriculum={**PLR, "levels": [{"stakes": 1.0}]}))
    with pytest.raises(ConfigError, match=r"^randomize: stake: is a parameter of the curriculum's levels, too"):
        game_parts(LEARNERS["in turns"].replace(randomize={"stake": [0.0, 1.0]}))
    with pytest.raises(ConfigError, match=r"Stakes with levels does not enumerate its initial states, which an exact tree needs"):
        game_parts(LEARNERS["in turns"].replace(exploitability_every=88))
