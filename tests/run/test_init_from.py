"""Runs that begin with the policy of another run."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.teacher import faded
from rljax.collect.normalizers import init_statistics
from rljax.run.initial import VALUE_HEADS, _check_same_functions, _is_named, _statistics
from rljax.run.search.plan import plan_sweep
from rljax.run.start import start_forked
from rljax.run.view.show import show
from tests.run.tiny_runs import TINY, TINY_TOML, assert_refused, assert_same_run, assert_same_state

PPO = TINY["ppo"].replace(total_timesteps=64 * 8, teacher_kl_coef=0.5, teacher_kl_share=0.5)


def saved(path: Path, config: Any, scale: float = 1.0) -> Any:
    """Save a run of random parameters that no seed gives; return its state."""
    agent = rljax.make_agent(config)
    state = jax.jit(agent.init)(jax.random.key(5))
    number = np.float32  # NumPy adds: JAX would compile a program for each shape
    state = state.replace(params=jax.tree.map(lambda x: number(scale) * np.asarray(x) + number(0.125), state.params))
    if state.obs_statistics is not None:
        state = state.replace(obs_statistics=jax.tree.map(lambda x: np.asarray(x) + number(3.0), state.obs_statistics))
    rljax.save(path, agent, state)
    return state


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parents") / "ppo"
    saved(folder, TINY["ppo"])
    return folder


@pytest.mark.slow
def test_a_run_begins_with_the_policy_and_all_else_is_that_of_a_new_run(parent: Path) -> None:
    agent = rljax.begin_from(PPO, parent)
    fresh, begun = (jax.jit(a.init)(jax.random.key(0)) for a in (rljax.make_agent(PPO), agent))
    policy = rljax.load_run(parent).state
    assert_same_state(begun.params, policy.params)
    assert_same_state(begun.obs_statistics, policy.obs_statistics)
    assert_same_state(begun.teacher.params, policy.params)
    assert_same_state(begun.teacher.obs_statistics, policy.obs_statistics)
    for field in ("opt_state", "env_state", "obs", "reward_statistics", "key", "eval_key", "iteration"):
        assert_same_state(getattr(begun, field), getattr(fresh, field))
    several = jax.jit(jax.vmap(agent.init))(jax.random.split(jax.random.key(1), 3))
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, jnp.stack([y] * 3)), several.params, policy.params)


@pytest.mark.slow
def test_it_counts_from_zero_keeps_its_teacher_and_resumes_bit_for_bit(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, half = tmp_path / "whole", tmp_path / "half"
    rljax.fit(PPO, init_from=parent, run_dir=whole, checkpoint_every=64, keep=None)
    rljax.fit(PPO, init_from=parent, run_dir=half, callback=lambda step, _: step >= 192, checkpoint_every=64)
    assert rljax.load_run(half).step < 512
    rljax.fit(resume=half)
    assert_same_run(whole, half)
    state = rljax.load_run(whole).state
    assert_same_state(state.teacher.params, rljax.load_run(parent).state.params)
    assert rljax.load_run(whole, checkpoint=0).step == 0
    records = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    weights = {r["step"]: r["train/teacher_kl_coef"] for r in records if "train/teacher_kl_coef" in r}
    assert weights[64] == pytest.approx(0.5)
    assert weights[512] == 0.0
    assert json.loads((whole / "run.json").read_text())["init_from"] == str(parent)
    show(whole)
    assert f"began with the policy of {parent}" in capsys.readouterr().out
    # A fork of it goes on with the same teacher.
    forked = rljax.fit(PPO.replace(total_timesteps=64 * 9), fork=whole).state
    assert_same_state(forked.teacher.params, state.teacher.params)


@pytest.mark.slow
@pytest.mark.parametrize("of_games", [False, True])
def test_the_weight_of_a_teacher_that_a_fork_takes_begins_at_the_fork(of_games: bool, tmp_path: Path) -> None:
    small: dict[str, Any] = {"num_envs": 4, "num_steps": 8, "total_timesteps": 32 * 12, "network": {"hidden": [4]}}
    plain = rljax.SelfPlayConfig(env="KuhnPoker-v0", **small) if of_games else rljax.PPOConfig(**small)
    agent = rljax.make_agent(plain)
    rljax.save(tmp_path / "plain", agent, jax.jit(agent.init)(jax.random.key(0)).replace(iteration=jnp.int32(6)))
    taught = rljax.make_agent(plain.replace(num_steps=4, num_minibatches=1, teacher_kl_coef=1.0))
    with pytest.warns(rljax.RljaxWarning, match="teacher"):
        begun = start_forked(tmp_path / "plain", taught, None).state
    assert_same_state(begun.teacher.params, begun.params)
    assert float(faded(taught.config, begun.iteration, begun.teacher).teacher_kl_coef) == 1.0
    assert float(faded(taught.config, begun.iteration + 6, begun.teacher).teacher_kl_coef) == 0.5
    # A fork of that keeps the teacher, and the weight goes on where it was.
    rljax.save(tmp_path / "taught", taught, begun.replace(iteration=begun.iteration + 6))
    more = rljax.make_agent(taught.config.replace(num_steps=8))
    state = start_forked(tmp_path / "taught", more, None).state
    assert int(state.iteration) == 9
    assert float(faded(more.config, state.iteration, state.teacher).teacher_kl_coef) == 0.5


@pytest.mark.slow
def test_all_players_of_a_league_begin_with_it_and_exploiters_are_reset_to_it(tmp_path: Path) -> None:
    network = {"hidden": [8]}
    one = saved(tmp_path / "one", rljax.SelfPlayConfig(env="KuhnPoker-v0", num_envs=8, num_steps=8, network=network))
    config = TINY["league"].replace(reset_to="initial", teacher_kl_coef=0.5, teacher_kl_final=0.1)
    state = jax.jit(rljax.begin_from(config, tmp_path / "one").init)(jax.random.key(0))
    for learner in range(config.num_learners):
        for of_all in (state.params, state.average_params, state.teacher.params, state.league.initial):
            jax.tree.map(lambda x, y, i=learner: np.testing.assert_array_equal(x[i], y[0]), of_all, one.params)
        jax.tree.map(lambda x, y, i=learner: np.testing.assert_array_equal(x[i], y[0]), state.league.pool.params, one.params)
    # And a league's main agent begins a run of one player.
    state = state.replace(params=jax.tree.map(lambda x: x.at[0].add(1.0), state.params), average_params=None)
    rljax.save(tmp_path / "league", config.replace(average_decay=None, magnet_coef=None), state)
    back = rljax.SelfPlayConfig(env="KuhnPoker-v0", num_envs=8, num_steps=8, network=network)
    again = jax.jit(rljax.begin_from(back, tmp_path / "league").init)(jax.random.key(0))
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[0], y[0]), again.params, state.params)


@pytest.mark.long
def test_a_league_keeps_its_teachers_while_its_players_learn_and_are_reset(tmp_path: Path) -> None:
    network = {"type": "gru", "hidden": [8], "size": 6}
    plain = rljax.SelfPlayConfig(env="KuhnPoker-v0", num_envs=8, num_steps=8, network=network, normalize_observations=True)
    one = saved(tmp_path / "one", plain.replace(num_minibatches=1))
    config = TINY["league"].replace(
        network=network, exploitability_every=None, average_decay=None, magnet_coef=None, reset_to="initial", branch_after=None,
        num_minibatches=1, teacher_kl_coef=0.5, learning_rate=0.05, normalize_observations=True,
    )  # fmt: skip
    result = rljax.fit(config, init_from=tmp_path / "one", run_dir=tmp_path / "league")
    state = result.state
    assert result.metrics["league/resets"].sum() > 0
    assert np.isfinite(result.metrics["train/teacher_kl"]).all()
    assert result.metrics["train/teacher_kl"][-1] > 1e-6
    for learner in range(config.num_learners):
        jax.tree.map(lambda x, y, i=learner: np.testing.assert_array_equal(x[i], y[0]), state.teacher.params, one.params)
    assert any(np.any(x) for x in jax.tree.leaves(state.teacher_carry))
    assert_same_state(rljax.load_run(tmp_path / "league").state, state)


@pytest.mark.slow
def test_other_values_begin_anew_with_a_warning_and_the_policy_is_kept(tmp_path: Path) -> None:
    one = saved(tmp_path / "one", rljax.PPOConfig(env="HiddenBit-v0", network={"hidden": [8]}))
    config = rljax.PPOConfig(env="HiddenBit-v0", network={"hidden": [8]}, value_heads=("cue", "bit"))
    with pytest.warns(
        rljax.RljaxWarning, match=r"has other values, so these begin anew: .*value_head/bias, .*value_head/kernel$"
    ):
        agent = rljax.begin_from(config, tmp_path / "one")
    fresh, begun = (jax.jit(a.init)(jax.random.key(0)).params["params"]["network"] for a in (rljax.make_agent(config), agent))
    there = one.params["params"]["network"]
    assert_same_state(begun["value_head"], fresh["value_head"])
    for name in ("actor_0", "policy_head", "critic_0"):
        assert_same_state(begun[name], there[name])


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"value_heads": ("cue", "bit")}, {"value_heads": ("cue",), "intrinsic": {"type": "rnd"}}])
def test_value_heads_of_other_names_begin_anew_though_they_fit(changes: dict[str, Any], tmp_path: Path) -> None:
    config = rljax.PPOConfig(env="HiddenBit-v0", network={"hidden": [8]}, value_heads=("bit", "cue"))
    one = saved(tmp_path / "one", config)
    with pytest.warns(rljax.RljaxWarning, match=r"so these begin anew: .*value_head/bias, .*value_head/kernel$"):
        agent = rljax.begin_from(config.replace(**changes), tmp_path / "one")
    begun = jax.jit(agent.init)(jax.random.key(0)).params["params"]["network"]
    fresh = jax.jit(rljax.make_agent(agent.config).init)(jax.random.key(0)).params["params"]["network"]
    assert_same_state(begun["value_head"], fresh["value_head"])
    assert_same_state(begun["critic_0"], one.params["params"]["network"]["critic_0"])


@pytest.mark.parametrize(
    ("name", "of_value"),
    [
        ("params/network/value/kernel", True),  # of a network of one's own
        ("params/network/both_heads/value_head/bias", True),
        ("params/network/both_heads/value_0/bias", False),
        ("params/network/encoder/pooling/value/kernel", False),
        ("params/network/MultiHeadDotProductAttention_0/value/kernel", False),
    ],
)
def test_value_heads_are_known_by_their_names(name: str, of_value: bool) -> None:
    assert _is_named(VALUE_HEADS, name) == of_value


@pytest.mark.slow
def test_layers_of_attention_are_the_policys_whatever_their_names(tmp_path: Path) -> None:
    config = rljax.PPOConfig(env="TargetPick-v0", network={"encoder": "entities", "hidden": [8]})
    one = saved(tmp_path / "one", config)
    with pytest.warns(rljax.RljaxWarning, match=r"so these begin anew: \S*/value_head/bias, \S*/value_head/kernel$"):
        agent = rljax.begin_from(config.replace(intrinsic={"type": "rnd"}), tmp_path / "one")
    begun = jax.jit(agent.init)(jax.random.key(0)).params["params"]["network"]
    assert "value" in begun["encoder"]["pooling"]
    assert_same_state(begun["encoder"], one.params["params"]["network"]["encoder"])


@pytest.mark.slow
def test_learners_of_other_roles_begin_with_the_main_agent(tmp_path: Path) -> None:
    """As many learners, of which the second is a main agent there and an exploiter here."""
    small: dict[str, Any] = {"env": "KuhnPoker-v0", "num_envs": 32, "num_steps": 8, "num_slots": 2, "network": {"hidden": [8]}}
    config = rljax.LeagueConfig(**small, main_agents=2, main_exploiters=1, league_exploiters=1)
    agent = rljax.make_agent(config)
    state = jax.jit(agent.init)(jax.random.key(5))
    numbered = jax.tree.map(lambda x: jnp.zeros_like(x) + jnp.arange(4.0).reshape(4, *[1] * (x.ndim - 1)), state.params)
    rljax.save(tmp_path / "league", agent, state.replace(params=numbered))
    for roles, first in (({"main_agents": 2}, [0, 1, 2, 3]), ({"main_agents": 1, "league_exploiters": 2}, [0, 0, 0, 0])):
        begun = jax.jit(rljax.begin_from(config.replace(**roles), tmp_path / "league").init)(jax.random.key(0))
        for x in jax.tree.leaves(begun.params):
            assert [float(part.ravel()[0]) for part in np.asarray(x)] == first


SMALL: dict[str, Any] = {
    "network": {"hidden": [4]}, "total_timesteps": 64, "learning_starts": 8, "batch_size": 4, "buffer_size": 32
}  # fmt: skip


@pytest.mark.slow
def test_soft_actor_critic_and_regression_begin_with_each_others_discrete_policies(tmp_path: Path) -> None:
    """Their networks are alike; the temperature is no part of a policy."""
    iql, sac = rljax.IQLConfig(online=True, **SMALL), rljax.SACConfig(temperature=0.1, **SMALL)
    for config, other in ((iql, sac), (sac, iql)):
        run = saved(tmp_path / config.algorithm, config)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rljax.RljaxWarning)
            begun = jax.jit(rljax.begin_from(other, tmp_path / config.algorithm).init)(jax.random.key(0))
        assert_same_state(begun.params["actor"], run.params["actor"])
    assert "log_alpha" not in begun.params


@pytest.mark.slow
def test_continuous_policies_of_another_distribution_are_refused_though_shapes_are_equal(tmp_path: Path) -> None:
    saved(tmp_path / "sac", rljax.SACConfig(env="Pendulum-v1", **SMALL))
    with pytest.raises(rljax.ConfigError, match="sac makes other continuous actions than awac and iql"):
        rljax.begin_from(rljax.AWACConfig(env="Pendulum-v1", online=True, **SMALL), tmp_path / "sac")


@pytest.mark.parametrize(
    ("table", "other", "message"),
    [
        ({"hidden": [4]}, {"hidden": [4], "activation": "relu"}, "network.activation = 'relu': .* trained with 'tanh'"),
        ({"hidden": [4], "activation": "relu"}, {"hidden": [4]}, "network.activation = 'tanh': .* trained with 'relu'"),
        ({"hidden": [4]}, {"hidden": [4], "activation": "tanh", "goal": "concat"}, None),
        ({"hidden": []}, {"hidden": [], "activation": "relu"}, None),  # which is not applied
    ],
)
def test_a_network_that_computes_something_else_of_the_same_parameters_is_refused(
    table: Any, other: Any, message: str | None, tmp_path: Path
) -> None:
    small = rljax.PPOConfig(num_envs=4, num_steps=8, num_minibatches=1)
    saved(tmp_path / "run", small.replace(network=table))
    if message is None:
        rljax.begin_from(small.replace(network=other), tmp_path / "run")
    else:
        with pytest.raises(rljax.ConfigError, match=message):
            rljax.begin_from(small.replace(network=other), tmp_path / "run")


def test_networks_of_ones_own_algorithms_are_ones_own_business() -> None:
    """Their tables may mean something else."""
    ours, theirs = rljax.PPOConfig(), SimpleNamespace(network={"type": "gru", "bonus": 1})
    for there, here in ((ours, theirs), (theirs, ours), (theirs, theirs)):
        _check_same_functions(there, here, "run")  # type: ignore[arg-type]
    image = {"encoder": "cnn", "hidden": [], "channels": [4], "kernels": [3], "strides": [1]}
    with pytest.raises(rljax.ConfigError, match=r"network\.activation = 'relu'"):  # convolutions apply it
        _check_same_functions(ours.replace(network=image), ours.replace(network={**image, "activation": "relu"}), "run")


@pytest.mark.slow
def test_bad_input_is_one_clear_line(parent: Path, tmp_path: Path) -> None:
    def message(config: Any, **how: Any) -> str:
        with pytest.raises(rljax.ConfigError) as error:
            rljax.fit(config, run_dir=tmp_path / "run", **how)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "the teacher is the policy that a run begins with, so give one: init_from=RUN" in message(PPO)
    for search in (rljax.sweep, rljax.tune):
        with pytest.raises(rljax.ConfigError, match=r"so give one: make_agent=lambda config: rljax.begin_from\(config, RUN\)"):
            search(PPO, {"learning_rate": [0.1, 0.2]})
    assert plan_sweep(PPO, {"gamma": [0.9]}, make_agent=lambda config: rljax.begin_from(config, parent)).runs == 1
    assert "no run there" in message(PPO, init_from=tmp_path / "nothing")
    assert "normalised observations" in message(PPO.replace(normalize_observations=False), init_from=parent)
    other = message(PPO.replace(network={"hidden": [4]}), init_from=parent)
    assert "actor_0/bias is float32[16] there and float32[4] here" in other
    assert "init_from: is for a new run" in message(PPO, init_from=parent, fork=parent)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_command_begins_with_it(parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rljax.cli.main import main

    file = tmp_path / "tiny.toml"
    file.write_text(TINY_TOML.replace("[8]", "[16]") + "normalize_observations = true\n")
    how = ["--run-dir", str(tmp_path / "run"), "--init-from", str(parent), "--teacher-kl-coef", "0.1"]
    main(["train", str(file), *how])
    assert f"from {parent}" in capsys.readouterr().out
    assert rljax.load_run(tmp_path / "run").step == 640
    assert_refused(["train", "--resume", str(tmp_path / "run"), "--init-from", str(parent)], "--init-from", capsys)
    assert_refused(["train", str(file), "--teacher-kl-coef", "0.1"], "--init-from RUN", capsys)


def test_statistics_of_other_parts_of_observations_are_refused() -> None:
    """Flattened or not, the parameters of a perceptron have the same shapes, and the statistics another structure."""
    parts, whole = (init_statistics(obs) for obs in ({"a": np.zeros(2), "b": np.zeros(2)}, np.zeros(4)))
    for there, here in ((parts, whole), (whole, parts)):
        with pytest.raises(rljax.ConfigError, match="its policy sees other observations than those of env = 'CartPole-v1'"):
            _statistics(there, here, TINY["ppo"], None, "runs/clone")


def test_an_environment_that_was_an_object_is_given_again(tmp_path: Path) -> None:
    """By the configuration of the runs that begin with it, or that learn from it."""

    class Own(rljax.envs.CartPole):
        pass

    config = TINY["ppo"].replace(env=Own(), normalize_observations=False)
    state = saved(tmp_path / "run", config)
    begun = jax.eval_shape(rljax.begin_from(config, tmp_path / "run").init, jax.random.key(0))
    assert jax.tree.structure(begun.params) == jax.tree.structure(state.params)
    student = rljax.DistillConfig(
        env=Own(), teachers=(str(tmp_path / "run"),), num_envs=2, num_steps=4, network=config.network, total_timesteps=64
    )
    rljax.make_agent(student)
    with pytest.raises(rljax.ConfigError, match="was given as an object of class"):
        rljax.begin_from(TINY["ppo"], tmp_path / "run")
    with pytest.raises(rljax.ConfigError, match=r"was given as an object of class .*Own: in Python"):
        rljax.begin_from(TINY["ppo"].replace(env=rljax.envs.CartPole()), tmp_path / "run")
    assert rljax.load_run(tmp_path / "run", objects=config).config.env is config.env


def test_a_network_that_was_an_object_is_asked_for_where_there_is_no_such_field(tmp_path: Path) -> None:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, obs: jax.Array) -> Any:
            return nn.Dense(2)(obs), nn.Dense(1)(obs)[..., 0]

    saved(tmp_path / "run", TINY["ppo"].replace(network=Net(), normalize_observations=False))
    with pytest.raises(rljax.ConfigError, match="the network was given as an object of class"):
        rljax.begin_from(rljax.DreamerConfig(env="CartPole-v1", size="debug"), tmp_path / "run")
