"""Several devices: eight simulated ones, and two processes on this machine, come to what one device does."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

import rljax
from rljax.core.config_files import dump_config
from rljax.run import processes
from rljax.run.processes import join_processes
from tests.run.devices_script import CONFIGS, apart
from tests.run.simulated_devices import printed_on_devices
from tests.run.tiny_runs import TINY_TOML

SCRIPT = Path(__file__).with_name("devices_script.py")

ROUNDING = 2e-5
"""How far apart parameters may come out; they move by 100 times that and more. Sums are made in another order."""


def simulated(name: str, folder: Path) -> dict[str, list[str]]:
    """What the script prints with eight devices, by the first word of each line."""
    printed = printed_on_devices(8, folder, SCRIPT, name)
    return {line.split()[0]: line.split()[1:] for line in printed.splitlines()}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        "dqn",
        pytest.param("ppo", marks=[pytest.mark.same_bits, pytest.mark.long]),
        "self_play",
        "league",
        "alphazero",
        pytest.param("dreamer", marks=pytest.mark.long),
        "distill",
    ],
)
def test_eight_devices_come_to_what_one_does(name: str, tmp_path: Path) -> None:
    said = simulated(name, tmp_path)
    devices, apart, moved, layouts, split = said[name]
    assert devices == "8"
    assert float(apart) < min(ROUNDING, 0.01 * float(moved))
    assert (layouts, split) == ("1", "True"), "all that belongs to environments is split"
    if name == "ppo":
        assert float(said["fit"][0]) == 0.0
        assert float(said["resumed"][0]) == 0.0
        assert float(said["pmap"][0]) < ROUNDING
        assert said["split"] == ["True", "True"], "runs of a sweep are split over the devices"
        assert float(said["sweep"][0]) < 1e-3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_trials_go_on_where_the_devices_do_not_divide_them(tmp_path: Path) -> None:
    apart, trials = printed_on_devices(2, tmp_path, SCRIPT, "prune").split()[1:]
    assert float(apart) < ROUNDING
    assert trials == "1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_devices": 3}, "num_devices = 3: must divide num_envs = 4"),
        ({"num_devices": 0}, "num_devices = 0: expected a whole number > 0"),
        ({"num_devices": 4}, "num_devices = 4: there is 1 cpu device"),
    ],
)
def test_devices_that_are_not_there_or_do_not_divide_are_refused(changes: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(rljax.ConfigError) as error:
        rljax.fit(rljax.PPOConfig(**changes), run_dir=tmp_path / "a")
    assert message in str(error.value)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", 2, 0), "coordinator = 'nowhere': expected address:port"),
        (("a:99999", 2, 0), "coordinator = 'a:99999': expected address:port"),
        (("a:0", 2, 0), "coordinator = 'a:0': expected address:port"),
        (("a:1", None, None), "coordinator = 'a:1': expected num_processes and process_id with it"),
        (("a:1", 2, None), "coordinator = 'a:1': expected num_processes and process_id with it"),
        (("a:1", 0, 0), "num_processes = 0"),
        (("a:1", 2, 2), "process_id = 2: expected a whole number from 0 to 1"),
        (("auto", 2, 0), "coordinator = 'auto' finds them itself"),
    ],
)
def test_processes_that_cannot_meet_are_refused(arguments: tuple[str, int | None, int | None], message: str) -> None:
    with pytest.raises(rljax.ConfigError) as error:
        join_processes(*arguments)
    assert message in str(error.value)


@pytest.mark.slow
def test_in_kubernetes_without_its_package_one_line_says_what_to_install() -> None:
    program = (  # None: the package cannot be imported
        "import sys; sys.modules['kubernetes'] = None; from rljax.cli.main import main; "
        "main(['train', 'cartpole_ppo', '--coordinator', 'auto'])"
    )
    environment = {**os.environ, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "pip install 'jax[k8s]'" in line


class ClusterError(Exception):
    """As the package of Kubernetes has them: of no type that JAX knows."""


def test_an_error_of_the_cluster_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(**_: Any) -> None:
        raise ClusterError("Service token file does not exist.\nmore")

    monkeypatch.setattr(jax.distributed, "initialize", failing)
    with pytest.raises(rljax.RljaxError, match=r"others: ClusterError: Service token file does not exist\.$"):
        join_processes("auto")


@pytest.mark.slow
@pytest.mark.parametrize("process", [0, 1])
def test_a_process_that_waits_in_vain_ends_with_one_line(process: int) -> None:
    """Process 0 waits for process 1, or process 1 for process 0."""
    program = (
        "import sys; from rljax.run import processes; processes.START_SECONDS = 2; "
        "processes.join_processes(sys.argv[1], 2, int(sys.argv[2]))"
    )
    command = [sys.executable, "-c", program, f"127.0.0.1:{free_port()}", str(process)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"rljax: process {process} of 2 did not meet the others at 127.0.0.1:")
    assert line.endswith("within 2 seconds")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return int(s.getsockname()[1])


TRAIN = (sys.executable, "-m", "rljax.cli.main", "train")


def started(
    arguments: list[str], folder: Path, slurm: bool = False, others: list[str] | None = None
) -> list[subprocess.Popen[str]]:
    """Two processes of `rljax train`, told of each other by options, or as Slurm does it; the second may have other arguments."""
    port = free_port()
    told = [f"--coordinator=localhost:{port}", "--num-processes=2"]
    job = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2", "JAX_COORDINATOR_PORT": str(port)}
    return [
        subprocess.Popen(
            [*TRAIN, *own, *(["--coordinator=auto"] if slurm else [*told, f"--process-id={i}"])],
            env={**os.environ, **(job | {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)} if slurm else {})},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i, own in enumerate([arguments, arguments if others is None else others])
    ]


def ended(processes: list[subprocess.Popen[str]], seconds: float) -> list[tuple[int, str, str]]:
    try:
        results = []
        for process in processes:
            out, error = process.communicate(timeout=seconds)
            results.append((process.returncode, out, error))
        return results
    finally:
        for process in processes:
            process.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_of_a_cluster_find_each_other(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY_TOML)
    few = ["tiny.toml", "--num-devices", "2", "--total-timesteps", "128", "--eval-every", "none"]
    (first, said, error), (second, silence, other_error) = ended(started([*few, "--run-dir", "a"], tmp_path, slurm=True), 250)
    assert (first, second) == (0, 0), error + other_error
    assert "trained to step 128" in said
    assert "train" not in silence
    alone = subprocess.run([*TRAIN, *few, "--coordinator=auto"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert alone.returncode == 2
    assert "coordinator = 'auto': this process was not started by Slurm" in alone.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    "launcher", [["mpirun", "--allow-run-as-root", "--oversubscribe", "-n"], ["srun", "--overcommit", "-n"]], ids=["mpi", "slurm"]
)
def test_real_launchers_start_a_run(launcher: list[str], count: int, tmp_path: Path) -> None:
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    (tmp_path / "tiny.toml").write_text(TINY_TOML)
    options = ["tiny.toml", f"--num-devices={count}", "--run-dir=run", "--coordinator=auto"]
    done = subprocess.run([*launcher, str(count), *TRAIN, *options], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained to step") == 1
    run = rljax.load_run(tmp_path / "run")
    assert apart(rljax.fit(run.config.replace(num_devices=1)).state.params, run.state.params) < ROUNDING


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", ["ppo", *(pytest.param(name, marks=pytest.mark.long) for name in ("dqn", "dreamer", "self_play"))]
)
def test_two_processes_train_one_run_and_come_to_what_one_does(name: str, tmp_path: Path, figure: Callable[[str], None]) -> None:
    config = CONFIGS[name]
    if name == "dreamer":  # two updates: each has hundreds of collectives, and processes that share a core take turns for each
        config = config.replace(total_timesteps=160, train_ratio=2, learning_rate=1e-3, warmup=1)
    (tmp_path / "tiny.toml").write_text(dump_config(config))
    (first, said, error), (second, silence, other_error) = ended(
        started(["tiny.toml", "--num-devices", "2", "--run-dir", "both"], tmp_path), 250
    )
    assert (first, second) == (0, 0), error + other_error
    assert f"trained to step {config.num_iterations * config.steps_per_iteration:,}" in said
    assert "train" not in silence  # the library of collectives says a word of its own
    alone, both = rljax.fit(config).state.params, rljax.load_run(tmp_path / "both").state.params
    before = rljax.make_agent(config).init(jax.random.key(config.seed)).params
    differ, moved = apart(alone, both), apart(alone, before)
    figure(f"two processes, {name}: parameters differ from those of one by {differ:.1e} at most, and have moved by {moved:.1e}")
    assert differ < min(ROUNDING, 0.01 * moved)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("others", "differs"),
    [
        (["tiny.toml", "--learning-rate", "0.1", "--num-epochs", "2"],
         "learning_rate is 0.00025 in process 0 and 0.1 in process 1; num_epochs is 4 in process 0 and 2 in process 1"),
        (["--resume", "begun"], "resume is None in process 0 and 'begun' in process 1"),
    ],
)  # fmt: skip
def test_processes_with_different_configurations_all_end_with_one_line(others: list[str], differs: str, tmp_path: Path) -> None:
    """Those with other numbers of gradient steps would wait for each other forever."""
    config = rljax.PPOConfig(num_envs=4, num_steps=16, num_minibatches=2, total_timesteps=640, network={"hidden": [8]})
    (tmp_path / "tiny.toml").write_text(dump_config(config.replace(num_devices=2)))
    if "--resume" in others:
        rljax.fit(config, run_dir=tmp_path / "begun", callback=lambda step, _: True)
        (tmp_path / "begun" / "config.toml").write_text((tmp_path / "tiny.toml").read_text())
    for status, said, error in ended(started(["tiny.toml", "--run-dir", "new"], tmp_path, others=others), 120):
        assert status == 2
        assert "training" not in said
        message = (
            f"the processes of this run were started with different configurations: {differs}; start all with the same command"
        )
        assert f"rljax: {message}\n" in error
        assert "Traceback" not in error
    assert not (tmp_path / "new").exists()


def test_what_differs_between_processes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    here = {"loss": math.nan, "network": {"hidden": [8]}, "seeds": None, "a": {"x": 1, "y": 2}, "b": 2}

    def gather(content: bytes) -> list[bytes]:
        return [content, *(json.dumps(each).encode() for each in others)]

    monkeypatch.setattr(processes, "_gather_bytes", gather)
    others = [here, {**here, "a": {"y": 2, "x": 1}}]
    processes.check_same(here)
    others = [here, {**here, "network": {"hidden": [4]}}]
    with pytest.raises(
        rljax.ConfigError, match=re.escape("network is {'hidden': [8]} in process 0 and {'hidden': [4]} in process 2")
    ):
        processes.check_same(here)
    others = [{"loss": 0.0, "network": {}, "b": 1, "a": 1}, {"gamma": 0.9}]
    with pytest.raises(rljax.ConfigError, match=r"loss is nan in process 0 and 0\.0 in process 1; .*; 2 more differ"):
        processes.check_same(here)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_death_of_one_process_ends_the_other_and_the_run_resumes(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY_TOML)
    processes = started(
        ["tiny.toml", "--num-devices", "2", "--run-dir", "killed", "--total-timesteps", "100000000", "--checkpoint-seconds", "1"],
        tmp_path,
    )
    saved = tmp_path / "killed/checkpoints"
    until = time.monotonic() + 200
    while time.monotonic() < until and len(list(saved.glob("step_*"))) < 3:
        time.sleep(0.5)
    processes[1].send_signal(signal.SIGKILL)
    (status, _, error), _ = ended(processes, 60)
    assert status == 1
    line = error.strip().splitlines()[-1]
    assert line.startswith("rljax: training stopped: another process of the run is gone")
    assert "to resume" in line
    # The run goes on: on one device of one process as a fork, and as it was.
    run = rljax.load_run(tmp_path / "killed")
    assert run.step > 0
    config = run.config.replace(num_devices=1, total_timesteps=run.step + 640)
    assert rljax.fit(config, fork=tmp_path / "killed").metrics["episode/return"].shape == (10,)
    more = ["--resume", "killed", "--num-devices", "2", "--total-timesteps", str(run.step + 640)]
    (first, said, error), (second, _, other_error) = ended(started(more, tmp_path), 150)
    assert (first, second) == (0, 0), error + other_error
    assert f"trained to step {run.step + 640:,}" in said
