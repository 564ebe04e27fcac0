"""`wrap`: the posterior of any trained module, or of node probabilities."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgewise.posterior import IndependentPosterior, as_posterior
from edgewise.suggestions import suggest_keywords
from edgewise.validation import SUM_TOLERANCE, ArrayLike, as_tensor, first_bad_row

Classifier = Callable[[Tensor, Tensor], Tensor]


@suggest_keywords
def wrap(
    module_or_probabilities: Classifier | ArrayLike, data: Any = None, *, normalize: bool = False
) -> IndependentPosterior:
    """Return the posterior of a trained module that maps (x, edge_index) to logits, or of probabilities (N, C).

    A module is called once, in evaluation mode and on its own device. Its mode is restored afterwards.

    Parameters
    ----------
    module_or_probabilities
        A module or any other function that maps (x, edge_index) to logits (N, C); or probabilities (N, C) whose rows
        sum to 1. A ValueError is raised if a module returns probabilities instead of logits.
    data
        A torch_geometric Data, or anything with ``x`` and ``edge_index``. Only a module needs it.
    normalize
        Divide probabilities by the sum of their row, which must be 1 within 2%: for rounded values.

    Examples
    --------
    >>> from torch_geometric.data import Data
    >>> data = Data(x=torch.zeros(3, 5), edge_index=torch.tensor([[0, 1], [1, 0]]))
    >>> wrap(lambda x, edge_index: x[:, :2], data).node.tolist()
    [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    >>> wrap([[0.9, 0.1]])
    IndependentPosterior(nodes=1, classes=2)
    """
    if not callable(module_or_probabilities):
        return _from_probabilities(module_or_probabilities, data, normalize)
    if getattr(data, "x", None) is None or getattr(data, "edge_index", None) is None:
        raise ValueError(
            f"Expected data with x and edge_index as input of the module, but got {type(data).__name__}. Call "
            "ew.wrap(module, data)."
        )
    x, edge_index = as_tensor(data.x, "x"), as_tensor(data.edge_index, "edge_index")
    try:
        logits = _run(module_or_probabilities, x, edge_index)
    except TypeError as error:
        raise TypeError(
            f"Expected a module that maps (x, edge_index) to logits, but calling it with these failed: {error}. If it "
            "has other arguments, call it yourself and pass the probabilities: ew.wrap(logits.softmax(-1))."
        ) from error
    check_module_logits(logits, x)
    return IndependentPosterior(logits.softmax(-1))


def _from_probabilities(probabilities: ArrayLike, data: Any, normalize: bool) -> IndependentPosterior:
    if hasattr(probabilities, "posterior"):
        raise ValueError(
            f"Expected a trained module or probabilities, but got {type(probabilities).__name__}. Call its posterior() "
            "instead."
        )
    posterior = as_posterior(probabilities, normalize=normalize)
    if getattr(data, "num_nodes", None) not in (None, posterior.num_nodes):
        raise ValueError(
            f"Expected probabilities for {data.num_nodes} nodes, but got shape {tuple(posterior.node.shape)}."
        )
    return IndependentPosterior(posterior.node)


def _run(module: Classifier, x: Tensor, edge_index: Tensor) -> Tensor:
    if not isinstance(module, torch.nn.Module):
        with torch.no_grad():
            return module(x, edge_index)
    parameter = next(module.parameters(), x)
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            logits: Tensor = module(x.to(parameter), edge_index.to(parameter.device))  # dtype and device
    finally:
        for part, training in modes.items():
            part.training = training
    return logits


def check_module_logits(logits: Any, x: Tensor) -> None:
    """Raise ValueError if the output of a module is not finite logits (N, C)."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.ndim != 2 or len(logits) != len(x):
        got = f"shape {tuple(logits.shape)}, {logits.dtype}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"Expected the module to return logits of shape ({len(x)}, classes), but got {got}.")
    if logits.shape[1] < 2:
        raise ValueError(
            f"Expected logits of at least two classes, but got shape {tuple(logits.shape)}. If the module returns one "
            "logit, that of class 1, return two: torch.cat([torch.zeros_like(logit), logit], 1)."
        )
    if not bool(logits.isfinite().all()):
        node = int((~logits.isfinite().all(1)).nonzero()[0])
        fix = "" if bool(x.isfinite().all()) else " x is not finite either. Replace its values: x.nan_to_num(0.0)."
        raise ValueError(f"Expected finite logits, but the module returned NaN or inf, first for node {node}.{fix}")
    if first_bad_row(logits, SUM_TOLERANCE[logits.dtype]) is None:
        raise ValueError(
            "Expected the module to return logits, but its rows are probabilities: each sums to 1. Remove the "
            "softmax from the module, or pass the probabilities to ew.wrap(probabilities)."
        )
