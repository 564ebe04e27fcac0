"""Measure time and memory of one training epoch on growing graphs, against plain PyG loops.

    python benchmarks/growth.py                      # 10^4, 10^5 and 10^6 nodes: half an hour, 20 GiB
    python benchmarks/growth.py --quick              # 10^4 nodes
    python benchmarks/growth.py --page docs/speed.md

The graphs are random, with 10 neighbors per node on average, 128 dense features and 10 classes. The time of an epoch is
the difference between trainings of one and of several epochs of each phase, divided by the number of epochs. Memory is
the peak of a training, in addition to the graph. The plain loop uses all threads for everything; edgewise
uses them for its compiled loops, and one for operations of torch.
"""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import speed_page
import torch
from measure import GIB, environment, measure, split_call

import edgewise as ew
from edgewise.models.model import Model
from edgewise.models.task import prepare_task
from models import attention, backbone, field, label_network

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch_geometric 2.8 with torch 2.13
    import plain_loops
    from torch_geometric.data import Data

NUM_NEIGHBORS, NUM_FEATURES, NUM_CLASSES, RATE = 10, 128, 10, 0.5
COLUMNS = ("model, nodes", "ms per epoch: edgewise, plain", "ratio", "peak memory: edgewise, plain")
SIZES = (10_000, 100_000, 1_000_000)
MODELS = ("GCN", "GAT", "GMNN", "EPFGNN")

Train = Callable[[int], object]  # trains for a number of epochs of each phase


class Epoch(NamedTuple):
    """Seconds of an epoch, and the peak memory of a training in addition to the graph."""

    seconds: float
    peak_bytes: int


class Comparison(NamedTuple):
    """One epoch of a model by edgewise and by the plain loop."""

    ours: Epoch
    plain: Epoch


