"""Scripted players as opponents of a league's main agents."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.collect.games.matches import play_games
from rljax.core.errors import ConfigError
from rljax.core.games.game import RememberingScript, ScriptedPlayer
from rljax.core.games.game_wrappers import GameTimeLimit
from rljax.core.games.versus import Player, Versus, one_of, without_view
from rljax.envs import NumberDuel, TicTacToe
from rljax.league.training import game_collect, game_init, game_parts, scripted_metrics

SIZE: dict[str, Any] = {
    "num_envs": 32, "num_steps": 8, "num_slots": 4, "pool_size": 4, "num_minibatches": 2, "total_timesteps": 1024,
    "main_exploiters": 1, "league_exploiters": 0, "network": {"hidden": [8]},
}  # fmt: skip


class Stubborn(NumberDuel):
    """Number Duel with players who always name the same number."""

    @property
    def scripted(self) -> Mapping[str, ScriptedPlayer]:
        return {f"always {n}": lambda _key, _state, _params, n=n: jnp.full(2, n, jnp.int32) for n in range(3)}


class FirstCell(TicTacToe):
    """Tic-tac-toe with a player who takes the first free cell."""

    @property
    def scripted(self) -> Mapping[str, ScriptedPlayer]:
        def play(_key: jax.Array, state: Any, params: Any) -> jax.Array:
            return jnp.argmax(self.action_mask(state, params), axis=-1).astype(jnp.int32)

        return {"first": play}


def test_scripted_players_act_in_their_games_only() -> None:
    """Numbers named so far, which players see, show who has played: only the opponents in a main agent's last two slots."""
    parts = game_parts(rljax.LeagueConfig(env=Stubborn(), scripted=("always 2", "always 0"), **SIZE))
    expected = np.full((2, 4, 4), -1)
    expected[0, 3], expected[0, 2] = 0, 1
    np.testing.assert_array_equal(parts.scripted, expected.reshape(-1))
    state, steps = jax.jit(lambda key: game_collect(parts, game_init(parts, key)))(jax.random.key(0))
    history = np.asarray(state.env_state.game.history)[:, :, :3]  # the games are three rounds into their second
    team = np.asarray(steps.team[-1])
    for game, number in enumerate(parts.scripted):
        if number >= 0:
            assert set(history[game, 1 - team[game]].tolist()) == {(2, 0)[number]}
    free = parts.scripted < 0
    others = history[np.flatnonzero(free), 1 - team[free]]
    assert len(set(others.reshape(-1).tolist())) == 5
    assert np.asarray(steps.mine).sum() == steps.mine.size / 2


class Counts(Stubborn):
    """The same with a player who counts the rounds of a game by heart: it names 0, then 1, and so on."""

    @property
    def scripted(self) -> Mapping[str, ScriptedPlayer]:
        def count(_key: jax.Array, _state: Any, _params: Any, carry: Any) -> tuple[jax.Array, jax.Array]:
            rounds = jnp.zeros(2, jnp.int32) if carry is None else carry
            return rounds, rounds + 1

        return {**super().scripted, "counts": RememberingScript(count)}


def test_scripted_players_remember_within_a_game() -> None:
    """A game has five rounds, so after 8 steps its player names 0, 1, 2 again; its memory is there in the games against it."""
    for game in (Counts(), GameTimeLimit(Counts(), 10)):
        parts = game_parts(rljax.LeagueConfig(env=game, scripted=("counts", "always 2", "counts"), **SIZE))
        state, _ = jax.jit(lambda key, parts=parts: game_collect(parts, game_init(parts, key)))(jax.random.key(0))
        played = state.env_state.game
        history = np.asarray((played.env_state if isinstance(game, GameTimeLimit) else played).history)
        team = np.asarray(state.env_state.team)
        memory = state.env_state.scripted
        assert memory["always 2"] is None
        for number, wanted in enumerate(([0, 1, 2], [2, 2, 2], [0, 1, 2])):
            for place in np.flatnonzero(parts.scripted == number):
                assert history[place, 1 - team[place], :3].tolist() == wanted
        there = np.isin(parts.scripted, (0, 2))
        np.testing.assert_array_equal(memory["counts"], np.where(there, 3, 0)[:, None] * np.ones(2))


