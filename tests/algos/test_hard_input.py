"""Input that once broke a run: each is trained through, or refused in one clear line."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax.algos.common.training import evaluation_due
from rljax.algos.ppo import annealed

TINY = {"num_envs": 2, "num_steps": 8, "num_epochs": 1, "num_minibatches": 1, "total_timesteps": 32, "network": {"hidden": [8]}}


@pytest.mark.slow
def test_an_environment_whose_constructor_looks_at_arrays_is_evaluated_inside_a_trace() -> None:
    config = rljax.PPOConfig(env="FourRooms-misc", time_limit=5, eval_every=16, eval_episodes=2, **TINY)
    rates = jnp.array([1e-3, 2e-3])
    train = jax.jit(jax.vmap(lambda rate: rljax.make_train(config.replace(learning_rate=rate))(jax.random.key(0))))
    metrics = train(rates).metrics
    assert np.isfinite(metrics["eval/return"]).all()
    assert metrics["train/policy_loss"].shape == (2, 2)


def test_the_learning_rate_stays_at_zero_after_the_last_iteration() -> None:
    config = rljax.PPOConfig(**TINY)
    assert [float(annealed(config, jnp.int32(i))) for i in (2, 3, 100)] == [0.0, 0.0, 0.0]


@pytest.mark.slow
def test_constant_rewards_are_normalised_to_something_finite() -> None:
    config = rljax.PPOConfig(env="ConstantReward-v0", normalize_rewards=True, **TINY)
    metrics = jax.jit(rljax.make_train(config))(jax.random.key(0)).metrics
    assert np.max(metrics["train/value_loss"]) < 100.0  # rewards of at most 10, not of 10,000


@pytest.mark.parametrize(("every", "steps"), [(500, 64), (64, 64), (1000, 384), (7, 64), (65, 64), (1_000_000, 512)])
def test_evaluation_is_due_at_each_crossing_also_beyond_two_to_the_31_steps(every: int, steps: int) -> None:
    late = 2**31 // steps
    for iteration in [*range(200), *range(late, late + 200)]:
        crossed = (iteration + 1) * steps // every > iteration * steps // every
        assert bool(evaluation_due(every, steps, jnp.int32(iteration))) == crossed


def test_an_interval_that_cannot_be_worked_out_is_named_by_its_field() -> None:
    with pytest.raises(rljax.ConfigError, match=r"^exploitability_every = 2147483647: expected a multiple of .* = 1024$"):
        evaluation_due(2**31 - 1, 1024, jnp.int32(0), "exploitability_every")


class Line(rljax.Environment):
    """A correct environment; the tests below each replace one function of it by a wrong one."""

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        return jnp.zeros(1), jnp.int32(0)

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return jnp.zeros(1), state + 1, 1.0, state > 5, {}

    def observation_space(self, params: Any) -> Any:
        return rljax.Box(-1.0, 1.0, (1,))

    def action_space(self, params: Any) -> Any:
        return rljax.Discrete(2)


def python_if(self: Any, key: Any, state: Any, action: Any, params: Any) -> Any:
    return jnp.zeros(1), state, 1.0 if state > 5 else 0.0, state > 5, {}


WRONG: list[tuple[str, Any, str]] = [
    ("reset_env", lambda self, key, params: jnp.zeros(1), "reset_env returned float32[1], expected 2: (obs, state)"),
    ("reset_env", lambda self, key, params: (jnp.zeros(1), 0, {}), "reset_env returned 3 values, expected 2"),
    ("step_env", lambda self, *_: None, "step_env returned None, expected 5"),
    ("step_env", lambda self, k, s, a, p: (jnp.zeros(1), s, None, s > 5, {}), "a reward None, expected a float scalar"),
    ("step_env", lambda self, k, s, a, p: (jnp.zeros(1), s, 1.0, s > 5, None), "an info None, expected a dictionary"),
    (
        "step_env",
        lambda self, k, s, a, p: (jnp.zeros(1), s, 1.0, s > 5, s > 8, {}),
        "returned 6 values, expected 5: (obs, state, reward, terminated, info); that a time limit ends the episode is said by",
    ),
    (
        "step_env",
        lambda self, k, s, a, p: (jnp.zeros(1), 1.0, s > 5, s > 8, {}),
        "step_env returned Gymnasium's (obs, reward, terminated, truncated, info), expected 5: (obs, state, reward,",
    ),
    (
        "reset_env",
        lambda self, key, params: (jnp.zeros(1), Fraction(1, 2)),
        "reset_env returned a Fraction in its result ([1]), expected arrays and numbers in dictionaries, tuples, NamedTuples",
    ),
    (
        "step_env",
        lambda self, k, s, a, p: (jnp.zeros(1), s + 1, 1.0, s > 5, {"where": "here"}),
        "step_env returned a str in its result ([4]['where']), expected arrays and numbers",
    ),
    ("step_env", python_if, "step_env looks at a traced value with Python's if"),
    ("step_env", lambda self, *_: 1 / 0, "step_env raised ZeroDivisionError"),
    ("action_space", lambda self, params: 2, "action_space: 2 is not a space"),
    ("observation_space", rljax.Environment.observation_space, "must define observation_space"),
    ("step_env", rljax.Environment.step_env, "must define step_env"),
]


@pytest.mark.parametrize(("name", "function", "expected"), WRONG)
def test_a_wrong_environment_is_one_line(name: str, function: Any, expected: str) -> None:
    broken = type("Broken", (Line,), {name: function})()
    with pytest.raises(rljax.ConfigError) as error:
        rljax.make_agent(rljax.PPOConfig(env=broken, **TINY))
    assert str(error.value).startswith("environment Broken: ")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


class Named(NamedTuple):
    """A state of all kinds of parts."""

    time: Any
    nothing: Any
    empty: Any
    held: Any


@struct.dataclass
class Held:
    key: Any
    number: Any
    name: str = struct.field(pytree_node=False, default="held")


class Varied(Line):
    """A correct environment with an unusual state."""

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        return np.zeros(1, np.float32), Named(0, None, (), Held(key, np.int64(3)))

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        held = state.held.replace(key=key, number=state.held.number + 1)
        return jnp.zeros(1), state._replace(time=state.time + 1, held=held), 1.0, state.time > 5, {"five": 5}


@pytest.mark.slow
@pytest.mark.parametrize("reset", ["each", "pool", "optimistic"])
def test_states_of_all_kinds_of_parts_train(reset: str) -> None:
    train = rljax.make_train(rljax.PPOConfig(**{**TINY, "env": Varied(), "reset": reset}))
    metrics = jax.jit(train)(jax.random.key(0)).metrics
    lengths = metrics["episode/length"][metrics["episode/count"] > 0]
    assert len(lengths) > 0
    np.testing.assert_array_equal(lengths, 7)


class Normed(nn.Module):
    @nn.compact
    def __call__(self, obs: jax.Array) -> Any:
        x = nn.BatchNorm(use_running_average=True)(obs)
        return nn.Dense(2)(x), nn.Dense(1)(x)[..., 0]


class Convolution(nn.Module):
    @nn.compact
    def __call__(self, obs: jax.Array) -> Any:
        x = nn.Conv(4, (3, 3), padding="VALID")(obs[:, None, None, :][:, 0, 0, :, None][:, 5])
        return nn.Dense(2)(x), nn.Dense(1)(x)[..., 0]


class Forgetful(nn.Module):
    @nn.compact
    def __call__(self, obs: jax.Array) -> Any:
        x = nn.Dropout(0.5, deterministic=False)(nn.Dense(4)(obs))
        return nn.Dense(2)(x), nn.Dense(1)(x)[..., 0]


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (Normed(), "expected parameters only"),
        (Convolution(), "cannot be applied"),
        (Forgetful(), 'a function of observations alone, but it draws numbers: .* needs PRNG for "dropout"'),
    ],
)
def test_a_network_that_cannot_be_trained_is_one_line(network: nn.Module, expected: str) -> None:
    with pytest.raises(rljax.ConfigError, match=expected) as error:
        rljax.make_agent(rljax.PPOConfig(**{**TINY, "network": network}))
    assert "\n" not in str(error.value)


def test_what_is_no_path_callback_or_progress_is_one_line() -> None:
    config: Any = rljax.PPOConfig(**TINY)
    cases: list[tuple[Any, str]] = [
        (lambda: rljax.load(None), "None: expected the path of a run"),  # type: ignore[arg-type]
        (lambda: rljax.load_run(3), "3: expected the path of a run"),  # type: ignore[arg-type]
        (lambda: rljax.plot(None), "runs = None: expected run folders, or metrics"),
        (lambda: rljax.fit(config, callback="x"), "callback = 'x': expected a function of"),  # type: ignore[arg-type]
        (lambda: rljax.fit(config, progress="x"), "progress = 'x': expected true, false, or an object"),  # type: ignore[arg-type]
    ]
    for call, message in cases:
        with pytest.raises(rljax.ConfigError, match=message):
            call()


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (lambda: rljax.Dict(None), r"Dict\(None\): expected a dictionary of spaces"),  # type: ignore[arg-type]
        (lambda: rljax.core.environments.spaces.Tuple(3), r"Tuple\(3\): expected a tuple of spaces"),  # type: ignore[arg-type]
        (lambda: rljax.Discrete(jnp.int32(2)), r"Discrete\(Array\(2.*, expected a number of elements that is no array"),  # type: ignore[arg-type]
    ],
)
def test_spaces_of_something_else_are_one_line(space: Any, message: str) -> None:
    class Own(type(rljax.make_env("CartPole-v1")[0])):  # type: ignore[misc]
        def action_space(self, params: Any) -> Any:
            return space()

    with pytest.raises(rljax.ConfigError, match=message):
        rljax.check_environment(Own())


def test_names_instead_of_configurations_and_bad_numbers_are_refused() -> None:
    with pytest.raises(rljax.ConfigError, match="is not a configuration: expected for example"):
        rljax.make_agent("cartpole_ppo")  # type: ignore[arg-type]
    with pytest.raises(rljax.ConfigError, match="did you mean 'learning_rate'"):
        rljax.PPOConfig(learnin_rate=1.0)  # type: ignore[call-arg]
    with pytest.raises(rljax.ConfigError, match="learning_rate = "):
        rljax.PPOConfig(learning_rate=jnp.float32(-1.0))  # type: ignore[arg-type]
    with pytest.raises(rljax.ConfigError, match="seed = 4294967296"):
        rljax.PPOConfig(seed=2**32)
    with pytest.raises(rljax.ConfigError, match="expected fewer than"):
        rljax.PPOConfig(total_timesteps=10**13)
    agent = rljax.make_agent(rljax.PPOConfig(**TINY))
    state, key = agent.init(jax.random.key(0)), jax.random.key(1)
    for number in (0, 2.5, True):
        with pytest.raises(rljax.ConfigError, match=f"num_episodes = {number}: expected a whole number > 0"):
            rljax.evaluate(agent, state, key, num_episodes=number)  # type: ignore[arg-type]
        with pytest.raises(rljax.ConfigError, match=f"episodes = {number}: expected a whole number > 0"):
            rljax.record(agent, state, "x.gif", key=key, episodes=number)  # type: ignore[arg-type]
        with pytest.raises(rljax.ConfigError, match=f"num_games = {number}: expected a whole number > 0"):
            rljax.tournament({"a": (agent, state)}, key=key, num_games=number)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "table",
    [
        {"intrinsic": {"type": "count", "resolution": 2**31}},
        {"randomize": {"gravity": [1, 2**31]}},
        {"curriculum": {"type": "success", "levels": [{"gravity": 5.0}, {"gravity": 9.8}], "success": -(10**18)}},
        {"curriculum": {"type": "success", "levels": [{"gravity": 5.0}], "success": 1, "decay": 1, "min_episodes": 2**31}},
    ],
)
def test_whole_numbers_beyond_32_bits_are_numbers_in_tables(table: dict[str, Any]) -> None:
    """Traced only: JAX refuses them as 32-bit integers."""
    agent = rljax.make_agent(rljax.PPOConfig(env="CartPole-v1", **TINY | table))
    _, metrics = jax.eval_shape(lambda key: agent.step(agent.init(key)), jax.random.key(0))
    assert "train/policy_loss" in metrics


@pytest.mark.slow
def test_an_environment_given_as_an_object_is_never_loaded_as_another(tmp_path: Any) -> None:
    """A changed CartPole is still named CartPole-v1, but is not what that id builds."""
    cartpole = type("Changed", (rljax.make_env("CartPole-v1")[0].__class__,), {})()
    rljax.fit(rljax.PPOConfig(env=cartpole, **TINY), run_dir=tmp_path / "run")
    with pytest.raises(
        rljax.ConfigError, match=r"object of class Changed: in Python give it again, load_run\(path, env=\.\.\.\)"
    ):
        rljax.load_run(tmp_path / "run")
    assert rljax.load_run(tmp_path / "run", env=cartpole).step == 32
