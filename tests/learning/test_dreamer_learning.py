"""Dreamer must learn, and know its world: the behaviour that losses alone do not show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.dreamer.dreamer import DreamerParts, dreamer_parts, loss_noise
from rljax.algos.dreamer.losses import imagine, world_model_loss
from rljax.algos.dreamer.openloop import open_loop, shuffled_actions
from rljax.algos.dreamer.replay import Replayed, replayed_normalized
from rljax.collect.replay import sample_windows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SEEDS = 2


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


@pytest.mark.long
def test_cartpole_is_learned_and_foreseen(figure: Callable[[str], None]) -> None:
    """A fifth of the preset's budget. One test and not several with a fixture, which every process of a run would train anew."""
    cartpole = trained(rljax.load_config("cartpole_dreamer_debug", total_timesteps=2_600, eval_every=650), SEEDS)
    figure(shown("cartpole_dreamer_debug", cartpole.parts.config, cartpole))
    figure(f"cartpole_dreamer_debug, every evaluation: {cartpole.curve.round().astype(int).tolist()}")
    check_open_loop(cartpole, figure)
    check_rewards_and_ends(cartpole, figure)
    check_entropy(cartpole)
    # Random actions have a mean return of about 20, an untrained greedy policy one of 9.
    best = np.maximum(cartpole.curve.max(axis=1), cartpole.final)
    assert (best >= 100.0).all(), cartpole.curve
    assert (best >= 150.0).any(), cartpole.curve


def rows_of(run: Trained, seed: int, count: int = 256, length: int = 24) -> tuple[Any, Replayed]:
    """A seed's state and `count` sequences of its buffer."""
    state = jax.tree.map(lambda x: x[seed], run.state)
    parts = run.parts
    bits = jax.random.bits(jax.random.key(7), (count,))
    places = sample_windows(state.replay, bits, length + 1)
    return state, replayed_normalized(parts.networks.rssm, state, places, length)


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


def check_rewards_and_ends(cartpole: Trained, figure: Callable[[str], None]) -> None:
    """The imagined mean reward is within 10 % of the replayed one; ends are told from the rest, and as likely as predicted."""
    parts = cartpole.parts
    predicted, went_on = [], []
    for seed in range(SEEDS):
        state, batch = rows_of(cartpole, seed, 512)
        length, count = batch.reward.shape
        wide = parts._replace(config=parts.config.replace(batch_size=count, batch_length=length, train_ratio=count * length / 2))
        noise = loss_noise(wide, jax.random.key(3))
        _, latents, _ = world_model_loss(parts, state.params, state, batch, noise)
        cont = jax.nn.sigmoid(parts.networks.apply("cont", state.params, latents.feature)[..., 0])
        starts = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), latents)
        ahead = imagine(parts, state.params, starts, noise)
        reward = float(jnp.mean(rljax.TwoHot().decode(parts.networks.apply("reward", state.params, ahead.feature[1:]))))
        # Rows that begin an episode have the reward 0 of nothing done, which imagination never visits.
        had = float(jnp.mean(batch.reward, where=~batch.is_first))
        assert int(batch.is_terminal.sum()) > 20
        assert reward == pytest.approx(had, rel=0.1)
        predicted.append(np.asarray(cont).ravel() / parts.config.gamma)
        went_on.append(~np.asarray(batch.is_terminal).ravel())
    cont, alive = np.concatenate(predicted), np.concatenate(went_on)
    ends, others = cont[~alive].mean(), cont[alive].mean()
    figure(f"imagined reward {reward:.3f}, replayed {had:.3f}; going on predicted at ends {ends:.3f}, elsewhere {others:.4f}")
    unsure = [(low, (cont >= low) & (cont < high)) for low, high in ((0.0, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 0.98))]
    table = [(cont[rows].mean(), alive[rows].mean(), rows.sum()) for _, rows in unsure if rows.sum() >= 50]
    figure("going on, predicted and as it was: " + ", ".join(f"{a:.2f} {b:.2f} (of {n})" for a, b, n in table))
    assert ends < 0.9
    assert others > 0.98
    assert len(table) >= 2
    assert max(abs(a - b) for a, b, _ in table) < 0.2


def check_entropy(cartpole: Trained) -> None:
    """With a hundredth of the uniform distribution in it, that of a policy which is sure everywhere is 0.0315 nats."""
    entropy = cartpole.metrics["train/entropy"][:, -10:].mean(1)
    assert (entropy > 0.045).all(), entropy


@pytest.mark.long
@pytest.mark.parametrize(("variant", "steps"), [("r2dreamer", 2_000), ("infonce", 2_000), ("dreamerpro", 2_500)])
def test_every_representation_learns_without_a_decoder(variant: str, steps: int, figure: Callable[[str], None]) -> None:
    """Random actions have a mean return of about 20, an untrained greedy policy one of 9."""
    config = rljax.load_config(f"cartpole_{variant}", total_timesteps=steps)
    run = trained(config, 1)
    figure(shown(f"cartpole_{variant}", config, run))
    assert max(*run.curve[0], run.final[0]) >= 60.0, (run.final, run.curve)


@pytest.mark.long
def test_continuous_actions_are_learned_and_rewards_foreseen(figure: Callable[[str], None]) -> None:
    """Random actions have a mean return of about -1,200; -200 is solved. Half the preset's budget; the preset has a record."""
    config = rljax.load_config("pendulum_dreamer", total_timesteps=3_000)
    run = trained(config, 1)
    figure(shown("pendulum_dreamer", config, run))
    assert run.final[0] >= -500.0, (run.final, run.curve)
    # Rewards that differ from state to state are foreseen 15 steps ahead, from the actions alone.
    state, batch = rows_of(run, 0, length=20)
    ahead = jax.jit(lambda params, batch: open_loop(run.parts, params, batch, 5, jax.random.key(0)))(state.params, batch)
    where = np.asarray(ahead.valid)
    foreseen, had = np.asarray(ahead.reward)[where], np.asarray(batch.reward[5:])[where]
    correlation = np.corrcoef(foreseen, had)[0, 1]
    figure(f"pendulum: rewards foreseen {foreseen.mean():.2f}, had {had.mean():.2f}, correlation {correlation:.3f}")
    assert foreseen.mean() == pytest.approx(had.mean(), rel=0.1)
    assert correlation > 0.8
