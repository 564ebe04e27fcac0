"""The Bethe free energy against enumeration, energy minus entropy, and finite differences."""

import itertools

import pytest
import torch
from hypothesis import given

from edgewise.inference import PairwiseMRF, bethe_free_energy, exact_marginals, max_product, mean_field, sum_product
from edgewise.inference.bethe import free_energy_from_messages
from edgewise.posterior import PairwisePosterior
from helpers.random_fields import (
    KINDS,
    batch_item,
    cycle,
    generator,
    random_graph,
    random_mrf_inputs,
    random_tree,
    small_mrf_inputs,
)


def loopy(kind, seed=3, num_observed=2, **options):
    g = generator(seed)
    return random_mrf_inputs(
        random_graph(9, 15, g), 9, 3, g, kind=kind, coupling_std=0.5, num_observed=num_observed, **options
    )


def free_energy_from_marginals(inputs, posterior):
    """Energy minus entropy: Σ_e Σ b_e (log b_e - T - U_i - U_j) - Σ_i (d_i - 1) Σ b_i (log b_i - U_i)."""
    energy = torch.zeros((), dtype=torch.float64)
    unary = torch.where(posterior.node > 0, inputs.unary, 0.0)
    for (i, j), coupling, b in zip(inputs.edges, inputs.couplings, posterior.joint(inputs.edge_index), strict=True):
        energy += torch.xlogy(b, b).sum() - (b * (coupling + unary[i][:, None] + unary[j])).sum()
    for i, b in enumerate(posterior.node):
        degree = sum(i in edge for edge in inputs.edges)
        energy -= (degree - 1) * (torch.xlogy(b, b).sum() - (b * unary[i]).sum())
    return float(energy)


@given(inputs=small_mrf_inputs())
def test_free_energy_is_minus_log_z_on_forests(inputs):
    mrf = inputs.mrf()
    for infer in (sum_product, exact_marginals):
        energy = bethe_free_energy(mrf, infer(mrf)[0])
        assert energy.dtype == torch.float64 and energy.shape == ()
        assert float(energy) == pytest.approx(-inputs.enumeration().log_z, rel=1e-12, abs=1e-11)


def test_free_energy_approximates_minus_log_z_on_a_weakly_coupled_loop():
    """The error is of the order of the product of the 4 couplings, about 0.3^4 / 4^2 for two labels."""
    inputs = random_mrf_inputs(cycle(4), 4, 2, generator(0), kind="per edge", coupling_std=0.3)
    energy = float(bethe_free_energy(inputs.mrf(), sum_product(inputs.mrf())[0]))
    assert 1e-10 < abs(energy + inputs.enumeration().log_z) < 0.3**4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_observed", [0, 2])
def test_free_energy_is_energy_minus_entropy_at_a_fixed_point(kind, num_observed):
    inputs = loopy(kind, num_observed=num_observed)
    posterior, convergence = sum_product(inputs.mrf())
    assert convergence.converged
    assert float(bethe_free_energy(inputs.mrf(), posterior)) == pytest.approx(
        free_energy_from_marginals(inputs, posterior), abs=1e-11
    )


def gradient_of_messages(mrf, posterior, messages):
    messages = messages.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(free_energy_from_messages(mrf, messages), messages)
    return gradient


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_observed", [0, 2])
def test_free_energy_is_stationary_at_fixed_points_only(kind, num_observed):
    inputs = loopy(kind, num_observed=num_observed)
    mrf = inputs.mrf()
    posterior, _ = sum_product(mrf)
    assert gradient_of_messages(mrf, posterior, posterior.messages).abs().max() < 1e-11
    assert gradient_of_messages(mrf, posterior, torch.zeros_like(posterior.messages)).abs().max() > 1e-2
    degree = torch.bincount(mrf.edge_index.flatten(), minlength=9)
    for direction, edge in itertools.product((0, 1), range(15)):
        receiver = int(mrf.edge_index[direction, edge])
        if degree[receiver] > 1 and receiver not in (inputs.evidence or {}):  # other nodes do not pass messages on
            changed = posterior.messages.clone()
            changed[direction, edge, 0] += 0.3
            assert gradient_of_messages(mrf, posterior, changed).abs().max() > 1e-4


