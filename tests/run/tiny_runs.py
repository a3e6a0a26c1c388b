"""Small runs for the tests of run folders, and what it means that two of them are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rljax
from rljax.cli.main import main
from rljax.run.files.checkpoint import named_arrays
from rljax.run.files.sealed import seal
from tests.run.tiny_data import dataset_path
from tests.run.tiny_games import Elman, Plain
from tests.run.tiny_teacher import TEACHER

OFFLINE = {
    "online": True,
    "num_envs": 4,
    "num_steps": 16,
    "train_every": 2,
    "updates_per_step": 2,
    "buffer_size": 400,
    "batch_size": 8,
    "learning_starts": 100,
    "learning_rate": 1e-3,
    "total_timesteps": 64 * 24,
    "network": {"hidden": [8]},
    "normalize_observations": True,
    "eval_every": 320,
    "eval_episodes": 3,
    "seed": 7,
}

IMITATION = {
    "num_envs": 4,
    "num_steps": 16,
    "num_epochs": 2,
    "num_minibatches": 2,
    "learning_rate": 1e-3,
    "total_timesteps": 64 * 24,
    "network": {"type": "gru", "hidden": [6], "size": 8},
    "normalize_observations": True,
    "eval_every": 320,
    "eval_episodes": 3,
    "seed": 7,
}

TINY = {
    "ppo": rljax.PPOConfig(
        num_envs=4,
        num_steps=16,
        num_epochs=2,
        num_minibatches=2,
        learning_rate=1e-3,
        total_timesteps=64 * 24,
        network={"hidden": [16]},
        normalize_observations=True,
        normalize_rewards=True,
        eval_every=320,
        eval_episodes=3,
        seed=7,
    ),
    "dqn": rljax.DQNConfig(
        num_envs=4,
        num_steps=16,
        train_every=2,
        updates_per_step=2,
        n_step=3,
        buffer_size=400,
        batch_size=8,
        learning_starts=100,
        learning_rate=1e-3,
        total_timesteps=64 * 24,
        double=True,
        dueling=True,
        prioritized=True,
        network={"hidden": [16]},
        normalize_observations=True,
        normalize_rewards=True,
        eval_every=320,
        eval_episodes=3,
        seed=7,
    ),
    "pqn": rljax.PQNConfig(
        num_envs=4,
        num_steps=16,
        num_epochs=2,
        num_minibatches=2,
        learning_rate=1e-3,
        epsilon_steps=1_000,
        total_timesteps=64 * 24,
        network={"hidden": [16]},
        normalize_observations=True,
        normalize_rewards=True,
        eval_every=320,
        eval_episodes=3,
        seed=7,
    ),
    "sac": rljax.SACConfig(
        env="Pendulum-v1",
        num_envs=4,
        num_steps=16,
        train_every=2,
        updates_per_step=2,
        n_step=3,
        buffer_size=400,
        batch_size=8,
        learning_starts=100,
        learning_rate=1e-3,
        temperature_learning_rate=1e-2,
        total_timesteps=64 * 24,
        network={"hidden": [16]},
        normalize_observations=True,
        normalize_rewards=True,
        eval_every=320,
        eval_episodes=3,
        seed=7,
    ),
    "impala": rljax.ImpalaConfig(
        num_envs=4,
        num_steps=16,
        num_epochs=2,
        num_minibatches=2,
        policy_lag=2,
        upgo_coef=0.5,
        learning_rate=1e-3,
        total_timesteps=64 * 24,
        network={"hidden": [16]},
        normalize_observations=True,
        normalize_rewards=True,
        eval_every=320,
        eval_episodes=3,
        seed=7,
    ),
    "dreamer": rljax.DreamerConfig(
        num_envs=4,
        num_steps=16,
        train_ratio=2,
        size="debug",
        batch_size=2,
        batch_length=8,
        horizon=3,
        buffer_size=400,
        learning_starts=100,
        learning_rate=1e-3,
        warmup=10,
        total_timesteps=64 * 24,
        eval_every=320,
        eval_episodes=3,
        seed=7,
    ),
    "self_play": rljax.SelfPlayConfig(
        env="TicTacToe-v0",
        num_envs=8,
        num_steps=8,
        num_minibatches=2,
        learning_rate=1e-3,
        total_timesteps=64 * 24,
        network={"type": "gru", "hidden": [8], "size": 8},
        learner="impala",
        policy_lag=2,
        weights="team",
        intrinsic={"type": "count", "bins": 64},
        normalize_observations=True,
        normalize_rewards=True,
        eval_every=320,
        eval_episodes=3,
        seed=7,
    ),
    "league": rljax.LeagueConfig(
        env="KuhnPoker-v0",
        num_envs=8,
        num_steps=8,
        num_slots=2,
        pool_size=5,
        snapshot_every=64,
        snapshot_timeout=128,
        num_minibatches=2,
        learning_rate=1e-3,
        total_timesteps=64 * 24,
        network={"hidden": [8]},
        league_exploiters=0,
        exploitability_every=320,
        reset_to="main",
        branch_after=64,
        branch_gain=0.3,
        average_decay=0.9,
        magnet_coef=0.1,
        seed=7,
    ),
    "bc": rljax.BCConfig(
        env="CartPole-v1", dataset=dataset_path("CartPole-v1"), held_out=0.3, normalize_rewards=True, **IMITATION
    ),
    "distill": rljax.DistillConfig(env="CartPole-v1", teachers=(TEACHER, TEACHER), hard_label_coef=0.1, **IMITATION),
    "iql": rljax.IQLConfig(env="Pendulum-v1", dataset=dataset_path("Pendulum-v1"), **OFFLINE),
    "awac": rljax.AWACConfig(env="CartPole-v1", dataset=dataset_path("CartPole-v1"), **OFFLINE),
    "td3_bc": rljax.TD3BCConfig(env="Pendulum-v1", dataset=dataset_path("Pendulum-v1"), **OFFLINE),
    "cql": rljax.CQLConfig(env="CartPole-v1", dataset=dataset_path("CartPole-v1"), **OFFLINE),
    "alphazero": rljax.AlphaZeroConfig(
        env="TicTacToe-v0",
        num_envs=4,
        num_steps=16,
        num_simulations=4,
        num_minibatches=2,
        total_timesteps=64 * 24,
        network={"hidden": [8]},
        normalize_observations=True,
        normalize_rewards=True,
        eval_every=320,
        eval_episodes=3,
        seed=7,
    ),
}
"""A small configuration of every algorithm, one that uses all parts of its state. A new algorithm must be added."""

VARIANTS = {
    "ppo with memory": rljax.PPOConfig(
        env="HiddenBit-v0",
        num_envs=4,
        num_steps=12,
        num_epochs=2,
        num_minibatches=2,
        learning_rate=1e-3,
        total_timesteps=48 * 25,
        network={"type": "lstm", "hidden": [6], "size": 8, "head_hidden": []},
        value_heads=("cue", "bit"),
        intrinsic={"type": "rnd", "hidden": [8], "features": 4},
        normalize_observations=True,
        normalize_rewards=True,
        eval_every=240,
        eval_episodes=3,
        seed=7,
    ),
    "impala with memory": rljax.ImpalaConfig(
        env="TMaze-v0",
        num_envs=4,
        num_steps=12,
        num_minibatches=2,
        policy_lag=2,
        total_timesteps=48 * 25,
        network={"type": "gru", "hidden": [6], "size": 8},
        eval_every=240,
        eval_episodes=3,
        seed=7,
    ),
}
"""Configurations whose states have parts that those of `TINY` do not."""

LEAGUES = {
    "league of three teams": rljax.LeagueConfig(
        env="tests.collect.games.parade:Parade",
        env_params={"teams": (0, 1, 2), "space": "heads", "turns": True, "drops": True},
        num_envs=8,
        num_steps=6,
        num_slots=1,
        pool_size=3,
        snapshot_every=48,
        snapshot_timeout=96,
        num_epochs=1,
        num_minibatches=1,
        learning_rate=1e-3,
        total_timesteps=48 * 16,
        network={"type": "lstm", "hidden": [4], "size": 4, "head_hidden": []},
        action_heads="autoregressive",
        magnet_coef=0.1,
        average_decay=0.9,
        central_critic=True,
        league_exploiters=0,
        normalize_observations=True,
        seed=7,
    ),
    "league of scripted players and goals": rljax.LeagueConfig(
        env="tests.run.tiny_games:HabitGoals",
        env_params={"num_rounds": 7},
        randomize={"habit": [0.4, 0.9], "num_rounds": [5, 9]},
        sticky_actions=0.25,
        action_repeat=2,
        end_on_nan=True,
        num_envs=18,
        num_steps=5,
        num_slots=3,
        scripted=("rock", "paper"),
        pool_size=5,
        snapshot_every=90,
        snapshot_timeout=180,
        num_epochs=1,
        num_minibatches=1,
        learning_rate=1e-3,
        total_timesteps=90 * 16,
        network={"type": "gru", "hidden": [4], "size": 4, "head_hidden": []},
        value_heads=("win", "follow"),
        head_weights=(1.0, 0.0),
        exploiter_head_weights=(1.0, 5.0),
        reset_to="main",
        branch_after=180,
        league_exploiters=1,
        normalize_observations=True,
        normalize_rewards=True,
        seed=7,
    ),
}
"""Leagues with all that games may have besides. The campaigns do without them."""

PARADE = {
    "env": "tests.collect.games.parade:Parade",
    "num_envs": 4,
    "num_steps": 5,  # games have 7 steps
    "num_epochs": 1,
    "num_minibatches": 1,
    "learning_rate": 1e-3,
    "normalize_observations": True,
    "seed": 7,
}

OWN_NETWORKS = {
    "league with numbers": rljax.LeagueConfig(
        env_params={"teams": (0, 1), "space": "box", "turns": True},
        num_slots=1,
        pool_size=3,
        snapshot_every=40,
        snapshot_timeout=60,
        total_timesteps=20 * 10,
        network=Elman(2, 2),
        intrinsic={"type": "count", "bins": 16},
        league_exploiters=0,
        **PARADE,
    ),
    "self-play with numbers": rljax.SelfPlayConfig(
        env_params={"teams": (0, 1, 0), "space": "box", "drops": True},
        total_timesteps=20 * 8,
        network=Elman(2, 3),
        value_heads=("worth", "seat"),
        intrinsic={"type": "rnd", "hidden": [4], "features": 3},
        normalize_rewards=True,
        **PARADE,
    ),
    "alphazero": TINY["alphazero"].replace(network=Plain(9), total_timesteps=64 * 8),
}
"""Games whose network is a module, which a run that goes on must be given again."""

CONFIG = TINY["ppo"]

TINY_TOML = """\
algorithm = "ppo"
num_envs = 4
num_steps = 16
num_minibatches = 2
total_timesteps = 640
network.hidden = [8]
"""
"""A file for commands: ten iterations of PPO."""


def edit_sealed(file: Path, **changes: Any) -> None:
    """Change fields of a run.json or meta.json, checksum included: whoever made it meant it so."""
    table = json.loads(file.read_text())
    del table["checksum"]
    file.write_text(seal({**table, **changes}))


def assert_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with status 2 and one line, which says so."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error, error
    assert error.count("\n") == 1, error


def records(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("perf/")} for line in lines]


def assert_same_run(a: Path, b: Path, **objects: Any) -> None:
    """The same leaves bit for bit, the same records, the same scores."""
    first, second = rljax.load_run(a, **objects), rljax.load_run(b, **objects)
    assert first.step == second.step
    assert_same_state(first.state, second.state)
    assert records(a) == records(b)
    for name in ("latest", "best"):
        assert (a / "checkpoints" / name).resolve().name == (b / "checkpoints" / name).resolve().name


def assert_same_state(a: Any, b: Any) -> None:
    first, second = named_arrays(a), named_arrays(b)
    assert list(first) == list(second)
    for name in first:
        assert first[name].dtype == second[name].dtype
        assert first[name].tobytes() == second[name].tobytes(), name
