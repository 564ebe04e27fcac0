"""Conformal prediction: scores of labels, their quantiles, groups with a quantile of their own, and coverage.

A set holds the labels whose score is at most a threshold. The threshold is the k-th smallest score of the true labels
of n calibration elements, k = ⌈(n + 1)(1 - α)⌉. If a new element is exchangeable with them, the rank of its score is
uniform among n + 1, ties aside, so its set holds its true label with probability at least k / (n + 1) >= 1 - α.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.conversion import as_edges, as_labels, as_mask, edges_of, labels_of
from edgewise.data.edges import undirected_edges
from edgewise.small_samples import fraction_interval, warn_caller
from edgewise.validation import ArrayLike, check_number

Score = Literal["thr", "aps", "raps"]
CPU = torch.device("cpu")
DEGREE_QUANTILES = (0.25, 0.5, 0.75)


class ExchangeabilityWarning(UserWarning):
    """Calibration or test nodes were also used to fit the model or its calibrator, so coverage is not guaranteed."""


# Random numbers


def private_generator(seed: int, stream: int) -> np.random.Generator:
    """Return a generator that shares no numbers with ``default_rng(seed)`` or ``default_rng([seed, number])``.

    Roles may have been dealt with these, and the proof needs roles that are independent of the seed of `fit`.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))


def uniform_numbers(seed: int, num_nodes: int) -> Float[Tensor, " nodes"]:
    """Draw the number of each node that randomizes its scores."""
    return torch.from_numpy(private_generator(seed, 1).random(num_nodes))


# Scores and thresholds


def label_scores(
    p: Float[Tensor, "rows labels"],
    score: Score,
    uniform: Float[Tensor, " rows"],
    penalty: float = 0.0,
    k_reg: int = 0,
) -> Float[Tensor, "rows labels"]:
    """Compute the score of each label; the lower it is, the sooner the label enters a set.

    "thr" is 1 - p. "aps" adds up the probabilities of all labels down to this one, most likely first, and subtracts
    ``uniform`` · p. "raps" also adds ``penalty`` · max(rank - ``k_reg``, 0), where the rank of the first label is 1.

    >>> p = torch.tensor([[0.5, 0.25, 0.25]])
    >>> label_scores(p, "aps", torch.tensor([0.5])).tolist()
    [[0.25, 0.625, 0.875]]
    """
    if score == "thr":
        return 1.0 - p
    ordered, order = p.sort(dim=1, descending=True, stable=True)
    scores = ordered.cumsum(1) - uniform[:, None] * ordered
    if score == "raps":
        ranks = torch.arange(1, p.shape[1] + 1, dtype=p.dtype, device=p.device)
        scores = scores + (penalty * (ranks - k_reg)).clamp(min=0.0)
    return torch.empty_like(scores).scatter_(1, order, scores)


def conformal_rank(alpha: float, count: int) -> int:
    """Return ⌈(count + 1)(1 - alpha)⌉ in decimal arithmetic.

    >>> conformal_rank(0.1, 9), conformal_rank(0.1, 10)
    (9, 10)
    """
    return math.ceil((count + 1) * (1 - Fraction(str(alpha))))


def conformal_threshold(
    scores: Float[Tensor, " elements"], alpha: float, elements: str, group: str | None = None
) -> float:
    """Return the ⌈(n + 1)(1 - α)⌉-th smallest of n scores. Too few scores raise ValueError.

    ``elements`` is the word for the scored elements in the message, and ``group`` the name of their group, if any.

    >>> conformal_threshold(torch.arange(10.0), 0.2, "nodes")
    8.0
    """
    count, rank = len(scores), conformal_rank(alpha, len(scores))
    if rank > count:
        required = math.ceil(1 / Fraction(str(alpha)) - 1)
        ways_out = ["more calibration nodes"]
        ways_out += [f"alpha of at least {math.ceil(1e4 / (count + 1)) / 1e4:g}"] if count else []
        ways_out += ["groups=None"] if group is not None else []
        place = "" if group is None else f" in the group {group!r}"
        raise ValueError(
            f"Expected at least {required:,} calibration {elements}{place} for alpha={alpha:g}, that is 1/alpha - 1, "
            f"but got {count:,}. With fewer, only the set of all labels has the guarantee. Use "
            f"{', or '.join(ways_out)}."
        )
    return float(scores.kthvalue(rank).values)


