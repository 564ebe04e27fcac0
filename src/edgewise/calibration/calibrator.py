"""A calibrator is its options: `fit` learns from labels of validation nodes, and returns a calibrated posterior."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.data.arrays import ArrayLike, as_tensor, checked_edges
from edgewise.data.distributions import SUM_TOLERANCE, first_bad_row
from edgewise.models.averaging import averaging, neighbours
from edgewise.models.task import LabelledNodes, checked_labels, checked_nodes, undirected_edges
from edgewise.posterior import IndependentPosterior, Posterior

Learnt = Mapping[str, float | Tensor]


class Calibrated(NamedTuple):
    """A calibrated posterior, and the numbers that were learnt on the way to it."""

    posterior: Posterior
    learnt: Learnt


@dataclass(frozen=True, eq=False)
class Seen:
    """What a calibrator may look at: logits, the graph, and labels of training and validation nodes."""

    logits: Float[Tensor, "nodes classes"]  # float64
    labels: Int[Tensor, " nodes"]  # -1 wherever a calibrator must not look
    train: Bool[Tensor, " nodes"]
    val: Bool[Tensor, " nodes"]
    data: Any

    @property
    def val_logits(self) -> Float[Tensor, "val classes"]:
        """The logits of validation nodes."""
        return self.logits[self.val]

    @property
    def val_labels(self) -> Int[Tensor, " val"]:
        """The labels of validation nodes."""
        return self.labels[self.val]

    @cached_property
    def edge_index(self) -> Int[Tensor, "2 edges"]:
        """Each undirected edge once, no self-loops."""
        edge_index = getattr(self.data, "edge_index", None)
        if edge_index is None:
            raise ValueError("Expected data with an edge_index, for this calibrator looks at neighbours, but got none.")
        edges = checked_edges(as_tensor(edge_index, "edge_index").cpu(), len(self.labels)).long()
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


class Calibrator(ABC):
    """What all calibrators have in common."""

    def fit(self, posterior_or_logits: Posterior | ArrayLike, data: Any, split: LabelledNodes) -> Posterior:
        """Calibrate a model's predictions on a graph.

        Parameters
        ----------
        posterior_or_logits
            Logits (nodes, classes), or a posterior, of which the node marginals are taken. Probabilities that are no
            posterior yet become one by `ew.wrap`.
        data
            A torch_geometric Data, or anything with ``y`` and, where a calibrator looks at neighbours, ``edge_index``.
        split
            Who trained and who validates: an `ew.Split`, or anything with the masks ``train`` and ``val``.

        Returns
        -------
        The calibrated posterior of all nodes. Labels of other nodes are never looked at.
        """
        return self.learn(posterior_or_logits, data, split).posterior

    def learn(self, posterior_or_logits: Posterior | ArrayLike, data: Any, split: LabelledNodes) -> Calibrated:
        """Do the same, and tell what was learnt."""
        with torch.inference_mode(False), torch.enable_grad():
            given = _logits(posterior_or_logits)
            labels = _labels(data, len(given))
            # Copies, for what was made in inference mode knows no gradients.
            train, val = (checked_nodes(name, split, labels).clone() for name in ("train", "val"))
            seen = torch.where(train | val, labels, -1)
            _check_seen(seen, train & val, given.shape[1])
            found = self._learnt(Seen(given.detach().cpu().double().clone(), seen, train, val, data))
            return Calibrated(_as_given(found.posterior, given), found.learnt)

    @abstractmethod
    def _learnt(self, seen: Seen) -> Calibrated:
        """Calibrate what has been checked."""


class NodeCalibrator(Calibrator):
    """A calibrator of single nodes: the joint of two nodes is the product of what it says of each."""

    @abstractmethod
    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give the logarithms of calibrated node marginals, and what was learnt."""

    def _learnt(self, seen: Seen) -> Calibrated:
        log_marginals, learnt = self.log_marginals(seen)
        return Calibrated(IndependentPosterior(log_marginals.softmax(-1)), learnt)


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


def _logits(given: Posterior | ArrayLike) -> Float[Tensor, "nodes classes"]:
    """Take logits as they are; of a posterior, the logarithms of its node marginals."""
    if isinstance(given, Posterior):
        if given.batch_shape:
            raise ValueError(f"Expected one posterior, but got a batch of shape {given.batch_shape}. Choose one of it.")
        return given.node.clamp(min=torch.finfo(given.node.dtype).tiny).log()
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
            "logarithms of probabilities, pass the probabilities: ew.wrap(probs)."
        )
    if logits.dtype in SUM_TOLERANCE and first_bad_row(logits, SUM_TOLERANCE[logits.dtype]) is None:
        raise ValueError(
            "Expected logits, but these are probabilities: each row sums to 1. Pass a posterior of them: "
            "ew.wrap(probs)."
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
    shape = tuple(as_tensor(y, "y").shape)
    if shape != (num_nodes,):
        raise ValueError(
            f"Expected a label for each of the {num_nodes} nodes that have logits, but got y of shape {shape}. Logits "
            "are those of all nodes of the graph, in its order; of one-hot labels pass y.argmax(-1)."
        )
    return checked_labels(y, num_nodes)


def _check_seen(labels: Int[Tensor, " nodes"], both: Bool[Tensor, " nodes"], num_classes: int) -> None:
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


def _as_given(posterior: Posterior, given: Tensor) -> Posterior:
    """Give a posterior the dtype and the device of what it was made of."""
    dtype = given.dtype if given.dtype in (torch.float32, torch.float64) else torch.float32
    return posterior.to(given.device, dtype)
