"""Finite dimension: datasets and optimisers (section 8 of docs/theory.md)."""

from .amp import AMPFit, fit_amp
from .data import PRECISIONS, AbstractDataset, Dataset, StreamedDataset, sample, stream
from .erm import ERMFit, fit_erm, measure_risk
from .files import load_dataset
from .sgd import SGDPath, fit_sgd

__all__ = [
    "PRECISIONS",
    "AMPFit",
    "AbstractDataset",
    "Dataset",
    "ERMFit",
    "SGDPath",
    "StreamedDataset",
    "fit_amp",
    "fit_erm",
    "fit_sgd",
    "load_dataset",
    "measure_risk",
    "sample",
    "stream",
]
