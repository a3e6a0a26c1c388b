"""Commands that make data to learn from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

import rljax
from rljax.cli.options import Demo, Opponents
from rljax.cli.overrides import overrides_of
from rljax.collect.demos.schema import DATASET_FILE
from rljax.core.errors import ConfigError, shown
from rljax.run.files.outputs import atomic_file, output_path
from rljax.run.view.layout import say

MINARI = "minari:"


def demo(options: Demo) -> None:
    """`rljax demo`: record or import a dataset, and describe it."""
    if options.out is None and (Path(options.player) / DATASET_FILE).exists():
        _describe(rljax.open_dataset(options.player))
        return
    if options.out is None:
        missing = (
            f" ({options.player} has no {DATASET_FILE}, so it is no dataset itself)" if Path(options.player).is_dir() else ""
        )
        raise ConfigError(f"--out: expected the folder to create for the dataset{missing}")
    if options.player.startswith(MINARI):
        from rljax.run.demos.minari import import_minari

        dataset = import_minari(options.player.removeprefix(MINARI), options.out, env=options.env, progress=say)
    else:
        dataset = rljax.demonstrations(
            options.player,
            options.out,
            num_episodes=options.episodes,
            env=options.env,
            env_params=_table(options.env_params),
            against=[name.strip() for name in options.against.split(",") if name.strip()],
            seat=options.seat,
            sample=options.sample,
            simulations=options.simulations,
            openings=options.openings,
            seed=options.seed,
            num_envs=options.num_envs,
            max_steps=options.max_steps,
            resume=options.resume,
            progress=say,
        )
    _describe(dataset)


def opponents(options: Opponents) -> None:
    """`rljax opponents`: train an opponent model on a dataset, and write it to a file."""
    out = output_path(options.out, [".json"])
    if out.exists():
        raise ConfigError(f"--out: {options.out} exists, expected the name of a new file")
    dataset = rljax.open_dataset(options.dataset, held_out=options.held_out)
    model, metrics = rljax.train_opponent_model(
        dataset,
        jax.random.key(options.seed),
        observed=_observed(options.observed),
        window=options.window,
        latent=options.latent,
        beta=options.beta,
        num_iterations=options.iterations,
        learning_rate=options.learning_rate,
    )
    with atomic_file(out) as aside:
        model.save(aside)
    last = {name.partition("/")[2]: float(np.ravel(x)[-1]) for name, x in metrics.items()}
    held_out = f", {last['held_out_loss']:.4g} on games set apart" if "held_out_loss" in last else ""
    say(
        f"{options.out}: loss {last['loss']:.4g}{held_out}; error of reconstruction {last['reconstruction']:.4g}, divergence "
        f"{last['kl']:.4g} nats in {options.latent} factors"
    )


def _observed(text: str) -> tuple[str, ...] | tuple[int, int] | None:
    if not text.strip(" ,"):
        return None
    numbers = re.fullmatch(r"(\d+):(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else tuple(key.strip() for key in text.split(",") if key.strip())


def _table(text: str) -> dict[str, Any]:
    if not text:
        return {}
    table = overrides_of([("env_params", text)])["env_params"]
    if not isinstance(table, dict):
        raise ConfigError(f"--env-params {shown(text)}: expected a table, such as '{{map_name = \"basesWorkers8x8\"}}'")
    return table


def _describe(dataset: Any) -> None:
    say(f"{dataset.path}:")
    for line in dataset.describe():
        print(f"  {line}")
