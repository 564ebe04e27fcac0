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

from edgewise.files import arrays as numpy_files
from edgewise.files import inputs as reading
from edgewise.files import tables
from edgewise.files.arrays import FileError
from edgewise.files.inputs import read_array, read_edge_probs, read_edges, read_labels, read_mask, read_probs

PROBS = np.array([[0.9, 0.1], [0.25, 0.75], [0.5, 0.5]])
EDGES = np.array([[0, 1, 2, 0], [1, 2, 0, 2]])
JOINTS = np.full((4, 2, 2), 0.25)

# --- ways to save a table; an array of one column is one column ---


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


def same(read: np.ndarray, expected: np.ndarray) -> bool:
    return read.shape == expected.shape and read.dtype == expected.dtype and bool((read == expected).all())


# --- every format gives back what was saved ---


@pytest.mark.parametrize("save", TABLES)
@pytest.mark.parametrize("array", [PROBS, EDGES.T, PROBS > 0.4], ids=["floats", "integers", "booleans"])
def test_a_table_comes_back(save: Save, array: np.ndarray, tmp_path: Path) -> None:
    assert same(read_array(save(tmp_path / "table", array)), array)


@pytest.mark.parametrize("save", COLUMNS)
@pytest.mark.parametrize("array", [PROBS[:, 0], EDGES[0], PROBS[:, 0] > 0.4], ids=["floats", "integers", "booleans"])
def test_one_column_is_a_vector(save: Save, array: np.ndarray, tmp_path: Path) -> None:
    assert same(read_array(save(tmp_path / "column", array)), array)


@settings(max_examples=50)
@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.floats(width=64, allow_nan=False)))
def test_floats_survive_text_and_parquet_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray
) -> None:
    folder = tmp_path_factory.mktemp("floats")
    expected = array if array.shape[1] > 1 else array[:, 0]
    for save in (save_csv_with_header, save_parquet):
        assert (read_array(save(folder / "table", array)).view(np.int64) == expected.view(np.int64)).all()


def test_an_archive_of_several_arrays_is_asked_for_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", **{"probs": PROBS, "group/edges": EDGES})
    assert same(read_array(tmp_path / "all.npz:probs"), PROBS)
    assert same(read_edges(tmp_path / "all.npz:group/edges"), EDGES)
    with pytest.raises(FileError, match=r"one array in .*all.npz, but it holds probs, group/edges"):
        read_array(tmp_path / "all.npz")
    with pytest.raises(FileError, match=r"Expected an array 'y' in .*all.npz, but it holds probs, group/edges"):
        read_array(tmp_path / "all.npz:y")


def test_a_large_npy_file_is_mapped_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save_npy(tmp_path / "probs", PROBS)
    before = file.read_bytes()
    assert not isinstance(read_probs(file), np.memmap)
    monkeypatch.setattr(numpy_files, "MIN_MEMMAP_BYTES", len(before))
    mapped = read_probs(file)
    assert isinstance(mapped, np.memmap)
    assert same(mapped, PROBS)
    mapped[0] = 7
    assert file.read_bytes() == before
    assert isinstance(read_edges(save_npy(tmp_path / "edges", EDGES.T.repeat(9, 0))), np.memmap)


# --- text ---


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
def test_text_is_read_as_a_person_reads_it(text: str, expected: list[object], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode())
    np.testing.assert_array_equal(read_array(tmp_path / "a.csv"), np.array(expected), strict=True)


def test_a_column_may_turn_to_fractions_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CSV_BLOCK", 16)
    (tmp_path / "a.csv").write_text("0,1\n" * 20 + "0.5,0.5\n")
    assert read_array(tmp_path / "a.csv")[-1].tolist() == [0.5, 0.5]


# --- what arrays mean ---


@pytest.mark.parametrize("save", TABLES)
def test_two_columns_are_edges(save: Save, tmp_path: Path) -> None:
    assert same(read_edges(save(tmp_path / "edges", EDGES.T)), EDGES)


