"""A calibrator is its options: `fit` learns from labels of validation nodes, and returns a calibrated posterior."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.calibration.calibration_input import Seen, checked_logits, seen_of
from edgewise.models.task import LabelledNodes
from edgewise.posterior import IndependentPosterior, Posterior
from edgewise.validation import ArrayLike

Learnt = Mapping[str, float | Tensor]


class Calibrated(NamedTuple):
    """A calibrated posterior, and the numbers that were learnt on the way to it."""

    posterior: Posterior
    learnt: Learnt


class Calibrator(ABC):
    """What all calibrators have in common: `fit`, which learns from labelled nodes and gives a calibrated posterior.

    A calibrator is its options, and `fit` changes nothing in it. A new one of single nodes is a `NodeCalibrator`, with
    `log_marginals` alone.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> ew.TemperatureScaling().learn(logits, data, split).learnt
    {'temperature': 0...}
    """

    def fit(self, posterior_or_logits: Posterior | ArrayLike, data: Any, split: LabelledNodes) -> Posterior:
        """Calibrate a model's predictions on a graph.

        Parameters
        ----------
        posterior_or_logits
            Logits (nodes, classes), or a posterior, of which the node marginals are taken. Probabilities that are no
            posterior yet become one by `ew.wrap`.
        data
            A torch_geometric Data, or anything with ``y`` and, where a calibrator looks at neighbours, ``edge_index``;
            the structured one also looks at features ``x`` if there are any.
        split
            Who trained and who validates: an `ew.Split`, or anything with the masks ``train`` and ``val``. Labels of
            other nodes are never looked at.

        Returns
        -------
        Posterior
            The calibrated posterior of all nodes.

        Raises
        ------
        ValueError
            If logits, labels or masks are not as expected, or if edges are needed and there are none.
        """
        return self.learn(posterior_or_logits, data, split).posterior

    def learn(self, posterior_or_logits: Posterior | ArrayLike, data: Any, split: LabelledNodes) -> Calibrated:
        """Calibrate as `fit` does, and tell what was learnt on the way.

        Returns
        -------
        Calibrated
            The ``posterior``, and what was ``learnt``: numbers and tensors by name, such as "temperature".
        """
        with torch.inference_mode(False), torch.enable_grad():
            logits = checked_logits(posterior_or_logits)
            found = self._learnt(seen_of(logits, data, split))
            return Calibrated(_as_given(found.posterior, logits), found.learnt)

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


def _as_given(posterior: Posterior, given: Tensor) -> Posterior:
    """Give a posterior the dtype and the device of what it was made of."""
    dtype = given.dtype if given.dtype in (torch.float32, torch.float64) else torch.float32
    return posterior.to(given.device, dtype)
