"""Tables on disk: .csv, .parquet and strict .json, a batch of rows at a time."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.replace_file import replace_file
from edgewise.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa


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
