"""Graphs, edges, labels and masks of many libraries give the scores of the plain arrays."""

import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData

import edgewise as ew

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # graphs of four nodes

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


def assert_same_joints(*args, **options):
    """Compare the edges only up to rounding, because joints are products that were computed elsewhere."""
    found, expected = ew.evaluate(*args, **options), ew.evaluate(PROBS, Y, EDGES, mask=MASK)
    assert found.edgewise.nll == pytest.approx(expected.edgewise.nll)
    assert found.same_label.brier == pytest.approx(expected.same_label.brier)


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


def test_repeated_entries_of_an_adjacency_do_not_cancel():
    row, column = [0, 0, 1, 2, 0], [1, 1, 2, 3, 3]
    values = np.array([1, -1, 1, 1, 1])
    overflow = np.ones(256 + 3, np.uint8), ([*[0] * 256, 1, 2, 0], [*[1] * 256, 2, 3, 3])
    stored_twice = SparseTensor(*torch.tensor([row, column]), torch.tensor(values))
    assert_plain_scores(PROBS, Y, stored_twice, mask=MASK)
    for data, index in ((values, (row, column)), overflow):
        for matrix in (sp.coo_array((data, index), shape=(4, 4)), sp.coo_matrix((data, index), shape=(4, 4))):
            assert_plain_scores(PROBS, Y, matrix, mask=MASK)
        tensor = torch.sparse_coo_tensor(index, torch.tensor(data), (4, 4), check_invariants=True)
        assert_plain_scores(PROBS, Y, tensor, mask=MASK)


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


