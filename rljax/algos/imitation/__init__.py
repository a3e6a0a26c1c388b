"""Imitation: behavioural cloning of demonstrations, and distillation of policies."""
