"""Curricula: each episode takes one of several levels, parameters of the environment, by rules inside the compiled step."""
