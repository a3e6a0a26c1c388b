"""Which networks choose the actions of which seats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax.collect.games.sides import Side, sides
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game
from rljax.league import acting, learning
from rljax.league.training import game_collect, game_init, game_parts, game_update
from tests.league.test_scripted import Stubborn

SIZE: dict[str, Any] = {
    "num_envs": 16, "num_steps": 6, "num_slots": 4, "pool_size": 4, "num_minibatches": 2, "total_timesteps": 1024,
    "network": {"hidden": [4]}, "self_play": 0.0, "main_exploiters": 0, "league_exploiters": 0,
}  # fmt: skip


class Time(struct.PyTreeNode):
    time: jax.Array


class Three(Game):
    """Two against one, for four steps: the sum of the own side's numbers is paid, and that of the other side's taken."""

    name, num_players, teams = "Three", 3, (0, 1, 0)

    @property
    def default_params(self) -> None:
        return None

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, 4.0, (4,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(8)

    def observe(self, state: Time, params: Any) -> jax.Array:
        return jnp.concatenate([jnp.eye(3), jnp.full((3, 1), state.time, jnp.float32)], axis=1)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Time]:
        state = Time(jnp.int32(0))
        return self.observe(state, params), state

    def step_env(self, key: jax.Array, state: Time, action: jax.Array, params: Any) -> Any:
        of_side = jnp.array([action[0] + action[2], action[1], action[0] + action[2]], jnp.float32)
        against = jnp.array([action[1], action[0] + action[2], action[1]], jnp.float32)
        state = Time(state.time + 1)
        return self.observe(state, params), state, of_side - against, state.time == 4, {}


@pytest.mark.parametrize("teams", [(0, 1), (0, 1, 2), (0, 0, 1, 1), (0, 1, 0, 0), (1, 0, 2, 0, 1)])
def test_sides_are_taken_apart_and_put_together(teams: tuple[int, ...]) -> None:
    game: Any = SimpleNamespace(teams=teams, num_teams=max(teams) + 1)
    found = sides(game)
    team = jnp.arange(game.num_teams)
    seats = jnp.broadcast_to(jnp.arange(len(teams)), (game.num_teams, len(teams)))
    own = np.asarray(teams) == np.arange(game.num_teams)[:, None]
    for side, members in zip(found, (own, ~own), strict=True):
        assert side.seats.shape[1] == members.sum(axis=1).max()
        part = side.part(team, seats)
        for row, of_team in zip(np.asarray(part), members, strict=True):
            assert row[: of_team.sum()].tolist() == np.flatnonzero(of_team).tolist()
        np.testing.assert_array_equal(np.asarray(side.whole(team, part))[members], np.asarray(seats)[members])


def always(params: Any, action: int) -> Any:
    """Weights of a policy that always plays `action` of eight."""
    return jax.tree.map(lambda x: jnp.zeros_like(x).at[..., action].set(1e3 if x.shape[-2:] == (1, 8) else 0.0), params)


def test_seats_are_played_by_their_own_side() -> None:
    """In a game of two against one: the learner plays 3, the lanes 5 and 6, the latter where games began on it."""
    parts = game_parts(rljax.LeagueConfig(env=Three(), **SIZE))
    state = game_init(parts, jax.random.key(0))
    league = state.league
    assert league is not None
    both = jax.tree.map(lambda *x: jnp.stack(x, axis=1), always(state.params, 5), always(state.params, 6))
    lanes = jax.tree.map(lambda x, like: jnp.broadcast_to(x[:, None], like.shape), both, league.lanes)
    lane = jnp.arange(SIZE["num_envs"]) % 2
    state = state.replace(
        params=always(state.params, 3),
        # Every lane has a game, so that none gets another opponent.
        league=league.replace(lanes=lanes, newest=jnp.ones_like(league.newest)),
        env_state=state.env_state._replace(lane=lane),
    )
    _, steps = jax.jit(lambda s: game_collect(parts, s))(state)
    mine, action, lanes_of = (np.asarray(x) for x in (steps.mine, steps.action, steps.lane))
    np.testing.assert_array_equal(mine, np.array([0, 1, 0]) == np.asarray(steps.team)[..., None])
    assert {1, 2} == set(mine.sum(axis=-1).reshape(-1).tolist())
    np.testing.assert_array_equal(action, np.where(mine, 3, np.where(lanes_of == 1, 6, 5)[..., None]))
    np.testing.assert_array_equal(lanes_of[:4], np.broadcast_to(lane, (4, 16)))
    assert (lanes_of[4:] == 1).all()


def rows_seen(monkeypatch: pytest.MonkeyPatch, config: Any) -> list[int]:
    """Return how many observations, vectors, each network sees in a step of a rollout: the learner, then both lanes."""
    seen: list[int] = []
    whole = acting.policy_and_value

    def noted(parts: Any, params: Any, obs: Any, carry: Any = None) -> Any:
        seen.append(obs.size // obs.shape[-1])
        return whole(parts, params, obs, carry)

    monkeypatch.setattr(acting, "policy_and_value", noted)
    parts = game_parts(config)
    jax.eval_shape(lambda key: game_collect(parts, game_init(parts, key)), jax.random.key(0))
    return seen


def test_networks_see_only_the_seats_that_they_may_play(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within `vmap` over slots a network sees the games of one slot, four here."""
    assert rows_seen(monkeypatch, rljax.LeagueConfig(env=Stubborn(), **SIZE)) == [16, 4]
    assert rows_seen(monkeypatch, rljax.LeagueConfig(env=Three(), **SIZE)) == [2 * 16, 2 * 4]
    assert rows_seen(monkeypatch, rljax.SelfPlayConfig(env=Three(), opponents="self", num_envs=16)) == [3 * 16]


