"""Conformal sets, matchings, p-values and their selection as plain loops."""

import math
from fractions import Fraction


def quantile(scores: list[float], alpha: str) -> float:
    """Return the ⌈(n + 1)(1 - α)⌉-th smallest score, for α as decimal text."""
    return sorted(scores)[math.ceil((len(scores) + 1) * (1 - Fraction(alpha))) - 1]


def node_score(p: list[float], label: int, score: str, u: float, penalty: float = 0.0, k_reg: int = 0) -> float:
    """Return the score of a label of a node. Equal probabilities are ordered by label."""
    if score == "thr":
        return 1 - p[label]
    total = 0.0
    for rank, k in enumerate(sorted(range(len(p)), key=lambda k: (-p[k], k)), start=1):
        total += p[k]
        if k == label:
            return total - u * p[k] + (max(0.0, penalty * (rank - k_reg)) if score == "raps" else 0.0)
    raise AssertionError


def diffuse(scores: list[list[float]], edges: list[tuple[int, int]], weight: float) -> list[list[float]]:
    """Return (1 - λ) s_i + λ · mean of the scores of neighbors, and (1 - λ) s_i without neighbors."""
    result = []
    for i, own in enumerate(scores):
        around = {j for edge in edges for j in edge if i in edge and edge[0] != edge[1]} - {i}
        means = [sum(scores[j][k] for j in around) / max(1, len(around)) for k in range(len(own))]
        result.append([(1 - weight) * s + weight * mean for s, mean in zip(own, means, strict=True)])
    return result


def greedy_matching(edges: list[tuple[int, int]], order: list[int]) -> list[int]:
    """Return the edges that are taken if each is taken in this order if both ends are free."""
    taken, busy = [], set()
    for e in order:
        if not busy & set(edges[e]):
            taken.append(e)
            busy |= set(edges[e])
    return sorted(taken)


def p_value(p: float, calibration: list[tuple[float, bool]]) -> float:
    """Return (1 + number of calibration pairs without the event whose P is at least p) / (n + 1)."""
    return (1 + sum(q >= p and not happened for q, happened in calibration)) / (len(calibration) + 1)


def benjamini_hochberg(p_values: list[float], fdr: float) -> list[bool]:
    """Return which p-values are at most the largest p_(k) ≤ fdr · k / m."""
    ordered, limit = sorted(p_values), -1.0
    for k, p in enumerate(ordered, start=1):
        if p <= fdr * k / len(ordered) + 1e-12:
            limit = p
    return [p <= limit for p in p_values]
