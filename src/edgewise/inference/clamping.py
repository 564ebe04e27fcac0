"""Joints of pairs that are not edges, by clamping one end to each of its labels.

The joint of nodes i and j is P(y_i = l) P(y_j = m | y_i = l). The condition is evidence, so each label l of i takes one
run of belief propagation on the field, which serves all pairs of i. Few nodes are clamped: a vertex cover of the pairs.
On a forest the runs are exact, elsewhere they are those of `sum_product`. The joint is then fitted to the marginals of
both nodes, because all joints of a posterior have the marginals of its nodes.
"""

import heapq
from collections.abc import Iterator
from time import perf_counter
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.data.edges import forms_forest, undirected_edges
from edgewise.inference.coupled_marginals import fit_to_marginals
from edgewise.inference.exact import exact_marginals
from edgewise.inference.messages import field_of
from edgewise.inference.mrf import PairwiseMRF
from edgewise.inference.propagation import sum_product
from edgewise.posterior import ClampingCost, PairwisePosterior, SlowClampingWarning
from edgewise.small_samples import warn_caller

BATCH_ELEMENTS = 1 << 22  # potentials and messages of the fields of one batch
CHUNK_ELEMENTS = 1 << 20  # entries of joints that are fitted at once

# Estimate of the time.
MAX_SILENT_SECONDS = 10.0  # above which a warning states the time before it is spent
MIN_TIMED_OPERATIONS = 1 << 26  # of all runs; less takes no 10 seconds anywhere and is not timed
TIMED_ENTRIES = 1 << 22  # of messages; enough for `sum_product` to choose between loops and tensors as in a whole run
MIN_TIMED_SWEEPS = 3
MAX_TIMED_SWEEPS = 100
USUAL_SWEEPS = 50  # of a run, if the posterior records none


class Plan(NamedTuple):
    """Pairs whose nodes depend on each other, sorted by the end that is clamped, and the runs of all clamped nodes."""

    independent: Int[Tensor, " rest"]  # positions of all other pairs
    dependent: Int[Tensor, " pairs"]  # positions of the pairs
    clamped: Int[Tensor, " pairs"]  # the end of each pair that is clamped, as an index into ``nodes``
    partner: Int[Tensor, " pairs"]  # the other end
    is_start: Bool[Tensor, " pairs"]  # whether the first node of the pair is clamped
    nodes: Int[Tensor, " nodes"]
    run_node: Int[Tensor, " runs"]  # the node of each run as an index into ``nodes``, in their order
    run_label: Int[Tensor, " runs"]


def plan_runs(posterior: PairwisePosterior, pairs: Int[Tensor, "2 pairs"]) -> Plan:
    """Choose the nodes to clamp. Pairs with a certain node, or in different components, are independent."""
    component, certain = posterior.component[pairs], posterior.certain[pairs].any(0)
    depends = (component[0] == component[1]) & ~certain & (pairs[0] != pairs[1])
    dependent = depends.nonzero().squeeze(1)
    nodes = torch.tensor(vertex_cover(pairs[:, dependent], posterior.num_nodes), dtype=torch.long, device=pairs.device)
    rank = torch.full((posterior.num_nodes,), len(nodes), device=pairs.device)
    rank[nodes] = torch.arange(len(nodes), device=pairs.device)
    start, end = pairs[:, dependent]
    is_start = rank[start] < rank[end]
    clamped, partner = torch.where(is_start, rank[start], rank[end]), torch.where(is_start, end, start)
    order = clamped.argsort(stable=True)
    run_node, run_label = (posterior.node.detach()[nodes] > 0).nonzero(as_tuple=True)
    dependent, clamped, partner, is_start = dependent[order], clamped[order], partner[order], is_start[order]
    return Plan((~depends).nonzero().squeeze(1), dependent, clamped, partner, is_start, nodes, run_node, run_label)


def vertex_cover(pairs: Int[Tensor, "2 pairs"], num_nodes: int) -> list[int]:
    """Find nodes that cover all pairs, greedily by the number of uncovered pairs. Of equals the lowest comes first.

    >>> vertex_cover(torch.tensor([[3, 3, 3, 0], [0, 1, 2, 4]]), 5)
    [3, 0]
    """
    partners: dict[int, list[int]] = {}
    for i, j in undirected_edges(pairs, num_nodes).T.tolist():
        partners.setdefault(i, []).append(j)
        partners.setdefault(j, []).append(i)
    uncovered = {node: len(others) for node, others in partners.items()}
    heap = [(-count, node) for node, count in uncovered.items()]
    heapq.heapify(heap)
    cover: list[int] = []
    while heap:
        count, node = heapq.heappop(heap)
        if -count != uncovered[node]:
            heapq.heappush(heap, (-uncovered[node], node))
        elif count:
            cover.append(node)
            uncovered[node] = 0
            for other in partners[node]:
                uncovered[other] = max(0, uncovered[other] - 1)
    return cover


