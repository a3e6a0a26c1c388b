"""Dreamer end to end: what lies in its buffer, when and on what it is trained, how it plays, and what it takes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax.algos.dreamer.dreamer import PolicyCarry, infer, loss_noise
from rljax.algos.dreamer.replay import replayed
from rljax.collect.replay import Places, sample_online
from rljax.core.errors import RljaxWarning
from rljax.envs import Composite, GridWorldPixels
from rljax.nn.outputs.actions import dreamer_head
from rljax.run.chunks import vectorized_iteration
from rljax.run.files.records import NO_LOSSES

LENGTH = 4


def config(**changes: Any) -> rljax.DreamerConfig:
    """One step of two environments, then one update, in every iteration."""
    settings: dict[str, Any] = {
        "env": Halls(),
        "size": "debug",
        "batch_size": 2,
        "batch_length": LENGTH,
        "horizon": 3,
        "num_envs": 2,
        "num_steps": 1,
        "train_ratio": 4,
        "buffer_size": 60,
        "learning_starts": 13,
        "learning_rate": 1e-3,
        "warmup": 0,
        "total_timesteps": 80,
    }
    return rljax.DreamerConfig(**{**settings, **changes})


@struct.dataclass
class HallState:
    kind: jax.Array
    time: jax.Array


@struct.dataclass
class HallParams:
    max_steps_in_episode: int = 4


class Halls(rljax.Environment):
    """An episode of kind 0 is over for good after 2 steps, one of kind 1 runs into the time limit of 4. The observation is the
    kind and the time; the reward is 10 times the time at arrival plus the action that led there."""

    @property
    def default_params(self) -> HallParams:
        return HallParams()

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        state = HallState(jax.random.randint(key, (), 0, 2), jnp.zeros((), jnp.int32))
        return self._observe(state), state

    def _observe(self, state: HallState) -> jax.Array:
        return jnp.stack([state.kind, state.time]).astype(jnp.float32)

    def step_env(self, key: jax.Array, state: HallState, action: Any, params: Any) -> Any:
        state = state.replace(time=state.time + 1)
        terminated = (state.kind == 0) & (state.time >= 2)
        return self._observe(state), state, (10 * state.time + action).astype(jnp.float32), terminated, {}

    def observation_space(self, params: Any) -> Any:
        return rljax.Box(0.0, 5.0, (2,))

    def action_space(self, params: Any) -> Any:
        return rljax.Discrete(3)


class Room(rljax.Environment):
    """A vector and a picture of 16 x 16; an episode is 3 steps."""

    def __init__(self, actions: Any):
        self.actions = actions

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        return self._observe(jnp.zeros((), jnp.int32)), jnp.zeros((), jnp.int32)

    def _observe(self, state: jax.Array) -> Any:
        picture = jnp.zeros((16, 16, 3), jnp.uint8).at[:, 4 * state].set(200)
        return {"near": jnp.stack([state, -state]).astype(jnp.float32), "view": picture}

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return self._observe(state + 1), state + 1, sum(map(jnp.sum, jax.tree.leaves(action))).astype(jnp.float32), state >= 2, {}

    def observation_space(self, params: Any) -> Any:
        return rljax.Dict({"near": rljax.Box(-3, 3, (2,)), "view": rljax.Box(0, 255, (16, 16, 3), jnp.uint8)})

    def action_space(self, params: Any) -> Any:
        return self.actions


@functools.cache
def program(changes: tuple[tuple[str, Any], ...] = ()) -> SimpleNamespace:
    """The compiled parts of a loop that a user owns."""
    parts = rljax.dreamer_parts(config(**dict(changes)))
    return SimpleNamespace(
        parts=parts,
        init=jax.jit(lambda key: rljax.dreamer_init(parts, key)),
        noise=jax.jit(lambda state: rljax.dreamer_noise(parts, state)),
        collect=jax.jit(lambda state, noise: rljax.dreamer_collect(parts, state, noise.collect)),
        update=jax.jit(lambda state, noise: rljax.dreamer_update(parts, state, noise.update)),
    )


def collected(turns: int, **changes: Any) -> tuple[Any, np.ndarray]:
    """The state after so many turns without updates, and the sums over the episodes that ended."""
    loop = program(tuple(changes.items()))
    state, sums = loop.init(jax.random.key(1)), np.zeros(3)
    for _ in range(turns):
        state, noise = loop.noise(state)
        state, episodes = loop.collect(state, noise)
        sums += np.asarray(episodes.totals)
    return state, sums


@functools.cache
def trained() -> list[SimpleNamespace]:
    """Turns of collecting and updating: `before` and `after` the update, its noise and metrics."""
    loop = program()
    state, turns = loop.init(jax.random.key(0)), []
    for _ in range(14):
        state, noise = loop.noise(state)
        before, _ = loop.collect(state, noise)
        state, metrics = loop.update(before, noise)
        turns.append(SimpleNamespace(before=before, after=state, noise=noise.update, metrics=metrics))
    return turns


def keys_as_data(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)


def assert_equal(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, keys_as_data(a), keys_as_data(b))


def assert_close(a: Any, b: Any, rtol: float = 1e-3, atol: float = 1e-4) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), keys_as_data(a), keys_as_data(b))


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


# What lies in the buffer.


def walk(kinds: list[int], actions: list[int], rows: int) -> dict[str, np.ndarray]:
    """The rows of one environment, where an episode has one for every observation, its last one included.

    Args:
        kinds: of the episodes in turn.
        actions: of the rows in turn; what the policy would do at a last row is not among what is known.
        rows: how many.
    """
    kept: dict[str, list[Any]] = {name: [] for name in ("obs", "reward", "is_first", "is_last", "is_terminal")}
    episode, time, reward = 0, 0, 0.0
    for row in range(rows):
        kind = kinds[episode]
        terminal, last = kind == 0 and time == 2, time == (2, 4)[kind]
        for name, value in zip(kept, ((kind, time), reward, time == 0, last, terminal), strict=True):
            kept[name].append(value)
        if last:
            episode, time, reward = episode + 1, 0, 0.0
        else:
            time += 1
            reward = 10.0 * time + actions[row]
    return {name: np.asarray(values) for name, values in kept.items()}


@functools.cache
def walked() -> tuple[Any, np.ndarray, list[dict[str, np.ndarray]]]:
    """Of 24 rows of two environments: the buffer's data, the sums over episodes, and the plain walk of each environment."""
    state, sums = collected(24)
    data = jax.tree.map(lambda x: np.asarray(x)[:24], state.replay.data)
    plain = []
    for env in range(2):
        kinds = data.obs[data.is_first[:, env], env, 0].astype(int).tolist()
        plain.append(walk(kinds, data.action[:, env].argmax(-1).tolist(), 24))
    return data, sums, plain


