"""HiddenBit: rewards in plain Python, the share of the returns' variance that each critic can explain, and who sees what."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import make_env
from tests.envs.play import play, standard_error, uniform


def right(_noise: jax.Array, obs: dict[str, jax.Array], _state: object) -> jax.Array:
    return jnp.argmax(obs["observation"][:4])


@pytest.mark.parametrize("num_steps", [8, 5])
def test_rewards_equal_plain_python_and_the_bit_cancels(num_steps: int) -> None:
    env, params = make_env("HiddenBit-v0", num_steps=num_steps)
    played = play(env, params, uniform(4), num_steps + 2, num_envs=200)
    np.testing.assert_array_equal(played.lengths, num_steps)
    cues = np.concatenate([played.first_obs["observation"][:, None], played.obs["observation"]], axis=1)[:, :-1, :4].argmax(2)
    for episode in range(200):
        bit = float(played.first_obs["privileged"][episode, 0])
        hits = [float(a == c) for a, c in zip(played.action[episode], cues[episode], strict=True)][:num_steps]
        half = num_steps // 2
        moved = [4.0 * bit] * half + [0.0] * (num_steps % 2) + [-4.0 * bit] * half
        np.testing.assert_allclose(played.reward[episode, :num_steps], np.add(hits, moved), atol=1e-6)
        assert played.returns[episode] == pytest.approx(sum(hits), abs=1e-4)


def test_best_and_uniform_returns() -> None:
    env, params = make_env("HiddenBit-v0")
    np.testing.assert_allclose(play(env, params, right, 8).returns, 8.0, atol=1e-4)
    by_chance = play(env, params, uniform(4), 8).returns
    assert by_chance.mean() == pytest.approx(2.0, abs=4 * standard_error(by_chance))


def test_only_the_privileged_part_shows_the_bit() -> None:
    env, params = make_env("HiddenBit-v0")
    played = play(env, params, right, 8, num_envs=4000)
    bit = played.first_obs["privileged"][:, 0]
    assert set(bit) == {-1.0, 1.0}
    assert abs(bit.mean()) < 0.06
    np.testing.assert_array_equal(played.obs["privileged"][:, :, 0], np.repeat(bit[:, None], 8, 1))
    # The first cue comes from the same random word as the bit; no observation may lean on it.
    visible = np.concatenate([played.first_obs["observation"][:, None], played.obs["observation"]], axis=1)
    np.testing.assert_allclose(visible[bit > 0].mean(0), visible[bit < 0].mean(0), atol=0.07)
    np.testing.assert_allclose(visible[:, :, :4].mean(0), 0.25, atol=0.03)
    np.testing.assert_allclose(visible[0, :, 4], 1 - np.arange(9) / 8)


def test_the_share_of_variance_that_each_critic_can_explain() -> None:
    env, params = make_env("HiddenBit-v0")
    played = play(env, params, right, 8, num_envs=4000)
    to_go = np.cumsum(played.reward[:, ::-1], axis=1)[:, ::-1]
    left = np.broadcast_to(8.0 - np.arange(8), to_go.shape)
    hidden = -params.bit_reward * np.minimum(np.arange(8), left) * played.first_obs["privileged"]
    assert np.var(to_go - left - hidden) < 1e-6 * np.var(to_go)
    stated = (63 / 12) / (63 / 12 + 16 * np.mean(np.minimum(np.arange(8), 8 - np.arange(8)) ** 2))
    assert stated == pytest.approx(0.056, abs=0.001)
    assert 1 - np.var(to_go - left) / np.var(to_go) == pytest.approx(stated, abs=0.01)
    # Nothing that the policy sees explains more: the best predictor from the visible part is a mean for each time and cue.
    cues = np.concatenate([played.first_obs["observation"][:, None], played.obs["observation"]], 1)[:, :-1, :4].argmax(2)
    cells = [to_go[:, t][cues[:, t] == c] for t in range(8) for c in range(4)]
    assert 1 - sum(np.var(cell) * len(cell) for cell in cells) / to_go.size / np.var(to_go) < stated + 0.02
