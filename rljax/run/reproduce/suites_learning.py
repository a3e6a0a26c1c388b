"""Experiments with environments of other suites: each needs the extra of its suite."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from rljax.algos.common.training import make_train
from rljax.algos.ppo import PPOConfig
from rljax.collect.evaluation import evaluate
from rljax.core.agent import Act, make_agent
from rljax.core.config import Config
from rljax.league.config import SelfPlayConfig
from rljax.run.bench.timing import time_interleaved
from rljax.run.reproduce.presets import returns_at_random
from rljax.run.reproduce.report import Report, Trained

RESETS = ("each", "optimistic", "pool")
REPEATS = 5

CRAFTAX = PPOConfig(
    env="craftax:Craftax-Classic-Symbolic-v1",
    num_envs=64,
    num_steps=32,
    total_timesteps=2048,
    num_epochs=2,
    num_minibatches=8,
    network={"hidden": [64]},
)
"""One iteration, for timing: the network is small, so that the environment takes most of the time."""


DOORKEY = PPOConfig(
    env="navix:Navix-DoorKey-5x5-v0",
    num_envs=32,
    num_steps=64,
    total_timesteps=500_000,
    num_epochs=4,
    num_minibatches=8,
    learning_rate=3e-4,
    ent_coef=0.02,
    normalize_observations=True,
    network={"hidden": [64, 64]},
)
"""The agent sees the whole grid. It gets 1 at the goal behind the door, if it has found and used the key within 100 steps."""

GAME_2048 = PPOConfig(
    env="pgx:2048",
    num_envs=64,
    num_steps=64,
    total_timesteps=1_000_000,
    num_epochs=2,
    num_minibatches=8,
    learning_rate=1e-3,
    ent_coef=0.01,
    normalize_rewards=True,
    network={"hidden": [128, 128]},
)
"""The agent sees the board as 31 layers, and only moves that change it are legal; the reward is the sum of the tiles merged."""


SMAX = SelfPlayConfig(
    env="jaxmarl:HeuristicEnemySMAX",
    env_params={"scenario": "3m"},
    num_envs=64,
    num_steps=32,
    total_timesteps=600_000,
    num_epochs=4,
    num_minibatches=4,
    learning_rate=1e-3,
    ent_coef=0.01,
    final_ent_coef=0.001,
    vf_clip_eps=None,
    network={"hidden": [128, 128]},
)
"""Three marines, whose players share their weights, against three that follow a script. The critic sees the whole battle."""

OVERCOOKED = SelfPlayConfig(
    env="jaxmarl:overcooked",
    num_envs=64,
    num_steps=128,
    total_timesteps=1_000_000,
    num_epochs=4,
    num_minibatches=8,
    learning_rate=5e-4,
    network={"hidden": [128, 128]},
    value_heads=("reward", "shaped_reward"),
)
"""Two cooks with one policy in the cramped room: 20 for a soup, and a value head of its own for the steps on the way to one."""

PENDULUM = PPOConfig(
    env="brax:inverted_pendulum",
    num_envs=64,
    num_steps=16,
    total_timesteps=204_800,
    num_epochs=4,
    num_minibatches=4,
    learning_rate=1e-3,
    anneal_lr=False,
    gamma=0.97,
    ent_coef=1e-3,
    vf_clip_eps=None,
    normalize_observations=True,
    network={"hidden": [64, 64]},
)
"""Settings that both libraries have: Brax's PPO takes the same numbers."""

HALFCHEETAH = PENDULUM.replace(
    env="brax:halfcheetah", total_timesteps=409_600, num_epochs=8, learning_rate=5e-4, network={"hidden": [128, 128]}
)
"""The same for a robot that runs."""

EPOCHS = 5
"""Number of parts of Brax's run; the first includes compilation, the others are timed."""


def craftax_resets(report: Report) -> None:
    """Time one iteration of PPO in Craftax-Classic for each kind of resets, in turn; the facts have medians and every run."""
    configs = {kind: report.configure(CRAFTAX, kind, reset=kind)[0] for kind in RESETS}
    timings = time_interleaved({kind: make_train(config) for kind, config in configs.items()}, REPEATS)
    report.facts["repeats"] = REPEATS
    for kind, timing in timings.items():
        steps = configs[kind].total_timesteps
        report.facts[f"{kind}: seconds to compile"] = timing.compile
        report.facts[f"{kind}: seconds of each run"] = timing.runs
        report.facts[f"{kind}: steps per second"] = steps / median(timing.runs)
        report.compiling += timing.compile
        report.running += sum(timing.runs)
        report.say(f"{report.name}: {kind}: {steps / median(timing.runs):,.0f} steps/s, compiled in {timing.compile:.0f} s")


