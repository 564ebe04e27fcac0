"""`predict_edges` against enumeration and loops over labels."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import edgewise as ew
from edgewise.decisions import events, predict_edges
from helpers.reference.enumeration import Enumeration

EVENTS = ("same", "different", "both_correct", "both=1", "any=1", "only_one=1")
HOLDS = {
    "same": lambda k, m: k == m,
    "different": lambda k, m: k != m,
    "both=1": lambda k, m: k == 1 and m == 1,
    "any=1": lambda k, m: k == 1 or m == 1,
    "only_one=1": lambda k, m: (k == 1) != (m == 1),
}


def random_probs(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return (1.5 * torch.randn(*shape, generator=g, dtype=torch.float64)).softmax(-1)


def probability(joint, holds):
    """Return the sum of a joint over the label pairs for which ``holds`` is true."""
    return sum(joint[k][m] for k, m in product(range(len(joint)), repeat=2) if holds(k, m))


def assert_row(predictions, row, joint, predicted):
    """Compare a row of the table with a joint."""
    for name, holds in HOLDS.items():
        assert predictions[f"P({name})"][row] == pytest.approx(probability(joint, holds), abs=1e-9), name
    assert predictions["P(both_correct)"][row] == pytest.approx(joint[predicted[0]][predicted[1]], abs=1e-9)
    k, m = np.unravel_index(np.argmax(joint), np.shape(joint))
    assert (predictions["start_label"][row], predictions["end_label"][row]) == (k, m)
    assert predictions["P(labels)"][row] == pytest.approx(np.max(joint), abs=1e-9)
    assert (predictions["start_predicted"][row], predictions["end_predicted"][row]) == tuple(predicted)


@pytest.mark.parametrize("num_classes", [2, 3, 4])
def test_tree_matches_enumeration_of_all_labelings(num_classes):
    g = np.random.default_rng(num_classes)
    edges = [(0, 1), (2, 1), (1, 3), (4, 3)]
    unary, couplings = g.normal(size=(5, num_classes)), g.normal(size=(4, num_classes, num_classes))
    exact = Enumeration(unary.tolist(), edges, couplings.tolist())
    mrf = ew.PairwiseMRF(torch.tensor(unary), torch.tensor(edges).T, torch.tensor(couplings))
    posterior, _ = ew.sum_product(mrf)
    pairs = [(0, 1), (1, 2), (3, 1), (4, 3)]  # some are reversed edges of the MRF
    predictions = predict_edges(posterior, pairs, EVENTS)
    nodes = exact.nodes()
    for row, (i, j) in enumerate(pairs):
        assert_row(predictions, row, exact.joint([i, j]), (nodes[i].argmax(), nodes[j].argmax()))
    assert set(predictions["method"]) == {"belief of the edge"}
    assert "exact" in predictions.convergence or "converged" in predictions.convergence


@pytest.mark.parametrize("chunk", [1 << 21, 1])
def test_clamping_gives_the_joints_of_all_pairs_of_a_tree(chunk, monkeypatch):
    monkeypatch.setattr(events, "CHUNK_ELEMENTS", chunk)
    g = np.random.default_rng(0)
    edges = [(0, 1), (2, 1), (1, 3), (4, 3)]
    unary, couplings = g.normal(size=(5, 3)), g.normal(size=(4, 3, 3))
    exact = Enumeration(unary.tolist(), edges, couplings.tolist())
    mrf = ew.PairwiseMRF(torch.tensor(unary), torch.tensor(edges).T, torch.tensor(couplings))
    pairs = [(4, 0), (0, 1), (2, 3), (3, 1), (0, 4), (2, 4)]
    finished = []
    predictions = predict_edges(
        ew.sum_product(mrf)[0], pairs, EVENTS, clamp=True, progress=lambda *done: finished.append(done)
    )
    nodes = exact.nodes()
    for row, (i, j) in enumerate(pairs):
        assert_row(predictions, row, exact.joint([i, j]), (nodes[i].argmax(), nodes[j].argmax()))
        assert predictions["method"][row] == ("belief of the edge" if row in (1, 3) else "clamping")
    assert finished == sorted(finished) and finished[-1] == (6, 6)


def test_clamping_changes_nothing_for_independent_nodes():
    probs = random_probs(4, 3)
    tables = [predict_edges(probs, [(0, 1), (2, 3)], clamp=clamp) for clamp in (False, True)]
    assert str(tables[0]) == str(tables[1])


def test_pair_without_an_mrf_edge_uses_the_product_of_marginals():
    mrf = ew.PairwiseMRF(random_probs(4, 3).log(), torch.tensor([[0, 1], [1, 2]]), torch.eye(3, dtype=torch.float64))
    posterior, _ = ew.sum_product(mrf)
    predictions = predict_edges(posterior, [(2, 0), (2, 1), (3, 0)], EVENTS)
    assert predictions["method"].tolist() == ["product: no edge", "belief of the edge", "product: no edge"]
    node = posterior.node.numpy()
    for row, (i, j) in ((0, (2, 0)), (2, (3, 0))):
        assert_row(predictions, row, np.outer(node[i], node[j]), (node[i].argmax(), node[j].argmax()))
    assert predictions.convergence.startswith("converged in")


def test_mixture_joint_is_the_mean_of_products():
    samples = random_probs(3, 4, 3, seed=1)
    predictions = predict_edges(ew.MixturePosterior(samples), [(0, 1), (3, 2)], EVENTS)
    for row, (i, j) in enumerate([(0, 1), (3, 2)]):
        joint = np.mean([np.outer(sample[i], sample[j]) for sample in samples.numpy()], axis=0)
        assert_row(predictions, row, joint, samples.mean(0).argmax(-1)[[i, j]].tolist())
    assert set(predictions["method"]) == {"mixture of 3 samples"}


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 25), st.sampled_from([torch.float64, torch.float32]))
def test_closed_forms_for_independent_nodes_match_sums_over_the_joint(seed, num_classes, top, dtype):
    node = random_probs(6, num_classes, seed=seed).to(dtype)
    top = min(top, num_classes**2)
    pairs = [(0, 1), (2, 1), (5, 4)]
    asymmetric = torch.rand(num_classes, num_classes, generator=torch.Generator().manual_seed(seed)) < 0.5
    events = ["same", "different", "both_correct", ("mine", asymmetric)]
    predictions = predict_edges(node, pairs, events, top=top)
    for row, (i, j) in enumerate(pairs):
        p, q = (node[k].double() / node[k].double().sum() for k in (i, j))
        joint = torch.outer(p, q)
        expected = {"same": joint.trace(), "different": joint.sum() - joint.trace(), "mine": joint[asymmetric].sum()}
        expected["both_correct"] = joint[p.argmax(), q.argmax()]
        for name, value in expected.items():
            assert predictions[f"P({name})"][row] == pytest.approx(float(value), abs=1e-12)
        ranked = sorted(product(range(num_classes), repeat=2), key=lambda pair: -float(joint[pair]))[:top]
        suffixes = ["", *(f"_{k}" for k in range(2, top + 1))]
        assert [
            (predictions[f"start_label{suffix}"][row], predictions[f"end_label{suffix}"][row]) for suffix in suffixes
        ] == ranked
        probabilities = [predictions[f"P(labels{suffix})"][row] for suffix in suffixes]
        assert probabilities == pytest.approx([float(joint[pair]) for pair in ranked], abs=1e-12)


def test_ties_between_labels_are_broken_by_the_lower_label():
    node = torch.tensor([[0.4, 0.6], [0.6, 0.4]], dtype=torch.float64)
    for belief in (node, ew.MixturePosterior(node[None])):
        predictions = predict_edges(belief, [(0, 1)], top=4)
        labels = [(predictions[f"start_label{k}"][0], predictions[f"end_label{k}"][0]) for k in ("", "_2", "_3", "_4")]
        assert labels == [(1, 0), (0, 0), (1, 1), (0, 1)]


def posteriors(seed, num_classes=3):
    """Return a ring of five nodes and one posterior of each kind on it."""
    ring = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
    g = torch.Generator().manual_seed(seed)
    coupling = torch.randn(5, num_classes, num_classes, generator=g, dtype=torch.float64)
    mrf = ew.PairwiseMRF(random_probs(5, num_classes, seed=seed).log(), ring, coupling)
    return ring, {
        "independent": ew.IndependentPosterior(random_probs(5, num_classes, seed=seed)),
        "mixture": ew.MixturePosterior(random_probs(3, 5, num_classes, seed=seed)),
        "pairwise": ew.exact_marginals(mrf)[0],
    }


@pytest.mark.parametrize("kind", ["independent", "mixture", "pairwise"])
@given(seed=st.integers(0, 2**32), order=st.permutations(range(5)))
@settings(max_examples=6)
def test_rows_are_independent_and_swapping_ends_swaps_columns(kind, seed, order):
    ring, kinds = posteriors(seed)
    predictions = predict_edges(kinds[kind], ring, EVENTS, top=2)
    shuffled = predict_edges(kinds[kind], ring[:, order], EVENTS, top=2)
    swapped = predict_edges(kinds[kind], ring.flip(0), EVENTS, top=2)
    other_side = {"start": "end", "end": "start"}
    for name, column in predictions.columns.items():
        if column.dtype.kind == "f":
            assert shuffled[name] == pytest.approx(column[list(order)], abs=1e-14)
        else:
            assert shuffled[name].tolist() == column[list(order)].tolist()
        side, _, rest = name.partition("_")
        if side in other_side and rest[:5] != "label":
            assert swapped["_".join(filter(None, [other_side[side], rest]))].tolist() == column.tolist()
        elif name.startswith("P("):
            assert swapped[name] == pytest.approx(column, abs=1e-12)
    assert swapped["end_label"].tolist() == predictions["start_label"].tolist()


@pytest.mark.parametrize("kind", ["independent", "mixture"])
@given(seed=st.integers(0, 2**32), order=st.permutations(range(3)))
@settings(max_examples=6)
def test_permuting_classes_permutes_only_their_names(kind, seed, order):
    ring, kinds = posteriors(seed)
    names = np.array(["a", "b", "c"])
    events = ["same", "both_correct", "any=b"]
    permuted = type(kinds[kind])(
        **{
            name: tensor[..., list(order)] if tensor.shape[-1] == 3 and name != "weights" else tensor
            for name, tensor in kinds[kind].tensors().items()
        }
    )
    before = predict_edges(kinds[kind], ring, events, class_names=names)
    after = predict_edges(permuted, ring, events, class_names=names[list(order)])
    for name, column in before.columns.items():
        if name.startswith("P("):
            assert after[name] == pytest.approx(column, abs=1e-12)
        else:
            assert after[name].tolist() == column.tolist()


@pytest.mark.parametrize("kind", ["independent", "mixture", "pairwise"])
def test_chunk_size_does_not_change_results(kind, monkeypatch):
    ring, kinds = posteriors(7)
    pairs = torch.cat([ring, torch.tensor([[0, 1], [2, 3]])], dim=1)
    whole = predict_edges(kinds[kind], pairs, EVENTS, top=3).columns
    monkeypatch.setattr(events, "CHUNK_ELEMENTS", 1)
    parts = predict_edges(kinds[kind], pairs, EVENTS, top=3).columns
    for name, column in whole.items():
        if column.dtype.kind == "f":
            assert parts[name] == pytest.approx(column, abs=1e-14)
        else:
            assert parts[name].tolist() == column.tolist()


@pytest.mark.parametrize("ids", [["u7", "x", "ü", "7"], [70, 3, -5, 2**40], np.array([9, 8, 7, 6], np.uint8)])
def test_node_ids_are_used_in_pairs_and_table(ids):
    node = random_probs(4, 3)
    by_number = predict_edges(node, [(3, 0), (1, 2)], EVENTS)
    id_pairs = [(ids[3], ids[0]), (ids[1], ids[2])]
    for pairs in (id_pairs, np.array(id_pairs).T):
        by_id = predict_edges(node, pairs, EVENTS, node_ids=ids)
        assert [*zip(by_id["start"].tolist(), by_id["end"].tolist(), strict=True)] == [tuple(pair) for pair in id_pairs]
        assert by_id["P(same)"].tolist() == by_number["P(same)"].tolist()


def test_arrays_and_nested_lists_hold_pairs_as_columns_and_tuples_are_pairs():
    node = random_probs(3, 2)
    square = [[0, 0], [1, 2]]
    assert predict_edges(node, np.array(square))["end"].tolist() == [1, 2]
    assert predict_edges(node, square)["end"].tolist() == [1, 2]
    assert predict_edges(node, [(0, 2), (1, 2)])["end"].tolist() == [2, 2]
    assert predict_edges(node, torch.tensor([[0, 1], [2, 2]]))["end"].tolist() == [2, 2]


def test_convergence_is_reported_as_text():
    stuck = ew.Convergence(False, 5, 0.3, "Did not converge in 5 sweeps.")
    node = random_probs(2, 2)

    def solved(convergence):
        return predict_edges(ew.IndependentPosterior(node, convergence=convergence), [(0, 1)])

    assert solved(stuck)["convergence"].tolist() == ["Did not converge in 5 sweeps."]
    assert "converged in 7 sweeps" in str(solved(ew.Convergence(True, 7, 1e-9)))
    assert solved(ew.Convergence(True, 0, 0.0)).convergence == "exact"
    assert predict_edges(node, [(0, 1)]).convergence == "nothing to converge"
    edge, joint = torch.tensor([[0], [1]]), (node[0, :, None] * node[1])[None]
    assert predict_edges(ew.PairwisePosterior.from_joints(node, edge, joint), [(0, 1)]).convergence == "not recorded"


INVALID = [
    ({"pairs": [(0, 0)]}, "pair 0 is 0 with itself"),
    ({"pairs": [(0, 1), (0, 9)]}, "pair 1 has 9"),
    ({"pairs": [(0, -1)]}, "pair 0 has -1"),
    ({"pairs": [(0, 1, 2)]}, r"entry 0 is \(0, 1, 2\)"),
    ({"pairs": ["ab"]}, r"got shape \(1,\)"),
    ({"pairs": [[0, 1], [1, 2], [2, 0]]}, r"\(3, 2\).*\[tuple\(pair\) for pair in pairs\]"),
    ({"pairs": np.zeros((5, 2), int)}, r"\(5, 2\). Pass pairs.T"),
    ({"pairs": [("a", "b")]}, "pass node_ids"),
    ({"pairs": np.array([[0.0], [1.0]])}, "got float64"),
    ({"node_ids": ["a", "b"]}, r"node_ids of shape \(3,\)"),
    ({"node_ids": ["a", "b", "a"]}, "'a' twice"),
    ({"node_ids": ["a", "b", 1]}, "got int"),
    ({"node_ids": [0.5, 1.5, 2.5]}, "got float"),
    ({"node_ids": ["a", "b", "c"], "pairs": [("a", "z")]}, "pair 0 has 'z'"),
    ({"node_ids": ["a", "b", "c"], "pairs": [(0, 1)]}, "such as 'a', but got ids such as 0"),
    ({"node_ids": [5, 6, 7], "pairs": [("5", "6")]}, "such as 5, but got ids such as '5'"),
    ({"class_names": ["a"]}, r"class_names of shape \(2,\)"),
    ({"events": ["both=2"]}, "got '2'"),
    ({"events": ["both=1"], "class_names": ["ham", "spam"]}, "ham, spam"),
    ({"events": ["equal"]}, "one of same, different, both_correct, both=CLASS"),
    ({"events": "same"}, r"Pass events=\('same',\)"),
    ({"events": ["same", "same"]}, "'same' twice"),
    ({"events": [("mine", np.ones((2, 2)))]}, "booleans of shape"),
    ({"events": [("mine", np.ones((3, 3), bool))]}, "booleans of shape"),
    ({"events": [("labels", np.ones((2, 2), bool))]}, "got 'labels'"),
    ({"events": [("mine",)]}, r"got \('mine',\)"),
    ({"top": 5}, "top to be a whole number from 1 to 4"),
    ({"top": 0}, "top to be a whole number from 1 to 4"),
    ({"posterior": torch.zeros(3, 2)}, "sum to 1"),
    ({"posterior": torch.full((2, 3, 2), 0.5)}, r"shape \(nodes, classes\)"),
    ({"posterior": (torch.full((3, 2), 0.5), None)}, "posterior, convergence = "),
    ({"posterior": ew.IndependentPosterior(torch.full((2, 3, 2), 0.5))}, "a batch of shape"),
]


@pytest.mark.parametrize(("wrong", "message"), INVALID)
def test_invalid_input_raises_value_error(wrong, message):
    arguments = {"posterior": torch.full((3, 2), 0.5), "pairs": [(0, 1)], **wrong}
    with pytest.raises(ValueError, match=message):
        predict_edges(**arguments)
