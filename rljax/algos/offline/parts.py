"""Parts shared by the offline algorithms: configuration fields, state, batches of a dataset, and values of actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.algos.common.config import WIDE, widened
from rljax.algos.common.losses import huber_value_loss
from rljax.algos.common.off_policy import OffPolicyConfig, check_replay_memory, transition_example, update_target
from rljax.algos.common.optimizer import adam, annealed
from rljax.algos.common.soft_policy import Choice, SoftPolicy, check_soft_space, critic_values, make_soft_policy, policy_outputs
from rljax.algos.common.state import NormalizedState, initial_fields, normalize_obs
from rljax.collect.demos import Transitions
from rljax.collect.environments import make_training_env, training_reward
from rljax.collect.minibatches import gradient_step, init_optimizer
from rljax.collect.normalizers import init_statistics
from rljax.collect.replay import NStep, Replay, init_replay
from rljax.core.agent import Metrics
from rljax.core.config import leaf, static
from rljax.core.environments.spaces import Box, as_space
from rljax.core.errors import ConfigError
from rljax.core.keys import as_single_key
from rljax.core.state import buffer, copy_of_params
from rljax.nn.outputs.actions import ActionHead, dreamer_head, soft_head


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflineConfig(OffPolicyConfig):
    """Fields of the offline algorithms. Without `online`, all numbers of steps count gradient steps, and `env` is for
    evaluation.
    """

    dataset: str | None = static(default=None, doc="folder of recorded episodes to learn from (see `rljax demo`)")
    online: bool = static(
        default=False,
        doc="step the environment, too, and learn from its steps beside those of the dataset; begin with an offline run by "
        "--init-from",
    )
    dataset_share: float | None = leaf(
        default=None,
        doc="online, share of a batch that comes from the dataset; none: as if dataset and replay buffer were one buffer",
        ge=0,
        le=1,
    )
    total_timesteps: int = static(
        default=500_000,
        doc="budget of gradient steps, or online of environment steps; rounded down to whole iterations",
        gt=0,
        steps=True,
    )
    num_envs: int = static(default=1, doc="environments stepped in parallel, online", gt=0)
    num_steps: int = static(
        default=64,
        doc="number of turns of an iteration, each of updates_per_step gradient steps; online, number of steps per environment",
        gt=0,
    )
    train_every: int = static(
        default=1, doc="online, number of steps per environment between updates; must divide num_steps", gt=0
    )
    buffer_size: int = static(
        default=100_000, doc="environment steps in the replay buffer, online, floored to whole rows of num_envs", gt=0
    )
    batch_size: int = static(default=256, doc="number of transitions in a gradient step", gt=0)
    learning_starts: int = static(
        default=1_000, doc="environment steps in the replay buffer before batches are drawn from it, online", ge=0
    )
    learning_rate: float = leaf(default=3e-4, doc="Adam step size", ge=0)
    reward_scale: float = leaf(default=1.0, doc="factor of all rewards", gt=0)
    network: Any = static(
        default=WIDE,
        doc="networks of policy, critics and value: { hidden = [256, 256], activation = 'relu', layer_norm = false }, "
        "with encoder = 'cnn' for images, or a Module (discrete actions)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "network", widened(self.network))
        if self.normalize_rewards:
            raise ConfigError("normalize_rewards = true: expected false; reward_scale scales the rewards of a dataset")
        if self.train_every != 1 and not self.online:
            raise ConfigError(f"train_every = {self.train_every}: expected 1 without online = true, which takes no steps")

    @property
    def has_buffer(self) -> bool:
        return self.online

    @property
    def turns(self) -> int:
        """Number of turns of an iteration."""
        return self.num_steps // self.train_every

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.num_steps if self.online else self.turns * self.updates_per_step

    @property
    def rows_before_learning(self) -> int:
        return super().rows_before_learning if self.online else 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionConfig(OfflineConfig):
    """Fields of the algorithms whose policy imitates actions, weighted by how good they were."""

    advantage_weights: str = static(
        default="exponential",
        doc="weight of an action with advantage A: exp(beta A), at most max_weight, or 'positive': max(A, 0)",
        choices=("exponential", "positive"),
    )
    beta: float = leaf(default=3.0, doc="inverse temperature of the weights exp(beta A); 0 is cloning", ge=0)
    max_weight: float = leaf(default=100.0, doc="largest weight exp(beta A)", gt=0)


class OfflineParts(NamedTuple):
    """Environment and networks of a configuration, built once.

    Attributes:
        policy: policy and critics (`SoftPolicy`); of CQL a `QNetwork`. Its number of actions, or of dimensions of a Box, is A in
            shapes.
        value: `obs [B, *obs_shape] -> value [B, 1]`; None for algorithms without.
    """

    config: Any
    env: Any
    env_params: Any
    policy: Any
    value: nn.Module | None = None


class OfflineState(NormalizedState, kw_only=True):
    """State of an offline algorithm, whose `params` are a dictionary of networks.

    Attributes:
        target_params: targets of some of the networks.
        updates: number of gradient steps so far, i32 [].
        replay: steps of the environment; None without `online`.
    """

    target_params: Any = copy_of_params(lambda params, value: {name: params[name] for name in value})
    updates: jax.Array
    replay: Replay | None = buffer()


def actor_critic_parts(config: OfflineConfig, algorithm: str, head: Callable[[Any], ActionHead]) -> OfflineParts:
    """Build environment, policy and critics for a Box or a Discrete; `head` makes the policy's head from the space.

    Raises:
        ConfigError: environment or network do not fit the algorithm or each other, or the buffer cannot fit the device.
    """
    env, env_params = make_training_env(config)
    space = check_soft_space(env, env_params, algorithm)
    obs = transition_example(env, env_params, None).obs
    policy = make_soft_policy(config.network, space, obs, head(space), config.dtype)
    if config.online:
        check_replay_memory(config, step_example(env, env_params, policy.head))
    return OfflineParts(config, env, env_params, policy)


def regression_head(space: Any) -> ActionHead:
    """Return a categorical for a Discrete; for a Box a Gaussian on [-1, 1], scaled to the bounds, whose density is known
    everywhere (that of a tanh is not, at its ends)."""
    return dreamer_head(space) if isinstance(space, Box) else soft_head(space)


def step_example(env: Any, env_params: Any, head: ActionHead) -> Any:
    """Return the shapes of one step in the replay buffer."""
    example: Any = transition_example(env, env_params, None)
    action: Any = head.action
    return example._replace(action=Choice(action, example.next_mask))


def offline_state(
    parts: OfflineParts, key: jax.Array, init_params: Callable[[jax.Array, Any], Any], targets: tuple[str, ...], head: ActionHead
) -> OfflineState:
    """Return the state before the first iteration.

    Args:
        parts: environment and networks.
        key: random key.
        init_params: `(key, obs [1, *obs_shape]) -> params`, a dictionary of networks.
        targets: names of the networks that have targets.
        head: head of the policy.
    """
    config, env, env_params = parts.config, parts.env, parts.env_params
    shapes = transition_example(env, env_params, None).obs
    obs = jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), shapes)
    if config.online:
        params_key, fields = initial_fields(config, env, env_params, key)
        example, host = step_example(env, env_params, head), config.replay_memory == "host"
        replay = init_replay(example, config.buffer_rows, config.num_envs, host)
    else:
        params_key, _, eval_key, key = jax.random.split(as_single_key(key), 4)
        statistics = init_statistics(shapes) if config.normalize_observations else None
        fields = {"obs_statistics": statistics, "reward_statistics": None, "env_state": None, "obs": None, "key": key}
        fields |= {"eval_key": eval_key, "iteration": jnp.zeros((), jnp.int32)}
        replay = None
    params = init_params(params_key, obs)
    return OfflineState(
        params=params,
        target_params={name: jax.tree.map(jnp.copy, params[name]) for name in targets},
        opt_state=init_optimizer(adam(config), params),
        updates=jnp.zeros((), jnp.int32),
        replay=replay,
        **fields,
    )


def dataset_batch(parts: OfflineParts, state: Any, steps: Transitions) -> NStep:
    """Return transitions of a dataset `[..., B]` as losses take them: normalised observations, actions as `Choice`s, and rewards
    times `reward_scale`.

    An episode that was cut bootstraps from the observation after its last step, which the dataset holds; one that terminated
    does not.
    """
    config, space = parts.config, as_space(parts.env.action_space(parts.env_params))
    return NStep(
        obs=normalize_obs(state, steps.obs),
        action=Choice(policy_action(space, steps.action), steps.mask),
        reward=config.reward_scale * training_reward(config, jnp.asarray(steps.reward)),
        discount=jnp.where(steps.terminated, 0.0, jnp.asarray(config.gamma, jnp.float32)),
        next_obs=normalize_obs(state, steps.next_obs),
        next_mask=steps.next_mask,
    )


def policy_action(space: Any, action: Any) -> jax.Array:
    """Return an environment's actions as the policy has them: of a Box f32 `[..., A]` from -1, its low, to 1, its high."""
    action = jnp.asarray(action)
    if not isinstance(space, Box):
        return action.astype(jnp.int32)
    low, high = jnp.asarray(space.low, jnp.float32), jnp.asarray(space.high, jnp.float32)
    # Where the bounds are one number there is nothing to choose.
    unit = jnp.clip(2.0 * (action - low) / jnp.where(high > low, high - low, 1.0) - 1.0, -1.0, 1.0)
    return unit.reshape(*action.shape[: action.ndim - len(space.shape)], -1)


