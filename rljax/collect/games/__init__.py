"""Games: rollouts of them, their streams and advantages, and matches of two players."""

from rljax.collect.games.matches import Match, play_match, policy_player
from rljax.collect.games.rollout import GameNoise, GameSteps, Playing, game_rollout
from rljax.collect.games.turns import SeatStreams, Transitions, TurnAdvantages, seat_streams, transitions, turn_advantages
from rljax.moved import moved_names

__all__ = [
    "GameNoise",
    "GameSteps",
    "Match",
    "Playing",
    "SeatStreams",
    "Transitions",
    "TurnAdvantages",
    "game_rollout",
    "play_match",
    "policy_player",
    "seat_streams",
    "transitions",
    "turn_advantages",
]


__getattr__ = moved_names(__name__)
