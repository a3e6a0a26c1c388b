"""Rules of matchmaking by hand-made results, snapshots and resets, lanes, and matches."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax.collect.games.matches import play_match, policy_player
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game
from rljax.core.games.versus import random_player
from rljax.envs.tic_tac_toe import LINES
from rljax.league import training
from rljax.league.exploit import branch
from rljax.league.game_tree import GameTree, exploitability
from rljax.league.league import League
from rljax.league.rules import INITIAL, LEAGUE_EXPLOITER, MAIN, MAIN_EXPLOITER, Players, Rules, match_probabilities, snapshot_due
from rljax.league.training import _result as result_of
from rljax.league.training import game_collect, game_init, game_parts, game_update, league_step, make_games, rating
from rljax.run.reproduce.playing.perfect import POWERS, optimal_moves

RULES = Rules(
    name="alphastar",
    roles=(MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER),
    self_play=0.35,
    power=2.0,
    min_probability=0.0,
    snapshot_every=2,
    snapshot_timeout=10,
    beats_all=0.7,
    league_reset=0.25,
    eviction="reservoir",
    decay=0.99,
)
# The three learners; then two snapshots of the main agent, one of its exploiter, and an empty slot.
PLAYERS = Players(
    role=jnp.array([MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER, MAIN, MAIN, MAIN_EXPLOITER, MAIN]),
    parent=jnp.array([0, 1, 2, 0, 0, 1, -1]),
    snapshot=jnp.array([False, False, False, True, True, True, False]),
    age=jnp.array([0, 0, 0, 4, 6, 5, 0]),
)


def rates(learner: int, **against: float) -> jax.Array:
    table = np.full((7, 7), 0.5)
    for name, rate in against.items():
        table[learner, int(name[1:])] = rate
    return jnp.asarray(table)


def squared(*x: float) -> np.ndarray:
    weights = (1.0 - np.array(x)) ** 2
    return weights / weights.sum()


def test_main_agents_play_everybody_themselves_and_what_they_may_have_forgotten() -> None:
    """AlphaStar: half PFSP over all that were, 15 % verification, 35 % self-play."""
    # Exploited: the snapshot of the exploiter is answered.
    found = match_probabilities(RULES, MAIN, rates(0, p3=0.9, p4=0.8, p5=0.2), PLAYERS)
    expected = np.zeros(7)
    expected[3:6] += 0.5 * squared(0.9, 0.8, 0.2)
    expected[5] += 0.15
    expected[0] += 0.35
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # Not exploited, but an earlier self is beaten less than 70 %, and a newer one more often.
    found = match_probabilities(RULES, MAIN, rates(0, p3=0.6, p4=0.9, p5=0.8), PLAYERS)
    expected = np.zeros(7)
    expected[3:6] += 0.5 * squared(0.6, 0.9, 0.8)
    expected[3:5] += 0.15 * squared(0.6, 0.9)
    expected[0] += 0.35
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # The newest self is beaten least of all: that is no sign of forgetting.
    found = match_probabilities(RULES, MAIN, rates(0, p3=0.9, p4=0.6, p5=0.8), PLAYERS)
    np.testing.assert_allclose(found[0], 0.5, atol=1e-6)
    # Nothing forgotten: the verification games are self-play.
    found = match_probabilities(RULES, MAIN, rates(0, p3=0.9, p4=0.8, p5=0.8), PLAYERS)
    np.testing.assert_allclose(found[0], 0.5, atol=1e-6)


@pytest.mark.slow
def test_a_main_agent_that_is_much_weaker_than_another_plays_that_ones_past() -> None:
    rules = RULES._replace(roles=(MAIN, MAIN))
    none = jnp.zeros(4, jnp.int32)
    players = Players(none, jnp.array([0, 1, 0, 1]), jnp.array([False, False, True, True]), none)
    table = jnp.full((4, 4), 0.9).at[0, 1].set(0.2).at[0, 0].set(0.5)
    found = match_probabilities(rules, 0, table, players)
    # 35 % + 15 % for self-play, half of it with each mirror; the second is too strong, so its snapshot 3 stands in.
    np.testing.assert_allclose(found, [0.25, 0.0, 0.25, 0.5], atol=1e-6)


def test_exploiters() -> None:
    found = match_probabilities(RULES, MAIN_EXPLOITER, rates(1, p0=0.2), PLAYERS)
    np.testing.assert_allclose(found, [1, 0, 0, 0, 0, 0, 0], atol=1e-6)
    found = match_probabilities(RULES, MAIN_EXPLOITER, rates(1, p0=0.05, p3=0.5, p4=0.1), PLAYERS)
    np.testing.assert_allclose(found, [0, 0, 0, 0.25 / 0.34, 0.09 / 0.34, 0, 0], atol=1e-6)
    found = match_probabilities(RULES, LEAGUE_EXPLOITER, rates(2, p3=0.2, p4=0.9, p5=0.7), PLAYERS)
    np.testing.assert_allclose(found, [0, 0, 0, 0.5 / 0.9, 0.1 / 0.9, 0.3 / 0.9, 0], atol=1e-6)


def test_simple_and_fictitious_rules() -> None:
    table = rates(0, p3=0.9, p4=0.5, p5=0.2)
    found = match_probabilities(RULES._replace(name="simple", power=1.0), MAIN, table, PLAYERS)
    np.testing.assert_allclose(found, [0.35, 0, 0, 0.65 * 0.1 / 1.4, 0.65 * 0.5 / 1.4, 0.65 * 0.8 / 1.4, 0], atol=1e-6)
    found = match_probabilities(RULES._replace(name="fictitious"), MAIN, table, PLAYERS)
    np.testing.assert_allclose(found, [0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 0], atol=1e-6)


def test_snapshots_are_taken_of_who_beats_all_or_has_waited() -> None:
    strong, weak = rates(0, p3=0.9, p4=0.8, p5=0.71), rates(0, p3=0.9, p4=0.8, p5=0.7)

    def due(table: jax.Array, age: int, learner: int = 0) -> bool:
        return bool(snapshot_due(RULES, learner, table, PLAYERS, jnp.int32(age)))

    assert not due(strong, 1)
    assert due(strong, 2)
    assert not due(weak, 9)
    assert due(weak, 10)
    assert due(rates(1, p0=0.75), 2, MAIN_EXPLOITER)
    assert not due(rates(1, p0=0.65, p3=0.9, p4=0.9, p5=0.9), 2, MAIN_EXPLOITER)


def params_of(*values: float) -> Any:
    return {"w": jnp.array(values)[:, None]}


def test_a_league_has_no_weak_types_so_that_a_resumed_run_compiles_as_a_new_one() -> None:
    league = jax.eval_shape(lambda: League.create(RULES, params_of(1.0, 2.0, 3.0), pool_size=4, slots=2))
    assert not [jax.tree_util.keystr(path) for path, x in jax.tree.leaves_with_path(league) if x.weak_type]


@pytest.mark.slow
def test_a_snapshot_is_what_was_there_before_the_reset_and_results_of_another_are_forgotten() -> None:
    rules = RULES._replace(name="simple", snapshot_every=1)
    league = League.create(rules, params_of(1.0, 2.0, 3.0), pool_size=4, slots=2)
    assert league.pool.filled.sum() == 3
    played = jnp.ones((7, 7))
    league = league.replace(payoff=league.payoff.replace(record=jax.tree.map(lambda _: played, league.payoff.record)))
    trained = params_of(10.0, 20.0, 30.0)
    after, taken, origin = league.review(rules, jax.random.key(0), trained, jnp.int32(5))
    assert bool(taken[0])
    assert origin.tolist()[:2] == [0, INITIAL]
    # One slot is free of the protected ones: the last who was put there is there, with the trained weights.
    assert float(after.pool.params["w"][3, 0]) in (10.0, 20.0, 30.0)
    assert after.pool.params["w"][:3, 0].tolist() == [1.0, 2.0, 3.0]
    games = np.asarray(after.payoff.record.games)
    assert not games[6].any()
    assert not games[:, 6].any()
    assert not games[1].any()  # a main exploiter that begins anew is nobody yet
    assert games[0, 3] == 1.0
    assert int(after.pool.age[3]) == 5
    assert after.generation[1] == 1
    assert after.generation[6] >= 1


@pytest.mark.slow
def test_results_against_somebody_who_is_gone_do_not_count() -> None:
    rules = RULES._replace(roles=(MAIN,))
    league = League.create(rules, params_of(1.0), pool_size=2, slots=1)
    league = league.replace(opponent=jnp.full((1, 1, 2), 1))
    won, ended, lane = jnp.ones((1, 1, 1, 3)), jnp.ones((1, 1, 1, 3), bool), jnp.zeros((1, 1, 1, 3), jnp.int32)
    assert league.record(rules, won, ended, lane).payoff.record.games[0, 1] == 3.0
    gone = league.replace(generation=league.generation.at[1].add(1))
    assert gone.record(rules, won, ended, lane).payoff.record.games.sum() == 0.0


@pytest.mark.slow
def test_a_lane_with_games_keeps_its_opponent() -> None:
    rules = RULES._replace(name="simple", roles=(MAIN,), self_play=0.0)
    league = League.create(rules, params_of(1.0), pool_size=2, slots=2)
    used = jnp.array([[[True, False], [True, True]]])
    after = league.match(rules, jax.random.key(0), params_of(7.0), used)
    assert after.newest.tolist() == [[1, 0]]  # the first slot begins games on the free lane, the second has none free
    np.testing.assert_array_equal(after.lanes["w"][0, 1], league.lanes["w"][0, 1])
    assert after.opponent[0, 0].tolist() == [0, 1]
    itself = league.match(rules._replace(self_play=1.0), jax.random.key(0), params_of(7.0), used)
    assert itself.lanes["w"][0, 0, 1, 0] == 7.0  # as it is now


@struct.dataclass
class RevealState:
    time: jax.Array
    seen: jax.Array
    changed: jax.Array


@struct.dataclass
class RevealParams:
    pass


class Reveal(Game):
    """Seven moves in turns. An opponent plays what its weights say, always the same: its state tells whether it was another's."""

    @property
    def name(self) -> str:
        return "Reveal"

    @property
    def default_params(self) -> RevealParams:
        return RevealParams()

    def observation_space(self, params: RevealParams) -> Box:
        return Box(0.0, 1.0, (1,))

    def action_space(self, params: RevealParams) -> Discrete:
        return Discrete(16)

    def to_move(self, state: RevealState) -> jax.Array:
        return jnp.arange(2) == state.time % 2

    def observe(self, state: RevealState, params: RevealParams) -> jax.Array:
        return jnp.ones((2, 1))

    def reset_env(self, key: jax.Array, params: RevealParams) -> tuple[jax.Array, RevealState]:
        state = RevealState(jnp.zeros((), jnp.int32), jnp.full(2, -1), jnp.zeros(2))
        return self.observe(state, params), state

    def step_env(self, key: jax.Array, state: RevealState, action: jax.Array, params: RevealParams) -> Any:
        moves, first = self.to_move(state), state.seen < 0
        changed = state.changed + (moves & ~first & (action != state.seen))
        state = RevealState(state.time + 1, jnp.where(moves & first, action, state.seen), changed)
        over = state.time == 7
        # Both are paid when the other side was somebody else in the middle of the game.
        reward = jnp.where(over, changed[::-1], 0.0)
        return self.observe(state, params), state, reward, over, {}