@pytest.mark.parametrize("save", TABLES)
def test_two_edges_in_a_table_are_two_rows(save: Save, tmp_path: Path) -> None:
    two = np.array([[0, 1], [0, 2]])
    read = read_edges(save(tmp_path / "edges", two))
    assert same(read, two if save in (save_npy, save_npz) else two.T)


def test_an_edge_list_may_be_empty(tmp_path: Path) -> None:
    none = np.empty((2, 0), np.int64)
    for file in (
        save_npy(tmp_path / "a", none),
        save_npy(tmp_path / "b", none.T),
        save_csv_with_header(tmp_path / "c", none.T),
        save_parquet(tmp_path / "d", none.T),
    ):
        assert same(read_edges(file), none)


@pytest.mark.parametrize("save", TABLES)
def test_joints_may_be_flat(save: Save, tmp_path: Path) -> None:
    joints = np.arange(16.0).reshape(4, 2, 2) / 8
    assert same(read_edge_probs(save(tmp_path / "q", joints.reshape(4, 4))), joints)


@pytest.mark.parametrize("save", [save_npy, save_npz, save_lists])
def test_joints_may_have_three_axes(save: Save, tmp_path: Path) -> None:
    assert same(read_edge_probs(save(tmp_path / "q", JOINTS)), JOINTS)


