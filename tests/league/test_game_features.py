"""Features of policies in games: memory, action heads, statistics, bonuses, groups of weights, V-trace; against plain loops."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.policy import policy_unroll
from rljax.algos.impala import _next_values
from rljax.collect.games.rollout import GameSteps, acting_view
from rljax.collect.games.turns import LastStep, seat_streams, with_last_step
from rljax.collect.normalizers import init_reward_statistics, init_statistics, normalize_rewards, update_statistics
from rljax.collect.returns import gae, upgo
from rljax.collect.streams import traced_seat
from rljax.core.errors import ConfigError
from rljax.core.games.game import RESULT
from rljax.core.games.game_wrappers import GROUP, OBS, CentralCritic, WrappedGame, player_view, public_part
from rljax.envs import GoalGame, KuhnPoker, make_env
from rljax.envs.race import Race
from rljax.league import branch, exploitability, learning, tree_policies, uniform_policies
from rljax.league.learning import _bonus, _rewards, _streams
from rljax.league.parts import GameParts, Learner, Player, game_init, game_parts, learners_of, players_of
from rljax.league.training import game_collect
from tests.collect.games.parade import Parade
from tests.core.games.recall import Recall

SMALL = {"num_envs": 8, "num_steps": 12, "num_epochs": 1, "num_minibatches": 1, "total_timesteps": 96 * 4}
GRU = {"type": "gru", "hidden": [8], "size": 8, "head_hidden": []}
LEAGUE = {"main_exploiters": 1, "league_exploiters": 0, "num_slots": 2, "pool_size": 4, "snapshot_every": 96}


def self_play(env: Any, **fields: Any) -> rljax.SelfPlayConfig:
    return rljax.SelfPlayConfig(env=env, **{**SMALL, **fields})


def league(env: Any, **fields: Any) -> rljax.LeagueConfig:
    return rljax.LeagueConfig(env=env, **{**SMALL, **LEAGUE, **fields})


TURNS, AT_ONCE = {"env_params": {"turns": True}}, {"env_params": {"turns": False}}
FEATURES = {
    "memory in turns": self_play("race:TMaze-v0", network=GRU, **TURNS),
    "memory at once": self_play("race:TMaze-v0", network=GRU, **AT_ONCE),
    "memory in a league": league("TicTacToe-v0", network=GRU, normalize_observations=True),
    "heads in a league": league("race:Composite-v0", action_heads="autoregressive", **AT_ONCE),
    "frames in turns in a league": league("TicTacToe-v0", network={"hidden": [8]}, frame_stack=3, normalize_observations=True),
    "frames at once, with memory, groups and a central critic": self_play(
        "Territory-v0", frame_stack=2, flatten_observations=True, weights="player", network=GRU, central_critic=True
    ),
    "groups of auto-regressive heads": self_play(
        "race:Composite-v0", action_heads="autoregressive", weights="player", network=GRU, **TURNS
    ),
    "a central critic": self_play("race:HiddenBit-v0", central_critic=True, network=GRU, normalize_rewards=True, **AT_ONCE),
    "cells with memory and a central critic in fog": self_play(
        "MicroRTS-v0",
        env_params={"map_name": "melee4x4light2", "fog": True},
        network={"encoder": "cells", "type": "gru", "size": 8, "channels": [4], "kernels": [3], "hidden": [8]},
        central_critic=True,
    ),
    "numbers": league("race:Pendulum-v1", network=GRU, env_params={"turns": True, "max_steps_in_episode": 5}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_the_policy_that_learns_is_the_one_that_played(name: str) -> None:
    """Before the first gradient step of an iteration, actions have the probabilities with which they were drawn.

    So the memory of every seat, the statistics, the groups and the masks are the same in the rollout and in the update, also
    in the second iteration, which begins in the middle of games.
    """
    agent = rljax.make_agent(FEATURES[name].replace(learner="impala"))

    @jax.jit
    def run(key: jax.Array) -> Any:
        state, _ = agent.step(agent.init(key))
        return agent.step(state)[1]

    metrics = run(jax.random.key(0))
    # V-trace compares the policy that learns, unrolled along the streams, with that of the actors.
    assert abs(float(metrics["train/approx_kl"])) < 1e-6
    assert float(metrics["train/mean_rho"]) == pytest.approx(1.0, abs=1e-4)
    assert np.isfinite(float(metrics["train/grad_norm"]))
    assert float(metrics["train/grad_norm"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("turns", [True, False])
def test_every_seat_remembers_its_own_moves_of_its_own_game(turns: bool) -> None:
    config = self_play("race:TMaze-v0", network=GRU, env_params={"turns": turns, "length": 1, "max_steps_in_episode": 4})
    parts = rljax.game_parts(config)
    state, steps = jax.jit(lambda key: rljax.game_collect(parts, rljax.game_init(parts, key)))(jax.random.key(0))
    params = jax.tree.map(lambda x: x[0], state.params)
    advance = jax.jit(lambda obs, carry: parts.ppo.policy.apply(params, obs, carry)[2])
    moves, done, obs = (np.asarray(x) for x in (steps.moves, steps.done, steps.obs))
    assert done.sum() > 4
    assert not turns or (moves.sum(-1) == 1).all()
    assert turns or not moves.all()  # a player that is done waits for the other
    for game in range(4):
        for player in range(2):
            carry = parts.ppo.policy.initial_carry((1,))
            for t in range(len(done)):
                if moves[t, game, player]:
                    carry = advance(obs[t, game, [0 if turns else player]], carry)
                if done[t, game]:
                    carry = jax.tree.map(jnp.zeros_like, carry)
            for now, expected in zip(jax.tree.leaves(state.carry), jax.tree.leaves(carry), strict=True):
                np.testing.assert_allclose(now[game, player], expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_vtrace_of_the_acting_policy_has_the_targets_of_td_lambda_of_each_seat() -> None:
    """On-policy, V-trace's targets are sums of TD errors of the seat's own moves; here by plain loops."""
    config = self_play("TicTacToe-v0", learner="impala", vtrace_lambda=0.7, gamma=0.9)
    parts = rljax.game_parts(config)
    state, steps = jax.jit(lambda key: rljax.game_collect(parts, rljax.game_init(parts, key)))(jax.random.key(1))
    last_state, last_obs = state.env_state.game, state.obs
    last_moves = np.asarray(jax.vmap(parts.game.to_move)(last_state))
    params = jax.tree.map(lambda x: x[0], state.params)
    value_of = jax.jit(lambda obs: parts.ppo.policy.apply(params, obs)[1])
    value, last_value = np.asarray(value_of(steps.obs))[..., 0], np.asarray(value_of(last_obs))
    moves, done, reward = (np.asarray(x) for x in (steps.moves, steps.done, steps.reward))
    error = {}
    length, games = done.shape
    for game in range(games):
        for seat in range(2):
            ahead: tuple[float, float] | None = None  # value and correction of the seat's next move
            total, over = 0.0, False
            if last_moves[game, seat]:
                ahead = (float(last_value[game, seat]), 0.0)
            for t in reversed(range(length)):
                if done[t, game]:
                    ahead, total, over = (0.0, 0.0), 0.0, True
                total += float(reward[t, game, seat])
                if moves[t, game, seat]:
                    known = ahead is not None and t < length - 1
                    if ahead is not None:
                        delta = total + 0.9 * ahead[0] - float(value[t, game])
                        correction = delta + 0.9 * 0.7 * ahead[1]
                        if known:
                            error[t, game] = correction
                        ahead = (float(value[t, game]), correction if known else 0.0)
                    else:
                        ahead = (float(value[t, game]), 0.0)
                    total, over = 0.0, False
    del over
    _, metrics = jax.jit(lambda state, steps: rljax.game_update(parts, state, steps))(state, steps)
    expected = 0.5 * np.mean(np.square(list(error.values())))
    assert len(error) > 60
    assert float(metrics["train/value_loss"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_policies_of_a_lag_play_and_are_corrected() -> None:
    config = league("TicTacToe-v0", learner="impala", policy_lag=2, learning_rate=1e-2, anneal_lr=False)
    agent = rljax.make_agent(config)
    step = jax.jit(agent.step)
    states = [agent.init(jax.random.key(0))]
    rhos = []
    for _ in range(3):
        state, metrics = step(states[-1])
        states.append(state)
        rhos.append(float(metrics["train/mean_rho"]))
    flat = [np.asarray(jax.flatten_util.ravel_pytree(jax.tree.map(lambda x: x[0], s.params))[0]) for s in states]
    np.testing.assert_array_equal(states[3].past_params[0], np.stack([flat[1], flat[2]]))
    assert rhos[0] == pytest.approx(1.0, abs=1e-5)
    assert rhos[2] < 0.999


@pytest.mark.slow
def test_value_heads_have_streams_of_their_own() -> None:
    """Streams of two heads are those of each reward alone, and a stream that does not end goes on in the next game."""
    parts = rljax.game_parts(self_play("TicTacToe-v0"))
    state, steps = jax.jit(lambda key: rljax.game_collect(parts, rljax.game_init(parts, key)))(jax.random.key(1))
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    reward, value, last = draw(12, 8, 2, 2), draw(12, 8, 1, 2), draw(8, 1, 2)
    last_moves = jax.vmap(parts.game.to_move)(state.env_state.game)
    ends = jnp.stack([steps.done, jnp.zeros_like(steps.done)], axis=-1)
    both = seat_streams(steps._replace(reward=reward), value, value[..., 0], last, last_moves, 1, ends)
    for head in range(2):
        one = steps._replace(reward=reward[..., head], done=ends[..., head])
        alone = seat_streams(one, value[..., head], value[..., 0], last[..., head], last_moves, 1)
        np.testing.assert_array_equal(both.streams.reward[..., head], alone.streams.reward)
        np.testing.assert_array_equal(both.next_value[..., head], alone.next_value)
        np.testing.assert_array_equal(both.streams.terminated[..., head], alone.streams.terminated)
    assert not bool(both.streams.terminated[..., 1].any())
    # Known are the steps whose outcome is known to both heads.
    assert bool(jnp.all(both.streams.own <= alone.streams.own))


@pytest.mark.slow
def test_the_step_after_the_last_one_is_there_for_its_value_only() -> None:
    parts = rljax.game_parts(self_play("TicTacToe-v0"))
    state, steps = jax.jit(lambda key: rljax.game_collect(parts, rljax.game_init(parts, key)))(jax.random.key(1))
    moves = jax.vmap(parts.game.to_move)(state.env_state.game)
    value = jnp.broadcast_to(jnp.arange(12.0)[:, None, None], (12, 8, 1))
    found = seat_streams(steps, value, value, jnp.full((8, 1), 12.0), moves, 1)
    last = LastStep(jnp.full((8, 1, *steps.obs.shape[3:]), 7.0), jnp.ones((8, 1, 9), bool), moves)
    streams = with_last_step(found.streams, steps, last)
    own = np.asarray(found.streams.own & ~found.streams.terminated)
    np.testing.assert_array_equal(streams.follows[:-1][own], np.asarray(found.next_value)[own])
    assert not bool(streams.own[-1].any())
    np.testing.assert_array_equal(streams.obs[-1], 7.0)
    np.testing.assert_array_equal(streams.seat[-1], moves)


@pytest.mark.slow
def test_statistics_are_those_of_each_learners_games_and_stay_with_its_snapshots() -> None:
    parts = rljax.game_parts(league("TicTacToe-v0", normalize_observations=True, snapshot_every=96, snapshot_timeout=96))
    state = rljax.game_init(parts, jax.random.key(0))
    one = jax.tree.map(lambda x: x[0, 0], state.obs)
    expected = [init_statistics(one), init_statistics(one)]

    @jax.jit
    def iteration(state: Any) -> Any:
        state, steps = rljax.game_collect(parts, state)
        return rljax.game_update(parts, state, steps)[0], steps

    for _ in range(2):
        state, steps = iteration(state)
        expected = [update_statistics(s, steps.obs[:, 4 * i : 4 * (i + 1)]) for i, s in enumerate(expected)]
    for i, statistics in enumerate(expected):
        np.testing.assert_allclose(state.obs_statistics.mean[i], statistics.mean, rtol=1e-5, atol=1e-6)
    assert isinstance(state.league.initial, Player)
    before = jax.tree.map(np.asarray, state.obs_statistics)
    state, _ = jax.jit(lambda s: rljax.league_step(parts, s))(state)
    pool = state.league.pool
    snapshots = np.flatnonzero(np.asarray(pool.filled & (pool.age == 2)))
    assert len(snapshots)
    for slot in snapshots:
        np.testing.assert_array_equal(pool.params.obs_statistics.mean[slot], before.mean[int(pool.parent[slot])])
    # A main exploiter is reset after its snapshot, with the statistics that it began with.
    assert float(state.obs_statistics.count[1]) == 0.0


@pytest.mark.slow
def test_groups_of_players_have_parameters_of_their_own() -> None:
    config = self_play("race:TMaze-v0", weights="player", network=GRU, **TURNS)
    parts = rljax.game_parts(config)
    state = rljax.game_init(parts, jax.random.key(0))
    agent = rljax.make_agent(config)
    policy = parts.ppo.policy.policy
    carry = jax.tree.map(lambda x: jnp.ones((8, 2, *x.shape[1:])), policy.initial_carry((1,)))
    actions, after = agent.act(state, state.obs, carry, jax.random.key(1), True)
    for player in range(2):
        params = jax.tree.map(lambda x, i=player: x[0, i], state.params)
        own = jax.tree.map(lambda x, i=player: x[:, i], carry)
        assert bool(state.obs[GROUP][:, player, player].all())
        outputs, _, expected = policy.apply(params, state.obs[OBS][:, player], own)
        np.testing.assert_array_equal(actions[:, player], jnp.argmax(outputs, axis=-1))
        for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(x[:, player], y, rtol=1e-5, atol=1e-6)
    both = jax.tree.map(lambda x: np.asarray(x[0]), state.params)
    assert not np.allclose(jax.tree.leaves(both)[-1][0], jax.tree.leaves(both)[-1][1])


@pytest.mark.slow
def test_what_one_group_learns_leaves_the_others_as_they_were() -> None:
    """Only player 0 is paid for its moves: of the losses, without the values', player 1's parameters get no gradient."""
    config = self_play("TicTacToe-v0", weights="player", vf_coef=0.0, ent_coef=0.0, normalize_advantages=False)
    parts = rljax.game_parts(config)
    state, steps = jax.jit(lambda key: rljax.game_collect(parts, rljax.game_init(parts, key)))(jax.random.key(0))
    # With advantages of 0 for player 1: its rewards and values are 0.
    head = [k for k in jax.tree_util.tree_flatten_with_path(state.params)[0] if "value" in jax.tree_util.keystr(k[0])]
    assert head
    silent = jax.tree_util.tree_map_with_path(
        lambda path, x: x.at[:, 1].set(0.0) if "value" in jax.tree_util.keystr(path) else x, state.params
    )
    steps = steps._replace(reward=steps.reward.at[..., 1].set(0.0))
    state = state.replace(params=silent)
    after, _ = jax.jit(lambda s, x: rljax.game_update(parts, s, x))(state, steps)
    moved = jax.tree.map(lambda a, b: np.abs(np.asarray(a - b)).max(axis=tuple(range(2, a.ndim)))[0], after.params, silent)
    moved = np.stack(jax.tree.leaves(moved)).max(axis=0)
    assert moved[0] > 1e-5
    assert moved[1] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("turns", [True, False])
def test_frames_solve_a_game_in_which_the_observation_before_says_what_to_do(turns: bool) -> None:
    """Without memory; without frames there is nothing but a guess. In turns, what is seen in the other's turn is no frame."""
    right = {}
    for frames in (None, 2):
        config = rljax.SelfPlayConfig(
            env=Recall(turns), frame_stack=frames, num_envs=64, num_steps=16, num_minibatches=2, learning_rate=3e-3,
            total_timesteps=20 * 64 * 16, network={"hidden": [16]},
        )  # fmt: skip
        result = jax.jit(jax.vmap(rljax.make_train(config)))(jax.random.split(jax.random.key(0), 3))
        right[frames] = np.asarray(result.metrics["env/right"][:, -1])
    assert (right[2] > 0.95).all()
    assert (right[None] < 0.6).all()


