"""The commands evaluate and datasets, help, errors, progress bars and completion."""

import errno
import io
import json
import math
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numba
import numpy as np
import pyarrow as pa
import pytest
import scipy
import torch
import torch_geometric
from matplotlib.figure import Figure
from pyarrow import parquet
from torch_geometric.data import Data
from typer.testing import CliRunner, Result

import edgewise as ew
from edgewise.calibration import known_calibrators
from edgewise.cli import app
from edgewise.cli import options as cli_options
from edgewise.cli.app import ADVICE, COMMANDS
from edgewise.cli.options import names_in
from edgewise.data.edges import EdgeChoice
from edgewise.metrics.scores import Norm
from edgewise.metrics.scoring_input import Closed, Kind
from edgewise.models import known_models
from edgewise.paper.published import PUBLISHED_DATASETS
from helpers import forked_commands
from helpers.command_inputs import calibrate_args, evaluate_args, predict_args
from helpers.processes import wait_until

PROBS = np.array([[0.9, 0.1], [0.75, 0.25], [0.25, 0.75], [0.5, 0.5], [0.0, 1.0]])
LABELS = np.array([0, 0, 1, 1, 0])
EDGES = np.array([[0, 1, 1, 2, 3, 4], [1, 0, 2, 3, 4, 0]])
MASK = np.array([True, True, True, True, False])
PREDICTIONS = np.array([0, 1, 1, 0, 0])
JOINTS = np.einsum("ei,ej->eij", PROBS[EDGES[0]], PROBS[EDGES[1]])[:, ::-1]
ARRAYS = {"probs": PROBS, "labels": LABELS, "edges": EDGES, "mask": MASK, "edge-probs": JOINTS}


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="edgewise")


def command(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgewise", *map(str, args)], capture_output=True, text=True, check=False, timeout=600
    )


def options(files: dict[str, Path]) -> list[str]:
    return [part for name, file in files.items() for part in (f"--{name}", str(file))]


def table(array: np.ndarray) -> np.ndarray:
    """Return edges and joint distributions in the shape that they have in a table."""
    return array.T if array is EDGES else array.reshape(len(array), -1)


def save_npy(path: Path, array: np.ndarray) -> Path:
    np.save(path.with_suffix(".npy"), array)
    return path.with_suffix(".npy")


def save_npz(path: Path, array: np.ndarray) -> Path:
    np.savez(path.with_suffix(".npz"), selected=array, other=array)
    return path.with_suffix(".npz:selected")


def save_csv(path: Path, array: np.ndarray) -> Path:
    rows = [",".join(map(str, row)) for row in table(array).tolist()]
    path.with_suffix(".csv").write_text("\n".join(rows))
    return path.with_suffix(".csv")


def save_parquet(path: Path, array: np.ndarray) -> Path:
    columns = {f"c{k}": column for k, column in enumerate(table(array).T)}
    parquet.write_table(pa.table(columns), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, Path]:
    return {name: save_npy(tmp_path / name, array) for name, array in ARRAYS.items() if name != "edge-probs"}


