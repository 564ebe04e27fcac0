"""Paired differences of the scores of several models, with intervals by resampling nodes."""

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import edgewise as ew
from edgewise.metrics.scores import METRICS
from edgewise.pages.comparison_page import comparison_page
from edgewise.paper.findings import BETTER, WORSE
from edgewise.paper.model_differences import model_difference_table
from edgewise.paper.results import Results
from helpers.fake_results import fake_results
from helpers.random_predictions import random_case
from helpers.scripts import load_script

SMALL = {"n_resamples": 40}


def two_models(seed=0, **sizes):
    """Return probabilities of two models, labels, edges and a mask."""
    probs, y, edge_index, mask = random_case(seed, **sizes)
    other = random_case(seed + 1, **sizes)[0]
    return {"first": probs, "second": 0.7 * probs + 0.3 * other}, y, edge_index, mask


def distinct_edges(edge_index, mask):
    """Each edge between masked nodes once; a parallel edge in one direction counts as often as it is listed."""
    both = [(i, j) for i, j in edge_index.T.tolist() if i != j and mask[i] and mask[j]]
    pairs = {(min(pair), max(pair)) for pair in both}
    return [pair for pair in sorted(pairs) for _ in range(max(both.count(pair), both.count(pair[::-1])))]


# --- the definition as a loop ---


def loop_scores(elements, weights, n_bins):
    """Scores of (confidence, correct, nll, brier, nodes) elements, and the weighted gap of each bin."""
    total, sums, gaps = 0.0, dict.fromkeys(("correct", "nll", "brier"), 0.0), [0.0] * n_bins
    for confidence, correct, nll, brier, nodes in elements:
        weight = math.prod(weights[node] for node in nodes)
        total += weight
        for name, value in (("correct", correct), ("nll", nll), ("brier", brier)):
            sums[name] += weight * value
        gaps[max(0, math.ceil(confidence * n_bins) - 1)] += weight * (correct - confidence)
    gaps = [gap / total for gap in gaps]
    return [*(sums[name] / total for name in sums), sum(map(abs, gaps))], gaps


def loop_elements(probs, y, edges, mask):
    """Elements of all masked nodes, and of all edges with the product of the probabilities of their ends."""
    nodes, pairs = [], []
    for i in range(len(probs)):
        if mask[i]:
            p = probs[i]
            square = sum((p[c] - (c == y[i])) ** 2 for c in range(len(p)))
            nodes.append((max(p), int(np.argmax(p) == y[i]), -math.log(p[y[i]]), square, (i,)))
    for i, j in edges:
        p, q = probs[i], probs[j]
        square = sum((p[a] * q[b] - (a == y[i] and b == y[j])) ** 2 for a in range(len(p)) for b in range(len(q)))
        correct = int(np.argmax(p) == y[i] and np.argmax(q) == y[j])
        pairs.append((max(p) * max(q), correct, -math.log(p[y[i]] * q[y[j]]), square, (i, j)))
    return {"nodewise": nodes, "edgewise": pairs}


def loop_bias_range(gaps, resampled_gaps, count):
    """Biases of Σ|gap| if the true gaps are the measured ones, and if those below two deviations are zero."""
    noise = [
        [(g - gap) * math.sqrt(max(n, 2) / (max(n, 2) - 1)) for g, gap, n in zip(one, gaps, count, strict=True)]
        for one in resampled_gaps
    ]
    clear = [gap if abs(gap) > 2 * np.std([one[k] for one in noise]) else 0.0 for k, gap in enumerate(gaps)]
    biases = [
        np.mean([sum(abs(g + e) for g, e in zip(true, one, strict=True)) for one in noise]) - sum(map(abs, true))
        for true in (gaps, clear)
    ]
    return biases[0], max(biases)


