"""Parquet table of runs, with one row per run, prediction and view."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from edgewise.files.output import replace_file
from edgewise.metrics.scores import METRICS
from edgewise.sweep.runs import Bins, OtherVersionError, Prediction, Run, RunKey, ViewResult, check_scores
from edgewise.sweep.store import CommandRow, TaskRow

FORMAT = b"edgewise runs 1"
KEY_COLUMNS = ("dataset", "model", "hyperparameters", "split", "fold", "init")
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in KEY_COLUMNS[:3]),
        *((name, pa.int32()) for name in KEY_COLUMNS[3:]),
        ("seed", pa.int64()),
        ("seconds", pa.float64()),
        ("epochs", pa.int32()),
        ("versions", pa.string()),
        ("finished", pa.string()),
        ("prediction", pa.string()),
        ("view", pa.string()),
        ("count", pa.int64()),
        *((metric, pa.float64()) for metric in METRICS),
        ("bin_count", pa.list_(pa.int64())),
        ("bin_confidence_sum", pa.list_(pa.float64())),
        ("bin_correct_sum", pa.list_(pa.int64())),
    ]
)


def write_run_table(
    path: Path,
    runs: Sequence[Run],
    tasks: Sequence[TaskRow],
    commands: Sequence[CommandRow],
    failures: Mapping[RunKey, str],
) -> None:
    """Write runs to a Parquet file, with graphs, splits, commands and failures in its metadata."""
    rows = [
        {
            **asdict(run.key),
            "seed": run.seed,
            "seconds": run.seconds,
            "epochs": run.epochs,
            "versions": json.dumps(dict(run.versions)),
            "finished": run.finished,
            "prediction": name,
            "view": view,
            "count": result.count,
            **{metric: result[metric] for metric in METRICS},
            "bin_count": result.bins.count,
            "bin_confidence_sum": result.bins.confidence_sum,
            "bin_correct_sum": result.bins.correct_sum,
        }
        for run in runs
        for name, prediction in run.predictions.items()
        for view, result in prediction.items()
    ]
    metadata = {
        b"format": FORMAT,
        b"tasks": json.dumps([asdict(task) for task in tasks]).encode(),
        b"commands": json.dumps([asdict(command) for command in commands]).encode(),
        b"failures": json.dumps([{**asdict(key), "error": error} for key, error in failures.items()]).encode(),
    }
    table = pa.Table.from_pylist(rows, SCHEMA.with_metadata(metadata))
    replace_file(path, lambda file: pq.write_table(table, file, compression="zstd", compression_level=19))


def read_run_table(path: Path) -> tuple[list[Run], list[TaskRow], list[CommandRow], dict[RunKey, str]]:
    """Read the runs, graphs and splits, commands and failures that `write_run_table` wrote."""
    if not path.is_file():
        raise ValueError(f"Expected a table of runs, but {path} does not exist. Check the path.")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"Expected a table of runs, but {path} cannot be read: {error}. Export it again.") from error
    metadata = table.schema.metadata or {}
    if metadata.get(b"format") != FORMAT:
        raise ValueError(
            f"Expected a table of runs, but {path} is another table. Write one with edgewise report --export."
        )
    try:
        return _parse_table(table.to_pylist(), metadata)
    except OtherVersionError as error:
        raise ValueError(
            f"Expected runs with all scores of this edgewise, but those in {path} have {error}. Use the edgewise that "
            "wrote them, or run them again."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # damaged, or changed by others
        raise ValueError(f"Expected a valid table of runs, but {path} is damaged: {error}. Export it again.") from error


def _parse_table(
    rows: list[dict[str, Any]], metadata: Mapping[bytes, bytes]
) -> tuple[list[Run], list[TaskRow], list[CommandRow], dict[RunKey, str]]:
    check_scores((row["view"], row) for row in rows)
    runs = [
        _parse_run(list(of_run)) for _, of_run in groupby(rows, key=lambda row: [row[name] for name in KEY_COLUMNS])
    ]
    tasks = [TaskRow(**task) for task in json.loads(metadata[b"tasks"])]
    commands = [CommandRow(**command) for command in json.loads(metadata[b"commands"])]
    failures = {RunKey(**{n: row[n] for n in KEY_COLUMNS}): row["error"] for row in json.loads(metadata[b"failures"])}
    return runs, tasks, commands, failures


def _parse_run(rows: list[dict[str, Any]]) -> Run:
    first = rows[0]
    predictions = {
        str(name): _parse_prediction(list(of_prediction))
        for name, of_prediction in groupby(rows, key=lambda row: row["prediction"])
    }
    key = RunKey(**{name: first[name] for name in KEY_COLUMNS})
    return Run(
        key, predictions, first["seconds"], first["epochs"], json.loads(str(first["versions"])), str(first["finished"])
    )


def _parse_prediction(rows: list[dict[str, Any]]) -> Prediction:
    return {
        str(row["view"]): ViewResult(
            **{name: row[name] for name in ("count", *METRICS)},
            bins=Bins(row["bin_count"], row["bin_confidence_sum"], row["bin_correct_sum"]),
        )
        for row in rows
    }
