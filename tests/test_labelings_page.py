"""scripts/compare_labelings.py, which makes the table of labelings in docs/beliefs.md."""

from itertools import product

import pytest
import torch

import edgewise as ew
from helpers.scripts import load_script


@pytest.fixture(scope="module")
def script():
    with load_script("compare_labelings") as module:
        yield module


def test_log_potentials_are_log_probabilities_up_to_a_constant(script):
    generator = torch.Generator().manual_seed(0)
    unary, coupling = torch.randn(2, 2, 2, generator=generator, dtype=torch.float64)
    mrf = ew.PairwiseMRF(unary, torch.tensor([[0], [1]]), coupling, edge_scale=torch.tensor([2.0]).double())
    posterior, _ = ew.exact_marginals(mrf)
    joint = posterior.joint(mrf.edge_index)[0]
    potentials = [script.log_potential(mrf, torch.tensor(labels)) for labels in product(range(2), repeat=2)]
    constants = torch.tensor(potentials).double() - joint.log().flatten()
    assert torch.allclose(constants, constants[0].expand(4))


@pytest.mark.slow
def test_first_split_shows_what_the_page_says(script):
    """The table has means over five splits. Which regions of JointGCN change differs between processors."""
    data = ew.load_dataset("cora")
    split = ew.make_splits(data.y)[0]

    def compare(model):
        return script.compare(model.fit(data, split, seed=0), data, split)

    by_node, most_likely = compare(ew.EPFGNN(schedule="published"))
    assert most_likely.nodes_changed <= 0.005
    assert most_likely.node_accuracy == pytest.approx(by_node.node_accuracy, abs=0.005)
    assert most_likely.log_p >= by_node.log_p
    by_node, most_likely = compare(ew.JointGCN())
    assert most_likely.nodes_changed > 0.02
    assert most_likely.node_accuracy < by_node.node_accuracy - 0.02
    assert most_likely.log_p > by_node.log_p + 100
