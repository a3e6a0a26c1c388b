"""Opponent models: the encoder of a trained beta-VAE, whose latent factors of what an opponent did a policy sees beside its
observation.

The model's parameters are part of the policy's, so a run needs the file to train, but not to act; no gradient changes them. An
idea of ROA-Star (Huang et al., "A robust and opponent-aware league training method for StarCraft II", 2023).
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import ConfigError, shown
from rljax.core.places import as_path
from rljax.core.sealed import DamagedError, Field, OtherFormatError, read_sealed, seal, table_of, whole
from rljax.nn.latent.vae import BetaVAE
from rljax.nn.observations import flat_axes, ravel_observation
from rljax.nn.spec import is_size

SEEN = "opponent_model"
"""Key of the latent factors in what the network of a policy sees."""

OBS = "obs"
"""Key of an observation that is no dictionary, beside them."""

Observed = tuple[str, ...] | tuple[int, int] | None
"""The part of an observation that shows the opponent: keys of a dictionary, or a range `(first, end)` of the flat observation,
without `end`; None: the whole observation."""


def check_observed(observed: Any) -> Observed:
    """Return what a model is to see, in its canonical type.

    Raises:
        ConfigError: it is neither keys nor numbers.
    """
    if observed is None:
        return None
    parts = tuple(observed) if isinstance(observed, (tuple, list)) else ()
    if parts and all(isinstance(key, str) for key in parts):
        return parts
    if len(parts) == 2 and all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in parts):
        return (int(parts[0]), int(parts[1]))
    raise ConfigError(f"observed = {shown(observed)}: expected keys of a dictionary, or (first, end) of the flat observation")


def observed_part(obs: Any, observed: Observed, name: str = "observed") -> jax.Array:
    """Return what observations `[B, ...]` show of the opponent, f32 `[B, D]`.

    Raises:
        ConfigError: the observation has no such part; the message begins with `name`.
    """
    if observed is None:
        return ravel_observation(obs)
    said = f"{name} = {shown(list(observed))}"
    if isinstance(observed[0], str):
        if not isinstance(obs, Mapping):
            raise ConfigError(f"{said}: the observation is no dictionary, expected first and end of its numbers")
        for key in observed:
            if key not in obs:
                raise ConfigError(f"{said}: the observation has the keys {sorted(obs)}")
        return ravel_observation({key: obs[key] for key in observed})
    flat = ravel_observation(obs)
    first, end = int(observed[0]), int(observed[1])
    if not 0 <= first < end <= flat.shape[-1]:
        raise ConfigError(f"{said}: expected first < end, from 0 to {flat.shape[-1]}, the numbers of an observation")
    return flat[:, first:end]


def observed_row(obs: Any, observed: Observed, name: str = "observed") -> jax.Array:
    """Return rows of a window for observations `[B, ...]`, f32 `[B, D + 1]`; the last number, 1, says that there was a step."""
    part = observed_part(obs, observed, name)
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

    @property
    def table(self) -> dict[str, Any]:
        """All but the parameters, as a table of plain values."""
        observed = {} if self.observed is None else {"observed": list(self.observed)}
        sizes = {"size": self.network.size, "latent": self.network.latent, "hidden": list(self.network.hidden)}
        return {"window": self.window, **sizes, **observed}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a new file, which `load_opponent_model` reads.

        Raises:
            ConfigError: the file exists or cannot be written, or a parameter is not finite.
        """
        if not all(bool(np.isfinite(x).all()) for x in jax.tree.leaves(self.params)):
            raise ConfigError("opponent model: its parameters are not finite, train it with a smaller learning_rate")
        leaves = {_name(key): _encoded(x) for key, x in jax.tree_util.tree_leaves_with_path(self.params)}
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(seal({"format": 1, **self.table, "params": leaves}))
        except FileExistsError:
            raise ConfigError(f"{path}: exists, expected the name of a new file") from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def _name(key: Any) -> str:
    return jax.tree_util.keystr(key, simple=True, separator="/")


def _encoded(x: Any) -> str:
    return base64.b64encode(np.asarray(x, "<f4").tobytes()).decode()


def _is_observed(x: Any) -> bool:
    try:
        return check_observed(x) is not None
    except ConfigError:
        return False


SIZES = {
    "window": whole(1),
    "size": whole(1),
    "latent": whole(1),
    "hidden": Field("a list of whole numbers", lambda x: isinstance(x, (list, tuple)) and all(map(is_size, x))),
    "observed": Field("keys of a dictionary or [first, end]", _is_observed, required=False),
}
FIELDS = {**SIZES, "params": table_of(lambda x: isinstance(x, str), "texts")}


