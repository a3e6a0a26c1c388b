"""`rljax reproduce`: each published figure has an experiment here and a record in `results/`."""

from rljax.run.reproduce.experiments import EXPERIMENTS, Experiment, reproduce
from rljax.run.reproduce.merge import merge_records
from rljax.run.reproduce.report import Report

__all__ = ["EXPERIMENTS", "Experiment", "Report", "merge_records", "reproduce"]
