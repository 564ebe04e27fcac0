"""Ensemble: the mixture of equal models trained with different seeds (Lakshminarayanan, Pritzel, Blundell 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.models.mixture_model import FittedMixture, MixtureModel
from edgewise.models.seeds import Seeds, Weights, derive_seeds
from edgewise.models.task import Graph, Task
from edgewise.models.training import Log
from edgewise.suggestions import suggest_keywords


@dataclass(frozen=True, eq=False, repr=False)
class FittedEnsemble(FittedMixture):
    """A fitted ensemble. The weights of member k have names that begin with "k/".

    Attributes
    ----------
    sample_logits
        Logits (S, N, C) of the S members.
    """

    model: "Ensemble"

    def _compute_samples(self, graph: Graph) -> Float[Tensor, "members nodes classes"]:
        members: list[Weights] = [{} for _ in self.sample_logits]
        for name, weight in self.weights.items():
            k, _, own_name = name.partition("/")
            members[int(k)][own_name] = weight
        return self.model.compute_logits(graph, members, self.sample_logits.shape[-1])


@suggest_keywords
@dataclass(frozen=True, kw_only=True)
class Ensemble(MixtureModel[FittedEnsemble]):
    """Deep ensemble: S members, which are the same classifier trained with different seeds.

    The posterior is the mixture P(y) = Σ_s Π_i p_s(y_i) / S of the members' predictions. So neighbors are dependent:
    the joint of two nodes is Σ_s p_s(y_i) p_s(y_j) / S.

    With the seed of the fit, member 0 is trained as the classifier alone is. The seeds of member k > 0 are hashes of
    the fit's seeds and of k, so more members keep the first ones. Unlike Lakshminarayanan et al. (2017), there is no
    adversarial training.

    Parameters
    ----------
    classifier
        A model with logits: `GCN`, `GAT`, `Network`, or a classifier of your own.
    members
        Number of members.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> fitted = Ensemble(ew.GCN(max_epochs=3), members=2).fit(data, split, seed=0)
    >>> fitted.posterior(), fitted.history.phases
    (MixturePosterior(nodes=2708, classes=7), [('member 0', 3), ('member 1', 3)])
    """

    members: int = 5

    # "ensemble" is a calibrator.
    name = "deepensemble"
    fitted = FittedEnsemble

    def _train(self, task: Task, seeds: Seeds, log: Log) -> FittedEnsemble:
        of_member = [seeds, *(derive_seeds(seeds, f"member {k}") for k in range(1, self.members))]
        members = [self.classifier.train_weights(task, own, f"member {k}", log) for k, own in enumerate(of_member)]
        logits = self._check_samples(self.compute_logits(task, members, task.num_classes))
        weights = {f"{k}/{name}": weight for k, of_k in enumerate(members) for name, weight in of_k.items()}
        return FittedEnsemble(self, weights, log.history(), logits)

    def compute_logits(
        self, graph: Graph, members: Sequence[Weights], num_classes: int
    ) -> Float[Tensor, "members nodes classes"]:
        """Compute the logits of all members, without dropout."""
        return torch.stack([self.classifier.compute_logits(graph, weights, num_classes) for weights in members])
