"""Nodes that know nothing of each other: joints are products."""

from jaxtyping import Float, Int
from torch import Tensor

from edgewise.posterior.belief import Posterior, check_node_shape
from edgewise.posterior.convergence import Convergence
from edgewise.validation import ArrayLike, check_distributions, dense_tensor


class IndependentPosterior(Posterior):
    """P(y) = Π_i p_i(y_i): any model that gives each node probabilities of its own.

    Parameters
    ----------
    node
        Probabilities (N, C), whose rows sum to 1. With a batch, (B, N, C).
    convergence
        Whether the solver that inferred the probabilities converged, if there was one.

    Examples
    --------
    >>> import torch
    >>> IndependentPosterior(torch.tensor([[0.9, 0.1], [0.5, 0.5]])).joint(torch.tensor([[0], [1]])).tolist()
    [[[0.449..., 0.449...], [0.05..., 0.05...]]]
    """

    def __init__(self, node: ArrayLike, *, convergence: Convergence | None = None):
        super().__init__(convergence)
        self._node = dense_tensor(node, "node")
        check_node_shape(self._node, "node")
        check_distributions(self._node.flatten(0, -2), "node", "row")

    @property
    def node(self) -> Float[Tensor, "*batch nodes classes"]:
        """The marginal of each node."""
        return self._node

    def tensors(self) -> dict[str, Tensor]:
        """Give the node marginals."""
        return {"node": self._node}

    def _joints(self, nodes: Int[Tensor, "set sets"]) -> Float[Tensor, "*batch sets entries"]:
        joint = self._node[..., nodes[0], :]
        for other in nodes[1:]:
            joint = (joint.unsqueeze(-1) * self._node[..., other, :].unsqueeze(-2)).flatten(-2)
        return joint
