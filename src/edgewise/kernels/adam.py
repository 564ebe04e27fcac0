"""Adam with weight decay (Kingma and Ba 2015).

A step is one call of the operation behind ``torch.optim.Adam(fused=True)``. That class imports torch's compiler on
first use, which takes longer than training a GCN on Cora.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Adam:
    """Options of Adam. Weight decay is added to the gradient, as in torch.optim.Adam."""

    learning_rate: float
    weight_decay: float

    def optimizer(self, initial: Weights) -> "Optimizer":
        """Return an optimizer of copies of the initial weights."""
        return Optimizer(self, initial)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A copy of the state of an `Optimizer`."""

    copies: list[Tensor]


class Optimizer:
    """Weights, which every step updates in place, and the running means of their gradients and squared gradients."""

    def __init__(self, adam: Adam, initial: Weights):
        copies = {
            name: weight.detach().clone(memory_format=torch.contiguous_format) for name, weight in initial.items()
        }
        self._adam, self._weights = adam, list(copies.values())
        self.weights = {name: copied.detach().requires_grad_() for name, copied in copies.items()}  # the same memory
        self._means, self._squares = ([torch.zeros_like(weight) for weight in self._weights] for _ in range(2))
        self._num_steps = torch.zeros((), device=self._weights[0].device)

    def step(self, loss: Tensor) -> None:
        """Update all weights with the gradient of a loss."""
        grads = [grad.contiguous() for grad in torch.autograd.grad(loss, list(self.weights.values()))]
        self._num_steps += 1
        torch._fused_adam_(
            self._weights,
            grads,
            self._means,
            self._squares,
            [],
            [self._num_steps] * len(grads),
            lr=self._adam.learning_rate,
            beta1=BETA1,
            beta2=BETA2,
            weight_decay=self._adam.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def snapshot(self) -> Snapshot:
        """Copy the weights and running means."""
        return Snapshot([part.clone() for part in self._parts()])

    def restore(self, snapshot: Snapshot) -> None:
        """Reset the weights and running means to a snapshot."""
        for part, copied in zip(self._parts(), snapshot.copies, strict=True):
            part.copy_(copied)

    def _parts(self) -> list[Tensor]:
        return [*self._weights, *self._means, *self._squares, self._num_steps]