@pytest.mark.slow
def test_exploitability_of_a_policy_that_observes_frames() -> None:
    config = self_play("KuhnPoker-v0", frame_stack=2, exploitability_every=96)
    agent = rljax.make_agent(config)
    assert agent.exploitability is not None
    state = agent.init(jax.random.key(0))
    tree = game_parts(config).tree
    assert tree is not None
    assert tree.observations[0].shape[-1] == 2 * KuhnPoker().observation_space(KuhnPoker().default_params).shape[-1]
    main = jax.tree.map(lambda x: x[0], players_of(state))
    found = float(agent.exploitability(state))
    assert found == pytest.approx(float(exploitability(tree, tree_policies(game_parts(config), main))), abs=1e-6)
    assert 0.1 < found < 1.0


@pytest.mark.slow
def test_a_central_critic_sees_all_players_and_the_actor_does_not() -> None:
    game, params = make_env("race:HiddenBit-v0", num_players=3)
    central = CentralCritic(game)
    raw, _ = game.reset_env(jax.random.key(0), params)
    obs, state = central.reset_env(jax.random.key(0), params)
    for player in range(3):
        others = [np.asarray(raw["obs"] if "obs" in raw else jax.tree.leaves(raw)[0])[(player + i) % 3].ravel() for i in (1, 2)]
        assert np.concatenate(others).tolist() == np.asarray(obs["privileged"][player])[: sum(map(len, others))].tolist()
    space = central.observation_space(params)
    assert space.spaces["privileged"].shape == obs["privileged"].shape[1:]
    again, _ = player_view(central, game.observe(state, params))
    jax.tree.map(np.testing.assert_array_equal, again, obs)
    config = self_play("race:HiddenBit-v0", central_critic=True)
    agent = rljax.make_agent(config)
    start = agent.init(jax.random.key(0))
    changed = {**start.obs, "privileged": start.obs["privileged"] + 1.0}
    positions = [agent.policy_and_value(start, x) for x in (start.obs, changed)]
    np.testing.assert_array_equal(positions[0][0], positions[1][0])
    assert not np.allclose(positions[0][1], positions[1][1])


