"""The networks of DreamerV3 (Hafner et al., 2025): world model, actor and critic of every published size."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.core.errors import ConfigError
from rljax.nn.encoders import DictEncoder
from rljax.nn.latent.decoders import DictDecoder, Parts
from rljax.nn.latent.rssm import RSSM
from rljax.nn.modules.initializers import truncated_normal_params
from rljax.nn.modules.layers import MLP
from rljax.nn.modules.transforms import TwoHot
from rljax.nn.outputs.actions import ActionHead


class Size(NamedTuple):
    """Deterministic state, hidden units (of all perceptrons too), classes of a categorical, channels of convolutions."""

    deter: int
    hidden: int
    classes: int
    depth: int


SIZES = {
    "debug": Size(128, 32, 4, 2),
    "1M": Size(512, 64, 4, 4),
    "12M": Size(2048, 256, 16, 16),
    "25M": Size(3072, 384, 24, 24),
    "50M": Size(4096, 512, 32, 32),
    "100M": Size(6144, 768, 48, 48),
    "200M": Size(8192, 1024, 64, 64),
    "400M": Size(12288, 1536, 96, 96),
}
"""The published sizes, named by their parameters, and `debug` of about 0.1M for tests."""

REPRESENTATIONS = ("decoder", "r2dreamer", "infonce", "dreamerpro")
"""Losses that tie the latent states to the observations; see `rljax.algos.dreamer.representation`."""

IMAGE_STAGES = 4
PROTOTYPES, PROJECTION = 2500, 32
TARGETS = ("encoder", "obs_projection")
"""Networks of which DreamerPro has moving averages, its targets."""

TWO_HOT = TwoHot()


class Networks(NamedTuple):
    """The modules, whose parameters are a dictionary with their names as keys.

    Attributes:
        encoder: `obs [B, ...] -> token [B, E]`.
        rssm: states from tokens and actions.
        decoder: `feature [B, F] -> Parts`; None for representations without reconstruction.
        reward: `feature -> logits [B, 255]` of a two-hot number.
        cont: `feature -> logit [B, 1]` that the episode goes on.
        actor: `feature -> outputs` of the policy.
        critic: `feature -> logits [B, 255]`.
        projection: representations without reconstruction: `feature -> [B, E]`, or of DreamerPro `[B, 32]`.
        obs_projection: projection of DreamerPro, `token -> [B, 32]`.
    """

    encoder: DictEncoder
    rssm: RSSM
    decoder: DictDecoder | None
    reward: MLP
    cont: MLP
    actor: MLP
    critic: MLP
    projection: nn.Dense | None
    obs_projection: nn.Dense | None

    def apply(self, name: str, params: Any, x: Any) -> Any:
        """A module on arrays with any leading axes: those of the first leaf before the module's own."""
        return apply_batched(getattr(self, name), params[name], x)

    def rounded(self, params: Any, *names: str) -> Any:
        """Return the parameters with the kernels of some modules in the dtype of their products, to which these round them: in a
        scan XLA would round them in each step."""

        def kernel(path: Any, x: jax.Array, dtype: Any) -> jax.Array:
            return x.astype(dtype) if path[-1].key == "kernel" else x

        dtypes = {name: getattr(self, name).dtype or jnp.float32 for name in names}
        each = {name: jax.tree_util.tree_map_with_path(partial(kernel, dtype=dtypes[name]), params[name]) for name in names}
        return {**params, **each}

    def apply_rssm(self, method: str, params: Any, *arguments: Any) -> Any:
        """A method of the `RSSM`: "observe", "imagine" or "prior"."""
        return self.rssm.apply({"params": params["rssm"]}, *arguments, method=method)


def apply_batched(module: nn.Module, params: Any, x: jax.Array) -> Any:
    """A module of vectors `[B, D]` on `[..., D]`, its arrays in f32."""
    out = module.apply({"params": params}, x.reshape(-1, x.shape[-1]))
    return jax.tree.map(lambda y: y.reshape(*x.shape[:-1], *y.shape[1:]).astype(jnp.float32), out)


