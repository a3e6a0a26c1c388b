"""DQN against plain Python, closed forms and probe environments."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rljax
from rljax.algos.common.q_learning import epsilon_at, exploring_noise, q_values
from rljax.algos.dqn import beta_at
from rljax.collect.replay import NStep, sample_windows, take_n_step
from rljax.envs.probes import truncation_probe_values

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "num_steps": 8,
    "buffer_size": 256,
    "batch_size": 16,
    "learning_starts": 32,
    "total_timesteps": 640,
    "network": {"hidden": [16]},
}


def config(**changes: Any) -> rljax.DQNConfig:
    return rljax.DQNConfig(**{**SMALL, **changes})


def trained(settings: rljax.DQNConfig) -> Any:
    return jax.jit(rljax.make_train(settings))(jax.random.key(0)).state


# What one gradient step is.


def some_batch(masked: bool) -> NStep:
    keys = jax.random.split(jax.random.key(3), 6)
    mask = jax.random.bernoulli(keys[5], 0.5, (32, 5)).at[:, 2].set(True) if masked else None
    return NStep(
        obs=jax.random.normal(keys[0], (32, 9)),
        action=jax.random.randint(keys[1], (32,), 0, 5),
        reward=jax.random.normal(keys[2], (32,)),
        discount=jnp.where(jax.random.bernoulli(keys[3], 0.3, (32,)), 0.0, 0.97),
        next_obs=jax.random.normal(keys[4], (32, 9)),
        next_mask=mask,
    )


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_target_is_that_of_a_loop_over_transitions(double: bool, masked: bool) -> None:
    batch = some_batch(masked)
    next_q = np.asarray(jax.random.normal(jax.random.key(1), (32, 5)))
    online = np.asarray(jax.random.normal(jax.random.key(2), (32, 5)))
    target = rljax.dqn_target(batch, jnp.asarray(next_q), jnp.asarray(online if double else next_q))
    chooser = online if double else next_q
    for i in range(32):
        legal = [a for a in range(5) if batch.next_mask is None or batch.next_mask[i, a]]
        best = max(legal, key=lambda a: chooser[i, a])
        assert float(target[i]) == pytest.approx(float(batch.reward[i] + batch.discount[i] * next_q[i, best]), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [None, 1.0, 0.3])
def test_loss_is_half_squared_or_huber_times_the_weights(delta: float | None) -> None:
    parts = rljax.dqn_parts(config(env="MaskedBandit-v0", huber_delta=delta))
    params = rljax.dqn_init(parts, jax.random.key(0)).params
    batch, target = some_batch(False), jax.random.normal(jax.random.key(8), (32,))
    weight = jax.random.uniform(jax.random.key(9), (32,))
    loss, error, metrics = rljax.dqn_loss(parts, params, batch, target, weight)
    q = np.asarray(q_values(parts.network, params, batch.obs))[np.arange(32), np.asarray(batch.action)]
    np.testing.assert_allclose(error, q - np.asarray(target), rtol=1e-5, atol=1e-6)
    size = np.abs(q - np.asarray(target))
    losses = 0.5 * size**2 if delta is None else np.where(size <= delta, 0.5 * size**2, delta * (size - 0.5 * delta))
    assert float(loss) == pytest.approx((losses * np.asarray(weight)).mean(), rel=1e-5)
    assert float(metrics["train/value"]) == pytest.approx(q.mean(), rel=1e-4)
    assert float(metrics["train/td_error"]) == pytest.approx(size.mean(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"double": True, "dueling": True, "n_step": 3, "max_grad_norm": 0.1}])
def test_an_update_is_that_of_a_plain_implementation_on_trees(changes: dict[str, Any]) -> None:
    """Three gradient steps by jax.grad and optax on trees, and the target's move after each."""
    settings = config(updates_per_step=3, learning_rate=1e-2, tau=0.1, **changes)
    parts = rljax.dqn_parts(settings)
    state = rljax.dqn_init(parts, jax.random.key(0))
    for _ in range(12):
        state, noise = rljax.dqn_noise(parts, state)
        state, _ = rljax.dqn_collect(parts, state, noise)
    state, noise = rljax.dqn_noise(parts, state)
    after, metrics = jax.jit(lambda s, n: rljax.dqn_update(parts, s, n))(state, noise)

    params, target_params = state.params, state.target_params
    clip = optax.identity() if settings.max_grad_norm is None else optax.clip_by_global_norm(settings.max_grad_norm)
    optimizer = optax.chain(clip, optax.adam(settings.learning_rate, eps=settings.adam_eps))
    opt_state = optimizer.init(params)
    for bits in noise.sample:
        batch = take_n_step(state.replay, sample_windows(state.replay, bits, settings.n_step), settings.n_step, settings.gamma)

        def loss(params: Any, batch: NStep = batch, old: Any = params, target_params: Any = target_params) -> jax.Array:
            next_q = parts.network.module.apply(target_params, batch.next_obs)
            chooser = parts.network.module.apply(old, batch.next_obs) if settings.double else next_q
            value = jnp.take_along_axis(next_q, chooser.argmax(-1)[:, None], -1)[:, 0]
            q = jnp.take_along_axis(parts.network.module.apply(params, batch.obs), batch.action[:, None], -1)[:, 0]
            return optax.huber_loss(q, batch.reward + batch.discount * value).mean()

        updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state)
        params = optax.apply_updates(params, updates)
        target_params = jax.tree.map(lambda t, p: 0.9 * t + 0.1 * p, target_params, params)
    for name, expected in (("params", params), ("target_params", target_params)):
        for a, b in zip(jax.tree.leaves(getattr(after, name)), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert float(metrics["train/updates"]) == 3.0
    assert int(after.updates) == 3


def test_duelling_heads_centre_the_advantages() -> None:
    parts = rljax.dqn_parts(config(env="MaskedBandit-v0", dueling=True))
    params = rljax.dqn_init(parts, jax.random.key(0)).params
    obs = jax.random.normal(jax.random.key(1), (7, 9))
    hidden = jax.nn.relu(obs @ params["params"]["dense_0"]["kernel"] + params["params"]["dense_0"]["bias"])
    head = np.asarray(hidden @ params["params"]["head"]["kernel"] + params["params"]["head"]["bias"])
    expected = head[:, :1] + head[:, 1:] - head[:, 1:].mean(1, keepdims=True)
    np.testing.assert_allclose(q_values(parts.network, params, obs), expected, rtol=1e-5, atol=1e-6)


# Exploration.


def test_epsilon_greedy_takes_the_best_and_else_any_legal_action_equally_often() -> None:
    q = jnp.array([0.3, 2.0, -1.0, 5.0])
    mask = jnp.array([True, True, True, False])
    noise = exploring_noise(jax.random.key(0), (60_000,))
    for legal, best, each in ((mask, 1, 0.3 / 3), (None, 3, 0.3 / 4)):
        actions = np.asarray(rljax.epsilon_greedy(jnp.broadcast_to(q, (60_000, 4)), 0.3, noise, legal))
        frequencies = np.bincount(actions, minlength=4) / 60_000
        expected = np.array([0.0 if legal is not None and not legal[a] else each for a in range(4)])
        expected[best] += 0.7
        np.testing.assert_allclose(frequencies, expected, atol=0.006)
        assert (frequencies[expected == 0] == 0).all()
    assert (np.asarray(rljax.epsilon_greedy(jnp.broadcast_to(q, (60_000, 4)), 0.0, noise)) == 3).all()
    assert (np.bincount(np.asarray(rljax.epsilon_greedy(jnp.broadcast_to(q, (60_000, 4)), 1.0, noise))) > 14_000).all()


def test_numbers_at_equal_distances_draw_every_legal_action_equally_often() -> None:
    """So the action drawn is exactly uniform. A 1, which other generators may round to, draws a legal action, too."""
    place = np.append((np.arange(12_000) + 0.5) / 12_000, 1.0).astype(np.float32)
    noise, q = np.stack([np.zeros_like(place), place], axis=-1), np.zeros((len(place), 5), np.float32)
    for mask in (None, [0, 1, 0, 1, 1], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 0, 0]):
        legal = None if mask is None else jnp.broadcast_to(jnp.array(mask, bool), q.shape)
        actions = np.asarray(rljax.epsilon_greedy(jnp.asarray(q), 1.0, jnp.asarray(noise), legal))
        # Where no action is legal, as at the end of a game, all are drawn.
        allowed = np.flatnonzero([1] * 5 if mask is None or not any(mask) else mask)
        counts = np.bincount(actions[:-1], minlength=5)
        assert (counts[allowed] == 12_000 // len(allowed)).all(), counts
        assert counts.sum() == counts[allowed].sum()
        assert actions[-1] == allowed[-1]
    explored = rljax.epsilon_greedy(jnp.zeros((12_000, 5)).at[:, 4].set(1.0), 0.25, jnp.stack([place[:-1], place[:-1] * 0], -1))
    assert int(jnp.sum(explored == 0)) == 3_000
    with pytest.raises(AssertionError):
        rljax.epsilon_greedy(jnp.zeros((3, 2)), 0.1, jax.random.bits(jax.random.key(0), (3, 2)))


def test_epsilon_falls_linearly_with_environment_steps_and_stays() -> None:
    settings = config(epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=128)
    for iteration, step, expected in (
        (0, 0, 0.9),
        (1, 0, 0.9 - 0.8 * 32 / 128),
        (1, 4, 0.9 - 0.8 * 48 / 128),
        (4, 0, 0.1),
        (9, 3, 0.1),
    ):
        assert float(epsilon_at(settings, jnp.int32(iteration), jnp.int32(step))) == pytest.approx(expected, abs=1e-6)


def test_importance_exponent_rises_to_one_in_the_last_iteration() -> None:
    settings = config(priority_beta=0.4)
    last = settings.num_iterations - 1
    assert float(beta_at(settings, jnp.int32(last))) == 1.0
    assert float(beta_at(settings, jnp.int32(last + 5))) == 1.0
    assert float(beta_at(settings, jnp.int32(9))) == pytest.approx(0.4 + 0.6 * 10 / settings.num_iterations)


@pytest.mark.parametrize("learner", [rljax.DQNConfig, rljax.PQNConfig])
def test_a_greedy_action_draws_nothing(learner: Any) -> None:
    """So that exported policies, ONNX among them, need no random numbers."""
    agent = rljax.make_agent(learner(num_steps=32, total_timesteps=2_000))
    state, obs = agent.init(jax.random.key(0)), jnp.ones((3, 4))
    for deterministic, draws in ((True, False), (False, True)):
        program = str(
            jax.make_jaxpr(lambda key, greedy=deterministic: agent.act(state, obs, None, key, greedy)[0])(jax.random.key(0))
        )
        assert ("random_bits" in program) == draws


# The schedule.


def test_nothing_is_learned_before_learning_starts_and_every_update_after() -> None:
    settings = config(learning_starts=100, train_every=2, updates_per_step=3)
    agent = rljax.make_agent(settings)
    step = jax.jit(agent.step)
    state = agent.init(jax.random.key(0))
    first = state.params
    # 100 transitions are 25 rows of 4; turns end after rows 2, 4, ...: row 26 is the first with enough.
    expected = []
    for iteration in range(5):
        state, metrics = step(state)
        expected.append(3 * sum(1 for row in range(2, 9, 2) if 8 * iteration + row >= 25))
        assert float(metrics["train/updates"]) == expected[-1]
        same = all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(state.params), strict=True))
        assert same == (sum(expected) == 0)
        losses = [float(metrics[f"train/{name}"]) for name in ("value_loss", "value", "td_error")]
        assert np.isfinite(losses).all() if expected[-1] else np.isnan(losses).all(), "there are none without gradient steps"
    assert expected[:4] == [0, 0, 0, 12]
    assert int(state.updates) == sum(expected)


