"""How the share of errors falls when only what is most certain is decided."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.data.edges import scored_edges
from edgewise.decisions.events import BOTH_CORRECT, EventLike, PairBeliefs, check_events, pair_beliefs
from edgewise.metrics.scoring_input import check_scoring_input
from edgewise.posterior import Belief, as_posterior
from edgewise.validation import ArrayLike, as_tensor, check_number

Floats = Float[np.ndarray, " thresholds"]


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Coverage, the share that is decided, and risk, the share of errors in it, at each threshold from high to low.

    What has the same confidence is decided together, as no threshold can part it; between two points of the curve
    there is nothing. So nothing here depends on the order in which elements were given. Made by `risk_coverage` and
    `selective`.

    Attributes
    ----------
    threshold
        Each distinct confidence, from high to low.
    selected
        How many elements reach it.
    errors
        How many of these are wrong.

    Examples
    --------
    >>> curve = risk_coverage(np.array([0.9, 0.8, 0.8, 0.6]), np.array([True, True, False, False]))
    >>> curve.risk_at(0.5), curve.coverage_at(0.4)  # the two at 0.8 are decided together
    (0.333..., 0.75)
    """

    threshold: Floats
    selected: Int[np.ndarray, " thresholds"]
    errors: Int[np.ndarray, " thresholds"]

    @property
    def count(self) -> int:
        """How many elements there are."""
        return int(self.selected[-1]) if len(self.selected) else 0

    @property
    def coverage(self) -> Floats:
        """The share of elements whose confidence reaches each threshold."""
        return self.selected / max(1, self.count)

    @property
    def risk(self) -> Floats:
        """The share of errors among them."""
        risk: Floats = self.errors / self.selected
        return risk

    @property
    def full_risk(self) -> float:
        """The share of errors among all; NaN without elements."""
        return float(self.risk[-1]) if self.count else float("nan")

    @property
    def aurc(self) -> float:
        """The area under the curve: the mean, over elements, of the risk at a threshold of their own confidence."""
        if not self.count:
            return float("nan")
        return float(np.diff(self.selected, prepend=0) @ self.risk) / self.count

    @property
    def best_aurc(self) -> float:
        """The area if all errors were less certain than all that is right: about r + (1 - r) ln(1 - r) at a risk r."""
        if not self.count:
            return float("nan")
        right = self.count - int(self.errors[-1])
        selected = np.arange(right + 1, self.count + 1)
        return float(((selected - right) / selected).sum()) / self.count

    @property
    def excess_aurc(self) -> float:
        """How far the area is above that of the best order, which has the same errors."""
        return self.aurc - self.best_aurc

    def risk_at(self, coverage: float) -> float:
        """Return the risk at the highest threshold that decides at least this share; NaN without elements."""
        check_number("coverage", coverage, above=0, most=1)
        if not self.count:
            return float("nan")
        # A share such as 0.7 of 10 must not ask for an eighth element because of its last bit.
        place = np.searchsorted(self.selected, coverage * self.count * (1 - 1e-12))
        return float(self.risk[place])

    def coverage_at(self, risk: float) -> float:
        """Return the largest coverage whose risk is at most this; 0 if there is none."""
        allowed = np.flatnonzero(self.risk <= risk)
        return float(self.coverage[allowed[-1]]) if len(allowed) else 0.0

    def to_dict(self) -> dict[str, float]:
        """Return the numbers of the curve without its points."""
        areas = {"aurc": self.aurc, "best_aurc": self.best_aurc, "excess_aurc": self.excess_aurc}
        return {"count": self.count, "full_risk": self.full_risk, **areas}

    def __repr__(self) -> str:
        return (
            f"RiskCoverage(count={self.count}, full_risk={self.full_risk:.4f}, aurc={self.aurc:.4f}, "
            f"excess_aurc={self.excess_aurc:.4f})"
        )


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """Make the curve of any predictions from how sure they are and which are right.

    Parameters
    ----------
    confidence
        A number for each element; a higher one is surer.
    correct
        A boolean for each element.

    Returns
    -------
    RiskCoverage
        The curve, with its areas.

    Examples
    --------
    >>> curve = risk_coverage(np.array([0.9, 0.8, 0.8, 0.6]), np.array([True, True, False, False]))
    >>> curve.coverage.tolist(), curve.aurc  # (0 + 1/3 + 1/3 + 1/2) / 4
    ([0.25, 0.75, 1.0], 0.2916...)
    """
    scores, right = check_scores(confidence, correct, "confidence", "correct")
    threshold, selected, errors = counts_by_threshold(scores, ~right)
    return RiskCoverage(threshold, selected, errors)


