"""Beta-VAE: a variational autoencoder that encourages independent latent factors, for example to embed an opponent's
behaviour.
"""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.nn.modules.layers import MLP


class VAEOutputs(NamedTuple):
    """Outputs of a `BetaVAE` for `x [B, D]`.

    Attributes:
        reconstruction: f32 `[B, D]`.
        mean: mean of the posterior, f32 `[B, latent]`.
        log_var: logarithm of the posterior's variances, f32 `[B, latent]`.
    """

    reconstruction: jax.Array
    mean: jax.Array
    log_var: jax.Array


class BetaVAE(nn.Module):
    """Beta-VAE: `(x [B, D], noise [B, latent]) -> VAEOutputs` (Kingma and Welling, 2014; Higgins et al., 2017).

    An encoder gives a diagonal Gaussian, and a decoder reconstructs x from the sample `mean + exp(log_var / 2) noise`; draw
    `noise` from the standard normal. The last layer of the encoder starts with gain 0.01, so that the first posterior is nearly
    the prior.

    Attributes:
        size: length D of an input.
        latent: number of latent factors.
        hidden: sizes of the encoder's hidden layers; the decoder has them in reverse.
        beta: weight of the divergence in `beta_vae_loss`; 1 is the plain VAE.
        activation: a name in `ACTIVATIONS`.
    """

    size: int
    latent: int = 8
    hidden: tuple[int, ...] = (64, 64)
    beta: float = 4.0
    activation: str = "silu"

    def setup(self) -> None:
        self.encoder = MLP(self.hidden, 2 * self.latent, self.activation, head_gain=0.01)
        self.decoder = MLP(self.hidden[::-1], self.size, self.activation)

    def __call__(self, x: jax.Array, noise: jax.Array) -> VAEOutputs:
        mean, log_var = self.encode(x)
        return VAEOutputs(self.decode(mean + jnp.exp(0.5 * log_var) * noise), mean, log_var)

    def encode(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return `(mean, log_var)` of the posterior, `[..., latent]` each, for `x [..., D]`."""
        mean, log_var = jnp.split(self.encoder(x), 2, axis=-1)
        return mean, log_var

    def decode(self, z: jax.Array) -> jax.Array:
        """Reconstruct inputs from latent factors, `[..., latent] -> [..., D]`."""
        return self.decoder(z)

    def embedding(self, x: jax.Array) -> jax.Array:
        """Return the posterior mean `[..., latent]` of `x [..., D]`, without noise."""
        return self.encode(x)[0]


def gaussian_kl(mean: jax.Array, log_var: jax.Array) -> jax.Array:
    """Return KL(N(mean, exp(log_var)) || N(0, 1)) in nats, summed over the last axis: `[..., latent] -> [...]` (Kingma and
    Welling, 2014, appendix B).
    """
    return 0.5 * jnp.sum(jnp.square(mean) + jnp.exp(log_var) - 1.0 - log_var, axis=-1)


def beta_vae_loss(outputs: VAEOutputs, x: jax.Array, beta: float | jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the squared error summed over dimensions plus `beta` times the KL divergence from the prior, averaged over the
    batch.

    This is eq. 4 of Higgins et al. (2017), with a Gaussian decoder of variance 1/2.

    Args:
        outputs: outputs of the network for `x`.
        x: inputs, f32 `[B, D]`.
        beta: weight of the divergence, such as the network's `beta`.

    Returns:
        The loss, and its parts "reconstruction" and "kl", f32 scalars.
    """
    reconstruction = jnp.mean(jnp.sum(jnp.square(outputs.reconstruction - x), axis=-1))
    kl = jnp.mean(gaussian_kl(outputs.mean, outputs.log_var))
    return reconstruction + beta * kl, {"reconstruction": reconstruction, "kl": kl}