def assert_refused(result: Result | subprocess.CompletedProcess[str], message: str) -> None:
    code = result.exit_code if isinstance(result, Result) else result.returncode
    assert (code, result.stdout) == (2, ""), result.stderr
    assert result.stderr.startswith("edgewise: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert message in result.stderr


# --- evaluate: same numbers as in Python ---


def save_tsv(path: Path, array: np.ndarray) -> Path:
    path.with_suffix(".tsv").write_text(save_csv(path, array).read_text().replace(",", "\t"))
    return path.with_suffix(".tsv")


def save_pt(path: Path, array: np.ndarray) -> Path:
    torch.save({"selected": torch.from_numpy(array.copy()), "other": torch.zeros(2)}, path.with_suffix(".pt"))
    return path.with_suffix(".pt:selected")


@pytest.mark.parametrize("save", [save_npy, save_npz, save_pt, save_csv, save_tsv, save_parquet])
def test_evaluate_gives_the_same_numbers_for_every_file_format(
    save: Callable[[Path, np.ndarray], Path], tmp_path: Path
) -> None:
    files = {name: save(tmp_path / name, array) for name, array in ARRAYS.items()}
    result = run("evaluate", *options(files))
    expected = ew.evaluate(PROBS, LABELS, EDGES, mask=MASK, edge_probs=JOINTS)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{expected}\n"


def test_evaluate_scores_groups_by_traits_and_files(saved: dict[str, Path], tmp_path: Path) -> None:
    train = save_npy(tmp_path / "train", np.arange(len(LABELS)) == 0)
    place = tmp_path / "place.csv"
    place.write_text("place\n" + "".join("north\n" if k % 2 else "\n" for k in range(len(LABELS))))
    args = ["--by", "degree", "train_distance", "--by=true_class", "--train", train, "--groups", place]
    result = run("evaluate", *options(saved), *args, "--json", tmp_path / "out.json", "--html", tmp_path / "out.html")
    expected = ew.evaluate(
        PROBS,
        LABELS,
        EDGES,
        mask=MASK,
        by=("degree", "train_distance", "true_class"),
        train=np.arange(len(LABELS)) == 0,
        groups={"place": ["north" if k % 2 else None for k in range(len(LABELS))]},
    )
    assert (result.exit_code, result.stdout) == (0, f"{expected}\n"), result.stderr
    found = json.loads((tmp_path / "out.json").read_text())["groups"]
    assert list(found) == ["place", "degree", "train_distance", "true_class"]
    assert found["true_class"]["conditions_on_outcome"]
    assert [row["group"] for row in found["degree"]["edgewise"]] == list(expected.groups["degree"].edgewise)
    assert "Where is it wrong?" in (tmp_path / "out.html").read_text()
    assert_refused(run("evaluate", *options(saved), "--by", "train_distance"), "--train FILE")
    assert_refused(run("evaluate", *options(saved), "--groups", place, place), "different names")


def test_posterior_is_scored_with_its_joint_distributions(saved: dict[str, Path], tmp_path: Path) -> None:
    belief = ew.MixturePosterior(np.stack([PROBS, PROBS[:, ::-1]]))
    saved["probs"] = tmp_path / "belief.safetensors"
    belief.save(saved["probs"])
    result = run("evaluate", *options(saved))
    assert result.stdout == f"{ew.evaluate(belief, LABELS, EDGES, mask=MASK)}\n", result.stderr
    saved["probs"].write_bytes(b"not a safetensors file")
    assert_refused(run("evaluate", *options(saved)), "to be a safetensors file")
    saved["probs"].unlink()
    assert_refused(run("evaluate", *options(saved)), "no such file")


@pytest.mark.parametrize("save", [save_npy, save_npz, save_pt, save_csv, save_tsv, save_parquet])
def test_given_predictions_are_scored(save: Callable[[Path, np.ndarray], Path], tmp_path: Path) -> None:
    files = {name: save(tmp_path / name, array) for name, array in ARRAYS.items()}
    files["predictions"] = save(tmp_path / "predictions", PREDICTIONS)
    result = run("evaluate", *options(files), "--json", tmp_path / "scores.json")
    expected = ew.evaluate(PROBS, LABELS, EDGES, mask=MASK, edge_probs=JOINTS, predictions=PREDICTIONS)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (
        result.stdout == f"{expected}\n" != run("evaluate", *options(files | {"predictions": files["labels"]})).stdout
    )
    document = json.loads((tmp_path / "scores.json").read_text())
    assert document["files"]["predictions"] == str(files["predictions"])


def test_given_predictions_may_be_class_names(saved: dict[str, Path], tmp_path: Path) -> None:
    plain = run("evaluate", *options(saved), "--predictions", save_npy(tmp_path / "given", PREDICTIONS)).stdout
    named = {"probs": saved["probs"], **write_named_files(tmp_path), "predictions": tmp_path / "predictions.txt"}
    words = [*np.array(CLASS_NAMES)[PREDICTIONS[:4]], "-1"]  # the last node is outside the mask
    named["predictions"].write_text("\n".join(words) + "\n")
    result = run("evaluate", *options(named))
    assert (result.stdout, result.stderr) == (plain, "")
    assert_refused(run("evaluate", *options(named), "--edge-choice", "any"), "or use --edge-choice both")
    named["predictions"].write_text("\n".join(["Spma", *words[1:]]) + "\n")
    assert_refused(run("evaluate", *options(named)), "predictions.txt out of Ham, Spam")


def test_given_predictions_are_checked(saved: dict[str, Path], tmp_path: Path) -> None:
    file = save_npy(tmp_path / "predictions", PREDICTIONS[:3])
    assert_refused(run("evaluate", *options(saved), "--predictions", file), f"predictions is {file}")
    assert_refused(run("evaluate", *options(saved), "--predictions", tmp_path / "none.npy"), "none.npy does not exist")
    np.save(file, PREDICTIONS)
    assert_refused(run("evaluate", *options(saved), "--predictions", file, "--selective"), "without --predictions")
    assert_refused(run("evaluate", *options(saved), "--predictions", file, "--json", file), "predictions.npy")


def test_logits_are_scored_by_their_softmax(saved: dict[str, Path], tmp_path: Path) -> None:
    logits = np.array([[2.0, -1.0], [0.5, 0.25], [-3.0, 1.0], [0.0, 0.5], [4.0, 4.0]], np.float32)
    saved["logits"] = save_npy(tmp_path / "logits", logits)
    del saved["probs"]
    probs = torch.from_numpy(logits).double().softmax(-1)
    expected = ew.evaluate(probs, LABELS, EDGES, mask=MASK)
    assert run("evaluate", *options(saved)).stdout == f"{expected}\n"


def test_nodes_are_scored_without_edges(saved: dict[str, Path], tmp_path: Path) -> None:
    del saved["edges"]
    result = run("evaluate", *options(saved), "--json", tmp_path / "scores.json")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads((tmp_path / "scores.json").read_text())
    expected = ew.evaluate(PROBS, LABELS, EDGES, mask=MASK).nodewise
    assert document["nodewise"]["ece"] == expected.ece
    assert document["files"]["edges"] is None
    assert_refused(
        run("evaluate", *options(saved), "--edge-probs", save_npy(tmp_path / "q", JOINTS)),
        "Expected --edges with --edge-probs",
    )


NODE_IDS, CLASS_NAMES = ["x17", "x20", "y3", "y41", "z05"], ["Ham", "Spam"]


def write_named_files(folder: Path) -> dict[str, Path]:
    """Write the same inputs with ids in place of node numbers, and class names in place of labels."""
    ids = np.array(NODE_IDS)
    lines = {
        "ids.txt": NODE_IDS,
        "classes.txt": CLASS_NAMES,
        "labels.csv": ["class", *np.array(CLASS_NAMES)[LABELS]],
        "edges.tsv": ["from\tto", *("\t".join(pair) for pair in ids[EDGES.T])],
        "mask.txt": ids[MASK],
    }
    for name, cells in lines.items():
        (folder / name).write_text("\n".join(cells) + "\n")
    return {Path(name).stem: folder / name for name in lines}


def test_evaluate_decomposes_and_computes_errors_on_request(saved: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    result = run("evaluate", *options(saved), "--decompose", "--smooth", "--classwise", "--json", file)
    assert result.exit_code == 0, result.output
    written = json.loads(file.read_text())
    ev = ew.evaluate(PROBS, LABELS, EDGES, mask=MASK, decompose=True, smooth=True, classwise=True)
    assert ev.edgewise.decomposition is not None
    assert written["edgewise"]["decomposition"] == pytest.approx(ev.edgewise.decomposition.to_dict())
    assert written["same_label"]["smooth_ece"] == pytest.approx(ev.same_label and ev.same_label.smooth_ece)
    assert written["nodewise"]["classwise_ece"] == pytest.approx(ev.nodewise.classwise_ece)
    assert "miscalibration" in result.output and "smooth ece" in result.output


def test_evaluate_accepts_ids_and_class_names(saved: dict[str, Path], tmp_path: Path) -> None:
    plain = run("evaluate", *options(saved)).stdout
    named = {"probs": saved["probs"], **write_named_files(tmp_path)}
    result = run("evaluate", *options(named), "--json", tmp_path / "scores.json")
    assert (result.stdout, result.stderr) == (plain, "")
    assert json.loads((tmp_path / "scores.json").read_text())["files"]["ids"] == str(named["ids"])


def test_header_of_probabilities_names_the_classes_of_text_labels(saved: dict[str, Path], tmp_path: Path) -> None:
    plain = run("evaluate", *options(saved)).stdout
    named = write_named_files(tmp_path)
    header = tmp_path / "probs.csv"
    rows = [",".join(map(str, row)) for row in PROBS]
    header.write_text("\n".join(["Ham,Spam", *rows]))
    result = run("evaluate", *options({**saved, "probs": header, "labels": named["labels"]}))
    assert (result.stdout, result.stderr) == (plain, "")
    assert run("evaluate", *options({**saved, "probs": header})).stdout == plain  # labels that are numbers
    header.write_text("\n".join(["Spam,Ham", *rows]))
    result = run("evaluate", *options({**saved, "probs": header, "labels": named["labels"]}))
    assert result.stdout == f"{ew.evaluate(PROBS, 1 - LABELS, EDGES, mask=MASK)}\n"
    header.write_text("\n".join(["p0,p1", *rows]))
    args = options({**saved, "probs": header, "labels": named["labels"]})
    assert_refused(run("evaluate", *args), "pass --classes FILE")
    assert run("evaluate", *args, "--classes", named["classes"]).stdout == plain


def unconverged_posterior() -> ew.Posterior:
    mrf = ew.PairwiseMRF(
        torch.tensor(PROBS), torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]), 3 * torch.eye(2).double()
    )
    posterior, convergence = ew.sum_product(mrf, max_sweeps=1, tolerance=0.0)
    assert not convergence and "Did not converge in 1 sweep" in convergence.advice
    return posterior


