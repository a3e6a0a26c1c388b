"""Networks: what the config's table builds, and one clear line for what it cannot build."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import Environment, PPOConfig, make_agent
from rljax.algos.ppo import ppo_parts
from rljax.core.environments.spaces import Box, Dict, Discrete
from rljax.core.errors import ConfigError
from rljax.nn.actor_critic import ActorCritic, make_network
from rljax.nn.modules.layers import ACTIVATIONS
from rljax.nn.networks import Convolution, FeedForward, make_feed_forward, ravel_observation
from rljax.nn.policy import Policy


def random_variables(network: nn.Module, obs: Any) -> Any:
    """Variables of the right shapes, drawn by numpy: compiling a real initialisation takes longer than everything else here."""
    rng = np.random.default_rng(7)
    shapes = jax.eval_shape(network.init, jax.random.key(0), obs)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), shapes)


def mlp(layers: list[Any], x: np.ndarray, activation: Any) -> np.ndarray:
    """A multilayer perceptron in numpy."""
    for layer in layers[:-1]:
        x = activation(x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]))
    return x @ np.asarray(layers[-1]["kernel"]) + np.asarray(layers[-1]["bias"])


@pytest.mark.parametrize("shared", [False, True])
def test_actor_critic_is_two_perceptrons_or_one_with_two_heads(shared: bool) -> None:
    network = ActorCritic(num_outputs=3, hidden=(8, 6), shared=shared)
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    variables = random_variables(network, obs)
    params = variables["params"]
    assert set(params) == {"policy_head", "value_head"} | (
        {"torso_0", "torso_1"} if shared else {"actor_0", "actor_1", "critic_0", "critic_1"}
    )
    outputs, value = network.apply(variables, obs)
    actor, critic = ("torso", "torso") if shared else ("actor", "critic")
    np.testing.assert_allclose(
        outputs, mlp([params[f"{actor}_0"], params[f"{actor}_1"], params["policy_head"]], obs, np.tanh), rtol=1e-4, atol=1e-5
    )
    expected = mlp([params[f"{critic}_0"], params[f"{critic}_1"], params["value_head"]], obs, np.tanh)[..., 0]
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_the_value_trains_the_policys_torso_only_where_it_is_shared() -> None:
    for shared in (False, True):
        network = ActorCritic(num_outputs=2, hidden=(4,), shared=shared)
        variables = random_variables(network, jnp.ones((1, 3)))
        grads = jax.grad(lambda v, net=network: net.apply(v, jnp.ones((1, 3)))[1][0])(variables)["params"]
        assert jnp.any(grads["torso_0" if shared else "actor_0"]["kernel"] != 0) == shared


def test_the_table_sets_sizes_and_activation() -> None:
    network: Any = make_network({"hidden": (5, 3), "activation": "relu", "shared": True}, 2)
    assert (network.hidden, network.activation, network.shared, network.num_outputs) == ((5, 3), "relu", True, 2)
    defaults: Any = make_network({}, 2)
    assert (defaults.hidden, defaults.activation, defaults.shared) == ((64, 64), "tanh", False)


def test_the_activation_is_the_one_named() -> None:
    obs = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    variables = random_variables(ActorCritic(num_outputs=2, hidden=(8,)), obs)
    params = variables["params"]
    for name in ("relu", "silu", "elu"):
        outputs, _ = ActorCritic(num_outputs=2, hidden=(8,), activation=name).apply(variables, obs)
        np.testing.assert_allclose(
            outputs, mlp([params["actor_0"], params["policy_head"]], obs, ACTIVATIONS[name]), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"hiden": [64]}, "network.hiden: unknown key, did you mean 'hidden'?"),
        ({"type": "mlpp"}, "network.type = 'mlpp': did you mean 'mlp'?"),
        ({"activation": "tan"}, "network.activation = 'tan': did you mean 'tanh'?"),
        ({"activation": 3}, "network.activation = '3': expected one of: elu, "),
        ({"hidden": 64}, "network.hidden = 64: expected a list of layer sizes"),
        ({"hidden": [64, 0]}, "network.hidden = (64, 0): expected a list of layer sizes"),
        ({"hidden": [64, -1]}, "network.hidden = (64, -1): expected a list of layer sizes"),
        ({"hidden": [64, 2.5]}, "network.hidden = (64, 2.5): expected a list of layer sizes"),
        ({"hidden": [True]}, "network.hidden = (True,): expected a list of layer sizes"),
        ({"hidden": "64"}, "network.hidden = '64': expected a list of layer sizes"),
        ({"shared": "yes"}, "network.shared = 'yes': expected true or false"),
        ("mlp", "network = 'mlp': expected a table such as { hidden = [64, 64] }"),
        (nn.Dense, "expected a table such as { hidden = [64, 64] }, or a flax.linen Module"),
    ],
)
def test_a_bad_table_is_one_line_with_key_value_and_what_is_allowed(table: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        ppo_parts(PPOConfig(env="ConstantReward-v0", network=table))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


class Linear(nn.Module):
    """A user's network; `fault` chooses what is wrong with it."""

    num_outputs: int
    fault: str = "nothing"

    @nn.compact
    def __call__(self, obs: jax.Array) -> Any:
        outputs, value = nn.Dense(self.num_outputs)(obs), nn.Dense(1)(obs)
        if self.fault == "value has an axis too many":
            return outputs, value
        if self.fault == "no value":
            return outputs
        if self.fault == "a dictionary":
            return {"outputs": outputs, "value": value[..., 0]}
        if self.fault == "no batch axis":
            return outputs[0], value[0, 0]
        return outputs, value[..., 0]


