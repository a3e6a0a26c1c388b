"""A user's program, type-checked against the installed wheel: the public names exist and their types fit together."""

import jax

import rljax
from rljax.envs import CartPole

config: rljax.PPOConfig = rljax.PPOConfig(env=CartPole(), total_timesteps=10_000, learning_rate=1e-3)
changed: rljax.PPOConfig = config.replace(learning_rate=3e-4)
agent: rljax.Agent = rljax.make_agent(changed)
result: rljax.TrainResult = jax.jit(rljax.make_train(changed))(jax.random.key(0))
returns: jax.Array = rljax.evaluate(agent, result.state, jax.random.key(1), num_episodes=10)
last: float = float(result.metrics["episode/return"][-1])
