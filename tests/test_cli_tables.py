"""The commands evaluate and predict with tables of many parts."""

import io
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv, parquet
from typer.testing import CliRunner, Result

import edgewise as ew
from edgewise.cli import app, table_options
from edgewise.cli.table_options import Pace, table_progress
from edgewise.pages.next_steps import Inputs, next_steps
from edgewise.tables.table_jobs import TableProgress
from helpers.processes import wait_until

IDS = ["ann", "bob", "cy", "dee", "eve"]
PROBS = np.array([[0.9, 0.1], [0.75, 0.25], [0.25, 0.75], [0.5, 0.5], [0.125, 0.875]])
LABELS = np.array([0, 0, 1, 1, 0])
EDGES = np.array([[0, 1, 1, 2, 3], [1, 0, 2, 3, 4]])
MASK = [0, 1, 2, 3]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder, which is the current one, with predictions in two parts as GraphStorm names them."""
    ids = pa.array(IDS)
    for name in ("pred", "edges"):
        (tmp_path / name).mkdir()
    for k, rows in enumerate(([3, 0], [4, 2, 1])):
        part = pa.table({"nid": ids.take(pa.array(rows)), "pred": PROBS[rows].tolist()})
        parquet.write_table(part, tmp_path / "pred" / f"pred.predict-0000{k}_00000.parquet")
        edges = {"src": ids.take(pa.array(EDGES[0, k::2])), "dst": ids.take(pa.array(EDGES[1, k::2]))}
        parquet.write_table(pa.table(edges), tmp_path / "edges" / f"{k}.parquet")
    csv.write_csv(pa.table({"id": ids, "y": LABELS}), tmp_path / "labels.csv")
    csv.write_csv(pa.table({"id": ids.take(pa.array(MASK))}), tmp_path / "mask.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


ARGS = ("--probs", "pred", "--labels", "labels.csv", "--edges", "edges", "--mask", "mask.csv")


def run(*args: object) -> Result:
    return CliRunner().invoke(app, ["evaluate", *map(str, args)], prog_name="edgewise")


def expected_lines(**options: object) -> list[str]:
    mask = np.isin(np.arange(5), MASK)
    return str(ew.evaluate(PROBS, LABELS, EDGES, mask=mask, same_label=False, **options)).splitlines()


def assert_scores(result: Result, **options: object) -> None:
    assert result.exit_code == 0, result.output
    expected = expected_lines(**options)
    assert result.stdout.splitlines()[: len(expected)] == expected


def test_folders_are_scored_like_arrays(tables: Path) -> None:
    result = run(*ARGS)
    assert_scores(result)
    assert "5 rows of edges: listed in mixed directions" in result.stdout


@pytest.mark.parametrize("probs", ["pred/*.parquet", "whole.parquet", "whole.csv", "url"])
def test_globs_files_with_ids_and_urls_are_tables(tables: Path, probs: str) -> None:
    whole = parquet.read_table("pred")
    parquet.write_table(whole, "whole.parquet")
    columns = {"nid": whole["nid"], **{f"p{k}": [row[k] for row in whole["pred"].to_pylist()] for k in range(2)}}
    csv.write_csv(pa.table(columns), "whole.csv")
    assert_scores(run("--probs", tables.as_uri() + "/pred" if probs == "url" else probs, *ARGS[2:]))


def test_columns_and_options_are_passed_on(tables: Path) -> None:
    table = parquet.read_table("edges").rename_columns(["from_id", "to_id"])
    parquet.write_table(table.append_column("weight", pa.array([1.0] * 5)), "other.parquet")
    args = [*ARGS[:5], "other.parquet", *ARGS[6:]]
    assert run(*args).exit_code == 2
    options = ("--bins", 3, "--closed", "left", "--norm", "max", "--edge-choice", "any")
    result = run(*args, "--columns", "src=from_id", "dst=to_id", *options)
    assert_scores(result, n_bins=3, closed="left", norm="max", edge_choice="any")


def test_labels_may_be_names_of_classes(tables: Path) -> None:
    csv.write_csv(pa.table({"id": IDS, "y": [["red", "blue"][label] for label in LABELS]}), "labels.csv")
    assert run(*ARGS).exit_code == 2
    Path("classes.txt").write_text("red\nblue\n")
    assert_scores(run(*ARGS, "--classes", "classes.txt"))
    Path("header.csv").write_text("red,blue\n0.5,0.5\n")
    assert_scores(run(*ARGS, "--classes", "header.csv"))


def test_same_label_is_scored_on_request(tables: Path) -> None:
    same = ew.evaluate(PROBS, LABELS, EDGES, mask=np.isin(np.arange(5), MASK)).same_label
    assert run(*ARGS, "--json", "scores.json", "--same-label").exit_code == 0
    assert json.loads(Path("scores.json").read_text())["same_label"]["nll"] == same.nll


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        (("--by", "degree"), "--by"),
        (("--resamples", 100), "--resamples"),
        (("--ids", "ids.txt"), "column of ids"),
        (("--binning", "mass"), "equal mass"),
    ],
)
def test_options_that_need_arrays_are_refused(tables: Path, option: tuple[str, object], advice: str) -> None:
    result = run(*ARGS, *option)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert option[0] in result.stderr and "--probs pred" in result.stderr and advice in result.stderr


@pytest.mark.parametrize(
    ("columns", "advice"), [("src", "KEY=NAME"), ("scr=a", "src"), ("src=a,src=b", "twice"), ("src=a", "dst")]
)
def test_wrong_columns_are_refused(tables: Path, columns: str, advice: str) -> None:
    result = run(*ARGS, "--columns", *columns.split(","))
    assert result.exit_code == 2
    assert advice in result.stderr


def test_dry_run_prints_sizes_and_writes_nothing(tables: Path) -> None:
    result = run(*ARGS, "--dry-run", "--work", "work", "--json", "scores.json")
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line.split()[1:3] for line in result.stdout.splitlines()[1:5]}
    assert rows == {"probs": ["2", "5"], "labels": ["1", "unknown"], "mask": ["1", "unknown"], "edges": ["2", "5"]}
    assert not Path("work").exists() and not Path("scores.json").exists()


def test_unknown_ids_are_an_error_or_counted(tables: Path) -> None:
    ids = pa.table({"src": ["ann", "zoe"], "dst": ["cy", "ann"]})
    parquet.write_table(ids, "edges/2.parquet")
    result = run(*ARGS, "--json", "scores.json")
    assert result.exit_code == 2
    assert "zoe" in result.stderr and "row 1" in result.stderr and "2.parquet" in result.stderr
    assert not Path("scores.json").exists()
    result = run(*ARGS, "--skip-unknown")
    assert result.exit_code == 0
    assert "skipped edges without a prediction for both ends: 1" in result.stdout


def test_outputs(tables: Path) -> None:
    result = run(*ARGS, "--json", "scores.json", "--plot", "plot.png", "--html", "page.html")
    assert_scores(result)
    scores = json.loads(Path("scores.json").read_text())
    assert scores["files"]["probs"] == "pred"
    assert scores["edgewise"]["count"] == 3
    assert any("5 rows of edges" in note for note in scores["notes"])
    assert Path("plot.png").read_bytes().startswith(b"\x89PNG")
    assert "5 rows of edges" in Path("page.html").read_text(encoding="utf-8")


def test_steps_of_the_page_run_as_shown(tables: Path) -> None:
    rng = np.random.default_rng(0)
    logits = 8.0 * rng.normal(size=(500, 2))
    labels = rng.integers(0, 2, 500)
    probs = torch.from_numpy(logits).softmax(-1)
    ids = pa.array(np.arange(500))
    parquet.write_table(pa.table({"id": ids, "pred": probs.tolist()}), "probs.parquet")
    parquet.write_table(pa.table({"id": ids, "label": labels}), "labels.parquet")
    parquet.write_table(pa.table({"a b": ids[:-1], "to": ids[1:], "weight": ids[1:]}), "pairs.parquet")
    columns = {"src": "a b", "dst": "to"}
    ev = ew.evaluate_tables("probs.parquet", "labels.parquet", "pairs.parquet", columns=columns)
    files = {"probs": "probs.parquet", "labels": "labels.parquet", "edges": "pairs.parquet"}
    inputs = Inputs(files, "tables", columns=tuple(f"{key}={name}" for key, name in columns.items()))
    calibrate, check, predict = next_steps(ev, inputs)
    printed: list[dict[str, object]] = []
    exec(calibrate.python, {"logits": logits, "labels": labels, "print": printed.append})
    assert printed[0]["temperature"] > 2
    Path("calibrated").mkdir()
    parquet.write_table(parquet.read_table("probs.parquet"), "calibrated/0.parquet")
    program, command, *args = shlex.split(check.command)
    assert (program, command) == ("edgewise", "evaluate")
    assert run(*args).exit_code == 0, run(*args).output
    result = CliRunner().invoke(app, shlex.split(predict.command)[1:], prog_name="edgewise")
    assert result.exit_code == 0, result.output


def test_interrupted_run_says_how_to_continue(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edgewise.tables.table_evaluation.EdgeScorer.sum_parts", interrupt)
    result = run(*ARGS, "--work", "work")
    assert result.exit_code == 130
    assert "kept in work" in result.stderr
    monkeypatch.undo()
    monkeypatch.chdir(tables)
    assert_scores(run(*ARGS, "--work", "work"))


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock of the display advance by one minute each time it is read."""

    def minutes() -> Iterator[float]:
        yield from (60.0 * k for k in range(1000))

    clock = minutes()
    monkeypatch.setattr(table_options, "monotonic", lambda: next(clock))


