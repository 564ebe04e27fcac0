"""Inference against pgmpy."""

import itertools

import numpy as np
import pytest
import torch

from edgewise.inference import exact_marginals, max_product, sum_product
from helpers.random_fields import KINDS, generator, random_graph, random_mrf_inputs, random_tree

# pgmpy imports its own deprecated modules.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*pgmpy.*is deprecated:FutureWarning")]


def pgmpy_joint(inputs):
    """Return a function that computes the joint of some nodes by variable elimination, with one axis per node."""
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.inference import VariableElimination
    from pgmpy.models import DiscreteMarkovNetwork

    num_nodes, num_classes = inputs.unary.shape
    network = DiscreteMarkovNetwork(inputs.edges)
    network.add_nodes_from(range(num_nodes))
    for node in range(num_nodes):
        network.add_factors(DiscreteFactor([node], [num_classes], np.exp(inputs.unary[node].numpy())))
    for edge, coupling in zip(inputs.edges, inputs.couplings.numpy(), strict=True):
        network.add_factors(DiscreteFactor(edge, [num_classes, num_classes], np.exp(coupling)))
    inference = VariableElimination(network)

    def joint(*nodes):
        factor = inference.query(list(nodes), evidence=inputs.evidence, show_progress=False)
        values = np.moveaxis(factor.values, [factor.variables.index(node) for node in nodes], range(len(nodes)))
        return values / values.sum()

    return joint


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_observed", [0, 2])
def test_graphs_with_loops_equal_pgmpy(kind, num_observed):
    g = generator(num_observed)
    inputs = random_mrf_inputs(random_graph(8, 13, g), 8, 3, g, kind=kind, num_observed=num_observed)
    theirs = pgmpy_joint(inputs)
    posterior, _ = exact_marginals(inputs.mrf())
    free = [node for node in range(8) if node not in (inputs.evidence or {})]
    for node in free:
        np.testing.assert_allclose(posterior.node[node].numpy(), theirs(node), rtol=0, atol=1e-12)
    for i, j in itertools.permutations(free[:4], 2):
        ours = posterior.joint(torch.tensor([[i], [j]]))[0]
        np.testing.assert_allclose(ours.numpy(), theirs(i, j), rtol=0, atol=1e-12)
    ours = posterior.marginal(torch.tensor(free[:3])[:, None])[0]
    np.testing.assert_allclose(ours.numpy(), theirs(*free[:3]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_observed", [0, 3])
def test_trees_equal_pgmpy(kind, num_observed):
    g = generator(10 + num_observed)
    inputs = random_mrf_inputs(random_tree(12, g), 12, 4, g, kind=kind, num_observed=num_observed)
    theirs = pgmpy_joint(inputs)
    observed = inputs.evidence or {}
    for infer in (sum_product, exact_marginals):
        posterior, _ = infer(inputs.mrf())
        for node in set(range(12)) - set(observed):
            np.testing.assert_allclose(posterior.node[node].numpy(), theirs(node), rtol=0, atol=1e-12)
        joint = posterior.joint(inputs.edge_index)
        for edge, table in zip(inputs.edges, joint, strict=True):
            if not set(edge) & set(observed):
                np.testing.assert_allclose(table.numpy(), theirs(*edge), rtol=0, atol=1e-12)


def test_most_likely_labeling_of_a_tree_equals_pgmpy():
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.inference import VariableElimination
    from pgmpy.models import DiscreteMarkovNetwork

    g = generator(20)
    inputs = random_mrf_inputs(random_tree(9, g), 9, 3, g, kind="per edge")
    network = DiscreteMarkovNetwork(inputs.edges)
    for node in range(9):
        network.add_factors(DiscreteFactor([node], [3], np.exp(inputs.unary[node].numpy())))
    for edge, coupling in zip(inputs.edges, inputs.couplings.numpy(), strict=True):
        network.add_factors(DiscreteFactor(edge, [3, 3], np.exp(coupling)))
    best = VariableElimination(network).map_query(list(range(9)), show_progress=False)
    assert max_product(inputs.mrf())[0].node.argmax(-1).tolist() == [best[node] for node in range(9)]
