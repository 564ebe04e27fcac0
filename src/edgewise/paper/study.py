"""The study on synthetic graphs with known true joints: its plan, its rows, and how they are computed and stored."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from edgewise.data import make_splits
from edgewise.files.output import replace_file
from edgewise.paper.study_predictors import PREDICTORS, SCORES, Case, score_prediction
from edgewise.simulation import synthetic
from edgewise.simulation.synthetic_graph import DegreeLaw, Kind
from edgewise.sweep.result_file import ResultFile, StoreError, damage_message
from edgewise.validation import check_whole_number
from edgewise.workers import Failure, Workers

# At a higher homophily, one label of an MRF on a random 3-regular graph dominates.
HOMOPHILIES = {"block_model": (0.1, 0.3, 0.5, 0.7, 0.9), "mrf": (0.1, 0.35, 0.6)}
QUICK_HOMOPHILIES = {"block_model": (0.1, 0.9), "mrf": (0.6,)}
DEGREES = {"block_model": ("poisson", 4.0), "mrf": ("regular", 3.0)}
FEATURE_NOISES = (0.5, 1.0)
QUICK_FEATURE_NOISES = (1.0,)


class GraphKey(NamedTuple):
    """The parameters from which a graph of the study is drawn."""

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
    """Graphs of both kinds, from strong heterophily to strong homophily, at two levels of feature noise."""

    num_nodes: int = 1000
    num_seeds: int = 3
    num_classes: int = 3
    quick: bool = False

    def __post_init__(self) -> None:
        check_whole_number("nodes", self.num_nodes, 100, 10**6)
        check_whole_number("seeds", self.num_seeds, 1, 10**4)
        check_whole_number("classes", self.num_classes, 2, 20)

    def graphs(self) -> list[GraphKey]:
        """Return the graphs, sorted by seed first."""
        homophilies = QUICK_HOMOPHILIES if self.quick else HOMOPHILIES
        noises = QUICK_FEATURE_NOISES if self.quick else FEATURE_NOISES
        return [
            GraphKey(kind, *DEGREES[kind], self.num_classes, self.num_nodes, homophily, noise, seed)
            for seed in range(self.num_seeds)
            for kind in homophilies
            for homophily in homophilies[kind]
            for noise in noises
        ]


TRUTH_COLUMNS = ("truth_exact", "truth_kl_error", "truth_r_hat")  # accuracy of the true joints
SCORE_COLUMNS = (*SCORES, *TRUTH_COLUMNS)
COLUMNS = (*GraphKey._fields, "predictor", *SCORE_COLUMNS)


class StudyRow(NamedTuple):
    """The scores of a predictor on a graph."""

    graph: GraphKey
    predictor: str
    scores: Mapping[str, float]


def read_rows(path: Path) -> list[StudyRow]:
    """Read the rows of a file; [] if there is none. A truncated last line is ignored."""
    if not path.exists():
        return []
    try:
        complete, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
        header, *lines = list(csv.reader(io.StringIO(complete))) or [list(COLUMNS)]
    except (UnicodeError, csv.Error) as error:
        raise _damage(path, str(error)) from error
    if tuple(header) != COLUMNS:
        raise ValueError(
            f"Expected a study with the columns {', '.join(COLUMNS)} in {path}, but got {', '.join(header)}. "
            "Pass another folder."
        )
    rows = []
    for number, line in enumerate(lines, start=2):
        try:
            rows.append(_row(line))
        except (IndexError, TypeError, ValueError) as error:  # wrong number of cells, or not numbers
            raise _damage(path, f"line {number} is {','.join(line)[:40]!r}") from error
    return rows


def _damage(path: Path, what: str) -> ValueError:
    return ValueError(
        f"Expected rows of a study, but {path} is damaged: {what}. Fix it, or pass another folder to start again."
    )


def write_rows(path: Path, rows: Iterable[StudyRow]) -> None:
    """Write rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([*row.graph, row.predictor, *(f"{row.scores[name]:.7g}" for name in SCORE_COLUMNS)])
    replace_file(path, lambda file: file.write_bytes(text.getvalue().encode()))


def _row(line: list[str]) -> StudyRow:
    kinds = GraphKey.__annotations__.values()
    num = len(GraphKey._fields)
    graph = GraphKey(*(kind(cell) for kind, cell in zip(kinds, line, strict=False)))
    return StudyRow(graph, line[num], dict(zip(SCORE_COLUMNS, map(float, line[num + 1 :]), strict=True)))


