"""Scores by chance: those of labels drawn from the posterior."""

import json
import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from typer.testing import CliRunner

import edgewise as ew
from edgewise.cli import app
from edgewise.metrics import chance as chance_module
from helpers.random_predictions import random_case, symmetric_joints

EVENT_METRICS = ("frequency", "nll", "brier", "ece")


def chain_posterior(num_nodes, coupling, seed=0, num_classes=2):
    """Return the exact posterior of a Potts chain with random unaries, and its edges."""
    g = torch.Generator().manual_seed(seed)
    unary = torch.randn(num_nodes, num_classes, generator=g, dtype=torch.float64)
    edges = torch.stack([torch.arange(num_nodes - 1), torch.arange(1, num_nodes)])
    posterior, _ = ew.exact_marginals(ew.PairwiseMRF(unary, edges, coupling * torch.eye(num_classes).double()))
    return posterior, edges


def all_scores(ev):
    """Return the scores of all views by (view, metric)."""
    parts = {view: ev[view] for view in ew.VIEWS} | {"same_label": ev.same_label, "node_sets": ev.node_sets}
    return {
        (view, metric): float(getattr(part, metric))
        for view, part in parts.items()
        if part is not None
        for metric in (EVENT_METRICS if view == "same_label" else ew.METRICS)
    }


def chance_by_loop(posterior, y, edge_index, num_draws, seed, level, **options):
    """Evaluate each drawn labeling, and return mean, range and p-value of each score."""
    observed = all_scores(ew.evaluate(posterior, y, edge_index, **options))
    labels, _ = posterior.sample(num_draws, seed)
    draws = [all_scores(ew.evaluate(posterior, torch.where(y >= 0, row, -1), edge_index, **options)) for row in labels]
    tail, expected = (1 - level) / 2, {}
    for key, score in observed.items():
        values = sorted(draw[key] for draw in draws if not math.isnan(draw[key]))
        k = sum(math.isnan(draw[key]) or draw[key] >= score for draw in draws)
        last = len(values) - 1
        low, high = values[math.floor(tail * last)], values[math.ceil((1 - tail) * last)]
        expected[key] = (float(np.mean(values)), low, high, (1 + k) / (1 + num_draws))
    return expected


def cases():
    probs, y, edges, mask = random_case(1, num_nodes=30, num_edges=60)
    y_unknown = torch.where(mask | (torch.arange(30) % 2 == 0), y, -1)
    triangles = torch.tensor([[0, 1], [2, 3], [4, 5]])
    independent = ew.IndependentPosterior(probs)
    other = random_case(2, num_nodes=30)[0]
    mixture = ew.MixturePosterior(torch.stack([probs, other, other.flip(0)]))
    chain, chain_edges = chain_posterior(30, 1.0, num_classes=3)
    return {
        "independent": (independent, y, edges, {"mask": mask}),
        "unknown labels": (independent, y_unknown, edges, {"mask": mask, "edge_choice": "any", "norm": "l2"}),
        "predictions": (independent, y, edges, {"predictions": y.flip(0), "norm": "max"}),
        "equal mass": (independent, y, edges, {"binning": "mass", "n_bins": 4}),
        "node sets": (independent, y, edges, {"node_sets": triangles, "closed": "left"}),
        "mixture": (mixture, y, edges, {"mask": mask, "edge_choice": "all"}),
        "chain": (chain, y, chain_edges, {"mask": mask, "node_sets": torch.tensor([[0, 5], [1, 6], [2, 7]])}),
        "no event": (independent, y, edges, {"same_label": False}),
    }


@pytest.mark.parametrize("name", list(cases()))
def test_chance_matches_a_loop_over_drawn_labelings(name):
    posterior, y, edges, options = cases()[name]
    ev = ew.evaluate(posterior, y, edges, chance=11, seed=3, confidence_level=0.7, **options)
    expected = chance_by_loop(posterior, y, edges, 11, 3, 0.7, **options)
    found = {(view, metric): score for view, part in ev.chance.scores.items() for metric, score in part.items()}
    assert found.keys() == expected.keys()
    for key, (mean, low, high, p) in expected.items():
        score = found[key]
        assert (score.low, score.high, score.p_value) == (low, high, p), key
        assert score.mean == pytest.approx(mean, rel=1e-12)
    assert ev.chance.n_draws == 11
    assert ev.chance.sampling.is_exact


