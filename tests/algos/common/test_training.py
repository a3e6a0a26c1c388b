"""Training as one pure function of a key: vmap, repetition, no retracing, no key used twice, evaluation that changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import PPOConfig, TrainResult, evaluate, make_agent, make_train
from rljax.algos.common.training import evaluation_metrics, train_iteration
from rljax.core.operations import programs_of
from rljax.envs.probes import ActionReward

CONFIG = PPOConfig(
    env="ActionReward-v0",
    num_envs=4,
    num_steps=8,
    num_minibatches=2,
    num_epochs=2,
    total_timesteps=200,  # 6 iterations of 32
    network={"hidden": [8]},
    learning_rate=1e-2,
)
# Due at 50, 100, 150: after iterations 2 (64 steps), 4 (128) and 5 (160), none of them a multiple; and at the end, after 6.
EVALUATED = CONFIG.replace(eval_every=50, eval_episodes=8)


class CountedActionReward(ActionReward):
    """Counts in Python how often it is traced."""

    traces = 0

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        type(self).traces += 1
        return super().step_env(key, state, action, params)


def as_data(tree: Any) -> Any:
    """The tree with keys as the numbers they are."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)


def assert_equal(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, as_data(a), as_data(b))


def assert_close(a: Any, b: Any) -> None:
    """Equal to rounding, which chaos amplifies with every iteration: the runs here are short."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4), as_data(a), as_data(b))


def difference(a: Any, b: Any) -> float:
    return max(float(jnp.max(jnp.abs(x - y))) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.fixture(scope="module")
def train() -> Callable[[jax.Array], TrainResult]:
    return jax.jit(make_train(CONFIG))


@pytest.fixture(scope="module")
def train_evaluated() -> Callable[[jax.Array], TrainResult]:
    return jax.jit(make_train(EVALUATED.replace(env=CountedActionReward())))


@pytest.fixture(scope="module")
def keys() -> jax.Array:
    return jax.random.split(jax.random.key(7), 3)


@pytest.fixture(scope="module")
def singles(train: Callable[[jax.Array], TrainResult], keys: jax.Array) -> list[TrainResult]:
    return [train(key) for key in keys]


def test_two_runs_with_one_key_are_identical_bit_for_bit(train: Any, keys: jax.Array, singles: list[TrainResult]) -> None:
    assert_equal(train(keys[0]), singles[0])


def test_two_keys_give_two_runs(singles: list[TrainResult]) -> None:
    assert difference(singles[0].state.params, singles[1].state.params) > 1e-2
    assert (
        difference(singles[0].state.obs, singles[1].state.obs) > 0 or difference(singles[0].state.obs, singles[2].state.obs) > 0
    )


def test_training_changes_the_parameters_every_iteration_and_counts_them(singles: list[TrainResult]) -> None:
    assert singles[0].state.iteration == CONFIG.num_iterations == 6
    assert np.all(singles[0].metrics["train/grad_norm"] > 0)
    assert len(np.unique(singles[0].metrics["train/value_loss"])) == 6


def test_metrics_are_one_f32_number_per_iteration(singles: list[TrainResult]) -> None:
    metrics = singles[0].metrics
    assert {"episode/return", "episode/length", "episode/count", "train/policy_loss", "train/value", "train/grad_norm"} <= set(
        metrics
    )
    assert list(metrics) == sorted(metrics)
    for name, value in metrics.items():
        assert (value.shape, value.dtype, value.weak_type) == ((6,), jnp.float32, False), name
        assert np.all(np.isfinite(value)), name
    # Episodes of one step: each of the 32 steps ends one.
    np.testing.assert_array_equal(metrics["episode/count"], 32)
    np.testing.assert_array_equal(metrics["episode/length"], 1)


@pytest.fixture(scope="module")
def sweep(keys: jax.Array) -> TrainResult:
    """The three keys at the config's learning rate, then the first key at two other rates: one program."""

    def run(learning_rate: jax.Array, key: jax.Array) -> TrainResult:
        return make_train(CONFIG.replace(learning_rate=learning_rate))(key)

    rates = jnp.array([CONFIG.learning_rate] * 3 + [0.0, 1e-3])
    return jax.jit(jax.vmap(run))(rates, keys[jnp.array([0, 1, 2, 0, 0])])


@pytest.mark.slow
def test_seeds_under_vmap_equal_single_runs(sweep: TrainResult, singles: list[TrainResult]) -> None:
    for i, single in enumerate(singles):
        assert_close(jax.tree.map(lambda x, i=i: x[i], sweep), single)


def test_a_sweep_over_the_learning_rate_is_one_vmap(sweep: TrainResult, keys: jax.Array) -> None:
    np.testing.assert_allclose(sweep.metrics["train/learning_rate"][2:, 0], [CONFIG.learning_rate, 0.0, 1e-3], rtol=1e-6)
    initial = jax.jit(make_agent(CONFIG).init)(keys[0]).params
    whole, none, little = (difference(jax.tree.map(lambda x, i=i: x[i], sweep.state.params), initial) for i in (0, 3, 4))
    assert none < 1e-6 < little < whole


