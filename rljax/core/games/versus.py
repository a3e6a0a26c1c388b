"""Players of games, and a game as an environment of one agent: a policy that does not learn plays the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.environments.environment import BELIEF, COMPONENTS, METRICS, strong, tree_where
from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple, as_space, head_sizes, legal_action
from rljax.core.environments.wrappers import Wrapper
from rljax.core.errors import ConfigError, did_you_mean
from rljax.core.games.game import Game, RememberingScript, ScriptedPlayer
from rljax.core.games.game_wrappers import split_views, with_frames
from rljax.core.operations import constant_result


class Remembering(NamedTuple):
    """Player with memory.

    Its carry is a tree of arrays `[P, ...]`, a part for each seat. A game begins with zeros. The part of a seat advances only
    where the seat moves.

    Attributes:
        act: `(key, state, obs, mask, carry) -> (action, carry)`.
        initial: returns the zeros for P seats, of which only shapes and dtypes are read; None: they are those that `act` returns
            if its carry is None.
    """

    act: Callable[[jax.Array, Any, Any, Any, Any], tuple[Any, Any]]
    initial: Callable[[int], Any] | None = None


Player = Callable[[jax.Array, Any, Any, Any], Any] | Remembering
"""Player of one game: `(key, state, obs [P, ...], mask bool [P, A]) -> action [P, ...]`, or `Remembering`. It returns an action
for every seat, but only those of its own seats are used. Policies use `obs`, searches use `state`."""


def random_player(key: jax.Array, _state: Any, _obs: Any, mask: jax.Array) -> jax.Array:
    """Draw a legal action uniformly for every player. Where a game seats it, it draws from any action space."""
    return jnp.argmax(jnp.where(mask, jax.random.uniform(key, mask.shape), -1.0), axis=-1).astype(jnp.int32)


def random_actions(game: Game, params: Any, key: jax.Array, mask: Any) -> Any:
    """Draw a legal action for every player of a game, uniformly in each head or within the bounds of a Box, `[P, ...]`."""
    space = as_space(game.action_space(params))
    noise = jax.random.uniform(key, (game.num_players, space.flat_dim))
    return jax.vmap(lambda m, u: legal_action(space, m, u)[0])(mask, noise)


def without_view(scripted: ScriptedPlayer, params: Any) -> Player:
    """Return a scripted player, which knows the state, as a player that is also told observations and masks."""
    if isinstance(scripted, RememberingScript):
        return Remembering(lambda key, state, _obs, _mask, carry: scripted.act(key, state, params, carry), scripted.initial)
    return lambda key, state, _obs, _mask: scripted(key, state, params)


def one_of(players: Sequence[Player]) -> Remembering:
    """Return a player that is one of several, drawn uniformly when a game begins.

    All of them act in every step, and the action of the one that was drawn is taken. The carry is that of `drawn_carry`, with a
    memory for each player.
    """
    remember = [player for player in players if isinstance(player, Remembering)]

    def act(key: jax.Array, state: Any, obs: Any, mask: Any, carry: Any) -> tuple[Any, Any]:
        draw_key, *keys = jax.random.split(key, len(players) + 1)
        which, before = drawn_once(draw_key, carry, len(players), jax.tree.leaves(obs)[0].shape[0])
        chosen, memories = None, []
        for number, (player, player_key) in enumerate(zip(players, keys, strict=True)):
            if isinstance(player, Remembering):
                action, memory = player.act(player_key, state, obs, mask, None if before is None else before[number])
            else:
                action, memory = player(player_key, state, obs, mask), None
            chosen = action if chosen is None else where_players(which == number + 1, action, chosen)
            memories.append(memory)
        return chosen, drawn_carry(which, tuple(memories))

    def initial(seats: int) -> Any:
        memories = tuple(
            player.initial(seats) if isinstance(player, Remembering) and player.initial is not None else None
            for player in players
        )
        return drawn_carry(jnp.zeros(seats, jnp.int32), memories)

    return Remembering(act, None if any(player.initial is None for player in remember) else initial)


def drawn_once(key: jax.Array, carry: Any, count: int, seats: int) -> tuple[jax.Array, Any]:
    """Return which of `count` players plays at each seat, from 1, i32 `[P]`, drawn now where a game begins, and their memories.

    Args:
        key: draws the player.
        carry: as from `drawn_carry`; None where a game begins: nobody is drawn yet, and the memories are None.
        count: number of players.
        seats: number of seats P.
    """
    which, memories = carry if isinstance(carry, tuple) else (carry, None)
    which = jnp.zeros(seats, jnp.int32) if which is None else which
    # Where seats take turns, only those that have moved remember who was drawn.
    drawn = jnp.max(which)
    return jnp.where(which == 0, jnp.where(drawn == 0, jax.random.randint(key, (), 1, count + 1), drawn), which), memories


def drawn_carry(which: jax.Array, memories: Any) -> Any:
    """Return the carry of a player that is one of several: which of them, i32 `[P]`, and their memories if there are any."""
    return (which, memories) if jax.tree.leaves(memories) else which


class Seated(NamedTuple):
    """Player at the seats of a game: its carry when a game begins, `(state, obs) -> carry [P, ...]`, and its moves,
    `(key, state, obs, mask, carry) -> (action [P, ...], carry)`."""

    initial: Callable[[Any, Any], Any]
    act: Callable[[jax.Array, Any, Any, Any, Any], tuple[Any, Any]]


def seat_player(player: Player, game: Game, params: Any) -> Seated:
    """Return a player, with or without memory, at the seats of a game.

    Raises:
        ConfigError: when it acts: its action or its carry has another structure or shape than expected.
    """
    players = game.num_players
    key = jax.eval_shape(lambda: jax.random.key(0))
    wanted = jax.eval_shape(as_space(game.action_space(params)).sample, key)
    wanted = jax.tree.map(lambda x: (players, *x.shape), wanted)

    def choose(key: jax.Array, state: Any, obs: Any, mask: Any, carry: Any) -> tuple[Any, Any]:
        if isinstance(player, Remembering):
            action, carry = player.act(key, state, obs, mask, carry)
        elif player is random_player:
            action = random_actions(game, params, key, mask)
        else:
            action = player(key, state, obs, mask)
        found = jax.tree.map(jnp.shape, action)
        if found != wanted:
            raise ConfigError(f"a player of {game.name}: returned an action of shape {found}, expected {wanted}")
        return action, carry

    def initial(state: Any, obs: Any) -> Any:
        if not isinstance(player, Remembering):
            return None
        if player.initial is not None:
            carry = jax.eval_shape(partial(player.initial, players))
        else:
            mask = jax.eval_shape(lambda s: game.action_mask(s, params), state)
            carry = jax.eval_shape(lambda k, s, o, m: choose(k, s, o, m, None)[1], key, state, obs, mask)
        for leaf in jax.tree.leaves(carry):
            if leaf.shape[:1] != (players,):
                raise ConfigError(
                    f"a player of {game.name}: its carry has an array of shape {leaf.shape}, expected a part for each of "
                    f"{players} seats: ({players}, ...)"
                )
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), carry)

    def act(key: jax.Array, state: Any, obs: Any, mask: Any, carry: Any) -> tuple[Any, Any]:
        action, after = choose(key, state, obs, mask, carry)
        before, now = (jax.tree.map(jnp.shape, x) for x in (carry, after))
        if before != now:
            raise ConfigError(f"a player of {game.name}: its carry changed from shape {before} to {now}")
        return action, advance_carry(game.to_move(state), carry, after)

    return Seated(initial, act)


def advance_carry(moves: jax.Array, before: Any, after: Any) -> Any:
    """Return the memory of players after a step: `after` for those who moved, `before` for all others.

    Args:
        moves: which players moved, bool `[...]`.
        before: memory before the step, leaves `[..., *]`.
        after: memory as if all had moved.
    """
    return where_players(moves, after, before)


def check_scripted(game: Game, name: str, refusal: str, none: str | None = None) -> None:
    """Check that a game has a scripted player.

    Args:
        game: the game.
        name: name of the player.
        refusal: beginning of the message.
        none: end of the message where the game has no scripted player; by default it names the game.

    Raises:
        ConfigError: there is no such player; the message ends with the names that may be meant.
    """
    if name not in game.scripted:
        hint = did_you_mean(name, game.scripted) if game.scripted else none or f"{game.name} has none"
        raise ConfigError(f"{refusal}: {hint}")


def _last(info: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the entries of the info of a game's step that hold until the next one; None without any."""
    return {name: info[name] for name in (BELIEF, METRICS) if name in info} or None


