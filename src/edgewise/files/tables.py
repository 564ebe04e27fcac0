"""Arrays from tables: .csv and .parquet files."""

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewise.files.arrays import Array, FileError, check_memory
from edgewise.files.output import replace_file
from edgewise.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa


CSV_BLOCK = 16 << 20  # bytes; a line must fit in a block, and a joint of many classes makes a long line
BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}  # of a value; 8 of all others that are numbers


def read_csv(path: Path) -> Array:
    """Read rows of numbers; a first line of names is left out."""
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
        # Either a column begins with many whole numbers and goes on with fractions, which double will do for; or there
        # is something wrong, and a single thread can tell in which line.
        types = dict.fromkeys(names, pyarrow.float64())
        table = _parse_csv(path, names, header, use_threads=False, column_types=types)
    return _from_table(table, path)


def check_utf8(path: Path) -> None:
    """Refuse text in UTF-16, which spreadsheets call Unicode."""
    with path.open("rb") as stream:
        if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise FileError(f"Expected {path} to be text in UTF-8, but got UTF-16. Save it as UTF-8.")


def _parse_csv(path: Path, names: list[str], header: bool, use_threads: bool, column_types: Any = None) -> Any:
    from pyarrow import csv as arrow

    reading = arrow.ReadOptions(
        column_names=names, skip_rows=int(header), block_size=CSV_BLOCK, use_threads=use_threads
    )
    # Only an empty cell is missing: "nan" is a number, and "NA" is text.
    converting = arrow.ConvertOptions(null_values=[""], column_types=column_types)
    return arrow.read_csv(path, read_options=reading, convert_options=converting)


def _first_lines(path: Path) -> tuple[list[str], list[str]]:
    """Give the cells of the first two lines."""
    with path.open("rb") as stream:
        lines = [stream.readline(CSV_BLOCK).decode("utf-8-sig", "replace").strip("\r\n") for _ in range(2)]
    if not lines[0].strip():
        raise FileError(f"Expected names or numbers in the first line of {path}, but it is empty.")
    first, second = (next(csv.reader([line.replace("\0", "\ufffd")]), []) for line in lines)
    return first, second


def _is_header(first: list[str], second: list[str], path: Path) -> bool:
    """Tell names from numbers; 0,1,2,… above fractions are names too, those that pandas gives."""
    if not first[0].strip():
        raise FileError(
            f"Expected a name or a number first in {path}, but got an empty cell. Fill it in; or, above row numbers, "
            "save the table without them (pandas: index=False)."
        )
    names = [cell for cell in first if not _is_number(cell)]
    if names and len(names) < len(first):
        # A header, or a row with a slip in it: whoever guesses loses a row in silence.
        raise FileError(
            f"Expected either names or numbers in the first line of {path}, but got both, such as {names[0][:40]!r}. "
            "Correct it, or name every column."
        )
    counted = first == [str(k) for k in range(len(first))]
    return bool(names) or (counted and any(not re.fullmatch(r"\s*[+-]?\d*\s*", cell) for cell in second))


def _check_commas(first: list[str], path: Path) -> None:
    """Tell the only line of numbers between semicolons from the name of a column."""
    cells = re.split(r"[;\s]+", first[0].strip())
    if len(first) == 1 < len(cells) and all(map(_is_number, cells)):
        raise FileError(
            f"Expected columns separated by commas in {path}, but its only line is {first[0][:40]!r}. Put commas."
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
    """Count the bytes of all values, of which repeated ones take none in the file."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    return sum(chunk.num_values * BYTES.get(chunk.physical_type, 8) for chunk in chunks)


def _from_table(table: Any, path: Path) -> Array:
    """Turn a table of Arrow into an array (rows, columns), laid out column by column."""
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
            "write classes and nodes as 0, 1, 2, … (predict takes ids in --pairs, with --ids), and leave other "
            "columns out."
        )
    number_type: np.dtype[Any] = np.dtype(inner.to_pandas_dtype())
    return number_type


def _chunks(column: Any, name: str, path: Path) -> Iterator[Array]:
    """Give a column in the pieces it lies in; lists of equal length become further axes."""
    filled = [chunk for chunk in column.chunks if len(chunk)]
    for chunk in filled or [column.combine_chunks()]:
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

    least, most = compute.min_max(compute.list_value_length(lists)).as_py().values()
    if least != most:
        raise FileError(
            f"Expected lists of one length in column {name} of {path}, but got lengths from {least} to {most}."
        )
    return int(most or 0)


def _check_complete(values: Any, name: str, path: Path) -> None:
    if values.null_count:
        row = values.is_null().index(True).as_py()
        raise FileError(
            f"Expected a number in every cell of {path}, but column {name} is empty in row {row} (counted from 0). "
            "Fill it in (an unknown label is -1), and end no line with a comma."
        )


def _example(column: Any) -> str:
    """Show the first cell that is no number; there is one in any column of text."""
    cells = (cell.as_py() for cell in column)
    text = next((cell for cell in cells if isinstance(cell, str) and cell and not _is_number(cell)), None)
    return f"{column.type} values" if text is None else f"text such as {text[:40]!r}"


def check_table_path(path: Path, name: str = "the table") -> None:
    """Refuse a file of a kind that tables are not written to."""
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"Expected {name} to end in {', '.join(WRITERS)}, but got {path}.")


def write_table(path: Path, batches: "Iterable[pa.RecordBatch]") -> None:
    """Write at least one batch, in the format of the file's ending; no half of a file is left behind."""
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

    about = {**(schema.metadata or {}), "edgewise": __version__}
    with parquet.ParquetWriter(path, schema.with_metadata(about), compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(about))


def _write_json(path: Path, schema: "pa.Schema", batches: "Iterator[pa.RecordBatch]") -> None:
    about = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"version": __version__, **about}, ensure_ascii=False, indent=2)[:-2])
        file.write(',\n  "pairs": [')
        mark = "\n"
        for batch in batches:
            for row in batch.to_pylist():
                file.write(f"{mark}    {json.dumps(row, ensure_ascii=False, allow_nan=False)}")
                mark = ",\n"
        file.write("\n  ]\n}\n")


WRITERS: dict[str, Callable[[Path, "pa.Schema", "Iterator[pa.RecordBatch]"], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".json": _write_json,
}
