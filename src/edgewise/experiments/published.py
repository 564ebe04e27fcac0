"""The dataset statistics that Hsu, Shen and Cremers (2022) published, to compare ours with."""

from collections.abc import Mapping
from types import MappingProxyType

from edgewise.data.statistics import DatasetStatistics, MeanStd


def _row(sizes: tuple[int, int, int, int], *percent: tuple[float, float]) -> DatasetStatistics:
    """Take nodes, directed edges, features and classes; then homophily and three K indices, in percent as printed."""
    return DatasetStatistics(*sizes, *(MeanStd(mean / 100, std / 100) for mean, std in percent))


PUBLISHED_DATASETS: Mapping[str, DatasetStatistics] = MappingProxyType(
    {
        "cora": _row((2708, 10556, 1433, 7), (80.63, 0.81), (92.42, 0.37), (84.96, 0.67), (28.77, 0.99)),
        "citeseer": _row((3327, 9104, 3703, 6), (72.63, 0.83), (85.91, 0.78), (68.21, 0.82), (33.76, 0.33)),
        "pubmed": _row((19717, 88648, 500, 3), (80.38, 0.28), (85.97, 0.85), (74.80, 0.74), (29.12, 0.52)),
    }
)
