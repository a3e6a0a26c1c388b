# %% [markdown]
# # PPO in one file
#
# Proximal policy optimisation (Schulman et al., 2017) written out, line by line: network, rollout, advantages, loss and
# gradient steps. Only the environment is rljax's; change anything. The whole training run is one function from a key to a
# result, so `jax.jit` compiles it and `jax.vmap` trains several seeds. The table compares it with `rljax.make_train`.

# %%
import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import rljax

parser = argparse.ArgumentParser(description="PPO written out, against rljax's.")
parser.add_argument("--total-timesteps", type=int, default=100_000, help="budget of each seed")
parser.add_argument("--out", default="ppo_in_one_file.png", help="the picture")
options, _ = parser.parse_known_args()

SEEDS = 3
ENVS, STEPS, EPOCHS = 4, 16, 10
ITERATIONS = max(options.total_timesteps // (ENVS * STEPS), 1)
GAMMA, LAMBDA, CLIP, VALUE_COEF, LEARNING_RATE = 0.98, 0.8, 0.2, 0.5, 3e-3
COLORS = {"one file": "#cc4e48", "rljax": "#3b6ea5"}
env, params = rljax.make_env("CartPole-v1")

# %% [markdown]
# **The network** has a policy and a value, each with hidden layers of its own. The initial weights are orthogonal, and those of
# the policy's last layer small, so the first policy is nearly uniform and explores.


# %%
class ActorCritic(nn.Module):
    @nn.compact
    def __call__(self, obs):
        def mlp(outputs, gain):
            x = obs
            for _ in range(2):
                x = nn.tanh(nn.Dense(64, kernel_init=rljax.nn.modules.initializers.orthogonal(2**0.5))(x))
            return nn.Dense(outputs, kernel_init=rljax.nn.modules.initializers.orthogonal(gain))(x)

        return mlp(2, 0.01), mlp(1, 1.0)[..., 0]


network = ActorCritic()
schedule = optax.linear_schedule(LEARNING_RATE, 0.0, ITERATIONS * EPOCHS)
optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(schedule))


def log_prob(logits, action):
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


# %% [markdown]
# **The rollout** takes `STEPS` steps in `ENVS` environments. `env.step` begins the next episode by itself and keeps the last
# observation of this one in `info["final_observation"]`. The value there is needed where the time limit cuts an episode off
# (`truncated`): it would have gone on, and the value estimates what was still to come. After a `terminated` episode nothing is.


# %%
def rollout(weights, env_state, obs, key):
    def step(carry, key):
        env_state, obs = carry
        act_key, step_key = jax.random.split(key)
        logits, value = network.apply(weights, obs)
        action = jax.random.categorical(act_key, logits)
        keys = jax.random.split(step_key, ENVS)
        after, env_state, reward, terminated, truncated, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            keys, env_state, action, params
        )
        _, next_value = network.apply(weights, info["final_observation"])
        seen = (obs, action, log_prob(logits, action), value, next_value, reward, terminated, truncated)
        return (env_state, after), seen

    return jax.lax.scan(step, (env_state, obs), jax.random.split(key, STEPS))


# %% [markdown]
# **Generalised advantage estimation** (Schulman et al., 2016) goes through the rollout from its end. An advantage is the error
# of the value at this step, plus what the later steps say about it, faded by `LAMBDA` and cut where an episode ends.


# %%
def advantages(value, next_value, reward, terminated, truncated):
    error = reward + GAMMA * next_value * ~terminated - value
    goes_on = ~(terminated | truncated)

    def step(later, inputs):
        error, goes_on = inputs
        advantage = error + GAMMA * LAMBDA * goes_on * later
        return advantage, advantage

    return jax.lax.scan(step, jnp.zeros(ENVS), (error, goes_on), reverse=True)[1]


# %% [markdown]
# **The loss.** The ratio says how much more likely the new policy is to act as the old one did. Beyond `1 +- CLIP` nothing is
# gained by changing it further. The value goes towards the return.


# %%
def loss(weights, obs, action, old_log_prob, advantage, target):
    logits, value = network.apply(weights, obs)
    ratio = jnp.exp(log_prob(logits, action) - old_log_prob)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    return -gain.mean() + VALUE_COEF * 0.5 * jnp.square(value - target).mean()


