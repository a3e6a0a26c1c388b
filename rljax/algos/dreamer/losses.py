"""The losses of DreamerV3 (Hafner et al., 2025): the world model on replayed steps, actor and critic on imagined ones.

Shapes are time-major: `T` rows, `B` sequences, `N = T B` states that imagination starts from, `H` the horizon, `F` a feature.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rljax.algos.dreamer.networks import TWO_HOT, encode, is_image, observation_parts
from rljax.algos.dreamer.parts import DreamerParts, DreamerState
from rljax.algos.dreamer.replay import Replayed
from rljax.algos.dreamer.representation import dreamerpro_loss, infonce_loss, r2dreamer_loss, random_shift
from rljax.collect.normalizers import ReturnNormalizer
from rljax.collect.returns import lambda_returns
from rljax.core.agent import Metrics
from rljax.core.keys import draw
from rljax.nn.latent.decoders import Parts
from rljax.nn.latent.rssm import Latent, kl_loss
from rljax.nn.modules.transforms import symlog

R2DREAMER_SCALE = 0.05
REP_SCALE, REPVAL_SCALE, SLOW_SCALE = 0.1, 0.3, 1.0
FROZEN_PROTOTYPES = 10_000
"""Updates before the prototypes of DreamerPro move."""


class LossNoise(NamedTuple):
    """Random numbers of one loss.

    Attributes:
        observe: f32 in [0, 1) `[T, B, G]`.
        imagine: f32 in [0, 1) `[H, N, G]`.
        action: `[H, N, ...]`, for the policy.
        views: noise of DreamerPro's views: f32 in [0, 1) `[T, 2 B, G]`, and offsets of the images i32 `[T, 2 B, 2]`; else None.
    """

    observe: jax.Array
    imagine: jax.Array
    action: jax.Array
    views: tuple[jax.Array, jax.Array] | None


class Imagined(NamedTuple):
    """Imagined states: `feature [H + 1, N, F]`, of which the first are replayed, and the actions between them `[H, N, A]`."""

    feature: jax.Array
    action: jax.Array


class LossAux(NamedTuple):
    """Results of a loss beside the gradient: latents `[T, B, ...]` to write back, the running range of returns, metrics."""

    latents: Latent
    returns: ReturnNormalizer
    metrics: Metrics


def loss_noise(parts: DreamerParts, key: jax.Array) -> LossNoise:
    """Draw all that one update needs."""
    config, groups = parts.config, parts.networks.rssm.groups
    observe_key, imagine_key, action_key, view_key, shift_key = jax.random.split(key, 5)
    length, batch, states = config.batch_length, config.batch_size, config.batch_length * config.batch_size
    views = None
    if config.representation == "dreamerpro":
        uniform = draw(jax.random.uniform, view_key, (length, 2 * batch, groups))
        views = (uniform, jax.random.randint(shift_key, (1, 2 * batch, 2), 0, 9) + jnp.zeros((length, 1, 1), jnp.int32))
    return LossNoise(
        observe=draw(jax.random.uniform, observe_key, (length, batch, groups)),
        imagine=draw(jax.random.uniform, imagine_key, (config.horizon, states, groups)),
        action=parts.head.noise(action_key, (config.horizon, states)),
        views=views,
    )


def world_model_loss(
    parts: DreamerParts, params: Any, state: DreamerState, batch: Replayed, noise: LossNoise
) -> tuple[jax.Array, Latent, Metrics]:
    """Representation, reward, continuation and the two KL losses of replayed rows, added up with their scales.

    Args:
        parts: parts of the configuration.
        params: parameters of all networks; the loss has a gradient for these alone.
        state: state of the run before this update; DreamerPro needs its `target` and its count of `updates`.
        batch: rows.
        noise: to draw latents with.

    Returns:
        The loss f32 [], the latents `[T, B, ...]`, and metrics.
    """
    config, networks = parts.config, parts.networks
    tokens = encode(networks, params, batch.obs, 2)
    latents, posterior = networks.apply_rssm("observe", params, batch.latent, tokens, batch.action, batch.is_first, noise.observe)
    prior = networks.apply_rssm("prior", params, latents.deter)
    kl = kl_loss(posterior, prior, config.free_nats)
    feature = latents.feature
    representation, metrics = representation_loss(parts, params, state, batch, noise, tokens, feature)
    reward = TWO_HOT.loss(networks.apply("reward", params, feature), batch.reward)
    goes_on = jnp.where(batch.is_terminal, 0.0, config.gamma)
    cont = optax.sigmoid_binary_cross_entropy(networks.apply("cont", params, feature)[..., 0], goes_on)
    terms = means_of(reward, cont, kl.dyn, kl.rep, kl.value, entropy_of(posterior), entropy_of(prior))
    names = ("reward_loss", "cont_loss", "dyn_loss", "rep_loss", "kl", "posterior_entropy", "prior_entropy")
    metrics |= {f"train/{name}": term for name, term in zip(names, terms, strict=True)}
    metrics["train/representation_loss"] = representation
    return representation + terms[0] + terms[1] + terms[2] + REP_SCALE * terms[3], latents, metrics


def means_of(*arrays: jax.Array) -> jax.Array:
    """Return the mean of each array, f32 `[arrays]`, with one division for all."""
    return jnp.stack([jnp.sum(x) for x in arrays]) / jnp.asarray([x.size for x in arrays], jnp.float32)


def entropy_of(log_probs: jax.Array) -> jax.Array:
    """Return the entropy of all groups together, f32 `[...]`, from log probabilities `[..., G, C]`."""
    return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=(-2, -1))


def reconstruction_loss(prediction: Parts, obs: Any) -> jax.Array:
    """Squared errors f32 `[T, B]`, summed over all numbers of an observation: vectors by their symlog, images in [0, 1]."""
    truth, loss = observation_parts(obs, 2), jnp.zeros(())
    if prediction.vector is not None and truth.vector is not None:
        loss = loss + jnp.sum(jnp.square(prediction.vector - symlog(truth.vector)), axis=-1)
    for predicted, image in zip(prediction.images, truth.images, strict=True):
        loss = loss + jnp.sum(jnp.square(predicted - image), axis=(-3, -2, -1))
    return loss


def representation_loss(
    parts: DreamerParts,
    params: Any,
    state: DreamerState,
    batch: Replayed,
    noise: LossNoise,
    tokens: jax.Array,
    feature: jax.Array,
) -> tuple[jax.Array, Metrics]:
    """The loss that ties features to observations, times its scale; arguments as in `world_model_loss`.

    `tokens` `[T, B, D]` are the encoder's outputs, `feature` `[T, B, F]` those of the states.
    """
    kind, networks = parts.config.representation, parts.networks
    if kind == "decoder":
        return jnp.mean(reconstruction_loss(networks.apply("decoder", params, feature), batch.obs)), {}
    if kind == "dreamerpro":
        swav, temporal, norm = _prototype_losses(parts, params, state, batch, noise)
        return swav + temporal + norm, {"train/swav_loss": swav, "train/temporal_loss": temporal, "train/norm_loss": norm}
    predicted = networks.apply("projection", params, feature).reshape(-1, tokens.shape[-1])
    truth = jax.lax.stop_gradient(tokens).astype(jnp.float32).reshape(-1, tokens.shape[-1])
    if kind == "r2dreamer":
        return R2DREAMER_SCALE * r2dreamer_loss(predicted, truth), {}
    return infonce_loss(predicted, truth), {}


def _prototype_losses(
    parts: DreamerParts, params: Any, state: DreamerState, batch: Replayed, noise: LossNoise
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The terms of DreamerPro on two views of every sequence: images shifted apart, vectors as they are."""
    assert noise.views is not None
    networks, target = parts.networks, state.target
    uniform, offsets = noise.views

    def twice(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, x], axis=1)

    def view(x: jax.Array) -> jax.Array:
        return random_shift(twice(x), offsets) if is_image(x, 2) else twice(x)

    views = jax.tree.map(view, batch.obs)
    tokens = encode(networks, params, views, 2)
    start = jax.tree.map(lambda x: jnp.concatenate([x, x], axis=0), batch.latent)
    latents, _ = networks.apply_rssm("observe", params, start, tokens, twice(batch.action), twice(batch.is_first), uniform)

    def split(x: jax.Array) -> jax.Array:
        """`[T, 2 B, D] -> [2, T B, D]`, the views apart."""
        return jnp.stack([half.reshape(-1, x.shape[-1]) for half in jnp.split(x, 2, axis=1)])

    prototypes = params["prototypes"]["kernel"].T
    prototypes = jnp.where(state.updates < FROZEN_PROTOTYPES, jax.lax.stop_gradient(prototypes), prototypes)
    truth = networks.apply("obs_projection", target, encode(networks, target, views, 2))
    return dreamerpro_loss(
        prototypes,
        split(networks.apply("obs_projection", params, tokens)),
        split(networks.apply("projection", params, latents.feature)),
        split(truth),
    )