@pytest.mark.slow
@pytest.mark.parametrize("name", ["obs", "reward", "is_first", "is_last", "is_terminal"])
def test_rows_are_those_of_a_plain_walk(name: str) -> None:
    data, _, plain = walked()
    for env in range(2):
        np.testing.assert_array_equal(getattr(data, name)[:, env], plain[env][name])


def test_the_walk_meets_both_ends_of_an_episode() -> None:
    data, _, _ = walked()
    assert data.is_terminal.any()
    assert (data.is_last & ~data.is_terminal).any()


def test_actions_are_one_hot_and_zero_at_the_last_observation_of_an_episode() -> None:
    data, _, _ = walked()
    assert set(np.unique(data.action)) == {0.0, 1.0}
    np.testing.assert_array_equal(data.action.sum(-1), ~data.is_last)


def test_the_reward_of_the_last_step_is_in_the_data() -> None:
    data, _, _ = walked()
    assert (data.reward[data.is_terminal] >= 20.0).all()
    assert (data.reward[data.is_last & ~data.is_terminal] >= 40.0).all()
    assert (data.reward[data.is_first] == 0.0).all()


def test_episodes_that_ended_are_counted_with_their_returns_and_lengths() -> None:
    data, sums, _ = walked()
    returns = lengths = 0.0
    for env in range(2):
        ends = np.flatnonzero(data.is_last[:-1, env])  # the one at the last row is counted, and so is the step that led there
        ends = np.append(ends, 23) if data.is_last[23, env] else ends
        starts = [0, *(ends[:-1] + 1)]
        returns += sum(data.reward[a : b + 1, env].sum() for a, b in zip(starts, ends, strict=True))
        lengths += sum(b - a for a, b in zip(starts, ends, strict=True))
    # An arrival is counted as it happens, one row before it is written.
    state, _ = collected(24)
    arrived = np.asarray(state.arrival.is_last)
    count = data.is_last.sum() + arrived.sum()
    for env in np.flatnonzero(arrived):
        begin = np.flatnonzero(data.is_first[:, env])[-1]
        returns += data.reward[begin:, env].sum() + float(state.arrival.reward[env])
        lengths += 24 - begin
    np.testing.assert_allclose(sums, [returns, lengths, count])


