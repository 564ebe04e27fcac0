"""Show why some runs of GMNN have a low accuracy: the pretraining of q kept weights of an early epoch.

python scripts/gmnn_pretraining.py docs/reproduction/own/runs.parquet
python scripts/gmnn_pretraining.py docs/reproduction/runs.parquet --data-root DIR --splits-dir DIR

Repeats the pretraining of all stored GMNN runs on Citeseer, by default on the bundled data. GMNN draws labels from the
pretrained q and trains p on them. Prints, for groups of runs by the epoch that was kept, the mean probability that a
drawn label of a test node is correct, and the accuracies of q and of the stored run on the test nodes.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import edgewise as ew
from edgewise.models.gcn import backbone
from edgewise.paper.results import Results
from edgewise.sweep.runs import Run
from edgewise.sweep.sources import GraphWithSplits, Sources

DATASET, NUM_SPLITS = "citeseer", 5
BOUNDS = (0, 60, 100, 150, 200)  # of groups of kept epochs


class Pretraining(NamedTuple):
    """The kept epoch of a pretraining, and what it leads to, on test nodes."""

    kept: int
    drawn_correct: float  # mean probability of the true label
    q_accuracy: float
    accuracy: float  # of the stored run, with averaged logits


def pretrain(run: Run, graph: GraphWithSplits) -> Pretraining:
    """Repeat the pretraining of a stored run."""
    gmnn, split = ew.GMNN(), graph.splits[run.key.split, run.key.fold]
    q = backbone(gmnn, gmnn.pretrain_epochs, gmnn.pretrain_patience).fit(graph.data, split, seed=run.seed)
    probs, labels = q.logits[split.test].softmax(-1), graph.data.y[split.test]
    drawn_correct = probs.gather(1, labels.unsqueeze(1)).mean()
    q_accuracy = (probs.argmax(1) == labels).double().mean()
    stored = run.predictions["averaged_logits"]["nodewise"].accuracy
    return Pretraining(q.history.kept, float(drawn_correct), float(q_accuracy), stored)


def as_table(found: list[Pretraining]) -> str:
    """Format the means of each group of kept epochs as a Markdown table."""
    lines = [
        "| kept epoch | runs | drawn labels correct | accuracy of q | accuracy of GMNN | lowest |",
        "|---|---|---|---|---|---|",
    ]
    for low, high in pairwise(BOUNDS):
        group = [each for each in found if low < each.kept <= high]
        if group:
            means = np.mean([each[1:] for each in group], axis=0)
            lowest = min(each.accuracy for each in group)
            cells = " | ".join(f"{100 * mean:.1f}" for mean in (*means, lowest))
            lines.append(f"| {low + 1} to {high} | {len(group)} | {cells} |")
    return "\n".join(lines)


def summary(runs: Sequence[Run], found: Sequence[Pretraining]) -> list[str]:
    """Return sentences on the first group of kept epochs, and on all runs."""
    folds = Counter(
        (run.key.split, run.key.fold) for run, one in zip(runs, found, strict=True) if one.kept <= BOUNDS[1]
    )
    accuracies = [100 * one.accuracy for one in found]
    others = [100 * one.accuracy for one in found if one.kept > BOUNDS[1]]
    correlation = np.corrcoef([one.drawn_correct for one in found], accuracies)[0, 1]
    return [
        f"The {folds.total()} runs that kept one of the first {BOUNDS[1]} epochs are on {len(folds)} of "
        f"{len({(run.key.split, run.key.fold) for run in runs})} folds, up to {max(folds.values())} on one.",
        f"The accuracy is {np.mean(accuracies):.2f} ± {np.std(accuracies):.2f}, and without them "
        f"{np.mean(others):.2f} ± {np.std(others):.2f}.",
        f"Over all runs, it has a correlation of {correlation:.2f} with the probability that a drawn label is correct.",
    ]


def main() -> None:
    """Print the table and the summary."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="stored runs: a folder of results or a Parquet file")
    parser.add_argument("--data-root", metavar="DIR")
    parser.add_argument("--splits-dir", metavar="DIR")
    options = parser.parse_args()
    torch.set_num_threads(1)
    graph = Sources(options.data_root, options.splits_dir).load(DATASET, NUM_SPLITS)
    results = Results.read(options.runs)
    stored = {(task.dataset, task.split): task.fingerprint for task in results.tasks}
    for row in graph.rows():
        if stored.get((row.dataset, row.split)) != row.fingerprint:
            raise SystemExit(
                f"Expected split {row.split} of {DATASET} as in {options.runs}, but it differs. Pass the --data-root "
                "and --splits-dir of these runs."
            )
    runs = results.of(DATASET, "gmnn")
    found = [pretrain(run, graph) for run in runs]
    print(as_table(found), "", *summary(runs, found), sep="\n")


if __name__ == "__main__":
    main()
