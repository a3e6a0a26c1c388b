"""Launching elsewhere without SkyPilot: the task file, what it runs, the commands, and bad input."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rljax
from rljax.cli.main import main
from rljax.core.errors import DISTRIBUTION
from rljax.run.files.checkpoint import CHECKPOINTS, checkpoint_steps
from rljax.run.files.remote import Remote
from rljax.run.launch import skypilot
from rljax.run.launch.task import TASK_FILE, Task, parse_accelerators, read_task, task_name, task_text
from tests.run.tiny_runs import TINY_TOML, assert_refused, assert_same_state, records

yaml = pytest.importorskip("yaml")

TASK_KEYS = {"name", "resources", "workdir", "file_mounts", "setup", "run"}
RESOURCE_KEYS = {"accelerators", "infra", "max_hourly_cost", "use_spot"}
"""The keys of SkyPilot's schema that are used; test_skypilot.py compares with the schema itself."""

H100 = ("--accelerators", "H100:1")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(skypilot, "is_installed", lambda: False)
    Path("tiny.toml").write_text(TINY_TOML)


def launched(*arguments: str) -> dict[str, Any]:
    """The task file that a launch writes."""
    before = set(Path().glob("**/task.yaml"))
    main(["launch", *arguments, "--dry-run"])
    (file,) = set(Path().glob("**/task.yaml")) - before
    return yaml.safe_load(file.read_text())


def test_the_task_file_says_what_is_rented_installed_and_trained(capsys: pytest.CaptureFixture[str]) -> None:
    task = launched("tiny.toml", *H100, "--max-price", "3", "--cloud", "runpod/US", "--gamma", "0.5", "--seeds", "2")
    assert set(task) <= TASK_KEYS
    assert task["name"] == "tiny"
    assert task["resources"] == {"accelerators": "H100:1", "infra": "runpod/US", "max_hourly_cost": 3.0}
    assert f"{DISTRIBUTION}[cuda12]=={rljax.__version__}" in task["setup"]
    assert "gamma = 0.5\n" in task["run"]
    assert task["run"].endswith("--run-dir $HOME/runs/tiny --or-resume --seeds 2\n")
    out = " ".join(capsys.readouterr().out.split())
    assert f"SkyPilot is not installed: pip install '{DISTRIBUTION}[cloud]'; then: sky launch --cluster tiny" in out


def test_a_launch_never_touches_an_earlier_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert [launched("tiny.toml", *H100)["name"] for _ in range(3)] == ["tiny", "tiny-2", "tiny-3"]
    before = Path("launches/tiny/task.yaml").read_text()
    assert_refused(["launch", "tiny.toml", *H100, "--run-dir", "launches/tiny", "--dry-run"], "exists already", capsys)
    assert Path("launches/tiny/task.yaml").read_text() == before


def test_a_machine_that_may_be_taken_away_needs_a_place_for_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["launch", "tiny.toml", *H100, "--spot"], "--spot: needs --sync", capsys)
    task = launched("tiny.toml", *H100, "--spot", "--sync", "s3://bucket/my runs/")
    assert task["resources"]["use_spot"] is True
    assert f"{DISTRIBUTION}[cuda12,s3]==" in task["setup"]
    assert task["run"].endswith("--or-resume --sync 's3://bucket/my runs/tiny'\n")
    assert "sky jobs launch --name tiny" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_machine_has_the_accelerators_and_the_libraries_that_the_run_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert "[tpu]==" in launched("tiny.toml", "--accelerators", "tpu-v5e-8", "--num-devices", "4")["setup"]
    assert launched("tiny.toml", "--accelerators", "A100-80GB:8")["resources"]["accelerators"] == "A100-80GB:8"
    assert "num_devices = 1: the machine has 8, of which the others do nothing" in capsys.readouterr().err
    assert parse_accelerators("H100") == ("H100", 1)
    pytest.importorskip("pgx")
    assert "[cuda12,games]==" in launched("ppo", *H100, "--env", "pgx:minatar-breakout")["setup"]


