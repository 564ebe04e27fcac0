"""The command line: parse, call one function, print."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

import edgewise
from edgewise.replace_file import replace_file
from edgewise.report.output import check_outputs, write_json

# Help must come at once: what imports torch, pyarrow, rich or matplotlib is imported by the function that needs it.
if TYPE_CHECKING:
    from edgewise.experiments.attempts import Outcome
    from edgewise.experiments.plan import Plan
    from edgewise.experiments.reproduce import Progress
    from edgewise.experiments.runs import RunKey
    from edgewise.experiments.sources import Sources
    from edgewise.metrics import Evaluation
    from edgewise.report.results import Results

PROGRESS_AFTER = 1.0  # seconds; what is done sooner needs no bar
LARGEST_SEED = 2**32 - 1
SOME_RUNS_FAILED, FAILED, INTERRUPTED = 1, 2, 130


class _Commands(TyperGroup):
    """Says what went wrong in one line: exit code 2 for what can be mended, 130 for Ctrl-C."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command and leave with its exit code."""
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except typer.Abort:
            code = INTERRUPTED
        except (ValueError, OSError) as error:
            code = _complain(str(error))
        except (MemoryError, RuntimeError) as error:
            # torch has no error of its own for a lack of memory.
            if isinstance(error, RuntimeError) and "allocate" not in str(error):
                raise
            code = _complain("Expected more memory than there is. Bins of equal mass and resamples take the most.")
        except Exception as error:
            # What typer raises for a wrong option has no public class in some of its versions, but this method in all.
            if not hasattr(error, "format_message"):
                raise
            context = getattr(error, "ctx", None)
            stop = "" if (message := error.format_message()).endswith((".", "?")) else "."
            code = _complain(message + stop + (f" See '{context.command_path} --help'." if context else ""))
        if code == INTERRUPTED:
            _complain("Interrupted.")
        sys.exit(code or 0)


class _SeveralValues(TyperCommand):
    """Takes several values after --datasets and --models, by commas or by spaces."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Repeat the option before each further value."""
        out: list[str] = []
        several = ""
        for arg in args:
            if arg.startswith("-"):
                several = arg.split("=")[0] if arg.split("=")[0] in ("--datasets", "--models") else ""
            elif several and out[-1] != several:
                out.append(several)
            out.append(arg)
        return super().parse_args(context, out)


def _complain(message: str) -> int:
    typer.echo(f"edgewise: {' '.join(message.split())}", err=True)
    return FAILED


# Plain help: in 80 columns typer's boxes leave twenty for the text.
app = typer.Typer(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

EXAMPLES = """\b
Examples:
  edgewise evaluate --probs probs.npy --labels labels.npy --edges edges.npy
  edgewise datasets
  edgewise reproduce --out results --quick
"""
EVALUATE_HELP = """Score predictions of nodes, and of pairs of neighbours.

A FILE is .npy, .npz (FILE.npz:NAME picks one array of several), .csv (commas; a first line with a name in it is left
out) or .parquet; --probs also takes a posterior's .safetensors. A large .npy file is not loaded into memory.

In JSON, null stands for the score of an empty set (count 0), and for an infinite NLL where zero_probability is above 0.
"""
EVALUATE_EXAMPLES = """\b
Examples:
  edgewise evaluate --probs probs.npy --labels labels.npy --edges edges.npy
  edgewise evaluate --probs out.npz:probs --labels y.csv --edges edges.csv \\
    --mask test.npy --resamples 200 --json scores.json --plot plot.png
"""
DATASETS_EXAMPLES = """\b
Examples:
  edgewise datasets
  edgewise datasets --data-root planetoid --splits-dir published_splits
"""
REPRODUCE_EXAMPLES = """\b
Examples:
  edgewise reproduce --out results --quick
  edgewise reproduce --out results --datasets cora --models gcn gmnn --dry-run
  edgewise reproduce --out results --ray auto
"""
REPORT_EXAMPLES = """\b
Examples:
  edgewise report results
  edgewise report results --to report --export runs.parquet
"""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edgewise {edgewise.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Tell how right a node classifier's probabilities are, for nodes and for pairs of neighbours."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(help=EVALUATE_HELP, short_help="Score predictions.", epilog=EVALUATE_EXAMPLES)
def evaluate(
    probs: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Probabilities (nodes, classes), not logits; or a .safetensors posterior."),
    ],
    labels: Annotated[Path, typer.Option(metavar="FILE", help="True labels, one a node; -1 for unknown.")],
    edges: Annotated[Path, typer.Option(metavar="FILE", help="Edges (2, edges) or two columns, nodes from 0.")],
    mask: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Nodes to score, one boolean or 0/1 a node; else all.")
    ] = None,
    edge_probs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Joints (edges, classes, classes) or classes*classes columns; else products of probs."
        ),
    ] = None,
    bins: Annotated[int, typer.Option(metavar="N", min=1, help="Bins of the calibration error.")] = 15,
    binning: Annotated[Literal["width", "mass"], typer.Option(help="Bins of equal width or equal mass.")] = "width",
    closed: Annotated[Literal["right", "left"], typer.Option(help="Which limit belongs to a bin.")] = "right",
    norm: Annotated[Literal["l1", "l2", "max"], typer.Option(help="Norm of the calibration error.")] = "l1",
    edge_choice: Annotated[
        Literal["both", "any", "all"],
        typer.Option(help="Score an edge if both ends are in the mask, any is, or all."),
    ] = "both",
    same_label: Annotated[
        bool, typer.Option(help='Score "both ends have the same label" too; slow on 10^8 edges.')
    ] = True,
    resamples: Annotated[int, typer.Option(metavar="N", min=0, help="Resamples of nodes, for intervals.")] = 0,
    confidence_level: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=1, help="Confidence level of intervals.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=LARGEST_SEED, help="Seed of the resamples.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw reliability diagrams: .png, .pdf, .svg.")
    ] = None,
) -> None:
    """Read the files, score them, write what was asked for, print the table."""
    named = {"probs": probs, "labels": labels, "edges": edges, "mask": mask, "edge_probs": edge_probs}
    check_outputs({"--json": json_file, "--plot": plot}, named)
    from edgewise.data import files
    from edgewise.metrics import evaluate as score
    from edgewise.posterior import Posterior

    with _progress_bar() as progress:
        p = Posterior.load(probs) if probs.suffix.lower() == ".safetensors" else files.read_probs(probs)
        y, edge_index = files.read_labels(labels), files.read_edges(edges)
        chosen = files.read_mask(mask) if mask else None
        joints = files.read_edge_probs(edge_probs) if edge_probs else None
        with _complaints_name(probs=probs, y=labels, edge_index=edges, mask=mask, edge_probs=edge_probs):
            ev = score(
                p,
                y,
                edge_index,
                mask=chosen,
                edge_probs=joints,
                n_bins=bins,
                binning=binning,
                closed=closed,
                norm=norm,
                edges=edge_choice,
                same_label=same_label,
                n_resamples=resamples,
                confidence_level=confidence_level,
                seed=seed,
                progress=progress,
            )
    try:
        if json_file:
            intervals = {"n_resamples": resamples, "confidence_level": confidence_level, "seed": seed}
            settings = {"edges": edge_choice, **intervals}
            write_json(json_file, {"files": _as_given(named), "settings": settings, **ev.to_dict()})
        if plot:
            _draw(ev, plot)
    finally:  # a full disk must not cost the answer
        typer.echo(ev)


