"""A synthetic graph, its parameters, and the true posterior of its labels."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.conversion import as_mask
from edgewise.inference import PairwiseMRF, exact_marginals
from edgewise.inference.elimination_order import NoExactInference
from edgewise.posterior import Posterior
from edgewise.simulation.field import LabelDistribution, observed_labels
from edgewise.simulation.gibbs import EXACT, TruthReport, expected_class_weights, gibbs_marginals
from edgewise.validation import ArrayLike, check_seed, check_whole_number

if TYPE_CHECKING:
    import torch_geometric.data


Kind = Literal["block_model", "mrf"]
DegreeLaw = Literal["poisson", "power_law", "regular"]
MAX_ALL_PAIRS_NODES = 200  # for which exact inference couples all pairs of nodes of a block model


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticGraph:
    """A synthetic graph and the parameters it was drawn with; created by `synthetic`.

    Attributes
    ----------
    data
        A torch_geometric Data: features ``x``, both directions of each edge in ``edge_index``, labels ``y``.
    field
        The distribution p(y | x, graph). ``unary`` holds the log-likelihoods of the features, ``coupling`` the
        log-potentials of edges, ``weight`` and ``rate`` the coupling of all pairs in a block model (zero for an MRF).
    kind
        "block_model" or "mrf".
    coupling
        The requested J of shape (C, C): exp J(l, m) is the relative weight of labels l and m at the ends of an edge.
    average_degree
        The requested average degree.
    degree_law
        "poisson", "power_law" or "regular".
    feature_means
        Mean feature vector of each class (classes, features).
    feature_noise
        Standard deviation of the normally distributed features around the mean of their class.
    seed
        Random seed of the graph, labels and features.

    Examples
    --------
    >>> from edgewise.simulation import synthetic
    >>> graph = synthetic(12, 3, homophily=0.2, seed=0)
    >>> posterior, report = graph.truth(evidence=torch.arange(12) < 4)  # observe the labels of four nodes
    >>> print(report)
    exact
    >>> posterior.node[:4].argmax(1).equal(graph.data.y[:4])
    True
    """

    data: "torch_geometric.data.Data"
    field: LabelDistribution
    kind: Kind
    coupling: Float[Tensor, "classes classes"]
    average_degree: float
    degree_law: DegreeLaw
    feature_means: Float[Tensor, "classes features"]
    feature_noise: float
    seed: int

    @property
    def edge_index(self) -> Int[Tensor, "2 edges"]:
        """Each undirected edge once, with the lower node first."""
        return self.field.edge_index

    @property
    def homophily(self) -> float:
        """Fraction of edges whose ends have the same label; NaN if there are no edges."""
        ends = self.data.y[self.edge_index]
        return float((ends[0] == ends[1]).double().mean())

    @property
    def class_shares(self) -> Float[Tensor, " classes"]:
        """Fraction of nodes in each class."""
        return torch.bincount(self.data.y, minlength=self.field.num_classes) / self.field.num_nodes

    def mrf(self, evidence: ArrayLike | None = None) -> PairwiseMRF:
        """Return p(y | x, graph, evidence) as an MRF on the edges.

        It is exact if the kind is "mrf". For a block model, the coupling of all pairs is approximated by the expected
        sizes of the classes, which a short Gibbs chain estimates. This is accurate on large sparse graphs.

        Parameters
        ----------
        evidence
            Boolean mask (N,) of the nodes whose labels are observed. Default: none.
        """
        distribution = self._condition(evidence)
        if distribution.couples_edges_only:
            return distribution.exact_mrf()
        return distribution.approximate_mrf(expected_class_weights(distribution))

    def truth(
        self,
        evidence: ArrayLike | None = None,
        *,
        chains: int = 4,
        burn_in: int = 500,
        sweeps: int = 2000,
        seed: int = 0,
    ) -> tuple[Posterior, TruthReport]:
        """Compute the true posterior p(y | x, graph, labels of the nodes in ``evidence``) and report its accuracy.

        The posterior is exact on forests and on graphs that are small enough to enumerate. Otherwise it is estimated
        with Gibbs chains. The first chain starts at the true labels, which are a sample from the posterior. The second
        starts at the most likely labels given the features, the others at random labels. The posterior has the joints
        of the edges of the graph.

        Parameters
        ----------
        evidence
            Boolean mask (N,) of the nodes whose labels are observed. Default: none.
        chains
            Number of Gibbs chains, at least two.
        burn_in
            Number of initial sweeps of each chain to discard.
        sweeps
            Number of sweeps of each chain after burn-in.
        seed
            Random seed of the chains.

        Returns
        -------
        tuple[Posterior, TruthReport]
            The posterior, and a report of its accuracy that is true if the chains converged.
        """
        distribution = self._condition(evidence)
        exact = _exact_posterior(distribution)
        if exact is not None:
            return exact, EXACT
        check_whole_number("chains", chains, 2, 1000)
        check_whole_number("burn_in", burn_in, 0, 2**31 - 1)
        check_whole_number("sweeps", sweeps, 1, 2**31 - 1)
        check_seed(seed)
        starts = self._starts(chains, seed)
        return gibbs_marginals(distribution, starts, burn_in=burn_in, sweeps=sweeps, seed=seed)

    def __repr__(self) -> str:
        return (
            f"SyntheticGraph({self.kind}, nodes={self.field.num_nodes}, edges={self.edge_index.shape[1]}, "
            f"classes={self.field.num_classes}, homophily={self.homophily:.2f}, feature_noise={self.feature_noise:g})"
        )

    def _condition(self, evidence: ArrayLike | None) -> LabelDistribution:
        if evidence is None:
            return self.field
        mask = as_mask(evidence, self.field.num_nodes, torch.device("cpu"), "evidence")
        return self.field.condition(observed_labels(mask, self.data.y))

    def _starts(self, chains: int, seed: int) -> Int[Tensor, "chains nodes"]:
        shape = (chains, self.field.num_nodes)
        starts = torch.randint(self.field.num_classes, shape, generator=torch.Generator().manual_seed(seed))
        starts[0], starts[1] = self.data.y, self.field.unary.argmax(1)
        return starts


def _exact_posterior(distribution: LabelDistribution) -> Posterior | None:
    """Compute the exact posterior, or return None if there are too many labelings."""
    if not distribution.couples_edges_only and distribution.num_nodes > MAX_ALL_PAIRS_NODES:
        return None
    mrf = distribution.exact_mrf()
    try:
        return exact_marginals(mrf)[0]
    except NoExactInference:
        return None
