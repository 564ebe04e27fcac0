"""Compare the speed of two checkouts of edgewise, alternating between them so that a busy machine slows down both.

    python benchmarks/two_trees.py ../old              # this checkout against another one
    python benchmarks/two_trees.py ../old --cells gcn evaluate --repeats 5

Each checkout runs in its own process, which imports it and keeps its data. The parent requests one run of a cell from
each, in the order A B B A …, and compares the shortest times. A ratio above 1 means that this checkout is slower.
"""

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

HERE = Path(__file__).parents[1]
DATASETS = ("cora", "citeseer", "pubmed")
EPOCHS = 100


def cells() -> dict[str, Callable[[], object]]:
    """Return the function of every cell by name. Data are created at the first run."""
    import torch

    import edgewise as ew

    @cache
    def graph(name: str) -> Any:
        data = ew.load_dataset(name)
        return data, ew.make_splits(data.y)[0]

    @cache
    def case(num_nodes: int, num_edges: int, num_classes: int) -> Any:
        draws = torch.Generator().manual_seed(0)
        probs = (2 * torch.randn(num_nodes, num_classes, generator=draws)).softmax(-1)
        y = torch.randint(num_classes, (num_nodes,), generator=draws)
        return probs, y, torch.randint(num_nodes, (2, num_edges), generator=draws)

    @cache
    def mrf(scaled: bool) -> Any:
        data, _ = graph("pubmed")
        edges = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
        draws = torch.Generator().manual_seed(0)
        unary, pairwise = torch.randn(data.num_nodes, 3, generator=draws), 0.2 * torch.randn(3, 3, generator=draws)
        scale = torch.rand(edges.shape[1], generator=draws) if scaled else None
        return ew.PairwiseMRF(unary, edges, pairwise + pairwise.T, edge_scale=scale)

    @cache
    def logits(name: str) -> Any:
        data, split = graph(name)
        return ew.GCN(max_epochs=50).fit(data, split, seed=0).logits

    def fit(model: Any, name: str) -> Callable[[], object]:
        return lambda: model.fit(*graph(name), seed=0).posterior().node

    def calibrate(calibrator: Any, name: str) -> Callable[[], object]:
        return lambda: calibrator.fit(logits(name), *graph(name))

    def evaluate_cora() -> object:
        data, split = graph("cora")
        return [ew.evaluate(logits("cora").softmax(-1), data.y, data.edge_index, mask=split.test) for _ in range(20)]

    models = {
        "gcn": ew.GCN(max_epochs=EPOCHS, patience=EPOCHS),
        "gat": ew.GAT(max_epochs=EPOCHS, patience=EPOCHS),
        "gmnn": ew.GMNN(pretrain_epochs=50, pretrain_patience=50, round_epochs=25, samples=8),
        "epfgnn": ew.EPFGNN(pretrain_epochs=75, pretrain_patience=75, rounds=1, steps=25, step_patience=25),
        "jointgcn": ew.JointGCN(max_epochs=50, patience=50),
    }
    calibrators = (
        ew.TemperatureScaling(),
        ew.VectorScaling(),
        ew.EnsembleTemperatureScaling(),
        ew.IsotonicCalibration(),
        ew.LocalScaling(),
        ew.CaGCN(),
        ew.GATS(),
        ew.StructuredCalibrator(),
    )
    by_name: dict[str, Callable[[], object]] = {
        "evaluate, cora, 20 times": evaluate_cora,
        "evaluate, 10^6 edges, C = 7": lambda: ew.evaluate(*case(200_000, 1_000_000, 7)),
        "evaluate, 10^6 edges, C = 40": lambda: ew.evaluate(*case(200_000, 1_000_000, 40)),
        "evaluate, 10^6 edges, C = 7, same label": lambda: ew.evaluate(*case(200_000, 1_000_000, 7), same_label=True),
        "sum_product, pubmed": lambda: ew.sum_product(mrf(False), max_sweeps=50, tolerance=0.0),
        "sum_product, pubmed, scaled": lambda: ew.sum_product(mrf(True), max_sweeps=50, tolerance=0.0),
        "mean_field, pubmed": lambda: ew.mean_field(mrf(False), max_sweeps=50, tolerance=0.0),
    }
    by_name |= {f"{model}, {name}": fit(models[model], name) for name in DATASETS for model in models}
    by_name |= {f"{type(calibrator).__name__}, cora": calibrate(calibrator, "cora") for calibrator in calibrators}
    return by_name


def serve() -> None:
    """Read names of cells from stdin, one per line, run each cell, and print its seconds."""
    by_name = cells()
    print(*by_name, sep="\t", flush=True)
    for line in sys.stdin:
        start = perf_counter()
        by_name[line.rstrip("\n")]()
        print(perf_counter() - start, flush=True)


class Checkout:
    """A checkout, and the process that runs its cells."""

    def __init__(self, path: Path):
        caches = {"NUMBA_CACHE_DIR": str(path.resolve() / ".pytest_cache" / "two_trees")}
        environment = os.environ | {"PYTHONPATH": str(path.resolve() / "src")} | caches
        command = [sys.executable, "-W", "ignore", __file__, "--serve"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=path
        )
        self.cells = self._line().split("\t")

    def seconds(self, cell: str) -> float:
        """Run a cell once and return its seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write(cell + "\n")
        self.process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("A process ended early. Its error is printed above.")
        return line.rstrip("\n")


def main() -> None:
    """Time all cells of both checkouts and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", help="the checkout to compare with")
    parser.add_argument("--cells", nargs="+", default=[""], help="run only cells whose names contain one of these")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    if options.other is None:
        parser.error("expected the path of the checkout to compare with")
    old, new = Checkout(options.other), Checkout(HERE)
    chosen = [name for name in new.cells if name in old.cells and any(part in name for part in options.cells)]
    print(f"{'seconds':42}{'other':>10}{'this':>10}{'ratio':>8}")
    ratios = {}
    for name in chosen:
        times: dict[Checkout, list[float]] = {old: [], new: []}
        old.seconds(name), new.seconds(name)  # compile, and create the data
        for turn in range(options.repeats):
            for checkout in (old, new) if turn % 2 == 0 else (new, old):
                times[checkout].append(checkout.seconds(name))
        before, after = min(times[old]), min(times[new])
        ratios[name] = after / before
        print(f"{name:42}{before:10.4f}{after:10.4f}{ratios[name]:8.2f}", flush=True)
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    slowest = max(ratios, key=ratios.__getitem__)
    print(f"\nGeometric mean {mean:.2f}; the highest ratio is {ratios[slowest]:.2f} ({slowest}).")
    return None


if __name__ == "__main__":
    main()
