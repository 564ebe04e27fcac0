"""Graph attention: compiled loops and tensors against reference loops."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from edgewise.kernels import dispatch as compiled
from edgewise.kernels.attention import MAX_SCORE_RANGE, Neighborhoods, attend, attend_tensors
from edgewise.kernels.dispatch import Threads
from edgewise.kernels.sparse import DropoutMask
from edgewise.models.graph_pass import ReceptiveField
from helpers.reference.layers import attention, neighbors
from helpers.small_graphs import generator, make_task, random_data

SIZES = [(8, 8), (1, 3), (1, 7), (3, 5), (2, 16), (1, 1), (2, 17)]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
TARGETS = {"all": None, "some": [0, 3, 4, 11, 29], "one": [7]}


def make_neighborhoods(seed, nodes):
    """Return the neighborhoods of some nodes, or of all nodes, and the number of sources."""
    task = make_task(random_data(seed))
    nodes = task.all_nodes if nodes is None else np.array(nodes)
    field = ReceptiveField(task, task.x, nodes, 1)
    return field.neighborhoods(1), len(field.within(1))


def random_case(seed, heads, units, nodes=None, drops=False, dtype=torch.float64, scale=2.0):
    """Draw projected features and attention vectors, whose scores are about 1 for any number of units."""
    neighborhoods, num_sources = make_neighborhoods(seed, nodes)
    g = generator(seed)
    shapes = (num_sources, heads * units), (heads, units), (heads, units)
    drawn = [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]
    parts = [part.to(dtype).requires_grad_() for part in (drawn[0], drawn[1] / units**0.5, drawn[2] / units**0.5)]
    mask = None
    if drops:
        mask = DropoutMask((torch.rand(neighborhoods.num_pairs * heads, generator=g) < 0.6).to(torch.uint8), scale)
    return parts, neighborhoods, mask


def reference_attention(parts, neighborhoods, mask):
    projected, att_src, att_dst = (part.detach().double() for part in parts)
    heads = len(att_src)
    first, source = neighborhoods.first.tolist(), neighborhoods.source.tolist()
    neighbors = [source[lo:hi] for lo, hi in pairwise(first)]
    factor = None
    if mask is not None:
        rows = (mask.keep.double() * mask.scale).view(-1, heads).tolist()
        factor = [rows[lo:hi] for lo, hi in pairwise(first)]
    split = projected.view(len(projected), *att_src.shape).tolist()
    out = attention(split, att_src.tolist(), att_dst.tolist(), neighbors, neighborhoods.own.tolist(), factor)
    return torch.tensor(out, dtype=parts[0].dtype)


def assert_close(got, expected, dtype):
    torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("heads", "units"), SIZES)
@pytest.mark.parametrize("drops", [False, True])
def test_attention_equals_reference(dtype, heads, units, drops):
    for nodes in TARGETS.values():
        parts, neighborhoods, mask = random_case(units, heads, units, nodes, drops, dtype)
        expected = reference_attention(parts, neighborhoods, mask)
        assert_close(attend(*parts, neighborhoods, mask).detach(), expected, dtype)
        assert_close(attend_tensors(*parts, neighborhoods, mask).detach(), expected, dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("heads", "units"), SIZES)
@pytest.mark.parametrize("drops", [False, True])
def test_compiled_gradients_equal_tensors(dtype, heads, units, drops):
    for nodes in TARGETS.values():
        parts, neighborhoods, mask = random_case(10 + units, heads, units, nodes, drops, dtype)
        outs = [run(*parts, neighborhoods, mask) for run in (attend, attend_tensors)]
        weight = torch.randn(outs[0].shape, generator=generator(1), dtype=dtype)
        got, expected = (torch.autograd.grad((out * weight).sum(), parts) for out in outs)
        assert_close(got, expected, dtype)


@pytest.mark.parametrize("run", [attend, attend_tensors])
def test_dropout_scale_is_not_rounded_to_float32(run):
    parts, neighborhoods, mask = random_case(2, 2, 3, drops=True, scale=1 / 0.7)
    assert_close(
        run(*parts, neighborhoods, mask).detach(), reference_attention(parts, neighborhoods, mask), torch.float64
    )


@pytest.mark.parametrize(("heads", "units"), [(2, 3), (1, 9)])
@pytest.mark.parametrize("drops", [False, True])
def test_gradients_equal_finite_differences(heads, units, drops):
    parts, neighborhoods, mask = random_case(3, heads, units, TARGETS["some"], drops)
    assert torch.autograd.gradcheck(lambda *parts: attend(*parts, neighborhoods, mask), parts)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("magnitude", [1e4, -1e4])
def test_large_scores_have_finite_results_and_gradients(dtype, magnitude):
    """The largest score has attention weight 1; gradients must not be NaN."""
    parts, neighborhoods, _ = random_case(4, 2, 4, dtype=dtype)
    projected, att_src, att_dst = (part.detach().clone() for part in parts)
    att_src = (att_src.sign() * magnitude).requires_grad_()
    att_dst.requires_grad_()
    projected.requires_grad_()
    out = attend(projected, att_src, att_dst, neighborhoods)
    grads = torch.autograd.grad(out.sum(), (projected, att_src, att_dst))
    assert all(bool(part.isfinite().all()) for part in (out, *grads))
    # Scores of 1e4 and their differences have rounding errors of 1e-3 in float32.
    expected = reference_attention((projected, att_src, att_dst), neighborhoods, None)
    torch.testing.assert_close(out.detach(), expected, rtol=0, atol={torch.float32: 1e-2, torch.float64: 1e-9}[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("score_range", [1.0, MAX_SCORE_RANGE - 1.0, MAX_SCORE_RANGE + 1.0, 1e3])
@pytest.mark.parametrize("target_score", [-1e3, -0.7, 0.0, 0.7, 1e3])
def test_scores_below_and_above_the_maximum_range(dtype, score_range, target_score):
    """Within the range, factors of nodes replace the exponentials of pairs."""
    neighborhoods, num = make_neighborhoods(12, None)
    projected = torch.linspace(-0.55, 0.45, num, dtype=dtype).unsqueeze(1).requires_grad_()  # no score of a pair is 0
    vectors = [torch.full((1, 1), value, dtype=dtype).requires_grad_() for value in (score_range, target_score)]
    parts = projected, *vectors
    out = attend(*parts, neighborhoods)
    rounding = TOLERANCE[dtype] * (score_range + abs(target_score))
    torch.testing.assert_close(out.detach(), reference_attention(parts, neighborhoods, None), rtol=0, atol=rounding)
    grads, expected = (
        torch.autograd.grad(result.sum(), parts) for result in (out, attend_tensors(*parts, neighborhoods))
    )
    for got, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(got, other, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_isolated_nodes_attend_to_themselves(dtype):
    """Nodes 28 and 29 have no neighbors, and the softmax of a single score is 1."""
    parts, neighborhoods, _ = random_case(5, 3, 5, dtype=dtype)
    out = attend(*parts, neighborhoods)
    assert torch.equal(out[28:], parts[0][28:])
    weight = torch.randn(2, 15, generator=generator(2), dtype=dtype)
    grads = torch.autograd.grad((out[28:] * weight).sum(), parts)
    assert torch.equal(grads[0][28:], weight) and not grads[0][:28].any() and not grads[1].any() and not grads[2].any()


def test_dropping_all_weights_gives_zero():
    parts, neighborhoods, _ = random_case(6, 2, 3)
    mask = DropoutMask(torch.zeros(neighborhoods.num_pairs * 2, dtype=torch.uint8), 2.0)
    out = attend(*parts, neighborhoods, mask)
    assert not out.any() and not any(grad.any() for grad in torch.autograd.grad(out.sum(), parts))


def test_equal_scores_give_the_mean_of_the_neighborhood():
    (projected, att_src, att_dst), neighborhoods, _ = random_case(7, 2, 3)
    out = attend(projected, torch.zeros_like(att_src), torch.zeros_like(att_dst), neighborhoods).detach()
    first, source = neighborhoods.first.tolist(), neighborhoods.source
    for i, (lo, hi) in enumerate(pairwise(first)):
        torch.testing.assert_close(out[i], projected[source[lo:hi]].mean(0).detach(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("drops", [False, True])
def test_results_do_not_depend_on_the_number_of_threads(dtype, drops, monkeypatch):
    monkeypatch.setattr(compiled, "MIN_PARALLEL_OPERATIONS", 0)
    parts, neighborhoods, mask = random_case(11, 2, 9, None, drops, dtype)
    results = []
    for num in (1, 2, 5, 50):
        out = attend(*parts, replace(neighborhoods, threads=Threads(num)), mask)
        results.append([out, *torch.autograd.grad(out.square().sum(), parts)])
    for others in results[1:]:
        assert all(torch.equal(got, expected) for got, expected in zip(others, results[0], strict=True))


@pytest.mark.parametrize("nodes", TARGETS.values(), ids=TARGETS)
def test_neighborhoods_contain_neighbors_and_the_target(nodes):
    data = random_data(8)
    task = make_task(data)
    nodes = list(range(30)) if nodes is None else nodes
    adjacent = neighbors(data.edge_index.T.tolist(), 30)
    sources = sorted({j for i in nodes for j in adjacent[i]})
    neighborhoods = ReceptiveField(task, task.x, np.array(nodes), 1).neighborhoods(1)
    nodes_of_pairs = [sources[place] for place in neighborhoods.source]
    first = neighborhoods.first.tolist()
    assert [sorted(nodes_of_pairs[lo:hi]) for lo, hi in pairwise(first)] == [adjacent[i] for i in nodes]
    assert [sources[place] for place in neighborhoods.own] == nodes
    assert neighborhoods.num_pairs == sum(len(adjacent[i]) for i in nodes)


def test_attention_of_selected_targets_over_all_sources():
    parts, neighborhoods, _ = random_case(9, 2, 3)
    nodes, device = np.array([2, 5, 28]), torch.device("cpu")
    adjacent = make_task(random_data(9)).adjacency[nodes]
    selected = Neighborhoods.from_arrays(adjacent.indptr, adjacent.indices, nodes, 30, device, Threads(1))
    torch.testing.assert_close(attend(*parts, selected), attend(*parts, neighborhoods)[[2, 5, 28]], rtol=0, atol=1e-14)
