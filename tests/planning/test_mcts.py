"""Search against brute force: drafts whose turns do not alternate, and tic-tac-toe."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.chance import draws_from_state, draws_in_step, same_for_all_keys, uses_key
from rljax.core.games.game import Game
from rljax.core.games.game_wrappers import WrappedGame
from rljax.envs import Draft, TicTacToe, make_env
from rljax.envs.draft import ORDER, DraftParams, DraftState, draft_score, greedy_completion, random_draft
from rljax.envs.tic_tac_toe import TicTacToeState
from rljax.league.game_tree import game_tree
from rljax.planning import make_mcts, search_player
from rljax.planning.mcts import check_searchable
from rljax.run.players import agent_player
from rljax.run.reproduce.playing.perfect import optimal_moves
from rljax.run.view.tournament import make_entries

GAME = Draft()


def minimax(params: DraftParams) -> np.ndarray:
    """What player 0 gets after each first pick when both go on as well as they can, `[8]`."""
    synergy, counter = np.asarray(params.synergy, np.float64), np.asarray(params.counter, np.float64)

    def value(owner: tuple[int, ...], time: int) -> float:
        if time == len(ORDER):
            first, second = (np.array(owner) == 1) * 1.0, (np.array(owner) == 2) * 1.0
            return 0.5 * (first @ synergy @ first - second @ synergy @ second) + first @ counter @ second
        side = ORDER[time]
        after = [value((*owner[:i], side + 1, *owner[i + 1 :]), time + 1) for i in range(8) if owner[i] == 0]
        return max(after) if side == 0 else min(after)

    empty = (0,) * 8
    return np.array([value((*empty[:i], 1, *empty[i + 1 :]), 1) for i in range(8)])


def drafts(count: int) -> tuple[DraftParams, np.ndarray]:
    params = jax.vmap(random_draft)(jax.random.split(jax.random.key(7), count))
    return params, np.stack([minimax(jax.tree.map(lambda x, i=i: x[i], params)) for i in range(count)])


def searched(params: DraftParams, count: int, simulations: int) -> np.ndarray:
    def first_pick(key: jax.Array, params: DraftParams) -> jax.Array:
        state = jax.tree.map(lambda x: x[None], GAME.reset_env(key, params)[1])
        search = make_mcts(GAME, params, evaluate=greedy_completion(params), num_simulations=simulations, exploration=1.6)
        return search(key, state).action[0]

    return np.asarray(jax.jit(jax.vmap(first_pick))(jax.random.split(jax.random.key(1), count), params))


@pytest.mark.slow
def test_search_agrees_with_minimax_on_drafts_the_more_the_longer_it_searches(figure: Any) -> None:
    count = 60
    params, values = drafts(count)
    best = values.max(1)
    agree, regret = [], []
    for simulations in (25, 400):
        picked = values[np.arange(count), searched(params, count, simulations)]
        agree.append(float(np.mean(picked >= best - 1e-5)))
        regret.append(float(np.mean(best - picked)))
    greedy = np.asarray(jax.jit(jax.vmap(greedy_pick))(params))
    greedy_regret = float(np.mean(best - values[np.arange(count), greedy]))
    figure(
        f"drafts: agreement with minimax {np.round(agree, 3).tolist()} at 25 and 400 simulations, "
        f"value lost {np.round(regret, 4).tolist()}; "
        f"greedy loses {greedy_regret:.3f}"
    )
    assert agree[0] < agree[1]
    assert agree[1] >= 0.85
    assert regret[1] < 0.1 * greedy_regret


def greedy_pick(params: DraftParams) -> jax.Array:
    """The first pick that looks best if all later ones are greedy."""
    evaluate = greedy_completion(params)

    def after(hero: jax.Array) -> jax.Array:
        state = DraftState(jnp.where(jnp.arange(8) == hero, 1, 0), jnp.int32(1))
        return -evaluate(jax.random.key(0), state, None, jnp.ones(8, bool))[1]

    return jnp.argmax(jax.vmap(after)(jnp.arange(8)))


def test_a_draft_is_scored_by_its_formula_and_nobody_moves_out_of_turn() -> None:
    params = GAME.default_params
    synergy, counter = np.asarray(params.synergy), np.asarray(params.counter)
    np.testing.assert_array_equal(synergy, synergy.T)
    np.testing.assert_array_equal(counter, -counter.T)
    for picks in itertools.islice(itertools.permutations(range(8), 4), 0, 1680, 97):
        _, state = GAME.reset_env(jax.random.key(0), params)
        for side, hero in zip(ORDER, picks, strict=True):
            assert GAME.to_move(state).tolist() == [side == 0, side == 1]
            _, state, reward, over, _ = GAME.step_env(jax.random.key(0), state, jnp.full(2, hero), params)
        a, b, c, d = picks
        expected = synergy[a, d] - synergy[b, c] + sum(counter[i, j] for i in (a, d) for j in (b, c))
        assert bool(over)
        np.testing.assert_allclose(reward, [expected, -expected], atol=1e-5)
        np.testing.assert_allclose(draft_score(state.owner, params), expected, atol=1e-5)


@pytest.mark.slow
def test_signs_follow_the_side_to_move_and_not_the_ply() -> None:
    """After A, the two picks of B in a row: a search that changed sign at every ply would let B choose against itself."""
    params, _ = drafts(12)

    def searched_value(one: DraftParams) -> jax.Array:
        state = DraftState(jnp.zeros((1, 8), jnp.int32).at[0, 0].set(1), jnp.ones(1, jnp.int32))
        search = make_mcts(GAME, one, evaluate=greedy_completion(one), num_simulations=400, exploration=0.6)
        return search(jax.random.key(0), state).value[0]

    found = np.asarray(jax.jit(jax.vmap(searched_value))(params))
    exact = np.array([-minimax(jax.tree.map(lambda x, i=i: x[i], params))[0] for i in range(12)])
    assert np.corrcoef(found, exact)[0, 1] > 0.95
    assert np.abs(found - exact).mean() < 0.1


class Mates(Game):
    """Two against two in turns: by action 1 the mover's mate wins much, by the others the mover itself wins little."""

    num_players = 4

    @property
    def teams(self) -> tuple[int, ...]:
        return (0, 1, 0, 1)

    @property
    def turn_gap(self) -> int:
        return 3

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, 4.0, (1,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def to_move(self, state: jax.Array) -> jax.Array:
        return jnp.arange(4) == state % 4

    def action_mask(self, state: jax.Array, params: Any) -> jax.Array:
        return jnp.ones((4, 2), bool)

    def observe(self, state: jax.Array, params: Any) -> jax.Array:
        return jnp.full((4, 1), state, jnp.float32)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
        return self.observe(jnp.int32(0), params), jnp.int32(0)

    def step_env(self, key: jax.Array, state: jax.Array, action: jax.Array, params: Any) -> tuple[Any, ...]:
        of_mate, own = jnp.array([0.0, -0.5, 1.0, -0.5]), jnp.array([0.1, -0.05, 0.0, -0.05])
        reward = jnp.where(state == 0, jnp.where(action[0] == 1, of_mate, own), 0.0)
        return self.observe(state + 1, params), state + 1, reward, state + 1 >= 4, {}

    def is_truncated(self, state: jax.Array, params: Any) -> jax.Array:
        return jnp.asarray(False)


@pytest.mark.slow
def test_a_side_is_worth_the_mean_of_its_players() -> None:
    """The side gets .5 by the move for the mate, and .05 by the other one."""
    state = Mates().reset_env(jax.random.key(0), None)[1][None]
    found = jax.jit(make_mcts(Mates(), num_simulations=64))(jax.random.key(0), state)
    assert int(found.action[0]) == 1
    assert 0.4 < float(found.value[0]) <= 0.5
    config = rljax.AlphaZeroConfig(
        env=Mates(), num_envs=8, num_steps=8, num_minibatches=1, num_simulations=8, learning_rate=1e-2, total_timesteps=64 * 40
    )
    result = jax.jit(rljax.make_train(config))(jax.random.key(0))
    logits, value = rljax.make_agent(config).policy_and_value(result.state, jnp.zeros((1, 1)))
    assert int(jnp.argmax(logits)) == 1
    assert 0.3 < float(value[0]) < 0.7


@pytest.mark.slow
def test_blocks_wins_and_never_plays_an_illegal_move() -> None:
    game, params = make_env("TicTacToe-v0")
    search = jax.jit(make_mcts(game, params, num_simulations=200))
    state = game.reset_env(jax.random.key(0), params)[1]

    def after(*cells: int) -> Any:
        now = state
        for cell in cells:
            now = game.step_env(jax.random.key(0), now, jnp.full(2, cell), params)[1]
        return jax.tree.map(lambda x: x[None], now)

    block = search(jax.random.key(0), after(0, 4, 1))
    assert int(block.action[0]) == 2
    win = search(jax.random.key(1), after(0, 4, 1, 3))
    assert int(win.action[0]) == 2
    assert float(win.value[0]) > 0.8
    lost = search(jax.random.key(2), after(0, 1, 4, 2))  # two threats: the one to move wins
    assert float(lost.value[0]) > 0.8
    assert not np.asarray(block.weights)[0, [0, 1, 4]].any()
    np.testing.assert_allclose(block.weights.sum(), 1.0, rtol=1e-5)


@pytest.mark.slow
def test_moves_of_tic_tac_toe_are_best_the_more_often_the_longer_it_searches(figure: Any) -> None:
    game, _ = make_env("TicTacToe-v0")
    best = optimal_moves()
    codes = np.random.default_rng(0).choice(np.flatnonzero(best.any(1)), 100, replace=False)
    boards = jnp.asarray(codes[:, None] // 3 ** np.arange(9) % 3, jnp.int32)
    states = TicTacToeState(boards, jnp.sum(boards > 0, axis=1))
    share = []
    for simulations in (10, 100):
        found = jax.jit(make_mcts(game, num_simulations=simulations))(jax.random.key(0), states)
        share.append(float(best[codes, np.asarray(found.action)].mean()))
    figure(f"tic-tac-toe: best moves in {share} of 100 positions at 10 and 100 simulations")
    assert share[0] < share[1]
    assert share[1] >= 0.95


def test_games_that_cannot_be_searched_are_refused() -> None:
    with pytest.raises(rljax.ConfigError, match=r"^game = 'TicTacToe-v0': expected a game, such as rljax.make_env\("):
        make_mcts("TicTacToe-v0")  # type: ignore[arg-type]
    with pytest.raises(rljax.ConfigError, match="players move at the same time"):
        make_mcts(make_env("NumberDuel-v0")[0])
    for name in ("KuhnPoker-v0", "LeducPoker-v0", "pgx:leduc_holdem"):
        with pytest.raises(rljax.ConfigError, match="hides a part of its state"):
            make_mcts(make_env(name)[0])
    with pytest.raises(rljax.ConfigError, match="hides a part of its state"):
        rljax.make_agent(rljax.AlphaZeroConfig(env="KuhnPoker-v0"))
    for number in (0, 10**9):
        with pytest.raises(rljax.ConfigError, match=f"num_simulations = {number}: expected a whole number > 0 and <= 100000"):
            make_mcts(GAME, num_simulations=number)
        with pytest.raises(rljax.ConfigError, match=f"num_simulations = {number}: expected a whole number > 0 and <= 100000"):
            rljax.AlphaZeroConfig(num_simulations=number)


class Paying(TicTacToe):
    """Tic-tac-toe whose winner gets what `pays` says, and the other side the second number."""

    def __init__(self, pays: tuple[float, float], says: bool | None = None):
        super().__init__()
        self.pays, self.zero_sum = pays, says

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        obs, state, reward, *after = super().step_env(key, state, action, params)
        won, lost = self.pays
        return obs, state, jnp.where(reward > 0, won, jnp.where(reward < 0, lost, 0.0)), *after


class Generous(WrappedGame):
    """Pays both sides besides what the game inside, which says that it is zero-sum, pays."""

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        obs, state, reward, *after = self.env.step_env(key, state, action, params)
        return obs, state, reward + 1.0, *after


def test_games_whose_sides_do_not_play_for_the_same_sum_are_refused() -> None:
    for game, paid in (
        (Paying((1.0, 0.0)), r" \(a step of random play paid (1 and 0|0 and 1)\)"),
        (Paying((1.0, -1.0), says=False), ""),
        (rljax.make_env("race:GridWorld-v0", turns=True)[0], ""),
    ):
        with pytest.raises(rljax.ConfigError, match=f"the rewards of its sides do not add up to zero{paid}, expected"):
            check_searchable(game)
    check_searchable(Paying((0.1, -0.1)))
    with pytest.raises(rljax.ConfigError, match=r"paid (-998.5 and 1000|1000 and -998.5|0.5 and 0.5)\), expected"):
        check_searchable(Paying((1000.0, -998.5)))
    with pytest.raises(rljax.ConfigError, match="do not add up to zero"):
        check_searchable(Generous(rljax.make_env("race:GridWorld-v0", turns=True, relative=True)[0]))
    check_searchable(Paying((1.0, 0.0), says=True))
    check_searchable(rljax.make_env("race:GridWorld-v0", turns=True, relative=True)[0])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sticky_actions": 0.25}, "sticky_actions = 0.25: a search does not foresee what is drawn, expected none"),
        ({"randomize": {"x": [0, 1]}}, "randomize = {.*}: a search does not foresee what is drawn, expected none"),
    ],
)
def test_alphazero_refuses_what_its_search_cannot_foresee(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(rljax.ConfigError, match=f"^{told}$"):
        rljax.AlphaZeroConfig(**changes)


def test_a_traced_value_is_refused_without_printing_it() -> None:
    with pytest.raises(rljax.ConfigError, match=r"^sticky_actions: a search does not foresee what is drawn, expected none"):
        jax.vmap(lambda x: rljax.AlphaZeroConfig(sticky_actions=x).gamma)(jnp.array([0.1, 0.2]))


class Gamble(Game):
    """Player 0 takes 0 for certain (action 0), or +1 with probability .4 and else -1 (1); before it player 1 moves in vain."""

    def __init__(self, draws: str = "step") -> None:
        self.draws = draws

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, 1.0, (1,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def to_move(self, state: Any) -> jax.Array:
        return jnp.arange(2) != state["time"]

    def observe(self, state: Any, params: Any) -> jax.Array:
        return jnp.full((2, 1), state["time"], jnp.float32)

    def initial_states(self, params: Any) -> tuple[Any, jax.Array]:
        return {"time": jnp.zeros(1, jnp.int32)}, jnp.ones(1)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        raw = jax.random.key_data(key)
        held = {"typed key": key, "raw key": raw, "raw key in a loop": raw, "board": jax.random.bits(key, 2)}
        state: Any = {"time": jnp.int32(0)}
        if self.draws in held:
            state["held"] = held[self.draws]
        return self.observe(state, params), state

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> tuple[Any, ...]:
        drawn = jax.random.split(key)[0] if self.draws == "never" else state.get("held", key)
        if self.draws == "never":
            drawn = jnp.where(state["time"] < 2, jax.random.key_data(jax.random.key(0)), jax.random.key_data(drawn))
            drawn = jax.random.wrap_key_data(drawn)
        if self.draws == "raw key":
            drawn = jax.random.split(jax.random.wrap_key_data(drawn))[0]
        if self.draws == "raw key in a loop":
            words = jax.lax.fori_loop(0, 2, lambda i, w: w.at[i].set(state["held"][i]), jnp.zeros(2, jnp.uint32))
            words = jax.lax.while_loop(lambda w: w[1] == 0, lambda w: w + 1, words)
            drawn = jax.lax.cond(state["time"] > 5, lambda: jax.random.key(3), lambda: jax.random.wrap_key_data(words))
        if self.draws == "board":  # integers that are no key, draws from constants beside them, and one that is dropped
            drawn = jax.random.fold_in(jax.random.key(0), 1)
            hashes = jax.lax.fori_loop(
                0, 2, lambda i, h: h ^ jax.random.bits(jax.random.fold_in(drawn, i)) * state["held"][i], jnp.uint32(0)
            )
            moved, drawn = jax.jit(lambda h, k: (h + 1, k))(hashes, drawn)
            jax.random.bits(jax.random.wrap_key_data(state["held"]))
            state = {**state, "held": state["held"] + moved}
        gain = jnp.where(action[0] == 1, jnp.where(jax.random.bernoulli(drawn, 0.4), 1.0, -1.0), 0.0)
        last = state["time"] == 1
        after = {**state, "time": state["time"] + 1}
        return self.observe(after, params), after, jnp.where(last, gain, 0.0) * jnp.array([1.0, -1.0]), last, {}


@pytest.mark.slow
def test_games_whose_steps_draw_are_refused_by_all_searches_declared_or_not() -> None:
    """A search would draw a gamble once and take the result for certain: here it would gamble, at a loss of .2, most often."""
    game = Gamble()
    refused = pytest.raises(rljax.ConfigError, match="steps are random")
    with refused:
        make_mcts(game)
    with refused:
        rljax.make_agent(rljax.AlphaZeroConfig(env=game, num_envs=8, num_steps=8))
    with refused:
        game_tree(game)
    agent = rljax.make_agent(rljax.SelfPlayConfig(env=game, num_envs=8, num_steps=8, num_minibatches=2))
    with refused:
        search_player(agent, None, 8)
    # What `tournament --include mcts`, `tournament --simulations` and `play --simulations` call.
    with refused:
        make_entries({"a": (agent, None)}, ["random", "mcts"])
    with refused:
        agent_player(agent, simulations=8)
    make_mcts(Gamble(draws="never"), num_simulations=2)


@pytest.mark.parametrize("draws", ["typed key", "raw key", "raw key in a loop"])
def test_games_whose_state_holds_a_key_of_either_kind_are_refused(draws: str) -> None:
    """With it a search foresees what will be drawn. Of old-style keys, which are integers, their use in the step tells."""
    game = Gamble(draws=draws)
    assert draws_from_state(game, None)
    for search in (make_mcts, game_tree):
        with pytest.raises(rljax.ConfigError, match="state holds a random key"):
            search(game)


def test_integers_that_are_no_key_and_constant_tables_are_not_taken_for_keys() -> None:
    assert not draws_from_state(Gamble(draws="board"), None)
    for name in ("TicTacToe-v0", "ConnectFour-v0"):
        assert not draws_from_state(*make_env(name))


@pytest.mark.slow
def test_whether_a_step_draws_is_found_by_stepping_with_several_keys() -> None:
    """Declared by a flag, proved by the traced step, or found in play; a key that is read and changes nothing is no chance."""
    assert draws_in_step(make_env("pgx:backgammon")[0], None)
    for name in ("TicTacToe-v0", "pgx:tic_tac_toe"):
        game, params = make_env(name)
        assert not uses_key(game, params)
        assert not draws_in_step(game, params)
    assert uses_key(Gamble(draws="never"), None)
    assert not draws_in_step(Gamble(draws="never"), Gamble().default_params)
    keys, game = jax.random.split(jax.random.key(0), 20), Gamble()
    results = {
        (time, action): bool(same_for_all_keys(game, None, keys, {"time": jnp.int32(time)}, jnp.full(2, action)))
        for time in (0, 1)
        for action in (0, 1)
    }
    assert results == {(0, 0): True, (0, 1): True, (1, 0): True, (1, 1): False}


@pytest.mark.parametrize("name", ["pgx:backgammon", "pgx:chess", "pgx:othello"])
@pytest.mark.slow
def test_of_pgx_the_games_with_dice_draw(name: str) -> None:
    game, params = make_env(name)
    assert not draws_from_state(game, params)
    game.step_is_random = False
    assert draws_in_step(game, params) == (name == "pgx:backgammon")
