"""Exact values of a trained league, in games whose whole tree fits in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.core.errors import ConfigError
from rljax.league.game_tree import GameTree, exploitability, game_values, mixed_policies
from rljax.league.parts import GameParts, GameState, player_like, players_of
from rljax.league.ratings import nash_mixture
from rljax.league.rules import MAIN
from rljax.league.training import tree_policies


class ExactReport(NamedTuple):
    """Exploitability (half of NashConv) and value for the first player, each f32 [], of four policies of a run. Those of the two
    mixtures are NaN where several paths lead to some states of the game's tree, as no single policy then plays like a mixture.

    Attributes:
        last: exploitability of the main agent's current policy.
        average: exploitability of the uniform mixture of the main agent's current policy and the main agents' snapshots in the
            pool, except the untrained one.
        meta_nash: exploitability of the mixture of all players in the pool and the main agent that is an equilibrium among them.
        last_value: value of the current policy against itself.
        average_value: value of the average against itself.
        meta_nash_value: value of the equilibrium mixture against itself.
        weights: weights of the equilibrium mixture, `[C + 1]`, the main agent last.
        averaged: exploitability of the policy of the averaged parameters, which acts outside training (`average_decay`); without
            an average the same as `last`.
    """

    last: jax.Array
    average: jax.Array
    meta_nash: jax.Array
    last_value: jax.Array
    average_value: jax.Array
    meta_nash_value: jax.Array
    weights: jax.Array
    averaged: jax.Array


def exact_report(parts: GameParts, state: GameState) -> ExactReport:
    """Compute exact values for a run of a game whose tree is small (`exploitability_every` is set).

    Raises:
        ConfigError: the run has no game tree or no pool.
    """
    tree, league = parts.tree, state.league
    if tree is None or league is None:
        raise ConfigError("an exact report needs a run with a pool and exploitability_every")
    main: Any = jax.tree.map(lambda x: x[0], players_of(state))
    members = jax.tree.map(lambda past, now: jnp.concatenate([past, now[None]]), league.pool.params, main)
    there = jnp.append(league.pool.filled, True)
    of_main = jnp.append(league.pool.filled & (league.pool.role == MAIN) & ~league.pool.protected, True)
    policies = jax.vmap(lambda p: tree_policies(parts, p))(members)
    last = tree_policies(parts, main)
    weights = _meta_nash(tree, policies, there)
    averaged = last
    if state.average_params is not None:
        averaged = tree_policies(parts, player_like(jax.tree.map(lambda x: x[0], state.average_params), main))

    def of_mixture(shares: jax.Array) -> tuple[jax.Array, jax.Array]:
        if tree.merged:
            return jnp.float32(jnp.nan), jnp.float32(jnp.nan)
        mixture = mixed_policies(tree, policies, shares)
        return exploitability(tree, mixture), game_values(tree, mixture)[0]

    average, average_value = of_mixture(of_main / jnp.sum(of_main))
    meta_nash, meta_nash_value = of_mixture(weights)
    return ExactReport(
        last=exploitability(tree, last),
        average=average,
        meta_nash=meta_nash,
        last_value=game_values(tree, last)[0],
        average_value=average_value,
        meta_nash_value=meta_nash_value,
        weights=weights,
        averaged=exploitability(tree, averaged),
    )


def _meta_nash(tree: GameTree, policies: tuple[jax.Array, jax.Array], there: jax.Array) -> jax.Array:
    """Return the equilibrium's weights `[K]` of the game between members, with equal chances of each seat; 0 where not
    `there`.
    """
    first, second = policies
    one = jax.vmap(jax.vmap(lambda a, b: game_values(tree, (a, b))[0], (None, 0)), (0, None))(first, second)
    payoff = 0.5 * (one - one.T)
    # Choosing a member that is not there costs more than losing any game.
    worst = 1.0 + 2.0 * jnp.max(jnp.abs(payoff))
    payoff = jnp.where(there[:, None], jnp.where(there, payoff, worst), jnp.where(there, -worst, 0.0))
    row = nash_mixture(payoff).row
    row = jnp.where(there, row, 0.0)
    return row / jnp.sum(row)