@pytest.mark.slow
def test_bonuses_count_the_learners_own_visits() -> None:
    """The first player's opponents' visits are not counted; by a dictionary of the observations that its moves led to."""
    config = league("TicTacToe-v0", intrinsic={"type": "count", "bins": 65536}, learning_rate=0.0)
    parts = rljax.game_parts(config)
    state, steps = jax.jit(lambda key: rljax.game_collect(parts, rljax.game_init(parts, key)))(jax.random.key(0))
    after, metrics = jax.jit(lambda s, x: rljax.game_update(parts, s, x))(state, steps)
    final, moves, mine = (np.asarray(x) for x in (steps.extras["final_observation"], steps.moves, steps.mine))
    visits: dict[bytes, int] = {}
    own = [(t, e) for t in range(12) for e in range(4) if mine[t, e, 0]]
    seen = {(t, e): final[t, e, int(moves[t, e].argmax())].tobytes() for t, e in own}
    for key in seen.values():
        visits[key] = visits.get(key, 0) + 1
    assert sorted(visits.values()) == sorted(np.asarray(after.intrinsic.counts[0]).astype(int)[after.intrinsic.counts[0] > 0])
    expected = np.mean([visits[key] ** -0.5 for key in seen.values()])
    assert float(metrics["train/intrinsic_reward"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"policy_lag": 2}, r"policy_lag = 2: needs learner = 'impala'"),
        ({"network": GRU, "num_minibatches": 3}, r"num_minibatches = 3: must divide the 8 streams"),
        ({"learner": "reinforce"}, r"learner = 'reinforce'"),
        ({"value_heads": ["win"]}, r"value_heads = \['win'\]: TicTacToe-v0 does not split its reward"),
        ({"exploitability_every": 96, "network": GRU}, r"exploitability_every: is computed of policies without memory"),
        ({"magnet_coef": 0.1, "average_decay": 0.9, "learner": "impala"}, r"magnet_coef: is a term of PPO's loss"),
        ({"dual_clip": 3.0, "learner": "impala"}, r"dual_clip: is a bound in PPO's loss, expected none with learner = 'impala'"),
        ({"target_kl": 0.1, "learner": "impala"}, r"target_kl: is where PPO's gradient steps stop, expected none"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        rljax.make_agent(self_play("TicTacToe-v0", **config))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_vtrace_bootstraps_from_the_memory_of_the_seat_that_moves_next() -> None:
    """The next values in the loss are those of the rollout's own memory, also where the next step's outcome is not known."""
    for players in (2, 3):
        env_params = {"turns": True, "num_players": players}
        parts = rljax.game_parts(self_play("race:TMaze-v0", network=GRU, learner="impala", env_params=env_params))

        @jax.jit
        def values(key: jax.Array, parts: GameParts = parts) -> Any:
            state, _ = game_collect(parts, game_init(parts, key))
            state, steps = game_collect(parts, state)
            learner = jax.tree.map(lambda x: x[0], learners_of(state))
            last_obs, mask, _, moves = acting_view(parts.game, state.env_state.game, state.obs, parts.game_params)
            last = LastStep(last_obs, mask, moves)
            found = _streams(parts, learner.params, steps, last, state.carry, steps.reward, steps.done)
            streams = with_last_step(found.streams, steps, last)
            of_loss = (streams.obs, streams.carry, streams.begins, streams.seat)
            _, value, carry = policy_unroll(parts.ppo, learner.params, *of_loss)
            return found, _next_values(parts.ppo, learner.params, streams, value, carry)

        found, following = values(jax.random.key(0))
        own = np.asarray(found.streams.own & ~found.streams.terminated)
        assert own.sum() > 40
        np.testing.assert_allclose(np.asarray(following)[:-1][own], np.asarray(found.next_value)[own], rtol=1e-4, atol=1e-5)


def turns_of(movers: list[int], ends: list[int], players: int) -> tuple[GameSteps, np.ndarray]:
    """Return the steps of one game after another in which players take turns, and who moves after them; all moves are one's own,
    and every step is worth 1 to every player.
    """
    length, moves = len(movers) - 1, np.eye(players, dtype=bool)[movers][:, None]
    nothing, reward, count = np.zeros((length, 1, 1)), np.ones((length, 1, players), np.float32), np.zeros((length, 1), np.int32)
    done = np.isin(np.arange(length), ends)[:, None]
    fields: Any = (nothing, None, nothing, nothing == 0, moves[:-1], reward, done, reward, count, count, count)
    return jax.tree.map(jnp.asarray, (GameSteps(*fields), moves[-1]))


def test_a_move_of_unknown_outcome_is_not_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """The player of seat 2 drops out in a game that outlasts the rollout: its move has an advantage of 0, and the predicted value
    as its target. All others have the advantages of plain sums.
    """
    parts = rljax.game_parts(self_play(Parade((0, 1, 2), turns=True, drops=True), num_envs=1, num_steps=8))
    steps, last_moves = turns_of([0, 1, 2, 0, 1, 0, 1, 0, 1], [], 3)
    value = jnp.arange(1.0, 9.0)[:, None, None]

    def advantages(_parts: Any, params: Any, opt_state: Any, streams: Any, value: Any, following: Any, *_: Any, **__: Any) -> Any:
        after = (streams.reward, value, following, streams.terminated, streams.truncated, 0.5)
        seat = traced_seat(streams)
        return gae(*after, 1.0, seat), upgo(*after, seat) - value, {}

    @jax.jit
    def learned(value: jax.Array) -> Any:
        found = seat_streams(steps, value, value, jnp.full((1, 1), 9.0), last_moves, 2)
        learner: Any = Learner(*[None] * len(Learner._fields))
        after, _ = learning._by_ppo(parts, learner, found, steps, None, jax.random.key(0), 1e-3)  # type: ignore[arg-type]
        return after.params[:, 0], after.opt_state[:, 0], learning._unknown_moves(parts, found, steps)

    monkeypatch.setattr(learning, "ppo_learn", advantages)
    found, upgoing, metrics = learned(value)
    # Rewards from a move to the next one of the seat, the discount 1/2 per move, and values 1 to 9 of steps 0 to 8.
    fifth, fourth = 2 + 0.5 * 8 - 6, 2 + 0.5 * 7 - 5
    third = 2 + 0.5 * 6 - 4 + 0.5 * fifth
    expected = [3 + 0.5 * 4 - 1 + 0.5 * third, 3 + 0.5 * 5 - 2 + 0.5 * fourth, 0.0, third, fourth, fifth]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert float(upgoing[2]) == 0.0
    assert float(metrics["train/unknown_moves"]) == pytest.approx(1 / 6)


def test_moves_of_unknown_outcome_change_no_parameter() -> None:
    """Their standardised advantage would be -mean / deviation, which reinforced the moves of those who dropped out."""
    parts = rljax.game_parts(self_play(Parade((0, 1, 2), turns=True, drops=True), network={"hidden": [8]}))
    state, steps = jax.jit(lambda key: game_collect(parts, game_init(parts, key)))(jax.random.key(0))
    learner = jax.tree.map(lambda x: x[0], learners_of(state))
    last = LastStep(jax.tree.map(lambda x: x[-1], steps.obs), None, steps.moves[-1])
    found = _streams(parts, learner.params, steps, last, None, steps.reward, steps.done)
    own = found.streams.own
    assert own is not None
    assert 0 < jnp.sum(~own[:-2]) < own[:-2].size

    @jax.jit
    def learned(log_prob: jax.Array) -> Any:
        changed = found._replace(streams=found.streams._replace(log_prob=log_prob))
        return learning._by_ppo(parts, learner, changed, steps, last, jax.random.key(1), jnp.float32(1e-3))[0].params

    before, of_unknown, of_known = (learned(found.streams.log_prob + x) for x in (0.0, 0.1 * ~own, 0.1 * own))
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.array_equal(a, b), before, of_unknown))
    assert not jax.tree.all(jax.tree.map(lambda a, b: jnp.array_equal(a, b), before, of_known))


