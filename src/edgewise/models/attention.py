"""Graph attention: each node listens to its neighbours with weights of its own, in several heads.

s_ij = leaky_relu(a_src · P_j + a_dst · P_i), α_ij = softmax over j, out_i = Σ_j α_ij P_j, where P are the projected
features and j runs over the neighbours of i and i itself (Veličković et al. 2018).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import leaky_relu

from edgewise.data.compiled import Crew, runs_compiled
from edgewise.models.sparse import Kept
from edgewise.models.task import Nodes, Task

SLOPE = 0.2


@dataclass(frozen=True, eq=False)
class Listeners:
    """Who listens to whom: the neighbours of each listener, one after the other."""

    first: Int[Tensor, " listeners_and_one"]
    speaker: Int[Tensor, " pairs"]
    itself: Int[Tensor, " listeners"]  # the listener's own place among the speakers
    num_speakers: int
    crew: Crew

    @classmethod
    def of(cls, task: Task, listeners: Nodes, speakers: Nodes) -> "Listeners":
        """Give the neighbours of listeners numbers: their places among the speakers, which are in order."""
        heard = task.neighbours[listeners]
        first, speaker, itself = (
            torch.from_numpy(part.astype(np.int64)).to(task.device)
            for part in (heard.indptr, np.searchsorted(speakers, heard.indices), np.searchsorted(speakers, listeners))
        )
        return cls(first, speaker, itself, len(speakers), task.crew)

    @cached_property
    def by_speaker(self) -> tuple[Int[Tensor, " speakers_and_one"], Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
        """Where each speaker's pairs begin, which pairs they are, and who listens in them."""
        pair = self.speaker.argsort(stable=True)
        listener = torch.repeat_interleave(self.first.diff())[pair]
        counts = torch.bincount(self.speaker, minlength=self.num_speakers)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), pair, listener

    @property
    def num_pairs(self) -> int:
        """How many pairs of listener and speaker there are."""
        return len(self.speaker)


def attended(
    projected: Float[Tensor, "speakers width"],
    att_src: Float[Tensor, "heads units"],
    att_dst: Float[Tensor, "heads units"],
    listeners: Listeners,
    kept: Kept | None = None,
) -> Float[Tensor, "listeners width"]:
    """Let listeners average what speakers project, head by head; ``kept`` drops some of the weights (pairs · heads)."""
    if not runs_compiled(projected.device):
        return attended_by_tensors(projected, att_src, att_dst, listeners, kept)
    return _attended(projected, att_src, att_dst, listeners, kept)


def attended_by_tensors(
    projected: Float[Tensor, "speakers width"],
    att_src: Float[Tensor, "heads units"],
    att_dst: Float[Tensor, "heads units"],
    listeners: Listeners,
    kept: Kept | None = None,
) -> Float[Tensor, "listeners width"]:
    """Do with tensors what the compiled loops do."""
    num = len(listeners.itself)
    heads = projected.view(len(projected), *att_src.shape)
    listener = torch.repeat_interleave(torch.arange(num, device=projected.device), listeners.first.diff())
    source, target = (heads * att_src).sum(-1), (heads * att_dst).sum(-1)[listeners.itself]
    score = leaky_relu(source[listeners.speaker] + target[listener], SLOPE)
    top = score.detach().new_full((num, len(att_src)), -torch.inf)
    top = top.scatter_reduce(0, listener.unsqueeze(1).expand_as(score), score.detach(), "amax")
    raised = (score - top[listener]).exp()
    alpha = raised / raised.new_zeros(num, len(att_src)).index_add(0, listener, raised)[listener]
    if kept is not None:
        alpha = alpha * (kept.entries.view(alpha.shape).to(alpha.dtype) * kept.scale)
    told = alpha.unsqueeze(-1) * heads[listeners.speaker]
    return heads.new_zeros(num, *att_src.shape).index_add(0, listener, told).flatten(1)


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, att_src: Tensor, att_dst: Tensor, listeners: Listeners, kept: Kept | None
    ) -> Tensor:
        from edgewise.models.compiled_attention import attend

        own = projected.detach().contiguous()
        out, ctx.saved = attend(own, att_src.detach(), att_dst.detach(), listeners, kept)
        ctx.listeners = listeners
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        from edgewise.models.compiled_attention import attend_gradient

        return (*attend_gradient(grads[0].contiguous(), ctx.saved, ctx.listeners), None, None)


_attended: Callable[..., Tensor] = _Attended.apply
