"""Profile one training of each model on each graph of the paper: compiled loops, operations of torch, and Python.

    python benchmarks/limits.py                 # a minute
    python benchmarks/limits.py --page docs/speed.md

Each cell is one fit on one thread, as in a sweep, with a quarter of the usual epochs, under cProfile, which makes
Python look slower than it is. The last line compares the rate of the sparse product X W with that of a dense product.
"""

import argparse
import cProfile
import gc
import pstats
from collections import Counter
from time import perf_counter
from typing import Any

import speed_page
import torch
from measure import environment, measure
from numba.core.dispatcher import Dispatcher

import edgewise as ew
from edgewise.models.task import Task, prepare_task
from kernels import DATASETS, MODELS

PARTS = {
    "sparse": "sparse products",
    "attention": "attention",
    "projection": "ReLU, dropout and projection",
    "dropout": "dropout masks",
    "stars": "piecewise loss",
}
TORCH, PYTHON = "torch", "Python"


def compiled_loops() -> dict[tuple[str, int, str], str]:
    """Return the part of each loaded compiled loop, by the key of the profiler."""
    loops = {}
    for loop in (thing for thing in gc.get_objects() if issubclass(type(thing), Dispatcher)):
        code = loop.py_func.__code__
        module = loop.py_func.__module__.rpartition(".")[2]
        if module in PARTS:
            loops[code.co_filename, code.co_firstlineno, code.co_name] = PARTS[module]
    return loops


def shares(model: Any, task: Task) -> dict[str, float]:
    """Profile a fit, and return the fraction of time that each part takes."""
    model.fit_task(task, seed=0)  # compiles
    task.training_loops.clear()
    profile = cProfile.Profile()
    profile.runcall(model.fit_task, task, seed=0)
    task.training_loops.clear()
    loops, seconds = compiled_loops(), Counter[str]()
    for key, (_, _, own_seconds, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        file, _, name = key
        is_torch = file == "~" and ("torch" in name or "TensorBase" in name or "run_backward" in name)
        seconds[loops.get(key, TORCH if is_torch else PYTHON)] += own_seconds
    return {part: own / seconds.total() for part, own in seconds.most_common()}


def rates(task: Task) -> tuple[float, float]:
    """Return the billions of multiplications and additions per second of X W, and of a dense product of 64 columns."""
    weight, dense = torch.randn(task.num_features, 64), torch.randn(2000, task.num_features)
    sparse = task.sparse_features
    fast = measure(lambda: [sparse.matmul(weight) for _ in range(20)]).seconds / 20
    plain = measure(lambda: [dense @ weight for _ in range(20)]).seconds / 20
    return 2e-9 * 64 * sparse.num_entries / fast, 2e-9 * 64 * dense.numel() / plain


def main() -> None:
    """Print and write the table of shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speed_page.add_options(parser, quick=False)
    page = parser.parse_args().page
    torch.set_num_threads(1)
    where = environment("edgewise", "torch", "numba")
    print(where)
    rows: dict[str, list[str]] = {}
    for name in DATASETS:
        data = ew.load_dataset(name)
        task = prepare_task(data, ew.make_splits(data.y)[0], directed="refuse", num_classes=None, device="cpu")
        for model in MODELS:
            if model == MODELS[1]:  # EPFGNN by the other schedule
                continue
            start = perf_counter()
            parts = [f"{part} {share:.0%}" for part, share in shares(model, task).items() if share >= 0.05]
            print(f"{name:10}{model.name:8}{', '.join(parts)} ({perf_counter() - start:.1f} s)", flush=True)
            rows.setdefault(model.name.upper(), []).append(", ".join(parts))
    sparse, dense = rates(task)
    of = f"X W on {name.title()} takes {sparse:.0f} billion operations per second on one thread"
    summary = f"{of}, a dense product {dense:.0f}."
    print(summary)
    head = ["Share of the time of a fit", *(name.title() for name in DATASETS)]
    table = speed_page.table(head, [[model, *cells] for model, cells in rows.items()])
    speed_page.replace_section(page, "limits", f"{table}\n\n{summary} {where}.")


if __name__ == "__main__":
    main()
