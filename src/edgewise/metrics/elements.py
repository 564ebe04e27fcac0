"""Confidence, correctness, NLL and Brier score of each node, edge and node set."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise import kernels
from edgewise.kernels.dispatch import worth_compiling

CHUNK_ELEMENTS = 1 << 21  # 16 MiB of float64: about the size of the last-level cache
PRODUCT_UNIT = 2.0**60

# P(same label) is a sum of multiples of 2^-52, and of 2^-68 if it is the probability of the outcome and below 2^-16.
SAME_LABEL_BITS, SMALL_BITS = 52, 16
ONE_AS_INTEGER = 1023 << 52  # the bits of 1.0

# Columns of the node records. The code is 2 · label + correct, or -1 for an unknown label.
RECORD_COLUMNS = ("confidence", "nll", "p_true", "square_sum", "code")
CONFIDENCE, NLL, P_TRUE, SQUARE_SUM, CODE = range(len(RECORD_COLUMNS))
Records = Float[Tensor, "nodes 5"]


class Elements(NamedTuple):
    """Terms of the scores of each node or edge. ``nll`` is infinite if the true label has probability zero."""

    confidence: Float[Tensor, " elements"]
    correct: Bool[Tensor, " elements"]
    nll: Float[Tensor, " elements"]
    brier: Float[Tensor, " elements"]

    def select(self, mask: Bool[Tensor, " elements"]) -> "Elements":
        """Return the elements in a mask."""
        return Elements(*(column[mask] for column in self))


def concatenate(parts: list[Elements]) -> Elements:
    """Concatenate elements."""
    return Elements(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def node_records(
    probs: Float[Tensor, "nodes classes"],
    y: Int[Tensor, " nodes"],
    predictions: Int[Tensor, " nodes"] | None = None,
) -> Records:
    """Reduce each node to the five numbers that its own scores and the scores of its edges depend on.

    The confidence is p_i(ŷ_i), the probability of the prediction, which is by default the most probable label. For a
    product joint, q(ŷ_i, ŷ_j) = p_i(ŷ_i) p_j(ŷ_j), log q = log p_i + log p_j and Σ q² = (Σ p_i²)(Σ p_j²). So the cost
    per edge does not depend on the number of classes.
    """
    records = torch.empty(probs.shape[0], len(RECORD_COLUMNS), dtype=torch.float64, device=probs.device)
    if worth_compiling(probs):
        kernels.score_sums.fill_node_records(RECORD_COLUMNS, records, probs, y, PRODUCT_UNIT)
    else:
        _fill_node_records(records, probs, y)
    records[:, NLL] = -records[:, P_TRUE].log()
    if predictions is not None:
        predicted = predictions.long()
        # A node without a prediction is not scored.
        records[:, CONFIDENCE] = probs.gather(1, predicted.clamp(min=0).unsqueeze(1)).squeeze(1)
        records[:, CODE] = torch.where(y >= 0, 2 * y.long() + (predicted == y), -1)
    return records


def _fill_node_records(records: Records, probs: Float[Tensor, "nodes classes"], y: Int[Tensor, " nodes"]) -> None:
    rows = max(1, CHUNK_ELEMENTS // probs.shape[1])
    for lo in range(0, probs.shape[0], rows):
        part, label, out = probs[lo : lo + rows], y[lo : lo + rows].long(), records[lo : lo + rows]
        confidence, prediction = part.max(dim=1)
        out[:, CONFIDENCE] = confidence
        out[:, P_TRUE] = part.gather(1, label.clamp(min=0).unsqueeze(1)).squeeze(1)
        out[:, SQUARE_SUM] = row_products(part, part)
        out[:, CODE] = torch.where(label >= 0, 2 * label + (prediction == label), -1)


def row_products(p: Float[Tensor, "rows classes"], q: Float[Tensor, "rows classes"]) -> Float[Tensor, " rows"]:
    """Return Σ_c p(c) q(c) of each row, in fixed point with unit 2^-60, so that compiled loops give the same bits."""
    return (p.double() * q.double() * PRODUCT_UNIT).round().long().sum(1).double() / PRODUCT_UNIT


def node_elements(records: Records) -> Elements:
    """Compute the elements of nodes with known labels."""
    confidence, nll, p_true, square_sum, code = records.unbind(1)
    return Elements(confidence, code.long() % 2 == 1, nll, _brier(p_true, square_sum))


def product_elements(*ends: Records) -> Elements:
    """Compute the elements of edges or node sets whose joint is the product of node marginals."""
    confidence, nll, p_true, square_sum, _ = ends[0].unbind(1)
    for end in ends[1:]:
        confidence, nll = confidence * end[:, CONFIDENCE], nll + end[:, NLL]
        p_true, square_sum = p_true * end[:, P_TRUE], square_sum * end[:, SQUARE_SUM]
    return Elements(confidence, _all_correct(*ends), nll, _brier(p_true, square_sum))


def joint_elements(
    joint: Float[Tensor, "elements ..."], *ends: Records, predictions: Int[Tensor, "ends elements"] | None = None
) -> Elements:
    """Compute the elements of edges or node sets from their joints.

    The confidence is the probability of the predictions if they are given. Otherwise the predictions are the argmax of
    the node marginals, and the confidence is the maximum of the joint, as in the paper.
    """
    flat = joint.flatten(1)
    p_true = _entries(joint, [decode_labels(end) for end in ends])
    return Elements(
        confidence=flat.amax(1).double() if predictions is None else _entries(joint, predictions),
        correct=_all_correct(*ends),
        nll=-p_true.log(),
        brier=_brier(p_true, row_products(flat, flat)),
    )


def _entries(
    joint: Float[Tensor, "elements ..."], labels: Iterable[Int[Tensor, " elements"]]
) -> Float[Tensor, " elements"]:
    """Return the probability of one label per node in each joint."""
    rows = torch.arange(len(joint), device=joint.device)
    return joint[rows, *labels].double()


def product_same_label_elements(
    probs: Float[Tensor, "nodes classes"], ends: Int[Tensor, "2 edges"], labels: Int[Tensor, "2 edges"]
) -> Elements:
    """Compute the elements of the event "same label", P = Σ_l p_i(l) p_j(l), on edges with product joints.

    The probability of the outcome, P or 1 - P, has an absolute error of about 10^-16. If it is small, P is computed
    with a relative error of that size, and the probability of the outcome is at least that of the labels (see
    `_event_elements`).
    """
    outcome: Tensor = labels[0] == labels[1]
    p_same = _sum_products(_row_products(probs, ends)).clamp(max=1.0)
    p_outcome = torch.where(outcome, p_same, 1.0 - p_same)
    brier = 2.0 * (1.0 - p_outcome).square()
    small = (p_outcome < 0.5**SMALL_BITS).nonzero().squeeze(1)
    if len(small):
        p_outcome[small] = recompute_small_outcomes(probs, ends[:, small], labels[:, small], p_outcome[small])
    return Elements(p_same, outcome, -p_outcome.log(), brier)


def recompute_small_outcomes(
    probs: Float[Tensor, "nodes classes"],
    ends: Int[Tensor, "2 edges"],
    labels: Int[Tensor, "2 edges"],
    p_outcome: Float[Tensor, " edges"],
) -> Float[Tensor, " edges"]:
    """Return P(same label) with a unit relative to its largest term, and outcomes at least as likely as the labels."""
    products = _row_products(probs, ends)
    exponent = products.amax(1).frexp().exponent.unsqueeze(1)  # the largest product is below 2^exponent
    precise = _sum_products(products.ldexp(-exponent)).ldexp(exponent.squeeze(1))
    p_labels = probs[ends, labels].double().prod(0)
    return torch.where(labels[0] == labels[1], precise, p_outcome).maximum(p_labels)


def _row_products(
    probs: Float[Tensor, "nodes classes"], ends: Int[Tensor, "2 edges"]
) -> Float[Tensor, "edges classes"]:
    return probs.index_select(0, ends[0]).double().mul_(probs.index_select(0, ends[1]))


def _sum_products(products: Float[Tensor, "rows classes"]) -> Float[Tensor, " rows"]:
    """Return the sums of products from 0 to 1 as integer multiples of 2^-52, so that their order does not matter.

    1 + x is rounded to a multiple of 2^-52, and its bits, read as an integer, count these multiples.
    """
    return ((1.0 + products).view(torch.long) - ONE_AS_INTEGER).sum(1).double() * 0.5**SAME_LABEL_BITS


def joint_same_label_elements(
    joint: Float[Tensor, "edges classes classes"], labels: Int[Tensor, "2 edges"]
) -> Elements:
    """Compute the elements of the event "same label", P = Σ_l q(l, l), on edges with explicit joints."""
    joint = joint.double()
    diagonal = torch.eye(joint.shape[1], dtype=torch.bool, device=joint.device)
    p_same, p_differ = (joint.masked_fill(excluded, 0.0).sum((1, 2)) for excluded in (~diagonal, diagonal))
    pair = (labels[0] * joint.shape[1] + labels[1]).unsqueeze(1)
    p_true = joint.flatten(1).gather(1, pair).squeeze(1)
    return _event_elements(p_same, p_differ, labels[0] == labels[1], p_true)


def _event_elements(
    p_event: Float[Tensor, " elements"],
    p_other: Float[Tensor, " elements"],
    outcome: Bool[Tensor, " elements"],
    p_labels: Float[Tensor, " elements"],
) -> Elements:
    """Compute the elements of a binary event, whose ``confidence`` is P(event) and ``correct`` is the outcome.

    The outcome includes the observed labels, so its probability is at least their probability, ``p_labels``. This bound
    matters if the probability of the outcome was computed as 1 - P and is smaller than the rounding error.
    """
    p_event = p_event.clamp(0.0, 1.0)
    p_outcome = torch.where(outcome, p_event, p_other.clamp(0.0, 1.0)).maximum(p_labels)
    return Elements(p_event, outcome, -p_outcome.log(), 2.0 * (1.0 - p_outcome).square())


def decode_labels(records: Records) -> Int[Tensor, " nodes"]:
    """Return the labels of records."""
    return records[:, CODE].long() >> 1


def _all_correct(*ends: Records) -> Bool[Tensor, " elements"]:
    return torch.stack([end[:, CODE].long() & 1 == 1 for end in ends]).all(0)


def _brier(p_true: Float[Tensor, " elements"], square_sum: Float[Tensor, " elements"]) -> Float[Tensor, " elements"]:
    """Return (1 - p_true)² + Σ_others p² = 1 - 2 p_true + Σ p²."""
    return 1.0 - 2.0 * p_true + square_sum