class StudyStore(ResultFile):
    """SQLite store of the rows of a study. The rows of a graph are written in one transaction."""

    file_name = "study.sqlite"
    schema = """
CREATE TABLE rows (
  graph TEXT NOT NULL, predictor TEXT NOT NULL, scores TEXT NOT NULL,
  PRIMARY KEY (graph, predictor)
);
"""
    command = "edgewise study"
    contents = "graphs"

    def add(self, rows: Iterable[StudyRow]) -> None:
        """Write rows in one transaction."""
        columns = [(json.dumps(row.graph), row.predictor, json.dumps(dict(row.scores))) for row in rows]
        with self._transaction():
            self._connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", columns)

    def rows(self) -> list[StudyRow]:
        """Return all rows, in order of insertion."""
        records = self._rows("SELECT graph, predictor, scores FROM rows ORDER BY rowid")
        try:
            return [StudyRow(GraphKey(*json.loads(graph)), name, json.loads(text)) for graph, name, text in records]
        except (ValueError, TypeError) as error:
            raise StoreError(damage_message(self.path, "its rows cannot be read")) from error


ROWS_FILE = "study.csv"
SWEEPS = 500
BURN_IN = 300
MAX_RETRIES = 3  # of Gibbs chains that did not converge, each four times as long as before

GraphJob = tuple[GraphKey, tuple[str, ...]]  # a graph and the predictors to score on it
OnGraph = Callable[[int, int, GraphKey], object]  # (finished graphs, all graphs, last finished graph)


def run_study(plan: StudyPlan, folder: Path, workers: Workers, on_graph: OnGraph | None = None) -> list[StudyRow]:
    """Run the missing part of a study and return the rows of the plan.

    Rows are stored in study.sqlite, and written to study.csv at the end. A study.csv without a study.sqlite, written
    by an earlier version, is imported.
    """
    path, failures = folder / ROWS_FILE, []
    earlier = [] if StudyStore.exists(folder) else read_rows(path)
    with StudyStore.writing(folder) as store:
        if earlier:
            store.add(earlier)
        jobs = missing_jobs(plan, store.rows())
        with closing(workers.execute(study_graph, jobs)) as outcomes:
            for done, outcome in enumerate(outcomes, start=1):
                graph, _ = outcome.job
                if isinstance(outcome, Failure):
                    failures.append(f"{_describe(graph)} failed: {outcome.error.strip().splitlines()[-1]}")
                else:
                    store.add(outcome.result)
                if on_graph is not None:
                    on_graph(done, len(jobs), graph)
        rows = _sort_rows(plan, store.rows())
    write_rows(path, rows)
    if failures:
        raise ValueError(
            f"Expected {len(jobs)} graphs to finish, but {len(failures)} failed. {failures[0]}. Finished graphs are "
            "stored. Run the command again to retry the others."
        )
    wanted = set(plan.graphs())
    return [row for row in rows if row.graph in wanted]


def _describe(graph: GraphKey) -> str:
    return f"{graph.kind} of homophily {graph.homophily:g}, feature noise {graph.feature_noise:g}, seed {graph.seed}"


def _sort_rows(plan: StudyPlan, rows: Sequence[StudyRow]) -> list[StudyRow]:
    """Sort rows in the order of the plan. Rows of other plans come last."""
    graphs = {graph: index for index, graph in enumerate(plan.graphs())}
    predictors = {name: index for index, name in enumerate(PREDICTORS)}
    return sorted(rows, key=lambda row: (graphs.get(row.graph, len(graphs)), predictors.get(row.predictor, -1)))


def missing_jobs(plan: StudyPlan, rows: Sequence[StudyRow]) -> list[GraphJob]:
    """Return the graphs of a plan that miss rows, each with the predictors that it misses."""
    finished = {(row.graph, row.predictor) for row in rows}
    missing = [(graph, tuple(name for name in PREDICTORS if (graph, name) not in finished)) for graph in plan.graphs()]
    return [(graph, predictors) for graph, predictors in missing if predictors]


def study_graph(job: GraphJob) -> list[StudyRow]:
    """Draw a graph, compute its true joints given the training labels, and score the predictors."""
    key, predictors = job
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
    for retry in range(1, MAX_RETRIES + 1):
        if report:
            break
        truth, report = graph.truth(split.train, burn_in=BURN_IN, sweeps=SWEEPS * 4**retry, seed=key.seed)
    truth_columns = {"truth_exact": float(report.exact), "truth_kl_error": report.kl_error, "truth_r_hat": report.r_hat}
    case = Case(graph, split, truth, key.seed)
    rows = []
    for name in predictors:
        columns = score_prediction(PREDICTORS[name](case), truth, graph, split.test) | truth_columns
        rows.append(StudyRow(key, name, {column: float(f"{value:.7g}") for column, value in columns.items()}))
    return rows
