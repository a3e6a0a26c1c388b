"""Each feature learns what its control cannot: 10 seeds in one vmap for either arm, the same budget, the same rest."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.collect.rollout import initial_environments
from rljax.core.environment import step_and_reset
from rljax.core.wrappers import PublicObservation
from rljax.envs import HiddenBit, make_env
from rljax.envs.composite import factorised_optimum, joint_optimum

SEEDS = 10

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def trained(config: Any, seeds: int = SEEDS) -> tuple[Any, dict[str, np.ndarray]]:
    """The batched final states of some seeds, and their metrics `[seeds, iterations]`."""
    result = jax.jit(jax.vmap(rljax.make_train(config)))(jax.random.split(jax.random.key(config.seed), SEEDS)[:seeds])
    return result.state, {name: np.asarray(x) for name, x in result.metrics.items()}


def scores(config: Any, state: Any, episodes: int = 100, deterministic: bool = True) -> np.ndarray:
    """Mean returns of the seeds, f32 `[seeds]`, in the environment of `config`, which may differ from that of training."""
    agent, seeds = rljax.make_agent(config), len(state.iteration)
    play = jax.jit(jax.vmap(lambda s, k: jnp.mean(rljax.evaluate(agent, s, k, episodes, deterministic=deterministic))))
    return np.asarray(play(state, jax.random.split(jax.random.key(1), SEEDS)[:seeds]))


def report(figure: Callable[[str], None], arm: str, values: np.ndarray) -> None:
    figure(f"{arm}: median {np.median(values):.3f}, worst {values.min():.3f}, best {values.max():.3f}")


# Memory


@functools.cache
def maze_scores(network: str) -> np.ndarray:
    config = rljax.load_config("tmaze_ppo_lstm" if network == "lstm" else "tmaze_ppo_gru", eval_every=None)
    if network == "mlp":
        config = config.replace(network={"hidden": [32, 32]})
    if network == "block_gru":
        config = config.replace(network={**config.network, "type": "block_gru", "blocks": 4})
    return scores(config, trained(config)[0])


@pytest.mark.parametrize("network", ["gru", "lstm", "block_gru"])
def test_memory_solves_the_maze(network: str, figure: Callable[[str], None]) -> None:
    report(figure, f"TMaze, {network}", maze_scores(network))
    assert (maze_scores(network) >= 0.95).sum() >= 9, maze_scores(network)


def test_without_memory_the_maze_stays_at_chance(figure: Callable[[str], None]) -> None:
    """Chance is a mean of 0 with a standard error of 0.1 over 100 episodes."""
    report(figure, "TMaze, mlp", maze_scores("mlp"))
    assert (np.abs(maze_scores("mlp")) < 0.4).all(), maze_scores("mlp")


def test_gymnaxs_memory_chain_is_solved_by_id(figure: Callable[[str], None]) -> None:
    config = rljax.load_config("memory_chain_ppo_gru", eval_every=None)
    assert config.env == "MemoryChain-bsuite"
    memory = scores(config, trained(config)[0])
    control = config.replace(network={"hidden": [32, 32]})
    without = scores(control, trained(control)[0])
    report(figure, "MemoryChain-bsuite, gru", memory)
    report(figure, "MemoryChain-bsuite, mlp", without)
    assert (memory >= 0.95).sum() >= 9, memory
    assert (np.abs(without) < 0.4).all(), without


# Sets


def pick_scores(figure: Callable[[str], None], name: str, config: Any, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Trained on 2 to 6 targets: how many of 8 picks are right there, and with 8 to 12 targets."""
    state, _ = trained(config, seeds)
    seen = scores(config, state)
    unseen = scores(config.replace(env_params={"min_targets": 8, "max_targets": 12}), state)
    report(figure, f"TargetPick, {name}, 2 to 6 targets", seen)
    report(figure, f"TargetPick, {name}, 8 to 12 targets", unseen)
    return seen, unseen


