"""Search in games with full information: Monte Carlo tree search, and training with it (AlphaZero)."""

from rljax.planning.mcts import Search, SearchResult, make_mcts, random_evaluation, search_player
from rljax.planning.nodes import Evaluation

__all__ = ["Evaluation", "Search", "SearchResult", "make_mcts", "random_evaluation", "search_player"]
