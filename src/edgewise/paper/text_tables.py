"""A table of text, and three ways to write it: for a terminal, as Markdown, as LaTeX."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import fill

NOTE_WIDTH = 100


@dataclass(frozen=True)
class Cell:
    """What stands in a table: a text, perhaps bold, and perhaps another beneath it."""

    text: str
    beneath: str = ""
    is_bold: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells under a title; rows with the same ``group`` stand together under its name."""

    title: str
    columns: Sequence[str]
    rows: Sequence["Row"]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Row:
    """One row: its group, its label, and a cell for each column."""

    group: str
    label: str
    cells: Sequence[Cell]


def table_text(table: Table, bold: Callable[[str], str] = str) -> str:
    """Write a table for a terminal, as narrow as it can be; ``bold`` writes what is bold."""
    labels = max((len(row.label) for row in table.rows), default=0) + 4
    widths = [
        max([len(name), *(len(text) for row in table.rows for text in (row.cells[i].text, row.cells[i].beneath))]) + 2
        for i, name in enumerate(table.columns)
    ]
    columns = zip(table.columns, widths, strict=True)
    lines = [bold(table.title), (" " * labels + "".join(f"{name:<{width}}" for name, width in columns)).rstrip()]
    for group, rows in groupby(table.rows, key=lambda row: row.group):
        lines += ["", group] if group else []
        for row in rows:
            # Bold letters have codes around them, so the width is made by spaces behind them.
            shown = (
                (bold(cell.text) if cell.is_bold else cell.text) + " " * (width - len(cell.text))
                for cell, width in zip(row.cells, widths, strict=True)
            )
            lines.append(f"{'  ' + row.label:<{labels}}{''.join(shown)}".rstrip())
            if any(cell.beneath for cell in row.cells):
                cells = zip(row.cells, widths, strict=True)
                lines.append(" " * labels + "".join(f"{cell.beneath:<{width}}" for cell, width in cells).rstrip())
    notes = (fill(note, NOTE_WIDTH, subsequent_indent="  ") for note in table.notes)
    return "\n".join([*lines, *([""] if table.notes else []), *notes])


def table_markdown(table: Table) -> str:
    """Write a table as Markdown."""
    has_groups = any(row.group for row in table.rows)
    header = [*([""] * (1 + has_groups)), *table.columns]
    lines = [header, ["---"] * len(header)]
    for row in table.rows:
        cells = (_markdown(cell) for cell in row.cells)
        lines.append([*([row.group] if has_groups else []), row.label, *cells])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = table.notes if len(table.notes) < 2 else ["\n".join(f"- {note}" for note in table.notes)]
    return "\n\n".join([f"## {table.title}", body, *notes])


def _markdown(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.is_bold else cell.text
    return f"{text}<br>{cell.beneath}" if cell.beneath else text


LATEX_LETTERS = {
    "±": r"$\pm$",
    "→": r"$\to$",
    "∞": r"$\infty$",
    "−": "$-$",
    "–": "--",
    "%": r"\%",
    "_": r"\_",
    "&": r"\&",
    "#": r"\#",
}


def table_latex(table: Table) -> str:
    """Write a table as LaTeX, for the package booktabs."""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(' '.join([table.title + '.', *table.notes]))}}}",
        rf"\begin{{tabular}}{{l{'l' * len(table.columns)}}}",
        r"\toprule",
        _latex_row(["", *(_latex(name) for name in table.columns)]),
        r"\midrule",
    ]
    for place, (group, rows) in enumerate(groupby(table.rows, key=lambda row: row.group)):
        lines += [r"\addlinespace"] if place else []
        lines += [rf"\multicolumn{{{1 + len(table.columns)}}}{{l}}{{\emph{{{_latex(group)}}}}} \\"] if group else []
        for row in rows:
            lines.append(_latex_row([_latex(row.label), *(_latex_cell(cell) for cell in row.cells)]))
            if any(cell.beneath for cell in row.cells):
                beneath = (rf"{{\scriptsize {_latex(cell.beneath)}}}" if cell.beneath else "" for cell in row.cells)
                lines.append(_latex_row(["", *beneath]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell) -> str:
    return rf"\textbf{{{_latex(cell.text)}}}" if cell.is_bold else _latex(cell.text)


def _latex(text: str) -> str:
    return "".join(LATEX_LETTERS.get(letter, letter) for letter in text)
