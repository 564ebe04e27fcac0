"""Reading .csv, .tsv and .parquet tables, and writing .csv, .parquet and .json tables."""

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgewise.files.arrays import Array, FileError, TextError, check_memory
from edgewise.files.output import replace_file
from edgewise.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


CSV_BLOCK_BYTES = 16 << 20  # a line must fit in a block, and a joint of many classes makes a long line
BYTES_PER_VALUE = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}  # 8 for other physical types


def is_table_file(path: Path) -> bool:
    """Return whether a file is a table (.csv, .tsv or .parquet)."""
    return path.suffix.lower() in (".csv", ".tsv", ".parquet")


def read_table(path: Path, missing: int | None = None) -> Array:
    """Read rows of numbers from a table. An empty cell is an error, or gets the number ``missing``."""
    table = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    return _from_table(table, path, missing)


def _read_csv(path: Path) -> Any:
    """Read an Arrow table of numbers, without the header."""
    import pyarrow

    check_utf8(path)
    first, second = _first_lines(path)
    header = _is_header(first, second, path)
    names = [f"{k}" for k in range(1, len(first) + 1)]
    if header and not second:
        _check_separator(first[0], path)
        return pyarrow.table({name: pyarrow.array([], pyarrow.int64()) for name in names})
    try:
        return _parse_csv(path, names, header, use_threads=True)
    except pyarrow.ArrowInvalid:
        # A column may start with integers and have fractions later: then float64 works. Otherwise the file is invalid,
        # and a single thread reports the line.
        types = dict.fromkeys(names, pyarrow.float64())
        return _parse_csv(path, names, header, use_threads=False, column_types=types)


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


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
    parse_options = arrow.ParseOptions(delimiter=_delimiter(path))
    return arrow.read_csv(path, read_options, parse_options, convert_options)


def _first_lines(path: Path) -> tuple[list[str], list[str]]:
    """Return the cells of the first line, and of the next line that is not blank."""
    lines = [""]
    with path.open("rb") as stream:
        first = _decode(stream.readline(CSV_BLOCK_BYTES))
        while not lines[-1].strip() and (line := stream.readline(CSV_BLOCK_BYTES)):
            lines.append(_decode(line))
    if not first.strip():
        raise FileError(f"Expected names or numbers in the first line of {path}, but it is empty.")
    cells = [next(csv.reader([line], delimiter=_delimiter(path)), []) for line in (first, lines[-1])]
    return cells[0], cells[1]


def _decode(line: bytes) -> str:
    return line.decode("utf-8-sig", "replace").strip("\r\n").replace("\0", "\ufffd")


def _is_header(first: list[str], second: list[str], path: Path) -> bool:
    """Return whether the first line holds names. 0,1,2,… above fractions are names too, as pandas writes them."""
    if not first[0].strip():
        raise FileError(
            f"Expected a name or a number first in {path}, but got an empty cell. Fill it in. If the column holds "
            "row numbers, save the table without them (pandas: index=False)."
        )
    names = [cell for cell in first if not is_number(cell)]
    if names and len(names) < len(first):
        # Either a header or a row with a typo. A wrong guess would drop a row silently.
        raise FileError(
            f"Expected either names or numbers in the first line of {path}, but got both, such as {names[0][:40]!r}. "
            "Correct it, or name every column."
        )
    numbered = first == [str(k) for k in range(len(first))]
    return bool(names) or (numbered and any(not re.fullmatch(r"\s*[+-]?\d*\s*", cell) for cell in second))


def _check_separator(cell: str, path: Path) -> None:
    """Raise FileError if a cell holds several numbers, because columns are separated by another character."""
    separator = next((char for char in ",\t; " if char in cell.strip()), None)
    if separator is None or not all(map(is_number, cell.strip().split(separator))):
        return
    expected = "tabs" if path.suffix.lower() == ".tsv" else "commas"
    way_out = {",": "Rename the file to .csv.", "\t": "Rename the file to .tsv."}
    raise FileError(
        f"Expected columns separated by {expected} in {path}, but got {cell[:40]!r}. "
        f"{way_out.get(separator, f'Insert {expected}.')}"
    )


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, a boolean or empty, so that it is no name of a column."""
    try:
        float(cell)
    except ValueError:
        return cell.strip().lower() in ("", "true", "false")
    return True


def _read_parquet(path: Path) -> Any:
    """Read an Arrow table."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, memory_map=True) as file:
        check_memory(_num_bytes(file.metadata), path)
        return file.read()


