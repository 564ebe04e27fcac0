"""The command edgewise predict."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
    name_files_in_errors,
    progress_bar,
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
from edgewise.files.output import check_outputs

if TYPE_CHECKING:
    import numpy as np

    from edgewise.decisions import EdgePredictions, Threshold
    from edgewise.validation import ArrayLike


PREDICT_HELP = f"""Predict the labels of pairs of nodes, and the probabilities of events.

An EVENT is same, different, both_correct (the predicted label of each node is correct), both=CLASS,
any=CLASS or only_one=CLASS. The table has the most likely pair of labels, P(event) for each event, how the joint
distribution of the pair was computed, and whether inference converged.

With --select, pairs are selected by P(EVENT). The threshold is chosen on the pairs with both ends in --val, for a
--precision, a --cost or a false discovery rate (--fdr), and is checked on the pairs with both ends in --test.

With --conformal ALPHA, each pair gets a set of label pairs. A random matching of the pairs is drawn. For its pairs
with both ends in --test, marked in the column "guaranteed", the set holds the true labels with a probability of at
least 1 - ALPHA, if --calibration nodes were drawn uniformly from calibration and test nodes and nothing else used the
labels of both. Without --test, test nodes are all nodes outside of --calibration and --val that did not train the
model; only a .safetensors file of a fitted model or calibrator tells which nodes did, so pass --test with other files.
--clamp does not change the sets.

{FILES_HELP}
{TABLES_HELP}
With tables, --out is a folder of Parquet parts, and each row of --pairs is predicted. A run that was stopped continues
if the same command is run again.
"""
PREDICT_EXAMPLES = """\b
Examples:
  edgewise predict --probs probs.npy --edges edges.npy --out pairs.parquet
  edgewise predict --probs gcn.safetensors --pairs pairs.csv --ids ids.txt \\
    --classes classes.txt --events same any=fraud --top 3 --out pairs.csv
  edgewise predict --probs probs.npy --edges edges.npy --labels labels.npy \\
    --val val.npy --test test.npy --select same --precision 0.9 --out pairs.json
  edgewise predict --probs s3://bucket/predictions --pairs 'pairs/*.parquet' \\
    --columns src=from dst=to --events same different --out predicted
