"""Vector scaling: a factor and a shift for each class (Guo et al. 2017)."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from edgewise.calibration.calibrator import Learnt, NodeCalibrator
from edgewise.calibration.likelihood import nll
from edgewise.calibration.minimise import minimised
from edgewise.calibration.seen import Seen
from edgewise.calibration.temperature import best_temperature
from edgewise.data.options import check_number


@dataclass(frozen=True)
class VectorScaling(NodeCalibrator):
    """softmax(a ∘ z / T + b), with the a and b of the lowest NLL on validation nodes, after temperature scaling.

    A few dozen labels cannot tell two numbers for each class apart, so the sum of the NLL is raised by
    (Σ (a - 1)² + Σ b²) / 2σ²: without labels it is temperature scaling. Labels that are most likely may change. `learn`
    gives the "temperature" T, the "factor" a / T and the "shift" b.

    Parameters
    ----------
    prior
        σ. A large one gives plain vector scaling.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> VectorScaling().fit(logits, data, split)
    IndependentPosterior(nodes=2708, classes=7)
    """

    prior: float = 1.0

    def __post_init__(self) -> None:
        check_number("prior", self.prior, above=0)

    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give log softmax(a ∘ z / T + b)."""
        temperature = best_temperature(seen.val_logits, seen.val_labels)
        classes = seen.logits.shape[1]
        centred = seen.logits - seen.logits.mean(-1, keepdim=True)  # a ∘ z must not depend on a constant in z

        doubt = seen.doubt

        def scaled(parameters: Float[Tensor, " twice"], logits: Tensor) -> Tensor:
            return logits / temperature * (1 + parameters[:classes]) + parameters[classes:]

        def loss(parameters: Float[Tensor, " twice"]) -> Tensor:
            fit = nll(scaled(parameters, centred[seen.val]), seen.val_labels, doubt)
            return fit + parameters.square().sum() / (2 * self.prior**2)

        found = minimised(loss, [0.0] * (2 * classes))
        factor, shift = (1 + found[:classes]) / temperature, found[classes:]
        learnt: Learnt = {"temperature": temperature, "factor": factor, "shift": shift}
        return scaled(found, centred).log_softmax(-1), learnt
