"""CONTRIBUTING.md: its code works, its files exist, and a new model or calibrator is named in few files."""

import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch_geometric.nn import APPNP as PropagationOfPyG
from typer.main import get_command

import edgewise as ew
from edgewise.cli import app
from helpers.block_graph import make_block_graph, make_split
from helpers.random_predictions import random_case

HOME = Path(__file__).parents[1]
TEXT = (HOME / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE))
METRIC, MODEL, CALIBRATOR = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
NEW_FILES = {"src/edgewise/models/appnp.py", "src/edgewise/calibration/histogram.py"}
NEW_FILES |= {"tests/calibration/test_histogram.py"}
FORMS = sorted((HOME / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_named_files_exist():
    paths = set(re.findall(r"`((?:src|tests|docs|scripts)/[\w./-]+)`", TEXT)) | set(re.findall(r"\]\(([^)]+)\)", TEXT))
    paths |= set(re.findall(r"`([\w-]+\.(?:md|toml|cff))`", TEXT))
    assert len(paths) > 20
    assert {path for path in paths if not (HOME / path).exists()} == NEW_FILES


def test_make_targets_exist():
    phony = re.search(r"^\.PHONY: (.*)$", (HOME / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    named = {name for names in re.findall(r"(?:^|`)make ([a-z -]+?)(?:`|  )", TEXT, re.M) for name in names.split()}
    assert {"install", "check", "test", "test-slow"} <= named
    assert named <= set(phony)


def test_options_of_commands_exist():
    group = get_command(app)
    commands = [shlex.split(line) for line in re.findall(r"`edgewise ([^`]+)`", TEXT)]
    assert {name for name, *_ in commands} == {"evaluate", "reproduce"}
    for name, *args in commands:
        known = {option for parameter in group.get_command(None, name).params for option in parameter.opts}
        assert {arg for arg in args if arg.startswith("--")} <= known


@pytest.mark.parametrize(
    ("section", "pattern", "files"),
    [
        ("Add a metric", "debiased_l2", {"src/edgewise/metrics/scores.py"}),
        (
            "Add a model",
            "jointgcn|JointGCN",
            {"src/edgewise/__init__.pyi", "docs/api/models.md", "docs/api/commands.md"},
        ),
        (
            "Add a calibrator",
            r"\bisotonic,|IsotonicCalibration",
            {"src/edgewise/__init__.pyi", "docs/api/calibrators.md", "docs/api/commands.md"},
        ),
    ],
)
def test_an_addition_is_named_only_in_the_files_of_its_table(section, pattern, files):
    own = {"joint_gcn.py", "isotonic.py", "seeds.py"}  # their own files, and a docstring
    sources = [path for path in (HOME / "src").rglob("*.*") if path.suffix in (".py", ".pyi", ".js", ".css", ".j2")]
    sources += [*(HOME / "docs" / "api").glob("*.md")]
    sources = [path for path in sources if path.name not in own and path.parent.name != "paper"]
    naming = {str(path.relative_to(HOME)) for path in sources if re.search(pattern, path.read_text(encoding="utf-8"))}
    assert naming == files
    first_column = " ".join(re.findall(r"^\| (.*?) \|", SECTIONS[section], re.MULTILINE))
    assert files <= set(re.findall(r"`([^`]+)`", first_column))


@pytest.fixture
def load(monkeypatch):
    """Return a function that runs code as a module of its own."""

    def load_module(code: str) -> ModuleType:
        module = ModuleType("contributed")
        monkeypatch.setitem(sys.modules, "contributed", module)
        exec(compile(code, "CONTRIBUTING.md", "exec"), module.__dict__)
        return module

    return load_module


def test_metric_is_the_mean_gap_of_nonempty_bins(load):
    average_error = load(METRIC).average_error
    probs, y, edge_index, mask = random_case(1, num_nodes=300, num_edges=900)
    confidence, predicted = probs[mask].double().max(1)
    gaps = []
    for k in range(15):
        inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        if inside.any():
            gaps.append(((predicted == y[mask])[inside].double().mean() - confidence[inside].mean()).abs())
    ev = ew.evaluate(probs, y, edge_index, mask=mask)
    assert average_error(ev.nodewise.reliability) == pytest.approx(float(torch.stack(gaps).mean()), abs=1e-12)
    with pytest.warns(ew.SmallSampleWarning, match="The mask selects none"):
        empty = ew.evaluate(probs, y, edge_index, mask=torch.zeros_like(mask))
    assert str(average_error(empty.edgewise.reliability)) == "nan"


@pytest.mark.slow
def test_metric_equals_that_of_netcal(load):
    from netcal.metrics import ACE

    probs, y, edge_index, mask = random_case(1, num_nodes=300, num_edges=900)
    ev = ew.evaluate(probs, y, edge_index, mask=mask)
    expected = ACE(bins=15).measure(probs[mask].numpy(), y[mask].numpy())
    assert load(METRIC).average_error(ev.nodewise.reliability) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dense", [False, True])
def test_model_equals_that_of_pyg_and_is_saved_outside_the_package(load, dense, tmp_path):
    data = make_block_graph(dense=dense)
    split = make_split(data)
    fitted = load(MODEL).APPNP(hidden=8, steps=4, max_epochs=30).fit(data, split, seed=0)
    w = fitted.weights
    own = torch.relu(data.x @ w["weight_1"] + w["bias_1"]) @ w["weight_2"] + w["bias_2"]
    expected = PropagationOfPyG(K=4, alpha=0.1)(own, data.edge_index)
    torch.testing.assert_close(fitted.logits, expected, rtol=1e-4, atol=1e-4)
    assert fitted.history.phases == [("training", 30)] and fitted.history.val_loss[-1] < fitted.history.val_loss[0]
    assert ew.evaluate(fitted.posterior(), data.y, data.edge_index, mask=split.test).nodewise.accuracy > 0.6
    fitted.save(tmp_path / "appnp")
    loaded = ew.Fitted.load(tmp_path / "appnp")
    assert loaded.model == fitted.model and torch.equal(loaded.logits, fitted.logits)


def test_calibrator_improves_scores_ignores_test_labels_and_is_saved(load, tmp_path):
    calibrator = load(CALIBRATOR).HistogramBinning()
    generator = torch.Generator().manual_seed(0)
    logits = 4.0 * torch.randn(3000, 3, generator=generator, dtype=torch.float64)
    y = torch.multinomial((logits / 3).softmax(-1), 1, generator=generator).squeeze(1)  # logits are overconfident
    data = SimpleNamespace(y=y, edge_index=torch.arange(3000).view(2, -1))
    nodes = torch.arange(3000)
    split = SimpleNamespace(val=(nodes >= 3) & (nodes < 1500))
    test = nodes >= 1500
    calibrated = calibrator.fit(logits, data, split).posterior()
    before, after = (ew.evaluate(p, y, data.edge_index, mask=test) for p in (logits.softmax(-1), calibrated))
    assert after.nodewise.ece < 0.3 * before.nodewise.ece and after.nodewise.nll < before.nodewise.nll
    other_test_labels = SimpleNamespace(y=torch.where(test, 0, y), edge_index=data.edge_index)
    refitted = calibrator.fit(logits, other_test_labels, split)
    assert torch.equal(refitted.posterior().node, calibrated.node)
    refitted.save(tmp_path / "histogram")
    assert torch.equal(ew.Calibrated.load(tmp_path / "histogram").apply(logits).node, calibrated.node)


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.stem)
def test_issue_form_is_valid(path):
    """GitHub silently ignores a form without a name, a description or a body, and a form with duplicate ids."""
    import yaml

    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form.keys() == {"name", "description", "labels", "body"}
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    ids = [part["id"] for part in fields]
    assert len(ids) == len(set(ids)) and all(re.fullmatch(r"[a-z_-]+", name) for name in ids)
    assert {part["type"] for part in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert all(part["attributes"]["label"] for part in fields)
    assert all(part["attributes"]["options"] for part in fields if part["type"] in ("dropdown", "checkboxes"))


def test_a_release_has_one_version():
    settings = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["dynamic"] == ["version"] and "version" not in settings["project"]
    source = settings["tool"]["hatch"]["version"]["path"]
    in_source = re.search(r'^__version__ = "(.+)"$', (HOME / source).read_text(encoding="utf-8"), re.MULTILINE)[1]
    cited = re.search(r'^version: "?([^"\n]+)"?$', (HOME / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)[1]
    newest = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (HOME / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert {in_source, cited, newest[1]} == {ew.__version__}
