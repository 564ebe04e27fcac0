"""Evaluation of predictions in tables that do not fit into memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from torch import Tensor

from edgewise.data.edges import EdgeChoice
from edgewise.kernels.score_sums import sum_nodes
from edgewise.metrics.collect import add_degrees, slices
from edgewise.metrics.elements import RECORD_COLUMNS
from edgewise.metrics.evaluate import check_scoring_options
from edgewise.metrics.evaluation import Evaluation, EvaluationSettings
from edgewise.metrics.scores import Norm
from edgewise.metrics.scoring_input import Binning, Closed
from edgewise.metrics.sums import FRACTION_BITS, LOW_BITS, VIEWS, Sums, bin_boundaries, carry_tables
from edgewise.representation import format_bytes
from edgewise.small_samples import warn_small_sample
from edgewise.suggestions import suggest_keywords
from edgewise.tables.edge_jobs import count_edges_once, sum_jobs
from edgewise.tables.edge_scorer import EdgeScorer, Listed
from edgewise.tables.edge_sums import DirectionSums, EdgeSums
from edgewise.tables.node_builder import NodeTableInput, build_node_table
from edgewise.tables.node_ids import JoinedIds
from edgewise.tables.node_table import NodeArrays, NodeTable, scored_mask
from edgewise.tables.part_search import TableLike, find_parts
from edgewise.tables.parts import Part, total_rows
from edgewise.tables.table_columns import (
    check_columns,
    find_edge_columns,
    find_label_columns,
    find_mask_columns,
    find_prob_columns,
    has_text,
    kind_of_ids,
    tells_classes,
)
from edgewise.tables.table_jobs import Progress, describe_tables, group_parts
from edgewise.tables.work_folder import check_recognizable, work_folder
from edgewise.validation import check_flag, check_option
from edgewise.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

EDGES_PER_JOB = 1 << 23  # sums of a job are saved when it ends
EDGES_PER_NODE_AND_JOB = 4  # so that the work and memory per node, such as degrees, do not dominate
LONGER_JOBS_WITH_JOINS = 4  # times as many edges, because each of these jobs reads all ids
NODES_PER_CHUNK = 1 << 20


@suggest_keywords
def evaluate_tables(
    probs: TableLike,
    labels: TableLike,
    edges: TableLike | None = None,
    *,
    mask: TableLike | None = None,
    columns: Mapping[str, Any] | None = None,
    class_names: Sequence[str] | None = None,
    normalize: bool = False,
    n_bins: int = 15,
    norm: Norm = "l1",
    closed: Closed = "right",
    edge_choice: EdgeChoice = "both",
    same_label: bool = False,
    listed: Listed = "check",
    skip_unknown: bool = False,
    work: Path | str | None = None,
    ray: str | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Score predictions in tables of many parts, such as Parquet folders, in bounded memory.

    The scores are those of `evaluate` to the last bit, whatever the parts, and the order of rows. Nodes become records
    of 45 bytes each, in files that are mapped into memory. Edges are read in one pass, and in a second one if they are
    neither listed in one direction only nor all in both.

    Parameters
    ----------
    probs
        Predictions: a file, a folder, a glob or a URL (``s3://``, ``gs://``, ``file://``) of Parquet or CSV, or a list
        of these; a pyarrow dataset or table; or a Ray Dataset. A column of ids, integers or text, and one of lists of
        probabilities (``nid, pred``, as GraphStorm writes them) or one per class (``p0, p1, …``). Rows are in any
        order.
    labels
        Ids and labels from 0 to C - 1; -1 or empty if unknown.
    edges
        Ids of both ends. An edge listed in both directions counts once, parallel edges count separately, and
        self-loops are left out. Without edges, nodes are scored.
    mask
        Ids of the scored nodes, or ids and booleans. By default, all nodes with labels are scored.
    columns
        Names of columns that are not found by well-known names: "id", "probs" (one, or one per class), "label", "mask",
        "src", "dst", or of one table only, such as "labels.id".
    class_names
        Class of each probability, if labels are names. By default the names of the columns of probabilities, if
        ``columns`` has them.
    normalize
        Divide rounded probabilities by their sums.
    n_bins
        Number of bins of the calibration error, of equal width.
    norm
        Norm of the calibration error, as in `evaluate`.
    closed
        Closed end of a bin, as in `evaluate`.
    edge_choice
        Score edges with "both" ends in the mask, "any" end in it, or "all" edges.
    same_label
        Also score the event "both ends have the same label". All C probabilities of a node are then kept and read for
        each edge.
    listed
        "check" finds out how edges are listed. "once" takes each row for an edge of its own, "both" takes each edge to
        be listed in both directions equally often; then only the numbers of rows are compared.
    skip_unknown
        Skip and count edges, labels and nodes of the mask whose ids have no prediction. By default this is an error.
    work
        Folder for intermediate results, to continue a run that was stopped. It is kept. By default a temporary one.
    ray
        Address of a Ray cluster, or "auto" or "local", whose workers score the edges. All read the same paths.
    progress
        Function called with a named tuple: (what, rows, num_rows, parts, num_parts). ``what`` is "labels" or "edges",
        for example, ``rows`` of its ``num_rows`` rows have been read (None if unknown), and ``parts`` of its
        ``num_parts`` parts are finished. The first call for the edges has those of an earlier run.

    Returns
    -------
    Evaluation
        The scores. Its ``settings.notes`` say how edges are listed, and what was skipped.

    Raises
    ------
    ValueError
        If a table is invalid. The message names the part and the row.

    Examples
    --------
    >>> import pyarrow as pa
    >>> probs = pa.table({"nid": ["b", "a", "c"], "pred": [[0.8, 0.2], [0.9, 0.1], [0.3, 0.7]]})
    >>> labels = pa.table({"nid": ["a", "b", "c"], "label": [0, 0, 1]})
    >>> ev = evaluate_tables(probs, labels, pa.table({"src": ["a", "b"], "dst": ["b", "c"]}), n_bins=1)
    >>> ev.edgewise.count, round(ev.edgewise.ece, 4), ev.agree.count
    (2, 0.36, 1)
    """
    plan = plan_tables(
        probs,
        labels,
        edges,
        mask=mask,
        columns=columns,
        class_names=class_names,
        normalize=normalize,
        n_bins=n_bins,
        norm=norm,
        closed=closed,
        edge_choice=edge_choice,
        same_label=same_label,
        listed=listed,
        skip_unknown=skip_unknown,
    )
    return plan.run(None if work is None else Path(work), ray, progress)


