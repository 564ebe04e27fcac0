"""A step of Adam in a compiled loop."""

from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.compiled import vectorised
from edgewise.models.adam import EPSILON, FORGET_MEAN, FORGET_SQUARE

Array = NDArray[Any]

if (FORGET_MEAN, FORGET_SQUARE, EPSILON) != (0.1, 0.001, 1e-8):  # the loop spells them out
    raise ImportError("Expected the numbers of compiled_adam.py to be those of adam.py. Change both.")


def step_compiled(
    weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, rate: float, root: float, decay: float
) -> None:
    """Move a parameter and its running means, in place."""
    flat, slope, first, second = (part.reshape(-1).numpy() for part in (weight, grad, mean, square))
    number = flat.dtype.type
    _step(flat, slope, first, second, number(rate), number(root), number(decay))


@vectorised
def _step(weight: Array, grad: Array, mean: Array, square: Array, rate: float, root: float, decay: float) -> None:
    number = weight.dtype.type
    forget_mean, forget_square, epsilon = number(0.1), number(0.001), number(1e-8)
    for k in range(len(weight)):
        g = grad[k] + decay * weight[k]
        mean[k] += forget_mean * (g - mean[k])
        square[k] += forget_square * (g * g - square[k])
        weight[k] -= rate * mean[k] / (square[k] ** number(0.5) / root + epsilon)
