"""The `network` table of a configuration: one dataclass describes any network, and one function reads it.

`type` is the kind of memory ("mlp": none), `encoder` the encoder of one observation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.core.plain import OBJECT_PREFIX, class_name
from rljax.nn.modules.layers import ACTIVATIONS

MAX_LAYERS = 256
"""Largest number of layers: tracing a program with thousands of layers would never end."""

MAX_SIZE = 2**20
"""Largest number of units in a layer."""

SIZES_ALLOWED = f"whole numbers > 0, such as [64, 64] (at most {MAX_LAYERS}, each at most {MAX_SIZE})"

ENCODERS = ("mlp", "cnn", "dict", "entities", "cells")
MEMORIES = ("lstm", "gru", "block_gru")
GOALS = ("concat", "film")

CONVOLUTIONS = ("channels", "kernels", "strides")
"""Keys of convolutions: lists, one number for each."""

CELL_CONVOLUTIONS = ("channels", "kernels", "dilations")
"""Those of convolutions that keep the sides of a grid."""

LISTS = (*CONVOLUTIONS, "dilations")
"""Both."""

OWNERS = {
    "channels": ("cnn", "cells"),
    "kernels": ("cnn", "cells"),
    "strides": ("cnn",),
    "dilations": ("cells",),
    "depth": ("dict",),
    "layers": ("entities",),
    "heads": ("entities",),
    "width": ("entities",),
    "pointer": ("entities",),
}
"""The encoders that each of these keys belongs to."""


@dataclasses.dataclass(frozen=True)
class NetworkSpec:
    """A network as described by a table. Keys that the table leaves out are None where each kind of network has its own default.

    Attributes:
        type: kind of memory: "mlp" (none), "lstm", "gru", "block_gru".
        encoder: "mlp" (flattens the observation), "cnn" (images), "dict" (vectors and images), "entities" (sets), "cells" (grids
            whose cells have actions of their own).
        hidden: sizes of the dense layers after the encoder.
        head_hidden: sizes of the dense layers of each head, for networks with memory or an encoder.
        activation: activation of the dense layers, a name in `ACTIVATIONS`.
        layer_norm: whether to normalise before each activation (Ba et al., 2016).
        shared: whether policy and value share one torso, for networks without memory and encoder.
        goal: "concat", or "film": the observation's `goal` modulates the first dense layer.
        size: number of units of the cell.
        blocks: number of blocks of a block-diagonal GRU.
        channels: number of channels of each convolution ("cnn", "cells").
        kernels: width of each kernel ("cnn", "cells").
        strides: stride of each convolution ("cnn").
        dilations: distance between the cells that each kernel sees ("cells").
        depth: number of channels of the first convolution ("dict").
        layers: number of layers of the transformer ("entities").
        heads: number of heads of its attention ("entities").
        width: length of an entity's vector ("entities").
        pointer: whether the actions are the entities ("entities").
        opponent_model: an opponent model whose latent factors the network sees beside the observation, its file or a table of
            `rljax.nn.opponents.described`.
    """

    type: str = "mlp"
    encoder: str = "mlp"
    hidden: tuple[int, ...] | None = None
    head_hidden: tuple[int, ...] | None = None
    activation: str | None = None
    layer_norm: bool | None = None
    shared: bool = False
    goal: str = "concat"
    size: int = 64
    blocks: int = 8
    channels: tuple[int, ...] = (16,)
    kernels: tuple[int, ...] = (3,)
    strides: tuple[int, ...] = (1,)
    dilations: tuple[int, ...] | None = None
    depth: int = 16
    layers: int = 2
    heads: int = 4
    width: int = 64
    pointer: bool = False
    opponent_model: Any = None

    def given(self, *names: str) -> dict[str, Any]:
        """Return those of the named fields that the table gave, for a module with its own defaults."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def read_network(table: Any, *, heads: bool) -> NetworkSpec:
    """Read a `network` table.

    Args:
        table: the field of a configuration.
        heads: whether the network has policy and value heads; networks without them (of action values, SAC's) have no memory.

    Raises:
        ConfigError: `table` is not a table, a key or name is unknown, a value is not allowed, or keys contradict each other.
    """
    if isinstance(table, str) and table.startswith(OBJECT_PREFIX):
        name = class_name(table)
        again = "give it again, load_run(path, network=...) or fit(config, resume=...)"
        raise ConfigError(f"the network was given as an object of class {name}: {again}")
    if not isinstance(table, Mapping):
        raise ConfigError(f"network = {shown(table)}: expected a table such as {{ hidden = [64, 64] }}, or a flax.linen Module")
    given = dict(table)
    if given.get("type") == "cnn":  # the older form of encoder = "cnn"
        given |= {"type": "mlp", "encoder": "cnn"}
    kind = given.get("type", "mlp")
    types = ("mlp", *MEMORIES) if heads else ("mlp",)
    if kind not in types:
        if kind in MEMORIES:
            raise ConfigError(
                f"network.type = '{kind}': expected 'mlp', since networks of action values and of SAC have no memory"
            )
        if kind in ENCODERS:
            raise ConfigError(f"network.type = '{kind}': type is the kind of memory, expected encoder = '{kind}' without a type")
        raise ConfigError(f"network.type = {shown(kind)}: {did_you_mean(str(kind), types)}")
    keys = _keys(kind, heads)
    for key in given:
        if key == "head_hidden" and not heads:
            raise ConfigError(
                "network.head_hidden: networks of action values and of SAC have no hidden layers of heads; list all layers in "
                "network.hidden"
            )
        if key not in keys:
            owners = " and ".join(f"'{other}'" for other in types if key in _keys(other, heads))
            if owners:
                raise ConfigError(f"network.{key}: belongs to type = {owners}, but the type is '{kind}'")
            raise ConfigError(f"network.{key}: unknown key, {did_you_mean(key, keys)}")
    encoder = given.get("encoder", "mlp")
    for key, choices in (("encoder", ENCODERS), ("goal", GOALS)):
        if given.get(key, choices[0]) not in choices:
            raise ConfigError(f"network.{key} = {shown(given[key])}: {did_you_mean(str(given[key]), choices)}")
    _check_values(given)
    _check_belongs(given, kind, encoder)
    if encoder == "cells":
        if not heads:
            raise ConfigError(
                "network.encoder = 'cells': is for policies, networks of action values have one output for each action"
            )
        _check_cells(given)
    spec = NetworkSpec(**given)
    convolutions = CELL_CONVOLUTIONS if encoder == "cells" else CONVOLUTIONS
    lengths = {key: len(given.get(key, ())) for key in convolutions}
    if any(key in given for key in convolutions) and (len(set(lengths.values())) != 1 or not lengths["channels"]):
        *first, last = convolutions
        raise ConfigError(f"network: expected {', '.join(first)} and {last} of one length, at least 1, got {lengths}")
    if spec.goal == "film" and spec.hidden == ():
        raise ConfigError("network.goal = 'film': modulates the first hidden layer, but network.hidden is empty")
    if spec.width % spec.heads:
        raise ConfigError(f"network.heads = {spec.heads}: must divide network.width = {spec.width}")
    if kind == "block_gru" and spec.size % spec.blocks:
        raise ConfigError(f"network.blocks = {spec.blocks}: must divide network.size = {spec.size}")
    return spec