def make_networks(
    size: str, representation: str, obs: Any, head: ActionHead, dtype: Any, unroll: int = 1, normalized: bool = False
) -> Networks:
    """The networks for one observation of the shapes of `obs`.

    Args:
        size: a name in `SIZES`.
        representation: one of `REPRESENTATIONS`.
        obs: tree of `jax.ShapeDtypeStruct`.
        head: action head of the environment.
        dtype: dtype of the matrix products; None: f32.
        unroll: number of unrolled steps in scans over time.
        normalized: vectors are standardised before they come here.

    Raises:
        ConfigError: an image's sides cannot be halved four times, or images are standardised.
    """
    deter, hidden, classes, depth = SIZES[size]
    vector_size = sum(math.prod(x.shape) for x in jax.tree.leaves(obs) if not is_image(x))
    images = tuple(x.shape for x in jax.tree.leaves(obs) if is_image(x))
    multiple = 2**IMAGE_STAGES
    if images and normalized:
        raise ConfigError("normalize_observations = true: expected false for images, which are scaled as they are")
    for height, width, _ in images:
        if height % multiple or width % multiple:
            raise ConfigError(
                f"Dreamer takes images whose sides are multiples of {multiple}, not {height} x {width}: "
                "use flatten_observations = true, or an environment of another size"
            )
    encoder = DictEncoder((hidden,) * 3, depth, (2, 3, 4, 4), kernel=5, norm="rms", symlog=True, dtype=dtype)
    tokens = (hidden if vector_size else 0) + sum(
        (height // multiple) * (width // multiple) * 4 * depth for height, width, _ in images
    )
    decoder = projection = obs_projection = None
    if representation == "decoder":
        decoder = DictDecoder(vector_size, images, (hidden,) * 3, depth, dtype=dtype, deter=deter)
    elif representation == "dreamerpro":
        projection, obs_projection = nn.Dense(PROJECTION), nn.Dense(PROJECTION)
    else:
        projection = nn.Dense(tokens, use_bias=False)
    return Networks(
        encoder=encoder,
        rssm=RSSM(head.action.shape[0], tokens, deter, hidden, classes, dtype=dtype, unroll=unroll),
        decoder=decoder,
        reward=MLP((hidden,), TWO_HOT.num_bins, norm="rms", dtype=dtype),
        cont=MLP((hidden,), 1, norm="rms", dtype=dtype),
        actor=MLP((hidden,) * 3, head.num_outputs, norm="rms", dtype=dtype),
        critic=MLP((hidden,) * 3, TWO_HOT.num_bins, norm="rms", dtype=dtype),
        projection=projection,
        obs_projection=obs_projection,
    )


GAINS = {"reward/head": 0.0, "critic/head": 0.0, "actor/head": 0.01}
"""Output scales: numbers are predicted as 0 and actions as uniform, before anything is known of them."""


def init_networks(networks: Networks, key: jax.Array, obs: Any) -> dict[str, Any]:
    """Parameters of all networks, from one draw; `obs` is the tree of shapes of one observation."""
    rssm = networks.rssm
    batched = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), obs)
    feature = jnp.zeros((1, rssm.deter + rssm.groups * rssm.classes))
    token = jnp.zeros((1, rssm.tokens))

    def init(batched: Any) -> dict[str, Any]:
        inputs = {"encoder": prepared(batched, 1), "obs_projection": token}
        params = {}
        for name, module in networks._asdict().items():
            if module is not None and name != "rssm":
                params[name] = module.init(jax.random.key(0), inputs.get(name, feature))["params"]
        params["rssm"] = rssm.init(jax.random.key(0), feature[:, : rssm.deter], method="prior")["params"]
        return params

    shapes = jax.eval_shape(init, batched)
    if networks.obs_projection is not None:
        # As a kernel: prototypes are the last layer of a classifier.
        shapes["prototypes"] = {"kernel": jax.ShapeDtypeStruct((PROJECTION, PROTOTYPES), jnp.float32)}
    return truncated_normal_params(key, shapes, GAINS)


def is_image(x: Any, batch_ndim: int = 0) -> bool:
    """Return whether a leaf of observations with `batch_ndim` leading axes holds images, uint8 `[H, W, C]`, or else vectors."""
    return len(x.shape) == batch_ndim + 3 and x.dtype == jnp.uint8


def prepared(obs: Any, batch_ndim: int) -> Any:
    """Observations with `batch_ndim` leading axes as the encoder takes them, `[B, ...]`: images, and vectors f32 of all else."""

    def leaf(x: Any) -> Any:
        if is_image(x, batch_ndim):
            return x.reshape(-1, *x.shape[-3:])
        return x.reshape(-1, math.prod(x.shape[batch_ndim:])).astype(jnp.float32)

    return jax.tree.map(leaf, obs)


def encode(networks: Networks, params: Any, obs: Any, batch_ndim: int) -> jax.Array:
    """Tokens `[..., E]` of observations with `batch_ndim` leading axes."""
    batch = jax.tree.leaves(obs)[0].shape[:batch_ndim]
    tokens: Any = networks.encoder.apply({"params": params["encoder"]}, prepared(obs, batch_ndim))
    return jnp.reshape(tokens, (*batch, -1))


def observation_parts(obs: Any, batch_ndim: int) -> Parts:
    """Return the targets of a decoder: all vectors as one, and images in [0, 1]."""
    batch = jax.tree.leaves(obs)[0].shape[:batch_ndim]
    vectors, images = [], []
    for x in jax.tree.leaves(obs):
        if is_image(x, batch_ndim):
            images.append(x.astype(jnp.float32) / 255.0)
        else:
            vectors.append(x.reshape(*batch, -1).astype(jnp.float32))
    return Parts(jnp.concatenate(vectors, axis=-1) if vectors else None, tuple(images))
