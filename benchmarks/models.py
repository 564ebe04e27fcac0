"""Benchmark training against plain PyG loops, and check that both have the same losses.

    python benchmarks/models.py                  # part of `make bench`: some minutes
    python benchmarks/models.py --quick
    python benchmarks/models.py --page docs/speed.md

Each cell is one run as `edgewise reproduce` does it, with fewer epochs: the four models of an initialization are
trained one after the other on one task, where later models continue the pretraining of earlier ones, and EPFGNN is
trained by both schedules. The plain loops of benchmarks/plain_loops.py train for the same numbers of epochs, each from
the start. Both run in one process on one thread, as a worker of a sweep does. The time of the first model includes the
setup, which a sweep does once for all initializations.
"""

import argparse
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

import speed_page
import torch
from measure import environment

import edgewise as ew
from edgewise.models.seeds import Initializer, generator
from edgewise.models.task import Task, prepare_task

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch_geometric 2.8 with torch 2.13
    import plain_loops
    from torch_geometric.data import Data

MAX_LOSS_DIFFERENCE = 1e-4
HEAD = "ms per epoch: edgewise, plain, ratio"
MODELS = ("gmnn", "epfgnn", "gcn", "gat")  # in the order of a sweep

Losses = Callable[[], list[float]]


class Cell(NamedTuple):
    """Two functions that train the same model and return its losses."""

    ours: Callable[[Task], list[float]]
    plain: Losses


def cells(data: Data, split: ew.Split, epochs: int, rate: float) -> dict[str, Cell]:
    """Return the four models with their plain loops, with the phases in the proportions of a full training."""
    task = prepare_task(data, split, directed="refuse", num_classes=None, device="cpu")
    pretrain, rounds, steps, samples = epochs // 4, epochs // 8, epochs // 12, max(1, epochs // 25)

    def ours(*models: ew.GCN | ew.GAT | ew.GMNN | ew.EPFGNN) -> Callable[[Task], list[float]]:
        return lambda shared: [loss for model in models for loss in model.fit_task(shared, seed=0).history.loss]

    gcn = ew.GCN(dropout=rate, max_epochs=epochs, patience=epochs)
    gat = ew.GAT(dropout=rate, max_epochs=epochs, patience=epochs)
    gmnn = ew.GMNN(
        dropout=rate, pretrain_epochs=pretrain, pretrain_patience=pretrain, round_epochs=rounds, samples=samples
    )
    epfgnn = ew.EPFGNN(
        dropout=rate,
        pretrain_epochs=pretrain,
        pretrain_patience=pretrain,
        rounds=1,
        steps=steps,
        step_patience=steps,
    )
    return {
        "gcn": Cell(ours(gcn), lambda: plain_loops.classifier(backbone(task, rate), data, split, epochs)),
        "gat": Cell(ours(gat), lambda: plain_loops.classifier(attention(task, rate), data, split, epochs)),
        "gmnn": Cell(
            ours(gmnn),
            lambda: plain_loops.gmnn(
                backbone(task, rate), label_network(task, rate), data, split, (pretrain, rounds), samples
            ),
        ),
        "epfgnn": Cell(
            ours(replace(epfgnn, schedule="published"), epfgnn),
            lambda: [
                loss for _ in range(2) for loss in plain_loops.epfgnn(field(task, rate), data, split, (pretrain, steps))
            ],
        ),
    }


def initializer(task: Task, purpose: str) -> Initializer:
    return Initializer(generator(0, purpose), task.dtype, task.device)


def backbone(task: Task, rate: float) -> torch.nn.Module:
    weights = ew.GCN().initial_weights(task.num_features, task.num_classes, initializer(task, "gcn"))
    return plain_loops.TwoConvolutions(weights, rate)


def label_network(task: Task, rate: float) -> torch.nn.Module:
    weights = ew.GCN().initial_weights(task.num_classes, task.num_classes, initializer(task, "gmnn p"))
    return plain_loops.TwoConvolutions(weights, rate)


