"""The HTML page of results, as text and in Chromium."""

import json
import math
import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from edgewise.metrics.sums import VIEWS
from edgewise.paper.comparison import compare, tally_line
from edgewise.paper.formatting import ROW_STYLES, display_name, row_style
from edgewise.paper.method_tables import METHOD_COLUMNS
from edgewise.paper.page import page_data, pool_bins, results_page, write_results_page
from edgewise.paper.published import DATASETS
from edgewise.paper.readings import AS_DEFINED, AS_PUBLISHED, CALIBRATORS, READINGS
from edgewise.paper.results import Results
from edgewise.paper.score_rows import reading_score
from edgewise.paper.text_tables import score_cell
from helpers.browser import NEXT_FRAME, Opener, chromium
from helpers.fake_results import HOSTILE, N_BINS, fake_results, with_hostile_text

OTHERS = ("actor", "chameleon", "squirrel", "amazon-ratings", "minesweeper", "tolokers", "questions", "synthetic-0.9")
DASH = "(line) => getComputedStyle(line).strokeDasharray"
MAX_PAGE_BYTES = 1_500_000  # with all runs of the paper
PAGES = ("whole", "hostile", "one_cell", "nothing", "others", "calibrated", "unknown")

# ---- Without a browser -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results() -> Results:
    return fake_results()


@pytest.fixture(scope="module")
def html(results: Results) -> str:
    return results_page(results)


def test_page_is_deterministic(html: str) -> None:
    assert results_page(fake_results()) == html


