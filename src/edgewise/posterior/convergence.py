"""Whether the solver that inferred a posterior converged."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Convergence:
    """Whether an iteration came to rest.

    It is true where ``converged`` is, so ``if not convergence: print(convergence.advice)`` works.

    Attributes
    ----------
    converged
        Whether the residual fell to the tolerance.
    sweeps
        How many sweeps it took; 0 for exact inference.
    residual
        The largest change in the last sweep: of a log-message, relative to its size where that is more than 1, or of a
        probability (mean field).
    advice
        What to do about an iteration that did not converge; empty where there is nothing to say.

    Examples
    --------
    >>> import torch, edgewise as ew
    >>> triangle = ew.PairwiseMRF(torch.eye(3)[:, :2], torch.tensor([[0, 1, 0], [1, 2, 2]]), torch.eye(2))
    >>> posterior, convergence = ew.sum_product(triangle, max_sweeps=2, tolerance=0.0)
    >>> convergence.converged, convergence.advice
    (False, 'Did not converge in 2 sweeps: the residual is ..., the tolerance 0. It may still fall: raise max_sweeps.')
    >>> posterior.convergence is convergence
    True
    """

    converged: bool
    sweeps: int
    residual: float
    advice: str = ""

    def __bool__(self) -> bool:
        return self.converged

    def to_json(self) -> str:
        """Return the value as text, for the metadata of a file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Convergence":
        """Read what `to_json` wrote."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise ValueError(f"Expected a convergence as to_json writes it, but got {text[:80]!r}.") from error