@pytest.mark.parametrize("install", [None, "dist/rljax-1-py3-none-any.whl", "git+https://example.org/rljax@abc"])
def test_the_setup_installs_rljax(install: str | None, tmp_path: Path) -> None:
    Path("dist").mkdir()
    Path("dist/rljax-1-py3-none-any.whl").write_text("")
    task = launched("tiny.toml", *H100, *(() if install is None else ("--install", install)))
    programs = tmp_path / "home" / ".local" / "bin"
    programs.mkdir(parents=True)
    (programs / "uv").write_text('#!/bin/sh\nprintf "%s\\n" "$*" >> ~/uv.txt\n')
    (programs / "uv").chmod(0o755)
    for _ in range(2):  # a recovered job is set up again
        subprocess.run(["bash", "-c", task["setup"]], check=True, env={**os.environ, "HOME": str(tmp_path / "home")})
        (tmp_path / "home" / "rljax").mkdir(exist_ok=True)
    home = tmp_path / "home"
    wanted = {
        None: f"{DISTRIBUTION}[cuda12]=={rljax.__version__}",
        "dist/rljax-1-py3-none-any.whl": f"{DISTRIBUTION}[cuda12] @ file://{home}/wheels/rljax-1-py3-none-any.whl",
        "git+https://example.org/rljax@abc": f"{DISTRIBUTION}[cuda12] @ git+https://example.org/rljax@abc",
    }[install]
    pip = f"pip install --python {home}/rljax/bin/python {wanted}"
    assert (home / "uv.txt").read_text().splitlines() == [f"venv --python 3.12 {home}/rljax", pip, pip]
    mounts = {"~/wheels/rljax-1-py3-none-any.whl": str(tmp_path / "dist/rljax-1-py3-none-any.whl")}
    assert task.get("file_mounts") == (mounts if install is not None and install.endswith(".whl") else None)


@pytest.mark.parametrize("name", ["no", "null", "on", "true"])
def test_a_folder_may_have_a_name_that_yaml_takes_for_a_value(name: str) -> None:
    assert launched("tiny.toml", *H100, "--run-dir", name)["name"] == name
    assert read_task(Path(name)).name == name


def test_names_of_files_and_values_may_have_any_characters(tmp_path: Path) -> None:
    workdir, wheel = Path("my $HOME 'code' \U0001f600"), Path("$(touch hacked) `x`.whl")
    workdir.mkdir()
    wheel.write_text("")
    config = """x = "a --sync 'b"\ny = "use_spot: true"\nz = "$HOME"\n"""
    task = Task(
        "tiny", config, ("s3",), "H100:1", workdir=str(workdir), install=str(wheel), options=("--sync", "s3://a/b 'c' $d")
    )
    Path("launch").mkdir()
    (Path("launch") / TASK_FILE).write_text(task_text(task), encoding="utf-8")
    assert read_task(Path("launch")) == ("tiny", False, "s3://a/b 'c' $d")
    table = yaml.safe_load(task_text(task))
    assert table["workdir"] == str(tmp_path / workdir)
    install = table["setup"].splitlines()[-1].replace("uv pip", "printf '%s\\n'")
    found = subprocess.run(["bash", "-c", install], capture_output=True, text=True, check=True, env={"HOME": "/me"})
    assert found.stdout.splitlines()[-1] == f"{DISTRIBUTION}[s3] @ file:///me/wheels/{wheel}"
    assert not Path("hacked").exists()
    env = {**machine(tmp_path / "home"), "PATH": os.environ["PATH"]}
    (tmp_path / "home/rljax/bin/rljax").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    found = subprocess.run(["bash", "-c", table["run"]], capture_output=True, text=True, check=True, env=env)
    assert found.stdout.splitlines()[-2:] == ["--sync", "s3://a/b 'c' $d"]
    assert (tmp_path / "home/tiny.toml").read_text() == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "task.yaml: not a UTF-8 text file"),
        (b"name: a\nrun: |\n  rljax train --sync 's3://x\n", "task.yaml: --sync .*: No closing quotation"),
        (b"", "task.yaml: no name"),
        (b"name: a; rm\n", "task.yaml: no name"),
    ],
)
def test_a_damaged_task_file_is_one_line(content: bytes, message: str) -> None:
    Path(TASK_FILE).write_bytes(content)
    with pytest.raises(rljax.ConfigError, match=message):
        read_task(Path())


def machine(home: Path) -> dict[str, str]:
    """The environment of a machine on which the setup has run."""
    programs = home / "rljax" / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    (programs / "activate").write_text(f'export PATH="{programs}:$PATH"\n')
    (programs / "rljax").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rljax "$@"\n')
    (programs / "rljax").chmod(0o755)
    return {**os.environ, "HOME": str(home)}


