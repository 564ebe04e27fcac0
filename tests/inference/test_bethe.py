import itertools

import pytest
import torch
from hypothesis import given, settings

from edgewise.inference import PairwiseMRF, bethe_free_energy, exact_marginals, max_product, mean_field, sum_product
from edgewise.inference.bethe import free_energy_of_messages
from edgewise.posterior import PairwisePosterior
from helpers.random_fields import KINDS, cycle, generator, one_of, random_field, random_graph, random_tree, small_fields


def loopy(kind, seed=3, num_known=2, **options):
    g = generator(seed)
    return random_field(random_graph(9, 15, g), 9, 3, g, kind=kind, strength=0.5, num_known=num_known, **options)


def of_beliefs(field, posterior):
    """Energy minus entropy: Σ_e Σ b_e (log b_e - T - U_i - U_j) - Σ_i (d_i - 1) Σ b_i (log b_i - U_i)."""
    energy = torch.zeros((), dtype=torch.float64)
    unary = torch.where(posterior.node > 0, field.unary, 0.0)
    for (i, j), coupling, b in zip(field.edges, field.couplings, posterior.joint(field.edge_index), strict=True):
        energy += torch.xlogy(b, b).sum() - (b * (coupling + unary[i][:, None] + unary[j])).sum()
    for i, b in enumerate(posterior.node):
        degree = sum(i in edge for edge in field.edges)
        energy -= (degree - 1) * (torch.xlogy(b, b).sum() - (b * unary[i]).sum())
    return float(energy)


@given(field=small_fields())
@settings(max_examples=100)
def test_it_is_minus_log_z_on_forests(field):
    mrf = field.mrf()
    for infer in (sum_product, exact_marginals):
        energy = bethe_free_energy(mrf, infer(mrf)[0])
        assert energy.dtype == torch.float64 and energy.shape == ()
        assert float(energy) == pytest.approx(-field.enumerated().log_z, rel=1e-12, abs=1e-11)


def test_it_is_near_minus_log_z_where_loops_are_weak_but_not_equal():
    """The error is that of a loop of 4 couplings, about 0.3^4 / 4^2 with two labels of both signs."""
    field = random_field(cycle(4), 4, 2, generator(0), kind="per edge", strength=0.3)
    energy = float(bethe_free_energy(field.mrf(), sum_product(field.mrf())[0]))
    assert 1e-10 < abs(energy + field.enumerated().log_z) < 0.3**4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_known", [0, 2])
def test_it_is_energy_minus_entropy_of_the_beliefs_at_a_fixed_point(kind, num_known):
    field = loopy(kind, num_known=num_known)
    posterior, convergence = sum_product(field.mrf())
    assert convergence.converged
    assert float(bethe_free_energy(field.mrf(), posterior)) == pytest.approx(of_beliefs(field, posterior), abs=1e-11)


def gradient_of_messages(mrf, posterior, messages):
    messages = messages.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(free_energy_of_messages(mrf, messages), messages)
    return gradient


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_known", [0, 2])
def test_messages_at_rest_are_where_it_is_stationary(kind, num_known):
    field = loopy(kind, num_known=num_known)
    mrf = field.mrf()
    posterior, _ = sum_product(mrf)
    assert gradient_of_messages(mrf, posterior, posterior.messages).abs().max() < 1e-11
    assert gradient_of_messages(mrf, posterior, torch.zeros_like(posterior.messages)).abs().max() > 1e-2
    degree = torch.bincount(mrf.edge_index.flatten(), minlength=9)
    for direction, edge in itertools.product((0, 1), range(15)):
        receiver = int(mrf.edge_index[direction, edge])
        if degree[receiver] > 1 and receiver not in (field.evidence or {}):  # others pass on what they hear to nobody
            moved = posterior.messages.clone()
            moved[direction, edge, 0] += 0.3
            assert gradient_of_messages(mrf, posterior, moved).abs().max() > 1e-4


