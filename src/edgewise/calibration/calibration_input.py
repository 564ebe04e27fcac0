"""Validated inputs of calibrators, and the NLL that most of them minimize."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.conversion import as_edges, as_labels, as_mask, edges_of, labels_of
from edgewise.data.edges import adjacency_with_self_loops, normalize_adjacency, undirected_edges
from edgewise.posterior import HasPosterior, Posterior, as_posterior
from edgewise.validation import (
    SUM_TOLERANCE,
    ArrayLike,
    as_tensor,
    first_bad_row,
)

CPU = torch.device("cpu")


class ValidationSplit(Protocol):
    """An `ew.Split`, or anything with a mask ``val``. A mask ``train`` is optional."""

    @property
    def val(self) -> Bool[Tensor, " nodes"]:
        """Validation nodes, whose labels a calibrator is fitted to."""


class HasLogits(Protocol):
    """A fitted model with logits."""

    @property
    def logits(self) -> Float[Tensor, "nodes classes"]:
        """The logits of all nodes."""


LogitsLike = ArrayLike | Posterior | HasLogits | HasPosterior  # accepted by `Calibrator.fit` as logits


@dataclass(frozen=True, eq=False)
class Predictions:
    """The input of `Calibrator.calibrate`: logits and a graph.

    Edges are validated on first access, because most calibrators do not need them.
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
                "Expected data with edge_index, because this calibrator uses the graph, but got none. Pass the graph "
                "of the logits: fit(logits, data, split), apply(logits, data)."
            )
        edges = as_edges(self.raw_edge_index, len(self.logits), CPU).long()
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
        """Â = D^-½ (A + I) D^-½ as a scipy CSR array."""
        return normalize_adjacency(adjacency_with_self_loops(self.edge_index, len(self.logits)))


@dataclass(frozen=True, eq=False)
class CalibrationInput:
    """The input of `Calibrator.learn_parameters`: predictions and the labels of validation nodes.

    Labels of training nodes are included only if `Calibrator.uses_training_labels` is true. Features are not validated.
    """

    predictions: Predictions
    labels: Int[Tensor, " nodes"]  # -1 where the calibrator must not use the label
    train: Bool[Tensor, " nodes"]  # all False if the split has no mask train
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
        """The pseudo-count of the validation labels, see `pseudo_count`."""
        return pseudo_count(self.val_logits, self.val_labels)


def predictions_on(logits: Float[Tensor, "nodes classes"], data: Any) -> Predictions:
    """Convert checked logits to float64 on the CPU, and store the dtype and device of the posterior."""
    dtype = logits.dtype if logits.dtype in (torch.float32, torch.float64) else torch.float32
    # Clone, because tensors created in inference mode cannot be used with autograd.
    on_cpu = logits.detach().cpu().double().clone()
    return Predictions(on_cpu, None if data is None else edges_of(data), dtype, logits.device)


def calibration_input(
    logits: Float[Tensor, "nodes classes"], data: Any, split: ValidationSplit, training_labels: bool
) -> CalibrationInput:
    """Validate labels and masks, and set the labels of all other nodes to -1."""
    labels = _labels(data, len(logits))
    val = _mask("val", split, labels)
    if val is None or not bool(val.any()):
        got = f"{type(split).__name__} has no mask val" if val is None else "the mask is empty"
        raise ValueError(
            f"Expected a split with at least one val node, but {got}. Calibrators are fitted to the labels of "
            "validation nodes: pass one of ew.make_splits(y), or anything with a mask val."
        )
    train = _mask("train", split, labels)
    train = torch.zeros_like(val) if train is None else train
    used = val | train if training_labels else val
    for name, mask in (("val", val), ("train", train & used)):
        if bool((unknown := mask & (labels < 0)).any()):
            raise ValueError(
                f"Expected a label for each {name} node, but the label of node {int(unknown.nonzero()[0])} is -1 "
                f"(unknown). Remove such nodes from the mask: {name} & (y >= 0)."
            )
    labels = torch.where(used, labels, -1)
    if int(labels.max()) >= logits.shape[1]:
        hint = "Pass logits of all classes."
        if int(labels.max()) == logits.shape[1] and not bool((labels == 0).any()):
            hint = "If classes are numbered from 1, pass np.maximum(np.asarray(y), 0) - 1."
        raise ValueError(
            f"Expected labels below {logits.shape[1]}, the number of columns of the logits, but got "
            f"{int(labels.max())}. {hint}"
        )
    if bool((both := train & val).any()):
        raise ValueError(
            f"Expected disjoint training and validation nodes, but node {int(both.nonzero()[0])} is in both. A model "
            "is overconfident on its training nodes: remove them from the mask, val & ~train."
        )
    return CalibrationInput(predictions_on(logits, data), labels, train, val, getattr(data, "x", None))


