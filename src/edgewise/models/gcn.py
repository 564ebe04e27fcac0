"""GCN: two graph convolutions (Kipf and Welling 2017)."""

from dataclasses import dataclass

from edgewise.models.adam import Adam
from edgewise.models.convolution import backbone_trained, convolved
from edgewise.models.fitted import FittedClassifier
from edgewise.models.model import Model
from edgewise.models.seeds import Seeds
from edgewise.models.task import Task
from edgewise.models.training import Log, Phase, checked_logits


@dataclass(frozen=True, kw_only=True)
class GCN(Model[FittedClassifier]):
    """Two layers of averaging over neighbours, with ReLU and dropout between them.

    Parameters
    ----------
    hidden
        Hidden units.
    dropout
        The share of hidden units that is dropped in each training pass.
    learning_rate
        Of Adam.
    weight_decay
        Of Adam, on all parameters.
    max_epochs
        Stop after so many epochs.
    patience
        Stop when neither accuracy nor NLL on validation has improved for so many epochs.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> fitted = GCN(max_epochs=5).fit(data, split, seed=0)
    >>> fitted.posterior(), fitted.history.epochs
    (IndependentPosterior(nodes=2708, classes=7), 5)
    """

    max_epochs: int = 2000
    patience: int = 100

    name = "gcn"
    fitted = FittedClassifier

    def _trained(self, task: Task, seeds: Seeds, log: Log) -> FittedClassifier:
        phase, adam = Phase("training", self.max_epochs, self.patience), Adam(self.learning_rate, self.weight_decay)
        weights = backbone_trained(task, self.hidden, self.dropout, seeds, phase, adam, log)
        logits = checked_logits(convolved(task, task.x, weights), self.learning_rate)
        return FittedClassifier(self, weights, log.history(), logits)
