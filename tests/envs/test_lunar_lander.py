"""The lander against flights and scores of Gymnasium's (recorded by record_lunar_lander.py), and what happens on the ground."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import drawing, make_env
from rljax.envs.lander_physics import HEIGHT, PAD_HEIGHT, SIDES, LunarLanderState, advance, start
from rljax.envs.lunar_lander import observe, shaping

QUICK = {"xla_backend_optimization_level": 0}
RECORDED = np.load(pathlib.Path(__file__).with_name("lunar_lander.npz"))
FLIGHTS = sorted({name.partition("/")[0] for name in RECORDED.files})
IDS = ("LunarLander-v3", "LunarLanderContinuous-v3")
# Mean and standard deviation of the returns of Gymnasium's heuristic and of random play, in 2000 episodes of Gymnasium 1.4 each.
SCORES = {
    ("LunarLander-v3", "heuristic"): (237.05, 107.7),
    ("LunarLander-v3", "random"): (-184.79, 111.1),
    ("LunarLanderContinuous-v3", "heuristic"): (282.05, 29.0),
    ("LunarLanderContinuous-v3", "random"): (-215.94, 126.7),
}
NUM_EPISODES = 400


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def fly(env_id: str, flight: dict[str, jax.Array], wind: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Observations `[T + 1, 8]`, rewards `[T]` and the final state with the recorded actions and noise of the engines."""
    env, params = make_env(env_id)
    params = params.replace(enable_wind=wind)

    def step(state: LunarLanderState, xs: tuple[jax.Array, jax.Array]) -> tuple[LunarLanderState, tuple[jax.Array, jax.Array]]:
        action, dispersion = xs
        main, side = env.throttle(action)
        after, crashed = advance(state, main, side, dispersion, params)
        reward = shaping(observe(after)) - shaping(observe(state)) - 0.3 * main - 0.03 * jnp.abs(side)
        return after, (observe(after), reward, crashed)

    state = start(flight["heights"], flight["force"], flight["wind"], params)
    _, (obs, rewards, crashed) = jax.lax.scan(step, state, (flight["actions"], flight["dispersion"]))
    return jnp.concatenate([observe(state)[None], obs]), rewards, crashed


@pytest.mark.parametrize("name", FLIGHTS)
def test_flights_are_gymnasiums(name: str) -> None:
    flight = {key: RECORDED[f"{name}/{key}"] for key in ("heights", "force", "wind", "obs", "actions", "dispersion", "rewards")}
    env_id = IDS[name.startswith("continuous")]
    obs, rewards, crashed = fly(env_id, jax.tree.map(jnp.asarray, flight), name.startswith("wind"))
    assert len(rewards) == 120
    assert not crashed.any()
    assert np.abs(flight["obs"]).max(0)[:6].min() > 0.03, "the lander must have moved in all ways"
    np.testing.assert_allclose(obs[0], flight["obs"][0], atol=1e-5)
    # Errors add up: the recorded actions are repeated and correct nothing.
    np.testing.assert_allclose(obs[:101], flight["obs"][:101], atol=4e-4)
    np.testing.assert_allclose(obs, flight["obs"], atol=1e-3)
    # The reward is a hundred times a difference of observations.
    np.testing.assert_allclose(rewards[:100], flight["rewards"][:100], atol=0.05)


def above_flat_ground(height: float, speed: float = 0.0, angle: float = 0.0) -> LunarLanderState:
    """A lander whose origin is this high above flat ground, with its legs at their limits, that moves to the right."""
    _, params = make_env(IDS[0])
    state = start(jnp.full(12, PAD_HEIGHT), jnp.zeros(2), jnp.zeros(2, jnp.int32), params)
    along = jnp.array([speed, 0.0], jnp.float32)
    return state.replace(
        position=jnp.array([10.0, 0.99 * PAD_HEIGHT + height], jnp.float32), angle=jnp.float32(angle), velocity=along,
        leg_angle=SIDES * 0.3475 + jnp.float32(angle), leg_velocity=jnp.stack([along, along]),
    )  # fmt: skip


