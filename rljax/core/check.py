"""`check_environment`: check the contract of an environment, by tracing and by random play."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.contract import Subject, check_contract, check_same, describe, innermost, is_known, warn_of
from rljax.core.environments.environment import Environment, action_mask_of, attribute, is_outside_jax, strong, tree_where
from rljax.core.environments.spaces import Box, Dict, MultiDiscrete, Space, Tuple, as_space, is_legal, legal_action
from rljax.core.errors import ConfigError, first_line, shown
from rljax.core.games.chance import draws_in_step, fault_of, num_outcomes, play_chance, step_shapes
from rljax.core.games.game import LEVEL, NO_OBSERVE, RESULT, Game, side_rewards
from rljax.core.games.versus import Seated, random_actions, seat_player, where_players, without_view
from rljax.core.memory import tree_bytes

NUM_ENVS, NUM_STEPS, NUM_STARTS = 8, 128, 4

SCRIPTED_STEPS = 32
"""Steps that each scripted player plays at each seat."""

MAX_BYTES = 2**30
"""Largest size of the observations and states that random play keeps; larger environments are not played."""


def check_environment(env: Any, env_params: Any = None, *, key: jax.Array | None = None) -> None:
    """Check that an environment or a game keeps the contract, by tracing its functions and by random play.

    First, the shapes, dtypes and structure of the results of `reset_env`, `step_env`, `is_truncated` and `action_mask` are
    compared with the spaces and with each other. Nothing is computed for this, and training does it, too. Then 8 environments
    take 128 random legal steps, which compiles for a second or more. Observations must lie in `observation_space`, rewards must
    be finite, every head (of each player to move) must have a legal action, episodes must not begin truncated, a state's `time`
    must count, and the same keys must give the same results. Training plays these steps, too, once per process, with environments
    and wrappers that are not rljax's or gymnax's. Python numbers (a reward of `1.0`, say) are converted. Under a trace (`jit`,
    `vmap`) nothing is played.

    A game must define `observe`, which must give the observations of `reset_env` and `step_env`; states of `reset_env` must be
    among `initial_states`, if it is defined; and each scripted player of your own game plays 32 steps at each seat, in which its
    actions must be legal.

    Args:
        env: an environment of one agent, or a `Game`.
        env_params: its parameters; if None, `env.default_params`.
        key: random key of the play; if None, `jax.random.key(0)`.

    Raises:
        ConfigError: one line that names the environment, the part that is wrong and what was expected. If an observation of a
            gymnax environment does not fit its space, an `RljaxWarning` is issued instead, also for a wrapper of yours that
            passes the observation on unchanged.
    """
    if isinstance(env, str):
        raise ConfigError(f"check_environment({env!r}): expected an environment; make_env makes that of an id")
    if isinstance(env, type):
        raise ConfigError(f"check_environment: {env.__name__} is a class; give an environment made from it: {env.__name__}()")
    if not any(hasattr(env, name) for name in ("reset_env", "step_env")):
        raise ConfigError(f"check_environment({shown(env)}): expected an environment, which has reset_env and step_env")
    env_params = attribute(env, "default_params") if env_params is None else env_params
    doubts = check_contract(env, env_params)
    if isinstance(env, Game) and type(env).observe is Game.observe:
        Subject(env).refuse(NO_OBSERVE)  # training does without
    doubts += check_play(env, env_params, key)
    if isinstance(env, Game):
        _check_scripted(Subject(env), env, env_params, key)
    warn_of(env, doubts)


def check_play(env: Any, params: Any, key: jax.Array | None = None) -> list[str]:
    """Step 8 environments 128 times with random legal actions and check the results. Compiles a program.

    Under a trace nothing is done: an environment made there may hold arrays without values. Nor is anything with an environment
    outside JAX, whose states cannot be played twice.

    Args:
        env: an environment or a game that keeps the contract (see `check_contract`).
        params: its parameters.
        key: random key; if None, `jax.random.key(0)`.

    Returns:
        Faults of an environment from another library for which it is not refused.

    Raises:
        ConfigError: one line that says what was found and what was expected.
    """
    if is_outside_jax(env) or _is_traced(params):
        return []
    subject = Subject(env, lambda inner: check_play(inner, params, key))
    key = jax.random.key(0) if key is None else key
    try:
        _check_pure(subject, env, params, key)
        starts_key, step_key, noise_key = jax.random.split(key, 3)
        size = tree_bytes(jax.eval_shape(env.reset_env, key, params))
        if size * NUM_ENVS * (NUM_STARTS + 1) > MAX_BYTES:
            return subject.doubts
        # Random numbers are drawn outside the loop, where they would take most of the compile time. No need to optimise.
        options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
        reset = jax.jit(jax.vmap(lambda k: strong(env.reset_env(k, params))), compiler_options=options)
        starts = reset(jax.random.split(starts_key, NUM_STARTS * NUM_ENVS))
        starts = jax.tree.map(lambda x: x.reshape(NUM_ENVS, NUM_STARTS, *x.shape[1:]), starts)
        keys = jax.random.split(step_key, (NUM_ENVS, NUM_STEPS))
        noise = jax.random.uniform(noise_key, (NUM_ENVS, NUM_STEPS, *_noise_shape(env, params)))
        play = jax.jit(jax.vmap(lambda *drawn: _play(env, params, *drawn)), compiler_options=options)
        seen, again = (jax.tree.map(np.asarray, play(starts, keys, noise)) for _ in range(2))
    except ConfigError:
        raise
    except Exception as error:
        subject.refuse(f"random play raised {first_line(error)}", error)
    for part, other in zip(jax.tree.leaves(seen), jax.tree.leaves(again), strict=True):
        # Only nearly equal: some devices add up sums in any order.
        if not np.allclose(part, other, rtol=1e-3, atol=1e-5, equal_nan=True):
            subject.refuse("the same keys gave different results: step_env and reset_env must draw from their key alone")
    _check_seen(subject, env, params, seen)
    if subject.is_game:
        _check_text(subject, env, params, jax.tree.map(lambda x: x[0, 0], starts[1]))
        _check_initial_states(subject, env, params, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), starts[1]))
        _check_chance(subject, env, params)
    return subject.doubts


def _check_text(subject: Subject, game: Game, params: Any, state: Any) -> None:
    """Refuse a game of which a state cannot be shown as text. The default shows observations, which have been checked."""
    if type(game).text is Game.text:
        return
    try:
        text = game.text(state, params, 0)
    except Exception as error:
        subject.refuse(f"text raised {first_line(error)}", error)
    if not isinstance(text, str):
        subject.refuse(f"text returned {describe(text)}, expected a string")


def _check_initial_states(subject: Subject, game: Game, params: Any, starts: Any) -> None:
    """Refuse `initial_states`, where a game defines it, in which states `[M, ...]` of `reset_env` are missing or impossible."""
    try:
        found = jax.eval_shape(lambda: strong(game.initial_states(params)))
    except NotImplementedError:
        return
    except Exception as error:
        subject.refuse(f"initial_states raised {first_line(error)}", error)
    expected = "expected (states [N, ...], probabilities float32[N])"
    if not isinstance(found, tuple) or len(found) != 2:
        subject.refuse(f"initial_states returned {describe(found)}, {expected}")
    shapes, probability = found
    if not isinstance(probability, jax.ShapeDtypeStruct) or probability.ndim != 1 or not probability.shape[0]:
        subject.refuse(f"initial_states returned the probabilities {describe(probability)}, {expected}")
    if any(x.shape[:1] != probability.shape for x in jax.tree.leaves(shapes)):
        subject.refuse(f"initial_states returned {probability.shape[0]} probabilities, and states without this first axis")
    one, first = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (shapes, starts))
    check_same(subject, "state", one, first, "initial_states")
    if tree_bytes(shapes) > MAX_BYTES // 16:
        return
    states, chances = jax.tree.map(_numbers, jax.jit(lambda: strong(game.initial_states(params)))())
    if (fault := fault_of("initial_states", chances.min(), abs(chances.sum() - 1.0))) is not None:
        subject.refuse(fault)
    starts = jax.tree.map(_numbers, starts)
    for n in range(NUM_ENVS * NUM_STARTS):
        pairs = zip(jax.tree.leaves(starts), jax.tree.leaves(states), strict=True)
        alike = [
            np.isclose(y, x[n], rtol=1e-4, atol=1e-5, equal_nan=True).reshape(len(chances), -1).all(axis=1) for x, y in pairs
        ]
        same = np.all(alike, axis=0)
        if not same.any():
            subject.refuse("reset_env returned a state that equals none of initial_states in all fields")
        if not chances[same].sum() > 0:
            subject.refuse("reset_env returned a state that has the probability 0 in initial_states")


def _numbers(x: jax.Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def _check_scripted(subject: Subject, game: Game, params: Any, key: jax.Array | None) -> None:
    """Let each scripted player of a user's own game play at every seat, with random moves at the others, and check its actions.
    Compiles a program for each; under a trace nothing is done.
    """
    if is_known(innermost(game)) or _is_traced(params):
        return
    try:
        players = game.scripted
    except Exception as error:
        subject.refuse(f"scripted raised {first_line(error)}", error)
    if not isinstance(players, Mapping):
        subject.refuse(f"scripted is {describe(players)}, expected a dictionary of players by name")
    state, wanted, one_key = step_shapes(game, params)
    obs, _ = jax.eval_shape(lambda k: game.reset_env(k, params), one_key)
    mask = jax.eval_shape(lambda s: game.action_mask(s, params), state)
    keys = jax.random.split(jax.random.key(0) if key is None else key, game.num_players)
    for name, scripted in players.items():
        label = f"scripted['{name}']"
        try:
            seated = seat_player(without_view(scripted, params), game, params)
            carry = jax.eval_shape(seated.initial, state, obs)
            action, _ = jax.eval_shape(seated.act, one_key, state, obs, mask, carry)
            for found, expected in zip(jax.tree.leaves(action), jax.tree.leaves(wanted), strict=True):
                if jnp.issubdtype(expected.dtype, jnp.integer) and not jnp.issubdtype(found.dtype, jnp.integer):
                    subject.refuse(f"{label} returned an action {describe(found)}, expected {describe(expected)}")
            play = jax.jit(jax.vmap(lambda seat, k, seated=seated: _play_scripted(game, params, seated, seat, k)))
            legal, chosen = jax.tree.map(np.asarray, play(jnp.arange(game.num_players), keys))
        except ConfigError as error:
            message = str(error).removeprefix(f"{subject.title}: ").removeprefix(f"a player of {game.name}: ")
            subject.refuse(message if message.startswith(label) else f"{label}: {message}", error)
        except Exception as error:
            subject.refuse(f"{label} raised {first_line(error)}", error)
        if not legal.all():
            seat, t = np.argwhere(~legal)[0]
            value = shown(jax.tree.map(lambda x, at=(seat, t): x[at].tolist(), chosen))
            subject.refuse(f"{label} chose {value} as player {seat} after {t} steps of random play, which is not legal there")


def _play_scripted(game: Game, params: Any, seated: Seated, seat: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
    """Play a scripted player at one seat, i32 [], with random moves at all others; a game that ends begins anew.

    Returns:
        Whether its action was legal in each step in which it was to move, bool `[T]`, and its actions, leaves `[T, ...]`.
    """
    space = as_space(game.action_space(params))

    def step(loop: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], tuple[jax.Array, Any]]:
        state, carry = loop
        act_key, random_key, step_key, reset_key = jax.random.split(key, 4)
        mask = game.action_mask(state, params)
        action, carry = seated.act(act_key, state, None, mask, carry)
        legal = jax.vmap(lambda m, a: is_legal(space, m, a))(mask, action)[seat] | ~game.to_move(state)[seat]
        joint = where_players(jnp.arange(game.num_players) == seat, action, random_actions(game, params, random_key, mask))
        _, after, _, terminated, _ = strong(game.step_env(step_key, state, joint, params))
        obs, fresh = strong(game.reset_env(reset_key, params))
        over = terminated | game.is_truncated(after, params)
        loop = tree_where(over, (fresh, seated.initial(fresh, obs)), (after, carry))
        return loop, (legal, jax.tree.map(lambda x: x[seat], action))

    reset_key, loop_key = jax.random.split(key)
    obs, state = strong(game.reset_env(reset_key, params))
    return jax.lax.scan(step, (state, seated.initial(state, obs)), jax.random.split(loop_key, SCRIPTED_STEPS))[1]


def _is_traced(params: Any) -> bool:
    """Return whether the caller or the parameters are being traced, so that nothing can be played."""
    return any(isinstance(x, jax.core.Tracer) for x in (jnp.zeros(()), *jax.tree.leaves(params)))


def check_outcomes(game: Game, params: Any) -> None:
    """Check by random play that a user's own game draws as its `chance` says. Compiles a program; under a trace nothing is done.

    Raises:
        ConfigError: it does not, or the probabilities do not add up to 1.
    """
    if not is_known(game) and not _is_traced(params):
        _check_chance(Subject(game), game, params)


def check_zero_sum(game: Game, params: Any) -> None:
    """Check that what one side of a game of two gains the other loses. A user's own game that does not say so is played at
    random, 8 times for 128 steps, which compiles a program; under a trace nothing is done.

    Raises:
        ConfigError: it is not so.
    """
    paid = ""
    if game.zero_sum is None and not is_known(game) and not _is_traced(params):
        both = np.asarray(_played_rewards(game, params))
        beyond = np.abs(both.sum(axis=-1)) - 1e-5 * np.abs(both).sum(axis=-1)
        step = np.unravel_index(np.argmax(beyond), beyond.shape)
        if beyond[step] <= LEVEL:
            return
        paid = f" (a step of random play paid {both[step][0]:g} and {both[step][1]:g})"
    elif game.zero_sum is not False:
        return
    raise ConfigError(f"{game.name}: the rewards of its sides do not add up to zero{paid}, expected a zero-sum game of two")


def _played_rewards(game: Game, params: Any) -> jax.Array:
    """Return the rewards of both sides in each step of random play, f32 `[N, T, 2]`."""
    first = jnp.asarray([game.teams.index(team) for team in sorted(set(game.teams))])

    def play(key: jax.Array) -> jax.Array:
        def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            act_key, step_key, reset_key = jax.random.split(key, 3)
            action = random_actions(game, params, act_key, game.action_mask(state, params))
            _, after, reward, terminated, _ = strong(game.step_env(step_key, state, action, params))
            over = terminated | game.is_truncated(after, params)
            return tree_where(over, strong(game.reset_env(reset_key, params)[1]), after), side_rewards(game, reward)[first]

        reset_key, loop_key = jax.random.split(key)
        start = strong(game.reset_env(reset_key, params)[1])
        return jax.lax.scan(step, start, jax.random.split(loop_key, NUM_STEPS))[1]

    # Compiling takes most of the time.
    options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    return jax.jit(jax.vmap(play), compiler_options=options)(jax.random.split(jax.random.key(0), NUM_ENVS))


def _check_chance(subject: Subject, game: Game, params: Any) -> None:
    """Refuse a game that draws and does not declare it, or that does not draw as its `chance` says."""
    if num_outcomes(game, params) == 1:
        if not game.step_is_random and draws_in_step(game, params):
            subject.refuse(
                "step_env draws from its key, which searches must know: define chance and step_outcome, "
                "or set step_is_random = True"
            )
        return
    if not game.gives_outcomes:
        subject.refuse("defines chance without step_outcome, which takes the step of a given outcome")
    seen = play_chance(game, params)
    if (fault := fault_of("chance", float(seen.smallest), float(seen.sum_error))) is not None:
        subject.refuse(fault)
    if not seen.agrees:
        subject.refuse("a step of step_env is none of step_outcome's with a probability above 0: play and search would differ")


class Outside(NamedTuple):
    """Entry of one array of an observation that lies outside its space: whether there is one, its index and its value."""

    bad: Any
    index: Any
    value: Any


class Seen(NamedTuple):
    """Results of random play, in arrays `[N, T, ...]`.

    Attributes:
        outside: `Outside` for each array of the observation after the step, before a reset.
        outside_first: `Outside` for each array of the first observation of an episode.
        stuck: whether a head has no legal action, bool `[H]`; in a game, for each player to move, `[P, H]`.
        reward: reward of the step, f32 `[]`, or `[P]` in a game.
        result: result of a game that says one in its info, f32 `[P]`, where it ends; else 0.
        first_truncated: whether an episode is truncated at its start.
        clock_stands: whether `state.time`, which the time limit uses, did not grow.
        observed: whether `observe` gives another observation of the state after the step, for each array; [] where it is not
            defined.
        observed_first: the same of the state at the start of an episode, after a reset.
        movers: number of players to move; 1 without players.
        gap: largest number of steps that a player to move has waited since its last move.
        sums: sum of each array of the observation, f32, to compare two runs.
    """

    outside: list[Outside]
    outside_first: list[Outside]
    stuck: Any
    reward: Any
    result: Any
    first_truncated: Any
    clock_stands: Any
    observed: list[Any]
    observed_first: list[Any]
    movers: Any
    gap: Any
    sums: list[Any]


def _noise_shape(env: Any, params: Any) -> tuple[int, ...]:
    """Return the shape of the random numbers for a step's actions: `[K]`, or `[P, K]` in a game."""
    return (*((env.num_players,) if isinstance(env, Game) else ()), as_space(env.action_space(params)).flat_dim)


