"""Benchmark the time and memory of `ew.evaluate` against the definitions and torchmetrics.

    python benchmarks/metrics.py                 # part of `make bench`: some minutes, 16 GiB
    python benchmarks/metrics.py --quick         # part of `make bench-quick`
    python benchmarks/metrics.py --page docs/speed.md

All times are measured in one process and are the best of a few repeats, without compilation. Only the first calls are
measured in new processes.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
import speed_page
import torch
from measure import GIB, Cost, environment, measure
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics.functional.classification import binary_calibration_error

import edgewise as ew
from edgewise.kernels.dispatch import map_slices, vectorized_sums
from edgewise.metrics.collect import prepare, same_label_sums, width_sums
from edgewise.metrics.elements import node_records
from edgewise.metrics.scoring_input import Binning, check_scoring_input

Case = tuple[Tensor, Tensor, Tensor]

COLUMNS_MILLION_EDGES = ("10⁶ edges, 200,000 nodes", "C = 7", "C = 40", "peak memory, C = 40")
COLUMNS_LARGE_GRAPH = (
    "edges, 2.4 million nodes, C = 47",
    "seconds",
    "relative to two bare gathers",
    "memory in addition to the inputs",
)
COLUMNS_SAME_LABEL = ("10⁷ edges, 200,000 nodes", "C = 7", "C = 40")
COLUMNS_GROUPS = ("10⁷ edges, 200,000 nodes, C = 7", "each edge listed once", "both directions listed")
GROUPINGS = ("predicted_class", "degree", "confidence", "train_distance")
COLUMNS_FIRST_CALL = ("10⁶ edges, 200,000 nodes, C = 40", "seconds", "relative to a later call")

COLUMNS_DECOMPOSITION = ("10⁷ edges, 200,000 nodes, C = 7", "CPU seconds", "relative to np.sort", "bytes per edge")

FIRST_CALL = """
from time import perf_counter
import torch
import edgewise as ew
g = torch.Generator().manual_seed(0)
probs = (2 * torch.randn(200_000, 40, generator=g)).softmax(-1)
y, edge_index = torch.randint(40, (200_000,), generator=g), torch.randint(200_000, (2, 1_000_000), generator=g)
times = []
for _ in range(6):
    start = perf_counter()
    ew.evaluate(probs, y, edge_index)
    times.append(perf_counter() - start)
