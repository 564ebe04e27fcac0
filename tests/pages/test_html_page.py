"""`render_page`: a custom page is self-contained and its policy allows only its own style and script."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from edgewise.pages import render_page, write_page
from edgewise.pages.html_page import content_security_policy, embedded_json
from helpers.browser import Opener, chromium

HOSTILE = '</script></style><img src=x onerror="window.harmed = true">&amp;'
TEMPLATE = """{% extends "layout.html.j2" %}
{% block main %}
<section>
<h2>{{ name|shout }}</h2>
<div class="scroll">
<table><tbody>
{% for value in values %}
<tr><th>{{ loop.index }}</th><td>{{ value }}</td></tr>
{% endfor %}
</tbody></table>
</div>
<div id="place" class="drawing"></div>
</section>
{% endblock %}
{% block footer %}<p>The end.</p>{% endblock %}
"""
STYLE = "[data-model] { --color: #0072B2; }\n"
SCRIPT = """
{
  const { points, name } = page.readData();
  const size = { maxWidth: 400, aspect: 1, maxHeight: 400, extraHeight: 0 };
  const plot = page.newPlot(page.byId("place"), { ...size, max: 1, step: 0.5, write: String });
  page.labelAxes(plot, "confidence", "accuracy");
  const marks = points.map(([x, y]) => page.shapes.s(plot.x(x), plot.y(y), 4));
  plot.picture.append(page.draw("g", { class: "point", "data-model": name }, ...marks));
  let chosen = null;
  const go = (next) => page.fill(plot.picture, { "aria-valuenow": (chosen = next) });
  page.makeNavigable(plot, { count: points.length, current: () => chosen, at: () => null, go });
  page.show(page.byId("place"), plot.picture);
}
"""
DATA = {"points": [[0.25, 0.5], [0.75, 0.7]], "name": HOSTILE}


@pytest.fixture(scope="module")
def html() -> str:
    return render_page(
        TEMPLATE,
        title="My <scores>",
        style=STYLE,
        script=SCRIPT,
        data=DATA,
        filters={"shout": str.upper},
        name="gcn",
        values=[HOSTILE, 2],
    )


def test_page_has_title_blocks_and_filters(html: str) -> None:
    assert html.startswith("<!doctype html>\n")
    assert "<title>My &lt;scores&gt;</title>" in html and "<h1>My &lt;scores&gt;</h1>" in html
    assert "<h2>GCN</h2>" in html and "<td>2</td>" in html and "<footer><p>The end.</p></footer>" in html


def test_policy_allows_only_the_inline_style_and_script(html: str) -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    for kind, pattern in (("style-src", r"<style>(.*?)</style>"), ("script-src", r"<script>(.*?)</script>")):
        (text,) = re.findall(pattern, html, re.DOTALL)
        assert f"{kind} &#39;sha256-{b64encode(sha256(text.encode()).digest()).decode()}&#39;" in policy
    assert policy.startswith("default-src &#39;none&#39;;") and "unsafe" not in policy
    assert not re.search(r'(src|href)="(?!#|data:)', html)


def test_text_and_data_are_escaped(html: str) -> None:
    assert HOSTILE not in html
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert not re.search("[<>&]", data) and json.loads(data) == DATA


def test_page_without_script_has_no_script_element() -> None:
    html = render_page('{% extends "layout.html.j2" %}', title="Empty")
    assert "<script" not in html and "script-src" not in html
    assert content_security_policy("a {}").startswith("default-src 'none'; style-src 'sha256-")


@pytest.mark.parametrize("kind", ["style", "script"])
def test_closing_tag_in_style_or_script_raises_value_error(kind: str) -> None:
    with pytest.raises(ValueError, match=f"</{kind}"):
        render_page('{% extends "layout.html.j2" %}', title="", **{kind: f"/* </{kind.upper()}> */"})


def test_data_that_is_not_finite_raises_value_error() -> None:
    with pytest.raises(ValueError):
        embedded_json({"nll": float("inf")})


def test_write_page_replaces_the_old_page(html: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("an older page")
    write_page(path, html)
    assert path.read_text(encoding="utf-8") == html
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_page_opens_from_disk_and_draws(browser: Any, html: str, tmp_path: Path, width: int, scheme: str) -> None:
    write_page(tmp_path / "own.html", html)
    opener = Opener(browser, {"own": (tmp_path / "own.html").as_uri()})
    page = opener("own", width=width, scheme=scheme)
    assert page.title() == "My <scores>"
    assert page.locator("td").all_text_contents() == [HOSTILE, "2"]
    assert page.locator("#place .point polygon").count() == 2
    fill = page.locator("#place .point").evaluate("(group) => getComputedStyle(group).fill")
    assert fill == "rgb(0, 114, 178)"
    page.locator("#place svg").focus()
    page.keyboard.press("End")
    assert page.locator("#place svg").get_attribute("aria-valuenow") == "1"
    assert page.evaluate("window.harmed") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    opener.check_no_messages_or_requests()


def test_wide_table_marks_the_sides_that_continue_and_keeps_row_names(browser: Any, tmp_path: Path) -> None:
    template = """{% extends "layout.html.j2" %}
    {% block main %}<div class="scroll"><table><tr><th class="sticky">name</th>
    {% for k in range(40) %}<td>number {{ k }}</td>{% endfor %}</tr></table></div>{% endblock %}"""
    write_page(tmp_path / "wide.html", render_page(template, title="Wide", script="{}"))
    opener = Opener(browser, {"wide": (tmp_path / "wide.html").as_uri()})
    page = opener("wide", width=390)
    table = page.locator(".scroll")
    marks = "(one) => one.getAttributeNames().filter((name) => name.startsWith('data-more'))"
    page.locator("[data-more-right]").first.wait_for(state="attached")
    assert table.evaluate(marks) == ["data-more-right"]
    left = page.locator(".sticky").bounding_box()["x"]
    table.evaluate("(one) => { one.scrollLeft = 300; }")
    page.locator("[data-more-left]").first.wait_for(state="attached")
    assert set(table.evaluate(marks)) == {"data-more-left", "data-more-right"}
    assert page.locator(".sticky").bounding_box()["x"] == left
    table.evaluate("(one) => { one.scrollLeft = one.scrollWidth; }")
    page.locator("[data-more-right]").first.wait_for(state="detached")
    assert table.evaluate(marks) == ["data-more-left"]
    opener.check_no_messages_or_requests()