def group_thresholds(
    scores: Float[Tensor, " elements"],
    groups: Int[Tensor, " elements"],
    occurring: Int[Tensor, " some"],
    names: Sequence[str],
    alpha: float,
    elements: str,
) -> Float[Tensor, " groups"]:
    """Return the threshold of each group that occurs, and NaN for other groups."""
    thresholds = torch.full((len(names),), math.nan, dtype=torch.float64)
    counts = torch.bincount(groups, minlength=len(names))
    # The smallest group comes first, so that an alpha suggested for it is large enough for all groups.
    for g in sorted(occurring.unique().tolist(), key=counts.tolist().__getitem__):
        group = names[g] if len(names) > 1 else None
        thresholds[g] = conformal_threshold(scores[groups == g], alpha, elements, group)
    return thresholds


# Groups


def degree_limits(degree: Int[Tensor, " elements"]) -> Int[Tensor, " limits"]:
    """Return the largest degree of each group but the last: the quartiles of all elements, whatever their roles."""
    if len(degree) == 0:
        return degree
    ordered = degree.sort().values
    places = torch.tensor([math.floor(q * (len(degree) - 1)) for q in DEGREE_QUANTILES])
    limits = ordered[places].unique()
    inner: Tensor = limits[limits < ordered[-1]]
    return inner


def group_names(by: str | None, num_classes: int, limits: Int[Tensor, " limits"] | None) -> list[str]:
    """Return the names of all groups, in the order of `group_elements`."""
    if by == "predicted_class":
        return [*map(str, range(num_classes)), "different"]
    if by == "agree":
        return ["disagree", "agree"]
    if by == "same_label":
        return ["different", "same"]
    if by == "degree" and limits is not None:
        bounds = [-1, *limits.tolist()]
        closed = [str(high) if high == low + 1 else f"{low + 1} to {high}" for low, high in pairwise(bounds)]
        return [*closed, f"{bounds[-1] + 1} or more"]
    return ["all"]


def group_elements(
    by: str | None,
    nodes: Int[Tensor, "ends elements"],
    predicted: Int[Tensor, " nodes"],
    num_classes: int,
    degree: Int[Tensor, " nodes"] | None,
    limits: Int[Tensor, " limits"] | None,
) -> Int[Tensor, " elements"]:
    """Return the group of each node (1, M) or pair of nodes (2, M).

    "predicted_class" is the predicted class of a node. For a pair it is that of both ends, or "different". "agree" is
    whether the predicted classes of both ends agree. "degree" is a range of the degree; a pair has its smaller degree.
    """
    if by == "predicted_class":
        classes = predicted[nodes]
        return torch.where((classes == classes[0]).all(0), classes[0], num_classes)
    if by == "agree":
        return (predicted[nodes[0]] == predicted[nodes[-1]]).long()
    if by == "degree":
        if degree is None or limits is None:
            raise ValueError(
                "Expected data with edge_index for groups by degree, but got none. Pass the graph of the nodes to fit "
                "and to apply."
            )
        return torch.searchsorted(limits, degree[nodes].amin(0))
    return torch.zeros_like(nodes[0])


def thresholds_of_elements(
    thresholds: Float[Tensor, " groups"], groups: Int[Tensor, " elements"], names: Sequence[str]
) -> Float[Tensor, " elements"]:
    """Return the threshold of each element, and raise ValueError for a group that had no calibration elements."""
    chosen = thresholds[groups]
    if bool((missing := chosen.isnan()).any()):
        name = names[int(groups[missing][0])]
        raise ValueError(
            f"Expected groups that occurred in the fit, but got the group {name!r}, which has no threshold. Fit with "
            "groups=None, or with calibration nodes of this group."
        )
    return chosen


# Input checks


def check_alpha(alpha: float) -> None:
    """Raise ValueError unless 0 < alpha < 1."""
    check_number("alpha", alpha, above=0, below=1, hint="For a coverage of 0.9 pass alpha=0.1.")


def edges_of_data(data: Any, num_nodes: int) -> Int[Tensor, "2 edges"] | None:
    """Return each undirected edge of a graph once, or None if it has no edges."""
    edges = edges_of(data)
    return None if edges is None else undirected_edges(as_edges(edges, num_nodes, CPU).long(), num_nodes)


def calibration_labels(
    data: Any, calibration: ArrayLike, num_nodes: int, num_classes: int
) -> tuple[Bool[Tensor, " nodes"], Int[Tensor, " nodes"]]:
    """Check the calibration mask and its labels. All other labels are set to -1."""
    mask = as_mask(calibration, num_nodes, CPU, "calibration")
    y = as_labels(labels_of(data), num_nodes, "rows of probs", CPU).long()
    return mask, check_known_labels(torch.where(mask, y, -1), mask, num_classes, "calibration")


