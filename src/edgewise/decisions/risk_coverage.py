"""Selective prediction: risk-coverage curves of nodes, edges and events."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.conversion import EdgesLike, GraphLike
from edgewise.data.edges import scored_edges
from edgewise.decisions.events import BOTH_CORRECT, EventLike, PairBeliefs, check_events, pair_beliefs
from edgewise.files.tables import data_frame
from edgewise.metrics.scoring_input import check_scoring_input
from edgewise.posterior import Belief, as_posterior
from edgewise.representation import shorten
from edgewise.small_samples import check_sample
from edgewise.suggestions import suggest_keywords
from edgewise.validation import ArrayLike, as_tensor, check_number

if TYPE_CHECKING:
    import pandas as pd

Floats = Float[np.ndarray, " thresholds"]


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """A risk-coverage curve: at each confidence threshold, the fraction of elements predicted and their error rate.

    Coverage is the fraction of elements whose confidence is at least the threshold. Risk is the fraction of errors
    among them. Elements of equal confidence enter together, because no threshold separates them, so the curve does
    not depend on the order of the elements. Returned by `risk_coverage` and in `selective`.

    Attributes
    ----------
    threshold
        The distinct confidences, in descending order.
    selected
        The number of elements with at least this confidence.
    errors
        The number of errors among them.

    Examples
    --------
    >>> curve = risk_coverage(np.repeat([0.9, 0.8, 0.8, 0.6], 25), np.repeat([True, True, False, False], 25))
    >>> curve.risk_at(0.5), curve.coverage_at(0.4)  # all at 0.8 enter together
    (0.333..., 0.75)
    """

    threshold: Floats
    selected: Int[np.ndarray, " thresholds"]
    errors: Int[np.ndarray, " thresholds"]

    @property
    def count(self) -> int:
        """The number of elements."""
        return int(self.selected[-1]) if len(self.selected) else 0

    @property
    def coverage(self) -> Floats:
        """The fraction of elements with at least each confidence."""
        return self.selected / max(1, self.count)

    @property
    def risk(self) -> Floats:
        """The fraction of errors among them."""
        risk: Floats = self.errors / self.selected
        return risk

    @property
    def full_risk(self) -> float:
        """The risk at full coverage; NaN without elements."""
        return float(self.risk[-1]) if self.count else float("nan")

    @property
    def aurc(self) -> float:
        """The area under the curve: the mean over elements of the risk at their own confidence."""
        if not self.count:
            return float("nan")
        return float(np.diff(self.selected, prepend=0) @ self.risk) / self.count

    @property
    def best_aurc(self) -> float:
        """The area if all errors had the lowest confidences: about r + (1 - r) ln(1 - r) for a full risk r."""
        if not self.count:
            return float("nan")
        num_correct = self.count - int(self.errors[-1])
        selected = np.arange(num_correct + 1, self.count + 1)
        return float(((selected - num_correct) / selected).sum()) / self.count

    @property
    def excess_aurc(self) -> float:
        """AURC minus the AURC of the optimal order with the same number of errors."""
        return self.aurc - self.best_aurc

    def risk_at(self, coverage: float) -> float:
        """Return the risk at the highest threshold with at least this coverage; NaN without elements."""
        check_number("coverage", coverage, above=0, most=1)
        if not self.count:
            return float("nan")
        # The tolerance keeps 0.7 * 10 from requiring an eighth element because of rounding.
        place = np.searchsorted(self.selected, coverage * self.count * (1 - 1e-12))
        return float(self.risk[place])

    def coverage_at(self, risk: float) -> float:
        """Return the largest coverage with at most this risk; 0 if there is none."""
        allowed = np.flatnonzero(self.risk <= risk)
        return float(self.coverage[allowed[-1]]) if len(allowed) else 0.0

    def to_dict(self) -> dict[str, float]:
        """Return the count, the risk at full coverage, and the areas."""
        areas = {"aurc": self.aurc, "best_aurc": self.best_aurc, "excess_aurc": self.excess_aurc}
        return {"count": self.count, "full_risk": self.full_risk, **areas}

    def to_frame(self) -> "pd.DataFrame":
        """Return the curve as a pandas DataFrame, one row per threshold."""
        names = ("threshold", "selected", "errors", "coverage", "risk")
        return data_frame({name: getattr(self, name) for name in names})

    def __repr__(self) -> str:
        return (
            f"RiskCoverage(count={self.count}, full_risk={self.full_risk:.4f}, aurc={self.aurc:.4f}, "
            f"excess_aurc={self.excess_aurc:.4f})"
        )

    def _repr_html_(self) -> str:
        from edgewise.pages.notebook import risk_coverage_html

        return risk_coverage_html({"all": self})


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """Compute the risk-coverage curve of predictions from their confidences and correctness.

    Parameters
    ----------
    confidence
        One number per element; higher is more confident.
    correct
        One boolean per element.

    Returns
    -------
    RiskCoverage
        The curve, with its areas.

    Warns
    -----
    SmallSampleWarning
        If there are fewer than 100 elements.

    Examples
    --------
    >>> curve = risk_coverage(np.repeat([0.9, 0.8, 0.8, 0.6], 25), np.repeat([True, True, False, False], 25))
    >>> curve.coverage.tolist(), curve.aurc  # (0 + 1/3 + 1/3 + 1/2) / 4
    ([0.25, 0.75, 1.0], 0.2916...)
    """
    curve = _curve(confidence, correct)
    _warn_if_few(curve, "elements")
    return curve


def _curve(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    scores, is_correct = check_scores(confidence, correct, "confidence", "correct")
    threshold, selected, errors = counts_by_threshold(scores, ~is_correct)
    return RiskCoverage(threshold, selected, errors)


def _warn_if_few(curve: RiskCoverage, elements: str) -> None:
    """Warn if a curve rests on few elements. Without any there is no curve, and its risks are NaN."""
    if curve.count:
        advice = "At a lower coverage the risk rests on even fewer. Use more labeled nodes."
        check_sample("The risk-coverage curve rests on", curve.count, f"labeled {elements}", advice)


def counts_by_threshold(
    scores: Float[np.ndarray, " elements"], flags: Bool[np.ndarray, " elements"]
) -> tuple[Floats, Int[np.ndarray, " thresholds"], Int[np.ndarray, " thresholds"]]:
    """Return the distinct scores in descending order, each with the numbers of elements and of flags at or above it."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)[: len(ordered)])
    return ordered[last], last + 1, np.cumsum(flags[order])[last]


