"""The node table: one row of records and one byte of state per node, in files that are mapped into memory."""

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from edgewise.files.output import replace_file
from edgewise.kernels.edge_stream import SCORED
from edgewise.metrics.elements import RECORD_COLUMNS
from edgewise.tables.node_ids import DenseIds, Ids, JoinedIds

if TYPE_CHECKING:
    import pyarrow as pa

DESCRIPTION = "nodes.json"  # written last, so that a table without it is unfinished


class NodeArrays(NamedTuple):
    """Arrays with a row per node. They are read only, and may be shared by processes."""

    records: NDArray[np.float64]
    state: NDArray[np.uint8]
    labels: NDArray[np.integer]
    probs: NDArray[Any] | None
    ids: "pa.Table | None" = None  # of joined ids, where their file is out of reach


@dataclass(frozen=True)
class NodeCounts:
    """Numbers of nodes, and of rows that were skipped because their ids have no prediction.

    Attributes
    ----------
    predictions, labels, scored
        Nodes with a prediction, of these those with a label, and of these those in the mask.
    unknown_labels, unknown_mask
        Skipped rows of the labels and of the mask.
    """

    predictions: int
    labels: int
    scored: int
    unknown_labels: int = 0
    unknown_mask: int = 0


@dataclass(frozen=True)
class NodeTable:
    """The files of a finished node table, and what is known of it."""

    folder: Path
    ids: Ids
    num_classes: int
    counts: NodeCounts

    def arrays(self) -> NodeArrays:
        """Map the files into memory."""
        size = self.ids.size
        records = _map(self.folder / "records.npy", (size, len(RECORD_COLUMNS)))
        probs_file = self.folder / "probs.npy"
        probs = _map(probs_file, (size, self.num_classes)) if probs_file.exists() else None
        labels = _map(self.folder / "labels.npy", (size,))
        if probs is not None and self.num_classes <= 128:
            labels = labels.astype(np.int8)  # once, and not for each slice of edges in `sum_same_label`
        return NodeArrays(records, _map(self.folder / "state.npy", (size,)), labels, probs)

    def state_and_probs(self) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """Map the states and the probabilities into memory, of a table that keeps probabilities."""
        size = self.ids.size
        return _map(self.folder / "state.npy", (size,)), _map(self.folder / "probs.npy", (size, self.num_classes))

    def save(self) -> None:
        """Write the description, after which the table counts as finished."""
        ids: dict[str, object] = asdict(self.ids)
        document = {"ids": ids, "num_classes": self.num_classes, "counts": asdict(self.counts)}
        replace_file(self.folder / DESCRIPTION, lambda file: file.write_text(json.dumps(document)))

    @classmethod
    def load(cls, folder: Path) -> "NodeTable | None":
        """Return the finished table in a folder, or None."""
        if not (folder / DESCRIPTION).exists():
            return None
        document = json.loads((folder / DESCRIPTION).read_text())
        ids: Ids = JoinedIds(**document["ids"]) if "source" in document["ids"] else DenseIds(**document["ids"])
        if isinstance(ids, JoinedIds):
            ids = JoinedIds(ids.kind, ids.size, str(folder / "ids.parquet"))
        return cls(folder, ids, document["num_classes"], NodeCounts(**document["counts"]))


def _map(file: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    """Map an array, copy on write, because torch expects writable memory. An empty file cannot be mapped."""
    array: NDArray[Any] = np.load(file) if 0 in shape else np.load(file, mmap_mode="c")
    return array


def scored_mask(state: NDArray[np.uint8]) -> Bool[Tensor, " nodes"]:
    """Return which nodes are scored."""
    return torch.from_numpy((state & SCORED) != 0)


def as_shared_tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares memory with an array, which may be read only. Nothing must write to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)
