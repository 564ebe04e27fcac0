"""Reading arrays from .npy, .npz, .csv and .parquet files, and errors for invalid files."""

import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pyarrow import parquet

from edgewise.files import arrays, inputs, tables
from edgewise.files.arrays import FileError
from edgewise.files.inputs import read_array, read_edge_probs, read_edges, read_labels, read_mask, read_probs

PROBS = np.array([[0.9, 0.1], [0.25, 0.75], [0.5, 0.5]])
EDGES = np.array([[0, 1, 2, 0], [1, 2, 0, 2]])
JOINTS = np.full((4, 2, 2), 0.25)

# --- writers of all formats ---


def save_npy(path: Path, array: np.ndarray) -> Path:
    np.save(path.with_suffix(".npy"), array)
    return path.with_suffix(".npy")


def save_npz(path: Path, array: np.ndarray) -> Path:
    np.savez_compressed(path.with_suffix(".npz"), anything=array)
    return path.with_suffix(".npz")


def save_csv(path: Path, array: np.ndarray) -> Path:
    rows = [",".join(str(cell.item()) for cell in np.atleast_1d(row)) for row in array]
    path.with_suffix(".csv").write_text("\n".join(rows) + "\n")
    return path.with_suffix(".csv")


def save_csv_with_header(path: Path, array: np.ndarray) -> Path:
    file = save_csv(path, array)
    names = ",".join(f"c{k}" for k in range(array.shape[1] if array.ndim == 2 else 1))
    file.write_text(f"{names}\n{file.read_text()}")
    return file


def save_parquet(path: Path, array: np.ndarray) -> Path:
    columns = {f"c{k}": column for k, column in enumerate(array.T if array.ndim == 2 else [array])}
    parquet.write_table(pa.table(columns), path.with_suffix(".parquet"), row_group_size=2)
    return path.with_suffix(".parquet")


def save_lists(path: Path, array: np.ndarray) -> Path:
    parquet.write_table(pa.table({"c": array.tolist()}), path.with_suffix(".parquet"), row_group_size=2)
    return path.with_suffix(".parquet")


def save_fixed_lists(path: Path, array: np.ndarray) -> Path:
    values = pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
    parquet.write_table(pa.table({"c": values}), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


Save = Callable[[Path, np.ndarray], Path]
COLUMNS: list[Save] = [save_npy, save_npz, save_csv, save_csv_with_header, save_parquet]
TABLES: list[Save] = [*COLUMNS, save_lists, save_fixed_lists]


def equal(read: np.ndarray, expected: np.ndarray) -> bool:
    return read.shape == expected.shape and read.dtype == expected.dtype and bool((read == expected).all())


# --- round trips ---


@pytest.mark.parametrize("save", TABLES)
@pytest.mark.parametrize("array", [PROBS, EDGES.T, PROBS > 0.4], ids=["floats", "integers", "booleans"])
def test_matrix_round_trip(save: Save, array: np.ndarray, tmp_path: Path) -> None:
    assert equal(read_array(save(tmp_path / "table", array)), array)


@pytest.mark.parametrize("save", COLUMNS)
@pytest.mark.parametrize("array", [PROBS[:, 0], EDGES[0], PROBS[:, 0] > 0.4], ids=["floats", "integers", "booleans"])
def test_one_column_is_read_as_a_vector(save: Save, array: np.ndarray, tmp_path: Path) -> None:
    assert equal(read_array(save(tmp_path / "column", array)), array)


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.floats(width=64, allow_nan=False)))
def test_csv_and_parquet_keep_every_bit_of_floats(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray) -> None:
    folder = tmp_path_factory.mktemp("floats")
    expected = array if array.shape[1] > 1 else array[:, 0]
    for save in (save_csv_with_header, save_parquet):
        assert (read_array(save(folder / "table", array)).view(np.int64) == expected.view(np.int64)).all()


