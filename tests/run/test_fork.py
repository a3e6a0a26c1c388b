"""Forks: a new run from a checkpoint; what fits is taken over, what does not is made anew and named."""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.collect.intrinsic import NO_ENTROPY, EntropyState
from rljax.core.config_files import config_table
from rljax.core.state import fields_to_reset
from rljax.run.episodes import new_episodes
from rljax.run.files.checkpoint import named_arrays
from rljax.run.start import start_forked
from rljax.run.view.show import show
from tests.run.tiny_runs import CONFIG, VARIANTS, assert_same_state, records

LONGER = CONFIG.replace(total_timesteps=64 * 30)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent") / "run"
    rljax.fit(CONFIG, run_dir=folder, checkpoint_every=640, keep=None)
    return folder


@pytest.mark.slow
def test_a_fork_that_changes_nothing_goes_on_as_the_run_would_have(parent: Path, tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in parent.rglob("*") if p.is_file()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rljax.fit(CONFIG, fork=parent / "checkpoints" / "step_640", run_dir=tmp_path / "a")
    assert_same_state(rljax.load_run(tmp_path / "a").state, rljax.load_run(parent).state)
    first, *rest = records(tmp_path / "a")
    assert first["step"] == 640
    assert rest == [r for r in records(parent) if r["step"] > 640]  # fresh metrics, the count of steps goes on
    info = json.loads((tmp_path / "a" / "run.json").read_text())
    assert info["forked_from"] == {"checkpoint": str(parent / "checkpoints" / "step_640"), "step": 640}
    assert {p: p.read_bytes() for p in parent.rglob("*") if p.is_file()} == before


@pytest.mark.slow
def test_another_learning_rate_from_the_same_weights_and_optimiser(parent: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = rljax.fit(LONGER.replace(learning_rate=5e-4), fork=parent, run_dir=tmp_path / "a", callback=lambda *_: True)
    assert result.metrics["train/learning_rate"][0] == pytest.approx(5e-4 * (1 - 24 / 30))
    start = rljax.load_run(tmp_path / "a", checkpoint=1536)
    assert_same_state(start.state, rljax.load_run(parent).state)
    assert start.config.learning_rate == 5e-4


@pytest.mark.slow
def test_another_number_of_environments_restarts_them_and_says_so(parent: Path, tmp_path: Path) -> None:
    config = LONGER.replace(num_envs=6, num_steps=20)
    with pytest.warns(
        rljax.RljaxWarning, match="initialised anew, because the configuration changed: env_state, obs, reward_statistics"
    ):
        rljax.fit(config, fork=parent, run_dir=tmp_path / "a", checkpoint_every=120, keep=None)
    start, old = rljax.load_run(tmp_path / "a", checkpoint=1536).state, rljax.load_run(parent).state
    for field in ("params", "opt_state", "obs_statistics", "key", "eval_key"):
        assert_same_state(getattr(start, field), getattr(old, field))
    assert start.obs.shape == (6, 4)
    assert int(start.iteration) == 12  # of 120 steps each: 1440 of the 1536 steps taken
    steps = [r["step"] for r in records(tmp_path / "a")]
    assert steps == [1536, 1656, 1776, 1896]  # never over the budget of 1920
    assert rljax.load_run(tmp_path / "a").step == 1896


@pytest.mark.slow
def test_a_fork_resumes_like_any_run(parent: Path, tmp_path: Path) -> None:
    config = LONGER.replace(num_envs=6, num_steps=4, eval_every=None, total_timesteps=3000)
    with pytest.warns(rljax.RljaxWarning, match="initialised anew"):
        rljax.fit(config, fork=parent, run_dir=tmp_path / "whole")
    with pytest.warns(rljax.RljaxWarning, match="initialised anew"):
        rljax.fit(config, fork=parent, run_dir=tmp_path / "a", callback=lambda step, _: step >= 2000, checkpoint_every=100)
    assert rljax.load_run(tmp_path / "a").step < 2990
    rljax.fit(resume=tmp_path / "a")
    assert records(tmp_path / "a") == records(tmp_path / "whole")
    assert_same_state(rljax.load_run(tmp_path / "a").state, rljax.load_run(tmp_path / "whole").state)


@pytest.mark.slow
def test_another_environment_of_the_same_shape_restarts_episodes(parent: Path, tmp_path: Path) -> None:
    config = LONGER.replace(env_params={"gravity": 5.0})
    with pytest.warns(rljax.RljaxWarning, match=r"changed: env_state, obs$"):
        rljax.fit(config, fork=parent, run_dir=tmp_path / "a", callback=lambda *_: True)
    start = named_arrays(rljax.load_run(tmp_path / "a", checkpoint=1536).state)
    assert not start["env_state/episode_length"].any()


@pytest.mark.parametrize(
    ("change", "anew"),
    [
        ({"learning_rate": 1e-3, "time_limit": 20}, set()),
        ({"scale_rewards": 10.0}, {"replay", "reward_statistics"}),
        ({"clip_rewards": 0.5}, {"replay", "reward_statistics"}),
        ({"action_repeat": 2}, {"replay", "reward_statistics"}),
        ({"sticky_actions": 0.5}, {"replay"}),
        ({"randomize": {"gravity": [5.0, 15.0]}}, {"replay"}),
        ({"priority_alpha": 0.5}, set()),
    ],
)
@pytest.mark.parametrize("prioritized", [False, True])
def test_steps_that_would_be_others_now_are_not_learned_from(change: dict[str, Any], anew: set[str], prioritized: bool) -> None:
    config = rljax.DQNConfig(env="CartPole-v1", normalize_rewards=True, prioritized=prioritized)
    state = jax.eval_shape(rljax.make_agent(config).init, jax.random.key(0))
    there, here = (config_table(c) for c in (config, config.replace(**change)))
    if prioritized and ("replay" in anew or "priority_alpha" in change):
        anew = anew | {"replay", "priorities"}  # priorities belong to the rows of a buffer
    assert fields_to_reset(state, set(), there, here, same_seed=True) == (anew, set())


@pytest.mark.slow
def test_a_fork_with_other_rewards_fills_its_buffer_anew_and_says_so(tmp_path: Path) -> None:
    """Episodes under way, the parameters and the optimiser stay."""
    config = rljax.DQNConfig(
        env="CartPole-v1",
        total_timesteps=256,
        num_envs=4,
        num_steps=8,
        learning_starts=64,
        buffer_size=512,
        normalize_rewards=True,
    )
    rljax.fit(config, run_dir=tmp_path / "parent")
    branch = config.replace(scale_rewards=10.0, total_timesteps=288)
    with pytest.warns(rljax.RljaxWarning, match=r"the configuration changed: replay, reward_statistics$"):
        rljax.fit(branch, fork=tmp_path / "parent", run_dir=tmp_path / "fork")
    before, after = (rljax.load_run(tmp_path / name).state for name in ("parent", "fork"))
    assert (int(before.replay.size), int(after.replay.size)) == (64, 8)
    assert float(after.replay.data.reward[:8].min()) == 10.0
    assert_same_state(after.params, before.params)  # 32 steps are too few to learn from


@pytest.mark.slow
def test_a_distilled_student_without_memory_forks(tmp_path: Path) -> None:
    teacher = rljax.make_agent(rljax.PPOConfig(num_envs=2, network={"hidden": [4]}))
    rljax.save(tmp_path / "teacher", teacher, jax.jit(teacher.init)(jax.random.key(0)))
    config = rljax.DistillConfig(
        env="CartPole-v1",
        teachers=(str(tmp_path / "teacher"),),
        num_envs=2,
        num_steps=4,
        num_minibatches=1,
        total_timesteps=16,
        network={"hidden": [4]},
    )
    rljax.fit(config, run_dir=tmp_path / "student")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rljax.fit(config.replace(total_timesteps=40), fork=tmp_path / "student", run_dir=tmp_path / "fork")
    rljax.fit(resume=tmp_path / "student", total_timesteps=40)
    assert_same_state(rljax.load_run(tmp_path / "fork").state.params, rljax.load_run(tmp_path / "student").state.params)


@pytest.mark.slow
def test_statistics_do_not_go_on_with_episodes_that_a_fork_or_a_resumed_simulator_leaves(tmp_path: Path) -> None:
    config = rljax.PPOConfig(
        env="Scouting-v0", num_envs=4, num_steps=8, total_timesteps=320, network={"hidden": [4]}, normalize_rewards=True,
        intrinsic={"type": "entropy_reduction"}, time_limit=20,
    )  # fmt: skip
    agent = rljax.make_agent(config)
    state = jax.jit(agent.init)(jax.random.key(0))
    rewards = state.reward_statistics
    rewards = rewards._replace(
        statistics=rewards.statistics.replace(var=jnp.float32(9.0)), discounted_return=jnp.arange(1.0, 5.0)
    )
    state = state.replace(reward_statistics=rewards, intrinsic=EntropyState(jnp.full(4, 3.0)))
    rljax.save(tmp_path / "run", agent, state)
    kept = start_forked(tmp_path / "run", agent, None).state
    assert_same_state((kept.reward_statistics, kept.intrinsic), (rewards, state.intrinsic))
    with pytest.warns(rljax.RljaxWarning, match=r"changed: env_state, obs$"):
        forked = start_forked(tmp_path / "run", rljax.make_agent(config.replace(time_limit=None)), None).state
    for begun in (forked, jax.jit(partial(new_episodes, agent))(state)):
        assert begun.reward_statistics.discounted_return.tolist() == [0.0] * 4
        assert float(begun.reward_statistics.statistics.var) == 9.0
        assert begun.intrinsic.previous.tolist() == [NO_ENTROPY] * 4


@pytest.mark.slow
def test_a_normaliser_that_is_left_out_is_named(parent: Path, tmp_path: Path) -> None:
    with pytest.warns(rljax.RljaxWarning, match="left out, because this configuration has none: obs_statistics"):
        rljax.fit(LONGER.replace(normalize_observations=False), fork=parent, run_dir=tmp_path / "a", callback=lambda *_: True)


@pytest.mark.slow
def test_a_finished_fork_shows_as_complete(parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = LONGER.replace(num_envs=6, num_steps=20)
    with pytest.warns(rljax.RljaxWarning, match="initialised anew"):
        rljax.fit(config, fork=parent, run_dir=tmp_path / "a")
    show(tmp_path / "a")
    assert "complete at 1,896 steps" in capsys.readouterr().out


@pytest.mark.slow
def test_another_seed_goes_another_way_from_the_same_weights(parent: Path, tmp_path: Path) -> None:
    states = [
        rljax.fit(LONGER.replace(seed=seed), fork=parent, run_dir=tmp_path / str(seed), callback=lambda *_: True).state
        for seed in (7, 8)
    ]
    starts = [rljax.load_run(tmp_path / str(seed), checkpoint=1536).state for seed in (7, 8)]
    assert_same_state(starts[0].params, starts[1].params)
    assert not np.array_equal(*(named_arrays(s.params)["params/network/actor_0/kernel"] for s in states))


@pytest.mark.slow
def test_another_network_is_a_clear_error_that_names_the_first_parameter_that_differs(parent: Path, tmp_path: Path) -> None:
    with pytest.raises(
        rljax.ConfigError,
        match=r"cannot take the weights of .*step_1536: .*/actor_0/bias is float32\[16\] there and float32\[32\] here",
    ) as error:
        rljax.fit(LONGER.replace(network={"hidden": [32]}), fork=parent, run_dir=tmp_path / "a")
    assert "\n" not in str(error.value)
    with pytest.raises(rljax.ConfigError, match=r"actor_1/bias is missing there and float32\[16\] here"):
        rljax.fit(LONGER.replace(network={"hidden": [16, 16]}), fork=parent, run_dir=tmp_path / "a")
    with pytest.raises(rljax.ConfigError, match=r"policy_head/kernel is float32\[16, 2\] there and float32\[4, 2\] here"):
        rljax.fit(LONGER.replace(network={"hidden": []}), fork=parent, run_dir=tmp_path / "a")
    with pytest.raises(rljax.ConfigError, match="cannot take the weights"):
        rljax.fit(LONGER.replace(env="Pendulum-v1"), fork=parent, run_dir=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_spent_budget_and_a_missing_checkpoint_are_clear_errors(parent: Path, tmp_path: Path) -> None:
    with pytest.raises(rljax.ConfigError, match=r"the checkpoint is at step 1536 already, .* expected at least 1600"):
        rljax.fit(CONFIG, fork=parent, run_dir=tmp_path / "a")
    with pytest.raises(rljax.ConfigError, match=r"expected latest, best or one of the steps that .* has: 0, .*640, .*1536"):
        rljax.fit(LONGER, fork=parent / "checkpoints" / "step_5", run_dir=tmp_path / "a")
    with pytest.raises(rljax.ConfigError, match="seeds = 2"):
        rljax.fit(LONGER, fork=parent, seeds=2)
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_a_run_given_as_an_object_forks_and_resumes(tmp_path: Path) -> None:
    environment = type(rljax.make_env("CartPole-v1")[0])()
    config = CONFIG.replace(env=environment, eval_every=None)
    whole = rljax.fit(config).state
    rljax.fit(config, run_dir=tmp_path / "a", callback=lambda step, _: step >= 500)
    with pytest.raises(rljax.ConfigError, match="given as an object"):
        rljax.fit(resume=tmp_path / "a")
    with pytest.warns(rljax.RljaxWarning, match="env is an object of class"):
        rljax.fit(config, fork=tmp_path / "a", run_dir=tmp_path / "b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_state(rljax.fit(config, run_dir=tmp_path / "a", resume=True).state, whole)
    assert_same_state(rljax.load_run(tmp_path / "b", env=environment).state, whole)
    assert jax.tree.leaves(whole)


@pytest.fixture(scope="module")
def remembers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remembers") / "run"
    rljax.fit(VARIANTS["ppo with memory"], run_dir=folder)
    return folder


@pytest.mark.slow
def test_what_a_policy_remembers_goes_on_with_the_episodes_under_way(remembers: Path, tmp_path: Path) -> None:
    config = VARIANTS["ppo with memory"].replace(total_timesteps=48 * 30)
    parent = rljax.load_run(remembers).state
    assert any(np.any(x) for x in jax.tree.leaves(parent.carry))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rljax.fit(config.replace(learning_rate=5e-4), fork=remembers, run_dir=tmp_path / "a", callback=lambda *_: True)
    assert_same_state(rljax.load_run(tmp_path / "a", checkpoint=48 * 25).state.carry, parent.carry)
    with pytest.warns(
        rljax.RljaxWarning, match="initialised anew, because the configuration changed: carry, env_state, intrinsic, obs"
    ):
        rljax.fit(
            config.replace(env_params={"bit_reward": 1.0}), fork=remembers, run_dir=tmp_path / "b", callback=lambda *_: True
        )
    start = rljax.load_run(tmp_path / "b", checkpoint=48 * 25).state
    assert not any(np.any(x) for x in jax.tree.leaves(start.carry))


@pytest.mark.slow
def test_another_bonus_starts_anew_and_says_so(remembers: Path, tmp_path: Path) -> None:
    config = VARIANTS["ppo with memory"].replace(total_timesteps=48 * 30, intrinsic={"type": "rnd", "hidden": [8], "features": 4,
                                                                                     "learning_rate": 1e-4})  # fmt: skip
    with pytest.warns(rljax.RljaxWarning, match="initialised anew, because the configuration changed: intrinsic$"):
        rljax.fit(config, fork=remembers, run_dir=tmp_path / "a", callback=lambda *_: True)
    start, old = rljax.load_run(tmp_path / "a", checkpoint=48 * 25).state, rljax.load_run(remembers).state
    assert float(start.intrinsic.obs_statistics.count) == 0.0
    assert_same_state(start.params, old.params)


@pytest.mark.slow
def test_value_heads_in_another_order_are_refused(remembers: Path, tmp_path: Path) -> None:
    config = VARIANTS["ppo with memory"].replace(total_timesteps=48 * 30, value_heads=("bit", "cue"))
    with pytest.raises(rljax.ConfigError, match=r"value heads \['bit', 'cue', 'intrinsic'\]: the weights of .* are those of"):
        rljax.fit(config, fork=remembers, run_dir=tmp_path / "a")


@pytest.mark.slow
def test_a_fork_of_other_iterations_ends_with_the_exploitability_of_its_last(tmp_path: Path) -> None:
    config = rljax.SelfPlayConfig(
        env="KuhnPoker-v0", num_envs=8, num_steps=8, total_timesteps=320, network={"hidden": [4]}, exploitability_every=96_000
    )
    rljax.fit(config, run_dir=tmp_path / "a")
    # Of 96 steps, 7 iterations fit into the budget, but the fork begins 32 steps after its third and ends with its sixth.
    other = config.replace(num_steps=12, total_timesteps=672)
    found = rljax.fit(other, fork=tmp_path / "a").metrics["league/exploitability"]
    np.testing.assert_array_equal(np.isfinite(found), [False, False, True])