def imagine(parts: DreamerParts, params: Any, start: Latent, noise: LossNoise) -> Imagined:
    """H steps of the policy ahead of every state `[N, ...]`; nothing of it passes a gradient.

    No action is masked there: the model does not predict which are legal.
    """
    networks, head = parts.networks, parts.head
    params, start = jax.lax.stop_gradient((networks.rounded(params, "rssm", "actor"), start))

    def act(feature: jax.Array, noise: jax.Array) -> jax.Array:
        return head.sample(head.distribution(networks.apply("actor", params, feature), None), noise)

    latents, action = networks.apply_rssm("imagine", params, start, act, noise.action, noise.imagine)
    return Imagined(jnp.concatenate([start.feature[None], latents.feature]), action)


def actor_critic_loss(
    parts: DreamerParts, params: Any, state: DreamerState, imagined: Imagined
) -> tuple[jax.Array, jax.Array, ReturnNormalizer, Metrics]:
    """Policy gradient and value loss on imagined states; the world model gets no gradient (Hafner et al., 2025, eq. 6 and 7).

    Both continuous and discrete actions are reinforced by the advantage over the critic, from which returns also bootstrap. The
    slow critic, a moving average of the critic, only regularises it.

    Args:
        parts: parts of the configuration.
        params: parameters of all networks; the loss has a gradient for those of actor and critic alone.
        state: state of the run before this update: its `slow_critic`, and `returns`, the running range.
        imagined: from `imagine`.

    Returns:
        The loss f32 [], the returns of the first states f32 `[N]`, the next running range, and metrics.
    """
    config, networks = parts.config, parts.networks
    feature = imagined.feature
    frozen = jax.lax.stop_gradient(params)
    reward = TWO_HOT.decode(networks.apply("reward", frozen, feature))
    cont = jax.nn.sigmoid(networks.apply("cont", frozen, feature)[..., 0])
    logits = networks.apply("critic", params, feature)
    value = jax.lax.stop_gradient(TWO_HOT.decode(logits))
    # The predicted probability that the episode continues includes the discount.
    weight = jnp.cumprod(cont, axis=0)[:-1]
    target = lambda_returns(reward, value, cont, config.return_lambda)
    returns = state.returns.update(target, config.return_decay)
    advantage = (target - value[:-1]) / returns.scale()

    # On all features, though those of the last states are not needed: a slice of them would be a copy of nearly all of them.
    distribution = parts.head.distribution(networks.apply("actor", params, feature)[:-1], None)
    entropy = distribution.entropy()
    policy_loss = -weight * (distribution.log_prob(imagined.action) * advantage + config.ent_coef * entropy)
    value_loss = weight * critic_loss(parts, state, feature, logits[:-1], target)
    names = ("policy_loss", "value_loss", "entropy", "value", "imagined_return", "imagined_cont")
    means = means_of(policy_loss, value_loss, entropy, value, target, cont)
    metrics = {f"train/{name}": mean for name, mean in zip(names, means, strict=True)}
    # The rewards behind a predicted end are of no episode: counted in, they would tell nothing about those that are replayed.
    metrics["train/imagined_reward"] = jnp.sum(weight * reward[1:]) / jnp.maximum(jnp.sum(weight), 1e-8)
    metrics |= {"train/advantage": jnp.mean(jnp.abs(advantage)), "train/return_scale": returns.scale()}
    return means[0] + means[1], target[0], returns, metrics


