"""Draws the README's picture of CartPole: an untrained policy, then a trained one, from starts away from the middle."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from PIL import Image, ImageSequence

import rljax
from rljax.envs.cartpole import CartPole

OUT = Path(__file__).parent.parent / "docs" / "images" / "cartpole.gif"


class OffCentre(CartPole):
    """CartPole whose episodes begin away from the middle, with the pole leaning outwards."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        _, state = super().reset_env(key, params)
        side = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        state = state.replace(x=0.8 * side, theta=0.03 * side)
        return jnp.stack([state.x, state.x_dot, state.theta, state.theta_dot]), state


def main() -> None:
    config = rljax.load_config("cartpole_ppo", total_timesteps=200_000)
    trained = jax.jit(rljax.make_train(config))(jax.random.key(0)).state
    agent = rljax.make_agent(config.replace(env=OffCentre()))
    frames = []
    with tempfile.TemporaryDirectory() as folder:
        early, late = Path(folder) / "early.gif", Path(folder) / "late.gif"
        untrained = agent.init(jax.random.key(3))
        rljax.record(agent, untrained, early, episodes=3, max_steps=150, key=jax.random.key(2), deterministic=False)
        rljax.record(agent, trained, late, episodes=2, max_steps=150, key=jax.random.key(1))
        for path in (early, late):
            with Image.open(path) as gif:
                frames += [(frame.convert("RGB"), frame.info["duration"]) for frame in ImageSequence.Iterator(gif)]
    palette = frames[0][0].quantize(64)
    images = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame, _ in frames]
    images[0].save(
        OUT, save_all=True, append_images=images[1:], duration=[duration for _, duration in frames], loop=0, optimize=False
    )


if __name__ == "__main__":
    main()