print(times[0], min(times[1:]))
"""


def make_case(num_nodes: int, num_edges: int, num_classes: int, two_way: bool = False) -> Case:
    """Draw predictions on a random graph with edges in random direction, or with `two_way` in both directions."""
    g = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(num_nodes, num_classes, generator=g)).softmax(-1)
    y = torch.randint(num_classes, (num_nodes,), generator=g)
    edge_index = torch.randint(num_nodes, (2, num_edges // 2 if two_way else num_edges), generator=g)
    return probs, y, torch.cat([edge_index, edge_index.flip(0)], dim=1) if two_way else edge_index


def direct(probs: Tensor, y: Tensor, edge_index: Tensor) -> dict[str, list[float]]:
    """Compute all scores by their definitions, with an (E, C, C) joint, for edges that are already unique."""
    start, end = edge_index
    right = probs.argmax(1) == y
    joint = (probs[start][:, :, None] * probs[end][:, None, :]).flatten(1)
    pair, both_right, agree = y[start] * probs.shape[1] + y[end], right[start] & right[end], y[start] == y[end]
    nodewise, edgewise = per_element(probs, y, right), per_element(joint, pair, both_right)
    return {
        "nodewise": direct_scores(nodewise),
        "edgewise": direct_scores(edgewise),
        "agree": direct_scores([column[agree] for column in edgewise]),
        "disagree": direct_scores([column[~agree] for column in edgewise]),
    }


def per_element(p: Tensor, truth: Tensor, correct: Tensor) -> list[Tensor]:
    """Return correctness, NLL, Brier score and confidence of each row."""
    nll = -p.gather(1, truth[:, None]).squeeze(1).log()
    distance = torch.zeros_like(p).scatter_(1, truth[:, None], 1.0).sub_(p)  # in place: two (E, C, C) fit, three do not
    return [correct.float(), nll, distance.square_().sum(1), p.amax(1)]


def direct_scores(elements: list[Tensor]) -> list[float]:
    """Return accuracy, NLL, Brier score and ECE."""
    correct, nll, brier, confidence = elements
    ece = torch.zeros(())
    for k in range(15):
        inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        if inside.any():
            ece += inside.float().mean() * (correct[inside].mean() - confidence[inside].mean()).abs()
    return [float(value) for value in (correct.mean(), nll.mean(), brier.mean(), ece)]


def with_torchmetrics(probs: Tensor, y: Tensor, edge_index: Tensor) -> list[float]:
    """Compute the four calibration errors with torchmetrics, from materialized edge confidences."""
    start, end = edge_index
    confidence, prediction = probs.max(1)
    right, agree = prediction == y, y[start] == y[end]
    of_edges, correct = confidence[start] * confidence[end], (right[start] & right[end]).long()
    sets = [
        (confidence, right.long()),
        *((of_edges[chosen], correct[chosen]) for chosen in (agree >= 0, agree, ~agree)),
    ]
    return [float(binary_calibration_error(*both, n_bins=15)) for both in sets]


def compare_with_direct(num_edges: int, num_classes: int) -> tuple[Cost, Cost, Cost]:
    """Score edges, each listed once, with edgewise, with the definitions, and with torchmetrics."""
    probs, y, edge_index = make_case(200_000, num_edges, num_classes)
    edge_index = edge_index.sort(0).values.unique(dim=1)
    case = probs, y, edge_index[:, edge_index[0] != edge_index[1]]
    ev = ew.evaluate(*case)
    for view, expected in direct(*case).items():
        ours = [ev[view][metric] for metric in ew.METRICS]
        # The direct sums are float32, and confidences may fall on the other side of a bin boundary.
        np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-4)
    fast = measure(lambda: ew.evaluate(*case, same_label=False), repeats=20)
    slow = measure(lambda: direct(*case), repeats=3)
    theirs = measure(lambda: with_torchmetrics(*case), repeats=5)
    print(f"\n{num_edges:,} edges, C = {num_classes}")
    print(f"  {'':38}{'seconds':>9}{'ratio':>8}{'peak MiB':>10}{'ratio':>8}")
    for name, cost in (("edgewise, 16 scores", fast), ("direct, 16 scores", slow), ("torchmetrics, 4 ECEs", theirs)):
        print(
            f"  {name:38}{cost.seconds:9.3f}{cost.seconds / fast.seconds:8.1f}"
            f"{cost.peak_bytes / 2**20:10.0f}{cost.peak_bytes / fast.peak_bytes:8.1f}"
        )
    return fast, slow, theirs


def bare_gathers(records: Tensor, edge_index: Tensor, chunk: int = 1 << 18) -> None:
    """Load the records of both ends of all edges, and do nothing with them."""
    buffer = torch.empty(chunk, records.shape[1], dtype=records.dtype)
    for lo in range(0, edge_index.shape[1], chunk):
        for end in edge_index[:, lo : lo + chunk]:
            torch.index_select(records, 0, end, out=buffer[: len(end)])


def compare_with_gathers(num_edges: int, two_way: bool) -> tuple[Cost, Cost]:
    """Score product joints on a graph of the size of ogbn-products, and time the gathers alone."""
    probs, y, edge_index = make_case(2_400_000, num_edges, 47, two_way)
    gathers = measure(partial(bare_gathers, node_records(probs, y), edge_index), repeats=2)
    fast = measure(lambda: ew.evaluate(probs, y, edge_index, same_label=False), repeats=2)
    print(f"\n{num_edges:.0e} edges, N = 2.4 million, C = 47, {'both directions' if two_way else 'random direction'}")
    print(f"  two bare gathers        {gathers.seconds:8.2f} s")
    print(f"  edgewise, 16 scores     {fast.seconds:8.2f} s, {fast.seconds / gathers.seconds:.2f} times the gathers")
    print(f"  additional memory       {fast.peak_bytes / GIB:8.2f} GiB")
    if not two_way:  # the tests check that both directions give the scores of one direction
        worst = largest_error(ew.evaluate(probs, y, edge_index), probs, y, edge_index)
        print(f"  largest error against float64 reference {worst:.1e}")
    return fast, gathers


@vectorized_sums
def bare_dots(probs: NDArray[Any], start: NDArray[Any], end: NDArray[Any], out: NDArray[Any]) -> None:
    """Compute Σ_c p_i(c) p_j(c) of each edge in the precision of the probabilities, and nothing else."""
    for e in range(len(start)):
        total = probs.dtype.type(0)
        for c in range(probs.shape[1]):
            total += probs[start[e], c] * probs[end[e], c]
        out[e] = total


def torch_dots(probs: Tensor, edge_index: Tensor, chunk: int = 1 << 15) -> None:
    """Compute the same with torch, in chunks."""
    for lo in range(0, edge_index.shape[1], chunk):
        start, end = edge_index[:, lo : lo + chunk]
        (probs[start] * probs[end]).sum(1)


def compare_same_label(num_edges: int, num_classes: int) -> tuple[Cost, Cost, Cost, Cost]:
    """Time P(same label) of edges, all of which are scored, the sixteen scores, and bare dot products."""
    probs, y, edge_index = make_case(200_000, num_edges, num_classes)
    task = prepare(check_scoring_input(probs, y, edge_index.sort(0).values), "both")
    p, (start, end) = probs.numpy(), task.inputs.edge_index.numpy()
    out = np.empty(len(start), dtype=p.dtype)
    functions: tuple[Callable[[], object], ...] = (
        lambda: same_label_sums(task, Binning()),
        lambda: width_sums(task, Binning()),
        lambda: map_slices(lambda lo, hi: bare_dots(p, start[lo:hi], end[lo:hi], out[lo:hi]), len(start)),
        lambda: torch_dots(probs, task.inputs.edge_index),
    )
    rounds = [[measure(function, repeats=2) for function in functions] for _ in range(3)]  # a busy machine slows all
    event_cost, views_cost, compiled_cost, torch_cost = (
        min(costs, key=lambda cost: cost.seconds) for costs in zip(*rounds, strict=True)
    )
    costs = event_cost, views_cost, compiled_cost, torch_cost
    event, views, compiled, torchs = (cost.seconds for cost in costs)
    print(f"\n{num_edges:,} edges, C = {num_classes}")
    print(f"  P(same label) {event:.2f} s, sixteen scores {views:.2f} s")
    print(f"  {event / compiled:.2f} times a compiled gather-and-dot, {event / torchs:.2f} times torch's")
    return costs


def compare_groups(num_edges: int, two_way: bool) -> tuple[Cost, Cost, Cost]:
    """Score edges without groups, with one grouping, and with four."""
    probs, y, edge_index = make_case(200_000, num_edges, 7, two_way)
    case = probs, y, edge_index if two_way else edge_index.sort(0).values
    train = torch.rand(len(y), generator=torch.Generator().manual_seed(1)) < 0.05
    functions: tuple[Callable[[], object], ...] = (
        lambda: ew.evaluate(*case),
        lambda: ew.evaluate(*case, by=GROUPINGS[0]),
        lambda: ew.evaluate(*case, by=GROUPINGS, train=train),
    )
    rounds = [[measure(function, repeats=1) for function in functions] for _ in range(3)]  # a busy machine slows all
    plain, one, four = (min(costs, key=lambda cost: cost.seconds) for costs in zip(*rounds, strict=True))
    print(f"\n{num_edges:,} edges, {'both directions' if two_way else 'each once'}: plain {plain.seconds:.2f} s")
    print(f"  one grouping {one.seconds / plain.seconds:.2f} times, four {four.seconds / plain.seconds:.2f} times")
    return plain, one, four


def cpu_seconds(function: Callable[[], object]) -> float:
    """Return the processor time of a call, which other processes change less than the time that passes."""
    start = process_time()
    function()
    return process_time() - start


def compare_decomposition(num_edges: int) -> tuple[Cost, Cost, Cost, Cost]:
    """Time what a decomposition of edges takes in addition to an evaluation, and sorts of their confidences.

    Decompositions are those of the views, and of the views and of "same label". Memory is that of the whole evaluation.
    """
    probs, y, edge_index = make_case(200_000, num_edges, 7)
    edge_index = edge_index.sort(0).values
    confidence = probs.amax(1).double()[edge_index].prod(0)
    functions: list[Callable[[], object]] = [
        partial(ew.evaluate, probs, y, edge_index, same_label=same_label, decompose=decompose)
        for same_label in (False, True)
        for decompose in (False, True)
    ]
    functions += [lambda: np.sort(confidence.numpy()), lambda: torch.sort(confidence)]
    peaks = [measure(function, repeats=0).peak_bytes for function in functions]
    rounds = [[cpu_seconds(function) for function in functions] for _ in range(5)]
    plain, views, event, both, numpy_sort, torch_sort = (
        Cost(min(seconds), peak) for seconds, peak in zip(zip(*rounds, strict=True), peaks, strict=True)
    )
    of_views = Cost(views.seconds - plain.seconds, views.peak_bytes)
    of_both = Cost(both.seconds - event.seconds, both.peak_bytes)
    print(f"\n{num_edges:,} edges, C = 7")
    for name, cost in (("views", of_views), ("views and same label", of_both)):
        print(f"  decomposition of {name}: {cost.seconds:.2f} s, {cost.peak_bytes / num_edges:.0f} bytes per edge")
        sorts = cost.seconds / numpy_sort.seconds, cost.seconds / torch_sort.seconds
        print(f"    {sorts[0]:.1f} times np.sort, {sorts[1]:.2f} times torch.sort")
    return of_views, of_both, numpy_sort, torch_sort


def time_first_calls() -> tuple[float, float, float]:
    """Return the seconds of a first call that compiles, of a first call in a process, and of a later call."""
    with TemporaryDirectory() as folder:
        command, cached = [sys.executable, "-c", FIRST_CALL], {**os.environ, "NUMBA_CACHE_DIR": folder}
        runs = [subprocess.run(command, env=cached, capture_output=True, text=True, check=True) for _ in range(4)]
    times = [[float(word) for word in run.stdout.split()] for run in runs]
    compiling, first, later = times[0][0], min(run[0] for run in times[1:]), min(run[1] for run in times)
    print(f"\n10^6 edges, C = 40: compiling {compiling:.2f} s, first call {first:.2f} s, later {later:.2f} s")
    return compiling, first, later


def largest_error(ev: ew.Evaluation, probs: Tensor, y: Tensor, edge_index: Tensor) -> float:
    """Return the largest difference from the definitions in float64, summed in extended precision by chunks."""
    ends = unique_pairs(edge_index)
    label, right = y.numpy(), (probs.argmax(1) == y).numpy()
    confidence = probs.amax(1).double().numpy()
    p_true = probs[torch.arange(len(y)), y].double().numpy()
    square_sum = probs.double().square().sum(1).numpy()
    sums = np.zeros((4, 4 + 15), dtype=np.longdouble)
    sums[0] = node_sums(confidence, p_true, square_sum, right)
    for i, j in chunked(ends):
        correct, conf, p = right[i] & right[j], confidence[i] * confidence[j], p_true[i] * p_true[j]
        brier = (1 - p) ** 2 + square_sum[i] * square_sum[j] - p**2
        bins = np.clip(np.ceil(conf * 15) - 1, 0, 14).astype(int)
        for view, chosen in enumerate((slice(None), label[i] == label[j], label[i] != label[j]), start=1):
            gaps = np.bincount(bins[chosen], (correct - conf)[chosen], minlength=15)
            means = len(p[chosen]), correct[chosen].sum(), -np.log(p[chosen]).sum(), brier[chosen].sum()
            sums[view] += np.concatenate([means, gaps])
    worst = 0.0
    for name, (count, *of_view) in zip(ew.VIEWS, sums, strict=True):
        truth = [*(total / count for total in of_view[:3]), np.abs(of_view[3:]).sum() / count]
        ours = [ev[name][metric] for metric in ew.METRICS]
        worst = max(worst, *(abs(float(a - b)) for a, b in zip(ours, truth, strict=True)))
        assert ev[name].count == count
    return worst


def node_sums(
    confidence: NDArray[np.float64],
    p_true: NDArray[np.float64],
    square_sum: NDArray[np.float64],
    right: NDArray[np.bool_],
) -> NDArray[np.longdouble]:
    """Return count, Σ correct, Σ nll, Σ brier and Σ (correct - confidence) of each bin, over all nodes."""
    bins = np.clip(np.ceil(confidence * 15) - 1, 0, 14).astype(int)
    brier = (1 - p_true) ** 2 + square_sum - p_true**2
    sums = len(right), right.sum(), -np.log(p_true).sum(dtype=np.longdouble), brier.sum(dtype=np.longdouble)
    return np.concatenate([sums, np.bincount(bins, right - confidence, minlength=15)]).astype(np.longdouble)


def unique_pairs(edge_index: Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return the edges to score by sorting: max(forward, backward) occurrences of each pair."""
    start, end = edge_index.numpy()
    start, end = start[start != end], end[start != end]
    keys = np.minimum(start, end) * (1 << 32) + np.maximum(start, end)
    forward, backward = np.sort(keys[start < end]), np.sort(keys[start > end])
    common = np.intersect1d(forward, backward)
    repeats = np.maximum(
        np.searchsorted(forward, common, "right") - np.searchsorted(forward, common, "left"),
        np.searchsorted(backward, common, "right") - np.searchsorted(backward, common, "left"),
    )
    alone = [side[~np.isin(side, common)] for side in (forward, backward)]
    keys = np.concatenate([*alone, np.repeat(common, repeats)])
    return np.stack([keys >> 32, keys & 0xFFFFFFFF])


