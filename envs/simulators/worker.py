"""Process that simulates: run as a script by `processes.py`, it imports the suite, NumPy and nothing of rljax or JAX.

It has some of the rows of arrays that it shares with the program: it reads what to do and the actions there, and writes
observations, rewards and ends. A byte says what to do, a byte answers.
"""

from __future__ import annotations

import importlib
import mmap
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

BEGIN, STEP, RESTART = b"b", b"s", b"r"
DONE = b"."

CHANNELS_FIRST = "channels first"
"""Mark of pictures `[C, H, W]`, which become `[H, W, C]`."""
GRAY = "gray"
"""Mark of pictures `[H, W]`, which become `[H, W, 1]`."""


class Gymnasium:
    """Environments of Gymnasium, one after the other."""

    def __init__(self, name: str, arguments: dict[str, Any], count: int):
        gymnasium = importlib.import_module("gymnasium")
        if name.startswith("ALE/"):
            gymnasium.register_envs(importlib.import_module("ale_py"))
        # Its checker warns of habits that do no harm here, in every process.
        self.envs = [gymnasium.make(name, disable_env_checker=True, **arguments) for _ in range(count)]

    def reset(self, rows: np.ndarray, seeds: np.ndarray | None) -> Iterator[tuple[Any, ...]]:
        """Begin episodes, and yield row, observation and `info`, or several rows and theirs."""
        for i, row in enumerate(rows):
            yield row, *self.envs[row].reset(seed=None if seeds is None else int(seeds[i]))

    def mask(self, row: int, info: dict[str, Any]) -> Any:
        return mask_of(self.envs[row], info)

    def draw(self, row: int) -> Any:
        return self.envs[row].render()

    def step(self, rows: np.ndarray, arrays: list[np.ndarray], structure: Any) -> Iterator[tuple[Any, ...]]:
        """Take steps, and yield row, observation, reward, ends and `info`, or several rows and theirs."""
        for row in rows:
            action = action_of(iter([x[row] for x in arrays]), structure)
            obs, reward, terminated, truncated, info = self.envs[row].step(action)
            yield row, obs, reward_of(reward), terminated, truncated, info


class EnvPool:
    """Environments of EnvPool, together, by its own threads."""

    def __init__(self, name: str, arguments: dict[str, Any], count: int):
        self.name, self.arguments, self.count = name, arguments, count
        self.envs: Any = None

    def reset(self, rows: np.ndarray, seeds: np.ndarray | None) -> Iterator[tuple[Any, ...]]:
        if seeds is not None:
            # It takes a seed only when it is made.
            if self.envs is not None:
                self.envs.close()
            warnings.simplefilter("ignore")  # of its own spaces
            make = importlib.import_module("envpool").make
            seed = int(seeds[0]) % 2**31
            self.envs = make(self.name, env_type="gymnasium", num_envs=self.count, seed=seed, **self.arguments)
        obs, info = self.envs.reset(rows.astype(np.int32))
        yield info["env_id"], obs, info

    def step(self, rows: np.ndarray, arrays: list[np.ndarray], structure: Any) -> Iterator[tuple[Any, ...]]:
        actions = action_of(iter([x[rows] for x in arrays]), structure)
        obs, reward, terminated, truncated, info = self.envs.step(actions, rows.astype(np.int32))
        yield info["env_id"], obs, reward, terminated, truncated, info


SUITES: dict[str, Any] = {"gymnasium": Gymnasium, "envpool": EnvPool}


def leaves(tree: Any, structure: Any) -> list[Any]:
    """Return the arrays of an observation, or of a batch of them, in the order of `jax.tree.leaves`.

    Args:
        tree: dictionaries and tuples of arrays.
        structure: the same with what is changed of an array in place of it: None, the number where its integers begin,
            `CHANNELS_FIRST` or `GRAY`.
    """
    if isinstance(structure, dict):
        return [x for key in sorted(structure) for x in leaves(tree[key], structure[key])]
    if isinstance(structure, tuple):
        return [x for part, inner in zip(tree, structure, strict=True) for x in leaves(part, inner)]
    if structure is None:
        return [tree]
    if isinstance(structure, str):
        return [np.asarray(tree)[..., None] if structure == GRAY else np.moveaxis(tree, -3, -1)]
    return [np.asarray(tree) - structure]


def action_of(arrays: Iterator[np.ndarray], structure: Any) -> Any:
    """Return an action from its arrays, or a batch of them; `structure` has a dtype, what is added, the bounds, and whether it is
    a single number.
    """
    if isinstance(structure, dict):
        return {key: action_of(arrays, structure[key]) for key in sorted(structure)}
    dtype, first, bounds, single = structure
    action = next(arrays).astype(dtype)
    action = action if first is None else action + np.asarray(first, dtype)
    # A bound of 64 bits may be less than the same one of 32 bits.
    action = action if bounds is None else np.clip(action, *bounds)
    return action[()] if single else action


