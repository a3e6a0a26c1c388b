"""AlphaStar's rules against a plain-Python version of the published pseudocode, over random leagues with several main agents."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.league.rules import (
    LEAGUE_EXPLOITER,
    MAIN,
    MAIN_EXPLOITER,
    NO_RATE,
    Players,
    Rules,
    match_probabilities,
    snapshot_due,
    stagnates,
    target_win_rate,
    without_monotonic_suffix,
)
from tests.league.test_league import RULES


class Past(NamedTuple):
    """A snapshot, as the pseudocode's `Historical`."""

    index: int
    parent: int
    age: int


def remove_monotonic_suffix(win_rates: list[float], players: list[Past]) -> tuple[list[float], list[Past]]:
    """The function of the pseudocode (Vinyals et al., 2019, supplementary data)."""
    if not win_rates:
        return win_rates, players
    for i in range(len(win_rates) - 1, 0, -1):
        if win_rates[i - 1] < win_rates[i]:
            return win_rates[: i + 1], players[: i + 1]
    return [], []


def pfsp(win_rates: list[float], weighting: str) -> list[float]:
    weigh = {
        "variance": lambda x: x * (1 - x),
        "linear_capped": lambda x: min(0.5, 1 - x),
        "squared": lambda x: (1 - x) ** 2,
    }[weighting]
    weights = [weigh(x) for x in win_rates]
    total = sum(weights)
    return [1 / len(weights)] * len(weights) if total < 1e-10 else [w / total for w in weights]


class Plain:
    """A league as the pseudocode has it, with the probability of each draw in place of the draw."""

    def __init__(self, roles: tuple[int, ...], past: list[Past], rate: np.ndarray) -> None:
        self.roles, self.past, self.rate = roles, sorted(past, key=lambda p: p.age), rate

    def of(self, *roles: int) -> list[int]:
        return [i for i, role in enumerate(self.roles) if role in roles]

    def rates(self, who: int, past: list[Past]) -> list[float]:
        return [float(self.rate[who, p.index]) for p in past]

    def drawn(self, who: int, past: list[Past], weighting: str) -> dict[int, float]:
        return {p.index: w for p, w in zip(past, pfsp(self.rates(who, past), weighting), strict=True)}

    def selfplay(self, who: int, opponent: int, floor: float) -> dict[int, float]:
        past = [p for p in self.past if p.parent == opponent]
        if self.rate[who, opponent] > floor or not past:
            return {opponent: 1.0}
        return self.drawn(who, past, "variance")

    def verification(self, who: int, opponent: int) -> dict[int, float]:
        exploiters = [p for p in self.past if p.parent in self.of(MAIN_EXPLOITER)]
        if exploiters and min(self.rates(who, exploiters)) < 0.3:
            return self.drawn(who, exploiters, "squared")
        past = [p for p in self.past if p.parent == opponent]
        rates, past = remove_monotonic_suffix(self.rates(who, past), past)
        if rates and min(rates) < 0.7:
            return self.drawn(who, past, "squared")
        return self.selfplay(who, opponent, 0.3)

    def match(self, who: int) -> np.ndarray:
        mains, parts = self.of(MAIN), []
        if self.roles[who] == LEAGUE_EXPLOITER:
            parts.append((1.0, self.drawn(who, self.past, "linear_capped")))
        for opponent in mains:
            share = 1 / len(mains)
            if self.roles[who] == MAIN_EXPLOITER:
                parts.append((share, self.selfplay(who, opponent, 0.1)))
            elif self.roles[who] == MAIN:
                parts.append((0.5 * share, self.drawn(who, self.past, "squared")))
                parts.append((0.15 * share, self.verification(who, opponent)))
                parts.append((0.35 * share, self.selfplay(who, opponent, 0.3)))
        found = np.zeros(len(self.rate))
        for share, branch in parts:
            for index, probability in branch.items():
                found[index] += share * probability
        return found

    def ready(self, who: int, age: int, least: int, timeout: int) -> bool:
        if age < least:
            return False
        main_exploiter = self.roles[who] == MAIN_EXPLOITER
        rates = [float(self.rate[who, i]) for i in self.of(MAIN)] if main_exploiter else self.rates(who, self.past)
        return min(rates) > 0.7 or age >= timeout


def random_league(rng: np.random.Generator, roles: tuple[int, ...], slots: int, low: float) -> tuple[Plain, Players, jax.Array]:
    """Snapshots in random slots of the pool, of random ages, at least one of them; win rates that add up to 1."""
    learners = len(roles)
    # Multiples of 1/16, which are exact in float32 and equal to no threshold.
    rate = rng.integers(round(16 * low), 17, size=(learners + slots,) * 2) / 16
    rate = np.triu(rate, 1) + np.tril(1.0 - rate.T, -1) + 0.5 * np.eye(len(rate))
    filled = rng.random(slots) < 0.7
    filled[rng.integers(slots)] = True
    parent, age = rng.integers(learners, size=slots), rng.permutation(slots)
    past = [Past(learners + i, int(parent[i]), int(age[i])) for i in range(slots) if filled[i]]
    players = Players(
        role=jnp.concatenate([jnp.array(roles), jnp.array(roles)[parent]]),
        parent=jnp.concatenate([jnp.arange(learners), parent]),
        snapshot=jnp.concatenate([jnp.zeros(learners, bool), jnp.asarray(filled)]),
        age=jnp.concatenate([jnp.zeros(learners, jnp.int32), jnp.asarray(age)]),
    )
    return Plain(roles, past, rate.astype(np.float32)), players, jnp.asarray(rate, jnp.float32)


