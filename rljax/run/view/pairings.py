"""Pairings of a tournament, at tables of as many players as a game has teams, and rankings of the results."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection

import numpy as np

MAX_ORDERS = 120
"""Largest number of orders that a tie is split into: all orders of up to five players."""

Ranking = tuple[tuple[int, ...], ...]
"""Players of a game from the first place to the last; those who share a place are in one group."""


def all_tables(count: int, size: int) -> list[tuple[int, ...]]:
    """Return all tables of `size` different players of `count`; of fewer players, all tables at which everybody sits."""
    tables = itertools.combinations_with_replacement(range(count), size)
    return [table for table in tables if len(set(table)) == min(count, size)]


def swiss_tables(
    share: np.ndarray, played: np.ndarray, met: np.ndarray, size: int = 2, apart: Collection[int] = ()
) -> list[tuple[int, ...]]:
    """Return the tables of the next round.

    From the top, each player meets the next ones that nobody at the table has met yet, or else the next ones. If players are left
    over, those of them sit out who are last among those with most games.

    Args:
        share: share of points won, `[K]`.
        played: number of games of each player so far, `[K]`.
        met: whether two players have met, bool `[K, K]`.
        size: number of players at a table.
        apart: players that never meet each other, at tables of two. Those that are more than the others sit out in turn.
    """
    left = [int(i) for i in np.argsort(-share, kind="stable")]

    def without_last(players: list[int]) -> list[int]:
        last = [i for i in players if played[i] == played[players].max()][-1]
        return [i for i in left if i != last]

    while _too_many(left, apart):
        left = without_last([i for i in left if i in apart])
    while len(left) % size:
        left = without_last(left)
    tables = []
    while left:
        table = [left.pop(0)]
        while len(table) < size:
            may_join = [i for i in left if _may_join(i, table, left, apart)]
            following = next((other for other in may_join if not met[table, other].any()), may_join[0])
            left.remove(following)
            table.append(following)
        tables.append(tuple(table))
    return tables


def _too_many(players: list[int], apart: Collection[int]) -> bool:
    """Return whether more of the players are in `apart` than can be paired with the others."""
    return 2 * sum(i in apart for i in players) > len(players)


def _may_join(player: int, table: list[int], left: list[int], apart: Collection[int]) -> bool:
    """Return whether a player may sit down at a table: not two of those that stay apart, and the rest can be paired."""
    if not apart:
        return True
    return not {player, *table} <= set(apart) and not _too_many([i for i in left if i != player], apart)


def ranking_of(players: tuple[int, ...], places: np.ndarray) -> Ranking:
    """Return the ranking of the players of a game by their places, `[N]`."""
    return tuple(tuple(player for player, at in zip(players, places, strict=True) if at == place) for place in np.unique(places))


def split_ties(rankings: Counter[Ranking]) -> tuple[np.ndarray, np.ndarray]:
    """Return rankings without ties, i32 `[R, N]`, and their weights, f32 `[R]`.

    A tie counts as all orders of those who share a place, each with the same part of the game, as a draw counts half for both
    players in Elo ratings. Of ties with over 120 orders, the rotations stand for all: everybody has every place equally often.
    """
    weights: Counter[tuple[int, ...]] = Counter()
    for ranking, games in rankings.items():
        if math.prod(math.factorial(len(group)) for group in ranking) <= MAX_ORDERS:
            orders = list(itertools.product(*(itertools.permutations(group) for group in ranking)))
        else:
            turns = range(math.lcm(*map(len, ranking)))
            orders = [tuple(group[turn % len(group) :] + group[: turn % len(group)] for group in ranking) for turn in turns]
        for order in orders:
            weights[tuple(itertools.chain(*order))] += games / len(orders)  # type: ignore[assignment]
    return np.array(list(weights), np.int32), np.array(list(weights.values()), np.float32)
