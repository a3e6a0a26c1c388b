"""Orthogonal initialisation: orthonormal, uniformly distributed, safe to vmap on a machine with few cores; truncated normals."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.nn.actor_critic import ActorCritic
from rljax.nn.modules.initializers import orthogonal, orthogonal_kernels, orthonormal_columns, truncated_normal_params


def assert_orthonormal(kernel: Any, gain: float = 1.0) -> None:
    """The shorter side's vectors are orthonormal, times the gain."""
    q = np.asarray(kernel, np.float64) / gain
    gram = q.T @ q if q.shape[0] >= q.shape[1] else q @ q.T
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-5)


SHAPES = [(7, 3), (3, 7), (5, 5), (6, 1), (1, 6), (256, 256), (4, 512)]
CONVOLUTION = (3, 3, 4, 16)


@pytest.fixture(scope="module")
def kernels() -> dict[tuple[int, ...], jax.Array]:
    """A kernel of each shape at gain 1, and a convolution's at gain 2; one program, since compiling takes longest."""
    draw = jax.jit(lambda key: [orthogonal()(key, s) for s in SHAPES] + [orthogonal(2.0)(key, CONVOLUTION)])
    return dict(zip([*SHAPES, CONVOLUTION], draw(jax.random.key(0)), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_are_orthonormal(kernels: dict[tuple[int, ...], jax.Array], shape: tuple[int, int]) -> None:
    assert kernels[shape].shape == shape
    assert kernels[shape].dtype == jnp.float32
    assert_orthonormal(kernels[shape])


def test_kernels_of_convolutions_are_orthogonal_over_all_their_inputs(kernels: dict[tuple[int, ...], jax.Array]) -> None:
    assert kernels[CONVOLUTION].shape == CONVOLUTION
    assert_orthonormal(kernels[CONVOLUTION].reshape(36, 16), 2.0)


def test_re_orthogonalisation_holds_for_ill_conditioned_matrices() -> None:
    # Columns that nearly agree: one pass of Gram-Schmidt loses orthogonality in proportion to the condition number, 1e4 here.
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(20, 1)) + 1e-4 * rng.normal(size=(20, 8))
    assert_orthonormal(orthonormal_columns(jnp.asarray(matrix, jnp.float32)))


def test_frames_are_those_of_qr_with_a_positive_diagonal() -> None:
    matrix = np.random.default_rng(1).normal(size=(9, 4))
    q, r = np.linalg.qr(matrix)
    np.testing.assert_allclose(orthonormal_columns(jnp.asarray(matrix, jnp.float32)), q * np.sign(np.diag(r)), atol=1e-5)


def test_columns_of_zeros_stay_zero() -> None:
    matrix = jnp.asarray(np.random.default_rng(2).normal(size=(6, 4)), jnp.float32).at[:, 2].set(0.0)
    q = orthonormal_columns(matrix)
    np.testing.assert_array_equal(q[:, 2], 0.0)
    assert_orthonormal(q[:, np.array([0, 1, 3])])


def test_kernels_drawn_together_have_their_own_shapes_gains_and_values() -> None:
    shapes, gains = [(4, 64), (64, 64), (64, 64), (64, 2), (64, 1)], [2**0.5, 2**0.5, 1.0, 0.01, 1.0]
    kernels = jax.jit(lambda key: orthogonal_kernels(key, shapes, gains))(jax.random.key(3))
    assert [k.shape for k in kernels] == shapes
    for kernel, gain in zip(kernels, gains, strict=True):
        assert_orthonormal(kernel, gain)
    assert not np.allclose(kernels[1] / gains[1], kernels[2], atol=0.01)


def test_entries_are_centred_with_variance_one_over_the_longer_side() -> None:
    shapes = [(8, 8), (8, 3), (3, 8)]
    draw = jax.jit(jax.vmap(lambda key: orthogonal_kernels(key, shapes, [1.0] * 3)))
    for kernels in draw(jax.random.split(jax.random.key(4), 2000)):
        x = np.asarray(kernels)
        # Every entry of a frame drawn uniformly has mean 0, variance 1/n and fourth moment 3 / (n (n + 2)), n = 8.
        np.testing.assert_allclose(x.mean(0), 0.0, atol=5 * (8 * 2000) ** -0.5)
        np.testing.assert_allclose((x**2).mean(0), 1 / 8, rtol=0.2)
        np.testing.assert_allclose((x**4).mean(), 3 / 80, rtol=0.05)


def test_actor_critic_starts_with_the_gains_of_ppo() -> None:
    params = jax.jit(ActorCritic(num_outputs=3, hidden=(16, 8)).init)(jax.random.key(5), jnp.zeros(4))["params"]
    gains = {"actor_0": 2**0.5, "actor_1": 2**0.5, "critic_0": 2**0.5, "critic_1": 2**0.5, "policy_head": 0.01, "value_head": 1.0}
    assert set(params) == set(gains)
    for name, gain in gains.items():
        assert_orthonormal(params[name]["kernel"], gain)
        np.testing.assert_array_equal(params[name]["bias"], 0.0)
    assert not np.allclose(params["actor_0"]["kernel"], params["critic_0"]["kernel"], atol=0.01)


@pytest.mark.slow
def test_initialising_64_seeds_at_once_25_times_never_hangs() -> None:
    # LAPACK's QR deadlocks here within a few calls; a hang cannot be interrupted from inside, so a process of its own.
    program = (
        "import os\n"
        "if hasattr(os, 'sched_setaffinity'): os.sched_setaffinity(0, range(os.cpu_count()))\n"  # all cores, unlike the tests
        "import jax, jax.numpy as jnp\n"
        "from rljax.nn.actor_critic import ActorCritic\n"
        "init = jax.jit(jax.vmap(ActorCritic(num_outputs=2, hidden=(64, 64)).init, (0, None)))\n"
        "for i in range(25):\n"
        "    params = init(jax.random.split(jax.random.key(i), 64), jnp.zeros(4))\n"
        "    jax.block_until_ready(params)\n"
        "print('done')\n"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert process.stdout.strip() == "done", process.stderr


def custom_calls(program: str) -> list[str]:
    """What a program calls outside XLA."""
    return re.findall(r'custom_call_target="([^"]*)"|custom_call @(\w+)', program)


def test_initialisation_calls_nothing_outside_xla_and_so_no_lapack() -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    by_jax = jax.jit(jax.vmap(lambda key: jax.nn.initializers.orthogonal()(key, (4, 4)))).lower(keys)
    assert any("lapack" in "".join(names) for names in custom_calls(by_jax.as_text()))  # so that the search is known to find it
    ours = jax.jit(jax.vmap(lambda key: ActorCritic(num_outputs=2, hidden=(64, 64)).init(key, jnp.zeros(4)))).lower(keys)
    assert custom_calls(ours.as_text()) == custom_calls(ours.compile().as_text()) == []


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


SHAPES_OF_A_MODULE = {
    "dense": {"kernel": struct(200, 300), "bias": struct(300)},
    "conv": {"kernel": struct(5, 5, 8, 200), "bias": struct(200)},
    "core": {"gate_kernel": struct(8, 40, 100), "gate_bias": struct(800), "norm": {"scale": struct(800)}},
    "policy": {"head": {"kernel": struct(300, 100), "bias": struct(100)}, "dense": {"kernel": struct(300, 100)}},
    "policy_of_another": {"kernel": struct(300, 100)},
    "critic": {"head": {"kernel": struct(300, 255), "bias": struct(255)}},
}
GAINS = {"policy": 3.0, "policy/head": 0.01, "critic/head/kernel": 0.0}


@pytest.fixture(scope="module")
def truncated() -> Any:
    return jax.jit(lambda key: truncated_normal_params(key, SHAPES_OF_A_MODULE, GAINS))(jax.random.key(0))


def test_truncated_normal_kernels_have_deviation_one_over_the_root_of_all_their_inputs(truncated: Any) -> None:
    assert jax.tree.map(lambda x: (x.shape, x.dtype), truncated) == jax.tree.map(lambda x: (x.shape, x.dtype), SHAPES_OF_A_MODULE)
    kernels = [
        (truncated["dense"]["kernel"], 200, 1.0),
        (truncated["conv"]["kernel"], 5 * 5 * 8, 1.0),
        (truncated["core"]["gate_kernel"], 8 * 40, 1.0),
        (truncated["policy"]["head"]["kernel"], 300, 0.01),
        (truncated["policy"]["dense"]["kernel"], 300, 3.0),
        (truncated["policy_of_another"]["kernel"], 300, 1.0),
    ]
    for kernel, fan_in, gain in kernels:
        x = np.asarray(kernel, np.float64).ravel() * fan_in**0.5 / gain
        np.testing.assert_allclose(x.std(), 1.0, rtol=0.02)
        np.testing.assert_allclose(x.mean(), 0.0, atol=0.03)
        # The mass ends abruptly at two deviations of the normal that was cut.
        assert 2.2 < np.abs(x).max() <= 2 * 1.1368 + 1e-5
        # Of a normal cut at +-2, 0.7152 lies within one of its deviations; of a uniform one half would, of a whole one 0.683.
        np.testing.assert_allclose((np.abs(x) < 1.1368).mean(), 0.7152, atol=0.02)


def test_truncated_normal_kernels_of_gain_0_are_exactly_0_biases_0_and_scales_1(truncated: Any) -> None:
    for x in (truncated["critic"]["head"]["kernel"], truncated["dense"]["bias"], truncated["core"]["gate_bias"]):
        np.testing.assert_array_equal(x, 0.0)
    np.testing.assert_array_equal(truncated["core"]["norm"]["scale"], 1.0)


def test_truncated_normal_kernels_share_no_numbers_and_differ_by_seed_under_vmap() -> None:
    shapes = {"a": {"kernel": struct(6, 8)}, "b": {"kernel": struct(6, 8)}}
    keys = jax.random.split(jax.random.key(1), 2)
    both = jax.jit(jax.vmap(lambda key: truncated_normal_params(key, shapes)))(keys)
    for seed in range(2):
        one = truncated_normal_params(keys[seed], shapes)
        jax.tree.map(lambda a, b, seed=seed: np.testing.assert_allclose(a[seed], b, rtol=1e-5, atol=1e-6), both, one)
    numbers = np.concatenate([np.ravel(x) for x in jax.tree.leaves(both)])
    assert len(np.unique(numbers)) == len(numbers)


def test_truncated_normal_params_are_drawn_at_once() -> None:
    def draws(shapes: Any) -> int:
        program = str(jax.make_jaxpr(lambda key: truncated_normal_params(key, shapes))(jax.random.key(0)))
        return program.count("random_bits[")

    assert draws(SHAPES_OF_A_MODULE) == draws({"kernel": struct(2, 2)}) == 1


def test_truncated_normal_params_of_a_flax_module_serve_it() -> None:
    network = ActorCritic(num_outputs=3, hidden=(16, 8))
    shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, 4)))["params"]
    params = truncated_normal_params(jax.random.key(2), shapes, {"value_head": 0.0})
    policy, value = network.apply({"params": params}, jnp.ones((1, 4)))
    np.testing.assert_array_equal(value, 0.0)
    assert float(jnp.abs(policy).max()) > 0.0


def test_unknown_names_and_gains_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"critic/prototypes: .* ends with kernel, bias or scale"):
        truncated_normal_params(jax.random.key(0), {"critic": {"prototypes": struct(3, 2)}})
    for prefix in ("poli", "dense/bias", "policy/head/kernel/x"):
        with pytest.raises(ValueError, match="there is no such kernel"):
            truncated_normal_params(jax.random.key(0), SHAPES_OF_A_MODULE, {prefix: 2.0})
