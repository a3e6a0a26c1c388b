"""Find out whether `step_env` is random. Searches and exact trees need a single result of each action."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from rljax.core.environment import tree_where
from rljax.core.game import Game
from rljax.core.spaces import as_space
from rljax.core.versus import random_actions


def step_shapes(env: Any, params: Any) -> tuple[Any, Any, Any]:
    """Return the shapes of the arguments of a step, `(state, action, key)`; the action of a game is that of all players."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    _, state = jax.eval_shape(lambda k: env.reset_env(k, params), key)
    action = jax.eval_shape(as_space(env.action_space(params)).sample, key)
    if isinstance(env, Game):
        action = jax.tree.map(lambda x: jax.ShapeDtypeStruct((env.num_players, *x.shape), x.dtype), action)
    return state, action, key


def uses_key(env: Any, params: Any) -> bool:
    """Return whether `step_env` uses its key: without it, a step cannot be random. Nothing is computed.

    Dead code is removed from the traced step first, so a key that is only passed on counts as unused.
    """
    state, action, key = step_shapes(env, params)
    traced = jax.make_jaxpr(lambda k, s, a: env.step_env(k, s, a, params)[:4])(key, state, action)
    _, used = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    return bool(used[0])


def same_for_all_keys(env: Any, params: Any, keys: jax.Array, state: Any, action: Any) -> jax.Array:
    """Return whether a step gives the same bits (observation, state, reward, end) with each of `keys` `[K]`, bool []."""
    results = jax.vmap(lambda key: env.step_env(key, state, action, params)[:4])(keys)

    def same(x: jax.Array) -> jax.Array:
        x = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        return jnp.all((x == x[:1]) | ((x != x) & (x[:1] != x[:1])))  # NaN is like NaN

    return jnp.all(jnp.stack([same(jnp.asarray(x)) for x in jax.tree.leaves(results)]))


def draws_in_step(game: Any, params: Any, num_games: int = 16, num_steps: int = 64, num_keys: int = 4) -> bool:
    """Return whether a step of the game depends on its key, whatever the game declares as `step_is_random`.

    A step that does not use its key does not depend on it. Otherwise random games are played and each step is compared under
    several keys; chance in positions that random play does not reach is not found.

    Args:
        game: a `Game`.
        params: its parameters; the default ones stand in for traced ones.
        num_games: number of games played at once.
        num_steps: number of steps of each; a game that ends begins anew.
        num_keys: number of keys with which each step is compared.
    """
    if game.step_is_random:
        return True
    if not uses_key(game, params):
        return False
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(params)):
        params = game.default_params

    def play(key: jax.Array) -> jax.Array:
        def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            act_key, step_key, reset_key = jax.random.split(key, 3)
            action = random_actions(game, params, act_key, game.action_mask(state, params))
            keys = jax.random.split(step_key, num_keys)
            same = same_for_all_keys(game, params, keys, state, action)
            _, after, _, over, _ = game.step_env(keys[0], state, action, params)
            over |= game.is_truncated(after, params)
            return tree_where(over, game.reset_env(reset_key, params)[1], after), same

        reset_key, loop_key = jax.random.split(key)
        state = jax.tree.map(jnp.asarray, game.reset_env(reset_key, params)[1])
        return jnp.all(jax.lax.scan(step, state, jax.random.split(loop_key, num_steps))[1])

    # The result is known also while the caller is being traced.
    with jax.ensure_compile_time_eval():
        return not bool(jnp.all(jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), num_games))))


def holds_key(game: Any, params: Any) -> bool:
    """Return whether the state contains a random key: later draws are then fixed and visible to all who see the state."""
    state, _, _ = step_shapes(game, params)
    return any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state))
