"""The recipes of CONTRIBUTING.md: their files and names exist, none is missing, and their code works as it stands."""

import ast
import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import yaml
from netcal.metrics import ACE
from torch_geometric.nn import APPNP as TheirPropagation
from typer.main import get_command

import edgewise as ew
from edgewise.cli import app
from helpers.block_graph import make_block_graph, make_split
from helpers.random_predictions import random_case

HOME = Path(__file__).parents[1]
TEXT = (HOME / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## (Add a \w+)\n(.*?)(?=^## )", TEXT, re.DOTALL | re.MULTILINE))
CODE = {
    title: re.search(r"^```python\n(.*?)^```$", body, re.DOTALL | re.MULTILINE)[1] for title, body in RECIPES.items()
}
WRITTEN = {"ace", "src/edgewise/models/appnp.py", "src/edgewise/calibration/histogram.py"}  # by who follows a recipe
WRITTEN |= {"tests/calibration/test_histogram.py", "from .models.appnp import APPNP as APPNP", "ew.APPNP", "appnp"}


def rows(title):
    """Each row of a recipe's table: its files, and the names that some of them have already."""
    found = []
    for files, words in re.findall(r"^\| (`.*?) \| (.*) \|$", RECIPES[title], re.MULTILINE):
        names = [name for name in re.findall(r"`([^`]+)`", words) if "/" not in name]
        found.append((re.findall(r"`([^`]+)`", files), names))
    return found


def files_of(title):
    return {file for files, _ in rows(title) for file in files}


def test_there_are_three_recipes():
    assert list(RECIPES) == ["Add a metric", "Add a model", "Add a calibrator"]
    assert all(len(rows(title)) >= 4 for title in RECIPES)


def test_every_file_exists_but_for_those_that_a_recipe_adds():
    paths = set(re.findall(r"`((?:src|tests|docs|scripts)/[\w./-]+)`", TEXT)) | set(re.findall(r"\]\(([^)]+)\)", TEXT))
    paths |= set(re.findall(r"`([\w-]+\.(?:md|toml|cff))`", TEXT))
    assert len(paths) > 20
    assert {path for path in paths if not (HOME / path).exists()} <= {path for path in WRITTEN if "/" in path}


@pytest.mark.parametrize(
    ("files", "name"),
    [(files, name) for title in RECIPES for files, names in rows(title) for name in names if name not in WRITTEN],
)
def test_every_name_is_in_one_of_its_files(files, name):
    there = [HOME / file for file in files if file not in WRITTEN]
    there += [other for file in files if file in WRITTEN for other in (HOME / file).parent.glob("*.py")]  # its like
    assert any(re.search(rf"\b{re.escape(name)}\b", path.read_text("utf-8")) for path in there)


# Where one that exists is named, a new one has to be named too. Left out are files that say something about it alone.
ALONE = {"joint_gcn.py", "seeds.py", "isotonic.py", "structured.py"}
ALONE |= {"study_predictors.py", "study_answer.py", "study_words.py"}  # the study has predictors of its own


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Add a metric", r"debiased_l2"),
        ("Add a model", r"jointgcn|JointGCN"),
        ("Add a calibrator", r"\bisotonic\b|IsotonicCalibration"),
    ],
)
def test_no_place_is_forgotten(title, words):
    sources = [path for path in (HOME / "src").rglob("*.*") if path.suffix in (".py", ".js", ".css", ".j2")]
    sources += [*(HOME / "docs" / "api").glob("*.md")]
    found = {str(path.relative_to(HOME)) for path in sources if re.search(words, path.read_text(encoding="utf-8"))}
    named = {path for path in found if Path(path).name not in ALONE and "/paper/" not in path}  # the paper's own rows
    assert named <= files_of(title)
    assert named


