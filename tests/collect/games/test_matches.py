"""Matches: openings that both sides play, and which games are the same one again, against plain Python."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.collect.distinct import fingerprint, first_occurrences
from rljax.collect.environments import make_base_game, make_game
from rljax.collect.games.matches import play_games, play_match, policy_player, seatings_of
from rljax.core.agent import initial_carry
from rljax.core.errors import ConfigError
from rljax.core.games.game_wrappers import GameTimeLimit
from rljax.core.games.versus import Versus, advance_carry, random_player, seat_player
from rljax.envs import make_env
from rljax.envs.tic_tac_toe import LINES
from rljax.run.demos.sources import find_cast
from rljax.run.players import check_one_game, game_table, played_game
from rljax.run.view.play import play
from rljax.run.view.tournament import make_entries
from tests.collect.games.parade import Parade, counting, plain_choice, plain_parade
from tests.core.games.recall import Recall

GAME, PARAMS = make_env("TicTacToe-v0")


def lowest(_key: Any, _state: Any, _obs: Any, mask: jax.Array) -> jax.Array:
    return jnp.argmax(mask, axis=-1)


def highest(_key: Any, _state: Any, _obs: Any, mask: jax.Array) -> jax.Array:
    return mask.shape[-1] - 1 - jnp.argmax(mask[:, ::-1], axis=-1)


@pytest.mark.slow
def test_first_occurrences_are_those_of_numpy() -> None:
    rows = np.random.default_rng(0).integers(0, 2, (500, 8))
    expected = np.zeros(500, bool)
    expected[np.unique(rows, axis=0, return_index=True)[1]] = True
    for values in (rows.astype(np.float32), rows.astype(bool), rows, np.where(rows, np.nan, -1.0)):
        prints = jax.vmap(fingerprint)(jnp.asarray(values))
        np.testing.assert_array_equal(first_occurrences(prints), expected)
        chained = jax.vmap(lambda x: fingerprint({"b": x[4:]}, after=fingerprint(x[:4])))(jnp.asarray(values))
        np.testing.assert_array_equal(first_occurrences(chained), expected)
    np.testing.assert_array_equal(fingerprint(jnp.array([0.0, 1.0])), fingerprint(jnp.array([-0.0, 1.0])))


def plain_game(opening: tuple[int, ...], seat: int) -> int:
    """What the lowest empty cell gets against the highest, from this seat, after these moves."""
    board, time = [0] * 9, 0
    while True:
        empty = [i for i in range(9) if not board[i]]
        cell = opening[time] if time < len(opening) else (empty[0] if time % 2 == seat else empty[-1])
        board[cell] = 1 + time % 2
        if any(all(board[c] == board[cell] for c in line) for line in LINES):
            return 1 if time % 2 == seat else -1
        time += 1
        if time == 9:
            return 0


def test_each_opening_is_played_from_both_seats_and_repeated_games_are_not_new() -> None:
    play = jax.jit(lambda moves, key: play_match(GAME, PARAMS, lowest, highest, key, 400, opening_moves=moves), static_argnums=0)
    for moves, openings in ((0, [()]), (1, [(i,) for i in range(9)])):
        match = play(moves, jax.random.key(0))
        new = np.asarray(match.new)
        assert new.sum() == 2 * len(openings)
        found = sorted(zip(match.seat[new].tolist(), match.result[new].tolist(), strict=True))
        assert found == sorted((seat, float(plain_game(opening, seat))) for opening in openings for seat in (0, 1))
    # Seats change within an opening: games 2 i and 2 i + 1 begin alike.
    assert match.seat[:4].tolist() == [0, 1, 0, 1]


def test_openings_do_not_end_games() -> None:
    """Of nine random moves those that would end the game are left out: somebody must have made the last one."""
    match = jax.jit(lambda key: play_match(GAME, PARAMS, lowest, lowest, key, 64, opening_moves=20))(jax.random.key(1))
    assert bool(jnp.isfinite(match.result).all())
    assert int(match.length.min()) >= 5
    rps, params = make_env("RPS-v0")  # its only step ends it
    both = jax.jit(lambda key: [play_match(rps, params, lowest, highest, key, 4, opening_moves=n) for n in (0, 3)])
    plain, opened = both(jax.random.key(2))
    np.testing.assert_array_equal(plain.result, opened.result)
    np.testing.assert_array_equal(opened.length, 1)


def test_deals_and_players_that_draw_make_games_new() -> None:
    kuhn, params = make_env("KuhnPoker-v0")
    match = jax.jit(lambda key: play_match(kuhn, params, lowest, lowest, key, 200))(jax.random.key(0))
    assert int(match.new.sum()) == 2 * 6  # passes only: six deals, two seats
    match = jax.jit(lambda key: play_match(GAME, PARAMS, random_player, lowest, key, 200))(jax.random.key(0))
    assert int(match.new.sum()) > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    "game",
    [Parade((0, 1, 2, 1, 0), "heads", turns=True, drops=True), Parade((2, 0, 1, 1), "multi", drops=True)],
    ids=["in turns", "at once"],
)
def test_three_entrants_take_all_seats_and_get_what_plain_python_says(game: Parade) -> None:
    """Teams of different sizes, players that drop out, memory of each seat."""
    shifts = (0, 1, 2)
    entrants = [counting(game.space, shift) for shift in shifts]
    found = jax.jit(lambda key: play_games(game, game.default_params, entrants, key, 12))(jax.random.key(0))
    seating = np.asarray(found.seating)
    assert sorted(map(tuple, seating[:6])) == sorted(itertools.permutations(range(3)))
    assert [tuple(row) for row in seating[:3]] == [(0, 1, 2), (2, 0, 1), (1, 2, 0)]
    assert found.new.tolist() == [True] * 6 + [False] * 6
    for n, row in enumerate(seating):
        of_team, _, steps = plain_parade(game, lambda s, count: plain_choice(game.space, shifts[row[game.teams[s]]], s, count))  # noqa: B023
        returns = [of_team[list(row).index(entrant)] for entrant in range(3)]
        np.testing.assert_allclose(found.result[n], returns, rtol=1e-6)
        assert found.place[n].tolist() == [1 + sum(other > own for other in returns) for own in returns]
        assert found.length[n] == steps
    match = jax.jit(lambda key: play_match(game, game.default_params, entrants[0], entrants[1], key, 3))(jax.random.key(0))
    for team in range(3):
        plain, _, _ = plain_parade(game, lambda s, count: plain_choice(game.space, int(game.teams[s] != team), s, count))  # noqa: B023
        assert float(match.result[team]) == pytest.approx(plain[team])
    assert match.seat.tolist() == [0, 1, 2]


def test_seatings_are_all_rotations_of_as_many_orders_as_fit() -> None:
    assert seatings_of(1) == [(0,)]
    assert seatings_of(2) == [(0, 1), (1, 0)]
    assert sorted(seatings_of(4)) == sorted(itertools.permutations(range(4)))
    for count in (5, 7):
        rows = seatings_of(count)
        assert len(set(rows)) == len(rows) == 24 // count * count
        for first in range(0, len(rows), count):
            # Among these games everybody plays every team once, and the neighbours stay the same.
            assert all(sorted(column) == list(range(count)) for column in zip(*rows[first : first + count], strict=True))


@pytest.mark.slow
def test_one_team_plays_alone_and_wrong_numbers_are_one_line() -> None:
    game = Parade((0, 0, 0), "box")
    params, player = game.default_params, counting("box", 1)
    match = jax.jit(lambda key: play_match(game, params, player, random_player, key, 2))(jax.random.key(0))
    plain, _, _ = plain_parade(game, lambda seat, count: plain_choice("box", 1, seat, count))
    np.testing.assert_allclose(match.result, plain[0], rtol=1e-6)
    with pytest.raises(ConfigError, match="entrants: 2, expected one for each of the 1 teams of Parade"):
        play_games(game, params, [player, player], jax.random.key(0), 2)
    with pytest.raises(ConfigError, match="num_games = 0"):
        play_games(game, params, [player], jax.random.key(0), 0)


def test_a_game_that_does_not_end_in_time_has_no_places() -> None:
    game = Parade((0, 1))
    players = [counting("discrete", 0), counting("discrete", 1)]
    found = jax.jit(lambda key: play_games(game, game.default_params, players, key, 2, max_steps=6))(jax.random.key(0))
    assert bool(jnp.isnan(found.result).all())
    assert found.place.tolist() == [[0, 0], [0, 0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "env"),
    [
        ("action_repeat", Versus(make_env("race:MountainCarContinuous-v0")[0])),
        ("frame_stack", Versus(GAME, every_move=True)),  # its frames are also of others' moves
    ],
)
def test_matches_refuse_agents_that_decide_otherwise_than_at_every_move_by_what_they_see(field: str, env: Versus) -> None:
    config = rljax.PPOConfig(env=env, num_envs=2, num_steps=4, num_minibatches=1, **{field: 2})
    agent = rljax.make_agent(config)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    results = jax.eval_shape(lambda state: rljax.evaluate(agent, state, jax.random.key(0), 2), state)
    assert results.shape == (2,)
    with pytest.raises(ConfigError, match=f"^{field} = 2: an agent that was trained with it against a fixed player cannot play"):
        policy_player(agent, state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "fields"),
    [
        ("TicTacToe-v0", {"flatten_observations": True, "central_critic": True, "weights": "player"}),
        ("TicTacToe-v0", {"network": {"type": "gru", "hidden": [8], "size": 8}, "normalize_observations": True}),
        ("race:MountainCarContinuous-v0", {"end_on_nan": True, "time_limit": 6}),
    ],
)
def test_a_player_of_matches_sees_and_does_what_it_does_in_its_training_game(env: str, fields: dict[str, Any]) -> None:
    """Step by step and in a second game, also where the others are of another configuration."""
    config = rljax.SelfPlayConfig(env=env, frame_stack=3, num_envs=2, num_steps=4, num_minibatches=1, **fields)
    agent = rljax.make_agent(config)
    state = agent.init(jax.random.key(1))
    (game, params), (base, _) = make_game(config), make_base_game(config)
    player = seat_player(policy_player(agent, state, deterministic=True), base, params)

    @jax.jit
    def both(key: jax.Array, position: Any, seen: Any, memory: Any, carry: Any) -> Any:
        inside = position.env_state
        mask, obs = base.action_mask(inside, params), base.observe(inside, params)
        action, after = agent.act(state, seen, memory, key, True, mask)
        memory = advance_carry(base.to_move(inside), memory, after)
        given, carry = player.act(key, inside, obs, mask, carry)
        seen, position, _, over, _ = game.step_env(key, position, action, params)
        return (position, seen, memory, carry), (action, given), over | game.is_truncated(position, params)

    chosen = []
    for number in range(2):
        seen, position = game.reset_env(jax.random.key(number), params)
        carry = player.initial(position.env_state, base.observe(position.env_state, params))
        mask = base.action_mask(position.env_state, params)
        memory = initial_carry(agent, state, seen, mask)
        over, moves = False, 0
        while not over:
            (position, seen, memory, carry), (action, given), over = both(jax.random.key(9), position, seen, memory, carry)
            np.testing.assert_allclose(action, given, rtol=1e-6)
            chosen.append(np.ravel(action))
            moves += 1
        assert moves > 4
    assert len(np.unique(np.stack(chosen), axis=0)) > 1


@pytest.mark.slow
def test_agents_with_and_without_frames_meet_in_matches() -> None:
    """A player that remembers its bit by frames beats one that cannot. So does an agent that learned against a fixed player."""
    fields: dict[str, Any] = {"num_steps": 16, "learning_rate": 3e-3, "num_minibatches": 2, "network": {"hidden": [16]}}
    game = Recall()
    configs = (
        rljax.SelfPlayConfig(env=game, frame_stack=2, num_envs=64, total_timesteps=20 * 1024, **fields),
        rljax.SelfPlayConfig(env=game, num_envs=64, total_timesteps=1024, **fields),
        rljax.PPOConfig(env=Versus(game), frame_stack=2, num_envs=64, total_timesteps=20 * 1024, **fields),
    )
    entrants = []
    for config in configs:
        result = jax.jit(rljax.make_train(config))(jax.random.key(0))
        entrants.append(policy_player(rljax.make_agent(config), result.state, deterministic=True))
    play = lambda a, b: play_match(game, game.default_params, a, b, jax.random.key(1), 400).result  # noqa: E731
    for knows in (entrants[0], entrants[2]):
        result = np.asarray(jax.jit(lambda knows=knows: play(knows, entrants[1]))())
        assert (result >= 0).all()
        assert 0.4 < result.mean() < 0.6  # the other guesses
    assert (np.asarray(jax.jit(lambda: play(entrants[0], entrants[2]))()) == 0).all()


def test_matches_of_turns_have_no_limit_of_an_agents_own_moves() -> None:
    small: dict[str, Any] = {"num_envs": 2, "num_steps": 4, "num_minibatches": 1, "time_limit": 5}
    config = rljax.PPOConfig(env=Versus(GAME), **small)
    assert make_base_game(config)[0] is GAME
    assert game_table(config)["time_limit"] is None
    check_one_game("a", config, "b", played_game(rljax.SelfPlayConfig(num_envs=2)))
    # These count steps of the game.
    for counted in (
        rljax.SelfPlayConfig(**small),
        rljax.PPOConfig(env=Versus(GAME, every_move=True), **small),
        rljax.PPOConfig(env=Versus(make_env("race:CartPole-v1")[0]), **small),
    ):
        game = make_base_game(counted)[0]
        assert isinstance(game, GameTimeLimit)
        assert game.max_steps == game_table(counted)["time_limit"] == 5


class Sized(type(GAME)):  # type: ignore[misc]
    """Tic-tac-toe with settings of its own."""

    def __init__(self, size: Any, env: str = "a name that is no environment") -> None:
        self.size, self.env = size, env


def test_players_play_one_game_whatever_their_configurations_call_it() -> None:
    """By id, as an object, and against a fixed player; games with other settings are others."""
    small: dict[str, Any] = {"num_envs": 2, "num_steps": 4, "num_minibatches": 1}

    def plays(env: Any, **env_params: Any) -> Any:
        return rljax.SelfPlayConfig(env=env, env_params=env_params, **small)

    def differ(one: Any, other: Any, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            check_one_game("a", one, "b", played_game(other))

    by_id, as_object, fixed = plays("TicTacToe-v0"), plays(GAME), rljax.PPOConfig(env=Versus(GAME), **small)
    for one in (by_id, as_object, fixed):
        for other in (by_id, as_object, fixed):
            check_one_game("a", one, "b", played_game(other))
    check_one_game("a", plays(Sized(3)), "b", played_game(plays(Sized(3))))
    differ(plays(Sized(3)), plays(Sized(4)), r"^a: plays .*Sized with size = 3, but 4 in b: expected one game$")
    differ(plays(Sized(3)), by_id, r"^a: plays .*Sized, but b plays TicTacToe-v0: expected one game$")
    for setting, other in (
        (np.nan, np.ones(2)),
        (np.arange(2), np.arange(3)),
        (jax.random.key(0), jax.random.key(1)),
        ((1, "a"), (1, "b")),
    ):
        check_one_game("a", plays(Sized(setting)), "b", played_game(plays(Sized(setting))))
        differ(plays(Sized(setting)), plays(Sized(other)), r"with size = .* in b: expected one game$")
    five, named = plays(rljax.envs.MicroRTS(wait_cycles=5)), plays("MicroRTS-v0", wait_cycles=5)
    check_one_game("a", five, "b", played_game(named))
    check_one_game("a", named, "b", played_game(five))
    differ(five, plays(rljax.envs.MicroRTS()), r"with wait_cycles = 5, but 1 in b: expected one game$")
    default, same = plays("Territory-v0"), plays("Territory-v0", max_steps=make_env("Territory-v0")[1].max_steps)
    check_one_game("a", default, "b", played_game(same))
    differ(same, plays("Territory-v0", max_steps=7), r"with max_steps = \d+, but 7 in b: expected one game$")
    team = rljax.PPOConfig(env=Versus(make_env("Territory-v0")[0]), **small)
    differ(default, team, r"^env = 'Territory-v0': an agent that moves a team of 2 against a fixed player plays no matches$")


def test_the_other_players_limit_ends_matches_of_an_agent_whose_limit_counted_its_own_moves() -> None:
    small: dict[str, Any] = {"num_envs": 2, "num_steps": 4, "num_minibatches": 1}

    def untrained(config: Any) -> tuple[Any, None]:
        return rljax.make_agent(config), None

    fixed = untrained(rljax.PPOConfig(env=Versus(GAME), time_limit=9, **small))
    nine, eight = (untrained(rljax.SelfPlayConfig(time_limit=limit, **small)) for limit in (9, 8))
    for players in ({"a": fixed, "b": nine}, {"b": nine, "a": fixed}):
        game = make_entries(players)[0]
        assert isinstance(game, GameTimeLimit)
        assert game.max_steps == 9
        first, second = players.values()
        cast = find_cast(first, against=[second])
        assert isinstance(cast.tables[0].game, GameTimeLimit)
        assert cast.info.recorded["wrappers"] == {"time_limit": 9}
    assert make_entries({"a": fixed}, ["random"])[0] is GAME
    cast = find_cast(fixed, against=["random"])
    assert cast.tables[0].game is GAME
    assert "wrappers" not in cast.info.recorded
    with pytest.raises(ConfigError, match=r"^c: plays .* with time_limit = 8, but 9 in b: expected one game$"):
        make_entries({"a": fixed, "b": nine, "c": eight})
    with pytest.raises(ConfigError, match=r"with time_limit = 8, but 9 in self_play: expected one game$"):
        find_cast(fixed, against=[nine, eight])


def test_sums_of_which_only_rounding_is_left_are_a_draw_in_matches_and_in_words() -> None:
    """Numbers whose stakes add up to -1 - 1 + 0.6 + 1 + 0.4, which is not 0 in f32."""
    game, params = make_env("NumberDuel-v0")
    first, second = (3, 3, 2, 4, 1), (4, 4, 1, 3, 0)

    def fixed(numbers: tuple[int, ...]) -> Any:
        return lambda _key, state, _obs, _mask: jnp.full(2, jnp.array(numbers)[state.time])

    found = play_games(game, params, [fixed(first), fixed(second)], jax.random.key(0), 2)
    assert 0.0 < np.abs(found.result).max() < 1e-6
    np.testing.assert_array_equal(found.place, 1)
    for own, other in ((first, second), (second, first)):
        typed, said = iter(own), list[str]()
        play(game, params, fixed(other), seat=0, key=jax.random.key(0), ask=lambda _, t=typed: str(next(t)), say=said.append)
        assert said[-1] == "a draw: +0"
