"""Launching elsewhere without SkyPilot: the task file, what it runs, the commands, and bad input."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

import rljax
from rljax.cli.main import main
from rljax.core.errors import DISTRIBUTION
from rljax.run.files.checkpoint import CHECKPOINTS, checkpoint_steps
from rljax.run.files.remote import Remote, replaced_run
from rljax.run.launch import skypilot
from rljax.run.launch.task import TASK_FILE, Task, holds_secret, parse_accelerators, read_task, task_name, task_text
from tests.run.tiny_runs import TINY_TOML, assert_refused, assert_same_state, records

yaml = pytest.importorskip("yaml")

TASK_KEYS = {"name", "resources", "secrets", "workdir", "file_mounts", "setup", "run"}
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


def stem(name: str) -> str:
    """The name of a launch without its checksum."""
    return re.sub(r"-[0-9a-f]{8}$", "", name)


def test_the_task_file_says_what_is_rented_installed_and_trained(capsys: pytest.CaptureFixture[str]) -> None:
    task = launched("tiny.toml", *H100, "--max-price", "3", "--cloud", "runpod/US", "--gamma", "0.5", "--seeds", "2")
    assert set(task) <= TASK_KEYS
    name = task["name"]
    assert re.fullmatch("tiny-[0-9a-f]{8}", name)
    assert task["resources"] == {"accelerators": "H100:1", "infra": "runpod/US", "max_hourly_cost": 3.0}
    assert f"{DISTRIBUTION}[cuda12]=={rljax.__version__}" in task["setup"]
    assert "gamma = 0.5\n" in task["run"]
    assert task["run"].endswith(f"--run-dir $HOME/runs/{name} --or-resume --seeds 2\n")
    out = " ".join(capsys.readouterr().out.split())
    assert f"SkyPilot is not installed: pip install '{DISTRIBUTION}[cloud]'; then: sky launch --cluster {name}" in out


def test_a_launch_never_touches_an_earlier_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert [stem(launched("tiny.toml", *H100)["name"]) for _ in range(3)] == ["tiny", "tiny-2", "tiny-3"]
    before = Path("launches/tiny/task.yaml").read_text()
    assert_refused(["launch", "tiny.toml", *H100, "--run-dir", "launches/tiny", "--dry-run"], "exists already", capsys)
    assert Path("launches/tiny/task.yaml").read_text() == before


def test_launches_in_folders_of_one_name_have_names_of_their_own_and_the_same_launch_has_the_same_one() -> None:
    names = []
    for folder, gamma in (("a/x", "0.9"), ("b/x", "0.9"), ("a/x", "0.9"), ("a/x", "0.8")):
        names.append(launched("tiny.toml", *H100, "--run-dir", folder, "--gamma", gamma)["name"])
        shutil.rmtree(folder)
    assert {stem(name) for name in names} == {"x"}
    assert names[0] == names[2]
    assert len(set(names)) == 3


def test_a_machine_that_may_be_taken_away_needs_a_place_for_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["launch", "tiny.toml", *H100, "--spot"], "--spot: needs --sync", capsys)
    task = launched("tiny.toml", *H100, "--spot", "--sync", "s3://bucket/my runs/")
    assert task["resources"]["use_spot"] is True
    assert f"{DISTRIBUTION}[cuda12,s3]==" in task["setup"]
    assert task["run"].endswith(f"--or-resume --sync 's3://bucket/my runs/{task['name']}'\n")
    assert f"sky jobs launch --name {task['name']}" in " ".join(capsys.readouterr().out.split())


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
    task = launched("tiny.toml", *H100, "--run-dir", name)
    assert stem(task["name"]) == name
    assert read_task(Path(name)).name == task["name"]
    text = task_text(Task(name, "", (), "H100:1"))
    assert yaml.safe_load(text)["name"] == name


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
    task = launched("tiny.toml", *H100, *budget)
    run = task["run"].replace("--or-resume", "--or-resume --checkpoint-every 640")
    env, there = machine(tmp_path / "home"), tmp_path / "home" / "runs" / task["name"]
    process = subprocess.Popen(["bash", "-c", run], env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 400
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
    monkeypatch.setattr(skypilot, "check_cloud", lambda infra: None)
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
    name = read_task(Path("launches/tiny")).name
    main(["launch", "--status", "launches/tiny"])
    with pytest.raises(SystemExit) as stop:
        main(["launch", "--stop", "launches/tiny"])  # before there is a run
    assert stop.value.code == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rljax:")]
    assert "not stopped, as its run was not fetched" in line
    assert f"sky down {name}" in line
    rljax.fit(rljax.load_config("tiny.toml"), run_dir=f"machine/runs/{name}")
    for _ in range(2):
        main(["launch", "--fetch", "launches/tiny"])
    assert rljax.load_run("launches/tiny/run").step == 640
    Path("launches/tiny/run/mine.txt").write_text("mine")
    main(["launch", "--stop", "launches/tiny"])
    assert Path("launches/tiny/run/mine.txt").read_text() == "mine"
    launch = f"launch --cluster {name} --yes --detach-run launches/tiny/task.yaml"
    notes = [launch, f"status {name}", f"queue {name}", *[f"status {name}"] * 4, f"down {name} --yes"]
    assert fake.read_text().splitlines() == notes
    monkeypatch.setenv("FAIL", "launch")
    with pytest.raises(SystemExit) as stop:
        main(["launch", "tiny.toml", *H100])
    assert stop.value.code == 1
    assert "ended with status 1" in capsys.readouterr().err
    assert Path("launches/tiny-2/task.yaml").is_file()


@pytest.mark.slow
def test_a_run_that_has_gone_on_here_is_neither_replaced_nor_its_machine_stopped(
    fake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["launch", "tiny.toml", *H100])
    name, run = read_task(Path("launches/tiny")).name, Path("launches/tiny/run")
    rljax.fit(rljax.load_config("tiny.toml"), run_dir=f"machine/runs/{name}")
    main(["launch", "--fetch", "launches/tiny"])
    rljax.fit(rljax.load_config("tiny.toml", total_timesteps=1280), resume=run)
    before = records(run)
    behind = f"the run here is at step 1280 already, its copy in {name}:runs/{name} at step 640: move the folder away"
    assert_refused(["launch", "--fetch", "launches/tiny"], behind, capsys)
    with pytest.raises(SystemExit):
        main(["launch", "--stop", "launches/tiny"])
    assert f"not stopped, as its run was not fetched: {run}: {behind}" in capsys.readouterr().err
    assert (rljax.load_run(run).step, records(run)) == (1280, before)
    assert not any(line.startswith("down") for line in fake.read_text().splitlines())
    assert not list(run.parent.glob(".run*"))


@pytest.mark.slow
def test_a_managed_job_is_fetched_from_its_bucket(fake: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = Remote.__init__
    monkeypatch.setattr(Remote, "__init__", lambda self, url: usual(self, str(url).replace("s3://", f"{tmp_path}/s3/")))
    main(["launch", "tiny.toml", *H100, "--spot", "--sync", "s3://bucket/runs"])
    task = yaml.safe_load(Path("launches/tiny/task.yaml").read_text())
    assert task["resources"]["any_of"] == [{"infra": "vast"}, {"infra": "runpod"}]
    for budget in (640, 1280):
        rljax.fit(
            rljax.load_config("tiny.toml", total_timesteps=budget),
            run_dir="a",
            resume=True,
            sync=tmp_path / "s3/bucket/runs" / task["name"],
        )
        main(["launch", "--fetch", "launches/tiny"])
        assert rljax.load_run("launches/tiny/run").step == budget
    main(["launch", "--status", "launches/tiny"])
    main(["launch", "--stop", "launches/tiny"])
    launch = f"jobs launch --name {task['name']} --yes --detach-run launches/tiny/task.yaml"
    assert fake.read_text().splitlines() == [launch, "jobs queue", f"jobs cancel --name {task['name']} --yes"]


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
    (["tiny.toml", *H100, "--seeds", "0"], "seeds = 0: expected a whole number from 1 to"),
    (["tiny.toml", *H100, "--seeds", "2", "--seed", f"{2**32 - 1}"], "seeds = 2: expected a whole number from 1 to 1"),
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


@pytest.mark.parametrize("character", ["\x7f", "\x85", "\u2028", "\udcff"])
def test_a_path_with_a_character_that_yaml_would_change_is_refused(character: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = f"mine{character}"
    Path(folder).mkdir()
    shown = f"the task file cannot hold the character {character!a}, expected another path or value: 'workdir: "
    assert_refused(["launch", "tiny.toml", *H100, "--workdir", folder, "--dry-run"], shown, capsys)
    assert not Path("launches").exists()


def test_a_configuration_cannot_end_the_text_that_it_is_in() -> None:
    for config in ('env = "a\x85RLJAX_CONFIG\x85touch there"', 'env = "a\u2028b"'):
        with pytest.raises(rljax.ConfigError, match="cannot hold the character"):
            task_text(Task("n", config, ("cuda12",), "H100:1"))


def test_what_is_only_on_this_machine_is_copied_there_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_task.py").write_text("from rljax.envs.cartpole import CartPole\n\n\nclass Mine(CartPole):\n    pass\n")
    own = ["launch", "tiny.toml", *H100, "--env", "own_task:Mine"]
    assert_refused([*own, "--dry-run"], "env: own_task.py is on this machine only; give --workdir", capsys)
    Path("own_package").mkdir()
    Path("own_package/__init__.py").write_text(Path("own_task.py").read_text())
    package = ["launch", "tiny.toml", *H100, "--env", "own_package:Mine", "--dry-run"]
    assert_refused(package, "env: own_package/__init__.py is on this machine only; give --workdir", capsys)
    Path("code").mkdir()
    assert_refused([*own, "--workdir", "code"], "own_task", capsys)
    Path("own_task.py").rename("code/own_task.py")
    assert launched(*own[1:], "--workdir", "code")["workdir"] == str(Path("code").resolve())
    Path("ppo").mkdir()  # a folder that no field means
    assert launched("ppo", *H100)["name"].startswith("ppo-")
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
    assert [stem(task_name(Path(name), "")) for name in ("My Run_2", "2x", "é")] == ["my-run-2", "run-2x", "run"]


@pytest.mark.parametrize("from_index", [True, False])
def test_who_has_rljax_from_elsewhere_is_told_that_the_machine_has_it_from_the_index(
    from_index: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = None if from_index else '{"url": "file:///a/copy", "dir_info": {"editable": true}}'
    found = types.SimpleNamespace(read_text=lambda name: origin if name == "direct_url.json" else "")
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: found)
    launched("tiny.toml", *H100)
    assert (
        "from the package index; the one here comes from elsewhere" in " ".join(capsys.readouterr().out.split())
    ) != from_index
    launched("tiny.toml", *H100, "--install", "git+https://example.org/rljax")
    assert "from elsewhere" not in " ".join(capsys.readouterr().out.split())


SECRETS = [
    "git+https://s3cret@github.com/me/rljax",
    "git+https://s3cret:x-oauth-basic@github.com/me/rljax",
    "git+https://s3cret:@github.com/me/rljax",
    "git+https://me:s3cret@github.com/me/rljax@main",
    "git+https://${USER}:s3cret@github.com/me/rljax",
    "git+ssh://git:s3cret@github.com/me/rljax",
    "https://example.org/rljax.zip?private_token=s3cret",
    "https://example.org/rljax.zip?X-Amz-Signature=s3cret",
]


@pytest.mark.parametrize("address", SECRETS)
def test_a_secret_in_an_address_is_refused_and_not_repeated(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["launch", "tiny.toml", *H100, "--install", address, "--dry-run"])
    assert stop.value.code == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "--install: the address holds a password or token, which the task file would keep: set a variable" in error
    assert "s3cret" not in error
    assert not Path("launches").exists()
    assert_refused(["launch", "tiny.toml", *H100, "--sync", "s3://me:s3cret@bucket/runs"], "--sync: the address holds", capsys)


@pytest.mark.parametrize(
    "address",
    ["git+ssh://git@github.com/me/rljax", "git+https://github.com/me/rljax@v1", "https://example.org/a.zip?key=${KEY}&x=1"],
)
def test_an_address_without_a_secret_is_taken(address: str) -> None:
    assert not holds_secret(address)


def test_a_token_is_named_in_the_task_file_and_its_value_comes_with_the_command(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "git+https://oauth2:${MY_TOKEN}@example.org/me/rljax@$branch"
    monkeypatch.delenv("MY_TOKEN", raising=False)
    launch = ["launch", "tiny.toml", *H100, "--install", address]
    assert_refused(launch, "--install: the environment has no variable MY_TOKEN", capsys)
    assert not Path("launches").exists()
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    main(launch)
    text = Path("launches/tiny/task.yaml").read_text()
    task = yaml.safe_load(text)
    assert "s3cret" not in text
    assert task["secrets"] == {"MY_TOKEN": None}
    command = f"launch --cluster {task['name']} --secret MY_TOKEN --yes --detach-run launches/tiny/task.yaml"
    assert fake.read_text().splitlines() == [command]
    install = task["setup"].splitlines()[-1].replace("uv pip", "printf '%s\\n'")
    found = subprocess.run(["bash", "-c", install], capture_output=True, text=True, check=True, env={"MY_TOKEN": "s3cret"})
    wanted = "git+https://oauth2:s3cret@example.org/me/rljax@$branch"
    assert found.stdout.splitlines()[-1] == f"{DISTRIBUTION}[cuda12] @ {wanted}"


def test_own_files_in_the_run_of_a_phase_stay_when_it_is_fetched_again_and_a_phase_that_has_gone_on_is_kept(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"

    def fetch(step: int) -> None:
        with replaced_run(folder, "there") as aside:
            (aside / "phases.toml").write_text("")
            for phase in ("first", "second"):
                (aside / phase / CHECKPOINTS / f"step_{step}").mkdir(parents=True)
                (aside / phase / "config.toml").write_text("")

    fetch(10)
    (folder / "second" / "curve.png").write_text("mine")
    (folder / "notes").mkdir()
    fetch(20)
    assert (folder / "second" / "curve.png").read_text() == "mine"
    assert (folder / "notes").is_dir()
    assert checkpoint_steps(folder / "second" / CHECKPOINTS) == [20]
    (folder / "second" / CHECKPOINTS / "step_30").mkdir()
    with pytest.raises(rljax.ConfigError, match="second: the run here is at step 30 already, its copy in there at step 20"):
        fetch(20)
    assert checkpoint_steps(folder / "second" / CHECKPOINTS) == [30, 20]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".run")] == []
