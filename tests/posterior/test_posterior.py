"""The three kinds of posteriors: marginals, joints, batches, gradients, saving and input checks."""

from collections import Counter
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import edgewise as ew
from edgewise.posterior import belief, diagnostics, independent
from edgewise.posterior.independent import draw_labels
from helpers.small_posteriors import EDGES, KINDS, consistent_joints, pairwise, random_probs


@pytest.fixture(params=KINDS)
def posterior(request):
    return KINDS[request.param]()


def test_nodes_and_joints_are_distributions(posterior):
    assert posterior.node.shape == (5, 3)
    torch.testing.assert_close(posterior.node.sum(-1), torch.ones(5, dtype=torch.float64))
    joint = posterior.joint(EDGES)
    assert joint.shape == (4, 3, 3)
    torch.testing.assert_close(joint.sum((-1, -2)), torch.ones(4, dtype=torch.float64))


def test_joint_of_reversed_pair_is_the_transpose(posterior):
    torch.testing.assert_close(posterior.joint(EDGES.flip(0)), posterior.joint(EDGES).transpose(-1, -2))


def test_joint_of_a_node_with_itself_is_its_marginal_on_the_diagonal(posterior):
    pairs = torch.tensor([[2, 0, 1], [2, 1, 1]])
    joint = posterior.joint(pairs)
    torch.testing.assert_close(joint[0], posterior.node[2].diag())
    torch.testing.assert_close(joint[1:2], posterior.joint(pairs[:, 1:2]))


def test_marginal_of_pairs_and_single_nodes(posterior):
    assert torch.equal(posterior.marginal(EDGES), posterior.joint(EDGES))
    torch.testing.assert_close(posterior.marginal(torch.tensor([[3, 0]])), posterior.node[[3, 0]])


def test_order_of_a_set_is_the_order_of_its_dimensions(posterior):
    wedge = torch.tensor([[0], [2], [3]])
    torch.testing.assert_close(
        posterior.marginal(wedge[[2, 0, 1]]), posterior.marginal(wedge).permute(0, 3, 1, 2), rtol=1e-12, atol=1e-12
    )


def test_chunks_change_nothing(posterior, monkeypatch):
    wedges = torch.tensor([[0, 1, 3, 0], [1, 2, 2, 2], [2, 3, 0, 1]])
    whole, joints = posterior.marginal(wedges), posterior.joint(EDGES)
    monkeypatch.setattr(belief, "CHUNK_ELEMENTS", 1)
    torch.testing.assert_close(posterior.marginal(wedges), whole)
    torch.testing.assert_close(posterior.joint(EDGES), joints)


def test_empty_list_of_pairs_or_sets(posterior):
    assert posterior.joint(torch.empty(2, 0, dtype=torch.long)).shape == (0, 3, 3)
    assert posterior.marginal(np.empty((3, 0), dtype=np.int64)).shape == (0, 3, 3, 3)


def test_save_and_load_round_trip(posterior, tmp_path):
    path = tmp_path / "belief.safetensors"
    posterior.save(path)
    loaded = ew.Posterior.load(path)
    assert type(loaded) is type(posterior)
    assert torch.equal(loaded.node, posterior.node)
    assert torch.equal(loaded.joint(EDGES), posterior.joint(EDGES))
    assert [file.name for file in tmp_path.iterdir()] == ["belief.safetensors"]


def test_to_keeps_the_posterior(posterior):
    assert torch.equal(posterior.to("cpu").joint(EDGES), posterior.joint(EDGES))


def test_repr_shows_the_size(posterior):
    assert "nodes=5, classes=3" in repr(posterior)


def test_independent_joint_is_the_product_of_marginals():
    probs = random_probs(4, 3)
    joint = ew.IndependentPosterior(probs).marginal(torch.tensor([[0], [3], [1]]))[0]
    for a, b, c in product(range(3), repeat=3):
        assert float(joint[a, b, c]) == pytest.approx(float(probs[0, a] * probs[3, b] * probs[1, c]))


def test_mixture_joint_is_the_weighted_sum_of_products():
    samples, weights = random_probs(4, 5, 3), random_probs(4, seed=2)
    posterior = ew.MixturePosterior(samples, weights)
    joint = posterior.marginal(torch.tensor([[0], [3], [1]]))[0]
    for a, b, c in product(range(3), repeat=3):
        expected = sum(
            float(weights[s] * samples[s, 0, a] * samples[s, 3, b] * samples[s, 1, c]) for s in range(len(samples))
        )
        assert float(joint[a, b, c]) == pytest.approx(expected, abs=1e-14)
    torch.testing.assert_close(joint.sum((1, 2)), posterior.node[0])