def test_games_in_which_all_move_have_no_unknown_moves() -> None:
    parts = rljax.game_parts(self_play(Parade((0, 1)), num_envs=1))
    assert learning._unknown_moves(parts, None, None) == {}  # type: ignore[arg-type]


def test_vtrace_bootstraps_a_bonus_from_the_seats_move_in_the_next_game() -> None:
    """Where a game ends, the bonus's stream goes on, in V-trace as in PPO."""
    steps, last_moves = turns_of([0, 1, 0, 1, 0, 1, 0, 1, 0], [3], 2)

    @jax.jit
    def streams_of(steps: GameSteps) -> Any:
        value = (jnp.arange(1.0, 9.0)[:, None] + jnp.array([0.0, 10.0]))[:, None, None]
        rewards = steps._replace(reward=jnp.stack([steps.reward] * 2, axis=-1))
        ends = jnp.stack([steps.done, jnp.zeros_like(steps.done)], axis=-1)
        found = seat_streams(rewards, value, value[..., 0], jnp.array([[[9.0, 19.0]]]), last_moves, 1, ends)
        after = with_last_step(found.streams, steps, LastStep(jnp.zeros((1, 1)), None, last_moves))
        return found.streams.own[:, 0], found.next_value[:, 0, 1], after.follows[:, 0]

    own, next_value, follows = map(np.asarray, streams_of(steps))
    assert follows[2:4].tolist() == [4, 5]
    assert own[2:4].all()
    np.testing.assert_array_equal(11.0 + follows[:-1][own], next_value[own])  # the bonus's value of step t is 11 + t


