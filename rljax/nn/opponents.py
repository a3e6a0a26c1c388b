"""Opponent models: the encoder of a trained beta-VAE, whose latent factors of what an opponent did a policy sees beside its
observation.

The encoder's parameters are part of the policy's, so a run needs the model's file only to know its sizes; no gradient changes
them. An idea of ROA-Star (Huang et al., "A robust and opponent-aware league training method for StarCraft II", 2023).
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import ConfigError, shown
from rljax.core.sealed import DamagedError, Field, OtherFormatError, list_of, read_sealed, seal, table_of, whole
from rljax.nn.observations import flat_axes, ravel_observation
from rljax.nn.spec import is_size
from rljax.nn.vae import BetaVAE

OPPONENT = "opponent"
"""Key of the latent factors in what the network of a policy sees."""

OBS = "obs"
"""Key of an observation that is no dictionary, beside them."""

Observed = tuple[str, ...] | tuple[int, int] | None
"""What an observation shows of the opponent: keys of a dictionary; the first number of a flat observation and the one after the
last; or None, all of it."""


def observed_part(obs: Any, observed: Observed) -> jax.Array:
    """Return what observations `[B, ...]` show of the opponent, f32 `[B, D]`.

    Raises:
        ConfigError: the observation has no such part.
    """
    if observed is None:
        return ravel_observation(obs)
    if isinstance(observed[0], str):
        keys = sorted(obs) if isinstance(obs, Mapping) else []
        for key in observed:
            if key not in keys:
                raise ConfigError(f"observed = {shown(list(observed))}: the observation has the keys {keys}")
        return ravel_observation({key: obs[key] for key in observed})
    flat = ravel_observation(obs)
    first, end = int(observed[0]), int(observed[1])
    if not 0 <= first < end <= flat.shape[-1]:
        raise ConfigError(
            f"observed = {shown(list(observed))}: expected [first, end] with 0 <= first < end <= {flat.shape[-1]}, "
            "the numbers of an observation"
        )
    return flat[:, first:end]


def observed_row(obs: Any, observed: Observed) -> jax.Array:
    """Return rows of a window for observations `[B, ...]`, f32 `[B, D + 1]`; the last number, 1, says that there was a step."""
    part = observed_part(obs, observed)
    return jnp.concatenate([part, jnp.ones((*part.shape[:-1], 1), jnp.float32)], axis=-1)


def slide(window: jax.Array, row: jax.Array) -> jax.Array:
    """Return windows `[..., W, D + 1]` with one more row `[..., D + 1]`, without their oldest."""
    return jnp.concatenate([window[..., 1:, :], row[..., None, :]], axis=-2)


class OpponentModel:
    """A trained model of opponents.

    Attributes:
        network: the beta-VAE; its inputs are windows, flattened: the last W observed steps of an episode, oldest first, with
            zeros for those before it.
        params: its parameters.
        window: W, the number of steps in a window.
        observed: what it sees of an observation.
    """

    def __init__(self, network: BetaVAE, params: Any, window: int, observed: Observed):
        self.network, self.params, self.window, self.observed = network, params, window, observed

    @property
    def row(self) -> int:
        """Number of numbers in a row of a window."""
        return self.network.size // self.window

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a new file, which `load_opponent_model` reads.

        Raises:
            ConfigError: the file exists.
        """
        leaves = {
            jax.tree_util.keystr(key, simple=True, separator="/"): base64.b64encode(np.asarray(x, "<f4").tobytes()).decode()
            for key, x in jax.tree_util.tree_leaves_with_path(self.params)
        }
        table = {
            "format": 1,
            "window": self.window,
            "observed": None if self.observed is None else list(self.observed),
            "size": self.network.size,
            "latent": self.network.latent,
            "hidden": list(self.network.hidden),
            "params": leaves,
        }
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(seal(table))
        except FileExistsError:
            raise ConfigError(f"{path}: exists, expected the name of a new file") from None


def _is_observed(x: Any) -> bool:
    if x is None:
        return True
    if not isinstance(x, list) or not x:
        return False
    return all(isinstance(key, str) for key in x) or (len(x) == 2 and all(type(n) is int and n >= 0 for n in x))


FIELDS = {
    "window": whole(1),
    "observed": Field("keys of a dictionary, [first, end] or null", _is_observed, required=False),
    "size": whole(1),
    "latent": whole(1),
    "hidden": list_of(is_size, "whole numbers"),
    "params": table_of(lambda x: isinstance(x, str), "texts"),
}


