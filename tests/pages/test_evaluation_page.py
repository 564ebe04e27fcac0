"""The page of one's own predictions, as text and in Chromium."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import edgewise as ew
from edgewise.cli import app
from edgewise.pages.diagrams import LEFT, SIDE, TOP, describe_bin
from edgewise.pages.evaluation_page import TITLE, evaluation_page, group_sections
from edgewise.plots.reliability_panels import prepare_reliability
from helpers.browser import Opener, chromium

pytestmark = pytest.mark.filterwarnings("ignore:The mask selects none")  # an empty mask is legal
HOSTILE = '</title></script><img src=x onerror="window.harmed = true">&amp; GCN'
SIZES = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]


def predictions(num_nodes: int = 600, num_edges: int = 1500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return underconfident predictions of labels that neighbors tend to share."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, num_nodes)
    start, end = rng.integers(0, num_nodes, (2, 4 * num_edges))
    kept = np.flatnonzero((start != end) & ((y[start] == y[end]) | (rng.random(len(start)) < 0.1)))[:num_edges]
    logits = rng.normal(size=(num_nodes, 3)) + 1.2 * np.eye(3)[y]
    probs = np.exp(0.7 * logits)
    return probs / probs.sum(1, keepdims=True), y, np.stack((start[kept], end[kept]))


@pytest.fixture(scope="module")
def evaluations() -> dict[str, ew.Evaluation]:
    probs, y, edges = predictions()
    no_edges = np.empty((2, 0), np.int64)
    few = np.arange(len(y)) < 30
    return {
        "whole": ew.evaluate(probs, y, edges),
        "intervals": ew.evaluate(probs, y, edges, n_resamples=40),
        "chance": ew.evaluate(probs, y, edges, chance=40),
        "without_event": ew.evaluate(probs, y, edges, same_label=False),
        "nodes_only": ew.evaluate(probs, y, no_edges),
        "few": ew.evaluate(probs, y, edges, mask=few),
        "nothing": ew.evaluate(probs, y, edges, mask=few & ~few),
        "mass": ew.evaluate(probs, y, edges, binning="mass", norm="l2"),
        "many_bins": ew.evaluate(probs, y, edges, n_bins=100),
        "impossible": ew.evaluate(np.eye(3)[probs.argmax(1)], y, edges),
        "details": ew.evaluate(probs, y, edges, decompose=True, smooth=True, classwise=True, n_resamples=40, chance=40),
        "groups": ew.evaluate(
            probs, y, edges, groups={HOSTILE: y % 2}, by=("degree", "true_class"), mask=np.arange(600) < 580
        ),
    }


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_tables_of_groups_have_errors_by_chance_only_with_l1(norm):
    probs, y = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), np.array([0, 0, 1])
    (section,) = group_sections(ew.evaluate(probs, y, np.array([[0, 1], [1, 2]]), by="degree", norm=norm))
    cells = [row["chance"] for view in section["views"] for row in view["rows"]]
    assert all((cell == "–") == (norm != "l1") for cell in cells) and len(cells) == 3
    assert ("l1" in section["note"]) == (norm != "l1")


def test_groups_are_listed_worst_first_and_those_by_labels_are_marked(evaluations):
    ev = evaluations["groups"]
    page = evaluation_page(ev)
    section = page.split('id="groups"')[1].split("</section>")[0]
    assert HOSTILE not in section
    by_degree, by_class = section.split('<h3 class="grouping">')[2:]
    names = re.findall(r'<th scope="row">([^<]*)</th>', by_degree)
    groups = ev.groups["degree"]
    assert names == [scores.group for view in ("nodewise", "edgewise") for scores in groups.nonempty(view)]
    assert "true labels" in by_class and "true labels" not in by_degree
    assert 'id="groups"' not in evaluation_page(evaluations["whole"])


def test_page_says_what_the_limits_of_chance_assume(evaluations):
    page = " ".join(evaluation_page(evaluations["whole"]).split())
    assert "nodes are independent" in page and "errors of neighbors are often correlated" in page
    assert "mean degree" in page
    rows = re.findall(r"<strong>(Edges|Agree|Disagree)</strong></th>.*?number soft\">([^<]*)<", page)
    assert [text == "–" for _, text in rows] == [False, True, True]  # chosen by the true labels


def test_report_writes_the_page_with_the_verdict_first(evaluations, tmp_path):
    ev = evaluations["whole"]
    path = tmp_path / "report.html"
    path.write_text("an older page")
    ev.report(str(path))
    html = path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]
    assert html == evaluation_page(ev) and TITLE in html
    headline = f"{ev.same_label.probability:.0%} of neighbors share a label; {ev.same_label.frequency:.0%} do"
    assert html.index(headline) < html.index("<table")


@pytest.mark.parametrize("name", ["whole", "nodes_only", "nothing", "mass", "impossible"])
def test_page_has_the_scores_of_each_view(evaluations, name):
    ev = evaluations[name]
    html = evaluation_page(ev)
    (body,) = re.findall(r"<tbody>(.*?)</tbody>", html, re.DOTALL)[:1]
    rows = [re.findall(r"<td class=\"number[^>]*>([^<]*)", row) for row in body.split("</tr>")[:-1]]
    views = (ev.nodewise, ev.edgewise, ev.agree, ev.disagree, ev.same_label) if ev.edgewise.count else (ev.nodewise,)
    assert html.count('class="reliability"') == sum(scores.count > 0 for scores in views)
    for row, scores in zip(rows, views, strict=True):
        assert row[0] == f"{scores.count:,}"
        shown = [f"{value:.3f}".replace("nan", "–").replace("inf", "∞") for value in (scores.ece, scores.brier)]
        assert [row[4], row[-2].strip()] == shown
    assert "nan" not in re.sub(r"<style>.*?</style>|<script>.*?</script>", "", html, flags=re.DOTALL)


def test_page_shows_intervals_if_they_were_computed(evaluations):
    with_intervals, without = (evaluation_page(evaluations[name]) for name in ("intervals", "whole"))
    for view in ("edgewise", "same_label"):
        interval = evaluations["intervals"].intervals[view]["nll"]
        text = f"{interval.low:.3f} to {interval.high:.3f}"
        assert text in with_intervals and text not in without


def test_page_shows_p_values_and_the_range_of_chance_if_they_were_computed(evaluations):
    drawn, page = evaluations["chance"].chance, evaluation_page(evaluations["chance"])
    for view in ("nodewise", "edgewise", "agree", "disagree", "same_label"):
        score = drawn[view]["ece"]
        assert f'soft">{score.high:.3f} <span class="remark">p {score.p_value:.3f}</span>' in page
    assert "40 labelings" in page and "nodes are independent" not in page


def test_page_states_level_and_resamples_instead_of_advising_them(evaluations):
    with_intervals, without = (evaluation_page(evaluations[name]) for name in ("intervals", "whole"))
    assert "95%, 40 resamples" in with_intervals and "resamples 200" not in with_intervals
    assert "resamples 200" in without and "<strong>Intervals" not in without


@pytest.mark.parametrize("name", ["page.pdf", "page.png", "page"])
def test_page_is_written_only_as_html(evaluations, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"Pass page\.html"):
        evaluations["whole"].report(name)
    command = ["evaluate", "--probs", "p.npy", "--labels", "y.npy", "--html", name]
    assert "Pass page.html" in CliRunner().invoke(app, command).output
    assert not list(tmp_path.iterdir())
    evaluations["whole"].report("page.HTM")


@pytest.mark.parametrize("name", ["whole", "nodes_only", "nothing"])
def test_page_has_no_inline_style_and_no_address(evaluations, name):
    html = evaluation_page(evaluations[name], title=HOSTILE)
    assert " style=" not in html  # the policy would block it
    assert HOSTILE not in html and not re.search(r'(src|href)="(?!#|data:)', html)


def test_command_writes_the_page_without_matplotlib(tmp_path):
    probs, y, edges = predictions()
    for name, array in (("probs", probs), ("labels", y), ("edges", edges)):
        np.save(tmp_path / f"{name}.npy", array)
    options = [f"--{name}={name}.npy" for name in ("probs", "labels", "edges")]
    command = ["evaluate", *options, "--html", "mine.html", "--title", "<GCN>"]
    code = (
        "import atexit, sys; from edgewise.cli import app\n"
        f"atexit.register(lambda: print('matplotlib' in sys.modules)); app({command})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("False\n") and "nodewise" in result.stdout
    html = (tmp_path / "mine.html").read_text(encoding="utf-8")
    assert "<h1>&lt;GCN&gt;</h1>" in html and "calibrate --probs probs.npy" in html


def test_command_checks_the_page_before_it_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = ["--probs", "p.npy", "--labels", "y.npy", "--edges", "e.npy"]
    result = CliRunner().invoke(app, ["evaluate", *files, "--html", "missing/report.html"])
    assert result.exit_code != 0 and "--html" in result.output


# ---- In Chromium -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def opener(browser, evaluations, tmp_path_factory: pytest.TempPathFactory) -> Opener:
    folder = tmp_path_factory.mktemp("pages")
    files = {}
    for name, ev in evaluations.items():
        ev.report(folder / f"{name}.html", title=HOSTILE if name == "few" else None)
        files[name] = (folder / f"{name}.html").as_uri()
    return Opener(browser, files)


@pytest.mark.parametrize(("width", "scheme"), SIZES)
@pytest.mark.parametrize("name", ["whole", "nodes_only", "few", "nothing", "many_bins", "intervals"])
def test_page_fits_the_screen_and_is_silent(opener, name, width, scheme):
    page = opener(name, width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("window.harmed") is None
    if width == 1280 and name != "intervals":
        assert page.evaluate("document.documentElement.scrollHeight") <= 2 * 950  # two screens
    background, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('.lead')).color]"
    )
    brightness = [sum(map(int, re.findall(r"\d+", color)[:3])) for color in (background, ink)]
    assert (brightness[0] > brightness[1]) == (scheme == "light")
    opener.check_no_messages_or_requests()


@pytest.mark.parametrize("width", [1280, 390])
def test_marks_at_the_end_of_the_scale_are_not_clipped(opener, width):
    page = opener("impossible", width=width)
    picture = page.locator(".pair svg").first
    mark, frame = picture.locator(".predicted").bounding_box(), picture.bounding_box()
    assert mark["x"] + mark["width"] > frame["x"] + frame["width"]  # at 100%, it reaches beyond the picture
    assert picture.evaluate("(svg) => getComputedStyle(svg).overflow") == "visible"


def test_title_is_text(opener):
    page = opener("few")
    assert page.locator("h1").text_content() == HOSTILE and page.title() == HOSTILE


@pytest.mark.parametrize("width", [1280, 390])
def test_pointing_at_a_bin_shows_its_numbers(opener, evaluations, width):
    page = opener("whole", width=width)
    panels = prepare_reliability(evaluations["whole"], ("nodewise", "edgewise", "agree", "disagree", "same_label"))
    figures = page.locator("figure.reliability")
    assert figures.count() == len(panels)
    for place, panel in enumerate(panels):
        figure, filled = figures.nth(place), np.flatnonzero(panel.count[0])
        columns = figure.locator(".bins rect")
        assert columns.count() == len(filled) and figure.locator(".readout").text_content() == ""
        for n in (0, len(filled) // 2, len(filled) - 1):
            columns.nth(n).hover()
            assert figure.locator(".readout").text_content() == describe_bin(panel, int(filled[n]))
            assert figure.locator(".bins rect.chosen").count() == 1
    opener.check_no_messages_or_requests()


def test_bins_can_be_chosen_with_the_keyboard_and_by_touch(opener, evaluations):
    (panel,) = prepare_reliability(evaluations["whole"], "nodewise")
    filled = [int(k) for k in np.flatnonzero(panel.count[0])]
    page = opener("whole")
    picture, readout = page.locator(".reliability svg").first, page.locator(".readout").first
    picture.focus()
    page.keyboard.press("End")
    assert readout.text_content() == describe_bin(panel, filled[-1]) == picture.get_attribute("aria-valuetext")
    page.keyboard.press("ArrowLeft")
    assert readout.text_content() == describe_bin(panel, filled[-2])
    page.keyboard.press("Escape")
    assert readout.text_content() == ""
    tab = opener.new_tab(has_touch=True, viewport={"width": 390, "height": 800})
    tab.goto(opener.files["whole"])
    tab.locator(".bins").first.locator("rect").nth(1).tap()
    assert tab.locator(".readout").first.text_content() == describe_bin(panel, filled[1])
    tab.close()


def test_small_bins_are_hollow_and_not_connected(opener, evaluations):
    page = opener("many_bins")
    (panel,) = prepare_reliability(evaluations["many_bins"], "nodewise")
    figure = page.locator("figure.reliability").first
    assert figure.locator(".few circle").count() == int(panel.is_small.sum()) > 0
    drawn = (panel.count[0] > 0) & ~panel.is_small
    assert len(re.findall("[ML]", figure.locator(".link").get_attribute("d") or "")) == int(drawn.sum())
    fill = figure.locator(".few").evaluate("(group) => getComputedStyle(group).fill")
    assert fill == "none"


def test_page_without_script_shows_all_numbers(opener):
    tab = opener.new_tab(java_script_enabled=False)
    tab.goto(opener.files["whole"])
    assert tab.locator(".bins title").count() > 20
    assert not tab.locator(".hint").first.is_visible()
    tab.close()


def test_page_shows_the_parts_of_scores_if_they_were_computed(evaluations):
    assert 'id="parts"' not in evaluation_page(next(iter(evaluations.values())))
    ev = ew.evaluate(*predictions(), decompose=True, smooth=True, classwise=True)
    page = evaluation_page(ev)
    for view in ("nodewise", "edgewise", "agree", "disagree"):
        parts = ev[view].decomposition.to_dict() | {
            f"log {k}": x for k, x in ev[view].log_decomposition.to_dict().items()
        }
        for name, number in (*parts.items(), ("smooth", ev[view].smooth_ece)):
            assert f"{number:.4f}" in page, (view, name)
    assert all(f"{error:.4f}" in page for error in ev.nodewise.class_ece.tolist())


def test_page_states_why_the_log_score_has_no_parts():
    probs, y, edges = predictions()
    ev = ew.evaluate(np.eye(3)[probs.argmax(1)], y, edges, decompose=True)
    assert ev.nodewise.log_decomposition_reason in evaluation_page(ev)


def test_page_shows_all_scores_by_chance(evaluations):
    ev = evaluations["chance"]
    page = evaluation_page(ev)
    for view in ("nodewise", "edgewise", "agree", "disagree", "same_label"):
        for name, score in ev.chance[view].items():
            for number in (score.mean, score.low, score.high):
                assert f"{number:.4f}" in page, (view, name)
            assert f"p {score.p_value:.3f}" in page


def test_diagrams_draw_the_isotonic_fit_and_its_band():
    options: dict[str, Any] = {"decompose": True}
    assert 'class="fit' not in evaluation_page(ew.evaluate(*predictions()))
    without_band = evaluation_page(ew.evaluate(*predictions(), **options))
    assert without_band.count('class="fit"') == 5 and "fit-band" not in without_band
    ev = ew.evaluate(*predictions(), **options, n_resamples=40)
    page = evaluation_page(ev)
    assert page.count('class="fit"') == page.count('class="fit-band"') == 5
    path = re.search(r'd="M([^"]+)" class="fit"', page)
    assert path is not None
    drawn = [tuple(map(float, point.split())) for point in path[1].split("L")]
    curve = ev.nodewise.curve
    ends = [(LEFT + SIDE * curve.forecast[k], TOP + SIDE * (1 - curve.frequency[k])) for k in (0, -1)]
    for point, end in zip((drawn[0], drawn[-1]), ends, strict=True):
        assert point == pytest.approx([float(x) for x in end], abs=0.06)
    heights = [y for _, y in drawn]
    assert heights == sorted(heights, reverse=True)  # frequencies do not fall
