"""The teacher: the divergence from it by hand, its own memory, and how its weight fades."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.policy import policy_and_value
from rljax.algos.common.teacher import Teacher, faded, policy_kl, policy_view, teacher_of_rollout
from rljax.algos.impala import impala_collect, impala_init, impala_loss, impala_parts, impala_streams
from rljax.algos.ppo import Minibatch, ppo_collect, ppo_init, ppo_loss, ppo_parts, ppo_update
from rljax.collect.streams import episode_starts

CONFIG = rljax.PPOConfig(
    env="CartPole-v1", num_envs=4, num_steps=16, num_minibatches=1, num_epochs=1, network={"hidden": [8]}, teacher_kl_coef=0.3
)


def log_softmax(x: Any) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_the_term_is_the_weighted_divergence_from_the_teacher_to_the_policy() -> None:
    parts = ppo_parts(CONFIG)
    own = np.array([True, True, False, True, False, True])

    @jax.jit
    def computed() -> Any:
        params, other = (parts.policy.init(jax.random.key(i), jnp.zeros((1, 4))) for i in range(2))
        obs, action = 5.0 * jax.random.normal(jax.random.key(2), (6, 4)), jnp.zeros(6, jnp.int32)
        outputs, value, _ = policy_and_value(parts, params, obs)
        towards = policy_and_value(parts, other, obs)[0] * 50.0
        view = policy_view(parts.head, towards, None, action)
        batch = Minibatch(obs, action, None, -jnp.ones(6), value, jnp.arange(6.0), value, teacher=view, own=jnp.asarray(own))
        configs = [CONFIG.replace(teacher_kl_coef=x) for x in (None, 0.0, 0.3)]
        return outputs, towards, [ppo_loss(parts._replace(config=config), params, batch) for config in configs]

    outputs, towards, losses = computed()
    policy, teacher = log_softmax(outputs), log_softmax(towards)
    divergence = (np.exp(teacher) * (teacher - policy)).sum(-1)[own].mean()
    assert divergence > 0.01
    np.testing.assert_allclose(losses[1][0], losses[0][0], rtol=1e-6)
    np.testing.assert_allclose(losses[2][0] - losses[0][0], 0.3 * divergence, rtol=1e-3)
    np.testing.assert_allclose(losses[2][1]["train/teacher_kl"], divergence, rtol=1e-4)
    assert "train/teacher_kl" not in losses[0][1]


def test_the_divergence_of_gaussians_is_the_closed_form() -> None:
    parts = ppo_parts(CONFIG.replace(env="Pendulum-v1", teacher_kl_coef=None))
    teacher, student = jnp.array([[0.5, -0.3]]), jnp.array([[-0.2, 0.4]])
    found = policy_kl(parts.head, teacher, parts.head.distribution(student, None), None, jnp.zeros((1, 1)))
    s, t = np.exp(0.4), np.exp(-0.3)
    assert float(found[0]) == pytest.approx(np.log(s / t) + (t**2 + 0.7**2) / (2 * s**2) - 0.5, rel=1e-4)


def test_its_weight_moves_linearly_to_the_final_one_over_a_share_of_the_run() -> None:
    config = CONFIG.replace(total_timesteps=64 * 10, teacher_kl_coef=1.0, teacher_kl_final=0.2, teacher_kl_share=0.5)
    found = [float(faded(config, jnp.int32(i), Teacher(None, None, jnp.int32(0))).teacher_kl_coef) for i in range(10)]
    np.testing.assert_allclose(found, [1.0, 0.84, 0.68, 0.52, 0.36, 0.2, 0.2, 0.2, 0.2, 0.2], rtol=1e-5)
    without = CONFIG.replace(teacher_kl_coef=None)
    assert faded(without, jnp.int32(3), None) is without


def test_the_weight_of_a_teacher_that_a_fork_takes_moves_over_a_share_of_what_is_left() -> None:
    config = CONFIG.replace(total_timesteps=64 * 10, teacher_kl_coef=1.0, teacher_kl_share=0.5)
    of_learners = Teacher(None, None, jnp.array([6, 6]))
    found = [float(faded(config, jnp.int32(i), of_learners).teacher_kl_coef) for i in range(6, 10)]
    np.testing.assert_allclose(found, [1.0, 0.5, 0.0, 0.0], atol=1e-6)


@pytest.mark.slow
def test_an_update_keeps_the_teacher_and_pulls_the_policy_back_to_it() -> None:
    """All else has no weight: the loss's only gradient is the teacher's."""
    config = CONFIG.replace(vf_coef=0.0, ent_coef=0.0, teacher_kl_coef=1.0, clip_eps=1e-6, learning_rate=1e-2, num_epochs=4)
    parts = ppo_parts(config)

    @jax.jit
    def updated() -> tuple[Any, Any, jax.Array]:
        begun = ppo_init(parts, jax.random.key(0))
        moved = jax.tree.map(lambda x: x + jax.random.normal(jax.random.key(x.size), x.shape), begun.params)
        state, rollout = ppo_collect(parts, begun.replace(params=moved))
        none = jnp.zeros_like(rollout.value)
        nothing = rollout._replace(steps=rollout.steps._replace(reward=none), value=none, next_value=none)

        def divergence(params: Any) -> jax.Array:
            p, q = (jax.nn.log_softmax(policy_and_value(parts, x, rollout.steps.obs)[0]) for x in (begun.params, params))
            return jnp.mean(jnp.sum(jnp.exp(p) * (p - q), axis=-1))

        after, _ = ppo_update(parts, state, nothing)
        return begun, after, jnp.stack([divergence(moved), divergence(after.params)])

    begun, after, (before, then) = updated()
    assert float(then) < 0.8 * float(before)
    jax.tree.map(np.testing.assert_array_equal, after.teacher.params, begun.params)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_the_teacher_remembers_what_it_saw_itself(algorithm: str) -> None:
    """Its memory after rollouts is that of one pass of the teacher over all of them, whatever the policy became."""
    common = {
        "env": "TMaze-v0",
        "num_envs": 3,
        "num_steps": 7,
        "num_minibatches": 1,
        "teacher_kl_coef": 0.5,
        "learning_rate": 0.05,
    }
    common |= {
        "network": {"type": "gru", "hidden": [6], "size": 5},
        "normalize_observations": True,
        "total_timesteps": 21 * 4,
        "time_limit": 5,
    }
    config: Any = (rljax.PPOConfig if algorithm == "ppo" else rljax.ImpalaConfig)(**common)
    agent = rljax.make_agent(config)
    parts: Any = ppo_parts(config) if algorithm == "ppo" else impala_parts(config)
    collect = ppo_collect if algorithm == "ppo" else impala_collect
    state: Any = jax.jit(agent.init)(jax.random.key(3))
    begun, seen, step = state, [], jax.jit(agent.step)
    for _ in range(3):
        _, rollout = collect(parts, state)  # the same one as that of the step
        view, carry = teacher_of_rollout(parts, state, rollout.steps)
        seen.append((rollout.steps, view, carry))
        state, _ = step(state)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), carry, state.teacher_carry)
    steps = jax.tree.map(lambda *x: jnp.concatenate(x), *[each[0]._replace(carry=None) for each in seen])
    whole, last = teacher_of_rollout(parts, begun, steps)
    assert bool(episode_starts(steps).any())
    np.testing.assert_allclose(np.concatenate([each[1] for each in seen]), whole, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), last, state.teacher_carry)
    # The teacher's observations are normalised as they were when it was made: not at all.
    assert float(state.teacher.obs_statistics.count) == 0.0
    assert float(state.obs_statistics.count) > 0.0


def test_impala_has_the_same_term() -> None:
    config = rljax.ImpalaConfig(num_envs=2, num_steps=4, network={"hidden": [8]}, teacher_kl_coef=0.5)
    parts = impala_parts(config)

    def losses(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        state = impala_init(parts, key)
        other = jax.tree.map(lambda x: x + jax.random.normal(jax.random.key(x.size), x.shape), state.params)
        after, rollout = impala_collect(parts, state)
        view, _ = teacher_of_rollout(parts, state.replace(teacher=state.teacher._replace(params=other)), rollout.steps)
        streams = impala_streams(after, rollout, rollout.steps.reward)
        with_teacher, metrics = impala_loss(parts, state.params, streams._replace(teacher=view))
        without, _ = impala_loss(parts._replace(config=config.replace(teacher_kl_coef=None)), state.params, streams)
        return with_teacher, without, metrics["train/teacher_kl"]

    with_teacher, without, divergence = jax.jit(losses)(jax.random.key(0))
    assert float(divergence) > 1e-3
    assert float(with_teacher - without) == pytest.approx(0.5 * float(divergence), rel=1e-3)


@pytest.mark.parametrize("algorithm", [rljax.PPOConfig, rljax.ImpalaConfig, rljax.SelfPlayConfig])
def test_a_run_that_would_hold_on_to_random_parameters_is_refused(algorithm: Any) -> None:
    env = "KuhnPoker-v0" if algorithm is rljax.SelfPlayConfig else "CartPole-v1"
    config = algorithm(env=env, network={"hidden": [8]}, teacher_kl_coef=0.5)
    with pytest.raises(rljax.ConfigError, match=r"^teacher_kl_coef = 0\.5: .*: make_train\(rljax\.begin_from\(config, RUN\)\)$"):
        rljax.make_train(config)
    agent = rljax.make_agent(config)
    rljax.make_train(agent._replace(init=lambda key: agent.init(key)))  # begins with other parameters, for all one can tell
    rljax.make_train(rljax.Agent(lambda key: agent.init(key), agent.step, agent.act, config))
    rljax.make_train(config.replace(teacher_kl_coef=None))
    with pytest.raises(rljax.ConfigError, match=r"^teacher_kl_coef: the teacher is"):  # a traced number has no value to show
        jax.eval_shape(lambda coef: rljax.make_train(config.replace(teacher_kl_coef=coef)), jnp.float32(0.5))
