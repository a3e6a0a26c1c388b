"""A policy's step as a function of arrays, with its memory and its random numbers as arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import export as jax_export

from rljax.core.agent import Agent
from rljax.core.contract import is_array
from rljax.core.errors import ConfigError, shortened
from rljax.core.keys import draws_from
from rljax.nn.outputs.actions import distributions_noted
from rljax.run.export.signature import Signature, leaf_names

DISTRIBUTIONS = {
    jax.random.uniform: "uniform",  # in [0, 1)
    jax.random.normal: "normal",  # standard
    jax.random.gumbel: "gumbel",  # standard
    jax.random.bits: "bits",  # each of the 32 bits of an unsigned integer
}
"""Names of the distributions that policies draw their random numbers from."""


class Draw(NamedTuple):
    """Random numbers that one step takes for each observation: their distribution, shape and dtype."""

    distribution: str
    shape: tuple[int, ...]
    dtype: Any


class PolicyStep(NamedTuple):
    """The step of a policy, and what it takes and returns besides observation and mask.

    Attributes:
        agent: the agent.
        deterministic: whether it takes the most likely action.
        signature: shapes of observation and mask.
        carry: memory of one episode as a tree of `jax.ShapeDtypeStruct`, in plain containers; None without memory.
        draws: random numbers that it takes.
        structure: the carry as the agent has it.
        probs: whether the step also returns the probabilities of the actions.
    """

    agent: Agent
    deterministic: bool
    signature: Signature
    carry: Any
    draws: tuple[Draw, ...]
    structure: Any
    probs: bool = False

    @property
    def result_names(self) -> list[str]:
        """Names of the results, in their order; the carry is the last one."""
        return ["action", *["probs"] * self.probs, *["next_carry"] * (self.carry is not None)]

    def inputs(self, *, key: bool) -> dict[str, Any]:
        """Return the arguments by name, with a leading symbolic batch axis `b`: random numbers are a `key`, or else `noise`."""
        noise = [jax.ShapeDtypeStruct(draw.shape, draw.dtype) for draw in self.draws]
        arguments = {"obs": self.signature.obs}
        if self.carry is not None:
            arguments["carry"] = self.carry
        if not key and noise:
            arguments["noise"] = noise
        if self.signature.mask is not None:
            arguments["mask"] = self.signature.mask
        whole = with_batch(arguments)
        if key and (self.draws or not self.deterministic):
            whole["key"] = jax.ShapeDtypeStruct((2,), jnp.uint32)
        order = ("obs", "carry", "key", "noise", "mask")
        return {name: whole[name] for name in order if name in whole}

    def input_names(self) -> list[str]:
        """Return names for the arrays of all arguments, with noise: `obs`, `carry.hidden`, `noise.0`, ...

        Raises:
            ConfigError: two arrays would have the same name.
        """
        names = [leaf for name, tree in self.inputs(key=False).items() for leaf in leaf_names(name, tree)]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"{shortened(name)}: two parts have this name, expected names that differ")
        return names

    def keyed(self, state: Any) -> Callable[..., Any]:
        """Return the step as a function of the arguments of `inputs(key=True)`: an action, or with memory `(action, carry)`."""

        def step(*arguments: Any) -> Any:
            given = dict(zip(self.inputs(key=True), arguments, strict=True))
            # Take raw bits for a fixed generator: for a typed key the reader would need more than jax's defaults.
            bits = given.get("key")
            key = jax.random.key(0) if bits is None else jax.random.wrap_key_data(bits, impl="threefry2x32")
            return self._act(state, given, key)

        return step

    def noised(self, state: Any, key: jax.Array, arguments: list[Any]) -> Any:
        """Take the step with the arguments of `inputs(key=False)`; `key` is for random numbers that are not among them."""
        given = dict(zip(self.inputs(key=False), arguments, strict=True))
        left = list(given.get("noise", []))

        def next_noise(_: Callable[..., jax.Array], shape: tuple[int, ...]) -> jax.Array:
            if not left or left[0].shape != shape:
                raise ConfigError(f"it draws random numbers of shape {list(shape)} for a batch, but not for single observations")
            return left.pop(0)

        with draws_from(next_noise):
            return self._act(state, given, key)

    def _act(self, state: Any, given: dict[str, Any], key: jax.Array) -> Any:
        carry = None if self.carry is None else from_plain(given["carry"], self.structure)
        noting: contextlib.AbstractContextManager[list[Any]] = contextlib.nullcontext([])
        if self.probs:
            noting = distributions_noted()
        with noting as noted:
            action, carry = self.agent.act(state, given["obs"], carry, key, self.deterministic, given.get("mask"))
        results = [action]
        if self.probs:
            results.append(noted[-1].probs)
        if self.carry is not None:
            results.append(to_plain(carry))
        return results[0] if len(results) == 1 else tuple(results)


def with_probs(step: PolicyStep, state: Any) -> PolicyStep:
    """Return the step with the probabilities of its actions, f32 `[b, A]`, as a further result, 0 for illegal ones.

    If the policy has none, as of Q-learners and of continuous actions, it is the step as it was.
    """

    def probs(arguments: list[Any]) -> list[jax.Array]:
        with distributions_noted() as noted:
            step.noised(state, jax.random.key(0), arguments)
        return [distribution.probs for distribution in noted[-1:] if hasattr(distribution, "probs")]

    return step._replace(probs=bool(jax.eval_shape(probs, list(step.inputs(key=False).values()))))


def read_step(agent: Agent, state: Any, signature: Signature, deterministic: bool) -> PolicyStep:
    """Read what the policy's step takes from tracing it once.

    Raises:
        ConfigError: its random numbers are of another distribution than `DISTRIBUTIONS`, or its carry changes its shape.
    """
    draws: list[Draw] = []

    def record(sampler: Callable[..., jax.Array], shape: tuple[int, ...]) -> jax.Array:
        if sampler not in DISTRIBUTIONS:
            name = getattr(sampler, "__name__", str(sampler))
            raise ConfigError(f"the policy draws random numbers by {name}: expected {', '.join(DISTRIBUTIONS.values())}")
        key = jax.eval_shape(lambda: jax.random.key(0))
        numbers = jax.eval_shape(lambda key: sampler(key, shape), key)
        draws.append(Draw(DISTRIBUTIONS[sampler], shape, numbers.dtype))
        return jnp.zeros(shape, numbers.dtype)

    def carry_after(carry: Any, obs: Any, mask: Any) -> Any:
        return agent.act(state, obs, carry, jax.random.key(0), deterministic, mask)[1]

    with draws_from(record):
        structure = jax.eval_shape(lambda obs, mask: carry_after(None, obs, mask), signature.obs, signature.mask)
    if not jax.tree.leaves(structure):
        return PolicyStep(agent, deterministic, signature, None, tuple(draws), None)
    after = jax.eval_shape(carry_after, structure, signature.obs, signature.mask)
    before, now = ([(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (structure, after))
    if before != now:
        raise ConfigError(f"the policy cannot be exported: its carry changes from {before} to {now} in a step")
    carry = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), to_plain(structure))
    return PolicyStep(agent, deterministic, signature, carry, tuple(draws), structure)


def with_batch(tree: Any) -> Any:
    """Return shapes with a leading symbolic batch axis `b`."""
    (b,) = jax_export.symbolic_shape("b")
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((b, *x.shape), x.dtype), tree)


def to_plain(tree: Any) -> Any:
    """Return a tree in dictionaries, tuples and lists, which JAX alone can read back: a NamedTuple becomes a dictionary."""
    if tree is None or is_array(tree):
        return tree
    if hasattr(tree, "_fields"):
        return {name: to_plain(getattr(tree, name)) for name in tree._fields}
    if type(tree) is dict and all(isinstance(name, str) for name in tree):
        return {name: to_plain(part) for name, part in tree.items()}
    if type(tree) in (tuple, list):
        return type(tree)(to_plain(part) for part in tree)
    return tuple(jax.tree.leaves(tree))


def from_plain(plain: Any, like: Any) -> Any:
    """Undo `to_plain`; `like` has the structure of the tree before."""
    if like is None or is_array(like):
        return plain
    if hasattr(like, "_fields"):
        return type(like)(**{name: from_plain(plain[name], getattr(like, name)) for name in like._fields})
    if type(like) is dict and all(isinstance(name, str) for name in like):
        return {name: from_plain(plain[name], part) for name, part in like.items()}
    if type(like) in (tuple, list):
        return type(like)(from_plain(part, other) for part, other in zip(plain, like, strict=True))
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(plain))