def test_progress_is_lines_without_a_terminal(seconds: None, capsys: pytest.CaptureFixture[str]) -> None:
    with table_progress(None) as report:
        report(TableProgress("edges", 0, 600, 0, 16))
        report(TableProgress("edges", 300, 600, 3, 16))
    assert re.search(r"edges: 3 of 16 parts, 300 of 600 rows.*left", capsys.readouterr().err.splitlines()[-1])


def test_time_left_does_not_count_rows_of_an_earlier_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_options, "monotonic", iter([0.0, 60.0]).__next__)
    pace = Pace()
    pace.format(TableProgress("edges", 500_000, 600_000, 5, 6))
    text = pace.format(TableProgress("edges", 520_000, 600_000, 5, 6))
    assert text == "5 of 6 parts, 520,000 of 600,000 rows, 333 per second, 4 min 00 s left"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal(seconds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with table_progress(None) as report:
        report(TableProgress("edges", 0, 600, 0, 16))
        report(TableProgress("edges", 300, 600, 3, 16))
        assert wait_until(lambda: "3 of 16 parts, 300 of 600 rows" in terminal.getvalue())
    assert "left" in terminal.getvalue()


PREDICT_ARGS = ("--probs", "pred", "--pairs", "edges", "--out", "out")


def predict(*args: object) -> Result:
    return CliRunner().invoke(app, ["predict", *map(str, args)], prog_name="edgewise")


def predicted(**options: object) -> pa.Table:
    """Return the predictions for the edges in the order of their parts."""
    pairs = np.array(IDS)[np.concatenate([EDGES[:, 0::2], EDGES[:, 1::2]], axis=1)]
    return ew.predict_edges(PROBS, pairs, node_ids=IDS, **options).to_arrow()


def test_predict_writes_a_folder_of_parts(tables: Path) -> None:
    result = predict(*PREDICT_ARGS)
    assert result.exit_code == 0, result.output
    assert "5 pairs in 1 part in out" in result.stdout
    assert parquet.read_table("out").equals(predicted())
    assert predict(*PREDICT_ARGS).stdout == result.stdout


@pytest.mark.parametrize("pairs", ["edges/*.parquet", "url"])
def test_predict_takes_options_globs_and_urls(tables: Path, pairs: str) -> None:
    Path("classes.txt").write_text("red\nblue\n")
    place = tables.as_uri() + "/edges" if pairs == "url" else pairs
    options = (
        "--events",
        "same",
        "any=blue",
        "--top",
        2,
        "--classes",
        "classes.txt",
        "--columns",
        "src=src",
        "dst=dst",
    )
    result = predict("--probs", "pred/*.parquet", "--pairs", place, "--out", "out", *options)
    assert result.exit_code == 0, result.output
    assert parquet.read_table("out").equals(predicted(events=["same", "any=blue"], top=2, class_names=["red", "blue"]))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_told_columns_of_probabilities_name_the_classes(tables: Path, suffix: str) -> None:
    table = {"nid": IDS, "b": PROBS[:, 0], "a": PROBS[:, 1], "y": pa.array(np.array(["b", "a"])[LABELS])}
    if suffix == "csv":
        csv.write_csv(pa.table(table), "nodes.csv")
    else:
        parquet.write_table(pa.table(table | {"y": table["y"].dictionary_encode()}), "nodes.parquet")
    args = ("--probs", f"nodes.{suffix}", "--labels", f"nodes.{suffix}", *ARGS[4:], "--columns", "probs=b,a")
    result = run(*args)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:7] == expected_lines()[:7]
    Path("names.txt").write_text("a\nb\n")
    assert run(*args, "--classes", "names.txt").stdout.splitlines()[1] != expected_lines()[1]
    csv.write_csv(pa.table({"id": IDS, "y": LABELS}), "numbers.csv")  # numbers of the columns are no names
    assert run(*args, "--labels", "numbers.csv").stdout.splitlines()[:7] == expected_lines()[:7]


