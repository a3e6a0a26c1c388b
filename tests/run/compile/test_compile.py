"""`compile_for` and `rljax compile`: memory by part, estimates and bad input, for the CPU's own devices: no plug-in is needed."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.cli.main import main
from rljax.cli.measure import compile_run
from rljax.cli.options import Compile
from rljax.core.compilation_cache import use_compilation_cache
from rljax.core.devices import Target, compiling_for, current_target, make_mesh, platform
from rljax.core.memory import check_memory, tree_bytes
from rljax.envs import CartPole
from rljax.run.chunks import Seeds, seeds_iteration
from rljax.run.compile import program as compile_program
from rljax.run.compile.costs import Kernel
from rljax.run.compile.estimate import BOUNDS, seconds_by_bound
from rljax.run.compile.program import CompileReport, compile_on
from rljax.run.compile.report import report_lines
from rljax.run.compile.targets import CHIPS, TOPOLOGIES, parse_target
from rljax.run.files.folder import initial_state

SMALL: dict[str, Any] = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 3}
ROUND = CHIPS["h200"]._replace(
    bf16=1e12, f32=1e11, f32_exact=1e10, bandwidth=1e9, interconnect=1e8, launch=1e-6, wait=1e-3, collective=1e-5
)


def here() -> Target:
    return Target("cpu", "cpu", tuple(jax.devices()[:1]), 10**9)


@pytest.fixture(scope="module")
def ppo() -> CompileReport:
    return compile_on(rljax.PPOConfig(env="CartPole-v1", **SMALL), here(), ROUND)


def test_bytes_by_part_are_those_of_the_states_arrays(ppo: CompileReport) -> None:
    agent = rljax.make_agent(rljax.PPOConfig(env="CartPole-v1", **SMALL))
    state = jax.eval_shape(agent.init, jax.eval_shape(lambda: jax.random.key(0)))
    assert ppo.parts["parameters"] == tree_bytes(state.params)
    assert ppo.parts["optimiser"] == tree_bytes(state.opt_state)
    environments = [state.env_state, state.obs, *(getattr(state, name) for name in ("carry",) if hasattr(state, name))]
    assert ppo.parts["environments"] >= tree_bytes(environments)
    memory = ppo.compiled.memory_analysis()
    arguments = sum(size for name, size in ppo.parts.items() if name not in ("activations", "metrics", "program"))
    assert arguments == memory.argument_size_in_bytes
    assert ppo.parts["activations"] == memory.temp_size_in_bytes
    assert ppo.bytes == sum(ppo.parts.values())
    assert ppo.fits


def test_products_of_ppo_are_those_of_its_network(ppo: CompileReport) -> None:
    """The default network has two torsos of 64 and 64: forward for each step and value, and three times in each gradient step."""
    per_step = {"actor": 4 * 64 + 64 * 64 + 64 * 2, "critic": 4 * 64 + 64 * 64 + 64}
    num_steps = SMALL["num_envs"] * SMALL["num_steps"]
    gradient = 3 * sum(per_step.values()) - 2 * 4 * 64  # nothing needs the gradient of the observations
    rollout = num_steps * per_step["actor"]
    values = num_steps * per_step["critic"]
    least = 2 * (rollout + values + SMALL["num_epochs"] * num_steps * gradient)
    assert least <= ppo.product_flops <= 1.1 * least  # and the values of the last observations of episodes


@pytest.mark.slow
def test_a_replay_buffer_is_a_part_of_its_own() -> None:
    config = rljax.DQNConfig(env="CartPole-v1", num_envs=2, buffer_size=4096, learning_starts=64)
    report = compile_on(config, here(), ROUND)
    state = jax.eval_shape(rljax.make_agent(config).init, jax.eval_shape(lambda: jax.random.key(0)))
    assert report.parts["buffer"] == tree_bytes(state.replay)
    assert report.parts["copies of parameters"] == tree_bytes(state.target_params)
    tight = compile_on(config, here()._replace(memory=report.bytes - 1), ROUND)
    assert not tight.fits
    assert "DOES NOT FIT" in "\n".join(report_lines_of(tight))


def report_lines_of(report: CompileReport) -> list[str]:
    return report_lines(CompileReport(**{**vars(report), "target": "h200"}))


@pytest.mark.slow
def test_seeds_multiply_what_is_kept_and_computed(ppo: CompileReport) -> None:
    several = compile_on(rljax.PPOConfig(env="CartPole-v1", **SMALL), here(), ROUND, seeds=3)
    assert several.parts["parameters"] == 3 * ppo.parts["parameters"]
    assert several.steps == 3 * ppo.steps
    assert several.product_flops == 3 * ppo.product_flops


@pytest.mark.slow
def test_seeds_take_the_memory_that_fit_needs() -> None:
    """A seed that diverges keeps its state, so that all of it is there twice."""
    config, seeds = rljax.PPOConfig(env="CartPole-v1", **SMALL, network={"hidden": [256]}), 2
    agent, report = rljax.make_agent(config), compile_on(config, here(), ROUND, seeds=seeds)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), seeds))
    state = Seeds(jax.eval_shape(lambda keys: initial_state(agent, keys, seeds), keys), jax.ShapeDtypeStruct((seeds,), bool))
    step = jax.jit(seeds_iteration(agent, seeds, config.num_iterations), donate_argnums=0)
    memory = step.lower(state, jax.ShapeDtypeStruct((), np.int32)).compile().memory_analysis()
    assert report.parts["activations"] == pytest.approx(memory.temp_size_in_bytes, rel=0.05)


@pytest.mark.parametrize(
    ("kernel", "bound", "seconds"),
    [
        (Kernel("fusion", 100), "launches", 100e-6),
        (Kernel("fusion", 2, moved=10**6), "memory", 2e-3),
        (Kernel("fusion", 5, products=((("f32", "default"), 10**9),)), "arithmetic", 5e-2),
        (Kernel("fusion", 5, products=((("bf16", "default"), 10**9),)), "arithmetic", 5e-3),
        (Kernel("fusion", 1, products=((("f32", "highest"), 10**9),)), "arithmetic", 1e-1),
        (Kernel("while", 3, waits=True), "waiting", 3e-3),
        (Kernel("all-reduce", 2, sent=10**6), "collectives", 2 * (1e-5 + 2 * 0.75 * 1e-2)),
        (Kernel("all-gather", 1, sent=10**6), "collectives", 1e-5 + 0.75 * 1e-2),
        (Kernel("collective-permute", 1, sent=10**6), "collectives", 1e-5 + 1e-2),
    ],
)
def test_an_operation_takes_the_longest_of_its_times(kernel: Kernel, bound: str, seconds: float) -> None:
    found = seconds_by_bound([kernel], ROUND, num_devices=4)
    np.testing.assert_allclose(found.pop(bound), seconds)
    assert not any(found.values())


def test_the_report_says_what_bounds_and_that_it_is_an_estimate(ppo: CompileReport) -> None:
    said = "\n".join(report_lines_of(ppo))
    assert "estimate, not measured" in said
    assert f"bound by {ppo.bound_by}" in said
    assert f"kernels started: {ppo.launches:,}" in said
    assert "--num-devices" not in said
    numbers = json.loads(json.dumps(ppo.as_dict()))
    assert numbers["launches"] == ppo.launches
    assert set(numbers["seconds"]) == set(BOUNDS)
    part = CompileReport(**{**vars(ppo), "target": "v5e-16", "devices_there": 16})
    assert "one iteration (32 environment steps) on 1 of 16 devices; --num-devices 16 uses all" in report_lines(part)[0]


def test_names_of_targets() -> None:
    assert parse_target("v5e-16") == ("v5e", 16)
    assert parse_target("V5P-64") == ("v5p", 64)
    assert parse_target("h200") == ("h200", 1)
    assert parse_target("h100-8") == ("h100", 8)
    assert all(parse_target(f"{chip}-{number}") == (chip, number) for chip, sizes in TOPOLOGIES.items() for number in sizes)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "expected one of: a100, h100, h200, v5e, v5p, v6e"),
        ("tpu", "expected one of"),
        ("h20", "did you mean 'h200'?"),
        ("v5e-5", "expected v5e-N with N one of 1, 4, 8, 16"),
        ("h200-9", "expected h200-N with N one of 1, 2, 3, 4, 5, 6, 7, 8"),
        ("v5e-", "expected v5e-N"),
        ("v5e-016", "expected v5e-N"),
        ("v5e-16\x1b[31m", "expected v5e-N"),
    ],
)
def test_an_unknown_target_is_one_line_that_lists_the_known_ones(name: str, says: str) -> None:
    with pytest.raises(rljax.ConfigError) as error:
        rljax.compile_for(rljax.PPOConfig(env="CartPole-v1"), name)
    assert says in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(("target", "says"), [("v5e-1", "rljax-jit[tpu]"), ("h200", "rljax-jit[cuda13]")])
def test_a_missing_plug_in_is_one_line_that_says_what_to_install(
    target: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    found = importlib.util.find_spec
    missing = ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in missing else found(name, *rest))
    with pytest.raises(SystemExit) as stop:
        main(["compile", "cartpole_ppo", "--target", target])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cartpole_ppo", "--target", "z80"], "unknown target 'z80'"),
        (["cartpole_ppo"], "target"),
        (["cartpole_pp", "--target", "h200"], "did you mean 'cartpole_ppo'?"),
        (["cartpole_ppo", "--target", "h200", "--learning-rat", "1"], "learning_rate"),
        (["cartpole_ppo", "--target", "h200", "--seeds", "0"], "seeds = 0"),
        (["cartpole_ppo", "--target", "h200", "--json", "x.txt"], "json = 'x.txt': expected a file name that ends in .json"),
        (["cartpole_ppo", "--target", "h200", "--save", "x.txt"], "save = 'x.txt': expected a file name that ends in .xla"),
    ],
)
def test_bad_arguments_end_with_status_2(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["compile", *arguments])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_bad_arguments_of_the_function() -> None:
    config = rljax.PPOConfig(env="CartPole-v1")
    with pytest.raises(rljax.ConfigError, match="is not a configuration"):
        rljax.compile_for("cartpole_ppo", "h200")  # type: ignore[arg-type]
    for target in (None, 3):
        with pytest.raises(rljax.ConfigError, match=f"target = {target}: expected a name, such as v5e-8 or h200"):
            rljax.compile_for(config, target)  # type: ignore[arg-type]
    with pytest.raises(rljax.ConfigError, match="seeds = 0"):
        rljax.compile_for(config, "h200", seeds=0)
    with pytest.raises(rljax.ConfigError, match="seeds = 2: expected none with num_devices = 2"):
        rljax.compile_for(config.replace(num_devices=2), "h200-2", seeds=2)


def test_a_program_that_the_compiler_refuses_for_its_size_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lowered:
        def trace(self, *_: Any) -> Lowered:
            return self

        def lower(self, **_: Any) -> Lowered:
            return self

        def compile(self, **_: Any) -> None:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in hbm. Used 21.3G of 15.75G hbm.")

    monkeypatch.setattr(compile_program.jax, "jit", lambda *_, **__: Lowered())
    state = {"params": jax.ShapeDtypeStruct((1000,), np.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))}
    monkeypatch.setattr(compile_program, "_abstract_state", lambda *_: state)
    monkeypatch.setattr(compile_program, "part_of_leaves", lambda _: ["parameters"])
    with pytest.raises(rljax.ConfigError, match=r"does not fit on cpu: the compiler counts 21.3G bytes, and a device has 15.75G"):
        compile_on(rljax.PPOConfig(env="CartPole-v1", **SMALL), here(), ROUND)


def called(x: Any) -> Any:
    return jax.pure_callback(lambda x: x, x, x, vmap_method="broadcast_all")


def printed(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


@pytest.mark.parametrize("ask", [called, printed])
def test_a_run_that_asks_the_host_is_one_line(ask: Any) -> None:
    class Asking(CartPole):
        def step_env(self, key: Any, state: Any, action: Any, params: Any) -> Any:
            obs, state, reward, *rest = super().step_env(key, state, action, params)
            return obs, state, ask(reward), *rest

    config = rljax.PPOConfig(env=Asking(), **SMALL)
    assert compile_on(config, here(), ROUND).flops > 0
    with pytest.raises(rljax.ConfigError, match="the run asks the host as it runs") as error:
        compile_on(config, here()._replace(name="v5e-1", platform="tpu"), ROUND)
    assert "\n" not in str(error.value)


def test_within_a_target_programs_are_for_its_platform_devices_and_memory() -> None:
    assert current_target() is None
    assert platform() == jax.default_backend()
    with compiling_for(Target("v5e-4", "tpu", tuple(jax.devices()), 1000)):
        assert platform() == "tpu"
        with pytest.raises(rljax.ConfigError, match="num_devices = 99: v5e-4 has"):
            make_mesh(99)
        with pytest.raises(rljax.ConfigError, match="a device of v5e-4 has"):
            check_memory(1001, "a buffer", "take a smaller one")
    assert current_target() is None


def test_dreamer_has_the_precision_of_the_target_and_not_of_this_machine() -> None:
    config = rljax.load_config("cartpole_dreamer", dtype="auto")
    with compiling_for(Target("v5e-1", "tpu", tuple(jax.devices()), 16 << 30)):
        there = rljax.dreamer_parts(config)
    assert "bfloat16" in str(there.networks)
    assert "bfloat16" not in str(rljax.dreamer_parts(config).networks)


def test_programs_for_devices_that_are_not_there_stay_out_of_the_cache_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX writes them, can read none again, and warns each time."""
    used: list[bool] = []

    def noted(*_: Any) -> None:
        used.append(jax.config.jax_enable_compilation_cache)  # type: ignore[attr-defined]

    monkeypatch.setattr(compile_program, "target_of", lambda _: contextlib.nullcontext((here(), ROUND)))
    monkeypatch.setattr(compile_program, "compile_on", noted)
    before: bool = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    try:
        for enabled in (True, False):  # benchmarks in the same process leave it off
            use_compilation_cache(enabled)
            rljax.compile_for(rljax.PPOConfig(env="CartPole-v1", **SMALL), "h200")
            noted()
    finally:
        use_compilation_cache(before)
    assert used == [False, True, False, False]


