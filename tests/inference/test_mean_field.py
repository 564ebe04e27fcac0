"""Mean-field inference against a reference loop and closed forms."""

import math

import pytest
import torch
from hypothesis import given

from edgewise.inference import Convergence, PairwiseMRF, mean_field
from helpers.random_fields import KINDS, batch_item, cycle, generator, random_graph, random_mrf_inputs, small_mrf_inputs


def reference_update(inputs, q):
    """Compute softmax(U_i + Σ_j T_ij q_j) with a loop."""
    rows = []
    for i, row in enumerate(inputs.unary.double().tolist()):
        logits = list(row)
        for (a, b), coupling in zip(inputs.edges, inputs.couplings.tolist(), strict=True):
            for label in range(len(row)):
                for other in range(len(row)):
                    if a == i:
                        logits[label] += coupling[label][other] * q[b][other]
                    if b == i:
                        logits[label] += coupling[other][label] * q[a][other]
        if i in (inputs.evidence or {}):
            logits = [x if label == inputs.evidence[i] else -math.inf for label, x in enumerate(logits)]
        top = max(logits)
        weights = [math.exp(x - top) for x in logits]
        rows.append([w / sum(weights) for w in weights])
    return torch.tensor(rows, dtype=torch.float64)


@given(inputs=small_mrf_inputs(loops=True, coupling_std=0.3))
def test_converged_marginals_solve_the_fixed_point_equation(inputs):
    posterior, convergence = mean_field(inputs.mrf(), damping=0.3)
    assert convergence.converged and convergence.residual <= 1e-12
    torch.testing.assert_close(reference_update(inputs, posterior.node.tolist()), posterior.node, rtol=0, atol=1e-11)


@given(inputs=small_mrf_inputs(loops=True))
def test_sweeps_are_parallel_updates_from_the_softmax_of_unary(inputs):
    masked = inputs.mrf().unary
    q = masked.softmax(-1)
    for sweeps in (1, 2, 3):
        expected = reference_update(inputs, q.tolist())
        posterior, convergence = mean_field(inputs.mrf(), max_sweeps=sweeps, tolerance=0.0)
        if convergence.sweeps < sweeps:
            break
        torch.testing.assert_close(posterior.node, expected, rtol=0, atol=1e-12)
        assert convergence.residual == pytest.approx(float((expected - q).abs().max()), abs=1e-12)
        q = expected


def test_damping_keeps_a_fraction_of_the_old_marginals():
    g = generator(1)
    inputs = random_mrf_inputs(random_graph(6, 9, g), 6, 3, g)
    before, after = inputs.unary.softmax(-1), reference_update(inputs, inputs.unary.softmax(-1).tolist())
    posterior, _ = mean_field(inputs.mrf(), max_sweeps=1, damping=0.25)
    torch.testing.assert_close(posterior.node, 0.25 * before + 0.75 * after, rtol=0, atol=1e-14)


def test_marginals_without_couplings_are_the_softmax_of_unary():
    g = generator(2)
    inputs = random_mrf_inputs(random_graph(6, 9, g), 6, 3, g)
    posterior, convergence = mean_field(inputs._replace(pairwise=torch.zeros(3, 3)).mrf())
    torch.testing.assert_close(posterior.node, inputs.unary.softmax(-1), rtol=0, atol=1e-15)
    assert convergence.converged and convergence.sweeps == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_observed_labels_have_probability_one_and_impossible_labels_zero(dtype, kind):
    g = generator(3)
    inputs = random_mrf_inputs(random_graph(10, 20, g), 10, 3, g, kind=kind, num_observed=3, dtype=dtype)
    free = next(node for node in range(10) if node not in inputs.evidence)
    inputs.unary[free, 1] = -torch.inf
    posterior, _ = mean_field(inputs.mrf(), damping=0.3, max_sweeps=20)
    assert posterior.node.dtype == dtype
    for node, label in inputs.evidence.items():
        assert posterior.node[node].tolist() == torch.eye(3)[label].tolist()
    assert posterior.node[free, 1] == 0


@pytest.mark.parametrize("backward", [False, True])
def test_rows_of_a_coupling_are_labels_of_the_start(backward):
    """The observed label of one end selects a row or a column of the coupling as the logits of the other end."""
    coupling = torch.tensor([[0.0, 1.0, 2.0], [3.0, -1.0, 0.5], [0.2, 0.1, -2.0]], dtype=torch.float64)
    edge = torch.tensor([[1], [0]] if backward else [[0], [1]])
    mrf = PairwiseMRF(torch.zeros(2, 3, dtype=torch.float64), edge, coupling, evidence={0: 1})
    logits = coupling[:, 1] if backward else coupling[1]
    torch.testing.assert_close(mean_field(mrf)[0].node[1], logits.softmax(-1), rtol=0, atol=1e-15)


def test_joints_are_products_of_marginals():
    g = generator(4)
    inputs = random_mrf_inputs(cycle(4), 4, 3, g, coupling_std=0.3)
    posterior, _ = mean_field(inputs.mrf())
    start, end = posterior.node[inputs.edge_index]
    torch.testing.assert_close(posterior.joint(inputs.edge_index), start[:, :, None] * end[:, None, :])


def test_two_attracting_nodes_break_the_symmetry():
    """For T = J 1, q = softmax(T q) means m = tanh(J m / 2), with solutions other than m = 0 if J > 2."""
    unary = torch.tensor([[1e-3, 0.0], [1e-3, 0.0]], dtype=torch.float64)
    edge = torch.tensor([[0], [1]])
    q = mean_field(PairwiseMRF(unary, edge, 3.0 * torch.eye(2)))[0].node
    m = float(q[0, 0] - q[0, 1])
    assert m > 0.8 and m == pytest.approx(math.tanh((1e-3 + 3.0 * m) / 2), abs=1e-11)


def test_damping_stops_oscillations_of_repelling_nodes():
    unary = torch.tensor([[0.1, 0.0], [0.1, 0.0]])
    mrf = PairwiseMRF(unary, torch.tensor([[0], [1]]), -4.0 * torch.eye(2))
    _, undamped = mean_field(mrf, max_sweeps=100, damping=0.0)
    assert not undamped.converged and undamped.sweeps == 100
    assert "try damping=None" in undamped.advice
    assert mean_field(mrf)[1].converged
    _, damped = mean_field(mrf, damping=0.5)
    assert damped.converged and damped.advice == ""


@pytest.mark.parametrize("kind", KINDS)
def test_batch_equals_single_mrfs(kind):
    g = generator(5)
    batch = random_mrf_inputs(random_graph(8, 12, g), 8, 3, g, kind=kind, coupling_std=0.3, batch=(4,), num_observed=2)
    together, convergence = mean_field(batch.mrf())
    assert convergence.converged
    for b in range(4):
        alone, _ = mean_field(batch_item(batch, b).mrf())
        torch.testing.assert_close(together.node[b], alone.node, rtol=0, atol=1e-11)


@pytest.mark.parametrize("num_nodes", [0, 1, 4])
def test_no_edges(num_nodes):
    unary = torch.randn(num_nodes, 3, generator=generator(6))
    posterior, convergence = mean_field(PairwiseMRF(unary, torch.empty(2, 0, dtype=torch.long), torch.eye(3)))
    torch.testing.assert_close(posterior.node, unary.softmax(-1))
    assert convergence.converged and convergence.sweeps == 1 and isinstance(convergence, Convergence)
