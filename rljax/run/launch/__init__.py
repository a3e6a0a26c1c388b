"""Training on rented machines: the task file, and SkyPilot, which reads it."""
