"""The examples run, and print the scores that their texts describe."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt
import numpy as np
import pytest
from typer.testing import CliRunner

import edgewise as ew
from edgewise.cli import app

EXAMPLES = Path(__file__).parents[1] / "examples"
TORCH_GEOMETRIC = "ignore:`torch.jit.script` is deprecated:DeprecationWarning"  # 2.8 with torch 2.13
RUN_ALL = """
import runpy, sys
for script in sys.argv[1:]:
    print("output of", script)
    runpy.run_path(script, run_name="__main__")
"""


def run_python(folder: Path, *arguments: str, **environment: str) -> str:
    """Run Python in an empty folder with warnings as errors. It must not write to stderr or leave files behind."""
    folder.mkdir()
    command = [sys.executable, "-W", "error", "-W", TORCH_GEOMETRIC, *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert (result.returncode, result.stderr) == (0, "")
    assert not list(folder.iterdir())
    return result.stdout


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(printed: str, name: str) -> list[float]:
    """Return the numbers of the line that starts with a name; percentages become fractions."""
    (line,) = re.findall(rf"^ *{re.escape(name)} .*$", printed, re.MULTILINE)
    cells = re.findall(r"(\d[\d,]*(?:\.\d+)?)(%?)", line.replace(name, "", 1))
    return [float(number.replace(",", "")) / (100 if percent else 1) for number, percent in cells]


@pytest.fixture(scope="module")
def output_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the scripts that train in one process, because importing their packages takes longer than running them."""
    scripts = [
        str(EXAMPLES / name) for name in ("own_model.py", "graph_sage.py", "lightning_loop.py", "fraud_pairs.py")
    ]
    printed = run_python(tmp_path_factory.mktemp("examples") / "run", "-c", RUN_ALL, *scripts)
    _, *parts = re.split(r"^output of .*?(\w+)\.py$", printed, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.slow
def test_own_model_is_better_calibrated_on_nodes_and_on_edges(output_of):
    printed = output_of["own_model"]
    node_ece, node_nll, edge_ece, edge_nll, p_same, frequency = row(printed, "before")
    assert "1,957 test nodes" in printed and "2,768 edges" in printed
    after = row(printed, "after")
    assert after[0] < 0.8 * node_ece and after[2] < 0.8 * edge_ece
    assert after[1] < node_nll - 0.03 and after[3] < edge_nll - 0.1
    assert abs(after[4] - frequency) < abs(p_same - frequency)


@pytest.mark.slow
def test_graph_sage_is_trained_like_gcn_and_better_after_calibration(output_of):
    printed = output_of["graph_sage"]
    for name in ("GCN", "GraphSAGE"):
        epochs, accuracy, node_nll, edge_ece, edge_nll = row(printed, name)
        assert 100 < epochs <= 2000 and accuracy > 0.75 and 0 < edge_ece < 0.4 and node_nll < edge_nll
    calibrated = re.findall(r"edge ece ([\d.]+), edge nll ([\d.]+)", printed)[-1]
    assert float(calibrated[0]) < edge_ece and float(calibrated[1]) < edge_nll


@pytest.mark.slow
def test_lightning_logs_the_calibration_of_each_validation(output_of):
    printed = output_of["lightning_loop"]
    accuracy, node_ece, edge_nll, edge_ece = zip(*(row(printed, str(epoch)) for epoch in range(6, 49, 6)), strict=True)
    assert all(0.65 < value < 0.85 for value in accuracy)
    assert min(edge_ece) < min(0.06, edge_ece[0], edge_ece[-1] - 0.03)  # decreases, then increases
    assert edge_nll[-1] > min(edge_nll) + 0.1
    assert "3,000 nodes" in printed  # of one validation: 20 graphs of 150 nodes
    assert "21 scores are logged" in printed  # four of each view, five of the event "same label"
    lowest = [6 * (errors.index(min(errors)) + 1) for errors in (node_ece, edge_ece)]
    assert re.findall(r"after\s+epoch\s+(\d+)", printed) == [str(epoch) for epoch in lowest]
    assert lowest[0] != lowest[1]
    for errors in (node_ece, edge_ece):
        assert errors[-1] > min(errors) + 0.02


@pytest.mark.slow
def test_fraud_costs_less_with_calibrated_joints_and_least_with_the_truth(output_of):
    printed = output_of["fraud_pairs"]
    product, calibrated, joints, truth = (
        row(printed, name)
        for name in ("uncalibrated product", "calibrated product", "calibrated joints", "true joints")
    )
    for column in range(3):  # NLL, cost of investigations, cost of blocks
        assert truth[column] < joints[column] < product[column]
        assert truth[column] < calibrated[column] < product[column]
    savings = [sum(product[1:3]) - sum(numbers[1:3]) for numbers in (calibrated, joints, truth)]
    fractions = [float(percent) / 100 for percent in re.findall(r"(\d+)%", printed.partition("more per edge;")[2])[:2]]
    assert fractions == pytest.approx([saved / savings[2] for saved in savings[:2]], abs=0.02)  # costs are rounded
    assert joints[0] < calibrated[0]
    assert product[3] > 0.15  # false alarms, where P predicts 10%
    assert joints[3] < 0.14 and truth[3] < 0.14
    checks = re.findall(r"on test: ([\d,]+) of 1,391 pairs selected, precision ([\d.]+)", printed)
    checks = [(int(selected.replace(",", "")), float(precision)) for selected, precision in checks]
    assert len(checks) == 6 and min(checks)[0] >= 100
    assert all(checks[k][1] >= 0.85 for k in (1, 4))  # thresholds for a precision of 0.85
    assert all(checks[k][1] >= 0.86 for k in (2, 5))  # for a false discovery rate of 0.1, in expectation


@pytest.mark.slow
def test_ten_million_edges_on_disk_take_little_memory(tmp_path):
    (tmp_path / "temporary").mkdir()
    script, temporary = str(EXAMPLES / "stream_edges.py"), str(tmp_path / "temporary")
    run_python(tmp_path / "first", script, "--edges", "1000000", TMPDIR=temporary)  # compiles, which takes memory too
    printed = run_python(tmp_path / "run", script, TMPDIR=temporary)
    assert not list((tmp_path / "temporary").iterdir())
    assert row(printed, "listed")[0] == 10_000_000
    scored, loops = row(printed, "scored")
    assert scored == 5_000_000 - loops and 550 < loops < 850  # expected 707 ± 27
    assert row(printed, "memory")[0] < 1.5 and row(printed, "joints")[0] == 64


def test_edges_on_disk_have_the_same_scores_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["stream_edges.py", "--edges", "300001", "--folder", "."])
    load("stream_edges").main()
    table, _, rest = capsys.readouterr().out.partition("\n\nlisted")
    (command,) = re.findall(r"^  edgewise (.*)$", rest, re.MULTILINE)
    assert CliRunner().invoke(app, command.split()).stdout.strip() == table.strip()
    start, end = np.load("edges.npy")[:, :150_000]
    assert f"scored   {(start != end).sum():,}: " in rest and "300,000 edges" in rest