def test_every_make_target_exists():
    targets = re.search(r"^\.PHONY: (.*)$", (HOME / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    asked = {word for words in re.findall(r"\bmake ((?:[a-z]+ ?)+?)(?=`|  )", TEXT) for word in words.split()}
    assert {"install", "check", "test"} <= asked
    assert asked <= set(targets)


def test_the_command_for_one_test_finds_one():
    file, name = re.search(r"pytest (\S+) -k (\S+)", TEXT).groups()
    functions = [node.name for node in ast.parse((HOME / file).read_text("utf-8")).body if hasattr(node, "name")]
    assert sum(name in function for function in functions) == 1


def test_every_option_of_a_command_exists():
    group = get_command(app)
    lines = [shlex.split(line) for line in re.findall(r"`edgewise ([^`]+)`", TEXT)]
    assert {words[0] for words in lines} == {"evaluate", "reproduce"}
    for name, *words in lines:
        command = group.get_command(group.make_context("edgewise", [name, "--help"], resilient_parsing=True), name)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


@pytest.fixture
def made(request, monkeypatch):
    """Run a recipe's code as a module of its own."""
    module = ModuleType("contributed")
    monkeypatch.setitem(sys.modules, "contributed", module)
    exec(compile(CODE[request.param], "CONTRIBUTING.md", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("made", ["Add a metric"], indirect=True)
def test_the_metric_is_that_of_another_library(made):
    probs, y, edge_index, mask = random_case(1, num_nodes=300, num_edges=900)
    ev = ew.evaluate(probs, y, edge_index, mask=mask)
    theirs = ACE(bins=15).measure(probs[mask].numpy(), y[mask].numpy())
    assert made.average_error(ev.nodewise.reliability) == pytest.approx(theirs, abs=1e-12)
    empty = ew.evaluate(probs, y, edge_index, mask=torch.zeros_like(mask))
    assert str(made.average_error(empty.edgewise.reliability)) == "nan"


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("made", ["Add a model"], indirect=True)
def test_the_model_is_that_of_another_library_and_is_saved_outside_the_package(made, dense, tmp_path):
    data = make_block_graph(dense=dense)
    split = make_split(data)
    fitted = made.APPNP(hidden=8, steps=4, max_epochs=30).fit(data, split, seed=0)
    w = fitted.weights
    own = torch.relu(data.x @ w["weight_1"] + w["bias_1"]) @ w["weight_2"] + w["bias_2"]
    expected = TheirPropagation(K=4, alpha=0.1)(own, data.edge_index)
    torch.testing.assert_close(fitted.logits, expected, rtol=1e-4, atol=1e-4)
    assert fitted.history.phases == [("training", 30)] and fitted.history.val_loss[-1] < fitted.history.val_loss[0]
    assert ew.evaluate(fitted.posterior(), data.y, data.edge_index, mask=split.test).nodewise.accuracy > 0.6
    fitted.save(tmp_path / "appnp")
    again = ew.Fitted.load(tmp_path / "appnp")
    assert again.model == fitted.model and torch.equal(again.logits, fitted.logits)


@pytest.mark.parametrize("made", ["Add a calibrator"], indirect=True)
def test_the_calibrator_makes_confidence_the_share_that_was_right(made, tmp_path):
    generator = torch.Generator().manual_seed(0)
    logits = 4.0 * torch.randn(3000, 3, generator=generator, dtype=torch.float64)
    y = torch.multinomial((logits / 3).softmax(-1), 1, generator=generator).squeeze(1)  # far less sure than the logits
    data = SimpleNamespace(y=y, edge_index=torch.arange(3000).view(2, -1))
    nodes = torch.arange(3000)
    split = SimpleNamespace(val=(nodes >= 3) & (nodes < 1500))
    test = nodes >= 1500
    calibrated = made.HistogramBinning().fit(logits, data, split).posterior()
    before, after = (ew.evaluate(p, y, data.edge_index, mask=test) for p in (logits.softmax(-1), calibrated))
    assert after.nodewise.ece < 0.3 * before.nodewise.ece and after.nodewise.nll < before.nodewise.nll
    unseen = SimpleNamespace(y=torch.where(test, 0, y), edge_index=data.edge_index)
    again = made.HistogramBinning().fit(logits, unseen, split)
    assert torch.equal(again.posterior().node, calibrated.node)
    again.save(tmp_path / "histogram")
    assert torch.equal(ew.Calibrated.load(tmp_path / "histogram").apply(logits).node, calibrated.node)


FORMS = sorted((HOME / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.stem)
def test_a_form_for_issues_is_one_that_github_shows(path):
    """Without a name, a description and a body, or with an id twice, GitHub leaves a form out without a word."""
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form.keys() == {"name", "description", "labels", "body"}
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    ids = [part["id"] for part in asked]
    assert len(ids) == len(set(ids)) and all(re.fullmatch(r"[a-z_-]+", name) for name in ids)
    assert {part["type"] for part in asked} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert all(part["attributes"]["label"] for part in asked)
    assert all(part["attributes"]["options"] for part in asked if part["type"] in ("dropdown", "checkboxes"))
    versions = [part["attributes"]["description"] for part in asked if part["id"] == "versions"]
    assert versions == [] if path.stem == "addition" else "`edgewise --version`" in versions[0]


def test_there_are_forms_for_failures_numbers_and_additions():
    assert [path.stem for path in FORMS] == ["addition", "bug", "config", "wrong_number"]


def test_a_release_has_one_version():
    settings = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["dynamic"] == ["version"] and "version" not in settings["project"]
    source = settings["tool"]["hatch"]["version"]["path"]
    written = re.search(r'^__version__ = "(.+)"$', (HOME / source).read_text(encoding="utf-8"), re.MULTILINE)[1]
    cited = yaml.safe_load((HOME / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    newest = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (HOME / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert {written, cited, newest[1]} == {ew.__version__}
    first_step = re.search(r"^1\. Set the version in (.*?)(?=^2\. )", TEXT, re.DOTALL | re.MULTILINE)[1]
    assert {source, "CITATION.cff", "CHANGELOG.md"} <= set(re.findall(r"`([^`]+)`", first_step))
