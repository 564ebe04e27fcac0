"""Benchmark belief propagation against tensors and PGMax.

    python benchmarks/inference.py               # part of `make bench`: some minutes, 12 GiB
    python benchmarks/inference.py --only a      # one of a (Pubmed), b (10^6 edges, C = 10), c (10^7 edges, C = 5)
    python benchmarks/inference.py --page docs/speed.md

All times are measured in one process and are the best of a few repeats, without compilation. The time of one sweep is
the difference between a call with several sweeps and a call with one, so the setup of a call does not count.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
import pgmax_rival
import speed_page
import torch
from measure import GIB, environment, measure
from torch import Tensor

import edgewise as ew


@dataclass(frozen=True)
class Case:
    """A graph with random potentials, and the number of sweeps of its longest call."""

    name: str
    edge_index: Tensor
    num_nodes: int
    num_classes: int
    sweeps: int

    def potentials(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draw unaries, a symmetric coupling matrix, and a scale for each edge."""
        g = torch.Generator().manual_seed(0)
        unary = torch.randn(self.num_nodes, self.num_classes, generator=g)
        pairwise = 0.2 * torch.randn(self.num_classes, self.num_classes, generator=g)
        return unary, pairwise + pairwise.T, torch.rand(self.edge_index.shape[1], generator=g)


@dataclass
class CaseResult:
    """Milliseconds per sweep by row of the table, and formatted peak memory, of one case."""

    case: Case
    milliseconds: dict[str, float]
    memory: str = ""


ROWS = {
    "one coupling for all edges": ["edgewise, shared coupling"],
    "coupling scaled per edge": ["edgewise, scaled per edge"],
    "the same sweep with (E, C, C) tensors: shared, scaled": ["direct, shared coupling", "direct, scaled per edge"],
    "PGMax, shared": ["PGMax, shared"],
    "copy of the messages: in place, into new memory": ["copy of the messages", "copy into new memory"],
}


def as_table(results: Sequence[CaseResult]) -> str:
    """Format the times of one sweep as a Markdown table."""
    rows = [[name, *(_cell(result, parts) for result in results)] for name, parts in ROWS.items()]
    memory = ["peak memory of a call: edgewise, (E, C, C) tensors", *(result.memory for result in results)]
    return speed_page.table(["ms per sweep", *(result.case.name for result in results)], [*rows, memory])


def _cell(result: CaseResult, parts: Sequence[str]) -> str:
    times = (speed_page.short(result.milliseconds[part]) for part in parts if part in result.milliseconds)
    return ", ".join(times) or "–"