@pytest.mark.slow
def test_a_loop_of_the_public_parts_is_the_agents_iteration() -> None:
    """As the guide writes it (docs/guides/own_loop.md): with schedules, which follow the count of iterations."""
    settings = config(prioritized=True, anneal_lr=True, epsilon_steps=400, train_every=2)
    agent, parts = rljax.make_agent(settings), rljax.dqn_parts(settings)

    @jax.jit
    def iteration(state: Any) -> Any:
        def turn(state: Any, noise: Any) -> Any:
            state, _ = rljax.dqn_collect(parts, state, noise)
            return rljax.dqn_update(parts, state, noise)

        state, noise = rljax.dqn_noise(parts, state, settings.num_steps // settings.train_every)
        state, metrics = jax.lax.scan(turn, state, noise)
        return state.replace(iteration=state.iteration + 1), metrics

    own, agents = rljax.dqn_init(parts, jax.random.key(0)), agent.init(jax.random.key(0))
    step = jax.jit(agent.step)
    for _ in range(8):
        (own, _), (agents, _) = iteration(own), step(agents)
    assert int(own.updates) == int(agents.updates) > 20
    np.testing.assert_array_equal(own.replay.data.action, agents.replay.data.action)
    for a, b in zip(jax.tree.leaves(own.params), jax.tree.leaves(agents.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("tau", "every"), [(1.0, 1), (1.0, 3), (0.25, 2)])
def test_target_network_moves_by_tau_every_n_gradient_steps(tau: float, every: int) -> None:
    """Turns of two gradient steps beside the same samples taken in turns of one, and the moves made by hand."""
    settings = config(tau=tau, target_update_every=every, updates_per_step=2, learning_starts=1, learning_rate=1e-2)
    parts, single = rljax.dqn_parts(settings), rljax.dqn_parts(settings.replace(updates_per_step=1, target_update_every=10_000))
    state = rljax.dqn_init(parts, jax.random.key(0))
    collect = jax.jit(lambda s, n: rljax.dqn_collect(parts, s, n)[0])
    turn = jax.jit(lambda s, n: rljax.dqn_update(parts, s, n)[0])
    one_step = jax.jit(lambda s, n: rljax.dqn_update(single, s, n)[0])
    for _ in range(4):
        state, noise = rljax.dqn_noise(parts, state)
        state = collect(state, noise)
        expected = state
        for i in range(2):
            expected = one_step(expected, noise._replace(sample=noise.sample[i : i + 1]))
            if int(expected.updates) % every == 0:
                moved = jax.tree.map(lambda t, p: (1.0 - tau) * t + tau * p, expected.target_params, expected.params)
                expected = expected.replace(target_params=moved)
        state = turn(state, noise)
        for field in ("params", "target_params"):
            pairs = zip(jax.tree.leaves(getattr(state, field)), jax.tree.leaves(getattr(expected, field)), strict=True)
            for a, b in pairs:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    if tau == 1.0 and every == 1:
        jax.tree.map(np.testing.assert_array_equal, state.target_params, state.params)


def test_the_buffer_holds_the_transitions_that_were_taken() -> None:
    agent = rljax.make_agent(config(env="MaskedBandit-v0", buffer_size=4 * 40, total_timesteps=4 * 8 * 10))
    state = agent.init(jax.random.key(0))
    for _ in range(5):
        state, _ = jax.jit(agent.step)(state)
    data = state.replay.data
    assert data.obs.shape == (40, 4, 9)
    assert int(state.replay.position) == 0
    assert int(state.replay.size) == 40
    done = np.asarray(data.terminated | data.truncated)
    # The next row continues, but where an episode ended.
    same = np.all(np.asarray(data.next_obs)[:-1] == np.asarray(data.obs)[1:], axis=-1)
    assert same[~done[:-1]].all()
    assert not same[done[:-1]].all()
    # The observation shows the legal arms: a stored action was legal, and the next mask belongs to the next observation.
    legal = np.asarray(data.obs)[..., 4:] > 0
    assert np.take_along_axis(legal, np.asarray(data.action)[..., None], -1).all()
    np.testing.assert_array_equal(data.next_mask, np.asarray(data.next_obs)[..., 4:] > 0)


@pytest.mark.slow
def test_seeds_in_one_vmap_are_the_single_runs() -> None:
    settings = config(prioritized=True, n_step=2)
    keys = jax.random.split(jax.random.key(5), 3)
    many = jax.jit(jax.vmap(rljax.make_train(settings)))(keys)
    one = jax.jit(rljax.make_train(settings))
    for i in range(3):
        alone = one(keys[i])
        np.testing.assert_allclose(many.metrics["episode/return"][i], alone.metrics["episode/return"], rtol=1e-5)
        for a, b in zip(jax.tree.leaves(many.state.params), jax.tree.leaves(alone.state.params), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=2e-3, atol=2e-4)


# Memory.


def buffer_bytes(state: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.replay.data))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"prioritized": True},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"updates_per_step": 4, "n_step": 3, "double": True}, marks=pytest.mark.slow),
        pytest.param({"train_every": 8, "updates_per_step": 2}, marks=pytest.mark.slow),
    ],
)
def test_no_buffer_is_copied(changes: dict[str, Any]) -> None:
    """Temporaries stay below a tenth of the buffer: in one run, in vmapped ones, and in single donated iterations of both."""
    settings = config(buffer_size=400_000, **changes)
    agent = rljax.make_agent(settings)
    train = rljax.make_train(settings)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    keys = jax.random.split(jax.random.key(0), 4)
    states = jax.eval_shape(jax.vmap(agent.init), keys)
    programs = {
        "train": (jax.jit(train), jax.random.key(0), 1),
        "vmapped": (jax.jit(jax.vmap(train)), keys, 4),
        "step": (jax.jit(agent.step, donate_argnums=0), state, 1),
        "vmapped step": (jax.jit(jax.vmap(agent.step), donate_argnums=0), states, 4),
    }
    if settings.prioritized:
        # Counters that vmap batches make the loop over gradient steps choose between priorities; `fit` shares the counters.
        del programs["vmapped step"]
    for name, (program, argument, seeds) in programs.items():
        temporary = program.lower(argument).compile().memory_analysis().temp_size_in_bytes
        assert temporary < 0.1 * seeds * buffer_bytes(state), f"{name}: {temporary:,} bytes"


