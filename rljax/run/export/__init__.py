"""Trained policies as files that run without rljax."""

from rljax.run.export.policy import export_policy, load_policy

__all__ = ["export_policy", "load_policy"]