"""

# Options that tables have as well as arrays, and what to do instead of some others.
WITH_TABLES = ("probs", "pairs", "out", "normalize", "classes", "events", "top")
_THRESHOLD = "Choose a threshold on arrays of some nodes, and filter the column P(EVENT) of the parts."
INSTEAD_WITH_TABLES = {
    "logits": "Save softmax of the logits, and pass it as --probs.",
    "edges": "Each row is predicted, also of an edge that is listed in both directions. Pass the table as --pairs.",
    "ids": "Omit --ids: tables have a column of ids.",
    "clamp": "Omit --clamp: tables have probabilities of nodes, whose joints are products.",
    **dict.fromkeys(("select", "precision", "confidence", "cost", "fdr"), _THRESHOLD),
    **dict.fromkeys(
        ("conformal", "calibration"), "Sets are calibrated with arrays of all nodes: save them as .npy, or omit it."
    ),
}

DEFAULT_EVENTS = ("same", "both_correct")


def _event_names() -> Sequence[str]:
    from edgewise.decisions.events import PLAIN_EVENTS

    return PLAIN_EVENTS


def _split_events(values: Sequence[str] | None) -> list[str]:
    """Split events at commas. A comma in the name of a class, as in any=Hill, J, does not end the event.

    >>> _split_events(["same,any=Hill, J,both=2", "different"])
    ['same', 'any=Hill, J', 'both=2', 'different']
    """
    events: list[str] = []
    for value in values or ():
        is_open = False  # the event before ends in the name of a class
        for part in value.split(","):
            is_event = "=" in part or part.strip() in ("", *_event_names())
            if is_open and not is_event:
                events[-1] += f",{part}"
            elif part.strip():
                events.append(part.strip())
                is_open = "=" in part
    return events


app = new_command()


@app.command(cls=MultipleValues, help=PREDICT_HELP, short_help="Predict pairs of nodes.", epilog=PREDICT_EXAMPLES)
def predict(
    context: typer.Context,
    *,
    probs: ProbsOrTableOption = None,
    logits: LogitsOption = None,
    normalize: NormalizeOption = False,
    pairs: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Pairs (2, pairs) or two columns: node numbers from 0, or ids. Or a TABLE of ids."
        ),
    ] = None,
    edges: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Edges of a graph, instead of --pairs. An edge listed in both directions is predicted once.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the table: .csv, .parquet or .json. With tables, a folder of parts."),
    ] = None,
    ids: IdsOption = None,
    classes: ClassesOption = None,
    events: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EVENT…", help="Events. Default: same both_correct.", autocompletion=complete_from(_event_names)
        ),
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Number of most likely pairs of labels to list.")] = 1,
    clamp: Annotated[
        bool,
        typer.Option(
            "--clamp",
            help="Compute the joints of pairs that are not edges of a pairwise posterior by clamping one of the two "
            "nodes. The expected time is printed first.",
        ),
    ] = False,
    select: Annotated[
        str | None,
        typer.Option(
            metavar="EVENT",
            help="Select pairs by the probability of this event.",
            autocompletion=complete_from(_event_names),
        ),
    ] = None,
    precision: Annotated[
        float | None, typer.Option(metavar="FRACTION", help="Required precision of the selected pairs.")
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(metavar="FRACTION", help="Guarantee --precision with this probability. Default: no guarantee."),
    ] = None,
    cost: Annotated[
        str | None, typer.Option(metavar="FP:FN", help="Costs of false positives and false negatives, such as 1:5.")
    ] = None,
    fdr: Annotated[
        float | None, typer.Option(metavar="FRACTION", help="False discovery rate of the selected pairs.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(metavar="FILE", help=LABELS_HELP)] = None,
    val: Annotated[Path | None, typer.Option(metavar="FILE", help=f"Validation nodes: {NODES_HELP}.")] = None,
    test: Annotated[Path | None, typer.Option(metavar="FILE", help=f"Test nodes: {NODES_HELP}.")] = None,
    conformal: Annotated[
        float | None,
        typer.Option(
            metavar="ALPHA", help="Add a set of label pairs that misses the true labels with probability at most ALPHA."
        ),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Calibration nodes of --conformal: {NODES_HELP}.")
    ] = None,
    columns: ColumnsOption = None,
    skip_unknown: SkipUnknownOption = False,
    ray: RayOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Read the files, predict pairs, select some of them, and write and print the table."""
    if table := find_table(context, "probs", "pairs", "edges"):
        check_only_options(context, table, WITH_TABLES, INSTEAD_WITH_TABLES)
        if probs is None or pairs is None:
            raise ValueError("Expected --probs and --pairs with tables, but got only one of them. Pass both.")
        from edgewise.tables.pair_prediction import plan_pairs

        plan = plan_pairs(
            probs,
            pairs,
            _split_events(events) or DEFAULT_EVENTS,
            columns=split_columns(columns),
            class_names=read_class_names(classes),
            normalize=normalize,
            top=top,
            skip_unknown=skip_unknown,
        )
        if dry_run:
            typer.echo(plan.text())
            return
        if out is None or out.lower().endswith((".csv", ".parquet", ".json")):
            raise ValueError(
                f"Expected --out as a folder with tables, but got {out or 'none'}. Pass one, such as --out predicted."
            )
        with table_progress(Path(out)) as report:
            result = plan.run(out, ray, report)
        typer.echo(f"Wrote {result}.")
        return
    paths = {"probs": probs, "pairs": pairs, "edges": edges, "out": out}
    files = {name: Path(path) if path else None for name, path in paths.items()}
    out_file = files.pop("out")
    inputs = {**files, "logits": logits, "ids": ids, "classes": classes}
    inputs |= {"labels": labels, "val": val, "test": test, "calibration": calibration}
    check_outputs({"--out": out_file}, inputs)
    nodes = NodeFiles(files["probs"], logits, normalize, ids, classes)
    nodes.check()
    if (pairs is None) == (edges is None):
        raise ValueError(f"Expected --pairs or --edges, but got {'both' if pairs else 'none'}. Pass one of them.")
    sets = Sets(conformal, calibration, labels, val, test)
    sets.check()
    selection = Selection(select, precision, confidence, cost, fdr, labels, val, test)
    selection.check(has_sets=conformal is not None)
    with progress_bar(description="predicting {:,} pairs") as progress:
        from edgewise.decisions import predict_edges
        from edgewise.files.tables import check_table_path
        from edgewise.posterior import SlowClampingWarning, as_posterior

        if out_file:
            check_table_path(out_file, "--out")
        belief, node_ids, class_names = nodes.belief, nodes.node_ids, nodes.class_names
        node_pairs = (
            nodes.edges(files["pairs"]) if files["pairs"] else _read_unique_edges(nodes, files["edges"] or Path())
        )
        event_names = _split_events(events) or [*DEFAULT_EVENTS]
        event_names = [*event_names, select] if select and select not in event_names else event_names
        with name_files_in_errors(**{**files, "probs": nodes.source}), warnings.catch_warnings():
            if clamp:
                typer.echo(as_posterior(belief).clamping_cost(node_pairs), err=True)
                warnings.simplefilter("ignore", SlowClampingWarning)  # it would state the cost again
            predictions = predict_edges(
                belief,
                node_ids.values[node_pairs] if node_ids else node_pairs,
                event_names,
                node_ids=node_ids.values if node_ids else None,
                class_names=class_names.values if class_names else None,
                top=top,
                clamp=clamp,
                progress=progress,
            )
        predictions, lines = selection.apply(predictions, nodes)
        predictions, lines_of_sets = sets.apply(predictions, nodes)
        lines += lines_of_sets
    try:
        if out_file:
            predictions.write(out_file)
            lines.append(f"Wrote {len(predictions):,} pairs to {out_file}.")
    finally:  # print the result even if writing failed
        typer.echo("\n".join([str(predictions), *lines]))


