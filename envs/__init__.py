"""The environments, pure JAX, one file each, and the registry that makes them by id."""

from rljax.envs.acrobot import Acrobot
from rljax.envs.cartpole import CartPole
from rljax.envs.gridworld import GridWorld, optimal_return
from rljax.envs.mountain_car import MountainCar
from rljax.envs.mountain_car_continuous import MountainCarContinuous
from rljax.envs.pendulum import Pendulum
from rljax.envs.registry import env_ids, gymnax_env_ids, make_env, register_env, resolve_env

__all__ = [
    # registry
    "env_ids",
    "gymnax_env_ids",
    "make_env",
    "register_env",
    "resolve_env",
    # environments (the probes are in rljax.envs.probes)
    "Acrobot",
    "CartPole",
    "GridWorld",
    "MountainCar",
    "MountainCarContinuous",
    "Pendulum",
    "optimal_return",
]
