"""SparseGridWorld: moves in plain Python, the shortest way by search, and how rarely a uniform policy gets there."""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.errors import ConfigError
from rljax.envs import make_env
from rljax.envs.sparse_gridworld import SparseGridWorldState, reach_probability
from tests.envs.play import QUICK, play, uniform

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
MAP = [
    "S..........",
    "...........",
    "...........",
    "##########.",
    "...........",
    "...........",
    "...........",
    ".##########",
    "...........",
    "...........",
    "..........G",
]


def moved(lines: list[str], row: int, column: int, action: int) -> tuple[int, int]:
    down, right = MOVES[action]
    after = row + down, column + right
    inside = 0 <= after[0] < len(lines) and 0 <= after[1] < len(lines[0])
    return after if inside and lines[after[0]][after[1]] != "#" else (row, column)


def distances(lines: list[str], goal: tuple[int, int]) -> dict[tuple[int, int], int]:
    """Steps to the goal from every cell, by breadth-first search from it; each move can be taken back."""
    found, queue = {goal: 0}, deque([goal])
    while queue:
        cell = queue.popleft()
        for action in range(4):
            after = moved(lines, *cell, action)
            if after not in found:
                found[after] = found[cell] + 1
                queue.append(after)
    return found


def map_of(env: Any) -> list[str]:
    return ["".join("#" if env.is_wall(r, c) else "." for c in range(env.width)) for r in range(env.height)]


def test_every_move_equals_plain_python() -> None:
    env, params = make_env("SparseGridWorld-v0")
    assert map_of(env) == [line.replace("S", ".").replace("G", ".") for line in MAP]
    cells = [(r, c) for r, line in enumerate(MAP) for c, mark in enumerate(line) if mark != "#"]

    def outcome(cell: jax.Array, action: jax.Array) -> Any:
        state = SparseGridWorldState(cell[0], cell[1], jnp.int32(0))
        return env.step_env(jax.random.key(0), state, action, params)[:4]

    every = jax.vmap(jax.vmap(outcome, (None, 0)), (0, None))
    obs, after, reward, ended = jax.jit(every, compiler_options=QUICK)(jnp.array(cells), jnp.arange(4))
    for i, cell in enumerate(cells):
        for action in range(4):
            row, column = moved(MAP, *cell, action)
            assert (int(after.row[i, action]), int(after.column[i, action])) == (row, column)
            assert np.flatnonzero(obs[i, action]).tolist() == [row, 11 + column]
            at_goal = MAP[row][column] == "G"
            assert (float(reward[i, action]), bool(ended[i, action])) == (float(at_goal), at_goal)


@pytest.mark.parametrize(("num_rooms", "width"), [(3, 11), (2, 5), (4, 6), (5, 2)])
def test_the_shortest_way_equals_search(num_rooms: int, width: int) -> None:
    env, _ = make_env("SparseGridWorld-v0", num_rooms=num_rooms, width=width)
    lines = map_of(env)
    found = distances(lines, env.goal)
    assert found[0, 0] == env.shortest_way
    assert len(found) == sum(line.count(".") for line in lines)


def test_a_head_start_is_that_far_along_the_shortest_way() -> None:
    env, params = make_env("SparseGridWorld-v0")
    found = distances(MAP, env.goal)
    starts = jax.vmap(lambda start: env.reset_env(jax.random.key(0), params.replace(head_start=start))[1])(jnp.arange(42))
    cells = list(zip(starts.row.tolist(), starts.column.tolist(), strict=True))
    assert [found[cell] for cell in cells] == [*range(40, 0, -1), 1, 1]
    assert env.way[[0, -1]].tolist() == [[0, 0], list(env.goal)]


def test_the_shortest_way_gets_one() -> None:
    env, params = make_env("SparseGridWorld-v0")
    found = distances(MAP, env.goal)
    best = np.zeros((11, 11), np.int32)
    for row, column in found:
        best[row, column] = min(range(4), key=lambda a, r=row, c=column: found[moved(MAP, r, c, a)])
    played = play(env, params, lambda _noise, _obs, state: jnp.asarray(best)[state.row, state.column], 60, num_envs=2)
    np.testing.assert_array_equal(played.returns, 1.0)
    np.testing.assert_array_equal(played.lengths, 40)
    np.testing.assert_array_equal(played.first_obs.nonzero()[1], [0, 11, 0, 11])


def test_a_uniform_policy_hardly_ever_gets_there() -> None:
    env, params = make_env("SparseGridWorld-v0")
    assert reach_probability(env, params.max_steps_in_episode) == pytest.approx(1.83e-7, rel=0.01)
    played = play(env, params, uniform(4), params.max_steps_in_episode + 1, num_envs=1000)
    assert played.returns.sum() == 0
    np.testing.assert_array_equal(played.lengths, params.max_steps_in_episode)


def test_reach_probability_equals_simulation() -> None:
    env, params = make_env("SparseGridWorld-v0", num_rooms=2, width=3, max_steps_in_episode=60)
    returns = play(env, params, uniform(4), 60, num_envs=4000).returns
    assert 0.05 < returns.mean() < 0.95
    assert returns.mean() == pytest.approx(reach_probability(env, 60), abs=0.03)


@pytest.mark.parametrize("arguments", [{"num_rooms": 1}, {"width": 1}, {"width": True}])
def test_bad_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        make_env("SparseGridWorld-v0", **arguments)