def check_scores(
    scores: ArrayLike, flags: ArrayLike, name: str, flags_name: str
) -> tuple[Float[np.ndarray, " elements"], Bool[np.ndarray, " elements"]]:
    """Check that there is one number and one boolean per element."""
    numbers, booleans = as_tensor(scores, name).cpu(), as_tensor(flags, flags_name).cpu()
    if booleans.dtype != torch.bool:
        raise ValueError(
            f"Expected {flags_name} to hold booleans, but got dtype {booleans.dtype}. Convert 0 and 1 with "
            f"{flags_name}.astype(bool), or .bool() for a tensor."
        )
    if numbers.ndim != 1 or numbers.shape != booleans.shape:
        raise ValueError(
            f"Expected {name} and {flags_name} of the same shape (elements,), but got {tuple(numbers.shape)} and "
            f"{tuple(booleans.shape)}."
        )
    if bool(numbers.isnan().any()):
        raise ValueError(f"Expected {name} to hold numbers, but element {int(numbers.isnan().nonzero()[0])} is NaN.")
    return numbers.double().numpy(), booleans.numpy()


@dataclass(frozen=True, repr=False)
class Selective:
    """Risk-coverage curves of nodes, edges and events. Returned by `selective`."""

    nodes: RiskCoverage
    edges: RiskCoverage
    events: Mapping[str, RiskCoverage]

    @property
    def curves(self) -> dict[str, RiskCoverage]:
        """All curves by name."""
        return {"nodes": self.nodes, "edges": self.edges, **self.events}

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Return the counts and areas of each curve."""
        return {name: curve.to_dict() for name, curve in self.curves.items()}

    def __repr__(self) -> str:
        areas = ", ".join(f"{name}={curve.aurc:.4f}" for name, curve in self.curves.items())
        return shorten(f"Selective(aurc: {areas})")

    def _repr_html_(self) -> str:
        from edgewise.pages.notebook import risk_coverage_html

        return risk_coverage_html(self.curves)

    def __str__(self) -> str:
        columns = ("count", "full risk", "aurc", "best", "excess")
        lines = [f"{'':16}" + "".join(f"{name:>11}" for name in columns)]
        for name, curve in self.curves.items():
            areas = (curve.full_risk, curve.aurc, curve.best_aurc, curve.excess_aurc)
            lines.append(f"{name:16}{curve.count:11,}" + "".join(f"{area:11.4f}" for area in areas))
        return "\n".join(lines)


@suggest_keywords
def selective(
    posterior: Belief,
    y: ArrayLike | GraphLike,
    edge_index: EdgesLike | None = None,
    *,
    mask: ArrayLike | None = None,
    events: Iterable[EventLike] = ("same",),
) -> Selective:
    """Compute the risk-coverage curves of nodes, edges and events.

    The confidence of a node is its largest probability. An edge is correct if both its ends are, and its confidence is
    the probability of that, q(ŷ_i, ŷ_j), not the largest entry of the joint, which may belong to other labels. An
    event is predicted where P(event) ≥ 1/2, with confidence max(P, 1 - P).

    Edges are those that `evaluate` scores: both ends in the mask, each undirected edge once, no self-loops.

    Parameters
    ----------
    posterior
        A `Posterior`, anything with ``posterior()``, or probabilities (N, C), whose joints are products.
    y
        Labels (N,), -1 where unknown, outside the mask; or a graph with labels and edges, as in `evaluate`.
    edge_index
        Edges in any form that `evaluate` accepts, in one direction or in both.
    mask
        Nodes to use. By default all.
    events
        Events of edges, as in `predict_edges`. Classes are named 0, …, C - 1.

    Returns
    -------
    Selective
        A `RiskCoverage` for ``nodes``, for ``edges``, and for each event by name.

    Warns
    -----
    SmallSampleWarning
        If a curve rests on fewer than 100 nodes or edges.

    Examples
    --------
    >>> probs = np.tile([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]], (50, 1))
    >>> path = np.array([np.arange(199), np.arange(1, 200)])
    >>> print(selective(probs, np.tile([0, 0, 1, 0], 50), path))
                          count  full risk       aurc       best     excess
    nodes                   200     0.2500     0.0625     0.0349     0.0276
    edges                   199     0.4975     0.2060     0.1529     0.0530
    same                    199     0.4975     0.2060     0.1529     0.0530
    """
    belief = as_posterior(posterior)
    inputs = check_scoring_input(belief, y, edge_index, mask)
    ends = inputs.edge_index[:, scored_edges(inputs.edge_index, inputs.mask)].long()
    checked_events = check_events(events, belief.num_classes, [str(label) for label in range(belief.num_classes)])
    beliefs = pair_beliefs(belief, ends, [BOTH_CORRECT, *checked_events])
    _check_methods(beliefs, ends)
    predicted = inputs.probs.argmax(1)
    labels, predicted_ends = inputs.y[ends].long(), predicted[ends]
    both_correct, *event_probability = beliefs.event_probability.numpy()
    curves = {}
    for event, probability in zip(checked_events, event_probability, strict=True):
        correct = (probability >= 0.5) == event.outcomes(labels, predicted_ends).cpu().numpy()
        curves[event.name] = _curve(np.maximum(probability, 1.0 - probability), correct)
    nodes = _curve(inputs.probs.amax(1)[inputs.mask], (predicted == inputs.y)[inputs.mask])
    edges = _curve(both_correct, BOTH_CORRECT.outcomes(labels, predicted_ends))
    _warn_if_few(nodes, "nodes")
    _warn_if_few(edges, "edges")  # the events are events of these edges
    return Selective(nodes, edges, curves)


def _check_methods(beliefs: PairBeliefs, ends: Int[Tensor, "2 edges"]) -> None:
    """Raise ValueError for edges that a pairwise posterior has no joint for, as `evaluate` does."""
    if bool(beliefs.method.any()):
        pair = tuple(ends[:, int(beliefs.method.nonzero()[0])].tolist())
        raise ValueError(
            f"Expected edges of the posterior, but it has no edge {pair}. Remove it, or pass posterior.node to use "
            "products of node marginals as joints."
        )
