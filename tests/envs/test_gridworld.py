"""GridWorld's best return against a search in plain Python, and what its pixels show."""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.environments.wrappers import PixelObservation
from rljax.core.errors import ConfigError
from rljax.envs import drawing, make_env, optimal_return
from rljax.envs.gridworld import GridWorldState


@functools.cache
def step_table(size: int) -> dict[tuple[int, int], list[tuple[tuple[int, int], float, bool]]]:
    """Where each action leads from each cell, asked of the environment itself."""
    env, params = make_env("GridWorld-v0", size=size)
    cells = jnp.array([(row, column) for row in range(env.size) for column in range(env.size)])

    def outcome(cell: jax.Array, action: jax.Array) -> tuple[jax.Array, ...]:
        state = GridWorldState(cell[0], cell[1], jnp.int32(0))
        _, after, reward, terminated, _ = env.step_env(jax.random.key(0), state, action, params)
        return after.row, after.column, reward, terminated

    rows, columns, rewards, ends = jax.jit(jax.vmap(jax.vmap(outcome, (None, 0)), (0, None)))(cells, jnp.arange(4))
    return {
        tuple(map(int, cell)): [((int(rows[i, a]), int(columns[i, a])), float(rewards[i, a]), bool(ends[i, a])) for a in range(4)]
        for i, cell in enumerate(np.asarray(cells))
    }


def best_return(table: dict, start: tuple[int, int], limit: int, discount: float) -> float:
    """Breadth-first search for the shortest way to an end of the episode; its discounted return."""
    queue, seen = deque([(start, 0, 0.0)]), {start}
    while queue:
        cell, steps, total = queue.popleft()
        if steps == limit:
            return total
        for after, reward, ends in table[cell]:
            gained = total + discount**steps * reward
            if ends:
                return gained
            if after not in seen:
                seen.add(after)
                queue.append((after, steps + 1, gained))
    raise AssertionError("no way to the goal")


@pytest.mark.parametrize("size", [2, 4, 7])
@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("limit", [100, 5])
def test_optimal_return_equals_search(size: int, discount: float, limit: int) -> None:
    _, params = make_env("GridWorld-v0", size=size, max_steps_in_episode=limit)
    table = step_table(size)
    starts = [cell for cell in table if cell != (size - 1, size - 1)]
    expected = [best_return(table, cell, limit, discount) for cell in starts]
    np.testing.assert_allclose(optimal_return(*np.transpose(starts), size, params, discount), expected, atol=1e-5)


def test_moves_stay_on_the_grid() -> None:
    table = step_table(3)
    assert [after for after, _, _ in table[1, 1]] == [(0, 1), (1, 2), (2, 1), (1, 0)]
    assert [after for after, _, _ in table[0, 0]] == [(0, 0), (0, 1), (1, 0), (0, 0)]
    assert table[1, 2][2] == ((2, 2), 1.0, True)
    assert table[1, 2][0] == ((0, 2), pytest.approx(-0.01), False)


def test_every_cell_but_the_goal_is_a_start() -> None:
    env, params = make_env("GridWorld-v0")
    obs, state = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(jax.random.key(0), 5000), params)
    counts = np.zeros((7, 7), int)
    np.add.at(counts, (np.asarray(state.row), np.asarray(state.column)), 1)
    assert counts[6, 6] == 0
    assert (np.delete(counts.ravel(), 48) > 60).all()
    np.testing.assert_array_equal(np.argmax(obs[:, :7], 1), state.row)
    np.testing.assert_array_equal(np.argmax(obs[:, 7:], 1), state.column)
    np.testing.assert_array_equal(obs.sum(1), 2)


