"""Players at the seats of games, and games as environments of one agent: any number of teams, any actions, memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.collect.environments import make_base_game, make_game, with_steps
from rljax.collect.games.matches import policy_player
from rljax.core.agent import Agent
from rljax.core.check import check_environment
from rljax.core.contract import check_contract
from rljax.core.environments.spaces import Discrete, MultiDiscrete
from rljax.core.environments.wrappers import flatten_observation
from rljax.core.errors import ConfigError
from rljax.core.games.game_wrappers import FlattenPlayers, GameFrameStack, GameTimeLimit, GameView, WrappedGame
from rljax.core.games.versus import Remembering, Versus, one_of, random_actions, random_player, seat_player, without_view
from rljax.core.operations import constant_result
from rljax.envs import make_env
from tests.collect.games.parade import SPACES, Parade, counted, counting, plain_choice, plain_parade

GAMES = {
    "three alone": Parade((0, 1, 2)),
    "three in turns": Parade((0, 1, 2), "multi", turns=True, drops=True),
    "two against one": Parade((0, 0, 1), "heads", turns=True),
    "one against three": Parade((1, 0, 1, 1), "box", drops=True),
    "all together": Parade((0, 0, 0), "multi", drops=True),
    "three teams in turns": Parade((0, 1, 2, 1, 0), "heads", turns=True, drops=True),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if " in turns" not in name else ()) for name in GAMES]
)
def test_games_of_all_kinds_pass_the_check(name: str) -> None:
    check_environment(GAMES[name])


@pytest.mark.parametrize("name", GAMES)
def test_the_agents_team_gets_what_plain_python_says_against_a_player_with_memory(name: str) -> None:
    """Everybody counts its own moves only, in the agent's team and in the others'."""
    game = GAMES[name]
    versus = Versus(game, counting(game.space, 2), joint=False)
    params = game.default_params

    @jax.jit
    @jax.vmap
    def play(key: jax.Array) -> Any:
        obs, state = versus.reset_env(key, params)

        def step(loop: Any, _: None) -> Any:
            obs, state, carry, total = loop
            action, after = counted(game.space, 0, obs["seat"], carry)
            moves = versus.own_moves(state)
            carry = {"count": jnp.where(moves, after["count"], carry["count"])}
            obs, state, reward, over, info = versus.step_env(key, state, action, params)
            paid = jnp.stack([reward, *(info["reward_components"][name] for name in ("worth", "seat"))])
            return (obs, state, carry, total + paid), (over, info["metrics"]["most"], info["belief_entropy"])

        zeros = {"count": jnp.zeros(obs["seat"].shape, jnp.int32)}
        (_, after, _, total), (over, most, belief) = jax.lax.scan(step, (obs, state, zeros, jnp.zeros(3)), length=8)
        of_team = jnp.mean(after.game.total, where=jnp.asarray(game.teams) == after.team)
        return after.team, total, over[-1], (most[-1] == jnp.max(after.game.total)) & (jnp.abs(belief[-1] - of_team) < 1e-5)

    team, total, over, known = map(np.asarray, play(jax.random.split(jax.random.key(0), 24)))
    assert over.all()
    assert known.all()
    assert set(team.tolist()) == set(game.teams)
    for t, got in zip(team, total, strict=True):
        plain = lambda s, n: plain_choice(game.space, 0 if game.teams[s] == t else 2, s, n)  # noqa: B023, E731
        returns, worth = (plain_parade(game, plain, by_seat=by_seat)[0][t] for by_seat in (True, False))
        np.testing.assert_allclose(got, [returns, worth, returns - worth], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["two against one", *(pytest.param(name, marks=pytest.mark.slow) for name in ("three alone", "all together"))]
)
def test_evaluation_keeps_the_memory_of_each_player_of_the_team(name: str) -> None:
    """A player's return does not depend on the others, so returns against random play are known."""
    game = GAMES[name]

    def act(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False, mask: Any = None) -> Any:
        return counted(game.space, 1, obs["seat"], carry)

    agent = Agent(lambda key: None, lambda state: (state, {}), act, rljax.SelfPlayConfig(env=game))
    returns = jax.jit(lambda key: rljax.evaluate(agent, None, key, 32))(jax.random.key(1))
    plain, _, _ = plain_parade(game, lambda seat, count: plain_choice(game.space, 1, seat, count))
    np.testing.assert_allclose(np.unique(returns), np.unique(np.float32(plain)), rtol=1e-6)