def make_graph(num_nodes: int) -> tuple[Data, ew.Split]:
    """Draw a random graph, and a split of its nodes."""
    g = torch.Generator().manual_seed(0)
    undirected = torch.randint(num_nodes, (2, num_nodes * NUM_NEIGHBORS // 2), generator=g).sort(0).values
    undirected = undirected[:, undirected[0] != undirected[1]].unique(dim=1)
    y = torch.randint(NUM_CLASSES, (num_nodes,), generator=g)
    x = torch.randn(num_nodes, NUM_FEATURES, generator=g)
    return Data(x=x, y=y, edge_index=torch.cat([undirected, undirected.flip(0)], 1)), ew.make_splits(y)[0]


def trainings(data: Data, split: ew.Split) -> dict[str, tuple[int, Train, Train]]:
    """Return the number of phases of each model, and functions that train it with edgewise and with the plain loop."""
    task = prepare_task(data, split, directed="refuse", num_classes=None, device="cpu")

    def ours(make: Callable[[int], Model[Any]]) -> Train:
        return lambda epochs: make(epochs).fit(data, split, seed=0)

    return {
        "GCN": (
            1,
            ours(lambda n: ew.GCN(dropout=RATE, max_epochs=n, patience=n)),
            lambda n: plain_loops.classifier(backbone(task, RATE), data, split, n),
        ),
        "GAT": (
            1,
            ours(lambda n: ew.GAT(dropout=RATE, max_epochs=n, patience=n)),
            lambda n: plain_loops.classifier(attention(task, RATE), data, split, n),
        ),
        "GMNN": (
            3,
            ours(lambda n: ew.GMNN(dropout=RATE, pretrain_epochs=n, pretrain_patience=n, round_epochs=n, samples=1)),
            lambda n: plain_loops.gmnn(backbone(task, RATE), label_network(task, RATE), data, split, (n, n), 1),
        ),
        "EPFGNN": (
            2,
            ours(
                lambda n: ew.EPFGNN(
                    dropout=RATE, pretrain_epochs=n, pretrain_patience=n, rounds=1, steps=n, step_patience=n
                )
            ),
            lambda n: plain_loops.epfgnn(field(task, RATE), data, split, (n, n)),
        ),
    }


def epoch(train: Train, phases: int, extra: int, repeats: int) -> Epoch:
    """Measure trainings of one epoch, and of some more epochs of each phase."""
    seconds: list[float] = []
    cost = measure(lambda: seconds.append(split_call(train, 1, 1 + extra, repeats)[0]), repeats=0)
    return Epoch(seconds[0] / phases, cost.peak_bytes)


def compare(num_nodes: int) -> dict[str, Comparison]:
    """Measure all models on a graph."""
    data, split = make_graph(num_nodes)
    is_largest, found = num_nodes == SIZES[-1], {}
    more, more_plain = ((5, 1), (1, 1)) if is_largest else ((10, 2), (10, 2))  # more epochs, and repeats
    for name, (phases, ours, plain) in trainings(data, split).items():
        ours(1)  # compiles
        found[name] = result = Comparison(epoch(ours, phases, *more), epoch(plain, phases, *more_plain))
        print(
            f"{num_nodes:10,} {name:8}{1e3 * result.ours.seconds:10.1f} ms{1e3 * result.plain.seconds:10.1f} ms"
            f"{result.plain.seconds / result.ours.seconds:8.1f} ×"
            f"{result.ours.peak_bytes / GIB:10.2f}{result.plain.peak_bytes / GIB:8.2f} GiB",
            flush=True,
        )
    return found


def as_table(found: dict[int, dict[str, Comparison]]) -> str:
    """Return the table of the page."""
    rows = [
        [
            f"{model}, {num:,}",
            f"{speed_page.short(1e3 * result.ours.seconds)}, {speed_page.short(1e3 * result.plain.seconds)}",
            f"**{result.plain.seconds / result.ours.seconds:.1f} ×**",
            f"{result.ours.peak_bytes / GIB:.2f}, {result.plain.peak_bytes / GIB:.2f} GiB",
        ]
        for model in MODELS
        for num in found
        for result in [found[num][model]]
    ]
    return speed_page.table(COLUMNS, rows)


def draw(found: dict[int, dict[str, Comparison]], path: Path) -> None:
    """Draw seconds and memory against the number of nodes, on logarithmic axes."""
    fig, axes = plt.subplots(2, len(MODELS), figsize=(10, 4.6), sharex=True, sharey="row", layout="constrained")
    nodes = list(found)
    for column, model in zip(axes.T, MODELS, strict=True):
        results = [found[num][model] for num in nodes]
        for name, color, epochs in (
            ("edgewise", "#0072B2", [result.ours for result in results]),
            ("plain PyG loop", "#D55E00", [result.plain for result in results]),
        ):
            column[0].plot(nodes, [part.seconds for part in epochs], "o-", color=color, label=name)
            column[1].plot(nodes, [part.peak_bytes / GIB for part in epochs], "o-", color=color)
        column[0].set_title(model)
        column[1].set_xlabel("nodes")
    for row, label in zip(axes, ("seconds per epoch", "peak memory, GiB"), strict=True):
        row[0].set_ylabel(label)
        for axis in row:
            axis.set(xscale="log", yscale="log")
            axis.grid(alpha=0.3)
    axes[0, 0].legend(frameon=False, fontsize="small")
    fig.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speed_page.add_options(parser)
    options = parser.parse_args()
    where = environment("edgewise", "torch", "torch_geometric", "numba")
    print(where, f"{torch.get_num_threads()} threads", sep=", ")
    print(f"{'nodes':>10}{'':9}{'edgewise':>12}{'plain':>12}{'ratio':>10}{'peak memory: edgewise, plain':>30}")
    found = {num: compare(num) for num in (SIZES[:1] if options.quick else SIZES)}
    if options.page is not None:
        draw(found, options.page.parent / "growth.png")
        speed_page.replace_section(options.page, "growth", f"{as_table(found)}\n\n{where}.")


if __name__ == "__main__":
    main()
