"""The dataset statistics that Hsu, Shen and Cremers (2022) published, in percent, to compare ours with."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Published:
    """A published mean and population standard deviation, in percent."""

    mean: float
    std: float


@dataclass(frozen=True)
class PublishedDataset:
    """One row of the published table: sizes, and homophily and K indices of the test sets over 5 splits."""

    nodes: int
    directed_edges: int
    features: int
    classes: int
    homophily: Published
    k_edgewise: Published
    k_agree: Published
    k_disagree: Published


PUBLISHED_DATASETS: Mapping[str, PublishedDataset] = MappingProxyType(
    {
        "cora": PublishedDataset(
            nodes=2708,
            directed_edges=10556,
            features=1433,
            classes=7,
            homophily=Published(80.63, 0.81),
            k_edgewise=Published(92.42, 0.37),
            k_agree=Published(84.96, 0.67),
            k_disagree=Published(28.77, 0.99),
        ),
        "citeseer": PublishedDataset(
            nodes=3327,
            directed_edges=9104,
            features=3703,
            classes=6,
            homophily=Published(72.63, 0.83),
            k_edgewise=Published(85.91, 0.78),
            k_agree=Published(68.21, 0.82),
            k_disagree=Published(33.76, 0.33),
        ),
        "pubmed": PublishedDataset(
            nodes=19717,
            directed_edges=88648,
            features=500,
            classes=3,
            homophily=Published(80.38, 0.28),
            k_edgewise=Published(85.97, 0.85),
            k_agree=Published(74.80, 0.74),
            k_disagree=Published(29.12, 0.52),
        ),
    }
)
