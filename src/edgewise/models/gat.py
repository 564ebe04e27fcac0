"""GAT: two graph attention layers (Veličković et al. 2018)."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import elu

from edgewise.models.graph_pass import GraphPass
from edgewise.models.model import Classifier
from edgewise.models.seeds import Initializer, Weights
from edgewise.suggestions import suggest_keywords


@suggest_keywords
@dataclass(frozen=True, kw_only=True)
class GAT(Classifier):
    """Graph attention network with two layers: several concatenated heads and ELU, then one head.

    Parameters
    ----------
    hidden
        Number of hidden units of all heads together.
    dropout
        Dropout probability of the inputs of both layers and of the attention weights.
    learning_rate
        Learning rate of Adam.
    weight_decay
        Weight decay of Adam, on all parameters.
    heads
        Number of heads of the first layer.
    max_epochs
        Maximum number of epochs.
    patience
        Stop after this many epochs without an improvement of validation accuracy or NLL.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> GAT(max_epochs=2).fit(data, split, seed=0).posterior()
    IndependentPosterior(nodes=2708, classes=7)
    """

    heads: int = 8

    name = "gat"
    hops = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % self.heads:
            raise ValueError(
                f"Expected hidden to be a multiple of {self.heads} heads, but got {self.hidden}. Change one of them."
            )

    def initial_weights(self, num_features: int, num_classes: int, draw: Initializer) -> Weights:
        """Draw Glorot-uniform weight matrices and attention vectors; biases are zero."""
        return {
            "weight_1": draw.glorot(num_features, self.hidden),
            "att_src_1": draw.glorot(self.heads, self.hidden // self.heads),
            "att_dst_1": draw.glorot(self.heads, self.hidden // self.heads),
            "bias_1": draw.zeros(self.hidden),
            "weight_2": draw.glorot(self.hidden, num_classes),
            "att_src_2": draw.glorot(1, num_classes),
            "att_dst_2": draw.glorot(1, num_classes),
            "bias_2": draw.zeros(num_classes),
        }

    def forward(self, weights: Weights, graph: GraphPass) -> Float[Tensor, "nodes classes"]:
        """Compute attention(H W₂) + b₂, H = ELU(attention(X W₁) + b₁), with dropout on X, H and attention weights."""
        w = weights
        projected = graph.project_features(w["weight_1"], dropout=True)
        hidden = elu(graph.attend(projected, w["att_src_1"], w["att_dst_1"]) + w["bias_1"])
        projected = graph.dropout(hidden) @ w["weight_2"]
        return graph.attend(projected, w["att_src_2"], w["att_dst_2"]) + w["bias_2"]
