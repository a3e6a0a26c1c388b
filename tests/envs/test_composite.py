"""Composite: the optimum of joint and of independent heads by other means, the mask of pairs, and returns by play."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from rljax.core.contract import check_contract
from rljax.envs import make_env
from rljax.envs.composite import CompositeState, factorised_optimum, joint_optimum
from tests.envs.play import QUICK, Policy, legal_action, play, standard_error

ACTIONS = np.array(list(itertools.product(range(4), range(4), range(2))), np.int32)


def agrees(shift: int) -> np.ndarray:
    """Which of the 32 joint actions agree, in plain Python."""
    return np.array([t == (v + shift) % 4 and a == (v + shift) % 2 for v, t, a in ACTIONS.tolist()])


def joint(probabilities: np.ndarray) -> Policy:
    """A policy without memory that plays the 32 joint actions with these probabilities, `[4, 32]` by shift."""

    def policy(noise: jax.Array, obs: jax.Array, _state: object) -> dict[str, jax.Array]:
        chances = jnp.asarray(probabilities, jnp.float32)[jnp.argmax(obs)]
        verb, target, amount = jnp.asarray(ACTIONS)[jnp.searchsorted(jnp.cumsum(chances), noise[0] * 0.99999)]
        return {"verb": verb, "target": target, "amount": amount}

    return policy


def value(probabilities: np.ndarray, shift: int, num_steps: int) -> float:
    """The mean return of a policy without memory: the chance of each agreeing action to be played at all."""
    return float(np.sum(1 - (1 - probabilities[agrees(shift)]) ** num_steps))


def factorised(verb: np.ndarray, target: np.ndarray, amount: np.ndarray) -> np.ndarray:
    return np.einsum("v,t,a->vta", verb, target, amount).ravel()


def test_rewards_equal_plain_python() -> None:
    env, params = make_env("Composite-v0", num_steps=12)
    played = play(env, params, joint(np.where([agrees(s) for s in range(4)], 0.2, 0.2 / 28)), 12, num_envs=200)
    shifts = played.first_obs.argmax(1)
    assert set(shifts) == {0, 1, 2, 3}
    for episode, shift in enumerate(shifts):
        paid = set()
        for t in range(12):
            v, target, amount = (int(played.action[head][episode, t]) for head in ("verb", "target", "amount"))
            pays = target == (v + shift) % 4 and amount == (v + shift) % 2 and v not in paid
            assert played.reward[episode, t] == float(pays)
            paid |= {v} if pays else set()
    np.testing.assert_array_equal(played.lengths, 12)


def test_observations_show_the_shift_and_not_what_has_paid() -> None:
    env, params = make_env("Composite-v0")
    played = play(env, params, joint(np.full((4, 32), 1 / 32)), 4)
    np.testing.assert_array_equal(played.obs, np.repeat(played.first_obs[:, None], 4, 1))
    np.testing.assert_allclose(played.first_obs.mean(0), 0.25, atol=0.06)


def test_joint_optimum_by_numerical_optimisation() -> None:
    for num_steps in (1, 2, 4, 8):

        def loss(logits: np.ndarray, num_steps: int = num_steps) -> float:
            return -value(np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum(), 1, num_steps)

        rng = np.random.default_rng(0)
        best = max(-minimize(loss, rng.normal(size=32)).fun for _ in range(3))
        assert best <= joint_optimum(num_steps) + 1e-6
        assert best == pytest.approx(joint_optimum(num_steps), abs=2e-3)
    assert joint_optimum(4) == 175 / 64


@pytest.mark.slow
def test_no_independent_heads_do_better_than_stated() -> None:
    """Numerical optimisation over the chances of the three heads, from many starts."""
    rng = np.random.default_rng(0)

    def heads(logits: np.ndarray) -> list[np.ndarray]:
        return [np.exp(part - part.max()) / np.exp(part - part.max()).sum() for part in np.split(logits, [4, 8])]

    found = [minimize(lambda x: -value(factorised(*heads(x)), 1, 4), 2 * rng.normal(size=10)).fun for _ in range(30)]
    assert -min(found) == pytest.approx(factorised_optimum(4), abs=1e-4)
    assert factorised_optimum(4) == 175 / 128


@pytest.mark.parametrize("num_steps", range(1, 12))
def test_the_bound_on_independent_heads_is_the_greatest_over_the_simplex(num_steps: int) -> None:
    """The bound maximises over x >= 0 with sum 1; here over a grid of them, to a remainder of the function's slope."""
    grid = np.arange(61) / 60
    a, b, c = np.meshgrid(grid, grid, grid, indexing="ij")
    simplex = np.stack([a, b, c, 1 - a - b - c], -1)[a + b + c <= 1 + 1e-9]
    greatest = np.sum(1 - (1 - np.maximum(simplex, 0) ** 2) ** num_steps, axis=1).max()
    assert greatest <= factorised_optimum(num_steps) + 1e-9
    assert greatest == pytest.approx(factorised_optimum(num_steps), abs=1e-9)