def learns(report: Report, config: Config, threshold: float | None = None) -> Trained:
    """Measure greedy and sampled mean returns after training, and those of random legal actions."""
    run = report.train(config, report.name)
    report.measure("return", report.returns(run), threshold)
    report.measure("sampled", report.returns(run, sample=True))
    report.measure("at random", returns_at_random(report, run))
    return run


def smax(report: Report) -> None:
    """Do `learns` for SMAX, and measure the share of battles that are won: damage is worth at most 1, and a win 1 more."""
    run = learns(report, SMAX)
    play = lambda state, key: evaluate(run.agent, state, jax.random.fold_in(key, 1), 100, deterministic=True)  # noqa: E731
    returns = report.time_program(jax.vmap(play), run.states, run.keys)
    report.measure("won", (returns > 1).mean(1))


def overcooked(report: Report) -> None:
    """Do `learns` for Overcooked, and measure the control that learns from the rewards of the game alone."""
    learns(report, OVERCOOKED)
    control = report.train(OVERCOOKED.replace(value_heads=()), "control")
    report.measure("control: return", report.returns(control))
    report.measure("control: sampled", report.returns(control, sample=True))


def _replicate(tree: Any, devices: Sequence[Any]) -> Any:
    return jax.tree.map(lambda x: jnp.stack([x] * len(devices)), tree)


def _brax_trainer(config: PPOConfig) -> Callable[..., Any]:
    """Return Brax's own PPO with a configuration's numbers: `(seed=..., progress_fn=...) -> (make_policy, params, metrics)`."""
    from brax import envs
    from brax.training.agents.ppo import networks, train

    sizes = config.network["hidden"]
    return functools.partial(
        train.train,
        environment=envs.get_environment(config.env.partition(":")[2]),
        num_timesteps=config.total_timesteps,
        num_envs=config.num_envs,
        unroll_length=config.num_steps,
        batch_size=config.num_envs // config.num_minibatches,
        num_minibatches=config.num_minibatches,
        num_updates_per_batch=config.num_epochs,
        episode_length=1000,
        learning_rate=config.learning_rate,
        discounting=config.gamma,
        gae_lambda=config.gae_lambda,
        entropy_cost=config.ent_coef,
        clipping_epsilon=config.clip_eps,
        vf_loss_coefficient=config.vf_coef,
        max_grad_norm=config.max_grad_norm,
        normalize_observations=config.normalize_observations,
        network_factory=functools.partial(
            networks.make_ppo_networks, policy_hidden_layer_sizes=sizes, value_hidden_layer_sizes=sizes
        ),
        num_evals=EPOCHS + 1,
        run_evals=False,
    )


def _brax_act(make_policy: Callable[..., Any]) -> Act:
    """Return Brax's policy as one of rljax, whose state is Brax's parameters."""

    def act(
        state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[Any, Any]:
        del mask
        return make_policy(state, deterministic=deterministic)(obs, key)[0], carry

    return act


def brax_ppo(report: Report, settings: PPOConfig = PENDULUM) -> None:
    """Train rljax's PPO and Brax's own in turn with the same numbers and steps, and evaluate both in the same environment."""
    config, _ = report.configure(settings, "rljax")
    agent, train_brax = make_agent(config), _brax_trainer(config)
    started = time.perf_counter()
    program = jax.jit(make_train(config)).lower(report.keys[0]).compile()
    report.compiling += time.perf_counter() - started
    states: dict[str, list[Any]] = {"rljax": [], "Brax": []}
    speeds: dict[str, list[float]] = {"rljax": [], "Brax": []}
    make_policy: Any = None
    for seed, key in zip(report.seeds, report.keys, strict=True):
        started = time.perf_counter()
        states["rljax"].append(jax.block_until_ready(program(key)).state)
        speeds["rljax"].append(config.total_timesteps / (time.perf_counter() - started))
        parts: list[float] = []

        def note(_: int, metrics: Mapping[str, Any], parts: list[float] = parts) -> None:
            parts.append(float(metrics["training/sps"]))

        with mock.patch.object(jax, "device_put_replicated", _replicate, create=True):  # gone from JAX, but Brax 0.14 uses it
            make_policy, params, _ = train_brax(seed=seed, progress_fn=note)
        states["Brax"].append(params)
        speeds["Brax"].append(median(parts[1:]))
        report.running += sum(config.total_timesteps / found[-1] for found in speeds.values())
        report.say(f"{report.name}: seed {seed}: " + ", ".join(f"{name} {x[-1]:,.0f} steps/s" for name, x in speeds.items()))
    for name, one in (("rljax", agent), ("Brax", agent._replace(act=_brax_act(make_policy)))):
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *states[name])
        report.measure(f"{name}: return", report.returns(Trained(one, stacked, {}, report.keys)))
        report.measure(f"{name}: steps per second", speeds[name])
