"""Distillation: its loss by hand, who acts where, and what teachers it takes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax.algos.common.policy import policy_and_value, unroll
from rljax.algos.common.teacher import Teacher
from rljax.algos.imitation.distill import (
    DistillParts,
    Taught,
    TeacherOfShare,
    distill_collect,
    distill_init,
    distill_loss,
    distill_parts,
    distill_update,
    teacher_parts,
)
from rljax.algos.imitation.parts import imitation_parts, initial_params
from rljax.collect.environments import make_game, player_groups
from rljax.collect.games.matches import play_match, policy_player
from rljax.collect.normalizers import normalize
from rljax.collect.rollout import episode_means, reset_carry
from rljax.core.environments.environment import Environment, EnvState
from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete, as_space, legal_action
from rljax.core.environments.wrappers import EpisodeStatistics
from rljax.core.games.game_wrappers import FreeForAll, GameView
from rljax.core.games.versus import Versus, random_player
from tests.run.tiny_runs import assert_refused

CONFIG = rljax.DistillConfig(env="TMaze-v0", num_envs=4, num_steps=7, num_minibatches=1, network={"hidden": [8]}, time_limit=5)
GRU = {"type": "gru", "hidden": [6], "size": 5}


def log_softmax(x: Any) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def saved(path: Path, config: Any, seed: int = 1) -> str:
    """Save a run of random weights that are not small; return its path."""
    agent = rljax.make_agent(config)
    state = jax.jit(agent.init)(jax.random.key(seed))
    state = state.replace(params=jax.tree.map(lambda x: x + jax.random.normal(jax.random.key(x.size), x.shape), state.params))
    if getattr(state, "obs_statistics", None) is not None:
        state = state.replace(obs_statistics=jax.tree.map(lambda x: x + 0.5, state.obs_statistics))
    rljax.save(path, agent, state)
    return str(path)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """One that remembers in short mazes and normalises what it sees, and one without memory in long mazes."""
    folder = tmp_path_factory.mktemp("teachers")
    short = {"env": "TMaze-v0", "env_params": {"length": 2}, "network": GRU, "normalize_observations": True, "time_limit": 5}
    first = saved(folder / "first", rljax.PPOConfig(**short))
    return first, saved(folder / "second", rljax.ImpalaConfig(env="TMaze-v0", env_params={"length": 9}, network={"hidden": [5]}))


@pytest.mark.slow
def test_the_loss_is_soft_and_hard_cross_entropy_and_the_values_difference() -> None:
    student = imitation_parts(CONFIG.replace(temperature=3.0, hard_label_coef=0.2, vf_coef=0.5, huber_delta=1.0))
    params = jax.tree.map(lambda x: 3.0 * x + 0.1, jax.jit(student.policy.init)(jax.random.key(0), jnp.zeros((1, 4))))
    obs, view = jax.random.normal(jax.random.key(1), (5, 4)), jax.random.normal(jax.random.key(2), (5, 1, 3))
    label = jnp.argmax(view[:, 0], -1)
    outputs, value, _ = jax.jit(lambda obs: policy_and_value(student, params, obs))(obs)
    action = jnp.zeros(5, jnp.int32)
    taught = Taught(obs, action, None, view, label, value + 0.5, jnp.zeros(5, bool), None)
    loss, metrics = jax.jit(lambda taught: distill_loss(student, params, taught))(taught)
    soft, towards = log_softmax(np.asarray(outputs) / 3.0), log_softmax(np.asarray(view[:, 0]) / 3.0)
    divergence = 9.0 * (np.exp(towards) * (towards - soft)).sum(-1).mean()
    hard = -np.take_along_axis(log_softmax(outputs), np.asarray(label)[:, None], -1).mean()
    assert float(metrics["train/teacher_kl"]) == pytest.approx(divergence, rel=1e-4)
    assert float(loss) == pytest.approx(divergence + 0.2 * hard + 0.5 * 0.125, rel=1e-4)
    assert float(metrics["train/accuracy"]) == pytest.approx((np.asarray(outputs).argmax(-1) == np.asarray(label)).mean())


@pytest.mark.slow
@pytest.mark.parametrize(("acting", "network"), [("student", {"hidden": [8]}), ("teacher", GRU)])
def test_each_teacher_teaches_in_its_own_environments_with_its_own_memory(
    acting: str, network: Any, teachers: tuple[str, str]
) -> None:
    parts = distill_parts(CONFIG.replace(teachers=teachers, acting=acting, network=network, normalize_observations=True))
    state = jax.jit(lambda key: distill_init(parts, key))(jax.random.key(0))
    collect = jax.jit(lambda state: distill_collect(parts, state))
    views, seen, own = [], [], state.carry
    for _ in range(3):
        before = state
        state, lessons = collect(state)
        views.append(lessons)
    for number, teacher in enumerate(parts.teachers):
        inner = state.env_state[number]
        while hasattr(inner, "env_state"):
            inner = inner.env_state
        assert int(inner.position.max()) <= (2, 9)[number]
        share = slice(2 * number, 2 * number + 2)
        obs, done, action = (
            np.concatenate([np.asarray(x)[:, share] for x in each])
            for each in ([v.raw_obs for v in views], [v.done for v in views], [v.taught.action for v in views])
        )
        begins = np.concatenate([np.zeros((1, 2), bool), done[:-1]])
        statistics = teacher.policy.obs_statistics
        normal = obs if statistics is None else normalize(statistics, obs)
        carry = teacher.parts.policy.initial_carry((2,))
        outputs, value, _, last = unroll(teacher.parts, teacher.policy.params, normal, carry, begins)
        found = np.concatenate([np.asarray(v.taught.view)[:, share, 0] for v in views])
        np.testing.assert_allclose(found, log_softmax(outputs), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(
            np.concatenate([np.asarray(v.taught.value)[:, share] for v in views]), value, rtol=1e-3, atol=1e-4
        )
        label = np.concatenate([np.asarray(v.taught.label)[:, share] for v in views])
        np.testing.assert_array_equal(label, np.asarray(outputs).argmax(-1))
        last = reset_carry(last, jnp.asarray(done[-1]))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4), last, state.teacher_carry[number])
        seen.append((action, np.asarray(outputs)))
        # The student's memory is that of its parameters along the same steps, whoever acts.
        *_, mine = unroll(parts.student, state.params, normalize(state.obs_statistics, obs), own[number], begins)
        mine = reset_carry(mine, jnp.asarray(done[-1]))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4), mine, state.carry[number])
    sharp = [np.take_along_axis(log_softmax(o), a[..., None], -1).mean() for a, o in seen]
    # Large random weights make sharp teachers, whose own actions are likely; those of the nearly uniform student are not.
    assert all(x > -1.0 for x in sharp) == (acting == "teacher"), sharp
    assert before is not state


def test_a_teacher_that_had_a_curriculum_teaches_in_all_of_its_levels_alike() -> None:
    shared: dict[str, Any] = {
        "env": "CartPole-v1",
        "num_envs": 2,
        "num_steps": 4,
        "num_minibatches": 1,
        "network": {"hidden": [4]},
    }
    levels = {"type": "success", "success": 5.0, "levels": {"max_steps_in_episode": [1, 2]}}
    student, found = imitation_parts(rljax.DistillConfig(**shared)), []
    # Teachers are read when the first step is traced, and kept.
    jax.eval_shape(lambda: found.append(teacher_parts(student, rljax.PPOConfig(**shared, curriculum=levels), "it")))
    env, params = found[0].env, found[0].env_params

    def begin(key: jax.Array) -> Any:
        _, state = env.reset_env(key, params)
        _, state, *_ = env.step_env(key, state, 0, params)
        return state.level, env.is_truncated(state, params)

    level, truncated = jax.jit(jax.vmap(begin))(jax.random.split(jax.random.key(0), 200))
    np.testing.assert_array_equal(truncated, level == 0)
    assert 70 < int(level.sum()) < 130


def test_minibatches_divide_the_whole_rollout_but_neither_a_share_nor_a_teachers() -> None:
    shared: dict[str, Any] = {"env": "CartPole-v1", "network": {"hidden": [4]}}
    student = imitation_parts(rljax.DistillConfig(**shared, num_envs=4, num_steps=5, num_minibatches=4))
    one = rljax.PPOConfig(**shared, num_envs=1, num_steps=64, num_minibatches=32, total_timesteps=64)

    def collect(key: jax.Array) -> Any:
        teaching = teacher_parts(student, one, "it")
        teacher = TeacherOfShare(teaching, Teacher(initial_params(teaching, key), None))
        parts = DistillParts(student, (teacher, teacher))
        return distill_collect(parts, distill_init(parts, key))[1].done

    assert jax.eval_shape(collect, jax.random.key(0)).shape == (5, 4)


@struct.dataclass
class CountingParams:
    max_steps_in_episode: int = 100
    stuck_at: int = -1
    """Step of an episode at which no action is legal."""
    nan_at: int = -1
    """Step of an episode whose reward is NaN."""


class Counting(Environment):
    """Every step is worth 1; metrics of these names are the length of the episode so far."""

    def __init__(self, *metrics: str):
        self.metrics = metrics

    @property
    def default_params(self) -> CountingParams:
        return CountingParams()

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, 100.0, (1,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def action_mask(self, state: EnvState, params: Any) -> jax.Array:
        return jnp.full(2, state.time != params.stuck_at)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, EnvState]:
        return jnp.zeros(1), EnvState(jnp.zeros((), jnp.int32))

    def step_env(self, key: jax.Array, state: EnvState, action: Any, params: Any) -> Any:
        time = state.time + 1
        reward = jnp.where(state.time == params.nan_at, jnp.nan, 1.0)
        info = {"metrics": {name: time.astype(jnp.float32) for name in self.metrics}}
        return jnp.full(1, time, jnp.float32), EnvState(time), reward, jnp.asarray(False), info


class Unmasked(Counting):
    """All actions are legal, and it does not say so."""

    action_mask = Environment.action_mask


def test_where_some_teachers_environments_have_masks_all_actions_of_the_others_are_legal() -> None:
    shared: dict[str, Any] = {"num_envs": 2, "num_steps": 4, "num_minibatches": 1, "network": {"hidden": [4]}}
    student = imitation_parts(rljax.DistillConfig(env=Counting(), **shared))
    masked = rljax.PPOConfig(env=Counting(), env_params={"stuck_at": 2}, **shared)

    def collect(key: jax.Array) -> Any:
        teaching = [teacher_parts(student, one, "it") for one in (rljax.PPOConfig(env=Unmasked(), **shared), masked)]
        teachers = tuple(TeacherOfShare(parts, Teacher(initial_params(parts, key), None)) for parts in teaching)
        parts = DistillParts(student, teachers)
        return distill_collect(parts, distill_init(parts, key))[1]

    lessons = jax.jit(collect)(jax.random.key(0))
    np.testing.assert_array_equal(lessons.taught.mask[:, 0], np.ones((4, 2), bool))
    np.testing.assert_array_equal(lessons.taught.mask[:, 1], np.array([[1, 1], [1, 1], [0, 0], [1, 1]], bool))
    assert float(episode_means(lessons.episodes)["train/no_legal_action"]) == 1.0


class Pairs(Counting):
    """Two heads of two actions; the second may not choose what the first has chosen, or all is legal."""

    def action_space(self, params: Any) -> MultiDiscrete:
        return MultiDiscrete((2, 2))

    def action_mask(self, state: EnvState, params: CountingParams) -> jax.Array:
        return jnp.ones((4, 4), bool).at[jnp.arange(2), 2 + jnp.arange(2)].set(False)


class Plain(Pairs):
    """The first action of each head is illegal in the state `stuck_at`."""

    def action_mask(self, state: EnvState, params: CountingParams) -> jax.Array:
        return (jnp.arange(4) % 2 > 0) | (state.time != params.stuck_at)


@pytest.mark.slow
def test_masks_of_heads_and_of_pairs_of_heads_meet_in_one_rollout() -> None:
    shared: dict[str, Any] = {"num_envs": 2, "num_steps": 4, "num_minibatches": 1, "network": {"hidden": [4]}}
    shared["action_heads"] = "autoregressive"
    student = imitation_parts(rljax.DistillConfig(env=Pairs(), **shared))
    configs = [rljax.PPOConfig(env=Pairs(), **shared), rljax.PPOConfig(env=Plain(), env_params={"stuck_at": 2}, **shared)]

    def learn(key: jax.Array) -> Any:
        teaching = [teacher_parts(student, one, "it") for one in configs]
        teachers = tuple(TeacherOfShare(parts, Teacher(initial_params(parts, key), None)) for parts in teaching)
        parts = DistillParts(student, teachers)
        state, lessons = distill_collect(parts, distill_init(parts, key))
        return lessons, distill_update(parts, state, lessons)[1]

    lessons, metrics = jax.jit(learn)(jax.random.key(0))
    pairs = np.ones((4, 4), bool)
    pairs[[0, 1], [2, 3]] = False
    np.testing.assert_array_equal(lessons.taught.mask[:, 0], np.stack([pairs] * 4))
    plain = np.ones((4, 4, 4), bool)
    plain[2, :, ::2] = False
    np.testing.assert_array_equal(lessons.taught.mask[:, 1], plain)
    np.testing.assert_array_equal(lessons.taught.action[2, 1], np.array([1, 1]))
    assert np.isfinite(float(metrics["train/loss"]))


@pytest.mark.slow
def test_episodes_and_steps_without_a_legal_action_are_those_of_all_shares() -> None:
    shared: dict[str, Any] = {"num_envs": 4, "num_steps": 16, "num_minibatches": 1, "network": {"hidden": [4]}}
    student = imitation_parts(rljax.DistillConfig(env=Counting(), **shared))
    settings = [
        rljax.PPOConfig(env=Counting("own", "last"), env_params={"max_steps_in_episode": 3}, **shared),
        rljax.PPOConfig(env=Counting("last"), env_params={"max_steps_in_episode": 5, "stuck_at": 2}, **shared),
    ]

    def collect(key: jax.Array) -> Any:
        teaching = [teacher_parts(student, one, "it") for one in settings]
        teachers = tuple(TeacherOfShare(parts, Teacher(initial_params(parts, key), None)) for parts in teaching)
        parts = DistillParts(student, teachers)
        return episode_means(distill_collect(parts, distill_init(parts, key))[1].episodes)

    metrics = {name: float(x) for name, x in jax.jit(collect)(jax.random.key(0)).items()}
    # In 16 steps, 2 environments end 5 episodes of 3 steps each, and 2 end 3 of 5 steps and begin a fourth. Nothing is known of
    # "own" in the second share.
    mean = pytest.approx((10 * 3 + 6 * 5) / 16)
    expected = {"episode/return": mean, "episode/length": mean, "episode/count": 16.0, "env/last": mean}
    assert metrics == expected | {"train/no_legal_action": 2 * 3.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"stuck_at": 9},
            "an environment of the teachers allowed no action .* in 4 steps of the iteration that ended at step 48;",
        ),
        ({"nan_at": 9}, r"train/reward became nan in the iteration that ended at step 48 \(rewards or observations"),
    ],
    ids=["no legal action", "NaN reward"],
)
def test_faults_of_an_environment_stop_a_student_that_learns_nothing_from_them(
    changes: dict[str, int], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljax.run.fit.try_environment", lambda _: None)  # which might find it before
    shared: dict[str, Any] = {"env": Counting(), "env_params": changes, "num_envs": 4, "network": {"hidden": [4]}}
    config = rljax.DistillConfig(
        **shared,
        num_steps=4,
        num_minibatches=1,
        total_timesteps=64,
        eval_every=None,
        teachers=(saved(tmp_path / "teacher", rljax.PPOConfig(**shared)),),
    )
    # The tenth step of each environment is in the third iteration of 16 steps.
    with pytest.raises(rljax.TrainingError, match=told):
        rljax.fit(config)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"num_envs": 2, "num_devices": 2, "teachers": ("a", "b")},
            r"num_envs = 2: expected a multiple of 2 teachers \* num_devices = 4",
        ),
        ({"normalize_rewards": True}, "normalize_rewards = true: a student learns .* expected false"),
        ({"clip_rewards": 0.5}, "clip_rewards = 0.5: a student learns .* expected none"),
        ({"scale_rewards": 0.5}, "scale_rewards = 0.5: a student learns .* expected none"),
    ],
)
def test_settings_that_do_not_fit_a_student_are_one_clear_line(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(rljax.ConfigError, match=f"^{told}$"):
        CONFIG.replace(**changes)


BOTH: dict[str, Any] = {"value_heads": ("cue", "bit"), "head_weights": (0.5, -2.0)}


@pytest.mark.parametrize(
    ("heads", "weights"),
    [
        (BOTH | {"intrinsic": {"type": "count"}}, [0.5, -2.0, 0.0]),
        pytest.param(BOTH, [0.5, -2.0], marks=pytest.mark.slow),
        pytest.param({"intrinsic": {"type": "rnd"}}, [1.0, 0.0], marks=pytest.mark.slow),
    ],
)
def test_the_value_of_a_teacher_with_several_heads_is_their_weighted_sum_without_a_bonus(heads: Any, weights: Any) -> None:
    shared: dict[str, Any] = {"env": "HiddenBit-v0", "num_envs": 2, "num_steps": 3, "num_minibatches": 1, "total_timesteps": 6}
    student = imitation_parts(rljax.DistillConfig(**shared, acting="teacher", network={"hidden": [4]}))
    teaching = teacher_parts(student, rljax.PPOConfig(**shared, **heads, network={"hidden": [4]}), "it")
    params = initial_params(teaching, jax.random.key(1))
    parts = DistillParts(student, (TeacherOfShare(teaching, Teacher(params, None)),))
    lessons = jax.jit(lambda key: distill_collect(parts, distill_init(parts, key))[1])(jax.random.key(0))
    _, values, _ = policy_and_value(teaching, params, lessons.raw_obs)
    assert values.shape == (3, 2, len(weights))
    np.testing.assert_allclose(lessons.taught.value, values @ jnp.array(weights), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_student_whose_teachers_are_gone_acts_and_says_what_it_needs_to_learn(
    tmp_path: Path, teachers: tuple[str, str]
) -> None:
    copies = [str(shutil.copytree(path, tmp_path / Path(path).name)) for path in teachers]
    config = CONFIG.replace(teachers=tuple(copies), total_timesteps=28 * 2, normalize_observations=True)
    trained = rljax.fit(config, run_dir=tmp_path / "student").state
    assert len(json.loads((tmp_path / "student" / "run.json").read_text())["data"]) == 64
    shutil.rmtree(copies[0])
    run = rljax.load_run(tmp_path / "student")
    jax.tree.map(np.testing.assert_array_equal, run.state.params, trained.params)
    action, _ = jax.jit(rljax.make_agent(run.config).act)(run.state, jnp.zeros((2, 4)), None, jax.random.key(0))
    assert action.shape == (2,)
    with pytest.raises(rljax.ConfigError, match="no run there"):
        rljax.fit(resume=tmp_path / "student", total_timesteps=28 * 3)
    shutil.copytree(teachers[1], copies[0])
    # Nor does it need them to act if there are others, whose memory has another shape.
    jax.tree.map(np.testing.assert_array_equal, rljax.load_run(tmp_path / "student").state.params, trained.params)
    with pytest.raises(rljax.ConfigError, match="its teachers have changed since the run began"):
        rljax.fit(resume=tmp_path / "student", total_timesteps=28 * 3)


@pytest.mark.slow
def test_bad_input_is_one_clear_line(tmp_path: Path, teachers: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    def message(config: Any) -> str:
        with pytest.raises(rljax.ConfigError) as error:
            rljax.fit(config, run_dir=tmp_path / "run")
        assert "\n" not in str(error.value)
        return str(error.value)

    assert message(CONFIG) == "teachers = []: expected the folders of one or several runs"
    assert "no run there" in message(CONFIG.replace(teachers=(str(tmp_path),)))
    dqn = saved(tmp_path / "dqn", rljax.DQNConfig(buffer_size=400, learning_starts=100, network={"hidden": [4]}))
    assert "is of dqn, expected ppo, impala, bc, distill, self_play, league or alphazero" in message(
        CONFIG.replace(teachers=(dqn,))
    )
    assert "whose observations or actions are not those of env = 'CartPole-v1': its actions are " in message(
        CONFIG.replace(env="CartPole-v1", teachers=teachers)
    )
    assert "temperature = 2.0: softens discrete actions" in message(
        CONFIG.replace(env="Pendulum-v1", temperature=2.0, teachers=teachers)
    )
    assert not (tmp_path / "run").exists()
    with pytest.raises(rljax.ConfigError, match="num_envs = 4: expected a multiple of the 3 teachers"):
        CONFIG.replace(teachers=(*teachers, teachers[0]))
    assert_refused(["train", "distill", "--teachers", '["nowhere"]'], "nowhere: no run there", capsys)


class Named(Counting):
    """Two heads with names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.heads = names

    def action_space(self, params: Any) -> Dict:
        return Dict(dict.fromkeys(self.heads, Discrete(2)))

    def action_mask(self, state: EnvState, params: CountingParams) -> None:
        return None


