"""Graph attention: compiled loops, tensors and the formulas give the same."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from edgewise.kernels import dispatch as compiled
from edgewise.kernels.attention import Neighborhoods, attend, attend_tensors
from edgewise.kernels.dispatch import Threads
from edgewise.kernels.sparse import DropoutMask
from edgewise.models.graph_pass import ReceptiveField
from helpers.reference.layers import attention, neighbors
from helpers.small_graphs import generator, make_task, random_data

SIZES = [(8, 8), (1, 3), (1, 7), (3, 5), (2, 16), (1, 1), (2, 17)]
CLOSE = {torch.float32: 1e-5, torch.float64: 1e-12}
TARGETS = {"all": None, "some": [0, 3, 4, 11, 29], "one": [7]}


def neighborhoods_of(seed, nodes):
    """The neighborhoods of some nodes, or of all, and how many sources they have."""
    task = make_task(random_data(seed))
    nodes = task.all_nodes if nodes is None else np.array(nodes)
    field = ReceptiveField(task, task.x, nodes, 1)
    return field.neighborhoods(1), len(field.within(1))


def random_case(seed, heads, units, nodes=None, drops=False, dtype=torch.float64, scale=2.0):
    """Scores of about 1, whatever the number of units."""
    neighborhoods, num_sources = neighborhoods_of(seed, nodes)
    g = generator(seed)
    shapes = (num_sources, heads * units), (heads, units), (heads, units)
    drawn = [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]
    parts = [part.to(dtype).requires_grad_() for part in (drawn[0], drawn[1] / units**0.5, drawn[2] / units**0.5)]
    kept = None
    if drops:
        kept = DropoutMask((torch.rand(neighborhoods.num_pairs * heads, generator=g) < 0.6).to(torch.uint8), scale)
    return parts, neighborhoods, kept


def by_loops(parts, neighborhoods, kept):
    projected, att_src, att_dst = (part.detach().double() for part in parts)
    heads = len(att_src)
    first, source = neighborhoods.first.tolist(), neighborhoods.source.tolist()
    neighbors = [source[lo:hi] for lo, hi in pairwise(first)]
    factor = None
    if kept is not None:
        rows = (kept.entries.double() * kept.scale).view(-1, heads).tolist()
        factor = [rows[lo:hi] for lo, hi in pairwise(first)]
    split = projected.view(len(projected), *att_src.shape).tolist()
    out = attention(split, att_src.tolist(), att_dst.tolist(), neighbors, neighborhoods.own.tolist(), factor)
    return torch.tensor(out, dtype=parts[0].dtype)


def assert_same(got, expected, dtype):
    torch.testing.assert_close(got, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize(("heads", "units"), SIZES)
@pytest.mark.parametrize("drops", [False, True])
def test_loops_from_the_formulas(dtype, heads, units, drops):
    for nodes in TARGETS.values():
        parts, neighborhoods, kept = random_case(units, heads, units, nodes, drops, dtype)
        expected = by_loops(parts, neighborhoods, kept)
        assert_same(attend(*parts, neighborhoods, kept).detach(), expected, dtype)
        assert_same(attend_tensors(*parts, neighborhoods, kept).detach(), expected, dtype)


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize(("heads", "units"), SIZES)
@pytest.mark.parametrize("drops", [False, True])
def test_gradients_are_those_of_tensors(dtype, heads, units, drops):
    for nodes in TARGETS.values():
        parts, neighborhoods, kept = random_case(10 + units, heads, units, nodes, drops, dtype)
        outs = [run(*parts, neighborhoods, kept) for run in (attend, attend_tensors)]
        weight = torch.randn(outs[0].shape, generator=generator(1), dtype=dtype)
        got, expected = (torch.autograd.grad((out * weight).sum(), parts) for out in outs)
        assert_same(got, expected, dtype)


@pytest.mark.parametrize("run", [attend, attend_tensors])
def test_a_scale_that_float32_would_round(run):
    parts, neighborhoods, kept = random_case(2, 2, 3, drops=True, scale=1 / 0.7)
    assert_same(run(*parts, neighborhoods, kept).detach(), by_loops(parts, neighborhoods, kept), torch.float64)


@pytest.mark.parametrize(("heads", "units"), [(2, 3), (1, 9)])
@pytest.mark.parametrize("drops", [False, True])
def test_gradcheck(heads, units, drops):
    parts, neighborhoods, kept = random_case(3, heads, units, TARGETS["some"], drops)
    assert torch.autograd.gradcheck(lambda *parts: attend(*parts, neighborhoods, kept), parts)


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_scores_stay_finite(dtype, size):
    """The largest score takes all: gradients of weights vanish, but none is NaN."""
    parts, neighborhoods, _ = random_case(4, 2, 4, dtype=dtype)
    projected, att_src, att_dst = (part.detach().clone() for part in parts)
    att_src = (att_src.sign() * size).requires_grad_()
    att_dst.requires_grad_()
    projected.requires_grad_()
    out = attend(projected, att_src, att_dst, neighborhoods)
    grads = torch.autograd.grad(out.sum(), (projected, att_src, att_dst))
    assert all(bool(part.isfinite().all()) for part in (out, *grads))
    # Scores of 1e4 are rounded to 1e-3 in float32, and so are their differences.
    expected = by_loops((projected, att_src, att_dst), neighborhoods, None)
    torch.testing.assert_close(out.detach(), expected, rtol=0, atol={torch.float32: 1e-2, torch.float64: 1e-9}[dtype])


@pytest.mark.parametrize("dtype", list(CLOSE))
def test_a_node_without_neighbors_keeps_its_own(dtype):
    """Nodes 28 and 29 have no neighbors: whatever the weights, the softmax of one score is 1."""
    parts, neighborhoods, _ = random_case(5, 3, 5, dtype=dtype)
    out = attend(*parts, neighborhoods)
    assert torch.equal(out[28:], parts[0][28:])
    weight = torch.randn(2, 15, generator=generator(2), dtype=dtype)
    grads = torch.autograd.grad((out[28:] * weight).sum(), parts)
    assert torch.equal(grads[0][28:], weight) and not grads[0][:28].any() and not grads[1].any() and not grads[2].any()


def test_all_weights_dropped():
    parts, neighborhoods, _ = random_case(6, 2, 3)
    kept = DropoutMask(torch.zeros(neighborhoods.num_pairs * 2, dtype=torch.uint8), 2.0)
    out = attend(*parts, neighborhoods, kept)
    assert not out.any() and not any(grad.any() for grad in torch.autograd.grad(out.sum(), parts))


def test_equal_scores_give_the_mean():
    (projected, att_src, att_dst), neighborhoods, _ = random_case(7, 2, 3)
    out = attend(projected, torch.zeros_like(att_src), torch.zeros_like(att_dst), neighborhoods).detach()
    first, source = neighborhoods.first.tolist(), neighborhoods.source
    for i, (lo, hi) in enumerate(pairwise(first)):
        torch.testing.assert_close(out[i], projected[source[lo:hi]].mean(0).detach(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("drops", [False, True])
def test_threads_change_no_bit(dtype, drops, monkeypatch):
    monkeypatch.setattr(compiled, "MIN_PARALLEL_OPERATIONS", 0)
    parts, neighborhoods, kept = random_case(11, 2, 9, None, drops, dtype)
    answers = []
    for num in (1, 2, 5, 50):
        out = attend(*parts, replace(neighborhoods, threads=Threads(num)), kept)
        answers.append([out, *torch.autograd.grad(out.square().sum(), parts)])
    for others in answers[1:]:
        assert all(torch.equal(got, expected) for got, expected in zip(others, answers[0], strict=True))


@pytest.mark.parametrize("nodes", TARGETS.values(), ids=TARGETS)
def test_each_target_has_its_neighbors_and_itself(nodes):
    data = random_data(8)
    task = make_task(data)
    nodes = list(range(30)) if nodes is None else nodes
    adjacent = neighbors(data.edge_index.T.tolist(), 30)
    sources = sorted({j for i in nodes for j in adjacent[i]})
    neighborhoods = ReceptiveField(task, task.x, np.array(nodes), 1).neighborhoods(1)
    named = [sources[place] for place in neighborhoods.source]
    first = neighborhoods.first.tolist()
    assert [sorted(named[lo:hi]) for lo, hi in pairwise(first)] == [adjacent[i] for i in nodes]
    assert [sources[place] for place in neighborhoods.own] == nodes
    assert neighborhoods.num_pairs == sum(len(adjacent[i]) for i in nodes)


def test_some_targets_among_all_sources():
    parts, neighborhoods, _ = random_case(9, 2, 3)
    nodes, device = np.array([2, 5, 28]), torch.device("cpu")
    adjacent = make_task(random_data(9)).adjacency[nodes]
    some = Neighborhoods.from_arrays(adjacent.indptr, adjacent.indices, nodes, 30, device, Threads(1))
    torch.testing.assert_close(attend(*parts, some), attend(*parts, neighborhoods)[[2, 5, 28]], rtol=0, atol=1e-14)
