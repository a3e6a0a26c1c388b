"""Runs that are sent to loggers afterwards: everything arrives, nothing twice, and what is wrong is one line."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import rljax
from rljax.cli.main import main
from rljax.core.places import lock_folder
from rljax.run.files.folder import PHASES_FILE, add_checksum
from rljax.run.loggers.parts import layout, recall_identity
from rljax.run.view.log import Sent
from tests.run.saved_runs import add_records, save_run

STEPS = list(range(64, 641, 64))

pytestmark = pytest.mark.timeout(120)


class Keeper:
    """A user's logger that takes everything; a second one goes on where the first one stopped."""

    def __init__(self, known: tuple[int, ...] = (), fails_at: int | None = None):
        self.known, self.fails_at = known, fails_at
        self.runs: list[rljax.RunStart] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.media_seen: dict[str, bytes] = {}
        self.closed = 0

    def unlogged(self, run: rljax.RunStart, steps: list[int]) -> list[int]:
        return [step for step in steps if step not in self.known]

    def start(self, run: rljax.RunStart) -> None:
        self.runs.append(run)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self.fails_at:
            raise OSError("the server\nis gone")
        self.logged.append((step, dict(metrics)))

    def media(self, step: int, name: str, path: Path) -> None:
        self.media_seen[name] = path.read_bytes()

    def close(self) -> None:
        self.closed += 1


def test_a_run_that_failed_is_sent_as_one(tmp_path: Path) -> None:
    class Told(Keeper):
        told = 0

        def failed(self) -> None:
            assert not self.closed
            self.told += 1

    folder, logger, told = save_run(tmp_path / "a"), Told(), Told()
    rljax.log_run(folder, logger)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 641, "failure": "disk gone"}) + "\n")
    rljax.log_run(folder, told)
    assert (logger.told, told.told) == (0, 1)
    assert told.logged == logger.logged


def test_a_run_is_sent_as_training_would_have_logged_it(tmp_path: Path) -> None:
    folder, logger = save_run(tmp_path / "a"), Keeper()
    before = sorted(path.name for path in folder.iterdir())
    assert rljax.log_run(folder, logger) == Sent(10, 0, ["agent", "curves"], "")
    (run,) = logger.runs
    assert (run.name, run.folder, run.step, run.resumed) == ("a", folder, 0, False)
    assert (run.hyperparameters["learning_rate"], run.hyperparameters["seeds"]) == (rljax.PPOConfig().learning_rate, 3)
    assert [step for step, _ in logger.logged] == STEPS
    metrics = logger.logged[1][1]
    assert [metrics[f"seed_{i}/eval/return"] for i in range(3)] == pytest.approx([1.78, 2.78, 3.78])
    assert metrics["eval/return"] == pytest.approx(2.78)
    assert "seeds" not in metrics
    assert "step" not in metrics
    assert logger.media_seen["agent"] == (folder / "agent.gif").read_bytes()
    assert logger.media_seen["curves"].startswith(b"\x89PNG")
    assert logger.closed == 1
    assert sorted(path.name for path in folder.iterdir()) == sorted([*before, ".lock"])


def test_a_logger_gets_only_what_it_does_not_know(tmp_path: Path) -> None:
    folder, logger = save_run(tmp_path / "a", seeds=None), Keeper(known=tuple(STEPS[:4]))
    assert rljax.log_run(folder, logger)[:2] == (6, 4)
    assert [step for step, _ in logger.logged] == STEPS[4:]
    assert (logger.runs[0].step, logger.runs[0].resumed) == (STEPS[3], True)


def test_a_logger_that_fails_is_one_line_and_is_closed(tmp_path: Path) -> None:
    logger = Keeper(fails_at=192)
    with pytest.raises(rljax.RljaxError, match=r"log = 'Keeper': .*a was not sent, or not all of it: the server is gone"):
        rljax.log_run(save_run(tmp_path / "a"), logger)
    assert logger.closed == 1