def test_differences_and_intervals_match_a_loop():
    n_bins, n_resamples, num_nodes = 4, 60, 40
    models, y, edge_index, mask = two_models(3, num_nodes=num_nodes, num_edges=90)
    edges = distinct_edges(edge_index, mask)
    ids = mask.nonzero().squeeze(1)
    generator = torch.Generator().manual_seed(7)
    draws = ids[torch.randint(len(ids), (n_resamples, len(ids)), generator=generator)].numpy()
    times = [np.bincount(draw, minlength=num_nodes) for draw in draws]
    result = ew.compare(models, y, edge_index, mask=mask, n_bins=n_bins, n_resamples=n_resamples, seed=7)
    for view in ("nodewise", "edgewise"):
        found = []
        for probs in models.values():
            elements = loop_elements(probs.numpy(), y.numpy(), edges, mask.numpy())[view]
            scores, gaps = loop_scores(elements, [1] * num_nodes, n_bins)
            resampled = [loop_scores(elements, one, n_bins) for one in times]
            count = np.bincount([max(0, math.ceil(one[0] * n_bins) - 1) for one in elements], minlength=n_bins)
            bias = loop_bias_range(gaps, [one[1] for one in resampled], count)
            found.append((np.array(scores), np.array([one[0] for one in resampled]), bias))
        (score_a, draws_a, bias_a), (score_b, draws_b, bias_b) = found
        for m, metric in enumerate(METRICS):
            value, differences = score_b[m] - score_a[m], draws_b[:, m] - draws_a[:, m]
            small, large = np.quantile(differences, [0.025, 0.975])
            bounds = [2 * value - large, 2 * value - small]
            if metric == "ece":
                bounds = [
                    value - (large - differences.mean()) - (bias_b[1] - bias_a[0]),
                    value + (differences.mean() - small) - (bias_b[0] - bias_a[1]),
                ]
                bounds = [min(bounds[0], value), max(bounds[1], value)]
            one = result.differences["second"][view][metric]
            assert [one.value, one.low, one.high] == pytest.approx([value, *bounds], abs=1e-9), (view, metric)


# --- properties ---


@pytest.mark.parametrize("options", [{}, {"binning": "mass"}, {"norm": "l2"}, {"norm": "max"}, {"edge_choice": "any"}])
def test_values_are_differences_of_the_evaluations(options):
    models, y, edge_index, mask = two_models(num_nodes=60, num_edges=100)
    result = ew.compare(models, y, edge_index, mask=mask, **SMALL, **options)
    first, second = (ew.evaluate(probs, y, edge_index, mask=mask, **options) for probs in models.values())
    views = [*ew.VIEWS, "same_label"]
    assert list(result.differences["second"]) == views
    assert result.evaluations["first"].scalars() == first.scalars()
    for row in result.scores():
        before, after = (getattr(getattr(ev, row.view), row.metric) for ev in (first, second))
        assert (row.reference_score, row.score) == (before, after)
        assert row.difference.value == pytest.approx(after - before, abs=1e-12)
        assert row.difference.low <= row.difference.high
    assert "same_label" not in ew.compare(models, y, edge_index, same_label=False, **SMALL).differences["second"]


def test_exchanged_models_have_the_opposite_intervals():
    models, y, edge_index, mask = two_models(num_nodes=60, num_edges=100)
    forward = ew.compare(models, y, edge_index, mask=mask, **SMALL)
    backward = ew.compare(dict(reversed(models.items())), y, edge_index, mask=mask, **SMALL)
    for view, by_metric in forward.differences["second"].items():
        for metric, one in by_metric.items():
            other = backward.differences["first"][view][metric]
            assert [one.value, one.low, one.high] == pytest.approx([-other.value, -other.high, -other.low], abs=1e-12)


def test_equal_models_do_not_differ_and_others_do_not_depend_on_them():
    models, y, edge_index, mask = two_models(num_nodes=60, num_edges=100)
    result = ew.compare({**models, "same": models["first"].clone()}, y, edge_index, mask=mask, **SMALL)
    assert {row.outcome for row in result.scores("same")} == {"equal"}
    alone = ew.compare(models, y, edge_index, mask=mask, **SMALL)
    assert alone.differences["second"] == result.differences["second"]


