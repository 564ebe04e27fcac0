"""The command `edgewise calibrate`."""

import os
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import edgewise as ew
from edgewise.calibration import known_calibrators
from edgewise.cli.calibrate import MAX_PRINTED_VALUES
from test_cli import run

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose

MASKS = ("train", "val")


@pytest.fixture
def saved(case: SimpleNamespace, tmp_path: Path) -> dict[str, Path]:
    arrays = {"logits": case.logits, "probs": case.logits.softmax(-1), "features": case.data.x}
    arrays |= {"labels": case.data.y, "edges": case.data.edge_index, "train": case.split.train, "val": case.split.val}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array.numpy())
    np.save(tmp_path / "nobody.npy", np.zeros(60, bool))
    return {name: tmp_path / f"{name}.npy" for name in arrays}


def calibrate(saved: dict[str, Path], kind: str, *options: object):
    named = [word for name in (kind, "labels", "edges", *MASKS) for word in (f"--{name}", saved[name])]
    return run("calibrate", *named, *options)


@pytest.mark.parametrize("name", known_calibrators())
def test_output_equals_library_result(name, case, saved, tmp_path):
    out = tmp_path / "calibrated.safetensors"
    result = calibrate(saved, "logits", "--calibrator", name, "--features", saved["features"], "--out", out)
    assert result.exit_code == 0, result.output
    calibrated = known_calibrators()[name]().fit(case.logits, case.data, case.split)
    posterior, parameters = calibrated.posterior(), calibrated.parameters
    found = ew.Posterior.load(out)
    assert type(found) is type(posterior)
    assert torch.equal(found.node, posterior.node)
    assert torch.equal(found.joint(case.data.edge_index), posterior.joint(case.data.edge_index))
    shown = [key for key, value in parameters.items() if torch.as_tensor(value).numel() <= MAX_PRINTED_VALUES]
    assert result.stdout.startswith(f"{name}: {shown[0]} " if shown else f"Calibrated with {name}.\n")
    assert f"Wrote 60 nodes to {out}." in result.stdout
    if "temperature" in parameters:
        assert f"temperature {parameters['temperature']:.4g}" in result.stdout


def test_training_mask_is_optional(case, saved, tmp_path):
    named = [word for name in ("logits", "labels", "edges", "val") for word in (f"--{name}", saved[name])]
    result = run("calibrate", *named, "--calibrator", "temperature", "--out", tmp_path / "a.npy")
    assert result.exit_code == 0, result.output
    expected = ew.TemperatureScaling().fit(case.logits, case.data, SimpleNamespace(val=case.split.val)).posterior()
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), expected.node.numpy())


def test_edges_are_optional_for_calibrators_of_nodes(saved, tmp_path):
    named = [word for name in ("logits", "labels", "val") for word in (f"--{name}", saved[name])]
    edges, without = tmp_path / "a.npy", tmp_path / "b.npy"
    assert calibrate(saved, "logits", "--calibrator", "temperature", "--out", edges).exit_code == 0
    assert run("calibrate", *named, "--calibrator", "temperature", "--out", without).exit_code == 0
    np.testing.assert_array_equal(np.load(edges), np.load(without))
    result = run("calibrate", *named, "--out", tmp_path / "c.npy")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "Pass --edges." in result.stderr
    assert run("calibrate", *named, "--out", tmp_path / "c.npy", "--edges", saved["edges"]).exit_code == 0


def test_ids_and_class_names_give_the_same_result_as_numbers(case, saved, tmp_path):
    plain, out = tmp_path / "plain.npy", tmp_path / "out.npy"
    assert calibrate(saved, "logits", "--out", plain).exit_code == 0
    ids = np.array([f"n{k:02}" for k in np.random.default_rng(0).permutation(60)])
    lines = {
        "ids": ids,
        "labels": np.array(["red", "green", "blue"])[case.data.y],
        "classes": ["red", "green", "blue"],
        "edges": [",".join(pair) for pair in ids[case.data.edge_index.T]],
        "train": ids[case.split.train],
        "val": ids[case.split.val],
    }
    for name, cells in lines.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(cells))
    named = {name: tmp_path / f"{name}.csv" for name in lines}
    options = ("--ids", named["ids"], "--classes", named["classes"], "--out", out)
    result = calibrate({**saved, **named}, "logits", *options)
    assert result.exit_code == 0, result.stderr
    np.testing.assert_array_equal(np.load(out), np.load(plain))


def test_labels_numbered_from_1_are_refused_with_a_way_out(case, saved, tmp_path):
    options = ("--calibrator", "temperature", "--out", tmp_path / "out.npy")
    np.save(saved["labels"], y := case.data.y.numpy() + 1)
    result = calibrate(saved, "logits", *options)
    assert result.exit_code == 2 and "save np.maximum(np.asarray(y), 0) - 1" in result.stderr
    np.save(saved["labels"], np.maximum(np.asarray(y), 0) - 1)
    assert calibrate(saved, "logits", *options).exit_code == 0


