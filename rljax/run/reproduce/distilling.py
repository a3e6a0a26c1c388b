"""Experiments with distillation: smaller students, and specialists with their student and its reinforcement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.common.teacher import Teacher
from rljax.algos.imitation.distill import (
    DistillConfig,
    DistillParts,
    TeacherOfShare,
    distill_collect,
    distill_init,
    distill_update,
    teacher_parts,
)
from rljax.algos.imitation.parts import imitation_parts
from rljax.algos.ppo import PPOConfig
from rljax.core.agent import make_agent
from rljax.core.config import Config
from rljax.envs.command import Command
from rljax.league.exploit import branch
from rljax.league.parts import player
from rljax.run.reproduce.report import Report, Trained, fresh_keys

ENOUGH = 0.95
"""Share of a teacher's return that a student should have."""

SMALL: dict[str, Any] = {"network": {"hidden": [24, 24]}, "num_envs": 16, "num_steps": 64, "num_epochs": 4, "num_minibatches": 4}
"""Settings of students with less than a quarter of the parameters of the presets' networks."""

FLOORS = {"Acrobot-v1": -500.0}
"""Return of a policy that does nothing, where it is not 0."""

HALVES = {"units 0 and 1": [0, 1], "units 2 and 3": [2, 3]}
"""Types of units in the commands of each of two specialists."""

PAIRS = {"light": ["Light", "Light"], "heavy": ["Heavy", "Heavy"], "ranged": ["Ranged", "Ranged"]}
"""Teams of `Melee` that there is a specialist for."""

MIXED = [["Light", "Heavy"], ["Heavy", "Ranged"]]
"""Teams that no specialist and no student has trained with, but the reinforcement and the run from scratch."""

HELD_OUT = [["Ranged", "Light"]]
"""Team that no run has trained with."""

MELEE: dict[str, Any] = {
    "env": "rljax.run.reproduce.playing.melee:Melee",
    "num_envs": 48,
    "num_steps": 32,
    "num_epochs": 4,
    "num_minibatches": 4,
    "learning_rate": 2e-3,
    "network": {"encoder": "cells", "channels": [16], "kernels": [3], "hidden": [32]},
}
MELEE_PPO: dict[str, Any] = MELEE | {"ent_coef": 0.01, "vf_clip_eps": None}
PHASE_STEPS = 48_000
"""Number of steps of each specialist, of the student, and of its reinforcement."""


class SomeCommands(Command):
    """`Command` whose commands are for some types of units only.

    Args:
        units: types of units that commands ask for.
        num_units, num_builds: as in `Command`.
    """

    def __init__(self, units: Sequence[int] = (0, 1), num_units: int = 4, num_builds: int = 16):
        super().__init__(num_units, num_builds)
        others = [unit for unit in range(num_units) if unit not in units]
        self._commands = self._commands[(self._commands[:, others] == 0).all(axis=1)]


def distil(report: Report, config: DistillConfig, arm: str, teachers: Sequence[Trained]) -> Trained:
    """Train a student for each seed, whose teachers are those of the same seed, all seeds in one program."""
    config = report.configure(config, arm)[0]
    student = imitation_parts(config)
    parts = [teacher_parts(student, teacher.agent.config, arm) for teacher in teachers]
    policies = [Teacher(teacher.states.params, teacher.states.obs_statistics) for teacher in teachers]

    def learn(policies: Sequence[Teacher], key: jax.Array) -> Any:
        taught = DistillParts(student, tuple(map(TeacherOfShare, parts, policies)))

        def iterate(state: Any, _: None) -> Any:
            return distill_update(taught, *distill_collect(taught, state))

        return jax.lax.scan(iterate, distill_init(taught, key), None, config.num_iterations)

    states, metrics = report.time_program(jax.vmap(learn), policies, report.keys)
    return Trained(make_agent(config), states, jax.tree.map(np.asarray, metrics), report.keys)


def improve(report: Report, config: Config, arm: str, run: Trained, **changes: Any) -> Trained:
    """Train a new run for each seed, which begins with the policy of the same seed of another run, all in one program."""
    config = report.configure(config, arm, **changes)[0]
    agent = make_agent(config)

    def learn(params: Any, statistics: Any, key: jax.Array) -> Any:
        start = branch(agent, player(params, statistics), key)
        return jax.lax.scan(lambda state, _: agent.step(state), start, None, config.num_iterations)

    states, metrics = report.time_program(jax.vmap(learn), run.states.params, run.states.obs_statistics, fresh_keys(run))
    return Trained(agent, states, jax.tree.map(np.asarray, metrics), report.keys)


def parameters(run: Trained) -> int:
    """Return the number of parameters of each seed's policy and value."""
    return sum(x[0].size for x in jax.tree.leaves(run.states.params))


def shares(student: Any, teacher: Any, floor: float) -> np.ndarray:
    """Return a student's return above the lowest one as a share of its teacher's, `[seeds]`; NaN where the teacher has none."""
    gain = np.asarray(teacher, np.float64) - floor
    return np.divide(np.asarray(student) - floor, gain, out=np.full(gain.shape, np.nan), where=gain > 0)


