"""Games for tiny runs, which a configuration names by their path."""

from __future__ import annotations

from rljax.envs import GoalGame, HabitRPS


class HabitGoals(GoalGame):
    """Rock, paper, scissors against players with habits, where the goal of a player is one of the three signs."""

    def __init__(self) -> None:
        super().__init__(HabitRPS(), 3)
