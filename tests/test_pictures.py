"""Figures of the documentation are those that scripts/draw_pictures.py draws."""

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

HOME = Path(__file__).parents[1]
SLOW = {"gcn.png", "before_and_after.png", "differences.png", "noise.png"}  # three train a model, one draws often


@pytest.fixture(scope="module")
def script():
    spec = spec_from_file_location("draw_pictures", HOME / "scripts" / "draw_pictures.py")
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def assert_draws_the_stored_figures(names, script, folder, monkeypatch):
    monkeypatch.setattr(script, "DRAWINGS", {name: script.DRAWINGS[name] for name in names})
    monkeypatch.setattr(sys, "argv", ["draw_pictures.py", str(folder)])
    script.main()
    plt.close("all")
    assert {file.name for file in folder.iterdir()} == set(names)
    for file in folder.iterdir():
        drawn, stored = plt.imread(file), plt.imread(script.PICTURES / file.name)
        assert drawn.shape == pytest.approx(stored.shape, rel=0.02), file.name  # fonts may differ
        assert drawn[..., :3].std() == pytest.approx(stored[..., :3].std(), rel=0.1), file.name


def test_quick_figures_are_the_stored_ones(script, tmp_path, monkeypatch):
    assert set(script.DRAWINGS) == {file.name for file in script.PICTURES.glob("*.png")}
    assert_draws_the_stored_figures(script.DRAWINGS.keys() - SLOW, script, tmp_path, monkeypatch)


@pytest.mark.slow
def test_slow_figures_are_the_stored_ones(script, tmp_path, monkeypatch):
    assert_draws_the_stored_figures(SLOW, script, tmp_path, monkeypatch)


def test_graph_of_the_script_is_that_of_the_page(script):
    page = (HOME / "docs" / "views.md").read_text("utf-8")
    code = re.search(r"^a, b, c, d, e, f, g = .*?^test = .*?$", page, re.MULTILINE | re.DOTALL)[0]
    arrays = {"np": np}
    exec(code, arrays)
    nodes = script.NODES.values()
    assert list(script.NODES) == list("abcdefg")
    assert [node.p_b for node in nodes] == arrays["p_b"].tolist()
    assert ["AB".index(node.label) for node in nodes] == arrays["labels"].tolist()
    assert [node.is_scored for node in nodes] == arrays["test"].tolist()
    assert [[arrays[start], arrays[end]] for start, end in script.EDGES] == arrays["edges"].T.tolist()