def test_every_row_is_a_step_of_the_budget_even_where_it_resets() -> None:
    state, _ = collected(24)
    assert int(state.replay.size) == int(state.queue.written) == 24
    assert config(num_steps=3, total_timesteps=60).num_iterations == 10


def test_a_full_buffer_forgets_its_oldest_rows_and_keeps_all_else() -> None:
    state, _ = collected(35)
    assert (int(state.replay.size), int(state.replay.position)) == (30, 5)
    data = jax.tree.map(lambda x: np.roll(np.asarray(x), -5, 0), state.replay.data)
    assert (data.is_first[1:] == data.is_last[:-1]).all()


def test_stored_latents_are_those_that_the_policy_had() -> None:
    """Collecting infers them one by one, from zeros where an episode begins."""
    data, _, _ = walked()
    loop = program()
    params = loop.init(jax.random.key(1)).params
    latent = jax.jit(lambda carry, obs, first, uniform: infer(loop.parts, params, carry, obs, first, uniform))
    for row in (1, 7, 15):
        stoch = jax.nn.one_hot(data.stoch[row - 1], 4)
        carry = PolicyCarry(
            loop.parts.networks.rssm.initial((2,))._replace(deter=data.deter[row - 1], stoch=stoch), data.action[row - 1]
        )
        deter = latent(carry, data.obs[row], data.is_first[row], jnp.zeros((2, 32))).deter
        np.testing.assert_allclose(deter, data.deter[row], rtol=1e-4, atol=1e-5)


# When, and on what, it is trained.


@pytest.mark.slow
def test_nothing_is_learned_before_learning_starts_and_every_turn_after() -> None:
    # 13 steps are 7 rows of 2, the last of them begun.
    assert [float(t.metrics["train/updates"]) for t in trained()] == [0.0] * 6 + [1.0] * 8
    first = trained()[0].before.params
    assert [same(first, t.after.params) for t in trained()] == [True] * 6 + [False] * 8
    assert int(trained()[-1].after.updates) == 8


@pytest.mark.slow
def test_nothing_else_changes_before_learning_starts() -> None:
    turn = trained()[5]
    assert_equal(turn.before, turn.after)
    assert set(map(float, turn.metrics.values())) == {0.0}