def test_a_run_keeps_an_identity_for_each_place(tmp_path: Path) -> None:
    run, made = rljax.RunStart("a", tmp_path, {}, 0, False), iter("abc")
    places = ("http://one", "http://two", "http://one", "")
    assert [recall_identity(run, "mlflow", lambda: next(made), place) for place in places] == ["a", "b", "a", "c"]
    assert recall_identity(run._replace(folder=None), "mlflow", lambda: "d", "http://one") == "d"


def test_charts_are_in_groups_and_do_not_depend_on_the_number_of_seeds() -> None:
    names = ["perf/steps_per_second", "train/entropy", "train/value_loss", "league/pool", "eval/return", "episode/return",
             "train/openloop_error_1", "train/openloop_error_16", "seed_0/eval/return", "seed_12/eval/return"]  # fmt: skip
    groups = layout(names)
    assert list(groups) == ["return", "evaluation", "losses", "diagnostics", "league", "speed"]
    assert list(groups["diagnostics"]) == ["train/entropy", "train/openloop_error"]
    assert groups["evaluation"] == layout(["eval/return"])["evaluation"]


def read_events(folder: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), {"scalars": 0, "images": 0, "tensors": 0, "histograms": 0})
    events.Reload()
    return events


def scalars(events: Any, tag: str) -> list[tuple[int, float]]:
    return [(event.step, round(event.value, 4)) for event in events.Scalars(tag)]


def test_tensorboard_gets_scalars_layout_table_and_pictures_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    folder = save_run(tmp_path / "a", range(64, 321, 64))
    rljax.log_run(folder, "tensorboard")
    add_records(folder, range(384, 641, 64))  # the run goes on
    assert rljax.log_run(folder, "tensorboard")[:2] == (5, 5)
    assert rljax.log_run(folder, "tensorboard")[:2] == (0, 10)
    events = read_events(folder / "tensorboard")
    assert scalars(events, "episode/return") == [(step, round(1 + step / 100, 4)) for step in STEPS]
    assert scalars(events, "seed_2/eval/return") == [(step, round(2.5 + step / 100, 4)) for step in STEPS if step % 128 == 0]
    (config,) = events.Tensors("custom_scalars__config__")
    categories = Layout.FromString(config.tensor_proto.string_val[0]).category
    assert [category.title for category in categories] == ["return", "evaluation", "losses", "diagnostics", "speed"]
    assert categories[1].chart[0].multiline.tag == [r"(seed_\d+/)?eval/return(_\d+)?$"]
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    table = HParamsPluginData.FromString(content).session_start_info.hparams
    assert table["gamma"].number_value == rljax.PPOConfig().gamma
    assert (table["network.hidden"].string_value, table["anneal_lr"].bool_value) == ("[16]", rljax.PPOConfig().anneal_lr)
    (video,) = events.Images("media/agent")
    assert (video.encoded_image_string, video.width, video.height) == ((folder / "agent.gif").read_bytes(), 32, 24)
    assert [event.step for event in events.Images("media/curves")] == [320, 640]  # another curve after more training
    assert len(events.Tensors("hyperparameters/text_summary")) == 1


