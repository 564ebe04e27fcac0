"""Benchmark belief propagation against tensors and PGMax.

    python benchmarks/inference.py               # part of `make bench`: some minutes, 12 GiB
    python benchmarks/inference.py --only a      # one of a (Pubmed), b (10^6 edges, C = 10), c (10^7 edges, C = 5)
    python benchmarks/inference.py --quick       # a, and b without PGMax
    python benchmarks/inference.py --page docs/speed.md

All times are measured in one process and are the best of a few repeats, without compilation. The time of one sweep is
the difference between a call with several sweeps and a call with few, divided by the number of sweeps. The rest of a
call is its setup.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
import pgmax_rival
import speed_page
import torch
from measure import GIB, environment, measure, split_call
from torch import Tensor

import edgewise as ew


@dataclass(frozen=True)
class Case:
    """A graph with random potentials."""

    name: str
    edge_index: Tensor
    num_nodes: int
    num_classes: int

    def potentials(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draw unaries, a symmetric coupling matrix, and a scale for each edge."""
        g = torch.Generator().manual_seed(0)
        unary = torch.randn(self.num_nodes, self.num_classes, generator=g)
        pairwise = 0.2 * torch.randn(self.num_classes, self.num_classes, generator=g)
        return unary, pairwise + pairwise.T, torch.rand(self.edge_index.shape[1], generator=g)

    def matrices(self) -> Tensor:
        """Draw a coupling matrix for each edge."""
        shape = (self.edge_index.shape[1], self.num_classes, self.num_classes)
        return torch.randn(shape, generator=torch.Generator().manual_seed(1)).mul_(0.3)


@dataclass
class CaseResult:
    """Milliseconds per sweep by row of the table, setup in sweeps by coupling, and formatted peak memory of a case."""

    case: Case
    milliseconds: dict[str, float]
    setup: dict[str, float]
    memory: str = ""


ROWS = {
    "one coupling for all edges": ["edgewise, shared coupling"],
    "coupling scaled per edge": ["edgewise, scaled per edge"],
    "a matrix per edge": ["edgewise, matrix per edge"],
    "the same sweep with (E, C, C) tensors: shared, scaled, matrix": [
        "direct, shared coupling",
        "direct, scaled per edge",
        "direct, matrix per edge",
    ],
    "PGMax, shared": ["PGMax, shared"],
    "copy of the messages: in place, into new memory": ["copy of the messages", "copy into new memory"],
}


def as_table(results: Sequence[CaseResult]) -> str:
    """Format the times of one sweep as a Markdown table."""
    rows = [[name, *(_cell(result, parts) for result in results)] for name, parts in ROWS.items()]
    setups = (", ".join(f"{sweeps:.1f}" for sweeps in result.setup.values()) for result in results)
    setup = ["once per call, in sweeps: shared, scaled, matrix", *setups]
    memory = ["peak memory of a call: edgewise, (E, C, C) tensors", *(result.memory for result in results)]
    return speed_page.table(["ms per sweep", *(result.case.name for result in results)], [*rows, setup, memory])


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
        return Case("Pubmed, C = 3", once, int(data.num_nodes), 3)
    if letter == "b":
        return Case("10⁶ edges, power law, C = 10", power_law(100_000, 1_000_000), 100_000, 10)
    return Case("10⁷ edges, power law, C = 5", power_law(1_000_000, 10_000_000), 1_000_000, 5)


def direct(unary: Tensor, edge_index: Tensor, pairwise: Tensor, scale: Tensor | None, sweeps: int) -> Tensor:
    """Return the node beliefs by the definition, with (E, C, C) tensors."""
    start, end = edge_index
    coupling = pairwise if scale is None else scale[:, None, None] * pairwise
    into_start, into_end = unary.new_zeros(2, edge_index.shape[1], unary.shape[1])
    for _ in range(sweeps):
        total = unary.index_add(0, start, into_start).index_add(0, end, into_end)
        at_start, at_end = total[start] - into_start, total[end] - into_end
        into_end = (at_start[:, :, None] + coupling).logsumexp(1)
        into_start = (at_end[:, None, :] + coupling).logsumexp(2)
        into_start, into_end = into_start.log_softmax(-1), into_end.log_softmax(-1)
    return unary.index_add(0, start, into_start).index_add(0, end, into_end).softmax(-1)


