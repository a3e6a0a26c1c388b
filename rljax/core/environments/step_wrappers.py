"""Wrappers that change what a step does: its reward, its action, how often it is taken, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.core.environments.environment import COMPONENTS, METRICS, action_mask_of, strong, tree_where
from rljax.core.environments.spaces import as_space
from rljax.core.environments.wrappers import Wrapper, without_components
from rljax.core.errors import ConfigError, check_int, shown
from rljax.core.operations import trace_needed

Stepped = tuple[Any, Any, jax.Array, jax.Array, dict[str, Any]]
"""Result of `step_env`: `(obs, state, reward, terminated, info)`."""


def _map_components(change: Callable[..., Any], info: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """Return an info whose reward components were changed by a function, of those of other infos, too; one without as it is."""
    if COMPONENTS not in info:
        return info
    return {**info, COMPONENTS: jax.tree.map(change, info[COMPONENTS], *(other[COMPONENTS] for other in others))}


class ScaleReward(Wrapper):
    """Multiply each reward by `scale`, its components in `info["reward_components"]`, and `reward_threshold`."""

    def __init__(self, env: Any, scale: float):
        super().__init__(env)
        self.scale = scale
        # A scale that turns the order of rewards round leaves no such return, and one that is traced has no value.
        keeps_order = not isinstance(scale, jax.core.Tracer) and scale > 0
        if self.reward_threshold is not None:
            self.reward_threshold = float(self.reward_threshold * scale) if keeps_order else None

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Stepped:
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return obs, state, reward * self.scale, terminated, _map_components(lambda x: x * self.scale, info)


class ShapeReward(Wrapper):
    """Add `gamma * potential(next state) - potential(state)` to each reward, which leaves the best policies what they are (Ng,
    Harada, Russell, "Policy invariance under reward transformations", 1999). Terminal states have a potential of 0.

    Components of the reward are left out of the info, since the difference belongs to none of them.

    Args:
        env: an environment.
        potential: `(state, params) -> f32 []`, of the states and parameters of `env`.
        gamma: the discount factor of the algorithm.
    """

    def __init__(self, env: Any, potential: Callable[[Any, Any], jax.Array], gamma: float):
        super().__init__(env)
        self.potential = potential
        self.gamma = gamma

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Stepped:
        before = self.potential(state, params)
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        after = jnp.where(terminated, 0.0, self.potential(state, params))
        return obs, state, reward + self.gamma * after - before, terminated, without_components(info)


class ActionRepeat(Wrapper):
    """Take each action `times` times, or until the episode ends; the reward and its components are sums, all else is that of the
    last step taken.

    A repeated action may be illegal by then, so environments whose legal actions change are refused.

    Raises:
        ConfigError: `times` is not a whole number above 0.
    """

    def __init__(self, env: Any, times: int):
        check_int("ActionRepeat", 1, times=times)
        super().__init__(env)
        self.times = times

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        obs, state = self.env.reset_env(key, params)
        _refuse_masks(self, "action_repeat", state, params)
        return obs, state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Stepped:
        keys, first = jax.random.split(key, self.times), state

        def take(key: jax.Array, state: Any) -> tuple[Any, ...]:
            obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
            return strong((obs, state, jnp.asarray(reward, jnp.float32), terminated, info))

        def again(before: tuple[Any, ...], key: jax.Array) -> tuple[tuple[Any, ...], None]:
            _, state, total, terminated, info_before = before
            over = terminated | self._stops(first, state, params)
            obs, state, reward, terminated, info = take(key, state)
            info = _map_components(jnp.add, info, info_before)
            return tree_where(over, before, (obs, state, total + reward, terminated, info)), None

        result: Stepped = jax.lax.scan(again, take(keys[0], state), keys[1:])[0]
        return result

    def _stops(self, first: Any, state: Any, params: Any) -> jax.Array:
        """Return whether an action that was first taken in the state `first` is not to be taken in another one again."""
        return self.env.is_truncated(state, params)


def _refuse_masks(wrapper: Wrapper, name: str, state: Any, params: Any) -> None:
    """Refuse an environment or a game whose legal actions depend on its state; `state` is that of the environment inside."""
    if any(trace_needed(lambda s: action_mask_of(wrapper.env, s, params), state)[1]):
        raise ConfigError(f"{name}: {wrapper.name} has action masks that change, and a repeated action may be illegal")


class StickyState(NamedTuple):
    env_state: Any
    action: Any
    begun: jax.Array


class StickyActions(Wrapper):
    """Take the action of the step before again with a probability, whatever the policy chose; an episode's first action is never
    replaced (Machado et al., "Revisiting the Arcade Learning Environment", 2018, where the probability is .25).

    A repeated action may be illegal by then, so environments whose legal actions change are refused.

    Raises:
        ConfigError: the probability is not in [0, 1).
    """

    def __init__(self, env: Any, probability: float):
        traced = isinstance(probability, jax.Array)
        if not traced and not (isinstance(probability, (int, float)) and 0 <= probability < 1):
            raise ConfigError(f"StickyActions: probability = {shown(probability)}: expected a number >= 0 and < 1")
        super().__init__(env)
        self.probability = probability

    def inner(self, state: StickyState) -> Any:
        return state.env_state

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, StickyState]:
        obs, state = self.env.reset_env(key, params)
        _refuse_masks(self, "sticky_actions", state, params)
        return obs, self._begun(state, params)

    def _begun(self, env_state: Any, params: Any) -> StickyState:
        """Return the state in which an episode begins, from that of the environment inside."""
        shapes = jax.eval_shape(lambda: as_space(self.env.action_space(params)).sample(jax.random.key(0)))
        none = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return StickyState(env_state, none, jnp.asarray(False))

    def step_env(self, key: jax.Array, state: StickyState, action: Any, params: Any) -> Stepped:
        stick_key, key = jax.random.split(key)
        action = self._taken(stick_key, state.begun, state.action, action)
        obs, env_state, reward, terminated, info = self.env.step_env(key, state.env_state, action, params)
        return obs, StickyState(env_state, action, jnp.asarray(True)), reward, terminated, info

    def _taken(self, key: jax.Array, begun: jax.Array, before: Any, chosen: Any) -> Any:
        """Return the action that is taken: the one before, if there is one and by chance, or the one that was chosen."""
        repeats = begun & (jax.random.uniform(key) < self.probability)
        return jax.tree.map(lambda old, new: jnp.where(repeats, old, new).astype(old.dtype), before, chosen)


ENDED_BY_NAN = "ended_by_nan"
"""Metric of `EndOnNaN`: 1 in a step whose result was not finite, else 0. Logged, it is the share of episodes that ended so."""


class EndOnNaNState(NamedTuple):
    env_state: Any
    spoilt: jax.Array


class EndOnNaN(Wrapper):
    """End an episode where the simulation fails: a step that brings a NaN or an infinity into the observation, the reward or the
    state terminates, with a reward of 0 (and so its components), zeros in place of what is not finite, and the state before. An
    episode that begins so terminates at its first step. `info["metrics"]["ended_by_nan"]` counts such steps.

    It is a termination and no truncation, because what such a state is worth cannot be known.
    """

    def inner(self, state: EndOnNaNState) -> Any:
        return state.env_state

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, EndOnNaNState]:
        obs, state = self.env.reset_env(key, params)
        spoilt = [*(_not_finite(x) for x in _floats(obs)), *(jnp.any(jnp.isnan(x)) for x in _floats(state))]
        return jax.tree.map(finite, obs), EndOnNaNState(state, jnp.any(jnp.stack([jnp.asarray(False), *spoilt])))

    def step_env(self, key: jax.Array, state: EndOnNaNState, action: Any, params: Any) -> Stepped:
        return self._checked(state, self.env.step_env(key, state.env_state, action, params))

    def _checked(self, state: EndOnNaNState, stepped: Stepped, failed: Any = False) -> Stepped:
        """Return the result of a step from `state`: the episode ends if something in it is not finite, or if it `failed`."""
        before = state.env_state
        obs, after, reward, terminated, info = stepped
        # A state may hold an infinity on purpose, in a place of its own.
        found = [_not_finite(x) for x in [*_floats(obs), reward]] + _newly_not_finite(before, after)
        spoilt = state.spoilt | failed | jnp.any(jnp.stack(found))
        after = tree_where(spoilt, before, after)
        info = _map_components(lambda x: jnp.where(spoilt, jnp.zeros_like(x), x), jax.tree.map(finite, info))
        metrics = {**info.get(METRICS, {}), ENDED_BY_NAN: jnp.asarray(spoilt, jnp.float32)}
        reward = jnp.where(spoilt, 0.0, reward)
        after = EndOnNaNState(after, jnp.asarray(spoilt))
        return jax.tree.map(finite, obs), after, reward, terminated | spoilt, {**info, METRICS: metrics}


def finite(x: Any) -> Any:
    """Return an array with zeros in place of what is not finite."""
    return jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x)) if _is_float(x) else x


def _is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(x), jnp.floating))


def _floats(tree: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(tree) if _is_float(x)]


def _not_finite(x: Any) -> jax.Array:
    return ~jnp.all(jnp.isfinite(x))


def _newly_not_finite(before: Any, after: Any) -> list[jax.Array]:
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return [jnp.any(jnp.isfinite(a) & ~jnp.isfinite(b)) for a, b in pairs if _is_float(b)]
