"""The documentation site in Chromium: search from a folder and from a server, and pages at the width of a phone."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from helpers.browser import Opener, chromium

HOME = Path(__file__).parents[1]
PHONE = 390  # pixels


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install .[dev]")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=HOME, env=variables, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def browser(site: Path) -> Iterator[Opener]:
    with chromium() as started:
        yield Opener(started, {})


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def address(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    """Return the address of the site: a folder, or a server on this machine."""
    if request.param == "folder":
        yield site.as_uri()
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def type_until_found(tab: Any, word: str) -> None:
    """Type a word into the search field, again if the page did not yet listen to it."""
    from playwright.sync_api import TimeoutError as NotFound

    query = tab.locator("[data-md-component=search-query]")
    for _ in range(60):
        query.fill("")
        query.press_sequentially(word)
        try:
            tab.wait_for_selector(".md-search-result__link", timeout=10_000)
            return
        except NotFound:
            continue
    pytest.fail(f"The search finds no page with {word!r}.")


@pytest.mark.parametrize("address", ["folder", "server"], indirect=True)
@pytest.mark.parametrize("page", ["index.html", "api/data.html"])
def test_search_finds_a_word(address: str, page: str, browser: Opener) -> None:
    tab = browser.new_tab(viewport={"width": 1280, "height": 900})
    tab.goto(f"{address}/{page}")
    type_until_found(tab, "heterophilous")
    links = tab.eval_on_selector_all(".md-search-result__link", "links => links.map(link => link.href)")
    assert any(link.startswith(f"{address}/choosing.html") for link in links)
    tab.context.close()


def test_pages_load_nothing_from_other_hosts_and_log_nothing(browser: Opener) -> None:
    """Runs after the searches above."""
    assert browser.messages == []
    assert {url.split("/")[2].split(":")[0] for url in browser.requests} <= {"", "127.0.0.1"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_scrolls_sideways_on_a_phone(site: Path, browser: Opener, scheme: str) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        browser.files["page"] = page.as_uri()
        tab = browser("page", width=PHONE, scheme=scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE, page.name


def test_logo_and_front_picture_are_shown(site: Path, browser: Opener) -> None:
    browser.files["index"] = (site / "index.html").as_uri()
    tab = browser("index")
    for selector in (".md-header .md-logo img", ".md-content img[src$='front.svg']"):
        assert tab.eval_on_selector(selector, "image => image.complete && image.naturalWidth > 0")
    assert tab.get_attribute("link[rel=icon]", "href") == "logo.svg"
