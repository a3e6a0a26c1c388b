"""Actor-critic networks, and the `network` table of a configuration that describes one.

`type` says how steps are joined in time ("mlp": not at all), `encoder` how one observation is read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.nn.attention import PointerNetwork
from rljax.nn.encoders import ConvolutionEncoder, DictEncoder, EntityEncoder
from rljax.nn.layers import ACTIVATIONS, FiLM, together
from rljax.nn.networks import CONVOLUTIONS, check_convolutions, network_table, ravel_observation
from rljax.nn.recurrent import BlockGRUCell, GRUCell, LSTMCell

GOAL = "goal"
"""Key of an observation dictionary that holds what the agent is asked to do: z."""

ENCODERS = ("mlp", "cnn", "dict", "entities")


class ActorCritic(nn.Module):
    """A multilayer perceptron for the policy and one for the value, or one torso for both.

    Observations of any shape (or dictionaries of arrays) are raveled: `obs [B, *obs_shape] -> (outputs [B, num_outputs],
    value [B])`, `value [B, num_values]` of several value heads. The last layers start at gain .01 (policy) and 1 (value), so
    that the first policy is nearly uniform. `privileged`, where it is given, joins the input of the critic only.

    Attributes:
        num_outputs: length of the policy output, from the action space.
        num_values: number of value heads.
        hidden: sizes of the hidden layers.
        activation: a name in `ACTIVATIONS`.
        shared: one torso for both heads instead of two.
        film: the observation's `goal` modulates the first hidden layer (see `FiLM`) instead of joining the input.
        policy_gain: gain of the policy's last layer.
    """

    num_outputs: int
    num_values: int = 1
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    shared: bool = False
    film: bool = False
    policy_gain: float = 0.01

    @nn.compact
    def __call__(self, obs: Any, privileged: Any = None) -> tuple[jax.Array, jax.Array]:
        if self.shared and privileged is not None:
            raise ConfigError("network.shared = True: a critic with privileged observations needs a torso of its own")
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
        dense = dense_layers(self, layers)

        def torso(name: str, y: jax.Array) -> jax.Array:
            for i, size in enumerate(self.hidden):
                y = ACTIVATIONS[self.activation](dense[f"{name}_{i}"](y))
                if i == 0 and goal is not None:
                    y = FiLM(size, name=f"{name}_film")(y, goal)
            return y

        actor = torso(torsos[0], inputs["actor"])
        critic = actor if self.shared else torso("critic", inputs["critic"])
        return dense["policy_head"](actor), values(dense["value_head"](critic))


class Features(NamedTuple):
    """What a stem makes of observations `[B, ...]`.

    Attributes:
        x: f32 `[B, D]`; with memory the input's half of the cell's gates.
        entities: f32 `[B, E, D]`, and which there are, bool `[B, E]`, for a pointer; None without one.
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

    @nn.compact
    def __call__(self, obs: Any) -> Features:
        obs, goal = split_goal(obs, self.film)
        x: Any = ravel_observation(obs) if self.encoder is None else self.encoder(obs)
        x, entities = x if isinstance(x, tuple) else (x, None)
        dense = dense_layers(self, hidden_layers("dense", (x.shape[-1], *self.hidden)))
        for i, layer in enumerate(dense.values()):
            x = ACTIVATIONS[self.activation](layer(x))
            if i == 0 and goal is not None:
                x = FiLM(self.hidden[0], name="film")(x, goal)
        return Features(x, (entities, obs.get("entity_mask")) if self.pointer else None)


