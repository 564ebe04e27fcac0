"""The table of predicted pairs, with the names that were given to nodes and classes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.edges import select_one_direction
from edgewise.decisions.events import Event
from edgewise.files.tables import write_table
from edgewise.metrics.scoring_input import check_scoring_input
from edgewise.validation import ArrayLike

if TYPE_CHECKING:
    import pyarrow as pa

    from edgewise.decisions.thresholds import Threshold

BATCH_ROWS = 1 << 16
SHOWN_ROWS = 10


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table: numbers, or places in a list of names."""

    values: NDArray[Any]
    names: NDArray[Any] | None = None

    def __getitem__(self, part: slice) -> NDArray[Any]:
        values: NDArray[Any] = self.values[part]
        return values if self.names is None else self.names[values]

    def to_arrow(self, part: slice) -> "pa.Array":
        """Convert some rows to Arrow; a column of text is of strings even without rows."""
        import pyarrow as pa

        is_text = self.names is not None and self.names.dtype.kind == "O"
        return pa.array(self[part], pa.string() if is_text else None)


@dataclass(frozen=True, eq=False, repr=False)
class EdgePredictions:
    """What is believed about a list of pairs, in its order; made by `predict_edges`.

    ``start`` and ``end`` are the nodes; ``start_predicted`` and ``end_predicted`` what each is predicted to be by
    itself; ``start_label``, ``end_label`` and ``P(labels)`` the most likely pair of labels (with ``_2``, ``_3``, … the
    next ones), then a column such as ``P(same)`` for each event, ``method`` and ``convergence``. ``table["P(same)"]``
    is a column as an array.

    Attributes
    ----------
    table
        The columns by name; the names of nodes and classes are looked up when a column is asked for.
    convergence
        Whether the inference of the posterior converged, in words.
    events
        What was asked about the pairs.
    node
        The node marginals (nodes, classes) that predictions of single nodes are by.
    pairs
        The pairs (2, pairs), nodes counted from 0.
    note
        Which pairs are selected, and why; empty before `select`.

    Examples
    --------
    >>> from edgewise.decisions import Threshold, predict_edges
    >>> table = predict_edges(np.array([[0.9, 0.1], [0.8, 0.2], [0.5, 0.5]]), [(0, 1), (1, 2)], ["same"])
    >>> table["P(same)"].round(2).tolist()
    [0.74, 0.5]
    >>> chosen = table.select("same", Threshold(0.7, "set by hand"))
    >>> chosen["selected"].tolist(), chosen.note
    ([True, False], 'selected by P(same): P ≥ 0.7, set by hand')
    """

    table: Mapping[str, Column]
    convergence: str
    events: Sequence[Event]
    node: Float[Tensor, "nodes classes"]
    pairs: Int[Tensor, "2 pairs"]
    note: str = ""

    def __len__(self) -> int:
        return self.pairs.shape[1]

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """All columns as arrays, by name."""
        return {name: self[name] for name in self.table}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.table:
            raise KeyError(f"Expected a column of {', '.join(self.table)}, but got {name!r}.")
        return self.table[name][:]

    def outcomes(
        self, event: str, y: ArrayLike, mask: ArrayLike | None = None
    ) -> tuple[Float[np.ndarray, " some"], Bool[np.ndarray, " some"]]:
        """Return P(event) and whether it happened, for the pairs that have both ends in the mask.

        What thresholds are chosen by on validation nodes, and are checked by on test nodes. A pair that is listed in
        both directions counts once, as it does in ``evaluate``: to count it twice would feign evidence. Only an event
        of your own that tells the two ends apart happens to each direction by itself.

        Parameters
        ----------
        event
            The name of an event of the table.
        y
            Labels (N,); -1 where unknown, outside the mask.
        mask
            Which nodes are looked at, such as ``split.val``; by default all.
        """
        asked = self._event(event)
        inside = check_scoring_input(self.node, y, self.pairs.to(self.node.device), mask)
        rows = inside.mask[inside.edge_index].all(0).nonzero().squeeze(1)
        if asked.is_symmetric:
            rows = rows[select_one_direction(inside.edge_index[:, rows], len(inside.y))]
        ends = inside.edge_index[:, rows]
        happened = asked.happened(inside.y[ends].long(), self.node.argmax(1)[ends])
        return self[f"P({event})"][rows.cpu().numpy()], happened.cpu().numpy()

    def select(self, event: str, threshold: "Threshold") -> "EdgePredictions":
        """Return the same table with a column ``selected``: where P(event) reaches the threshold."""
        self._event(event)
        selected = Column(threshold.select(self[f"P({event})"]))
        return replace(self, table={**self.table, "selected": selected}, note=f"selected by P({event}): {threshold}")

    def _event(self, name: str) -> Event:
        for event in self.events:
            if event.name == name:
                return event
        known = ", ".join(event.name for event in self.events) or "none"
        raise ValueError(f"Expected an event of the table ({known}), but got {name!r}. Predict it: events=({name!r},).")

    def to_arrow(self) -> "pa.Table":
        """Convert the table to Arrow, with convergence and selection in its metadata."""
        import pyarrow as pa

        batches = list(self._batches(max(1, len(self))))
        return pa.Table.from_batches(batches, batches[0].schema)

    def write(self, path: Path | str) -> None:
        """Write a .csv, .parquet or .json file, whole or not at all, some thousand rows at a time.

        JSON is an object; its "pairs" has an object for each row.
        """
        write_table(Path(path), self._batches(BATCH_ROWS))

    def _batches(self, rows: int) -> Iterator["pa.RecordBatch"]:
        """Cut the table; an empty one gives one empty batch."""
        import pyarrow as pa

        metadata = {"convergence": self.convergence, "selection": self.note}
        for lo in range(0, max(1, len(self)), rows):
            some = slice(lo, lo + rows)
            batch = pa.RecordBatch.from_pydict({name: column.to_arrow(some) for name, column in self.table.items()})
            yield batch.replace_schema_metadata(metadata)

    def __repr__(self) -> str:
        return f"EdgePredictions(pairs={len(self)}, columns={list(self.table)})"

    def __str__(self) -> str:
        shown = {name: column for name, column in self.table.items() if name != "convergence"}
        part = slice(0, SHOWN_ROWS)
        cells = [[name, *(_cell(value) for value in column[part].tolist())] for name, column in shown.items()]
        widths = [max(map(len, column)) for column in cells]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in zip(*cells, strict=True)]
        more = [f"… and {len(self) - SHOWN_ROWS:,} more"] if len(self) > SHOWN_ROWS else []
        return "\n".join([*lines, *more, "", f"convergence: {self.convergence}", *([self.note] if self.note else [])])


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4f}"
    return text if len(text := str(value)) <= 24 else f"{text[:23]}…"


def constant_column(text: str, rows: int) -> Column:
    """Make a column that has the same text in each row."""
    return Column(np.broadcast_to(np.int8(0), (rows,)), np.array([text], dtype=object))


def as_array(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as an array, without a copy on the CPU."""
    array: NDArray[Any] = torch.Tensor.numpy(tensor.cpu())
    return array
