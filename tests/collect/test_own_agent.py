"""Functions of an agent of one's own that break the contract are one line, before anything compiles."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import rljax
from rljax.collect import own_agent
from rljax.core.agent import Agent, register_agent
from rljax.core.config import ALGORITHMS, Config, algorithm
from tests.run.tiny_runs import TINY

CONFIG = TINY["ppo"].replace(eval_every=None)


def no_mask(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False) -> Any:
    return jnp.zeros(len(obs), jnp.int32), carry


def no_carry(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False, mask: Any = None) -> Any:
    return jnp.zeros(len(obs), jnp.int32)


def real(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False, mask: Any = None) -> Any:
    return jnp.zeros(len(obs)), carry


def single(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False, mask: Any = None) -> Any:
    return jnp.int32(0), carry


def named(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False, mask: Any = None) -> Any:
    return {"action": jnp.zeros(len(obs), jnp.int32)}, carry


def whole(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False, mask: Any = None) -> Any:
    return jnp.zeros(len(obs), jnp.int8), carry


def of_four(state: Any, obs: Any, carry: Any, key: Any, deterministic: bool = False, mask: Any = None) -> Any:
    return obs.reshape(4, 4)[:, 0].astype(jnp.int32), carry


ACTS = [
    (no_mask, "no_mask(state: 'Any', obs: 'Any', carry: 'Any', key: 'Any', deterministic: 'bool' = False) -> 'Any' takes other "
     "arguments (too many positional arguments): expected a function (state, obs, carry, key, deterministic=False, mask=None)"),
    (no_carry, "returned one value, expected (action, carry)"),
    (real, "returned float32[3] as its action, expected int32[3] for 3 observations"),
    (single, "returned int32[] as its action, expected int32[3] for 3 observations"),
    (named, "returned a dictionary with the keys ['action'] as its action, expected int32[3] for 3 observations"),
    (of_four, "failed for 3 observations (TypeError: "),
    (None, "is None, expected a function (state, obs, carry, key, deterministic=False, mask=None) -> (action, carry)"),
]  # fmt: skip


@pytest.mark.parametrize(("act", "message"), ACTS)
def test_an_act_that_breaks_the_contract_is_one_line(act: Any, message: str) -> None:
    agent = rljax.make_agent(CONFIG)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    own, said = agent._replace(act=act), re.escape(f"the agent's act: {message}")
    for use in (
        lambda: rljax.make_train(own),
        lambda: rljax.fit(own),
        lambda: jax.eval_shape(lambda state: rljax.evaluate(own, state, jax.random.key(0), 2), state),
    ):
        with pytest.raises(rljax.ConfigError, match=f"^{said}"):
            use()


@algorithm("still")
class StillConfig(Config):
    """PPO with a policy of the test's."""

    steps_per_iteration = CONFIG.steps_per_iteration


del ALGORITHMS["still"]  # other tests list what there is


@pytest.mark.parametrize(("act", "message"), ACTS)
def test_so_is_that_of_an_algorithm_of_ones_own(act: Any, message: str) -> None:
    agent = rljax.make_agent(CONFIG)
    register_agent(StillConfig, lambda config: Agent(agent.init, agent.step, act, config))
    with pytest.raises(rljax.ConfigError, match=re.escape(f"the agent's act: {message}")):
        rljax.make_train(StillConfig(env="CartPole-v1"))


def test_an_act_that_keeps_the_contract_is_accepted() -> None:
    rljax.make_train(rljax.make_agent(CONFIG)._replace(act=whole))


def test_policies_of_rljax_are_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: Any) -> Any:
        raise AssertionError(config)

    monkeypatch.setattr(own_agent, "make_evaluation_env", fail)
    rljax.make_train(CONFIG)


def halved(state: Any) -> Any:
    return state.replace(params=jax.tree.map(lambda x: x.astype(jnp.bfloat16), state.params))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (halved, "a state whose params['params']['network']['actor_0']['bias'] is bfloat16[16], no longer float32[16]"),
        (lambda state: state.replace(carry={"x": jnp.zeros(3)}), "a state with carry['x'], which was not there"),
        (lambda state: state.replace(params={}), "a state without params['params']['network']['actor_0']['bias'], which is "),
        (lambda state: state.replace(iteration=0.0), "a state whose iteration is float32[], no longer int32[]"),
        (lambda state: {"params": state.params}, "a dictionary with the keys ['params'] as its state, where it was a PPOState"),
    ],
)
def test_a_step_that_changes_what_the_state_is_made_of_is_one_line(change: Callable[[Any], Any], message: str) -> None:
    agent = rljax.make_agent(CONFIG)
    own = agent._replace(step=lambda state: (change(state), {"train/x": 0.0}))
    said = re.escape(f"the agent's step: returned {message}")
    with pytest.raises(rljax.ConfigError, match=f"^{said}.*; expected the structure, shapes and dtypes that init gave it"):
        jax.eval_shape(rljax.make_train(own), jax.random.key(0))
    with pytest.raises(rljax.ConfigError, match=f"^{said}"):
        rljax.fit(own, seeds=2)


def test_a_number_of_python_in_place_of_an_array_is_accepted() -> None:
    agent = rljax.make_agent(CONFIG)
    own = agent._replace(step=lambda state: (state.replace(iteration=3), {"train/x": 0.0}))
    jax.eval_shape(rljax.make_train(own), jax.random.key(0))
