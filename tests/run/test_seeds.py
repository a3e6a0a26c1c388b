"""Many seeds in one program and one run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.run import driver as driver_module
from rljax.run.files.checkpoint import named_arrays, read_meta
from rljax.run.files.scores import Scores, best_seed
from tests.run.tiny_runs import CONFIG, assert_same_state, records

SEEDS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, rljax.TrainResult]:
    folder = tmp_path_factory.mktemp("seeds") / "run"
    return folder, rljax.fit(CONFIG, seeds=SEEDS, run_dir=folder)


@pytest.mark.slow
def test_seed_i_is_the_run_that_seed_plus_i_alone_would_be(run: tuple[Path, rljax.TrainResult]) -> None:
    _, result = run
    for i in range(SEEDS):
        ours = jax.tree.map(lambda x, i=i: x[i], result)
        assert_close(ours, rljax.fit(CONFIG.replace(seed=CONFIG.seed + i)))


@pytest.mark.slow
def test_it_is_the_vmap_of_make_train(run: tuple[Path, rljax.TrainResult]) -> None:
    keys = jax.vmap(jax.random.key)(np.arange(CONFIG.seed, CONFIG.seed + SEEDS, dtype=np.uint32))
    assert_close(run[1], jax.jit(jax.vmap(rljax.make_train(CONFIG)))(keys))


@pytest.mark.slow
def test_a_key_is_split_over_the_seeds() -> None:
    config = CONFIG.replace(total_timesteps=64 * 2)
    ours = rljax.fit(config, key=jax.random.key(5), seeds=2)
    assert_close(ours, jax.jit(jax.vmap(rljax.make_train(config)))(jax.random.split(jax.random.key(5), 2)))


def assert_close(ours: rljax.TrainResult, theirs: rljax.TrainResult) -> None:
    """The same to rounding: XLA fuses the loop of fit and that of make_train differently when both are vmapped."""
    for a, b in ((named_arrays(ours.state), named_arrays(theirs.state)), (ours.metrics, theirs.metrics)):
        assert sorted(a) == sorted(b)
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.slow
def test_records_hold_every_seed_and_their_mean(run: tuple[Path, rljax.TrainResult]) -> None:
    folder, result = run
    first, *rest = records(folder)
    assert first["hyperparameters"]["seeds"] == SEEDS
    assert len(rest) == 24
    for i, record in enumerate(rest):
        for name, values in result.metrics.items():
            expected = values[:, i].astype(float)
            assert record["seeds"][name] == [x if np.isfinite(x) else None for x in expected], name
            known = expected[np.isfinite(expected)]
            aggregate = None if not len(known) else known.sum() if name.endswith("/count") else known.mean()
            assert record[name] == pytest.approx(aggregate), name
    assert any(None in r["seeds"]["episode/return"] for r in rest), "a seed without episodes must be left out of the mean"


@pytest.mark.slow
def test_the_best_seed_is_the_one_with_the_highest_evaluation(run: tuple[Path, rljax.TrainResult]) -> None:
    folder, _ = run
    for checkpoint in ("latest", "best"):
        meta = read_meta((folder / "checkpoints" / checkpoint).resolve())
        evaluations = [r["seeds"]["eval/return"] for r in records(folder)[1:] if r["step"] <= meta["step"]]
        last = [[x for x in of_seed if x is not None][-1] for of_seed in zip(*evaluations, strict=True)]
        assert meta["score_name"] == "eval/return"
        assert meta["scores"] == last
        every, best = (rljax.load_run(folder, checkpoint=checkpoint, seed_index=i) for i in (None, "best"))
        highest = int(np.argmax(last))
        assert_same_state(best.state, jax.tree.map(lambda x, i=highest: x[i], every.state))
        assert rljax.evaluate(rljax.make_agent(best.config), best.state, jax.random.key(0), 2).shape == (2,)


def test_a_seed_that_was_not_evaluated_has_no_score_and_no_best() -> None:
    scores = Scores(2, {})
    rows = np.array([[[100.0, 0.0], [10.0, 0.0]]])
    names = ["eval/return", "episode/return"]
    scores.update(names, rows)
    assert scores.improved(64)
    assert scores.best_score == 55.0
    scores.update(names, np.array([[[np.nan, 1.0], [130.0, 1.0]]]))  # no episode of seed 0 ended
    assert not scores.improved(128)
    assert scores.meta(2)["scores"] == [None, 130.0]
    assert best_seed(scores.meta(2)) == 1
    assert (scores.best_score, scores.best_step) == (55.0, 64)


def test_the_best_is_compared_over_the_seeds_that_are_left() -> None:
    """What the good one that diverged had scored does not stand in the way of the others, nor a bad one's help them."""
    names = ["eval/return", "episode/return"]

    def evaluated(*returns: float) -> np.ndarray:
        return np.array([[[x, 0.0] for x in returns]])

    for resumed in (False, True):
        scores = Scores(3, {})
        scores.update(names, evaluated(500.0, 100.0, 120.0))
        assert scores.improved(64)
        if resumed:
            scores = Scores(3, scores.meta(1))
        scores.leave_out(0)
        assert scores.best_score == 110.0
        scores.update(names, evaluated(500.0, 150.0, 50.0))
        assert not scores.improved(128)
        scores.update(names, evaluated(500.0, 150.0, 80.0))
        assert scores.improved(192)
        assert (scores.best_score, scores.best_step) == (115.0, 192)
        scores.leave_out(2)
        assert scores.best_score == 150.0


