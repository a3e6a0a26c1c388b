"""A moving average of the parameters: it acts, and training does not see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import ConfigError
from rljax.core.agent import Agent, Halves, with_average
from rljax.core.state import State
from rljax.league import branch
from rljax.run.start import start_forked
from tests.run.tiny_runs import TINY, assert_same_state

DECAY = 0.7


def iterations(agent: Any, count: int) -> list[Any]:
    """The first states of a run."""
    step = jax.jit(agent.step)
    states = [jax.jit(agent.init)(jax.random.key(0))]
    for _ in range(count):
        states.append(step(states[-1])[0])
    return states


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_the_average_is_that_of_the_iterates_and_training_is_the_same_without(name: str) -> None:
    config = TINY[name].replace(eval_every=None)
    plain = iterations(rljax.make_agent(config), 4)
    averaged = iterations(rljax.make_agent(config.replace(average_decay=DECAY)), 4)
    expected = [np.asarray(x) for x in jax.tree.leaves(plain[0].params)]
    for without, state in zip(plain, averaged, strict=True):
        leaves = jax.tree.leaves(without.params)
        expected = [DECAY * a + (1 - DECAY) * np.asarray(x) for a, x in zip(expected, leaves, strict=True)]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), without.params, state.params)
        for a, b in zip(expected, jax.tree.leaves(state.average_params), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        assert without.average_params is None


def counting() -> Agent:
    """An agent whose environment counts iterations, and whose parameter is the sum of these counts, one iteration later."""

    def init(key: jax.Array) -> State:
        count = jnp.zeros(())
        return State(params=count, opt_state=(), env_state=count, obs=count, key=key, eval_key=key, iteration=count)

    halves = Halves(
        init=init,
        collect=lambda state: state.replace(env_state=state.env_state + 1),
        update=lambda state: (state.replace(params=state.params + state.env_state), {}),
        join=lambda collected, updated: updated.replace(env_state=collected.env_state),
    )
    return Agent(init, halves.step, act=lambda *args: (args[1], None), config=None, halves=halves)


def test_the_halves_of_a_step_move_the_average_as_the_step_does() -> None:
    agent = with_average(counting(), 0.5)
    halves = agent.halves
    assert halves is not None
    for init, step in ((agent.init, agent.step), (halves.init, halves.step)):
        state, found = init(jax.random.key(0)), []
        for _ in range(4):
            state, _ = step(state)
            found.append((float(state.params), float(state.average_params)))
        assert found == [(0.0, 0.0), (1.0, 0.5), (3.0, 1.75), (6.0, 3.875)]


@pytest.mark.slow
def test_the_average_acts() -> None:
    config = TINY["dqn"].replace(eval_every=None)
    plain, averaged = rljax.make_agent(config), rljax.make_agent(config.replace(average_decay=DECAY))
    state = iterations(averaged, 1)[-1]
    # Parameters whose best actions differ from those of the average everywhere: all values negated.
    state = state.replace(params=jax.tree.map(jnp.negative, state.average_params))
    obs = jax.random.normal(jax.random.key(1), (64, *state.obs.shape[1:]))
    key = jax.random.key(2)
    of_average, _ = averaged.act(state, obs, None, key, True)
    np.testing.assert_array_equal(of_average, plain.act(state.replace(params=state.average_params), obs, None, key, True)[0])
    assert bool(jnp.any(of_average != plain.act(state, obs, None, key, True)[0]))


@pytest.mark.slow
def test_a_run_with_an_average_is_saved_and_a_fork_begins_one(tmp_path: Path) -> None:
    config = TINY["ppo"].replace(average_decay=DECAY)
    state = rljax.fit(config, run_dir=tmp_path / "run").state
    assert_same_state(state, rljax.load_run(tmp_path / "run").state)
    further = rljax.fit(resume=tmp_path / "run", total_timesteps=config.total_timesteps + 64).state
    gap = jax.tree.map(
        lambda a, p, old: a - DECAY * old - (1 - DECAY) * p, further.average_params, further.params, state.average_params
    )
    assert max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(gap)) < 1e-5
    # A fork of a run without an average begins it at the parameters, and trains.
    rljax.fit(config.replace(average_decay=None), run_dir=tmp_path / "plain")
    longer = config.replace(total_timesteps=2 * config.total_timesteps)
    forked = start_forked(tmp_path / "plain", rljax.make_agent(longer), None).state
    jax.tree.map(np.testing.assert_array_equal, forked.average_params, forked.params)
    trained = rljax.fit(longer, fork=tmp_path / "plain", run_dir=tmp_path / "fork").state
    assert any(bool(jnp.any(a != p)) for a, p in zip(*map(jax.tree.leaves, (trained.average_params, forked.params)), strict=True))


@pytest.mark.slow
def test_games_are_played_with_the_average() -> None:
    config = rljax.SelfPlayConfig(env="TicTacToe-v0", num_envs=16, num_steps=16, total_timesteps=256, average_decay=0.5)
    agent = rljax.make_agent(config)
    state = iterations(agent, 1)[-1]
    obs = state.obs[:, 0]
    logits, _ = agent.policy_and_value(state, obs)
    swapped = state.replace(params=state.average_params)
    np.testing.assert_array_equal(logits, rljax.make_agent(config.replace(average_decay=None)).policy_and_value(swapped, obs)[0])
    before = state.replace(average_params=jax.tree.map(jnp.zeros_like, state.params))
    assert bool(jnp.any(logits != agent.policy_and_value(before, obs)[0]))


@pytest.mark.parametrize("decay", [0.0, 1.5, float("nan")])
def test_decays_out_of_range_are_refused(decay: float) -> None:
    with pytest.raises(ConfigError, match="average_decay"):
        TINY["ppo"].replace(average_decay=decay)


def test_a_loop_of_the_parts_has_no_average_and_acts_with_its_parameters() -> None:
    config = TINY["dqn"].replace(eval_every=None, average_decay=DECAY)
    parts = rljax.dqn_parts(config)
    state = rljax.dqn_init(parts, jax.random.key(0))
    key = jax.random.key(1)
    action, _ = rljax.make_agent(config).act(state, state.obs, None, key, True)
    plain, _ = rljax.make_agent(config.replace(average_decay=None)).act(state, state.obs, None, key, True)
    np.testing.assert_array_equal(action, plain)


def test_a_step_of_ones_own_is_refused_since_it_would_not_move_the_average() -> None:
    agent = rljax.make_agent(TINY["ppo"].replace(average_decay=DECAY))
    own = agent._replace(step=lambda state: (state, {}))
    with pytest.raises(ConfigError, match="the agent's step was replaced"):
        rljax.fit(own)


@pytest.mark.slow
def test_a_branch_acts_with_its_own_parameters() -> None:
    config = rljax.SelfPlayConfig(env="TicTacToe-v0", num_envs=16, num_steps=16, total_timesteps=256, average_decay=0.5)
    agent = rljax.make_agent(config)
    given = iterations(agent, 1)[-1].params
    branched = branch(agent, given, jax.random.key(3))
    jax.tree.map(np.testing.assert_array_equal, branched.average_params, branched.params)
