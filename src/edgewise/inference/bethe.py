"""The Bethe free energy."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from edgewise.inference.messages import Messages, edges_per_chunk, node_totals
from edgewise.inference.mrf import PairwiseMRF, check_mrf
from edgewise.posterior import PairwisePosterior

MAX_BELIEF_DIFFERENCE = 1e-3  # between the node marginals of a posterior and those of its messages


def bethe_free_energy(mrf: PairwiseMRF, posterior: PairwisePosterior) -> Float[Tensor, "*batch"]:
    """Compute the Bethe free energy F = Σ_i (d_i - 1) log Z_i - Σ_e log Z_e.

    Z_i = Σ_l exp(U_i(l) + Σ_k μ_{k→i}(l)), d_i is the degree of node i, and Z_e sums exp(T + both cavities) over pairs
    of labels. On a tree F = -log Z. On a graph with loops F is the Bethe approximation of -log Z.

    As a function of the messages, F is stationary at the fixed points of sum-product. The gradient with respect to the
    potentials treats the messages as constants, so at a fixed point it equals minus the marginals. The unnormalized
    log-probability of observed labels plus F thus approximates their log-likelihood, also for learning the potentials.

    Parameters
    ----------
    mrf
        The Markov random field.
    posterior
        The posterior that `sum_product` returned for ``mrf``.

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
            f"Expected the posterior that sum_product returned for this MRF, but got {posterior!r}, which has another "
            "type or other edges. Pass both together: bethe_free_energy(mrf, sum_product(mrf)[0])."
        )
    messages = posterior.messages.detach()
    shape = (*mrf.batch_shape, 2, mrf.num_edges, mrf.num_classes)
    if messages.shape != shape or not _are_consistent(mrf, messages, posterior.node.detach()):
        raise ValueError(
            "Expected the posterior that sum_product returned for this MRF, but its marginals do not follow from its "
            "messages and this MRF. Pass both together: bethe_free_energy(mrf, sum_product(mrf)[0])."
        )
    return free_energy_from_messages(mrf, messages)


def _are_consistent(mrf: PairwiseMRF, messages: Messages, node: Tensor) -> bool:
    """Return whether the node marginals follow from the messages."""
    with torch.no_grad():
        marginals = node_totals(mrf, messages).softmax(-1)
    return bool(((marginals - node).abs() < MAX_BELIEF_DIFFERENCE).all())


def free_energy_from_messages(mrf: PairwiseMRF, messages: Messages) -> Float[Tensor, "*batch"]:
    """Compute the Bethe free energy for arbitrary messages."""
    edge_index = mrf.edge_index
    totals = node_totals(mrf, messages)
    degree = torch.bincount(edge_index.flatten(), minlength=mrf.num_nodes).double()
    energy = ((degree - 1) * totals.logsumexp(-1)).sum(-1)
    step = edges_per_chunk(mrf, mrf.num_classes**2)
    for lo in range(0, mrf.num_edges, step):
        chunk = slice(lo, lo + step)
        cavity = totals[..., edge_index[:, chunk], :] - messages[..., chunk, :].double()
        energy = energy - checkpoint(_sum_edge_log_z, mrf, chunk, cavity, use_reentrant=False)
    return energy


def _sum_edge_log_z(mrf: PairwiseMRF, chunk: slice, cavity: Float[Tensor, "*batch 2 chunk classes"]) -> Tensor:
    """Compute Σ_e log Z_e over a chunk of edges; checkpointed, because it allocates (edges, classes, classes)."""
    at_start, at_end = cavity.unbind(-3)
    joint = at_start.unsqueeze(-1) + at_end.unsqueeze(-2) + mrf.coupling(chunk).double()
    return joint.flatten(-2).logsumexp(-1).sum(-1)
