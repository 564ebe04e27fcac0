"""Who is labelled, who validates, who is tested: random stratified splits."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise.data.arrays import ArrayLike, as_tensor, checked_labels
from edgewise.data.options import check_number, check_whole_number

Indices = Int[np.ndarray, " _"]  # of any length


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint sets of nodes as masks; other nodes have no label.

    Attributes
    ----------
    train
        The nodes whose labels are learnt from.
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
    labelled: float = 0.15,
    test: float = 0.85,
) -> list[Split]:
    """Draw stratified splits: a share of each class is labelled and dealt into folds, a share of the rest is tested.

    With n nodes in a class, ⌊labelled · n⌋ are labelled and ⌊test · (n - ⌊labelled · n⌋)⌋ tested. Fold f is the
    validation set, the other folds are the training set. The splits come in order: split 0 fold 0, split 0 fold 1, …

    Parameters
    ----------
    y
        Labels (N,); nodes with label -1 belong to no set.
    n_splits
        How often nodes are drawn.
    n_folds
        How many folds the labelled nodes of a draw are dealt into, each of which validates in one split.
    seed
        Split s depends on the seed and on s only.
    labelled
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
    _check_plan(n_splits, n_folds, seed, labelled, test)
    splits: list[Split] = []
    for split in range(n_splits):
        rng = np.random.default_rng([seed, split])
        folds, tested = _draw(labels, n_folds, rng, labelled, test)
        splits += one_split_per_fold(folds, tested, len(labels), split)
    return [_on_device(split, y.device) for split in splits] if isinstance(y, Tensor) else splits


def one_split_per_fold(folds: Sequence[Indices], tested: Indices, num_nodes: int, split: int) -> list[Split]:
    """Let each fold validate in turn, with the others as training set."""
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


def _known_labels(y: ArrayLike) -> Indices:
    labels: Indices = checked_labels(as_tensor(y, "y").cpu()).long().numpy()
    if not (labels >= 0).any():
        raise ValueError("Expected at least one node with a label, but got none.")
    return labels


def _check_plan(n_splits: int, n_folds: int, seed: int, labelled: float, test: float) -> None:
    check_whole_number("n_splits", n_splits, 1, 2**31 - 1)
    check_whole_number("n_folds", n_folds, 2, 2**31 - 1)
    check_whole_number("seed", seed, 0, 2**63 - 1)
    check_number("labelled", labelled, above=0, below=1)
    check_number("test", test, above=0, most=1)
