# %% [markdown]
# # A replay buffer from parts: Q-learning in one function
#
# A replay buffer of `rljax.collect.replay` is a tree of arrays on the device, with a few pure functions. With them an
# off-policy learner fits on a page. This one is DQN (Mnih et al., 2015), and with one line changed double DQN (van Hasselt et
# al., 2016): the network that acts also chooses the action at which the target network is read, so noise in the values is not
# taken for worth.

# %%
import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import rljax
from rljax.collect.replay import Transition, add_rows, init_replay, sample_windows, take

parser = argparse.ArgumentParser(description="DQN and double DQN from the parts of the replay buffer.")
parser.add_argument("--total-timesteps", type=int, default=100_000, help="budget of each seed")
parser.add_argument("--out", default="replay_parts.png", help="the picture")
options, _ = parser.parse_known_args()

SEEDS, ENVS, STEPS, BATCH = 3, 8, 8, 128
GAMMA, LEARNING_RATE, CAPACITY, UPDATES, TAU = 0.99, 5e-4, 8_000, 16, 0.01
ITERATIONS = max(options.total_timesteps // (ENVS * STEPS), 1)
COLORS = {"DQN": "#cc4e48", "double DQN": "#3b6ea5"}
env, params = rljax.make_env("CartPole-v1")


class Values(nn.Module):
    @nn.compact
    def __call__(self, obs):
        for _ in range(2):
            obs = nn.relu(nn.LayerNorm()(nn.Dense(64)(obs)))
        return nn.Dense(2)(obs)


network, optimizer = Values(), optax.adam(LEARNING_RATE)

# %% [markdown]
# The buffer holds `CAPACITY` steps of each environment. `init_replay` takes an example of one step; `add_rows` writes several
# steps of all environments, over the oldest ones; `sample_windows` draws places, and `take` reads them.
#
# `truncated` is kept apart from `terminated`: an episode that the time limit cuts off would have gone on, so the value of what
# follows counts. `next_obs` is the last observation of the episode then, not the first one of the next.


# %%
def train(key, double):
    weights_key, reset_key, run_key = jax.random.split(key, 3)
    obs, env_state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, ENVS), params)
    weights = network.init(weights_key, obs)
    example = Transition(obs[0], jnp.int32(0), jnp.float32(0), jnp.array(False), jnp.array(False), obs[0], None)
    buffer = init_replay(example, CAPACITY, ENVS)

    def iteration(carry, inputs):
        weights, target, opt_state, buffer, env_state, obs = carry
        key, progress = inputs
        epsilon = jnp.maximum(1.0 - 2.0 * progress, 0.05)  # explores at random at first, and hardly from half of the run on
        act_key, sample_key = jax.random.split(key)

        def step(carry, key):
            env_state, obs = carry
            explore_key, random_key, step_key = jax.random.split(key, 3)
            explores = jax.random.uniform(explore_key, (ENVS,)) < epsilon
            action = jnp.where(explores, jax.random.randint(random_key, (ENVS,), 0, 2), network.apply(weights, obs).argmax(-1))
            keys = jax.random.split(step_key, ENVS)
            after, env_state, reward, terminated, truncated, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
                keys, env_state, action, params
            )
            seen = Transition(obs, action, reward, terminated, truncated, info["final_observation"], None)
            return (env_state, after), seen

        (env_state, obs), rows = jax.lax.scan(step, (env_state, obs), jax.random.split(act_key, STEPS))
        buffer = add_rows(buffer, rows)

        def update(carry, key):
            weights, target, opt_state = carry
            batch = take(buffer, sample_windows(buffer, jax.random.bits(key, (BATCH,))))

            def loss(weights):
                after = network.apply(target, batch.next_obs)
                chosen = (network.apply(weights, batch.next_obs) if double else after).argmax(-1)
                worth = jnp.take_along_axis(after, chosen[:, None], axis=-1)[:, 0]
                goal = jax.lax.stop_gradient(batch.reward + GAMMA * ~batch.terminated * worth)
                value = jnp.take_along_axis(network.apply(weights, batch.obs), batch.action[:, None], axis=-1)[:, 0]
                return optax.huber_loss(value, goal).mean(), value.mean()

            (_, value), gradient = jax.value_and_grad(loss, has_aux=True)(weights)
            changes, opt_state = optimizer.update(gradient, opt_state)
            weights = optax.apply_updates(weights, changes)
            target = optax.incremental_update(weights, target, TAU)
            return (weights, target, opt_state), value

        learners, values = jax.lax.scan(update, (weights, target, opt_state), jax.random.split(sample_key, UPDATES))
        # Of an environment that gives 1 a step, the mean length of an episode is steps by ends.
        ends = (rows.terminated | rows.truncated).sum()
        return (*learners, buffer, env_state, obs), (values.mean(), ends)

    start = (weights, weights, optimizer.init(weights), buffer, env_state, obs)
    progress = jnp.arange(ITERATIONS) / ITERATIONS
    (weights, *_), (values, ends) = jax.lax.scan(iteration, start, (jax.random.split(run_key, ITERATIONS), progress))
    return weights, values, ends