def test_every_metric_of_an_update_is_finite() -> None:
    for turn in trained()[6:]:
        assert np.isfinite(list(turn.metrics.values())).all()


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({"num_envs": 16, "num_steps": 4, "train_ratio": 512, "batch_size": 16, "batch_length": 64}, (1, 8, 512.0)),
        ({"num_envs": 1, "num_steps": 4, "train_ratio": 512, "batch_size": 16, "batch_length": 64}, (2, 1, 512.0)),
        ({"num_envs": 1, "num_steps": 8, "train_ratio": 128, "batch_size": 16, "batch_length": 64}, (8, 1, 128.0)),
        ({"num_envs": 2, "num_steps": 6, "train_ratio": 2, "batch_size": 2, "batch_length": 4}, (2, 1, 2.0)),
        ({"num_envs": 2, "num_steps": 6, "train_ratio": 6, "batch_size": 2, "batch_length": 4}, (2, 3, 6.0)),
        ({"num_envs": 2, "num_steps": 1, "train_ratio": 4, "batch_size": 2, "batch_length": 4}, (1, 1, 4.0)),
    ],
)
def test_updates_come_as_often_as_they_can(changes: dict[str, Any], want: tuple[int, int, float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert config(buffer_size=10_000, total_timesteps=10_000, **changes).schedule == pytest.approx(want)


@pytest.mark.parametrize(("ratio", "want"), [(7.0, (1, 2, 8.0)), (3.0, (1, 1, 4.0)), (5.9, (1, 1, 4.0))])
def test_a_train_ratio_without_whole_updates_is_rounded_and_said(ratio: float, want: tuple[int, int, float]) -> None:
    with pytest.warns(RljaxWarning, match=rf"train_ratio = {ratio:g}: .*rounded to {want[2]:g}") as caught:
        settings = config(train_ratio=ratio)
    assert settings.schedule == pytest.approx(want)
    assert "\n" not in str(caught[0].message)


@functools.cache
def places_of(turn: int) -> Places:
    before = trained()[turn].before
    return sample_online(before.replay, before.queue, trained()[turn].noise.sample[0], LENGTH)[0]


def test_each_sequence_of_a_stream_is_trained_on_once_first() -> None:
    """Number c has context row 4 c. There are 7 rows at first, and 15 after 8 turns more: as a sequence is there, it is taken."""
    fresh = {6: 0, 8: 1, 12: 2}  # turn -> sequence, of both environments; in turn 6 number 0 is there since row 5
    for turn, number in fresh.items():
        np.testing.assert_array_equal(places_of(turn).row, [LENGTH * number] * 2)
        np.testing.assert_array_equal(places_of(turn).env, [0, 1])
    assert [int(t.after.queue.taken) for t in trained()] == [0] * 6 + [2, 2, 4, 4, 4, 4, 6, 6]


def test_sampled_sequences_lie_within_what_was_written() -> None:
    for turn in range(6, 14):
        rows = np.asarray(places_of(turn).row)
        assert (rows >= 0).all()
        assert (rows + LENGTH < int(trained()[turn].before.replay.size)).all()


def test_latents_are_written_back_to_the_sampled_rows_and_nowhere_else() -> None:
    for turn in range(6, 14):
        before, after = (jax.tree.map(np.asarray, x.replay.data) for x in (trained()[turn].before, trained()[turn].after))
        sampled = np.zeros(before.reward.shape, bool)
        for row, env in zip(*map(np.asarray, places_of(turn)), strict=True):
            sampled[row + 1 : row + 1 + LENGTH, env] = True
        changed = (before.stoch != after.stoch).any(-1)
        np.testing.assert_array_equal(changed, sampled)  # drawn anew; the context row and all others are as they were
        assert ((before.deter != after.deter).any(-1) <= sampled).all()
        assert_equal(before._replace(deter=None, stoch=None), after._replace(deter=None, stoch=None))


@pytest.mark.slow
def test_what_is_written_back_is_what_the_update_inferred() -> None:
    turn, loop = 8, program()  # of new sequences, which have no rows in common
    before, after = trained()[turn].before, trained()[turn].after
    parts, places, noise = loop.parts, places_of(turn), loss_noise(loop.parts, trained()[turn].noise.key[0])
    batch = replayed(parts.networks.rssm, before.replay, places, LENGTH)
    data = after.replay.data

    @jax.jit
    def observed(params: Any) -> Any:
        tokens = parts.networks.encoder.apply({"params": params["encoder"]}, batch.obs.reshape(-1, 2)).reshape(LENGTH, 2, -1)
        arguments = (batch.latent, tokens, batch.action, batch.is_first, noise.observe)
        return parts.networks.rssm.apply({"params": params["rssm"]}, *arguments, method="observe")[0]

    latents = observed(before.params)
    for b, (row, env) in enumerate(zip(*map(np.asarray, places), strict=True)):
        np.testing.assert_allclose(data.deter[row + 1 : row + 5, env], latents.deter[:, b], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(data.stoch[row + 1 : row + 5, env], latents.stoch[:, b].argmax(-1))


def test_a_sequence_starts_from_the_state_and_the_action_of_its_context_row() -> None:
    before = trained()[13].before
    rssm, data = program().parts.networks.rssm, before.replay.data
    places = Places(jnp.array([3, 0]), jnp.array([1, 0]))
    batch = replayed(rssm, before.replay, places, LENGTH)
    for b, (row, env) in enumerate(((3, 1), (0, 0))):
        np.testing.assert_array_equal(batch.latent.deter[b], data.deter[row, env])
        np.testing.assert_array_equal(batch.latent.stoch[b].argmax(-1), data.stoch[row, env])
        np.testing.assert_array_equal(batch.action[:, b], data.action[row : row + LENGTH, env])
        for name in ("obs", "reward", "is_first", "is_last", "is_terminal"):
            np.testing.assert_array_equal(getattr(batch, name)[:, b], getattr(data, name)[row + 1 : row + 1 + LENGTH, env])


@pytest.mark.slow
def test_a_users_own_loop_is_the_agents_step() -> None:
    agent = rljax.make_agent(config())
    step, state = jax.jit(agent.step), jax.jit(agent.init)(jax.random.key(0))
    for turn in range(9):
        state, metrics = step(state)
        assert_close(state.params, trained()[turn].after.params)
        assert float(metrics["train/updates"]) == float(trained()[turn].metrics["train/updates"])
    assert_close(state.replace(iteration=jnp.int32(0)), trained()[8].after)


@pytest.mark.long
def test_seeds_in_one_vmap_are_the_single_runs() -> None:
    settings = config(total_timesteps=20)
    keys = jax.random.split(jax.random.key(5), 3)
    many = jax.jit(jax.vmap(rljax.make_train(settings)))(keys)
    one = jax.jit(rljax.make_train(settings))
    for i in range(3):
        alone = one(keys[i])
        assert float(alone.metrics["train/updates"].sum()) == 4.0
        assert_close(
            jax.tree.map(lambda x, i=i: x[i], (many.state.params, many.state.replay)), (alone.state.params, alone.state.replay)
        )


# How it plays.


@functools.cache
def player() -> SimpleNamespace:
    loop, agent = program(), rljax.make_agent(config())
    state = loop.init(jax.random.key(2))
    # Far from the first weights, so that what is remembered counts.
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: x + jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype), state.params)
    act = jax.jit(lambda obs, carry: agent.act(state.replace(params=params), obs, carry, jax.random.key(3), True))
    rng = np.random.default_rng(1)
    obs = jnp.asarray(rng.normal(size=(4, 2)), jnp.float32)
    fresh = PolicyCarry(loop.parts.networks.rssm.initial((4,)), jnp.zeros((4, 3)))
    used = act(obs + 1.0, None)[1]
    return SimpleNamespace(act=act, obs=obs, fresh=fresh, used=used, params=params, loop=loop, agent=agent, state=state)


@pytest.mark.slow
def test_no_carry_and_one_of_zeros_begin_an_episode() -> None:
    p = player()
    assert_close(p.act(p.obs, None), p.act(p.obs, p.fresh), 1e-5, 1e-6)


def test_the_beginning_of_an_episode_forgets_like_a_carry_of_zeros() -> None:
    p = player()
    latent = jax.jit(lambda carry, first: infer(p.loop.parts, p.params, carry, p.obs, first, jnp.full((4, 32), 0.4)))
    begun, fresh, going_on = (
        latent(p.used, jnp.ones(4, bool)),
        latent(p.fresh, jnp.zeros(4, bool)),
        latent(p.used, jnp.zeros(4, bool)),
    )
    assert_close(begun, fresh, 1e-5, 1e-6)
    assert not np.allclose(begun.deter, going_on.deter), "and it does remember"


def test_the_carry_is_the_state_and_the_action_taken() -> None:
    p = player()
    action, carry = p.act(p.obs, p.used)
    np.testing.assert_array_equal(carry.action.argmax(-1), action)
    assert carry.latent.deter.shape == (4, 128)
    assert action.dtype == jnp.int32


def test_act_takes_any_leading_axes() -> None:
    p = player()
    act = jax.jit(lambda obs: p.agent.act(p.state, obs, None, jax.random.key(0)))
    action, carry = act(jnp.ones((3, 5, 2)))
    assert action.shape == (3, 5)
    assert carry.latent.stoch.shape == (3, 5, 32, 4)
    action, carry = act(jnp.ones(2))
    assert action.shape == ()
    assert carry.action.shape == (3,)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["MaskedBandit-v0", "MultiDiscreteMatch-v0"])
