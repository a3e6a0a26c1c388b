"""Algorithms: one readable file each, and the loop that turns any of them into a compiled training run."""
