"""Exact values of a trained league, in games that are small enough to be written out."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.core.errors import ConfigError
from rljax.league.game_tree import GameTree, exploitability, game_values, mixed_policies
from rljax.league.ratings import nash_mixture
from rljax.league.rules import MAIN
from rljax.league.training import GameParts, GameState, tree_policies


class ExactReport(NamedTuple):
    """Exploitability (half of NashConv) f32 [] and the first player's value f32 [], of each way to take a policy from a run.

    Attributes:
        last: the main agent as it is.
        average: a mixture of the snapshots of main agents in the pool, but the untrained one, and of the main agent as it is, all
            alike.
        meta_nash: the mixture of all of the pool and the main agent that is an equilibrium among these.
        last_value: of the main agent against itself.
        average_value: of the average against itself.
        meta_nash_value: of the equilibrium's mixture against itself.
        weights: of the equilibrium, `[C + 1]`, the main agent last.
    """

    last: jax.Array
    average: jax.Array
    meta_nash: jax.Array
    last_value: jax.Array
    average_value: jax.Array
    meta_nash_value: jax.Array
    weights: jax.Array


def exact_report(parts: GameParts, state: GameState) -> ExactReport:
    """Compute exact values for a run of a game whose tree is small (`exploitability_every` is set).

    Raises:
        ConfigError: the game was not written out, its tree has merged states, or the run has no pool.
    """
    tree, league = parts.tree, state.league
    if tree is None or league is None:
        raise ConfigError("an exact report needs a run with a pool and exploitability_every")
    main: Any = jax.tree.map(lambda x: x[0], state.params)
    members = jax.tree.map(lambda past, now: jnp.concatenate([past, now[None]]), league.pool.params, main)
    there = jnp.append(league.pool.filled, True)
    of_main = jnp.append(league.pool.filled & (league.pool.role == MAIN) & ~league.pool.protected, True)
    policies = jax.vmap(lambda p: tree_policies(parts, p))(members)
    last = tree_policies(parts, main)
    average = mixed_policies(tree, policies, of_main / jnp.sum(of_main))
    weights = _meta_nash(tree, policies, there)
    mixture = mixed_policies(tree, policies, weights)
    found = [exploitability(tree, p) for p in (last, average, mixture)]
    values = [game_values(tree, p)[0] for p in (last, average, mixture)]
    return ExactReport(found[0], found[1], found[2], values[0], values[1], values[2], weights)


def _meta_nash(tree: GameTree, policies: tuple[jax.Array, jax.Array], there: jax.Array) -> jax.Array:
    """The equilibrium's weights `[K]` of the game between members, each seat as likely; those not `there` have 0."""
    first, second = policies
    one = jax.vmap(jax.vmap(lambda a, b: game_values(tree, (a, b))[0], (None, 0)), (0, None))(first, second)
    payoff = 0.5 * (one - one.T)
    # To be a member that is not there costs more than any game.
    worst = 1.0 + 2.0 * jnp.max(jnp.abs(payoff))
    payoff = jnp.where(there[:, None], jnp.where(there, payoff, worst), jnp.where(there, -worst, 0.0))
    row = nash_mixture(payoff).row
    row = jnp.where(there, row, 0.0)
    return row / jnp.sum(row)
