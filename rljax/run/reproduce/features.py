"""Experiments with features of PPO: each beside a control with the same task, budget and settings, without it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.rollout import initial_environments
from rljax.core.config import load_config
from rljax.core.environment import step_and_reset
from rljax.core.wrappers import PublicObservation
from rljax.envs import make_env
from rljax.envs.composite import factorised_optimum, joint_optimum
from rljax.envs.hidden_bit import HiddenBit
from rljax.run.reproduce.report import Report, Trained, first_step

MAZES = ("gru", "lstm", "block_gru", "mlp")


def memory(report: Report) -> None:
    """A corridor and a chain whose first observation says what to do at the end."""
    for network in MAZES:
        maze(report, network)
    memory_chain(report)


def maze(report: Report, network: str) -> np.ndarray:
    """The T-maze with one of `MAZES`."""
    preset = "tmaze_ppo_lstm" if network == "lstm" else "tmaze_ppo_gru"
    config = load_config(preset, eval_every=None)
    if network == "mlp":
        config = config.replace(network={"hidden": [32, 32]})
    if network == "block_gru":
        config = config.replace(network={**config.network, "type": "block_gru", "blocks": 4})
    name = f"T-maze, {network}"
    return report.measured(name, report.returns(report.trained(config, name, preset=preset)), 0.95)


def memory_chain(report: Report) -> None:
    """gymnax's environment, by its id."""
    config = load_config("memory_chain_ppo_gru", eval_every=None)
    for name, arm in (("gru", config), ("mlp", config.replace(network={"hidden": [32, 32]}))):
        run = report.trained(arm, f"memory chain, {name}", preset="memory_chain_ppo_gru")
        report.measured(f"memory chain, {name}", report.returns(run), 0.95)


def entities(report: Report) -> None:
    """A transformer that points at its choice, and an MLP with three times the steps."""
    picks(report, "transformer", load_config("target_pick_ppo", eval_every=None))
    picks(report, "MLP", picking_mlp())


def picking_mlp() -> Any:
    """The control of `target_pick_ppo`, with three times its steps."""
    config = load_config("target_pick_ppo", eval_every=None, network={"hidden": [64, 64]})
    return config.replace(total_timesteps=3 * config.total_timesteps)


def picks(report: Report, name: str, config: Any) -> None:
    """Trained on 2 to 6 targets; how many picks are right there, and among 8 to 12."""
    run = report.trained(config, name, preset="target_pick_ppo")
    report.measured(f"{name}, 2 to 6 targets", report.returns(run))
    more = run.agent.config.replace(env_params={"min_targets": 8, "max_targets": 12})
    report.measured(f"{name}, 8 to 12 targets", report.returns(run, config=more))


def composite(report: Report) -> None:
    """Two heads whose choices must agree; the best that either kind of policy can do is known."""
    report.facts["best return"], report.facts["best return of independent heads"] = composite_optima()
    for heads in ("autoregressive", "independent"):
        run = report.trained("composite_ppo", heads, eval_every=None, action_heads=heads)
        report.measured(heads, report.returns(run, 1000, sample=True))


def composite_optima() -> tuple[float, float]:
    """The best mean return of any policy, and of one with independent heads."""
    return joint_optimum(4), factorised_optimum(4)


def exploration(report: Report) -> None:
    """A goal that random moves hardly ever find."""
    for bonus in ("count", "rnd", "none"):
        sparse(report, bonus)


def sparse(report: Report, bonus: str) -> np.ndarray:
    """One kind of bonus, or "none"; the goal is found where every greedy episode ends there, a return of 1."""
    preset = f"sparse_gridworld_ppo_{'count' if bonus == 'none' else bonus}"
    without: dict[str, Any] = {"intrinsic": None} if bonus == "none" else {}
    run = report.trained(preset, bonus, eval_every=None, **without)
    return report.measured(bonus, report.returns(run, 10), 1.0)


def critics(report: Report) -> None:
    """A bit decides much of the reward, and no action changes it: noise to whoever does not see it."""
    privileged_critic(report)
    value_heads(report)


CRITIC_STEPS = 100_000


def privileged_critic(report: Report) -> None:
    """A critic that sees the bit, and one that does not."""
    config = load_config("hidden_bit_ppo", eval_every=None, total_timesteps=CRITIC_STEPS)
    for name, arm in (("privileged", config), ("public", config.replace(env=PublicObservation(HiddenBit())))):
        run = report.trained(arm, f"{name} critic", preset="hidden_bit_ppo")
        report.measured(f"{name} critic: steps", steps_to(run, 7.0))
        explained = run.metrics["train/explained_variance"]
        report.measured(f"{name} critic: explained variance", explained[:, explained.shape[1] // 2 :].mean(1))


def value_heads(report: Report) -> None:
    """No critic sees the bit: with a head for each stream, its noise stays out of the advantages."""
    config = load_config("hidden_bit_ppo_heads", eval_every=None, total_timesteps=CRITIC_STEPS)
    config = config.replace(env=PublicObservation(HiddenBit()))
    for name, arm in (("two value heads", config), ("one value head", config.replace(value_heads=(), head_weights=None))):
        run = report.trained(arm, name, preset="hidden_bit_ppo_heads")
        report.measured(f"{name}: steps", steps_to(run, 7.0))


def steps_to(run: Trained, threshold: float) -> np.ndarray:
    """Environment steps until the mean return of an iteration's episodes first reaches a threshold, f64 `[seeds]`; NaN: never."""
    returns = run.metrics["episode/return"]
    steps = (1 + np.arange(returns.shape[1])) * run.agent.config.steps_per_iteration
    return first_step(returns, steps.tolist(), threshold)


def command(report: Report) -> None:
    """R2 of achieved against commanded numbers, and their squared correlation, which forgives scale and offset."""
    run = report.trained("command_ppo", eval_every=None)
    for told, shuffled in (("its own", False), ("another's", True)):
        r2, correlation = [], []
        for commanded, done in zip(*achieved(report, run, shuffled), strict=True):
            r2.append(1.0 - np.sum((done - commanded) ** 2) / np.sum((commanded - commanded.mean()) ** 2))
            correlation.append(np.corrcoef(commanded.ravel(), done.ravel())[0, 1] ** 2)
        report.measured(f"{told} command: R2", r2)
        report.measured(f"{told} command: squared correlation", correlation)


def achieved(report: Report, run: Trained, shuffled: bool, episodes: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """`(commanded, achieved)` at the end of episodes, `[seeds, episodes, K]`; `shuffled`: it is told another's command."""
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

    commanded, done = report.timed(jax.vmap(play), run.states, jax.vmap(lambda key: jax.random.fold_in(key, 2))(run.keys))
    return np.asarray(commanded), np.asarray(done)
