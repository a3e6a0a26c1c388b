"""Games against other implementations: OpenSpiel's and pgx's rules on random playouts, and plain Python for rljax's own."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.check import check_environment
from rljax.core.game import Game
from rljax.envs import ConnectFour, KuhnPoker, LeducPoker, MatrixGame, NumberDuel, PgxGame, Territory, TicTacToe, make_env

PLAYOUTS = 1_000
GAMES: dict[str, Game] = {
    "kuhn_poker": KuhnPoker(),
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


@pytest.mark.parametrize(("name", "steps"), [("kuhn_poker", 3), ("leduc_poker", 8), ("tic_tac_toe", 9), ("connect_four", 42)])
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
            assert run.moves[t, n].tolist() == [player == 0, player == 1]
            assert np.flatnonzero(run.mask[t, n, player]).tolist() == state.legal_actions()
            state.apply_action(int(run.action[t, n, player]))
            if run.over[t, n]:
                break
            assert (run.reward[t, n] == 0).all()
        assert state.is_terminal()
        np.testing.assert_allclose(run.reward[t, n], state.returns(), atol=1e-6)


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
@pytest.mark.parametrize("name", ["backgammon", "leduc_holdem", "tic_tac_toe"])
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


@pytest.mark.parametrize("name", [name for name in GAMES if name != "connect_four"])
def test_zero_sum_and_teams_share(name: str) -> None:
    game = GAMES[name]
    run = playouts(game, 9, 64)
    np.testing.assert_allclose(run.reward.sum(-1), 0.0, atol=1e-6)
    assert np.abs(run.reward).max() > 0
    for a, b in zip(*np.triu_indices(game.num_players, 1), strict=True):
        if game.teams[a] == game.teams[b]:
            np.testing.assert_array_equal(run.reward[..., a], run.reward[..., b])


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker"])
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
    for name in ("TicTacToe-v0", "ConnectFour-v0", "Territory-v0"):
        game, params = make_env(name)
        assert game.name == name
        _, state = game.reset_env(jax.random.key(0), params)
        blank = game.render(state, params)
        _, state, *_ = game.step_env(jax.random.key(0), state, jnp.full(game.num_players, 2), params)
        picture = game.render(state, params)
        assert picture.dtype == jnp.uint8
        assert (picture != blank).any()
    assert make_env("pgx:tic_tac_toe")[0].name == "pgx:tic_tac_toe"
    with pytest.raises(rljax.ConfigError, match="did you mean 'connect_four'"):
        make_env("pgx:connect_for")
    with pytest.raises(rljax.ConfigError, match="payoff of shape"):
        MatrixGame([1.0, 2.0])
