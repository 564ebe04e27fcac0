"""A synthetic graph, the law it was drawn from, and the true posterior of its labels."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.inference import PairwiseMRF, exact_marginals
from edgewise.inference.exact import TooManyLabelings
from edgewise.posterior import Posterior
from edgewise.simulation.field import LabelField, known_labels
from edgewise.simulation.gibbs import EXACT, TruthReport, expected_sums, gibbs_marginals
from edgewise.validation import ArrayLike, as_tensor, check_mask, check_seed, check_whole_number

if TYPE_CHECKING:
    import torch_geometric.data


Kind = Literal["block_model", "mrf"]
DegreeLaw = Literal["poisson", "power_law", "regular"]
MAX_DENSE_NODES = 200  # of a block model; above, a coupling for each pair is too much


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticGraph:
    """A drawn graph and what it was drawn from; made by `synthetic`.

    Attributes
    ----------
    data
        A torch_geometric Data: features ``x``, both directions of each edge in ``edge_index``, labels ``y``.
    field
        p(y | x, graph), with all parameters known: ``unary`` are the log-likelihoods of the features, ``coupling`` what
        edges say, ``weight`` and ``rate`` what pairs without an edge say (nothing in an MRF).
    kind
        "block_model" or "mrf".
    coupling
        J (C, C), what the draw was asked for: exp J is how much likelier neighbors have two labels.
    average_degree
        How many edges a node was asked to have.
    degree_law
        "poisson", "power_law" or "regular".
    feature_means
        Of each class (classes, features): features are normal around the mean of their class.
    feature_noise
        Their standard deviation.
    seed
        What all was drawn by.

    Examples
    --------
    >>> from edgewise.simulation import synthetic
    >>> graph = synthetic(12, 3, homophily=0.2, seed=0)
    >>> posterior, report = graph.truth(evidence=torch.arange(12) < 4)  # the labels of four nodes are known
    >>> print(report)
    exact
    >>> posterior.node[:4].argmax(1).equal(graph.data.y[:4])
    True
    """

    data: "torch_geometric.data.Data"
    field: LabelField
    kind: Kind
    coupling: Float[Tensor, "classes classes"]
    average_degree: float
    degree_law: DegreeLaw
    feature_means: Float[Tensor, "classes features"]
    feature_noise: float
    seed: int

    @property
    def edge_index(self) -> Int[Tensor, "2 edges"]:
        """Each undirected edge once, the lower node first."""
        return self.field.edge_index

    @property
    def homophily(self) -> float:
        """The share of edges whose ends have the same label; NaN without edges."""
        ends = self.data.y[self.edge_index]
        return float((ends[0] == ends[1]).double().mean())

    @property
    def class_shares(self) -> Float[Tensor, " classes"]:
        """The share of nodes in each class."""
        return torch.bincount(self.data.y, minlength=self.field.num_classes) / self.field.num_nodes

    def mrf(self, evidence: ArrayLike | None = None) -> PairwiseMRF:
        """Return p(y | x, graph, evidence) as an MRF on the edges: exactly, if the kind is "mrf".

        A block model's pairs without an edge then act only through the number of nodes that each class is expected to
        have, which a short Gibbs chain tells: close on large sparse graphs.

        Parameters
        ----------
        evidence
            A mask (N,) of the nodes whose labels are known; by default none is.
        """
        field = self._given(evidence)
        return field.dense_mrf() if field.is_sparse else field.sparse_mrf(expected_sums(field))

    def truth(
        self,
        evidence: ArrayLike | None = None,
        *,
        chains: int = 4,
        burn_in: int = 500,
        sweeps: int = 2000,
        seed: int = 0,
    ) -> tuple[Posterior, TruthReport]:
        """Compute the true p(y | x, graph, labels of the nodes in ``evidence``), and say how well it is known.

        Exact on forests and on graphs small enough to enumerate. Elsewhere by Gibbs chains: the first starts at the
        true labels, which are a draw from the posterior already, the second at the labels that the features say, others
        at random. Joints are of the graph's edges.

        Parameters
        ----------
        evidence
            A mask (N,) of the nodes whose labels are known; by default none is.
        chains
            How many Gibbs chains, two at least.
        burn_in
            Sweeps of a chain that are not counted.
        sweeps
            Sweeps of a chain that are.
        seed
            Of the chains.

        Returns
        -------
        tuple[Posterior, TruthReport]
            The posterior, and a report that is true if it can be trusted; printed, it says how far.
        """
        field = self._given(evidence)
        exact = _exact(field)
        if exact is not None:
            return exact, EXACT
        check_whole_number("chains", chains, 2, 1000)
        check_whole_number("burn_in", burn_in, 0, 2**31 - 1)
        check_whole_number("sweeps", sweeps, 1, 2**31 - 1)
        check_seed(seed)
        starts = self._starts(chains, seed)
        return gibbs_marginals(field, starts, burn_in=burn_in, sweeps=sweeps, seed=seed)

    def __repr__(self) -> str:
        return (
            f"SyntheticGraph({self.kind}, nodes={self.field.num_nodes}, edges={self.edge_index.shape[1]}, "
            f"classes={self.field.num_classes}, homophily={self.homophily:.2f}, feature_noise={self.feature_noise:g})"
        )

    def _given(self, evidence: ArrayLike | None) -> LabelField:
        if evidence is None:
            return self.field
        mask = check_mask(as_tensor(evidence, "evidence").cpu(), self.field.num_nodes, "evidence")
        return self.field.given(known_labels(mask, self.data.y))

    def _starts(self, chains: int, seed: int) -> Int[Tensor, "chains nodes"]:
        shape = (chains, self.field.num_nodes)
        starts = torch.randint(self.field.num_classes, shape, generator=torch.Generator().manual_seed(seed))
        starts[0], starts[1] = self.data.y, self.field.unary.argmax(1)
        return starts


def _exact(field: LabelField) -> Posterior | None:
    """Infer exactly, or return None where there are too many labelings."""
    if not field.is_sparse and field.num_nodes > MAX_DENSE_NODES:
        return None
    mrf = field.dense_mrf()
    try:
        return exact_marginals(mrf)[0]
    except TooManyLabelings:
        return None
