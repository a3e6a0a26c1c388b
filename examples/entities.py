# %% [markdown]
# # Entities: a set of any size
#
# The task: from the targets on a circle, pick the one of the requested kind that is nearest to the beacon. A transformer relates
# the entities and a pointer picks one of them, so no parameter depends on their number. Trained with 2 to 6 targets, it also
# picks from 12. A perceptron on the padded list has weights for places that were never filled in training.

# %%
import argparse

import jax
import matplotlib.pyplot as plt
import numpy as np

import rljax

parser = argparse.ArgumentParser(description="Transformer and pointer against a perceptron, on numbers of targets never seen.")
parser.add_argument("--total-timesteps", type=int, default=16_000, help="budget of each seed")
parser.add_argument("--out", default="entities.png", help="the picture")
options, _ = parser.parse_known_args()

SEEDS = 2
COUNTS = (2, 4, 6, 12)
COLORS = {"transformer": "#3b6ea5", "perceptron": "#cc4e48"}

# %% [markdown]
# Observations are dictionaries: `entities` f32 `[E, features]`, `entity_mask` bool `[E]` (True where there is an entity) and
# other entries, here the `query`. `encoder = "entities"` reads them; `pointer = true` makes the actions the entities. The
# perceptron gets ten times the steps.

# %%
transformer = rljax.load_config("target_pick_ppo", total_timesteps=options.total_timesteps, eval_every=None)
arms = {
    "transformer": transformer,
    "perceptron": transformer.replace(network={"hidden": [64, 64]}, total_timesteps=10 * options.total_timesteps),
}
print(f"{'targets':12}" + "".join(f"{count:>8}" for count in COUNTS))
scores = {}
for name, config in arms.items():
    states = jax.jit(jax.vmap(rljax.make_train(config)))(jax.random.split(jax.random.key(0), SEEDS)).state
    scores[name] = []
    for count in COUNTS:
        # The trained parameters in another environment: a new agent of a changed configuration.
        agent = rljax.make_agent(config.replace(env_params={"min_targets": count, "max_targets": count}))
        play = jax.jit(jax.vmap(lambda state, agent=agent: rljax.evaluate(agent, state, jax.random.key(1)).mean()))
        scores[name].append(play(states) / 8)  # of 8 picks in an episode
    print(f"{name:12}" + "".join(f"{score.mean():8.2f}" for score in scores[name]))

# %% [markdown]
# The plot shows how often the right target is picked, with a line for each seed. The dashed line is a policy that picks at
# random.
#
# Next: a larger transformer (`layers`, `heads`, `width`), or the first head of a composite action that points at an entity:
# [networks and actions](../docs/guides/networks.md).

# %%
fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
ax.axvspan(2, 6, color="#ecece9")
ax.text(4, 0.03, "trained on these", ha="center", color="#2d3440")
for name, score in scores.items():
    lines = ax.plot(COUNTS, np.array(score), "o-", color=COLORS[name], linewidth=2, alpha=0.8)
    lines[0].set_label(name)
counts = np.linspace(COUNTS[0], COUNTS[-1])
ax.plot(counts, 1 / (counts + 1), "--", color="#2d3440", linewidth=1, label="random")
ax.set(xlabel="number of targets", ylabel="right picks", ylim=(0, 1.05), title="Attention carries over to larger sets")
ax.legend(frameon=False, loc="center right")
ax.spines[["top", "right"]].set_visible(False)
fig.savefig(options.out, dpi=150)
