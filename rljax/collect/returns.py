"""Returns and advantages."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp

from rljax.collect.scans import short_scan
from rljax.collect.streams import of_seat, own_std, with_seat
from rljax.nn.modules.classes import sum_of


def gae(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    gamma: float | jax.Array,
    gae_lambda: float | jax.Array,
    seat: jax.Array | None = None,
) -> jax.Array:
    """Return advantages by generalised advantage estimation (Schulman et al., 2016, eq. 16), with separate terminations and
    truncations.

        delta_t = r_t + gamma (1 - terminated_t) next_value_t - value_t
        A_t = delta_t + gamma lambda (1 - (terminated_t or truncated_t)) A_{t+1}

    At a termination the bootstrap is 0; at a truncation it is the value of the final observation. The trace stops at both.

    Args:
        reward: f32 `[T, ...]`.
        value: V(obs_t), f32 `[T, ...]`.
        next_value: V of the observation that step t led to, before any reset (`info["final_observation"]`), f32 `[T, ...]`.
        terminated: bool `[T, ...]`.
        truncated: bool `[T, ...]`.
        gamma: discount, a number or an array that broadcasts, such as f32 `[K]` for rewards `[T, N, K]` of K value heads.
        gae_lambda: trace decay, likewise.
        seat: where P seats take turns, which one takes the step, one-hot bool `[T, ..., P]`: the trace goes from a step to the
            next one of its seat, and passes over steps of nobody. None: every step follows the one before.

    Returns:
        Advantages f32 `[T, ...]`, 0 for steps of nobody; the value targets are `advantages + value`.
    """
    chex.assert_equal_shape([reward, value, next_value, terminated, truncated])
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = gamma * gae_lambda * (1.0 - (terminated | truncated))

    def backward(after: jax.Array, step: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        delta_t, decay_t, seat_t = step
        advantage = _if_taken(seat_t, delta_t + decay_t * of_seat(after, seat_t), 0.0)
        return with_seat(after, seat_t, advantage), advantage

    after = jnp.zeros(delta.shape[1:] if seat is None else seat.shape[1:], delta.dtype)
    return short_scan(backward, after, (delta, decay, seat), reverse=True)[1]


def _if_taken(seat: jax.Array | None, x: jax.Array, otherwise: jax.Array | float) -> jax.Array:
    """Return `x`, but `otherwise` for steps of nobody."""
    return x if seat is None else jnp.where(sum_of(seat), x, otherwise)


def explained_variance(target: jax.Array, prediction: jax.Array, own: jax.Array | None = None) -> jax.Array:
    """Return the share of the targets' variance that the predictions explain, f32 []: 1 is all, 0 none. Where the targets do not
    vary it is 0.

    `own`, bool of the same shape, says which steps count; None: all.
    """
    if own is None:
        left, variance, size = jnp.var(target - prediction), jnp.var(target), jnp.max(jnp.abs(target))
    else:
        size = jnp.max(jnp.abs(target), where=own, initial=0.0)
        left, variance = jnp.square(own_std(target - prediction, own)), jnp.square(own_std(target, own))
    return jnp.where(variance <= jnp.square(1e-6 * size), 0.0, 1.0 - left / (variance + 1e-8))


def vtrace(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    log_rho: jax.Array,
    gamma: float | jax.Array,
    rho_bar: float | jax.Array = 1.0,
    c_bar: float | jax.Array = 1.0,
    vtrace_lambda: float | jax.Array = 1.0,
    seat: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return V-trace targets and policy gradient advantages (Espeholt et al., 2018, eq. 1 and section 4.2), with terminations and
    truncations separate as in `gae`.

        rho_t = min(rho_bar, exp(log_rho_t)),  c_t = lambda min(c_bar, exp(log_rho_t))
        delta_t = rho_t (r_t + gamma (1 - terminated_t) next_value_t - value_t)
        vs_t - value_t = delta_t + gamma (1 - (terminated_t or truncated_t)) c_t (vs_{t+1} - value_{t+1})
        A_t = rho_t (r_t + gamma vs_{t+1} - value_t)

    In A_t, vs_{t+1} is next_value_t at a truncation and at the end of the rollout, and 0 at a termination. With log_rho 0 and
    lambda 1 the targets are those of `gae` with lambda 1.

    Args:
        reward: f32 `[T, ...]`.
        value: V(obs_t), f32 `[T, ...]`.
        next_value: V of the observation that step t led to, before any reset, f32 `[T, ...]`; inside an episode `value[t + 1]`.
        terminated: bool `[T, ...]`.
        truncated: bool `[T, ...]`.
        log_rho: log of pi(action) / mu(action), target over behaviour policy, f32 `[T, ...]`.
        gamma: discount, a number or one per step, `[T, ...]`.
        rho_bar: bound of the weights of the errors; it decides whose value the targets estimate (pi's if it is infinite).
        c_bar: bound of the weights of the traces; it decides how fast the errors of later steps fade.
        vtrace_lambda: trace decay, 1 in the paper (its remark 2 has others).
        seat: which of P seats takes the step, one-hot bool `[T, ..., P]`, as in `gae`; None: one seat.

    Returns:
        `(target vs, advantage)`, f32 `[T, ...]`; the value and 0 for steps of nobody. Gradients flow through both: stop them.
    """
    chex.assert_equal_shape([reward, value, next_value, terminated, truncated, log_rho])
    # Select instead of multiplying by 0: at a termination, next_value must not count even if it is not finite.
    next_value = jnp.where(terminated, 0.0, next_value)
    ratio = importance_ratio(log_rho)
    rho = jnp.minimum(rho_bar, ratio)
    bootstrap = gamma * (1.0 - terminated)
    td_error = reward + bootstrap * next_value - value
    continues = 1.0 - (terminated | truncated)
    decay = gamma * continues * vtrace_lambda * jnp.minimum(c_bar, ratio)

    def backward(errors: jax.Array, step: tuple[Any, ...]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        delta_t, decay_t, seat_t = step
        following = of_seat(errors, seat_t)
        error = _if_taken(seat_t, delta_t + decay_t * following, 0.0)
        return with_seat(errors, seat_t, error), (error, following)

    after = jnp.zeros(td_error.shape[1:] if seat is None else seat.shape[1:], td_error.dtype)
    steps: tuple[Any, ...] = (rho * td_error, decay, seat)
    _, (error, next_error) = short_scan(backward, after, steps, reverse=True)
    return value + error, _if_taken(seat, rho * (td_error + gamma * continues * next_error), 0.0)


def importance_ratio(log_rho: jax.Array) -> jax.Array:
    """Return exp(log_rho), with the logarithm clipped at 20, so that the ratio is finite for any two policies."""
    return jnp.exp(jnp.minimum(log_rho, 20.0))


def upgo(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    gamma: float | jax.Array,
    seat: jax.Array | None = None,
) -> jax.Array:
    """Return upgoing returns, which follow the actual rewards for as long as they are better than expected (Vinyals et al., 2019,
    methods).

        G_t = r_t + gamma (G_{t+1} if r_{t+1} + gamma value_{t+2} >= value_{t+1} else value_{t+1})

    At a termination the return is the reward alone; at a truncation and at the end of the rollout it bootstraps from next_value.

    Args:
        reward: f32 `[T, ...]`.
        value: V(obs_t), f32 `[T, ...]`.
        next_value: V of the observation that step t led to, before any reset, f32 `[T, ...]`; inside an episode `value[t + 1]`.
        terminated: bool `[T, ...]`.
        truncated: bool `[T, ...]`.
        gamma: discount, a number or one per step, `[T, ...]`.
        seat: which of P seats takes the step, one-hot bool `[T, ..., P]`, as in `gae`; None: one seat.

    Returns:
        Returns f32 `[T, ...]`, the value for steps of nobody; the advantages are `returns - value`, weighted by the clipped ratio
        of the policies.
    """
    chex.assert_equal_shape([reward, value, next_value, terminated, truncated])
    next_value = jnp.where(terminated, 0.0, next_value)
    bootstrap = jnp.broadcast_to(gamma * (1.0 - terminated), reward.shape)
    better = reward + bootstrap * next_value >= value

    def backward(after: tuple[jax.Array, jax.Array], step: tuple[Any, ...]) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        returns, was_better = after
        reward_t, next_value_t, bootstrap_t, truncated_t, better_t, seat_t = step
        goes_on = of_seat(was_better, seat_t) & ~truncated_t
        return_t = reward_t + bootstrap_t * jnp.where(goes_on, of_seat(returns, seat_t), next_value_t)
        return (with_seat(returns, seat_t, return_t), with_seat(was_better, seat_t, better_t)), return_t

    # What follows the rollout is unknown: treat it as no better than expected.
    shape = reward.shape[1:] if seat is None else seat.shape[1:]
    after = (jnp.zeros(shape, reward.dtype), jnp.zeros(shape, bool))
    steps: tuple[Any, ...] = (reward, next_value, bootstrap, truncated, better, seat)
    return _if_taken(seat, short_scan(backward, after, steps, reverse=True)[1], value)


def q_lambda_returns(
    reward: jax.Array,
    next_q_max: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    gamma: float | jax.Array,
    q_lambda: float | jax.Array,
) -> jax.Array:
    """Return Q(lambda) returns of a nearly greedy policy (Gallici et al., 2024, section 4; Peng and Williams, 1996).

        G_t = r_t + gamma (1 - terminated_t) ((1 - lambda_t) next_q_max_t + lambda_t G_{t+1})

    lambda_t is 0 where the episode was truncated and at the last step, where the return bootstraps fully. Actions that were not
    greedy do not cut the trace.

    Args:
        reward: f32 `[T, ...]`.
        next_q_max: max_a Q of the observation that step t led to, before any reset (`info["final_observation"]`), f32 `[T, ...]`.
        terminated: bool `[T, ...]`.
        truncated: bool `[T, ...]`.
        gamma: discount.
        q_lambda: trace decay.

    Returns:
        Targets of Q(obs_t, action_t), f32 `[T, ...]`.
    """
    chex.assert_equal_shape([reward, next_q_max, terminated, truncated])
    # Select instead of multiplying by 0: at a termination, next_q_max must not count even if it is not finite.
    next_q_max = jnp.where(terminated, 0.0, next_q_max)
    trace = q_lambda * (1.0 - (terminated | truncated))
    bootstrapped = reward + gamma * (1.0 - trace) * next_q_max

    def backward(target: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        bootstrapped_t, decay_t = step
        target = bootstrapped_t + decay_t * target
        return target, target

    return short_scan(backward, next_q_max[-1], (bootstrapped, gamma * trace), reverse=True)[1]


def lambda_returns(
    reward: jax.Array,
    value: jax.Array,
    discount: float | jax.Array,
    lambda_: float | jax.Array,
    last: jax.Array | None = None,
) -> jax.Array:
    """Return the lambda-returns of states, with rewards received on arrival at a state (Sutton and Barto, 2018, section 12.8; the
    targets of DreamerV3's critic, Hafner et al., 2025).

        ret_t = r_{t+1} + d_{t+1} ((1 - c_{t+1}) v_{t+1} + c_{t+1} ret_{t+1})
        c_t = lambda (1 - last_t),  ret_{T-1} = v_{T-1}

    Args:
        reward: reward on arrival at state t, f32 `[T, ...]`; the first is not used.
        value: V(state t), f32 `[T, ...]`; the first is not used.
        discount: discount after state t, 0 at a terminal state, a number or f32 `[T, ...]`; the first is not used.
        lambda_: weight of the longer returns.
        last: whether state t is the last of its episode, bool `[T, ...]`; the return then bootstraps from its value, because the
            next state belongs to another episode. None: no state is.

    Returns:
        Returns of all states except the last, f32 `[T - 1, ...]`.
    """
    chex.assert_equal_shape([reward, value] if last is None else [reward, value, last])
    discount = jnp.broadcast_to(discount, reward.shape)[1:]
    trace = lambda_ if last is None else lambda_ * (1.0 - last[1:])
    bootstrapped = reward[1:] + discount * (1.0 - trace) * value[1:]

    def backward(after: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        bootstrapped_t, decay_t = step
        return_t = bootstrapped_t + decay_t * after
        return return_t, return_t

    return short_scan(backward, value[-1], (bootstrapped, discount * trace), reverse=True)[1]
