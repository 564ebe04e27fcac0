"""Gradients of all solvers against finite differences and unrolled sweeps."""

import math

import pytest
import torch
from torch.autograd import gradcheck as torch_gradcheck

from edgewise.inference import PairwiseMRF, bethe_free_energy, exact_marginals, max_product, mean_field, sum_product
from edgewise.inference.messages import log_sum, posterior_from_messages, sweep, zero_messages
from edgewise.posterior import MixturePosterior, PairwisePosterior
from helpers.random_fields import KINDS, cycle, generator, random_graph, random_mrf_inputs, random_tree

LOOPY = random_graph(4, 5, generator(0))
TREE = random_tree(4, generator(1))
COMPLETE = torch.triu_indices(4, 4, 1)


def gradcheck(function, leaves):
    # Fast mode checks random directions. test_undefined_gradient checks undefined gradients once.
    return torch_gradcheck(function, leaves, fast_mode=True, check_undefined_grad=False)


def leaf_tensors(inputs):
    tensors = [inputs.unary, inputs.pairwise, *([] if inputs.edge_scale is None else [inputs.edge_scale])]
    return tuple(tensor.clone().requires_grad_() for tensor in tensors)


def marginal_sums(inputs, infer, **options):
    """Return a function of the potentials that computes weighted sums of all node marginals and of all edge joints."""
    weights = torch.randn(2, *inputs.unary.shape, generator=generator(6), dtype=torch.float64)
    pair_shape = (*inputs.unary.shape[:-2], inputs.edge_index.shape[1], 2, 2)
    pair_weights = torch.randn(2, *pair_shape, generator=generator(7), dtype=torch.float64)

    def sums(unary, pairwise, edge_scale=None):
        mrf = PairwiseMRF(unary, inputs.edge_index, pairwise, edge_scale=edge_scale, evidence=inputs.evidence)
        posterior, convergence = infer(mrf, **options)
        assert convergence.converged is ("max_sweeps" not in options)
        nodes = (weights * posterior.node).flatten(1).sum(1)
        return nodes, (pair_weights * posterior.joint(inputs.edge_index)).flatten(1).sum(1)

    return sums


