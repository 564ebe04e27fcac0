"""Random predictions on random graphs."""

import torch
from hypothesis import strategies as st


def random_case(seed, num_nodes=12, num_edges=30, num_classes=3, dtype=torch.float64, sharpness=2.0):
    """Return probabilities, labels, edges (with self-loops, parallel and reversed edges) and a mask."""
    g = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(num_nodes, num_classes, generator=g, dtype=torch.float64)
    probs = logits.softmax(-1).to(dtype)
    y = torch.randint(num_classes, (num_nodes,), generator=g)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=g)
    flipped = edge_index[:, torch.rand(num_edges, generator=g) < 0.4].flip(0)
    mask = torch.rand(num_nodes, generator=g) < 0.7
    return probs, y, torch.cat([edge_index, flipped], dim=1), mask


@st.composite
def cases(draw):
    """Strategy of random cases of many sizes."""
    return random_case(
        seed=draw(st.integers(0, 2**32)),
        num_nodes=draw(st.integers(1, 12)),
        num_edges=draw(st.integers(0, 30)),
        num_classes=draw(st.integers(1, 5)),
        dtype=draw(st.sampled_from([torch.float64, torch.float32])),
        sharpness=draw(st.sampled_from([0.1, 2.0, 50.0])),
    )


def symmetric_joints(probs, edge_index, seed=0):
    """Return random joints of the listed edges and of all pairs. Joint (j, i) is the transpose of joint (i, j)."""
    num_nodes, num_classes = probs.shape
    g = torch.Generator().manual_seed(seed)
    table = torch.rand(num_nodes, num_nodes, num_classes, num_classes, generator=g, dtype=torch.float64)
    table = table + table.permute(1, 0, 3, 2)
    table = table / table.sum((-1, -2), keepdim=True)
    return table[edge_index[0], edge_index[1]], table
