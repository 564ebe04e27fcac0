"""Every public name is on one page of the API, and the page of commands shows their help."""

import inspect
import re
import sys
from collections import Counter
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import edgewise as ew

HOME = Path(__file__).parents[1]
PAGES = sorted((HOME / "docs" / "api").glob("*.md"))
IDENTIFIERS = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)]


def found(identifier: str) -> object:
    module, _, name = identifier.rpartition(".")
    return getattr(import_module(module), name)


def test_each_public_name_is_on_exactly_one_page():
    shown = Counter(identifier.rpartition(".")[2] for identifier in IDENTIFIERS)
    assert {name: shown[name] for name in ew.__all__ if name != "__version__" and shown[name] != 1} == {}
    assert [name for name, times in shown.items() if times > 1] == []


def returned_by(shown: object) -> set[str]:
    """Classes of ours that a function returns, or the public methods of a class."""
    methods = [part for name, part in vars(shown).items() if name[0] != "_"] if isinstance(shown, type) else [shown]
    answers = [(part, part.__annotations__.get("return")) for part in methods if inspect.isfunction(part)]
    answers = [
        getattr(sys.modules[part.__module__], name, None) if isinstance(name, str) else name for part, name in answers
    ]
    return {
        answer.__name__ for answer in answers if isinstance(answer, type) and answer.__module__.startswith("edgewise.")
    }


def test_what_a_shown_function_returns_is_on_a_page_too():
    returned = set().union(*(returned_by(found(identifier)) for identifier in IDENTIFIERS))
    assert {"Evaluation", "Posterior", "Calibrated"} <= returned
    assert returned - {identifier.rpartition(".")[2] for identifier in IDENTIFIERS} == set()


def test_what_a_recipe_of_contributing_takes_from_a_package_is_on_a_page():
    text = (HOME / "CONTRIBUTING.md").read_text("utf-8")
    taken = {
        name for names in re.findall(r"^from edgewise\.\w+ import (.+)$", text, re.M) for name in names.split(", ")
    }
    assert "NodeCalibrator" in taken
    assert (
        taken
        - {"Weights", "check_number", "check_whole_number"}
        - {identifier.rpartition(".")[2] for identifier in IDENTIFIERS}
        == set()
    )


@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_what_a_page_shows_is_what_the_name_stands_for(identifier):
    name = identifier.rpartition(".")[2]
    shown = found(identifier)
    assert shown is getattr(ew, name, shown)
    assert not inspect.ismodule(shown), (
        "A file has the name of what it defines: name both, as in metrics.evaluate.evaluate."
    )


@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_each_parameter_is_described_by_itself(identifier):
    """Of "a, b" the page would show the type and the default of a for both."""
    shown = found(identifier)
    for part in (shown, *vars(shown).values()) if isinstance(shown, type) else (shown,):
        assert re.findall(r"^ *\w+(?:, \w+)+$", getattr(part, "__doc__", None) or "", re.MULTILINE) == []


def test_commands_are_shown_as_their_help_says():
    spec = spec_from_file_location("show_commands", HOME / "scripts" / "show_commands.py")
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text("utf-8") == script.page(), "Run python scripts/show_commands.py."
