"""What a calibrator may look at, checked once, and what most of them minimize: the NLL of validation labels."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.data.edges import adjacency_with_self_loops, normalize_adjacency, undirected_edges
from edgewise.posterior import HasPosterior, Posterior, as_posterior
from edgewise.validation import (
    SUM_TOLERANCE,
    ArrayLike,
    as_tensor,
    check_edges,
    check_labels,
    check_mask,
    first_bad_row,
)


class ValidationSplit(Protocol):
    """Which nodes validate: an `ew.Split`, or anything with this mask. A mask ``train`` is used if there is one."""

    @property
    def val(self) -> Bool[Tensor, " nodes"]:
        """The nodes whose labels a calibrator learns from."""


class HasLogits(Protocol):
    """A fitted model with logits."""

    @property
    def logits(self) -> Float[Tensor, "nodes classes"]:
        """What it says of each node, before softmax."""


LogitsLike = ArrayLike | Posterior | HasLogits | HasPosterior  # what a calibrator takes in the place of logits


@dataclass(frozen=True, eq=False)
class Predictions:
    """What learned parameters are applied to: logits, and the graph that they are on.

    Edges are as they were given: most calibrators need none, and those that do check them at first use.
    """

    logits: Float[Tensor, "nodes classes"]  # float64, on the CPU
    raw_edge_index: Any
    dtype: torch.dtype  # of the posterior
    device: torch.device

    @cached_property
    def edge_index(self) -> Int[Tensor, "2 edges"]:
        """Each undirected edge once, no self-loops."""
        if self.raw_edge_index is None:
            raise ValueError(
                "Expected data with an edge_index, for this calibrator looks at neighbors, but got none. Pass the "
                "graph that the logits are on: fit(logits, data, split), apply(logits, data)."
            )
        edges = check_edges(as_tensor(self.raw_edge_index, "edge_index").cpu(), len(self.logits)).long()
        return undirected_edges(edges, len(self.logits))

    @cached_property
    def both_directions(self) -> Int[Tensor, "2 directed"]:
        """Each edge in both directions."""
        return torch.cat([self.edge_index, self.edge_index.flip(0)], dim=1)

    @cached_property
    def degree(self) -> Float[Tensor, " nodes"]:
        """The number of neighbors of each node."""
        return torch.bincount(self.edge_index.flatten(), minlength=len(self.logits)).double()

    @cached_property
    def normalized_adjacency(self) -> Any:
        """Â = D^-½ (A + I) D^-½ as a scipy matrix."""
        return normalize_adjacency(adjacency_with_self_loops(self.edge_index, len(self.logits)))


@dataclass(frozen=True, eq=False)
class CalibrationInput:
    """What parameters are learned from: predictions, and labels of validation nodes.

    Labels of training nodes are there only for a calibrator that says so (`Calibrator.uses_training_labels`). Features
    are as they were inputs.
    """

    predictions: Predictions
    labels: Int[Tensor, " nodes"]  # -1 where a calibrator must not look
    train: Bool[Tensor, " nodes"]  # none, where the split does not tell
    val: Bool[Tensor, " nodes"]
    raw_features: Any = None

    @property
    def val_logits(self) -> Float[Tensor, "val classes"]:
        """The logits of validation nodes."""
        return self.predictions.logits[self.val]

    @property
    def val_labels(self) -> Int[Tensor, " val"]:
        """The labels of validation nodes."""
        return self.labels[self.val]

    @property
    def pseudo_count(self) -> float:
        """See `pseudo_count`."""
        return pseudo_count(self.val_logits, self.val_labels)


def predictions_on(logits: Float[Tensor, "nodes classes"], data: Any) -> Predictions:
    """Bring checked logits to float64, and note which dtype and device the posterior is to have."""
    dtype = logits.dtype if logits.dtype in (torch.float32, torch.float64) else torch.float32
    # A copy, for what was made in inference mode knows no gradients.
    on_cpu = logits.detach().cpu().double().clone()
    return Predictions(on_cpu, getattr(data, "edge_index", None), dtype, logits.device)


def calibration_input(
    logits: Float[Tensor, "nodes classes"], data: Any, split: ValidationSplit, training_labels: bool
) -> CalibrationInput:
    """Check labels and masks, and hide the labels of all other nodes."""
    labels = _labels(data, len(logits))
    val = _mask("val", split, labels)
    if val is None or not bool(val.any()):
        came = f"a {type(split).__name__} has none" if val is None else "the mask is empty"
        raise ValueError(
            f"Expected a split with at least one val node, but {came}. Calibrators learn from labels of validation "
            "nodes: pass one of ew.make_splits(y), or anything with a mask val."
        )
    train = _mask("train", split, labels)
    train = torch.zeros_like(val) if train is None else train
    known = val | train if training_labels else val
    for name, mask in (("val", val), ("train", train & known)):
        if bool((unknown := mask & (labels < 0)).any()):
            raise ValueError(
                f"Expected a label for each {name} node, but that of node {int(unknown.nonzero()[0])} is unknown (-1). "
                f"Leave such nodes out: {name} & (y >= 0)."
            )
    labels = torch.where(known, labels, -1)
    if int(labels.max()) >= logits.shape[1]:
        raise ValueError(
            f"Expected labels below {logits.shape[1]}, the number of columns of the logits, but got "
            f"{int(labels.max())}."
        )
    if bool((both := train & val).any()):
        raise ValueError(
            f"Expected training and validation nodes to differ, but node {int(both.nonzero()[0])} is in both. A model "
            "is surer of what it was trained on: leave it out of one, val & ~train."
        )
    return CalibrationInput(predictions_on(logits, data), labels, train, val, getattr(data, "x", None))


def _labels(data: Any, num_nodes: int) -> Int[Tensor, " nodes"]:
    """Check that there is a label, or -1, for each row of the logits."""
    y = getattr(data, "y", None)
    if y is None:
        raise ValueError(
            f"Expected data with labels y, but {type(data).__name__} has none. Pass a torch_geometric Data, or "
            "anything that has them."
        )
    return check_labels(as_tensor(y, "y").cpu(), num_nodes, "rows of the logits").long()


def _mask(name: str, split: object, labels: Int[Tensor, " nodes"]) -> Bool[Tensor, " nodes"] | None:
    mask = getattr(split, name, None)
    return None if mask is None else check_mask(as_tensor(mask, name).cpu(), len(labels), name).clone()


def as_logits(inputs: LogitsLike) -> Float[Tensor, "nodes classes"]:
    """Take logits, or the logits of a fitted model; of a posterior, the logarithms of its node marginals."""
    if isinstance(inputs, Posterior) or (hasattr(inputs, "posterior") and getattr(inputs, "logits", None) is None):
        node = as_posterior(inputs).node  # type: ignore[arg-type]  # mypy does not narrow by hasattr
        if node.shape[1] < 2:
            raise ValueError("Expected two classes at least, but got one: there is nothing to calibrate.")
        return node.clamp(min=torch.finfo(node.dtype).tiny).log()
    own = getattr(inputs, "logits", None)
    return _finite_logits(inputs if own is None else own)  # type: ignore[arg-type]


def _finite_logits(values: ArrayLike) -> Float[Tensor, "nodes classes"]:
    logits = as_tensor(values, "logits")
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


PSEUDO_COUNT = 0.5  # labels
LBFGS_TOLERANCE = 1e-12


def pseudo_count(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> float:
    """Return how many labels to add to those of validation nodes: ½ where each has the largest logit, else none.

    Such labels fit the better the surer a calibrator is, and in the end every other label would be impossible. What is
    added may be the label of any node, and any class: it has the mean of the NLL over all of them.
    """
    of_labels = logits.gather(1, labels[:, None])
    return PSEUDO_COUNT if bool((logits <= of_labels).all()) else 0.0


def nll(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"], added: float) -> Float[Tensor, ""]:
    """Sum -log softmax(z_i)(y_i) over nodes, and add as many labels as `pseudo_count` says."""
    known = cross_entropy(logits, labels, reduction="sum")
    return known - added * logits.log_softmax(-1).mean() if added else known