def learn(parts: OfflineParts, state: Any, loss_fn: Callable[[Any], tuple[jax.Array, Metrics]]) -> tuple[Any, Metrics]:
    """Take a gradient step of Adam on all parameters, and move the targets.

    Args:
        parts: environment and networks.
        state: the state so far.
        loss_fn: `params -> (loss, metrics)`.
    """
    config, updates = parts.config, state.updates + 1
    rate = annealed(config, state.iteration)
    params, opt_state, metrics = gradient_step(loss_fn, adam(config), state.params, state.opt_state, rate)
    followed = {name: params[name] for name in state.target_params}
    target_params = update_target(config, state.target_params, followed, updates)
    return state.replace(params=params, target_params=target_params, opt_state=opt_state, updates=updates), metrics


def critics_loss(q: jax.Array, target: jax.Array) -> jax.Array:
    """Return half the squared error of each critic, summed over both and averaged over the batch, f32 [].

    Args:
        q: values of the actions taken, f32 `[2, B]`.
        target: f32 `[B]`; constants.
    """
    return jnp.mean(jnp.sum(huber_value_loss(q, target), axis=0))


def policy_of(policy: SoftPolicy, params: Any, obs: Any, mask: jax.Array | None) -> Any:
    """Return the policy's distribution over actions at normalised observations `[..., *obs_shape]`."""
    return policy.head.distribution(policy_outputs(policy, params, obs), mask)


