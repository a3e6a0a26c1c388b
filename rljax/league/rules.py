"""Rules for opponents, snapshots and resets: AlphaStar's (Vinyals et al., 2019, supplementary pseudocode) and simpler ones.

All rules are pure functions of results.

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
RESETS = ("initial", "main")
"""Parameters that an exploiter can be reset to: its initial ones, or those of a current main agent."""

PFSP, VERIFICATION = 0.5, 0.15
"""AlphaStar's shares of a main agent's games: against all past players, and against those that it may have forgotten how to
beat.
"""
EXPLOITED, FORGOTTEN, EVEN, HOPELESS = 0.3, 0.7, 0.3, 0.1
"""Thresholds of win rates, below which a main agent plays an exploiter, or a past main agent again, and below which a current
main agent is too strong for another one, or for its exploiter (0.2 in the paper's text, 0.1 in its pseudocode).
"""
INITIAL = -1
"""In place of a learner's index: the initial parameters."""
NO_RATE = -1.0
"""In place of a win rate: there is none yet."""


class Rules(NamedTuple):
    """The settings of a league's rules.

    Attributes:
        name: one of `RULES`.
        roles: role of each learner.
        self_play: share of a main agent's games against itself ("simple").
        power: p of the PFSP weights (1 - x)^p of main agents ("alphastar", "simple"), and of league exploiters ("simple"). 2 is
            AlphaStar's "squared".
        min_probability: lower bound of the probability of each opponent when one is drawn from the whole pool ("alphastar",
            "simple"). AlphaStar has none: 0.
        snapshot_every: smallest number of iterations between two snapshots of a learner.
        snapshot_timeout: largest number of iterations between them ("alphastar"; other rules take a snapshot each time).
        beats_all: win rate against every opponent above which a snapshot is taken before the timeout ("alphastar").
        league_reset: probability that a league exploiter is reset after a snapshot.
        reset_to: parameters that an exploiter is reset to, one of `RESETS`.
        branch_after: number of iterations in which an exploiter's win rate must rise by `branch_gain`, or it restarts from a
            current main agent; None: never.
        branch_gain: see `branch_after`.
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
    reset_to: str = "initial"
    branch_after: int | None = None
    branch_gain: float | jax.Array = 0.05


class Players(NamedTuple):
    """All players, `[N]`: `role` i32; `parent` i32, the learner that a snapshot was taken of; `snapshot` bool, False for learners
    and empty slots of the pool; `age` i32, the iteration at which a snapshot was taken: different for each snapshot of a
    learner, but a fork with longer iterations may round several to one.
    """

    role: jax.Array
    parent: jax.Array
    snapshot: jax.Array
    age: jax.Array


def match_probabilities(rules: Rules, learner: int, win_rate: jax.Array, players: Players) -> jax.Array:
    """Return the probability of each player to be a learner's next opponent, f32 `[N]`.

    Args:
        rules: rules of the league.
        learner: index of the learner.
        win_rate: win rate of each player against each, `[N, N]`.
        players: description of all players.
    """
    x, role = win_rate[learner], rules.roles[learner]
    mains = main_agents(rules)
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
        return pfsp_probabilities(x, past, "linear_capped", rules.min_probability)
    if role == MAIN_EXPLOITER:
        each = [_against(mirror, HOPELESS, x, past & (players.parent == mirror)) for mirror in mains]
    else:
        each = [_main(rules, mirror, x, players) for mirror in mains]
    # The current main agent to play, or whose past to play, is drawn uniformly.
    return jnp.mean(jnp.stack(each), axis=0)


def _against(mirror: int, floor: float, x: jax.Array, of_mirror: jax.Array) -> jax.Array:
    """Return probabilities of a main agent as it is now or, if it is too strong, of its snapshots that are neither beaten nor
    hopeless.
    """
    itself = jnp.arange(len(x)) == mirror
    easier = pfsp_probabilities(x, of_mirror, "variance")
    return jnp.where((x[mirror] > floor) | ~jnp.any(of_mirror), itself, easier)


def _main(rules: Rules, mirror: int, x: jax.Array, players: Players) -> jax.Array:
    past = players.snapshot
    of_mirror = past & (players.parent == mirror)
    exploiters = past & (players.role == MAIN_EXPLOITER)
    forgotten = without_monotonic_suffix(x, of_mirror, players.age)
    # Games against itself are not recorded; their win rate is 1/2.
    self_play = _against(mirror, EVEN, x, of_mirror)
    verification = jnp.where(
        _lowest(x, exploiters) < EXPLOITED,
        pfsp_probabilities(x, exploiters, rules.power),
        jnp.where(_lowest(x, forgotten) < FORGOTTEN, pfsp_probabilities(x, forgotten, rules.power), self_play),
    )
    over_past = jnp.where(jnp.any(past), pfsp_probabilities(x, past, rules.power, rules.min_probability), self_play)
    return PFSP * over_past + VERIFICATION * verification + (1.0 - PFSP - VERIFICATION) * self_play


def without_monotonic_suffix(x: jax.Array, which: jax.Array, age: jax.Array) -> jax.Array:
    """Return `which` without the newest snapshots, for as long as win rates do not rise from one to the next newer, bool `[N]`.

    Newer snapshots of a player that improves are harder to beat, so a lower win rate against them is no sign of forgetting. If
    win rates never rise, none is left (`remove_monotonic_suffix` in AlphaStar's pseudocode).

    Args:
        x: win rate against each player, `[N]`.
        which: the snapshots in question, bool `[N]`.
        age: iteration at which each was taken, i32 `[N]`; of equal ages the one with the larger index counts as newer.
    """
    order = jnp.argsort(jnp.where(which, age, jnp.iinfo(jnp.int32).max))
    rate, place = x[order], jnp.arange(len(x))
    rises = (place > 0) & (place < jnp.sum(which)) & (jnp.roll(rate, 1) < rate)
    last = jnp.max(jnp.where(rises, place, -1))
    return jnp.zeros_like(which).at[order].set(place <= last) & which


def _lowest(x: jax.Array, which: jax.Array) -> jax.Array:
    return jnp.min(jnp.where(which, x, jnp.inf))


def snapshot_due(rules: Rules, learner: int, win_rate: jax.Array, players: Players, age: jax.Array) -> jax.Array:
    """Return whether to put a learner into the pool, bool []; `age` i32 []: iterations since its last snapshot."""
    if rules.name != "alphastar":
        return age >= rules.snapshot_every
    against = players.snapshot
    if rules.roles[learner] == MAIN_EXPLOITER:
        against = jnp.zeros_like(against).at[jnp.array(main_agents(rules))].set(True)
    strong = jnp.any(against) & (_lowest(win_rate[learner], against) > rules.beats_all)
    return (age >= rules.snapshot_every) & (strong | (age >= rules.snapshot_timeout))


def reset_probability(rules: Rules, learner: int) -> float | jax.Array:
    """Return the probability that a learner is reset after a snapshot."""
    return {MAIN: 0.0, MAIN_EXPLOITER: 1.0, LEAGUE_EXPLOITER: rules.league_reset}[rules.roles[learner]]


def target_win_rate(rules: Rules, learner: int, win_rate: jax.Array, games: jax.Array, players: Players) -> jax.Array:
    """Return an exploiter's mean win rate against those it is to beat, f32 []: the current main agents, or for a league exploiter
    the pool. Only those that it has met count; if it has met none, the result is `NO_RATE`.

    Args:
        rules: rules of the league.
        learner: index of the exploiter.
        win_rate: win rate of each player against each, `[N, N]`.
        games: number of games of each against each, `[N, N]`.
        players: description of all players.
    """
    target = players.snapshot
    if rules.roles[learner] == MAIN_EXPLOITER:
        target = jnp.zeros_like(target).at[jnp.array(main_agents(rules))].set(True)
    met = target & (games[learner] > 0)
    return jnp.where(jnp.any(met), jnp.sum(jnp.where(met, win_rate[learner], 0.0)) / jnp.maximum(jnp.sum(met), 1), NO_RATE)


def stagnates(
    rules: Rules, learner: int, rate: jax.Array, mark: jax.Array, since: jax.Array
) -> tuple[jax.Array | bool, jax.Array | bool]:
    """Return whether an exploiter's win rate is compared now with what it was `branch_after` iterations ago, and whether it has
    risen by less than `branch_gain`, each bool []. Main agents never stagnate.

    Args:
        rules: rules of the league.
        learner: index of the learner.
        rate: its `target_win_rate`, f32 [].
        mark: its win rate at the last comparison, f32 []; `NO_RATE` if there was none since it began.
        since: iterations since that, i32 [].
    """
    if rules.branch_after is None or rules.roles[learner] == MAIN:
        return False, False
    compared = since >= rules.branch_after
    return compared, compared & (rate >= 0.0) & (mark >= 0.0) & (rate < mark + rules.branch_gain)


def main_agents(rules: Rules) -> list[int]:
    """Return the indices of the learners that are main agents."""
    return [i for i, role in enumerate(rules.roles) if role == MAIN]
