"""Policy distillation: a student learns to act as one or several trained teachers do (Rusu et al., "Policy distillation", 2016),
with softened targets (Hinton et al., "Distilling the knowledge in a neural network", 2015). It may have another network: a
smaller one, or one with or without memory.

Each teacher has a share of the environments, with the parameters that it was trained with, so several specialists make one
student. In them the student acts (it learns in the states that it visits itself; Czarnecki et al., "Distilling policy
distillation", 2019), or the teachers do.

One iteration is `distill_collect` then `distill_update`; both are public, so a user can own the loop:

    parts = distill_parts(config)
    state = distill_init(parts, key)
    state, lessons = distill_collect(parts, state)
    state, metrics = distill_update(parts, state, lessons)
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.common.config import ActionConfig, learns_values
from rljax.algos.common.game_policy import value_in_game
from rljax.algos.common.losses import choices_loss, huber_value_loss
from rljax.algos.common.optimizer import adam
from rljax.algos.common.policy import check_heads, policy_act, policy_rollout, policy_unroll, unroll
from rljax.algos.common.state import normalize_obs
from rljax.algos.common.teacher import Teacher, policy_kl, policy_view
from rljax.algos.common.value_heads import HeadConfig, num_values, value_of_rewards
from rljax.algos.imitation.parts import (
    ImitationParts,
    ImitationState,
    against_itself,
    agreement,
    agreement_metrics,
    example_obs,
    heads_of,
    imitate,
    imitation_parts,
    initial_params,
    is_game,
    positions_of,
    seen_obs,
)
from rljax.collect.curriculum.levels import with_levels
from rljax.collect.minibatches import init_optimizer
from rljax.collect.normalizers import init_statistics, normalize
from rljax.collect.resets import initial_environments
from rljax.collect.rollout import EpisodeSums, Steps, episode_means, episode_sums, reset_carry
from rljax.collect.streams import episode_starts
from rljax.core.agent import Agent, Metrics, read_run, register_agent
from rljax.core.config import algorithm, env_name, leaf, static
from rljax.core.contract import describe
from rljax.core.environments.spaces import Dict, Discrete, action_heads, as_space, head_sizes
from rljax.core.environments.wrappers import split_privileged
from rljax.core.errors import ConfigError, shortened
from rljax.core.games.game_wrappers import without_added
from rljax.core.keys import as_single_key
from rljax.core.state import per_environment
from rljax.nn.groups import PerGroup
from rljax.nn.modules.classes import argmax_of


@algorithm("distill")
class DistillConfig(ActionConfig):
    """Policy distillation. `env` is for evaluation, and may be a game; teachers bring the environments that they were trained in.
    In a game a teacher plays all players but that of the student.
    """

    teachers: tuple[str, ...] = static(
        default=(),
        doc="folders of runs, or checkpoints, whose policies the student learns; each gets an equal share of num_envs",
        runs=True,
    )
    acting: str = static(
        default="student",
        doc="who acts in the environments: the 'student', or each 'teacher' in its own",
        choices=("student", "teacher"),
    )
    gamma: float = leaf(default=0.99, doc="no effect: a student learns from its teachers, not from rewards", ge=0, le=1)
    total_timesteps: int = static(
        default=500_000, doc="budget of environment steps, rounded down to whole iterations", gt=0, steps=True
    )
    num_envs: int = static(default=16, doc="number of environments stepped in parallel, for all teachers together", gt=0)
    num_steps: int = static(default=64, doc="number of steps per environment in a rollout", gt=0)
    learning_rate: float = leaf(default=1e-3, doc="Adam step size", ge=0)
    temperature: float = leaf(
        default=1.0,
        doc="temperature T that softens the policies of student and teacher; the loss is multiplied by T squared",
        gt=0,
    )
    hard_label_coef: float = leaf(default=0.0, doc="weight of the cross-entropy to the teacher's most likely actions", ge=0)
    vf_coef: float = leaf(default=0.5, doc="weight of the value loss, towards the teacher's values; 0: not trained", ge=0)
    huber_delta: float | None = leaf(
        default=1.0, doc="error from which on the value loss is linear (Huber loss); none: squared error", gt=0
    )

    @property
    def of_games(self) -> bool:  # type: ignore[override]
        """True if `env` is a game."""
        return is_game(self)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.teachers and self.num_envs % len(self.teachers):
            raise ConfigError(f"num_envs = {self.num_envs}: expected a multiple of the {len(self.teachers)} teachers")
        if self.teachers and self.num_envs // len(self.teachers) % self.num_devices:
            raise ConfigError(
                f"num_envs = {self.num_envs}: expected a multiple of {len(self.teachers)} teachers * num_devices = "
                f"{len(self.teachers) * self.num_devices}"
            )
        why = "a student learns from its teachers, not from rewards"
        if self.normalize_rewards:
            raise ConfigError(f"normalize_rewards = true: {why}; expected false")
        for name in ("clip_rewards", "scale_rewards"):
            if getattr(self, name) is not None:
                raise ConfigError(f"{name} = {getattr(self, name)}: {why}; expected none")


class TeacherOfShare(NamedTuple):
    """A teacher with its environment.

    Attributes:
        parts: parts of its own network.
        policy: its policy as it was saved.
        view: returns what the student sees of observations `[...]` of this environment; by default, all that the teacher sees.
        reward_statistics: statistics by which the rewards of its game were divided; None: they were not.
    """

    parts: ImitationParts
    policy: Teacher
    view: Callable[[Any], Any] = lambda obs: obs
    reward_statistics: Any = None


class DistillParts(NamedTuple):
    """Parts of the student, and the teachers."""

    student: ImitationParts
    teachers: tuple[TeacherOfShare, ...]


class DistillState(ImitationState, kw_only=True):
    """State of a student. `env_state`, `obs` and `carry` are tuples with an entry for each teacher, of its N / K environments.

    Attributes:
        teacher_carry: memory of each teacher, likewise.
    """

    env_state: Any = per_environment(shares=True)
    obs: Any = per_environment(shares=True)
    carry: Any = per_environment(shares=True)
    teacher_carry: Any = per_environment(depends_on=("teachers",), shares=True)


class Taught(NamedTuple):
    """Steps with what the teachers would have done, arrays `[T, N, ...]`, or of a minibatch `[B, ...]` or `[T, B, ...]`.

    Attributes:
        obs: normalised observations.
        action: actions taken.
        mask: legal actions; None without masks.
        view: `rljax.algos.common.teacher.policy_view` of the teacher.
        label: the teacher's most likely action.
        value: the teacher's value, f32; of games in the unit of their rewards.
        begins: where an episode begins, bool.
        carry: the student's memory before the first step, `[N, ...]`; None without memory.
    """

    obs: Any
    action: jax.Array
    mask: jax.Array | None
    view: Any
    label: jax.Array
    value: jax.Array
    begins: jax.Array
    carry: Any


class Lessons(NamedTuple):
    """A rollout of all shares.

    Attributes:
        taught: steps, and what the teachers would have done.
        raw_obs: the student's observations `[T, N, ...]` before normalisation.
        reward: f32 `[T, N]`.
        done: where episodes ended, bool `[T, N]`.
        episodes: sums over these episodes, with the environment metrics that every share has.
    """

    taught: Taught
    raw_obs: Any
    reward: jax.Array
    done: jax.Array
    episodes: EpisodeSums


def distill_parts(config: DistillConfig) -> DistillParts:
    """Build the student, and read the teachers.

    Raises:
        ConfigError: environment or network do not fit, or a teacher cannot be read or does not fit the student.
    """
    student = imitation_parts(config)
    if student.head.choices is None and not isinstance(config.temperature, jax.core.Tracer) and float(config.temperature) != 1.0:
        raise ConfigError(f"temperature = {config.temperature}: softens discrete actions, expected 1 in {env_name(config)}")
    return DistillParts(student, read_teachers(student))


def read_teachers(student: ImitationParts) -> tuple[TeacherOfShare, ...]:
    """Read the teachers of a student's configuration.

    Raises:
        ConfigError: there are none, one cannot be read, or does not fit the student.
    """
    if not student.config.teachers:
        raise ConfigError("teachers = []: expected the folders of one or several runs")
    return tuple(_read_teacher(student, path) for path in student.config.teachers)


def _read_teacher(student: ImitationParts, path: str) -> TeacherOfShare:
    with jax.ensure_compile_time_eval():
        run = read_run(path, student.config)
    parts = teacher_parts(student, run.config, path)
    average = getattr(run.state, "average_params", None)
    # On the host: a cached array of a trace would not outlive it.
    policy = Teacher(run.state.params if average is None else average, run.state.obs_statistics)
    rewards = run.state.reward_statistics if run.config.of_games else None
    policy, rewards = jax.tree.map(np.asarray, (policy, rewards))
    view = _view_of(parts)
    if run.config.of_games:
        if hasattr(run.config, "num_learners"):
            policy, rewards = jax.tree.map(lambda x: x[0], (policy, rewards))  # the main agent's
        parts = _in_levels(against_itself(parts, policy, _num_values(run.config)), run.config)
    return TeacherOfShare(parts, policy, view, rewards)


def teacher_parts(student: ImitationParts, config: Any, name: str) -> ImitationParts:
    """Return the parts of a teacher that was, or will be, trained with `config`; it teaches in all levels of a curriculum alike.

    Raises:
        ConfigError: it cannot teach this student; the message calls it `name`.
    """
    if not isinstance(config, ActionConfig) and not config.of_games:
        raise ConfigError(
            f"teachers: {name} is of {config.algorithm}, expected ppo, impala, bc, distill, self_play, league or alphazero"
        )
    if learns_values(student.config) and not learns_values(config):
        raise ConfigError(
            f"teachers: {name} has vf_coef = 0, so its values mean nothing; expected vf_coef = 0 for the student, too, which has "
            f"{student.config.vf_coef}"
        )
    # Minibatches are the student's.
    parts = imitation_parts(config.replace(num_devices=1, num_minibatches=1), _num_values(config))
    if not config.of_games:  # else once the teacher plays the other players
        parts = _in_levels(parts, config)
    if getattr(config, "central_critic", False) and split_privileged(example_obs(student))[1] is not None:
        raise ConfigError(
            f"teachers: {name} has central_critic = true, expected false in {env_name(config)}, whose observations have a "
            "privileged part of their own"
        )
    for what, theirs, ours in zip(("observations", "actions"), _form(parts), _form(student), strict=True):
        if theirs != ours:
            raise ConfigError(
                f"teachers: {name} is trained in {env_name(config)}, whose observations or actions are not those of env = "
                f"{env_name(student.config)!r}: its {what} are {shortened(theirs)}, expected {shortened(ours)}"
            )
    check_heads(student.config.action_heads, parts.env, parts.env_params)
    return parts


def _in_levels(parts: ImitationParts, config: Any) -> ImitationParts:
    """Return the parts with an environment in which all levels of a configuration's curriculum are alike; without one, the
    parts."""
    curriculum = getattr(config, "curriculum", None)
    if curriculum is None:
        return parts
    # An array of a trace would not outlive it, and the parts do.
    with jax.ensure_compile_time_eval():
        env, env_params = with_levels(parts.env, parts.env_params, curriculum["levels"])
    return parts._replace(env=env, env_params=env_params)


def _num_values(config: Any) -> int:
    """Return the number of value heads of a teacher's policy."""
    return num_values(config) if isinstance(config, HeadConfig) else 1


