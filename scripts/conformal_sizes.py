"""Compare the coverage and the size of conformal sets of pairs of several models.

python scripts/conformal_sizes.py cora citeseer pubmed

Means over 15 runs: 5 splits of 3 folds, of which half of the test nodes are calibration nodes. "Product" is the product
of two node sets whose threshold is chosen on the same pairs, so that it has the same guarantee.
"""

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import edgewise as ew
from edgewise.decisions.conformal_scores import conformal_threshold
from edgewise.posterior import Belief, as_posterior

ALPHA = 0.1
HEAD = ("Dataset", "Belief", "nodes", "size", "pairs", "size", "product", "size", "other edges", "size")


def beliefs(data: Any, split: ew.Split, seed: int) -> Iterator[tuple[str, Belief]]:
    """Yield the beliefs by name."""
    gcn = ew.GCN().fit(data, split, seed=seed)
    yield "GCN", gcn
    yield "GCN, temperature", ew.TemperatureScaling().fit(gcn, data, split)
    yield "GCN, structured", ew.StructuredCalibrator().fit(gcn, data, split)
    yield "JointGCN", ew.JointGCN().fit(data, split, seed=seed)


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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", help="such as cora")
    parser.add_argument("--splits", type=int, default=5, help="number of splits, of 3 folds each")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=ew.SmallSampleWarning)
    print("| " + " | ".join(HEAD) + " |\n| --- | --- |" + " ---: |" * (len(HEAD) - 2))
    for dataset in options.datasets:
        data, rows = ew.load_dataset(dataset), dict[str, list[list[float]]]()
        for split in ew.make_splits(data.y, n_splits=options.splits, calibration=0.5):
            for name, belief in beliefs(data, split, seed=split.fold):
                rows.setdefault(name, []).append(scores(belief, data, split))
        for name, values in rows.items():
            cells = [f"{mean:.3f}" if k % 2 == 0 else f"{mean:.2f}" for k, mean in enumerate(np.mean(values, axis=0))]
            print("| " + " | ".join([dataset.capitalize(), name, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
