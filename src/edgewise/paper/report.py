"""The report of a sweep: tables, figures and an HTML page, as files and as terminal output."""

import math
from collections.abc import Callable
from pathlib import Path
from textwrap import fill

from edgewise.files.output import replace_file
from edgewise.metrics.sums import VIEWS
from edgewise.paper.comparison import tally_line
from edgewise.paper.figures import write_figures
from edgewise.paper.formatting import NO_VALUE, display_name, format_number
from edgewise.paper.gains import aims_line
from edgewise.paper.method_tables import method_tables
from edgewise.paper.page import write_results_page
from edgewise.paper.paper_tables import CALIBRATORS_TITLE, beyond_one_std_table, paper_tables, scores_csv
from edgewise.paper.readings import AS_DEFINED, AS_PUBLISHED
from edgewise.paper.results import Results
from edgewise.paper.score_rows import score_rows
from edgewise.paper.text_tables import NOTE_COLUMNS, Table, table_latex, table_markdown, table_text
from edgewise.representation import format_duration
from edgewise.sweep.progress import format_count

# Of the summary, which fits one screen.
MAX_SUMMARY_COLUMNS, MAX_SUMMARY_ROWS, MAX_SUMMARY_CELLS = 4, 6, 3


def write_report(results: Results, folder: Path) -> None:
    """Write tables, figures and the page."""
    write_tables(results, folder)
    write_results_page(results, folder / "report.html")
    write_figures(results, folder / "figures")


def write_tables(results: Results, folder: Path) -> None:
    """Write the tables as Markdown, LaTeX and CSV."""
    tables = file_tables(results)
    texts = {
        "tables.md": "\n\n".join([f"# Tables\n\n{summary(results)}", *map(table_markdown, tables)]) + "\n",
        "tables.tex": "\n\n".join(["% Needs the package booktabs.", *map(table_latex, tables)]) + "\n",
        "tables.csv": scores_csv(results),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        _write(folder / name, text)


def file_tables(results: Results) -> list[Table]:
    """Return the tables of the files: those of all methods, which are too wide for a terminal, and those of the paper.

    If there are other graphs than those of the paper, the tables of all methods come first.
    """
    of_paper = [table for table in paper_tables(results) if table.title != CALIBRATORS_TITLE]  # they are methods too
    of_methods = method_tables(results)
    return [*of_methods, *of_paper] if results.other_datasets else [*of_paper, *of_methods]


def report_text(results: Results, bold: Callable[[str], str] = str) -> str:
    """Format the tables that fit a terminal, and the summary line."""
    return "\n\n\n".join([*(table_text(table, bold) for table in paper_tables(results)), summary(results)])


def summary_text(results: Results, bold: Callable[[str], str] = str) -> str:
    """Format one screen: what was run, edge ECEs next to published ones, and the largest differences."""
    return "\n\n".join([_runs_line(results), *_edge_errors(results, bold), *_cells_text(results, bold)])


def _runs_line(results: Results) -> str:
    keys = [run.key for run in results.runs]
    if not keys:
        return "There are no runs yet."
    models, datasets = format_count(len(results.models), "model"), format_count(len(results.datasets), "dataset")
    sizes = [len({getattr(key, name) for key in keys}) for name in ("split", "fold", "init")]
    names = ("split", "fold", "initialization")
    repeats = " × ".join(format_count(size, name) for size, name in zip(sizes, names, strict=True))
    up_to = "" if len(keys) == len({key.cell for key in keys}) * math.prod(sizes) else "up to "
    return f"{format_count(len(keys), 'run')} of {models} on {datasets}, each {up_to}{repeats}."


def _edge_errors(results: Results, bold: Callable[[str], str]) -> list[str]:
    """Return a small table of edge ECEs by model and dataset; nothing without runs."""
    found: dict[str, dict[str, str]] = {}
    for reading in (AS_PUBLISHED, AS_DEFINED):  # models that are not in the paper have a row as defined only
        for row in score_rows(results, reading, "ece"):
            if reading == AS_PUBLISHED or row.name not in results.rows(AS_PUBLISHED):
                score = row.scores[VIEWS.index("edgewise")]
                ours = format_number(score.mean, "ece")
                text = f"{ours} ({format_number(score.published.mean, 'ece')})" if score.published else ours
                found.setdefault(row.name, {})[row.dataset] = text
    if not found:
        return []
    datasets, models = results.datasets[:MAX_SUMMARY_COLUMNS], list(found)[:MAX_SUMMARY_ROWS]
    lines = [["", *map(display_name, datasets)]]
    lines += [[display_name(model), *(found[model].get(name, NO_VALUE) for name in datasets)] for model in models]
    widths = [max(map(len, column)) + 3 for column in zip(*lines, strict=True)]
    shown = [
        "  " + "".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
    has_published = any("(" in text for texts in found.values() for text in texts.values())
    title = f"Edge ECE in percent{' (published value in parentheses)' if has_published else ''}"
    left_out = len(results.datasets) * len(found) - len(datasets) * len(models)
    more = [f"  {left_out} more in tables.md"] if left_out else []
    return ["\n".join([bold(title), *shown, *more])]


def _cells_text(results: Results, bold: Callable[[str], str]) -> list[str]:
    """Return the tally, and the cells that differ most from the published ones."""
    lines = "\n".join(fill(line, NOTE_COLUMNS) for line in (tally_line(results), aims_line(results))).rstrip()
    far = beyond_one_std_table(results)
    if not far.rows:
        return [lines]
    rows = [f"  {row.line:<22}{''.join(f'{cell.text:<20}' for cell in row.cells)}".rstrip() for row in far.rows]
    head = f"  {'':22}{''.join(f'{name:<20}' for name in far.columns)}".rstrip()
    title = "Largest differences, in published standard deviations"
    return [lines, "\n".join([bold(title), head, *rows[:MAX_SUMMARY_CELLS]])]


def summary(results: Results) -> str:
    """Return a line with the number of runs and of reproduced cells."""
    return f"{format_count(len(results.runs), 'run')}: {tally_line(results)}"


def time_line(results: Results) -> str:
    """Return a line with the wall-clock and computing time of the runs."""
    commands = [command for command in results.commands if command.runs]
    elapsed, computing = sum(command.seconds for command in commands), sum(run.seconds for run in results.runs)
    several = f" in {format_count(len(commands), 'command')}" if len(commands) > 1 else ""
    runs, executed = format_count(len(results.runs), "run"), sum(command.runs for command in commands)
    if executed > len(results.runs):  # sources that are reported together share some runs
        runs = f"{executed} runs ({len(results.runs)} distinct)"
    return f"{runs} took {format_duration(elapsed)}{several}; total computing time {format_duration(computing)}."


def _write(path: Path, text: str) -> None:
    replace_file(path, lambda file: file.write_text(text, encoding="utf-8"))