def test_scaled_logits_have_the_same_accuracy_and_another_likelihood():
    probs, _, edge_index, _ = random_case(0, num_nodes=400, num_edges=800)
    y = torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(0)).squeeze(1)
    models = {"true": probs, "overconfident": (3 * probs.log()).softmax(-1)}
    result = ew.compare(models, y, edge_index, n_resamples=100)
    outcomes = {(row.view, row.metric): row.outcome for row in result.scores()}
    assert outcomes["nodewise", "accuracy"] == outcomes["edgewise", "accuracy"] == "equal"
    assert outcomes["nodewise", "nll"] == outcomes["edgewise", "nll"] == outcomes["edgewise", "ece"] == "worse"
    assert "overconfident has a higher node NLL than true" in result.verdict


def test_paired_intervals_are_narrower_than_those_of_each_model():
    """Most of the uncertainty is due to nodes that both models get wrong, and cancels."""
    models, y, edge_index, mask = two_models(num_nodes=300, num_edges=600)
    near = {"first": models["first"], "near": 0.97 * models["first"] + 0.03 / 3}
    one = ew.compare(near, y, edge_index, mask=mask, n_resamples=100).differences["near"]["edgewise"]["nll"]
    alone = ew.evaluate(models["first"], y, edge_index, mask=mask, n_resamples=100).intervals["edgewise"]["nll"]
    assert one.high - one.low < 0.5 * (alone.high - alone.low)


def test_intervals_are_reproducible_and_grow_with_the_level():
    models, y, edge_index, mask = two_models(num_nodes=60, num_edges=100)
    state = torch.random.get_rng_state()
    first, again, other = (ew.compare(models, y, edge_index, mask=mask, seed=seed, **SMALL) for seed in (3, 3, 4))
    assert first.differences == again.differences != other.differences
    assert torch.equal(torch.random.get_rng_state(), state)
    narrow, wide = (
        ew.compare(models, y, edge_index, mask=mask, n_resamples=200, confidence_level=level) for level in (0.5, 0.95)
    )
    for inner, outer in zip(narrow.scores(), wide.scores(), strict=True):
        assert outer.difference.low <= inner.difference.low <= inner.difference.high <= outer.difference.high


def test_all_kinds_of_predictions_and_graphs_are_accepted():
    pd = pytest.importorskip("pandas")
    models, y, edge_index, mask = two_models(num_nodes=60, num_edges=100)
    probs, posterior = models["first"], ew.MixturePosterior(torch.stack([*models.values()]))
    fitted = type("Fitted", (), {"posterior": lambda self: posterior})()
    data = Data(y=y, edge_index=edge_index, num_nodes=60)
    by_graph = ew.compare({"probs": probs, "fitted": fitted}, data, mask=mask, **SMALL)
    by_arrays = ew.compare({"probs": probs.tolist(), "fitted": posterior}, y, edge_index, mask=mask, **SMALL)
    assert by_graph.differences == by_arrays.differences
    table = pd.DataFrame(probs.numpy(), columns=["a", "b", "c"])
    reordered, names = table[["c", "a", "b"]], np.array(["a", "b", "c"])[y]
    by_name = ew.compare({"table": table, "reordered": reordered}, names, edge_index, mask=mask, **SMALL)
    assert {row.outcome for row in by_name.scores() if row.metric in ("accuracy", "ece")} == {"equal"}
    assert all(row.difference.value == pytest.approx(0, abs=1e-12) for row in by_name.scores())


# --- empty sets, infinite scores ---


def test_without_edges_only_nodes_are_compared():
    models, y, _, mask = two_models(num_nodes=60)
    result = ew.compare(models, y, mask=mask, **SMALL)
    assert {row.view for row in result.scores()} == {"nodewise"}
    assert math.isnan(result.differences["second"]["edgewise"]["nll"].value)
    assert "edge" not in str(result) and "Of 4 scores" in result.verdict


def test_empty_mask_has_nan_differences():
    models, y, edge_index, _ = two_models()
    with pytest.warns(ew.SmallSampleWarning, match="selects none"):
        result = ew.compare(models, y, edge_index, mask=torch.zeros(len(y), dtype=torch.bool), **SMALL)
    assert all(math.isnan(row.difference.low) and not row.outcome for row in result.scores())
    assert "nothing to compare" in result.verdict
    result.plot()
    plt.close("all")


