"""Random stratified splits, and published splits from .npz files."""

import io
import math
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.lib import format as npy
from torch import Tensor

from edgewise.conversion import as_labels
from edgewise.files.arrays import FileError
from edgewise.files.pickles import Indices, unpickle_integer_arrays
from edgewise.suggestions import suggest_keywords
from edgewise.validation import ArrayLike, as_tensor, check_mask, check_number, check_seed, check_whole_number


@dataclass(frozen=True, eq=False)
class Split:
    """Disjoint masks of training, validation and test nodes. Labels of other nodes are not used.

    Attributes
    ----------
    train
        Training nodes.
    val
        Validation nodes, used for early stopping and calibration.
    test
        Test nodes, which are scored.
    split
        Number of the random split. It serves only as a name.
    fold
        Number of the fold that is the validation set. It serves only as a name.
    calibration
        Calibration nodes of `ConformalNodes` and `ConformalPairs`, or None. Nothing else may use their labels.

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
    calibration: Bool[Tensor, " nodes"] | None = None

    @staticmethod
    def from_data(data: Any, column: int = 0) -> "Split":
        """Return the split of a torch_geometric Data or DGL graph with ``train_mask``, ``val_mask`` and ``test_mask``.

        Parameters
        ----------
        data
            Anything with the three masks (N,). Several splits may be the columns of masks (N, k), as in PyG's WebKB.
        column
            The column of such masks, which becomes the number ``split``. A mask (N,) belongs to all columns.

        Examples
        --------
        >>> from torch_geometric.data import Data
        >>> train, val, test = torch.eye(3).bool()
        >>> Split.from_data(Data(train_mask=train, val_mask=val, test_mask=test))
        Split(train=1, val=1, test=1 of 3 nodes, split=0, fold=0)
        """
        names = ("train_mask", "val_mask", "test_mask")
        found = getattr(data, "ndata", None)
        masks: dict[str, Any] = {
            name: getattr(data, name, None) if found is None else found.get(name) for name in names
        }
        if missing := [name for name, mask in masks.items() if mask is None]:
            raise ValueError(
                f"Expected data with {', '.join(names)}, but {type(data).__name__} has no {missing[0]}. Pass "
                "ew.Split(train, val, test), or draw a split: ew.make_splits(data.y)[0]."
            )
        tensors = {name: as_tensor(mask, name) for name, mask in masks.items()}
        num_columns = min((mask.shape[1] for mask in tensors.values() if mask.ndim == 2), default=1)
        check_whole_number("column", column, 0, num_columns - 1)
        chosen = {name: mask[:, column] if mask.ndim == 2 else mask for name, mask in tensors.items()}
        num_nodes = len(chosen["train_mask"])
        train, val, test = (check_mask(mask, num_nodes, name) for name, mask in chosen.items())
        return Split(train, val, test, column)

    def __repr__(self) -> str:
        names = ("train", "val", "test") if self.calibration is None else ("train", "val", "calibration", "test")
        counts = ", ".join(f"{name}={int(getattr(self, name).sum())}" for name in names)
        return f"Split({counts} of {len(self.train)} nodes, split={self.split}, fold={self.fold})"


@suggest_keywords
def make_splits(
    y: Int[Tensor, " nodes"] | Int[np.ndarray, " nodes"],
    n_splits: int = 5,
    n_folds: int = 3,
    seed: int = 0,
    *,
    labeled: float = 0.15,
    test: float = 0.85,
    calibration: float = 0.0,
) -> list[Split]:
    """Draw stratified splits: label a fraction of each class, divide it into folds, and test a fraction of the rest.

    With n nodes in a class, ⌊labeled · n⌋ are labeled and ⌊test · (n - ⌊labeled · n⌋)⌋ tested. Fold f is the
    validation set, the other folds are the training set. The order is split 0 fold 0, split 0 fold 1, …

    Parameters
    ----------
    y
        Labels (N,). Nodes with label -1 are in no set.
    n_splits
        Number of random draws.
    n_folds
        Number of folds of the labeled nodes. Each fold is the validation set of one split.
    seed
        Random seed. Split s depends only on the seed and on s.
    labeled
        Fraction of each class for training and validation.
    test
        Fraction of the remaining nodes for testing.
    calibration
        Fraction of the drawn test nodes that become calibration nodes instead. They are drawn uniformly, whatever their
        classes, as the guarantee of conformal sets requires. All folds of a split share them. Training and validation
        nodes do not depend on this fraction.

    Examples
    --------
    >>> splits = make_splits(torch.arange(400) % 2)
    >>> len(splits), [int(mask.sum()) for mask in (splits[0].train, splits[0].val, splits[0].test)]
    (15, [40, 20, 288])
    >>> make_splits(torch.arange(400) % 2, calibration=0.25)[0]
    Split(train=40, val=20, calibration=72, test=216 of 400 nodes, split=0, fold=0)
    """
    labels = _check_split_labels(y)
    _check_split_options(n_splits, n_folds, seed, labeled, test)
    check_number("calibration", calibration, least=0, below=1)
    splits: list[Split] = []
    for split in range(n_splits):
        rng = np.random.default_rng([seed, split])
        folds, tested = _draw(labels, n_folds, rng, labeled, test)
        dealt = rng.permutation(tested)[: _floor_product(calibration, len(tested))] if calibration else None
        splits += [_with_calibration(s, dealt) for s in one_split_per_fold(folds, tested, len(labels), split)]
    return [_to_device(split, y.device) for split in splits] if isinstance(y, Tensor) else splits


def one_split_per_fold(folds: Sequence[Indices], tested: Indices, num_nodes: int, split: int) -> list[Split]:
    """Return one split per fold: the fold is the validation set, and the other folds are the training set."""
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


def _with_calibration(split: Split, dealt: Indices | None) -> Split:
    """Return the split with some of its test nodes as calibration nodes."""
    if dealt is None:
        return split
    calibration = _mask(dealt, len(split.test))
    if not calibration.any():
        raise ValueError(
            f"Expected at least one calibration node, but got none of {int(split.test.sum())} test nodes. Pass a "
            "larger fraction, or calibration=0."
        )
    return replace(split, calibration=calibration, test=split.test & ~calibration)


def _mask(nodes: Indices, num_nodes: int) -> Bool[Tensor, " nodes"]:
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[torch.from_numpy(nodes)] = True
    return mask


def _to_device(split: Split, device: torch.device) -> Split:
    names = ("train", "val", "test") if split.calibration is None else ("train", "val", "test", "calibration")
    return replace(split, **{name: getattr(split, name).to(device) for name in names})


def _draw(
    labels: Indices, n_folds: int, rng: np.random.Generator, labeled: float, test: float
) -> tuple[list[Indices], Indices]:
    folds: list[list[Indices]] = [[] for _ in range(n_folds)]
    tested: list[Indices] = []
    for label in np.unique(labels[labels >= 0]):
        nodes = rng.permutation(np.flatnonzero(labels == label))
        selected, rest = np.split(nodes, [_floor_product(labeled, len(nodes))])
        tested.append(rest[: _floor_product(test, len(rest))])
        for k, fold in enumerate(folds):
            fold.append(selected[k::n_folds])
    return [np.concatenate(fold) for fold in folds], np.concatenate(tested)


def _floor_product(fraction: float, count: int) -> int:
    """Return ⌊fraction · count⌋ in decimal arithmetic: 0.29 of 100 is 29, although 0.29 * 100 is 28.999…96."""
    return floor(Fraction(str(fraction)) * count)


def _check_split_labels(y: ArrayLike) -> Indices:
    labels: Indices = as_labels(y, device=torch.device("cpu")).long().numpy()
    if not (labels >= 0).any():
        raise ValueError("Expected at least one node with a label, but got none. Pass labels from 0.")
    return labels


def _check_split_options(n_splits: int, n_folds: int, seed: int, labeled: float, test: float) -> None:
    check_whole_number("n_splits", n_splits, 1, 2**31 - 1)
    check_whole_number("n_folds", n_folds, 2, 2**31 - 1)
    check_seed(seed)
    check_number("labeled", labeled, above=0, below=1)
    check_number("test", test, above=0, most=1)


MAX_BYTES, MAX_BYTES_PER_NODE = 1 << 20, 64  # of an array of node indices: 8 bytes per node, or more in a pickle


def load_splits(path: str | Path, num_nodes: int) -> list[Split]:
    """Load published splits from a .npz file, or from all .npz files of a folder in the order of their numbers.

    A file holds ``k_fold_indices``, one array of nodes for each fold, and ``test_indices``. Its number comes from its
    name, ``<dataset>_split_<number>.npz``, or else is its position in alphabetical order. Pickled arrays are read
    without executing code.
    """
    splits: list[Split] = []
    for number, file in split_files(Path(path).expanduser()):
        folds, tested = _read_published(file, num_nodes)
        _check_nodes([*folds, tested], num_nodes, file)
        splits += one_split_per_fold(folds, tested, num_nodes, number)
    return splits


def split_files(path: Path) -> list[tuple[int, Path]]:
    """Return the .npz files of a path with the numbers of their splits, in this order."""
    files = [path] if path.is_file() else sorted(path.glob("*.npz")) or sorted(path.rglob("*.npz"))
    if not files:
        raise FileNotFoundError(f"Expected a .npz file or a folder of them, but got {path}.")
    names = [re.search(r"_split_(\d+)$", file.stem) for file in files]
    numbers = [int(name[1]) if name else position for position, name in enumerate(names)]
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
    except FileError as error:
        raise ValueError(f"{error} The file is {file}.") from error
    except Exception as error:  # damaged archives raise BadZipFile, KeyError, zlib.error, …
        raise ValueError(f"Expected {file} to hold k_fold_indices and test_indices, but got: {error}") from error
    if len(folds) < 2 or len(tested) != 1:
        raise ValueError(
            f"Expected at least two folds and one test set, but got {len(folds)} and {len(tested)} in {file}."
        )
    return folds, tested[0]


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo, num_nodes: int) -> bytes:
    """Read a member of an archive, or raise FileError if it is larger than lists of all nodes can be."""
    if member.file_size > MAX_BYTES + MAX_BYTES_PER_NODE * num_nodes:
        raise FileError(
            f"Expected {member.filename} to list at most {num_nodes} nodes, but got {member.file_size} bytes."
        )
    return archive.read(member)


def _check_nodes(sets: Sequence[Indices], num_nodes: int, file: Path) -> None:
    nodes = np.concatenate(sets)
    if nodes.size and not 0 <= nodes.min() <= nodes.max() < num_nodes:
        raise ValueError(f"Expected nodes from 0 to {num_nodes - 1}, but got {nodes.min()} to {nodes.max()} in {file}.")
    counts = np.bincount(nodes, minlength=num_nodes)
    if (counts > 1).any():
        raise ValueError(
            f"Expected each node in at most one set, but got node {counts.argmax()} {counts.max()} times in {file}."
        )


def _read_rows(content: bytes) -> list[Indices]:
    """Read the content of an .npy file: a vector or matrix of integers, or a pickled array of integer arrays."""
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
