"""Every ratio is one of programs that ran in turn here; a peer that is not installed leaves no ratio, but a line."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.envs.microrts.actions import biased_choice
from rljax.run.bench import dreamer as bench_dreamer
from rljax.run.bench import league as bench_league
from rljax.run.bench import microrts as bench_microrts
from rljax.run.bench import simulators as bench_simulators
from rljax.run.bench import suites, timing
from rljax.run.bench.timing import Timing, parse_tables, run_in_turn, time_interleaved

CONFIG = rljax.PPOConfig(env="CartPole-v1", total_timesteps=64, num_envs=4, num_steps=8)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Lists of the programs that were timed in turn; none is compiled or run, and program number i takes i + 1 seconds."""
    timed: list[list[str]] = []

    def counted(programs: dict[str, Any], repeats: int, compiles: int = 1, beside: Any = None) -> dict[str, Timing]:
        timed.append([*programs, *(beside or {})])
        return {name: Timing(0.5, [i + 1.0] * repeats) for i, name in enumerate(timed[-1])}

    for module in (suites, bench_league, bench_microrts):
        monkeypatch.setattr(module, "time_interleaved", counted)
    return timed


def rows_and_notes(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], str]:
    said = parse_tables("machine\n" + capsys.readouterr().out)
    return said["tables"][0], "\n".join(said["notes"])


def test_runs_take_turns_and_are_timed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def takes(name: str, seconds: float) -> Any:
        def run(i: int) -> None:
            order.append((name, i))
            clock[0] += seconds + i

        return run

    assert run_in_turn({"a": takes("a", 1.0), "b": takes("b", 5.0)}, 2) == {"a": [1.0, 2.0], "b": [5.0, 6.0]}
    assert order == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_a_peer_that_is_not_compiled_takes_its_turn() -> None:
    order = []
    program = lambda key: jax.debug.callback(lambda: order.append("program"))  # noqa: E731
    timings = time_interleaved({"program": program}, 2, beside={"peer": lambda i: order.append(f"peer {i}")})
    jax.effects_barrier()
    assert [name for name in order if name != "program"] == ["peer 0", "peer 1"]
    assert order.count("program") == 2
    assert {name: len(each.runs) for name, each in timings.items()} == {"program": 2, "peer": 2}
    assert timings["program"].compile > 0 == timings["peer"].compile