@functools.partial(jax.jit, compiler_options=QUICK)
def drop(state: LunarLanderState) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Observations, rewards and terminations of 200 steps without engines."""
    env, params = make_env(IDS[0])

    def step(state: LunarLanderState, key: jax.Array) -> tuple[LunarLanderState, Any]:
        obs, state, reward, terminated, _ = env.step_env(key, state, jnp.int32(0), params)
        return state, (obs, reward, terminated)

    results: tuple[jax.Array, jax.Array, jax.Array] = jax.lax.scan(step, state, jax.random.split(jax.random.key(0), 200))[1]
    return results


# Drops in Gymnasium: height of the origin above the pad, speed to the right, step in which the episode ends.
@pytest.mark.parametrize(("height", "speed", "their_end"), [(0.65, 0.0, 34), (0.8, 0.0, 68), (0.65, 2.0, 90), (0.8, 2.0, 90)])
def test_a_lander_set_down_gently_comes_to_rest_about_when_gymnasiums_does(height: float, speed: float, their_end: int) -> None:
    obs, reward, terminated = map(np.asarray, drop(above_flat_ground(height, speed)))
    end = int(np.argmax(terminated))
    assert abs(end - their_end) <= 5
    assert reward[end] == 100.0
    assert (obs[end, 6:] == 1.0).all(), "both legs stand on the ground"
    assert (obs[0, 6:] == 0.0).all()
    # Slow for half a second, upright, and as high as Gymnasium's, which rests at -0.0007.
    assert np.hypot(obs[end - 24 : end + 1, 2] * 5, obs[end - 24 : end + 1, 3] * 7.5).max() < 0.011
    assert abs(obs[end, 4]) < 0.01
    assert abs(obs[end, 1] + 0.0007) < 0.001


@pytest.mark.slow
@pytest.mark.parametrize(("height", "their_end"), [(1.0, 19), (1.2, 21), (1.4, 23), (1.6, 25), (2.0, 28), (2.5, 32), (3.0, 36)])
def test_a_lander_dropped_from_high_is_lost_when_gymnasiums_is(height: float, their_end: int) -> None:
    """The springs of the legs give way and the hull reaches the ground."""
    _, reward, terminated = map(np.asarray, drop(above_flat_ground(height, speed=2.0)))
    end = int(np.argmax(terminated))
    assert abs(end - their_end) <= 1
    assert reward[end] == -100.0


def test_a_lander_upside_down_is_lost() -> None:
    obs, reward, terminated = map(np.asarray, drop(above_flat_ground(2.0, angle=np.pi)))
    end = int(np.argmax(terminated))
    assert terminated[end]
    assert reward[end] == -100.0
    assert (obs[end, 6:] == 0.0).all()


def test_leaving_to_the_side_is_lost() -> None:
    env, params = make_env(IDS[0])
    state = above_flat_ground(5.0)
    for x, lost in ((19.9, False), (20.1, True)):
        there = state.replace(position=state.position.at[0].set(x))
        _, _, reward, terminated, _ = jax.jit(env.step_env, compiler_options=QUICK)(
            jax.random.key(0), there, jnp.int32(0), params
        )
        assert bool(terminated) == lost
        assert (float(reward) == -100.0) == lost


def test_throttle_of_the_continuous_form() -> None:
    """The main engine gives 50% to 100% above 0, the side engines their action beyond a half; actions are clipped."""
    env, _ = make_env(IDS[1])
    for action, expected in (
        ((-1.0, 0.5), (0.0, 0.0)),
        ((0.5, -0.6), (0.75, -0.6)),
        ((3.0, 3.0), (1.0, 1.0)),
        ((0.0, -2.0), (0.0, -1.0)),
    ):
        np.testing.assert_allclose(env.throttle(jnp.array(action)), expected, atol=1e-6)


def test_the_ground_has_a_flat_pad_in_the_middle() -> None:
    env, params = make_env(IDS[0])
    _, states = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(jax.random.key(0), 100), params)
    np.testing.assert_allclose(states.ground[:, 4:7], 0.99 * PAD_HEIGHT, rtol=1e-6)
    assert float(states.ground[:, 0].std()) > 0.5
    assert float(states.ground.max()) < 0.99 * HEIGHT / 2


def test_the_key_decides_the_noise_of_the_engines() -> None:
    env, params = make_env(IDS[0])
    step = jax.jit(env.step_env, compiler_options=QUICK)
    state = above_flat_ground(5.0)
    first, again, other = (step(jax.random.key(seed), state, jnp.int32(2), params)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-4


def test_a_polygon_has_its_area() -> None:
    corners = jnp.array([(0.0, 1.0), (2.0, 1.0), (1.0, 3.0)])
    picture = drawing.polygon(drawing.canvas(80, 100, (1.0, 2.0), 10.0, (0, 0, 0)), corners, (255, 255, 255))
    assert float(picture.rgb[:, :, 0].sum() / 255 * picture.pixel**2) == pytest.approx(2.0, rel=0.02)


def heuristic(obs: jax.Array, continuous: bool) -> jax.Array:
    """The policy that comes with Gymnasium's lander: lean towards the pad and fall slower, the nearer the ground is."""
    x, y, x_dot, y_dot, angle, spin, right, left = obs
    lean = jnp.clip(0.5 * x + x_dot, -0.4, 0.4)
    turn, lift = 0.5 * (lean - angle) - spin, 0.5 * (0.55 * jnp.abs(x) - y - y_dot)
    landed = (right + left) > 0
    turn, lift = jnp.where(landed, 0.0, turn), jnp.where(landed, -0.5 * y_dot, lift)
    if continuous:
        return jnp.clip(jnp.stack([20 * lift - 1, -20 * turn]), -1.0, 1.0)
    side = jnp.where(turn < -0.05, 3, jnp.where(turn > 0.05, 1, 0))
    return jnp.where((lift > jnp.abs(turn)) & (lift > 0.05), 2, side)


