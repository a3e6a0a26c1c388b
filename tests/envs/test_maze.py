"""Maze: layouts against plain-Python searches, how they are distributed, moves, ends of episodes and what is seen."""

from __future__ import annotations

import functools
import itertools
from collections import Counter, deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.errors import ConfigError
from rljax.envs import drawing, make_env
from rljax.envs.maze import spanning_tree
from tests.envs.play import QUICK

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
Cell = tuple[int, int]


@functools.cache
def drawn(size: int, count: int, loops: float = 0.0) -> Any:
    """First observations and states of `count` episodes, as NumPy arrays."""
    env, params = make_env("Maze-v0", size=size, loops=loops)
    reset = jax.jit(jax.vmap(env.reset, (0, None)), compiler_options=QUICK)
    return jax.tree.map(np.asarray, reset(jax.random.split(jax.random.key(3), count), params))


def distances(walls: np.ndarray, start: Cell) -> dict[Cell, int]:
    """Moves from a cell to every cell that can be reached, by breadth-first search."""
    found, queue = {start: 0}, deque([start])
    while queue:
        cell = queue.popleft()
        for down, right in MOVES:
            after = cell[0] + down, cell[1] + right
            square = cell[0] + after[0], cell[1] + after[1]
            inside = all(0 <= x <= walls.shape[0] // 2 for x in after)
            if inside and not walls[square] and after not in found:
                found[after] = found[cell] + 1
                queue.append(after)
    return found


def num_open(walls: np.ndarray) -> int:
    """Number of open walls between cells."""
    return int((~walls[::2, 1::2]).sum() + (~walls[1::2, ::2]).sum())


@pytest.mark.parametrize("size", [2, 5])
def test_every_maze_is_a_spanning_tree(size: int) -> None:
    _, state = drawn(size, 300)
    assert state.walls.shape == (300, 2 * size - 1, 2 * size - 1)
    assert not state.walls[:, ::2, ::2].any()
    assert state.walls[:, 1::2, 1::2].all()
    for walls in state.walls:
        assert len(distances(walls, (0, 0))) == size**2
        assert num_open(walls) == size**2 - 1


def kruskal(bits: np.ndarray, size: int) -> np.ndarray:
    """The minimum spanning tree of the grid, one edge at a time from the cheapest."""
    cells = list(itertools.product(range(size), repeat=2))
    ends = [((r, c), (r, c + 1)) for r, c in cells if c + 1 < size] + [((r, c), (r + 1, c)) for r, c in cells if r + 1 < size]
    component, tree = {cell: cell for cell in cells}, np.zeros(len(ends), bool)
    for i in np.argsort(bits):
        one, other = (component[cell] for cell in ends[i])
        if one != other:
            tree[i] = True
            component = {cell: other if name == one else name for cell, name in component.items()}
    return tree


@pytest.mark.parametrize("size", [3, 6])
def test_the_tree_is_that_of_kruskals_algorithm(size: int) -> None:
    # Far apart, so that the order is not decided by the lowest bits, which the function replaces.
    bits = jax.vmap(lambda key: jax.random.permutation(key, 2 * size * (size - 1)))(jax.random.split(jax.random.key(0), 100))
    bits = bits.astype(jnp.uint32) * 2**24
    trees = jax.jit(jax.vmap(lambda x: spanning_tree(x, size)), compiler_options=QUICK)(bits)
    np.testing.assert_array_equal(trees, [kruskal(x, size) for x in np.asarray(bits)])


def test_equal_random_numbers_close_no_cycle() -> None:
    tree = jax.jit(lambda x: spanning_tree(x, 5), compiler_options=QUICK)
    for bits in (0, 77, 2**32 - 1):
        assert int(tree(jnp.full(40, bits, jnp.uint32)).sum()) == 24


def test_every_tree_of_a_small_grid_is_drawn() -> None:
    """The heaviest of the 4 edges of a 2 x 2 grid is left out, each as often as the others; a 3 x 3 grid has 192 trees."""
    of_two = Counter(walls.tobytes() for walls in drawn(2, 4000)[1].walls)
    assert len(of_two) == 4
    assert min(of_two.values()) > 880  # 1000 each, and a standard deviation of 27
    assert len({walls.tobytes() for walls in drawn(3, 4000)[1].walls}) == 192


def test_episodes_differ_in_maze_start_and_goal() -> None:
    _, state = drawn(5, 300)
    assert len({walls.tobytes() for walls in state.walls}) == 300
    starts, goals = set(zip(state.row, state.column, strict=True)), set(zip(state.goal_row, state.goal_column, strict=True))
    assert len(starts) > 20
    assert len(goals) == 25
    # Nor do walls prefer a side: each of the 40 is open in 24 of 40 mazes on average.
    share = 1 - state.walls.mean(0)
    np.testing.assert_allclose(share, share.T, atol=0.15)
    np.testing.assert_allclose(share, share[::-1, ::-1], atol=0.15)


@pytest.mark.parametrize("size", [2, 5])
def test_start_and_goal_are_far_apart(size: int) -> None:
    _, state = drawn(size, 300)
    away = np.abs(state.row - state.goal_row) + np.abs(state.column - state.goal_column)
    assert away.min() == size - 1
    assert away.max() > size - 1


def test_loops_take_walls_away() -> None:
    _, state = drawn(5, 300, loops=0.25)
    assert {len(distances(walls, (0, 0))) for walls in state.walls} == {25}
    # 16 of the 40 walls are left in a tree.
    assert np.mean([num_open(walls) for walls in state.walls]) == pytest.approx(24 + 0.25 * 16, abs=0.4)


def test_walls_block_and_the_goal_ends_the_episode_with_a_reward() -> None:
    env, params = make_env("Maze-v0")
    _, state = jax.tree.map(lambda x: x[:20], drawn(5, 300))
    cells = jnp.array(list(itertools.product(range(5), repeat=2)))

    def outcome(state: Any, cell: jax.Array, action: jax.Array) -> Any:
        return env.step_env(jax.random.key(0), state.replace(row=cell[0], column=cell[1]), action, params)[1:4]

    every = jax.vmap(jax.vmap(jax.vmap(outcome, (None, None, 0)), (None, 0, None)), (0, None, None))
    after, reward, ended = jax.tree.map(np.asarray, jax.jit(every, compiler_options=QUICK)(state, cells, jnp.arange(4)))
    for i, j, action in itertools.product(range(20), range(25), range(4)):
        row, column = divmod(j, 5)
        down, right = MOVES[action]
        inside = 0 <= row + down < 5 and 0 <= column + right < 5
        if inside and not state.walls[i, 2 * row + down, 2 * column + right]:
            row, column = row + down, column + right
        at_goal = (row, column) == (state.goal_row[i], state.goal_column[i])
        assert (after.row[i, j, action], after.column[i, j, action]) == (row, column)
        assert (reward[i, j, action], ended[i, j, action]) == (float(at_goal), at_goal)


def test_episodes_end_at_the_limit_with_a_new_maze() -> None:
    env, params = make_env("Maze-v0")
    assert params.max_steps_in_episode == 50
    assert make_env("Maze-v0", size=7)[1].max_steps_in_episode == 98
    first = jax.tree.map(lambda x: jnp.asarray(x[0]), drawn(5, 300)[1])
    first = first.replace(row=jnp.int32(0), column=jnp.int32(0), goal_row=jnp.int32(4))
    step = jax.jit(lambda *now: env.step(*now)[1:5], compiler_options=QUICK)
    for limit in (50, 3):
        state, steps, truncated = first, 0, False
        while not truncated:
            state, reward, terminated, truncated = step(
                jax.random.key(steps), state, jnp.int32(0), params.replace(max_steps_in_episode=limit)
            )
            steps += 1
            assert not terminated
            assert reward == 0
        assert steps == limit
        assert state.time == 0
        assert (state.walls != first.walls).any()


def test_the_observation_shows_walls_agent_and_goal() -> None:
    obs, state = drawn(5, 300)
    np.testing.assert_array_equal(obs[..., 0], state.walls)
    for plane, row, column in ((1, state.row, state.column), (2, state.goal_row, state.goal_column)):
        expected = np.zeros((300, 9, 9))
        expected[np.arange(300), 2 * row, 2 * column] = 1
        np.testing.assert_array_equal(obs[..., plane], expected)


def test_a_view_is_what_lies_around_the_agent() -> None:
    whole, state = drawn(5, 300)
    env, params = make_env("Maze-v0", view=2)
    part = np.asarray(jax.jit(jax.vmap(env._observe), compiler_options=QUICK)(state))
    assert part.shape[1:] == env.observation_space(params).shape == (5, 5, 3)
    for i, (row, column) in enumerate(zip(state.row[:60], state.column[:60], strict=True)):
        for down, right in itertools.product(range(-2, 3), repeat=2):
            square = 2 * row + down, 2 * column + right
            seen = whole[i][square] if min(square) >= 0 and max(square) < 9 else [1, 0, 0]
            assert part[i, 2 + down, 2 + right].tolist() == list(seen)


def test_a_picture_shows_walls_agent_and_goal() -> None:
    env, params = make_env("Maze-v0")
    _, state = jax.tree.map(lambda x: x[0], drawn(5, 300))
    picture = np.asarray(jax.jit(env.render, compiler_options=QUICK)(state, params)).astype(int)
    assert picture.shape == (256, 256, 3)

    def at(row: float, column: float) -> np.ndarray:
        """Pixel of a place in squares: the middle of a square of `state.walls` is half a cell from the next."""
        scale = 256 / 5.4
        color: np.ndarray = picture[int((row / 2 + 0.7) * scale), int((column / 2 + 0.7) * scale)]
        return color

    assert np.abs(at(2 * state.row, 2 * state.column) - drawing.GOLD).max() < 3
    assert np.abs(at(2 * state.goal_row, 2 * state.goal_column) - drawing.GREEN).max() < 3
    for row, column in itertools.product(range(9), repeat=2):
        if row % 2 or column % 2:
            color = drawing.INK if state.walls[row, column] else drawing.PAPER
            assert np.abs(at(row, column) - color).max() < 3
    for edge in range(-1, 10):
        for place in ((edge, -1), (-1, edge), (edge, 9), (9, edge)):
            assert np.abs(at(*place) - drawing.INK).max() < 3


@pytest.mark.parametrize("arguments", [{"size": 1}, {"size": True}, {"view": -1}])
def test_bad_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^Maze-v0: {next(iter(arguments))} = |parameter size = True"):
        make_env("Maze-v0", **arguments)