def _num_bytes(metadata: Any) -> int:
    """Return the size of all values in memory. Repeated values take no space in the file."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    return sum(chunk.num_values * BYTES_PER_VALUE.get(chunk.physical_type, 8) for chunk in chunks)


def _from_table(table: Any, path: Path, missing: int | None) -> Array:
    """Convert an Arrow table to an array (rows, columns) in column-major order, or (rows,) for one column."""
    if table.num_columns == 0:
        raise FileError(f"Expected a column of numbers in {path}, but it has no columns.")
    if table.num_rows == 0:
        return np.empty((0, table.num_columns), np.int64)
    if missing is not None:
        table = _fill_empty_cells(table, missing)
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


def _fill_empty_cells(table: Any, number: int) -> Any:
    import pyarrow
    from pyarrow import types

    columns = [column.cast(pyarrow.int64()) if types.is_null(column.type) else column for column in table.columns]
    is_number = [types.is_integer(column.type) or types.is_floating(column.type) for column in columns]
    filled = [
        column.fill_null(number) if fill and column.null_count else column
        for column, fill in zip(columns, is_number, strict=True)
    ]
    return pyarrow.table(filled, names=table.column_names)


def _number_type(column: Any, name: str, path: Path) -> np.dtype[Any]:
    from pyarrow import types

    inner = column.type
    while _is_list(inner):
        inner = inner.value_type
    if types.is_null(inner):
        _check_complete(column, name, path)
        return np.dtype(np.int64)
    if not (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)):
        text = _example(column)
        if text is None:
            raise FileError(
                f"Expected numbers in {path}, but column {name} holds {column.type} values. Convert or remove it."
            )
        _check_separator(text, path)
        raise TextError(f"Expected numbers in {path}, but column {name} holds text such as {text[:40]!r}.")
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
            "Fill it in, and remove separators at line ends."
        )


def _example(column: Any) -> str | None:
    """Return the first cell that is text but no number, or None."""
    cells = (cell.as_py() for cell in column)
    return next((cell for cell in cells if isinstance(cell, str) and cell and not is_number(cell)), None)


def read_text_columns(path: Path) -> list[NDArray[Any]]:
    """Read the columns of a table as text or integers. The header of a .csv or .tsv file is the first row."""
    import pyarrow as pa
    from pyarrow import csv as arrow
    from pyarrow import types

    if path.suffix.lower() == ".parquet":
        table = _read_parquet(path)
    else:
        check_utf8(path)
        first, _ = _first_lines(path)
        table = arrow.read_csv(
            path,
            arrow.ReadOptions(autogenerate_column_names=True),
            arrow.ParseOptions(delimiter=_delimiter(path), newlines_in_values=True, ignore_empty_lines=len(first) > 1),
            arrow.ConvertOptions(column_types={f"f{k}": pa.string() for k in range(2)}),
        )
    for name, column in zip(table.column_names, table.columns, strict=True):
        is_text = types.is_string(column.type) or types.is_large_string(column.type)
        if not (is_text or types.is_integer(column.type) or types.is_floating(column.type)):
            raise FileError(f"Expected text or integers in {path}, but column {name} holds {column.type} values.")
    return [_as_text(column) for column in table.columns]


def _as_text(column: Any) -> NDArray[Any]:
    """Convert an Arrow column to integers, if it has no empty cells, or to stripped text."""
    import pyarrow as pa
    from pyarrow import compute, types

    if types.is_integer(column.type) and not column.null_count:
        integers: NDArray[Any] = column.to_numpy()
        return integers
    text: NDArray[Any] = compute.utf8_trim_whitespace(column.cast(pa.string()).fill_null("")).to_numpy()
    return text


def header_names(path: Path) -> list[str] | None:
    """Return the names of the columns of a table, or None if it has no header."""
    if path.suffix.lower() == ".parquet":
        from pyarrow.parquet import read_schema

        return [str(name) for name in read_schema(path).names]
    first, second = _first_lines(path)
    return [name.strip() for name in first] if _is_header(first, second, path) else None


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
    """Write batches. A CSV file has no lists: they are written as JSON text."""
    import pyarrow as pa
    from pyarrow import csv

    lists = [k for k, field in enumerate(schema) if pa.types.is_nested(field.type)]
    for k in lists:
        schema = schema.set(k, pa.field(schema.field(k).name, pa.string()))
    with csv.CSVWriter(path, schema) as writer:
        for batch in batches:
            for k in lists:
                text = [json.dumps(cell, ensure_ascii=False) for cell in batch.column(k).to_pylist()]
                batch = batch.set_column(k, schema.field(k), pa.array(text, pa.string()))
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
