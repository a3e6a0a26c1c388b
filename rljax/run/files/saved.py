"""Save and load trained agents without `fit`, as a run folder with one checkpoint that every command can read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.agent import Agent, MakeAgent, data_of, make_agent, own_in
from rljax.core.config import Config
from rljax.core.config_files import config_table
from rljax.core.environments.environment import same_structure
from rljax.core.errors import ConfigError, shown
from rljax.core.places import as_path
from rljax.run.files.folder import RunInfo, create_run_dir, env_files_of, example_state, load_run, read_info, split_path
from rljax.run.files.records import Records, record_of, window_length
from rljax.run.files.scores import Scores


def save(
    path: str | os.PathLike[str],
    config_or_agent: Config | Agent,
    state: Any,
    *,
    metrics: Mapping[str, Any] | None = None,
) -> Path:
    """Write a trained agent to a new run folder `path`, with checksums, for every command to read.

    The folder is like one that `fit` writes, from the results of `make_train`: `rljax.load(path)` reads it back,
    `fit(resume=path, total_timesteps=...)` continues training, and `rljax eval`, `show`, `plot`, `record` and `export` take it.

    Args:
        path: folder to create; nothing may be there yet.
        config_or_agent: the configuration or agent that was trained.
        state: state from `make_train`, `fit` or `agent.step`; for several seeds with a leading axis `[seeds]`.
        metrics: metrics of the training up to this state, arrays `[iterations]` or `[seeds, iterations]`, for `show` and `plot`.

    Returns:
        The folder.

    Raises:
        ConfigError: there is something at `path` already (nothing is touched), it cannot be written, or the state or the metrics
            do not fit the configuration.
    """
    agent = config_or_agent if isinstance(config_or_agent, Agent) else make_agent(config_or_agent)
    config, folder = agent.config, as_path(path, "path")
    iterations: tuple[int, ...] = np.shape(getattr(state, "iteration", 0))
    seeds = iterations[0] if len(iterations) == 1 else None
    key_impl = _key_impl(state)
    _check_fits(state, example_state(agent, seeds, key_impl))
    if metrics is not None and not (isinstance(metrics, Mapping) and all(isinstance(name, str) for name in metrics)):
        raise ConfigError(f"metrics = {shown(metrics)}: expected a dictionary of arrays by name, as make_train returns it")
    done = int(np.ravel(state.iteration)[0])
    step = done * config.steps_per_iteration
    table = config_table(config) | ({} if seeds is None else {"seeds": seeds})
    scores = Scores(seeds or 1, {})
    records: list[dict[str, Any]] = [{"step": step, "hyperparameters": table}]
    if metrics:
        names, rows = sorted(metrics), _rows(metrics, seeds, done)
        scores.update(names, rows)
        scores.improved(step)
        records[0]["step"] -= len(rows) * config.steps_per_iteration

        def emit(iterations: int, summary: dict[str, np.ndarray]) -> None:
            records.append(record_of(iterations * config.steps_per_iteration, summary, seeds is not None))

        window, empty = window_length(len(rows), *rows.shape[1:]), np.zeros((0, *rows.shape[1:]), np.float32)
        Records(names, window, done - len(rows), done, empty, emit).add(rows)
    info = RunInfo(
        seeds=seeds,
        key_impl=key_impl,
        first_step=step,
        own=own_in(agent),
        data=_digest(agent),
        env_files=env_files_of(config),
    )
    create_run_dir(folder, config, info, state, scores.meta(done), records)
    return folder


def _digest(agent: Agent) -> str:
    """Return the digest of the agent's data; "" if its dataset is not there: to act it needs none."""
    if hasattr(agent.config, "dataset") and not os.path.exists(agent.config.dataset or ""):
        return ""
    return data_of(agent)


def load(
    path: str | os.PathLike[str],
    *,
    checkpoint: str | int = "latest",
    seed_index: int | str | None = None,
    make_agent: MakeAgent = make_agent,
    **overrides: Any,
) -> tuple[Agent, Any]:
    """Read a trained agent, `(agent, state)`, from a folder made by `save`, `fit` or `rljax train`.

    Args:
        path: the folder, or one of its checkpoints (`runs/a/checkpoints/best`); `zoo:NAME` for an agent that comes with rljax,
            `hub:USER/REPO` for one of the Hugging Face Hub.
        checkpoint: "latest", "best" or a number of steps.
        seed_index: index of the seed to read from a run of several seeds, or "best"; None returns all, with a leading axis
            `[seeds]`.
        make_agent: function that made the agent, if its loss or step was your own. Without it the agent can act but not train.
        **overrides: fields of the configuration to change. An environment or network given as an object must be given again
            (`env=MyEnv()`).

    Raises:
        ConfigError: there is no agent, it is damaged, or it does not fit the configuration.
    """
    run = load_run(path, checkpoint=checkpoint, seed_index=seed_index, **overrides)
    agent, own = make_agent(run.config), read_info(split_path(path)[0]).own
    if own_in(agent) != own:

        def step(_: Any) -> Any:
            raise ConfigError(
                f"{path}: was trained with {own or 'the algorithm as it is'}: load it with that make_agent to train on"
            )

        # The agent keeps the names of its parts, for those who save it again or resume the run with it.
        agent = agent._replace(step=step, own=own)
        agent = agent._replace(made=agent)
    return agent, run.state


def _key_impl(state: Any) -> str:
    """Return the implementation of the agent's own random keys; an environment may use another one."""
    key: Any = getattr(state, "key", None)
    is_key = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return str(jax.random.key_impl(key)) if is_key else RunInfo().key_impl


def _check_fits(state: Any, example: Any) -> None:
    # Compare dtypes, too: those of keys contain their implementation, and a state that differs could not be read back.
    there, here = ([(jnp.shape(x), getattr(x, "dtype", None)) for x in jax.tree.leaves(tree)] for tree in (state, example))
    if not same_structure(state, example) or there != here:
        raise ConfigError(
            "the state does not fit the configuration: expected what make_train, fit or agent.step returned, of one seed or with "
            "one leading axis [seeds]"
        )


def _rows(metrics: Mapping[str, Any], seeds: int | None, done: int) -> np.ndarray:
    """Stack metrics as `[iterations, S, metrics]`, sorted by name."""
    arrays = {}
    for name in sorted(metrics):
        try:
            x = arrays[name] = np.asarray(metrics[name], np.float32)
        except (TypeError, ValueError):
            raise ConfigError(f"metrics: '{name}' = {shown(metrics[name])}: expected an array of numbers") from None
        lead = () if seeds is None else (seeds,)
        if x.ndim != len(lead) + 1 or x.shape[:-1] != lead or not 0 < x.shape[-1] <= done:
            expected = [*lead, f"at most {done} iterations"]
            raise ConfigError(f"metrics: '{name}' has shape {list(x.shape)}, expected [{', '.join(map(str, expected))}]")
    lengths = {x.shape[-1]: name for name, x in arrays.items()}
    if len(lengths) > 1:
        names, counts = (" and ".join(map(str, part)) for part in (map(repr, lengths.values()), lengths))
        raise ConfigError(f"metrics: {names} have {counts} iterations, expected as many of each")
    stacked = np.stack([np.atleast_2d(x) for x in arrays.values()], axis=-1)
    return np.swapaxes(stacked, 0, 1)