def run_sweeps(mrf: ew.PairwiseMRF, sweeps: int) -> ew.PairwisePosterior:
    return ew.sum_product(mrf, max_sweeps=sweeps, damping=0.0, tolerance=0.0)[0]


def compare(case: Case, with_pgmax: bool) -> CaseResult:
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
    ours, result = 1.0, CaseResult(case, {}, {})

    def row(name: str, seconds: float) -> None:
        result.milliseconds[name.partition(" (")[0]] = 1e3 * seconds
        ratios = f"{seconds / ours:11.2f}{seconds / copy:10.1f}{seconds / clone:11.1f}"
        print(f"  {name:34}{1e3 * seconds:10.2f}{ratios}", flush=True)

    for name in ("shared coupling", "scaled per edge", "matrix per edge"):
        coupling = case.matrices() if name == "matrix per edge" else pairwise
        factor = scale if name == "scaled per edge" else None
        mrf = ew.PairwiseMRF(unary, edges, coupling, edge_scale=factor)
        if not huge:
            factor_64 = None if factor is None else factor.double()
            expected = direct(unary.double(), edges, coupling.double(), factor_64, 1)
            torch.testing.assert_close(run_sweeps(mrf, 1).node.double(), expected, atol=1e-4, rtol=0)
        ours, setup = split_call(partial(run_sweeps, mrf), few, many, 3 if huge else 7)
        result.setup[name] = setup / ours
        row(f"edgewise, {name}", ours)
        print(f"  {'once per call':34}{1e3 * setup:10.2f}{setup / ours:11.2f}", flush=True)
        rival = partial(direct, unary, edges, coupling, factor)
        row(f"direct, {name}", split_call(rival, 1, 11 if small else 2 if huge else 3, 1 if huge else 3)[0])
        if name == "shared coupling" and with_pgmax and not huge:
            run, seconds = pgmax_rival.pgmax_runner(unary, edges, pairwise)
            row(f"PGMax, shared (built in {seconds:.0f} s)", split_call(run, 2, 42 if small else 12, 3)[0])
    row("copy of the messages", copy)
    row("copy into new memory", clone)
    mrf = ew.PairwiseMRF(unary, edges, pairwise)
    one, one_direct = (
        measure(lambda: run_sweeps(mrf, 1), 1),
        measure(lambda: direct(unary, edges, pairwise, None, 1), 1),
    )
    result.memory = f"{one.peak_bytes / GIB:.2f}, {one_direct.peak_bytes / GIB:.2f} GiB"
    print(f"  peak memory of a call: edgewise, direct: {result.memory}")
    if not huge:
        begin = perf_counter()
        _, convergence = ew.sum_product(mrf)
        print(f"  until convergence, {convergence.sweeps} sweeps: {perf_counter() - begin:.2f} s", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list("abc"), help="run only this case")
    speed_page.add_options(parser)
    options = parser.parse_args()
    packages = ["edgewise", "torch", "numba", *(["pgmax", "jax"] if pgmax_rival.is_installed() else [])]
    where = environment(*packages)
    print(where, f"{torch.get_num_threads()} threads", sep=", ")
    if not pgmax_rival.is_installed():
        print("PGMax is not installed and is skipped. To include it: pip install -r benchmarks/requirements.txt")
    results = []
    for letter in options.only or ("ab" if options.quick else "abc"):
        with_pgmax = pgmax_rival.is_installed() and not (options.quick and letter == "b")
        results.append(compare(make_case(letter), with_pgmax))
    speed_page.replace_section(options.page, "inference", f"{as_table(results)}\n\n{where}.")


if __name__ == "__main__":
    main()
