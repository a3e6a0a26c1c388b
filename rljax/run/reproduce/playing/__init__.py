"""Experiments in games of several players."""
