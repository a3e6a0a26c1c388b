"""Offline reinforcement learning: policies from recorded transitions, improved by steps in the environment afterwards."""
