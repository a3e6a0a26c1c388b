"""Leagues for games of several players: matchmaking, results, ratings and exploitability.

- `game_tree`: the whole tree of a small game; exact values, best responses, exploitability, mixtures
- `matchmaking`: prioritised fictitious self-play (PFSP) and the payoffs that it uses
- `pool`: past players in slots on the device
- `rules`, `league`: AlphaStar's rules and simpler ones: opponents, snapshots and resets
- `config`, `training`: self-play and leagues, trained inside one compiled step
- `exploit`: agents trained to exploit another agent
- `report`: exact values of a league in small games
- `ratings`: Elo, Plackett-Luce, and the equilibrium of a payoff matrix
"""

from rljax.league.exploit import BestResponse, branch, exploited, trained_best_response
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
from rljax.league.league import League
from rljax.league.matchmaking import Payoff, pfsp_probabilities
from rljax.league.pool import Pool
from rljax.league.ratings import elo, nash_mixture, plackett_luce
from rljax.league.report import ExactReport, exact_report
from rljax.league.rules import Rules
from rljax.league.training import tree_policies

__all__ = [
    "BestResponse",
    "ExactReport",
    "League",
    "Rules",
    "branch",
    "exact_report",
    "exploited",
    "trained_best_response",
    "tree_policies",
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