def test_only_the_agent_sees_what_wrappers_make_of_observations() -> None:
    """The opponent sees what the game gives, as everywhere else."""
    base = GAMES["two against one"]
    params, seen = base.default_params, []
    act = counting(base.space, 2)

    def watching(key: jax.Array, state: Any, obs: Any, mask: Any, carry: Any) -> Any:
        seen.append(jax.tree.map(jnp.shape, obs))
        return act.act(key, state, obs, mask, carry)

    plain, flat = (Versus(game, Remembering(watching), joint=False) for game in (base, FlattenPlayers(base)))
    key = jax.random.key(0)
    (obs, state), (flat_obs, flat_state) = (jax.jit(env.reset_env)(key, params) for env in (plain, flat))
    np.testing.assert_array_equal(jax.vmap(flatten_observation)(obs), flat_obs)
    jax.tree.map(np.testing.assert_array_equal, state, flat_state)
    assert flat.observation_space(params).shape == flat_obs.shape[1:]
    assert seen
    assert all(shapes == jax.tree.map(jnp.shape, base.reset_env(key, params)[0]) for shapes in seen)


@pytest.mark.slow
@pytest.mark.parametrize("every_move", [False, True])
@pytest.mark.parametrize(
    "base",
    [Parade((0, 1, 2), turns=True), Parade((0, 1, 2)), Parade((0, 1, 1, 0), "heads", turns=True)],
    ids=["turns", "at once", "teams"],
)
def test_the_agent_alone_sees_what_it_saw_at_its_own_last_moves(base: Parade, every_move: bool) -> None:
    """As plain Python remembers it; the opponent sees what the game gives."""
    params, count, length = base.default_params.replace(steps=16), 3, 16
    seen: list[Any] = []
    act = counting(base.space, 2)

    def watching(key: jax.Array, state: Any, obs: Any, mask: Any, carry: Any) -> Any:
        seen.append(jax.tree.map(jnp.shape, obs))
        return act.act(key, state, obs, mask, carry)

    def played(game: Any) -> Any:
        """The agent's observations, which of its players move next, and rewards."""
        versus = Versus(game, Remembering(watching), joint=False, every_move=every_move)

        def step(loop: Any, key: jax.Array) -> Any:
            obs, state = loop
            moves = versus.own_moves(state)
            action = versus._team_part(state.team, random_actions(base, params, key, base.action_mask(state.game, params)))
            # The state of the game with its views, as pictures are drawn of it.
            whole = versus._team_part(state.team, game.observe(versus.inner(state), params))
            after, state, reward, _, _ = versus.step_env(key, state, action, params)
            return (after, state), (obs, moves, reward, jnp.all(whole == obs))

        start = versus.reset_env(jax.random.key(2), params)
        return jax.lax.scan(step, start, jax.random.split(jax.random.key(4), length))[1]

    flat = FlattenPlayers(base)
    (now, moves, reward, _), (obs, same_moves, same_reward, whole) = (
        jax.tree.map(np.asarray, jax.jit(lambda game=game: played(game))()) for game in (flat, GameFrameStack(flat, count))
    )
    np.testing.assert_array_equal(reward, same_reward)
    np.testing.assert_array_equal(moves, same_moves)
    assert whole.all()
    assert moves.any()
    now, obs, moves = (x.reshape(length, -1, x.shape[-1]) for x in (now, obs, moves.reshape(length, -1, 1)))
    for player in range(now.shape[1]):
        saw: list[np.ndarray] = []
        for time in range(length):
            current = now[time, player]
            expected = [*[(saw or [current])[0]] * count, *saw, current][-count:]
            np.testing.assert_array_equal(obs[time, player], np.concatenate(expected))
            if moves[time, player, 0]:
                saw.append(current)
        assert len(saw) > 1
    assert seen
    assert all(shapes == jax.tree.map(jnp.shape, base.reset_env(jax.random.key(0), params)[0]) for shapes in seen)


