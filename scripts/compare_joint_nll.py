"""Compare the joint NLL of connected node sets for four models on Cora, Citeseer and Pubmed.

python scripts/compare_joint_nll.py

Prints the versions and the tables of docs/how-sure.md, for test nodes of the first split, one seed, and 1,000 sets of
each size. It takes about three minutes on one core.
"""

import platform
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable

import torch
import torch_geometric
from torch_geometric.data import Data

import edgewise as ew

DATASETS = ("cora", "citeseer", "pubmed")
MODELS = ("GCN", "GMNN, mixture", "JointGCN", "GCN, structured calibration")
SIZES = (1, 2, 3, 5, 8)


def posteriors(data: Data, split: ew.Split) -> dict[str, ew.Posterior]:
    """Fit the four models, and return their posteriors by name."""
    gcn = ew.GCN().fit(data, split, seed=0)
    fitted = (
        gcn.posterior(),
        ew.GMNN().fit(data, split, seed=0).posterior("mixture"),
        ew.JointGCN().fit(data, split, seed=0).posterior(),
        ew.StructuredCalibrator().fit(gcn, data, split).posterior(),
    )
    return dict(zip(MODELS, fitted, strict=True))


def compare(name: str) -> dict[str, ew.JointNLL]:
    """Score all models on the same sets of test nodes of the first split."""
    data = ew.load_dataset(name)
    split = ew.make_splits(data.y)[0]
    return {
        model: ew.joint_nll(posterior, data, mask=split.test, sizes=SIZES)
        for model, posterior in posteriors(data, split).items()
    }


def table(results: dict[str, dict[str, ew.JointNLL]], cell: Callable[[ew.JointNLL, int], str]) -> str:
    """Return a table in Markdown, with one row for each dataset and model, and one column for each size."""
    header = ["Dataset", "Model", *(f"{size} node{'' if size == 1 else 's'}" for size in SIZES)]
    rows = [
        [dataset.capitalize(), model, *(cell(result, size) for size in SIZES)]
        for dataset, by_model in results.items()
        for model, result in by_model.items()
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))


def nll_cell(result: ew.JointNLL, size: int) -> str:
    """Format the joint NLL per node."""
    return f"{result[size].nll_per_node:.3f}"


def gain_cell(result: ew.JointNLL, size: int) -> str:
    """Format the gain and its interval. Without a sign, 0 is exact."""
    row = result[size]
    if row.gain == row.gain_interval.low == row.gain_interval.high == 0:
        return "0"
    return f"{row.gain:+.3f} ({row.gain_interval.low:+.3f} to {row.gain_interval.high:+.3f})"


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    results = {name: compare(name) for name in DATASETS}
    versions = {"edgewise": ew.__version__, "torch": torch.__version__, "torch_geometric": torch_geometric.__version__}
    print(", ".join(f"{name} {version}" for name, version in {"Python": platform.python_version(), **versions}.items()))
    print(f"\nJoint NLL per node:\n\n{table(results, nll_cell)}")
    print(f"\nGain over the marginals:\n\n{table(results, gain_cell)}")
    print(f"\nCPU time: {time.process_time():.0f} s")
