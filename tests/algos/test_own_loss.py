"""A loss or a step of one's own: it trains in make_train, fit, sweep and tune, and nobody goes on with a run without it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.cli.main import main
from rljax.collect.rollout import episode_metrics
from rljax.core.agent import own_in
from rljax.run.files.folder import read_info
from tests.run.tiny_runs import TINY, assert_same_state

SMALL: dict[str, Any] = {"total_timesteps": 64 * 4, "eval_every": None}
LOSSES = {"ppo": rljax.ppo_loss, "impala": rljax.impala_loss, "pqn": rljax.pqn_loss}


def small(name: str, **changes: Any) -> Any:
    return TINY[name].replace(**{**SMALL, **changes})


def pulled(parts: Any, params: Any, batch: Any, loss: Any = rljax.ppo_loss) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The algorithm's loss, and all parameters pulled towards 0."""
    value, metrics = loss(parts, params, batch)
    size = sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(params))
    return value + 0.1 * size, metrics | {"train/size": size}


def by_hand(config: Any, iterations: int) -> rljax.PPOState:
    """The state after iterations of the public parts of PPO, with `pulled`."""
    parts = rljax.ppo_parts(config)

    @jax.jit
    def iteration(state: rljax.PPOState) -> rljax.PPOState:
        state, rollout = rljax.ppo_collect(parts, state)
        state, metrics = rljax.ppo_update(parts, state, rollout, pulled)
        assert not set(metrics) & set(episode_metrics(rollout.steps))
        return state

    state = jax.jit(lambda key: rljax.ppo_init(parts, key))(jax.random.key(config.seed))
    for _ in range(iterations):
        state = iteration(state)
    return state


@pytest.mark.slow
@pytest.mark.same_bits
def test_a_loss_trains_as_in_a_loop_of_the_parts(tmp_path: Path) -> None:
    config = small("ppo")
    agent = rljax.make_agent(config, loss_fn=pulled)
    expected = by_hand(config, config.num_iterations)
    result = rljax.fit(agent, run_dir=tmp_path / "run")
    np.testing.assert_array_equal(result.state.params["params"]["network"]["actor_0"]["kernel"],
                                  expected.params["params"]["network"]["actor_0"]["kernel"])  # fmt: skip
    assert result.metrics["train/size"].shape == (config.num_iterations,)
    shapes = jax.eval_shape(rljax.make_train(agent), jax.random.key(config.seed)).metrics
    assert sorted(shapes) == sorted(result.metrics)


def norm(state: Any) -> float:
    return float(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(state.params)))


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_algorithms_with_one_loss_take_another(name: str) -> None:
    """The algorithm's own loss, given, changes nothing; one that is 0 leaves the parameters as they were."""
    config = small(name)
    agent, same, still = (
        rljax.make_agent(config, **how)
        for how in ({}, {"loss_fn": LOSSES[name]}, {"loss_fn": functools.partial(nothing, loss=LOSSES[name])})
    )
    state = jax.jit(agent.init)(jax.random.key(0))
    first, second, third = (jax.jit(a.step)(state)[0] for a in (agent, same, still))
    assert_same_state(first.params, second.params)
    assert_same_state(third.params, state.params)
    assert norm(first) != norm(state)
    assert (agent.own, same.own) == ("", f"the loss function {name}_loss")


def nothing(parts: Any, params: Any, batch: Any, loss: Any) -> Any:
    value, metrics = loss(parts, params, batch)
    return 0.0 * value, metrics


@pytest.mark.parametrize("name", sorted(set(TINY) - set(LOSSES)))
def test_the_others_say_so_in_one_line(name: str) -> None:
    with pytest.raises(rljax.ConfigError, match=r"has no single loss to replace, expected one of: impala, ppo, pqn") as error:
        rljax.make_agent(TINY[name], loss_fn=pulled)
    assert "\n" not in str(error.value)


def two(parts, params):  # type: ignore[no-untyped-def]
    return 0.0, {}


