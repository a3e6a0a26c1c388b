"""Games against other implementations: OpenSpiel's and pgx's rules on random playouts, and plain Python for rljax's own."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.check import check_environment
from rljax.core.games.game import Game
from rljax.envs import (
    ConnectFour,
    HeavyBox,
    KuhnPoker,
    LeducPoker,
    MatrixGame,
    NumberDuel,
    PgxGame,
    Territory,
    TicTacToe,
    make_env,
)
from rljax.envs.heavy_box import HeavyBoxState
from rljax.envs.territory import TerritoryState

PLAYOUTS = 1_000
RANDOM_PARTNER = 0.0733
"""Best return in HeavyBox-v0 with a partner that moves at random, by dynamic programming."""
GAMES: dict[str, Game] = {
    "kuhn_poker": KuhnPoker(),
    "kuhn_poker(players=3)": KuhnPoker(3),
    "kuhn_poker(players=4)": KuhnPoker(4),
    "heavy_box": HeavyBox(),
    "leduc_poker": LeducPoker(),
    "tic_tac_toe": TicTacToe(),
    "connect_four": ConnectFour(),
    "number_duel": NumberDuel(),
    "territory": Territory(),
    "matrix": MatrixGame([[3.0, -2.0], [-2.0, 1.0], [0.0, 0.5]]),
}


class Playout(NamedTuple):
    """Games of random legal moves, `[T, N, ...]`; what comes after the end of a game does not count."""

    start: Any
    obs: np.ndarray
    mask: np.ndarray
    moves: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    over: np.ndarray


def playouts(game: Game, steps: int, count: int = PLAYOUTS, seed: int = 0) -> Playout:
    params = game.default_params

    def one(key: jax.Array) -> Any:
        reset_key, key = jax.random.split(key)
        obs, start = game.reset_env(reset_key, params)

        def step(carry: Any, key: jax.Array) -> Any:
            obs, state = carry
            mask, moves = game.action_mask(state, params), game.to_move(state)
            action_key, step_key = jax.random.split(key)
            action = jax.random.categorical(action_key, jnp.where(mask, 0.0, -jnp.inf))
            next_obs, state, reward, over, _ = game.step_env(step_key, state, action, params)
            return (next_obs, state), (obs, mask, moves, action, reward, over)

        return start, jax.lax.scan(step, (obs, start), jax.random.split(key, steps))[1]

    start, out = jax.jit(jax.vmap(one, out_axes=(0, 1)))(jax.random.split(jax.random.key(seed), count))
    return Playout(start, *map(np.asarray, out))


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("kuhn_poker", 3),
        ("kuhn_poker(players=3)", 5),
        ("kuhn_poker(players=4)", 7),
        ("leduc_poker", 8),
        ("tic_tac_toe", 9),
        ("connect_four", 42),
    ],
)
def test_rules_are_those_of_openspiel(name: str, steps: int) -> None:
    """Legal moves at every step, whose turn it is, when it ends and what everybody gets."""
    pyspiel = pytest.importorskip("pyspiel")
    spiel, run = pyspiel.load_game(name), playouts(GAMES[name], steps)
    cards = None if name in ("tic_tac_toe", "connect_four") else np.asarray(run.start.cards)
    for n in range(PLAYOUTS):
        state, dealt = spiel.new_initial_state(), 0
        for t in range(steps):
            while state.is_chance_node():
                wanted = int(cards[n, dealt])  # type: ignore[index]
                outcomes = [outcome for outcome, _ in state.chance_outcomes()]
                # Leduc's six cards are three ranks in two suits; of Kuhn's each has its own.
                state.apply_action(next(o for o in outcomes if (o // 2 if name == "leduc_poker" else o) == wanted))
                dealt += 1
            player = state.current_player()
            assert run.moves[t, n].tolist() == [player == seat for seat in range(spiel.num_players())]
            assert np.flatnonzero(run.mask[t, n, player]).tolist() == state.legal_actions()
            state.apply_action(int(run.action[t, n, player]))
            if run.over[t, n]:
                break
            # Only who folds in poker of more than two pays before the end, and then nothing else.
            assert (run.reward[t, n] == 0).all() or (spiel.num_players() > 2 and run.reward[t, n].tolist()[player] == -1)
        assert state.is_terminal()
        np.testing.assert_allclose(run.reward[: t + 1, n].sum(0), state.returns(), atol=1e-6)
        assert ((run.reward[: t + 1, n] != 0).sum(0) <= 1).all()


@pytest.mark.parametrize(("name", "ours"), [("connect_four", ConnectFour()), ("tic_tac_toe", TicTacToe())])
def test_pgx_games_are_games_and_ours_have_the_same_rules(name: str, ours: Game) -> None:
    pytest.importorskip("pgx")
    theirs, steps = PgxGame(name), 42 if name == "connect_four" else 9
    run = playouts(theirs, steps, 200)
    first = np.asarray(run.start.current_player)
    assert 0 < first.mean() < 1  # pgx draws who begins

    @jax.jit
    @jax.vmap
    def replayed(actions: jax.Array) -> Any:
        _, state = ours.reset_env(jax.random.key(0), ours.default_params)

        def step(state: Any, action: jax.Array) -> Any:
            mask = ours.action_mask(state, ours.default_params)
            _, state, reward, over, _ = ours.step_env(jax.random.key(0), state, action, ours.default_params)
            return state, (mask, reward, over)

        return jax.lax.scan(step, state, actions)[1]

    for n in range(200):
        last = int(np.argmax(run.over[:, n]))
        seats = [first[n], 1 - first[n]]
        mask, reward, over = (np.asarray(x)[0] for x in replayed(jnp.asarray(run.action[None, :, n][:, :, seats])))
        assert (over[:last] == 0).all()
        assert over[last]
        assert (mask[: last + 1] == run.mask[: last + 1, n][:, seats]).all()
        np.testing.assert_array_equal(reward[last], run.reward[last, n][seats])


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("backgammon", marks=pytest.mark.long), "leduc_holdem", "tic_tac_toe"])
def test_pgx_games_pass_the_check(name: str) -> None:
    """Turns that do not alternate among them: the gaps declared are not exceeded."""
    pytest.importorskip("pgx")
    check_environment(PgxGame(name))


@pytest.mark.parametrize("name", GAMES)
def test_players_see_a_legal_state_and_nothing_of_what_is_hidden(name: str) -> None:
    game = GAMES[name]
    params, run = game.default_params, playouts(game, 6, 64)
    space = game.observation_space(params)
    assert run.obs.shape[2:] == (game.num_players, *space.shape)
    assert (run.obs >= space.low).all()
    assert (run.obs <= space.high).all()
    assert run.reward.shape[2:] == (game.num_players,)
    assert run.mask.any(-1).all()
    assert run.mask[~run.moves].all() or name == "matrix"
    if name in ("kuhn_poker", "leduc_poker"):
        other = run.start.replace(cards=run.start.cards.at[:, 1].set((run.start.cards[:, 1] + 1) % 3))
        before, after = (jax.vmap(lambda s: game.observe(s, params))(s) for s in (run.start, other))
        np.testing.assert_array_equal(before[:, 0], after[:, 0])
        assert (before[:, 1] != after[:, 1]).any()


@pytest.mark.parametrize("name", [name for name in GAMES if name not in ("connect_four", "heavy_box") and "players" not in name])
def test_zero_sum_and_teams_share(name: str) -> None:
    game = GAMES[name]
    run = playouts(game, 9, 64)
    np.testing.assert_allclose(run.reward.sum(-1), 0.0, atol=1e-6)
    assert np.abs(run.reward).max() > 0
    for a, b in zip(*np.triu_indices(game.num_players, 1), strict=True):
        if game.teams[a] == game.teams[b]:
            np.testing.assert_array_equal(run.reward[..., a], run.reward[..., b])


@pytest.mark.parametrize("name", ["kuhn_poker", "kuhn_poker(players=3)", "leduc_poker"])
def test_deals_are_as_likely_as_stated(name: str) -> None:
    """Chi-square of 20,000 resets: below its 1e-6 quantile."""
    game = GAMES[name]
    states, chance = game.initial_states(game.default_params)
    _, dealt = jax.jit(jax.vmap(lambda key: game.reset_env(key, game.default_params)))(
        jax.random.split(jax.random.key(1), 20_000)
    )
    same = (np.asarray(dealt.cards)[:, None] == np.asarray(states.cards)).all(-1)
    assert (same.sum(1) == 1).all()
    expected = np.asarray(chance) * 20_000
    assert expected.sum() == pytest.approx(20_000)
    chi_square = (np.square(same.sum(0) - expected) / expected).sum()
    assert chi_square < {6: 36.0, 24: 70.0}[len(expected)]


def test_number_duel_pays_as_plain_python_says() -> None:
    run = playouts(GAMES["number_duel"], 5, 200)
    for a, b, reward in zip(*run.action.reshape(-1, 2).T, run.reward.reshape(-1, 2), strict=True):
        won = 0.0
        if a != b:
            winner = a if (a - b) % 5 in (1, 2) else b
            won = (winner + 1) / 5 * (1 if winner == a else -1)
        np.testing.assert_allclose(reward, [won, -won], atol=1e-6)
    assert run.over[4].all()
    assert not run.over[:4].any()


def pushed(place: list[list[int]], beam: list[int], action: list[int]) -> tuple[list[list[int]], list[int], bool]:
    """HeavyBox's rules in plain Python: the cells and the beam after a step, and whether it moved."""
    row, column = beam
    below = [[row + 1, column], [row + 1, column + 1]]
    moved = action == [1, 1] and place in (below, below[::-1])
    row -= moved
    after = []
    for (r, c), a in zip(place, action, strict=True):
        down, right = {0: (0, 0), 1: (-1, 0), 2: (0, 1), 3: (1, 0), 4: (0, -1)}[a]
        to = [min(max(r + down, 0), 4), min(max(c + right, 0), 4)]
        after.append([r, c] if to in ([row, column], [row, column + 1]) else to)
    return after, [row, column], moved


