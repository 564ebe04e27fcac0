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
def test_examples_run_and_print_what_is_shown(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore", DeprecationWarning)  # torch_geometric 2.8 with torch 2.13
        exec(compile(BLOCKS[place][1], "README.md", "exec"), {})
    if place + 1 < len(BLOCKS) and BLOCKS[place + 1][0] == "text" and "published" not in BLOCKS[place + 1][1]:
        trained = "fit(" in BLOCKS[place][1] or "optimiser" in BLOCKS[place][1]
        _assert_same(printed.getvalue(), BLOCKS[place + 1][1], tolerance=0.05 if trained else 0.0)


def _assert_same(printed: str, shown: str, tolerance: float) -> None:
    """Compare word by word; numbers that come from training may differ a little on another kind of processor."""
    number = re.compile(r"\d+\.\d+")
    assert number.sub("#", printed) == number.sub("#", shown)
    numbers = [[float(part) for part in number.findall(text)] for text in (printed, shown)]
    assert numbers[0] == pytest.approx(numbers[1], rel=tolerance, abs=tolerance)


def test_the_tree_names_files_that_exist():
    tree = re.search(r"```\nsrc/edgewise/\n(.*?)tests/", README, re.DOTALL)[1]
    folder, top = [], Path(__file__).parents[1] / "src" / "edgewise"
    for line in tree.splitlines():
        depth, names = (
            (len(line) - len(line.lstrip())) // 2,
            re.findall(r"[\w*]+(?:\.py|/)", line.strip().split("   ")[0]),
        )
        folder = [*folder[: depth - 1], names[0]]
        assert all(list(top.glob("/".join([*folder[:-1], part]))) for part in names), line
