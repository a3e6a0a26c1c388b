"""Dreamer must learn, and know its world: the behaviour that losses alone do not show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.dreamer import DreamerParts, dreamer_parts
from rljax.algos.dreamer_openloop import open_loop, shuffled_actions
from rljax.algos.dreamer_replay import Replayed, replayed_as_seen
from rljax.collect.replay import sample_windows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SEEDS = 5


class Trained(NamedTuple):
    """`state` and `curve` (greedy returns of the evaluations in training) have a leading axis of seeds."""

    parts: DreamerParts
    state: Any
    curve: np.ndarray
    final: np.ndarray
    metrics: dict[str, np.ndarray]


def trained(config: rljax.DreamerConfig, seeds: int, episodes: int = 50) -> Trained:
    agent, keys = rljax.make_agent(config), jax.random.split(jax.random.key(config.seed), seeds)
    result = jax.jit(jax.vmap(rljax.make_train(config)))(keys)
    play = jax.jit(jax.vmap(lambda state, key: jnp.mean(rljax.evaluate(agent, state, key, episodes))))
    metrics = jax.tree.map(np.asarray, result.metrics)
    curve = metrics["eval/return"]
    return Trained(
        dreamer_parts(config), result.state, curve[:, ~np.isnan(curve[0])], np.asarray(play(result.state, keys)), metrics
    )


def shown(name: str, config: rljax.DreamerConfig, run: Trained) -> str:
    returns = ", ".join(f"{x:.1f}" for x in run.final)
    return f"| `{name}` | {config.total_timesteps:,} | {returns} |"


def test_cartpole_is_learned_and_foreseen(figure: Callable[[str], None]) -> None:
    """Half the preset's budget. One test and not several with a fixture, which every process of a run would train anew."""
    cartpole = trained(rljax.load_config("cartpole_dreamer_debug", total_timesteps=6_000), SEEDS)
    figure(shown("cartpole_dreamer_debug", cartpole.parts.config, cartpole))
    figure(f"cartpole_dreamer_debug, every evaluation: {cartpole.curve.round().astype(int).tolist()}")
    check_open_loop(cartpole, figure)
    check_entropy(cartpole)
    # Random actions have a mean return of about 20, an untrained greedy policy one of 9.
    assert (cartpole.final >= 50.0).all(), cartpole.final


def rows_of(run: Trained, seed: int, count: int = 256) -> tuple[Any, Replayed]:
    """A seed's state and `count` sequences of its buffer."""
    state = jax.tree.map(lambda x: x[seed], run.state)
    parts = run.parts
    bits = jax.random.bits(jax.random.key(7), (count,))
    places = sample_windows(state.replay, bits, parts.config.window)
    return state, replayed_as_seen(parts.networks.rssm, state, places, parts.config.batch_length)


def check_open_loop(cartpole: Trained, figure: Callable[[str], None]) -> None:
    """5 and 15 steps ahead, against the last frame and shuffled actions.

    A model that is given the action of the wrong step has no more to say than the control.
    """
    for seed in range(SEEDS):
        state, batch = rows_of(cartpole, seed)
        other = shuffled_actions(batch, 5, jax.random.key(1))
        run = jax.jit(lambda params, batch, actions: open_loop(cartpole.parts, params, batch, 5, jax.random.key(0), actions))
        true, control = run(state.params, batch, batch.action), run(state.params, batch, other)
        for steps in (5, 15):
            model, last, shuffled = (
                float(jnp.mean(error[steps - 1], where=true.valid[steps - 1]))
                for error in (true.error, true.copy_last_error, control.error)
            )
            if seed == 0:
                figure(f"open loop, {steps} steps ahead: {model:.4f}; copy-last {last:.4f}; shuffled actions {shuffled:.4f}")
            assert model < 0.7 * last, (seed, steps, model, last)
            assert model < 0.7 * shuffled, (seed, steps, model, shuffled)


def check_entropy(cartpole: Trained) -> None:
    """With a hundredth of the uniform distribution in it, that of a policy which is sure everywhere is 0.0315 nats."""
    entropy = cartpole.metrics["train/entropy"][:, -10:].mean(1)
    assert (entropy > 0.045).all(), entropy


@pytest.mark.parametrize("variant", ["r2dreamer", "infonce"])
def test_every_representation_learns_without_a_decoder(variant: str, figure: Callable[[str], None]) -> None:
    """Random actions have a mean return of about 20, an untrained greedy policy one of 9."""
    config = rljax.load_config(f"cartpole_{variant}")
    run = trained(config, 1)
    figure(shown(f"cartpole_{variant}", config, run))
    assert run.final[0] >= 60.0, (run.final, run.curve)
