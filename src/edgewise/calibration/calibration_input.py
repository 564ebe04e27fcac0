"""What a calibrator may look at, and the door to it: logits, a graph, and labels of training and validation nodes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.models.task import LabelledNodes, averaging, checked_nodes, neighbours, undirected_edges
from edgewise.posterior import HasPosterior, Posterior, as_posterior
from edgewise.validation import SUM_TOLERANCE, ArrayLike, as_tensor, checked_edges, checked_labels, first_bad_row


@dataclass(frozen=True, eq=False)
class Seen:
    """What a calibrator may look at: logits, the graph, and labels of training and validation nodes, no others.

    Edges and features are as they were given: most calibrators need neither, and who does checks them.
    """

    logits: Float[Tensor, "nodes classes"]  # float64
    labels: Int[Tensor, " nodes"]  # -1 wherever a calibrator must not look
    train: Bool[Tensor, " nodes"]
    val: Bool[Tensor, " nodes"]
    given_edges: Any = None
    given_features: Any = None

    @property
    def val_logits(self) -> Float[Tensor, "val classes"]:
        """The logits of validation nodes."""
        return self.logits[self.val]

    @property
    def val_labels(self) -> Int[Tensor, " val"]:
        """The labels of validation nodes."""
        return self.labels[self.val]

    @property
    def doubt(self) -> float:
        """How much of a label calibrators add to those of validation nodes."""
        return doubt_about(self.val_logits, self.val_labels)

    @cached_property
    def edge_index(self) -> Int[Tensor, "2 edges"]:
        """Each undirected edge once, no self-loops."""
        if self.given_edges is None:
            raise ValueError("Expected data with an edge_index, for this calibrator looks at neighbours, but got none.")
        edges = checked_edges(as_tensor(self.given_edges, "edge_index").cpu(), len(self.labels)).long()
        return undirected_edges(edges, "undirected", len(self.labels))

    @cached_property
    def averaging(self) -> Any:
        """Â as a scipy matrix."""
        return averaging(neighbours(self.edge_index, len(self.labels)))

    @cached_property
    def both_directions(self) -> Int[Tensor, "2 directed"]:
        """Each edge in both directions."""
        return torch.cat([self.edge_index, self.edge_index.flip(0)], dim=1)

    @cached_property
    def degree(self) -> Float[Tensor, " nodes"]:
        """How many neighbours each node has."""
        return torch.bincount(self.edge_index.flatten(), minlength=len(self.labels)).double()


def seen_of(logits: Float[Tensor, "nodes classes"], data: Any, split: LabelledNodes) -> Seen:
    """Check labels and masks, and hide the labels of all other nodes."""
    labels = _labels(data, len(logits))
    # Copies, for what was made in inference mode knows no gradients.
    train, val = (checked_nodes(name, split, labels).clone() for name in ("train", "val"))
    known = torch.where(train | val, labels, -1)
    _check_known(known, train & val, logits.shape[1])
    edges, features = (getattr(data, name, None) for name in ("edge_index", "x"))
    return Seen(logits.detach().cpu().double().clone(), known, train, val, edges, features)


def checked_logits(given: Posterior | HasPosterior | ArrayLike) -> Float[Tensor, "nodes classes"]:
    """Take logits as they are; of a posterior, the logarithms of its node marginals."""
    if isinstance(given, Posterior) or hasattr(given, "posterior"):
        node = as_posterior(given).node
        if node.shape[1] < 2:
            raise ValueError("Expected two classes at least, but got one: there is nothing to calibrate.")
        return node.clamp(min=torch.finfo(node.dtype).tiny).log()
    logits = as_tensor(given, "logits")
    if logits.ndim != 2 or len(logits) == 0 or logits.shape[1] < 2 or not logits.is_floating_point():
        raise ValueError(
            f"Expected floating-point logits of shape (nodes, classes), of two classes at least, but got shape "
            f"{tuple(logits.shape)} and dtype {logits.dtype}."
        )
    bad = ~logits.isfinite().all(1)
    if bool(bad.any()):
        raise ValueError(
            f"Expected finite logits, but those of node {int(bad.nonzero()[0])} hold NaN or infinity. If they are "
            "logarithms of probabilities, pass the probabilities: ew.wrap(probs), in a command --probs."
        )
    if logits.dtype in SUM_TOLERANCE and first_bad_row(logits, SUM_TOLERANCE[logits.dtype]) is None:
        raise ValueError(
            "Expected logits, but these are probabilities: each row sums to 1. Pass a posterior of them: "
            "ew.wrap(probs), in a command --probs."
        )
    return logits


def _labels(data: Any, num_nodes: int) -> Int[Tensor, " nodes"]:
    """Check that there is a label, or -1, for each row of the logits."""
    y = getattr(data, "y", None)
    if y is None:
        raise ValueError(
            f"Expected data with labels y, but {type(data).__name__} has none. Pass a torch_geometric Data, or "
            "anything that has them."
        )
    return checked_labels(as_tensor(y, "y").cpu(), num_nodes, "rows of the logits").long()


def _check_known(labels: Int[Tensor, " nodes"], both: Bool[Tensor, " nodes"], num_classes: int) -> None:
    """Refuse labels that have no logit, and validation nodes that were trained on."""
    if int(labels.max()) >= num_classes:
        raise ValueError(
            f"Expected labels below {num_classes}, the number of columns of the logits, but got {int(labels.max())}."
        )
    if bool(both.any()):
        raise ValueError(
            f"Expected training and validation nodes to differ, but node {int(both.nonzero()[0])} is in both. A model "
            "is surer of what it was trained on: leave it out of one, val & ~train."
        )


DOUBT = 0.5  # of a label


def doubt_about(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> float:
    """Give how much of a label to add: none, or half of one where every label has the largest logit of its node.

    Such labels fit the better the surer a calibrator is, and in the end every other label would be impossible. What is
    added may be the label of any node, and any class: it has the mean of the NLL over all of them.
    """
    of_labels = logits.gather(1, labels[:, None])
    return DOUBT if bool((logits <= of_labels).all()) else 0.0


def nll(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"], doubt: float) -> Float[Tensor, ""]:
    """Sum -log softmax(z_i)(y_i) over nodes, and add the doubt."""
    known = cross_entropy(logits, labels, reduction="sum")
    return known - doubt * logits.log_softmax(-1).mean() if doubt else known


def minimised(loss: Callable[[Float[Tensor, " parameters"]], Tensor], start: list[float]) -> Float[Tensor, " found"]:
    """Minimise a smooth function of a few parameters, by BFGS in float64."""
    from scipy.optimize import minimize

    def value_and_gradient(at: Any) -> tuple[float, Any]:
        parameters = torch.from_numpy(at.copy()).requires_grad_()
        value = loss(parameters)
        (gradient,) = torch.autograd.grad(value, parameters)
        return float(value.detach()), gradient.numpy()

    found = minimize(value_and_gradient, np.asarray(start, dtype=np.float64), jac=True, method="L-BFGS-B", tol=1e-12)
    return torch.from_numpy(found.x)
