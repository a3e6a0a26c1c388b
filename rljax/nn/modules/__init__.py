"""Layers that networks are built of: perceptrons, attention, memory cells, convolutions."""
