"""Wrappers of games that change what a step does."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.collect.environments import make_game
from rljax.core.environments.environment import EnvParams
from rljax.core.environments.spaces import Box, Dict, Discrete
from rljax.core.environments.step_wrappers import EndOnNaNState
from rljax.core.games.game import Game
from rljax.core.games.game_step_wrappers import GameActionRepeat, GameEndOnNaN, GameStickyActions
from rljax.core.games.game_wrappers import GameTimeLimit, Step, WrappedGame
from rljax.core.games.versus import Versus
from rljax.envs import make_env
from rljax.league.game_tree import game_tree
from rljax.planning.mcts import check_searchable
from rljax.run.players import Actor, check_one_game, game_giver, played_game

KEY = jax.random.key(0)


class Fails(WrappedGame):
    """A game whose rewards, observations and results are NaN when a player takes action 8."""

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Step:
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        nan = jnp.where(jnp.any(action == 8), jnp.nan, 0.0)
        info = {**info, "result": jnp.ones(2) + nan}
        return jax.tree.map(lambda x: x + nan, obs), state, reward + 1 + nan, terminated, info


def test_a_game_that_fails_ends_as_a_draw() -> None:
    game, params = make_env("TicTacToe-v0")
    env = GameEndOnNaN(Fails(game))
    _, state = env.reset_env(KEY, params)
    obs, after, reward, terminated, info = env.step_env(KEY, state, jnp.array([0, 0]), params)
    assert not terminated
    np.testing.assert_array_equal(reward, [1, 1])
    np.testing.assert_array_equal(info["result"], [1, 1])
    obs, ended, reward, terminated, info = env.step_env(KEY, after, jnp.array([8, 8]), params)
    assert terminated
    np.testing.assert_array_equal(reward, [0, 0])
    np.testing.assert_array_equal(info["result"], [0, 0])
    assert info["metrics"]["ended_by_nan"] == 1
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(obs))
    jax.tree.map(np.testing.assert_array_equal, ended.env_state, after.env_state)


def test_a_result_that_is_nan_for_one_player_is_a_draw() -> None:
    class Half(WrappedGame):
        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Step:
            obs, state, reward, _, info = self.env.step_env(key, state, action, params)
            return obs, state, reward, jnp.any(action == 8), {**info, "result": jnp.array([jnp.nan, 1.0])}

    game, params = make_env("TicTacToe-v0")
    env = GameEndOnNaN(Half(game))
    _, state = env.reset_env(KEY, params)
    _, state, _, terminated, info = env.step_env(KEY, state, jnp.array([0, 0]), params)
    assert not terminated
    assert info["metrics"]["ended_by_nan"] == 0
    _, _, _, terminated, info = env.step_env(KEY, state, jnp.array([8, 8]), params)
    assert terminated
    assert info["metrics"]["ended_by_nan"] == 1
    np.testing.assert_array_equal(info["result"], [0, 0])


def test_initial_states_are_those_of_the_game() -> None:
    game, params = make_env("KuhnPoker-v0")
    states, probabilities = GameEndOnNaN(game).initial_states(params)
    expected, _ = game.initial_states(params)
    assert isinstance(states, EndOnNaNState)
    assert states.spoilt.shape == probabilities.shape
    jax.tree.map(np.testing.assert_array_equal, states.env_state, expected)


@pytest.mark.slow
@pytest.mark.parametrize("end_on_nan", [True, False])
def test_self_play_trains_where_games_fail_only_with_end_on_nan(end_on_nan: bool) -> None:
    game, _ = make_env("TicTacToe-v0")
    config = rljax.SelfPlayConfig(env=Fails(game), total_timesteps=1024, num_envs=32, num_steps=8, end_on_nan=end_on_nan)
    agent = rljax.make_agent(config)
    state, metrics = jax.jit(agent.step)(agent.init(KEY))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params)) == end_on_nan
    if end_on_nan:
        assert metrics["episode/count"] > 0


@pytest.mark.parametrize("kind", [rljax.LeagueConfig, rljax.AlphaZeroConfig])
def test_leagues_and_searches_take_end_on_nan(kind: Any) -> None:
    agent = rljax.make_agent(kind(env="TicTacToe-v0", end_on_nan=True))
    before = jax.eval_shape(agent.init, KEY)
    after, _ = jax.eval_shape(agent.step, before)
    assert jax.tree.structure(after) == jax.tree.structure(before)


def test_players_with_and_without_end_on_nan_meet() -> None:
    # Of objects, which are compared layer by layer: names alone would say that the game is the same.
    configs = [rljax.SelfPlayConfig(env=make_env("TicTacToe-v0")[0], end_on_nan=given) for given in (True, False)]
    for config, other in (configs, configs[::-1]):
        check_one_game("one", config, "other", played_game(other))


class Echo(Game):
    """Three players are told the time, as whose action each one's is reported: all at once, or player 0, 1 and 2 in turn."""

    num_players = 3

    def __init__(self, turns: bool = False, heads: bool = False):
        self.turns, self.heads = turns, heads

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, 100.0, (1,))

    def action_space(self, params: Any) -> Any:
        return Dict({"way": Discrete(1000), "far": Discrete(1000)}) if self.heads else Discrete(10)

    @property
    def all_move(self) -> bool:
        return not self.turns

    def to_move(self, state: Any) -> jax.Array:
        return jnp.arange(3) == state % 3 if self.turns else jnp.ones(3, bool)

    def observe(self, state: Any, params: Any) -> jax.Array:
        return jnp.full((3, 1), state, jnp.float32)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        return self.observe(0, params), jnp.zeros((), jnp.int32)

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Step:
        reward = jnp.zeros(3) if self.heads else jnp.asarray(action - jnp.mean(action), jnp.float32)
        return self.observe(state + 1, params), state + 1, reward, state >= 59, {"action": action}


