"""Truncated and randomly changed files of every kind are read or raise a ValueError."""

import io
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.lib import format as npy
from pyarrow import parquet

import edgewise as ew
from edgewise.files import arrays
from edgewise.files.arrays import FileError
from edgewise.files.inputs import read_array, read_edges, read_labels
from edgewise.files.names import NameFile, read_names
from edgewise.paper.results import Results
from edgewise.paper.study import SCORE_COLUMNS, StudyPlan, StudyRow, read_rows, write_rows
from edgewise.sweep.run_table import write_run_table
from edgewise.sweep.store import Store
from helpers.command_inputs import EDGES, PROBS
from helpers.fake_results import fake_results
from helpers.one_thread import one_thread
from test_cli import run

__all__ = ["one_thread"]

CUTS, CHANGES = 40, 160  # of each file
EFFECTIVE_BYTES = b"\x00\xff\x7f\x80r\n,9"  # cause more errors than others


def fold_archive(path: Path) -> None:
    folds = np.array([np.array([3]), np.array([4, 2])], dtype=object)
    np.savez(path, k_fold_indices=folds, test_indices=np.array([0, 1]))


def fitted(path: Path) -> None:
    from torch_geometric.data import Data

    y = torch.arange(60) % 3
    data = Data(x=torch.eye(60), edge_index=torch.stack([torch.arange(60), torch.arange(60).roll(1)]), y=y)
    ew.GCN(hidden=4, max_epochs=2).fit(data, ew.make_splits(y, n_splits=1)[0], seed=0, directed="undirected").save(path)


def pairwise(path: Path) -> None:
    ew.sum_product(ew.PairwiseMRF(np.log(PROBS + 1e-3), EDGES[:, [0, 2, 3]], np.eye(2)))[0].save(path)


def run_table(path: Path) -> None:
    results = fake_results(("cora",), ("gcn",), folds=1)
    write_run_table(path, results.runs, results.tasks, results.commands, results.failures)


def store(path: Path) -> None:
    with Store.writing(path.parent) as written:
        for fake_run in fake_results(("cora",), ("gcn",), folds=1).runs:
            written.add(fake_run)


def study(path: Path) -> None:
    scores = dict.fromkeys(SCORE_COLUMNS, 0.5)
    write_rows(path, [StudyRow(next(iter(StudyPlan().graphs())), name, scores) for name in "pq"])


LETTERS = NameFile(np.array(list("abcde"), dtype=object), Path("letters.txt"))

# By file name: functions that write a valid file, and that read it.
KINDS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "ids.txt": (lambda path: path.write_text("a\nb\nc\nd\ne\n"), lambda path: read_names(path, 5, "node")),
    "ids.npy": (lambda path: np.save(path, np.array(list("abcde"))), lambda path: read_names(path, 5, "node")),
    "pairs.csv": (
        lambda path: path.write_text('x,y\na,b\n"b",c\n'),
        lambda path: read_edges(path, LETTERS),
    ),
    "pairs.tsv": (lambda path: path.write_text("x\ty\na\tb\nb\tc\n"), lambda path: read_edges(path, LETTERS)),
    "labels.csv": (lambda path: path.write_text("y\na\nb\n\ne\n"), lambda path: read_labels(path, LETTERS, 4)),
    "probs.pt": (lambda path: torch.save(torch.from_numpy(PROBS), path), read_array),
    "all.pt": (
        lambda path: torch.save({"probs": torch.from_numpy(PROBS), "y": torch.arange(5)}, path),
        lambda path: read_array(Path(f"{path}:probs")),
    ),
    "old.pt": (
        lambda path: torch.save(torch.from_numpy(PROBS), path, _use_new_zipfile_serialization=False),
        read_array,
    ),
    "ids.pt": (lambda path: torch.save(list("abcde"), path), lambda path: read_names(path, 5, "node")),
    "mixture.safetensors": (ew.MixturePosterior(np.stack([PROBS, PROBS])).save, ew.Posterior.load),
    "pairwise.safetensors": (pairwise, ew.Posterior.load),
    "fitted.safetensors": (fitted, lambda path: ew.Fitted.load(path).posterior()),
    "cora_split_0.npz": (fold_archive, lambda path: ew.load_splits(path, 5)),
    "runs.parquet": (run_table, Results.read),
    "results.sqlite": (store, Results.read),
    "study.csv": (study, read_rows),
}