def test_a_users_flax_module_is_used_as_it_is() -> None:
    module = Linear(2)
    parts = ppo_parts(PPOConfig(env="ActionReward-v0", network=module))
    assert parts.policy.network is module or parts.policy.network == module
    variables = random_variables(parts.policy, jnp.zeros(1))
    outputs, value, _ = parts.policy.apply(variables, jnp.ones((7, 1)))
    assert outputs.shape == (7, 2)
    assert value.shape == (7,)


@pytest.mark.parametrize(
    ("num_outputs", "fault"),
    [(3, "nothing"), (2, "value has an axis too many"), (2, "no value"), (2, "a dictionary"), (2, "no batch axis")],
)
def test_a_users_module_of_the_wrong_shape_is_one_line(num_outputs: int, fault: str) -> None:
    with pytest.raises(ConfigError, match=r"network = Linear: expected \(outputs \[B, 2\], value \[B\]\)") as error:
        ppo_parts(PPOConfig(env="ActionReward-v0", network=Linear(num_outputs, fault)))
    assert "\n" not in str(error.value)


def test_free_log_stds_follow_the_means_and_start_at_zero() -> None:
    policy = Policy(ActorCritic(num_outputs=2, hidden=(4,)), num_log_std=2)
    np.testing.assert_array_equal(jax.jit(policy.init)(jax.random.key(0), jnp.zeros(3))["params"]["log_std"], 0.0)
    variables = random_variables(policy, jnp.zeros(3))
    outputs, _, _ = policy.apply(variables, jnp.ones((6, 3)))
    means, _ = policy.network.apply({"params": variables["params"]["network"]}, jnp.ones((6, 3)))
    np.testing.assert_array_equal(outputs[:, :2], means)
    np.testing.assert_array_equal(outputs[:, 2:], np.tile(variables["params"]["log_std"], (6, 1)))


