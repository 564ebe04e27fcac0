"""Folds of training nodes that hold neighbors together."""

from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data

from edgewise.models.joint_gcn import held_out_folds
from helpers.small_graphs import make_task


def task_with(edges, y, num_train):
    """The first nodes train, and the last validates."""
    edges = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    data = Data(x=torch.ones(len(y), 1), edge_index=torch.cat([edges, edges.flip(0)], 1), y=torch.tensor(y))
    nodes = torch.arange(len(y))
    return make_task(data, SimpleNamespace(train=nodes < num_train, val=nodes == len(y) - 1))


def dealt(task, num_folds, seed=0):
    return held_out_folds(task, num_folds, torch.Generator().manual_seed(seed))


PAIRS = [(2 * k, 2 * k + 1) for k in range(15)]


@pytest.mark.parametrize("seed", range(3))
def test_neighbors_are_in_one_fold(seed):
    fold = dealt(task_with(PAIRS, [0, 1] * 15 + [0], 30), 3, seed)
    start, end = torch.tensor(PAIRS).T
    assert torch.equal(fold[start], fold[end])
    assert torch.bincount(fold).tolist() == [10, 10, 10]


def test_a_node_that_does_not_train_connects_nobody():
    """Nodes 0 to 5 are neighbors of node 6 only, and would else be larger than a fold."""
    fold = dealt(task_with([(k, 6) for k in range(6)], [0, 0, 0, 1, 1, 1, 0], 6), 3)
    assert sorted(fold[:3].tolist()) == sorted(fold[3:].tolist()) == [0, 1, 2]


def test_classes_are_dealt_evenly():
    fold = dealt(task_with([], [0] * 10 + [1] * 5 + [2] * 5 + [0], 20), 5)
    for label, share in ((slice(0, 10), 2), (slice(10, 15), 1), (slice(15, 20), 1)):
        assert torch.bincount(fold[label], minlength=5).tolist() == [share] * 5


def test_a_part_larger_than_a_fold_is_dealt_by_nodes():
    fold = dealt(task_with([(k, k + 1) for k in range(11)], [0] * 13, 12), 3)
    assert torch.bincount(fold).tolist() == [4, 4, 4]


def test_more_folds_than_nodes_leave_some_empty():
    assert sorted(dealt(task_with([], [0, 1, 0], 2), 5).tolist()) in ([0, 0], [0, 1])


def test_folds_are_drawn():
    task = task_with(PAIRS, [0, 1] * 15 + [0], 30)
    assert torch.equal(dealt(task, 3), dealt(task, 3))
    assert any(not torch.equal(dealt(task, 3), dealt(task, 3, seed)) for seed in range(1, 4))
