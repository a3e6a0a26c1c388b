"""Loggers: what they are told, several at once, and one that fails."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import shutil
import sqlite3
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chex
import jax
import numpy as np
import optax
import pytest

import rljax
from rljax.run.files.checkpoint import checkpoint_steps
from rljax.run.loggers import several
from rljax.run.loggers.mlflow import MLflow
from rljax.run.loggers.parts import recall_identity
from rljax.run.loggers.several import recent_gradients
from rljax.run.loggers.tensorboard import TensorBoard
from tests.run.tiny_data import tiny_dataset
from tests.run.tiny_runs import CONFIG, TINY, records

SHORT = CONFIG.replace(total_timesteps=64 * 6, eval_every=128)


class Recorder:
    """A user's logger, written from the protocol alone."""

    def __init__(self) -> None:
        self.runs: list[rljax.RunStart] = []
        self.logged: list[tuple[int, Mapping[str, float]]] = []
        self.failures = self.closed = 0

    def start(self, run: rljax.RunStart) -> None:
        self.runs.append(run)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.logged.append((step, dict(metrics)))

    def failed(self) -> None:
        self.failures += 1

    def close(self) -> None:
        self.closed += 1


class Failing(Recorder):
    def __init__(self, where: str):
        super().__init__()
        self.where, self.calls = where, 0

    def _maybe(self, where: str) -> None:
        self.calls += 1
        if where == self.where:
            raise OSError("the server\nis gone")

    def start(self, run: rljax.RunStart) -> None:
        self._maybe("start")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._maybe("log")

    def close(self) -> None:
        self._maybe("close")


@pytest.mark.slow
def test_loggers_get_what_metrics_jsonl_gets(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    rljax.fit(SHORT, run_dir=tmp_path / "a", loggers=[first, second])
    hyperparameters, *rest = records(tmp_path / "a")
    (run,) = first.runs
    assert (run.name, run.folder, run.step, run.resumed) == ("a", tmp_path / "a", 0, False)
    assert run.hyperparameters == hyperparameters["hyperparameters"]
    assert [step for step, _ in first.logged] == [r["step"] for r in rest] == [64 * (i + 1) for i in range(6)]
    for (_, metrics), record in zip(first.logged, rest, strict=True):
        assert {k: None if math.isnan(v) else v for k, v in metrics.items() if not k.startswith("perf/")} == {
            k: v for k, v in record.items() if k != "step"
        }
    assert [step for step, _ in second.logged] == [step for step, _ in first.logged]
    assert (first.closed, second.closed) == (1, 1)


class Holding(Recorder):
    """Holds all records back, and notes at each flush the step of the last one and which checkpoints there are."""

    def __init__(self, checkpoints: Path):
        super().__init__()
        self.checkpoints = checkpoints
        self.flushed: list[tuple[int, list[int]]] = []

    def flush(self) -> None:
        self.flushed.append((self.logged[-1][0], checkpoint_steps(self.checkpoints)))


@pytest.mark.slow
def test_records_before_a_checkpoint_are_flushed_before_it_is_there(tmp_path: Path) -> None:
    checkpoints = tmp_path / "a" / "checkpoints"
    holding = Holding(checkpoints)
    rljax.fit(SHORT, run_dir=tmp_path / "a", loggers=[holding, Recorder()], checkpoint_every=128, keep=None)
    assert [step for step, _ in holding.flushed] == [128, 256, 384]
    assert set(checkpoint_steps(checkpoints)) >= {128, 256, 384}
    for step, there in holding.flushed:
        assert step not in there


@pytest.mark.slow
def test_a_resumed_run_tells_loggers_where_it_goes_on(tmp_path: Path) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "a", callback=lambda step, _: step >= 500)
    logger = Recorder()
    done = records(tmp_path / "a")[-1]["step"]
    rljax.fit(resume=tmp_path / "a", loggers=[logger])
    assert logger.runs[0].step == done > 0
    assert logger.runs[0].resumed
    assert [step for step, _ in logger.logged] == list(range(done + 64, 1537, 64))


@pytest.mark.slow
def test_seeds_reach_loggers_as_aggregates_and_one_by_one() -> None:
    logger = Recorder()
    rljax.fit(SHORT, seeds=2, loggers=[logger])
    step, metrics = logger.logged[-1]
    assert step == 384
    assert metrics["eval/return"] == pytest.approx((metrics["seed_0/eval/return"] + metrics["seed_1/eval/return"]) / 2)


