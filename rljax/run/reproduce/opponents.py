"""Experiments with opponents of whom a part is hidden, each beside controls."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.opponents import OpponentModel, OpponentView, against_scripted, train_opponent_model
from rljax.algos.ppo import PPOConfig
from rljax.collect.rollout import initial_environments
from rljax.core.environment import step_and_reset
from rljax.envs import HabitRPS, make_env
from rljax.envs.habit_rps import SIGNS
from rljax.envs.scouting import best_play
from rljax.run.reproduce.report import Report

SCOUTS: dict[str, tuple[dict[str, Any], bool]] = {
    "the answer depends on the plan": ({}, False),
    "the answer depends on the plan, bonus": ({}, True),
    "the answer is always the same": ({"depends": False}, False),
    "the answer is always the same, bonus": ({"depends": False}, True),
    "a look costs more than it brings": ({"look_cost": 2.5}, False),
}
"""Parameters of Scouting-v0, and whether there is a bonus for information."""


def scout(env_params: dict[str, Any], bonus: bool) -> PPOConfig:
    """Return the configuration of a scout, with a bonus for the information that a step gives or without."""
    return PPOConfig(
        env="Scouting-v0",
        env_params=env_params,
        num_envs=64,
        num_steps=32,
        total_timesteps=100_000,
        learning_rate=2e-3,
        ent_coef=0.05,
        network={"hidden": [32]},
        intrinsic={"type": "entropy_reduction"} if bonus else None,
        intrinsic_coef=4.0,
    )


def scouting(report: Report) -> None:
    """Measure greedy returns in Scouting-v0 and the looks of an episode at the end of training, beside those of the best play."""
    for name, (env_params, bonus) in SCOUTS.items():
        run = report.train(scout(env_params, bonus), name)
        best, looks = (float(x) for x in best_play(*make_env("Scouting-v0", **env_params)))
        report.facts[f"{name}: best return"], report.facts[f"{name}: looks of the best play"] = best, looks
        report.measure(f"{name}: return", report.returns(run, 200))
        report.measure(f"{name}: looks", late_looks(run.metrics))


def late_looks(metrics: Any) -> np.ndarray:
    """Return the mean number of looks of an episode in the last five iterations, f64 `[seeds]`."""
    return np.asarray(metrics["env/looks"])[:, -5:].mean(1)


BETAS = (0.25, 1.0, 4.0)
LATENT = 4


def habits(env_params: Any = None) -> Any:
    """Return HabitRPS-v0 against one of its scripted players, drawn for each game."""
    game = HabitRPS()
    return against_scripted(game, game.default_params if env_params is None else env_params, SIGNS)


def habit_model(key: jax.Array, beta: float = 1.0, **options: Any) -> tuple[OpponentModel, Any]:
    """Train a model of the habits on the signs that an opponent showed; returns it and its metrics."""
    env = habits()
    return train_opponent_model(
        env, env.default_params, key, observed=lambda obs: obs[3:6], window=20, latent=LATENT, beta=beta, **options
    )


def habit_policy(env: Any, **options: Any) -> PPOConfig:
    """Return the configuration of a policy without memory, against the habits."""
    settings = {"num_envs": 64, "num_steps": 40, "total_timesteps": 150_000, "learning_rate": 2e-3, "network": {"hidden": [32]}}
    return PPOConfig(env=env, **{**settings, **options})


def opponent_models(report: Report) -> None:
    """Measure what a model of opponents knows of their habits, and returns of policies that see it, without it or another's."""
    trained = {beta: habit_model(report.keys[0], beta) for beta in BETAS}
    report.facts["divergence in nats, by beta"] = {
        str(beta): float(metrics["train/kl"][-1]) for beta, (_, metrics) in trained.items()
    }
    model, _ = trained[1.0]
    report.facts["share of opponents that a linear probe names"] = probe(model, report.keys[0])
    run = report.train(habit_policy(OpponentView(habits(), model)), "with z")
    for how in ("z", "z = 0", "z of another game"):
        report.measure(
            how, report.time_program(jax.vmap(lambda s, k, how=how: habit_return(run.agent, s, k, how)), run.states, run.keys)
        )
    without = report.train(habit_policy(habits()), "without z")
    report.measure("trained without z", report.returns(without, 256))


def play_habits(act: Any, env: Any, key: jax.Array, games: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Play whole games by `act`, `(key, obs [N, F]) -> action [N]`.

    Returns:
        Returns f32 `[N]`, and before the last round observations f32 `[N, F]` and the number of the opponent, i32 `[N]`.
    """
    params = env.default_params
    state, obs = initial_environments(env, params, key, games)

    def step(loop: Any, key: jax.Array) -> Any:
        state, obs = loop
        keys = jax.random.split(key, (games, 2))
        action = act(key, obs)
        after, now, reward, *_ = jax.vmap(lambda k, s, a: _step(env, k, s, a, params))(keys, state, action)
        return (now, after), (reward, obs, state.env_state.carry[:, 0])

    _, (reward, seen, opponent) = jax.lax.scan(step, (state, obs), jax.random.split(key, params.num_rounds))
    return jnp.sum(reward, axis=0), seen[-1], opponent[-1]


def _step(env: Any, keys: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
    return step_and_reset(env, keys[0], keys[1], state, action, params)


def habit_return(agent: Any, state: Any, key: jax.Array, how: str, games: int = 256) -> jax.Array:
    """Return the greedy mean return of a policy that sees z, "z = 0" or the "z of another game" in its place, f32 []."""

    def act(key: jax.Array, obs: jax.Array) -> jax.Array:
        own, z = obs[:, :-LATENT], obs[:, -LATENT:]
        z = {"z": z, "z = 0": jnp.zeros_like(z), "z of another game": jnp.roll(z, 1, axis=0)}[how]
        action: jax.Array = agent.act(state, jnp.concatenate([own, z], axis=-1), None, key, True)[0]
        return action

    return jnp.mean(play_habits(act, agent.config.env, jax.random.fold_in(key, 3), games)[0])


def probe(model: OpponentModel, key: jax.Array, games: int = 1024) -> float:
    """Return the share of games in which a linear regression on z, fitted to the first half of them, names the opponent."""

    def act(key: jax.Array, _obs: jax.Array) -> jax.Array:
        return jax.random.randint(key, (games,), 0, len(SIGNS))

    _, obs, opponent = jax.jit(lambda key: play_habits(act, OpponentView(habits(), model), key, games))(key)
    z, named = np.asarray(obs[:, -LATENT:]), np.asarray(opponent) - 1
    x, half = np.column_stack([z, np.ones(games)]), games // 2
    weights = np.linalg.lstsq(x[:half], np.eye(len(SIGNS))[named[:half]], rcond=None)[0]
    return float(np.mean((x[half:] @ weights).argmax(1) == named[half:]))