def mask_of(env: Any, info: dict[str, Any]) -> Any:
    """Return the flags of legal actions that an environment of Gymnasium shows, or None: those of its method `action_masks()`, as
    MaskablePPO of Stable-Baselines3 reads them, else `info["action_mask"]`, as Taxi has them.
    """
    mask = env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else None
    mask = mask() if callable(mask) else mask
    return info.get("action_mask") if mask is None else mask


def legal(mask: Any, heads: tuple[int, ...]) -> np.ndarray:
    """Return flags of legal actions, bool `[sum(heads)]`; a head without a legal action has all.

    Args:
        mask: an array, or, as Gymnasium's spaces take masks, a tuple or a dictionary of one for each head.
        heads: numbers of actions.

    Raises:
        ValueError: there is no mask, or it has another number of flags.
    """
    if mask is None:
        raise ValueError(f"no mask of actions came, expected {sum(heads)} flags")
    flags = _flat(mask)
    if len(flags) != sum(heads):
        raise ValueError(f"a mask of actions has {len(flags)} flags, expected {sum(heads)}")
    parts = np.split(flags, np.cumsum(heads)[:-1])
    return np.concatenate([part if part.any() else ~part for part in parts])


def _flat(mask: Any) -> np.ndarray:
    if isinstance(mask, dict):
        mask = [mask[key] for key in sorted(mask)]
    if isinstance(mask, (list, tuple)):
        return np.concatenate([np.zeros(0, bool), *map(_flat, mask)])
    return np.asarray(mask, bool).ravel()


def reward_of(reward: Any) -> float:
    """Return a reward as a number.

    Raises:
        ValueError: it is several.
    """
    if np.size(reward) != 1:
        raise ValueError(f"a reward has the shape {np.shape(reward)}, expected one number")
    return float(np.asarray(reward).item())


def main() -> None:
    # Signals to all processes of a job are for the program, which saves what it has and then hangs up.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    connection, memory = Connection(int(sys.argv[1])), int(sys.argv[2])
    try:
        plan = connection.recv()
    except EOFError:
        return
    parent = os.getppid()

    def leave_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    sys.path[:] = plan["path"]
    shared = mmap.mmap(memory, 0)
    first, last = plan["rows"]
    arrays = {
        name: np.ndarray(shape, dtype, shared, offset)[first:last] for name, (shape, dtype, offset) in plan["arrays"].items()
    }
    obs_arrays = [arrays[f"obs{i}"] for i in range(plan["num_obs"])]
    action_arrays = [arrays[f"action{i}"] for i in range(plan["num_actions"])]

    def show(row: Any, obs: Any, info: dict[str, Any], terminated: Any = False) -> None:
        write(obs_arrays, row, leaves(obs, plan["obs"]))
        if "mask" in arrays:  # at an end there is no choice, and so perhaps no mask
            arrays["mask"][row] = terminated or legal(suite.mask(row, info), plan["heads"])
        if "picture" in arrays:
            write([arrays["picture"]], row, [suite.draw(row)])

    try:
        suite = SUITES[plan["suite"]](plan["name"], plan["arguments"], last - first)
        connection.send_bytes(DONE)
        while True:
            command = connection.recv_bytes()
            rows = np.flatnonzero(arrays["which"])
            if not len(rows):
                pass
            elif command == STEP:
                for row, obs, reward, terminated, truncated, info in suite.step(rows, action_arrays, plan["action"]):
                    show(row, obs, info, terminated)
                    arrays["reward"][row] = reward
                    arrays["terminated"][row], arrays["truncated"][row] = terminated, truncated
            else:
                seeds = arrays["seed"][rows] if command == BEGIN else None
                for row, obs, info in suite.reset(rows, seeds):
                    show(row, obs, info)
                    arrays["reward"][row], arrays["terminated"][row], arrays["truncated"][row] = 0.0, False, False
            connection.send_bytes(DONE)
    except (EOFError, ConnectionError):
        return  # the program has ended
    except Exception as error:
        text = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        connection.send_bytes(text.encode(errors="replace"))


def write(arrays: list[np.ndarray], row: Any, values: list[Any]) -> None:
    """Write an observation into its row, or several into theirs.

    Raises:
        ValueError: it has another shape than its space: NumPy would repeat it.
    """
    for array, x in zip(arrays, values, strict=True):
        found = np.shape(x)[np.ndim(row) :]
        if found != array.shape[1:]:
            raise ValueError(f"an observation has the shape {found}, its space {array.shape[1:]}")
        if array.dtype.kind in "iu" and not np.can_cast(np.asarray(x).dtype, array.dtype):
            # As the bounds of its space. NumPy would go on from the other end.
            limits = np.iinfo(array.dtype)
            x = np.clip(x, limits.min, limits.max)
        array[row] = x


if __name__ == "__main__":
    main()
