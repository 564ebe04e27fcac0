"""Joints of neighbors that keep the marginals of their ends: a fixed point of sum-product, chosen, not searched for.

For marginals p_i and p_j and a strength w there is one joint q(l, m) = a(l) b(m) exp(w 1[l = m]) with these marginals.
Taken for every edge, p and q are a fixed point of sum-product: that of the field with unaries
U_i = log p_i - Σ_j μ_{j→i} and couplings w 1[l = m], where μ_{j→i} = log p_i - log a. On a forest there is no other, so
there p and q are the field's true marginals, whatever w is.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

MAX_TURNS = 2000
TOLERANCE = 1e-10  # nats


def sinkhorn_messages(
    log_p: Float[Tensor, "2 edges classes"], strength: Float[Tensor, ""]
) -> Float[Tensor, "2 edges classes"]:
    """Return the messages into starts and ends of edges under which their beliefs are p; exp(log p) sums to 1.

    Rows and columns are scaled by turns (Sinkhorn and Knopp 1967). A neighbor whose belief without this edge is b sends
    log Σ_m b(m) exp(w 1[l = m]) = log(1 + (e^w - 1) b(l)), which is between 0 and w. The gradient is that of the fixed
    point, without the turns that led to it.
    """
    at_start, at_end = log_p
    factor = torch.expm1(strength)

    def turn(into_end: Float[Tensor, "edges classes"]) -> Float[Tensor, "edges classes"]:
        into_start = torch.log1p(factor * (at_end - into_end).softmax(-1))
        return torch.log1p(factor * (at_start - into_start).softmax(-1))

    with torch.no_grad():
        before, into_end = at_end, torch.zeros_like(at_end)
        for _ in range(MAX_TURNS):
            before, into_end = into_end, turn(into_end)
            if into_end.numel() == 0 or float((into_end - before).abs().max()) < TOLERANCE:
                break
    if torch.is_grad_enabled() and into_end.numel() and (log_p.requires_grad or strength.requires_grad):
        with torch.no_grad():
            from_end = (at_end - before).softmax(-1)
            from_start = (at_start - torch.log1p(factor * from_end)).softmax(-1)
            jacobian = _jacobian(factor, from_start) @ _jacobian(factor, from_end)
        into_end = turn(before)
        into_end.register_hook(lambda gradient: _adjoint(jacobian, gradient))
    return torch.stack([torch.log1p(factor * (at_end - into_end).softmax(-1)), into_end])


def _adjoint(
    jacobian: Float[Tensor, "edges classes classes"], gradient: Float[Tensor, "edges classes"] | None
) -> Float[Tensor, "edges classes"] | None:
    """Solve λ (I - ∂f/∂x) = g: the gradient g of a fixed point x = f(x, θ) becomes λ ∂f/∂θ.

    Edges do not depend on each other, so each has a small system of its own. That is quicker than to iterate, as
    `fixed_point.attach` does for messages that depend on all others.
    """
    if gradient is None:
        return None
    if torch.is_grad_enabled():
        raise RuntimeError("Expected a first derivative, but a second one of a fixed point is not available.")
    solved: Tensor = torch.linalg.solve(torch.eye(jacobian.shape[1]).to(jacobian) - jacobian.mT, gradient)
    return solved


def _jacobian(factor: Float[Tensor, ""], b: Float[Tensor, "edges classes"]) -> Float[Tensor, "edges classes classes"]:
    """∂ log(1 + f b(l)) / ∂ log b(m) of a softmax b: f b(l) (1[l = m] - b(m)) / (1 + f b(l))."""
    share = factor * b / (1 + factor * b)
    return share.diag_embed() - share.unsqueeze(2) * b.unsqueeze(1)


def pointwise_mutual_information(
    log_p: Float[Tensor, "2 edges classes"], strength: Float[Tensor, ""], labels: Int[Tensor, "2 edges"]
) -> Float[Tensor, " edges"]:
    """Compute log q(y_i, y_j) / (p_i(y_i) p_j(y_j)): what the joint of two labels says beyond their marginals."""
    messages = sinkhorn_messages(log_p, strength)
    cavities = log_p - messages
    agreement = (cavities[0].softmax(-1) * cavities[1].softmax(-1)).sum(-1)
    log_normalizer = cavities.logsumexp(-1).sum(0) + torch.log1p(torch.expm1(strength) * agreement)
    own = messages.gather(-1, labels.unsqueeze(-1)).squeeze(-1).sum(0)
    return strength * (labels[0] == labels[1]) - own - log_normalizer


def bethe_log_likelihood(
    log_p: Float[Tensor, "nodes classes"],
    labels: Int[Tensor, " nodes"],
    edge_index: Int[Tensor, "2 edges"],
    strength: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    """Σ_i log p_i(y_i) + Σ_ij log q(y_i, y_j) / (p_i(y_i) p_j(y_j)): Bethe's log-likelihood, whose log Z is 0.

    Where the edges form a forest this is the log-likelihood of the labels under the field of these nodes and edges.
    """
    of_nodes = log_p.gather(1, labels.unsqueeze(1)).sum()
    return of_nodes + pointwise_mutual_information(log_p[edge_index], strength, labels[edge_index]).sum()


def unary_potentials(
    log_p: Float[Tensor, "nodes classes"],
    edge_index: Int[Tensor, "2 edges"],
    messages: Float[Tensor, "2 edges classes"],
) -> Float[Tensor, "nodes classes"]:
    """U_i = log p_i - Σ_j μ_{j→i}: the field whose sum-product rests at these marginals and messages."""
    start, end = edge_index
    return log_p.index_add(0, start, -messages[0]).index_add(0, end, -messages[1])
