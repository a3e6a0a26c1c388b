"""Exact values and exploitabilities against OpenSpiel's and those of the literature."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.environments.environment import EnvState
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game
from rljax.core.games.game_wrappers import GameFrameStack
from rljax.envs import ConnectFour, KuhnPoker, LeducPoker, MatrixGame, Territory, TicTacToe
from rljax.envs.matrix_game import BIASED_RPS, RPS
from rljax.league.game_tree import (
    GameTree,
    best_response,
    exploitability,
    game_tree,
    game_values,
    mixed_policies,
    nash_conv,
    uniform_policies,
)
from tests.core.games.recall import Recall
from tests.planning.dice import BOLD, SAFE, TURNS, Race, race_positions, race_values

GAMES = {"kuhn_poker": KuhnPoker(), "leduc_poker": LeducPoker(), "tic_tac_toe": TicTacToe()}


@functools.cache
def tree_of(name: str) -> GameTree:
    return game_tree(GAMES[name])


def random_policies(tree: GameTree, seed: int) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    first, second = (jnp.asarray(x / x.sum(-1, keepdims=True)) for x in (rng.exponential(size=m.shape) * m for m in tree.masks))
    return first, second


@functools.cache
def spiel_places(name: str) -> tuple[Any, list[tuple[int, int]]]:
    """OpenSpiel's table of a policy, and of each of its states the player to move and our information set, found by walking there
    in our game."""
    import pyspiel
    from open_spiel.python import policy

    table, tree, game = policy.TabularPolicy(pyspiel.load_game(name)), tree_of(name), GAMES[name]
    places = [{obs.tobytes(): i for i, obs in enumerate(tree.observations[p])} for p in range(2)]
    step = jax.jit(lambda s, a: game.step_env(jax.random.key(0), s, a, game.default_params)[1])
    look = jax.jit(lambda s: game.observe(s, game.default_params))
    initial, _ = game.initial_states(game.default_params)
    walked: dict[tuple[int, ...], Any] = {}
    found = []
    for state in table.states:
        history = state.full_history()
        cards = [h.action // 2 if name == "leduc_poker" else h.action for h in history if h.player < 0]
        # What is not dealt yet is not seen yet either.
        deal = int(np.flatnonzero((np.asarray(initial.cards)[:, : len(cards)] == cards).all(1))[0])
        key: tuple[int, ...] = (deal,)
        ours = walked.setdefault(key, jax.tree.map(lambda x, i=deal: x[i], initial))
        for action in (h.action for h in history if h.player >= 0):
            key = (*key, action)
            if key not in walked:
                walked[key] = step(ours, jnp.array([action, action]))
            ours = walked[key]
        player = state.current_player()
        found.append((player, places[player][np.asarray(look(ours))[player].tobytes()]))
    return table, found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker"])
def test_nash_conv_and_values_are_openspiels(name: str) -> None:
    """Of 20 random policies."""
    pyspiel = pytest.importorskip("pyspiel")
    from open_spiel.python.policy import python_policy_to_pyspiel_policy

    tree, game = tree_of(name), pyspiel.load_game(name)
    table, found = spiel_places(name)
    conv, values = jax.jit(lambda p: nash_conv(tree, p)), jax.jit(lambda p: game_values(tree, p))
    for seed in range(20):
        policies = [np.asarray(p, np.float64) for p in random_policies(tree, seed)]
        policies = [p / p.sum(-1, keepdims=True) for p in policies]
        for row, (player, info) in enumerate(found):
            table.action_probability_array[row] = policies[player][info]
        theirs = python_policy_to_pyspiel_policy(table)
        ours = tuple(jnp.asarray(p, jnp.float32) for p in policies)
        assert float(conv(ours)) == pytest.approx(pyspiel.nash_conv(game, theirs), abs=1e-4)
        expected = pyspiel.expected_returns(game.new_initial_state(), theirs, -1, True)
        np.testing.assert_allclose(values(ours), expected, atol=1e-4)


def tic_tac_toe_nash_conv(policies: Any, tree: GameTree) -> float:
    """By recursion over boards in plain Python, with best responses found apart."""
    places = [{obs.tobytes(): i for i, obs in enumerate(tree.observations[p])} for p in range(2)]
    tables = [np.asarray(p, np.float64) for p in policies]
    lines = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
    memory: dict[Any, float] = {}

    def value(board: tuple[int, ...], time: int, responder: int) -> float:
        """To player 0; `responder` plays its best, -1: nobody does."""
        if time and any(all(board[c] == 2 - time % 2 for c in line) for line in lines):
            return 1.0 if time % 2 else -1.0
        if time == 9:
            return 0.0
        if (board, responder) not in memory:
            mover = time % 2
            moves = [c for c in range(9) if not board[c]]
            results = [value((*board[:c], mover + 1, *board[c + 1 :]), time + 1, responder) for c in moves]
            if responder == mover:
                memory[board, responder] = max(results) if mover == 0 else min(results)
            else:
                own = np.array([b == mover + 1 for b in board] + [b == 2 - mover for b in board], np.float32)
                row = tables[mover][places[mover][own.tobytes()]]
                memory[board, responder] = float(sum(row[c] * r for c, r in zip(moves, results, strict=True)))
        return memory[board, responder]

    empty = (0,) * 9
    return value(empty, 0, 0) - value(empty, 0, 1)


@pytest.mark.slow
def test_nash_conv_of_tic_tac_toe_is_that_of_plain_recursion() -> None:
    tree = tree_of("tic_tac_toe")
    conv = jax.jit(lambda p: nash_conv(tree, p))
    for seed in range(20):
        policies = random_policies(tree, seed)
        assert float(conv(policies)) == pytest.approx(tic_tac_toe_nash_conv(policies, tree), abs=1e-4)


@pytest.mark.slow
def test_known_values() -> None:
    """specs: Kuhn 11/12 (uniform), 2 (always pass) and the value -1/18; tic-tac-toe 1.9197; biased RPS 16.667 / 50."""
    kuhn = tree_of("kuhn_poker")
    assert float(nash_conv(kuhn, uniform_policies(kuhn))) == pytest.approx(11 / 12, abs=1e-5)
    passes = tuple(jnp.tile(jnp.array([1.0, 0.0]), (len(m), 1)) for m in kuhn.masks)
    assert float(nash_conv(kuhn, passes)) == pytest.approx(2.0, abs=1e-5)
    toe = tree_of("tic_tac_toe")
    assert float(nash_conv(toe, uniform_policies(toe))) == pytest.approx(1.9197, abs=1e-3)
    biased = game_tree(MatrixGame(BIASED_RPS))
    assert float(nash_conv(biased, uniform_policies(biased))) == pytest.approx(16.667 / 50, abs=1e-4)
    equilibrium = jnp.array([[1.0, 10.0, 5.0]]) / 16
    assert float(nash_conv(biased, (equilibrium, equilibrium))) == pytest.approx(0.0, abs=1e-6)
    plain = game_tree(MatrixGame(RPS))
    assert float(nash_conv(plain, uniform_policies(plain))) == pytest.approx(0.0, abs=1e-6)
    small = game_tree(MatrixGame([[3.0, -2.0], [-2.0, 1.0]]))
    mixed = jnp.array([[0.375, 0.625]])
    assert float(exploitability(small, (mixed, mixed))) == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(game_values(small, (mixed, mixed)), [-1 / 8, 1 / 8], atol=1e-6)


def test_kuhns_equilibrium_has_its_value() -> None:
    """Kuhn (1950), with alpha = 1/4: of the first player bet the jack with alpha and the king with 3 alpha, call with the queen
    after check and bet with alpha + 1/3; of the second bet the jack after a check, and call with the queen, one time in three."""
    tree, alpha = tree_of("kuhn_poker"), 0.25
    bets = {
        (0, 0, ""): alpha, (0, 1, ""): 0.0, (0, 2, ""): 3 * alpha,
        (0, 0, "pb"): 0.0, (0, 1, "pb"): alpha + 1 / 3, (0, 2, "pb"): 1.0,
        (1, 0, "p"): 1 / 3, (1, 1, "p"): 0.0, (1, 2, "p"): 1.0,
        (1, 0, "b"): 0.0, (1, 1, "b"): 1 / 3, (1, 2, "b"): 1.0,
    }  # fmt: skip
    policies = []
    for player in range(2):
        rows = []
        for obs in tree.observations[player]:
            card, moves = int(obs[2:5].argmax()), obs[5:].reshape(3, 2)
            history = "".join("pb"[int(m.argmax())] for m in moves if m.any())
            bet = bets[player, card, history]
            rows.append([1 - bet, bet])
        policies.append(jnp.array(rows))
    assert float(nash_conv(tree, policies)) == pytest.approx(0.0, abs=1e-6)
    assert float(game_values(tree, policies)[0]) == pytest.approx(-1 / 18, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_a_best_response_gets_what_it_says_and_no_policy_more(name: str) -> None:
    tree = tree_of(name)
    policies = random_policies(tree, 3)
    for player in range(2):
        value, response = best_response(tree, policies, player)
        played = [response if p == player else policies[p] for p in range(2)]
        assert float(game_values(tree, played)[player]) == pytest.approx(float(value), abs=1e-5)
        for seed in range(5):
            other = [random_policies(tree, seed)[p] if p == player else policies[p] for p in range(2)]
            assert float(game_values(tree, other)[player]) < float(value)


@pytest.mark.slow
def test_a_mixture_has_the_mean_of_its_members_values() -> None:
    """Against any opponent: a member that is drawn before the game, and one policy that plays like it."""
    tree, weights = tree_of("leduc_poker"), jnp.array([0.5, 0.2, 0.3])
    members = [random_policies(tree, seed) for seed in range(3)]
    stacked = [jnp.stack([m[p] for m in members]) for p in range(2)]
    mixed = mixed_policies(tree, stacked, weights)
    for player in range(2):
        np.testing.assert_allclose(mixed[player].sum(-1), 1.0, atol=1e-5)
        rival = random_policies(tree, 9)
        seats = [[m[player] if p == player else rival[p] for p in range(2)] for m in (*members, mixed)]
        values = [float(game_values(tree, s)[player]) for s in seats]
        assert values[3] == pytest.approx(float(np.dot(weights, values[:3])), abs=1e-5)
    with pytest.raises(rljax.ConfigError, match="several paths lead to"):
        mixed_policies(tree_of("tic_tac_toe"), [jnp.stack([p]) for p in uniform_policies(tree_of("tic_tac_toe"))], jnp.ones(1))


class Chain(Game):
    """Players in turn go on (0) or give up (1), which the other wins; after `limit` steps the game is truncated, a draw."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, float(self.limit), (1,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def to_move(self, state: EnvState) -> jax.Array:
        return jnp.arange(2) == state.time % 2

    def is_truncated(self, state: EnvState, params: Any) -> jax.Array:
        return state.time >= self.limit

    def observe(self, state: EnvState, params: Any) -> jax.Array:
        return jnp.full((2, 1), state.time, jnp.float32)

    def initial_states(self, params: Any) -> tuple[EnvState, jax.Array]:
        return EnvState(jnp.zeros(1, jnp.int32)), jnp.ones(1)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, EnvState]:
        state = EnvState(jnp.int32(0))
        return self.observe(state, params), state

    def step_env(self, key: jax.Array, state: EnvState, action: jax.Array, params: Any) -> tuple[Any, ...]:
        mover = state.time % 2
        gives_up = action[mover] == 1
        after = EnvState(state.time + 1)
        return (
            self.observe(after, params),
            after,
            jnp.where(gives_up, 1.0, 0.0) * jnp.where(jnp.arange(2) == mover, -1, 1),
            gives_up,
            {},
        )


