"""Random Markov random fields for tests."""

from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from edgewise.inference import PairwiseMRF
from helpers.reference.enumeration import Enumeration

KINDS = ("shared", "per edge", "scaled", "scaled per edge")


class MRFInputs(NamedTuple):
    """Arguments of a PairwiseMRF."""

    unary: Tensor
    edge_index: Tensor
    pairwise: Tensor
    edge_scale: Tensor | None = None
    evidence: dict | None = None

    @property
    def edges(self):
        return list(zip(*self.edge_index.tolist(), strict=True))

    @property
    def couplings(self):
        """One scaled coupling per edge, computed from the arguments and not from the PairwiseMRF."""
        num_edges = self.edge_index.shape[1]
        each = self.pairwise.double().reshape(-1, *self.pairwise.shape[-2:]).expand(num_edges, -1, -1)
        return each if self.edge_scale is None else each * self.edge_scale.double()[:, None, None]

    def mrf(self):
        return PairwiseMRF(
            self.unary, self.edge_index, self.pairwise, edge_scale=self.edge_scale, evidence=self.evidence
        )

    def enumeration(self):
        return Enumeration(self.unary.double().tolist(), self.edges, self.couplings.tolist(), self.evidence)


def assert_matches_enumeration(posterior, inputs, tolerance):
    """Assert that node and edge marginals equal those of a sum over all labelings."""
    true = inputs.enumeration()
    np.testing.assert_allclose(posterior.node.numpy(), true.nodes(), rtol=0, atol=tolerance)
    if inputs.edges:
        joint = posterior.joint(inputs.edge_index).numpy()
        np.testing.assert_allclose(joint, true.edges(inputs.edges), rtol=0, atol=tolerance)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def flip_randomly(edge_index, g):
    """Reverse the direction of random edges."""
    forward = torch.rand(edge_index.shape[1], generator=g) < 0.5
    return torch.where(forward, edge_index, edge_index.flip(0))


def random_tree(num_nodes, g):
    """Connect each node to a random earlier one, then shuffle node numbers and the order and direction of edges."""
    later = torch.arange(1, num_nodes)
    earlier = (torch.rand(num_nodes - 1, generator=g) * later).long()
    number = torch.randperm(num_nodes, generator=g)
    edges = number[torch.stack([earlier, later])] if num_nodes > 1 else torch.empty(2, 0, dtype=torch.long)
    return flip_randomly(edges[:, torch.randperm(edges.shape[1], generator=g)], g)


def random_forest(num_nodes, g, keep=0.7):
    """Draw a random tree and remove random edges, which may isolate nodes."""
    tree = random_tree(num_nodes, g)
    return tree[:, torch.rand(tree.shape[1], generator=g) < keep]


def random_graph(num_nodes, num_edges, g):
    """Draw distinct random pairs of nodes; the graph may have loops and isolated nodes."""
    pairs = torch.triu_indices(num_nodes, num_nodes, 1)
    return flip_randomly(pairs[:, torch.randperm(pairs.shape[1], generator=g)[:num_edges]], g)


def cycle(num_nodes):
    nodes = torch.arange(num_nodes)
    return torch.stack([nodes, nodes.roll(-1)])


def random_mrf_inputs(
    edge_index,
    num_nodes,
    num_classes,
    g,
    *,
    kind="shared",
    coupling_std=1.0,
    batch=(),
    num_observed=0,
    dtype=torch.float64,
):
    """Draw normal potentials and random evidence; couplings are not symmetric, so their orientation matters."""
    num_edges = edge_index.shape[1]
    unary = torch.randn(*batch, num_nodes, num_classes, generator=g, dtype=torch.float64).to(dtype)
    couplings = (num_edges,) if "per edge" in kind else (1,) if batch else ()
    pairwise = (
        torch.randn(*batch, *couplings, num_classes, num_classes, generator=g, dtype=torch.float64) * coupling_std
    )
    scale = torch.randn(*batch, num_edges, generator=g, dtype=torch.float64).to(dtype) if "scaled" in kind else None
    observed = torch.randperm(num_nodes, generator=g)[:num_observed].tolist()
    evidence = {node: int(torch.randint(num_classes, (), generator=g)) for node in observed}
    return MRFInputs(unary, edge_index, pairwise.to(dtype), scale, evidence or None)


