"""Latent variables: the world model of Dreamer (RSSM), a beta-VAE, and decoders of observations."""