class Waiting(Chain):
    """Nobody is to move in the first step, in which the game goes on."""

    def to_move(self, state: EnvState) -> jax.Array:
        return super().to_move(state) & (state.time > 0)

    def step_env(self, key: jax.Array, state: EnvState, action: jax.Array, params: Any) -> tuple[Any, ...]:
        return super().step_env(key, state, jnp.where(state.time > 0, action, 0), params)


class Coin(NamedTuple):
    time: jax.Array
    side: jax.Array


class Guess(Chain):
    """Player 0 sees a coin, -1 or 1, and player 1 guesses it. Its observation is the coin times 0: -0.0 or 0.0."""

    def observe(self, state: Any, params: Any) -> jax.Array:
        return (state.side * jnp.array([1.0, 0.0]))[:, None]

    def initial_states(self, params: Any) -> tuple[Any, jax.Array]:
        return Coin(jnp.zeros(2, jnp.int32), jnp.array([-1.0, 1.0])), jnp.array([0.5, 0.5])

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        state = Coin(jnp.int32(0), jnp.where(jax.random.bernoulli(key), 1.0, -1.0))
        return self.observe(state, params), state

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> tuple[Any, ...]:
        right = jnp.where((action[1] == 1) == (state.side > 0), 1.0, -1.0)
        after = Coin(state.time + 1, state.side)
        over = state.time == 1
        return self.observe(after, params), after, jnp.where(over, right * jnp.array([-1.0, 1.0]), 0.0), over, {}


