"""benchmarks/uai.py on a small instance: errors, limits, resumed runs, and tables of docs/inference-errors.md."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import edgewise as ew
from helpers.random_fields import MRFInputs, cycle, generator, random_mrf_inputs

HOME = Path(__file__).parents[1]
BENCHMARKS, PAGE = HOME / "benchmarks", HOME / "docs" / "inference-errors.md"
SECTIONS = ("verdicts", "summary", "exact", "approximate", "labelings")


def write_instance(folder: Path, name: str, seed: int) -> MRFInputs:
    """Write an instance of six nodes and its solution by enumeration."""
    g = generator(seed)
    inputs = random_mrf_inputs(cycle(6), 6, 3, g, kind="per edge")
    true, path = inputs.enumeration(), folder / f"{name}.uai"
    ew.write_uai(inputs.mrf(), path)
    Path(f"{path}.evid").write_text("0")
    rows = " ".join("3 " + " ".join(f"{p:.6g}" for p in row) for row in true.nodes())
    Path(f"{path}.MAR").write_text(f"MAR\n6 {rows}\n")
    Path(f"{path}.PR").write_text(f"PR\n{true.log_z / math.log(10):.6g}\n")
    return inputs


def run(folder: Path, *options: str) -> list[dict]:
    results = folder / "runs.jsonl"
    command = [sys.executable, BENCHMARKS / "uai.py", folder, "--results", results, *options]
    subprocess.run(command, check=True, capture_output=True, timeout=1800)
    return [json.loads(line) for line in results.read_text("utf-8").splitlines()]


def test_finished_runs_are_skipped_and_redone_if_asked(tmp_path):
    write_instance(tmp_path, "Cycle_1", 0)
    first = run(tmp_path, "--methods", "exact_marginals", "mean_field")
    assert [(line["instance"], line["method"], line["status"]) for line in first] == [
        ("Cycle_1", "exact_marginals", "ok"),
        ("Cycle_1", "mean_field", "ok"),
    ]
    assert first[0]["max_error"] < 1e-6 and abs(first[0]["log10_z_error"]) < 1e-4
    assert first[1]["log10_z_error"] < 0  # a lower bound
    assert run(tmp_path, "--methods", "exact_marginals", "mean_field") == first
    again = run(tmp_path, "--redo", "mean_field")
    assert again[:2] == first and [line["method"] for line in again[2:]] == ["mean_field"]


def test_run_that_takes_too_long_is_ended(tmp_path):
    write_instance(tmp_path, "Cycle_1", 0)
    (line,) = run(tmp_path, "--methods", "tree_reweighted", "--seconds", "0.0001")
    assert line["status"] == "time"


def test_interrupted_run_is_not_finished(load_benchmark, monkeypatch, tmp_path):
    benchmark = load_benchmark("uai")
    ended = subprocess.CompletedProcess([], -signal.SIGTERM, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: ended)
    write_instance(tmp_path, "Cycle_1", 0)
    results = tmp_path / "runs.jsonl"
    monkeypatch.setattr(sys, "argv", ["uai.py", str(tmp_path), "--methods", "infer", "--results", str(results)])
    benchmark.main()
    assert benchmark.read_results(results) == {}


def test_damaged_last_line_is_ignored(load_benchmark, tmp_path):
    path = tmp_path / "runs.jsonl"
    lines = [{"instance": "A_1", "method": "infer", "status": status} for status in ("time", "ok")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"instance": "A_2", "meth', "utf-8")
    assert load_benchmark("uai").read_results(path) == {("A_1", "infer"): lines[1]}


def test_mean_field_bound_and_score_equal_enumeration(load_benchmark, tmp_path):
    benchmark = load_benchmark("uai")
    inputs = write_instance(tmp_path, "Cycle_1", 1)
    mrf, true = inputs.mrf(), inputs.enumeration()
    q = torch.rand(6, 3, generator=generator(2), dtype=torch.float64)
    q = q / q.sum(1, keepdim=True)
    bound = 0.0
    for labels in np.ndindex(*(3,) * 6):
        weight = math.prod(float(q[i, label]) for i, label in enumerate(labels))
        bound += weight * (true.scores[labels] - math.log(weight))
    assert benchmark.mean_field_bound(mrf, q) == pytest.approx(bound, abs=1e-9)
    assert bound <= true.log_z
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    assert benchmark.score(mrf, labels) == pytest.approx(true.scores[tuple(labels.tolist())], abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("rival", ["pgmpy", "aGrUM"])
def test_exact_libraries_find_the_marginals(rival, load_benchmark, tmp_path):
    if not load_benchmark("uai_rivals").is_installed(rival):
        pytest.skip(f"needs {rival}: pip install -r benchmarks/requirements.txt")
    write_instance(tmp_path, "Cycle_1", 3)
    (line,) = run(tmp_path, "--methods", rival)
    assert line["status"] == "ok" and line["max_error"] < 1e-6


def section(name: str) -> str:
    return PAGE.read_text("utf-8").split(f"<!-- {name} -->")[1].split(f"<!-- end of {name} -->")[0]


def heads(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line for line, below in zip(lines, [*lines[1:], ""], strict=True) if below.startswith("| ---")]


def test_headings_of_the_page_are_those_of_the_benchmark(load_benchmark):
    page = load_benchmark("uai_page")
    ok = {"status": "ok", "seconds": 1.0, "mean_error": 0.1, "max_error": 0.2, "log10_z_error": 0.3, "nodes": 2}
    ok |= {"edges": 1, "labels": 2, "width": 1, "peak_bytes": 1 << 30, "converged": True, "sweeps": 3, "warns": True}
    ok |= {"score": 1.0, "solver": "sum-product"}
    methods = (*page.NAMES, "map_labels", "toulbar2")
    runs = {("A_1", method): {**ok, "instance": "A_1", "method": method} for method in methods}
    tables = page.verdicts_table(runs), page.summary_table(runs), page.exact_table(runs)
    tables += page.approximate_tables(runs), page.labelings_table(runs)
    for name, text in zip(SECTIONS, tables, strict=True):
        assert set(heads(section(name))) == set(heads(text))


def test_page_says_why_a_run_has_no_result(load_benchmark):
    page = load_benchmark("uai_page")
    assert page.seconds_cell({"status": "time", "seconds": 60.0}) == "> 60 s"
    assert page.seconds_cell({"status": "memory", "memory": 12}) == "> 12 GiB"
    assert page.seconds_cell({"status": "error"}) == "failed"
    assert "0.2" in page.seconds_cell({"status": "ok", "seconds": 1.0, "max_error": 0.2})
    stuck = {"status": "ok", "method": "sum_product", "converged": False, "sweeps": 9, "warns": True}
    assert "warns" in page.verdict(stuck) and "0.5" in page.verdict({**stuck, "disagreement": 0.5})
