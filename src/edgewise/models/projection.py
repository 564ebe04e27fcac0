"""From hidden units to classes: ReLU, dropout and a narrow matrix product in one pass over the rows."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.data.compiled import Crew, runs_compiled
from edgewise.models.dropout import Dropout, dropped


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
        from edgewise.models.compiled_projection import project

        across = weight.detach().T.contiguous()
        raised, out = project(x.detach().contiguous(), bias.detach(), across, dropout, draw, crew)
        ctx.save_for_backward(raised, across)
        ctx.scale, ctx.crew = dropout.scale, crew
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        from edgewise.models.compiled_projection import project_gradient

        raised, across = ctx.saved_tensors
        x_grad, bias_grad, across_grad = project_gradient(raised, across, grads[0].contiguous(), ctx.scale, ctx.crew)
        return x_grad, bias_grad, across_grad.T, None, None, None


_raised_product: Callable[..., Tensor] = _RaisedProduct.apply
