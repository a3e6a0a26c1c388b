"""Games of several players: the contract, its wrappers, where chance moves, and games against fixed opponents."""