def _play(env: Any, params: Any, starts: Any, keys: jax.Array, noise: jax.Array) -> Seen:
    """Play T steps of one environment with random legal actions, for all players of a game.

    Args:
        env: the environment.
        params: its parameters.
        starts: `(obs, state)` `[R, ...]` at the start of episodes.
        keys: random keys of the steps, `[T]`.
        noise: random numbers of the actions, f32 `[T, K]` or `[T, P, K]`, uniform in [0, 1).
    """
    space, obs_space = as_space(env.action_space(params)), as_space(env.observation_space(params))
    is_game = isinstance(env, Game)
    by_clock = getattr(type(env), "is_truncated", None) is Environment.is_truncated and hasattr(params, "max_steps_in_episode")

    def outside(obs: Any) -> list[Outside]:
        return [_find_outside(x, part) for _, x, part in _arrays("", obs, obs_space)]

    def observed(obs: Any, state: Any) -> list[jax.Array]:
        if not is_game or type(env).observe is Game.observe:
            return []
        pairs = zip(jax.tree.leaves(obs), jax.tree.leaves(env.observe(state, params)), strict=True)
        # Only nearly equal: computed apart, sums may be added up in another order.
        return [~jnp.allclose(jnp.float32(x), jnp.float32(y), rtol=1e-3, atol=1e-5, equal_nan=True) for x, y in pairs]

    def step(loop: tuple[Any, jax.Array], drawn: tuple[jax.Array, ...]) -> tuple[tuple[Any, jax.Array], Seen]:
        state, waited = loop
        time, key, noise = drawn
        mask = action_mask_of(env, state, params)
        movers, gap = jnp.ones((), jnp.int32), jnp.zeros((), jnp.int32)
        if is_game:
            moves = env.to_move(state)
            action, stuck = jax.vmap(lambda m, u: legal_action(space, m, u))(mask, noise)
            stuck = stuck & moves[:, None]
            movers = jnp.sum(moves)
            gap = jnp.max(jnp.where(moves, waited, 0))
            waited = jnp.where(moves, 0, jnp.where(waited < 0, waited, waited + 1))
        else:
            action, stuck = legal_action(space, mask, noise)
        final, after, reward, terminated, info = env.step_env(key, state, action, params)
        done = terminated | env.is_truncated(after, params)
        first, start = jax.tree.map(lambda x: x[time % NUM_STARTS], starts)
        stands = jnp.any(jnp.asarray(after.time) <= state.time) if by_clock and hasattr(state, "time") else jnp.zeros((), bool)
        seen = Seen(
            outside=outside(final),
            outside_first=outside(first),
            stuck=stuck,
            reward=jnp.asarray(reward, jnp.float32),
            result=jnp.where(done, jnp.asarray(info.get(RESULT, 0.0) if is_game else 0.0, jnp.float32), 0.0),
            first_truncated=jnp.asarray(env.is_truncated(start, params)),
            clock_stands=stands,
            observed=observed(final, after),
            observed_first=observed(first, start),
            movers=movers,
            gap=gap,
            sums=[jnp.sum(x, dtype=jnp.float32) for x in jax.tree.leaves(final)],
        )
        state = strong(tree_where(done, start, after))
        return (state, jnp.where(done, -1, waited)), seen

    state = jax.tree.map(lambda x: x[-1], starts[1])
    waited = jnp.full(env.num_players if is_game else 1, -1)
    return jax.lax.scan(step, (state, waited), (jnp.arange(NUM_STEPS), keys, noise))[1]


