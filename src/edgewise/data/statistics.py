"""Statistics of graphs and splits: counts, homophily and K indices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise.data.edges import scored_edges
from edgewise.data.splits import Split

if TYPE_CHECKING:
    import torch_geometric.data


@dataclass(frozen=True)
class EdgeStatistics:
    """Statistics of the edges E_U among a set U of nodes.

    The homophily is |E_A| / |E_U|, where E_A are the edges whose ends have the same label. K(E_S) is the fraction of
    nodes in U that are an end of an edge in E_S. Without edges the homophily is NaN. Without nodes the K indices are
    NaN.
    """

    homophily: float
    k_edgewise: float
    k_agree: float
    k_disagree: float


@dataclass(frozen=True)
class MeanStd:
    """Mean and population standard deviation."""

    mean: float
    std: float


@dataclass(frozen=True)
class DatasetStatistics:
    """Size of a dataset, and edge statistics of the test sets over splits, as fractions."""

    nodes: int
    directed_edges: int
    features: int
    classes: int
    homophily: MeanStd
    k_edgewise: MeanStd
    k_agree: MeanStd
    k_disagree: MeanStd


def edge_statistics(
    y: Int[Tensor, " nodes"], edge_index: Int[Tensor, "2 edges"], mask: Bool[Tensor, " nodes"]
) -> EdgeStatistics:
    """Compute statistics of the edges with both ends in a mask, each undirected edge once.

    >>> y, path = torch.tensor([0, 0, 1, 1]), torch.tensor([[0, 1], [1, 2]])
    >>> edge_statistics(y, path, torch.tensor([True, True, True, True]))
    EdgeStatistics(homophily=0.5, k_edgewise=0.75, k_agree=0.5, k_disagree=0.5)
    """
    if (y[mask] < 0).any():
        raise ValueError(
            f"Expected a label for every node of the mask, but got {int(y[mask].min())}. Pass mask & (y >= 0)."
        )
    ends = edge_index[:, scored_edges(edge_index, mask)]
    agree = y[ends[0]] == y[ends[1]]
    return EdgeStatistics(
        homophily=agree.double().mean().item(),
        k_edgewise=_k_index(ends, mask),
        k_agree=_k_index(ends[:, agree], mask),
        k_disagree=_k_index(ends[:, ~agree], mask),
    )


def _k_index(ends: Int[Tensor, "2 edges"], mask: Bool[Tensor, " nodes"]) -> float:
    has_edge = torch.zeros_like(mask)
    has_edge[ends.flatten()] = True
    return (has_edge.sum().double() / mask.sum()).item()


def dataset_statistics(data: "torch_geometric.data.Data", splits: Sequence[Split]) -> DatasetStatistics:
    """Compute the size of a dataset, and mean and standard deviation of the edge statistics of its test sets."""
    if not splits:
        raise ValueError("Expected at least one split, but got none. Draw splits with make_splits.")
    per_split = [edge_statistics(data.y, data.edge_index, split.test) for split in splits]
    return DatasetStatistics(
        nodes=data.num_nodes,
        directed_edges=data.num_edges,
        features=data.num_features,
        classes=data.y[data.y >= 0].unique().numel(),
        homophily=_mean_std([s.homophily for s in per_split]),
        k_edgewise=_mean_std([s.k_edgewise for s in per_split]),
        k_agree=_mean_std([s.k_agree for s in per_split]),
        k_disagree=_mean_std([s.k_disagree for s in per_split]),
    )


def _mean_std(values: Sequence[float]) -> MeanStd:
    tensor = torch.tensor(values, dtype=torch.float64)
    return MeanStd(tensor.mean().item(), tensor.std(correction=0).item())