def test_evaluate_accepts_saved_calibrator(case, saved, tmp_path):
    calibrated = ew.TemperatureScaling().fit(case.logits, case.data, case.split)
    calibrated.save(tmp_path / "calibrated.safetensors")
    calibrated.posterior().save(tmp_path / "posterior.safetensors")
    printed = [
        run("evaluate", "--probs", tmp_path / name, "--labels", saved["labels"], "--edges", saved["edges"]).stdout
        for name in ("calibrated.safetensors", "posterior.safetensors")
    ]
    assert "nodewise" in printed[0] and printed[0] == printed[1]


def test_probabilities_give_the_same_result_as_logits(saved, tmp_path):
    first, second = tmp_path / "first.npy", tmp_path / "second.npy"
    for kind, out in (("logits", first), ("probs", second)):
        assert calibrate(saved, kind, "--calibrator", "temperature", "--out", out).exit_code == 0
    np.testing.assert_allclose(np.load(first), np.load(second), atol=1e-6)
    assert np.load(first).shape == (60, 3)


def test_npy_output_reports_lost_joints(saved, tmp_path):
    for name, is_reported in (("structured", True), ("temperature", False)):
        result = calibrate(saved, "logits", "--calibrator", name, "--out", tmp_path / "out.npy")
        assert (result.exit_code, ".safetensors" in result.stdout) == (0, is_reported)


def test_output_to_pipe_equals_file(saved, tmp_path):
    out, pipe = tmp_path / "out.npy", tmp_path / "pipe.npy"
    os.mkfifo(pipe)
    found = []
    reader = Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert calibrate(saved, "logits", "--out", pipe).exit_code == 0
    reader.join(600)
    assert calibrate(saved, "logits", "--out", out).exit_code == 0
    assert found == [out.read_bytes()]


def test_default_is_structured_without_features(case, saved, tmp_path):
    out = tmp_path / "calibrated.safetensors"
    assert calibrate(saved, "logits", "--out", out).exit_code == 0
    data = SimpleNamespace(y=case.data.y, edge_index=case.data.edge_index)
    expected = ew.StructuredCalibrator().fit(case.logits, data, case.split).posterior()
    assert torch.equal(ew.Posterior.load(out).node, expected.node)
    assert torch.equal(ew.Posterior.load(out).joint(case.data.edge_index), expected.joint(case.data.edge_index))


def test_fitted_model_is_calibrated_evaluated_and_predicted(case, saved, tmp_path):
    fitted, out = tmp_path / "gcn.safetensors", tmp_path / "calibrated.safetensors"
    ew.GCN(max_epochs=3).fit(case.data, case.split, seed=0).save(fitted)
    assert calibrate({**saved, "probs": fitted}, "probs", "--out", out).exit_code == 0
    for command in ("evaluate", "predict"):
        labels = ("--labels", saved["labels"]) if command == "evaluate" else ()
        for file in (fitted, out):
            result = run(command, "--probs", file, *labels, "--edges", saved["edges"])
            assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--calibrator", "warmth"], "Expected --calibrator to be one of bayesian, cagcn, ensemble"),
        (["--out", "calibrated.csv"], "Expected --out to end in .safetensors or .npy, but got calibrated.csv."),
        (["--probs", "probs.npy"], "Expected --probs or --logits, but got both."),
        (["--features", "labels.npy"], "but got shape (60,)."),
        (["--val", "train.npy"], "node 0 is in both"),
        (["--val", "features.npy"], "but got shape (60, 5)."),
        (["--logits", "probs.npy"], "--probs"),
        (["--normalize"], "Omit --normalize"),
        (["--val", "nobody.npy"], "add some to --val"),
        (["--logits", "labels.npy"], "but got shape (60,)."),
        (["--out", "labels.npy"], "Expected --out to be a file of its own, but labels.npy is named twice."),
    ],
)
def test_invalid_arguments_exit_with_message(options, message, saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    here = {name: Path(file.name) for name, file in saved.items()}
    result = calibrate(here, "logits", "--out", "out.npy", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_labels_of_other_nodes_are_not_used(case, saved, tmp_path):
    joints = []
    for labels in (case.data.y, torch.where(case.split.train | case.split.val, case.data.y, -1)):
        np.save(saved["labels"], labels.numpy())
        assert calibrate(saved, "logits", "--out", tmp_path / "out.safetensors").exit_code == 0
        joints.append(ew.Posterior.load(tmp_path / "out.safetensors").joint(case.data.edge_index))
    assert torch.equal(*joints)


def test_few_labels_are_stated_on_stderr(saved, tmp_path):
    """The graph has 15 validation nodes."""
    result = calibrate(saved, "logits", "--calibrator", "local", "--out", tmp_path / "out.npy")
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("edgewise: Warning: LocalScaling was fitted to only 15 validation nodes")
    assert "Warning" not in result.stdout