def test_tensorboard_gets_the_beginning_of_a_run_whose_end_it_has(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    folder = save_run(tmp_path / "a", range(384, 641, 64))
    rljax.log_run(folder, "tensorboard")
    (folder / "metrics.jsonl").unlink()
    add_records(folder, range(64, 641, 64))
    assert rljax.log_run(folder, "tensorboard")[:2] == (10, 0)
    assert [step for step, _ in scalars(read_events(folder / "tensorboard"), "episode/return")] == STEPS


def wandb_records(file: Path) -> Iterator[Any]:
    """Read the file of an offline run, which is a log in the format of LevelDB: wandb has no reader of its own for it."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record = file.read_bytes(), 7, b""
    while at < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(record)
            record = b""


def finished_records(file: Path) -> list[Any]:
    """Return the records of an offline run once it has its last one: wandb's own process writes them, also after `finish`."""
    from google.protobuf.message import DecodeError

    for _ in range(600):
        with contextlib.suppress(struct.error, DecodeError):  # the file is being written
            records = list(wandb_records(file))
            if records and records[-1].WhichOneof("record_type") == "exit":
                return records
        time.sleep(0.1)
    raise AssertionError(f"{file.name} has no last record after a minute")


@pytest.mark.slow
def test_wandb_gets_one_run_whole_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder = save_run(tmp_path / "a")
    for _ in range(2):
        assert rljax.log_run(folder, "wandb")[:3] == (10, 0, ["agent", "curves"])
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert len({file.stem for file in files}) == 1  # one identity
    records = finished_records(files[-1])
    (run,) = [r.run for r in records if r.WhichOneof("record_type") == "run"]
    assert json.loads({u.key: u.value_json for u in run.config.update}["gamma"]) == rljax.PPOConfig().gamma
    metrics = {r.metric.name: r.metric for r in records if r.WhichOneof("record_type") == "metric"}
    assert (metrics["eval/return"].step_metric, metrics["eval/return"].summary.max) == ("step", True)
    rows = [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in r.history.item}
            for r in records if r.WhichOneof("record_type") == "history"]  # fmt: skip
    assert [(row["step"], row["episode/return"]) for row in rows[:10]] == [(s, pytest.approx(1 + s / 100)) for s in STEPS]
    assert [row["seeds/eval/return/2"] for row in rows[:10] if "eval/return" in row] == pytest.approx(
        [2.5 + step / 100 for step in STEPS if step % 128 == 0]
    )
    kinds = {key.removesuffix("/_type"): value for row in rows[10:] for key, value in row.items() if key.endswith("/_type")}
    assert (kinds["media/agent"], kinds["media/curves"]) == ("video-file", "image-file")
    assert kinds["seeds/eval/return_table"] == "table-file"


@pytest.mark.slow
def test_wandb_without_a_login_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wandb = pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # where nobody listens
    wandb.teardown()  # it keeps the settings of an earlier test
    with pytest.raises(SystemExit) as stop:
        main(["log", str(save_run(tmp_path / "a")), "--log", "wandb"])
    assert stop.value.code == 2
    wandb.teardown()
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("rljax:")]
    assert "log = 'wandb'" in line
    assert "WANDB_MODE=offline" in line


@pytest.mark.slow
def test_mlflow_gets_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    database = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.chdir(tmp_path)
    folder = save_run(tmp_path / "a", range(64, 321, 64))
    rljax.log_run(folder, "mlflow")
    add_records(folder, range(384, 641, 64))
    assert rljax.log_run(folder, "mlflow")[:2] == (5, 5)
    client = mlflow.MlflowClient(tracking_uri=database)
    (run,) = client.search_runs([client.get_experiment_by_name("rljax").experiment_id])
    assert run.data.params["gamma"] == str(rljax.PPOConfig().gamma)
    history = client.get_metric_history(run.info.run_id, "seed_1/episode/return")
    assert sorted((m.step, m.value) for m in history) == [(step, pytest.approx(1 + step / 100)) for step in STEPS]
    assert {file.path for file in client.list_artifacts(run.info.run_id, "media")} >= {"media/agent.gif", "media/curves.png"}
    assert (run.info.status, run.info.run_name) == ("FINISHED", "a")