def test_constants_in_messages_do_not_change_the_free_energy():
    inputs = loopy("shared")
    mrf = inputs.mrf()
    posterior, _ = sum_product(mrf, max_sweeps=2)
    moved = posterior.messages + torch.randn(2, 15, 1, generator=generator(0), dtype=torch.float64)
    assert float(free_energy_from_messages(mrf, moved)) == pytest.approx(
        float(bethe_free_energy(mrf, posterior)), abs=1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_observed", [0, 2])
def test_gradient_is_minus_the_marginals(kind, num_observed):
    inputs = loopy(kind, num_observed=num_observed)
    leaves = [inputs.unary.requires_grad_(), inputs.pairwise.requires_grad_()]
    if inputs.edge_scale is not None:
        leaves.append(inputs.edge_scale.requires_grad_())
    mrf = inputs.mrf()
    posterior, convergence = sum_product(mrf)
    assert convergence.converged
    implicit = torch.autograd.grad(-bethe_free_energy(mrf, posterior), leaves, retain_graph=True)
    with torch.no_grad():
        detached, _ = sum_product(mrf)
    constant = torch.autograd.grad(-bethe_free_energy(mrf, detached), leaves)  # with constant messages
    joint = detached.joint(inputs.edge_index)
    scale = torch.ones(15, dtype=torch.float64) if inputs.edge_scale is None else inputs.edge_scale.detach()
    scaled = joint * scale[:, None, None]
    expected = [detached.node, scaled if "per edge" in kind else scaled.sum(0)]
    if inputs.edge_scale is not None:
        expected.append((joint * inputs.pairwise.detach()).sum((-1, -2)))
    for gradients in (implicit, constant):
        for got, desired in zip(gradients, expected, strict=True):
            torch.testing.assert_close(got, desired, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_equals_single_mrfs(kind):
    batch = loopy(kind, batch=(3,))
    energies = bethe_free_energy(batch.mrf(), sum_product(batch.mrf())[0])
    assert energies.shape == (3,)
    for b in range(3):
        alone = batch_item(batch, b).mrf()
        assert float(energies[b]) == pytest.approx(float(bethe_free_energy(alone, sum_product(alone)[0])), abs=1e-10)


def test_chunks_do_not_change_the_free_energy(monkeypatch):
    from edgewise.inference import messages

    inputs = loopy("scaled")
    posterior, _ = sum_product(inputs.mrf())
    whole = float(bethe_free_energy(inputs.mrf(), posterior))
    monkeypatch.setattr(messages, "CHUNK_ELEMENTS", 4 * 9)
    assert float(bethe_free_energy(inputs.mrf(), posterior)) == pytest.approx(whole, abs=1e-12)


def test_float32_potentials_are_summed_in_float64():
    """200,000 isolated nodes: log Z = 200,000 log 2, which a float32 sum has to about 1e-2 only."""
    mrf = PairwiseMRF(torch.zeros(200_000, 2), torch.empty(2, 0, dtype=torch.long), torch.eye(2))
    energy = bethe_free_energy(mrf, sum_product(mrf)[0])
    assert float(energy) == pytest.approx(-200_000 * 0.6931471805599453, rel=1e-12)


def test_posterior_of_another_kind_or_mrf_raises():
    g = generator(4)
    inputs = random_mrf_inputs(random_tree(5, g), 5, 2, g)
    other = random_mrf_inputs(random_tree(5, g), 5, 2, g)
    mrf = inputs.mrf()
    for posterior in (mean_field(mrf)[0], sum_product(other.mrf())[0]):
        with pytest.raises(ValueError, match=r"bethe_free_energy\(mrf, sum_product\(mrf\)\[0\]\)"):
            bethe_free_energy(mrf, posterior)
    changed = PairwiseMRF(inputs.unary + torch.eye(5, 2), inputs.edge_index, inputs.pairwise)
    exact = exact_marginals(mrf)[0]
    from_joints = PairwisePosterior.from_joints(exact.node, inputs.edge_index, exact.joint(inputs.edge_index))
    for posterior in (sum_product(changed)[0], from_joints):
        with pytest.raises(ValueError, match="do not follow from its messages"):
            bethe_free_energy(mrf, posterior)
    bethe_free_energy(mrf, max_product(mrf)[0])  # messages of max-product have a free energy too