def test_clipped_rewards_are_divided_by_the_deviation_of_clipped_returns() -> None:
    parts = game_parts(self_play("TicTacToe-v0", clip_rewards=0.01, normalize_rewards=True))
    before = init_reward_statistics(16)
    done = jax.random.bernoulli(jax.random.key(1), 0.2, (12, 8))
    reward = jnp.where(done, jax.random.rademacher(jax.random.key(2), (12, 8)), 0)[..., None] * jnp.array([1.0, -1.0])
    learner = Learner(*[None] * len(Learner._fields))._replace(reward_statistics=before)
    steps = GameSteps(*[None] * len(GameSteps._fields))._replace(reward=reward, done=done, extras={})  # type: ignore[arg-type]
    found, _, moved, _ = _rewards(parts, learner, steps, jax.random.key(3))
    ends = jnp.stack([done, done], axis=-1).reshape(12, 16)
    expected, scaled = normalize_rewards(before, jnp.clip(reward, -0.01, 0.01).reshape(12, 16), ends, 0.99)
    np.testing.assert_allclose(found.reshape(12, 16), scaled, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), moved.reward_statistics, expected)
    assert float(jnp.max(found)) > 1.0


class Halved(WrappedGame):
    """Rewards, and their components, are half as large; results stay what they are."""

    def step_env(self, *args: Any) -> Any:
        obs, state, reward, terminated, info = self.env.step_env(*args)
        components = {name: 0.5 * x for name, x in info["reward_components"].items()}
        return obs, state, 0.5 * reward, terminated, {**info, RESULT: reward, "reward_components": components}


