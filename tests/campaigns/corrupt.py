"""Damage to run folders: flipped bits, cut, lost and overwritten files, each followed by every command that reads.

Allowed is the right result, one line that says what is wrong, or the checkpoint before with a warning. Not allowed is any other
exception, another state, configuration or origin than was written, and more than one record of the metrics lost to one flipped
bit. What a record of metrics.jsonl says has no checksum: a flipped digit there shows in curves, and nowhere else.

    python -m tests.campaigns.corrupt --tries 5000
"""

from __future__ import annotations

import contextlib
import functools
import io
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console

import rljax
from rljax.core.agent import make_agent
from rljax.core.config_files import config_table, dump_config
from rljax.run import start as starts
from rljax.run.files import folder as folders
from rljax.run.files.checkpoint import checkpoint_steps, named_arrays
from rljax.run.files.folder import METRICS_FILE, read_info
from rljax.run.files.records import truncate_after
from rljax.run.view.curves import read_metrics
from rljax.run.view.show import show
from tests.campaigns.campaign import Campaign, Hangs, hangs_after, keep_compiled, main, scratch

CONFIG = rljax.PPOConfig(
    env="CartPole-v1",
    num_envs=4,
    num_steps=16,
    num_minibatches=2,
    total_timesteps=640,
    network={"hidden": [8]},
    normalize_observations=True,
    eval_every=128,
    eval_episodes=3,
    seed=7,
)

FULL_SIZE = 5000
"""Tries of the whole campaign."""

SECONDS = 60
"""A try that computes for longer hangs."""

RESUMED_EVERY = 100
"""One in so many tries is resumed to the end of its budget, and must come to what it would have come to."""


class Reference:
    """An intact run and all that it says, to compare with."""

    def __init__(self, folder: Path, last: dict[str, np.ndarray]):
        self.folder, self.last = folder, last
        self.damaged: set[Path] = set()
        self.config, self.info = folders.read_config(folder), read_info(folder)
        self.steps = checkpoint_steps(folder / "checkpoints")
        self.states = {step: named_arrays(rljax.load_run(folder, checkpoint=step).state) for step in self.steps}
        self.best = rljax.load_run(folder, checkpoint="best").step
        self.history = read_metrics(folder)
        self.lines = (folder / METRICS_FILE).read_bytes().splitlines()
        self.shown = shown(folder)
        # Damaged files are read of this kind only: folders are not walked into through links.
        self.files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.parent.is_symlink() and p.name != ".lock")


def make_reference(folder: Path, seeds: int | None, forked: bool) -> Reference:
    """A run that stopped half way, of several seeds or one, anew or a fork."""
    how: dict[str, Any] = {"seeds": seeds, "checkpoint_every": 128, "keep": None}
    config = CONFIG
    if forked:
        rljax.fit(CONFIG.replace(total_timesteps=128), run_dir=folder.with_name("origin"), seeds=seeds)
        config, how["fork"] = CONFIG.replace(learning_rate=1e-3), folder.with_name("origin")
    rljax.fit(config, run_dir=folder, callback=lambda step, _: step >= 448, **how)
    whole = folder.with_name("whole")
    shutil.copytree(folder, whole, symlinks=True)
    return Reference(folder, named_arrays(rljax.fit(resume=whole).state))


def shown(folder: Path) -> str:
    out = io.StringIO()
    show(folder, console=Console(file=out, width=100, color_system=None, highlight=False))
    return out.getvalue()


def damage(path: Path, draw: random.Random) -> str:
    """Damage a file in one of many ways; says which."""
    data = bytearray(path.read_bytes())
    how = draw.choices(["flip", "flips", "cut", "lost", "zeros", "noise", "longer"], [70, 6, 8, 4, 4, 4, 4])[0]
    if how == "lost":
        path.unlink()
        return how
    if how in ("flip", "flips") and data:
        for _ in range(1 if how == "flip" else 8):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif how == "cut":
        data = data[: draw.randrange(len(data) + 1)]
    elif how == "longer":
        data += draw.randbytes(draw.randrange(1, 50))
    elif data:
        start = draw.randrange(len(data))
        stop = min(len(data), start + draw.randrange(1, 600))
        data[start:stop] = bytes(stop - start) if how == "zeros" else draw.randbytes(stop - start)
    path.write_bytes(data)
    return how


def attempt(reference: Reference, seed: int) -> list[str]:
    """Damage one file, read, and put it right again. Raises where something happened that may not."""
    draw = random.Random(seed)
    # Kinds of files alike: state files are many.
    kinds: dict[str, list[Path]] = {}
    for file in reference.files:
        kinds.setdefault(file.name if "state" not in file.parts else "state", []).append(file)
    kind = draw.choice(sorted(kinds))
    path = draw.choice(kinds[kind])
    usual = path.read_bytes()
    try:
        how = damage(path, draw)
        if path.exists() and path.read_bytes() == usual:
            return ["nothing damaged"]
        reference.damaged.add(path)
        seen = [f"damaged: {kind}", f"how: {how}"]
        with hangs_after(SECONDS):
            for name, read in READERS.items():
                outcome = told(lambda read=read: read(reference, path, how))  # type: ignore[misc]
                seen.append(f"{name}: {outcome}")
            if seed % RESUMED_EVERY == 0:
                seen.append(f"resumed: {told(lambda: resumed(reference))}")
    except (Exception, Hangs) as error:
        raise AssertionError(f"{path.relative_to(reference.folder)}, {how}: {type(error).__name__}: {error}") from error
    finally:
        path.write_bytes(usual)
    return seen


