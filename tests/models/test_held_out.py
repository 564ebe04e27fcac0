"""`held_out_folds`: folds of training nodes that keep neighbors together."""

from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data

from edgewise.models.joint_gcn import held_out_folds
from helpers.small_graphs import make_task


def make_folds_task(edges, y, num_train):
    """A task whose first nodes are training nodes, and whose last node is the validation node."""
    edges = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    data = Data(x=torch.ones(len(y), 1), edge_index=torch.cat([edges, edges.flip(0)], 1), y=torch.tensor(y))
    nodes = torch.arange(len(y))
    return make_task(data, SimpleNamespace(train=nodes < num_train, val=nodes == len(y) - 1))


def draw_folds(task, num_folds, seed=0):
    return held_out_folds(task, num_folds, torch.Generator().manual_seed(seed))


PAIRS = [(2 * k, 2 * k + 1) for k in range(15)]


@pytest.mark.parametrize("seed", range(3))
def test_neighbors_are_in_the_same_fold(seed):
    fold = draw_folds(make_folds_task(PAIRS, [0, 1] * 15 + [0], 30), 3, seed)
    start, end = torch.tensor(PAIRS).T
    assert torch.equal(fold[start], fold[end])
    assert torch.bincount(fold).tolist() == [10, 10, 10]


def test_other_nodes_do_not_connect_training_nodes():
    """Nodes 0 to 5 are connected through node 6 only, which is not a training node."""
    fold = draw_folds(make_folds_task([(k, 6) for k in range(6)], [0, 0, 0, 1, 1, 1, 0], 6), 3)
    assert sorted(fold[:3].tolist()) == sorted(fold[3:].tolist()) == [0, 1, 2]


def test_classes_are_balanced():
    fold = draw_folds(make_folds_task([], [0] * 10 + [1] * 5 + [2] * 5 + [0], 20), 5)
    for label, count in ((slice(0, 10), 2), (slice(10, 15), 1), (slice(15, 20), 1)):
        assert torch.bincount(fold[label], minlength=5).tolist() == [count] * 5


def test_component_larger_than_a_fold_is_split():
    fold = draw_folds(make_folds_task([(k, k + 1) for k in range(11)], [0] * 13, 12), 3)
    assert torch.bincount(fold).tolist() == [4, 4, 4]


def test_more_folds_than_nodes():
    assert sorted(draw_folds(make_folds_task([], [0, 1, 0], 2), 5).tolist()) in ([0, 0], [0, 1])


def test_folds_depend_on_the_seed():
    task = make_folds_task(PAIRS, [0, 1] * 15 + [0], 30)
    assert torch.equal(draw_folds(task, 3), draw_folds(task, 3))
    assert any(not torch.equal(draw_folds(task, 3), draw_folds(task, 3, seed)) for seed in range(1, 4))
