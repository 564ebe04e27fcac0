"""Â = D^-½ (A + I) D^-½ as a sparse matrix (Kipf and Welling 2017)."""

import torch
from jaxtyping import Int
from torch import Tensor


def averaging(both_directions: Int[Tensor, "2 directed"], num_nodes: int) -> Tensor:
    """Make Â of edges that are listed in both directions, without self-loops; float64."""
    itself = torch.arange(num_nodes).expand(2, -1)
    places = torch.cat([both_directions, itself], dim=1)
    root = torch.bincount(places[0], minlength=num_nodes).double().sqrt()
    values = 1 / (root[places[0]] * root[places[1]])
    return torch.sparse_coo_tensor(places, values, (num_nodes, num_nodes), check_invariants=False).coalesce()