def told(read: Callable[[], str]) -> str:
    """What `read` says, or that it was refused in one line."""
    try:
        return read()
    except rljax.RljaxError as error:
        message = str(error)
        assert message, "an error without a message"
        assert message.isprintable(), f"not one line: {message!r}"
        return "one line"


def loaded(reference: Reference, checkpoint: str | int, expected: int) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = rljax.load_run(reference.folder, checkpoint=checkpoint)
    assert run.config == reference.config, "another configuration"
    assert same(named_arrays(run.state), reference.states[run.step]), "another state"
    if run.step == expected:
        return "right"
    assert checkpoint == "latest", f"step {run.step} instead of {expected}"
    assert run.step == max(step for step in reference.steps if step < expected), "more than one checkpoint lost"
    assert any("falling back" in str(warning.message) for warning in caught), "no word of the fall-back"
    return "the one before"


def resumable(reference: Reference, path: Path, how: str) -> str:
    """The part of a resume that reads, and takes later records back."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = starts.start_resumed(reference.folder, None, None, None)
    step = start.meta["step"]
    assert same(named_arrays(start.state), reference.states[step]), "another state"
    assert start.info == reference.info, "another origin"
    assert start.agent.config == reference.config, "another configuration"
    metrics = reference.folder / METRICS_FILE
    if metrics.exists():
        before = metrics.read_bytes()
        try:
            truncate_after(metrics, step)
            kept = metrics.read_bytes().splitlines()
        finally:
            metrics.write_bytes(before)
        expected = [line for line, record in zip(reference.lines, parsed(reference.lines), strict=True) if record <= step]
        lost = len([line for line in expected if line not in kept])
        allowed = 0 if path != metrics else 2 if how == "flip" else len(expected)  # a flipped end of a line is in two
        assert lost <= allowed, f"{lost} records lost"
    return "right" if step == reference.steps[0] else "the one before"


def parsed(lines: list[bytes]) -> list[int]:
    import json

    return [json.loads(line)["step"] for line in lines]


def resumed(reference: Reference) -> str:
    """A copy is trained to its end: bit for bit what the intact run comes to."""
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shutil.copytree(reference.folder, Path(folder) / "a", symlinks=True)
        state = rljax.fit(resume=Path(folder) / "a").state
    assert same(named_arrays(state), reference.last), "comes to another state"
    return "right"


def told_of(reference: Reference, path: Path, how: str) -> str:
    """`rljax show`."""
    text = shown(reference.folder)
    assert text.replace("\n", "").isprintable(), "steers the terminal"
    if text == reference.shown:
        return "right"
    assert path.name == METRICS_FILE or "checkpoints" in path.parts, "shows something else"
    return "damage is shown" if "damaged" in text else "sizes or curves differ"


def recorded(reference: Reference, path: Path, how: str) -> str:
    history = read_metrics(reference.folder)
    if history == reference.history:
        return "right"
    assert path.name == METRICS_FILE, "other metrics"
    return "curves differ"


def origin(reference: Reference, path: Path, how: str) -> str:
    assert read_info(reference.folder) == reference.info, "another origin"
    return "right"


READERS: dict[str, Callable[[Reference, Path, str], str]] = {
    "latest": lambda reference, path, how: loaded(reference, "latest", reference.steps[0]),
    "best": lambda reference, path, how: loaded(reference, "best", reference.best),
    "one before": lambda reference, path, how: loaded(reference, reference.steps[1], reference.steps[1]),
    "resume": resumable,
    "show": told_of,
    "metrics": recorded,
    "run.json": origin,
}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return list(a) == list(b) and all(a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes() for name in a)


@contextlib.contextmanager
def traced_once() -> Iterator[None]:
    """Agents and the shapes of their states are made once for each configuration: they take most of the time of reading."""
    agents: dict[str, Any] = {}
    usual = folders.example_state

    def agent_of(config: Any) -> Any:
        text = dump_config(config)
        return agents.setdefault(text, None) or agents.update({text: make_agent(config)}) or agents[text]

    shapes = functools.cache(lambda text, seeds, key_impl: usual(agents[text], seeds, key_impl))

    def example(agent: Any, seeds: int | None, key_impl: str) -> Any:
        text = dump_config(agent.config)
        agents.setdefault(text, agent)
        return shapes(text, seeds, key_impl)

    with (
        mock.patch.object(folders, "make_agent", agent_of),
        mock.patch.object(starts, "make_agent", agent_of),
        mock.patch.object(folders, "example_state", example),
    ):
        yield


def run(tries: int, seed: int, max_seconds: float | None) -> tuple[Campaign, dict[str, Any]]:
    """The campaign, over a plain run, one of two seeds and a fork."""
    campaign = Campaign("corrupt", seed, FULL_SIZE)
    with scratch() as folder, traced_once():
        kinds = [(None, False), (2, False), (None, True)]
        references = [make_reference(Path(folder) / str(i) / "a", *kind) for i, kind in enumerate(kinds[: max(1, tries // 50)])]
        campaign.run(lambda seed: attempt(references[seed % len(references)], seed), tries, max_seconds)
        damaged, files = (sum(len(getattr(x, what)) for x in references) for what in ("damaged", "files"))
        campaign.more["files"] = {"damaged": damaged, "in all": files}
    return campaign, {"corrupt": config_table(CONFIG)}


if __name__ == "__main__":
    keep_compiled()
    main(run, FULL_SIZE)