@pytest.mark.parametrize(
    ("taught", "said"),
    [
        (Named("move", "shoot"), "its actions are {'move': 2, 'shoot': 2}, expected MultiDiscrete((2, 2))"),
        (Counting(), "its actions are Discrete(2), expected MultiDiscrete((2, 2))"),
    ],
)
def test_a_teacher_of_other_actions_is_refused_with_what_both_are(taught: Any, said: str) -> None:
    student = imitation_parts(CONFIG.replace(env=Plain(), time_limit=None))
    with pytest.raises(rljax.ConfigError) as error:
        teacher_parts(student, rljax.PPOConfig(env=taught, network={"hidden": [4]}), "it")
    assert str(error.value).endswith(said)


def test_a_teacher_whose_masks_are_of_pairs_of_heads_is_refused_by_a_student_of_independent_heads() -> None:
    student = imitation_parts(CONFIG.replace(env=Plain(), time_limit=None))
    config = rljax.PPOConfig(env=Pairs(), network={"hidden": [4]}, action_heads="autoregressive")
    with pytest.raises(rljax.ConfigError, match=r"what is legal in Pairs depends on .*; expected 'autoregressive'"):
        teacher_parts(student, config, "it")


def test_a_teacher_whose_heads_have_other_names_is_refused() -> None:
    def build(*names: str) -> Any:
        student = imitation_parts(CONFIG.replace(env=Named("move", "shoot"), time_limit=None))
        return teacher_parts(student, rljax.PPOConfig(env=Named(*names), network={"hidden": [4]}), "it")

    assert build("move", "shoot").head.to_env is not None
    for names in (("shoot", "move"), ("left", "right")):
        with pytest.raises(rljax.ConfigError, match=r"expected \{'move': 2, 'shoot': 2\}"):
            build(*names)


