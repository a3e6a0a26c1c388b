"""Curricula in AlphaZero: searches play each game by the rules of its level, scores are those of plain loops, runs resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.policy import policy_and_value
from rljax.collect.curriculum.levels import LEVEL, level_state
from rljax.collect.games.rollout import acting_view
from rljax.collect.games.turns import turn_advantages
from rljax.core.errors import ConfigError
from rljax.planning.alphazero import AlphaZeroParts, alphazero_collect, alphazero_init, alphazero_parts, alphazero_update
from tests.collect.curriculum.plain_scores import PlainScores
from tests.planning.nim import Nim, winning_move
from tests.run.tiny_runs import assert_same_state

RULES = {"type": "uniform", "levels": {"misere": [False, True]}}
HEAPS = {"type": "plr", "levels": {"heap": [3, 5, 12]}, "temperature": 1.0}
SMALL: dict[str, Any] = {
    "num_envs": 8, "num_steps": 10, "num_simulations": 4, "num_minibatches": 2, "gamma": 0.9, "network": {"hidden": [8]}
}  # fmt: skip


def iterations(parts: AlphaZeroParts, count: int) -> list[tuple[Any, Any, Any, Any]]:
    """Return of each iteration the state before it and after its games, its moves, and the state after the update."""

    @jax.jit
    def iteration(state: Any) -> Any:
        played, moves = alphazero_collect(parts, state)
        return played, moves, alphazero_update(parts, played, moves)[0]

    state, found = jax.jit(lambda key: alphazero_init(parts, key))(jax.random.key(0)), []
    for _ in range(count):
        played, moves, after = iteration(state)
        found.append((state, played, moves, after))
        state = after
    return found


@pytest.mark.slow
def test_a_search_plays_by_the_rules_of_the_games_level() -> None:
    """The winning moves of the two rules differ, and the network, which sees the heap alone, is untrained."""
    config = rljax.AlphaZeroConfig(env=Nim(), curriculum=RULES, **{**SMALL, "num_simulations": 32, "num_envs": 16})
    parts = alphazero_parts(config)
    (_, _, moves, _), *_ = iterations(parts, 1)
    heap, level = np.argmax(np.asarray(moves.obs), axis=-1), np.asarray(moves.extras[LEVEL])
    best = np.argmax(np.asarray(moves.weights), axis=-1)
    seen = set()
    for at in np.ndindex(*heap.shape):
        wanted = winning_move(heap[at], bool(level[at]))
        if wanted is not None:
            assert best[at] == wanted, (heap[at], level[at])
            seen.add((int(level[at]), wanted))
    assert seen == {(level, action) for level in range(2) for action in range(2)}


@pytest.mark.slow
def test_the_score_of_a_level_is_the_mean_over_the_moves_of_its_games() -> None:
    """Also of games that go on in the next iteration; by plain loops over the moves of each game."""
    config = rljax.AlphaZeroConfig(env=Nim(), curriculum=HEAPS, td_lambda=0.7, **SMALL)
    parts = alphazero_parts(config)
    plain = PlainScores(games=8, levels=3)
    for before, played, moves, after in iterations(parts, 3):
        last_obs, _, _, last_moves = acting_view(parts.game, played.env_state, played.obs, parts.game_params)
        value, last = (policy_and_value(parts, before.params, obs)[1] for obs in (moves.obs, last_obs))
        found = turn_advantages(
            moves.reward, value[..., None], moves.moves, moves.done, last, last_moves, config.gamma, config.td_lambda, 1
        )
        level = np.asarray(moves.extras[LEVEL])
        plain.add(np.asarray(found.gae), np.asarray(found.known), moves.done, level)
        np.testing.assert_allclose(after.curriculum.score, plain.scores, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(after.curriculum.seen, plain.seen)
        # Games begin on levels by the probabilities of the rule, and keep them.
        at = np.asarray(level_state(after.env_state).level)
        fresh = np.asarray(after.length) == 0
        np.testing.assert_array_equal(at[~fresh], level[-1][~fresh])
    assert plain.seen.all()


@pytest.mark.slow
def test_a_run_with_levels_resumes_bit_for_bit(tmp_path: Path) -> None:
    config = rljax.AlphaZeroConfig(
        env="tests.planning.nim:Nim", curriculum=HEAPS, total_timesteps=80 * 4, anneal_lr=False, **SMALL
    )
    rljax.fit(config.replace(total_timesteps=80 * 2), run_dir=tmp_path / "run")
    whole = rljax.fit(config)
    assert_same_state(rljax.fit(resume=tmp_path / "run", total_timesteps=80 * 4).state, whole.state)
    assert np.asarray(whole.state.curriculum.seen).all()


@pytest.mark.slow
def test_levels_in_order_follow_success_and_evaluations_are_without_levels() -> None:
    """Every game's metric `taken` is above 0, so each rollout reaches the next level."""
    table = {"type": "success", "levels": {"heap": [1, 2, 3]}, "success": "taken", "min_episodes": 4}
    config = rljax.AlphaZeroConfig(env=Nim(), env_params={"heap": 1}, curriculum=table, **SMALL)
    agent = rljax.make_agent(config)
    state, reached = agent.init(jax.random.key(0)), []
    step = jax.jit(agent.step)
    for _ in range(3):
        state, metrics = step(state)
        reached.append(int(metrics["curriculum/reached"]))
    assert reached == [1, 2, 2]
    # With one stone whoever begins wins: the agent in about half of the games.
    returns = np.asarray(rljax.evaluate(agent, state, jax.random.key(1), 64))
    assert set(returns.tolist()) == {1.0, -1.0}


def test_what_cannot_be_searched_on_a_level_is_refused_in_one_line() -> None:
    class Sum(Nim):
        """Both win where the rule is misère."""

        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
            obs, state, reward, over, info = super().step_env(key, state, action, params)
            return obs, state, jnp.where(params.misere, jnp.abs(reward), reward), over, info

    alphazero_parts(rljax.AlphaZeroConfig(env=Sum(), **SMALL))
    with pytest.raises(ConfigError, match=r"do not add up to zero"):
        alphazero_parts(rljax.AlphaZeroConfig(env=Sum(), curriculum=RULES, **SMALL))
    # Training begins without the second level here, and reaches it later.
    in_order = {**RULES, "type": "success", "success": 0.5}
    with pytest.raises(ConfigError, match=r"do not add up to zero"):
        alphazero_parts(rljax.AlphaZeroConfig(env=Sum(), curriculum=in_order, **SMALL))
    with pytest.raises(ConfigError, match=r"^curriculum.levels: Nim has no parameter 'heaps'.*did you mean 'heap'"):
        alphazero_parts(rljax.AlphaZeroConfig(env=Nim(), curriculum={**RULES, "levels": [{"heaps": 1}]}, **SMALL))


def test_a_sweep_over_the_games_parameters_keeps_levels() -> None:
    """Also of a game whose step uses its key to no effect: the check plays it with the default parameters."""

    class Uses(Nim):
        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
            obs, state, reward, over, info = super().step_env(key, state, action, params)
            return obs, state, jnp.where(jax.random.uniform(key) < 2.0, reward, 0.0), over, info

    def heaps(heap: jax.Array) -> jax.Array:
        parts = alphazero_parts(rljax.AlphaZeroConfig(env=Uses(), env_params={"heap": heap}, curriculum=RULES, **SMALL))
        return parts.game.reset_env(jax.random.key(0), parts.game_params)[1].env_state.heap

    np.testing.assert_array_equal(jax.jit(jax.vmap(heaps))(jnp.array([3, 5])), [3, 5])
