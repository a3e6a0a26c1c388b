"""The environments in pure JAX, one file each, and the registry that makes them by id."""

from rljax.core.games.versus import Versus
from rljax.envs.acrobot import Acrobot
from rljax.envs.cartpole import CartPole
from rljax.envs.command import Command
from rljax.envs.composite import Composite
from rljax.envs.connect_four import ConnectFour
from rljax.envs.draft import Draft, DraftParams, random_draft
from rljax.envs.goal_game import GoalGame
from rljax.envs.gridworld import GridWorld, GridWorldPixels, optimal_return
from rljax.envs.habit_rps import HabitRPS
from rljax.envs.heavy_box import HeavyBox
from rljax.envs.hidden_bit import HiddenBit
from rljax.envs.kuhn_poker import KuhnPoker
from rljax.envs.leduc_poker import LeducPoker
from rljax.envs.lunar_lander import LunarLander
from rljax.envs.lunar_lander_continuous import LunarLanderContinuous
from rljax.envs.matrix_game import MatrixGame
from rljax.envs.maze import Maze
from rljax.envs.microrts.game import MicroRTS
from rljax.envs.mountain_car import MountainCar
from rljax.envs.mountain_car_continuous import MountainCarContinuous
from rljax.envs.number_duel import NumberDuel
from rljax.envs.pendulum import Pendulum
from rljax.envs.pgx_game import PgxGame
from rljax.envs.registry import env_ids, game_ids, gymnax_env_ids, make_env, register_env, resolve_env
from rljax.envs.scouting import Scouting
from rljax.envs.sparse_gridworld import SparseGridWorld
from rljax.envs.target_pick import TargetPick
from rljax.envs.territory import Territory
from rljax.envs.tic_tac_toe import TicTacToe
from rljax.envs.tmaze import TMaze

__all__ = [
    # registry
    "env_ids",
    "game_ids",
    "gymnax_env_ids",
    "make_env",
    "register_env",
    "resolve_env",
    # environments (the probes are in rljax.envs.probes)
    "Acrobot",
    "CartPole",
    "Command",
    "Composite",
    "GridWorld",
    "GridWorldPixels",
    "HiddenBit",
    "LunarLander",
    "LunarLanderContinuous",
    "Maze",
    "MountainCar",
    "MountainCarContinuous",
    "Pendulum",
    "Scouting",
    "SparseGridWorld",
    "TMaze",
    "TargetPick",
    "optimal_return",
    # games of several players
    "ConnectFour",
    "Draft",
    "DraftParams",
    "HabitRPS",
    "HeavyBox",
    "KuhnPoker",
    "LeducPoker",
    "GoalGame",
    "MatrixGame",
    "MicroRTS",
    "NumberDuel",
    "PgxGame",
    "Territory",
    "TicTacToe",
    "random_draft",
    # a game as an environment of one agent
    "Versus",
]
