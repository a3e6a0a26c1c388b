"""Behavioural cloning: its loss, its values and its memory against plain computations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.policy import policy_and_value, unroll
from rljax.algos.common.state import normalize_obs
from rljax.algos.imitation.bc import Lesson, bc_init, bc_loss, bc_parts, bc_update, held_out_metrics, value_targets
from rljax.algos.imitation.parts import policy_action
from rljax.collect.demos import open_dataset
from tests.algos.imitation.recorded import balances, record

CONFIG = rljax.BCConfig(num_envs=3, num_steps=8, num_minibatches=1, network={"hidden": [8]}, eval_every=None)
MEMORY = CONFIG.replace(env="TMaze-v0", network={"type": "gru", "hidden": [6], "size": 5}, env_params={"length": 3})


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demos") / "cartpole"
    record(folder, "CartPole-v1", lambda key, obs, state: balances(key, obs, state) ^ jax.random.bernoulli(key, 0.3), 12, 30)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("num_minibatches", [1, 2])
def test_a_window_of_numpy_arrays_teaches_without_jit_what_it_teaches_within(cartpole: Path, num_minibatches: int) -> None:
    parts = bc_parts(CONFIG.replace(num_envs=4, num_minibatches=num_minibatches))
    state, window = bc_init(parts, jax.random.key(0)), open_dataset(cartpole).windows(4, 8).read(0)
    assert isinstance(window.obs, np.ndarray)
    after, metrics = bc_update(parts, state, window)
    expected, _ = jax.jit(lambda state, window: bc_update(parts, state, window))(state, window)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), after.params, expected.params)
    assert np.isfinite(metrics["train/loss"])


def turns(key: jax.Array, obs: Any, state: Any) -> jax.Array:
    """The best policy of the T-maze."""
    return jnp.where(obs[3] > 0, state.side + 1, 0).astype(jnp.int32)


@pytest.fixture(scope="module")
def tmaze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demos") / "tmaze"
    record(folder, "TMaze-v0", turns, 20, 6, {"length": 3})
    return folder


def log_softmax(x: Any) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_the_loss_of_named_heads_is_their_cross_entropy_and_only_choices_count() -> None:
    """Of three heads: the second step has a verb without a choice, and the third an action that is not legal."""
    config = CONFIG.replace(env="Composite-v0", label_smoothing=0.1, vf_coef=0.5, huber_delta=1.0)
    parts = bc_parts(config)
    obs = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    given = {"verb": jnp.array([3, 1, 0]), "target": jnp.array([2, 2, 0]), "amount": jnp.array([1, 0, 1])}
    action = policy_action(parts.env, parts.env_params, parts.head, given)
    np.testing.assert_array_equal(action, [[3, 2, 1], [1, 2, 0], [0, 0, 1]])
    mask = np.ones((3, 10), bool)
    mask[1, [0, 2, 3]] = False
    mask[2, 4] = False

    @jax.jit
    def computed(key: jax.Array) -> Any:
        params = jax.tree.map(lambda x: x + 0.1, bc_init(parts, key).params)
        outputs, value, _ = policy_and_value(parts, params, obs)
        target = jnp.asarray(value) + jnp.array([0.5, 3.0, 7.0])
        lesson = Lesson(obs, action, jnp.asarray(mask), target, jnp.array([True, True, False]), None, None)
        return outputs, *bc_loss(parts, params, lesson)

    outputs, loss, metrics = computed(jax.random.key(0))

    expected, right = 0.0, {name: [] for name in given}  # type: ignore[var-annotated]
    for t in range(3):
        for name, (start, size) in {"verb": (0, 4), "target": (4, 4), "amount": (8, 2)}.items():
            legal = mask[t, start : start + size]
            log_prob = np.full(size, -np.inf)
            log_prob[legal] = log_softmax(np.asarray(outputs)[t, start : start + size][legal])
            label = int(given[name][t])
            if legal[label]:
                expected -= 0.9 * log_prob[label]
            expected -= 0.1 * log_prob[legal].mean()
            if legal.sum() > 1:
                right[name].append(log_prob.argmax() == label)
    values = (0.125 + 2.5) / 2
    assert float(metrics["train/policy_loss"]) == pytest.approx(expected / 3, rel=1e-4)
    assert float(metrics["train/value_loss"]) == pytest.approx(values, rel=1e-4)
    assert float(loss) == pytest.approx(expected / 3 + 0.5 * values, rel=1e-4)
    for name, each in right.items():
        assert float(metrics[f"train/accuracy_{name}"]) == pytest.approx(np.mean(each))
    assert len(right["verb"]) == 2
    assert float(metrics["train/illegal_actions"]) == pytest.approx(1 / 3)


def begun(config: rljax.BCConfig) -> tuple[Any, Any]:
    """Parts, and the state before the first iteration."""
    parts = bc_parts(config)
    return parts, jax.jit(lambda key: bc_init(parts, key))(jax.random.key(0))


def test_values_are_returns_to_go_up_to_the_end_of_the_window(cartpole: Path) -> None:
    parts, state = begun(CONFIG.replace(gamma=0.9))
    window = open_dataset(cartpole).windows(3, 40).read(1)
    reward = np.arange(120, dtype=np.float32).reshape(40, 3)

    @jax.jit
    def computed(state: Any) -> Any:
        _, value, _ = policy_and_value(parts, state.params, window.obs)
        return value, *value_targets(parts, state, window.obs, jnp.asarray(reward), window)

    value, target, known = map(np.asarray, computed(state))
    done = window.terminated | window.truncated
    assert window.truncated.any()
    assert window.terminated.any()
    for stream in range(3):
        after = float(value[-1, stream])
        for t in reversed(range(40)):
            if t == 39 and not done[t, stream]:
                assert not known[t, stream]
                continue
            if done[t, stream]:
                after = 0.0 if window.terminated[t, stream] else float(value[t, stream])
            after = reward[t, stream] + 0.9 * after
            assert known[t, stream]
            assert float(target[t, stream]) == pytest.approx(after, rel=1e-4)


@pytest.mark.slow
def test_memory_goes_on_from_window_to_window_and_begins_anew_with_episodes(tmaze: Path) -> None:
    parts = bc_parts(MEMORY.replace(learning_rate=0.0))
    state = bc_init(parts, jax.random.key(0))
    windows = open_dataset(tmaze).windows(3, 8)
    long = jax.tree.map(lambda *x: np.concatenate(x), *[windows.read(i) for i in range(3)])
    assert long.begins[1:].any()
    *_, last = unroll(parts, state.params, long.obs, state.carry, long.begins)
    update = jax.jit(lambda state, window: bc_update(parts, state, window))
    for number in range(3):
        state, _ = update(state, windows.read(number))
    np.testing.assert_allclose(state.carry, last, rtol=1e-5, atol=1e-6)
    # A stream whose next window begins with an episode forgets what came before.
    one = jax.tree.map(lambda x: x[:1], windows.read(0))
    assert one.begins.all()
    fresh, full = (unroll(parts, state.params, one.obs, carry, one.begins)[0] for carry in (state.carry, 7.0 + state.carry))
    np.testing.assert_array_equal(fresh, full)


def test_held_out_episodes_are_measured_and_never_learned_from(cartpole: Path) -> None:
    parts, state = begun(CONFIG)
    dataset = open_dataset(cartpole, held_out=0.25)
    windows, learned = dataset.windows(3, 8, held_out=True), dataset.windows(3, 8)
    assert not np.isin(np.unique([learned.read(i).episode for i in range(9)]), dataset.held_out).any()

    def feed(number: jax.Array) -> Any:
        return jax.tree.map(lambda *x: jnp.stack(x)[number], windows.read(0), windows.read(1))

    found = jax.jit(lambda state: held_out_metrics(parts, state, feed, 2))(state)
    both = jax.tree.map(lambda *x: np.concatenate(x), windows.read(0), windows.read(1))
    assert np.isin(both.episode, dataset.held_out).all()
    outputs, _, _ = jax.jit(lambda params, obs: policy_and_value(parts, params, obs))(state.params, both.obs)
    log_prob = np.take_along_axis(log_softmax(outputs), both.action[..., None], -1)
    assert float(found["eval/held_out_loss"]) == pytest.approx(-log_prob.mean(), rel=1e-4)
    assert float(found["eval/held_out_accuracy"]) == pytest.approx((np.asarray(outputs).argmax(-1) == both.action).mean())


def test_every_step_of_held_out_episodes_is_measured_once(cartpole: Path) -> None:
    """With more streams than episodes, too: windows of training would have the beginnings twice and no ends."""
    config = CONFIG.replace(dataset=str(cartpole), held_out=0.25, num_envs=16, num_steps=8, num_minibatches=1)
    agent = rljax.make_agent(config)
    state = jax.jit(agent.init)(jax.random.key(0))
    assert agent.report is not None
    found = jax.jit(agent.report)(state)
    dataset = open_dataset(cartpole, held_out=0.25)
    losses, right = [], []
    for number in dataset.held_out.tolist():
        episode = dataset.episode(number)
        action = episode["action"]
        outputs, _, _ = policy_and_value(bc_parts(config), state.params, normalize_obs(state, episode["obs"][: len(action)]))
        losses.extend(-np.take_along_axis(log_softmax(outputs), action[:, None], -1)[:, 0])
        right.extend(np.asarray(outputs).argmax(-1) == action)
    assert len(dataset.held_out) < 16
    assert float(found["eval/held_out_loss"]) == pytest.approx(np.mean(losses), rel=1e-4)
    assert float(found["eval/held_out_accuracy"]) == pytest.approx(np.mean(right), rel=1e-5)


def test_held_out_episodes_are_those_of_the_averaged_policy(cartpole: Path) -> None:
    config = CONFIG.replace(dataset=str(cartpole), held_out=0.25, average_decay=0.9)
    agent = rljax.make_agent(config)
    assert agent.report is not None
    state = jax.jit(agent.init)(jax.random.key(0))
    moved = state.replace(params=jax.tree.map(lambda x: x + 0.1, state.params))
    report = jax.jit(agent.report)
    np.testing.assert_array_equal(report(moved)["eval/held_out_loss"], report(state)["eval/held_out_loss"])
    both = moved.replace(average_params=moved.params)
    assert float(report(both)["eval/held_out_loss"]) != float(report(state)["eval/held_out_loss"])


@pytest.mark.slow
def test_a_log_reports_the_returns_of_the_demonstrations(cartpole: Path) -> None:
    agent = rljax.make_agent(CONFIG.replace(dataset=str(cartpole), held_out=0.0))
    step, state = jax.jit(agent.step), jax.jit(agent.init)(jax.random.key(0))
    windows, episodes = open_dataset(cartpole).windows(3, 8, seed=0), open_dataset(cartpole).episodes
    for number in range(5):
        state, metrics = step(state)
        window = windows.read(number)
        ended = window.episode[window.terminated | window.truncated]
        assert float(metrics["episode/count"]) == len(ended)
        if len(ended):
            assert float(metrics["episode/return"]) == pytest.approx(episodes.returns[ended].mean(), rel=1e-5)
    assert int(state.iteration) == 5


def test_clones_with_continuous_actions_train_under_vmap_over_their_numbers() -> None:
    configs = [CONFIG.replace(env="Pendulum-v1", learning_rate=rate) for rate in (1e-3, 1e-2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *configs)
    states = jax.eval_shape(jax.vmap(lambda config: rljax.make_agent(config).init(jax.random.key(0))), stacked)
    assert states.iteration.shape == (2,)


@pytest.mark.slow
def test_bad_input_is_one_clear_line(cartpole: Path, tmp_path: Path) -> None:
    def message(config: Any) -> str:
        with pytest.raises(rljax.ConfigError) as error:
            rljax.fit(config, run_dir=tmp_path / "run")
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "dataset = none: expected the folder of a dataset" in message(CONFIG)
    assert "no dataset there" in message(CONFIG.replace(dataset=str(tmp_path)))
    assert "was recorded in CartPole-v1, but env = 'Acrobot-v1'" in message(
        CONFIG.replace(dataset=str(cartpole), env="Acrobot-v1")
    )
    assert "label_smoothing = 0.1: is for discrete actions" in message(CONFIG.replace(env="Pendulum-v1", label_smoothing=0.1))
    assert "num_minibatches = 2: must divide num_envs = 3 for a network with memory" in message(MEMORY.replace(num_minibatches=2))
    assert not (tmp_path / "run").exists()
    with pytest.raises(rljax.ConfigError, match=r"held_out = 1\.0: expected a number >= 0 and <= 0\.9"):
        CONFIG.replace(held_out=1.0)
