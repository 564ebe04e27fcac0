"""Our inference against pgmpy's."""

import itertools

import numpy as np
import pytest
import torch

from edgewise.inference import exact_marginals, max_product, sum_product
from helpers.random_fields import KINDS, generator, random_field, random_graph, random_tree

# pgmpy imports its own deprecated modules.
pytestmark = pytest.mark.filterwarnings("ignore:.*pgmpy.*is deprecated:FutureWarning")


def eliminated(field):
    """A function that gives pgmpy's joint of some nodes, in the order in which they are asked for."""
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.inference import VariableElimination
    from pgmpy.models import DiscreteMarkovNetwork

    num_nodes, num_classes = field.unary.shape
    network = DiscreteMarkovNetwork(field.edges)
    network.add_nodes_from(range(num_nodes))
    for node in range(num_nodes):
        network.add_factors(DiscreteFactor([node], [num_classes], np.exp(field.unary[node].numpy())))
    for edge, coupling in zip(field.edges, field.couplings.numpy(), strict=True):
        network.add_factors(DiscreteFactor(edge, [num_classes, num_classes], np.exp(coupling)))
    inference = VariableElimination(network)

    def joint(*nodes):
        factor = inference.query(list(nodes), evidence=field.evidence, show_progress=False)
        values = np.moveaxis(factor.values, [factor.variables.index(node) for node in nodes], range(len(nodes)))
        return values / values.sum()

    return joint


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_known", [0, 2])
def test_graphs_with_loops(kind, num_known):
    g = generator(num_known)
    field = random_field(random_graph(8, 13, g), 8, 3, g, kind=kind, num_known=num_known)
    theirs = eliminated(field)
    posterior, _ = exact_marginals(field.mrf())
    free = [node for node in range(8) if node not in (field.evidence or {})]
    for node in free:
        np.testing.assert_allclose(posterior.node[node].numpy(), theirs(node), rtol=0, atol=1e-12)
    for i, j in itertools.permutations(free[:4], 2):
        ours = posterior.joint(torch.tensor([[i], [j]]))[0]
        np.testing.assert_allclose(ours.numpy(), theirs(i, j), rtol=0, atol=1e-12)
    ours = posterior.marginal(torch.tensor(free[:3])[:, None])[0]
    np.testing.assert_allclose(ours.numpy(), theirs(*free[:3]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_known", [0, 3])
def test_trees(kind, num_known):
    g = generator(10 + num_known)
    field = random_field(random_tree(12, g), 12, 4, g, kind=kind, num_known=num_known)
    theirs = eliminated(field)
    known = field.evidence or {}
    for infer in (sum_product, exact_marginals):
        posterior, _ = infer(field.mrf())
        for node in set(range(12)) - set(known):
            np.testing.assert_allclose(posterior.node[node].numpy(), theirs(node), rtol=0, atol=1e-12)
        joint = posterior.joint(field.edge_index)
        for edge, table in zip(field.edges, joint, strict=True):
            if not set(edge) & set(known):
                np.testing.assert_allclose(table.numpy(), theirs(*edge), rtol=0, atol=1e-12)


def test_most_likely_labeling_of_a_tree():
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.inference import VariableElimination
    from pgmpy.models import DiscreteMarkovNetwork

    g = generator(20)
    field = random_field(random_tree(9, g), 9, 3, g, kind="per edge")
    network = DiscreteMarkovNetwork(field.edges)
    for node in range(9):
        network.add_factors(DiscreteFactor([node], [3], np.exp(field.unary[node].numpy())))
    for edge, coupling in zip(field.edges, field.couplings.numpy(), strict=True):
        network.add_factors(DiscreteFactor(edge, [3, 3], np.exp(coupling)))
    best = VariableElimination(network).map_query(list(range(9)), show_progress=False)
    assert max_product(field.mrf())[0].node.argmax(-1).tolist() == [best[node] for node in range(9)]