def test_attention_picks_from_more_targets_than_it_was_trained_on(figure: Callable[[str], None]) -> None:
    """Three seeds, for time; all ten are in the README's table."""
    seen, unseen = pick_scores(figure, "transformer", rljax.load_config("target_pick_ppo", eval_every=None), 3)
    assert (seen >= 7.2).all(), seen
    assert (unseen >= 7.0).all(), unseen


def test_an_mlp_cannot_pick_from_more_targets_than_it_was_trained_on(figure: Callable[[str], None]) -> None:
    """With three times the steps."""
    config = rljax.load_config("target_pick_ppo", eval_every=None, network={"hidden": [64, 64]})
    seen, unseen = pick_scores(figure, "mlp", config.replace(total_timesteps=3 * config.total_timesteps), SEEDS)
    # It learned what it was shown, as well as policies that do not compare the targets can (4.03), but no more than that.
    assert np.median(seen) > 4.0, seen
    assert (unseen < 3.0).all(), unseen


# Heads that agree


def test_heads_that_see_those_before_reach_the_optimum_and_independent_ones_half_of_it(
    figure: Callable[[str], None],
) -> None:
    config = rljax.load_config("composite_ppo", eval_every=None)
    best, best_independent = joint_optimum(4), factorised_optimum(4)
    assert best_independent == pytest.approx(best / 2)
    results = {}
    for heads in ("autoregressive", "independent"):
        arm = config.replace(action_heads=heads)
        results[heads] = scores(arm, trained(arm)[0], episodes=1000, deterministic=False)
        report(figure, f"Composite, {heads} (best {best:.3f}, of independent heads {best_independent:.3f})", results[heads])
    # The standard error of a mean of 1000 episodes is 0.03.
    assert (results["autoregressive"] >= 0.96 * best).sum() >= 9, results["autoregressive"]
    assert (results["autoregressive"] <= best + 0.1).all()
    assert (results["independent"] <= best_independent + 0.1).all(), results["independent"]
    assert (results["independent"] >= 1.2).all(), "the control learns what its heads can"


# Bonuses


@functools.cache
def sparse_scores(bonus: str | None) -> np.ndarray:
    config = rljax.load_config(f"sparse_gridworld_ppo_{bonus or 'count'}", eval_every=None)
    config = config if bonus else config.replace(intrinsic=None)
    return scores(config, trained(config)[0], episodes=10)


@pytest.mark.parametrize("bonus", ["count", "rnd"])
def test_a_bonus_for_what_is_new_finds_the_goal(bonus: str, figure: Callable[[str], None]) -> None:
    report(figure, f"SparseGridWorld, {bonus}", sparse_scores(bonus))
    assert (sparse_scores(bonus) == 1.0).sum() >= 9, sparse_scores(bonus)


def test_without_a_bonus_the_goal_is_hardly_ever_found(figure: Callable[[str], None]) -> None:
    report(figure, "SparseGridWorld, no bonus", sparse_scores(None))
    assert (sparse_scores(None) > 0.0).sum() <= 2, sparse_scores(None)


# Critics


def steps_to(config: Any, metrics: dict[str, np.ndarray], threshold: float) -> np.ndarray:
    """Environment steps until the mean return of an iteration's episodes first reaches a threshold, per seed."""
    reached = np.nan_to_num(metrics["episode/return"], nan=-np.inf) >= threshold
    assert reached.any(1).all(), "some seed never does"
    return (reached.argmax(1) + 1) * config.steps_per_iteration


