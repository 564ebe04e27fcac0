"""Selection of the scored edges, in short lists and in lists too long to sort."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewise.data import edges
from edgewise.data.edges import scored_edges
from edgewise.kernels import long_edge_list
from helpers.reference import loops

CHOICES = st.sampled_from(["both", "any", "all"])


@st.composite
def edge_lists(draw):
    """Lists of every kind: one-way, symmetric, mixed, with loops and parallel edges."""
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    num_nodes = draw(st.integers(1, 40))
    edges = torch.randint(num_nodes, (2, draw(st.integers(0, 120))), generator=g)
    kind = draw(st.sampled_from(["random", "forward", "backward", "symmetric", "nearly symmetric", "half"]))
    if kind == "forward":
        edges = edges.sort(0).values
    if kind == "backward":
        edges = edges.sort(0, descending=True).values
    if kind.endswith("symmetric"):
        edges = torch.cat([edges, edges.flip(0)], dim=1)
    if kind == "nearly symmetric":
        edges = edges[:, :-1]
    if kind == "half":
        edges = torch.cat([edges, edges.flip(0)[:, ::2]], dim=1)
    mask = torch.rand(num_nodes, generator=g) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return edges[:, torch.randperm(edges.shape[1], generator=g)], mask


def count_pairs(edge_index, keep):
    return Counter((min(i, j), max(i, j)) for i, j in edge_index[:, keep].T.tolist())


@given(edge_lists(), CHOICES)
def test_each_pair_counts_as_often_as_its_more_frequent_direction(case, choice):
    edge_index, mask = case
    expected = Counter(loops.scored_edges(edge_index.T.tolist(), mask.tolist(), choice))
    assert count_pairs(edge_index, scored_edges(edge_index, mask, choice)) == expected


@given(edge_lists(), CHOICES, st.sampled_from([0, 8, 1 << 18]))
def test_long_lists_keep_the_same_edges(case, choice, max_sorted):
    edge_index, mask = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_edge_list, "MAX_SORTED", max_sorted)
        patch.setattr(edges, "worth_compiling", lambda tensor: True)
        keep = scored_edges(edge_index, mask, choice)
    assert torch.equal(keep, scored_edges(edge_index, mask, choice))


@pytest.mark.parametrize("kind", ["random", "symmetric", "nearly symmetric", "symmetric, one parallel", "crowded"])
def test_more_than_a_million_edges(kind):
    """The table of bits is used, and hash collisions occur."""
    g = torch.Generator().manual_seed(0)
    num_nodes = 500 if kind == "crowded" else 3_000
    edge_index = torch.randint(num_nodes, (2, 1_200_000), generator=g, dtype=torch.int32)
    if "symmetric" in kind:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    if kind == "nearly symmetric":
        edge_index = edge_index[:, 3:]
    if kind == "symmetric, one parallel":
        edge_index = torch.cat([edge_index, edge_index[:, :1]], dim=1)
    mask = torch.rand(num_nodes, generator=g) < 0.9
    keep = scored_edges(edge_index, mask)
    start, end = edge_index[:, (mask[edge_index.long()].all(0)) & (edge_index[0] != edge_index[1])].long()
    forward = torch.bincount((start * num_nodes + end)[start < end], minlength=num_nodes**2)
    backward = torch.bincount((end * num_nodes + start)[start > end], minlength=num_nodes**2)
    low, high = edge_index[:, keep].long().sort(0).values
    assert torch.equal(torch.bincount(low * num_nodes + high, minlength=num_nodes**2), forward.maximum(backward))