@pytest.mark.slow
def test_no_opponent_is_swapped_inside_a_game() -> None:
    """Every snapshot plays one action for sure, and another one after each iteration: a swap would be paid."""
    config = rljax.SelfPlayConfig(
        env=Reveal(),
        opponents="pfsp",
        num_envs=16,
        num_steps=5,
        num_slots=2,
        num_minibatches=1,
        pool_size=4,
        snapshot_every=80,
        self_play=0.5,
        network={"hidden": ()},
        eviction="fifo",
    )
    parts = game_parts(config)
    state = game_init(parts, jax.random.key(0))

    def with_action(params: Any, action: jax.Array) -> Any:
        """Weights of a policy that always plays `action`."""
        leaves, structure = jax.tree.flatten(jax.tree.map(jnp.zeros_like, params))
        sure = [x.at[..., action].set(1e3) if x.shape == (1, 16) else x for x in leaves]
        assert sum(x.shape == (1, 16) for x in leaves) == 1
        return jax.tree.unflatten(structure, sure)

    # The one that the pool begins with is sure of its action too.
    state = state.replace(league=League.create(parts.rules, with_action(state.params, jnp.int32(15)), 4, 2))

    @jax.jit
    def iterate(state: Any, action: jax.Array) -> Any:
        state = state.replace(params=with_action(state.params, action))
        state, steps = game_collect(parts, state)
        opponents = jnp.sum(jnp.where(steps.mine, 0, steps.action + 1))
        # The learner itself changes between iterations: only what its opponents did counts.
        paid = jnp.where(jnp.arange(2) == steps.team[..., None], steps.reward, 0.0)
        state, _ = league_step(parts, state.replace(iteration=state.iteration + 1))
        return state, jnp.sum(jnp.where(steps.done[..., None], paid, 0.0)), jnp.sum(steps.done), opponents

    total, ended, seen = 0.0, 0, set()
    for i in range(12):
        state, paid, done, opponents = iterate(state, jnp.int32(i))
        total, ended = total + float(paid), ended + int(done)
        seen.add(int(opponents))
    assert ended > 100
    assert len(seen) > 6  # opponents did change
    assert int(state.league.pool.filled.sum()) == 4
    assert total == 0.0


