"""Kill -9 of runs, sweeps and studies, again and again, and what they come to in the end.

Each try is one kill of a process that trains: at a random moment, or within a random operation on its files (the k-th that Python
makes in the run's folder). Some kills later the run goes on to its end, and must be bit for bit what it would have been; so must
the table of a sweep; a study keeps every trial that was told. In between, whatever is there must be read without a word: nothing
half written is taken for a checkpoint, or a folder.

Processes are forked from one that has imported everything and asked JAX for nothing (a fork after that is not safe).

    python -m tests.campaigns.kill --tries 1000
    python -m tests.campaigns.kill --tries 100 --kinds saves sweep "ppo with memory"
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import optuna  # noqa: F401 (imported before the forks)
import orbax.checkpoint  # noqa: F401

import rljax
import rljax.run.search.study
import rljax.run.search.sweep_plot
import rljax.run.search.tune
from rljax.core.config import Config
from rljax.core.config_files import config_table
from rljax.core.places import atomic_folder
from rljax.run.files.checkpoint import CHECKPOINTS, CheckpointWriter, checkpoint_steps, link, write_checkpoint
from rljax.run.files.folder import load_checkpoint, read_config, read_info
from rljax.run.progress import Silent
from tests.campaigns.campaign import Campaign, keep_compiled, main, scratch
from tests.run.tiny_runs import TINY, VARIANTS, assert_same_run, assert_same_state
from tests.run.tiny_teacher import ready

for name in rljax.__all__:  # imported before the forks
    getattr(rljax, name)

FULL_SIZE = 1000
"""Kills of the whole campaign, over all kinds."""

SECONDS = 60
"""A process that computes for longer hangs: of the processor's time, so that a busy machine makes no failures."""

WAITING = 600.0
"""A process that waits for longer hangs, and the one that compiles for all others."""

KILLS = 6
"""Before a run is trained to its end and compared."""

LONGEST = 10.0
"""Seconds after which a process is killed, at most: the one that is not killed may also wait for its compiler."""

