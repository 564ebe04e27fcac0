"""edgewise study."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.app import complain, new_command
from edgewise.files.output import make_folder

if TYPE_CHECKING:
    from edgewise.paper.study import GraphKey

STUDY_EXAMPLES = """\b
Examples:
  edgewise study --out study --quick
  edgewise study --out study --seeds 10 --nodes 2000
"""


app = new_command()


@app.command(short_help="Compare calibration with the truth.", epilog=STUDY_EXAMPLES)
def study(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of study.csv; rows that are there are not redone.")],
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="How many graphs of each sort; else 3, with --quick 1.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="Nodes of each graph; else 1000, with --quick 300.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes, one core each; else one for each core.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three small graphs, to try it.")] = False,
) -> None:
    """Draw graphs whose true joints are known, and tell whether a lower calibration error means nearer to the truth."""
    from edgewise.paper.study import StudyPlan, run_study
    from edgewise.workers import LocalProcesses, available_cores

    usual_nodes, usual_seeds = (300, 1) if quick else (1000, 3)
    sizes = usual_nodes if nodes is None else nodes, usual_seeds if seeds is None else seeds
    plan = StudyPlan(*sizes, quick=quick)
    make_folder(out, "--out")
    try:
        rows = run_study(plan, out, LocalProcesses(workers or available_cores()), _tell)
    except KeyboardInterrupt:
        complain("Finished graphs are safe; start the same command again to go on.")
        raise
    import matplotlib as mpl

    mpl.use("Agg")  # no screen is needed
    from edgewise.files.output import replace_file
    from edgewise.paper.study_report import study_page, study_text, write_study_figure

    typer.echo(study_text(rows))
    write_study_figure(rows, out / "study.png")
    replace_file(out / "study.md", lambda file: file.write_text(study_page(rows), encoding="utf-8"))
    typer.echo(f"\nWrote study.csv, study.md and study.png to {out}.")


def _tell(done: int, total: int, key: "GraphKey") -> None:
    words = f"homophily {key.homophily:g}, feature noise {key.feature_noise:g}, seed {key.seed}"
    typer.echo(f"{done}/{total} {key.kind}, {words}", err=True)