@pytest.mark.slow
def test_seats_are_drawn_and_both_are_learned_from() -> None:
    parts = game_parts(
        rljax.SelfPlayConfig(env="KuhnPoker-v0", opponents="pfsp", num_envs=64, num_slots=4, network={"hidden": [8]})
    )
    state = game_init(parts, jax.random.key(0))
    _, steps = jax.jit(lambda s: game_collect(parts, s))(state)
    teams = np.asarray(steps.team)
    assert 0.4 < teams.mean() < 0.6
    mine, player = np.asarray(steps.mine)[..., 0], np.asarray(steps.moves).argmax(-1)
    np.testing.assert_array_equal(mine, player == teams)
    for seat in (0, 1):
        assert (mine & (player == seat)).sum() > 100
    # A game keeps its seat until it is over.
    going = ~np.asarray(steps.done)[:-1]
    np.testing.assert_array_equal(teams[1:][going], teams[:-1][going])


@pytest.mark.slow
def test_updates_of_learners_are_their_own() -> None:
    """Two learners in one program learn what each learns alone: its games and its key decide, nothing of the other."""
    config = rljax.LeagueConfig(
        env="KuhnPoker-v0",
        main_agents=2,
        main_exploiters=0,
        league_exploiters=0,
        num_envs=16,
        num_slots=2,
        network={"hidden": [8]},
    )
    parts = game_parts(config)
    state, steps = jax.jit(lambda s: game_collect(parts, s))(game_init(parts, jax.random.key(0)))
    whole, _ = jax.jit(lambda s, x: game_update(parts, s, x))(state, steps)
    other = jax.tree.map(lambda x: x.at[1].add(0.1), state.params)
    changed, _ = jax.jit(lambda s, x: game_update(parts, s, x))(state.replace(params=other), steps)
    for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(changed.params), strict=True):
        np.testing.assert_allclose(a[0], b[0], rtol=1e-6)
        assert not np.array_equal(a[1], b[1])


