# %% [markdown]
# # Dreamer's imagination: what the world model expects to see
#
# DreamerV3 learns a model of the world and trains its policy on what the model imagines. Here the world is GridWorld, of which it
# sees the row and the column that it is in. After some updates we close its eyes: it is shown the first steps of an episode, then
# told the actions alone, and says where it expects to be. Beside it is what did happen.

# %%
import argparse

import jax
import matplotlib.pyplot as plt
import numpy as np

import rljax
from rljax.algos.dreamer.openloop import shuffled_actions
from rljax.algos.dreamer.replay import replayed_normalized
from rljax.collect.replay import sample_windows
from rljax.nn.modules.transforms import symexp

parser = argparse.ArgumentParser(description="Open-loop predictions of a world model, beside what happened.")
parser.add_argument("--total-timesteps", type=int, default=8_000, help="budget of the training")
parser.add_argument("--out", default="imagination.png", help="the picture")
options, _ = parser.parse_known_args()

CONTEXT, AHEAD, SEQUENCES = 3, 9, 64

# %% [markdown]
# Train. `size = "debug"` is a model of about 0.1M parameters for a CPU; the published ones have up to 400M.

# %%
config = rljax.load_config(
    "cartpole_dreamer_debug",
    env="GridWorld-v0",
    normalize_observations=False,
    total_timesteps=options.total_timesteps,
    eval_every=None,
)
result = jax.jit(rljax.make_train(config))(jax.random.key(0))
parts = rljax.dreamer_parts(config)

# %% [markdown]
# Draw sequences from the replay buffer. `open_loop` observes the first rows and predicts the others from the actions. The
# control is the same prediction with the actions shuffled: a model that has not learned what actions do is no worse with wrong
# ones.


# %%
@jax.jit
def imagine(state, key):
    place_key, shuffle_key, key = jax.random.split(key, 3)
    places = sample_windows(state.replay, jax.random.bits(place_key, (SEQUENCES,)), CONTEXT + AHEAD + 1)
    batch = replayed_normalized(parts.networks.rssm, state, places, CONTEXT + AHEAD)
    wrong = shuffled_actions(batch, CONTEXT, shuffle_key)
    return (
        batch,
        rljax.open_loop(parts, state.params, batch, CONTEXT, key),
        rljax.open_loop(parts, state.params, batch, CONTEXT, key, wrong),
    )


batch, imagined, confused = imagine(result.state, jax.random.key(1))
valid = np.asarray(imagined.valid)  # [AHEAD, SEQUENCES]: what comes after the end of an episode cannot be known

# %% [markdown]
# The mean squared error of a number of the observation, in thousandths, so many steps ahead, beside the error of repeating the
# last observation.

# %%
errors = {
    "imagined": imagined.error,
    "shuffled actions": confused.error,
    "last one again": imagined.copy_last_error,
}
shown = (1, 3, 6, 9)
print(f"{'prediction':20}" + "".join(f"{f'{step} ahead':>10}" for step in shown))
curves = {}
for name, error in errors.items():
    curves[name] = np.sum(np.asarray(error) * valid, axis=1) / np.maximum(valid.sum(1), 1)
    print(f"{name:20}" + "".join(f"{1000 * curves[name][step - 1]:10.2f}" for step in shown))

# %% [markdown]
# Above: two of the longest sequences, each with what happened, and below it what was imagined. The model says how likely each row
# and each column is; a cell is as dark as the product. The framed steps are those that it was shown.
#
# Next: `rljax plot --kind openloop RUN` draws such a picture of any run of Dreamer with a decoder, also of images; the
# [tutorial](../notebooks/08_dreamer.ipynb) shows it for CartPole, as a film; the [guide](../docs/guides/dreamer.md) has the
# parts of the algorithm to build on.

# %%
SIZE = 7


def cells(vectors):
    """Return how likely each cell is, f32 `[..., SIZE, SIZE]`, of rows and columns `[..., 2 SIZE]`."""
    rows, columns = (x / x.sum(-1, keepdims=True) for x in np.split(np.clip(vectors, 1e-6, None), 2, axis=-1))
    return rows[..., :, None] * columns[..., None, :]


happened = cells(np.asarray(batch.obs))  # [CONTEXT + AHEAD, SEQUENCES, SIZE, SIZE]
expected = cells(np.asarray(symexp(imagined.prediction.vector)))
moves = np.abs(np.diff(happened, axis=0)).sum((0, 2, 3))
chosen = np.lexsort((-moves, -valid.sum(0)))[:2]  # of the longest, those in which most happens
fig = plt.figure(figsize=(10, 7), layout="constrained")
strips, below = fig.subfigures(2, 1, height_ratios=[2.3, 1])
axes = strips.subplots(4, CONTEXT + AHEAD)
for ax in axes.flat:
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_color("#ced0d4")
for pair, sequence in enumerate(chosen):
    for t in range(CONTEXT + AHEAD):
        above, under = axes[2 * pair, t], axes[2 * pair + 1, t]
        if t < CONTEXT:
            above.spines[:].set(color="#3b6ea5", linewidth=2.5)
            under.set_axis_off()
        elif valid[t - CONTEXT, sequence]:
            under.imshow(expected[t - CONTEXT, sequence], vmin=0, vmax=1, cmap="Blues")
        else:
            above.set_axis_off()
            under.set_axis_off()
            continue
        above.imshow(happened[t, sequence], vmin=0, vmax=1, cmap="Greys")
        if pair == 0 and t >= CONTEXT:
            above.set_title(f"{t - CONTEXT + 1}", fontsize=9)
    axes[2 * pair, 0].set_ylabel("happened", fontsize=9)
    axes[2 * pair + 1, CONTEXT].set_ylabel("imagined", fontsize=9)
strips.suptitle("Steps ahead, from the actions alone", fontsize=10)
ax = below.subplots()
for (name, curve), color in zip(curves.items(), ("#3b6ea5", "#cc4e48", "#8a8a8a"), strict=True):
    ax.plot(np.arange(1, AHEAD + 1), 1000 * curve, "o-", color=color, markersize=3, label=name)
ax.set(xlabel="steps ahead", ylabel="squared error, thousandths", ylim=(0, 1300 * max(x.max() for x in curves.values())))
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, ncols=3, loc="upper left")
fig.savefig(options.out, dpi=150)
