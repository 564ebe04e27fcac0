"""How far what is called the truth can be trusted."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

R_HAT_LIMIT = 1.1
STEADY = 1e-6  # the variance of a probability below which there is nothing to mix


@dataclass(frozen=True)
class TruthReport:
    """What the true joints are known by.

    ``error`` is the root mean square of the Monte Carlo standard errors of all entries of the joints, judged by how far
    the means of the chains lie apart; ``kl_error`` is how far the estimate lies from the truth by that error, in nats
    for each edge; ``r_hat`` compares the spread between chains with the spread in them (1 when they agree). Exact ones
    have 0, 0 and 1. ``advice`` says what to do where chains disagree.
    """

    exact: bool
    converged: bool
    chains: int = 0
    sweeps: int = 0
    error: float = 0.0
    kl_error: float = 0.0
    r_hat: float = 1.0
    advice: str = ""

    def __bool__(self) -> bool:
        return self.converged

    def __str__(self) -> str:
        if self.exact:
            return "exact"
        words = (
            f"{self.chains} Gibbs chains of {self.sweeps} sweeps: Monte Carlo error {self.error:.1e} of a joint's "
            f"entry ({self.kl_error:.1e} nats an edge), R-hat {self.r_hat:.3f}"
        )
        return f"{words}. {self.advice}" if self.advice else words


EXACT = TruthReport(exact=True, converged=True)


def judged(
    nodes: Float[Tensor, "chains nodes classes"],
    variance: Float[Tensor, "chains nodes classes"],
    joints: Float[Tensor, "chains edges classes classes"],
    sweeps: int,
) -> TruthReport:
    """Judge chains by their means, and by the variances of node probabilities in them.

    R-hat is the largest of √(1 + B / W) over all entries: B is the variance of the chains' means, W that in chains.
    """
    chains = len(nodes)
    within, between = variance.mean(0), nodes.var(0)
    moving = (within > STEADY) | (between > STEADY)
    ratio = between[moving] / within[moving].clamp(min=STEADY)
    r_hat = float((1.0 + ratio.max()).sqrt()) if ratio.numel() else 1.0
    squared_error = joints.var(0) / chains
    error = float(squared_error.mean().sqrt()) if squared_error.numel() else 0.0
    per_edge = (squared_error / (2.0 * joints.mean(0).clamp(min=1e-12))).sum((1, 2))
    kl_error = float(per_edge.mean()) if per_edge.numel() else 0.0
    advice = ""
    if r_hat > R_HAT_LIMIT:
        advice = (
            f"The chains disagree (R-hat above {R_HAT_LIMIT}): raise sweeps, or take a weaker coupling, more evidence, "
            "or less feature noise."
        )
    return TruthReport(False, not advice, chains, sweeps, error, kl_error, r_hat, advice)
