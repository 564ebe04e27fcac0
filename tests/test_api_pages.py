"""Every public name is on one page of the API, and every command on the page of commands."""

import re
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import edgewise as ew
from edgewise.cli.app import ORDER

PAGES = sorted((Path(__file__).parents[1] / "docs" / "api").glob("*.md"))
IDENTIFIERS = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)]


def found(identifier: str) -> object:
    module, _, name = identifier.rpartition(".")
    return getattr(import_module(module), name)


def test_each_public_name_is_on_exactly_one_page():
    shown = Counter(identifier.rpartition(".")[2] for identifier in IDENTIFIERS)
    assert {name: shown[name] for name in ew.__all__ if name != "__version__" and shown[name] != 1} == {}
    assert [name for name, times in shown.items() if times > 1] == []


@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_what_a_page_shows_is_what_the_name_stands_for(identifier):
    name = identifier.rpartition(".")[2]
    assert found(identifier) is getattr(ew, name, found(identifier))
    home = ew._HOMES.get(name) if identifier == f"edgewise.{name}" else None
    # Where a file has the name of what it defines, as metrics/evaluate.py, the page would show the file.
    assert f"{home}.{name}" not in sys.modules, f"Write {home}.{name}.{name}."


def test_each_command_is_shown_with_its_help():
    page = (PAGES[0].parent / "commands.md").read_text("utf-8")
    assert re.findall(r"^edgewise (\w+) --help$", page, re.MULTILINE) == list(ORDER)
