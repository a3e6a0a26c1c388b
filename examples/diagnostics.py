# %% [markdown]
# # A run that goes wrong: what its metrics say
#
# Reinforcement learning fails in silence: the program runs, the return stays low. The metrics of the gradient steps say more.
# Here PPO learns CartPole with a good step size, one that is far too large and one that is far too small, and a logger of our own
# watches.

# %%
import argparse

import matplotlib.pyplot as plt
import numpy as np

import rljax

parser = argparse.ArgumentParser(description="The metrics of a good run and of two bad ones.")
parser.add_argument("--total-timesteps", type=int, default=60_000, help="budget of each run")
parser.add_argument("--out", default="diagnostics.png", help="the picture")
options, _ = parser.parse_known_args()

RUNS = {"as the preset": 3e-3, "step too large": 3e-1, "step too small": 1e-5}
COLORS = {"as the preset": "#3b6ea5", "step too large": "#cc4e48", "step too small": "#8a8a8a"}
PANELS = {
    "episode/return": "return of episodes",
    "train/approx_kl": "KL of an iteration",
    "train/entropy": "entropy in nats",
    "train/clip_fraction": "share of steps that are clipped",
}

# %% [markdown]
# A logger is any object with `start`, `log` and `close`. `fit` gives it the metrics of every iteration, as it gives them to
# TensorBoard (`loggers=["tensorboard"]`). This one keeps the last values and says what is the matter, once for each complaint.


# %%
class Doctor:
    """Look at the metrics of a run with one seed, and say what is wrong with it."""

    WINDOW = 50

    def start(self, run):
        self.seen, self.said = [], set()

    def log(self, step, metrics):
        self.seen.append([metrics[name] for name in PANELS])
        if len(self.seen) < self.WINDOW:
            return
        _, kl, entropy, clipped = np.nanmean(self.seen[-self.WINDOW :], axis=0)
        if kl > 0.1:
            self.say(step, f"KL {kl:.2g}: an iteration moves the policy much too far; a smaller step")
        if clipped > 0.5:
            self.say(step, f"clipped {clipped:.0%} of the steps: most of what was collected teaches nothing; a smaller step")
        if entropy < 0.01:
            self.say(step, f"entropy {entropy:.1g}: the policy is sure and explores no more; a smaller step, or an entropy bonus")
        if kl < 1e-6:
            self.say(step, f"KL {kl:.0e}: the policy hardly moves; a larger step")

    def say(self, step, complaint):
        kind = complaint.split()[0]
        if kind not in self.said:
            print(f"  step {step:,}: {complaint}")
            self.said.add(kind)

    def close(self):
        pass


# %%
preset = rljax.load_config("cartpole_ppo", total_timesteps=options.total_timesteps, eval_every=None)
metrics = {}
for name, rate in RUNS.items():
    print(f"{name}, learning_rate = {rate:g}")
    metrics[name] = rljax.fit(preset.replace(learning_rate=rate), loggers=[Doctor()]).metrics

# %% [markdown]
# What the middle third of each run looks like; at the end the step size is annealed to 0, and no policy moves. In a healthy run,
# KL is small but does not vanish, the entropy falls slowly, and a few percent of the steps are clipped. Zeros everywhere are a
# bad sign: that policy is sure of one action, and nothing moves it.

# %%
print(f"{'run':16}" + "".join(f"{title:>33}" for title in PANELS.values()))
for name, found in metrics.items():
    middle = {key: np.nanmean(np.array_split(found[key], 3)[1]) for key in PANELS}
    print(f"{name:16}" + "".join(f"{middle[key]:33.3g}" for key in PANELS))

# %% [markdown]
# Next: set `target_kl = 0.02` in the run with the large step, which then stops each iteration in time. What every metric means,
# and what to try when it looks wrong: [reading a run](../docs/guides/metrics.md); TensorBoard and other services:
# [loggers](../docs/guides/looking.md#loggers).

# %%
figure, axes = plt.subplots(1, len(PANELS), figsize=(12, 3), layout="constrained")
for ax, (key, title) in zip(axes, PANELS.items(), strict=True):
    for name, found in metrics.items():
        known = np.flatnonzero(np.isfinite(found[key]))  # no episode ends in most iterations of a good run
        parts = np.array_split(known, min(60, len(known)))
        steps = [preset.steps_per_iteration * x.mean() for x in parts]
        ax.plot(steps, [found[key][x].mean() for x in parts], color=COLORS[name], label=name)
    ax.set(title=title, xlabel="steps")
    ax.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
    ax.spines[["top", "right"]].set_visible(False)
axes[1].set_yscale("log")
axes[0].legend(frameon=False)
figure.savefig(options.out, dpi=150)