def test_a_buffer_that_cannot_fit_is_refused_before_compiling() -> None:
    with pytest.raises(rljax.ConfigError) as error:
        rljax.make_agent(config(buffer_size=2_000_000_000))
    assert "\n" not in str(error.value)
    assert "buffer_size = 2000000000" in str(error.value)
    assert "a transition takes 42 bytes" in str(error.value)  # 2 * 4 floats, reward, action, two flags


@pytest.mark.slow
def test_images_stay_bytes_in_the_buffer() -> None:
    class Picture(rljax.Environment):
        def reset_env(self, key: jax.Array, params: Any) -> Any:
            return jnp.full((4, 4, 1), 7, jnp.uint8), jnp.zeros((), jnp.int32)

        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
            return jnp.full((4, 4, 1), 7, jnp.uint8), state + 1, jnp.float32(action), state >= 3, {}

        def observation_space(self, params: Any) -> Any:
            return rljax.Box(0, 255, (4, 4, 1), jnp.uint8)

        def action_space(self, params: Any) -> Any:
            return rljax.Discrete(2)

    network = {"type": "cnn", "channels": [4], "kernels": [2], "strides": [1], "hidden": [8]}
    state = trained(config(env=Picture(), network=network))
    assert state.replay.data.obs.dtype == jnp.uint8
    assert state.replay.data.obs.shape == (64, 4, 4, 4, 1)


