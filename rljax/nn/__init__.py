"""Network modules (flax.linen) and action distributions (distrax)."""
