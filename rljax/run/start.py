"""Start a run: a new one, a resumed one, or a fork of a checkpoint."""

from __future__ import annotations

import os
import shlex
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.replay import in_host_memory
from rljax.core.agent import Agent, check_own, data_of, make_agent, own_in
from rljax.core.config import Config, algorithm_path, env_name
from rljax.core.config_files import comparable_table, config_table
from rljax.core.errors import ConfigError, RljaxWarning
from rljax.core.host import failures_explained
from rljax.core.memory import check_memory, tree_bytes
from rljax.core.plain import is_object
from rljax.core.state import Role, fields_to_reset, roles_of
from rljax.nn.opponents import check_opponent_model, check_same_opponent_model
from rljax.run.episodes import end_in_statistics, runs_outside_jax, with_new_episodes
from rljax.run.files.checkpoint import CHECKPOINTS, Checkpoint, describe, key_impls, named_arrays, restore_state
from rljax.run.files.folder import (
    RunInfo,
    check_num_seeds,
    check_run,
    check_seeds,
    checkpoint_state,
    env_files_of,
    initial_keys,
    initial_state,
    last_iteration,
    load_checkpoint,
    read_config,
    read_info,
    refuse_packed,
    replace_config,
    split_path,
)
from rljax.run.files.zoo import absolute
from rljax.run.processes import is_first

BUDGET = "total_timesteps"
"""The only field of a run's configuration that may change when it is resumed."""


class Start(NamedTuple):
    """Start of a run.

    Attributes:
        agent: the agent to train.
        state: the whole state, on the device; with a leading axis `[seeds]` if `info.seeds` is not None.
        info: contents of run.json.
        iteration: number of iterations done, after `info.step_offset + iteration * steps_per_iteration` environment steps.
        pending: rows of metrics not yet in a record, `[iterations, S, metrics]`, or None.
        meta: scores so far; see `Scores`.
        extended: whether the budget was changed.
    """

    agent: Agent
    state: Any
    info: RunInfo
    iteration: int
    pending: np.ndarray | None
    meta: dict[str, Any]
    extended: bool = False

    @property
    def last_iteration(self) -> int:
        return last_iteration(self.agent.config, self.info)


def start_new(agent: Agent, key: jax.Array | None, seeds: int | None, init_from: str | os.PathLike[str] | None = None) -> Start:
    """Start a new run. If `key` is None, use the key of `config.seed`, or the keys of `seed .. seed + seeds - 1`; `init_from` is
    noted.
    """
    config = agent.config
    check_opponent_model(config)
    if seeds is not None:
        check_num_seeds(seeds, config)
        one = jax.eval_shape(agent.init, jax.eval_shape(lambda: jax.random.key(0)))
        check_memory(seeds * tree_bytes(one), f"seeds = {seeds}: the state of so many runs", "take fewer seeds")
    if key is None:
        keys = initial_keys(config.seed, seeds)
    elif seeds is None:
        keys = key
    else:
        keys = jax.random.split(key, seeds)
    state = _initialize(agent, keys, seeds)
    info = RunInfo(
        seeds=seeds,
        key_impl=str(jax.random.key_impl(keys)),
        own=own_in(agent),
        data=data_of(agent),
        env_files=env_files_of(config),
        init_from="" if init_from is None else absolute(init_from),
    )
    return Start(agent, state, info, iteration=0, pending=None, meta={})


def _initialize(agent: Agent, keys: jax.Array, seeds: int | None) -> Any:
    """Return the state before the first iteration.

    Raises:
        ConfigError: it does not fit on the device; nothing was compiled.
    """
    program = jax.jit(lambda keys: initial_state(agent, keys, seeds)).lower(keys)
    what = "the state of the run" if seeds is None else f"seeds = {seeds}: the state of so many runs"
    hosts = jax.tree.leaves(in_host_memory(program.out_info))
    for host in (False, True):
        part = [x for x, there in zip(jax.tree.leaves(program.out_info), hosts, strict=True) if there == host]
        check_memory(tree_bytes(part), what, "take fewer seeds, or a smaller buffer or network", host)
    with failures_explained():
        state = program.compile()(keys)
        return jax.block_until_ready(state) if runs_outside_jax(agent.config) else state


