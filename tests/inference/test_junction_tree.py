"""Variable elimination against enumeration, closed forms and sum-product on forests."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewise.inference import ExactPosterior, PairwiseMRF, exact_marginals, map_labels, sum_product
from edgewise.inference.elimination_order import (
    NoExactInference,
    elimination_order,
    feasible_order,
    follow_order,
    frontier_order,
    min_fill_order,
    neighbor_sets,
    plan_storage,
)
from edgewise.inference.junction_tree import JunctionTree, eliminate
from edgewise.posterior import Posterior
from helpers.random_fields import (
    KINDS,
    MRFInputs,
    assert_matches_enumeration,
    batch_item,
    cycle,
    generator,
    random_graph,
    random_mrf_inputs,
    small_mrf_inputs,
)


def grid_edges(rows, columns):
    nodes = torch.arange(rows * columns).reshape(rows, columns)
    right = torch.stack([nodes[:, :-1].flatten(), nodes[:, 1:].flatten()])
    down = torch.stack([nodes[:-1].flatten(), nodes[1:].flatten()])
    return torch.cat([right, down], dim=1)


@given(inputs=small_mrf_inputs(loops=True, coupling_std=3.0))
def test_marginals_and_log_partition_equal_enumeration(inputs):
    posterior = eliminate(inputs.mrf())
    assert_matches_enumeration(posterior, inputs, 1e-12)
    np.testing.assert_allclose(float(posterior.log_partition), inputs.enumeration().log_z, rtol=1e-12, atol=1e-12)


@given(inputs=small_mrf_inputs(loops=True, coupling_std=3.0), data=st.data())
def test_joint_of_any_set_equals_enumeration(inputs, data):
    posterior, true = eliminate(inputs.mrf()), inputs.enumeration()
    nodes = data.draw(st.permutations(range(len(inputs.unary))))[: data.draw(st.integers(1, 4))]
    got = posterior.marginal(torch.tensor(nodes)[:, None])[0]
    np.testing.assert_allclose(got.numpy(), true.joint(nodes), rtol=0, atol=1e-12)


@given(inputs=small_mrf_inputs(loops=True), seed=st.integers(0, 2**31))
def test_any_order_gives_the_same_marginals(inputs, seed):
    mrf = inputs.mrf()
    graph = neighbor_sets(mrf.num_nodes, inputs.edges)
    order = torch.randperm(mrf.num_nodes, generator=generator(seed)).tolist()
    tree = JunctionTree(mrf, follow_order(graph, [mrf.num_classes] * mrf.num_nodes, order))
    node, _, _ = tree.marginals()
    np.testing.assert_allclose(node, inputs.enumeration().nodes(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_equals_single_mrfs(kind):
    g = generator(5)
    batch = random_mrf_inputs(random_graph(6, 11, g), 6, 3, g, kind=kind, batch=(3,), num_observed=1)
    posterior = eliminate(batch.mrf())
    pair = torch.tensor([[0], [5]])
    for b in range(3):
        assert_matches_enumeration(posterior[b], batch_item(batch, b), 1e-12)
        torch.testing.assert_close(posterior.joint(pair)[b], posterior[b].joint(pair), rtol=0, atol=1e-14)


def test_grid_equals_transfer_matrices():
    """The partition function of an Ising grid is the sum of the entries of a product of row transfer matrices."""
    rows, columns, coupling = 12, 10, 0.7
    mrf = PairwiseMRF(
        torch.zeros(rows * columns, 2, dtype=torch.float64), grid_edges(rows, columns), coupling * torch.eye(2).double()
    )
    states = np.array(list(itertools.product((0, 1), repeat=columns)))
    within = coupling * (states[:, 1:] == states[:, :-1]).sum(1)
    between = coupling * (states[:, None, :] == states[None, :, :]).sum(2)
    log_weight = within
    for _ in range(rows - 1):
        log_weight = np.logaddexp.reduce(log_weight[:, None] + between, axis=0) + within
    posterior, convergence = exact_marginals(mrf)
    assert isinstance(posterior, ExactPosterior) and convergence.converged
    np.testing.assert_allclose(float(posterior.log_partition), np.logaddexp.reduce(log_weight), rtol=1e-12)
    np.testing.assert_allclose(posterior.node.numpy(), 0.5, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_chain_with_chords_equals_its_chain(dtype):
    """Chords with zero coupling leave the marginals of the chain unchanged, but make loops."""
    num_nodes = 20_000
    nodes = torch.arange(num_nodes)
    chain, chords = torch.stack([nodes[:-1], nodes[1:]]), torch.stack([nodes[:-7:50], nodes[7::50]])
    g = generator(0)
    unary = torch.randn(num_nodes, 3, generator=g, dtype=dtype)
    couplings = torch.randn(chain.shape[1], 3, 3, generator=g, dtype=dtype)
    zeros = torch.zeros(chords.shape[1], 3, 3, dtype=dtype)
    loopy = PairwiseMRF(unary, torch.cat([chain, chords], dim=1), torch.cat([couplings, zeros]))
    posterior, _ = exact_marginals(loopy)
    expected, _ = exact_marginals(PairwiseMRF(unary, chain, couplings))
    atol = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(posterior.node, expected.node, rtol=0, atol=atol)
    torch.testing.assert_close(posterior.joint(chain), expected.joint(chain), rtol=0, atol=atol)


def test_messages_divided_among_threads_equal_those_of_one_thread():
    g = generator(1)
    mrf = random_mrf_inputs(grid_edges(18, 18), 324, 2, g, kind="per edge").mrf()
    tree = JunctionTree(mrf, feasible_order(mrf))
    threads = torch.get_num_threads()
    try:
        pools = []
        for number in (1, 3):
            torch.set_num_threads(number)
            pools.append(tree.messages()[0])
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(*pools)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_are_computed_again_give_equal_results(kind, monkeypatch):
    """With little memory, buckets are divided into segments. Marginals, joints and labels are bitwise equal."""
    g = generator(4)
    mrf = random_mrf_inputs(grid_edges(12, 4), 48, 3, g, kind=kind, num_observed=2).mrf()
    order, uniform = feasible_order(mrf), np.random.default_rng(0).random((10, 48))

    def solve():
        tree = JunctionTree(mrf, order)
        node, joint, log_z = tree.marginals()
        labels = tree.draw(tree.messages(maximum=True)[0])
        joint_of_last = tree.joint_of_last(tree.messages()[0], 4)
        pool = tree.messages()[0]
        return node, joint, log_z, labels, tree.draw(pool, uniform), tree.draw(pool, uniform), joint_of_last

    expected = solve()
    monkeypatch.setattr("edgewise.inference.elimination_order.MAX_MESSAGE_BYTES", 4 * order.total)
    assert len(plan_storage(order, order.total // 2).segments) > 2
    for ours, theirs in zip(solve(), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@given(seed=st.integers(0, 2**31), num_nodes=st.integers(1, 30), fraction=st.floats(0.0, 1.0))
def test_stored_messages_do_not_overlap(seed, num_nodes, fraction):
    """Kept messages have memory of their own, and so do the messages of one segment."""
    g = generator(seed)
    edges = random_graph(num_nodes, int(torch.randint(0, 60, (), generator=g)), g).T.tolist()
    order = min_fill_order(neighbor_sets(num_nodes, edges), [2] * num_nodes)
    storage = plan_storage(order, int(fraction * order.total))
    assert storage.size <= order.total
    assert list(storage.segments) == sorted(set(storage.segments)) and storage.segments[-1] == num_nodes
    position = {node: k for k, node in enumerate(order.nodes)}
    for start, stop in itertools.pairwise(storage.segments):
        used = np.zeros(storage.size, dtype=int)
        for k, separator in enumerate(order.separators):
            enters_later = bool(separator) and min(map(position.__getitem__, separator)) >= stop
            assert storage.is_kept[k] or not (start <= k < stop and enters_later)
            if storage.is_kept[k] or start <= k < stop:
                used[storage.offsets[k] : storage.offsets[k] + order.sizes[k]] += 1
        assert used.max() == 1


@pytest.mark.parametrize("side", [23, 24])
def test_grid_of_this_side_is_feasible(side):
    """All messages together would take 5 and 11 GiB."""
    mrf = PairwiseMRF(torch.zeros(side * side, 2), grid_edges(side, side), torch.eye(2))
    order = feasible_order(mrf)
    assert order.width <= side
    assert plan_storage(order, 1 << 29).size <= 1 << 29 < order.total


def test_huge_potentials_stay_finite():
    for seed in range(10):
        g = generator(seed)
        inputs = random_mrf_inputs(random_graph(6, 10, g), 6, 2, g, kind="per edge")
        inputs.pairwise.copy_(1e4 * torch.randint(-1, 2, inputs.pairwise.shape, generator=g))
        inputs.unary[0, 1] = -torch.inf
        posterior = eliminate(inputs.mrf())
        assert_matches_enumeration(posterior, inputs, 1e-10)


def test_drawn_labels_have_the_frequencies_of_the_joint():
    g = generator(2)
    inputs = random_mrf_inputs(cycle(4), 4, 2, g, kind="per edge", coupling_std=2.0)
    mrf = inputs.mrf()
    tree = JunctionTree(mrf, feasible_order(mrf))
    uniform = np.random.default_rng(0).random((20_000, 4))
    labels = tree.draw(tree.messages()[0], uniform)
    drawn = np.zeros((2,) * 4)
    np.add.at(drawn, tuple(labels.T), 1 / len(labels))
    true = inputs.enumeration().joint([0, 1, 2, 3])
    # Five standard errors of a frequency.
    np.testing.assert_allclose(drawn, true, rtol=0, atol=5 * math.sqrt(0.25 / len(labels)))


def test_labels_drawn_from_a_certain_field_are_its_evidence():
    mrf = MRFInputs(torch.zeros(3, 2), cycle(3), torch.eye(2), None, {0: 1, 1: 0, 2: 1}).mrf()
    tree = JunctionTree(mrf, feasible_order(mrf))
    labels = tree.draw(tree.messages()[0], np.full((5, 3), np.nextafter(1, 0)))
    assert labels.tolist() == [[1, 0, 1]] * 5


def test_posterior_is_saved_and_loaded(tmp_path):
    g = generator(3)
    posterior = eliminate(random_mrf_inputs(random_graph(6, 9, g), 6, 3, g, kind="scaled").mrf())
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = Posterior.load(tmp_path / "posterior.safetensors")
    assert isinstance(loaded, ExactPosterior) and loaded.convergence == posterior.convergence
    sets = torch.tensor([[0], [3], [5]])
    assert torch.equal(loaded.node, posterior.node) and torch.equal(loaded.marginal(sets), posterior.marginal(sets))
    assert torch.equal(loaded.log_partition, posterior.log_partition)


def test_min_fill_order_of_known_graphs():
    path = neighbor_sets(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    complete = neighbor_sets(5, list(itertools.combinations(range(5), 2)))
    ring = neighbor_sets(6, [(k, (k + 1) % 6) for k in range(6)])
    assert [min_fill_order(graph, [2] * 6).width for graph in (path, complete, ring)] == [1, 4, 2]


def test_grid_is_eliminated_along_its_shorter_side():
    graph = neighbor_sets(400, grid_edges(20, 20).T.tolist())
    order = elimination_order(graph, [2] * 400)
    assert order.width <= 21 < min_fill_order(graph, [2] * 400).width


@pytest.mark.parametrize(("rows", "columns", "width"), [(12, 12, 26), (10, 40, 20)])
def test_torus_is_feasible(rows, columns, width):
    nodes = torch.arange(rows * columns).reshape(rows, columns)
    seams = torch.stack([nodes[:, -1], nodes[:, 0]]), torch.stack([nodes[-1], nodes[0]])
    edges = torch.cat([grid_edges(rows, columns), *seams], dim=1)
    assert feasible_order(PairwiseMRF(torch.zeros(rows * columns, 2), edges, torch.eye(2))).width <= width


def test_grid_with_some_long_edges_is_feasible():
    """The width of the min-fill order is 29."""
    edges = torch.cat([grid_edges(20, 20), torch.randperm(400, generator=generator(0))[:10].reshape(2, 5)], dim=1)
    assert feasible_order(PairwiseMRF(torch.zeros(400, 2), edges, torch.eye(2))).width <= 24


@given(seed=st.integers(0, 2**31), num_nodes=st.integers(1, 20))
def test_frontier_order_is_a_permutation_with_separators_in_the_frontier(seed, num_nodes):
    g = generator(seed)
    edges = random_graph(num_nodes, int(torch.randint(0, 40, (), generator=g)), g).T.tolist()
    graph, start = neighbor_sets(num_nodes, edges), int(torch.randint(num_nodes, (), generator=g))
    nodes = frontier_order(graph, start, num_nodes)
    assert sorted(nodes) == list(range(num_nodes)) and nodes[0] == start
    frontiers = [{j for i in nodes[: k + 1] for j in graph[i]} - set(nodes[: k + 1]) for k in range(num_nodes)]
    order = follow_order(graph, [2] * num_nodes, nodes)
    assert all(frontier.issuperset(around) for around, frontier in zip(order.separators, frontiers, strict=True))
    largest = max(map(len, frontiers))
    assert frontier_order(graph, start, largest) == nodes
    assert largest == 0 or frontier_order(graph, start, largest - 1) is None


@given(seed=st.integers(0, 2**31), num_nodes=st.integers(1, 12))
def test_order_is_a_permutation_with_the_cost_of_its_cliques(seed, num_nodes):
    g = generator(seed)
    edges = random_graph(num_nodes, int(torch.randint(0, 30, (), generator=g)), g).T.tolist()
    graph = neighbor_sets(num_nodes, edges)
    num_labels = torch.randint(1, 4, (num_nodes,), generator=g).tolist()
    order = min_fill_order(graph, num_labels)
    assert sorted(order.nodes) == list(range(num_nodes))
    again = follow_order(graph, num_labels, order.nodes)
    assert (again.separators, again.total, again.work) == (order.separators, order.total, order.work)
    sizes = [math.prod(num_labels[i] for i in separator) for separator in order.separators]
    assert order.total == sum(sizes)
    assert order.work == sum(s * num_labels[i] for s, i in zip(sizes, order.nodes, strict=True))


def test_graph_of_large_width_is_refused_with_its_cost():
    complete = torch.triu_indices(40, 40, 1)
    mrf = PairwiseMRF(torch.zeros(40, 2), complete, torch.eye(2))
    with pytest.raises(NoExactInference, match=r"width 39: .*TB") as error:
        exact_marginals(mrf)
    assert "sum_product" in str(error.value)
    assert sum_product(mrf)[1].converged


def test_huge_complete_graph_is_refused_at_once():
    complete = torch.triu_indices(300, 300, 1)
    with pytest.raises(NoExactInference, match="at least width"):
        exact_marginals(PairwiseMRF(torch.zeros(300, 2), complete, torch.eye(2)))


def test_gradients_are_refused_where_elimination_is_needed():
    unary = torch.zeros(100, 3, requires_grad=True)
    mrf = PairwiseMRF(unary, grid_edges(10, 10), torch.eye(3))
    with pytest.raises(ValueError, match="detached"):
        exact_marginals(mrf)
    posterior, _ = exact_marginals(mrf.detach())
    assert posterior.node.shape == (100, 3)


@given(inputs=small_mrf_inputs(loops=True, coupling_std=3.0))
def test_map_labels_equal_enumeration(inputs):
    labels, convergence = map_labels(inputs.mrf())
    true = inputs.enumeration()
    assert convergence.method == "elimination"
    assert true.scores[tuple(labels.tolist())] == pytest.approx(true.best, abs=1e-9)


def test_map_labels_of_a_batch():
    g = generator(7)
    batch = random_mrf_inputs(random_graph(6, 10, g), 6, 3, g, kind="scaled per edge", batch=(3,))
    labels, _ = map_labels(batch.mrf())
    for b in range(3):
        assert labels[b].tolist() == batch_item(batch, b).enumeration().most_likely()


def test_map_labels_of_a_wide_graph_are_a_local_optimum():
    """Attractive couplings on a complete graph: the best labeling is the same label everywhere."""
    complete = torch.triu_indices(60, 60, 1)
    unary = torch.randn(60, 2, generator=generator(8))
    labels, convergence = map_labels(PairwiseMRF(unary, complete, torch.eye(2)))
    assert convergence.method == "max-product"
    assert labels.tolist() == [int(unary.sum(0).argmax())] * 60


def test_improved_labels_have_no_better_neighbor(monkeypatch):
    monkeypatch.setattr("edgewise.inference.elimination_order.MAX_MESSAGE_BYTES", 0)
    for seed in range(20):
        g = generator(seed)
        inputs = random_mrf_inputs(random_graph(7, 15, g), 7, 3, g, kind="per edge", coupling_std=2.0)
        labels, convergence = map_labels(inputs.mrf())
        scores = inputs.enumeration().scores
        assert convergence.method == "max-product"
        for node, label in itertools.product(range(7), range(3)):
            other = labels.tolist()
            other[node] = label
            assert scores[tuple(other)] <= scores[tuple(labels.tolist())] + 1e-9