def test_a_scripted_player_that_remembers_plays_matches_and_is_one_of_several() -> None:
    game: Any = Counts()
    params = game.default_params
    counts, two = (without_view(game.scripted[name], params) for name in ("counts", "always 2"))
    wins = jnp.array([game_reward(n, 2) for n in range(5)])
    found = play_games(game, params, [counts, two], jax.random.key(0), 4)
    np.testing.assert_allclose(found.result[:, 0], wins.sum(), atol=1e-6)

    env = Versus(game, one_of([two, counts]))
    _, state = env.reset_env(jax.random.key(0), params)
    assert [leaf.shape for leaf in jax.tree.leaves(state.carry)] == [(2,), (2,)]
    seen = set()
    for seed in range(8):
        key = jax.random.key(seed)
        _, state = env.reset_env(key, params)
        for _ in range(5):
            _, state, *_ = env.step_env(key, state, jnp.int32(0), params)
        which = int(state.carry[0][0])
        named = np.asarray(state.game.history)[1 - int(state.team)].tolist()
        assert named == [[2] * 5, list(range(5))][which - 1]
        seen.add(which)
    assert seen == {1, 2}


def game_reward(own: int, other: int) -> float:
    """Return the reward of a round of Number Duel, as the docstring of the game has it."""
    if (own - other) % 5 in (1, 2):
        return (own + 1) / 5
    return -(other + 1) / 5 if own != other else 0.0


@pytest.mark.slow
def test_results_against_scripted_players_are_not_in_the_record() -> None:
    parts = game_parts(
        rljax.LeagueConfig(env=FirstCell(), scripted=("first",) * 3, **(SIZE | {"num_steps": 20, "main_exploiters": 0}))
    )
    state, steps = jax.jit(lambda key: game_collect(parts, game_init(parts, key)))(jax.random.key(0))
    done = np.asarray(steps.done).reshape(20, 4, 8)
    assert done[:, 1:].any()
    # Games of the first slot are against the current player or the pool, and only those that began against it are counted.
    assert 0 < float(state.league.payoff.record.games[0].sum()) <= done[:, 0].sum()
    share = float(scripted_metrics(parts, steps)["league/win_rate_scripted"])
    team, returns = np.asarray(steps.team), np.asarray(steps.returns)
    own = np.take_along_axis(returns, team[..., None], -1)[..., 0].reshape(20, 4, 8)[:, 1:][done[:, 1:]]
    assert share == pytest.approx((0.5 + 0.5 * np.sign(own)).mean(), abs=1e-6)


class Shaped(Stubborn):
    """The same with rewards for each step besides, and the other player winning: who is ahead by returns has lost, or drawn."""

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        drawn = action[0] == 1
        return obs, state, reward, terminated, {**info, "result": jnp.where(terminated & ~drawn, -jnp.sign(reward), 0.0)}


def test_results_of_a_game_decide_it_and_not_its_rewards() -> None:
    """In the record of the league, in its metrics, and in matches."""
    sizes = SIZE | {"num_envs": 64, "num_steps": 24, "main_exploiters": 0, "total_timesteps": 4096}
    parts = game_parts(rljax.LeagueConfig(env=Shaped(), scripted=("always 2", "always 0"), **sizes))
    state, steps = jax.jit(lambda key: game_collect(parts, game_init(parts, key)))(jax.random.key(0))
    done, there = np.asarray(steps.done), parts.scripted >= 0
    of_first = np.asarray(steps.extras["result"])[..., 0]
    assert {-1.0, 0.0, 1.0} == set(of_first[done].tolist())
    own = np.where(np.asarray(steps.team) == 0, of_first, -of_first)
    share = float(scripted_metrics(parts, steps)["league/win_rate_scripted"])
    assert share == pytest.approx((0.5 + 0.5 * own[done & there]).mean(), abs=1e-6)
    by_returns = np.sign(np.asarray(steps.returns)[..., 0])[done]
    assert (by_returns != of_first[done]).mean() > 0.5
    assert state.league is not None
    assert float(state.league.payoff.record.draws.sum()) > 0

    def always(number: int) -> Player:
        return lambda *_: jnp.full(2, number, jnp.int32)

    game = Shaped()
    for first, second in ((2, 0), (0, 2)):
        found = play_games(game, game.default_params, [always(first), always(second)], jax.random.key(0), 2)
        plain = play_games(Stubborn(), game.default_params, [always(first), always(second)], jax.random.key(0), 2)
        np.testing.assert_array_equal(found.place, plain.place[:, ::-1])
        np.testing.assert_array_equal(found.result, -np.sign(plain.result))
        assert [found.counts(team) for team in range(2)] == [plain.counts(team)[::-1] for team in range(2)]


