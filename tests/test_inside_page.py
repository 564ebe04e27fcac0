"""The page about the inside names files, tests and layers that exist."""

import re
import tomllib
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
PAGE = (HOME / "docs" / "inside.md").read_text("utf-8")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:src|tests|docs)/[\w/.]+)", PAGE))))
def test_files_exist(path):
    assert (HOME / path).exists()


@pytest.mark.parametrize("test", sorted(set(re.findall(r"`(tests/\S+::\w+)`", PAGE))))
def test_tests_exist(test):
    path, name = test.split("::")
    assert f"def {name}(" in (HOME / path).read_text("utf-8")


def test_every_folder_has_a_section():
    folders = {path.parent.name for path in (HOME / "src" / "edgewise").glob("*/__init__.py")}
    sections = re.findall(r"^## (\w+)/(?: and (\w+)/)?$", PAGE, re.MULTILINE)
    assert {name for names in sections for name in names if name} == folders


def test_the_picture_has_the_layers_that_are_checked():
    settings = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))
    contract = next(c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    layers = [layer.replace("edgewise.", "") for layer in contract["layers"]]
    words = re.findall(r"<text[^>]*>([^<]*)</text>", (HOME / "docs" / "pictures" / "flow.svg").read_text("utf-8"))
    assert words[-len(layers) :] == layers
