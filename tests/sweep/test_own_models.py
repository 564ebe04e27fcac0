"""Models in Python files of users: reading, errors, runs, resuming and saved models."""

import csv
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

import edgewise as ew
from edgewise.models.network import Network
from edgewise.paper import recipes
from edgewise.paper.recipes import paper_plan
from edgewise.sweep.own_models import OwnModel, read_own_models
from edgewise.sweep.plan import hyperparameters, trainings_of
from edgewise.sweep.run import Runner
from edgewise.sweep.sources import Sources
from edgewise.workers import Finished, LocalProcesses
from helpers.quick_recipes import QUICK_RECIPES
from helpers.run_numbers import numbers
from test_cli import run

pytestmark = pytest.mark.usefixtures("forget_own_models")
GRAPH_SAGE = Path(__file__).parents[2] / "examples" / "graph_sage.py"
TEXT = """
from dataclasses import dataclass

import torch
from torch_geometric.nn import MessagePassing

import edgewise as ew


class Mean(MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)


class Linear(torch.nn.Module):
    def __init__(self, num_features, num_classes):
        super().__init__()
        self.only, self.mean = torch.nn.Linear(num_features, num_classes), Mean()

    def forward(self, x, edge_index):
        logits = self.only(x)
        return logits + self.mean(logits, edge_index)


def make_linear(num_features, num_classes) -> torch.nn.Module:
    return Linear(num_features, num_classes)


def unannotated(num_features, num_classes):
    return Linear(num_features, num_classes)


def main() -> None:
    raise AssertionError("not called")


def describe(num_features, num_classes) -> str:
    raise AssertionError("not called")


class Deep(Linear):
    def __init__(self, num_features, num_classes, depth):
        super().__init__(num_features, num_classes)


class Wide(torch.nn.Module):
    def __init__(self, num_features, num_classes):
        super().__init__()
        self.only = torch.nn.Linear(num_features, num_classes + 1)

    def forward(self, x, edge_index):
        return self.only(x)


@dataclass(frozen=True, kw_only=True)
class Short(ew.GCN):
    max_epochs: int = 3
    name = "short"


@dataclass(frozen=True, kw_only=True)
class Unnamed(ew.GCN):
    max_epochs: int = 3


@dataclass(frozen=True, kw_only=True)
class Required(ew.GCN):
    depth: int
    name = "required"


@dataclass(frozen=True, kw_only=True)
class Plain(ew.models.Model[ew.models.fitted.FittedClassifier]):
    name = "plain"
    fitted = ew.models.fitted.FittedClassifier

    def _train(self, task, seeds, log):
        raise NotImplementedError


quick = ew.Network(Linear, max_epochs=3, learning_rate=0.005)
from_lambda = ew.Network(lambda num_features, num_classes: Linear(num_features, num_classes))
gcn_of_8 = ew.GCN(hidden=8, max_epochs=3)
trained = Linear(2, 2)
GCN = Linear
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "my_models.py"
    path.write_text(TEXT, encoding="utf-8")
    return path


def read(file: Path, *names: str) -> list[OwnModel]:
    return list(read_own_models(f"{file}:{name}" for name in names).values())


# --- reading ---


def test_classes_functions_and_models(file: Path) -> None:
    linear, make_linear, short, quick, gcn_of_8 = read(file, "Linear", "make_linear", "Short", "quick", "gcn_of_8")
    assert isinstance(linear.load(), Network) and linear.load() == Network(linear.load().make_module)
    assert make_linear.load().hyperparameters()["make_module"] == "my_models:make_linear"
    assert (short.load().name, short.load().max_epochs) == ("short", 3)
    assert (quick.load().learning_rate, quick.load().max_epochs) == (0.005, 3)
    assert gcn_of_8.load() == ew.GCN(hidden=8, max_epochs=3)
    assert [model.name for model in (linear, make_linear, gcn_of_8)] == ["linear", "make_linear", "gcn_of_8"]


def test_hash_of_the_file_is_a_hyperparameter(file: Path, tmp_path: Path) -> None:
    (model,) = read(file, "Linear")
    changed = OwnModel(model.file, model.attribute, TEXT + "\n# changed\n")
    ours, other = (json.loads(hyperparameters("cora", "linear", {"linear": of}))[0] for of in (model, changed))
    assert set(ours) == {
        *("learning_rate", "weight_decay", "max_epochs", "patience", "make_module", "source_sha256"),
    }
    assert ours["make_module"] == "my_models:Linear"
    assert ours.pop("source_sha256") != other.pop("source_sha256") and ours == other


def test_weight_decay_depends_on_the_dataset(file: Path) -> None:
    (model,) = read(file, "quick")
    decays = [trainings_of(name, "quick", {"quick": model})[0].model.weight_decay for name in ("cora", "photo")]
    assert decays == [5e-4, 0.0]


def test_model_without_weight_decay_is_refused_where_it_has_to_change(file: Path) -> None:
    (model,) = read(file, "Plain")
    assert len(paper_plan(("cora",), (model,), 1, 1, 1).runs()) == 1
    with pytest.raises(ValueError, match=r"weight_decay, but Plain has none\. Add it"):
        paper_plan(("photo",), (model,), 1, 1, 1).runs()


def test_plan_has_own_models(file: Path) -> None:
    plan = paper_plan(("cora",), ("gcn", *read(file, "Linear")), 1, 1, 1)
    assert str(plan) == "cora; gcn linear; splits 1, folds 1, inits 1"
    assert [key.model for key in plan.runs()] == ["linear", "gcn"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Lineer", r"\(Mean, Linear, .*\), but got 'Lineer'\. Did you mean 'Linear'\?"),
        ("trained", r"my_models\.py:trained to be a class .* but got Linear\. Name one of these instead"),
        ("torch", r"to be a class .* but got module"),
        ("Deep", r"Deep to make a module from \(num_features, num_classes\), but .*'depth'.*Add a function with"),
        ("main", r"main to make a module from .*too many positional"),
        ("describe", r"my_models:describe is neither\. Add the annotation"),
        ("unannotated", r"my_models:unannotated is neither\. Add the annotation"),
        ("GCN", r"a model of edgewise are both named 'gcn'\. Give it another name .* my_gcn = GCN"),
        ("Unnamed", r'has that of GCN\. Add a line such as name = "my_gcn"'),
        ("Required", r"made as Required\(\).*'depth'.*all its options have defaults"),
        ("from_lambda", r"top level of a module"),
        ("", r"Expected FILE\.py:NAME"),
    ],
)
def test_unusable_names(file: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(file, name)


@pytest.mark.parametrize("place", ["my_models.py", "models/my_models:Net", "my_models.py:", "my_models.py:a.b"])
def test_places_that_are_not_complete(place: str) -> None:
    with pytest.raises(ValueError, match=r"Expected FILE\.py:NAME, such as my_models\.py:GraphSAGE"):
        read_own_models([place])


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.py does not exist"):
        read(tmp_path / "nowhere.py", "Net")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bad_number", "import math\n\nx = math.sqrt(-1)\n", r"bad_number\.py, but line 3 raised ValueError: math"),
        ("bad_import", "import no_such_package\n", r"line 1 raised ModuleNotFoundError: No module named 'no_such"),
        ("bad_syntax", "x = 1\ny = (\n", r"line 2 raised SyntaxError"),
        ("bad_exit", "raise SystemExit(3)\n", r"line 1 raised SystemExit: 3"),
        ("tokenize", "", r"named like no other Python module.*has the name of .*tokenize\.py\. .* to tokenize_2\.py"),
        ("sys", "", r"has the name of a module of Python\. Rename it, for example to sys_2\.py"),
        ("my-models", "", r"cannot be the name of a module\. Rename it, for example to my_my_models\.py"),
    ],
)
def test_files_that_cannot_be_executed(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    before = sys.modules.get(name)
    with pytest.raises(ValueError, match=message):
        read(path, "Net")
    assert sys.modules.get(name) is before


def test_same_name_twice(file: Path, tmp_path: Path) -> None:
    assert len(read(file, "Linear", "Linear")) == 1
    other = tmp_path / "other_models.py"
    other.write_text(TEXT)
    with pytest.raises(ValueError, match=r"other_models\.py:Linear and .*my_models\.py:Linear are both named 'linear'"):
        read_own_models([f"{file}:Linear", f"{other}:Linear"])


def test_two_files_with_one_name(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "my_models.py"
    other.write_text(TEXT)
    with pytest.raises(ValueError, match=r"has the name of .*own\d+/my_models\.py\. .* to my_models_2\.py"):
        read_own_models([f"{file}:Linear", f"{other}:Deep"])


def test_file_that_imports_another_file(tmp_path: Path) -> None:
    (tmp_path / "my_layers.py").touch()
    path = tmp_path / "imports_layers.py"
    path.write_text("import math\nimport my_layers\n")
    with pytest.raises(ValueError, match=r"line 2 imports my_layers.*next to it\. Put everything into one file"):
        read(path, "Net")


# --- running ---


def test_workers_need_only_the_text(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "sent_models.py"
    path.write_text(TEXT)
    plan = paper_plan(("cora",), read(path, "quick", "Short"), 1, 1, 1, ("temperature",))
    runner = Runner(Sources(str(root)), 1, plan.recipes, plan.calibrators, str(tmp_path / "fitted"))
    path.unlink()
    outcomes = list(LocalProcesses(1).execute(runner, [*plan.runs(), *plan.runs()]))
    assert all(isinstance(outcome, Finished) for outcome in outcomes), outcomes
    first, again = ([outcome.result for outcome in part] for part in (outcomes[:2], outcomes[2:]))
    assert numbers(first) == numbers(again)  # of the saved models
    assert [list(one.predictions) for one in first] == [["product", "temperature"]] * 2
    names = sorted(path.name.rsplit("-", 1)[0] for path in (tmp_path / "fitted").iterdir())
    assert names == ["cora-quick-0-0-0", "cora-short-0-0-0"]


def reproduce(root: Path, out: Path, *options: object) -> object:
    sizes = ("--datasets", "cora", "--splits", 1, "--inits", 1)
    return run("reproduce", "--out", out, "--data-root", root, *sizes, "--workers", 2, *options)


def keys_of(out: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(out / "results.sqlite")) as connection:
        return connection.execute("SELECT model, fold FROM runs ORDER BY model, fold").fetchall()


def test_example_in_a_sweep_that_is_resumed_and_reported(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "RECIPES", QUICK_RECIPES)
    sage = tmp_path / "sage_for_sweep.py"  # the example itself may be in sys.modules
    sage.write_text(GRAPH_SAGE.read_text(encoding="utf-8") + "\n\nsage = ew.Network(GraphSAGE, max_epochs=5)\n")
    models, out = ("--models", "gcn", f"{sage}:sage"), tmp_path / "out"
    calibrated = ("--calibrators", "temperature")
    dry = reproduce(root, out, *models, "--folds", 1, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert dry.stdout.splitlines()[2].split() == ["gcn", "sage"], dry.output
    assert "counting sage, whose time is unknown, as epfgnn" in dry.stdout.splitlines()[0]
    first = reproduce(root, out, *models, *calibrated, "--folds", 1)
    assert first.exit_code == 0, first.output
    assert keys_of(out) == [("gcn", 0), ("sage", 0)]
    again = reproduce(root, out, *models, *calibrated, "--folds", 2)
    assert again.exit_code == 0 and "4 runs (1 split, 2 folds, 1 init for each cell), 2 done" in again.output
    assert keys_of(out) == [("gcn", 0), ("gcn", 1), ("sage", 0), ("sage", 1)]

    sage.write_text(sage.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    changed = reproduce(root, out, *models, *calibrated, "--folds", 2)
    assert changed.exit_code == 2 and "cora sage" in changed.stderr and "model file" in changed.stderr
    sage.unlink()
    reported = run("report", out)
    assert reported.exit_code == 0 and "sage" in reported.stdout, reported.output
    with (out / "tables.csv").open(encoding="utf-8") as file:
        rows = {(row["reading"], row["row"]) for row in csv.DictReader(file)}
    assert {("as_defined", "sage"), ("calibrated", "sage temperature")} <= rows


def test_wrong_logits_fail_with_a_reason_until_the_file_is_corrected(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgewise.cli import reproduce as reproduce_module

    monkeypatch.setattr(reproduce_module, "show_report", lambda source, folder, verbose: None)
    path, out = tmp_path / "wide models" / "wide_models.py", tmp_path / "out"
    path.parent.mkdir()
    path.write_text(TEXT)
    failed = reproduce(root, out, "--models", f"{path}:Wide", "--folds", 1)
    assert failed.exit_code == 1
    assert "logits of 3 classes, but got shape (520, 4). Use the second argument" in failed.stderr
    path.write_text(TEXT.replace("num_classes + 1", "num_classes"))
    assert reproduce(root, out, "--models", f"{path}:Wide", "--folds", 1).exit_code == 0
    with closing(sqlite3.connect(out / "results.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM failures").fetchone() == (0,)
