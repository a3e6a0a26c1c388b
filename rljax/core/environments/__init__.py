"""Environments of one agent: the contract, its spaces, and wrappers."""