def start_resumed(folder: Path, given: Agent | None, total_timesteps: int | None, seeds: int | None) -> Start:
    """Start from the latest whole checkpoint of a run.

    Args:
        folder: the run's folder.
        given: the user's agent, or None. Only the budget of its configuration may differ from the frozen one. Its objects (an
            environment, a network) are used, since the folder has only their names.
        total_timesteps: new budget; if None, that of `given`, or else of the run.
        seeds: number of seeds, which must be that of the run, or None.
    """
    frozen, info = read_config(folder), read_info(folder)
    _check_seeds(seeds, info, f"run {folder}")
    own = "" if given is None else own_in(given)
    check_own(f"run {folder}", info.own, own)
    saved = load_checkpoint(folder)
    step = saved.meta["step"]
    if step != info.step_offset + saved.meta["iteration"] * frozen.steps_per_iteration:
        raise ConfigError(f"{folder}: step {step} and iteration {saved.meta['iteration']} of its checkpoint do not agree")
    config = frozen if given is None else _restore_objects(frozen, given.config, folder)
    budget = total_timesteps
    if budget is None and given is not None:
        budget = given.config.total_timesteps
        if budget < step:
            # A script was started again, and its run has been extended since.
            warnings.warn(
                f"{BUDGET} = {budget}: refused, run {folder} has taken {step} steps already", RljaxWarning, stacklevel=2
            )
            budget = None
    if budget is not None:
        config = config.replace(**{BUDGET: budget})
    if own and given is not None and config != given.config:
        # A new agent of this configuration would lack the user's own parts.
        raise ConfigError(
            f"run {folder}: the agent with {own} has another configuration: make it of load_run(...).config with "
            f"{BUDGET} = {config.total_timesteps}"
        )
    agent = given if given is not None and config == given.config else make_agent(config)
    check_opponent_model(config)
    if info.data and info.data != data_of(agent):
        what = "its teachers have" if hasattr(config, "teachers") else "its dataset has"
        raise ConfigError(f"run {folder}: {what} changed since the run began: give it the old one, or fork the run")
    if info.env_files and info.env_files != env_files_of(config):
        raise ConfigError(
            f"run {folder}: the files of {env_name(config)} (a map, say) have changed since the run began: give it the old ones, "
            "or fork the run"
        )
    state = checkpoint_state(agent, info, saved, folder)
    start = Start(
        agent=agent,
        state=_with_its_episodes(agent, state, f"{folder}: resumed with new episodes, not exactly"),
        info=info,
        iteration=saved.meta["iteration"],
        pending=saved.pending,
        meta=saved.meta,
        extended=config.total_timesteps != frozen.total_timesteps,
    )
    if start.last_iteration < start.iteration:
        raise ConfigError(f"{BUDGET} = {config.total_timesteps}: run {folder} has taken {step} steps already")
    if start.extended and is_first():
        replace_config(folder, config)
    return start


def start_forked(path: str | os.PathLike[str], agent: Agent, seeds: int | None) -> Start:
    """Start a new run of `agent` with the parts of a checkpoint that fit; the count of steps continues.

    All of the parameters must fit. Every other part of the state is taken over as a whole, or made anew with a warning that
    names it: the environments if they or their number changed, the optimiser if it changed. With another `seed` the random keys
    are those of that seed. All learners of a league begin with the parameters of a run of one player, or those of the first
    learner of a run with learners of other roles, and with the statistics that normalise its observations; a league that begins
    anew also resets its exploiters to them, and its pool begins with them. A league is made anew in another environment, too.

    Args:
        path: a checkpoint, or a run's folder for its latest one.
        agent: agent of the new configuration.
        seeds: number of seeds, which must be that of the run, or None.

    Raises:
        ConfigError: the network cannot take the weights (the message names the first parameter that differs), or the budget is
            spent.
    """
    folder, name = split_path(path)
    check_run(folder)
    refuse_packed(folder)
    saved_config, info, saved = read_config(folder), read_info(folder), load_checkpoint(folder, name)
    config, step = agent.config, saved.meta["step"]
    source = folder / CHECKPOINTS / f"step_{step}"
    check_opponent_model(config)
    check_same_opponent_model(saved_config, config, source)
    _check_seeds(seeds, info, f"checkpoint {source}")
    check_seeds(info, saved, saved_config, source)
    iteration = step // config.steps_per_iteration
    if config.steps_per_iteration == saved_config.steps_per_iteration:
        iteration = saved.meta["iteration"]
    step_offset = step - iteration * config.steps_per_iteration
    keys = initial_keys(config.seed, info.seeds, info.key_impl)
    fresh = _initialize(agent, keys, info.seeds)
    state, anew, left_out = _take_over(fresh, saved, saved_config, config, source, info.seeds)
    if anew:
        warnings.warn(
            f"fork of {source}: initialised anew, because the configuration changed: {', '.join(anew)}",
            RljaxWarning,
            stacklevel=2,
        )
    if left_out:
        warnings.warn(
            f"fork of {source}: left out, because this configuration has none: {', '.join(left_out)}", RljaxWarning, stacklevel=2
        )
    if config.steps_per_iteration != saved_config.steps_per_iteration:
        before = (info.step_offset, saved_config.steps_per_iteration)
        state = _recounted(state, before, (step_offset, config.steps_per_iteration))
    state = state.replace(iteration=jnp.full_like(state.iteration, iteration))
    state = _with_its_episodes(agent, state, f"fork of {source}: begins with new episodes")
    forked_from = {"checkpoint": os.path.abspath(source), "step": step}
    start = Start(
        agent=agent,
        state=state,
        info=info._replace(
            first_step=step,
            step_offset=step_offset,
            forked_from=forked_from,
            own=own_in(agent),
            data=data_of(agent),
            env_files=env_files_of(config),
        ),
        iteration=iteration,
        pending=None,
        meta={},
    )
    if start.last_iteration <= iteration:
        raise ConfigError(
            f"total_timesteps = {config.total_timesteps}: the checkpoint is at step {step} already, and steps count from there: "
            f"expected at least {step + config.steps_per_iteration}"
        )
    return start