def test_an_illegal_action_is_never_played(env: str) -> None:
    state, _ = collected(20, env=env, num_envs=16, buffer_size=320)
    data = jax.tree.map(lambda x: np.asarray(x)[:20], state.replay.data)
    if env == "MaskedBandit-v0":
        legal = data.obs[..., 4:] > 0
    else:
        legal = np.broadcast_to(np.array([1, 1, 0, 1, 1, 1, 0, 1, 0], bool), data.action.shape)
    assert (data.action[~legal] == 0.0).all()
    assert data.action.sum() > 100
    assert (data.reward >= 0.0).all()


def test_illegal_actions_are_impossible_whatever_is_drawn() -> None:
    head = dreamer_head(rljax.MultiDiscrete((3, 5)))
    mask = jnp.array([False, True, False, False, True, True, False, False])
    rng = np.random.default_rng(0)
    distribution = head.distribution(jnp.asarray(5 * rng.normal(size=(5_000, 8)), jnp.float32), mask)
    for noise in (np.zeros((5_000, 2)), rng.random((5_000, 2)), np.full((5_000, 2), 1.0 - 2.0**-23)):
        action = np.asarray(head.sample(distribution, jnp.asarray(noise, jnp.float32)))
        assert (action[:, ~np.asarray(mask)] == 0.0).all()
        assert (action.sum(-1) == 2.0).all()
    assert (np.asarray(distribution.mode())[:, ~np.asarray(mask)] == 0.0).all()