def test_plain_inputs_import_no_graph_library():
    code = (
        "import sys, edgewise as ew; ew.evaluate([[0.5, 0.5], [0.2, 0.8]], [0, 1], [(0, 1)]); "
        "print({'pandas', 'networkx', 'dgl', 'scipy.sparse', 'torch_geometric'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert result.stdout.strip() == "set()"


# Class names


NAMES = np.array(["ham", "spam"])


@pytest.mark.parametrize("as_type", [np.array, list, pd.Series, lambda y: pd.Series(y, dtype="category")])
def test_text_labels_are_looked_up_among_class_names(as_type):
    assert_plain_scores(PROBS, as_type(NAMES[Y]), EDGES, mask=MASK, class_names=["ham", "spam"])
    assert_plain_scores(PROBS.flip(1), as_type(NAMES[Y]), EDGES, mask=MASK, class_names=["spam", "ham"])
    assert_plain_scores(pd.DataFrame(PROBS.numpy(), columns=NAMES), as_type(NAMES[Y]), EDGES, mask=MASK)


def test_a_class_without_labels_does_not_shift_the_others():
    wide = torch.cat([torch.zeros(4, 1), PROBS], dim=1)
    ev = ew.evaluate(wide, NAMES[Y], EDGES, class_names=["eggs", "ham", "spam"])
    assert ev.nodewise.accuracy == ew.evaluate(PROBS, Y, EDGES).nodewise.accuracy


@pytest.mark.parametrize("labels", [Y + 1, (Y + 1).double(), [1, 2, 2, 1], pd.Series([1, 2, 2, 1], dtype="Int64")])
def test_integer_labels_are_looked_up_among_integer_names(labels):
    assert_plain_scores(PROBS, labels, EDGES, mask=MASK, class_names=np.array([1.0, 2.0]))


@pytest.mark.parametrize("names", [[1, 2], [1.0, 2.0], np.array([1.0, 2.0])], ids=["integers", "floats", "array"])
def test_whole_floats_name_classes_like_integers(names):
    assert_plain_scores(PROBS, Y + 1, EDGES, mask=MASK, class_names=names)
    assert_plain_scores(pd.DataFrame(PROBS.numpy(), columns=names), Y + 1, EDGES, mask=MASK)
    assert "class_names" in refused(PROBS, Y + 1, EDGES, class_names=[1.0, float("inf")])


def test_boolean_labels_are_looked_up_among_the_classes_of_a_classifier():
    assert_plain_scores(PROBS, Y.bool(), EDGES, mask=MASK, class_names=np.array([False, True]))


def test_integer_labels_are_columns_if_names_are_text():
    assert_plain_scores(PROBS, Y, EDGES, mask=MASK, class_names=["ham", "spam"])
    with pytest.raises(ValueError, match="both to integers"):
        ew.evaluate(PROBS, Y, EDGES, class_names=["1", "2"])


@pytest.mark.parametrize("missing", [None, float("nan"), "", pd.NA, "eggs"])
def test_missing_and_other_labels_outside_the_mask_are_unknown(missing):
    y = pd.Series(["ham", "spam", "spam", missing], dtype=object)
    assert_plain_scores(PROBS, y, EDGES, mask=MASK, class_names=NAMES)
    with pytest.raises(ValueError, match="node 3"):
        ew.evaluate(PROBS, y, EDGES, class_names=NAMES)


def test_table_of_pairs_takes_its_class_names_as_labels():
    table = ew.predict_edges(PROBS, PAIRS, ["same"], class_names=NAMES)
    for y in (Y, NAMES[Y]):
        np.testing.assert_equal(table.outcomes("same", y), ew.predict_edges(PROBS, PAIRS, ["same"]).outcomes("same", Y))


# Graph libraries


def assert_graph_scores(graph):
    """Compare a graph with labels as the second and as the third argument, and in all other functions."""
    assert_plain_scores(PROBS, graph, mask=MASK)
    assert_plain_scores(PROBS, Y, graph, mask=MASK)
    split = SimpleNamespace(val=MASK)
    data = Data(y=Y, edge_index=EDGES)
    for calibrator in (ew.TemperatureScaling(), ew.LocalScaling()):
        expected = calibrator.fit(PROBS.log(), data, split)
        calibrated = calibrator.fit(PROBS.log(), graph, split)
        assert torch.equal(calibrated.posterior().node, expected.posterior().node)
        assert torch.equal(calibrated.apply(PROBS.log(), graph).node, expected.posterior().node)


# Joints of edges (2, 0), (1, 3): rows are labels of the first node, columns of the second.
DIRECTED_PAIRS = [(2, 0), (1, 3)]
DIRECTED_JOINTS = torch.tensor([[[0.1, 0.1], [0.7, 0.1]], [[0.2, 0.0], [0.8, 0.0]]], dtype=torch.float64)
DIRECTED_NLL = -(np.log(0.7) + np.log(0.8)) / 2  # of the labels (1, 0) and (1, 0)


def assert_directed_joints(graph):
    assert ew.evaluate(PROBS, Y, graph, edge_probs=DIRECTED_JOINTS).edgewise.nll == pytest.approx(DIRECTED_NLL)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["y", "label"])
def test_networkx_graph(name):
    nx = pytest.importorskip("networkx")
    graph = nx.Graph()
    nodes = ["dee", ("c", 1), 7, "ann"]  # in this order, whatever their names
    graph.add_nodes_from((node, {name: int(label)}) for node, label in zip(nodes, Y, strict=True))
    graph.add_edges_from((nodes[i], nodes[j]) for i, j in PAIRS)
    assert_graph_scores(graph)
    assert sorted(ew.predict_edges(PROBS, graph)["P(same)"]) == sorted(ew.predict_edges(PROBS, PAIRS)["P(same)"])
    names = {node: str(k) for k, node in enumerate(nodes)}
    table = ew.predict_edges(PROBS, nx.relabel_nodes(graph, names), node_ids=list(names.values()))
    assert {(a, b) for a, b in zip(table["start"], table["end"], strict=True)} == {(str(a), str(b)) for a, b in PAIRS}