def _recounted(state: Any, before: tuple[int, int], now: tuple[int, int]) -> Any:
    """Return a state whose fields count the iterations of this run, not those of the run before. Of each run, the number of steps
    before its iteration 0 and the number per iteration are given.
    """
    (offset_before, steps_before), (offset, steps) = before, now

    def count(iterations: np.ndarray) -> np.ndarray:
        # By steps, not by a shift: configurations give intervals and timeouts in steps, and past players are named by them.
        # Numbers from before iteration 0 are negative.
        return (offset_before + iterations * steps_before - offset) // steps

    recounts = {name: role.recount for name, role in roles_of(state).items() if role.recount is not None}
    fields = {name: getattr(state, name) for name in recounts if getattr(state, name) is not None}
    return state.replace(**{name: recounts[name](value, count) for name, value in fields.items()})


def _with_its_episodes(agent: Agent, state: Any, otherwise: str) -> Any:
    """Return a saved state, with new episodes and a warning if those under way could not be saved with it."""
    if not runs_outside_jax(agent.config):
        return state
    why = f"the simulators of {env_name(agent.config)} are outside JAX and cannot be saved"
    warnings.warn(f"{otherwise}: {why}", RljaxWarning, stacklevel=3)
    return with_new_episodes(agent, state)


def _check_seeds(seeds: int | None, info: RunInfo, where: str) -> None:
    if seeds is not None and seeds != info.seeds:
        raise ConfigError(f"seeds = {seeds}: {where} has {info.seeds or 'a single one'}")