@pytest.mark.parametrize("there", [True, False])
def test_rejax_beside_it_or_no_ratio(
    there: bool, turns: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Peer(contextlib.nullcontext[Any]):
        seconds, run = lambda self: 7.5, None

    monkeypatch.setattr(suites, "start_rejax", lambda settings: Peer(Peer()) if there else None)
    suites._print_peers("name", CONFIG, {}, "work", 3)
    rows, notes = rows_and_notes(capsys)
    assert turns == [["rljax", "products alone", "rejax"] if there else ["rljax", "products alone"]]
    assert [row.get("speed against rejax") for row in rows] == ([3.0, 1.5, 1.0] if there else [None, None])
    assert [row["trace + compile, s"] for row in rows] == ([0.5, 0.5, 7.5] if there else [0.5, 0.5])
    assert ("rejax is not installed" in notes) != there


def test_without_the_recurrent_peer_there_is_no_column_for_it(turns: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    suites._print_recurrent(CONFIG, None, 2)
    rows, notes = rows_and_notes(capsys)
    assert [row["program"] for row in rows] == turns[0]
    assert turns[0] == ["rljax, feed-forward", "rljax, gru", "products alone, gru", "rljax, lstm", "products alone, lstm"]
    assert not any("against" in column for row in rows for column in row)
    assert "peer: none" in notes


def test_speeds_are_of_the_steps_that_are_taken(
    turns: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suites, "products_alone", lambda program: program)
    monkeypatch.setattr(suites, "start_rejax", lambda settings: None)
    config = CONFIG.replace(total_timesteps=CONFIG.total_timesteps + CONFIG.steps_per_iteration - 1)
    suites._print_peers("name", config, {}, "work", 1)
    rows, _ = rows_and_notes(capsys)
    assert [row["steps/s"] for row in rows] == [CONFIG.total_timesteps, CONFIG.total_timesteps / 2]
    suites._print_recurrent(config, None, 1)
    rows, notes = rows_and_notes(capsys)
    assert rows[0]["steps/s"] == CONFIG.total_timesteps
    assert f"of rljax, {CONFIG.total_timesteps} steps, 4 environments" in notes


@pytest.mark.slow
def test_the_line_of_work_and_the_time_to_solve_count_the_steps_that_are_taken(
    turns: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIG.replace(total_timesteps=CONFIG.total_timesteps + 1, network={"hidden": [4]})
    monkeypatch.setattr(suites, "load_config", lambda _, **changes: config.replace(**changes))
    monkeypatch.setattr(suites, "fit", lambda *_, progress, **__: progress.compiled())
    suites._print_fit(1)
    assert f"cartpole_ppo_cleanrl, {CONFIG.total_timesteps} steps, one seed" in capsys.readouterr().out
    suites._print_time_to_solve(1, seeds=2, threshold=1e6)
    said = capsys.readouterr().out
    assert f"worst seed {CONFIG.total_timesteps} steps (1.00 s); 0 of 2 reached it" in said
    assert f"hold it after {CONFIG.total_timesteps} steps (1.00 s)" in said


@pytest.mark.slow
def test_all_cycles_of_the_engine_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_microrts, "ENGINE_STEPS", 40)
    choices = []
    monkeypatch.setattr(bench_microrts, "biased_choice", lambda *args: choices.append(biased_choice(*args)) or choices[-1])
    state, played = jax.jit(bench_microrts.engine_program("basesWorkers8x8", 4))(jax.random.key(0))
    # No game is over so soon: each has played the cycles of its own clock, several in a step.
    np.testing.assert_array_equal(played, state.time)
    assert np.min(played) > 2 * 40
    assert choices, "orders have the weights of Java's random bots"


@pytest.mark.parametrize("there", [True, False])
def test_the_java_engine_takes_turns_or_there_is_no_ratio(
    there: bool, turns: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gym:
        # Read before and after the runs, which take 2 x 2 seconds.
        seconds = iter([1.0, 2.0])
        java_seconds = property(lambda self: next(self.seconds))

    monkeypatch.setattr(bench_microrts, "find_java", lambda: "java" if there else print("\nwithout the Java engine"))
    monkeypatch.setattr(bench_microrts, "gym_microrts", lambda java, name: Gym())
    monkeypatch.setattr(bench_microrts, "clear_backends", lambda: None)  # other tests have arrays
    monkeypatch.setattr(bench_microrts, "NUM_GAMES", {"basesWorkers8x8": (512, 128)})
    # A stub of the engine's program: its games, all together, play as many cycles in the first run as games, in the second twice.
    played = lambda key: (None, jnp.full(512, jax.random.key_data(key)[1] + 1))  # noqa: E731
    monkeypatch.setattr(bench_microrts, "engine_program", lambda name, games: played)
    monkeypatch.setattr(bench_microrts, "game_program", lambda name, games: name)
    bench_microrts.print_microrts(2)
    rows, notes = rows_and_notes(capsys)
    # The engine beside the engine, and the game beside the game.
    pairs = [[bench_microrts.ENGINE, bench_microrts.JAVA], [bench_microrts.GAME, bench_microrts.GYM]]
    assert turns == [pair if there else pair[:1] for pair in pairs]
    assert [row["program"] for row in rows] == [name for timed in turns for name in timed]
    assert [row["games at once"] for row in rows] == ([512, 1, 128, 16] if there else [512, 128])
    ours = [512 * (1 + 2) / 2, 128 * bench_microrts.GAME_STEPS]
    java = [bench_microrts.JAVA_CYCLES / 2, 16 * bench_microrts.GYM_STEPS / 2]
    speeds = [ours[0], java[0], ours[1], java[1]] if there else ours
    assert [row["cycles/s"] for row in rows] == pytest.approx(speeds, rel=1e-3)
    times = [ours[0] / java[0], 1.0, ours[1] / java[1], 1.0] if there else [None, None]
    assert [row.get("times its peer") for row in rows] == pytest.approx(times, abs=0.06)
    assert ("25% of the time of Gym-microRTS" in notes) == there
    assert ("without the Java engine" in notes) != there


@pytest.mark.parametrize("there", [True, False])
def test_the_game_of_pgx_is_measured_or_left_out_with_a_line(
    there: bool, turns: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_league.importlib.util, "find_spec", lambda name: name if there else None)
    monkeypatch.setattr(bench_league, "make_train", lambda config: config)
    monkeypatch.setattr(bench_league, "_print_memory", lambda: None)
    bench_league.print_league(2)
    said = parse_tables("machine\n" + capsys.readouterr().out)
    # Games in turns, beside pgx's, and games whose players move at once.
    assert [len(rows) for rows in said["tables"]] == [len(names) for names in turns] == [2 + there, 2]
    for rows in said["tables"]:
        assert [row["times plain self-play"] for row in rows] == [1.0, 2.0, 3.0][: len(rows)]
    assert ("pgx is not installed" in "\n".join(said["notes"])) != there


def test_suites_that_are_not_installed_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_simulators.importlib.util, "find_spec", lambda name: None)
    bench_simulators.print_simulators(1)
    assert "without environments of envpool and gymnasium and mujoco: not installed" in capsys.readouterr().out


def test_parts_of_a_dreamer_update_and_counts_of_seeds_run_in_turn() -> None:
    order: list[str] = []

    def program(name: str, seconds: float) -> Any:
        return lambda: order.append(name) or time.sleep(seconds)

    found = bench_dreamer._median_seconds({"a": program("a", 0.0), "b": program("b", 0.02)}, 2)
    assert order == ["a", "b"] * 3  # the first of each compiles
    assert found["b"] >= 0.02
