# %% [markdown]
# # Goals: an agent that does what it is told
#
# A command z says how many units of each of four types to build. It is the entry `goal` of the observation: every network reads
# it, and with `network = { goal = "film" }` it scales and shifts the first hidden layer instead of joining the input. The agent
# should build what was commanded. As a control, each agent is also told the command of another episode: if it obeys, what it
# builds is unrelated to the command that it was not told. The agents of the second group are trained without the command.

# %%
import argparse

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rljax
from rljax.core.environments.wrappers import Wrapper
from rljax.envs import Command

parser = argparse.ArgumentParser(description="Commanded against achieved, for an agent that is told and one that is not.")
parser.add_argument("--total-timesteps", type=int, default=120_000, help="budget of each seed")
parser.add_argument("--out", default="command.png", help="the picture")
options, _ = parser.parse_known_args()

SEEDS, EPISODES = 3, 256


class Unheard(Wrapper):
    """The same task, the command hidden: all zeros."""

    def reset_env(self, key, params):
        obs, state = super().reset_env(key, params)
        return {**obs, "goal": jnp.zeros_like(obs["goal"])}, state

    def step_env(self, key, state, action, params):
        obs, *rest = super().step_env(key, state, action, params)
        return {**obs, "goal": jnp.zeros_like(obs["goal"])}, *rest


def play(agent, state, env, shuffled):
    """`(commanded, achieved)`, the last of `info` of 256 episodes, f32 `[256, 4]`; `shuffled`: told another's command."""
    keys = jax.random.split(jax.random.key(1), EPISODES)
    obs, env_state = jax.vmap(env.reset_env, in_axes=(0, None))(keys, env.default_params)
    for _ in range(env.default_params.max_steps_in_episode):
        told = {**obs, "goal": jnp.roll(obs["goal"], 1, axis=0)} if shuffled else obs
        action, _ = agent.act(state, told, None, jax.random.key(0), deterministic=True)
        obs, env_state, _, _, info = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))(keys, env_state, action, env.default_params)
    return info["commanded"], info["achieved"]


# %% [markdown]
# R2 is the share of the variance of the built units that the commands explain.

# %%
preset = rljax.load_config("command_ppo", total_timesteps=options.total_timesteps, eval_every=None)
arms = {
    "told its command": (preset, Command(), False),
    "told another's": (preset, Command(), True),
    "told nothing": (preset.replace(env=Unheard(Command())), Unheard(Command()), False),
}
pairs, trained = {}, {}
print(f"{'agent':18} {'R2':>6} {'worst seed':>12}")
for name, (config, env, shuffled) in arms.items():
    if config not in trained:
        trained[config] = jax.jit(jax.vmap(rljax.make_train(config)))(jax.random.split(jax.random.key(0), SEEDS)).state
    agent = rljax.make_agent(config)
    episodes = jax.jit(jax.vmap(lambda state, agent=agent, env=env, shuffled=shuffled: play(agent, state, env, shuffled)))
    pairs[name] = [np.asarray(x).reshape(SEEDS, -1) for x in episodes(trained[config])]
    covariances = [np.cov(*seed) for seed in zip(*pairs[name], strict=True)]
    # The small number: who builds the same in every episode has no variance to explain.
    r2 = [c[0, 1] ** 2 / (c[0, 0] * c[1, 1] + 1e-9) for c in covariances]
    print(f"{name:18} {np.mean(r2):6.2f} {np.min(r2):12.2f}")

# %% [markdown]
# Each dot is one type of unit in one episode. The numbers are integers, so dots are jittered.
#
# Next: let the goal join the observation instead, `network = { hidden = [64, 64], goal = "concat" }`; [networks and
# actions](../docs/guides/networks.md) has what else an observation may hold.

# %%
fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.6), layout="constrained", sharex=True, sharey=True)
rng = np.random.default_rng(0)
for ax, (name, (commanded, achieved)), color in zip(axes, pairs.items(), ("#3b6ea5", "#e8b042", "#cc4e48"), strict=True):
    dots = [16 * x[0] + rng.uniform(-0.3, 0.3, x[0].shape) for x in (commanded, achieved)]
    ax.plot([0, 16], [0, 16], color="#2d3440", linewidth=1, linestyle="--")
    ax.scatter(*dots, s=9, color=color, alpha=0.4, linewidths=0)
    ax.set(xlabel="commanded units", title=name, aspect="equal", xticks=range(0, 17, 4), yticks=range(0, 17, 4))
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("units built")
fig.savefig(options.out, dpi=150)
