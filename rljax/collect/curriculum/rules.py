"""Rules that say which level an episode takes: all alike, by success rate, or by prioritised level replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.collect.curriculum.levels import LEVEL, LEVEL_SCORE, level_state, with_score
from rljax.collect.scans import short_scan
from rljax.core.agent import Metrics

MAX_METRICS = 32
"""Largest number of levels with metrics of their own."""


class EpisodeSteps(NamedTuple):
    """The part of a rollout that a rule needs, arrays `[T, N]`.

    Attributes:
        returns: return of the episode so far, f32; in a game, of the learner's team.
        length: number of steps of the episode so far, i32.
        ended: whether the episode ended with the step, bool.
        metrics: metrics of `info["metrics"]`, f32 each.
        extras: `level` and `level_score` of the step's info.
    """

    returns: jax.Array
    length: jax.Array
    ended: jax.Array
    metrics: Mapping[str, jax.Array]
    extras: Mapping[str, jax.Array]


class Episodes(NamedTuple):
    """Episodes of a rollout, arrays `[T, N]`.

    Attributes:
        level: level of the episode that the step belongs to, i32.
        ended: whether the episode ended with the step, bool.
        begun: level of the episode that began after a step that ended one, i32; that of the same episode elsewhere.
        success: whether the episode, if it ended there, was a success, bool.
        score: mean score of the episode's steps, if it ended there, f32.
        scored: whether there are any such steps, bool; in a game, the learner may have none.
    """

    level: jax.Array
    ended: jax.Array
    begun: jax.Array
    success: jax.Array
    score: jax.Array
    scored: jax.Array | bool = True


class Curriculum(NamedTuple):
    """A rule as pure functions of its state, a tree of arrays.

    Attributes:
        num_levels: L, the number of levels.
        init: `() -> state`.
        probability: `state -> f32 [L]`, the probability with which an episode takes each level.
        update: `(state, episodes) -> (state, metrics)`, after a rollout; metrics are `curriculum/...`.
        step_score: `advantage [T, N] -> score [T, N]` of steps; None if the rule has no use for scores.
        succeeded: `steps -> bool [T, N]`, whether an episode that ends at a step is a success.
    """

    num_levels: int
    init: Callable[[], Any]
    probability: Callable[[Any], jax.Array]
    update: Callable[[Any, Episodes], tuple[Any, Metrics]]
    step_score: Callable[[jax.Array], jax.Array] | None
    succeeded: Callable[[EpisodeSteps], jax.Array]


def per_level(num_levels: int, level: jax.Array, where: jax.Array, x: jax.Array | float = 1.0) -> jax.Array:
    """Return the sum of `x` f32 `[T, N]` over the steps of each level that count, f32 `[L]`; how many they are without `x`."""
    return jnp.zeros(num_levels).at[level.reshape(-1)].add(jnp.where(where, x, 0.0).reshape(-1))


def _level_metrics(name: str, values: jax.Array) -> Metrics:
    return {f"curriculum/{name}_{i}": values[i] for i in range(len(values))} if len(values) <= MAX_METRICS else {}


def _mean_level(episodes: Episodes) -> jax.Array:
    """Return the mean number of the levels of the episodes that ended, f32 []; NaN if none did."""
    count = jnp.sum(episodes.ended)
    return jnp.where(count > 0, jnp.sum(jnp.where(episodes.ended, episodes.level, 0)) / jnp.maximum(count, 1), jnp.nan)


def uniform_levels(num_levels: int) -> Curriculum:
    """Return the rule in which an episode takes every level with the same probability (domain randomisation)."""

    def update(state: Any, episodes: Episodes) -> tuple[Any, Metrics]:
        return state, {"curriculum/level": _mean_level(episodes)}

    def never(steps: EpisodeSteps) -> jax.Array:
        return jnp.zeros(steps.ended.shape, bool)

    return Curriculum(num_levels, tuple, lambda _: jnp.full(num_levels, 1.0 / num_levels), update, None, never)


class SuccessState(NamedTuple):
    """Decayed numbers of episodes and of successes of each level, f32 `[L]`, and the highest level reached, i32 []."""

    episodes: jax.Array
    successes: jax.Array
    reached: jax.Array


def success_rate_levels(
    num_levels: int,
    succeeded: Callable[[EpisodeSteps], jax.Array],
    *,
    threshold: float = 0.8,
    review: float = 0.25,
    min_episodes: float = 32,
    decay: float = 0.99,
) -> Curriculum:
    """Return the rule that takes levels in their order, the next one once the success rate of the present one is high enough.

    A run begins with level 0. An episode takes the highest level reached; with probability `review`, one of the levels before it,
    all alike. After a rollout, the run reaches the next level if the record of the highest one has at least `min_episodes`
    episodes and a success rate of at least `threshold`. Records are decayed by each episode, whichever rollout it is in: n
    episodes of a level, w of them successes, change its numbers of episodes and successes to `decay^n episodes + m` and
    `decay^n successes + m w / n`, where m = 1 + decay + ... + decay^(n - 1). Those of one rollout count alike.

    Args:
        num_levels: L, the number of levels.
        succeeded: `steps -> bool [T, N]`, whether an episode that ends at a step is a success.
        threshold: success rate at which the next level begins.
        review: probability of a level that was passed.
        min_episodes: number of episodes in a record, decayed, before its rate counts; below 1 / (1 - decay), the limit of that
            number for any number of episodes per rollout.
        decay: factor by which each episode shrinks the record before it.
    """

    def init() -> SuccessState:
        return SuccessState(jnp.zeros(num_levels), jnp.zeros(num_levels), jnp.zeros((), jnp.int32))

    def probability(state: SuccessState) -> jax.Array:
        levels = jnp.arange(num_levels)
        passed = jnp.where(levels < state.reached, review / jnp.maximum(state.reached, 1), 0.0)
        return jnp.where(levels == state.reached, jnp.where(state.reached > 0, 1.0 - review, 1.0), passed)

    def update(state: SuccessState, episodes: Episodes) -> tuple[SuccessState, Metrics]:
        new = per_level(num_levels, episodes.level, episodes.ended)
        won = per_level(num_levels, episodes.level, episodes.ended & episodes.success)
        shrunk = jnp.exp(new * math.log(decay))
        # The geometric sum; `1 - shrunk` would lose a decay close to 1 to rounding.
        added = new if decay == 1 else -jnp.expm1(new * math.log(decay)) / (1 - decay)
        count = state.episodes * shrunk + added
        successes = state.successes * shrunk + added * won / jnp.maximum(new, 1.0)
        rate = jnp.where(count > 0, successes / jnp.maximum(count, 1e-8), jnp.nan)
        at = state.reached
        passes = (count[at] >= jnp.asarray(min_episodes, jnp.float32)) & (rate[at] >= threshold)
        reached = jnp.minimum(at + passes, num_levels - 1)
        metrics = {
            "curriculum/level": _mean_level(episodes),
            "curriculum/reached": reached.astype(jnp.float32),
            "curriculum/success_rate": rate[at],
        }
        return SuccessState(count, successes, reached), metrics | _level_metrics("success_rate", rate)

    return Curriculum(num_levels, init, probability, update, None, succeeded)


class ReplayState(NamedTuple):
    """Score f32 `[L]` of each level, whether it has one, bool `[L]`, and the number of episodes begun since the rollout in which
    it was last begun, i32 `[L]`."""

    score: jax.Array
    seen: jax.Array
    staleness: jax.Array


SCORES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "value_l1": jnp.abs,
    "positive_value": lambda advantage: jnp.maximum(advantage, 0.0),
    "gae": lambda advantage: advantage,
}
"""Scores of a step by its generalised advantage A: |A| (the paper's L1 value loss, its choice), max(A, 0) and A."""


def prioritized_levels(
    num_levels: int, *, score: str = "value_l1", temperature: float = 0.1, staleness: float = 0.1, replay: float = 0.5
) -> Curriculum:
    """Return prioritised level replay (Jiang, Grefenstette and Rocktäschel, 2021).

    The score of a level is the mean score of the steps of its last episodes (the mean over those that ended in one rollout). As
    long as some levels have no score, an episode takes one of them, all alike, with probability `1 - replay`. Otherwise it
    replays a level with a score by

        P = (1 - staleness) P_S + staleness P_C,  P_S ~ (1 / rank(score))^(1 / temperature),  P_C ~ c - C

    (eq. 2 and section 3), where rank 1 is the highest score, and c - C is the number of episodes that began since the level was
    last begun. The probabilities change after each rollout, not after each episode.

    Args:
        num_levels: L, the number of levels.
        score: a name in `SCORES`.
        temperature: beta of the ranks; a higher one makes levels more alike.
        staleness: rho, the weight of P_C.
        replay: probability of replaying a level while others have no score.
    """

    def init() -> ReplayState:
        return ReplayState(jnp.zeros(num_levels), jnp.zeros(num_levels, bool), jnp.zeros(num_levels, jnp.int32))

    def probability(state: ReplayState) -> jax.Array:
        return replay_probability(state, temperature, staleness, replay)

    def update(state: ReplayState, episodes: Episodes) -> tuple[ReplayState, Metrics]:
        scored = episodes.ended & episodes.scored
        count = per_level(num_levels, episodes.level, scored)
        total = per_level(num_levels, episodes.level, scored, episodes.score)
        begun = per_level(num_levels, episodes.begun, episodes.ended)
        waited = jnp.minimum(state.staleness + jnp.sum(episodes.ended, dtype=jnp.int32), 2**30)
        state = ReplayState(
            jnp.where(count > 0, total / jnp.maximum(count, 1.0), state.score),
            state.seen | (count > 0),
            jnp.where(begun > 0, 0, waited),
        )
        seen = jnp.sum(state.seen, dtype=jnp.float32)
        probabilities = probability(state)
        entropy = -jnp.sum(jax.scipy.special.xlogy(probabilities, probabilities))
        mean = jnp.sum(jnp.where(state.seen, state.score, 0.0)) / jnp.maximum(seen, 1.0)
        metrics = {
            "curriculum/level": _mean_level(episodes),
            "curriculum/seen": seen / num_levels,
            "curriculum/score": jnp.where(seen > 0, mean, jnp.nan),
            "curriculum/effective_levels": jnp.exp(entropy),
        }
        return state, metrics | _level_metrics("score", jnp.where(state.seen, state.score, jnp.nan))

    never = uniform_levels(num_levels).succeeded
    return Curriculum(num_levels, init, probability, update, SCORES[score], never)


def replay_probability(state: ReplayState, temperature: float, staleness: float, replay: float) -> jax.Array:
    """Return the probability of each level by `prioritized_levels`, f32 `[L]`."""
    seen = state.seen
    order = jnp.argsort(jnp.where(seen, -state.score, jnp.inf))
    rank = jnp.zeros(len(seen)).at[order].set(jnp.arange(1.0, len(seen) + 1.0))

    def normalized(weight: jax.Array) -> jax.Array:
        total = jnp.sum(weight)
        alike = seen / jnp.maximum(jnp.sum(seen), 1)
        return jnp.where(total > 0, weight / jnp.where(total > 0, total, 1.0), alike)

    by_score = normalized(jnp.where(seen, rank ** (-1.0 / temperature), 0.0))
    by_staleness = normalized(jnp.where(seen, state.staleness.astype(jnp.float32), 0.0))
    replayed = (1.0 - staleness) * by_score + staleness * by_staleness
    new = ~seen / jnp.maximum(jnp.sum(~seen), 1)
    share = jnp.where(jnp.all(seen), 1.0, jnp.where(jnp.any(seen), replay, 0.0))
    return share * replayed + (1.0 - share) * new


def with_probabilities(curriculum: Curriculum | None, state: Any, env_params: Any) -> Any:
    """Return the parameters of an environment or game with the probabilities of levels by a curriculum's state; without a
    curriculum, the parameters."""
    return env_params if curriculum is None else env_params.with_probability(curriculum.probability(state))


def rollout_episodes(
    curriculum: Curriculum, steps: EpisodeSteps, env_state: Any, advantage: jax.Array | None, own: jax.Array | None = None
) -> tuple[Episodes, Any]:
    """Return the episodes of a rollout, and the states of the environments with the scores of the episodes under way.

    Args:
        curriculum: the rule.
        steps: the steps.
        env_state: states of the environments after the rollout, `[N, ...]`, `Levels` or `GameLevels` among their wrappers.
        advantage: f32 `[T, N]`, of games f32 `[T, N, Q]`, of the Q players whose moves a step takes; only needed by rules with
            scores.
        own: which of these moves are scored, bool `[T, N, Q]`; None: all steps, of environments.
    """
    level, ended = steps.extras[LEVEL], steps.ended
    begun = jnp.concatenate([level[1:], level_state(env_state).level[None]])
    episodes = Episodes(level, ended, begun, curriculum.succeeded(steps), jnp.zeros(ended.shape))
    if curriculum.step_score is None:
        return episodes, env_state
    score, over = curriculum.step_score(jnp.asarray(advantage)), ended
    if own is not None:
        score = jnp.stack([jnp.sum(jnp.where(own, score, 0.0), axis=-1), jnp.sum(own, axis=-1, dtype=jnp.float32)], axis=-1)
        over = ended[..., None]

    def add(total: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total = total + now[0]
        return jnp.where(now[1], 0.0, total), total

    last, totals = short_scan(add, steps.extras[LEVEL_SCORE][0], (score, over))
    env_state = with_score(env_state, last)
    if own is None:
        return episodes._replace(score=totals / steps.length), env_state
    total, number = totals[..., 0], totals[..., 1]
    return episodes._replace(score=total / jnp.maximum(number, 1.0), scored=number > 0), env_state
