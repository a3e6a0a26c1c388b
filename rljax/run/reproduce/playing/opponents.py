"""Experiment with opponents of fixed habits, a model of which a policy sees, beside controls."""

from __future__ import annotations

import contextlib
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.opponents import against_scripted, train_opponent_model
from rljax.algos.ppo import PPOConfig, ppo_parts
from rljax.collect.demos.dataset import Dataset, open_dataset
from rljax.collect.resets import initial_environments
from rljax.collect.rollout import reset_carry
from rljax.core.agent import make_agent
from rljax.core.environments.environment import step_and_reset
from rljax.envs import HabitRPS
from rljax.envs.habit_rps import SIGNS
from rljax.nn.opponents import OpponentModel, observed_row
from rljax.run.demos.recording import demonstrations
from rljax.run.reproduce.report import Report, Trained

SHOWN = (3, 6)
"""Numbers of an observation of HabitRPS-v0 that show the opponent's last sign."""

GAMES = 3000
"""Number of recorded games, of a player that moves at random, against each habit in turn."""

BETAS = (1.0, 4.0)
"""Weights of the divergence; policies see the model of the first."""


def habits(network: dict[str, Any]) -> PPOConfig:
    """Return the configuration of a player of HabitRPS-v0 against one of its scripted players, drawn for each game."""
    game = HabitRPS()
    env = against_scripted(game, game.default_params, SIGNS)
    return PPOConfig(
        env=env, num_envs=64, num_steps=40, total_timesteps=150_000, learning_rate=2e-3, network={"hidden": [32], **network}
    )


def opponent_models(report: Report) -> None:
    """Measure what a linear probe reads from z, and the returns of policies that see z, zeros or the z of another game."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        demonstrations("random", "games", num_episodes=GAMES, env="HabitRPS-v0", against=list(SIGNS))
        dataset = open_dataset("games", held_out=0.2)
        models: dict[float, list[OpponentModel]] = {}
        for beta in BETAS:
            trained = [train_opponent_model(dataset, key, observed=SHOWN, window=20, beta=beta) for key in report.keys]
            models[beta] = [model for model, _ in trained]
            report.measure(f"beta {beta:g}: divergence in nats", [metrics["train/kl"][-1] for _, metrics in trained])
            report.measure(f"beta {beta:g}: held-out loss", [metrics["eval/held_out_loss"] for _, metrics in trained])
            report.measure(f"beta {beta:g}: share that a linear probe names", [probe(m, dataset) for m in models[beta]])
        own = models[BETAS[0]]
        own[0].save("model.json")
        config = report.configure(habits({"opponent_model": "model.json"}), "with a model")[0]
        agent = make_agent(config)
        params = jax.tree.map(lambda *x: jnp.stack(x), *[model.params for model in own])

        def learn(params: Any, key: jax.Array) -> Any:
            return jax.lax.scan(
                lambda state, _: agent.step(state), with_model(agent.init(key), params), None, config.num_iterations
            )

        states, metrics = report.time_program(jax.vmap(learn), params, report.keys)
        run = Trained(agent, states, jax.tree.map(np.asarray, metrics), report.keys)
        returns = report.time_program(jax.vmap(lambda state, key: habit_returns(config, state, key)), run.states, run.keys)
    for seen, value in returns.items():
        report.measure(f"return with {seen}", value)
    for name, network in (("without a model", {}), ("a GRU instead", {"type": "gru", "size": 32})):
        control = report.train(habits(network), name)
        report.measure(f"return, {name}", report.returns(control, 256))
    report.facts["share that is named by chance"] = 1 / len(SIGNS)


def with_model(state: Any, params: Any) -> Any:
    """Return a state of training with these parameters of the opponent model."""
    policy = state.params["params"]
    return state.replace(params={"params": policy | {"network": policy["network"] | {"opponent_model": params}}})


def without_z(state: Any) -> Any:
    """Return a state whose policy sees zeros in the place of z: all parameters of the opponent model are 0."""
    return with_model(state, jax.tree.map(jnp.zeros_like, state.params["params"]["network"]["opponent_model"]))


def habit_returns(config: PPOConfig, state: Any, key: jax.Array, games: int = 256) -> dict[str, jax.Array]:
    """Return greedy mean returns f32 [] of a policy that sees z, zeros, or the z of another game in its place."""
    return {
        "z": _returns(config, state, key, games),
        "z = 0": _returns(config, without_z(state), key, games),
        "z of another game": _returns(config, state, key, games, others=True),
    }


def _returns(config: PPOConfig, state: Any, key: jax.Array, games: int, others: bool = False) -> jax.Array:
    parts = ppo_parts(config)
    env, params = parts.env, parts.env_params
    start_key, key = jax.random.split(key)
    env_state, obs = initial_environments(env, params, start_key, games)
    policy: Any = parts.policy
    carry = policy.initial_carry((games,))

    def step(loop: Any, key: jax.Array) -> Any:
        env_state, obs, carry = loop
        embedded = policy.apply(state.params, obs, method="embed")
        carry = policy.apply(state.params, carry, embedded.x, method="advance")
        seen = jax.tree.map(lambda x: jnp.roll(x, 1, axis=0), carry) if others else carry
        outputs, _ = policy.apply(state.params, seen, embedded, method="policy_and_value")
        action = parts.head.distribution(outputs, None).mode()
        keys = jax.random.split(key, (games, 2))
        after, env_state, reward, terminated, *_ = jax.vmap(
            lambda k, s, a: step_and_reset(env, k[0], k[1], s, parts.head.to_env(a), params)
        )(keys, env_state, action)
        return (env_state, after, reset_carry(carry, terminated)), reward

    rewards = jax.lax.scan(step, (env_state, obs, carry), jax.random.split(key, HabitRPS().default_params.num_rounds))[1]
    return jnp.mean(jnp.sum(rewards, axis=0))


def probe(model: OpponentModel, dataset: Dataset) -> float:
    """Return the share of held-out games in which a linear regression on z, fitted to the others, names the opponent.

    z is that of the windows before the last round; opponents took turns in the recording.
    """
    length, at_once = int(dataset.episodes.length[0]), int(dataset.info.recorded["num_envs"])
    rows = [dataset.episode(n)["obs"][:length] for n in range(dataset.num_episodes)]
    opponent = dataset.episodes.game // at_once % len(SIGNS)
    windows = jax.vmap(lambda obs: observed_row(obs, model.observed)[-model.window :])(jnp.asarray(np.stack(rows)))
    z = np.asarray(model.network.apply(model.params, windows.reshape(len(rows), -1), method="embedding"))
    x, fitted = np.column_stack([z, np.ones(len(z))]), dataset.part()
    weights = np.linalg.lstsq(x[fitted], np.eye(len(SIGNS))[opponent[fitted]], rcond=None)[0]
    apart = dataset.held_out
    return float(np.mean((x[apart] @ weights).argmax(1) == opponent[apart]))