def test_scores_and_intervals_do_not_depend_on_chance():
    probs, y, edges, mask = random_case(0, num_nodes=60, num_edges=100)
    plain = ew.evaluate(probs, y, edges, mask=mask, n_resamples=40)
    compared = ew.evaluate(probs, y, edges, mask=mask, n_resamples=40, chance=40)
    assert plain.chance is None
    assert plain.scalars() == compared.scalars()
    assert plain.intervals == compared.intervals
    assert (compared + compared).chance is None


def test_draws_are_reproducible_and_depend_on_the_seed():
    probs, y, edges, mask = random_case(0, num_nodes=60, num_edges=100)
    state = torch.random.get_rng_state()
    first, again, other = (ew.evaluate(probs, y, edges, mask=mask, chance=40, seed=seed).chance for seed in (3, 3, 4))
    assert first == again != other
    assert torch.equal(torch.random.get_rng_state(), state)


def test_draws_in_chunks_are_reproducible_and_differ_from_each_other(monkeypatch):
    """Chunks with equal seeds would repeat the draws of the first chunk, with the same mean."""
    probs, y, edges, mask = random_case(0, num_nodes=60, num_edges=100)
    monkeypatch.setattr(chance_module, "CHUNK_LABELS", 60 * 20)
    chunked, again = (ew.evaluate(probs, y, edges, mask=mask, chance=60).chance for _ in range(2))
    first = ew.evaluate(probs, y, edges, mask=mask, chance=20, confidence_level=0.9).chance
    assert chunked == again
    assert chunked.n_draws == 60
    assert chunked["nodewise"]["nll"].mean != pytest.approx(first["nodewise"]["nll"].mean, rel=1e-9)
    sizes = [len(labels) for labels, _ in chance_module._draw(ew.IndependentPosterior(probs), 50, 0)]
    assert sizes == [20, 20, 10]


def test_draws_without_edges_of_a_view_count_as_large():
    """Two nodes, one edge: each draw has either an agree edge or a disagree edge."""
    probs, edge = torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([[0], [1]])
    ev = ew.evaluate(probs, torch.tensor([0, 1]), edge, chance=59)
    agree, disagree = ev.chance["agree"]["nll"], ev.chance["disagree"]["nll"]
    assert math.isnan(agree.p_value)
    assert agree.mean == pytest.approx(math.log(4))
    assert disagree.mean == pytest.approx(math.log(4))
    assert disagree.p_value == 1.0
    empty = ew.evaluate(probs, torch.tensor([0, 1]), chance=40).chance["edgewise"]["ece"]
    assert all(math.isnan(number) for number in (empty.mean, empty.low, empty.high, empty.p_value))


def test_infinite_score_is_larger_than_any_draw():
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    ev = ew.evaluate(probs, torch.tensor([1, 0]), chance=49)
    assert ev.chance["nodewise"]["nll"].p_value == 0.02
    assert math.isfinite(ev.chance["nodewise"]["nll"].high)


def p_values(evaluations):
    """Return the p-values of all evaluations by (view, metric)."""
    return {
        (view, metric): [ev.chance[view][metric].p_value for ev in evaluations]
        for view, part in evaluations[0].chance.scores.items()
        for metric in part
    }


def assert_superuniform(found, level):
    """P(p <= 0.05) and P(p <= 0.25) are not significantly above these. NaN, of empty views, is never small."""
    for (key, values), bound in product(found.items(), (0.05, 0.25)):
        num_small = sum(value <= bound + 1e-9 for value in values)
        assert binomtest(num_small, len(values), bound, "greater").pvalue > level, (key, bound, num_small)


@pytest.mark.slow
def test_p_values_of_a_right_posterior_are_superuniform():
    rng = np.random.default_rng(0)
    evaluations = []
    for seed in range(100):
        probs = rng.dirichlet([1, 1, 1], 40)
        y = (probs.cumsum(1) > rng.random((40, 1))).argmax(1)
        edges = rng.integers(0, 40, (2, 60))
        evaluations.append(ew.evaluate(probs, y, edges, chance=19, confidence_level=0.8, seed=seed))
    assert_superuniform(p_values(evaluations), 1e-4)


