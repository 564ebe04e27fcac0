"""The command edgewise report."""

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


@app.command(short_help="Report the results of reproduce.", epilog=REPORT_EXAMPLES)
def report(
    results: Annotated[list[Path], typer.Argument(metavar="DIR", hidden=True)],  # described in the docstring
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of tables, figures and the page. Default: DIR, if a single one is passed.",
        ),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write all runs to a compressed .parquet table.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print all tables, not only a summary.")] = False,
) -> None:
    """Print a summary, and write all tables as Markdown, LaTeX and CSV, with figures and a page.

    A DIR is the --out folder of reproduce, or an exported .parquet table. Several are reported together.
    """
    check_outputs({"--export": export}, {str(path): path for path in results})
    if export and export.suffix != ".parquet":
        raise ValueError(f"Expected --export to end in .parquet, but got {export}.")
    first, *others = results
    if others and to is None:
        raise ValueError(f"Expected --to with {len(results)} sources, but got none. Pass an output folder.")
    if to is not None:
        make_folder(to, "--to")
    folder = to or (first if first.is_dir() else first.parent)
    reported = show_report(first, folder, others, verbose=verbose)
    if export:
        from edgewise.sweep.run_table import write_run_table

        write_run_table(export, reported.runs, reported.tasks, reported.commands, reported.failures)
        from edgewise.sweep.progress import format_count

        typer.echo(f"Wrote {format_count(len(reported.runs), 'run')} to {export}.")


def show_report(source: Path, folder: Path, others: Sequence[Path] = (), *, verbose: bool = False) -> "Results":
    """Print a summary or all tables of one or more stores or exported tables, and write the report to a folder."""
    import matplotlib as mpl

    mpl.use("Agg")  # works without a display
    from edgewise.paper.report import report_text, summary_text, time_line, write_report
    from edgewise.paper.results import read_sources

    results = read_sources([source, *others])
    text = report_text if verbose else summary_text
    typer.echo(text(results, lambda part: typer.style(part, bold=True)))
    with progress_bar("drawing figures"):
        write_report(results, folder)
    typer.echo(f"\n{time_line(results)}\nWrote report.html, tables.md, tables.tex, tables.csv and figures to {folder}.")
    if not verbose:
        typer.echo("The page report.html shows all results; --verbose prints all tables.")
    return results