def plan_tables(
    probs: TableLike,
    labels: TableLike,
    edges: TableLike | None,
    *,
    mask: TableLike | None,
    columns: Mapping[str, Any] | None,
    class_names: Sequence[str] | None,
    normalize: bool,
    n_bins: int,
    norm: Norm,
    closed: Closed,
    edge_choice: EdgeChoice,
    same_label: bool,
    listed: Listed,
    skip_unknown: bool,
) -> "TablePlan":
    """Find the parts and columns, and check the options of `evaluate_tables`, without reading rows."""
    binning = Binning(n_bins, "width", closed)
    check_scoring_options(norm, edge_choice, 0, 0.95, 0, 0)
    check_option("listed", listed, get_args(Listed))
    for name, flag in {"normalize": normalize, "same_label": same_label, "skip_unknown": skip_unknown}.items():
        check_flag(name, flag)
    told = check_columns(columns)
    prob_parts, label_parts = find_parts(probs, "probs"), find_parts(labels, "labels")
    prob_columns = find_prob_columns(prob_parts[0], told)
    label_columns = find_label_columns(label_parts[0], told)
    if class_names is None and tells_classes(told) and has_text(label_parts, label_columns.values[0]):
        class_names = prob_columns.values
    is_integer = kind_of_ids(prob_parts, prob_columns.id) == "integer"
    mask_parts = [] if mask is None else find_parts(mask, "mask")
    nodes = NodeTableInput(
        prob_parts,
        label_parts,
        mask_parts,
        prob_columns,
        label_columns,
        find_mask_columns(mask_parts[0], told) if mask_parts else None,
        _class_array(class_names),
        normalize,
        same_label,
        skip_unknown,
    )
    edge_parts = [] if edges is None else find_parts(edges, "edges", EDGES_PER_JOB if is_integer else None)
    edge_columns = find_edge_columns(edge_parts[0], told) if edge_parts else ("src", "dst")
    return TablePlan(nodes, edge_parts, edge_columns, binning, norm, edge_choice, listed)