def test_constants_in_messages_change_nothing():
    field = loopy("shared")
    mrf = field.mrf()
    posterior, _ = sum_product(mrf, max_sweeps=2)
    moved = posterior.messages + torch.randn(2, 15, 1, generator=generator(0), dtype=torch.float64)
    assert float(free_energy_of_messages(mrf, moved)) == pytest.approx(
        float(bethe_free_energy(mrf, posterior)), abs=1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_known", [0, 2])
def test_its_derivatives_are_minus_the_marginals(kind, num_known):
    field = loopy(kind, num_known=num_known)
    leaves = [field.unary.requires_grad_(), field.pairwise.requires_grad_()]
    if field.edge_scale is not None:
        leaves.append(field.edge_scale.requires_grad_())
    mrf = field.mrf()
    posterior, convergence = sum_product(mrf)
    assert convergence.converged
    through = torch.autograd.grad(-bethe_free_energy(mrf, posterior), leaves, retain_graph=True)
    with torch.no_grad():
        alone, _ = sum_product(mrf)
    fixed = torch.autograd.grad(-bethe_free_energy(mrf, alone), leaves)  # messages as constants: the same, at rest
    joint = alone.joint(field.edge_index)
    scale = torch.ones(15, dtype=torch.float64) if field.edge_scale is None else field.edge_scale.detach()
    scaled = joint * scale[:, None, None]
    expected = [alone.node, scaled if "per edge" in kind else scaled.sum(0)]
    if field.edge_scale is not None:
        expected.append((joint * field.pairwise.detach()).sum((-1, -2)))
    for gradients in (through, fixed):
        for got, wanted in zip(gradients, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_fields_one_by_one(kind):
    batch = loopy(kind, batch=(3,))
    energies = bethe_free_energy(batch.mrf(), sum_product(batch.mrf())[0])
    assert energies.shape == (3,)
    for b in range(3):
        alone = one_of(batch, b).mrf()
        assert float(energies[b]) == pytest.approx(float(bethe_free_energy(alone, sum_product(alone)[0])), abs=1e-10)


def test_more_edges_than_one_chunk_holds(monkeypatch):
    from edgewise.inference import messages

    field = loopy("scaled")
    posterior, _ = sum_product(field.mrf())
    whole = float(bethe_free_energy(field.mrf(), posterior))
    monkeypatch.setattr(messages, "CHUNK_ELEMENTS", 4 * 9)
    assert float(bethe_free_energy(field.mrf(), posterior)) == pytest.approx(whole, abs=1e-12)


def test_float32_fields_are_summed_in_float64():
    """200,000 free coins: log Z is 200,000 log 2, which float32 sums to about 1e-2 only."""
    mrf = PairwiseMRF(torch.zeros(200_000, 2), torch.empty(2, 0, dtype=torch.long), torch.eye(2))
    energy = bethe_free_energy(mrf, sum_product(mrf)[0])
    assert float(energy) == pytest.approx(-200_000 * 0.6931471805599453, rel=1e-12)


def test_beliefs_of_another_kind_or_graph_are_refused():
    g = generator(4)
    field = random_field(random_tree(5, g), 5, 2, g)
    other = random_field(random_tree(5, g), 5, 2, g)
    mrf = field.mrf()
    for posterior in (mean_field(mrf)[0], sum_product(other.mrf())[0]):
        with pytest.raises(ValueError, match=r"Expected the posterior that sum_product .* other edges\. Pass the two"):
            bethe_free_energy(mrf, posterior)
    changed = PairwiseMRF(field.unary + torch.eye(5, 2), field.edge_index, field.pairwise)
    exact = exact_marginals(mrf)[0]
    known = PairwisePosterior.from_joints(exact.node, field.edge_index, exact.joint(field.edge_index))
    for posterior in (sum_product(changed)[0], known):
        with pytest.raises(ValueError, match="those of another field, or were not made of messages"):
            bethe_free_energy(mrf, posterior)
    bethe_free_energy(mrf, max_product(mrf)[0])  # messages of any kind on the same graph have an energy
