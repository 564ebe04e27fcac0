"""Who is labelled, who validates, who is tested: random stratified splits, and the published ones."""

import io
import pickle
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.lib import format as npy
from torch import Tensor

Indices = Int[np.ndarray, " _"]  # of any length


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint sets of nodes as masks, and which fold of which split they are; other nodes have no label."""

    train: Bool[Tensor, " nodes"]
    val: Bool[Tensor, " nodes"]
    test: Bool[Tensor, " nodes"]
    split: int
    fold: int


def make_splits(
    y: Int[Tensor, " nodes"] | Int[np.ndarray, " nodes"],
    n_splits: int = 5,
    n_folds: int = 3,
    seed: int = 0,
    *,
    labelled: float = 0.15,
    test: float = 0.85,
) -> list[Split]:
    """Draw stratified splits: a share of each class is labelled and dealt into folds, a share of the rest is tested.

    With n nodes in a class, ⌊labelled · n⌋ are labelled and ⌊test · (n - ⌊labelled · n⌋)⌋ tested. Fold f is the
    validation set, the other folds are the training set. Nodes with label -1 belong to no set. Split s depends on the
    seed and on s only. The splits come in order: split 0 fold 0, split 0 fold 1, …

    >>> splits = make_splits(torch.arange(400) % 2)
    >>> len(splits), [int(mask.sum()) for mask in (splits[0].train, splits[0].val, splits[0].test)]
    (15, [40, 20, 288])
    """
    labels = _checked_labels(y)
    _check_plan(n_splits, n_folds, seed, labelled, test)
    splits: list[Split] = []
    for split in range(n_splits):
        rng = np.random.default_rng([seed, split])
        folds, tested = _draw(labels, n_folds, rng, labelled, test)
        splits += _one_split_per_fold(folds, tested, len(labels), split)
    return [_on_device(split, y.device) for split in splits] if isinstance(y, Tensor) else splits


def load_splits(path: str | Path, num_nodes: int) -> list[Split]:
    """Load published splits: one .npz file, or all those in a folder, in the order of their numbers.

    A file holds ``k_fold_indices``, one array of nodes for each fold, and ``test_indices``. It is numbered by its name,
    ``<dataset>_split_<number>.npz``, or else by its place in alphabetical order. Pickled arrays are read without
    executing anything.
    """
    splits: list[Split] = []
    for number, file in _numbered_files(Path(path).expanduser()):
        folds, tested = _read_published(file)
        _check_nodes([*folds, tested], num_nodes, file)
        splits += _one_split_per_fold(folds, tested, num_nodes, number)
    return splits


def _one_split_per_fold(folds: Sequence[Indices], tested: Indices, num_nodes: int, split: int) -> list[Split]:
    masks = torch.stack([_mask(fold, num_nodes) for fold in folds])
    labelled, test = masks.any(dim=0), _mask(tested, num_nodes)
    splits = [Split(labelled & ~val, val, test, split, fold) for fold, val in enumerate(masks)]
    for s in splits:
        for name in ("train", "val", "test"):
            if not getattr(s, name).any():
                raise ValueError(
                    f"Expected at least one {name} node, but split {split} fold {s.fold} has none. "
                    "Label more nodes, or use another number of folds (at least two)."
                )
    return splits


def _mask(nodes: Indices, num_nodes: int) -> Bool[Tensor, " nodes"]:
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[torch.from_numpy(nodes)] = True
    return mask


def _on_device(split: Split, device: torch.device) -> Split:
    return Split(split.train.to(device), split.val.to(device), split.test.to(device), split.split, split.fold)


# --- random splits ---


def _draw(
    labels: Indices, n_folds: int, rng: np.random.Generator, labelled: float, test: float
) -> tuple[list[Indices], Indices]:
    folds: list[list[Indices]] = [[] for _ in range(n_folds)]
    tested: list[Indices] = []
    for label in np.unique(labels[labels >= 0]):
        nodes = rng.permutation(np.flatnonzero(labels == label))
        known, rest = np.split(nodes, [_floor_share(labelled, len(nodes))])
        tested.append(rest[: _floor_share(test, len(rest))])
        for k, fold in enumerate(folds):
            fold.append(known[k::n_folds])
    return [np.concatenate(fold) for fold in folds], np.concatenate(tested)


def _floor_share(share: float, count: int) -> int:
    """Round share · count down, with the share as it is written: 0.29 of 100 is 29, though 0.29 * 100 is 28.999…96."""
    return floor(Fraction(str(share)) * count)


def _checked_labels(y: Tensor | np.ndarray) -> Indices:
    labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"Expected one integer label for each node, but got shape {labels.shape} and dtype {labels.dtype}. "
            "For one-hot labels pass y.argmax(-1), for a column y.squeeze(1)."
        )
    labels = labels.astype(np.int64)
    if (labels < -1).any():
        raise ValueError(f"Expected labels from 0 on, or -1 for unknown, but got {labels.min()}.")
    if not (labels >= 0).any():
        raise ValueError("Expected at least one node with a label, but got none.")
    return labels


def _check_plan(n_splits: int, n_folds: int, seed: int, labelled: float, test: float) -> None:
    for name, value, least in (("n_splits", n_splits, 1), ("n_folds", n_folds, 2), ("seed", seed, 0)):
        if not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"Expected {name} to be an integer of at least {least}, but got {value}.")
    if not 0 < labelled < 1:
        raise ValueError(f"Expected labelled to be a share between 0 and 1, but got {labelled}.")
    if not 0 < test <= 1:
        raise ValueError(f"Expected test to be a share above 0 and at most 1, but got {test}.")


# --- published splits ---


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


def _read_published(file: Path) -> tuple[list[Indices], Indices]:
    try:
        with zipfile.ZipFile(file) as archive:
            folds, tested = (_read_rows(archive.read(f"{key}.npy")) for key in ("k_fold_indices", "test_indices"))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"Expected {file} to hold k_fold_indices and test_indices, but got: {error}") from error
    except ValueError as error:
        raise ValueError(f"{error} The file is {file}.") from error
    if len(folds) < 2 or len(tested) != 1:
        raise ValueError(
            f"Expected two folds or more and one test set, but got {len(folds)} and {len(tested)} in {file}."
        )
    return folds, tested[0]


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
    _, _, dtype = read_header(stream)
    if dtype.hasobject:
        return _unpickle_arrays(stream)
    stream.seek(0)
    array = npy.read_array(stream, allow_pickle=False)
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise ValueError(f"Expected lists of integers, but got shape {array.shape} and dtype {array.dtype}.")
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
        match _ArrayUnpickler(stream).load():
            # An array is pickled as (version, shape, dtype, Fortran order, content); "O" is the dtype of objects.
            case _Inert(state=(_, (_,), _Inert(args=("O" | "O4" | "O8", *_)), _, list(items))):
                return [_to_array(item) for item in items]
        raise pickle.UnpicklingError("it is something else")
    except Exception as error:  # a pickle that was tampered with raises anything
        raise ValueError(f"Expected a pickle of integer arrays and nothing else, but {error}.") from error


def _to_array(item: object) -> Indices:
    match item:
        case _Inert(
            state=(_, (int(length),), _Inert(args=(str(code), *_), state=(_, str(order), *_)), _, bytes(content))
        ) if re.fullmatch("[<>|=][iu][1248]", order + code):
            array: Indices = np.frombuffer(content, dtype=order + code)
            return array.reshape(length).astype(np.int64)
    raise pickle.UnpicklingError("it holds something else")