GAME: dict[str, Any] = {"env": "TicTacToe-v0", "num_envs": 8, "num_steps": 8, "num_minibatches": 1}
STUDENT = rljax.DistillConfig(**GAME, network={"hidden": [16]}, total_timesteps=64 * 100, learning_rate=1e-2)
LEAGUE = rljax.LeagueConfig(
    **GAME, network=GRU, normalize_observations=True, average_decay=0.9, num_slots=1, main_exploiters=1, league_exploiters=0
)
ALPHAZERO = rljax.AlphaZeroConfig(**GAME, network={"hidden": [5]}, normalize_observations=True)


PARADE: dict[str, Any] = GAME | {"env": "tests.collect.games.parade:Parade"}


def parade(**rules: Any) -> dict[str, Any]:
    """Two mates against a third player."""
    return PARADE | {"env_params": {"teams": (0, 1, 0), **rules}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        LEAGUE,
        ALPHAZERO,
        rljax.SelfPlayConfig(**parade(turns=True, drops=True), network=GRU, weights="player", normalize_observations=True),
        rljax.SelfPlayConfig(**parade(), network={"hidden": [5]}, weights="team", central_critic=True),
    ],
    ids=["league", "alphazero", "seats in turn", "teams at once"],
)
def test_a_teacher_of_a_game_plays_all_other_players_as_its_agent_does(config: Any, tmp_path: Path) -> None:
    """The teacher of a league is its main agent, with its memory and its statistics; mates are others, too."""
    path = saved(tmp_path / "run", config)
    parts = distill_parts(STUDENT.replace(env=config.env, env_params=config.env_params, teachers=(path,)))
    run = rljax.load_run(path)
    agent, (game, params) = rljax.make_agent(run.config), rljax.make_env(config.env, **config.env_params)
    one, space = parts.teachers[0].parts.env, as_space(game.action_space(params))
    by_hand = EpisodeStatistics(Versus(FreeForAll(game), policy_player(agent, run.state, deterministic=False)))

    def play(env: Any, key: jax.Array) -> Any:
        def step(loop: Any, key: jax.Array) -> Any:
            obs, state = loop
            act_key, step_key = jax.random.split(key)
            action, _ = legal_action(space, env.action_mask(state, params), jax.random.uniform(act_key, (space.flat_dim,)))
            obs, state, reward, *_ = env.step(step_key, state, action, params)
            return (obs, state), (parts.teachers[0].view(obs) if env is one else obs, reward)

        return jax.lax.scan(step, env.reset_env(key, params), jax.random.split(key, 30))[1]

    games, expected = (jax.jit(lambda key, env=env: play(env, key))(jax.random.key(3)) for env in (one, by_hand))
    jax.tree.map(np.testing.assert_array_equal, games, expected)
    assert len(np.unique(games[1])) > 1
    # What it teaches is what it would do itself, at each seat that the student takes.
    state = jax.jit(lambda key: distill_init(parts, key))(jax.random.key(0))
    _, lessons = jax.jit(lambda state: distill_collect(parts, state))(state)
    obs, mask = jax.tree.map(lambda x: x[0], (lessons.raw_obs, lessons.taught.mask))
    seen = obs
    if "Parade" in config.env:
        assert set(np.unique(obs["seat"])) == {0, 1, 2}
        groups = player_groups(game, config.weights)
        seen = {"obs": obs, "group": jnp.eye(max(groups) + 1, dtype=bool)[jnp.array(groups)[obs["seat"]]]} if max(groups) else obs
    likeliest, _ = agent.act(run.state, seen, state.teacher_carry[0], jax.random.key(0), True, mask)
    np.testing.assert_array_equal(lessons.taught.label[0].ravel(), likeliest)


