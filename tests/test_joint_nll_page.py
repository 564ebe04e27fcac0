"""scripts/compare_joint_nll.py, which makes the tables of node sets in docs/how-sure.md."""

from pathlib import Path

import pytest
import torch

import edgewise as ew
from helpers.scripts import load_script

HOME = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    with load_script("compare_joint_nll") as module:
        yield module


def test_tables_have_a_row_per_model_and_a_column_per_size(script):
    y, path = torch.zeros(20, dtype=torch.long), torch.stack([torch.arange(19), torch.arange(1, 20)])
    result = ew.joint_nll(torch.full((20, 2), 0.5), y, path, sizes=script.SIZES, num_sets=10)
    lines = script.table({"cora": {"GCN": result}}, script.nll_cell).splitlines()
    assert lines[2] == "| Cora | GCN | 0.693 | 0.693 | 0.693 | 0.693 | 0.693 |"
    assert script.table({"cora": {"GCN": result}}, script.gain_cell).endswith("| Cora | GCN | 0 | 0 | 0 | 0 | 0 |")


@pytest.mark.slow
def test_cora_shows_what_the_page_says(script):
    """The numbers differ a little between processors."""
    page = (HOME / "docs" / "how-sure.md").read_text("utf-8")
    for model, result in script.compare("cora").items():
        row = next(line for line in page.splitlines() if line.startswith(f"| Cora | {model} |"))
        cells = [float(cell) for cell in row.strip("| ").split(" | ")[2:]]
        assert [result[size].nll_per_node for size in script.SIZES] == pytest.approx(cells, abs=0.03)
