"""Random stratified splits, and published splits with untrusted pickles."""

import io
import math
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from edgewise.data import Split, load_splits, make_splits

# --- random splits ---

# Twenty nodes in a class are enough for one node in each of three folds and a test set.
LABELS = st.lists(st.integers(20, 90), min_size=1, max_size=5).flatmap(
    lambda sizes: st.permutations([label for label, size in enumerate(sizes) for _ in range(size)])
)


def nodes(mask: torch.Tensor) -> set[int]:
    return set(mask.nonzero().flatten().tolist())


@given(LABELS, st.integers(0, 2**40))
def test_sets_are_disjoint_and_sizes_are_rounded_down_per_class(labels: list[int], seed: int) -> None:
    y = torch.tensor(labels)
    for split in make_splits(y, n_splits=2, seed=seed):
        assert not (split.train & split.val).any()
        assert not ((split.train | split.val) & split.test).any()
        for label in y.unique():
            num_nodes = int((y == label).sum())
            num_labeled = math.floor(num_nodes * 15 / 100)
            fold_sizes = [len(range(fold, num_labeled, 3)) for fold in range(3)]
            assert int((split.val & (y == label)).sum()) == fold_sizes[split.fold]
            assert int((split.train & (y == label)).sum()) == num_labeled - fold_sizes[split.fold]
            assert int((split.test & (y == label)).sum()) == math.floor((num_nodes - num_labeled) * 85 / 100)


@given(LABELS, st.integers(2, 3))
def test_folds_partition_the_labeled_nodes_and_share_the_test_set(labels: list[int], n_folds: int) -> None:
    splits = make_splits(np.array(labels), n_splits=2, n_folds=n_folds)
    for s in range(2):
        of_split = [split for split in splits if split.split == s]
        labeled = nodes(of_split[0].train | of_split[0].val)
        assert sum(int(split.val.sum()) for split in of_split) == len(labeled)
        assert set().union(*(nodes(split.val) for split in of_split)) == labeled
        for split in of_split:
            assert nodes(split.train) == labeled - nodes(split.val)
            assert torch.equal(split.test, of_split[0].test)


def as_lists(splits: list[Split]) -> list[list[list[bool]]]:
    return [[split.train.tolist(), split.val.tolist(), split.test.tolist()] for split in splits]


@given(LABELS, st.integers(0, 1000))
def test_split_depends_only_on_seed_and_number(labels: list[int], seed: int) -> None:
    y = torch.tensor(labels)
    np.random.seed(1)  # noqa: NPY002, the global state is what must not matter
    once = as_lists(make_splits(y, seed=seed))
    np.random.seed(2)  # noqa: NPY002
    assert as_lists(make_splits(y.numpy(), seed=seed)) == once
    assert as_lists(make_splits(y, n_splits=2, seed=seed)) == once[:6]
    assert as_lists(make_splits(y, seed=seed + 1)) != once


def test_global_random_state_is_unchanged() -> None:
    torch.manual_seed(0)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    make_splits(torch.zeros(100, dtype=torch.long))
    assert torch.equal(before, torch.get_rng_state())
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002


def test_splits_are_ordered_by_split_then_fold() -> None:
    splits = make_splits(torch.zeros(100, dtype=torch.long))
    assert [(s.split, s.fold) for s in splits] == [(split, fold) for split in range(5) for fold in range(3)]
    assert splits[0].train.shape == (100,)
    assert splits[0].train.dtype == torch.bool
    assert not torch.equal(splits[0].test, splits[3].test)


def test_labeled_and_test_fractions() -> None:
    split = make_splits(torch.zeros(100, dtype=torch.long), labeled=0.29, test=1.0)[0]
    assert int((split.train | split.val).sum()) == 29  # though 0.29 * 100 is 28.999999999999996
    assert int(split.test.sum()) == 71


def test_unlabeled_nodes_are_in_no_set() -> None:
    y = torch.zeros(200, dtype=torch.long)
    y[::2] = -1
    for split in make_splits(y):
        assert not (split.train | split.val | split.test)[::2].any()
        assert int(split.train.sum()) == 10


def test_small_class_may_have_no_labeled_node() -> None:
    y = torch.tensor([0] * 100 + [1] * 6)
    split = make_splits(y)[0]
    assert not (split.train | split.val)[100:].any()
    assert int(split.test[100:].sum()) == 5


