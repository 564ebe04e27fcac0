"""Solvers on 10,000 MRFs with potentials of all magnitudes: marginals are finite and sum to 1."""

import math

import pytest
import torch

from edgewise.inference import (
    PairwiseMRF,
    bethe_free_energy,
    map_labels,
    max_product,
    mean_field,
    propagation,
    sum_product,
    tree_reweighted,
)
from edgewise.inference.double_loop import minimize_bethe
from edgewise.inference.fixed_point import StoppingRule
from edgewise.inference.junction_tree import batch_items, eliminate
from edgewise.inference.messages import posterior_from_messages, zero_messages
from helpers.random_fields import extreme_mrf

NUM_GRAPHS = 100


def assert_valid_marginals(mrf, evidence, posterior, convergence):
    close = 1e-5 if mrf.unary.dtype == torch.float32 else 1e-12
    joint = posterior.joint(mrf.edge_index)
    assert math.isfinite(convergence.residual)
    assert posterior.node.isfinite().all() and joint.isfinite().all()
    assert (posterior.node >= 0).all() and (joint >= 0).all()
    assert ((posterior.node.sum(-1) - 1).abs() < close).all()
    assert ((joint.sum((-1, -2)) - 1).abs() < close).all()
    assert (posterior.node[mrf.unary == -torch.inf] == 0).all()
    for node, label in evidence.items():
        assert (posterior.node[:, node, label] == 1).all()


@pytest.mark.parametrize("infer", [sum_product, max_product, mean_field])
def test_marginals_of_extreme_mrfs_are_valid(infer):
    for seed in range(NUM_GRAPHS):
        mrf, evidence = extreme_mrf(seed)
        posterior, convergence = infer(mrf, max_sweeps=1 + seed % 4, damping=(0.0, 0.5)[seed // 2 % 2])
        assert_valid_marginals(mrf, evidence, posterior, convergence)
        if infer is sum_product:
            assert bethe_free_energy(mrf, posterior).isfinite().all()


def double_loop(mrf):
    messages, convergence = minimize_bethe(mrf, zero_messages(mrf), StoppingRule(7, 0.0, 0.0, "double loop"))
    return posterior_from_messages(mrf, messages, convergence), convergence


def elimination(mrf):
    posterior = eliminate(mrf)
    assert posterior.log_partition.isfinite().all()
    return posterior, posterior.convergence


def few_trees(mrf):
    posterior, convergence = tree_reweighted(mrf, max_sweeps=3, num_trees=2)
    assert posterior.log_partition.isfinite().all()
    return posterior, convergence


# All graphs are left to the slow suite: these solvers take MRFs of a batch one by one.
GRAPHS = [
    pytest.param(range(0, NUM_GRAPHS, 25), id="some"),
    pytest.param(range(NUM_GRAPHS), id="all", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("infer", [double_loop, elimination, few_trees])
def test_marginals_of_extreme_mrfs_by_other_solvers_are_valid(infer, graphs):
    for seed in graphs:
        mrf, evidence = extreme_mrf(seed)
        assert_valid_marginals(mrf, evidence, *infer(mrf))


@pytest.mark.parametrize("graphs", GRAPHS)
def test_most_likely_labels_of_extreme_mrfs_are_possible(graphs):
    for seed in graphs:
        mrf, evidence = extreme_mrf(seed)
        labels, _ = map_labels(mrf)
        assert mrf.unary.gather(-1, labels.unsqueeze(-1)).isfinite().all()
        assert all((labels[:, node] == label).all() for node, label in evidence.items())
        # No change of a single label increases the score.
        item, best = batch_items(mrf)[0], labels[0]
        start, end = item.edge_index
        couplings = item.coupling(slice(None)).double().expand(item.num_edges, -1, -1)
        gain = item.unary.double().index_add(0, start, couplings[torch.arange(len(end)), :, best[end]])
        gain = gain.index_add(0, end, couplings[torch.arange(len(start)), best[start]])
        chosen = gain.gather(1, best[:, None])
        assert (gain <= chosen + 1e-6 * chosen.abs().clamp(min=1.0)).all()


@pytest.mark.parametrize("infer", [sum_product, max_product])
def test_marginals_of_extreme_mrfs_in_compiled_loops_are_valid(infer, monkeypatch):
    monkeypatch.setattr(propagation, "MIN_COMPILED_WORK", 0)
    for seed in range(32):
        mrf, evidence = extreme_mrf(seed)
        if mrf.num_edges:
            posterior, convergence = infer(mrf, max_sweeps=3, damping=(0.0, 0.5)[seed // 2 % 2])
            assert_valid_marginals(mrf, evidence, posterior, convergence)


def test_gradients_of_extreme_mrfs_are_finite():
    for seed in range(24):
        mrf, _ = extreme_mrf(seed)
        leaves = [mrf.unary.clone().requires_grad_(), mrf.pairwise.clone().requires_grad_()]
        with_gradient = PairwiseMRF(leaves[0], mrf.edge_index, leaves[1], edge_scale=mrf.edge_scale)
        posterior, _ = sum_product(with_gradient, max_sweeps=2, tolerance=0.0)
        joint = posterior.joint(mrf.edge_index)
        (posterior.node.square().sum() + joint.square().sum()).backward()
        assert leaves[0].grad.isfinite().all()
        assert leaves[1].grad is None or leaves[1].grad.isfinite().all()
