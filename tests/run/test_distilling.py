"""Parts of the experiments with distillation."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import rljax
from rljax.envs.microrts.rules.units import HP, UNIT_NAMES
from rljax.run.reproduce import distilling
from rljax.run.reproduce.distilling import SomeCommands, distil, improve, shares
from rljax.run.reproduce.playing.melee import Melee
from rljax.run.reproduce.report import Report

PPO = rljax.PPOConfig(
    env="MaskedBandit-v0", total_timesteps=128, num_envs=4, num_steps=8, num_minibatches=1, network={"hidden": [4]}
)


def test_a_share_is_above_the_lowest_return_and_nothing_where_the_teacher_has_none() -> None:
    np.testing.assert_allclose(shares([-300.0, -90.0, -500.0], [-100.0, -80.0, -500.0], -500.0), [0.5, 410 / 420, np.nan])


@pytest.mark.long
def test_students_of_all_seeds_in_one_program_are_those_of_runs_of_their_own(tmp_path: Path) -> None:
    report = Report("tried", "students", 5000, 2, quiet=True)
    teacher = report.train(PPO, "teacher")
    config = rljax.DistillConfig(
        env="MaskedBandit-v0", total_timesteps=128, num_envs=4, num_steps=8, num_minibatches=1, network={"hidden": [4]}
    )
    students = distil(report, config, "student", [teacher])
    improved = improve(report, PPO.replace(teacher_kl_coef=0.5), "improved", students)
    for i, seed in enumerate(report.seeds):
        folder = tmp_path / str(seed)
        rljax.save(folder, teacher.agent, jax.tree.map(lambda x, i=i: x[i], teacher.states))
        alone = rljax.fit(config.replace(seed=seed, teachers=(str(folder),)))
        for ours, theirs in zip(jax.tree.leaves(alone.state.params), jax.tree.leaves(students.states.params), strict=True):
            np.testing.assert_allclose(ours, theirs[i], atol=1e-5)
        for held, learned in zip(
            jax.tree.leaves(improved.states.teacher.params), jax.tree.leaves(students.states.params), strict=True
        ):
            np.testing.assert_array_equal(held[i], learned[i])
    assert improved.metrics["train/teacher_kl"].shape == (2, 4)


@pytest.mark.slow
def test_both_teams_of_a_melee_are_those_asked_for_from_either_seat() -> None:
    env = Melee([["Light", "Heavy"], ["Ranged", "Ranged"]], [["Worker", "Light"]])
    obs, state = jax.jit(jax.vmap(env.reset_env, in_axes=(0, None)))(jax.random.split(jax.random.key(0), 64), env.default_params)
    unit, owner, hp = (np.asarray(x) for x in (state.game.unit, state.game.owner, state.game.hp))
    drawn = set()
    for i, team in enumerate(np.asarray(state.team)):
        # The second player looks from the other side.
        turned = [x[i][::-1, ::-1] if team else x[i] for x in (unit, owner, hp)]
        own, others = ([UNIT_NAMES[kind] for kind in turned[0][turned[1] == player]] for player in (team, 1 - team))
        drawn.add((int(team), *own))
        assert others == ["Light", "Worker"]
        np.testing.assert_array_equal(hp[i][unit[i] >= 0], HP[unit[i][unit[i] >= 0]])
    assert drawn == {(team, *own) for team in (0, 1) for own in (("Light", "Heavy"), ("Ranged", "Ranged"))}
    # A team sees the same, whichever seat it has.
    light = [i for i in range(64) if (unit[i] == UNIT_NAMES.index("Heavy")).any()]
    seen = {int(state.team[i]): np.asarray(obs)[i] for i in light}
    np.testing.assert_array_equal(seen[0], seen[1])


@pytest.mark.parametrize(
    ("teams", "said"), [([["Light"]], "expected two units"), ([["Light", "Hevy"]], "unknown unit 'Hevy': did you mean 'Heavy'")]
)
def test_unknown_teams_are_one_line(teams: list[list[str]], said: str) -> None:
    with pytest.raises(rljax.ConfigError, match=said):
        Melee(teams)


@pytest.mark.long
def test_specialists_student_and_reinforcement_take_as_many_steps_as_training_from_scratch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a bandit in place of the fights."""
    bandit = {"env": "MaskedBandit-v0", "num_envs": 6, "num_steps": 8, "num_minibatches": 1, "network": {"hidden": [4]}}
    monkeypatch.setattr(distilling, "MELEE", bandit)
    monkeypatch.setattr(distilling, "MELEE_PPO", bandit)
    monkeypatch.setattr(distilling, "PHASE_STEPS", 96)
    monkeypatch.setattr(distilling, "melee", lambda _teams, _others: {})
    report = Report("tried", "phases", 5000, 2, quiet=True)
    distilling.cspl(report)
    steps = {arm: config["total_timesteps"] for arm, config in report.configs.items()}
    assert steps.pop("from scratch") == sum(steps.values()) == 5 * 96
    for name in distilling.PAIRS:
        points = np.array(report.raw[f"specialist, {name}: points"])
        np.testing.assert_allclose(
            report.raw[f"student, {name}: share"], np.array(report.raw[f"student, {name}: points"]) / points
        )
    assert np.shape(report.raw["from scratch: returns in training"]) == (2, 10)


def test_commands_for_some_units_are_all_those_without_others() -> None:
    env = SomeCommands((1, 3), num_units=4, num_builds=5)
    _, state = jax.vmap(env.reset_env, in_axes=(0, None))(jax.random.split(jax.random.key(0), 200), env.default_params)
    assert {tuple(x) for x in np.asarray(state.commanded).tolist()} == {(0, n, 0, 5 - n) for n in range(6)}
