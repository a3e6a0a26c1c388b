# %% [markdown]
# # Composite actions: heads that agree
#
# An action is a verb, a target and an amount, and only four of the 32 combinations pay, each once per episode. The best policy
# without memory plays the four at random. Independent heads cannot do that, because the target does not depend on the sampled
# verb. With `action_heads = "autoregressive"`, each head sees the choices of earlier heads, and the policy can be any
# distribution over combinations. The best policy is random, so it is evaluated by sampled actions instead of greedy ones.

# %%
import argparse

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rljax
from rljax.envs.composite import factorised_optimum, joint_optimum

parser = argparse.ArgumentParser(description="Auto-regressive against independent heads.")
parser.add_argument("--total-timesteps", type=int, default=100_000, help="budget of each seed")
parser.add_argument("--out", default="composite.png", help="the picture")
options, _ = parser.parse_known_args()

SEEDS = 3
COLORS = {"autoregressive": "#3b6ea5", "independent": "#cc4e48"}

# %%
preset = rljax.load_config("composite_ppo", total_timesteps=options.total_timesteps)
print(f"{'heads':15} {'sampled return':>15} {'worst seed':>12} {'optimum':>9}")
optimum = {"autoregressive": joint_optimum(4), "independent": factorised_optimum(4)}
results, chances = {}, {}
for name in COLORS:
    config = preset.replace(action_heads=name)
    agent = rljax.make_agent(config)
    results[name] = jax.jit(jax.vmap(rljax.make_train(config)))(jax.random.split(jax.random.key(0), SEEDS))

    def play(state, agent=agent):
        return rljax.evaluate(agent, state, jax.random.key(1), num_episodes=500, deterministic=False).mean()

    returns = jax.jit(jax.vmap(play))(results[name].state)
    print(f"{name:15} {returns.mean():15.2f} {returns.min():12.2f} {optimum[name]:9.2f}")

    # The policy of the first seed for one observation: how often each verb goes with each target, of 4096 samples.
    state = jax.tree.map(lambda x: x[0], results[name].state)
    obs = jnp.tile(jnp.array([0.0, 1.0, 0.0, 0.0]), (4096, 1))
    action, _ = agent.act(state, obs, None, jax.random.key(2))  # {"verb": [4096], "target": [4096], "amount": [4096]}
    chances[name] = jnp.zeros((4, 4)).at[action["verb"], action["target"]].add(1 / 4096)

# %% [markdown]
# Left: the return during training; dashed lines are the best returns that each kind of heads can reach. Right: how often each
# pair is played. Crosses mark the pairs that pay.
#
# Next: actions with named heads, and masks that depend on what earlier heads chose: [networks and
# actions](../docs/guides/networks.md#actions).

# %%
fig, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained", width_ratios=(1.5, 1, 1))
for name, result in results.items():
    parts = np.array_split(np.asarray(result.metrics["episode/return"]), 40, axis=1)
    curve = np.array([np.nanmean(part, axis=1) for part in parts])
    steps = np.linspace(0, options.total_timesteps / 1000, len(curve) + 1)[1:]
    axes[0].plot(steps, curve, color=COLORS[name], alpha=0.35, linewidth=1)
    axes[0].plot(steps, curve.mean(1), color=COLORS[name], linewidth=2.5, label=name)
    axes[0].axhline(optimum[name], color=COLORS[name], linestyle="--", linewidth=1)
axes[0].set(xlabel="environment steps, thousands", ylabel="return of an episode", ylim=(0, 3), title="Learning")
axes[0].legend(frameon=False, loc="lower right")
axes[0].spines[["top", "right"]].set_visible(False)
for ax, (name, chance) in zip(axes[1:], chances.items(), strict=True):
    ax.imshow(chance, cmap="Blues", vmin=0, vmax=0.5)
    ax.plot((np.arange(4) + 1) % 4, np.arange(4), "x", color="#e8b042", markersize=10, markeredgewidth=2.5)
    ax.set(xlabel="target", ylabel="verb", xticks=range(4), yticks=range(4), title=name)
fig.savefig(options.out, dpi=150)
