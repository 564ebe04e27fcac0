"""Measure the structured calibrator against temperature scaling, and its joints against alternate scaling.

python benchmarks/calibration.py --quick
python benchmarks/calibration.py --page docs/speed.md

The first table compares one fit of the structured calibrator, and of its node calibrator alone, with the fit and the
evaluation of temperature scaling, on synthetic graphs with sparse features. The second one computes joints with given
marginals for couplings between -3 and 4, and compares them with scaling rows and columns alternately until no message
changes by 1e-10, the usual method. Times are of the processor, in one thread, so other processes matter little.
"""

import argparse
from collections.abc import Callable
from functools import partial
from time import process_time
from typing import NamedTuple

import numpy as np
import speed_page
import torch
from measure import environment
from scipy.sparse import random_array
from torch import Tensor
from torch_geometric.data import Data

import edgewise as ew
from edgewise.inference.coupled_marginals import coupled_messages

NUM_CLASSES = 7
FEATURES_PER_NODE = 40


class Size(NamedTuple):
    """Size of a graph."""

    nodes: int
    edges: int
    features: int
    classes: int = NUM_CLASSES

    def __str__(self) -> str:
        return f"{self.nodes:,} nodes, {self.edges:,} edges, {self.features:,} features, {self.classes} classes"


# The second differs from the first by features only, the third by edges, the fourth by classes, the last by its size.
SIZES = (
    Size(20_000, 50_000, 1_000),
    Size(20_000, 50_000, 12_000),
    Size(20_000, 500_000, 1_000),
    Size(20_000, 50_000, 1_000, 40),
    Size(200_000, 500_000, 1_000),
)
QUICK_SIZES = tuple(size._replace(nodes=size.nodes // 10, edges=size.edges // 10) for size in SIZES)
NUM_JOINTS, QUICK_NUM_JOINTS = 100_000, 5_000
COLUMNS = ("Graph", "temperature, fit and evaluation", "Bayesian, fit", "ratio", "structured, fit", "ratio")
MESSAGE_COLUMNS = ("Joints with given marginals", "seconds", "ratio")


def draw(size: Size) -> tuple[Data, ew.Split, Tensor]:
    """Draw a homophilous graph with sparse features, 15% labeled nodes and overconfident logits."""
    degree = 2 * size.edges / size.nodes
    graph = ew.synthetic(size.nodes, size.classes, homophily=0.8, average_degree=degree, num_features=40, seed=0)
    density = FEATURES_PER_NODE / size.features
    x = random_array((size.nodes, size.features), density=density, rng=np.random.default_rng(0))
    features = torch.sparse_coo_tensor(
        torch.from_numpy(np.stack(x.coords)), torch.from_numpy(x.data), x.shape, check_invariants=True
    )
    data = Data(x=features, y=graph.data.y, edge_index=graph.data.edge_index)
    return data, ew.make_splits(data.y)[0], 2 * graph.field.unary


def measure(function: Callable[[], object], repeats: int) -> float:
    """Return the fewest seconds of processor time of several calls after a first one."""
    function()
    seconds = []
    for _ in range(repeats):
        start = process_time()
        function()
        seconds.append(process_time() - start)
    return min(seconds)


def seconds_of_fits(size: Size, repeats: int) -> tuple[float, float, float]:
    """Return the seconds of temperature scaling with its evaluation, and of fits for nodes and for pairs."""
    data, split, logits = draw(size)

    def temperature() -> None:
        calibrated = ew.TemperatureScaling().fit(logits, data, split)
        ew.evaluate(calibrated, data, mask=split.test, same_label=True)

    nodes, structured = ew.BayesianScaling(), ew.StructuredCalibrator()
    fits = temperature, lambda: nodes.fit(logits, data, split), lambda: structured.fit(logits, data, split)
    one, two, three = (measure(fit, repeats) for fit in fits)
    return one, two, three


def alternate_scaling(log_p: Tensor, coupling: Tensor) -> Tensor:
    """Compute the messages by scaling rows and columns alternately."""
    (at_start, at_end), factor = log_p, torch.expm1(coupling).unsqueeze(1)
    previous, into_end = at_end, torch.zeros_like(at_end)
    while float((into_end - previous).abs().max()) >= 1e-10:
        into_start = torch.log1p(factor * (at_end - into_end).softmax(-1))
        previous, into_end = into_end, torch.log1p(factor * (at_start - into_start).softmax(-1))
    return torch.stack([torch.log1p(factor * (at_end - into_end).softmax(-1)), into_end])


def seconds_of_messages(num_edges: int, repeats: int) -> list[float]:
    """Return the seconds of the scalar equation and of alternate scaling, and check that they agree."""
    generator = torch.Generator().manual_seed(0)
    log_p = (3 * torch.randn(2, num_edges, NUM_CLASSES, generator=generator, dtype=torch.float64)).log_softmax(-1)
    coupling = 7 * torch.rand(num_edges, generator=generator, dtype=torch.float64) - 3
    torch.testing.assert_close(
        coupled_messages(log_p, coupling), alternate_scaling(log_p, coupling), atol=1e-7, rtol=0.0
    )
    return [measure(partial(method, log_p, coupling), repeats) for method in (coupled_messages, alternate_scaling)]


def fits_table(rows: list[tuple[Size, float, float, float]]) -> str:
    """Return the table of fits."""
    texts = [
        [str(size), f"{one:.3f} s", *(text for fit in fits for text in (f"{fit:.2f} s", f"**{fit / one:.1f} ×**"))]
        for size, one, *fits in rows
    ]
    return speed_page.table(COLUMNS, texts)


def messages_table(num_edges: int, ours: float, plain: float) -> str:
    """Return the table of joints."""
    rows = [
        [f"one scalar equation per edge, {num_edges:,} edges", f"{ours:.2f}", ""],
        ["rows and columns scaled alternately", f"{plain:.2f}", f"**{plain / ours:.0f} ×**"],
    ]
    return speed_page.table(MESSAGE_COLUMNS, rows)


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speed_page.add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes, num_edges = (QUICK_SIZES, QUICK_NUM_JOINTS) if options.quick else (SIZES, NUM_JOINTS)
    repeats = 1 if options.quick else 3
    fits = fits_table([(size, *seconds_of_fits(size, repeats)) for size in sizes])
    messages = messages_table(num_edges, *seconds_of_messages(num_edges, repeats))
    text = f"{environment('edgewise', 'torch', 'scipy')}; one thread.\n\n{fits}\n\n{messages}"
    print(text)
    speed_page.replace_section(options.page, "calibration", text)


if __name__ == "__main__":
    main()