@pytest.mark.slow
def test_heavy_box_moves_as_plain_python_says() -> None:
    """Random games, and every position below the beam with all 25 pairs of actions."""
    run = playouts(GAMES["heavy_box"], 25, 30)
    for n in range(30):
        place, beam = np.asarray(run.start.place)[n].tolist(), np.asarray(run.start.beam)[n].tolist()
        assert all(cell not in ([3, beam[1]], [3, beam[1] + 1]) for cell in place)
        for t in range(25):
            for player in range(2):
                view = np.zeros((9, 9, 5), np.float32)
                row, column = (4 - x for x in place[player])  # where the room's first cell is
                view[row + place[1 - player][0], column + place[1 - player][1], 0] = 1
                view[row + beam[0], column + beam[1] : column + beam[1] + 2, 1] = 1
                view[row : row + 5, column : column + 5, 2] = 1
                view[..., 3], view[..., 4] = 1 - t / 25, player
                np.testing.assert_allclose(run.obs[t, n, player], view, atol=1e-6)
            place, beam, moved = pushed(place, beam, run.action[t, n].tolist())
            np.testing.assert_allclose(run.reward[t, n], [moved / 3] * 2, atol=1e-6)
            if run.over[t, n]:
                break
        assert t == 24 or beam[0] == 0
    states, joint, after, reward = all_steps_of_heavy_box()
    rng = np.random.default_rng(0)
    pushes = np.flatnonzero((reward > 0).any(1))
    for i in [*pushes, *rng.integers(0, len(states), 200)]:
        for j, action in enumerate(joint):
            place, beam, moved = pushed(states[i, :4].reshape(2, 2).tolist(), states[i, 4:].tolist(), action.tolist())
            assert after[i, j].tolist() == [*place[0], *place[1], *beam]
            assert reward[i, j] == pytest.approx(moved / 3)