def _read_unique_edges(nodes: NodeFiles, path: Path) -> "np.ndarray":
    """Read the edges of a graph, each undirected edge once and without self-loops."""
    import torch

    from edgewise.conversion import as_edges
    from edgewise.data.edges import scored_edges

    listed = nodes.edges(path)
    with name_files_in_errors(edge_index=path):
        edge_index = as_edges(listed, nodes.num_nodes)
    all_nodes = torch.ones(nodes.num_nodes, dtype=torch.bool)
    unique_edges: np.ndarray = edge_index[:, scored_edges(edge_index, all_nodes)].numpy()
    return unique_edges


@dataclass(frozen=True)
class Selection:
    """Options of the command that select pairs."""

    event: str | None
    precision: float | None
    confidence: float | None
    cost: str | None
    fdr: float | None
    labels: Path | None
    val: Path | None
    test: Path | None

    def check(self, *, has_sets: bool) -> None:
        """Raise ValueError if options are missing or exclude each other. Sets also use labels and masks."""
        goals = {"--precision": self.precision, "--cost": self.cost, "--fdr": self.fdr}
        passed = [name for name, goal in goals.items() if goal is not None]
        if self.event is None:
            files = {"--labels": self.labels, "--val": self.val, "--test": self.test}
            others = {"--confidence": self.confidence, **({} if has_sets else files)}
            if extra := [*passed, *(name for name, value in others.items() if value is not None)]:
                raise ValueError(
                    f"Expected --select with {extra[0]}, but got none. Add an event, such as --select same."
                )
            return
        if len(passed) != 1:
            got = " and ".join(passed) or "none"
            raise ValueError(f"Expected one of {', '.join(goals)} with --select, but got {got}. Pass one of them.")
        if self.confidence is not None and self.precision is None:
            raise ValueError(f"Expected --confidence with --precision only, but got it with {passed[0]}. Omit it.")
        if self.labels is None or self.val is None:
            missing = "--labels" if self.labels is None else "--val"
            raise ValueError(
                f"Expected {missing} with --select, but got none: thresholds are chosen on validation pairs. Add it."
            )
        if self.fdr is not None and self.test is None:
            raise ValueError(
                "Expected --test with --fdr, but got none: the rate is controlled among the test pairs, which must not "
                "include pairs whose labels the model has seen. Add --test."
            )

    def apply(self, predictions: "EdgePredictions", nodes: NodeFiles) -> "tuple[EdgePredictions, list[str]]":
        """Return the table with the selected pairs, and lines of text about the selection."""
        if self.event is None or self.labels is None or self.val is None:
            return predictions, []
        y, val = nodes.labels(self.labels), nodes.mask(self.val)
        with name_files_in_errors(y=self.labels, mask=self.val):
            validation = predictions.outcomes(self.event, y, val)
        test = None
        if self.test is not None:
            self._check_disjoint(val, test_mask := nodes.mask(self.test))
            with name_files_in_errors(y=self.labels, mask=self.test):
                test = predictions.outcomes(self.event, y, test_mask)
        if len(validation[0]) == 0:
            raise ValueError(
                f"Expected pairs with both ends in {self.val} to choose a threshold, but got none. Add pairs or nodes."
            )
        threshold = self._threshold(*validation, test[0] if test else None)
        predictions = predictions.select(self.event, threshold)
        lines = [f"on validation: {threshold.validation}"]
        lines += [f"on test: {threshold.check(*test)}"] if test else []
        num_selected = int(predictions["selected"].sum())
        return predictions, [*lines, f"of all: {num_selected:,} of {len(predictions):,} pairs selected"]

    def _check_disjoint(self, val: "np.ndarray", test: "np.ndarray") -> None:
        if len(val) == len(test) and (shared := int((val & test).sum())):
            raise ValueError(
                f"Expected no node in both {self.val} and {self.test}, but they share {shared:,}. Remove them from "
                "one of the two: a threshold must not be checked on the nodes that it was chosen on."
            )

    def _threshold(self, probs: "np.ndarray", outcomes: "np.ndarray", test_probs: "np.ndarray | None") -> "Threshold":
        from edgewise.decisions import threshold_for_cost, threshold_for_fdr, threshold_for_precision

        if self.precision is not None:
            return threshold_for_precision(probs, outcomes, self.precision, confidence=self.confidence)
        if self.fdr is not None:
            return threshold_for_fdr(probs, outcomes, self.fdr, among=test_probs)
        try:
            false_positive, false_negative = map(float, str(self.cost).split(":"))
        except ValueError as error:
            raise ValueError(f"Expected --cost as two numbers, such as 1:5, but got {self.cost}.") from error
        return threshold_for_cost(probs, outcomes, false_positive=false_positive, false_negative=false_negative)


