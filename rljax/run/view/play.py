"""Games of a person against an agent, in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete, Space, as_space, head_sizes
from rljax.core.errors import ConfigError, is_whole
from rljax.core.games.game import LEVEL, RESULT, Game, lead
from rljax.core.games.game_step_wrappers import taken_actions
from rljax.core.games.versus import Player, seat_player

Ask = Callable[[str], str]
Say = Callable[[str], None]

QUIT = ("quit", "q")
"""Answers that end a game, unless they are legal actions."""


def play(
    game: Game,
    params: Any,
    opponent: Player,
    *,
    seat: int,
    key: jax.Array,
    ask: Ask = input,
    say: Say = print,
) -> float | None:
    """Play one game. A wrong answer is asked for again; "quit", or the end of the input, ends the game.

    The heads of a composite action are asked for one after the other, except those without a choice. A step without any
    choice is not shown. Numbers of a Box are typed in one line.

    Args:
        game: a game of any number of players.
        params: its parameters.
        opponent: player of all other seats.
        seat: the person's seat, from 0.
        key: random key.
        ask: function that shows a prompt and returns the answer.
        say: function that shows a line.

    Returns:
        The person's return; None if the person quit.
    """
    check_seat(game, seat)
    heads = Heads(as_space(game.action_space(params)), game.head_names(params), game.action_names(params))
    reset_key, key = jax.random.split(key)
    obs, state = jax.jit(game.reset_env)(reset_key, params)
    look = jax.jit(lambda s: (game.to_move(s), game.action_mask(s, params)))
    seated = seat_player(opponent, game, params)
    carry = jax.jit(seated.initial)(state, obs)
    choose, step = jax.jit(seated.act), jax.jit(lambda k, s, a: game.step_env(k, s, a, params))
    returns, over, info = np.zeros(game.num_players, np.float32), False, {}  # as matches sum them
    while not over:
        key, act_key, step_key = jax.random.split(key, 3)
        moves, mask = jax.tree.map(np.asarray, look(state))
        action, carry = choose(act_key, state, obs, mask, carry)
        action = jax.tree.map(np.array, action)
        if moves[seat]:
            own_mask = None if mask is None else mask[seat]
            show = partial(_show, game, state, params, seat, say)
            chosen = _ask_action(heads, own_mask, _after(show, ask), say)
            if chosen is None:
                say("you left the game")
                return None
            for leaf, part in zip(jax.tree.leaves(action), jax.tree.leaves(chosen), strict=True):
                leaf[seat] = part
        obs, state, reward, terminated, info = step(step_key, state, jax.tree.map(jnp.asarray, action))
        taken = jax.tree.map(np.asarray, taken_actions(state, action))
        for player in np.flatnonzero(moves) if game.announces_actions else ():
            chose, did = (_describe(heads, jax.tree.map(lambda x: x[player], a)) for a in (action, taken))  # noqa: B023
            also = " (at the same time)" if moves[seat] else ""
            if player != seat:
                who = "the agent" if game.num_players == 2 else f"player {player}"
                say(f"{who} {'chooses' if did == chose else 'repeats'} {did}{also}")
            elif did != chose:
                say(f"you repeat {did}")
        returns += np.asarray(reward)
        over = bool(terminated | game.is_truncated(state, params))
    _show(game, state, params, seat, say)
    own = _rounded(returns[seat])
    shown = _rounded(returns.mean()) if game.num_teams == 1 else own
    say(f"{_result(game, np.asarray(info.get(RESULT, returns)), seat)}: {shown:+g}")
    return own


def _rounded(value: Any) -> float:
    """Return a return as a number, 0 where it differs from 0 by rounding errors only."""
    return 0.0 if abs(value) <= LEVEL else float(value)


def _result(game: Game, result: np.ndarray, seat: int) -> str:
    """Return the results of a finished game, `[P]`, in words: who is ahead of one other team, or the place among several."""
    if game.num_teams == 1:
        return "your team gets"
    teams = np.array(game.teams)
    of_team = np.array([result[teams == team].mean() for team in range(game.num_teams)])
    ahead = np.asarray(lead(jnp.asarray(of_team), of_team[teams[seat]]))  # of each team before one's own; one's own is 0
    if game.num_teams == 2:
        return ("you win", "a draw", "you lose")[int(ahead.sum()) + 1]
    shared = " (shared)" if (ahead == 0).sum() > 1 else ""
    return f"you have place {1 + (ahead > 0).sum()} of {game.num_teams}{shared}"


def check_seat(game: Game, seat: int) -> None:
    """Check that a game has a seat."""
    if not is_whole(seat, 0, game.num_players - 1):
        seats = "0 or 1" if game.num_players == 2 else f"0 to {game.num_players - 1}"
        raise ConfigError(f"seat = {seat}: expected {seats}")


class Heads(NamedTuple):
    """The actions of a game in words: a player's space, what is asked for at each head, and the names of all heads' actions."""

    space: Space
    labels: tuple[str, ...]
    names: tuple[str, ...]


def _show(game: Game, state: Any, params: Any, seat: int, say: Say) -> None:
    say(game.text(state, params, seat))


def _after(first: Callable[[], None], ask: Ask) -> Ask:
    """Return `ask`, which calls `first` before the first question, if there is one."""
    waiting = [first]

    def asked(prompt: str) -> str:
        while waiting:
            waiting.pop()()
        return ask(prompt)

    return asked


def _ask_action(heads: Heads, mask: np.ndarray | None, ask: Ask, say: Say) -> Any:
    """Ask for an action of one player; None to quit."""
    space, names = heads.space, heads.names
    if isinstance(space, Box):
        return _ask_numbers(space, ask, say)
    sizes = head_sizes(space)
    assert sizes is not None
    assert mask is not None
    legal, start = mask if mask.ndim == 1 else np.diagonal(mask), 0
    picks: list[int] = []
    for number, (label, size) in enumerate(zip(heads.labels, sizes, strict=True)):
        part = slice(start, start + size)
        pick: int | None = int(np.argmax(legal[part]))
        if len(sizes) == 1 or (legal[part].sum() > 1 and _is_read(space, number, picks)):
            pick = _ask_choice(label, names[part], legal[part], ask, say)
        if pick is None:
            return None
        picks.append(pick)
        # What a head may choose can depend on earlier heads.
        legal = legal if mask.ndim == 1 else legal & mask[start + pick]
        start += size
    if isinstance(space, Dict):
        return dict(zip(space.spaces, picks, strict=True))
    return picks[0] if isinstance(space, Discrete) else np.array(picks)


def _is_read(space: Space, head: int, picks: list[int]) -> bool:
    """Return whether the game reads a head after what was picked at earlier ones."""
    condition = space.only_if[head] if isinstance(space, MultiDiscrete) and space.only_if is not None else None
    return condition is None or picks[condition[0]] in condition[1]


def _describe(heads: Heads, action: Any) -> str:
    """Return an action of one player as text."""
    space, names = heads.space, heads.names
    sizes = head_sizes(space)
    if sizes is None:
        return " ".join(f"{x:g}" for x in np.ravel(action))
    picks = [action[name] for name in space.spaces] if isinstance(space, Dict) else np.ravel(action)
    starts = np.cumsum((0, *sizes[:-1]))
    told = [names[start + int(pick)] for start, pick in zip(starts, picks, strict=True)]
    if isinstance(space, Dict):
        told = [f"{name} {what}" for name, what in zip(space.spaces, told, strict=True)]
    return ", ".join(told)


def _ask_line(prompt: str, ask: Ask) -> str | None:
    """Ask for a line; None at the end of the input."""
    try:
        return ask(prompt).strip()
    except EOFError:
        return None


def _ask_choice(label: str, names: tuple[str, ...], mask: np.ndarray, ask: Ask, say: Say) -> int | None:
    """Ask for one of several names and return its number; None to quit. Case counts only where names differ in nothing else."""
    legal = [name for name, allowed in zip(names, mask, strict=True) if allowed]
    shown = " ".join(legal) if len(legal) <= 20 else f"{legal[0]} ... {legal[-1]}"
    while True:
        answer = _ask_line(f"{label} ({shown}, or quit): ", ask)
        if answer is None:
            return None
        alike = [answer] if answer in names else [name for name in names if name.lower() == answer.lower()]
        fits = [name for name in alike if name in legal]
        if len(fits) == 1:
            return names.index(fits[0])
        if answer.lower() in QUIT:
            return None
        say(f"'{answer}' is {'not legal here' if alike and not fits else 'not a move'}: expected {shown}")


def _ask_numbers(space: Box, ask: Ask, say: Say) -> np.ndarray | None:
    """Ask for the numbers of a Box, separated by spaces; None to quit."""
    count = max(space.flat_dim, 1)
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), space.shape).ravel() for bound in (space.low, space.high))
    expected = f"{count} number{'s' if count > 1 else ''} from {low.min():g} to {high.max():g}"
    while True:
        answer = _ask_line(f"your move ({expected}, or quit): ", ask)
        if answer is None or answer.lower() in QUIT:
            return None
        try:
            numbers = np.array([float(word) for word in answer.replace(",", " ").split()], np.float32)
        except ValueError:
            numbers = np.zeros(0, np.float32)
        if len(numbers) == count and ((numbers >= low) & (numbers <= high)).all():
            return numbers.reshape(space.shape).astype(space.dtype)
        say(f"'{answer}' is not a move: expected {expected}")
