"""`check_environment`: what it says of environments and games that are wrong, in one line each."""

from __future__ import annotations

import itertools
import random
import re
import warnings
from typing import Any

import gymnasium.spaces
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax.collect import environments
from rljax.collect.environments import try_environment
from rljax.core import memory
from rljax.core.contract import KNOWN, check_contract, is_known
from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from rljax.core.environments.wrappers import TimeLimit, Wrapper
from rljax.core.errors import ConfigError, RljaxWarning
from rljax.core.games.game import RememberingScript
from rljax.core.games.game_wrappers import GameTimeLimit
from rljax.envs import make_env

GENERATOR = np.random.default_rng(0)
NUMBERS = ["a", "b", "c"]


@struct.dataclass
class WalkState:
    position: jax.Array
    time: jax.Array


class Walk(rljax.Environment):
    """A walk of five steps on a line; what is wrong with it a subclass says."""

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        state = WalkState(jax.random.uniform(key), jnp.zeros((), jnp.int32))
        return self.observe(state), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        state = WalkState(state.position * 0.5, state.time + 1)
        return self.observe(state), state, self.reward(state), state.time >= 5, self.info(state)

    def observe(self, state: Any) -> Any:
        return jnp.stack([state.position, 1.0 - state.position, jnp.float32(0)])

    def reward(self, state: Any) -> Any:
        return 1.0

    def info(self, state: Any) -> Any:
        return {}

    def observation_space(self, params: Any) -> Any:
        return Box(0.0, 1.0, (3,))

    def action_space(self, params: Any) -> Any:
        return Discrete(2)


