"""MicroRTS in pure JAX: the real-time strategy game of Ontanon, 2013, with the rules of microRTS's unit type table 2."""
