"""Base classes of models that train a classifier, and whose posterior is a mixture of several of its predictions."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self, TypeVar

from jaxtyping import Float
from torch import Tensor

from edgewise.models.fitted import Fitted, find_model, graph_like_training
from edgewise.models.gcn import GCN
from edgewise.models.model import Classifier, Model
from edgewise.models.network import Network
from edgewise.models.task import Directed, Graph
from edgewise.models.training import check_logits, one_thread
from edgewise.posterior import IndependentPosterior, MixturePosterior, Posterior


@dataclass(frozen=True, eq=False, repr=False)
class FittedMixture(Fitted):
    """A fitted classifier with several predictions.

    Attributes
    ----------
    sample_logits
        Logits (S, N, C) of the S predictions.
    """

    model: "MixtureModel[Any]"
    sample_logits: Float[Tensor, "samples nodes classes"]

    parts: ClassVar[tuple[str, ...]] = ("sample_logits",)

    def posterior(self) -> MixturePosterior:
        """Return the mixture of the predictions. The joint of two nodes is the mean of their product joints."""
        return MixturePosterior(self.sample_logits.softmax(-1))

    def predictions(self) -> dict[str, Callable[[], Posterior]]:
        """Return predictions by products of the mixture's node marginals, and by the mixture."""
        return {
            f"{self.model.name}_product": lambda: IndependentPosterior(self.posterior().node),
            f"{self.model.name}_mixture": self.posterior,
        }

    def apply(self, data: Any, *, directed: Directed = "refuse") -> Self:
        """Return a fitted model with the same weights and the predictions on another graph.

        Parameters
        ----------
        data
            A torch_geometric Data, or anything with ``edge_index`` and ``x``, with the same number of features as in
            training.
        directed
            How to treat edges that are listed in one direction only, as in ``fit``.
        """
        graph = graph_like_training(data, directed, self.sample_logits)
        with one_thread():
            return replace(self, sample_logits=self._compute_samples(graph), used=None)

    @abstractmethod
    def _compute_samples(self, graph: Graph) -> Float[Tensor, "samples nodes classes"]:
        """Compute the logits of all predictions on a graph."""


M = TypeVar("M", bound=FittedMixture)


@dataclass(frozen=True, kw_only=True)
class MixtureModel(Model[M]):
    """Base class of models with a classifier, an option that is itself a model."""

    classifier: Classifier | Network = field(default_factory=GCN, kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.classifier, Classifier | Network):
            kind = self.classifier if isinstance(self.classifier, type) else type(self.classifier)
            raise ValueError(
                "Expected a model whose fitted object has logits, such as ew.GCN(), ew.GAT() or "
                f"ew.Network(make_module), but got {kind.__name__}{'' if kind is not self.classifier else ' itself'}. "
                f"Pass such a model: ew.{type(self).__name__}(ew.GCN())."
            )

    def hyperparameters(self) -> dict[str, Any]:
        """Return all options as values that JSON can hold, those of the classifier with its name."""
        own = {option.name: getattr(self, option.name) for option in fields(self)}
        nested = {"name": self.classifier.name, "options": self.classifier.hyperparameters()}
        return own | {"classifier": nested}

    @classmethod
    def from_hyperparameters(cls, options: dict[str, Any]) -> Self:
        """Return the model with options that `hyperparameters` returned."""
        nested = options["classifier"]
        classifier = find_model(nested["name"], "the option classifier")
        return cls(**options | {"classifier": classifier.from_hyperparameters(nested["options"])})

    def with_weight_decay(self, weight_decay: float) -> Self:
        """Return the same model whose classifier has another weight decay."""
        return replace(self, classifier=self.classifier.with_weight_decay(weight_decay))

    def _check_samples(self, samples: Float[Tensor, "samples nodes classes"]) -> Float[Tensor, "samples nodes classes"]:
        """Return the logits, or raise FloatingPointError if one is not finite."""
        for logits in samples:
            check_logits(logits, self.classifier.learning_rate)
        return samples