def critic_loss(parts: DreamerParts, state: DreamerState, feature: jax.Array, logits: jax.Array, target: jax.Array) -> jax.Array:
    """Cross-entropies f32 `[T, B]` of the critic's logits with returns, and with the slow critic's means; features are those of
    one row more, `[T + 1, B, F]`."""
    frozen = jax.lax.stop_gradient({"critic": state.slow_critic})
    slow = TWO_HOT.decode(parts.networks.apply("critic", frozen, jax.lax.stop_gradient(feature)))[:-1]
    # Both targets are weights of the same logarithms.
    weights = TWO_HOT.encode(jax.lax.stop_gradient(target)) + SLOW_SCALE * TWO_HOT.encode(slow)
    return -jnp.sum(weights * jax.nn.log_softmax(logits), axis=-1)


def replay_value_loss(
    parts: DreamerParts, params: Any, state: DreamerState, batch: Replayed, feature: jax.Array, bootstrap: jax.Array
) -> jax.Array:
    """The critic's loss on replayed rows, f32 []: ties it to rewards that were had, and its gradient reaches the world model.

    Args:
        parts: parts of the configuration.
        params: parameters of all networks.
        state: state of the run before this update: its `slow_critic`.
        batch: rows.
        feature: features of the replayed states, with their gradient, `[T, B, F]`.
        bootstrap: the imagined returns of the same states, f32 `[T, B]`.
    """
    config = parts.config
    discount = jnp.where(batch.is_terminal, 0.0, config.gamma)
    target = lambda_returns(batch.reward, bootstrap, discount, config.return_lambda, batch.is_last)
    logits = parts.networks.apply("critic", params, feature)[:-1]
    # The last row of an episode has no return, only the reward on arrival.
    return jnp.mean(jnp.where(batch.is_last[:-1], 0.0, critic_loss(parts, state, feature, logits, target)))


def dreamer_loss(
    parts: DreamerParts, params: Any, state: DreamerState, batch: Replayed, noise: LossNoise
) -> tuple[jax.Array, LossAux]:
    """Add up all losses of one update, for one optimiser; arguments as in `world_model_loss` and `actor_critic_loss`."""
    model, latents, metrics = world_model_loss(parts, params, state, batch, noise)
    start = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), latents)
    imagined = imagine(parts, params, start, noise)
    behaviour, bootstrap, returns, more = actor_critic_loss(parts, params, state, imagined)
    bootstrap = bootstrap.reshape(batch.reward.shape)
    repval = replay_value_loss(parts, params, state, batch, latents.feature, bootstrap)
    # The first rows of episodes have the reward 0 of nothing done, which imagination never visits.
    mean_reward = jnp.sum(jnp.where(batch.is_first, 0.0, batch.reward)) / jnp.maximum(jnp.sum(~batch.is_first), 1)
    metrics |= more | {"train/repval_loss": repval, "train/replayed_reward": mean_reward}
    loss = model + behaviour + REPVAL_SCALE * repval
    return loss, LossAux(jax.lax.stop_gradient(latents), returns, metrics | {"train/loss": loss})