def test_every_command_warns_if_inference_did_not_converge(saved: dict[str, Path], tmp_path: Path) -> None:
    posterior = unconverged_posterior()
    saved["probs"] = tmp_path / "belief.safetensors"
    posterior.save(saved["probs"])
    warning = f"convergence: {posterior.convergence.advice}"
    result = run("evaluate", *options(saved), "--json", tmp_path / "a.json")
    assert result.stdout == f"{ew.evaluate(posterior, LABELS, EDGES, mask=MASK)}\n\n{warning}\n"
    assert json.loads((tmp_path / "a.json").read_text())["convergence"]["converged"] is False
    masks = {"train": save_npy(tmp_path / "train", ~MASK), "val": saved.pop("mask")}
    result = run("calibrate", *options({**saved, **masks}), "--calibrator", "temperature", "--out", tmp_path / "a.npy")
    assert (result.exit_code, warning in result.stdout.splitlines()) == (0, True), result.stderr
    result = run("predict", "--probs", saved["probs"], "--edges", saved["edges"])
    assert warning in result.stdout.splitlines(), result.stderr


def strict(value: Any) -> Any:
    """Replace NaN and infinity by None, as JSON should have them."""
    if isinstance(value, dict):
        return {key: strict(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [strict(inner) for inner in value]
    return None if value in (math.inf, -math.inf) or value != value else value


def test_json_has_the_whole_evaluation(saved: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "scores.json"
    settings = "--bins 5 --binning mass --closed left --norm max --edge-choice any --resamples 40 --seed 7"
    result = run(
        "evaluate", *options(saved), *settings.split(), "--confidence-level", 0.5, "--no-same-label", "--json", out
    )
    assert (result.exit_code, result.stderr) == (0, "")
    evaluation = ew.evaluate(
        PROBS,
        LABELS,
        EDGES,
        mask=MASK,
        n_bins=5,
        binning="mass",
        closed="left",
        norm="max",
        edge_choice="any",
        n_resamples=40,
        confidence_level=0.5,
        seed=7,
        same_label=False,
    )
    document = json.loads(out.read_text(), parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    assert document.pop("version") == ew.__version__
    assert document.pop("files") == {**{name: str(file) for name, file in saved.items()}, "edge_probs": None}
    settings = {"edge_choice": "any", "n_resamples": 40, "chance": 0, "confidence_level": 0.5, "seed": 7}
    assert document.pop("settings") == settings
    assert document == strict(evaluation.to_dict())
    assert result.stdout == f"{evaluation}\n"


def test_infinite_and_undefined_scores_are_null_in_json(saved: dict[str, Path], tmp_path: Path) -> None:
    del saved["mask"]  # the last node has probability 0 for its label
    np.save(saved["edges"], EDGES[:, :1])
    assert run("evaluate", *options(saved), "--json", tmp_path / "out").exit_code == 0
    document = json.loads((tmp_path / "out").read_text())
    assert (document["nodewise"]["nll"], document["nodewise"]["zero_probability"]) == (None, 1)
    assert (document["disagree"]["accuracy"], document["disagree"]["count"]) == (None, 0)


SIGNATURES = {".PNG": b"\x89PNG\r\n\x1a\n", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.mark.parametrize("ending", SIGNATURES)
def test_plot_is_drawn_without_a_display(
    ending: str, saved: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    result = run("evaluate", *options(saved), "--plot", tmp_path / f"plot{ending}")
    assert (result.exit_code, result.stderr) == (0, "")
    content = (tmp_path / f"plot{ending}").read_bytes()
    assert content.startswith(SIGNATURES[ending])
    assert len(content) > 5000


@pytest.mark.parametrize("is_scored", [True, False])
def test_same_label_is_plotted_if_it_is_scored(
    is_scored: bool, saved: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plotted = []
    monkeypatch.setattr(ew, "plot_reliability", lambda ev, views: (plotted.append(views) or Figure(), None))
    more = [] if is_scored else ["--no-same-label"]
    assert run("evaluate", *options(saved), "--plot", tmp_path / "plot.png", *more).exit_code == 0
    assert (tmp_path / "plot.png").read_bytes().startswith(SIGNATURES[".PNG"])
    assert plotted == [("nodewise", "edgewise", "agree", "disagree", *(["same_label"] if is_scored else []))]


def test_help_lists_the_choices_of_the_library() -> None:
    help_text = run("evaluate", "--help").stdout
    for option, choices in {"binning": Kind, "closed": Closed, "norm": Norm, "edge-choice": EdgeChoice}.items():
        line = next(line for line in help_text.splitlines() if f"--{option} " in line)
        assert "|".join(get_args(choices)) in line


# --- evaluate: errors ---


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["evaluate"], "Missing option '--labels'. See 'edgewise evaluate --help'."),
        (["evaluate", "--probs"], "Option '--probs' requires an argument."),
        (["evaluate", "--probes", "x"], "No such option"),
        (["evaluat"], "No such command 'evaluat'."),
        (["--nonsense"], ". See 'edgewise --help'."),
    ],
)
def test_wrong_usage_exits_with_one_line(args: list[str], message: str) -> None:
    assert_refused(run(*args), message)


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        ("evalute", "evaluate"),
        ("--vresion", "--version"),
        ("evaluate --lables y.npy", "--labels"),
        ("evaluate --no-same-labels", "--no-same-label"),
        ("calibrate --method temperature", "--calibrator"),
        ("evaluate --binning widht", "width"),
        ("reproduce --dataset cora", "--datasets"),
        ("reproduce --out out --datasets cora coro", "cora"),
        ("reproduce --out out --datasets Roman_Emprie", "roman-empire"),
        ("reproduce --out out --models gat,gnc", "gcn"),
        ("reproduce --out out --calibrators temprature", "temperature"),
        ("calibrate --probs p --labels y --edges e --val v --out o.npy --calibrator vectro", "vector"),
    ],
)
def test_misspelled_command_option_or_value_gets_a_suggestion(words: str, suggestion: str) -> None:
    assert_refused(run(*words.split()), f"Did you mean '{suggestion}'?")


def test_option_with_one_hyphen_is_told_to_use_two() -> None:
    assert_refused(run("evaluate", "-probs", "x"), "two hyphens")


def test_value_that_resembles_no_choice_gets_no_suggestion() -> None:
    result = run("evaluate", "--norm", "median")
    assert_refused(result, "is not one of 'l1', 'l2', 'max'")
    assert "Did you mean" not in result.stderr


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("bins", "many", "Invalid value for '--bins'"),
        ("bins", 0, "Invalid value for '--bins'"),
        ("resamples", -1, "Invalid value for '--resamples'"),
        ("seed", -1, "Invalid value for '--seed'"),
        ("confidence-level", 1, "Expected confidence_level to be a number above 0 and below 1, but got 1.0."),
        ("norm", "l3", "Invalid value for '--norm': 'l3' is not one of 'l1', 'l2', 'max'"),
        ("plot", "plot.jpg", "Expected --plot to end in .png, .pdf, .svg, but got plot.jpg."),
        ("plot", "nowhere/plot.png", "but there is no "),
        ("json", "nowhere/out.json", "Create it first."),
        ("json", ".", "Expected --json to be a file, but . is a folder."),
        ("probs", "no.npy", "Expected a file, but no.npy does not exist. Check the path."),
        (
            "probs",
            "probs.txt",
            "Expected a file that ends in .npy, .npz, .pt, .csv, .tsv, .parquet, but got probs.txt.",
        ),
        ("edge-probs", "no.npy", "Expected a file, but no.npy does not exist."),
    ],
)
def test_invalid_option_exits_with_one_line(option: str, value: object, message: str, saved: dict[str, Path]) -> None:
    assert_refused(run("evaluate", *options(saved), f"--{option}", value), message)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("probs", 2 * PROBS, "Expected probabilities that sum to 1 in each row, but row 0 of probs sums to 2."),
        ("probs", PROBS[:3], "Expected mask of shape (3,)"),
        (
            "labels",
            LABELS[:3],
            "Expected y to hold one label for each of the 5 rows of probs, but got shape (3,).",
        ),
        ("labels", LABELS + 5, "but node 0 has label 5."),
        ("edges", EDGES + 1, "Expected edge_index to hold nodes from 0 to 4, but edge 4 is [4, 5]."),
        ("mask", MASK[:3], "Expected mask of shape (5,)"),
    ],
)
def test_error_about_contents_names_the_file(
    name: str, array: np.ndarray, message: str, saved: dict[str, Path]
) -> None:
    np.save(saved[name], array)
    result = run("evaluate", *options(saved))
    assert_refused(result, message)
    parameters = dict(zip(saved, ("probs", "y", "edge_index", "mask"), strict=True))
    assert f"{parameters[name]} is {saved[name]}" in result.stderr


