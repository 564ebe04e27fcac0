"""Folds of labelled nodes that hold neighbours together, so that whole edges can be held out."""

import torch
from jaxtyping import Int
from torch import Tensor

from edgewise.data.pairs import connected_parts
from edgewise.models.task import Task


def held_out_folds(task: Task, num_folds: int, draws: torch.Generator) -> Int[Tensor, " train"]:
    """Deal training nodes to folds, those that edges connect to the same, and each class as evenly as that allows.

    A part larger than a fold is dealt node by node: with so many edges, those that stay within a fold are enough.
    """
    labels = task.labels[task.train].cpu()
    parts = _parts(task, largest=-(-len(labels) // num_folds))
    counts = torch.zeros(int(parts.max()) + 1, task.num_classes, dtype=torch.long)
    counts.index_put_((parts, labels), torch.ones_like(labels), accumulate=True)
    order = torch.randperm(len(counts), generator=draws)
    order = order[counts.sum(1)[order].argsort(descending=True, stable=True)]
    dealt, fold = torch.zeros(num_folds, task.num_classes, dtype=torch.long), torch.empty(len(counts), dtype=torch.long)
    for part in order.tolist():
        # Where there are least of its classes; of equals, where there are least at all.
        crowd = (dealt @ counts[part]) * (len(labels) + 1) + dealt.sum(1)
        fold[part] = crowd.argmin()
        dealt[fold[part]] += counts[part]
    return fold[parts].to(task.device)


def _parts(task: Task, largest: int) -> Int[Tensor, " train"]:
    """Tell which training nodes are connected through each other; of parts that are too large each node is one."""
    trains = torch.zeros(task.num_nodes, dtype=torch.bool, device=task.device)
    trains[task.train] = True
    among = task.edge_index[:, trains[task.edge_index].all(0)]
    parts = connected_parts(among, task.num_nodes)[task.train].cpu()
    alone = task.num_nodes + torch.arange(len(parts))
    parts = torch.where(torch.bincount(parts)[parts] > largest, alone, parts)
    numbers: Tensor = parts.unique(return_inverse=True)[1]
    return numbers
