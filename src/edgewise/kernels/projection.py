"""ReLU, dropout and a product with a narrow matrix in one pass over the rows."""

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
    """Compute dropout(relu(x + bias)) @ weight."""
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
    """Compute `relu_dropout_matmul` with tensors."""
    return apply_dropout(torch.relu(x + bias), dropout, draw) @ weight


class _ReluDropoutMatmul(torch.autograd.Function):
    """The gradient needs no mask: an entry passes ReLU and dropout if and only if its result is positive."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor, weight: Tensor, dropout: Dropout, draw: int, threads: Threads
    ) -> Tensor:
        weight_t = weight.detach().T.contiguous()
        active, out = _forward(x.detach().contiguous(), bias.detach(), weight_t, dropout, draw, threads)
        ctx.save_for_backward(active, weight_t)
        ctx.scale, ctx.threads = dropout.scale, threads
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        active, weight_t = ctx.saved_tensors
        x_grad, bias_grad, weight_t_grad = _backward(active, weight_t, grads[0].contiguous(), ctx.scale, ctx.threads)
        return x_grad, bias_grad, weight_t_grad.T, None, None, None


_relu_dropout_matmul: Callable[..., Tensor] = _ReluDropoutMatmul.apply


Array = NDArray[Any]

ROWS_PER_BLOCK = 1024  # the gradients of weight and bias are summed per block, then over blocks


def _forward(
    x: Tensor, bias: Tensor, weight_t: Tensor, dropout: Dropout, draw: int, threads: Threads
) -> tuple[Tensor, Tensor]:
    """Return the result of ReLU and dropout, and its product with the weight."""
    active, out = x.new_empty(x.shape), x.new_empty(len(x), len(weight_t))
    keep = dropout.keep(x.numel(), draw, x.device).view(x.shape).numpy() if dropout.rate else None
    x_rows, bias_values, weight_rows, active_rows, out_rows = (
        part.numpy() for part in (x, bias, weight_t, active, out)
    )
    scale = x_rows.dtype.type(dropout.scale)

    def run(lo: int, hi: int) -> None:
        if keep is None:
            _relu(lo, hi, x_rows, bias_values, active_rows)
        else:
            _relu_dropout(lo, hi, x_rows, bias_values, keep, scale, active_rows)
        _multiply(lo, hi, active_rows, weight_rows, out_rows)

    threads.run(run, len(x), x.numel() * len(weight_t))
    return active, out


def _backward(
    active: Tensor, weight_t: Tensor, grad: Tensor, scale: float, threads: Threads
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, bias and the transposed weight."""
    x_grad, num_blocks = active.new_empty(active.shape), max(1, -(-len(active) // ROWS_PER_BLOCK))
    bias_grad, weight_t_grad = (
        active.new_zeros(num_blocks, active.shape[1]),
        active.new_zeros(num_blocks, *weight_t.shape),
    )
    arrays = [part.numpy() for part in (active, weight_t, grad, x_grad, bias_grad, weight_t_grad)]
    factor = arrays[0].dtype.type(scale)
    threads.run(lambda lo, hi: _gradient(lo, hi, factor, *arrays), num_blocks, active.numel() * len(weight_t))
    return x_grad, bias_grad.sum(0), weight_t_grad.sum(0)


@vectorized
def _relu(lo: int, hi: int, x: Array, bias: Array, active: Array) -> None:
    zero = x.dtype.type(0)
    for i in range(lo, hi):
        for k in range(x.shape[1]):
            active[i, k] = max(x[i, k] + bias[k], zero)


@vectorized
def _relu_dropout(lo: int, hi: int, x: Array, bias: Array, keep: Array, scale: float, active: Array) -> None:
    zero = x.dtype.type(0)
    for i in range(lo, hi):
        for k in range(x.shape[1]):
            factor = scale if keep[i, k] > 0 else zero  # no branch
            active[i, k] = max(x[i, k] + bias[k], zero) * factor


@vectorized_sums
def _multiply(lo: int, hi: int, active: Array, weight_t: Array, out: Array) -> None:
    for i in range(lo, hi):
        for c in range(len(weight_t)):
            total = active.dtype.type(0)
            for k in range(active.shape[1]):
                total += active[i, k] * weight_t[c, k]
            out[i, c] = total


@vectorized
def _gradient(
    lo: int,
    hi: int,
    scale: float,
    active: Array,
    weight_t: Array,
    grad: Array,
    x_grad: Array,
    bias_grad: Array,
    weight_t_grad: Array,
) -> None:
    """Compute gradients for blocks of rows."""
    zero, width = active.dtype.type(0), active.shape[1]
    for block in range(lo, hi):
        for i in range(block * ROWS_PER_BLOCK, min(len(active), (block + 1) * ROWS_PER_BLOCK)):
            for k in range(width):
                x_grad[i, k] = zero
            for c in range(len(weight_t)):
                g = grad[i, c]
                for k in range(width):
                    x_grad[i, k] += g * weight_t[c, k]
                for k in range(width):
                    weight_t_grad[block, c, k] += g * active[i, k]
            for k in range(width):
                product = x_grad[i, k] * (scale if active[i, k] > 0 else zero)
                x_grad[i, k] = product
                bias_grad[block, k] += product
