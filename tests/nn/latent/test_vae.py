"""The beta-VAE: its loss in closed form, and that it finds factors that are there."""

from __future__ import annotations

from typing import Any

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.nn.latent.vae import BetaVAE, VAEOutputs, beta_vae_loss, gaussian_kl


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_the_divergence_is_that_of_distrax_and_0_at_the_prior() -> None:
    mean, log_var = normal(5, 3), normal(5, 3, seed=1)
    posterior = distrax.Normal(mean, jnp.exp(0.5 * log_var))
    want = jnp.sum(posterior.kl_divergence(distrax.Normal(0.0, 1.0)), axis=-1)
    np.testing.assert_allclose(gaussian_kl(mean, log_var), want, rtol=1e-5)
    np.testing.assert_array_equal(gaussian_kl(jnp.zeros((2, 3)), jnp.zeros((2, 3))), 0.0)


def test_the_loss_by_hand() -> None:
    outputs = VAEOutputs(
        jnp.array([[1.0, 2.0], [0.0, 0.0]]), mean=jnp.array([[2.0], [0.0]]), log_var=jnp.log(jnp.array([[1.0], [4.0]]))
    )
    loss, parts = beta_vae_loss(outputs, jnp.array([[0.0, 0.0], [3.0, 0.0]]), beta=3.0)
    kl = (0.5 * 4.0 + 0.5 * (4.0 - 1.0 - np.log(4.0))) / 2
    np.testing.assert_allclose(parts["reconstruction"], (1.0 + 4.0 + 9.0) / 2)
    np.testing.assert_allclose(parts["kl"], kl, rtol=1e-6)
    np.testing.assert_allclose(loss, 7.0 + 3.0 * kl, rtol=1e-6)


def test_the_sample_is_the_mean_plus_deviation_times_noise_and_the_embedding_the_mean() -> None:
    vae, x, noise = BetaVAE(4, latent=2, hidden=(8,)), normal(3, 4), normal(3, 2, seed=1)
    shapes = jax.eval_shape(vae.init, jax.random.key(0), x, noise)
    rng = np.random.default_rng(2)
    variables = jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape), s.dtype), shapes)
    outputs = vae.apply(variables, x, noise)
    mean, log_var = vae.apply(variables, x, method="encode")
    np.testing.assert_array_equal(outputs.mean, mean)
    np.testing.assert_array_equal(outputs.log_var, log_var)
    np.testing.assert_array_equal(vae.apply(variables, x, method="embedding"), mean)
    want = vae.apply(variables, mean + jnp.sqrt(jnp.exp(log_var)) * noise, method="decode")
    np.testing.assert_allclose(outputs.reconstruction, want, rtol=1e-4, atol=1e-4)
    assert not np.allclose(outputs.reconstruction, vae.apply(variables, mean, method="decode"), atol=1e-2)


@pytest.mark.slow
def test_it_finds_two_known_factors() -> None:
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(256, 2))
    x = jnp.asarray(factors @ rng.normal(size=(2, 10)), jnp.float32)
    vae = BetaVAE(10, latent=3, hidden=(32,), beta=0.5)
    optimizer = optax.adam(5e-3)

    def loss_of(params: Any, key: jax.Array) -> Any:
        return beta_vae_loss(vae.apply({"params": params}, x, jax.random.normal(key, (len(x), 3))), x, vae.beta)

    def step(carry: Any, key: jax.Array) -> Any:
        params, state = carry
        (loss, parts), grads = jax.value_and_grad(loss_of, has_aux=True)(params, key)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), (loss, parts)

    @jax.jit
    def train(key: jax.Array) -> Any:
        params = vae.init(key, x, jnp.zeros((len(x), 3)))["params"]
        return jax.lax.scan(step, (params, optimizer.init(params)), jax.random.split(key, 300))

    (params, _), (losses, parts) = train(jax.random.key(0))
    # The best decoder that ignores the latents puts out the mean.
    constant = float(jnp.mean(jnp.sum(jnp.square(x - x.mean(0)), axis=-1)))
    assert losses[0] > 0.8 * constant
    assert losses[-20:].mean() < 0.4 * constant
    assert parts["reconstruction"][-20:].mean() < 0.1 * constant
    embedding = np.asarray(vae.apply({"params": params}, x, method="embedding"))
    design = np.concatenate([embedding, np.ones((len(x), 1))], axis=1)
    residual = factors - design @ np.linalg.lstsq(design, factors, rcond=None)[0]
    assert np.mean(residual**2) / np.mean(factors**2) < 0.1