# %% [markdown]
# **An iteration** is a rollout, its advantages, and `EPOCHS` gradient steps on all of it. `jax.lax.scan` repeats it.


# %%
def train(key):
    weights_key, reset_key, run_key = jax.random.split(key, 3)
    obs, env_state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, ENVS), params)
    weights = network.init(weights_key, obs)

    def iteration(carry, key):
        weights, opt_state, env_state, obs, running = carry
        (env_state, obs), (seen, action, old, value, next_value, reward, terminated, truncated) = rollout(
            weights, env_state, obs, key
        )
        advantage = advantages(value, next_value, reward, terminated, truncated)
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (seen, action, old, advantage, advantage + value))

        def epoch(carry, _):
            weights, opt_state = carry
            updates, opt_state = optimizer.update(jax.grad(loss)(weights, *batch), opt_state)
            return (optax.apply_updates(weights, updates), opt_state), None

        (weights, opt_state), _ = jax.lax.scan(epoch, (weights, opt_state), length=EPOCHS)

        # Returns of the episodes that ended, for the curve.
        def add(running, inputs):
            reward, done = inputs
            running = running + reward
            return running * ~done, jnp.where(done, running, jnp.nan)

        running, ended = jax.lax.scan(add, running, (reward, terminated | truncated))
        return (weights, opt_state, env_state, obs, running), jnp.nanmean(ended)

    start = (weights, optimizer.init(weights), env_state, obs, jnp.zeros(ENVS))
    (weights, *_), returns = jax.lax.scan(iteration, start, jax.random.split(run_key, ITERATIONS))
    return weights, returns


def greedy_return(weights, key):
    """Return the mean return of 100 episodes in which the likelier action is taken."""
    obs, env_state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(key, 100), params)

    def step(carry, key):
        env_state, obs, total, playing = carry
        action = network.apply(weights, obs)[0].argmax(-1)
        obs, env_state, reward, terminated, truncated, _ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            jax.random.split(key, 100), env_state, action, params
        )
        return (env_state, obs, total + reward * playing, playing & ~(terminated | truncated)), None

    start = (env_state, obs, jnp.zeros(100), jnp.ones(100, bool))
    return jax.lax.scan(step, start, jax.random.split(key, params.max_steps_in_episode))[0][2].mean()


# %% [markdown]
# Three seeds of each, in one program each.

# %%
keys = jax.random.split(jax.random.key(0), SEEDS)
weights, returns = jax.jit(jax.vmap(train))(keys)
config = rljax.load_config("cartpole_ppo", total_timesteps=options.total_timesteps, eval_every=None)
agent = rljax.make_agent(config)
library = jax.jit(jax.vmap(rljax.make_train(config)))(keys)
evaluate = jax.jit(jax.vmap(lambda state: rljax.evaluate(agent, state, jax.random.key(1)).mean()))
scores = {
    "one file": jax.jit(jax.vmap(lambda weights: greedy_return(weights, jax.random.key(1))))(weights),
    "rljax": evaluate(library.state),
}
print(f"{'PPO':10} {'return':>8} {'worst seed':>12}")
for name, score in scores.items():
    print(f"{name:10} {score.mean():8.1f} {score.min():12.1f}")

# %% [markdown]
# Next: give the policy a memory, clip the value's change, or standardise the observations. In the library these are fields of
# the configuration ([networks](../docs/guides/networks.md)), and [own the loop](../docs/guides/own_loop.md) replaces one part
# only.

# %%
fig, ax = plt.subplots(figsize=(10, 4), layout="constrained")
for name, curves in (("one file", returns), ("rljax", library.metrics["episode/return"])):
    parts = np.array_split(np.asarray(curves), 40, axis=1)
    curve = np.array([np.nanmean(part, axis=1) if part.size else np.full(SEEDS, np.nan) for part in parts])
    steps = np.linspace(0, options.total_timesteps / 1000, len(curve) + 1)[1:]
    ax.plot(steps, curve, color=COLORS[name], alpha=0.35, linewidth=1)
    ax.plot(steps, curve.mean(1), color=COLORS[name], linewidth=2.5, label=name)
ax.axhline(500, color="#2d3440", linestyle="--", linewidth=1)
ax.set(xlabel="environment steps, thousands", ylabel="return of an episode", title="PPO written out learns as the library's does")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
fig.savefig(options.out, dpi=150)
