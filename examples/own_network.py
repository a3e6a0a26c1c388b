# %% [markdown]
# # Your own network
#
# In Python, `network` may be any flax module. One without memory maps observations `[B, ...]` to `(outputs [B, actions],
# value [B])`. One with memory has four methods instead, of which only `advance` runs inside the scan over time: `embed` sees
# all steps of a rollout at once before it, `heads` after it. Resets at the ends of episodes, the carry in the state, minibatches
# of whole trajectories, evaluation and recording then work as for built-in networks. The example trains the minimal gated unit
# (Zhou et al., 2016) on the T-maze, which a network without memory cannot solve.

# %%
import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rljax

parser = argparse.ArgumentParser(description="A network of one's own, with memory and without.")
parser.add_argument("--total-timesteps", type=int, default=100_000, help="budget of each seed")
parser.add_argument("--out", default="own_network.png", help="the picture")
options, _ = parser.parse_known_args()

SEEDS, ACTIONS = 3, 3


# %%
class Minimal(nn.Module):
    """A minimal gated unit: `f = sigmoid(x_f + U_f h)`, `h' = (1 - f) h + f tanh(x_h + U_h (f h))`."""

    size: int = 32

    def setup(self):
        self.encoder = nn.Dense(2 * self.size)
        self.forget = nn.Dense(self.size, use_bias=False, kernel_init=nn.initializers.orthogonal())
        self.candidate = nn.Dense(self.size, use_bias=False, kernel_init=nn.initializers.orthogonal())
        self.policy = nn.Dense(ACTIONS, kernel_init=nn.initializers.normal(0.01))
        self.value = nn.Dense(1)

    def initial_carry(self, batch):  # zeros [*batch, ...] begin an episode
        return jnp.zeros((*batch, self.size))

    def embed(self, obs):  # obs [B, 4] -> x [B, ...]
        return self.encoder(obs)

    def advance(self, carry, x):  # one step
        x_forget, x_candidate = jnp.split(x, 2, axis=-1)
        forget = nn.sigmoid(x_forget + self.forget(carry))
        return (1 - forget) * carry + forget * jnp.tanh(x_candidate + self.candidate(forget * carry))

    def heads(self, carry, x, privileged):  # -> (outputs [..., ACTIONS], value [...])
        return self.policy(carry), self.value(carry)[..., 0]


class Memoryless(nn.Module):
    """The control: obs [B, 4] -> (outputs [B, ACTIONS], value [B])."""

    @nn.compact
    def __call__(self, obs):
        x = nn.tanh(nn.Dense(64)(obs))
        return nn.Dense(ACTIONS, kernel_init=nn.initializers.normal(0.01))(x), nn.Dense(1)(x)[..., 0]


# %% [markdown]
# Next: change `advance`, say to a gate that forgets nothing; [networks and actions](../docs/guides/networks.md#memory) has the
# networks with memory that are there, to compare with.

# %%
preset = rljax.load_config("tmaze_ppo_gru", total_timesteps=options.total_timesteps, eval_every=None)
arms = {"minimal gated unit": (Minimal(), "#3b6ea5"), "without memory": (Memoryless(), "#cc4e48")}
fig, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
print(f"{'network':20} {'return':>8} {'worst seed':>12}")
for name, (network, color) in arms.items():
    config = preset.replace(network=network)
    agent = rljax.make_agent(config)
    result = jax.jit(jax.vmap(rljax.make_train(config)))(jax.random.split(jax.random.key(0), SEEDS))
    play = jax.jit(jax.vmap(lambda state, agent=agent: rljax.evaluate(agent, state, jax.random.key(1)).mean()))
    returns = play(result.state)
    print(f"{name:20} {returns.mean():8.2f} {returns.min():12.2f}")

    parts = np.array_split(np.asarray(result.metrics["episode/return"]), 20, axis=1)
    curve = np.array([np.nanmean(part, axis=1) for part in parts])
    steps = np.linspace(0, options.total_timesteps / 1000, len(curve) + 1)[1:]
    ax.plot(steps, curve, color=color, alpha=0.35, linewidth=1)
    ax.plot(steps, curve.mean(1), color=color, linewidth=2.5, label=name)
ax.set(xlabel="environment steps, thousands", ylabel="return of an episode", title="The T-maze", ylim=(-1.1, 1.1))
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
fig.savefig(options.out, dpi=150)
