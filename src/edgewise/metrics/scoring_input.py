"""Validation of the inputs and binning options of `evaluate` and `GraphCalibration`."""

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.conversion import (
    EdgesLike,
    GraphLike,
    NameLike,
    as_edges,
    as_labels,
    as_mask,
    check_names,
    check_row_order,
    column_names,
    is_adjacency,
    is_graph,
    is_networkx,
    labels_of,
    mask_of_labels,
    number_labels,
)
from edgewise.data.edges import EdgeChoice
from edgewise.posterior import Belief, Convergence, IndependentPosterior, Posterior, as_posterior
from edgewise.validation import (
    ArrayLike,
    as_tensor,
    check_distributions,
    check_option,
    check_whole_number,
    normalize_distributions,
)

Kind = Literal["width", "mass"]
Closed = Literal["right", "left"]

MAX_BINS = 1_000_000

EVALUATE_HINT = ", or pass labels and graph: ew.evaluate(probs, y, graph)"


@dataclass(frozen=True)
class Binning:
    """Binning of confidences: m bins of equal width or equal mass, closed on the right or on the left.

    Right-closed bins of equal width are {(k-1)/m < c <= k/m} for k = 1, …, m. 0 is in the first bin and 1 in the last.
    """

    n_bins: int = 15
    kind: Kind = "width"
    closed: Closed = "right"

    def __post_init__(self) -> None:
        check_whole_number("n_bins", self.n_bins, 1, MAX_BINS)
        check_option("binning", self.kind, get_args(Kind))
        check_option("closed", self.closed, get_args(Closed))


# Maps (nodes of each element, positions in the list of edges) to joints (elements, classes, classes, …).
Joints = Callable[[Int[Tensor, "ends elements"], Int[Tensor, " elements"]], Tensor]


class ScoringInput(NamedTuple):
    """Validated inputs of `evaluate`, on one device."""

    probs: Float[Tensor, "nodes classes"]
    y: Int[Tensor, " nodes"]
    edge_index: Int[Tensor, "2 edges"]
    mask: Bool[Tensor, " nodes"]
    joints: Joints | None  # None if the joint of an edge is the product of the probabilities of its ends
    predictions: Int[Tensor, " nodes"] | None  # None if the prediction of a node is its most probable label
    posterior: Posterior  # without edge_probs


def check_scoring_input(
    probs: Belief,
    y: ArrayLike | GraphLike,
    edge_index: EdgesLike | None = None,
    mask: ArrayLike | None = None,
    edge_probs: ArrayLike | None = None,
    class_names: NameLike | None = None,
    normalize: bool = False,
    predictions: ArrayLike | None = None,
    edge_choice: EdgeChoice = "both",
) -> ScoringInput:
    """Check the arguments of `evaluate`, and convert them to tensors on the device of the probabilities."""
    check_row_order(probs=probs, y=y, mask=mask, predictions=predictions)
    posterior = as_posterior(probs, normalize=normalize)
    is_product = isinstance(posterior, IndependentPosterior)
    if edge_probs is not None and not is_product:
        raise ValueError("Expected joints from the posterior or from edge_probs, but got both. Omit edge_probs.")
    p = posterior.node.detach()
    nodes, classes = p.shape
    selected = torch.ones(nodes, dtype=torch.bool, device=p.device)
    if mask is not None:
        selected = as_mask(mask, nodes, p.device)
    if is_graph(y):
        y, edge_index = labels_of(y, EVALUATE_HINT), y if edge_index is None else edge_index
    argument, names = ("probs.columns", column_names(probs)) if class_names is None else ("class_names", class_names)
    checked_names = None if names is None else check_names(names, classes, argument, "column of probs")

    def numbered(values: ArrayLike, name: str) -> Int[Tensor, " nodes"]:
        if checked_names is not None:
            values = number_labels(values, checked_names, selected, argument, name)
        return _check_scored_labels(as_labels(values, nodes, "rows of probs", p.device, name), selected, classes, name)

    labels, predicted = numbered(y, "y"), None
    if predictions is not None:
        predicted = numbered(_without_convergence(predictions), "predictions")
        _check_predictions_outside_mask(predicted, labels, edge_choice)
    edges = as_edges([] if edge_index is None else edge_index, nodes, p.device)
    joints = None
    if edge_probs is not None:
        _check_order(edge_index)
        listed = as_tensor(edge_probs, "edge_probs").to(p.device)
        joints = _joints_from_list(_check_joints(listed, edges.shape[1], classes, normalize))
    elif not is_product:
        joints = _joints_from_posterior(posterior)
    return ScoringInput(p, labels, edges, selected, joints, predicted, posterior)


