"""Policies for each cell of a grid."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.errors import ConfigError
from rljax.nn.actor_critic import make_network
from rljax.nn.cells import num_cells
from rljax.nn.policy import Policy
from rljax.nn.spec import read_network

GRID = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 4, 6)), jnp.float32)
TABLE = {"encoder": "cells", "channels": [8, 8], "kernels": [3, 1], "hidden": [16]}
NETWORK = make_network(TABLE, 5 * 4 * 7)


@pytest.mark.parametrize(("kernels", "dilations"), [([3, 1], [1, 1]), ([3, 3], [2, 3])])
def test_outputs_are_those_of_the_cells_by_xlas_convolution(kernels: list[int], dilations: list[int]) -> None:
    network = make_network({**TABLE, "kernels": kernels, "dilations": dilations}, 5 * 4 * 7)
    params = network.init(jax.random.key(1), GRID)
    outputs, value = network.apply(params, GRID)
    assert outputs.shape == (3, 5 * 4 * 7)
    assert value.shape == (3,)
    p = params["params"]
    x = GRID
    for i in range(2):
        kernel, bias = p[f"conv_{i}"]["kernel"], p[f"conv_{i}"]["bias"]
        dimensions, apart = ("NHWC", "HWIO", "NHWC"), (dilations[i], dilations[i])
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", rhs_dilation=apart, dimension_numbers=dimensions)
        x = jax.nn.relu(x + bias)
    mean = jnp.mean(x, axis=(1, 2))
    for row in range(5):
        for column in range(4):
            both = jnp.concatenate([x[:, row, column], mean], axis=-1)
            expected = both @ p["policy_head"]["kernel"] + p["policy_head"]["bias"]
            start = (row * 4 + column) * 7
            np.testing.assert_allclose(outputs[:, start : start + 7], expected, rtol=1e-4, atol=1e-5)
    whole = jnp.concatenate([mean, jnp.max(x, axis=(1, 2))], axis=-1)
    hidden = jax.nn.relu(whole @ p["value_0"]["kernel"] + p["value_0"]["bias"])
    np.testing.assert_allclose(value, (hidden @ p["value_head"]["kernel"] + p["value_head"]["bias"])[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"encoder": "cells", "kernels": [2, 3], "channels": [4, 4]}, r"network.kernels = \[2, 3\]: expected odd numbers"),
        ({"encoder": "cells", "goal": "film"}, "network.goal = 'film': is not for encoder = 'cells'"),
        ({"encoder": "cells", "strides": [2]}, "network.strides: belongs to encoder = 'cnn', but the encoder is 'cells'"),
        ({"encoder": "cnn", "dilations": [2]}, "network.dilations: belongs to encoder = 'cells', but the encoder is 'cnn'"),
        ({"encoder": "cells", "dilations": [2]}, "expected channels, kernels and dilations of one length, at least 1, got"),
    ],
)
def test_what_a_policy_for_cells_does_not_have_is_refused(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_network(table, heads=True)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("kind", ["gru", "lstm", "block_gru"])
def test_a_memory_of_the_grid_joins_every_cell_and_the_value(kind: str, channels: int) -> None:
    convolutions = {"channels": [8] * channels, "kernels": [3] * channels}
    network = make_network({**TABLE, **convolutions, "type": kind, "size": 16}, 5 * 4 * 7, num_cells=5 * 4)
    policy = Policy(network, (3,))
    params = policy.init(jax.random.key(1), GRID)
    steps = jnp.stack([GRID, GRID + 1.0, GRID])
    carry, seen = policy.initial_carry((3,)), []
    for obs in steps:
        *position, carry = policy.apply(params, obs, carry)
        seen.append(position)
    (outputs, value), (_, _), (later, later_value) = seen
    assert outputs.shape == (3, 5 * 4 * 7)
    # The same observation, after another one between: each cell of each grid has other outputs.
    assert (outputs != later).reshape(3, 20, 7).any(-1).all()
    assert (value != later_value).all()
    # The parts that do not depend on time are computed for all steps at once.
    embedded = policy.apply(params, steps, method="embed")
    carry = policy.initial_carry((3,))
    for i, (expected, expected_value) in enumerate(seen):
        here = jax.tree.map(lambda x, i=i: x[i], embedded)
        carry = policy.apply(params, carry, here.x, method="advance")
        got, got_value = policy.apply(params, carry, here, method="policy_and_value")
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got_value, expected_value, rtol=1e-5, atol=1e-6)


def test_each_cell_remembers_what_was_there() -> None:
    """A convolution of 3 x 3 sees the memory; cells further away know of it by the means over the grid only."""
    config = {"channels": [8, 8], "kernels": [1, 3], "type": "gru", "size": 16}
    policy = Policy(make_network({**TABLE, **config}, 5 * 4 * 7, num_cells=5 * 4), (3,))
    empty = jnp.zeros((1, 5, 4, 6))
    params = policy.init(jax.random.key(1), empty)

    def later(row: int, column: int) -> np.ndarray:
        """Outputs of each cell for an empty grid, two steps after something was seen in one cell."""
        carry = policy.initial_carry((1,))
        assert carry.shape == (1, 20, 16)
        for obs in (empty.at[0, row, column].set(1.0), empty):
            _, _, carry = policy.apply(params, obs, carry)
        return np.asarray(policy.apply(params, empty, carry)[0]).reshape(5, 4, 7)

    change = np.abs(later(1, 1) - later(3, 2)).max(-1)
    assert min(change[1, 1], change[3, 2]) > 5 * max(change[0, 3], change[4, 0]) > 0


def test_the_grid_is_counted_where_it_is_looked_for() -> None:
    inside = {"grid": GRID[0], "more": {"image": jnp.zeros((2, 2, 3))}, "privileged": GRID[0]}
    assert num_cells(inside) == num_cells(GRID[0]) == 5 * 4
    assert num_cells({"one": GRID[0], "other": GRID[0]}) is None
    assert num_cells(GRID[0, 0]) is None


def test_numbers_beside_the_grid_are_channels_of_all_cells() -> None:
    goal = jnp.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    beside = {"goal": goal, "grid": GRID}
    joined = jnp.concatenate([GRID, jnp.broadcast_to(goal[:, None, None], (3, 5, 4, 2))], axis=-1)
    params = NETWORK.init(jax.random.key(1), beside)
    for got, wanted in zip(NETWORK.apply(params, beside), NETWORK.apply(params, joined), strict=True):
        np.testing.assert_array_equal(got, wanted)
    with pytest.raises(ConfigError, match="expected observations with one grid"):
        NETWORK.init(jax.random.key(1), {"one": GRID, "other": GRID})


@pytest.mark.parametrize("fog", [False, True])
def test_a_central_critic_of_cells_sees_both_players_and_the_policy_its_own(fog: bool) -> None:
    config = rljax.SelfPlayConfig(
        env="MicroRTS-v0", env_params={"map_name": "melee4x4light2", "fog": fog}, num_envs=2, network=TABLE, central_critic=True
    )
    agent = rljax.make_agent(config)
    start = agent.init(jax.random.key(0))
    changed = {**start.obs, "privileged": start.obs["privileged"] + 1.0}
    (outputs, value), (same, moved) = (agent.policy_and_value(start, obs) for obs in (start.obs, changed))
    np.testing.assert_array_equal(outputs, same)
    assert (value != moved).any()


def test_actions_and_observations_must_be_those_of_a_grid() -> None:
    for network, grid, message in (
        (make_network({"encoder": "cells"}, 13), GRID, "13 is no multiple"),
        (NETWORK, jnp.zeros((3, 5)), "expected observations with one grid"),
        (
            make_network({"encoder": "cells", "dilations": [1, 5]}, 20),
            GRID,
            r"network.dilations = \[1, 5\]: expected numbers below 5",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            network.init(jax.random.key(0), grid)
    with pytest.raises(ConfigError, match="encoder = 'cells': is for policies"):
        read_network({"encoder": "cells"}, heads=False)
