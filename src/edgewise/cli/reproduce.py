"""The command edgewise reproduce."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.app import SOME_RUNS_FAILED, new_command, print_error
from edgewise.cli.options import MultipleValues, complete_from, is_place, names_in, paths_as_text, split_names
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
  edgewise reproduce --out own --models gcn my_models.py:GraphSAGE --datasets cora --quick
  edgewise reproduce --out heterophilous --datasets texas synthetic-0.1 --data-root data --quick
  edgewise reproduce --out results --ray auto
"""


def _known_datasets() -> Sequence[str]:
    from edgewise.data.datasets import DATASET_NAMES

    return DATASET_NAMES


app = new_command()


@app.command(cls=MultipleValues, short_help="Run the paper's experiments.", epilog=REPRODUCE_EXAMPLES)
def reproduce(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of results.sqlite. Runs that are finished there are skipped.")
    ],
    datasets: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME…",
            help="Default: cora, citeseer, pubmed. With --data-root also computers, photo, cs, physics, dblp, cora-ml, "
            "cora-full, citeseer-full, pubmed-full, texas, wisconsin, cornell, actor, chameleon, squirrel, "
            "roman-empire, amazon-ratings, minesweeper, tolokers, questions. synthetic-H has homophily H, such as "
            "synthetic-0.3.",
            autocompletion=complete_from(_known_datasets),
        ),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME…",
            help=f"Default: {', '.join(MODELS)}. Also {', '.join(OTHER_MODELS)}, or FILE.py:NAME, a module class, a "
            "function that makes a module, or a model, in a Python file of your own, which is executed.",
            autocompletion=complete_from(lambda: (*MODELS, *OTHER_MODELS)),
        ),
    ] = None,
    calibrators: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME…",
            help=f"Calibrate {', '.join(CALIBRATED_MODELS)} and those of your own models that have logits with "
            f"{', '.join(CALIBRATORS)}, or all.",
            autocompletion=complete_from(lambda: (*CALIBRATORS, "all")),
        ),
    ] = None,
    splits: Annotated[
        int | None, typer.Option(metavar="N", help="Number of random splits. Default: 5, with --quick 1.")
    ] = None,
    folds: Annotated[int, typer.Option(metavar="N", help="Number of folds per split, at most 3.")] = 3,
    inits: Annotated[
        int | None, typer.Option(metavar="N", help="Number of initializations per fold. Default: 5, with --quick 1.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of worker processes. Default: one per core.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on a Ray cluster: its address, auto, or local.")
    ] = None,
    data_root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of raw files in the layout of PyG (Cora/raw/ind.cora.*, texas/raw/*, …; or, with the class "
            "of PyG, Amazon/Photo/raw/*). Missing files are downloaded. Default: bundled data.",
        ),
    ] = None,
    splits_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with a folder of published splits for each dataset, such as Cora/5_3f_85/*.npz. Default: "
            "random, seed 0.",
        ),
    ] = None,
    fitted: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to save fitted models, and to load them from instead of training."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One split and one initialization. Takes minutes instead of hours.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the runs, their splits and the time.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print all tables, not only a summary.")] = False,
) -> None:
    """Run the experiments of the paper that are not finished yet, and report all results."""
    from edgewise.paper.published import DATASETS
    from edgewise.paper.recipes import paper_plan
    from edgewise.sweep.own_models import read_own_models
    from edgewise.sweep.sources import Sources
    from edgewise.workers import LocalProcesses, RayCluster, available_cores

    if ray and workers:
        raise ValueError("Expected --workers or --ray, but got both. Omit --workers: Ray uses all its cores.")
    if ray and fitted:
        raise ValueError("Expected --fitted or --ray, but got both. Omit --fitted: nodes of a cluster share no folder.")
    default = 1 if quick else 5
    sizes = default if splits is None else splits, folds, default if inits is None else inits
    model_names = _split_models(models) or MODELS
    own_models = read_own_models(filter(is_place, model_names))
    plan = paper_plan(
        split_names(datasets) or DATASETS,
        [own_models.get(name, name) for name in model_names],
        *sizes,
        split_names(calibrators),
    )
    folders = paths_as_text({"data_root": data_root, "splits_dir": splits_dir})
    sources = Sources(folders["data_root"], folders["splits_dir"])
    splits_text = sources.describe_splits(plan.datasets)
    pool = RayCluster(ray) if ray else LocalProcesses(workers or available_cores())
    if dry_run:
        from edgewise.sweep.progress import plan_text
        from edgewise.sweep.run import read_progress

        typer.echo(f"{plan_text(read_progress(plan, out, pool.count))}\n\n{splits_text}")
        return
    if fitted is not None:
        make_folder(fitted, "--fitted")
    if isinstance(pool, RayCluster):
        pool.check_address()
    failures = _run(plan, out, sources, splits_text, pool, fitted)
    typer.echo()
    show_report(out, out, verbose=verbose)
    for key, error in failures.items():
        print_error(f"{key} failed: {error.strip().splitlines()[-1]}")
    if failures:
        from edgewise.sweep.progress import format_count

        runs = format_count(len(failures), "run")
        print_error(f"{runs} failed. The errors are in {out / 'results.sqlite'}. Run the command again to retry.")
        raise typer.Exit(SOME_RUNS_FAILED)


def _split_models(values: list[str] | None) -> tuple[str, ...]:
    """Split names of models at commas and spaces, unless they belong to the path of a file."""
    split = ([value] if Path(value.rpartition(":")[0]).is_file() else split_names([value]) for value in values or ())
    return tuple(name for names in split for name in names)


def _run(
    plan: "Plan", out: Path, sources: "Sources", splits_text: str, workers: "Workers", fitted: Path | None
) -> "Mapping[RunKey, str]":
    """Run what is missing and display the progress. Return the errors of failed runs."""
    from rich.console import Console

    from edgewise.sweep.progress import SweepDisplay, plan_text
    from edgewise.sweep.run import run_sweep

    try:
        with ExitStack() as stack:

            def begin(progress: "Progress") -> Callable[["JobOutcome[RunKey, Run]"], None]:
                typer.echo(f"{plan_text(progress)}\n\n{splits_text}\n")
                return stack.enter_context(SweepDisplay(progress, Console()).shown()).show

            return run_sweep(plan, out, sources, workers, begin, fitted).failures
    except KeyboardInterrupt:  # printed after the live display has ended, which would overwrite it
        print_error("Finished runs are saved. Run the same command again to continue.")
        raise
