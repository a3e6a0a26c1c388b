"""Soft actor-critic: Haarnoja et al., "Soft actor-critic algorithms and applications" (2018), with a learned temperature, for
continuous actions; for discrete ones Christodoulou, "Soft actor-critic for discrete action settings" (2019).

One turn is `sac_collect` then `sac_update`; both are public, so a user can own the loop:

    parts = sac_parts(config)
    state = sac_init(parts, key)
    state, noise = sac_noise(parts, state)
    state, steps = sac_collect(parts, state, noise)
    state, metrics = sac_update(parts, state, noise)

After the `num_steps / train_every` turns of an iteration, it adds 1 to `state.iteration`, which all schedules follow.

The difference between the two is in `soft_policy`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.algos.common.config import WIDE, widened
from rljax.algos.common.off_policy import (
    FLAT,
    OffPolicyConfig,
    can_learn,
    check_replay_memory,
    collect_to_replay,
    normalized_n_step,
    run_turns,
    transition_example,
    update_loop,
    update_target,
    with_episode_sums,
)
from rljax.algos.common.optimizer import adam, annealed
from rljax.algos.common.soft_policy import (
    Choice,
    SoftPolicy,
    check_soft_space,
    init_soft_policy,
    make_soft_policy,
    policy_outputs,
    q_of_choice,
    soft_value,
    uniform_action,
)
from rljax.algos.common.state import NormalizedState, initial_fields, normalize_obs
from rljax.collect.environments import make_training_env
from rljax.collect.minibatches import gradient_step, init_optimizer
from rljax.collect.replay import NStep, Replay, init_replay, sample_windows
from rljax.collect.resets import EnvironmentNoise, environment_noise
from rljax.collect.rollout import Steps
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.config import MIN_DIVISOR, algorithm, leaf, static
from rljax.core.devices import over_devices
from rljax.core.environments.spaces import Box
from rljax.core.keys import draw
from rljax.core.state import buffer, copy_of_params


@algorithm("sac")
class SACConfig(OffPolicyConfig):
    """Soft actor-critic for continuous or discrete actions. `max_grad_norm` bounds the gradient of all parameters together,
    including the temperature.
    """

    num_envs: int = static(default=1, doc="environments stepped in parallel", gt=0)
    buffer_size: int = static(default=100_000, doc="transitions in the replay buffer, floored to whole rows of num_envs", gt=0)
    batch_size: int = static(default=256, doc="transitions in a gradient step", gt=0)
    learning_starts: int = static(
        default=5_000,
        doc="number of transitions in the buffer before the first gradient step; until then actions are uniform",
        ge=0,
    )
    learning_rate: float = leaf(default=3e-4, doc="Adam step size", ge=0)
    critic_learning_rate: float | None = leaf(default=None, doc="step size of the critics; none: learning_rate", ge=0)
    temperature_learning_rate: float | None = leaf(default=None, doc="step size of the temperature; none: learning_rate", ge=0)
    network: Any = static(
        default=WIDE,
        doc="networks of policy and critics: { hidden = [256, 256], activation = 'relu', layer_norm = false }, with encoder = "
        "'cnn' for images, or a Module (discrete actions)",
    )
    n_step: int = static(default=1, doc="number of rewards in a target before it bootstraps", gt=0)
    temperature: float | None = leaf(default=None, doc="fixed weight of the entropy; none: learned", ge=MIN_DIVISOR)
    init_temperature: float = leaf(default=1.0, doc="initial weight of the entropy, if it is learned", ge=MIN_DIVISOR)
    target_entropy: float | None = leaf(
        default=None,
        doc="target of the policy's entropy; none: minus the dimension of a Box; for a Discrete, see target_entropy_ratio",
    )
    target_entropy_ratio: float = leaf(
        default=0.89, doc="target of the entropy for a Discrete, as a share of the entropy of uniform legal actions", ge=0, le=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "network", widened(self.network))

    @property
    def window(self) -> int:
        return self.n_step


class SACParts(NamedTuple):
    """Environment, policy and critics of a configuration, built once.

    Attributes:
        policy: policy and critics; its `space.flat_dim` is A in shapes.
    """

    config: SACConfig
    env: Any
    env_params: Any
    policy: SoftPolicy


class SACState(NormalizedState, kw_only=True):
    """State of a SAC run.

    `params` are `actor`, `critic` (both critics, stacked: leaves `[2, ...]`) and `log_alpha` f32 [], the logarithm of the
    temperature.

    Attributes:
        target_params: parameters of the two target critics, stacked.
        updates: number of gradient steps so far, i32 [].
        replay: the buffer.
    """

    target_params: Any = copy_of_params(lambda params, _: params["critic"])
    updates: jax.Array
    replay: Replay = buffer()


class SACNoise(NamedTuple):
    """Random numbers of one turn, or with a leading axis of many turns.

    Attributes:
        action: f32 `[train_every, N, A]`, for the policy's head.
        env: noise of the environments, `[train_every, N, ...]`.
        sample: bits u32 `[updates_per_step, batch_size]`.
        policy: f32 `[updates_per_step, 2, batch_size, A]`, for `soft_value` at observation and next one; None for a Discrete.
    """

    action: jax.Array
    env: EnvironmentNoise
    sample: jax.Array
    policy: jax.Array | None


def sac_parts(config: SACConfig) -> SACParts:
    """Build environment and networks.

    Raises:
        ConfigError: environment or network do not fit the algorithm or each other, or the buffer cannot fit the device.
    """
    env, env_params = make_training_env(config)
    space = check_soft_space(env, env_params)
    obs = transition_example(env, env_params, None).obs
    policy = make_soft_policy(config.network, space, obs, dtype=config.dtype)
    check_replay_memory(config, _step_example(env, env_params, policy))
    return SACParts(config, env, env_params, policy)


def _step_example(env: Any, env_params: Any, policy: SoftPolicy) -> Any:
    """The shapes of one step in the buffer."""
    example: Any = transition_example(env, env_params, None)
    action: Any = policy.head.action
    return example._replace(action=Choice(action, example.next_mask))


def sac_init(parts: SACParts, key: jax.Array) -> SACState:
    """The state before the first iteration."""
    config = parts.config
    params_key, fields = initial_fields(config, parts.env, parts.env_params, key)
    temperature = config.init_temperature if config.temperature is None else config.temperature
    params = init_soft_policy(parts.policy, params_key, fields["obs"])
    params |= {"log_alpha": jnp.log(jnp.asarray(temperature, jnp.float32))}
    return SACState(
        params=params,
        target_params=jax.tree.map(jnp.copy, params["critic"]),
        opt_state=init_optimizer(adam(config), params),
        updates=jnp.zeros((), jnp.int32),
        replay=init_replay(
            _step_example(parts.env, parts.env_params, parts.policy),
            config.buffer_rows,
            config.num_envs,
            config.replay_memory == "host",
        ),
        **fields,
    )


def sac_noise(parts: SACParts, state: SACState, turns: int | None = None) -> tuple[SACState, SACNoise]:
    """Draw what is random in the next turn, or in the next `turns` ones (with a leading axis), in as few calls as can be."""
    config, head = parts.config, parts.policy.head
    key, action_key, env_key, sample_key, policy_key = jax.random.split(state.key, 5)
    count, every, updates = turns or 1, config.train_every, config.updates_per_step
    policy = None
    if isinstance(parts.policy.space, Box):
        policy = head.noise(policy_key, (count, updates, 2, config.batch_size))
    noise = SACNoise(
        action=head.noise(action_key, (count, every, config.num_envs)),
        env=environment_noise(parts.env, parts.env_params, env_key, every, config.num_envs, config, count),
        sample=draw(jax.random.bits, sample_key, (count, updates, config.batch_size)),
        policy=policy,
    )
    return state.replace(key=key), jax.tree.map(lambda x: x[0], noise) if turns is None else noise


def sac_collect(parts: SACParts, state: SACState, noise: SACNoise) -> tuple[SACState, Steps]:
    """Step the environments `train_every` times and add the steps to the buffer: uniform actions until learning starts.

    The `action` of the steps is a `Choice`.
    """
    started, params, head = can_learn(parts.config, state.replay), _with_temperature(parts, state.params), parts.policy.head

    def act(obs: Any, _: None, mask: jax.Array | None, noise_t: jax.Array) -> tuple[Any, None]:
        outputs = policy_outputs(parts.policy, params, normalize_obs(state, obs))
        action = head.sample(head.distribution(outputs, mask), noise_t)
        return Choice(jnp.where(started, action, uniform_action(parts.policy, noise_t, mask)), mask), None

    def to_env(choice: Any) -> Any:
        return head.to_env(choice.action)

    return collect_to_replay(parts.config, parts.env, parts.env_params, act, to_env, state, noise.action, noise.env)


def sac_update(parts: SACParts, state: SACState, noise: SACNoise) -> tuple[SACState, Metrics]:
    """`updates_per_step` gradient steps on samples of the buffer, each followed by the target critics' move.

    A step is one of Adam on the sum of the three losses, all at the parameters before it, as in the authors' code; gradients
    of each reach its own part only. While the buffer holds fewer than `learning_starts` transitions nothing changes.

    Returns:
        The next state, and metrics `train/...`: means over the gradient steps, 0 where none was taken.
    """
    config, replay, optimizer = parts.config, state.replay, adam(parts.config)
    rates = learning_rates(config, state.iteration)

    def sampled(zero: jax.Array, _: SACState) -> NStep:
        # One gather for all gradient steps.
        places = sample_windows(replay, noise.sample.reshape(-1) + zero, config.n_step)
        return normalized_n_step(config, state, places, config.n_step)

    def update(i: jax.Array, state: SACState, samples: NStep) -> tuple[SACState, Metrics]:
        updates = state.updates + 1
        batch = jax.tree.map(lambda x: x.reshape(config.updates_per_step, -1, *x.shape[1:])[i], samples)
        batch = over_devices(batch)
        here, there = (None, None) if noise.policy is None else noise.policy[i]
        target = sac_target(parts, state.params, state.target_params, batch, there)

        def loss_fn(params: Any) -> tuple[jax.Array, Metrics]:
            return sac_loss(parts, params, batch, target, here)

        params, opt_state, metrics = gradient_step(loss_fn, optimizer, state.params, state.opt_state, rates)
        target_params = update_target(config, state.target_params, params["critic"], updates)
        return state.replace(params=params, target_params=target_params, opt_state=opt_state, updates=updates), metrics

    return update_loop(can_learn(config, replay), config.updates_per_step, update, state, FLAT, sampled)


def learning_rates(config: SACConfig, iteration: jax.Array) -> jax.Array | dict[str, jax.Array]:
    """The learning rate f32 [] of an iteration, or where they are not one that of each part of the parameters."""
    rate, critic, temperature = (
        None if value is None else annealed(config.replace(learning_rate=value), iteration)
        for value in (config.learning_rate, config.critic_learning_rate, config.temperature_learning_rate)
    )
    assert rate is not None
    if critic is None and temperature is None:
        return rate
    return {
        "actor": rate,
        "critic": rate if critic is None else critic,
        "log_alpha": rate if temperature is None else temperature,
    }


def sac_loss(parts: SACParts, params: Any, batch: NStep, target: jax.Array, noise: jax.Array | None) -> tuple[jax.Array, Metrics]:
    """The sum of the three losses of one sample, f32 [], and metrics."""
    params = _with_temperature(parts, params)
    value_losses, value = sac_critic_loss(parts, params, batch, target)
    policy_losses, entropy = sac_actor_loss(parts, params, batch, noise)
    temperature_losses = sac_temperature_loss(parts, params, entropy, batch.action.mask)
    # One reduction: on the CPU each costs a kernel or two.
    means = jnp.mean(jnp.stack([value_losses, policy_losses, temperature_losses, value, entropy]), axis=1)
    names = ("value_loss", "policy_loss", "temperature_loss", "value", "entropy")
    metrics = {f"train/{name}": mean for name, mean in zip(names, means, strict=True)}
    return means[0] + means[1] + means[2], metrics | {"train/temperature": jnp.exp(params["log_alpha"])}


def sac_target(parts: SACParts, params: Any, target_params: Any, batch: NStep, noise: jax.Array | None) -> jax.Array:
    """`r + discount V(s')`, f32 `[B]`, with V of the policy and of the target critics (Haarnoja et al., 2018, eq. 3 and 5)."""
    params = _with_temperature(parts, params)
    value, _ = soft_value(parts.policy, params, target_params, batch.next_obs, batch.next_mask, noise)
    return jax.lax.stop_gradient(batch.reward + batch.discount * value)


def sac_critic_loss(parts: SACParts, params: Any, batch: NStep, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Half the squared errors of both critics, added up (eq. 5), and the mean of their values: each f32 `[B]`."""
    q = q_of_choice(parts.policy, params["critic"], batch.obs, batch.action)
    return 0.5 * jnp.sum(jnp.square(q - target), axis=0), jnp.mean(q, axis=0)


