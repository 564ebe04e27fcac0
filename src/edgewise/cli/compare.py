"""The command edgewise compare."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from edgewise.cli.app import new_command, replace_advice
from edgewise.cli.options import (
    FILES_HELP,
    LABELS_HELP,
    NODES_HELP,
    ClassesOption,
    IdsOption,
    NodeFiles,
    NormalizeOption,
    convergence_warnings,
    name_files_in_errors,
    paths_as_text,
    progress_bar,
)
from edgewise.files.output import check_outputs, replace_file, write_json

if TYPE_CHECKING:
    from edgewise.metrics import Comparison

COMPARE_HELP = f"""Compare the scores of two or more models on the same nodes and edges.

A MODEL is a file of predictions like --probs of evaluate, or NAME=FILE. By default its name is that of the file. The
first one is the reference. Differences of all scores get confidence intervals from resampled nodes.

{FILES_HELP.replace("--probs also reads", "A MODEL may also be").replace("--probs", "a MODEL")}"""
COMPARE_EXAMPLES = """\b
Examples:
  edgewise compare gcn.npy gat.npy --labels labels.npy --edges edges.npy --mask test.npy
  edgewise compare gcn=a/probs.csv structured=b/calibrated.safetensors --labels y.csv \\
    --edges edges.csv --json differences.json --html differences.html