def conditions(jaxpr: Any) -> list[Any]:
    """The conditions of a program and of its loops, without those that choose by platform."""
    found = [e for e in jaxpr.eqns if e.primitive.name == "cond" and e.params.get("branches_platforms") is None]
    return found + [x for equation in jaxpr.eqns for program in programs_of(equation.params) for x in conditions(program)]


def test_an_evaluation_that_is_not_due_is_skipped_under_vmap_too(keys: jax.Array) -> None:
    # A condition that depended on the seed would become a select, and every iteration would evaluate.
    (condition,) = conditions(jax.make_jaxpr(jax.vmap(make_train(EVALUATED)))(keys).jaxpr)
    assert any("while[" in str(branch) for branch in condition.params["branches"])


@pytest.mark.slow
def test_evaluation_is_due_each_time_another_eval_every_steps_have_been_taken_and_at_the_end(
    train_evaluated: Any, keys: jax.Array
) -> None:
    metrics = train_evaluated(keys[0]).metrics
    due = [False, True, False, True, True, True]
    for name in ("eval/return", "eval/length", "eval/count"):
        np.testing.assert_array_equal(np.isfinite(metrics[name]), due)
    np.testing.assert_array_equal(metrics["eval/count"][np.array(due)], 8)
    np.testing.assert_array_equal(metrics["eval/length"][np.array(due)], 1)
    assert np.all(np.abs(metrics["eval/return"][np.array(due)]) <= 1)


def test_evaluation_has_no_influence_on_training(train_evaluated: Any, keys: jax.Array, singles: list[TrainResult]) -> None:
    evaluated = train_evaluated(keys[0])
    assert_equal(evaluated.state, singles[0].state)
    for name, values in singles[0].metrics.items():
        np.testing.assert_array_equal(evaluated.metrics[name], values)
    assert set(evaluated.metrics) == set(singles[0].metrics) | {"eval/return", "eval/length", "eval/count"}


def test_nothing_is_traced_again_by_a_second_call(train_evaluated: Any, keys: jax.Array) -> None:
    train_evaluated(keys[0])
    before = CountedActionReward.traces
    assert before > 0
    train_evaluated(keys[1])
    train_evaluated(keys[2])
    assert CountedActionReward.traces == before


def test_a_step_keeps_every_type_weakness_included_so_that_the_next_does_not_compile() -> None:
    config = CONFIG.replace(normalize_observations=True, normalize_rewards=True, target_kl=0.1, clip_rewards=1.0, time_limit=5)
    for env in (
        "ActionReward-v0",
        "MaskedBandit-v0",
        "MultiDiscreteMatch-v0",
        "BoxTarget-v0",
        "TruncationProbe-v0",
        "CartPole-v1",
    ):
        agent = make_agent(config.replace(env=env))
        state = jax.eval_shape(agent.init, jax.random.key(0))
        after, _ = jax.eval_shape(agent.step, state)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        for (path, x), y in zip(jax.tree.leaves_with_path(state), jax.tree.leaves(after), strict=True):
            where = env + jax.tree_util.keystr(path)
            assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, y.weak_type), where
            assert not x.weak_type, where


def test_old_style_keys_are_accepted_and_equal_to_typed_ones(keys: jax.Array, singles: list[TrainResult]) -> None:
    del keys
    init = make_agent(CONFIG).init
    assert_equal(jax.jit(init)(jax.random.PRNGKey(3)), jax.jit(init)(jax.random.key(3)))
    shapes = jax.eval_shape(make_train(CONFIG), jax.random.PRNGKey(3))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes) == jax.tree.map(lambda x: (x.shape, x.dtype), singles[0])
    with pytest.raises(TypeError, match="expected a random key"):
        make_train(CONFIG)(jnp.zeros(3))


@pytest.fixture
def key_reuse_checker() -> Iterator[None]:
    with jax.debug_key_reuse(True):
        yield


@pytest.mark.usefixtures("key_reuse_checker")
def test_the_key_reuse_checker_sees_inside_jit_and_scan() -> None:
    def reuse(key: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda k, _: (k, jax.random.normal(k)), key, None, 3)[1]

    with pytest.raises(jax.errors.KeyReuseError):
        jax.jit(reuse).trace(jax.random.key(0))


@pytest.mark.usefixtures("key_reuse_checker")
@pytest.mark.parametrize("env", ["MaskedBandit-v0", "BoxTarget-v0"])
def test_no_key_is_used_twice(env: str) -> None:
    config = CONFIG.replace(env=env, normalize_observations=True, normalize_rewards=True, eval_every=50)
    agent = make_agent(config)

    @jax.jit
    def run(key: jax.Array, eval_key: jax.Array, sample_key: jax.Array) -> Any:
        # Iterations one after the other: from one of a scan to the next the checker does not look.
        state = agent.init(key)
        for iteration in range(2):
            state, _ = train_iteration(agent, state, jnp.asarray(iteration))
        greedy, sampled = evaluate(agent, state, eval_key, 4), evaluate(agent, state, sample_key, 4, deterministic=False)
        return state, greedy, sampled, make_train(config)(state.key)

    run.trace(*jax.random.split(jax.random.key(0), 3))  # the checker works on what is traced


def test_without_an_interval_an_exploitability_is_never_computed() -> None:
    agent = make_agent(CONFIG)._replace(exploitability=lambda state: jnp.float32(1.0))
    assert evaluation_metrics(agent, None, jnp.int32(0)) == {}
