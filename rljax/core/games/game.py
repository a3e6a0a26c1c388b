"""The contract of games: an environment with a leading axis of players."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Dict, as_space, head_sizes
from rljax.core.environments.wrappers import split_privileged
from rljax.core.errors import ConfigError

RESULT = "result"
"""Entry of a game's `info`: the result of the game for each player, f32 `[P]`, see `Game`."""


NO_OBSERVE = "must define observe(state, params) -> obs [P, ...], what the players see of a state; searches and play use it"
"""The message about a game that does not define `observe`."""


class RememberingScript(NamedTuple):
    """Player that follows rules and remembers.

    Attributes:
        act: `(key, state, params, carry) -> (action [P, ...], carry)`.
        initial: as in `rljax.core.games.versus.Remembering`.
    """

    act: Callable[[jax.Array, Any, Any, Any], tuple[Any, Any]]
    initial: Callable[[int], Any] | None = None


ScriptedPlayer = Callable[[jax.Array, Any, Any], Any] | RememberingScript
"""Player that follows rules: `(key, state, params) -> action [P, ...]`, what it would do at each seat, or `RememberingScript`. It
sees the state."""


class Game(Environment):
    """Base class of games: an `Environment` whose observations, actions and rewards have a leading axis of players.

    `reset_env(key, params) -> (obs [P, ...], state)`; `step_env(key, state, action [P, ...], params) -> (obs [P, ...], state,
    reward f32 [P], terminated bool [], info)`. The spaces are those of one player, and any action space will do: `action` has its
    elements with a leading axis of players, such as i32 `[P]` for Discrete and `{name: i32 [P]}` for named heads. Actions of
    players who are not to move are ignored. A player's observation must not contain what it must not know.

    Who is ahead when a game ends has won it: in leagues, tournaments and matches. Results that differ by no more than 1e-5 are
    level, so rewards should not be that small. By default, who is ahead is told by returns.
    A game whose rewards hold more than that, such as rewards for what is useful on the way, gives `info["result"]`, f32 `[P]`:
    how the game stands for each player after the step. It is read in the last step of a game.

    A player who drops out is not to move any more until the game is over. It should get no reward of its own afterwards; what its
    team gets belongs to its last move.

    Attributes:
        num_players: number of players P.
        teams: team of each player, counted from 0; teams may differ in size, and if there is only one, all players cooperate.
            By default each player is its own team. The result of a team is the mean of its players' results.
        roles: role of each player, counted from 0: players of one role do the same job, so they can share weights where roles
            have weights of their own. By default all players have role 0.
        turn_gap: largest number of steps of others between two moves of a player in a game; 0 if several may move at a step. If
            it is not 0, exactly one player moves at each step. The default is 0 if all move at every step, else the number of
            other players.
        hides_state: whether a part of the state is hidden from a player, such as another's cards. Searches see all of the
            state, so they refuse such games.
        step_is_random: whether `step_env` draws from its key without saying the outcomes. Searches and exact trees refuse such
            games. A game that defines `chance` leaves it False.
        zero_sum: whether the rewards of two sides add up to zero in each step. Searches refuse games in which they do not. None:
            random play tells.
        opening_moves: number of random steps at the start of a game in a tournament, so that deterministic players do not
            repeat one game. Not used where chance or random best play makes games differ.
        announces_actions: whether a person who plays is told what the others choose. False where the state shows what comes of
            it, or hides it.
    """

    num_players: int = 2
    hides_state: bool = False
    step_is_random: bool = False
    zero_sum: bool | None = None
    opening_moves: int = 2
    announces_actions: bool = True

    @property
    def teams(self) -> tuple[int, ...]:
        return tuple(range(self.num_players))

    @property
    def num_teams(self) -> int:
        """Number of teams."""
        return max(self.teams) + 1

    @property
    def roles(self) -> tuple[int, ...]:
        return (0,) * self.num_players

    @property
    def all_move(self) -> bool:
        """True if all players move at every step, because `to_move` is the default."""
        return type(self).to_move is Game.to_move

    @property
    def gives_outcomes(self) -> bool:
        """True if `step_outcome` is defined, which takes the step of a given outcome of chance."""
        return type(self).step_outcome is not Game.step_outcome

    @property
    def turn_gap(self) -> int:
        return 0 if self.all_move else self.num_players - 1

    def to_move(self, state: Any) -> jax.Array:
        """Return which players move in the next step, bool `[P]`; by default all of them."""
        return jnp.ones(self.num_players, bool)

    def action_mask(self, state: Any, params: Any) -> Any:
        """Return the legal actions of every player, bool `[P, A]`; all are legal for players who are not to move.

        Several heads have masks as in `Environment.action_mask`, one for each player: bool `[P, A]`, or `[P, A, A]` if the
        legal actions of a head depend on earlier heads. None for a Box.
        """
        sizes = head_sizes(as_space(self.action_space(params)))
        return None if sizes is None else jnp.ones((self.num_players, sum(sizes)), bool)

    def chance(self, state: Any, action: jax.Array, params: Any) -> jax.Array:
        """Return the probabilities of the C outcomes of chance in a step, f32 `[C]`; by default, one certain outcome.

        A game with dice or cards that are turned over defines `chance` and `step_outcome` instead of `step_env`. Then searches
        plan for every outcome. C is the same in all steps; a step without chance gives one of its outcomes the probability 1.

        Args:
            state: the state before the step.
            action: action of each player, i32 `[P]`.
            params: parameters of the game.
        """
        return jnp.ones(1)

    def step_outcome(
        self, state: Any, action: jax.Array, outcome: jax.Array, params: Any
    ) -> tuple[Any, Any, jax.Array, jax.Array, dict[str, Any]]:
        """Take a step whose outcome of chance is given, i32 [], from 0 to C - 1; return what `step_env` returns."""
        step = "step_env(key, state, action, params) -> (obs, state, reward, terminated, info)"
        raise NotImplementedError(f"{self.name} must define {step}, or chance and step_outcome")

    def step_env(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, jax.Array, jax.Array, dict[str, Any]]:
        """Take a step without auto-reset: by default, `step_outcome` with an outcome drawn by the probabilities of `chance`."""
        outcome = outcome_at(self.chance(state, action, params), jax.random.uniform(key))
        return self.step_outcome(state, action, outcome, params)

    def initial_states(self, params: Any) -> tuple[Any, jax.Array]:
        """Return every state that `reset_env` may return, stacked `[N, ...]`, and their probabilities f32 `[N]`.

        Exact values and exploitabilities are computed from it. Chance in later steps must be given by `chance`, or be decided at
        the beginning (cards that are dealt then and turned over later).
        """
        raise NotImplementedError(f"{self.name} does not enumerate its initial states")

    @property
    def scripted(self) -> Mapping[str, ScriptedPlayer]:
        """Players that follow rules, by name; by default there are none. A league may play against them."""
        return {}

    def observe(self, state: Any, params: Any) -> Any:
        """Return the players' observations of a state, `[P, ...]`: those that `reset_env` and `step_env` return with it."""
        raise ConfigError(f"game {self.name}: {NO_OBSERVE}")

    def text(self, state: Any, params: Any, player: int) -> str:
        """Return the state as text for the terminal, as a player sees it; by default, the public part of its observation."""
        seen, _ = split_privileged(jax.tree.map(lambda x: np.asarray(x)[player], self.observe(state, params)))
        if isinstance(seen, Mapping):
            return "\n".join(f"{name}: {np.array2string(np.asarray(x))}" for name, x in seen.items())
        return str(seen)

    def head_names(self, params: Any) -> tuple[str, ...]:
        """Return what a person is asked for at each head of an action; by default, the head's name, or its number from 1."""
        space = as_space(self.action_space(params))
        if isinstance(space, Dict):
            return tuple(space.spaces)
        count = len(head_sizes(space) or ())
        return ("your move",) if count == 1 else tuple(f"your move, part {i + 1} of {count}" for i in range(count))

    def action_names(self, params: Any) -> tuple[str, ...]:
        """Return the text that a person types for each action, heads in order; by default, its number in its head."""
        sizes = head_sizes(as_space(self.action_space(params))) or ()
        return tuple(str(i) for size in sizes for i in range(size))


