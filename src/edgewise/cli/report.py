"""edgewise report."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.app import new_command
from edgewise.cli.options import progress_bar
from edgewise.files.output import check_outputs, make_folder

if TYPE_CHECKING:
    from edgewise.paper.results import Results

REPORT_EXAMPLES = """\b
Examples:
  edgewise report results
  edgewise report results --to report --export runs.parquet
  edgewise report calibrated runs.parquet --to both
"""


app = new_command()


@app.command(short_help="Show the results of reproduce.", epilog=REPORT_EXAMPLES)
def report(
    results: Annotated[list[Path], typer.Argument(metavar="DIR", hidden=True)],  # the text says it in plainer words
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write tables, figures and the page; else to the one DIR."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all runs as one compressed .parquet table too.")
    ] = None,
) -> None:
    """Print the tables beside the published ones; write them as Markdown, LaTeX and CSV, with figures and a page.

    A DIR is the folder of a reproduce, or a .parquet table that was exported; several are reported as one.
    """
    check_outputs({"--export": export}, {str(path): path for path in results})
    if export and export.suffix != ".parquet":
        raise ValueError(f"Expected --export to end in .parquet, but got {export}.")
    first, *others = results
    if others and to is None:
        raise ValueError(f"Expected --to with {len(results)} sources, but got none. Name a folder to write to.")
    if to is not None:
        make_folder(to, "--to")
    found = show_report(first, to or (first if first.is_dir() else first.parent), others)
    if export:
        from edgewise.sweep.run_table import write_run_table

        write_run_table(export, found.runs, found.tasks, found.commands, found.failures)
        from edgewise.sweep.progress import format_count

        typer.echo(f"Wrote {format_count(len(found.runs), 'run')} to {export}.")


def show_report(source: Path, folder: Path, others: Sequence[Path] = ()) -> "Results":
    """Print the tables of a store or an exported table, perhaps with others, and write everything to a folder."""
    import matplotlib as mpl

    mpl.use("Agg")  # no screen is needed
    from edgewise.paper.report import report_text, time_line, write_report
    from edgewise.paper.results import read_sources

    results = read_sources([source, *others])
    typer.echo(report_text(results, lambda text: typer.style(text, bold=True)))
    with progress_bar("drawing figures"):
        write_report(results, folder)
    typer.echo(f"{time_line(results)}\nWrote report.html, tables.md, tables.tex, tables.csv and figures to {folder}.")
    return results