@pytest.mark.slow
def test_a_learner_of_a_whole_team_moves_its_players_one_by_one() -> None:
    """Actions, masks and spaces of the team together are those of its players side by side."""
    key = jax.random.key(0)
    for name, wanted in (
        ("two against one", MultiDiscrete((3, 4) * 2)),
        ("all together", MultiDiscrete((3, 4) * 3)),
        ("three alone", Discrete(4)),
    ):
        game = GAMES[name]
        joint, single = Versus(game, counting(game.space, 2)), Versus(game, counting(game.space, 2), joint=False)
        params, count = game.default_params, joint.team_size
        space = joint.action_space(params)
        assert space == wanted
        check_contract(joint, params)
        obs, state = jax.jit(joint.reset_env)(key, params)
        action = space.sample(key)
        parts: Any = action if count == 1 else np.asarray(action).reshape(count, -1)
        if game.space == "heads":
            parts = {"word": parts[:, 0], "number": parts[:, 1]}
        for x, y in zip(
            jax.tree.leaves(jax.jit(joint.step_env)(key, state, action, params)),
            jax.tree.leaves(jax.jit(single.step_env)(key, state, parts, params)),
            strict=True,
        ):
            np.testing.assert_array_equal(x, y)
        both, each = (np.asarray(v.action_mask(state, params)) for v in (joint, single))
        if count == 1:
            np.testing.assert_array_equal(both, each)
            continue
        assert each.shape == (count, 7, 7)
        assert obs["totals"].shape == (count, game.num_players)
        for i in range(7 * count):
            for j in range(7 * count):
                same = i // 7 == j // 7
                assert both[i, j] == (each[i // 7, i % 7, j % 7] if same else True)


def test_random_play_is_legal_and_uniform_in_every_space() -> None:
    """Frequencies of 8,000 draws: each head's legal choices within five standard deviations of equal shares."""
    for space in SPACES:
        game = Parade((0, 1), space)
        params = game.default_params
        _, state = game.reset_env(jax.random.key(0), params)
        state = state.replace(time=jnp.ones((), jnp.int32))
        mask = game.action_mask(state, params)
        draw = jax.jit(jax.vmap(lambda key: random_actions(game, params, key, mask)))  # noqa: B023
        drawn = jax.tree.map(np.asarray, draw(jax.random.split(jax.random.key(1), 4000)))
        if space == "box":
            assert (drawn.min() >= 0, drawn.max() <= 3, drawn.std() > 0.8) == (True, True, True)
            continue
        heads = (
            [drawn]
            if space == "discrete"
            else [drawn["word"], drawn["number"]]
            if space == "heads"
            else np.moveaxis(drawn, -1, 0)
        )
        first = np.bincount(heads[0].ravel(), minlength=4)
        legal = {"discrete": [2, 3]}.get(space, [1, 2])
        assert first[[i for i in range(4) if i not in legal]].sum() == 0
        np.testing.assert_allclose(first[legal] / 8000, 0.5, atol=5 * 0.5 / np.sqrt(8000))
        if space != "discrete":
            assert (heads[0] != heads[1]).all()
            for choice in legal:
                second = np.bincount(heads[1][heads[0] == choice], minlength=4)
                rest = [i for i in range(4) if i != choice]
                np.testing.assert_allclose(second[rest] / second.sum(), 1 / 3, atol=5 * 0.47 / np.sqrt(second.sum()))


def test_random_play_draws_from_the_games_own_space_and_as_before_from_one_head() -> None:
    game = Parade((0, 1, 0), "discrete")
    _, state = game.reset_env(jax.random.key(0), game.default_params)
    mask = jnp.arange(12).reshape(3, 4) % 5 > 0
    for i in range(5):
        key = jax.random.key(i)
        action, _ = seat_player(random_player, game, game.default_params).act(key, state, None, mask, None)
        np.testing.assert_array_equal(action, random_player(key, state, None, mask))


def test_a_player_that_is_one_of_several_is_the_same_at_all_seats() -> None:
    game: Any = Parade((0, 1, 1), turns=True)
    params = game.default_params
    seated = seat_player(one_of([counting("discrete", shift) for shift in range(4)]), game, params)

    def drawn(key: jax.Array) -> jax.Array:
        obs, state = game.reset_env(key, params)

        def step(loop: Any, key: jax.Array) -> Any:
            obs, state, carry = loop
            action, carry = seated.act(key, state, obs, game.action_mask(state, params), carry)
            obs, state, *_ = game.step_env(key, state, action, params)
            return (obs, state, carry), None

        return jax.lax.scan(step, (obs, state, seated.initial(state, obs)), jax.random.split(key, 3))[0][2][0]

    which = np.asarray(jax.jit(jax.vmap(drawn))(jax.random.split(jax.random.key(0), 32)))
    assert (which == which[:, :1]).all()
    assert set(which[:, 0].tolist()) == {1, 2, 3, 4}


def test_wrong_players_are_one_line() -> None:
    game = Parade((0, 1, 2), "multi", turns=True)
    params = game.default_params
    obs, state = game.reset_env(jax.random.key(0), params)
    mask = game.action_mask(state, params)

    def acting(player: Any, carry: Any = None) -> Any:
        return seat_player(player, game, params).act(jax.random.key(0), state, obs, mask, carry)

    good = jnp.zeros((3, 2), jnp.int32)
    with pytest.raises(ConfigError, match=r"a player of Parade: returned an action of shape \(3,\), expected \(3, 2\)"):
        acting(lambda *_: jnp.zeros(3))
    with pytest.raises(ConfigError, match=r"a player of Parade: its carry changed from shape \(3, 4\) to \(3, 5\)"):
        acting(Remembering(lambda *_: (good, jnp.zeros((3, 5)))), jnp.zeros((3, 4)))
    with pytest.raises(ConfigError, match=r"its carry has an array of shape \(4,\), expected a part for each of 3 seats"):
        seat_player(Remembering(lambda *_: (good, jnp.zeros(4))), game, params).initial(state, obs)


def test_an_opponent_may_be_a_scripted_player_by_name() -> None:
    game, params = rljax.make_env("HabitRPS-v0")
    key = jax.random.key(0)
    by_name, by_hand = (
        rljax.envs.Versus(game, opponent) for opponent in ("rock", without_view(game.scripted["rock"], game.default_params))
    )
    (_, state), (_, same) = (env.reset_env(key, params) for env in (by_name, by_hand))
    for x, y in zip(
        jax.tree.leaves(by_name.step_env(key, state, jnp.int32(1), params)),
        jax.tree.leaves(by_hand.step_env(key, same, jnp.int32(1), params)),
        strict=True,
    ):
        np.testing.assert_array_equal(x, y)
    # The player goes by the parameters of the run.
    told: list[Any] = []

    class Telling(type(game)):  # type: ignore[misc]
        @property
        def scripted(self) -> dict[str, Any]:
            def tell(key: jax.Array, state: Any, params: Any) -> jax.Array:
                told.append(params)
                return jnp.zeros(2, jnp.int32)

            return {"tell": tell}

    other = params.replace(num_rounds=3)
    telling = Versus(Telling(), "tell")
    telling.step_env(key, telling.reset_env(key, other)[1], jnp.int32(1), other)
    assert told
    assert all(given is other for given in told)
    with pytest.raises(ConfigError, match=r"^opponent = 'rok': HabitRPS-v0 has no such scripted player: did you mean 'rock'"):
        Versus(game, "rok")
    with pytest.raises(ConfigError, match=r"^opponent = 'rock': Parade has no such scripted player: it has none$"):
        Versus(Parade((0, 1)), "rock")


class Masked(WrappedGame):
    """A game whose masks are given."""

    def __init__(self, game: Any, mask: Callable[[Any], jax.Array]) -> None:
        super().__init__(game)
        self.mask = mask

    def action_mask(self, state: Any, params: Any) -> jax.Array:
        return self.mask(state)


@pytest.mark.parametrize("fields", [{"sticky_actions": 0.25}, {"action_repeat": 2}])
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("teams", [(0, 1, 2), (0, 0, 1)])
def test_masks_of_games_whose_actions_are_always_legal_do_not_change(
    teams: tuple[int, ...], joint: bool, fields: dict[str, Any]
) -> None:
    def wrapped(mask: Callable[[Any], jax.Array]) -> Any:
        env = Versus(Masked(Parade(teams, turns=True), mask), joint=joint)
        return env, with_steps(env, env.default_params, rljax.PPOConfig(**fields))

    env, _ = wrapped(lambda state: jnp.ones((3, 4), bool))
    state = jax.eval_shape(lambda key: env.reset_env(key, env.default_params)[1], jax.random.key(0))
    mask = constant_result(lambda state: env.action_mask(state, env.default_params), state)
    one = (4,) if len(set(teams)) == 3 else (8,) if joint else (2, 4)
    np.testing.assert_array_equal(mask, np.ones(one, bool))
    # What is illegal for a player is legal while it waits, so these masks change: the first never does for the game itself.
    for changing in (lambda state: jnp.ones((3, 4), bool).at[1, 2].set(False), lambda state: jnp.full((3, 4), state.time < 9)):
        with pytest.raises(ConfigError, match=rf"^{next(iter(fields))}: .* has action masks that change"):
            wrapped(changing)


class Doubled(GameView):
    """A view of a user's own, which is no field of a configuration."""

    def view(self, obs: Any) -> Any:
        return 2.0 * obs


def test_a_view_of_ones_own_is_a_part_of_the_game_for_opponents_too() -> None:
    game, params = make_env("KuhnPoker-v0")
    key = jax.random.key(0)
    for limited in (False, True):
        inner = GameTimeLimit(Doubled(game), 9) if limited else Doubled(game)
        obs, state = Versus(FlattenPlayers(inner), random_player).reset_env(key, params)
        assert float(jnp.max(obs)) == float(jnp.max(state.obs)) == 2.0


def test_a_view_of_ones_own_changes_what_a_policy_sees_once_in_matches_and_in_training() -> None:
    game = Doubled(make_env("KuhnPoker-v0")[0])
    for changes in ({}, {"time_limit": 9}, {"frame_stack": 2}):
        config = rljax.SelfPlayConfig(env=game, network={"hidden": [4]}, num_envs=4, num_steps=4, **changes)
        agent = rljax.make_agent(config)._replace(act=lambda state, obs, carry, key, deterministic, mask: (obs, carry))
        base, params = make_base_game(config)
        obs, state = base.reset_env(jax.random.key(0), params)
        seen, _ = policy_player(agent, None, True).act(jax.random.key(0), state, obs, base.action_mask(state, params), None)
        training, _ = make_game(config)
        np.testing.assert_array_equal(seen, training.reset_env(jax.random.key(0), params)[0])
        assert float(jnp.max(seen)) == 2.0
