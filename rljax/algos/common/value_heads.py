"""Value heads: one for each stream of rewards, with its own discount, trace decay and weight.

Streams are the components that the environment splits its reward into (Ye et al., 2020: farming, kills, winning, ...), and
the bonus of an intrinsic reward. The policy follows the weighted sum of their advantages; each head fits the returns of its own
stream.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rljax.algos.common.config import PolicyConfig
from rljax.algos.common.state import scaled_rewards
from rljax.collect.intrinsic import Intrinsic
from rljax.collect.normalizers import scale_rewards
from rljax.collect.rollout import Steps
from rljax.core.agent import Metrics
from rljax.core.config import leaf, static
from rljax.core.environments.environment import BELIEF, COMPONENTS
from rljax.core.environments.step_wrappers import ShapeReward
from rljax.core.environments.wrappers import ClipReward, Wrapper, split_privileged
from rljax.core.errors import ConfigError, did_you_mean
from rljax.core.games.chance import step_shapes
from rljax.core.games.game import Game

INTRINSIC = "intrinsic"
"""Name of the head of the bonus."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig(PolicyConfig):
    """Fields that say which value heads there are."""

    gae_lambda: float = leaf(default=0.95, doc="trace decay of PPO's advantages (generalised advantage estimation)", ge=0, le=1)
    value_heads: tuple[str, ...] = static(
        default=(), doc="components of the environment's reward that get a value head each; other components are ignored"
    )
    head_gammas: tuple[float, ...] | None = leaf(default=None, doc="discount of each value head; none: gamma", ge=0, le=1)
    head_lambdas: tuple[float, ...] | None = leaf(
        default=None, doc="trace decay of each value head; none: gae_lambda", ge=0, le=1
    )
    head_weights: tuple[float, ...] | None = leaf(default=None, doc="weight of each value head's advantages; none: 1")
    intrinsic: Mapping[str, Any] | None = static(
        default=None, doc="intrinsic reward: { type = 'count' }, { type = 'rnd' } or { type = 'entropy_reduction' }"
    )
    intrinsic_coef: float = leaf(default=0.1, doc="weight of the bonus's advantages", ge=0)
    intrinsic_gamma: float = leaf(default=0.99, doc="discount of the bonus", ge=0, le=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self)

    @property
    def value_names(self) -> tuple[str, ...]:
        return head_names(self)


class HeadParts(Protocol):
    """Fields of an algorithm's parts that `reward_streams` needs."""

    @property
    def config(self) -> HeadConfig: ...
    @property
    def intrinsic(self) -> Intrinsic | None: ...


class Heads(NamedTuple):
    """Discount, trace decay and weight of each value head: numbers for one head, else f32 `[K]`."""

    gamma: Any
    gae_lambda: Any
    weight: Any


def check_heads(config: HeadConfig) -> None:
    """Refuse lists that do not have one number for each head.

    Raises:
        ConfigError: names the field, its value and what is allowed.
    """
    names = config.value_heads
    if len(set(names)) < len(names) or INTRINSIC in names:
        raise ConfigError(f"value_heads = {list(names)}: expected different names, none of them '{INTRINSIC}'")
    if names and config.clip_rewards is not None:
        raise ConfigError(
            f"clip_rewards = {config.clip_rewards}: expected none with value_heads, whose components are not clipped"
        )
    for field in ("head_gammas", "head_lambdas", "head_weights"):
        given = getattr(config, field)
        if given is not None and (not names or len(given) != len(names)):
            wanted = f"one number for each of value_heads = {list(names)}" if names else "none without value_heads"
            raise ConfigError(f"{field} = {list(given)}: expected {wanted}")


def info_keys(config: HeadConfig, env: Any, env_params: Any) -> tuple[str, ...]:
    """The entries of an environment's info that the heads need.

    Raises:
        ConfigError: the environment does not have them; says what it has.
    """
    needs_belief = config.intrinsic is not None and config.intrinsic["type"] == "entropy_reduction"
    wanted = (COMPONENTS,) * bool(config.value_heads) + (BELIEF,) * needs_belief
    info = _info_of(env, env_params) if wanted else {}
    if config.value_heads:
        components = info.get(COMPONENTS)
        if not isinstance(components, Mapping):
            raise ConfigError(
                f"value_heads = {list(config.value_heads)}: {env.name} does not split its reward, "
                f"its info has no dictionary '{COMPONENTS}'{_left_out_by(env)}"
            )
        for name in config.value_heads:
            if name not in components:
                raise ConfigError(f"value_heads: {env.name} has no reward component '{name}': {did_you_mean(name, components)}")
            _check_scalar(env, f"info['{COMPONENTS}']['{name}']", components[name])
    if needs_belief:
        if BELIEF not in info:
            raise ConfigError(
                f"intrinsic.type = 'entropy_reduction': the info of {env.name} has no '{BELIEF}', the entropy of a belief in nats"
            )
        _check_scalar(env, f"info['{BELIEF}']", info[BELIEF])
    return wanted


