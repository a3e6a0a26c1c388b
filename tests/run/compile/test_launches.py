"""Small networks on an accelerator are bound by the operations that an iteration starts: their number is held for each algorithm.

It is counted in the program for CPUs, which every machine can compile. A GPU starts other numbers, but what adds operations there
is seen here, too: a loop that came in, or an output that a rollout no longer packs.
"""

from __future__ import annotations

from typing import Any

import jax
import pytest

import rljax
from rljax.core.devices import Target
from rljax.run.compile.program import compile_on
from rljax.run.compile.targets import CHIPS
from tests.run.tiny_data import dataset_path
from tests.run.tiny_teacher import ready

LITTLE = {"size": "debug", "batch_size": 2, "batch_length": 4, "horizon": 3, "num_envs": 2, "num_steps": 1, "train_ratio": 4}
"""DreamerV3 at its smallest: an iteration is one step of two environments, then one update."""


@pytest.mark.slow
@pytest.mark.same_bits  # so that the program is that of users: the tests' fastest compilation makes loops of random numbers
@pytest.mark.parametrize(
    ("preset", "changes", "launches"),
    [
        ("cartpole_ppo", {}, 1442),
        ("tmaze_ppo_gru", {}, 15682),
        ("cartpole_pqn", {}, 7907),
        ("cartpole_impala", {}, 2461),
        ("cartpole_dqn", {}, 17744),
        ("cartpole_dqn_rejax", {}, 18163),
        ("pendulum_sac", {}, 12237),
        ("kuhn_league", {}, 1766),
        ("tictactoe_selfplay", {}, 3839),
        ("iql", {"env": "Pendulum-v1", "dataset": dataset_path("Pendulum-v1")}, 7682),
        ("tictactoe_alphazero", {}, 18735),
        pytest.param("cartpole_dreamer", {**LITTLE, "buffer_size": 60, "learning_starts": 20}, 3765, marks=pytest.mark.long),
    ],
)
def test_an_iteration_starts_no_more_operations_than_it_did(preset: str, changes: dict[str, Any], launches: int) -> None:
    """Counted with JAX 0.10.2; versions of XLA differ by a few percent. Of far fewer operations, set the lower number here."""
    target = Target("cpu", "cpu", tuple(jax.devices()[:1]), 10**12)
    found = compile_on(ready(rljax.load_config(preset, **changes)), target, CHIPS["h200"]).launches
    assert 0.8 * launches < found <= 1.05 * launches, found
