"""Puts the tables of benchmarks into the page that shows them, docs/speed.md."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def add_option(parser: argparse.ArgumentParser) -> None:
    """Let a benchmark be told where its tables are shown."""
    parser.add_argument("--page", type=Path, metavar="FILE", help="also put the tables into this page, docs/speed.md")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table whose numbers are to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def put(page: Path | None, name: str, text: str) -> None:
    """Put text between the marks of a name; without a page do nothing."""
    if page is None:
        return
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"Expected the marks {begin.strip()} and {end.strip()} in {page}, but they are not there.")
    page.write_text(f"{before}{begin}\n{text}\n\n{end}{after}", encoding="utf-8")


def short(number: float) -> str:
    """Write a number with two or three digits that count."""
    return f"{number:.2f}" if number < 1 else f"{number:.1f}" if number < 100 else f"{number:,.0f}"