def _left_out_by(env: Any) -> str:
    """Return the end of a message that names the wrapper which leaves out the components of rewards, if there is one."""
    while isinstance(env, Wrapper):
        if isinstance(env, (ShapeReward, ClipReward)):
            return f"; {type(env).__name__} leaves it out, as it changes the reward and not its components"
        env = env.env
    return ""


def _check_scalar(env: Any, what: str, x: Any) -> None:
    shape = (env.num_players,) if isinstance(env, Game) else ()
    if x.shape != shape or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ConfigError(f"environment {env.name}: {what} is {x.dtype}{list(x.shape)}, expected float32{list(shape)}")


def _info_of(env: Any, env_params: Any) -> Any:
    """The shapes of the info of a step."""
    state, action, key = step_shapes(env, env_params)
    return jax.eval_shape(lambda k, s, a: env.step_env(k, s, a, env_params)[-1], key, state, action)


def head_names(config: HeadConfig) -> tuple[str, ...]:
    """The names of all value heads; none where there is only that of the reward."""
    if config.intrinsic is None:
        return config.value_heads
    return (*(config.value_heads or ("extrinsic",)), INTRINSIC)


def num_values(config: HeadConfig) -> int:
    """K, the number of value heads."""
    return max(1, len(head_names(config)))


def head_settings(config: HeadConfig) -> Heads:
    """Discounts, trace decays and weights of the heads, those of the configuration where it has no lists."""
    count = max(1, len(config.value_heads))
    columns = [
        ((config.gamma,) * count if config.head_gammas is None else config.head_gammas, config.intrinsic_gamma),
        ((config.gae_lambda,) * count if config.head_lambdas is None else config.head_lambdas, config.gae_lambda),
        ((1.0,) * count if config.head_weights is None else config.head_weights, config.intrinsic_coef),
    ]
    if num_values(config) == 1:
        return Heads(*(given[0] for given, _ in columns))
    bonus = config.intrinsic is not None
    return Heads(*(jnp.stack([jnp.asarray(x, jnp.float32) for x in (*given, *([own] * bonus))]) for given, own in columns))


class RewardStreams(NamedTuple):
    """Rewards and ends of each head's stream: `[T, N]` where there is one head, else `[T, N, K]`."""

    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array


def reward_streams(parts: HeadParts, state: Any, steps: Steps, key: jax.Array) -> tuple[RewardStreams, dict[str, Any], Metrics]:
    """Return the rewards of each value head: the scaled reward or its components, and the bonus.

    The stream of the bonus continues across the ends of episodes (Burda et al., 2018, section 2.3), so that ending an episode has
    no effect on the bonus's return.

    Args:
        parts: parts of the algorithm.
        state: with `reward_statistics`, and `intrinsic` where there is a bonus.
        steps: `[T, N]`, with the infos that `info_keys` names.
        key: random key of the bonus.

    Returns:
        The streams, the fields of the state that have moved, and the bonus's metrics.
    """
    config = parts.config
    statistics, reward = scaled_rewards(state, steps, config.gamma)
    moved = {"reward_statistics": statistics}
    rewards = [reward]
    if config.value_heads:
        rewards = [steps.extras[COMPONENTS][name] for name in config.value_heads]
        rewards = rewards if statistics is None else [scale_rewards(statistics, x) for x in rewards]
    ends = [(steps.terminated, steps.truncated)] * len(rewards)
    metrics: Metrics = {}
    if parts.intrinsic is not None:
        next_obs, done = split_privileged(steps.next_obs)[0], steps.terminated | steps.truncated
        moved["intrinsic"], bonus, metrics = parts.intrinsic.update(
            state.intrinsic, key, next_obs, done, steps.extras.get(BELIEF)
        )
        rewards.append(bonus)
        ends.append((jnp.zeros_like(done), jnp.zeros_like(done)))
    if len(rewards) == 1:
        return RewardStreams(rewards[0], steps.terminated, steps.truncated), moved, metrics
    terminated, truncated = zip(*ends, strict=True)
    return RewardStreams(*(jnp.stack(column, axis=-1) for column in (rewards, terminated, truncated))), moved, metrics


def combined(heads: Heads, x: jax.Array) -> jax.Array:
    """The weighted sum over heads `[...]` of advantages, values or targets `[..., K]`; of one head, times its weight."""
    weight = heads.weight
    return jnp.sum(weight * x, axis=-1) if jnp.ndim(weight) else weight * x


def value_of_rewards(config: HeadConfig, value: jax.Array) -> jax.Array:
    """Return the value of the environment's rewards, f32 `[...]`: of K value heads `[..., K]` the weighted sum that the policy
    follows, without the head of a bonus.
    """
    rewards = config.replace(intrinsic=None)
    if config.intrinsic is not None:
        value = value[..., :-1] if num_values(rewards) > 1 else value[..., 0]
    return combined(head_settings(rewards), value)


def seat_of_heads(seat: jax.Array | None, value: jax.Array) -> jax.Array | None:
    """Return seats bool `[T, S, P]` for values `[T, S]`, or for `[T, S, K]` of K heads: bool `[T, S, K, P]`."""
    if seat is None or value.ndim < seat.ndim:
        return seat
    return jnp.broadcast_to(seat[..., None, :], (*value.shape, seat.shape[-1]))