def inputs_on(edge_index, kind, num_observed, coupling_std=0.5, batch=()):
    return random_mrf_inputs(
        edge_index, 4, 2, generator(2), kind=kind, coupling_std=coupling_std, num_observed=num_observed, batch=batch
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_observed", [0, 2])
@pytest.mark.parametrize("options", [{}, {"max_sweeps": 3, "damping": 0.3}], ids=["converged", "truncated"])
def test_sum_product_gradients(kind, num_observed, options):
    inputs = inputs_on(LOOPY, kind, num_observed)
    assert gradcheck(marginal_sums(inputs, sum_product, **options), leaf_tensors(inputs))


def test_sum_product_gradients_of_a_batch():
    inputs = inputs_on(LOOPY, "scaled per edge", 1, batch=(2,))
    assert gradcheck(marginal_sums(inputs, sum_product), leaf_tensors(inputs))


@pytest.mark.parametrize("options", [{}, {"max_sweeps": 3, "damping": 0.3}], ids=["converged", "truncated"])
def test_mean_field_gradients(options):
    for kind in KINDS:
        inputs = inputs_on(LOOPY, kind, 1, coupling_std=0.3)
        assert gradcheck(marginal_sums(inputs, mean_field, **options), leaf_tensors(inputs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_observed", [0, 1])
def test_exact_marginals_gradients(kind, num_observed):
    for edge_index, posterior in ((TREE, PairwisePosterior), (COMPLETE, MixturePosterior)):
        inputs = inputs_on(edge_index, kind, num_observed, coupling_std=1.0)
        assert isinstance(exact_marginals(inputs.mrf())[0], posterior)
        assert gradcheck(marginal_sums(inputs, exact_marginals), leaf_tensors(inputs))


def test_max_product_gradients():
    inputs = inputs_on(TREE, "per edge", 0)
    assert gradcheck(marginal_sums(inputs, max_product), leaf_tensors(inputs))


def test_gradients_of_couplings_beyond_the_matrix_range():
    """Beyond the range of a matrix product, log Σ exp is computed term by term."""
    inputs = inputs_on(TREE, "shared", 0)
    inputs.pairwise[0, 1] = -700.0
    assert gradcheck(marginal_sums(inputs, sum_product), leaf_tensors(inputs))


def test_gradients_with_impossible_labels():
    inputs = inputs_on(LOOPY, "shared", 0)
    mask = torch.zeros(4, 2, dtype=torch.float64)
    mask[1, 1] = -torch.inf
    sums = marginal_sums(inputs, sum_product)
    assert gradcheck(lambda unary, pairwise: sums(unary + mask, pairwise), leaf_tensors(inputs))


def test_gradient_of_observed_nodes_is_zero():
    inputs = inputs_on(LOOPY, "shared", 2)
    unary, pairwise = leaf_tensors(inputs)
    mrf = PairwiseMRF(unary, LOOPY, pairwise, evidence=inputs.evidence)
    node = sum_product(mrf)[0].node
    (gradient,) = torch.autograd.grad(node[:, 0].sum(), unary)
    observed = list(inputs.evidence)
    assert gradient[observed].abs().max() < 1e-15 and gradient.abs().max() > 1e-3  # zero up to rounding


@pytest.mark.parametrize("kind", KINDS)
def test_implicit_gradient_equals_unrolled_sweeps(kind):
    g = generator(3)
    inputs = random_mrf_inputs(random_graph(12, 20, g), 12, 3, g, kind=kind, coupling_std=0.4, num_observed=2)
    weights = torch.randn(20, 3, 3, generator=g, dtype=torch.float64)
    gradients = []
    for unrolled in (False, True):
        leaves = leaf_tensors(inputs)
        scale = leaves[2] if len(leaves) > 2 else None
        mrf = PairwiseMRF(leaves[0], inputs.edge_index, leaves[1], edge_scale=scale, evidence=inputs.evidence)
        if unrolled:
            messages = zero_messages(mrf)
            for _ in range(300):
                messages = sweep(mrf, messages, log_sum)
            posterior = posterior_from_messages(mrf, messages)
        else:
            posterior, convergence = sum_product(mrf)
            assert convergence.converged
        gradients.append(torch.autograd.grad((weights * posterior.joint(inputs.edge_index)).sum(), leaves))
    for implicit, explicit in zip(*gradients, strict=True):
        torch.testing.assert_close(implicit, explicit, rtol=0, atol=1e-10)


def test_gradient_of_truncated_run_differs_from_implicit_gradient():
    inputs = inputs_on(LOOPY, "shared", 0)
    gradients = []
    for options in ({}, {"max_sweeps": 2}):
        leaves = leaf_tensors(inputs)
        nodes, _ = marginal_sums(inputs, sum_product, **options)(*leaves)
        gradients.append(torch.autograd.grad(nodes[0], leaves[1])[0])
    assert (gradients[0] - gradients[1]).abs().max() > 1e-4


def test_gradient_at_the_critical_coupling_raises():
    """At the critical coupling tanh(J/2) (d - 1) = 1 the messages converge, but their derivative is infinite."""
    critical = 2 * math.atanh(1 / 2) * torch.eye(2, dtype=torch.float64)
    unary = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    posterior, convergence = sum_product(PairwiseMRF(unary, COMPLETE, critical))
    assert convergence.converged
    with pytest.raises(RuntimeError, match="more damping or weaker couplings"):
        posterior.node[0, 0].backward()


@pytest.mark.parametrize("infer", [sum_product, max_product, mean_field, exact_marginals])
@pytest.mark.parametrize("edge_index", [TREE, LOOPY], ids=["tree", "loopy"])
def test_posterior_requires_grad_only_if_potentials_do(infer, edge_index):
    inputs = inputs_on(edge_index, "scaled", 1)
    posterior, _ = infer(inputs.mrf())
    assert not any(tensor.requires_grad for tensor in [*posterior.tensors().values(), posterior.node])
    unary, pairwise, scale = leaf_tensors(inputs)
    with_gradient = PairwiseMRF(unary, edge_index, pairwise, edge_scale=scale)
    with torch.no_grad():
        posterior, _ = infer(with_gradient)
        computed = [tensor for name, tensor in posterior.tensors().items() if name not in ("pairwise", "edge_scale")]
        assert not any(tensor.requires_grad for tensor in [*computed, posterior.node, posterior.joint(edge_index)])
    posterior, _ = infer(with_gradient)
    assert posterior.node.requires_grad and posterior.joint(edge_index).requires_grad
    assert not posterior.node.detach().requires_grad
    assert not infer(with_gradient.detach())[0].node.requires_grad


@pytest.mark.parametrize("infer", [sum_product, max_product, mean_field])
def test_truncated_runs_with_and_without_gradients_are_equal(infer):
    inputs = inputs_on(LOOPY, "scaled", 1)
    unary, pairwise, scale = leaf_tensors(inputs)
    with_gradient = PairwiseMRF(unary, LOOPY, pairwise, edge_scale=scale, evidence=inputs.evidence)
    for sweeps, damping in ((1, 0.0), (3, 0.4)):
        plain, plain_convergence = infer(inputs.mrf(), max_sweeps=sweeps, damping=damping)
        attached, convergence = infer(with_gradient, max_sweeps=sweeps, damping=damping)
        assert torch.equal(attached.node.detach(), plain.node) and convergence == plain_convergence


@pytest.mark.parametrize("infer", [sum_product, mean_field, exact_marginals])
def test_converged_marginals_with_and_without_gradients_are_equal(infer):
    inputs = inputs_on(cycle(4), "per edge", 1, coupling_std=0.3)
    plain = infer(inputs.mrf())[0].node
    unary, pairwise = leaf_tensors(inputs)
    attached = infer(PairwiseMRF(unary, inputs.edge_index, pairwise, evidence=inputs.evidence))[0].node
    torch.testing.assert_close(attached.detach(), plain, rtol=0, atol=1e-12)  # one more sweep at a fixed point


@pytest.mark.parametrize("infer", [sum_product, mean_field, exact_marginals])
def test_gradients_without_edges(infer):
    unary = torch.randn(3, 2, generator=generator(5), dtype=torch.float64, requires_grad=True)
    no_edges = torch.empty(2, 0, dtype=torch.long)
    assert gradcheck(lambda u: infer(PairwiseMRF(u, no_edges, torch.eye(2)))[0].node, (unary,))


def test_undefined_gradient():
    """A later function may return None as its gradient."""
    inputs = inputs_on(LOOPY, "shared", 0)
    assert torch_gradcheck(marginal_sums(inputs, sum_product), leaf_tensors(inputs), check_undefined_grad=True)


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning")
def test_second_derivatives_are_correct_or_raise():
    inputs = inputs_on(COMPLETE, "shared", 0)

    def derivative(unary):
        node = sum_product(PairwiseMRF(unary, COMPLETE, inputs.pairwise))[0].node
        (gradient,) = torch.autograd.grad(node[0, 0], unary, create_graph=True)
        return gradient[1, 0]

    unary = inputs.unary.clone().requires_grad_()
    try:
        (second,) = torch.autograd.grad(derivative(unary), unary)
    except RuntimeError:
        return
    step = torch.zeros_like(inputs.unary)
    step[2, 0] = 1e-4
    above, below = (derivative((inputs.unary + sign * step).requires_grad_()) for sign in (1, -1))
    assert float(second[2, 0]) == pytest.approx(float(above - below) / 2e-4, abs=1e-6)


def test_coarse_tolerance_differentiates_through_the_sweeps():
    inputs = inputs_on(LOOPY, "shared", 0)
    unary = inputs.unary.clone().requires_grad_()
    options = {"tolerance": 0.3, "max_sweeps": 50}
    posterior, convergence = sum_product(PairwiseMRF(unary, LOOPY, inputs.pairwise), **options)
    assert convergence.converged and convergence.residual > 1e-4
    (coarse,) = torch.autograd.grad(posterior.node[0, 0], unary)
    truncated, _ = sum_product(PairwiseMRF(unary, LOOPY, inputs.pairwise), tolerance=0.0, max_sweeps=convergence.sweeps)
    (expected,) = torch.autograd.grad(truncated.node[0, 0], unary)
    assert torch.equal(coarse, expected)


def test_posterior_computed_under_no_grad_requires_no_grad():
    inputs = inputs_on(LOOPY, "shared", 0)
    pairwise = inputs.pairwise.clone().requires_grad_()
    with torch.no_grad():
        posterior, _ = sum_product(PairwiseMRF(inputs.unary, LOOPY, pairwise))
    assert not posterior.joint(LOOPY).requires_grad


def test_gradient_along_a_strongly_coupled_chain():
    """The adjoint of a forest needs as many sweeps as the longest path has edges."""
    num_nodes = 300
    chain = torch.stack([torch.arange(num_nodes - 1), torch.arange(1, num_nodes)])
    unary = torch.zeros(num_nodes, 2, dtype=torch.float64, requires_grad=True)
    posterior, _ = exact_marginals(PairwiseMRF(unary, chain, 20.0 * torch.eye(2, dtype=torch.float64)))
    (gradient,) = torch.autograd.grad(posterior.node[0, 0], unary)
    # Covariance of nodes at distance k on a symmetric binary chain: tanh(w/2)^k / 4.
    expected = 0.25 * torch.tanh(torch.tensor(10.0, dtype=torch.float64)) ** torch.arange(num_nodes)
    torch.testing.assert_close(gradient[:, 0], expected, rtol=1e-9, atol=0)


def test_gradient_of_a_fixed_point_that_needs_damping():
    """Without damping, the sweeps and the adjoint would oscillate."""
    complete = torch.triu_indices(6, 6, 1)
    unary = (0.1 * torch.randn(6, 2, generator=generator(1), dtype=torch.float64)).requires_grad_()
    pairwise = -1.5 * torch.eye(2, dtype=torch.float64)

    def marginals(u):
        posterior, convergence = mean_field(PairwiseMRF(u, complete, pairwise), damping=0.7)
        assert convergence.converged
        return posterior.node

    assert not mean_field(PairwiseMRF(unary.detach(), complete, pairwise))[1].converged
    assert gradcheck(marginals, (unary,))


@pytest.mark.parametrize("coupling", [0.3, 0.65, 0.8])
def test_float32_gradients_are_close_to_float64(coupling):
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
        posterior, convergence = sum_product(PairwiseMRF(unary, edges, coupling * torch.eye(2, dtype=dtype)))
        assert convergence.converged
        (gradient,) = torch.autograd.grad(posterior.node[:, 0].sum(), unary)
        gradients.append(gradient.double())
    # Near the phase transition (about 0.7) rounding errors of float32 are amplified.
    scale = float(gradients[1].abs().max())
    torch.testing.assert_close(gradients[0] / scale, gradients[1] / scale, rtol=0, atol=2e-3)


def test_backward_pass_saves_no_tensor_of_all_couplings():
    """Memory for the backward pass is of the size of messages, not of (edges, classes, classes)."""
    saved_sizes = []
    g = generator(3)
    chain = torch.stack([torch.arange(200), torch.arange(1, 201)])
    scale = torch.rand(200, generator=g).requires_grad_()
    mrf = PairwiseMRF(torch.zeros(201, 30), chain, torch.randn(30, 30, generator=g), edge_scale=scale)

    def record(tensor):
        saved_sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        posterior, _ = sum_product(mrf, max_sweeps=1, tolerance=0.0)
        bethe_free_energy(mrf, posterior)
    assert max(saved_sizes) < 200 * 30 * 30
