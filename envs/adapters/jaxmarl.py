"""JaxMARL (Rutherford et al., 2024), games of several players: `jaxmarl:HeuristicEnemySMAX`, `jaxmarl:MPE_simple_spread_v3`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxmarl
from jaxmarl.environments import CoinGame
from jaxmarl.environments.mpe.simple import SimpleMPE
from jaxmarl.environments.multi_agent_env import MultiAgentEnv
from jaxmarl.environments.overcooked import overcooked_layouts
from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

from rljax.core.contract import overrides
from rljax.core.environments.environment import COMPONENTS
from rljax.core.environments.spaces import Box, Dict, Discrete, as_space
from rljax.core.environments.wrappers import PRIVILEGED
from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.core.games.game import Game
from rljax.envs.adapters import FromSuite, SuiteParams, check_name, like, raw_key

WORLD = "world_state"
OWN = "obs"
SHAPED = "shaped_reward"
FOR_THEMSELVES = (CoinGame,)
"""Games whose players are no team, though their names do not tell."""

MABRAX = ("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3")
"""Games that begin again by themselves unless they are told not to."""

UNLISTED = re.compile(r"storm|LearnedPolicyEnemySMAX$|MPE_simple_(adversary|crypto|push|speaker_listener|tag|world_comm)_")
"""Games that cannot be made by their ids alone: players of different kinds, or seeing no single array, or a policy to give."""

IMPLICIT = {"self", "args", "kwargs"}
"""Arguments of every class."""

CLOCKS = ("time", "step", "t")
"""Names of the number of steps in the states of the games."""


class JaxMarlState(NamedTuple):
    """The game's own state, and what the players saw last: some games cannot tell it from the state alone."""

    env_state: Any
    obs: Any


class JaxMarlGame(FromSuite, Game):
    """A game of JaxMARL whose players have observations and actions of one kind.

    Players are a team if their names differ by a number only (`ally_0`, `ally_1`). A `world_state` becomes the privileged part of
    the observations. Actions have masks where the game has them. Where it shows a `shaped_reward` beside its rewards, as
    Overcooked does, `info["reward_components"]` has both, for value heads; the rewards of the game stay what they are.

    Args:
        env: the game.
        name: its name, for messages and records.

    Raises:
        ConfigError: the spaces of the players differ.
    """

    hides_state = True
    step_is_random = True

    def __init__(self, env: Any, name: str):
        super().__init__(env, name)
        self.agents = tuple(env.agents)
        self.num_players = len(self.agents)
        self._first = jax.eval_shape(lambda key: env.reset(raw_key(key)), jax.random.key(0))
        seen = self._first[0]
        if not isinstance(seen, dict) or not all(hasattr(seen.get(agent), "shape") for agent in self.agents):
            raise ConfigError(f"env = '{name}': expected a dictionary with one array of observations for each player")
        self._spaces: list[tuple[Any, Any]] = [
            (as_space(env.observation_space(a)), as_space(env.action_space(a))) for a in self.agents
        ]
        if len({(x.shape, a.shape, getattr(a, "n", None)) for x, a in self._spaces}) > 1:
            raise ConfigError(f"env = '{name}': its players have spaces of different kinds, expected all of one")
        alone = isinstance(env, FOR_THEMSELVES)
        sides = [str(number) if alone else re.sub(r"_?\d+$", "", str(a)) for number, a in enumerate(self.agents)]
        self._teams = tuple(sorted(set(sides), key=sides.index).index(side) for side in sides)
        self._world: Any = seen.get(WORLD)
        has_masks = type(env).get_avail_actions is not MultiAgentEnv.get_avail_actions
        self._masks = has_masks and isinstance(self._spaces[0][1], Discrete)

    @property
    def teams(self) -> tuple[int, ...]:
        return self._teams

    def observation_space(self, params: SuiteParams) -> Any:
        own = self._first[0][self.agents[0]]
        space = Box(-jnp.inf, jnp.inf, own.shape)
        if self._world is None:
            return space
        return Dict({OWN: space, PRIVILEGED: Box(-jnp.inf, jnp.inf, self._world_shape, self._world.dtype)})

    def action_space(self, params: SuiteParams) -> Any:
        return self._spaces[0][1]

    def action_mask(self, state: Any, params: SuiteParams) -> Any:
        if not self._masks:
            return super().action_mask(state, params)
        legal = self.env.get_avail_actions(state.env_state)
        return jnp.stack([jnp.asarray(legal[a], bool) for a in self.agents])

    def is_truncated(self, state: JaxMarlState, params: SuiteParams) -> jax.Array:
        limit = getattr(self.env, "max_steps", getattr(self.env, "episode_length", None))
        played = _steps_played(state.env_state)
        return jnp.asarray(False if limit is None or played is None else played >= limit)

    def reset_env(self, key: jax.Array, params: SuiteParams) -> tuple[Any, JaxMarlState]:
        obs, state = self.env.reset(raw_key(key))
        seen = self._seen(obs)
        return seen, JaxMarlState(state, seen)

    def step_env(
        self, key: jax.Array, state: JaxMarlState, action: Any, params: SuiteParams
    ) -> tuple[Any, JaxMarlState, jax.Array, jax.Array, dict[str, Any]]:
        actions = {a: action[number] for number, a in enumerate(self.agents)}
        obs, after, rewards, dones, extra = self.env.step_env(raw_key(key), state.env_state, actions)
        new = JaxMarlState(like(after, state.env_state), self._seen(obs))
        reward = self._of_players(rewards)
        info = {COMPONENTS: {"reward": reward, SHAPED: self._of_players(extra[SHAPED])}} if SHAPED in extra else {}
        # JaxMARL does not tell a game that is over from one whose time is: at the limit, it counts as the latter.
        over = jnp.asarray(dones["__all__"], bool) & ~self.is_truncated(new, params)
        return new.obs, new, reward, over, info

    def observe(self, state: JaxMarlState, params: SuiteParams) -> Any:
        return state.obs

    def _of_players(self, rewards: Any) -> jax.Array:
        """Return the rewards of all players, f32 `[P]`."""
        return jnp.stack([jnp.float32(rewards[a]).reshape(()) for a in self.agents])

    @property
    def _world_shape(self) -> tuple[int, ...]:
        """Shape of what a critic sees: some games have one state of the world, others one for each player."""
        return self._world.shape[1:] if self._one_each else self._world.shape

    @property
    def _one_each(self) -> bool:
        return self._world.ndim == 2 and self._world.shape[0] == self.num_players

    def _seen(self, obs: Any) -> Any:
        # f32, also for the layers of symbols that some games have as uint8: these are no pixels.
        own = jnp.stack([jnp.float32(obs[a]) for a in self.agents])
        if self._world is None:
            return own
        world = obs[WORLD] if self._one_each else jnp.broadcast_to(obs[WORLD], (self.num_players, *self._world.shape))
        return {OWN: own, PRIVILEGED: world}