def _arrays(label: str, obs: Any, space: Space) -> Iterator[tuple[str, Any, Any]]:
    """Yield the arrays of an observation, each as (name, array, space)."""
    if isinstance(space, Dict):
        for name in sorted(space.spaces):
            yield from _arrays(f"{label}['{name}']", obs[name], as_space(space.spaces[name]))
    elif isinstance(space, Tuple):
        for i, part in enumerate(space.spaces):
            yield from _arrays(f"{label}[{i}]", obs[i], as_space(part))
    else:
        yield label, obs, space


def _bounds(space: Any) -> tuple[Any, Any]:
    if isinstance(space, Box):
        return jnp.asarray(space.low), jnp.asarray(space.high)
    return 0, (jnp.asarray(space.nvec) if isinstance(space, MultiDiscrete) else space.n) - 1


def _find_outside(x: Any, space: Any) -> Outside:
    low, high = _bounds(space)
    inside = (x >= low) & (x <= high)
    if jnp.issubdtype(x.dtype, jnp.floating):
        # Allow for rounding: a cosine may be 1 + 1e-7.
        rounding = 1e-5 * jnp.maximum(1.0, jnp.abs(x))
        inside = (x >= low - rounding) & (x <= high + rounding) & jnp.isfinite(x)
    index = jnp.argmin(inside.ravel())
    return Outside(~jnp.all(inside), index, x.ravel()[index].astype(jnp.float32))