class ActorCriticHeads(nn.Module):
    """Policy and value of what a trunk has made of the observations: `(y [..., D], ...) -> (outputs, value)`."""

    num_outputs: int
    num_values: int
    hidden: tuple[int, ...]
    activation: str
    policy_gain: float

    @nn.compact
    def __call__(self, y: jax.Array, entities: Any, privileged: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        pointer = entities is not None
        inputs = {"policy": y, "value": y if privileged is None else jnp.concatenate([y, privileged], axis=-1)}
        layers: dict[str, tuple[tuple[int, int], float]] = {}
        for name, (outputs, gain) in {"policy": (self.num_outputs, self.policy_gain), "value": (self.num_values, 1.0)}.items():
            sizes = (inputs[name].shape[-1], *self.hidden)
            layers |= hidden_layers(name, sizes)
            if not (pointer and name == "policy"):
                layers[f"{name}_head"] = ((sizes[-1], outputs), gain)
        dense = dense_layers(self, layers)
        for name in inputs:
            for i in range(len(self.hidden)):
                inputs[name] = ACTIVATIONS[self.activation](dense[f"{name}_{i}"](inputs[name]))
        value = values(dense["value_head"](inputs["value"]))
        if pointer:
            return PointerNetwork(entities[0].shape[-1], name="pointer")(inputs["policy"], *entities), value
        return dense["policy_head"](inputs["policy"]), value


class TrunkActorCritic(nn.Module):
    """One trunk for actor and critic: an encoder, dense layers, a cell that remembers, and a head each.

    The methods are those that `Policy` documents. Only `advance`, the hidden half of the cell, is left for the scan over time.

    Attributes:
        num_outputs: length of the policy output.
        num_values: number of value heads.
        encoder: `obs [B, ...] -> x [B, D]`, or `(x, entities [B, E, D])`; None ravels.
        cell: an `LSTMCell` or one like it; None: without memory.
        hidden: sizes of the dense layers between encoder and cell.
        head_hidden: sizes of the dense layers of each head.
        activation: a name in `ACTIVATIONS`.
        film: the observation's `goal` modulates the first dense layer instead of joining the input.
        pointer: the actions are the entities: a pointer network in place of the policy's last layer.
        policy_gain: gain of the policy's last layer.
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

    def setup(self) -> None:
        self.stem = Stem(self.encoder, self.hidden, self.activation, self.film, self.pointer)
        self.both_heads = ActorCriticHeads(self.num_outputs, self.num_values, self.head_hidden, self.activation, self.policy_gain)

    def initial_carry(self, batch: tuple[int, ...]) -> Any:
        return None if self.cell is None else self.cell.initial_carry(batch)

    def embed(self, obs: Any) -> Features:
        features = self.stem(obs)
        return features if self.cell is None else features._replace(x=self.cell.project(features.x))

    def advance(self, carry: Any, x: Features) -> Any:
        return self.cell.advance(carry, x.x)

    def heads(self, carry: Any, x: Features, privileged: Any) -> tuple[jax.Array, jax.Array]:
        y = x.x if self.cell is None else self.cell.output(carry)
        if privileged is not None:
            leaves = [leaf.reshape((*y.shape[:-1], -1)) for leaf in jax.tree.leaves(privileged)]
            privileged = jnp.concatenate([leaf.astype(jnp.float32) for leaf in leaves], axis=-1)
        return self.both_heads(y, x.entities, privileged)


def hidden_layers(name: str, sizes: tuple[int, ...]) -> dict[str, tuple[tuple[int, int], float]]:
    """What `dense_layers` makes the hidden layers NAME_0, NAME_1, ... of, from their sizes, the input's first."""
    return {f"{name}_{i}": (shape, math.sqrt(2.0)) for i, shape in enumerate(itertools.pairwise(sizes))}


def dense_layers(module: nn.Module, layers: dict[str, tuple[tuple[int, int], float]]) -> dict[str, nn.Dense]:
    """Dense layers by name, of `((inputs, outputs), gain)`, whose kernels come from one draw (see `together`)."""
    inits = together(module, layers) if layers else {}
    return {name: nn.Dense(shape[1], kernel_init=inits[name], name=name) for name, (shape, _) in layers.items()}


def values(outputs: jax.Array) -> jax.Array:
    """A critic's outputs `[..., K]` as values: `[...]` for one head."""
    return outputs[..., 0] if outputs.shape[-1] == 1 else outputs


def split_goal(obs: Any, film: bool) -> tuple[Any, jax.Array | None]:
    """`(obs without the goal, goal [B, D])` for a network that is modulated by it; else the observation as it is, and None.

    Raises:
        ConfigError: the observations have no goal.
    """
    if not film:
        return obs, None
    if not isinstance(obs, Mapping) or GOAL not in obs or len(obs) < 2:
        raise ConfigError(f"network.goal = 'film': expected observations that are dictionaries with a key '{GOAL}' among others")
    return {name: x for name, x in obs.items() if name != GOAL}, ravel_observation(obs[GOAL])


def make_network(spec: Any, num_outputs: int, num_values: int = 1, policy_gain: float = 0.01) -> nn.Module:
    """The actor-critic that a config's `network` field describes, or a flax module as it is.

    Tables, with the defaults where there are any:

    - `{ type = "mlp", hidden = [64, 64], activation = "tanh", shared = false, goal = "concat" }`
    - `{ type = "gru", size = 64, hidden = [64], head_hidden = [64], activation = "tanh", goal = "concat" }`: also "lstm", and
      "block_gru" with `blocks = 8`.
    - any type with an encoder, and `hidden` and `head_hidden` as for "gru": `encoder = "cnn"` (images; `channels = [16],
      kernels = [3], strides = [1]`), `encoder = "dict"` (vectors and images; `depth = 16` channels of the first convolution), or
      `encoder = "entities"` (a transformer over sets; `layers = 2, heads = 4, width = 64`, and `pointer = true` where the actions
      are the entities).

    `hidden` and `activation` are those of the layers after an encoder; encoders have their own. `goal = "film"`: the
    observation's `goal` modulates the first dense layer.

    Raises:
        ConfigError: an unknown key, activation or type, or a value that is not allowed.
    """
    if isinstance(spec, nn.Module):
        return spec
    both = ("hidden", "activation", "goal")
    encoded = ("encoder", *CONVOLUTIONS, "depth", "layers", "heads", "width", "pointer", "head_hidden")
    memory = (*both, *encoded, "size")
    types = {"mlp": (*both, *encoded, "shared"), "lstm": memory, "gru": memory, "block_gru": (*memory, "blocks")}
    table = network_table(spec, types)
    kind = spec.get("type", "mlp")
    film = _choice(table, "goal", ("concat", "film")) == "film"
    encoder_name = _choice(table, "encoder", ENCODERS)
    _check_belongs(table, kind, encoder_name)
    if film and not table.get("hidden", (64,)):
        raise ConfigError("network.goal = 'film': modulates the first hidden layer, but network.hidden is empty")
    common: dict[str, Any] = {"num_outputs": num_outputs, "num_values": num_values, "film": film, "policy_gain": policy_gain}
    if kind == "mlp" and encoder_name == "mlp":
        return ActorCritic(**common, **table)
    encoder: nn.Module | None = None
    if encoder_name == "cnn":
        convolutions = {key: table.pop(key) for key in CONVOLUTIONS if key in table}
        if convolutions:
            check_convolutions(convolutions)
        encoder = ConvolutionEncoder(**convolutions)
    elif encoder_name == "dict":
        encoder = DictEncoder(depth=table.pop("depth", 16))
    elif encoder_name == "entities":
        width, heads = table.pop("width", 64), table.pop("heads", 4)
        if width % heads:
            raise ConfigError(f"network.heads = {heads}: must divide network.width = {width}")
        encoder = EntityEncoder(width, table.pop("layers", 2), heads)
    size = table.pop("size", 64)
    cell: Any = None
    if kind == "block_gru":
        blocks = table.pop("blocks", 8)
        if size % blocks:
            raise ConfigError(f"network.blocks = {blocks}: must divide network.size = {size}")
        cell = BlockGRUCell(size, blocks)
    elif kind != "mlp":
        cell = {"lstm": LSTMCell, "gru": GRUCell}[kind](size)
    return TrunkActorCritic(encoder=encoder, cell=cell, **common, **table)


def _choice(table: dict[str, Any], key: str, choices: tuple[str, ...]) -> str:
    """Take a key of a table that is one of some names, the first unless given."""
    value = table.pop(key, choices[0])
    if value not in choices:
        raise ConfigError(f"network.{key} = {shown(value)}: {did_you_mean(str(value), choices)}")
    return str(value)


def _check_belongs(table: dict[str, Any], kind: str, encoder: str) -> None:
    """Refuse keys that this type and this encoder would ignore."""
    owners = {
        **dict.fromkeys(CONVOLUTIONS, ("cnn",)),
        "depth": ("dict",),
        "layers": ("entities",),
        "heads": ("entities",),
        "width": ("entities",),
        "pointer": ("entities",),
    }
    for key in table:
        if key in owners and encoder not in owners[key]:
            raise ConfigError(f"network.{key}: belongs to encoder = '{owners[key][0]}', and the encoder is '{encoder}'")
        if key == "head_hidden" and kind == "mlp" and encoder == "mlp":
            raise ConfigError(
                "network.head_hidden: belongs to networks with memory or an encoder; give all layers as network.hidden"
            )
        if key == "shared" and encoder != "mlp":
            raise ConfigError(f"network.shared: with encoder = '{encoder}' actor and critic always share it")
