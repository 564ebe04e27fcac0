"""Tables of docs/speed.md: their headings and rows are those of the benchmarks, their numbers those of the README."""

import re
from pathlib import Path

import pytest

from helpers.page_numbers import has_numbers

HOME = Path(__file__).parents[1]
BENCHMARKS, PAGE = HOME / "benchmarks", HOME / "docs" / "speed.md"
SECTIONS = (
    "metrics",
    "inference",
    "calibration",
    "conformal",
    "scale",
    "models",
    "kernels",
    "limits",
    "growth",
    "sweep",
    "report",
)
MODELS = ("GCN", "GAT", "GMNN", "EPFGNN")


def section(name: str) -> str:
    return PAGE.read_text("utf-8").split(f"<!-- {name} -->")[1].split(f"<!-- end of {name} -->")[0]


def labels(text: str) -> list[str]:
    """Return the heading lines of all tables, and the label of each row."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = [line for line, below in zip(lines, [*lines[1:], ""], strict=True) if below.startswith("| ---")]
    return [*heads, *(line.split("|")[1].strip() for line in lines)]


def cells(name: str, row: str) -> list[list[float]]:
    """Return the numbers in each cell of the row whose label starts with `row`."""
    (line,) = (line for line in section(name).splitlines() if line.startswith(f"| {row}"))
    in_cells = (re.findall(r"\d[\d,]*(?:\.\d+)?", cell.replace(", ", " ")) for cell in line.split("|")[2:-1])
    return [[float(number.replace(",", "")) for number in numbers] for numbers in in_cells]


def test_labels_of_the_evaluation_tables_are_those_of_the_benchmark(load_benchmark):
    benchmark = load_benchmark("metrics")
    cost = benchmark.Cost(1.0, 1 << 30)
    tables = (
        benchmark.table_million_edges((cost,) * 3, (cost,) * 3),
        benchmark.table_same_label((cost,) * 4, (cost,) * 4),
        benchmark.table_groups((cost,) * 3, (cost,) * 3),
        benchmark.table_decomposition(*(cost,) * 4),
        benchmark.table_first_calls(3.0, 2.0, 1.0),
        benchmark.table_large_graph(100_000_000, (cost, cost), (cost, cost)),
    )
    assert labels(section("metrics")) == labels("\n".join(tables))


def test_labels_of_the_inference_table_are_those_of_the_benchmark(load_benchmark, monkeypatch):
    benchmark = load_benchmark("inference")
    monkeypatch.setattr(benchmark, "power_law", lambda *sizes: None)
    results = [benchmark.CaseResult(benchmark.make_case(letter), {}, {}) for letter in "abc"]
    assert labels(section("inference")) == labels(benchmark.as_table(results))


def test_labels_of_the_calibration_tables_are_those_of_the_benchmark(load_benchmark):
    benchmark = load_benchmark("calibration")
    rows = [(size, 1.0, 1.0, 1.0) for size in benchmark.SIZES]
    tables = benchmark.fits_table(rows), benchmark.messages_table(benchmark.NUM_JOINTS, 1.0, 1.0)
    assert labels(section("calibration")) == labels("\n".join(tables))
    ratios = []
    for size in benchmark.SIZES:
        (temperature,), *fits = cells("calibration", str(size))[-5:]
        for (seconds,), (ratio,) in (fits[:2], fits[2:]):
            assert seconds / temperature == pytest.approx(ratio, rel=0.2)
        ratios.append([fits[3][0], fits[1][0]])
    limits = [f"{choose(column):.0f}" for column in zip(*ratios, strict=True) for choose in (min, max)]
    (small,), (large,) = (cells("calibration", str(size))[-2] for size in (benchmark.SIZES[0], benchmark.SIZES[-1]))
    assert has_numbers(PAGE, *limits, f"{large / small:.0f}", near="**Limitations.** A fit takes")
    assert has_numbers(HOME / "docs" / "calibration.md", *limits, near="**The aim for the time is missed**")


def test_labels_of_the_conformal_table_are_those_of_the_benchmark(load_benchmark):
    benchmark = load_benchmark("conformal")
    costs = [benchmark.Cost(1.0, 1 << 20)] * len(benchmark.ROWS)
    assert labels(section("conformal")) == labels(benchmark.as_table(costs, costs))
    assert all(ratio <= 3 for row in benchmark.ROWS for _, ratio in cells("conformal", f"{row} |")[:2])


def test_labels_of_the_scale_tables_are_those_of_the_benchmark(load_benchmark):
    benchmark = load_benchmark("scale")
    cost, text = benchmark.Result(1.0, 1.0, 1 << 30), section("scale")
    tables = (
        benchmark.integer_table(cost, cost, cost, 1),
        benchmark.text_table(cost, cost, 1),
        benchmark.engines_table([cost] * len(benchmark.ENGINES)),
        benchmark.ray_table(1.0, 1.0),
        benchmark.rates_table(1.0, 1.0, 1.0),
    )
    assert labels(text) == labels("\n".join(tables))
    assert f"{benchmark.FULL.rows:,} rows" in text


def test_scale_tables_have_the_ratios_of_their_rows(load_benchmark):
    (reads, memory, total, *_), (join, *_) = load_benchmark("scale").ROWS_INTEGER, load_benchmark("scale").ROWS_TEXT
    parts = [cells("scale", f"{row} |")[:2] for row in (reads, memory, total)]
    for (one,), (other,), (both,) in zip(*parts, strict=True):
        assert one + other == pytest.approx(both, abs=0.15)
    tables = [line for line in section("scale").splitlines() if line.startswith("| `ew.evaluate_tables`")]
    ratios = [line for line in section("scale").splitlines() if line.startswith("| relative to the")]
    for base, ours, ratio in zip((total, join), tables, ratios, strict=True):
        ((base_seconds,), (base_cpu,), *_), (seconds, cpu, peak), (relative, relative_cpu, limit) = (
            cells("scale", f"{base} |"),
            numbers(ours),
            numbers(ratio),
        )
        assert seconds / base_seconds == pytest.approx(relative, abs=0.01)
        assert cpu / base_cpu == pytest.approx(relative_cpu, abs=0.01)
        assert peak <= limit
    (one,), (two,), (speed_up,) = (cells("scale", f"{row} |")[0] for row in load_benchmark("scale").ROWS_RAY)
    assert one / two == pytest.approx(speed_up, abs=0.02)


def numbers(line: str) -> list[float]:
    """Return the last number in each cell of a row, without its label."""
    return [float(re.findall(r"\d[\d,]*(?:\.\d+)?", cell)[-1].replace(",", "")) for cell in line.split("|")[2:-1]]


def test_training_table_has_three_numbers_for_each_model_and_dataset(load_benchmark):
    head = f"| {load_benchmark('models').HEAD} | Cora | Citeseer | Pubmed |"
    assert labels(section("models"))[0] == head
    for model in MODELS:
        for edgewise, plain, ratio in cells("models", f"{model} "):
            assert plain / edgewise == pytest.approx(ratio, rel=0.02)


def test_kernels_of_the_table_are_those_of_the_benchmark(load_benchmark):
    titles = load_benchmark("kernels").REPLACEMENTS
    assert [label for label in labels(section("kernels"))[2:] if label != "---"] == list(titles)
    assert all(len(cells("kernels", title)) == 4 for title in titles)  # three graphs, and all


def test_growth_table_has_all_sizes_of_each_model(load_benchmark):
    growth = load_benchmark("growth")
    head, *rows = (line for line in section("growth").splitlines() if line.startswith("|") and "---" not in line)
    assert head == speed_page_row(growth.COLUMNS)
    expected = [f"{model}, {num:,}" for model in growth.MODELS for num in growth.SIZES]
    assert [row.split("|")[1].strip() for row in rows] == expected
    for row in expected:
        (ours, plain), (ratio,), _ = cells("growth", f"{row} ")
        assert plain / ours == pytest.approx(ratio, rel=0.05)


def speed_page_row(texts):
    return f"| {' | '.join(texts)} |"


def test_labels_of_the_report_table_are_those_of_the_benchmark(load_benchmark):
    benchmark = load_benchmark("report")
    assert labels(section("report")) == labels(benchmark.as_table(1.0, 1.0, 1.0))
    ((figure,),), ((plain, ratio),) = cells("report", "one figure"), cells("report", "the same")
    assert plain / figure == pytest.approx(ratio, rel=0.02)


def test_readme_has_the_numbers_of_the_tables():
    _, (seconds,), (mib,) = cells("metrics", "`ew.evaluate`")
    (ratio_7,), (ratio,), (mib_of_tensors,) = cells("metrics", "the definitions")
    kinds = "one coupling", "coupling scaled", "a matrix per edge"
    ours = zip(*(cells("inference", kind) for kind in kinds), strict=True)
    of_sweeps = [
        slow / fast
        for times, tensors in zip(ours, cells("inference", "the same"), strict=True)
        for slow, (fast,) in zip(tensors, times, strict=True)
    ]
    of_epochs = [cell[2] for model in MODELS for cell in cells("models", f"{model} ")]
    evaluation = f"{seconds:.2f}", f"{mib:.0f}", f"{ratio:.0f}", f"{mib_of_tensors / 1024:.0f}", f"{ratio_7:.0f}", "7"
    sweeps, epochs = ((f"{min(ratios):.0f}", f"{max(ratios):.0f}") for ratios in (of_sweeps, of_epochs))
    assert has_numbers(HOME / "README.md", *evaluation, ..., *sweeps, *epochs, near="docs/speed.md")


@pytest.mark.parametrize("name", SECTIONS)
def test_replace_section_changes_only_that_section(name, load_benchmark, tmp_path):
    page = tmp_path / "speed.md"
    page.write_text(PAGE.read_text("utf-8"), "utf-8")
    load_benchmark("speed_page").replace_section(page, name, "| new |")
    assert page.read_text("utf-8") == PAGE.read_text("utf-8").replace(section(name), "\n\n| new |\n\n")


def test_replace_section_exits_if_the_section_is_missing(load_benchmark, tmp_path):
    page = tmp_path / "speed.md"
    page.write_text("# Performance\n", "utf-8")
    with pytest.raises(SystemExit, match="<!-- metrics -->"):
        load_benchmark("speed_page").replace_section(page, "metrics", "")
    assert page.read_text("utf-8") == "# Performance\n"