def test_lanes_of_games_against_scripted_players_are_not_asked() -> None:
    def flops(scripted: tuple[str, ...]) -> float:
        parts = game_parts(rljax.LeagueConfig(env=Stubborn(), scripted=scripted, **(SIZE | {"network": {"hidden": [128, 128]}})))
        state = jax.eval_shape(lambda: game_init(parts, jax.random.key(0)))
        cost = jax.jit(lambda s: game_collect(parts, s)).lower(state).cost_analysis()
        return float(cost["flops"])

    none, three = flops(()), flops(("always 0", "always 1", "always 2"))
    # A step asks the learner once and two lanes: 3 units of work, of which 2 become 2 / 4; the game itself stays.
    assert three < 0.7 * none


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        pytest.param(Stubborn(), {"normalize_observations": True, "normalize_rewards": True}, marks=pytest.mark.slow),
        (Three(), {"normalize_observations": True, "normalize_rewards": True}),
        # Minibatches of whole streams are others without those of opponents, so all are one.
        pytest.param(
            Three(),
            {"network": {"type": "gru", "hidden": [4]}, "num_minibatches": 1, "num_epochs": 1, "teacher_kl_coef": 1.0},
            marks=pytest.mark.slow,
        ),
        pytest.param(Three(), {"learner": "impala", "num_minibatches": 1, "num_epochs": 1}, marks=pytest.mark.slow),
    ],
)
def test_learning_without_the_steps_of_opponents_is_the_same(
    env: Game, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = game_parts(rljax.LeagueConfig(env=env, **(SIZE | changes)))

    collect = jax.jit(lambda state: game_collect(parts, state))  # compiled before anything is replaced

    def learned() -> tuple[Any, Any]:
        """After three iterations; rollouts begin and end within games."""
        state, update = game_init(parts, jax.random.key(0)), jax.jit(lambda *found: game_update(parts, *found))
        for _ in range(3):
            state, metrics = update(*collect(state))
        return (state.params, state.opt_state, state.obs_statistics, state.reward_statistics), metrics

    alone, of_own = learned()
    monkeypatch.setattr(learning, "_own_side", lambda _side, *whole: whole)
    monkeypatch.setattr(Side, "whole", lambda _side, _team, tree: tree)  # the teacher's memory
    beside, of_all = learned()
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(beside), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    for name in of_all:
        np.testing.assert_allclose(of_own[name], of_all[name], rtol=1e-3, atol=1e-5, err_msg=name)
