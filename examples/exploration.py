# %% [markdown]
# # Exploration: a bonus for what is new
#
# The environment has four rooms in a chain and one reward at the far end, 54 steps away. Random actions never get there, and no
# other reward leads there. A bonus for new observations does. `intrinsic = { type = "count" }` pays 1 / sqrt(visits). `{ type =
# "rnd" }` pays the error of a network that predicts the outputs of a random one (random network distillation), which also works
# where no two observations are equal. The bonus has its own value head and is weighted by `intrinsic_coef`.

# %%
import argparse

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm

import rljax
from rljax.envs import SparseGridWorld

parser = argparse.ArgumentParser(description="Counts and random network distillation against PPO alone.")
parser.add_argument("--total-timesteps", type=int, default=150_000, help="budget of each seed")
parser.add_argument("--out", default="exploration.png", help="the picture")
options, _ = parser.parse_known_args()

SEEDS = 4
COLORS = {"counts": "#3b6ea5", "RND": "#4e9a68", "no bonus": "#cc4e48"}

# %% [markdown]
# This example writes its own loop from the two parts of PPO, to record which cells were visited.

# %%
preset = rljax.load_config("sparse_gridworld_ppo_count", total_timesteps=options.total_timesteps, eval_every=None)
arms = {
    "counts": preset,
    "RND": preset.replace(intrinsic={"type": "rnd"}),
    "no bonus": preset.replace(intrinsic=None),
}
grid = SparseGridWorld(num_rooms=4)


def train(config, key):
    """Return the final state, goals reached in each iteration `[iterations]`, and visits of each cell `[height, width]`."""
    parts = rljax.ppo_parts(config)

    def iteration(carry, _):
        state, visits = carry
        state, rollout = rljax.ppo_collect(parts, state)
        rows, columns = jnp.split(rollout.steps.obs, [grid.height], axis=-1)  # one-hot
        visits += jnp.einsum("tnr,tnc->rc", rows, columns)
        state, _ = rljax.ppo_update(parts, state, rollout)
        return (state, visits), rollout.steps.reward.sum()

    start = rljax.ppo_init(parts, key), jnp.zeros((grid.height, grid.width))
    (state, visits), goals = jax.lax.scan(iteration, start, length=config.num_iterations)
    return state, goals, visits


print(f"{'bonus':10} {'seeds that reach the goal':>26} {'greedy return':>14} {'cells seen':>11}")
goals, visits = {}, {}
for name, config in arms.items():
    keys = jax.random.split(jax.random.key(0), SEEDS)
    states, goals[name], visits[name] = jax.jit(jax.vmap(lambda key, config=config: train(config, key)))(keys)
    agent = rljax.make_agent(config)
    returns = jax.jit(jax.vmap(lambda state, agent=agent: rljax.evaluate(agent, state, jax.random.key(1), 1).mean()))(states)
    found, seen = (goals[name].sum(1) > 0).sum(), (visits[name] > 0).sum((1, 2)).mean()
    print(f"{name:10} {found:>21} of {SEEDS} {returns.mean():14.2f} {seen:11.0f}")

# %% [markdown]
# Left: how often the goal is reached. Right: visits of the first seed to each cell; the star is the goal.
#
# Next: a larger or smaller `intrinsic_coef`; or [a curriculum](curriculum.py), which finds the same goal by levels, without a
# bonus.

# %%
fig, axes = plt.subplots(1, 4, figsize=(12, 3.4), layout="constrained", width_ratios=(1.7, 1, 1, 1))
for name, reached in goals.items():
    curve = np.cumsum(reached, axis=1).T
    steps = np.linspace(0, options.total_timesteps / 1000, len(curve) + 1)[1:]
    axes[0].plot(steps, curve, color=COLORS[name], alpha=0.35, linewidth=1)
    axes[0].plot(steps, curve.mean(1), color=COLORS[name], linewidth=2.5, label=name)
axes[0].set(xlabel="environment steps, thousands", ylabel="goals reached so far", title="A reward that has to be found")
axes[0].legend(frameon=False)
axes[0].spines[["top", "right"]].set_visible(False)
for ax, (name, cells) in zip(axes[1:], visits.items(), strict=True):
    walls = grid.is_wall(*np.mgrid[: grid.height, : grid.width])
    ax.imshow(np.where(walls, np.nan, 0.0), cmap="Greys", vmin=0, vmax=1)
    ax.imshow(np.where(cells[0] > 0, cells[0], np.nan), cmap="viridis", norm=LogNorm(1, options.total_timesteps / 4))
    ax.plot(grid.goal[1], grid.goal[0], "*", color="#e8b042", markersize=14, markeredgecolor="#2d3440")
    ax.set(xticks=[], yticks=[], title=f"visits, {name}", facecolor="#2d3440")
fig.savefig(options.out, dpi=150)
