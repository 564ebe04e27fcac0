"""The steps of a report: each command and each line of Python is run as the page shows it."""

import html
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from typer.testing import CliRunner

import edgewise as ew
from edgewise.cli import app
from edgewise.pages.evaluation_page import evaluation_page
from edgewise.pages.next_steps import PREPARATION, Inputs, next_steps

NAMES = np.array(["ant", "bee", "cat"])


def overconfident(num_nodes: int = 900, num_edges: int = 1800) -> dict[str, np.ndarray]:
    """Return labels drawn from probabilities, sharpened probabilities, predictions, edges, features, and masks."""
    rng = np.random.default_rng(0)
    truth = rng.dirichlet([1, 1, 1], num_nodes)
    part = rng.integers(0, 3, num_nodes)
    return {
        "probs": truth**3 / (truth**3).sum(1, keepdims=True),
        "labels": (truth.cumsum(1) > rng.random((num_nodes, 1))).argmax(1),
        "edges": rng.integers(0, num_nodes, (2, num_edges)),
        "predictions": np.where(np.arange(num_nodes) < 9, 0, truth.argmax(1)),
        "features": rng.normal(size=(num_nodes, 2)),
        "train": part == 0,
        "val": part == 1,
        "test": part == 2,
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Write the arrays to the current folder, and return them."""
    monkeypatch.chdir(tmp_path)
    arrays = overconfident()
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    return arrays


def run(command: str) -> str:
    program, *args = shlex.split(command)
    assert program == "edgewise"
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, (command, result.output)
    return result.output


def commands_on(page: str) -> list[str]:
    blocks = re.findall(r"<code>(edgewise .*?)</code>", Path(page).read_text(encoding="utf-8"), re.DOTALL)
    return [html.unescape(block).replace("\\\n", " ") for block in blocks]


@pytest.mark.parametrize(
    "options",
    [
        "--edges edges.npy --mask test.npy",
        "--edges edges.npy --bins 10 --binning mass --closed left --norm l2 --edge-choice any --no-same-label "
        "--resamples 50 --confidence-level 0.9 --seed 3 --mask test.npy",
        "--edges edges.npy --selective --mask test.npy",
        "--edges edges.npy --predictions predictions.npy --mask test.npy",
        "--mask test.npy",
        "",
    ],
)
def test_commands_of_the_page_run_with_the_given_options(folder, options):
    run(f"edgewise evaluate --probs probs.npy --labels labels.npy {options} --html page.html")
    calibrate, check, *_ = commands = commands_on("page.html")
    assert len(commands) == 3 and "--probs probs.npy" in calibrate
    for option, value in re.findall(r"(--[\w-]+)( [\w.]+)?", options):
        assert f"{option}{value} " in check
    for command in commands:
        run(command)
    assert Path("after.html").exists()
    assert Path("pairs.csv" if "--edges" in options else "pairs.html").exists()


def test_commands_of_the_page_normalize_rounded_probabilities(folder):
    np.savetxt("rounded.csv", folder["probs"].round(3), delimiter=",")
    run("edgewise evaluate --probs rounded.csv --normalize --labels labels.npy --edges edges.npy --html page.html")
    assert "ew.wrap(probs, normalize=True)" in Path("page.html").read_text(encoding="utf-8")
    for command in commands_on("page.html"):
        run(command)
    assert "normalize=True" in evaluation_page(ew.evaluate(folder["probs"], folder["labels"], normalize=True))


@pytest.mark.parametrize("kind", ["probs", "logits"])
def test_commands_of_the_page_find_class_names_in_a_header(folder, kind):
    scores = folder["probs"] if kind == "probs" else np.log(folder["probs"])
    np.savetxt("named.csv", scores, delimiter=",", header=",".join(NAMES), comments="")
    np.savetxt("names.csv", NAMES[folder["labels"]], fmt="%s", header="label", comments="")
    run(f"edgewise evaluate --{kind} named.csv --labels names.csv --edges edges.npy --html page.html")
    for command in commands_on("page.html"):
        run(command)
    assert "bee" in Path("pairs.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("calibrator", ["temperature", "structured"])
def test_calibrated_predictions_are_not_calibrated_again(folder, calibrator):
    masks = "--train train.npy --val val.npy"
    files = "--labels labels.npy --edges edges.npy"
    run(f"edgewise calibrate --probs probs.npy {files} {masks} --calibrator {calibrator} --out calibrated.safetensors")
    flipped = (folder["labels"] + folder["test"]) % 3  # wrong on the test nodes
    np.save("labels.npy", flipped)
    run(f"edgewise evaluate --probs calibrated.safetensors {files} --mask test.npy --html page.html")
    assert "calibrated already" in Path("page.html").read_text(encoding="utf-8")
    (command,) = commands_on("page.html")
    assert command.startswith("edgewise predict --probs calibrated.safetensors")
    run(command)
    calibrated = ew.TemperatureScaling().fit(
        ew.wrap(folder["probs"]),
        Data(y=torch.from_numpy(flipped)),
        ew.Split(*(folder[k] for k in ("train", "val", "test"))),
    )
    steps = next_steps(ew.evaluate(calibrated, flipped, folder["edges"], mask=folder["test"]))
    assert not any("fit(" in step.python for step in steps)


def test_no_output_of_a_command_is_an_input(folder):
    ew.wrap(folder["probs"]).save("calibrated.safetensors")  # in spite of its name
    run("edgewise evaluate --probs calibrated.safetensors --labels labels.npy --edges edges.npy --html page.html")
    for command in commands_on("page.html"):
        run(command)


@pytest.mark.filterwarnings("ignore:The threshold was chosen on")  # few pairs
@pytest.mark.parametrize("scored", ["probs", "model"])
@pytest.mark.parametrize("has_edges", [True, False])
@pytest.mark.parametrize("is_given", [False, True])
def test_python_code_of_the_page_runs_on_arrays(folder, has_edges, scored, is_given):
    names = {**folder, "model": ew.wrap(folder["probs"])}
    exec(PREPARATION, names)
    edges = folder["edges"] if has_edges else None
    given = folder["predictions"] if is_given else None
    ev = ew.evaluate(names[scored], folder["labels"], edges, mask=folder["test"], n_bins=10, predictions=given)
    steps = next_steps(ev)
    assert ("predictions=predictions" in steps[1].python) == ("predictions.npy" in steps[1].command) == is_given
    assert len(steps) == 3 and (scored == "model") == ("fit(model" in steps[0].python)
    for step in steps:
        exec(step.python, names)
    before, after = (
        ew.evaluate(names[name], folder["labels"], mask=folder["test"]) for name in ("probs", "calibrated")
    )
    assert after.nodewise.nll < before.nodewise.nll
    page = Path("after.html").read_text(encoding="utf-8")
    assert "n_bins 10" in page and ("predicted labels were given" in page) == is_given


def test_commands_name_the_files_of_the_user(folder):
    ev = ew.evaluate(folder["probs"], folder["labels"], folder["edges"])
    files = {"probs": None, "logits": "my logits.npy", "labels": "y.csv", "edges": "e.csv", "mask": None}
    calibrate, evaluate, predict = (shlex.split(step.command) for step in next_steps(ev, Inputs(files)))
    assert "my logits.npy" in calibrate and "--probs" not in calibrate and "y.csv" in calibrate
    assert "--mask" not in evaluate and "e.csv" in evaluate and "e.csv" in predict


def test_zero_probabilities_are_reported():
    probs = np.tile([1.0, 0.0], (200, 1))
    step = next_steps(ew.evaluate(probs, np.arange(200) % 2))[0]
    assert "100 nodes" in step.reason and "infinite" in step.reason


def test_nodes_only_are_sent_to_a_node_calibrator_and_to_the_graph(folder):
    steps = next_steps(ew.evaluate(folder["probs"], folder["labels"]))
    assert "TemperatureScaling" in steps[0].python and "pairs" in steps[-1].title
