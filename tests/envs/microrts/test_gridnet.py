"""The heads of "gridnet" that an order does not need: the action space names them, and the game does not read them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rljax.envs import make_env
from rljax.envs.microrts.actions import orders_of_gridnet
from rljax.envs.microrts.rules.units import HEADS
from rljax.nn.outputs.actions import action_head
from tests.envs.play import QUICK


def test_exactly_the_heads_that_are_not_read_change_no_order() -> None:
    env, params = make_env("MicroRTS-v0", map_name="melee4x4light2", actions="gridnet")
    space = env.action_space(params)
    _, state = env.reset_env(jax.random.key(0), params)
    state = state.replace(owner=jnp.zeros_like(state.owner))
    orders = jax.jit(jax.vmap(lambda a: orders_of_gridnet(state, a)), compiler_options=QUICK)
    random = np.random.default_rng(0)
    heads = np.tile(HEADS, 16)
    action = random.integers(0, heads, (100, 2, len(heads)))
    first = np.stack(jax.tree.leaves(orders(action)))
    for head in range(len(HEADS)):
        # The head of all cells takes another action; the orders of a cell do not depend on those of others.
        changed = action.copy()
        changed[..., head :: len(HEADS)] = (changed[..., head :: len(HEADS)] + 1) % HEADS[head]
        differs = (np.stack(jax.tree.leaves(orders(changed))) != first).any(0).reshape(100, 16)
        for cell in range(16):
            condition = space.only_if[len(HEADS) * cell + head]
            read = np.ones(100, bool) if condition is None else np.isin(action[:, 0, condition[0]], condition[1])
            np.testing.assert_array_equal(differs[:, cell], read)


def test_policies_leave_them_out_of_log_probabilities() -> None:
    env, params = make_env("MicroRTS-v0", map_name="melee4x4light2", actions="gridnet")
    head = action_head(env.action_space(params))
    distribution = head.distribution(jnp.zeros((2, head.num_outputs)), None)
    # Cell by cell: to wait reads no other head, a production reads a direction and a type, an attack a target.
    kinds = np.zeros((2, 16, len(HEADS)), np.int32)
    kinds[1, 0, 0], kinds[1, 1, 0] = 4, 5
    found = distribution.log_prob(kinds.reshape(2, -1))
    waits = -16 * np.log(6)
    np.testing.assert_allclose(found, [waits, waits - np.log(4 * 7) - np.log(49)], rtol=1e-5)