def test_an_optimal_walk_gets_the_optimal_return() -> None:
    env, params = make_env("GridWorld-v0")
    _, state = env.reset(jax.random.key(4), params)
    expected = float(optimal_return(state.row, state.column, 7, params))
    step = jax.jit(env.step_env)
    total, terminated = 0.0, False
    while not terminated:
        _, state, reward, terminated, _ = step(jax.random.key(0), state, 2 if state.row < 6 else 1, params)
        total += float(reward)
    assert total == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_pixels_show_what_the_wrapper_shows_and_are_the_same_task() -> None:
    pixels, params = make_env("GridWorldPixels-v0")
    plain, plain_params = make_env("GridWorld-v0")
    wrapped = PixelObservation(plain)
    assert params == plain_params
    assert pixels.reward_threshold == plain.reward_threshold == wrapped.reward_threshold

    def episode(env: Any, key: jax.Array) -> Any:
        reset_key, key = jax.random.split(key)
        obs, state = env.reset(reset_key, params)

        def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
            action = jnp.where(jax.random.uniform(key) < 0.5, 1, 2)
            obs, state, reward, terminated, truncated, info = env.step(key, state, action, params)
            return state, (obs, reward, terminated, truncated, info["final_observation"])

        return obs, jax.lax.scan(step, state, jax.random.split(key, 60))[1]

    first, (obs, *rest, final) = jax.jit(lambda: episode(pixels, jax.random.key(1)))()
    expected_first, (expected, *expected_rest, expected_final) = jax.jit(lambda: episode(wrapped, jax.random.key(1)))()
    jax.tree.map(np.testing.assert_array_equal, rest, expected_rest)
    assert np.asarray(rest[1]).any()
    # Both are anti-aliased, one from 256 x 256: of 64 x 64 pixels only those at edges differ.
    for got, want in ((first[None], expected_first[None]), (obs, expected), (final, expected_final)):
        assert got.dtype == jnp.uint8
        assert got.shape[1:] == (64, 64, 3)
        off = np.abs(got.astype(int) - want.astype(int))
        assert off.mean() < 1.0
        assert (off > 25).mean() < 0.02


@pytest.mark.parametrize("size", [2, 7])
def test_agent_goal_and_lines_are_told_apart_in_every_picture(size: int) -> None:
    env, _ = make_env("GridWorldPixels-v0", size=size)
    cells = jnp.array([(row, column) for row in range(size) for column in range(size)])
    state = GridWorldState(cells[:, 0], cells[:, 1], jnp.zeros(len(cells), jnp.int32))
    pictures = np.asarray(jax.jit(jax.vmap(lambda s: env._observe(s)))(state)).astype(int)

    def center(row: int, column: int) -> tuple[int, int]:
        scale = 64 / (size + 0.2)
        return int((row + 0.6) * scale), int((column + 0.6) * scale)

    for i, (row, column) in enumerate(np.asarray(cells)):
        assert np.abs(pictures[i][center(row, column)] - drawing.GOLD).max() < 3
        if (row, column) != (size - 1, size - 1):
            assert np.abs(pictures[i][center(size - 1, size - 1)] - drawing.GREEN).max() < 3
        # What is gold is in the agent's cell, and more than one pixel.
        gold = np.argwhere(np.abs(pictures[i] - drawing.GOLD).max(-1) < 40)
        assert np.abs(gold - center(row, column)).max() <= 0.45 * 64 / size
        assert len(gold) >= 4
    assert len(np.unique(pictures.reshape(len(cells), -1), axis=0)) == len(cells)
    # Along the row of pixels through the middle of the first row of cells: one line between each two cells of paper.
    between = pictures[-1][center(0, 0)[0], center(0, 0)[1] : center(0, size - 1)[1] + 1]
    lines = np.abs(between - drawing.PAPER).max(-1) > 10
    assert np.sum(np.diff(lines.astype(int)) == 1) == size - 1


@pytest.mark.slow
def test_pixels_may_have_another_size() -> None:
    env, params = make_env("GridWorldPixels-v0", size=3, pixels=32, step_reward=0.0)
    assert env.reset(jax.random.key(0), params)[0].shape == (32, 32, 3)
    assert env.render(env.reset(jax.random.key(0), params)[1], params).shape == (256, 256, 3)
    with pytest.raises(ConfigError, match=r"^GridWorldPixels-v0: pixels = 0, expected an integer of at least 1"):
        make_env("GridWorldPixels-v0", pixels=0)
    with pytest.raises(ConfigError, match=r"^GridWorldPixels-v0: size = 1"):
        make_env("GridWorldPixels-v0", size=1)
