"""The script of the pictures draws them, and its graph of seven nodes is that of the page."""

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

HOME = Path(__file__).parents[1]
SLOW = {"gcn.png", "before_and_after.png", "noise.png"}  # two train, one scores 1,600 draws: 20 seconds and more


@pytest.fixture(scope="module")
def script():
    spec = spec_from_file_location("draw_pictures", HOME / "scripts" / "draw_pictures.py")
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_pictures_that_are_quick_are_drawn_as_they_are_kept(script, tmp_path, monkeypatch):
    assert set(script.DRAWINGS) == {file.name for file in script.PICTURES.glob("*.png")}
    drawings = {name: draw for name, draw in script.DRAWINGS.items() if name not in SLOW}
    monkeypatch.setattr(script, "DRAWINGS", drawings)
    monkeypatch.setattr(sys, "argv", ["draw_pictures.py", str(tmp_path)])
    script.main()
    plt.close("all")
    assert {file.name for file in tmp_path.iterdir()} == set(drawings)
    for file in tmp_path.iterdir():
        drawn, kept = plt.imread(file), plt.imread(script.PICTURES / file.name)
        assert drawn.shape == pytest.approx(kept.shape, rel=0.02), file.name  # fonts may differ
        assert drawn[..., :3].std() == pytest.approx(kept[..., :3].std(), rel=0.1), file.name


def test_the_graph_of_seven_nodes_is_that_of_the_page(script):
    page = (HOME / "docs" / "views.md").read_text("utf-8")
    arrays = re.search(r"^a, b, c, d, e, f, g = .*?^test = .*?$", page, re.MULTILINE | re.DOTALL)[0]
    there = {"np": np}
    exec(arrays, there)
    nodes = script.NODES.values()
    assert list(script.NODES) == list("abcdefg")
    assert [node.p_b for node in nodes] == there["p_b"].tolist()
    assert ["AB".index(node.label) for node in nodes] == there["labels"].tolist()
    assert [node.is_scored for node in nodes] == there["test"].tolist()
    assert [[there[start], there[end]] for start, end in script.EDGES] == there["edges"].T.tolist()
