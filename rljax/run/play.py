"""A person against an agent, in the terminal."""

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
    """One game. What is typed wrongly is asked again; "quit", or the end of the input, ends the game.

    Args:
        game: of two players.
        params: of it.
        opponent: the other player.
        seat: the person's, 0 or 1.
        key: random key.
        ask: shows a prompt and returns the answer.
        say: shows a line.

    Returns:
        The person's return; None where it quit.
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
            chosen = _asked(names, mask[seat], ask, say)
            if chosen is None:
                say("you left the game")
                return None
            action[seat] = chosen
        if moves[1 - seat]:
            together = " (at the same time)" if moves[seat] else ""
            say(f"the agent chooses {names[action[1 - seat]]}{together}")
        obs, state, reward, terminated, _ = step(step_key, state, jnp.asarray(action))
        total += float(reward[seat])
        over = bool(terminated | game.is_truncated(state, params))
    say(game.text(state, params, seat))
    result = "you win" if total > 0 else "you lose" if total < 0 else "a draw"
    say(f"{result}: {total:+g}")
    return total


def check_seat(game: Game, seat: int) -> None:
    """Refuse games that are not of two, and seats that are not there."""
    if game.num_players != 2:
        raise ConfigError(f"{game.name}: has {game.num_players} players, expected a game of two to play in the terminal")
    if seat not in (0, 1):
        raise ConfigError(f"seat = {seat}: expected 0 or 1")


def _asked(names: tuple[str, ...], mask: np.ndarray, ask: Callable[[str], str], say: Callable[[str], None]) -> int | None:
    """The number of the action that was typed; None to quit."""
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
        say(f"'{answer}' is {'not legal here' if answer in names else 'no move'}: expected {shown}")