def _view_of(parts: ImitationParts) -> Callable[[Any], Any]:
    """Return the function from observations of a teacher's environment to what a student sees of them."""
    if not parts.config.of_games:
        return lambda obs: obs
    return functools.partial(without_added, parts.env.env, parts.env_params)


def _form(parts: ImitationParts) -> tuple[str, str]:
    """Return what the observations of a student look like, and actions, as text."""
    obs = jax.tree.map(describe, jax.eval_shape(_view_of(parts), example_obs(parts)))
    space = as_space(parts.env.action_space(parts.env_params))
    sizes = head_sizes(space)
    if sizes is None:
        return str(obs), describe(parts.head.action)
    if isinstance(space, Dict):
        return str(obs), str(dict(zip(space.spaces, sizes, strict=True)))
    return str(obs), f"Discrete({space.n})" if isinstance(space, Discrete) else f"MultiDiscrete({sizes})"


def teachers_digest(teachers: tuple[TeacherOfShare, ...]) -> str:
    """Return the SHA-256 of all teachers' parameters."""
    digest = hashlib.sha256()
    for teacher in teachers:
        for x in jax.tree.leaves(teacher.policy):
            digest.update(np.ascontiguousarray(x).tobytes())
    return digest.hexdigest()


def distill_init(parts: DistillParts, key: jax.Array) -> DistillState:
    """Return the state before the first iteration."""
    config, student, count = parts.student.config, parts.student, len(parts.teachers)
    share = config.num_envs // max(count, 1)
    params_key, env_key, eval_key, key = jax.random.split(as_single_key(key), 4)
    env_keys = jax.random.split(env_key, count)
    begun = [
        initial_environments(t.parts.env, t.parts.env_params, k, share) for t, k in zip(parts.teachers, env_keys, strict=True)
    ]
    first, params = example_obs(student), initial_params(student, params_key)
    return DistillState(
        params=params,
        opt_state=init_optimizer(adam(config), params),
        obs_statistics=init_statistics(first) if config.normalize_observations else None,
        reward_statistics=None,
        env_state=tuple(env_state for env_state, _ in begun),
        obs=tuple(obs for _, obs in begun),
        carry=tuple(student.policy.initial_carry((share,)) for _ in parts.teachers),
        teacher_carry=tuple(t.parts.policy.initial_carry((share,)) for t in parts.teachers),
        key=key,
        eval_key=eval_key,
        iteration=jnp.zeros((), jnp.int32),
    )