@app.command(short_help="Show the datasets beside the published table.", epilog=DATASETS_EXAMPLES)
def datasets(
    data_root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of Planetoid's Cora/raw/ind.cora.*; else bundled data.")
    ] = None,
    splits_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of published splits cora/*.npz; else drawn by seed.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=LARGEST_SEED, help="Seed of the splits.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the table as JSON.")] = None,
) -> None:
    """Show sizes, homophily and K indices of cora, citeseer and pubmed, with the published row beneath each."""
    check_outputs({"--json": json_file}, {})
    given = _as_given({"data_root": data_root, "splits_dir": splits_dir})
    with _progress_bar():
        from edgewise.data import dataset_statistics, load_dataset
        from edgewise.experiments.published import PUBLISHED_DATASETS
        from edgewise.experiments.sources import Sources
        from edgewise.report.datasets_table import DATASETS_FOOTER, DATASETS_HEADER, dataset_line

        sources = Sources(given["data_root"], given["splits_dir"], seed)
        lines, document = [DATASETS_HEADER], {}
        for name, published in PUBLISHED_DATASETS.items():
            data = load_dataset(name, data_root)
            ours = dataset_statistics(data, sources.splits(name, data))
            lines += ["", dataset_line(name, ours), dataset_line("  published", published)]
            document[name] = {"computed": asdict(ours), "published": asdict(published)}
    if json_file:
        settings = {"seed": seed, **given}
        write_json(json_file, {"settings": settings, "datasets": document})
    typer.echo("\n".join([*lines, "", DATASETS_FOOTER]))


@app.command(cls=_SeveralValues, short_help="Run the paper's experiments.", epilog=REPRODUCE_EXAMPLES)
def reproduce(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of results.sqlite; what is there is not done again.")
    ],
    datasets: Annotated[
        list[str] | None, typer.Option(metavar="NAME…", help="Some of cora, citeseer, pubmed; else all.")
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option(metavar="NAME…", help="Some of gcn, gat, gmnn, epfgnn; else all.")
    ] = None,
    splits: Annotated[
        int | None, typer.Option(metavar="N", help="How many random splits; else 5, with --quick 1.")
    ] = None,
    folds: Annotated[int, typer.Option(metavar="N", help="How many of a split's three folds.")] = 3,
    inits: Annotated[
        int | None, typer.Option(metavar="N", help="How many initialisations on each fold; else 5, with --quick 1.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes, one core each; else one for each core.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run as tasks of a Ray cluster: its address, auto, or local.")
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of Planetoid's Cora/raw/ind.cora.*; else bundled data.")
    ] = None,
    splits_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of published splits cora/*.npz; else drawn by seed 0.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One split and one initialisation: minutes, not hours.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell which runs there are, and the time left.")
    ] = False,
) -> None:
    """Run the experiments of the paper, or what is missing of them, and report."""
    from edgewise.experiments.local import available_cores
    from edgewise.experiments.plan import DATASETS, MODELS, Plan
    from edgewise.experiments.sources import Sources

    if ray and workers:
        raise ValueError("Expected --workers or --ray, but got both. Leave --workers out: Ray uses all its cores.")
    usual = 1 if quick else 5
    sizes = usual if splits is None else splits, folds, usual if inits is None else inits
    plan = Plan(_listed(datasets) or DATASETS, _listed(models) or MODELS, *sizes)
    given = _as_given({"data_root": data_root, "splits_dir": splits_dir})
    sources = Sources(given["data_root"], given["splits_dir"])
    count = None if ray else workers or available_cores()
    if dry_run:
        from edgewise.experiments.reproduce import planned
        from edgewise.report.live import plan_text

        typer.echo(plan_text(planned(plan, out, count)))
        return
    failures = _run(plan, out, sources, count, ray)
    typer.echo()
    _report(out, out)
    for key, error in failures.items():
        _complain(f"{key} failed: {error.strip().splitlines()[-1]}")
    if failures:
        from edgewise.report.words import counted

        runs = counted(len(failures), "run")
        _complain(f"{runs} failed; the errors are in {out / 'results.sqlite'}. Start again to try once more.")
        raise typer.Exit(SOME_RUNS_FAILED)


def _run(plan: "Plan", out: Path, sources: "Sources", workers: int | None, ray: str | None) -> "Mapping[RunKey, str]":
    """Do the missing runs, and show how far they are; give those that failed."""
    from rich.console import Console

    from edgewise.experiments.local import run_locally
    from edgewise.experiments.reproduce import Execute
    from edgewise.experiments.reproduce import reproduce as run
    from edgewise.report.live import SweepDisplay, plan_text

    execute: Execute = partial(run_locally, workers=workers or 1)
    if ray:
        from edgewise.experiments.cluster import check_address, run_on_ray

        check_address(ray)
        execute = partial(run_on_ray, address=ray)

    try:
        with ExitStack() as while_running:

            def begin(progress: "Progress") -> Callable[["Outcome"], None]:
                typer.echo(plan_text(progress) + "\n")
                return while_running.enter_context(SweepDisplay(progress, Console()).shown()).show

            return run(plan, out, sources, execute, workers, begin, f"ray {ray}" if ray else "").failures
    except KeyboardInterrupt:  # told when the display is gone, which would write over it
        _complain("Finished runs are safe; start the same command again to go on.")
        raise


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
    found = _report(results, folder)
    if export:
        from edgewise.experiments.run_table import write_run_table

        write_run_table(export, found.runs, found.tasks, found.commands, found.failures)
        typer.echo(f"Wrote {len(found.runs)} runs to {export}.")


def _report(source: Path, folder: Path) -> "Results":
    import matplotlib as mpl

    mpl.use("Agg")  # no screen is needed
    from edgewise.report.results import Results
    from edgewise.report.sweep_report import report_text, time_line, write_report

    results = Results.read(source)
    typer.echo(report_text(results, lambda text: typer.style(text, bold=True)))
    write_report(results, folder)
    typer.echo(f"{time_line(results)}\nWrote report.html, tables.md, tables.tex, tables.csv and figures to {folder}.")
    return results


def _listed(names: list[str] | None) -> tuple[str, ...]:
    return tuple(name for several in names or () for name in several.lower().split(",") if name)


def _draw(ev: "Evaluation", path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")  # no screen is needed
    figure, _ = edgewise.plot_reliability(ev)
    replace_file(path, lambda file: figure.savefig(file, format=path.suffix[1:].lower(), dpi=200, bbox_inches="tight"))


def _as_given(paths: Mapping[str, Path | None]) -> dict[str, str | None]:
    return {name: str(path) if path else None for name, path in paths.items()}


@contextmanager
def _complaints_name(**files: Path | None) -> Iterator[None]:
    """Say which file is which when something is wrong with what is in them."""
    try:
        yield
    except ValueError as error:
        named = ", ".join(f"{name} is {file}" for name, file in files.items() if file)
        raise ValueError(f"{error} ({named})") from error


@contextmanager
def _progress_bar() -> Iterator[Callable[[int, int], None] | None]:
    """Show on a terminal how far long work is; every pass over the edges starts the bar anew."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns, console = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()), Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task("preparing", total=None)

    def report(done: int, total: int) -> None:
        # After a pass nobody knows how much is left; without a total the bar moves to and fro until the next one.
        bar.tasks[0].total = total if done < total else None
        bar.update(task, description=f"scoring {total:,} edges", completed=done)

    timer = Timer(PROGRESS_AFTER, bar.start)
    timer.start()
    try:
        yield report
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()


if __name__ == "__main__":
    app()
