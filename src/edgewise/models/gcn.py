"""GCN: two graph convolutions (Kipf and Welling 2017)."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.models.convolution import Convolution, Hidden, convolution_weights, convolved
from edgewise.models.dropout import Dropout
from edgewise.models.fitted import FittedClassifier
from edgewise.models.model import Model
from edgewise.models.options import check_counts, check_training
from edgewise.models.seeds import Seeds, dropout_key, generator
from edgewise.models.task import Task
from edgewise.models.training import Adam, Log, Phase, Weights, trained


@dataclass(frozen=True)
class GCN(Model[FittedClassifier]):
    """Two layers of averaging over neighbours, with ReLU and dropout between them.

    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> fitted = GCN(max_epochs=5).fit(data, split, seed=0)
    >>> fitted.posterior(), fitted.history.epochs
    (IndependentPosterior(nodes=2708, classes=7), 5)
    """

    hidden: int = 64
    dropout: float = 0.5
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    max_epochs: int = 2000
    patience: int = 100

    name = "gcn"
    fitted = FittedClassifier

    def __post_init__(self) -> None:
        check_training(
            hidden=self.hidden,
            dropout=self.dropout,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
        )
        check_counts(max_epochs=self.max_epochs, patience=self.patience)

    def _trained(self, task: Task, seeds: Seeds, log: Log) -> FittedClassifier:
        draws = generator(seeds.initialisation, self.name)
        weights = convolution_weights(task.num_features, self.hidden, task.num_classes, draws, task)
        dropout = Dropout(self.dropout, dropout_key(seeds.dropout, self.name))
        phase = Phase("training", self.max_epochs, self.patience)
        weights = classifier_trained(task, weights, dropout, phase, Adam(self.learning_rate, self.weight_decay), log)
        return FittedClassifier(self, weights, log.history(), convolved(task, task.x, weights))


def classifier_trained(task: Task, weights: Weights, dropout: Dropout, phase: Phase, adam: Adam, log: Log) -> Weights:
    """Train a GCN on the labels of training nodes."""
    passes = ClassifierPasses(task, dropout)
    return trained(weights, passes, task.labels[task.val], phase, adam, log)


class ClassifierPasses:
    """A GCN's passes for the cross-entropy on training nodes."""

    def __init__(self, task: Task, dropout: Dropout):
        self._convolution = Convolution(task, task.x, task.train.cpu().numpy(), task.val.cpu().numpy())
        self._dropout, self._labels = dropout, task.labels[task.train]

    def shared(self, weights: Weights) -> Hidden:
        """Compute the first layer."""
        return self._convolution.hidden(weights)

    def loss(self, weights: Weights, shared: Hidden, draw: int) -> Tensor:
        """Compute the cross-entropy."""
        return cross_entropy(self._convolution.learnt_logits(weights, shared, self._dropout, draw), self._labels)

    def validation(self, weights: Weights, shared: Hidden) -> Float[Tensor, "val classes"]:
        """Compute the logits of validation nodes."""
        return self._convolution.validated_logits(weights, shared)
