"""Parameters drawn for each episode: their distribution, that they hold, and that training and evaluation see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import wrappers
from rljax.collect.environments import make_evaluation_env, make_game
from rljax.collect.randomize import GameRandomizeParams, randomized
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game, RememberingScript, ScriptedPlayer
from rljax.core.games.game_wrappers import GameTimeLimit, Step
from rljax.envs import make_env
from rljax.league.game_tree import game_tree
from rljax.planning.mcts import check_searchable
from rljax.run.players import check_one_game, played_game


@pytest.mark.slow
def test_each_episode_draws_and_keeps_its_parameters() -> None:
    env, params = make_env("CartPole-v1")
    varied = wrappers.RandomizeParams(env, {"force": (5.0, 15.0), "max_steps_in_episode": (3, 6)})
    keys = jax.random.split(jax.random.key(0), 4000)
    _, states = jax.jit(jax.vmap(varied.reset_env, (0, None)))(keys, params)
    force, limit = (np.asarray(states.drawn[name]) for name in ("force", "max_steps_in_episode"))
    assert force.min() >= 5.0
    assert force.max() <= 15.0
    counts = np.histogram(force, 10, (5.0, 15.0))[0]
    assert ((counts - 400.0) ** 2 / 400.0).sum() < 33.7, "chi-square of 9 degrees, 1e-4"
    assert set(limit.tolist()) == {3, 4, 5, 6}
    assert np.bincount(limit)[3:].min() > 850
    assert abs(np.corrcoef(force, limit)[0, 1]) < 0.08

    # One step of each is that of the environment with these parameters; the limit is the episode's own.
    for i in range(5):
        own = params.replace(force=force[i], max_steps_in_episode=limit[i])
        state, plain = jax.tree.map(lambda x, i=i: x[i], (states, states.env_state))
        for time in range(int(limit[i])):
            key = jax.random.key(time)
            assert not varied.is_truncated(state, params)
            found, state, *_ = varied.step_env(key, state, jnp.int32(1), params)
            expected, plain, *_ = env.step_env(key, plain, jnp.int32(1), own)
            np.testing.assert_array_equal(found, expected)
        assert varied.is_truncated(state, params)
        assert varied.render(state, params).shape == env.render(plain, own).shape


@pytest.mark.slow
def test_training_draws_anew_in_every_episode_and_evaluation_too() -> None:
    config = rljax.PPOConfig(env="CartPole-v1", randomize={"max_steps_in_episode": [1, 4]}, num_envs=8, num_steps=64)
    agent = rljax.make_agent(config)
    state = agent.init(jax.random.key(0))
    env, params = make_evaluation_env(config)
    assert env.observation_space(params).shape == (4,)
    returns = np.asarray(rljax.evaluate(agent, state, jax.random.key(1), num_episodes=200))
    assert set(returns.tolist()) == {1.0, 2.0, 3.0, 4.0}
    _, metrics = jax.jit(agent.step)(state)
    assert 1.8 < float(metrics["episode/length"]) < 3.2
    assert float(metrics["episode/count"]) > 150


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"forse": [1, 2]}, "has no parameter 'forse': did you mean 'force'"),
        ({"force": [2.0, 1.0]}, r"force = .*: expected two numbers \[low, high\] with low <= high, such as \[0.5, 2.0\]"),
        ({"force": 2.0}, "force = 2.0: expected two numbers"),
        ({"force": [1.0, "a"]}, "force = .*: expected two numbers"),
        ({"force": [1.0, float("nan")]}, "force = .*: expected two numbers"),
        ({"force": [-3e38, 3e38]}, "force = .*: expected numbers of float32, and their difference, too"),
        ({"max_steps_in_episode": [1.5, 2]}, r"max_steps_in_episode = .*: expected two whole numbers .* such as \[1, 3\]"),
        ({"max_steps_in_episode": [0, 2]}, "max_steps_in_episode = .*: expected at least 1"),
    ],
)
def test_bad_tables_are_one_clear_line(table: dict[str, Any], message: str) -> None:
    with pytest.raises(rljax.ConfigError, match=f"randomize: .*{message}") as error:
        rljax.make_agent(rljax.PPOConfig(env="CartPole-v1", randomize=table))
    assert "\n" not in str(error.value)


def test_ranges_lie_within_the_bounds_of_a_parameter() -> None:
    for table, allowed in (({"change": [0.5, 1.5]}, "at least 0 and at most 1"), ({"num_steps": [0, 3]}, "at least 1")):
        with pytest.raises(rljax.ConfigError, match=f"randomize: .*: expected {allowed}"):
            rljax.make_agent(rljax.PPOConfig(env="Scouting-v0", randomize=table))


def test_what_an_environment_says_of_the_ends_of_a_range_is_one_line() -> None:
    class Picky(type(rljax.make_env("CartPole-v1")[0])):  # type: ignore[misc]
        def observation_space(self, params: Any) -> Any:
            assert isinstance(params.max_steps_in_episode, int)  # of the kind that the default is
            if params.max_steps_in_episode > 4:
                raise ValueError("too many steps")
            return super().observation_space(params)

    table = {"max_steps_in_episode": [1, 5]}
    with pytest.raises(rljax.ConfigError, match="randomize: ValueError: too many steps"):
        rljax.make_agent(rljax.PPOConfig(env=Picky(), env_params={"max_steps_in_episode": 3}, randomize=table))


def test_levels_and_randomisation_go_together() -> None:
    """A curriculum chooses some parameters, others are drawn."""
    curriculum = {"type": "uniform", "levels": {"max_steps_in_episode": [2, 3]}}
    config = rljax.PPOConfig(env="CartPole-v1", randomize={"force": [5.0, 15.0]}, curriculum=curriculum, num_envs=8, num_steps=32)
    agent = rljax.make_agent(config)
    _, metrics = jax.jit(agent.step)(agent.init(jax.random.key(0)))
    assert 2.0 <= float(metrics["episode/length"]) <= 3.0


class Weight(NamedTuple):
    weight: float = 0.5
    num_steps: int = 4


class Weighing(Game):
    """Two players take turns; whatever is asked of it answers with the parameter `weight`, which also is the probability of the
    outcome 1."""

    @property
    def name(self) -> str:
        return "Weighing"

    @property
    def default_params(self) -> Weight:
        return Weight()

    @property
    def scripted(self) -> Mapping[str, ScriptedPlayer]:
        def plain(key: jax.Array, state: Any, params: Weight) -> jax.Array:
            return jnp.full(2, params.weight)

        def act(key: jax.Array, state: Any, params: Weight, carry: Any) -> Any:
            return jnp.full(2, params.weight), jnp.zeros(2)

        return {"plain": plain, "remembers": RememberingScript(act)}

    def observation_space(self, params: Weight) -> Box:
        return Box(0.0, 1.0, (1,))

    def action_space(self, params: Weight) -> Discrete:
        return Discrete(2)

    def to_move(self, state: Any) -> jax.Array:
        return jnp.arange(2) == state % 2

    def action_mask(self, state: Any, params: Weight) -> jax.Array:
        return jnp.stack([jnp.array([True, True]), jnp.array([True, params.weight > 0.5])])

    def observe(self, state: Any, params: Weight) -> jax.Array:
        return jnp.full((2, 1), params.weight, jnp.float32)

    def text(self, state: Any, params: Weight, player: int) -> str:
        return f"{float(params.weight):.3f}"

    def render(self, state: Any, params: Weight) -> jax.Array:
        return jnp.full((2, 2, 3), 255 * params.weight).astype(jnp.uint8)

    def chance(self, state: Any, action: Any, params: Weight) -> jax.Array:
        return jnp.stack([1.0 - params.weight, params.weight])

    def reset_env(self, key: jax.Array, params: Weight) -> tuple[Any, Any]:
        return self.observe(0, params), jnp.zeros((), jnp.int32)

    def step_outcome(self, state: Any, action: Any, outcome: jax.Array, params: Weight) -> Step:
        reward = params.weight * jnp.array([1.0, -1.0])
        return self.observe(state, params), state + 1, reward, state + 1 >= params.num_steps, {}


def test_whatever_is_asked_of_a_game_is_asked_with_the_parameters_of_that_game() -> None:
    game = GameTimeLimit(randomized(Weighing(), Weight(), {"weight": [0.0, 1.0], "num_steps": [2, 3]}), 100)
    params, limits = game.default_params, set()
    for number in range(8):
        key = jax.random.key(number)
        obs, state = game.reset_env(key, params)
        weight, limit = (float(state.env_state.drawn[name]) for name in ("weight", "num_steps"))
        limits.add((weight, limit))
        over, steps, action = False, 0, jnp.zeros(2, jnp.int32)
        while not over:
            for told in (obs, game.observe(state, params)):
                np.testing.assert_allclose(told, weight)
            np.testing.assert_allclose(game.chance(state, action, params), [1 - weight, weight], rtol=1e-6)
            assert bool(game.action_mask(state, params)[1, 1]) == (weight > 0.5)
            assert game.text(state, params, 0) == f"{weight:.3f}"
            assert game.render(state, params)[0, 0, 0] == int(255 * weight)
            np.testing.assert_allclose(game.scripted["plain"](key, state, params), weight)
            np.testing.assert_allclose(game.scripted["remembers"].act(key, state, params, None)[0], weight)
            given = game.step_outcome(state, action, jnp.int32(1), params)
            obs, state, reward, over, _ = game.step_env(key, state, action, params)
            jax.tree.map(np.testing.assert_array_equal, given[:4], (obs, state, reward, over))
            np.testing.assert_allclose(reward, [weight, -weight], rtol=1e-6)
            steps += 1
        assert steps == limit
    assert len(limits) == 8
    assert {limit for _, limit in limits} == {2, 3}


def test_searches_and_exact_trees_refuse_games_whose_parameters_are_drawn() -> None:
    config = rljax.SelfPlayConfig(env="HabitRPS-v0", randomize={"num_rounds": [2, 3]})
    game, params = make_game(config)
    assert isinstance(game, GameRandomizeParams)
    with pytest.raises(
        rljax.ConfigError, match=r"^HabitRPS-v0 with randomize does not enumerate its initial states, which an exact"
    ):
        game_tree(game, params)
    with pytest.raises(rljax.ConfigError, match="Weighing: hides a part of its state, which a search would see"):
        check_searchable(randomized(Weighing(), Weight(), {"weight": [0.0, 1.0]}))


def test_players_for_whom_other_parameters_are_drawn_play_another_game() -> None:
    config = rljax.SelfPlayConfig(env="HabitRPS-v0", randomize={"num_rounds": [3, 6]})
    check_one_game("one", config.replace(seed=3, randomize={"num_rounds": (3, 6)}), "other", played_game(config))
    for other, told in (({"num_rounds": [3, 7]}, r".'num_rounds': \[3, 7\]."), ({}, "{}")):
        expected = rf"^one: plays HabitRPS-v0 with randomize = {told}, but .'num_rounds': \[3, 6\]. in other: expected one game"
        with pytest.raises(rljax.ConfigError, match=expected):
            check_one_game("one", config.replace(randomize=other), "other", played_game(config))


@pytest.mark.slow
def test_leagues_draw_anew_in_every_game_and_scripted_players_know_it() -> None:
    small = {"num_envs": 32, "num_steps": 32, "num_minibatches": 1, "num_epochs": 1}
    table = {"num_rounds": [3, 6], "habit": [1.0, 1.0]}
    config = rljax.LeagueConfig(
        env="HabitRPS-v0", randomize=table, num_slots=2, scripted=("rock",), pool_size=6, main_exploiters=0,
        league_exploiters=0, snapshot_every=10**6, snapshot_timeout=10**6, ent_coef=0.0, learning_rate=0.03, **small,
    )  # fmt: skip
    agent = rljax.make_agent(config)
    state, metrics = agent.init(jax.random.key(0)), None
    step = jax.jit(agent.step)
    for _ in range(20):
        state, metrics = step(state)
    assert 3.6 < float(metrics["episode/length"]) < 5.4
    # By default, rock is shown in 6 of 10 rounds only.
    assert float(metrics["league/win_rate_scripted"]) > 0.95