def test_no_player_tells_zero_from_minus_zero() -> None:
    tree = game_tree(Guess(2))
    assert len(tree.masks[1]) == 1
    assert float(nash_conv(tree, uniform_policies(tree))) == pytest.approx(0.0, abs=1e-6)


class Twice(Chain):
    """Player 0 moves first and last, and wins if both moves are the same; it may see its first move, and the state keep it."""

    def __init__(self, sees: bool, keeps: bool) -> None:
        super().__init__(3)
        self.sees, self.keeps = sees, keeps

    def observe(self, state: Any, params: Any) -> jax.Array:
        return jnp.full((2, 1), state.time + 0.5 * self.sees * state.side, jnp.float32)

    def initial_states(self, params: Any) -> tuple[Any, jax.Array]:
        return Coin(jnp.zeros(1, jnp.int32), jnp.zeros(1)), jnp.ones(1)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        state = Coin(jnp.int32(0), jnp.float32(0.0))
        return self.observe(state, params), state

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> tuple[Any, ...]:
        kept = jnp.where(self.keeps & (state.time == 0), action[0].astype(jnp.float32), state.side)
        after, over = Coin(state.time + 1, kept), state.time == 2
        won = jnp.where(over & (action[0] == state.side), 1.0, 0.0)
        return self.observe(after, params), after, won * jnp.array([1.0, -1.0]), over, {}


