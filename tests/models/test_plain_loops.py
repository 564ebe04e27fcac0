"""Training losses against the plain PyG loops of the benchmark."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from edgewise.models.task import prepare_task
from helpers.block_graph import make_block_graph, make_split

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("model", ["gcn", "gat", "gmnn", "epfgnn"])
def test_losses_of_50_epochs_equal_pyg_loops(model, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = spec_from_file_location("benchmark_of_models", BENCHMARKS / "models.py")
    benchmark = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, benchmark)
    spec.loader.exec_module(benchmark)
    data = make_block_graph()
    epochs = 100 if model in ("gmnn", "epfgnn") else 50  # their phases have a part of these epochs
    cell = benchmark.cells(data, make_split(data), epochs=epochs, rate=0.0)[model]
    task = prepare_task(data, make_split(data), directed="refuse", num_classes=None, device="cpu")
    ours, plain = cell.ours(task), cell.plain()
    assert len(ours) >= 49
    assert ours == pytest.approx(plain, abs=1e-4)
