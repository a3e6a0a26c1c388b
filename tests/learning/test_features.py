"""Each feature learns what its control cannot: the experiments of `rljax reproduce`, on other seeds than the published ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box, Discrete
from rljax.run.reproduce import Report, features

SEEDS = 4
"""Features and controls are far apart: ten seeds are in the records of `rljax reproduce`."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def reported(figure: Callable[[str], None], run: Callable[[Report], object], seeds: int = SEEDS) -> dict[str, np.ndarray]:
    """What an experiment measures, each `[seeds]`, shown at the end of the tests too."""
    report = Report("test", "", 0, seeds, quiet=True)
    run(report)
    for name, values in report.raw.items():
        figure(f"{name}: median {np.median(values):.3f}, worst {min(values):.3f}, best {max(values):.3f}")
    return {name: np.array(values) for name, values in report.raw.items()}


@pytest.mark.long
@pytest.mark.parametrize("network", ["gru", *(pytest.param(cell, marks=pytest.mark.long) for cell in ("lstm", "block_gru"))])
def test_memory_solves_the_maze(network: str, figure: Callable[[str], None]) -> None:
    (scores,) = reported(figure, lambda report: features.maze(report, network)).values()
    assert (scores >= 0.95).sum() >= SEEDS - 1, scores


@pytest.mark.long
def test_without_memory_the_maze_stays_at_chance(figure: Callable[[str], None]) -> None:
    """Chance is a mean of 0 with a standard error of 0.1 over 100 episodes."""
    (scores,) = reported(figure, lambda report: features.maze(report, "mlp")).values()
    assert (np.abs(scores) < 0.4).all(), scores


@struct.dataclass
class LitCellState:
    lit: jax.Array
    time: jax.Array


@struct.dataclass
class LitCellParams:
    dark: int = 2


class LitCell(Environment):
    """One of 4 x 4 cells is lit in the first of three steps; who picks it in the last one gets 1."""

    name = "LitCell"
    default_params = LitCellParams()

    def observation_space(self, params: LitCellParams) -> Box:
        return Box(0.0, 1.0, (4, 4, 2))

    def action_space(self, params: LitCellParams) -> Discrete:
        return Discrete(16)

    def observe(self, state: LitCellState, params: LitCellParams) -> jax.Array:
        lit = ((jnp.arange(16) == state.lit) & (state.time == 0)).reshape(4, 4)
        return jnp.stack([lit, jnp.full((4, 4), state.time == params.dark)], axis=-1).astype(jnp.float32)

    def reset_env(self, key: jax.Array, params: LitCellParams) -> tuple[jax.Array, LitCellState]:
        state = LitCellState(jax.random.randint(key, (), 0, 16), jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: LitCellState, action: jax.Array, params: LitCellParams
    ) -> tuple[jax.Array, LitCellState, jax.Array, jax.Array, dict[str, Any]]:
        last = state.time == params.dark
        reward = (last & (action == state.lit)).astype(jnp.float32)
        state = state.replace(time=state.time + 1)
        return self.observe(state, params), state, reward, last, {}


@pytest.mark.parametrize(("kind", "least", "most"), [("gru", 0.95, 1.0), ("mlp", 0.0, 0.2)])
def test_a_policy_for_cells_remembers_which_cell_was_lit(
    kind: str, least: float, most: float, figure: Callable[[str], None]
) -> None:
    """Chance is 1 / 16."""
    network = {"encoder": "cells", "channels": [16, 16], "kernels": [3, 3], "hidden": [32], "type": kind}
    config = rljax.PPOConfig(
        env=LitCell(), num_envs=32, num_steps=30, total_timesteps=29_000, learning_rate=3e-3, gamma=0.9, eval_every=None,
        network=network if kind == "mlp" else network | {"size": 16},
    )  # fmt: skip
    metrics = jax.jit(jax.vmap(rljax.make_train(config)))(jax.random.split(jax.random.key(0), 2)).metrics
    returns = np.asarray(metrics["episode/return"])[:, -5:].mean(axis=1)
    figure(f"lit cell, {kind}: {returns.round(3).tolist()}")
    assert (returns >= least).all(), returns
    assert (returns <= most).all(), returns


