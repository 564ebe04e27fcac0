"""The one joint of two nodes that has given marginals and a given coupling of equal labels.

q(l, m) = a(l) b(m) exp(w 1[l = m]) with marginals p and r. Write k = e^w - 1, and M for the product of the sums of a
and b. Then u = k a b has (p - u) (r - u) = u M / k for each label, a quadratic equation, and Σ u = 1 - M, which leaves
one unknown number for each pair: M, between 1 and e^-w. It is found within these limits, so marginals are right to
rounding whatever w is.

For w > 0 the joint is a mixture: both ends have label l together with probability u(l), or else are drawn apart, from
p - u and r - u. As w grows u becomes min(p, r), the most that two nodes can agree.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

MOST_STEPS = 64
TOLERANCE = 1e-13
WEAKEST, STRONGEST = 1e-16, 300.0  # nats; below, exp w is 1, and above, M² / k² is no number any more

Logs = Float[Tensor, "pairs classes"]
OfPairs = Float[Tensor, "pairs 1"]
Rising = Callable[[OfPairs], Tensor]


class Coupled(NamedTuple):
    """log a and log b of q(l, m) = a(l) b(m) exp(w 1[l = m]), for each pair, and w 1[l = m]."""

    log_a: Logs
    log_b: Logs
    coupling: Float[Tensor, "classes classes"]

    def log_joints(self) -> Float[Tensor, "pairs classes classes"]:
        """Give log q."""
        return self.log_a.unsqueeze(2) + self.coupling + self.log_b.unsqueeze(1)


def coupled(log_p: Logs, log_r: Logs, strength: float) -> Coupled:
    """Find a and b of each pair, such that the marginals of q are p and r; float64.

    >>> half = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    >>> coupled(half, half, math.log(2.0)).log_joints().exp()  # equal labels are twice as likely as others
    tensor([[[0.3333, 0.1667],
             [0.1667, 0.3333]]], dtype=torch.float64)
    """
    if not -STRONGEST <= strength <= STRONGEST:
        raise ValueError(f"Expected a coupling of at most {STRONGEST:g} nats, but got {strength}.")
    find = _apart if abs(strength) < WEAKEST else _attracted if strength > 0 else _repelled
    log_a, log_b = find(log_p, log_r, strength)
    return Coupled(log_a, log_b, strength * torch.eye(log_p.shape[1], dtype=log_p.dtype))


def _apart(log_p: Logs, log_r: Logs, strength: float) -> tuple[Logs, Logs]:
    return log_p, log_r


def _attracted(log_p: Logs, log_r: Logs, strength: float) -> tuple[Logs, Logs]:
    """Find θ = M / k by Σ (p - u) = k θ; then a = p - u, b = (r - u) / M.

    Of two equations for p - u and r - u the one for the smaller of p and r subtracts nothing that cancels.
    """
    log_k = _log_expm1(strength)
    is_less = log_p <= log_r
    less, more = torch.minimum(log_p, log_r), torch.maximum(log_p, log_r)
    share, rest = (less - more).exp(), -torch.expm1(less - more)  # less / more, and 1 without it
    small, difference = less.exp(), more.exp() * rest

    def of_less(theta: OfPairs) -> Logs:
        """Give (less - u) / less; then (more - u) / more is rest + share of it."""
        middle = difference + theta
        return 2 * theta / (middle + (middle.square() + 4 * theta * small).sqrt())

    def excess(log_theta: OfPairs) -> OfPairs:
        apart = small * of_less(log_theta.exp())
        return log_k + log_theta - torch.where(is_less, apart, difference + apart).sum(1, keepdim=True).log()

    high = torch.full_like(log_p[:, :1], -log_k)
    log_theta = _root(excess, high - strength, high)
    part = of_less(log_theta.exp())
    log_less, log_more = part.log(), (rest + share * part).log()
    log_a, log_b = log_p + torch.where(is_less, log_less, log_more), log_r + torch.where(is_less, log_more, log_less)
    return log_a, log_b - (log_k + log_theta)


def _repelled(log_p: Logs, log_r: Logs, strength: float) -> tuple[Logs, Logs]:
    """Find v = -u of the label that is likeliest at both ends, and τ = -M / k = p + r + v + p r / v.

    v has two roots. All labels take the smaller one, but for the likeliest, which may take either: so its v is the
    unknown, and what others have follows from τ.
    """
    kappa, log_kappa = -math.expm1(strength), math.log(-math.expm1(strength))
    p, r, root = log_p.exp(), log_r.exp(), ((log_p + log_r) / 2).exp()
    level = p + r + 2 * root  # (√p + √r)²: τ is not below, for any label
    highest, first = level.max(1, keepdim=True)
    first_p, first_r = log_p.gather(1, first), log_r.gather(1, first)
    both, sum_first = first_p + first_r, first_p.exp() + first_r.exp()
    squares = root.square().scatter(1, first, 0.0)

    def divisor(log_v: OfPairs) -> Logs:
        """Give p r / v of each label by its smaller root; nothing cancels where both roots are nearly one."""
        gap = ((log_v / 2).exp() - ((both - log_v) / 2).exp()).square() + (highest - level)
        return (gap / 2 + root + (gap * (gap / 4 + root)).sqrt()).clamp(min=torch.finfo(p.dtype).tiny)

    def excess(log_v: OfPairs) -> OfPairs:
        of_others = (squares / divisor(log_v)).sum(1, keepdim=True)
        own = (strength + log_v).exp() - kappa * (both - log_v).exp()  # v - κ τ, but for what does not depend on v
        return own + of_others + 1 - kappa * sum_first

    low, high = both + strength + log_kappa, torch.minimum(first_p, first_r) - strength + log_kappa
    log_v = _root(excess, low, high)
    by = divisor(log_v)
    # v / p and v / r, which are r and p over the divisor.
    over_p = (r / by).scatter(1, first, (log_v - first_p).exp())
    over_r = (p / by).scatter(1, first, (log_v - first_r).exp())
    log_m = log_kappa + (sum_first + log_v.exp() + (both - log_v).exp()).log()
    return log_p + over_p.log1p(), log_r + over_r.log1p() - log_m


def _root(rising: Rising, low: OfPairs, high: OfPairs) -> OfPairs:
    """Find where a function is zero that is not above at ``low`` and not below at ``high`` (Ridders 1979)."""
    at_low, at_high = rising(low).clamp(max=0.0), rising(high).clamp(min=0.0)
    found = low
    for _ in range(MOST_STEPS):
        middle = (low + high) / 2
        at_middle = rising(middle)
        geometric = (at_middle.square() - at_low * at_high).sqrt()
        before, found = found, torch.where(geometric > 0, middle - (middle - low) * at_middle / geometric, middle)
        if found.numel() == 0 or float((found - before).abs().max()) < TOLERANCE:
            break
        for place, value in ((middle, at_middle), (found, rising(found))):
            raised = (value < 0) & (place > low)
            lowered = (value >= 0) & (place < high)
            low, at_low = torch.where(raised, place, low), torch.where(raised, value, at_low)
            high, at_high = torch.where(lowered, place, high), torch.where(lowered, value, at_high)
    return found


def _log_expm1(x: float) -> float:
    """Give log(e^x - 1) without overflow."""
    return x + math.log(-math.expm1(-x))