@pytest.mark.slow
def test_one_logger_is_given_without_a_list() -> None:
    logger = Recorder()
    rljax.fit(SHORT, loggers=logger)
    assert (len(logger.runs), logger.closed) == (1, 1)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Recorder, "loggers: Recorder is a class, expected an object made from it: Recorder()"),
        (3, "loggers: 3 has no method start, expected an object with start, log, close, or a name: "),
    ],
)
def test_what_is_no_logger_is_refused(given: Any, message: str, alone: bool) -> None:
    with pytest.raises(rljax.ConfigError, match=re.escape(message)):
        rljax.fit(SHORT, loggers=given if alone else [Recorder(), given])


@pytest.mark.slow
@pytest.mark.parametrize("where", ["start", "log", "close"])
def test_a_logger_that_fails_is_dropped_with_one_warning_and_training_goes_on(where: str, tmp_path: Path) -> None:
    failing, other = Failing(where), Recorder()
    with pytest.warns(
        rljax.RljaxWarning, match="logger Failing failed and is switched off; training continues: the server is gone"
    ) as caught:
        rljax.fit(SHORT, run_dir=tmp_path / "a", loggers=[failing, other])
    assert len([w for w in caught if w.category is rljax.RljaxWarning]) == 1
    assert failing.calls == {"start": 2, "log": 3, "close": 8}[where]
    assert len(other.logged) == 6
    assert len(records(tmp_path / "a")) == 7


def test_an_unknown_or_missing_logger_is_one_line_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(rljax.ConfigError, match="log = 'tensorbord': did you mean 'tensorboard'"):
        rljax.fit(SHORT, run_dir=tmp_path / "a", loggers=["tensorbord"])
    monkeypatch.setitem(several.LOGGERS, "wandb", (several.WandB, "not_installed_anywhere"))
    with pytest.raises(rljax.ConfigError, match=r"log = 'wandb': .* is not installed: pip install 'rljax-jit\[wandb\]'"):
        rljax.fit(SHORT, run_dir=tmp_path / "a", loggers=["wandb"])
    assert not (tmp_path / "a").exists()


@pytest.mark.long
def test_recent_gradients_are_adams_first_moment_by_parameter() -> None:
    """One gradient step from rest: the moment is (1 - b1) times the clipped gradient, whose norm is at most max_grad_norm."""
    config = SHORT.replace(num_epochs=1, num_minibatches=1, max_grad_norm=1e-3)
    agent = rljax.make_agent(config)
    state, _ = jax.jit(agent.step)(agent.init(jax.random.key(0)))
    gradients = recent_gradients(state)
    assert jax.tree.structure(gradients) == jax.tree.structure(state.params)
    assert [g.shape for g in jax.tree.leaves(gradients)] == [p.shape for p in jax.tree.leaves(state.params)]
    norm = np.sqrt(sum(float(np.square(g).sum()) for g in jax.tree.leaves(gradients)))
    assert norm == pytest.approx(0.1 * 1e-3, rel=1e-4)
    several = jax.vmap(agent.init)(jax.random.split(jax.random.key(0), 3))
    assert [g.shape for g in jax.tree.leaves(recent_gradients(several))] == [p.shape for p in jax.tree.leaves(several.params)]


def adam(params: Any, axes: int | None = None) -> Any:
    """State of an Adam whose moment is equal to the parameters: as a tree, or as one vector behind so many leading axes."""
    moment = params
    if axes is not None:
        moment = np.concatenate([x.reshape(*x.shape[:axes], -1) for x in jax.tree.leaves(params)], -1)
    return (optax.ScaleByAdamState(np.zeros(()), moment, jax.tree.map(np.zeros_like, moment)), optax.EmptyState())


@pytest.mark.parametrize("leading", [(), (3,), (3, 2)])
def test_moments_have_the_axes_of_seeds_and_learners(leading: tuple[int, ...]) -> None:
    def params(start: float) -> Any:
        kernel, bias = (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in ((*leading, 2, 4), (*leading, 4)))
        return {"mu": {"kernel": start + kernel}, "head": {"bias": -start - bias}}

    one, axes = params(0), len(leading)
    two = {"actor": one, "critic": params(100)}
    for given, opt_state in (
        (one, adam(one)),
        (one, adam(one, axes)),
        (two, adam(two, axes)),
        (two, {name: adam(each, axes) for name, each in two.items()}),
    ):
        found = recent_gradients(SimpleNamespace(params=given, opt_state=opt_state))
        chex.assert_trees_all_equal(found, given)


