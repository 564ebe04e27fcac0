"""Exact inference, where it is possible: forests of any size, and small graphs with loops."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise.inference.fixed_point import ADJOINT_SWEEPS, attach
from edgewise.inference.messages import log_sum, sweep
from edgewise.inference.mrf import PairwiseMRF
from edgewise.inference.propagation import as_posterior
from edgewise.inference.solver import EXACT, check_field
from edgewise.posterior import Convergence, MixturePosterior, Posterior

MAX_NUMBERS = 1 << 24  # of the mixture that enumeration makes


class TooManyLabellings(ValueError):
    """A graph with loops is too large to enumerate."""


def exact_marginals(mrf: PairwiseMRF) -> tuple[Posterior, Convergence]:
    """Infer true marginals: by two passes over a forest of any size, or by enumeration of a small graph with loops.

    A node whose label is known cuts the graph: what hangs together only through such nodes counts as a forest. Of a
    graph with loops a vertex cover of k nodes is enumerated, C^k labellings: given their labels all other nodes are
    independent, so the posterior is a mixture, which answers for any set of nodes. A graph that is too large for that
    is a ValueError.

    Examples
    --------
    >>> triangle = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1, 0], [1, 2, 2]]), torch.eye(2), evidence={0: 1})
    >>> posterior, _ = exact_marginals(triangle)
    >>> round(float(posterior.node[1, 1]), 4)
    0.8075
    """
    from edgewise.inference.forest import forest_messages, is_forest

    check_field(mrf)
    decided = mrf.decided
    if not is_forest(mrf, decided):
        return _enumerated(mrf, decided), EXACT
    with torch.no_grad():
        messages = forest_messages(mrf.detach(), decided)
    if mrf.requires_grad:
        # On a forest the adjoint is done after as many sweeps as the longest path has edges, however strong they are.
        messages = attach(lambda told: sweep(mrf, told, log_sum), messages, 0.0, max(ADJOINT_SWEEPS, mrf.num_nodes))
    return as_posterior(mrf, messages, EXACT), EXACT


def _enumerated(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> MixturePosterior:
    """Mix over all labellings of a vertex cover; nodes that are decided belong to it with their one label."""
    cover = _vertex_cover(mrf, decided)
    num_samples = mrf.num_classes ** len(cover)
    ranges = [torch.arange(mrf.num_classes, device=mrf.unary.device)] * len(cover)
    choices = torch.cartesian_prod(*ranges).reshape(num_samples, len(cover)).T
    labels = dict(zip(cover, choices, strict=True))
    only_label = mrf.unary.detach().reshape(-1, mrf.num_nodes, mrf.num_classes)[0].argmax(-1)
    for node in decided.nonzero().squeeze(1).tolist():
        labels[node] = only_label[node].expand(num_samples)
    return _mixture(mrf, labels, num_samples)


def _vertex_cover(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> list[int]:
    """Choose nodes so that every edge between undecided nodes has one; greedily, that with the most edges first."""
    open_edges = mrf.edge_index[:, ~decided[mrf.edge_index].any(0)]
    cover: list[int] = []
    while open_edges.shape[1]:
        node = int(torch.bincount(open_edges.flatten()).argmax())
        cover.append(node)
        if mrf.num_classes ** len(cover) * mrf.unary.numel() > MAX_NUMBERS:
            raise TooManyLabellings(
                f"Expected a forest, or a graph with loops that is small enough to enumerate, but {len(cover)} nodes "
                f"or more of {mrf.num_classes} classes, with {mrf.num_nodes} nodes in all, are too many. "
                "Use sum_product."
            )
        open_edges = open_edges[:, (open_edges != node).all(0)]
    return cover


def _mixture(mrf: PairwiseMRF, labels: dict[int, Int[Tensor, " samples"]], num_samples: int) -> MixturePosterior:
    """Given the cover's labels, give each other node its conditional, and each sample its weight."""
    shape = (*mrf.batch_shape, num_samples, mrf.num_nodes, mrf.num_classes)
    fields = list(mrf.unary.double().unsqueeze(-3).expand(shape).unbind(-2))
    log_weight = torch.zeros(shape[:-2], dtype=torch.float64, device=mrf.unary.device)
    for e, (i, j) in enumerate(mrf.edge_index.T.tolist()):
        coupling = mrf.coupling(torch.tensor([e], device=mrf.unary.device))
        coupling = coupling.squeeze(-3).double()
        if i in labels and j in labels:
            log_weight = log_weight + coupling[..., labels[i], labels[j]]
        elif i in labels:
            fields[j] = fields[j] + coupling[..., labels[i], :]
        else:
            fields[i] = fields[i] + coupling[..., :, labels[j]].transpose(-1, -2)
    conditionals = []
    for node, field in enumerate(fields):
        if node in labels:
            chosen = torch.nn.functional.one_hot(labels[node], mrf.num_classes).double()
            log_weight = log_weight + (torch.where(chosen > 0, field, 0.0)).sum(-1)
            conditionals.append(chosen.expand(shape[:-2] + shape[-1:]))
        else:
            log_weight = log_weight + field.logsumexp(-1)
            conditionals.append(field.softmax(-1))
    samples = torch.stack(conditionals, dim=-2)
    weights = log_weight.softmax(-1)
    return MixturePosterior(samples.to(mrf.unary.dtype), weights.to(mrf.unary.dtype), convergence=EXACT)
