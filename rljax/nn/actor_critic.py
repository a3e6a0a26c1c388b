"""Actor-critic networks, and the `network` table of a configuration that describes one.

`type` is the kind of memory ("mlp": none), `encoder` the encoder of one observation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.core.errors import ConfigError
from rljax.nn.cells import ONE_GRID, CellActorCritic, RecurrentCellActorCritic
from rljax.nn.encoders import make_encoder
from rljax.nn.modules.attention import PointerNetwork
from rljax.nn.modules.layers import FiLM, as_it_is, dense_layers, hidden_layers, layer_norm, perceptron, values
from rljax.nn.modules.recurrent import BlockGRUCell, CellMemory, GRUCell, LSTMCell
from rljax.nn.observations import ravel_observation, split_goal
from rljax.nn.opponents import OpponentAware, opponent_model
from rljax.nn.outputs.pointed import Pointed
from rljax.nn.spec import CELL_CONVOLUTIONS, read_network


class ActorCritic(nn.Module):
    """Actor-critic of two multilayer perceptrons, one for the policy and one for the value, or of one torso for both.

    It maps `obs [B, *obs_shape]` to `(outputs [B, num_outputs], value [B])`, with `value [B, num_values]` for several value
    heads. Observations of any shape (or dictionaries of arrays) are flattened. The last layers start with gain 0.01 (policy) and
    1 (value), so that the first policy is nearly uniform. `privileged`, if given, joins the input of the critic only.

    Attributes:
        num_outputs: length of the policy output, from the action space.
        num_values: number of value heads.
        hidden: sizes of the hidden layers.
        activation: a name in `ACTIVATIONS`.
        shared: one torso for both heads instead of two.
        film: the observation's `goal` modulates the first hidden layer (see `FiLM`) instead of joining the input.
        policy_gain: gain of the policy's last layer.
        layer_norm: normalise before each activation (Ba et al., 2016).
        dtype: dtype of the products before the last layer, such as `jnp.bfloat16`; None: f32.
    """

    num_outputs: int
    num_values: int = 1
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    shared: bool = False
    film: bool = False
    policy_gain: float = 0.01
    layer_norm: bool = False
    dtype: Any = None

    @nn.compact
    def __call__(self, obs: Any, privileged: Any = None) -> tuple[jax.Array, jax.Array]:
        if self.shared and privileged is not None:
            raise ConfigError("network.shared = true: a critic with privileged observations needs a torso of its own")
        obs, goal = split_goal(obs, self.film)
        x = ravel_observation(obs)
        inputs = {"actor": x, "critic": x if privileged is None else jnp.concatenate([x, ravel_observation(privileged)], axis=-1)}
        torsos = ("torso",) if self.shared else ("actor", "critic")
        layers: dict[str, tuple[tuple[int, int], float]] = {}
        for name in torsos:
            sizes = (inputs["actor" if self.shared else name].shape[-1], *self.hidden)
            layers |= hidden_layers(name, sizes)
        layers["policy_head"] = ((sizes[-1], self.num_outputs), self.policy_gain)
        layers["value_head"] = ((sizes[-1], self.num_values), 1.0)
        dense = dense_layers(self, layers, self.dtype, last=("policy_head", "value_head"))

        def torso(name: str, y: jax.Array) -> jax.Array:
            film = None if goal is None else lambda y: FiLM(self.hidden[0], self.dtype, name=f"{name}_film")(y, goal)
            layers = [dense[f"{name}_{i}"] for i in range(len(self.hidden))]
            return perceptron(y, layers, self.activation, layer_norm if self.layer_norm else None, film)

        actor = torso(torsos[0], inputs["actor"])
        critic = actor if self.shared else torso("critic", inputs["critic"])
        return dense["policy_head"](actor), values(dense["value_head"](critic))


class Features(NamedTuple):
    """Outputs of a stem for observations `[B, ...]`.

    Attributes:
        x: features `[B, D]`; with memory, the input's part of the cell's gates.
        entities: for a pointer, entities f32 `[B, E, D]` and whether each is present, bool `[B, E]`; None without a pointer.
    """

    x: jax.Array
    entities: tuple[Any, jax.Array | None] | None


class Stem(nn.Module):
    """An encoder and dense layers after it: `obs [B, ...] -> Features`. The goal joins the observation, or modulates (`film`)."""

    encoder: nn.Module | None
    hidden: tuple[int, ...]
    activation: str
    film: bool
    pointer: bool
    layer_norm: bool
    dtype: Any = None

    @nn.compact
    def __call__(self, obs: Any) -> Features:
        obs, goal = split_goal(obs, self.film)
        x: Any = ravel_observation(obs) if self.encoder is None else self.encoder(obs)
        x, entities = x if isinstance(x, tuple) else (x, None)
        dense = dense_layers(self, hidden_layers("dense", (x.shape[-1], *self.hidden)), self.dtype)
        film = None if goal is None else lambda x: FiLM(self.hidden[0], self.dtype, name="film")(x, goal)
        x = perceptron(x, dense.values(), self.activation, layer_norm if self.layer_norm else None, film)
        return Features(x, (entities, obs.get("entity_mask")) if self.pointer else None)


class ActorCriticHeads(nn.Module):
    """Policy head and value head on the features of a trunk: `(y [..., D], ...) -> (outputs, value)`; with `pointed`, the outputs
    are `Pointed`."""

    num_outputs: int
    num_values: int
    hidden: tuple[int, ...]
    activation: str
    policy_gain: float
    layer_norm: bool
    pointed: bool = False
    dtype: Any = None

    @nn.compact
    def __call__(self, y: jax.Array, entities: Any, privileged: jax.Array | None) -> tuple[Any, jax.Array]:
        pointer = entities is not None and not self.pointed
        inputs = {"policy": y, "value": y if privileged is None else jnp.concatenate([y, privileged], axis=-1)}
        layers: dict[str, tuple[tuple[int, int], float]] = {}
        for name, (outputs, gain) in {"policy": (self.num_outputs, self.policy_gain), "value": (self.num_values, 1.0)}.items():
            sizes = (inputs[name].shape[-1], *self.hidden)
            layers |= hidden_layers(name, sizes)
            if not (pointer and name == "policy"):
                layers[f"{name}_head"] = ((sizes[-1], outputs), gain)
        dense = dense_layers(self, layers, self.dtype, last=("policy_head", "value_head"))
        for name in inputs:
            hidden = [dense[f"{name}_{i}"] for i in range(len(self.hidden))]
            inputs[name] = perceptron(inputs[name], hidden, self.activation, layer_norm if self.layer_norm else None)
        value = values(dense["value_head"](inputs["value"]))
        if pointer:
            return PointerNetwork(entities[0].shape[-1], name="pointer")(inputs["policy"], *entities), value
        policy = dense["policy_head"](inputs["policy"])
        return (Pointed(policy, *entities) if self.pointed else policy), value


class TrunkActorCritic(CellMemory, nn.Module):
    """Actor-critic with one trunk (an encoder, dense layers and a recurrent cell) and a head each for policy and value.

    `Policy` documents the methods. Only `advance`, the hidden part of the cell, must run inside the scan over time.

    Attributes:
        num_outputs: length of the policy output.
        num_values: number of value heads.
        encoder: `obs [B, ...] -> x [B, D]`, or `(x, entities [B, E, D])`; None flattens the observation.
        cell: an `LSTMCell` or another cell with the same methods; None: no memory.
        hidden: sizes of the dense layers between encoder and cell.
        head_hidden: sizes of the dense layers of each head.
        activation: a name in `ACTIVATIONS`.
        film: the observation's `goal` modulates the first dense layer instead of joining the input.
        pointer: whether the actions are the entities; a pointer network then replaces the policy's last layer.
        policy_gain: gain of the policy's last layer.
        layer_norm: normalise before each activation (Ba et al., 2016).
        pointed: with a pointer, only the first of several heads points: the policy's output is `Pointed`, and `num_outputs` the
            length of its context.
        dtype: dtype of the products between encoder and last layers, such as `jnp.bfloat16`; None: f32.
    """

    num_outputs: int
    num_values: int = 1
    encoder: nn.Module | None = None
    cell: Any = None
    hidden: tuple[int, ...] = (64,)
    head_hidden: tuple[int, ...] = (64,)
    activation: str = "tanh"
    film: bool = False
    pointer: bool = False
    policy_gain: float = 0.01
    layer_norm: bool = False
    pointed: bool = False
    dtype: Any = None

    def setup(self) -> None:
        self.stem = Stem(self.encoder, self.hidden, self.activation, self.film, self.pointer, self.layer_norm, self.dtype)
        self.both_heads = ActorCriticHeads(
            self.num_outputs,
            self.num_values,
            self.head_hidden,
            self.activation,
            self.policy_gain,
            self.layer_norm,
            self.pointed and self.pointer,
            self.dtype,
        )

    def embed(self, obs: Any) -> Features:
        features = self.stem(obs)
        return features if self.cell is None else features._replace(x=self.cell.project(features.x))

    def heads(self, carry: Any, x: Features, privileged: Any) -> tuple[jax.Array, jax.Array]:
        y = x.x if self.cell is None else self.cell.output(carry)
        if privileged is not None:
            leaves = [leaf.reshape((*y.shape[:-1], -1)) for leaf in jax.tree.leaves(privileged)]
            privileged = jnp.concatenate([leaf.astype(jnp.float32) for leaf in leaves], axis=-1)
        return self.both_heads(y, x.entities, privileged)


def make_network(
    spec: Any,
    num_outputs: int,
    num_values: int = 1,
    policy_gain: float = 0.01,
    pointed: bool = False,
    dtype: Any = None,
    num_cells: int | None = None,
) -> nn.Module:
    """Return the actor-critic that a configuration's `network` field describes; return a flax module as it is.

    Tables, with their defaults:

    - `{ type = "mlp", hidden = [64, 64], activation = "tanh", layer_norm = false, shared = false, goal = "concat" }`
    - `{ type = "gru", size = 64, hidden = [64], head_hidden = [64], activation = "tanh", goal = "concat" }`: also "lstm", and
      "block_gru" with `blocks = 8`.
    - any type with an encoder, and `hidden` and `head_hidden` as for "gru": `encoder = "cnn"` (images; `channels = [16],
      kernels = [3], strides = [1]`), `encoder = "dict"` (vectors and images; `depth = 16` channels of the first convolution), or
      `encoder = "entities"` (a transformer over sets; `layers = 2, heads = 4, width = 64`, and `pointer = true` if the actions
      are the entities, or with `pointed` those of the first of several heads).
    - `{ encoder = "cells", channels = [32, 32], kernels = [3, 3], dilations = [1, 1], hidden = [64], activation = "relu" }`: a
      policy for each cell of a grid (`rljax.nn.cells`), with any type; `hidden` are the layers of the value. With memory,
      `num_cells` is the number of cells of the grid.

    Any of these, but for images and cells alone, with `opponent_model = FILE`: the network also sees what the model of this file
    says of the opponent (see `rljax.nn.opponents`).

    `hidden` and `activation` describe the dense layers after the encoder. With `goal = "film"`, the observation's `goal`
    modulates the first dense layer. `dtype` is that of the products before the last layers (see `product_dtype`).

    Raises:
        ConfigError: an unknown key, activation or type, or a value that is not allowed.
    """
    if isinstance(spec, nn.Module):
        return as_it_is(spec, dtype)
    table = read_network(spec, heads=True)
    if table.opponent_model is not None:
        plain = {key: value for key, value in spec.items() if key != "opponent_model"}
        network = make_network(plain, num_outputs, num_values, policy_gain, pointed, dtype)
        return OpponentAware(network, opponent_model(table.opponent_model))
    common: dict[str, Any] = {
        "num_outputs": num_outputs,
        "num_values": num_values,
        "film": table.goal == "film",
        "policy_gain": policy_gain,
        "dtype": dtype,
        **table.given("hidden", "activation", "layer_norm"),
    }
    cell: Any = None
    if table.type == "block_gru":
        cell = BlockGRUCell(table.size, table.blocks, dtype)
    elif table.type != "mlp":
        cell = {"lstm": LSTMCell, "gru": GRUCell}[table.type](table.size, dtype)
    if table.encoder == "cells":
        del common["film"]
        common |= table.given(*CELL_CONVOLUTIONS)
        if cell is None:
            return CellActorCritic(**common)
        if num_cells is None:
            raise ConfigError(ONE_GRID)
        return RecurrentCellActorCritic(**common, cell=cell, num_cells=num_cells)
    if table.type == "mlp" and table.encoder == "mlp":
        return ActorCritic(**common, shared=table.shared)
    parts = {"encoder": make_encoder(table, dtype), "cell": cell, "pointer": table.pointer, "pointed": pointed}
    return TrunkActorCritic(**parts, **common, **table.given("head_hidden"))
