"""SkyPilot itself reads the task file, its optimizer picks a machine, and its command line knows the commands.

Nothing is rented and nothing is fetched: the catalogue is a small one of two clouds, in a home folder of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.run.launch.test_launch import RESOURCE_KEYS, TASK_KEYS
from tests.run.tiny_runs import TINY_TOML

pytest.importorskip("sky", reason="SkyPilot has an environment of its own in CI")

GPU = "\"{'Gpus': [{'Name': 'H100', 'MemoryInfo': {'SizeInMiB': 81920}}]}\""
COLUMNS = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region"
CATALOGUE = {
    "runpod/vms.csv": [
        f"{COLUMNS},AvailabilityZone",
        f"large,H100,1,16,80,{GPU},2.9,1.5,US,US-1",
        f"large,H100,1,16,80,{GPU},2.8,1.4,CA,CA-1",
        f"huge,H100,8,128,640,{GPU},23,12,US,US-1",
    ],
    "vast/vms.csv": [COLUMNS, f'1x-H100-32-65536,H100,1,32,64,{GPU},1.87,0,"Texas, US, NA"'],
    "common/accelerators.csv": ["AcceleratorName,Clouds", "H100,\"['RunPod', 'Vast']\""],
}

SCRIPT = """
import contextlib, io, json, sys
from pathlib import Path
import yaml
from sky import clouds, optimizer
import sky
from sky import check
from rljax.cli.main import main

check.get_cached_enabled_clouds_or_refresh = lambda *_, **__: [clouds.RunPod(), clouds.Vast()]

def run(arguments):
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as stop:
            status = stop.code
    return [status, out.getvalue(), err.getvalue()]

def picked(file):
    task = sky.Task.from_yaml(file)
    with sky.Dag() as dag:
        dag.add(task)
    with contextlib.redirect_stdout(io.StringIO()):
        optimizer.Optimizer.optimize(dag, quiet=True)
    best = task.best_resources
    return [str(best.cloud), best.instance_type, best.use_spot, best.get_cost(3600)]

def understood(arguments):
    from sky.client.cli import command
    group, context, rest = command.cli, command.cli.make_context("sky", ["status"], resilient_parsing=True), list(arguments)
    while hasattr(group, "get_command"):
        group = group.get_command(context, rest.pop(0))
    return group.make_context("sky", rest).params

from sky.utils import schemas
results = {"runs": [run(arguments) for arguments in json.loads(sys.argv[1])]}
files = sorted(map(str, Path().glob("launches/*/task.yaml")))
results["picked"] = {file.split("/")[1]: picked(file) for file in files}
results["commands"] = [understood(arguments) for arguments in json.loads(sys.argv[2])]
results["keys"] = [list(schemas.get_task_schema()["properties"]), list(schemas.get_resources_schema()["properties"])]
print("RESULTS" + json.dumps(results))
"""

LAUNCH = ["launch", "tiny.toml", "--accelerators", "H100:1", "--dry-run"]
REFUSED = {
    "dear": [*LAUNCH, "--max-price", "1"],
    "unknown": ["launch", "tiny.toml", "--accelerators", "H1000:1"],
    "many": ["launch", "tiny.toml", "--accelerators", "H100:2", "--num-devices", "2"],
    "nowhere": [*LAUNCH, "--cloud", "runpot"],
    "no region": [*LAUNCH, "--cloud", "runpod//x"],
    "no credentials": ["launch", "tiny.toml", "--accelerators", "H100:1", "--cloud", "aws"],
}
PRIVATE = "git+https://${TOKEN}@example.org/me/rljax"
COMMANDS = [
    ["launch", "--cluster", "a", "--secret", "TOKEN", "--yes", "--detach-run", "tiny.toml"],
    ["jobs", "launch", "--name", "a", "--yes", "--detach-run", "tiny.toml"],
    ["jobs", "queue"],
    ["status", "a"],
    ["queue", "a"],
    ["down", "a", "--yes"],
    ["jobs", "cancel", "--name", "a", "--yes"],
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from sky.skylet import constants

    home = tmp_path_factory.mktemp("home")
    (home / "tiny.toml").write_text(TINY_TOML)
    for name, rows in CATALOGUE.items():
        file = home / ".sky" / "catalogs" / constants.CATALOG_SCHEMA_VERSION / name
        file.parent.mkdir(parents=True)
        file.write_text("\n".join(rows) + "\n")
    launches = [
        [*LAUNCH, "--max-price", "3", "--run-dir", "launches/cheapest"],
        [*LAUNCH, "--max-price", "3", "--cloud", "runpod", "--run-dir", "launches/there"],
        [*LAUNCH, "--max-price", "3", "--spot", "--sync", "s3://bucket/runs", "--run-dir", "launches/spot", "--install", PRIVATE],
        *REFUSED.values(),
    ]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(launches), json.dumps(COMMANDS)],
        cwd=home,
        env={**os.environ, "HOME": str(home), "JAX_PLATFORMS": "cpu", "TOKEN": "s3cret"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULTS")] or [done.stderr]
    return {**json.loads(line.removeprefix("RESULTS")), "home": home}


@pytest.mark.slow
def test_offers_are_shown_by_price_and_the_optimizer_takes_the_cheapest_one_that_is_allowed(results: dict[str, Any]) -> None:
    for (status, out, err), count in zip(results["runs"][:3], (2, 1, 1), strict=True):
        assert (status, err) == (0, "")
        assert "checked by SkyPilot, and nothing is rented" in out
        assert out.count(" an hour ") == count
    assert results["runs"][0][1].startswith(
        "  $  1.87 an hour  vast        1x-H100-32-65536  (Texas, US, NA)\n  $  2.80 an hour  runpod"
    )
    assert results["picked"]["cheapest"] == ["Vast", "1x-H100-32-65536", False, 1.87]
    assert results["picked"]["there"] == ["RunPod", "large", False, 2.8]
    assert results["picked"]["spot"] == ["RunPod", "large", True, 1.4]  # vast has no such price in the catalogue


@pytest.mark.slow
def test_bad_input_is_one_line_and_nothing_is_written(results: dict[str, Any]) -> None:
    messages = {
        "dear": "max_price = 1: the cheapest offer is $1.87 an hour (vast, Texas, US, NA)",
        "unknown": "accelerators = 'H1000': nobody offers that: did you mean 'H100'?",
        "many": "accelerators = 'H100:2': nobody offers such a machine; there are some with 1, 8 of them",
        "nowhere": "cloud = 'runpot': did you mean 'runpod'?",
        "no region": "SkyPilot refuses the task: ",
        "no credentials": "SkyPilot has credentials only of runpod, vast: `sky check` says",
    }
    for (status, _, err), name in zip(results["runs"][3:], REFUSED, strict=True):
        assert (status, err.count("\n")) == (2, 1), err
        assert messages[name] in err
    assert set(results["picked"]) == {"cheapest", "there", "spot"}


@pytest.mark.slow
def test_skypilot_knows_the_keys_and_the_commands(results: dict[str, Any]) -> None:
    task, resources = map(set, results["keys"])
    assert task >= TASK_KEYS
    assert resources >= RESOURCE_KEYS
    assert [bool(params.get("yes")) for params in results["commands"]] == [True, True, False, False, False, True, True]


@pytest.mark.slow
def test_no_server_of_skypilot_is_started(results: dict[str, Any]) -> None:
    assert not (results["home"] / ".sky" / "api_server").exists()