def test_moments_of_several_optimizers_have_the_paths_of_these() -> None:
    params = {"actor": np.arange(3.0), "critic": np.arange(4.0)}
    optimizers = {"first": optax.adam(1.0), "second": optax.adam(1.0)}
    both = optax.multi_transform(optimizers, {"actor": "first", "critic": "second"})
    for opt_state in (both.init(params), (adam(params["actor"]), adam(params["critic"]))):
        found = recent_gradients(SimpleNamespace(params=params, opt_state=opt_state))
        assert sorted(x.shape for x in jax.tree.leaves(found)) == [(3,), (4,)]
        assert len(found) == 2
    assert recent_gradients(SimpleNamespace(params=params, opt_state=optax.sgd(1.0).init(params))) is None


@pytest.mark.parametrize(("name", "seeds"), [("self_play", 2), ("league", None), ("td3_bc", None), ("sac", None)])
def test_every_structure_of_parameters_has_gradients(name: str, seeds: int | None) -> None:
    config = TINY[name]
    if hasattr(config, "dataset"):
        tiny_dataset(config.env)
    agent = rljax.make_agent(config)
    init = agent.init if seeds is None else lambda key: jax.vmap(agent.init)(jax.random.split(key, seeds))
    state = jax.eval_shape(init, jax.random.key(0))
    params, opt_state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), (state.params, state.opt_state))
    found = recent_gradients(SimpleNamespace(params=params, opt_state=opt_state))
    assert jax.tree.structure(found) == jax.tree.structure(params)
    assert jax.tree.map(np.shape, found) == jax.tree.map(np.shape, params)


def test_gradients_that_cannot_be_found_end_the_logger_and_not_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class Drawing(Recorder):
        def histograms(self, step: int, trees: Mapping[str, Any]) -> None: ...

    def fail(state: Any) -> Any:
        raise KeyError("mu")

    monkeypatch.setattr(several, "recent_gradients", fail)
    drawing, other = Drawing(), Recorder()
    attached = several.Loggers([drawing, other])
    with pytest.warns(rljax.RljaxWarning, match="logger Drawing failed and is switched off; training continues"):
        attached.histograms(64, SimpleNamespace(params={}))
    assert attached.loggers == [other]


@pytest.mark.parametrize("error", [None, "callback", "nan"])
def test_loggers_hear_that_a_run_failed(error: str | None, tmp_path: Path) -> None:
    def callback(step: int, _: Mapping[str, float]) -> bool:
        if error == "callback":
            raise ValueError("no")
        return step >= 128

    logger, config = Recorder(), SHORT
    if error == "nan":
        config = SHORT.replace(learning_rate=1e30, max_grad_norm=None)
    with contextlib.nullcontext() if error is None else pytest.raises((rljax.RljaxError, ValueError)):
        rljax.fit(config, run_dir=tmp_path / "a", loggers=[logger], callback=callback if error != "nan" else None)
    assert (logger.failures, logger.closed) == (int(error is not None), 1)


@pytest.mark.slow
def test_metrics_of_ones_own_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("mlflow", "tensorboardX"):
        pytest.importorskip(module)
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    start = rljax.RunStart("mine", tmp_path, {}, 0, False)
    for logger in (MLflow(), TensorBoard()):
        logger.start(start)
        logger.log(8, {"env/distance (m)": 1.0, "env/50%": 2.0, "env//x": 3.0, "/../a:b": 4.0})
        logger.close()
    with sqlite3.connect(tmp_path / "mlflow" / "mlflow.db") as database:
        rows = dict(database.execute("select key, value from metrics").fetchall())
    assert rows == {"env/distance _m_": 1.0, "env/50_": 2.0, "env/x": 3.0, "a:b": 4.0}
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (arranged,) = events.Tensors("custom_scalars__config__")
    for tag in events.Tags()["scalars"]:
        assert re.escape(tag).encode() in arranged.tensor_proto.string_val[0], "each has its chart"


