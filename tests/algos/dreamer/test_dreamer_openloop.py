"""Open-loop predictions: which action leads to which row, what may be known, and what the errors are means of."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.dreamer import dreamer
from rljax.algos.dreamer.networks import TWO_HOT, encode
from rljax.algos.dreamer.openloop import (
    OpenLoop,
    mean_squared_error,
    open_loop,
    openloop_metrics,
    shuffled_actions,
    squashed_parts,
    valid_rows,
)
from rljax.algos.dreamer.parts import DreamerParts
from rljax.algos.dreamer.replay import Replayed
from rljax.core.keys import draw
from rljax.nn.latent.decoders import Parts

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "size": "debug",
    "batch_size": 4,
    "batch_length": 8,
    "horizon": 2,
    "train_ratio": 4,
    "buffer_size": 200,
    "learning_starts": 20,
    "total_timesteps": 400,
}
LENGTH, CONTEXT, BATCH = 9, 3, 4
HORIZON = LENGTH - CONTEXT
KEY = jax.random.key(5)


@functools.cache
def small_parts() -> DreamerParts:
    return dreamer.dreamer_parts(rljax.DreamerConfig(**SMALL))


@functools.cache
def small_params() -> Any:
    return dreamer.init_networks(small_parts().networks, jax.random.key(1), small_parts().obs)


def some_batch(length: int = LENGTH) -> Replayed:
    keys, rssm = jax.random.split(jax.random.key(2), 5), small_parts().networks.rssm
    start = rssm.initial((BATCH,))
    no = jnp.zeros((length, BATCH), bool)
    return Replayed(
        latent=start._replace(deter=jax.random.uniform(keys[0], start.deter.shape)),
        obs=2.0 * jax.random.normal(keys[1], (length, BATCH, 4)),
        action=jax.nn.one_hot(jax.random.randint(keys[2], (length, BATCH), 0, 2), 2),
        reward=jnp.ones((length, BATCH)),
        is_first=no.at[6, 1].set(True).at[1, 2].set(True),
        is_last=no,
        is_terminal=no,
    )


@jax.jit
def _predicted(params: Any, batch: Replayed, actions: jax.Array | None) -> OpenLoop:
    return open_loop(small_parts(), params, batch, CONTEXT, KEY, actions)


def predicted(batch: Replayed, actions: jax.Array | None = None) -> OpenLoop:
    # Parameters as an argument: XLA of jax 0.10.2 multiplies by constants that are all 0, as in new heads, as by garbage.
    return _predicted(small_params(), batch, actions)


def differs(a: OpenLoop, b: OpenLoop) -> np.ndarray:
    """Whether each predicted row differs, bool [H], in every sequence or in none."""
    assert a.prediction.vector is not None
    assert b.prediction.vector is not None
    per_sequence = np.asarray((a.prediction.vector != b.prediction.vector).any(axis=-1))
    assert (per_sequence.all(axis=1) | ~per_sequence.any(axis=1)).all()
    return per_sequence[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("row", range(CONTEXT, LENGTH))
def test_an_action_changes_the_rows_from_the_one_it_leads_to_on(row: int) -> None:
    batch = some_batch()
    other = batch.action.at[row].set(1.0 - batch.action[row])
    expected = np.arange(CONTEXT, LENGTH) >= row
    np.testing.assert_array_equal(differs(predicted(batch), predicted(batch._replace(action=other))), expected)
    np.testing.assert_array_equal(differs(predicted(batch), predicted(batch, other)), expected)
    reward, changed = predicted(batch), predicted(batch, other)
    np.testing.assert_array_equal((reward.cont != changed.cont).all(axis=1), expected)


def test_the_context_is_observed_and_nothing_after_it() -> None:
    batch, everything = some_batch(), np.ones(HORIZON, bool)
    before = predicted(batch)
    unseen = predicted(batch._replace(obs=batch.obs.at[CONTEXT:].add(1.0)))
    assert not differs(before, unseen).any()
    assert (np.asarray(before.error) != np.asarray(unseen.error)).all()
    same = batch._replace(is_first=jnp.zeros_like(batch.is_first))
    for row in range(CONTEXT):
        # Far enough that some of the 32 samples are others, in every sequence.
        change = same._replace(obs=batch.obs.at[row].multiply(-100.0))
        np.testing.assert_array_equal(differs(predicted(same), predicted(change)), everything)
    # Actions of the context are part of what is observed, whatever is done afterwards.
    assert not differs(before, predicted(batch, batch.action.at[:CONTEXT].set(0.5))).any()


@pytest.mark.slow
def test_it_is_a_loop_over_single_steps() -> None:
    batch, networks = some_batch(), small_parts().networks
    uniform = draw(jax.random.uniform, KEY, (LENGTH, BATCH, networks.rssm.groups))
    latent, rssm = batch.latent, {"params": small_params()["rssm"]}
    rows, rewards = [], []
    for t in range(LENGTH):
        if t < CONTEXT:
            tokens = encode(networks, small_params(), batch.obs[t], 1)
            inputs = (x[None] for x in (tokens, batch.action[t], batch.is_first[t], uniform[t]))
            latents, _ = networks.rssm.apply(rssm, latent, *inputs, method="observe")
        else:
            action = batch.action[t]
            latents, _ = networks.rssm.apply(
                rssm, latent, lambda *_, action=action: action, jnp.zeros((1, 1)), uniform[t][None], method="imagine"
            )
        latent = jax.tree.map(lambda x: x[0], latents)
        if t >= CONTEXT:
            rows.append(networks.apply("decoder", small_params(), latent.feature).vector)
            rewards.append(TWO_HOT.decode(networks.apply("reward", small_params(), latent.feature)))
    result: Any = predicted(batch)
    np.testing.assert_allclose(result.prediction.vector, jnp.stack(rows), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.reward, jnp.stack(rewards), atol=1e-5)


def test_errors_are_those_of_numpy() -> None:
    batch = some_batch()
    result: Any = predicted(batch)
    truth = np.sign(batch.obs) * np.log1p(np.abs(batch.obs))
    np.testing.assert_allclose(result.truth.vector, truth[CONTEXT:], rtol=1e-5)
    np.testing.assert_allclose(result.error, ((result.prediction.vector - truth[CONTEXT:]) ** 2).mean(-1), rtol=1e-4)
    np.testing.assert_allclose(result.copy_last_error, ((truth[CONTEXT - 1] - truth[CONTEXT:]) ** 2).mean(-1), rtol=1e-4)
    rng = np.random.default_rng(0)
    shapes = [(5, 3, 7), (5, 3, 4, 4, 2), (5, 3, 2, 2, 1)]
    of: Any = Parts
    (a, b, c), (d, e, f) = ([rng.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(2))
    numbers = np.concatenate([(x - y).reshape(5, 3, -1) ** 2 for x, y in ((a, d), (b, e), (c, f))], axis=-1)
    assert numbers.shape[-1] == 7 + 32 + 4
    together = mean_squared_error(of(a, (b, c)), of(d, (e, f)))
    np.testing.assert_allclose(together, numbers.mean(-1), rtol=1e-5)
    np.testing.assert_allclose(mean_squared_error(of(None, (b,)), of(None, (e,))), ((b - e) ** 2).mean((2, 3, 4)), rtol=1e-5)


def test_rows_of_the_next_episode_do_not_count() -> None:
    expected = np.ones((HORIZON, BATCH), bool)
    expected[6 - CONTEXT :, 1] = False  # an episode that begins within the context is the one to predict
    np.testing.assert_array_equal(predicted(some_batch()).valid, expected)
    again = some_batch()._replace(is_first=some_batch().is_first.at[CONTEXT, 0].set(True).at[8, 1].set(True))
    expected[:, 0] = False
    np.testing.assert_array_equal(valid_rows(again, CONTEXT), expected)


def test_images_are_in_the_unit_interval_and_have_their_own_error() -> None:
    settings = rljax.DreamerConfig(**SMALL | {"env": "GridWorldPixels-v0"})
    parts = dreamer.dreamer_parts(settings)
    obs = jax.random.bits(jax.random.key(0), (LENGTH, BATCH, *parts.obs.shape), jnp.uint8)
    (truth,) = squashed_parts(obs).images
    np.testing.assert_allclose(truth, np.asarray(obs, np.float32) / 255.0, rtol=1e-6)
    batch = some_batch()._replace(obs=obs, action=jnp.zeros((LENGTH, BATCH, 4)))
    params = jax.eval_shape(lambda: dreamer.init_networks(parts.networks, KEY, parts.obs))
    result = jax.eval_shape(lambda p, b: open_loop(parts, p, b, CONTEXT, KEY), params, batch)
    assert result.prediction.vector is None
    assert result.prediction.images[0].shape == result.truth.images[0].shape == (HORIZON, BATCH, 64, 64, 3)
    assert result.error.shape == result.copy_last_error.shape == result.reward.shape == result.valid.shape == (HORIZON, BATCH)


def test_shuffled_actions_are_those_of_the_valid_rows_in_another_order() -> None:
    batch = some_batch()
    named = batch._replace(action=jnp.arange(LENGTH * BATCH * 2.0).reshape(LENGTH, BATCH, 2))
    shuffled = np.asarray(shuffled_actions(named, CONTEXT, KEY))
    valid, actions = np.asarray(valid_rows(named, CONTEXT)), np.asarray(named.action)
    np.testing.assert_array_equal(shuffled[:CONTEXT], actions[:CONTEXT])
    np.testing.assert_array_equal(shuffled[CONTEXT:][~valid], actions[CONTEXT:][~valid])
    dealt, own = shuffled[CONTEXT:][valid], actions[CONTEXT:][valid]
    assert sorted(map(tuple, dealt)) == sorted(map(tuple, own))
    assert (dealt != own).any(axis=1).mean() > 0.8


def test_what_cannot_be_predicted_is_one_line() -> None:
    for context in (0, LENGTH, -1):
        with pytest.raises(rljax.ConfigError, match=rf"context = {context}: expected a whole number from 1 to 8") as error:
            open_loop(small_parts(), small_params(), some_batch(), context, KEY)
        assert "\n" not in str(error.value)
    parts = small_parts()._replace(
        networks=small_parts().networks._replace(decoder=None), config=rljax.DreamerConfig(**SMALL, representation="r2dreamer")
    )
    with pytest.raises(rljax.ConfigError, match="representation = 'r2dreamer': expected 'decoder'"):
        open_loop(parts, small_params(), some_batch(), CONTEXT, KEY)
    assert openloop_metrics(parts, None, jnp.array(True)) == {}  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("length", "steps"), [(64, (5, 15)), (20, (5, 15)), (16, (5, 11)), (10, (5,)), (8, (4,)), (2, (1,))])
def test_metrics_are_named_by_the_steps_that_fit(length: int, steps: tuple[int, ...]) -> None:
    parts = dreamer.dreamer_parts(
        rljax.DreamerConfig(**SMALL | {"batch_length": length, "train_ratio": length, "buffer_size": 400})
    )
    state = jax.eval_shape(lambda: dreamer.dreamer_init(parts, KEY))
    names = jax.eval_shape(lambda s: openloop_metrics(parts, s, jnp.array(True)), state)
    assert set(names) == {f"train/{kind}_error_{step}" for kind in ("openloop", "copy_last") for step in steps}


@pytest.mark.slow
def test_metrics_are_means_over_what_is_valid_and_unknown_without_it_or_before_learning_starts() -> None:
    """A ring of one window for each environment: 4 rows of context, the predicted row is 4 ahead."""
    parts = dreamer.dreamer_parts(
        rljax.DreamerConfig(**SMALL | {"buffer_size": 18, "learning_starts": 18, "batch_size": 64, "train_ratio": 32})
    )
    state = dreamer.dreamer_init(parts, KEY)
    data = state.replay.data
    obs = jax.random.normal(KEY, data.obs.shape)
    full = state.replay.replace(size=jnp.int32(9))
    metrics = jax.jit(lambda s, learning: openloop_metrics(parts, s, learning))

    def of(is_first: jax.Array, learning: bool) -> dict[str, float]:
        changed = state.replace(replay=full.replace(data=data._replace(obs=obs, is_first=is_first)))
        return {name: float(x) for name, x in metrics(changed, learning).items()}

    squashed = np.sign(obs) * np.log1p(np.abs(obs))
    copied = ((squashed[8] - squashed[4]) ** 2).mean(-1)
    none = jnp.zeros((9, 2), bool)
    assert copied.min() - 1e-5 < of(none, True)["train/copy_last_error_4"] < copied.max() + 1e-5
    for ended in range(2):
        known = of(none.at[7, ended].set(True), True)
        assert known["train/copy_last_error_4"] == pytest.approx(copied[1 - ended], rel=1e-4)
        assert known["train/openloop_error_4"] > 0.0
    names = ["train/copy_last_error_4", "train/openloop_error_4"]
    for unknown in (of(jnp.ones((9, 2), bool), True), of(none, False)):
        assert sorted(unknown) == names
        assert np.isnan(list(unknown.values())).all()


@pytest.mark.long
def test_training_is_the_same_with_and_without_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = rljax.DreamerConfig(**SMALL)

    def trained() -> Any:
        agent = rljax.make_agent(settings)
        step, state = jax.jit(agent.step), agent.init(KEY)
        for _ in range(5):
            state, metrics = step(state)
        return state, metrics

    with_metrics, metrics = trained()
    assert metrics["train/openloop_error_4"] > 0.0
    monkeypatch.setattr(dreamer, "openloop_metrics", lambda *_: {})
    without, fewer = trained()
    assert set(metrics) - set(fewer) == {"train/openloop_error_4", "train/copy_last_error_4"}
    for a, b in zip(jax.tree.leaves(with_metrics), jax.tree.leaves(without), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
