"""Runs of several phases, each of which trains from what earlier ones have learned."""