@functools.partial(jax.jit, static_argnums=(0, 1))
def play(env_id: str, policy: str, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return and last reward of an episode for each key."""
    env, params = make_env(env_id)

    def step(carry: Any) -> Any:
        key, obs, state, total, last, over = carry
        key, key_action, key_step = jax.random.split(key, 3)
        random = env.action_space(params).sample(key_action)
        action = heuristic(obs, env_id == IDS[1]) if policy == "heuristic" else random
        obs, state, reward, terminated, _ = env.step_env(key_step, state, action, params)
        reward = jnp.where(over, 0.0, reward)
        return key, obs, state, total + reward, jnp.where(over, last, reward), over | terminated | env.is_truncated(state, params)

    def episode(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        key_reset, key = jax.random.split(key)
        carry = (key, *env.reset(key_reset, params), jnp.zeros(()), jnp.zeros(()), jnp.zeros((), bool))
        _, _, _, total, last, _ = jax.lax.while_loop(lambda carry: ~carry[-1], step, carry)
        return total, last

    return jax.vmap(episode)(keys)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "policy"), [pytest.param(*case, marks=[pytest.mark.long] * (i > 0)) for i, case in enumerate(SCORES)]
)
def test_policies_score_as_in_gymnasium(env_id: str, policy: str) -> None:
    total, last = map(np.asarray, play(env_id, policy, jax.random.split(jax.random.key(0), NUM_EPISODES)))
    mean, deviation = SCORES[env_id, policy]
    assert abs(total.mean() - mean) < 3 * deviation * np.sqrt(1 / NUM_EPISODES + 1 / 2000)
    if policy == "heuristic":
        # In Gymnasium 91.9% and 99.7% of 2000 landers come to rest.
        assert abs((last == 100).mean() - (0.919, 0.997)[env_id == IDS[1]]) < 0.04
    else:
        assert (last == -100).mean() > 0.98
