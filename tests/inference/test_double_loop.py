"""Damping that adapts, and the double loop that follows when parallel sweeps do not converge."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewise.inference import PairwiseMRF, exact_marginals, max_product, mean_field, read_uai, sum_product
from edgewise.inference import double_loop as module
from edgewise.inference.double_loop import minimize_bethe
from edgewise.inference.fixed_point import DAMPINGS, Damping, StoppingRule
from edgewise.inference.messages import log_sum, node_totals, posterior_from_messages, sweep, zero_messages
from helpers.random_fields import (
    KINDS,
    batch_item,
    generator,
    random_forest,
    random_graph,
    random_mrf_inputs,
    small_mrf_inputs,
)

INSTANCES = Path(__file__).parents[3] / "shared" / "uai"


def grid(rows, columns):
    nodes = torch.arange(rows * columns).reshape(rows, columns)
    right, down = torch.stack([nodes[:, :-1], nodes[:, 1:]]), torch.stack([nodes[:-1], nodes[1:]])
    return torch.cat([right.flatten(1), down.flatten(1)], dim=1)


def frustrated_field():
    """A complete graph on which parallel sweeps of sum-product do not converge with any damping of `DAMPINGS`."""
    return random_mrf_inputs(torch.triu_indices(8, 8, 1), 8, 2, generator(5), kind="per edge", coupling_std=6.0).mrf()


def run(mrf, messages=None, max_sweeps=30_000, tolerance=1e-9):
    start = zero_messages(mrf) if messages is None else messages
    return minimize_bethe(mrf, start, StoppingRule(max_sweeps, 0.0, tolerance, "double loop"))


def reference_round(inputs, messages, anchor, num_sweeps):
    """Visit the nodes one after the other; ``messages[i, j]`` is sent from i to j."""
    edges, couplings = inputs.edges, inputs.couplings
    neighbors = {i: [] for i in range(len(inputs.unary))}
    for (i, j), coupling in zip(edges, couplings, strict=True):
        neighbors[i].append((j, coupling))
        neighbors[j].append((i, coupling.T))
    belief = torch.zeros_like(anchor)
    for _ in range(num_sweeps):
        for i, around in neighbors.items():
            total = inputs.unary[i].double() + sum(messages[j, i] for j, _ in around)
            if len(around) > 1:
                total = (total + (len(around) - 1) * anchor[i]) / len(around)
            belief[i] = total.log_softmax(-1)
            for j, coupling in around:
                message = torch.logsumexp((belief[i] - messages[j, i])[:, None] + coupling, dim=0)
                messages[i, j] = message - message.max()
    return belief


@given(inputs=small_mrf_inputs(loops=True, coupling_std=3.0), rounds=st.integers(1, 3))
def test_rounds_equal_a_loop_over_nodes(inputs, rounds):
    inputs = inputs._replace(evidence=None)
    messages = {(i, j): torch.zeros(inputs.unary.shape[1]).double() for e in inputs.edges for i, j in (e, e[::-1])}
    belief = inputs.unary.double().log_softmax(-1)
    for _ in range(rounds):
        belief = reference_round(inputs, messages, belief, module.SWEEPS_PER_ROUND)
    got, _ = run(inputs.mrf(), max_sweeps=rounds * module.SWEEPS_PER_ROUND, tolerance=0.0)
    for e, (i, j) in enumerate(inputs.edges):
        torch.testing.assert_close(got[0, e].double(), messages[j, i], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(got[1, e].double(), messages[i, j], rtol=1e-9, atol=1e-9)


def bethe_free_energy_of_beliefs(mrf, node, joint):
    """F = Σ_ij Σ b_ij (log b_ij - T) - Σ_i Σ b_i U_i + Σ_i (d_i - 1) H(b_i), written with beliefs and not messages."""
    degree = torch.bincount(mrf.edge_index.flatten(), minlength=mrf.num_nodes)
    edges = (torch.xlogy(joint, joint) - joint * mrf.coupling(slice(None))).sum()
    entropy = -torch.xlogy(node, node).sum(1)
    return float(edges - (node * mrf.unary).sum() + ((degree - 1) * entropy).sum())


def test_rounds_that_minimize_the_bound_decrease_the_free_energy(monkeypatch):
    monkeypatch.setattr(module, "SWEEPS_PER_ROUND", 500)
    for seed in range(3):
        mrf = random_mrf_inputs(grid(4, 4), 16, 2, generator(seed), kind="per edge", coupling_std=1.5).mrf()
        degree = torch.bincount(mrf.edge_index.flatten(), minlength=mrf.num_nodes)[:, None]
        log_node, energies = mrf.unary, []
        for num_rounds in range(1, 6):
            messages, _ = run(mrf, max_sweeps=500 * num_rounds, tolerance=0.0)
            log_node = (node_totals(mrf, messages) + (degree - 1) * log_node.log_softmax(-1)) / degree
            start, end = (log_node[mrf.edge_index[side]] - messages[side] for side in (0, 1))
            log_joint = start[:, :, None] + end[:, None, :] + mrf.coupling(slice(None))
            node, joint = log_node.softmax(-1), log_joint.flatten(1).softmax(-1).reshape(log_joint.shape)
            torch.testing.assert_close(joint.sum(2), node[mrf.edge_index[0]], rtol=0, atol=1e-9)
            energies.append(bethe_free_energy_of_beliefs(mrf, node, joint))
        assert all(after <= before + 1e-9 for before, after in pairwise(energies))
        assert energies[-1] < energies[0] - 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_limit_is_a_fixed_point_of_parallel_sweeps(kind):
    g = generator(3)
    mrf = random_mrf_inputs(random_graph(12, 25, g), 12, 3, g, kind=kind, num_observed=2).mrf()
    messages, convergence = run(mrf, tolerance=1e-13)
    assert convergence.converged and convergence.residual <= 1e-13
    torch.testing.assert_close(sweep(mrf, messages, log_sum), messages, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_forest_is_exact(kind):
    g = generator(0)
    mrf = random_mrf_inputs(random_forest(30, g), 30, 3, g, kind=kind, num_observed=3).mrf()
    messages, _ = run(mrf, tolerance=1e-14)
    exact, _ = exact_marginals(mrf)
    torch.testing.assert_close(posterior_from_messages(mrf, messages).node, exact.node, rtol=0, atol=1e-10)


def test_converges_where_parallel_sweeps_do_not():
    mrf = frustrated_field()
    assert not any(sum_product(mrf, damping=damping, max_sweeps=200)[1].converged for damping in DAMPINGS)
    posterior, convergence = sum_product(mrf, max_sweeps=200)
    assert convergence.converged and convergence.method == "double loop" and posterior.convergence is convergence
    assert 200 < convergence.sweeps <= 11 * 200 and "200 parallel sweeps" in convergence.reason
    joint = posterior.joint(mrf.edge_index)
    torch.testing.assert_close(joint.sum(2), posterior.node[mrf.edge_index[0]], rtol=0, atol=1e-4)
    torch.testing.assert_close(joint.sum(1), posterior.node[mrf.edge_index[1]], rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_converges_on_strongly_coupled_fields(dtype):
    """Complete graphs, grids and random graphs with couplings of up to ten standard deviations of a nat."""
    for seed in range(18):
        g, coupling_std = generator(seed), (2.0, 5.0, 10.0)[seed // 6]
        edges = (torch.triu_indices(12, 12, 1), grid(3, 4), random_graph(12, 24, g))[seed % 3]
        inputs = random_mrf_inputs(edges, 12, 2 + seed // 3 % 2, g, kind="per edge", coupling_std=coupling_std)
        mrf = PairwiseMRF(inputs.unary.to(dtype), edges, inputs.pairwise.to(dtype))
        _, convergence = run(mrf, tolerance=1e-6)
        assert convergence.converged, (seed, convergence)


def test_batch_equals_single_mrfs():
    batch = random_mrf_inputs(grid(4, 4), 16, 2, generator(2), kind="per edge", coupling_std=3.0, batch=(3,))
    messages, convergence = run(batch.mrf())
    alone = [run(batch_item(batch, b).mrf()) for b in range(3)]
    assert convergence.sweeps == max(result[1].sweeps for result in alone)
    for b in range(3):
        torch.testing.assert_close(messages[b], alone[b][0], rtol=0, atol=0)


def test_few_sweeps_are_not_followed_by_the_double_loop():
    _, convergence = sum_product(frustrated_field(), max_sweeps=40)
    assert convergence.sweeps == 40 and convergence.method == "sum-product" and not convergence.converged


def test_sweeps_of_the_double_loop_are_limited():
    _, convergence = run(frustrated_field(), max_sweeps=20)
    assert convergence.sweeps == 20 and not convergence.converged and "max_sweeps" in convergence.advice


def test_potentials_with_gradients_stay_with_parallel_sweeps():
    mrf = frustrated_field()
    leaf = mrf.unary.clone().requires_grad_()
    _, convergence = sum_product(PairwiseMRF(leaf, mrf.edge_index, mrf.pairwise), max_sweeps=70)
    assert not convergence.converged and convergence.method == "sum-product"


@pytest.mark.skipif(not INSTANCES.is_dir(), reason="needs the instances of the UAI 2014 competition in ../shared/uai")
@pytest.mark.parametrize("name", ["CSP_11", "Grids_12", "Grids_14", "Grids_16", "Grids_18"])
def test_converges_on_competition_instances(name, monkeypatch):
    monkeypatch.setattr("edgewise.inference.propagation.MIN_COMPILED_WORK", 0)
    mrf = read_uai(INSTANCES / f"{name}.uai", evidence=INSTANCES / f"{name}.uai.evid")
    assert not sum_product(mrf, damping=0.0, max_sweeps=300)[1].converged
    _, convergence = sum_product(mrf)
    assert convergence.converged and convergence.method == ("sum-product" if name == "CSP_11" else "double loop")


def residuals_of(damping, changes):
    """Return the damping of each sweep, for given residuals."""
    values = []
    for k in range(len(changes)):
        if (value := damping.next(changes[:k])) is None:
            break
        values.append(value)
    return values


def test_constant_damping_stays():
    assert set(residuals_of(Damping(0.3), [1.0] * 2000)) == {0.3}


def test_damping_rises_while_the_residual_does_not_decrease():
    values = residuals_of(Damping(None), [1.0 + 0.5 * math.sin(k) for k in range(5000)])
    assert list(dict.fromkeys(values)) == list(DAMPINGS) and len(values) < 5000
    assert values == sorted(values)


@pytest.mark.parametrize("rate", [0.5, 0.99, 0.9995])
def test_damping_stays_while_the_residual_decreases(rate):
    assert set(residuals_of(Damping(None), [rate**k for k in range(1500)])) == {0.0}


@pytest.mark.parametrize("solver", [sum_product, mean_field])
def test_oscillations_end_by_themselves(solver):
    """Repelling nodes: undamped parallel updates of all nodes overshoot."""
    unary = 0.1 * torch.randn(4, 2, generator=generator(0), dtype=torch.float64)
    mrf = PairwiseMRF(unary, torch.triu_indices(4, 4, 1), -2.0 * torch.eye(2).double())
    assert not solver(mrf, damping=0.0, max_sweeps=400)[1].converged
    posterior, convergence = solver(mrf)
    assert convergence.converged and convergence.damping == 0.5
    damped, _ = solver(mrf, damping=0.5)
    np.testing.assert_allclose(posterior.node.numpy(), damped.node.numpy(), rtol=0, atol=1e-9)


def test_max_product_stops_when_it_cannot_converge(monkeypatch):
    monkeypatch.setattr("edgewise.inference.fixed_point.DAMPINGS", (0.0,))
    _, convergence = max_product(frustrated_field(), max_sweeps=100_000)
    assert not convergence.converged and convergence.sweeps < 10_000 and "map_labels" in convergence.advice


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_marginals_agree_with_a_sweep_also_at_high_degree(dtype):
    """The beliefs of the double loop differ from those of its messages by an error that grows with the degree."""
    n, g = 40, generator(1)
    unary, spins = torch.randn(n, 2, generator=g, dtype=dtype), torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=dtype)
    edges = torch.triu_indices(n, n, 1)
    couplings = 0.5 * torch.randn(edges.shape[1], 1, 1, generator=g, dtype=dtype) * spins
    mrf = PairwiseMRF(unary, edges, couplings)
    messages, convergence = run(mrf, tolerance=module.DOUBLE_LOOP_TOLERANCE)
    posterior = posterior_from_messages(mrf, messages)
    assert convergence.converged
    again = posterior_from_messages(mrf, sweep(mrf, messages, log_sum)).node
    assert float((again - posterior.node).abs().max()) < 1e-4
    assert float((posterior.joint(edges).sum(2) - posterior.node[edges[0]]).abs().max()) < 1e-5


def test_gradient_of_a_batch_whose_mrfs_need_different_damping(monkeypatch):
    monkeypatch.setattr("edgewise.inference.propagation.MIN_COMPILED_WORK", 0)
    unary = 0.1 * torch.randn(2, 4, 2, generator=generator(0), dtype=torch.float64)
    couplings = torch.stack([0.1 * torch.eye(2), -2.0 * torch.eye(2)]).double()[:, None]
    complete = torch.triu_indices(4, 4, 1)
    leaf = unary.clone().requires_grad_()
    posterior, convergence = sum_product(PairwiseMRF(leaf, complete, couplings))
    assert convergence.converged and convergence.damping == 0.5
    posterior.node.square().sum().backward()
    for b in range(2):
        alone = unary[b].clone().requires_grad_()
        sum_product(PairwiseMRF(alone, complete, couplings[b, 0]))[0].node.square().sum().backward()
        torch.testing.assert_close(leaf.grad[b], alone.grad, rtol=0, atol=1e-8)


@pytest.mark.parametrize("solver", [sum_product, mean_field])
def test_convergence_describes_the_result_with_a_gradient(solver):
    """Without convergence the sweeps are repeated with one damping, and the residual is that of these sweeps."""
    mrf = frustrated_field()
    leaf = mrf.unary.clone().requires_grad_()
    posterior, convergence = solver(PairwiseMRF(leaf, mrf.edge_index, mrf.pairwise), max_sweeps=70)
    plain, expected = solver(mrf, max_sweeps=convergence.sweeps, damping=convergence.damping)
    assert convergence.damping == 0.5
    assert convergence.residual == expected.residual
    torch.testing.assert_close(posterior.node.detach(), plain.node, rtol=0, atol=1e-12)


def test_damping_of_a_batch_in_compiled_loops_equals_that_of_single_mrfs(monkeypatch):
    monkeypatch.setattr("edgewise.inference.propagation.MIN_COMPILED_WORK", 0)
    batch = random_mrf_inputs(grid(4, 4), 16, 2, generator(2), kind="per edge", coupling_std=2.5, batch=(4,))
    together, _ = sum_product(batch.mrf(), max_sweeps=200)
    for b in range(4):
        alone, _ = sum_product(batch_item(batch, b).mrf(), max_sweeps=200)
        torch.testing.assert_close(together.node[b], alone.node, rtol=0, atol=1e-6)
