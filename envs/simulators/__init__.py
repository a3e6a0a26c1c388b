"""Environments whose simulators are outside JAX: processes that a compiled program calls."""