def power_law(num_nodes: int, num_edges: int) -> Tensor:
    """Draw both ends of edges with probability ∝ rank^-0.6, each pair once, in random order and direction."""
    rng = np.random.default_rng(0)
    weight = np.arange(1, num_nodes + 1) ** -0.6
    ends = np.searchsorted(np.cumsum(weight / weight.sum()), rng.random((2, int(1.4 * num_edges))))
    ends = rng.permutation(num_nodes)[np.minimum(ends, num_nodes - 1)]
    keys = np.unique((ends.min(0) * num_nodes + ends.max(0))[ends[0] != ends[1]])
    keys = rng.permutation(keys)[:num_edges]
    edges = np.stack([keys // num_nodes, keys % num_nodes])
    flipped = rng.random(edges.shape[1]) < 0.5
    edges[:, flipped] = edges[::-1, flipped]
    return torch.from_numpy(edges)


def make_case(letter: str) -> Case:
    if letter == "a":
        data = ew.load_dataset("pubmed")
        once = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
        return Case("Pubmed, C = 3", once, int(data.num_nodes), 3, 100)
    if letter == "b":
        return Case("10⁶ edges, power law, C = 10", power_law(100_000, 1_000_000), 100_000, 10, 100)
    return Case("10⁷ edges, power law, C = 5", power_law(1_000_000, 10_000_000), 1_000_000, 5, 100)


def direct(unary: Tensor, edge_index: Tensor, pairwise: Tensor, scale: Tensor | None, sweeps: int) -> Tensor:
    """Return the node beliefs by the definition, with (E, C, C) tensors."""
    start, end = edge_index
    coupling = pairwise if scale is None else scale[:, None, None] * pairwise
    into_start, into_end = torch.zeros(2, edge_index.shape[1], unary.shape[1])
    for _ in range(sweeps):
        total = unary.index_add(0, start, into_start).index_add(0, end, into_end)
        at_start, at_end = total[start] - into_start, total[end] - into_end
        into_end = (at_start[:, :, None] + coupling).logsumexp(1)
        into_start = (at_end[:, None, :] + coupling).logsumexp(2)
        into_start, into_end = into_start.log_softmax(-1), into_end.log_softmax(-1)
    return unary.index_add(0, start, into_start).index_add(0, end, into_end).softmax(-1)


def per_sweep(run: Callable[[int], object], few: int, many: int, repeats: int) -> float:
    """Return the seconds of one sweep, from the difference between a call with many sweeps and one with few."""
    best = []
    for num in (few, many):
        run(num)
        seconds = []
        for _ in range(repeats):
            begin = perf_counter()
            run(num)
            seconds.append(perf_counter() - begin)
        best.append(min(seconds))
    return (best[1] - best[0]) / (many - few)


def run_sweeps(mrf: ew.PairwiseMRF, sweeps: int) -> ew.PairwisePosterior:
    return ew.sum_product(mrf, max_sweeps=sweeps, tolerance=0.0)[0]


def compare(case: Case) -> CaseResult:
    unary, pairwise, scale = case.potentials()
    edges = case.edge_index
    print(f"\n{case.name}: {case.num_nodes:,} nodes, largest degree {int(edges.flatten().bincount().max()):,}")
    building = measure(lambda: ew.PairwiseMRF(unary, edges, pairwise), repeats=1)
    print(f"  building the MRF {1e3 * building.seconds:.0f} ms")
    print(f"  {'one sweep':34}{'ms':>10}{'/ edgewise':>11}{'/ copy':>10}{'/ clone':>11}", flush=True)
    messages = torch.zeros(2, edges.shape[1], case.num_classes)
    target = torch.zeros_like(messages)
    copy, clone = measure(lambda: target.copy_(messages), 9).seconds, measure(messages.clone, 9).seconds
    small, huge = edges.shape[1] < 10**5, edges.shape[1] > 5 * 10**6
    few, many = (20, 120) if small else (1, 4 if huge else 11)
    ours, result = 1.0, CaseResult(case, {})

    def row(name: str, seconds: float) -> None:
        result.milliseconds[name.partition(" (")[0]] = 1e3 * seconds
        ratios = f"{seconds / ours:11.2f}{seconds / copy:10.1f}{seconds / clone:11.1f}"
        print(f"  {name:34}{1e3 * seconds:10.2f}{ratios}", flush=True)

    for name, factor in (("shared coupling", None), ("scaled per edge", scale)):
        mrf = ew.PairwiseMRF(unary, edges, pairwise, edge_scale=factor)
        difference = (run_sweeps(mrf, 1).node - direct(unary, edges, pairwise, factor, 1)).abs().max()
        assert float(difference) < 1e-3, difference  # float32 sums over the neighbors of hubs
        ours = per_sweep(partial(run_sweeps, mrf), few, many, 1 if huge else 3)
        row(f"edgewise, {name}", ours)
        rival = partial(direct, unary, edges, pairwise, factor)
        row(f"direct, {name}", per_sweep(rival, 1, 11 if small else 2 if huge else 3, 1 if huge else 2))
        if factor is None and pgmax_rival.is_installed() and not huge:
            run, seconds = pgmax_rival.pgmax_runner(unary, edges, pairwise)
            row(f"PGMax, shared (built in {seconds:.0f} s)", per_sweep(run, 2, 42 if small else 12, 3))
    row("copy of the messages", copy)
    row("copy into new memory", clone)
    mrf = ew.PairwiseMRF(unary, edges, pairwise)
    one, one_direct = (
        measure(lambda: run_sweeps(mrf, 1), 1),
        measure(lambda: direct(unary, edges, pairwise, None, 1), 1),
    )
    result.memory = f"{one.peak_bytes / GIB:.2f}, {one_direct.peak_bytes / GIB:.2f} GiB"
    print(f"  peak memory of a call: edgewise, direct: {result.memory}")
    begin = perf_counter()
    _, convergence = ew.sum_product(mrf, max_sweeps=case.sweeps, tolerance=0.0)  # ends early once nothing changes
    print(
        f"  a call with one sweep {1e3 * one.seconds:.0f} ms, with {convergence.sweeps} sweeps "
        f"{perf_counter() - begin:.2f} s",
        flush=True,
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list("abc"), help="run only this case")
    speed_page.add_option(parser)
    options = parser.parse_args()
    packages = ["edgewise", "torch", "numba", *(["pgmax", "jax"] if pgmax_rival.is_installed() else [])]
    where = environment(*packages)
    print(where, f"{torch.get_num_threads()} threads", sep=", ")
    if not pgmax_rival.is_installed():
        print("PGMax is not installed and is skipped. To include it: pip install -r benchmarks/requirements.txt")
    results = [compare(make_case(letter)) for letter in options.only or "abc"]
    speed_page.replace_section(options.page, "inference", f"{as_table(results)}\n\n{where}.")


if __name__ == "__main__":
    main()