def load_opponent_model(path: str | os.PathLike[str]) -> OpponentModel:
    """Read a model that `OpponentModel.save` wrote.

    Raises:
        ConfigError: there is no such file, or it is damaged.
    """
    try:
        table = read_sealed(Path(path), FIELDS)
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigError(f"{path}: no opponent model there (rljax opponents makes one)") from None
    except DamagedError as error:
        raise ConfigError(f"{path} is damaged or no opponent model: {error}") from None
    except OtherFormatError as error:
        raise ConfigError(f"{path}: format {error.format} of opponent models, expected 1") from None
    observed: Any = None if table["observed"] is None else tuple(table["observed"])
    network = BetaVAE(table["size"], table["latent"], tuple(table["hidden"]))
    x, noise = jnp.zeros((1, network.size)), jnp.zeros((1, network.latent))
    shapes = jax.eval_shape(network.init, jax.random.key(0), x, noise)

    def read(key: Any, shape: Any) -> jax.Array:
        name = jax.tree_util.keystr(key, simple=True, separator="/")
        try:
            return jnp.asarray(np.frombuffer(base64.b64decode(table["params"][name], validate=True), "<f4").reshape(shape.shape))
        except (KeyError, ValueError):
            raise ConfigError(f"{path} is damaged or no opponent model: its parameters {name} do not fit") from None

    return OpponentModel(network, jax.tree_util.tree_map_with_path(read, shapes), table["window"], observed)


class OpponentCarry(NamedTuple):
    """Memory of a policy with an opponent model: the window f32 `[..., W, D + 1]`, and what the network itself remembers."""

    window: jax.Array
    inner: Any


class Seen(NamedTuple):
    """A step as `OpponentAware.embed` passes it on: the observation, and its row of the window."""

    obs: Any
    row: jax.Array


class OpponentAware(nn.Module):
    """A policy's network that also sees what a model says of the opponent: `network` with observations `{..., "opponent": z}`, z
    f32 `[latent]` the mean of the posterior for the last W observed steps of the episode, this one included.

    `Policy` documents the methods. The window is part of the memory, so each episode, seat and past player has its own.

    Attributes:
        network: any network of a policy, with or without memory, for observations that are dictionaries; one that is none is the
            entry "obs" beside z.
        model: the model.
    """

    network: nn.Module
    model: OpponentModel

    def setup(self) -> None:
        self.frozen = self.param("opponent_model", lambda _: jax.tree.map(jnp.asarray, self.model.params))

    @nn.nowrap
    def initial_carry(self, batch: tuple[int, ...]) -> OpponentCarry:
        network: Any = self.network
        inner = network.initial_carry(batch) if hasattr(network, "initial_carry") else None
        return OpponentCarry(jnp.zeros((*batch, self.model.window, self.model.row)), inner)

    def embed(self, obs: Any) -> Seen:
        row = observed_row(obs, self.model.observed)
        if row.shape[-1] != self.model.row:
            raise ConfigError(
                f"network.opponent_model: the model sees {self.model.row - 1} numbers of an observation, here are "
                f"{row.shape[-1] - 1}: it was made for another game"
            )
        return Seen(obs, row)

    def advance(self, carry: OpponentCarry, x: Seen) -> OpponentCarry:
        window, inner = slide(carry.window, x.row), carry.inner
        if inner is not None:
            network: Any = self.network
            inner = network.advance(inner, self._embed(window, x))
        return OpponentCarry(window, inner)

    def heads(self, carry: OpponentCarry, x: Seen, privileged: Any) -> tuple[Any, jax.Array]:
        network: Any = self.network
        if hasattr(network, "initial_carry"):
            outputs, value = network.heads(carry.inner, self._embed(carry.window, x), privileged)
            return outputs, value
        batch = x.row.shape[:-1]
        obs = flat_axes(self._obs(carry.window, x), len(batch))
        outputs, value = network(obs) if privileged is None else network(obs, flat_axes(privileged, len(batch)))
        return jax.tree.map(lambda y: y.reshape((*batch, *y.shape[1:])), (outputs, value))

    def _embed(self, window: jax.Array, x: Seen) -> Any:
        """Return what the network's own `embed` makes of observations with z, `[..., *]`."""
        network: Any = self.network
        batch = x.row.shape[:-1]
        embedded = network.embed(flat_axes(self._obs(window, x), len(batch)))
        return jax.tree.map(lambda y: y.reshape((*batch, *y.shape[1:])), embedded)

    def _obs(self, window: jax.Array, x: Seen) -> dict[str, Any]:
        """Return observations with z, `[..., *]`."""
        model = self.model
        flat = window.reshape((*window.shape[:-2], -1))
        z = jax.lax.stop_gradient(model.network.apply(self.frozen, flat, method="embedding"))
        return {**(x.obs if isinstance(x.obs, Mapping) else {OBS: x.obs}), OPPONENT: z}
