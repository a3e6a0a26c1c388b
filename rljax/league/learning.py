"""One learner's update, by PPO or V-trace, from the games that it played."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.algos.common.game_policy import seen_game_rewards
from rljax.algos.common.policy import policy_and_value, policy_unroll
from rljax.algos.common.teacher import Teacher, teacher_streams
from rljax.algos.common.value_heads import combined, head_settings
from rljax.algos.impala import behaviour_params, impala_learn, next_past_params
from rljax.algos.ppo import ppo_learn, stream_advantages
from rljax.collect.environments import training_reward
from rljax.collect.games.rollout import GameSteps, of_acting
from rljax.collect.games.sides import Side
from rljax.collect.games.turns import LastStep, SeatStreams, game_starts, seat_carry, seat_streams, with_last_step
from rljax.collect.normalizers import normalize, scale_rewards, update_statistics
from rljax.collect.streams import own_mean, traced_seat
from rljax.core.agent import Metrics
from rljax.core.environments.environment import BELIEF, COMPONENTS
from rljax.core.games.game_wrappers import public_part
from rljax.core.keys import apart
from rljax.league.parts import FINAL_OBSERVATION, GameParts, Learner, batch_size


def improve(
    parts: GameParts,
    learner: Learner,
    steps: GameSteps,
    last: LastStep,
    carry: Any,
    taught: Any,
    key: jax.Array,
    rate: jax.Array,
) -> tuple[Learner, Any, tuple[jax.Array, jax.Array] | None, Metrics]:
    """Return one learner after its gradient steps on T steps of E games, its teacher's memory, advantages for a curriculum (see
    `_advantages`), and metrics `train/...`.

    Args:
        parts: from `game_parts`.
        learner: as it was when the games were played.
        steps: `[T, E, ...]`, the learner's own games.
        last: what comes after them.
        carry: memory of all seats after the steps, `[E, P, ...]`; None without memory.
        taught: the teacher's memory of all seats before the steps, `[E, P, ...]`; None without one.
        key: random key.
        rate: learning rate, f32 [].
    """
    rewards, ends, learner, metrics = _rewards(parts, learner, steps, apart(key))
    of_all = steps.obs
    if parts.sides is not None:
        steps, last, rewards, carry, taught = _own_side(parts.sides[0], steps, last, rewards, carry, taught)
    seen, seen_last = steps, last
    if learner.obs_statistics is not None:
        seen = steps._replace(obs=normalize(learner.obs_statistics, steps.obs))
        seen_last = last._replace(obs=normalize(learner.obs_statistics, last.obs))
    found = _streams(parts, behaviour_params(learner), seen, seen_last, carry, rewards, ends)
    if learner.teacher is not None:
        found, taught = _with_teacher(parts, learner.teacher, found, steps, taught)
        if parts.sides is not None:
            # The other seats get wrong memories, which are forgotten before the learner plays them.
            taught = parts.sides[0].whole(steps.team[-1], taught)
    of_levels = _advantages(parts, found, steps)
    learn = _by_vtrace if parts.config.learner == "impala" else _by_ppo
    after, of_update = learn(parts, learner, found, seen, seen_last, key, rate)
    if learner.obs_statistics is not None:
        after = after._replace(obs_statistics=update_statistics(learner.obs_statistics, of_all))
    return after, taught, of_levels, of_update | metrics | _unknown_moves(parts, found, steps)


def _own_side(
    ours: Side, steps: GameSteps, last: LastStep, rewards: jax.Array, carry: Any, taught: Any
) -> tuple[GameSteps, LastStep, jax.Array, Any, Any]:
    """Return steps, what comes after them, rewards and memories of the learner's side alone: K seats in place of all P.

    No network needs to see what its opponents did at the same time.
    """
    before = (steps.obs, steps.mask, steps.action, steps.mine, steps.moves, rewards)
    obs, mask, action, mine, moves, rewards = jax.vmap(ours.part)(steps.team, before)
    remembered, taught = ours.part(steps.team[0], (steps.carry, taught))
    steps = steps._replace(obs=obs, mask=mask, action=action, mine=mine, moves=moves, carry=remembered)
    # If the game ended, the next step counts for no one, so the wrong seats do no harm.
    last, carry = ours.part(steps.team[-1], (last, carry))
    return steps, last, rewards, carry, taught


def _unknown_moves(parts: GameParts, found: SeatStreams, steps: GameSteps) -> Metrics:
    """Return the share of the learner's moves that are not learned from, as the rollout ends before it is known what comes of
    them: the last moves of players who drop out.

    Moves in the last `turn_gap` steps are not counted: that share is the same in every rollout.
    """
    if parts.game.all_move:
        return {}
    settled, learned_from = len(steps.done) - parts.game.turn_gap, found.streams.own
    assert learned_from is not None
    own = _by_stream(steps.mine & _moved(steps))[:settled]
    return {"train/unknown_moves": own_mean((~learned_from[:settled]).astype(jnp.float32), own)}


def _streams(
    parts: GameParts, params: Any, steps: GameSteps, last: LastStep, carry: Any, rewards: jax.Array, ends: jax.Array
) -> SeatStreams:
    """Return the streams of games, with the values and log-probabilities of the policy that played; `steps` are normalised."""
    ppo, shape = parts.ppo, steps.mine.shape
    before = None if steps.carry is None else seat_carry(steps.carry, shape[2])
    seat = steps.moves.reshape(shape[0], shape[1] * shape[2], -1)
    outputs, value, _ = policy_unroll(ppo, params, _by_stream(steps.obs), before, _by_stream(game_starts(steps)), seat)
    log_prob = ppo.head.distribution(outputs, _by_stream(steps.mask)).log_prob(_by_stream(steps.action))
    _, last_value, _ = policy_and_value(ppo, params, last.obs, of_acting(parts.game, carry, last.moves))
    value = value.reshape(*shape, *value.shape[2:])
    return seat_streams(
        steps._replace(reward=rewards), value, log_prob.reshape(shape), last_value, last.moves, parts.game.turn_gap, ends
    )


def _by_stream(tree: Any) -> Any:
    """Return arrays `[T, E, Q, ...]` as `[T, S, ...]`."""
    return jax.tree.map(lambda x: x.reshape(len(x), -1, *x.shape[3:]), tree)


def _with_teacher(
    parts: GameParts, teacher: Teacher, found: SeatStreams, steps: GameSteps, carry: Any
) -> tuple[SeatStreams, Any]:
    """Return the streams with what the teacher would have done, and its memory of all seats after them, `[E, P, ...]`."""
    streams = found.streams._replace(obs=_by_stream(steps.obs))
    before = None if carry is None else seat_carry(carry, steps.mine.shape[2])
    ended = jnp.broadcast_to(steps.done[-1][:, None], steps.mine.shape[1:]).reshape(-1)
    view, after = teacher_streams(parts.ppo, teacher, before, streams, streams.begins, ended, streams.seat)
    after = jax.tree.map(lambda x, like: x.reshape(like.shape), after, carry)
    return found._replace(streams=found.streams._replace(teacher=view)), after


def _advantages(parts: GameParts, found: SeatStreams, steps: GameSteps) -> tuple[jax.Array, jax.Array] | None:
    """Return the generalised advantages of moves, f32 `[T, E, Q]`, and which of them the learner learns from (`seat_streams`),
    bool; None if no curriculum scores them."""
    curriculum, config = parts.ppo.curriculum, parts.ppo.config
    if curriculum is None or curriculum.step_score is None:
        return None
    streams, value, next_value = found
    assert streams.own is not None
    advantage = combined(head_settings(config), stream_advantages(config, streams, value, next_value))
    return advantage.reshape(steps.mine.shape), streams.own.reshape(steps.mine.shape)


def _by_ppo(
    parts: GameParts, learner: Learner, found: SeatStreams, steps: GameSteps, last: LastStep, key: jax.Array, rate: jax.Array
) -> tuple[Learner, Metrics]:
    del steps, last
    size = None if parts.has_memory else batch_size(parts)
    drawn = True
    streams, value, next_value = found
    if size is not None:
        settled = len(value) - parts.game.turn_gap
        streams, value, next_value = jax.tree.map(lambda x: x[:settled], found)
        everybody = parts.game.all_move or parts.game.turn_gap > 0
        if not parts.config.has_pool and everybody and parts.ppo.intrinsic is None:
            # All are one's own; unknown are only the last moves of players who dropped out, and the loss leaves them out. To draw
            # from the others would cost every game a gather of the batch.
            drawn = False
            own = None if parts.game.all_move else streams.own
            streams = streams._replace(seat=traced_seat(streams), own=own)
    params, opt_state, metrics = ppo_learn(
        parts.ppo,
        learner.params,
        learner.opt_state,
        streams,
        value,
        next_value,
        key,
        rate,
        size=size,
        drawn=drawn,
        magnet=learner.average_params,
    )
    return learner._replace(params=params, opt_state=opt_state), metrics


def _by_vtrace(
    parts: GameParts, learner: Learner, found: SeatStreams, steps: GameSteps, last: LastStep, key: jax.Array, rate: jax.Array
) -> tuple[Learner, Metrics]:
    streams = with_last_step(found.streams, steps, last)
    params, opt_state, metrics = impala_learn(parts.ppo, learner.params, learner.opt_state, streams, key, rate)
    return learner._replace(params=params, opt_state=opt_state, past_params=next_past_params(learner)), metrics


def _rewards(
    parts: GameParts, learner: Learner, steps: GameSteps, key: jax.Array
) -> tuple[jax.Array, jax.Array, Learner, Metrics]:
    """Return the rewards of the value heads, f32 `[T, E, P]` of one and `[T, E, P, K]` of several, where their streams end, the
    learner with its statistics moved on, and the bonus's metrics.

    The statistics and the bonus see all players of the learner's games. Without opponents, the stream of the bonus goes on
    in the next game (Burda et al., 2018, section 2.3).
    """
    config, extras = parts.config, steps.extras
    rewards = [extras[COMPONENTS][name] for name in config.value_heads] or [steps.reward]
    rewards = [training_reward(config, x) for x in rewards]
    moved = seen_game_rewards(config, learner.reward_statistics, steps.reward, steps.done)
    if moved is not None:
        learner = learner._replace(reward_statistics=moved)
        rewards = [scale_rewards(moved, x) for x in rewards]
    ends = [steps.done] * len(rewards)
    metrics: Metrics = {}
    if parts.ppo.intrinsic is not None:
        bonus, state, metrics = _bonus(parts, learner.intrinsic, steps, key)
        learner = learner._replace(intrinsic=state)
        rewards.append(bonus)
        # In a league the seat may be an opponent's in the next game.
        ends.append(steps.done if config.has_pool else jnp.zeros_like(steps.done))
    if len(rewards) == 1:
        return rewards[0], ends[0], learner, metrics
    return jnp.stack(rewards, axis=-1), jnp.stack(ends, axis=-1), learner, metrics


def _seats(x: jax.Array) -> jax.Array:
    """Return `[T, E, P]` as `[T, E * P]`."""
    return x.reshape(len(x), -1)


def _bonus(parts: GameParts, state: Any, steps: GameSteps, key: jax.Array) -> tuple[jax.Array, Any, Metrics]:
    """Return the bonuses of all players, f32 `[T, E, P]`, the bonus's state, and its metrics."""
    intrinsic, shape = parts.ppo.intrinsic, steps.reward.shape
    assert intrinsic is not None
    if BELIEF in steps.extras:
        done = _seats(jnp.broadcast_to(steps.done[..., None], shape))
        state, bonus, metrics = intrinsic.update(state, key, steps.obs, done, _seats(steps.extras[BELIEF]))
        return bonus.reshape(shape), state, metrics
    of_all = public_part(parts.game, steps.extras[FINAL_OBSERVATION])
    of_movers = jax.vmap(lambda obs, moves: of_acting(parts.game, obs, moves))(of_all, steps.moves)
    after = jax.tree.map(lambda x: x.reshape(len(x), -1, *x.shape[3:]), of_movers)
    done = _seats(jnp.broadcast_to(steps.done[..., None], steps.mine.shape))
    state, bonus, metrics = intrinsic.update(state, key, after, done, own=_seats(steps.mine & _moved(steps)))
    return bonus.reshape(steps.mine.shape) * steps.moves, state, metrics


def _moved(steps: GameSteps) -> jax.Array:
    """Return whether the action of each acting player counts, bool `[T, E, Q]`."""
    several = steps.mine.shape[-1] == steps.moves.shape[-1]
    return steps.moves if several else jnp.any(steps.moves, axis=-1, keepdims=True)
