"""Draw a large random graph as Parquet tables, part by part, with each edge listed in both directions."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import parquet

NUM_CLASSES = 10
NODES_PER_PART = 1_000_000
TEXT_LENGTH = 11
HEXADECIMAL = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


def write_tables(folder: Path, num_nodes: int, num_rows: int, num_parts: int, text: bool) -> None:
    """Write nodes and edges below a folder. Parts that exist are kept.

    Edges are cells (k, m) of a square, each with its own seed. The first half of the parts has the rows of the square,
    the second half its columns with both ends swapped, so the two listings of an edge are in different parts.
    """
    for first in range(0, num_nodes, NODES_PER_PART):
        ids, number = np.arange(first, min(first + NODES_PER_PART, num_nodes)), first // NODES_PER_PART
        _write(folder / "probs" / f"part-{number:03d}.parquet", partial(_draw_probs, ids, text))
        _write(folder / "labels" / f"part-{number:03d}.parquet", partial(_draw_labels, ids, text))
    half = num_parts // 2
    per_cell = num_rows // (2 * half * half)
    for k in range(half):
        for number, cells, order in (
            (2 * k, [(k, m) for m in range(half)], ("src", "dst")),
            (2 * k + 1, [(m, k) for m in range(half)], ("dst", "src")),
        ):

            def draw(cells: list[tuple[int, int]] = cells, order: tuple[str, str] = order) -> pa.Table:
                ends = np.concatenate([draw_cell(*cell, num_nodes, per_cell) for cell in cells], axis=1)
                return pa.table({name: as_ids(end, text) for name, end in zip(order, ends, strict=True)})

            _write(folder / "edges" / f"part-{number:03d}.parquet", draw)


def draw_cell(k: int, m: int, num_nodes: int, num_edges: int) -> NDArray[np.int64]:
    """Draw the ends (2, edges) of edges without self-loops."""
    start, step = np.random.default_rng([k, m]).integers(num_nodes, size=(2, num_edges))
    return np.stack((start, (start + 1 + step % (num_nodes - 1)) % num_nodes))


def as_ids(numbers: NDArray[np.int64], text: bool) -> pa.Array:
    """Return the numbers, or different texts of equal length, such as v3f0e1d2c4b."""
    if not text:
        return pa.array(numbers)
    scrambled = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) & np.uint64((1 << 40) - 1)
    letters = np.empty((len(numbers), TEXT_LENGTH), dtype=np.uint8)
    letters[:, 0] = ord("v")
    for digit in range(1, TEXT_LENGTH):
        letters[:, digit] = HEXADECIMAL[(scrambled >> np.uint64(4 * (digit - 1))) & np.uint64(15)]
    offsets = np.arange(0, letters.size + 1, TEXT_LENGTH, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(letters))


def draw_nodes(ids: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the probabilities and labels of consecutive nodes."""
    generator = torch.Generator().manual_seed(int(ids[0]))
    probs = (2 * torch.randn(len(ids), NUM_CLASSES, generator=generator)).softmax(-1)
    return probs, torch.randint(NUM_CLASSES, (len(ids),), generator=generator)


def _draw_probs(ids: NDArray[np.int64], text: bool) -> pa.Table:
    probs, _ = draw_nodes(ids)
    offsets = np.arange(0, probs.numel() + 1, NUM_CLASSES, dtype=np.int32)
    return pa.table(
        {
            "nid": as_ids(ids, text),
            "pred": pa.ListArray.from_arrays(pa.array(offsets), pa.array(probs.flatten().numpy())),
        }
    )


def _draw_labels(ids: NDArray[np.int64], text: bool) -> pa.Table:
    return pa.table({"nid": as_ids(ids, text), "label": draw_nodes(ids)[1].numpy()})


def _write(file: Path, draw: Callable[[], pa.Table]) -> None:
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    parquet.write_table(draw(), unfinished)
    unfinished.rename(file)
