"""TMaze: the walk in plain Python, memory as the only way to the goal, and the returns that its docstring states."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import make_env
from rljax.envs.tmaze import TMazeState
from tests.envs.play import QUICK, play, standard_error, uniform

FORWARD, LEFT, RIGHT = 0, 1, 2


def walk(side: int, actions: tuple[int, ...], length: int) -> tuple[list[int], list[float], list[bool]]:
    """Which entry of each observation is 1, the rewards, and whether the episode is over."""
    seen, rewards, ends, position = [side], [], [], 0
    for action in actions:
        if position < length:
            moved = action == FORWARD
            position += moved
            rewards.append(0.0 if moved else -0.02)
        else:
            rewards.append(-0.02 if action == FORWARD else 1.0 if action == (LEFT, RIGHT)[side] else -1.0)
        ends.append(len(seen) > length and rewards[-1] in (1.0, -1.0))
        seen.append(3 if position == length else 2)
    return seen, rewards, ends


LENGTH, STEPS = 2, 5
SEQUENCES = np.array(list(itertools.product(range(3), repeat=STEPS)), np.int32)


def all_walks(side: int) -> tuple[np.ndarray, ...]:
    """Observations `[3^5, 6, 4]`, rewards and ends `[3^5, 5]` of every sequence of five actions."""
    env, params = make_env("TMaze-v0", length=LENGTH)
    keys = jax.random.split(jax.random.key(0), 16)
    obs, states = jax.vmap(env.reset, (0, None))(keys, params)
    index = int(np.flatnonzero(np.asarray(states.side) == side)[0])
    first, start = jax.tree.map(lambda x: x[index], (obs, states))

    def run(actions: jax.Array) -> tuple[jax.Array, ...]:
        def step(state: TMazeState, action: jax.Array) -> tuple[TMazeState, tuple[jax.Array, ...]]:
            obs, state, reward, terminated, _ = env.step_env(keys[0], state, action, params)
            return state, (obs, reward, terminated)

        later, rewards, ends = jax.lax.scan(step, start, actions)[1]
        return jnp.concatenate([first[None], later]), rewards, ends

    return tuple(map(np.asarray, jax.jit(jax.vmap(run), compiler_options=QUICK)(jnp.asarray(SEQUENCES))))


@pytest.mark.parametrize("side", [0, 1])
def test_every_walk_equals_plain_python(side: int) -> None:
    obs, rewards, ends = all_walks(side)
    np.testing.assert_array_equal(obs.sum(2), 1)
    for i, actions in enumerate(SEQUENCES):
        seen, expected, ended = walk(side, tuple(actions), LENGTH)
        until = ended.index(True) + 1 if True in ended else STEPS
        assert obs[i].argmax(1)[: until + 1].tolist() == seen[: until + 1]
        np.testing.assert_allclose(rewards[i, :until], expected[:until], atol=1e-6)
        assert ends[i, :until].tolist() == ended[:until]


def test_no_observation_after_the_first_tells_the_side() -> None:
    (left, *_), (right, *_) = all_walks(0), all_walks(1)
    np.testing.assert_array_equal(left[:, 1:], right[:, 1:])
    assert (left[:, 0] != right[:, 0]).any(1).all()


def test_a_policy_that_remembers_gets_one_in_the_shortest_time() -> None:
    env, params = make_env("TMaze-v0")
    played = play(env, params, lambda _noise, obs, state: jnp.where(obs[3] > 0, 1 + state.side, FORWARD), 12)
    np.testing.assert_array_equal(played.returns, 1.0)
    np.testing.assert_array_equal(played.lengths, params.length + 1)
    assert played.first_state.side.mean() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("turn", [LEFT, RIGHT])
def test_a_policy_without_memory_is_right_half_of_the_time(turn: int) -> None:
    env, params = make_env("TMaze-v0")
    played = play(env, params, lambda _noise, obs, _state: jnp.where(obs[3] > 0, turn, FORWARD), 12)
    assert set(played.returns) == {-1.0, 1.0}
    assert played.returns.mean() == pytest.approx(0.0, abs=4 * standard_error(played.returns))


def test_the_uniform_policy_reaches_the_junction_and_gets_what_is_stated() -> None:
    env, params = make_env("TMaze-v0")
    played = play(env, params, uniform(3), 100, num_envs=4000)
    assert played.lengths.max() < 100
    stated = (2 * params.length + 0.5) * params.bump_reward
    assert played.returns.mean() == pytest.approx(stated, abs=4 * standard_error(played.returns))


def test_parameters_set_length_rewards_and_limit() -> None:
    env, params = make_env("TMaze-v0", length=3, goal_reward=4.0, wrong_reward=-0.5, bump_reward=-1.0, max_steps_in_episode=5)
    played = play(env, params, lambda _noise, obs, _state: jnp.where(obs[3] > 0, LEFT, FORWARD), 6, num_envs=20)
    assert set(played.returns) == {4.0, -0.5}
    np.testing.assert_array_equal(played.lengths, 4)
    played = play(env, params, lambda *_: jnp.int32(RIGHT), 8, num_envs=2)
    np.testing.assert_array_equal(played.returns, -5.0)
