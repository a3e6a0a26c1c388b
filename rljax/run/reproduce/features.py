"""Experiments with features of PPO, each beside a control without it, with the same task, budget and settings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.ppo import PPOConfig
from rljax.collect.resets import initial_environments
from rljax.core.config_files import load_config
from rljax.core.environments.environment import step_and_reset
from rljax.core.environments.wrappers import PublicObservation
from rljax.envs import make_env
from rljax.envs.composite import factorised_optimum, joint_optimum
from rljax.envs.hidden_bit import HiddenBit
from rljax.run.reproduce.report import Report, Trained, first_step

MAZES = ("gru", "lstm", "block_gru", "mlp")


def memory(report: Report) -> None:
    """Measure memory on a corridor and a chain whose first observation says what to do at the end."""
    for network in MAZES:
        maze(report, network)
    memory_chain(report)


def maze(report: Report, network: str) -> np.ndarray:
    """Measure returns in the T-maze with one of the networks in `MAZES`."""
    preset = "tmaze_ppo_lstm" if network == "lstm" else "tmaze_ppo_gru"
    config = load_config(preset, eval_every=None)
    if network == "mlp":
        config = config.replace(network={"hidden": [32, 32]})
    if network == "block_gru":
        config = config.replace(network={**config.network, "type": "block_gru", "blocks": 4})
    name = f"T-maze, {network}"
    return report.measure(name, report.returns(report.train(config, name, preset=preset)), 0.95)


def memory_chain(report: Report) -> None:
    """Measure returns in gymnax's memory chain, with and without memory."""
    config = load_config("memory_chain_ppo_gru", eval_every=None)
    for name, arm in (("gru", config), ("mlp", config.replace(network={"hidden": [32, 32]}))):
        run = report.train(arm, f"memory chain, {name}", preset="memory_chain_ppo_gru")
        report.measure(f"memory chain, {name}", report.returns(run), 0.95)


def entities(report: Report) -> None:
    """Compare a transformer that points at its choice with an MLP trained for three times the steps."""
    picks(report, "transformer", load_config("target_pick_ppo", eval_every=None))
    picks(report, "MLP", picking_mlp())


def picking_mlp() -> Any:
    """Return the control of `target_pick_ppo`, an MLP with three times its steps."""
    config = load_config("target_pick_ppo", eval_every=None, network={"hidden": [64, 64]})
    return config.replace(total_timesteps=3 * config.total_timesteps)


def picks(report: Report, name: str, config: Any) -> None:
    """Train on 2 to 6 targets; measure how many picks are right there, and among 8 to 12 targets."""
    run = report.train(config, name, preset="target_pick_ppo")
    report.measure(f"{name}, 2 to 6 targets", report.returns(run))
    more = run.agent.config.replace(env_params={"min_targets": 8, "max_targets": 12})
    report.measure(f"{name}, 8 to 12 targets", report.returns(run, config=more))


def composite(report: Report) -> None:
    """Compare autoregressive and independent heads where two choices must agree; the best return of either kind is known."""
    report.facts["best return"], report.facts["best return of independent heads"] = composite_optima()
    for heads in ("autoregressive", "independent"):
        run = report.train("composite_ppo", heads, eval_every=None, action_heads=heads)
        report.measure(heads, report.returns(run, 1000, sample=True))


def composite_optima() -> tuple[float, float]:
    """Return the best mean return of any policy, and of one with independent heads."""
    return joint_optimum(4), factorised_optimum(4)


def exploration(report: Report) -> None:
    """Compare bonuses for exploration where random moves hardly ever find the goal."""
    for bonus in ("count", "rnd", "none"):
        sparse(report, bonus)


def sparse(report: Report, bonus: str) -> np.ndarray:
    """Measure one kind of bonus, or "none"; the goal is found if every greedy episode ends there, with a return of 1."""
    preset = f"sparse_gridworld_ppo_{'count' if bonus == 'none' else bonus}"
    without: dict[str, Any] = {"intrinsic": None} if bonus == "none" else {}
    run = report.train(preset, bonus, eval_every=None, **without)
    return report.measure(bonus, report.returns(run, 10), 1.0)


CURRICULA: dict[str, dict[str, Any] | None] = {
    "success": {"type": "success"},
    "uniform": {"type": "uniform"},
    "plr": {"type": "plr"},
    "none": None,
}
"""Rules of a curriculum by name; None trains on the task itself."""

STARTS = {"head_start": [*range(38, -1, -3), 0]}
"""Levels of SparseGridWorld-v0: starts further and further from the goal; the last one is the task."""


