"""Numbers in the text of a page."""

import re
from pathlib import Path

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?%?")


def numbers(text: str) -> list[str]:
    """Return all numbers of a text in order, as written, without thousands separators."""
    return [number.replace(",", "") for number in NUMBER.findall(text)]


def paragraphs(page: Path) -> list[str]:
    """Return the paragraphs of a page, each on one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", page.read_text(encoding="utf-8"))]


def has_numbers(page: Path, *expected: str) -> bool:
    """Whether one paragraph of the page has these numbers one after another, whatever the words between them."""
    size = len(expected)
    return any(
        tuple(shown[k : k + size]) == expected
        for shown in map(numbers, paragraphs(page))
        for k in range(len(shown) - size + 1)
    )
