"""edgewise predict."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.app import complaints_name, new_command
from edgewise.cli.options import SeveralValues, completes, progress_bar, read_belief
from edgewise.files.output import check_outputs

if TYPE_CHECKING:
    import numpy as np

    from edgewise.decisions import EdgePredictions, Threshold
    from edgewise.posterior import Posterior
    from edgewise.validation import ArrayLike


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
    from edgewise.decisions.events import PLAIN_EVENTS

    return PLAIN_EVENTS


app = new_command()


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
        from edgewise.files.tables import check_table_path

        if out:
            check_table_path(out, "--out")
        belief = read_belief(probs)
        names = _read_names(belief, ids, classes)
        listed, asked = _read_pairs(belief, pairs, edges, names.get("node_ids")), events or ["same", "both_correct"]
        asked = [*asked, select] if select and select not in asked else asked
        with complaints_name(probs=probs, pairs=pairs, edges=edges):
            found = predict_edges(belief, listed, asked, top=top, progress=progress, **names)
        found, lines = selection.apply(found)
    try:
        if out:
            found.write(out)
            lines.append(f"Wrote {len(found):,} pairs to {out}.")
    finally:  # a full disk must not cost the answer
        typer.echo("\n".join([str(found), *lines]))


def _read_names(belief: "Posterior", ids: Path | None, classes: Path | None) -> "dict[str, np.ndarray]":
    from edgewise.files.inputs import read_names

    names = {}
    if ids:
        names["node_ids"] = read_names(ids, belief.num_nodes, "node")
    if classes:
        names["class_names"] = read_names(classes, belief.num_classes, "class")
    return names


def _read_pairs(belief: "Posterior", pairs: Path | None, edges: Path | None, ids: "np.ndarray | None") -> "ArrayLike":
    import torch

    from edgewise.data.edges import scored_edges
    from edgewise.files import inputs
    from edgewise.validation import as_tensor, check_edges

    if pairs:
        return inputs.read_edges(pairs) if ids is None else inputs.read_id_pairs(pairs, ids)
    edge_index = as_tensor(inputs.read_edges(edges or Path()), "edge_index")
    with complaints_name(edge_index=edges):
        edge_index = check_edges(edge_index, belief.num_nodes)
    everywhere = torch.ones(belief.num_nodes, dtype=torch.bool)
    once = edge_index[:, scored_edges(edge_index, everywhere)].numpy()
    return once if ids is None else ids[once]


@dataclass(frozen=True)
class Selection:
    """The options of a selection, as they were given."""

    event: str | None
    precision: float | None
    confidence: float | None
    cost: str | None
    fdr: float | None
    labels: Path | None
    val: Path | None
    test: Path | None

    def check(self) -> None:
        """Refuse options that do not go together."""
        goals = {"--precision": self.precision, "--cost": self.cost, "--fdr": self.fdr}
        given = [name for name, goal in goals.items() if goal is not None]
        if self.event is None:
            others = {"--confidence": self.confidence, "--labels": self.labels, "--val": self.val, "--test": self.test}
            if extra := [*given, *(name for name, value in others.items() if value is not None)]:
                raise ValueError(
                    f"Expected --select with {extra[0]}, but got none. Name an event, such as --select same."
                )
            return
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise ValueError(f"Expected one of {', '.join(goals)} with --select, but got {got}.")
        if self.confidence is not None and self.precision is None:
            raise ValueError(f"Expected --confidence with --precision only, but got it with {given[0]}. Leave it out.")
        if self.labels is None or self.val is None:
            missing = "--labels" if self.labels is None else "--val"
            raise ValueError(f"Expected {missing} with --select, as thresholds are chosen on validation pairs.")
        if self.fdr is not None and self.test is None:
            raise ValueError(
                "Expected --test with --fdr, but got none: the rate is that of the pairs to decide, and pairs whose "
                "labels the model has seen must not be among them."
            )

    def apply(self, found: "EdgePredictions") -> "tuple[EdgePredictions, list[str]]":
        """Give the table with what is selected, and what there is to say about it."""
        if self.event is None or self.labels is None or self.val is None:
            return found, []
        self._check_masks()
        chosen_by = self._outcomes(found, self.val)
        if len(chosen_by[0]) == 0:
            raise ValueError(f"Expected pairs with both ends in {self.val} to choose a threshold by, but got none.")
        checked_on = self._outcomes(found, self.test) if self.test else None
        threshold = self._threshold(*chosen_by, checked_on[0] if checked_on else None)
        found = found.select(self.event, threshold)
        lines = [f"on validation: {threshold.validation}"]
        lines += [f"on test: {threshold.check(*checked_on)}"] if checked_on else []
        return found, [*lines, f"of all: {int(found['selected'].sum()):,} of {len(found):,} pairs selected"]

    def _check_masks(self) -> None:
        from edgewise.files import inputs

        if self.val is None or self.test is None:
            return
        val, test = inputs.read_mask(self.val), inputs.read_mask(self.test)
        if len(val) == len(test) and (shared := int((val & test).sum())):
            raise ValueError(
                f"Expected no node in both {self.val} and {self.test}, but they share {shared:,}. A threshold is "
                "checked on nodes that it was not chosen by."
            )

    def _outcomes(self, found: "EdgePredictions", mask: Path) -> "tuple[np.ndarray, np.ndarray]":
        from edgewise.files import inputs

        y = inputs.read_labels(self.labels or Path())
        with complaints_name(y=self.labels, mask=mask):
            return found.outcomes(self.event or "", y, inputs.read_mask(mask))

    def _threshold(self, probability: "np.ndarray", happened: "np.ndarray", among: "np.ndarray | None") -> "Threshold":
        from edgewise.decisions import threshold_for_cost, threshold_for_fdr, threshold_for_precision

        if self.precision is not None:
            return threshold_for_precision(probability, happened, self.precision, confidence=self.confidence)
        if self.fdr is not None:
            return threshold_for_fdr(probability, happened, self.fdr, among=among)
        try:
            false_positive, false_negative = map(float, str(self.cost).split(":"))
        except ValueError as error:
            raise ValueError(f"Expected --cost as two numbers, such as 1:5, but got {self.cost}.") from error
        return threshold_for_cost(probability, happened, false_positive=false_positive, false_negative=false_negative)
