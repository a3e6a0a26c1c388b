"""Rollouts, returns, normalisers and evaluation: the parts that algorithms are composed of."""
