"""Opponent models: a beta-VAE of an opponent's observed steps in recorded games, whose latent factors a policy sees beside its
observation.

    rljax.demonstrations("runs/my_league", "games", num_episodes=1000, against=["runs/old", "random"])
    model, metrics = train_opponent_model(rljax.open_dataset("games"), key, window=16)
    model.save("opponents.json")
    config = config.replace(network={"opponent_model": "opponents.json"})  # the model is frozen

An idea of ROA-Star (Huang et al., "A robust and opponent-aware league training method for StarCraft II", 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rljax.algos.common.feed import make_feed
from rljax.collect.demos import Dataset, Window
from rljax.collect.minibatches import init_optimizer, minibatch_steps
from rljax.collect.rollout import reset_carry
from rljax.core.agent import Metrics
from rljax.core.environments.wrappers import split_privileged
from rljax.core.errors import ConfigError, check_int, shown
from rljax.core.games.game import Game
from rljax.core.games.versus import Versus, check_scripted, one_of, without_view
from rljax.core.keys import as_key
from rljax.nn.latent.vae import BetaVAE, beta_vae_loss
from rljax.nn.observations import flat_axes
from rljax.nn.opponents import Observed, OpponentModel, check_observed, observed_row, slide
from rljax.nn.spec import SIZES_ALLOWED, are_sizes


def against_scripted(game: Game, env_params: Any, names: Sequence[str]) -> Versus:
    """Return a game as an environment of one agent, against one of the game's scripted players, drawn anew for each episode.

    `state.carry` is the number of the opponent, i32 `[P]`, from 1 in the order of `names`; if one of them remembers something, it
    is that number and the memories.

    Raises:
        ConfigError: the game has no scripted player of a name.
    """
    for name in names:
        check_scripted(game, name, f"scripted player '{name}'")
    return Versus(game, one_of([without_view(game.scripted[name], env_params) for name in names]))


def opponent_windows(window: Window, before: jax.Array, observed: Observed) -> tuple[jax.Array, jax.Array]:
    """Return the windows at each step of a window of data, f32 `[T, S, W, D + 1]`, and after the last, `[S, W, D + 1]`.

    Args:
        window: arrays `[T, S, ...]`.
        before: windows before the first step, f32 `[S, W, D + 1]`.
        observed: what the model sees of an observation.
    """
    public, _ = split_privileged(window.obs)
    steps, streams = window.begins.shape
    rows = observed_row(flat_axes(public, 2), observed).reshape(steps, streams, -1)

    def step(last: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        row, begins = inputs
        now = slide(reset_carry(last, begins), row)
        return now, now

    after, windows = jax.lax.scan(step, before, (rows, jnp.asarray(window.begins)))
    return windows, after


def train_opponent_model(
    dataset: Dataset,
    key: jax.Array,
    *,
    observed: Observed = None,
    window: int = 16,
    latent: int = 4,
    hidden: tuple[int, ...] = (64, 64),
    beta: float | jax.Array = 1.0,
    num_streams: int = 64,
    num_steps: int = 64,
    num_iterations: int = 50,
    num_minibatches: int = 16,
    learning_rate: float | jax.Array = 1e-3,
) -> tuple[OpponentModel, Metrics]:
    """Train a beta-VAE on recorded games, as the recorded player saw its opponents, in one compiled program.

    An iteration reads `num_steps` steps of `num_streams` streams of episodes and takes a pass of gradient steps of Adam over the
    windows that end at them.

    Args:
        dataset: from `open_dataset`, such as games of a league's player against others.
        key: random key.
        observed: what an observation shows of the opponent: keys of a dictionary, `(first, end)` of the flat observation, or
            None, all of it.
        window: W, the number of last steps in a window.
        latent: number of latent factors.
        hidden: sizes of the encoder's hidden layers.
        beta: weight of the divergence; a higher one lets fewer factors carry information.
        num_streams: number of streams of episodes that are read in parallel.
        num_steps: number of steps of each in an iteration.
        num_iterations: number of iterations.
        num_minibatches: number of gradient steps in an iteration; must divide `num_streams * num_steps`.
        learning_rate: step size of Adam.

    Returns:
        The model, and `train/loss`, `train/reconstruction` and `train/kl` in nats of each iteration, f32 `[num_iterations]`; with
        episodes set apart (`open_dataset(path, held_out=0.1)`) also `eval/held_out_loss`, f32 [], without noise.

    Raises:
        ConfigError: a size is not allowed, or observations have no such part.
    """
    check_int("train_opponent_model", 1, window=window, latent=latent, num_iterations=num_iterations)
    check_int("train_opponent_model", 1, num_streams=num_streams, num_steps=num_steps, num_minibatches=num_minibatches)
    observed = check_observed(observed)
    for name, value in (("beta", beta), ("learning_rate", learning_rate)):
        if isinstance(value, (int, float)) and not 0 <= value < float("inf"):
            raise ConfigError(f"{name} = {value}: expected a number >= 0")
    if not are_sizes(hidden):
        raise ConfigError(f"hidden = {shown(hidden)}: expected a list of layer sizes, {SIZES_ALLOWED}")
    if num_streams * num_steps % num_minibatches:
        raise ConfigError(f"num_minibatches = {num_minibatches}: must divide num_streams * num_steps = {num_streams * num_steps}")
    source = dataset.windows(num_streams, num_steps)
    public, _ = split_privileged(source.example.obs)
    row = jax.eval_shape(lambda obs: observed_row(flat_axes(obs, 2), observed), public).shape[-1]
    network = BetaVAE(window * row, latent, tuple(hidden))
    feed, optimizer = make_feed(source), optax.scale_by_adam()
    before = jnp.zeros((num_streams, window, row))

    def read(found: Window, last: jax.Array) -> tuple[jax.Array, jax.Array]:
        windows, last = opponent_windows(found, last, observed)
        return windows.reshape(-1, network.size), last

    def loss_fn(params: Any, batch: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Metrics]:
        x, noise = batch
        loss, parts = beta_vae_loss(network.apply(params, x, noise), x, beta)  # type: ignore[arg-type]
        return loss, {"train/loss": loss, **{f"train/{name}": value for name, value in parts.items()}}

    def iteration(loop: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, Metrics]:
        last, params, opt_state = loop
        number, key = inputs
        noise_key, order_key = jax.random.split(key)
        x, last = read(feed(number), last)
        noise = jax.random.normal(noise_key, (len(x), latent))
        params, opt_state, metrics = minibatch_steps(
            loss_fn,
            optimizer,
            params,
            opt_state,
            (x, noise),
            order_key,
            num_epochs=1,
            num_minibatches=num_minibatches,
            learning_rate=jnp.asarray(learning_rate, jnp.float32),
        )
        return (last, params, opt_state), metrics

    @jax.jit
    def run(key: jax.Array) -> tuple[Any, Metrics]:
        params_key, key = jax.random.split(key)
        params = network.init(params_key, jnp.zeros((1, network.size)), jnp.zeros((1, latent)))
        numbers = jnp.arange(num_iterations, dtype=jnp.int32)
        start = (before, params, init_optimizer(optimizer, params))
        (_, params, _), metrics = jax.lax.scan(iteration, start, (numbers, jax.random.split(key, num_iterations)))
        return params, metrics

    @jax.jit
    def held_out(params: Any) -> jax.Array:
        windows, count = dataset.held_out_windows(num_streams, num_steps)
        feed = make_feed(windows)

        def loss_of(x: jax.Array) -> jax.Array:
            return loss_fn(params, (x[None], jnp.zeros((1, latent))))[0]

        def measure(last: jax.Array, number: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            found = feed(number)
            x, last = read(found, last)
            own = found.episode.reshape(-1) >= 0
            return last, (jnp.sum(jnp.where(own, jax.vmap(loss_of)(x), 0.0)), jnp.sum(own))

        losses, steps = jax.lax.scan(measure, before, jnp.arange(count, dtype=jnp.int32))[1]
        return jnp.sum(losses) / jnp.sum(steps)

    params, metrics = run(as_key(key))
    if len(dataset.held_out):
        metrics |= {"eval/held_out_loss": held_out(params)}
    return OpponentModel(network, params, window, observed), metrics