@pytest.mark.parametrize("axes", [(), (5,), (2, 3)])
def test_a_network_sees_one_batch_axis_whatever_axes_come_first(axes: tuple[int, ...]) -> None:
    seen: list[tuple[int, ...]] = []

    class Looks(nn.Module):
        @nn.compact
        def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
            seen.append(obs.shape)
            total = jnp.sum(obs, (1, 2))
            return jnp.stack([total, -total], -1), 2.0 * total

    obs = np.random.default_rng(3).normal(size=(*axes, 4, 3)).astype(np.float32)
    outputs, value, _ = Policy(Looks(), obs_ndims=(2,)).apply({}, obs)
    assert seen == [(int(np.prod(axes)), 4, 3)]
    np.testing.assert_allclose(value, 2 * obs.sum((-1, -2)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs[..., 1], -obs.sum((-1, -2)), rtol=1e-4, atol=1e-5)
    assert outputs.shape == (*axes, 2)


def test_dictionary_observations_are_raveled_in_tree_order() -> None:
    obs = {"b": jnp.arange(2 * 5).reshape(5, 2), "a": jnp.arange(5.0), "c": jnp.ones((5, 2, 3), jnp.uint8)}
    flat = ravel_observation(obs)
    assert flat.dtype == jnp.float32
    assert flat.shape == (5, 1 + 2 + 6)
    np.testing.assert_array_equal(flat[3], [3, 6, 7, 1, 1, 1, 1, 1, 1])


def test_an_environment_with_dictionary_observations_gets_a_network() -> None:
    class Pair(Environment):
        def observation_space(self, params: Any) -> Dict:
            return Dict({"image": Box(0, 1, (2, 2)), "level": Box(0, 1, ())})

        def action_space(self, params: Any) -> Discrete:
            return Discrete(3)

        def reset_env(self, key: jax.Array, params: Any) -> Any:
            return {"image": jnp.zeros((2, 2)), "level": jnp.zeros(())}, jnp.zeros((), jnp.int32)

        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
            return {"image": jnp.ones((2, 2)), "level": jnp.ones(())}, state, jnp.zeros(()), jnp.asarray(True), {}

    parts = ppo_parts(PPOConfig(env=Pair(), network={"hidden": [4]}))
    obs = {"image": jnp.zeros((2, 2)), "level": jnp.zeros(())}
    variables = random_variables(parts.policy, obs)
    assert variables["params"]["network"]["actor_0"]["kernel"].shape == (5, 4)
    batch = jax.tree.map(lambda x: jnp.stack([x] * 6), obs)
    outputs, value, _ = parts.policy.apply(variables, batch)
    assert (outputs.shape, value.shape) == ((6, 3), (6,))


# Feed-forward networks

CNN = {"type": "cnn", "channels": (4, 6), "kernels": (3, 2), "strides": (2, 1), "hidden": (8,)}


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (3, 2), (4, 3), (8, 4), (11, 1)])
def test_a_convolution_and_its_gradients_are_those_of_flax(kernel: int, stride: int) -> None:
    x = np.random.default_rng(0).normal(size=(3, 12, 11, 5)).astype(np.float32)
    ours = Convolution(7, kernel, stride, nn.initializers.lecun_normal())
    flax = nn.Conv(7, (kernel, kernel), (stride, stride), padding="VALID")
    variables = random_variables(flax, x)
    assert jax.tree.map(jnp.shape, jax.eval_shape(ours.init, jax.random.key(0), x)) == jax.tree.map(jnp.shape, variables)

    def value_and_gradients(network: nn.Module) -> Any:
        return jax.jit(jax.value_and_grad(lambda v, x: jnp.mean(jnp.sin(network.apply(v, x))), (0, 1)))(variables, x)

    np.testing.assert_allclose(ours.apply(variables, x), flax.apply(variables, x), rtol=1e-4, atol=1e-4)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), value_and_gradients(ours), value_and_gradients(flax)
    )


