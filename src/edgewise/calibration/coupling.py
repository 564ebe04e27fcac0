"""The one joint of two nodes that has given marginals and a given coupling."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

MOST_STEPS = 2000
TOLERANCE = 1e-10


class Coupled(NamedTuple):
    """log a and log b of q(l, m) = a(l) exp(W(l, m)) b(m), for each pair."""

    log_a: Float[Tensor, "pairs classes"]
    log_b: Float[Tensor, "pairs classes"]
    coupling: Float[Tensor, "classes classes"]

    def log_joints(self) -> Float[Tensor, "pairs classes classes"]:
        """Give log q."""
        return self.log_a.unsqueeze(2) + self.coupling + self.log_b.unsqueeze(1)


def coupled(
    log_p: Float[Tensor, "pairs classes"],
    log_r: Float[Tensor, "pairs classes"],
    coupling: Float[Tensor, "classes classes"],
) -> Coupled:
    """Scale exp(W) to the marginals p and r of each pair, by turns of rows and columns (Sinkhorn and Knopp 1967).

    The result is unique, and of all joints with these marginals the one nearest to exp(W) in relative entropy. With
    W = 0 it is the product.
    """
    by_end, by_start = coupling.exp(), coupling.T.exp()  # a coupling of 700 nats is none that was learnt
    log_b = log_r.clone()
    for _ in range(MOST_STEPS):
        log_a = log_p - _log_product(log_b, by_end)
        before, log_b = log_b, log_r - _log_product(log_a, by_start)
        if float((log_b - before).abs().max()) < TOLERANCE if log_b.numel() else True:
            break
    return Coupled(log_a, log_b, coupling)


def _log_product(
    log_rows: Float[Tensor, "pairs classes"], raised: Float[Tensor, "classes classes"]
) -> Float[Tensor, "pairs classes"]:
    """Give log Σ_m exp(W(l, m) + rows(m)), for each l."""
    highest = log_rows.amax(1, keepdim=True)
    return ((log_rows - highest).exp() @ raised.T).clamp(min=torch.finfo(log_rows.dtype).tiny).log() + highest