@pytest.mark.slow
@pytest.mark.parametrize(("space", "weights"), [("discrete", "player"), ("box", "team")])
def test_one_student_learns_all_seats_of_teams_whose_players_have_weights_of_their_own(
    space: str, weights: str, tmp_path: Path
) -> None:
    rules = parade(space=space)
    path = saved(tmp_path / "teacher", rljax.SelfPlayConfig(**rules, network={"hidden": [8]}, weights=weights))
    env: dict[str, Any] = {"env": rules["env"], "env_params": rules["env_params"]}
    config = STUDENT.replace(**env, teachers=(path,), total_timesteps=64 * 300, network={"hidden": [32]})
    result = rljax.fit(config, run_dir=tmp_path / "student")
    divergence = np.asarray(result.metrics["train/teacher_kl"])
    assert divergence[-3:].mean() < 0.1 * divergence[0], divergence
    if space == "discrete":
        assert np.asarray(result.metrics["train/accuracy"])[-3:].mean() > 0.9
    run, (game, params) = rljax.load_run(tmp_path / "student"), rljax.make_env(rules["env"], **rules["env_params"])
    player = policy_player(rljax.make_agent(run.config), run.state)
    assert np.isfinite(play_match(game, params, player, random_player, jax.random.key(0), 20).result).all()