def test_a_decorated_loss_has_the_arguments_of_its_decorator() -> None:
    @functools.wraps(two)
    def decorated(parts: Any, params: Any, batch: Any) -> Any:
        return two(parts, params)

    assert rljax.make_agent(rljax.PPOConfig(), loss_fn=decorated)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda parts, params, batch: 0.0, r"returned float, expected \(loss, dictionary of metrics\)"),
        (lambda parts, params, batch: (jnp.zeros(3), {}), r"loss has shape \[3\], expected a scalar"),
        (lambda parts, params, batch: (0.0, {"train/x": batch.value}), r"train/x has shape \[32\], expected a scalar"),
        (1.0, r"loss_fn = 1\.0: expected a function"),
        (
            two,
            r"^loss_fn: two\(parts, params\) takes other arguments \(too many .*: expected a function \(parts, params, batch\)",
        ),
        (functools.partial(two, 1), r"^loss_fn: partial\(params\) takes other arguments"),
    ],
)
def test_a_loss_of_another_form_is_one_line(loss: Any, message: str) -> None:
    with pytest.raises(rljax.ConfigError, match=message):
        rljax.fit(rljax.make_agent(small("ppo"), loss_fn=loss))


def test_target_kl_needs_its_metric() -> None:
    agent = rljax.make_agent(small("ppo", target_kl=0.1), loss_fn=lambda *args: (rljax.ppo_loss(*args)[0], {}))
    with pytest.raises(rljax.ConfigError, match="target_kl: needs the metric 'train/approx_kl'"):
        rljax.fit(agent)


@pytest.mark.slow
def test_a_run_goes_on_with_its_own_loss_only(tmp_path: Path) -> None:
    config, folder = small("ppo"), tmp_path / "run"
    agent = rljax.make_agent(config, loss_fn=pulled)
    rljax.fit(agent, run_dir=folder, callback=lambda step, metrics: True)
    for other in (None, config, rljax.make_agent(config, loss_fn=rljax.ppo_loss)):
        with pytest.raises(
            rljax.ConfigError, match=r"was begun with the loss function pulled, and cannot go on with .*: give it again"
        ):
            rljax.fit(other, resume=folder)
    with pytest.raises(rljax.ConfigError, match="the agent with the loss function pulled has another configuration"):
        rljax.fit(agent, resume=folder, total_timesteps=64 * 8)
    assert_same_state(rljax.fit(agent, resume=folder).state, rljax.fit(agent).state)
    # A fork may change it.
    rljax.fit(config.replace(total_timesteps=64 * 5), fork=folder, run_dir=tmp_path / "fork")
    with pytest.raises(rljax.ConfigError, match="was begun with the algorithm as it is"):
        rljax.fit(rljax.make_agent(config, loss_fn=pulled), resume=tmp_path / "fork")


def halving(config: Any, **how: Any) -> rljax.Agent:
    """An agent whose step halves all parameters at its end."""
    agent = rljax.make_agent(config, **how)

    def halved(state: Any) -> Any:
        state, metrics = agent.step(state)
        return state.replace(params=jax.tree.map(lambda x: x / 2, state.params)), metrics

    return agent._replace(step=halved)


HALVED = "the step halving.<locals>.halved"


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_functions_that_make_agent_did_not_make_are_named(name: str) -> None:
    agent, own = rljax.make_agent(small(name)), halving(small(name))

    def act(*args: Any) -> Any:
        return agent.act(*args)

    assert own_in(agent) == own_in(agent._replace(init=own.step, memory="much")) == ""
    assert own_in(own) == own_in(own._replace(own="")) == HALVED
    assert own_in(own._replace(act=act)).startswith(f"{HALVED} and the act test_functions")
    assert own_in(own._replace(own="half steps")) == "half steps"
    assert own_in(rljax.Agent(agent.init, own.step, agent.act, agent.config)).startswith(HALVED)
    if name == "ppo":
        assert own_in(halving(small(name), loss_fn=pulled)) == f"the loss function pulled and {HALVED}"