@pytest.mark.slow
def test_the_parameters_of_a_cnn_have_the_shapes_of_the_table_and_orthogonal_kernels() -> None:
    network = make_feed_forward(CNN, 3)
    params = jax.jit(network.init)(jax.random.key(0), jnp.zeros((2, 10, 8, 3)))["params"]
    shapes = jax.tree.map(jnp.shape, params)
    # 10 x 8 -> 4 x 3 (3 wide, every second) -> 3 x 2 (2 wide).
    assert {name: layer["kernel"] for name, layer in shapes.items()} == {
        "conv_0": (3, 3, 3, 4),
        "conv_1": (2, 2, 4, 6),
        "dense_0": (3 * 2 * 6, 8),
        "head": (8, 3),
    }
    for name, gain in (("conv_0", 2.0), ("conv_1", 2.0), ("dense_0", 2.0), ("head", 1.0)):
        kernel = np.asarray(params[name]["kernel"]).reshape(-1, shapes[name]["kernel"][-1])
        np.testing.assert_allclose(kernel.T @ kernel, gain * np.eye(kernel.shape[1]), atol=1e-5)
        np.testing.assert_array_equal(params[name]["bias"], 0.0)
    assert network.apply({"params": params}, jnp.zeros((5, 10, 8, 3))).shape == (5, 3)


def test_uint8_images_are_scaled_to_1_and_others_are_not() -> None:
    network = make_feed_forward(CNN, 3)
    image = np.random.default_rng(1).integers(0, 256, (2, 10, 8, 3), np.uint8)
    variables = random_variables(network, jnp.asarray(image))
    outputs = network.apply(variables, jnp.asarray(image))
    np.testing.assert_allclose(outputs, network.apply(variables, image.astype(np.float32) / 255), rtol=1e-4, atol=1e-4)
    assert np.abs(outputs - network.apply(variables, image.astype(np.float32))).max() > 1


def test_layer_norm_comes_before_the_activation_of_every_hidden_layer() -> None:
    network = FeedForward(num_outputs=3, hidden=(8, 6), layer_norm=True)
    obs = np.random.default_rng(2).normal(size=(5, 4)).astype(np.float32)
    variables = random_variables(network, obs)
    params = jax.tree.map(np.asarray, variables["params"])
    assert set(params) == {"dense_0", "dense_1", "LayerNorm_0", "LayerNorm_1", "head"}
    x = obs
    for i in range(2):
        x = x @ params[f"dense_{i}"]["kernel"] + params[f"dense_{i}"]["bias"]
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-6)
        x = np.maximum(x * params[f"LayerNorm_{i}"]["scale"] + params[f"LayerNorm_{i}"]["bias"], 0)
    np.testing.assert_allclose(network.apply(variables, obs), mlp([params["head"]], x, None), rtol=1e-4, atol=1e-4)
    assert set(random_variables(FeedForward(num_outputs=3), obs)["params"]) == {"dense_0", "dense_1", "head"}