def test_path_selects_one_array_of_an_npz_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", **{"probs": PROBS, "group/edges": EDGES})
    assert equal(read_array(tmp_path / "all.npz:probs"), PROBS)
    assert equal(read_edges(tmp_path / "all.npz:group/edges"), EDGES)
    with pytest.raises(FileError, match=r"one array in .*all.npz, but it holds probs, group/edges"):
        read_array(tmp_path / "all.npz")
    with pytest.raises(FileError, match=r"Expected an array 'y' in .*all.npz, but it holds probs, group/edges"):
        read_array(tmp_path / "all.npz:y")


def test_large_npy_file_is_memory_mapped_copy_on_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save_npy(tmp_path / "probs", PROBS)
    before = file.read_bytes()
    assert not isinstance(read_probs(file), np.memmap)
    monkeypatch.setattr(arrays, "MIN_MEMMAP_BYTES", len(before))
    mapped = read_probs(file)
    assert isinstance(mapped, np.memmap)
    assert equal(mapped, PROBS)
    mapped[0] = 7
    assert file.read_bytes() == before
    assert isinstance(read_edges(save_npy(tmp_path / "edges", EDGES.T.repeat(9, 0))), np.memmap)


# --- .csv ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p0,p1\n0.5,0.5\n", [[0.5, 0.5]]),
        ("\ufeffp0,p1\r\n 0.5 , 0.5\r\n\r\n", [[0.5, 0.5]]),
        ('"1","2"\n"3","4"\n', [[1, 2], [3, 4]]),
        ("0,1\n1,2\n", [[0, 1], [1, 2]]),  # edges, the first of which joins 0 and 1
        ("0,1,2\n0.5,0.25,0.25\n", [[0.5, 0.25, 0.25]]),  # a matrix as pandas writes it
        ("True,false\nFALSE,true\n", [[True, False], [False, True]]),
        ("true\nfalse", [True, False]),
        ("1\n1e-3\n", [1.0, 0.001]),
        ("y\n", np.empty((0, 1), np.int64)),
        ("nan\n-inf\n", [np.nan, -np.inf]),
    ],
)
def test_csv_values_and_headers(text: str, expected: list[object], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode())
    np.testing.assert_array_equal(read_array(tmp_path / "a.csv"), np.array(expected), strict=True)


