"""Edge joints with given marginals and a given Potts coupling, as a fixed point of sum-product.

For marginals p_i and p_j and a coupling w there is exactly one joint q(l, m) = a(l) b(m) exp(w 1[l = m]) with these
marginals. With one such joint per edge, p and q are a fixed point of sum-product on the Markov random field with
unary potentials U_i = log p_i - Σ_j μ_{j→i} and pairwise potentials w 1[l = m], where μ_{j→i} = log p_i - log a. On a
forest the fixed point is unique, so p and q are the exact marginals of that MRF for every w.
"""

from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

MAX_ITERATIONS = 100
TOLERANCE = 4096  # of the last step, in rounding errors; the error after a Newton step is about the step squared
MAX_FITTING_ITERATIONS = 100
FITTING_TOLERANCE = 1e-12  # of a marginal


def coupled_messages(
    log_p: Float[Tensor, "2 edges classes"], coupling: Float[Tensor, ""] | Float[Tensor, " edges"]
) -> Float[Tensor, "2 edges classes"]:
    """Compute the messages into the start and the end of each edge for which the node marginals are exp(log_p).

    The coupling w is one number for all edges, or one per edge. A neighbor whose belief without this edge is b sends
    log Σ_m b(m) exp(w 1[l = m]) = log(1 + f b(l)) with f = e^w - 1, which lies between 0 and w.

    ``exp(log_p)`` must sum to 1 over classes. The result is differentiable twice. In float64 w may be between
    -10, where the marginals are exact to 1e-8, and 300.

    Each edge is one equation in one unknown. With q(l, m) = α(l) β(m) / u · (1 + f 1[l = m]), Σ α = Σ β = u and
    k = f / u, the marginals p and p' of the two ends are α (1 + kβ) and β (1 + kα). So α - β = δ = p - p' and
    1 + k(α + β) = R = ±√(1 + 2k(p + p') + k²δ²) for each class, and Σ α = u becomes Σ_l (R(l) - 1) = 2f. At most one
    R is negative, that of the class c with the largest √p + √p'. The unknown is r = R(c), which determines k. There is
    one solution between 1 and 1 + 2f, since exactly one joint has the marginals p and p'.
    """
    equation = _EdgeEquation.of_marginals(log_p.exp(), torch.expm1(coupling).expand(log_p.shape[1]).unsqueeze(1))
    with torch.no_grad():
        root = _solve(equation)
    if torch.is_grad_enabled() and (log_p.requires_grad or coupling.requires_grad):
        for _ in range(2):  # Newton steps from the root do not change it, and give its first two derivatives
            excess, slope = equation.evaluate(root)
            root = root - excess / slope
    return equation.messages(root)


class _EdgeEquation(NamedTuple):
    """The equation Σ_l (R(l) - 1) = 2f of each edge. The unknown is r = R(c)."""

    marginals: Float[Tensor, "2 edges classes"]
    factor: Float[Tensor, "edges 1"]  # f
    total: Float[Tensor, "edges classes"]  # p + p'
    difference: Float[Tensor, "edges classes"]  # δ
    critical: Int[Tensor, "edges 1"]  # c

    @classmethod
    def of_marginals(cls, p: Float[Tensor, "2 edges classes"], factor: Float[Tensor, "edges 1"]) -> Self:
        """Return the equation for the marginals of both ends and f."""
        critical = p.detach().sqrt().sum(0).argmax(1, keepdim=True)
        return cls(p, factor, p.sum(0), p[0] - p[1], critical)

    def evaluate(self, root: Float[Tensor, "edges 1"]) -> tuple[Float[Tensor, "edges 1"], Float[Tensor, "edges 1"]]:
        """Return Σ_l (R(l) - 1) - 2f and its derivative."""
        k, k_slope = self._k(root)
        r = self._other_roots(k)
        square = self.difference.square()
        terms = ((2 * self.total + k * square) * k / (1 + r)).scatter(1, self.critical, 0.0)  # R - 1
        slopes = ((self.total + k * square) * k_slope / r).scatter(1, self.critical, 0.0)
        return root - 1 + terms.sum(1, keepdim=True) - 2 * self.factor, 1 + slopes.sum(1, keepdim=True)

    def messages(self, root: Float[Tensor, "edges 1"]) -> Float[Tensor, "2 edges classes"]:
        """Return log(1 + kβ) and log(1 + kα). The smaller of α and β is computed without cancellation."""
        k, _ = self._k(root)
        r = self._other_roots(k).scatter(1, self.critical, root)
        gap = k * self.difference.abs()
        smaller = 2 * k * self.marginals.amin(0) / (1 + gap + r)
        larger = smaller + gap
        is_start = self.difference >= 0  # α is the larger
        return torch.log1p(
            torch.stack([torch.where(is_start, smaller, larger), torch.where(is_start, larger, smaller)])
        )

    def _k(self, root: Float[Tensor, "edges 1"]) -> tuple[Float[Tensor, "edges 1"], Float[Tensor, "edges 1"]]:
        """Return k, for which R(c) is r, and its derivative."""
        p, other = self.marginals.gather(2, self.critical.expand(2, -1, 1))
        discriminant = (4 * p * other + ((p - other) * root).square()).sqrt()
        return (root - 1) * (root + 1) / (p + other + discriminant), root / discriminant

    def _other_roots(self, k: Float[Tensor, "edges 1"]) -> Float[Tensor, "edges classes"]:
        """Return R of all classes but c."""
        square = 1 + 2 * k * self.total + (k * self.difference).square()
        return square.clamp(min=torch.finfo(square.dtype).tiny).sqrt()


