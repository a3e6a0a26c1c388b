"""Compiling for TPUs that are not there, by the real compiler: only where libtpu is installed (extra `tpu`)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

import rljax
from rljax.cli.main import main
from rljax.core.devices import Target
from rljax.run.bench.launches import kernels_for
from rljax.run.compile.program import CompileReport, compile_on
from rljax.run.compile.targets import CHIPS
from rljax.run.episodes import runs_outside_jax

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")

SMALL: dict[str, Any] = {"num_steps": 8, "num_minibatches": 2, "num_epochs": 2}
WIDE = 256
"""Number of environments that can be split over the largest slice of v5e."""

PROGRAMS = {
    "ppo": rljax.PPOConfig(env="CartPole-v1", num_envs=WIDE, **SMALL),
    "dqn": rljax.DQNConfig(env="CartPole-v1", num_envs=WIDE, buffer_size=WIDE * 64, batch_size=WIDE, learning_starts=WIDE * 2),
    "dreamer": rljax.load_config(
        "cartpole_dreamer_debug", num_envs=WIDE, batch_size=WIDE, buffer_size=WIDE * 256, total_timesteps=10**6
    ),
}

STATE = ("parameters", "copies of parameters", "optimiser", "buffer", "environments", "statistics", "other")


@pytest.mark.slow
def test_a_step_compiles_for_one_chip_with_every_loop_of_known_length(tmp_path: Path) -> None:
    config = PROGRAMS["ppo"].replace(num_envs=4)
    report = rljax.compile_for(config, "v5e-1")
    here = compile_on(config, Target("cpu", "cpu", tuple(jax.devices()[:1]), 10**9), CHIPS["h200"])
    assert report.fits
    assert report.unknown_loops == 0
    assert report.product_flops == pytest.approx(here.product_flops, rel=0.05)
    state = sum(size for name, size in report.parts.items() if name in STATE)
    assert state == report.compiled.memory_analysis().argument_size_in_bytes
    assert report.parts["parameters"] >= here.parts["parameters"]  # tiles are filled up
    assert not report.collectives
    report.save(tmp_path / "step.xla")
    assert (tmp_path / "step.xla").stat().st_size > 1000


@pytest.mark.slow
def test_a_step_over_16_chips_has_its_share_of_environments_and_sums_gradients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    # With as many steps as chips, and without minibatches, no chip repeats the work of another.
    steps = {"num_steps": 16, "num_minibatches": 1}
    fields = [word for name, value in {"num_envs": WIDE, **SMALL, **steps}.items() for word in (f"--{name}", str(value))]
    main(["compile", "ppo", "--env", "CartPole-v1", *fields, "--num-devices", "16", "--target", "v5e-16", "--json", str(file)])
    said = capsys.readouterr().out
    assert "one iteration (4,096 environment steps) on 16 of 16 devices" in said
    assert "all-reduce per device" in said
    numbers = json.loads(file.read_text())
    whole = rljax.compile_for(PROGRAMS["ppo"].replace(num_envs=WIDE // 16, **steps), "v5e-1")
    assert numbers["parts"]["environments"] == whole.parts["environments"]
    assert numbers["product_flops"] == pytest.approx(whole.product_flops, rel=0.05)
    assert {each["kind"] for each in numbers["collectives"]} >= {"all-reduce"}


@pytest.mark.slow
def test_chips_sum_once_a_minibatch_and_twice_an_epoch() -> None:
    """The gradients and what is logged; the advantages' means and variances, of all minibatches at once."""
    config = PROGRAMS["ppo"].replace(num_envs=64, num_steps=16, num_minibatches=8, num_epochs=3, num_devices=4)
    report = rljax.compile_for(config, "v5e-4")
    iteration = sum(each.times for each in report.collectives if each.kind == "all-reduce")
    assert 3 * 8 + 3 * 2 <= iteration <= 3 * 8 + 3 * 2 + 3


@pytest.mark.slow
def test_a_buffer_beyond_the_chips_memory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["compile", "cartpole_dqn_rejax", "--target", "v5e-1", "--buffer-size", "1e9"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "v5e-1" in said
    assert said.count("\n") == 1


ADVANTAGES_OF_GAMES = """
import resource
import jax
from rljax.collect.games.turns import turn_advantages
from rljax.run.bench.launches import kernels_for

def advantages(key):
    reward, value, last = (jax.random.normal(each, (15, 16, 2)) for each in jax.random.split(key, 3))
    return turn_advantages(reward, value, reward > value, value[..., 0] > 1, last[0], reward[0] > 0, 0.9, 0.9, 1)

kernels_for(advantages, "v5e-1")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_advantages_of_games_compile_in_little_memory() -> None:
    """The compiler's memory doubled with each step in a straight line: 2 GB for these 15, more than 24 GB for 24."""
    done = subprocess.run([sys.executable, "-c", ADVANTAGES_OF_GAMES], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 1.3e6  # kilobytes


@pytest.mark.slow
def test_the_kernels_of_a_whole_run_grow_with_its_iterations() -> None:
    config = PROGRAMS["ppo"].replace(num_envs=4)
    runs = [rljax.make_train(config.replace(total_timesteps=iterations * config.steps_per_iteration)) for iterations in (2, 4, 6)]
    one, two, three = (sum(kernel.times for kernel in kernels_for(run, "v5e-1")) for run in runs)
    assert three - two == two - one > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chips", [16, 64, 256])
@pytest.mark.parametrize("name", PROGRAMS)
def test_sharded_programs_compile_for_many_chips(name: str, chips: int) -> None:
    report = rljax.compile_for(PROGRAMS[name].replace(num_devices=chips), f"v5e-{chips}")
    assert report.fits
    assert report.devices == chips
    assert sum(each.times for each in report.collectives if each.kind == "all-reduce") > 0
    check(report)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", rljax.preset_names())
def test_every_preset_compiles_for_one_chip(name: str) -> None:
    config = rljax.load_config(name)
    if runs_outside_jax(config):
        pytest.skip("its simulators are on the host")
    check(rljax.compile_for(config, "v5e-1"))


def check(report: CompileReport) -> None:
    """What holds for every program."""
    assert report.launches > 0
    assert report.product_flops <= report.flops
    assert report.moved > 0
    assert report.iteration_seconds > 0
    state = sum(size for name, size in report.parts.items() if name in STATE)
    assert state == report.compiled.memory_analysis().argument_size_in_bytes
