"""Reading and writing of tables: .csv, .parquet and .json files."""

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewise.files.arrays import Array, FileError, check_memory
from edgewise.files.output import replace_file
from edgewise.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


CSV_BLOCK_BYTES = 16 << 20  # a line must fit in a block, and a joint of many classes makes a long line
BYTES_PER_VALUE = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}  # 8 for other physical types


def read_csv(path: Path) -> Array:
    """Read rows of numbers, without the header."""
    import pyarrow

    check_utf8(path)
    first, second = _first_lines(path)
    header = _is_header(first, second, path)
    if header and not second:
        _check_commas(first, path)
        return np.empty((0, len(first)), np.int64)
    names = [f"{k}" for k in range(1, len(first) + 1)]
    try:
        table = _parse_csv(path, names, header, use_threads=True)
    except pyarrow.ArrowInvalid:
        # A column may start with integers and have fractions later: then float64 works. Otherwise the file is invalid,
        # and a single thread reports the line.
        types = dict.fromkeys(names, pyarrow.float64())
        table = _parse_csv(path, names, header, use_threads=False, column_types=types)
    return _from_table(table, path)


def check_utf8(path: Path) -> None:
    """Raise FileError for UTF-16, which spreadsheets call Unicode."""
    with path.open("rb") as stream:
        if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise FileError(f"Expected {path} to be text in UTF-8, but got UTF-16. Save it as UTF-8.")


def _parse_csv(path: Path, names: list[str], header: bool, use_threads: bool, column_types: Any = None) -> Any:
    from pyarrow import csv as arrow

    read_options = arrow.ReadOptions(
        column_names=names, skip_rows=int(header), block_size=CSV_BLOCK_BYTES, use_threads=use_threads
    )
    # Only an empty cell is missing: "nan" is a number, and "NA" is text.
    convert_options = arrow.ConvertOptions(null_values=[""], column_types=column_types)
    return arrow.read_csv(path, read_options=read_options, convert_options=convert_options)


def _first_lines(path: Path) -> tuple[list[str], list[str]]:
    """Return the cells of the first two lines."""
    with path.open("rb") as stream:
        lines = [stream.readline(CSV_BLOCK_BYTES).decode("utf-8-sig", "replace").strip("\r\n") for _ in range(2)]
    if not lines[0].strip():
        raise FileError(f"Expected names or numbers in the first line of {path}, but it is empty.")
    first, second = (next(csv.reader([line.replace("\0", "\ufffd")]), []) for line in lines)
    return first, second


def _is_header(first: list[str], second: list[str], path: Path) -> bool:
    """Return whether the first line holds names. 0,1,2,… above fractions are names too, as pandas writes them."""
    if not first[0].strip():
        raise FileError(
            f"Expected a name or a number first in {path}, but got an empty cell. Fill it in. If the column holds "
            "row numbers, save the table without them (pandas: index=False)."
        )
    names = [cell for cell in first if not _is_number(cell)]
    if names and len(names) < len(first):
        # Either a header or a row with a typo. A wrong guess would drop a row silently.
        raise FileError(
            f"Expected either names or numbers in the first line of {path}, but got both, such as {names[0][:40]!r}. "
            "Correct it, or name every column."
        )
    numbered = first == [str(k) for k in range(len(first))]
    return bool(names) or (numbered and any(not re.fullmatch(r"\s*[+-]?\d*\s*", cell) for cell in second))


def _check_commas(first: list[str], path: Path) -> None:
    """Raise FileError if the only line holds numbers separated by semicolons or spaces."""
    cells = re.split(r"[;\s]+", first[0].strip())
    if len(first) == 1 < len(cells) and all(map(_is_number, cells)):
        raise FileError(
            f"Expected columns separated by commas in {path}, but its only line is {first[0][:40]!r}. Insert commas."
        )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell.strip().lower() in ("", "true", "false")
    return True


def read_parquet(path: Path) -> Array:
    """Read columns of numbers, or one column of lists."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, memory_map=True) as file:
        check_memory(_num_bytes(file.metadata), path)
        return _from_table(file.read(), path)


def _num_bytes(metadata: Any) -> int:
    """Return the size of all values in memory. Repeated values take no space in the file."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    return sum(chunk.num_values * BYTES_PER_VALUE.get(chunk.physical_type, 8) for chunk in chunks)


def _from_table(table: Any, path: Path) -> Array:
    """Convert an Arrow table to an array (rows, columns) in column-major order."""
    if table.num_columns == 0:
        raise FileError(f"Expected a column of numbers in {path}, but it has no columns.")
    types = [_number_type(column, name, path) for name, column in zip(table.column_names, table.columns, strict=True)]
    if table.num_columns == 1:
        parts = list(_chunks(table.column(0), table.column_names[0], path))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    columns = np.empty((table.num_columns, table.num_rows), np.result_type(*types))
    for row, name, column in zip(columns, table.column_names, table.columns, strict=True):
        start = 0
        for part in _chunks(column, name, path):
            if part.ndim != 1:
                raise FileError(f"Expected one column in {path}, as it holds lists, but got {len(types)} columns.")
            row[start : start + len(part)] = part
            start += len(part)
    return columns.T


