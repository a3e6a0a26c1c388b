"""A curriculum of starts finds a goal that training from the far end never does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.envs import make_env
from rljax.envs.sparse_gridworld import reach_probability
from rljax.run.reproduce.features import from_starts

STEPS = 60_000


@pytest.mark.long
def test_starts_that_move_away_from_the_goal_lead_to_it() -> None:
    env, params = make_env("SparseGridWorld-v0")
    # Episodes that fail last 100 steps, so without levels some 600 of them see no reward.
    assert reach_probability(env, params.max_steps_in_episode) * STEPS / params.max_steps_in_episode < 0.001
    config = from_starts({"type": "success"}).replace(total_timesteps=STEPS)
    agent = rljax.make_agent(config)

    def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        state, metrics = rljax.make_train(agent)(key)
        return jnp.mean(rljax.evaluate(agent, state, key, 4)), metrics["curriculum/reached"]

    returns, reached = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(1), 3))
    print("returns:", returns)
    assert (returns == 1.0).all()
    assert (np.diff(reached, axis=1) >= 0).all()
    assert (reached[:, -1] == 13).all()
