"""From the outputs of networks to actions: distributions, heads, masks."""
