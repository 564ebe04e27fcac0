"""Compiled sweeps of belief propagation against sweeps with tensors."""

import numpy as np
import pytest
import torch

from edgewise.inference import PairwiseMRF, exact_marginals, max_product, propagation, sum_product
from edgewise.inference.fixed_point import StoppingRule
from edgewise.inference.messages import log_max, log_sum, node_totals
from edgewise.inference.propagation import run_compiled, run_tensors
from edgewise.kernels import message_loops
from edgewise.kernels.message_loops import LANES
from helpers.random_fields import MRFInputs, cycle, generator, random_graph, random_mrf_inputs

RULES = {"sum": log_sum, "max": log_max}
# A sweep adds C terms with vectorized exponentials of 2 ulp error. The errors accumulate over a few sweeps.
TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-12}


def assert_equal_runs(mrf, rule, max_sweeps=5, damping=0.0, tolerance=0.0, close=None):
    stopping = StoppingRule(max_sweeps, damping, tolerance)
    got, totals, convergence = run_compiled(mrf, RULES[rule], stopping)
    expected, expected_convergence = run_tensors(mrf, RULES[rule], stopping)
    atol = close or TOLERANCE[mrf.unary.dtype]
    assert got.dtype == expected.dtype and got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=atol, atol=atol)
    torch.testing.assert_close(totals, node_totals(mrf, got), rtol=1e-12, atol=1e-12)
    if tolerance > 0:  # with 0 the outcome depends on the last bit
        assert convergence.converged == expected_convergence.converged
    assert convergence.residual == pytest.approx(expected_convergence.residual, abs=2 * atol)
    return convergence, expected_convergence


def couplings(kind, num_edges, num_classes, g):
    """Return couplings (C, C) or (E, C, C), and scales."""
    each = torch.randn(num_edges, num_classes, num_classes, generator=g, dtype=torch.float64)
    scale = torch.randn(num_edges, generator=g, dtype=torch.float64)
    return {
        "symmetric": (each[0] + each[0].T, None),
        "asymmetric": (each[0], None),
        "scaled": (each[0], scale),
        "scaled symmetric": (each[0] + each[0].T, scale),
        "per edge": (each, None),
        "scaled per edge": (each, scale),
        "wide": (1e4 * each[0].sign(), None),
        "wide scaled": (1e4 * each[0].sign(), scale.round()),
        "wide per edge": (1e4 * each.sign(), None),
        "edge of the range": (each[0].sign() * 250.0, None),
    }[kind]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_classes", [1, 2, 3, 10, 33])
@pytest.mark.parametrize("rule", ["sum", "max"])
def test_compiled_sweeps_equal_tensors_for_all_kinds_of_couplings(dtype, num_classes, rule):
    g = generator(num_classes)
    num_nodes, num_edges = (40, 100) if num_classes < 33 else (8, 12)
    edge_index = random_graph(num_nodes, num_edges, g)
    unary = torch.randn(num_nodes, num_classes, generator=g, dtype=torch.float64).to(dtype)
    if num_classes > 1:
        unary[0, 0] = -torch.inf
    for kind in (
        "symmetric",
        "asymmetric",
        "scaled",
        "scaled symmetric",
        "per edge",
        "scaled per edge",
        "wide",
        "wide scaled",
        "wide per edge",
        "edge of the range",
    ):
        pairwise, scale = couplings(kind, num_edges, num_classes, g)
        mrf = PairwiseMRF(unary, edge_index, pairwise, edge_scale=scale, evidence={3: num_classes - 1})
        wide = "wide" in kind or "range" in kind
        # Sums of ±1e4 have rounding errors of 1e-3 or 1e-12 for each of up to ten neighbors in each sweep.
        close = {torch.float32: 5e-2, torch.float64: 1e-9}[dtype] if wide else None
        for damping in (0.0, 0.4):
            assert_equal_runs(mrf, rule, max_sweeps=3, damping=damping, close=close)