def _class_array(class_names: Sequence[str] | None) -> "pa.Array | None":
    import pyarrow as pa

    if class_names is None:
        return None
    names = [str(name) for name in class_names]
    if len(set(names)) < len(names):
        raise ValueError(f"Expected different class_names, but got {', '.join(names)}.")
    return pa.array(names, pa.string())


@dataclass(frozen=True)
class TablePlan:
    """Checked tables and options, before rows are read."""

    nodes: NodeTableInput
    edges: Sequence[Part]
    edge_columns: tuple[str, str]
    binning: Binning
    norm: Norm
    edge_choice: EdgeChoice
    listed: Listed

    @property
    def tables(self) -> dict[str, Sequence[Part]]:
        """The parts of each table. There may be none of the mask, and of edges."""
        nodes = self.nodes
        return {"probs": nodes.probs, "labels": nodes.labels, "mask": nodes.mask, "edges": self.edges}

    def document(self) -> dict[str, object]:
        """Return what the results depend on, to recognize those of an earlier run."""
        tables = self.tables
        names = self.nodes.class_names
        return {
            **{name: [[part.name, part.num_bytes, part.version] for part in parts] for name, parts in tables.items()},
            "columns": [self.nodes.prob_columns, self.nodes.label_columns, self.nodes.mask_columns, self.edge_columns],
            "class_names": None if names is None else names.to_pylist(),
            "options": [
                self.nodes.normalize,
                self.nodes.keep_probs,
                self.nodes.skip_unknown,
                self.edge_choice,
                self.listed,
            ],
            "bins": [self.binning.n_bins, self.binning.closed],
            "edges_per_job": EDGES_PER_JOB,
            "version": __version__,
        }

    def text(self) -> str:
        """Describe what would be read, and how large it is."""
        tables = self.tables
        found = {
            "probs": self.nodes.prob_columns,
            "labels": self.nodes.label_columns,
            "mask": self.nodes.mask_columns,
        }
        columns = {name: (names.id, *names.values) for name, names in found.items() if names is not None}
        columns["edges"] = self.edge_columns
        lines = describe_tables(tables, columns)
        num_nodes = total_rows(self.nodes.probs)
        if num_nodes is not None:
            per_node = 8 * len(RECORD_COLUMNS) + 5
            disk = num_nodes * per_node
            memory = disk + num_nodes * (2 * torch.get_num_threads() + 16) + (1 << 30)
            lines += [
                "",
                f"node table: {format_bytes(disk)} on disk, more if integer ids have gaps; memory: at most about "
                f"{format_bytes(memory)}",
            ]
        if self.listed == "check" and self.edges:
            rows = total_rows(self.edges)
            more = "" if rows is None else f", which may take {format_bytes(16 * rows)} of disk"
            lines.append(f"edges in mixed directions are read a second time{more}")
        return "\n".join(lines)

    def run(self, work: Path | None, ray: str | None, progress: Progress | None) -> Evaluation:
        """Read the tables and return the scores."""
        if work is not None:
            check_recognizable(self.tables)
        with work_folder(work, self.document()) as folder:
            nodes_folder = folder / "nodes"
            table = NodeTable.load(nodes_folder) or build_node_table(self.nodes, nodes_folder, progress)
            if self.nodes.mask and table.counts.predictions and not table.counts.scored:
                warn_small_sample(
                    f"The mask selects none of the {table.counts.predictions:,} nodes, so no node is scored and scores "
                    "are NaN. Check how the mask was made."
                )
            arrays = table.arrays()
            scorer = EdgeScorer(
                table.ids,
                self.edge_columns,
                self.listed,
                self.edge_choice,
                self.binning.n_bins,
                self.binning.closed == "right",
                self.nodes.keep_probs,
                self.nodes.skip_unknown,
                folder,
            )
            per_node = EDGES_PER_NODE_AND_JOB * (LONGER_JOBS_WITH_JOINS if isinstance(table.ids, JoinedIds) else 1)
            jobs = group_parts(self.edges, max(EDGES_PER_JOB, per_node * table.ids.size))
            total, edge_sums = None, None
            if jobs:
                total = sum_jobs(scorer, jobs, arrays, folder / "edges", ray, progress)
                edge_sums = count_edges_once(scorer, total, self.edges, arrays, folder, progress)
            sums = self._all_sums(arrays, edge_sums)
        notes = self._notes(table, total)
        settings = EvaluationSettings("tables", normalize=self.nodes.normalize, notes=notes)
        return Evaluation(sums, self.binning, self.norm, self.edge_choice, settings=settings)

    def _all_sums(self, nodes: NodeArrays, edges: DirectionSums | None) -> dict[str, Sums]:
        """Return the sums of all views."""
        n_bins, right = self.binning.n_bins, self.binning.closed == "right"
        tables = torch.zeros(len(VIEWS), n_bins + 2, 4, dtype=torch.long)
        for part in slices(len(nodes.state), NODES_PER_CHUNK):
            mask = scored_mask(nodes.state[part])
            records = torch.from_numpy(np.ascontiguousarray(nodes.records[part]))
            tables[0] += carry_tables(
                sum_nodes(RECORD_COLUMNS, records, mask, n_bins, right, FRACTION_BITS, LOW_BITS), n_bins
            )
            if edges is not None:
                of_degrees = torch.zeros_like(tables)
                add_degrees(of_degrees, torch.from_numpy(edges.degree[:, part].astype(np.int64)), mask)
                tables += of_degrees
        if edges is not None:
            by_agreement = torch.from_numpy(edges.tables.copy())  # what Ray returns is read only
            tables[1:] += torch.stack((by_agreement.sum(0), *by_agreement))
        boundaries = bin_boundaries(self.binning)
        sums = {view: Sums(table, boundaries) for view, table in zip(VIEWS, carry_tables(tables, n_bins), strict=True)}
        if self.nodes.keep_probs:
            empty: Tensor = torch.zeros(n_bins + 2, 4, dtype=torch.long)
            sums["same_label"] = Sums(empty if edges is None else torch.from_numpy(edges.same_label.copy()), boundaries)
        return sums

    def _notes(self, table: NodeTable, total: EdgeSums | None) -> tuple[str, ...]:
        counts = table.counts
        notes = [
            f"{counts.predictions:,} nodes with predictions, {counts.labels:,} of them with labels, "
            f"{counts.scored:,} scored"
        ]
        if total is not None:
            listing = {
                "one direction": "each edge listed in one direction, and counted as often as it is listed",
                "both directions": "each edge listed in both directions, and counted once; found by checksums, wrong "
                "with a probability below 10^-10",
                "mixed": "listed in mixed directions; each edge counted exactly, once if it is listed in both; groups "
                "of edges that are all in both found by checksums, wrong with a probability below 10^-10",
            }[total.case]
            if self.listed != "check":
                how = "once" if self.listed == "once" else "in both directions"
                listing = f"each edge taken to be listed {how}, without a check"
            notes.append(f"{total.counts.listed:,} rows of edges: {listing}")
            if not self.nodes.keep_probs:
                notes.append(
                    "same label: not scored, because it reads all probabilities of both ends (same_label=True, or "
                    "--same-label, adds it)"
                )
        skipped = {
            "edges without a prediction for both ends": total.counts.unknown if total else 0,
            "labels without a prediction": counts.unknown_labels,
            "nodes of the mask without a prediction or a label": counts.unknown_mask,
        }
        notes += [f"skipped {what}: {number:,}" for what, number in skipped.items() if number]
        return tuple(notes)