@functools.cache
def all_steps_of_heavy_box() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Positions `[S, 6]` (cells of both players, beam), the 25 pairs of actions, where each leads `[S, 25, 6]`, its reward."""
    game = HeavyBox()
    cells, beams = list(itertools.product(range(5), repeat=2)), list(itertools.product((1, 2, 3), range(4)))
    states = np.array([
        (*a, *b, *beam) for a in cells for b in cells for beam in beams
        if not {a, b} & {beam, (beam[0], beam[1] + 1)}
    ])  # fmt: skip
    joint = np.array(list(itertools.product(range(5), repeat=2)))

    @jax.jit
    def step(row: jax.Array, action: jax.Array) -> Any:
        state = HeavyBoxState(row[:4].reshape(2, 2), row[4:], jnp.zeros((), jnp.int32))
        _, after, reward, _, _ = game.step_env(jax.random.key(0), state, action, game.default_params)
        return jnp.concatenate([after.place.reshape(-1), after.beam]), reward

    after, reward = jax.vmap(jax.vmap(step, (None, 0)), (0, None))(jnp.asarray(states), jnp.asarray(joint))
    assert (reward[..., 0] == reward[..., 1]).all()
    return states, joint, np.asarray(after), np.asarray(reward[..., 0])


def values_of_heavy_box(partner: np.ndarray | None, steps: int = 25) -> np.ndarray:
    """Best return from every position in `steps` steps, f64 `[S]`, with a partner that takes its five actions with these
    probabilities, or (None) with the best partner."""
    states, _, after, reward = all_steps_of_heavy_box()
    index = {tuple(row): i for i, row in enumerate(states.tolist())}
    to = np.array([[index.get(tuple(row), -1) for row in rows] for rows in after.tolist()])  # -1: the beam has arrived
    value = np.zeros(len(states) + 1)
    for _ in range(steps):
        each = (reward + value[to]).reshape(-1, 5, 5)
        value[:-1] = each.max((1, 2)) if partner is None else (each @ partner).max(1)
    return value[:-1]


@pytest.mark.slow
def test_one_player_alone_gets_nothing_in_heavy_box_and_two_always_push_it_home() -> None:
    """By enumeration of all positions and dynamic programming over all 25 steps."""
    states, joint, _, reward = all_steps_of_heavy_box()
    assert (reward[:, (joint != 1).any(1)] == 0).all()  # only if both go up
    for partner in ([1, 0, 0, 0, 0], [0, 0, 0.5, 0, 0.5]):  # idle, or wandering to the sides
        assert (values_of_heavy_box(np.array(partner)) == 0).all()
    starts = states[:, 4] == 3
    np.testing.assert_allclose(values_of_heavy_box(None)[starts], 1.0)
    with_random = values_of_heavy_box(np.full(5, 0.2))[starts].mean()
    assert with_random == pytest.approx(RANDOM_PARTNER, abs=5e-4)


def painted_by(place: list[list[int]], paint: dict[tuple[int, int], int]) -> None:
    """Territory's rule: a cell gets the color of a team that is on it alone."""
    for cell in place:
        here = {player // 2 for player in range(4) if place[player] == cell}
        if len(here) == 1:
            paint[cell[0], cell[1]] = here.pop()


def test_territory_is_painted_as_plain_python_says() -> None:
    game = Territory()
    run = playouts(game, 30, 20)
    moves = {0: (0, 0), 1: (-1, 0), 2: (0, 1), 3: (1, 0), 4: (0, -1)}
    for n in range(20):
        place = np.asarray(run.start.place)[n].tolist()
        paint: dict[tuple[int, int], int] = {}
        painted_by(place, paint)
        for t in range(30):
            for player in range(4):
                row, column = place[player]
                view = np.zeros((7, 7, 5), np.float32)
                view[..., 4] = 1 - t / 30
                for (r, c), team in paint.items():
                    view[(r - row + 3) % 7, (c - column + 3) % 7, int(team != player // 2)] = 1
                for other, (r, c) in enumerate(place):
                    if other != player:
                        view[(r - row + 3) % 7, (c - column + 3) % 7, 2 + int(other // 2 != player // 2)] = 1
                np.testing.assert_allclose(run.obs[t, n, player], view, atol=1e-6)
            before = sum(1 if team == 0 else -1 for team in paint.values())
            for player in range(4):
                down, right = moves[int(run.action[t, n, player])]
                place[player] = [(place[player][0] + down) % 7, (place[player][1] + right) % 7]
            painted_by(place, paint)
            gained = sum(1 if team == 0 else -1 for team in paint.values()) - before
            np.testing.assert_allclose(run.reward[t, n], np.array([1, 1, -1, -1]) * gained, atol=1e-6)
    assert run.over[29].all()
    assert not run.over[:29].any()
    assert len({str(place) for place in np.asarray(run.start.place).tolist()}) > 10


@pytest.mark.slow
def test_games_are_made_by_id_and_drawn() -> None:
    for name in ("TicTacToe-v0", "ConnectFour-v0", "Territory-v0", "HeavyBox-v0"):
        game, params = make_env(name)
        assert game.name == name
        _, state = game.reset_env(jax.random.key(0), params)
        blank = game.render(state, params)
        _, state, *_ = game.step_env(jax.random.key(0), state, jnp.full(game.num_players, 2), params)
        picture = game.render(state, params)
        assert picture.dtype == jnp.uint8
        assert (picture != blank).any()
    assert make_env("pgx:tic_tac_toe")[0].name == "pgx:tic_tac_toe"
    with pytest.raises(rljax.ConfigError, match="did you mean 'pgx:connect_four'"):
        make_env("pgx:connect_for")
    with pytest.raises(rljax.ConfigError, match=r"^env = 'pgx:zzzz': rljax list pgx lists what there is$"):
        make_env("pgx:zzzz")
    with pytest.raises(rljax.ConfigError, match="payoff of shape"):
        MatrixGame([1.0, 2.0])


def test_territory_in_words() -> None:
    game = Territory()
    paint = jnp.zeros((7, 7), jnp.int32).at[0, 0].set(1).at[0, 1].set(2).at[6, 6].set(2)
    state = TerritoryState(paint, jnp.array([[0, 2], [3, 3], [3, 3], [6, 0]]), jnp.int32(4))
    lines = game.text(state, game.default_params, 2).splitlines()
    assert lines[0] == " a  b  0  .  .  .  . "
    assert lines[3] == " .  .  . [2] .  .  . "
    assert lines[6] == " 3  .  .  .  .  .  b "
    assert lines[7] == "cells of team a (players 0 and 1): 1, of team b (players 2 and 3): 2; steps left: 26"
    assert game.text(state, game.default_params, 0).splitlines()[3] == " .  .  .  1  .  .  . "


@pytest.mark.parametrize("game", [TicTacToe(), ConnectFour()])
def test_a_board_in_words_says_which_mark_is_ones_own(game: TicTacToe | ConnectFour) -> None:
    _, state = game.reset_env(jax.random.key(0), game.default_params)
    state = state.replace(board=np.where(np.arange(state.board.size) == 0, 1, 0).reshape(state.board.shape))  # of player 0
    for player, mark in enumerate("XO"):
        board, _, own = game.text(state, game.default_params, player).rpartition("\n")
        assert own == f"you are {mark}"
        assert (board.count("X"), board.count("O")) == (1, 0)