def batch_item(inputs, b):
    """Return the arguments of one MRF of a batch."""
    scale = None if inputs.edge_scale is None else inputs.edge_scale[b]
    pairwise = inputs.pairwise[b] if inputs.pairwise.ndim == 4 else inputs.pairwise
    pairwise = pairwise[0] if len(pairwise) == 1 and inputs.edge_index.shape[1] != 1 else pairwise
    return MRFInputs(inputs.unary[b], inputs.edge_index, pairwise, scale, inputs.evidence)


NUM_EXTREME_MRFS = 100  # per graph


def extreme_numbers(shape, g):
    """Draw numbers of both signs with magnitudes from 1e-30 to 1e4, some exactly 0 and some exactly ±1e4."""
    size = 10.0 ** (34 * torch.rand(shape, generator=g, dtype=torch.float64) - 30)
    usual = torch.randn(shape, generator=g, dtype=torch.float64)
    kind = torch.randint(6, shape, generator=g)
    sign = torch.randn(shape, generator=g, dtype=torch.float64).sign()
    value = torch.where(kind < 2, sign * size, torch.where(kind < 4, usual, sign * 1e4))
    return torch.where(kind == 5, 0.0, value)


def extreme_mrf(seed):
    """Draw a batch of MRFs with potentials of all magnitudes, impossible labels, evidence, and at times a hub."""
    g = generator(seed)
    num_classes = 1 + seed % 8
    num_nodes = int(torch.randint(2, 9, (), generator=g))
    edge_index = random_graph(num_nodes, int(torch.randint(0, 2 * num_nodes, (), generator=g)), g)
    if seed % 5 == 0:  # add a node with more neighbors than compiled loops have lanes
        num_nodes += 70
        hub = torch.stack([torch.zeros(70, dtype=torch.long), torch.arange(num_nodes - 70, num_nodes)])
        edge_index = torch.cat([edge_index, hub], dim=1)
    num_edges = edge_index.shape[1]
    dtype = (torch.float32, torch.float64)[seed % 2]
    unary = extreme_numbers((NUM_EXTREME_MRFS, num_nodes, num_classes), g)
    if seed % 3 == 0:
        unary = unary * 1e25
    possible = torch.randint(num_classes, (NUM_EXTREME_MRFS, num_nodes, 1), generator=g)
    impossible = torch.rand(unary.shape, generator=g) < 0.3
    unary = torch.where(impossible.scatter(-1, possible, False), -torch.inf, unary)
    pairwise = extreme_numbers((NUM_EXTREME_MRFS, num_edges if seed % 4 < 2 else 1, num_classes, num_classes), g)
    scale = extreme_numbers((NUM_EXTREME_MRFS, num_edges), g) if seed % 3 == 1 else None
    evidence = {}
    for node in range(num_nodes - 1, max(-1, num_nodes - 1 - seed % 3), -1):
        evidence[node] = int(torch.randint(num_classes, (), generator=g))
        unary[:, node, evidence[node]] = 0.0  # possible
    scale = None if scale is None else scale.to(dtype)
    return PairwiseMRF(unary.to(dtype), edge_index, pairwise.to(dtype), edge_scale=scale, evidence=evidence), evidence


@st.composite
def small_mrf_inputs(draw, loops=False, coupling_std=1.0):
    """Draw MRFs small enough to enumerate, with all kinds of couplings, evidence, impossible labels, isolated nodes."""
    num_classes = draw(st.integers(1, 4))
    num_nodes = draw(st.integers(1, {1: 7, 2: 7, 3: 6, 4: 5}[num_classes]))
    g = generator(draw(st.integers(0, 2**31)))
    if loops:
        edge_index = random_graph(num_nodes, draw(st.integers(0, 2 * num_nodes)), g)
    else:
        edge_index = random_forest(num_nodes, g, keep=draw(st.sampled_from([0.7, 1.0])))
    inputs = random_mrf_inputs(
        edge_index,
        num_nodes,
        num_classes,
        g,
        kind=draw(st.sampled_from(KINDS)),
        coupling_std=coupling_std,
        num_observed=draw(st.integers(0, num_nodes // 2)),
    )
    if num_classes > 1 and draw(st.booleans()):
        node = draw(st.integers(0, num_nodes - 1))
        if node not in (inputs.evidence or {}):
            inputs.unary[node, draw(st.integers(0, num_classes - 1))] = -torch.inf
    return inputs