@pytest.mark.slow
def test_networkx_graphs_of_other_kinds():
    nx = pytest.importorskip("networkx")
    directed, parallel = nx.DiGraph(), nx.MultiGraph()
    for graph in (directed, parallel):
        graph.add_nodes_from(range(4))
        graph.add_edges_from(PAIRS)
    directed.add_edge(1, 0)
    assert_plain_scores(PROBS, Y, directed, mask=MASK)
    assert_plain_scores(PROBS, Y, list(parallel.edges()), mask=MASK)
    parallel.add_edge(1, 0)
    twice = torch.cat([EDGES, EDGES[:, :1]], dim=1)
    np.testing.assert_equal(scores(PROBS, Y, parallel), scores(PROBS, Y, twice))
    nx.set_node_attributes(directed, {0: "ham", 1: "spam", 2: "spam"}, "label")
    assert_plain_scores(PROBS, directed, mask=MASK, class_names=NAMES)
    with pytest.raises(ValueError, match="node attribute 'y' or 'label'"):
        ew.evaluate(PROBS, parallel)
    with pytest.raises(ValueError, match="each of the 4 nodes"):
        ew.evaluate(PROBS[:3], Y[:3], directed)


@pytest.mark.slow
def test_joints_of_a_networkx_graph_need_directions():
    nx = pytest.importorskip("networkx")
    for kind in (nx.Graph, nx.MultiGraph):
        graph = kind()
        graph.add_nodes_from(range(4))
        graph.add_edges_from(DIRECTED_PAIRS)  # lists (2, 0) as (0, 2)
        assert "list of tuples (start, end)" in refused(PROBS, Y, graph, edge_probs=DIRECTED_JOINTS)
    directed = nx.DiGraph()
    directed.add_nodes_from([2, 1, 0, 3])
    directed.add_edges_from(DIRECTED_PAIRS)
    named = nx.relabel_nodes(directed, {0: "a", 1: "b", 2: "c", 3: "d"})
    order = [2, 1, 0, 3]
    found = ew.evaluate(PROBS[order], Y[order], named, edge_probs=DIRECTED_JOINTS)
    assert found.edgewise.nll == pytest.approx(DIRECTED_NLL)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Graph", "DiGraph", "MultiGraph"])
def test_networkx_nodes_that_are_unsorted_row_numbers_are_refused(kind):
    nx = pytest.importorskip("networkx")
    graph = getattr(nx, kind)([(3, 2), (2, 1), (1, 0)])
    assert list(graph.nodes) == [3, 2, 1, 0]
    nx.set_node_attributes(graph, dict(enumerate(Y.tolist())), "y")
    for arguments in ((PROBS, graph), (PROBS, Y, graph)):
        message = refused(*arguments)
    path = [(0, 1), (1, 2), (2, 3)]
    expected = scores(PROBS, Y, path)

    assert "ordered.add_nodes_from(sorted(graph.nodes(data=True))); ordered.add_edges_from(graph.edges)" in message
    ordered = type(graph)()
    ordered.add_nodes_from(sorted(graph.nodes(data=True)))
    ordered.add_edges_from(graph.edges)
    np.testing.assert_equal(scores(PROBS, ordered), expected)
    np.testing.assert_equal(scores(PROBS, Y, ordered), expected)

    assert "nx.convert_node_labels_to_integers(graph)" in message
    numbered = nx.convert_node_labels_to_integers(graph)
    np.testing.assert_equal(scores(PROBS[list(graph.nodes)], numbered), expected)


@pytest.mark.slow
def test_dgl_graph(monkeypatch):
    monkeypatch.setenv("DGLBACKEND", "pytorch")
    dgl = pytest.importorskip("dgl")
    graph = dgl.graph(tuple(EDGES), num_nodes=4)
    with pytest.raises(ValueError, match="ndata"):
        ew.evaluate(PROBS, graph)
    graph.ndata["label"] = Y
    assert_graph_scores(graph)
    assert_directed_joints(dgl.graph(tuple(torch.tensor(DIRECTED_PAIRS).T), num_nodes=4))
    assert_plain_scores(PROBS, Y, graph.edges(), mask=MASK)
    for name in ("train_mask", "val_mask", "test_mask"):
        graph.ndata[name] = MASK.byte()
    assert torch.equal(ew.Split.from_data(graph).val, MASK)
    several = dgl.heterograph({("user", "knows", "user"): tuple(EDGES), ("user", "likes", "item"): tuple(EDGES)})
    with pytest.raises(ValueError, match=r"graph.edges\(etype=…\)"):
        ew.evaluate(PROBS, several)
    assert_plain_scores(PROBS, Y, several.edges(etype="knows"), mask=MASK)


