"""Writing tables in any number of parts, and comparing evaluations bit by bit."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import compute, csv, dataset, parquet

import edgewise as ew

FORMATS = ("parquet", "csv", "tsv", "memory", "dataset")


def assert_same(first: ew.Evaluation, second: ew.Evaluation) -> None:
    """Compare the sums of all views, which are integers. The first one may have fewer views."""
    for view, sums in first._sums.items():
        assert torch.equal(sums.table, second._sums[view].table), view


@dataclass
class Graph:
    """A graph in memory, in the order of its nodes."""

    ids: pa.Array
    probs: torch.Tensor
    y: torch.Tensor
    edges: torch.Tensor
    mask: torch.Tensor

    def evaluate(self, **options: Any) -> ew.Evaluation:
        return ew.evaluate(self.probs, self.y, self.edges, mask=self.mask, **options)

    def tables(self) -> dict[str, pa.Table]:
        """Return tables of all nodes, of those with labels, of the ids in the mask, and of edges."""
        labeled, selected = (np.flatnonzero(chosen.numpy()) for chosen in (self.y >= 0, self.mask))
        return {
            "probs": pa.table({"nid": self.ids, "pred": prob_lists(self.probs)}),
            "labels": pa.table({"nid": self.ids.take(labeled), "label": self.y.numpy()[labeled]}),
            "mask": pa.table({"nid": self.ids.take(selected)}),
            "edges": pa.table(
                {"src": self.ids.take(self.edges[0].numpy()), "dst": self.ids.take(self.edges[1].numpy())}
            ),
        }


def prob_lists(probs: torch.Tensor) -> pa.Array:
    """Return a column with a list of probabilities in each row."""
    offsets = np.arange(len(probs) + 1, dtype=np.int32) * probs.shape[1]
    return pa.ListArray.from_arrays(offsets, pa.array(probs.numpy().reshape(-1)))


def prob_columns(table: pa.Table, num_classes: int) -> pa.Table:
    """Replace the column of lists by columns p0, p1, …."""
    lists = table["pred"].combine_chunks()
    for k in range(num_classes):
        table = table.append_column(f"p{k}", compute.list_element(lists, k))
    return table.drop_columns(["pred"])


def prob_text(table: pa.Table) -> pa.Table:
    """Replace the column of lists by text such as 0.25;0.75, as GraphStorm writes it to CSV."""
    text = [";".join(map(repr, row)) for row in table["pred"].to_pylist()]
    return table.set_column(table.schema.get_field_index("pred"), "pred", pa.array(text, pa.string()))


def cut(table: pa.Table, cuts: Sequence[int]) -> list[pa.Table]:
    """Cut a table before the given rows. Parts may be empty."""
    limits = [0, *sorted(cuts), len(table)]
    return [table.slice(lo, hi - lo) for lo, hi in pairwise(limits)]


def write_parts(parts: Sequence[pa.Table], kind: str, folder: Path, row_group_size: int = 1 << 20) -> Any:
    """Write parts as files of a new folder, and return the folder; or return a table or dataset in memory."""
    if kind == "memory":
        return pa.concat_tables(parts)
    folder.mkdir()
    suffix = "parquet" if kind == "dataset" else kind
    for k, part in enumerate(parts):
        file = folder / f"part-{k:03d}.{suffix}"
        if suffix == "parquet":
            parquet.write_table(part, file, row_group_size=row_group_size)
        else:
            csv.write_csv(part, file, csv.WriteOptions(delimiter="\t" if suffix == "tsv" else ","))
    return dataset.dataset(folder) if kind == "dataset" else folder
