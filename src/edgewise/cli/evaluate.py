"""edgewise evaluate."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import edgewise
from edgewise.cli.app import complaints_name, new_command
from edgewise.cli.options import as_given, convergence_warnings, progress_bar, read_belief
from edgewise.files.output import check_outputs, replace_file, write_json

if TYPE_CHECKING:
    from edgewise.metrics import Evaluation

EVALUATE_HELP = """Score predictions of nodes, and of pairs of neighbors.

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


app = new_command()


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
    selective: Annotated[
        bool, typer.Option("--selective", help="Also tell the risk of deciding only what is certain: AURC.")
    ] = False,
    resamples: Annotated[int, typer.Option(metavar="N", min=0, help="Resamples of nodes, for intervals.")] = 0,
    confidence_level: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=1, help="Confidence level of intervals.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the resamples.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw reliability diagrams: .png, .pdf, .svg.")
    ] = None,
) -> None:
    """Read the files, score them, write what was asked for, print the table."""
    named = {"probs": probs, "labels": labels, "edges": edges, "mask": mask, "edge_probs": edge_probs}
    check_outputs({"--json": json_file, "--plot": plot}, named)
    if selective and (edge_probs or edge_choice != "both"):
        raise ValueError(
            "Expected --selective with joints of --probs and edges of the mask, but got --edge-probs or --edge-choice. "
            "Leave --selective out, or pass a .safetensors posterior that has joints as --probs."
        )
    from edgewise.files import inputs
    from edgewise.metrics import evaluate as score

    with progress_bar() as progress:
        p = read_belief(probs) if probs.suffix.lower() == ".safetensors" else inputs.read_probs(probs)
        y, edge_index = inputs.read_labels(labels), inputs.read_edges(edges)
        chosen = inputs.read_mask(mask) if mask else None
        joints = inputs.read_edge_probs(edge_probs) if edge_probs else None
        with complaints_name(probs=probs, y=labels, edge_index=edges, mask=mask, edge_probs=edge_probs):
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
                edge_choice=edge_choice,
                same_label=same_label,
                n_resamples=resamples,
                confidence_level=confidence_level,
                seed=seed,
                progress=progress,
            )
        curves = edgewise.selective(p, y, edge_index, mask=chosen) if selective else None
    convergence = getattr(p, "convergence", None)
    try:
        if json_file:
            intervals = {"n_resamples": resamples, "confidence_level": confidence_level, "seed": seed}
            settings = {"edge_choice": edge_choice, **intervals}
            more = {"selective": curves.to_dict()} if curves else {}
            more |= {"convergence": asdict(convergence)} if convergence is not None else {}
            write_json(json_file, {"files": as_given(named), "settings": settings, **ev.to_dict(), **more})
        if plot:
            _draw(ev, plot)
    finally:  # a full disk must not cost the answer
        parts = [str(ev), *([str(curves)] if curves else []), *convergence_warnings(p)]
        typer.echo("\n\n".join(parts))


def _draw(ev: "Evaluation", path: Path) -> None:
    import matplotlib as mpl

    from edgewise.metrics import VIEWS

    mpl.use("Agg")  # no screen is needed
    views = VIEWS if ev.same_label is None else (*VIEWS, "same_label")
    figure, _ = edgewise.plot_reliability(ev, views=views)
    replace_file(path, lambda file: figure.savefig(file, format=path.suffix[1:].lower(), dpi=200, bbox_inches="tight"))
