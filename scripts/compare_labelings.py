"""Compare the most probable label of each node with the most likely labeling, for models with an MRF on Cora.

python scripts/compare_labelings.py

Prints a table for docs/beliefs.md: means over five splits, in percent of the test nodes and of the edges between them.
It takes about two minutes.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric.data import Data

import edgewise as ew
from edgewise.models.epfgnn import FittedEPFGNN
from edgewise.models.joint_gcn import FittedJointGCN

MODELS: dict[str, ew.EPFGNN | ew.JointGCN] = {
    "`EPFGNN()`": ew.EPFGNN(),
    '`EPFGNN(schedule="published")`': ew.EPFGNN(schedule="published"),
    "`JointGCN()`": ew.JointGCN(),
}
COLUMNS = ("Model", "Nodes changed", "Edges changed", "Node accuracy", "Edge accuracy", "Edge ECE", "Gain of log P")


class Scores(NamedTuple):
    """Scores of a labeling. ``changed`` are fractions of nodes and edges with a label that is not the most probable."""

    nodes_changed: float
    edges_changed: float
    node_accuracy: float
    edge_accuracy: float
    edge_ece: float
    log_p: float


def compare(fitted: FittedEPFGNN | FittedJointGCN, data: Data, split: ew.Split) -> tuple[Scores, Scores]:
    """Score the most probable label of each node, and the most likely labeling."""
    posterior, mrf = fitted.posterior(), fitted.mrf()
    by_node, (most_likely, _) = posterior.node.argmax(-1), ew.map_labels(mrf)
    ends = mrf.edge_index[:, split.test[mrf.edge_index].all(0)]

    def score(labels: Int[Tensor, " nodes"]) -> Scores:
        ev = ew.evaluate(posterior, data, mask=split.test, predictions=labels)
        is_changed = labels != by_node
        nodes, edges = (float(part.double().mean()) for part in (is_changed[split.test], is_changed[ends].any(0)))
        ece = ev.edgewise.ece
        return Scores(nodes, edges, ev.nodewise.accuracy, ev.edgewise.accuracy, ece, log_potential(mrf, labels))

    return score(by_node), score(most_likely)


def log_potential(mrf: ew.PairwiseMRF, labels: Int[Tensor, " nodes"]) -> float:
    """Return log P(labels) up to the constant log Z."""
    i, j = labels[mrf.edge_index]
    couplings = mrf.coupling(slice(None)).expand(mrf.num_edges, -1, -1)[torch.arange(mrf.num_edges), i, j]
    return float(mrf.unary.gather(1, labels[:, None]).double().sum() + couplings.double().sum())


def row(name: str, results: Sequence[tuple[Scores, Scores]]) -> list[str]:
    """Format the means over splits, and the range of the fraction of changed nodes."""
    before, after = (Scores(*map(fmean, zip(*scores, strict=True))) for scores in zip(*results, strict=True))
    changed = [100 * most_likely.nodes_changed for _, most_likely in results]
    arrows = (
        f"{100 * getattr(before, field):.1f} → {100 * getattr(after, field):.1f}"
        for field in ("node_accuracy", "edge_accuracy", "edge_ece")
    )
    nodes = f"{fmean(changed):.2f} ({min(changed):.2f} to {max(changed):.2f})"
    return [name, nodes, f"{100 * after.edges_changed:.2f}", *arrows, f"{after.log_p - before.log_p:,.4g}"]


def table() -> str:
    """Fit all models to the first fold of each split, and return the table in Markdown."""
    data = ew.load_dataset("cora")
    splits = [split for split in ew.make_splits(data.y) if split.fold == 0]
    rows = [
        row(name, [compare(model.fit(data, split, seed=0), data, split) for split in splits])
        for name, model in MODELS.items()
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows))


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    print(table())
