"""Find out whether `step_env` is random, and whether the game says how. Searches and exact trees need to know all outcomes."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from rljax.core.environments.environment import strong, tree_where
from rljax.core.environments.spaces import as_space
from rljax.core.errors import ConfigError
from rljax.core.games.game import Game, RememberingScript, ScriptedPlayer
from rljax.core.games.versus import random_actions
from rljax.core.operations import programs_of, scan_sizes, trace_needed


def step_shapes(env: Any, params: Any) -> tuple[Any, Any, Any]:
    """Return the shapes of the arguments of a step, `(state, action, key)`; the action of a game is that of all players."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    _, state = jax.eval_shape(lambda k: env.reset_env(k, params), key)
    action = jax.eval_shape(as_space(env.action_space(params)).sample, key)
    if isinstance(env, Game):
        action = jax.tree.map(lambda x: jax.ShapeDtypeStruct((env.num_players, *x.shape), x.dtype), action)
    return state, action, key


def num_outcomes(game: Game, params: Any) -> int:
    """Return the number of outcomes C that chance has in a step of the game; 1 if the game does not define `chance`.

    Raises:
        ConfigError: `chance` does not return a vector of float probabilities.
    """
    state, action, _ = step_shapes(game, params)
    return outcomes_of(game, jax.eval_shape(lambda s, a: game.chance(s, a, params), state, action))


def outcomes_of(game: Game, found: Any) -> int:
    """Return the length of what `chance` returned, traced.

    Raises:
        ConfigError: it is not a vector of float probabilities.
    """
    fits = isinstance(found, jax.ShapeDtypeStruct) and found.ndim == 1 and jnp.issubdtype(found.dtype, jnp.floating)
    if not fits or not found.shape[0]:
        raise ConfigError(f"{game.name}: chance returned {found}, expected the probabilities of the outcomes, float32[C]")
    return int(found.shape[0])


def fault_of(source: str, smallest: float, off: float) -> str | None:
    """Return what is wrong with probabilities that a function of a game returned; None if nothing is.

    Args:
        source: name of the function.
        smallest: the smallest probability.
        off: the largest distance of a sum from 1.
    """
    if smallest >= 0 and off < 1e-3:  # not so for NaN
        return None
    return f"{source} returned probabilities that do not add up to 1 or are below 0 (smallest {smallest:g}, sum off by {off:g})"


def is_random(game: Game, params: Any) -> bool:
    """Return whether the game declares random steps: by `chance`, or by `step_is_random`."""
    return game.step_is_random or num_outcomes(game, params) > 1


def uses_key(env: Any, params: Any) -> bool:
    """Return whether `step_env` uses its key: without it, a step cannot be random. Nothing is computed.

    Dead code is removed from the traced step first, so a key that is only passed on counts as unused.
    """
    state, action, key = step_shapes(env, params)
    return trace_needed(lambda k, s, a: env.step_env(k, s, a, params)[:4], key, state, action)[1][0]


def deals(game: Game, params: Any, num_starts: int = 64) -> bool:
    """Return whether games begin in different ways, as where cards are dealt. Who begins is no difference: it is drawn in some
    games without chance, so there may be as many beginnings as players.
    """
    with jax.ensure_compile_time_eval():
        obs, _ = jax.jit(jax.vmap(lambda key: game.reset_env(key, params)))(jax.random.split(jax.random.key(0), num_starts))
    rows = np.concatenate([np.asarray(x, np.float64).reshape(num_starts, -1) for x in jax.tree.leaves(obs)], axis=1)
    return len(np.unique(rows, axis=0)) > game.num_players


