# %% [markdown]
# # A draft by search
#
# Two sides pick heroes in the order A, B, B, A. A side is rewarded for how well its heroes fit each other, and how well they do
# against the other side's. Turns do not alternate, so a value changes its sign only where the side to move changes;
# `rljax.make_mcts` handles this. The search evaluates leaves by greedy picks to the end. The example measures how much value each
# way of choosing the first pick loses, compared with the best pick.

# %%
import argparse

import jax
import matplotlib.pyplot as plt
import numpy as np

import rljax
from rljax.envs import Draft
from rljax.envs.draft import ORDER, greedy_completion, random_draft

parser = argparse.ArgumentParser(description="Drafts by search, with more and more simulations.")
parser.add_argument("--total-timesteps", type=int, default=60_000, help="simulations in all")
parser.add_argument("--out", default="draft.png", help="the picture")
options, _ = parser.parse_known_args()

GAME = Draft()
SIMULATIONS = (10, 50, 200, 800)
DRAFTS = max(4, options.total_timesteps // sum(SIMULATIONS))
drafts = jax.vmap(random_draft)(jax.random.split(jax.random.key(0), DRAFTS))


# %%
def minimax(synergy, counter, owner=(0,) * 8, time=0):
    """Return the value for A after each next pick, with best play of both sides from there on."""
    values = {}
    for hero in [i for i in range(8) if owner[i] == 0]:
        after = (*owner[:hero], ORDER[time] + 1, *owner[hero + 1 :])
        if time + 1 < len(ORDER):
            following = minimax(synergy, counter, after, time + 1).values()
            values[hero] = max(following) if ORDER[time + 1] == 0 else min(following)
        else:
            a, b = (np.flatnonzero(np.array(after) == side) for side in (1, 2))
            values[hero] = synergy[a[0], a[1]] - synergy[b[0], b[1]] + counter[np.ix_(a, b)].sum()
    return values


def searched(params, key, simulations):
    """Return the hero that a search picks first."""
    state = jax.tree.map(lambda x: x[None], GAME.reset_env(key, params)[1])
    search = rljax.make_mcts(GAME, params, evaluate=greedy_completion(params), num_simulations=simulations, exploration=1.6)
    return search(key, state).action[0]


# %% [markdown]
# Next: let a network say what a leaf is worth, and learn it from the games that the search plays: AlphaZero, `rljax train
# tictactoe_alphazero`, in the guide to [games](../docs/guides/games.md).

# %%
tables = [minimax(*(np.asarray(x[i]) for x in (drafts.synergy, drafts.counter))) for i in range(DRAFTS)]
best = np.array([max(table.values()) for table in tables])
keys = jax.random.split(jax.random.key(1), DRAFTS)
lost = {"at random": best - np.array([np.mean(list(table.values())) for table in tables])}
agree = {"at random": np.full(DRAFTS, 1 / 8)}
for count in SIMULATIONS:
    picks = np.asarray(jax.jit(jax.vmap(lambda p, k, count=count: searched(p, k, count)))(drafts, keys))
    name = f"{count} simulations"
    lost[name] = best - np.array([table[pick] for table, pick in zip(tables, picks, strict=True)])
    agree[name] = lost[name] < 1e-5

print(f"{'first pick':20} {'best':>8} {'value lost':>12}")
fig, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
for row, (name, values) in enumerate(lost.items()):
    print(f"{name:20} {np.mean(agree[name]):8.2f} {values.mean():12.3f}")
    ax.barh(row, values.mean(), color="#3b6ea5" if row else "#cc4e48")
    ax.plot(values, np.full(DRAFTS, row) + np.linspace(-0.3, 0.3, DRAFTS), ".", color="black", alpha=0.3, markersize=3)
ax.set_yticks(range(len(lost)), lost)
ax.invert_yaxis()
ax.set(xlabel="value lost by the first pick", title=f"{DRAFTS} drafts")
ax.spines[["top", "right"]].set_visible(False)
fig.savefig(options.out, dpi=150)