@pytest.mark.slow
def test_p_values_on_synthetic_graphs_are_superuniform():
    """The labels of each graph were drawn from its own field, and the posterior is its exact truth."""
    evaluations = []
    for seed in range(100):
        graph = ew.synthetic(40, 2, kind="mrf", coupling=1.0, average_degree=2.0, seed=seed)
        posterior, _ = graph.truth()
        ev = ew.evaluate(posterior, graph.data, chance=19, confidence_level=0.8, seed=seed)
        assert ev.chance.sampling.is_exact
        evaluations.append(ev)
    assert_superuniform(p_values(evaluations), 1e-4)


def test_product_of_a_coupled_field_is_worse_than_chance():
    posterior, edges = chain_posterior(400, 1.5)
    y = posterior.sample(1, seed=123).labels[0]
    wrong = ew.evaluate(posterior.node, y, edges, chance=49).chance
    right = ew.evaluate(posterior, y, edges, chance=49).chance
    for view, metric in (("edgewise", "ece"), ("agree", "nll"), ("same_label", "frequency"), ("same_label", "ece")):
        assert wrong[view][metric].p_value == 0.02, (view, metric)
        assert right[view][metric].p_value > 0.05, (view, metric)


def test_inexact_draws_have_no_p_value_unless_asked():
    ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
    node = torch.full((6, 2), 0.5).double()
    joints = torch.tensor([[0.4, 0.1], [0.1, 0.4]]).double().expand(6, 2, 2)
    posterior = ew.PairwisePosterior.from_joints(node, ring, joints)
    ev = ew.evaluate(posterior, torch.tensor([0, 0, 0, 1, 1, 1]), ring, chance=40)
    assert ev.chance.sampling.method == "spanning forest"
    assert ev.chance["edgewise"]["nll"].p_value is None
    expected = chance_by_loop(posterior, torch.tensor([0, 0, 0, 1, 1, 1]), ring, 40, 0, 0.95)
    for (view, metric), (*_, p) in expected.items():
        assert ev.chance.approximate_p_value(view, metric) == p
    assert "spanning forest" in str(ev)
    assert ev.to_frame()["ece_p_value"].isna().all()