def test_actions_are_scaled_to_a_bounded_box_and_kept_as_they_are_else() -> None:
    bounded, free = (dreamer_head(rljax.Box(low, high, (2,))) for low, high in ((-2.0, 4.0), (-np.inf, np.inf)))
    action = jnp.array([[0.0, 0.5], [-3.0, 1.5]])
    np.testing.assert_allclose(bounded.to_env(action), [[1.0, 2.5], [-2.0, 4.0]])
    np.testing.assert_array_equal(free.to_env(action), action)


def test_a_discrete_policy_never_gives_up_one_percent_of_chance() -> None:
    distribution = dreamer_head(rljax.Discrete(4)).distribution(jnp.array([50.0, 0.0, 0.0, 0.0]), None)
    np.testing.assert_allclose(distribution.log_prob(jnp.eye(4)), np.log([0.9925, 0.0025, 0.0025, 0.0025]), rtol=1e-4)
    probs = np.array([0.9925, 0.0025, 0.0025, 0.0025])
    assert float(distribution.entropy()) == pytest.approx(-(probs * np.log(probs)).sum(), rel=1e-4)


# Observations and actions of all kinds.

HEADS = rljax.Dict({"where": rljax.Discrete(3), "how": rljax.Discrete(2)})


def updated(env: Any, **changes: Any) -> tuple[Any, Mapping[str, jax.Array]]:
    """After one iteration of 8 steps and one update."""
    settings = {"num_steps": 8, "train_ratio": 0.5, "learning_starts": 0, "total_timesteps": 16}
    agent = rljax.make_agent(config(env=env, **{**settings, **changes}))
    state = jax.jit(agent.init)(jax.random.key(0))
    before = state.params
    state, metrics = jax.jit(agent.step)(state)
    assert not same(before, state.params)
    return state, metrics


def assert_trained(metrics: Mapping[str, jax.Array]) -> None:
    assert float(metrics["train/updates"]) == 1.0
    # Errors of predictions are unknown where no episode lasts long enough.
    losses = {name: float(x) for name, x in metrics.items() if name.startswith("train/") and not name.startswith(NO_LOSSES)}
    assert np.isfinite(list(losses.values())).all(), losses


@pytest.mark.long
@pytest.mark.parametrize("actions", [rljax.Box(-2.0, 2.0, (3,)), HEADS])
def test_a_dictionary_with_a_picture_is_trained_on_with_all_kinds_of_actions(actions: Any) -> None:
    state, metrics = updated(Room(actions))
    assert_trained(metrics)
    data = state.replay.data
    assert data.obs["view"].dtype == jnp.uint8
    assert set(state.params["decoder"]) == {"vector", "image_0"}
    size = 3 if isinstance(actions, rljax.Box) else 5
    assert data.action.shape == (30, 2, size)
    last = np.asarray(data.is_last)
    assert (np.asarray(data.action)[last] == 0).all()
    if size == 5:
        np.testing.assert_array_equal(np.asarray(data.action)[:8].sum(-1), 2.0 * ~last[:8])


@pytest.mark.long
def test_a_rendered_environment_is_trained_on() -> None:
    state, metrics = updated("GridWorldPixels-v0")
    assert_trained(metrics)
    assert state.replay.data.obs.shape == (30, 2, 64, 64, 3)


@pytest.mark.long
def test_bf16_products_are_trained_with() -> None:
    state, metrics = updated(Halls(), dtype="bfloat16")
    assert_trained(metrics)
    assert state.replay.data.deter.dtype == jnp.float32, "so that a run goes on on another kind of device"
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype(jnp.float32)}


# Memory.