def test_a_full_disk_keeps_the_identities_known_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = rljax.RunStart("a", tmp_path, {}, 0, False)
    assert recall_identity(run, "aim", lambda: "first", "one") == "first"
    write = Path.write_text

    def full(path: Path, *arguments: Any, **more: Any) -> int:
        write(path, "")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(rljax.ConfigError, match="No space left on device"):
            recall_identity(run, "aim", lambda: "second", "two")
    assert recall_identity(run, "aim", lambda: "another", "one") == "first"
    assert [path.name for path in tmp_path.iterdir()] == [".aim_id"]


def test_runs_that_save_nothing_have_a_tensorboard_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboardX")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine-2").mkdir(parents=True)
    (tmp_path / "runs" / "mine-2" / "config.toml").touch()  # a run that is saved
    for _ in range(2):
        logger = TensorBoard()
        logger.start(rljax.RunStart("mine", None, {}, 0, False))
        logger.log(8, {"episode/return": 1.0})
        logger.close()
    files = [list((tmp_path / "runs" / name / "tensorboard").glob("events*")) for name in ("mine", "mine-3")]
    assert [len(found) for found in files] == [1, 1]


@pytest.mark.slow
def test_tensorboard_holds_scalars_histograms_and_text(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    rljax.fit(SHORT, run_dir=tmp_path / "a", loggers=["tensorboard"])
    events = accumulator.EventAccumulator(str(tmp_path / "a" / "tensorboard"), {"scalars": 0, "histograms": 0})
    events.Reload()
    expected = [r for r in records(tmp_path / "a") if "train/value" in r]
    logged = [(event.step, event.value) for event in events.Scalars("train/value")]
    assert logged == [(r["step"], pytest.approx(r["train/value"])) for r in expected]
    assert [event.step for event in events.Scalars("eval/return")] == [128, 256, 384]
    kernel = "params/network/actor_0/kernel"
    for kind in ("parameters", "gradients"):
        histograms = events.Histograms(f"{kind}/{kernel}")
        steps = [event.step for event in histograms]  # the ends of chunks
        assert steps == sorted(set(steps))
        assert len(steps) >= 4
        assert steps[-1] == 384
        assert {event.histogram_value.num for event in histograms} == {4 * 16}
    (text,) = events.Tensors("hyperparameters/text_summary")
    assert b"| learning_rate | 0.001 |" in text.tensor_proto.string_val[0]


def test_tensorboard_has_all_before_a_flush_if_the_run_is_killed_after_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logger = several.TensorBoard()
    logger.start(rljax.RunStart("a", tmp_path, {"gamma": 0.9}, 0, False))
    names = [f"train/{i}" for i in range(100)]
    for step in (64, 128):
        logger.log(step, dict.fromkeys(names, 1.0))
    logger.flush()
    shutil.copytree(tmp_path / "tensorboard", tmp_path / "killed")
    logger.close()
    events = accumulator.EventAccumulator(str(tmp_path / "killed"), {"scalars": 0})
    events.Reload()
    for name in names:
        assert [event.step for event in events.Scalars(name)] == [64, 128]


def test_tensorboard_reads_parts_of_a_run_in_order_on_clocks_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is killed after step 192 and goes on from 128 on a machine whose clock is a day behind."""
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    now = time.time
    for begun, steps, behind in ((0, (64, 128, 192), 0.0), (128, (192, 256), 86_400.0), (256, (320,), 90_000.0)):
        monkeypatch.setattr(time, "time", lambda behind=behind: now() - behind)
        logger = several.TensorBoard()
        logger.start(rljax.RunStart("a", tmp_path, {"gamma": 0.9}, begun, begun > 0))
        for step in steps:
            logger.log(step, {"train/value": float(begun)})
        logger.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"), {"scalars": 0})
    events.Reload()
    logged = [(event.step, event.value) for event in events.Scalars("train/value")]
    assert logged == [(64, 0.0), (128, 0.0), (192, 128.0), (256, 128.0), (320, 256.0)]


@pytest.mark.slow
def test_wandb_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("error", rljax.RljaxWarning)
        rljax.fit(SHORT, run_dir=tmp_path / "a", loggers=["wandb"], callback=lambda step, _: step >= 128)
        rljax.fit(resume=tmp_path / "a", loggers=["wandb"])
    files = list((tmp_path / "a" / "wandb").glob("offline-run-*/*.wandb"))
    assert files
    content = b"".join(f.read_bytes() for f in files)
    assert b"train/policy_loss" in content
    assert b"learning_rate" in content
    assert len({f.stem for f in files}) == 1  # one identity


@pytest.mark.long
def test_mlflow_keeps_a_run_in_the_folder_and_goes_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", rljax.RljaxWarning)
        rljax.fit(SHORT, run_dir=tmp_path / "a", loggers=["mlflow"], callback=lambda step, _: step >= 128)
        rljax.fit(resume=tmp_path / "a", loggers=["mlflow"])
    with sqlite3.connect(tmp_path / "a" / "mlflow" / "mlflow.db") as database:
        rows = database.execute("select run_uuid, step, value from metrics where key = 'train/value' order by step").fetchall()
        parameters = dict(database.execute("select key, value from params").fetchall())
        assert database.execute(status := "select status, end_time is not null from runs").fetchall() == [("FINISHED", 1)]
    expected = [(r["step"], r["train/value"]) for r in records(tmp_path / "a") if "train/value" in r]
    assert [(step, value) for _, step, value in rows] == [(s, pytest.approx(v)) for s, v in expected]
    assert len({run for run, _, _ in rows}) == 1
    assert parameters["learning_rate"] == "0.001"
    with pytest.raises(rljax.RljaxError):
        rljax.fit(SHORT.replace(learning_rate=1e30, max_grad_norm=None), run_dir=tmp_path / "b", loggers=["mlflow"])
    with sqlite3.connect(tmp_path / "b" / "mlflow" / "mlflow.db") as database:
        assert database.execute(status).fetchall() == [("FAILED", 1)]


@pytest.mark.slow
def test_mlflow_neither_loses_nor_doubles_the_records_of_a_run_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    killed, resumed, start = several.MLflow(), several.MLflow(), rljax.RunStart("a", tmp_path, {"gamma": 0.9}, 0, False)
    killed.start(start)
    for step in (64, 128):
        killed.log(step, {"train/value": 1.0, "train/entropy": 1.0})
    killed.flush()  # the checkpoint from which the run goes on
    killed.log(192, {"train/value": 1.0})
    killed.flush()
    killed.log(256, {"train/value": 1.0})
    resumed.start(start._replace(step=128, resumed=True, hyperparameters={"gamma": 0.9, "total_timesteps": 256}))
    for step in (192, 256):
        resumed.log(step, {"train/value": 1.0, "train/entropy": 1.0})
    resumed.close()
    with sqlite3.connect(tmp_path / "mlflow" / "mlflow.db") as database:
        rows = database.execute("select key, step from metrics order by key desc, step").fetchall()
        parameters = database.execute("select key, value from params order by key").fetchall()
    assert rows == [(name, step) for name in ("train/value", "train/entropy") for step in (64, 128, 192, 256)]
    assert parameters == [("gamma", "0.9"), ("total_timesteps", "256")]
    # The same logger goes on with another run, which has none of these records.
    resumed.start(rljax.RunStart("b", tmp_path / "b", {}, 0, False))
    resumed.log(192, {"train/value": 1.0})
    resumed.close()
    with sqlite3.connect(tmp_path / "b" / "mlflow" / "mlflow.db") as database:
        assert database.execute("select key, step from metrics").fetchall() == [("train/value", 192)]


@pytest.mark.slow
def test_aim_tracks_what_was_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aim = pytest.importorskip("aim")
    monkeypatch.setenv("AIM_REPO", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error", rljax.RljaxWarning)
        rljax.fit(SHORT, run_dir=tmp_path / "a", loggers=["aim"], callback=lambda step, _: step >= 128)
        rljax.fit(resume=tmp_path / "a", loggers=["aim"])
    identity = (tmp_path / "a" / ".aim_id").read_text().split()[0]
    run = aim.Run(identity, repo=str(tmp_path), log_system_params=False)
    assert run["hparams"]["learning_rate"] == 1e-3
    from aim.storage.context import Context

    _, values = run.get_metric("train/value", Context({})).values.sparse_list()
    run.close()
    assert sorted(values) == pytest.approx(sorted(r["train/value"] for r in records(tmp_path / "a") if "train/value" in r))
