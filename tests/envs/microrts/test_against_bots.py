"""MicroRTS against scripted players, as an environment of one agent."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.errors import ConfigError
from rljax.core.games.versus import Versus, one_of
from rljax.envs import make_env
from rljax.envs.microrts.scripted.players import scripted_player


def test_each_game_has_one_of_the_players() -> None:
    """Three players who always choose their own number: a game sees one of them, games see all."""
    game, params = make_env("Territory-v0")

    def always(action: int) -> Callable[..., jax.Array]:
        return lambda key, state, obs, mask: jnp.full(game.num_players, action, jnp.int32)

    player = one_of([always(0), always(1), always(2)])
    keys = jax.random.split(jax.random.key(0), 64)
    _, state = game.reset_env(jax.random.key(0), params)
    obs, mask = game.observe(state, params), game.action_mask(state, params)
    first, carry = jax.vmap(lambda k: player.act(k, state, obs, mask, None))(keys)
    assert sorted(set(np.asarray(first[:, 0]).tolist())) == [0, 1, 2]
    later, same = jax.vmap(lambda k, c: player.act(k, state, obs, mask, c))(keys[::-1], carry)
    np.testing.assert_array_equal(later, first)
    np.testing.assert_array_equal(same, carry)
    assert (np.asarray(first) == np.asarray(first)[:, :1]).all()


@pytest.mark.long
def test_a_worker_rush_beats_passive_players_and_its_wins_are_counted() -> None:
    env, params = make_env("MicroRTSBots-v0", opponents=("passive",))
    assert isinstance(env, Versus)
    rush = scripted_player(env.env, "workerrush")

    @jax.jit
    def play(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        _, state = env.reset_env(key, params)

        def step(loop: tuple, key: jax.Array) -> tuple:
            state, over, won = loop
            action = rush(key, state.game, None)[state.team]
            _, after, _, done, info = env.step_env(key, state, action, params)
            state = jax.tree.map(lambda a, b: jnp.where(over, a, b), state, after)
            won = jnp.where(over, won, info["metrics"]["win"])
            return (state, over | done, won), None

        keys = jax.random.split(key, 600)
        (state, over, won), _ = jax.lax.scan(step, (state, jnp.zeros((), bool), jnp.zeros(())), keys)
        return over, won, state.team

    over, won, team = jax.vmap(play)(jax.random.split(jax.random.key(0), 8))
    assert bool(over.all())
    assert won.tolist() == [1.0] * 8
    assert sorted(set(team.tolist())) == [0, 1]


def test_opponents_are_named() -> None:
    for names in (["passive"], ("passive",)):
        assert make_env("MicroRTSBots-v0", opponents=names)[0].opponents == ("passive",)
    with pytest.raises(ConfigError, match=r"opponents = \(\): expected a list of names"):
        make_env("MicroRTSBots-v0", opponents=())
    with pytest.raises(ConfigError, match="unknown scripted player 'workersrush'"):
        make_env("MicroRTSBots-v0", opponents=("workersrush",))


def test_policies_can_have_a_value_head_for_each_component() -> None:
    """Traced only: the components are those of the game (`tests/core/games/test_versus.py` has their numbers)."""
    heads = ("win", "resource", "combat")
    params = {"opponents": ("passive",), "resource_weight": 1.0}
    config = rljax.PPOConfig(
        env="MicroRTSBots-v0", env_params=params, value_heads=heads, num_envs=2, num_steps=2, total_timesteps=4, num_minibatches=1
    )
    metrics = jax.eval_shape(rljax.make_train(config), jax.random.key(0)).metrics
    for head in heads:
        assert metrics[f"train/value_loss_{head}"].shape == (1,)


@pytest.mark.long
def test_a_policy_for_cells_learns_to_gather() -> None:
    """Against passive players, the shaped reward of a short training rises well above that of the first policy."""
    config = rljax.load_config("microrts_8x8_ppo", eval_every=None, total_timesteps=30 * 1024, num_envs=16)
    shaped = {"resource_weight": 1.0, "worker_weight": 1.0, "combat_weight": 4.0}
    config = config.replace(env_params={**config.env_params, **shaped, "opponents": ["passive"], "max_cycles": 1280})
    metrics = jax.jit(rljax.make_train(config))(jax.random.key(0)).metrics
    returns = np.asarray(metrics["episode/return"])
    returns = returns[np.isfinite(returns)]
    assert returns[-3:].mean() > returns[:3].mean() + 3.0
