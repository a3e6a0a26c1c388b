"""rejax as a peer of `rljax bench`. It trains in a process of its own, as for its users: see `rljax.run.bench.workers`."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

from rljax.run.bench.timing import Program, steps_of
from rljax.run.bench.workers import Worker, serve


def ppo_settings(config: Any) -> dict[str, Any]:
    """Return settings of rejax's PPO with the environment, network, batch and epochs of a `PPOConfig`."""
    return _settings(
        "ppo",
        config,
        num_steps=config.num_steps,
        num_epochs=config.num_epochs,
        num_minibatches=config.num_minibatches,
        gae_lambda=config.gae_lambda,
        clip_eps=config.clip_eps,
        vf_coef=config.vf_coef,
        ent_coef=config.ent_coef,
        agent_kwargs={"hidden_layer_sizes": (64, 64), "activation": "tanh"},
    )


def dqn_settings(config: Any) -> dict[str, Any]:
    """Return settings of rejax's DQN with the environment, network, buffer, batch and updates of a `DQNConfig`."""
    return _settings(
        "dqn",
        config,
        num_epochs=config.updates_per_step,
        buffer_size=config.buffer_size,
        fill_buffer=config.learning_starts,
        batch_size=config.batch_size,
        ddqn=config.double,
        polyak=1.0 - config.tau,
        eps_start=config.epsilon_start,
        eps_end=config.epsilon_end,
        exploration_fraction=config.epsilon_steps / config.total_timesteps,
        agent="DuelingQNetwork" if config.dueling else "QNetwork",
        agent_kwargs={"activation": config.network["activation"]},  # its hidden layers are 64 and 64
    )


def _settings(algorithm: str, config: Any, **settings: Any) -> dict[str, Any]:
    # rejax trains for a whole number of spells of `eval_freq` steps, so a budget that is no multiple would make it train longer.
    steps = steps_of(config)
    return {
        "algorithm": algorithm,
        "total_timesteps": steps,
        "eval_freq": steps,
        "skip_initial_evaluation": True,
        "num_envs": config.num_envs,
        "learning_rate": config.learning_rate,
        "max_grad_norm": config.max_grad_norm,
        "gamma": config.gamma,
        **settings,
    }


def rejax_program(settings: dict[str, Any]) -> Program | None:
    """Return rejax's training as a function of a key, evaluation off; None without rejax."""
    if importlib.util.find_spec("rejax") is None:
        return None
    import gymnax
    import rejax

    class FiveValues(type(gymnax.make("CartPole-v1")[0])):  # type: ignore[misc]
        """Join terminated and truncated, which gymnax 1.x returns apart, into the single done flag that rejax expects."""

        def step(self, key: Any, state: Any, action: Any, params: Any = None) -> Any:
            obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
            return obs, state, reward, terminated | truncated, info

    settings = dict(settings)
    peer = rejax.get_algo(settings.pop("algorithm")).create(env=FiveValues(), **settings)
    peer = peer.replace(eval_callback=lambda *_: (jnp.zeros(1), jnp.zeros(1)))
    return lambda key: jax.tree.leaves(peer.train(key))


def start_rejax(settings: dict[str, Any]) -> Worker | None:
    """Return a process that trains with rejax; None without rejax."""
    if importlib.util.find_spec("rejax") is None:
        return None
    # On the same kind of device; of a GPU, this process already holds most of the memory.
    env = {"JAX_PLATFORMS": jax.default_backend(), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return Worker(["rljax.run.bench.rejax_peer", json.dumps(settings)], env)


def _serve(settings: dict[str, Any]) -> None:
    program, key = rejax_program(settings), jax.random.key(0)
    assert program is not None
    # What was imported, and JAX's start, do not count as compiling.
    started = time.perf_counter()
    run = jax.jit(program).lower(key).compile()
    serve(lambda seed: run(jax.random.key(seed)), started)


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