LEAGUES = ((MAIN, MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER), (LEAGUE_EXPLOITER, MAIN, MAIN_EXPLOITER, MAIN, MAIN))


@pytest.mark.slow
@pytest.mark.parametrize("roles", LEAGUES)
def test_matches_of_several_main_agents_are_those_of_the_pseudocode(roles: tuple[int, ...]) -> None:
    rules, rng = RULES._replace(roles=roles), np.random.default_rng(0)
    probabilities = jax.jit(
        lambda rate, players: jnp.stack([match_probabilities(rules, i, rate, players) for i in range(len(roles))])
    )
    seen = set()
    for low in (0.0, 0.0, 0.3, 0.6) * 25:
        plain, players, rate = random_league(rng, roles, 9, low)
        found = probabilities(rate, players)
        for who in range(len(roles)):
            np.testing.assert_allclose(found[who], plain.match(who), atol=1e-6)
            if roles[who] == MAIN:
                seen |= {str(sorted(plain.verification(who, mirror))) for mirror in plain.of(MAIN)}
    assert len(seen) > 30


@pytest.mark.parametrize("roles", LEAGUES)
def test_snapshots_of_several_main_agents_are_those_of_the_pseudocode(roles: tuple[int, ...]) -> None:
    rules, rng = RULES._replace(roles=roles), np.random.default_rng(1)
    due = jax.jit(lambda rate, players, age: jnp.stack([snapshot_due(rules, i, rate, players, age) for i in range(len(roles))]))
    taken = []
    for step in range(100):
        plain, players, rate = random_league(rng, roles, 3, 0.65)
        age = step % 11
        found = due(rate, players, jnp.int32(age)).tolist()
        assert found == [plain.ready(who, age, rules.snapshot_every, rules.snapshot_timeout) for who in range(len(roles))]
        taken += found if 2 <= age < 10 else []
    assert 0.05 < np.mean(taken) < 0.95


def test_the_newest_snapshots_are_left_out_as_long_as_win_rates_fall() -> None:
    rng = np.random.default_rng(2)
    vectorised = jax.jit(without_monotonic_suffix)
    lengths = set()
    for _ in range(300):
        rate, which, age = rng.integers(0, 4, 8) / 4, rng.random(8) < 0.8, rng.permutation(8)
        past = sorted((Past(i, 0, int(age[i])) for i in range(8) if which[i]), key=lambda p: p.age)
        _, left = remove_monotonic_suffix([rate[p.index] for p in past], past)
        found = vectorised(jnp.asarray(rate), jnp.asarray(which), jnp.asarray(age))
        assert np.flatnonzero(found).tolist() == sorted(p.index for p in left)
        lengths.add(len(past) - len(left))
    assert lengths >= {0, 1, 2, 3, 4}


def test_power_and_floor_of_the_draws_from_the_pool() -> None:
    """By hand: nothing is forgotten and nobody is too strong, so half of the games are against the pool."""
    players = Players(
        role=jnp.array([MAIN, LEAGUE_EXPLOITER, MAIN, MAIN]),
        parent=jnp.array([0, 1, 0, 0]),
        snapshot=jnp.array([False, False, True, True]),
        age=jnp.array([0, 0, 0, 1]),
    )
    rate = jnp.full((4, 4), 0.5).at[:2, 2:].set(jnp.array([0.8, 0.9]))
    rules = RULES._replace(roles=(MAIN, LEAGUE_EXPLOITER), power=1.0, min_probability=0.1)
    shares = 0.8 * np.array([2, 1]) / 3 + 0.1
    np.testing.assert_allclose(match_probabilities(rules, 0, rate, players), [0.5, 0, *(0.5 * shares)], atol=1e-6)
    np.testing.assert_allclose(match_probabilities(rules, 1, rate, players), [0, 0, *shares], atol=1e-6)


def test_an_exploiter_stagnates_that_gains_too_little_on_those_it_is_to_beat() -> None:
    rules = RULES._replace(roles=(MAIN, MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER), branch_after=5, branch_gain=0.1)
    rng = np.random.default_rng(3)
    for _ in range(20):
        plain, players, rate = random_league(rng, rules.roles, 4, 0.0)
        games = rng.integers(0, 2, rate.shape)
        for who in (2, 3):
            targets = plain.of(MAIN) if who == 2 else [p.index for p in plain.past]
            met = [plain.rate[who, i] for i in targets if games[who, i]]
            found = target_win_rate(rules, who, rate, jnp.asarray(games), players)
            np.testing.assert_allclose(found, np.mean(met) if met else NO_RATE, rtol=1e-5)

    def verdict(learner: int, rate: float, mark: float, since: int, rules: Rules = rules) -> tuple[bool, bool]:
        compared, stuck = stagnates(rules, learner, jnp.float32(rate), jnp.float32(mark), jnp.int32(since))
        return bool(compared), bool(stuck)

    assert verdict(2, 0.4, 0.35, 4) == (False, False)
    assert verdict(2, 0.4, 0.35, 5) == (True, True)
    assert verdict(3, 0.5, 0.35, 5) == (True, False)
    assert verdict(2, 0.4, NO_RATE, 5) == verdict(2, NO_RATE, 0.4, 5) == (True, False)
    assert verdict(0, 0.4, 0.4, 9) == (False, False)
    assert verdict(2, 0.4, 0.4, 9, rules._replace(branch_after=None)) == (False, False)