@pytest.mark.slow
def test_a_student_learns_a_game_from_self_play_and_plays_matches(tmp_path: Path) -> None:
    path = saved(tmp_path / "teacher", rljax.SelfPlayConfig(**GAME, network={"hidden": [8]}))
    result = rljax.fit(STUDENT.replace(teachers=(path,)), run_dir=tmp_path / "student")
    divergence, accuracy = (np.asarray(result.metrics[name]) for name in ("train/teacher_kl", "train/accuracy"))
    assert accuracy[-3:].mean() > 0.75
    assert divergence[-3:].mean() < 0.3 * divergence[0], divergence
    run, game = rljax.load_run(tmp_path / "student"), rljax.make_env("TicTacToe-v0")[0]
    player = policy_player(rljax.make_agent(run.config), run.state)
    assert np.isfinite(play_match(game, None, player, random_player, jax.random.key(0), 20).result).all()


@pytest.mark.slow
@pytest.mark.parametrize("league", [False, True])
def test_values_of_games_are_taught_in_the_unit_of_their_rewards(league: bool, tmp_path: Path) -> None:
    """As a search by the student needs them, whatever the teacher's training made of rewards."""
    shared: dict[str, Any] = {"network": {"hidden": [8]}, "normalize_rewards": True, "scale_rewards": 0.1}
    config = rljax.LeagueConfig(**GAME, **shared, num_slots=1, league_exploiters=0) if league else ALPHAZERO.replace(**shared)
    agent = rljax.make_agent(config)
    state = jax.jit(agent.init)(jax.random.key(0))
    rewards = state.reward_statistics
    var = rewards.statistics.var
    of_each = 4.0 * (1.0 + jnp.arange(float(var.size)).reshape(var.shape))  # that of the exploiter is another one
    known = rewards.statistics.replace(var=of_each, count=jnp.ones_like(rewards.statistics.count))
    state = state.replace(reward_statistics=rewards._replace(statistics=known))
    rljax.save(tmp_path / "run", agent, state)
    parts = distill_parts(STUDENT.replace(teachers=(str(tmp_path / "run"),)))
    _, lessons = jax.jit(lambda key: distill_collect(parts, distill_init(parts, key)))(jax.random.key(0))
    assert agent.policy_and_value is not None
    _, value = agent.policy_and_value(state, lessons.raw_obs)
    np.testing.assert_allclose(lessons.taught.value, value, rtol=1e-4, atol=1e-5)
    assert float(jnp.std(value)) > 0.0