@pytest.mark.parametrize("rule", ["sum", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_parts_with_wide_and_narrow_couplings_and_scales_of_any_sign(rule, dtype, monkeypatch):
    """Blocks with a coupling above the range are computed term by term, the other blocks as products."""
    monkeypatch.setattr(message_loops, "MIN_EDGES_PER_PART", 16)
    g = generator(13)
    num_nodes, num_edges, num_classes = 400, 2000, 4
    edge_index = random_graph(num_nodes, num_edges, g)
    unary = torch.randn(num_nodes, num_classes, generator=g, dtype=torch.float64).to(dtype)
    each = torch.randn(num_edges, num_classes, num_classes, generator=g, dtype=torch.float64)
    scale = torch.randn(num_edges, generator=g, dtype=torch.float64)
    scale[::3] = 0
    wide_scale, wide_each = scale.clone(), each.clone()
    wide_scale[5], wide_each[7] = 500.0, 500.0 * each[7].sign()
    symmetric = each[0] + each[0].T
    for coupling, factor in ((each[0], scale), (symmetric, scale), (each, scale), (each, None)):
        assert_equal_runs(PairwiseMRF(unary, edge_index, coupling, edge_scale=factor), rule, max_sweeps=3)
    close = {torch.float32: 1e-3, torch.float64: 1e-11}[dtype]  # sums of a message of 500 and small ones
    for coupling, factor in ((each[0], wide_scale), (symmetric, wide_scale), (wide_each, None)):
        assert_equal_runs(PairwiseMRF(unary, edge_index, coupling, edge_scale=factor), rule, max_sweeps=3, close=close)


@pytest.mark.parametrize("num_nodes", [1, 2, 63, 64, 65, 128, 129, 1000])
@pytest.mark.parametrize("max_parts", [1, 2, 16])
@pytest.mark.parametrize("num_threads", [1, 2, 3, 8, 100])
def test_threads_share_no_node_in_a_step(num_nodes, max_parts, num_threads, monkeypatch):
    monkeypatch.setattr(message_loops, "MIN_EDGES_PER_PART", 16)
    monkeypatch.setattr(message_loops, "MAX_PARTS", max_parts)
    g = generator(num_nodes)
    num_edges = 0 if num_nodes == 1 else 1 if num_nodes == 2 else 2 * num_nodes
    edge_index = random_graph(num_nodes, num_edges, g) if num_edges else torch.empty(2, 0, dtype=torch.long)
    blocks = message_loops.sort_edges(edge_index.numpy(), num_nodes)
    seen = []
    for step in message_loops.schedule(blocks.parts, num_threads):
        assert len(step) <= num_threads
        nodes_of_threads = [set() for _ in step]
        for nodes, tasks in zip(nodes_of_threads, step, strict=True):
            for t in tasks:
                lanes = slice(blocks.first[t] * LANES, blocks.first[t] * LANES + blocks.size[t])
                assert blocks.first[t] * LANES + blocks.size[t] <= blocks.first[t + 1] * LANES
                assert (blocks.nodes[:, lanes] == edge_index.numpy()[:, blocks.edge[lanes]]).all()
                seen += blocks.edge[lanes].tolist()
                nodes.update(blocks.nodes[:, lanes].flatten().tolist())
        assert len(set().union(*nodes_of_threads)) == sum(map(len, nodes_of_threads))
    assert sorted(seen) == list(range(num_edges))


def test_two_threads_take_three_steps_of_similar_size():
    low, high = np.triu_indices(16)
    steps = message_loops.schedule(np.stack([low, high]), 2)
    assert [[len(tasks) for tasks in step] for step in steps] == [[36, 36], [16, 16], [16, 16]]


@pytest.mark.parametrize("rule", ["sum", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nodes_with_more_neighbors_than_lanes(rule, dtype):
    """A hub fills several blocks of lanes, small nodes share a block, isolated nodes have none."""
    g = generator(5)
    for degrees in ([LANES - 1], [LANES], [LANES + 1], [200, 3, 130]):
        start = torch.repeat_interleave(torch.arange(len(degrees)), torch.tensor(degrees))
        end = torch.arange(len(start)) + 2 * len(degrees)  # the nodes between are isolated
        edge_index = torch.cat([torch.stack([start, end]), torch.tensor([[500], [2 * len(degrees)]])], dim=1)
        num_nodes = 510
        mrf = random_mrf_inputs(edge_index, num_nodes, 3, g, kind="per edge", dtype=dtype).mrf()
        assert_equal_runs(mrf, rule)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_and_tensor_runs_report_the_same_convergence(dtype):
    g = generator(6)
    mrf = random_mrf_inputs(random_graph(60, 120, g), 60, 3, g, coupling_std=0.4, dtype=dtype).mrf()
    small = {torch.float32: 1e-4, torch.float64: 1e-10}[dtype]
    convergence, expected = assert_equal_runs(mrf, "sum", max_sweeps=500, tolerance=small)
    assert convergence.converged and abs(convergence.sweeps - expected.sweeps) <= 1 and convergence.advice == ""
    convergence, expected = assert_equal_runs(mrf, "sum", max_sweeps=4, tolerance=small)
    assert not convergence.converged and convergence.sweeps == 4 and convergence.advice == expected.advice


@pytest.mark.parametrize("kind", ["shared", "per edge", "scaled"])
def test_compiled_sweeps_equal_tensors_for_batches(kind):
    g = generator(7)
    mrf = random_mrf_inputs(
        random_graph(30, 60, g), 30, 3, g, kind=kind, batch=(4,), coupling_std=0.3, num_observed=3
    ).mrf()
    assert_equal_runs(mrf, "sum")
    convergence, expected = assert_equal_runs(mrf, "sum", max_sweeps=300, tolerance=1e-12, close=1e-11)
    assert convergence.converged and convergence.sweeps == expected.sweeps


@pytest.mark.parametrize("rule", ["sum", "max"])
@pytest.mark.parametrize("damping", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_messages_do_not_depend_on_the_number_of_threads(rule, damping, dtype, monkeypatch):
    monkeypatch.setattr(message_loops, "MIN_EDGES_PER_PART", 16)
    g = generator(8)
    inputs = random_mrf_inputs(random_graph(301, 701, g), 301, 3, g, kind="scaled", dtype=dtype)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results.append(run_compiled(inputs.mrf(), RULES[rule], StoppingRule(20, damping, 0.0)))
    finally:
        torch.set_num_threads(before)
    for messages, totals, convergence in results[1:]:
        assert torch.equal(messages, results[0][0]) and torch.equal(totals, results[0][1])
        assert convergence == results[0][2]


def test_messages_are_finite_with_a_largest_entry_of_zero():
    g = generator(9)
    inputs = random_mrf_inputs(random_graph(50, 120, g), 50, 4, g, kind="per edge", dtype=torch.float32)
    inputs.pairwise.mul_(1e4)
    messages, _, _ = run_compiled(inputs.mrf(), log_sum, StoppingRule(20, 0.0, 0.0))
    assert messages.isfinite().all() and (messages.amax(-1) == 0).all()


def test_single_scaled_edge():
    unary = torch.tensor([[0.3, 0.0], [0.0, 1.0]], dtype=torch.float64)
    mrf = PairwiseMRF(unary, torch.tensor([[0], [1]]), torch.eye(2), edge_scale=torch.tensor([3.0]))
    assert_equal_runs(mrf, "sum")


def test_cavity_of_a_hub_is_accurate():
    potentials = 3 * torch.randn(10_000, generator=generator(12))
    unary = torch.zeros(20_001, 2)
    unary[1:10_001, 0], unary[10_001:, 1] = potentials, potentials  # the messages to the hub cancel
    edge_index = torch.stack([torch.zeros(20_000, dtype=torch.long), torch.arange(1, 20_001)])
    assert_equal_runs(PairwiseMRF(unary, edge_index, 2.0 * torch.eye(2)), "sum", max_sweeps=2)


def buffers(values):
    integers = np.int32 if values.dtype == np.float32 else np.int64
    spare = np.zeros(len(values), dtype=integers)
    return spare.view(values.dtype), spare


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectorized_exp(dtype):
    lowest = {np.float32: -87.0, np.float64: -708.0}[dtype]
    grid = np.linspace(lowest, 0.0, 200_001)
    near = -np.logspace(-12, 2, 1000)[np.logspace(-12, 2, 1000) < -lowest]
    positive = np.linspace(0, {np.float32: 30, np.float64: 300}[dtype], 10_001)  # as scaled couplings can be
    values = np.concatenate([grid, near, positive, [0.0]]).astype(dtype)
    expected = np.exp(values.astype(np.float64))
    got = values.copy()
    message_loops._exp(got, *buffers(got), len(got))
    error = np.abs(got.astype(np.float64) - expected) / expected
    assert error.max() <= 1.1 * np.finfo(dtype).eps
    assert got[-1] == 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectorized_exp_of_underflowing_numbers_is_tiny_and_positive(dtype):
    values = np.array([-np.inf, -1e30, -1e4, -709.0, -np.inf, 0.0], dtype=dtype)
    message_loops._exp(values, *buffers(values), 5)
    assert (values[:5] > 0).all() and (values[:5] <= 4 * np.finfo(dtype).tiny).all()
    assert values[5] == 0.0  # entries beyond num are unchanged


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectorized_log(dtype):
    info = np.finfo(dtype)
    low, high = np.log10(float(info.tiny)) + 1e-3, np.log10(float(info.max)) - 1e-3
    wide = np.logspace(low, high, 100_001)
    around_one = 1.0 + np.concatenate([-np.logspace(-7, -0.31, 5000), np.logspace(-7, 0.5, 5000)])
    values = np.concatenate([wide, around_one, [1.0, 2.0, 0.5, info.tiny]]).astype(dtype)
    got = values.copy()
    integers = np.int32 if dtype == np.float32 else np.int64
    message_loops._log(got, got.view(integers), np.zeros(len(got), dtype=integers), len(got))
    expected = np.log(values.astype(np.float64))
    error = np.abs(got.astype(np.float64) - expected) / np.maximum(np.abs(expected), 1e-30)
    assert error[expected != 0].max() <= 2.2 * info.eps
    assert got[len(wide) + len(around_one)] == 0.0


def record_compiled_runs(monkeypatch):
    calls = []

    def spy(*args):
        calls.append(args[1])
        return run_compiled(*args)

    monkeypatch.setattr(propagation, "run_compiled", spy)
    return calls


def test_large_mrfs_run_compiled(monkeypatch):
    calls = record_compiled_runs(monkeypatch)
    g = generator(10)
    large = random_mrf_inputs(random_graph(300, 11_000, g), 300, 2, g, coupling_std=0.01, dtype=torch.float32)
    compiled, convergence = sum_product(large.mrf())
    assert calls == [log_sum] and convergence.converged
    max_product(large.mrf())
    assert calls == [log_sum, log_max]
    monkeypatch.setattr(propagation, "MIN_COMPILED_WORK", 1 << 62)
    assert torch.allclose(sum_product(large.mrf())[0].node, compiled.node, atol=1e-4)
    assert len(calls) == 2


def test_small_mrfs_and_few_sweeps_run_with_tensors(monkeypatch):
    calls = record_compiled_runs(monkeypatch)
    g = generator(10)
    sum_product(random_mrf_inputs(cycle(20), 20, 3, g).mrf(), max_sweeps=100)
    sum_product(random_mrf_inputs(random_graph(300, 11_000, g), 300, 2, g).mrf(), max_sweeps=2)
    assert calls == []


def test_gradients_after_compiled_and_tensor_sweeps_are_equal(monkeypatch):
    g = generator(11)
    inputs = random_mrf_inputs(random_graph(12, 20, g), 12, 3, g, coupling_std=0.4)
    gradients = []
    for work in (0, 1 << 62):
        monkeypatch.setattr(propagation, "MIN_COMPILED_WORK", work)
        unary = inputs.unary.clone().requires_grad_()
        node = sum_product(MRFInputs(unary, inputs.edge_index, inputs.pairwise).mrf())[0].node
        gradients.append(torch.autograd.grad(node[:, 0].square().sum(), unary)[0])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)


@pytest.mark.parametrize("coupling", [14.0, 29.0, 31.0, 44.0, 60.0, 99.0])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_accuracy_near_the_range_where_the_method_changes(coupling, scaled, dtype):
    """The likeliest labels have the smallest entries of exp(T), just below and above where products underflow."""
    coupling = coupling if dtype == torch.float32 else 10 * coupling
    edge_index = torch.stack([torch.arange(40), torch.arange(1, 41)])
    unary = torch.zeros(41, 3, dtype=dtype)
    unary[:, 0], unary[::3, 1] = 2 * coupling, 3 * coupling
    pairwise = torch.full((3, 3), coupling, dtype=dtype)
    pairwise[0], pairwise[:, 0] = -coupling, -coupling / 2
    scale = torch.linspace(-1, 1, 40, dtype=dtype) if scaled else None
    assert_equal_runs(PairwiseMRF(unary, edge_index, pairwise, edge_scale=scale), "sum", max_sweeps=5)
    exact = marginals_in_float64(unary, edge_index, pairwise, scale)
    got = run_compiled(PairwiseMRF(unary, edge_index, pairwise, edge_scale=scale), log_sum, StoppingRule(60, 0.0, 0.0))[
        0
    ]
    marginals = node_totals(PairwiseMRF(unary, edge_index, pairwise, edge_scale=scale), got).softmax(-1)
    torch.testing.assert_close(marginals, exact, rtol=0, atol=1e-3 if dtype == torch.float32 else 1e-9)


def marginals_in_float64(unary, edge_index, pairwise, scale):
    double = [None if part is None else part.double() for part in (unary, pairwise, scale)]
    return exact_marginals(PairwiseMRF(double[0], edge_index, double[1], edge_scale=double[2]))[0].node