def distill_collect(parts: DistillParts, state: DistillState) -> tuple[DistillState, Lessons]:
    """Step the environments of all teachers `num_steps` times, and ask each teacher what it would have done."""
    key, *keys = jax.random.split(state.key, len(parts.teachers) + 1)
    shares = [_collect_share(parts, state, number, k) for number, k in enumerate(keys)]
    env_state, obs, carry, teacher_carry, lessons = zip(*shares, strict=True)
    # Memories `[N, ...]` have their environments on the first axis, everything else on the second.
    carries = jax.tree.map(lambda *x: jnp.concatenate(x), *[share.taught.carry for share in lessons])
    masks = _joined_masks([share.taught.mask for share in lessons])
    without = [
        share._replace(taught=share.taught._replace(carry=None, mask=mask), episodes=None)
        for share, mask in zip(lessons, masks, strict=True)
    ]
    joined: Lessons = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *without)
    episodes = _joined_sums([share.episodes for share in lessons])
    joined = joined._replace(taught=joined.taught._replace(carry=carries), episodes=episodes)
    state = state.replace(key=key, env_state=env_state, obs=obs, carry=carry, teacher_carry=teacher_carry)
    return state, joined


def _joined_masks(shares: list[jax.Array | None]) -> list[jax.Array | None]:
    """Give the masks of all shares one form. Where the environments of some teachers have masks, all actions of the others are
    legal; where some have masks for pairs of heads, what others allow does not depend on earlier heads."""
    masks = [mask for mask in shares if mask is not None]
    if not masks:
        return shares
    largest = max(masks, key=lambda mask: mask.ndim)

    def joined(mask: jax.Array | None) -> jax.Array:
        if mask is None:
            return jnp.ones_like(largest)
        return mask if mask.ndim == largest.ndim else jnp.broadcast_to(mask[..., None, :], largest.shape)

    return [joined(mask) for mask in shares]