class VersusState(NamedTuple):
    """State of `Versus`.

    Attributes:
        game: state of the game.
        obs: observations of all players as the game itself gives them, `[P, ...]`.
        team: the agent's team, i32 [].
        reward: rewards not yet paid out, f32 `[P]`.
        over: whether the game is over, bool [].
        carry: memory of the opponent, `[P, ...]`; None if it has none.
        components: components of the rewards not yet paid out, a dictionary of f32 `[P]`; None if the game does not split them.
        last: what else is passed on of the info of the game's last step, a dictionary; None if there is nothing.
        frames: what the players saw at their last moves, if the agent observes it (see `GameFrameStack`); else None.
    """

    game: Any
    obs: Any
    team: jax.Array
    reward: jax.Array
    over: jax.Array
    carry: Any = None
    components: Any = None
    last: Any = None
    frames: Any = None


class Versus(Wrapper):
    """Environment in which the agent plays one team of a game, drawn anew for each episode, against a fixed opponent.

    A step is a move of the agent and the moves of the others until its next turn; the reward is the agent's sum over them, the
    mean of its team, and so are the reward's components, if the game's info has them. Its metrics and the mean entropy of the
    team's beliefs are those after the last of these moves. K is the size of the largest team. If it is 1, the agent is one
    player, with that player's observations, actions and masks. Otherwise they have a leading axis K, in the order of the team's
    players; in a smaller team the rest repeats the first player's observation, and its actions are ignored.

    Args:
        game: the game. If it has one team, the agent plays all of it. Wrappers that change observations do so for the agent.
        opponent: the player of all others, which sees what the game itself gives, or the name of a scripted player of the game;
            random legal moves by default.
        joint: whether the agent is one learner that moves its whole team, so that the spaces are those of its K players together:
            their heads, player by player, are one MultiDiscrete. Otherwise the spaces are those of one player, for policies of
            single players, whose actions and masks have the leading axis K.
        every_move: whether a step is one step of the game, whoever moves, so that each can be shown. The agent's action is
            ignored in the others' turns (`own_moves`).

    Raises:
        ConfigError: the game has no scripted player of this name.
    """

    def __init__(self, game: Any, opponent: Player | str = random_player, joint: bool = True, every_move: bool = False) -> None:
        super().__init__(game)
        if isinstance(opponent, str):
            check_scripted(game, opponent, f"opponent = {opponent!r}: {game.name} has no such scripted player", "it has none")
        self.opponent, self.joint, self.every_move = opponent, joint, every_move
        self._game, self._look = split_views(game)
        teams = np.array(game.teams)
        members = [np.flatnonzero(teams == team) for team in range(game.num_teams)]
        self._size = max(map(len, members))
        self._members = np.stack([np.concatenate([who, np.repeat(who[:1], self._size - len(who))]) for who in members])
        self._there = np.arange(self._size) < np.array([[len(who)] for who in members])
        self._place = np.array([np.sum(teams[:player] == team) for player, team in enumerate(teams)])

    def inner(self, state: VersusState) -> Any:
        return with_frames(self.env, state.game, state.obs, state.frames)

    @property
    def team_size(self) -> int:
        """Number of players K of the largest team."""
        return self._size

    @property
    def skips_turns(self) -> bool:
        """True if a step is a move of the agent and, in a game of turns, those of the others until its next one."""
        return not self.every_move and self.env.num_teams > 1 and self.env.turn_gap > 0

    def observation_space(self, params: Any) -> Any:
        space = as_space(self.env.observation_space(params))
        return stacked_space(space, self._size) if self.joint and self._size > 1 else space

    def action_space(self, params: Any) -> Any:
        space = as_space(self.env.action_space(params))
        if self._size == 1 or not self.joint:
            return space
        sizes = head_sizes(space)
        if sizes is None:
            return stacked_space(space, self._size)
        return (space if isinstance(space, MultiDiscrete) else MultiDiscrete(sizes)).repeated(self._size)

    def _observed(self, state: VersusState) -> Any:
        """Return what the agent's team sees."""
        return self._team_part(state.team, self._look(state.obs, state.frames)[0])

    def _team_part(self, team: jax.Array | int, x: Any) -> Any:
        """Return the entries of the team's players in leaves `[P, ...]`: `[...]`, or `[K, ...]` for K players."""
        members = jnp.asarray(self._members)[team]
        return jax.tree.map(lambda leaf: leaf[members[0]] if self._size == 1 else leaf[members], x)

    def own_moves(self, state: VersusState) -> jax.Array:
        """Return which players of the agent's team move in the next step, bool `[]`, or `[K]` for K players."""
        moves: jax.Array = self._team_part(state.team, self._game.to_move(state.game) & ~state.over)
        return moves if self._size == 1 else moves & jnp.asarray(self._there)[state.team]

    def action_mask(self, state: VersusState, params: Any) -> jax.Array | None:
        mask = self._game.action_mask(state.game, params)
        if mask is None:
            return None
        constant = constant_result(lambda game: self._game.action_mask(game, params), state.game)
        own: jax.Array
        if constant is not None and constant.all():
            # Not read from the state, so that wrappers see that these masks do not change (see `StickyActions`).
            own = self._team_part(0, mask)
        else:
            # Actions of players who are not to move are ignored, so all are legal, as when the game is over.
            waiting = ~self._game.to_move(state.game) | state.over
            own = self._team_part(state.team, mask | waiting.reshape(-1, *(1,) * (mask.ndim - 1)))
        if self._size == 1 or not self.joint:
            return own
        if own.ndim == 2:
            return own.reshape(-1)
        # Pairs of heads of different players do not depend on each other.
        blocks = jnp.eye(self._size, dtype=bool)[:, None, :, None]
        return jnp.where(blocks, own[:, :, None, :], True).reshape(self._size * own.shape[1], -1)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, VersusState]:
        game_key, team_key, key = jax.random.split(key, 3)
        obs, game = strong(self._game.reset_env(game_key, params))
        team = jax.random.randint(team_key, (), 0, len(self._members))
        carry = self._seated(params).initial(game, obs) if self.env.num_teams > 1 else None
        reward, over = jnp.zeros(self.env.num_players), jnp.zeros((), bool)
        components, last = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self._parts_of_info)
        frames = jax.tree.map(jnp.zeros_like, self._look(obs, None)[1])
        state = VersusState(game, obs, team, reward, over, carry, components, last, frames)
        state = self._until_own_turn(key, state, params)
        return self._observed(state), state

    def step_env(
        self, key: jax.Array, state: VersusState, action: Any, params: Any
    ) -> tuple[Any, VersusState, jax.Array, jax.Array, dict[str, Any]]:
        key, rest_key = jax.random.split(key)
        # A game may be over before the agent's first move: the step then changes nothing and reports the end.
        played = self._until_own_turn(rest_key, self._play_step(key, state, params, self._own_action(action, params)), params)
        state = tree_where(state.over, state, played)
        own = jnp.asarray(self.env.teams) == state.team

        def of_team(x: jax.Array) -> jax.Array:
            return jnp.sum(jnp.where(own, x, 0.0)) / jnp.sum(own)

        reward, components = jax.tree.map(of_team, (state.reward, state.components))
        info = {} if state.last is None else dict(state.last)
        if BELIEF in info:
            info[BELIEF] = of_team(info[BELIEF])
        if components is not None:
            info[COMPONENTS] = components
        paid = jax.tree.map(jnp.zeros_like, (state.reward, state.components))
        return self._observed(state), state._replace(reward=paid[0], components=paid[1]), reward, state.over, info

    @cached_property
    def _parts_of_info(self) -> tuple[Any, Any]:
        """Shapes of the components of the game's rewards, and of `last`; None for what its info does not have."""
        game, params = self._game, self._game.default_params

        def info_of(key: jax.Array) -> dict[str, Any]:
            _, state = game.reset_env(key, params)
            action = random_actions(game, params, key, game.action_mask(state, params))
            info: dict[str, Any] = strong(game.step_env(key, state, action, params))[-1]
            return info

        info = jax.eval_shape(info_of, jax.random.key(0))
        return info.get(COMPONENTS), _last(info)

    def _own_action(self, action: Any, params: Any) -> Any:
        """Return the agent's action for each player as if it were of its team, leaves `[P, ...]`."""
        space = as_space(self.env.action_space(params))
        if self._size == 1:
            action = jax.tree.map(lambda x: jnp.asarray(x)[None], action)
        elif self.joint and isinstance(space, Dict):
            action = dict(zip(space.spaces, action.reshape(self._size, -1).T, strict=True))
        elif self.joint and isinstance(space, MultiDiscrete):
            action = action.reshape(self._size, -1)
        return jax.tree.map(lambda x: x[self._place], action)

    def _play_step(self, key: jax.Array, state: VersusState, params: Any, own: Any) -> VersusState:
        """Play one step of the game, in which the agent's team takes the actions `own`, leaves `[P, ...]`, unless None."""
        act_key, step_key = jax.random.split(key)
        if self.env.num_teams > 1:
            action, carry = self._opponent_action(act_key, state, params)
            if own is not None:
                action = where_players(jnp.asarray(self.env.teams) == state.team, own, action)
        else:
            action, carry = own, None
        obs, game, reward, over, info = strong(self._game.step_env(step_key, state.game, action, params))
        reward, components = jax.tree.map(jnp.add, (state.reward, state.components), (reward, info.get(COMPONENTS)))
        over = over | self._game.is_truncated(game, params)
        _, seen = self._look(state.obs, state.frames)
        frames = advance_carry(self._game.to_move(state.game), state.frames, seen)
        return VersusState(game, obs, state.team, reward, over, carry, components, _last(info), frames)

    def _opponent_action(self, key: jax.Array, state: VersusState, params: Any) -> tuple[Any, Any]:
        """Return the opponent's action for every player, leaves `[P, ...]`, and its memory; those of its team are used."""
        mask = self._game.action_mask(state.game, params)
        return self._seated(params).act(key, state.game, state.obs, mask, state.carry)

    def _seated(self, params: Any) -> Seated:
        """Return the opponent at the seats of the game."""
        player = self.opponent
        if isinstance(player, str):
            player = without_view(self._game.scripted[player], params)
        return seat_player(player, self._game, params)

    def _until_own_turn(self, key: jax.Array, state: VersusState, params: Any) -> VersusState:
        if self.every_move or self.env.all_move or self.env.num_teams == 1:
            return state

        def waits(loop: tuple[jax.Array, VersusState]) -> jax.Array:
            moves = self._game.to_move(loop[1].game) & (jnp.asarray(self.env.teams) == loop[1].team)
            return ~jnp.any(moves) & ~loop[1].over

        def step(loop: tuple[jax.Array, VersusState]) -> tuple[jax.Array, VersusState]:
            key, now = jax.random.split(loop[0])
            return key, self._play_step(now, loop[1], params, None)

        return jax.lax.while_loop(waits, step, (key, state))[1]

    def is_truncated(self, state: VersusState, params: Any) -> jax.Array:
        # A time limit of the game is part of its rules: it terminates the game.
        return jnp.asarray(False)


