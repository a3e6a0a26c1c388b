"""Demonstrations: datasets of whole episodes on disk, and their steps as windows of streams and as batches."""

from rljax.collect.demos.dataset import Dataset, Episodes, open_dataset
from rljax.collect.demos.fits import check_dataset
from rljax.collect.demos.reading import Batches, Transitions, Window, Windows
from rljax.collect.demos.schema import DatasetInfo

__all__ = ["Batches", "Dataset", "DatasetInfo", "Episodes", "Transitions", "Window", "Windows", "check_dataset", "open_dataset"]
