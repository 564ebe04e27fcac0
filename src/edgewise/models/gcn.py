"""GCN: two graph convolutions (Kipf and Welling 2017)."""

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from edgewise.models.graph_pass import GraphPass
from edgewise.models.model import Classifier
from edgewise.models.seeds import Initializer, Weights
from edgewise.suggestions import suggest_keywords


@suggest_keywords
@dataclass(frozen=True, kw_only=True)
class GCN(Classifier):
    """Graph convolutional network with two layers, and ReLU and dropout between them.

    Parameters
    ----------
    hidden
        Number of hidden units.
    dropout
        Dropout probability of the hidden units.
    learning_rate
        Learning rate of Adam.
    weight_decay
        Weight decay of Adam, on all parameters.
    max_epochs
        Maximum number of epochs.
    patience
        Stop after this many epochs without an improvement of validation accuracy or NLL.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> fitted = GCN(max_epochs=5).fit(data, split, seed=0)
    >>> fitted.posterior(), fitted.history.epochs
    (IndependentPosterior(nodes=2708, classes=7), 5)
    """

    name = "gcn"
    hops = 2

    def initial_weights(self, num_features: int, num_classes: int, draw: Initializer) -> Weights:
        """Draw Glorot-uniform weight matrices; biases are zero."""
        return {
            "weight_1": draw.glorot(num_features, self.hidden),
            "bias_1": draw.zeros(self.hidden),
            "weight_2": draw.glorot(self.hidden, num_classes),
            "bias_2": draw.zeros(num_classes),
        }

    def forward(self, weights: Weights, graph: GraphPass) -> Float[Tensor, "nodes classes"]:
        """Compute Â · dropout(ReLU(Â X W₁ + b₁)) · W₂ + b₂."""
        w = weights
        hidden = graph.propagate_features(w["weight_1"])
        hidden = graph.relu_dropout_matmul(hidden, w["bias_1"], w["weight_2"])
        return graph.propagate(hidden) + w["bias_2"]


class GCNOptions(Protocol):
    """The options that a model shares with the GCN it is built on."""

    @property
    def hidden(self) -> int:
        """Number of hidden units."""

    @property
    def dropout(self) -> float:
        """Dropout probability of the hidden units."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of Adam."""

    @property
    def weight_decay(self) -> float:
        """Weight decay of Adam."""


def backbone(model: GCNOptions, max_epochs: int, patience: int) -> GCN:
    """Return the GCN that another model is built on, with the options they share."""
    return GCN(
        hidden=model.hidden,
        dropout=model.dropout,
        learning_rate=model.learning_rate,
        weight_decay=model.weight_decay,
        max_epochs=max_epochs,
        patience=patience,
    )
