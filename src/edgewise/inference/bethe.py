"""The Bethe free energy: what belief propagation minimises."""

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.inference.messages import CHUNK_ELEMENTS, node_totals
from edgewise.inference.mrf import PairwiseMRF
from edgewise.posterior import PairwisePosterior


def bethe_free_energy(mrf: PairwiseMRF, posterior: PairwisePosterior) -> Float[Tensor, "*batch"]:
    """F = Σ_i (d_i - 1) log Z_i - Σ_e log Z_e, which is -log Z on a tree and its Bethe approximation elsewhere.

    Z_i = Σ_l exp(U_i(l) + Σ_k μ_{k→i}(l)) and Z_e sums exp(T + both cavities) over pairs of labels; d_i is the degree.
    As a function of the messages F is stationary at the fixed points of sum-product, so there its gradient with respect
    to the potentials is minus the marginals: a likelihood to learn by.
    """
    if not isinstance(posterior, PairwisePosterior) or not torch.equal(posterior.edge_index, mrf.edge_index):
        raise ValueError(
            f"Expected the posterior that sum_product gave for this field, but got {posterior!r}, of another kind or "
            "with other edges. Pass the two together: bethe_free_energy(mrf, sum_product(mrf)[0])."
        )
    messages, edge_index = posterior.messages, mrf.edge_index
    totals = node_totals(mrf, messages)
    degree = torch.bincount(edge_index.flatten(), minlength=mrf.num_nodes).double()
    energy = ((degree - 1) * totals.logsumexp(-1)).sum(-1)
    step = max(1, CHUNK_ELEMENTS // mrf.num_classes**2)
    for lo in range(0, mrf.num_edges, step):
        part = slice(lo, lo + step)
        fields = totals[..., edge_index[:, part], :] - messages[..., part, :].double()
        at_start, at_end = fields.unbind(-3)
        joint = at_start.unsqueeze(-1) + at_end.unsqueeze(-2) + mrf.coupling(part).double()
        energy = energy - joint.flatten(-2).logsumexp(-1).sum(-1)
    return energy