class Toss(NumberDuel):
    """Number Duel in which player 1 wins at once if it names the number that the step draws."""

    @property
    def scripted(self) -> Mapping[str, ScriptedPlayer]:
        return {"guess": lambda key, _state, _params: jnp.broadcast_to(self.drawn(key), (2,))}

    def drawn(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 0, 2)

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        obs, state, _, _, info = super().step_env(key, state, action, params)
        reward = jnp.where(action[1] == self.drawn(key), 1.0, -1.0) * jnp.array([-1.0, 1.0])
        return obs, state, reward, jnp.asarray(True), info


def test_scripted_players_do_not_see_the_chance_of_the_step() -> None:
    sizes = SIZE | {"num_envs": 256, "num_steps": 16, "main_exploiters": 0, "total_timesteps": 4096}
    parts = game_parts(rljax.LeagueConfig(env=Toss(), scripted=("guess",) * 3, **sizes))
    _, steps = jax.jit(lambda key: game_collect(parts, game_init(parts, key)))(jax.random.key(0))
    seated = (np.asarray(steps.team) == 0) & (parts.scripted >= 0)
    won = np.asarray(steps.reward)[..., 1][seated] > 0
    assert won.size > 1000
    assert 0.45 < won.mean() < 0.55


class Forms(Stubborn):
    """Stubborn players with actions of other dtypes and shapes."""

    @property
    def scripted(self) -> Mapping[str, ScriptedPlayer]:
        return {"short": lambda *_: jnp.full(2, 2, jnp.int8), "alone": lambda *_: jnp.int32(2)}


def test_actions_of_scripted_players_are_checked_and_converted() -> None:
    parts = game_parts(rljax.LeagueConfig(env=Forms(), scripted=("short",), **SIZE))
    before = jax.eval_shape(lambda: game_init(parts, jax.random.key(0)))
    after, steps = jax.eval_shape(lambda key: game_collect(parts, game_init(parts, key)), jax.random.key(0))
    assert after.env_state.game.history.dtype == before.env_state.game.history.dtype
    assert steps.action.dtype == jnp.int32
    parts = game_parts(rljax.LeagueConfig(env=Forms(), scripted=("alone",), **SIZE))
    with pytest.raises(ConfigError, match=r"returned an action of shape \(\), expected \(2,\)"):
        jax.eval_shape(lambda key: game_collect(parts, game_init(parts, key)), jax.random.key(0))


@pytest.mark.slow
def test_forks_that_change_scripted_players_begin_games_anew(tmp_path: Any) -> None:
    """A game goes on against the opponent that it began with, or not at all."""
    config = rljax.LeagueConfig(env=FirstCell(), scripted=("first",), **(SIZE | {"total_timesteps": 512}))
    rljax.fit(config, run_dir=tmp_path / "a")
    longer = config.replace(total_timesteps=1024)
    with warnings.catch_warnings(record=True) as said:
        rljax.fit(longer, fork=tmp_path / "a", run_dir=tmp_path / "b")
    assert not any("initialised anew" in str(warning.message) for warning in said)
    with pytest.warns(rljax.RljaxWarning, match="initialised anew, because the configuration changed: env_state, obs"):
        rljax.fit(longer.replace(scripted=()), fork=tmp_path / "a", run_dir=tmp_path / "c")


@pytest.mark.parametrize(
    ("env", "changes", "words"),
    [
        (Stubborn(), {"scripted": ("always 1",) * 4}, r"scripted = .*: each takes one of num_slots = 4"),
        (Stubborn(), {"scripted": ("always 7",)}, "no scripted player 'always 7': did you mean 'always"),
        ("NumberDuel-v0", {"scripted": ("rush",)}, "no scripted player 'rush': NumberDuel-v0 has none"),
    ],
)
def test_unknown_or_too_many_names_are_refused_in_one_line(env: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        rljax.make_agent(rljax.LeagueConfig(env=env, **SIZE, **changes))
    assert "\n" not in str(caught.value)