def test_empty_set_is_rejected() -> None:
    with pytest.raises(ValueError, match="Expected at least one train node"):
        make_splits(torch.arange(100))  # a hundred classes of one node each
    with pytest.raises(ValueError, match="Expected at least one val node, but split 0 fold 2 has none"):
        make_splits(torch.zeros(19, dtype=torch.long))  # two labels for three folds
    with pytest.raises(ValueError, match="Expected at least one test node"):
        make_splits(torch.zeros(100, dtype=torch.long), test=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_splits": 0}, "n_splits to be a whole number from 1 to .*, but got 0"),
        ({"n_splits": 2.5}, "n_splits to be a whole number from 1 to .*, but got 2.5"),
        ({"n_splits": True}, "n_splits to be a whole number from 1 to .*, but got True"),
        ({"n_folds": 1}, "n_folds to be a whole number from 2 to .*, but got 1"),
        ({"seed": -1}, "seed to be a whole number from 0 to .*, but got -1"),
        ({"labeled": 1.0}, "labeled to be a number above 0 and below 1, but got 1.0"),
        ({"labeled": math.nan}, "labeled to be a number above 0 and below 1, but got nan"),
        ({"test": 0.0}, "test to be a number above 0 and at most 1, but got 0.0"),
        ({"test": 15}, "test to be a number above 0 and at most 1, but got 15"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"Expected {message}"):
        make_splits(np.zeros(100, dtype=np.int64), **options)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros(100), "Expected y to hold integers, but got dtype torch.float64"),
        (np.zeros((100, 2), dtype=np.int64), r"but got shape \(100, 2\).*y.argmax\(-1\)"),
        (np.array(["a", "b"]), "Expected y to hold numbers"),
        ([0.0, 1.0], r"y.astype\(int\).*y = np.array\(y\)"),
        (np.full(100, -2), "node 0 has label -2"),
        (np.full(100, -1), "Expected at least one node with a label"),
        (np.zeros(0, dtype=np.int64), "Expected at least one node with a label"),
    ],
)
def test_invalid_labels_are_rejected(y: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_splits(y)


# --- published splits ---

RAGGED = ([0, 3], [1, 4], [2])
EQUAL = ([0, 3], [1, 4], [2, 5])


def ragged(folds: tuple[list[int], ...], dtype: str = "int64") -> np.ndarray:
    array = np.empty(len(folds), dtype=object)
    array[:] = [np.array(fold, dtype=dtype) for fold in folds]
    return array


def save(path: Path, folds: object, test: object = (6, 7, 8)) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    np.savez(path, k_fold_indices=folds, test_indices=np.asarray(test))
    return path


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", ">i4"])
@pytest.mark.parametrize("folds", [RAGGED, EQUAL])
def test_folds_as_matrix_or_object_array(tmp_path: Path, folds: tuple[list[int], ...], dtype: str) -> None:
    array = ragged(folds, dtype) if folds is RAGGED else np.array(folds, dtype=dtype)
    splits = load_splits(save(tmp_path / "cora_split_3.npz", array), num_nodes=10)
    assert [(split.split, split.fold) for split in splits] == [(3, 0), (3, 1), (3, 2)]
    for split, fold in zip(splits, folds, strict=True):
        assert nodes(split.val) == set(fold)
        assert nodes(split.train) == set().union(*folds) - set(fold)
        assert nodes(split.test) == {6, 7, 8}
        assert split.test.shape == (10,)


def test_pickles_of_old_and_new_numpy_are_read(tmp_path: Path) -> None:
    path = save(tmp_path / "new.npz", ragged(RAGGED))
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    start = content["k_fold_indices.npy"].index(b"\n") + 1
    for module in (b"numpy.core.multiarray", b"numpy._core.multiarray"):
        pickled = pickle.dumps(ragged(RAGGED), protocol=3)
        pickled = pickled.replace(b"numpy._core.multiarray", module).replace(b"numpy.core.multiarray", module)
        with zipfile.ZipFile(tmp_path / "old.npz", "w") as archive:
            archive.writestr("k_fold_indices.npy", content["k_fold_indices.npy"][:start] + pickled)
            archive.writestr("test_indices.npy", content["test_indices.npy"])
        assert [nodes(split.val) for split in load_splits(tmp_path / "old.npz", 10)] == [{0, 3}, {1, 4}, {2}]


def test_folder_is_read_in_the_order_of_split_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        save(tmp_path / "5_3f_85" / f"cora_split_{number}.npz", np.array(EQUAL), test=[6 + number // 5])
    splits = load_splits(tmp_path / "5_3f_85", num_nodes=10)
    assert [split.split for split in splits] == [0, 0, 0, 2, 2, 2, 10, 10, 10]
    assert [nodes(split.test) for split in splits[::3]] == [{6}, {6}, {8}]
    assert as_lists(load_splits(str(tmp_path), num_nodes=10)) == as_lists(splits)


def test_files_without_a_number_are_numbered_alphabetically(tmp_path: Path) -> None:
    for name in ("b", "a"):
        save(tmp_path / f"{name}.npz", np.array(EQUAL))
    assert [split.split for split in load_splits(tmp_path, 10)] == [0, 0, 0, 1, 1, 1]


def test_two_datasets_in_one_folder_are_rejected(tmp_path: Path) -> None:
    for name in ("cora", "pubmed"):
        save(tmp_path / f"{name}_split_0.npz", np.array(EQUAL))
    with pytest.raises(ValueError, match="Expected one file for each split"):
        load_splits(tmp_path, 10)


def test_path_without_files_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Expected a \.npz file or a folder of them"):
        load_splits(tmp_path / "nowhere", 10)


class Malicious:
    def __init__(self, created: Path) -> None:
        self.created = created

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.created,))


def save_with_pickle(path: Path, pickled: bytes) -> Path:
    """Write a split file whose k_fold_indices is an object array with the given pickle."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": (3,)})
    with zipfile.ZipFile(save(path, np.array(EQUAL))) as archive:
        test_indices = archive.read("test_indices.npy")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("k_fold_indices.npy", header.getvalue() + pickled)
        archive.writestr("test_indices.npy", test_indices)
    return path


def test_malicious_pickle_is_rejected_and_not_executed(tmp_path: Path) -> None:
    created = tmp_path / "executed"
    hidden = np.empty(3, dtype=object)
    hidden[:] = [np.array([0]), np.array([1]), Malicious(created)]
    for pickled in (pickle.dumps(Malicious(created)), pickle.dumps(hidden)):
        with pytest.raises(ValueError, match="a pickle of integer arrays only, but it refers to"):
            load_splits(save_with_pickle(tmp_path / "evil.npz", pickled), 10)
        assert not created.exists()
    pickle.loads(pickle.dumps(hidden))  # pickle.loads does execute it
    assert created.exists()


@pytest.mark.parametrize(
    "content",
    [
        [np.array([0.5]), np.array([1.0])],
        [np.array(["a"]), np.array(["b"])],
        [np.array([[0]]), np.array([[1]])],
        [np.array([True]), np.array([False])],
        [0, 1],
        ["a", "b"],
    ],
)
def test_pickled_objects_other_than_integer_arrays_are_rejected(tmp_path: Path, content: list[object]) -> None:
    array = np.empty(len(content), dtype=object)
    for i, item in enumerate(content):
        array[i] = item
    with pytest.raises(ValueError, match="a pickle of integer arrays only, but it"):
        load_splits(save(tmp_path / "other.npz", array), 10)


@pytest.mark.parametrize(
    "pickled",
    [
        pickle.dumps([1, 2, 3]),
        pickle.dumps(np.int64(3)),
        b"",
        b"not a pickle",
        b"\x80\x03cnumpy\nndarray\n.",  # the class itself
        b"\x80\x03cnumpy\nndarray\n)\x81.",  # an instance created without arguments
        b"\x80\x03cnumpy\nload\n.",
        b"\x80\x03cnumpy.core.multiarray\nndarray\n.",
        b"\x80\x03cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
    ],
)
def test_other_pickles_are_rejected(tmp_path: Path, pickled: bytes) -> None:
    with pytest.raises(ValueError, match="a pickle of integer arrays only, but"):
        load_splits(save_with_pickle(tmp_path / "other.npz", pickled), 10)


@pytest.mark.parametrize(
    ("folds", "test", "message"),
    [
        (EQUAL, [6, 10], "Expected nodes from 0 to 9, but got 0 to 10"),
        (EQUAL, [6, -1], "Expected nodes from 0 to 9, but got -1 to 6"),
        (EQUAL, [5, 6], "but got node 5 2 times"),
        ([[0, 1], [1, 2]], [6], "but got node 1 2 times"),
        ([[0.0, 1.0]], [6], "Expected lists of integers, but got .* float64"),
        (EQUAL, [[6], [7]], "at least two folds and one test set, but got 3 and 2"),
        (EQUAL, [True], "Expected lists of integers, but got .* bool"),
        (3, [6], r"Expected lists of integers, but got shape \(\)"),
        ([0, 1], [6], "at least two folds and one test set, but got 1 and 1"),
        (np.zeros((0, 2), dtype=int), [6], "at least two folds and one test set, but got 0 and 1"),
        ([[], []], [6], "Expected lists of integers, but got .* float64"),
        (np.zeros((2, 0), dtype=int), [6], "Expected at least one train node"),
    ],
)
def test_invalid_indices_are_rejected(tmp_path: Path, folds: object, test: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_splits(save(tmp_path / "cora_split_0.npz", np.array(folds), test), 10)


def test_other_files_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("text")
    np.savez(tmp_path / "keys.npz", train=np.arange(3))
    with pytest.raises(ValueError, match="to hold k_fold_indices and test_indices, but got: File is not a zip file"):
        load_splits(tmp_path / "text.npz", 10)
    with pytest.raises(ValueError, match=r"to hold k_fold_indices and test_indices, but got: .*k_fold_indices"):
        load_splits(tmp_path / "keys.npz", 10)


TRAIN, VAL, TEST = torch.eye(4)[:3].bool()


def test_split_from_masks_of_data() -> None:
    split = Split.from_data(Data(train_mask=TRAIN, val_mask=VAL.byte(), test_mask=TEST.float()))
    assert as_lists([split]) == as_lists([Split(TRAIN, VAL, TEST)])


def test_column_selects_one_of_several_splits_of_data() -> None:
    data = Data(
        train_mask=torch.stack([VAL, TRAIN], 1),
        val_mask=torch.stack([TRAIN, VAL], 1),
        test_mask=TEST,  # one for all, as in PyG's WikiCS
    )
    assert as_lists([Split.from_data(data, column=1)]) == as_lists([Split(TRAIN, VAL, TEST)])
    assert as_lists([Split.from_data(data)]) == as_lists([Split(VAL, TRAIN, TEST)])
    assert Split.from_data(data, column=1).split == 1
    with pytest.raises(ValueError, match=r"column .* from 0 to 1, but got 2"):
        Split.from_data(data, column=2)
    data.val_mask = torch.stack([TRAIN, VAL, VAL], 1)  # more columns than train_mask
    with pytest.raises(ValueError, match=r"column .* from 0 to 1, but got 2"):
        Split.from_data(data, column=2)


def test_data_without_masks_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"Data has no val_mask.*make_splits\(data.y\)\[0\]"):
        Split.from_data(Data(train_mask=TRAIN, test_mask=TEST))
    with pytest.raises(ValueError, match=r"val_mask of shape \(4,\)"):
        Split.from_data(Data(train_mask=TRAIN, val_mask=VAL[:3], test_mask=TEST))


def test_calibration_nodes_come_from_the_test_nodes_and_change_no_other_set():
    y = torch.arange(600) % 3
    for before, after in zip(make_splits(y), make_splits(y, calibration=0.25), strict=True):
        assert before.calibration is None
        assert torch.equal(before.train, after.train)
        assert torch.equal(before.val, after.val)
        assert torch.equal(before.test, after.test | after.calibration)
        assert not (after.test & after.calibration).any()
        assert int(after.calibration.sum()) == int(before.test.sum()) // 4
    first, second = make_splits(y, n_splits=1, calibration=0.25)[:2]
    assert torch.equal(first.calibration, second.calibration)


def test_calibration_nodes_are_not_stratified():
    """The number of calibration nodes of a class is hypergeometric. Its variance would be near 0 if stratified."""
    y = torch.arange(200) % 2
    counts = [int(s.calibration[y == 0].sum()) for s in make_splits(y, n_splits=400, n_folds=2, calibration=0.5)[::2]]
    tested = int(make_splits(y, n_splits=1)[0].test.sum())
    variance = tested / 4 * 0.25 * tested / (tested - 1)
    assert np.var(counts) == pytest.approx(variance, rel=0.3)
    assert np.mean(counts) == pytest.approx(tested / 4, abs=5 * (variance / 400) ** 0.5)


def test_invalid_calibration_fraction_raises():
    y = torch.arange(60) % 3
    for fraction in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="Expected calibration to be a number of at least 0 and below 1"):
            make_splits(y, calibration=fraction)
    with pytest.raises(ValueError, match="at least one calibration node"):
        make_splits(y, calibration=0.001)
