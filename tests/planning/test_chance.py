"""Search in games with dice against plain Python, and what it must leave as it is in games without."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

import rljax
from rljax.core.games.chance import is_random, num_outcomes
from rljax.core.games.game import Game, outcome_at
from rljax.envs import make_env
from rljax.envs.pgx_game import DICE, THROWS
from rljax.envs.tic_tac_toe import TicTacToe
from rljax.planning import make_mcts, random_evaluation
from rljax.planning.nodes import _visited_outcome, completed_qvalues, search_nodes
from tests.planning.dice import Bet, BetState, Race, race_positions

BETS = BetState(jnp.repeat(jnp.array([0.4, 0.6]), 200))


def no_evaluation(_key: jax.Array, _state: Any, _obs: Any, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """All moves and both sides equal."""
    return jnp.zeros(mask.shape), jnp.zeros(())


def test_visits_of_a_chance_node_are_each_a_draw_and_together_follow_the_probabilities_closely() -> None:
    probabilities = jnp.array([0.5, 0.0, 0.3, 0.2, 0.0])
    starts = jax.random.bits(jax.random.key(0), (4000,), jnp.uint32)
    visits = jnp.arange(64, dtype=jnp.uint32)
    seen = jax.vmap(lambda s: jax.vmap(lambda v: _visited_outcome(probabilities, s, v))(visits))(starts)
    taken = np.asarray(jax.nn.one_hot(seen, 5))
    for visit in (0, 1, 2, 63):
        np.testing.assert_allclose(taken[:, visit].mean(0), probabilities, atol=4 * 0.5 / np.sqrt(4000))
    assert not taken[..., [1, 4]].any()
    # Independent draws would be off by 4 (a standard deviation) in 64 visits, and by 12 in the worst of these nodes.
    assert np.abs(taken.sum(1) - 64 * np.asarray(probabilities)).max() < 3
    ends = jax.vmap(lambda q: outcome_at(probabilities, q))(jnp.array([0.0, 0.49, 0.51, 0.79, 0.81, 1 - 2.0**-24]))
    assert ends.tolist() == [0, 0, 2, 2, 3, 3]


@pytest.mark.slow
def test_a_search_bets_just_if_it_pays() -> None:
    """A safe 0 against +1 and -1: with .4 for +1 the bet loses .2 on average, with .6 it gains .2."""
    found = jax.jit(make_mcts(Bet(), evaluate=no_evaluation, num_simulations=100))(jax.random.key(0), BETS)
    assert found.action.tolist() == [0] * 200 + [1] * 200


@pytest.mark.slow
def test_the_policy_that_alphazero_learns_from_bets_just_if_it_pays() -> None:
    nodes = search_nodes(Bet(), None, no_evaluation)

    @jax.jit
    def improved(root_key: jax.Array, search_key: jax.Array) -> jax.Array:
        root = nodes.root(root_key, BETS)
        policy = mctx.gumbel_muzero_policy(
            None,
            search_key,
            root,
            nodes.recurrent,
            num_simulations=64,
            invalid_actions=root.prior_logits < -1e8,
            qtransform=completed_qvalues(nodes),
        )
        return policy.action_weights[:, : nodes.num_actions]

    weights = improved(*jax.random.split(jax.random.key(1)))
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
    assert (weights[:200, 0] > 0.9).all()
    assert (weights[200:, 1] > 0.9).all()


@pytest.mark.slow
def test_values_and_moves_of_a_dice_race_are_those_of_expectimax_the_closer_the_longer_it_searches(figure: Any) -> None:
    states, values, _ = race_positions()
    best = values.max(1)
    errors, regrets = [], []
    for simulations in (16, 64, 256):
        found = jax.jit(make_mcts(Race(), num_simulations=simulations))(jax.random.key(0), states)
        errors.append(float(np.sqrt(np.mean(np.square(np.asarray(found.value) - best)))))
        regrets.append(float(np.mean(best - values[np.arange(len(best)), np.asarray(found.action)])))
    guess = float(np.mean(best - values.mean(1)))
    figure(f"dice race: RMS error of values {np.round(errors, 3)}, value lost {np.round(regrets, 4)} (random: {guess:.3f})")
    assert errors[0] > 1.5 * errors[1] > 2 * errors[2]
    assert errors[2] < 0.035
    assert regrets[2] < 0.03 * guess


class CertainTicTacToe(TicTacToe):
    """Tic-tac-toe that declares three outcomes, of which each step has one for certain."""

    def chance(self, state: Any, action: jax.Array, params: Any) -> jax.Array:
        return jax.nn.one_hot(state.time % 3, 3)

    def step_outcome(self, state: Any, action: jax.Array, outcome: jax.Array, params: Any) -> Any:
        after = TicTacToe.step_env(self, jax.random.key(0), state, action, params)
        wrong = outcome != state.time % 3
        return *after[:2], jnp.where(wrong, jnp.nan, after[2]), *after[3:]


@pytest.mark.slow
@pytest.mark.same_bits
def test_steps_with_a_certain_outcome_are_searched_like_those_without_chance() -> None:
    results = []
    for game in (TicTacToe(), CertainTicTacToe()):
        _, state = game.reset_env(jax.random.key(0), game.default_params)
        states = jax.tree.map(lambda x: jnp.stack([x] * 4), state)
        results.append(jax.jit(make_mcts(game, num_simulations=100))(jax.random.key(5), states))
    for plain, certain in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, certain)


def test_games_without_chance_have_one_outcome_and_nodes_of_positions_only() -> None:
    for game in (TicTacToe(), make_env("pgx:tic_tac_toe")[0]):
        params = game.default_params
        assert (num_outcomes(game, params), is_random(game, params)) == (1, False)
        nodes = search_nodes(game, params, random_evaluation(game, params))
        state = jax.eval_shape(lambda game=game, params=params: game.reset_env(jax.random.key(0), params)[1])
        batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), state)
        root = jax.eval_shape(nodes.root, jax.eval_shape(jax.random.key, 0), batch)
        assert root.prior_logits.shape == (2, 9)
        assert root.embedding.step is None
    assert (num_outcomes(Race(), None), is_random(Race(), None)) == (3, True)


def test_what_chance_returns_is_checked() -> None:
    class Half(Race):
        def chance(self, state: Any, action: jax.Array, params: Any) -> Any:
            return jnp.int32(1)

    with pytest.raises(rljax.ConfigError, match=r"Half: chance returned .*expected the probabilities of the outcomes"):
        make_mcts(Half())

    class Plain(Race):
        def chance(self, state: Any, action: jax.Array, params: Any) -> Any:
            return 0.5

    for check in (make_mcts, rljax.check_environment):
        with pytest.raises(rljax.ConfigError, match=r"Plain: chance returned .*expected the probabilities of the outcomes"):
            check(Plain())

    class Sure(Bet):
        def chance(self, state: BetState, action: jax.Array, params: Any) -> jax.Array:
            return super().chance(state, action, params) * jnp.array([1.25, 1.0])

    with pytest.raises(rljax.ConfigError, match=r"^game Sure: chance returned probabilities that do not add up to 1"):
        make_mcts(Sure())

    class Silent(Game):
        pass

    with pytest.raises(NotImplementedError, match=r"Silent must define step_env.*, or chance and step_outcome"):
        Silent().step_env(jax.random.key(0), None, jnp.zeros(2, jnp.int32), None)


@pytest.mark.slow
def test_alphazero_learns_to_play_a_dice_race(figure: Any) -> None:
    config = rljax.AlphaZeroConfig(
        env=Race(),
        num_envs=64,
        num_steps=12,
        num_simulations=16,
        total_timesteps=50_000,
        learning_rate=3e-3,
        random_moves=0.4,
        network={"hidden": [64, 64]},
    )
    agent = rljax.make_agent(config)
    keys = jax.random.split(jax.random.key(0), 2)
    trained = jax.jit(jax.vmap(rljax.make_train(config)))(keys).state
    states, values, _ = race_positions()
    best = values.max(1)
    player = np.asarray(jax.vmap(Race().to_move)(states)).argmax(1)
    obs = jax.vmap(lambda s: Race().observe(s, None))(states)[np.arange(len(player)), player]
    assert agent.policy_and_value is not None
    logits, value = jax.vmap(lambda s: agent.policy_and_value(s, obs))(trained)  # type: ignore[misc]
    moves = np.asarray(jnp.argmax(logits, -1))
    lost = np.mean(best - values[np.arange(len(best)), moves], axis=1)
    alike = [float(np.corrcoef(v, best)[0, 1]) for v in np.asarray(value)]
    guess = float(np.mean(best - values.mean(1)))
    figure(
        f"dice race: greedy policy loses {np.round(lost, 4)} a position (random: {guess:.3f}), "
        f"correlation of values {np.round(alike, 3)}"
    )
    assert (lost < 0.1 * guess).all()
    assert min(alike) > 0.9


@pytest.mark.slow
def test_throws_of_backgammon_are_those_of_pgx() -> None:
    """A step given an outcome is pgx's own with the same dice; the turn ends just where there is something to throw."""
    pytest.importorskip("pgx")
    game, params = make_env("pgx:backgammon")
    assert num_outcomes(game, params) == len(DICE) == 21
    np.testing.assert_allclose(THROWS.sum(), 1.0, rtol=1e-6)

    def play(key: jax.Array) -> Any:
        def step(state: Any, key: jax.Array) -> Any:
            act_key, step_key = jax.random.split(key)
            legal = state.legal_action_mask
            action = jnp.full(2, jnp.argmax(jnp.where(legal, jax.random.uniform(act_key, legal.shape), -1.0)))
            theirs = game.game.step(state, action[0], step_key)
            thrown = theirs.current_player != state.current_player
            dice = jnp.sort(theirs._dice)
            outcome = jnp.argmax(jnp.all(jnp.array(DICE) == dice, axis=1))
            probabilities = game.chance(state, action, params)
            obs, ours, reward, over, _ = game.step_outcome(state, action, outcome, params)
            expected = jnp.where(thrown & ~theirs.terminated, jnp.array(THROWS), jnp.eye(21)[0])
            pairs = [
                (obs, game.observe(theirs, params)),
                (ours.legal_action_mask, theirs.legal_action_mask),
                (ours._board, theirs._board),
                (jnp.where(thrown, jnp.sort(ours._dice), dice), dice),
                (reward, theirs.rewards),
                (over, theirs.terminated),
                (probabilities, expected),
            ]
            same = jnp.stack([jnp.all(a == b) for a, b in pairs])
            counts = jnp.where(thrown, jnp.zeros(21).at[outcome].set(1.0), 0.0)
            return theirs, (same | state.terminated, counts)

        return jax.lax.scan(step, game.reset_env(key, params)[1], jax.random.split(key, 300))[1]

    same, counts = map(np.asarray, jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), 16)))
    assert same.all(), same.all((0, 1))
    thrown = counts.sum((0, 1))
    assert thrown.sum() > 800
    assert (np.square(thrown - THROWS * thrown.sum()) / (THROWS * thrown.sum())).sum() < 60  # chi-square of 20 degrees, 1e-5
