"""The Bethe free energy: what belief propagation minimizes."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from edgewise.inference.messages import Messages, edges_at_once, node_totals
from edgewise.inference.mrf import PairwiseMRF, check_mrf
from edgewise.posterior import PairwisePosterior


def bethe_free_energy(mrf: PairwiseMRF, posterior: PairwisePosterior) -> Float[Tensor, "*batch"]:
    """F = Σ_i (d_i - 1) log Z_i - Σ_e log Z_e, which is -log Z on a tree and its Bethe approximation elsewhere.

    Z_i = Σ_l exp(U_i(l) + Σ_k μ_{k→i}(l)) and Z_e sums exp(T + both cavities) over pairs of labels; d_i is the degree.
    As a function of the messages F is stationary at the fixed points of sum-product, so there its gradient with respect
    to the potentials, with messages held fixed as it is here, is minus the marginals: a likelihood to learn by.

    Parameters
    ----------
    mrf
        The field.
    posterior
        What `sum_product` gave for it.

    Examples
    --------
    >>> from edgewise.inference import sum_product
    >>> chain = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2]]), 2 * torch.eye(2))
    >>> round(float(bethe_free_energy(chain, sum_product(chain)[0])), 4)  # a tree: -log(2 (1 + e²)²)
    -4.947
    """
    check_mrf(mrf)
    if not isinstance(posterior, PairwisePosterior) or not torch.equal(posterior.edge_index, mrf.edge_index):
        raise ValueError(
            f"Expected the posterior that sum_product gave for this field, but got {posterior!r}, of another kind or "
            "with other edges. Pass the two together: bethe_free_energy(mrf, sum_product(mrf)[0])."
        )
    messages = posterior.messages.detach()
    shape = (*mrf.batch_shape, 2, mrf.num_edges, mrf.num_classes)
    if messages.shape != shape or not _are_consistent(mrf, messages, posterior.node.detach()):
        raise ValueError(
            "Expected the posterior that sum_product gave for this field, but its beliefs are those of another field, "
            "or were not made of messages. Pass the two together: bethe_free_energy(mrf, sum_product(mrf)[0])."
        )
    return free_energy_of_messages(mrf, messages)


def _are_consistent(mrf: PairwiseMRF, messages: Messages, node: Tensor) -> bool:
    with torch.no_grad():
        believed = node_totals(mrf, messages).softmax(-1)
    return bool(((believed - node).abs() < 1e-3).all())


def free_energy_of_messages(mrf: PairwiseMRF, messages: Messages) -> Float[Tensor, "*batch"]:
    """Compute F from any messages."""
    edge_index = mrf.edge_index
    totals = node_totals(mrf, messages)
    degree = torch.bincount(edge_index.flatten(), minlength=mrf.num_nodes).double()
    energy = ((degree - 1) * totals.logsumexp(-1)).sum(-1)
    step = edges_at_once(mrf, mrf.num_classes**2)
    for lo in range(0, mrf.num_edges, step):
        some = slice(lo, lo + step)
        cavity = totals[..., edge_index[:, some], :] - messages[..., some, :].double()
        energy = energy - checkpoint(_sum_of_log_z, mrf, some, cavity, use_reentrant=False)
    return energy


def _sum_of_log_z(mrf: PairwiseMRF, some: slice, cavity: Float[Tensor, "*batch 2 some classes"]) -> Tensor:
    """Σ_e log Z_e; computed again for a gradient, since it needs (edges, classes, classes)."""
    at_start, at_end = cavity.unbind(-3)
    joint = at_start.unsqueeze(-1) + at_end.unsqueeze(-2) + mrf.coupling(some).double()
    return joint.flatten(-2).logsumexp(-1).sum(-1)