def test_a_rating_counts_before_the_return_of_evaluations() -> None:
    """In a game with a pool: returns against random play say less."""
    scores, names = Scores(1, {}), ["episode/return", "eval/rating", "eval/return"]
    scores.update(names, np.array([[[0.0, 1100.0, 0.9]]]))
    assert scores.improved(64)
    scores.update(names, np.array([[[0.0, 1200.0, 0.8]]]))
    assert scores.improved(128)
    scores.update(names, np.array([[[0.0, 1150.0, 1.0]]]))
    assert not scores.improved(192)
    assert scores.meta(3)["score_name"] == "eval/rating"
    assert (scores.best_score, scores.best_step) == (1200.0, 128)


@pytest.mark.parametrize("wrong", [0, 5, -1, True, "0", "foo"])
def test_a_run_of_one_seed_has_no_seed_index(wrong: Any) -> None:
    with pytest.raises(rljax.ConfigError, match=f'^seed_index = .*{wrong}.*: expected "best", since run .* has a single seed$'):
        rljax.load_run("zoo:cartpole_ppo", seed_index=wrong)


def test_a_seed_index_that_is_not_there_is_one_clear_line(run: tuple[Path, rljax.TrainResult]) -> None:
    for wrong in (3, -1, "worst", True):
        with pytest.raises(rljax.ConfigError, match='expected "best" or a whole number from 0 to 2'):
            rljax.load_run(run[0], seed_index=wrong)
    for seeds in (0, -1, True, 2**20 + 1):
        with pytest.raises(rljax.ConfigError, match=r"seeds = .*: expected a whole number from 1 to 1,048,576"):
            rljax.fit(CONFIG, seeds=seeds)


@pytest.mark.slow
def test_nan_names_the_seed(tmp_path: Path) -> None:
    config = CONFIG.replace(
        env="Pendulum-v1", env_params={"gravity": 1e30, "max_speed": 1e30}, normalize_rewards=False, eval_every=None
    )
    with pytest.raises(rljax.TrainingError, match=r"train/\w+ of seed \d became"):
        rljax.fit(config, seeds=2, run_dir=tmp_path / "a")


@pytest.mark.slow
def test_metrics_of_2048_seeds_of_half_a_million_steps_stay_under_100_mb(monkeypatch: pytest.MonkeyPatch) -> None:
    config = rljax.load_config("cartpole_ppo_cleanrl", eval_every=None)
    assert config.total_timesteps == 500_000
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2048))
    metrics = jax.eval_shape(jax.vmap(rljax.make_train(config)), keys).metrics
    whole_run = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(metrics))
    assert 50e6 < whole_run < 100e6

    # fit: a chunk's metrics on the device, and the whole run's on the host.
    sizes: list[tuple[int, ...]] = []

    class Compiled(Exception):
        pass

    def compile_chunk(_: object, state: object, seeds_shape: tuple[int, ...], num_metrics: int, size: int, layout: None) -> None:
        sizes.append((size, *seeds_shape, num_metrics))
        raise Compiled

    monkeypatch.setattr(driver_module, "compile_chunk", compile_chunk)
    with pytest.raises(Compiled):
        rljax.fit(config, seeds=2048)
    assert sizes[0][1:] == (2048, len(metrics))
    assert 4 * np.prod(sizes[0]) <= 16 * 2**20
    assert sizes[0][0] >= 100
