"""fit: the same numbers as make_train, and everything impure between its chunks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.run import driver as driver_module
from rljax.run.progress import Silent
from tests.run import tiny_runs

pytestmark = pytest.mark.same_bits

CONFIG = tiny_runs.CONFIG.replace(total_timesteps=64 * 23, eval_every=500)


def bits(tree: Any) -> list[bytes]:
    leaves = [jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in jax.tree.leaves(tree)]
    return [np.asarray(leaf).tobytes() for leaf in leaves]


class Recorder(Silent):
    def __init__(self) -> None:
        self.updates: list[tuple[int, float, float]] = []
        self.left: list[float] = []
        self.total = 0
        self.stopped = False

    def start(self, total_steps: int) -> None:
        self.total = total_steps

    def update(self, step: int, steps_per_second: float, episode_return: float, seconds_left: float) -> None:
        self.updates.append((step, steps_per_second, episode_return))
        self.left.append(seconds_left)

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(scope="module")
def reference() -> rljax.TrainResult:
    return jax.jit(rljax.make_train(CONFIG))(jax.random.key(CONFIG.seed))


@pytest.mark.slow
def test_fit_equals_jitted_make_train_bit_for_bit(reference: rljax.TrainResult) -> None:
    fitted = rljax.fit(CONFIG)
    assert bits(fitted.state) == bits(reference.state)
    assert sorted(fitted.metrics) == sorted(reference.metrics)
    for name, values in reference.metrics.items():
        np.testing.assert_array_equal(np.asarray(values), fitted.metrics[name], err_msg=name)


@pytest.mark.slow
def test_chunk_lengths_do_not_change_the_numbers(monkeypatch: pytest.MonkeyPatch, reference: rljax.TrainResult) -> None:
    monkeypatch.setattr(driver_module, "MAX_CHUNK", 5)  # chunks of 1, 4, 5, 5, 5, 3 at most
    progress = Recorder()
    fitted = rljax.fit(CONFIG, progress=progress)
    assert len(progress.updates) >= 6
    assert bits(fitted.state) == bits(reference.state)


@pytest.mark.slow
def test_nothing_traces_after_the_chunk_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    traces: list[str] = []

    class Counting(rljax.make_env("CartPole-v1")[0].__class__):  # type: ignore[misc]
        def step_env(self, *args: Any) -> Any:
            traces.append("step")
            return super().step_env(*args)

    counts: list[int] = []

    class CountingProgress(Recorder):
        def update(self, step: int, steps_per_second: float, episode_return: float, seconds_left: float) -> None:
            super().update(step, steps_per_second, episode_return, seconds_left)
            counts.append(len(traces))

    monkeypatch.setattr(driver_module, "MAX_CHUNK", 5)
    rljax.fit(CONFIG.replace(env=Counting(), eval_every=None), progress=CountingProgress())
    assert len(counts) >= 6
    assert counts[0] > 0
    assert len(set(counts)) == 1, f"the environment was traced again between chunks: {counts}"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [None, 2])
def test_nothing_compiles_once_training_is_under_way(seeds: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    training: list[bool] = []

    class Watching(Recorder):
        def compiled(self) -> None:
            training.append(True)

    def note(event: str, _: float, **__: Any) -> None:
        if training and event.endswith("backend_compile_duration"):
            compiled.append(event)

    monkeypatch.setattr(driver_module, "MAX_CHUNK", 5)
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        rljax.fit(
            CONFIG, seeds=seeds, run_dir=tmp_path / "a", progress=Watching(), checkpoint_every=300, callback=lambda *_: None
        )
        assert training
        assert compiled == []
        jax.jit(lambda x: x * 7 + len(compiled))(jnp.ones(3))
        assert compiled, "the listener hears nothing: the test tests nothing"
    finally:
        jax.monitoring.clear_event_listeners()


@pytest.mark.slow
def test_run_folder_has_frozen_config_metrics_and_a_checkpoint_that_reads_back(
    tmp_path: Path, reference: rljax.TrainResult
) -> None:
    folder = tmp_path / "runs" / "a"
    fitted = rljax.fit(CONFIG, run_dir=folder)
    assert rljax.load_config(folder / "config.toml") == CONFIG
    run = rljax.load_run(folder)
    assert run.config == CONFIG
    assert run.step == 64 * 23
    assert bits(run.state) == bits(fitted.state) == bits(reference.state)
    agent = rljax.make_agent(run.config)
    key = jax.random.key(3)
    np.testing.assert_array_equal(
        rljax.evaluate(agent, run.state, key, num_episodes=4), rljax.evaluate(agent, reference.state, key, num_episodes=4)
    )


@pytest.mark.slow
def test_records_carry_environment_steps_and_null_for_nan(tmp_path: Path, reference: rljax.TrainResult) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "a")
    first, *records = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert first["step"] == 0
    assert first["hyperparameters"]["learning_rate"] == 1e-3
    assert first["hyperparameters"]["network"] == {"hidden": [16]}
    assert [r["step"] for r in records] == [64 * (i + 1) for i in range(23)]
    for i, record in enumerate(records):
        assert record["perf/steps_per_second"] > 0
        for name, values in reference.metrics.items():
            expected = float(values[i])
            assert record[name] == (expected if np.isfinite(expected) else None), name
    assert sum(r["eval/return"] is not None for r in records) == 64 * 23 // 500 + 1  # and at the end


@pytest.mark.slow
def test_an_existing_run_folder_is_refused_and_untouched(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(rljax.ConfigError, match=r"run folder .* exists already"):
        rljax.fit(CONFIG, run_dir=folder)
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]


class NanReward(rljax.Environment):
    """Rewards become NaN once an episode is 40 steps old."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, rljax.EnvState]:
        return jnp.zeros(1), rljax.EnvState(jnp.int32(0))

    def step_env(self, key: jax.Array, state: rljax.EnvState, action: jax.Array, params: Any) -> Any:
        time = state.time + 1
        return jnp.zeros(1), rljax.EnvState(time), jnp.where(time > 40, jnp.nan, 1.0), jnp.bool_(False), {}

    def observation_space(self, params: Any) -> rljax.Box:
        return rljax.Box(-1.0, 1.0, (1,))

    def action_space(self, params: Any) -> rljax.Discrete:
        return rljax.Discrete(2)