def counts_by_threshold(
    scores: Float[np.ndarray, " elements"], counted: Bool[np.ndarray, " elements"]
) -> tuple[Floats, Int[np.ndarray, " thresholds"], Int[np.ndarray, " thresholds"]]:
    """Count, for each distinct score from high to low, how many reach it and how many of these are flagged."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)[: len(ordered)])
    return ordered[last], last + 1, np.cumsum(counted[order])[last]


def check_scores(
    scores: ArrayLike, flags: ArrayLike, name: str, flags_name: str
) -> tuple[Float[np.ndarray, " elements"], Bool[np.ndarray, " elements"]]:
    """Check that there is a number and a boolean for each element."""
    numbers, booleans = as_tensor(scores, name).cpu(), as_tensor(flags, flags_name).cpu()
    if booleans.dtype != torch.bool:
        raise ValueError(
            f"Expected {flags_name} to hold booleans, but got dtype {booleans.dtype}. For 0/1 numbers pass "
            f"{flags_name}.astype(bool) (tensor: .bool())."
        )
    if numbers.ndim != 1 or numbers.shape != booleans.shape:
        raise ValueError(
            f"Expected {name} and {flags_name} of one shape (elements,), but got {tuple(numbers.shape)} and "
            f"{tuple(booleans.shape)}."
        )
    if bool(numbers.isnan().any()):
        raise ValueError(f"Expected {name} to hold numbers, but element {int(numbers.isnan().nonzero()[0])} is NaN.")
    return numbers.double().numpy(), booleans.numpy()


@dataclass(frozen=True)
class Selective:
    """Curves of nodes, of edges, and of what is decided about events."""

    nodes: RiskCoverage
    edges: RiskCoverage
    events: Mapping[str, RiskCoverage]

    @property
    def curves(self) -> dict[str, RiskCoverage]:
        """All curves by name."""
        return {"nodes": self.nodes, "edges": self.edges, **self.events}

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Return counts and areas as plain numbers, by curve."""
        return {name: curve.to_dict() for name, curve in self.curves.items()}

    def __str__(self) -> str:
        columns = ("count", "full risk", "aurc", "best", "excess")
        lines = [f"{'':16}" + "".join(f"{name:>11}" for name in columns)]
        for name, curve in self.curves.items():
            areas = (curve.full_risk, curve.aurc, curve.best_aurc, curve.excess_aurc)
            lines.append(f"{name:16}{curve.count:11,}" + "".join(f"{area:11.4f}" for area in areas))
        return "\n".join(lines)


def selective(
    posterior: Belief,
    y: ArrayLike,
    edge_index: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    events: Iterable[EventLike] = ("same",),
) -> Selective:
    """Draw up risk-coverage curves of what is predicted about nodes and edges.

    A node is decided by the largest of its probabilities. An edge is right if both its ends are, and is decided by the
    probability of that, q(ŷ_i, ŷ_j): a larger entry elsewhere in its joint would be confidence in other labels. An
    event is decided by whether P(event) is at least 1/2, and is as certain as the likelier of event and opposite.

    Edges are those that `evaluate` scores: both ends in the mask, each undirected edge once, no self-loops.

    Parameters
    ----------
    posterior
        A `Posterior`, anything with ``posterior()``, or probabilities (N, C), whose joints are products.
    y
        Labels (N,); -1 where unknown, outside the mask.
    edge_index
        Edges (2, E), in one direction or in both.
    mask
        Which nodes are looked at; by default all.
    events
        What is decided about edges, as in `predict_edges`; classes are counted from 0.

    Returns
    -------
    Selective
        A `RiskCoverage` for ``nodes``, for ``edges``, and for each of ``events`` by its name.

    Examples
    --------
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> print(selective(probs, np.array([0, 0, 1, 0]), np.array([[0, 1, 2], [1, 2, 3]])))
                          count  full risk       aurc       best     excess
    nodes                     4     0.2500     0.0625     0.0625     0.0000
    edges                     3     0.3333     0.1111     0.1111     0.0000
    same                      3     0.3333     0.1111     0.1111     0.0000
    """
    belief = as_posterior(posterior)
    given = check_scoring_input(belief, y, edge_index, mask)
    ends = given.edge_index[:, scored_edges(given.edge_index, given.mask)].long()
    asked = check_events(events, belief.num_classes, [str(label) for label in range(belief.num_classes)])
    beliefs = pair_beliefs(belief, ends, [BOTH_CORRECT, *asked])
    _check_methods(beliefs, ends)
    predicted = given.probs.argmax(1)
    labels, guesses = given.y[ends].long(), predicted[ends]
    own, *of_events = beliefs.event_probability.numpy()
    curves = {}
    for event, probability in zip(asked, of_events, strict=True):
        decided_right = (probability >= 0.5) == event.happened(labels, guesses).cpu().numpy()
        curves[event.name] = risk_coverage(np.maximum(probability, 1.0 - probability), decided_right)
    nodes = risk_coverage(given.probs.amax(1)[given.mask], (predicted == given.y)[given.mask])
    return Selective(nodes, risk_coverage(own, BOTH_CORRECT.happened(labels, guesses)), curves)


def _check_methods(beliefs: PairBeliefs, ends: Int[Tensor, "2 edges"]) -> None:
    """Refuse edges that a field does not have, as `evaluate` does: products would be scored as its beliefs."""
    if bool(beliefs.method.any()):
        pair = tuple(ends[:, int(beliefs.method.nonzero()[0])].tolist())
        raise ValueError(
            f"Expected edges of the field, but it has no edge {pair}. Leave it out, or pass posterior.node, whose "
            "joints are products."
        )
