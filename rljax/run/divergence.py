"""Numbers that went wrong: losses, parameters and collected steps that are not finite, and seeds that train no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from rljax.run.files.records import UPDATES


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


def why_lost(rows: np.ndarray, names: list[str], seeds: np.ndarray) -> list[tuple[int, str]]:
    """`(row, what went wrong)` for each of some seeds that diverged within rows `[iterations, S, metrics]`."""
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
            # Nothing is known of the iteration after the one that the parameters broke in.
            found.append((row - 1, "its parameters became something else than finite numbers"))
    return found


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


def first_bad(rows: np.ndarray, names: list[str], seeds: np.ndarray) -> tuple[int, int, int] | None:
    """`(iteration, seed, metric)` of the first loss in rows `[iterations, S, metrics]` that is not finite, of some seeds, bool
    `[S]`."""
    bad, columns = bad_losses(rows, names)
    bad &= seeds[:, None]
    if not bad.any():
        return None
    row, seed, column = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return int(row), int(seed), columns[int(column)]
