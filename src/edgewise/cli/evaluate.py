"""The command edgewise evaluate."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import edgewise
from edgewise.cli.app import new_command
from edgewise.cli.options import (
    FILES_HELP,
    LABELS_HELP,
    NODES_HELP,
    ClassesOption,
    IdsOption,
    LogitsOption,
    MultipleValues,
    NodeFiles,
    NormalizeOption,
    complete_from,
    convergence_warnings,
    name_files_in_errors,
    paths_as_text,
    progress_bar,
    split_names,
)
from edgewise.cli.table_options import (
    TABLES_HELP,
    ColumnsOption,
    DryRunOption,
    ProbsOrTableOption,
    RayOption,
    SkipUnknownOption,
    check_only_options,
    find_table,
    read_class_names,
    split_columns,
    table_progress,
)
from edgewise.files.output import check_outputs, replace_file, write_json

if TYPE_CHECKING:
    from edgewise.metrics import Evaluation
    from edgewise.metrics.evaluation import Scored

EVALUATE_HELP = f"""Score predictions of nodes and of pairs of neighbors. Without --edges, only nodes are scored.

{FILES_HELP}
{TABLES_HELP}
In JSON, null means that a score is undefined because its set is empty (count 0), or that the NLL is infinite
(zero_probability above 0).
"""
EVALUATE_EXAMPLES = """\b
Examples:
  edgewise evaluate --probs probs.npy --labels labels.npy --edges edges.npy
  edgewise evaluate --probs out.npz:probs --labels y.csv --edges edges.csv \\
    --mask test.npy --resamples 200 --json scores.json --plot plot.png
  edgewise evaluate --logits logits.pt --labels labels.csv --edges links.tsv \\
    --classes classes.txt --ids ids.txt
  edgewise evaluate --probs probs.npy --labels labels.npy --edges edges.npy \\
    --mask test.npy --html report.html --title "GCN on Cora"
  edgewise evaluate --probs probs.npy --labels labels.npy --edges edges.npy \\
    --decompose --smooth --classwise
  edgewise evaluate --probs posterior.safetensors --labels labels.npy \\
    --edges edges.npy --predictions most_likely_labels.npy
  edgewise evaluate --probs probs.npy --labels labels.npy --edges edges.npy \\
    --by degree train_distance --train train.npy --groups region.csv
  edgewise evaluate --probs s3://bucket/predictions --labels labels.parquet \\
    --edges 'edges/part-*.parquet' --columns src=from dst=to --work unfinished