def test_a_player_that_forgets_its_own_moves_is_refused() -> None:
    """By backward induction it would choose its last move for all first moves at once."""
    with pytest.raises(rljax.ConfigError, match="Twice: player 0 has the same observation in states that it could tell apart"):
        game_tree(Twice(sees=False, keeps=True))
    recalls = game_tree(Twice(sees=True, keeps=True))
    assert float(best_response(recalls, uniform_policies(recalls), 0)[0]) == pytest.approx(1.0)
    # What nothing depends on may be forgotten: one state after both first moves.
    merged = game_tree(Twice(sees=False, keeps=False))
    assert merged.merged
    assert float(best_response(merged, uniform_policies(merged), 0)[0]) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_player_knows_what_its_frames_show() -> None:
    """One whose observation forgets a bit knows it by the frame before; where nothing is forgotten, values stay the same."""
    # One bit of two at the first move; at the second move nothing, or the same bit.
    for tree, sets, value in ((game_tree(Recall()), 3, 0.0), (game_tree(GameFrameStack(Recall(), 2)), 4, 0.5)):
        assert [len(mask) for mask in tree.masks] == [sets, sets]
        assert float(best_response(tree, uniform_policies(tree), 0)[0]) == pytest.approx(value, abs=1e-6)
    kuhn, framed = tree_of("kuhn_poker"), game_tree(GameFrameStack(KuhnPoker(), 3))
    policies = uniform_policies(kuhn), uniform_policies(framed)
    np.testing.assert_allclose(game_values(framed, policies[1]), game_values(kuhn, policies[0]), atol=1e-6)
    np.testing.assert_allclose(nash_conv(framed, policies[1]), nash_conv(kuhn, policies[0]), atol=1e-6)


@pytest.mark.parametrize("chance", [[0.5, 0.6], [1.5, -0.5], [0.5, float("nan")]])
def test_chance_that_does_not_add_up_to_1_is_refused(chance: list[float]) -> None:
    class Biased(Guess):
        def initial_states(self, params: Any) -> tuple[Any, jax.Array]:
            return super().initial_states(params)[0], jnp.array(chance)

    with pytest.raises(
        rljax.ConfigError, match="Biased: initial_states returned probabilities that do not add up to 1 or are below 0"
    ):
        game_tree(Biased(2))


def test_a_step_in_which_nobody_moves_counts_once() -> None:
    tree = game_tree(Waiting(3))
    # Player 1 gives up at random, and then player 0 does.
    np.testing.assert_allclose(game_values(tree, uniform_policies(tree)), [0.25, -0.25], atol=1e-6)