def test_infinite_scores():
    certain, y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]]), torch.tensor([1, 1, 1])
    flat, edges = torch.full((3, 2), 0.5), torch.tensor([[0, 1], [1, 2]])
    result = ew.compare({"certain": certain, "flat": flat, "wrong": certain}, y, edges, **SMALL)
    one = result.differences["flat"]["edgewise"]["nll"]
    assert (one.value, one.low, one.high) == (-math.inf, -math.inf, -math.inf)
    assert math.isnan(result.differences["wrong"]["edgewise"]["nll"].value)
    assert "flat has a lower node NLL than certain: -inf" in result.verdict
    result.plot()
    plt.close("all")


# --- what is shown ---


def test_table_verdict_and_exports_have_the_same_numbers():
    models, y, edge_index, mask = two_models(num_nodes=60, num_edges=100)
    result = ew.compare({**models, "<b>third</b>": models["second"]}, y, edge_index, mask=mask, **SMALL)
    rows, document, frame = list(result.scores()), result.to_dict(), result.to_frame()
    assert len(rows) == len(frame) == 2 * 19
    for k, row in enumerate(rows):
        one = row.difference
        written = document["differences"][row.model][row.view][row.metric]
        assert (written["difference"], *written["interval"]) == (one.value, one.low, one.high)
        assert frame.loc[k, ["difference", "low", "high"]].tolist() == [one.value, one.low, one.high]
        assert f"{one.value:+.4f}" in str(result) and f"[{one.low:+.4f}, {one.high:+.4f}]" in str(result)
        assert row.outcome in ("", "better", "worse", "equal")
        if row.outcome in ("better", "worse"):
            assert (row.outcome == "better") == ((row.score > row.reference_score) == (row.metric == "accuracy"))
    assert document["reference"] == "first" and document["intervals"]["n_resamples"] == 40
    counted = [
        row for row in result.scores("second") if row.view not in ("agree", "disagree") and row.outcome != "equal"
    ]
    num_better = sum(row.outcome == "better" for row in counted)
    assert result.verdict.startswith("second has") or f"Of {len(counted)} scores" in result.verdict
    assert f"{num_better} {'is' if num_better == 1 else 'are'} better" in result.verdict
    page = comparison_page(result, "<b>title</b>")
    assert "<b>title" not in page and "<b>third" not in page
    for row in rows:
        one = row.difference
        assert f"{abs(one.value):.4f}" in page and f"{abs(one.high):.4f}" in page, row
    assert page.count('class="forest-row') == len(rows)
    html = result._repr_html_()
    assert "<b>third" not in html and "&lt;b&gt;third" in html
    assert f"{rows[5].difference.low:+.4f}" in html
    assert "\n" not in repr(result) and len(repr(result)) < 200


@pytest.mark.parametrize("num_models", [2, 4])
def test_plot_draws_each_interval(num_models):
    models, y, edge_index, mask = two_models(num_nodes=60, num_edges=100)
    models |= {f"model {k}": models["second"] for k in range(2, num_models)}
    result = ew.compare(models, y, edge_index, mask=mask, norm="l2", **SMALL)
    fig, axes = result.plot()
    assert [ax.get_title(loc="left") for ax in axes] == ["accuracy", "NLL", "Brier score", "ECE (l2)"]
    for metric, ax in zip(METRICS, axes, strict=True):
        drawn = [sorted(line.get_xdata()) for line in ax.lines if len(line.get_xdata()) == 2]
        for row in result.scores():
            if row.metric == metric:
                assert any(ends == pytest.approx([row.difference.low, row.difference.high]) for ends in drawn)
    filled = [line for line in axes[0].lines if len(line.get_xdata()) == 1 and line.get_markerfacecolor() == "#0072B2"]
    clear = [row for row in result.scores("second") if row.metric == "accuracy" and row.difference.excludes_zero]
    assert len(filled) == len(clear)
    assert len(fig.legends) == (num_models > 2)
    own = plt.subplots(1, 4)[1]
    assert result.plot(ax=own)[1][0] is own[0]
    with pytest.raises(ValueError, match=r"plt.subplots\(1, 4"):
        result.plot(ax=own[:2])
    plt.close("all")