def played_at_random(game: Game, num_games: int) -> tuple[Any, Any]:
    """Return what the players of an `Echo` chose at random, and what they did, leaves `[G, 60, P]`."""

    def play(key: jax.Array) -> Any:
        def step(state: Any, keys: jax.Array) -> tuple[Any, Any]:
            space = game.action_space(EnvParams())
            choice = jax.vmap(space.sample)(jax.random.split(keys[0], 3))
            _, state, _, _, info = game.step_env(keys[1], state, choice, EnvParams())
            return state, (choice, info["action"])

        return jax.lax.scan(step, game.reset_env(key, EnvParams())[1], jax.random.split(key, (60, 2)))[1]

    found: tuple[Any, Any] = jax.tree.map(np.asarray, jax.jit(jax.vmap(play))(jax.random.split(KEY, num_games)))
    return found


@pytest.mark.parametrize("turns", [False, True])
def test_a_sticky_action_is_that_of_ones_own_last_move(turns: bool) -> None:
    probability = 0.3
    chosen, done = played_at_random(GameStickyActions(Echo(turns), probability), 500)
    differs = []
    for player in range(3):
        own = slice(player if turns else 0, None, 3 if turns else 1)  # the steps in which it moves
        choice, action = chosen[:, own, player], done[:, own, player]
        np.testing.assert_array_equal(action[:, 0], choice[:, 0])
        differs.append(action[:, 1:] != choice[:, 1:])
        np.testing.assert_array_equal(action[:, 1:][differs[-1]], action[:, :-1][differs[-1]])
    # Of the repeated actions, a tenth are what was chosen anyway.
    np.testing.assert_allclose(np.mean(differs, axis=(1, 2)), probability * 0.9, atol=0.015)
    assert abs(np.corrcoef(differs[0].ravel(), differs[1].ravel())[0, 1]) < 0.04


def test_the_heads_of_an_action_stick_together() -> None:
    chosen, done = played_at_random(GameStickyActions(Echo(heads=True), 0.5), 50)
    way, far = (done[name][:, 1:] != chosen[name][:, 1:] for name in ("way", "far"))
    assert way.mean() == pytest.approx(0.5, abs=0.03)
    assert (way == far).mean() > 0.99  # equal by chance once in 1000