def test_whole_numbers_in_text_are_probabilities_too(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("a,b\n1,0\n0,1\n")
    probs = read_probs(tmp_path / "p.csv")
    assert same(probs, np.eye(2))
    assert probs.flags.c_contiguous


@pytest.mark.parametrize("save", COLUMNS)
def test_masks_are_booleans_or_zeros_and_ones(save: Save, tmp_path: Path) -> None:
    mask = np.array([True, False, True])
    for saved in (mask, mask.astype(np.int64), mask[:, None]):
        assert same(read_mask(save(tmp_path / "mask", saved)), mask)


@pytest.mark.parametrize("save", COLUMNS)
def test_labels_are_one_column(save: Save, tmp_path: Path) -> None:
    for saved in (np.array([0, -1, 2]), np.array([[0], [-1], [2]])):
        assert same(read_labels(save(tmp_path / "y", saved)), np.array([0, -1, 2]))


@pytest.mark.parametrize(
    ("read", "array", "message"),
    [
        (read_probs, PROBS[0], r"probabilities \(nodes, classes\), but got shape \(2,\)"),
        (read_labels, EDGES, r"one column, one label a node, but got shape \(2, 4\)"),
        (read_labels, PROBS[0], r"labels as integers, but got numbers of type float64. A class is written 0, 1, 2"),
        (read_labels, np.array([0, np.nan]), r"got numbers with NaN of type float64.* an unknown label -1"),
        (read_edges, EDGES[0], r"edges as .*, but got shape \(4,\)"),
        (read_edges, np.zeros((3, 3), int), r"but got shape \(3, 3\)"),
        (read_edges, EDGES.astype(float), r"nodes as integers, but got .*float64.* save them with .astype\(int\)"),
        (read_mask, EDGES[0], r"0 and 1, one a node, but row 2 holds 2. For a list of nodes save a mask"),
        (read_mask, PROBS[0], r"booleans, or 0 and 1, as integers, but got .*float64"),
        (read_mask, EDGES, r"one boolean a node, but got shape \(2, 4\)"),
        (read_edge_probs, np.zeros((4, 3)), r"as many columns as classes squared, but got shape \(4, 3\)"),
        (read_edge_probs, np.zeros(4), r"but got shape \(4,\)"),
    ],
)
def test_an_array_of_another_meaning_is_refused(
    read: Callable[[Path], np.ndarray], array: np.ndarray, message: str, tmp_path: Path
) -> None:
    with pytest.raises(FileError, match=f"Expected .*given.npy to hold .*{message}"):
        read(save_npy(tmp_path / "given", array))


def test_a_table_of_edges_has_two_columns(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"edges.csv to hold edges as two columns, .*, but got shape \(2, 4\)"):
        read_edges(save_csv(tmp_path / "edges", EDGES))


# --- what is no array of numbers ---


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
NOT_NPY = "a sound .npy file of numbers"


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
        ("a.npz", b"PK\x03\x04 and no more", "a sound .npz file of numbers, but got: File is not a zip file"),
        ("a.npz", npy_bytes(PROBS), "a sound .npz file of numbers"),
        ("a.npz", npz_bytes(npy_bytes(PROBS))[:-30], "a sound .npz file of numbers"),
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
        ("a.parquet", b"PAR1", "a sound .parquet file of numbers"),
        ("a.parquet", parquet_bytes(a=[1.0, 2.0])[:-20], "a sound .parquet file of numbers"),
        ("a.parquet", parquet_bytes(a=[1], b=["cat"]), "column b holds text such as 'cat'. Separate columns by commas"),
        ("a.parquet", parquet_bytes(a=[1, None]), "column a is empty in row 1"),
        ("a.parquet", parquet_bytes(a=[None, None]), "column a is empty in row 0"),
        (
            "a.parquet",
            parquet_bytes(a=[[1, 2], [3]]),
            "lists of one length in column a of .* lengths from 1 to 2",
        ),
        ("a.parquet", parquet_bytes(a=[[1, 2], None]), "column a is empty in row 1"),
        ("a.parquet", parquet_bytes(a=[[1, None]]), "column a is empty"),
        ("a.parquet", parquet_bytes(a=[[1, 2]], b=[1]), "Expected one column in .*, as it holds lists, but got 2"),
        ("a.parquet", parquet_bytes(), "it has no columns"),
        ("a.txt", b"1\n", r"ends in .npy, .npz, .csv, .parquet, but got .*a.txt"),
        ("a", b"1\n", r"ends in .npy, .npz, .csv, .parquet, but got .*a"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(FileError, match=message) as refusal:
        read_array(file)
    assert str(file) in str(refusal.value)
    assert str(refusal.value).startswith("Expected ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("ending", ["npy", "npz", "csv", "parquet"])
def test_a_missing_file_and_a_folder_are_refused(ending: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=rf"Expected a file, but .*no.{ending} does not exist. Check the path"):
        read_array(tmp_path / f"no.{ending}")
    (tmp_path / f"folder.{ending}").mkdir()
    with pytest.raises(FileError, match=rf"folder.{ending} is a folder. Name a file in it"):
        read_array(tmp_path / f"folder.{ending}")


def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
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
def test_no_other_error_escapes(
    error: Exception, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(reading.READERS, ".npy", raise_error(error))
    with pytest.raises(FileError, match=message):
        read_array(save_npy(tmp_path / "a", PROBS))


# --- damaged files ---

SOUND = {
    "npy": npy_bytes(PROBS),
    "npz": npz_bytes(npy_bytes(PROBS)),
    "csv": b"a,b\n0.5,0.5\n0.25,0.75\n",
    "parquet": parquet_bytes(a=[0.5, 0.25], b=[1, 2]),
}


def read_or_refuse(folder: Path, ending: str, content: bytes) -> None:
    file = folder / f"damaged.{ending}"
    file.write_bytes(content)
    try:
        array = read_array(file)
    except FileError as problem:
        assert "\n" not in str(problem)
    else:
        assert array.dtype.kind in "biuf"


@pytest.mark.parametrize("ending", SOUND)
def test_random_bytes_give_an_array_or_a_refusal(ending: str, tmp_path: Path) -> None:
    @settings(max_examples=200)
    @given(st.binary())
    @example(b"\x00")
    @example(b"\r")
    @example(b'"')
    def fuzz(content: bytes) -> None:
        read_or_refuse(tmp_path, ending, content)

    fuzz()


@pytest.mark.parametrize("ending", SOUND)
def test_a_damaged_file_gives_an_array_or_a_refusal(ending: str, tmp_path: Path) -> None:
    sound = SOUND[ending]

    @settings(max_examples=300)
    @given(st.integers(0, len(sound) - 1), st.binary(max_size=8), st.integers(0, len(sound)))
    def fuzz(place: int, patch: bytes, length: int) -> None:
        read_or_refuse(tmp_path, ending, sound[:place] + patch + sound[place + len(patch) :])
        read_or_refuse(tmp_path, ending, sound[:length])

    fuzz()
