"""Measure conformal sets of pairs against the joints that they are computed from.

python benchmarks/conformal.py --quick
python benchmarks/conformal.py --page docs/speed.md

Joints are computed a few thousand pairs at a time and dropped. On disk, a set takes one bit for each pair of labels.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import speed_page
import torch
from measure import Cost, environment, measure
from torch import Tensor
from torch_geometric.data import Data

import edgewise as ew

NUM_PAIRS, QUICK_NUM_PAIRS, NUM_CLASSES = 10_000_000, 500_000, 7
CHUNK_PAIRS = 10_000
COLUMNS = ("Sets of pairs", "independent nodes", "mixture of 8 samples", "peak memory")
ROWS = ("joints, in chunks", "`sizes`", "`contains`", "`iter_pair_sets`", "`iter_pair_sets`, written to disk")


def draw(num_pairs: int, num_samples: int) -> tuple[ew.PairPredictionSets, Data]:
    """Draw a graph with ten edges per node, a posterior and labels from it, and fit sets to 30% of the nodes."""
    generator, num_nodes = torch.Generator().manual_seed(0), num_pairs // 10
    probs = (2 * torch.randn(num_samples, num_nodes, NUM_CLASSES, generator=generator)).softmax(-1)
    posterior = ew.IndependentPosterior(probs[0]) if num_samples == 1 else ew.MixturePosterior(probs)
    edges = torch.randint(num_nodes, (2, num_pairs), generator=generator)
    edges[1] = torch.where(edges[0] == edges[1], (edges[1] + 1) % num_nodes, edges[1])
    y = torch.multinomial(posterior.node, 1, generator=generator).squeeze(1)
    calibration = torch.rand(num_nodes, generator=generator) < 0.3
    data = Data(y=y, edge_index=edges, num_nodes=num_nodes)
    return ew.ConformalPairs().fit(posterior, data, calibration=calibration, test=~calibration), data


def calls(sets: ew.PairPredictionSets, data: Data, file: Path) -> list[Callable[[], object]]:
    """Return what is measured, in the order of ROWS."""
    pairs: Tensor = data.edge_index
    labels = data.y[pairs]

    def joints() -> None:
        for part in pairs.split(CHUNK_PAIRS, dim=1):
            sets.posterior.marginal(part)

    def stream() -> None:
        for _ in sets.iter_pair_sets(pairs):
            pass

    def write() -> None:
        with file.open("wb") as out:
            for part in sets.iter_pair_sets(pairs):
                out.write(np.packbits(part.flatten(1).numpy(), axis=1).tobytes())

    return [joints, lambda: sets.sizes(pairs), lambda: sets.contains(pairs, labels), stream, write]


def measure_all(num_pairs: int, num_samples: int) -> list[Cost]:
    """Return the cost of each call."""
    sets, data = draw(num_pairs, num_samples)
    with TemporaryDirectory() as folder:
        return [measure(call) for call in calls(sets, data, Path(folder) / "sets.bin")]


def as_table(independent: list[Cost], mixture: list[Cost]) -> str:
    """Return the table: seconds, and the ratio to the joints."""
    rows = []
    for name, *costs in zip(ROWS, independent, mixture, strict=True):
        cells = [
            f"{cost.seconds:.2f} s, **{cost.seconds / joints.seconds:.1f} ×**"
            for cost, joints in zip(costs, (independent[0], mixture[0]), strict=True)
        ]
        rows.append([name, *cells, f"{max(cost.peak_bytes for cost in costs) / 2**20:,.0f} MiB"])
    return speed_page.table(COLUMNS, rows)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speed_page.add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    num_pairs = QUICK_NUM_PAIRS if options.quick else NUM_PAIRS
    table = as_table(measure_all(num_pairs, 1), measure_all(num_pairs, 8))
    text = f"{table}\n\n{num_pairs:,} pairs, {NUM_CLASSES} classes, one thread; {environment('edgewise', 'torch')}."
    print(text)
    speed_page.replace_section(options.page, "conformal", text)


if __name__ == "__main__":
    main()
