"""Streams: seats that take turns against streams of their own, and what PPO learns from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import ConfigError
from rljax.algos.ppo import Minibatch, PPOParts, ppo_learn
from rljax.collect.returns import gae, upgo
from rljax.collect.streams import Streams, own_steps

SEATS = 3


def seats_taking_turns(length: int = 60, streams: int = 2) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """One-hot seats `[T, S, P]`, some steps nobody's, and random transitions of the steps, `[T, S]`."""
    rng = np.random.default_rng(0)
    seat = rng.integers(0, SEATS + 1, (length, streams))
    arrays = {name: rng.normal(size=seat.shape).astype(np.float32) for name in ("reward", "value", "next_value")}
    arrays |= {"terminated": rng.random(seat.shape) < 0.1, "truncated": rng.random(seat.shape) < 0.1}
    return seat[..., None] == np.arange(SEATS), arrays


@pytest.mark.parametrize("kind", ["gae", "upgo"])
def test_seats_that_take_turns_are_as_streams_of_their_own(kind: str) -> None:
    seat, arrays = seats_taking_turns()
    function = (lambda *x: gae(*x[:5], 0.9, 0.8, *x[5:])) if kind == "gae" else (lambda *x: upgo(*x[:5], 0.9, *x[5:]))
    together = np.asarray(jax.jit(function)(*arrays.values(), seat))
    compared = 0
    for stream in range(seat.shape[1]):
        for who in range(SEATS):
            mine = seat[:, stream, who]
            alone = function(*(jnp.asarray(x[mine, stream]) for x in arrays.values()))
            np.testing.assert_allclose(together[mine, stream], alone, rtol=1e-5, atol=1e-5)
            compared += mine.sum()
    assert compared > 60


def test_own_steps_are_the_learners_own_and_each_comes_once() -> None:
    own = jnp.arange(100) % 3 == 0
    chosen = own_steps(jnp.arange(100), own, jax.random.key(0), 30)
    assert len(set(np.asarray(chosen).tolist())) == 30
    assert bool(jnp.all(chosen % 3 == 0))
    assert not bool(jnp.all(jnp.diff(chosen) > 0))  # in random order
    # Fewer than wanted: the first come again, and no one else's do.
    again = own_steps(jnp.arange(100), own, jax.random.key(0), 40)
    assert bool(jnp.all(again % 3 == 0))
    assert len(set(np.asarray(again).tolist())) == 34


def test_upgoing_advantages_of_ppo_are_added_to_those_of_gae_and_not_to_the_targets() -> None:
    config = rljax.PPOConfig(env="CartPole-v1", num_envs=4, num_steps=16, num_minibatches=1, num_epochs=1, total_timesteps=64)

    def seen(upgo_coef: float | None) -> tuple[Any, Any]:
        parts = rljax.ppo_parts(config.replace(upgo_coef=upgo_coef))
        state, rollout = rljax.ppo_collect(parts, rljax.ppo_init(parts, jax.random.key(0)))

        def loss(parts: PPOParts, params: Any, batch: Minibatch) -> tuple[jax.Array, Any]:
            return 0.0 * jnp.sum(parts.policy.apply(params, batch.obs)[1]), {
                "advantage": jnp.sum(batch.advantage * batch.log_prob),
                "target": jnp.sum(batch.target * batch.log_prob),
            }

        return rollout, rljax.ppo_update(parts, state, rollout, loss)[1]

    (rollout, plain), (_, with_upgo) = seen(None), seen(0.5)
    steps = rollout.steps
    returns = upgo(steps.reward, rollout.value, rollout.next_value, steps.terminated, steps.truncated, config.gamma)
    added = 0.5 * jnp.sum((returns - rollout.value) * rollout.log_prob)
    assert abs(float(added)) > 1.0
    assert float(with_upgo["advantage"] - plain["advantage"]) == pytest.approx(float(added), rel=1e-4)
    assert float(with_upgo["target"]) == pytest.approx(float(plain["target"]), rel=1e-6)


def test_nothing_is_learned_from_steps_that_no_seat_took() -> None:
    """A player that is out of a game has an advantage of 0, and its value as target."""
    parts = rljax.ppo_parts(
        rljax.PPOConfig(env="CartPole-v1", num_envs=4, num_steps=16, num_minibatches=1, num_epochs=1, upgo_coef=0.5)
    )
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
    with pytest.raises(ConfigError, match=r"streams\.own: needs a size"):
        ppo_learn(
            parts,
            state.params,
            state.opt_state,
            streams._replace(own=out),
            rollout.value,
            rollout.next_value,
            jax.random.key(1),
            rate,
        )