def _check_seen(subject: Subject, env: Any, params: Any, seen: Seen) -> None:
    """Report the first fault found by random play, in the order in which faults occur in an episode."""
    steps = f"in {NUM_STEPS} steps of random play"
    if seen.first_truncated.any():
        subject.doubt("is_truncated is true of a state that reset_env returned: the episode would end as it begins")
    if seen.stuck.any():
        t = int(np.argmax(seen.stuck.any(axis=tuple(set(range(seen.stuck.ndim)) - {1}))))
        *player, head = np.argwhere(seen.stuck[:, t])[0][1:]
        who = f" of player {player[0]}, who is to move," if player else ""
        which = f", head {head}" if seen.stuck.shape[-1] > 1 else ""
        subject.refuse(f"action_mask{who} allows no action after {t} steps of random play{which}: expected at least one")
    if (seen.movers < 1).any():
        subject.refuse(f"to_move says nobody {steps}, in a game that is not over: expected at least one player")
    if subject.is_game and env.turn_gap:
        if (seen.movers > 1).any():
            subject.refuse(
                f"to_move has {seen.movers.max()} players at once, but turn_gap = {env.turn_gap} says one at each step"
            )
        if seen.gap.max() > env.turn_gap:
            subject.refuse(f"turn_gap = {env.turn_gap}, but {seen.gap.max()} steps of others lay between two moves of a player")
    if subject.is_game and env.all_move and (seen.movers < env.num_players).any():
        subject.refuse(f"all_move = True, but to_move has only {seen.movers.min()} of {env.num_players} players {steps}")
    if subject.is_game and env.zero_sum and env.num_teams == 2:
        first = [env.teams.index(team) for team in range(2)]
        both = np.asarray(side_rewards(env, jnp.asarray(seen.reward)))[..., first].reshape(-1, 2)
        beyond = np.abs(both.sum(axis=-1)) - 1e-3 * np.abs(both).sum(axis=-1)
        worst = both[np.argmax(beyond)]
        if beyond.max() > LEVEL:
            subject.refuse(f"zero_sum = True, but a step of random play paid {worst[0]:g} and {worst[1]:g} to the two sides")
    space = as_space(env.observation_space(params))
    parts = list(_arrays("observation", jax.eval_shape(env.reset_env, jax.random.key(0), params)[0], space))
    for when, all_parts in (("at a reset", seen.outside_first), (steps, seen.outside)):
        for (label, x, part), outside in zip(parts, all_parts, strict=True):
            if outside.bad.any():
                _report_outside(subject, label, x.shape, part, outside, when)
    for function, differs in (("reset_env", seen.observed_first), ("step_env", seen.observed)):
        for (label, _, _), other in zip(parts, differs, strict=False):
            if other.any():
                subject.refuse(f"observe gives another {label} of a state than {function} returned with it, {steps}")
    if not np.isfinite(seen.reward).all():
        subject.doubt(f"step_env returned a reward of {seen.reward[~np.isfinite(seen.reward)][0]} {steps}, expected finite ones")
    if not np.isfinite(seen.result).all():
        subject.doubt(
            f"info['{RESULT}'] was {seen.result[~np.isfinite(seen.result)][0]} at the end of a game, expected finite ones"
        )
    if seen.clock_stands.any():
        subject.doubt("state.time does not grow in step_env: the time limit, max_steps_in_episode, depends on it")


