"""The lowest point of a smooth function of a few parameters."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def minimised(loss: Callable[[Float[Tensor, " parameters"]], Tensor], start: list[float]) -> Float[Tensor, " found"]:
    """Minimise a smooth function of a few parameters, by BFGS in float64."""
    from scipy.optimize import minimize

    def value_and_gradient(at: Any) -> tuple[float, Any]:
        parameters = torch.from_numpy(at.copy()).requires_grad_()
        value = loss(parameters)
        (gradient,) = torch.autograd.grad(value, parameters)
        return float(value.detach()), gradient.numpy()

    found = minimize(value_and_gradient, np.asarray(start, dtype=np.float64), jac=True, method="L-BFGS-B", tol=1e-12)
    return torch.from_numpy(found.x)
