"""Numbers published by Hsu, Shen and Cremers (2022): dataset statistics, accuracies and ECEs."""

from collections.abc import Mapping
from types import MappingProxyType

from edgewise.data.statistics import DatasetStatistics, MeanStd
from edgewise.metrics.sums import VIEWS


def _row(sizes: tuple[int, int, int, int], *percent: tuple[float, float]) -> DatasetStatistics:
    """Read nodes, directed edges, features and classes; then homophily and three K indices in percent, as printed."""
    return DatasetStatistics(*sizes, *(MeanStd(mean / 100, std / 100) for mean, std in percent))


PUBLISHED_DATASETS: Mapping[str, DatasetStatistics] = MappingProxyType(
    {
        "cora": _row((2708, 10556, 1433, 7), (80.63, 0.81), (92.42, 0.37), (84.96, 0.67), (28.77, 0.99)),
        "citeseer": _row((3327, 9104, 3703, 6), (72.63, 0.83), (85.91, 0.78), (68.21, 0.82), (33.76, 0.33)),
        "pubmed": _row((19717, 88648, 500, 3), (80.38, 0.28), (85.97, 0.85), (74.80, 0.74), (29.12, 0.52)),
    }
)

DATASETS = tuple(PUBLISHED_DATASETS)

PublishedScores = Mapping[str, Mapping[str, MeanStd]]  # by metric, then by view


def _scores(**percent: tuple[tuple[float, float], ...]) -> PublishedScores:
    """Convert mean and std of each view for each metric, in percent as printed."""
    return MappingProxyType(
        {
            metric: MappingProxyType(
                {view: MeanStd(mean / 100, std / 100) for view, (mean, std) in zip(VIEWS, cells, strict=True)}
            )
            for metric, cells in percent.items()
        }
    )


# By dataset, then by model: mean and population std over 75 runs.
PUBLISHED_SCORES: Mapping[str, Mapping[str, PublishedScores]] = MappingProxyType(
    {
        "cora": {
            "gcn": _scores(
                accuracy=((82.86, 0.74), (75.01, 1.28), (87.28, 1.36), (23.93, 2.5)),
                ece=((12.47, 4.37), (16.64, 5.53), (24.18, 5.89), (17.87, 3.23)),
            ),
            "gat": _scores(
                accuracy=((83.71, 0.73), (75.8, 1.0), (88.4, 1.2), (23.33, 1.89)),
                ece=((15.27, 3.82), (25.37, 5.34), (33.11, 5.6), (13.6, 2.51)),
            ),
            "gmnn": _scores(
                accuracy=((82.73, 0.86), (75.46, 1.39), (88.33, 1.35), (21.92, 2.16)),
                ece=((4.05, 1.3), (4.07, 1.86), (9.96, 2.59), (30.78, 3.37)),
            ),
            "epfgnn": _scores(
                accuracy=((76.48, 1.16), (65.07, 1.85), (76.32, 1.74), (18.25, 2.51)),
                ece=((7.24, 1.96), (8.66, 3.11), (15.21, 3.55), (25.55, 3.99)),
            ),
            "epfgnn mean field": _scores(
                accuracy=((79.74, 1.09), (70.02, 2.0), (82.21, 1.88), (19.3, 2.69)),
                ece=((9.16, 2.41), (12.53, 3.31), (20.03, 4.1), (24.07, 4.4)),
            ),
        },
        "citeseer": {
            "gcn": _scores(
                accuracy=((72.06, 0.87), (65.1, 1.12), (87.15, 1.11), (6.59, 1.49)),
                ece=((11.34, 8.28), (16.96, 10.46), (34.45, 11.69), (29.8, 7.88)),
            ),
            "gat": _scores(
                accuracy=((72.04, 0.76), (64.96, 1.17), (87.59, 0.87), (4.92, 1.03)),
                ece=((16.4, 8.51), (27.63, 9.93), (46.7, 10.88), (23.14, 7.43)),
            ),
            "gmnn": _scores(
                accuracy=((70.81, 0.89), (64.49, 1.16), (87.19, 0.96), (4.27, 1.04)),
                ece=((7.97, 2.04), (9.21, 2.62), (11.16, 4.22), (54.95, 6.02)),
            ),
            "epfgnn": _scores(
                accuracy=((69.13, 1.15), (61.2, 1.68), (82.45, 1.95), (4.81, 1.25)),
                ece=((8.05, 5.33), (11.07, 7.37), (18.91, 12.74), (43.95, 13.16)),
            ),
            "epfgnn mean field": _scores(
                accuracy=((71.77, 0.96), (64.85, 1.3), (87.56, 1.17), (4.58, 1.2)),
                ece=((8.42, 6.01), (12.32, 8.24), (22.53, 13.97), (44.61, 13.51)),
            ),
        },
        "pubmed": {
            "gcn": _scores(
                accuracy=((86.43, 0.26), (79.07, 0.38), (92.98, 0.24), (22.08, 0.95)),
                ece=((7.16, 1.4), (3.34, 1.53), (12.64, 1.68), (38.28, 1.78)),
            ),
            "gat": _scores(
                accuracy=((85.12, 0.36), (78.38, 0.47), (93.01, 0.3), (18.47, 1.1)),
                ece=((10.58, 1.98), (18.6, 3.01), (29.66, 3.21), (28.18, 2.17)),
            ),
            "gmnn": _scores(
                accuracy=((84.23, 0.29), (77.7, 0.46), (92.82, 0.29), (15.75, 0.98)),
                ece=((4.24, 0.65), (10.78, 0.77), (2.62, 0.53), (62.34, 1.36)),
            ),
            "epfgnn": _scores(
                accuracy=((82.51, 0.58), (74.35, 0.67), (88.4, 0.65), (16.81, 1.22)),
                ece=((4.84, 1.33), (3.12, 1.41), (10.23, 2.09), (44.75, 2.07)),
            ),
            "epfgnn mean field": _scores(
                accuracy=((84.74, 0.55), (76.76, 0.55), (91.27, 0.52), (17.31, 1.2)),
                ece=((6.13, 1.4), (3.66, 1.56), (11.26, 2.07), (44.97, 2.23)),
            ),
        },
    }
)
