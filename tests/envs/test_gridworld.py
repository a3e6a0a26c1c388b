"""GridWorld's best return against a search in plain Python."""

from __future__ import annotations

import functools
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import make_env, optimal_return
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