def _take_over(
    fresh: Any, checkpoint: Checkpoint, old: Config, new: Config, source: Path, seeds: int | None
) -> tuple[Any, list[str], list[str]]:
    """Replace the fields of a fresh state by the saved fields that fit as a whole.

    Returns:
        `(state, fields begun anew, saved fields left out)`.
    """
    saved: dict[str, dict[str, np.ndarray]] = {}
    for name, x in checkpoint.arrays.items():
        saved.setdefault(name.partition("/")[0], {})[name] = x
    fields = {name: getattr(fresh, name) for name in fresh.__dataclass_fields__ if jax.tree.leaves(getattr(fresh, name))}
    here = {name: named_arrays({name: value}) for name, value in fields.items()}

    roles = roles_of(fresh)
    other_learners = getattr(old, "roles", None) != getattr(new, "roles", None)
    if new.of_games:
        # A learner that begins with the parameters of a run begins with its statistics, too.
        for name in fields:
            if name == "params" or roles[name].role is Role.STATISTICS:
                saved[name] = _for_all_learners(saved.get(name, {}), here[name], 0 if seeds is None else 1, other_learners)
    misfit = _first_difference(saved.get("params", {}), here["params"])
    if misfit is not None:
        name, there_is, here_is = misfit
        raise ConfigError(f"the network of this configuration cannot take the weights of {source}: {name} is {there_is} there "
                          f"and {here_is} here")  # fmt: skip

    if type(old) is type(new) and old.value_names != new.value_names:
        raise ConfigError(
            f"value heads {list(new.value_names)}: the weights of {source} are those of {list(old.value_names)}, in this order"
        )
    keys = checkpoint.meta["keys"] or {}
    unfit = {name for name in fields if _first_difference(saved.get(name, {}), here[name]) is not None}
    unfit |= {
        name for name in fields if any(keys.get(key, impl) != impl for key, impl in key_impls({name: fields[name]}).items())
    }
    if other_learners:
        # What is left of the learners' fields fits in shape if there are as many, but belongs to a learner of another role.
        unfit |= {name for name in fields if roles[name].role in (Role.OPTIMIZER, Role.COPY)}
    reset, reseeded = fields_to_reset(fresh, unfit, config_table(old), config_table(new), old.seed == new.seed)
    reset &= set(fields)
    kept = fields.keys() - reset - reseeded
    state = fresh.replace(**{name: restore_state(saved[name], {name: fields[name]}, keys, source)[name] for name in kept})
    if any(roles[name].role is Role.PER_ENVIRONMENT for name in reset):
        state = end_in_statistics(state)
    # A target network, a past policy or a pool that is not taken over is a copy of the parameters, as in a new run.
    copies = {name: role.copy for name, role in roles.items() if name in reset and role.copy is not None}
    for name, copy in copies.items():
        made = (copy if seeds is None else jax.vmap(copy))(state, fields[name])
        state = state.replace(**{name: jax.tree.map(jnp.copy, made)})  # training donates both: they must not share memory
    return state, sorted(reset), sorted(set(saved) - set(fields))


def _for_all_learners(
    saved: dict[str, np.ndarray], here: dict[str, Any], axis: int, other_learners: bool
) -> dict[str, np.ndarray]:
    """Return a saved field of learners (parameters or statistics) repeated for all learners of a league, where it is that of one
    player; of a run with learners of other roles the first one's, who is a main agent. What does not fit in this way is returned
    as it was.

    Args:
        saved: arrays by name.
        here: arrays of the new run, which have an axis of learners.
        axis: that axis.
        other_learners: whether the learners of the run have other roles, or are more or fewer.
    """
    repeated = {}
    for name, x in here.items():
        there = saved.get(name)
        one = (*x.shape[:axis], *x.shape[axis + 1 :])
        if there is not None and there.shape != one and there.ndim == x.ndim and other_learners:
            there = there.take(0, axis)
        if there is None or there.shape != one:
            return saved
        repeated[name] = np.repeat(np.expand_dims(there, axis), x.shape[axis], axis)
    return repeated if saved.keys() == here.keys() else saved


def _first_difference(there: dict[str, np.ndarray], here: dict[str, np.ndarray]) -> tuple[str, str, str] | None:
    """Return `(name, there, here)` for the first name whose arrays differ in shape or dtype, or None."""
    for name in [*here, *there]:
        a, b = (describe(side[name]) if name in side else "missing" for side in (there, here))
        if a != b:
            return name, a, b
    return None


def _restore_objects(frozen: Config, given: Config, folder: Path) -> Config:
    """Return the frozen configuration with the objects of the given one, of which the folder has only the names.

    Raises:
        ConfigError: a field other than the budget differs.
    """
    if type(frozen) is not type(given):
        new, old = (algorithm_path(type(config)) for config in (given, frozen))
        raise ConfigError(f"algorithm = {new!r}: the run that is resumed has {old!r}")
    there, here = comparable_table(frozen), comparable_table(given)
    objects = {name: getattr(given, name) for name, value in there.items() if is_object(value) and here[name] == value}
    refuse_changes(frozen, given, folder)
    return frozen.replace(**objects)


def refuse_changes(frozen: Config, given: Config, folder: Path) -> None:
    """Raise a ConfigError if a field of a resumed run other than the budget differs, since the change would not be made."""
    there, here = comparable_table(frozen), comparable_table(given)
    names = [name for name in there if there[name] != here[name] and name != BUDGET]
    if names:
        raise ConfigError(
            f"{', '.join(names)}: a resumed run keeps its configuration, only {BUDGET} may change; a fork may change "
            f"anything (rljax train --fork {shlex.quote(str(folder))}, or fit(config, fork=...))"
        )