OPERATIONS = {"open", "os.rename", "os.mkdir", "os.symlink", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
"""Those that Python tells of before it makes them."""

SWEEP = rljax.PPOConfig(
    env="CartPole-v1", num_envs=4, num_steps=16, num_minibatches=2, total_timesteps=640, network={"hidden": [8]}
)
SPACE = {"learning_rate": [1e-3, 1e-2, 3e-2], "gamma": [0.9, 0.99]}
RANGES = {"learning_rate": rljax.Range(1e-5, 1e-1, log=True)}


class Announced(Silent):
    """Says when everything is compiled: before that, nothing but the first checkpoint is written."""

    def __init__(self, say: Callable[[], None]):
        self.say = say

    def compiled(self) -> None:
        self.say()


class Kind:
    """Something to kill: `train` begins it in a folder or goes on with it, `check` says what is wrong meanwhile."""

    configs: Mapping[str, Config] = MappingProxyType({})
    """What it trains, by name."""

    def __init__(self, name: str, folder: Path):
        self.name, self.folder, self.whole, self.kills = name, folder / "killed", folder / "whole", 0
        self.operations, self.seconds = 1, 0.0

    def train_whole(self) -> None:
        """Train the one that is not killed; note how many operations on files it makes, and for how long it writes some."""
        count = self.whole.with_name("operations")

        def act(say: Callable[[], None]) -> None:
            made = count_operations(self.whole)
            self.train(self.whole, say)
            count.write_text(str(next(made)))

        began: list[float] = []
        checked(f"{self.name}, not killed", forked(act, lambda _, said: began.extend(when_said(said)), WAITING))
        self.operations, self.seconds = int(count.read_text()), time.monotonic() - began[0]

    def train(self, folder: Path, say: Callable[[], None]) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Raise where something was lost. In a process of its own, as it may ask JAX."""

    def compare(self) -> None:
        """Raise where the killed one has not come to what the whole one came to."""


class Run(Kind):
    """A run of an algorithm, of one seed or two."""

    def __init__(self, name: str, folder: Path, seeds: int | None):
        super().__init__(name if seeds is None else f"{name} x {seeds}", folder)
        self.config, self.seeds = {**TINY, **VARIANTS}[name], seeds
        self.configs = {name: self.config}

    def train(self, folder: Path, say: Callable[[], None]) -> None:
        how: dict[str, Any] = {"checkpoint_every": 64, "keep": 2, "seeds": self.seeds, "progress": Announced(say)}
        rljax.fit(ready(self.config), run_dir=folder, resume=True, **how)

    def check(self) -> None:
        if not self.folder.exists():
            return
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing is damaged, so nothing is passed over
            config, info = read_config(self.folder), read_info(self.folder)
            found = load_checkpoint(self.folder).meta["step"]
        assert config == self.config, "another configuration"
        assert info.seeds == self.seeds, "another number of seeds"
        no_step_back(self.folder, found)

    def compare(self) -> None:
        assert_same_run(self.folder, self.whole)


class Sweep(Kind):
    """A sweep of twelve runs in three batches."""

    configs = MappingProxyType({"sweep": SWEEP})

    def train(self, folder: Path, say: Callable[[], None]) -> None:
        say()
        if folder.exists():
            rljax.resume_sweep(folder, batch_size=4)
        else:
            rljax.sweep(SWEEP, SPACE, seeds=2, episodes=3, batch_size=4, run_dir=folder)

    def compare(self) -> None:
        for name in ("results.csv", "best.toml"):
            assert (self.folder / name).read_bytes() == (self.whole / name).read_bytes(), f"another {name}"


class Study(Kind):
    """A study of twelve trials; which ones it tries depends on those that were killed, so what was told must stay."""

    configs = MappingProxyType({"study": SWEEP})

    def train(self, folder: Path, say: Callable[[], None]) -> None:
        say()
        how: dict[str, Any] = {"trials": 12, "batch_size": 4}
        if folder.exists():
            rljax.resume_tune(folder, **how)
        else:
            rljax.tune(SWEEP, RANGES, episodes=2, run_dir=folder, **how)

    def _finished(self) -> set[str]:
        journal = self.folder / "study.journal"
        lines = journal.read_bytes().splitlines() if journal.exists() else []
        told = [json.loads(line) for line in lines if line.startswith(b'{"op_code":6')]  # a trial's state and values
        return {json.dumps([x["trial_id"], x["state"], x["values"]]) for x in told}

    def check(self) -> None:
        noted = self.folder.parent / "told"
        before = set(json.loads(noted.read_text())) if noted.exists() else set()
        now = self._finished()
        assert before <= now, "trials that were told are gone"
        noted.write_text(json.dumps(sorted(now)))

    def compare(self) -> None:
        study = rljax.run.search.study.open_study(str(self.folder / "study.journal"), "percentile")
        states = [trial.state.name for trial in study.get_trials()]
        done = sum(state in ("COMPLETE", "PRUNED") for state in states)
        assert done >= 12, states
        assert "RUNNING" not in states, states
        assert (self.folder / "best.toml").exists()


class Saves(Kind):
    """Checkpoints of numbers that are known by their step, written as a run writes them: without training a try is cheap."""

    STEPS = 12

    def state(self, step: int) -> dict[str, np.ndarray]:
        return {"a": np.random.default_rng(step).random((40, 50), np.float32), "step": np.array(step)}

    def train(self, folder: Path, say: Callable[[], None]) -> None:
        say()
        if not folder.exists():
            with atomic_folder(folder) as aside:
                (aside / CHECKPOINTS).mkdir()
                write_checkpoint(aside / CHECKPOINTS, 0, self.state(0), {"iteration": 0})
                link(aside / CHECKPOINTS, "latest", 0)
        start = load_checkpoint(folder).meta["step"]
        best = start // 5 * 5 or None
        for name, step in (("latest", start), ("best", best)):  # as a run does that goes on
            if step is not None and (folder / CHECKPOINTS / f"step_{step}").exists():
                link(folder / CHECKPOINTS, name, step)
        writer = CheckpointWriter(folder / CHECKPOINTS, keep=2, best_step=best)
        for step in range(start + 1, self.STEPS + 1):
            writer.save(step, self.state(step), {"iteration": step}, np.zeros((1, 1, 1), np.float32), best=step % 5 == 0)
        writer.close()

    def check(self) -> None:
        if not self.folder.exists():
            return
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            saved = load_checkpoint(self.folder)
        no_step_back(self.folder, saved.meta["step"])
        assert_same_state(saved.arrays, self.state(saved.meta["step"]))

    def compare(self) -> None:
        self.check()
        links = {name: os.readlink(self.folder / CHECKPOINTS / name) for name in ("latest", "best")}
        assert links == {"latest": f"step_{self.STEPS}", "best": "step_10"}, links
        found = checkpoint_steps(self.folder / CHECKPOINTS)
        # A kill between the last save and the removal of the oldest checkpoint leaves that one: nothing is saved after it.
        assert found in ([12, 11, 10], [12, 11, 10, 9]), found


def no_step_back(folder: Path, found: int) -> None:
    """Raise where a checkpoint that was there is there no more."""
    noted = folder.parent / "steps"
    before = int(noted.read_text()) if noted.exists() else 0
    assert found >= before, f"at step {before} before, at {found} now"
    noted.write_text(str(found))


def kinds_in(folder: Path) -> list[Kind]:
    """All algorithms, two of them with several seeds, sweeps, studies, and checkpoints alone; they take turns."""
    names = [*TINY, *VARIANTS]
    kinds: list[Kind] = [Run(name, folder / name.replace(" ", "_"), None) for name in names]
    kinds += [Run(name, folder / f"{name}_2", 2) for name in ("ppo", "dqn")]
    return [*kinds, Sweep("sweep", folder / "sweep"), Study("study", folder / "study"), Saves("saves", folder / "saves")]


KINDS = tuple(kind.name for kind in kinds_in(Path()))


def forked(
    act: Callable[[Callable[[], None]], None], kill: Callable[[int, int], None] | None, seconds: float = SECONDS
) -> tuple[int, str]:
    """`act(say)` in a process of its own: the signal that ended it (0: none), and what it raised. `kill(pid, pipe)` ends it."""
    said, say = os.pipe()
    raised, report = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends a process
            act(lambda: os.write(say, b"x") and None)
            os._exit(0)
        except BaseException as error:
            lines = traceback.format_exception_only(error)
            os.write(
                report,
                f"{lines[-1].strip()} ({type(error).__name__} at {traceback.extract_tb(error.__traceback__)[-1]})".encode(),
            )
            os._exit(1)
    os.close(say)
    os.close(report)
    watch = threading.Thread(target=kill, args=(child, said)) if kill is not None else None
    timer = threading.Timer(WAITING, os.kill, (child, signal.SIGABRT))
    timer.start()
    if watch is not None:
        watch.start()
    with os.fdopen(raised, "rb") as stream:
        words = stream.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    timer.cancel()
    if watch is not None:
        watch.join()
    os.close(said)
    ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if ended == signal.SIGPROF:
        words = f"hung: computed for {seconds:.0f} s"
    if ended == signal.SIGABRT:
        words = f"hung for {WAITING:.0f} s"
    return ended, words


def count_operations(folder: Path, last: int | None = None) -> Iterator[int]:
    """Count the operations on files of a folder from now on; within the `last`-th this process is killed."""
    prefix, made = str(folder.parent), itertools.count()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in OPERATIONS and any(str(x).startswith(prefix) for x in arguments[:2]) and next(made) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return made


def when_said(said: int) -> list[float]:
    """When a process has said that it is compiled; empty if it ended before."""
    return [time.monotonic()] if os.read(said, 1) else []


def kill_later(seconds: float) -> Callable[[int, int], None]:
    """Kills a process a while after it has said that it is compiled, or when it has ended."""

    def kill(pid: int, said: int) -> None:
        if when_said(said):
            time.sleep(seconds)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    return kill


def checked(what: str, ended: tuple[int, str]) -> None:
    if ended != (0, ""):
        raise AssertionError(f"{what}: {ended[1] or f'signal {ended[0]}'}")


def attempt(kinds: list[Kind], seed: int) -> list[str]:
    """One kill; after `KILLS` of them, or when it had ended before, the comparison with the whole one."""
    draw = random.Random(seed)
    kind = kinds[seed % len(kinds)]
    if not kind.whole.exists():
        kind.train_whole()
    try:
        return killed(kind, draw)
    except Exception:
        begin_again(kind)  # what one kill has lost is told once
        raise


def killed(kind: Kind, draw: random.Random) -> list[str]:
    how = draw.choice(["operation", "moment"])
    if how == "operation":
        last = int(draw.triangular(0, kind.operations, 0))

        def act(say: Callable[[], None]) -> None:
            count_operations(kind.folder, last)
            kind.train(kind.folder, say)

        ended = forked(act, None)
    else:
        later = kill_later(draw.triangular(0, min(kind.seconds, LONGEST), 0))
        ended = forked(lambda say: kind.train(kind.folder, say), later)
    kind.kills += ended[0] == signal.SIGKILL
    if ended[0] != signal.SIGKILL:
        checked(f"{kind.name}, trained", ended)
    seen = [f"killed: {how}" if ended[0] else "had come to its end"]
    left = [p.name for p in (kind.folder / "checkpoints").glob(".*")] if (kind.folder / "checkpoints").exists() else []
    seen += ["a write was under way"] if left else []
    seen += ["before there was a folder"] if not kind.folder.exists() else []
    checked(f"{kind.name}, after {how}", forked(lambda _: kind.check(), None))
    kills = kind.folder.parent / "kills"
    done = (int(kills.read_text()) if kills.exists() else 0) + bool(ended[0])
    kills.write_text(str(done))
    if done >= KILLS or not ended[0]:
        checked(f"{kind.name}, to its end", forked(lambda say: kind.train(kind.folder, say), None))
        checked(f"{kind.name}, compared", forked(lambda _: kind.compare(), None))
        seen.append(f"compared: {kind.name}")
        left = [p.name for p in kind.folder.parent.iterdir() if p.name.startswith(".")]
        assert not left, f"left behind: {left}"
        begin_again(kind)
    return seen


def begin_again(kind: Kind) -> None:
    shutil.rmtree(kind.folder, ignore_errors=True)
    for note in ("steps", "told", "kills"):
        (kind.folder.parent / note).unlink(missing_ok=True)


def run(tries: int, seed: int, max_seconds: float | None, names: Sequence[str] = KINDS) -> tuple[Campaign, dict[str, Any]]:
    """The campaign; of some kinds only where `names` are given."""
    chosen = sorted(set(names))
    some = chosen != sorted(KINDS)
    campaign = Campaign(f"kill: {', '.join(chosen)}" if some else "kill", seed, FULL_SIZE, ["--kinds", *chosen] if some else [])
    keep_compiled()
    with scratch() as folder:
        kinds = [kind for kind in kinds_in(Path(folder)) if kind.name in chosen]
        for kind in kinds:
            kind.folder.parent.mkdir(parents=True)
        campaign.run(lambda seed: attempt(kinds, seed), tries, max_seconds)
    campaign.more["kills"] = {kind.name: kind.kills for kind in kinds}
    return campaign, {f"kill: {name}": config_table(config) for kind in kinds for name, config in kind.configs.items()}


if __name__ == "__main__":
    main(run, FULL_SIZE, KINDS)
