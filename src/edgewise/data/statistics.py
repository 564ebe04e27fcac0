"""What a graph and its splits look like: homophily, K indices, counts."""

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
    """The edges among a set U of nodes: homophily |E_A| / |E_U|, and K(E_S), the share of U that is an end in E_S.

    Without any edge the homophily is NaN; without any node the K indices are NaN.
    """

    homophily: float
    k_edgewise: float
    k_agree: float
    k_disagree: float


@dataclass(frozen=True)
class MeanStd:
    """A mean and a population standard deviation."""

    mean: float
    std: float


@dataclass(frozen=True)
class DatasetStatistics:
    """The size of a dataset, and the edge statistics of its test sets over the splits, as fractions."""

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
    """Compute the statistics of the edges with both ends in a mask, each undirected edge once.

    >>> y, path = torch.tensor([0, 0, 1, 1]), torch.tensor([[0, 1], [1, 2]])
    >>> edge_statistics(y, path, torch.tensor([True, True, True, True]))
    EdgeStatistics(homophily=0.5, k_edgewise=0.75, k_agree=0.5, k_disagree=0.5)
    """
    if (y[mask] < 0).any():
        raise ValueError(f"Expected a label for every node of the mask, but got {int(y[mask].min())}.")
    ends = edge_index[:, scored_edges(edge_index, mask)]
    agree = y[ends[0]] == y[ends[1]]
    return EdgeStatistics(
        homophily=agree.double().mean().item(),
        k_edgewise=_k_index(ends, mask),
        k_agree=_k_index(ends[:, agree], mask),
        k_disagree=_k_index(ends[:, ~agree], mask),
    )


def _k_index(ends: Int[Tensor, "2 edges"], mask: Bool[Tensor, " nodes"]) -> float:
    touched = torch.zeros_like(mask)
    touched[ends.flatten()] = True
    return (touched.sum().double() / mask.sum()).item()


def dataset_statistics(data: "torch_geometric.data.Data", splits: Sequence[Split]) -> DatasetStatistics:
    """Compute the counts of a dataset, and the mean and spread of its edge statistics over the test sets of splits."""
    if not splits:
        raise ValueError("Expected at least one split, but got none. See make_splits.")
    each = [edge_statistics(data.y, data.edge_index, split.test) for split in splits]
    return DatasetStatistics(
        nodes=data.num_nodes,
        directed_edges=data.num_edges,
        features=data.num_features,
        classes=data.y[data.y >= 0].unique().numel(),
        homophily=_mean_std([s.homophily for s in each]),
        k_edgewise=_mean_std([s.k_edgewise for s in each]),
        k_agree=_mean_std([s.k_agree for s in each]),
        k_disagree=_mean_std([s.k_disagree for s in each]),
    )


def _mean_std(values: Sequence[float]) -> MeanStd:
    tensor = torch.tensor(values, dtype=torch.float64)
    return MeanStd(tensor.mean().item(), tensor.std(correction=0).item())
