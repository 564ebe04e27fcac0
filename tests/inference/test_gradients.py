import math

import pytest
import torch
from torch.autograd import gradcheck as torch_gradcheck

from edgewise.inference import PairwiseMRF, bethe_free_energy, exact_marginals, max_product, mean_field, sum_product
from edgewise.inference.messages import log_sum, posterior_from_messages, sweep, zero_messages
from edgewise.posterior import MixturePosterior, PairwisePosterior
from helpers.random_fields import KINDS, cycle, generator, random_field, random_graph, random_tree

LOOPY = random_graph(4, 5, generator(0))
TREE = random_tree(4, generator(1))
COMPLETE = torch.triu_indices(4, 4, 1)


def gradcheck(function, leaves):
    # Fast: random directions instead of all. That an undefined gradient goes through is asked for once, below.
    return torch_gradcheck(function, leaves, fast_mode=True, check_undefined_grad=False)


def leaves_of(field):
    given = [field.unary, field.pairwise, *([] if field.edge_scale is None else [field.edge_scale])]
    return tuple(tensor.clone().requires_grad_() for tensor in given)


def beliefs(field, infer, **options):
    """Two numbers that depend on all node and edge beliefs, as a function of the potentials."""
    weights = torch.randn(2, *field.unary.shape, generator=generator(6), dtype=torch.float64)
    pair_shape = (*field.unary.shape[:-2], field.edge_index.shape[1], 2, 2)
    pair_weights = torch.randn(2, *pair_shape, generator=generator(7), dtype=torch.float64)

    def answer(unary, pairwise, edge_scale=None):
        mrf = PairwiseMRF(unary, field.edge_index, pairwise, edge_scale=edge_scale, evidence=field.evidence)
        posterior, convergence = infer(mrf, **options)
        assert convergence.converged is ("max_sweeps" not in options)
        nodes = (weights * posterior.node).flatten(1).sum(1)
        return nodes, (pair_weights * posterior.joint(field.edge_index)).flatten(1).sum(1)

    return answer