def _number_type(column: Any, name: str, path: Path) -> np.dtype[Any]:
    from pyarrow import types

    inner = column.type
    while _is_list(inner):
        inner = inner.value_type
    if types.is_null(inner):
        _check_complete(column, name, path)
        return np.dtype(np.int64)
    if not (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)):
        raise FileError(
            f"Expected numbers in {path}, but column {name} holds {_example(column)}. Separate columns by commas, "
            "write classes and nodes as 0, 1, 2, … (predict accepts ids in --pairs, with --ids), and remove other "
            "columns."
        )
    number_type: np.dtype[Any] = np.dtype(inner.to_pandas_dtype())
    return number_type


def _chunks(column: Any, name: str, path: Path) -> Iterator[Array]:
    """Yield the chunks of a column as arrays. Lists of equal length become further dimensions."""
    nonempty = [chunk for chunk in column.chunks if len(chunk)]
    for chunk in nonempty or [column.combine_chunks()]:
        _check_complete(chunk, name, path)
        shape, values = [len(chunk)], chunk
        while _is_list(values.type):
            shape.append(_common_length(values, name, path))
            values = values.flatten()
            _check_complete(values, name, path)
        yield values.to_numpy(zero_copy_only=False).reshape(shape)


def _is_list(arrow_type: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type))


def _common_length(lists: Any, name: str, path: Path) -> int:
    from pyarrow import compute

    shortest, longest = compute.min_max(compute.list_value_length(lists)).as_py().values()
    if shortest != longest:
        raise FileError(
            f"Expected lists of one length in column {name} of {path}, but got lengths from {shortest} to {longest}."
        )
    return int(longest or 0)


def _check_complete(values: Any, name: str, path: Path) -> None:
    if values.null_count:
        row = values.is_null().index(True).as_py()
        raise FileError(
            f"Expected a number in every cell of {path}, but column {name} is empty in row {row} (counted from 0). "
            "Fill it in (an unknown label is -1), and remove commas at line ends."
        )


def _example(column: Any) -> str:
    """Format the first cell that is not a number, or the type of the column."""
    cells = (cell.as_py() for cell in column)
    text = next((cell for cell in cells if isinstance(cell, str) and cell and not _is_number(cell)), None)
    return f"{column.type} values" if text is None else f"text such as {text[:40]!r}"


def check_table_path(path: Path, name: str = "the table") -> None:
    """Raise ValueError unless a path has a suffix of a table format."""
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"Expected {name} to end in {', '.join(WRITERS)}, but got {path}.")


def write_table(path: Path, batches: "Iterable[pa.RecordBatch]") -> None:
    """Write one or more batches in the format of the suffix, atomically."""
    check_table_path(path)
    rest = iter(batches)
    first = next(rest)
    replace_file(path, lambda file: WRITERS[path.suffix.lower()](file, first.schema, chain([first], rest)))


def _write_csv(path: Path, schema: "pa.Schema", batches: "Iterator[pa.RecordBatch]") -> None:
    from pyarrow import csv

    with csv.CSVWriter(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_parquet(path: Path, schema: "pa.Schema", batches: "Iterator[pa.RecordBatch]") -> None:
    from pyarrow import parquet

    metadata = {**(schema.metadata or {}), "edgewise": __version__}
    with parquet.ParquetWriter(path, schema.with_metadata(metadata), compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(metadata))


def _write_json(path: Path, schema: "pa.Schema", batches: "Iterator[pa.RecordBatch]") -> None:
    metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"version": __version__, **metadata}, ensure_ascii=False, indent=2)[:-2])
        file.write(',\n  "pairs": [')
        separator = "\n"
        for batch in batches:
            for row in batch.to_pylist():
                file.write(f"{separator}    {json.dumps(row, ensure_ascii=False, allow_nan=False)}")
                separator = ",\n"
        file.write("\n  ]\n}\n")


WRITERS: dict[str, Callable[[Path, "pa.Schema", "Iterator[pa.RecordBatch]"], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".json": _write_json,
}


def data_frame(columns: Mapping[str, Any], index: Sequence[str] | None = None) -> "pd.DataFrame":
    """Create a pandas DataFrame. Raise ImportError if pandas, which is optional, is not installed."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("Expected pandas for to_frame(), but it is not installed. Run: pip install pandas") from error
    return pd.DataFrame(dict(columns), index=index)
