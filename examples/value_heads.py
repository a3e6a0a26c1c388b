# %% [markdown]
# # Value heads: rewards in streams
#
# An environment may return the components of its reward in `info["reward_components"]`, a dictionary of numbers. With
# `value_heads = ["cue", "bit"]`, the critic has a head for each component, with its own discount, trace decay and weight. Here
# "cue" rewards the right action, and "bit" shifts the reward by a hidden bit whatever the policy does: it is larger, and only
# noise. A weight of 0 keeps it out of the advantages. With a single head for the sum, the noise is in all advantages.

# %%
import argparse

import jax
import matplotlib.pyplot as plt
import numpy as np

import rljax
from rljax.core.environments.wrappers import PublicObservation
from rljax.envs import HiddenBit

parser = argparse.ArgumentParser(description="Two value heads against one for the sum of the rewards.")
parser.add_argument("--total-timesteps", type=int, default=60_000, help="budget of each seed")
parser.add_argument("--out", default="value_heads.png", help="the picture")
options, _ = parser.parse_known_args()

SEEDS = 6
COLORS = {"two heads": "#3b6ea5", "one head": "#cc4e48"}

# %% [markdown]
# No critic sees the hidden bit (`PublicObservation` drops it), so only the heads can separate the components.

# %%
preset = rljax.load_config("hidden_bit_ppo_heads", total_timesteps=options.total_timesteps, eval_every=None)
two = preset.replace(env=PublicObservation(HiddenBit()))  # value_heads = ["cue", "bit"], head_weights = [1, 0]
arms = {"two heads": two, "one head": two.replace(value_heads=(), head_weights=None)}
results = {}
print(f"{'critic':10} {'steps to a return of 7':>23} {'at the end':>11}")
for name, config in arms.items():
    results[name] = jax.jit(jax.vmap(rljax.make_train(config)))(jax.random.split(jax.random.key(0), SEEDS))
    returns = np.asarray(results[name].metrics["episode/return"])
    reached = np.nan_to_num(returns) >= 7
    steps = np.where(reached.any(1), (reached.argmax(1) + 1) * config.steps_per_iteration, np.inf)
    print(f"{name:10} {np.median(steps):23,.0f} {np.nanmean(returns[:, -20:]):11.2f}")

# %% [markdown]
# Left: the return of all seeds; 8 is the best. Right: each head's loss, `train/value_loss_NAME` in the metrics. The loss of "cue"
# becomes small; that of "bit" does not fall, because no observation shows the bit.
#
# Next: let the heads look ahead differently far (`head_gammas`, `head_lambdas`), or weigh "bit" as well (`head_weights`):
# [networks and actions](../docs/guides/networks.md).

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")


def draw(ax, metrics, metric, color, label):
    parts = np.array_split(np.asarray(metrics[metric]), 40, axis=1)
    curve = np.array([np.nanmean(part, axis=1) for part in parts])
    steps = np.linspace(0, options.total_timesteps / 1000, len(curve) + 1)[1:]
    ax.plot(steps, curve, color=color, alpha=0.3, linewidth=1)
    ax.plot(steps, curve.mean(1), color=color, linewidth=2.5, label=label)


for name, result in results.items():
    draw(left, result.metrics, "episode/return", COLORS[name], name)
left.axhline(8, color="#2d3440", linestyle="--", linewidth=1)
left.set(ylabel="return of an episode", title="Noise kept out of the advantages")
for stream, color in (("cue", "#4e9a68"), ("bit", "#e8b042")):
    draw(right, results["two heads"].metrics, f"train/value_loss_{stream}", color, f'head "{stream}"')
right.set(ylabel="value loss", yscale="log", title="What each head makes of its stream")
for ax in (left, right):
    ax.set_xlabel("environment steps, thousands")
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
fig.savefig(options.out, dpi=150)
