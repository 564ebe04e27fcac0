"""CaGCN: a graph convolution on the logits gives each node a factor (Wang et al. 2021)."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.calibration.calibrator import Learnt, NodeCalibrator
from edgewise.calibration.network import Training
from edgewise.calibration.seen import Seen
from edgewise.data.options import check_number, check_whole_number
from edgewise.models.adam import Weights
from edgewise.models.dropout import NO_DROPOUT, Dropout, dropped
from edgewise.models.seeds import LARGEST_SEED, dropout_key, generator, glorot
from edgewise.models.sparse import Sparse, product

MOST_HIDDEN = 1 << 16


@dataclass(frozen=True)
class CaGCN(NodeCalibrator):
    """softmax(t_i z_i), t = log(exp(GCN(z)) + 1.1), trained by NLL and a margin on validation nodes.

    The margin pulls correct predictions apart from the runner-up and wrong ones towards it. Published trainings stop by
    the labels of training nodes, of which a network is surer than of others; here a third of the validation nodes tells
    when to stop. No node's most likely label changes. `learn` gives t as "factors".

    Parameters
    ----------
    hidden
        Units between its two layers.
    dropout
        The share of them that is dropped in each training pass.
    margin
        The weight of the margin.
    epochs
        How long to train at most.
    patience
        For how many epochs to wait for a lower NLL on the nodes that tell when to stop.
    learning_rate
        Of Adam.
    weight_decay
        Of Adam, on all parameters.
    seed
        Of weights and dropout, and of which validation nodes tell when to stop.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> CaGCN().fit(logits, data, split)
    IndependentPosterior(nodes=2708, classes=7)
    """

    hidden: int = 16
    dropout: float = 0.5
    margin: float = 0.5
    epochs: int = 200
    patience: int = 50
    learning_rate: float = 0.01
    weight_decay: float = 5e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole_number("hidden", self.hidden, 1, MOST_HIDDEN)
        check_number("margin", self.margin, least=0)
        check_number("dropout", self.dropout, least=0, below=1)
        self._training()
        check_whole_number("seed", self.seed, 0, LARGEST_SEED)

    def _training(self) -> Training:
        return Training(self.epochs, self.patience, self.learning_rate, self.weight_decay)

    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give log softmax(t_i z_i)."""
        draws = generator(self.seed, "cagcn")
        classes, dtype = seen.logits.shape[1], seen.logits.dtype
        weights = {
            "weight_1": glorot((classes, self.hidden), draws, dtype),
            "bias_1": torch.zeros(self.hidden, dtype=dtype),
            "weight_2": glorot((self.hidden, 1), draws, dtype),
            "bias_2": torch.zeros(1, dtype=dtype),
        }
        dropout = Dropout(self.dropout, dropout_key(self.seed, "cagcn"))
        network = _Network.of(seen, seen.val)

        def scaled(weights: Weights, dropout: Dropout, epoch: int) -> Float[Tensor, "val classes"]:
            return network.factors(weights, dropout, epoch) * seen.val_logits

        found = self._training().best_weights(
            weights,
            lambda weights, epoch: scaled(weights, dropout, epoch),
            lambda weights: scaled(weights, NO_DROPOUT, 0),
            seen.val_labels,
            lambda logits, labels: cross_entropy(logits, labels) + self.margin * margin_loss(logits, labels),
            seen.doubt,
            draws,
        )
        factors = _Network.of(seen, torch.ones_like(seen.val)).factors(found, NO_DROPOUT, 0)
        return (factors * seen.logits).log_softmax(-1), {"factors": factors.squeeze(1)}


@dataclass(frozen=True, eq=False)
class _Network:
    """What log(exp(Â max(0, Â z W₁ + b₁) W₂ + b₂) + 1.1) needs on some nodes: Â z on those that reach them, and Â."""

    averaged: Float[Tensor, "reached classes"]
    last: Sparse

    @staticmethod
    def of(seen: Seen, chosen: Bool[Tensor, " nodes"]) -> "_Network":
        rows = seen.averaging[chosen.numpy()]
        reached = np.unique(rows.indices)
        averaged = torch.from_numpy(seen.averaging[reached] @ seen.logits.numpy())
        return _Network(averaged, Sparse.of(rows[:, reached], averaged.dtype, averaged.device))

    def factors(self, weights: Weights, dropout: Dropout, draw: int) -> Float[Tensor, "chosen 1"]:
        """Compute the factors of the chosen nodes."""
        hidden = (self.averaged @ weights["weight_1"] + weights["bias_1"]).relu()
        exponent = product(self.last, dropped(hidden, dropout, draw) @ weights["weight_2"]) + weights["bias_2"]
        return torch.logaddexp(exponent, torch.full_like(exponent, math.log(1.1)))


def margin_loss(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> Tensor:
    """Mean of 1 - p₁ + p₂ where the most likely label is right, and of p₁ - p₂ where it is wrong."""
    two, places = logits.softmax(-1).topk(2, dim=-1)
    gap = two[:, 0] - two[:, 1]
    return torch.where(places[:, 0] == labels, 1 - gap, gap).mean()
