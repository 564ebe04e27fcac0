"""Compare the coverage and the size of conformal sets of pairs of several models.

python scripts/conformal_sizes.py cora citeseer
python scripts/conformal_sizes.py pubmed photo physics --data-root DIR --runs sizes.csv

Means over 15 runs: 5 splits of 3 folds, of which half of the test nodes are calibration nodes. "Product" is the product
of two node sets whose threshold is chosen on the same pairs, so that it has the same guarantee.

With --runs, finished runs are kept in a file, and are not repeated. Each process needs a file of its own.
"""

import argparse
import csv
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import edgewise as ew
from edgewise.data.pyg_files import PLANETOID_NAMES
from edgewise.decisions.conformal_scores import conformal_threshold
from edgewise.files.output import replace_file
from edgewise.paper.formatting import display_name
from edgewise.posterior import Belief, as_posterior

ALPHA, NUM_RUNS = 0.1, 15
HEAD = ("Dataset", "Belief", "nodes", "size", "pairs", "size", "product", "size", "other edges", "size")


BELIEFS: dict[str, Callable[[Any, ew.Split, Any], Belief]] = {
    "GCN": lambda data, split, gcn: gcn,
    "GCN, temperature": lambda data, split, gcn: ew.TemperatureScaling().fit(gcn, data, split),
    "GCN, structured": lambda data, split, gcn: ew.StructuredCalibrator().fit(gcn, data, split),
    "JointGCN": lambda data, split, gcn: ew.JointGCN().fit(data, split, seed=split.fold),
}
Runs = dict[tuple[str, str, int, int], list[float]]  # (dataset, belief, split, fold): scores


def scores(belief: Belief, data: Any, split: ew.Split) -> list[float]:
    """Return coverage and mean size of sets of nodes, pairs of the matching, products, and other edges."""
    assert split.calibration is not None
    used = split.train | split.val
    nodes = ew.ConformalNodes(ALPHA).fit(belief, data, calibration=split.calibration, used=used)
    pairs = ew.ConformalPairs(ALPHA).fit(belief, data, calibration=split.calibration, test=split.test, used=used)
    matching, others = pairs.matching_coverage(data.y), pairs.other_coverage(data.y, data.edge_index, n_resamples=1)
    return [
        nodes.coverage(data.y, split.test),
        float(nodes.sizes[split.test].double().mean()),
        *(matching.fraction, matching.mean_size),
        *product_of_node_sets(belief, data.y, pairs),
        *(others.fraction, others.mean_size),
    ]


def product_of_node_sets(belief: Belief, y: torch.Tensor, pairs: ew.PairPredictionSets) -> tuple[float, float]:
    """Return coverage and mean size of products of node sets with one threshold, chosen on the calibration pairs."""
    node = as_posterior(belief).node.double()
    lower = node[pairs.calibration_pairs, y[pairs.calibration_pairs]].amin(0)
    sets = -node <= conformal_threshold(-lower, ALPHA, "pairs")
    covered = sets[pairs.test_pairs, y[pairs.test_pairs]].all(0)
    return float(covered.double().mean()), float(sets[pairs.test_pairs].sum(2).prod(0).double().mean())


def read_runs(file: Path | None) -> Runs:
    """Read the finished runs. There are none without a file."""
    if file is None or not file.exists():
        return {}
    with file.open(newline="", encoding="utf-8") as lines:
        rows = [*csv.reader(lines)]
    return {(name, belief, int(split), int(fold)): [*map(float, found)] for name, belief, split, fold, *found in rows}


def write_runs(file: Path, runs: Runs) -> None:
    """Write the finished runs, one per line."""
    with file.open("w", newline="", encoding="utf-8") as lines:
        csv.writer(lines).writerows([*key, *found] for key, found in runs.items())


def add_runs(runs: Runs, dataset: str, data: Any, splits: list[ew.Split], file: Path | None) -> None:
    """Add the missing runs of a dataset, and write the file after each."""
    for split in splits:
        keys = [(dataset, name, split.split, split.fold) for name in BELIEFS]
        missing = [key for key in keys if key not in runs]
        gcn = ew.GCN().fit(data, split, seed=split.fold) if missing else None
        for key in missing:
            runs[key] = scores(BELIEFS[key[1]](data, split, gcn), data, split)
            if file is not None:
                replace_file(file, lambda part: write_runs(part, runs))


def table_rows(runs: Runs, dataset: str) -> Iterator[str]:
    """Yield a row of means of each belief, with the number of runs unless it is 15."""
    for belief in BELIEFS:
        values = [found for (name, of, _, _), found in runs.items() if (name, of) == (dataset, belief)]
        if values:
            label = belief if len(values) == NUM_RUNS else f"{belief} ({len(values)} runs)"
            cells = [f"{mean:.3f}" if k % 2 == 0 else f"{mean:.2f}" for k, mean in enumerate(np.mean(values, axis=0))]
            yield "| " + " | ".join([display_name(dataset), label, *cells]) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", type=str.lower, help="such as cora")
    parser.add_argument("--splits", type=int, default=5, help="number of splits, of 3 folds each")
    parser.add_argument("--data-root", type=Path, help="folder of the datasets that are not bundled")
    parser.add_argument("--runs", type=Path, help="CSV file of finished runs")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=ew.SmallSampleWarning)
    runs = read_runs(options.runs)
    print("| " + " | ".join(HEAD) + " |\n| --- | --- |" + " ---: |" * (len(HEAD) - 2))
    for dataset in options.datasets:
        data = ew.load_dataset(dataset, None if dataset in PLANETOID_NAMES else options.data_root)
        splits = ew.make_splits(data.y, n_splits=options.splits, calibration=0.5)
        add_runs(runs, dataset, data, splits, options.runs)
        print(*table_rows(runs, dataset), sep="\n", flush=True)


if __name__ == "__main__":
    main()