def test_loopy_beliefs_have_no_p_value():
    """Labelings follow the field, whose marginals are not those of belief propagation on a graph with loops."""
    nodes = torch.arange(16).reshape(4, 4)
    right, down = torch.stack([nodes[:, :-1], nodes[:, 1:]]), torch.stack([nodes[:-1], nodes[1:]])
    edges = torch.cat([right.flatten(1), down.flatten(1)], dim=1)
    unary = torch.randn(16, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grid = ew.PairwiseMRF(unary, edges, 1.2 * torch.eye(2).double())
    path = ew.PairwiseMRF(unary, torch.stack([torch.arange(15), torch.arange(1, 16)]), 1.2 * torch.eye(2).double())
    has_p_values = {
        "loopy": (grid, ew.sum_product, False),
        "exact": (grid, ew.exact_marginals, True),
        "forest": (path, ew.sum_product, True),
        "max-marginals": (path, ew.max_product, False),
    }
    for name, (mrf, solver, expected) in has_p_values.items():
        ev = ew.evaluate(solver(mrf)[0], torch.zeros(16, dtype=torch.long), mrf.edge_index, chance=40)
        assert ev.chance.sampling.is_exact and ev.chance.has_p_values == expected, name
        assert (ev.chance["nodewise"]["ece"].p_value is not None) == expected, name


def test_all_options_together(tmp_path):
    posterior, edges = chain_posterior(40, 1.0)
    y = posterior.sample(1, seed=3).labels[0]
    y[5] = -1
    mask = torch.arange(40) != 5
    options = {"decompose": True, "smooth": True, "classwise": True, "by": ("degree", "true_class"), "chance": 40}
    options |= {"n_resamples": 40, "node_sets": edges[:, :3], "predictions": posterior.node.argmax(1)}
    for binning in ("width", "mass"):
        alone = ew.evaluate(posterior, y, edges, mask=mask, binning=binning, predictions=options["predictions"])
        ev = ew.evaluate(posterior, y, edges, mask=mask, binning=binning, **options)
        assert {name: ev.scalars()[name] for name in alone.scalars()} == alone.scalars()
        assert ev.chance["node_sets"]["ece"].mean >= 0 and ev.groups["degree"].nodewise
        assert set(ev.to_dict()) >= {"chance", "groups", "intervals"} and len(ev.to_frame()) == 6
        ev.report(tmp_path / "page.html")
        assert "miscalibration" in str(ev) and "by chance" in str(ev) and "by degree" in str(ev)


def test_edge_probs_are_drawn_jointly():
    posterior, edges = chain_posterior(50, 2.0)
    y = posterior.sample(1, seed=5).labels[0]
    joints = posterior.joint(edges)
    both = torch.cat([edges, edges.flip(0)], dim=1), torch.cat([joints, joints.mT])
    same = ew.evaluate(ew.PairwisePosterior.from_joints(posterior.node, edges, joints), y, edges, chance=40)
    for edge_index, edge_probs in ((edges, joints), both):
        ev = ew.evaluate(posterior.node, y, edge_index, edge_probs=edge_probs, chance=40)
        assert ev.chance.sampling.method == "forest"
        for metric, score in same.chance["edgewise"].items():
            assert vars(ev.chance["edgewise"][metric]) == pytest.approx(vars(score), rel=1e-9)


def test_edge_probs_of_no_distribution_are_refused():
    probs, y, edges, _ = random_case(0)
    joints, _ = symmetric_joints(probs, edges)
    with pytest.raises(ValueError, match=r"marginals .* Omit chance"):
        ew.evaluate(probs, y, edges, edge_probs=joints, chance=50)
    ew.evaluate(probs, y, edges, edge_probs=joints)  # as the message says
    ew.evaluate(probs, y, edges, chance=50)


@pytest.mark.parametrize("number", [-1, 1.5, "many"])
def test_chance_must_be_a_whole_number(number):
    probs, y, edges, _ = random_case(0)
    with pytest.raises(ValueError, match="chance"):
        ew.evaluate(probs, y, edges, chance=number)


def test_few_draws_are_reported_and_unknown_names_suggest_similar_ones():
    probs, y, edges, _ = random_case(0)
    with pytest.warns(ew.SmallSampleWarning, match="^10 draws .* chance of at least 40"):
        ev = ew.evaluate(probs, y, edges, chance=10)
    with pytest.raises(KeyError, match="edgewise"):
        ev.chance["edgwise"]
    with pytest.raises(KeyError, match="brier"):
        ev.chance.approximate_p_value("edgewise", "brie")


def test_chance_is_in_all_outputs(tmp_path):
    probs, y, edges, _ = random_case(0, num_nodes=40, num_edges=80)
    ev = ew.evaluate(probs, y, edges, chance=40)
    score = ev.chance["edgewise"]["ece"]
    frame = ev.to_frame()
    assert frame.loc["edgewise", "ece_p_value"] == score.p_value
    assert frame.loc["edgewise", "ece_chance_high"] == score.high
    assert frame.loc["same_label", "frequency_chance_mean"] == ev.chance["same_label"]["frequency"].mean
    assert f"{score.mean:.4f} (p {score.p_value:.3f})" in str(ev)
    for name, array in (("probs", probs), ("labels", y), ("edges", edges)):
        np.save(tmp_path / f"{name}.npy", array.numpy())
    files = [part for name in ("probs", "labels", "edges") for part in (f"--{name}", str(tmp_path / f"{name}.npy"))]
    out = tmp_path / "scores.json"
    result = CliRunner().invoke(app, ["evaluate", *files, "--chance", "40", "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "by chance" in result.output
    written = json.loads(out.read_text())
    assert written["chance"]["edgewise"]["ece"] == vars(score)
    assert written["chance"]["sampling"]["is_exact"] is True
    assert written["settings"]["chance"] == 40
    assert ev.to_dict()["chance"]["n_draws"] == 40
