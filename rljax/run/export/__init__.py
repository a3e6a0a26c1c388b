"""Trained policies as files that run without rljax."""

from rljax.run.export.load import ExportedPolicy, load_policy
from rljax.run.export.numpy_policy import export_numpy
from rljax.run.export.packing import pack
from rljax.run.export.policy import ExportReport, export_policy
from rljax.run.export.web import export_web
from rljax.run.export.weights import export_weights, load_weights

__all__ = [
    "ExportReport",
    "ExportedPolicy",
    "export_numpy",
    "export_policy",
    "export_web",
    "export_weights",
    "load_policy",
    "load_weights",
    "pack",
]
