"""Graphs, edges, labels and masks of many libraries give the scores of the plain arrays."""

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

import edgewise as ew

PROBS = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]], dtype=torch.float64)
Y = torch.tensor([0, 1, 1, 0])
EDGES = torch.tensor([[0, 1, 2, 0], [1, 2, 3, 3]])
MASK = torch.tensor([True, True, True, False])
PAIRS = [(0, 1), (1, 2), (2, 3), (0, 3)]


class SparseTensor:
    """The methods of `torch_sparse.SparseTensor` that are used, for an N x N matrix."""

    def __init__(self, row, col, value=None):
        self.entries = row, col, value

    def coo(self):
        return self.entries

    def sparse_sizes(self):
        return [4, 4]


def sparse_tensor(layout):
    adjacency = torch.sparse_coo_tensor(EDGES, torch.ones(4), (4, 4), check_invariants=True).coalesce()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls these layouts beta
        return adjacency.to_sparse(layout=layout)


def scores(*args, **options):
    return ew.evaluate(*args, **options).to_dict()


def assert_plain_scores(*args, **options):
    np.testing.assert_equal(scores(*args, **options), scores(PROBS, Y, EDGES, mask=MASK))


EDGE_FORMS = {
    "nested lists": EDGES.tolist(),
    "tuple of tensors": tuple(EDGES),
    "tuple of arrays": tuple(EDGES.numpy()),
    "list of pairs": PAIRS,
    "tuple of pairs": tuple(PAIRS),
    "set of pairs": set(PAIRS),
    "zip": list(zip(*EDGES.tolist(), strict=True)),
    "frame": pd.DataFrame(PAIRS, columns=["source", "target"]),
    "nullable frame": pd.DataFrame(PAIRS, dtype="Int64"),
    "objects": np.array(EDGES.tolist(), dtype=object),
    "int32": EDGES.int().numpy(),
    "torch coo": sparse_tensor(torch.sparse_coo),
    "torch csr": sparse_tensor(torch.sparse_csr),
    "torch csc": sparse_tensor(torch.sparse_csc),
    "torch bool": sparse_tensor(torch.sparse_coo).bool(),
    "SparseTensor": SparseTensor(*EDGES),
    "SparseTensor with values": SparseTensor(
        *EDGES.new_tensor([[0, 1, 2, 0, 0], [1, 2, 3, 3, 2]]), torch.tensor([1, 1, 1, 1, 0])
    ),
    "PyG": Data(edge_index=EDGES, num_nodes=4),
    "adj_t": Data(adj_t=sparse_tensor(torch.sparse_csr), num_nodes=4),
    "adj_t SparseTensor": Data(adj_t=SparseTensor(*EDGES), num_nodes=4),
    "any object": SimpleNamespace(edge_index=EDGES.numpy()),
} | {
    f"scipy {kind.__name__}": kind(sp.coo_array((np.ones(4), EDGES.numpy()), shape=(4, 4)))
    for kind in (sp.coo_array, sp.csr_array, sp.csc_array, sp.lil_array, sp.dok_array, sp.csr_matrix, sp.bsr_array)
}


@pytest.mark.parametrize("name", EDGE_FORMS)
def test_edges_of_any_form_give_the_same_scores(name):
    assert_plain_scores(PROBS, Y, EDGE_FORMS[name], mask=MASK)


def test_stored_zeros_and_repeated_entries_of_an_adjacency_are_not_further_edges():
    row, column = [0, 0, 1, 2, 0, 0], [1, 1, 2, 3, 3, 2]
    assert_plain_scores(PROBS, Y, sp.coo_array(([1, 1, 1, 1, 1, 0], (row, column)), shape=(4, 4)), mask=MASK)
    values = torch.tensor([1.0, 1, 1, 1, 1, 0])
    assert_plain_scores(
        PROBS, Y, torch.sparse_coo_tensor([row, column], values, (4, 4), check_invariants=True), mask=MASK
    )


@pytest.mark.parametrize(
    "data",
    [
        Data(y=Y, edge_index=EDGES),
        Data(y=Y[:, None], edge_index=EDGES),
        Data(y=Y, adj_t=sparse_tensor(torch.sparse_csc)),
        SimpleNamespace(y=Y.tolist(), edge_index=PAIRS),
    ],
    ids=["Data", "column of labels", "adj_t", "any object"],
)
def test_graph_supplies_labels_and_edges(data):
    assert_plain_scores(PROBS, data, mask=MASK)
    metric = ew.GraphCalibration()
    metric.update(PROBS, data, mask=MASK)
    assert metric.compute().edgewise.nll == ew.evaluate(PROBS, Y, EDGES, mask=MASK).edgewise.nll
    assert ew.selective(PROBS, data, mask=MASK).to_dict() == ew.selective(PROBS, Y, EDGES, mask=MASK).to_dict()


PROB_FORMS = {
    "lists": PROBS.tolist(),
    "frame": pd.DataFrame(PROBS.numpy()),
    "frame of names": pd.DataFrame(PROBS.numpy(), columns=["ham", "spam"]),
    "array": PROBS.numpy(),
}


@pytest.mark.parametrize("name", PROB_FORMS)
def test_probabilities_labels_and_masks_of_any_form_give_the_same_scores(name):
    labels = (Y, Y.numpy(), Y.tolist(), pd.Series(Y.numpy()), pd.Series(Y.tolist(), dtype="Int64"), Y[:, None].tolist())
    for y in labels:
        assert_plain_scores(PROB_FORMS[name], y, EDGES, mask=MASK)
    for mask in (MASK.numpy(), MASK.tolist(), pd.Series(MASK.numpy()), MASK.byte(), MASK.float(), [1, 1, 1, 0]):
        assert_plain_scores(PROB_FORMS[name], Y, EDGES, mask=mask)


def test_labels_alone_score_nodes_only():
    ev = ew.evaluate(PROBS, Y)
    assert ev.nodewise.count == 4 and ev.edgewise.count == ev.agree.count == 0
    assert np.isnan(ev.edgewise.nll) and np.isnan(ev.homophily)
    np.testing.assert_equal(ev.to_dict(), scores(PROBS, Y, []))