@pytest.mark.slow
def test_matches_take_seats_in_turn_and_a_policy_beats_itself_half_the_time() -> None:
    game, params = rljax.make_env("TicTacToe-v0")
    match = jax.jit(lambda key: play_match(game, params, random_player, random_player, key, 2000))(jax.random.key(0))
    assert match.seat.tolist() == [0, 1] * 1000
    first, second = (match.result[match.seat == seat] for seat in (0, 1))
    # Of random games the beginner wins 58.5 %, the other 28.8 %.
    assert abs(float((first > 0).mean()) - 0.585) < 0.04
    assert abs(float((second > 0).mean()) - 0.288) < 0.04
    agent = make_games(rljax.SelfPlayConfig(env="TicTacToe-v0", network={"hidden": [8]}))
    player = policy_player(agent, agent.init(jax.random.key(0)), deterministic=False)
    assert bool(jnp.isfinite(play_match(game, params, player, random_player, jax.random.key(1), 4).result).all())


@pytest.mark.slow
def test_a_game_is_evaluated_against_random_play() -> None:
    config = rljax.SelfPlayConfig(env="Territory-v0", network={"hidden": [8]}, num_envs=4, num_steps=4, num_minibatches=1)
    agent = make_games(config)
    returns = rljax.evaluate(agent, agent.init(jax.random.key(0)), jax.random.key(1), 8)
    assert returns.shape == (8,)
    assert bool(jnp.isfinite(returns).all())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "CartPole-v1"}, "env = 'CartPole-v1': is not a game"),
        ({"num_envs": 60}, "num_envs = 60: expected a multiple"),
        ({"pool_size": 2}, "pool_size = 2: expected at least 5, one place for each learner as it began and one for snapshots"),
        ({"pool_size": 4}, "pool_size = 4: expected at least 5"),
        ({"pool_size": 1, "main_exploiters": 0, "league_exploiters": 0}, "pool_size = 1: expected at least 2"),
        ({"snapshot_timeout": 10}, "snapshot_timeout = 10: expected at least snapshot_every = 50000"),
        ({"num_envs": 32, "num_steps": 2, "num_minibatches": 64}, "num_minibatches = 64: a learner has fewer moves"),
        ({"num_envs": 32, "num_steps": 9, "num_minibatches": 32}, "num_minibatches = 32: leaves one step in each"),
        ({"league_rules": "alphastr"}, "league_rules = 'alphastr'"),
        ({"num_steps": 1, "num_minibatches": 1}, "num_steps = 1: expected more than 1"),
    ],
)
def test_bad_input_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(rljax.ConfigError, match=message) as error:
        rljax.make_agent(rljax.LeagueConfig(**{"env": "KuhnPoker-v0", "num_envs": 64, **changes}))
    assert "\n" not in str(error.value)


