"""`rljax reproduce`: every published figure is one experiment here, and one record in `results/`."""

from rljax.run.reproduce.experiments import EXPERIMENTS, Experiment, reproduce
from rljax.run.reproduce.report import Report

__all__ = ["EXPERIMENTS", "Experiment", "Report", "reproduce"]
