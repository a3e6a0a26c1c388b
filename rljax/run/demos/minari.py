"""Import datasets of Minari (Farama Foundation) as datasets of rljax."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rljax.collect.demos.dataset import Dataset, open_dataset
from rljax.collect.demos.schema import DatasetInfo
from rljax.core.errors import ConfigError, first_line, how_to_install, shown
from rljax.envs.simulators.worker import leaves
from rljax.run.demos.writer import SHARD_BYTES, Episode, new_dataset


def import_minari(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    env: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[str], None] = lambda _: None,
) -> Dataset:
    """Write a dataset of Minari to a new folder, episode by episode; 64-bit numbers become 32-bit ones.

    Args:
        source: id of a dataset that Minari has on this machine (`minari download ID`), or the path of its folder.
        path: folder to create.
        env: environment id to give it, where rljax's differs from Gymnasium's; None: that of the dataset.
        shard_bytes: write a shard when there are so many bytes.
        progress: function that is called with a line of text now and then.

    Raises:
        ConfigError: Minari is not installed, has no such dataset, or the dataset has spaces that rljax has not.
    """
    try:
        _write(_load(source), source, path, env, shard_bytes, progress)
    except ConfigError:
        raise
    except (ValueError, TypeError, KeyError, OSError, ImportError) as error:
        raise ConfigError(f"minari:{source}: cannot be read: {first_line(error)}") from None
    return open_dataset(path, verify=False)


def _write(
    data: Any, source: object, path: str | os.PathLike[str], env: str | None, shard_bytes: int, progress: Callable[[str], None]
) -> None:
    """Write the episodes of a dataset of Minari to a new folder."""
    spec = data.spec
    name = env or (spec.env_spec.id if spec.env_spec is not None else str(spec.dataset_id))
    # It needs Gymnasium, as Minari does.
    from rljax.envs.simulators.spaces import convert_spaces

    observation, action, layout = convert_spaces(f"minari:{source}", spec.observation_space, spec.action_space)
    recorded = {"player": f"minari:{spec.dataset_id}", "num_episodes": int(spec.total_episodes)}
    with new_dataset(path, DatasetInfo(name, {}, observation, action, False, recorded), shard_bytes) as writer:
        for number, episode in enumerate(data.iterate_episodes()):
            writer.add(_episode(episode, spec, layout.obs_structure, number, source))
            if (number + 1) % 1000 == 0:
                progress(f"{number + 1:,} of {spec.total_episodes:,} episodes")
        writer.commit(int(spec.total_episodes))


def _load(source: str | os.PathLike[str]) -> Any:
    try:
        import minari
    except ImportError:
        raise ConfigError(f"minari:{source}: Minari is not installed: {how_to_install('offline')}") from None
    folder = Path(source)
    try:
        if folder.is_dir():
            return minari.MinariDataset(folder / "data" if (folder / "data").is_dir() else folder)
        return minari.load_dataset(str(source))
    except FileNotFoundError:
        raise ConfigError(f"minari:{source}: no such dataset on this machine: minari download {shown(str(source))}") from None


def _episode(episode: Any, spec: Any, structure: Any, number: int, source: object) -> Episode:
    """Return an episode of Minari as one of rljax, with actions counted from 0; `structure` is that of its observations."""
    length = len(episode.rewards)
    seen = {len(x) for x in _leaves(episode.observations)}
    if seen != {length + 1}:
        raise ConfigError(f"minari:{source}: episode {number} has {seen} observations of {length} steps, expected {length + 1}")
    terminated = np.asarray(episode.terminations, bool)
    truncated = np.asarray(episode.truncations, bool)
    if not (terminated[-1] or truncated[-1]):
        truncated = np.arange(length) == length - 1  # the recording stopped in the middle of it
    return Episode(
        obs=_as_seen(episode.observations, structure),
        action=_from_zero(episode.actions, spec.action_space),
        mask=None,
        reward=np.asarray(episode.rewards, np.float32),
        terminated=terminated,
        truncated=truncated & ~terminated,
        game=number,
    )


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in _leaves(part)]
    return [leaf for part in tree for leaf in _leaves(part)] if isinstance(tree, tuple) else [tree]


def _as_seen(tree: Any, structure: Any) -> Any:
    """Return observations as the environment gives them in rljax."""
    if isinstance(tree, dict):
        return {name: _as_seen(part, structure[name]) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_as_seen(part, below) for part, below in zip(tree, structure, strict=True))
    return np.asarray(leaves(tree, structure)[0])


def _from_zero(tree: Any, space: Any) -> Any:
    """Return actions of a Gymnasium space, in which Discrete ones may start at another number than 0, as those of rljax."""
    if isinstance(tree, dict):
        return {name: _from_zero(part, space.spaces[name]) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_from_zero(part, below) for part, below in zip(tree, space.spaces, strict=True))
    return np.asarray(tree) - np.asarray(getattr(space, "start", 0)).astype(np.asarray(tree).dtype)