def _joined_sums(shares: list[EpisodeSums]) -> EpisodeSums:
    """Add up the sums of all shares. Teachers' environments may differ: only metrics that all of them report are kept, since
    their means are over the episodes of all shares."""
    names = tuple(name for name in shares[0].names if all(name in share.names for share in shares))
    totals = [share.totals[np.array([0, 1, 2, *(3 + share.names.index(name) for name in names)])] for share in shares]
    without = [share.without_action for share in shares if share.without_action is not None]
    return EpisodeSums(sum(totals[1:], totals[0]), names, sum(without[1:], without[0]) if without else None)


def _collect_share(parts: DistillParts, state: DistillState, number: int, key: jax.Array) -> tuple[Any, Any, Any, Any, Lessons]:
    """Step the environments of one teacher: `(env_state, obs, student's carry, teacher's carry, lessons)`."""
    student, (teaching, policy, view, _) = parts.student, parts.teachers[number]
    # Minibatches are of all shares together: one share need not divide into them.
    config = student.config.replace(num_envs=student.config.num_envs // len(parts.teachers), num_minibatches=1, teachers=())
    before, teacher_before = state.carry[number], state.teacher_carry[number]
    acts = student._replace(config=config, env=teaching.env, env_params=teaching.env_params)
    here = state.replace(env_state=state.env_state[number], obs=state.obs[number], carry=before, key=key)
    if config.acting == "teacher":
        acts = acts._replace(policy=teaching.policy, head=teaching.head)
        here = here.replace(carry=teacher_before, obs_statistics=policy.obs_statistics)
        after, steps = policy_rollout(acts, here, policy.params)
    else:
        after, steps = policy_rollout(acts, here, state.params, view=view)
    begins, done = episode_starts(steps), steps.terminated | steps.truncated
    raw_obs = view(steps.obs)
    obs = normalize_obs(state, raw_obs)
    carry = after.carry
    if config.acting == "teacher":
        carry = reset_carry(unroll(student, state.params, obs, before, begins)[3], done[-1])
    taught, teacher_carry = _ask(parts.teachers[number], teacher_before, steps, begins)
    taught = taught._replace(obs=obs, carry=before)
    episodes = episode_sums(steps, action_heads(teaching.env, teaching.env_params))
    lessons = Lessons(taught, raw_obs, steps.reward, done, episodes)
    return after.env_state, after.obs, carry, reset_carry(teacher_carry, done[-1]), lessons


def _ask(teacher: TeacherOfShare, carry: Any, steps: Steps, begins: jax.Array) -> tuple[Taught, Any]:
    """Return what a teacher would have done, and its memory after the steps."""
    parts, policy = teacher.parts, teacher.policy
    seen = steps.obs if policy.obs_statistics is None else normalize(policy.obs_statistics, steps.obs)
    outputs, value, _, carry = unroll(parts, policy.params, seen, carry, begins)
    view = policy_view(parts.head, outputs, steps.mask, steps.action)
    if parts.head.choices is None:
        label = parts.head.distribution(outputs, steps.mask).mode()
        view = view.chosen(view.each) if isinstance(view, PerGroup) else view  # the student's head has no groups
    else:
        label = argmax_of(view).reshape(steps.action.shape)
    if isinstance(parts.config, HeadConfig):
        value = value_of_rewards(parts.config, value)
    if parts.config.of_games:
        value = value_in_game(parts.config, teacher.reward_statistics, value)  # as a search by the student needs it
    return Taught(None, steps.action, steps.mask, view, label, value, begins, None), carry


def distill_update(parts: DistillParts, state: DistillState, lessons: Lessons) -> tuple[DistillState, Metrics]:
    """Learn from a rollout: `num_epochs` passes of `num_minibatches` gradient steps.

    Args:
        parts: from `distill_parts`.
        state: as `distill_collect` returned it.
        lessons: arrays `[T, N, ...]`.

    Returns:
        The next state, and metrics `train/...`, means over the gradient steps.
    """
    student = parts.student
    after, metrics = imitate(student, state, lessons.taught, lambda params, taught: distill_loss(student, params, taught))
    return after.replace(obs_statistics=seen_obs(state, lessons.raw_obs)), metrics


def distill_loss(student: ImitationParts, params: Any, taught: Taught) -> tuple[jax.Array, Metrics]:
    """Return the loss f32 [] of one minibatch, and metrics: `T^2 KL(teacher || student)` of policies softened by T, plus
    `hard_label_coef` times the cross-entropy to the teacher's most likely actions, plus `vf_coef` times the Huber loss of values.
    """
    config, head = student.config, student.head
    outputs, value, _ = policy_unroll(student, params, taught.obs, taught.carry, taught.begins)
    distribution = head.distribution(outputs, taught.mask)
    divergence = jnp.mean(policy_kl(head, taught.view, distribution, taught.mask, taught.action, config.temperature))
    if head.choices is None:
        hard = -jnp.mean(distribution.log_prob(taught.label))
        metrics = {"train/action_error": jnp.mean(jnp.abs(distribution.mode() - taught.label))}
    else:
        choices = head.choices(distribution, taught.action)
        choices = choices._replace(action=taught.label.reshape(choices.action.shape))
        hard = jnp.mean(choices_loss(choices))
        metrics = agreement_metrics(agreement(choices), heads_of(student.env, student.env_params), "train/", 1.0)
    value_loss = jnp.mean(huber_value_loss(value, taught.value, config.huber_delta))
    loss = divergence + config.hard_label_coef * hard + config.vf_coef * value_loss
    return loss, metrics | {
        "train/loss": loss,
        "train/teacher_kl": divergence,
        "train/value_loss": value_loss,
        "train/value": jnp.mean(value),
        "train/entropy": jnp.mean(head.entropy(distribution, taught.action)),
    }


def make_distill(config: DistillConfig) -> Agent:
    """The student of a configuration."""
    student = imitation_parts(config)
    parts = functools.cache(lambda: distill_parts(config))

    def init(key: jax.Array) -> DistillState:
        # Without teachers it can still act, in the state of a run whose teachers are gone.
        return distill_init(parts() if config.teachers else DistillParts(student, ()), key)

    def step(state: DistillState) -> tuple[DistillState, Metrics]:
        state, lessons = distill_collect(parts(), state)
        state, metrics = distill_update(parts(), state, lessons)
        # No loss depends on rewards: their mean shows where one is not finite, which stops the run.
        return state, episode_means(lessons.episodes) | metrics | {"train/reward": jnp.mean(lessons.reward)}

    return Agent(
        init,
        step,
        policy_act(student),
        config,
        policy_and_value=positions_of(student),
        data=lambda: teachers_digest(parts().teachers),
    )


register_agent(DistillConfig, make_distill)