def _labels(data: Any, num_nodes: int) -> Int[Tensor, " nodes"]:
    """Return the labels, or raise ValueError if there is not one label (or -1) per row of the logits."""
    return as_labels(labels_of(data), num_nodes, "rows of the logits", CPU).long()


def _mask(name: str, split: object, labels: Int[Tensor, " nodes"]) -> Bool[Tensor, " nodes"] | None:
    mask = getattr(split, name, None)
    return None if mask is None else as_mask(mask, len(labels), CPU, name).clone()


def as_logits(inputs: LogitsLike) -> Float[Tensor, "nodes classes"]:
    """Return logits, or the logits of a fitted model; for a posterior, its log node marginals."""
    if isinstance(inputs, Posterior) or (hasattr(inputs, "posterior") and getattr(inputs, "logits", None) is None):
        node = as_posterior(inputs).node  # type: ignore[arg-type]  # mypy does not narrow by hasattr
        if node.shape[1] < 2:
            raise ValueError(
                "Expected at least two classes, but got one. With one class there is nothing to calibrate."
            )
        return node.clamp(min=torch.finfo(node.dtype).tiny).log()
    own = getattr(inputs, "logits", None)
    return _finite_logits(inputs if own is None else own)  # type: ignore[arg-type]


def _finite_logits(values: ArrayLike) -> Float[Tensor, "nodes classes"]:
    logits = as_tensor(values, "logits")
    if logits.ndim != 2 or len(logits) == 0 or logits.shape[1] < 2 or not logits.is_floating_point():
        raise ValueError(
            f"Expected floating-point logits of shape (nodes, classes) with at least two classes, but got shape "
            f"{tuple(logits.shape)} and dtype {logits.dtype}."
        )
    bad = ~logits.isfinite().all(1)
    if bool(bad.any()):
        raise ValueError(
            f"Expected finite logits, but those of node {int(bad.nonzero()[0])} contain NaN or infinity. If they are "
            "log-probabilities, pass the probabilities: ew.wrap(probs), or --probs on the command line."
        )
    if logits.dtype in SUM_TOLERANCE and first_bad_row(logits, SUM_TOLERANCE[logits.dtype]) is None:
        raise ValueError(
            "Expected logits, but got probabilities: each row sums to 1. Pass ew.wrap(probs), or --probs on the "
            "command line."
        )
    return logits


PSEUDO_COUNT = 0.5  # labels
LBFGS_TOLERANCE = 1e-12


def pseudo_count(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> float:
    """Return the number of pseudo-labels to add: ½ if every label has the largest logit of its node, else 0.

    If all labels are predicted correctly, the NLL falls without bound as the confidence grows, and every other label
    would get probability 0. The pseudo-label is spread evenly over all nodes and classes: it adds the pseudo-count
    times the mean of -log p over them.

    The rule is discontinuous: one wrong label among many removes the pseudo-label, and the fit can change by a jump.
    """
    label_logits = logits.gather(1, labels[:, None])
    return PSEUDO_COUNT if bool((logits <= label_logits).all()) else 0.0


def nll(
    logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"], pseudo_count: float
) -> Float[Tensor, ""]:
    """Return the sum of -log softmax(z_i)(y_i) over nodes, plus the term of the pseudo-labels, see `pseudo_count`."""
    total = cross_entropy(logits, labels, reduction="sum")
    return total - pseudo_count * logits.log_softmax(-1).mean() if pseudo_count else total
