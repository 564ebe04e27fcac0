"""The choice of a method, for marginals and for the most likely labeling."""

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.inference.elimination_order import NoExactInference, feasible_order
from edgewise.inference.exact import exact_marginals
from edgewise.inference.fixed_point import ELIMINATION
from edgewise.inference.junction_tree import JunctionTree, batch_items
from edgewise.inference.mrf import PairwiseMRF, check_mrf
from edgewise.inference.propagation import check_marginals, max_product, sum_product
from edgewise.inference.tree_reweighted import tree_reweighted
from edgewise.posterior import Convergence, PairwisePosterior, Posterior

Array = NDArray[Any]


def infer(mrf: PairwiseMRF, *, check: bool = False) -> tuple[Posterior, Convergence]:
    """Compute marginals by the best method that the MRF allows.

    The marginals are exact if the width of the graph allows it (`exact_marginals`). Otherwise `sum_product` is used if
    it converges. Otherwise `tree_reweighted` is used, whose sweeps come close to its unique solution, slowly. If the
    potentials require gradients, exact inference is limited to forests and small graphs.

    Parameters
    ----------
    mrf
        The Markov random field.
    check
        Compare marginals that are not exact with those of other methods, as in `sum_product`.

    Returns
    -------
    Posterior
        The marginals.
    Convergence
        ``method`` states what was chosen, and ``reason`` why.

    Examples
    --------
    >>> triangle = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1, 0], [1, 2, 2]]), torch.eye(2))
    >>> posterior, convergence = infer(triangle)
    >>> convergence.method, convergence.reason
    ('enumeration', 'Exact inference is feasible.')
    """
    check_mrf(mrf)
    posterior: Posterior
    try:
        posterior, convergence = exact_marginals(mrf)
        reason = "Exact inference is feasible."
    except NoExactInference as error:
        posterior, convergence = _propagate(mrf, check)
        reason = f"{error.reason} {OUTCOMES[convergence.method]}"
    explained = posterior.convergence = replace(convergence, reason=reason)
    return posterior, explained


MAX_PARALLEL_SWEEPS = 20_000  # they end earlier if the residual does not decrease
OUTCOMES = {
    "sum-product": "Sum-product converged.",
    "double loop": "Parallel sweeps of sum-product did not converge, but its double loop did.",
    "tree-reweighted": "Sum-product did not converge.",
}


def _propagate(mrf: PairwiseMRF, check: bool) -> tuple[PairwisePosterior, Convergence]:
    """Run sum-product, or tree-reweighted sum-product if it does not converge."""
    posterior, convergence = sum_product(mrf, max_sweeps=MAX_PARALLEL_SWEEPS)
    if not convergence:
        posterior, convergence = tree_reweighted(mrf)
    return posterior, check_marginals(mrf, posterior, convergence) if check else convergence


def map_labels(mrf: PairwiseMRF) -> tuple[Int[Tensor, "*batch nodes"], Convergence]:
    """Find the labeling with the largest probability (maximum a posteriori).

    If the width of the graph allows it, variable elimination with maxima finds it exactly, as in `exact_marginals`.
    Otherwise each node gets the label with the largest max-marginal of `max_product`, and labels of single nodes are
    changed as long as this increases the probability. The result is then a local optimum. ``convergence.method`` states
    which of the two was used.

    For independent nodes, this labeling consists of the most likely label of each node. With couplings it can differ
    from these. ``evaluate(…, predictions=labels)`` scores it.

    Returns
    -------
    Tensor
        The labels (N,). With a batch, (B, N).
    Convergence
        The method, "elimination" or "max-product", whether max-product converged, and in ``reason`` why the labeling
        is not exact.

    Examples
    --------
    >>> edges = torch.tensor([[0, 1, 0], [1, 2, 2]])
    >>> mrf = PairwiseMRF(torch.tensor([[0.4, 0.0], [0.0, 0.1], [0.0, 0.1]]), edges, torch.eye(2))
    >>> labels, convergence = map_labels(mrf)
    >>> labels.tolist(), convergence.method
    ([0, 0, 0], 'elimination')
    """
    check_mrf(mrf)
    constant = mrf.detach()
    try:
        order = feasible_order(constant)
    except NoExactInference as error:
        posterior, convergence = max_product(constant)
        advice = "" if convergence else "Max-product did not converge. No change of one label improves the labeling."
        convergence = replace(convergence, advice=advice, reason=error.reason)
        starts = posterior.node.argmax(-1).reshape(-1, mrf.num_nodes)
        items = zip(batch_items(constant), starts.cpu().numpy(), strict=True)
        labels = [_improve(item, start) for item, start in items]
    else:
        convergence, trees = ELIMINATION, (JunctionTree(item, order) for item in batch_items(constant))
        labels = [tree.draw(tree.messages(maximum=True)[0])[0] for tree in trees]
    best = torch.from_numpy(np.stack(labels)).reshape(*mrf.batch_shape, mrf.num_nodes)
    return best.to(mrf.unary.device), convergence


def _improve(mrf: PairwiseMRF, labels: Array) -> Array:
    """Change labels of single nodes until no change increases the score (iterated conditional modes, Besag 1986)."""
    unary, edges = mrf.unary.double().cpu().numpy(), mrf.edge_index.cpu().numpy()
    shape = (mrf.num_edges, mrf.num_classes, mrf.num_classes)
    couplings = np.broadcast_to(mrf.coupling(slice(None)).double().cpu().numpy(), shape)
    incident: list[list[tuple[int, int, bool]]] = [[] for _ in range(mrf.num_nodes)]
    for e, (i, j) in enumerate(edges.T.tolist()):
        incident[i].append((j, e, True))
        incident[j].append((i, e, False))
    labels, waiting, is_waiting = labels.copy(), deque(range(mrf.num_nodes)), np.ones(mrf.num_nodes, dtype=np.bool_)
    while waiting:
        i = waiting.popleft()
        is_waiting[i] = False
        scores = unary[i].copy()
        for j, e, is_start in incident[i]:
            scores += couplings[e, :, labels[j]] if is_start else couplings[e, labels[j], :]
        if scores[best := int(scores.argmax())] > scores[labels[i]]:
            labels[i] = best
            for j, _, _ in incident[i]:
                if not is_waiting[j]:
                    waiting.append(j)
                    is_waiting[j] = True
    return labels
