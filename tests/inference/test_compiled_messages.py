"""The compiled sweeps are those of the tensors."""

import numpy as np
import pytest
import torch

from edgewise.inference import PairwiseMRF, exact_marginals, max_product, propagation, sum_product
from edgewise.inference.fixed_point import Stopping
from edgewise.inference.messages import log_max, log_sum, node_totals
from edgewise.inference.propagation import run_compiled, run_tensors
from edgewise.kernels import message_loops
from edgewise.kernels.message_loops import LANES
from helpers.random_fields import Field, cycle, generator, random_field, random_graph

RULES = {"sum": log_sum, "max": log_max}
# A sweep adds C terms, with vector exponentials that are right to 2 ulp; a few sweeps carry that on.
CLOSE = {torch.float32: 5e-5, torch.float64: 1e-12}


def assert_equal_runs(mrf, rule, max_sweeps=5, damping=0.0, tolerance=0.0, close=None):
    stopping = Stopping(max_sweeps, damping, tolerance)
    got, verdict = run_compiled(mrf, RULES[rule], stopping)
    expected, expected_verdict = run_tensors(mrf, RULES[rule], stopping)
    loose = close or CLOSE[mrf.unary.dtype]
    assert got.dtype == expected.dtype and got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=loose, atol=loose)
    if tolerance > 0:  # at 0 the last bit decides
        assert verdict.converged == expected_verdict.converged
    assert verdict.residual == pytest.approx(expected_verdict.residual, abs=2 * loose)
    return verdict, expected_verdict


def couplings(kind, num_edges, num_classes, g):
    """A coupling (C, C) or (E, C, C), and scales."""
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
def test_all_kinds_of_couplings(dtype, num_classes, rule):
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
        # Sums of ±1e4 are rounded to 1e-3 or 1e-12, at each of up to ten neighbors, in each sweep.
        close = {torch.float32: 5e-2, torch.float64: 1e-9}[dtype] if wide else None
        for damping in (0.0, 0.4):
            assert_equal_runs(mrf, rule, max_sweeps=3, damping=damping, close=close)