def test_a_program_for_this_machine_can_be_saved(ppo: CompileReport, tmp_path: Path) -> None:
    ppo.save(tmp_path / "step.xla")
    assert (tmp_path / "step.xla").stat().st_size > 1000
    with pytest.raises(rljax.ConfigError, match=r"\.xla"):
        ppo.save(tmp_path / "step.txt")


class Gone(io.StringIO):
    """Standard output whose reader has gone."""

    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_the_files_are_written_even_if_nobody_reads_the_report(
    ppo: CompileReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, files = CompileReport(**{**vars(ppo), "target": "h200"}), (tmp_path / "step.xla", tmp_path / "report.json")
    monkeypatch.setattr(compile_program, "compile_for", lambda *_, **__: report)
    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(BrokenPipeError):
        compile_run(Compile("cartpole_ppo", target="h200", save=str(files[0]), json=str(files[1])), {})
    assert files[0].stat().st_size > 1000
    assert json.loads(files[1].read_text())["launches"] == ppo.launches


def test_the_report_is_printed_even_if_a_file_cannot_be_written(
    ppo: CompileReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = CompileReport(**{**vars(ppo), "target": "h200", "compiled": None})
    monkeypatch.setattr(compile_program, "compile_for", lambda *_, **__: report)
    with pytest.raises(rljax.ConfigError, match="XLA cannot save a program for h200"):
        compile_run(Compile("cartpole_ppo", target="h200", save=str(tmp_path / "step.xla")), {})
    assert f"kernels started: {ppo.launches:,}" in capsys.readouterr().out
