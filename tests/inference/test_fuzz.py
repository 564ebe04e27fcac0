"""Solvers on 10,000 MRFs with potentials of all magnitudes: marginals are finite and sum to 1."""

import math

import pytest
import torch

from edgewise.inference import PairwiseMRF, bethe_free_energy, max_product, mean_field, propagation, sum_product
from helpers.random_fields import generator, random_graph

NUM_MRFS = 100  # per graph
NUM_GRAPHS = 100


def extreme_numbers(shape, g):
    """Draw numbers of both signs with magnitudes from 1e-30 to 1e4, some exactly 0 and some exactly ±1e4."""
    size = 10.0 ** (34 * torch.rand(shape, generator=g, dtype=torch.float64) - 30)
    usual = torch.randn(shape, generator=g, dtype=torch.float64)
    kind = torch.randint(6, shape, generator=g)
    sign = torch.randn(shape, generator=g, dtype=torch.float64).sign()
    value = torch.where(kind < 2, sign * size, torch.where(kind < 4, usual, sign * 1e4))
    return torch.where(kind == 5, 0.0, value)


def extreme_mrf(seed):
    g = generator(seed)
    num_classes = 1 + seed % 8
    num_nodes = int(torch.randint(2, 9, (), generator=g))
    edge_index = random_graph(num_nodes, int(torch.randint(0, 2 * num_nodes, (), generator=g)), g)
    if seed % 5 == 0:  # add a node with more neighbors than compiled loops have lanes
        num_nodes += 70
        hub = torch.stack([torch.zeros(70, dtype=torch.long), torch.arange(num_nodes - 70, num_nodes)])
        edge_index = torch.cat([edge_index, hub], dim=1)
    num_edges = edge_index.shape[1]
    dtype = (torch.float32, torch.float64)[seed % 2]
    unary = extreme_numbers((NUM_MRFS, num_nodes, num_classes), g)
    if seed % 3 == 0:
        unary = unary * 1e25
    possible = torch.randint(num_classes, (NUM_MRFS, num_nodes, 1), generator=g)
    impossible = torch.rand(unary.shape, generator=g) < 0.3
    unary = torch.where(impossible.scatter(-1, possible, False), -torch.inf, unary)
    pairwise = extreme_numbers((NUM_MRFS, num_edges if seed % 4 < 2 else 1, num_classes, num_classes), g)
    scale = extreme_numbers((NUM_MRFS, num_edges), g) if seed % 3 == 1 else None
    evidence = {}
    for node in range(num_nodes - 1, max(-1, num_nodes - 1 - seed % 3), -1):
        evidence[node] = int(torch.randint(num_classes, (), generator=g))
        unary[:, node, evidence[node]] = 0.0  # possible
    scale = None if scale is None else scale.to(dtype)
    return PairwiseMRF(unary.to(dtype), edge_index, pairwise.to(dtype), edge_scale=scale, evidence=evidence), evidence


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
