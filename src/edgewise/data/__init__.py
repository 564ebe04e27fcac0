"""Datasets, splits, selection of the scored edges, and graph statistics."""

from edgewise.data.datasets import load_dataset, row_normalize
from edgewise.data.splits import Split, load_splits, make_splits
from edgewise.data.statistics import DatasetStatistics, EdgeStatistics, MeanStd, dataset_statistics, edge_statistics

__all__ = [
    "DatasetStatistics",
    "EdgeStatistics",
    "MeanStd",
    "Split",
    "dataset_statistics",
    "edge_statistics",
    "load_dataset",
    "load_splits",
    "make_splits",
    "row_normalize",
]
