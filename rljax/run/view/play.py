"""Games of a person against an agent, in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import ConfigError
from rljax.core.game import Game
from rljax.core.versus import Player


def play(
    game: Game,
    params: Any,
    opponent: Player,
    *,
    seat: int,
    key: jax.Array,
    ask: Callable[[str], str] = input,
    say: Callable[[str], None] = print,
) -> float | None:
    """Play one game. A wrong answer is asked for again; "quit", or the end of the input, ends the game.

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
    names = game.action_names(params)
    reset_key, key = jax.random.split(key)
    obs, state = jax.jit(game.reset_env)(reset_key, params)
    look = jax.jit(lambda s: (game.to_move(s), game.action_mask(s, params)))
    choose, step = jax.jit(opponent), jax.jit(lambda k, s, a: game.step_env(k, s, a, params))
    total, over = 0.0, False
    while not over:
        key, act_key, step_key = jax.random.split(key, 3)
        moves, mask = (np.asarray(x) for x in look(state))
        action = np.array(choose(act_key, state, obs, jnp.asarray(mask)))
        if moves[seat]:
            say(game.text(state, params, seat))
            chosen = _ask_action(names, mask[seat], ask, say)
            if chosen is None:
                say("you left the game")
                return None
            action[seat] = chosen
        for other in np.flatnonzero(moves):
            if other != seat:
                who = "the agent" if game.num_players == 2 else f"player {other}"
                say(f"{who} chooses {names[action[other]]}{' (at the same time)' if moves[seat] else ''}")
        obs, state, reward, terminated, _ = step(step_key, state, jnp.asarray(action))
        total += float(reward[seat])
        over = bool(terminated | game.is_truncated(state, params))
    say(game.text(state, params, seat))
    result = "you win" if total > 0 else "you lose" if total < 0 else "a draw"
    say(f"{result}: {total:+g}")
    return total


def check_seat(game: Game, seat: int) -> None:
    """Check that a game has a seat."""
    if not 0 <= seat < game.num_players:
        seats = "0 or 1" if game.num_players == 2 else f"0 to {game.num_players - 1}"
        raise ConfigError(f"seat = {seat}: expected {seats}")


def _ask_action(names: tuple[str, ...], mask: np.ndarray, ask: Callable[[str], str], say: Callable[[str], None]) -> int | None:
    """Ask for an action and return its number; None to quit."""
    legal = [name for name, allowed in zip(names, mask, strict=True) if allowed]
    shown = " ".join(legal) if len(legal) <= 20 else f"{legal[0]} ... {legal[-1]}"
    while True:
        try:
            answer = ask(f"your move ({shown}, or quit): ").strip().lower()
        except EOFError:
            return None
        if answer in ("quit", "q"):
            return None
        if answer in legal:
            return names.index(answer)
        say(f"'{answer}' is {'not legal here' if answer in names else 'not a move'}: expected {shown}")
