"""Sets of nodes beyond edges: wedges, triangles, and what else is given as a (k, M) index."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.data.edges import EdgeChoice
from edgewise.metrics.binning import Binning
from edgewise.metrics.collect import ScoringTask, one_table, slices
from edgewise.metrics.elements import CHUNK_ELEMENTS, joint_elements, product_elements
from edgewise.metrics.sums import Elements


def node_set_table(
    task: ScoringTask, sets: Int[Tensor, "set sets"], choice: EdgeChoice, binning: Binning
) -> tuple[Int[Tensor, "rows 4"], Float[Tensor, " limits"]]:
    """Sum sets of nodes: right if all nodes are, confidence = the largest entry of the joint."""
    chosen = sets[:, _scored(task, sets, choice)]
    return one_table(_chunks(task, chosen), binning, task.records.device)


def _scored(task: ScoringTask, sets: Int[Tensor, "set sets"], choice: EdgeChoice) -> Bool[Tensor, " sets"]:
    """Choose sets as edges are chosen: by how many of their nodes are in the mask; all labels must be known."""
    inside, known = task.given.mask[sets], (task.given.y >= 0)[sets].all(0)
    if choice == "both":
        return known & inside.all(0)
    return known & inside.any(0) if choice == "any" else known


def _chunks(task: ScoringTask, sets: Int[Tensor, "set sets"]) -> Iterator[Elements]:
    joints, num_classes = task.given.joints, task.given.probs.shape[1]
    per_set = 5 * len(sets) if joints is None else num_classes ** len(sets)
    for part in slices(sets.shape[1], CHUNK_ELEMENTS // per_set):
        ends = [task.records[node] for node in sets[:, part]]
        if joints is None:
            yield product_elements(*ends)
        else:
            positions = torch.arange(part.start, part.stop, device=sets.device)
            yield joint_elements(joints(sets[:, part], positions), *ends)
