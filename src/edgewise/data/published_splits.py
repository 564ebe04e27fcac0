"""The splits that the paper published, read without executing what a pickle asks for."""

import io
import math
import pickle
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from edgewise.data.files.problem import FileProblem
from edgewise.data.pickles import check_memo
from edgewise.data.splits import Indices, Split, one_split_per_fold

MOST_BYTES, MOST_BYTES_OF_NODE = 1 << 20, 64  # of an array of nodes; a node takes 8, and more only in a pickle


def load_splits(path: str | Path, num_nodes: int) -> list[Split]:
    """Load published splits: one .npz file, or all those in a folder, in the order of their numbers.

    A file holds ``k_fold_indices``, one array of nodes for each fold, and ``test_indices``. It is numbered by its name,
    ``<dataset>_split_<number>.npz``, or else by its place in alphabetical order. Pickled arrays are read without
    executing anything.
    """
    splits: list[Split] = []
    for number, file in _numbered_files(Path(path).expanduser()):
        folds, tested = _read_published(file, num_nodes)
        _check_nodes([*folds, tested], num_nodes, file)
        splits += one_split_per_fold(folds, tested, num_nodes, number)
    return splits


def _numbered_files(path: Path) -> list[tuple[int, Path]]:
    files = [path] if path.is_file() else sorted(path.glob("*.npz")) or sorted(path.rglob("*.npz"))
    if not files:
        raise FileNotFoundError(f"Expected a .npz file or a folder of them, but got {path}.")
    names = [re.search(r"_split_(\d+)$", file.stem) for file in files]
    numbers = [int(name[1]) if name else place for place, name in enumerate(names)]
    if len(set(numbers)) < len(numbers):
        raise ValueError(
            f"Expected one file for each split, but {path} holds {', '.join(file.name for file in files)}. "
            "Pass the folder of one dataset, or one file."
        )
    return sorted(zip(numbers, files, strict=True))


def _read_published(file: Path, num_nodes: int) -> tuple[list[Indices], Indices]:
    try:
        with zipfile.ZipFile(file) as archive:
            members = (archive.getinfo(f"{key}.npy") for key in ("k_fold_indices", "test_indices"))
            folds, tested = (_read_rows(_content(archive, member, num_nodes)) for member in members)
    except FileProblem as problem:
        raise ValueError(f"{problem} The file is {file}.") from problem
    except Exception as error:  # a damaged archive raises anything: BadZipFile, KeyError, zlib.error, …
        raise ValueError(f"Expected {file} to hold k_fold_indices and test_indices, but got: {error}") from error
    if len(folds) < 2 or len(tested) != 1:
        raise ValueError(
            f"Expected two folds or more and one test set, but got {len(folds)} and {len(tested)} in {file}."
        )
    return folds, tested[0]


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo, num_nodes: int) -> bytes:
    """Unpack a part of an archive, if it is no larger than lists of all nodes could be."""
    if member.file_size > MOST_BYTES + MOST_BYTES_OF_NODE * num_nodes:
        raise FileProblem(
            f"Expected {member.filename} to list some of {num_nodes} nodes, but got {member.file_size} bytes."
        )
    return archive.read(member)


def _check_nodes(sets: Sequence[Indices], num_nodes: int, file: Path) -> None:
    nodes = np.concatenate(sets)
    if nodes.size and not 0 <= nodes.min() <= nodes.max() < num_nodes:
        raise ValueError(f"Expected nodes from 0 to {num_nodes - 1}, but got {nodes.min()} to {nodes.max()} in {file}.")
    times = np.bincount(nodes, minlength=num_nodes)
    if (times > 1).any():
        raise ValueError(
            f"Expected a node in one set at most, but got node {times.argmax()} {times.max()} times in {file}."
        )


def _read_rows(content: bytes) -> list[Indices]:
    """Read the inside of an .npy file: an array of integers, a matrix of them, or a pickled list of arrays."""
    stream = io.BytesIO(content)
    read_header = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    if dtype.hasobject:
        return _unpickle_arrays(stream)
    if math.prod(shape) * dtype.itemsize != len(content) - stream.tell():
        raise FileProblem(f"Expected an array of shape {shape} and dtype {dtype}, but it is cut off or damaged.")
    stream.seek(0)
    array = npy.read_array(stream, allow_pickle=False)
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise FileProblem(f"Expected lists of integers, but got shape {array.shape} and dtype {array.dtype}.")
    return list(np.atleast_2d(array.astype(np.int64)))


class _Inert:
    """Stands for all a pickle may name: it keeps what it is called with and computes nothing."""

    def __init__(self, *args: object) -> None:
        self.args = args
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _ArrayUnpickler(pickle.Unpickler):
    """Admits the names that arrays are pickled with, and hands out not even those."""

    def find_class(self, module: str, name: str) -> Any:
        """Look the name up in a short list, never in the interpreter."""
        admitted = {"ndarray", "dtype"} if module == "numpy" else {"_reconstruct"}
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray") and name in admitted:
            return _Inert
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _unpickle_arrays(stream: io.BytesIO) -> list[Indices]:
    try:
        check_memo(stream)
        match _ArrayUnpickler(stream).load():
            # An array is pickled as (version, shape, dtype, Fortran order, content); "O" is the dtype of objects.
            case _Inert(state=(_, (_,), _Inert(args=("O" | "O4" | "O8", *_)), _, list(items))):
                return [_to_array(item) for item in items]
        raise pickle.UnpicklingError("it is something else")
    except Exception as error:  # a pickle that was tampered with raises anything
        raise FileProblem(f"Expected a pickle of integer arrays and nothing else, but {error}.") from error


def _to_array(item: object) -> Indices:
    match item:
        case _Inert(
            state=(_, (int(length),), _Inert(args=(str(code), *_), state=(_, str(order), *_)), _, bytes(content))
        ) if re.fullmatch("[<>|=][iu][1248]", order + code):
            array: Indices = np.frombuffer(content, dtype=order + code)
            return array.reshape(length).astype(np.int64)
    raise pickle.UnpicklingError("it holds something else")
