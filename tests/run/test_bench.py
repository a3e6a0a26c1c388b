"""`rljax bench recurrent`: what it prints, and that its yardstick is a recurrent PPO that learns."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.run import bench
from rljax.run.timing import Timing, time_interleaved
from rljax.run.yardstick import make_yardstick


def test_the_suite_prints_a_row_for_each_program(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program is traced, which tells what it computes; compiling five would take longer than all else here."""
    parameters = {}

    def traced(programs: dict[str, Any], repeats: int, compiles: int) -> dict[str, Timing]:
        assert compiles <= repeats
        for name, program in programs.items():
            trained = jax.eval_shape(program, jax.random.key(0))
            params = trained.state.params if hasattr(trained, "state") else trained[0]
            parameters[name] = sum(x.size for x in jax.tree.leaves(params))
        seconds = {name: 3.0 if name.startswith("yardstick") else 2.0 for name in programs}
        return {name: Timing(1.0, [run] * repeats) for name, run in seconds.items()}

    monkeypatch.setattr(bench, "time_interleaved", traced)
    config = rljax.PPOConfig(env="CartPole-v1", total_timesteps=64, num_envs=4, num_steps=8)
    bench._print_recurrent(config, 2)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines() if "|" in line]
    names = ["rljax, feed-forward", "rljax, gru", "yardstick, gru", "rljax, lstm", "yardstick, lstm"]
    assert [row[0] for row in rows[2:]] == names
    # The yardstick's cells have as many weights as ours: the same work.
    assert [row[1] for row in rows[2:]] == [f"{parameters[name]:,}" for name in names]
    assert abs(parameters["rljax, feed-forward"] / parameters["rljax, gru"] - 1) < 0.1
    assert [row[4:] for row in rows[2:]] == [["32", ""], ["32", "1.50"], ["21", "1.00"], ["32", "1.50"], ["21", "1.00"]]


@pytest.mark.slow
def test_programs_are_compiled_as_often_as_asked_and_run_in_turn() -> None:
    traced = []

    def program(name: str) -> Any:
        return lambda key: traced.append(name) or jax.random.uniform(key)

    timings = time_interleaved({"a": program("a"), "b": program("b")}, 3, compiles=2)
    assert traced == ["a", "b", "a", "b"]
    assert all(timing.compile > 0 and len(timing.runs) == 3 for timing in timings.values())


@pytest.mark.parametrize("cell", ["gru", pytest.param("lstm", marks=pytest.mark.slow)])
def test_the_yardstick_remembers_the_sign_of_the_t_maze(cell: str) -> None:
    """Without memory, or one that is not reset where an episode begins or kept across rollouts, the return is near 0."""
    config = rljax.load_config(f"tmaze_ppo_{cell}", env_params={"length": 3}, total_timesteps=40_960, eval_every=None)
    params, returns = jax.jit(make_yardstick(config))(jax.random.key(0))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))
    assert np.abs(returns[:5]).max() < 0.5
    assert returns[-5:].mean() > 0.8
