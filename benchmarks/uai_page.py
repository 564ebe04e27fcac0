"""Write the tables of benchmarks/uai.py to docs/inference-errors.md."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean, median
from typing import Any

import speed_page
import uai_rivals
from measure import GIB, environment

Run = Mapping[str, Any]
Runs = Mapping[tuple[str, str], Run]

NAMES = {
    "exact_marginals": "junction tree",
    "sum_product": "sum-product",
    "tree_reweighted": "tree-reweighted",
    "mean_field": "mean field",
    "infer": "`infer`",
    "pyGMs": "pyGMs, loopy",
    "aGrUM": "aGrUM, exact",
    "pgmpy": "pgmpy, exact",
}
APPROXIMATE = ("sum_product", "tree_reweighted", "mean_field", "pyGMs", "infer")
EXACT_RIVALS = ("aGrUM", "pgmpy")
WRONG = 0.1  # largest error of a marginal that counts as wrong, and the disagreement above which check=True warns
MAX_ROUNDING = 1e-5  # published marginals have six digits


def write(page: Path, results: Iterable[Run]) -> None:
    """Write all tables to the page."""
    runs = {(run["instance"], run["method"]): run for run in results}
    packages = [name for rival, name in uai_rivals.PACKAGES.items() if uai_rivals.is_installed(rival)]
    where = environment("edgewise", "torch", "numba", *packages)
    sections = {
        "verdicts": verdicts_table(runs),
        "summary": f"{summary_table(runs)}\n\n{where}, one thread.",
        "exact": exact_table(runs),
        "approximate": approximate_tables(runs),
        "labelings": labelings_table(runs),
    }
    for name, text in sections.items():
        speed_page.replace_section(page, name, text)


def family(instance: str) -> str:
    return instance.rpartition("_")[0]


def families(runs: Runs) -> dict[str, list[str]]:
    """Return the instances of each family, in the order of their numbers."""
    names = sorted({name for name, _ in runs}, key=lambda name: (family(name), int(name.rpartition("_")[2])))
    return {key: list(group) for key, group in groupby(names, family)}


def verdicts_table(runs: Runs) -> str:
    """Format one row for each approximate method: how often it is wrong, and whether it warns then."""
    head = [
        f"largest error above {WRONG}",
        "instances",
        "of these, converged",
        "of these, with a warning",
        "other warnings",
    ]
    rows = []
    for method in ("sum_product", "tree_reweighted", "mean_field", "pyGMs"):
        solved = [run for (_, of), run in runs.items() if of == method and run["status"] == "ok"]
        if not solved:
            continue
        wrong = [run for run in solved if run["max_error"] > WRONG]
        cells = [NAMES[method], f"{len(wrong)} of {len(solved)}", "–", "–", "–"]
        if all("warns" in run for run in solved):
            warned, others = sum(run["warns"] for run in wrong), sum(run["warns"] for run in solved)
            cells[2:] = map(str, (sum(run["converged"] for run in wrong), warned, others - warned))
        rows.append(cells)
    return speed_page.table(head, rows)


def summary_table(runs: Runs) -> str:
    """Format one row for each family and method, over the instances that the method solved."""
    head = ["", "solved", "mean error", "largest error", "log₁₀ Z error", "seconds", "converged", "warns"]
    rows = []
    for group, names in families(runs).items():
        rows.append([f"**{group}**", *[""] * (len(head) - 1)])
        for method, label in NAMES.items():
            tried = [runs[name, method] for name in names if (name, method) in runs]
            if tried and (method != "infer" or len(tried) == len(names)):
                rows.append([label, *_summary_row(tried)])
    return speed_page.table(head, rows)


def _summary_row(tried: Sequence[Run]) -> list[str]:
    solved = [run for run in tried if run["status"] == "ok"]
    cells = [f"{len(solved)} of {len(tried)}"]
    if not solved:
        return [*cells, *["–"] * 6]
    errors_of_z = [run["log10_z_error"] for run in solved if "log10_z_error" in run]
    cells += [
        probability(mean(run["mean_error"] for run in solved)),
        _range([run["max_error"] for run in solved], probability),
        _range(errors_of_z, logarithm) if errors_of_z else "–",
        _median_and_largest([run["seconds"] for run in solved]),
    ]
    if "converged" not in solved[0] or solved[0]["sweeps"] == 0:
        return [*cells, "–", "–"]
    counts = (sum(bool(run[key]) for run in solved) for key in ("converged", "warns"))
    return [*cells, *map(str, counts)]


def exact_table(runs: Runs) -> str:
    """Format one row for each instance: the junction tree, and the seconds of other exact libraries."""
    head = ["", "nodes, edges, labels", "width", "largest error", "log₁₀ Z error", "seconds", "memory"]
    head += [f"{rival}, seconds" for rival in EXACT_RIVALS]
    rows = []
    for names in families(runs).values():
        for name in names:
            run = runs.get((name, "exact_marginals"))
            if run is None:
                continue
            cells = ["–", problem(run), "–", "–", "–"]
            if run["status"] == "ok":
                errors = probability(run["max_error"]), logarithm(run["log10_z_error"])
                memory = f"{run['peak_bytes'] / GIB:.1f} GiB"
                cells = [str(run["width"]), *errors, seconds_cell(run), memory]
            rivals = [seconds_cell(runs.get((name, rival))) for rival in EXACT_RIVALS]
            rows.append([name, f"{run['nodes']}, {run['edges']:,}, {run['labels']}", *cells, *rivals])
    return speed_page.table(head, rows)


def approximate_tables(runs: Runs) -> str:
    """Format one table for each family, with one row for each instance and approximate method."""
    head = ["", "method", "mean error", "largest error", "log₁₀ Z error", "seconds", "verdict"]
    parts = []
    for group, names in families(runs).items():
        rows = []
        for name in names:
            tried = [method for method in APPROXIMATE if (name, method) in runs]
            for method in tried:
                run = runs[name, method]
                cells = ["–", "–", "–", problem(run), verdict(run)]
                if run["status"] == "ok":
                    errors = probability(run["mean_error"]), probability(run["max_error"])
                    log_z = logarithm(run["log10_z_error"]) if "log10_z_error" in run else "–"
                    cells = [*errors, log_z, short(run["seconds"]), verdict(run)]
                rows.append([name if method == tried[0] else "", NAMES[method], *cells])
        parts.append(f"### {group}\n\n{speed_page.table(head, rows)}")
    return "\n\n".join(parts)


def labelings_table(runs: Runs) -> str:
    """Format one row for each instance: the scores of the labelings of `map_labels` and toulbar2."""
    head = ["", "score of toulbar2", "`map_labels` minus toulbar2", "method", "seconds", "toulbar2, seconds"]
    rows = []
    for names in families(runs).values():
        for name in names:
            ours, theirs = runs.get((name, "map_labels")), runs.get((name, "toulbar2"))
            if ours is None or theirs is None:
                continue
            cells = ["–", "–"]
            if ours["status"] == theirs["status"] == "ok":
                difference = ours["score"] - theirs["score"]
                cells = [f"{theirs['score']:.3f}", "0.000" if abs(difference) < 5e-4 else f"{difference:+.3f}"]
            rows.append([name, *cells, ours.get("solver", "–"), *(seconds_cell(run) for run in (ours, theirs))])
    return speed_page.table(head, rows)


def verdict(run: Run) -> str:
    """Describe what the method reports about its own result."""
    if run["status"] not in ("ok", "time", "memory"):
        return str(run.get("reason", run["status"])).partition(":")[0]
    if "converged" not in run:
        return "–"
    text = f"{run['sweeps']} sweeps" if run["converged"] else "did not converge"
    if run["method"] == "infer":
        text = f"{run['solver']}, {text}"
    if run.get("disagreement") is not None:
        text += f", disagreement {run['disagreement']:.2g}"
    return f"**warns**: {text}" if run["warns"] else text


def problem(run: Run) -> str:
    """Return why a run has no result: the exceeded limit of time or memory, "refused" or "failed"."""
    if run["status"] == "time":
        return f"> {run['seconds']:g} s"
    if run["status"] == "memory":
        return f"> {run['memory']} GiB"
    return "refused" if run["status"] == "refused" else "failed"


def seconds_cell(run: Run | None) -> str:
    """Format the seconds of a run, or why it has none. An exact run with an error is marked."""
    if run is None:
        return "–"
    if run["status"] != "ok":
        return problem(run)
    text = short(run["seconds"])
    return f"{text}, wrong by {run['max_error']:.2g}" if run.get("max_error", 0.0) > MAX_ROUNDING else text


def short(number: float) -> str:
    return "< 0.01" if number < 0.005 else speed_page.short(number)


def probability(number: float) -> str:
    return "< 10⁻⁶" if number < 1e-6 else f"{number:.2g}" if number < 0.0995 else f"{number:.2f}"


def logarithm(number: float) -> str:
    return "0.00" if abs(number) < 0.005 else f"{number:+,.2f}" if abs(number) < 99.5 else f"{number:+,.0f}"


def _range(values: Sequence[float], format_one: Callable[[float], str]) -> str:
    low, high = format_one(min(values)), format_one(max(values))
    return low if low == high else f"{low} to {high}"


def _median_and_largest(values: Sequence[float]) -> str:
    return short(values[0]) if len(values) == 1 else f"{short(median(values))}, at most {short(max(values))}"