def play(weights, key):
    """Return the mean greedy return of 50 episodes, and what the network says it will be (discounted)."""
    obs, env_state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(key, 50), params)
    promised = network.apply(weights, obs).max(-1).mean()

    def step(carry, key):
        env_state, obs, total, worth, playing, t = carry
        action = network.apply(weights, obs).argmax(-1)
        obs, env_state, reward, terminated, truncated, _ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            jax.random.split(key, 50), env_state, action, params
        )
        total, worth = total + reward * playing, worth + GAMMA**t * reward * playing
        return (env_state, obs, total, worth, playing & ~(terminated | truncated), t + 1), None

    start = (env_state, obs, jnp.zeros(50), jnp.zeros(50), jnp.ones(50, bool), 0)
    (_, _, total, worth, _, _), _ = jax.lax.scan(step, start, jax.random.split(key, params.max_steps_in_episode))
    return total.mean(), promised, worth.mean()


# %% [markdown]
# `promised` is what the network expects from the start of an episode, `got` the discounted return that followed.

# %%
keys, results = jax.random.split(jax.random.key(0), SEEDS), {}
print(f"{'learner':12} {'return':>8} {'promised':>9} {'got':>6}")
for name, double in (("DQN", False), ("double DQN", True)):
    results[name] = jax.jit(jax.vmap(lambda key, double=double: train(key, double)))(keys)
    total, promised, got = jax.jit(jax.vmap(lambda weights: play(weights, jax.random.key(1))))(results[name][0])
    print(f"{name:12} {total.mean():8.1f} {promised.mean():9.1f} {got.mean():6.1f}")

# %% [markdown]
# Next: n-step returns (`take_n_step`), priorities, or sequences for a network with memory (`sample_sequences`), all in
# `rljax.collect.replay`; `rljax.DQNConfig` has them as fields. [Own the loop](../docs/guides/own_loop.md) lists the parts.

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for name, (_, values, ends) in results.items():
    parts = [np.asarray(part) for part in np.array_split(np.asarray(ends), 30, axis=1) if part.shape[1]]
    lengths = np.array([part.shape[1] * ENVS * STEPS / np.maximum(part.sum(1), 1) for part in parts])
    steps = np.linspace(0, options.total_timesteps / 1000, len(lengths) + 1)[1:]
    left.plot(steps, lengths, color=COLORS[name], alpha=0.35, linewidth=1)
    left.plot(steps, lengths.mean(1), color=COLORS[name], linewidth=2.5, label=name)
    steps = np.linspace(0, options.total_timesteps / 1000, ITERATIONS)
    right.plot(steps, np.asarray(values).T, color=COLORS[name], alpha=0.8, linewidth=1)
right.axhline((1 - GAMMA**500) / (1 - GAMMA), color="#2d3440", linestyle="--", linewidth=1)
left.set(ylabel="steps of an episode", title="Episodes while it explores")
right.set(ylabel="mean value of a batch", title="Promised (dashed: the most there is)")
for ax in (left, right):
    ax.set_xlabel("environment steps, thousands")
    ax.spines[["top", "right"]].set_visible(False)
left.legend(frameon=False)
fig.savefig(options.out, dpi=150)