@pytest.mark.slow
def test_what_the_task_runs_trains_and_after_kill_9_resumes(tmp_path: Path) -> None:
    budget = ("--total-timesteps", "6400", "--eval-every", "none")
    run = launched("tiny.toml", *H100, *budget)["run"].replace("--or-resume", "--or-resume --checkpoint-every 640")
    env, there = machine(tmp_path / "home"), tmp_path / "home" / "runs" / "tiny"
    process = subprocess.Popen(["bash", "-c", run], env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 100
    while checkpoint_steps(there / CHECKPOINTS)[:1] < [640]:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert 640 <= rljax.load_run(there).step < 6400
    done = subprocess.run(["bash", "-c", run], env=env, capture_output=True, text=True, check=True)
    assert "resuming ppo on CartPole-v1 into" in done.stdout
    whole = rljax.fit(rljax.load_config("tiny.toml", total_timesteps=6400), run_dir="whole")
    assert_same_state(rljax.load_run(there).state, whole.state)
    assert records(there) == records(Path("whole"))
    again = subprocess.run(["bash", "-c", run], env=env, capture_output=True, text=True, check=True)
    assert "is complete at step 6,400" in " ".join(again.stdout.split())


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Programs `sky` and `rsync` that note what they are asked; a machine's home folder is `machine`."""
    package = tmp_path / "fake" / "sky"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "cli.py").write_text(
        "import os, sys\ndef cli():\n    open(os.environ['NOTES'], 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "    sys.exit(int(os.environ.get('FAIL', '') == sys.argv[1]))\n"
    )
    rsync = package.parent / "rsync"
    rsync.write_text(f"#!{sys.executable}\nimport os, shutil, sys\n*_, source, target = sys.argv\n"
                     "name, _, path = source.partition(':')\nif not os.path.isdir(f'machine/{path}'):\n    sys.exit(23)\n"
                     "shutil.rmtree(target, ignore_errors=True)\n"
                     "shutil.copytree(f'machine/{path}', target, symlinks=True)\n")  # fmt: skip
    rsync.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PATH", f"{package.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes.txt"))
    monkeypatch.setattr(skypilot, "is_installed", lambda: True)
    monkeypatch.setattr(skypilot, "check_task", lambda text: None)
    offers = [skypilot.Offer(1.5, "vast", "US", "small"), skypilot.Offer(2.5, "runpod", "CA", "large")]
    monkeypatch.setattr(skypilot, "find_offers", lambda *_: offers)
    monkeypatch.setattr(skypilot, "clouds_with_credentials", lambda: ["vast", "runpod"])
    return tmp_path / "notes.txt"


@pytest.mark.slow
def test_a_launch_is_looked_at_fetched_and_stopped(
    fake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["launch", "tiny.toml", *H100, "--max-price", "2"])
    out = capsys.readouterr().out
    assert "$  1.50 an hour  vast" in out
    assert "runpod" not in out
    main(["launch", "--status", "launches/tiny"])
    with pytest.raises(SystemExit) as stop:
        main(["launch", "--stop", "launches/tiny"])  # before there is a run
    assert stop.value.code == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rljax:")]
    assert "not stopped, as its run was not fetched" in line
    assert "sky down tiny" in line
    rljax.fit(rljax.load_config("tiny.toml"), run_dir="machine/runs/tiny")
    for _ in range(2):
        main(["launch", "--fetch", "launches/tiny"])
    assert rljax.load_run("launches/tiny/run").step == 640
    main(["launch", "--stop", "launches/tiny"])
    launch = "launch --cluster tiny --yes --detach-run launches/tiny/task.yaml"
    notes = [launch, "status tiny", "queue tiny", *["status tiny"] * 4, "down tiny --yes"]
    assert fake.read_text().splitlines() == notes
    monkeypatch.setenv("FAIL", "launch")
    with pytest.raises(SystemExit) as stop:
        main(["launch", "tiny.toml", *H100])
    assert stop.value.code == 1
    assert "ended with status 1" in capsys.readouterr().err
    assert Path("launches/tiny-2/task.yaml").is_file()


@pytest.mark.slow
def test_a_managed_job_is_fetched_from_its_bucket(fake: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = Remote.__init__
    monkeypatch.setattr(Remote, "__init__", lambda self, url: usual(self, url.replace("s3://", f"{tmp_path}/s3/")))
    main(["launch", "tiny.toml", *H100, "--spot", "--sync", "s3://bucket/runs"])
    task = yaml.safe_load(Path("launches/tiny/task.yaml").read_text())
    assert task["resources"]["any_of"] == [{"infra": "vast"}, {"infra": "runpod"}]
    for budget in (640, 1280):
        rljax.fit(
            rljax.load_config("tiny.toml", total_timesteps=budget),
            run_dir="a",
            resume=True,
            sync=tmp_path / "s3/bucket/runs/tiny",
        )
        main(["launch", "--fetch", "launches/tiny"])
        assert rljax.load_run("launches/tiny/run").step == budget
    main(["launch", "--status", "launches/tiny"])
    main(["launch", "--stop", "launches/tiny"])
    launch = "jobs launch --name tiny --yes --detach-run launches/tiny/task.yaml"
    assert fake.read_text().splitlines() == [launch, "jobs queue", "jobs cancel --name tiny --yes"]


def test_too_dear_and_no_credentials_are_one_line_and_nothing_is_written(
    fake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cheapest = "max_price = 1: the cheapest offer is $1.50 an hour (vast, US)"
    assert_refused(["launch", "tiny.toml", *H100, "--max-price", "1"], cheapest, capsys)
    assert_refused(["launch", "tiny.toml", *H100, "--cloud", "aws"], "credentials only of vast, runpod", capsys)
    monkeypatch.setattr(skypilot, "clouds_with_credentials", list)
    assert_refused(["launch", "tiny.toml", *H100], "SkyPilot has credentials of no cloud: `sky check` says", capsys)
    monkeypatch.setattr(skypilot, "clouds_with_credentials", lambda: ["gcp"])
    assert_refused(["launch", "tiny.toml", *H100], "offered by none of the clouds with credentials, gcp", capsys)
    assert not fake.exists()
    assert not Path("launches").exists()


BAD = [
    (["tiny.tom", *H100], "tiny.tom"),
    (["tiny.toml", *H100, "--gama", "1"], "unknown field 'gama' of PPOConfig: did you mean 'gamma'"),
    (["tiny.toml", *H100, "--env", "CartPol-v1"], "did you mean 'CartPole-v1'"),
    (["tiny.toml"], "accelerators: is missing, expected NAME:COUNT"),
    (["tiny.toml", "--accelerators", "H100:"], "accelerators = 'H100:': expected NAME or NAME:COUNT"),
    (["tiny.toml", "--accelerators", "MI300X:1"], "expected GPUs of NVIDIA or TPUs"),
    (["tiny.toml", *H100, "--max-price", "0"], "max_price = 0.0: expected a number of dollars an hour > 0"),
    (["tiny.toml", *H100, "--num-devices", "2"], "num_devices = 2: the machine has 1"),
    (["tiny.toml", *H100, "--sync", "/tmp/here"], "expected a bucket, s3://BUCKET/FOLDER"),
    (["tiny.toml", *H100, "--workdir", "nowhere"], "workdir = 'nowhere': no such folder"),
    (["tiny.toml", *H100, "--install", "no.whl"], "install = 'no.whl': no such file"),
    ([], "nothing to launch"),
    (["tiny.toml", "--status", "launches/tiny"], "--status: takes the folder of a launch and nothing else"),
    (["--fetch", "launches/tiny"], "launches/tiny: no launch there (task.yaml: No such file or directory)"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_nothing_is_written(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(["launch", *arguments], message, capsys)
    assert not Path("launches").exists()


def test_what_is_only_on_this_machine_is_copied_there_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_task.py").write_text("from rljax.envs.cartpole import CartPole\n\n\nclass Mine(CartPole):\n    pass\n")
    own = ["launch", "tiny.toml", *H100, "--env", "own_task:Mine"]
    assert_refused([*own, "--dry-run"], "env: own_task.py is on this machine only; give --workdir", capsys)
    Path("code").mkdir()
    assert_refused([*own, "--workdir", "code"], "own_task", capsys)
    Path("own_task.py").rename("code/own_task.py")
    assert launched(*own[1:], "--workdir", "code")["workdir"] == str(Path("code").resolve())
    Path("ppo").mkdir()  # a folder that no field means
    assert launched("ppo", *H100)["name"] == "ppo"
    Path("data").mkdir()
    bc = ["launch", "bc", *H100, "--workdir", "code", "--dataset"]
    assert_refused([*bc, "data"], "dataset: data is on this machine only", capsys)
    assert_refused([*bc, str(Path("data").resolve())], "data is on this machine only", capsys)


def test_without_skypilot_a_launch_is_written_and_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["launch", "tiny.toml", *H100])
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(r"task.yaml is written but not launched: SkyPilot is not installed: pip install '\S+\[cloud\]'", error)
    assert Path("launches/tiny/task.yaml").is_file()
    assert [task_name(Path(name)) for name in ("My Run_2", "2x", "é")] == ["my-run-2", "run-2x", "run"]
