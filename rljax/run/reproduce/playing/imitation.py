"""Experiments with imitation: a clone of a scripted player of MicroRTS, and reinforcement that begins with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.imitation.bc import BCConfig
from rljax.collect.demos.dataset import Dataset, open_dataset
from rljax.collect.environments import make_game
from rljax.collect.games.matches import play_match, policy_player
from rljax.core.config_files import load_config
from rljax.core.games.versus import Player, without_view
from rljax.envs.microrts.actions import ORDERS
from rljax.envs.microrts.rules.engine import merge_orders
from rljax.envs.microrts.rules.units import ACTION_NAMES
from rljax.envs.microrts.scripted.bots import find_bots
from rljax.envs.microrts.scripted.players import actions_of
from rljax.run.demos.recording import demonstrations
from rljax.run.reproduce.distilling import improve
from rljax.run.reproduce.report import Report, Trained, fresh_keys

CLONED = "workerrush"
OPPONENTS = ("workerrush", "lightrush", "randombiased", "passive")
"""Scripted players that the demonstrations, and the matches, are against."""

EPISODES = 400
GAMES = 64
"""Number of games of a match against each opponent, half of them from each seat."""

HELD_OUT_STEPS = 4096
"""Number of held-out steps whose orders are compared."""

MAP = ("map_name", "wait_cycles")
"""Parameters of the game itself; without the others a game's return is 1, 0 or -1."""

IMPROVEMENT: dict[str, Any] = {"total_timesteps": 400_000}
TOWARDS_CLONE: dict[str, Any] = {"teacher_kl_coef": 1.0, "teacher_kl_final": 0.0, "teacher_kl_share": 0.5}


def microrts_clone(report: Report) -> None:
    """Clone a player that rushes with workers; compare PPO that begins with the clone with PPO from scratch."""
    preset = load_config("microrts_8x8_ppo", eval_every=None)
    clone, dataset = cloned_player(report, preset, EPISODES, 600_000)
    measure_accuracy(report, clone, dataset)
    improved = improve(report, preset, "PPO from the clone", clone, **IMPROVEMENT, **TOWARDS_CLONE)
    scratch = report.train(preset, "PPO from scratch", preset="microrts_8x8_ppo", **IMPROVEMENT)
    teacher, *shares = shares_won(report, {"clone": clone, "PPO from the clone": improved, "PPO from scratch": scratch}, improved)
    for number, opponent in enumerate(OPPONENTS):
        report.facts[f"{CLONED} against {opponent}: share of {GAMES} games won"] = float(teacher[number])
        for name, won in zip(("clone", "PPO from the clone", "PPO from scratch"), shares, strict=True):
            report.measure(f"{name} against {opponent}: share of {GAMES} games won", won[:, number])
    for name, won in zip(("clone", "PPO from the clone", "PPO from scratch"), shares, strict=True):
        report.measure(f"{name}: share of games won, of its teacher's", won.mean(1) / max(teacher.mean(), 1 / GAMES))
    for name, run in (("PPO from the clone", improved), ("PPO from scratch", scratch)):
        report.measure(f"{name}: share of games won in training", run.metrics["env/win"])


def cloned_player(
    report: Report,
    preset: Any,
    episodes: int,
    total_timesteps: int,
    num_minibatches: int = 4,
    openings: int = 0,
    player: str = CLONED,
    against: Sequence[str] = OPPONENTS,
) -> tuple[Trained, Dataset]:
    """Record games of a player that needs no training, and clone it with the network of a preset of MicroRTS.

    `openings` random moves before each game make games differ that two scripted players would repeat.
    """
    params = {name: value for name, value in preset.env_params.items() if name != "opponents"}
    with report.workplace():
        path = Path("games")  # as the record has it
        count = max(4 * len(against), round(episodes * report.budget))
        demonstrations(
            player, path, num_episodes=count, env="MicroRTS-v0", env_params=params, against=list(against),
            seed=report.seeds[0], openings=openings, resume=True, progress=report.say,
        )  # fmt: skip
        config = BCConfig(
            env="MicroRTS-v0", env_params=params, dataset=str(path), network=preset.network, total_timesteps=total_timesteps,
            num_envs=32, num_steps=32, num_minibatches=num_minibatches, learning_rate=1e-3,
            # PPO normalises rewards, so its values have another scale than the returns of the demonstrations.
            vf_coef=0.0,
        )  # fmt: skip
        dataset = open_dataset(path, held_out=config.held_out)
        clone = report.train(config, "clone", preset="microrts_8x8_ppo")
    report.facts["demonstrations"] = {"episodes": len(dataset.episodes.length), "steps": int(dataset.episodes.length.sum())}
    return clone, dataset


