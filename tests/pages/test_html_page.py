"""A page of one's own, made of the building blocks: it holds all it needs, and runs nothing but its own."""

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
  const size = { widest: 400, steepness: 1, highest: 400, beneath: 0 };
  const field = page.newField(page.byId("place"), { ...size, max: 1, step: 0.5, write: String });
  page.nameAxes(field, "confidence", "accuracy");
  const marks = points.map(([x, y]) => page.shapes.s(field.x(x), field.y(y), 4));
  field.picture.append(page.draw("g", { class: "point", "data-model": name }, ...marks));
  let chosen = null;
  const go = (next) => page.fill(field.picture, { "aria-valuenow": (chosen = next) });
  page.movable(field, { count: points.length, current: () => chosen, at: () => null, go });
  page.show(page.byId("place"), field.picture);
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


def test_the_page_has_its_parts(html: str) -> None:
    assert html.startswith("<!doctype html>\n")
    assert "<title>My &lt;scores&gt;</title>" in html and "<h1>My &lt;scores&gt;</h1>" in html
    assert "<h2>GCN</h2>" in html and "<td>2</td>" in html and "<footer><p>The end.</p></footer>" in html


def test_only_its_own_style_and_script_may_run(html: str) -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    for kind, pattern in (("style-src", r"<style>(.*?)</style>"), ("script-src", r"<script>(.*?)</script>")):
        (text,) = re.findall(pattern, html, re.DOTALL)
        assert f"{kind} &#39;sha256-{b64encode(sha256(text.encode()).digest()).decode()}&#39;" in policy
    assert policy.startswith("default-src &#39;none&#39;;") and "unsafe" not in policy
    assert not re.search(r'(src|href)="(?!#|data:)', html)


def test_text_and_data_cannot_end_their_elements(html: str) -> None:
    assert HOSTILE not in html
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert not re.search("[<>&]", data) and json.loads(data) == DATA


def test_a_page_without_a_script_has_none() -> None:
    html = render_page('{% extends "layout.html.j2" %}', title="Empty")
    assert "<script" not in html and "script-src" not in html
    assert content_security_policy("a {}").startswith("default-src 'none'; style-src 'sha256-")


@pytest.mark.parametrize("kind", ["style", "script"])
def test_a_style_or_script_that_ends_its_element_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=f"has '</{kind}'"):
        render_page('{% extends "layout.html.j2" %}', title="", **{kind: f"/* </{kind.upper()}> */"})


def test_data_must_be_finite() -> None:
    with pytest.raises(ValueError):
        embedded_json({"nll": float("inf")})


def test_a_page_is_written_whole(html: str, tmp_path: Path) -> None:
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
def test_it_opens_from_disk_and_draws(browser: Any, html: str, tmp_path: Path, width: int, scheme: str) -> None:
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
    opener.check_silence()
