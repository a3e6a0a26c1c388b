"""Opponent models: a beta-VAE of an opponent's observed steps, whose latent factors a policy sees beside its observation.

    env = against_scripted(game, env_params, ["rock", "paper"])  # one of several opponents, drawn for each episode
    model, metrics = train_opponent_model(env, env_params, key, window=16)
    config = PPOConfig(env=OpponentView(env, model), ...)  # the model is frozen

An idea of ROA-Star (Huang et al., "A robust and opponent-aware league training method for StarCraft II", 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rljax.collect.minibatches import init_optimizer, minibatch_steps
from rljax.core.agent import Metrics
from rljax.core.environment import action_mask_of, step_and_reset, strong
from rljax.core.errors import ConfigError, check_int, did_you_mean
from rljax.core.game import Game
from rljax.core.keys import as_key
from rljax.core.spaces import Box, as_space, legal_action
from rljax.core.versus import Versus, one_of
from rljax.core.wrappers import Wrapper, flatten_observation
from rljax.nn.vae import BetaVAE, beta_vae_loss


def against_scripted(game: Game, env_params: Any, names: Sequence[str]) -> Versus:
    """Return a game as an environment of one agent, against one of the game's scripted players, drawn anew for each episode.

    The number of the opponent, from 1 in the order of `names`, is in the state, `state.carry` i32 `[P]`.

    Raises:
        ConfigError: the game has no scripted player of a name.
    """
    for name in names:
        if name not in game.scripted:
            known = did_you_mean(name, game.scripted) if game.scripted else f"{game.name} has none"
            raise ConfigError(f"scripted player '{name}': {known}")

    def player(name: str) -> Callable[[jax.Array, Any, Any, Any], Any]:
        return lambda key, state, _obs, _mask: game.scripted[name](key, state, env_params)

    return Versus(game, one_of([player(name) for name in names]))


class OpponentModel(NamedTuple):
    """A frozen model of opponents.

    Attributes:
        network: the beta-VAE.
        params: its parameters.
        window: W, the number of last steps that it sees.
        observed: `obs -> f32 [D]`, what an observation of the player shows of its opponent.
    """

    network: BetaVAE
    params: Any
    window: int
    observed: Callable[[Any], jax.Array]

    def embedding(self, x: jax.Array) -> jax.Array:
        """Return the posterior mean z f32 `[..., latent]` of windows `[..., W (D + 1)]`."""
        z: jax.Array = jnp.asarray(self.network.apply(self.params, x, method="embedding"))
        return z


class ViewState(NamedTuple):
    """State of the environment, and the last W observed steps of the episode, newest last, f32 `[W, D + 1]`; the last column is 1
    where there was a step, and rows of zeros come before the episode."""

    env_state: Any
    window: jax.Array


class OpponentView(Wrapper):
    """Append what a model says of the opponent's steps so far in the episode to the observation, which becomes a vector.

    Observation f32 `[F + latent]`: the flat observation, and z, the posterior mean for the last W observed steps. The first
    observation of an episode counts as a step.

    Args:
        env: the environment: a game against opponents, such as `Versus`.
        model: from `train_opponent_model`.
    """

    def __init__(self, env: Any, model: OpponentModel):
        super().__init__(env)
        self.model = model

    def inner(self, state: ViewState) -> Any:
        return state.env_state

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, ViewState]:
        obs, env_state = self.env.reset_env(key, params)
        row = self._row(obs)
        window = jnp.zeros((self.model.window, row.shape[0])).at[-1].set(row)
        return self._observe(obs, window), ViewState(env_state, window)

    def step_env(
        self, key: jax.Array, state: ViewState, action: Any, params: Any
    ) -> tuple[jax.Array, ViewState, jax.Array, jax.Array, dict[str, Any]]:
        obs, env_state, reward, terminated, info = self.env.step_env(key, state.env_state, action, params)
        window = jnp.concatenate([state.window[1:], self._row(obs)[None]])
        return self._observe(obs, window), ViewState(env_state, window), reward, terminated, info

    def observation_space(self, params: Any) -> Box:
        obs = jax.eval_shape(lambda: self.reset_env(jax.random.key(0), params))[0]
        return Box(-jnp.inf, jnp.inf, obs.shape)

    def _row(self, obs: Any) -> jax.Array:
        return jnp.append(self.model.observed(obs).astype(jnp.float32), 1.0)

    def _observe(self, obs: Any, window: jax.Array) -> jax.Array:
        return jnp.concatenate([flatten_observation(obs), self.model.embedding(window.reshape(-1))])


class _Windows(OpponentView):
    """The same with the windows themselves as observations."""

    def _observe(self, obs: Any, window: jax.Array) -> jax.Array:
        return window.reshape(-1)


def train_opponent_model(
    env: Any,
    env_params: Any,
    key: jax.Array,
    *,
    observed: Callable[[Any], jax.Array] = flatten_observation,
    window: int = 16,
    latent: int = 4,
    hidden: tuple[int, ...] = (64, 64),
    beta: float | jax.Array = 1.0,
    num_envs: int = 64,
    num_steps: int = 64,
    num_iterations: int = 50,
    num_minibatches: int = 16,
    learning_rate: float | jax.Array = 1e-3,
) -> tuple[OpponentModel, Metrics]:
    """Train a beta-VAE on the steps of opponents, as a player that makes random legal moves sees them, in one compiled program.

    An iteration plays `num_steps` steps of `num_envs` games and takes a pass of gradient steps of Adam over all windows of them.

    Args:
        env: the environment, a game against opponents.
        env_params: its parameters.
        key: random key.
        observed: `obs -> f32 [D]`, what an observation shows of the opponent; by default all of it.
        window: W, the number of last steps in a window.
        latent: number of latent factors.
        hidden: sizes of the encoder's hidden layers.
        beta: weight of the divergence; a higher one lets fewer factors carry information.
        num_envs: number of games played in parallel.
        num_steps: number of steps of each in an iteration.
        num_iterations: number of iterations.
        num_minibatches: number of gradient steps in an iteration; must divide `num_envs * num_steps`.
        learning_rate: step size of Adam.

    Returns:
        The model, and `train/loss`, `train/reconstruction` and `train/kl` in nats of each iteration, f32 `[num_iterations]`.

    Raises:
        ConfigError: a size is not allowed.
    """
    check_int("train_opponent_model", 1, window=window, latent=latent, num_iterations=num_iterations)
    if num_envs * num_steps % num_minibatches:
        raise ConfigError(f"num_minibatches = {num_minibatches}: must divide num_envs * num_steps = {num_envs * num_steps}")
    size = window * (jax.eval_shape(lambda: observed(env.reset_env(jax.random.key(0), env_params)[0])).shape[0] + 1)
    network = BetaVAE(size, latent, hidden)
    view = _Windows(env, OpponentModel(network, None, window, observed))
    space, optimizer = as_space(env.action_space(env_params)), optax.scale_by_adam()

    def play(loop: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        _, state = loop
        act_key, step_key, reset_key = jax.random.split(key, 3)
        noise = jax.random.uniform(act_key, (space.flat_dim,))
        action = legal_action(space, action_mask_of(view, state, env_params), noise)[0]
        obs, state, *_ = step_and_reset(view, step_key, reset_key, state, action, env_params)
        return (obs, state), obs

    def loss_fn(params: Any, batch: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Metrics]:
        x, noise = batch
        loss, parts = beta_vae_loss(network.apply(params, x, noise), x, beta)  # type: ignore[arg-type]
        return loss, {"train/loss": loss, **{f"train/{name}": value for name, value in parts.items()}}

    def iteration(loop: Any, key: jax.Array) -> tuple[Any, Metrics]:
        games, params, opt_state = loop
        play_key, noise_key, order_key = jax.random.split(key, 3)
        keys = jax.random.split(play_key, (num_envs, num_steps))
        games, x = jax.vmap(lambda game, keys: jax.lax.scan(play, game, keys))(games, keys)
        x = x.reshape(-1, size)
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
        return (games, params, opt_state), metrics

    @jax.jit
    def run(key: jax.Array) -> tuple[Any, Metrics]:
        games_key, params_key, key = jax.random.split(key, 3)
        games = strong(jax.vmap(view.reset_env, (0, None))(jax.random.split(games_key, num_envs), env_params))
        params = network.init(params_key, jnp.zeros((1, size)), jnp.zeros((1, latent)))
        start = (games, params, init_optimizer(optimizer, params))
        (_, params, _), metrics = jax.lax.scan(iteration, start, jax.random.split(key, num_iterations))
        return params, metrics

    params, metrics = run(as_key(key))
    return OpponentModel(network, params, window, observed), metrics
