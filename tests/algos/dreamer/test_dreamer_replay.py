"""Where sequences of one batch overlap, their latents go back to the buffer in one way only; forks count sequences anew."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.dreamer.replay import row_example, write_latents
from rljax.collect.replay import Places, init_replay
from rljax.nn.latent.rssm import RSSM, Latent
from tests.run.tiny_runs import TINY


def test_of_overlapping_sequences_the_last_is_written_whole() -> None:
    """Against a loop over sequences, one after the other; starts near the end of the ring wrap."""
    rssm, rng = RSSM(actions=2, tokens=3, deter=4, hidden=2, classes=3, groups=2, blocks=2), np.random.default_rng(0)
    capacity, envs, steps, batch = 9, 2, 4, 8
    replay = init_replay(row_example(rssm, *(jax.ShapeDtypeStruct((n,), jnp.float32) for n in (3, 2))), capacity, envs)
    program = jax.jit(write_latents)
    for _ in range(20):
        places = Places(jnp.asarray(rng.integers(0, capacity, batch)), jnp.asarray(rng.integers(0, envs, batch)))
        deter = rng.normal(size=(steps, batch, 4)).astype(np.float32)
        classes = rng.integers(0, 3, (steps, batch, 2))
        written = program(replay, places, Latent(jnp.asarray(deter), jax.nn.one_hot(classes, 3))).data
        want_deter, want_stoch = np.zeros((capacity, envs, 4), np.float32), np.zeros((capacity, envs, 2), np.uint8)
        for b in range(batch):
            for t in range(steps):
                row = (int(places.row[b]) + 1 + t) % capacity
                want_deter[row, int(places.env[b])] = deter[t, b]
                want_stoch[row, int(places.env[b])] = classes[t, b]
        np.testing.assert_array_equal(written.deter, want_deter)
        np.testing.assert_array_equal(written.stoch, want_stoch)


@pytest.mark.long
def test_a_fork_keeps_what_fits_of_the_buffer_and_counts_other_sequences_anew(tmp_path: Path) -> None:
    config = TINY["dreamer"].replace(total_timesteps=64 * 6, eval_every=None)
    rljax.fit(config, run_dir=tmp_path / "a")
    before = rljax.load_run(tmp_path / "a").state
    longer = config.replace(total_timesteps=64 * 7)
    with pytest.warns(rljax.RljaxWarning, match="initialised anew, .*: queue$"):
        rljax.fit(longer.replace(batch_length=4), fork=tmp_path / "a", run_dir=tmp_path / "b")
    # The last iteration overwrote a part of the ring; what it left is as it was, but for latents.
    after = rljax.load_run(tmp_path / "b").state
    kept = (np.asarray(before.replay.data.reward) == np.asarray(after.replay.data.reward)).all(1)
    assert kept.sum() >= config.buffer_rows - config.num_steps
    assert int(after.queue.written) == config.num_steps
