"""Resets of exploiters: to which parameters, when one has stopped improving, and leagues that begin with given parameters."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.optimizer import adam
from rljax.algos.common.policy import policy_and_value
from rljax.collect.minibatches import init_optimizer
from rljax.collect.normalizers import normalize
from rljax.core.games.versus import Versus, random_player
from rljax.envs import TicTacToe
from rljax.league.exploit import branch
from rljax.league.league import League, restarted
from rljax.league.parts import Player, players_of, split_player
from rljax.league.rules import INITIAL, LEAGUE_EXPLOITER, MAIN, MAIN_EXPLOITER, NO_RATE, without_monotonic_suffix
from rljax.league.training import game_init, game_parts, league_step, make_games
from rljax.run.files.folder import Run
from rljax.run.start import start_forked
from rljax.run.view.tournament import league_standings
from tests.league.test_rules import RULES


def params_of(*values: float) -> Any:
    return {"w": jnp.array(values)[:, None]}


def with_results(league: League, wins: np.ndarray, games: float = 10.0) -> League:
    """The league with as many games of all pairs, `wins` of them won."""
    full = jnp.full(wins.shape, games)
    record = league.payoff.record._replace(games=full, wins=jnp.asarray(wins, jnp.float32), losses=full - wins)
    return league.replace(payoff=league.payoff.replace(record=record))


@pytest.mark.slow
def test_exploiters_are_reset_to_a_current_main_agent_each_as_likely() -> None:
    roles = (MAIN, MAIN_EXPLOITER, MAIN, LEAGUE_EXPLOITER)
    rules = RULES._replace(name="simple", roles=roles, snapshot_every=1, league_reset=1.0, reset_to="main")
    league = League.create(rules, params_of(1.0, 2.0, 3.0, 4.0), pool_size=8, slots=1)
    trained = params_of(0.1, 0.2, 0.3, 0.4)
    keys = jax.random.split(jax.random.key(0), 60)
    review = jax.vmap(lambda key: league.review(rules, key, trained, jnp.int32(3))[1:])
    taken, origin = jax.jit(review)(keys)
    assert taken.all()
    assert (origin[:, jnp.array([0, 2])] == jnp.array([0, 2])).all()
    counts = np.bincount(np.asarray(origin[:, jnp.array([1, 3])]).ravel(), minlength=4)
    assert counts[[1, 3]].sum() == 0
    assert min(counts[0], counts[2]) >= 33  # 120 draws of 1/2; five standard deviations are 27
    now = restarted(jnp.array([0, 2, 2, INITIAL]), trained, league.initial)
    np.testing.assert_array_equal(now["w"][:, 0], jnp.array([0.1, 0.3, 0.3, 4.0]))


@pytest.mark.slow
def test_an_exploiter_that_stopped_improving_restarts_from_the_main_agent() -> None:
    """Win rates by hand over 40 reviews, and the rule in plain Python."""
    roles, window, gain = (MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER), 4, 0.1
    rules = RULES._replace(roles=roles, snapshot_every=6, snapshot_timeout=15, branch_after=window, branch_gain=gain)
    league = League.create(rules, params_of(1.0, 2.0, 3.0), pool_size=30, slots=1)
    rng, players = np.random.default_rng(0), 33
    review = jax.jit(lambda league, key, iteration: league.review(rules, key, params_of(0.1, 0.2, 0.3), iteration))
    mark: list[float | None] = [None] * 3
    marked, snapshot, branches, snapshots = [0] * 3, [0] * 3, 0, 0
    for iteration in range(1, 41):
        wins = rng.integers(0, 7, (players, players)).astype(float)
        league = with_results(league, wins)
        pool = [3 + i for i in np.flatnonzero(league.pool.filled)]
        before = np.asarray(league.generation)
        key = jax.random.key(iteration)
        league, taken, origin = review(league, key, jnp.int32(iteration))
        for i, targets in ((1, [0]), (2, pool)):
            rate = float(np.mean(wins[i, targets])) / 10
            # An earlier learner's snapshot of this review is in the pool without games, and does not count.
            ends = iteration - marked[i] >= window
            stuck = ends and mark[i] is not None and rate < mark[i] + gain
            waited = iteration - snapshot[i] >= rules.snapshot_timeout
            assert bool(taken[i]) == (stuck or waited)
            assert not stuck or int(origin[i]) == 0
            assert stuck or int(origin[i]) in ((i, INITIAL) if waited else (i,))
            reset = int(origin[i]) != i
            mark[i] = None if reset else rate if ends else mark[i]
            marked[i] = iteration if reset or ends else marked[i]
            snapshot[i] = iteration if stuck or waited else snapshot[i]
            branches, snapshots = branches + stuck, snapshots + bool(taken[i])
            if reset:
                assert int(league.generation[i]) == before[i] + 1
                games = np.asarray(league.payoff.record.games)
                assert games[i].sum() == games[:, i].sum() == 0.0
    assert branches >= 4
    assert int(league.pool.filled.sum()) >= 3 + snapshots


def tiny_league(**changes: Any) -> rljax.LeagueConfig:
    return rljax.LeagueConfig(
        **{"env": "BiasedRPS-v0", "num_envs": 6, "num_slots": 1, "num_steps": 2, "num_minibatches": 1, "pool_size": 8,
           "main_agents": 2, "main_exploiters": 1, "league_exploiters": 0, "network": {"hidden": [4]}, **changes}
    )  # fmt: skip


@pytest.mark.slow
def test_a_branch_has_the_main_agents_parameters_and_a_fresh_optimiser() -> None:
    config = tiny_league(branch_after=12, branch_gain=1.0, average_decay=0.9)
    parts = game_parts(config)
    state = game_init(parts, jax.random.key(0))
    assert state.league is not None
    used = jax.tree.map(lambda x: x + jnp.ones((), x.dtype), state.opt_state)
    league = with_results(state.league, np.full((11, 11), 5.0)).replace(mark=jnp.array([NO_RATE, NO_RATE, 0.5]))
    average = jax.tree.map(lambda x: x - 1.0, state.params)
    state = state.replace(opt_state=used, league=league, average_params=average, iteration=jnp.int32(5))
    after, metrics = jax.jit(lambda s: league_step(parts, s))(state)
    assert float(metrics["league/branches"]) == float(metrics["league/resets"]) == 1.0
    source = [
        i
        for i in (0, 1)
        if all(np.array_equal(x[2], old[i]) for x, old in zip(*map(jax.tree.leaves, (after.params, state.params)), strict=True))
    ]
    assert len(source) == 1
    fresh = init_optimizer(adam(config), jax.tree.map(lambda x: x[2], after.params))
    for now, was, new in zip(*map(jax.tree.leaves, (after.opt_state, used, fresh)), strict=True):
        np.testing.assert_array_equal(now[2], new)
        np.testing.assert_array_equal(now[:2], was[:2])
    for now, was, new in zip(*map(jax.tree.leaves, (after.average_params, average, after.params)), strict=True):
        np.testing.assert_array_equal(now[2], new[2])
        np.testing.assert_array_equal(now[:2], was[:2])
    for now, was in zip(*map(jax.tree.leaves, (after.params, state.params)), strict=True):
        np.testing.assert_array_equal(now[:2], was[:2])
    games = np.asarray(after.league.payoff.record.games)
    assert games[2].sum() == games[:, 2].sum() == 0.0
    assert games[0, 1] == 10.0


@pytest.mark.slow
def test_a_league_branches_from_one_players_parameters() -> None:
    agent = make_games(tiny_league())
    one = jax.tree.map(lambda x: x[0] + 0.5, agent.init(jax.random.key(5)).params)
    state = branch(agent, one, jax.random.key(0))
    for x, *everywhere in zip(
        *map(jax.tree.leaves, (one, state.params, state.league.initial, state.league.pool.params, state.league.lanes)),
        strict=True,
    ):
        assert all(np.array_equal(other[i], x) for other in everywhere[:3] for i in range(3))
        np.testing.assert_array_equal(everywhere[3], np.broadcast_to(x, everywhere[3].shape))


@pytest.mark.slow
def test_a_league_forks_from_a_run_of_one_player_and_resets_its_exploiters_to_it(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"total_timesteps": 48, "seed": 3}
    alone = rljax.SelfPlayConfig(
        env="BiasedRPS-v0", num_envs=6, num_steps=2, num_minibatches=1, network={"hidden": [4]}, learning_rate=1e-2, **shared
    )
    rljax.fit(alone, run_dir=tmp_path / "alone")
    taught = rljax.load_run(tmp_path / "alone").state.params
    config = tiny_league(**shared).replace(total_timesteps=60)
    with pytest.warns(rljax.RljaxWarning, match="league"):
        state = rljax.fit(config, fork=tmp_path / "alone", run_dir=tmp_path / "league", callback=lambda *_: True).state
    for x, first, pool in zip(*map(jax.tree.leaves, (taught, state.league.initial, state.league.pool.params)), strict=True):
        for i in range(3):
            np.testing.assert_array_equal(first[i], x[0])
            np.testing.assert_array_equal(pool[i], x[0])
    with pytest.raises(rljax.ConfigError, match="cannot take the weights"):
        rljax.fit(config.replace(network={"hidden": [5]}), fork=tmp_path / "alone", run_dir=tmp_path / "other")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "seeds"), [("self-play", None), pytest.param("self-play", 2, marks=pytest.mark.long), ("one player", None)]
)
def test_a_fork_gives_players_the_statistics_with_the_parameters(source: str, seeds: int | None, tmp_path: Path) -> None:
    """All players of a league that begins act as the run did that it begins with, on observations that are not normalised yet."""
    shared: dict[str, Any] = {"num_envs": 6, "num_steps": 4, "num_minibatches": 1, "network": {"hidden": [4]}, "seed": 3}
    shared |= {"normalize_observations": True, "learning_rate": 1e-2}
    if source == "self-play":
        before: Any = rljax.SelfPlayConfig(env="TicTacToe-v0", total_timesteps=24 * 8, **shared)
    else:
        before = rljax.PPOConfig(env=Versus(TicTacToe(), random_player), total_timesteps=24 * 8, **shared)
    taught = rljax.fit(before, run_dir=tmp_path / "before", seeds=seeds).state
    config = rljax.LeagueConfig(
        env="TicTacToe-v0", num_slots=1, pool_size=8, main_exploiters=1, league_exploiters=1, total_timesteps=24 * 16, **shared
    )
    parts, begun = game_parts(config), rljax.make_agent(config)
    with pytest.warns(rljax.RljaxWarning, match="league"):
        forked = start_forked(tmp_path / "before", begun, seeds).state
    obs = jax.random.uniform(jax.random.key(0), (7, *forked.obs.shape[-3:]))

    def chosen(kept: Any) -> np.ndarray:
        params, statistics = split_player(kept)
        return np.asarray(policy_and_value(parts.ppo, params, normalize(statistics, obs))[0])

    for seed in range(seeds or 1):
        old, new = (jax.tree.map(lambda x, i=seed: x if seeds is None else x[i], s) for s in (taught, forked))
        if source == "self-play":
            old = jax.tree.map(lambda x: x[0], (old.params, old.obs_statistics))
        else:
            old = (old.params, old.obs_statistics)
        expected = chosen(Player(*old))
        assert not np.allclose(expected, chosen(Player(old[0], jax.tree.map(jnp.ones_like, old[1]))))
        assert float(old[1].count) > 100
        for i in range(3):
            for kept in (players_of(new), new.league.initial, new.league.pool.params):
                np.testing.assert_allclose(chosen(jax.tree.map(lambda x, i=i: x[i], kept)), expected, rtol=1e-6, atol=1e-7)
            np.testing.assert_array_equal(new.obs_statistics.count[i], old[1].count)
        for lanes in jax.tree.leaves(new.league.lanes.obs_statistics.count):
            assert (lanes == old[1].count).all()
    with pytest.warns(rljax.RljaxWarning, match="league"):
        after = rljax.fit(config, fork=tmp_path / "before", run_dir=tmp_path / "league").state
    assert (after.obs_statistics.count > forked.obs_statistics.count).all()


def forkable_league(**changes: Any) -> rljax.LeagueConfig:
    """A league of 24 steps an iteration, whose learners all take a snapshot every 48 steps."""
    return tiny_league(
        **{"env": "Draft-v0", "num_steps": 4, "pool_size": 24, "league_rules": "simple", "snapshot_every": 48,
           "learning_rate": 1e-2, "average_decay": 0.9, "normalize_observations": True, "total_timesteps": 240, **changes}
    )  # fmt: skip


@pytest.fixture(scope="module")
def league_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("league") / "run"
    return folder, rljax.fit(forkable_league(), run_dir=folder, seeds=2).state


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [8, 3, 16])
def test_a_fork_with_other_steps_per_iteration_keeps_the_ages_of_a_league_in_steps(
    num_steps: int, league_run: tuple[Path, Any]
) -> None:
    folder, old = league_run
    per_iteration = 6 * num_steps
    # Of 3 steps, minibatches have one, whose advantage could not be standardised.
    agent = rljax.make_agent(forkable_league(num_steps=num_steps, total_timesteps=960, normalize_advantages=False))
    state = start_forked(folder, agent, 2).state
    assert (old.iteration == 10).all()
    assert sorted(set(np.ravel(old.league.pool.age).tolist())) == [0, 2, 4, 6, 8, 10]
    assert (state.iteration == 240 // per_iteration).all()
    offset, filled = 240 % per_iteration, np.asarray(old.league.pool.filled)
    # Iteration 0 of the fork is the one after `offset` steps of the old run.
    ages = (np.asarray(old.league.pool.age) * 24 - offset) // per_iteration
    np.testing.assert_array_equal(np.asarray(state.league.pool.age)[filled], ages[filled])
    np.testing.assert_array_equal(state.league.snapshot_at, np.full((2, 3), 240 // per_iteration))
    np.testing.assert_array_equal(state.league.marked_at, (np.asarray(old.league.marked_at) * 24 - offset) // per_iteration)
    # Past players are named by the last step before theirs at which an iteration of the fork ends, and untrained ones by 0.
    steps = [0] + [max(step for step in range(offset, 241, per_iteration) if step <= taken) for taken in range(48, 241, 48)]
    names = league_standings(Run(agent.config, jax.tree.map(lambda x: x[0], state), 240)).names
    who = ("main 1", "main 2", "main exploiter")
    assert names == (*who, *(f"{name} @ {step}" for name, step in sorted(product(who, steps), key=lambda pair: pair[1])))
    for x, y in zip(*map(jax.tree.leaves, (state.league.pool.params, old.league.pool.params)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_snapshots_of_one_new_iteration_stay_in_order() -> None:
    league = League.create(RULES._replace(roles=(MAIN,)), params_of(1.0), pool_size=6, slots=1)
    ages = jnp.array([[0, 2, 3, 9, 10, 0], [8, 9, 10, 11, 12, 13]])
    several = jax.tree.map(lambda x: jnp.stack([x, x]), league)
    several = several.replace(pool=several.pool.replace(age=ages), snapshot_at=jnp.array([[10], [13]]))
    counted = several.recounted(lambda iterations: iterations // 4)
    np.testing.assert_array_equal(counted.pool.age, [[0, 0, 0, 2, 2, 0], [2, 2, 2, 2, 3, 3]])
    np.testing.assert_array_equal(counted.snapshot_at, [[2], [3]])
    # Win rates that rise from the second to the third snapshot only, in the order in which they were taken.
    x, which = jnp.array([0.5, 0.2, 0.6, 0.5, 0.4, 0.3]), jnp.array([True] * 5 + [False])
    for pool in (several.pool, counted.pool):
        forgotten = without_monotonic_suffix(x, which, pool.age[0])
        np.testing.assert_array_equal(forgotten, [True, True, True, False, False, False])


@pytest.mark.slow
def test_a_fork_with_other_roles_begins_a_league_of_the_first_main_agent(league_run: tuple[Path, Any]) -> None:
    folder, old = league_run
    agent = rljax.make_agent(forkable_league(main_agents=1, main_exploiters=2, total_timesteps=960))
    with pytest.warns(rljax.RljaxWarning, match="initialised anew, .*: average_params, league, opt_state$"):
        state = start_forked(folder, agent, 2).state
    for now in (state.params, state.average_params, split_player(state.league.initial).params):
        for x, y in zip(*map(jax.tree.leaves, (now, old.params)), strict=True):
            for learner in range(3):
                np.testing.assert_array_equal(x[:, learner], y[:, 0])
    np.testing.assert_array_equal(state.obs_statistics.mean, np.repeat(np.asarray(old.obs_statistics.mean)[:, :1], 3, 1))
    pool = jax.tree.map(np.asarray, state.league.pool)
    assert [np.flatnonzero(filled).tolist() for filled in pool.filled] == [[0, 1, 2]] * 2
    np.testing.assert_array_equal(pool.role[:, :3], [[MAIN, MAIN_EXPLOITER, MAIN_EXPLOITER]] * 2)
    assert (pool.age[:, :3] == 10).all()
    assert (state.league.snapshot_at == 10).all()  # so the next ones are due as long after the fork as after the start of a run


@pytest.mark.slow
def test_a_fork_in_another_game_of_the_same_shapes_has_no_record_of_the_old_one(league_run: tuple[Path, Any]) -> None:
    folder, old = league_run
    agent = rljax.make_agent(forkable_league(env_params={"seed": 1}, total_timesteps=960))
    with pytest.warns(rljax.RljaxWarning, match="initialised anew, .*: env_state, league, obs$"):
        state = start_forked(folder, agent, 2).state
    assert (np.asarray(old.league.payoff.record.games) > 0).any()
    assert not np.asarray(state.league.payoff.record.games).any()
    for x, y, pool in zip(
        *map(jax.tree.leaves, (state.params, old.params, split_player(state.league.pool.params).params)), strict=True
    ):
        np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(pool[:, :3], y)
