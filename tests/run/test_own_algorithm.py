"""An algorithm with a buffer, a copy of its parameters and statistics of its own, defined here: it shards, forks and resumes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax.algos.common.state import initial_fields
from rljax.collect.environments import make_training_env
from rljax.collect.resets import environment_noise, fresh_episodes
from rljax.core.agent import Agent, register_agent
from rljax.core.config import ALGORITHMS, Config, algorithm, leaf, static
from rljax.core.state import Role, buffer, buffer_cursor, copy_of_params, per_environment, random_key, roles_of, statistics
from rljax.run.files.checkpoint import named_arrays
from rljax.run.files.folder import load_checkpoint
from rljax.run.start import start_forked
from tests.run.simulated_devices import printed_on_devices

STEPS = 4


@algorithm("toy")
class ToyConfig(Config):
    """Moves its parameters towards the mean of what it remembers, and its lagging copy after them."""

    num_envs: int = static(default=8, doc="environments stepped in parallel", gt=0)
    rate: float = leaf(default=0.1, doc="how fast parameters move", ge=0)
    memories: int = static(default=12, doc="steps kept per environment", gt=0)
    exponent: float = leaf(default=1.0, doc="of what is remembered", ge=0)

    @property
    def steps_per_iteration(self) -> int:
        return STEPS * self.num_envs


class ToyState(struct.PyTreeNode, kw_only=True):
    """A state of its own throughout: `rljax.core.state.State` is a convenience."""

    params: Any
    lagging: Any = copy_of_params(lambda params, _: jax.tree.map(lambda x: 2.0 * x, params))
    remembered: jax.Array = buffer(depends_on=("exponent",))
    written: jax.Array = buffer_cursor()
    total: jax.Array = statistics(depends_on=("env", "env_params"))
    worlds: Any = per_environment()
    sights: jax.Array = per_environment()
    key: jax.Array = random_key()
    eval_key: jax.Array = random_key()
    iteration: jax.Array


def make_toy(config: ToyConfig) -> Agent:
    env, env_params = make_training_env(config)

    def init(key: jax.Array) -> ToyState:
        _, fields = initial_fields(config, env, env_params, key)
        obs = fields["obs"]
        params = {"w": jnp.ones(obs.shape[-1])}
        return ToyState(
            params=params,
            lagging={"w": 2.0 * jnp.ones(obs.shape[-1])},
            remembered=jnp.zeros((config.memories, *obs.shape)),
            written=jnp.zeros((), jnp.int32),
            total=jnp.zeros(()),
            worlds=fields["env_state"],
            sights=obs,
            key=fields["key"],
            eval_key=fields["eval_key"],
            iteration=fields["iteration"],
        )

    def one(state: ToyState, noise: Any) -> tuple[ToyState, Any]:
        action = (state.sights @ state.params["w"] > 0).astype(jnp.int32)
        obs, worlds, reward, ended, _ = jax.vmap(env.step_env, (0, 0, 0, None))(noise.step_key, state.worlds, action, env_params)
        ended |= jax.vmap(env.is_truncated, (0, None))(worlds, env_params)
        fresh_obs, fresh_worlds = fresh_episodes(env, env_params, noise)
        choose = jax.vmap(lambda end, a, b: jax.tree.map(lambda x, y: jnp.where(end, x, y), a, b))
        worlds, obs = choose(ended, (fresh_worlds, fresh_obs), (worlds, obs))
        row = state.written % config.memories
        return state.replace(
            remembered=state.remembered.at[row].set(state.sights**config.exponent),
            written=state.written + 1,
            total=state.total + reward.sum(),
            worlds=worlds,
            sights=obs,
        ), ended.sum()

    def step(state: ToyState) -> tuple[ToyState, Any]:
        key, env_key = jax.random.split(state.key)
        noise = environment_noise(env, env_params, env_key, STEPS, config.num_envs)
        state, ended = jax.lax.scan(one, state, noise)
        mean = state.remembered.mean((0, 1))
        params = {"w": state.params["w"] + config.rate * (mean - state.params["w"])}
        lagging = jax.tree.map(lambda old, new: old + 0.5 * (new - old), state.lagging, params)
        metrics = {"episode/return": jnp.float32(jnp.nan), "episode/length": jnp.float32(jnp.nan)}
        metrics |= {"episode/count": ended.sum().astype(jnp.float32), "train/total": state.total}
        return state.replace(params=params, lagging=lagging, key=key, iteration=state.iteration + 1), metrics

    def act(state: ToyState, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: Any = None) -> Any:
        return (obs @ state.params["w"] > 0).astype(jnp.int32), carry

    return Agent(init, step, act, config)


register_agent(ToyConfig, make_toy)
del ALGORITHMS["toy"]  # other tests list what there is


@pytest.fixture(scope="module", autouse=True)
def _known() -> Iterator[None]:
    ALGORITHMS["toy"] = ToyConfig
    yield
    del ALGORITHMS["toy"]


CONFIG = ToyConfig(env="CartPole-v1", total_timesteps=320)


def test_a_budget_below_one_iteration_is_refused() -> None:
    with pytest.raises(rljax.ConfigError, match=r"total_timesteps = 31: expected at least 32 steps, one iteration"):
        rljax.fit(CONFIG.replace(total_timesteps=31))


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy") / "run"
    rljax.fit(CONFIG, run_dir=folder, checkpoint_every=64, keep=None)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [None, 3])
def test_it_resumes_bit_for_bit(seeds: int | None, tmp_path: Path) -> None:
    whole = rljax.fit(CONFIG, seeds=seeds)
    rljax.fit(CONFIG, seeds=seeds, run_dir=tmp_path / "a", checkpoint_every=32, callback=lambda step, _: step >= 128)
    resumed = rljax.fit(CONFIG, resume=tmp_path / "a")
    assert resumed.step == whole.step == 320
    assert resumed.complete
    assert same(named_arrays(resumed.state), named_arrays(whole.state))


def uncounted(config: ToyConfig) -> Agent:
    """The algorithm with a step that does not count its iterations."""
    agent = rljax.make_agent(config)

    def step(state: ToyState) -> tuple[ToyState, Any]:
        after, metrics = agent.step(state)
        return after.replace(iteration=state.iteration), metrics

    return agent._replace(step=step, own=" ")


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [None, 2])
def test_a_step_that_does_not_count_iterations_stops_the_run(seeds: int | None, tmp_path: Path) -> None:
    said = r"^training stopped: the agent's step left state.iteration at {}, expected {}: add 1 in each step, "
    with pytest.raises(rljax.TrainingError, match=said.format(0, 1)):
        rljax.fit(uncounted(CONFIG), seeds=seeds)
    # A resumed run counts on from where it was.
    agent = rljax.make_agent(CONFIG)._replace(own=" ")
    rljax.fit(agent, seeds=seeds, run_dir=tmp_path / "a", callback=lambda step, _: step >= 128)
    done = int(load_checkpoint(tmp_path / "a").meta["iteration"])
    assert 0 < done < CONFIG.num_iterations
    with pytest.raises(rljax.TrainingError, match=said.format(done, done + 1)):
        rljax.fit(uncounted(CONFIG), resume=tmp_path / "a")
    assert rljax.fit(agent, resume=tmp_path / "a").complete


def test_a_state_without_parameters_is_one_line() -> None:
    own = rljax.make_agent(CONFIG)._replace(
        init=lambda key: {"w": jnp.zeros(2)}, act=lambda s, obs, carry, *_: (jnp.zeros(len(obs), jnp.int32), carry)
    )
    with pytest.raises(
        rljax.ConfigError, match=r"^the agent's init: returned a dictionary with the keys \['w'\], which has no par"
    ):
        rljax.fit(own)


def forked(parent: Path, **changes: Any) -> Any:
    """Return the state that a fork with another configuration begins with."""
    config = CONFIG.replace(**{"total_timesteps": 640, **changes})
    return start_forked(parent, rljax.make_agent(config), None).state


def saved(parent: Path) -> dict[str, np.ndarray]:
    return load_checkpoint(parent).arrays


def test_a_fork_keeps_all_that_fits(parent: Path) -> None:
    here, there = named_arrays(forked(parent)), saved(parent)
    assert set(here) == set(there)
    assert all(np.array_equal(here[name], there[name]) for name in there)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("changes", "reset"),
    [
        # The number of environments does not fit episodes and buffer; the cursor goes with the buffer.
        ({"num_envs": 4}, {"remembered", "written", "worlds", "sights"}),
        # Another size of the buffer leaves the episodes as they are.
        ({"memories": 16}, {"remembered", "written"}),
        ({"exponent": 2.0}, {"remembered", "written"}),
        # Another environment ends episodes; what is counted there begins anew, too.
        ({"env_params": {"max_steps_in_episode": 20}}, {"remembered", "written", "worlds", "sights", "total"}),
    ],
)
def test_a_fork_begins_anew_what_depends_on_a_change_and_says_so(parent: Path, changes: dict[str, Any], reset: set[str]) -> None:
    with pytest.warns(rljax.RljaxWarning, match=", ".join(sorted(reset))):
        state = forked(parent, **changes)
    here, there = named_arrays(state), saved(parent)
    fresh = named_arrays(rljax.make_agent(CONFIG.replace(**{"total_timesteps": 640, **changes})).init(jax.random.key(0)))
    for name in set(here) - {"iteration"}:  # counted in iterations of the new size
        field = name.partition("/")[0]
        want = fresh if field in reset else there
        assert np.array_equal(here[name], want[name]), name


def test_a_fork_with_another_seed_has_its_keys_and_nothing_else(parent: Path) -> None:
    here, there = named_arrays(forked(parent, seed=5)), saved(parent)
    differ = {name for name in there if not np.array_equal(here[name], there[name])}
    assert differ == {"key", "eval_key"}


def test_a_copy_that_does_not_fit_is_made_of_the_parameters(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = load_checkpoint(parent)
    del arrays.arrays["lagging/w"]
    monkeypatch.setattr("rljax.run.start.load_checkpoint", lambda *_: arrays)
    with pytest.warns(rljax.RljaxWarning, match="lagging"):
        state = forked(parent)
    assert np.array_equal(state.lagging["w"], 2.0 * arrays.arrays["params/w"])


@pytest.mark.slow
def test_devices_come_to_what_one_does(tmp_path: Path) -> None:
    apart, moved, *split = printed_on_devices(4, tmp_path, __file__).split()
    assert float(apart) < 1e-5 < 1e-2 < float(moved)
    assert set(split) == {"remembered:1", "worlds:0", "sights:0"}


def main() -> None:
    """Train on one device and on all; print how far apart the two are, how far parameters moved, and which fields are split."""
    one = jax.jit(rljax.make_train(CONFIG))(jax.random.key(0)).state
    many = jax.jit(rljax.make_train(CONFIG.replace(num_devices=jax.device_count())))(jax.random.key(0)).state
    pairs = zip(jax.tree.leaves((one.params, one.lagging)), jax.tree.leaves((many.params, many.lagging)), strict=True)
    split = {
        f"{name}:{list(x.sharding.spec).index('data')}"
        for name in roles_of(many)
        for x in jax.tree.leaves(getattr(many, name))
        if "data" in str(x.sharding.spec)
    }
    assert {roles_of(many)[name.partition(":")[0]].role for name in split} == {Role.PER_ENVIRONMENT, Role.BUFFER}
    print(max(float(jnp.abs(a - b).max()) for a, b in pairs), float(jnp.abs(one.params["w"] - 1.0).max()), *split)


if __name__ == "__main__":
    main()
