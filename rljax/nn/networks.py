"""Actor-critic networks as flax.linen modules, and the policy module that puts an action head on any of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.core.config import OBJECT_PREFIX
from rljax.core.errors import ConfigError, did_you_mean
from rljax.core.wrappers import flatten_observation
from rljax.nn.initializers import orthogonal_kernels

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
    "swish": nn.swish,
    "leaky_relu": nn.leaky_relu,
}


class ActorCritic(nn.Module):
    """A multilayer perceptron for the policy and one for the value, or one torso for both.

    Observations of any shape (or dictionaries of arrays) are raveled: `obs [B, *obs_shape] -> (outputs [B, num_outputs],
    value [B])`. The last layers start at gain .01 (policy) and 1 (value), so that the first policy is nearly uniform.

    Attributes:
        num_outputs: length of the policy output, from the action space.
        hidden: sizes of the hidden layers.
        activation: a name in `ACTIVATIONS`.
        shared: one torso for both heads instead of two.
    """

    num_outputs: int
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    shared: bool = False

    @nn.compact
    def __call__(self, obs: Any) -> tuple[jax.Array, jax.Array]:
        x = ravel_observation(obs)
        dense = self._dense_layers(x.shape[-1])

        def torso(name: str) -> jax.Array:
            y = x
            for i in range(len(self.hidden)):
                y = ACTIVATIONS[self.activation](dense[f"{name}_{i}"](y))
            return y

        actor = torso("torso" if self.shared else "actor")
        critic = actor if self.shared else torso("critic")
        return dense["policy_head"](actor), dense["value_head"](critic)[..., 0]

    def _dense_layers(self, obs_size: int) -> dict[str, nn.Dense]:
        """Every layer by name; while initialising, their kernels come from one draw (see `orthogonal_kernels`)."""
        sizes = (obs_size, *self.hidden)
        torsos = ("torso",) if self.shared else ("actor", "critic")
        layers = {f"{t}_{i}": (shape, math.sqrt(2.0)) for t in torsos for i, shape in enumerate(itertools.pairwise(sizes))}
        layers["policy_head"] = ((sizes[-1], self.num_outputs), 0.01)
        layers["value_head"] = ((sizes[-1], 1), 1.0)
        kernels: list[Any] = [None] * len(layers)
        if self.is_initializing():
            shapes, gains = zip(*layers.values(), strict=True)
            kernels = orthogonal_kernels(self.make_rng("params"), shapes, gains)
        return {
            name: nn.Dense(shape[1], kernel_init=lambda *_, kernel=kernel: kernel, name=name)
            for (name, (shape, _)), kernel in zip(layers.items(), kernels, strict=True)
        }


class Policy(nn.Module):
    """Any actor-critic `network` plus, where the action head has them, free log standard deviations after the means.

    `obs [..., *obs_shape] -> (outputs [..., head outputs], value f32 [...])`, ready for `ActionHead.distribution`. The network
    always sees one batch axis, whatever axes come first here.

    Attributes:
        network: `obs [B, *obs_shape] -> (outputs [B, num_outputs], value [B])`.
        obs_ndims: number of axes of one observation, per leaf in tree order.
        num_log_std: number of free log standard deviations.
    """

    network: nn.Module
    obs_ndims: tuple[int, ...] = (1,)
    num_log_std: int = 0

    @nn.compact
    def __call__(self, obs: Any) -> tuple[jax.Array, jax.Array]:
        leaves, structure = jax.tree.flatten(obs)
        batch = leaves[0].shape[: leaves[0].ndim - self.obs_ndims[0]]
        leaves = [x.reshape((-1, *x.shape[x.ndim - ndim :])) for x, ndim in zip(leaves, self.obs_ndims, strict=True)]
        outputs, value = self.network(jax.tree.unflatten(structure, leaves))
        outputs, value = outputs.reshape((*batch, -1)), value.reshape(batch)
        if self.num_log_std:
            log_std = self.param("log_std", nn.initializers.zeros, (self.num_log_std,))
            outputs = jnp.concatenate([outputs, jnp.broadcast_to(log_std, outputs.shape)], axis=-1)
        return outputs, value


def ravel_observation(obs: Any) -> jax.Array:
    """One f32 vector per observation: leaves `[B, ...]` raveled and concatenated in order, `[B, D]`."""
    return jax.vmap(flatten_observation)(obs)


def make_network(spec: Any, num_outputs: int) -> nn.Module:
    """The network that a config's `network` field describes: a table such as `{ hidden = [64, 64] }`, or a flax module as it is.

    Raises:
        ConfigError: an unknown key, activation or type, or a value that is not allowed.
    """
    if isinstance(spec, nn.Module):
        return spec
    if isinstance(spec, str) and spec.startswith(OBJECT_PREFIX):
        name = spec.removeprefix(OBJECT_PREFIX)
        again = "give it again, load_run(path, network=...) or fit(config, resume=...)"
        raise ConfigError(f"the network was given as an object of class {name}: {again}")
    if not isinstance(spec, Mapping):
        raise ConfigError(f"network = {spec!r}: expected a table such as {{ hidden = [64, 64] }}, or a flax.linen Module")
    table = {"type": "mlp", **spec}
    kind = table.pop("type")
    if kind != "mlp":
        raise ConfigError(f"network.type = {kind!r}: {did_you_mean(str(kind), ['mlp'])}")
    for key in table:
        if key not in ("hidden", "activation", "shared"):
            raise ConfigError(f"network.{key}: unknown key, {did_you_mean(key, ['type', 'hidden', 'activation', 'shared'])}")
    hidden = table.get("hidden", (64, 64))
    if not isinstance(hidden, tuple) or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in hidden):
        raise ConfigError(f"network.hidden = {hidden!r}: expected a list of layer sizes, whole numbers > 0, such as [64, 64]")
    if table.get("activation", "tanh") not in ACTIVATIONS:
        name = str(table["activation"])
        raise ConfigError(f"network.activation = {name!r}: {did_you_mean(name, ACTIVATIONS)}")
    if not isinstance(table.get("shared", False), bool):
        raise ConfigError(f"network.shared = {table['shared']!r}: expected true or false")
    return ActorCritic(num_outputs=num_outputs, **table)