def test_a_duelling_head_is_a_value_and_advantages_of_mean_zero() -> None:
    network = FeedForward(num_outputs=3, hidden=(8,), dueling=True)
    obs = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)
    variables = random_variables(network, obs)
    params = variables["params"]
    assert params["head"]["kernel"].shape == (8, 4)
    heads = mlp([params["dense_0"], params["head"]], obs, lambda x: np.maximum(x, 0))
    value, advantage = heads[:, 0], heads[:, 1:]
    q = network.apply(variables, obs)
    np.testing.assert_allclose(np.mean(q, axis=1), value, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(q - value[:, None], advantage - advantage.mean(1, keepdims=True), rtol=1e-4, atol=1e-4)


def test_cnn_is_an_encoder_whatever_the_table_calls_it() -> None:
    """`type = "cnn"` was said of networks of action values before there were encoders: both mean one thing everywhere."""
    lists = {"channels": [4], "kernels": [3], "strides": [2]}
    as_type, as_encoder = {"type": "cnn", **lists}, {"encoder": "cnn", **lists}
    assert make_feed_forward(as_type, 3) == make_feed_forward(as_encoder, 3)
    assert make_network(as_type, 3) == make_network(as_encoder, 3)
    assert make_feed_forward({"type": "cnn"}, 3).channels == (16,), "the defaults are those of the encoder"


ENCODED: dict[str, tuple[dict[str, Any], Any]] = {
    "dict": ({"encoder": "dict", "depth": 4}, {"image": jnp.ones((2, 8, 8, 1)), "speed": jnp.ones((2, 3))}),
    "entities": (
        {"encoder": "entities", "layers": 1, "heads": 2, "width": 8},
        {"entities": jnp.ones((2, 5, 3)), "entity_mask": jnp.ones((2, 5), bool), "beacon": jnp.ones((2, 2))},
    ),
    "goal": ({"goal": "film"}, {"position": jnp.ones((2, 4)), "goal": jnp.ones((2, 2))}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODED)
def test_networks_of_action_values_take_the_encoders_of_policies(name: str) -> None:
    """Each part of the observation changes what comes out: it gets a gradient."""
    table, obs = ENCODED[name]
    network = make_feed_forward({**table, "hidden": [6]}, 3, layer_norm=True)
    variables = random_variables(network, obs)
    assert network.apply(variables, obs).shape == (2, 3)
    floats = {key: x for key, x in obs.items() if x.dtype != bool}
    gradient = jax.grad(lambda some: jnp.sum(jnp.sin(network.apply(variables, obs | some))))(floats)
    assert all(float(jnp.abs(x).max()) > 0 for x in jax.tree.leaves(gradient))


def test_policies_take_the_layer_norm_of_action_values() -> None:
    obs = np.random.default_rng(4).normal(size=(5, 4)).astype(np.float32)
    for table, norms in (({}, 2), ({"shared": True}, 1), ({"type": "gru", "size": 4, "head_hidden": [5]}, 3)):
        policy = Policy(make_network({"hidden": [6], "layer_norm": True, **table}, 3), (1,))
        params = jax.eval_shape(policy.init, jax.random.key(0), obs)["params"]
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        assert sum("LayerNorm" in path and "scale" in path for path in paths) == norms, table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"shared": True}, "network.shared: unknown key"),
        ({"channels": [16]}, "network.channels: belongs to encoder = 'cnn' and 'cells', but the encoder is 'mlp'"),
        ({"type": "gru"}, "network.type = 'gru': expected 'mlp', since networks of action values and of SAC have no memory"),
        ({"type": "dict"}, "network.type = 'dict': type is the kind of memory, expected encoder = 'dict' without a type"),
        ({"size": 8}, "network.size: unknown key"),
        (
            {"head_hidden": [8]},
            "networks of action values and of SAC have no hidden layers of heads; list all layers in network.hidden",
        ),
        (
            {"type": "cnn", "channels": [16], "kernels": [3]},
            "network: expected channels, kernels and strides of one length, at least 1, got",
        ),
        (
            {"type": "cnn", "channels": [0], "kernels": [3], "strides": [1]},
            "network.channels = (0,): expected a list, one for each",
        ),
        ({"layer_norm": 1}, "network.layer_norm = 1: expected true or false"),
    ],
)
def test_a_bad_feed_forward_table_is_one_line(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_feed_forward({k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}, 3)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"hidden": [1] * 3000}, "network.hidden = (1, 1, "),
        ({"hidden": [2**40]}, "network.hidden = (1099511627776,): expected a list of layer sizes"),
        ({"type": "gru", "size": 2**21}, "network.size = 2097152: expected a whole number > 0 and <= 1048576"),
        ({"encoder": "entities", "layers": 1000}, "network.layers = 1000: expected a whole number > 0 and <= 256"),
    ],
)
def test_networks_that_would_never_be_traced_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_agent(PPOConfig(network=table))
    assert message in str(error.value)
    assert len(str(error.value)) < 300