@pytest.mark.parametrize("num_steps", range(3, 8))
def test_two_verbs_of_one_amount_reach_the_bound_which_is_half_of_the_optimum(num_steps: int) -> None:
    half = np.array([0.5, 0, 0.5, 0])
    assert value(factorised(half, half, np.array([1.0, 0.0])), 0, num_steps) == pytest.approx(factorised_optimum(num_steps))
    assert factorised_optimum(num_steps) == pytest.approx(joint_optimum(num_steps) / 2)


@pytest.mark.slow
def test_stated_returns_by_play() -> None:
    env, params = make_env("Composite-v0")
    half = np.array([0.5, 0, 0.5, 0])
    halves = [factorised(half, np.roll(half, s), np.array([1.0, 0.0]) if s % 2 == 0 else np.array([0.0, 1.0])) for s in range(4)]
    stated = {
        joint_optimum(4): np.array([agrees(s) / 4 for s in range(4)]),
        factorised_optimum(4): np.array(halves),
        4 * (1 - (31 / 32) ** 4): np.full((4, 32), 1 / 32),
    }
    for expected, probabilities in stated.items():
        returns = play(env, params, joint(probabilities), 4, num_envs=8000).returns
        assert returns.mean() == pytest.approx(expected, abs=4 * standard_error(returns))
    assert factorised_optimum(4) < env.reward_threshold < joint_optimum(4)


def test_what_remembers_gets_all_and_what_repeats_gets_one() -> None:
    env, params = make_env("Composite-v0")

    def act(verb: jax.Array, shift: jax.Array) -> dict[str, jax.Array]:
        return {"verb": verb, "target": (verb + shift) % 4, "amount": (verb + shift) % 2}

    np.testing.assert_array_equal(play(env, params, lambda _noise, _obs, s: act(s.time % 4, s.shift), 4).returns, 4)
    np.testing.assert_array_equal(play(env, params, lambda _noise, _obs, s: act(s.shift, s.shift), 4).returns, 1)


def test_the_mask_of_pairs_allows_exactly_what_agrees() -> None:
    env, params = make_env("Composite-v0", masked=True)
    check_contract(env, params)
    assert make_env("Composite-v0")[0].action_mask(None, params) is None
    for shift in range(4):
        state = CompositeState(jnp.int32(shift), jnp.zeros(4, bool), jnp.int32(0))
        mask = np.asarray(env.action_mask(state, params))
        assert mask.shape == (10, 10)
        assert mask.diagonal().all()
        verb, target, amount = ACTIONS.T
        legal = mask[verb, 4 + target] & mask[verb, 8 + amount] & mask[4 + target, 8 + amount]
        np.testing.assert_array_equal(legal, agrees(shift))
        # Nothing that has been chosen legally leaves a later head without a choice.
        assert mask[:4, 4:8].any(1).all()
        assert (mask[verb, 4 + target][:, None] <= (mask[verb, 8:10].T & mask[4 + target, 8:10].T).any(0)[:, None]).all()


def test_random_actions_that_the_mask_of_pairs_allows_have_the_joint_optimum() -> None:
    env, params = make_env("Composite-v0", masked=True)

    def episode(key: jax.Array) -> jax.Array:
        def step(state: CompositeState, key: jax.Array) -> tuple[CompositeState, jax.Array]:
            return env.step_env(key, state, legal_action(env, key, state, params), params)[1:3]

        return jax.lax.scan(step, env.reset(key, params)[1], jax.random.split(key, 4))[1].sum()

    returns = jax.jit(jax.vmap(episode), compiler_options=QUICK)(jax.random.split(jax.random.key(0), 4000))
    assert returns.min() >= 1
    assert returns.mean() == pytest.approx(joint_optimum(4), abs=4 * standard_error(np.asarray(returns)))
