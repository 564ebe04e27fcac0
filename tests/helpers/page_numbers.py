"""Numbers in the text of a page."""

import re
from pathlib import Path
from types import EllipsisType

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?%?")


def numbers(text: str) -> list[str]:
    """Return all numbers of a text in order, as written, without thousands separators."""
    return [number.replace(",", "") for number in NUMBER.findall(text)]


def paragraphs(page: Path) -> list[str]:
    """Return the paragraphs of a page, each on one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", page.read_text(encoding="utf-8"))]


def has_numbers(page: Path, *expected: str | EllipsisType, near: str = "") -> bool:
    """Whether one paragraph of the page has these numbers one after another, whatever the words between them.

    `...` stands for any other numbers. The paragraph must contain the text ``near``.
    """
    assert expected, "no numbers to look for"
    parts = (r"(?:\S+ )*" if number is ... else re.escape(number) + " " for number in expected)
    pattern = re.compile(r"(?<!\S)" + "".join(parts))
    shown = ("".join(f"{number} " for number in numbers(text)) for text in paragraphs(page) if near in text)
    return any(map(pattern.search, shown))