def test_mixture_joint_differs_from_the_product_of_marginals():
    posterior = ew.MixturePosterior(torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]]))
    assert posterior.node.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert posterior.joint(torch.tensor([[0], [1]])).tolist() == [[[0.5, 0.0], [0.0, 0.5]]]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_pairwise_joint_of_a_path_follows_the_chain_rule(shared, scaled):
    posterior = pairwise(shared=shared, scaled=scaled)
    b02, b32 = posterior.joint(torch.tensor([[0, 3], [2, 2]]))
    expected = b02[:, None, :] * b32[None, :, :] / posterior.node[2]  # b(0, 2) b(3, 2) / b(2)
    torch.testing.assert_close(posterior.marginal(torch.tensor([[0], [3], [2]]))[0], expected, rtol=1e-9, atol=1e-12)


def test_from_joints_keeps_joints_and_follows_the_chain_rule():
    node, _, joints = consistent_joints()
    assert float(joints.amin()) == 0.0  # impossible pairs stay impossible
    posterior = ew.PairwisePosterior.from_joints(node, EDGES, joints)
    torch.testing.assert_close(posterior.node, node)
    torch.testing.assert_close(posterior.joint(EDGES), joints)
    wedge = joints[2][:, :, None] * joints[3].T[:, None, :] / node[2][:, None, None]
    torch.testing.assert_close(
        posterior.marginal(torch.tensor([[2], [0], [3]]))[0], wedge / wedge.sum(), rtol=1e-9, atol=1e-12
    )


def test_batch_equals_its_single_posteriors():
    both = pairwise(batch=(2,))
    for b in range(2):
        assert torch.equal(both[b].joint(EDGES), both.joint(EDGES)[b])
        assert torch.equal(both[b].node, both.node[b])
    samples = random_probs(2, 4, 5, 3)
    mixtures = ew.MixturePosterior(samples)
    assert mixtures.batch_shape == (2,)
    torch.testing.assert_close(mixtures.joint(EDGES)[1], ew.MixturePosterior(samples[1]).joint(EDGES))
    assert ew.IndependentPosterior(samples[:, 0])[1].batch_shape == ()
    with pytest.raises(TypeError, match="single one"):
        ew.IndependentPosterior(samples[0, 0])[0]


def test_gradients_flow_through_joints():
    probs = random_probs(4, 5, 3).requires_grad_()
    ew.MixturePosterior(probs).joint(EDGES).square().sum().backward()
    assert float(probs.grad.abs().sum()) > 0


def test_numpy_input_and_float32_dtype():
    posterior = ew.IndependentPosterior(random_probs(5, 3, dtype=torch.float32).numpy())
    assert posterior.joint(EDGES.numpy()).dtype == torch.float32
    assert pairwise(dtype=torch.float32).joint(EDGES).dtype == torch.float32


def test_pairwise_posterior_without_edges():
    mrf = ew.PairwiseMRF(torch.zeros(3, 2), torch.empty(2, 0, dtype=torch.long), torch.eye(2))
    posterior, convergence = ew.sum_product(mrf)
    assert posterior.node.tolist() == [[0.5, 0.5]] * 3
    assert convergence.converged
    assert posterior.joint(torch.tensor([[0], [1]])).tolist() == [[[0.25, 0.25], [0.25, 0.25]]]


UNCONNECTED = {
    "no edge": (lambda p: p.joint(torch.tensor([[0, 0], [1, 3]])), r"the pair \(0, 3\) is not an edge.*Mixture"),
    "disconnected": (lambda p: p.marginal(torch.tensor([[0], [1], [3]])), r"no edges connect the nodes \[0, 1, 3\]"),
}


@pytest.mark.parametrize("name", UNCONNECTED)
def test_pairwise_posterior_rejects_unconnected_sets(name):
    query, message = UNCONNECTED[name]
    with pytest.raises(ValueError, match=message):
        query(pairwise())


def test_components_are_independent():
    posterior = pairwise()  # node 4 has no edge
    expected = posterior.joint(torch.tensor([[0], [1]]))[..., None] * posterior.node[4]
    torch.testing.assert_close(posterior.marginal(torch.tensor([[0], [1], [4]])), expected)


