"""Random fields for tests."""

from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from edgewise.inference import PairwiseMRF
from helpers.reference.enumeration import Enumeration

KINDS = ("shared", "per edge", "scaled", "scaled per edge")


class Field(NamedTuple):
    """What a PairwiseMRF is made of."""

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
        """One coupling for each edge, scaled; from what was passed in, not from what the field made of it."""
        num_edges = self.edge_index.shape[1]
        each = self.pairwise.double().reshape(-1, *self.pairwise.shape[-2:]).expand(num_edges, -1, -1)
        return each if self.edge_scale is None else each * self.edge_scale.double()[:, None, None]

    def mrf(self):
        return PairwiseMRF(
            self.unary, self.edge_index, self.pairwise, edge_scale=self.edge_scale, evidence=self.evidence
        )

    def enumerated(self):
        return Enumeration(self.unary.double().tolist(), self.edges, self.couplings.tolist(), self.evidence)


def assert_enumerated(posterior, field, tolerance):
    """Nodes and edges are those of the enumeration."""
    true = field.enumerated()
    np.testing.assert_allclose(posterior.node.numpy(), true.nodes(), rtol=0, atol=tolerance)
    if field.edges:
        joint = posterior.joint(field.edge_index).numpy()
        np.testing.assert_allclose(joint, true.edges(field.edges), rtol=0, atol=tolerance)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def turned(edge_index, g):
    """Turn edges round at random."""
    forward = torch.rand(edge_index.shape[1], generator=g) < 0.5
    return torch.where(forward, edge_index, edge_index.flip(0))


def random_tree(num_nodes, g):
    """Hang each node on an earlier one; names, order and direction of the edges are random."""
    later = torch.arange(1, num_nodes)
    earlier = (torch.rand(num_nodes - 1, generator=g) * later).long()
    name = torch.randperm(num_nodes, generator=g)
    edges = name[torch.stack([earlier, later])] if num_nodes > 1 else torch.empty(2, 0, dtype=torch.long)
    return turned(edges[:, torch.randperm(edges.shape[1], generator=g)], g)


def random_forest(num_nodes, g, keep=0.7):
    """A tree without some of its edges, so with isolated nodes too."""
    tree = random_tree(num_nodes, g)
    return tree[:, torch.rand(tree.shape[1], generator=g) < keep]


def random_graph(num_nodes, num_edges, g):
    """Some of all pairs, each once; there may be loops and isolated nodes."""
    pairs = torch.triu_indices(num_nodes, num_nodes, 1)
    return turned(pairs[:, torch.randperm(pairs.shape[1], generator=g)[:num_edges]], g)


def cycle(num_nodes):
    nodes = torch.arange(num_nodes)
    return torch.stack([nodes, nodes.roll(-1)])


def random_field(
    edge_index,
    num_nodes,
    num_classes,
    g,
    *,
    kind="shared",
    strength=1.0,
    batch=(),
    num_known=0,
    dtype=torch.float64,
):
    """Normal potentials; couplings are not symmetric, so their orientation matters."""
    num_edges = edge_index.shape[1]
    unary = torch.randn(*batch, num_nodes, num_classes, generator=g, dtype=torch.float64).to(dtype)
    couplings = (num_edges,) if "per edge" in kind else (1,) if batch else ()
    pairwise = torch.randn(*batch, *couplings, num_classes, num_classes, generator=g, dtype=torch.float64) * strength
    scale = torch.randn(*batch, num_edges, generator=g, dtype=torch.float64).to(dtype) if "scaled" in kind else None
    known = torch.randperm(num_nodes, generator=g)[:num_known].tolist()
    evidence = {node: int(torch.randint(num_classes, (), generator=g)) for node in known}
    return Field(unary, edge_index, pairwise.to(dtype), scale, evidence or None)


def one_of(field, b):
    """One field of a batch."""
    scale = None if field.edge_scale is None else field.edge_scale[b]
    pairwise = field.pairwise[b] if field.pairwise.ndim == 4 else field.pairwise
    pairwise = pairwise[0] if len(pairwise) == 1 and field.edge_index.shape[1] != 1 else pairwise
    return Field(field.unary[b], field.edge_index, pairwise, scale, field.evidence)


@st.composite
def small_fields(draw, loops=False, strength=1.0):
    """Few enough labelings to enumerate; all kinds of couplings, evidence, impossible labels, isolated nodes."""
    num_classes = draw(st.integers(1, 4))
    num_nodes = draw(st.integers(1, {1: 7, 2: 7, 3: 6, 4: 5}[num_classes]))
    g = generator(draw(st.integers(0, 2**31)))
    if loops:
        edge_index = random_graph(num_nodes, draw(st.integers(0, 2 * num_nodes)), g)
    else:
        edge_index = random_forest(num_nodes, g, keep=draw(st.sampled_from([0.7, 1.0])))
    field = random_field(
        edge_index,
        num_nodes,
        num_classes,
        g,
        kind=draw(st.sampled_from(KINDS)),
        strength=strength,
        num_known=draw(st.integers(0, num_nodes // 2)),
    )
    if num_classes > 1 and draw(st.booleans()):
        node = draw(st.integers(0, num_nodes - 1))
        if node not in (field.evidence or {}):
            field.unary[node, draw(st.integers(0, num_classes - 1))] = -torch.inf
    return field
