"""The rules: maps, states, and the engine that advances them."""
