"""Anybody's trained model as a posterior."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgewise.data.arrays import ArrayLike, as_tensor
from edgewise.data.distributions import SUM_TOLERANCE, first_bad_row
from edgewise.posterior import IndependentPosterior

Classifier = Callable[[Tensor, Tensor], Tensor]


def wrap(module_or_probabilities: Classifier | ArrayLike, data: Any = None) -> IndependentPosterior:
    """Make a posterior of a trained module that maps (x, edge_index) to logits, or of probabilities (nodes, classes).

    A module needs ``data`` with ``x`` and ``edge_index``; it is run once, in evaluation mode, on its own device, and
    left in the mode it was in.

    >>> from torch_geometric.data import Data
    >>> data = Data(x=torch.zeros(3, 5), edge_index=torch.tensor([[0, 1], [1, 0]]))
    >>> wrap(lambda x, edge_index: x[:, :2], data).node.tolist()
    [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    >>> wrap(torch.tensor([[0.9, 0.1]]))
    IndependentPosterior(nodes=1, classes=2)
    """
    if not callable(module_or_probabilities):
        if data is not None:
            raise ValueError("Expected no data with probabilities: they are the prediction already.")
        return _checked(IndependentPosterior(module_or_probabilities))
    if getattr(data, "x", None) is None or getattr(data, "edge_index", None) is None:
        raise ValueError("Expected data with x and edge_index to run the module on: ew.wrap(module, data).")
    x, edge_index = as_tensor(data.x, "x"), as_tensor(data.edge_index, "edge_index")
    logits = _run(module_or_probabilities, x, edge_index)
    _check_logits(logits, len(x))
    return IndependentPosterior(logits.softmax(-1))


def _checked(posterior: IndependentPosterior) -> IndependentPosterior:
    if posterior.batch_shape:
        raise ValueError(
            f"Expected probabilities of shape (nodes, classes), but got shape {tuple(posterior.node.shape)}. "
            "For several samples make a mixture: ew.MixturePosterior(samples)."
        )
    return posterior


def _run(module: Classifier, x: Tensor, edge_index: Tensor) -> Tensor:
    if not isinstance(module, torch.nn.Module):
        with torch.no_grad():
            return module(x, edge_index)
    parameter = next(module.parameters(), x)
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            logits: Tensor = module(x.to(parameter.device), edge_index.to(parameter.device))
    finally:
        for part, training in modes.items():
            part.training = training
    return logits


def _check_logits(logits: Any, num_nodes: int) -> None:
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.ndim != 2 or len(logits) != num_nodes:
        what = f"shape {tuple(logits.shape)}, {logits.dtype}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"Expected the module to give logits of shape ({num_nodes}, classes), but got {what}.")
    if not bool(logits.isfinite().all()):
        node = int((~logits.isfinite().all(1)).nonzero()[0])
        raise ValueError(f"Expected finite logits, but the module gives NaN or infinity, first for node {node}.")
    if logits.shape[1] > 1 and first_bad_row(logits, SUM_TOLERANCE[logits.dtype]) is None:
        raise ValueError(
            "Expected the module to give logits, but its rows are probabilities, which softmax would flatten. "
            "Pass them as they are: ew.wrap(probabilities)."
        )
