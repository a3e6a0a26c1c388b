"""TargetPick: the right pick in plain Python, the layout of the set, and stated returns by play."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import PPOConfig, make_agent
from rljax.core.contract import check_contract
from rljax.core.errors import ConfigError
from rljax.envs import make_env
from rljax.envs.target_pick import TargetPickParams, kind_return
from tests.envs.play import QUICK, Policy, play, standard_error


def right_pick(obs: dict[str, np.ndarray]) -> int:
    """From one observation, in plain Python."""
    entities = [e for e, there in zip(obs["entities"].tolist(), obs["entity_mask"], strict=True) if there]
    beacon = next(e for e in entities if e[-1] == 1)
    asked = int(np.argmax(obs["query"]))
    candidates = [i for i, e in enumerate(entities) if e[2 + asked] == 1]
    return min(candidates, key=lambda i: (entities[i][0] - beacon[0]) ** 2 + (entities[i][1] - beacon[1]) ** 2)


def any_entity(noise: jax.Array, obs: dict[str, jax.Array], _state: Any) -> jax.Array:
    return jnp.argmax(jnp.where(obs["entity_mask"], noise, -1.0))


def of_the_kind(noise: jax.Array, obs: dict[str, jax.Array], _state: Any) -> jax.Array:
    """Any target of the asked kind."""
    return jnp.argmax(jnp.where(obs["entities"][:, 2:-1] @ obs["query"] > 0, noise, -1.0))


def most_like(direction: Any) -> Policy:
    """The target of the asked kind that lies furthest in a direction of the plane."""

    def policy(_noise: jax.Array, obs: dict[str, jax.Array], _state: Any) -> jax.Array:
        entities = obs["entities"]
        towards = entities[:, :2] @ direction(entities)
        return jnp.argmax(jnp.where(entities[:, 2:-1] @ obs["query"] > 0, towards, -2.0))

    return policy


def at(tree: Any, *index: int) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


def test_rewards_equal_plain_python() -> None:
    env, params = make_env("TargetPick-v0", num_kinds=3)
    played = play(env, params, of_the_kind, 9, num_envs=100)
    np.testing.assert_array_equal(played.lengths, 8)
    for episode in range(100):
        obs = [at(played.first_obs, episode), *(at(played.obs, episode, t) for t in range(7))]
        expected = [float(right_pick(o) == a) for o, a in zip(obs, played.action[episode], strict=False)]
        np.testing.assert_array_equal(played.reward[episode, :8], expected)


@pytest.mark.parametrize(("low", "high"), [(2, 6), (7, 15), (1, 1)])
def test_the_set_is_laid_out_as_stated(low: int, high: int) -> None:
    env, params = make_env("TargetPick-v0", min_targets=low, max_targets=high)
    check_contract(env, params)
    reset = jax.jit(jax.vmap(env.reset, (0, None)))
    obs, state = jax.tree.map(np.asarray, reset(jax.random.split(jax.random.key(1), 6000), params))
    entities, mask, query = obs["entities"], obs["entity_mask"], obs["query"]
    np.testing.assert_array_equal(mask, jax.vmap(env.action_mask, (0, None))(state, params))
    count = mask.sum(1) - 1
    np.testing.assert_array_equal(mask, np.arange(16) <= count[:, None])
    np.testing.assert_allclose(np.bincount(count, minlength=high + 1)[low:] / 6000, 1 / (high - low + 1), atol=0.03)
    np.testing.assert_array_equal(entities[~mask], 0)
    np.testing.assert_allclose(np.hypot(entities[mask][:, 0], entities[mask][:, 1]), 1, atol=1e-5)
    np.testing.assert_array_equal(entities[mask][:, 2:].sum(1), 1)
    np.testing.assert_array_equal(entities[:, :, -1].sum(1), 1)
    np.testing.assert_array_equal(query.sum(1), 1)
    assert (np.einsum("bek,bk->be", entities[:, :, 2:-1], query).sum(1) >= 1).all()
    # No place in the list says anything of what is there, nor which pick is right.
    some = mask.all(0) if low == high else np.arange(16) <= low
    np.testing.assert_allclose((entities[:, :, -1] * (count + 1)[:, None])[:, some].mean(0), 1, atol=0.25)
    picks = np.array([right_pick(at(obs, i)) for i in range(2000)])
    np.testing.assert_allclose([np.mean((picks == e) * (count[:2000] + 1)) for e in np.flatnonzero(some)], 1, atol=0.4)
    np.testing.assert_allclose(entities[:, :2, :2].mean((0, 1)), 0, atol=0.04)


def test_stated_returns() -> None:
    env, params = make_env("TargetPick-v0")
    best = play(env, params, most_like(lambda e: e[:, -1] @ e[:, :2]), 8)
    np.testing.assert_array_equal(best.returns, 8.0)
    by_chance = play(env, params, any_entity, 8, num_envs=4000).returns
    assert np.mean([8 / (n + 1) for n in range(2, 7)]) == pytest.approx(1.749, abs=0.001)
    assert by_chance.mean() == pytest.approx(1.749, abs=4 * standard_error(by_chance))
    assert kind_return(params) == pytest.approx(4.03, abs=0.005)


def test_any_target_of_the_kind_is_right_as_often_as_stated() -> None:
    for num_kinds in (2, 3):
        env, params = make_env("TargetPick-v0", num_kinds=num_kinds)
        returns = play(env, params, of_the_kind, 8, num_envs=2000).returns
        assert returns.mean() == pytest.approx(kind_return(params, num_kinds), abs=4 * standard_error(returns))


@pytest.mark.slow
def test_no_policy_that_does_not_see_the_beacon_gets_more_than_stated() -> None:
    """A target is nearest to the beacon with the chance of its part of the circle, so the largest part is the best pick."""
    env, params = make_env("TargetPick-v0")
    reset = jax.jit(jax.vmap(lambda key: env.reset(key, params)[1]), compiler_options=QUICK)
    states = jax.tree.map(np.asarray, reset(jax.random.split(jax.random.key(2), 20_000)))
    chances = []
    for bearing, kind, asked, present in zip(states.bearing, states.kind, states.asked, states.present, strict=True):
        around = np.sort(bearing[present & (kind == asked)])
        gaps = np.diff(np.append(around, around[0] + 2 * np.pi))
        chances.append((gaps + np.roll(gaps, 1)).max() / (4 * np.pi))
    assert 8 * np.mean(chances) == pytest.approx(4.45, abs=0.05)
    # By the place alone: the target nearest to a fixed point has a larger part than most.
    aside = play(env, params, most_like(lambda _: jnp.array([0.6, -0.8])), 8).returns
    assert kind_return(params) < aside.mean() < 4.45 < env.reward_threshold


def test_a_pick_of_what_is_not_there_gets_nothing() -> None:
    env, params = make_env("TargetPick-v0")
    np.testing.assert_array_equal(play(env, params, lambda *_: jnp.int32(15), 8).returns, 0)


def test_traced_counts_are_parameters_too() -> None:
    env, _ = make_env("TargetPick-v0")

    def count(high: jax.Array) -> jax.Array:
        return env.reset(jax.random.key(0), TargetPickParams(min_targets=high, max_targets=high))[0]["entity_mask"].sum()

    np.testing.assert_array_equal(jax.jit(jax.vmap(count))(jnp.arange(1, 16)), np.arange(2, 17))


@pytest.mark.parametrize("counts", [{"min_targets": 0}, {"max_targets": 16}, {"min_targets": 7}])
def test_impossible_counts_are_refused(counts: dict[str, int]) -> None:
    env, params = make_env("TargetPick-v0", **counts)
    with pytest.raises(ConfigError, match=r"expected 1 <= min_targets <= max_targets <= capacity - 1 = 15"):
        check_contract(env, params)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("randomize", {"max_targets": [3, 16]}, "randomize: TargetPick-v0: min_targets = 2, max_targets = 16: expected 1 <= "),
        (
            "randomize",
            {"min_targets": [2, 5], "max_targets": [4, 9]},
            "randomize: TargetPick-v0: min_targets = 5, max_targets = 4: expected 1 <= ",
        ),
        (
            "curriculum",
            {"type": "uniform", "levels": {"max_targets": [3, 16]}},
            r"curriculum.levels\[1\]: TargetPick-v0: min_targets = 2, max_targets = 16: expected 1 <= ",
        ),
    ],
)
def test_impossible_counts_of_some_episodes_are_refused(field: str, value: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=f"^{told}"):
        make_agent(PPOConfig(env="TargetPick-v0", **{field: value}))


@pytest.mark.parametrize("arguments", [{"capacity": 2}, {"num_kinds": 0}])
def test_bad_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        make_env("TargetPick-v0", **arguments)
