"""Input checks: what is scored, by which labels, in which bins. What passed them is not checked again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.posterior import Belief, IndependentPosterior, Posterior, as_posterior
from edgewise.validation import (
    ArrayLike,
    as_tensor,
    check_distributions,
    check_edges,
    check_labels,
    check_mask,
    check_option,
    check_whole_number,
)

Kind = Literal["width", "mass"]
Closed = Literal["right", "left"]

MAX_BINS = 1_000_000


@dataclass(frozen=True)
class Binning:
    """How confidences are binned: m bins of equal width or equal mass, closed on the right or on the left.

    Right-closed bins of equal width: bin k = {(k-1)/m < c <= k/m}; 0 belongs to the first bin and 1 to the last.
    """

    n_bins: int = 15
    kind: Kind = "width"
    closed: Closed = "right"

    def __post_init__(self) -> None:
        check_whole_number("n_bins", self.n_bins, 1, MAX_BINS)
        check_option("binning", self.kind, get_args(Kind))
        check_option("closed", self.closed, get_args(Closed))


# Joints of listed edges or sets of nodes, asked for by (ends, positions in the list): (elements, classes, classes, …).
Joints = Callable[[Int[Tensor, "ends elements"], Int[Tensor, " elements"]], Tensor]


class ScoringInput(NamedTuple):
    """What is scored, and by which labels; checked, on one device."""

    probs: Float[Tensor, "nodes classes"]
    y: Int[Tensor, " nodes"]
    edge_index: Int[Tensor, "2 edges"]
    mask: Bool[Tensor, " nodes"]
    joints: Joints | None  # None where the joint of an edge is the product of its ends' probabilities


def check_scoring_input(
    probs: Belief,
    y: ArrayLike,
    edge_index: ArrayLike,
    mask: ArrayLike | None = None,
    edge_probs: ArrayLike | None = None,
) -> ScoringInput:
    """Bring all inputs to one device as tensors, or raise a ValueError that says what was expected and what came."""
    posterior = as_posterior(probs)
    is_product = isinstance(posterior, IndependentPosterior)
    if edge_probs is not None and not is_product:
        raise ValueError("Expected joints from the posterior or from edge_probs, but got both. Leave out edge_probs.")
    p = posterior.node.detach()
    nodes, classes = p.shape
    chosen = torch.ones(nodes, dtype=torch.bool, device=p.device)
    if mask is not None:
        chosen = check_mask(_on_device(mask, "mask", p.device), nodes, "mask")
    labels = _scorable_labels(_on_device(y, "y", p.device), chosen, classes)
    edges = check_edges(_on_device(edge_index, "edge_index", p.device), nodes)
    joints = None
    if edge_probs is not None:
        joints = _listed(_check_joints(_on_device(edge_probs, "edge_probs", p.device), edges.shape[1], classes))
    elif not is_product:
        joints = _believed(posterior)
    return ScoringInput(p, labels, edges, chosen, joints)


def _listed(joints: Float[Tensor, "edges classes classes"]) -> Joints:
    """Look joints up by their place in the list."""
    return lambda ends, positions: joints[positions]


def _believed(posterior: Posterior) -> Joints:
    """Ask a posterior, which was checked when it was made, for joints of nodes."""
    detached = posterior.detach()
    return lambda ends, positions: detached.marginal(ends)


def _on_device(array: ArrayLike, name: str, device: torch.device) -> Tensor:
    return as_tensor(array, name).to(device)


def _scorable_labels(y: Tensor, mask: Bool[Tensor, " nodes"], num_classes: int) -> Int[Tensor, " nodes"]:
    """Check that labels have a column, and that those of the mask are known."""
    y = check_labels(y, len(mask), "rows of probs")
    if bool((y >= num_classes).any()):
        i = int((y >= num_classes).nonzero()[0])
        raise ValueError(
            f"Expected labels from 0 to {num_classes - 1} (probs has {num_classes} columns), or -1 for an unknown "
            f"label outside the mask, but node {i} has label {int(y[i])}."
        )
    unknown = mask & (y < 0)
    if bool(unknown.any()):
        raise ValueError(
            f"Expected a known label for every scored node, but node {int(unknown.nonzero()[0])} has label -1. "
            "Leave such nodes out with mask=(y >= 0)."
        )
    return y


def _check_joints(edge_probs: Tensor, num_edges: int, num_classes: int) -> Tensor:
    expected = (num_edges, num_classes, num_classes)
    if edge_probs.shape != expected:
        raise ValueError(
            f"Expected edge_probs of shape (edges, classes, classes) = {expected}, one joint for each column of "
            f"edge_index, but got shape {tuple(edge_probs.shape)}."
        )
    check_distributions(edge_probs, "edge_probs", "edge")
    return edge_probs