def damaged(valid: bytes, rng: random.Random) -> Iterator[bytes]:
    """Truncate a file at many positions, and change, insert and delete bytes at many others."""
    yield from (valid[: len(valid) * cut // CUTS] for cut in range(CUTS))
    for _ in range(CHANGES):
        content = bytearray(valid)
        for _ in range(rng.choice([1, 1, 2, 4])):
            position = rng.randrange(len(content) if rng.random() < 0.6 else min(len(content), 200))
            new = bytes(
                [rng.choice([*EFFECTIVE_BYTES, rng.randrange(256), content[position] ^ (1 << rng.randrange(8))])]
            )
            content[position : position + rng.choice([0, 1, 1, 1, 5])] = new
        yield bytes(content)


@pytest.mark.parametrize("name", KINDS)
def test_damaged_file_is_read_or_raises_value_error(name: str, tmp_path: Path) -> None:
    write, read = KINDS[name]
    path = tmp_path / name
    write(path)
    read(path)
    num_errors = 0
    for content in damaged(path.read_bytes(), random.Random(name)):
        path.write_bytes(content)
        try:
            read(path)
        except ValueError as error:  # and no other error
            num_errors += 1
            assert "Expected" in str(error)
            assert not isinstance(error, UnicodeError)
    assert num_errors > CUTS / 2


def test_error_names_the_file(tmp_path: Path) -> None:
    from test_cli import assert_refused

    ew.IndependentPosterior(PROBS).save(file := tmp_path / "a.safetensors")
    file.write_bytes(file.read_bytes()[:-8] + struct.pack("<d", 0.5))
    np.save(tmp_path / "edges.npy", EDGES)
    result = run("predict", "--probs", file, "--edges", tmp_path / "edges.npy")
    assert_refused(result, f"(probs is {file})")


# --- small files that claim to be large ---


def header(shape: tuple[int, ...], dtype: str = "<i8") -> bytes:
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


HUGE_PICKLE_MEMO = b"\x80\x04Nr" + struct.pack("<I", 1 << 31) + b"."  # would allocate 32 GB


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        (header((10**15,)), "cut off or damaged"),
        (header((2**40, 2**40)), "cut off or damaged"),
        (header((2,), "|O") + HUGE_PICKLE_MEMO, "too much memory"),
        (header((2, 1 << 21)) + bytes(1 << 25), "at most 5 nodes, but got 33554"),
        (b"", "k_fold_indices and test_indices, but got"),
    ],
)
def test_splits_that_would_need_much_memory_raise(folds: bytes, message: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("k_fold_indices.npy", folds)
        archive.writestr("test_indices.npy", header((1,)) + bytes(8))
    with pytest.raises(ValueError, match=message):
        ew.load_splits(tmp_path / "a.npz", 5)


def test_ids_with_a_header_beyond_the_file_size_raise(tmp_path: Path) -> None:
    (tmp_path / "ids.npy").write_bytes(header((10**15,), "<U9") + b"abc")
    with pytest.raises(FileError, match="it is cut off or damaged"):
        read_names(tmp_path / "ids.npy", 5, "node")


def test_file_that_would_unpack_beyond_the_memory_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = np.zeros((1 << 17, 2))
    np.savez_compressed(tmp_path / "a.npz", zeros)
    parquet.write_table(pa.table({"a": zeros[:, 0], "b": zeros[:, 1]}), tmp_path / "a.parquet")
    assert all(path.stat().st_size < zeros.nbytes / 100 for path in tmp_path.iterdir())
    monkeypatch.setattr(arrays.os, "sysconf", lambda name: {"SC_PHYS_PAGES": 256, "SC_PAGE_SIZE": 4096}[name])
    for name in ("a.npz", "a.parquet"):
        with pytest.raises(FileError, match=f"Expected .*{name} to fit in the 0 GiB of memory"):
            read_array(tmp_path / name)