@pytest.mark.slow
@pytest.mark.parametrize("heads", [(), ("win", "follow")])
def test_scaled_rewards_are_those_of_a_game_that_has_them_and_results_are_those_of_the_game(heads: tuple[str, ...]) -> None:
    game = GoalGame(make_env("TicTacToe-v0")[0], 2)
    config = league(game, scale_rewards=0.5, value_heads=heads, num_envs=32)
    agent, of_halved = rljax.make_agent(config), rljax.make_agent(config.replace(env=Halved(game), scale_rewards=None))
    state, expected = (jax.jit(x.init)(jax.random.key(0)) for x in (agent, of_halved))
    returns = []
    for _ in range(2):
        (state, metrics), (expected, by_hand) = (jax.jit(x.step)(s) for x, s in ((agent, state), (of_halved, expected)))
        np.testing.assert_allclose(metrics["train/value_loss"], by_hand["train/value_loss"], rtol=1e-4)
        assert float(metrics["episode/return"]) == 2 * float(by_hand["episode/return"])
        returns.append(float(metrics["episode/return"]))
    for tree in (lambda s: s.params, lambda s: s.league.payoff):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), tree(state), tree(expected))
    steps = jax.jit(lambda s: game_collect(game_parts(config), s))(state)[1]
    assert set(np.unique(steps.result[np.asarray(steps.done)])) <= {-1.0, 0.0, 1.0}
    assert np.abs(steps.result).max() == 1.0
    assert any(returns)


