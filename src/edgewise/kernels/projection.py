"""From hidden units to classes: ReLU, dropout and a narrow matrix product in one pass over the rows."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels.dispatch import Threads, choose_implementation, vectorized, vectorized_sums
from edgewise.kernels.dropout import Dropout, apply_dropout


def relu_dropout_matmul(
    x: Float[Tensor, "rows hidden"],
    bias: Float[Tensor, " hidden"],
    weight: Float[Tensor, "hidden classes"],
    dropout: Dropout,
    draw: int,
    threads: Threads,
) -> Float[Tensor, "rows classes"]:
    """max(0, x + bias), with some entries dropped, times the weight."""
    operation = choose_implementation(x.device, _relu_dropout_matmul, relu_dropout_matmul_tensors)
    return operation(x, bias, weight, dropout, draw, threads)


def relu_dropout_matmul_tensors(
    x: Float[Tensor, "rows hidden"],
    bias: Float[Tensor, " hidden"],
    weight: Float[Tensor, "hidden classes"],
    dropout: Dropout,
    draw: int,
    threads: Threads,
) -> Float[Tensor, "rows classes"]:
    """Do with tensors what the compiled loops do."""
    return apply_dropout(torch.relu(x + bias), dropout, draw) @ weight


class _ReluDropoutMatmul(torch.autograd.Function):
    """What comes out of ReLU and dropout positive was neither cut nor dropped: the gradient needs no mask."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor, weight: Tensor, dropout: Dropout, draw: int, threads: Threads
    ) -> Tensor:
        across = weight.detach().T.contiguous()
        active, out = _forward(x.detach().contiguous(), bias.detach(), across, dropout, draw, threads)
        ctx.save_for_backward(active, across)
        ctx.scale, ctx.threads = dropout.scale, threads
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        active, across = ctx.saved_tensors
        x_grad, bias_grad, across_grad = _backward(active, across, grads[0].contiguous(), ctx.scale, ctx.threads)
        return x_grad, bias_grad, across_grad.T, None, None, None


_relu_dropout_matmul: Callable[..., Tensor] = _ReluDropoutMatmul.apply


Array = NDArray[Any]

ROWS_PER_BLOCK = 1024  # whose gradients are added up first


def _forward(
    x: Tensor, bias: Tensor, across: Tensor, dropout: Dropout, draw: int, threads: Threads
) -> tuple[Tensor, Tensor]:
    """Return what ReLU and dropout leave, and its product."""
    active, out = x.new_empty(x.shape), x.new_empty(len(x), len(across))
    keep = dropout.keep(x.numel(), draw, x.device).view(x.shape).numpy() if dropout.rate else None
    left, offset, right, middle, result = (part.numpy() for part in (x, bias, across, active, out))
    scale = left.dtype.type(dropout.scale)

    def run(lo: int, hi: int) -> None:
        if keep is None:
            _relu(lo, hi, left, offset, middle)
        else:
            _relu_and_drop(lo, hi, left, offset, keep, scale, middle)
        _multiply(lo, hi, middle, right, result)

    threads.run(run, len(x), x.numel() * len(across))
    return active, out


def _backward(
    active: Tensor, across: Tensor, grad: Tensor, scale: float, threads: Threads
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, bias and the weight, one row per class."""
    x_grad, num_blocks = active.new_empty(active.shape), max(1, -(-len(active) // ROWS_PER_BLOCK))
    bias_grad, across_grad = active.new_zeros(num_blocks, active.shape[1]), active.new_zeros(num_blocks, *across.shape)
    arrays = [part.numpy() for part in (active, across, grad, x_grad, bias_grad, across_grad)]
    factor = arrays[0].dtype.type(scale)
    threads.run(lambda lo, hi: _gradient(lo, hi, factor, *arrays), num_blocks, active.numel() * len(across))
    return x_grad, bias_grad.sum(0), across_grad.sum(0)


@vectorized
def _relu(lo: int, hi: int, x: Array, bias: Array, active: Array) -> None:
    zero = x.dtype.type(0)
    for i in range(lo, hi):
        for k in range(x.shape[1]):
            active[i, k] = max(x[i, k] + bias[k], zero)


@vectorized
def _relu_and_drop(lo: int, hi: int, x: Array, bias: Array, keep: Array, scale: float, active: Array) -> None:
    zero = x.dtype.type(0)
    for i in range(lo, hi):
        for k in range(x.shape[1]):
            factor = scale if keep[i, k] > 0 else zero  # chosen without a branch
            active[i, k] = max(x[i, k] + bias[k], zero) * factor


@vectorized_sums
def _multiply(lo: int, hi: int, active: Array, across: Array, out: Array) -> None:
    for i in range(lo, hi):
        for c in range(len(across)):
            total = active.dtype.type(0)
            for k in range(active.shape[1]):
                total += active[i, k] * across[c, k]
            out[i, c] = total


@vectorized
def _gradient(
    lo: int,
    hi: int,
    scale: float,
    active: Array,
    across: Array,
    grad: Array,
    x_grad: Array,
    bias_grad: Array,
    across_grad: Array,
) -> None:
    """Go through blocks of rows; what is positive lets the gradient through."""
    zero, width = active.dtype.type(0), active.shape[1]
    for block in range(lo, hi):
        for i in range(block * ROWS_PER_BLOCK, min(len(active), (block + 1) * ROWS_PER_BLOCK)):
            for k in range(width):
                x_grad[i, k] = zero
            for c in range(len(across)):
                g = grad[i, c]
                for k in range(width):
                    x_grad[i, k] += g * across[c, k]
                for k in range(width):
                    across_grad[block, c, k] += g * active[i, k]
            for k in range(width):
                change = x_grad[i, k] * (scale if active[i, k] > 0 else zero)
                x_grad[i, k] = change
                bias_grad[block, k] += change
