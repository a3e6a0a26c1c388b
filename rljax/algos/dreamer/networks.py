"""The networks of DreamerV3 (Hafner et al., 2025): world model, actor and critic of every published size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.core.errors import ConfigError
from rljax.core.keys import draw
from rljax.core.spaces import Box, Discrete, as_space, head_sizes
from rljax.nn.decoders import DictDecoder, Parts
from rljax.nn.distributions import is_bounded, mask_logits, scaled_to_box, several_heads
from rljax.nn.encoders import DictEncoder
from rljax.nn.initializers import truncated_normal_params
from rljax.nn.layers import MLP, sigmoid
from rljax.nn.rssm import RSSM, draw_index, unimix_logits
from rljax.nn.transforms import TwoHot


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
        obs_projection: of DreamerPro, `token -> [B, 32]`.
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

    def apply_rssm(self, method: str, params: Any, *arguments: Any) -> Any:
        """A method of the `RSSM`: "observe", "imagine" or "prior"."""
        return self.rssm.apply({"params": params["rssm"]}, *arguments, method=method)


def apply_batched(module: nn.Module, params: Any, x: jax.Array) -> Any:
    """A module of vectors `[B, D]` on `[..., D]`, its arrays in f32."""
    out = module.apply({"params": params}, x.reshape(-1, x.shape[-1]))
    return jax.tree.map(lambda y: y.reshape(*x.shape[:-1], *y.shape[1:]).astype(jnp.float32), out)


def make_networks(
    size: str, representation: str, obs: Any, policy: DreamerPolicy, dtype: Any, unroll: int = 1, normalized: bool = False
) -> Networks:
    """The networks for one observation of the shapes of `obs`.

    Args:
        size: a name in `SIZES`.
        representation: one of `REPRESENTATIONS`.
        obs: tree of `jax.ShapeDtypeStruct`.
        policy: of the environment's actions.
        dtype: of the products; None: f32.
        unroll: of the scans over time.
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
    projection = obs_projection = None
    if representation == "dreamerpro":
        projection, obs_projection = nn.Dense(PROJECTION), nn.Dense(PROJECTION)
    elif representation != "decoder":
        projection = nn.Dense(tokens, use_bias=False)
    return Networks(
        encoder=encoder,
        rssm=RSSM(policy.size, tokens, deter, hidden, classes, dtype=dtype, unroll=unroll),
        decoder=DictDecoder(vector_size, images, (hidden,) * 3, depth, dtype=dtype) if representation == "decoder" else None,
        reward=MLP((hidden,), TWO_HOT.num_bins, norm="rms", dtype=dtype),
        cont=MLP((hidden,), 1, norm="rms", dtype=dtype),
        actor=MLP((hidden,) * 3, policy.num_outputs, norm="rms", dtype=dtype),
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


class DreamerPolicy(NamedTuple):
    """Actions from a policy's outputs, as f32 vectors `[..., A]`: one-hot for each head, or numbers.

    Attributes:
        size: A.
        num_outputs: length of the actor's output.
        noise_size: random numbers for one action.
        noise: `(key, batch shape) -> [*batch, noise_size]`.
        sample: `(outputs, noise, mask or None) -> action`.
        mode: `(outputs, mask or None) -> action`.
        log_prob: `(outputs, action) -> f32 [...]`.
        entropy: `outputs -> f32 [...]`.
        to_env: `action -> action` as the environment takes it.
    """

    size: int
    num_outputs: int
    noise_size: int
    noise: Callable[[jax.Array, tuple[int, ...]], jax.Array]
    sample: Callable[[jax.Array, jax.Array, jax.Array | None], jax.Array]
    mode: Callable[[jax.Array, jax.Array | None], jax.Array]
    log_prob: Callable[[jax.Array, jax.Array], jax.Array]
    entropy: Callable[[jax.Array], jax.Array]
    to_env: Callable[[jax.Array], Any]


def make_policy(space: Any) -> DreamerPolicy:
    """The policy for an action space: Box, Discrete, MultiDiscrete or a Dict of Discrete.

    Of a Box with finite bounds -1 and 1 stand for these; without, actions are numbers near [-1, 1], so scale the environment's.

    Raises:
        ConfigError: another space.
    """
    space = as_space(space)
    if isinstance(space, Box):
        return _continuous(space)
    sizes = head_sizes(space)
    if sizes is None:
        raise ConfigError(f"action space {space}: Dreamer expects Discrete, MultiDiscrete, a Dict of Discrete, or Box")
    return _discrete(sizes, space)


def _discrete(sizes: tuple[int, ...], space: Any) -> DreamerPolicy:
    named = (lambda index: index[..., 0]) if isinstance(space, Discrete) else several_heads(space)[1]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]

    def heads(x: jax.Array) -> list[jax.Array]:
        return jnp.split(x, ends, axis=-1)

    def log_probs(outputs: jax.Array, mask: jax.Array | None) -> list[jax.Array]:
        # Mixed with the uniform distribution, without which the entropy collapses; illegal actions stay impossible.
        masks = [None] * len(sizes) if mask is None else heads(mask)
        mixed = [unimix_logits(logits) for logits in heads(outputs)]
        return [p if m is None else jax.nn.log_softmax(mask_logits(p, m)) for p, m in zip(mixed, masks, strict=True)]

    def one_hot(indices: list[jax.Array]) -> jax.Array:
        return jnp.concatenate([jax.nn.one_hot(i, n) for i, n in zip(indices, sizes, strict=True)], axis=-1)

    def sample(outputs: jax.Array, noise: jax.Array, mask: jax.Array | None) -> jax.Array:
        return one_hot([draw_index(p, noise[..., i]) for i, p in enumerate(log_probs(outputs, mask))])

    def mode(outputs: jax.Array, mask: jax.Array | None) -> jax.Array:
        return one_hot([jnp.argmax(p, axis=-1) for p in log_probs(outputs, mask)])

    def log_prob(outputs: jax.Array, action: jax.Array) -> jax.Array:
        return jnp.sum(jnp.concatenate(log_probs(outputs, None), axis=-1) * action, axis=-1)

    def entropy(outputs: jax.Array) -> jax.Array:
        p = jnp.concatenate(log_probs(outputs, None), axis=-1)
        return -jnp.sum(jnp.exp(p) * p, axis=-1)

    return DreamerPolicy(
        size=sum(sizes),
        num_outputs=sum(sizes),
        noise_size=len(sizes),
        noise=lambda key, shape: draw(jax.random.uniform, key, (*shape, len(sizes))),
        sample=sample,
        mode=mode,
        log_prob=log_prob,
        entropy=entropy,
        to_env=lambda action: named(jnp.stack([jnp.argmax(x, axis=-1) for x in heads(action)], axis=-1).astype(jnp.int32)),
    )


