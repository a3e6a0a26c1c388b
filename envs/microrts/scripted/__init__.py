"""Scripted players: bots in JAX, their search for paths, and bots as players of games."""