def distillation(report: Report) -> None:
    """Measure students with less than a quarter of the parameters, of one teacher and of two."""
    for preset in ("cartpole_ppo", "acrobot_ppo"):
        teacher = report.train(preset, f"{preset}, teacher", eval_every=None)
        env = teacher.agent.config.env
        student = distil(report, DistillConfig(env=env, total_timesteps=200_000, **SMALL), f"{preset}, student", [teacher])
        report.facts[f"{preset}: parameters of student and teacher"] = [parameters(student), parameters(teacher)]
        compare(report, preset, student, teacher)
    preset, env = "command_ppo", "rljax.run.reproduce.distilling:SomeCommands"
    specialists = {
        name: report.train(preset, f"{name}, teacher", eval_every=None, env=env, env_params={"units": units})
        for name, units in HALVES.items()
    }
    both = {**SMALL, "network": SMALL["network"] | {"goal": "film"}}
    config = DistillConfig(env="Command-v0", total_timesteps=200_000, **both)
    student = distil(report, config, "two teachers, student", list(specialists.values()))
    for name, teacher in specialists.items():
        compare(report, f"two teachers, {name}", student, teacher)
        (other,) = (specialist for each, specialist in specialists.items() if each != name)
        # If the other teacher could do this too, there would be nothing to put together.
        report.measure(f"two teachers, {name}: the other teacher", report.returns(other, config=teacher.agent.config))
    report.facts["two teachers: parameters of student and teacher"] = [parameters(student), parameters(other)]


def compare(report: Report, name: str, student: Trained, teacher: Trained) -> None:
    """Measure greedy returns of a student and its teacher in the teacher's environment."""
    config = student.agent.config.replace(env=teacher.agent.config.env, env_params=teacher.agent.config.env_params)
    found = report.measure(f"{name}: teacher", report.returns(teacher))
    learned = report.measure(f"{name}: student", report.returns(student, config=config))
    report.measure(f"{name}: student's share", shares(learned, found, FLOORS.get(config.env, 0.0)), ENOUGH)


def melee(teams: list[list[str]], others: list[list[str]]) -> dict[str, Any]:
    """Return parameters of `Melee`."""
    return {"env_params": {"teams": teams, "others": others, "max_cycles": 400}}


def cspl(report: Report) -> None:
    """Compare specialists, their student and its reinforcement on all teams with PPO from scratch, for as many steps.

    Points are 1 for a game won and a half for one drawn, as a mean over games with sampled actions.
    """
    pairs = list(PAIRS.values())
    everything = [*pairs, *MIXED]
    specialists = {
        name: report.train(PPOConfig(**MELEE_PPO, **melee([pair], pairs), total_timesteps=PHASE_STEPS), f"specialist, {name}")
        for name, pair in PAIRS.items()
    }
    student = distil(
        report,
        DistillConfig(**MELEE, **melee(pairs, pairs), total_timesteps=PHASE_STEPS),
        "student",
        list(specialists.values()),
    )
    joint = PPOConfig(**MELEE_PPO, **melee(everything, pairs), total_timesteps=PHASE_STEPS)
    final = improve(report, joint, "reinforced", student)
    scratch = report.train(joint, "from scratch", total_timesteps=(len(PAIRS) + 2) * PHASE_STEPS)
    arms = {**{f"specialist, {name}": run for name, run in specialists.items()}, "student": student, "reinforced": final,
            "from scratch": scratch}  # fmt: skip
    fights = {**{name: [pair] for name, pair in PAIRS.items()}, "mixed teams": MIXED, "held-out team": HELD_OUT}
    points = {team: points_of(report, arms, final, melee(teams, pairs)) for team, teams in fights.items()}
    for name in PAIRS:
        report.measure(f"specialist, {name}: points", points[name][f"specialist, {name}"])
        report.measure(
            f"student, {name}: share", shares(points[name]["student"], points[name][f"specialist, {name}"], 0.0), ENOUGH
        )
    for arm in ("student", "reinforced", "from scratch"):
        for team, found in points.items():
            report.measure(f"{arm}, {team}: points", found[arm])
    for arm, run in (("reinforced", final), ("from scratch", scratch)):
        report.measure(f"{arm}: returns in training", run.metrics["episode/return"])


def points_of(report: Report, arms: dict[str, Trained], like: Trained, env: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the points of each arm, `[seeds]`; all have the network of `like`, so one program plays for all of them."""
    params = jax.tree.map(lambda *x: jnp.concatenate(x), *(run.states.params for run in arms.values()))
    keys = jnp.concatenate([fresh_keys(run) for run in arms.values()])
    states = jax.tree.map(lambda x: jnp.concatenate([x] * len(arms)), like.states).replace(params=params)
    found = report.returns(Trained(like.agent, states, {}, keys), 200, sample=True, config=like.agent.config.replace(**env))
    return dict(zip(arms, 0.5 + 0.5 * found.reshape(len(arms), -1), strict=True))
