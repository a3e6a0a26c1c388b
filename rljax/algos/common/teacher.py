"""The policy that a run began with, kept as a teacher: a divergence from it, which may fade, holds on to what was imitated.

AlphaStar (Vinyals et al., 2019, methods) begins with a clone of human players, and every agent of its league is kept near it.
As there, the divergence is KL(teacher || policy), whose gradient is that of the cross-entropy to the teacher ("Kickstarting deep
reinforcement learning", Schmitt et al., 2018, where its weight falls): the policy must keep what the teacher does, and may do
more.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.common.config import PolicyConfig
from rljax.algos.common.losses import choices_kl
from rljax.algos.common.policy import unroll
from rljax.algos.common.state import NormalizedState
from rljax.collect.normalizers import normalize
from rljax.collect.rollout import Steps, reset_carry
from rljax.collect.streams import episode_starts, own_mean
from rljax.core.agent import Agent, Metrics
from rljax.core.errors import ConfigError
from rljax.core.state import Count, copy_of_state, per_environment
from rljax.nn.outputs.actions import ActionHead

C = TypeVar("C", bound=PolicyConfig)


class Teacher(NamedTuple):
    """A policy as it was.

    Attributes:
        params: its parameters.
        obs_statistics: statistics that normalise its observations; None: none do.
        since: number of iterations of the run before it became the teacher, i32 [], of leagues `[L]`; None: no part of a run.
    """

    params: Any
    obs_statistics: Any
    since: Any = None


def teacher_of(params: Any, obs_statistics: Any, since: jax.Array) -> Teacher:
    """Return a policy as a teacher, which shares no array with it."""
    return Teacher(*jax.tree.map(jnp.copy, (params, obs_statistics, since)))


def _begun_with(state: Any, teacher: Teacher) -> Teacher:
    """Return the policy of a state as the teacher from now on; `teacher` has its shapes."""
    return teacher_of(state.params, state.obs_statistics, jnp.full_like(teacher.since, state.iteration))


def _recounted(teacher: Teacher, count: Count) -> Teacher:
    return teacher._replace(since=jnp.asarray(count(np.asarray(teacher.since, np.int64)), jnp.int32))


class TaughtState(NormalizedState, kw_only=True):
    """State with a teacher.

    Attributes:
        teacher: the policy that the run began with, or a fork of a run that had no teacher; None without `teacher_kl_coef`.
        teacher_carry: its own memory of the episodes under way, in the shapes of the policy's carry; None without memory.
    """

    teacher: Teacher | None = copy_of_state(_begun_with, recount=_recounted)
    teacher_carry: Any = per_environment()


def teacher_fields(
    config: PolicyConfig, params: Any, obs_statistics: Any, carry: Any, learners: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Return the fields of `TaughtState` before the first iteration.

    Args:
        config: says whether there is a teacher.
        params: parameters of the policy.
        obs_statistics: statistics that normalise its observations; None: none do.
        carry: that of a policy that remembers nothing yet.
        learners: `(L,)` in leagues, whose learners have a teacher each.
    """
    if config.teacher_kl_coef is None:
        return {"teacher": None, "teacher_carry": None}
    since = jnp.zeros(learners, jnp.int32)
    return {"teacher": teacher_of(params, obs_statistics, since), "teacher_carry": jax.tree.map(jnp.copy, carry)}


def check_teacher(agent: Agent, how: str) -> None:
    """Refuse new runs that would hold on to random parameters; `how` says in the message how to begin with others.

    What an `init` of a user's own begins with cannot be told.

    Raises:
        ConfigError: there is a `teacher_kl_coef`, and the runs begin with random parameters.
    """
    coefficient = getattr(agent.config, "teacher_kl_coef", None)
    if coefficient is not None and agent.made is not None and agent.init is agent.made.init:
        value = "" if isinstance(coefficient, jax.Array) else f" = {coefficient}"  # a traced number has none
        raise ConfigError(f"teacher_kl_coef{value}: the teacher is the policy that a run begins with, so give one: {how}")


class TeacherParts(Protocol):
    """Fields of an algorithm's parts that the teacher's functions need."""

    @property
    def config(self) -> Any: ...
    @property
    def policy(self) -> Any: ...
    @property
    def head(self) -> ActionHead: ...


class TaughtBatch(Protocol):
    """Fields of a batch that the divergence needs."""

    @property
    def action(self) -> jax.Array: ...
    @property
    def mask(self) -> jax.Array | None: ...
    @property
    def own(self) -> jax.Array | None: ...
    @property
    def teacher(self) -> Any: ...


