"""Trains on one device and on all that there are, and prints how far apart the two come out; run by test_devices."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import rljax
from rljax.core.state import Role, roles_of
from rljax.run.search.population import Population, Programs
from tests.run.tiny_teacher import TEACHER, ready

CONFIGS: dict[str, Any] = {
    "ppo": rljax.PPOConfig(total_timesteps=512, num_envs=16, num_steps=8, num_minibatches=2, network={"hidden": [16]}),
    "dqn": rljax.DQNConfig(
        total_timesteps=400, num_envs=8, buffer_size=800, learning_starts=100, batch_size=32, network={"hidden": [16]}
    ),
    "self_play": rljax.SelfPlayConfig(
        env="TicTacToe-v0", total_timesteps=1024, num_envs=16, num_steps=8, num_minibatches=2, opponents="pfsp", num_slots=2,
        pool_size=4, snapshot_every=128, network={"hidden": [16]},
    ),
    "league": rljax.LeagueConfig(
        env="KuhnPoker-v0", total_timesteps=512, num_envs=16, num_steps=8, num_minibatches=2, num_slots=2, pool_size=4,
        snapshot_every=128, league_exploiters=0, exploitability_every=256, normalize_observations=True,
        network={"hidden": [16]},
    ),
    "alphazero": rljax.AlphaZeroConfig(
        env="TicTacToe-v0", total_timesteps=384, num_envs=8, num_steps=16, num_simulations=4, num_minibatches=2,
        network={"hidden": [16]},
    ),
    "dreamer": rljax.DreamerConfig(
        size="debug", num_envs=8, total_timesteps=320, batch_size=8, batch_length=8, horizon=3, buffer_size=1600, train_ratio=16,
        learning_starts=100,
    ),
    "distill": rljax.DistillConfig(
        env="CartPole-v1", teachers=(TEACHER, TEACHER), total_timesteps=512, num_envs=16, num_steps=8, num_minibatches=2,
        network={"type": "gru", "hidden": [8], "size": 8},
    ),
}  # fmt: skip


def apart(a: Any, b: Any) -> float:
    """The largest difference of any number in two trees."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.max(np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64)))) for x, y in pairs)


def main(name: str) -> None:
    config, devices = ready(CONFIGS[name]), jax.device_count()
    one = jax.jit(rljax.make_train(config))(jax.random.key(0))
    several = config.replace(num_devices=devices)
    many = jax.jit(rljax.make_train(several))(jax.random.key(0))
    of_environments = [name for name, field in roles_of(many.state).items() if field.role is Role.PER_ENVIRONMENT]
    lies = {str(x.sharding.spec) for x in jax.tree.leaves([getattr(many.state, name) for name in of_environments])}
    moved = apart(rljax.make_agent(config).init(jax.random.key(0)).params, one.state.params)
    print(f"{name} {devices} {apart(one.state.params, many.state.params)} {moved} {len(lies)} {'data' in str(lies)}")
    if name == "ppo":
        print("fit", apart(rljax.fit(several).state.params, many.state.params))
        several = several.replace(anneal_lr=False)  # which a larger budget would change
        rljax.fit(several.replace(total_timesteps=256), run_dir="run", seeds=2)
        resumed = rljax.fit(resume="run", total_timesteps=512).state.params
        print("resumed", apart(resumed, rljax.fit(several, seeds=2).state.params))
        keys = jax.random.split(jax.random.key(1), devices)
        train = rljax.make_train(config)
        print("pmap", apart(jax.pmap(train)(keys).state.params, jax.jit(jax.vmap(train))(keys).state.params))
        space = {"learning_rate": [1e-3, 1e-2]}
        programs = Programs(config, ("learning_rate",))
        runs = Population(programs, {"learning_rate": np.full(2 * devices, 1e-3)}, np.arange(2 * devices))
        runs.advance(2)
        lies = {x.sharding.spec for x in jax.tree.leaves(runs.states)}
        runs.keep(np.arange(devices))
        runs.advance(1)
        print("split", lies == {PartitionSpec("data")}, {x.sharding.spec for x in jax.tree.leaves(runs.states)} == lies)
        found = rljax.sweep(config, space, seeds=devices, episodes=2)
        print(
            "sweep",
            float(jnp.abs(found.train_returns - rljax.sweep(config, space, seeds=devices, batch_size=3).train_returns).max()),
        )


def prune(devices: int) -> None:
    """A population that shrinks to a number of runs that the devices do not divide, and a trial with as many seeds."""
    config = CONFIGS["ppo"].replace(total_timesteps=384)
    programs, found = Programs(config, ("learning_rate",)), []
    for kept in ([0], [0, 1, 2]):  # alone and beside others
        runs = Population(programs, {"learning_rate": np.full(2 * devices, 1e-3)}, np.arange(2 * devices))
        runs.advance(1)
        runs.keep(np.array(kept))
        runs.advance(1)
        assert np.isfinite(runs.play(2)).all()
        found.append(jax.tree.map(lambda x: x[0], runs.states.params))
    with jax.default_device(jax.devices()[1]):
        runs = Population(Programs(config, ("learning_rate",)), {"learning_rate": np.full(3, 1e-3)}, np.arange(3))
        runs.advance(1)
    result = rljax.tune(config, {"learning_rate": rljax.Range(1e-3, 1e-2)}, trials=1, batch_size=1, seeds=devices + 1, episodes=2)
    print("prune", apart(*found), len(result.trials))


if __name__ == "__main__":
    if sys.argv[1] == "prune":
        prune(jax.device_count())
    else:
        main(sys.argv[1])
