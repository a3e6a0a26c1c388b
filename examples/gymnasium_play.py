# %% [markdown]
# # Play in Gymnasium
#
# Train in JAX, play anywhere: an exported policy takes Gymnasium's observations and returns actions that Gymnasium's `step`
# accepts: a Python `int` for Discrete, a NumPy array for Box. Here the policy is trained on rljax's CartPole, plays Gymnasium's,
# and is compared with random actions.

# %%
import argparse
import tempfile
from pathlib import Path

import gymnasium
import jax
import matplotlib.pyplot as plt
import numpy as np

import rljax

parser = argparse.ArgumentParser(description="A policy trained with rljax plays Gymnasium's CartPole.")
parser.add_argument("--total-timesteps", type=int, default=100_000, help="budget of the training")
parser.add_argument("--out", default="gymnasium_play.png", help="the picture")
options, _ = parser.parse_known_args()

EPISODES = 10

# %%
config = rljax.load_config("cartpole_ppo", total_timesteps=options.total_timesteps, eval_every=None)
agent = rljax.make_agent(config)
state = jax.jit(rljax.make_train(agent))(jax.random.key(0)).state
folder = Path(tempfile.mkdtemp()) / "policy"
rljax.export_policy(agent, state, folder, onnx=False)  # from here on neither the agent nor its environment is needed
policy = rljax.load_policy(folder)

# %% [markdown]
# Next: the same policy [in NumPy](numpy_policy.py) or [on a web page](web_page.py); or train on a simulator of Gymnasium itself,
# `env = "gymnasium:Ant-v5"`: [simulators](../docs/guides/simulators.md).


# %%
def play(choose, seed):
    """Play an episode; return its observations `[steps, 4]` and its return. `choose` maps an observation to an action."""
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=seed)
    seen, total, over = [obs], 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(choose(obs))
        seen.append(obs)
        total += reward
        over = terminated or truncated
    return np.array(seen), total


generator = np.random.default_rng(0)
players = {
    "trained": (policy.greedy, "#3b6ea5"),
    "at random": (lambda _: generator.integers(2), "#cc4e48"),
}
fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.4), layout="constrained")
print(f"{'player':12} {'return':>8} {'worst':>8}")
for name, (choose, color) in players.items():
    episodes = [play(choose, seed) for seed in range(EPISODES)]
    returns = np.array([total for _, total in episodes])
    print(f"{name:12} {returns.mean():8.1f} {returns.min():8.1f}")
    for i, (seen, _) in enumerate(episodes):
        label = name if i == 0 else None
        axes[0].plot(seen[:, 0], color=color, alpha=0.5, linewidth=1, label=label)
        axes[1].plot(np.degrees(seen[:, 2]), color=color, alpha=0.5, linewidth=1)
for ax, what in zip(axes, ("position of the cart", "angle of the pole, degrees"), strict=True):
    ax.set(xlabel="step", ylabel=what)
    ax.spines[["top", "right"]].set_visible(False)
axes[0].legend(frameon=False)
fig.suptitle("Gymnasium's CartPole-v1, ten episodes each")
fig.savefig(options.out, dpi=150)