@dataclass(frozen=True)
class Sets:
    """Options of the command that add conformal sets."""

    alpha: float | None
    calibration: Path | None
    labels: Path | None
    val: Path | None
    test: Path | None

    def check(self) -> None:
        """Raise ValueError if options are missing or invalid."""
        if self.alpha is None:
            if self.calibration is not None:
                raise ValueError(
                    "Expected --conformal with --calibration, but got none. Add it, such as --conformal 0.1."
                )
            return
        from edgewise.validation import check_number

        check_number("--conformal", self.alpha, above=0, below=1, hint="For a coverage of 0.9 pass --conformal 0.1.")
        for name, file in (("--calibration", self.calibration), ("--labels", self.labels)):
            if file is None:
                raise ValueError(
                    f"Expected {name} with --conformal, but got none: sets are calibrated with the labels of nodes "
                    "that nothing else used. Add it."
                )

    def apply(self, predictions: "EdgePredictions", nodes: NodeFiles) -> "tuple[EdgePredictions, list[str]]":
        """Return the table with the sets, and a line of text about them."""
        if self.alpha is None or self.calibration is None or self.labels is None:
            return predictions, []
        from types import SimpleNamespace

        from edgewise.conversion import Names, as_mask, number_labels
        from edgewise.decisions import ConformalPairs
        from edgewise.decisions.conformal_column import add_sets

        y: ArrayLike = nodes.labels(self.labels)
        names = predictions.table["start_predicted"].names
        files = {"calibration": self.calibration, "test": self.test, "used": self.val}
        with name_files_in_errors(y=self.labels, **files):
            masks = {
                name: as_mask(nodes.mask(file), nodes.num_nodes, name=name) for name, file in files.items() if file
            }
            calibration, used = masks["calibration"], masks.get("used")
            if (of_model := nodes.used) is not None:
                of_model = as_mask(of_model, nodes.num_nodes, name="used")
                used = of_model if used is None else used | of_model
            test = masks["test"] if self.test else ~calibration if used is None else ~(calibration | used)
            if names is not None:
                y = number_labels(y, Names(len(names), names), calibration, "--classes")
            graph = SimpleNamespace(y=y, edge_index=predictions.pairs)
            options = ConformalPairs(self.alpha)
            sets = options.fit(nodes.belief, graph, calibration=calibration, test=test, used=used)
        sizes = sets.sizes(sets.test_pairs).double()
        size = f", mean size {float(sizes.mean()):.2f}" if len(sizes) else ""
        return add_sets(predictions, sets), [
            f"sets with alpha {self.alpha:g}: {sets.calibration_pairs.shape[1]:,} calibration pairs, guaranteed for "
            f"{len(sizes):,} test pairs of the matching{size}"
        ]
