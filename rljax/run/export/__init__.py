"""Trained policies as files that run without rljax."""

from rljax.run.export.load import ExportedPolicy, load_policy
from rljax.run.export.policy import ExportReport, export_policy

__all__ = ["ExportReport", "ExportedPolicy", "export_policy", "load_policy"]
