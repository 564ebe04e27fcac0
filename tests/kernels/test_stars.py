"""The piecewise likelihood against enumeration: the energies of pieces sum to that of the MRF, each log Z is exact."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import edgewise as ew
from edgewise.kernels import dispatch, stars
from edgewise.kernels.stars import Stars, expected_energy, log_partitions, log_partitions_tensors, piecewise_loss
from helpers.reference import layers
from helpers.reference.enumeration import Enumeration, score
from helpers.small_graphs import generator, random_edges

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


class Case(NamedTuple):
    """An MRF with a symmetric coupling, and a distribution q of the label of each node."""

    unary: Tensor
    scale: Tensor
    coupling: Tensor
    q: Tensor
    edge_index: Tensor

    @property
    def edges(self):
        return self.edge_index.T.tolist()

    def stars(self):
        return Stars(self.edge_index, len(self.unary))

    def partitions(self):
        return log_partitions(self.unary, self.scale, self.coupling, self.stars())

    def energy(self):
        return expected_energy(self.unary, self.scale, self.coupling, self.q, self.stars())

    def loss(self):
        return piecewise_loss(self.unary, self.scale, self.coupling, self.q, self.stars())

    def reference(self):
        return layers.Stars(self.unary.tolist(), self.edges, self.scale.tolist(), self.coupling.tolist())


def random_case(seed, num_nodes=9, num_edges=10, num_classes=3, dtype=torch.float64, coupling_std=1.0):
    g = generator(seed)
    edge_index = random_edges(num_nodes, num_edges, g)
    free = coupling_std * torch.randn(num_classes, num_classes, generator=g, dtype=torch.float64)
    parts = (
        torch.randn(num_nodes, num_classes, generator=g, dtype=torch.float64),
        torch.randn(edge_index.shape[1], generator=g, dtype=torch.float64),
        free + free.T,
        torch.randn(num_nodes, num_classes, generator=g, dtype=torch.float64).softmax(1),
    )
    return Case(*(part.to(dtype) for part in parts), edge_index)


def one_hot_case(seed):
    case = random_case(seed)
    labels = torch.randint(3, (9,), generator=generator(seed + 100))
    return case._replace(q=torch.eye(3, dtype=torch.float64)[labels]), labels.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_energies_of_pieces_sum_to_the_energy_of_the_mrf(seed):
    case, labels = one_hot_case(seed)
    couplings = [(r * case.coupling).tolist() for r in case.scale]
    whole = score(labels, case.unary.tolist(), case.edges, couplings)
    pieces = sum(case.reference().score(node, case.q.tolist()) for node in range(9))
    assert pieces == pytest.approx(whole, abs=1e-12)
    assert float(case.energy()) == pytest.approx(whole, abs=1e-12)


def test_expected_energy_equals_sum_over_pieces():
    case = random_case(5)
    pieces = sum(case.reference().score(node, case.q.tolist()) for node in range(9))
    assert float(case.energy()) == pytest.approx(pieces, abs=1e-12)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("num_classes", [1, 2, 3, 4])
def test_log_partitions_equal_enumeration(dtype, num_classes):
    case = random_case(num_classes, num_classes=num_classes, dtype=dtype)
    expected = torch.tensor([case.reference().log_partition(node) for node in range(9)], dtype=dtype)
    torch.testing.assert_close(case.partitions(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_loss_is_minus_the_mean_log_likelihood_of_pieces():
    case = random_case(6)
    reference = case.reference()
    pieces = [reference.score(node, case.q.tolist()) - reference.log_partition(node) for node in range(9)]
    assert float(case.loss()) == pytest.approx(-sum(pieces) / 9, abs=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
def test_log_partition_of_a_center_is_that_of_the_mrf_of_its_star(reverse):
    """The gradient of log Z gives the marginals of the MRF of the star."""
    star = torch.tensor([[0, 0, 0, 0], [1, 2, 3, 4]])
    g = generator(7)
    unary = torch.randn(5, 3, generator=g, dtype=torch.float64, requires_grad=True)
    scale, free = (torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((4,), (3, 3)))
    coupling = free + free.T
    piece = log_partitions(unary, scale, coupling, Stars(star.flip(0) if reverse else star, 5))[0]
    num_stars = torch.tensor([[5.0], [2.0], [2.0], [2.0], [2.0]], dtype=torch.float64)
    scaled_unary = unary.detach() / num_stars
    couplings = [(r * coupling / 2).tolist() for r in scale]
    whole = Enumeration(scaled_unary.tolist(), star.T.tolist(), couplings)
    assert float(piece.detach()) == pytest.approx(whole.log_z, abs=1e-12)
    # ∂ log Z / ∂U_k = P(y_k) / d_k.
    marginals, _ = ew.exact_marginals(ew.PairwiseMRF(scaled_unary, star, coupling / 2, edge_scale=scale))
    (grad,) = torch.autograd.grad(piece, unary)
    torch.testing.assert_close(grad * num_stars, marginals.node, rtol=0, atol=1e-12)


@given(seed=st.integers(0, 2**31), num_edges=st.integers(0, 15))
def test_node_numbers_and_order_and_direction_of_edges_do_not_matter(seed, num_edges):
    case, g = random_case(seed, num_edges=num_edges), generator(seed)
    number = torch.randperm(9, generator=g)
    order = torch.randperm(case.edge_index.shape[1], generator=g)
    edges = number[case.edge_index[:, order]]
    edges = torch.where(torch.rand(len(order), generator=g) < 0.5, edges, edges.flip(0))
    unary, q = torch.empty_like(case.unary), torch.empty_like(case.q)
    unary[number], q[number] = case.unary, case.q
    other = Case(unary, case.scale[order], case.coupling, q, edges)
    torch.testing.assert_close(other.partitions()[number], case.partitions(), rtol=0, atol=1e-12)
    torch.testing.assert_close(other.loss(), case.loss(), rtol=0, atol=1e-12)


def test_log_partitions_without_coupling():
    """log Z_i = Σ_k LSE(U_k / d_k) over the star. The gradient of Σ_i log Z_i is softmax(U_k / d_k)."""
    case = random_case(8)
    unary = case.unary.requires_grad_()
    case = case._replace(unary=unary, scale=torch.zeros_like(case.scale))
    in_star, num_stars = torch.eye(9, dtype=torch.float64), case.stars().count
    for i, j in case.edges:
        in_star[i, j] = in_star[j, i] = 1
    assert torch.equal(num_stars, in_star.sum(0).long())
    scaled_unary = (unary / num_stars[:, None]).detach()
    torch.testing.assert_close(case.partitions().detach(), in_star @ scaled_unary.logsumexp(1), rtol=0, atol=1e-12)
    (grad,) = torch.autograd.grad(case.partitions().sum(), unary)
    torch.testing.assert_close(grad, scaled_unary.softmax(1), rtol=0, atol=1e-12)


def symmetrize_coupling(grads):
    return *grads[:-1], (grads[-1] + grads[-1].T) / 2


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("num_classes", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
def test_compiled_loops_equal_tensors(dtype, num_classes, chunk, monkeypatch):
    monkeypatch.setattr(stars, "CHUNK_ELEMENTS", chunk)
    case = random_case(9, 30, 80, num_classes, dtype, coupling_std=0.5)
    parts = [part.clone().requires_grad_() for part in case[:3]]
    got = log_partitions(*parts, case.stars())
    scaled_unary, half = parts[0] / case.stars().count[:, None], parts[2] / 2
    expected = log_partitions_tensors(scaled_unary, parts[1], half, case.stars())
    torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    weight = torch.randn(30, generator=generator(1), dtype=dtype)
    grads = [symmetrize_coupling(torch.autograd.grad((out * weight).sum(), parts)) for out in (got, expected)]
    torch.testing.assert_close(*grads, rtol=10 * TOLERANCE[dtype], atol=10 * TOLERANCE[dtype])


def test_chunks_cover_all_edges_in_order(monkeypatch):
    """The factors of an edge do not depend on the other edges of its chunk."""
    scale, half, results = torch.linspace(-1, 2, 10), torch.eye(3), []
    for chunk, lengths in ((1, [1] * 10), (27, [3, 3, 3, 1]), (1 << 20, [10])):
        monkeypatch.setattr(stars, "CHUNK_ELEMENTS", chunk)
        chunks = list(stars._chunks(scale, half))
        assert [len(factors) for _, factors in chunks] == lengths
        assert [lo for lo, _ in chunks] == [sum(lengths[:k]) for k in range(len(lengths))]
        results.append(torch.cat([torch.from_numpy(factors) for _, factors in chunks]))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("coupling_std", [1.0, 200.0])
def test_gradients_equal_finite_differences(coupling_std):
    """With products, and beyond their range in the log domain. The coupling is symmetrized first."""
    case = random_case(10, 6, 5, coupling_std=coupling_std)
    parts = [part.clone().requires_grad_() for part in case[:3]]
    spread = float(case.scale.abs().max() * (case.coupling.max() - case.coupling.min()) / 2)
    assert (spread > stars.MAX_COUPLING_RANGE) == (coupling_std > 1)

    def loss(unary, scale, free):
        return piecewise_loss(unary, scale, (free + free.T) / 2, case.q, case.stars())

    assert torch.autograd.gradcheck(loss, parts)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("coupling_std", [1e2, 1e4])
def test_couplings_beyond_the_range_of_products_use_the_log_domain(dtype, coupling_std, monkeypatch):
    monkeypatch.setattr(stars, "_log_partitions", None)  # must not be called
    case = random_case(11, dtype=dtype, coupling_std=coupling_std)
    parts = [part.requires_grad_() for part in case[:3]]
    got = case.partitions()
    assert bool(got.isfinite().all())
    assert all(bool(grad.isfinite().all()) for grad in torch.autograd.grad(got.sum(), parts))
    expected = torch.tensor([case.reference().log_partition(node) for node in range(9)], dtype=dtype)
    torch.testing.assert_close(got.detach(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_couplings_at_the_end_of_the_range_of_products_are_accurate(dtype, monkeypatch):
    """Couplings differ by 60 nats and unary potentials by 100."""
    monkeypatch.setattr(stars, "log_partitions_tensors", None)  # must not be called
    case = random_case(12, dtype=dtype)
    half = case.coupling / (case.coupling.max() - case.coupling.min())
    coupling = 2 * 0.999 * stars.MAX_COUPLING_RANGE * half / case.scale.abs().max()
    case = case._replace(coupling=coupling, unary=30 * case.unary)
    expected = torch.tensor([case.reference().log_partition(node) for node in range(9)], dtype=dtype)
    torch.testing.assert_close(case.partitions(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    parts, double = ([part.to(to).requires_grad_() for part in case[:3]] for to in (dtype, torch.float64))
    got = torch.autograd.grad(log_partitions(*parts, case.stars()).sum(), parts)
    scaled_unary = double[0] / case.stars().count[:, None]
    expected = torch.autograd.grad(
        log_partitions_tensors(scaled_unary, double[1], double[2] / 2, case.stars()).sum(), double
    )
    for ours, theirs in zip(symmetrize_coupling(got), symmetrize_coupling(expected), strict=True):
        # Exponents of up to 100 have rounding errors of 1e-5 in float32 and 1e-14 in float64.
        atol = {torch.float32: 1e-4, torch.float64: 1e-11}[dtype]
        torch.testing.assert_close(ours.double(), theirs, rtol=atol, atol=atol)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("offset", [200.0, -200.0, 2000.0, -2000.0])
def test_constant_offset_of_the_coupling(dtype, offset):
    """An offset of the coupling adds r · offset / 2 to log Z of both stars of an edge."""
    unary = torch.tensor([[0.1, 0.2], [0.3, -0.4]], dtype=dtype)
    coupling, scale = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=dtype), torch.ones(1, dtype=dtype)
    pair = Stars(torch.tensor([[0], [1]]), 2)
    unary.requires_grad_()
    plain, shifted = (log_partitions(unary, scale, b, pair) for b in (coupling, coupling + offset))
    # Sums of 1e3 have rounding errors of 1e-4 in float32.
    atol = {torch.float32: 2e-4, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(shifted, plain + offset / 2, rtol=0, atol=atol)
    marginals = [torch.autograd.grad(out.sum(), unary)[0] for out in (plain, shifted)]
    torch.testing.assert_close(*marginals, rtol=0, atol=atol)


def test_log_partition_of_isolated_nodes():
    """It is the log-sum-exp of the unary potentials."""
    case = random_case(13)
    assert case.stars().count[-2:].tolist() == [1, 1]
    torch.testing.assert_close(case.partitions()[-2:], case.unary[-2:].logsumexp(1), rtol=0, atol=1e-14)


def test_loss_without_edges():
    case = random_case(14, num_edges=0)
    parts = [part.clone().requires_grad_() for part in case[:3]]
    loss = piecewise_loss(*parts, case.q, case.stars())
    expected = (case.unary.logsumexp(1) - (case.q * case.unary).sum(1)).mean()
    torch.testing.assert_close(loss.detach(), expected, rtol=0, atol=1e-14)
    unary, scale, coupling = torch.autograd.grad(loss, parts)
    torch.testing.assert_close(unary, (case.unary.softmax(1) - case.q) / 9, rtol=0, atol=1e-14)
    assert scale.shape == (0,) and not coupling.any()


@pytest.mark.parametrize("implementation", ["compiled", "tensors"])
def test_sums_of_many_messages_are_accurate(implementation, monkeypatch):
    """A hub sums 100,000 messages of about log 7. Their differences are below the float32 precision of the sum."""
    if implementation == "tensors":
        monkeypatch.setattr(dispatch, "runs_compiled", lambda device: False)
    generator = torch.Generator().manual_seed(0)
    leaves, classes = 100_000, 7
    edge_index = torch.stack([torch.zeros(leaves, dtype=torch.long), torch.arange(1, leaves + 1)])
    unary = torch.randn(leaves + 1, classes, generator=generator, dtype=torch.float64)
    scale = 0.05 * torch.randn(leaves, generator=generator, dtype=torch.float64)
    coupling = torch.randn(classes, classes, generator=generator, dtype=torch.float64)
    coupling = coupling + coupling.T
    star, hubs, grads = Stars(edge_index, leaves + 1), [], []
    for dtype in (torch.float64, torch.float32):
        parts = [part.to(dtype).requires_grad_() for part in (unary, scale, coupling)]
        hub = log_partitions(*parts, star)[0]
        hubs.append(float(hub.detach()))
        grads.append(torch.autograd.grad(hub, parts))
    assert hubs[1] == pytest.approx(hubs[0], rel=1e-6)
    for exact, rounded in zip(grads[0], grads[1], strict=True):
        assert float((exact - rounded).abs().max()) < 2e-4 * float(exact.abs().max())
