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


def resolve(identifier: str) -> object:
    module, _, name = identifier.rpartition(".")
    return getattr(import_module(module), name)


def test_each_public_name_is_on_exactly_one_page():
    counts = Counter(identifier.rpartition(".")[2] for identifier in IDENTIFIERS)
    assert {name: counts[name] for name in ew.__all__ if name != "__version__" and counts[name] != 1} == {}
    assert [name for name, count in counts.items() if count > 1] == []


def returned_classes(shown: object) -> set[str]:
    """Return the names of our classes that a function returns, or the public methods of a class."""
    methods = [part for name, part in vars(shown).items() if name[0] != "_"] if isinstance(shown, type) else [shown]
    annotations = [(part, part.__annotations__.get("return")) for part in methods if inspect.isfunction(part)]
    annotations = [
        getattr(sys.modules[part.__module__], name, None) if isinstance(name, str) else name
        for part, name in annotations
    ]
    return {
        annotation.__name__
        for annotation in annotations
        if isinstance(annotation, type) and annotation.__module__.startswith("edgewise.")
    }


def test_classes_that_shown_functions_return_are_shown():
    returned = set().union(*(returned_classes(resolve(identifier)) for identifier in IDENTIFIERS))
    assert {"Evaluation", "Posterior", "Calibrated"} <= returned
    assert returned - {identifier.rpartition(".")[2] for identifier in IDENTIFIERS} == set()


def test_names_imported_in_contributing_are_shown():
    text = (HOME / "CONTRIBUTING.md").read_text("utf-8")
    imported = {
        name for names in re.findall(r"^from edgewise\.\w+ import (.+)$", text, re.M) for name in names.split(", ")
    }
    assert "NodeCalibrator" in imported
    assert (
        imported
        - {"Weights", "check_number", "check_whole_number"}
        - {identifier.rpartition(".")[2] for identifier in IDENTIFIERS}
        == set()
    )


@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_shown_object_is_the_public_one(identifier):
    name = identifier.rpartition(".")[2]
    shown = resolve(identifier)
    assert shown is getattr(ew, name, shown)
    assert not inspect.ismodule(shown), (
        "This is a module with the name of a function. Write both, as in metrics.evaluate.evaluate."
    )


@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_each_parameter_has_its_own_description(identifier):
    """For "a, b", the page would show the type and the default of a for both."""
    shown = resolve(identifier)
    for part in (shown, *vars(shown).values()) if isinstance(shown, type) else (shown,):
        assert re.findall(r"^ *\w+(?:, \w+)+$", getattr(part, "__doc__", None) or "", re.MULTILINE) == []


def test_page_of_commands_is_up_to_date():
    spec = spec_from_file_location("show_commands", HOME / "scripts" / "show_commands.py")
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text("utf-8") == script.page(), "Run python scripts/show_commands.py."