# --- bad input ---


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([[0.5, 0.5]], "got list. Pass a dict"),
        ({}, "got 0"),
        ({"a": [[0.5, 0.5]] * 3}, "got 1. Add another one, or score a single model with ew.evaluate"),
        ({"a": [[0.5, 0.5]] * 3, 1: [[0.5, 0.5]] * 3}, "but got 1. Pass text, such as 'model 1'"),
        ({"a": [[0.5, 0.5]] * 3, "": [[0.5, 0.5]] * 3}, "got ''"),
        ({"a": [[0.5, 0.5]] * 3, "b": [[0.5, 0.5]] * 4}, r"'a' have shape .* = \(3, 2\) and those of 'b' \(4, 2\)"),
        ({"a": [[0.5, 0.5]] * 3, "b": [[0.5, 0.3, 0.2]] * 3}, r"\(3, 3\)"),
        ({"a": [[0.5, 0.5]] * 3, "b": ew.GCN()}, "Model 'b': .*got GCN"),
        ({"a": [[0.5, 0.5]] * 3, "b": [[2.0, 0.5]] * 3}, "Model 'b': .*softmax"),
    ],
)
def test_bad_models_raise(models, message):
    with pytest.raises(ValueError, match=message):
        ew.compare(models, [0, 1, 1], [[0, 1], [1, 2]])


def test_other_bad_input_raises():
    models, y, edge_index, _ = two_models()
    with pytest.raises(ValueError, match="whose sums cannot be resampled"):
        ew.compare({"a": models["first"], "b": ew.evaluate(models["second"], y)}, y)
    with pytest.raises(ValueError, match="n_resamples to be a whole number from 1"):
        ew.compare(models, y, n_resamples=0)
    with pytest.raises(ValueError, match="Model 'first': Expected y to hold one label"):
        ew.compare(models, y[1:], edge_index)
    with pytest.raises(TypeError, match="Did you mean 'n_resamples'"):
        ew.compare(models, y, edge_index, n_resample=40)
    with pytest.warns(ew.SmallSampleWarning, match="n_resamples of at least 40"):
        ew.compare(models, y, edge_index, n_resamples=20)


def test_verdict_does_not_contradict_the_interval_if_noise_exceeds_the_difference():
    """With 300 bins, noise raises the ECE of the calibrated model above that of a model with one wrong confidence."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        p = rng.uniform(0.5, 1, 3000)
        y = (rng.random(3000) > p).astype(int)
        constant = np.full(3000, p.mean() - 0.07)
        models = {"constant": np.c_[constant, 1 - constant], "calibrated": np.c_[p, 1 - p]}
        (ece,) = (row for row in ew.compare(models, y, n_bins=300, n_resamples=60).scores() if row.metric == "ece")
        assert ece.difference.low <= ece.difference.value <= ece.difference.high
        assert ece.outcome != "worse"


# --- many runs ---


def test_table_of_many_runs_shows_infinite_scores():
    runs = [
        run for name in ("gcn", "gat") for run in fake_results(("cora",), ("gcn", "gat"), splits=3).of("cora", name)
    ]
    views = runs[-1].predictions["product"]
    infinite = {**views, "edgewise": replace(views["edgewise"], nll=math.inf)}
    runs[-1] = replace(runs[-1], predictions={**runs[-1].predictions, "product": infinite})
    nll, ece, _ = model_difference_table(Results(runs)).rows[0].cells
    assert nll.text == "∞" and nll.outcome not in (BETTER, WORSE) and math.isfinite(ece.value)


# --- coverage ---


@pytest.fixture(scope="module")
def script():
    with load_script("difference_coverage") as module:
        yield module


@pytest.mark.slow
def test_intervals_contain_the_true_difference(script):
    """Of 100 intervals of coverage 95%, at least 88 contain it with probability 99.8%."""
    options = script.GRAPHS["independent labels"]
    truth = script.true_differences(options, 200)
    assert truth["neighbors", "nodewise", "accuracy"] != 0
    assert truth["overconfident", "edgewise", "ece"] > 0.1
    for score, fraction in script.coverage(options, truth, 100, 100).items():
        assert fraction >= 0.88, score