@pytest.mark.slow
def test_a_learner_that_is_reset_begins_with_nothing_of_before() -> None:
    config = league(
        "TicTacToe-v0",
        network=GRU,
        intrinsic={"type": "count", "bins": 64},
        normalize_rewards=True,
        average_decay=0.9,
        learner="impala",
        policy_lag=2,
        snapshot_timeout=96,
        learning_rate=1e-2,
    )
    agent = rljax.make_agent(config)
    before, _ = jax.jit(agent.step)(agent.init(jax.random.key(0)))
    after = before
    for _ in range(2):
        after, metrics = jax.jit(agent.step)(after)
        if float(metrics["league/resets"]):
            break
    assert float(metrics["league/resets"]) == 1.0  # the main exploiter's
    row = lambda tree, i: [np.asarray(x[i]) for x in jax.tree.leaves(tree)]  # noqa: E731
    for params, average in zip(row(after.params, 1), row(after.average_params, 1), strict=True):
        np.testing.assert_allclose(average, params, rtol=1e-6, atol=1e-7)
    assert any(not np.allclose(a, b) for a, b in zip(row(after.params, 0), row(after.average_params, 0), strict=True))
    flat = jax.flatten_util.ravel_pytree(jax.tree.map(lambda x: x[1], after.params))[0]
    np.testing.assert_array_equal(after.past_params[1], np.stack([flat, flat]))
    assert float(after.intrinsic.counts[1].sum()) == 0.0
    assert float(after.intrinsic.counts[0].sum()) > 0.0
    assert float(after.reward_statistics.statistics.count[1]) == 0.0
    own = np.asarray(after.env_state.team[4:])
    carry = np.concatenate([x.reshape(8, 2, -1) for x in map(np.asarray, jax.tree.leaves(after.carry))], axis=-1)[4:]
    assert not carry[np.arange(4), own].any()
    assert carry[np.arange(4), 1 - own].any()


@pytest.mark.slow
def test_a_branch_has_its_past_policies_and_its_statistics() -> None:
    lag = rljax.make_agent(self_play("TicTacToe-v0", learner="impala", policy_lag=2))
    given = jax.tree.map(lambda x: x + 1.0, lag.init(jax.random.key(0)).params)
    state = branch(lag, given, jax.random.key(1))
    flat = jax.flatten_util.ravel_pytree(jax.tree.map(lambda x: x[0], given))[0]
    np.testing.assert_array_equal(state.past_params[0], np.stack([flat, flat]))
    agent = rljax.make_agent(league("TicTacToe-v0", normalize_observations=True))
    other = agent.init(jax.random.key(0))
    statistics = jax.tree.map(lambda x: x + 2.0, other.obs_statistics)
    state = branch(agent, Player(other.params, statistics), jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, state.league.initial, Player(other.params, statistics))
    jax.tree.map(np.testing.assert_array_equal, state.obs_statistics, statistics)
    with pytest.raises(ConfigError, match=r"branch: the agent normalises observations, expected a Player"):
        branch(agent, other.params, jax.random.key(1))


@pytest.mark.slow
def test_who_waits_gets_no_bonus_for_a_belief() -> None:
    """A race whose belief's entropy falls by one a step: every move but the first is a reduction of one, waiting is none."""
    game = Race(Believer(), num_players=2, turns=True)
    config = self_play(game, intrinsic={"type": "entropy_reduction"}, num_minibatches=1)
    parts = rljax.game_parts(config)
    state, steps = jax.jit(lambda key: game_collect(parts, game_init(parts, key)))(jax.random.key(0))
    learner = jax.tree.map(lambda x: x[0], learners_of(state))
    bonus = np.asarray(_bonus(parts, learner.intrinsic, steps, jax.random.key(1))[0])
    moves, first = np.asarray(steps.moves), np.zeros((8, 2), bool)
    expected = np.zeros_like(bonus)
    for t in range(len(bonus)):
        expected[t] = moves[t] & first
        first = (first | moves[t]) & ~np.asarray(steps.done)[t][:, None]
    np.testing.assert_array_equal(bonus, expected)