def where_players(condition: jax.Array, on_true: Any, on_false: Any) -> Any:
    """Choose between trees of players, leaves `[..., *]`, by `condition`, bool `[...]`; the dtypes are those of `on_false`."""

    def chosen(a: Any, b: Any) -> jax.Array:
        a, b = jnp.asarray(a), jnp.asarray(b)
        a = a if a.dtype == b.dtype else a.astype(b.dtype)  # random keys have no astype
        return jnp.where(condition.reshape(condition.shape + (1,) * (b.ndim - condition.ndim)), a, b)

    return jax.tree.map(chosen, on_true, on_false)


def stacked_space(space: Space, count: int) -> Space:
    """Return the space of `count` elements of a space stacked along a new first axis."""
    if isinstance(space, Dict):
        return Dict({name: stacked_space(as_space(part), count) for name, part in space.spaces.items()})
    if isinstance(space, Tuple):
        return Tuple(tuple(stacked_space(as_space(part), count) for part in space.spaces))
    if isinstance(space, Discrete):
        return MultiDiscrete((space.n,) * count)
    if isinstance(space, MultiDiscrete):
        return Box(0, jnp.asarray(space.nvec) - 1, (count, *space.shape), jnp.int32)
    return Box(space.low, space.high, (count, *space.shape), space.dtype)


class OnePlayer(Wrapper):
    """Observations and legal actions of one player of a game, for the shapes that a policy needs. It is never stepped."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        obs, state = self.env.reset_env(key, params)
        return jax.tree.map(lambda x: x[0], obs), state

    def action_mask(self, state: Any, params: Any) -> jax.Array | None:
        mask = self.env.action_mask(state, params)
        return None if mask is None else mask[0]
