"""How a posterior was computed and drawn from: convergence of its solver, labelings, and the cost of clamping."""

import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from edgewise.representation import shorten


@dataclass(frozen=True, repr=False)
class Convergence:
    """Convergence of an iterative solver.

    Its truth value is ``converged``, so ``if not convergence: print(convergence.advice)`` works.

    Attributes
    ----------
    converged
        Whether the residual fell to the tolerance.
    sweeps
        Number of sweeps, 0 for exact inference.
    residual
        Largest change in the last sweep: of a log-message, relative to its size if that is above 1, or of a probability
        (mean field). For the double loop, of a probability in a round of sweeps, times the degree of the node.
    advice
        How to make the solver converge, or what to do if its marginals may be wrong. Otherwise empty.
    method
        The solver: "forest", "enumeration" or "elimination", which are exact, "sum-product", "double loop" (sum-product
        whose parallel sweeps did not converge), "max-product", "mean field" or "tree-reweighted".
    disagreement
        Largest difference between the marginals of a node from several initial messages and from tree-reweighted
        sum-product, if ``check=True`` was passed, otherwise None. The error can be smaller or larger.
    reason
        Why the method was chosen, by `infer` or by `sum_product`.
    damping
        Fraction of the old messages or probabilities that the last sweep kept.

    Examples
    --------
    >>> import torch, edgewise as ew
    >>> triangle = ew.PairwiseMRF(torch.eye(3)[:, :2], torch.tensor([[0, 1, 0], [1, 2, 2]]), torch.eye(2))
    >>> posterior, convergence = ew.sum_product(triangle, max_sweeps=2, tolerance=0.0)
    >>> convergence.converged, convergence.advice
    (False, 'Did not converge in 2 sweeps: the residual is ..., the tolerance is 0. ... raise max_sweeps.')
    >>> posterior.convergence is convergence
    True
    """

    converged: bool
    sweeps: int
    residual: float
    advice: str = ""
    method: str = ""
    disagreement: float | None = None
    reason: str = ""
    damping: float = 0.0

    def __bool__(self) -> bool:
        return self.converged

    def __repr__(self) -> str:
        text = f"converged={self.converged}, sweeps={self.sweeps}, residual={self.residual:.6g}"
        if self.damping:
            text += f", damping={self.damping:g}"
        if self.disagreement is not None:
            text += f", disagreement={self.disagreement:.3g}"
        for name, value in (("method", self.method), ("advice", self.advice), ("reason", self.reason)):
            text += f", {name}={value!r}" if value else ""
        return shorten(f"Convergence({text})")

    def _repr_html_(self) -> str:
        from edgewise.pages.notebook import convergence_html

        return convergence_html(self)

    def to_json(self) -> str:
        """Return a JSON string, for the metadata of a file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Convergence":
        """Parse the JSON string that `to_json` returns."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise ValueError(f"Expected a convergence in the format of to_json, but got {text[:80]!r}.") from error


@dataclass(frozen=True, repr=False)
class Sampling:
    """How labelings were drawn, and whether they can be trusted.

    Attributes
    ----------
    method
        "independent", "mixture", "forest" or "elimination", which are exact; "gibbs", Markov chains of a field with
        loops; or "spanning forest", for joints that are not the marginals of a known field.
    is_exact
        Whether each labeling is an independent draw from the distribution: for a field, from the field itself, whose
        marginals differ from those of an approximate solver.
    r_hat
        For "gibbs", the largest split R-hat of a node's label: √(variance of all draws / variance within half-chains).
        It is close to 1 if the chains agree, and None for other methods.
    effective_size
        For "gibbs", how many independent labelings these are worth, on average over the nodes. None for other methods.
    advice
        Why the labelings should not be trusted, and what to do. Otherwise empty.
    keeps_marginals
        Whether the labelings have the marginals of the posterior. False if these approximate the marginals of a field
        with loops, or are max-marginals.

    Examples
    --------
    >>> import torch, edgewise as ew
    >>> labels, sampling = ew.IndependentPosterior(torch.full((3, 2), 0.5)).sample(5, seed=0)
    >>> labels.shape, sampling
    (torch.Size([5, 3]), Sampling(method='independent', is_exact=True))
    """

    method: str
    is_exact: bool
    r_hat: float | None = None
    effective_size: float | None = None
    advice: str = ""
    keeps_marginals: bool = True

    def __repr__(self) -> str:
        text = f"method={self.method!r}, is_exact={self.is_exact}"
        text += "" if self.keeps_marginals else ", keeps_marginals=False"
        for name, number in (("r_hat", self.r_hat), ("effective_size", self.effective_size)):
            text += f", {name}={number:.4g}" if number is not None else ""
        return shorten(f"Sampling({text}, advice={self.advice!r})" if self.advice else f"Sampling({text})")


class Sample(NamedTuple):
    """Labelings that `Posterior.sample` drew, (n, N), and how it drew them."""

    labels: Int[Tensor, "n nodes"]
    sampling: Sampling


@dataclass(frozen=True)
class ClampingCost:
    """Cost of the joints of pairs that are not edges, as `Posterior.clamping_cost` estimates it.

    Attributes
    ----------
    num_nodes
        Number of nodes that are clamped.
    num_runs
        Number of runs of belief propagation: one for each possible label of each clamped node.
    seconds
        Estimated time of all runs on this machine.
    """

    num_nodes: int
    num_runs: int
    seconds: float

    def __str__(self) -> str:
        if not self.num_runs:
            return "No pair needs clamping."
        runs = f"{self.num_runs:,} run{'' if self.num_runs == 1 else 's'} of belief propagation"
        nodes = f"{self.num_nodes:,} clamped node{'' if self.num_nodes == 1 else 's'}"
        return f"Clamping takes {runs} with {nodes}, {_format_seconds(self.seconds)}."


def _format_seconds(seconds: float) -> str:
    """Format an estimated duration with one unit.

    >>> [_format_seconds(seconds) for seconds in (0.2, 42.0, 600.0, 86400.0)]
    ['less than 1 s', 'about 42 s', 'about 10 min', 'about 24 h']
    """
    if seconds < 1:
        return "less than 1 s"
    size, unit = next(((size, unit) for size, unit in ((3600, "h"), (60, "min")) if seconds >= 2 * size), (1, "s"))
    return f"about {seconds / size:.0f} {unit}"


class SlowClampingWarning(UserWarning):
    """Joints of pairs that are not edges will take more than 10 seconds. The warning comes before they are computed.

    To hide it, call ``warnings.filterwarnings("ignore", category=ew.SlowClampingWarning)``.
    """