@pytest.mark.long
def test_gymnaxs_memory_chain_is_solved_by_id(figure: Callable[[str], None]) -> None:
    assert rljax.load_config("memory_chain_ppo_gru").env == "MemoryChain-bsuite"
    found = reported(figure, features.memory_chain)
    assert (found["memory chain, gru"] >= 0.95).sum() >= SEEDS - 1, found
    assert (np.abs(found["memory chain, mlp"]) < 0.4).all(), found


@pytest.mark.long
def test_attention_picks_from_more_targets_than_it_was_trained_on(figure: Callable[[str], None]) -> None:
    config = rljax.load_config("target_pick_ppo", eval_every=None)
    found = reported(figure, lambda report: features.picks(report, "transformer", config), seeds=2)
    assert (found["transformer, 2 to 6 targets"] >= 7.2).all(), found
    assert (found["transformer, 8 to 12 targets"] >= 7.0).all(), found


@pytest.mark.long
def test_an_mlp_cannot_pick_from_more_targets_than_it_was_trained_on(figure: Callable[[str], None]) -> None:
    """With three times the steps."""
    found = reported(figure, lambda report: features.picks(report, "MLP", features.picking_mlp()))
    # It learned what it was shown, as well as policies that do not compare the targets can (4.03), but no more than that.
    assert np.median(found["MLP, 2 to 6 targets"]) > 4.0, found
    assert (found["MLP, 8 to 12 targets"] < 3.0).all(), found


@pytest.mark.long
def test_heads_that_see_those_before_reach_the_optimum_and_independent_ones_half_of_it(figure: Callable[[str], None]) -> None:
    """The standard error of a mean of 1000 episodes is 0.03."""
    best, best_independent = features.composite_optima()
    assert best_independent == pytest.approx(best / 2)
    found = reported(figure, features.composite)
    assert (found["autoregressive"] >= 0.96 * best).sum() >= SEEDS - 1, found
    assert (found["autoregressive"] <= best + 0.1).all()
    assert (found["independent"] <= best_independent + 0.1).all(), found
    assert (found["independent"] >= 1.2).all(), "the control learns what its heads can"


@pytest.mark.parametrize("bonus", ["count", pytest.param("rnd", marks=pytest.mark.long)])
def test_a_bonus_for_what_is_new_finds_the_goal(bonus: str, figure: Callable[[str], None]) -> None:
    (scores,) = reported(figure, lambda report: features.sparse(report, bonus)).values()
    assert (scores == 1.0).all(), scores


@pytest.mark.long
def test_without_a_bonus_the_goal_is_hardly_ever_found(figure: Callable[[str], None]) -> None:
    (scores,) = reported(figure, lambda report: features.sparse(report, "none")).values()
    assert (scores > 0.0).sum() <= 1, scores


@pytest.mark.long
def test_a_privileged_critic_explains_more_and_needs_fewer_steps(figure: Callable[[str], None]) -> None:
    found = reported(figure, features.privileged_critic)
    assert np.median(found["privileged critic: steps"]) < 0.6 * np.median(found["public critic: steps"])
    explained = "critic: explained variance"
    assert found[f"privileged {explained}"].min() > found[f"public {explained}"].max() + 0.5


@pytest.mark.long
def test_value_heads_keep_a_stream_that_is_noise_out_of_the_advantages(figure: Callable[[str], None]) -> None:
    """No critic sees the hidden bit here: its stream is noise to both arms, and the control has it in every advantage."""
    found = reported(figure, features.value_heads)
    assert np.median(found["two value heads: steps"]) < 0.35 * np.median(found["one value head: steps"])


@pytest.mark.long
def test_what_is_commanded_is_achieved_and_a_strangers_command_is_not(figure: Callable[[str], None]) -> None:
    """R2 of achieved against commanded numbers, and their squared correlation, which forgives scale and offset."""
    found = reported(figure, features.command)
    assert (found["its own command: R2"] > 0.98).all(), found
    assert (found["its own command: squared correlation"] > 0.98).all(), found
    assert (found["another's command: R2"] < 0.05).all(), found
    assert (found["another's command: squared correlation"] < 0.05).all(), found