def lowered(seeds: int | None) -> tuple[Any, int]:
    """A donated iteration of two turns with a large buffer, of one run or of several seeds as `fit` runs them; and the buffer's
    bytes."""
    settings = config(num_steps=2, buffer_size=400_000, learning_starts=1_000, total_timesteps=400_000)
    agent = rljax.make_agent(settings)
    if seeds is None:
        state = jax.eval_shape(agent.init, jax.random.key(0))
        program = jax.jit(agent.step, donate_argnums=0).lower(state)
    else:
        state = jax.eval_shape(jax.vmap(agent.init), jax.random.split(jax.random.key(0), seeds))
        program = jax.jit(vectorized_iteration(agent, seeds), donate_argnums=0).lower(state, jnp.int32(0))
    return program, sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.replay.data))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [pytest.param(None, marks=pytest.mark.long), 2])
def test_no_buffer_is_copied(seeds: int | None) -> None:
    program, buffer = lowered(seeds)
    temporary = program.compile().memory_analysis().temp_size_in_bytes
    assert buffer > 2e8
    assert temporary < 0.02 * buffer, f"{temporary:,} bytes beside a buffer of {buffer:,}"


@pytest.mark.long
def test_no_buffer_is_copied_in_a_whole_run_of_vmapped_seeds() -> None:
    settings = config(num_steps=2, buffer_size=400_000, learning_starts=1_000, total_timesteps=400_000)
    keys = jax.random.split(jax.random.key(0), 2)
    train = jax.vmap(rljax.make_train(settings))
    buffer = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(train, keys).state.replay.data))
    temporary = jax.jit(train).lower(keys).compile().memory_analysis().temp_size_in_bytes
    assert temporary < 0.1 * buffer, f"{temporary:,} bytes beside a buffer of {buffer:,}"


# Bad input.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_ratio": 1e12}, r"train_ratio = 1e\+12: expected fewer than 2\*\*31 updates in a row"),
        ({"size": "2M"}, r"size = '2M': (did you mean|expected one of)"),
        ({"size": "12m"}, "size = '12m': did you mean '12M'"),
        ({"batch_length": 30}, r"buffer_size = 60: expected at least 62, 31 rows of .* a sample takes batch_length \+ 1 = 31"),
        ({"batch_length": 1}, "batch_length = 1: expected .*> 1"),
        (
            {"env": "GridWorldPixels-v0", "normalize_observations": True},
            "normalize_observations = true: expected false for images",
        ),
        ({"normalize_rewards": True}, "normalize_rewards = true: expected false"),
        ({"learning_starts": 61}, "learning_starts = 61: expected at most the 60 steps of the buffer"),
        (
            {"total_timesteps": 8, "learning_starts": 0},
            r"total_timesteps = 8: expected at least 10 in whole .* batch_length \+ 1 = 5",
        ),
        ({"train_ratio": 1e-9}, "train_ratio = 1e-09: expected at least"),
        ({"representation": "barlow"}, "representation = 'barlow': expected .*r2dreamer"),
        ({"dtype": "float16"}, "dtype = 'float16': expected .*bfloat16"),
        ({"train_ratio": 0}, "train_ratio = 0: expected .*> 0"),
        ({"horizon": 0}, "horizon = 0: expected .*> 0"),
        ({"slow_fraction": 0.0}, "slow_fraction = 0.0: expected .*> 0"),
        ({"total_timesteps": 1}, "total_timesteps = 1: expected at least num_envs"),
        ({"batch_lenght": 8}, "batch_lenght.*did you mean 'batch_length'"),
        ({"env": GridWorldPixels(pixels=40)}, "images whose sides are multiples of 16, not 40 x 40"),
        ({"num_steps": 31, "total_timesteps": 800, "train_ratio": 4 / 31}, "buffer_size = 60: expected at least 62"),
    ],
)
def test_bad_input_is_one_line_that_names_field_value_and_what_is_allowed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(rljax.ConfigError, match=message) as error:
        rljax.make_agent(config(**changes))
    assert "\n" not in str(error.value)


def test_masks_over_pairs_of_heads_are_refused_in_one_line() -> None:
    """Dreamer's heads do not see each other, so what is legal for one cannot depend on another."""
    with pytest.raises(rljax.ConfigError, match="what is legal in Composite-v0 depends on the actions of earlier heads") as error:
        rljax.make_agent(config(env=Composite(masked=True)))
    assert "\n" not in str(error.value)