def from_starts(rule: dict[str, Any] | None) -> PPOConfig:
    """Return the configuration of a policy for SparseGridWorld-v0 with a rule of a curriculum of starts."""
    return PPOConfig(
        env="SparseGridWorld-v0",
        num_envs=16,
        num_steps=64,
        total_timesteps=100_000,
        curriculum=None if rule is None else {**rule, "levels": STARTS},
        network={"hidden": [32]},
        learning_rate=2e-3,
        anneal_lr=False,
    )


def curricula(report: Report) -> None:
    """Compare rules of a curriculum of starts: steps until every greedy episode of the task ends at the goal, and at the end."""
    for name, rule in CURRICULA.items():
        run = report.train(from_starts(rule).replace(eval_every=2048, eval_episodes=4), name)
        report.measure(f"{name}: steps", first_step(run.curve, run.evaluated_at, 1.0))
        report.measure(f"{name}: return", report.returns(run, 10), 1.0)


def critics(report: Report) -> None:
    """Compare critics where a bit determines much of the reward and no action changes it: without seeing it, it is noise."""
    privileged_critic(report)
    value_heads(report)


CRITIC_STEPS = 100_000


def privileged_critic(report: Report) -> None:
    """Compare a critic that sees the bit with one that does not."""
    config = load_config("hidden_bit_ppo", eval_every=None, total_timesteps=CRITIC_STEPS)
    for name, arm in (("privileged", config), ("public", config.replace(env=PublicObservation(HiddenBit())))):
        run = report.train(arm, f"{name} critic", preset="hidden_bit_ppo")
        report.measure(f"{name} critic: steps", steps_to(run, 7.0))
        explained = run.metrics["train/explained_variance"]
        report.measure(f"{name} critic: explained variance", explained[:, explained.shape[1] // 2 :].mean(1))


def value_heads(report: Report) -> None:
    """Compare one and two value heads if no critic sees the bit: a head per stream keeps its noise out of the advantages."""
    config = load_config("hidden_bit_ppo_heads", eval_every=None, total_timesteps=CRITIC_STEPS)
    config = config.replace(env=PublicObservation(HiddenBit()))
    for name, arm in (("two value heads", config), ("one value head", config.replace(value_heads=(), head_weights=None))):
        run = report.train(arm, name, preset="hidden_bit_ppo_heads")
        report.measure(f"{name}: steps", steps_to(run, 7.0))


def steps_to(run: Trained, threshold: float) -> np.ndarray:
    """Return the steps until the mean return of an iteration's episodes reaches a threshold, f64 `[seeds]`; NaN if never."""
    returns = run.metrics["episode/return"]
    steps = (1 + np.arange(returns.shape[1])) * run.agent.config.steps_per_iteration
    return first_step(returns, steps.tolist(), threshold)


def command(report: Report) -> None:
    """Measure R2 of achieved against commanded numbers, and their squared correlation, which ignores scale and offset."""
    run = report.train("command_ppo", eval_every=None)
    for told, shuffled in (("its own", False), ("another's", True)):
        r2, correlation = [], []
        for commanded, done in zip(*achieved(report, run, shuffled), strict=True):
            r2.append(1.0 - np.sum((done - commanded) ** 2) / np.sum((commanded - commanded.mean()) ** 2))
            correlation.append(np.corrcoef(commanded.ravel(), done.ravel())[0, 1] ** 2)
        report.measure(f"{told} command: R2", r2)
        report.measure(f"{told} command: squared correlation", correlation)


def achieved(report: Report, run: Trained, shuffled: bool, episodes: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """Return `(commanded, achieved)` at the end of episodes, `[seeds, episodes, K]`; if `shuffled`, with another's command."""
    env, params = make_env("Command-v0")
    length = params.max_steps_in_episode

    def play(state: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        env_state, obs = initial_environments(env, params, key, episodes)

        def step(loop: Any, key: jax.Array) -> Any:
            env_state, obs = loop
            told = {**obs, "goal": jnp.roll(obs["goal"], 1, axis=0)} if shuffled else obs
            action, _ = run.agent.act(state, told, None, key, True)
            keys = jax.random.split(key, (episodes, 2))
            obs, env_state, _, _, _, info = jax.vmap(lambda k, s, a: step_and_reset(env, k[0], k[1], s, a, params))(
                keys, env_state, action
            )
            return (env_state, obs), (info["commanded"], info["achieved"])

        _, (commanded, done) = jax.lax.scan(step, (env_state, obs), jax.random.split(key, length))
        return commanded[-1], done[-1]

    commanded, done = report.time_program(jax.vmap(play), run.states, jax.vmap(lambda key: jax.random.fold_in(key, 2))(run.keys))
    return np.asarray(commanded), np.asarray(done)