def attention(task: Task, rate: float) -> torch.nn.Module:
    weights = ew.GAT().initial_weights(task.num_features, task.num_classes, initializer(task, "gat"))
    return plain_loops.TwoAttentions(weights, rate)


def field(task: Task, rate: float) -> plain_loops.PairwiseModel:
    classes = task.num_classes
    noise = torch.randn(classes, classes, generator=generator(0, "epfgnn"), dtype=torch.float64)
    coupling = ((noise + torch.eye(classes)) / classes).float()
    return plain_loops.PairwiseModel(backbone(task, rate), coupling, task.edge_index, task.num_nodes)


def seconds(train: Callable[[], object]) -> float:
    start = perf_counter()
    train()
    return perf_counter() - start


def seconds_of_runs(data: Data, split: ew.Split, timed: Mapping[str, Cell], models: Iterable[str]) -> dict[str, float]:
    """Train all models on one task, one after the other, and return the seconds of each."""
    found, start = {}, perf_counter()
    task = prepare_task(data, split, directed="refuse", num_classes=None, device="cpu")
    for model in models:
        timed[model].ours(task)
        found[model], start = perf_counter() - start, perf_counter()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["cora", "citeseer", "pubmed"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    speed_page.add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    epochs, num_compared, num_repeats = (48, 24, 1) if options.quick else (200, 50, 2)
    where = environment("edgewise", "torch", "torch_geometric", "numba")
    print(where)
    difference_head = f"largest difference of losses in {num_compared} epochs"
    print(f"{'':18}{'ms per epoch':>13}{'plain':>10}{'ratio':>8}{difference_head:>46}")
    ratios: dict[tuple[str, str], float] = {}
    cell_texts, max_difference = {}, 0.0
    for name in options.datasets:
        data = ew.load_dataset(name)
        split = ew.make_splits(data.y)[0]
        timed, compared = cells(data, split, epochs, 0.5), cells(data, split, num_compared, 0.0)
        models = [model for model in MODELS if model in options.models]
        task = prepare_task(data, split, directed="refuse", num_classes=None, device="cpu")
        differences, num_epochs = {}, {}
        for model in models:
            ours, plain = compared[model].ours(task), compared[model].plain()  # also compiles
            differences[model] = max(abs(a - b) for a, b in zip(ours, plain, strict=True))
            num_epochs[model] = len(timed[model].ours(task))
        max_difference = max(max_difference, *differences.values())
        repeats = [seconds_of_runs(data, split, timed, models) for _ in range(num_repeats)]
        for model in models:
            fast = min(repeat[model] for repeat in repeats)
            slow = min(seconds(timed[model].plain) for _ in range(num_repeats))
            ratio = ratios[name, model] = slow / fast
            per, difference = 1e3 / num_epochs[model], differences[model]
            print(f"{name:10}{model:8}{fast * per:13.2f}{slow * per:10.1f}{ratio:8.1f}{difference:46.1e}", flush=True)
            texts = speed_page.short(fast * per), speed_page.short(slow * per)
            cell_texts[name, model] = f"{', '.join(texts)}, **{ratio:.1f} ×**"
    mean = math.exp(sum(math.log(ratio) for ratio in ratios.values()) / len(ratios))
    summary = f"The geometric mean of the ratios is {mean:.1f}, the lowest {min(ratios.values()):.1f}"
    print(f"{summary}.")
    rows = [[model.upper(), *(cell_texts[name, model] for name in options.datasets)] for model in options.models]
    head = [HEAD, *(name.title() for name in options.datasets)]
    note = (
        f"{summary}; losses without dropout differ by at most {max_difference:.1e} in {num_compared} epochs. {where}."
    )
    speed_page.replace_section(options.page, "models", f"{speed_page.table(head, rows)}\n\n{note}")
    if max_difference > MAX_LOSS_DIFFERENCE:
        sys.exit(
            f"Expected losses without dropout to differ by at most {MAX_LOSS_DIFFERENCE} from those of the plain "
            f"loops, but they differ by {max_difference:.1e}."
        )


if __name__ == "__main__":
    main()