def _report_outside(subject: Subject, label: str, shape: tuple[int, ...], space: Any, outside: Outside, when: str) -> None:
    n = tuple(np.argwhere(outside.bad)[0])
    index = np.unravel_index(int(outside.index[n]), shape)
    own = index[len(shape) - len(space.shape) :]  # without the axis of players
    low, high = (np.broadcast_to(np.asarray(bound), space.shape)[own] for bound in _bounds(space))
    where = f"[{', '.join(map(str, index))}]" if index else ""
    subject.doubt(f"{label}{where} was {outside.value[n]:g} {when}, but observation_space says {low:g} to {high:g} and no NaN")


def _check_pure(subject: Subject, env: Any, params: Any, key: jax.Array) -> None:
    """Refuse an environment whose `reset_env` or `step_env` becomes another program each time it is traced."""
    state, action, _ = step_shapes(env, params)
    for label, function, arguments in (
        ("reset_env", lambda k: env.reset_env(k, params), (key,)),
        ("step_env", lambda k, s, a: env.step_env(k, s, a, params), (key, state, action)),
    ):
        if _program(function, arguments) != _program(function, arguments):
            subject.refuse(
                f"{label} is another program each time it is traced: random numbers of Python or NumPy, and attributes of self, "
                "are fixed when it is compiled; draw from key, and keep what changes in the state"
            )


def _program(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the traced program of a function in a form to compare. A new lambda each time bypasses JAX's cache of traces."""
    closed = jax.make_jaxpr(lambda *values: function(*values))(*arguments)
    consts = [np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x) for x in closed.consts]
    return re.sub(r"0x[0-9a-f]+", "", str(closed.jaxpr)), *((x.dtype, x.shape, x.tobytes()) for x in consts)