def _keys(kind: str, heads: bool) -> tuple[str, ...]:
    """Return the keys that a table of this type may have."""
    keys = ("type", "encoder", "hidden", "activation", "layer_norm", "goal", *LISTS, "depth", "layers", "heads", "width")
    if not heads:
        return keys
    of_type = {"mlp": ("shared",), "block_gru": ("size", "blocks")}.get(kind, ("size",))
    return (*keys, "pointer", "head_hidden", "opponent_model", *of_type)


def _check_values(given: dict[str, Any]) -> None:
    """Check each value by itself, and convert lists to tuples."""
    for key in ("hidden", "head_hidden", *LISTS):
        if key not in given:
            continue
        sizes = tuple(given[key]) if isinstance(given[key], list) else given[key]
        if not are_sizes(sizes):
            what = "a list of layer sizes" if "hidden" in key else "a list, one for each convolution"
            raise ConfigError(f"network.{key} = {shown(sizes)}: expected {what}, {SIZES_ALLOWED}")
        given[key] = sizes
    for key in ("size", "blocks", "depth", "layers", "heads", "width"):
        most = MAX_SIZE if key in ("size", "width") else MAX_LAYERS
        if not is_size(given.get(key, 1)):
            raise ConfigError(f"network.{key} = {shown(given[key])}: expected a whole number > 0")
        if given.get(key, 1) > most:
            raise ConfigError(f"network.{key} = {shown(given[key])}: expected a whole number > 0 and <= {most}")
    if given.get("activation", "tanh") not in ACTIVATIONS:
        name = str(given["activation"])
        raise ConfigError(f"network.activation = {shown(name)}: {did_you_mean(name, ACTIVATIONS)}")
    for key in ("shared", "layer_norm", "pointer"):
        if not isinstance(given.get(key, False), bool):
            raise ConfigError(f"network.{key} = {shown(given[key])}: expected true or false")


def _check_belongs(given: Mapping[str, Any], kind: str, encoder: str) -> None:
    """Refuse keys that this type and encoder would ignore."""
    for key in given:
        if encoder not in OWNERS.get(key, (encoder,)):
            owners = " and ".join(f"'{owner}'" for owner in OWNERS[key])
            raise ConfigError(f"network.{key}: belongs to encoder = {owners}, but the encoder is '{encoder}'")
        if key == "head_hidden" and kind == "mlp" and encoder == "mlp":
            raise ConfigError(
                "network.head_hidden: belongs to networks with memory or an encoder; list all layers in network.hidden"
            )
        if key == "opponent_model" and encoder in ("cnn", "cells"):
            raise ConfigError(
                f"network.opponent_model: encoder = '{encoder}' sees one image, and no part of it is an opponent's, "
                "expected 'mlp', 'dict' or 'entities'"
            )
        if key == "shared" and encoder != "mlp":
            raise ConfigError(f"network.shared: with encoder = '{encoder}', actor and critic always share the encoder")


def _check_cells(given: dict[str, Any]) -> None:
    """Refuse what a policy for each cell does not have, and set what the table leaves out."""
    for key, allowed in (("goal", "concat"), ("layer_norm", False), ("head_hidden", ())):
        if given.get(key, allowed) != allowed:
            raise ConfigError(f"network.{key} = {shown(given[key])}: is not for encoder = 'cells'")
    given.setdefault("channels", (32, 32))
    given.setdefault("kernels", (3,) * len(given["channels"]))
    given.setdefault("dilations", (1,) * len(given["channels"]))
    if any(width % 2 == 0 for width in given["kernels"]):
        raise ConfigError(f"network.kernels = {shown(list(given['kernels']))}: expected odd numbers with encoder = 'cells'")


def are_sizes(sizes: Any) -> bool:
    """Return whether this is a list of layer sizes, as `SIZES_ALLOWED` describes."""
    return isinstance(sizes, (list, tuple)) and len(sizes) <= MAX_LAYERS and all(is_size(n) and n <= MAX_SIZE for n in sizes)


def is_size(n: Any) -> bool:
    """Return whether `n` is a whole number above 0."""
    return isinstance(n, int) and not isinstance(n, bool) and n > 0
