# %% [markdown]
# # An agent without JAX: the policy in NumPy
#
# Where an agent is used there is often no JAX: in a game, on a small computer, in a service that must start at once.
# `rljax.export_numpy` writes a folder with two files: `policy.py`, which needs NumPy alone, and the weights. Here a policy with
# memory is trained on the T-maze, exported, and plays the same mazes as the agent in JAX does.

# %%
import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import rljax

parser = argparse.ArgumentParser(description="A policy in NumPy beside the agent in JAX.")
parser.add_argument("--total-timesteps", type=int, default=80_000, help="budget of the training")
parser.add_argument("--out", default="numpy_policy.png", help="the picture")
options, _ = parser.parse_known_args()

MAZES = 20
COLORS = {"NumPy": "#3b6ea5", "JAX": "#cc4e48"}

# %%
config = rljax.load_config("tmaze_ppo_gru", total_timesteps=options.total_timesteps, eval_every=None)
agent = rljax.make_agent(config)
state = jax.jit(rljax.make_train(agent))(jax.random.key(0)).state
folder = Path(tempfile.mkdtemp()) / "policy_in_numpy"
report = rljax.export_numpy(agent, state, folder)
print(", ".join(f"{name}: {size / 1000:.0f} kB" for name, size in report.files.items()))

# %% [markdown]
# Another process, which imports neither JAX nor rljax. A step takes the observation and the carry (what is remembered), and
# returns the action and the next carry. A carry of None begins an episode.

# %%
PROGRAM = """
import sys
import numpy as np
from policy import Policy
policy, obs = Policy(), np.zeros(int(sys.argv[1]), np.float32)
action, carry = policy.step(obs)
action, carry = policy.step(obs, carry)
assert "jax" not in sys.modules and "rljax" not in sys.modules
print("two steps without JAX; the last action:", action)
"""
env, params = rljax.make_env("TMaze-v0")
size = env.observation_space(params).shape[0]
print(subprocess.run([sys.executable, "-c", PROGRAM, str(size)], cwd=folder, capture_output=True, text=True, check=True).stdout)

# %% [markdown]
# In this process, both play the same mazes, one step at a time.

# %%
sys.path.insert(0, str(folder))
from policy import Policy  # noqa: E402

policy = Policy()
step, reset = jax.jit(env.step), jax.jit(env.reset)
act = jax.jit(lambda obs, carry: agent.act(state, obs, carry, jax.random.key(0), deterministic=True))
players = {"NumPy": lambda obs, carry: policy.step(np.asarray(obs), carry), "JAX": act}
actions, times = {name: [] for name in players}, {name: [] for name in players}
print(f"{'policy':10} {'return':>8} {'microseconds':>13}")
for name, choose in players.items():
    obs, _ = reset(jax.random.key(0), params)
    jax.block_until_ready(choose(obs, choose(obs, None)[1]))  # JAX compiles here, the beginning and the rest of an episode
    returns = []
    for maze in range(MAZES):
        obs, env_state = reset(jax.random.key(maze), params)
        carry, over, total = None, False, 0.0
        while not over:
            obs = jax.block_until_ready(obs)
            start = time.perf_counter()
            action, carry = jax.block_until_ready(choose(obs, carry))
            times[name].append(time.perf_counter() - start)
            actions[name].append(int(action))
            obs, env_state, reward, terminated, truncated, _ = step(jax.random.key(maze), env_state, action, params)
            total, over = total + float(reward), bool(terminated | truncated)
        returns.append(total)
    print(f"{name:10} {np.mean(returns):8.2f} {1e6 * np.median(times[name]):13.0f}")
same = sum(a == b for a, b in zip(actions["NumPy"], actions["JAX"], strict=False))
print(f"the same action in {same} of {len(actions['JAX'])} steps")

# %% [markdown]
# Next: the same policy in a browser or in any program that has an ONNX runtime: [exporting](../docs/guides/exporting.md).

# %%
fig, ax = plt.subplots(figsize=(10, 3.2), layout="constrained")
bins = np.geomspace(min(map(min, times.values())) * 1e6, max(map(max, times.values())) * 1e6, 60)
for name, seconds in times.items():
    ax.hist(np.array(seconds) * 1e6, bins=bins, color=COLORS[name], alpha=0.8, label=name)
ax.set(xscale="log", xlabel="microseconds for an action", ylabel="steps", title="One environment, one step at a time")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
fig.savefig(options.out, dpi=150)
