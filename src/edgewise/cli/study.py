"""The command edgewise study."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.app import new_command, print_error
from edgewise.files.output import make_folder

if TYPE_CHECKING:
    from edgewise.paper.study import GraphKey

STUDY_EXAMPLES = """\b
Examples:
  edgewise study --out study --quick
  edgewise study --out study --seeds 10 --nodes 2000
"""


app = new_command()


@app.command(short_help="Compare calibration error with the distance to the truth.", epilog=STUDY_EXAMPLES)
def study(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of study.csv. Finished graphs are skipped.")],
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Number of graphs per setting. Default: 3, with --quick 1.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="Number of nodes per graph. Default: 1000, with --quick 300.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of worker processes. Default: one per core.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three small graphs.")] = False,
) -> None:
    """Compare calibration errors with the distance to the true joint distributions, on synthetic graphs."""
    from edgewise.paper.study import StudyPlan, run_study
    from edgewise.workers import LocalProcesses, available_cores

    default_nodes, default_seeds = (300, 1) if quick else (1000, 3)
    sizes = default_nodes if nodes is None else nodes, default_seeds if seeds is None else seeds
    plan = StudyPlan(*sizes, quick=quick)
    make_folder(out, "--out")
    try:
        rows = run_study(plan, out, LocalProcesses(workers or available_cores()), _print_progress)
    except KeyboardInterrupt:
        print_error("Finished graphs are saved. Run the same command again to continue.")
        raise
    import matplotlib as mpl

    mpl.use("Agg")  # works without a display
    from edgewise.files.output import replace_file
    from edgewise.paper.study_report import study_page, study_text, write_study_figure

    typer.echo(study_text(rows))
    write_study_figure(rows, out / "study.png")
    replace_file(out / "study.md", lambda file: file.write_text(study_page(rows), encoding="utf-8"))
    typer.echo(f"\nWrote study.csv, study.md and study.png to {out}.")


def _print_progress(done: int, total: int, key: "GraphKey") -> None:
    settings = f"homophily {key.homophily:g}, feature noise {key.feature_noise:g}, seed {key.seed}"
    typer.echo(f"{done}/{total} {key.kind}, {settings}", err=True)