def check_known_labels(
    y: Int[Tensor, " nodes"], mask: Bool[Tensor, " nodes"], num_classes: int, name: str
) -> Int[Tensor, " nodes"]:
    """Check that each node in the mask has a label from 0 to C - 1."""
    bad = mask & ((y < 0) | (y >= num_classes))
    if bool(bad.any()):
        node = int(bad.nonzero()[0])
        raise ValueError(
            f"Expected a label from 0 to {num_classes - 1} for each {name} node, but node {node} has {int(y[node])}. "
            f"Remove such nodes from the mask: {name} & (y >= 0) & (y < {num_classes})."
        )
    return y


def labels_of_pairs(
    y: ArrayLike, pairs: Int[Tensor, "2 pairs"], num_nodes: int, num_classes: int
) -> Int[Tensor, "2 pairs"]:
    """Return the labels of both ends of pairs of test nodes, and check that they are known."""
    needed = torch.zeros(num_nodes, dtype=torch.bool)
    needed[pairs.flatten()] = True
    return check_known_labels(as_labels(y, num_nodes, "nodes", CPU).long(), needed, num_classes, "test")[pairs]


def warn_of_used_nodes(
    calibration: Bool[Tensor, " nodes"],
    test: Bool[Tensor, " nodes"] | None,
    used: ArrayLike | None,
    belief: Any,
    data: Any,
) -> None:
    """Warn if calibration or test nodes were used for fitting, so that they are not exchangeable with other nodes.

    By default the used nodes are those that a fitted model or calibrator remembers, and for other beliefs
    ``data.train_mask`` and ``data.val_mask``, if they are masks (N,).
    """
    num_nodes = len(calibration)
    if used is not None:
        masks = {"the used nodes": as_mask(used, num_nodes, CPU, "used")}
    else:
        found = {"the training and validation nodes of the model": getattr(belief, "used", None)}
        if not any(isinstance(mask, Tensor) for mask in found.values()):
            found = {f"the nodes of data.{name}": getattr(data, name, None) for name in ("train_mask", "val_mask")}
        masks = {
            name: mask.cpu().bool()
            for name, mask in found.items()
            if isinstance(mask, Tensor) and mask.shape == (num_nodes,)
        }
    roles = {"calibration": (calibration, "Draw a calibration set: ew.make_splits(y, calibration=0.25).")}
    if test is not None:
        roles["test"] = (test, "Remove them from the test nodes.")
    for name, mask in masks.items():
        for role, (nodes, way_out) in roles.items():
            if shared := int((nodes & mask).sum()):
                warn_caller(
                    f"{shared:,} of {int(nodes.sum()):,} {role} nodes are among {name}. Nodes that trained the model, "
                    "or chose its epoch or a temperature, are not exchangeable with other nodes, so the coverage is "
                    f"not guaranteed. {way_out}",
                    ExchangeabilityWarning,
                )


# Coverage


@dataclass(frozen=True)
class Coverage:
    """How many sets hold the true labels.

    Attributes
    ----------
    count
        The number of sets.
    covered
        How many of them hold the true labels.
    mean_size
        The mean number of labels, or label pairs, in a set. NaN without sets.
    interval
        The 95% interval of the coverage: the Wilson score interval as if sets were independent, or for edges that share
        nodes an interval from resampled nodes.

    Examples
    --------
    >>> print(Coverage(200, 182, 1.5, (0.862, 0.942)))
    0.9100 [0.862, 0.942] of 200, mean size 1.50
    """

    count: int
    covered: int
    mean_size: float
    interval: tuple[float, float]

    @property
    def fraction(self) -> float:
        """The fraction of the sets that hold the true labels. NaN without sets."""
        return self.covered / self.count if self.count else math.nan

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.fraction:.4f} [{low:.3f}, {high:.3f}] of {self.count:,}, mean size {self.mean_size:.2f}"


def measure_coverage(covered: Bool[Tensor, " elements"], sizes: Int[Tensor, " elements"]) -> Coverage:
    """Count covered elements, with a Wilson score interval."""
    count, hits = len(covered), int(covered.sum())
    mean_size = float(sizes.double().mean()) if count else math.nan
    return Coverage(count, hits, mean_size, fraction_interval(hits, count))


def coverage_by_group(
    covered: Bool[Tensor, " elements"],
    sizes: Int[Tensor, " elements"],
    groups: Int[Tensor, " elements"],
    names: Sequence[str],
) -> dict[str, Coverage]:
    """Return the coverage of each group that occurs, by name."""
    return {names[g]: measure_coverage(covered[groups == g], sizes[groups == g]) for g in groups.unique().tolist()}