def drawn_action(policy: SoftPolicy, distribution: Any, noise: jax.Array) -> jax.Array:
    """Return an action of the policy; of a Box f32 `[..., A]`, clipped to [-1, 1]."""
    action = policy.head.sample(distribution, noise)
    return jnp.clip(action, -1.0, 1.0) if isinstance(policy.space, Box) else action


def log_prob_of_choice(policy: SoftPolicy, distribution: Any, choice: Choice) -> jax.Array:
    """Return the log-probability of the actions taken, f32 `[B]`; 0, without a gradient, where the mask rules one out."""
    log_prob = distribution.log_prob(choice.action)
    if choice.mask is None or isinstance(policy.space, Box):
        return log_prob
    legal = jnp.any(choice.mask & (jnp.arange(choice.mask.shape[-1]) == choice.action[..., None]), axis=-1)
    return jnp.where(legal, log_prob, 0.0)


def policy_value(policy: SoftPolicy, critics: Any, distribution: Any, obs: Any, noise: jax.Array | None) -> jax.Array:
    """Return `E_a[min(Q_1, Q_2)(s, a)]` of the policy's actions, f32 `[B]`: for a Box of one action, for a Discrete of all.

    Args:
        policy: networks.
        critics: parameters of both critics.
        distribution: the policy at `obs`.
        obs: normalised, `[B, *obs_shape]`.
        noise: noise of the policy's head; None for a Discrete.
    """
    if isinstance(policy.space, Box):
        assert noise is not None
        action = drawn_action(policy, distribution, noise)
        return jnp.min(critic_values(policy, critics, obs, action), axis=0)
    probability = jnp.exp(jax.nn.log_softmax(distribution.logits))
    return jnp.sum(probability * jnp.min(critic_values(policy, critics, obs), axis=0), axis=-1)
