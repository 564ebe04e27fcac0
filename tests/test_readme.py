"""What the README shows is what runs."""

import contextlib
import io
import re
import warnings
from pathlib import Path

import matplotlib as mpl
import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|text)\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("place", [k for k, (kind, _) in enumerate(BLOCKS) if kind == "python"])
def test_examples_run_and_print_what_is_shown(place):
    mpl.use("Agg")
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore", DeprecationWarning)  # torch_geometric 2.8 with torch 2.13
        exec(compile(BLOCKS[place][1], "README.md", "exec"), {})
    if place + 1 < len(BLOCKS) and BLOCKS[place + 1][0] == "text" and "published" not in BLOCKS[place + 1][1]:
        assert printed.getvalue() == BLOCKS[place + 1][1]


def test_the_tree_names_files_that_exist():
    tree = re.search(r"```\nsrc/edgewise/\n(.*?)tests/", README, re.DOTALL)[1]
    folder, top = [], Path(__file__).parents[1] / "src" / "edgewise"
    for line in tree.splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        folder = [*folder[: depth - 1], name]
        assert (top / "/".join(folder)).exists(), line