def measure_accuracy(report: Report, clone: Trained, dataset: Dataset) -> None:
    """Measure how often a clone's most likely order for a unit that has a choice is the demonstrated one, by kind of order."""
    batch = jax.tree.map(jnp.asarray, dataset.batches(HELD_OUT_STEPS, held_out=True).read(0))

    def count(state: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
        action, _ = clone.agent.act(state, batch.obs, None, jax.random.key(0), True, batch.mask)
        kind = jnp.asarray(ORDERS)[batch.action, 0]
        choice = jnp.sum(batch.mask.reshape(*kind.shape, -1), axis=-1) > 1
        counted = choice[..., None] & (kind[..., None] == jnp.arange(len(ACTION_NAMES)))
        right = counted & (action == batch.action)[..., None]
        return jnp.sum(right, axis=(0, 1)), jnp.sum(counted, axis=(0, 1))

    right, counted = (np.asarray(x, np.float64) for x in report.time_program(jax.vmap(count, (0, None)), clone.states, batch))
    report.measure("held-out accuracy of orders", right.sum(1) / np.maximum(counted.sum(1), 1.0))
    for number, name in enumerate(ACTION_NAMES):
        if counted[0, number]:
            report.measure(f"held-out accuracy of orders, {name}", right[:, number] / counted[:, number])
            report.facts[f"held-out orders, {name}"] = int(counted[0, number])


def shares_won(report: Report, arms: dict[str, Trained], like: Trained) -> list[np.ndarray]:
    """Return the shares of games that the cloned player wins against each opponent, `[opponents]`, and then those of each arm,
    `[seeds, opponents]`, with sampled actions. All arms have the network of `like`, so one program plays for all.
    """
    of_game = {name: like.agent.config.env_params[name] for name in MAP}
    made: tuple[Any, Any] = make_game(BCConfig(env="MicroRTS-v0", env_params=of_game))
    game, params = made
    bots = find_bots(OPPONENTS)
    numbers = jnp.arange(len(OPPONENTS))

    def opponent(which: jax.Array) -> Player:
        def play(key: jax.Array, state: Any, _obs: Any, _mask: Any) -> Any:
            both = [bots(which, k, state, player, game.walls)[0] for player, k in enumerate(jax.random.split(key))]
            return actions_of(game, state, merge_orders(state, *both))

        return play

    def share(first: Player, key: jax.Array) -> jax.Array:
        """Return the share won against each opponent, f32 `[opponents]`."""

        def against(which: jax.Array, key: jax.Array) -> jax.Array:
            return jnp.mean(play_match(game, params, first, opponent(which), key, GAMES).result > 0)

        return jax.vmap(against)(numbers, jax.random.split(key, len(OPPONENTS)))

    def of_policy(state: Any, key: jax.Array) -> jax.Array:
        return share(policy_player(like.agent, state, deterministic=False), key)

    weights = jax.tree.map(lambda *x: jnp.concatenate(x), *(run.states.params for run in arms.values()))
    states = jax.tree.map(lambda x: jnp.concatenate([x] * len(arms)), like.states).replace(params=weights)
    keys = jnp.concatenate([fresh_keys(run) for run in arms.values()])
    found = np.asarray(report.time_program(jax.vmap(of_policy), states, keys))
    teacher = np.asarray(report.time_program(lambda key: share(without_view(game.scripted[CLONED], params), key), keys[0]))
    return [teacher, *found.reshape(len(arms), -1, len(OPPONENTS))]
