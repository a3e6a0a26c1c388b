"""Find losses, parameters and collected steps that are not finite, and the seeds that diverged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from rljax.run.files.records import UPDATES, is_loss


def bad_losses(rows: np.ndarray, names: list[str]) -> tuple[np.ndarray, list[int]]:
    """Find the losses in rows `[iterations, S, metrics]` that are not finite.

    Returns:
        `(bad, columns)`: which losses are bad, bool `[iterations, S, losses]`, and their columns in `names`, first those that
        break first. Without a gradient step no loss is bad.
    """
    # Values are computed before the losses, and the losses before all that depends on them.
    order = ["train/value", "train/policy_loss", "train/value_loss", *names]
    columns = [names.index(name) for name in dict.fromkeys(order) if is_loss(name) and name in names]
    bad = ~np.isfinite(rows[:, :, columns])
    if UPDATES in names:
        bad &= (rows[:, :, names.index(UPDATES)] != 0)[..., None]
    return bad, columns


def divergence_reasons(rows: np.ndarray, names: list[str], seeds: np.ndarray) -> list[tuple[int, str]]:
    """Return `(row, reason)` for each of the given seeds, which diverged within rows `[iterations, S, metrics]`."""
    if not len(seeds):
        return []
    bad, columns = bad_losses(rows, names)
    found = []
    for seed in seeds:
        row = int(np.argmax(np.append(bad[:, seed].any(1), True)))
        if row < len(rows) and not np.isnan(rows[row, seed]).all():
            column = columns[int(np.argmax(bad[row, seed]))]
            found.append((row, f"{names[column]} became {rows[row, seed, column]}"))
        else:
            # The parameters broke in the iteration before the first one whose metrics are all NaN.
            found.append((row - 1, "its parameters became NaN or infinite"))
    return found


def diverged_steps(meta: Mapping[str, Any], seeds: int) -> list[int | None]:
    """Return the step at which each seed of a run diverged, None if it has not, from the meta.json of a checkpoint."""
    known = meta.get("diverged")
    return list(known) if known is not None and len(known) == seeds else [None] * seeds


class Fault(NamedTuple):
    """Number in a state that is not finite.

    Attributes:
        what: `the reward`, `the observation`, or the name of a leaf.
        collected: whether the number came from an environment.
        value: NaN or an infinity.
        seed: index of the seed; 0 if there is only one.
        age: age of the oldest row of the replay buffer that has such a number, 0 for the newest row; None if it is not in the
            buffer.
    """

    what: str
    collected: bool
    value: float
    seed: int
    age: int | None


COLLECTED = {"reward": "the reward", "obs": "the observation", "next_obs": "the observation"}


def find_fault(arrays: Mapping[str, np.ndarray], checked: np.ndarray, seeds: bool) -> Fault | None:
    """Find a number that is not finite in a state to be saved: rewards and observations first, then NaN anywhere else.

    States of environments are not checked and may contain NaN. Infinities are faults only in rewards and observations.

    Args:
        arrays: leaves of the state, by name.
        checked: which seeds to check, bool `[S]`.
        seeds: whether leaves have a leading axis of seeds.

    Returns:
        The first fault, or None.
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
    # Report the oldest collected number, where the fault began; those of the buffer have an age.
    return min(faults, key=lambda fault: (not fault.collected, fault.age is None, -(fault.age or 0)), default=None)


def first_bad(rows: np.ndarray, names: list[str], seeds: np.ndarray) -> tuple[int, int, int] | None:
    """Return `(iteration, seed, metric)` of the first loss in rows `[iterations, S, metrics]` that is not finite, or None.

    Only the seeds in `seeds`, bool `[S]`, are checked.
    """
    bad, columns = bad_losses(rows, names)
    bad &= seeds[:, None]
    if not bad.any():
        return None
    row, seed, column = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return int(row), int(seed), columns[int(column)]