def test_nobody_goes_on_without_a_step_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, folder = small("ppo"), tmp_path / "run"
    agent = halving(config)
    state = jax.jit(agent.init)(jax.random.key(0))
    rljax.save(folder, agent, state)
    assert read_info(folder).own == HALVED
    begun = rf"run .* was begun with {HALVED}, and cannot go on with .*: give it again, .*_replace\(step=\.\.\.\)"
    for other in (None, config, rljax.make_agent(config, loss_fn=pulled)):
        for how in ({}, {"total_timesteps": 64 * 8}):
            with pytest.raises(rljax.ConfigError, match=begun):
                rljax.fit(other, resume=folder, **how)
    with pytest.raises(SystemExit):
        main(["train", "--resume", str(folder)])
    assert "cannot go on with the algorithm as it is" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(rljax.ConfigError, match=rf"the agent with {HALVED} has another .* with total_timesteps = 512$") as error:
        rljax.fit(agent, resume=folder, total_timesteps=64 * 8)
    assert "\n" not in str(error.value)
    # Nor is it forgotten by who reads it without that step, and writes it again.
    acts, state = rljax.load(folder)
    with pytest.raises(rljax.ConfigError, match=f"was trained with {HALVED}: load it with that make_agent to train on"):
        acts.step(state)
    assert read_info(rljax.save(tmp_path / "again", acts, state)).own == HALVED
    assert rljax.load(folder, make_agent=halving)[0].step.__qualname__ == "halving.<locals>.halved"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_run_goes_on_with_its_own_step_to_another_budget(tmp_path: Path) -> None:
    config, folder = small("ppo"), tmp_path / "run"
    longer = config.replace(total_timesteps=64 * 6)
    rljax.fit(halving(config), run_dir=folder, callback=lambda step, metrics: step >= 128)
    with pytest.raises(rljax.ConfigError, match=f"was begun with {HALVED}"):
        rljax.fit(resume=folder)
    assert_same_state(rljax.fit(halving(config), resume=folder).state, rljax.fit(halving(config)).state)
    result = rljax.fit(halving(longer), resume=folder)
    assert result.state.iteration == 6
    assert norm(result.state) < 0.3 * norm(rljax.fit(longer).state)
    rljax.fit(halving(config.replace(total_timesteps=64 * 7)), fork=folder, run_dir=tmp_path / "fork")
    assert read_info(tmp_path / "fork").own == HALVED


@pytest.mark.long
def test_sweeps_train_agents_of_ones_own(tmp_path: Path) -> None:
    config, make = small("ppo"), functools.partial(rljax.make_agent, loss_fn=pulled)
    space = {"learning_rate": [1e-3]}
    result = rljax.sweep(config, space, episodes=4, make_agent=make, run_dir=tmp_path / "sweep")
    for cell, value in zip(result.cells, result.train_returns[:, 0], strict=True):
        alone = rljax.fit(make(config.replace(**cell))).metrics["episode/return"]
        assert value == pytest.approx(alone[np.isfinite(alone)][-1], rel=1e-5)
    np.testing.assert_array_equal(rljax.resume_sweep(tmp_path / "sweep", make_agent=make).returns, result.returns)
    with pytest.raises(rljax.ConfigError, match="was begun with the loss function pulled"):
        rljax.resume_sweep(tmp_path / "sweep")
    with pytest.raises(rljax.ConfigError, match="make_agent: returned PPOConfig, expected an Agent"):
        rljax.sweep(config, space, make_agent=lambda c: c)


@pytest.mark.long
def test_tuning_trains_agents_of_ones_own(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    config = small("ppo")
    traced = []

    def make(config: Any) -> rljax.Agent:
        """A step of one's own."""
        agent = rljax.make_agent(config)

        def step(state: Any) -> Any:
            traced.append(config)
            return agent.step(state)

        return agent._replace(step=step)

    how: dict[str, Any] = {"trials": 2, "batch_size": 2}
    result = rljax.tune(config, {"gamma": [0.9, 0.99]}, episodes=2, run_dir=tmp_path / "tune", make_agent=make, **how)
    assert traced
    assert len(result.trials) == 2
    with pytest.raises(rljax.ConfigError, match=r"was begun with the agents of .*make, and cannot go on with the algorithm"):
        rljax.resume_tune(tmp_path / "tune", **how)
    assert rljax.resume_tune(tmp_path / "tune", make_agent=make, **how).value == result.value
