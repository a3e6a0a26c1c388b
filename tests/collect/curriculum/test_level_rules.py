"""Rules of curricula against plain Python, the paper's formula, and frequencies of sampled levels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.collect.curriculum.levels import LEVEL, LEVEL_SCORE, LevelParams, LevelState
from rljax.collect.curriculum.rules import (
    Episodes,
    EpisodeSteps,
    ReplayState,
    prioritized_levels,
    replay_probability,
    rollout_episodes,
    success_rate_levels,
    uniform_levels,
)

T, N, L = 12, 5, 4


def episodes(seed: int, levels: int = L) -> Episodes:
    rng = np.random.default_rng(seed)
    level, begun = rng.integers(0, levels, (2, T, N))
    ended, success = rng.random((2, T, N)) < 0.6
    return Episodes(*map(jnp.asarray, (level, ended, begun, success, rng.normal(size=(T, N)).astype(np.float32))))


def test_the_success_rule_equals_plain_python() -> None:
    rule = success_rate_levels(L, lambda _: jnp.zeros(()), threshold=0.55, review=0.3, min_episodes=8, decay=0.95)
    state, update = rule.init(), jax.jit(rule.update)
    count, won, reached, history = [0.0] * L, [0.0] * L, 0, []
    for seed in range(12):
        given = episodes(seed)
        state, metrics = update(state, given)
        for level in range(L):
            own = np.asarray(given.ended) & (np.asarray(given.level) == level)
            for _ in range(own.sum()):
                count[level] = count[level] * 0.95 + 1.0
                won[level] = won[level] * 0.95 + np.asarray(given.success)[own].mean()
        assert metrics["curriculum/success_rate"] == pytest.approx(won[reached] / count[reached], rel=1e-4)
        if count[reached] >= 8 and won[reached] / count[reached] >= 0.55 and reached < L - 1:
            reached += 1
        history.append(reached)
        np.testing.assert_allclose(state.episodes, count, rtol=1e-4)
        np.testing.assert_allclose(state.successes, won, rtol=1e-4)
        assert int(state.reached) == reached == metrics["curriculum/reached"]
        expected = [0.3 / reached if level < reached else 0.0 for level in range(L)]
        expected[reached] = 0.7 if reached else 1.0
        np.testing.assert_allclose(rule.probability(state), expected, rtol=1e-6)
    assert 0 in history  # it waited
    assert max(history) > 1  # and moved on


@pytest.mark.parametrize("decay", [0.9, 0.99999, 1.0])
def test_a_record_counts_as_many_episodes_in_one_rollout_as_in_many(decay: float) -> None:
    rule = success_rate_levels(1, lambda _: jnp.zeros(()), decay=decay)
    one = Episodes(*(jnp.full((1, 1), x) for x in (0, True, 0, True, 0.0)))
    at_once, _ = rule.update(rule.init(), jax.tree.map(lambda x: jnp.tile(x, (8, 10)), one))
    several = jax.lax.fori_loop(0, 80, lambda _, state: rule.update(state, one)[0], rule.init())
    expected = sum(decay**i for i in range(80))  # never more than 1 / (1 - decay), the bound of `min_episodes`
    for state in (at_once, several):
        np.testing.assert_allclose((*state.episodes, *state.successes), expected, rtol=1e-4)


def plain_replay(
    score: list[float], seen: list[bool], staleness: list[int], beta: float, rho: float, replay: float
) -> np.ndarray:
    """Probabilities by eq. 2 and section 3 of Jiang et al. (2021), with loops."""
    by_rank = sorted((i for i in range(len(score)) if seen[i]), key=lambda i: -score[i])
    weight = {i: (1 / (rank + 1)) ** (1 / beta) for rank, i in enumerate(by_rank)}
    waited = sum(staleness[i] for i in by_rank)
    result = np.zeros(len(score))
    new = [i for i in range(len(score)) if not seen[i]]
    share = 1.0 if not new else replay if by_rank else 0.0
    for i in by_rank:
        stale = staleness[i] / waited if waited else 1 / len(by_rank)
        result[i] = share * ((1 - rho) * weight[i] / sum(weight.values()) + rho * stale)
    for i in new:
        result[i] = (1 - share) / len(new)
    return result


@pytest.mark.parametrize(
    ("seen", "staleness"),
    [
        ([True] * 5, [3, 0, 8, 1, 2]),
        ([True] * 5, [0] * 5),
        ([True, False, True, False, True], [3, 9, 0, 1, 2]),
        ([False] * 5, [4] * 5),
    ],
)
def test_levels_are_replayed_as_often_as_the_formula_says(seen: list[bool], staleness: list[int]) -> None:
    score = [0.2, 0.9, -0.1, 0.5, 0.3]
    state = ReplayState(jnp.array(score), jnp.array(seen), jnp.array(staleness))
    probability = replay_probability(state, 0.7, 0.3, 0.6)
    expected = plain_replay(score, seen, staleness, 0.7, 0.3, 0.6)
    np.testing.assert_allclose(probability, expected, atol=1e-6)
    params = LevelParams(None, {}, jnp.zeros(5)).with_probability(probability)
    drawn = jax.jit(jax.vmap(params.draw))(jax.random.split(jax.random.key(0), 20_000))
    share = np.bincount(drawn, minlength=5) / 20_000
    # Five deviations of a binomial share.
    assert (np.abs(share - expected) <= 5 * np.sqrt(expected * (1 - expected) / 20_000)).all()


def test_replay_keeps_mean_scores_and_counts_the_episodes_since_a_level_began() -> None:
    rule = prioritized_levels(L)
    state, update = rule.init(), jax.jit(rule.update)
    score, seen, staleness = [0.0] * L, [False] * L, [0] * L
    for seed in range(4):
        given = episodes(seed, levels=2 + seed % 3)
        state, metrics = update(state, given)
        level, ended, begun, _, scores = map(np.asarray, given[:5])
        for i in range(L):
            own = ended & (level == i)
            if own.any():
                score[i], seen[i] = scores[own].mean(), True
            staleness[i] = 0 if (ended & (begun == i)).any() else staleness[i] + ended.sum()
        np.testing.assert_allclose(state.score, score, rtol=1e-5)
        assert state.seen.tolist() == seen
        assert state.staleness.tolist() == staleness
        assert metrics["curriculum/seen"] == np.mean(seen)


def test_the_score_of_an_episode_is_its_mean_over_rollouts() -> None:
    rule = prioritized_levels(L, score="value_l1")
    rng = np.random.default_rng(0)
    ended = np.zeros((2, T, 1), bool)
    ended[0, 3], ended[1, 4] = True, True
    advantage = rng.normal(size=(2, T, 1)).astype(np.float32)
    length = np.concatenate([np.arange(1, 5), np.arange(1, T - 3), np.arange(T - 3, T + 2), np.arange(1, T - 4)]).reshape(2, T, 1)
    state, found = LevelState(None, jnp.zeros(1, jnp.int32), jnp.zeros(1)), []
    for k in range(2):
        extras = {LEVEL: jnp.zeros((T, 1), jnp.int32), LEVEL_SCORE: jnp.full((T, 1), state.score)}
        rest = jnp.zeros((T, 1))
        steps = EpisodeSteps(rest, length[k], ended[k], {}, extras)
        given, state = rollout_episodes(rule, steps, state, jnp.asarray(advantage[k]))
        found += np.asarray(given.score)[ended[k]].tolist()
    flat = np.abs(advantage).reshape(-1)
    assert found == pytest.approx([flat[:4].mean(), flat[4 : T + 5].mean()], rel=1e-5)


def test_uniform_levels_are_alike_and_no_level_without_weight_is_drawn() -> None:
    assert uniform_levels(3).probability(()).tolist() == pytest.approx([1 / 3] * 3)
    params = LevelParams(None, {}, jnp.zeros(4)).with_probability(jnp.array([0.0, 0.5, 0.5, 0.0]))
    drawn = jax.vmap(params.draw)(jax.random.split(jax.random.key(1), 4096))
    assert set(drawn.tolist()) == {1, 2}
    # Sums of many levels that are computed in parallel have rounding errors, also where nothing is added.
    weights = np.random.default_rng(0).random((200, 1000)) * (np.random.default_rng(1).random((200, 1000)) < 0.5)
    weights[:, 700:] = 0.0
    sums = np.asarray(jax.vmap(lambda p: params.with_probability(p).cumulative)(jnp.asarray(weights, jnp.float32)))
    rises = np.diff(sums, axis=1, prepend=0.0)
    assert (rises >= 0).all()
    assert (rises[weights == 0] == 0).all()