class Solver:
    """Belief propagation on the field of a posterior, with evidence on one node in each run."""

    def __init__(self, posterior: PairwisePosterior):
        if posterior.convergence is not None and posterior.convergence.method == "max-product":
            raise ValueError(
                "Expected a posterior of marginals to clamp, but got the max-marginals of max_product. Use sum_product "
                "or infer."
            )
        self.field = field_of(posterior)
        self.dtype = torch.promote_types(posterior.messages.dtype, torch.float32)
        recorded = 0 if posterior.convergence is None else posterior.convergence.sweeps
        self.expected_sweeps = recorded or USUAL_SWEEPS
        self.is_forest = forms_forest(
            posterior.edge_index[:, ~posterior.certain[posterior.edge_index].any(0)], posterior.num_nodes
        )
        self.num_failed = 0

    @property
    def batch_size(self) -> int:
        """Number of runs at once."""
        field = self.field
        elements = field.unary.numel() + 2 * field.num_edges * field.num_classes
        elements += 0 if field.is_shared else field.pairwise.numel()
        return max(1, BATCH_ELEMENTS // max(1, elements))

    def run(self, nodes: Int[Tensor, " runs"], labels: Int[Tensor, " runs"]) -> Float[Tensor, "runs nodes classes"]:
        """Return the marginals of all nodes, given the label of one node in each run."""
        fields = self._clamp(nodes, labels)
        if self.is_forest:
            return exact_marginals(fields)[0].node
        posterior, convergence = sum_product(fields)
        self.num_failed += 0 if convergence else len(nodes)
        return posterior.node

    def _clamp(self, nodes: Int[Tensor, " runs"], labels: Int[Tensor, " runs"]) -> PairwiseMRF:
        field, runs = self.field, torch.arange(len(nodes), device=nodes.device)
        unary = field.unary.to(self.dtype).repeat(len(nodes), 1, 1)
        value = unary[runs, nodes, labels]
        unary[runs, nodes] = -torch.inf
        unary[runs, nodes, labels] = value
        return PairwiseMRF(unary, field.edge_index, field.pairwise, edge_scale=field.edge_scale)

    def seconds_per_run(self, nodes: Int[Tensor, " runs"], labels: Int[Tensor, " runs"]) -> float:
        """Time a few sweeps, and multiply by the number of sweeps that the posterior took."""
        entries = max(1, 2 * self.field.num_edges * self.field.num_classes)
        sweeps = -(-TIMED_ENTRIES // entries)
        num_runs = 1 if self.is_forest or sweeps <= MAX_TIMED_SWEEPS else min(len(nodes), self.batch_size)
        sweeps = max(MIN_TIMED_SWEEPS, sweeps) if sweeps <= MAX_TIMED_SWEEPS else MIN_TIMED_SWEEPS
        fields = self._clamp(nodes[:num_runs], labels[:num_runs])
        seconds = 0.0
        for _ in range(2):  # the first call may compile loops
            begin = perf_counter()
            if self.is_forest:
                exact_marginals(fields)
                seconds = perf_counter() - begin
            else:
                _, convergence = sum_product(fields, max_sweeps=sweeps, damping=0.0, tolerance=0.0)
                seconds = (perf_counter() - begin) / max(1, convergence.sweeps) * self.expected_sweeps
        return seconds / num_runs

    @property
    def num_operations(self) -> int:
        """Approximate number of operations of a run."""
        sweeps = 2 if self.is_forest else self.expected_sweeps
        return sweeps * (self.field.unary.numel() + 2 * self.field.num_edges * self.field.num_classes**2)


def estimate_cost(posterior: PairwisePosterior, pairs: Int[Tensor, "2 pairs"]) -> ClampingCost:
    """Estimate the cost of the joints of pairs that are not edges."""
    with torch.no_grad():
        plan = plan_runs(posterior, pairs)
        return _estimate(plan, Solver(posterior)) if len(plan.nodes) else ClampingCost(0, 0, 0.0)


def _estimate(plan: Plan, solver: Solver) -> ClampingCost:
    num_runs = len(plan.run_node)
    seconds = num_runs * solver.seconds_per_run(plan.nodes[plan.run_node], plan.run_label)
    return ClampingCost(len(plan.nodes), num_runs, seconds)


def iterate_joints(posterior: PairwisePosterior, pairs: Int[Tensor, "2 pairs"]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the positions of some pairs and their joints (some, C, C), until all pairs are done.

    The pairs are distinct nodes without an edge. If the runs will take long, warn first.
    """
    with torch.no_grad():
        plan = plan_runs(posterior, pairs)
        solver = Solver(posterior) if len(plan.nodes) else None
        if solver is not None and len(plan.run_node) * solver.num_operations > MIN_TIMED_OPERATIONS:
            cost = _estimate(plan, solver)
            if cost.seconds > MAX_SILENT_SECONDS:
                warn_caller(f"{cost} To spend less, pass fewer pairs.", SlowClampingWarning)
    return _iterate(posterior, pairs, plan, solver)


@torch.no_grad()
def _iterate(
    posterior: PairwisePosterior, pairs: Int[Tensor, "2 pairs"], plan: Plan, solver: Solver | None
) -> Iterator[tuple[Tensor, Tensor]]:
    node = posterior.node.detach().double()
    node = node / node.sum(1, keepdim=True)
    dtype, step = posterior.node.dtype, max(1, CHUNK_ELEMENTS // posterior.num_classes**2)
    for places in plan.independent.split(step):
        start, end = node[pairs[:, places]]
        yield places, (start[:, :, None] * end[:, None, :]).to(dtype)
    if solver is None:
        return
    per_batch = max(1, solver.batch_size // posterior.num_classes)
    for first in range(0, len(plan.nodes), per_batch):
        lo, hi = torch.searchsorted(
            plan.clamped, torch.tensor([first, first + per_batch], device=pairs.device)
        ).tolist()
        given = _conditionals(plan, solver, first, first + per_batch, slice(lo, hi), posterior.num_classes)
        for begin in range(lo, hi, step):
            part = slice(begin, min(begin + step, hi))
            rows, columns = node[plan.nodes[plan.clamped[part]]], node[plan.partner[part]]
            joints = rows[:, :, None] * given[part.start - lo : part.stop - lo]
            joints = round_to_marginals(fit_to_marginals(joints, rows, columns), rows, columns)
            yield plan.dependent[part], torch.where(plan.is_start[part, None, None], joints, joints.mT).to(dtype)
    if solver.num_failed:
        warn_caller(
            f"Belief propagation did not converge for up to {solver.num_failed:,} of {len(plan.run_node):,} clamped "
            "labels. The joints of their pairs may be wrong. Use exact_marginals if the width of the graph allows it.",
            UserWarning,
        )


def _conditionals(
    plan: Plan, solver: Solver, first: int, last: int, pairs: slice, num_classes: int
) -> Float[Tensor, "pairs classes classes"]:
    """Compute P(y_j = m | y_i = l) of the pairs whose clamped nodes are first to last - 1; 0 for impossible l."""
    clamped, partner = plan.clamped[pairs], plan.partner[pairs]
    lo, hi = torch.searchsorted(plan.run_node, torch.tensor([first, last], device=clamped.device)).tolist()
    run_of = torch.full((last - first, num_classes), -1, device=clamped.device)
    run_of[plan.run_node[lo:hi] - first, plan.run_label[lo:hi]] = torch.arange(lo, hi, device=clamped.device)
    run_of_pair = run_of[clamped - first]
    given = torch.zeros(len(clamped), num_classes, num_classes, dtype=torch.float64, device=clamped.device)
    for begin in range(lo, hi, solver.batch_size):
        batch = slice(begin, min(begin + solver.batch_size, hi))
        marginals = solver.run(plan.nodes[plan.run_node[batch]], plan.run_label[batch]).double()
        pair, label = ((run_of_pair >= batch.start) & (run_of_pair < batch.stop)).nonzero(as_tuple=True)
        given[pair, label] = marginals[run_of_pair[pair, label] - batch.start, partner[pair]]
    return given


def round_to_marginals(
    joints: Float[Tensor, "pairs classes classes"],
    rows: Float[Tensor, "pairs classes"],
    columns: Float[Tensor, "pairs classes"],
) -> Float[Tensor, "pairs classes classes"]:
    """Change joints whose marginals are slightly off to joints with the given marginals.

    Rows and columns that are too large are scaled down, and the product of what is missing is added (Altschuler, Weed,
    Rigollet 2017).
    """
    joints = joints * (rows / joints.sum(2).clamp(min=1e-300)).clamp(max=1.0).unsqueeze(2)
    joints = joints * (columns / joints.sum(1).clamp(min=1e-300)).clamp(max=1.0).unsqueeze(1)
    missing_rows = (rows - joints.sum(2)).clamp(min=0.0)
    missing_columns = (columns - joints.sum(1)).clamp(min=0.0)
    total = missing_rows.sum(1).clamp(min=1e-300)[:, None, None]
    return joints + missing_rows.unsqueeze(2) * missing_columns.unsqueeze(1) / total
