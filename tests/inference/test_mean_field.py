import math

import pytest
import torch
from hypothesis import given, settings

from edgewise.inference import Convergence, PairwiseMRF, mean_field
from helpers.random_fields import KINDS, cycle, generator, one_of, random_field, random_graph, small_fields


def following(field, q):
    """softmax(U_i + Σ_j T_ij q_j) as a loop."""
    answer = []
    for i, row in enumerate(field.unary.double().tolist()):
        logits = list(row)
        for (a, b), coupling in zip(field.edges, field.couplings.tolist(), strict=True):
            for label in range(len(row)):
                for other in range(len(row)):
                    if a == i:
                        logits[label] += coupling[label][other] * q[b][other]
                    if b == i:
                        logits[label] += coupling[other][label] * q[a][other]
        if i in (field.evidence or {}):
            logits = [x if label == field.evidence[i] else -math.inf for label, x in enumerate(logits)]
        top = max(logits)
        weights = [math.exp(x - top) for x in logits]
        answer.append([w / sum(weights) for w in weights])
    return torch.tensor(answer, dtype=torch.float64)


@given(field=small_fields(loops=True, strength=0.3))
@settings(max_examples=80)
def test_it_rests_at_the_fixed_point_equation(field):
    posterior, convergence = mean_field(field.mrf(), damping=0.3)
    assert convergence.converged and convergence.residual <= 1e-12
    torch.testing.assert_close(following(field, posterior.node.tolist()), posterior.node, rtol=0, atol=1e-11)


@given(field=small_fields(loops=True))
@settings(max_examples=50)
def test_it_sweeps_in_parallel_from_the_softmax_of_the_unaries(field):
    masked = field.mrf().unary
    q = masked.softmax(-1)
    for sweeps in (1, 2, 3):
        expected = following(field, q.tolist())
        posterior, convergence = mean_field(field.mrf(), max_sweeps=sweeps, tolerance=0.0)
        if convergence.sweeps < sweeps:
            break
        torch.testing.assert_close(posterior.node, expected, rtol=0, atol=1e-12)
        assert convergence.residual == pytest.approx(float((expected - q).abs().max()), abs=1e-12)
        q = expected


def test_damping_keeps_its_share():
    g = generator(1)
    field = random_field(random_graph(6, 9, g), 6, 3, g)
    before, after = field.unary.softmax(-1), following(field, field.unary.softmax(-1).tolist())
    posterior, _ = mean_field(field.mrf(), max_sweeps=1, damping=0.25)
    torch.testing.assert_close(posterior.node, 0.25 * before + 0.75 * after, rtol=0, atol=1e-14)


def test_without_couplings_nodes_keep_their_softmax():
    g = generator(2)
    field = random_field(random_graph(6, 9, g), 6, 3, g)
    posterior, convergence = mean_field(field._replace(pairwise=torch.zeros(3, 3)).mrf())
    torch.testing.assert_close(posterior.node, field.unary.softmax(-1), rtol=0, atol=1e-15)
    assert convergence.converged and convergence.sweeps == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_evidence_and_impossible_labels_are_exact(dtype, kind):
    g = generator(3)
    field = random_field(random_graph(10, 20, g), 10, 3, g, kind=kind, num_known=3, dtype=dtype)
    free = next(node for node in range(10) if node not in field.evidence)
    field.unary[free, 1] = -torch.inf
    posterior, _ = mean_field(field.mrf(), damping=0.3, max_sweeps=20)
    assert posterior.node.dtype == dtype
    for node, label in field.evidence.items():
        assert posterior.node[node].tolist() == torch.eye(3)[label].tolist()
    assert posterior.node[free, 1] == 0


@pytest.mark.parametrize("backward", [False, True])
def test_rows_of_a_coupling_are_labels_of_the_start(backward):
    """What is known of one end pulls the other by a row, or by a column, of the coupling."""
    coupling = torch.tensor([[0.0, 1.0, 2.0], [3.0, -1.0, 0.5], [0.2, 0.1, -2.0]], dtype=torch.float64)
    edge = torch.tensor([[1], [0]] if backward else [[0], [1]])
    mrf = PairwiseMRF(torch.zeros(2, 3, dtype=torch.float64), edge, coupling, evidence={0: 1})
    pull = coupling[:, 1] if backward else coupling[1]
    torch.testing.assert_close(mean_field(mrf)[0].node[1], pull.softmax(-1), rtol=0, atol=1e-15)


def test_joints_are_products():
    g = generator(4)
    field = random_field(cycle(4), 4, 3, g, strength=0.3)
    posterior, _ = mean_field(field.mrf())
    start, end = posterior.node[field.edge_index]
    torch.testing.assert_close(posterior.joint(field.edge_index), start[:, :, None] * end[:, None, :])


def test_two_nodes_that_attract_break_their_symmetry():
    """q = softmax(T q) for T = J 1 has the solution tanh: m = tanh(J m / 2), apart from m = 0 if J > 2."""
    unary = torch.tensor([[1e-3, 0.0], [1e-3, 0.0]], dtype=torch.float64)
    edge = torch.tensor([[0], [1]])
    q = mean_field(PairwiseMRF(unary, edge, 3.0 * torch.eye(2)))[0].node
    m = float(q[0, 0] - q[0, 1])
    assert m > 0.8 and m == pytest.approx(math.tanh((1e-3 + 3.0 * m) / 2), abs=1e-11)


def test_repulsion_oscillates_in_parallel_and_damping_calms_it():
    unary = torch.tensor([[0.1, 0.0], [0.1, 0.0]])
    mrf = PairwiseMRF(unary, torch.tensor([[0], [1]]), -4.0 * torch.eye(2))
    _, wild = mean_field(mrf, max_sweeps=100)
    assert not wild.converged and wild.sweeps == 100
    assert wild.advice.endswith("It does not fall: try damping=0.5, or weaker couplings.")
    _, calm = mean_field(mrf, damping=0.5)
    assert calm.converged and calm.advice == ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_fields_one_by_one(kind):
    g = generator(5)
    batch = random_field(random_graph(8, 12, g), 8, 3, g, kind=kind, strength=0.3, batch=(4,), num_known=2)
    together, convergence = mean_field(batch.mrf())
    assert convergence.converged
    for b in range(4):
        alone, _ = mean_field(one_of(batch, b).mrf())
        torch.testing.assert_close(together.node[b], alone.node, rtol=0, atol=1e-11)


@pytest.mark.parametrize("num_nodes", [0, 1, 4])
def test_no_edges(num_nodes):
    unary = torch.randn(num_nodes, 3, generator=generator(6))
    posterior, convergence = mean_field(PairwiseMRF(unary, torch.empty(2, 0, dtype=torch.long), torch.eye(3)))
    torch.testing.assert_close(posterior.node, unary.softmax(-1))
    assert convergence.converged and convergence.sweeps == 1 and isinstance(convergence, Convergence)
