"""Kill -9, and stop, of processes that simulate, again and again, while a compiled program trains on them.

Each try kills or stops one process at a random moment: while processes start, episodes begin, or steps are taken. The program
must end with one line that names the environment and what happened, soon, and leave no process behind; from the last state, with
new episodes, training must go on. One in so many tries is a whole run in a folder, which must resume to its end.

    python -m tests.campaigns.simulators --tries 1000
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import rljax
from rljax.core.config_files import config_table
from rljax.core.errors import RljaxError, TrainingError
from rljax.core.host import failures_explained
from rljax.envs.simulators import environment
from rljax.envs.simulators.environment import close_simulators
from rljax.run.episodes import new_episodes
from tests.campaigns.campaign import Campaign, hangs_after, keep_compiled, main, scratch

CONFIG = rljax.PPOConfig(
    env="gymnasium:CartPole-v1",
    env_params={"workers": 2, "timeout": 2.0},
    num_envs=8,
    num_steps=32,
    num_minibatches=2,
    num_epochs=1,
    total_timesteps=256 * 40,
    network={"hidden": [8]},
    normalize_rewards=True,
)

FULL_SIZE = 1000
"""Tries of the whole campaign, each of which is a kill or a stop."""

SECONDS = 60
"""A try that computes or waits for longer hangs."""

LONGEST = 0.25
"""Seconds after which a process is killed, at most; a program of `ITERATIONS` takes longer."""

ITERATIONS = 200
RUN_EVERY = 50
STOP_EVERY = 20
"""One in so many tries is a whole run, and one in so many stops a process for good instead of killing it."""

TOLD = re.compile(
    r"gymnasium:CartPole-v1: a (process of its simulators was killed by SIGKILL in|simulator did not answer) a (start|reset|step)"
)


class Trainer:
    """A program that is compiled once and trains for as long as nobody kills its simulators."""

    def __init__(self) -> None:
        self.agent = rljax.make_agent(CONFIG)
        self.init = jax.jit(self.agent.init)
        self.begin = jax.jit(partial(new_episodes, self.agent))
        self.train = jax.jit(lambda state: jax.lax.scan(lambda s, _: (self.agent.step(s)[0], None), state, None, ITERATIONS)[0])
        self.state = jax.block_until_ready(self.init(jax.random.key(0)))
        close_simulators()

    def attempt(self, seed: int) -> list[str]:
        draw = random.Random(seed)
        stops = seed % STOP_EVERY == STOP_EVERY - 1
        killer = Killer(draw, stops)
        with hangs_after(SECONDS, SECONDS):
            try:
                with failures_explained():
                    begun = jax.block_until_ready(self.begin(self.state))
                    after = jax.block_until_ready(self.train(begun))
            except RljaxError as error:
                words = str(error)
            else:
                self.state = after
                killer.join()
                return ["the program had come to its end"]
        killer.join()
        took = time.monotonic() - killer.at
        where = TOLD.fullmatch(words.partition(" within ")[0].partition(", so its")[0])
        assert where, words
        limit = 10.0
        assert took < limit, f"told after {took:.1f} s"
        assert not children(), "processes are left"
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(self.state.params))
        return [f"{'stopped' if stops else 'killed'} in a {where[2]}"]


class Killer(threading.Thread):
    """Kills or stops one of the processes that simulate, a while from now."""

    def __init__(self, draw: random.Random, stops: bool):
        super().__init__(daemon=True)
        self.after, self.which, self.stops = draw.uniform(0.0, LONGEST), draw.random(), stops
        self.begun = stops or draw.random() < 0.8  # else processes may still be starting
        self.at = 0.0
        self.start()

    def run(self) -> None:
        deadline = time.monotonic() + SECONDS
        while (
            self.begun and all(x.simulators.closed for x in list(environment._running.values())) and time.monotonic() < deadline
        ):
            time.sleep(0.001)
        time.sleep(self.after)
        while time.monotonic() < deadline:
            pids = children()
            if pids:
                self.at = time.monotonic()
                os.kill(pids[int(self.which * len(pids))], signal.SIGSTOP if self.stops else signal.SIGKILL)
                return
            time.sleep(0.001)


def children() -> list[int]:
    """Return the processes that simulate for this one, those that are starting too."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid() and "worker.py" in stat.with_name("cmdline").read_text():
                found.append(int(stat.parent.name))
        except OSError:  # it has ended meanwhile
            continue
    return sorted(found)


def whole_run(seed: int, folder: Path) -> list[str]:
    """A run whose simulators are killed and which is resumed to its end."""
    draw = random.Random(seed)
    at, killed = draw.randrange(1, 39) * 256, []

    def kill(step: int, _metrics: dict[str, float]) -> None:
        if step >= at and not killed:
            killed.append(step)
            os.kill(draw.choice(list(environment._running.values())[-1].simulators.process_ids), signal.SIGKILL)

    shared = ("env", "env_params", "num_envs", "num_steps", "total_timesteps", "network")
    overlapped = rljax.ImpalaConfig(**{name: getattr(CONFIG, name) for name in shared}, overlap=True)
    told = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            rljax.fit(draw.choice([CONFIG, overlapped]), run_dir=folder, callback=kill, checkpoint_every=256)
        except TrainingError as error:
            told = str(error)
        assert re.search(r"was killed by SIGKILL in a (step|reset); the last good checkpoint is", told), told
        step = rljax.load_run(folder).step
        assert step >= killed[0] - 256, f"killed at {killed[0]}, saved at {step}"
        assert rljax.fit(resume=folder).complete
    close_simulators()
    return ["a run was killed and came to its end"]


def run(tries: int, seed: int, max_seconds: float | None) -> tuple[Campaign, dict[str, Any]]:
    campaign = Campaign("simulators", seed, FULL_SIZE)
    keep_compiled()
    trainer = Trainer()
    trainer.attempt(seed)  # compiles
    with scratch() as parent:

        def attempt(number: int) -> list[str]:
            if number % RUN_EVERY == RUN_EVERY - 1:
                with hangs_after(SECONDS * 4, SECONDS * 4):
                    return whole_run(number, Path(parent) / f"run_{number}")
            return trainer.attempt(number)

        act: Callable[[int], list[str]] = attempt
        campaign.run(act, tries, max_seconds)
    close_simulators()
    return campaign, {"simulators": config_table(CONFIG)}


if __name__ == "__main__":
    main(run, FULL_SIZE)