def test_helpers_of_teams() -> None:
    x = jnp.arange(24.0).reshape(2, 4, 3)
    assert rljax.batch_players(x).shape == (8, 3)
    np.testing.assert_array_equal(rljax.unbatch_players(rljax.batch_players(x), 4), x)
    np.testing.assert_allclose(rljax.team_reward(jnp.array([1.0, 3.0, -1.0, 0.0]), (0, 0, 1, 1)), [2.0, 2.0, -0.5, -0.5])
    np.testing.assert_allclose(rljax.team_reward(jnp.array([1.0, 2.0, 3.0, 4.0]), (0, 1, 0, 1)), [2.0, 3.0, 2.0, 3.0])


@pytest.mark.slow
def test_agents_of_games_can_be_made_inside_a_trace() -> None:
    """Hyperparameters are swept by making the training inside of vmap."""
    config = rljax.SelfPlayConfig(
        env="KuhnPoker-v0", num_envs=8, num_steps=8, total_timesteps=128, network={"hidden": [4]}, exploitability_every=64
    )

    def train(rate: jax.Array) -> jax.Array:
        return rljax.make_train(config.replace(learning_rate=rate))(jax.random.key(0)).metrics["league/exploitability"]

    found = jax.jit(jax.vmap(train))(jnp.array([0.0, 1e-2]))
    assert found.shape == (2, 2)
    assert found[0, 1] == found[0, 0] != found[1, 1]