LOGITS = np.log(PROBS[:4] * 3)
SCORED = {"probs": PROBS[:4], "labels": LABELS[:4], "edges": EDGES[:, :4]}  # no probability is 0
WAYS_OUT: list[tuple[dict[str, np.ndarray], str, Callable[[dict[str, np.ndarray]], dict[str, np.ndarray | bool]]]] = [
    ({"probs": LOGITS}, "pass --logits instead of --probs", lambda new: {"logits": new.pop("probs"), **new}),
    ({"logits": PROBS[:4]}, "Pass --probs instead of --logits", lambda new: {"probs": new.pop("logits"), **new}),
    ({"probs": 1.01 * PROBS[:4]}, "add --normalize", lambda new: {**new, "normalize": True}),
    ({"probs": 100 * PROBS[:4]}, "For percentages save", lambda new: {**new, "probs": new["probs"] / 100}),
    (
        {"probs": PROBS[:4, 1:]},
        "save both columns: np.column_stack([1 - p, p])",
        lambda new: {**new, "probs": np.column_stack([1 - new["probs"], new["probs"]])},
    ),
    (
        {"probs": PROBS[:4, 1]},
        "np.column_stack([1 - p, p])",
        lambda new: {**new, "probs": np.column_stack([1 - new["probs"], new["probs"]])},
    ),
    (
        {"labels": np.array([0, -1, 1, 1])},
        "--mask: np.save('FILE.npy', ",
        lambda new: {**new, "mask": new["labels"] >= 0},
    ),
    (
        {"labels": np.array([0, -1, 1, 1]), "mask": np.array([0, 1, 1, 1])},
        "--mask: np.save('FILE.npy', np.asarray(mask, bool) & np.isin(y, range(2)))",
        lambda new: {**new, "mask": np.asarray(new["mask"], bool) & np.isin(new["labels"], range(2))},
    ),
    (
        {"labels": np.array([-1, -1, 1, 1])},
        "pass --classes FILE, with the lines -1 and 1",
        lambda new: {**new, "classes": np.array([-1, 1])},
    ),
    (
        {"labels": np.array([0, 0, 1, -99]), "mask": np.array([1, 1, 1, 0])},
        "save np.maximum(y, -1)",
        lambda new: {**new, "labels": np.maximum(new["labels"], -1)},
    ),
    (
        {"predictions": np.array([0, 0, 1, -99]), "mask": np.array([1, 1, 1, 0])},
        "save np.maximum(predictions, -1)",
        lambda new: {**new, "predictions": np.maximum(new["predictions"], -1)},
    ),
    (
        {"predictions": np.array([0, -1, 1, 1])},
        "--mask: np.save('FILE.npy', np.isin(predictions, range(2)))",
        lambda new: {**new, "mask": np.isin(new["predictions"], range(2))},
    ),
    ({"labels": np.eye(2)[LABELS[:4]]}, "save y.argmax(1)", lambda new: {**new, "labels": new["labels"].argmax(1)}),
    (
        {"labels": LABELS[:4].astype(float)},
        "save them with .astype(int)",
        lambda new: {**new, "labels": new["labels"].astype(int)},
    ),
    (
        {"edges": EDGES[:, :4].astype(float)},
        "save them with .astype(int)",
        lambda new: {**new, "edges": new["edges"].astype(int)},
    ),
    ({"edges": EDGES[:, :4] + 1}, "save edge_index - 1", lambda new: {**new, "edges": new["edges"] - 1}),
    (
        {"edges": np.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])},
        "save np.argwhere(adjacency).T",
        lambda new: {**new, "edges": np.argwhere(new["edges"]).T},
    ),
    (
        {"mask": np.array([1, 2])},
        "mask = np.zeros(num_nodes, bool); mask[nodes] = True",
        lambda new: {**new, "mask": np.isin(np.arange(4), new["mask"])},
    ),
    (
        {"mask": np.array(["test", "train", "test", "test"])},
        "np.asarray(column) == 'test'",
        lambda new: {**new, "mask": new["mask"] == "test"},
    ),
]