# Mistakes: each message says how to continue, and that works.


def refused(*args, **options):
    with pytest.raises(ValueError) as error:
        ew.evaluate(*args, **options)
    return str(error.value)


LOGITS = PROBS.log() + 1
HETERO = HeteroData()
HETERO["paper"].y = Y
HETERO["paper", "cites", "paper"].edge_index = EDGES

MISTAKES = {  # the arguments, the advice, and the arguments after the advice is followed
    "logits": ((LOGITS, Y, EDGES), "logits.softmax(-1)", lambda p, y, e: (p.softmax(-1), y, e)),
    "percentages": ((PROBS * 100, Y, EDGES), "np.asarray(p) / 100", lambda p, y, e: (np.asarray(p) / 100, y, e)),
    "transposed": ((PROBS.T, Y, EDGES), "probs.T", lambda p, y, e: (p.T, y, e)),
    "one column": (
        (PROBS[:, 1:], Y, EDGES),
        "np.column_stack([1 - p, p])",
        lambda p, y, e: (np.column_stack([1 - p, p]), y, e),
    ),
    "one dimension": (
        (PROBS[:, 1], Y, EDGES),
        "np.column_stack([1 - p, p])",
        lambda p, y, e: (np.column_stack([1 - p, p]), y, e),
    ),
    "sparse probs": ((PROBS.to_sparse(), Y, EDGES), ".to_dense()", lambda p, y, e: (p.to_dense(), y, e)),
    "scipy probs": (
        (sp.csr_array(PROBS.numpy()), Y, EDGES),
        "probs.toarray()",
        lambda p, y, e: (p.toarray(), y, e),
    ),
    "labels from 1": (
        (PROBS, [1, 2, 2, 1], EDGES),
        "np.maximum(np.asarray(y), 0) - 1",
        lambda p, y, e: (p, np.maximum(np.asarray(y), 0) - 1, e),
    ),
    "float labels": ((PROBS, Y.double(), EDGES), "y.long()", lambda p, y, e: (p, y.long(), e)),
    "list of float labels": (
        (PROBS, [0.0, 1.0, 1.0, 0.0], EDGES),
        "y.astype(int)). Before that, convert the list to an array: y = np.array(y)",
        lambda p, y, e: (p, np.array(y).astype(int), e),
    ),
    "one-hot labels": (
        (PROBS, torch.eye(2)[Y].tolist(), EDGES),
        "y.argmax(-1). Before that, convert the list to an array: y = np.array(y)",
        lambda p, y, e: (p, np.array(y).argmax(-1), e),
    ),
    "NaN labels": (
        (PROBS, [0.0, 1.0, 1.0, float("nan")], EDGES),
        "np.nan_to_num(np.asarray(y, float), nan=-1).astype(int)",
        lambda p, y, e: (p, np.nan_to_num(np.asarray(y, float), nan=-1).astype(int), e),
    ),
    "transposed edges": ((PROBS, Y, EDGES.repeat(1, 2).T), "edge_index.T", lambda p, y, e: (p, y, e.T[:, :4])),
    "list of lists": (
        (PROBS, Y, [list(pair) for pair in PAIRS]),
        "edge_index.T. Before that, convert the list to an array: edge_index = np.array(edge_index)",
        lambda p, y, e: (p, y, np.array(e).T),
    ),
    "float edges": ((PROBS, Y, EDGES.double()), "edge_index.long()", lambda p, y, e: (p, y, e.long())),
    "float pairs": (
        (PROBS, Y, [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (0.0, 3.0)]),
        "edge_index.astype(int)). Before that, convert the list to an array: edge_index = np.array(edge_index).T",
        lambda p, y, e: (p, y, np.array(e).T.astype(int)),
    ),
    "float table": (
        (PROBS, Y, pd.DataFrame(PAIRS, dtype=float)),
        "edge_index.astype(int)",
        lambda p, y, e: (p, y, e.astype(int)),
    ),
    "pairs from 1": (
        (PROBS, Y, [(i + 1, j + 1) for i, j in PAIRS]),
        "edge_index - 1. Before that, convert the list to an array: edge_index = np.array(edge_index).T",
        lambda p, y, e: (p, y, np.array(e).T - 1),
    ),
    "weighted pairs": (
        (PROBS, Y, [(i, j, 0.5) for i, j in PAIRS]),
        "[tuple(entry)[:2] for entry in edge_index]",
        lambda p, y, e: (p, y, [tuple(entry)[:2] for entry in e]),
    ),
    "rows of starts and ends": (
        (PROBS, Y, tuple(map(tuple, EDGES.tolist()))),
        "np.array(edge_index)",
        lambda p, y, e: (p, y, np.array(e)),
    ),
    "weighted table": (
        (PROBS, Y, pd.DataFrame([(i, j, 0.5) for i, j in PAIRS], columns=["from", "to", "weight"])),
        "edge_index[['from', 'to']]",
        lambda p, y, e: (p, y, e[["from", "to"]].astype(int)),
    ),
    "named pairs": (
        (PROBS, Y, [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")]),
        "row = {node: k for k, node in enumerate(nodes)}, then [(row[i], row[j]) for i, j in pairs]",
        lambda p, y, e: (p, y, [("abcd".index(i), "abcd".index(j)) for i, j in e]),
    ),
    "dense adjacency": (
        (PROBS, Y, sp.coo_array((np.ones(4), EDGES.numpy()), shape=(4, 4)).toarray()),
        "scipy.sparse.csr_array(edge_index)",
        lambda p, y, e: (p, y, sp.csr_array(e)),
    ),
    "dense adjacency tensor": (
        (PROBS, Y, torch.zeros(4, 4).index_put(tuple(EDGES), torch.ones(4))),
        "edge_index.to_sparse()",
        lambda p, y, e: (p, y, e.to_sparse()),
    ),
    "dense adjacency table": (
        (PROBS, Y, pd.DataFrame(sp.coo_array((np.ones(4), EDGES.numpy()), shape=(4, 4)).toarray())),
        "scipy.sparse.csr_array(edge_index)",
        lambda p, y, e: (p, y, sp.csr_array(e)),
    ),
    "graph without edges": ((PROBS, Data(y=Y)), "ew.evaluate(probs, data.y)", lambda p, d: (p, d.y, EDGES)),
    "graph without labels": (
        (PROBS, Data(edge_index=EDGES)),
        "ew.evaluate(probs, y, graph)",
        lambda p, d: (p, Y, d),
    ),
    "several types": (
        (PROBS, HETERO),
        "data[edge_type].edge_index",
        lambda p, d: (p, d["paper"].y, d["paper", "cites", "paper"].edge_index),
    ),
    "graph first": ((Data(y=Y, edge_index=EDGES), PROBS), "ew.evaluate(probs, data)", lambda d, p: (p, d)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_advice_works_when_it_is_followed(name):
    arguments, advice, follow = MISTAKES[name]
    assert advice in refused(*arguments)
    corrected = ew.evaluate(*follow(*arguments), mask=MASK)
    assert corrected.edgewise.nll == pytest.approx(ew.evaluate(PROBS, Y, EDGES, mask=MASK).edgewise.nll)


def test_advice_about_masks_works():
    message = refused(PROBS, Y, EDGES, mask=[0, 1, 2])
    assert "np.isin(np.arange(4), mask)" in message
    assert_plain_scores(PROBS, Y, EDGES, mask=np.isin(np.arange(4), [0, 1, 2]))
    parts = ["test", "test", "test", "train"]
    assert "np.asarray(column) == 'test'" in refused(PROBS, Y, EDGES, mask=parts)
    assert_plain_scores(PROBS, Y, EDGES, mask=np.asarray(parts) == "test")
    assert "split.test" in refused(PROBS, Y, EDGES, mask=ew.Split(MASK, MASK, MASK))
    assert "mask[:, k]" in refused(PROBS, Y, EDGES, mask=MASK[:, None].repeat(1, 2))
    assert "with mask=np.isin(y, range(2))" in refused(PROBS, [0, 1, 1, None], EDGES)
    assert_plain_scores(PROBS, [0, 1, 1, None], EDGES, mask=np.isin([0, 1, 1, None], range(2)))


def test_advice_about_class_names_works():
    message = refused(PROBS, NAMES[Y], EDGES)
    assert "class_names=" in message and "clf.classes_" in message
    y = ["ham", "spam", "spam", "spma"]
    message = refused(PROBS, y, EDGES, class_names=NAMES)
    assert "node 3 is 'spma'" in message and "Did you mean 'spam'?" in message
    assert "mask=np.isin(y, class_names)" in message
    assert_plain_scores(PROBS, y, EDGES, mask=np.isin(y, NAMES), class_names=NAMES)
    table = pd.DataFrame(PROBS.numpy(), columns=NAMES)
    assert "mask=np.isin(y, probs.columns)" in refused(table, y, EDGES)
    assert_plain_scores(table, y, EDGES, mask=np.isin(y, table.columns))
    assert "one per column of probs" in refused(PROBS, y, EDGES, class_names=["ham"])


def test_advice_keeps_the_mask_of_the_caller():
    test_nodes = np.array([False, True, True, True])
    expected = scores(PROBS, Y, EDGES, mask=[False, True, True, False])
    for mask in (test_nodes, torch.from_numpy(test_nodes), test_nodes.tolist(), test_nodes.astype(float)):
        y = [0, 1, 1, -1]
        assert "mask=np.asarray(mask, bool) & np.isin(y, range(2))" in refused(PROBS, y, EDGES, mask=mask)
        np.testing.assert_equal(scores(PROBS, y, EDGES, mask=np.asarray(mask, bool) & np.isin(y, range(2))), expected)
        y = ["ham", "spam", "spam", "eggs"]
        message = refused(PROBS, y, EDGES, mask=mask, class_names=NAMES)
        assert "mask=np.asarray(mask, bool) & np.isin(y, class_names)" in message
        both = np.asarray(mask, bool) & np.isin(y, NAMES)
        np.testing.assert_equal(scores(PROBS, y, EDGES, mask=both, class_names=NAMES), expected)


def test_advice_about_labels_of_minus_one_and_one_works():
    signed = 2 * Y - 1
    assert "class_names=[-1, 1]" in refused(PROBS, signed, EDGES)
    assert_plain_scores(PROBS, signed, EDGES, mask=MASK, class_names=[-1, 1])
    assert "class_names" not in refused(PROBS, [0, 1, -1, 1], EDGES)


def test_advice_about_labels_of_another_type_works():
    table = pd.DataFrame(PROBS.numpy(), columns=["1", "2"])
    assert "class_names=[int(name) for name in probs.columns]" in refused(table, Y + 1, EDGES)
    assert_plain_scores(table, Y + 1, EDGES, mask=MASK, class_names=[int(name) for name in table.columns])
    y = ["1", "2", "2", "1"]
    message = refused(PROBS, y, EDGES, class_names=[1, 2])
    assert "class_names=[str(name) for name in class_names]" in message and "Did you mean" not in message
    assert_plain_scores(PROBS, y, EDGES, mask=MASK, class_names=[str(name) for name in [1, 2]])
    for y in (NAMES[Y].astype("S"), [b"ham", b"spam", b"spam", b"ham"]):
        assert "y = [label.decode() for label in y]" in refused(PROBS, y, EDGES, class_names=NAMES)
        assert_plain_scores(PROBS, [label.decode() for label in y], EDGES, mask=MASK, class_names=NAMES)


def test_joints_need_edges_in_an_order():
    joints = ew.IndependentPosterior(PROBS).joint(EDGES)
    adjacency = EDGE_FORMS["scipy csr_array"]
    for edges in (adjacency, EDGE_FORMS["adj_t"], set(PAIRS), frozenset(PAIRS), SimpleNamespace(edge_index=adjacency)):
        assert "in the order of edge_probs" in refused(PROBS, Y, edges, edge_probs=joints)
    assert_same_joints(PROBS, Y, PAIRS, mask=MASK, edge_probs=joints)


def test_joints_belong_to_edges_in_their_direction():
    assert_directed_joints(DIRECTED_PAIRS)
    assert_directed_joints(torch.tensor(DIRECTED_PAIRS).T)
    assert_directed_joints(pd.DataFrame(DIRECTED_PAIRS))
    edge_index = torch.tensor(DIRECTED_PAIRS).T
    assert_directed_joints(Data(edge_index=edge_index, adj_t=sparse_tensor(torch.sparse_csr), num_nodes=4))
    assert_directed_joints(edge_index.numpy())
    swapped = [pair[::-1] for pair in DIRECTED_PAIRS]
    assert ew.evaluate(PROBS, Y, swapped, edge_probs=DIRECTED_JOINTS.mT).edgewise.nll == pytest.approx(DIRECTED_NLL)


# Rounded probabilities


def test_rounded_probabilities_are_normalized_on_request():
    rounded = np.array([[0.333, 0.333, 0.333], [0.1, 0.2, 0.71]])
    y, edges = [0, 2], [(0, 1)]
    assert "normalize=True" in refused(rounded, y, edges) and "--normalize" in refused(rounded, y, edges)
    expected = scores(rounded / rounded.sum(1, keepdims=True), y, edges)
    np.testing.assert_equal(scores(rounded, y, edges, normalize=True), expected)
    np.testing.assert_equal(scores(ew.wrap(rounded, normalize=True), y, edges), expected)
    joints = rounded[0, :, None] * rounded[1]
    normalized = ew.evaluate(rounded, y, edges, normalize=True, edge_probs=joints[None])
    assert normalized.edgewise.nll == pytest.approx(-np.log(joints[0, 2] / joints.sum()))
    with pytest.raises(ValueError, match="normalize=True"):
        ew.predict_edges(rounded, edges)
    assert len(ew.predict_edges(ew.wrap(rounded, normalize=True), edges)) == 1


@pytest.mark.parametrize("probs", [LOGITS, PROBS * 100, PROBS * 1.03, PROBS * 0, PROBS[:, :1], PROBS.long()])
def test_logits_and_percentages_are_never_normalized(probs):
    assert "normalize" not in refused(probs, Y, EDGES, normalize=True)


def test_normalize_keeps_the_dtype_and_gradient():
    probs = torch.tensor([[0.33, 0.66]], dtype=torch.float32, requires_grad=True)
    node = ew.wrap(probs, normalize=True).node
    assert node.dtype == torch.float32 and node.requires_grad


def test_pandas_rows_in_another_order_are_refused():
    names, shuffled = ["a", "b", "c", "d"], ["c", "a", "d", "b"]
    probs = pd.DataFrame([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], index=names)
    y = pd.Series([0, 1, 0, 1], index=names)
    expected = ew.evaluate(probs.to_numpy(), y.to_numpy()).nodewise.nll
    with pytest.raises(ValueError, match=r"y\.loc\[probs\.index\]"):
        ew.evaluate(probs, y.loc[shuffled])
    with pytest.raises(ValueError, match=r"mask\.loc\[probs\.index\]"):
        ew.evaluate(probs, y.to_numpy(), mask=pd.Series([True] * 4, index=shuffled))
    assert ew.evaluate(probs, y.loc[shuffled].loc[probs.index]).nodewise.nll == expected
    assert ew.evaluate(probs, y.reset_index(drop=True)).nodewise.nll == expected  # another index: by position
