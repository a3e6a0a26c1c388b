"""Games: rollouts of them, and matches of two players."""

from rljax.collect.games.matches import Match, play_match, policy_player
from rljax.collect.games.rollout import (
    GameNoise,
    GameSteps,
    Playing,
    TurnAdvantages,
    game_rollout,
    turn_advantages,
    view_advantages,
)

__all__ = [
    "GameNoise",
    "GameSteps",
    "Match",
    "Playing",
    "TurnAdvantages",
    "game_rollout",
    "play_match",
    "policy_player",
    "view_advantages",
    "turn_advantages",
]
