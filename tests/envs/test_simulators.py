"""Simulators outside JAX: their steps are the suite's own, and whatever happens to their processes ends in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

import rljax
from rljax.collect.environments import make_training_env
from rljax.collect.evaluation import play_episodes
from rljax.core.agent import Halves
from rljax.core.environments.wrappers import TimeLimit
from rljax.core.errors import ConfigError, RljaxError, RljaxWarning, TrainingError, TrainingInterrupted
from rljax.core.host import failures_explained
from rljax.core.state import State, buffer, per_environment
from rljax.envs.simulators import environment, processes
from rljax.envs.simulators.environment import close_simulators
from rljax.envs.simulators.spaces import convert_spaces
from rljax.envs.simulators.worker import CHANNELS_FIRST, action_of, leaves, legal, write
from rljax.run.episodes import new_episodes
from tests.run.tiny_runs import TINY

ODD = "gymnasium:odd_simulators:Odd-v0"


@pytest.fixture(autouse=True)
def _ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(Path(__file__).parent)  # for the module of ODD
    yield
    close_simulators()


def seeds_of(keys: jax.Array) -> list[int]:
    return [int(jax.random.bits(key, (), jnp.uint32)) for key in keys]


def process_ids() -> list[int]:
    return [pid for running in environment._running.values() for pid in running.simulators.process_ids]


@pytest.mark.parametrize(
    "name",
    ["CartPole-v1", "odd_simulators:Odd-v0"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("Pendulum-v1", "FrozenLake-v1", "Blackjack-v1")],
)
def test_random_steps_are_the_suites_own(name: str) -> None:
    env, params = rljax.make_env(f"gymnasium:{name}", workers=2)
    keys = jax.random.split(jax.random.key(7), 3)
    action_space, offset = env.action_space(params), getattr(gymnasium.make(name).action_space, "start", 0)
    reset, step = jax.jit(jax.vmap(env.reset, (0, None))), jax.jit(jax.vmap(env.step, (0, 0, 0, None)))
    obs, state = reset(keys, params)
    theirs = [gymnasium.make(name) for _ in keys]
    firsts = [their.reset(seed=seed)[0] for their, seed in zip(theirs, seeds_of(keys), strict=True)]

    def check(ours: Any, row: int, expected: Any) -> None:
        ours, expected = jax.tree.leaves(jax.tree.map(lambda x: np.asarray(x[row]), ours)), jax.tree.leaves(expected)
        for x, y in zip(ours, expected, strict=True):
            np.testing.assert_array_equal(
                x, np.asarray(y, x.dtype) - (3 if name.startswith("odd") and x.dtype == np.int32 else 0)
            )

    for row, first in enumerate(firsts):
        check(obs, row, first)
    ended = 0
    for t in range(100):
        actions = jax.vmap(action_space.sample)(jax.random.split(jax.random.key(t), 3))
        obs, state, reward, terminated, truncated, info = step(keys, state, actions, params)
        for row, their in enumerate(theirs):
            action = np.asarray(actions[row])
            their_obs, their_reward, *ends, _ = their.step(
                action + np.asarray(offset, action.dtype) if action.ndim == 0 else action
            )
            check(info["final_observation"], row, their_obs)
            np.testing.assert_allclose(reward[row], their_reward, rtol=1e-6)
            assert [bool(terminated[row]), bool(truncated[row])] == [bool(x) for x in ends]
            check(obs, row, their.reset()[0] if any(ends) else their_obs)
            ended += any(ends)
    assert ended or name == "Pendulum-v1"


def test_a_time_limit_of_the_configuration_begins_new_episodes() -> None:
    env, params = rljax.make_env("gymnasium:Pendulum-v1")
    limited = TimeLimit(env, 4)
    keys = jax.random.split(jax.random.key(0), 2)
    obs, state = jax.vmap(limited.reset, (0, None))(keys, params)
    theirs = [gymnasium.make("Pendulum-v1") for _ in keys]
    for their, seed in zip(theirs, seeds_of(keys), strict=True):
        their.reset(seed=seed)
    for t in range(12):
        obs, state, _, terminated, truncated, _ = jax.vmap(limited.step, (0, 0, 0, None))(keys, state, jnp.zeros((2, 1)), params)
        assert truncated.tolist() == [t % 4 == 3] * 2
        assert not terminated.any()
        expected = [their.step(np.zeros(1))[0] for their in theirs]
        expected = [their.reset()[0] for their in theirs] if t % 4 == 3 else expected
        np.testing.assert_array_equal(obs, np.stack(expected))


@pytest.mark.parametrize(("limit", "truncated"), [({}, [3]), ({"max_episode_steps": 2}, [2, 4]), ({"max_episode_steps": 0}, [])])
def test_a_limit_of_gymnasium_is_that_of_the_id_or_another_or_none(limit: dict[str, int], truncated: list[int]) -> None:
    env, params = rljax.make_env("gymnasium:odd_simulators:Limited-v0", workers=1, **limit)
    keys, action = jax.random.split(jax.random.key(0), 1), jnp.zeros(1, jnp.int32)
    _, state = jax.vmap(env.reset, (0, None))(keys, params)
    ends = []
    for _ in range(5):
        _, state, _, _, end, _ = jax.vmap(env.step, (0, 0, 0, None))(keys, state, action, params)
        ends.append(bool(end[0]))
    assert (np.flatnonzero(ends) + 1).tolist() == truncated


@pytest.mark.parametrize("name", ["Masked-v0", "MaskedByMethod-v0"])
def test_masks_of_a_simulator_come_across(name: str) -> None:
    env, params = rljax.make_env(f"gymnasium:odd_simulators:{name}", workers=2)
    _, state = jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(0), 2), params)
    for t in range(9):
        mask = jax.vmap(env.action_mask, (0, None))(state, params)
        assert np.asarray(mask).tolist() == [[*(np.arange(3) == t % 7 % 3), t % 7 % 2 == 1, True]] * 2
        keys, actions = jax.random.split(jax.random.key(t), 2), jnp.array([[t % 7 % 3, 1]] * 2)
        _, state, _, terminated, _, _ = jax.vmap(env.step, (0, 0, 0, None))(keys, state, actions, params)
        assert terminated.tolist() == [t == 6] * 2
    raw = jax.vmap(env.reset_env, (0, None))(jax.random.split(jax.random.key(1), 2), params)[1]
    for t in range(7):
        raw = jax.vmap(env.step_env, (None, 0, 0, None))(None, raw, jnp.array([[t % 3, 1]] * 2), params)[1]
    assert raw.terminated.all()
    assert raw.mask.all(), "at an end there is no choice"


@pytest.mark.slow
def test_runs_take_legal_actions_of_simulators() -> None:
    """An illegal action would end the run by an error."""
    result = rljax.fit(TINY["ppo"].replace(env="gymnasium:odd_simulators:Masked-v0", eval_every=320, learning_rate=3e-3))
    returns = result.metrics["eval/return"]
    assert (returns[~np.isnan(returns)] >= 4.0).all(), "four of the seven steps leave no choice"


@pytest.mark.slow
def test_evaluated_episodes_are_played_once_to_their_end() -> None:
    config = rljax.PPOConfig(env="gymnasium:CartPole-v1", num_envs=4, num_steps=8, total_timesteps=64)
    agent = rljax.make_agent(config)
    state = agent.init(jax.random.key(0))
    play = jax.jit(lambda key: play_episodes(agent, state, key, 6))
    results, again, others = play(jax.random.key(1)), play(jax.random.key(1)), play(jax.random.key(2))
    assert results.ended.all()
    np.testing.assert_array_equal(results.returns, results.lengths)
    np.testing.assert_array_equal(results.returns, again.returns)
    assert (results.returns != others.returns).any()
    # The same episodes by hand.
    reset_key, _ = jax.random.split(jax.random.key(1))
    their, act = gymnasium.make("CartPole-v1"), jax.jit(lambda obs: agent.act(state, obs, None, jax.random.key(0), True)[0])
    for row, seed in enumerate(seeds_of(jax.random.split(reset_key, 6))):
        obs, over, length = their.reset(seed=seed)[0], False, 0
        while not over:
            obs, _, terminated, truncated, _ = their.step(int(act(jnp.asarray(obs))))
            over, length = terminated or truncated, length + 1
        assert length == results.lengths[row]


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        ("raises", "a simulator failed in a step: ValueError: the wheel came off$"),
        ("hangs", "a simulator did not answer a step within 1.5 s, so its process was ended; one that is slow"),
        ("exits", "a process of its simulators exited with status 3 in a step$"),
        ("dies", "a process of its simulators was killed by SIGSEGV in a step$"),
        ("shape", r"failed in a reset: ValueError: an observation has the shape \(2,\), its space \(3,\)$"),
    ],
)
def test_what_goes_wrong_in_a_simulator_is_one_line(fails: str, told: str) -> None:
    timeout = 1.5 if fails == "hangs" else 60.0
    env, params = rljax.make_env(ODD, fails=fails, after=3, timeout=timeout, workers=2)

    def play(key: jax.Array) -> Any:
        _, state = jax.vmap(env.reset, (0, None))(jax.random.split(key, 3), params)

        def step(state: Any, key: jax.Array) -> Any:
            _, state, reward, *_ = jax.vmap(env.step, (0, 0, 0, None))(
                jax.random.split(key, 3), state, jnp.zeros(3, jnp.int32), params
            )
            return state, reward

        return jax.lax.scan(step, state, jax.random.split(key, 6))[1]

    with pytest.raises(RljaxError, match=told) as caught, failures_explained():
        jax.block_until_ready(jax.jit(play)(jax.random.key(0)))
    assert str(caught.value).startswith(ODD)
    assert process_ids() == [] or environment._running.popitem()[1].simulators.closed


def test_a_simulator_cannot_go_back() -> None:
    env, params = rljax.make_env("gymnasium:CartPole-v1")
    key = jax.random.key(0)
    _, state = env.reset(key, params)
    _, after, *_ = env.step(key, state, jnp.int32(0), params)
    env.step(key, after, jnp.int32(0), params)
    with pytest.raises(RljaxError, match="a step from a state that its simulator has left behind"), failures_explained():
        jax.block_until_ready(env.step(key, after, jnp.int32(0), params))
    close_simulators()
    with pytest.raises(RljaxError, match="the simulators of this state have ended: they are not saved"), failures_explained():
        jax.block_until_ready(env.step(key, state, jnp.int32(0), params))


def test_at_most_so_many_groups_run() -> None:
    env, params = rljax.make_env("gymnasium:CartPole-v1")
    for _ in range(environment.MAX_RUNNING + 2):
        env.reset(jax.random.key(0), params)
        assert len(process_ids()) <= environment.MAX_RUNNING
    begin = jax.jit(env.reset)
    begin(jax.random.key(0), params)
    running = process_ids()
    begin(jax.random.key(1), params)
    assert process_ids() == running, "a program that begins again keeps its processes"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"reset": "pool"}, "reset = 'pool': gymnasium:CartPole-v1 is simulated outside JAX, and its simulators begin episodes"),
        ({"end_on_nan": True}, "end_on_nan = True: .* cannot go back"),
        ({"randomize": {"gravity": [1.0, 2.0]}}, "has no parameter 'gravity'"),
        ({"env": "gymnasium:CartPoel-v1"}, r"env = 'gymnasium:CartPoel-v1': did you mean 'gymnasium:CartPole-v1'\?"),
        ({"env": "gymnasium:zzzz"}, "env = 'gymnasium:zzzz': rljax list gymnasium lists what there is$"),
        ({"env": "gymnasium:odd_simulators:zzzz"}, "expected one of: .*gymnasium:Acrobot-v1, "),
        ({"env": "gymnasium:no_such_package:Env-v0"}, "no_such_package is not installed: is it in the current folder"),
        ({"env": "gymnasium:broken_simulators:Env-v0"}, "broken_simulators cannot be imported: ValueError: it is broken"),
        ({"env": "gymnasium::CartPole-v1"}, "env = 'gymnasium::CartPole-v1': "),
        ({"env_params": {"workers": -1}}, "workers = -1: expected a whole number >= 0"),
        ({"env_params": {"timeout": 0.0}}, "timeout = 0: expected a number of seconds > 0"),
        ({"env_params": {"timeout": float("inf")}}, "timeout = inf: expected a number of seconds > 0 and <= 1e\\+06"),
        ({"env_params": {"gravity": 1.0}}, "has no parameter 'gravity'"),
        (
            {"env": "gymnasium:odd_simulators:Masked-v0", "env_params": {"flags": 4}},
            "odd_simulators:Masked-v0': a mask of actions has 4 flags, expected 5, one for each action$",
        ),
        (
            {"env": "gymnasium:odd_simulators:MaskedByMethod-v0", "env_params": {"broken": True}},
            "odd_simulators:MaskedByMethod-v0': its mask of actions: IndexError: no hand left$",
        ),
        ({"env": gymnasium.make("CartPole-v1")}, "is an object of Gymnasium, of which many are needed"),
    ],
)
def test_what_cannot_be_done_is_one_line(changes: dict[str, Any], told: str) -> None:
    config = {"env": "gymnasium:CartPole-v1", "num_envs": 4, "num_steps": 8, "total_timesteps": 64, "num_minibatches": 1}
    with pytest.raises(ConfigError, match=told):
        make_training_env(rljax.PPOConfig(**{**config, **changes}))


@pytest.mark.parametrize("space", [gymnasium.spaces.Text(4), gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2))], ids=str)
def test_spaces_without_a_shape_are_refused(space: Any) -> None:
    with pytest.raises(ConfigError, match=f"observations in {type(space).__name__}\\(.*are not supported"):
        convert_spaces("gymnasium:X-v0", space, gymnasium.spaces.Discrete(2))
    with pytest.raises(ConfigError, match=f"actions in {type(space).__name__}\\(.*are not supported"):
        convert_spaces("gymnasium:X-v0", gymnasium.spaces.Discrete(2), space)


@pytest.mark.parametrize("part", [gymnasium.spaces.MultiDiscrete([2, 3]), gymnasium.spaces.MultiBinary(3)], ids=str)
def test_a_dict_of_actions_has_heads_that_are_discrete(part: Any) -> None:
    space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2), "b": part})
    with pytest.raises(ConfigError, match=f"every entry of a Dict of actions is a Discrete, and not a {type(part).__name__}$"):
        convert_spaces("gymnasium:X-v0", gymnasium.spaces.Discrete(2), space)


def test_a_mask_has_a_flag_for_each_action_and_a_head_without_a_legal_one_has_all() -> None:
    assert legal(np.array([0, 1, 0, 0, 0], np.int8), (3, 2)).tolist() == [False, True, False, True, True]
    assert legal({"b": [1, 0], "a": (np.array([0, 0, 1]),)}, (3, 2)).tolist() == [False, False, True, True, False]
    with pytest.raises(ValueError, match=r"^no mask of actions came, expected 5 flags$"):
        legal(None, (3, 2))


def test_pictures_have_their_channels_last() -> None:
    pictures = gymnasium.spaces.Box(0, 255, (4, 10, 12), np.uint8)
    space, _, layout = convert_spaces("envpool:X-v0", pictures, gymnasium.spaces.Discrete(2), channels_first=True)
    picture = np.arange(480, dtype=np.uint8).reshape(4, 10, 12)
    (converted,) = leaves(picture, layout.obs_structure)
    assert space.shape == layout.obs[0][0] == converted.shape == (10, 12, 4)
    np.testing.assert_array_equal(converted[3, 5], picture[:, 3, 5])


def test_gray_pictures_have_a_channel() -> None:
    space, _, layout = convert_spaces("x", gymnasium.spaces.Box(0, 255, (10, 12), np.uint8), gymnasium.spaces.Discrete(2))
    batch = np.arange(240, dtype=np.uint8).reshape(2, 10, 12)
    assert space.shape == layout.obs[0][0] == leaves(batch[0], layout.obs_structure)[0].shape == (10, 12, 1)
    np.testing.assert_array_equal(leaves(batch, layout.obs_structure)[0][..., 0], batch)
    board, _, _ = convert_spaces("x", gymnasium.spaces.Box(0, 3, (8, 8), np.uint8), gymnasium.spaces.Discrete(2))
    assert board.shape == (8, 8)


def test_a_wrapper_of_ones_own_must_be_one() -> None:
    env, _ = rljax.make_env("gymnasium:CartPole-v1")

    class Bare(rljax.Environment):
        def __init__(self, env: Any):
            self.env = env

        def reset_env(self, key: jax.Array, params: Any) -> Any:
            return self.env.reset_env(key, self.env.default_params)

        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
            return self.env.step_env(key, state, action, self.env.default_params)

        def observation_space(self, params: Any) -> Any:
            return self.env.observation_space(None)

        def action_space(self, params: Any) -> Any:
            return self.env.action_space(None)

    with pytest.raises(
        ConfigError, match=r"Bare is around gymnasium:CartPole-v1, which is outside JAX: derive it from rljax.wrap"
    ):
        make_training_env(ppo(env=Bare(env)))


def test_a_call_that_is_interrupted_leaves_no_answer_for_the_next() -> None:
    env, params = rljax.make_env(ODD, workers=2)
    keys = jax.random.split(jax.random.key(0), 2)
    reset, step = jax.jit(jax.vmap(env.reset, (0, None))), jax.jit(jax.vmap(env.step, (0, 0, 0, None)))
    _, state = reset(keys, params)
    simulators = environment._running[int(state.session[0])].simulators
    for connection in simulators._connections:
        connection.send_bytes(b"s")  # as by a call that was interrupted before it had its answers

    def interrupted(*_: Any) -> None:
        raise RuntimeError("interrupted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "wait", interrupted)
        with pytest.raises(jax.errors.JaxRuntimeError, match="interrupted"):
            jax.block_until_ready(step(keys, state, jnp.zeros(2, jnp.int32), params))
    assert simulators.closed
    obs, state = reset(keys, params)
    for time_ in range(3):
        np.testing.assert_array_equal(obs["b"][0], time_)
        obs, state, reward, *_ = step(keys, state, jnp.full(2, time_, jnp.int32), params)
        np.testing.assert_array_equal(reward, 2 + time_)


@pytest.mark.slow
@pytest.mark.parametrize("time_limit", [None, 5])
def test_evaluations_in_a_callback_do_not_end_the_simulators_of_the_run(time_limit: int | None) -> None:
    agent = rljax.make_agent(ppo(total_timesteps=64 * 4, time_limit=time_limit))
    state = agent.init(jax.random.key(0))
    played: list[float] = []

    def evaluate(_step: int, _metrics: dict[str, float]) -> None:
        returns = [rljax.evaluate(agent, state, jax.random.key(i), 2) for i in range(environment.MAX_RUNNING)]
        played.extend(float(x.mean()) for x in returns)

    assert rljax.fit(agent, callback=evaluate).complete
    assert len(played) >= environment.MAX_RUNNING
    if time_limit is None:  # the simulators do not know that a limit has ended their episodes
        assert len(environment._running) <= 4, "groups of evaluations that are over are used again"


def test_an_evaluation_that_fails_is_one_line() -> None:
    agent = rljax.make_agent(ppo(env=ODD, env_params={"fails": "raises", "after": 9}, flatten_observations=True))
    with pytest.raises(RljaxError, match=r"a simulator failed in a step: ValueError: the wheel came off$"):
        rljax.evaluate(agent, agent.init(jax.random.key(0)), jax.random.key(1), 2)


@pytest.mark.slow
def test_signals_to_the_whole_job_leave_the_simulators_to_the_program(tmp_path: Path) -> None:
    def stop(step: int, _metrics: dict[str, float]) -> None:
        if step >= 64 * 4:
            for pid in [*process_ids(), os.getpid()]:
                os.kill(pid, signal.SIGTERM)

    with pytest.raises(TrainingInterrupted, match="saved in"):
        rljax.fit(ppo(total_timesteps=64 * 4000), run_dir=tmp_path / "run", callback=stop)
    assert rljax.load_run(tmp_path / "run").step >= 64 * 4


def test_actions_are_within_bounds_of_64_bits() -> None:
    space = gymnasium.spaces.Box(-0.1, 0.1, (1,), np.float64)
    _, action_space, layout = convert_spaces("gymnasium:X-v0", gymnasium.spaces.Discrete(2), space)
    for bound in (action_space.low, action_space.high):
        assert space.contains(action_of(iter([np.asarray(bound, np.float32)]), layout.action_structure))


def test_batches_are_written_like_rows() -> None:
    """EnvPool gives all environments at once."""
    structure = {"b": (3, None), "a": CHANNELS_FIRST}
    batch = {"b": (np.array([3, 5]), np.array([[0.0], [1.0]])), "a": np.arange(2 * 4 * 5 * 6, dtype=np.uint8).reshape(2, 4, 5, 6)}
    arrays = [np.zeros((3, 5, 6, 4), np.uint8), np.zeros(3, np.int32), np.zeros((3, 1), np.float32)]
    rows = np.array([2, 0])
    write(arrays, rows, leaves(batch, structure))
    for i, row in enumerate(rows):
        one = jax.tree.map(lambda x, i=i: x[i], batch)
        for array, x in zip(arrays, leaves(one, structure), strict=True):
            np.testing.assert_array_equal(array[row], x)
    action = action_of(iter([np.array([0, 1])]), (np.dtype(np.int64), 2, None, True))
    np.testing.assert_array_equal(action, [2, 3])


def test_integers_beyond_32_bits_are_as_far_as_they_go() -> None:
    arrays = [np.zeros((1, 3), np.int32), np.zeros((1, 2), np.uint8)]
    write(arrays, 0, [np.array([2**40, -(2**40), 7], np.int64), np.array([300, 4], np.int64)])
    assert arrays[0].tolist() == [[2**31 - 1, -(2**31), 7]]
    assert arrays[1].tolist() == [[255, 4]]


def ppo(**changes: Any) -> Any:
    fields: dict[str, Any] = {"env": "gymnasium:CartPole-v1", "num_envs": 4, "num_steps": 16, "num_minibatches": 2}
    return rljax.PPOConfig(**{**fields, "total_timesteps": 64 * 8, "network": {"hidden": [8]}, **changes})


def test_several_runs_in_one_program_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "env = 'gymnasium:CartPole-v1' is simulated outside JAX, where one program trains one run"
    with pytest.raises(ConfigError, match=f"seeds = 2: {told}"):
        rljax.fit(ppo(), seeds=2)
    with pytest.raises(ConfigError, match=f"sweep: {told}"):
        rljax.sweep(ppo(), {"gamma": [0.9, 0.99]}, run_dir=tmp_path / "sweep")
    with pytest.raises(ConfigError, match=f"tuning: {told}"):
        rljax.tune(ppo(), {"gamma": [0.9, 0.99]}, run_dir=tmp_path / "tune")
    with pytest.raises(ConfigError, match="is simulated outside JAX, where one program trains one run, without a vmap over runs"):
        jax.vmap(rljax.make_train(ppo()))(jax.random.split(jax.random.key(0), 2))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.same_bits
def test_equal_keys_train_equal_agents() -> None:
    config = ppo(eval_every=256, eval_episodes=3)
    train = jax.jit(rljax.make_train(config))
    first, second = train(jax.random.key(0)), train(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, first.state.params, second.state.params)
    np.testing.assert_array_equal(first.metrics["eval/return"], second.metrics["eval/return"])
    fitted = rljax.fit(config)
    jax.tree.map(np.testing.assert_array_equal, first.state.params, fitted.state.params)


@pytest.mark.slow
def test_a_killed_simulator_stops_the_run_which_resumes_with_new_episodes(tmp_path: Path) -> None:
    config, killed = ppo(total_timesteps=64 * 200), []

    def kill(step: int, metrics: dict[str, float]) -> None:
        assert 0 < metrics["perf/simulator_wait"] <= 1
        if step >= 64 * 20 and not killed:
            killed.append(step)
            os.kill(process_ids()[0], signal.SIGKILL)

    told = (
        r"training stopped: gymnasium:CartPole-v1: a process of its simulators was killed by SIGKILL in a (step|reset); the last"
    )
    with pytest.raises(TrainingError, match=told):
        rljax.fit(config, run_dir=tmp_path / "run", callback=kill, checkpoint_every=64)
    saved = rljax.load_run(tmp_path / "run")
    assert saved.step >= killed[0] - 64
    with pytest.warns(RljaxWarning, match="resumed with new episodes, not exactly: the simulators of gymnasium:CartPole-v1 are"):
        result = rljax.fit(resume=tmp_path / "run")
    assert result.complete
    assert result.step == 64 * 200


@pytest.mark.slow
def test_a_resumed_buffer_ends_its_episodes(tmp_path: Path) -> None:
    config = rljax.DQNConfig(
        env="gymnasium:CartPole-v1", num_envs=4, num_steps=8, buffer_size=512, learning_starts=64, n_step=3,
        total_timesteps=32 * 4, network={"hidden": [8]},
    )  # fmt: skip
    before = rljax.fit(config, run_dir=tmp_path / "run").state
    with pytest.warns(RljaxWarning, match="resumed with new episodes"):
        after = rljax.fit(resume=tmp_path / "run", total_timesteps=32 * 5).state
    newest = int(before.replay.position) - 1
    ends = before.replay.data.truncated | before.replay.data.terminated
    assert not ends[newest].all()
    expected = ends.at[newest].set(True)
    now = after.replay.data.truncated | after.replay.data.terminated
    np.testing.assert_array_equal(now[: newest + 1], expected[: newest + 1])
    assert int(after.env_state.episode_length.max()) <= 8


@pytest.mark.slow
def test_simulators_end_with_their_program() -> None:
    """They hang up when the program is killed, also one that is in a step at that time."""
    program = textwrap.dedent("""
        import jax, rljax, sys
        from rljax.envs.simulators import environment, processes
        env, params = rljax.make_env("gymnasium:odd_simulators:Odd-v0", fails="hangs", after=2, workers=2)
        reset = jax.vmap(env.reset, (0, None))
        _, state = reset(jax.random.split(jax.random.key(0), 2), params)
        print(*[pid for running in environment._running.values() for pid in running.simulators.process_ids], flush=True)
        for _ in range(3):
            keys = jax.random.split(jax.random.key(0), 2)
            _, state, *_ = jax.vmap(env.step, (0, 0, 0, None))(keys, state, jax.numpy.zeros(2, int), params)
    """)
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    time.sleep(0.5)
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.1)
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_recording_shows_the_pictures_of_the_simulator(tmp_path: Path) -> None:
    config = ppo(env=ODD, flatten_observations=True)
    agent = rljax.make_agent(config)
    recording = rljax.record(agent, agent.init(jax.random.key(0)), tmp_path / "odd.gif", key=jax.random.key(1), fps=10)
    assert recording.lengths.tolist() == [9]
    with PIL.Image.open(tmp_path / "odd.gif") as gif:
        shown = []
        for i in range(gif.n_frames):
            gif.seek(i)
            shown.append(int(np.argmax(np.asarray(gif.convert("RGB"))[0, :, 0])) * 30 // gif.width)
    assert shown == [3 * time for time in range(10)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", ["ppo", "dqn", "impala", *(pytest.param(name, marks=pytest.mark.long) for name in ("pqn", "sac", "dreamer"))]
)
def test_every_learner_learns_from_simulators_and_resumes(algorithm: str, tmp_path: Path) -> None:
    env = "gymnasium:Pendulum-v1" if algorithm == "sac" else "gymnasium:CartPole-v1"
    more: dict[str, Any] = {} if algorithm == "dreamer" else {"frame_stack": 2}
    config = TINY[algorithm].replace(env=env, time_limit=20, sticky_actions=0.25, action_repeat=2, **more)
    result = rljax.fit(config, run_dir=tmp_path / "run")
    assert np.nansum(result.metrics["episode/count"]) > 0
    assert np.nanmax(result.metrics["episode/length"]) <= 20
    assert np.isfinite(result.metrics["eval/return"][-1])
    with pytest.warns(RljaxWarning, match="resumed with new episodes"):
        resumed = rljax.fit(resume=tmp_path / "run", total_timesteps=config.total_timesteps + 128)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(resumed.state.params))


@pytest.mark.long
def test_ppo_learns_cartpole_of_gymnasium() -> None:
    config = rljax.load_config("cartpole_ppo", env="gymnasium:CartPole-v1", total_timesteps=300_000)
    agent = rljax.make_agent(config)
    state = rljax.fit(agent).state
    assert play_episodes(agent, state, jax.random.key(1), 20).returns.mean() > 475


def lagging(**changes: Any) -> Any:
    return TINY["impala"].replace(env="gymnasium:CartPole-v1", policy_lag=0, overlap=True, **changes)


@pytest.mark.slow
def test_overlapped_halves_train_the_same_agent_as_their_step(tmp_path: Path) -> None:
    config = lagging(average_decay=0.5)
    whole = jax.jit(rljax.make_train(config))(jax.random.key(config.seed))
    halves = rljax.fit(config, run_dir=tmp_path / "run")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), whole.state.params, halves.state.params)
    averages = (whole.state.average_params, halves.state.average_params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), *averages)
    np.testing.assert_array_equal(whole.metrics["eval/return"], halves.metrics["eval/return"])
    np.testing.assert_array_equal(whole.metrics["episode/count"], halves.metrics["episode/count"])
    with pytest.warns(RljaxWarning, match="resumed with new episodes"):
        assert rljax.fit(resume=tmp_path / "run", total_timesteps=config.total_timesteps + 128).complete


class Rolling(State, kw_only=True):
    """`env_state` is the time in an episode, `rollout` three such times, `memory` the time at which the update goes on."""

    memory: Any = per_environment()
    rollout: Any = buffer(default=None)


def test_new_episodes_of_an_overlapped_run_are_learned_from_with_their_own_memory() -> None:
    def init(key: jax.Array) -> Rolling:
        time = jnp.zeros((), jnp.int32)
        return Rolling(params=(), opt_state=(), env_state=time, obs=time, key=key, eval_key=key, iteration=time, memory=time)

    def update(state: Rolling) -> tuple[Rolling, dict[str, jax.Array]]:
        return state.replace(memory=state.rollout[-1] + 1), {"fits": state.rollout[0] == state.memory}

    halves = Halves(
        init=init,
        collect=lambda state: state.replace(rollout=state.env_state + jnp.arange(3), env_state=state.env_state + 3),
        update=update,
        join=lambda collected, updated: updated.replace(rollout=collected.rollout, env_state=collected.env_state),
    )
    agent = rljax.Agent(lambda key: halves.collect(init(key)), halves.step, lambda *args: (args[1], None), None, halves=halves)
    state, fits = agent.init(jax.random.key(0)), []
    for number in range(4):
        state = new_episodes(agent, state) if number == 2 else state
        state, metrics = agent.step(state)
        fits.append(bool(metrics["fits"]))
    assert fits == [True] * 4
    assert state.rollout.tolist() == [6, 7, 8]


@pytest.mark.slow
def test_an_overlapped_rollout_is_learned_from_one_iteration_later() -> None:
    """Its log-probabilities are those of the policy of two updates before the next one, and the learner knows."""
    agent = rljax.make_agent(lagging(num_epochs=1, num_minibatches=1, learning_rate=1e-2))
    first = agent.init(jax.random.key(0))
    second, metrics = jax.jit(agent.step)(first)
    _, later = jax.jit(agent.step)(second)
    assert metrics["train/mean_rho"] == pytest.approx(1.0, abs=1e-5), "the first one was collected by the policy that learns"
    assert later["train/mean_rho"] < 1 - 1e-5
    assert (second.rollout.log_prob != first.rollout.log_prob).any()


@pytest.mark.slow
def test_a_killed_simulator_stops_an_overlapped_run(tmp_path: Path) -> None:
    def kill(step: int, metrics: dict[str, float]) -> None:
        if step == 64 * 8:
            os.kill(process_ids()[0], signal.SIGKILL)

    with pytest.raises(
        TrainingError, match=r"a process of its simulators was killed by SIGKILL in a (step|reset); the last good"
    ):
        rljax.fit(lagging(eval_every=None), run_dir=tmp_path / "run", callback=kill, checkpoint_every=64)
    assert rljax.load_run(tmp_path / "run").step >= 64 * 7


def test_only_simulators_overlap() -> None:
    with pytest.raises(ConfigError, match="overlap = true: CartPole-v1 is in JAX"):
        rljax.make_agent(lagging().replace(env="CartPole-v1"))