def script_draws(game: Game, params: Any, scripted: ScriptedPlayer) -> bool:
    """Return whether a scripted player uses its key: without it, its moves follow from the game. Nothing is computed."""
    state, _, key = step_shapes(game, params)
    if not isinstance(scripted, RememberingScript):
        return trace_needed(lambda k, s: scripted(k, s, params), key, state)[1][0]

    def draws(carry: Any) -> bool:
        return trace_needed(lambda k, s, c: scripted.act(k, s, params, c), key, state, carry)[1][0]

    if scripted.initial is not None:
        return draws(jax.eval_shape(partial(scripted.initial, game.num_players)))
    # At the first move its carry is None.
    return draws(None) or draws(jax.eval_shape(lambda k, s: scripted.act(k, s, params, None)[1], key, state))


def same_for_all_keys(env: Any, params: Any, keys: jax.Array, state: Any, action: Any) -> jax.Array:
    """Return whether a step gives the same bits (observation, state, reward, end) with each of `keys` `[K]`, bool []."""
    results = jax.vmap(lambda key: env.step_env(key, state, action, params)[:4])(keys)

    def same(x: jax.Array) -> jax.Array:
        x = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        return jnp.all((x == x[:1]) | ((x != x) & (x[:1] != x[:1])))  # NaN is like NaN

    return jnp.all(jnp.stack([same(jnp.asarray(x)) for x in jax.tree.leaves(results)]))


def draws_in_step(game: Any, params: Any, num_games: int = 16, num_steps: int = 64, num_keys: int = 4) -> bool:
    """Return whether a step of the game depends on its key, also if the game does not declare it (`is_random`).

    A step that does not use its key does not depend on it. Otherwise random games are played and each step is compared under
    several keys; chance in positions that random play does not reach is not found.

    Args:
        game: a `Game`.
        params: its parameters; the default ones stand in for traced ones.
        num_games: number of games played at once.
        num_steps: number of steps of each; a game that ends begins anew.
        num_keys: number of keys with which each step is compared.
    """
    if is_random(game, params):
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


class ChanceSeen(NamedTuple):
    """Properties of `chance` in random play.

    Attributes:
        smallest: smallest probability, f32 [].
        sum_error: largest difference between the sum of a step's probabilities and 1, f32 [].
        agrees: whether each step of `step_env` was that of a possible outcome, bool [].
    """

    smallest: jax.Array
    sum_error: jax.Array
    agrees: jax.Array


def play_chance(game: Game, params: Any, num_games: int = 4, num_steps: int = 32) -> ChanceSeen:
    """Play random games that define `chance`, and compare each step of `step_env` with those of all outcomes."""

    def close(x: jax.Array, outcomes: jax.Array) -> jax.Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, outcomes = jax.random.key_data(x), jax.random.key_data(outcomes)
        same = jnp.isclose(outcomes, x, rtol=1e-4, atol=1e-5, equal_nan=True)
        return jnp.all(same.reshape(same.shape[0], -1), axis=1)

    def play(key: jax.Array) -> ChanceSeen:
        def step(state: Any, key: jax.Array) -> tuple[Any, ChanceSeen]:
            act_key, step_key, reset_key = jax.random.split(key, 3)
            action = random_actions(game, params, act_key, game.action_mask(state, params))
            probabilities = game.chance(state, action, params)
            possible = jax.vmap(lambda o: game.step_outcome(state, action, o, params)[:4])(jnp.arange(len(probabilities)))
            stepped = game.step_env(step_key, state, action, params)[:4]
            pairs = zip(*(map(jnp.asarray, jax.tree.leaves(x)) for x in (stepped, possible)), strict=True)
            found = jnp.stack([close(*pair) for pair in pairs])
            agrees = jnp.any(jnp.all(found, axis=0) & (probabilities > 0))
            over = stepped[3] | game.is_truncated(stepped[1], params)
            after = strong(tree_where(over, game.reset_env(reset_key, params)[1], stepped[1]))
            return after, ChanceSeen(jnp.min(probabilities), jnp.abs(jnp.sum(probabilities) - 1.0), agrees)

        reset_key, loop_key = jax.random.split(key)
        return jax.lax.scan(step, strong(game.reset_env(reset_key, params)[1]), jax.random.split(loop_key, num_steps))[1]

    # A few steps: compiling takes most of the time.
    options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    seen = jax.jit(jax.vmap(play), compiler_options=options)(jax.random.split(jax.random.key(0), num_games))
    return ChanceSeen(jnp.min(seen.smallest), jnp.max(seen.sum_error), jnp.all(seen.agrees))