def chunked(ends: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for lo in range(0, ends.shape[1], 1 << 20):
        yield ends[0, lo : lo + (1 << 20)], ends[1, lo : lo + (1 << 20)]


def table_million_edges(few: tuple[Cost, Cost, Cost], many: tuple[Cost, Cost, Cost]) -> str:
    """Format the costs of 10^6 edges with few and with many classes as a Markdown table."""
    names = (
        "`ew.evaluate`, all 16 scores",
        "the definitions with (E, C, C) tensors, 16 scores",
        "torchmetrics on edge confidences, 4 calibration errors",
    )
    rows = [
        [name, _seconds(a, few[0]), _seconds(b, many[0]), f"{b.peak_bytes / 2**20:,.0f} MiB"]
        for name, a, b in zip(names, few, many, strict=True)
    ]
    return speed_page.table(COLUMNS_MILLION_EDGES, rows)


def _seconds(cost: Cost, ours: Cost) -> str:
    return f"{cost.seconds:.3f} s" if cost is ours else f"{cost.seconds / ours.seconds:.3g} ×"


def table_large_graph(num_edges: int, one_way: tuple[Cost, Cost], two_way: tuple[Cost, Cost]) -> str:
    """Format the costs of a large graph as a Markdown table."""
    named = (("random direction, each edge to be counted once", one_way), ("both directions listed", two_way))
    rows = [
        [name, f"{ours.seconds:.1f}", f"{ours.seconds / bare.seconds:.1f} ×", f"{ours.peak_bytes / GIB:.2f} GiB"]
        for name, (ours, bare) in named
    ]
    return speed_page.table((f"{num_edges:,} {COLUMNS_LARGE_GRAPH[0]}", *COLUMNS_LARGE_GRAPH[1:]), rows)


def table_same_label(few: tuple[Cost, Cost, Cost, Cost], many: tuple[Cost, Cost, Cost, Cost]) -> str:
    """Format the costs of P(same label) as a Markdown table."""
    names = (
        "P(same label) in `ew.evaluate`",
        "the 16 scores of the views",
        "bare gather-and-dot, compiled, float32",
        "bare gather-and-dot, torch, float32",
    )
    rows = [
        [name, *(_seconds(cost, costs[0]) for cost, costs in ((a, few), (b, many)))]
        for name, a, b in zip(names, few, many, strict=True)
    ]
    return speed_page.table(COLUMNS_SAME_LABEL, rows)


def table_groups(one_way: tuple[Cost, Cost, Cost], two_way: tuple[Cost, Cost, Cost]) -> str:
    """Format the costs of groups as a Markdown table."""
    names = (
        "all views without groups",
        '`by="predicted_class"`',
        "by class, degree, confidence and distance from training nodes",
    )
    rows = [
        [name, *(_seconds(cost, costs[0]) for cost, costs in ((a, one_way), (b, two_way)))]
        for name, a, b in zip(names, one_way, two_way, strict=True)
    ]
    return speed_page.table(COLUMNS_GROUPS, rows)


def table_decomposition(of_views: Cost, of_both: Cost, numpy_sort: Cost, torch_sort: Cost) -> str:
    """Format the costs of a decomposition as a Markdown table."""
    named = (
        ("`decompose=True` in addition, without same label", of_views),
        ("`decompose=True` in addition, with same label", of_both),
        ("`np.sort` of the confidences, float64", numpy_sort),
        ("`torch.sort` of the confidences, float64", torch_sort),
    )
    rows = [
        [name, f"{cost.seconds:.2f}", f"{cost.seconds / numpy_sort.seconds:.1f} ×", f"{cost.peak_bytes / 1e7:.0f}"]
        for name, cost in named
    ]
    return speed_page.table(COLUMNS_DECOMPOSITION, rows)


def table_first_calls(compiling: float, first: float, later: float) -> str:
    """Format the times of first calls as a Markdown table."""
    named = (
        ("later call", later),
        ("first call in a process", first),
        ("first call ever, with compilation", compiling),
    )
    rows = [[name, f"{seconds:.2f}", f"{seconds / later:.1f} ×"] for name, seconds in named]
    return speed_page.table(COLUMNS_FIRST_CALL, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speed_page.add_options(parser)
    options = parser.parse_args()
    few, many, large = (200_000, 1_000_000, 10_000_000) if options.quick else (1_000_000, 10_000_000, 100_000_000)
    where = environment("edgewise", "torch", "numba", "torchmetrics")
    print(where, f"{torch.get_num_threads()} threads", sep=", ")
    ew.evaluate(*make_case(1000, 1 << 20, 7))  # compiles
    tables = (
        table_million_edges(compare_with_direct(few, num_classes=7), compare_with_direct(few, num_classes=40)),
        table_same_label(compare_same_label(many, num_classes=7), compare_same_label(many, num_classes=40)),
        table_groups(compare_groups(many, two_way=False), compare_groups(many, two_way=True)),
        table_decomposition(*compare_decomposition(many)),
        table_first_calls(*time_first_calls()),
        table_large_graph(large, compare_with_gathers(large, two_way=False), compare_with_gathers(large, two_way=True)),
    )
    speed_page.replace_section(options.page, "metrics", "\n\n".join([*tables, f"{where}."]))


if __name__ == "__main__":
    main()
