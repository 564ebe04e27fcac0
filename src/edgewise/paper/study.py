"""Which synthetic graphs a study looks at."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from threading import Thread
from typing import NamedTuple, cast

from edgewise.paper.study_predictors import SCORES
from edgewise.validation import check_whole_number
from edgewise.workers.local import ctrl_c_kept_from_children, end_with_parent

# An MRF on a random graph of degree 3 cannot have a larger homophily without one label taking over.
HOMOPHILIES = {"block_model": (0.1, 0.3, 0.5, 0.7, 0.9), "mrf": (0.1, 0.35, 0.6)}
QUICK_HOMOPHILIES = {"block_model": (0.1, 0.9), "mrf": (0.6,)}
DEGREES = {"block_model": ("poisson", 4.0), "mrf": ("regular", 3.0)}
FEATURE_NOISES = (0.5, 1.0)
QUICK_FEATURE_NOISES = (1.0,)


class GraphKey(NamedTuple):
    """All that a graph of the study is drawn by."""

    kind: str
    degree_law: str
    average_degree: float
    num_classes: int
    num_nodes: int
    homophily: float
    feature_noise: float
    seed: int


@dataclass(frozen=True)
class StudyPlan:
    """Graphs of both kinds, from strong heterophily to strong homophily, with clear and with noisy features."""

    num_nodes: int = 1000
    num_seeds: int = 3
    num_classes: int = 3
    quick: bool = False

    def __post_init__(self) -> None:
        check_whole_number("nodes", self.num_nodes, 100, 10**6)
        check_whole_number("seeds", self.num_seeds, 1, 10**4)
        check_whole_number("classes", self.num_classes, 2, 20)

    def graphs(self) -> list[GraphKey]:
        """List the graphs, all of one seed before the next."""
        homophilies = QUICK_HOMOPHILIES if self.quick else HOMOPHILIES
        noises = QUICK_FEATURE_NOISES if self.quick else FEATURE_NOISES
        return [
            GraphKey(kind, *DEGREES[kind], self.num_classes, self.num_nodes, homophily, noise, seed)
            for seed in range(self.num_seeds)
            for kind in homophilies
            for homophily in homophilies[kind]
            for noise in noises
        ]


TRUTH = ("truth_exact", "truth_kl_error", "truth_r_hat")  # how well the true joints are known
COLUMNS = (*GraphKey._fields, "predictor", *SCORES, *TRUTH)


class Row(NamedTuple):
    """The scores of a predictor on a graph."""

    graph: GraphKey
    predictor: str
    scores: Mapping[str, float]


def read_rows(path: Path) -> list[Row]:
    """Read the rows that are there; a last line that was cut off is none."""
    if not path.exists():
        return []
    try:
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
        header, *lines = list(csv.reader(io.StringIO(whole))) or [list(COLUMNS)]
    except (UnicodeError, csv.Error) as error:
        raise _damage(path, str(error)) from error
    if tuple(header) != COLUMNS:
        raise ValueError(
            f"Expected a study with the columns {', '.join(COLUMNS)} in {path}, but got {', '.join(header)}. "
            "Name another folder."
        )
    rows = []
    for number, line in enumerate(lines, start=2):
        try:
            rows.append(_row(line))
        except (IndexError, TypeError, ValueError) as error:  # too few or too many cells, or others than numbers
            raise _damage(path, f"line {number} is {','.join(line)[:40]!r}") from error
    return rows


def _damage(path: Path, what: str) -> ValueError:
    return ValueError(
        f"Expected rows of a study, but {path} is damaged: {what}. Correct it, or name another folder to start anew."
    )


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows to the end of the file, and see them to the disk; what was cut off there goes first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    with path.open("a+b") as file:
        file.seek(0)
        end = file.read().rfind(b"\n") + 1
        file.truncate(end)
        if not end:
            writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([*row.graph, row.predictor, *(f"{row.scores[name]:.7g}" for name in (*SCORES, *TRUTH))])
        file.write(text.getvalue().encode())
        file.flush()
        os.fsync(file.fileno())


def _row(line: list[str]) -> Row:
    kinds = GraphKey.__annotations__.values()
    num = len(GraphKey._fields)
    graph = GraphKey(*(kind(cell) for kind, cell in zip(kinds, line, strict=False)))
    return Row(graph, line[num], dict(zip((*SCORES, *TRUTH), map(float, line[num + 1 :]), strict=True)))


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
    from edgewise.paper.study_predictors import PREDICTORS

    there = {(row.graph, row.predictor) for row in rows}
    missing = {
        graph: [predictor for predictor in PREDICTORS if (graph, predictor) not in there] for graph in plan.graphs()
    }
    return {graph: predictors for graph, predictors in missing.items() if predictors}


def study_graph(key: GraphKey, predictors: Sequence[str]) -> list[Row]:
    """Draw a graph, compute its true joints given the training labels, and score predictors."""
    from edgewise.data import make_splits
    from edgewise.paper.study_predictors import PREDICTORS, Case, scores
    from edgewise.simulation import synthetic
    from edgewise.simulation.synthetic_graph import DegreeLaw, Kind

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