DRAWS = frozenset({"random_bits", "random_gamma", "rng_bit_generator", "threefry2x32"})
"""JAX's primitives that turn keys into random numbers."""


def draws_from_state(game: Any, params: Any) -> bool:
    """Return whether the state holds a random key: later draws are then fixed, and visible to all who see the state.

    A typed key is seen in the state. Integers are an old-style key if a step that does not use its own key draws random numbers
    from them. Nothing is computed.
    """
    state, action, key = step_shapes(game, params)
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)):
        return True
    if num_outcomes(game, params) > 1:
        outcome = jax.ShapeDtypeStruct((), jnp.int32)
        alive, used = trace_needed(lambda o, s, a: game.step_outcome(s, a, o, params)[:4], outcome, state, action)
    else:
        alive, used = trace_needed(lambda k, s, a: game.step_env(k, s, a, params)[:4], key, state, action)
        if used[0]:
            return False
    states = range(1, 1 + len(jax.tree.leaves(state)))
    return _follow(alive, [i in states for i, is_used in enumerate(used) if is_used])[0]


def _follow(jaxpr: Any, marked: list[bool]) -> tuple[bool, list[bool]]:
    """Follow the marked inputs of a program; return whether random numbers are drawn from them, and which outputs they reach."""
    reached = {var for var, mark in zip(jaxpr.invars, marked, strict=True) if mark}

    def marks(variables: Any) -> list[bool]:
        return [not isinstance(x, Literal) and x in reached for x in variables]

    draws = False
    for eqn in jaxpr.eqns:
        given = marks(eqn.invars)
        if any(given):
            found, outputs = _follow_equation(eqn, given)
            draws |= found
            reached.update(var for var, mark in zip(eqn.outvars, outputs, strict=True) if mark)
    return draws, marks(jaxpr.outvars)


def _follow_equation(eqn: Any, given: list[bool]) -> tuple[bool, list[bool]]:
    """Do the same for one equation, some of whose inputs are marked."""
    name, params = eqn.primitive.name, eqn.params
    if name in DRAWS:
        return True, [True] * len(eqn.outvars)
    if name == "scan":
        return _follow_loop(params["jaxpr"].jaxpr, given, *scan_sizes(eqn))
    if name == "while":
        own = params["cond_nconsts"]  # constants of the condition come first
        draws, outputs = _follow_loop(params["body_jaxpr"].jaxpr, given[own:], params["body_nconsts"], len(eqn.outvars))
        stops, (ends,) = _follow(params["cond_jaxpr"].jaxpr, given[:own] + outputs)
        return draws or stops, [mark or ends for mark in outputs]
    inner = programs_of(params)
    # The first input of a conditional is the number of the branch.
    handed = given[1:] if name == "cond" else given
    if not inner or any(len(x.invars) != len(handed) or len(x.outvars) != len(eqn.outvars) for x in inner):
        return any(_follow(x, [True] * len(x.invars))[0] for x in inner), [True] * len(eqn.outvars)
    found = [_follow(x, handed) for x in inner]
    chosen = name == "cond" and given[0]
    return any(draws for draws, _ in found), [chosen or any(each) for each in zip(*(out for _, out in found), strict=True)]


def _follow_loop(body: Any, given: list[bool], consts: int, carried: int) -> tuple[bool, list[bool]]:
    """Follow the marked inputs of a loop (constants, what is carried, slices), until no more of what is carried is reached."""
    while True:
        draws, outputs = _follow(body, given)
        carry = [a or b for a, b in zip(given[consts : consts + carried], outputs[:carried], strict=True)]
        after = given[:consts] + carry + given[consts + carried :]
        if after == given:
            return draws, outputs
        given = after
