# %% [markdown]
# # Memory: networks that remember
#
# In the T-maze, a sign at the start of a corridor says which way to turn at its end. In between, all observations are the same,
# so a policy without memory can only guess: its mean return is 0. A GRU or an LSTM remembers the sign and gets 1. The `network`
# table of the configuration adds memory: `network = { type = "gru" }`.

# %%
import argparse

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rljax

parser = argparse.ArgumentParser(description="GRU and LSTM against a network without memory, on the T-maze.")
parser.add_argument("--total-timesteps", type=int, default=80_000, help="budget of each seed")
parser.add_argument("--out", default="memory.png", help="the picture")
options, _ = parser.parse_known_args()

SEEDS = 3
COLORS = {"GRU": "#3b6ea5", "LSTM": "#4e9a68", "no memory": "#cc4e48"}

# %% [markdown]
# Train three kinds of network, three seeds of each in one program.

# %%
gru = rljax.load_config("tmaze_ppo_gru", total_timesteps=options.total_timesteps, eval_every=None)
arms = {
    "GRU": gru,
    "LSTM": gru.replace(network={**gru.network, "type": "lstm"}),
    "no memory": gru.replace(network={"type": "mlp", "hidden": [32, 32]}),
}
results, agents = {}, {name: rljax.make_agent(config) for name, config in arms.items()}
print(f"{'network':12} {'return':>8} {'worst seed':>12}")
for name, config in arms.items():
    results[name] = jax.jit(jax.vmap(rljax.make_train(config)))(jax.random.split(jax.random.key(0), SEEDS))
    play = jax.jit(jax.vmap(lambda state, agent=agents[name]: rljax.evaluate(agent, state, jax.random.key(1)).mean()))
    returns = play(results[name].state)
    print(f"{name:12} {returns.mean():8.2f} {returns.min():12.2f}")

# %% [markdown]
# To play, pass the carry that `act` returns to its next call. `None` starts an episode, and so do zeros: in a batch of
# environments, set the carry of those whose episode has ended to 0. Here the policy plays 16 mazes in parallel, one step at a
# time.

# %%
agent, state = agents["GRU"], jax.tree.map(lambda x: x[0], results["GRU"].state)
env, params = rljax.make_env("TMaze-v0")
act = jax.jit(agent.act, static_argnames="deterministic")
step = jax.jit(jax.vmap(env.step, in_axes=(0, 0, 0, None)))


def forget(carry, done):
    """Set the carry to 0 where an episode is over."""
    return jax.tree.map(lambda x: jnp.where(done[:, None], 0.0, x), carry)


obs, env_state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(jax.random.key(2), 16), params)
side, carry, memories = env_state.side, None, []
for t in range(params.length + 1):
    action, carry = act(state, obs, carry, jax.random.key(t), deterministic=True)
    memories.append(carry)
    keys = jax.random.split(jax.random.key(t), 16)
    obs, env_state, reward, terminated, truncated, _ = step(keys, env_state, action, params)
    carry = forget(carry, terminated | truncated)
print(f"return of 16 mazes played step by step: {reward.mean():.2f}")

# %% [markdown]
# Left: all seeds. Right: the unit of the GRU that differs most between the two signs at the junction, in each of the 16 mazes.
# The sign was visible at step 0 only; the unit still shows it at the end.
#
# Next: a longer corridor, `env_params = { length = 20 }`; [a network of your own](own_network.py) with memory; or several [frames
# at once](wrappers.py), where the last few observations are enough.

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for name, result in results.items():
    parts = np.array_split(np.asarray(result.metrics["episode/return"]), 20, axis=1)
    curve = np.array([np.nanmean(part, axis=1) for part in parts])
    steps = np.linspace(0, options.total_timesteps / 1000, len(curve) + 1)[1:]
    left.plot(steps, curve, color=COLORS[name], alpha=0.35, linewidth=1)
    left.plot(steps, curve.mean(1), color=COLORS[name], linewidth=2.5, label=name)
left.set(
    xlabel="environment steps, thousands",
    ylabel="return of an episode",
    title="Solved with memory, chance without",
    ylim=(-1.1, 1.1),
)
left.legend(frameon=False)

units = np.asarray(jnp.stack(memories))  # [steps, mazes, units]
best = np.abs(units[-1, side == 0].mean(0) - units[-1, side == 1].mean(0)).argmax()
for name, value, color in (("sign: left", 0, "#e8b042"), ("sign: right", 1, "#3b6ea5")):
    lines = right.plot(units[:, side == value, best], color=color, alpha=0.7)
    lines[0].set_label(name)
right.set(xlabel="step of the episode", ylabel=f"unit {best} of the GRU", title="What is remembered of the sign")
right.legend(frameon=False)
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
fig.savefig(options.out, dpi=150)
