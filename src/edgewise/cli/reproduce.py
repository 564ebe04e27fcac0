"""edgewise reproduce."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.app import SOME_RUNS_FAILED, complain, new_command
from edgewise.cli.options import SeveralValues, as_given, completes, listed, names_in
from edgewise.cli.report import show_report
from edgewise.files.output import make_folder
from edgewise.paper.readings import CALIBRATED_MODELS, MODELS

if TYPE_CHECKING:
    from edgewise.sweep.plan import Plan
    from edgewise.sweep.progress import Progress
    from edgewise.sweep.runs import Run, RunKey
    from edgewise.sweep.sources import Sources
    from edgewise.workers import JobOutcome, Workers

CALIBRATORS = names_in("calibration")
OTHER_MODELS = tuple(name for name in names_in("models") if name not in MODELS)
REPRODUCE_EXAMPLES = """\b
Examples:
  edgewise reproduce --out results --quick
  edgewise reproduce --out results --datasets cora --models gcn gmnn --dry-run
  edgewise reproduce --out calibrated --models gcn gat --calibrators all --fitted models
  edgewise reproduce --out heterophilous --datasets texas synthetic-0.1 --data-root data --quick
  edgewise reproduce --out results --ray auto
"""


def _known_datasets() -> Sequence[str]:
    from edgewise.data.datasets import DATASET_NAMES

    return DATASET_NAMES


app = new_command()


@app.command(cls=SeveralValues, short_help="Run the paper's experiments.", epilog=REPRODUCE_EXAMPLES)
def reproduce(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of results.sqlite; what is there is not done again.")
    ],
    datasets: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME…",
            help="Some of cora, citeseer, pubmed (else these three); with --data-root texas, wisconsin, cornell, "
            "actor, chameleon, squirrel, roman-empire, amazon-ratings, minesweeper, tolokers, questions; "
            "synthetic-H for a homophily H, such as synthetic-0.3.",
            autocompletion=completes(_known_datasets),
        ),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME…",
            help=f"Some of {', '.join(MODELS)} (else these four), {', '.join(OTHER_MODELS)}.",
            autocompletion=completes(lambda: (*MODELS, *OTHER_MODELS)),
        ),
    ] = None,
    calibrators: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME…",
            help=f"Calibrate {' and '.join(CALIBRATED_MODELS)} by {', '.join(CALIBRATORS)}, or all.",
            autocompletion=completes(lambda: (*CALIBRATORS, "all")),
        ),
    ] = None,
    splits: Annotated[
        int | None, typer.Option(metavar="N", help="How many random splits; else 5, with --quick 1.")
    ] = None,
    folds: Annotated[int, typer.Option(metavar="N", help="How many of a split's three folds.")] = 3,
    inits: Annotated[
        int | None, typer.Option(metavar="N", help="How many initializations on each fold; else 5, with --quick 1.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes, one core each; else one for each core.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run as tasks of a Ray cluster: its address, auto, or local.")
    ] = None,
    data_root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of raw files as PyG keeps them (Cora/raw/ind.cora.*, texas/raw/*, …), which downloads those "
            "that are missing; else bundled data.",
        ),
    ] = None,
    splits_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of published splits cora/*.npz; else drawn by seed 0.")
    ] = None,
    fitted: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep trained models there, and train none that is: to calibrate later."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One split and one initialization: minutes, not hours.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell which runs there are, and the time left.")
    ] = False,
) -> None:
    """Run the experiments of the paper, or what is missing of them, and report."""
    from edgewise.paper.published import DATASETS
    from edgewise.paper.recipes import paper_plan
    from edgewise.sweep.sources import Sources
    from edgewise.workers import LocalProcesses, RayCluster, available_cores

    if ray and workers:
        raise ValueError("Expected --workers or --ray, but got both. Leave --workers out: Ray uses all its cores.")
    if ray and fitted:
        raise ValueError("Expected --fitted or --ray, but got both. Leave --fitted out: nodes of Ray share no folder.")
    usual = 1 if quick else 5
    sizes = usual if splits is None else splits, folds, usual if inits is None else inits
    plan = paper_plan(listed(datasets) or DATASETS, listed(models) or MODELS, *sizes, listed(calibrators))
    given = as_given({"data_root": data_root, "splits_dir": splits_dir})
    sources = Sources(given["data_root"], given["splits_dir"])
    pool = RayCluster(ray) if ray else LocalProcesses(workers or available_cores())
    if dry_run:
        from edgewise.sweep.progress import plan_text
        from edgewise.sweep.run import read_progress

        typer.echo(plan_text(read_progress(plan, out, pool.count)))
        return
    if fitted is not None:
        make_folder(fitted, "--fitted")
    if isinstance(pool, RayCluster):
        pool.check_address()
    failures = _run(plan, out, sources, pool, fitted)
    typer.echo()
    show_report(out, out)
    for key, error in failures.items():
        complain(f"{key} failed: {error.strip().splitlines()[-1]}")
    if failures:
        from edgewise.sweep.progress import format_count

        runs = format_count(len(failures), "run")
        complain(f"{runs} failed; the errors are in {out / 'results.sqlite'}. Start again to try once more.")
        raise typer.Exit(SOME_RUNS_FAILED)


def _run(
    plan: "Plan", out: Path, sources: "Sources", workers: "Workers", fitted: Path | None
) -> "Mapping[RunKey, str]":
    """Do the missing runs, and show how far they are; give those that failed."""
    from rich.console import Console

    from edgewise.sweep.progress import SweepDisplay, plan_text
    from edgewise.sweep.run import run_sweep

    try:
        with ExitStack() as while_running:

            def begin(progress: "Progress") -> Callable[["JobOutcome[RunKey, Run]"], None]:
                typer.echo(plan_text(progress) + "\n")
                return while_running.enter_context(SweepDisplay(progress, Console()).shown()).show

            return run_sweep(plan, out, sources, workers, begin, fitted).failures
    except KeyboardInterrupt:  # told when the display is gone, which would write over it
        complain("Finished runs are safe; start the same command again to go on.")
        raise
