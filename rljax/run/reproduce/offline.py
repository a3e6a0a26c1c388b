"""Experiments with offline learning: what it makes of data that is not good, and what that is worth as a beginning.

All seeds learn from one dataset; they differ in their initial networks, and online in all random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.common.training import train_iteration
from rljax.algos.imitation.bc import BCConfig
from rljax.algos.offline.awac import AWACConfig
from rljax.algos.offline.cql import CQLConfig
from rljax.algos.offline.iql import IQLConfig
from rljax.algos.offline.parts import OfflineConfig
from rljax.algos.offline.td3_bc import TD3BCConfig
from rljax.algos.ppo import PPOConfig
from rljax.collect.demos import Dataset
from rljax.core.agent import Agent, make_agent
from rljax.core.config_files import load_config
from rljax.league.exploit import branch
from rljax.league.parts import Player
from rljax.run.demos.recording import demonstrations
from rljax.run.reproduce.report import Report, Trained

HALF_TRAINED = 3_600
"""Steps of the SAC that is recorded on Pendulum: some of its episodes are as good as any, others fail as a beginner's do."""

MOSTLY_WRONG = (0.35, 0.2, 0.2, 0.25)
"""Probabilities of up, right, down and left in the grid, whose goal is down and right: cloning goes up."""

ONLINE_STEPS = 3_200

SAC: dict[str, Any] = {"anneal_lr": False, "learning_starts": 200}

PENDULUM: dict[str, Any] = {
    "env": "Pendulum-v1",
    "gamma": 0.97,
    "reward_scale": 0.1,
    "batch_size": 128,
    "learning_rate": 1e-3,
    "network": {"hidden": [64, 64]},
    "num_steps": 100,
    "total_timesteps": 10_000,
}
GRID: dict[str, Any] = {
    "env": "GridWorld-v0",
    "gamma": 0.9,
    "reward_scale": 10.0,
    "batch_size": 64,
    "learning_rate": 3e-3,
    "tau": 0.05,
    "network": {"hidden": [64]},
    "num_steps": 100,
    "total_timesteps": 3_000,
}
ONLINE: dict[str, Any] = {
    "online": True,
    "num_envs": 4,
    "num_steps": 50,
    "updates_per_step": 4,
    "buffer_size": 20_000,
    "learning_starts": 200,
    "total_timesteps": ONLINE_STEPS,
    "eval_every": 400,
    "eval_episodes": 16,
}


def offline(report: Report) -> None:
    """Compare offline algorithms with cloning on two datasets, and fine-tuning with training from scratch."""
    with report.workplace():
        pendulum(report, Path())  # the record names the data as they are called there
        grid(report, Path())


def pendulum(report: Report, folder: Path) -> None:
    """Learn from samples of a half-trained SAC."""
    half = report.train("pendulum_sac", "recorded SAC", total_timesteps=HALF_TRAINED, **SAC, eval_every=None)
    first = jax.tree.map(lambda x: x[0], half.states)
    data = demonstrations(
        (half.agent, first), folder / "pendulum", num_episodes=50, sample=True, seed=report.seeds[0], resume=True
    )
    compare(report, "Pendulum", data, [IQLConfig(**PENDULUM), TD3BCConfig(**PENDULUM)])
    sac = load_config("pendulum_sac", **SAC, total_timesteps=ONLINE_STEPS, eval_every=400, eval_episodes=16)
    measure_curve(
        report, "Pendulum, SAC from scratch", report.train(sac, "Pendulum, SAC from scratch", preset="pendulum_sac").curve
    )


def grid(report: Report, folder: Path) -> None:
    """Learn from random moves, most of which lead away from the goal."""
    player = misled_player()
    state = jax.jit(player.init)(jax.random.key(0))
    data = demonstrations((player, state), folder / "grid", num_episodes=192, sample=True, seed=report.seeds[0], resume=True)
    improved = [IQLConfig(expectile=0.9, beta=10.0, **GRID)]
    compare(report, "grid", data, improved, [AWACConfig(beta=5.0, **GRID), CQLConfig(alpha=0.1, **GRID)])


def misled_player() -> Agent:
    """Return a player of the grid that draws its moves by `MOSTLY_WRONG`."""

    def act(
        state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[Any, Any]:
        del state, deterministic, mask
        return jax.random.categorical(key, jnp.log(jnp.array(MOSTLY_WRONG)), shape=obs.shape[:-1]).astype(jnp.int32), carry

    return make_agent(PPOConfig(env="GridWorld-v0"))._replace(act=act)


def compare(
    report: Report, task: str, data: Dataset, improved: Sequence[OfflineConfig], others: Sequence[OfflineConfig] = ()
) -> None:
    """Measure returns of cloning and of offline algorithms, and for `improved` ones curves of what follows online."""
    report.facts[f"{task}: recorded episodes"] = data.num_episodes
    report.facts[f"{task}: recorded steps"] = data.num_steps
    report.facts[f"{task}: mean recorded return"] = float(data.episodes.returns.mean())
    like, path = improved[0], str(data.path)
    clone = BCConfig(env=like.env, dataset=path, network=like.network, normalize_observations=task == "Pendulum")
    report.measure(f"{task}, cloning", report.returns(report.train(clone, f"{task}, cloning")))
    for config in (*improved, *others):
        name = f"{task}, {config.algorithm}"
        run = report.train(config.replace(dataset=path), name)
        report.measure(name, report.returns(run))
        if config in improved:
            online, scratch = config.replace(**ONLINE), f"{name} from scratch"
            curve = fine_tuned(report, run, f"{name} online", online.replace(dataset=path))
            measure_curve(report, f"{name} online", curve)
            measure_curve(report, scratch, report.train(online, scratch).curve)


def fine_tuned(report: Report, run: Trained, arm: str, config: OfflineConfig) -> np.ndarray:
    """Go on online with the policy of each seed; return evaluations, f32 `[seeds, evaluations]`."""
    config = report.configure(config, arm)[0]
    agent = make_agent(config)

    def one(state: Any, key: jax.Array) -> jax.Array:
        policy = state.params if state.obs_statistics is None else Player(state.params, state.obs_statistics)
        start = branch(agent, policy, key)
        iterations = jnp.arange(config.num_iterations)
        _, metrics = jax.lax.scan(lambda state, i: train_iteration(agent, state, i), start, iterations)
        return metrics["eval/return"]

    found = np.asarray(report.time_program(jax.vmap(one, axis_size=len(report.seeds)), run.states, fresh_keys(run)))
    return found[:, np.isfinite(found).any(0)]


def fresh_keys(run: Trained) -> jax.Array:
    """Return a key for each seed that its training did not use."""
    return jax.vmap(lambda key: jax.random.fold_in(key, 2))(run.keys)


def measure_curve(report: Report, name: str, curve: np.ndarray) -> None:
    """Record evaluations during training, their mean, and the last one."""
    report.measure(f"{name}: evaluations", curve)
    report.measure(f"{name}: mean of evaluations", curve.mean(1))
    report.measure(f"{name}: last evaluation", curve[:, -1])
