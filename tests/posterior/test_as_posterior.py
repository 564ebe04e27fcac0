"""Conversion of predictions to a posterior, in all functions that accept predictions."""

import numpy as np
import pytest
import torch

import edgewise as ew
from edgewise.posterior import as_posterior

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # a graph of three nodes

PROBS = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
Y, EDGE_INDEX = torch.tensor([0, 0, 1]), torch.tensor([[0, 1], [1, 2]])


class Model:
    """Minimal fitted model with a `posterior` method."""

    def __init__(self, result):
        self.result = result

    def posterior(self):
        return self.result


def module_scores(belief):
    metric = ew.GraphCalibration()
    metric.update(belief, Y, EDGE_INDEX)
    return metric.compute().to_dict()


FUNCTIONS = {
    "evaluate": lambda belief: ew.evaluate(belief, Y, EDGE_INDEX).to_dict(),
    "GraphCalibration": module_scores,
    "predict_edges": lambda belief: str(ew.predict_edges(belief, EDGE_INDEX)),
    "selective": lambda belief: ew.selective(belief, Y, EDGE_INDEX).to_dict(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_functions_accept_the_same_predictions(name):
    function = FUNCTIONS[name]
    expected = function(PROBS)
    posterior = ew.IndependentPosterior(PROBS)
    for belief in (PROBS.numpy(), PROBS.clone().requires_grad_(), posterior, Model(posterior), Model(PROBS)):
        np.testing.assert_equal(function(belief), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_functions_reject_the_same_predictions(name):
    function = FUNCTIONS[name]
    for belief, message in [
        (torch.tensor([[2.0, -1.0], [0.5, 0.5], [0.0, 1.0]]), r"row 0 of probs holds -1.*logits.softmax\(-1\)"),
        (PROBS[:, 0], r"\(nodes, classes\), but got shape \(3,\)"),
        (PROBS[None], r"\(nodes, classes\), but got shape \(1, 3, 2\)"),
        (ew.IndependentPosterior(PROBS[None]), r"a batch of shape \(1,\).*posterior\[b\]"),
        ((ew.IndependentPosterior(PROBS), None), "posterior, convergence = "),
        (Model((ew.IndependentPosterior(PROBS), None)), "posterior, convergence = "),
        (torch.nn.Linear(2, 2), "ew.wrap"),
    ]:
        with pytest.raises(ValueError, match=message):
            function(belief)


def test_as_posterior_keeps_posteriors_and_gradients():
    mixture = ew.MixturePosterior(PROBS[None])
    assert as_posterior(mixture) is mixture and as_posterior(Model(mixture)) is mixture
    probs = PROBS.clone().requires_grad_()
    as_posterior(probs).node.sum().backward()
    assert probs.grad is not None


def test_edge_probs_only_with_independent_nodes():
    joints = PROBS[EDGE_INDEX[0], :, None] * PROBS[EDGE_INDEX[1], None, :]
    expected = ew.evaluate(PROBS, Y, EDGE_INDEX, edge_probs=joints).to_dict()
    np.testing.assert_equal(ew.evaluate(Model(PROBS), Y, EDGE_INDEX, edge_probs=joints).to_dict(), expected)
    with pytest.raises(ValueError, match="Omit edge_probs"):
        ew.evaluate(Model(ew.MixturePosterior(PROBS[None])), Y, EDGE_INDEX, edge_probs=joints)