def _solve(equation: _EdgeEquation) -> Float[Tensor, "edges 1"]:
    """Solve the equation of each edge by Newton's method, with bisection where a step leaves the bracket.

    The left side is negative below the solution and positive above it, but for w < 0 it does not always increase.
    """
    low, high = 1 + 2 * equation.factor.clamp(max=0), 1 + 2 * equation.factor.clamp(min=0)
    root = 1 + equation.factor * equation.total.gather(1, equation.critical)  # the first Newton step from r = 1
    for _ in range(MAX_ITERATIONS):
        excess, slope = equation.evaluate(root)
        low, high = torch.where(excess < 0, root, low), torch.where(excess < 0, high, root)
        step = root - excess / slope
        step = torch.where((step >= low) & (step <= high), step, (low + high) / 2)
        change = (step - root).abs() / (1 + root.abs())
        root = step
        if change.numel() == 0 or float(change.max()) < TOLERANCE * torch.finfo(root.dtype).eps:
            break
    return root


def pointwise_mutual_information(
    log_p: Float[Tensor, "2 edges classes"],
    coupling: Float[Tensor, ""] | Float[Tensor, " edges"],
    labels: Int[Tensor, "2 edges"],
) -> Float[Tensor, " edges"]:
    """Compute log q(y_i, y_j) / (p_i(y_i) p_j(y_j)) for each edge."""
    messages = coupled_messages(log_p, coupling)
    cavities = log_p - messages
    p_same = (cavities[0].softmax(-1) * cavities[1].softmax(-1)).sum(-1)
    log_normalizer = cavities.logsumexp(-1).sum(0) + torch.log1p(torch.expm1(coupling) * p_same)
    label_messages = messages.gather(-1, labels.unsqueeze(-1)).squeeze(-1).sum(0)
    return coupling * (labels[0] == labels[1]) - label_messages - log_normalizer


def bethe_log_likelihood(
    log_p: Float[Tensor, "nodes classes"],
    labels: Int[Tensor, " nodes"],
    edge_index: Int[Tensor, "2 edges"],
    coupling: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    """Compute the Bethe approximation of log P(y), Σ_i log p_i(y_i) + Σ_ij log q(y_i, y_j) / (p_i(y_i) p_j(y_j)).

    The Bethe approximation of log Z is 0 for this parametrization. If the edges form a forest, the result is the exact
    log-likelihood of the labels under the MRF of these nodes and edges.
    """
    node_sum = log_p.gather(1, labels.unsqueeze(1)).sum()
    return node_sum + pointwise_mutual_information(log_p[edge_index], coupling, labels[edge_index]).sum()


def fit_to_marginals(
    joints: Float[Tensor, "pairs classes classes"],
    rows: Float[Tensor, "pairs classes"],
    columns: Float[Tensor, "pairs classes"],
) -> Float[Tensor, "pairs classes classes"]:
    """Scale rows and columns until the joints have the given marginals (iterative proportional fitting).

    Odds ratios do not change.
    """
    for _ in range(MAX_FITTING_ITERATIONS):
        joints = joints * (rows / joints.sum(2).clamp(min=1e-300)).unsqueeze(2)
        joints = joints * (columns / joints.sum(1).clamp(min=1e-300)).unsqueeze(1)
        if not len(joints) or float((joints.sum(2) - rows).abs().max()) < FITTING_TOLERANCE:
            break
    return joints / joints.sum((1, 2), keepdim=True)


def unary_potentials(
    log_p: Float[Tensor, "nodes classes"],
    edge_index: Int[Tensor, "2 edges"],
    messages: Float[Tensor, "2 edges classes"],
) -> Float[Tensor, "nodes classes"]:
    """Compute U_i = log p_i - Σ_j μ_{j→i}, for which sum-product has these marginals and messages as a fixed point."""
    start, end = edge_index
    return log_p.index_add(0, start, -messages[0]).index_add(0, end, -messages[1])
