"""Reading arrays and names from files of all formats, and errors for invalid files."""

import io
import os
import re
import struct
import tomllib
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from packaging.requirements import Requirement
from pyarrow import parquet

from edgewise.files import arrays, inputs, tables, tensors
from edgewise.files.arrays import FileError
from edgewise.files.inputs import (
    read_array,
    read_edge_probs,
    read_edges,
    read_groups,
    read_labels,
    read_mask,
    read_rows,
)
from edgewise.files.names import NameFile, read_header_names, read_names

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


def save_tsv(path: Path, array: np.ndarray) -> Path:
    path.with_suffix(".tsv").write_text(save_csv(path, array).read_text().replace(",", "\t"))
    return path.with_suffix(".tsv")


def save_pt(path: Path, array: np.ndarray) -> Path:
    torch.save(torch.from_numpy(array), path.with_suffix(".pt"))
    return path.with_suffix(".pt")


def save_pt_by_name(path: Path, array: np.ndarray) -> Path:
    torch.save({"anything": torch.from_numpy(array), "epoch": 3}, path.with_suffix(".pt"))
    return path.with_suffix(".pt:anything")


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
ARRAYS: list[Save] = [save_npy, save_npz, save_pt, save_pt_by_name]
COLUMNS: list[Save] = [*ARRAYS, save_csv, save_tsv, save_csv_with_header, save_parquet]
TABLES: list[Save] = [*COLUMNS, save_lists, save_fixed_lists]


def equal(read: np.ndarray, expected: np.ndarray) -> bool:
    return read.shape == expected.shape and read.dtype == expected.dtype and bool((read == expected).all())


