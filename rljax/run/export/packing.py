"""Pack a trained agent: a run folder with only what the policy reads, and a card that says what it is and how good."""

from __future__ import annotations

import datetime
import os
from typing import Any

import jax
import numpy as np

from rljax.collect.environments import evaluation_opponent, make_evaluation_env
from rljax.collect.evaluation import play_episodes
from rljax.core.agent import Agent, make_agent
from rljax.core.config import Config, env_name
from rljax.core.config_files import comparable_table, load_config, preset_names
from rljax.core.places import LOCK_FILE, as_path
from rljax.run.export.policy import check_free
from rljax.run.export.program import leaves_read
from rljax.run.export.signature import read_signature
from rljax.run.files.cards import Card, write_card
from rljax.run.files.checkpoint import CHECKPOINTS, check_path, read_meta
from rljax.run.files.folder import create_run_dir, load_run, read_info, refuse_packed, split_path
from rljax.run.files.scores import best_seed
from rljax.version import __version__, source_commit

EVAL_SEED = 1_000_000_007
"""Seed of the episodes by which packed agents are scored; no preset was tuned on it, and no run is likely to train with it."""

NEEDED = ("params", "iteration")
"""Fields of a state that are packed whatever the policy reads."""

LEARNED_FROM = {"dataset": None, "teachers": ()}
"""Fields that name folders to learn from, and what stands there in a packed agent, which acts without them."""

NOT_THE_SAME = ("seed", "total_timesteps", "eval_every", "eval_episodes", "num_devices")
"""Fields in which a run may differ from the preset that its card names."""


def pack(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    checkpoint: str | int = "latest",
    seed_index: int | str = "best",
    episodes: int = 100,
) -> Card:
    """Write a trained agent to a new folder with only what it needs to act, and score it on episodes that it was not trained on.

    The folder is a run folder without the optimiser, the environments, buffers and metrics. `rljax.load` and all commands that
    play, record, evaluate or export an agent take it; training it on is refused. Its card, `card.json`, has the SHA-256 of each
    file, which are compared whenever it is loaded.

    Args:
        path: the run's folder, or one of its checkpoints.
        out: folder to create.
        checkpoint: "latest", "best" or a number of steps.
        seed_index: index of the seed to pack from a run of several seeds, or "best".
        episodes: number of episodes by which to score it; their seed is in the card.

    Raises:
        ConfigError: there is no run, it is a packed agent already, or `out` exists or cannot be written.
    """
    target = as_path(out, "out")
    check_path(target, f"folder {target}")
    check_free(target)
    folder, _ = split_path(path)
    run = load_run(path, checkpoint=checkpoint, seed_index=seed_index)
    refuse_packed(folder)
    info, meta = read_info(folder), read_meta(folder / CHECKPOINTS / f"step_{run.step}")
    index = 0 if info.seeds is None else best_seed(meta) if seed_index == "best" else int(seed_index)
    names_no_folder = {name: value for name, value in LEARNED_FROM.items() if hasattr(run.config, name)}
    config = run.config.replace(seed=run.config.seed + index, num_devices=1, **names_no_folder)
    agent = make_agent(config)
    read = {name.split("/")[0] for name in leaves_read(agent, run.state, read_signature(agent))}
    if agent.policy_and_value is not None:
        read.add("reward_statistics")  # a search needs them for the unit of the values
    left_out = tuple(name for name in vars(run.state) if name not in read and name not in NEEDED)
    card = _describe(agent, run.state, run.step, info.seeds or 1, episodes)
    scores = meta["scores"] or []
    written: list[Card] = []
    packed = info._replace(seeds=None, first_step=run.step, forked_from=None, init_from="", left_out=left_out)
    kept = {"iteration": meta["iteration"], "score_name": meta["score_name"], "scores": scores[index : index + 1] or None}
    create_run_dir(target, config, packed, run.state, kept, finish=lambda aside: written.append(write_card(aside, card)))
    (target / LOCK_FILE).unlink(missing_ok=True)  # nothing will write there
    return written[0]


def _describe(agent: Agent, state: Any, step: int, seeds: int, episodes: int) -> Card:
    """Return the card of an agent, without files, after playing the episodes by which it is scored."""
    config, preset = agent.config, preset_of(agent.config)
    play = jax.jit(lambda state, key: play_episodes(agent, state, key, episodes).returns)
    returns = np.asarray(play(state, jax.random.key(EVAL_SEED)), np.float64)
    return Card(
        algorithm=config.algorithm,
        env=env_name(config),
        preset=preset,
        budget=None if preset is None else load_config(preset).total_timesteps,
        step=step,
        seed=config.seed,
        seeds=seeds,
        mean=float(returns.mean()),
        std=float(returns.std()),
        episodes=episodes,
        eval_seed=EVAL_SEED,
        sampled=make_evaluation_env(config)[0].best_is_random,
        opponent=evaluation_opponent(config),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        rljax=__version__,
        commit=source_commit(),
        files={},
    )


def preset_of(config: Config) -> str | None:
    """Return the preset with which a configuration agrees but for `NOT_THE_SAME`, or None."""

    def table(config: Config) -> dict[str, Any]:
        return {name: value for name, value in comparable_table(config).items() if name not in NOT_THE_SAME}

    return next((name for name in preset_names() if table(load_config(name)) == table(config)), None)
