"""Tables of printed cells, formatted for a terminal, as Markdown and as LaTeX."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import fill

from edgewise.paper.formatting import display_name, format_mean_std, format_signed
from edgewise.paper.score_rows import Score, ScoreRow
from edgewise.sweep.progress import format_count

NOTE_COLUMNS = 100
NEAR_BEST = "≈"  # after a score that is not the best, but not clearly worse


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a text with an optional remark, and an optional second line."""

    text: str
    remark: str = ""
    subtext: str = ""
    difference: str = ""  # from the published value, in published standard deviations
    verdict: str = ""  # "good" within one published standard deviation, "near" within two, "far" beyond
    outcome: str = ""  # of a comparison of the two readings
    is_bold: bool = False
    is_near_best: bool = False
    value: float = math.nan  # sort key

    @property
    def line(self) -> str:
        """The text with its mark and its remark."""
        text = f"{self.text} {NEAR_BEST}" if self.is_near_best else self.text
        return f"{text} ({self.remark})" if self.remark else text

    @property
    def second_line(self) -> str:
        """The second line, with the difference."""
        return f"{self.subtext}  {self.difference}".rstrip()

    @property
    def sort_key(self) -> str:
        """The value in JavaScript syntax; empty for NaN, which sorts last."""
        return "" if math.isnan(self.value) else repr(float(self.value)).replace("inf", "Infinity")


@dataclass(frozen=True)
class Row:
    """A row of cells. ``model`` is set if the label names a prediction or a calibrator of a model."""

    group: str
    label: str
    cells: Sequence[Cell]
    remark: str = ""
    model: str = ""

    @property
    def line(self) -> str:
        """The display name of the label, with its remark."""
        name = display_name(self.label)
        return f"{name} ({self.remark})" if self.remark else name


@dataclass(frozen=True)
class Table:
    """Rows of cells with a title. Consecutive rows of one ``group`` are printed under its name."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str] = ()


def score_cell(score: Score) -> Cell:
    """Format a score: mean ± std, the number of runs if some have no value, and the published value."""
    published, difference = score.published, score.difference
    std = math.nan if score.runs == 1 else score.std  # one run has no std
    return Cell(
        format_mean_std(score.mean, std, score.metric),
        remark=_score_remark(score),
        subtext=format_mean_std(published.mean, published.std, score.metric) if published else "",
        difference="" if difference is None else format_signed(difference),
        verdict="" if difference is None else _verdict(abs(difference)),
        is_bold=score.is_best,
        is_near_best=score.is_near_best,
        value=score.mean,
    )


def _score_remark(score: Score) -> str:
    if not score.runs:
        return "nothing to score"
    return format_count(score.runs, "run") if score.runs < score.num_runs else ""


def _verdict(distance: float) -> str:
    return "good" if distance <= 1 else "near" if distance <= 2 else "far"


def printed_rows(rows: Sequence[ScoreRow]) -> list[Row]:
    """Format rows of scores, with a remark on rows that have fewer runs than others."""
    return [
        Row(
            row.dataset,
            row.name,
            [score_cell(score) for score in row.scores],
            format_count(row.runs, "run") if row.has_fewer_runs else "",
            row.model,
        )
        for row in rows
    ]


def table_text(table: Table, bold: Callable[[str], str] = str) -> str:
    """Format a table for a terminal, as narrow as possible. ``bold`` formats bold text."""
    labels = max((len(row.line) for row in table.rows), default=0) + 4
    widths = [
        max([len(name), *(len(text) for row in table.rows for text in (row.cells[i].line, row.cells[i].second_line))])
        + 2
        for i, name in enumerate(table.columns)
    ]
    columns = zip(table.columns, widths, strict=True)
    lines = [bold(table.title), (" " * labels + "".join(f"{name:<{width}}" for name, width in columns)).rstrip()]
    for group, rows in groupby(table.rows, key=lambda row: row.group):
        lines += ["", display_name(group)] if group else []
        for row in rows:
            # Bold text contains escape codes, so it is padded by hand.
            shown = (
                (bold(cell.line) if cell.is_bold else cell.line) + " " * (width - len(cell.line))
                for cell, width in zip(row.cells, widths, strict=True)
            )
            lines.append(f"{'  ' + row.line:<{labels}}{''.join(shown)}".rstrip())
            if any(cell.subtext for cell in row.cells):
                cells = zip(row.cells, widths, strict=True)
                lines.append(" " * labels + "".join(f"{cell.second_line:<{width}}" for cell, width in cells).rstrip())
    notes = (fill(note, NOTE_COLUMNS, subsequent_indent="  ") for note in table.notes)
    return "\n".join([*lines, *([""] if table.notes else []), *notes])


def table_markdown(table: Table) -> str:
    """Format a table as Markdown."""
    has_groups = any(row.group for row in table.rows)
    header = [*([""] * (1 + has_groups)), *table.columns]
    lines = [header, ["---"] * len(header)]
    for row in table.rows:
        cells = (_markdown(cell) for cell in row.cells)
        lines.append([*([display_name(row.group)] if has_groups else []), row.line, *cells])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = table.notes if len(table.notes) < 2 else ["\n".join(f"- {note}" for note in table.notes)]
    return "\n\n".join([f"## {table.title}", body, *notes])


def _markdown(cell: Cell) -> str:
    text = f"**{cell.line}**" if cell.is_bold else cell.line
    return f"{text}<br>{cell.second_line}" if cell.subtext else text


LATEX_CHARACTERS = {
    "±": r"$\pm$",
    "²": "$^2$",
    "→": r"$\to$",
    "∞": r"$\infty$",
    "≈": r"$\approx$",
    "√": r"$\surd$",
    "−": "$-$",
    "–": "--",
    "%": r"\%",
    "_": r"\_",
    "&": r"\&",
    "#": r"\#",
}


def table_latex(table: Table) -> str:
    """Format a table as LaTeX, which needs the package booktabs."""
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
        lines += (
            [rf"\multicolumn{{{1 + len(table.columns)}}}{{l}}{{\emph{{{_latex(display_name(group))}}}}} \\"]
            if group
            else []
        )
        for row in rows:
            lines.append(_latex_row([_latex(row.line), *(_latex_cell(cell) for cell in row.cells)]))
            if any(cell.subtext for cell in row.cells):
                second_line = (
                    rf"{{\scriptsize {_latex(cell.second_line)}}}" if cell.subtext else "" for cell in row.cells
                )
                lines.append(_latex_row(["", *second_line]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell) -> str:
    return rf"\textbf{{{_latex(cell.line)}}}" if cell.is_bold else _latex(cell.line)


def _latex(text: str) -> str:
    return "".join(LATEX_CHARACTERS.get(character, character) for character in text)
