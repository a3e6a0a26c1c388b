# %% [markdown]
# # Wrappers: one of your own, stacked frames, and shaped rewards
#
# A wrapper is an environment around another one: it changes what the agent sees, does or is rewarded for, and the rest stays.
# The first half hides the velocities of CartPole with a wrapper of our own, and gives them back by stacking two observations.
# The second half shapes the reward of MountainCar, where chance finds the flag late.

# %%
import argparse

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rljax
from rljax import Box
from rljax.wrappers import FrameStack, ShapeReward, Wrapper

parser = argparse.ArgumentParser(description="Hidden velocities, stacked frames and shaped rewards.")
parser.add_argument("--total-timesteps", type=int, default=100_000, help="budget of each seed on CartPole; MountainCar has twice")
parser.add_argument("--out", default="wrappers.png", help="the picture")
options, _ = parser.parse_known_args()

SEEDS = 3
COLORS = ("#8a8a8a", "#cc4e48", "#3b6ea5")

# %% [markdown]
# A wrapper inherits everything from the environment that it is given, and overrides what it changes: here the observation, in
# `reset_env` and in `step_env`, and the space that describes it.


# %%
class HideVelocities(Wrapper):
    """Show the positions of the cart and of the pole only: observation f32 `[2]`."""

    SHOWN = np.array([0, 2])

    def reset_env(self, key, params):
        obs, state = self.env.reset_env(key, params)
        return obs[self.SHOWN], state

    def step_env(self, key, state, action, params):
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return obs[self.SHOWN], state, reward, terminated, info

    def observation_space(self, params):
        return Box(-jnp.inf, jnp.inf, (2,))


cartpole, _ = rljax.make_env("CartPole-v1")
hidden = HideVelocities(cartpole)
rljax.check_environment(hidden)

# %% [markdown]
# Wrappers compose, and the result goes where the name of an environment goes. `FrameStack` keeps the last observation in the
# state of the environment; from two positions a network can tell the velocity.

# %%
config = rljax.PPOConfig(
    env=cartpole,
    total_timesteps=options.total_timesteps,
    num_envs=8,
    num_steps=64,
    learning_rate=2e-3,
    network={"hidden": [64, 64]},
)
balance = {
    "all of CartPole": config,
    "velocities hidden": config.replace(env=hidden),
    "two frames of it": config.replace(env=FrameStack(hidden, 2)),
}


def train(arm, plays):
    """Train the seeds in one program; return their metrics, and the mean greedy return of each in the environment `plays`."""
    result = jax.jit(jax.vmap(rljax.make_train(arm)))(jax.random.split(jax.random.key(0), SEEDS))
    agent = rljax.make_agent(arm.replace(env=plays))
    returns = jax.jit(jax.vmap(lambda state: rljax.evaluate(agent, state, jax.random.key(1)).mean()))(result.state)
    return result.metrics, returns


metrics = {}
print(f"{'agent':20} {'return':>8} {'worst seed':>12}")
for name, arm in balance.items():
    metrics[name], returns = train(arm, arm.env)
    print(f"{name:20} {returns.mean():8.1f} {returns.min():12.1f}")

# %% [markdown]
# In MountainCar every step costs 1 until the flag is reached. `ShapeReward` adds the change of a potential to the reward, which
# leaves the best policy what it is (Ng, Harada, Russell, 1999). A potential helps where it grows on the way to the goal; the
# energy of the car does, since it must swing up first. The policies are compared by the true return, in the environment as it
# is.


# %%
def energy(state, params):
    """Return the energy of the car, in units of 20,000; 0 at rest at the flag."""
    height = jnp.sin(3 * state.position) - jnp.sin(3 * params.goal_position)
    return 20_000 * (0.5 * state.velocity**2 + params.gravity * height / 3)


mountain, _ = rljax.make_env("MountainCar-v0")
config = rljax.PPOConfig(
    env=mountain,
    total_timesteps=2 * options.total_timesteps,
    num_envs=16,
    num_steps=64,
    learning_rate=3e-3,
    normalize_observations=True,
)
drive = {"MountainCar": config, "with its energy": config.replace(env=ShapeReward(mountain, energy, gamma=config.gamma))}
for name, arm in drive.items():
    metrics[name], returns = train(arm, mountain)
    print(f"{name:20} {returns.mean():8.1f} {returns.min():12.1f}")

# %% [markdown]
# Next: most wrappers of the library are also fields of the configuration (`frame_stack=2`, `time_limit=200`, `randomize` for
# parameters that vary): the [guide](../docs/guides/environments.md#wrappers) lists them. Instead of stacking, a network may
# [remember](memory.py).

# %%
fig, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for ax, arms, what in ((axes[0], balance, "episode/return"), (axes[1], drive, "episode/length")):
    for color, name in zip(COLORS, arms, strict=False):
        parts = np.array_split(np.asarray(metrics[name][what]), 25, axis=1)
        parts = [part for part in parts if np.isfinite(part).any(1).all()]  # in short runs, no episode ends in some of them
        curve = np.array([np.nanmean(part, axis=1) for part in parts])
        steps = np.linspace(0, arms[name].total_timesteps / 1000, len(curve) + 1)[1:]
        ax.plot(steps, curve, color=color, alpha=0.35, linewidth=1)
        ax.plot(steps, curve.mean(1), color=color, linewidth=2.5, label=name)
    ax.set_xlabel("environment steps, thousands")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
axes[0].set(ylabel="return of an episode", title="CartPole: what the agent sees")
axes[1].set(ylabel="steps to the flag, at most 200", title="MountainCar: what it is rewarded for")
fig.savefig(options.out, dpi=150)