# Probes: what is learned has a closed form.

PROBE: dict[str, Any] = {
    "num_envs": 4,
    "num_steps": 8,
    "buffer_size": 2_000,
    "batch_size": 64,
    "learning_starts": 200,
    "total_timesteps": 8_000,
    "learning_rate": 3e-3,
    "anneal_lr": True,
    "tau": 0.05,
    "epsilon_end": 0.5,
    "gamma": 0.9,
    "network": {"hidden": [32]},
}


def learned_q(env: str, obs: list[list[float]], **changes: Any) -> np.ndarray:
    settings = rljax.DQNConfig(**{**PROBE, "env": env, **changes})
    return np.asarray(q_values(rljax.dqn_parts(settings).network, trained(settings).params, jnp.array(obs)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"double": True, "dueling": True, "prioritized": True}, pytest.param({}, marks=pytest.mark.slow)]
)
def test_probe_values_are_learned(changes: dict[str, Any]) -> None:
    np.testing.assert_allclose(learned_q("ConstantReward-v0", [[0.0]], **changes), 1.0, atol=0.05)
    np.testing.assert_allclose(learned_q("ObservationReward-v0", [[-1.0], [1.0]], **changes), [[-1, -1], [1, 1]], atol=0.1)
    np.testing.assert_allclose(learned_q("ActionReward-v0", [[-1.0], [1.0]], **changes), [[1, -1], [-1, 1]], atol=0.1)


