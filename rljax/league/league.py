"""The state of a league: the pool, the results, and the opponents that are being played. All of it changes inside the compiled
step.

Each of L learners has S slots of games, and each slot two lanes: the opponent that new games are begun with, and the one before
it, which the games under way go on with. A lane is given to the next opponent once no game is left on it, so nobody's opponent
changes in the middle of a game, and no game is dropped.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environment import tree_where
from rljax.league.matchmaking import Payoff
from rljax.league.pool import Pool
from rljax.league.rules import Players, Rules, match_probabilities, reset_probability, snapshot_due

LANES = 2


class League(struct.PyTreeNode):
    """L learners, S slots each, C players in the pool, N = L + C players in all.

    Attributes:
        pool: past players.
        payoff: results of all, `[N, N]`.
        generation: how often each place was given to somebody else, i32 `[N]`; results of games that began before do not count.
        opponent: who is on each lane, i32 `[L, S, 2]`.
        opponent_generation: and of which generation of its place, i32 `[L, S, 2]`.
        lanes: the parameters on each lane, as they were when the opponent was drawn; leaves `[L, S, 2, ...]`.
        newest: the lane that new games take, i32 `[L, S]`.
        snapshot_at: the iteration after which each learner's last snapshot was taken, i32 `[L]`.
        initial: the learners' first parameters, leaves `[L, ...]`.
    """

    pool: Pool
    payoff: Payoff
    generation: jax.Array
    opponent: jax.Array
    opponent_generation: jax.Array
    lanes: Any
    newest: jax.Array
    snapshot_at: jax.Array
    initial: Any

    @classmethod
    def create(cls, rules: Rules, params: Any, pool_size: int, slots: int) -> League:
        """A league of untrained learners; each is in the pool as it is, for good.

        Args:
            rules: of the league.
            params: of the learners, leaves `[L, ...]`.
            pool_size: C, at least L.
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
            # Until the first match everybody plays itself.
            opponent=lanes + jnp.arange(learners)[:, None, None],
            opponent_generation=lanes,
            lanes=jax.tree.map(on_all_lanes, params),
            newest=lanes[..., 0],
            snapshot_at=jnp.zeros(learners, jnp.int32),
            initial=params,
        )

    def players(self, rules: Rules) -> Players:
        """Return which players there are, bool `[N]`."""
        learners = jnp.arange(len(rules.roles))
        return Players(
            role=jnp.concatenate([jnp.array(rules.roles), self.pool.role]),
            parent=jnp.concatenate([learners, self.pool.parent]),
            snapshot=jnp.concatenate([jnp.zeros(len(rules.roles), bool), self.pool.filled]),
        )

    def match(self, rules: Rules, key: jax.Array, params: Any, used: jax.Array) -> League:
        """Draw the next opponents of all slots that have a lane without games.

        Args:
            rules: of the league.
            key: random key.
            params: of the learners, leaves `[L, ...]`.
            used: which lanes have games under way, bool `[L, S, 2]`.
        """
        learners, slots = self.newest.shape
        win_rate, players = self.payoff.win_rate(), self.players(rules)
        probabilities = jnp.stack([match_probabilities(rules, i, win_rate, players) for i in range(learners)])
        drawn = jax.random.categorical(key, jnp.log(probabilities)[:, None], axis=-1, shape=(learners, slots))
        drawn = drawn.astype(jnp.int32)
        other = 1 - self.newest
        is_free = ~jnp.take_along_axis(used, other[..., None], axis=-1)[..., 0]
        # Of the pool's and the learners' parameters those that are needed; to join the two would copy the pool.
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
        """Count games that ended.

        Args:
            rules: of the league.
            result: the learner's, above 0 won, below 0 lost, `[T, L, S, B]`.
            ended: which did, bool `[T, L, S, B]`.
            lane: of each game, i32 `[T, L, S, B]`.
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
        """Put learners whose time has come into the pool, as they are, and only then say who begins anew.

        Args:
            rules: of the league.
            key: random key.
            params: of the learners, leaves `[L, ...]`.
            iteration: iterations done, i32 [].

        Returns:
            The league, who was put into the pool (bool `[L]`), and who begins anew (bool `[L]`): give these `initial` and a fresh
            optimiser.
        """
        league, learners = self, len(rules.roles)
        taken, anew = [], []
        for i, learner_key in enumerate(jax.random.split(key, learners)):
            place_key, reset_key = jax.random.split(learner_key)
            win_rate, players = league.payoff.win_rate(), league.players(rules)
            due = snapshot_due(rules, i, win_rate, players, iteration - league.snapshot_at[i])
            slot = league.pool.place(place_key, rules.eviction)
            kept = due & (slot >= 0)
            own = jax.tree.map(lambda x, i=i: x[i], params)
            pool = league.pool.add(slot, own, due, iteration, i, rules.roles[i])
            resets = due & (jax.random.uniform(reset_key) < reset_probability(rules, i))
            place = learners + jnp.maximum(slot, 0)
            league = league.replace(
                pool=pool,
                # Somebody else has the slot now, and a learner who begins anew is not the one who had its results.
                payoff=league.payoff.clear(place, kept).clear(jnp.int32(i), resets),
                generation=league.generation.at[place].add(kept).at[i].add(resets),
                snapshot_at=league.snapshot_at.at[i].set(jnp.where(due, iteration, league.snapshot_at[i])),
            )
            taken.append(kept)
            anew.append(resets)
        # Games under way were begun by who is gone: they count for nobody.
        begun = jnp.where(jnp.stack(anew)[:, None, None], -1, league.opponent_generation)
        return league.replace(opponent_generation=begun), jnp.stack(taken), jnp.stack(anew)


def reset_where(anew: jax.Array, current: Any, initial: Any) -> Any:
    """Leaves `[L, ...]` with those of `initial` where `anew`, bool `[L]`."""
    return jax.vmap(tree_where)(anew, initial, current)
