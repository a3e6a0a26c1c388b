"""Streams: seats that take turns against streams of their own, and what PPO learns from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.ppo import Minibatch, PPOParts, ppo_learn, ppo_loss, with_standard_advantages
from rljax.collect.returns import gae, upgo, vtrace
from rljax.collect.streams import Streams, of_seat, own_steps, with_seat

SEATS = 3


def seats_taking_turns(length: int = 60, streams: int = 2) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """One-hot seats `[T, S, P]`, some steps nobody's, and random transitions of the steps, `[T, S]`."""
    rng = np.random.default_rng(0)
    seat = rng.integers(0, SEATS + 1, (length, streams))
    arrays = {name: rng.normal(size=seat.shape).astype(np.float32) for name in ("reward", "value", "next_value")}
    arrays |= {"terminated": rng.random(seat.shape) < 0.1, "truncated": rng.random(seat.shape) < 0.1}
    return seat[..., None] == np.arange(SEATS), arrays


KINDS = {
    "gae": lambda *x: gae(*x[:5], 0.9, 0.8, *x[5:]),
    "upgo": lambda *x: upgo(*x[:5], 0.9, *x[5:]),
    # The next value stands for the log ratio of the policies.
    "vtrace": lambda *x: jnp.stack(vtrace(*x[:5], x[2], 0.9, 1.0, 0.8, 0.7, *x[5:]), axis=-1),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_seats_that_take_turns_are_as_streams_of_their_own(kind: str) -> None:
    seat, arrays = seats_taking_turns()
    function = KINDS[kind]
    together = np.asarray(jax.jit(function)(*arrays.values(), seat))
    compared = 0
    for stream in range(seat.shape[1]):
        for who in range(SEATS):
            mine = seat[:, stream, who]
            alone = function(*(jnp.asarray(x[mine, stream]) for x in arrays.values()))
            np.testing.assert_allclose(together[mine, stream], alone, rtol=1e-5, atol=1e-5)
            compared += mine.sum()
    assert compared > 60


@pytest.mark.slow
def test_own_steps_are_the_learners_own_and_each_comes_once() -> None:
    own = jnp.arange(100) % 3 == 0
    keys = jax.random.split(jax.random.key(0), 2000)
    chosen = np.asarray(jax.vmap(lambda key: own_steps(jnp.arange(100), own, key, 30))(keys))
    assert all(len(set(row)) == 30 for row in chosen.tolist())
    assert (chosen % 3 == 0).all()
    # Of 34, each is left out as often as any other: 4 of 34 times, here within 4 standard errors.
    taken = np.bincount(chosen.reshape(-1), minlength=100)[::3] / len(keys)
    np.testing.assert_allclose(taken, 30 / 34, atol=4 * np.sqrt(30 / 34 * 4 / 34 / len(keys)))
    # Fewer than wanted: some come again, and no one else's do.
    again = own_steps(jnp.arange(100), own, jax.random.key(0), 40)
    assert bool(jnp.all(again % 3 == 0))
    assert len(set(np.asarray(again).tolist())) == 34


WHOLE = rljax.PPOConfig(
    env="CartPole-v1",
    num_envs=4,
    num_steps=16,
    num_minibatches=1,
    num_epochs=1,
    total_timesteps=64,
    normalize_advantages=False,
)
"""The loss gets the whole rollout, with advantages as they are."""


@pytest.mark.slow
def test_upgoing_advantages_of_ppo_are_added_to_those_of_gae_and_not_to_the_targets() -> None:
    def seen(upgo_coef: float | None) -> tuple[Any, Any]:
        parts = rljax.ppo_parts(WHOLE.replace(upgo_coef=upgo_coef))
        state, rollout = rljax.ppo_collect(parts, rljax.ppo_init(parts, jax.random.key(0)))

        def loss(parts: PPOParts, params: Any, batch: Minibatch) -> tuple[jax.Array, Any]:
            return 0.0 * jnp.sum(parts.policy.apply(params, batch.obs)[1]), {
                "advantage": jnp.sum(batch.advantage * batch.log_prob),
                "target": jnp.sum(batch.target * batch.log_prob),
            }

        return rollout, rljax.ppo_update(parts, state, rollout, loss)[1]

    (rollout, plain), (_, with_upgo) = seen(None), seen(0.5)
    steps = rollout.steps
    returns = upgo(steps.reward, rollout.value, rollout.next_value, steps.terminated, steps.truncated, WHOLE.gamma)
    added = 0.5 * jnp.sum((returns - rollout.value) * rollout.log_prob)
    assert abs(float(added)) > 1.0
    assert float(with_upgo["advantage"] - plain["advantage"]) == pytest.approx(float(added), rel=1e-4)
    assert float(with_upgo["target"]) == pytest.approx(float(plain["target"]), rel=1e-6)


@pytest.mark.slow
def test_nothing_is_learned_from_steps_that_no_seat_took() -> None:
    """A player that is out of a game has an advantage of 0, and its value as target."""
    parts = rljax.ppo_parts(WHOLE.replace(upgo_coef=0.5))
    state, rollout = rljax.ppo_collect(parts, rljax.ppo_init(parts, jax.random.key(0)))
    steps = rollout.steps
    out = jnp.arange(16)[:, None] % 3 == jnp.zeros(4, jnp.int32)
    streams = Streams(
        obs=steps.obs,
        action=steps.action,
        mask=None,
        reward=jnp.where(out, 7.0, steps.reward),
        terminated=steps.terminated,
        truncated=steps.truncated,
        log_prob=rollout.log_prob,
        seat=~out[..., None],
    )

    def loss(parts: PPOParts, params: Any, batch: Minibatch) -> tuple[jax.Array, Any]:
        return 0.0 * jnp.sum(parts.policy.apply(params, batch.obs)[1]), {
            "unlearned": jnp.sum((batch.advantage == 0.0) & (batch.target == batch.value), dtype=jnp.float32)
        }

    rate = jnp.float32(0.0)
    *_, metrics = ppo_learn(
        parts, state.params, state.opt_state, streams, rollout.value, rollout.next_value, jax.random.key(1), rate, loss
    )
    assert metrics["unlearned"] == jnp.sum(out)


@pytest.mark.slow
def test_steps_that_are_not_ones_own_do_not_enter_the_loss() -> None:
    """PPO's loss and metrics with weights are those of the own steps alone."""
    parts = rljax.ppo_parts(rljax.PPOConfig(env="CartPole-v1", num_envs=4, num_steps=16, dual_clip=3.0))
    state, rollout = rljax.ppo_collect(parts, rljax.ppo_init(parts, jax.random.key(0)))
    steps = rollout.steps
    rng = np.random.default_rng(0)
    noise = [jnp.asarray(rng.normal(size=(16, 4)), jnp.float32) for _ in range(3)]
    batch = Minibatch(
        obs=steps.obs,
        action=steps.action,
        mask=None,
        log_prob=rollout.log_prob + 0.3 * noise[0],
        value=rollout.value,
        advantage=noise[1],
        target=noise[2],
    )
    own = rng.random((16, 4)) < 0.4
    loss, metrics = ppo_loss(parts, state.params, batch._replace(own=jnp.asarray(own)))
    alone, expected = ppo_loss(parts, state.params, jax.tree.map(lambda x: x[own], batch))
    np.testing.assert_allclose(loss, alone, rtol=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    standard = with_standard_advantages(batch._replace(own=jnp.asarray(own))).advantage[own]
    np.testing.assert_allclose(standard, (noise[1][own] - noise[1][own].mean()) / noise[1][own].std(), rtol=1e-4, atol=1e-5)
    equal = with_standard_advantages(batch._replace(advantage=jnp.full((16, 4), 1 / 3).at[0, 0].add(3e-8)))
    np.testing.assert_array_equal(equal.advantage, 0.0)
    broken = with_standard_advantages(batch._replace(advantage=noise[1].at[0, 0].set(jnp.nan)))
    assert np.isnan(broken.advantage).all()
    # An action that has become exp(90) times as likely: its ratio is bounded, so that the gradient is finite.
    apart = batch._replace(log_prob=batch.log_prob.at[0, 0].add(-90.0))
    for advantage in (1.0, -1.0, 0.0):
        weighed = apart._replace(advantage=batch.advantage.at[0, 0].set(advantage))
        slope = jax.grad(lambda params: ppo_loss(parts, params, weighed)[0])(state.params)  # noqa: B023
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(slope))
    nobody = ppo_loss(parts, state.params, batch._replace(own=jnp.zeros((16, 4), bool)))
    assert float(nobody[0]) == 0.0


@pytest.mark.slow
def test_a_learner_without_a_step_of_its_own_learns_nothing() -> None:
    parts = rljax.ppo_parts(WHOLE)
    state, rollout = rljax.ppo_collect(parts, rljax.ppo_init(parts, jax.random.key(0)))
    steps = rollout.steps

    def learned(own: jax.Array) -> Any:
        streams = Streams(
            obs=steps.obs,
            action=steps.action,
            mask=None,
            reward=steps.reward,
            terminated=steps.terminated,
            truncated=steps.truncated,
            log_prob=rollout.log_prob,
            own=own,
        )
        values = (rollout.value, rollout.next_value)
        rate = jnp.float32(0.01)
        return ppo_learn(parts, state.params, state.opt_state, streams, *values, jax.random.key(1), rate, size=32)[0]

    of_nobody, of_some = jax.jit(learned)(jnp.zeros((16, 4), bool)), jax.jit(learned)(jnp.zeros((16, 4), bool).at[3].set(True))
    jax.tree.map(np.testing.assert_array_equal, of_nobody, state.params)
    assert not np.allclose(jax.tree.leaves(of_some)[-1], jax.tree.leaves(state.params)[-1])


def test_the_part_of_a_seat_is_put_back_where_it_was() -> None:
    seat, _ = seats_taking_turns()
    tree = {"a": jnp.arange(60 * 2 * SEATS * 5.0).reshape(120, SEATS, 5)}
    taken = jnp.asarray(seat.reshape(120, SEATS))
    part = of_seat(tree, taken)["a"]
    for i in range(120):
        who = np.flatnonzero(taken[i])
        np.testing.assert_array_equal(part[i], tree["a"][i, who[0]] if len(who) else 0.0)
    back = with_seat(tree, taken, {"a": part + 1.0})["a"]
    np.testing.assert_array_equal(back - tree["a"], np.broadcast_to(np.asarray(taken)[..., None], back.shape))