"""

# Options that tables have as well as arrays, and what to do instead of some others.
TABLE_NAMES = ("probs", "labels", "edges", "mask")
WITH_TABLES = (
    *(*TABLE_NAMES, "normalize", "classes", "bins", "closed", "norm", "edge_choice", "same_label"),
    *("json_file", "plot", "html", "title"),
)
INSTEAD_WITH_TABLES = {
    "logits": "Save softmax of the logits, and pass it as --probs.",
    "ids": "Omit --ids: tables have a column of ids.",
    "binning": "Omit --binning: bins of equal mass need all edges in memory.",
}


def _traits() -> tuple[str, ...]:
    from edgewise.metrics.node_groups import TRAITS

    return TRAITS


app = new_command()


@app.command(cls=MultipleValues, help=EVALUATE_HELP, short_help="Score predictions.", epilog=EVALUATE_EXAMPLES)
def evaluate(
    context: typer.Context,
    *,
    probs: ProbsOrTableOption = None,
    logits: LogitsOption = None,
    normalize: NormalizeOption = False,
    labels: Annotated[str, typer.Option(metavar="FILE", help=f"{LABELS_HELP} Or a TABLE.")],
    edges: Annotated[
        str | None, typer.Option(metavar="FILE", help="Edges (2, edges) or two columns, or a TABLE. Default: none.")
    ] = None,
    mask: Annotated[
        str | None, typer.Option(metavar="FILE", help=f"Nodes to score: {NODES_HELP}, or a TABLE. Default: all.")
    ] = None,
    ids: IdsOption = None,
    classes: ClassesOption = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Predicted labels, as in --labels. Default: the most probable label of each node."
        ),
    ] = None,
    edge_probs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Joint distributions (edges, classes, classes) or classes*classes columns. "
            "Default: those of --probs, or products.",
        ),
    ] = None,
    bins: Annotated[int, typer.Option(metavar="N", min=1, help="Number of bins of the calibration error.")] = 15,
    binning: Annotated[Literal["width", "mass"], typer.Option(help="Bins of equal width or equal mass.")] = "width",
    closed: Annotated[Literal["right", "left"], typer.Option(help="Closed end of a bin.")] = "right",
    norm: Annotated[Literal["l1", "l2", "max"], typer.Option(help="Norm of the calibration error.")] = "l1",
    edge_choice: Annotated[
        Literal["both", "any", "all"],
        typer.Option(help="Score edges with both ends in the mask, any end in it, or all edges."),
    ] = "both",
    same_label: Annotated[
        bool | None, typer.Option(help='Also score the event "same label". Default: not with tables, where it is slow.')
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME…",
            help="Also score groups by predicted_class, degree, confidence, train_distance, true_class, homophily. "
            "The last two depend on the true labels.",
            autocompletion=complete_from(_traits),
        ),
    ] = None,
    groups: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE…", help="Also score groups: an integer or text per node; -1 or empty for none."),
    ] = None,
    train: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Training nodes, for --by train_distance: {NODES_HELP}.")
    ] = None,
    selective: Annotated[
        bool, typer.Option("--selective", help="Also compute risk-coverage curves and their area (AURC).")
    ] = False,
    decompose: Annotated[
        bool,
        typer.Option("--decompose", help="Also split Brier scores into miscalibration, discrimination, uncertainty."),
    ] = False,
    smooth: Annotated[bool, typer.Option("--smooth", help="Also compute the smooth ECE, which has no bins.")] = False,
    classwise: Annotated[
        bool, typer.Option("--classwise", help="Also compute the calibration error of each class.")
    ] = False,
    resamples: Annotated[
        int, typer.Option(metavar="N", min=0, help="Bootstrap resamples of nodes, for intervals, such as 200.")
    ] = 0,
    chance: Annotated[
        int, typer.Option(metavar="N", min=0, help="Labelings drawn from the predictions, for p-values, such as 200.")
    ] = 0,
    confidence_level: Annotated[
        float, typer.Option(metavar="FRACTION", min=0, max=1, help="Confidence level of intervals.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of resamples and drawn labelings.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all scores as JSON.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plot reliability diagrams: .png, .pdf, .svg.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page: verdict, scores, diagrams, what to do next.")
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the page, such as the model.")] = None,
    columns: ColumnsOption = None,
    listed: Annotated[
        Literal["check", "once", "both"],
        typer.Option(
            help="How tables list edges: find out, once (each row is an edge), or both (each edge in both directions)."
        ),
    ] = "check",
    skip_unknown: SkipUnknownOption = False,
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for sums of finished parts of tables, to continue a stopped run."),
    ] = None,
    ray: RayOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Read the files, score the predictions, write the requested outputs, and print the table."""
    outputs = Outputs(json_file, plot, html, title, columns)
    if table := find_table(context, *TABLE_NAMES):
        check_only_options(context, table, WITH_TABLES, INSTEAD_WITH_TABLES)
        if probs is None:
            raise ValueError("Expected --probs with tables, but got none. Pass the predictions.")
        outputs.check({"classes": classes})
        from edgewise.tables.table_evaluation import plan_tables

        plan = plan_tables(
            probs,
            labels,
            edges,
            mask=mask,
            columns=split_columns(columns),
            class_names=read_class_names(classes),
            normalize=normalize,
            n_bins=bins,
            norm=norm,
            closed=closed,
            edge_choice=edge_choice,
            same_label=bool(same_label),
            listed=listed,
            skip_unknown=skip_unknown,
        )
        if dry_run:
            typer.echo(plan.text())
            return
        with table_progress(work) as progress:
            ev = plan.run(work, ray, progress)
        places = {"probs": probs, "labels": labels, "edges": edges, "mask": mask}
        settings: dict[str, object] = {"edge_choice": edge_choice, "listed": listed, "columns": columns or []}
        settings |= {"normalize": True} if normalize else {}
        try:
            outputs.write(ev, places, "tables", settings, {"notes": ev.settings.notes}, classes)
        finally:  # print the result even if writing failed
            typer.echo(str(ev))
        return
    paths = {"probs": probs, "labels": labels, "edges": edges, "mask": mask}
    files = {name: Path(path) if path else None for name, path in paths.items()} | {"edge_probs": edge_probs}
    optional = {"logits": logits, "ids": ids, "classes": classes, "predictions": predictions}
    group_files = _name_groups(groups or [])
    optional |= {"train": train, **{f"groups {name}": file for name, file in group_files.items()}}
    files |= {name: file for name, file in optional.items() if file}
    outputs.check(files)
    nodes = NodeFiles(files["probs"], logits, normalize, ids, classes)
    nodes.check()
    if edge_probs and edges is None:
        raise ValueError("Expected --edges with --edge-probs, but got none. Add the edges of the joints.")
    if selective and (edge_probs or edge_choice != "both"):
        raise ValueError(
            "Expected --selective without --edge-probs and with --edge-choice both, but got --edge-probs or another "
            "--edge-choice. Omit --selective, or pass a .safetensors posterior with joint distributions as "
            "--probs."
        )
    if selective and predictions:
        raise ValueError(
            "Expected --selective without --predictions, because its curves are about the most probable labels, but "
            "got both. Omit one of them."
        )
    from edgewise.files.inputs import read_edge_probs
    from edgewise.metrics import evaluate as score

    with progress_bar() as progress:
        belief, y = nodes.belief, nodes.labels(Path(labels))
        edge_index = nodes.edges(Path(edges)) if edges else None
        node_mask = nodes.mask(Path(mask)) if mask else None
        joints = read_edge_probs(edge_probs) if edge_probs else None
        predicted = nodes.labels(predictions) if predictions else None
        traits = split_names(by)
        named = {name: files[name] for name in ("mask", "edge_probs")} | {"predictions": predictions, "train": train}
        with name_files_in_errors(probs=nodes.source, y=files["labels"], edge_index=files["edges"], **named):
            ev = score(
                belief,
                y,
                edge_index,
                mask=node_mask,
                edge_probs=joints,
                predictions=predicted,
                n_bins=bins,
                binning=binning,
                closed=closed,
                norm=norm,
                edge_choice=edge_choice,
                same_label=same_label is not False,
                groups={name: nodes.groups(file) for name, file in group_files.items()},
                by=traits,
                train=nodes.mask(train) if train else None,
                class_names=nodes.text_class_names
                if classwise or {"predicted_class", "true_class"} & set(traits)
                else None,
                decompose=decompose,
                smooth=smooth,
                classwise=classwise,
                n_resamples=resamples,
                chance=chance,
                confidence_level=confidence_level,
                seed=seed,
                progress=progress,
            )
        curves = edgewise.selective(belief, y, edge_index, mask=node_mask) if selective else None
    convergence = getattr(belief, "convergence", None)
    options: dict[str, object] = {
        "edge_choice": edge_choice,
        "n_resamples": resamples,
        "confidence_level": confidence_level,
        "seed": seed,
        "chance": chance,
        **({"normalize": True} if normalize else {}),
    }
    extra: dict[str, object] = {"selective": curves.to_dict()} if curves else {}
    extra |= {"convergence": asdict(convergence)} if convergence is not None else {}
    # The calibrated predictions have no header, so commands name the table whose header has the classes.
    classes = classes or (nodes.source if html and nodes.header_names else None)
    try:
        outputs.write(ev, paths_as_text(files), nodes.scored, options, extra, classes)
    finally:  # print the result even if writing failed
        parts = [str(ev), *([str(curves)] if curves else []), *convergence_warnings(belief)]
        typer.echo("\n\n".join(parts))


