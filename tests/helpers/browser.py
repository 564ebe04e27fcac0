"""Chromium for the tests of pages, and what pages complained of and asked for in it."""

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


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium, or skip the test where it is not installed."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("Chromium is not installed, and the page is tested in it: apt-get install chromium.")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install .[dev]")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS, timeout=180_000)
        yield browser
        browser.close()


@dataclass
class Opener:
    """Opens pages in one tab, or in another of its own, and remembers what they complained of and asked for."""

    browser: Any
    files: dict[str, str]
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tab = self.new_tab()

    def new_tab(self, **options: Any) -> Any:
        page = self.browser.new_context(reduced_motion="reduce", **options).new_page()
        page.set_default_timeout(40_000)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        return page

    def __call__(self, name: str = "whole", address: str = "", width: int = 1280, scheme: str = "light") -> Any:
        self.tab.goto("about:blank")  # another fragment alone would not load the page again
        self.tab.set_viewport_size({"width": width, "height": 900})
        self.tab.emulate_media(media="screen", color_scheme=scheme)
        self.tab.goto(self.files[name] + address)
        return self.tab

    def check_silence(self) -> None:
        """Check that pages stayed silent and asked for nothing but themselves."""
        assert self.complaints == []
        assert {url.split("#")[0] for url in self.requests} <= {"about:blank", "data:,", *self.files.values()}
