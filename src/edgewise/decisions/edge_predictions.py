"""The table that `predict_edges` returns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.edges import select_one_direction
from edgewise.decisions.events import Event
from edgewise.files.tables import data_frame, write_table
from edgewise.metrics.scoring_input import check_scoring_input
from edgewise.representation import shorten
from edgewise.suggestions import did_you_mean
from edgewise.validation import ArrayLike

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from edgewise.decisions.thresholds import Threshold

BATCH_ROWS = 1 << 16
BATCH_VALUES = 1 << 20  # of a column, if its cells hold many
MAX_PRINTED_ROWS = 10


class TableColumn(Protocol):
    """A column of a table, from which rows are read in slices."""

    @property
    def names(self) -> NDArray[Any] | None:
        """The names of the classes or nodes in the column, if any."""

    @property
    def max_values(self) -> int:
        """The largest number of values in a cell."""

    def __getitem__(self, part: slice) -> NDArray[Any]: ...

    def to_arrow(self, part: slice) -> "pa.Array":
        """Convert a slice of rows to Arrow."""


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table: numbers, or indices into ``names``."""

    values: NDArray[Any]
    names: NDArray[Any] | None = None
    max_values: int = 1

    def __getitem__(self, part: slice) -> NDArray[Any]:
        values: NDArray[Any] = self.values[part]
        return values if self.names is None else self.names[values]

    def to_arrow(self, part: slice) -> "pa.Array":
        """Convert a slice of rows to Arrow. A text column has type string even if it is empty."""
        import pyarrow as pa

        is_text = self.names is not None and self.names.dtype.kind == "O"
        return pa.array(self[part], pa.string() if is_text else None)