def outcome_at(probabilities: jax.Array, quantile: jax.Array) -> jax.Array:
    """Return the outcome at a quantile in [0, 1) of the distribution `[C]`, i32 []: of a uniform one, a draw of the distribution.

    An outcome of probability 0 is never returned.
    """
    cumulative = jnp.cumsum(probabilities)
    last = probabilities.shape[0] - 1 - jnp.argmax(probabilities[::-1] > 0)
    return jnp.minimum(jnp.sum(quantile * cumulative[-1] >= cumulative), last).astype(jnp.int32)


def batch_players(tree: Any) -> Any:
    """Merge the players of all games into one batch, for a policy that all share: leaves `[E, P, ...]` become `[E * P, ...]`."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def unbatch_players(tree: Any, num_players: int) -> Any:
    """Undo `batch_players`: leaves `[E * P, ...]` become `[E, P, ...]`."""
    return jax.tree.map(lambda x: x.reshape(-1, num_players, *x.shape[1:]), tree)


def team_reward(reward: jax.Array, teams: tuple[int, ...]) -> jax.Array:
    """Share rewards `[..., P]` within teams: each player gets the mean reward of its team."""
    together = jnp.asarray(teams)[:, None] == jnp.asarray(teams)
    shares = (together / together.sum(0)).astype(reward.dtype)
    return jnp.matmul(reward, shares, precision="highest")  # a TPU would round rewards to bf16


def side_rewards(game: Game, reward: jax.Array) -> jax.Array:
    """Return the mean reward of each player's team, `[..., P]`, as matches and searches count; `team_reward`, where teams are
    more than players alone."""
    return reward if game.num_teams == game.num_players else team_reward(reward, game.teams)


LEVEL = 1e-5
"""Results that differ by no more than this are level, beside what large ones differ by rounding."""


def lead(result: jax.Array, other: jax.Array) -> jax.Array:
    """Return 1 where a result is ahead of another, -1 where it is behind, and 0 where they are level, f32 of their shape.

    Results are means of sums: of teams of different sizes they may differ by rounding although the players got the same, and of
    sums that should be zero only rounding is left.
    """
    level = jnp.abs(result - other) <= LEVEL + 4 * jnp.finfo(jnp.float32).eps * (jnp.abs(result) + jnp.abs(other))
    return jnp.where(level, 0.0, jnp.sign(result - other))
