"""Selective prediction on a graph: risk-coverage curves of nodes, of edges, and of events."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from torch import Tensor

from edgewise.data.arrays import ArrayLike
from edgewise.data.edges import scored_edges
from edgewise.decisions.events import BOTH_CORRECT, EventLike, checked_events
from edgewise.decisions.pair_beliefs import PairBeliefs, checked_belief, pair_beliefs
from edgewise.decisions.risk_coverage import RiskCoverage, risk_coverage
from edgewise.metrics.checks import checked
from edgewise.posterior import Posterior


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
        """Give counts and areas as plain numbers, by curve."""
        return {name: curve.to_dict() for name, curve in self.curves.items()}

    def __str__(self) -> str:
        columns = ("count", "full risk", "aurc", "best", "excess")
        lines = [f"{'':16}" + "".join(f"{name:>11}" for name in columns)]
        for name, curve in self.curves.items():
            areas = (curve.full_risk, curve.aurc, curve.best_aurc, curve.excess_aurc)
            lines.append(f"{name:16}{curve.count:11,}" + "".join(f"{area:11.4f}" for area in areas))
        return "\n".join(lines)


def selective(
    posterior: Posterior | ArrayLike,
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
        A `Posterior`, or probabilities (N, C), whose joints are products.
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
    belief = checked_belief(posterior)
    given = checked(belief, y, edge_index, mask)
    ends = given.edge_index[:, scored_edges(given.edge_index, given.mask)].long()
    asked = checked_events(events, belief.num_classes, [str(label) for label in range(belief.num_classes)])
    said = pair_beliefs(belief, ends, [BOTH_CORRECT, *asked])
    _check_methods(said, ends)
    predicted = given.probs.argmax(1)
    labels, guesses = given.y[ends].long(), predicted[ends]
    own, *of_events = said.event_probability.numpy()
    curves = {}
    for event, probability in zip(asked, of_events, strict=True):
        decided_right = (probability >= 0.5) == event.happened(labels, guesses).cpu().numpy()
        curves[event.name] = risk_coverage(np.maximum(probability, 1.0 - probability), decided_right)
    nodes = risk_coverage(given.probs.amax(1)[given.mask], (predicted == given.y)[given.mask])
    return Selective(nodes, risk_coverage(own, BOTH_CORRECT.happened(labels, guesses)), curves)


def _check_methods(said: PairBeliefs, ends: Int[Tensor, "2 edges"]) -> None:
    """Refuse edges that a field does not have, as `evaluate` does: products would be scored as its beliefs."""
    if bool(said.method.any()):
        pair = tuple(ends[:, int(said.method.nonzero()[0])].tolist())
        raise ValueError(
            f"Expected edges of the field, but it has no edge {pair}. Leave it out, or pass posterior.node, whose "
            "joints are products."
        )