def test_csv_column_with_integers_before_fractions_is_float(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CSV_BLOCK_BYTES", 16)
    (tmp_path / "a.csv").write_text("0,1\n" * 20 + "0.5,0.5\n")
    assert read_array(tmp_path / "a.csv")[-1].tolist() == [0.5, 0.5]


# --- probabilities, labels, edges, masks and joints ---


@pytest.mark.parametrize("save", TABLES)
def test_edges_from_two_columns(save: Save, tmp_path: Path) -> None:
    assert equal(read_edges(save(tmp_path / "edges", EDGES.T)), EDGES)


@pytest.mark.parametrize("save", TABLES)
def test_two_by_two_edges_are_transposed_only_in_tables(save: Save, tmp_path: Path) -> None:
    two = np.array([[0, 1], [0, 2]])
    read = read_edges(save(tmp_path / "edges", two))
    assert equal(read, two if save in (save_npy, save_npz) else two.T)


def test_empty_edge_list(tmp_path: Path) -> None:
    none = np.empty((2, 0), np.int64)
    for file in (
        save_npy(tmp_path / "a", none),
        save_npy(tmp_path / "b", none.T),
        save_csv_with_header(tmp_path / "c", none.T),
        save_parquet(tmp_path / "d", none.T),
    ):
        assert equal(read_edges(file), none)


@pytest.mark.parametrize("save", TABLES)
def test_flat_joints_are_reshaped(save: Save, tmp_path: Path) -> None:
    joints = np.arange(16.0).reshape(4, 2, 2) / 8
    assert equal(read_edge_probs(save(tmp_path / "q", joints.reshape(4, 4))), joints)


@pytest.mark.parametrize("save", [save_npy, save_npz, save_lists])
def test_joints_with_three_dimensions(save: Save, tmp_path: Path) -> None:
    assert equal(read_edge_probs(save(tmp_path / "q", JOINTS)), JOINTS)


def test_integer_probabilities_in_csv_become_floats(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("a,b\n1,0\n0,1\n")
    probs = read_probs(tmp_path / "p.csv")
    assert equal(probs, np.eye(2))
    assert probs.flags.c_contiguous


@pytest.mark.parametrize("save", COLUMNS)
def test_masks_of_booleans_or_zeros_and_ones(save: Save, tmp_path: Path) -> None:
    mask = np.array([True, False, True])
    for saved in (mask, mask.astype(np.int64), mask[:, None]):
        assert equal(read_mask(save(tmp_path / "mask", saved)), mask)


@pytest.mark.parametrize("save", COLUMNS)
def test_labels_from_one_column(save: Save, tmp_path: Path) -> None:
    for saved in (np.array([0, -1, 2]), np.array([[0], [-1], [2]])):
        assert equal(read_labels(save(tmp_path / "y", saved)), np.array([0, -1, 2]))


@pytest.mark.parametrize(
    ("read", "array", "message"),
    [
        (read_probs, PROBS[0], r"probabilities \(nodes, classes\), but got shape \(2,\)"),
        (read_labels, EDGES, r"one column, one label per node, but got shape \(2, 4\)"),
        (read_labels, PROBS[0], r"labels as integers, but got numbers of type float64"),
        (read_labels, np.array([0, np.nan]), r"got numbers with NaN of type float64.*-1"),
        (read_edges, EDGES[0], r"edges as .*, but got shape \(4,\)"),
        (read_edges, np.zeros((3, 3), int), r"but got shape \(3, 3\)"),
        (read_edges, EDGES.astype(float), r"nodes as integers, but got .*float64.*astype\(int\)"),
        (read_mask, EDGES[0], r"row 2 holds 2.*mask\[nodes\] = True"),
        (read_mask, PROBS[0], r"booleans, or 0 and 1, as integers, but got .*float64"),
        (read_mask, EDGES, r"one boolean per node, but got shape \(2, 4\)"),
        (read_edge_probs, np.zeros((4, 3)), r"but got shape \(4, 3\)"),
        (read_edge_probs, np.zeros(4), r"but got shape \(4,\)"),
    ],
)
def test_array_of_wrong_shape_or_type_is_rejected(
    read: Callable[[Path], np.ndarray], array: np.ndarray, message: str, tmp_path: Path
) -> None:
    with pytest.raises(FileError, match=f"Expected .*input.npy to hold .*{message}"):
        read(save_npy(tmp_path / "input", array))


def test_table_of_edges_must_have_two_columns(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"edges.csv to hold edges as two columns, .*, but got shape \(2, 4\)"):
        read_edges(save_csv(tmp_path / "edges", EDGES))


# --- invalid files ---


def npy_bytes(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npy_with_header(header: str, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + content


def npz_bytes(member: bytes, name: str = "a.npy") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, member)
    return stream.getvalue()


def parquet_bytes(**columns: object) -> bytes:
    stream = io.BytesIO()
    parquet.write_table(pa.table(columns), stream)
    return stream.getvalue()


OBJECTS = npy_bytes(np.array([{"a": 1}, None], dtype=object))
HUGE = npy_with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,)}\n", b"\0" * 80)
NOT_NPY = "a valid .npy file of numbers"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", b"", "the file is empty"),
        ("a.npy", b"\x80\x04N.", NOT_NPY),  # a pickle
        ("a.npy", npz_bytes(npy_bytes(PROBS)), NOT_NPY),
        ("a.npy", npy_bytes(PROBS)[:-8], "Expected 48 bytes of numbers in .*, but got 40"),
        ("a.npy", npy_bytes(PROBS)[:40], NOT_NPY),
        ("a.npy", npy_bytes(PROBS) + npy_bytes(PROBS), "Expected 48 bytes .* damaged. Save it again"),
        ("a.npy", OBJECTS, "pickled Python objects"),
        ("a.npy", npy_bytes(np.array(["a", "b"])), r"numbers in .* dtype <U1.*np\.unique"),
        ("a.npy", npy_bytes(np.array([b"a"])), r"numbers in .* dtype \|S1"),
        ("a.npy", npy_bytes(np.array([0], np.longdouble)), r"64 bits in .*dtype float.*with \.astype\(float\)"),
        ("a.npy", npy_bytes(np.array(["2020-01-01"], "M8[D]")), "Expected numbers in .*datetime64.* a plain array of"),
        ("a.npy", npy_bytes(np.zeros(1, [("u", "i4")])), "Expected numbers in .*'u'.* Save a plain array of booleans"),
        ("a.npy", npy_bytes(np.array([1j])), "numbers in .* dtype complex128. Save a plain array of booleans"),
        ("a.npy", HUGE, "Expected 8000000000000000 bytes .* but got 80"),
        ("a.npy", npy_with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}\n"), "damaged"),
        ("a.npy", npy_with_header("{'descr': '<f8', 'fortran_order': " + "(" * 900), NOT_NPY),
        ("a.npz", b"PK\x03\x04 and no more", "a valid .npz file of numbers, but got: File is not a zip file"),
        ("a.npz", npy_bytes(PROBS), "a valid .npz file of numbers"),
        ("a.npz", npz_bytes(npy_bytes(PROBS))[:-30], "a valid .npz file of numbers"),
        ("a.npz", npz_bytes(OBJECTS), "pickled Python objects"),
        ("a.npz", npz_bytes(HUGE), "but got 80"),
        ("a.npz", npz_bytes(b"text", "a.txt"), "Expected one array in .* but it holds none"),
        ("a.csv", b"", "the file is empty"),
        ("a.csv", b"\n\n", "the first line of .*, but it is empty"),
        ("a.csv", b"0,1\n2\n", "Row #2: Expected 2 columns, got 1: 2"),
        ("a.csv", b"u,v\n0,1\n2,3,4\n", "Row #3: Expected 2 columns, got 3: 2,3,4"),
        ("a.csv", b"u,v\n0,1\n2,\n", "column 2 is empty in row 1 .counted from 0"),
        ("a.csv", b"u,v\n,\n", "column 1 is empty in row 0"),
        ("a.csv", b"y\n0\ncat\n", "column 1 holds text such as 'cat'"),
        ("a.csv", b"0\ncat\n", "column 1 holds text such as 'cat'"),
        ("a.csv", b"y\nNA\n1\n", "column 1 holds text such as 'NA'"),
        ("a.csv", "0,1\n2,3\n".encode("utf-16"), "text in UTF-8, but got UTF-16. Save it as UTF-8"),
        ("a.csv", b"\xfe\xff" + "0,1\n".encode("utf-16-be"), "Save it as UTF-8"),
        ("a.csv", b"0.5;0.5\n", "columns separated by commas in .*, but its only line is '0.5;0.5'"),
        ("a.csv", b"0 1", "columns separated by commas in .*, but its only line is '0 1'"),
        ("a.csv", b"0;1\n2;3\n", "column 1 holds text such as '2;3'"),
        ("a.csv", b"when\n2020-01-01\n", "column 1 holds date32.* values"),
        ("a.csv", b",0,1\n0,0.5,0.5\n", "first in .*, but got an empty cell. .*pandas: index=False"),
        ("a.csv", b"0,\n1,2\n", "column 2 is empty in row 0"),
        ("a.csv", b"0,oops\n1,2\n", "either names or numbers in the first line of .*, but got both, such as 'oops'"),
        ("a.csv", b"\xff\xfd\x00\n\xff\xfd\x00\n", "column 1 holds binary values"),
        ("a.parquet", b"PAR1", "a valid .parquet file of numbers"),
        ("a.parquet", parquet_bytes(a=[1.0, 2.0])[:-20], "a valid .parquet file of numbers"),
        ("a.parquet", parquet_bytes(a=[1], b=["cat"]), "column b holds text such as 'cat'. Separate columns by commas"),
        ("a.parquet", parquet_bytes(a=[1, None]), "column a is empty in row 1"),
        ("a.parquet", parquet_bytes(a=[None, None]), "column a is empty in row 0"),
        ("a.parquet", parquet_bytes(a=[[1, 2], [3]]), "lists of one length in column a of .* lengths from 1 to 2"),
        ("a.parquet", parquet_bytes(a=[[1, 2], None]), "column a is empty in row 1"),
        ("a.parquet", parquet_bytes(a=[[1, None]]), "column a is empty"),
        ("a.parquet", parquet_bytes(a=[[1, 2]], b=[1]), "Expected one column in .*, as it holds lists, but got 2"),
        ("a.parquet", parquet_bytes(), "it has no columns"),
        ("a.txt", b"1\n", r"ends in .npy, .npz, .csv, .parquet, but got .*a.txt"),
        ("a", b"1\n", r"ends in .npy, .npz, .csv, .parquet, but got .*a"),
    ],
)
def test_invalid_file_raises_file_error_of_one_line(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(FileError, match=message) as raised:
        read_array(file)
    assert str(file) in str(raised.value)
    assert str(raised.value).startswith("Expected ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("suffix", ["npy", "npz", "csv", "parquet"])
def test_missing_file_and_folder_are_rejected(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=rf"Expected a file, but .*no.{suffix} does not exist. Check the path"):
        read_array(tmp_path / f"no.{suffix}")
    (tmp_path / f"folder.{suffix}").mkdir()
    with pytest.raises(FileError, match=rf"folder.{suffix} is a folder"):
        read_array(tmp_path / f"folder.{suffix}")


def test_unreadable_file_is_rejected(tmp_path: Path) -> None:
    file = save_npy(tmp_path / "a", PROBS)
    file.chmod(0)
    if os.access(file, os.R_OK):
        pytest.skip("root may read everything")
    with pytest.raises(FileError, match=r"Expected .*a.npy to be readable, but got: Permission denied"):
        read_array(file)


def raise_error(error: Exception) -> Callable[[Path], np.ndarray]:
    def read(path: Path) -> np.ndarray:
        raise error

    return read


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "Expected .*a.npy to fit in memory, but it does not"),
        (PermissionError(13, "Permission denied"), "Expected .*a.npy to be readable, but got: Permission denied"),
        (RuntimeError("a\nb. "), "but got: a b. Save it again"),
        (RecursionError(), "but got: RecursionError. Save it again"),
    ],
)
def test_all_read_errors_become_file_errors(
    error: Exception, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(inputs.READERS, ".npy", raise_error(error))
    with pytest.raises(FileError, match=message):
        read_array(save_npy(tmp_path / "a", PROBS))


# --- damaged files ---

VALID = {
    "npy": npy_bytes(PROBS),
    "npz": npz_bytes(npy_bytes(PROBS)),
    "csv": b"a,b\n0.5,0.5\n0.25,0.75\n",
    "parquet": parquet_bytes(a=[0.5, 0.25], b=[1, 2]),
}


def read_or_raise_file_error(folder: Path, suffix: str, content: bytes) -> None:
    file = folder / f"damaged.{suffix}"
    file.write_bytes(content)
    try:
        array = read_array(file)
    except FileError as error:
        assert "\n" not in str(error)
    else:
        assert array.dtype.kind in "biuf"


@pytest.mark.parametrize("suffix", VALID)
def test_random_bytes_give_an_array_or_a_file_error(suffix: str, tmp_path: Path) -> None:
    @settings(max_examples=200)
    @given(st.binary())
    @example(b"\x00")
    @example(b"\r")
    @example(b'"')
    def fuzz(content: bytes) -> None:
        read_or_raise_file_error(tmp_path, suffix, content)

    fuzz()


@pytest.mark.parametrize("suffix", VALID)
def test_damaged_file_gives_an_array_or_a_file_error(suffix: str, tmp_path: Path) -> None:
    valid = VALID[suffix]

    @settings(max_examples=300)
    @given(st.integers(0, len(valid) - 1), st.binary(max_size=8), st.integers(0, len(valid)))
    def fuzz(start: int, patch: bytes, length: int) -> None:
        read_or_raise_file_error(tmp_path, suffix, valid[:start] + patch + valid[start + len(patch) :])
        read_or_raise_file_error(tmp_path, suffix, valid[:length])

    fuzz()
