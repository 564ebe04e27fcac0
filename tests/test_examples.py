"""The examples run as they are, and print what they promise."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from typer.testing import CliRunner

import edgewise as ew
from edgewise.cli import app

EXAMPLES = Path(__file__).parents[1] / "examples"
TORCH_GEOMETRIC = "ignore:`torch.jit.script` is deprecated:DeprecationWarning"  # 2.8 with torch 2.13
IN_TURN = """
import runpy, sys
for script in sys.argv[1:]:
    print("printed by", script)
    runpy.run_path(script, run_name="__main__")
"""


def _printed(folder: Path, *arguments: str, **environment: str) -> str:
    """Run Python in an empty folder, warnings being errors; it must not complain, nor leave anything behind."""
    folder.mkdir()
    command = [sys.executable, "-W", "error", "-W", TORCH_GEOMETRIC, *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert (run.returncode, run.stderr) == (0, "")
    assert not list(folder.iterdir())
    return run.stdout


@pytest.fixture(scope="module")
def printed_by(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the scripts that train in one process, for it takes longer to import what they need than to run them."""
    scripts = [str(EXAMPLES / name) for name in ("own_model.py", "lightning_loop.py", "fraud_pairs.py")]
    printed = _printed(tmp_path_factory.mktemp("examples") / "run", "-c", IN_TURN, *scripts)
    _, *parts = re.split(r"^printed by .*?(\w+)\.py$", printed, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _row(printed: str, name: str) -> list[float]:
    """Give the numbers of the line that begins with a name; percents are shares."""
    (line,) = re.findall(rf"^ *{re.escape(name)} .*$", printed, re.MULTILINE)
    cells = re.findall(r"(\d[\d,]*(?:\.\d+)?)(%?)", line.replace(name, "", 1))
    return [float(number.replace(",", "")) / (100 if percent else 1) for number, percent in cells]


def test_own_model_is_better_calibrated_on_nodes_and_on_edges(printed_by):
    printed = printed_by["own_model"]
    node_ece, node_nll, edge_ece, edge_nll, said, share = _row(printed, "before")
    assert "1,957 test nodes" in printed and "2,768 edges" in printed
    now = _row(printed, "after")
    assert now[0] < 0.8 * node_ece and now[2] < 0.8 * edge_ece
    assert now[1] < node_nll - 0.03 and now[3] < edge_nll - 0.1
    assert abs(now[4] - share) < abs(said - share)


def test_lightning_logs_the_calibration_of_each_validation(printed_by):
    printed = printed_by["lightning_loop"]
    accuracy, node_ece, edge_nll, edge_ece = zip(*(_row(printed, str(epoch)) for epoch in range(6, 49, 6)), strict=True)
    assert all(0.65 < share < 0.85 for share in accuracy)
    assert min(edge_ece) < min(0.06, edge_ece[0], edge_ece[-1] - 0.03)  # down, and up again
    assert edge_nll[-1] > min(edge_nll) + 0.1
    assert "scores 3,000 nodes" in printed  # of the last validation alone, whose 20 graphs have 150 each
    assert "16 scores are logged" in printed
    lowest = [6 * (errors.index(min(errors)) + 1) for errors in (node_ece, edge_ece)]
    assert re.findall(r"after epoch\s+(\d+)", printed) == [str(epoch) for epoch in lowest]
    assert lowest[0] != lowest[1]  # "stops at another model"
    for errors in (node_ece, edge_ece):  # "later both rise"
        assert errors[-1] > min(errors) + 0.02


def test_fraud_costs_less_by_calibrated_joints_and_least_by_the_truth(printed_by):
    printed = printed_by["fraud_pairs"]
    product, calibrated, joints, truth = (
        _row(printed, name)
        for name in ("uncalibrated product", "calibrated product", "calibrated joints", "true joints")
    )
    for column in range(3):  # NLL, the cost of looking, the cost of acting
        assert truth[column] < joints[column] < product[column]
        assert truth[column] < calibrated[column] < product[column]
    savings = [sum(product[1:3]) - sum(row[1:3]) for row in (calibrated, joints, truth)]
    shares = [float(percent) / 100 for percent in re.findall(r"(\d+)%", printed.partition("an edge;")[2])[:2]]
    assert shares == pytest.approx([saved / savings[2] for saved in savings[:2]], abs=0.02)  # costs are rounded
    assert joints[0] < calibrated[0]
    assert product[3] > 0.15  # false alarms, where 10% are promised
    assert joints[3] < 0.14 and truth[3] < 0.14
    found = re.findall(r"on test: ([\d,]+) of 1,391 pairs selected, precision ([\d.]+)", printed)
    checked = [(int(selected.replace(",", "")), float(precision)) for selected, precision in found]
    assert len(checked) == 6 and min(checked)[0] >= 100
    assert all(checked[place][1] >= 0.85 for place in (1, 4))  # thresholds for a precision of 0.85
    assert all(checked[place][1] >= 0.86 for place in (2, 5))  # for a false discovery rate of 0.1, in expectation


def test_ten_million_edges_on_disk_take_little_memory(tmp_path):
    (tmp_path / "temporary").mkdir()
    script, there = str(EXAMPLES / "stream_edges.py"), str(tmp_path / "temporary")
    _printed(tmp_path / "first", script, "--edges", "1000000", TMPDIR=there)  # compiles, which takes memory of its own
    printed = _printed(tmp_path / "run", script, TMPDIR=there)
    assert not list((tmp_path / "temporary").iterdir())
    assert _row(printed, "listed")[0] == 10_000_000
    scored, loops = _row(printed, "scored")
    assert scored == 5_000_000 - loops and 550 < loops < 850  # 707 ± 27 are drawn
    assert _row(printed, "memory")[0] < 1.5 and _row(printed, "instead")[0] == 64


def test_edges_on_disk_score_the_same_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["stream_edges.py", "--edges", "300001", "--folder", "."])
    _module("stream_edges").main()
    table, _, rest = capsys.readouterr().out.partition("\n\nlisted")
    (command,) = re.findall(r"^  edgewise (.*)$", rest, re.MULTILINE)
    assert CliRunner().invoke(app, command.split()).stdout.strip() == table.strip()
    start, end = np.load("edges.npy")[:, :150_000]
    assert f"scored   {(start != end).sum():,}: " in rest and "300,000 edges" in rest


def test_demo_sets_scores_beside_the_published_ones(tmp_path, monkeypatch, capsys):
    demo = _module("demo")
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
        shown = re.findall(rf"^{model.name} +accuracy +([\d.]+)", printed, re.MULTILINE)
        assert shown == [f"{100 * scores[model.name]['nodewise']['accuracy']:.2f}"]
    assert (tmp_path / "reliability.png").stat().st_size > 10_000
    (again,) = re.findall(r"edgewise evaluate (.*)$", printed, re.MULTILINE)
    assert all(Path(file).exists() for file in again.split() if file.endswith((".npy", ".safetensors")))


def test_every_example_is_listed_and_tested():
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    listed = set(re.findall(r"^\| \[(\w+\.py)\]", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    tested = Path(__file__).read_text(encoding="utf-8")
    assert listed == scripts
    assert all(re.search(rf'"{script.stem}(\.py)?"', tested) for script in EXAMPLES.glob("*.py"))


def _module(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
