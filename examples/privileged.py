# %% [markdown]
# # A privileged critic: it sees what the policy cannot
#
# A hidden bit moves every reward up or down, whatever the policy does. An environment that returns
# `{"observation": ..., "privileged": ...}` shows the bit to the critic only; the input of the policy is the rest. A critic that
# knows the bit removes its effect from every advantage; for a critic that does not, it is noise. The critic is needed for
# training only, so the trained policy plays without the privileged part.

# %%
import argparse

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rljax
from rljax.core.environments.wrappers import PublicObservation
from rljax.envs import HiddenBit

parser = argparse.ArgumentParser(description="A critic that sees a hidden bit against one that does not.")
parser.add_argument("--total-timesteps", type=int, default=60_000, help="budget of each seed")
parser.add_argument("--out", default="privileged.png", help="the picture")
options, _ = parser.parse_known_args()

SEEDS = 6
COLORS = {"sees the bit": "#3b6ea5", "does not": "#cc4e48"}

# %% [markdown]
# The control has the same environment without the privileged part: `PublicObservation` drops it.

# %%
preset = rljax.load_config("hidden_bit_ppo", total_timesteps=options.total_timesteps, eval_every=None)
arms = {"sees the bit": preset, "does not": preset.replace(env=PublicObservation(HiddenBit()))}
results = {}
print(f"{'critic':14} {'explained variance':>19} {'steps to a return of 7':>24}")
for name, config in arms.items():
    results[name] = jax.jit(jax.vmap(rljax.make_train(config)))(jax.random.split(jax.random.key(0), SEEDS))
    metrics = {key: np.asarray(value) for key, value in results[name].metrics.items()}
    explained = metrics["train/explained_variance"]
    explained = explained[:, explained.shape[1] // 2 :].mean()
    reached = np.nan_to_num(metrics["episode/return"]) >= 7
    steps = np.where(reached.any(1), (reached.argmax(1) + 1) * config.steps_per_iteration, np.inf)
    print(f"{name:14} {explained:19.2f} {np.median(steps):24,.0f}")

# %% [markdown]
# The policy plays without the bit, and acts the same whatever value of the bit it is given.

# %%
agent, state = rljax.make_agent(preset), jax.tree.map(lambda x: x[0], results["sees the bit"].state)
public = {"observation": jax.random.uniform(jax.random.key(1), (1000, 5))}
action, _ = agent.act(state, public, None, jax.random.key(2))
for bit in (-1.0, 1.0):
    told, _ = agent.act(state, {**public, "privileged": jnp.full((1000, 1), bit)}, None, jax.random.key(2))
    print(f"actions that differ when told that the bit is {bit:+.0f}: {(told != action).sum()} of 1000")

# %% [markdown]
# Next: in games a critic may see what all players see (`central_critic = true`): the [guide](../docs/guides/games.md); or give
# the noise a [value head](value_heads.py) of its own.

# %%
fig, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
labels = {"episode/return": "return of an episode", "train/explained_variance": "explained variance of the returns"}
for ax, (metric, label) in zip(axes, labels.items(), strict=True):
    for name, result in results.items():
        parts = np.array_split(np.asarray(result.metrics[metric]), 40, axis=1)
        curve = np.array([np.nanmean(part, axis=1) for part in parts])
        steps = np.linspace(0, options.total_timesteps / 1000, len(curve) + 1)[1:]
        ax.plot(steps, curve, color=COLORS[name], alpha=0.3, linewidth=1)
        ax.plot(steps, curve.mean(1), color=COLORS[name], linewidth=2.5, label=f"critic {name}")
    ax.set(xlabel="environment steps, thousands", ylabel=label)
    ax.spines[["top", "right"]].set_visible(False)
axes[0].axhline(8, color="#2d3440", linestyle="--", linewidth=1)
axes[0].set_title("The same policy, learned sooner")
axes[1].set(title="What the critic knows", ylim=(-0.1, 1.05))
axes[1].legend(frameon=False, loc="center right")
fig.savefig(options.out, dpi=150)
