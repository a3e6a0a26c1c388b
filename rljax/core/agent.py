"""The agent contract: an algorithm is a NamedTuple of pure functions, like an optax transformation."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.config import ALGORITHMS, Config
from rljax.core.devices import check_platform, shard_state
from rljax.core.environments.environment import same_structure
from rljax.core.errors import ConfigError, RljaxError, shown

Metrics = dict[str, jax.Array]
"""Flat dictionary of the f32 scalars of one iteration; `make_train` stacks them over iterations."""


def stack_metrics(metrics: Metrics) -> jax.Array:
    """Return all metrics as one vector, in the order of their names: stacking each in a loop would take a kernel for each."""
    return jnp.stack([metrics[name] for name in sorted(metrics)])


class Act(Protocol):
    """Policy: `act(state, obs, carry, key, deterministic=False, mask=None) -> (action, carry)`.

    `obs` may have any leading batch dimensions; `mask` (bool, from the environment's `action_mask`) has the same ones. Without
    a mask every action is legal. `carry` is the memory of a recurrent policy, a tree of arrays with the same leading dimensions,
    and None for a feed-forward policy. To start an episode, pass None or zeros: when single episodes of a batch end, set their
    part of the carry to 0.
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
"""Evaluation of game positions for a search: `(state, obs [..., *obs_shape]) -> (logits f32 [..., A], value f32 [...])`; the
value is in the unit of the game's rewards."""


class Halves(NamedTuple):
    """The two halves of a step, neither of which needs the other's result, so that they can run at the same time.

    Attributes:
        init: `init(key) -> state` without the experience that the first update learns from.
        collect: `collect(state) -> state` with new experience.
        update: `update(state) -> (state, metrics)`, which learns from the experience that is there.
        join: `join(collected, updated) -> state`.
    """

    init: Callable[[jax.Array], Any]
    collect: Callable[[Any], Any]
    update: Callable[[Any], tuple[Any, Metrics]]
    join: Callable[[Any, Any], Any]

    def step(self, state: Any) -> tuple[Any, Metrics]:
        """Take both, as `Agent.step`."""
        collected = self.collect(state)
        updated, metrics = self.update(state)
        return self.join(collected, updated), metrics


class Agent(NamedTuple):
    """An algorithm as pure functions, with its configuration.

    Attributes:
        init: `init(key) -> state`, a `rljax.core.state.State` or a flax PyTreeNode with at least `params`, `eval_key` and
            `iteration`.
        step: `step(state) -> (state, metrics)`, one iteration: it collects `config.steps_per_iteration` environment steps, learns
            from them, and adds 1 to `iteration`. Metrics are f32 scalars by name, at least one. Progress, curves and the choice
            of the best seed read `episode/return` (NaN where no episode ended) if it is among them. One of `train/...` that is
            not finite stops the run.
        act: the policy, `act(state, obs, carry, key, deterministic=False, mask=None) -> (action, carry)`, for observations with
            any leading dimensions; without memory, `carry` is passed on as it is. Random numbers are drawn by
            `rljax.core.keys.draw`, so that ONNX and NumPy, which have no generator of JAX's, get them as arguments in an export.
        config: the algorithm's configuration.
        memory: one line about large arrays that a run keeps on the device, else "".
        report: `report(state)`, further metrics of every evaluation besides returns, logged as `eval/...`; None without any.
        policy_and_value: evaluation of positions, for agents that play games; else None.
        own: names of the parts that are not the algorithm's (a loss of yours, say). A run folder notes it, so that nobody
            resumes the run without them.
        data: function that returns the digest of the dataset that the agent learns from; None without one. A run folder notes it,
            so that nobody resumes the run with other data.
        halves: the two halves of `step`, which `fit` then runs at the same time; None if one needs the other's result.
        exploitability: `exploitability(state)`, f32 [], of games that are written out as a tree: computed every
            `config.exploitability_every` steps and at the end, and logged as `league/exploitability`; None without any.
        made: the agent as `make_agent` returned it: functions that you replaced since are your own, too (see `own_in`).
    """

    init: Callable[[jax.Array], Any]
    step: Callable[[Any], tuple[Any, Metrics]]
    act: Act
    config: Any
    memory: str = ""
    report: Callable[[Any], Metrics] | None = None
    policy_and_value: PolicyAndValue | None = None
    own: str = ""
    data: Callable[[], str] | None = None
    halves: Halves | None = None
    exploitability: Callable[[Any], jax.Array] | None = None
    made: Any = None


FUNCTIONS = ("step", "act", "report", "policy_and_value", "exploitability")
"""Functions of an agent that a resumed run uses; `init` has done its work by then."""


def own_in(agent: Agent) -> str:
    """Name the parts that a user changed in an agent, as a run folder notes them; "" for what `make_agent(config)` returns.

    Functions that replaced those of `make_agent` are listed, unless the user named the change with `own`.
    """
    named = agent.own != getattr(agent.made, "own", "")
    replaced = [name for name in FUNCTIONS if getattr(agent, name) is not getattr(agent.made, name, None)]
    functions = [] if named else [f"the {name} {_name_of(getattr(agent, name))}" for name in replaced]
    return " and ".join([agent.own] * bool(agent.own) + functions)


def data_of(agent: Agent) -> str:
    """Return the digest of the dataset that an agent learns from, "" without one.

    Raises:
        ConfigError: the dataset cannot be read.
    """
    return "" if agent.data is None else agent.data()


def _name_of(function: Any) -> str:
    name: str = getattr(function, "__qualname__", type(function).__name__)
    return name


def check_state(agent: Agent, state: Any) -> None:
    """Refuse a batch of states, and the state of another agent.

    Raises:
        ConfigError: it is not one state of this agent.
    """
    expected = jax.eval_shape(agent.init, jax.random.key(0))
    if not same_structure(state, expected) or jax.tree.map(jnp.shape, state) != jax.tree.map(jnp.shape, expected):
        raise ConfigError(
            "the state does not fit the agent: expected one state of agent.init or agent.step "
            "(take one state of a batch: jax.tree.map(lambda x: x[0], state))"
        )


def check_agent(agent: object) -> None:
    """Raise a ConfigError unless this is an agent: a configuration or a state, say, may be given in its place."""
    if not isinstance(agent, Agent):
        raise ConfigError(f"agent: expected an agent, as make_agent(config) returns it, got {type(agent).__name__}")


@contextlib.contextmanager
def state_explained(agent: Agent, state: Any) -> Iterator[None]:
    """Check the state if an error is raised: not before, which would trace the beginning of a run each time.

    Raises:
        ConfigError: an error was raised, and the state is not one of this agent.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, RljaxError):
            check_state(agent, state)
        raise


def initial_carry(agent: Agent, state: Any, obs: Any, mask: Any = None) -> Any:
    """Return the carry at the start of an episode for each of `obs [..., *obs_shape]`: zeros; None for feed-forward policies."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    carry = jax.eval_shape(lambda s, o, k, m: agent.act(s, o, None, k, True, m)[1], state, obs, key, mask)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), carry)


MakeAgent = Callable[[Any], Agent]
"""Function from a configuration to its agent: `make_agent`, or one of yours."""

_MAKERS: dict[type[Config], Callable[..., Agent]] = {}
_WITH_LOSS: set[type[Config]] = set()


def register_agent(config_class: type[Config], make: Callable[..., Agent], *, takes_loss: bool = False) -> None:
    """Let `make_agent` build agents of a configuration's class, and with it `make_train`, `fit` and every command.

    Args:
        config_class: class under `rljax.core.config.algorithm`.
        make: `make(config) -> Agent`; a `ConfigError` that it raises says what does not fit the environment.
        takes_loss: whether also `make(config, loss_fn)` is possible, for `make_agent(config, loss_fn=...)`.
    """
    _MAKERS[config_class] = make
    if takes_loss:
        _WITH_LOSS.add(config_class)


def make_agent(config: Config, *, loss_fn: Callable[..., tuple[jax.Array, Metrics]] | None = None) -> Agent:
    """Build the agent that a configuration describes: `Agent(init, step, act, config)`.

    Args:
        config: configuration of any algorithm.
        loss_fn: replacement for the loss of PPO, IMPALA or PQN: `(parts, params, batch) -> (loss, metrics)`, like `ppo_loss`,
            `impala_loss` and `pqn_loss`. Metrics are f32 scalars. PPO standardises the advantages of a minibatch before, unless
            `normalize_advantages` is False.

    Raises:
        ConfigError: the configuration does not fit the environment or the network, or its algorithm takes no loss.
    """
    if isinstance(config, Config) and type(config) not in _MAKERS:
        name = type(config).__name__
        raise ConfigError(f"{name} has no agent: register_agent({name}, make) lets make_agent build it by make(config)")
    if type(config) not in _MAKERS:
        raise ConfigError(f"{shown(config)} is not a configuration: expected for example rljax.load_config('cartpole_ppo')")
    if config.num_iterations < 1:
        raise ConfigError(
            f"total_timesteps = {config.total_timesteps}: expected at least {config.steps_per_iteration} steps, one iteration"
        )
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
        agent = _MAKERS[type(config)](config, _checking_loss(loss_fn, name))._replace(own=f"the loss function {name}")
    check_act_arguments(agent.act)
    if config.average_decay is not None:
        agent = with_average(agent, config.average_decay)
    if config.num_devices > 1:
        init, step = (shard_state(function, config.num_devices, config.num_envs) for function in (agent.init, agent.step))
        agent = agent._replace(init=init, step=step)
    agent = _checking_carry(agent)
    return agent._replace(made=agent)


def _checking_carry(agent: Agent) -> Agent:
    """Return the agent, whose `act` and `step` raise a ConfigError where a carry is not one for such observations."""

    def step(state: Any) -> tuple[Any, Metrics]:
        try:
            return agent.step(state)
        except Exception as error:
            if not isinstance(error, RljaxError):
                _check_own_carry(agent, state)
            raise

    def act(
        state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[Any, Any]:
        try:
            action, after = act_result(agent.act(state, obs, carry, key, deterministic, mask))
        except Exception as error:
            if carry is not None and not isinstance(error, RljaxError):
                # Only now, since to know the shapes is to trace the policy again.
                _check_carry(agent, state, obs, carry, key, mask)
            raise
        if after is not None and carry is not None and _shapes(after) != _shapes(carry):
            _check_carry(agent, state, obs, carry, key, mask)
        return action, after

    return agent._replace(act=act, step=step)


def _check_own_carry(agent: Agent, state: Any) -> None:
    """Raise a ConfigError if the carry in a state is not like that of a state from `agent.init`."""
    try:
        wanted, carry = jax.eval_shape(agent.init, jax.eval_shape(lambda: jax.random.key(0))).carry, state.carry
    except Exception:  # the carry is not the reason
        return
    if not same_structure(wanted, carry) or _shapes(wanted) != _shapes(carry):
        expected, found = (jax.tree.map(jnp.shape, x) for x in (wanted, carry))
        raise ConfigError(f"state.carry: has the shape {found}, expected {expected}, as in a state from init") from None


def _shapes(tree: Any) -> list[tuple[int, ...]]:
    return [jnp.shape(x) for x in jax.tree.leaves(tree)]


def _check_carry(agent: Agent, state: Any, obs: Any, carry: Any, key: jax.Array, mask: jax.Array | None) -> None:
    """Raise a ConfigError if a carry is not like those of episodes that begin with these observations."""
    try:
        wanted = jax.eval_shape(lambda s, o, k, m: agent.act(s, o, None, k, True, m)[1], state, obs, key, mask)
    except Exception:  # the carry is not the reason
        return
    if not same_structure(wanted, carry) or _shapes(wanted) != _shapes(carry):
        expected, found = (jax.tree.map(jnp.shape, x) for x in (wanted, carry))
        raise ConfigError(
            f"carry: has the shape {found}, expected {expected} for these observations, or None at the start"
        ) from None


def with_average(agent: Agent, decay: float | jax.Array) -> Agent:
    """Return the agent with a moving average of its parameters, which acts and evaluates positions in their place.

    Averages of iterates go back to Polyak and Juditsky, "Acceleration of stochastic approximation by averaging" (1992). The last
    parameters are as good as the last few gradient steps; their average over some iterations is steadier. Training
    collects with the last parameters, and unless its loss has the average as a magnet (`magnet_coef`), what it learns is the same
    with an average and without.

    Args:
        agent: an agent whose states are `rljax.core.state.State`.
        decay: share of the average that is left after an iteration: `average = decay * average + (1 - decay) * params`.

    Raises:
        ConfigError: the states have no field `average_params`.
    """
    if not hasattr(jax.eval_shape(agent.init, jax.eval_shape(lambda: jax.random.key(0))), "average_params"):
        raise ConfigError(
            f"average_decay: the states of {agent.config.algorithm} have no field average_params; derive them from "
            "rljax.core.state.State, or leave average_decay = none"
        )
    positions, halves = agent.policy_and_value, agent.halves

    def begun(init: Callable[[jax.Array], Any]) -> Callable[[jax.Array], Any]:
        def with_initial(key: jax.Array) -> Any:
            state = init(key)
            return state.replace(average_params=jax.tree.map(jnp.copy, state.params))

        return with_initial

    def moved(step: Callable[[Any], tuple[Any, Metrics]]) -> Callable[[Any], tuple[Any, Metrics]]:
        def with_next(state: Any) -> tuple[Any, Metrics]:
            after, metrics = step(state)
            # Of the state after the step, which may have begun the average of a player anew.
            average = jax.tree.map(lambda a, p: decay * a + (1.0 - decay) * p, after.average_params, after.params)
            return after.replace(average_params=average), metrics

        return with_next

    def act(
        state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[Any, Any]:
        return agent.act(averaged(state), obs, carry, key, deterministic, mask)

    def policy_and_value(state: Any, obs: Any) -> tuple[jax.Array, jax.Array]:
        assert positions is not None
        return positions(averaged(state), obs)

    return agent._replace(
        init=begun(agent.init),
        step=moved(agent.step),
        act=act,
        policy_and_value=None if positions is None else policy_and_value,
        halves=None if halves is None else halves._replace(init=begun(halves.init), update=moved(halves.update)),
    )


def averaged(state: Any) -> Any:
    """Return the state with the average as its parameters; a state of a loop of the user's own may have none."""
    return state if state.average_params is None else state.replace(params=state.average_params)


def check_average(agent: Agent) -> None:
    """Refuse a step of the user's own with `average_decay`: the average would stay that of untrained parameters.

    Raises:
        ConfigError: says what to do.
    """
    if agent.config.average_decay is not None and agent.made is not None and agent.step is not agent.made.step:
        raise ConfigError(
            f"average_decay = {agent.config.average_decay}: the agent's step was replaced, and nothing else moves the average; "
            "set average_decay = none, and wrap the agent by rljax.core.agent.with_average where an average is wanted"
        )


def _check_loss(config: Config, loss_fn: Any) -> None:
    if type(config) not in _WITH_LOSS:
        others = ", ".join(sorted(name for name, config_class in ALGORITHMS.items() if config_class in _WITH_LOSS))
        raise ConfigError(
            f"loss_fn: {config.algorithm} has no single loss to replace, expected one of: {others}; "
            "a step of your own fits every algorithm: make_agent(config)._replace(step=...)"
        )
    if not callable(loss_fn):
        raise ConfigError(f"loss_fn = {loss_fn!r}: expected a function (parts, params, batch) -> (loss, metrics)")
    _check_arguments("loss_fn", loss_fn, ("parts", "params", "batch"), "(parts, params, batch) -> (loss, metrics)")


def check_act_arguments(act: Any) -> None:
    """Refuse a policy that does not take the arguments of `Act`.

    Raises:
        ConfigError: says what it takes and what is expected.
    """
    expected = "(state, obs, carry, key, deterministic=False, mask=None) -> (action, carry)"
    if not callable(act):
        raise ConfigError(f"the agent's act: is {shown(act)}, expected a function {expected}")
    _check_arguments("the agent's act", act, ("state", "obs", "carry", "key", "deterministic", "mask"), expected)


def act_result(result: Any) -> tuple[Any, Any]:
    """Return what a policy returned.

    Raises:
        ConfigError: it is no pair.
    """
    if not (isinstance(result, (tuple, list)) and len(result) == 2):
        what = f"{len(result)} values" if isinstance(result, (tuple, list)) else "one value"
        raise ConfigError(f"the agent's act: returned {what}, expected (action, carry); without memory, carry is passed on")
    return result[0], result[1]


def _check_arguments(what: str, function: Any, arguments: tuple[str, ...], expected: str) -> None:
    """Refuse a function that cannot be called with these positional arguments."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # a decorated function may take others than the one inside
    except (TypeError, ValueError):  # of a function in C it may not be known
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"{what}: {_name_of(function)}{signature} takes other arguments ({error}): expected a function {expected}"
        ) from None


def _checking_loss(loss_fn: Callable[..., Any], name: str) -> Callable[..., tuple[jax.Array, Metrics]]:
    """Return the loss with a check of the form of its result, so that an error is one clear line."""

    def checked(*args: Any) -> tuple[jax.Array, Metrics]:
        result = loss_fn(*args)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise ConfigError(f"the loss {name}: returned {type(result).__name__}, expected (loss, dictionary of metrics)")
        for what, x in [("loss", result[0]), *result[1].items()]:
            if jnp.shape(x) != ():
                raise ConfigError(f"the loss {name}: {what} has shape {list(jnp.shape(x))}, expected a scalar")
        return result[0], {metric: jnp.asarray(x, jnp.float32) for metric, x in result[1].items()}

    return checked


def read_run(path: str, config: Config) -> Any:
    """Return `Run(config, state, step)` of a saved run, or one of its checkpoints; of several seeds the best one. Where it was
    made with an object as its environment or network, that of `config` is taken.

    Raises:
        ConfigError: there is no such run, or it cannot be read.
    """
    import rljax  # Files are a matter of `rljax.run`, which algorithms do not know.

    return rljax.load_run(path, seed_index="best", objects=config)


def own_of(config: Config, make: MakeAgent) -> str:
    """Name the parts that a user changed in the agents that `make` returns; "" for `make_agent`.

    Raises:
        ConfigError: `make` returns no agent.
    """
    agent = make(config)
    if not isinstance(agent, Agent):
        raise ConfigError(f"make_agent: returned {type(agent).__name__}, expected an Agent, such as rljax.make_agent(config)")
    if agent.own:
        return own_in(agent)
    return "" if make is make_agent else f"the agents of {_name_of(make)}"


def check_own(what: str, there: str, here: str) -> None:
    """Refuse to resume with an agent whose user-made parts differ from those of the agent that began.

    Args:
        what: name of what is resumed: a run, a sweep, a study.
        there: `own_in` of the agent that began it.
        here: `own_in` of the agent at hand.
    """
    if there != here:
        was, now = (own or "the algorithm as it is" for own in (there, here))
        again = "rljax.make_agent(config, loss_fn=...) or rljax.make_agent(config)._replace(step=...)"
        how = f"give it again, as in {again}" if there else "leave it out, start anew, or fork a run"
        raise ConfigError(f"{what} was begun with {was}, and cannot go on with {now}: {how}")
