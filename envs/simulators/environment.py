"""An environment whose simulators are outside JAX: one call of the host steps all of them, inside the compiled program.

The state of such an environment only says which simulator it is and how often that was called. So it cannot be copied, saved or
gone back to: a simulator that is called from a state which it has left behind says so.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.environment import Environment, SimulatorParams
from rljax.core.errors import ConfigError
from rljax.core.host import host_call
from rljax.envs.simulators.processes import Plan, SimulatorError, Simulators

MAX_RUNNING = 8
"""Number of groups of simulators that run at a time, such as those of training and those of evaluations. When one more begins, a
group is ended: one whose episodes are all over, with none after them; else, of those on which no run trains, the one that has not
been called for the longest time; else that of all."""


@struct.dataclass
class SimulatorState:
    """Which simulator this is, and what its last call brought.

    Attributes:
        session: number of the simulators that began together, i32 [].
        slot: which of them this is, i32 [].
        count: number of calls of this one since then, i32 [].
        terminated: whether its episode has terminated, bool [].
        truncated: whether its own time limit has ended it, bool [].
        mask: its legal actions, bool `[A]`, of an environment that has masks; else None.
        picture: what it shows, uint8 `[H, W, 3]`, of an environment that was asked for pictures; else None.
    """

    session: jax.Array
    slot: jax.Array
    count: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    mask: Any = None
    picture: Any = None


class Running:
    """Simulators that run, how often each was called, whether a run trains on them, and a lock for whoever calls them."""

    def __init__(self, simulators: Simulators):
        self.site, self.simulators, self.trains = object(), simulators, False
        self.count = np.zeros(simulators.count, np.int32)
        self.restarted = False
        self.lock = threading.Lock()

    @property
    def over(self) -> bool:
        """Return whether an evaluation has ended here: all episodes are over, and none followed another."""
        return not self.restarted and bool((self.simulators.terminated | self.simulators.truncated).all())


_running: OrderedDict[int, Running] = OrderedDict()
_sessions = itertools.count(1)
_lock = threading.Lock()


def _begin(site: object, plan: Plan, seeds: np.ndarray, trains: bool) -> tuple[int, Running]:
    """Begin episodes at a place of a program, in the processes that are there from the last time, or from an evaluation."""
    with _lock:
        for session, running in list(_running.items()):
            if running.simulators.closed:
                del _running[session]
        fitting = [x for x in _running.items() if x[1].simulators.plan is plan and x[1].simulators.count == len(seeds)]
        ready = [x for x in fitting if x[1].site is site] or [x for x in fitting if x[1].over]
        ended = []
        if ready:
            del _running[ready[0][0]]
        elif len(_running) >= MAX_RUNNING:
            ended = [min(_running, key=lambda session: (not _running[session].over, _running[session].trains))]
        ending = [_running.pop(session) for session in ended]
    for running in ending:
        running.simulators.close()
    running = ready[0][1] if ready else Running(Simulators(plan, len(seeds)))
    running.site, running.trains = site, trains
    with running.lock:
        running.simulators.begin(seeds)
        running.count[:], running.restarted = 0, False
    with _lock:
        session = next(_sessions)
        _running[session] = running
    return session, running


def _find(title: str, session: np.ndarray, slot: np.ndarray) -> Running:
    number = int(session[0])
    with _lock:
        running = _running.get(number)
        if running is not None:
            _running.move_to_end(number)
    if running is None or running.simulators.closed or (session != number).any() or (slot >= running.simulators.count).any():
        raise SimulatorError(
            f"{title}: the simulators of this state have ended: they are not saved with it, begin anew where the same compiled "
            f"function begins again, and at most {MAX_RUNNING} groups run at a time; begin new episodes (or resume the run)"
        )
    return running


def close_simulators() -> None:
    """End all simulators of this process."""
    with _lock:
        ending = list(_running.values())
        _running.clear()
    for running in ending:
        running.simulators.close()


class SimulatedEnv(Environment):
    """An environment outside JAX.

    Args:
        plan: description of it.
        observation_space: of rljax, like `plan.layout.obs`.
        action_space: of rljax, like `plan.layout.action`.
        reward_threshold: mean return at which the task counts as solved, or None.
        drawn: function that makes this environment with pictures, for those who look at it; None if it has none.
    """

    outside_jax = True

    def __init__(
        self,
        plan: Plan,
        observation_space: Any,
        action_space: Any,
        reward_threshold: float | None = None,
        drawn: Callable[[], DrawnEnv] | None = None,
    ):
        self.plan = plan
        self.reward_threshold = reward_threshold
        self.drawn = drawn
        self._obs_space, self._action_space = observation_space, action_space
        shapes = jax.eval_shape(observation_space.sample, jax.eval_shape(lambda: jax.random.key(0)))
        self._seen, self._structure = jax.tree.flatten(shapes)
        self._seen += [jax.ShapeDtypeStruct((sum(plan.heads),), jnp.bool_)] if plan.heads else []
        self._seen += [] if plan.picture is None else [jax.ShapeDtypeStruct(plan.picture, jnp.uint8)]
        self._step, self._restart = _of_each(self._step_all, plan.title), _of_each(self._restart_all, plan.title)

    @property
    def name(self) -> str:
        return self.plan.title

    @property
    def default_params(self) -> SimulatorParams:
        return SimulatorParams()

    def observation_space(self, params: Any) -> Any:
        return self._obs_space

    def action_space(self, params: Any) -> Any:
        return self._action_space

    def action_mask(self, state: SimulatorState, params: Any) -> jax.Array | None:
        mask: jax.Array | None = state.mask
        return mask

    def is_truncated(self, state: SimulatorState, params: Any) -> jax.Array:
        return state.truncated

    def reset_env(self, key: jax.Array, params: SimulatorParams) -> tuple[Any, SimulatorState]:
        if params.ended is not None:
            state, ended = params.ended
            count, *seen = self._restart(state.session, state.slot, state.count, ended)
            session, slot = state.session, state.slot
        else:
            site = object()  # each place of a program where episodes begin has simulators of its own
            begin = _of_each(lambda seeds: self._begin_all(site, seeds, params.trains), self.name)
            session, slot, *seen = begin(jax.random.bits(key, (), jnp.uint32))
            count = jnp.zeros((), jnp.int32)
        obs, mask, picture = self._split(seen)
        going = jnp.zeros((), jnp.bool_)
        return obs, SimulatorState(session, slot, count, going, going, mask, picture)

    def step_env(
        self, key: jax.Array, state: SimulatorState, action: Any, params: SimulatorParams
    ) -> tuple[Any, SimulatorState, jax.Array, jax.Array, dict[str, Any]]:
        over = state.terminated | state.truncated
        count, reward, terminated, truncated, *seen = self._step(
            state.session, state.slot, state.count, over, *jax.tree.leaves(action)
        )
        obs, mask, picture = self._split(seen)
        after = SimulatorState(state.session, state.slot, count, terminated, truncated, mask, picture)
        return obs, after, reward, terminated, {}

    def _split(self, seen: Sequence[jax.Array]) -> tuple[Any, Any, Any]:
        """Split what a call returned into the observation, the mask and the picture; None for what there is not."""
        count = len(self.plan.layout.obs)
        obs = jax.tree.unflatten(self._structure, seen[:count])
        return obs, seen[count] if self.plan.heads else None, None if self.plan.picture is None else seen[-1]

    def _shapes(self, rows: int, *dtypes: Any) -> list[jax.ShapeDtypeStruct]:
        """Shapes of results: numbers of these dtypes, then an observation, a mask and a picture."""
        numbers = [jax.ShapeDtypeStruct((rows,), dtype) for dtype in dtypes]
        return [*numbers, *(jax.ShapeDtypeStruct((rows, *x.shape), x.dtype) for x in self._seen)]

    def _begin_all(self, site: object, seeds: jax.Array, trains: bool) -> list[jax.Array]:
        rows = seeds.shape[0]

        def begin(seeds: np.ndarray) -> list[np.ndarray]:
            session, running = _begin(site, self.plan, seeds, trains)
            return [np.full(rows, session, np.int32), np.arange(rows, dtype=np.int32), *running.simulators.obs]

        return host_call(begin, self._shapes(rows, jnp.int32, jnp.int32), seeds)

    def _step_all(
        self, session: jax.Array, slot: jax.Array, count: jax.Array, over: jax.Array, *action: jax.Array
    ) -> list[jax.Array]:
        def step(
            session: np.ndarray, slot: np.ndarray, count: np.ndarray, over: np.ndarray, *action: np.ndarray
        ) -> list[np.ndarray]:
            running = _find(self.name, session, slot)
            with running.lock:
                simulators = running.simulators
                if (running.count[slot] != count)[~over].any():
                    raise SimulatorError(
                        f"{self.name}: a step from a state that its simulator has left behind; it cannot go back, so take one "
                        "step from each state"
                    )
                # An episode that is over stays where it is.
                which = np.zeros(simulators.count, bool)
                which[slot] = ~over
                if which.sum() != (~over).sum():
                    raise SimulatorError(f"{self.name}: two steps at once from one state, which its simulator cannot take")
                for array, x in zip(simulators.action, action, strict=True):
                    array[slot] = x
                if which.any():
                    simulators.step(which)
                running.count[which] += 1
                reward = np.where(over, np.float32(0), simulators.reward[slot])
                ends = simulators.terminated[slot], simulators.truncated[slot]
                return [np.where(over, count, count + 1), reward, *ends, *(x[slot] for x in simulators.obs)]

        shapes = self._shapes(session.shape[0], jnp.int32, jnp.float32, jnp.bool_, jnp.bool_)
        return host_call(step, shapes, session, slot, count, over, *action)

    def _restart_all(self, session: jax.Array, slot: jax.Array, count: jax.Array, ended: jax.Array) -> list[jax.Array]:
        shapes = self._shapes(session.shape[0], jnp.int32)

        def restart(session: np.ndarray, slot: np.ndarray, ended: np.ndarray) -> list[np.ndarray]:
            running = _find(self.name, session, slot)
            with running.lock:
                which = np.zeros(running.simulators.count, bool)
                which[slot] = ended
                running.simulators.restart(which)
                running.count[which] += 1
                running.restarted = True
                return [running.count[slot], *(x[slot] for x in running.simulators.obs)]

        def nothing(*_: jax.Array) -> list[jax.Array]:
            return [count, *(jnp.zeros(x.shape, x.dtype) for x in shapes[1:])]

        def call(*args: jax.Array) -> list[jax.Array]:
            return host_call(restart, shapes, *args)

        found: list[jax.Array] = jax.lax.cond(jnp.any(ended), call, nothing, session, slot, ended)
        return found


class DrawnEnv(SimulatedEnv):
    """An environment outside JAX whose states have pictures."""

    def render(self, state: SimulatorState, params: Any) -> jax.Array:
        picture: jax.Array = state.picture
        return picture


def _of_each(call: Callable[..., list[jax.Array]], title: str) -> Callable[..., Sequence[jax.Array]]:
    """Return a function of one simulator that is one call for all of them under vmap.

    Args:
        call: takes arrays `[N, ...]` and returns such.
        title: how messages name the environment.
    """

    @jax.custom_batching.custom_vmap
    def of_all(*args: jax.Array) -> list[jax.Array]:
        return call(*args)

    @of_all.def_vmap
    def of_runs(_runs: int, _batched: Sequence[bool], *_args: jax.Array) -> tuple[list[jax.Array], list[bool]]:
        raise ConfigError(
            f"env = '{title}': is simulated outside JAX, where one program trains one run, without a vmap over runs: start one "
            "after the other"
        )

    @jax.custom_batching.custom_vmap
    def of_one(*args: jax.Array) -> list[jax.Array]:
        return [x[0] for x in of_all(*(x[None] for x in args))]

    @of_one.def_vmap
    def of_rows(rows: int, batched: Sequence[bool], *args: jax.Array) -> tuple[list[jax.Array], list[bool]]:
        found = of_all(
            *(x if is_batched else jnp.broadcast_to(x, (rows, *x.shape)) for x, is_batched in zip(args, batched, strict=True))
        )
        return found, [True] * len(found)

    result: Callable[..., Sequence[jax.Array]] = of_one
    return result