class Believer(rljax.Environment):
    """Four steps, after each of which a belief's entropy is one less."""

    def observation_space(self, params: Any) -> rljax.Box:
        return rljax.Box(0.0, 4.0, (1,))

    def action_space(self, params: Any) -> rljax.Discrete:
        return rljax.Discrete(2)

    def reset_env(self, key: Any, params: Any) -> Any:
        return jnp.zeros(1), jnp.int32(0)

    def step_env(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        time = state + 1
        return (
            jnp.full(1, time, jnp.float32),
            time,
            jnp.float32(0.0),
            time == 4,
            {"belief_entropy": 9.0 - time.astype(jnp.float32)},
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            self_play("race:HiddenBit-v0", flatten_observations=True),
            "flatten_observations = true: the observations of race:HiddenBit",
        ),
        (self_play("TicTacToe-v0", weights="role"), "weights = 'role': all players of TicTacToe-v0 are one role"),
        (self_play("HeavyBox-v0", exploitability_every=96), "HeavyBox-v0: its players are one team, expected two"),
        (
            self_play("race:Composite-v0", exploitability_every=96),
            "race:Composite-v0: its actions are not Discrete, as an exact tree",
        ),
        (self_play("race:TMaze-v0", exploitability_every=96), "does not enumerate its initial states, which an exact tree needs"),
        (
            rljax.AlphaZeroConfig(env="race:Composite-v0", env_params={"turns": True}),
            "its actions are not Discrete, as a search needs",
        ),
        (
            rljax.AlphaZeroConfig(
                env="tests.collect.games.parade:Parade", env_params={"teams": (0, 1), "space": "heads", "turns": True}
            ),
            "Parade: its actions are not Discrete, as a search needs",
        ),
    ],
)
def test_what_a_game_lacks_is_said_in_one_line(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        rljax.make_agent(config)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_exact_trees_of_observations_in_parts() -> None:
    """Kuhn poker with weights of each player has the tree of plain Kuhn poker, and an exploitability."""
    plain = rljax.game_parts(self_play("KuhnPoker-v0", exploitability_every=96))
    parts = rljax.game_parts(self_play("KuhnPoker-v0", exploitability_every=96, weights="player", normalize_observations=True))
    assert plain.tree is not None
    assert parts.tree is not None
    assert [len(x) for x in plain.tree.masks] == [len(x) for x in parts.tree.masks]
    state = game_init(parts, jax.random.key(0))
    found = exploitability(parts.tree, tree_policies(parts, jax.tree.map(lambda x: x[0], players_of(state))))
    assert 0.1 < float(found) < 1.0


def test_exact_trees_are_those_of_what_players_see_not_their_critics() -> None:
    """A best response knows its own card only, also where a critic sees both cards."""
    plain = rljax.game_parts(self_play("KuhnPoker-v0", exploitability_every=96)).tree
    central = rljax.game_parts(self_play("KuhnPoker-v0", exploitability_every=96, central_critic=True)).tree
    assert plain is not None
    assert central is not None
    for a, b in zip((*plain.masks, plain.info, plain.reward), (*central.masks, central.info, central.reward), strict=True):
        np.testing.assert_array_equal(a, b)
    assert float(exploitability(central, uniform_policies(central))) == pytest.approx(11 / 24)  # half of Kuhn's 11 / 12


class NamedLikeGroups(KuhnPoker):
    """Kuhn poker whose observation has the keys of `PlayerGroups`: the card is "group"."""

    def observation_space(self, params: Any) -> rljax.Dict:
        return rljax.Dict({"obs": rljax.Box(0.0, 1.0, (8,)), "group": rljax.Box(0.0, 1.0, (3,))})

    def observe(self, state: Any, params: Any) -> Any:
        obs = super().observe(state, params)
        return {"obs": jnp.concatenate([obs[:, :2], obs[:, 5:]], axis=-1), "group": obs[:, 2:5]}


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["shared", "player"])
def test_a_games_own_keys_are_no_groups_of_players(weights: str) -> None:
    """Its tree is that of plain Kuhn poker, bonuses see the card, and policies act on what the game gives."""
    config = self_play(NamedLikeGroups(), weights=weights, exploitability_every=96, intrinsic={"type": "count"})
    parts = rljax.game_parts(config)
    assert parts.tree is not None
    assert float(exploitability(parts.tree, uniform_policies(parts.tree))) == pytest.approx(11 / 24)  # half of Kuhn's 11 / 12
    agent, key = rljax.make_agent(config), jax.random.key(0)
    state = jax.eval_shape(agent.init, key)
    one = jax.eval_shape(lambda x: jax.tree.map(lambda leaf: leaf[0, 0], x), state.obs)
    seen = jax.eval_shape(lambda obs: public_part(parts.game, obs), one)
    assert {name: leaf.shape for name, leaf in seen.items()} == {"obs": (8,), "group": (3,)}
    assert jax.eval_shape(lambda s, obs: agent.act(s, obs, None, key, True)[0], state, one).shape == ()
    jax.eval_shape(agent.step, state)  # with the bonus