def test_demo_prints_and_saves_the_scores_of_all_models(tmp_path, monkeypatch, capsys):
    demo = load("demo")
    short = (
        ew.GCN(max_epochs=3),
        ew.GAT(max_epochs=3),
        ew.GMNN(pretrain_epochs=3, round_epochs=3, samples=4),
        ew.EPFGNN(pretrain_epochs=3, rounds=1, steps=3),
    )
    monkeypatch.setattr(demo, "MODELS", short)
    monkeypatch.setattr(sys, "argv", ["demo.py", str(tmp_path)])
    demo.main()
    plt.close("all")
    printed = capsys.readouterr().out
    scores = json.loads((tmp_path / "scores.json").read_text())
    for model in short:
        shown = re.findall(rf"^{type(model).__name__} +accuracy +([\d.]+)", printed, re.MULTILINE)
        assert shown == [f"{100 * scores[model.name]['nodewise']['accuracy']:.1f}"]
        assert (tmp_path / f"{model.name}.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    height, width, _ = plt.imread(tmp_path / "reliability.png").shape
    assert width <= 1280 and height <= 800  # fits a small screen
    text = printed.partition("\nTest scores")[2].splitlines()
    assert len(text) <= 36 and max(map(len, text[:-1])) <= 110  # the last line is a command
    (command,) = re.findall(r"edgewise evaluate (.*)$", printed, re.MULTILINE)
    assert all(Path(file).exists() for file in command.split() if file.endswith((".npy", ".safetensors")))


@pytest.mark.slow
def test_tutorial_runs_and_shows_what_its_text_says(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    stored = nbformat.read(EXAMPLES / "tutorial.ipynb", as_version=4)
    notebook = nbformat.read(EXAMPLES / "tutorial.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()  # raises the error of a cell, and ends the kernel
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert "GraphSAGE on Cora" in (tmp_path / "report.html").read_text(encoding="utf-8")
    for new, old in zip(notebook.cells, stored.cells, strict=True):
        assert outputs_of(new) == outputs_of(old), new.source
    before, after = (
        table_cells(output)
        for cell in notebook.cells
        for output in outputs(cell)
        if "Same label" in output.get("data", {}).get("text/html", "")
    )
    columns = ("count", "predicted", "observed", "gap", "ece", "nll", "brier")
    for row in ("Nodes", "Edges", "Same label"):
        old, new = (dict(zip(columns, table[row], strict=False)) for table in (before, after))
        assert new["nll"] < old["nll"] and abs(new["gap"]) < abs(old["gap"]) and old["gap"] > 0, row
    (printed,) = (
        output["text"] for cell in notebook.cells for output in outputs(cell) if output.get("name") == "stdout"
    )
    validation, test = (float(precision) for precision in re.findall(r"precision ([\d.]+), recall", printed))
    assert validation >= 0.95 and test < validation


def outputs(cell) -> list:
    """Return the outputs of a cell except stderr, where packages may warn."""
    return [output for output in cell.get("outputs", []) if output.get("name") != "stderr"]


def outputs_of(cell) -> list:
    """Return the kinds of the outputs, such as ["text/html", "text/plain"] of a table."""
    return [sorted(output.get("data", {output.output_type: ""})) for output in outputs(cell)]


def table_cells(output) -> dict[str, list[float]]:
    """Return the numbers of each row of an HTML table."""
    rows = re.findall(r"<tr>(.*?)</tr>", output["data"]["text/html"])
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in rows]
    return {
        name: [float(re.sub("[,%]", "", text).replace("−", "-") or "nan") for text in numbers]
        for name, *numbers in filter(None, cells)
    }


def test_every_example_is_listed_and_tested():
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    listed = set(re.findall(r"^\| \[(\w+\.py)\]", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    tested = Path(__file__).read_text(encoding="utf-8")
    assert listed == scripts
    for notebook in EXAMPLES.glob("*.ipynb"):
        assert f"({notebook.name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")
        assert f'"{notebook.name}"' in tested
    assert all(re.search(rf'"{script.stem}(\.py)?"', tested) for script in EXAMPLES.glob("*.py"))
