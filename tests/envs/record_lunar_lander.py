"""Record flights and scores of Gymnasium's lander for the tests; run where gymnasium, Box2D and pygame are installed.

python tests/envs/record_lunar_lander.py            writes lunar_lander.npz beside this file
python tests/envs/record_lunar_lander.py scores     prints returns, lengths and ends of episodes
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.box2d.lunar_lander import heuristic

STEPS, SCORED = 120, 2000


def fly(seed: int, continuous: bool, wind: bool) -> dict[str, Any]:
    """Hover above the pad with the heuristic of Gymnasium, a third of all actions being random."""
    env: Any = gymnasium.make("LunarLander-v3", continuous=continuous, enable_wind=wind).unwrapped
    obs, _ = env.reset(seed=seed)
    # The same draws as Gymnasium's, in its order: ground, force, wind, and for each step the noise of the engines.
    draws = np.random.default_rng(seed)
    heights = draws.uniform(0, 400 / 60, 12)
    force = [draws.uniform(-1000, 1000) for _ in range(2)]
    indices = [draws.integers(-9999, 9999) for _ in range(2)] if wind else [0, 0]
    draws.uniform(-1, 1, 2)
    rng = np.random.default_rng(seed + 12345)
    seen, actions, dispersion, rewards = [obs], [], [], []
    for _ in range(STEPS):
        action = heuristic(env, obs - np.array([0, 0.9, 0, 0, 0, 0, 0, 0]))
        if rng.random() < 0.3:
            action = rng.uniform(-1, 1, 2) if continuous else int(rng.integers(4))
        dispersion.append(draws.uniform(-1, 1, 2) / 30)
        obs, reward, terminated, _, _ = env.step(action)
        assert not terminated
        seen.append(obs)
        actions.append(action)
        rewards.append(reward)
    flight = {"heights": heights, "force": np.array(force) / 1000, "wind": np.array(indices), "obs": np.stack(seen)}
    flight |= {"actions": np.array(actions), "dispersion": np.array(dispersion), "rewards": np.array(rewards)}
    return {name: value.astype(np.int32 if value.dtype.kind == "i" else np.float32) for name, value in flight.items()}


def score(continuous: bool, policy: str) -> None:
    env: Any = gymnasium.make("LunarLander-v3", continuous=continuous).unwrapped
    rng = np.random.default_rng(1000)
    rows = []
    for seed in range(1000, 1000 + SCORED):
        obs, _ = env.reset(seed=seed)
        total, length, terminated, reward = 0.0, 0, False, 0.0
        while not terminated and length < 1000:
            random = rng.uniform(-1, 1, 2) if continuous else int(rng.integers(4))
            obs, reward, terminated, _, _ = env.step(heuristic(env, obs) if policy == "heuristic" else random)
            total, length = total + reward, length + 1
        rows.append((total, length, terminated and reward == 100, terminated and reward == -100))
    means, errors = np.mean(rows, 0), np.std(rows, 0) / np.sqrt(len(rows))
    text = ", ".join(
        f"{name} {mean:.3f} +- {error:.3f}"
        for name, mean, error in zip(("return", "length", "rest", "lost"), means, errors, strict=True)
    )
    print(f"continuous={continuous} {policy}: {text}")


def drop(height: float, speed: float) -> None:
    """Let the lander fall from this height above the pad, with its legs at their limits and this speed to the right."""
    env: Any = gymnasium.make("LunarLander-v3").unwrapped
    env.reset(seed=1)
    bodies = [env.lander, *env.legs]
    # Without gravity, the motors first bring the legs to their limits.
    env.world.gravity = (0, -1e-6)
    for body in bodies:
        body.linearVelocity, body.angularVelocity = (0, 0), 0
    for _ in range(30):
        env.world.Step(1 / 50, 180, 60)
    offset = np.array([10.0, 3.3 + height]) - np.array(env.lander.position)
    for body in bodies:
        body.transform = tuple(np.array(body.position) + offset), body.angle
        body.linearVelocity, body.angularVelocity = (speed, 0), 0
    env.world.gravity = (0, -10)
    for step in range(400):
        obs, reward, terminated, _, _ = env.step(0)
        if terminated:
            print(f"height {height}, speed {speed}: reward {reward} in step {step}, y {obs[1]:.4f}")
            return


if __name__ == "__main__":
    if "drops" in sys.argv:
        for height, speed in ((0.65, 0), (0.8, 0), *((h, 2) for h in (0.65, 0.8, 1.0, 1.2, 1.4, 1.6, 2.0, 2.5, 3.0))):
            drop(height, speed)
    elif "scores" in sys.argv:
        for continuous in (False, True):
            for policy in ("heuristic", "random"):
                score(continuous, policy)
    else:
        kinds = {"discrete": (False, False), "wind": (False, True), "continuous": (True, False)}
        flights = {f"{kind}{seed}": fly(seed, *how) for kind, how in kinds.items() for seed in (1, 3)}
        arrays = {f"{name}/{key}": value for name, flight in flights.items() for key, value in flight.items()}
        np.savez_compressed(pathlib.Path(__file__).with_name("lunar_lander.npz"), **arrays)