@pytest.mark.parametrize("rule", ["sum", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hubs_of_more_than_64_neighbors(rule, dtype):
    """Slots of a hub fill several rows of lanes; those of small nodes share one; some nodes have none."""
    g = generator(5)
    for degrees in ([LANES - 1], [LANES], [LANES + 1], [200, 3, 130]):
        start = torch.repeat_interleave(torch.arange(len(degrees)), torch.tensor(degrees))
        end = torch.arange(len(start)) + 2 * len(degrees)  # nodes in between are isolated
        edge_index = torch.cat([torch.stack([start, end]), torch.tensor([[500], [2 * len(degrees)]])], dim=1)
        num_nodes = 510
        mrf = random_field(edge_index, num_nodes, 3, g, kind="per edge", dtype=dtype).mrf()
        assert_equal_runs(mrf, rule)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convergence_is_judged_alike(dtype):
    g = generator(6)
    mrf = random_field(random_graph(60, 120, g), 60, 3, g, strength=0.4, dtype=dtype).mrf()
    small = {torch.float32: 1e-4, torch.float64: 1e-10}[dtype]
    verdict, expected = assert_equal_runs(mrf, "sum", max_sweeps=500, tolerance=small)
    assert verdict.converged and abs(verdict.sweeps - expected.sweeps) <= 1 and verdict.advice == ""
    verdict, expected = assert_equal_runs(mrf, "sum", max_sweeps=4, tolerance=small)
    assert not verdict.converged and verdict.sweeps == 4 and verdict.advice == expected.advice


@pytest.mark.parametrize("kind", ["shared", "per edge", "scaled"])
def test_batches(kind):
    g = generator(7)
    mrf = random_field(random_graph(30, 60, g), 30, 3, g, kind=kind, batch=(4,), strength=0.3, num_known=3).mrf()
    assert_equal_runs(mrf, "sum")
    verdict, expected = assert_equal_runs(mrf, "sum", max_sweeps=300, tolerance=1e-12, close=1e-11)
    assert verdict.converged and verdict.sweeps == expected.sweeps


@pytest.mark.parametrize("rule", ["sum", "max"])
@pytest.mark.parametrize("damping", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_change_no_bit(rule, damping, dtype):
    g = generator(8)
    field = random_field(random_graph(301, 701, g), 301, 3, g, kind="scaled", dtype=dtype)
    before = torch.get_num_threads()
    answers = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            answers.append(run_compiled(field.mrf(), RULES[rule], Stopping(20, damping, 0.0)))
    finally:
        torch.set_num_threads(before)
    for messages, verdict in answers[1:]:
        assert torch.equal(messages, answers[0][0]) and verdict == answers[0][1]


def test_messages_are_finite_and_at_most_zero():
    g = generator(9)
    field = random_field(random_graph(50, 120, g), 50, 4, g, kind="per edge", dtype=torch.float32)
    field.pairwise.mul_(1e4)
    messages, _ = run_compiled(field.mrf(), log_sum, Stopping(20, 0.0, 0.0))
    assert messages.isfinite().all() and (messages.amax(-1) == 0).all()


def test_a_single_scaled_edge():
    unary = torch.tensor([[0.3, 0.0], [0.0, 1.0]], dtype=torch.float64)
    mrf = PairwiseMRF(unary, torch.tensor([[0], [1]]), torch.eye(2), edge_scale=torch.tensor([3.0]))
    assert_equal_runs(mrf, "sum")


def test_the_cavity_of_a_hub_keeps_its_digits():
    pulls = 3 * torch.randn(10_000, generator=generator(12))
    unary = torch.zeros(20_001, 2)
    unary[1:10_001, 0], unary[10_001:, 1] = pulls, pulls  # in balance
    edge_index = torch.stack([torch.zeros(20_000, dtype=torch.long), torch.arange(1, 20_001)])
    assert_equal_runs(PairwiseMRF(unary, edge_index, 2.0 * torch.eye(2)), "sum", max_sweeps=2)


def buffers(values):
    integers = np.int32 if values.dtype == np.float32 else np.int64
    spare = np.zeros(len(values), dtype=integers)
    return spare.view(values.dtype), spare


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vector_exponentials(dtype):
    lowest = {np.float32: -87.0, np.float64: -708.0}[dtype]
    grid = np.linspace(lowest, 0.0, 200_001)
    near = -np.logspace(-12, 2, 1000)[np.logspace(-12, 2, 1000) < -lowest]
    positive = np.linspace(0, {np.float32: 30, np.float64: 300}[dtype], 10_001)  # of scaled couplings
    values = np.concatenate([grid, near, positive, [0.0]]).astype(dtype)
    expected = np.exp(values.astype(np.float64))
    got = values.copy()
    message_loops._exp(got, *buffers(got), len(got))
    error = np.abs(got.astype(np.float64) - expected) / expected
    assert error.max() <= 1.1 * np.finfo(dtype).eps
    assert got[-1] == 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vector_exponentials_of_what_underflows_are_tiny_but_positive(dtype):
    values = np.array([-np.inf, -1e30, -1e4, -709.0, -np.inf, 0.0], dtype=dtype)
    message_loops._exp(values, *buffers(values), 5)
    assert (values[:5] > 0).all() and (values[:5] <= 4 * np.finfo(dtype).tiny).all()
    assert values[5] == 0.0  # beyond num nothing is touched


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vector_logarithms(dtype):
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


def counted(monkeypatch):
    calls = []

    def spy(*args):
        calls.append(args[1])
        return run_compiled(*args)

    monkeypatch.setattr(propagation, "run_compiled", spy)
    return calls


def test_large_fields_take_the_compiled_path(monkeypatch):
    calls = counted(monkeypatch)
    g = generator(10)
    large = random_field(random_graph(300, 11_000, g), 300, 2, g, strength=0.01, dtype=torch.float32)
    compiled, convergence = sum_product(large.mrf())
    assert calls == [log_sum] and convergence.converged
    max_product(large.mrf())
    assert calls == [log_sum, log_max]
    monkeypatch.setattr(propagation, "MIN_COMPILED_WORK", 1 << 62)
    assert torch.allclose(sum_product(large.mrf())[0].node, compiled.node, atol=1e-4)
    assert len(calls) == 2


def test_small_fields_and_few_sweeps_do_not(monkeypatch):
    calls = counted(monkeypatch)
    g = generator(10)
    sum_product(random_field(cycle(20), 20, 3, g).mrf(), max_sweeps=100)
    sum_product(random_field(random_graph(300, 11_000, g), 300, 2, g).mrf(), max_sweeps=2)
    assert calls == []


def test_gradients_are_those_of_the_tensors(monkeypatch):
    g = generator(11)
    field = random_field(random_graph(12, 20, g), 12, 3, g, strength=0.4)
    gradients = []
    for work in (0, 1 << 62):
        monkeypatch.setattr(propagation, "MIN_COMPILED_WORK", work)
        unary = field.unary.clone().requires_grad_()
        node = sum_product(Field(unary, field.edge_index, field.pairwise).mrf())[0].node
        gradients.append(torch.autograd.grad(node[:, 0].square().sum(), unary)[0])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)


@pytest.mark.parametrize("strength", [14.0, 29.0, 31.0, 44.0, 60.0, 99.0])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranges_at_which_the_method_changes(strength, scaled, dtype):
    """Fields that sit on the smallest entries of exp(T): just below and above where products would underflow."""
    strength = strength if dtype == torch.float32 else 10 * strength
    edge_index = torch.stack([torch.arange(40), torch.arange(1, 41)])
    unary = torch.zeros(41, 3, dtype=dtype)
    unary[:, 0], unary[::3, 1] = 2 * strength, 3 * strength
    pairwise = torch.full((3, 3), strength, dtype=dtype)
    pairwise[0], pairwise[:, 0] = -strength, -strength / 2
    scale = torch.linspace(-1, 1, 40, dtype=dtype) if scaled else None
    assert_equal_runs(PairwiseMRF(unary, edge_index, pairwise, edge_scale=scale), "sum", max_sweeps=5)
    exact = in_float64(unary, edge_index, pairwise, scale)
    got = run_compiled(PairwiseMRF(unary, edge_index, pairwise, edge_scale=scale), log_sum, Stopping(60, 0.0, 0.0))[0]
    believed = node_totals(PairwiseMRF(unary, edge_index, pairwise, edge_scale=scale), got).softmax(-1)
    torch.testing.assert_close(believed, exact, rtol=0, atol=1e-3 if dtype == torch.float32 else 1e-9)


def in_float64(unary, edge_index, pairwise, scale):
    wide = [None if part is None else part.double() for part in (unary, pairwise, scale)]
    return exact_marginals(PairwiseMRF(wide[0], edge_index, wide[1], edge_scale=wide[2]))[0].node