class Pass(rljax.Game):
    """Two players take turns, six in all; what is wrong with it a subclass says."""

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        state = WalkState(jnp.zeros(()), jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        state = state.replace(time=state.time + 1)
        return self.observe(state, params), state, jnp.zeros(2), state.time >= 6, {}

    def observe(self, state: Any, params: Any) -> Any:
        return jnp.zeros((2, 3))

    def to_move(self, state: Any) -> Any:
        return jnp.arange(2) == state.time % 2

    def observation_space(self, params: Any) -> Any:
        return Box(0.0, 1.0, (3,))

    def action_space(self, params: Any) -> Any:
        return Discrete(2)


def raising(*_: Any) -> Any:
    raise RuntimeError("oh\nno")


def stepping(base: type, **changes: Any) -> Any:
    """`step_env` of a class with parts of its result replaced."""
    names = ("obs", "state", "reward", "terminated", "info")

    def step_env(self: Any, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        result = dict(zip(names, base.step_env(self, key, state, action, params), strict=True))  # type: ignore[attr-defined]
        return tuple((result | changes).values())

    return step_env


def from_host(*shape: int, once: bool = True) -> Any:
    """Observations from NumPy's own random numbers, at every step."""
    generator = np.random.default_rng(0)

    def observe(self: Any, state: Any) -> Any:
        what = jax.ShapeDtypeStruct(shape, jnp.float32)
        method = None if once else "sequential"
        return jax.pure_callback(lambda _: generator.random(shape, np.float32), what, state.time, vmap_method=method)

    return observe


def listed(*positions: float, chances: Any = None) -> Any:
    """`initial_states` with these positions, by default all equally likely."""

    def initial_states(*_: Any) -> Any:
        count = len(positions)
        states = WalkState(jnp.array(positions), jnp.zeros(count, jnp.int32))
        return states, jnp.full(count, 1 / count) if chances is None else jnp.array(chances)

    return initial_states


# What it is, the class, what is overridden, and the line after "environment Wrong: " or "game Wrong: ".
TRACED: list[tuple[str, type, dict[str, Any], str]] = [
    ("dict for a Box", Walk, {"observe": lambda s, _: dict.fromkeys(NUMBERS, jnp.zeros(()))},
     "observation a dictionary with the keys ['a', 'b', 'c'] does not fit observation_space of shape (3,): "
     "expected float32[3]"),
    ("array for a Dict", Walk, {"observation_space": lambda *_: Dict({"a": Box(0.0, 1.0, (3,))})},
     "observation is float32[3], but observation_space a Dict of ['a']"),
    ("array for a Tuple", Walk, {"observation_space": lambda *_: Tuple((Box(0.0, 1.0, (3,)),))},
     "observation is float32[3], but observation_space a Tuple of 1"),
    ("float32 for uint8", Walk, {"observation_space": lambda *_: Box(0, 255, (3,), jnp.uint8)},
     "observation float32[3] does not fit observation_space of dtype uint8: expected uint8[3]"),
    ("float for Discrete", Walk, {"observation_space": lambda *_: Discrete(3), "observe": lambda s, state: state.position},
     "observation float32[] does not fit observation_space of dtype int32: expected int32[]"),
    ("empty observation", Walk, {"observation_space": lambda *_: Dict({}), "observe": lambda *_: {}},
     "the observation is empty, expected at least one number"),
    ("Box without entries", Walk, {"observation_space": lambda *_: Box(0.0, 1.0, (0,)), "observe": lambda *_: jnp.zeros(0)},
     "observation_space is a Box of shape (0,), which has no entries"),
    ("action Box without entries", Walk, {"action_space": lambda *_: Box(-1.0, 1.0, (0,))},
     "action_space is a Box of shape (0,), which has no entries"),
    ("action Box of whole numbers", Walk, {"action_space": lambda *_: Box(0, 3, (2,), jnp.int32)},
     "action_space is a Box of int32, expected one of floats; for whole numbers use Discrete or MultiDiscrete"),
    ("actions that count from 1", Walk, {"action_space": lambda *_: gymnasium.spaces.Discrete(3, start=1)},
     "action_space: Discrete: start = 1, expected elements that count from 0"),
    ("Box beyond i32", Walk, {"observation_space": lambda *_: Box(0.0, 1.0, (2**20, 2**12))},
     "observation_space is a Box of shape (1048576, 4096), expected at most 2,147,483,647 entries"),
    ("Box upside down", Walk, {"action_space": lambda *_: Box(1.0, -1.0, (2,))},
     "action_space: low = 1 of the Box is above high = -1"),
    ("one bound upside down", Walk, {"observation_space": lambda *_: Box(np.array([0, 0, 2.0]), np.ones(3), (3,))},
     "observation_space: low = 2 of the Box is above high = 1"),
    ("NaN bound", Walk, {"observation_space": lambda *_: Box(0.0, jnp.nan, (3,))}, "observation_space: high of the Box is NaN"),
    ("bound of another shape", Walk, {"observation_space": lambda *_: Box(jnp.zeros(2), 1.0, (3,))},
     "observation_space: low has shape (2,), the Box (3,)"),
    ("Discrete(0)", Walk, {"action_space": lambda *_: Discrete(0)}, "action_space: Discrete(n=0): n must be at least 1"),
    ("Discrete(1.5)", Walk, {"action_space": lambda *_: Discrete(1.5)},  # type: ignore[arg-type]
     "action_space is Discrete(1.5), expected a whole number of elements"),
    ("space that raises", Walk, {"action_space": raising}, "action_space raised RuntimeError: oh"),
    ("no space", Walk, {"action_space": lambda *_: 3},
     "action_space: 3 is not a space: expected Discrete, MultiDiscrete, Box, Dict or Tuple"),
    ("mask as a list", Walk, {"action_mask": lambda *_: [True, False]},
     "action_mask is a list of 2, expected bool[2]; make an array of it with jnp.array"),
    ("reset that raises", Walk, {"reset_env": raising}, "reset_env raised RuntimeError: oh"),
    ("callback not of batches", Walk, {"observe": from_host(3)}, "step_env raised "),
    ("metrics as a number", Walk, {"info": lambda *_: {"metrics": 1.0}},
     "info['metrics'] is float32[], expected a dictionary of scalars"),
    ("metric of a shape", Walk, {"info": lambda *_: {"metrics": {"won": jnp.zeros(2)}}},
     "info['metrics']['won'] is float32[2], expected a scalar such as float32[]"),
    ("one result", Pass, {"step_env": stepping(Pass, info={"result": jnp.zeros(())})},
     "info['result'] is float32[], expected one for each player, float32[2]"),
    ("no result", Pass, {"step_env": stepping(Pass, info={"result": None})},
     "info['result'] is None, expected one for each player, float32[2]"),
    ("counted result", Pass, {"step_env": stepping(Pass, info={"result": jnp.zeros(2, jnp.int32)})},
     "info['result'] is int32[2], expected one for each player, float32[2]"),
    ("scalar reward", Pass, {"step_env": stepping(Pass, reward=0.0)},
     "step_env returned a reward float32[], expected one for each player, float32[2]"),
    ("mask of one player", Pass, {"action_mask": lambda *_: jnp.ones(2, bool)},
     "action_mask is bool[2], expected bool[2,2], a row for each player"),
    ("no mask", Pass, {"action_mask": lambda *_: None}, "action_mask is None, expected bool[2,2], a row for each player"),
    ("no axis of players", Pass, {"observe": lambda *_: jnp.zeros(3)},
     "observation float32[3] does not fit observation_space of shape (3,): expected float32[2,3], whose first axis is that "
     "of the 2 players"),
    ("to_move a number, of which the mask is made", Pass,
     {"to_move": lambda _, s: s.time % 2, "action_mask": lambda self, s, p: jnp.ones((2, 2), bool) | ~self.to_move(s)[:, None]},
     "to_move is int32[], expected one flag for each player, bool[2]"),
    ("a flag that is text", Pass, {"zero_sum": "yes"}, "zero_sum = 'yes', expected True, False or None"),
    ("a flag that is a method", Pass, {"hides_state": raising}, "hides_state = a method, expected True or False"),
    ("opening moves below 0", Pass, {"opening_moves": -1}, "opening_moves = -1, expected a whole number of at least 0"),
    ("half an opening move", Pass, {"opening_moves": 2.5}, "opening_moves = 2.5, expected a whole number of at least 0"),
    ("components that are none", Pass, {"step_env": stepping(Pass, info={"reward_components": jnp.zeros(2)})},
     "info['reward_components'] is float32[2], expected a dictionary of rewards"),
    ("components of no player", Pass, {"step_env": stepping(Pass, info={"reward_components": {"coins": jnp.zeros(())}})},
     "info['reward_components']['coins'] is float32[], expected one for each player, float32[2]"),
    ("components of an environment", Walk, {"step_env": stepping(Walk, info={"reward_components": {"coins": jnp.zeros(2)}})},
     "info['reward_components']['coins'] is float32[2], expected float32[]"),
    ("NumPy in a step", Pass, {"observe": lambda _, state, p: np.ones((2, 3)) * np.asarray(state.time)},
     "reset_env gives a traced value to NumPy; use jax.numpy"),
    ("Gymnasium's results of a game", Pass,
     {"step_env": lambda self, k, s, a, p: (jnp.zeros((2, 3)), jnp.zeros(2), jnp.zeros((), bool), jnp.zeros((), bool), {})},
     "step_env returned Gymnasium's (obs, reward, terminated, truncated, info), "
     "expected 5: (obs, state, reward, terminated, info)"),
    ("to_move a number", Pass, {"to_move": lambda _, state: state.time % 2},
     "to_move is int32[], expected one flag for each player, bool[2]"),
    ("end of each player", Pass, {"step_env": stepping(Pass, terminated=jnp.zeros(2, bool))},
     "the terminated flag is bool[2], expected bool[], of the whole game"),
    ("teams of others", Pass, {"teams": (0, 0, 1)},
     "teams = (0, 0, 1), expected the team of each of 2 players, counted from 0, such as (0, 1)"),
    ("teams not from 0", Pass, {"teams": (1, 2)},
     "teams = (1, 2), expected the team of each of 2 players, counted from 0, such as (0, 1)"),
    ("no players", Pass, {"num_players": 0}, "num_players = 0, expected a whole number of at least 2"),
    ("teams with a gap", Pass, {"teams": (0, 2)},
     "teams = (0, 2), expected the team of each of 2 players, counted from 0, such as (0, 1)"),
    ("roles of some", Pass, {"roles": (0,)},
     "roles = (0,), expected the role of each of 2 players, counted from 0, such as (0, 0)"),
    ("roles by name", Pass, {"roles": ("hunter", "prey")},
     "roles = ('hunter', 'prey'), expected the role of each of 2 players, counted from 0, such as (0, 0)"),
    ("actions of a kind without heads", Pass, {"action_space": lambda *_: Tuple((Discrete(2), Discrete(2)))},
     "action_space is Tuple, expected a Box, or heads that are Discrete, for one player"),
    ("mask of too few heads", Pass,
     {"action_space": lambda *_: MultiDiscrete((2, 3)), "action_mask": lambda *_: jnp.ones((2, 4), bool)},
     "action_mask is bool[2,4], expected bool[2,5], or bool[2,5,5] for pairs of heads, a row for each player"),
    ("mask of a Box", Pass, {"action_space": lambda *_: Box(0.0, 1.0, (2,)), "action_mask": lambda *_: jnp.ones((2, 2), bool)},
     "action_mask needs an action space that is Discrete, MultiDiscrete or a Dict of Discrete, not Box"),
    ("a mask without players", Pass,
     {"action_space": lambda *_: MultiDiscrete((2, 2)), "action_mask": lambda *_: jnp.ones(4, bool)},
     "action_mask is bool[4], expected bool[2,4], or bool[2,4,4] for pairs of heads, a row for each player"),
    ("names of too few actions", Pass, {"action_names": lambda *_: ("stay",)},
     "action_names returned 1 names, expected 2, one for each action of each head"),
    ("one name for two heads", Pass,
     {"action_space": lambda *_: MultiDiscrete((2, 2)), "head_names": lambda *_: ("move",)},
     "head_names returned 1 names, expected 2, one for each head"),
    ("a name for each letter", Pass, {"action_names": lambda *_: "ab"},
     "action_names returned a str, expected a tuple of strings, one for each action of each head"),
    ("names that raise", Pass, {"action_names": raising}, "action_names raised RuntimeError: oh"),
]  # fmt: skip

PLAYED: list[tuple[str, type, dict[str, Any], str]] = [
    ("above its space", Walk, {"observe": lambda _, s: jnp.stack([0.0, 0.0, 2.0 * s.time])},
     r"observation\[2\] was 2 in 128 steps of random play, but observation_space says 0 to 1 and no NaN"),
    ("NaN", Walk, {"observe": lambda _, s: jnp.full(3, jnp.nan)}, r"observation\[0\] was nan at a reset, but .*"),
    ("infinite in an open space", Walk,
     {"observe": lambda _, s: jnp.full(3, jnp.inf), "observation_space": lambda *_: Box(0.0, jnp.inf, (3,))},
     r"observation\[0\] was inf at a reset, but .*"),
    ("Discrete too high", Walk, {"observe": lambda _, s: s.time, "observation_space": lambda *_: Discrete(3)},
     r"observation was 3 in 128 steps of random play, but observation_space says 0 to 2 and no NaN"),
    ("reward not finite", Walk, {"reward": lambda _, s: jnp.log(3.0 - s.time)},
     r"step_env returned a reward of (nan|-inf) in 128 steps of random play, expected finite ones"),
    ("nothing legal", Walk, {"action_mask": lambda _, s, p: jnp.arange(2) > s.time},
     r"action_mask allows no action after 1 steps of random play: expected at least one"),
    ("second head stuck", Walk, {"action_space": lambda *_: MultiDiscrete((2, 2)), "action_mask": lambda *_: jnp.arange(4) < 2},
     r"action_mask allows no action after 0 steps of random play, head 1: expected at least one"),
    ("head stuck by another", Walk,
     {"action_space": lambda *_: MultiDiscrete((2, 2)), "action_mask": lambda *_: jnp.eye(4, dtype=bool)},
     r"action_mask allows no action after 0 steps of random play, head 1: expected at least one"),
    ("truncated at once", Walk, {"is_truncated": lambda *_: jnp.ones((), bool)},
     r"is_truncated is true of a state that reset_env returned: the episode would end as it begins"),
    ("clock that stands", Walk, {"step_env": lambda self, k, s, a, p: (self.observe(s), s, 1.0, False, {})},
     r"state.time does not grow in step_env: the time limit, max_steps_in_episode, depends on it"),
    ("Python's random numbers", Walk, {"reward": lambda *_: random.random()},
     r"step_env is another program each time it is traced: .*"),
    ("NumPy's random arrays", Walk, {"reward": lambda *_: jnp.asarray(GENERATOR.random(100)).sum()},
     r"step_env is another program each time it is traced: .*"),
    ("counts in self", Walk, {"numbers": itertools.count(), "reward": lambda self, s: 1.0 * next(self.numbers)},
     r"step_env is another program each time it is traced: .*"),
    ("draws on the host", Walk, {"observe": from_host(3, once=False)}, r"the same keys gave different results: .*"),
    ("host that raises", Walk,
     {"reward": lambda _, s: jax.pure_callback(raising, jax.ShapeDtypeStruct((), jnp.float32), s.time, vmap_method="sequential")},
     r"random play raised RuntimeError: oh"),
    ("a result that is NaN", Pass,
     {"step_env": lambda self, k, s, a, p: (*(out := Pass.step_env(self, k, s, a, p))[:4], {"result": out[2] * jnp.nan})},
     r"info\['result'\] was nan at the end of a game, expected finite ones"),
    ("scripted players in a list", Pass, {"scripted": ["a"]},
     "scripted is a list of 1, expected a dictionary of players by name"),
    ("nobody moves", Pass, {"to_move": lambda _, s: jnp.arange(2) == s.time},
     r"to_move says nobody in 128 steps of random play, in a game that is not over: expected at least one player"),
    ("both move", Pass, {"to_move": lambda _, s: jnp.arange(2) <= s.time},
     r"to_move has 2 players at once, but turn_gap = 1 says one at each step"),
    ("turn gap too small", Pass, {"to_move": lambda _, s: jnp.arange(2) == (s.time % 3 > 0)},
     r"turn_gap = 1, but 2 steps of others lay between two moves of a player"),
    ("all are said to move", Pass, {"all_move": True, "turn_gap": 0},
     r"all_move = True, but to_move has only 1 of 2 players in 128 steps of random play"),
    ("rewards said to be zero-sum", Pass, {"zero_sum": True, "step_env": stepping(Pass, reward=jnp.array([1.0, -0.5]))},
     r"zero_sum = True, but a step of random play paid 1 and -0.5 to the two sides"),
    ("mover without moves", Pass, {"action_mask": lambda _, s, p: jnp.arange(2)[:, None] < jnp.ones(2)},
     r"action_mask of player 1, who is to move, allows no action after 1 steps of random play: expected at least one"),
    ("draws and does not say so", Pass,
     {"step_env": lambda self, k, s, a, p: Pass.step_env(self, k, s.replace(position=jax.random.uniform(k)), a, p)},
     r"step_env draws from its key, which searches must know: define chance and step_outcome, or set step_is_random = True"),
    ("chance without its steps", Pass, {"chance": lambda *_: jnp.array([0.5, 0.5])},
     "defines chance without step_outcome, which takes the step of a given outcome"),
    ("chance that is no distribution", Pass,
     {"chance": lambda *_: jnp.array([0.5, 0.4]), "step_outcome": lambda self, s, a, o, p: Pass.step_env(self, None, s, a, p)},
     r"chance returned probabilities that do not add up to 1 or are below 0 \(smallest 0.4, sum off by 0.1\)"),
    ("plays otherwise than chance says", Pass,
     {"chance": lambda *_: jnp.array([0.5, 0.5]),
      "step_outcome": lambda self, s, a, o, p: Pass.step_env(self, None, s.replace(position=0.5 + 0.5 * o), a, p)},
     r"a step of step_env is none of step_outcome's with a probability above 0: play and search would differ"),
    ("another view of a state", Pass, {"step_env": stepping(Pass, obs=jnp.ones((2, 3)))},
     "observe gives another observation of a state than step_env returned with it, in 128 steps of random play"),
    ("another view of a start", Pass,
     {"reset_env": lambda self, k, p: (jnp.ones((2, 3)), Pass.reset_env(self, k, p)[1])},
     "observe gives another observation of a state than reset_env returned with it, in 128 steps of random play"),
    ("start that is not listed", Pass, {"initial_states": listed(1.0, 0.5)},
     "reset_env returned a state that equals none of initial_states in all fields"),
    ("impossible start", Pass, {"initial_states": listed(0.0, 0.5, chances=(0.0, 1.0))},
     "reset_env returned a state that has the probability 0 in initial_states"),
    ("starts that are no distribution", Pass, {"initial_states": listed(0.0, 0.5, chances=(0.5, 0.4))},
     r"initial_states returned probabilities that do not add up to 1 or are below 0 \(smallest 0.4, sum off by 0.1\)"),
    ("states without probabilities", Pass, {"initial_states": lambda *_: listed(0.0)()[0]},
     r"initial_states returned a WalkState, expected \(states \[N, ...\], probabilities float32\[N\]\)"),
    ("states of another kind", Pass, {"initial_states": lambda *_: (jnp.zeros(1), jnp.ones(1))},
     r"initial_states returned state of structure .*, but reset_env .*"),
    ("one state for two", Pass, {"initial_states": lambda *_: (listed(0.0)()[0], jnp.full(2, 0.5))},
     "initial_states returned 2 probabilities, and states without this first axis"),
    ("starts that raise", Pass, {"initial_states": raising}, "initial_states raised RuntimeError: oh"),
    ("text that raises", Pass, {"text": raising}, r"text raised RuntimeError: oh"),
    ("text that is none", Pass, {"text": lambda *_: None}, r"text returned None, expected a string"),
]  # fmt: skip


def wrong(base: type, overridden: dict[str, Any]) -> Any:
    return type("Wrong", (base,), overridden)()


def line(env: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        rljax.check_environment(env)
    text = str(caught.value)
    title = "game" if isinstance(env, rljax.Game) else "environment"
    assert text.startswith(f"{title} Wrong: ")
    assert "\n" not in text
    return text.removeprefix(f"{title} Wrong: ")


@pytest.mark.parametrize(("base", "overridden", "expected"), [case[1:] for case in TRACED], ids=[case[0] for case in TRACED])
def test_what_tracing_shows_is_one_line(base: type, overridden: dict[str, Any], expected: str) -> None:
    env = wrong(base, overridden)
    found = line(env)
    assert found == expected or (expected.endswith(" ") and found.startswith(expected))
    # Training says the same, before anything compiles.
    kind = rljax.SelfPlayConfig if isinstance(env, rljax.Game) else rljax.PPOConfig
    with pytest.raises(ConfigError, match=re.escape(expected)):
        rljax.make_agent(kind(env=env))


@pytest.mark.slow
@pytest.mark.parametrize(("base", "overridden", "expected"), [case[1:] for case in PLAYED], ids=[case[0] for case in PLAYED])
def test_what_random_play_shows_is_one_line(base: type, overridden: dict[str, Any], expected: str) -> None:
    assert re.fullmatch(expected, line(wrong(base, overridden)))


def nibbling(**players: Any) -> Any:
    """Players take one or two of four chips in turns, and each of the `players` is scripted."""
    overridden = {
        "action_mask": lambda self, s, p: jnp.stack([s.position < 4, s.position < 3]) | ~self.to_move(s)[:, None],
        "step_env": lambda self, k, s, a, p: nibble(self, s, a),
        "reset_env": lambda self, k, p: (jnp.zeros((2, 3)), WalkState(jnp.int32(0), jnp.int32(0))),
        "scripted": property(lambda _: players),
    }
    return wrong(Pass, overridden)


def nibble(game: Any, state: Any, action: Any) -> Any:
    taken = jnp.minimum(state.position + action[state.time % 2] + 1, 4)
    return jnp.zeros((2, 3)), WalkState(taken, state.time + 1), jnp.zeros(2), taken >= 4, {}


def by_heart(key: jax.Array, state: Any, params: Any, carry: Any) -> Any:
    """A player who counts its moves and takes that many chips."""
    move = jnp.zeros(2, jnp.int32) if carry is None else carry
    return move, move + 1


SCRIPTS: dict[str, tuple[Any, str]] = {
    "one action": (lambda *_: jnp.int32(0), r"scripted\['x'\]: returned an action of shape \(\), expected \(2,\)"),
    "floats": (lambda *_: jnp.zeros(2), r"scripted\['x'\] returned an action float32\[2\], expected int32\[2\]"),
    "outside the space": (
        lambda *_: jnp.full(2, 7),
        r"scripted\['x'\] chose 7 as player 0 after 0 steps of random play, which is not legal there",
    ),
    "against the mask": (
        lambda *_: jnp.ones(2, jnp.int32),
        r"scripted\['x'\] chose 1 as player \d after [1-9]\d* steps of random play, which is not legal there",
    ),
    "by heart": (
        RememberingScript(by_heart),
        r"scripted\['x'\] chose [12] as player \d after [1-9]\d* steps of random play, which is not legal there",
    ),
    "raises": (raising, r"scripted\['x'\] raised RuntimeError: oh"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_scripted_player_that_breaks_the_rules_is_one_line(kind: str) -> None:
    player, expected = SCRIPTS[kind]
    assert re.fullmatch(expected, line(nibbling(x=player)))


@pytest.mark.slow
def test_scripted_players_that_keep_the_rules_are_accepted() -> None:
    def most(key: jax.Array, state: Any, params: Any) -> jax.Array:
        return jnp.where(state.position < 3, jnp.ones(2, jnp.int32), 0)

    rljax.check_environment(nibbling(one=lambda *_: jnp.zeros(2, jnp.int32), most=most))


@pytest.mark.slow
def test_initial_states_that_fit_are_accepted() -> None:
    rljax.check_environment(wrong(Pass, {"initial_states": listed(0.5, 0.0, chances=(0.25, 0.75))}))


@pytest.mark.parametrize("base", [Walk, Pass])
def test_what_is_right_is_accepted(base: type) -> None:
    """Also numbers of Python for a reward and an end, and metrics of any number type."""
    overridden = {"info": lambda _, s: {"metrics": {"steps": s.time, "far": s.position > 0.1, "x": 0.5}}} if base is Walk else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rljax.check_environment(wrong(base, overridden), key=jax.random.key(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"scale_rewards": 2.0, "clip_rewards": 1.5, "end_on_nan": True}, {"action_repeat": 2, "time_limit": 2}]
)
@pytest.mark.parametrize("number", [-1, jnp.int32(-1), np.int64(-1)])
def test_a_reward_may_be_a_whole_number(changes: dict[str, Any], number: Any) -> None:
    whole, floats = (wrong(Walk, {"reward": lambda *_, x=x: x}) for x in (number, -1.0))
    rljax.check_environment(whole)
    config = {"num_envs": 2, "num_steps": 8, "num_minibatches": 1, "total_timesteps": 32, **changes}
    found, expected = (
        jax.jit(rljax.make_train(rljax.PPOConfig(env=env, network={"hidden": [4]}, **config)))(jax.random.key(0)).metrics
        for env in (whole, floats)
    )
    assert float(found["episode/return"][-1]) == (-4.0 if "time_limit" in changes else -5.0)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_components_that_nobody_uses_may_be_whole_numbers() -> None:
    info = {"reward_components": {"coins": jnp.zeros((), jnp.int32), "won": jnp.zeros((), bool)}}
    rljax.check_environment(wrong(Walk, {"step_env": stepping(Walk, info=info)}))


def test_a_cosine_may_be_off_by_a_rounding() -> None:
    rljax.check_environment(wrong(Walk, {"observe": lambda _, s: jnp.full(3, 1.0 + 2e-7)}))


def test_a_head_that_depends_on_another_is_played_legally() -> None:
    """Of pairs: the second head must repeat the first; what breaks it ends in NaN."""

    def step(self: Any, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        obs, state, _, over, info = Walk.step_env(self, key, state, action, params)
        return obs, state, jnp.where(action[0] == action[1], 1.0, jnp.nan), over, info

    pairs = jnp.array([[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]], bool)
    space = {"action_space": lambda *_: MultiDiscrete((2, 2)), "step_env": step}
    rljax.check_environment(wrong(Walk, {**space, "action_mask": lambda *_: pairs}))
    assert "nan" in line(wrong(Walk, space))


@pytest.mark.parametrize("bad", ["name", "default_params", "__repr__"])
def test_properties_that_raise_are_one_line(bad: str) -> None:
    env = wrong(Walk, {bad: raising if bad == "__repr__" else property(raising)})
    if bad == "__repr__":
        rljax.check_environment(env)
        rljax.make_agent(rljax.PPOConfig(env=env))
        with pytest.raises(ConfigError, match="num_envs = 0"):
            rljax.PPOConfig(env=env, num_envs=0)
        return
    for call in (lambda: rljax.check_environment(env), lambda: rljax.make_agent(rljax.PPOConfig(env=env))):
        with pytest.raises(ConfigError, match=f"^environment Wrong: {bad} raised RuntimeError: oh$"):
            call()


@pytest.mark.parametrize("bad", ["best_is_random", "reward_threshold", "outside_jax"])
def test_optional_properties_that_raise_are_one_line(bad: str) -> None:
    with pytest.raises(ConfigError, match=f"^environment Wrong: {bad} raised RuntimeError: oh$"):
        rljax.make_agent(rljax.PPOConfig(env=wrong(Walk, {bad: property(raising)})))


def test_a_name_that_is_no_string_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^environment Wrong: name is a int, expected a string$"):
        rljax.make_agent(rljax.PPOConfig(env=wrong(Walk, {"name": 3})))


def test_an_enormous_observation_is_one_line() -> None:
    shape = (2**30, 1)
    env = wrong(Walk, {"observation_space": lambda *_: Box(0.0, 1.0, shape, jnp.float32), "observe": lambda *_: jnp.zeros(shape)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "device_memory", lambda: 2**31)
        with pytest.raises(ConfigError, match=r"one observation needs 4.3 GB, this device has 2.1 GB: make it smaller"):
            rljax.make_agent(rljax.PPOConfig(env=env))


@pytest.mark.slow
def test_training_tries_an_environment_of_the_users_once(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Any] = []
    check_play = environments.check_play
    monkeypatch.setattr(environments, "check_play", lambda env, params: played.append(env) or check_play(env, params))
    monkeypatch.setattr(environments, "_TRIED", {})
    env = type("Walk", (Walk,), {"__module__": "mine"})()
    small = {"num_envs": 2, "num_steps": 4, "num_minibatches": 1, "num_epochs": 1, "total_timesteps": 8}
    config = rljax.PPOConfig(env=env, **small)
    # Under a trace nobody plays, and that counts for nothing.
    jax.eval_shape(lambda rate, key: rljax.make_train(config.replace(learning_rate=rate))(key), jnp.ones(()), jax.random.key(0))
    assert not played
    for _ in range(2):
        rljax.make_train(config)
    assert played == [env]
    rljax.make_train(rljax.PPOConfig(**small))
    assert played == [env]
    nan = type("Wrong", (Walk,), {"__module__": "mine", "reward": lambda *_: jnp.nan})()
    for call in (rljax.make_train, rljax.fit, try_environment):
        with pytest.raises(ConfigError, match=r"^environment Wrong: step_env returned a reward of nan"):
            call(config.replace(env=nan))
    with pytest.raises(ConfigError, match=r"^environment Wrong: step_env returned a reward of nan"):
        rljax.sweep(config.replace(env=nan), {"learning_rate": [1e-3]})


def test_suites_from_elsewhere_are_warned_of() -> None:
    env, params = rljax.make_env("gymnax:FourRooms-misc")
    with pytest.warns(RljaxWarning, match=r"^environment FourRooms-misc: observation int32\[4\] does not fit .* float32\[4\]$"):
        rljax.check_environment(env, params)


SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 4, "num_minibatches": 1, "num_epochs": 1, "total_timesteps": 8}


@pytest.fixture
def tests_are_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests define is not played before training otherwise (see conftest.py)."""
    monkeypatch.setattr(environments, "KNOWN", KNOWN)
    monkeypatch.setattr(environments, "_TRIED", {})


class Observed(Wrapper):
    """What is observed is changed, and the space stays; how, a subclass says."""

    def changed(self, obs: Any) -> Any:
        return obs

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        obs, state = self.env.reset_env(key, params)
        return self.changed(obs), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        obs, *rest = self.env.step_env(key, state, action, params)
        return self.changed(obs), *rest


class Large(Observed):
    def changed(self, obs: Any) -> Any:
        return obs * 1e6


class Halves(Observed):
    def changed(self, obs: Any) -> Any:
        return obs.astype(jnp.float16)


@pytest.mark.slow
@pytest.mark.usefixtures("tests_are_users")
@pytest.mark.parametrize("around", [lambda env: env, lambda env: TimeLimit(env, 9)], ids=["outermost", "within"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "gymnax:CartPole-v1"])
def test_training_plays_a_wrapper_of_the_users_around_any_environment(env_id: str, around: Any) -> None:
    env = around(Large(make_env(env_id)[0]))
    with pytest.raises(ConfigError, match=r"^environment CartPole-v1: observation\[0\] was .* at a reset, but observation_space"):
        rljax.make_train(rljax.PPOConfig(env=env, **SMALL))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "gymnax:CartPole-v1"])
def test_a_wrapper_of_the_users_is_refused_for_another_dtype(env_id: str) -> None:
    env = Halves(make_env(env_id)[0])
    for call in (rljax.check_environment, lambda env: rljax.make_agent(rljax.PPOConfig(env=env, **SMALL))):
        with pytest.raises(
            ConfigError, match=r"^environment CartPole-v1: observation float16\[4\] does not fit .* float32\[4\]$"
        ):
            call(env)


def test_a_wrapper_of_the_users_is_not_blamed_for_the_dtype_of_what_it_is_around() -> None:
    env, params = make_env("Catch-bsuite")
    doubts = check_contract(env, params)
    assert len(doubts) == 1
    assert check_contract(Observed(env), params) == check_contract(TimeLimit(Observed(Observed(env)), 9), params) == doubts
    with pytest.raises(ConfigError, match=r"^environment Catch-bsuite: observation float16\[10,5\] does not fit"):
        check_contract(Halves(env), params)


@pytest.mark.slow
def test_a_wrapper_of_the_users_is_not_blamed_for_the_bounds_of_what_it_is_around() -> None:
    env, params = make_env("MetaMaze-misc")
    found = [warned(lambda env=env: rljax.check_environment(env, params)) for env in (env, Observed(env))]
    assert len(found[0]) == 1
    assert found[0] == found[1]
    with pytest.raises(
        ConfigError, match=r"^environment MetaMaze-misc: observation\[\d+\] was .*e\+0\d .* but observation_space"
    ):
        rljax.check_environment(Large(env), params)


def warned(call: Any) -> list[str]:
    """What warnings of rljax a call gives, each of one line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    lines = [str(warning.message) for warning in caught if issubclass(warning.category, RljaxWarning)]
    assert not any("\n" in text for text in lines)
    return lines


@pytest.mark.usefixtures("tests_are_users")
def test_training_warns_once_of_what_is_doubtful() -> None:
    doubt = (
        "environment Catch-bsuite: observation float32[10,5] does not fit observation_space of dtype int32: expected int32[10,5]"
    )
    for env in ("Catch-bsuite", Observed(make_env("Catch-bsuite")[0])):
        config = rljax.PPOConfig(env=env, **SMALL)
        assert warned(lambda config=config: rljax.make_train(config)) == [doubt]
        assert warned(lambda config=config: rljax.make_train(config)) == []


@pytest.mark.usefixtures("tests_are_users")
def test_what_is_shipped_is_neither_traced_nor_played_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    for name in ("check_contract", "check_play"):
        monkeypatch.setattr(environments, name, lambda env, params, name=name: called.append((name, env)) or [])
    for env in ("CartPole-v1", TimeLimit(make_env("Pendulum-v1")[0], 9), "TicTacToe-v0"):
        try_environment(rljax.PPOConfig(env=env))
    assert called == []
    try_environment(rljax.PPOConfig(env="gymnax:CartPole-v1"))  # a suite's is traced, and not played
    assert [name for name, _ in called] == ["check_contract"]


def test_all_layers_say_whose_an_environment_is() -> None:
    from gymnax.wrappers.purerl import LogWrapper

    gymnax_env, ours = make_env("gymnax:CartPole-v1")[0], make_env("CartPole-v1")[0]
    assert all(map(is_known, (gymnax_env, ours, TimeLimit(gymnax_env, 9), LogWrapper(gymnax_env))))
    assert not any(map(is_known, (Observed(ours), TimeLimit(Observed(gymnax_env), 9), LogWrapper(Walk()), Walk())))
    assert check_contract(TimeLimit(make_env("Catch-bsuite")[0], 9), make_env("Catch-bsuite")[1])


def test_a_game_without_observe_is_one_line_where_it_is_used() -> None:
    unseen = {
        "observe": rljax.Game.observe,
        "reset_env": lambda _, key, params: (jnp.zeros((2, 3)), WalkState(jnp.zeros(()), jnp.zeros((), jnp.int32))),
        "step_env": lambda _, k, s, a, p: (jnp.zeros((2, 3)), s.replace(time=s.time + 1), jnp.zeros(2), s.time >= 5, {}),
    }
    game = wrong(Pass, unseen)
    assert line(game).startswith("must define observe(state, params) -> obs [P, ...]")
    rljax.make_agent(rljax.SelfPlayConfig(env=game))  # training does without
    state = jax.tree.map(lambda x: x[None], game.reset_env(None, None)[1])
    for use in (lambda: game.text(state, None, 0), lambda: rljax.make_mcts(game, num_simulations=2)(jax.random.key(0), state)):
        with pytest.raises(ConfigError, match=r"^game Wrong: must define observe"):
            use()


class Passing:
    """A wrapper as gymnax's and PureJaxRL's: what it does not define is that of the environment inside."""

    def __init__(self, env: Any):
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def mine(base: type, name: str) -> Any:
    """A class that defines one more function."""

    def function(self: Any, key: jax.Array, *arguments: Any) -> Any:
        raise AssertionError("rljax never calls it")

    return type("Mine", (base,), {name: function})


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("step", lambda name: mine(Passing, name)(make_env("CartPole-v1")[0])),
        ("step", lambda name: mine(Passing, name)(make_env("gymnax:CartPole-v1")[0])),
        ("reset", lambda name: mine(Passing, name)(make_env("CartPole-v1")[0])),
        ("reset", lambda name: Passing(mine(Passing, name)(Walk()))),
        ("step", lambda name: mine(Walk, name)()),
        ("step", lambda name: mine(type(make_env("gymnax:CartPole-v1")[0]), name)()),
        ("reset", lambda name: mine(Wrapper, name)(Walk())),
        ("step", lambda name: mine(GameTimeLimit, name)(Pass(), 9)),
    ],
    ids=["getattr", "gymnax", "reset", "two", "subclass", "subclass of gymnax", "wrapper", "game"],
)
def test_a_step_or_a_reset_that_would_be_passed_by_is_refused(name: str, make: Any, within: bool) -> None:
    env = make(name)
    is_game = isinstance(env, rljax.Game)
    env = (GameTimeLimit if is_game else TimeLimit)(env, 9) if within else env
    train = rljax.load_config("self_play", env=env) if is_game else rljax.PPOConfig(env=env, **SMALL)
    for call in (lambda: rljax.check_environment(env), lambda: rljax.make_agent(train)):
        with pytest.raises(ConfigError, match=f": Mine defines {name}, which rljax never calls: override {name}_env$"):
            call()


@pytest.mark.parametrize("name", ["FlattenObservationWrapper", "LogWrapper", "StickyActionWrapper"])
def test_wrappers_of_gymnax_are_refused_as_they_override_step(name: str) -> None:
    from gymnax.wrappers import purerl

    env = getattr(purerl, name)(make_env("gymnax:Breakout-MinAtar")[0])
    with pytest.raises(ConfigError, match=rf": {name} defines step, which rljax never calls: give what is inside, or use rljax"):
        rljax.make_agent(rljax.PPOConfig(env=env, **SMALL))


def test_a_step_that_a_base_class_or_the_environment_itself_defines_is_accepted() -> None:
    """Those of the base class call `step_env`; DeepSea, of gymnax, has its own for loops written by hand."""

    class Base:
        name, default_params = "Alone", 0

        def step(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
            return self.step_env(key, state, action, params)  # type: ignore[attr-defined]

    functions = ("reset_env", "step_env", "observation_space", "action_space", "is_truncated", "observe", "reward", "info")
    own = type("Alone", (Base,), {f: getattr(Walk, f) for f in functions})()
    for env in (own, Passing(own), Passing(Walk()), make_env("gymnax:DeepSea-bsuite")[0]):
        check_contract(env, env.default_params)


def test_a_step_beside_step_env_and_that_of_another_library_inside_are_accepted() -> None:
    class Foreign:
        def reset(self, key: jax.Array) -> None: ...

        def step(self, state: Any, action: Any) -> None: ...

    class Adapter(Walk):
        def __init__(self) -> None:
            self.env = Foreign()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.env, name)

    assert check_contract(Adapter(), Adapter().default_params) == []

    class Both(Walk):
        reset_env = Walk.reset_env

        def reset(self, seed: int = 0) -> Any:  # type: ignore[override]
            return self.reset_env(jax.random.key(seed), self.default_params)

    assert check_contract(Both(), Both().default_params) == ["Both defines reset beside reset_env: rljax calls reset_env alone"]


def test_an_id_is_no_environment() -> None:
    with pytest.raises(rljax.ConfigError, match=r"check_environment\('CartPole-v1'\): expected an environment; make_env makes"):
        rljax.check_environment("CartPole-v1")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Walk, r"check_environment: Walk is a class; give an environment made from it: Walk\(\)$"),
        (None, r"check_environment\(None\): expected an environment, which has reset_env and step_env$"),
        (3, r"check_environment\(3\): expected an environment, which has"),
    ],
)
def test_what_is_no_environment_is_one_line(given: Any, said: str) -> None:
    with pytest.raises(rljax.ConfigError, match=f"^{said}"):
        rljax.check_environment(given)