KUHN = rljax.SelfPlayConfig(**GAME | {"env": "KuhnPoker-v0"}, network={"hidden": [8]}, normalize_observations=True)


@pytest.mark.slow
def test_a_student_learns_values_of_a_critic_that_sees_all_and_the_policy_from_its_own_part(tmp_path: Path) -> None:
    path = saved(tmp_path / "teacher", KUHN.replace(central_critic=True))
    config = STUDENT.replace(env="KuhnPoker-v0", teachers=(path,), total_timesteps=64 * 200, normalize_observations=True)
    result = rljax.fit(config, run_dir=tmp_path / "student")
    assert np.asarray(result.metrics["train/accuracy"])[-3:].mean() > 0.9
    assert np.asarray(result.metrics["train/teacher_kl"])[-3:].mean() < 0.01
    # The one who moves first holds one of three cards, and its critic knows which of the other two the other player has.
    run, parts = rljax.load_run(path), distill_parts(config)
    agent, (game, params) = rljax.make_agent(run.config), make_game(run.config)
    assert agent.policy_and_value is not None
    dealt = jax.vmap(lambda state: game.observe(state, params))(game.initial_states(params)[0])
    first = jax.tree.map(lambda x: x[:, 0], dealt)
    _, by_hand = agent.policy_and_value(run.state, first)
    _, lessons = jax.jit(lambda state: distill_collect(parts, state))(result.state)
    for card in np.unique(np.asarray(first["obs"]), axis=0):
        expected = np.sort(np.asarray(by_hand)[(np.asarray(first["obs"]) == card).all(-1)])
        found = np.unique(np.asarray(lessons.taught.value)[(np.asarray(lessons.raw_obs) == card).all(-1)])
        assert expected[1] - expected[0] > 1e-3
        np.testing.assert_allclose([found[0], found[-1]], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (rljax.DQNConfig(), "it is of dqn, expected ppo, impala, bc, distill, self_play, league or alphazero"),
        (rljax.SelfPlayConfig(**GAME | {"env": "KuhnPoker-v0"}), "it is trained in KuhnPoker-v0, whose observations or actions"),
        (rljax.SelfPlayConfig(**GAME | {"vf_coef": 0.0}), "it has vf_coef = 0, so its values mean nothing; expected vf_coef = 0"),
    ],
)
def test_policies_that_cannot_teach_players_of_a_game_are_refused(config: Any, told: str) -> None:
    with pytest.raises(rljax.ConfigError, match=f"^teachers: {told}"):
        teacher_parts(imitation_parts(STUDENT), config, "it")


class Telling(GameView):
    """Critics see a part of their own: what their player sees, once more."""

    def view(self, obs: Any) -> Any:
        return {"obs": obs, "privileged": obs}

    def observation_space(self, params: Any) -> Any:
        space = self.env.observation_space(params)
        return Dict({"obs": space, "privileged": space})


def test_a_critic_that_sees_all_beside_a_privileged_part_of_the_game_does_not_teach() -> None:
    game: dict[str, Any] = GAME | {"env": Telling(rljax.make_env("TicTacToe-v0")[0])}
    student = imitation_parts(STUDENT.replace(env=game["env"]))
    teacher_parts(student, rljax.SelfPlayConfig(**game), "it")
    with pytest.raises(rljax.ConfigError, match=r"^teachers: it has central_critic = true, expected false in Telling"):
        teacher_parts(student, rljax.SelfPlayConfig(**game, central_critic=True), "it")