def equations(jaxpr: Any) -> int:
    """Of a jaxpr and of those inside it."""
    held = [getattr(x, "jaxpr", x) for eqn in jaxpr.eqns for x in jax.tree.leaves(list(eqn.params.values()))]
    return len(jaxpr.eqns) + sum(equations(x) for x in held if hasattr(x, "eqns"))


@pytest.mark.slow
def test_what_is_traced_does_not_grow_with_the_length_of_a_game() -> None:
    counts = []
    for limit in (3, 40):
        tree = game_tree(Chain(limit))
        policies = uniform_policies(tree)
        traced = jax.make_jaxpr(lambda p, tree=tree: (exploitability(tree, p), game_values(tree, p)))(policies)
        counts.append(equations(traced.jaxpr))
        # At step t somebody gives up with probability 1 / 2^(t + 1). Who answers best never does.
        value = sum((-1.0) ** (t + 1) * 0.5 ** (t + 1) for t in range(limit))
        own, turns = np.arange(limit) % 2, np.arange(limit) // 2
        gain = [float(np.sum(0.5 ** (turns[own != player] + 1))) for player in range(2)]
        np.testing.assert_allclose(game_values(tree, policies), [value, -value], atol=1e-6)
        assert float(exploitability(tree, policies)) == pytest.approx(0.5 * sum(gain), abs=1e-6)
    assert counts[0] == counts[1]


def test_what_is_not_a_small_game_of_two_is_refused() -> None:
    with pytest.raises(rljax.ConfigError, match="4 players"):
        game_tree(Territory())
    with pytest.raises(rljax.ConfigError, match="max_states = 500"):
        game_tree(ConnectFour(), max_states=500)


class Alone(Chain):
    """The same, in which only the first player moves."""

    def to_move(self, state: EnvState) -> jax.Array:
        return jnp.array([True, False])


def test_a_game_in_which_one_player_never_moves_is_refused() -> None:
    with pytest.raises(rljax.ConfigError, match="player 1 never moves, so it has no policy"):
        game_tree(Alone(3))


@pytest.mark.slow
def test_chance_in_the_steps_of_a_game_is_in_its_tree() -> None:
    """The dice race: its value, and the best responses to best play and to uniform play, against plain Python."""
    tree = game_tree(Race())
    assert len(tree.size) == 2 * len(TURNS)
    assert (tree.probability >= 0).all()
    policies = [np.zeros(mask.shape, np.float32) for mask in tree.masks]
    states, values, _ = race_positions()
    obs = np.asarray(jax.vmap(lambda s: Race().observe(s, None))(states))
    moves = np.asarray(jax.vmap(Race().to_move)(states))
    for n, player in zip(*np.nonzero(moves), strict=True):
        seen = int(np.flatnonzero((tree.observations[player] == obs[n, player]).all(1))[0])
        policies[player][seen, values[n].argmax()] = 1.0
    best = [jnp.asarray(x) for x in policies]
    won = max(race_values(0, 0, 0))
    np.testing.assert_allclose(game_values(tree, best), [won, -won], atol=1e-6)
    assert float(nash_conv(tree, best)) == pytest.approx(0.0, abs=1e-6)

    @functools.cache
    def against_uniform(first: int, second: int, time: int) -> float:
        """Return of player 0 against a player 1 that moves at random."""
        after = []
        for outcomes in (((SAFE, 1.0),), BOLD):
            value = 0.0
            for gain, p in outcomes:
                totals = (first + gain, second) if TURNS[time] == 0 else (first, second + gain)
                last = time + 1 == len(TURNS)
                value += p * (float(np.sign(totals[0] - totals[1])) if last else against_uniform(*totals, time + 1))
            after.append(value)
        return max(after) if TURNS[time] == 0 else sum(after) / 2

    found = best_response(tree, uniform_policies(tree), 0)[0]
    assert float(found) == pytest.approx(against_uniform(0, 0, 0), abs=1e-6)


def test_chance_in_the_steps_that_does_not_add_up_to_1_is_refused() -> None:
    class Loaded(Race):
        def chance(self, state: Any, action: jax.Array, params: Any) -> jax.Array:
            return 0.9 * super().chance(state, action, params)

    with pytest.raises(rljax.ConfigError, match=r"Loaded: chance returned probabilities .* sum off by 0\.1"):
        game_tree(Loaded())