def test_sticky_actions_of_games_refuse_only_masks_that_change() -> None:
    with pytest.raises(rljax.ConfigError, match=r"^sticky_actions: TicTacToe-v0 has action masks that change, and a repeated"):
        rljax.make_agent(rljax.SelfPlayConfig(env="TicTacToe-v0", sticky_actions=0.25))
    for env in ("Territory-v0", "BiasedRPS-v0", "race:Pendulum-v1"):
        assert make_game(rljax.SelfPlayConfig(env=env, sticky_actions=0.25))[0].step_is_random


def test_exact_trees_and_searches_refuse_sticky_actions() -> None:
    game, params = make_env("KuhnPoker-v0")
    with pytest.raises(rljax.ConfigError, match="its steps are random, and it does not say how: an exact tree needs"):
        game_tree(GameStickyActions(game, 0.25), params)
    with pytest.raises(rljax.ConfigError, match="its steps are random, and it does not say how: define chance"):
        check_searchable(GameStickyActions(InTurn(), 0.25))


class InTurn(Game):
    """Two players take turns at adding 0 or 1; whoever reaches 3 wins. A game without masks that can be searched."""

    @property
    def turn_gap(self) -> int:
        return 1

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, 10.0, (2,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def to_move(self, state: Any) -> jax.Array:
        return jnp.arange(2) == state[1] % 2

    def observe(self, state: Any, params: Any) -> jax.Array:
        return jnp.stack([state, state]).astype(jnp.float32)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        state = jnp.zeros(2, jnp.int32)
        return self.observe(state, params), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Step:
        mover = state[1] % 2
        state = jnp.stack([state[0] + action[mover], state[1] + 1])
        won = state[0] >= 3
        return self.observe(state, params), state, jnp.where(won, 1.0, 0.0) * jnp.where(jnp.arange(2) == mover, 1, -1), won, {}


def test_a_game_without_sticky_actions_can_be_searched() -> None:
    check_searchable(InTurn())


@pytest.mark.slow
def test_a_batch_of_configurations_may_differ_in_sticky_actions() -> None:
    config = rljax.SelfPlayConfig(env="Territory-v0", num_envs=4, num_steps=8, num_minibatches=2, total_timesteps=64)

    def train(sticky: jax.Array) -> Any:
        return rljax.make_train(config.replace(sticky_actions=sticky))(KEY).state.params

    both = jax.jit(jax.vmap(train))(jnp.array([0.0, 0.9]))
    alone = jax.jit(rljax.make_train(config.replace(sticky_actions=0.9)))(KEY).state.params
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x[1], y, rtol=1e-3, atol=1e-4), both, alone)
    assert any(not np.allclose(x[0], x[1], atol=1e-3) for x in jax.tree.leaves(both))


@pytest.mark.parametrize(("field", "one", "more"), [("sticky_actions", 0.25, 0.5), ("action_repeat", 2, 3)])
def test_players_with_other_steps_play_another_game(field: str, one: Any, more: Any) -> None:
    config = rljax.SelfPlayConfig(env="Territory-v0", **{field: one})
    check_one_game("one", config, "other", played_game(config.replace(seed=1)))
    for value, told in ((more, str(more)), (None, "'none'")):
        expected = f"^one: plays Territory-v0 with {field} = {told}, but {one} in other: expected one game"
        with pytest.raises(rljax.ConfigError, match=expected):
            check_one_game("one", config.replace(**{field: value}), "other", played_game(config))


def test_players_whose_steps_nothing_changes_play_one_game() -> None:
    configs = [rljax.SelfPlayConfig(env="Territory-v0", **x) for x in ({}, {"action_repeat": 1}, {"sticky_actions": 0.0})]
    for one, other in itertools.product(configs, repeat=2):
        check_one_game("one", one, "other", played_game(other))
    with pytest.raises(rljax.ConfigError, match="with action_repeat = 'none', but 2 in other: expected one game"):
        check_one_game("one", configs[1], "other", played_game(configs[0].replace(action_repeat=2)))


