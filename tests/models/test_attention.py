"""Graph attention: compiled loops, tensors and the formulas give the same."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from edgewise.kernels import dispatch as compiled
from edgewise.kernels.attention import Listeners, attended, attended_by_tensors
from edgewise.kernels.dispatch import Crew
from edgewise.kernels.sparse import Kept
from models.graphs import generator, random_data, task_of
from reference.layers import attention, neighbours

SIZES = [(8, 8), (1, 3), (1, 7), (3, 5), (2, 16), (1, 1), (2, 17)]
CLOSE = {torch.float32: 1e-5, torch.float64: 1e-12}
LISTENERS = {"all": None, "some": [0, 3, 4, 11, 29], "one": [7]}


def listening(seed, nodes):
    """Some listeners, or all, and how many speakers they need."""
    task = task_of(random_data(seed))
    nodes = task.all_nodes if nodes is None else np.array(nodes)
    speakers = task.reached(nodes)
    return Listeners.of(task, nodes, speakers), len(speakers)


def random_case(seed, heads, units, nodes=None, drops=False, dtype=torch.float64, scale=2.0):
    """Scores of about 1, whatever the number of units."""
    listeners, num_speakers = listening(seed, nodes)
    g = generator(seed)
    shapes = (num_speakers, heads * units), (heads, units), (heads, units)
    drawn = [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]
    parts = [part.to(dtype).requires_grad_() for part in (drawn[0], drawn[1] / units**0.5, drawn[2] / units**0.5)]
    kept = None
    if drops:
        kept = Kept((torch.rand(listeners.num_pairs * heads, generator=g) < 0.6).to(torch.uint8), scale)
    return parts, listeners, kept


def by_loops(parts, listeners, kept):
    projected, att_src, att_dst = (part.detach().double() for part in parts)
    heads = len(att_src)
    first, speaker = listeners.first.tolist(), listeners.speaker.tolist()
    heard = [speaker[lo:hi] for lo, hi in pairwise(first)]
    factor = None
    if kept is not None:
        rows = (kept.entries.double() * kept.scale).view(-1, heads).tolist()
        factor = [rows[lo:hi] for lo, hi in pairwise(first)]
    spoken = projected.view(len(projected), *att_src.shape).tolist()
    out = attention(spoken, att_src.tolist(), att_dst.tolist(), heard, listeners.itself.tolist(), factor)
    return torch.tensor(out, dtype=parts[0].dtype)


def assert_same(got, expected, dtype):
    torch.testing.assert_close(got, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize(("heads", "units"), SIZES)
@pytest.mark.parametrize("drops", [False, True])
def test_loops_from_the_formulas(dtype, heads, units, drops):
    for nodes in LISTENERS.values():
        parts, listeners, kept = random_case(units, heads, units, nodes, drops, dtype)
        expected = by_loops(parts, listeners, kept)
        assert_same(attended(*parts, listeners, kept).detach(), expected, dtype)
        assert_same(attended_by_tensors(*parts, listeners, kept).detach(), expected, dtype)


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize(("heads", "units"), SIZES)
@pytest.mark.parametrize("drops", [False, True])
def test_gradients_are_those_of_tensors(dtype, heads, units, drops):
    for nodes in LISTENERS.values():
        parts, listeners, kept = random_case(10 + units, heads, units, nodes, drops, dtype)
        outs = [run(*parts, listeners, kept) for run in (attended, attended_by_tensors)]
        weight = torch.randn(outs[0].shape, generator=generator(1), dtype=dtype)
        got, expected = (torch.autograd.grad((out * weight).sum(), parts) for out in outs)
        assert_same(got, expected, dtype)


@pytest.mark.parametrize("run", [attended, attended_by_tensors])
def test_a_scale_that_float32_would_round(run):
    parts, listeners, kept = random_case(2, 2, 3, drops=True, scale=1 / 0.7)
    assert_same(run(*parts, listeners, kept).detach(), by_loops(parts, listeners, kept), torch.float64)


@pytest.mark.parametrize(("heads", "units"), [(2, 3), (1, 9)])
@pytest.mark.parametrize("drops", [False, True])
def test_gradcheck(heads, units, drops):
    parts, listeners, kept = random_case(3, heads, units, LISTENERS["some"], drops)
    assert torch.autograd.gradcheck(lambda *parts: attended(*parts, listeners, kept), parts)


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_scores_stay_finite(dtype, size):
    """The largest score takes all: gradients of weights vanish, but none is NaN."""
    parts, listeners, _ = random_case(4, 2, 4, dtype=dtype)
    projected, att_src, att_dst = (part.detach().clone() for part in parts)
    att_src = (att_src.sign() * size).requires_grad_()
    att_dst.requires_grad_()
    projected.requires_grad_()
    out = attended(projected, att_src, att_dst, listeners)
    grads = torch.autograd.grad(out.sum(), (projected, att_src, att_dst))
    assert all(bool(part.isfinite().all()) for part in (out, *grads))
    # Scores of 1e4 are rounded to 1e-3 in float32, and so are their differences.
    expected = by_loops((projected, att_src, att_dst), listeners, None)
    torch.testing.assert_close(out.detach(), expected, rtol=0, atol={torch.float32: 1e-2, torch.float64: 1e-9}[dtype])


@pytest.mark.parametrize("dtype", list(CLOSE))
def test_a_node_without_neighbours_hears_itself(dtype):
    """Nodes 28 and 29 have no neighbours: whatever the weights, the softmax of one score is 1."""
    parts, listeners, _ = random_case(5, 3, 5, dtype=dtype)
    out = attended(*parts, listeners)
    assert torch.equal(out[28:], parts[0][28:])
    weight = torch.randn(2, 15, generator=generator(2), dtype=dtype)
    grads = torch.autograd.grad((out[28:] * weight).sum(), parts)
    assert torch.equal(grads[0][28:], weight) and not grads[0][:28].any() and not grads[1].any() and not grads[2].any()


def test_all_weights_dropped():
    parts, listeners, _ = random_case(6, 2, 3)
    kept = Kept(torch.zeros(listeners.num_pairs * 2, dtype=torch.uint8), 2.0)
    out = attended(*parts, listeners, kept)
    assert not out.any() and not any(grad.any() for grad in torch.autograd.grad(out.sum(), parts))


def test_equal_scores_give_the_mean():
    (projected, att_src, att_dst), listeners, _ = random_case(7, 2, 3)
    out = attended(projected, torch.zeros_like(att_src), torch.zeros_like(att_dst), listeners).detach()
    first, speaker = listeners.first.tolist(), listeners.speaker
    for i, (lo, hi) in enumerate(pairwise(first)):
        torch.testing.assert_close(out[i], projected[speaker[lo:hi]].mean(0).detach(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("drops", [False, True])
def test_threads_change_no_bit(dtype, drops, monkeypatch):
    monkeypatch.setattr(compiled, "WORTH_SHARING", 0)
    parts, listeners, kept = random_case(11, 2, 9, None, drops, dtype)
    answers = []
    for threads in (1, 2, 5, 50):
        out = attended(*parts, replace(listeners, crew=Crew(threads)), kept)
        answers.append([out, *torch.autograd.grad(out.square().sum(), parts)])
    for others in answers[1:]:
        assert all(torch.equal(got, expected) for got, expected in zip(others, answers[0], strict=True))


@pytest.mark.parametrize("nodes", LISTENERS.values(), ids=LISTENERS)
def test_listeners_hear_their_neighbours(nodes):
    data = random_data(8)
    task = task_of(data)
    nodes = list(range(30)) if nodes is None else nodes
    heard = neighbours(data.edge_index.T.tolist(), 30)
    speakers = sorted({j for i in nodes for j in heard[i]})
    listeners = Listeners.of(task, np.array(nodes), np.array(speakers))
    named = [speakers[place] for place in listeners.speaker]
    first = listeners.first.tolist()
    assert [sorted(named[lo:hi]) for lo, hi in pairwise(first)] == [heard[i] for i in nodes]
    assert [speakers[place] for place in listeners.itself] == nodes
    assert listeners.num_pairs == sum(len(heard[i]) for i in nodes)


def test_listeners_among_more_speakers_than_they_need():
    parts, listeners, _ = random_case(9, 2, 3)
    some = Listeners.of(task_of(random_data(9)), np.array([2, 5, 28]), np.arange(30))
    torch.testing.assert_close(attended(*parts, some), attended(*parts, listeners)[[2, 5, 28]], rtol=0, atol=1e-14)
