"""The agent contract: an algorithm is a NamedTuple of pure functions, like an optax transformation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.config import Config
from rljax.core.devices import check_platform, laid_out
from rljax.core.errors import ConfigError, shown

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


PolicyAndValue = Callable[[Any, Any], tuple[jax.Array, jax.Array]]
"""`(state, obs [..., *obs_shape]) -> (logits f32 [..., A], value f32 [...])`: what a search asks of positions in a game."""


class Agent(NamedTuple):
    """`init(key) -> state`; `step(state) -> (state, metrics)`, one iteration of collect and update; `act`, the policy.

    `memory` says in a line what a run keeps on the device, where that is much. `report(state)` has metrics that every evaluation
    says besides returns, `eval/...`, where an algorithm knows more of its agent. `policy_and_value` belongs to agents that play
    games: `(state, obs) -> (logits, value)`.
    `own` names what is not the algorithm's (a loss of yours, say): a run folder notes it, so that nobody trains on without it.
    `made` is the agent as `make_agent` returned it: functions that you replace since are your own, too (see `own_in`).
    """

    init: Callable[[jax.Array], Any]
    step: Callable[[Any], tuple[Any, Metrics]]
    act: Act
    config: Any
    memory: str = ""
    report: Callable[[Any], Metrics] | None = None
    policy_and_value: PolicyAndValue | None = None
    own: str = ""
    made: Any = None


FUNCTIONS = ("step", "act", "report", "policy_and_value")
"""Those of an agent that a run goes on with; what `init` does is in the run's state."""


def own_in(agent: Agent) -> str:
    """Name what a user changed in an agent, as a run folder notes it; "" for what `make_agent(config)` returns.

    Functions that replaced those of `make_agent` are listed, unless the user named the change with `own`.
    """
    named = agent.own != getattr(agent.made, "own", "")
    replaced = [name for name in FUNCTIONS if getattr(agent, name) is not getattr(agent.made, name, None)]
    functions = [] if named else [f"the {name} {_name_of(getattr(agent, name))}" for name in replaced]
    return " and ".join([agent.own] * bool(agent.own) + functions)


def _name_of(function: Any) -> str:
    name: str = getattr(function, "__qualname__", type(function).__name__)
    return name


def initial_carry(agent: Agent, state: Any, obs: Any, mask: Any = None) -> Any:
    """The carry that starts an episode of every observation in `obs [..., *obs_shape]`: zeros; None for feed-forward policies."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    carry = jax.eval_shape(lambda s, o, k, m: agent.act(s, o, None, k, True, m)[1], state, obs, key, mask)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), carry)


MakeAgent = Callable[[Any], Agent]
"""From a configuration to its agent: `make_agent`, or a function of yours."""

_MAKERS: dict[type[Config], Callable[..., Agent]] = {}
_WITH_LOSS: set[type[Config]] = set()


def register_agent(config_class: type[Config], make: Callable[..., Agent], *, takes_loss: bool = False) -> None:
    """Make `make_agent` build agents of `config_class` with `make(config)`, or with `make(config, loss_fn)` too."""
    _MAKERS[config_class] = make
    if takes_loss:
        _WITH_LOSS.add(config_class)


def make_agent(config: Config, *, loss_fn: Callable[..., tuple[jax.Array, Metrics]] | None = None) -> Agent:
    """Build the agent that a configuration describes: `Agent(init, step, act, config)`.

    Args:
        config: of any algorithm.
        loss_fn: in place of the algorithm's loss, for PPO, IMPALA and PQN: `(parts, params, batch) -> (loss, metrics)`, as
            `ppo_loss`, `impala_loss` and `pqn_loss` are. Metrics are f32 scalars.

    Raises:
        ConfigError: the configuration does not fit the environment or the network, or its algorithm takes no loss.
    """
    if type(config) not in _MAKERS:
        raise ConfigError(f"{shown(config)} is not a configuration: expected for example rljax.load_config('cartpole_ppo')")
    check_platform()
    for path, value in jax.tree_util.tree_flatten_with_path(config)[0]:
        if np.ndim(value):
            name = jax.tree_util.keystr(path).removeprefix(".")
            raise ConfigError(f"{name}: an agent has one value, got {np.shape(value)}; jax.vmap over make_train trains several")
    if loss_fn is None:
        agent = _MAKERS[type(config)](config)
    else:
        _check_loss(config, loss_fn)
        name = _name_of(loss_fn)
        agent = _MAKERS[type(config)](config, _checked_loss(loss_fn, name))._replace(own=f"the loss {name}")
    if config.num_devices > 1:
        init, step = (laid_out(function, config.num_devices, config.num_envs) for function in (agent.init, agent.step))
        agent = agent._replace(init=init, step=step)
    return agent._replace(made=agent)


def _check_loss(config: Config, loss_fn: Any) -> None:
    if type(config) not in _WITH_LOSS:
        others = ", ".join(sorted(config_class.algorithm for config_class in _WITH_LOSS))
        raise ConfigError(
            f"loss_fn: {config.algorithm} has no single loss to replace, expected one of: {others}; "
            "a step of your own fits every algorithm: make_agent(config)._replace(step=...)"
        )
    if not callable(loss_fn):
        raise ConfigError(f"loss_fn = {loss_fn!r}: expected a function (parts, params, batch) -> (loss, metrics)")


def _checked_loss(loss_fn: Callable[..., Any], name: str) -> Callable[..., tuple[jax.Array, Metrics]]:
    """The loss, with one line for a result of another form."""

    def checked(*args: Any) -> tuple[jax.Array, Metrics]:
        result = loss_fn(*args)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise ConfigError(f"the loss {name}: returned {type(result).__name__}, expected (loss, dictionary of metrics)")
        for what, x in [("loss", result[0]), *result[1].items()]:
            if jnp.shape(x) != ():
                raise ConfigError(f"the loss {name}: {what} has shape {list(jnp.shape(x))}, expected a scalar")
        return result[0], {metric: jnp.asarray(x, jnp.float32) for metric, x in result[1].items()}

    return checked


def own_of(config: Config, make: MakeAgent) -> str:
    """Name what a user changed in the agents that `make` makes; "" for `make_agent`.

    Raises:
        ConfigError: it makes no agents.
    """
    agent = make(config)
    if not isinstance(agent, Agent):
        raise ConfigError(f"make_agent: returned {type(agent).__name__}, expected an Agent, such as rljax.make_agent(config)")
    if agent.own:
        return own_in(agent)
    return "" if make is make_agent else f"the agents of {_name_of(make)}"


def check_own(what: str, there: str, here: str) -> None:
    """Refuse to go on with what was begun by an agent that has something of its own, and is not here.

    Args:
        what: goes on: a run, a sweep, a study.
        there: `own_in` of the agent that began it.
        here: that of the agent at hand.
    """
    if there != here:
        was, now = (own or "the algorithm as it is" for own in (there, here))
        again = "rljax.make_agent(config, loss_fn=...) or rljax.make_agent(config)._replace(step=...)"
        how = f"give it again, as in {again}" if there else "leave it out, start anew, or fork a run"
        raise ConfigError(f"{what} was begun with {was}, and cannot go on with {now}: {how}")
