"""Search in games with full information: Monte Carlo tree search, and training with it (AlphaZero)."""

from rljax.planning.mcts import Evaluation, Search, SearchResult, make_mcts, random_evaluation, search_player

__all__ = ["Evaluation", "Search", "SearchResult", "make_mcts", "random_evaluation", "search_player"]
