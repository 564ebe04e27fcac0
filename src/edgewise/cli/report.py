"""edgewise report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.app import app
from edgewise.report.output import check_outputs

if TYPE_CHECKING:
    from edgewise.report.results import Results

REPORT_EXAMPLES = """\b
Examples:
  edgewise report results
  edgewise report results --to report --export runs.parquet
"""


@app.command(short_help="Show the results of reproduce.", epilog=REPORT_EXAMPLES)
def report(
    results: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of reproduce, or a table that was exported.")],
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write tables, figures and the page; else to DIR.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all runs as one compressed .parquet table too.")
    ] = None,
) -> None:
    """Print the tables beside the published ones; write them as Markdown, LaTeX and CSV, with figures and a page."""
    check_outputs({"--export": export}, {"results": results})
    if export and export.suffix != ".parquet":
        raise ValueError(f"Expected --export to end in .parquet, but got {export}.")
    folder = to or (results if results.is_dir() else results.parent)
    found = show_report(results, folder)
    if export:
        from edgewise.experiments.run_table import write_run_table

        write_run_table(export, found.runs, found.tasks, found.commands, found.failures)
        typer.echo(f"Wrote {len(found.runs)} runs to {export}.")


def show_report(source: Path, folder: Path) -> "Results":
    """Print the tables of a store or an exported table, and write everything to a folder."""
    import matplotlib as mpl

    mpl.use("Agg")  # no screen is needed
    from edgewise.report.results import Results
    from edgewise.report.sweep_report import report_text, time_line, write_report

    results = Results.read(source)
    typer.echo(report_text(results, lambda text: typer.style(text, bold=True)))
    write_report(results, folder)
    typer.echo(f"{time_line(results)}\nWrote report.html, tables.md, tables.tex, tables.csv and figures to {folder}.")
    return results
