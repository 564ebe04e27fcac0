"""Measure a sweep without each of the kernels that make it fast.

    python benchmarks/kernels.py                 # five minutes
    python benchmarks/kernels.py --page docs/speed.md

Each row replaces one kernel by the operations of torch that a user would write, and trains the models of one
initialization with a quarter of the usual epochs, in one process per core at the same time, as in a sweep: processes
share the memory bandwidth. A sweep trains as many groups on each of the three graphs, so the sum of their times counts.
"""

import argparse
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from multiprocessing import get_context
from statistics import fmean
from time import perf_counter
from typing import Any
from unittest import mock

import speed_page
import torch
from measure import environment
from torch import Tensor

import edgewise as ew
from edgewise.kernels import attention, projection, sparse, stars
from edgewise.kernels.dropout import Dropout
from edgewise.kernels.sparse import DropoutMask, RowEntries
from edgewise.models import graph_pass
from edgewise.models.task import prepare_task
from edgewise.models.training import TrainingLoop
from edgewise.workers import available_cores

FIELD = ew.EPFGNN(pretrain_epochs=50, pretrain_patience=50, rounds=1, steps=15, step_patience=15)
MODELS = (
    ew.GMNN(pretrain_epochs=50, pretrain_patience=50, round_epochs=25, samples=8),
    replace(FIELD, schedule="published"),
    FIELD,
    ew.GCN(max_epochs=190, patience=190),
    ew.GAT(max_epochs=140, patience=140),
)
DATASETS = ("cora", "citeseer", "pubmed")
MIN_GAIN = 1.1  # of a kernel that is worth its code

Replacement = Callable[[], Any]


def random_keep(self: Dropout, num: int, draw: int, device: torch.device) -> Tensor:
    """Draw a dropout mask from a generator of torch."""
    generator = torch.Generator(device).manual_seed(self.initial_state(draw) >> 1)
    return torch.empty(num, dtype=torch.uint8, device=device).bernoulli_(1 - self.rate, generator=generator)


def matmul_csr(rows: RowEntries, dense: Tensor, num_rows: int, mask: DropoutMask | None, threads: object) -> Tensor:
    """Multiply with the CSR product of torch."""
    value = rows.value
    if mask is not None:
        value = value * mask.keep[rows.entry.long()].to(value.dtype) * mask.scale
    shape = (num_rows, dense.shape[0])
    result: Tensor = torch.sparse_csr_tensor(rows.first, rows.column, value, shape, check_invariants=False) @ dense
    return result


@contextmanager
def torch_sparse_product() -> Iterator[None]:
    with mock.patch.object(sparse, "matmul_compiled", matmul_csr), one_block():
        yield


def one_block() -> Any:
    return mock.patch.object(sparse, "MIN_ENTRIES_PER_ROW", float("inf"))


@contextmanager
def all_rows() -> Iterator[None]:
    with mock.patch.object(ew.GCN, "hops", None), mock.patch.object(ew.GAT, "hops", None):
        yield


REPLACEMENTS: dict[str, Replacement] = {
    "ReLU, dropout and projection in one pass": lambda: mock.patch.object(
        graph_pass, "relu_dropout_matmul", projection.relu_dropout_matmul_tensors
    ),
    "Dropout by a hash": lambda: mock.patch.object(Dropout, "keep", random_keep),
    "Sparse product": torch_sparse_product,
    "Vectors in the sparse product": lambda: mock.patch.object(sparse, "MIN_VECTOR_SIZE", 1 << 30),
    "Blocks in transposed products": one_block,
    "Attention in one pass": lambda: mock.patch.object(attention, "attend_compiled", attention.attend_tensors),
    "Piecewise loss of EPFGNN": lambda: mock.patch.object(stars, "_log_partitions", stars.log_partitions_tensors),
    "Rows that the loss depends on": all_rows,
    "Continued pretraining": lambda: mock.patch.object(TrainingLoop, "can_continue_to", lambda loop, phase: False),
}


def seconds(title: str | None, dataset: str) -> float:
    """Return the seconds of the runs of one group, without the kernel of this title."""
    torch.set_num_threads(1)
    data = ew.load_dataset(dataset)
    split = ew.make_splits(data.y)[0]
    with nullcontext() if title is None else REPLACEMENTS[title]():
        start = perf_counter()
        task = prepare_task(data, split, directed="refuse", num_classes=None, device="cpu")
        for model in MODELS:
            model.fit_task(task, seed=0)
        return perf_counter() - start


def main() -> None:
    """Measure the runs with all kernels, then without each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speed_page.add_options(parser)
    options = parser.parse_args()
    repeats, datasets = (1, DATASETS[:1]) if options.quick else (3, DATASETS)
    where, cores = environment("edgewise", "torch", "numba"), available_cores()
    print(where)
    print(f"{'Time without, with = 1':45}" + "".join(f"{name:>10}" for name in datasets) + f"{'sum':>10}")
    rows = []
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:

        def measure_all(title: str | None, dataset: str) -> float:
            return fmean(pool.map(seconds, [title] * cores, [dataset] * cores))

        pool.submit(seconds, None, datasets[0]).result()  # compiles
        for title in REPLACEMENTS:
            for kernel in (None, title):  # loads compiled loops in all processes
                measure_all(kernel, datasets[0])
            kept, without = [float("inf")] * len(datasets), [float("inf")] * len(datasets)
            for _ in range(repeats):  # with and without in turn, since the speed of a machine changes
                for k, name in enumerate(datasets):
                    kept[k] = min(kept[k], measure_all(None, name))
                    without[k] = min(without[k], measure_all(title, name))
            ratios = [slow / fast for slow, fast in zip([*without, sum(without)], [*kept, sum(kept)], strict=True)]
            note = "" if ratios[-1] >= MIN_GAIN else "  changes a sweep by less than a tenth"
            print(f"{title:45}" + "".join(f"{ratio:10.2f}" for ratio in ratios) + note, flush=True)
            rows.append([title, *(f"{ratio:.2f}" for ratio in ratios)])
    head = ["Time without, with = 1", *(name.title() for name in datasets), "All"]
    speed_page.replace_section(options.page, "kernels", f"{speed_page.table(head, rows)}\n\n{where}.")


if __name__ == "__main__":
    main()
