"""Ids of nodes and names of classes from files, and pairs that are given in ids."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.files.arrays import FileProblem, read_npy
from edgewise.files.inputs import refusals
from edgewise.files.tables import check_utf8

ENDINGS = (".csv", ".txt", ".parquet", ".npy")


def read_names(path: Path, count: int, thing: str) -> NDArray[Any]:
    """Read a name for each thing, one a line: text, or whole numbers where all are. One line more is a header."""
    columns = _read_columns(path)
    if len(columns) != 1:
        raise FileProblem(f"Expected {path} to hold one column, a name for each {thing}, but got {len(columns)}.")
    names = columns[0]
    blank = next((place for place, name in enumerate(names, 1) if not str(name).strip()), None)
    if blank is not None:
        raise FileProblem(
            f"Expected a name for each {thing} in {path}, but name {blank} is blank. Fill it in, or leave it out."
        )
    if len(names) == count + 1 and _is_text(names) and path.suffix.lower() in (".csv", ".txt"):
        names = names[1:]
    if len(names) != count:
        raise FileProblem(f"Expected {path} to hold {count} names, one for each {thing}, but got {len(names)}.")
    return _whole_numbers(names) if _is_text(names) and all(map(_is_whole_number, names)) else names


def read_id_pairs(path: Path, ids: NDArray[Any]) -> NDArray[Any]:
    """Read two columns of ids; a first line of text in which neither is an id is a header."""
    columns = _read_columns(path)
    if len(columns) != 2:
        raise FileProblem(f"Expected {path} to hold two columns, the ids of pairs, but got {len(columns)}.")
    if all(map(_is_text, columns)) and len(columns[0]):
        known = {str(name) for name in ids.tolist()}
        if not any(column[0] in known for column in columns):
            columns = [column[1:] for column in columns]
    pairs = np.stack(columns)
    if _is_text(pairs) and not _is_text(ids):
        stranger = next((name for name in pairs.flat if not _is_whole_number(name)), None)
        if stranger is not None:
            raise FileProblem(f"Expected {path} to hold ids such as {ids[0]}, but it holds {stranger[:40]!r}.")
        return _whole_numbers(pairs)
    return pairs


def _is_text(names: NDArray[Any]) -> bool:
    return names.dtype.kind not in "iu"


def _is_whole_number(name: str) -> bool:
    """Tell 7 from 007 and 7.0, which are names that only look like numbers."""
    return len(name) < 19 and name.removeprefix("-").isdecimal() and str(int(name)) == name


def _whole_numbers(names: NDArray[Any]) -> NDArray[np.int64]:
    return np.array([int(name) for name in names.flat], np.int64).reshape(names.shape)


def _read_columns(path: Path) -> list[NDArray[Any]]:
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise FileProblem(f"Expected names in a file that ends in {', '.join(ENDINGS)}, but got {path}.")
    with refusals(path, f"a sound {ending} file of names"):
        if ending in (".csv", ".txt"):
            check_utf8(path)
        if ending == ".txt":
            return [np.array(path.read_text(encoding="utf-8-sig").splitlines(), dtype=object)]
        if ending == ".npy":
            return _columns_of_array(read_npy(path, _check_names), path)
        return _columns_of_table(path)


def _check_names(dtype: np.dtype[Any], path: Path) -> None:
    if dtype.kind not in "iuU":
        raise FileProblem(f"Expected names in {path}, text or whole numbers, but got an array of dtype {dtype}.")


def _columns_of_array(array: NDArray[Any], path: Path) -> list[NDArray[Any]]:
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[0] != 2):
        raise FileProblem(f"Expected names (names,) or pairs (2, pairs) in {path}, but got shape {array.shape}.")
    if array.dtype.kind == "U":
        array = array.astype(object)
        "".join(array.flat).encode()  # halves of characters could not be written
    return [array] if array.ndim == 1 else list(array)


def _columns_of_table(path: Path) -> list[NDArray[Any]]:
    import pyarrow as pa
    from pyarrow import csv, parquet

    if path.suffix.lower() == ".parquet":
        table = parquet.read_table(path)
    else:
        text = {f"f{k}": pa.string() for k in range(2)}
        table = csv.read_csv(
            path,
            csv.ReadOptions(autogenerate_column_names=True),
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(column_types=text),
        )
    for name, column in zip(table.column_names, table.columns, strict=True):
        is_name = pa.types.is_integer(column.type) or pa.types.is_string(column.type)
        if column.null_count or not (is_name or pa.types.is_large_string(column.type)):
            what = "empty cells" if column.null_count else str(column.type)
            raise FileProblem(f"Expected names in {path}, text or whole numbers, but column {name} holds {what}.")
    return [column.to_numpy() for column in table.columns]
