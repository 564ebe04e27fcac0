"""The NLL of validation labels, which calibrators minimise, and the doubt that it may lack."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

DOUBT = 0.5  # of a label


def doubt_about(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> float:
    """Give how much of a label to add: none, or half of one where every label has the largest logit of its node.

    Such labels fit the better the surer a calibrator is, and in the end every other label would be impossible. What is
    added may be the label of any node, and any class: it has the mean of the NLL over all of them.
    """
    of_labels = logits.gather(1, labels[:, None])
    return DOUBT if bool((logits <= of_labels).all()) else 0.0


def nll(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"], doubt: float) -> Float[Tensor, ""]:
    """Sum -log softmax(z_i)(y_i) over nodes, and add the doubt."""
    known = cross_entropy(logits, labels, reduction="sum")
    return known - doubt * logits.log_softmax(-1).mean() if doubt else known
