"""The published EPFGNN inference with evidence at the wrong nodes, compared with a loop."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import edgewise as ew
from edgewise.models.epfgnn import FittedEPFGNN
from edgewise.paper.recipes import (
    FORBIDDEN_ENERGY,
    MAX_ENERGY,
    mrf_with_misplaced_evidence,
    posterior_with_misplaced_evidence,
)
from edgewise.posterior import IndependentPosterior
from helpers.reference.enumeration import Enumeration
from helpers.small_graphs import modulo_split, random_data


@pytest.fixture(scope="module")
def fitted() -> FittedEPFGNN:
    """An EPFGNN fitted to 30 nodes, with training nodes 0, 3, 6, …"""
    data = random_data(0)
    model = ew.EPFGNN(schedule="published", pretrain_epochs=20, rounds=3, steps=5)
    fitted = model.fit(data, modulo_split(data), seed=0)
    assert fitted.known.tolist() == list(range(0, 30, 3))
    assert fitted.is_coupled
    return fitted


def unary_by_loop(fitted: FittedEPFGNN) -> list[list[float]]:
    """Return the unary log-potentials of the published code, computed by loops."""
    energy = (-fitted.unary).tolist()
    known, labels = fitted.known.tolist(), fitted.known_labels.tolist()
    restored = [energy[node][label] for node, label in zip(known, labels, strict=True)]
    for node in known:
        for label in range(len(energy[node])):
            energy[node][label] = FORBIDDEN_ENERGY
    for k, (label, own) in enumerate(zip(labels, restored, strict=True)):
        energy[k][label] = own
    return [[-min(value - min(row), MAX_ENERGY) for value in row] for row in energy]


def test_unary_matches_a_loop_and_input_is_unchanged(fitted: FittedEPFGNN) -> None:
    before = fitted.unary.clone()
    mrf = mrf_with_misplaced_evidence(fitted)
    torch.testing.assert_close(mrf.unary, torch.tensor(unary_by_loop(fitted)), rtol=1e-6, atol=1e-6)
    assert torch.equal(fitted.unary, before)


def test_posterior_differs_from_that_with_correct_evidence(fitted: FittedEPFGNN) -> None:
    correct, wrong = fitted.posterior("max_product").node, posterior_with_misplaced_evidence(fitted).node
    p_true = correct[fitted.known, fitted.known_labels]
    torch.testing.assert_close(p_true, torch.ones_like(p_true))
    assert (wrong[fitted.known, fitted.known_labels] < 0.9).any()


def test_first_nodes_get_the_evidence_of_training_nodes(fitted: FittedEPFGNN) -> None:
    unary, known = mrf_with_misplaced_evidence(fitted).unary, fitted.known.tolist()
    number = len(known)
    late = [node for node in known if node >= number]
    assert late
    for node in late:
        assert unary[node].tolist() == [0.0, 0.0, 0.0]  # all labels equal
    for k, label in enumerate(fitted.known_labels.tolist()):
        if k in known:  # all energies were raised, and that of the k-th training node's label was restored
            expected = [-MAX_ENERGY] * 3
            expected[label] = 0.0
            assert unary[k].tolist() == expected
    untouched = [node for node in range(30) if node >= number and node not in known]
    theirs = fitted.unary[untouched]
    torch.testing.assert_close(unary[untouched], theirs - theirs.amax(dim=1, keepdim=True))


def test_without_coupling_only_training_nodes_and_first_nodes_differ(fitted: FittedEPFGNN) -> None:
    uncoupled = replace(fitted, edge_scale=torch.zeros_like(fitted.edge_scale))
    clamped, wrong = uncoupled.posterior("max_product").node, posterior_with_misplaced_evidence(uncoupled).node
    known = fitted.known.tolist()
    may_differ = set(known) | set(range(len(known)))
    others = [node for node in range(30) if node not in may_differ]
    torch.testing.assert_close(wrong[others], clamped[others])
    torch.testing.assert_close(wrong[others], fitted.unary[others].softmax(1))
    for node in known:
        if node >= len(known):
            torch.testing.assert_close(wrong[node], torch.full((3,), 1 / 3))
            assert clamped[node].max() == 1
    for k, label in enumerate(fitted.known_labels.tolist()):
        if k not in known:  # has the energy of a training node's label
            energy = -fitted.unary[k]
            energy[label] = -fitted.unary[known[k], label]
            torch.testing.assert_close(wrong[k], (-energy).softmax(0))


def test_beliefs_are_max_marginals_with_product_joints() -> None:
    unary = torch.tensor([[0.2, -0.4], [1.0, 0.3], [-0.7, 0.9], [0.1, 0.0]])
    edges, scale = torch.tensor([[0, 1, 1], [1, 2, 3]]), torch.tensor([0.8, -0.5, 1.2])  # a tree
    coupling = torch.tensor([[1.0, -0.3], [-0.3, 0.6]])
    known = {"known": torch.tensor([1, 3]), "known_labels": torch.tensor([1, 0])}
    fitted = FittedEPFGNN(
        ew.EPFGNN(), {}, None, unary=unary, edge_index=edges, edge_scale=scale, coupling=coupling, **known
    )
    posterior = posterior_with_misplaced_evidence(fitted)
    misplaced = [
        [0.2, 0.3],  # the first of two training nodes is node 1, whose label 1 has 0.3
        [0.1, -FORBIDDEN_ENERGY],  # the second is node 3, whose label 0 has 0.1
        [-0.7, 0.9],
        [0.0, 0.0],
    ]
    misplaced = [[max(value - max(row), -MAX_ENERGY) for value in row] for row in misplaced]
    couplings = [(s * coupling).tolist() for s in scale]
    expected = Enumeration(misplaced, edges.T.tolist(), couplings).max_nodes()
    np.testing.assert_allclose(posterior.node.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert isinstance(posterior, IndependentPosterior)
    product = torch.einsum("ei,ej->eij", posterior.node[edges[0]], posterior.node[edges[1]])
    torch.testing.assert_close(posterior.joint(edges), product)


def test_large_energies_are_clamped(fitted: FittedEPFGNN) -> None:
    unary = fitted.unary.clone()
    unary[29] = torch.tensor([0.0, -19.5, -50.0])
    mrf = mrf_with_misplaced_evidence(replace(fitted, unary=unary))
    assert mrf.unary[29].tolist() == [0.0, -19.5, -MAX_ENERGY]
