"""Names of nodes and classes: reading them from files of all formats, and looking up ids and labels among them."""

import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.files.arrays import FileError, convert_read_errors, read_npy, read_npz, suffix_of
from edgewise.files.tables import check_utf8, header_names, is_table_file, read_text_columns
from edgewise.files.tensors import load_pt, read_pt

NAME_SUFFIXES = (".csv", ".txt", ".tsv", ".parquet", ".npy", ".npz", ".pt")
WHOLE_NUMBER = r"^(0|-?[1-9]\d{0,17})\.0+$"  # pandas writes 3 as 3.0 beside empty cells


class NameFile(NamedTuple):
    """Names of all nodes or classes, in order, and the file that they are from. They are all integers or all text."""

    values: NDArray[Any]
    path: Path


def read_names(path: Path, count: int, thing: str) -> NameFile:
    """Read ``count`` names, one per line. Names are converted if all are integers. One extra line is a header."""
    names = read_cells(path)
    if names.ndim != 1:
        raise FileError(f"Expected {path} to hold one column, a name for each {thing}, but got {names.shape[1]}.")
    if is_text(names):
        blank = next((row for row, name in enumerate(names, 1) if not name), None)
        if blank is not None:
            raise FileError(
                f"Expected a name for each {thing} in {path}, but name {blank} is blank. Fill it in, or delete the "
                "line."
            )
        names = names[1:] if len(names) == count + 1 and is_text_file(path) else names
    if len(names) != count:
        raise FileError(f"Expected {path} to hold {count} names, one for each {thing}, but got {len(names)}.")
    return _as_names(names, path, thing)


def read_header_names(path: Path, count: int) -> NameFile | None:
    """Read names of classes from the header of a table, or return None if it has none."""
    if not is_table_file(path):
        return None
    with convert_read_errors(path, "a valid table"):
        names = header_names(path)
    if names is None or len(set(names)) != count or len(names) != count:
        return None
    return None if names == [str(k) for k in range(count)] else _as_names(np.array(names, dtype=object), path, "class")


def _as_names(values: NDArray[Any], path: Path, thing: str) -> NameFile:
    """Check that names are unique, and convert them if all are integers."""
    if is_text(values) and all(is_integer(re.sub(WHOLE_NUMBER, r"\1", name)) for name in values):
        values = np.array([int(name.partition(".")[0]) for name in values], np.int64)
    if len(set(values.tolist())) < len(values):
        duplicate = next(name for name, times in Counter(values.tolist()).items() if times > 1)
        raise FileError(f"Expected a different name for each {thing} in {path}, but got {duplicate!r} twice.")
    return NameFile(values, path)


def look_up(cells: NDArray[Any], names: NDArray[Any]) -> NDArray[np.int64]:
    """Return the position of each cell among the names, and -1 if it is none of them. 3.0 is the integer 3."""
    import pyarrow as pa
    from pyarrow import compute

    if not is_text(cells) and is_text(names):
        return np.full(cells.shape, -1)
    flat, values = pa.array(cells.ravel()), pa.array(names)
    if cells.dtype.kind == names.dtype.kind != "O":
        flat, values = (
            column.cast(pa.int64() if names.dtype.kind == "i" else pa.uint64()) for column in (flat, values)
        )
    else:
        flat, values = flat.cast(pa.string()), values.cast(pa.string())
        if not is_text(names):
            flat = compute.replace_substring_regex(flat, WHOLE_NUMBER, r"\1")
    found = compute.index_in(flat, value_set=values).fill_null(-1)
    positions: NDArray[np.int64] = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return positions.reshape(cells.shape)


def is_text(names: NDArray[Any]) -> bool:
    """Return whether names are text. Otherwise they are integers."""
    return names.dtype.kind not in "iu"


def is_integer(name: str) -> bool:
    """Return whether text is a canonical integer: 7 is, but 007 is not."""
    return len(name) < 19 and name.removeprefix("-").isdecimal() and str(int(name)) == name


def is_text_file(path: Path) -> bool:
    """Return whether a file is text, so that its first line may be a header."""
    return path.suffix.lower() in (".csv", ".tsv", ".txt")


def read_cells(path: Path) -> NDArray[Any]:
    """Read text or integers: (rows,), (rows, columns) from a table, or an array as it was saved."""
    suffix = suffix_of(path)
    if suffix not in (*NAME_SUFFIXES, ".pth"):
        raise FileError(f"Expected names in a file that ends in {', '.join(NAME_SUFFIXES)}, but got {path}.")
    with convert_read_errors(path, f"a valid {suffix} file of names"):
        if suffix == ".txt":
            check_utf8(path)
            return np.array([line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()], dtype=object)
        if is_table_file(path):
            return _as_rows(read_text_columns(path))
        if suffix in (".npy", ".npz"):
            array: NDArray[Any] = {".npy": read_npy, ".npz": read_npz}[suffix](path, _check_names)
        else:
            content = load_pt(path)
            is_list = isinstance(content, list | tuple) and all(isinstance(name, str) for name in content)
            array = np.array(content) if is_list else read_pt(path)
            _check_names(array.dtype, path)
        if array.dtype.kind == "U":
            array = array.astype(object)
            "".join(array.flat).encode()  # raise now if there are lone surrogates, which cannot be written
        return array


def _as_rows(columns: list[NDArray[Any]]) -> NDArray[Any]:
    if len(columns) == 1:
        return columns[0]
    if any(map(is_text, columns)):
        columns = [column if is_text(column) else column.astype(str).astype(object) for column in columns]
    return np.stack(columns, axis=1)


def _check_names(dtype: np.dtype[Any], path: Path) -> None:
    if dtype.kind not in "iuU":
        raise FileError(
            f"Expected names in {path}, text or integers, but got an array of dtype {dtype}. Save it with "
            f"{'.astype(int)' if dtype.kind == 'f' else '.astype(str)'}."
        )