def sac_actor_loss(parts: SACParts, params: Any, batch: NStep, noise: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """`-V(s)` (eq. 9; discrete: Christodoulou, 2019, eq. 12), which trains the policy only, and its entropy: each f32 `[B]`."""
    critics = jax.lax.stop_gradient(params["critic"])
    value, entropy = soft_value(parts.policy, params, critics, batch.obs, batch.action.mask, noise)
    return -value, entropy


def sac_temperature_loss(parts: SACParts, params: Any, entropy: jax.Array, mask: jax.Array | None) -> jax.Array:
    """`alpha (entropy - target entropy)` (eq. 18), f32 `[B]`: the temperature falls where the entropy is above its target."""
    if parts.config.temperature is not None:
        return jnp.zeros_like(entropy)
    return jnp.exp(params["log_alpha"]) * (jax.lax.stop_gradient(entropy) - target_entropy(parts, mask))


def target_entropy(parts: SACParts, mask: jax.Array | None) -> Any:
    """The entropy that the temperature is learned for, f32 [] or `[B]`."""
    config, space = parts.config, parts.policy.space
    if config.target_entropy is not None:
        return config.target_entropy
    if isinstance(space, Box):
        return -float(space.flat_dim)
    legal = space.n if mask is None else jnp.maximum(jnp.sum(mask, axis=-1), 1)
    return config.target_entropy_ratio * jnp.log(jnp.asarray(legal, jnp.float32))


def _with_temperature(parts: SACParts, params: Any) -> Any:
    """The parameters; a fixed temperature is the configuration's, whatever a fork brought along."""
    if parts.config.temperature is None:
        return params
    return {**params, "log_alpha": jnp.log(jnp.asarray(parts.config.temperature, jnp.float32))}


def make_sac(config: SACConfig) -> Agent:
    """The SAC agent of a configuration."""
    parts = sac_parts(config)
    head = parts.policy.head
    turns = config.num_steps // config.train_every

    def init(key: jax.Array) -> SACState:
        return sac_init(parts, key)

    def step(state: SACState) -> tuple[SACState, Metrics]:
        before, noise = sac_noise(parts, state, turns)
        after, metrics = run_turns(
            before,
            noise,
            lambda state, noise: with_episode_sums(*sac_collect(parts, state, noise)),
            lambda state, noise: sac_update(parts, state, noise),
            FLAT,
        )
        metrics["train/learning_rate"] = annealed(config, state.iteration)
        metrics["train/temperature"] = jnp.exp(_with_temperature(parts, after.params)["log_alpha"])  # also before learning starts
        return after, metrics

    def act(
        state: SACState, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        outputs = policy_outputs(parts.policy, state.params, normalize_obs(state, obs))
        distribution = head.distribution(outputs, mask)
        return head.to_env(head.choose(distribution, key, outputs.shape[:-1], deterministic)), carry

    return Agent(init, step, act, config)


register_agent(SACConfig, make_sac)
