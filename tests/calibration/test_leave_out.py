"""Leave-two-out ridge regression against refits, and feature propagation against dense matrices."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.linear_model import Ridge

from edgewise.calibration.leave_out import hash_features, leave_out, propagate_features
from edgewise.data.edges import adjacency_with_self_loops, normalize_adjacency

PAIRS = torch.tensor([[0, 3, 7, 11], [1, 9, 4, 10]])


def random_nodes(seed, width, nodes=12, classes=3):
    g = torch.Generator().manual_seed(seed)
    features = torch.randn(nodes, width, generator=g, dtype=torch.float64)
    return features / features.norm(dim=1, keepdim=True), torch.randint(classes, (nodes,), generator=g)


def refit(features, labels, ridge, without):
    """Fit centered one-hot labels without some nodes, and predict these nodes."""
    targets = np.eye(3)[labels]
    targets = targets - targets.mean(0)
    kept = np.setdiff1d(np.arange(len(labels)), without)
    model = Ridge(alpha=ridge, fit_intercept=False, solver="svd").fit(features[kept], targets[kept])
    return model.predict(features[without])


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), ridge=st.sampled_from([1e-2, 1.0, 30.0]), width=st.sampled_from([1, 5, 12, 13, 40]))
def test_leave_out_scores_equal_refits(seed, ridge, width):
    features, labels = random_nodes(seed, width)
    scores = leave_out(features, labels, 3, PAIRS, ridge)
    for node in range(12):
        expected = refit(features.numpy(), labels.numpy(), ridge, [node])[0]
        np.testing.assert_allclose(scores.nodes[node], expected, atol=1e-9)
    for e, pair in enumerate(PAIRS.T.tolist()):
        expected = refit(features.numpy(), labels.numpy(), ridge, pair)
        np.testing.assert_allclose(scores.pairs[:, e], expected, atol=1e-9)


def test_small_penalty_with_many_features_is_accurate():
    """The hat matrix is nearly the identity. The singular values of the refits are far above the penalty."""
    features, labels = random_nodes(0, 40)
    scores = leave_out(features, labels, 3, PAIRS, 1e-10)
    for e, pair in enumerate(PAIRS.T.tolist()):
        expected = refit(features.numpy(), labels.numpy(), 1e-10, pair)
        np.testing.assert_allclose(scores.pairs[:, e], expected, atol=1e-8)


def test_order_within_a_pair_does_not_matter():
    features, labels = random_nodes(1, 5)
    forward, backward = (leave_out(features, labels, 3, pairs, 1.0).pairs for pairs in (PAIRS, PAIRS.flip(0)))
    torch.testing.assert_close(forward, backward.flip(0))


def test_labels_of_a_pair_do_not_affect_its_scores():
    features, labels = random_nodes(2, 5)
    labels[:2] = torch.tensor([0, 1])
    swapped = labels.clone()
    swapped[:2] = torch.tensor([1, 0])  # the class proportions stay the same
    before, after = (leave_out(features, y, 3, PAIRS, 1.0).pairs for y in (labels, swapped))
    torch.testing.assert_close(before[:, 0], after[:, 0])
    assert not torch.allclose(before[:, 1], after[:, 1])


def test_features_are_propagated_over_two_hops_and_normalized(case):
    edges = case.data.edge_index[:, case.data.edge_index[0] < case.data.edge_index[1]]
    adjacency = np.eye(60)
    for i, j in edges.T.tolist():
        adjacency[i, j] = adjacency[j, i] = 1.0
    root = np.sqrt(adjacency.sum(1))
    dense = adjacency / np.outer(root, root)
    x = case.data.x.double().numpy()
    x[59] = 0.0  # an isolated node without features
    expected = dense @ dense @ x
    length = np.linalg.norm(expected, axis=1, keepdims=True)
    expected = np.divide(expected, length, out=np.zeros_like(expected), where=length > 0)
    nodes = torch.arange(60) % 2 == 1
    found = propagate_features(csr_array(x), normalize_adjacency(adjacency_with_self_loops(edges, 60)), nodes)
    np.testing.assert_allclose(found, expected[nodes.numpy()], atol=1e-12)
    assert not bool(found[-1].any())


def test_hashing_adds_each_feature_to_one_column_with_a_sign():
    rng = np.random.default_rng(0)
    x = rng.random((40, 3000)) * (rng.random((40, 3000)) < 0.02)
    hashed = hash_features(csr_array(x))
    assert hashed.shape == (40, 1024)
    matrix = hash_features(csr_array(np.eye(3000))).toarray()
    assert np.array_equal(np.abs(matrix).sum(1), np.ones(3000)) and set(np.unique(matrix)) == {-1.0, 0.0, 1.0}
    assert abs(matrix.sum()) < 300 and np.abs(matrix).sum(0).max() < 15  # random signs and columns
    np.testing.assert_allclose(hashed.toarray(), x @ matrix, atol=1e-12)


def test_few_features_are_not_hashed():
    x = csr_array(np.ones((3, 1024)))
    assert hash_features(x) is x


def test_many_features_are_propagated_after_hashing(case):
    """Columns are propagated in chunks of 64."""
    edges = case.data.edge_index[:, case.data.edge_index[0] < case.data.edge_index[1]]
    adjacency = normalize_adjacency(adjacency_with_self_loops(edges, 60))
    x = csr_array(np.random.default_rng(0).random((60, 1500)))
    expected = adjacency @ (adjacency @ hash_features(x).toarray())
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    found = propagate_features(x, adjacency, torch.ones(60, dtype=torch.bool))
    np.testing.assert_allclose(found, expected, atol=1e-12)
