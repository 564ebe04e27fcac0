"""docs/inside.md lists every source file, and the files and layers it names exist."""

import re
import tomllib
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
PAGE = (HOME / "docs" / "inside.md").read_text("utf-8")
SOURCE = HOME / "src" / "edgewise"


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:src|tests|docs)/[\w/.]+)", PAGE))))
def test_named_files_exist(path):
    assert (HOME / path).exists()


def test_every_source_file_has_a_row():
    sections = dict(re.findall(r"^## (\w+)(?:/|\.py)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
    listed = {
        f"{folder}/{name}" for folder, text in sections.items() for name in re.findall(r"^\| `(\w+\.py)`", text, re.M)
    }
    existing = {str(path.relative_to(SOURCE)) for path in SOURCE.glob("*/*.py") if path.name != "__init__.py"}
    assert listed == existing


def test_file_names_are_unique_except_those_of_commands():
    names = [path.name for path in SOURCE.rglob("*.py") if path.parent.name != "cli" and path.name != "__init__.py"]
    assert sorted(names) == sorted(set(names))


def test_figure_shows_the_layers_of_the_import_contract():
    settings = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))
    contract = next(c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    layers = [layer.replace("edgewise.", "") for layer in contract["layers"]]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (HOME / "docs" / "pictures" / "flow.svg").read_text("utf-8"))
    assert texts[-len(layers) :] == layers
