"""Demonstrations: datasets of whole episodes on disk, and their steps as windows of streams and as batches."""

from rljax.collect.demos.dataset import Dataset, Episodes, open_dataset
from rljax.collect.demos.fits import check_dataset, open_fitting
from rljax.collect.demos.reading import Batches, Transitions, Window, Windows
from rljax.collect.demos.schema import DatasetInfo
from rljax.collect.demos.statistics import observation_statistics

__all__ = [
    "Batches",
    "Dataset",
    "DatasetInfo",
    "Episodes",
    "Transitions",
    "Window",
    "Windows",
    "check_dataset",
    "observation_statistics",
    "open_dataset",
    "open_fitting",
]