@pytest.mark.parametrize("n_step", [1, 3])
def test_the_future_is_discounted_once(n_step: int) -> None:
    np.testing.assert_allclose(learned_q("DelayedReward-v0", [[0.0], [1.0]], n_step=n_step), [[0.9, 0.9], [1, 1]], atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("n_step", [1, 3])
def test_truncation_bootstraps_from_the_final_observation(n_step: int) -> None:
    env, params = rljax.make_env("TruncationProbe-v0")
    first, later = truncation_probe_values(0.9, params)
    wrong = [truncation_probe_values(0.9, params, bootstrap)[1] for bootstrap in ("none", "reset")]
    q = learned_q(env.name, [[1.0, 0.0], [0.0, 1.0]], n_step=n_step, total_timesteps=24_000, huber_delta="none")
    np.testing.assert_allclose(q, [[first, first], [later, later]], atol=1.0)
    assert all(abs(later - value) > 3.0 for value in wrong)


@pytest.mark.slow
def test_masked_arms_are_never_taken_nor_bootstrapped_from() -> None:
    settings = rljax.DQNConfig(**{**PROBE, "env": "MaskedBandit-v0", "total_timesteps": 20_000, "epsilon_end": 0.1})
    agent = rljax.make_agent(settings)
    returns = jax.jit(lambda key: rljax.evaluate(agent, rljax.make_train(settings)(key).state, key))(jax.random.key(0))
    np.testing.assert_array_equal(returns, 4.0)


# Bad input.


class Normed(nn.Module):
    @nn.compact
    def __call__(self, obs: jax.Array) -> Any:
        return nn.Dense(2)(nn.BatchNorm(use_running_average=True)(obs))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"batch_size": 300}, "batch_size = 300: expected at most the 256 transitions of the buffer"),
        ({"learning_starts": 700, "buffer_size": 1000}, "total_timesteps = 640: expected at least 700 in whole"),
        ({"learning_starts": 250, "total_timesteps": 255}, "total_timesteps = 255: expected at least 252 in whole iterations"),
        ({"total_timesteps": 10**13}, "total_timesteps = 10000000000000: expected fewer than"),
        ({"network": {"type": "cnn"}}, "observation of shape .* expected an image .* for encoder = 'cnn'"),
        ({"network": nn.Dense(2), "dueling": True}, "dueling = true: needs a network given as a table"),
        ({"network": Normed()}, "expected parameters only, but it has variables of"),
        ({"learning_starts": 300}, "learning_starts = 300: expected at most the 256 steps of the buffer"),
        ({"train_every": 3}, "train_every = 3: must divide num_steps = 8"),
        ({"buffer_size": 4, "n_step": 3}, "buffer_size = 4: expected at least 12, 3 rows of num_envs = 4 steps: a sample takes"),
        ({"total_timesteps": 31, "learning_starts": 5}, "total_timesteps = 31: expected at least num_envs . num_steps = 32"),
        ({"n_step": 0}, "n_step = 0: expected a whole number > 0"),
        ({"tau": 0.0}, "tau = 0.0: expected a number > 0 and <= 1"),
        ({"epsilon_end": 1.5}, "epsilon_end = 1.5: expected a number >= 0 and <= 1"),
        ({"env": "Pendulum-v1"}, r"env = Pendulum-v1: DQN needs a Discrete action space, not a Box; PPO takes every space"),
        ({"env": "MultiDiscreteMatch-v0"}, "DQN needs a Discrete action space, not a MultiDiscrete"),
        ({"network": {"type": "cnn", "channels": [4]}}, "expected channels, kernels and strides of one length"),
        ({"network": {"shared": True}}, "network.shared: unknown key"),
        ({"network": nn.Dense(7)}, r"network = Dense: expected values \[B, 2\], one for each action"),
    ],
)
def test_bad_input_is_one_line(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(rljax.ConfigError, match=expected) as error:
        rljax.make_agent(config(**changes))
    assert "\n" not in str(error.value)
