# %% [markdown]
# # Your own game
#
# A game is an environment with a leading axis of players. Here it is a small form of Nim: in turns the players take one, two or
# three stones from a heap, and who takes the last one wins. An agent learns it by playing against itself. The game is solved, so
# afterwards every position can be checked: who moves wins by leaving a multiple of four, and cannot win from one.

# %%
import argparse
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rljax
from rljax import Box, Discrete, Game

parser = argparse.ArgumentParser(description="A game by self-play, compared with its theory.")
parser.add_argument("--total-timesteps", type=int, default=200_000, help="budget of training")
parser.add_argument("--out", default="own_game.png", help="the picture")
options, _ = parser.parse_known_args()

STONES, MOST = 21, 3
"""Most stones that a game begins with, and the most that a move takes."""

# %% [markdown]
# The rules. Observations, masks and rewards have a row for each player. `to_move` says whose turn it is: what the other player
# returns as its action is ignored, so all of its actions are legal.


# %%
class State(NamedTuple):
    """`stones`: how many are left; `time`: number of moves played; both i32 `[]`."""

    stones: jax.Array
    time: jax.Array


class TakeStones(Game):
    """Two players take 1 to 3 stones in turns from a heap; who takes the last one wins. Action: the number, less one."""

    name = "TakeStones"
    default_params = None

    def observation_space(self, params):
        return Box(0.0, 1.0, (STONES + 1,))

    def action_space(self, params):
        return Discrete(MOST)

    def to_move(self, state):
        return jnp.arange(2) == state.time % 2

    def action_mask(self, state, params):
        legal = jnp.arange(1, MOST + 1) <= state.stones
        return legal | ~self.to_move(state)[:, None]

    def observe(self, state, params):
        return jnp.tile(jax.nn.one_hot(state.stones, STONES + 1), (2, 1))  # both players see the heap

    def reset_env(self, key, params):
        state = State(jax.random.randint(key, (), 1, STONES + 1), jnp.int32(0))
        return self.observe(state, params), state

    def step_env(self, key, state, action, params):
        mover = state.time % 2
        after = State(state.stones - (action[mover] + 1), state.time + 1)
        over = after.stones == 0
        reward = jnp.where(over, jnp.where(jnp.arange(2) == mover, 1.0, -1.0), 0.0)
        return self.observe(after, params), after, reward, over, {}


rljax.check_environment(TakeStones())

# %% [markdown]
# The check above plays the game at random and says in one line what does not fit: a mask of the wrong shape, an observation
# outside its space, a step that needs Python. Now the game goes where the name of an environment goes.

# %%
config = rljax.SelfPlayConfig(
    env=TakeStones(),
    total_timesteps=options.total_timesteps,
    num_envs=64,
    num_steps=16,
    num_epochs=4,
    num_minibatches=4,
    learning_rate=2e-3,
    ent_coef=0.02,
    gamma=1.0,
    network={"hidden": [64, 64]},
)
agent = rljax.make_agent(config)
result = jax.jit(rljax.make_train(config))(jax.random.key(0))

# %% [markdown]
# Every position, from the view of who is to move.

# %%
stones = np.arange(1, STONES + 1)
states = jax.vmap(lambda n: State(n, jnp.int32(0)))(jnp.asarray(stones))
obs = jax.vmap(lambda s: TakeStones().observe(s, None)[0])(states)
mask = jax.vmap(lambda s: TakeStones().action_mask(s, None)[0])(states)
can_win = stones % (MOST + 1) > 0


def share_right(taken):
    """Return the share of moves that leave a multiple of four, `[..., STONES]`, where that can be done."""
    return np.mean(((stones - taken) % (MOST + 1) == 0)[..., can_win])


greedy = np.asarray(agent.act(result.state, obs, None, jax.random.key(1), True, mask)[0]) + 1
drawn = [agent.act(result.state, obs, None, key, False, mask)[0] for key in jax.random.split(jax.random.key(2), 500)]
drawn = np.stack(drawn) + 1
chance = np.asarray(jax.random.categorical(jax.random.key(3), jnp.where(mask, 0.0, -jnp.inf), shape=(500, STONES))) + 1
print(f"{'player':24} {'right moves':>12} {'positions':>10}")
for name, taken in (("self-play, likeliest", greedy), ("self-play, drawn", drawn), ("at random", chance)):
    print(f"{name:24} {share_right(taken):12.2f} {can_win.sum():10d}")

# %% [markdown]
# Next: `rljax play` plays a run against you in the terminal, `text` and `render` draw the board, chance and hidden information
# have a place of their own, and a league or a search may find what self-play misses: the [guide](../docs/guides/games.md) has
# all of it.

# %%
fig, ax = plt.subplots(figsize=(9, 2.8), layout="constrained")
policy = np.stack([np.mean(drawn == n, axis=0) for n in range(1, MOST + 1)])
edges = (0.5, STONES + 0.5, 0.5, MOST + 0.5)
image = ax.imshow(policy, vmin=0, vmax=1, cmap="Blues", origin="lower", aspect="auto", extent=edges)
ax.plot(stones[can_win], stones[can_win] % (MOST + 1), "o", color="#cc4e48", markersize=5, label="the winning move")
ax.set(xlabel="stones left", ylabel="stones taken", xticks=stones, yticks=range(1, MOST + 1), title="What the agent takes")
ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1))
fig.colorbar(image, label="probability")
fig.savefig(options.out, dpi=150)
