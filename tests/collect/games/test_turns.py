"""Advantages of players who take turns, by plain loops over the moves of each."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.collect.games.turns import turn_advantages


def by_loops(reward, value, moves, done, last_value, last_moves, gamma, lam, gap):
    """Of one game's steps `[T, P]`: dictionaries (t, p) -> (gae, upgo), only where what came of the move is known."""
    length, players = reward.shape
    gae, upgo = {}, {}
    for p in range(players):
        mine = [t for t in range(length) if moves[t, p]]
        for t in reversed(mine):
            if t >= length - gap:
                gae[t, p], upgo[t, p] = 0.0, (value[t, p], True)
                continue
            total, u, over = 0.0, t, False
            while True:
                total += reward[u, p]
                over = done[u]
                u += 1
                if over or u == length or moves[u, p]:
                    break
            if not over and u == length and not last_moves[p]:
                gae[t, p], upgo[t, p] = 0.0, (value[t, p], True)
                continue
            ahead = 0.0 if over else (last_value[p] if u == length else value[u, p])
            error = total + gamma * ahead - value[t, p]
            after = 0.0 if over or u == length else gae[u, p]
            gae[t, p] = error + gamma * lam * after
            better = not over and u < length and upgo[u, p][1]
            onward = upgo[u, p][0] if better else ahead
            upgo[t, p] = (total + gamma * onward, error >= 0)
    return gae, {k: v[0] - value[k] for k, v in upgo.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alternating", "together", "draft"])
def test_advantages_of_turns_are_those_of_plain_loops(kind: str) -> None:
    rng = np.random.default_rng(0)
    length, players = 40, 2
    for _ in range(10):
        reward = rng.normal(size=(length, players)).astype(np.float32)
        value = rng.normal(size=(length, players)).astype(np.float32)
        done = rng.random(length) < 0.15
        time = 0
        moves = np.zeros((length + 1, players), bool)
        for t in range(length + 1):
            mover = {"alternating": time % 2, "draft": (0, 1, 1, 0)[time % 4], "together": slice(None)}[kind]
            moves[t, mover] = True
            time = 0 if t < length and done[t] else time + 1
        gap = {"alternating": 1, "together": 0, "draft": 2}[kind]
        last_value = rng.normal(size=players).astype(np.float32)
        found = turn_advantages(*map(jnp.asarray, (reward, value, moves[:-1], done, last_value, moves[-1])), 0.9, 0.8, gap)
        gae, upgo = by_loops(reward, value, moves, done, last_value, moves[-1], 0.9, 0.8, gap)
        assert found.known.sum() > 20
        assert not found.known[length - gap :].any()
        assert not np.any(np.asarray(found.gae)[~moves[:-1]])
        for (t, p), expected in gae.items():
            np.testing.assert_allclose(found.gae[t, p], expected, rtol=1e-4, atol=1e-5)
        for (t, p), expected in upgo.items():
            np.testing.assert_allclose(found.upgo[t, p], expected, rtol=1e-4, atol=1e-5)
