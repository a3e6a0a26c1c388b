"""Opponent models: windows against a plain list, divergence by beta, a linear probe on z, and what a policy does with it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.opponents import OpponentModel, OpponentView, train_opponent_model
from rljax.core.errors import ConfigError
from rljax.run.reproduce.opponents import LATENT, habit_model, habit_policy, habit_return, habits, probe


class Echo:
    """Stands for a network: its embedding is its input."""

    def apply(self, _params: Any, x: jax.Array, method: str) -> jax.Array:
        assert method == "embedding"
        return x


def test_the_window_has_the_last_observed_steps_of_the_episode() -> None:
    env = habits()
    params = env.default_params.replace(num_rounds=5)
    model: Any = OpponentModel(Echo(), None, 3, lambda obs: obs[3:6])  # type: ignore[arg-type]
    view = OpponentView(env, model)
    step = jax.jit(view.step)
    obs, state = view.reset(jax.random.key(0), params)
    rows = [[*np.asarray(obs[3:6]), 1.0]]
    for time in range(12):
        padded = [[0.0] * 4] * 3 + rows
        np.testing.assert_allclose(obs[7:].reshape(3, 4), padded[-3:])
        obs, state, _, terminated, _, info = step(jax.random.key(time), state, jnp.int32(time % 3), params)
        final = info["final_observation"]
        np.testing.assert_allclose(final[7:].reshape(3, 4)[-1], [*np.asarray(final[3:6]), 1.0])
        rows = [*([] if terminated else rows), [*np.asarray(obs[3:6]), 1.0]]
        assert bool(terminated) == (time % 5 == 4)
    assert view.observation_space(params).shape == obs.shape


def test_sizes_that_do_not_fit_are_one_line() -> None:
    env = habits()
    with pytest.raises(ConfigError, match="window = 0, expected an integer of at least 1"):
        train_opponent_model(env, env.default_params, jax.random.key(0), window=0)
    with pytest.raises(ConfigError, match="num_minibatches = 7: must divide num_envs \\* num_steps = 4096"):
        train_opponent_model(env, env.default_params, jax.random.key(0), num_minibatches=7)


@pytest.mark.slow
def test_a_probe_names_the_opponent_and_a_policy_wins_more_with_z_than_without_or_with_anothers() -> None:
    models = {beta: habit_model(jax.random.key(0), beta) for beta in (1.0, 4.0)}
    kl = {beta: float(metrics["train/kl"][-1]) for beta, (_, metrics) in models.items()}
    assert kl[1.0] > 3 * kl[4.0]
    model, metrics = models[1.0]
    assert metrics["train/loss"][-1] < metrics["train/loss"][0]
    assert probe(model, jax.random.key(1)) > 0.8  # 1 / 3 by chance
    agent = rljax.make_agent(habit_policy(OpponentView(habits(), model)))
    result = jax.jit(jax.vmap(rljax.make_train(agent)))(jax.random.split(jax.random.key(2), 2))
    keys = jax.random.split(jax.random.key(3), 2)
    found = {}
    for how in ("z", "z = 0", "z of another game"):
        found[how] = jax.jit(jax.vmap(lambda s, k, how=how: habit_return(agent, s, k, how)))(result.state, keys)
    # Who remembers only the last sign wins 3 of 20; who knows the habit from the first round, 8.
    assert (found["z"] > 5.0).all()
    assert (found["z"] > found["z = 0"] + 2.0).all()
    assert (found["z"] > found["z of another game"] + 2.0).all()
    assert (
        agent.act(jax.tree.map(lambda x: x[0], result.state), jnp.zeros(7 + LATENT), None, jax.random.key(0), True)[0].shape == ()
    )
