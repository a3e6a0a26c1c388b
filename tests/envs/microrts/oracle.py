"""Recorded transitions of the Java engine of microRTS, and what its bots and players do and see.

`python -m tests.envs.microrts.oracle` writes the recorded files of `golden/`; it needs the extra `microrts`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rljax.envs.microrts.rules.maps import MAPS
from rljax.envs.microrts.rules.state import LegalOrders, Orders, RTSState
from rljax.envs.microrts.rules.units import COST, SPAN
from rljax.run.microrts.parity import (
    Transitions,
    differences,
    joint_conflicts,
    orders_of,
    overspent,
    random_plan,
    record,
    scatter_units,
    state_of,
)
from tests.envs.play import QUICK

GOLDEN = Path(__file__).parent / "golden"


def record_bot(
    java: Any, map_name: str, bot: str, opponents: tuple[str, ...], fog: bool = False
) -> tuple[RTSState, np.ndarray, Orders]:
    """Let a bot play a game from each seat against each of its opponents; with `fog` it sees what its units see.

    Returns:
        Positions in which it has an idle unit, leaves `[N, ...]`; its seat in each, i32 `[N]`; and its orders.
    """
    found = []
    for opponent in opponents:
        for seat in range(2):
            game, players = java.game(map_name), [java.bot(bot), java.bot(opponent)][:: 1 - 2 * seat]
            for _ in range(700):
                views = [game.seen_by(player) if fog and player == seat else game for player in range(2)]
                state, plans = state_of(game), [players[player].play(views[player], player) for player in range(2)]
                if np.any((state.owner == seat) & (state.remaining == 0)):
                    found.append((state, np.int32(seat), orders_of(game, [plans[seat]])))
                for plan in plans:
                    game.state.issueSafe(plan)
                if game.cycle():
                    break
    stacked: tuple[RTSState, np.ndarray, Orders] = jax.tree.map(lambda *leaves: np.stack(leaves), *found)
    return stacked


def record_sight(java: Any, map_name: str, count: int, seed: int) -> tuple[RTSState, np.ndarray, np.ndarray]:
    """Play random games on maps full of random units, and return what each player sees with fog of war.

    Returns:
        `count` positions, leaves `[N, ...]`; which cells each player observes, and in which it finds units, bool `[N, 2, H, W]`.
    """
    rng, found = random.Random(seed), []
    partial_state = java.jpype.JClass("rts.PartiallyObservableGameState")
    while len(found) < count:
        game = java.game(map_name)
        scatter_units(java, game, rng)
        for _ in range(30):
            state = state_of(game)
            cells = list(np.ndindex(state.unit.shape))
            seen, units = np.zeros((2, 2, *state.unit.shape), bool)
            for player in range(2):
                view = partial_state(game.state, player)
                board = view.getPhysicalGameState()
                for y, x in cells:
                    seen[player, y, x] = view.observable(x, y)
                    units[player, y, x] = board.getUnitAt(x, y) is not None
            found.append((state, seen, units))
            for plan in [random_plan(java, game, player, rng, [dict.fromkeys(range(6), 1)] * 2) for player in range(2)]:
                game.state.issueSafe(plan)
            if game.cycle() or len(found) == count or overspent(game):
                break
    stacked: tuple[RTSState, np.ndarray, np.ndarray] = jax.tree.map(lambda *leaves: np.stack(leaves), *found)
    return stacked


def save(path: Path, transitions: Transitions) -> None:
    """Write transitions; states as they are, legal orders as bits."""
    arrays = {
        f"{part}.{name}": value
        for part in ("before", "orders", "after")
        for name, value in vars(getattr(transitions, part)).items()
    }
    arrays |= {f"legal.{name}": np.packbits(value, axis=1) for name, value in vars(transitions.legal).items()}
    np.savez_compressed(path, **arrays)


def load(path: Path) -> Transitions:
    """Read what `save` wrote."""
    with np.load(path) as file:
        parts: dict[str, dict[str, np.ndarray]] = {"before": {}, "orders": {}, "after": {}, "legal": {}}
        for key, value in file.items():
            part, name = key.split(".")
            parts[part][name] = value
    sizes = {"product": len(COST), "attack": SPAN * SPAN}
    legal = {name: np.unpackbits(bits, axis=1, count=sizes.get(name, 4)).astype(bool) for name, bits in parts["legal"].items()}
    return Transitions(RTSState(**parts["before"]), Orders(**parts["orders"]), RTSState(**parts["after"]), LegalOrders(**legal))


def main(count: int = 400) -> None:
    """Record the files of `golden/`; one map is the same as another."""
    from rljax.envs.microrts.java.engine import start_java

    java = start_java()
    for map_name in (name for name in MAPS if name != "basesWorkers16x16A"):
        for bots in (False, True):
            transitions = record(java, map_name, count, seed=0, bots=bots)
            save(GOLDEN / f"{map_name}-{'bots' if bots else 'random'}.npz", transitions)
            wrong, illegal = differences(transitions, map_name, QUICK)
            joint = joint_conflicts(transitions)
            print(
                f"{map_name} {'bots' if bots else 'random'}: {len(joint)} transitions, {joint.sum()} with a joint conflict,",
                end=" ",
            )
            print(f"{(wrong & ~joint).sum()} differ, {(wrong & joint).sum()} of the joint ones, {illegal.sum()} legal orders")


if __name__ == "__main__":
    main()
