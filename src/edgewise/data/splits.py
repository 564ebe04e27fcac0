"""Who is labeled, who validates, who is tested: random stratified splits."""

import io
import math
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.lib import format as npy
from torch import Tensor

from edgewise.files.arrays import FileError
from edgewise.files.pickles import Indices, unpickle_integer_arrays
from edgewise.validation import ArrayLike, as_tensor, check_labels, check_number, check_seed, check_whole_number


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint sets of nodes as masks; other nodes have no label.

    Attributes
    ----------
    train
        The nodes whose labels are learned from.
    val
        The nodes whose labels tell when to stop.
    test
        The nodes that are scored.
    split
        Which random split it is, a name; one made by hand needs none.
    fold
        Which fold of it validates, a name too.

    Examples
    --------
    >>> train, val, test = torch.eye(3).bool()
    >>> Split(train, val, test)
    Split(train=1, val=1, test=1 of 3 nodes, split=0, fold=0)
    """

    train: Bool[Tensor, " nodes"]
    val: Bool[Tensor, " nodes"]
    test: Bool[Tensor, " nodes"]
    split: int = 0
    fold: int = 0

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}={int(getattr(self, name).sum())}" for name in ("train", "val", "test"))
        return f"Split({counts} of {len(self.train)} nodes, split={self.split}, fold={self.fold})"


def make_splits(
    y: Int[Tensor, " nodes"] | Int[np.ndarray, " nodes"],
    n_splits: int = 5,
    n_folds: int = 3,
    seed: int = 0,
    *,
    labeled: float = 0.15,
    test: float = 0.85,
) -> list[Split]:
    """Draw stratified splits: a share of each class is labeled and dealt into folds, a share of the rest is tested.

    With n nodes in a class, ⌊labeled · n⌋ are labeled and ⌊test · (n - ⌊labeled · n⌋)⌋ tested. Fold f is the
    validation set, the other folds are the training set. The splits come in order: split 0 fold 0, split 0 fold 1, …

    Parameters
    ----------
    y
        Labels (N,); nodes with label -1 belong to no set.
    n_splits
        How often nodes are drawn.
    n_folds
        How many folds the labeled nodes of a draw are dealt into, each of which validates in one split.
    seed
        Split s depends on the seed and on s only.
    labeled
        The share of each class that trains or validates.
    test
        The share of the rest that is tested.

    Examples
    --------
    >>> splits = make_splits(torch.arange(400) % 2)
    >>> len(splits), [int(mask.sum()) for mask in (splits[0].train, splits[0].val, splits[0].test)]
    (15, [40, 20, 288])
    """
    labels = _known_labels(y)
    _check_plan(n_splits, n_folds, seed, labeled, test)
    splits: list[Split] = []
    for split in range(n_splits):
        rng = np.random.default_rng([seed, split])
        folds, tested = _draw(labels, n_folds, rng, labeled, test)
        splits += one_split_per_fold(folds, tested, len(labels), split)
    return [_on_device(split, y.device) for split in splits] if isinstance(y, Tensor) else splits


def one_split_per_fold(folds: Sequence[Indices], tested: Indices, num_nodes: int, split: int) -> list[Split]:
    """Let each fold validate in turn, with the others as training set."""
    masks = torch.stack([_mask(fold, num_nodes) for fold in folds])
    labeled, test = masks.any(dim=0), _mask(tested, num_nodes)
    splits = [Split(labeled & ~val, val, test, split, fold) for fold, val in enumerate(masks)]
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


def _draw(
    labels: Indices, n_folds: int, rng: np.random.Generator, labeled: float, test: float
) -> tuple[list[Indices], Indices]:
    folds: list[list[Indices]] = [[] for _ in range(n_folds)]
    tested: list[Indices] = []
    for label in np.unique(labels[labels >= 0]):
        nodes = rng.permutation(np.flatnonzero(labels == label))
        known, rest = np.split(nodes, [_floor_share(labeled, len(nodes))])
        tested.append(rest[: _floor_share(test, len(rest))])
        for k, fold in enumerate(folds):
            fold.append(known[k::n_folds])
    return [np.concatenate(fold) for fold in folds], np.concatenate(tested)


def _floor_share(share: float, count: int) -> int:
    """Round share · count down, with the share as it is written: 0.29 of 100 is 29, though 0.29 * 100 is 28.999…96."""
    return floor(Fraction(str(share)) * count)


def _known_labels(y: ArrayLike) -> Indices:
    labels: Indices = check_labels(as_tensor(y, "y").cpu()).long().numpy()
    if not (labels >= 0).any():
        raise ValueError("Expected at least one node with a label, but got none.")
    return labels


def _check_plan(n_splits: int, n_folds: int, seed: int, labeled: float, test: float) -> None:
    check_whole_number("n_splits", n_splits, 1, 2**31 - 1)
    check_whole_number("n_folds", n_folds, 2, 2**31 - 1)
    check_seed(seed)
    check_number("labeled", labeled, above=0, below=1)
    check_number("test", test, above=0, most=1)


MAX_BYTES, MAX_BYTES_PER_NODE = 1 << 20, 64  # of an array of nodes; a node takes 8, and more only in a pickle


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
    except FileError as problem:
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
    if member.file_size > MAX_BYTES + MAX_BYTES_PER_NODE * num_nodes:
        raise FileError(
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
        return unpickle_integer_arrays(stream)
    if math.prod(shape) * dtype.itemsize != len(content) - stream.tell():
        raise FileError(f"Expected an array of shape {shape} and dtype {dtype}, but it is cut off or damaged.")
    stream.seek(0)
    array = npy.read_array(stream, allow_pickle=False)
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise FileError(f"Expected lists of integers, but got shape {array.shape} and dtype {array.dtype}.")
    return list(np.atleast_2d(array.astype(np.int64)))