@pytest.mark.parametrize(
    ("args", "advice"),
    [
        (("--probs", "pred", "--edges", "edges", "--out", "out"), "--pairs"),
        ((*PREDICT_ARGS, "--select", "same"), "filter"),
        ((*PREDICT_ARGS, "--conformal", 0.1), ".npy"),
        ((*PREDICT_ARGS, "--clamp"), "--clamp"),
        ((*PREDICT_ARGS, "--ids", "ids.txt"), "column of ids"),
        ((*PREDICT_ARGS, "--labels", "labels.csv"), "--labels"),
        (PREDICT_ARGS[:4], "--out"),
        ((*PREDICT_ARGS[:5], "out.parquet"), "--out"),
        ((*PREDICT_ARGS[:5], "s3://bucket/out"), "local"),
        ((*PREDICT_ARGS[:5], "edges"), "other files"),
        (PREDICT_ARGS[:2], "--pairs"),
        (PREDICT_ARGS[2:], "--probs"),
        ((*PREDICT_ARGS, "--events", "any=red"), "any=red"),
    ],
)
def test_predict_refuses_what_tables_do_not_have(tables: Path, args: tuple[object, ...], advice: str) -> None:
    result = predict(*args)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert advice in result.stderr
    assert sorted(path.name for path in tables.iterdir()) == ["edges", "labels.csv", "mask.csv", "pred"]


