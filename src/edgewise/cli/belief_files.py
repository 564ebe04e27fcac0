"""Beliefs that commands read: probabilities, saved posteriors and fitted models."""

from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.cli.complaints import complaints_name

if TYPE_CHECKING:
    from edgewise.inference import Convergence
    from edgewise.posterior import Posterior


def read_belief(path: Path) -> "tuple[Posterior, Convergence | None]":
    """Read the posterior in a file, and how its inference ended where that has just been run."""
    from edgewise.data import files
    from edgewise.posterior import IndependentPosterior, Posterior

    if path.suffix.lower() != ".safetensors":
        probs = files.read_probs(path)
        with complaints_name(probs=path):
            return IndependentPosterior(probs), None
    if not _is_fitted(path):
        with complaints_name(probs=path):
            return Posterior.load(path), None
    from edgewise.models import Fitted
    from edgewise.models.epfgnn import FittedEPFGNN

    with complaints_name(probs=path):
        fitted = Fitted.load(path)
    return fitted.infer() if isinstance(fitted, FittedEPFGNN) else (fitted.posterior(), None)


def _is_fitted(path: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        with safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("format")).startswith("edgewise fitted")
    except (SafetensorError, OSError):  # said in words by whoever reads it
        return False
