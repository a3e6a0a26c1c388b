"""Numbers that went wrong: losses, parameters and collected steps that are not finite, and seeds that train no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.training import evaluation_metrics
from rljax.collect.replay import Replay
from rljax.core.agent import Agent, Metrics
from rljax.run.records import UPDATES


class Seeds(NamedTuple):
    """The states of a run of several seeds, `[S, ...]`, and which of them have not diverged, bool `[S]`."""

    states: Any
    alive: Any

    @property
    def params(self) -> Any:
        return self.states.params


def surviving_iteration(agent: Agent, num_iterations: int) -> Callable[..., tuple[Any, tuple[Metrics, jax.Array]]]:
    """`(alive, state, iteration) -> (state, (metrics, alive))` of one seed: `train_iteration`, but one in which a loss or a
    parameter became something else than a finite number does not count: the state stays what it was, then and from then on.

    That iteration shows its metrics as they are; those of later ones are NaN. Steps are collected all the same, of no use, into
    the replay buffer, whose rows are counted for all seeds together.
    """

    def iteration(alive: jax.Array, state: Any, i: jax.Array) -> tuple[Any, tuple[Metrics, jax.Array]]:
        after, metrics = agent.step(state)
        going = alive & losses_are_finite(metrics) & all_finite(after.params)
        state = _kept(going, after, state)
        evaluated = evaluation_metrics(agent, state, i, num_iterations)
        metrics = {name: jnp.where(alive, x, jnp.nan) for name, x in metrics.items()}
        return state, (metrics | {name: jnp.where(going, x, jnp.nan) for name, x in evaluated.items()}, going)

    return iteration


def _kept(going: jax.Array, after: Any, before: Any) -> Any:
    """`after` where `going`, else `before`. Replay buffers are not copied: they are those of `after`."""

    def chosen(new: Any, old: Any) -> Any:
        if isinstance(new, Replay):
            return new
        if jnp.issubdtype(new.dtype, jax.dtypes.prng_key):
            return jax.lax.select(jnp.broadcast_to(going, new.shape), new, old)
        return jnp.where(going, new, old)

    return jax.tree.map(chosen, after, before, is_leaf=lambda x: isinstance(x, Replay))


def all_finite(tree: Any) -> jax.Array:
    """Whether every number of a tree is finite, bool []."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def losses_are_finite(metrics: Metrics) -> jax.Array:
    """Whether all `train/...` of an iteration are finite numbers, bool []; without a gradient step they need not be."""
    finite = [jnp.isfinite(x) for name, x in metrics.items() if name.startswith("train/")]
    untrained = metrics[UPDATES] == 0 if UPDATES in metrics else jnp.asarray(False)
    return untrained | jnp.all(jnp.stack([jnp.asarray(True), *finite]))


def bad_losses(rows: np.ndarray, names: list[str]) -> tuple[np.ndarray, list[int]]:
    """`(bad, columns)`: which losses in rows `[iterations, S, metrics]` are not finite, bool `[iterations, S, losses]`, and the
    metrics that they are, those that go first in front. Without a gradient step none is bad."""
    # The values are made before the losses, and the losses before all that is derived from them.
    order = ["train/value", "train/policy_loss", "train/value_loss", *names]
    columns = [names.index(name) for name in dict.fromkeys(order) if name.startswith("train/") and name in names]
    bad = ~np.isfinite(rows[:, :, columns])
    if UPDATES in names:
        bad &= (rows[:, :, names.index(UPDATES)] != 0)[..., None]
    return bad, columns


def diverged_in(meta: Mapping[str, Any], seeds: int) -> list[int | None]:
    """The step at which each seed of a run diverged, None of those that have not, from the meta of a checkpoint."""
    known = meta.get("diverged")
    return list(known) if known is not None and len(known) == seeds else [None] * seeds


class Fault(NamedTuple):
    """Something in a state that is no finite number.

    Attributes:
        what: `the reward`, or the name of a leaf.
        collected: whether an environment gave it.
        value: NaN or an infinity.
        seed: whose, 0 where there is one.
        age: of the first row of the replay buffer that has it, 0 the newest; None where it is not in the buffer.
    """

    what: str
    collected: bool
    value: float
    seed: int
    age: int | None


COLLECTED = {"reward": "the reward", "obs": "the observation", "next_obs": "the observation"}


def find_fault(arrays: Mapping[str, np.ndarray], checked: np.ndarray, seeds: bool) -> Fault | None:
    """What is not finite in a state that is to be saved, or None: rewards and observations first, then NaN anywhere else.

    The environments' own states are theirs, and may hold NaN; infinity is a number for what is not collected.

    Args:
        arrays: the state's leaves by name.
        checked: of which seeds, bool `[S]`.
        seeds: whether leaves have a leading axis of seeds.
    """
    faults: list[Fault] = []
    for name, x in arrays.items():
        path = name.split("/")
        if path[0] == "env_state" or not jnp.issubdtype(x.dtype, jnp.floating) or np.isfinite(x).all():
            continue
        collected = next((part for part in path if part in COLLECTED), None)
        x = (x if seeds else x[None]).astype(np.float64)
        bad = (np.isnan(x) if collected is None else ~np.isfinite(x)) & checked.reshape(-1, *(1,) * (x.ndim - 1))
        for seed in np.flatnonzero(bad.reshape(len(bad), -1).any(1)):
            age = None
            if path[:2] == ["replay", "data"]:
                position = int(np.ravel(arrays["replay/position"])[0])
                rows = np.flatnonzero(bad[seed].reshape(bad.shape[1], -1).any(1))
                age = int(((position - 1 - rows) % bad.shape[1]).max())
            what = name if collected is None else COLLECTED[collected]
            faults.append(Fault(what, collected is not None, float(x[seed][bad[seed]][0]), int(seed), age))
    # The oldest of what was collected is where it began.
    return min(faults, key=lambda fault: (not fault.collected, -(fault.age or 0)), default=None)
