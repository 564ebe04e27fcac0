"""What a notebook shows of each object: HTML that is small, escaped and well-formed, and a `repr` of one line."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import edgewise as ew
from helpers.browser import Opener, chromium
from helpers.random_predictions import cases

# An empty mask and few labels are legal.
pytestmark = pytest.mark.filterwarnings("ignore:The mask selects none", "ignore::edgewise.SmallSampleWarning")
MAX_BYTES, MAX_BYTES_WITH_DETAILS = 30_000, 45_000  # with isotonic curves or groups
HOSTILE = "<img src=x onerror='window.harmed = true'> & \"quoted\""


def history(epochs: int = 400) -> ew.History:
    losses = [2.0 / (1 + epoch) for epoch in range(epochs)]
    accuracy = [1 - 1 / (1 + epoch) for epoch in range(epochs)]
    return ew.History(losses, losses, accuracy, epochs, 1.5, [("first", epochs // 2), ("second", epochs // 2)], epochs)


def evaluation(num_nodes: int = 500, num_edges: int = 2000, **options: Any) -> ew.Evaluation:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.5] * 4, num_nodes)
    y, edges = rng.integers(0, 4, num_nodes), rng.integers(0, num_nodes, (2, num_edges))
    return ew.evaluate(probs, y, edges, **{"same_label": True, **options})


def pairs(num_pairs: int = 1000) -> ew.EdgePredictions:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1, 1, 1], 50)
    names, ids = [HOSTILE, "b" * 300, "c"], np.array([f"{HOSTILE} {node}" for node in range(50)])
    start = rng.integers(0, 50, num_pairs)
    listed = ids[np.stack((start, (start + rng.integers(1, 50, num_pairs)) % 50))]
    return ew.predict_edges(probs, listed, ["same", "both=c", "any=c"], class_names=names, node_ids=ids, top=5)


@pytest.fixture(scope="module")
def fitted() -> dict[str, Any]:
    graph = ew.synthetic(60, 3, seed=0)
    split = ew.make_splits(graph.data.y, labeled=0.5)[0]
    epfgnn = ew.EPFGNN(
        hidden=8, pretrain_epochs=3, pretrain_patience=2, rounds=1, steps=3, dropout=0.25, step_patience=3
    )
    gcn = ew.GCN(max_epochs=3, hidden=8).fit(graph.data, split)
    return {
        "gcn": gcn,
        "epfgnn": epfgnn.fit(graph.data, split),
        "structured": ew.StructuredCalibrator(nodes=ew.LocalScaling(prior_spread=0.75)).fit(gcn, graph.data, split),
        "split": split,
    }


def shown(fitted: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(5000), rng.random(5000) < 0.7
    curve = ew.risk_coverage(confidence, correct)
    empty = ew.risk_coverage(confidence[:0], correct[:0])
    return {
        "evaluation": evaluation(),
        "evaluation with bins of equal mass": evaluation(binning="mass", norm="l2"),
        "evaluation without edges": evaluation(num_edges=0),
        "evaluation of nothing": evaluation(mask=np.zeros(500, bool)),
        "evaluation without the event": evaluation(same_label=False),
        "evaluation with details": evaluation(decompose=True, smooth=True, classwise=True, chance=40, n_resamples=40),
        "evaluation with groups": evaluation(by=("degree", "true_class"), groups={HOSTILE: [HOSTILE] * 500}),
        "groups": evaluation(by="confidence", norm="l2").groups["confidence"],
        "joint NLL": ew.joint_nll(np.full((9, 2), 0.5), [0] * 9, [list(range(8)), list(range(1, 9))], num_sets=9),
        "joint NLL of nothing": ew.joint_nll(np.full((1, 2), 0.5), [0], np.empty((2, 0), int), sizes=[2]),
        "pairs": pairs(),
        "no pairs": pairs(0),
        "curve": curve,
        "empty curve": empty,
        "selective": ew.selective(np.eye(3)[[0, 1, 2]], np.array([0, 1, 2]), np.array([[0, 1], [1, 2]])),
        "gcn": fitted["gcn"],
        "epfgnn": fitted["epfgnn"],
        "history": history(),
        "one epoch": history(1),
        "convergence": ew.Convergence(False, 10**6, math.inf, f"Try {HOSTILE} " + "long advice " * 50),
        "converged": ew.Convergence(True, 3, 0.0),
    }


def test_html_is_small_well_formed_and_self_contained(fitted):
    for name, value in shown(fitted).items():
        html, limit = (
            value._repr_html_(),
            MAX_BYTES_WITH_DETAILS if "with details" in name or "with groups" in name else MAX_BYTES,
        )
        assert type(html) is str and len(html.encode()) < limit, (name, len(html))
        ElementTree.fromstring(html)  # all elements are closed, all text is escaped
        assert not re.search(
            r"<(script|style|img|link|iframe)|href|src=|url\(|https?:", html.replace("&lt;img src", "")
        ), name
        assert "nan" not in html, name


def test_representation_is_one_line(fitted):
    long_rule = ew.Threshold(0.5, "a rule " * 100)
    metric, mrf = ew.GraphCalibration(), ew.PairwiseMRF(torch.zeros(2, 2), torch.tensor([[0], [1]]), torch.zeros(2, 2))
    posterior, _ = ew.sum_product(mrf)
    others = {"threshold": long_rule, "metric": metric, "mrf": mrf, "posterior": posterior, **fitted}
    for name, value in {**shown(fitted), **others}.items():
        assert len(repr(value)) < 200 and "\n" not in repr(value), (name, repr(value))


@given(
    names=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="="), min_size=1), min_size=2, max_size=6, unique=True
    ),
    num_pairs=st.integers(0, 30),
)
def test_any_class_name_is_escaped(names, num_pairs):
    probs = np.full((5, len(names)), 1 / len(names))
    try:
        table = ew.predict_edges(
            probs, np.array([[0, 1, 2] * num_pairs, [1, 3, 4] * num_pairs]), ["same"], class_names=names
        )
    except ValueError:  # names must be unique after stripping, for example
        return
    html = table._repr_html_()
    assert len(repr(table)) < 200 and "\n" not in repr(table)
    controls = r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]"  # legal in HTML, but not in XML
    ElementTree.fromstring(re.sub(controls, "", html))


@given(cases())
def test_any_evaluation_is_shown(case):
    probs, y, edge_index, mask = case
    ev = ew.evaluate(probs, y, edge_index, mask=mask, same_label=True)
    ElementTree.fromstring(ev._repr_html_())
    assert len(repr(ev)) < 200


@given(
    converged=st.booleans(), sweeps=st.integers(0, 2**63), residual=st.floats(), advice=st.text(),
)  # fmt: skip
def test_any_convergence_is_shown(converged, sweeps, residual, advice):
    convergence = ew.Convergence(converged, sweeps, residual, advice)
    assert len(repr(convergence)) < 200 and len(repr(convergence).splitlines()) == 1
    assert repr(convergence).startswith(f"Convergence(converged={converged}")
    assert convergence._repr_html_()


def test_convergence_names_the_method_its_reason_and_the_disagreement():
    convergence = ew.Convergence(True, 12, 1e-7, "", "sum-product", 0.03125, "the width is 40")
    cells = [cell.text for cell in ElementTree.fromstring(convergence._repr_html_()).iter("td")]
    assert cells == ["yes", "sum-product", "12", "1e-07", "0.0312"]
    assert "the width is 40" in convergence._repr_html_()
    for fact in ("method='sum-product'", "disagreement=0.0312", "the width is 40"):
        assert fact in repr(convergence)
    unchecked = ew.Convergence(True, 12, 1e-7, method="mean field")
    assert "disagreement" not in repr(unchecked) + unchecked._repr_html_()


def test_evaluation_shows_the_numbers_of_its_views():
    ev = evaluation()
    cells = [cell.text for cell in ElementTree.fromstring(ev._repr_html_()).iter("td")]
    for scores in (ev.nodewise, ev.edgewise, ev.agree, ev.disagree, ev.same_label):
        assert f"{scores.count:,}" in cells and f"{scores.nll:.4f}" in cells and f"{scores.ece:.4f}" in cells


def test_evaluation_shows_what_was_computed_on_request():
    ev = evaluation(decompose=True, smooth=True, classwise=True, chance=40, by="degree")
    html = ev._repr_html_()
    worst = ev.groups["degree"].worst("edgewise")
    numbers = [ev.edgewise.decomposition.miscalibration, ev.same_label.log_decomposition.discrimination]
    numbers += [ev.chance["agree"]["nll"].mean, ev.edgewise.smooth_ece, ev.nodewise.classwise_ece]
    assert all(f"{number:.4f}" in html for number in numbers)
    assert worst.group in html and f"{worst.ece:.3f}" in html and f"{worst.chance_ece:.3f}" in html


def test_diagram_draws_each_bin_at_its_numbers():
    probs = np.array([[0.7, 0.3]] * 20)
    y = np.array([0] * 10 + [1] * 10)
    ev = ew.evaluate(probs, y, np.empty((2, 0), int), n_bins=2, same_label=True)
    root = ElementTree.fromstring(ev._repr_html_())
    (circle,) = root.iter("circle")
    # The plot is 160 wide and high; its left is at 46 and its top at 6.
    assert float(circle.get("cx")) == pytest.approx(46 + 160 * 0.7, abs=0.1)
    assert float(circle.get("cy")) == pytest.approx(6 + 160 * 0.5, abs=0.1)
    (title,) = (title.text for title in root.iter("title"))
    assert title == "0.5 to 1: 20 nodes, confidence 0.700, accuracy 0.500"


def test_fitted_model_shows_only_changed_options(fitted):
    html = fitted["gcn"]._repr_html_()
    assert "GCN(hidden=8, max_epochs=3)" in html and "dropout" not in html
    assert repr(fitted["gcn"]).startswith("FittedClassifier(GCN(hidden=8, max_epochs=3), epochs=3")
    assert "LocalScaling(prior_spread=0.75)" in repr(fitted["structured"])


def test_table_of_pairs_shows_the_first_rows_and_counts_the_others():
    table = pairs(25)
    root = ElementTree.fromstring(table._repr_html_())
    assert len(list(root.iter("tr"))) == 1 + 10
    text = "".join(root.itertext())
    assert "25 pairs" in text and "15 more rows" in text
    histograms = [svg for svg in root.iter("svg") if "histogram of P(same)" in svg.get("aria-label")]
    counts = [int(title.text.split(": ")[1]) for title in histograms[0].iter("title")]
    assert counts == np.histogram(table["P(same)"], bins=20, range=(0, 1))[0].tolist()


# ---- In Chromium -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.mark.parametrize(
    ("background", "ink"), [("rgb(255, 255, 255)", "rgb(20, 20, 20)"), ("rgb(17, 17, 17)", "rgb(230, 230, 230)")]
)
def test_html_has_the_colors_of_the_notebook(browser, fitted, tmp_path, background, ink):
    parts = "".join(value._repr_html_() for value in shown(fitted).values())
    (tmp_path / "notebook.html").write_text(
        f"<!doctype html><meta charset=utf-8><body style='background:{background};color:{ink}'>{parts}",
        encoding="utf-8",
    )
    opener = Opener(browser, {"notebook": (tmp_path / "notebook.html").as_uri()})
    page = opener("notebook", width=1000)
    colors = page.evaluate("[...document.querySelectorAll('td, th, span')].map((e) => getComputedStyle(e).color)")
    fills = page.evaluate("[...document.querySelectorAll('svg text')].map((e) => getComputedStyle(e).fill)")
    assert set(colors) == {ink} and set(fills) == {ink}
    assert page.evaluate("window.harmed") is None
    assert json.dumps(page.evaluate("document.images.length")) == "0"
    opener.check_no_messages_or_requests()
