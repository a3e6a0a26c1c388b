"""Games: rollouts of them, their streams and advantages, and matches of two or more players."""

from rljax.collect.games.matches import Games, Match, play_games, play_match, policy_player
from rljax.collect.games.rollout import GameNoise, GameSteps, Playing, game_rollout
from rljax.collect.games.turns import SeatStreams, Transitions, TurnAdvantages, seat_streams, transitions, turn_advantages
from rljax.moved import moved_names

__all__ = [
    "GameNoise",
    "GameSteps",
    "Games",
    "Match",
    "Playing",
    "SeatStreams",
    "Transitions",
    "TurnAdvantages",
    "game_rollout",
    "play_games",
    "play_match",
    "policy_player",
    "seat_streams",
    "transitions",
    "turn_advantages",
]


__getattr__ = moved_names(__name__)
