"""Edge statistics of small graphs, and of the bundled datasets against the published numbers."""

import math
import warnings

import pytest
import torch

from edgewise.data import dataset_statistics, edge_statistics, load_dataset, make_splits
from edgewise.paper.published import PUBLISHED_DATASETS

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # PyG uses torch.jit.script when it is imported
    from torch_geometric.data import Data

# 0 - 1   3    node 4 is outside the mask
# | /     |
# 2       4
Y = torch.tensor([0, 0, 1, 1, 1])
EDGE_INDEX = torch.tensor([[0, 0, 1, 3], [1, 2, 2, 4]])
MASK = torch.tensor([True, True, True, True, False])


def test_small_graph_counted_by_hand() -> None:
    statistics = edge_statistics(Y, EDGE_INDEX, MASK)
    assert statistics.homophily == pytest.approx(1 / 3)
    assert statistics.k_edgewise == 3 / 4
    assert statistics.k_agree == 2 / 4
    assert statistics.k_disagree == 3 / 4


def test_reverse_edges_and_self_loops_change_nothing() -> None:
    loops = torch.tensor([[3, 3], [3, 3]])
    all_edges = torch.cat([EDGE_INDEX, EDGE_INDEX.flip(0), loops], dim=1)
    assert edge_statistics(Y, all_edges, MASK) == edge_statistics(Y, EDGE_INDEX, MASK)


def test_statistics_without_edges_or_nodes() -> None:
    no_edge = edge_statistics(Y, EDGE_INDEX, torch.tensor([True, False, False, True, False]))
    assert math.isnan(no_edge.homophily)
    assert (no_edge.k_edgewise, no_edge.k_agree, no_edge.k_disagree) == (0, 0, 0)
    assert math.isnan(edge_statistics(Y, EDGE_INDEX, torch.zeros(5, dtype=torch.bool)).k_edgewise)


def test_labels_may_be_unknown_outside_the_mask_only() -> None:
    y = torch.tensor([0, 0, 1, 1, -1])
    assert edge_statistics(y, EDGE_INDEX, MASK) == edge_statistics(Y, EDGE_INDEX, MASK)
    with pytest.raises(ValueError, match="but got -1"):
        edge_statistics(y, EDGE_INDEX, ~MASK)


def test_dataset_statistics_use_the_population_standard_deviation() -> None:
    y = torch.tensor([0, 1]).repeat_interleave(50)
    ring = torch.stack([torch.arange(100), torch.arange(1, 101) % 100])
    data, splits = Data(x=torch.zeros(100, 3), edge_index=ring, y=y), make_splits(y, n_splits=4)
    statistics = dataset_statistics(data, splits)
    values = [edge_statistics(y, ring, split.test).k_edgewise for split in splits[::3]]
    mean = sum(values) / 4
    assert (statistics.nodes, statistics.directed_edges, statistics.features, statistics.classes) == (100, 100, 3, 2)
    assert statistics.k_edgewise.mean == pytest.approx(mean)
    assert statistics.k_edgewise.std == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in values) / 4))
    with pytest.raises(ValueError, match="Expected at least one split"):
        dataset_statistics(data, [])


@pytest.mark.parametrize("name", PUBLISHED_DATASETS)
def test_random_splits_have_the_published_statistics(name: str) -> None:
    data, published = load_dataset(name), PUBLISHED_DATASETS[name]
    ours = dataset_statistics(data, make_splits(data.y))
    for size in ("nodes", "directed_edges", "features", "classes"):
        assert getattr(ours, size) == getattr(published, size)
    for statistic in ("homophily", "k_edgewise", "k_agree", "k_disagree"):
        theirs = getattr(published, statistic)
        assert getattr(ours, statistic).mean == pytest.approx(theirs.mean, abs=3 * theirs.std)