def test_torch_that_executes_code_from_pt_files_is_not_installed() -> None:
    """`torch.load` with ``weights_only=True`` executes code up to version 2.5.1 (CVE-2025-32434)."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    required = {Requirement(line).name: Requirement(line).specifier for line in project["dependencies"]}
    assert "2.5.1" not in required["torch"] and "2.6.0" in required["torch"]


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


def test_misspelled_name_of_an_array_gets_a_suggestion(tmp_path: Path) -> None:
    np.savez(tmp_path / "out.npz", probs=PROBS, edges=EDGES)
    torch.save({"probs": torch.from_numpy(PROBS), "edges": torch.from_numpy(EDGES)}, tmp_path / "out.pt")
    for file in (tmp_path / "out.npz", tmp_path / "out.pt"):
        with pytest.raises(
            FileError, match=r"an array 'prob' in .*, but it holds probs, edges. Did you mean 'probs'\?"
        ):
            read_array(Path(f"{file}:prob"))
        with pytest.raises(FileError, match=rf"it holds probs, edges. Select one: {file}:probs.") as raised:
            read_array(file)
        way_out = Path(str(raised.value).split("Select one: ")[1].rstrip("."))
        assert equal(read_array(way_out), PROBS)


# --- .pt ---


def test_bfloat16_and_parameters_are_read(tmp_path: Path) -> None:
    torch.save(torch.nn.Parameter(torch.eye(2)), tmp_path / "weight.pth")
    assert equal(read_array(tmp_path / "weight.pth"), np.eye(2, dtype=np.float32))
    torch.save(torch.tensor([0.5, 0.25]).bfloat16(), tmp_path / "half.pt")
    assert equal(read_array(tmp_path / "half.pt"), np.array([0.5, 0.25], np.float32))


def test_large_pt_file_is_memory_mapped_copy_on_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save_pt(tmp_path / "probs", PROBS)
    before, loaded, load = file.read_bytes(), [], torch.load
    monkeypatch.setattr(
        torch, "load", lambda *args, **options: loaded.append(options["mmap"]) or load(*args, **options)
    )
    read_array(file)
    monkeypatch.setattr(tensors, "MIN_MEMMAP_BYTES", len(before))
    mapped = read_array(file)
    assert loaded == [False, True]
    assert equal(mapped, PROBS)
    mapped[0] = 7
    assert file.read_bytes() == before


def save_as_advised(error: FileError, file: Path, **names: object) -> None:
    """Run the torch.save(…) that a message advises, with FILE.pt replaced by a path."""
    code = re.search(r"torch\.save\(.*?'FILE\.pt'\)", str(error))
    exec(code[0].replace("'FILE.pt'", "file"), {"torch": torch, "file": file, **names})


def test_graph_of_pyg_is_refused_with_a_way_out(tmp_path: Path) -> None:
    from torch_geometric.data import Data

    data = Data(x=torch.eye(3), edge_index=torch.from_numpy(EDGES), y=torch.tensor([0, 1, 0]))
    torch.save(data, tmp_path / "data.pt")
    with pytest.raises(
        FileError, match=r"Expected tensors in .*data.pt, but it holds a graph of torch_geometric"
    ) as raised:
        read_edges(tmp_path / "data.pt")
    assert "\n" not in str(raised.value)
    save_as_advised(raised.value, tmp_path / "tensors.pt", data=data)
    assert equal(read_edges(tmp_path / "tensors.pt:edge_index"), EDGES)
    assert equal(read_labels(tmp_path / "tensors.pt:y"), data.y.numpy())


def test_sparse_adjacency_is_refused_with_a_way_out(tmp_path: Path) -> None:
    adjacency = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]).to_sparse()
    torch.save(adjacency, tmp_path / "adjacency.pt")
    with pytest.raises(FileError, match=r"dense tensor in .*adjacency.pt, but got torch.sparse_coo") as raised:
        read_edges(tmp_path / "adjacency.pt")
    save_as_advised(raised.value, tmp_path / "edges.pt", adjacency=adjacency)
    assert sorted(read_edges(tmp_path / "edges.pt").T.tolist()) == sorted(EDGES.T.tolist())


class Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"probs": PROBS}, "it holds an object of type"),  # NumPy arrays are pickled
        (Trap(), "it holds an object of type"),
        ([torch.eye(2)], "it holds a list. Save tensors"),
        ({"epoch": 3}, "it holds none. Save an array in it"),
        ("text", "it holds a str. Save tensors"),
        (torch.tensor([1j]), "dtype complex64. Save a plain array"),
    ],
)
def test_pt_file_of_other_objects_is_refused(
    content: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(FileError, match=message) as raised:
        read_array(tmp_path / "a.pt")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "executed").exists()


def test_single_tensor_has_no_name(tmp_path: Path) -> None:
    file = save_pt(tmp_path / "a", PROBS)
    with pytest.raises(FileError, match=rf"a dictionary with 'probs', but it holds a Tensor. Pass {file}.$"):
        read_array(Path(f"{file}:probs"))


def test_pt_file_that_would_unpack_beyond_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(torch.zeros(1).expand(1 << 20), tmp_path / "expanded.pt")
    torch.save(torch.zeros(1 << 20), tmp_path / "stored.pt")
    with zipfile.ZipFile(tmp_path / "stored.pt") as stored, zipfile.ZipFile(tmp_path / "zip.pt", "w", 8) as packed:
        for member in stored.namelist():
            packed.writestr(member, stored.read(member))
    monkeypatch.setattr(arrays.os, "sysconf", lambda name: {"SC_PHYS_PAGES": 256, "SC_PAGE_SIZE": 4096}[name])
    for name in ("expanded.pt", "zip.pt"):
        assert (tmp_path / name).stat().st_size < 1 << 14
        with pytest.raises(FileError, match=f"Expected .*{name} to fit in the 0 GiB of memory"):
            read_array(tmp_path / name)


def test_large_npy_file_is_memory_mapped_copy_on_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save_npy(tmp_path / "probs", PROBS)
    before = file.read_bytes()
    assert not isinstance(read_array(file), np.memmap)
    monkeypatch.setattr(arrays, "MIN_MEMMAP_BYTES", len(before))
    mapped = read_array(file)
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
    assert equal(read, two if save in ARRAYS else two.T)


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


@pytest.mark.parametrize("save", [*ARRAYS, save_lists])
def test_joints_with_three_dimensions(save: Save, tmp_path: Path) -> None:
    assert equal(read_edge_probs(save(tmp_path / "q", JOINTS)), JOINTS)


def test_integer_probabilities_in_csv_become_floats(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("a,b\n1,0\n0,1\n")
    probs = read_rows(tmp_path / "p.csv", "probabilities")
    assert equal(probs, np.eye(2))
    assert probs.flags.c_contiguous


@pytest.mark.parametrize("save", COLUMNS)
def test_masks_of_booleans_or_zeros_and_ones(save: Save, tmp_path: Path) -> None:
    mask = np.array([True, False, True])
    for saved in (mask, mask.astype(np.int64), mask.astype(np.uint8), mask.astype(float), mask[:, None]):
        assert equal(read_mask(save(tmp_path / "mask", saved)), mask)


@pytest.mark.parametrize("save", COLUMNS)
def test_labels_from_one_column(save: Save, tmp_path: Path) -> None:
    for saved in (np.array([0, -1, 2]), np.array([[0], [-1], [2]])):
        assert equal(read_labels(save(tmp_path / "y", saved)), np.array([0, -1, 2]))


@pytest.mark.parametrize("save", [save_csv, save_tsv, save_csv_with_header, save_parquet])
def test_whole_floats_of_tables_are_integers(save: Save, tmp_path: Path) -> None:
    edges, labels, mask = EDGES.T.astype(float), np.array([3.0, 0.0, -1.0]), np.array([1.0, 0.0, 1.0])
    assert equal(read_edges(save(tmp_path / "edges", edges)), EDGES)
    assert equal(read_labels(save(tmp_path / "labels", labels)), labels.astype(np.int64))
    assert equal(read_mask(save(tmp_path / "mask", mask)), mask == 1)


@pytest.mark.parametrize(("value", "shown"), [("2.5", "2.5"), ("1e300", "1e\\+300"), ("9007199254740994.0", "9007")])
def test_fraction_or_inexact_float_is_no_integer(value: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"1.0,2.0\n3.0,{value}\n")
    with pytest.raises(FileError, match=f"nodes as integers, but got {shown}"):
        read_edges(tmp_path / "a.csv")


def test_empty_label_of_a_table_is_unknown(tmp_path: Path) -> None:
    labels = pd.Series([2.0, np.nan, 0.0, -1.0], name="y")
    labels.to_csv(tmp_path / "a.csv", index=False)
    labels.to_csv(tmp_path / "a.tsv", index=False, header=False, na_rep="nan")
    labels.to_frame().to_parquet(tmp_path / "a.parquet")
    for name in ("a.csv", "a.tsv", "a.parquet"):
        assert equal(read_labels(tmp_path / name), np.array([2, -1, 0, -1]))
    (tmp_path / "a.csv").write_text('y\n""\n""\n')
    assert equal(read_labels(tmp_path / "a.csv"), np.array([-1, -1]))


def test_empty_cells_of_edges_and_masks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0.0,1.0\n2.0,\n")
    with pytest.raises(FileError, match="column 2 is empty in row 1"):
        read_edges(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text('1.0\n""\n')
    with pytest.raises(FileError, match="column 1 is empty in row 1"):
        read_mask(tmp_path / "b.csv")


# --- ids and names of classes ---


def names(*values: object) -> NameFile:
    return NameFile(np.array(values, dtype=np.int64 if isinstance(values[0], int) else object), Path("names.txt"))


def write_lines(path: Path, *cells: str) -> Path:
    path.write_text("\n".join(cells) + "\n")
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt", "a.parquet", "a.npy", "a.npz:ids", "a.pt"])
def test_names_are_read_from_every_format(name: str, tmp_path: Path) -> None:
    path, ids = tmp_path / name, ["x17", "y 3", "007"]
    if name == "a.parquet":
        parquet.write_table(pa.table({"id": ids}), path)
    elif name == "a.npy":
        np.save(path, ids)
    elif name == "a.npz:ids":
        np.savez(tmp_path / "a.npz", ids=ids, other=EDGES)
    elif name == "a.pt":
        torch.save(ids, path)
    else:
        write_lines(path, *ids)
        assert read_names(path, 3, "node").values.tolist() == ids
        write_lines(path, "id", *ids)
    assert read_names(path, 3, "node").values.tolist() == ids


@pytest.mark.parametrize("cells", [("3", "10", "-7"), ("3.0", "10.0", "-7.00"), ("id", "3", "10.0", "-7")])
def test_whole_numbers_are_integer_names(cells: tuple[str, ...], tmp_path: Path) -> None:
    found = read_names(write_lines(tmp_path / "a.csv", *cells), 3, "node").values
    assert equal(found, np.array([3, 10, -7]))


def test_names_must_differ(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"a different name for each node in .*, but got 3 twice"):
        read_names(write_lines(tmp_path / "a.csv", "3", "3.0"), 2, "node")


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "npy", "pt"])
@pytest.mark.parametrize("ids", [("x17", "x20", "y3"), (17, 20, 3)], ids=["text", "integers"])
def test_edges_of_ids_become_row_numbers(ids: tuple[object, ...], ending: str, tmp_path: Path) -> None:
    path, pairs = tmp_path / f"a.{ending}", np.array(ids)[EDGES]
    if ending == "parquet":
        parquet.write_table(pa.table({"from": pairs[0], "to": pairs[1]}), path)
    elif ending == "npy":
        np.save(path, pairs)
    elif ending == "pt":
        if isinstance(ids[0], str):
            pytest.skip("tensors have no text")
        torch.save(torch.from_numpy(pairs), path)
    else:
        separator = {"csv": ",", "tsv": "\t"}[ending]
        write_lines(path, *(separator.join(map(str, pair)) for pair in pairs.T))
        assert equal(read_edges(path, names(*ids)), EDGES)
        write_lines(path, f"from{separator}to", *(f" {i}{separator}{j} " for i, j in pairs.T))
    assert equal(read_edges(path, names(*ids)), EDGES)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, np.uint64])
def test_ids_match_integers_of_another_type(dtype: type, tmp_path: Path) -> None:
    ids = NameFile(np.array([17, 20, 3], dtype), Path("ids.npy"))
    np.save(tmp_path / "a.npy", np.array([[17, 3], [20, 17]]))
    assert read_edges(tmp_path / "a.npy", ids).tolist() == [[0, 2], [1, 0]]
    np.save(tmp_path / "a.npy", np.array([[17, -(2**40)], [20, 17]]))
    with pytest.raises(FileError, match=f"pair 1 has '-{2**40}'"):
        read_edges(tmp_path / "a.npy", ids)


@pytest.mark.parametrize("dtype", [object, "S3"])
def test_names_of_another_type_are_refused_with_a_way_out(dtype: object, tmp_path: Path) -> None:
    saved = np.array(["x17", "y3"], dtype)
    np.save(tmp_path / "a.npy", saved)
    with pytest.raises(FileError, match=r"text or integers, but got .* Save it with .astype\(str\)"):
        read_names(tmp_path / "a.npy", 2, "node")
    np.save(tmp_path / "a.npy", saved.astype(str))
    assert read_names(tmp_path / "a.npy", 2, "node").values.tolist() == ["x17", "y3"]


def test_float_ids_match_integer_ids(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", "17.0,20.0", "3,17.0")
    assert read_edges(path, names(17, 20, 3)).tolist() == [[0, 2], [1, 0]]


@pytest.mark.parametrize("save", COLUMNS)
def test_edges_without_any_id_are_row_numbers_if_ids_are_words(save: Save, tmp_path: Path) -> None:
    shown = EDGES if save in ARRAYS else EDGES.T
    assert equal(read_edges(save(tmp_path / "edges", shown), names("x17", "x20", "y3")), EDGES)


@pytest.mark.parametrize("save", COLUMNS)
@pytest.mark.parametrize("ids", [(17, 20, 30), ("001", "002", "x3")], ids=["integers", "digits"])
def test_row_numbers_are_not_guessed_if_an_id_is_a_number(save: Save, ids: tuple[object, ...], tmp_path: Path) -> None:
    shown = EDGES if save in ARRAYS else EDGES.T
    with pytest.raises(FileError, match=r"pair 0 has '0'\. If these are row numbers, save .* ids\[edges\]"):
        read_edges(save(tmp_path / "edges", shown), names(*ids))
    if isinstance(ids[0], int):
        assert equal(read_edges(save(tmp_path / "edges", np.array(ids)[shown]), names(*ids)), EDGES)


@pytest.mark.parametrize("ids", [(17, 20, 3), ("x17", "x20", "y3")], ids=["integers", "words"])
def test_first_pair_of_unknown_numbers_is_not_a_header(ids: tuple[object, ...], tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", "7,8", f"{ids[0]},{ids[1]}")
    with pytest.raises(FileError, match="pair 0 has '7'"):
        read_edges(path, names(*ids))


def test_column_numbers_are_not_guessed_if_a_class_name_is_a_number(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", "0", "2", "1")
    with pytest.raises(FileError, match="that of node 0 is '0'"):
        read_labels(path, names(10, 20, 30), 3)


def test_edges_with_ids_prefer_ids_to_row_numbers(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", "0,1", "1,2")
    assert read_edges(path, names(2, 1, 0)).tolist() == [[2, 1], [1, 0]]


@pytest.mark.parametrize("cells", [("x17,q99",), ("x17,x20", "1,2"), ("a,b", "x17,x20", "q99,x17")])
def test_unknown_id_is_refused(cells: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"such as 'x17' \(names.txt\), but pair \d has '(q99|1)'"):
        read_edges(write_lines(tmp_path / "a.csv", *cells), names("x17", "x20", "y3"))


@pytest.mark.parametrize("ending", ["txt", "csv", "npy", "parquet"])
def test_mask_may_list_ids(ending: str, tmp_path: Path) -> None:
    path, listed = tmp_path / f"a.{ending}", ["y3", "x17"]
    if ending == "npy":
        np.save(path, listed)
    elif ending == "parquet":
        parquet.write_table(pa.table({"id": listed}), path)
    else:
        write_lines(path, *listed)
    assert read_mask(path, names("x17", "x20", "y3")).tolist() == [True, False, True]


def test_mask_of_integer_ids_or_booleans(tmp_path: Path) -> None:
    ids, path = names(0, 1, 7), tmp_path / "a.csv"
    assert read_mask(write_lines(path, "1", "0"), ids).tolist() == [True, True, False]
    assert read_mask(write_lines(path, "id", "7.0"), ids).tolist() == [False, False, True]
    assert read_mask(write_lines(path, "1", "0", "1"), ids).tolist() == [True, False, True]  # one per node: a mask
    assert len(read_mask(write_lines(path, "1", "0"), names("a", "b", "c"))) == 2  # refused where it is used


def test_unknown_id_or_header_in_a_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"row 0 holds 'id'\. Remove it, also if it is a header"):
        read_mask(write_lines(tmp_path / "a.csv", "id", "x17"), names("x17", "x20"))
    with pytest.raises(FileError, match="row 1 holds '8'"):
        read_mask(write_lines(tmp_path / "a.csv", "7", "8"), names(6, 7))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt", "a.parquet", "a.npy"])
def test_labels_are_looked_up_among_class_names(name: str, tmp_path: Path) -> None:
    path, labels = tmp_path / name, ["Spam", "", "Ham", "-1", "Spam"]
    if name == "a.parquet":
        parquet.write_table(pa.table({"y": [label or None for label in labels]}), path)
    elif name == "a.npy":
        np.save(path, labels)
    else:
        write_lines(path, *labels)
        assert read_labels(path, names("Eggs", "Ham", "Spam"), 5).tolist() == [2, -1, 1, -1, 2]
        write_lines(path, "class", *labels, "", "")
    # np.unique would give Spam the number 1, as no node has the class Eggs.
    assert read_labels(path, names("Eggs", "Ham", "Spam"), 5).tolist() == [2, -1, 1, -1, 2]


def test_labels_without_any_class_name_are_column_numbers(tmp_path: Path) -> None:
    classes = names("Ham", "Spam")
    for cells in (("y", "1.0", "0.0"), ("1", "0"), ("1", "0")):
        assert read_labels(write_lines(tmp_path / "a.csv", *cells), classes, 2).tolist() == [1, 0]
    np.save(tmp_path / "a.npy", np.array([1, -1]))
    assert read_labels(tmp_path / "a.npy", classes, 2).tolist() == [1, -1]


def test_integer_class_names_are_looked_up(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", "1", "3.0", "-1", "2")
    assert read_labels(path, names(1, 2, 3), 4).tolist() == [0, 2, -1, 1]
    with pytest.raises(FileError, match=r"out of 1, 2, 3 \(names.txt\), .*, but that of node 1 is '0'"):
        read_labels(write_lines(path, "1", "0"), names(1, 2, 3), 2)


def test_unknown_class_name_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", "y", "Ham", "Sapm")
    with pytest.raises(FileError, match=r"that of node 1 is 'Sapm'. Did you mean 'Spam'\? .*--classes"):
        read_labels(path, names("Ham", "Spam"), 2)


@pytest.mark.parametrize(
    ("header", "expected"),
    [("Ham,Spam", ["Ham", "Spam"]), ("Ham,Ham", None), ("0,1", None), ("0.5,0.5", None), ("id,Ham,Spam", None)],
)
def test_header_of_probabilities_names_the_classes(header: str, expected: list[str] | None, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", header, ",".join(["0.25"] * len(header.split(","))))
    found = read_header_names(path, 2)
    assert (found.values.tolist() if found else None) == expected
    assert read_header_names(save_npy(tmp_path / "a", PROBS), 2) is None


def test_columns_of_parquet_name_the_classes(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"1": [0.5], "2": [0.5]}), tmp_path / "a.parquet")
    assert read_header_names(tmp_path / "a.parquet", 2).values.tolist() == [1, 2]


@pytest.mark.parametrize(("read", "option"), [(read_labels, "--classes"), (read_edges, "--ids"), (read_mask, "--ids")])
def test_text_instead_of_numbers_is_told_the_option_for_names(
    read: Callable[[Path], np.ndarray], option: str, tmp_path: Path
) -> None:
    for path in (write_lines(tmp_path / "a.csv", "cat,cat", "dog,dog"), save_npy(tmp_path / "b", np.array(["cat"]))):
        with pytest.raises(FileError, match=f"Expected numbers in {path}, but .* {option} FILE"):
            read(path)


@pytest.mark.parametrize(
    ("read", "array", "message"),
    [
        (
            partial(read_rows, meaning="probabilities (nodes, classes)"),
            PROBS[0],
            r"probabilities \(nodes, classes\), but got shape \(2,\)",
        ),
        (read_labels, EDGES, r"one column, one label per node .*, but got shape \(2, 4\)"),
        (read_labels, PROBS[0], r"labels as integers, but got numbers of type float64"),
        (read_labels, np.array([0, np.nan]), r"got numbers with NaN of type float64.*-1"),
        (read_edges, EDGES[0], r"edges as .*, but got shape \(4,\)"),
        (read_edges, np.zeros((3, 3), int), r"but got shape \(3, 3\)"),
        (read_edges, EDGES.astype(float), r"nodes as integers, but got .*float64.*astype\(int\)"),
        (read_mask, EDGES[0], r"row 2 holds 2.*mask\[nodes\] = True"),
        (read_mask, PROBS[0], r"booleans, or 0 and 1, one per node, but row 0 holds 0.9"),
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
        ("a.npy", npy_bytes(np.array(["a", "b"])), r"numbers in .* dtype <U1"),
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
        ("a.csv", b"0.5;0.5\n", "columns separated by commas in .*, but got '0.5;0.5'. Insert commas"),
        ("a.csv", b"0 1", "columns separated by commas in .*, but got '0 1'. Insert commas"),
        ("a.csv", b"0;1\n2;3\n", "columns separated by commas in .*, but got '2;3'. Insert commas"),
        ("a.csv", b"0\t1\n2\t3\n", r"columns separated by commas in .*, but got '2\\t3'. Rename the file to .tsv"),
        ("a.tsv", b"0,1\n2,3\n", "columns separated by tabs in .*, but got '2,3'. Rename the file to .csv"),
        ("a.tsv", b"0\t1\n2\n", "Row #2: Expected 2 columns, got 1: 2"),
        ("a.tsv", b"u\tv\n0\t\n", "column 2 is empty in row 0"),
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
        ("a.txt", b"1\n", r"ends in .npy, .npz, .pt, .csv, .tsv, .parquet, but got .*a.txt"),
        ("a", b"1\n", r"ends in .npy, .npz, .pt, .csv, .tsv, .parquet, but got .*a"),
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


@pytest.mark.parametrize("suffix", ["npy", "npz", "pt", "csv", "tsv", "parquet"])
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
    "tsv": b"a\tb\n0.5\t0.5\n0.25\t0.75\n",
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("region\na\nb\n", ["a", "b", ""]),  # the last cell is empty, and its line is not ended
        ("region\na\nb\n\n", ["a", "b", ""]),
        ("part\n1\n2\n", [1, 2, -1]),
        ("part\n1\n2\n\n", [1, 2, -1]),
        ("a\nb\n\n", ["a", "b", ""]),
        ("a\nb\nb\n", ["a", "b", "b"]),
        ("1\n2\n\n", [1, 2, -1]),
    ],
)
def test_groups_with_an_empty_last_cell(tmp_path: Path, text: str, expected: list[object]) -> None:
    (tmp_path / "region.csv").write_text(text)
    assert read_groups(tmp_path / "region.csv", 3).tolist() == expected