def _steps_played(state: Any) -> jax.Array | None:
    """Return the number of steps in a state, or in the game's own state within it (with scripted enemies); None without one."""
    found = [getattr(part, clock) for part in (state, getattr(state, "state", None)) for clock in CLOCKS if hasattr(part, clock)]
    if found:
        return found[0]
    info = getattr(state, "info", None)
    return info.get("steps") if isinstance(info, dict) else None  # Brax's


def ids() -> list[str]:
    """Return the games that can be made, some of which ask for another package first."""
    return [name for name in sorted(jaxmarl.registered_envs) if not UNLISTED.match(name)]


def factory(name: str) -> Callable[..., Any]:
    """Return the function that builds a game. Arguments: `scenario` of SMAX, such as "3m", and `options`, a table of arguments of
    JaxMARL's class; the `layout` of Overcooked is a name.
    """
    if name not in jaxmarl.registered_envs:
        check_name("jaxmarl", name, ids())

    def named(argument: str, value: str, known: Mapping[str, Any]) -> Any:
        if value not in known:
            raise ConfigError(f"env = 'jaxmarl:{name}': {argument} = {value!r}: {did_you_mean(value, known)}")
        return known[value]

    def build(scenario: str = "", options: Any = None) -> JaxMarlGame:
        if options is not None and not isinstance(options, Mapping):
            raise ConfigError(f"env = 'jaxmarl:{name}': options = {shown(options)}: expected a table of arguments")
        given = dict(options or {})
        if scenario:
            given["scenario"] = named("scenario", scenario, MAP_NAME_TO_SCENARIO)
        if name == "overcooked" and isinstance(given.get("layout"), str):
            given["layout"] = named("layout", given["layout"], overcooked_layouts)
        given |= {"auto_reset": False} if name in MABRAX else {}
        game = jaxmarl.make(name, **given)
        if isinstance(game, SimpleMPE):  # which takes any argument, and reads those of its classes
            makers = [vars(kind).get("__init__", object) for kind in type(game).__mro__]
            taken = {key for maker in makers for key in inspect.signature(maker).parameters}
            for key in given.keys() - (taken - IMPLICIT):
                raise ConfigError(f"env = 'jaxmarl:{name}': has no argument '{key}': {did_you_mean(key, taken - IMPLICIT)}")
        return JaxMarlGame(game, f"jaxmarl:{name}")

    return build


def adapt(env: Any) -> JaxMarlGame:
    """Take a game that JaxMARL has made.

    Raises:
        ConfigError: it is a wrapper, or a game, whose changes to `step` would be passed by.
    """
    name = type(env).__name__
    if not isinstance(env, MultiAgentEnv):
        raise ConfigError(
            f"env: {name} is a wrapper of JaxMARL, whose step rljax never calls: give the game without it, "
            "or a subclass of its class that overrides step_env"
        )
    if overrides(env, "step", "step_env"):
        raise ConfigError(f"env: {name} defines step, which rljax never calls: override step_env")
    return JaxMarlGame(env, f"jaxmarl:{name}")
