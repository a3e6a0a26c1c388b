"""Scouting: beliefs by counting, the best play by brute force over plans of looking, and when a trained policy looks."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.errors import ConfigError
from rljax.envs import make_env
from rljax.envs.scouting import Scouting, ScoutingParams, best_play
from rljax.run.reproduce.playing.scouting import late_looks, scout
from tests.envs.play import Policy, play, standard_error, uniform


def by_belief(look_at: tuple[int, ...]) -> Policy:
    """Policy that looks at these steps, and gives the likeliest answer at all others."""

    def act(_noise: jax.Array, obs: jax.Array, state: Any) -> jax.Array:
        return jnp.where(jnp.isin(state.time, jnp.array([-1, *look_at])), len(obs) - 1, jnp.argmax(obs[:-1]))

    return act


def test_the_belief_is_the_share_of_episodes_with_each_plan() -> None:
    env, params = make_env("Scouting-v0", change=0.2)
    played = play(env, params, by_belief((1, 4)), 8, num_envs=6000)
    for t in range(8):
        belief, plan, seen = played.obs[:, t, :3], played.state.plan[:, t], played.state.seen[:, t]
        entropy = -np.sum(belief * np.log(belief), axis=1)
        np.testing.assert_allclose(played.info["belief_entropy"][:, t], entropy, rtol=1e-4)
        if t == 0:
            np.testing.assert_allclose(belief, 1 / 3, rtol=1e-6)
            continue
        share = np.mean(plan == seen)
        kept = belief[np.arange(6000), seen]
        np.testing.assert_allclose(kept, kept[0], rtol=1e-5)
        assert share == pytest.approx(kept[0], abs=4 * np.sqrt(0.25 / 6000))
    assert (played.info["metrics"]["looks"][:, -1] == 2).all()


@pytest.mark.parametrize(
    ("changes", "looks"),
    [
        ({}, 1),
        ({"depends": False}, 0),
        ({"look_cost": 4.0}, 0),
        ({"change": 0.0}, 1),
        ({"change": 2 / 3}, 0),
        ({"look_cost": -0.4}, 2),
    ],
)
def test_the_best_play_equals_brute_force(changes: dict[str, float], looks: int) -> None:
    params = ScoutingParams(**changes)  # type: ignore[arg-type]
    kept = 1 - params.change * 3 / 2

    def value(at: tuple[int, ...]) -> float:
        total, since = 0.0, 0
        for t in range(8):
            if t in at:
                total, since = total - params.look_cost, 1
            else:
                total += 1.0 if not params.depends else 1 / 3 + 2 / 3 * kept**since if since else 1 / 3
                since += since > 0
        return total

    values = {at: value(at) for n in range(9) for at in itertools.combinations(range(8), n)}
    best = max(values.values())
    assert best_play(Scouting(), params) == (pytest.approx(best), looks)
    assert looks == min(len(at) for at, found in values.items() if found > best - 1e-9)


def test_stated_returns_by_play() -> None:
    env, params = make_env("Scouting-v0")
    assert best_play(env, params)[0] == pytest.approx(5.69, abs=0.005)
    returns = play(env, params, by_belief((0,)), 8, num_envs=4000).returns
    assert returns.mean() == pytest.approx(best_play(env, params)[0], abs=4 * standard_error(returns))
    without = play(env, params, by_belief(()), 8).returns
    assert without.mean() == pytest.approx(8 / 3, abs=4 * standard_error(without))
    assert play(env, params, uniform(4), 10).lengths.tolist() == [8] * 1000


def test_a_hidden_plan_needs_two() -> None:
    with pytest.raises(ConfigError, match="num_plans = 1"):
        make_env("Scouting-v0", num_plans=1)


ARMS = {"depends": ({}, False), "does not": ({"depends": False}, False), "bonus": ({"depends": False}, True)}


@pytest.mark.long
def test_a_trained_policy_looks_only_where_the_answer_depends_on_it_or_a_bonus_pays() -> None:
    looks, returns = {}, {}
    for arm, (env_params, bonus) in ARMS.items():
        agent = rljax.make_agent(scout(env_params, bonus))
        result = jax.jit(jax.vmap(rljax.make_train(agent)))(jax.random.split(jax.random.key(0), 2))
        looks[arm] = late_looks(result.metrics)
        play = jax.vmap(lambda state, agent=agent: rljax.evaluate(agent, state, jax.random.key(1), 200).mean())
        returns[arm] = np.asarray(jax.jit(play)(result.state))
    assert (returns["depends"] > 5.3).all()
    assert (returns["does not"] > 7.9).all()
    assert (np.abs(looks["depends"] - 1) < 0.5).all()
    assert (looks["does not"] < 0.6).all()
    assert (looks["bonus"] > 1.0).all()