@pytest.mark.parametrize(("mistake", "advice", "follow"), WAYS_OUT, ids=[advice for _, advice, _ in WAYS_OUT])
def test_advice_works_when_it_is_followed(
    mistake: dict[str, np.ndarray], advice: str, follow: Callable[..., Any], tmp_path: Path
) -> None:
    def evaluate(given: dict[str, Any]) -> Result:
        words: list[str] = []
        for name, value in given.items():
            words += [f"--{name}"] if value is True else [f"--{name}", str(save_npy(tmp_path / name, value))]
        return run("evaluate", *words)

    wrong = {**SCORED, **mistake}
    if "logits" in mistake:
        del wrong["probs"]
    assert_refused(evaluate(wrong), advice)
    result = evaluate(follow(dict(wrong)))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "nodewise" in result.stdout


def fit(calibrator: Any, count: int = 4, **data: Any) -> None:
    """Fit a calibrator to ``count`` nodes without features."""
    logits = torch.tensor([[2.0, 0.0]]).repeat(count, 1)
    nodes = SimpleNamespace(**{"y": torch.arange(count) % 2, **data})
    calibrator.fit(logits, nodes, SimpleNamespace(val=torch.ones(count, dtype=torch.bool)))


# A call of the library whose message each pattern of ADVICE matches, in the order of ADVICE.
PAIR, TRIPLE = torch.tensor([[0], [1]]), [[0.5, 0.5]] * 3
MESSAGES: list[Callable[[], object]] = [
    lambda: ew.evaluate([[2.0, -1.0]], [0]),
    lambda: ew.TemperatureScaling().fit(torch.tensor([[0.5, 0.5]]), Data(y=torch.tensor([0])), None),
    lambda: ew.TemperatureScaling().fit(torch.tensor([[-torch.inf, 0.0]]), Data(y=torch.tensor([0])), None),
    lambda: ew.evaluate([[0.33, 0.66]], [0]),
    lambda: ew.evaluate([[0.5, 0.5]], [-99]),
    lambda: ew.evaluate([[50.0, 50.0]], [0]),
    lambda: ew.evaluate([[[0.5, 0.5]]], [0]),
    lambda: ew.evaluate(TRIPLE, [0, 1, 1], np.zeros((3, 2), int)),
    lambda: ew.evaluate(TRIPLE, [0, 1, -1]),
    lambda: ew.evaluate(TRIPLE, [-1, 1, 1]),
    lambda: ew.evaluate(TRIPLE, [0, 1, 1], [(0, 9)]),
    lambda: fit(ew.LocalScaling()),
    lambda: ew.evaluate(TRIPLE, [0, 1, 1], n_resamples=2),
    lambda: ew.evaluate(TRIPLE, [0, 1, 1], mask=[1, 1, 0], predictions=[0, 1, -1], edge_choice="any"),
    lambda: ew.TemperatureScaling().fit(torch.tensor([[2.0, 1.0]]), Data(y=torch.tensor([0])), None),
    lambda: ew.predict_edges(TRIPLE, [(0, 1)], ["sam"]),
    lambda: fit(ew.LocalScaling(), 60, edge_index=PAIR),
    lambda: fit(ew.StructuredCalibrator(ew.TemperatureScaling()), 60, edge_index=PAIR, x=torch.ones(60, 1)),
    lambda: ew.threshold_for_precision([0.9], [True], 0.5),
    lambda: fit(ew.StructuredCalibrator(ew.TemperatureScaling()), 60, edge_index=PAIR),
    lambda: ew.predict_edges(TRIPLE, [(0, 1)], ["any=Spam"]),
]


