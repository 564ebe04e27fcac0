"""How the small networks of CaGCN and GATS are trained: on the logits of validation nodes."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.data.options import check_number, check_whole_number
from edgewise.models.adam import Adam, Weights
from edgewise.models.training import copied

MOST_EPOCHS = 1 << 20
STOPPING = 3  # of so many validation nodes, one tells when to stop

Logits = Float[Tensor, "val classes"]
Labels = Int[Tensor, " val"]


@dataclass(frozen=True)
class Training:
    """Adam on two thirds of the validation nodes, until the NLL of the others has not fallen for so many epochs."""

    epochs: int
    patience: int
    learning_rate: float
    weight_decay: float

    def __post_init__(self) -> None:
        check_whole_number("epochs", self.epochs, 1, MOST_EPOCHS)
        check_whole_number("patience", self.patience, 1, MOST_EPOCHS)
        check_number("learning_rate", self.learning_rate, above=0)
        check_number("weight_decay", self.weight_decay, least=0)

    def best_weights(
        self,
        weights: Weights,
        noisy: Callable[[Weights, int], Logits],
        clean: Callable[[Weights], Logits],
        labels: Labels,
        loss: Callable[[Logits, Labels], Tensor],
        doubt: float,
        draws: torch.Generator,
    ) -> Weights:
        """Give the weights of the lowest NLL on the nodes that tell when to stop; the first ones are among them.

        ``noisy`` computes the calibrated logits of validation nodes in an epoch, ``clean`` the same without dropout.
        The ``doubt`` is about all validation nodes.
        """

        def doubted(loss: Tensor, logits: Logits) -> Tensor:
            return loss - doubt / len(labels) * logits.log_softmax(-1).mean() if doubt else loss

        stopping = torch.zeros(len(labels), dtype=torch.bool)
        stopping[torch.randperm(len(labels), generator=draws)[::STOPPING]] = True
        learning = ~stopping if len(labels) > 1 else stopping
        learnt = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
        steps = Adam(self.learning_rate, self.weight_decay).over(learnt)
        best, kept, waited = math.inf, copied(learnt), 0
        for epoch in range(self.epochs + 1):
            with torch.no_grad():
                logits = clean(learnt)[stopping]
                nll = float(doubted(cross_entropy(logits, labels[stopping]), logits))
            waited = 0 if nll < best else waited + 1
            if nll < best:
                best, kept = nll, copied(learnt)
            if waited >= self.patience or epoch == self.epochs:
                break
            logits = noisy(learnt, epoch)[learning]
            steps.take(doubted(loss(logits, labels[learning]), logits))
        return kept
