"""Games of several players: who plays whom, what came of it, and how good it is.

- `game_tree`: small games written out; exact values, best responses, exploitability, mixtures
- `matchmaking`: prioritised fictitious self-play (PFSP) and the payoffs that it goes by
- `pool`: past players in slots on the device
- `ratings`: Elo, Plackett-Luce, and the equilibrium of a payoff matrix
"""

from rljax.league.game_tree import (
    GameTree,
    best_response,
    exploitability,
    game_tree,
    game_values,
    mixed_policies,
    nash_conv,
    uniform_policies,
)
from rljax.league.matchmaking import Payoff, pfsp_probabilities
from rljax.league.pool import Pool
from rljax.league.ratings import elo, nash_mixture, plackett_luce

__all__ = [
    "GameTree",
    "Payoff",
    "Pool",
    "best_response",
    "elo",
    "exploitability",
    "game_tree",
    "game_values",
    "mixed_policies",
    "nash_conv",
    "nash_mixture",
    "pfsp_probabilities",
    "plackett_luce",
    "uniform_policies",
]
