"""Files of every kind, cut off and changed at random: each is read or refused by its name, and nothing else happens."""

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
from edgewise.files import arrays as memory
from edgewise.files.arrays import FileError
from edgewise.files.inputs import read_id_pairs, read_names, read_probs
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
LIKELY = b"\x00\xff\x7f\x80r\n,9"  # bytes that change more than others


def fold_archive(path: Path) -> None:
    folds = np.array([np.array([3]), np.array([4, 2])], dtype=object)
    np.savez(path, k_fold_indices=folds, test_indices=np.array([0, 1]))


def fitted(path: Path) -> None:
    from torch_geometric.data import Data

    y = torch.arange(60) % 3
    data = Data(x=torch.eye(60), edge_index=torch.stack([torch.arange(60), torch.arange(60).roll(1)]), y=y)
    ew.GCN().fit(data, ew.make_splits(y, n_splits=1)[0], seed=0, directed="undirected").save(path)


def pairwise(path: Path) -> None:
    ew.sum_product(ew.PairwiseMRF(np.log(PROBS + 1e-3), EDGES[:, [0, 2, 3]], np.eye(2)))[0].save(path)


def run_table(path: Path) -> None:
    found = fake_results(("cora",), ("gcn",), folds=1)
    write_run_table(path, found.runs, found.tasks, found.commands, found.failures)


def store(path: Path) -> None:
    with Store.writing(path.parent) as written:
        for made_up in fake_results(("cora",), ("gcn",), folds=1).runs:
            written.add(made_up)


def study(path: Path) -> None:
    scores = dict.fromkeys(SCORE_COLUMNS, 0.5)
    write_rows(path, [StudyRow(next(iter(StudyPlan().graphs())), name, scores) for name in "pq"])


# By the name of the file: what writes a sound one, and what reads it.
KINDS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "ids.txt": (lambda path: path.write_text("a\nb\nc\nd\ne\n"), lambda path: read_names(path, 5, "node")),
    "ids.npy": (lambda path: np.save(path, np.array(list("abcde"))), lambda path: read_names(path, 5, "node")),
    "pairs.csv": (
        lambda path: path.write_text('x,y\na,b\n"b",c\n'),
        lambda path: read_id_pairs(path, np.array(list("abcde"), dtype=object)),
    ),
    "mixture.safetensors": (ew.MixturePosterior(np.stack([PROBS, PROBS])).save, ew.Posterior.load),
    "pairwise.safetensors": (pairwise, ew.Posterior.load),
    "fitted.safetensors": (fitted, lambda path: ew.Fitted.load(path).posterior()),
    "cora_split_0.npz": (fold_archive, lambda path: ew.load_splits(path, 5)),
    "runs.parquet": (run_table, Results.read),
    "results.sqlite": (store, Results.read),
    "study.csv": (study, read_rows),
}


def damaged(sound: bytes, rng: random.Random) -> Iterator[bytes]:
    """Cut a file off at many places, and change, put in and leave out some bytes at many others."""
    yield from (sound[: len(sound) * cut // CUTS] for cut in range(CUTS))
    for _ in range(CHANGES):
        content = bytearray(sound)
        for _ in range(rng.choice([1, 1, 2, 4])):
            place = rng.randrange(len(content) if rng.random() < 0.6 else min(len(content), 200))
            new = bytes([rng.choice([*LIKELY, rng.randrange(256), content[place] ^ (1 << rng.randrange(8))])])
            content[place : place + rng.choice([0, 1, 1, 1, 5])] = new
        yield bytes(content)


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    write, read = KINDS[name]
    path = tmp_path / name
    write(path)
    read(path)
    refused = 0
    for content in damaged(path.read_bytes(), random.Random(name)):
        path.write_bytes(content)
        try:
            read(path)
        except ValueError as error:  # nothing else may escape
            refused += 1
            assert "Expected" in str(error)
            assert not isinstance(error, UnicodeError)
    assert refused > CUTS / 2


def test_the_file_is_named(tmp_path: Path) -> None:
    from test_cli import assert_refused

    ew.IndependentPosterior(PROBS).save(file := tmp_path / "a.safetensors")
    file.write_bytes(file.read_bytes()[:-8] + struct.pack("<d", 0.5))
    np.save(tmp_path / "edges.npy", EDGES)
    result = run("predict", "--probs", file, "--edges", tmp_path / "edges.npy")
    assert_refused(result, f"(probs is {file})")


# --- little that stands for much ---


def header(shape: tuple[int, ...], dtype: str = "<i8") -> bytes:
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


REMEMBERS_TOO_MUCH = b"\x80\x04Nr" + struct.pack("<I", 1 << 31) + b"."  # would fill 32 GB with nothing


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        (header((10**15,)), "cut off or damaged"),
        (header((2**40, 2**40)), "cut off or damaged"),
        (header((2,), "|O") + REMEMBERS_TOO_MUCH, "too much memory"),
        (header((2, 1 << 21)) + bytes(1 << 25), "at most 5 nodes, but got 33554"),
        (b"", "k_fold_indices and test_indices, but got"),
    ],
)
def test_splits_that_ask_for_much_memory(folds: bytes, message: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("k_fold_indices.npy", folds)
        archive.writestr("test_indices.npy", header((1,)) + bytes(8))
    with pytest.raises(ValueError, match=message):
        ew.load_splits(tmp_path / "a.npz", 5)


def test_ids_that_promise_more_than_there_is(tmp_path: Path) -> None:
    (tmp_path / "ids.npy").write_bytes(header((10**15,), "<U9") + b"abc")
    with pytest.raises(FileError, match="it is cut off or damaged"):
        read_names(tmp_path / "ids.npy", 5, "node")


def test_what_unpacks_to_more_than_the_memory_is_refused_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    much = np.zeros((1 << 17, 2))
    np.savez_compressed(tmp_path / "a.npz", much)
    parquet.write_table(pa.table({"a": much[:, 0], "b": much[:, 1]}), tmp_path / "a.parquet")
    assert all(path.stat().st_size < much.nbytes / 100 for path in tmp_path.iterdir())
    monkeypatch.setattr(memory.os, "sysconf", lambda name: {"SC_PHYS_PAGES": 256, "SC_PAGE_SIZE": 4096}[name])
    for name in ("a.npz", "a.parquet"):
        with pytest.raises(FileError, match=f"Expected .*{name} to fit in the 0 GiB of memory"):
            read_probs(tmp_path / name)
