"""Chromium for tests of HTML pages, with records of console messages and network requests."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Observers of sizes are called once per frame, which can come after the page has loaded.
NEXT_FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium, or skip the test if it is not installed."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("Chromium is not installed: apt-get install chromium.")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install .[dev]")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS, timeout=600_000)
        yield browser
        browser.close()


@dataclass
class Opener:
    """Opens pages in one tab, and records console messages, errors and requests of all tabs."""

    browser: Any
    files: dict[str, str]
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tab = self.new_tab()

    def new_tab(self, **options: Any) -> Any:
        page = self.browser.new_context(reduced_motion="reduce", **options).new_page()
        page.set_default_timeout(600_000)
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        return page

    def __call__(self, name: str = "whole", address: str = "", width: int = 1280, scheme: str = "light") -> Any:
        self.tab.goto("about:blank")  # changing only the fragment would not reload the page
        self.tab.set_viewport_size({"width": width, "height": 900})
        self.tab.emulate_media(media="screen", color_scheme=scheme)
        self.tab.goto(self.files[name] + address)
        self.tab.evaluate(NEXT_FRAME)
        return self.tab

    def check_no_messages_or_requests(self) -> None:
        """Check that pages logged nothing and requested only themselves."""
        assert self.messages == []
        assert {url.split("#")[0] for url in self.requests} <= {"about:blank", "data:,", *self.files.values()}
