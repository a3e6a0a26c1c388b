"""Replay buffers against plain Python: a deque for the ring, loops for n steps, the paper's formula for priorities."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rljax
from rljax.collect import replay as rb
from rljax.collect.replay import Places, Transition

N = 3


def numbered(first: int, count: int, num_envs: int = N) -> dict[str, jax.Array]:
    """Rows whose content says which they are: row number and environment."""
    rows = np.arange(first, first + count)[:, None] * np.ones(num_envs, int)
    image = (rows[..., None] % 256 + np.arange(2)).astype(np.uint8)
    return {"row": jnp.asarray(rows, jnp.int32), "env": jnp.asarray(np.arange(num_envs) + 0 * rows), "image": jnp.asarray(image)}


def numbered_buffer(capacity: int, counts: list[int], num_envs: int = N) -> rb.Replay:
    buffer = rb.init_replay(jax.tree.map(lambda x: x[0, 0], numbered(0, 1, num_envs)), capacity, num_envs)
    written = 0
    for count in counts:
        buffer = rb.add_rows(buffer, numbered(written, count, num_envs))
        written += count
    return buffer


def bits(count: int, seed: int = 0) -> jax.Array:
    return jax.random.bits(jax.random.key(seed), (count,))


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(capacity=st.integers(1, 9), counts=st.lists(st.integers(1, 9), max_size=12))
def test_ring_holds_what_a_deque_holds(capacity: int, counts: list[int]) -> None:
    counts = [min(count, capacity) for count in counts]
    buffer, reference, written = numbered_buffer(capacity, counts), deque[int](maxlen=capacity), 0
    for count in counts:
        reference.extend(range(written, written + count))
        written += count
    assert int(buffer.size) == len(reference)
    oldest_first = (int(buffer.position) - int(buffer.size) + np.arange(len(reference))) % capacity
    for env in range(N):
        np.testing.assert_array_equal(np.asarray(buffer.data["row"])[oldest_first, env], list(reference))
        np.testing.assert_array_equal(np.asarray(buffer.data["env"])[oldest_first, env], env)
    np.testing.assert_array_equal(np.asarray(buffer.data["image"])[oldest_first, 0, 0], np.array(reference, int) % 256)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(capacity=st.integers(2, 12), written=st.integers(1, 40), length=st.integers(1, 5), seed=st.integers(0, 1000))
def test_windows_are_rows_that_follow_each_other_and_never_span_the_write_head(
    capacity: int, written: int, length: int, seed: int
) -> None:
    buffer = numbered_buffer(capacity, [1] * written)
    held = min(capacity, written)
    assert int(rb.num_windows(buffer, length)) == max(0, held - length + 1) * N
    if held < length:
        return
    places = rb.sample_windows(buffer, bits(200, seed), length)
    windows = rb.take_windows(buffer, places, length)
    rows = np.asarray(windows["row"])
    assert rows.shape == (200, length)
    np.testing.assert_array_equal(rows, rows[:, :1] + np.arange(length))
    assert rows.min() >= written - held
    assert rows.max() <= written - 1
    np.testing.assert_array_equal(windows["env"], np.asarray(places.env)[:, None] * np.ones(length, int))


def test_every_window_is_drawn_equally_often() -> None:
    buffer, length = numbered_buffer(7, [3] * 4), 3
    places = rb.sample_windows(buffer, bits(30_000), length)
    first = np.asarray(rb.take(buffer, places)["row"]) - (12 - 7)
    counts = np.bincount(first * N + np.asarray(places.env), minlength=5 * N)
    assert counts.shape == (15,)
    expected = 30_000 / 15
    assert ((counts - expected) ** 2 / expected).sum() < 36.1  # chi-square, 14 degrees of freedom, p = 0.001


class QueueModel:
    """The online queue in plain Python: every sequence is listed as soon as its last row is written."""

    def __init__(self, capacity: int, length: int, num_envs: int):
        self.capacity, self.length, self.num_envs = capacity, length, num_envs
        self.written, self.listed, self.waiting = 0, 0, deque[tuple[int, int]]()

    def add(self, count: int) -> None:
        for _ in range(count):
            self.written += 1
            if self.written > self.length and (self.written - 1) % self.length == 0:
                self.waiting.extend((self.written - 1 - self.length, env) for env in range(self.num_envs))

    def sample(self, batch: int) -> list[tuple[int, int]]:
        while self.waiting and self.waiting[0][0] < self.written - self.capacity:
            self.waiting.popleft()
        return [self.waiting.popleft() for _ in range(min(batch, len(self.waiting)))]


def online_cases() -> list[tuple[int, int, int, int]]:
    """`(capacity, length, num_envs, seed)`: sequences longer than half a ring, of one row, one environment and many."""
    return [(7, 3, 3, 0), (7, 3, 1, 1), (5, 4, 2, 2), (12, 1, 2, 3), (20, 4, 3, 4), (9, 2, 5, 5)]


@pytest.mark.parametrize(("capacity", "length", "num_envs", "seed"), online_cases())
def test_new_sequences_come_once_first_and_in_order(capacity: int, length: int, num_envs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sample = jax.jit(rb.sample_online, static_argnums=3)
    uniform_sample = jax.jit(rb.sample_windows, static_argnums=2)
    ring, queue = np.full((capacity, num_envs), -1, np.int32), rb.init_online_queue()
    model, handed, skipped = QueueModel(capacity, length, num_envs), list[tuple[int, int]](), False
    for turn in range(150):
        # Mostly few rows, so that learners keep up, and now and then so many that sequences are overwritten unseen.
        count = min(int(rng.integers(1, 4 if rng.random() < 0.8 else 2 * capacity)), capacity)
        new_rows = model.written + np.arange(count)
        ring[new_rows % capacity] = new_rows[:, None]
        queue = queue.replace(written=queue.written + count)
        model.add(count)
        held = min(capacity, model.written)
        if held <= length or rng.random() < 0.3:
            continue
        batch = int(rng.choice([1, 5]))
        buffer = rb.Replay(jnp.asarray(ring), jnp.int32(model.written % capacity), jnp.int32(held))
        waiting = len(model.waiting)
        expected = model.sample(batch)
        skipped |= waiting - len(model.waiting) > len(expected)
        random = bits(batch, 1000 * seed + turn)
        places, queue = sample(buffer, queue, random, length)
        row, env = np.asarray(places.row), np.asarray(places.env)
        rows = ring[(row[:, None] + np.arange(length + 1)) % capacity, env[:, None]]
        np.testing.assert_array_equal(rows, rows[:, :1] + np.arange(length + 1))
        assert rows.min() >= model.written - held
        got = list(zip(rows[:, 0].tolist(), env.tolist(), strict=True))
        new = len(expected)
        assert got[:new] == expected
        uniform = uniform_sample(buffer, random, length + 1)
        np.testing.assert_array_equal(row[new:], uniform.row[new:])
        np.testing.assert_array_equal(env[new:], uniform.env[new:])
        handed += expected
    assert len(set(handed)) == len(handed) > 10
    assert skipped
    assert handed == sorted(handed)


def test_all_sequences_are_handed_out_where_learners_keep_up() -> None:
    length, written = 4, 41
    buffer, queue, handed = numbered_buffer(3 * length, []), rb.init_online_queue(), list[tuple[int, int]]()
    for t in range(written):
        buffer = rb.add_rows(buffer, numbered(t, 1))
        queue = queue.replace(written=queue.written + 1)
        before = int(queue.taken)
        places, queue = rb.sample_online(buffer, queue, bits(N, t), length)
        new = int(queue.taken) - before
        step = rb.take(buffer, places)
        handed += [(int(row), int(env)) for row, env in zip(step["row"][:new], step["env"][:new], strict=True)]
    assert handed == [(row, env) for row in range(0, written - 1, length) for env in range(N)]


def test_an_empty_queue_hands_out_nothing() -> None:
    for written in range(4):
        queue = rb.init_online_queue().replace(written=jnp.int32(written))
        _, after = rb.sample_online(numbered_buffer(6, [written] if written else []), queue, bits(4), 3)
        assert int(after.taken) == 0


def test_online_sampling_counts_to_the_end_of_its_integers() -> None:
    length, written = 5, 2**31 - 2
    rows = np.arange(written - 13, written)
    capacity = 13
    content = np.zeros(capacity, np.int64)
    content[rows % capacity] = rows
    buffer = rb.Replay(
        {"row": jnp.asarray(np.repeat(content[:, None], N, 1), jnp.int32)},
        jnp.int32(written % capacity),
        jnp.int32(capacity),
    )
    last = (written - 1) // length - 1
    queue = rb.OnlineQueue(jnp.int32(written), jnp.int32(last * N + 1))
    places, queue = rb.sample_online(buffer, queue, bits(6), length)
    assert int(queue.taken) == (last + 1) * N
    assert rb.take(buffer, places)["row"][:2].tolist() == [last * length] * 2
    assert places.env[:2].tolist() == [1, 2]
    behind = rb.OnlineQueue(jnp.int32(written), jnp.int32(0))
    places, _ = rb.sample_online(buffer, behind, bits(6), length)
    first = -(-(written - capacity) // length) * length
    assert rb.take(buffer, places)["row"].tolist() == [first] * N + [first + length] * N


@pytest.mark.slow
def test_the_online_queue_stays_unbatched_under_vmap() -> None:
    length, seeds = 3, 4
    buffer, queue = numbered_buffer(10, [5, 6]), rb.init_online_queue().replace(written=jnp.int32(11))
    random = jnp.stack([bits(12, seed) for seed in range(seeds)])
    data = jax.tree.map(lambda x: jnp.stack([x] * seeds), buffer.data)
    axes = buffer.replace(data=0, position=None, size=None)
    # An output of axis None is refused where it is batched.
    sample = jax.vmap(lambda b, q, r: rb.sample_online(b, q, r, length), in_axes=(axes, None, 0), out_axes=(0, None))
    places, after = sample(buffer.replace(data=data), queue, random)
    for seed in range(seeds):
        alone, alone_after = rb.sample_online(buffer, queue, random[seed], length)
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda x, i=seed: x[i], places), alone)
        jax.tree.map(np.testing.assert_array_equal, after, alone_after)
    assert len({tuple(row) for row in np.asarray(places.row).tolist()}) > 1


def test_arrays_keep_their_dtype_and_the_memory_is_what_the_documentation_says() -> None:
    buffer = numbered_buffer(5, [2])
    assert buffer.data["image"].dtype == jnp.uint8
    assert buffer.data["row"].dtype == jnp.int32
    per_step = 4 + buffer.data["env"].dtype.itemsize + 2
    assert sum(x.nbytes for x in jax.tree.leaves(buffer.data)) == 5 * N * per_step


def test_more_rows_than_fit_are_refused() -> None:
    with pytest.raises(rljax.ConfigError, match="6 rows cannot be added to a buffer of 5"):
        numbered_buffer(5, [6])


def test_values_are_written_back_over_the_windows_they_came_from() -> None:
    buffer = numbered_buffer(6, [4, 4])
    places = Places(jnp.array([5, 2]), jnp.array([0, 2]))  # rows 5, 0 hold 5, 6; rows 2, 3 hold 2, 3
    put = rb.put_windows(buffer, places, {"row": jnp.array([[50, 60], [20, 30]]), "env": None, "image": None})
    expected = np.asarray(buffer.data["row"]).copy()
    expected[5, 0], expected[0, 0], expected[2, 2], expected[3, 2] = 50, 60, 20, 30
    np.testing.assert_array_equal(put.data["row"], expected)
    np.testing.assert_array_equal(put.data["image"], buffer.data["image"])


def episodes(capacity: int, written: int, seed: int = 0) -> tuple[rb.Replay, dict[str, np.ndarray]]:
    """A buffer of transitions with ends of both kinds, and all that was ever written, `[written, N]`.

    obs is a number of its own for every step; next_obs is -obs, which no row's obs is: that of a final observation, too.
    """
    rng = np.random.default_rng(seed)
    obs = 1.0 + np.arange(written * N).reshape(written, N)
    kind = rng.choice(4, (written, N), p=[0.6, 0.15, 0.15, 0.1])
    history = {
        "obs": obs,
        "action": rng.integers(0, 5, (written, N)),
        "reward": rng.normal(size=(written, N)),
        "terminated": (kind == 1) | (kind == 3),
        "truncated": (kind == 2) | (kind == 3),
    }
    rows = Transition(
        obs=jnp.asarray(obs, jnp.float32),
        action=jnp.asarray(history["action"], jnp.int32),
        reward=jnp.asarray(history["reward"], jnp.float32),
        terminated=jnp.asarray(history["terminated"]),
        truncated=jnp.asarray(history["truncated"]),
        next_obs=jnp.asarray(-obs, jnp.float32),
        next_mask=None,
    )
    buffer = rb.init_replay(jax.tree.map(lambda x: x[0, 0], rows), capacity, N)
    for t in range(written):
        buffer = rb.add_rows(buffer, jax.tree.map(lambda x, t=t: x[t : t + 1], rows))
    return buffer, history


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_n_step_targets_are_those_of_a_loop_over_terminations_and_truncations(n: int) -> None:
    buffer, history = episodes(capacity=20, written=50)
    gamma = 0.9
    places = rb.sample_windows(buffer, bits(400, n), n)
    batch = rb.take_n_step(buffer, places, n, gamma)
    kinds = set()
    for i in range(400):
        t, env = divmod(int(batch.obs[i]) - 1, N)
        assert env == int(places.env[i])
        assert 50 - 20 <= t <= 50 - n
        total, discount = 0.0, 1.0
        for k in range(n):
            total += discount * history["reward"][t + k, env]
            discount *= gamma
            terminated, truncated = history["terminated"][t + k, env], history["truncated"][t + k, env]
            if terminated or truncated:
                break
        kinds.add((bool(terminated), bool(truncated), k))
        np.testing.assert_allclose(batch.reward[i], total, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.discount[i], 0.0 if terminated else discount, rtol=1e-6)
        assert float(batch.next_obs[i]) == -history["obs"][t + k, env]
        assert int(batch.action[i]) == history["action"][t, env]
    assert {(True, False), (False, True), (True, True), (False, False)} == {kind[:2] for kind in kinds}
    assert {kind[2] for kind in kinds} == set(range(n))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 3])
def test_each_reward_is_scaled_and_not_their_sum(n: int) -> None:
    buffer, _ = episodes(capacity=20, written=20)
    places = rb.sample_windows(buffer, bits(50, n), n)
    clipped = buffer.replace(data=buffer.data._replace(reward=jnp.clip(buffer.data.reward, -0.3, 0.3)))
    scaled = rb.take_n_step(buffer, places, n, 0.9, lambda reward: jnp.clip(reward, -0.3, 0.3))
    np.testing.assert_allclose(scaled.reward, rb.take_n_step(clipped, places, n, 0.9).reward, rtol=1e-6)


@pytest.mark.slow
def test_sequences_say_where_an_episode_begins() -> None:
    buffer, history = episodes(capacity=16, written=40)
    data, is_first = rb.sample_sequences(buffer, bits(100), 6)
    for i in range(100):
        t, env = divmod(int(data.obs[i, 0]) - 1, N)
        done = (history["terminated"] | history["truncated"])[t : t + 6, env]
        np.testing.assert_array_equal(is_first[i], [True, *done[:-1]])
        np.testing.assert_array_equal(data.obs[i], history["obs"][t : t + 6, env])
    assert np.asarray(is_first)[:, 1:].any()


@pytest.mark.slow
@pytest.mark.parametrize("max_length", [1, 4, 30])
def test_trajectories_are_single_episodes_from_their_first_step_held(max_length: int) -> None:
    capacity, written = 16, 40
    buffer, history = episodes(capacity, written)
    done = history["terminated"] | history["truncated"]
    random = bits(300)
    drawn = rb.take(buffer, rb.sample_windows(buffer, random)).obs
    data, valid = rb.sample_trajectories(buffer, random, max_length)
    for i in range(300):
        t, env = divmod(int(drawn[i]) - 1, N)
        start = t
        while start > written - capacity and not done[start - 1, env] and t - start < max_length - 1:
            start -= 1
        end = start
        while end < written - 1 and not done[end, env] and end - start < max_length - 1:
            end += 1
        assert start <= t <= end
        np.testing.assert_array_equal(np.asarray(data.obs[i])[np.asarray(valid[i])], history["obs"][start : end + 1, env])
        assert int(valid[i].sum()) == end - start + 1
        assert not np.any(np.diff(np.asarray(valid[i]).astype(int)) > 0)  # valid steps first


@pytest.mark.slow
def test_steps_are_grouped_by_their_episode() -> None:
    capacity, written = 12, 31
    buffer, history = episodes(capacity, written)
    ids = rb.episode_ids(buffer)
    reference: dict[int, list[float]] = {}
    done = history["terminated"] | history["truncated"]
    for env in range(N):
        episode: list[float] = []
        for t in range(written - capacity, written):
            episode.append(history["obs"][t, env])
            if done[t, env] or t == written - 1:
                reference[len(reference)] = episode
                episode = []
    order = (int(buffer.position) + np.arange(capacity)) % capacity  # oldest first, so that members keep their order
    keys, obs = ids[order].T.reshape(-1), np.asarray(buffer.data.obs)[order].T.reshape(-1)
    groups = jnp.unique(keys)
    index, valid = rb.group_by(keys, groups, capacity)
    found = [list(obs[np.asarray(i)[np.asarray(v)]]) for i, v in zip(index, valid, strict=True)]
    assert sorted(found) == sorted(reference.values())


@pytest.mark.slow
def test_empty_rows_belong_to_no_episode_and_groups_are_cut_at_their_size() -> None:
    buffer, _ = episodes(capacity=8, written=3)
    ids = np.asarray(rb.episode_ids(buffer))
    assert (ids[3:] == -1).all()
    assert (ids[:3] >= 0).all()
    place, valid = rb.group_by(jnp.array([4, 7, 4, 4, 9]), jnp.array([4, 5, 9]), 2)
    np.testing.assert_array_equal(valid, [[True, True], [False, False], [True, False]])
    np.testing.assert_array_equal(place[0], [0, 2])
    assert int(place[2, 0]) == 4


def prioritized(capacity: int, written: int, n: int = 1, every: int = 1) -> tuple[rb.Replay, rb.Priorities]:
    buffer = numbered_buffer(capacity, [])
    priorities = rb.init_priorities(capacity, N)
    for first in range(0, written, every):
        buffer = rb.add_rows(buffer, numbered(first, every))
        priorities = rb.add_priorities(priorities, buffer, every, n)
    return buffer, priorities


def weights_of(priorities: rb.Priorities, capacity: int) -> np.ndarray:
    return np.asarray(priorities.leaves).reshape(-1, N)[:capacity]


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [pytest.param(0.0, marks=pytest.mark.long), 0.6, pytest.param(1.0, marks=pytest.mark.long)])
def test_prioritised_frequencies_and_probabilities_follow_the_formula(alpha: float) -> None:
    capacity = 13  # not a multiple of the block's rows
    buffer, priorities = prioritized(capacity, 40)
    errors = np.random.default_rng(0).exponential(size=(capacity, N)) + 0.01
    row, env = (x.reshape(-1) for x in np.indices((capacity, N)))
    places = Places(jnp.asarray(row), jnp.asarray(env))
    priorities = rb.update_priorities(priorities, places, jnp.asarray(errors[row, env] ** alpha, jnp.float32))
    expected = errors**alpha / (errors**alpha).sum()

    draws, batch = 2_000, 32
    uniform = jax.random.uniform(jax.random.key(1), (draws, batch))
    drawn, probability = jax.jit(jax.vmap(rb.sample_priorities, (None, 0)))(priorities, uniform)
    counts = np.zeros((capacity, N))
    np.add.at(counts, (np.asarray(drawn.row), np.asarray(drawn.env)), 1)
    total = draws * batch
    assert ((counts - total * expected) ** 2 / (total * expected)).sum() < 73.4  # 38 degrees of freedom, p = 0.0005
    np.testing.assert_allclose(probability, expected[np.asarray(drawn.row), np.asarray(drawn.env)], rtol=1e-4)

    for beta in (0.0, 0.4, 1.0):
        weights = rb.importance_weights(probability[0], rb.num_windows(buffer), beta)
        formula = (capacity * N * np.asarray(probability[0], np.float64)) ** -beta
        np.testing.assert_allclose(weights, formula / formula.max(), rtol=1e-4)


def test_no_draw_falls_on_a_step_without_weight_where_rounded_sums_rise_there() -> None:
    rng = np.random.default_rng(0)
    weights = np.where(rng.random(4000) < 0.5, 0.0, rng.random(4000) ** 3).astype(np.float32)
    sums = np.asarray(jax.jit(lambda x: jnp.cumsum(x, 1))(jnp.tile(weights, (2, 1))))[0]
    priorities = rb.Priorities(jnp.asarray(weights).reshape(1, -1, 1), jnp.asarray(sums[-1:]), jnp.ones(()))
    # The first of two draws is from the first half of the total: point it at sums that another sum in parallel makes too large.
    rises = np.flatnonzero((np.diff(sums) > 0) & (weights[1:] == 0) & (sums[1:] < sums[-1] / 2))
    if not len(rises):
        pytest.skip("sums do not rise there with this processor's rounding")
    at = 2 * sums[np.concatenate([rises, np.arange(0, 1000, 100)])] / sums[-1]
    first = np.concatenate([np.nextafter(at, np.float32(0)), at, np.nextafter(at, np.float32(1))])
    uniform = jnp.stack([first, np.full_like(first, 0.5)], 1)
    drawn, probability = jax.jit(jax.vmap(rb.sample_priorities, (None, 0)))(priorities, uniform)
    found = weights[np.asarray(drawn.row)]
    assert (found > 0).all()
    np.testing.assert_allclose(probability, found / sums[-1], rtol=1e-5)


@pytest.mark.slow
def test_a_sample_takes_one_step_from_each_part_of_the_total() -> None:
    _, priorities = prioritized(4, 4)
    drawn, _ = rb.sample_priorities(priorities, jnp.full(4 * N, 0.5))
    assert sorted(zip(drawn.row.tolist(), drawn.env.tolist(), strict=True)) == [(r, e) for r in range(4) for e in range(N)]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "every", "written"), [(1, 1, 5), (3, 1, 2), (3, 1, 7), (3, 2, 24), (4, 3, 30), (2, 8, 16)])
def test_only_steps_whose_window_is_whole_can_be_drawn(n: int, every: int, written: int) -> None:
    capacity = 8
    buffer, priorities = prioritized(capacity, written, n, every)
    held = min(capacity, written)
    age = (np.arange(capacity) - (int(buffer.position) - held)) % capacity  # 0: the oldest
    whole = (age < held) & (age <= held - n)
    np.testing.assert_array_equal(weights_of(priorities, capacity) > 0, np.repeat(whole[:, None], N, 1))
    assert int(rb.num_windows(buffer, n)) == whole.sum() * N


def test_new_steps_get_the_largest_weight_and_old_ones_keep_theirs() -> None:
    buffer, priorities = prioritized(8, 6)
    priorities = rb.update_priorities(priorities, Places(jnp.array([0, 2]), jnp.array([1, 0])), jnp.array([5.0, 0.25]))
    buffer = rb.add_rows(buffer, numbered(6, 1))
    priorities = rb.add_priorities(priorities, buffer, 1)
    weights = weights_of(priorities, 8)
    assert weights[0, 1] == 5.0
    assert weights[2, 0] == 0.25
    np.testing.assert_array_equal(weights[6], 5.0)
    np.testing.assert_array_equal(weights[7], 0.0)
    np.testing.assert_allclose(priorities.sums, np.asarray(priorities.leaves).sum((1, 2)), rtol=1e-6)


@pytest.mark.slow
def test_a_step_of_weight_zero_is_never_drawn_even_at_the_ends_of_the_range() -> None:
    capacity = 9
    _, priorities = prioritized(capacity, capacity)
    weights = np.zeros((capacity, N), np.float32)
    weights[3, 1], weights[4, 0], weights[5, 2] = 1e-6, 1e6, 3.0
    row, env = (x.reshape(-1) for x in np.indices((capacity, N)))
    priorities = rb.update_priorities(priorities, Places(jnp.asarray(row), jnp.asarray(env)), jnp.asarray(weights[row, env]))
    uniform = jnp.concatenate([jnp.zeros(64), jnp.full(64, 1.0 - 2.0**-24), jnp.linspace(0.0, 0.999, 64)])
    drawn, probability = rb.sample_priorities(priorities, uniform)
    assert (weights[np.asarray(drawn.row), np.asarray(drawn.env)] > 0).all()
    assert np.isfinite(probability).all()


@pytest.mark.slow
def test_the_same_place_twice_in_a_sample_leaves_sums_right() -> None:
    _, priorities = prioritized(16, 16)
    places = Places(jnp.array([3, 3, 3]), jnp.array([1, 1, 1]))
    priorities = rb.update_priorities(priorities, places, jnp.array([2.0, 2.0, 2.0]))
    assert float(priorities.sums.sum()) == pytest.approx(16 * N - 1 + 2)


@pytest.mark.slow
def test_sums_do_not_drift_over_many_updates() -> None:
    _, priorities = prioritized(64, 64)
    rng = np.random.default_rng(0)
    update = jax.jit(rb.update_priorities)
    for _ in range(100):
        places = Places(jnp.asarray(rng.integers(0, 64, 16)), jnp.asarray(rng.integers(0, N, 16)))
        # Duplicates must agree, as those of one transition's error do.
        weight = jnp.asarray(10.0 ** (np.asarray(places.row) % 9 - 4) * (1 + np.asarray(places.env)), jnp.float32)
        priorities = update(priorities, places, weight)
    np.testing.assert_allclose(priorities.sums, np.asarray(priorities.leaves, np.float64).sum((1, 2)), rtol=1e-6)


@pytest.mark.slow
def test_what_is_read_apart_is_what_is_read() -> None:
    buffer = numbered_buffer(9, [5])
    random = bits(7)

    def read(bits: jax.Array) -> Any:
        return rb.take(buffer, rb.sample_windows(buffer, bits))

    apart = rb.read_apart(read, random, jnp.asarray(True))
    jax.tree.map(np.testing.assert_array_equal, apart, read(random))
    nothing = rb.read_apart(read, random, jnp.asarray(False))
    assert all(not np.asarray(x).any() for x in jax.tree.leaves(nothing))
    assert math.prod(nothing["image"].shape) == 14