def test_predict_dry_run_prints_sizes_and_writes_nothing(tables: Path) -> None:
    result = predict(*PREDICT_ARGS[:4], "--dry-run")
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line.split()[1:3] for line in result.stdout.splitlines()[1:3]}
    assert rows == {"probs": ["2", "5"], "pairs": ["2", "5"]}
    assert "5 rows with 11 columns" in result.stdout
    assert not Path("out").exists()


def test_predict_names_or_counts_unknown_ids(tables: Path) -> None:
    parquet.write_table(pa.table({"src": ["ann", "zoe"], "dst": ["cy", "ann"]}), "edges/2.parquet")
    result = predict(*PREDICT_ARGS)
    assert result.exit_code == 2
    assert "zoe" in result.stderr and "row 1" in result.stderr and "2.parquet" in result.stderr
    result = predict(*PREDICT_ARGS, "--skip-unknown")
    assert result.exit_code == 0, result.output
    assert "6 pairs in 1 part in out; skipped pairs without a prediction or of a node with itself: 1" in result.stdout


def test_interrupted_predict_says_how_to_continue(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edgewise.tables.pair_prediction.PredictPairs.write", interrupt)
    result = predict(*PREDICT_ARGS)
    assert result.exit_code == 130
    assert "kept in out" in result.stderr
    monkeypatch.undo()
    monkeypatch.chdir(tables)
    assert predict(*PREDICT_ARGS).exit_code == 0
    assert parquet.read_table("out").equals(predicted())
