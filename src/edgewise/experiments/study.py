"""The study that needs the truth: whether a lower calibration error means joints nearer to the true ones."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from threading import Thread
from typing import cast

from edgewise.experiments.local import ctrl_c_kept_from_children, end_with_parent
from edgewise.experiments.study_plan import GraphKey, StudyPlan
from edgewise.experiments.study_rows import Row, append_rows, read_rows

ROWS_FILE = "study.csv"
SWEEPS = 500
BURN_IN = 300
PATIENCE = 3  # how often chains that disagree are run again, four times as long

Missing = Mapping[GraphKey, Sequence[str]]
OnGraph = Callable[[int, int, GraphKey], object]  # graphs done, graphs to do, and the last one


def run_study(plan: StudyPlan, folder: Path, workers: int = 1, on_graph: OnGraph | None = None) -> list[Row]:
    """Do what a folder does not have yet of a study, and give all its rows; those of a graph are written together."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ROWS_FILE
    missing = missing_rows(plan, read_rows(path))
    with _mapped(workers) as mapped:
        for done, rows in enumerate(mapped(missing), start=1):
            append_rows(path, rows)
            if on_graph is not None:
                on_graph(done, len(missing), rows[0].graph)
    wanted = set(plan.graphs())
    return [row for row in read_rows(path) if row.graph in wanted]


def missing_rows(plan: StudyPlan, rows: Sequence[Row]) -> dict[GraphKey, list[str]]:
    """Give the graphs of a plan, each with the predictors that have no row."""
    from edgewise.experiments.study_predictors import PREDICTORS

    there = {(row.graph, row.predictor) for row in rows}
    missing = {
        graph: [predictor for predictor in PREDICTORS if (graph, predictor) not in there] for graph in plan.graphs()
    }
    return {graph: predictors for graph, predictors in missing.items() if predictors}


def study_graph(key: GraphKey, predictors: Sequence[str]) -> list[Row]:
    """Draw a graph, compute its true joints given the training labels, and score predictors."""
    from edgewise.data import make_splits
    from edgewise.experiments.study_predictors import PREDICTORS, Case
    from edgewise.experiments.study_scores import scores
    from edgewise.simulation import synthetic
    from edgewise.simulation.graph import DegreeLaw, Kind

    graph = synthetic(
        key.num_nodes,
        key.num_classes,
        kind=cast(Kind, key.kind),
        homophily=key.homophily,
        average_degree=key.average_degree,
        degree_law=cast(DegreeLaw, key.degree_law),
        feature_noise=key.feature_noise,
        seed=key.seed,
    )
    split = make_splits(graph.data.y, n_splits=1, seed=key.seed)[0]
    truth, report = graph.truth(split.train, burn_in=BURN_IN, sweeps=SWEEPS, seed=key.seed)
    for again in range(1, PATIENCE + 1):
        if report:
            break
        truth, report = graph.truth(split.train, burn_in=BURN_IN, sweeps=SWEEPS * 4**again, seed=key.seed)
    known = {"truth_exact": float(report.exact), "truth_kl_error": report.kl_error, "truth_r_hat": report.r_hat}
    case = Case(graph, split, truth, key.seed)
    return [Row(key, name, scores(PREDICTORS[name](case), truth, graph, split.test) | known) for name in predictors]


@contextmanager
def _mapped(workers: int) -> Iterator[Callable[[Missing], Iterator[list[Row]]]]:
    """Give what studies graphs, here or in processes, in the order in which they end."""
    if workers == 1:
        yield lambda missing: (study_graph(*item) for item in missing.items())
        return
    others = set(active_children())
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin_work) as processes:
        try:
            yield partial(_in_processes, processes)
        except BaseException:
            for process in set(active_children()) - others:  # else they would be waited for
                process.terminate()
            raise


def _in_processes(processes: ProcessPoolExecutor, missing: Missing) -> Iterator[list[Row]]:
    with ctrl_c_kept_from_children():
        futures = [processes.submit(study_graph, *item) for item in missing.items()]
    for future in as_completed(futures):
        yield future.result()


def _begin_work() -> None:
    import torch

    Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