def faded(config: C, iteration: jax.Array, teacher: Teacher | None) -> C:
    """Return the configuration with the teacher's weight at an iteration: it moves linearly from `teacher_kl_coef` to
    `teacher_kl_final` over the first `teacher_kl_share` of the iterations since the policy became the teacher: of the whole run,
    or of what was left of it in a fork of a run without a teacher.
    """
    if config.teacher_kl_coef is None:
        return config
    assert teacher is not None
    since = teacher.since.reshape(-1)[0]  # the teachers of a league's learners are as old as each other
    done = jnp.minimum((iteration - since) / (config.teacher_kl_share * (config.num_iterations - since)), 1.0)
    return config.replace(teacher_kl_coef=config.teacher_kl_coef + done * (config.teacher_kl_final - config.teacher_kl_coef))


def teacher_of_rollout(parts: TeacherParts, state: TaughtState, steps: Steps) -> tuple[Any, Any]:
    """Return `teacher_streams` of a rollout `[T, N, ...]`, and the teacher's memory after it; None and None without a teacher."""
    if state.teacher is None:
        return None, None
    ended = steps.terminated[-1] | steps.truncated[-1]
    return teacher_streams(parts, state.teacher, state.teacher_carry, steps, episode_starts(steps), ended)


class SeenSteps(Protocol):
    """Steps `[T, S, ...]`, with observations as the environment gave them."""

    @property
    def obs(self) -> Any: ...
    @property
    def action(self) -> jax.Array: ...
    @property
    def mask(self) -> jax.Array | None: ...


def teacher_streams(
    parts: TeacherParts,
    teacher: Teacher,
    carry: Any,
    steps: SeenSteps,
    begins: jax.Array | None,
    ended: jax.Array,
    seat: jax.Array | None = None,
) -> tuple[Any, Any]:
    """Return what the teacher would have done along trajectories.

    Args:
        parts: parts of the algorithm.
        teacher: the teacher.
        carry: its memory before the first step, `[S, ...]`, or `[S, P, ...]` of P seats; None without memory.
        steps: `[T, S, ...]`.
        begins: where an episode begins, bool `[T, S]`.
        ended: whether the last step ended an episode, bool `[S]`.
        seat: which of P seats takes the step, one-hot bool `[T, S, P]`; None: without seats.

    Returns:
        `(view, carry)`: the log-probabilities of its choices along the actions taken, f32 `[T, S, K, W]`, of continuous actions
        the outputs of its policy `[T, S, ...]`; and its memory after the last step.
    """
    seen = steps.obs if teacher.obs_statistics is None else normalize(teacher.obs_statistics, steps.obs)
    outputs, _, _, carry = unroll(parts, teacher.params, seen, carry, begins, seat)
    return policy_view(parts.head, outputs, steps.mask, steps.action), reset_carry(carry, ended)


def policy_view(head: ActionHead, outputs: Any, mask: jax.Array | None, action: jax.Array) -> Any:
    """Return what a divergence needs of a policy: its log-probabilities along `action [...]`, f32 `[..., K, W]`, or its outputs
    where the actions are numbers.
    """
    if head.choices is None:
        return outputs
    return head.choices(head.distribution(outputs, mask), action).log_prob


def policy_kl(
    head: ActionHead, view: Any, student: Any, mask: jax.Array | None, action: jax.Array, temperature: float | jax.Array = 1.0
) -> jax.Array:
    """Return KL(teacher || student), f32 `[...]`.

    Of heads that see earlier heads, or that are read only under some actions, it is the divergence along `action`.

    Args:
        head: action head of both.
        view: `policy_view` of the teacher.
        student: distribution over actions `[...]`.
        mask: legal actions, bool `[..., A]`; None without masks.
        action: actions taken `[...]`.
        temperature: that of `distillation_kl`, for discrete actions.
    """
    if head.choices is not None:
        choices = head.choices(student, action)
        return choices_kl(choices, choices._replace(log_prob=view), temperature)
    divergence: jax.Array = head.distribution(view, mask).kl_divergence(student)
    return divergence


def teacher_term(parts: TeacherParts, distribution: Any, batch: TaughtBatch) -> tuple[jax.Array | float, Metrics]:
    """Return the teacher's term of a loss and its metrics; 0 and none without `teacher_kl_coef`.

    Args:
        parts: parts of the algorithm; its configuration has the weight of this iteration (see `faded`).
        distribution: that of the policy `[...]`.
        batch: the steps `[...]`, `teacher` that of `Streams`.
    """
    coefficient = parts.config.teacher_kl_coef
    if coefficient is None:
        return 0.0, {}
    divergence = own_mean(policy_kl(parts.head, batch.teacher, distribution, batch.mask, batch.action), batch.own)
    return coefficient * divergence, {
        "train/teacher_kl": divergence,
        "train/teacher_kl_coef": jnp.asarray(coefficient, jnp.float32),
    }