@pytest.mark.slow
@pytest.mark.parametrize("service", ["mlflow", "aim"])
def test_a_run_that_the_service_has_lost_is_one_line_that_says_what_to_do(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(service)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("AIM_REPO", str(tmp_path))
    folder = save_run(tmp_path / "a", seeds=None)
    rljax.log_run(folder, service)
    file = folder / f".{service}_id"
    identity = file.read_text().split()[0]
    file.write_text(file.read_text().replace(identity, "0" * len(identity)))
    with pytest.raises(rljax.ConfigError, match=rf"has no run \w+ any more; to send it as a new run, delete .*\.{service}_id$"):
        rljax.log_run(folder, service)
    file.unlink()
    assert rljax.log_run(folder, service)[:2] == (10, 0)


@pytest.mark.slow
def test_aim_replaces_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aim = pytest.importorskip("aim")
    from aim.storage.context import Context

    monkeypatch.setenv("AIM_REPO", str(tmp_path))
    folder = save_run(tmp_path / "a")
    for _ in range(2):
        rljax.log_run(folder, "aim")
    assert len(list((tmp_path / ".aim" / "meta" / "chunks").iterdir())) == 1
    run = aim.Run((folder / ".aim_id").read_text().split()[0], repo=str(tmp_path), log_system_params=False)
    _, values = run.get_metric("episode/return", Context({"seed": 2})).values.sparse_list()
    assert sorted(values) == pytest.approx([2 + step / 100 for step in STEPS])
    (video,) = run.get_image_sequence("media/agent", Context({})).values.sparse_list()[1]
    picture: Image.Image = video.to_pil_image()
    assert (picture.format, getattr(picture, "n_frames", 1)) == ("GIF", 4)
    assert run["hparams"]["network"]["hidden"] == [16]
    run.close()


def refused(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    """`rljax log` ends with this status and one line on standard error: that line."""
    with pytest.raises(SystemExit) as stop:
        main(["log", *arguments])
    captured = capsys.readouterr()
    assert (stop.value.code, captured.err.count("\n")) == (status, 1), captured.err
    return captured.err


def test_bad_input_is_one_line_before_anything_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(save_run(tmp_path / "a"))
    empty = str(save_run(tmp_path / "b", range(0)))
    assert "log = 'tensorbord': did you mean 'tensorboard'" in refused(capsys, 2, run, "--log", "tensorboard,tensorbord")
    assert "at least one of: tensorboard, wandb" in refused(capsys, 2, run)
    assert "RUNS: is missing" in refused(capsys, 2, "--log", "tensorboard")
    assert "no run there" in refused(capsys, 2, run, str(tmp_path), "--log", "tensorboard")
    assert "nothing recorded yet" in refused(capsys, 2, run, empty, "--log", "tensorboard")
    other, video = save_run(tmp_path / "c"), (tmp_path / "c" / "agent.gif").read_bytes()
    with lock_folder(other):
        assert "another process is training there" in refused(capsys, 2, run, str(other), "--log", "tensorboard")
        assert "another process is training there" in refused(capsys, 2, str(other), "--log", "tensorboard", "--record")
    # A run that cannot be recorded, as it has no checkpoint.
    refused(capsys, 2, run, str(other), "--log", "tensorboard", "--record")
    assert (other / "agent.gif").read_bytes() == video
    assert not (tmp_path / "a" / "tensorboard").exists()


def test_the_phases_of_a_run_that_have_begun_are_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboardX")
    phases = '[phases.one]\nalgorithm = "ppo"\n[phases.two]\nalgorithm = "ppo"\ninit_from = "one"\n'
    (tmp_path / PHASES_FILE).write_text(add_checksum(phases))
    run = save_run(tmp_path / "one", range(64, 129, 64), seeds=None)
    main(["log", str(tmp_path), "--log", "tensorboard"])
    assert f"{run} -> tensorboard: 2 records, agent, curves" in " ".join(capsys.readouterr().out.split())
    assert (run / "tensorboard").is_dir()


@pytest.mark.slow
def test_a_server_that_is_not_there_fails_alone_and_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    runs = [str(save_run(tmp_path / name, seeds=None)) for name in ("a", "b")]
    with pytest.raises(SystemExit) as stop:
        main(["log", *runs, "--log", "mlflow", "tensorboard"])
    captured = capsys.readouterr()
    assert stop.value.code == 1
    (line,) = [line for line in captured.err.splitlines() if line.startswith("rljax:")]
    assert f"log = 'mlflow': {runs[0]} was not sent to {address}" in line
    assert all(f"{run} -> tensorboard: 10 records, agent, curves" in " ".join(captured.out.split()) for run in runs)
