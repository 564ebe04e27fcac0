"""The page about speed has the tables that the benchmarks write."""

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

HOME = Path(__file__).parents[1]
BENCHMARKS, PAGE = HOME / "benchmarks", HOME / "docs" / "speed.md"
NAMES = ("metrics", "inference", "models", "sweep")


@pytest.fixture
def benchmark_of(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str) -> ModuleType:
        spec = spec_from_file_location(f"benchmark_of_{name}", BENCHMARKS / f"{name}.py")
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load


def section(name: str) -> str:
    return PAGE.read_text("utf-8").split(f"<!-- {name} -->")[1].split(f"<!-- end of {name} -->")[0]


def frame(text: str) -> list[str]:
    """Give the words of tables: headings, and the name of each row."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = [line for line, below in zip(lines, [*lines[1:], ""], strict=True) if below.startswith("| ---")]
    return [*heads, *(line.split("|")[1].strip() for line in lines)]


def test_tables_of_scores_are_those_of_the_benchmark(benchmark_of):
    benchmark = benchmark_of("metrics")
    cost = benchmark.Cost(1.0, 1 << 30)
    most = benchmark.most_edges(100_000_000, (cost, cost), (cost, cost))
    assert frame(section("metrics")) == frame(f"{benchmark.many_edges((cost,) * 3, (cost,) * 3)}\n{most}")


def test_the_table_of_sweeps_is_that_of_the_benchmark(benchmark_of, monkeypatch):
    benchmark = benchmark_of("inference")
    monkeypatch.setattr(benchmark, "power_law", lambda *sizes: None)
    found = [benchmark.Found(benchmark.make_case(letter), {}) for letter in "abc"]
    assert frame(section("inference")) == frame(benchmark.as_table(found))


def test_rows_of_models_are_those_that_are_trained(benchmark_of):
    head = f"| {benchmark_of('models').HEAD} | Cora | Citeseer | Pubmed |"
    rows = re.findall(
        r"^\| (GCN|GAT|GMNN|EPFGNN) (?:\| [\d.,]+, [\d.,]+, \*\*[\d.]+ ×\*\* ){3}\|$", section("models"), re.M
    )
    assert frame(section("models"))[0] == head
    assert rows == ["GCN", "GAT", "GMNN", "EPFGNN"]


def cells(name: str, row: str) -> list[list[float]]:
    """Give the numbers in each cell of the row whose name begins so."""
    (line,) = (line for line in section(name).splitlines() if line.startswith(f"| {row}"))
    found = (re.findall(r"\d[\d,]*(?:\.\d+)?", cell.replace(", ", " ")) for cell in line.split("|")[2:-1])
    return [[float(number.replace(",", "")) for number in numbers] for numbers in found]


def test_the_readme_says_what_the_tables_say():
    _, (seconds,), (mib,) = cells("metrics", "`ew.evaluate`")
    _, (ratio,), (mib_of_tensors,) = cells("metrics", "the definitions")
    sweeps = zip(*(cells("inference", row) for row in ("one coupling", "a coupling scaled", "the same")), strict=True)
    # Of the largest graph only the shared coupling was measured with tensors.
    of_sweeps = [
        slow / fast for ours, other, tensors in sweeps for slow, fast in zip(tensors, ours + other, strict=False)
    ]
    of_epochs = [cell[2] for model in ("GCN", "GAT", "GMNN", "EPFGNN") for cell in cells("models", model)]
    words = " ".join((HOME / "README.md").read_text("utf-8").split())
    assert (
        f"All 16 scores of 10⁶ edges with 40 classes take {seconds:.2f} s and {mib:.0f} MiB, where the definitions "
        f"written with (edges, classes, classes) tensors take {ratio:.0f} times as long and "
        f"{mib_of_tensors / 1024:.0f} GiB; one sweep of belief propagation is {min(of_sweeps):.0f} to "
        f"{max(of_sweeps):.0f} times as fast as with tensors, and an epoch of training {min(of_epochs):.0f} to "
        f"{max(of_epochs):.0f} times as fast as a plain loop with PyG"
    ) in words


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_changes_its_own_part_of_the_page(name, benchmark_of, tmp_path):
    page = tmp_path / "speed.md"
    page.write_text(PAGE.read_text("utf-8"), "utf-8")
    benchmark_of("speed_page").put(page, name, "| new |")
    assert page.read_text("utf-8") == PAGE.read_text("utf-8").replace(section(name), "\n\n| new |\n\n")


def test_a_page_without_marks_is_refused(benchmark_of, tmp_path):
    page = tmp_path / "speed.md"
    page.write_text("# How fast it is\n", "utf-8")
    with pytest.raises(SystemExit, match="Expected the marks"):
        benchmark_of("speed_page").put(page, "metrics", "")
    assert page.read_text("utf-8") == "# How fast it is\n"
