"""Write the tables of the benchmarks to docs/speed.md."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def add_options(parser: argparse.ArgumentParser, quick: bool = True) -> None:
    """Add the option --page, and as an alternative --quick."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--page", type=Path, metavar="FILE", help="also write the tables to this page, docs/speed.md")
    if quick:
        either.add_argument("--quick", action="store_true", help="show all ratios, on smaller inputs, with few repeats")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table with right-aligned numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def replace_section(page: Path | None, name: str, text: str) -> None:
    """Replace the text between the two comments with this name. Do nothing if page is None."""
    if page is None:
        return
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, begun, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise SystemExit(f"Expected the comments {begin.strip()} and {end.strip()} in {page}, but they are missing.")
    page.write_text(f"{before}{begin}\n{text}\n\n{end}{after}", encoding="utf-8")


def short(number: float) -> str:
    """Format a number with about three significant digits."""
    return f"{number:.2f}" if number < 10 else f"{number:.1f}" if number < 100 else f"{number:,.0f}"