def _joints_from_list(joints: Float[Tensor, "edges classes classes"]) -> Joints:
    """Return a function that looks up joints by position."""
    return lambda ends, positions: joints[positions]


def _joints_from_posterior(posterior: Posterior) -> Joints:
    """Return a function that computes joints with a posterior."""
    detached = posterior.detach()
    return lambda ends, positions: detached.marginal(ends)


def _check_scored_labels(y: Tensor, mask: Bool[Tensor, " nodes"], num_classes: int, name: str) -> Int[Tensor, " nodes"]:
    """Check that labels are at most C - 1, and that labels in the mask are known."""
    if bool((y >= num_classes).any()):
        i, known = int((y >= num_classes).nonzero()[0]), y[y >= 0]
        hint = ""
        if (int(known.min()), int(known.max())) == (1, num_classes):
            hint = f" If classes are numbered from 1, pass np.maximum(np.asarray({name}), 0) - 1."
        raise ValueError(
            f"Expected {name} to hold labels from 0 to {num_classes - 1} (probs has {num_classes} columns), or -1 for "
            f"an unknown label outside the mask, but node {i} has label {int(y[i])}.{hint}"
        )
    unknown = mask & (y < 0)
    if bool(unknown.any()):
        is_signed = num_classes == 2 and bool((y[mask].abs() == 1).all())
        hint = " If -1 and 1 are the classes, pass class_names=[-1, 1]." if is_signed else ""
        raise ValueError(
            f"Expected {name} to hold a known label for every scored node, but node {int(unknown.nonzero()[0])} has "
            f"label -1. Exclude such nodes with {mask_of_labels(f'range({num_classes})', mask, name)}.{hint}"
        )
    return y


def _without_convergence(predictions: ArrayLike) -> ArrayLike:
    """Raise ValueError for the whole result of `map_labels`, of which only the labels are predictions."""
    if isinstance(predictions, tuple) and len(predictions) == 2 and isinstance(predictions[1], Convergence):
        raise ValueError(
            "Expected predictions as one label per node, but got labels and their convergence. Separate them: labels, "
            "convergence = ew.map_labels(mrf)."
        )
    return predictions


def _check_predictions_outside_mask(
    predictions: Int[Tensor, " nodes"], y: Int[Tensor, " nodes"], edge_choice: EdgeChoice
) -> None:
    """Check that predictions are known wherever the true label is, if edges to nodes outside the mask are scored."""
    unknown = (predictions < 0) & (y >= 0)
    if edge_choice != "both" and bool(unknown.any()):
        raise ValueError(
            "Expected predictions to hold a label for every node whose true label is known, because edge_choice="
            f"{edge_choice!r} also scores edges of nodes outside the mask, but node {int(unknown.nonzero()[0])} has "
            "label -1. Predict its label, or use edge_choice='both'."
        )


def _check_order(edge_index: EdgesLike | None) -> None:
    """Raise ValueError for edges without an order or direction, which rows of edge_probs cannot be matched with."""
    if is_graph(edge_index) and (own := getattr(edge_index, "edge_index", None)) is not None:
        edge_index = own
    got = None
    if is_adjacency(edge_index) or (is_graph(edge_index) and hasattr(edge_index, "adj_t")):
        got = "an adjacency"
    elif is_networkx(edge_index) and not edge_index.is_directed():  # type: ignore[union-attr]
        got = "an undirected networkx graph"
    elif isinstance(edge_index, Set):
        got = "a set"
    if got:
        raise ValueError(
            "Expected edge_index of shape (2, edges), because row e of edge_probs belongs to edge_index[:, e], but got "
            f"{got}. Pass a list of tuples (start, end) in the order of edge_probs, whose rows are labels of the start."
        )


def _check_joints(edge_probs: Tensor, num_edges: int, num_classes: int, normalize: bool) -> Tensor:
    expected = (num_edges, num_classes, num_classes)
    if edge_probs.shape != expected:
        raise ValueError(
            f"Expected edge_probs of shape (edges, classes, classes) = {expected}, one joint for each column of "
            f"edge_index, but got shape {tuple(edge_probs.shape)}."
        )
    if normalize:
        return normalize_distributions(edge_probs, "edge_probs", "edge")
    check_distributions(edge_probs, "edge_probs", "edge")
    return edge_probs