def test_write_replaces_the_old_page(results: Results, html: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("an older page")
    write_results_page(results, path)
    assert path.read_text(encoding="utf-8") == html
    assert list(tmp_path.iterdir()) == [path]


def test_page_size_with_all_runs_of_the_paper(results: Results) -> None:
    more = [
        replace(run, key=replace(run.key, split=split, init=init))
        for run in results.runs
        if run.key.split == 0
        for split in range(5)
        for init in range(5)
    ]
    assert len(more) == 900
    assert len(results_page(replace(results, runs=more)).encode()) < MAX_PAGE_BYTES


def test_policy_allows_only_the_inline_style_and_script(html: str) -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    for kind, pattern in (("style-src", r"<style>(.*?)</style>"), ("script-src", r"<script>(.*?)</script>")):
        (text,) = re.findall(pattern, html, re.DOTALL)
        assert f"{kind} &#39;sha256-{b64encode(sha256(text.encode()).digest()).decode()}&#39;" in policy
    assert policy.startswith("default-src &#39;none&#39;;")
    assert "unsafe" not in policy
    assert not re.search(r'(src|href)="(?!#|data:)', html)
    assert "innerHTML" not in html


def test_embedded_data_is_escaped(results: Results) -> None:
    text = results_page(with_hostile_text(results))
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert not re.search("[<>&]", data)
    assert json.loads(data) == json.loads(json.dumps(page_data(results)))
    assert HOSTILE not in text


def luminance(color: str) -> float:
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_have_enough_contrast(html: str, scheme: str) -> None:
    light, dark, *_ = re.findall(r":root \{(.*?)\}", html, re.DOTALL)
    colors = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", light))
    if scheme == "dark":
        colors |= dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", dark))
    for paper in ("paper", "panel", "accent-paper"):
        assert contrast(colors["ink"], colors[paper]) >= 4.5
    for text in ("soft", "accent", "good", "near", "far"):
        for paper in ("paper", "panel"):
            assert contrast(colors[text], colors[paper]) >= 4.5
    for style in (*ROW_STYLES.values(), row_style("unknown")):
        line = style.dark_color if scheme == "dark" and style.dark_color else style.color
        assert contrast(line, colors["paper"]) >= 3


def test_rows_differ_by_color_and_by_marker() -> None:
    assert {row for rows in READINGS.values() for row in rows} <= set(ROW_STYLES)
    for part in ("label", "color", "marker"):
        assert len({getattr(style, part) for style in ROW_STYLES.values()}) == len(ROW_STYLES)


def test_script_has_a_shape_for_each_marker(html: str) -> None:
    (shapes,) = re.findall(r"const shapes = \{(.*?)\n  \};", html, re.DOTALL)
    names = re.findall(r'^    "?(.*?)"?: \(x, y, r\)', shapes, re.MULTILINE)
    assert {style.marker for style in ROW_STYLES.values()} <= set(names)


# ---- In Chromium -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


def calibrated_results() -> Results:
    return fake_results(["cora", "citeseer"], ["gcn", "gat", "jointgcn"], splits=1, calibrators=CALIBRATORS)


@pytest.fixture(scope="module")
def files(results: Results, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    several = {
        "whole": results,
        "hostile": with_hostile_text(results),
        "one_cell": fake_results(["citeseer"], ["gat"], splits=1),
        "nothing": Results([]),
        "others": fake_results(["texas", "roman-empire", "synthetic-0.1", *OTHERS], ["gcn", "gmnn"], splits=1),
        "calibrated": calibrated_results(),
    }
    for name, of_page in several.items():
        write_results_page(of_page, folder / f"{name}.html")
    newest = fake_results(["cora"], ["gcn", "sage"], splits=1, calibrators=["gats", "structured", "local", "beta"])
    write_results_page(newest, folder / "unknown.html")
    return {name: (folder / f"{name}.html").as_uri() for name in PAGES}


@pytest.fixture(scope="module")
def opener(browser: Any, files: dict[str, str]) -> Opener:
    return Opener(browser, files)


@pytest.fixture
def opened(opener: Opener) -> Iterator[Opener]:
    opener.messages.clear()
    opener.requests.clear()
    yield opener
    opener.check_no_messages_or_requests()  # in every test


def shown_rows(page: Any, table: str) -> list[list[str]]:
    """Return the visible rows of a table: dataset, model, then our numbers."""
    rows: list[list[str]] = page.evaluate(
        """(id) => [...document.querySelectorAll(`#${id} tbody tr[data-dataset]`)]
             .filter((row) => row.checkVisibility())
             .map((row) => [...row.cells].map((cell) => cell.querySelector(".ours") || cell.firstChild))
             .map((shown) => shown.map((one) => one.textContent.trim()))""",
        table,
    )
    return rows


def column(page: Any, table: str, place: int) -> list[float | None]:
    """Return the visible means of a column."""
    numbers = {"–": None, "∞": math.inf}
    texts = [row[place].split(" ± ")[0] for row in shown_rows(page, table)]
    return [numbers[text] if text in numbers else float(text) for text in texts]


def heading(page: Any, table: str, name: str) -> Any:
    return page.locator(f"#{table} thead").get_by_role("button", name=name, exact=True)


def aria_sort(page: Any, table: str) -> dict[str, str]:
    found: dict[str, str] = page.evaluate(
        """(id) => Object.fromEntries([...document.querySelectorAll(`#${id} [aria-sort]`)]
             .map((heading) => [heading.dataset.key, heading.ariaSort]))""",
        table,
    )
    return found


def choose_reading(page: Any, reading: str, name: str = "tables-reading") -> None:
    page.locator(f'label:has(input[name="{name}"][value="{reading}"])').click()


def rows_of(results: Results, reading: str) -> list[str]:
    models = {run.key.model for run in results.runs}
    return [row for row, source in READINGS[reading].items() if source.model in models]


def texts_of(results: Results, reading: str, metric: str) -> list[list[str]]:
    rows = []
    for dataset in results.datasets:
        for row in rows_of(results, reading):
            scores = [reading_score(results, reading, dataset, row, view, metric) for view in VIEWS]
            rows.append([score_cell(score).text for score in scores])
    return rows


@pytest.mark.parametrize(("name", "scheme"), [*((name, "light") for name in PAGES), ("whole", "dark")])
def test_page_opens_from_disk_without_messages(opened: Opener, name: str, scheme: str) -> None:
    page = opened(name, scheme=scheme)
    of_paper = "A Graph Is More Than Its Nodes, reproduced"
    assert page.title() == ("Nodes and pairs of neighbors: 2 models on 11 graphs" if name == "others" else of_paper)
    assert page.locator("h1").text_content() == page.title()
    assert page.locator("h1").count() == 1
    assert opened.files[name] in opened.requests
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((heading) => Number(heading.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    unlabeled = "[...document.querySelectorAll('input, select')].filter((control) => !control.labels.length).length"
    assert page.evaluate(unlabeled) == 0
    assert page.evaluate("[...document.querySelectorAll('button')].every((button) => button.textContent.trim())")
    unnamed = """[...document.querySelectorAll("main section, figure, [role=region]")]
      .filter((one) => !document.getElementById(one.getAttribute("aria-labelledby"))).length"""
    assert page.evaluate(unnamed) == 0


def test_summary_has_tally_and_number_of_runs(opened: Opener, results: Results) -> None:
    page = opened()
    assert page.locator("#tally").text_content() == tally_line(results)
    assert "72 of the 900 runs" in page.locator("#partial").text_content()


@pytest.mark.parametrize(("metric", "place", "name"), [("ece", 3, "Edgewise"), ("accuracy", 2, "Nodewise")])
def test_clicks_sort_ascending_descending_and_back(opened: Opener, metric: str, place: int, name: str) -> None:
    page, table = opened(), f"table-{metric}"
    before = shown_rows(page, table)
    heading(page, table, name).click()
    up = column(page, table, place)
    assert up == sorted(up, key=lambda value: value or 0.0)
    assert aria_sort(page, table) == {name.lower(): "ascending"}
    heading(page, table, name).click()
    assert column(page, table, place) == up[::-1]
    assert aria_sort(page, table) == {name.lower(): "descending"}
    heading(page, table, name).click()
    assert shown_rows(page, table) == before
    assert aria_sort(page, table) == {}


def test_keyboard_sorts(opened: Opener) -> None:
    page, table = opened(), "table-brier"
    heading(page, table, "Agree").focus()
    page.keyboard.press("Enter")
    values = column(page, table, 4)
    assert values == sorted(values, key=lambda value: value or 0.0)
    page.keyboard.press("Space")
    assert column(page, table, 4) == values[::-1]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert aria_sort(page, table) == {"edgewise": "ascending"}
    heading(page, table, "Model").click()
    names = [row[1] for row in shown_rows(page, table)]
    assert names == sorted(names)


@pytest.mark.parametrize("turns", [1, 2])
def test_missing_numbers_sort_last(opened: Opener, turns: int) -> None:
    page = opened()
    for _ in range(turns):
        heading(page, "table-nll", "Disagree").click()
    *numbers, last = column(page, "table-nll", 5)
    assert last is None  # GAT on Pubmed
    assert None not in numbers
    ordered = sorted(numbers, key=lambda value: value or 0.0, reverse=turns == 2)
    assert numbers == ordered
    assert numbers[0 if turns == 2 else -1] == math.inf  # GMNN on Citeseer


def test_every_column_of_every_table_sorts(opened: Opener) -> None:
    columns = opened().evaluate(
        """[...document.querySelectorAll("table.sortable thead button")].map((button) => {
             button.click();
             const [place, table] = [button.parentElement.cellIndex, button.closest("table")];
             const rows = [...table.tBodies[0].rows].filter((row) => row.dataset.dataset);
             return rows.map((row) => row.cells[place].dataset.value ?? row.cells[place].textContent);
           })"""
    )
    scores, overviews = 4 * (2 + len(VIEWS)), 2 * (2 + len(DATASETS))
    differs, better, predictions, statistics = 2 + 5, 2 + 3, 3 + len(METHOD_COLUMNS), 1 + 8
    assert len(columns) == scores + overviews + differs + better + predictions + statistics
    for values in columns:
        filled = [value for value in values if value]
        assert values[: len(filled)] == filled
        is_text = re.match("[A-Za-z]", filled[0]) and filled[0] != "Infinity"
        assert filled == sorted(filled, key=(lambda text: text.strip().lower()) if is_text else float)


def test_tables_show_the_selected_reading(opened: Opener, results: Results) -> None:
    page = opened()
    for reading in (AS_PUBLISHED, AS_DEFINED, AS_PUBLISHED):
        choose_reading(page, reading)
        for metric in ("ece", "accuracy", "nll", "brier"):
            assert [row[2:] for row in shown_rows(page, f"table-{metric}")] == texts_of(results, reading, metric)
        checked = page.locator(f'input[value="{reading}"]:checked')
        assert checked.count() == 2  # above the tables and above the diagrams


def test_published_numbers_are_shown_below_ours(opened: Opener, results: Results) -> None:
    page = opened()
    cells = {(one.dataset, one.row, one.metric, one.view): one for one in compare(results)}
    rows = page.locator('#table-ece tbody[data-reading="as_published"] tr[data-dataset="cora"]')
    for place, row in enumerate(READINGS[AS_PUBLISHED]):
        for view_place, view in enumerate(VIEWS):
            one = cells["cora", row, "ece", view]
            assert one.difference is not None
            text = rows.nth(place).locator("td.number").nth(view_place).locator(".theirs").inner_text()
            mark = "=" if abs(one.difference) <= 1 else "≈" if abs(one.difference) <= 2 else "≠"
            difference = f"{one.difference:+.2f}".replace("-", "−")
            assert re.sub(r"\s+", " ", text) == f"published {score_cell(one).subtext} {mark} {difference} sd"


def test_tables_show_the_selected_dataset(opened: Opener) -> None:
    page = opened()
    page.locator('label:has(input[name="tables-dataset"][value="citeseer"])').click()
    for table in ("table-ece", "table-nll", "table-differs", "table-predictions"):
        assert {row[0] for row in shown_rows(page, table)} == {"Citeseer"}
    page.locator('label:has(input[name="differs-dataset"][value="all"])').click()
    assert {row[0] for row in shown_rows(page, "table-ece")} == {"Cora", "Citeseer", "Pubmed"}


def drawn_bins(page: Any) -> dict[str, list[int]]:
    found: dict[str, list[int]] = page.evaluate(
        """Object.fromEntries([...document.querySelectorAll("#diagram g.model")].map((group) =>
             [group.dataset.model, [...group.querySelectorAll(".point")].map((point) => Number(point.dataset.bin))]))"""
    )
    return found


def expected_bins(results: Results, reading: str, dataset: str, view: str) -> dict[str, dict[str, Any]]:
    pooled = {row: pool_bins(results.views(reading, dataset, row, view)) for row in rows_of(results, reading)}
    return {row: bins for row, bins in pooled.items() if bins["ece"] is not None}


def filled(bins: dict[str, Any]) -> list[int]:
    return [place for place, count in enumerate(bins["count"]) if count]


@pytest.mark.parametrize(
    ("dataset", "view", "reading"),
    [
        ("cora", "edgewise", AS_PUBLISHED),
        ("citeseer", "disagree", AS_DEFINED),
        ("pubmed", "disagree", AS_DEFINED),
        ("pubmed", "same_label", AS_PUBLISHED),
    ],
)
def test_diagram_shows_the_selection(opened: Opener, results: Results, dataset: str, view: str, reading: str) -> None:
    page = opened()
    page.select_option("#chart-dataset", dataset)
    page.select_option("#chart-view", view)
    choose_reading(page, reading, "chart-reading")
    expected = expected_bins(results, reading, dataset, view)
    assert len(expected) == (4 if (dataset, view) == ("pubmed", "disagree") else 5)
    assert drawn_bins(page) == {row: filled(bins) for row, bins in expected.items()}
    assert page.locator("#diagram .fraction").count() == sum(len(filled(bins)) for bins in expected.values())
    few = sum(bins["few"][place] for bins in expected.values() for place in filled(bins))
    assert page.locator("#diagram .point.few").count() == few
    for row, bins in expected.items():
        shown = page.locator(f'.models label[data-model="{row}"] .value').text_content()
        assert shown == f"{100 * bins['ece']['mean']:.2f} ± {100 * bins['ece']['std']:.2f}"
    if len(expected) == 4:
        assert page.locator('.models label[data-model="gat"] .value').text_content() == "nothing to score"


def bin_rows(page: Any) -> list[list[str]]:
    rows: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('#bin tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return rows


def bin_texts(bins: dict[str, Any], place: int) -> list[str]:
    confidence, accuracy = bins["confidence"][place], bins["accuracy"][place]
    gap = f"{accuracy - confidence:+.3f}".replace("-", "−")
    return [f"{bins['count'][place]:,}", f"{confidence:.3f}", f"{accuracy:.3f}", gap]


def test_keyboard_moves_between_bins(opened: Opener, results: Results) -> None:
    page = opened(address="#models=gmnn&view=agree")
    bins = expected_bins(results, AS_PUBLISHED, "cora", "agree")["gmnn"]
    diagram = page.locator("#diagram svg")
    page.locator('.models input[value="epfgnn mean field"]').focus()
    page.keyboard.press("Tab")
    for place in filled(bins):
        low = f"{place / N_BINS:.4f} <" if place else "0 ≤"
        high = f"{(place + 1) / N_BINS:.4f}" if place < N_BINS - 1 else "1"
        title = f"Bin {place + 1} of {N_BINS}: {low} confidence ≤ {high}"
        assert page.locator("#bin .bin-limits").text_content() == title
        assert bin_rows(page) == [["GMNN", *bin_texts(bins, place)]]
        assert diagram.get_attribute("aria-valuenow") == str(place + 1)
        count, confidence, accuracy, gap = bin_texts(bins, place)
        description = f"GMNN: count {count}, confidence {confidence}, accuracy {accuracy}, gap {gap}"
        assert diagram.get_attribute("aria-valuetext") == f"{title}. {description}"
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    assert diagram.get_attribute("aria-valuenow") == str(filled(bins)[0] + 1)
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert diagram.get_attribute("aria-valuenow") == str(filled(bins)[-2] + 1)
    page.keyboard.press("Escape")
    assert page.locator("#bin .bin-limits").text_content() == f"All {N_BINS} bins"
    means = [
        sum(n * x for n, x in zip(bins["count"], bins[name], strict=True) if n) for name in ("confidence", "accuracy")
    ]
    confidence, accuracy = (mean / sum(bins["count"]) for mean in means)
    gap = f"{accuracy - confidence:+.3f}".replace("-", "−")
    assert bin_rows(page) == [["GMNN", f"{sum(bins['count']):,}", f"{confidence:.3f}", f"{accuracy:.3f}", gap]]


def test_pointer_and_touch_show_a_bin(opened: Opener, results: Results) -> None:
    expected = expected_bins(results, AS_PUBLISHED, "cora", "edgewise")
    page = opened()
    page.locator('#diagram g[data-model="gat"] .point[data-bin="8"]').hover(force=True)
    assert page.locator("#bin .bin-limits").text_content() == "Bin 9 of 15: 0.5333 < confidence ≤ 0.6000"
    assert [row[1:] for row in bin_rows(page)] == [bin_texts(bins, 8) for bins in expected.values()]
    phone = opened.new_tab(viewport={"width": 390, "height": 844}, has_touch=True)
    phone.goto(opened.files["whole"])
    phone.locator('#diagram g[data-model="gcn"] .point[data-bin="5"]').tap(force=True)
    assert [row[1:] for row in bin_rows(phone)] == [bin_texts(bins, 5) for bins in expected.values()]


def test_models_can_be_overlaid(opened: Opener) -> None:
    page = opened()
    for row in ("gat", "epfgnn", "epfgnn mean field"):
        page.locator(f'.models input[value="{row}"]').uncheck()
    assert list(drawn_bins(page)) == ["gcn", "gmnn"]
    assert page.locator("#diagram .gap").count() == 0
    page.locator('.models input[value="gcn"]').uncheck()
    assert page.locator("#diagram .gap").count() == len(drawn_bins(page)["gmnn"])
    page.locator('.models input[value="gmnn"]').uncheck()
    assert "Select a model" in page.locator("#diagram").text_content()
    page.locator('.models input[value="gat"]').check()
    assert list(drawn_bins(page)) == ["gat"]


@pytest.mark.parametrize(("place", "up"), [("nodes-edges", "edgewise"), ("agree-disagree", "agree")])
def test_scatter_has_one_mark_per_run(opened: Opener, results: Results, place: str, up: str) -> None:
    page = opened(address="#models=gcn,epfgnn")
    is_missing = place == "agree-disagree"  # a run of GCN on Cora has no disagreeing edge
    assert page.locator(f'#{place} g[data-model="gcn"] .run').count() == 6 - is_missing
    assert page.locator(f'#{place} g[data-model="epfgnn"] .run').count() == 6
    readout = page.locator(f"#{place}-run")
    page.locator(f"#{place} .run").first.hover(force=True)
    found = re.fullmatch(
        r"(GCN|EPFGNN), split (\d), fold (\d), init 0: \w+ ECE ([\d.]+), \w+ ECE ([\d.]+)", readout.text_content()
    )
    assert found is not None
    row, split, fold = found[1].lower(), int(found[2]), int(found[3])
    source = READINGS[AS_PUBLISHED][row]
    (run,) = [run for run in results.of("cora", source.model) if (run.key.split, run.key.fold) == (split, fold)]
    assert float(found[5]) == pytest.approx(100 * run.predictions[source.prediction][up].ece, abs=0.006)
    page.locator(f"#{place} svg").focus()
    page.keyboard.press("Home")
    first = readout.text_content()
    page.keyboard.press("ArrowRight")
    assert readout.text_content() not in ("", first)
    assert page.locator(f"#{place} svg").get_attribute("aria-valuetext") == readout.text_content()


def page_state(page: Any) -> dict[str, Any]:
    choices = "[...document.querySelectorAll('[data-choice]')].map((control) => [control.value, control.checked])"
    return {
        "choices": page.evaluate(choices),
        "tables": {table: shown_rows(page, table) for table in ("table-ece", "table-nll", "table-predictions")},
        "sorted": [aria_sort(page, table) for table in ("table-ece", "table-predictions")],
        "bins": drawn_bins(page),
        "caption": page.locator("#diagram-caption").text_content(),
    }


def test_url_fragment_restores_the_selection(opened: Opener) -> None:
    page = opened()
    default = page_state(page)
    choose_reading(page, AS_DEFINED)
    page.locator('label:has(input[name="tables-dataset"][value="pubmed"])').click()
    page.select_option("#chart-dataset", "citeseer")
    page.select_option("#chart-view", "same_label")
    page.locator('.models input[value="gat"]').uncheck()
    heading(page, "table-ece", "Agree").click()
    heading(page, "table-predictions", "Edge NLL").dblclick()
    page.get_by_role("link", name="Methods").click()
    chosen = page_state(page)
    assert chosen != default
    page = opened(address=page.evaluate("location.hash"))
    assert page_state(page) == chosen
    page.evaluate("location.hash = ''")
    page.evaluate(NEXT_FRAME)
    assert page_state(page) == default


def test_invalid_url_fragment_is_ignored(opened: Opener) -> None:
    default = page_state(opened())
    nonsense = (
        "#reading=x&dataset=__proto__&chart=<b>&view=&sort=table-ece:x:ascending,__proto__:a:b,table-nll:agree:up"
    )
    assert page_state(opened(address=nonsense)) == default
    assert page_state(opened(address="#methods")) == default


def test_hostile_text_is_escaped(opened: Opener) -> None:
    page = opened("hostile")
    assert page.evaluate("window.harmed") is None
    assert page.locator("img, main b").count() == 0
    assert page.locator("#table-commands td", has_text=HOSTILE).count() == 2
    assert page.locator("#table-versions th", has_text=HOSTILE).count() == 1
    assert page.locator("#table-versions td", has_text=HOSTILE).count() == 1
    assert HOSTILE in page.locator("header").text_content()
    assert HOSTILE in page.locator(".failures pre").text_content()
    assert "cora gat split 4 fold 2 init 1" in page.locator(".failures summary").text_content()


@pytest.mark.parametrize("name", PAGES)
def test_narrow_page_does_not_scroll_horizontally(opened: Opener, name: str) -> None:
    page = opened(name, width=360)
    page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    scrollers = page.evaluate(
        "[...document.querySelectorAll('.scroll')].map((one) => [one.scrollWidth > one.clientWidth, one.tabIndex])"
    )
    assert all(place == 0 for is_wide, place in scrollers if is_wide)  # focusable, so that the keyboard can scroll it


@pytest.mark.parametrize("name", ["whole", "calibrated"])
def test_row_names_stay_visible_on_a_phone(opened: Opener, name: str) -> None:
    page = opened(name, width=390)
    assert page.locator("td.outer >> visible=true").count() == 0
    for table in ("table-ece", "table-predictions", "table-datasets"):
        scroller = page.locator(f".scroll:has(#{table})")
        assert scroller.get_attribute("data-more-right") is not None
        first = page.locator(f"#{table} tbody tr:not(.reading-name) .sticky >> visible=true").first
        left = first.bounding_box()["x"]
        scroller.evaluate("(one) => { one.scrollLeft = one.scrollWidth; }")
        assert first.bounding_box()["x"] == left
        before = first.evaluate("(name) => getComputedStyle(name, '::before').content")
        assert before == {"table-ece": '"Cora"', "table-predictions": '"Cora, GCN"', "table-datasets": "none"}[table]


@pytest.mark.parametrize("width", [390, 1000, 1280, 1680])
def test_bins_are_inside_their_column(opened: Opener, width: int) -> None:
    page = opened("calibrated", width=width)
    for row in ("gcn calibrated", "gat calibrated"):
        page.locator(f'.models input[value="{row}"]').check()
    column, table = (page.locator(name).bounding_box() for name in ("#bin", "#bin table"))
    assert table["x"] >= column["x"]
    assert table["x"] + table["width"] <= column["x"] + column["width"] <= width


@pytest.mark.parametrize("width", [1280, 1680])
def test_desktop_page_uses_its_width(opened: Opener, width: int) -> None:
    page = opened(width=width)
    right = page.locator("main").bounding_box()
    edge = right["x"] + right["width"] - 0.2 * width
    for part in (".agreement", "#bin", "#agree-disagree", "#table-accuracy"):
        box = page.locator(part).bounding_box()
        assert box["x"] + box["width"] > edge, part
    assert page.locator("#diagram").bounding_box()["y"] < 900  # in the first screen
    assert page.locator(".agreement").bounding_box()["y"] < 450
    wide = "[...document.querySelectorAll('.scroll[data-more-right]')].map((one) => one.innerText.slice(0, 20))"
    assert page.evaluate(wide) == []


def test_tables_of_many_graphs_fit_the_page(opened: Opener) -> None:
    page = opened("others")
    wide = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).length"
    assert page.evaluate(wide) == 0
    place = page.locator("#table-overview-1").bounding_box()
    page.evaluate("(down) => scrollTo(0, down)", place["y"] + 30)
    assert page.locator("#table-overview-1 thead th").first.bounding_box()["y"] == 0  # headings stay visible
    page.set_viewport_size({"width": 690, "height": 1000})  # an A4 page between its margins
    page.emulate_media(media="print")
    assert page.evaluate(wide) == 0


@pytest.mark.parametrize("name", PAGES)
def test_names_are_followed_by_spaces(opened: Opener, name: str) -> None:
    page = opened(name, address="#reading=as_defined")
    labels = "|".join([*(style.label for style in ROW_STYLES.values()), "Cora", "Citeseer", "Pubmed", "Texas"])
    words = page.evaluate("[...document.querySelectorAll('p, li, dd, td, th')].map((one) => one.textContent)")
    assert [text for text in words if re.search(rf"({labels})(?!s\b)[a-z]", text)] == []  # "GCNs" is a plural


def test_print_shows_all_tables_for_any_selection(opened: Opener, results: Results) -> None:
    page = opened(address="#reading=as_defined&dataset=cora", scheme="dark")
    assert len(shown_rows(page, "table-ece")) == 5
    page.emulate_media(media="print")
    for metric in ("ece", "accuracy", "nll", "brier"):
        both = texts_of(results, AS_PUBLISHED, metric) + texts_of(results, AS_DEFINED, metric)
        assert [row[2:] for row in shown_rows(page, f"table-{metric}")] == both
    assert len(shown_rows(page, "table-predictions")) == 30
    assert page.locator(".reading-name >> visible=true").count() == 8
    assert page.locator(".controls >> visible=true").count() == 0
    assert page.locator("nav >> visible=true").count() == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.set_viewport_size({"width": 690, "height": 1000})  # an A4 page between its margins
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every((one) => one.scrollWidth <= one.clientWidth)")


def test_page_without_javascript_shows_all_tables(opened: Opener, results: Results) -> None:
    page = opened.new_tab(java_script_enabled=False)
    page.goto(opened.files["whole"])
    for reading in READINGS:
        body = page.locator(f'#table-ece tbody[data-reading="{reading}"]')
        assert body.locator(".ours").all_text_contents() == [
            text for row in texts_of(results, reading, "ece") for text in row
        ]
        assert body.is_visible()


def test_partial_sweep_is_announced(opened: Opener) -> None:
    page = opened("one_cell")
    notice = page.locator("#partial").text_content()
    assert "3 of the 900 runs" in notice
    assert "no runs yet for 11 of 12 pairs" in " ".join(notice.split())
    assert shown_rows(page, "table-ece")[0][:2] == ["Citeseer", "GAT"]
    assert list(drawn_bins(page)) == ["gat"]
    assert page.locator('.models label[data-model="gcn"] .value').text_content() == "no runs"
    assert page.locator('.models input[value="gcn"]').is_disabled()
    assert "no runs yet" in page.locator("#differs").text_content()


def test_unpublished_datasets_have_no_published_numbers(opened: Opener) -> None:
    page = opened("others", address="#dataset=synthetic-0.1&chart=texas&view=agree")
    assert page.locator("#partial").count() == 0
    assert all(text.strip().startswith("corrected") for text in page.locator(".theirs").all_text_contents())
    assert [row[:2] for row in shown_rows(page, "table-ece")] == [["synthetic-0.1", "GCN"], ["synthetic-0.1", "GMNN"]]
    assert len(shown_rows(page, "table-datasets")) == 11
    assert page.locator('.models label[data-model="gcn"] .value').text_content() == "nothing to score"  # none agrees
    page.locator("#chart-dataset").select_option("synthetic-0.9")
    assert list(drawn_bins(page)) == ["gcn", "gmnn"]


def test_calibrator_is_overlaid_on_its_model(opened: Opener) -> None:
    page, results = opened("calibrated"), calibrated_results()
    assert list(drawn_bins(page)) == ["gcn", "gat"]  # calibrated rows are off by default
    link = page.locator('#table-predictions a[data-dataset="citeseer"][data-base="gat"]', has_text="temperature")
    link.click()
    runs = [run.predictions for run in results.of("citeseer", "gat")]
    for base, calibrator in (("gat", "temperature"), ("gcn", "structured")):
        if base == "gcn":  # through the controls
            page.select_option("#chart-calibrator", calibrator)
            for row in ("gat", "gat calibrated", "gcn", "gcn calibrated"):
                page.locator(f'.models input[value="{row}"]').click()
            runs = [run.predictions for run in results.of("citeseer", "gcn")]
        before, after = (pool_bins([run[name]["edgewise"] for run in runs]) for name in ("product", calibrator))
        assert drawn_bins(page) == {base: filled(before), f"{base} calibrated": filled(after)}
        entry = page.locator(f'.models label[data-model="{base} calibrated"]')
        assert entry.locator(".name").text_content() == f"{base.upper()} + {calibrator}"
        assert entry.locator(".value").text_content().startswith(f"{100 * after['ece']['mean']:.2f} ± ")
    address = page.evaluate("location.hash")
    chosen = drawn_bins(page)
    assert "calibrator" not in address.replace("calibrated", "")  # structured is the default
    assert drawn_bins(opened("calibrated", address=address)) == chosen


def test_calibrated_predictions_sort_and_filter(opened: Opener) -> None:
    page = opened("calibrated", address="#dataset=cora")
    shown = shown_rows(page, "table-predictions")
    assert [row[:3] for row in shown] == [
        *(["Cora", model, name] for model in ("GCN", "GAT") for name in ("product", *map(display_name, CALIBRATORS))),
        ["Cora", "JointGCN", "joint"],
    ]
    assert page.locator("#table-predictions a >> visible=true").count() == 2 * len(CALIBRATORS)
    heading(page, "table-predictions", "Edge NLL").click()
    nll = column(page, "table-predictions", 7)
    assert nll == sorted(nll) and len(nll) == len(shown)
    assert page.locator("#table-gains tbody tr").count() == 4
    assert "meets its aims for" in page.locator("#calibrators .intro").text_content()
    assert "meets its aims for" in page.locator(".tally").text_content()
    assert page.locator('.models label[data-model="jointgcn"] .value').text_content() == "not in this reading"
    assert page.get_by_role("link", name="Calibrators", exact=True).count() == 1
    assert page.locator('#table-ece tbody[data-reading="as_defined"]', has_text="JointGCN").count() == 1
    page.set_viewport_size({"width": 690, "height": 1000})  # an A4 page between its margins
    page.emulate_media(media="print")
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every((one) => one.scrollWidth <= one.clientWidth)")
    assert len(shown_rows(page, "table-predictions")) == 2 * len(shown)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_model_outside_the_paper_is_gray(opened: Opener, scheme: str) -> None:
    page = opened("unknown", address="#reading=as_defined", scheme=scheme)
    assert [row[:2] for row in shown_rows(page, "table-ece")] == [["Cora", "GCN"], ["Cora", "sage"]]
    assert list(drawn_bins(page)) == ["gcn", "sage"]
    fill = "(point) => getComputedStyle(point).stroke + getComputedStyle(point).fill"
    marks = page.locator('#diagram g[data-model="sage"] circle.point')
    assert marks.count() == len(drawn_bins(page)["sage"])
    assert "rgb(140, 140, 140)" in marks.first.evaluate(fill)
    page.locator('#table-predictions a[data-base="sage"]', has_text="local").click()
    assert list(drawn_bins(page)) == ["sage", "sage calibrated"]
    stars = page.locator('#diagram g[data-model="sage calibrated"] polygon.point')
    assert stars.count() == len(drawn_bins(page)["sage calibrated"])
    assert "rgb(140, 140, 140)" in stars.first.evaluate(fill)
    assert page.locator('#diagram g[data-model="sage"] .stroke').first.evaluate(DASH) == "none"
    assert page.locator('#diagram g[data-model="sage calibrated"] .stroke').first.evaluate(DASH) != "none"
    assert opened("unknown").locator("#chart-calibrator").input_value() == "structured"


def test_page_without_runs(opened: Opener) -> None:
    page = opened("nothing")
    assert "no runs yet" in page.locator("#nothing").text_content()
    assert page.locator("#scores, #diagrams, #table-versions").count() == 0
    assert page.locator("#methods").is_visible()