@dataclass(frozen=True)
class Outputs:
    """Files to write besides the printed table."""

    json_file: Path | None
    plot: Path | None
    html: Path | None
    title: str | None
    columns: list[str] | None  # of tables, for the commands of the page

    def check(self, files: Mapping[str, Path | None]) -> None:
        """Raise ValueError if a file cannot be written."""
        check_outputs({"--json": self.json_file, "--plot": self.plot, "--html": self.html}, files)

    def write(
        self,
        ev: "Evaluation",
        files: Mapping[str, str | None],
        scored: "Scored",
        settings: Mapping[str, object],
        extra: Mapping[str, object],
        classes: Path | None,
    ) -> None:
        """Write all results as JSON, the diagrams, and the page, as far as they were asked for."""
        if self.json_file:
            write_json(self.json_file, {"files": files, "settings": settings, **ev.to_dict(), **extra})
        if self.plot:
            _draw(ev, self.plot)
        if self.html:
            from edgewise.pages.evaluation_page import write_evaluation_page
            from edgewise.pages.next_steps import Inputs

            named = {**files, "classes": str(classes) if classes else None}
            columns = tuple(self.columns or ())
            inputs = Inputs(named, scored, bool(settings.get("normalize")), "selective" in extra, columns)
            write_evaluation_page(ev, self.html, self.title, inputs)


def _name_groups(files: list[Path]) -> dict[str, Path]:
    """Name groupings by their files, or by the array that is selected in a file."""
    named = {file.name.partition(":")[2] or file.stem: file for file in files}
    if len(named) < len(files):
        raise ValueError(
            f"Expected files of groups with different names, but got {', '.join(map(str, files))}. Rename one."
        )
    return named


def _draw(ev: "Evaluation", path: Path) -> None:
    import matplotlib as mpl

    from edgewise.metrics import VIEWS

    mpl.use("Agg")  # works without a display
    views = VIEWS if ev.same_label is None else (*VIEWS, "same_label")
    figure, _ = edgewise.plot_reliability(ev, views=views)
    replace_file(path, lambda file: figure.savefig(file, format=path.suffix[1:].lower(), dpi=200, bbox_inches="tight"))
