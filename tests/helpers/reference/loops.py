"""Reference implementation of the metrics with plain Python loops."""

import math
from collections import Counter
from fractions import Fraction


def scored_edges(edges, mask, choice="both"):
    """Return pairs (low, high), each repeated as often as it counts."""
    forward, backward = Counter(), Counter()
    for i, j in edges:
        selected = {"both": mask[i] and mask[j], "any": mask[i] or mask[j], "all": True}[choice]
        if i < j and selected:
            forward[i, j] += 1
        if i > j and selected:
            backward[j, i] += 1
    pairs = []
    for pair in set(forward) | set(backward):
        pairs += [pair] * max(forward[pair], backward[pair])
    return pairs


def bin_of(confidence, n_bins, closed="right"):
    """Return k - 1 for (k-1)/m < c <= k/m, or (k-1)/m <= c < k/m if closed on the left, in exact arithmetic."""
    scaled = Fraction(confidence) * n_bins
    k = math.ceil(scaled) - 1 if closed == "right" else math.floor(scaled)
    return min(max(k, 0), n_bins - 1)


def calibration_error(confidences, corrects, n_bins, norm="l1", closed="right"):
    if not confidences:
        return math.nan
    gaps, weights = [], []
    for k in range(n_bins):
        members = [e for e, c in enumerate(confidences) if bin_of(c, n_bins, closed) == k]
        if members:
            accuracy = sum(corrects[e] for e in members) / len(members)
            confidence = math.fsum(confidences[e] for e in members) / len(members)
            gaps.append(abs(accuracy - confidence))
            weights.append(len(members) / len(confidences))
    if norm == "l1":
        return sum(w * g for w, g in zip(weights, gaps, strict=True))
    if norm == "l2":
        return math.sqrt(sum(w * g**2 for w, g in zip(weights, gaps, strict=True)))
    return max(gaps)


def product(p, q):
    return [[a * b for b in q] for a in p]


def score_distributions(distributions, truths, corrects, n_bins, norm="l1", closed="right", predicted=None):
    """Return accuracy, NLL, Brier score and ECE of flat distributions with the given true entries.

    The confidence is the probability of the entry ``predicted``, by default of the most probable one.
    """
    n = len(distributions)
    if n == 0:
        return {"count": 0, "accuracy": math.nan, "nll": math.nan, "brier": math.nan, "ece": math.nan}
    nll = [-math.log(d[t]) if d[t] > 0 else math.inf for d, t in zip(distributions, truths, strict=True)]
    brier = [
        math.fsum((1 - value) ** 2 if entry == t else value**2 for entry, value in enumerate(d))
        for d, t in zip(distributions, truths, strict=True)
    ]
    confidences = [max(d) for d in distributions]
    if predicted is not None:
        confidences = [d[entry] for d, entry in zip(distributions, predicted, strict=True)]
    return {
        "count": n,
        "accuracy": sum(corrects) / n,
        "nll": math.fsum(nll) / n,
        "brier": math.fsum(brier) / n,
        "ece": calibration_error(confidences, corrects, n_bins, norm, closed),
    }


def evaluate(probs, y, edges, mask, joints=None, n_bins=15, norm="l1", closed="right", choice="both", given=None):
    """Return the scores of all views. Inputs are nested lists, and joints[i, j] is the joint of a pair (low, high).

    ``given`` are predictions. By default the prediction is the most probable label of each node.
    """
    num_classes = len(probs[0])
    predicted = [p.index(max(p)) for p in probs] if given is None else given
    correct = [predicted[i] == y[i] for i in range(len(probs))]
    nodes = [i for i in range(len(probs)) if mask[i]]
    scored = [(i, j) for i, j in scored_edges(edges, mask, choice) if y[i] >= 0 and y[j] >= 0]

    def score_edges(chosen):
        flat = []
        for i, j in chosen:
            joint = joints[i, j] if joints else product(probs[i], probs[j])
            flat.append([value for row in joint for value in row])
        truths = [y[i] * num_classes + y[j] for i, j in chosen]
        corrects = [correct[i] and correct[j] for i, j in chosen]
        entries = None if given is None else [given[i] * num_classes + given[j] for i, j in chosen]
        return score_distributions(flat, truths, corrects, n_bins, norm, closed, entries)

    agree = [(i, j) for i, j in scored if y[i] == y[j]]
    disagree = [(i, j) for i, j in scored if y[i] != y[j]]

    def k_index(chosen):
        ends = {node for edge in chosen for node in edge if mask[node]}
        return len(ends) / len(nodes) if nodes else math.nan

    return {
        "nodewise": score_distributions(
            [probs[i] for i in nodes],
            [y[i] for i in nodes],
            [correct[i] for i in nodes],
            n_bins,
            norm,
            closed,
            None if given is None else [given[i] for i in nodes],
        ),
        "edgewise": score_edges(scored),
        "agree": score_edges(agree),
        "disagree": score_edges(disagree),
        "homophily": len(agree) / len(scored) if scored else math.nan,
        "k_index": {"edgewise": k_index(scored), "agree": k_index(agree), "disagree": k_index(disagree)},
    }
