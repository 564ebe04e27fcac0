"""The command predict: input files, output tables and selections."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch_geometric.data import Data
from typer.testing import CliRunner, Result

import edgewise as ew
import edgewise.cli.predict
from edgewise import cli

PROBS = np.array([[0.9, 0.1], [0.75, 0.25], [0.25, 0.75], [0.5, 0.5], [0.0, 1.0]])
EDGES = np.array([[0, 1, 1, 2, 3, 4, 3], [1, 0, 2, 3, 4, 0, 3]])
SAME = [0.7, 0.375, 0.5, 0.5, 0.1]  # Σ p_i p_j of the five edges


def run(*args: object) -> Result:
    return CliRunner().invoke(cli.app, ["predict", *map(str, args)], prog_name="edgewise")


def evaluated(*args: object) -> Result:
    return CliRunner().invoke(cli.app, ["evaluate", *map(str, args)], prog_name="edgewise")


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, Path]:
    arrays = {"probs": PROBS, "edges": EDGES, "labels": np.array([0, 0, 1, -1, 1])}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "ids.txt").write_text("x17\nx20\ny3\ny41\nz05\n")
    (tmp_path / "classes.txt").write_text("Ham\nSpam\n")
    return {file.stem: file for file in tmp_path.iterdir()}


def test_each_edge_of_a_graph_is_predicted_once(saved, tmp_path):
    out = tmp_path / "out.csv"
    result = run("--probs", saved["probs"], "--edges", saved["edges"], "--out", out)
    assert result.exit_code == 0, result.stderr
    table = pd.read_csv(out)
    assert [*zip(table["start"], table["end"], strict=True)] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]
    assert table["P(same)"].tolist() == pytest.approx(SAME)
    assert f"Wrote 5 pairs to {out}." in result.stdout
    assert "0.7000" in result.stdout


@pytest.mark.parametrize("ending", ["csv", "parquet", "npy"])
@pytest.mark.parametrize("header", [True, False])
def test_pairs_of_ids_with_class_names(saved, tmp_path, ending, header):
    pairs, file = [("z05", "x17"), ("x20", "y3")], tmp_path / f"pairs.{ending}"
    if ending == "csv":
        file.write_text(("from,to\n" if header else "") + "\n".join(map(",".join, pairs)))
    elif ending == "parquet":
        parquet.write_table(pa.table({"a": [a for a, _ in pairs], "b": [b for _, b in pairs]}), file)
    else:
        np.save(file, np.array(pairs).T)
    out = tmp_path / "out.json"
    names = ("--ids", saved["ids"], "--classes", saved["classes"])
    events = ("--events", "any=Spam", "same", "--top", 2)
    result = run("--probs", saved["probs"], "--pairs", file, *names, *events, "--out", out)
    assert result.exit_code == 0, result.stderr
    document = json.loads(out.read_text())
    rows = document["pairs"]
    assert [(row["start"], row["end"]) for row in rows] == pairs
    assert [row["start_label"] for row in rows] == ["Spam", "Ham"]
    assert [row["P(any=Spam)"] for row in rows] == pytest.approx([1.0, 1 - 0.75 * 0.25])
    assert [row["P(labels_2)"] for row in rows] == pytest.approx([0.1, 0.1875])
    assert document["convergence"] == "nothing to converge"


@pytest.mark.parametrize(
    "words", ["same any=Ham,_or_eggs different", "same,any=Ham,_or_eggs,different", "same, any=Ham,_or_eggs different,"]
)
def test_events_are_separated_by_commas_or_spaces(saved, tmp_path, words):
    (tmp_path / "classes.txt").write_text("Ham,_or_eggs\nSpam\n")
    out = tmp_path / "out.parquet"
    inputs = ("--probs", saved["probs"], "--edges", saved["edges"], "--classes", tmp_path / "classes.txt")
    result = run(*inputs, "--out", out, "--events", *words.split())
    assert result.exit_code == 0, result.stderr
    names = [name for name in pd.read_parquet(out).columns if name.startswith("P(") and name != "P(labels)"]
    assert names == ["P(same)", "P(any=Ham,_or_eggs)", "P(different)"]


@pytest.mark.parametrize(
    ("events", "suggestion"),
    [("same,diferent", "different"), ("ayn=Spam", "any=Spam"), ("any=Spma", "Spam"), ("same any=spam", "Spam")],
)
def test_misspelled_event_or_class_gets_a_suggestion(saved, events, suggestion):
    inputs = ("--probs", saved["probs"], "--edges", saved["edges"], "--classes", saved["classes"])
    result = run(*inputs, "--events", *events.split())
    assert result.exit_code == 2
    assert f"Did you mean '{suggestion}'?" in result.stderr


def test_integer_ids_stay_integers(saved, tmp_path):
    (tmp_path / "ids.csv").write_text("id\n10\n20\n30\n40\n50\n")
    (tmp_path / "pairs.csv").write_text("10,50\n30,20\n")
    inputs = ("--probs", saved["probs"], "--ids", tmp_path / "ids.csv")
    result = run(*inputs, "--pairs", tmp_path / "pairs.csv", "--out", tmp_path / "out.parquet")
    assert result.exit_code == 0, result.stderr
    assert pd.read_parquet(tmp_path / "out.parquet")["end"].tolist() == [50, 20]
    result = run(*inputs, "--edges", saved["edges"])
    assert result.exit_code == 2 and "ids[edges]" in result.stderr
    np.save(tmp_path / "edges.npy", np.array([10, 20, 30, 40, 50])[EDGES])
    run(*inputs, "--edges", tmp_path / "edges.npy", "--out", tmp_path / "out.parquet")
    assert pd.read_parquet(tmp_path / "out.parquet")["end"].tolist() == [20, 30, 40, 50, 10]
    (tmp_path / "ids.csv").write_text("007\n7\n8\n9\n10\n")
    (tmp_path / "pairs.csv").write_text("007,7\n")
    run(*inputs, "--pairs", tmp_path / "pairs.csv", "--out", tmp_path / "out.parquet")
    assert pd.read_parquet(tmp_path / "out.parquet")[["start", "end"]].to_numpy().tolist() == [["007", "7"]]


def test_clamp_states_its_cost_and_gives_joints_of_pairs_that_are_no_edges(saved, tmp_path):
    chain = ew.PairwiseMRF(torch.zeros(5, 2), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), 2 * torch.eye(2))
    ew.sum_product(chain)[0].save(tmp_path / "chain.safetensors")
    (tmp_path / "pairs.csv").write_text("x17,y3\nx17,x20\nz05,x17\n")
    inputs = ("--probs", tmp_path / "chain.safetensors", "--ids", saved["ids"], "--pairs", tmp_path / "pairs.csv")
    result = run(*inputs, "--out", tmp_path / "out.csv", "--clamp")
    assert result.exit_code == 0, result.stderr
    assert "2 runs" in result.stderr and "1 clamped node," in result.stderr
    table = pd.read_csv(tmp_path / "out.csv")
    assert table["method"].tolist() == ["clamping", "belief of the edge", "clamping"]
    same = [(1 + np.tanh(1) ** distance) / 2 for distance in (2, 1, 4)]
    assert table["P(same)"].tolist() == pytest.approx(same, abs=1e-4)
    plain = run(*inputs)
    assert "product: no edge" in plain.stdout and plain.stderr == ""
    probs = run("--probs", saved["probs"], "--edges", saved["edges"], "--clamp")
    assert probs.exit_code == 0 and "No pair needs clamping." in probs.stderr


def test_clamp_states_a_long_time_once(saved, tmp_path, monkeypatch):
    from edgewise.inference import clamping

    monkeypatch.setattr(clamping, "MIN_TIMED_OPERATIONS", 0)
    monkeypatch.setattr(clamping.Solver, "seconds_per_run", lambda *_: 60.0)
    chain = ew.PairwiseMRF(torch.zeros(5, 2), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), 2 * torch.eye(2))
    ew.sum_product(chain)[0].save(tmp_path / "chain.safetensors")
    result = run("--probs", tmp_path / "chain.safetensors", "--edges", saved["edges"], "--clamp")
    assert result.exit_code == 0 and result.stderr.count("min") == 1


def test_edges_may_hold_ids(saved, tmp_path):
    ids = np.array(["x17", "x20", "y3", "y41", "z05"])
    (tmp_path / "edges.tsv").write_text("\n".join("\t".join(pair) for pair in ids[EDGES.T]))
    tables = []
    for edges in (saved["edges"], tmp_path / "edges.tsv"):
        inputs = ("--probs", saved["probs"], "--edges", edges, "--ids", saved["ids"])
        result = run(*inputs, "--out", tmp_path / "out.parquet")
        assert result.exit_code == 0, result.stderr
        tables.append(pd.read_parquet(tmp_path / "out.parquet"))
    pd.testing.assert_frame_equal(*tables)
    assert tables[0]["start"].tolist() == ["x17", "x20", "y3", "y41", "z05"]


def test_logits_are_predicted_by_their_softmax(saved, tmp_path):
    logits = torch.tensor([[2.0, -1.0], [0.5, 0.25], [-3.0, 1.0], [0.0, 0.5], [4.0, 4.0]])
    torch.save(logits, tmp_path / "logits.pt")
    result = run("--logits", tmp_path / "logits.pt", "--edges", saved["edges"], "--out", tmp_path / "out.csv")
    assert result.exit_code == 0, result.stderr
    p = logits.double().softmax(-1)
    assert pd.read_csv(tmp_path / "out.csv")["P(same)"][0] == pytest.approx(float(p[0] @ p[1]))
    assert "got both" in run("--logits", saved["probs"], "--probs", saved["probs"], "--edges", saved["edges"]).stderr


def test_selection_by_class_names_and_lists_of_ids(calibrated, tmp_path):
    files, *_ = calibrated
    goal = ("--select", "same", "--precision", 0.9)
    plain = run(*files, *goal)
    ids = np.array([f"n{k}" for k in range(20000)])
    paths = dict(zip(files[::2], files[1::2], strict=True))
    labels, val, test = (np.load(paths[name]) for name in ("--labels", "--val", "--test"))
    lines = {"labels": np.array(["no", "yes"])[labels], "val": ids[val], "test": ids[test], "ids": ids}
    lines["classes"] = ["no", "yes"]
    for name, cells in lines.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(cells))
    named = [word for name in lines for word in (f"--{name}", tmp_path / f"{name}.txt")]
    result = run("--probs", paths["--probs"], "--edges", paths["--edges"], *named, *goal)
    assert (result.exit_code, plain.exit_code) == (0, 0), result.stderr
    assert result.stdout.splitlines()[-3:] == plain.stdout.splitlines()[-3:]


def test_pairs_of_nodes_numbered_from_1_are_refused_with_a_way_out(saved, tmp_path):
    np.save(tmp_path / "pairs.npy", EDGES[:, :6] + 1)
    result = run("--probs", saved["probs"], "--pairs", tmp_path / "pairs.npy")
    assert result.exit_code == 2 and "save pairs - 1" in result.stderr
    np.save(tmp_path / "pairs.npy", np.load(tmp_path / "pairs.npy") - 1)
    assert run("--probs", saved["probs"], "--pairs", tmp_path / "pairs.npy").exit_code == 0


def test_posterior_file(saved, tmp_path):
    samples = torch.from_numpy(np.stack([PROBS, PROBS[::-1]]))
    ew.MixturePosterior(samples).save(tmp_path / "mixture.safetensors")
    result = run("--probs", tmp_path / "mixture.safetensors", "--edges", saved["edges"], "--out", tmp_path / "out.csv")
    assert result.exit_code == 0, result.stderr
    table = pd.read_csv(tmp_path / "out.csv")
    joint = sum(np.outer(p[0], p[1]) for p in samples.numpy()) / 2
    assert table["P(same)"][0] == pytest.approx(np.trace(joint))
    assert set(table["method"]) == {"mixture of 2 samples"}


@pytest.mark.parametrize("model", ["GCN", "EPFGNN"])
def test_fitted_model_reports_convergence(tmp_path, model):
    ring = torch.arange(12)
    data = Data(torch.eye(12), torch.stack([ring, ring.roll(-1)]), y=ring // 6)
    data.edge_index = torch.cat([data.edge_index, data.edge_index.flip(0)], dim=1)
    split = ew.Split(train=ring % 3 == 0, val=ring % 3 == 1, test=ring % 3 == 2, split=0, fold=0)
    quick = {"max_epochs": 2} if model == "GCN" else {"pretrain_epochs": 2, "rounds": 1, "steps": 1}
    fitted = getattr(ew, model)(**quick).fit(data, split, seed=0)
    fitted.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "edges.npy", data.edge_index.numpy())
    out = tmp_path / "out.parquet"
    result = run("--probs", tmp_path / "model.safetensors", "--edges", tmp_path / "edges.npy", "--out", out)
    assert result.exit_code == 0, result.stderr
    table = pd.read_parquet(out)
    joint = fitted.posterior().joint(data.edge_index[:, :1])[0]
    assert table["P(same)"][0] == pytest.approx(float(joint.trace()), abs=1e-5)
    text = table["convergence"][0]
    assert text == "nothing to converge" if model == "GCN" else "converged in" in text or "exact" in text


@pytest.fixture
def calibrated(tmp_path):
    """Pairs of nodes whose P(same) is calibrated and uniform on (0, 1)."""
    g = np.random.default_rng(0)
    p = g.random(20000)
    probs = np.stack([1 - p, p], 1)
    probs[1::2] = [0.0, 1.0]  # so P(same) is the p of the first node
    labels = np.where(np.arange(20000) % 2, 1, g.random(20000) < p).astype(int)
    val = np.arange(20000) < 10000
    arrays = {"probs": probs, "labels": labels, "val": val, "test": ~val, "edges": np.arange(20000).reshape(-1, 2).T}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    files = [part for name in arrays for part in (f"--{name}", tmp_path / f"{name}.npy")]
    return files, p[::2], labels[::2] == 1, val[::2]


@pytest.mark.parametrize(
    "goal", [("--precision", 0.9), ("--precision", 0.8, "--confidence", 0.9), ("--cost", "1:4"), ("--fdr", 0.2)]
)
def test_pairs_above_the_threshold_of_validation_pairs_are_selected(calibrated, tmp_path, goal):
    files, p, same, val = calibrated
    out = tmp_path / "out.parquet"
    result = run(*files, "--select", "same", *goal, "--out", out)
    assert result.exit_code == 0, result.stderr
    table = pd.read_parquet(out)
    selected = table["selected"].to_numpy()
    assert p[selected].min() > p[~selected].max()
    precision = same[selected & ~val].mean()
    assert f"precision {precision:.4f}" in result.stdout
    if goal[0] == "--cost":
        assert p[selected].min() == pytest.approx(0.2, abs=0.05)
    else:
        # P ≥ t has the precision (1 + t) / 2.
        target = goal[1] if goal[0] == "--precision" else 1 - goal[1]
        assert precision > target - 0.05
        certain = "--confidence" in goal
        assert target - (0 if certain else 0.04) < (1 + p[selected].min()) / 2 < target + (0.12 if certain else 0.04)
    assert b"selected by P(same)" in parquet.read_schema(out).metadata[b"selection"]


def test_unreachable_precision_selects_nothing(calibrated):
    files, *_ = calibrated
    result = run(*files, "--select", "different", "--precision", 0.999, "--confidence", 0.9999)
    assert result.exit_code == 0
    assert "selected by P(different): nothing" in result.stdout
    assert "of all: 0 of 10,000 pairs selected" in result.stdout


def test_invalid_inputs_exit_with_one_line(saved, tmp_path):
    inputs = ("--probs", saved["probs"], "--edges", saved["edges"])
    labeled = ("--labels", saved["labels"], "--val", saved["labels"])
    no_nodes = tmp_path / "no_nodes.npy"
    np.save(no_nodes, np.zeros(5, bool))
    (tmp_path / "stranger.csv").write_text("x17,q99\n")
    (tmp_path / "three.csv").write_text("x17,x20,y3\n")
    (tmp_path / "blank.txt").write_text("x17\nx20\n\ny41\nz05\n")
    (tmp_path / "end.txt").write_text("x17\nx20\ny3\ny41\nz05\n\n")  # else x17 would be a header
    (tmp_path / "wide.txt").write_text("x17\nx20\ny3\ny41\nz05\n", "utf-16")
    by_id = ("--probs", saved["probs"], "--ids", saved["ids"])
    refused = {
        "Expected --pairs or --edges": ("--probs", saved["probs"]),
        "Expected --select with --precision": (*inputs, "--precision", 0.9),
        "Expected --select with --labels": (*inputs, "--labels", saved["labels"]),
        "Expected one of --precision, --cost, --fdr with --select, but got none": (*inputs, "--select", "same"),
        "but got --precision and --fdr": (*inputs, "--select", "same", "--precision", 0.9, "--fdr", 0.1),
        "Expected --confidence with --precision only": (
            *(*inputs, "--select", "same"),
            *("--fdr", 0.1, "--confidence", 0.9),
        ),
        "Expected --labels with --select": (*inputs, "--select", "same", "--fdr", 0.1),
        "Expected --cost as two numbers": (
            *(*inputs, "--select", "same", "--cost", "1,5"),
            *("--labels", saved["labels"], "--val", tmp_path / "first.npy"),
        ),
        "both ends in": (*inputs, "--select", "same", "--precision", 0.9, *labeled[:2], "--val", no_nodes),
        "row 3 holds -1": (*inputs, "--select", "same", "--precision", 0.9, *labeled),
        "but they share 2": (
            *(*inputs, "--select", "same", "--precision", 0.9, "--labels", saved["labels"]),
            *("--val", tmp_path / "first.npy", "--test", tmp_path / "first.npy"),
        ),
        "Expected --test with --fdr": (*inputs, "--select", "same", "--fdr", 0.1, *labeled),
        "Expected --out to end in .csv, .parquet, .json": (*inputs, "--out", tmp_path / "out.xlsx"),
        "Expected --out in an existing folder": (*inputs, "--out", tmp_path / "no" / "out.csv"),
        "Expected --out to be a file of its own": (*inputs, "--out", saved["probs"]),
        "but got 'Spam'. For names of classes pass --classes FILE": (*inputs, "--events", "any=Spam"),
        "only_one=CLASS, but got 'sometimes'": (*inputs, "--events", "sometimes"),
        "pair 0 has 'q99'": (*by_id, "--pairs", tmp_path / "stranger.csv"),
        "two columns, the end nodes, but got shape (1, 3)": (*by_id, "--pairs", tmp_path / "three.csv"),
        "to hold 5 names, one for each node, but got 2": (*inputs, "--ids", saved["classes"]),
        "but name 3 is blank. Fill it in": (*inputs, "--ids", tmp_path / "blank.txt"),
        "but name 6 is blank. Fill it in": (*inputs, "--ids", tmp_path / "end.txt"),
        "but got UTF-16. Save it as UTF-8.": (*inputs, "--ids", tmp_path / "wide.txt"),
        "does not exist. Check the path.": (*inputs, "--ids", tmp_path / "none.txt"),
        "a file that ends in .csv, .txt": (*inputs, "--ids", tmp_path / "ids.xlsx"),
        "Expected a posterior at": ("--probs", tmp_path / "none.safetensors", "--edges", saved["edges"]),
        "row 0 of probs sums to 1.8": ("--probs", tmp_path / "broken.npy", "--edges", saved["edges"]),
    }
    np.save(tmp_path / "first.npy", np.array([True, True, False, False, False]))
    np.save(tmp_path / "broken.npy", 1.8 * PROBS)
    for message, args in refused.items():
        result = run(*args)
        assert result.exit_code == 2, message
        assert result.stderr.startswith("edgewise: "), result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert message in result.stderr
    assert not list(tmp_path.glob("out*"))


def test_help_has_examples():
    result = run("--help")
    assert result.exit_code == 0
    assert "edgewise predict --probs probs.npy --edges edges.npy --out pairs.parquet" in result.stdout
    assert edgewise.cli.predict.PREDICT_EXAMPLES.count("edgewise predict") == 4


def test_evaluate_selective_computes_the_area_under_the_risk_coverage_curve(tmp_path: Path) -> None:
    g = np.random.default_rng(3)
    np.save(tmp_path / "probs.npy", probs := g.dirichlet([1.0, 1.0], size=40))
    np.save(tmp_path / "labels.npy", labels := g.integers(0, 2, 40))
    np.save(tmp_path / "edges.npy", g.integers(0, 40, (2, 100)))
    files = [option for name in ("probs", "labels", "edges") for option in (f"--{name}", tmp_path / f"{name}.npy")]
    result = evaluated(*files, "--selective", "--json", tmp_path / "scores.json")
    document = json.loads((tmp_path / "scores.json").read_text())["selective"]
    right = (probs.argmax(1) == labels)[np.argsort(-probs.max(1))]
    expected = np.mean([1 - right[:k].mean() for k in range(1, 41)])  # no confidence occurs twice
    assert document["nodes"]["aurc"] == pytest.approx(expected)
    assert f"{expected:.4f}" in result.output
    refused = evaluated(*files, "--selective", "--edge-choice", "any")
    assert refused.exit_code == 2 and "Omit --selective" in refused.stderr


@pytest.mark.parametrize(("count", "num_lines"), [(12, 1), (120, 0)])
def test_selection_by_few_pairs_is_stated_on_stderr(count, num_lines, tmp_path):
    nodes = np.arange(count)
    arrays = {"probs": np.tile([0.8, 0.2], (count, 1)), "edges": np.array([nodes, (nodes + 1) % count])}
    arrays |= {"labels": np.zeros(count, np.int64), "val": np.ones(count, np.bool_)}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    options = [word for name in arrays for word in (f"--{name}", tmp_path / f"{name}.npy")]
    result = run(*options, "--select", "same", "--precision", 0.9)
    assert result.exit_code == 0, result.stderr
    assert len(result.stderr.splitlines()) == num_lines
    assert ("12 labeled pairs" in result.stderr) == bool(num_lines)


# --- conformal sets ---


@pytest.fixture
def conformal(tmp_path):
    """Write a graph of 200 nodes whose classes have names, and masks of calibration and test nodes."""
    g = np.random.default_rng(0)
    y = g.integers(3, size=200)
    logits = g.normal(size=(200, 3)) + 1.5 * np.eye(3)[y]
    calibration = g.permutation(200) < 100
    arrays = {
        "probs": np.exp(logits) / np.exp(logits).sum(1, keepdims=True),
        "edges": g.integers(200, size=(2, 500)),
        "labels": np.where(calibration, y, -1),
        "calibration": calibration,
        "test": ~calibration,
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "classes.txt").write_text("Ham\nSpam, cheap\nÜ\n")
    return {name: tmp_path / f"{name}.npy" for name in arrays}, arrays, tmp_path


def conformal_args(files, *names):
    return [arg for name in names for arg in (f"--{name}", files[name])]


@pytest.mark.parametrize("has_names", [False, True])
def test_sets_in_all_formats_equal_those_of_the_library(conformal, has_names, monkeypatch):
    files, arrays, folder = conformal
    monkeypatch.setattr("edgewise.decisions.edge_predictions.BATCH_VALUES", 2 * 3**2 * 7)  # 7 full sets
    names = ["Ham", "Spam, cheap", "Ü"] if has_names else [0, 1, 2]
    args = conformal_args(files, "probs", "edges", "labels", "calibration", "test")
    args += ["--conformal", 0.2, *(["--classes", folder / "classes.txt"] if has_names else [])]
    written = {}
    for ending in ("csv", "json", "parquet"):
        result = run(*args, "--out", folder / f"sets.{ending}")
        assert result.exit_code == 0, result.stderr
        assert "sets with alpha 0.2" in result.stdout
    written["csv"] = [json.loads(cell) for cell in pd.read_csv(folder / "sets.csv")["set"]]
    written["json"] = [row["set"] for row in json.loads((folder / "sets.json").read_text())["pairs"]]
    table = parquet.read_table(folder / "sets.parquet")
    written["parquet"] = table["set"].to_pylist()
    assert parquet.ParquetFile(folder / "sets.parquet").num_row_groups == -(-len(table) // 7)
    pairs = torch.stack([torch.from_numpy(table[side].to_numpy()) for side in ("start", "end")])
    graph = Data(y=torch.from_numpy(arrays["labels"]), edge_index=pairs)
    calibration = arrays["calibration"]
    sets = ew.ConformalPairs(0.2).fit(arrays["probs"], graph, calibration=calibration, test=~calibration)
    expected = [[[names[k], names[m]] for k, m in found.nonzero().tolist()] for found in sets.pair_sets(pairs)]
    assert written == dict.fromkeys(written, expected)
    guaranteed = pairs[:, torch.tensor(table["guaranteed"].to_pylist())]
    assert {*map(frozenset, guaranteed.T.tolist())} == {*map(frozenset, sets.test_pairs.T.tolist())}


@pytest.mark.filterwarnings("default::edgewise.ExchangeabilityWarning")
def test_test_nodes_are_those_outside_of_calibration_and_validation_by_default(conformal):
    files, arrays, folder = conformal
    args = [*conformal_args(files, "probs", "edges", "labels", "calibration"), "--conformal", 0.2]
    assert run(*args, "--test", files["test"]).stdout == run(*args).stdout
    val = arrays["test"] & (np.arange(200) < 40)
    np.save(folder / "val.npy", val)
    np.save(folder / "rest.npy", arrays["test"] & ~val)
    result = run(*args, "--val", folder / "val.npy")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert run(*args, "--test", folder / "rest.npy").stdout == result.stdout
    both = run(*args, "--test", files["test"], "--val", folder / "val.npy")
    assert f"{val.sum()} of 100 test nodes are among the used nodes" in " ".join(both.stderr.split())
    result = run(*args, "--val", files["calibration"])
    assert result.exit_code == 0
    assert "100 of 100 calibration nodes are among the used nodes" in " ".join(result.stderr.split())
    np.save(folder / "short.npy", val[:-1])
    short = " ".join(run(*args, "--val", folder / "short.npy").stderr.split())
    assert "Expected used of shape (200,)" in short
    assert "short.npy" in short


@pytest.mark.filterwarnings("default::edgewise.ExchangeabilityWarning")
@pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")
def test_nodes_that_a_file_of_a_fitted_calibrator_remembers_are_no_test_nodes(conformal):
    files, arrays, folder = conformal
    val = torch.from_numpy(arrays["test"]) & (torch.arange(200) < 40)
    graph = Data(y=torch.zeros(200, dtype=torch.long), edge_index=torch.from_numpy(arrays["edges"]))
    split = ew.Split(torch.zeros_like(val), val, ~val)
    ew.TemperatureScaling().fit(ew.wrap(arrays["probs"]), graph, split).save(folder / "model.safetensors")
    np.save(folder / "val.npy", val.numpy())
    args = [*conformal_args(files, "edges", "labels"), "--probs", folder / "model.safetensors", "--conformal", 0.2]
    result = run(*args, "--calibration", files["calibration"])
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert run(*args, "--calibration", files["calibration"], "--val", folder / "val.npy").stdout == result.stdout
    both = run(*args, "--calibration", files["calibration"], "--test", files["test"])
    assert f"{int(val.sum())} of 100 test nodes are among the used nodes" in " ".join(both.stderr.split())


def test_incomplete_options_of_sets_are_refused(conformal):
    files, _, _ = conformal
    given = conformal_args(files, "probs", "edges")
    for names, alpha, expected in [
        (["calibration"], None, "Expected --conformal with --calibration"),
        (["calibration", "labels", "test"], None, "Expected --conformal with --calibration"),
        (["labels"], 0.1, "Expected --calibration with --conformal"),
        (["calibration"], 0.1, "Expected --labels with --conformal"),
        (["calibration", "labels"], 1.5, "Expected --conformal to be a number above 0 and below 1"),
        (["calibration", "labels"], 0.001, "at least 999 calibration pairs"),
    ]:
        result = run(*given, *conformal_args(files, *names), *([] if alpha is None else ["--conformal", alpha]))
        assert result.exit_code != 0
        assert expected in " ".join(result.stderr.split()), result.stderr
