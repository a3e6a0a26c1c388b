"""Checkpoints of the whole state, and run folders.

runs/NAME/config.toml  metrics.jsonl  checkpoints/step_N/  checkpoints/latest -> step_N
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.core.agent import make_agent
from rljax.core.config import Config, dump_config, load_config
from rljax.core.errors import ConfigError, RljaxError

CONFIG_FILE = "config.toml"
METRICS_FILE = "metrics.jsonl"


class Run(NamedTuple):
    """A run read back from its folder: its configuration, the agent's whole state and the environment steps taken."""

    config: Any
    state: Any
    step: int


def create_run_dir(path: str | os.PathLike[str], config: Config) -> Path:
    """Make the folder of a new run, with the configuration frozen in it.

    Raises:
        ConfigError: there is something at `path` already (nothing is touched), or it cannot be made.
    """
    folder = Path(path)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"run folder {folder} exists already: choose another with --run-dir, or delete it first")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_FILE).write_text(dump_config(config), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"run folder {folder}: cannot be made: {error.strerror}") from None
    return folder


def save_checkpoint(run_dir: Path, state: Any, step: int) -> Path:
    """Write the state to `checkpoints/step_<step>`, aside and then renamed, and point `latest` at it; older ones are removed.

    Raises:
        RljaxError: it cannot be written; the checkpoint before it is untouched.
    """
    import orbax.checkpoint as ocp

    folder = (run_dir / "checkpoints").resolve()
    target = folder / f"step_{step}"
    aside = folder / f".writing_step_{step}"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(aside, _without_keys(state))
        shutil.rmtree(target, ignore_errors=True)
        aside.rename(target)
        link = folder / ".latest"
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
        link.rename(folder / "latest")
        for old in folder.glob("step_*"):
            if old != target:
                shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise RljaxError(f"checkpoint {target}: cannot be written: {error.strerror or error}") from None
    return target


def load_run(path: str | os.PathLike[str], **overrides: Any) -> Run:
    """Read a run folder: `Run(config, state, step)` of its latest checkpoint.

    `overrides` replace fields of its configuration: an environment or network that was given as an object is written to
    the folder by name only, so give it again here (`env=MyEnv()`).

    Raises:
        ConfigError: no run or no checkpoint there, or the checkpoint does not fit the configuration.
    """
    folder = Path(path)
    if not (folder / CONFIG_FILE).is_file():
        raise ConfigError(f"{folder}: no run there (no {CONFIG_FILE}); a run folder is what `rljax train` makes")
    config = load_config(folder / CONFIG_FILE, **overrides)
    latest = folder / "checkpoints" / "latest"
    if not latest.exists():
        raise ConfigError(f"{folder}: no checkpoint there yet (no checkpoints/latest)")
    import orbax.checkpoint as ocp

    agent = make_agent(config)
    example = jax.eval_shape(lambda: agent.init(jax.random.key(0)))
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            saved = checkpointer.restore(latest.resolve(), jax.eval_shape(_without_keys, example))
    except (ValueError, KeyError, TypeError, OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{latest}: cannot be read as the state of this configuration: {reason}") from None
    state = jax.tree.map(lambda e, x: jax.random.wrap_key_data(x) if _is_key(e) else x, example, saved)
    return Run(config, state, int(latest.resolve().name.removeprefix("step_")))


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _without_keys(state: Any) -> Any:
    """The state with typed keys as the integers they hold."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, state)
