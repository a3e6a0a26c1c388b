# %% [markdown]
# # A curriculum: begin near the goal, then further away
#
# Where a task is too hard to begin with, easier forms of it lead there. A `curriculum` is a list of levels, which change
# parameters of the environment. Here an episode begins some steps before the goal of SparseGridWorld, which chance alone never
# finds. With `type = "success"` the next level is reached when most episodes of this one succeed; with `"uniform"` every level
# is played all the time.

# %%
import argparse

import jax
import matplotlib.pyplot as plt
import numpy as np

import rljax

parser = argparse.ArgumentParser(description="Levels by success, all levels at once, and none.")
parser.add_argument("--total-timesteps", type=int, default=100_000, help="budget of each seed")
parser.add_argument("--out", default="curriculum.png", help="the picture")
options, _ = parser.parse_known_args()

SEEDS = 3
COLORS = {"by success": "#3b6ea5", "uniform": "#4e9a68", "no levels": "#8a8f98"}

# %% [markdown]
# Evaluations are played without levels, from the beginning of the first room, because `env_params` of the configuration are
# those of the task that counts.

# %%
levels = {"head_start": list(range(38, -1, -2))}
config = rljax.PPOConfig(
    env="SparseGridWorld-v0",
    total_timesteps=options.total_timesteps,
    eval_every=max(options.total_timesteps // 20, 512),
    num_envs=8,
    num_steps=32,
    learning_rate=2e-3,
    network={"hidden": [32]},
)
arms = {
    "by success": config.replace(curriculum={"type": "success", "levels": levels}),
    "uniform": config.replace(curriculum={"type": "uniform", "levels": levels}),
    "no levels": config,
}
results = {}
print(f"{'levels':12} {'goal found':>11} {'worst seed':>11}")
for name, arm in arms.items():
    results[name] = jax.jit(jax.vmap(rljax.make_train(arm)))(jax.random.split(jax.random.key(0), SEEDS))
    own = rljax.make_agent(arm)
    play = jax.jit(jax.vmap(lambda state, own=own: rljax.evaluate(own, state, jax.random.key(1)).mean()))
    found = play(results[name].state)
    print(f"{name:12} {found.mean():11.2f} {found.min():11.2f}")

# %% [markdown]
# Next: levels that need not be in order, chosen by how wrong the values are there (`type = "plr"`), or parameters drawn anew
# for each episode (`randomize`): the [guide](../docs/guides/curricula.md) has both.

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for name, result in results.items():
    found = np.asarray(result.metrics["eval/return"])
    steps = np.arange(1, found.shape[1] + 1) * config.steps_per_iteration / 1000
    played = ~np.isnan(found).all(0)
    left.plot(steps[played], found[:, played].T, color=COLORS[name], alpha=0.35, linewidth=1)
    left.plot(steps[played], found[:, played].mean(0), color=COLORS[name], linewidth=2.5, label=name)
reached = np.asarray(results["by success"].metrics["curriculum/reached"])
right.plot(np.arange(1, reached.shape[1] + 1) * config.steps_per_iteration / 1000, reached.T, color=COLORS["by success"])
left.set(ylabel="share of episodes that find the goal", title="From the first room")
left.legend(frameon=False)
right.set(ylabel="highest level reached", title="Levels of the three seeds")
for ax in (left, right):
    ax.set_xlabel("environment steps, thousands")
    ax.spines[["top", "right"]].set_visible(False)
fig.savefig(options.out, dpi=150)
