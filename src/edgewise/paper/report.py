"""The report of a sweep: tables, figures and an HTML page, as files and as terminal output."""

from collections.abc import Callable
from pathlib import Path

from edgewise.files.output import replace_file
from edgewise.paper.comparison import tally_line
from edgewise.paper.figures import write_figures
from edgewise.paper.page import write_results_page
from edgewise.paper.paper_tables import paper_tables, scores_csv
from edgewise.paper.results import Results
from edgewise.paper.text_tables import table_latex, table_markdown, table_text
from edgewise.sweep.progress import format_count, format_duration

FILE_ONLY_TABLE = "All predictions"  # too wide for a terminal


def write_report(results: Results, folder: Path) -> None:
    """Write tables, figures and the page."""
    write_tables(results, folder)
    write_results_page(results, folder / "report.html")
    write_figures(results, folder / "figures")


def write_tables(results: Results, folder: Path) -> None:
    """Write the tables as Markdown, LaTeX and CSV."""
    tables = paper_tables(results)
    texts = {
        "tables.md": "\n\n".join([f"# Tables\n\n{summary(results)}", *map(table_markdown, tables)]) + "\n",
        "tables.tex": "\n\n".join(["% Needs the package booktabs.", *map(table_latex, tables)]) + "\n",
        "tables.csv": scores_csv(results),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        _write(folder / name, text)


def report_text(results: Results, bold: Callable[[str], str] = str) -> str:
    """Format tables and summary for a terminal."""
    tables = [table for table in paper_tables(results) if table.title != FILE_ONLY_TABLE]
    return "\n\n\n".join([*(table_text(table, bold) for table in tables), summary(results)])


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
