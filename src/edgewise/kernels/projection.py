"""From hidden units to classes: ReLU, dropout and a narrow matrix product in one pass over the rows."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels.dispatch import Crew, runs_compiled, vectorised, vectorised_sums
from edgewise.kernels.dropout import Dropout, dropped


def raised_product(
    x: Float[Tensor, "rows hidden"],
    bias: Float[Tensor, " hidden"],
    weight: Float[Tensor, "hidden classes"],
    dropout: Dropout,
    draw: int,
    crew: Crew,
) -> Float[Tensor, "rows classes"]:
    """max(0, x + bias), with some entries dropped, times the weight."""
    if runs_compiled(x.device):
        return _raised_product(x, bias, weight, dropout, draw, crew)
    return raised_product_by_tensors(x, bias, weight, dropout, draw)


def raised_product_by_tensors(
    x: Float[Tensor, "rows hidden"],
    bias: Float[Tensor, " hidden"],
    weight: Float[Tensor, "hidden classes"],
    dropout: Dropout,
    draw: int,
) -> Float[Tensor, "rows classes"]:
    """Do with tensors what the compiled loops do."""
    return dropped(torch.relu(x + bias), dropout, draw) @ weight


class _RaisedProduct(torch.autograd.Function):
    """What comes out of ReLU and dropout positive was neither cut nor dropped: the gradient needs no mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, weight: Tensor, dropout: Dropout, draw: int, crew: Crew) -> Tensor:

        across = weight.detach().T.contiguous()
        raised, out = project(x.detach().contiguous(), bias.detach(), across, dropout, draw, crew)
        ctx.save_for_backward(raised, across)
        ctx.scale, ctx.crew = dropout.scale, crew
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:

        raised, across = ctx.saved_tensors
        x_grad, bias_grad, across_grad = project_gradient(raised, across, grads[0].contiguous(), ctx.scale, ctx.crew)
        return x_grad, bias_grad, across_grad.T, None, None, None


_raised_product: Callable[..., Tensor] = _RaisedProduct.apply


Array = NDArray[Any]

BLOCK = 1024


def project(x: Tensor, bias: Tensor, across: Tensor, dropout: Dropout, draw: int, crew: Crew) -> tuple[Tensor, Tensor]:
    """Give what ReLU and dropout leave, and its product."""
    raised, out = x.new_empty(x.shape), x.new_empty(len(x), len(across))
    keep = dropout.keep(x.numel(), draw, x.device).view(x.shape).numpy() if dropout.rate else None
    left, offset, right, middle, result = (part.numpy() for part in (x, bias, across, raised, out))
    scale = left.dtype.type(dropout.scale)

    def run(lo: int, hi: int) -> None:
        if keep is None:
            _raise(lo, hi, left, offset, middle)
        else:
            _raise_and_drop(lo, hi, left, offset, keep, scale, middle)
        _multiply(lo, hi, middle, right, result)

    crew.share(run, len(x), x.numel() * len(across))
    return raised, out


def project_gradient(
    raised: Tensor, across: Tensor, grad: Tensor, scale: float, crew: Crew
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of x, bias and the weight, a class a row."""
    x_grad, num_blocks = raised.new_empty(raised.shape), max(1, -(-len(raised) // BLOCK))
    bias_grad, across_grad = raised.new_zeros(num_blocks, raised.shape[1]), raised.new_zeros(num_blocks, *across.shape)
    arrays = [part.numpy() for part in (raised, across, grad, x_grad, bias_grad, across_grad)]
    factor = arrays[0].dtype.type(scale)
    crew.share(lambda lo, hi: _gradient(lo, hi, factor, *arrays), num_blocks, raised.numel() * len(across))
    return x_grad, bias_grad.sum(0), across_grad.sum(0)


@vectorised
def _raise(lo: int, hi: int, x: Array, bias: Array, raised: Array) -> None:
    zero = x.dtype.type(0)
    for i in range(lo, hi):
        for k in range(x.shape[1]):
            raised[i, k] = max(x[i, k] + bias[k], zero)


@vectorised
def _raise_and_drop(lo: int, hi: int, x: Array, bias: Array, keep: Array, scale: float, raised: Array) -> None:
    zero = x.dtype.type(0)
    for i in range(lo, hi):
        for k in range(x.shape[1]):
            factor = scale if keep[i, k] > 0 else zero  # chosen without a branch
            raised[i, k] = max(x[i, k] + bias[k], zero) * factor


@vectorised_sums
def _multiply(lo: int, hi: int, raised: Array, across: Array, out: Array) -> None:
    for i in range(lo, hi):
        for c in range(len(across)):
            total = raised.dtype.type(0)
            for k in range(raised.shape[1]):
                total += raised[i, k] * across[c, k]
            out[i, c] = total


@vectorised
def _gradient(
    lo: int,
    hi: int,
    scale: float,
    raised: Array,
    across: Array,
    grad: Array,
    x_grad: Array,
    bias_grad: Array,
    across_grad: Array,
) -> None:
    """Go through blocks of rows; what is positive lets the gradient through."""
    zero, width = raised.dtype.type(0), raised.shape[1]
    for block in range(lo, hi):
        for i in range(block * BLOCK, min(len(raised), (block + 1) * BLOCK)):
            for k in range(width):
                x_grad[i, k] = zero
            for c in range(len(across)):
                g = grad[i, c]
                for k in range(width):
                    x_grad[i, k] += g * across[c, k]
                for k in range(width):
                    across_grad[block, c, k] += g * raised[i, k]
            for k in range(width):
                change = x_grad[i, k] * (scale if raised[i, k] > 0 else zero)
                x_grad[i, k] = change
                bias_grad[block, k] += change
