"""edgewise predict."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.app import app
from edgewise.cli.belief_files import read_belief
from edgewise.cli.complaints import complaints_name
from edgewise.cli.options import SeveralValues, completes
from edgewise.cli.progress_bar import progress_bar
from edgewise.cli.selection import Selection
from edgewise.report.output import check_outputs

if TYPE_CHECKING:
    import numpy as np

    from edgewise.data.arrays import ArrayLike
    from edgewise.posterior import Posterior

PREDICT_HELP = """Predict the labels of pairs of nodes, and how probable events are.

An EVENT is same, different, both_correct (both nodes are what each is predicted to be by itself), both=CLASS, any=CLASS
or only_one=CLASS. The table has the most likely pair of labels, P(event) for each event, how the joint of the pair came
about, and whether inference converged.

With --select, pairs are selected by P(EVENT): the threshold is chosen on the pairs with both ends in --val, for a
--precision, a --cost or a false discovery rate (--fdr), and is checked on those with both ends in --test.

A FILE of numbers is .npy, .npz (FILE.npz:NAME picks one array), .csv or .parquet; --probs also takes the .safetensors
of a posterior or of a fitted model. A FILE of names is .csv, .txt (one a line), .parquet or .npy.
"""
PREDICT_EXAMPLES = """\b
Examples:
  edgewise predict --probs probs.npy --edges edges.npy --out pairs.parquet
  edgewise predict --probs gcn.safetensors --pairs pairs.csv --ids ids.txt \\
    --classes classes.txt --events same any=fraud --top 3 --out pairs.csv
  edgewise predict --probs probs.npy --edges edges.npy --labels labels.npy \\
    --val val.npy --test test.npy --select same --precision 0.9 --out pairs.json
"""


def _event_names() -> Sequence[str]:
    from edgewise.decisions.events import PLAIN

    return PLAIN


@app.command(cls=SeveralValues, help=PREDICT_HELP, short_help="Predict pairs of nodes.", epilog=PREDICT_EXAMPLES)
def predict(
    probs: Annotated[
        Path, typer.Option(metavar="FILE", help="Probabilities (nodes, classes), not logits; or a .safetensors file.")
    ],
    pairs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Pairs (2, pairs) or two columns: nodes from 0, or ids.")
    ] = None,
    edges: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead of pairs: all edges of a graph, nodes from 0, each edge once."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table: .csv, .parquet or .json.")] = None,
    ids: Annotated[Path | None, typer.Option(metavar="FILE", help="An id for each node, as in --pairs.")] = None,
    classes: Annotated[Path | None, typer.Option(metavar="FILE", help="A name for each class.")] = None,
    events: Annotated[
        list[str] | None,
        typer.Option(metavar="EVENT…", help="Events; else same both_correct.", autocompletion=completes(_event_names)),
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="How many pairs of labels to list.")] = 1,
    select: Annotated[
        str | None,
        typer.Option(
            metavar="EVENT", help="Select pairs by the P of this event.", autocompletion=completes(_event_names)
        ),
    ] = None,
    precision: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Of selected pairs the event happens to this share.")
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(metavar="SHARE", help="How sure to be of --precision; else as on --val.")
    ] = None,
    cost: Annotated[
        str | None, typer.Option(metavar="FP:FN", help="Costs of false positives and false negatives, such as 1:5.")
    ] = None,
    fdr: Annotated[float | None, typer.Option(metavar="SHARE", help="False discovery rate of selected pairs.")] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="True labels, one a node; -1 for unknown.")
    ] = None,
    val: Annotated[Path | None, typer.Option(metavar="FILE", help="Validation nodes, one boolean or 0/1 each.")] = None,
    test: Annotated[Path | None, typer.Option(metavar="FILE", help="Test nodes, one boolean or 0/1 each.")] = None,
) -> None:
    """Read the files, predict pairs, select some, write and print the table."""
    inputs = {"probs": probs, "pairs": pairs, "edges": edges, "ids": ids, "classes": classes}
    inputs |= {"labels": labels, "val": val, "test": test}
    check_outputs({"--out": out}, inputs)
    if (pairs is None) == (edges is None):
        raise ValueError("Expected either --pairs or --edges: which pairs to predict.")
    selection = Selection(select, precision, confidence, cost, fdr, labels, val, test)
    selection.check()
    with progress_bar(then="predicting {:,} pairs") as progress:
        from edgewise.decisions import predict_edges
        from edgewise.decisions.table_files import check_table_path

        if out:
            check_table_path(out, "--out")
        belief, convergence = read_belief(probs)
        names = _read_names(belief, ids, classes)
        listed, asked = _read_pairs(belief, pairs, edges, names.get("node_ids")), events or ["same", "both_correct"]
        asked = [*asked, select] if select and select not in asked else asked
        with complaints_name(probs=probs, pairs=pairs, edges=edges):
            found = predict_edges(belief, listed, asked, top=top, convergence=convergence, progress=progress, **names)
        found, lines = selection.apply(found)
    try:
        if out:
            found.write(out)
            lines.append(f"Wrote {len(found):,} pairs to {out}.")
    finally:  # a full disk must not cost the answer
        typer.echo("\n".join([str(found), *lines]))


def _read_names(belief: "Posterior", ids: Path | None, classes: Path | None) -> "dict[str, np.ndarray]":
    from edgewise.decisions.id_files import read_names

    names = {}
    if ids:
        names["node_ids"] = read_names(ids, belief.num_nodes, "node")
    if classes:
        names["class_names"] = read_names(classes, belief.num_classes, "class")
    return names


def _read_pairs(belief: "Posterior", pairs: Path | None, edges: Path | None, ids: "np.ndarray | None") -> "ArrayLike":
    import torch

    from edgewise.data import files
    from edgewise.data.arrays import as_tensor, checked_edges
    from edgewise.data.edges import scored_edges
    from edgewise.decisions.id_files import read_id_pairs

    if pairs:
        return files.read_edges(pairs) if ids is None else read_id_pairs(pairs, ids)
    edge_index = as_tensor(files.read_edges(edges or Path()), "edge_index")
    with complaints_name(edge_index=edges):
        edge_index = checked_edges(edge_index, belief.num_nodes)
    everywhere = torch.ones(belief.num_nodes, dtype=torch.bool)
    once = edge_index[:, scored_edges(edge_index, everywhere)].numpy()
    return once if ids is None else ids[once]