def field_on(edge_index, kind, num_known, strength=0.5, batch=()):
    return random_field(edge_index, 4, 2, generator(2), kind=kind, strength=strength, num_known=num_known, batch=batch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_known", [0, 2])
@pytest.mark.parametrize("options", [{}, {"max_sweeps": 3, "damping": 0.3}], ids=["converged", "truncated"])
def test_sum_product(kind, num_known, options):
    field = field_on(LOOPY, kind, num_known)
    assert gradcheck(beliefs(field, sum_product, **options), leaves_of(field))


def test_sum_product_of_a_batch():
    field = field_on(LOOPY, "scaled per edge", 1, batch=(2,))
    assert gradcheck(beliefs(field, sum_product), leaves_of(field))


@pytest.mark.parametrize("options", [{}, {"max_sweeps": 3, "damping": 0.3}], ids=["converged", "truncated"])
def test_mean_field(options):
    for kind in KINDS:
        field = field_on(LOOPY, kind, 1, strength=0.3)
        assert gradcheck(beliefs(field, mean_field, **options), leaves_of(field))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_known", [0, 1])
def test_exact_marginals(kind, num_known):
    for edge_index, posterior in ((TREE, PairwisePosterior), (COMPLETE, MixturePosterior)):
        field = field_on(edge_index, kind, num_known, strength=1.0)
        assert isinstance(exact_marginals(field.mrf())[0], posterior)
        assert gradcheck(beliefs(field, exact_marginals), leaves_of(field))


def test_max_product():
    field = field_on(TREE, "per edge", 0)
    assert gradcheck(beliefs(field, max_product), leaves_of(field))


def test_wide_couplings():
    """Beyond the range of a matrix product sums are made term by term."""
    field = field_on(TREE, "shared", 0)
    field.pairwise[0, 1] = -700.0
    assert gradcheck(beliefs(field, sum_product), leaves_of(field))


def test_impossible_labels():
    field = field_on(LOOPY, "shared", 0)
    mask = torch.zeros(4, 2, dtype=torch.float64)
    mask[1, 1] = -torch.inf
    answer = beliefs(field, sum_product)
    assert gradcheck(lambda unary, pairwise: answer(unary + mask, pairwise), leaves_of(field))


def test_known_nodes_have_no_gradient():
    field = field_on(LOOPY, "shared", 2)
    unary, pairwise = leaves_of(field)
    mrf = PairwiseMRF(unary, LOOPY, pairwise, evidence=field.evidence)
    node = sum_product(mrf)[0].node
    (gradient,) = torch.autograd.grad(node[:, 0].sum(), unary)
    known = list(field.evidence)
    assert gradient[known].abs().max() < 1e-15 and gradient.abs().max() > 1e-3  # differences of equal numbers


@pytest.mark.parametrize("kind", KINDS)
def test_the_implicit_gradient_is_that_of_many_sweeps(kind):
    g = generator(3)
    field = random_field(random_graph(12, 20, g), 12, 3, g, kind=kind, strength=0.4, num_known=2)
    weights = torch.randn(20, 3, 3, generator=g, dtype=torch.float64)
    gradients = []
    for unrolled in (False, True):
        leaves = leaves_of(field)
        scale = leaves[2] if len(leaves) > 2 else None
        mrf = PairwiseMRF(leaves[0], field.edge_index, leaves[1], edge_scale=scale, evidence=field.evidence)
        if unrolled:
            messages = zero_messages(mrf)
            for _ in range(300):
                messages = sweep(mrf, messages, log_sum)
            posterior = posterior_from_messages(mrf, messages)
        else:
            posterior, convergence = sum_product(mrf)
            assert convergence.converged
        gradients.append(torch.autograd.grad((weights * posterior.joint(field.edge_index)).sum(), leaves))
    for implicit, swept in zip(*gradients, strict=True):
        torch.testing.assert_close(implicit, swept, rtol=0, atol=1e-10)


def test_an_early_gradient_is_not_that_of_the_fixed_point():
    field = field_on(LOOPY, "shared", 0)
    gradients = []
    for options in ({}, {"max_sweeps": 2}):
        leaves = leaves_of(field)
        nodes, _ = beliefs(field, sum_product, **options)(*leaves)
        gradients.append(torch.autograd.grad(nodes[0], leaves[1])[0])
    assert (gradients[0] - gradients[1]).abs().max() > 1e-4


def test_a_gradient_that_does_not_exist_is_refused():
    """At the critical coupling, tanh(J/2) (d - 1) = 1, messages still come to rest but move without bound."""
    critical = 2 * math.atanh(1 / 2) * torch.eye(2, dtype=torch.float64)
    unary = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    posterior, convergence = sum_product(PairwiseMRF(unary, COMPLETE, critical))
    assert convergence.converged
    with pytest.raises(RuntimeError, match=r"a stable fixed point .* more damping or weaker couplings"):
        posterior.node[0, 0].backward()


@pytest.mark.parametrize("infer", [sum_product, max_product, mean_field, exact_marginals])
@pytest.mark.parametrize("edge_index", [TREE, LOOPY], ids=["tree", "loopy"])
def test_no_graph_is_kept_where_no_gradient_is_wanted(infer, edge_index):
    field = field_on(edge_index, "scaled", 1)
    posterior, _ = infer(field.mrf())
    assert not any(tensor.requires_grad for tensor in [*posterior.tensors().values(), posterior.node])
    unary, pairwise, scale = leaves_of(field)
    wanted = PairwiseMRF(unary, edge_index, pairwise, edge_scale=scale)
    with torch.no_grad():
        posterior, _ = infer(wanted)
        made = [tensor for name, tensor in posterior.tensors().items() if name not in ("pairwise", "edge_scale")]
        assert not any(tensor.requires_grad for tensor in [*made, posterior.node, posterior.joint(edge_index)])
    posterior, _ = infer(wanted)
    assert posterior.node.requires_grad and posterior.joint(edge_index).requires_grad
    assert not posterior.node.detach().requires_grad
    # A field that is detached is free of gradients too.
    assert not infer(wanted.detach())[0].node.requires_grad


@pytest.mark.parametrize("infer", [sum_product, max_product, mean_field])
def test_truncated_values_are_the_same_with_and_without_gradients(infer):
    field = field_on(LOOPY, "scaled", 1)
    unary, pairwise, scale = leaves_of(field)
    wanted = PairwiseMRF(unary, LOOPY, pairwise, edge_scale=scale, evidence=field.evidence)
    for sweeps, damping in ((1, 0.0), (3, 0.4)):
        plain, there = infer(field.mrf(), max_sweeps=sweeps, damping=damping)
        attached, here = infer(wanted, max_sweeps=sweeps, damping=damping)
        assert torch.equal(attached.node.detach(), plain.node) and here == there


@pytest.mark.parametrize("infer", [sum_product, mean_field, exact_marginals])
def test_values_are_the_same_with_and_without_gradients(infer):
    field = field_on(cycle(4), "per edge", 1, strength=0.3)
    plain = infer(field.mrf())[0].node
    unary, pairwise = leaves_of(field)
    with_gradient = infer(PairwiseMRF(unary, field.edge_index, pairwise, evidence=field.evidence))[0].node
    torch.testing.assert_close(with_gradient.detach(), plain, rtol=0, atol=1e-12)  # one sweep more, at a fixed point


@pytest.mark.parametrize("infer", [sum_product, mean_field, exact_marginals])
def test_without_edges(infer):
    unary = torch.randn(3, 2, generator=generator(5), dtype=torch.float64, requires_grad=True)
    no_edges = torch.empty(2, 0, dtype=torch.long)
    assert gradcheck(lambda u: infer(PairwiseMRF(u, no_edges, torch.eye(2)))[0].node, (unary,))


def test_an_undefined_gradient_goes_through():
    """As of a function further on that gives None for its gradient."""
    field = field_on(LOOPY, "shared", 0)
    assert torch_gradcheck(beliefs(field, sum_product), leaves_of(field), check_undefined_grad=True)


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning")
def test_second_derivatives_are_right_or_refused():
    field = field_on(COMPLETE, "shared", 0)

    def slope(unary):
        node = sum_product(PairwiseMRF(unary, COMPLETE, field.pairwise))[0].node
        (gradient,) = torch.autograd.grad(node[0, 0], unary, create_graph=True)
        return gradient[1, 0]

    unary = field.unary.clone().requires_grad_()
    try:
        (second,) = torch.autograd.grad(slope(unary), unary)
    except RuntimeError:
        return
    step = torch.zeros_like(field.unary)
    step[2, 0] = 1e-4
    above, below = (slope((field.unary + sign * step).requires_grad_()) for sign in (1, -1))
    assert float(second[2, 0]) == pytest.approx(float(above - below) / 2e-4, abs=1e-6)


def test_a_coarse_tolerance_gives_the_gradient_of_the_sweeps():
    field = field_on(LOOPY, "shared", 0)
    unary = field.unary.clone().requires_grad_()
    options = {"tolerance": 0.3, "max_sweeps": 50}
    posterior, convergence = sum_product(PairwiseMRF(unary, LOOPY, field.pairwise), **options)
    assert convergence.converged and convergence.residual > 1e-4
    (coarse,) = torch.autograd.grad(posterior.node[0, 0], unary)
    truncated, _ = sum_product(PairwiseMRF(unary, LOOPY, field.pairwise), tolerance=0.0, max_sweeps=convergence.sweeps)
    (expected,) = torch.autograd.grad(truncated.node[0, 0], unary)
    assert torch.equal(coarse, expected)


def test_beliefs_made_without_gradients_have_none():
    field = field_on(LOOPY, "shared", 0)
    pairwise = field.pairwise.clone().requires_grad_()
    with torch.no_grad():
        posterior, _ = sum_product(PairwiseMRF(field.unary, LOOPY, pairwise))
    assert not posterior.joint(LOOPY).requires_grad


def test_strong_couplings_along_a_chain():
    """The adjoint of a forest ends after as many sweeps as the longest path, not before."""
    num_nodes = 300
    chain = torch.stack([torch.arange(num_nodes - 1), torch.arange(1, num_nodes)])
    unary = torch.zeros(num_nodes, 2, dtype=torch.float64, requires_grad=True)
    posterior, _ = exact_marginals(PairwiseMRF(unary, chain, 20.0 * torch.eye(2, dtype=torch.float64)))
    (gradient,) = torch.autograd.grad(posterior.node[0, 0], unary)
    # The covariance of the two ends of a symmetric binary chain: tanh(w/2)^(n-1) / 4.
    expected = 0.25 * torch.tanh(torch.tensor(10.0, dtype=torch.float64)) ** torch.arange(num_nodes)
    torch.testing.assert_close(gradient[:, 0], expected, rtol=1e-9, atol=0)


def test_a_fixed_point_that_needs_damping_has_a_gradient():
    """Undamped the sweeps, and with them the adjoint, would oscillate without end."""
    complete = torch.triu_indices(6, 6, 1)
    unary = (0.1 * torch.randn(6, 2, generator=generator(1), dtype=torch.float64)).requires_grad_()
    pairwise = -1.5 * torch.eye(2, dtype=torch.float64)

    def marginals(u):
        posterior, convergence = mean_field(PairwiseMRF(u, complete, pairwise), damping=0.7)
        assert convergence.converged
        return posterior.node

    assert not mean_field(PairwiseMRF(unary.detach(), complete, pairwise))[1].converged
    assert gradcheck(marginals, (unary,))


@pytest.mark.parametrize("strength", [0.3, 0.65, 0.8])
def test_float32_gradients_are_those_of_float64(strength):
    grid = torch.arange(100).view(10, 10)
    edges = torch.cat(
        [
            torch.stack([grid[:, :-1].flatten(), grid[:, 1:].flatten()]),
            torch.stack([grid[:-1].flatten(), grid[1:].flatten()]),
        ],
        dim=1,
    )
    start = 0.05 * torch.randn(100, 2, generator=generator(2), dtype=torch.float64)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        unary = start.to(dtype).requires_grad_()
        posterior, convergence = sum_product(PairwiseMRF(unary, edges, strength * torch.eye(2, dtype=dtype)))
        assert convergence.converged
        (gradient,) = torch.autograd.grad(posterior.node[:, 0].sum(), unary)
        gradients.append(gradient.double())
    # Near the transition (about 0.7) small differences of float32 are amplified.
    scale = float(gradients[1].abs().max())
    torch.testing.assert_close(gradients[0] / scale, gradients[1] / scale, rtol=0, atol=2e-3)


def test_couplings_of_their_own_are_not_kept_for_the_gradient():
    """Peak memory with a gradient is that of messages, not of (edges, classes, classes)."""
    kept = []
    g = generator(3)
    chain = torch.stack([torch.arange(200), torch.arange(1, 201)])
    scale = torch.rand(200, generator=g).requires_grad_()
    mrf = PairwiseMRF(torch.zeros(201, 30), chain, torch.randn(30, 30, generator=g), edge_scale=scale)

    def note(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        posterior, _ = sum_product(mrf, max_sweeps=1, tolerance=0.0)
        bethe_free_energy(mrf, posterior)
    assert max(kept) < 200 * 30 * 30
