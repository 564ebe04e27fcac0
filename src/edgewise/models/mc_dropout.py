"""MCDropout: the mixture of predictions with different dropout masks (Gal and Ghahramani 2016)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.models.mixture_model import FittedMixture, MixtureModel
from edgewise.models.seeds import Seeds, dropout_key
from edgewise.models.task import Graph, Task
from edgewise.models.training import Log
from edgewise.suggestions import suggest_keywords


@dataclass(frozen=True, eq=False, repr=False)
class FittedMCDropout(FittedMixture):
    """A fitted classifier with dropout in its predictions. The weights are those of the classifier.

    Attributes
    ----------
    sample_logits
        Logits (S, N, C) with S samples of all dropout masks.
    sample_seeds
        Seeds (S,) of the dropout masks.
    """

    model: "MCDropout"
    sample_seeds: Int[Tensor, " samples"]

    parts = ("sample_logits", "sample_seeds")

    def _compute_samples(self, graph: Graph) -> Float[Tensor, "samples nodes classes"]:
        num_classes = self.sample_logits.shape[-1]
        return self.model.classifier.sample_logits(graph, self.weights, num_classes, self.sample_seeds.tolist())


@suggest_keywords
@dataclass(frozen=True, kw_only=True)
class MCDropout(MixtureModel[FittedMCDropout]):
    """Monte Carlo dropout: S predictions of one trained classifier, each with its own dropout masks.

    The posterior is the mixture P(y) = Σ_s Π_i p_s(y_i) / S. The masks of a sample are those of one forward pass over
    all nodes, so neighbors are dependent: the joint of two nodes is Σ_s p_s(y_i) p_s(y_j) / S.

    Training is that of the classifier alone. The dropout seed of the fit determines all masks, and more samples keep
    the first ones.

    Parameters
    ----------
    classifier
        A model with logits and dropout: `GCN`, `GAT`, `Network`, or a classifier of your own. The option ``dropout``
        must not be 0. The modules of a `Network` are not checked: without dropout all samples are equal.
    samples
        Number of samples.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> fitted = MCDropout(ew.GCN(max_epochs=3), samples=4).fit(data, split, seed=0)
    >>> fitted.posterior(), fitted.sample_logits.shape
    (MixturePosterior(nodes=2708, classes=7), torch.Size([4, 2708, 7]))
    """

    samples: int = 32

    name = "mcdropout"
    fitted = FittedMCDropout

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self.classifier, "dropout", None) == 0:
            name = type(self.classifier).__name__
            raise ValueError(
                f"Expected a classifier with dropout, but got {name} with dropout=0, whose samples would all be equal. "
                f"Choose a probability such as MCDropout({name}(dropout=0.5)), or use the classifier alone."
            )

    def _train(self, task: Task, seeds: Seeds, log: Log) -> FittedMCDropout:
        weights = self.classifier.train_weights(task, seeds, "training", log)
        sample_seeds = [dropout_key(seeds.dropout, f"sample {k}") for k in range(self.samples)]
        logits = self._check_samples(self.classifier.sample_logits(task, weights, task.num_classes, sample_seeds))
        return FittedMCDropout(self, weights, log.history(), logits, torch.tensor(sample_seeds, device=task.device))