INVALID = {
    "node sums": (lambda: ew.IndependentPosterior(torch.ones(3, 2)), "row 0 of probs sums to 2"),
    "node shape": (lambda: ew.IndependentPosterior(torch.ones(3)), r"probs of shape \(nodes, classes\)"),
    "samples shape": (lambda: ew.MixturePosterior(random_probs(3, 2)), r"samples of shape \(samples, nodes, classes\)"),
    "sample sums": (lambda: ew.MixturePosterior(torch.ones(2, 3, 2)), "row 0 of samples sums to 2"),
    "no samples": (lambda: ew.MixturePosterior(torch.ones(0, 3, 2)), "samples of shape"),
    "weights shape": (
        lambda: ew.MixturePosterior(random_probs(2, 3, 2), torch.ones(3) / 3),
        r"weights of shape \(2,\)",
    ),
    "weight sums": (lambda: ew.MixturePosterior(random_probs(2, 3, 2), torch.ones(2)), "weights sums to 2"),
    "joint shape": (
        lambda: ew.PairwisePosterior.from_joints(random_probs(5, 3), EDGES, random_probs(4, 3)),
        r"joints of shape \(4, 3, 3\)",
    ),
    "joint sums": (
        lambda: ew.PairwisePosterior.from_joints(random_probs(5, 3), EDGES, torch.ones(4, 3, 3)),
        "edge 0 of joints sums to 9",
    ),
    "other marginals": (
        lambda: ew.PairwisePosterior.from_joints(random_probs(5, 3), EDGES, random_probs(4, 9, seed=1).view(4, 3, 3)),
        r"edge 0 is .* off at its start, node 0.*edge_probs",
    ),
    "size of the first difference": (
        lambda: ew.PairwisePosterior.from_joints(
            torch.full((3, 2), 0.5),
            torch.tensor([[0, 1], [1, 2]]),
            torch.tensor([[[0.3, 0.21], [0.25, 0.24]], [[0.4, 0.4], [0.1, 0.1]]]),
        ),
        r"edge 0 is 0\.01 off at its start, node 0",
    ),
    "both directions": (
        lambda: ew.PairwisePosterior.from_joints(
            torch.full((5, 2), 0.5), torch.cat([EDGES, EDGES.flip(0)], 1), torch.full((8, 2, 2), 0.25)
        ),
        "each undirected edge once",
    ),
    "messages": (
        lambda: ew.PairwisePosterior(torch.zeros(5, 3), EDGES, torch.zeros(4, 3), torch.zeros(1, 3, 3)),
        r"messages of shape \(2, 4, 3\)",
    ),
    "NaN": (
        lambda: ew.PairwisePosterior(torch.full((5, 3), torch.nan), EDGES, torch.zeros(2, 4, 3), torch.zeros(1, 3, 3)),
        "NaN or infinity",
    ),
    "coupling": (
        lambda: ew.PairwisePosterior(torch.zeros(5, 3), EDGES, torch.zeros(2, 4, 3), torch.full((1, 3, 3), torch.nan)),
        "NaN or infinity",
    ),
    "pair outside": (lambda: KINDS["mixture"]().joint(torch.tensor([[0], [5]])), "nodes from 0 to 4"),
    "set outside": (lambda: KINDS["mixture"]().marginal(torch.tensor([[0], [1], [5]])), r"set 0 is \[0, 1, 5\]"),
    "set repeats": (lambda: KINDS["mixture"]().marginal(torch.tensor([[0], [1], [0]])), "distinct nodes"),
    "set transposed": (
        lambda: KINDS["mixture"]().marginal(torch.tensor([[0, 0], [1, 1], [0, 2]])),
        "distinct.*nodes.T",
    ),
    "set shape": (lambda: KINDS["mixture"]().marginal(torch.tensor([0, 1])), r"shape \(nodes per set, sets\)"),
    "long set": (
        lambda: KINDS["mixture"]().marginal(torch.zeros(9, 1, dtype=torch.long)),
        r"set 0 is \[0, 0, 0, 0, 0, 0, …\]",
    ),
    "large set": (lambda: ew.IndependentPosterior(random_probs(9, 2)).marginal(torch.arange(7)[:, None]), "at most 6"),
    "large joint": (
        lambda: ew.IndependentPosterior(random_probs(9, 99)).marginal(torch.arange(4)[:, None]),
        "at most 1048576 entries",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_inputs_are_rejected(name):
    make, message = INVALID[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_invalid_posterior_files_are_rejected(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "x.safetensors"
    with pytest.raises(FileNotFoundError, match="no such file"):
        ew.Posterior.load(path)
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="safetensors file"):
        ew.Posterior.load(path)
    save_file({"node": torch.ones(1, 1)}, path)
    with pytest.raises(ValueError, match=r"that Posterior.save wrote .* no metadata"):
        ew.Posterior.load(path)
    save_file({"x": torch.ones(1, 1)}, path, metadata={"format": belief.FORMAT, "kind": "IndependentPosterior"})
    with pytest.raises(ValueError, match="tensors of a IndependentPosterior"):
        ew.Posterior.load(path)
    with pytest.raises(ValueError, match="Expected to write"):
        KINDS["pairwise"]().save(tmp_path / "no folder" / "x.safetensors")


def test_joint_of_a_path_through_an_almost_certain_node():
    """Rounding of the middle node's probabilities to 0 and 1 does not make the set unconnected."""
    cycle = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    for log_odds in (14.0, 20.0, 200.0):
        unary = torch.zeros(4, 2)
        unary[1, 0] = log_odds
        posterior, _ = ew.sum_product(ew.PairwiseMRF(unary, cycle, 1.5 * torch.eye(2)))
        joint = posterior.marginal(torch.tensor([[0], [1], [2]]))
        assert float(joint.sum()) == pytest.approx(1.0)


def test_nonfinite_edge_scale_is_rejected():
    parts = pairwise().tensors()
    with pytest.raises(ValueError, match="NaN or infinity"):
        ew.PairwisePosterior(**{**parts, "edge_scale": torch.full((4,), torch.nan)})


def assert_frequencies(labels, probability):
    """Assert that each labeling is drawn as often as its probability, within five standard errors."""
    drawn = Counter(map(tuple, labels.tolist()))
    for labeling in product(range(3), repeat=labels.shape[1]):
        p = probability(labeling)
        assert abs(drawn[labeling] / len(labels) - p) <= 5 * (p * (1 - p) / len(labels)) ** 0.5, labeling


def test_labels_of_independent_nodes_are_drawn_by_their_probabilities():
    probs = random_probs(3, 3)
    probs[1] = torch.tensor([0.0, 1.0, 0.0])
    labels, sampling = ew.IndependentPosterior(probs).sample(20_000, seed=1)
    assert labels.dtype == torch.long and sampling == diagnostics.Sampling("independent", is_exact=True)
    assert_frequencies(labels, lambda labeling: float(np.prod([probs[i, label] for i, label in enumerate(labeling)])))


def test_each_labeling_of_a_mixture_comes_from_one_component():
    samples, weights = random_probs(4, 3, 3), torch.tensor([0.1, 0.0, 0.3, 0.6], dtype=torch.float64)
    samples[1] = torch.tensor([0.0, 0.0, 1.0])
    labels, sampling = ew.MixturePosterior(samples, weights).sample(20_000, seed=2)
    assert sampling == diagnostics.Sampling("mixture", is_exact=True)

    def probability(labeling):
        return float(
            sum(w * np.prod([s[i, k] for i, k in enumerate(labeling)]) for w, s in zip(weights, samples, strict=True))
        )

    assert_frequencies(labels, probability)
    certain = ew.MixturePosterior(torch.tensor([[[1.0, 0.0]] * 9, [[0.0, 1.0]] * 9]))
    assert set(map(tuple, certain.sample(50).labels.tolist())) == {(0,) * 9, (1,) * 9}


def test_labels_of_probability_0_are_not_drawn_for_any_uniform_number():
    """The largest uniform number times the sum of probabilities, rounded up, may reach this sum."""
    probs = torch.tensor([[0.0, 0.7, 0.3, 0.0]] * 50, dtype=torch.float64)
    probs[:, 1] += torch.linspace(-1e-9, 1e-9, 50)  # sums around 1
    for number in (0.0, np.nextafter(1.0, 0.0)):
        constant = SimpleNamespace(random=lambda shape, number=number: np.full(shape, number))
        labels = draw_labels(probs, 3, constant)
        assert labels.unique().tolist() == [1 if number == 0 else 2]


def test_same_seed_gives_the_same_labels(posterior, tmp_path, monkeypatch):
    posterior.save(tmp_path / "x.safetensors")
    labels, sampling = posterior.sample(30, seed=7)
    again, same = ew.Posterior.load(tmp_path / "x.safetensors").sample(30, seed=7)
    assert torch.equal(labels, again) and same == sampling
    assert not torch.equal(posterior.sample(30, seed=8).labels, labels)
    monkeypatch.setattr(independent, "CHUNK_ELEMENTS", 1)
    assert torch.equal(posterior.sample(30, seed=7).labels, labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"n": 0}, "n to be"), ({"n": 2.5}, "n to be"), ({"n": True}, "n to be"), ({"n": 1, "seed": -1}, "seed to be")],
)
def test_invalid_numbers_of_labelings_and_seeds_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        KINDS["mixture"]().sample(**options)


def test_batches_are_sampled_one_by_one():
    batch = ew.IndependentPosterior(random_probs(2, 5, 3))
    with pytest.raises(ValueError, match=r"posterior\[b\]"):
        batch.sample(3)
    assert batch[1].sample(3).labels.shape == (3, 5)


def test_representation_of_a_sampling_is_short():
    assert repr(diagnostics.Sampling("forest", True)) == "Sampling(method='forest', is_exact=True)"
    long = repr(diagnostics.Sampling("gibbs", False, 1.2345678, 99.9, "long advice " * 50))
    assert "r_hat=1.235, effective_size=99.9, advice='long" in long and len(long) < 200


def test_detach_removes_the_gradient():
    probs = random_probs(5, 3).requires_grad_()
    assert not ew.IndependentPosterior(probs).detach().joint(EDGES).requires_grad