"""
# Here --logits is a flag. In other commands it names a file.
FLAG_ADVICE = {
    "For logits pass --logits instead of --probs.": "For logits add --logits.",
    "Pass --probs instead of --logits.": "Omit --logits.",
    "pass it as --probs": "omit --logits",
}

app = new_command()


@app.command(help=COMPARE_HELP, short_help="Compare the scores of models.", epilog=COMPARE_EXAMPLES)
def compare(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", hidden=True)],  # described in the help
    *,
    labels: Annotated[Path, typer.Option(metavar="FILE", help=LABELS_HELP)],
    edges: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Edges (2, edges) or two columns. Default: none.")
    ] = None,
    mask: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Nodes to score: {NODES_HELP}. Default: all.")
    ] = None,
    logits: Annotated[bool, typer.Option("--logits", help="Files of numbers hold logits, not probabilities.")] = False,
    normalize: NormalizeOption = False,
    ids: IdsOption = None,
    classes: ClassesOption = None,
    bins: Annotated[int, typer.Option(metavar="N", min=1, help="Number of bins of the calibration error.")] = 15,
    binning: Annotated[Literal["width", "mass"], typer.Option(help="Bins of equal width or equal mass.")] = "width",
    closed: Annotated[Literal["right", "left"], typer.Option(help="Closed end of a bin.")] = "right",
    norm: Annotated[Literal["l1", "l2", "max"], typer.Option(help="Norm of the calibration error.")] = "l1",
    edge_choice: Annotated[
        Literal["both", "any", "all"],
        typer.Option(help="Score edges with both ends in the mask, any end in it, or all edges."),
    ] = "both",
    same_label: Annotated[bool, typer.Option(help='Also compare the event "same label".')] = True,
    resamples: Annotated[int, typer.Option(metavar="N", min=1, help="Resamples of nodes, for intervals.")] = 1000,
    confidence_level: Annotated[
        float, typer.Option(metavar="FRACTION", min=0, max=1, help="Confidence level of each interval.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the resamples.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write scores and differences as JSON.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plot differences and intervals: .png, .pdf, .svg.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page: verdict, differences, scores.")
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the page.")] = None,
) -> None:
    """Read the files, compare the predictions, write the requested outputs, and print the table."""
    files = name_models(models)
    others = {"labels": labels, "edges": edges, "mask": mask, "ids": ids, "classes": classes}
    check_outputs(
        {"--json": json_file, "--plot": plot, "--html": html},
        {**{f"model {name}": f for name, f in files.items()}, **others},
    )
    nodes = {name: _node_files(file, logits, normalize, ids, classes) for name, file in files.items()}
    from edgewise.metrics import compare as compare_models

    with progress_bar():
        with _advise_flag():
            beliefs = {name: of_model.belief for name, of_model in nodes.items()}
        first = next(iter(nodes.values()))
        _check_headers(nodes)
        y = next((of_model for of_model in nodes.values() if of_model.header_names), first).labels(labels)
        edge_index = first.edges(edges) if edges else None
        node_mask = first.mask(mask) if mask else None
        with name_files_in_errors(y=labels, edge_index=edges, mask=mask):
            comparison = compare_models(
                beliefs,
                y,
                edge_index,
                mask=node_mask,
                n_bins=bins,
                binning=binning,
                closed=closed,
                norm=norm,
                edge_choice=edge_choice,
                same_label=same_label,
                n_resamples=resamples,
                confidence_level=confidence_level,
                seed=seed,
            )
    try:
        if json_file:
            written = {"models": paths_as_text(files), **paths_as_text(others)}
            write_json(json_file, {"files": written, **comparison.to_dict()})
        if plot:
            _draw(comparison, plot)
        if html:
            comparison.report(html, title=title)
    finally:  # print the result even if writing failed
        typer.echo("\n\n".join([str(comparison), *convergence_warnings(*beliefs.values())]))


def name_models(models: list[str]) -> dict[str, Path]:
    """Return the file of each model by name: that of NAME=FILE, of the array in FILE.npz:NAME, or of the file.

    >>> list(name_models(["gcn.npy", "best=runs/gat.npy", "all.npz:mlp"]))
    ['gcn', 'best', 'mlp']
    """
    if len(models) < 2:
        raise ValueError(f"Expected at least two files of predictions, but got {len(models)}. Add the other model.")
    files: dict[str, Path] = {}
    for text in models:
        name, equals, file = text.partition("=")
        if not equals or Path(text).exists():
            name, file = _default_name(text), text
        if not name or not file:
            raise ValueError(f"Expected a file of predictions or NAME=FILE, but got {text!r}.")
        if name in files:
            folder = Path(file).parent.name or f"{name}2"
            raise ValueError(
                f"Expected models of different names, but {files[name]} and {file} are both named {name!r}. Name them, "
                f"such as {folder}={file}."
            )
        files[name] = Path(file)
    return files


def _default_name(file: str) -> str:
    suffix = Path(file).suffix
    return suffix.partition(":")[2] or Path(file).stem


def _node_files(file: Path, logits: bool, normalize: bool, ids: Path | None, classes: Path | None) -> NodeFiles:
    is_posterior = file.suffix.lower() == ".safetensors"
    holds_logits = logits and not is_posterior
    nodes = NodeFiles(
        None if holds_logits else file,
        file if holds_logits else None,
        normalize and not is_posterior,
        ids,
        classes,
    )
    nodes.check()
    return nodes


@contextmanager
def _advise_flag() -> Iterator[None]:
    """Replace the advice about logits in a ValueError."""
    try:
        yield
    except ValueError as error:
        message = replace_advice(str(error))
        for advice, own in FLAG_ADVICE.items():
            message = message.replace(advice, own)
        raise ValueError(message) from error


def _check_headers(nodes: dict[str, NodeFiles]) -> None:
    """Raise ValueError if tables have the names of classes in different orders."""
    headers = {name: of_model.header_names for name, of_model in nodes.items()}
    found = [(name, header) for name, header in headers.items() if header is not None]
    for name, header in found[1:]:
        reference, expected = found[0]
        if header.values.tolist() != expected.values.tolist():
            ours, theirs = (", ".join(map(str, one.values)) for one in (expected, header))
            has_same_names = sorted(map(str, header.values)) == sorted(map(str, expected.values))
            way_out = "Reorder the columns of one file." if has_same_names else "Rename the columns of one file."
            raise ValueError(
                f"Expected the same classes in the same order, but the header of {expected.path} is {ours} and that of "
                f"{header.path} is {theirs} (models {reference} and {name}). {way_out}"
            )


def _draw(comparison: "Comparison", path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")  # works without a display
    figure, _ = comparison.plot()
    replace_file(path, lambda file: figure.savefig(file, format=path.suffix[1:].lower(), dpi=200, bbox_inches="tight"))
