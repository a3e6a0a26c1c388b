"""Rules for opponents, snapshots and resets: AlphaStar's (Vinyals et al., 2019, supplementary pseudocode) and simpler ones.

All rules are pure functions of results. One detail of AlphaStar's is left out: before it looks for forgotten snapshots, the
pseudocode drops the newest ones for as long as win rates fall monotonically.

Players are numbered like the rows and columns of the payoff: learners 0 .. L - 1, then the pool's slots L .. L + C - 1.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rljax.league.matchmaking import pfsp_probabilities

MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER = 0, 1, 2
ROLES = ("main", "main_exploiter", "league_exploiter")
RULES = ("alphastar", "simple", "fictitious")

PFSP, VERIFICATION = 0.5, 0.15
"""AlphaStar's shares of a main agent's games: against all past players, and against those that it may have forgotten how to
beat.
"""
EXPLOITED, FORGOTTEN, EVEN, HOPELESS = 0.3, 0.7, 0.3, 0.1
"""Thresholds of win rates, below which a main agent plays an exploiter, or a past main agent again, and below which a current
main agent is too strong for another one, or for its exploiter (0.2 in the paper's text, 0.1 in its pseudocode).
"""


class Rules(NamedTuple):
    """The settings of a league's rules.

    Attributes:
        name: one of `RULES`.
        roles: role of each learner.
        self_play: share of a main agent's games against itself ("simple").
        power: p of the PFSP weights (1 - x)^p ("simple").
        min_probability: lower bound of the probability of each opponent in the pool ("simple").
        snapshot_every: smallest number of iterations between two snapshots of a learner.
        snapshot_timeout: largest number of iterations between them ("alphastar"; other rules take a snapshot each time).
        beats_all: win rate against every opponent at which a snapshot is taken before the timeout ("alphastar").
        league_reset: probability that a league exploiter is reset after a snapshot.
        eviction: how a full pool chooses the player to evict, "reservoir" or "fifo".
        decay: factor by which a pair's record shrinks with each game.
    """

    name: str
    roles: tuple[int, ...]
    self_play: float | jax.Array
    power: float | jax.Array
    min_probability: float | jax.Array
    snapshot_every: int
    snapshot_timeout: int
    beats_all: float | jax.Array
    league_reset: float | jax.Array
    eviction: str
    decay: float | jax.Array


class Players(NamedTuple):
    """All players, `[N]`: `role` i32; `parent` i32, the learner that a snapshot was taken of; `snapshot` bool, False for learners
    and empty slots of the pool.
    """

    role: jax.Array
    parent: jax.Array
    snapshot: jax.Array


def match_probabilities(rules: Rules, learner: int, win_rate: jax.Array, players: Players) -> jax.Array:
    """Return the probability of each player to be a learner's next opponent, f32 `[N]`.

    Args:
        rules: rules of the league.
        learner: index of the learner.
        win_rate: win rate of each player against each, `[N, N]`.
        players: description of all players.
    """
    x, role = win_rate[learner], rules.roles[learner]
    mains = [i for i, other in enumerate(rules.roles) if other == MAIN]
    past = players.snapshot
    index = jnp.arange(len(x))
    if rules.name != "alphastar":
        fictitious = rules.name == "fictitious"
        over_pool = pfsp_probabilities(x, past, 0.0 if fictitious else rules.power, 0.0 if fictitious else rules.min_probability)
        if role == MAIN and not fictitious:
            return rules.self_play * (index == learner) + (1.0 - rules.self_play) * over_pool
        if role == MAIN_EXPLOITER and not fictitious:
            return jnp.mean(index == jnp.array(mains)[:, None], axis=0)
        return over_pool
    if role == LEAGUE_EXPLOITER:
        return pfsp_probabilities(x, past, "linear_capped")
    against = _main if role == MAIN else _exploiter
    return jnp.mean(jnp.stack([against(mirror, x, players) for mirror in mains]), axis=0)


def _against(mirror: int, floor: float, x: jax.Array, of_mirror: jax.Array) -> jax.Array:
    """Return probabilities of a main agent as it is now or, if it is too strong, of its snapshots that are neither beaten nor
    hopeless.
    """
    itself = jnp.arange(len(x)) == mirror
    easier = pfsp_probabilities(x, of_mirror, "variance")
    return jnp.where((x[mirror] > floor) | ~jnp.any(of_mirror), itself, easier)


def _main(mirror: int, x: jax.Array, players: Players) -> jax.Array:
    past = players.snapshot
    of_mirror = past & (players.parent == mirror)
    exploiters = past & (players.role == MAIN_EXPLOITER)
    self_play = _against(mirror, EVEN, x, of_mirror)
    # Games against itself are not recorded; their win rate is 1/2.
    verification = jnp.where(
        _lowest(x, exploiters) < EXPLOITED,
        pfsp_probabilities(x, exploiters, "squared"),
        jnp.where(_lowest(x, of_mirror) < FORGOTTEN, pfsp_probabilities(x, of_mirror, "squared"), self_play),
    )
    over_past = jnp.where(jnp.any(past), pfsp_probabilities(x, past, "squared"), self_play)
    return PFSP * over_past + VERIFICATION * verification + (1.0 - PFSP - VERIFICATION) * self_play


def _exploiter(mirror: int, x: jax.Array, players: Players) -> jax.Array:
    return _against(mirror, HOPELESS, x, players.snapshot & (players.parent == mirror))


def _lowest(x: jax.Array, which: jax.Array) -> jax.Array:
    return jnp.min(jnp.where(which, x, jnp.inf))


def snapshot_due(rules: Rules, learner: int, win_rate: jax.Array, players: Players, age: jax.Array) -> jax.Array:
    """Return whether to put a learner into the pool, bool []; `age` i32 []: iterations since its last snapshot."""
    if rules.name != "alphastar":
        return age >= rules.snapshot_every
    mains = jnp.array([role == MAIN for role in rules.roles])
    against = players.snapshot
    if rules.roles[learner] == MAIN_EXPLOITER:
        against = jnp.zeros_like(against).at[: len(mains)].set(mains)
    strong = jnp.any(against) & (_lowest(win_rate[learner], against) > rules.beats_all)
    return (age >= rules.snapshot_every) & (strong | (age >= rules.snapshot_timeout))


def reset_probability(rules: Rules, learner: int) -> float | jax.Array:
    """Return the probability that a learner is reset to its first weights after a snapshot."""
    return {MAIN: 0.0, MAIN_EXPLOITER: 1.0, LEAGUE_EXPLOITER: rules.league_reset}[rules.roles[learner]]
