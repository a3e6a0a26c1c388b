"""Configurations of self-play and leagues: PPO's fields, and those of matchmaking."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rljax.algos.impala import VtraceConfig
from rljax.algos.ppo import PPOConfig
from rljax.core.config import MAX_COUNT, algorithm, leaf, static
from rljax.core.errors import ConfigError
from rljax.league.rules import LEAGUE_EXPLOITER, MAIN, MAIN_EXPLOITER, RESETS, RULES, Rules

MAX_LEARNERS = 64
"""Largest number of learners: the rules are traced for each learner separately. AlphaStar had twelve."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GameConfig(PPOConfig, VtraceConfig):
    """Fields of self-play and leagues, which learn by PPO or by V-trace. `num_envs` is the number of games played in parallel,
    for all learners together. `gamma` and `gae_lambda` apply per move of a player, and all numbers of steps count steps of the
    game.
    """

    of_games: ClassVar[bool] = True

    env: Any = static(default="TicTacToe-v0", doc="id of a game, or a Game object")
    total_timesteps: int = static(
        default=1_000_000,
        doc="budget of game steps for all learners together, rounded down to whole iterations",
        gt=0,
        steps=True,
    )
    num_envs: int = static(default=256, doc="number of games played in parallel, for all learners together", gt=0)
    num_steps: int = static(default=32, doc="number of steps per game in a rollout", gt=0)
    learner: str = static(
        default="ppo",
        doc="how learners learn: 'ppo', or 'impala': V-trace, of policies that may be older by policy_lag; only 'ppo' reads "
        "clip_eps, vf_clip_eps and normalize_advantages",
        choices=("ppo", "impala"),
    )
    weights: str = static(
        default="shared",
        doc="which players share parameters: 'shared' (all), those of a 'team' or of a 'role', or each 'player' has its own",
        choices=("shared", "team", "role", "player"),
    )
    central_critic: bool = static(
        default=False, doc="whether the critic of a player also sees what all other players see (MAPPO)"
    )
    upgo_coef: float | None = leaf(  # not none, so that the recorded configurations of games stay those of their presets
        default=0.0, doc="weight of the upgoing policy gradient (Vinyals et al., 2019); none: without", ge=0
    )
    final_ent_coef: float | None = leaf(
        default=None, doc="final weight of the entropy bonus, which changes linearly from ent_coef; none: constant", ge=0
    )
    num_slots: int = static(default=8, doc="number of opponents from the pool that each learner plays at the same time", gt=0)
    pool_size: int = static(default=64, doc="number of past players in the pool", gt=0)
    eviction: str = static(
        default="reservoir",
        doc="player that a snapshot replaces in a full pool: 'reservoir' (any, all kept alike) or 'fifo' (the oldest)",
        choices=("reservoir", "fifo"),
    )
    snapshot_every: int = static(
        default=50_000, doc="smallest number of game steps between two snapshots of a learner", gt=0, steps=True
    )
    self_play: float = leaf(
        default=0.35,
        doc="share of a main agent's games against its current self; no effect with league_rules = 'alphastar' or 'fictitious'",
        ge=0,
        le=1,
    )
    pfsp_power: float = leaf(
        default=2.0,
        doc="exponent p of a main agent's PFSP weight (1 - x)^p of an opponent that it beats with probability x; AlphaStar: 2; "
        "with league_rules = 'simple' also of a league exploiter's; no effect with 'fictitious'",
        ge=0,
    )
    min_probability: float = leaf(
        default=0.0,
        doc="lower bound of the probability of each opponent when one is drawn from the whole pool; AlphaStar: 0; no effect with "
        "league_rules = 'fictitious'",
        ge=0,
        le=1,
    )
    payoff_decay: float = leaf(
        default=0.99, doc="factor by which the record of a pair of players shrinks with each of its games", gt=0, le=1
    )
    exploitability_every: int | None = static(
        default=None,
        doc="number of game steps between exact computations of exploitability, for small games",
        gt=0,
        steps=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy_lag and self.learner != "impala":
            raise ConfigError(f"policy_lag = {self.policy_lag}: needs learner = 'impala', whose V-trace corrects for it")
        learners = self.num_learners
        if learners > MAX_LEARNERS:
            raise ConfigError(
                f"main_agents + main_exploiters + league_exploiters = {learners}: expected at most {MAX_LEARNERS} learners"
            )
        group = learners * (self.num_slots if self.has_pool else 1)
        if self.num_envs % group:
            slots = f" * num_slots = {learners} * {self.num_slots} = {group}" if self.has_pool else f" = {group}"
            raise ConfigError(f"num_envs = {self.num_envs}: expected a multiple of the number of learners{slots}")
        if self.has_pool and self.pool_size <= learners:
            raise ConfigError(
                f"pool_size = {self.pool_size}: expected at least {learners + 1}, one place for each learner as it began and one "
                "for snapshots"
            )

    @property
    def num_learners(self) -> int:
        return 1

    @property
    def roles(self) -> tuple[int, ...]:
        """Role of each learner."""
        return (MAIN,)

    @property
    def has_pool(self) -> bool:
        """True if past players are opponents; otherwise a learner plays all seats and learns from all of them."""
        return True

    @property
    def learner_head_weights(self) -> jax.Array | None:
        """Weights of the value heads' advantages for each learner, f32 `[L, K]`; None if they are `head_weights` for all."""
        return None

    def rules(self) -> Rules:
        """Return the rules of matchmaking."""
        raise NotImplementedError

    def _iterations(self, steps: int) -> int:
        """Convert steps to iterations: at least one, and at most as many as compiled programs can count."""
        return min(-(-steps // self.steps_per_iteration), MAX_COUNT)

    def _rules(self, name: str, **changes: Any) -> Rules:
        every = self._iterations(self.snapshot_every)
        rules = Rules(
            name=name,
            roles=self.roles,
            self_play=self.self_play,
            power=self.pfsp_power,
            min_probability=self.min_probability,
            snapshot_every=every,
            snapshot_timeout=every,
            beats_all=1.0,
            league_reset=0.0,
            eviction=self.eviction,
            decay=self.payoff_decay,
        )
        return rules._replace(**changes)


@algorithm("self_play")
class SelfPlayConfig(GameConfig):
    """One agent learns a game by playing itself, or its past selves."""

    opponents: str = static(
        default="self",
        doc="'self': the current agent on all seats; 'uniform', 'pfsp': also past ones, uniformly or the stronger more often",
        choices=("self", "uniform", "pfsp"),
    )

    @property
    def has_pool(self) -> bool:
        return self.opponents != "self"

    def rules(self) -> Rules:
        return self._rules("simple", power=0.0 if self.opponents == "uniform" else self.pfsp_power)


@algorithm("league")
class LeagueConfig(GameConfig):
    """A league of main agents, exploiters that look for weaknesses, and a pool of past players (Vinyals et al., 2019)."""

    league_rules: str = static(
        default="alphastar",
        doc="'alphastar'; 'simple': mains play 35 % themselves, 65 % PFSP over the pool; 'fictitious': uniformly over the pool",
        choices=RULES,
    )
    main_agents: int = static(default=1, doc="number of main agents, which learn to beat all players", gt=0)
    main_exploiters: int = static(default=1, doc="number of main exploiters, which learn to beat the main agents", ge=0)
    league_exploiters: int = static(default=2, doc="number of league exploiters, which learn to beat the pool", ge=0)
    snapshot_timeout: int = static(
        default=200_000,
        doc="largest number of game steps between two snapshots ('alphastar'; other rules take a snapshot each time)",
        gt=0,
        steps=True,
    )
    snapshot_win_rate: float = leaf(
        default=0.7,
        doc="win rate against every opponent above which a snapshot is taken before the timeout ('alphastar')",
        ge=0,
        lt=1,
    )
    league_reset: float = leaf(
        default=0.25, doc="probability that a league exploiter is reset after a snapshot; main exploiters always are", ge=0, le=1
    )
    reset_to: str = static(
        default="initial",
        doc="parameters that an exploiter is reset to: 'initial' (those it began with) or 'main' (those of a current main agent)",
        choices=RESETS,
    )
    branch_after: int | None = static(
        default=None,
        doc="number of game steps in which an exploiter's win rate against its opponents must rise by branch_gain; otherwise it "
        "restarts from a current main agent after a snapshot; none: never",
        gt=0,
        steps=True,
    )
    exploiter_head_weights: tuple[float, ...] | None = leaf(
        default=None, doc="weight of each value head's advantages for exploiters; none: head_weights, as for main agents"
    )
    scripted: tuple[str, ...] = static(
        default=(),
        doc="scripted players of the game, each of which takes one of a main agent's num_slots from the pool; names may repeat",
    )
    branch_gain: float = leaf(default=0.05, doc="smallest rise of an exploiter's win rate that counts as progress", ge=0, le=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.league_rules == "alphastar" and self.snapshot_timeout < self.snapshot_every:
            raise ConfigError(
                f"snapshot_timeout = {self.snapshot_timeout}: expected at least snapshot_every = {self.snapshot_every}"
            )
        if len(self.scripted) >= self.num_slots:
            raise ConfigError(
                f"scripted = {list(self.scripted)}: each takes one of num_slots = {self.num_slots}, expected fewer names"
            )
        given = self.exploiter_head_weights
        if given is not None and (not self.value_heads or len(given) != len(self.value_heads)):
            raise ConfigError(
                f"exploiter_head_weights = {list(given)}: expected one number for each of value_heads = {list(self.value_heads)}"
            )

    @property
    def learner_head_weights(self) -> jax.Array | None:
        if self.exploiter_head_weights is None:
            return None
        of_mains = (1.0,) * len(self.value_heads) if self.head_weights is None else self.head_weights
        rows = [of_mains if role == MAIN else self.exploiter_head_weights for role in self.roles]
        return jnp.stack([jnp.stack([jnp.asarray(x, jnp.float32) for x in row]) for row in rows])

    @property
    def num_learners(self) -> int:
        return self.main_agents + self.main_exploiters + self.league_exploiters

    @property
    def roles(self) -> tuple[int, ...]:
        counts = ((MAIN, self.main_agents), (MAIN_EXPLOITER, self.main_exploiters), (LEAGUE_EXPLOITER, self.league_exploiters))
        return tuple(role for role, count in counts for _ in range(count))

    def rules(self) -> Rules:
        return self._rules(
            self.league_rules,
            snapshot_timeout=self._iterations(self.snapshot_timeout),
            beats_all=self.snapshot_win_rate,
            league_reset=self.league_reset,
            reset_to=self.reset_to,
            branch_after=None if self.branch_after is None else self._iterations(self.branch_after),
            branch_gain=self.branch_gain,
        )