@dataclass(frozen=True, eq=False, repr=False)
class EdgePredictions:
    """Predictions for a list of pairs, one row per pair, in the order of the list. Returned by `predict_edges`.

    Columns: the nodes ``start`` and ``end``; the argmax of each node's marginal, ``start_predicted`` and
    ``end_predicted``; the most likely pair of labels, ``start_label``, ``end_label`` and ``P(labels)``, and the next
    ones with the suffixes ``_2``, ``_3``, …; the probability of each event, such as ``P(same)``; ``method`` and
    ``convergence``. ``table["P(same)"]`` returns a column as an array.

    Attributes
    ----------
    table
        The columns by name. Node ids and class names are looked up when a column is read.
    convergence
        Whether the inference of the posterior converged, as text.
    events
        The events whose probabilities are in the table.
    node
        The node marginals (nodes, classes).
    pairs
        The pairs (2, pairs), as node indices.
    note
        How pairs were selected. Empty before `select`.

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

    table: Mapping[str, TableColumn]
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
            hint = did_you_mean(name, self.table)
            raise KeyError(f"Expected a column of {', '.join(self.table)}, but got {name!r}.{hint}")
        return self.table[name][:]

    def outcomes(
        self, event: str, y: ArrayLike, mask: ArrayLike | None = None
    ) -> tuple[Float[np.ndarray, " some"], Bool[np.ndarray, " some"]]:
        """Return P(event) and whether the event occurred, for the pairs with both ends in the mask.

        Use the result of the validation nodes to choose a threshold, and that of the test nodes to check it. A pair
        listed in both directions counts once, as in ``evaluate``, because it is one observation. Custom events that
        are not symmetric in the two ends are the exception: they count in each direction.

        Parameters
        ----------
        event
            The name of an event in the table.
        y
            Labels (N,), as numbers or as the class names of the table; -1 where unknown, outside the mask.
        mask
            Nodes to use, such as ``split.val``. By default all.
        """
        requested = self._event(event)
        names = self.table["start_predicted"].names
        inputs = check_scoring_input(self.node, y, self.pairs.to(self.node.device), mask, class_names=names)
        rows = inputs.mask[inputs.edge_index].all(0).nonzero().squeeze(1)
        if requested.is_symmetric:
            rows = rows[select_one_direction(inputs.edge_index[:, rows], len(inputs.y))]
        ends = inputs.edge_index[:, rows]
        outcomes = requested.outcomes(inputs.y[ends].long(), self.node.argmax(1)[ends])
        return self[f"P({event})"][rows.cpu().numpy()], outcomes.cpu().numpy()

    def select(self, event: str, threshold: "Threshold") -> "EdgePredictions":
        """Return the table with a boolean column ``selected``, True where P(event) is at least the threshold."""
        self._event(event)
        selected = Column(threshold.select(self[f"P({event})"]))
        return replace(self, table={**self.table, "selected": selected}, note=f"selected by P({event}): {threshold}")

    def _event(self, name: str) -> Event:
        for event in self.events:
            if event.name == name:
                return event
        names = ", ".join(event.name for event in self.events) or "none"
        raise ValueError(
            f"Expected an event of the table ({names}), but got {name!r}. Call predict_edges with events=({name!r},)."
        )

    def to_arrow(self) -> "pa.Table":
        """Convert the table to Arrow, with ``convergence`` and ``selection`` in its metadata."""
        import pyarrow as pa

        batches = list(self._batches(max(1, len(self))))
        return pa.Table.from_batches(batches, batches[0].schema)

    def to_frame(self) -> "pd.DataFrame":
        """Return the table as a pandas DataFrame, one row per pair."""
        return data_frame(self.columns)

    def write(self, path: Path | str) -> None:
        """Write a .csv, .parquet or .json file atomically, in batches of rows.

        A JSON file holds one object. Its "pairs" is a list with one object per row.
        """
        max_values = max(column.max_values for column in self.table.values())
        write_table(Path(path), self._batches(max(1, min(BATCH_ROWS, BATCH_VALUES // max_values))))

    def _batches(self, rows: int) -> Iterator["pa.RecordBatch"]:
        """Yield the table in batches. An empty table yields one empty batch."""
        import pyarrow as pa

        metadata = {"convergence": self.convergence, "selection": self.note}
        for lo in range(0, max(1, len(self)), rows):
            part = slice(lo, lo + rows)
            batch = pa.RecordBatch.from_pydict({name: column.to_arrow(part) for name, column in self.table.items()})
            yield batch.replace_schema_metadata(metadata)

    def __repr__(self) -> str:
        return shorten(f"EdgePredictions(pairs={len(self)}, columns={list(self.table)})")

    def _repr_html_(self) -> str:
        from edgewise.pages.notebook import edge_predictions_html

        return edge_predictions_html(self)

    def __str__(self) -> str:
        shown = {name: column for name, column in self.table.items() if name != "convergence"}
        part = slice(0, MAX_PRINTED_ROWS)
        cells = [[name, *(format_cell(value) for value in column[part].tolist())] for name, column in shown.items()]
        widths = [max(map(len, column)) for column in cells]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in zip(*cells, strict=True)]
        more = [f"… and {len(self) - MAX_PRINTED_ROWS:,} more"] if len(self) > MAX_PRINTED_ROWS else []
        return "\n".join([*lines, *more, "", f"convergence: {self.convergence}", *([self.note] if self.note else [])])


def format_cell(value: object) -> str:
    """Format a cell of a printed table: numbers with four decimals, and texts of at most 24 characters."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4f}"
    return text if len(text := str(value)) <= 24 else f"{text[:23]}…"


def constant_column(text: str, rows: int) -> Column:
    """Return a column with the same text in every row."""
    return Column(np.broadcast_to(np.int8(0), (rows,)), np.array([text], dtype=object))


def as_array(tensor: Tensor) -> NDArray[Any]:
    """Convert a tensor to an array. A CPU tensor is not copied."""
    array: NDArray[Any] = torch.Tensor.numpy(tensor.cpu())
    return array