@pytest.mark.parametrize(("pattern", "call"), [*zip(ADVICE, MESSAGES, strict=True)], ids=range(len(ADVICE)))
def test_the_library_still_gives_the_advice_that_commands_replace(pattern: str, call: Callable[[], object]) -> None:
    with pytest.raises((ValueError, ew.SmallSampleWarning)) as error:  # warnings are errors
        call()
    assert re.search(pattern, str(error.value))
    assert re.sub(pattern, ADVICE[pattern], str(error.value)) != str(error.value)


def test_warnings_of_the_library_are_one_line(saved: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def warn_and_score(*args: object, **settings: object) -> str:
        warnings.warn("Only 3 pairs.\nUse more.", stacklevel=1)
        return "scores"

    monkeypatch.setattr("edgewise.metrics.evaluate", warn_and_score)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = run("evaluate", *options(saved))
    assert (result.exit_code, result.stdout) == (0, "scores\n")
    assert result.stderr == "edgewise: Warning: Only 3 pairs. Use more.\n"


def test_samples_are_told_to_be_saved_as_a_mixture(saved: dict[str, Path], tmp_path: Path) -> None:
    samples = np.stack([PROBS, PROBS[:, ::-1]])
    np.save(saved["probs"], samples)
    assert_refused(run("evaluate", *options(saved)), "ew.MixturePosterior(samples).save('FILE.safetensors')")
    ew.MixturePosterior(samples).save(tmp_path / "mixture.safetensors")
    assert run("evaluate", *options({**saved, "probs": tmp_path / "mixture.safetensors"})).exit_code == 0


def test_normalize_divides_rows_by_their_sums(saved: dict[str, Path], tmp_path: Path) -> None:
    rounded = np.array([[0.901, 0.1], [0.75, 0.26], [0.24, 0.75], [0.5, 0.5], [0.0, 1.0]])
    np.save(saved["probs"], rounded)
    result = run("evaluate", *options(saved), "--normalize", "--json", tmp_path / "scores.json")
    exact = rounded / rounded.sum(1, keepdims=True)
    assert result.stdout == f"{ew.evaluate(exact, LABELS, EDGES, mask=MASK)}\n"
    assert json.loads((tmp_path / "scores.json").read_text())["settings"]["normalize"] is True
    masks = options({"val": saved.pop("mask")})
    for command, more in (("calibrate", [*masks, "--out", tmp_path / "out.npy"]), ("predict", [])):
        args = options({name: saved[name] for name in ("probs", "edges")})
        args += options({"labels": saved["labels"]}) if command == "calibrate" else []
        assert_refused(run(command, *args, *more), "add --normalize")
        assert run(command, *args, *more, "--normalize").exit_code == 0
    np.save(saved["probs"], 1.03 * PROBS)
    assert_refused(run("evaluate", *options(saved), "--normalize"), "row 0 of probs sums to 1.03")


def test_output_must_not_be_an_input(saved: dict[str, Path], tmp_path: Path) -> None:
    before = saved["probs"].read_bytes()
    assert_refused(run("evaluate", *options(saved), "--json", saved["probs"]), "is named twice")
    plot = tmp_path / "a.png"
    assert_refused(run("evaluate", *options(saved), "--json", plot, "--plot", plot), "is named twice")
    assert saved["probs"].read_bytes() == before


def test_read_only_folder_is_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    if os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("root may write everywhere")
    assert_refused(run("evaluate", *options(saved), "--json", tmp_path / "locked" / "a"), "is read-only")


# --- outputs are complete or missing ---


def test_failed_evaluation_does_not_change_old_outputs(saved: dict[str, Path], tmp_path: Path) -> None:
    outputs = {"json": tmp_path / "out.json", "plot": tmp_path / "out.png"}
    for file in outputs.values():
        file.write_text("old")
    np.save(saved["probs"], 2 * PROBS)
    assert_refused(run("evaluate", *options(saved), *options(outputs)), "sum to 1")
    assert [file.read_text() for file in outputs.values()] == ["old", "old"]


def test_failed_write_keeps_the_old_file_and_prints_the_result(
    saved: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_half(file: Path, text: str, encoding: str) -> None:
        file.write_bytes(text.encode()[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "out.json"
    out.write_text("old")
    before = set(tmp_path.iterdir())
    monkeypatch.setattr(Path, "write_text", write_half)
    result = run("evaluate", *options(saved), "--json", out)
    assert result.exit_code == 2
    assert result.stderr == f"edgewise: Expected to write {out}, but got: No space left on device.\n"
    assert "nodewise" in result.stdout
    assert out.read_bytes() == b"old"
    assert set(tmp_path.iterdir()) == before


def test_output_may_be_a_link_or_a_device(saved: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert run("evaluate", *options(saved), "--json", tmp_path / "link").exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert "version" in json.loads((tmp_path / "target").read_text())
    assert run("evaluate", *options(saved), "--json", "/dev/null").exit_code == 0
    assert Path("/dev/null").is_char_device()


# --- datasets ---


def test_datasets_prints_computed_and_published_statistics(tmp_path: Path) -> None:
    result = run("datasets", "--json", tmp_path / "out.json", "--seed", 1)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    header, published = " ".join(lines[0].split()), " ".join(lines[3].split())
    assert header == "nodes edges features classes homophily K edgewise K agree K disagree"
    assert published == "published 2708 10556 1433 7 80.63 ± 0.81 92.42 ± 0.37 84.96 ± 0.67 28.77 ± 0.99"
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["settings"] == {"seed": 1, "data_root": None, "splits_dir": None}
    for place, name in enumerate(PUBLISHED_DATASETS):
        data = ew.load_dataset(name)
        computed = ew.data.dataset_statistics(data, ew.make_splits(data.y, seed=1))
        cells = lines[2 + 3 * place].split()
        assert cells[:5] == [name, *map(str, (data.num_nodes, data.num_edges, data.num_features, computed.classes))]
        assert cells[5:8] == [f"{100 * computed.homophily.mean:.2f}", "±", f"{100 * computed.homophily.std:.2f}"]
        of_json = document["datasets"][name]
        assert of_json["computed"]["k_agree"]["mean"] == computed.k_agree.mean
        assert of_json["published"]["k_agree"]["mean"] == PUBLISHED_DATASETS[name].k_agree.mean


def test_splits_dir_requires_data_root(tmp_path: Path) -> None:
    assert_refused(run("datasets", "--splits-dir", tmp_path), "Expected --data-root with --splits-dir")


def test_published_splits_are_read_from_one_folder_per_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyG uses torch.jit.script when it is imported
        from torch_geometric.data import Data
    data = Data(x=torch.zeros(5, 2), y=torch.from_numpy(LABELS), edge_index=torch.from_numpy(EDGES))
    monkeypatch.setattr("edgewise.data.load_dataset", lambda name, root: data)
    args = ("datasets", "--data-root", tmp_path, "--splits-dir", tmp_path)
    assert_refused(run(*args), f"folder cora in --splits-dir, but {tmp_path} has no folders")
    for name in ("Cora", "CiteSeer", "pubmed"):
        folder = tmp_path / name / "5_3f_85"
        folder.mkdir(parents=True)
        np.savez(folder / f"{name}_split_0.npz", k_fold_indices=np.array([[3], [4]]), test_indices=np.array([0, 1, 2]))
    result = run(*args)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "50.00 ± 0.00" in result.stdout


# --- help, version, interruption, pipes ---


def test_help_has_an_example_for_each_command() -> None:
    for args in ([], ["--help"], ["evaluate", "-h"], ["datasets", "--help"]):
        result = run(*args)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "Example" in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 80
    assert "--show-completion" in run("--help").stdout


def test_version_lists_all_libraries() -> None:
    result = run("--version")
    assert (result.exit_code, result.stderr) == (0, "")
    first, *others = result.stdout.splitlines()
    assert first == f"edgewise {ew.__version__}"
    imported = {"torch": torch, "torch_geometric": torch_geometric, "numpy": np, "scipy": scipy, "numba": numba}
    versions = {"python": platform.python_version(), **{name: part.__version__ for name, part in imported.items()}}
    builds = re.compile(r"\+\S+")  # build tag of torch, which its package may lack
    assert [builds.sub("", line) for line in others] == [builds.sub("", " ".join(pair)) for pair in versions.items()]


@pytest.mark.parametrize("words", [["--version"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_and_version_are_fast_to_import(words: list[str]) -> None:
    code = (
        "import sys\nfrom edgewise.cli import app\n"
        f"try:\n    app({words})\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'matplotlib', 'numba'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=600)


RUN_COMMANDS = """
import json, sys
from edgewise.cli import app

for args in json.loads(sys.argv[1]):
    try:
        app(args)
    except SystemExit as end:
        assert not end.code, end.code
upper = [name for name in sys.modules if name.startswith(("edgewise.sweep", "edgewise.paper", "edgewise.cli.rep"))]
assert not upper, upper
"""


def test_commands_of_the_library_import_neither_sweep_nor_paper(tmp_path: Path) -> None:
    commands = [
        [*evaluate_args(tmp_path), "--selective", "--json", tmp_path / "out.json", "--plot", tmp_path / "out.png"],
        [*calibrate_args(tmp_path), "--out", tmp_path / "out.safetensors"],
        [*predict_args(tmp_path), "--out", tmp_path / "out.csv"],
    ]
    args = [sys.executable, "-c", RUN_COMMANDS, json.dumps(commands, default=str)]
    done = subprocess.run(args, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("package", "known"), [("models", known_models), ("calibration", known_calibrators)])
def test_names_in_help_are_complete(package: str, known: Callable[[], dict[str, type]]) -> None:
    own = (name for name, kind in known().items() if kind.__module__.startswith(f"edgewise.{package}."))
    assert names_in(package) == tuple(sorted(own))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), ValueError("two\nlines")])
def test_interruption_and_errors_print_one_line(
    error: BaseException, saved: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("edgewise.metrics.evaluate", fail)
    result = run("evaluate", *options(saved))
    assert result.exit_code == (130 if isinstance(error, KeyboardInterrupt) else 2)
    assert result.stdout == ""
    assert result.stderr.startswith("edgewise: ")
    assert result.stderr.count("\n") == 1


def test_bugs_raise(saved: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.metrics.evaluate", lambda: None)
    assert isinstance(run("evaluate", *options(saved)).exception, TypeError)


def test_installed_command_prints_errors_without_a_traceback(saved: dict[str, Path], tmp_path: Path) -> None:
    assert_refused(command("evaluate", "--bins"), "Option '--bins' requires an argument.")
    assert_refused(command("evaluate", *options(saved), "--json", tmp_path / "no" / "out"), str(tmp_path / "no"))
    np.save(saved["labels"], np.array([{}], dtype=object))
    ended = forked_commands.command("evaluate", *options(saved))
    assert_refused(subprocess.CompletedProcess([], *ended), f"{saved['labels']}, but got pickled")


def closed_pipe() -> int:
    """Return the write end of a pipe whose read end is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_closed_pipe_exits_like_sigpipe(saved: dict[str, Path]) -> None:
    writer = closed_pipe()
    args = [sys.executable, "-m", "edgewise", "--help"]
    done = subprocess.run(args, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=600)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + 13, "")
    ended = forked_commands.command("evaluate", *options(saved), before=lambda: os.dup2(closed_pipe(), 1))
    assert (ended.code, ended.stderr) == (128 + 13, "")


# --- progress ---


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, delay: float) -> Terminal:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(cli_options, "PROGRESS_DELAY_SECONDS", delay)
    return terminal


def test_long_work_shows_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch, delay=0.0)
    with cli_options.progress_bar() as report:
        assert report is not None
        for done in (1000, 2000, 1000):  # the third value belongs to a second pass
            report(done, 2000)
        assert wait_until(lambda: "scoring 2,000 edges" in terminal.getvalue())


def test_short_work_shows_no_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch, delay=600.0)
    with cli_options.progress_bar() as report:
        assert report is not None
        report(1, 2)
    assert terminal.getvalue() == ""


def test_no_progress_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with cli_options.progress_bar() as report:
        assert report is None


def completed(monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    monkeypatch.setenv("_EDGEWISE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"edgewise {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(f"edgewise {words}|".split()) - 1))
    return run().stdout.split()


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("re", ["reproduce", "report"]),
        ("evaluate --bin", ["--bins", "--binning"]),
        ("evaluate --binning m", ["mass"]),
        ("calibrate --calibrator l", ["local"]),
        ("predict --events s", ["same"]),
        ("predict --events same d", ["different"]),
        ("predict --events same,b", ["same,both_correct"]),
        ("predict --events same --t", ["--top", "--test"]),
        ("predict --select b", ["both_correct"]),
        ("reproduce --models gcn g", ["gcn", "gat", "gmnn"]),
        ("reproduce --datasets te", ["texas"]),
        ("reproduce --calibrators temperature,st", ["temperature,structured"]),
    ],
)
def test_shell_completion_of_commands_options_and_names(words: str, completions: list[str], monkeypatch) -> None:
    assert completed(monkeypatch, words) == completions


# --- compare ---


@pytest.fixture
def two_files(saved: dict[str, Path], tmp_path: Path) -> tuple[list[Path], list[str]]:
    """Return the files of two models, and the other options."""
    flat = save_npy(tmp_path / "flat", (PROBS + 1) / 3)
    return [saved.pop("probs"), flat], options(saved)


def test_compare_gives_the_numbers_of_python(two_files: tuple[list[Path], list[str]], tmp_path: Path) -> None:
    (probs, flat), others = two_files
    out, plot, html = (tmp_path / f"differences.{suffix}" for suffix in ("json", "png", "html"))
    shared = "--resamples", 40, "--bins", 4, "--seed", 3
    outputs = "--json", out, "--plot", plot, "--html", html, "--title", "flat & probs"
    result = run("compare", probs, flat, *others, *shared, *outputs)
    expected = ew.compare(
        {"probs": PROBS, "flat": (PROBS + 1) / 3}, LABELS, EDGES, mask=MASK, n_resamples=40, n_bins=4, seed=3
    )
    assert result.stdout == f"{expected}\n", result.stderr
    written = json.loads(out.read_text())
    one = expected.differences["flat"]["edgewise"]["nll"]
    assert written["differences"]["flat"]["edgewise"]["nll"] == {
        "difference": one.value,
        "interval": [one.low, one.high],
    }
    assert written["files"]["models"] == {"probs": str(probs), "flat": str(flat)}
    assert plot.stat().st_size > 0
    assert "flat &amp; probs" in html.read_text(encoding="utf-8") and f"{one.low:.4f}" in html.read_text(
        encoding="utf-8"
    )
    named = run("compare", f"a={probs}", f"b={flat}", *others, *shared)
    assert "b has a" in named.stdout or "b and a:" in named.stdout


def test_compare_reads_logits_ids_posteriors_and_headers(
    two_files: tuple[list[Path], list[str]], tmp_path: Path
) -> None:
    (_, flat), others = two_files
    shared = *others, "--resamples", 40
    plain = run("compare", f"a={flat}", f"b={flat}", *shared).stdout
    assert plain.count("equal") >= 19
    with np.errstate(divide="ignore"):
        logits = save_npy(tmp_path / "logits", np.log((PROBS + 1) / 3) + 2)
    posterior = tmp_path / "posterior.safetensors"
    ew.IndependentPosterior((PROBS + 1) / 3).save(posterior)
    result = run("compare", f"a={logits}", f"b={posterior}", *shared, "--logits")
    assert "+0.0000" in result.stdout, result.stderr
    tables = {}
    for name, header in (("one", "ham,spam"), ("two", "ham,spam"), ("three", "spam,ham")):
        tables[name] = tmp_path / f"{name}.csv"
        rows = "\n".join(f"{p},{q}" for p, q in ((PROBS + 1) / 3).tolist())
        tables[name].write_text(f"{header}\n{rows}\n")
    labels = tmp_path / "names.csv"
    labels.write_text("\n".join(["ham", "spam"][label] for label in LABELS))
    args = "--labels", labels, "--edges", others[others.index("--edges") + 1], "--resamples", 40
    assert run("compare", tables["one"], tables["two"], *args).stdout.count("equal") >= 19
    assert_refused(run("compare", tables["one"], tables["three"], *args), "Reorder the columns")


def test_compare_refuses_bad_models(two_files: tuple[list[Path], list[str]], tmp_path: Path) -> None:
    (probs, flat), others = two_files
    assert_refused(run("compare", probs, *others), "at least two files of predictions, but got 1")
    (tmp_path / "gat").mkdir()
    other = save_npy(tmp_path / "gat" / "probs", PROBS)
    assert_refused(run("compare", probs, other, *others), f"such as gat={other}")
    assert run("compare", probs, f"gat={other}", *others, "--resamples", 40).exit_code == 0
    assert_refused(run("compare", probs, tmp_path / "none.npy", *others), "none.npy")
    short = save_npy(tmp_path / "short", PROBS[:4])
    assert_refused(run("compare", probs, short, *others), "those of 'short' (4, 2)")
    assert_refused(run("compare", probs, flat, *others, "--json", flat), "named twice")
    assert_refused(run("compare", probs, flat, *others, "--resample", 40), "--resamples")


def test_compare_advises_its_flag_for_logits(two_files: tuple[list[Path], list[str]], tmp_path: Path) -> None:
    (_, flat), others = two_files
    logits, shared = save_npy(tmp_path / "logits", 2 * np.log((PROBS + 1) / 3)), (*others, "--resamples", 40)
    assert_refused(run("compare", f"a={logits}", f"b={logits}", *shared), "For logits add --logits.")
    assert run("compare", f"a={logits}", f"b={logits}", *shared, "--logits").exit_code == 0
    assert_refused(run("compare", f"a={flat}", f"b={flat}", *shared, "--logits"), "Omit --logits.")