@pytest.mark.slow
def test_exploitability_is_computed_only_where_it_is_due_with_several_seeds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition that depends on the seed would make every iteration compute it."""
    computed = []

    def counted(tree: GameTree, policies: Any) -> jax.Array:
        jax.debug.callback(lambda _: computed.append(1), policies[0][0, 0])
        return exploitability(tree, policies)

    monkeypatch.setattr(training, "exploitability", counted)
    config = rljax.SelfPlayConfig(
        env="KuhnPoker-v0", num_envs=8, num_steps=8, total_timesteps=64 * 8, network={"hidden": [4]}, exploitability_every=64 * 4
    )
    found = rljax.fit(config, seeds=2).metrics["league/exploitability"]
    jax.effects_barrier()
    np.testing.assert_array_equal(np.isfinite(found), [[i in (3, 7) for i in range(8)]] * 2)
    assert len(computed) == 4  # in two iterations, for each of two seeds


@pytest.mark.slow
def test_a_branch_is_a_bit_equal_clone_with_a_fresh_optimiser() -> None:
    agent = make_games(rljax.LeagueConfig(env="KuhnPoker-v0", num_envs=32, num_slots=2, num_steps=8, network={"hidden": [4]}))
    trained, _ = jax.jit(agent.step)(agent.init(jax.random.key(0)))
    clone = branch(agent, trained.params, jax.random.key(1))
    for a, b, first in zip(*map(jax.tree.leaves, (trained.params, clone.params, clone.league.initial)), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, first)
    fresh = agent.init(jax.random.key(2)).opt_state
    for a, b in zip(jax.tree.leaves(clone.opt_state), jax.tree.leaves(fresh), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(np.any(np.asarray(x) != 0) for x in jax.tree.leaves(trained.opt_state))
    with pytest.raises(rljax.ConfigError, match="another network"):
        branch(agent, {"params": {}}, jax.random.key(1))


@pytest.mark.slow
def test_games_of_a_learner_that_began_anew_do_not_count() -> None:
    rules = RULES._replace(name="simple", roles=(MAIN, MAIN_EXPLOITER), snapshot_every=1)
    league = League.create(rules, params_of(1.0, 2.0), pool_size=4, slots=1)
    league = league.replace(opponent=jnp.array([[[3, 3]], [[0, 0]]]))
    ended, lane = jnp.ones((1, 2, 1, 3), bool), jnp.zeros((1, 2, 1, 3), jnp.int32)
    assert league.record(rules, jnp.ones((1, 2, 1, 3)), ended, lane).payoff.record.games[1, 0] == 3.0
    after, _, origin = league.review(rules, jax.random.key(0), params_of(3.0, 4.0), jnp.int32(1))
    assert origin.tolist() == [0, INITIAL]
    games = after.record(rules, jnp.ones((1, 2, 1, 3)), ended, lane).payoff.record.games
    assert games[1].sum() == 0.0
    assert games[0, 3] == 3.0


@pytest.mark.slow
@pytest.mark.parametrize("players", [2, 3])
def test_equal_players_win_half_in_games_of_any_number_of_teams(players: int) -> None:
    """A main agent that does not learn, against its own copy: were only the first place a win, 1/3 with three teams."""
    config = rljax.LeagueConfig(
        env="KuhnPoker-v0", env_params={"num_players": players}, total_timesteps=40_960, num_envs=64, num_steps=32,
        learning_rate=1e-9, main_exploiters=0, league_exploiters=0, num_slots=2, pool_size=4, payoff_decay=1.0,
        snapshot_every=400_000, snapshot_timeout=400_000, num_epochs=1, num_minibatches=1,
    )  # fmt: skip
    payoff = jax.jit(rljax.make_train(config))(jax.random.key(0)).state.league.payoff
    games = float(payoff.record.games[0, 1])
    assert games > 2_000
    assert abs(float(payoff.win_rate()[0, 1]) - 0.5) < 4 * 0.5 / games**0.5


def test_results_against_several_teams_are_means_over_them() -> None:
    parts = game_parts(rljax.LeagueConfig(env="KuhnPoker-v0", env_params={"num_players": 4}, num_envs=32))
    returns = jnp.array([[3.0, 1.0, 1.0, -5.0]] * 4)[None]
    found = result_of(parts, SimpleNamespace(team=jnp.arange(4)[None], result=returns))
    np.testing.assert_allclose(found[0], [1, 0, 0, -1])


def test_teams_of_different_sizes_whose_players_got_the_same_draw() -> None:
    """The mean of three times 0.1 is more than 0.1 in f32."""
    game = SimpleNamespace(teams=(0, 0, 0, 1), num_teams=2)
    returns = jnp.array([[0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.0999], [0.1, 0.1, 0.1, 0.1001]])[None]
    steps: Any = SimpleNamespace(team=jnp.zeros((1, 3), jnp.int32), result=returns)
    np.testing.assert_array_equal(result_of(SimpleNamespace(game=game), steps)[0], [0, 1, -1])


@pytest.mark.slow
def test_a_rating_is_by_the_record_of_results_and_evaluations_say_it() -> None:
    config = rljax.SelfPlayConfig(
        env="TicTacToe-v0",
        opponents="uniform",
        self_play=0.0,
        num_slots=2,
        num_envs=8,
        num_steps=8,
        num_minibatches=2,
        pool_size=3,
        network={"hidden": [8]},
        total_timesteps=256,
        eval_every=128,
        eval_episodes=4,
    )
    parts = game_parts(config)
    league = game_init(parts, jax.random.key(0)).league
    assert league is not None
    assert float(rating(league)) == pytest.approx(1000.0)
    # Player 0 is the learner, player 1 the one it was at first: three points of four are 191 Elo points more.
    results = jnp.where(jnp.arange(400) % 4 == 0, -1.0, 1.0)
    met = league.payoff.update(jnp.zeros(400, int), jnp.ones(400, int), results, jnp.ones(400, bool), 1.0)
    assert float(rating(league.replace(payoff=met))) == pytest.approx(1000.0 + 400.0 * np.log10(3.0), abs=2.0)
    for_seeds = jax.jit(jax.vmap(rljax.make_train(config)))(jax.random.split(jax.random.key(0), 2)).metrics["eval/rating"]
    assert np.isfinite(for_seeds[:, [1, 3]]).all()
    assert np.isnan(for_seeds[:, [0, 2]]).all()


@pytest.mark.slow
def test_memory_is_flat_over_ten_thousand_iterations() -> None:
    """Snapshots, evictions and resets all the while; nothing is left behind on the device."""
    config = rljax.LeagueConfig(
        env="BiasedRPS-v0", num_envs=4, num_slots=1, num_steps=2, num_epochs=1, num_minibatches=1, pool_size=6,
        snapshot_every=80, snapshot_timeout=160, network={"hidden": [4]}, total_timesteps=80_000,
    )  # fmt: skip
    agent = rljax.make_agent(config)
    chunk = jax.jit(lambda s: jax.lax.fori_loop(0, 1_000, lambda _, s: agent.step(s)[0], s), donate_argnums=0)
    state = chunk(jax.jit(agent.init)(jax.random.key(0)))
    held = []
    for _ in range(9):
        state = jax.block_until_ready(chunk(state))
        held.append(sum(x.nbytes for x in jax.live_arrays()))
    assert len(set(held)) == 1
    assert int(state.iteration) == 10_000
    assert int(state.league.pool.offered) > 500
    assert bool(state.league.pool.filled.all())
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((state.params, state.league.pool.params)))


def test_with_a_discount_the_best_moves_of_tic_tac_toe_are_best_without_one_too() -> None:
    """Plain recursion over all positions: a discount of 0.99 a move, the presets' own, only prefers wins that come sooner."""
    gamma = rljax.load_config("tictactoe_selfplay").gamma
    assert 0.9 < gamma < 1.0
    table, fewer = optimal_moves(), 0

    @functools.cache
    def value(board: tuple[int, ...]) -> float:
        """To the player to move."""
        nonlocal fewer
        moves = sum(mark > 0 for mark in board)
        mover = moves % 2 + 1
        if any(all(board[cell] == 3 - mover for cell in line) for line in LINES):
            return -1.0
        if moves == 9:
            return 0.0
        after = {i: -value((*board[:i], mover, *board[i + 1 :])) for i in range(9) if board[i] == 0}
        best = max(after.values())
        chosen = {i for i, v in after.items() if v == best}
        undiscounted = set(np.flatnonzero(table[np.array(board) @ POWERS]))
        assert chosen <= undiscounted, board
        fewer += chosen < undiscounted
        return gamma * best

    assert value((0,) * 9) == 0.0
    assert fewer > 0