def test_a_privileged_critic_explains_more_and_needs_fewer_steps(figure: Callable[[str], None]) -> None:
    config = rljax.load_config("hidden_bit_ppo", eval_every=None, total_timesteps=100_000)
    control = config.replace(env=PublicObservation(HiddenBit()))
    steps, explained = {}, {}
    for name, arm in {"privileged": config, "public": control}.items():
        _, metrics = trained(arm)
        steps[name] = steps_to(arm, metrics, 7.0)
        explained[name] = metrics["train/explained_variance"][:, metrics["train/explained_variance"].shape[1] // 2 :].mean(1)
        report(figure, f"HiddenBit, {name} critic, steps to 7", steps[name])
        report(figure, f"HiddenBit, {name} critic, explained variance", explained[name])
    assert np.median(steps["privileged"]) < 0.75 * np.median(steps["public"])
    assert explained["privileged"].min() > explained["public"].max() + 0.5


def test_value_heads_keep_a_stream_that_is_noise_out_of_the_advantages(figure: Callable[[str], None]) -> None:
    """No critic sees the hidden bit here: its stream is noise to both arms, and the control has it in every advantage."""
    config = rljax.load_config("hidden_bit_ppo_heads", eval_every=None, total_timesteps=100_000)
    config = config.replace(env=PublicObservation(HiddenBit()))
    control = config.replace(value_heads=(), head_weights=None)
    steps = {}
    for name, arm in {"two value heads": config, "one": control}.items():
        steps[name] = steps_to(arm, trained(arm)[1], 7.0)
        report(figure, f"HiddenBit, {name}, steps to 7", steps[name])
    assert np.median(steps["two value heads"]) < 0.5 * np.median(steps["one"])


# Goals


def achieved(config: Any, state: Any, shuffled: bool, episodes: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """`(commanded, achieved)` at the end of episodes, `[SEEDS, episodes, K]`; `shuffled`: it is told another's command."""
    env, params = make_env("Command-v0")
    agent = rljax.make_agent(config)
    length = params.max_steps_in_episode

    def play(state: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        env_state, obs = initial_environments(env, params, key, episodes)

        def step(loop: Any, key: jax.Array) -> Any:
            env_state, obs = loop
            told = {**obs, "goal": jnp.roll(obs["goal"], 1, axis=0)} if shuffled else obs
            action, _ = agent.act(state, told, None, key, True)
            keys = jax.random.split(key, (episodes, 2))
            obs, env_state, _, _, _, info = jax.vmap(lambda k, s, a: step_and_reset(env, k[0], k[1], s, a, params))(
                keys, env_state, action
            )
            return (env_state, obs), (info["commanded"], info["achieved"])

        _, (commanded, done) = jax.lax.scan(step, (env_state, obs), jax.random.split(key, length))
        return commanded[-1], done[-1]

    commanded, done = jax.jit(jax.vmap(play))(state, jax.random.split(jax.random.key(2), SEEDS))
    return np.asarray(commanded), np.asarray(done)


def test_what_is_commanded_is_achieved_and_a_strangers_command_is_not(figure: Callable[[str], None]) -> None:
    """R2 of achieved against commanded numbers, and their squared correlation, which forgives scale and offset."""
    config = rljax.load_config("command_ppo", eval_every=None)
    state, _ = trained(config)

    def both(shuffled: bool) -> tuple[np.ndarray, np.ndarray]:
        r2, correlation = [], []
        for commanded, done in zip(*achieved(config, state, shuffled), strict=True):
            r2.append(1.0 - np.sum((done - commanded) ** 2) / np.sum((commanded - commanded.mean()) ** 2))
            correlation.append(np.corrcoef(commanded.ravel(), done.ravel())[0, 1] ** 2)
        return np.array(r2), np.array(correlation)

    (r2, correlation), (misled_r2, misled_correlation) = both(False), both(True)
    report(figure, "Command, R2 with its own command", r2)
    report(figure, "Command, R2 with another's", misled_r2)
    report(figure, "Command, squared correlation with another's", misled_correlation)
    assert (r2 > 0.9).all(), r2
    assert (correlation > 0.9).all(), correlation
    assert (misled_r2 < 0.05).all(), misled_r2
    assert (misled_correlation < 0.05).all(), misled_correlation