def test_an_agent_of_one_player_leaves_sticky_actions_to_the_others() -> None:
    game, _ = make_env("race:Pendulum-v1")
    alone = rljax.PPOConfig(env=Versus(game), sticky_actions=0.5, time_limit=7)
    sticky = rljax.SelfPlayConfig(env=game, sticky_actions=0.25, time_limit=7)
    made, _ = make_game(alone)
    assert isinstance(made, GameTimeLimit)
    assert made.env is game
    for config, other in ((alone, sticky), (sticky, alone)):
        check_one_game("one", config, "other", played_game(other))
    actors = [Actor(config.algorithm, rljax.make_agent(config)) for config in (alone, sticky)]
    assert game_giver(actors) is actors[1]
    made, _ = make_game(alone, sticky)
    assert isinstance(made.env, GameStickyActions)
    assert made.env.probability == 0.25


class Counted(WrappedGame):
    """An `Echo` whose rewards are 1 and the number of steps so far, by component, and whose result is that number."""

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Step:
        obs, state, _, terminated, _ = self.env.step_env(key, state, action, params)
        parts = {"one": jnp.ones(3), "time": jnp.full(3, state, jnp.float32)}
        return obs, state, sum(parts.values()), terminated, {"reward_components": parts, "result": parts["time"]}


def test_the_actions_of_all_players_are_repeated_until_the_game_ends() -> None:
    game = GameTimeLimit(GameActionRepeat(Counted(Echo()), 7), 100)
    _, state = game.reset_env(KEY, EnvParams())
    step = jax.jit(lambda state, action: game.step_env(KEY, state, action, EnvParams()))
    for first in range(1, 60, 7):
        times = range(first, min(first + 7, 61))
        obs, state, reward, terminated, info = step(state, jnp.arange(3))
        np.testing.assert_array_equal(obs, np.full((3, 1), times[-1]))
        np.testing.assert_array_equal(info["reward_components"]["one"], [len(times)] * 3)
        np.testing.assert_array_equal(info["reward_components"]["time"], [sum(times)] * 3)
        np.testing.assert_array_equal(reward, [len(times) + sum(times)] * 3)
        np.testing.assert_array_equal(info["result"], [times[-1]] * 3)
        assert terminated == (times[-1] == 60)
    assert state.elapsed == 9, "time limits count actions"


class Joins(Echo):
    """An `Echo` in which players 0 and 1 move at first, from time 2 on only player 0, and from time 4 on all."""

    all_move = False  # type: ignore[assignment]
    turn_gap = 0  # type: ignore[assignment]

    def to_move(self, state: Any) -> jax.Array:
        return jnp.array([True, False, False]) | (state < 2) & (jnp.arange(3) < 2) | (state >= 4)


def test_actions_are_not_repeated_for_a_player_who_has_not_chosen() -> None:
    game = GameActionRepeat(Joins(), 5)
    _, state = game.reset_env(KEY, EnvParams())
    times = []
    for _ in range(3):
        _, state, *_ = game.step_env(KEY, state, jnp.arange(3), EnvParams())
        times.append(int(state))
    assert times == [4, 9, 14]


def test_action_repeat_refuses_turns_and_masks() -> None:
    with pytest.raises(rljax.ConfigError, match=r"^action_repeat = 2: players of KuhnPoker-v0 take turns, so the next step is"):
        rljax.make_agent(rljax.SelfPlayConfig(env="KuhnPoker-v0", action_repeat=2))
    env, params = make_env("race:MaskedBandit-v0")
    with pytest.raises(rljax.ConfigError, match=r"^action_repeat: race:MaskedBandit-v0 has action masks that change"):
        GameActionRepeat(env, 2).reset_env(KEY, params)


def test_a_repeated_step_hides_the_outcomes_of_chance() -> None:
    class Dice(Counted):
        gives_outcomes = True  # type: ignore[assignment]

    assert not GameActionRepeat(Counted(Echo()), 2).step_is_random
    repeated = GameActionRepeat(Dice(Echo()), 2)
    assert repeated.step_is_random
    assert not repeated.gives_outcomes