MIN_STD, MAX_STD = 0.1, 1.0


def normal_parameters(outputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`(mean, std)`, each `[..., A]`: tanh, and .9 sigmoid(s + 2) + .1, of the two halves of the outputs."""
    mean, std = jnp.split(outputs, 2, axis=-1)
    return jnp.tanh(mean), (MAX_STD - MIN_STD) * sigmoid(std + 2.0) + MIN_STD


def _continuous(space: Box) -> DreamerPolicy:
    size = space.flat_dim

    def to_env(action: jax.Array) -> jax.Array:
        if is_bounded(space):
            return scaled_to_box(space, jnp.clip(action, -1.0, 1.0))
        return action.reshape(*action.shape[:-1], *space.shape).astype(space.dtype)

    def sample(outputs: jax.Array, noise: jax.Array, _: jax.Array | None) -> jax.Array:
        mean, std = normal_parameters(outputs)
        return mean + std * noise

    def log_prob(outputs: jax.Array, action: jax.Array) -> jax.Array:
        mean, std = normal_parameters(outputs)
        per_number = -0.5 * jnp.square((action - mean) / std) - jnp.log(std) - 0.5 * math.log(2.0 * math.pi)
        return jnp.sum(per_number, axis=-1)

    def entropy(outputs: jax.Array) -> jax.Array:
        _, std = normal_parameters(outputs)
        return jnp.sum(jnp.log(std) + 0.5 * math.log(2.0 * math.pi * math.e), axis=-1)

    return DreamerPolicy(
        size=size,
        num_outputs=2 * size,
        noise_size=size,
        noise=lambda key, shape: draw(jax.random.normal, key, (*shape, size)),
        sample=sample,
        mode=lambda outputs, _: normal_parameters(outputs)[0],
        log_prob=log_prob,
        entropy=entropy,
        to_env=to_env,
    )
