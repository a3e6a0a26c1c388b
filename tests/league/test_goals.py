"""Goals of players: the wrapper by hand, and a league whose exploiters follow their goals while its main agents do not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.policy import policy_and_value
from rljax.core.environments.spaces import Dict
from rljax.envs import GoalGame, KuhnPoker, MatrixGame
from rljax.league.training import game_collect, game_init, game_parts, game_update


@pytest.mark.slow
def test_a_game_with_goals_is_the_game_with_a_component_for_following_them() -> None:
    plain = KuhnPoker()
    game, params = GoalGame(plain, 2), plain.default_params
    assert rljax.check_environment(game) is None
    for seed in range(6):
        key = jax.random.key(seed)
        (obs, state), (before, inner) = game.reset_env(key, params), plain.reset_env(key, params)
        np.testing.assert_array_equal(obs["observation"], before)
        np.testing.assert_array_equal(obs["goal"].argmax(-1), state.goal)
        action = jnp.array([seed % 2, seed // 2 % 2])
        moves = np.asarray(plain.to_move(inner))
        after, then, reward, over, info = game.step_env(key, state, action, params)
        expected = plain.step_env(key, inner, action, params)
        for a, b in zip(
            jax.tree.leaves((after["observation"], then.game, reward, over)), jax.tree.leaves(expected[:4]), strict=True
        ):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(info["reward_components"]["win"], reward)
        followed = [float(moves[p] and int(action[p]) == int(state.goal[p])) for p in range(2)]
        assert info["reward_components"]["follow"].tolist() == followed
    states, probabilities = game.initial_states(params)
    of_plain = plain.initial_states(params)[1]
    assert len(probabilities) == 4 * len(of_plain)
    assert float(probabilities.sum()) == pytest.approx(1.0)
    assert len({tuple(x) for x in np.asarray(states.goal).tolist()}) == 4
    assert game.observe(jax.tree.map(lambda x: x[0], states), params)["goal"].shape == (2, 2)


@pytest.mark.slow
def test_what_only_a_critic_sees_stays_hidden_from_actors_with_goals() -> None:
    game = GoalGame(rljax.make_env("race:HiddenBit-v0")[0], 2)
    rljax.check_environment(game)
    agent = rljax.make_agent(rljax.SelfPlayConfig(env=game, num_envs=2, num_steps=12, num_minibatches=1, network={"hidden": [8]}))
    state = agent.init(jax.random.key(0))
    assert set(state.obs) == {"observation", "goal", "privileged"}
    assert agent.policy_and_value is not None
    positions = [agent.policy_and_value(state, {**state.obs, "privileged": state.obs["privileged"] + x}) for x in (0.0, 5.0)]
    np.testing.assert_array_equal(positions[0][0], positions[1][0])
    assert not np.allclose(positions[0][1], positions[1][1])
    public = {name: x for name, x in state.obs.items() if name != "privileged"}
    chosen = [agent.act(state, obs, None, jax.random.key(1))[0] for obs in (state.obs, public)]
    np.testing.assert_array_equal(*chosen)


class Split(KuhnPoker):
    """Kuhn poker with an observation and a reward of several parts; the reward is twice the first of them and once the second."""

    parts = ("win", "pot")

    def observation_space(self, params: Any) -> Dict:
        return Dict({"entities": super().observation_space(params)})

    def observe(self, state: Any, params: Any) -> dict[str, jax.Array]:
        return {"entities": super().observe(state, params)}

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        _, state = super().reset_env(key, params)
        return self.observe(state, params), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        _, state, reward, terminated, info = super().step_env(key, state, action, params)
        components = dict(zip(self.parts, (reward, jnp.ones(2)), strict=True))
        return self.observe(state, params), state, 2 * reward + 1, terminated, {**info, "reward_components": components}


def test_the_components_and_the_keys_of_a_game_stand_beside_the_goal() -> None:
    plain = Split()
    game, params = GoalGame(plain, 2, follow=lambda state, action, goal: jnp.full(2, 7.0)), plain.default_params
    obs, state = game.reset_env(jax.random.key(0), params)
    assert set(obs) == set(game.observation_space(params).spaces) == {"entities", "goal"}
    np.testing.assert_array_equal(obs["entities"], plain.observe(state.game, params)["entities"])
    for _ in range(3):  # check and check: the end
        before, key = state, jax.random.key(1)
        obs, state, reward, over, info = game.step_env(key, before, jnp.zeros(2, jnp.int32), params)
        expected = plain.step_env(key, before.game, jnp.zeros(2, jnp.int32), params)
        np.testing.assert_array_equal(reward, expected[2])
        own = expected[4]["reward_components"]
        assert {name: x.tolist() for name, x in info["reward_components"].items()} == {
            **{name: x.tolist() for name, x in own.items()},
            "follow": [7.0, 7.0],
        }
        if over:
            break
    assert over
    assert np.asarray(own["win"]).any()
    assert own["win"].tolist() != reward.tolist()


def test_a_goal_that_no_action_follows_is_refused_unless_something_else_follows_it() -> None:
    with pytest.raises(
        rljax.ConfigError, match=r"^GoalGame\(KuhnPoker-v0\): num_goals = 3: expected at most 2, .*follow=\.\.\.$"
    ):
        GoalGame(KuhnPoker(), 3)
    assert GoalGame(KuhnPoker(), 3, follow=lambda state, action, goal: jnp.zeros(2)).num_goals == 3


def test_a_player_reads_its_own_goal() -> None:
    plain = KuhnPoker()
    game, params = GoalGame(plain, 2), plain.default_params
    _, state = game.reset_env(jax.random.key(0), params)
    state = state._replace(goal=jnp.array([1, 0]))
    for player, goal in enumerate((1, 0)):
        assert game.text(state, params, player) == f"{plain.text(state.game, params, player)}\nyour goal: {goal}"


def test_a_second_goal_and_a_second_component_of_its_name_are_refused() -> None:
    with pytest.raises(rljax.ConfigError, match=r"GoalGame\(.* with goals\): its observations have a 'goal' already"):
        GoalGame(GoalGame(KuhnPoker(), 2), 2)
    game = Split()
    game.parts = ("win", "follow")
    with pytest.raises(rljax.ConfigError, match=r"with goals: the game has a reward component 'follow' already"):
        rljax.make_agent(rljax.SelfPlayConfig(env=GoalGame(game, 2)))


def league_of_goals(**changes: object) -> rljax.LeagueConfig:
    """Matching pennies, in which a goal is one of the two actions."""
    return rljax.LeagueConfig(
        **{"env": GoalGame(MatrixGame([[1.0, -1.0], [-1.0, 1.0]]), 2), "num_slots": 2, "num_steps": 2, "num_epochs": 2,
           "num_minibatches": 1, "value_heads": ("win", "follow"),
           "head_weights": (1.0, 0.0), "exploiter_head_weights": (1.0, 5.0), "network": {"hidden": [16]}, "learning_rate": 1e-2,
           "num_envs": 384, "total_timesteps": 384 * 2 * 120, "ent_coef": 0.1, "league_reset": 0.0, "league_rules": "simple",
           "main_exploiters": 0, "league_exploiters": 2, **changes}
    )  # fmt: skip


@pytest.mark.slow
def test_exploiters_follow_their_goals_and_main_agents_do_not() -> None:
    config = league_of_goals()
    parts = game_parts(config)
    state = jax.jit(rljax.make_train(config))(jax.random.key(0)).state
    zeros = jax.tree.map(lambda x: jnp.zeros((2, *x.shape[2:])), state.obs)
    obs = {**zeros, "observation": state.obs["observation"][:2, 0], "goal": jnp.eye(2)}

    def of(params: object) -> jax.Array:
        outputs, _, _ = policy_and_value(parts.ppo, params, obs)
        return jax.nn.softmax(outputs)

    follows = np.asarray(jax.vmap(of)(state.params))[:, [0, 1], [0, 1]].mean(-1)
    assert abs(follows[0] - 0.5) < 0.15
    assert follows[1:].min() > 0.9


@pytest.mark.slow
def test_weights_of_exploiters_are_those_of_a_league_where_all_have_them() -> None:
    """One update: each learner changes as in a league that gives its weights to everybody."""
    config = league_of_goals(num_envs=48, network={"hidden": [4]})
    state, steps = jax.jit(lambda s: game_collect(game_parts(config), s))(game_init(game_parts(config), jax.random.key(0)))

    def updated(config: rljax.LeagueConfig) -> list[jax.Array]:
        parts = game_parts(config)
        return jax.tree.leaves(jax.jit(lambda s, x: game_update(parts, s, x)[0].params)(state, steps))

    found = updated(config)
    for_mains = updated(config.replace(exploiter_head_weights=None))
    for_exploiters = updated(config.replace(exploiter_head_weights=None, head_weights=(1.0, 5.0)))
    for x, a, b in zip(found, for_mains, for_exploiters, strict=True):
        np.testing.assert_allclose(x[0], a[0], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(x[1:], b[1:], rtol=1e-5, atol=1e-7)
    assert any(not np.allclose(a[1:], b[1:]) for a, b in zip(for_mains, for_exploiters, strict=True))


def test_weights_that_fit_no_head_are_refused() -> None:
    with pytest.raises(
        rljax.ConfigError,
        match=r"exploiter_head_weights = \[1.0\]: expected one number for each of value_heads = \['win', 'follow'\]",
    ):
        league_of_goals(exploiter_head_weights=(1.0,))
    with pytest.raises(rljax.ConfigError, match=r"expected one number for each of value_heads = \[\]"):
        rljax.LeagueConfig(env="KuhnPoker-v0", exploiter_head_weights=(1.0,))
