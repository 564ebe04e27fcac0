"""Tree-reweighted sum-product, the choice of a solver, and the check of a fixed point."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewise.inference import PairwiseMRF, exact_marginals, infer, sum_product, tree_reweighted
from edgewise.inference.tree_reweighted import _spanning_forests
from edgewise.posterior import Posterior
from helpers.random_fields import (
    KINDS,
    batch_item,
    cycle,
    generator,
    random_forest,
    random_graph,
    random_mrf_inputs,
    small_mrf_inputs,
)


@given(inputs=small_mrf_inputs(loops=True, coupling_std=2.0), max_sweeps=st.sampled_from([1, 7, 200]))
def test_bound_is_above_log_partition_at_any_number_of_sweeps(inputs, max_sweeps):
    posterior, _ = tree_reweighted(inputs.mrf(), max_sweeps=max_sweeps)
    assert float(posterior.log_partition) >= inputs.enumeration().log_z - 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_forest_is_exact(kind):
    g = generator(0)
    mrf = random_mrf_inputs(random_forest(30, g), 30, 3, g, kind=kind, num_observed=3).mrf()
    posterior, convergence = tree_reweighted(mrf, tolerance=1e-12)
    exact, _ = exact_marginals(mrf)
    assert convergence.converged and convergence.method == "tree-reweighted"
    torch.testing.assert_close(posterior.node, exact.node, rtol=0, atol=1e-9)
    torch.testing.assert_close(posterior.joint(mrf.edge_index), exact.joint(mrf.edge_index), rtol=0, atol=1e-9)
    torch.testing.assert_close(posterior.log_partition, exact.log_partition, rtol=1e-9, atol=1e-9)


def test_joints_sum_to_the_marginals_of_their_ends():
    g = generator(1)
    mrf = random_mrf_inputs(random_graph(10, 20, g), 10, 3, g, kind="per edge").mrf()
    posterior, convergence = tree_reweighted(mrf)
    joint = posterior.joint(mrf.edge_index)
    assert convergence.converged
    torch.testing.assert_close(joint.sum(2), posterior.node[mrf.edge_index[0]], rtol=0, atol=1e-6)
    torch.testing.assert_close(joint.sum(1), posterior.node[mrf.edge_index[1]], rtol=0, atol=1e-6)


def test_symmetric_ring_has_the_closed_form_of_the_bound():
    """Each spanning tree of a ring of n edges omits one: ρ = 1 - 1/n, and uniform marginals are optimal by symmetry.

    With b(same) = p for an edge, the bound is max over p of n T p + n log 2 - ρ n (log 2 - H(p)), H the binary entropy.
    """
    n, coupling = 5, 1.3
    mrf = PairwiseMRF(torch.zeros(n, 2, dtype=torch.float64), cycle(n), coupling * torch.eye(2).double())
    posterior, _ = tree_reweighted(mrf, num_trees=n)
    p = np.linspace(1e-6, 1 - 1e-6, 200_001)
    entropy = -p * np.log(p) - (1 - p) * np.log(1 - p)
    bound = n * coupling * p + n * np.log(2) - (1 - 1 / n) * n * (np.log(2) - entropy)
    np.testing.assert_allclose(float(posterior.log_partition), bound.max(), rtol=1e-8)
    np.testing.assert_allclose(
        float(posterior.joint(torch.tensor([[0], [1]]))[0].trace()), p[bound.argmax()], atol=1e-5
    )


def test_forests_cover_every_edge_without_loops():
    g = generator(2)
    mrf = random_mrf_inputs(random_graph(12, 40, g), 12, 2, g).mrf()
    forests = _spanning_forests(mrf, 3, np.random.default_rng(0))
    assert bool(torch.stack(forests).any(0).all())
    for forest in forests:
        # A spanning tree of a connected graph; this one is connected.
        assert int(forest.sum()) == 11
        assert exact_marginals(PairwiseMRF(mrf.unary, mrf.edge_index[:, forest], torch.eye(2)))[1].method == "forest"


def test_batch_equals_single_mrfs():
    g = generator(3)
    batch = random_mrf_inputs(random_graph(6, 9, g), 6, 2, g, kind="scaled", batch=(2,))
    posterior, _ = tree_reweighted(batch.mrf())
    for b in range(2):
        alone, _ = tree_reweighted(batch_item(batch, b).mrf())
        torch.testing.assert_close(posterior.node[b], alone.node, rtol=0, atol=1e-6)
        torch.testing.assert_close(posterior.log_partition[b], alone.log_partition, rtol=0, atol=1e-6)


def test_gradient_equals_finite_differences():
    g = generator(4)
    inputs = random_mrf_inputs(cycle(4), 4, 2, g, kind="per edge", coupling_std=0.5)

    def marginals(unary):
        return tree_reweighted(PairwiseMRF(unary, inputs.edge_index, inputs.pairwise), tolerance=1e-13)[0].node

    assert torch.autograd.gradcheck(marginals, inputs.unary.requires_grad_())


def test_infer_is_exact_where_the_width_allows_it():
    g = generator(5)
    inputs = random_mrf_inputs(random_graph(8, 14, g), 8, 3, g)
    posterior, convergence = infer(inputs.mrf())
    np.testing.assert_allclose(posterior.node.numpy(), inputs.enumeration().nodes(), rtol=0, atol=1e-12)
    assert convergence.converged and "feasible" in convergence.reason and posterior.convergence is convergence


def complete_graph(coupling):
    return PairwiseMRF(torch.zeros(40, 2).double(), torch.triu_indices(40, 40, 1), coupling * torch.eye(2).double())


def test_infer_uses_sum_product_on_a_wide_graph():
    _, convergence = infer(complete_graph(0.01))
    assert convergence.method == "sum-product" and "width 39" in convergence.reason


def refuse_exact_inference(monkeypatch):
    monkeypatch.setattr("edgewise.inference.elimination_order.MAX_MESSAGE_BYTES", 0)
    monkeypatch.setattr("edgewise.inference.exact.MIN_ELIMINATION_ELEMENTS", 0)


def frustrated_field():
    """A complete graph on which parallel sweeps of sum-product do not converge."""
    return random_mrf_inputs(torch.triu_indices(8, 8, 1), 8, 2, generator(5), kind="per edge", coupling_std=6.0).mrf()


def test_infer_uses_the_double_loop_where_parallel_sweeps_do_not_converge(monkeypatch):
    refuse_exact_inference(monkeypatch)
    posterior, convergence = infer(frustrated_field())
    assert convergence.converged and convergence.method == "double loop" and posterior.convergence is convergence
    assert "Exact inference needs width" in convergence.reason and "did not converge" in convergence.reason
    assert convergence.disagreement is None


def test_infer_uses_tree_reweighted_where_sum_product_does_not_converge(monkeypatch):
    refuse_exact_inference(monkeypatch)
    monkeypatch.setattr("edgewise.inference.propagation.SEQUENTIAL_SWEEPS", 0)
    checked, convergence = infer(frustrated_field(), check=True)
    assert convergence.method == "tree-reweighted" and "did not converge" in convergence.reason
    assert convergence.residual < 0.01
    assert convergence.disagreement > 0.1 and checked.convergence is convergence


def test_infer_gives_gradients_where_exact_inference_has_none():
    nodes = torch.arange(100).reshape(10, 10)
    right, down = torch.stack([nodes[:, :-1], nodes[:, 1:]]), torch.stack([nodes[:-1], nodes[1:]])
    unary = torch.zeros(100, 3, requires_grad=True)
    edges = torch.cat([right.flatten(1), down.flatten(1)], dim=1)
    posterior, convergence = infer(PairwiseMRF(unary, edges, 0.1 * torch.eye(3)))
    posterior.node[0, 0].backward()
    assert convergence.method == "sum-product" and "gradient" in convergence.reason
    assert float(unary.grad.abs().max()) > 0


@pytest.mark.parametrize("solver", [exact_marginals, tree_reweighted])
@pytest.mark.parametrize("edges", [cycle(4), cycle(4)[:, :3]])
def test_log_partition_is_kept(tmp_path, solver, edges):
    batch = random_mrf_inputs(edges, 4, 2, generator(9), batch=(2,))
    posterior, _ = solver(batch.mrf())
    posterior.save(tmp_path / "posterior.safetensors")
    kept = (posterior.detach(), posterior.to("cpu", torch.float32), Posterior.load(tmp_path / "posterior.safetensors"))
    assert posterior.log_partition.shape == (2,)
    assert all(torch.equal(copy.log_partition, posterior.log_partition) for copy in kept)
    assert torch.equal(posterior[1].log_partition, posterior.log_partition[1])


def test_check_warns_of_a_fixed_point_that_depends_on_the_start():
    """Attractive couplings without unaries have uniform marginals. If strong, sum-product has other fixed points."""
    weak, strong = (sum_product(complete_graph(coupling), check=True)[1] for coupling in (0.01, 1.0))
    assert weak.converged and strong.converged
    assert weak.disagreement < 0.01 and weak.advice == ""
    assert strong.disagreement > 0.4 and "exact_marginals" in strong.advice


def test_unchecked_fixed_point_has_no_estimate():
    assert sum_product(complete_graph(0.01))[1].disagreement is None
