"""The state of a league: the pool, the results and the current opponents. All of it changes inside the compiled step.

Each of L learners has S slots of games, and each slot has two lanes: one for the opponent of new games, and one for the opponent
before it, against whom unfinished games continue. A lane gets its next opponent once no game is left on it. So no opponent
changes in the middle of a game, and no game is dropped.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.environment import tree_where
from rljax.core.state import Count
from rljax.league.matchmaking import Payoff
from rljax.league.pool import Pool
from rljax.league.rules import (
    INITIAL,
    NO_RATE,
    Players,
    Rules,
    main_agents,
    match_probabilities,
    reset_probability,
    snapshot_due,
    stagnates,
    target_win_rate,
)

LANES = 2


class League(struct.PyTreeNode):
    """League of L learners with S slots each and a pool of C players; N = L + C players in all.

    Attributes:
        pool: past players.
        payoff: results of all players, `[N, N]`.
        generation: how often each place got a new player, i32 `[N]`; results of games that began before that do not count.
        opponent: index of the player on each lane, i32 `[L, S, 2]`.
        opponent_generation: the generation of that player's place when it was drawn, i32 `[L, S, 2]`.
        lanes: parameters of the player on each lane when it was drawn; leaves `[L, S, 2, ...]`.
        newest: the lane of new games, i32 `[L, S]`.
        snapshot_at: the iteration after which each learner's last snapshot was taken, i32 `[L]`.
        mark: each learner's win rate against those it is to beat, when it was last compared with the one before; `NO_RATE` before
            the first time. f32 `[L]`.
        marked_at: the iteration of that comparison, i32 `[L]`.
        initial: the learners' initial parameters, leaves `[L, ...]`.
    """

    pool: Pool
    payoff: Payoff
    generation: jax.Array
    opponent: jax.Array
    opponent_generation: jax.Array
    lanes: Any
    newest: jax.Array
    snapshot_at: jax.Array
    mark: jax.Array
    marked_at: jax.Array
    initial: Any

    @classmethod
    def create(cls, rules: Rules, params: Any, pool_size: int, slots: int) -> League:
        """Create a league of untrained learners; the pool holds a copy of each, which is never evicted.

        Args:
            rules: rules of the league.
            params: parameters of the learners, leaves `[L, ...]`.
            pool_size: C, at least L + 1.
            slots: S.
        """
        learners = len(rules.roles)
        pool = Pool.empty(jax.tree.map(lambda x: x[0], params), pool_size)
        for i, role in enumerate(rules.roles):
            first = jax.tree.map(lambda x, i=i: x[i], params)
            pool = pool.add(jnp.int32(i), first, jnp.asarray(True), 0, i, role, protect=True)
        lanes = jnp.zeros((learners, slots, LANES), jnp.int32)

        def on_all_lanes(x: jax.Array) -> jax.Array:
            return jnp.broadcast_to(x[:, None, None], (*lanes.shape, *x.shape[1:]))

        return cls(
            pool=pool,
            payoff=Payoff.empty(learners + pool_size),
            generation=jnp.zeros(learners + pool_size, jnp.int32),
            # Until the first match, every learner plays itself.
            opponent=lanes + jnp.arange(learners)[:, None, None],
            opponent_generation=lanes,
            lanes=jax.tree.map(on_all_lanes, params),
            newest=lanes[..., 0],
            snapshot_at=jnp.zeros(learners, jnp.int32),
            mark=jnp.full(learners, NO_RATE, jnp.float32),
            marked_at=jnp.zeros(learners, jnp.int32),
            initial=params,
        )

    def players(self, rules: Rules) -> Players:
        """Return a description of all players, `[N]`."""
        learners = jnp.arange(len(rules.roles))
        return Players(
            role=jnp.concatenate([jnp.array(rules.roles), self.pool.role]),
            parent=jnp.concatenate([learners, self.pool.parent]),
            snapshot=jnp.concatenate([jnp.zeros(len(rules.roles), bool), self.pool.filled]),
            age=jnp.concatenate([self.snapshot_at, self.pool.age]),
        )

    def match(self, rules: Rules, key: jax.Array, params: Any, used: jax.Array) -> League:
        """Draw the next opponents of all slots that have a lane without games.

        Args:
            rules: rules of the league.
            key: random key.
            params: parameters of the learners, leaves `[L, ...]`.
            used: which lanes have unfinished games, bool `[L, S, 2]`.
        """
        learners, slots = self.newest.shape
        win_rate, players = self.payoff.win_rate(), self.players(rules)
        probabilities = jnp.stack([match_probabilities(rules, i, win_rate, players) for i in range(learners)])
        drawn = jax.random.categorical(key, jnp.log(probabilities)[:, None], axis=-1, shape=(learners, slots))
        drawn = drawn.astype(jnp.int32)
        other = 1 - self.newest
        is_free = ~jnp.take_along_axis(used, other[..., None], axis=-1)[..., 0]
        # Gather only the parameters that are needed: concatenating the pool and the learners would copy the pool.
        current = jax.tree.map(lambda x: x[jnp.minimum(drawn, learners - 1)], params)
        past = self.pool.gather(jnp.maximum(drawn - learners, 0))
        place = is_free[..., None] & (jnp.arange(LANES) == other[..., None])

        def put(old: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
            extra = (1,) * (a.ndim - 2)
            chosen = jnp.where((drawn < learners).reshape(*drawn.shape, *extra), a, b)
            return jnp.where(place.reshape(*place.shape, *extra), chosen[:, :, None], old)

        return self.replace(
            opponent=jnp.where(place, drawn[..., None], self.opponent),
            opponent_generation=jnp.where(place, self.generation[drawn][..., None], self.opponent_generation),
            lanes=jax.tree.map(put, self.lanes, current, past),
            newest=jnp.where(is_free, other, self.newest),
        )

    def record(self, rules: Rules, result: jax.Array, ended: jax.Array, lane: jax.Array) -> League:
        """Record the results of games that ended.

        Args:
            rules: rules of the league.
            result: result of the learner, `[T, L, S, B]`, as in `Payoff.update`.
            ended: which games ended, bool `[T, L, S, B]`.
            lane: lane of each game, i32 `[T, L, S, B]`.
        """
        home = jnp.arange(len(rules.roles))[None, :, None, None]
        still = self.opponent_generation == self.generation[self.opponent]
        second = lane == 1
        away = jnp.where(second, self.opponent[:, :, 1, None], self.opponent[:, :, 0, None])
        counts = ended & jnp.where(second, still[:, :, 1, None], still[:, :, 0, None])
        home = jnp.broadcast_to(home, away.shape)
        payoff = self.payoff.update(home.reshape(-1), away.reshape(-1), result.reshape(-1), counts.reshape(-1), rules.decay)
        return self.replace(payoff=payoff)

    def review(self, rules: Rules, key: jax.Array, params: Any, iteration: jax.Array) -> tuple[League, jax.Array, jax.Array]:
        """Take the snapshots that are due, then decide which learners are reset.

        Args:
            rules: rules of the league.
            key: random key.
            params: parameters of the learners, leaves `[L, ...]`.
            iteration: number of iterations done, i32 [].

        Returns:
            The league; of which learners a snapshot was taken, bool `[L]`; and whose parameters each learner has from now on,
            i32 `[L]`: its own, those of a main agent, or those of `initial` (`INITIAL`). `restarted` returns them; a learner with
            other parameters than its own also needs a fresh optimiser.
        """
        league, learners, mains = self, len(rules.roles), jnp.array(main_agents(rules))
        taken, origin = [], []
        for i, learner_key in enumerate(jax.random.split(key, learners)):
            place_key, reset_key = jax.random.split(learner_key)
            win_rate, players = league.payoff.win_rate(), league.players(rules)
            rate = target_win_rate(rules, i, win_rate, league.payoff.record.games, players)
            compared, stuck = stagnates(rules, i, rate, league.mark[i], iteration - league.marked_at[i])
            due = snapshot_due(rules, i, win_rate, players, iteration - league.snapshot_at[i]) | stuck
            slot = league.pool.place(place_key, rules.eviction)
            kept = due & (slot >= 0)
            own = jax.tree.map(lambda x, i=i: x[i], params)
            pool = league.pool.add(slot, own, due, iteration, i, rules.roles[i])
            resets = stuck | (due & (jax.random.uniform(reset_key) < reset_probability(rules, i)))
            main = mains[(jax.random.uniform(jax.random.fold_in(reset_key, 1)) * len(mains)).astype(jnp.int32)]
            of_main = stuck | (rules.reset_to == "main")
            place = learners + jnp.maximum(slot, 0)
            league = league.replace(
                pool=pool,
                # The slot holds a new player now, and a learner that is reset is a new player too: clear their results.
                payoff=league.payoff.clear(place, kept).clear(jnp.int32(i), resets),
                generation=league.generation.at[place].add(kept).at[i].add(resets),
                snapshot_at=league.snapshot_at.at[i].set(jnp.where(due, iteration, league.snapshot_at[i])),
                mark=league.mark.at[i].set(jnp.where(resets, NO_RATE, jnp.where(compared, rate, league.mark[i]))),
                marked_at=league.marked_at.at[i].set(jnp.where(compared | resets, iteration, league.marked_at[i])),
            )
            taken.append(kept)
            origin.append(jnp.where(resets, jnp.where(of_main, main, INITIAL), i))
        whose = jnp.stack(origin).astype(jnp.int32)
        # Unfinished games were begun by a player that is gone, so their results do not count.
        anew = (whose != jnp.arange(learners))[:, None, None]
        begun = jnp.where(anew, -1, league.opponent_generation)
        return league.replace(opponent_generation=begun), jnp.stack(taken), whose

    def begun_with(self, params: Any, iteration: jax.Array) -> League:
        """Return this league, of which nothing has been played, with other parameters `[L, ...]` of its untrained players, as one
        that begins after so many iterations, i32 [].
        """
        learners = len(self.snapshot_at)

        def on_all_lanes(x: jax.Array, lanes: jax.Array) -> jax.Array:
            return jnp.broadcast_to(x[:, None, None], lanes.shape)

        first = jax.tree.map(lambda pool, x: pool.at[:learners].set(x), self.pool.params, params)
        return self.replace(
            pool=self.pool.replace(params=first, age=self.pool.age.at[:learners].set(iteration)),
            lanes=jax.tree.map(on_all_lanes, params, self.lanes),
            initial=params,
            # No snapshot is due before the learners have had their time.
            snapshot_at=jnp.full_like(self.snapshot_at, iteration),
            marked_at=jnp.full_like(self.marked_at, iteration),
        )

    def recounted(self, count: Count) -> League:
        """Return this league with `count` applied to its numbers of iterations; leaves may have a leading axis of seeds."""

        def counted(x: jax.Array) -> jax.Array:
            return jnp.asarray(count(np.asarray(x, np.int64)), jnp.int32)

        return self.replace(
            pool=self.pool.replace(age=counted(self.pool.age)),
            snapshot_at=counted(self.snapshot_at),
            marked_at=counted(self.marked_at),
        )


def restarted(origin: jax.Array, params: Any, initial: Any) -> Any:
    """Return the parameters of the learners after `League.review`, leaves `[L, ...]`.

    Args:
        origin: whose parameters each learner has from now on, i32 `[L]`.
        params: parameters of the learners so far, leaves `[L, ...]`.
        initial: their initial parameters, leaves `[L, ...]`.
    """
    moved = jax.tree.map(lambda x: x[jnp.maximum(origin, 0)], params)
    return reset_where(origin == INITIAL, moved, initial)


def reset_where(anew: jax.Array, current: Any, initial: Any) -> Any:
    """Return leaves `[L, ...]` of `current`, with those of `initial` where `anew`, bool `[L]`, is True."""
    return jax.vmap(tree_where)(anew, initial, current)