def load_opponent_model(path: str | os.PathLike[str]) -> OpponentModel:
    """Read a model that `OpponentModel.save` wrote.

    Raises:
        ConfigError: there is no such file, or it is damaged.
    """
    try:
        table = read_sealed(as_path(path, "path"), FIELDS)
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigError(f"{path}: no opponent model there (rljax opponents makes one)") from None
    except DamagedError as error:
        raise ConfigError(f"{path} is damaged or no opponent model: {error}") from None
    except OtherFormatError as error:
        raise ConfigError(f"{path}: format {error.format} of opponent models, expected 1") from None
    model = _of_table(table)

    def read(key: Any, shape: Any) -> jax.Array:
        try:
            numbers = np.frombuffer(base64.b64decode(table["params"][_name(key)], validate=True), "<f4")
            return jnp.asarray(numbers.reshape(shape.shape))
        except (KeyError, ValueError):
            raise ConfigError(f"{path} is damaged or no opponent model: its parameters {_name(key)} do not fit") from None

    model.params = jax.tree_util.tree_map_with_path(read, model.params)
    return model


def _of_table(table: Mapping[str, Any]) -> OpponentModel:
    """Return the model of a table without its parameters: NaN in their place."""
    network = BetaVAE(table["size"], table["latent"], tuple(table["hidden"]))
    x, noise = jnp.zeros((1, network.size)), jnp.zeros((1, network.latent))
    shapes = jax.eval_shape(network.init, jax.random.key(0), x, noise)
    params = jax.tree.map(lambda shape: np.full(shape.shape, np.nan, np.float32), shapes)
    return OpponentModel(network, params, table["window"], check_observed(table.get("observed")))


def described(path: str) -> dict[str, Any]:
    """Return the file of a model as a table for a configuration, which is all that a run needs to act without the file."""
    model = load_opponent_model(path)
    return {"file": path, "digest": _digest(path), **model.table}


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def opponent_model(table: Any) -> OpponentModel:
    """Return the model that a configuration describes, by its file or a table of `described`.

    Its parameters are those of the file; NaN if it is gone or another one: a run has the parameters in its checkpoints, and a new
    one would stop at once.

    Raises:
        ConfigError: there is no such file, or the table is not such a table.
    """
    if isinstance(table, str):
        return load_opponent_model(table)
    if not isinstance(table, Mapping):
        raise ConfigError(f"network.opponent_model = {shown(table)}: expected the file of an opponent model")
    for name, field in {**SIZES, "file": TEXT, "digest": TEXT}.items():
        if (name in table or field.required) and not field.test(table.get(name)):
            raise ConfigError(f"network.opponent_model.{name} = {shown(table.get(name))}: expected {field.allowed}")
    same = os.path.isfile(table["file"]) and _digest(table["file"]) == table["digest"]
    return load_opponent_model(table["file"]) if same else _of_table(table)


TEXT = Field("a string", lambda x: isinstance(x, str))


def check_opponent_model(config: Any) -> None:
    """Refuse to train without the file of the opponent model, which new learners begin with.

    Raises:
        ConfigError: the file is gone, or another model.
    """
    table = _described_in(config)
    if table is None:
        return
    path = table["file"]
    if not os.path.isfile(path):
        raise ConfigError(f"network.opponent_model: {path} is gone; a run acts without it, but does not train")
    if _digest(path) != table["digest"]:
        raise ConfigError(f"network.opponent_model: {path} is another model than the one of this configuration")


def check_same_opponent_model(there: Any, here: Any, source: Any) -> None:
    """Refuse parameters of a policy that has another opponent model; `there` and `here` are configurations.

    Raises:
        ConfigError: both have a model, and they are not the same.
    """
    old, new = _described_in(there), _described_in(here)
    if old is not None and new is not None and old["digest"] != new["digest"]:
        raise ConfigError(f"network.opponent_model = {new['file']}: {source} has another model, {old['file']}")


def _described_in(config: Any) -> Mapping[str, Any] | None:
    network = getattr(config, "network", None)
    table = network.get(SEEN) if isinstance(network, Mapping) else None
    return table if isinstance(table, Mapping) else None


class OpponentCarry(NamedTuple):
    """Memory of a policy with an opponent model: the window f32 `[..., W, D + 1]`, and what the network itself remembers."""

    window: jax.Array
    inner: Any


class Seen(NamedTuple):
    """A step as `OpponentAware.embed` passes it on: the observation, and its row of the window."""

    obs: Any
    row: jax.Array


class OpponentAware(nn.Module):
    """A policy's network that also sees what a model says of the opponent: `network` with observations `{..., "opponent_model":
    z}`, z f32 `[latent]` the mean of the posterior for the last W observed steps of the episode, this one included.

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
        row = observed_row(obs, self.model.observed, "network.opponent_model: observed")
        if isinstance(obs, Mapping) and SEEN in obs:
            raise ConfigError(f"network.opponent_model: the observation has a part '{SEEN}' already")
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
        return {**(x.obs if isinstance(x.obs, Mapping) else {OBS: x.obs}), SEEN: z}
