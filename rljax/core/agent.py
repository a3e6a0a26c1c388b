"""The agent contract: an algorithm is a NamedTuple of pure functions, like an optax transformation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rljax.core.config import Config
from rljax.core.devices import laid_out
from rljax.core.errors import ConfigError

Metrics = dict[str, jax.Array]
"""Flat dictionary of f32 scalars, one iteration's; stacked over iterations by make_train."""


def stack_metrics(metrics: Metrics) -> jax.Array:
    """One vector of all metrics in the order of their names: a loop that stacks each on its own has a kernel for each."""
    return jnp.stack([metrics[name] for name in sorted(metrics)])


class Act(Protocol):
    """`act(state, obs, carry, key, deterministic=False, mask=None) -> (action, carry)`.

    `obs` may have any leading batch dimensions, and `mask` (bool, from the environment's `action_mask`) the same ones.
    Without it every action counts as legal. `carry` is what a policy remembers, a tree of arrays with those dimensions first:
    None for feed-forward policies. None starts an episode of any policy, and so do zeros: where single episodes of a batch end,
    set their part of the carry to 0.
    """

    def __call__(
        self,
        state: Any,
        obs: Any,
        carry: Any,
        key: jax.Array,
        deterministic: bool = False,
        mask: jax.Array | None = None,
    ) -> tuple[Any, Any]: ...


Judge = Callable[[Any, Any], tuple[jax.Array, jax.Array]]
"""`(state, obs [..., *obs_shape]) -> (logits f32 [..., A], value f32 [...])`: what a search asks of positions in a game."""


class Agent(NamedTuple):
    """`init(key) -> state`; `step(state) -> (state, metrics)`, one iteration of collect and update; `act`, the policy.

    `memory` says in a line what a run keeps on the device, where that is much. `report(state)` has metrics that every evaluation
    says besides returns, `eval/...`, where an algorithm knows more of its agent. `judge` is that of agents that play games.
    """

    init: Callable[[jax.Array], Any]
    step: Callable[[Any], tuple[Any, Metrics]]
    act: Act
    config: Any
    memory: str = ""
    report: Callable[[Any], Metrics] | None = None
    judge: Judge | None = None


def initial_carry(agent: Agent, state: Any, obs: Any, mask: Any = None) -> Any:
    """The carry that starts an episode of every observation in `obs [..., *obs_shape]`: zeros; None for feed-forward policies."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    carry = jax.eval_shape(lambda s, o, k, m: agent.act(s, o, None, k, True, m)[1], state, obs, key, mask)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), carry)


_MAKERS: dict[type[Config], Callable[[Any], Agent]] = {}


def register_agent(config_class: type[Config], make: Callable[[Any], Agent]) -> None:
    """Make `make_agent` build agents of `config_class` with `make`."""
    _MAKERS[config_class] = make


def make_agent(config: Config) -> Agent:
    """Build the agent that a configuration describes: `Agent(init, step, act, config)`.

    Raises:
        ConfigError: the configuration does not fit the environment or the network.
    """
    if type(config) not in _MAKERS:
        raise ConfigError(f"{config!r} is not a configuration: expected for example rljax.load_config('cartpole_ppo')")
    agent = _MAKERS[type(config)](config)
    if config.num_devices == 1:
        return agent
    init, step = (laid_out(function, config.num_devices, config.num_envs) for function in (agent.init, agent.step))
    return agent._replace(init=init, step=step)
