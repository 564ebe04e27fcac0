"""From probabilities to what is scored: confidence, correctness, NLL and Brier score of each node and each edge."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise import kernels
from edgewise.kernels.dispatch import worth_compiling

CHUNK_ELEMENTS = 1 << 21  # 16 MiB of float64: about what fits the outer cache
PRODUCT_UNIT = 2.0**60

# Columns of the per-node records. The code is 2 · label + correct, or -1 where the label is unknown.
RECORD = ("confidence", "nll", "p_true", "square_sum", "code")
CONFIDENCE, NLL, P_TRUE, SQUARE_SUM, CODE = range(len(RECORD))
Records = Float[Tensor, "nodes 5"]


class Elements(NamedTuple):
    """What is scored of each node or edge; nll is infinite where the true label had probability zero."""

    confidence: Float[Tensor, " elements"]
    correct: Bool[Tensor, " elements"]
    nll: Float[Tensor, " elements"]
    brier: Float[Tensor, " elements"]

    def select(self, chosen: Bool[Tensor, " elements"]) -> "Elements":
        """Keep the chosen elements."""
        return Elements(*(column[chosen] for column in self))


def concatenate(parts: list[Elements]) -> Elements:
    """Put elements one after another."""
    return Elements(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def node_records(probs: Float[Tensor, "nodes classes"], y: Int[Tensor, " nodes"]) -> Records:
    """Reduce each node to the five numbers that its own score and those of all its edges need.

    For a product joint confidence = max p_i · max p_j, log q = log p_i + log p_j and Σ q² = (Σ p_i²)(Σ p_j²), so no
    edge ever looks at C classes, let alone C² pairs.
    """
    records = torch.empty(probs.shape[0], len(RECORD), dtype=torch.float64, device=probs.device)
    if worth_compiling(probs):
        kernels.score_sums.fill_node_records(RECORD, records, probs, y, PRODUCT_UNIT)
    else:
        _fill_node_records(records, probs, y)
    records[:, NLL] = -records[:, P_TRUE].log()
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
    """Σ_c p(c) q(c) of each row, summed in integers of 2^-60 so that compiled loops and tensors agree to the bit."""
    return (p.double() * q.double() * PRODUCT_UNIT).round().long().sum(1).double() / PRODUCT_UNIT


def node_elements(records: Records) -> Elements:
    """Score single nodes (whose labels are known)."""
    confidence, nll, p_true, square_sum, code = records.unbind(1)
    return Elements(confidence, code.long() % 2 == 1, nll, _brier(p_true, square_sum))


def product_elements(*ends: Records) -> Elements:
    """Score edges, or larger sets of nodes, whose joint is the product of the marginals of their ends."""
    confidence, nll, p_true, square_sum, _ = ends[0].unbind(1)
    for end in ends[1:]:
        confidence, nll = confidence * end[:, CONFIDENCE], nll + end[:, NLL]
        p_true, square_sum = p_true * end[:, P_TRUE], square_sum * end[:, SQUARE_SUM]
    return Elements(confidence, _all_correct(*ends), nll, _brier(p_true, square_sum))


def joint_elements(joint: Float[Tensor, "elements ..."], *ends: Records) -> Elements:
    """Score edges, or larger sets, by their own joints; what is predicted for an end is the argmax of its marginal."""
    flat, truth = joint.flatten(1), torch.zeros_like(labels_of(ends[0]))
    for end in ends:
        truth = truth * joint.shape[1] + labels_of(end)
    p_true = flat.gather(1, truth.unsqueeze(1)).squeeze(1).double()
    return Elements(
        confidence=flat.amax(1).double(),
        correct=_all_correct(*ends),
        nll=-p_true.log(),
        brier=_brier(p_true, row_products(flat, flat)),
    )


def product_same_label_elements(
    probs: Float[Tensor, "nodes classes"], ends: Int[Tensor, "2 edges"], labels: Int[Tensor, "2 edges"]
) -> Elements:
    """Score the event "both ends have the same label", P = Σ_l p_i(l) p_j(l), on edges with product joints."""
    if worth_compiling(ends) and worth_compiling(probs):
        p_same = kernels.score_sums.row_products(probs, ends, PRODUCT_UNIT)
    else:
        p_same = row_products(probs[ends[0]], probs[ends[1]])
    return _event_elements(p_same, 1.0 - p_same, labels[0] == labels[1], probs[ends, labels].double().prod(0))


def joint_same_label_elements(
    joint: Float[Tensor, "edges classes classes"], labels: Int[Tensor, "2 edges"]
) -> Elements:
    """Score the event "both ends have the same label", P = Σ_l q(l, l), on edges with joints of their own."""
    joint = joint.double()
    diagonal = torch.eye(joint.shape[1], dtype=torch.bool, device=joint.device)
    p_same, p_differ = (joint.masked_fill(left_out, 0.0).sum((1, 2)) for left_out in (~diagonal, diagonal))
    pair = (labels[0] * joint.shape[1] + labels[1]).unsqueeze(1)
    p_true = joint.flatten(1).gather(1, pair).squeeze(1)
    return _event_elements(p_same, p_differ, labels[0] == labels[1], p_true)


def _event_elements(
    p_event: Float[Tensor, " elements"],
    p_other: Float[Tensor, " elements"],
    happened: Bool[Tensor, " elements"],
    at_least: Float[Tensor, " elements"],
) -> Elements:
    """Score the probability of an event: two outcomes, and "correct" means that it happened.

    The outcome includes the labels that came true, so it is at least as probable as they are: a bound that matters
    where the probability of the outcome is too small for the difference from 1 that it may have been computed as.
    """
    p_event = p_event.clamp(0.0, 1.0)
    p_outcome = torch.where(happened, p_event, p_other.clamp(0.0, 1.0)).maximum(at_least)
    return Elements(p_event, happened, -p_outcome.log(), 2.0 * (1.0 - p_outcome).square())


def labels_of(records: Records) -> Int[Tensor, " nodes"]:
    """Read the labels out of records."""
    return records[:, CODE].long() >> 1


def _all_correct(*ends: Records) -> Bool[Tensor, " elements"]:
    return torch.stack([end[:, CODE].long() & 1 == 1 for end in ends]).all(0)


def _brier(p_true: Float[Tensor, " elements"], square_sum: Float[Tensor, " elements"]) -> Float[Tensor, " elements"]:
    """(1 - p_true)² + Σ_others p² = 1 - 2 p_true + Σ p²."""
    return 1.0 - 2.0 * p_true + square_sum