@pytest.mark.slow
def test_nan_stops_the_run_with_the_step_and_the_metric_that_went_first(tmp_path: Path) -> None:
    config = CONFIG.replace(env=NanReward(), eval_every=None, normalize_rewards=False)
    progress = Recorder()
    with pytest.raises(rljax.TrainingError) as error:
        rljax.fit(config, run_dir=tmp_path / "a", progress=progress, checkpoint_seconds=0.0)
    message = str(error.value)
    # 40 steps of 4 environments: NaN first in the third iteration of 16 steps, which ends at step 192.
    assert "step 192" in message
    assert "train/" in message
    assert "nan" in message
    assert "\n" not in message
    assert progress.stopped
    kept = rljax.load_run(tmp_path / "a", env=NanReward())
    assert kept.step in (64, 128)
    assert f"step_{kept.step}" in message
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(kept.state.params))


@pytest.mark.slow
def test_callback_sees_every_record_and_can_stop_early() -> None:
    seen: list[int] = []

    def stop_at_ten(step: int, metrics: dict[str, float]) -> bool:
        assert "train/policy_loss" in metrics
        seen.append(step)
        return step >= 640

    result = rljax.fit(CONFIG, callback=stop_at_ten)
    assert seen == [64 * (i + 1) for i in range(len(seen))]
    taken = int(result.state.iteration)
    assert 10 <= taken < 23
    assert len(result.metrics["train/value"]) == taken


@pytest.mark.slow
def test_progress_is_told_the_steps_really_taken() -> None:
    progress = Recorder()
    rljax.fit(CONFIG.replace(total_timesteps=64 * 3 + 63, eval_every=None), progress=progress)
    assert progress.total == 64 * 3
    assert progress.updates[-1][0] == 64 * 3


@pytest.mark.slow
def test_a_seed_repeats_bit_for_bit_and_another_seed_does_not(reference: rljax.TrainResult) -> None:
    same, other = rljax.fit(CONFIG), rljax.fit(CONFIG.replace(seed=8))
    assert bits(same.state) == bits(reference.state)
    assert bits(other.state.params) != bits(reference.state.params)


@pytest.mark.slow
def test_a_missing_or_broken_run_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(rljax.ConfigError, match="no run there"):
        rljax.load_run(tmp_path)
    rljax.fit(CONFIG, run_dir=tmp_path / "a")
    text = (tmp_path / "a" / "config.toml").read_text()
    other = text.replace("hidden = [\n    16,\n]", "hidden = [32]")
    (tmp_path / "a" / "config.toml").write_text(other)
    with pytest.raises(
        rljax.ConfigError, match=r"config\.toml: differs from what was written .*; to use it anyway, remove its first line"
    ):
        rljax.load_run(tmp_path / "a")
    (tmp_path / "a" / "config.toml").write_text(other.partition("\n")[2])
    with pytest.raises(
        rljax.ConfigError, match=r"params/params/network/actor_0/bias is float32\[16\] there and float32\[32\] here"
    ) as error:
        rljax.load_run(tmp_path / "a")
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_device_without_memory_ends_a_run_with_one_line() -> None:
    config = rljax.DQNConfig(
        env="CartPole-v1",
        num_steps=1,
        updates_per_step=10_000_000,
        batch_size=50_000,
        learning_starts=50_000,
        buffer_size=50_000,
        total_timesteps=100_000,
    )
    with pytest.raises(rljax.TrainingError, match=r"^the device's memory is not enough \(.*RESOURCE_EXHAUSTED.*\); a run takes"):
        rljax.fit(config)
