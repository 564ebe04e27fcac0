"""The study on synthetic graphs: scores, plan, storage, resuming, report and documented numbers."""

import itertools
import math
import os
import pickle
import signal
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy, kendalltau, spearmanr

import edgewise as ew
from edgewise import workers
from edgewise.metrics import evaluate
from edgewise.paper import study, study_predictors
from edgewise.paper.study import (
    COLUMNS,
    ROWS_FILE,
    GraphKey,
    StudyPlan,
    StudyStore,
    missing_jobs,
    read_rows,
    run_study,
    study_graph,
    write_rows,
)
from edgewise.paper.study_predictors import (
    PREDICTORS,
    REFERENCE_PREDICTORS,
    TRAINED_PREDICTORS,
    expected_ece,
    mean_kl,
    mean_total_variation,
    score_prediction,
)
from edgewise.paper.study_report import (
    agreement,
    count_graphs_below_truth,
    excess_edge_nll,
    rank_correlation,
    select_rows,
    study_answer,
    study_page,
    study_text,
)
from edgewise.posterior import IndependentPosterior
from edgewise.simulation import synthetic
from edgewise.sweep.result_file import StoreError
from edgewise.workers import LocalProcesses
from helpers.fake_study import key, row
from helpers.forked_commands import command
from helpers.in_process_workers import InProcessWorkers
from helpers.page_numbers import has_numbers
from helpers.processes import started, wait_until, wait_until_ended
from test_cli import run


def distributions(rows, entries, seed):
    return torch.tensor(np.random.default_rng(seed).dirichlet(np.ones(entries), size=rows))


@pytest.fixture
def two_graphs(monkeypatch):
    """A plan of two graphs of 100 nodes, and three references as predictors, which need no training."""
    monkeypatch.setattr(study, "QUICK_HOMOPHILIES", {"block_model": (0.2, 0.8)})
    references = {name: REFERENCE_PREDICTORS[name] for name in ("truth", "true marginals", "base rate")}
    monkeypatch.setattr(study, "PREDICTORS", references)
    monkeypatch.setattr(study, "SWEEPS", 50)
    monkeypatch.setattr(study, "MAX_RETRIES", 0)
    return StudyPlan(100, 1, quick=True)


def test_plan_lists_each_graph_once_and_checks_sizes():
    graphs = StudyPlan(num_seeds=2).graphs()
    assert len(set(graphs)) == len(graphs) == 2 * (5 + 3) * 2
    assert len(StudyPlan(300, 1, quick=True).graphs()) == 3
    for sizes in ((99, 1), (100, 0), (100.0, 1)):
        with pytest.raises(ValueError, match="whole number"):
            StudyPlan(*sizes)


def test_kl_matches_scipy_and_total_variation_the_worst_event():
    true, predicted = distributions(5, 4, 0), distributions(5, 4, 1)
    assert mean_kl(true, predicted) == pytest.approx(entropy(true.numpy(), predicted.numpy(), axis=1).mean())
    events = list(itertools.product([0.0, 1.0], repeat=4))
    pairs = zip(true.numpy(), predicted.numpy(), strict=True)
    worst = [max(abs(np.dot(event, p - q)) for event in events) for p, q in pairs]
    assert mean_total_variation(true, predicted) == pytest.approx(np.mean(worst))
    certain = torch.tensor([[1.0, 0.0]])
    assert mean_kl(certain, certain) == 0.0
    assert mean_kl(torch.tensor([[0.5, 0.5]]), certain) == np.inf


def test_kl_is_the_expected_excess_nll():
    true, predicted = distributions(2, 9, 2).reshape(2, 3, 3)
    edge, excess = torch.tensor([[0], [1]]), 0.0
    for labels in itertools.product(range(3), repeat=2):
        nll = [
            evaluate(torch.stack([q.sum(1), q.sum(0)]), torch.tensor(labels), edge, edge_probs=q[None]).edgewise.nll
            for q in (predicted, true)
        ]
        excess += float(true[labels]) * (nll[0] - nll[1])
    assert excess == pytest.approx(mean_kl(true.reshape(1, 9), predicted.reshape(1, 9)), rel=1e-5)


def test_expected_ece_of_deterministic_labels_is_the_ece():
    num_edges = 40
    node = distributions(2 * num_edges, 3, 3)
    edges = torch.arange(2 * num_edges).reshape(2, -1)
    y = torch.from_numpy(np.random.default_rng(4).integers(3, size=2 * num_edges))
    predicted = node[edges[0]][:, :, None] * node[edges[1]][:, None, :]
    true = torch.zeros(num_edges, 3, 3, dtype=torch.float64)
    true[torch.arange(num_edges), y[edges[0]], y[edges[1]]] = 1.0
    ours = expected_ece(true, predicted, node[edges].argmax(-1))
    assert ours == pytest.approx(evaluate(node, y, edges).edgewise.ece)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_rank_correlation_matches_scipy(pairs):
    a, b = np.array(pairs, dtype=float).T
    ours = rank_correlation(a, b)
    if np.ptp(a) and np.ptp(b):
        assert ours == pytest.approx(spearmanr(a, b).statistic)
    else:
        assert np.isnan(ours)


def test_agreement_matches_kendall_and_spearman():
    rng = np.random.default_rng(0)
    ece, kl = rng.random((6, 5)), rng.random((6, 5))
    rows = [
        row(name, seed, edge_ece=ece[seed, k], edge_kl=kl[seed, k])
        for seed in range(6)
        for k, name in enumerate("abcde")
    ]
    found = agreement(rows, "edge_ece", "edge_kl")
    tau = [kendalltau(ece[seed], kl[seed]).statistic for seed in range(6)]
    assert found.concordance == pytest.approx((1 + np.mean(tau)) / 2)
    assert found.rank == pytest.approx(np.mean([spearmanr(ece[seed], kl[seed]).statistic for seed in range(6)]))
    assert found.rank_overall == pytest.approx(spearmanr(ece.flatten(), kl.flatten()).statistic)
    assert found.pairs == 60
    assert found.interval[0] < found.concordance < found.interval[1]


def test_agreement_of_ties_or_no_rows_has_no_pairs():
    ties = [row("gcn"), row("epfgnn")]
    found = agreement(ties, "edge_ece", "edge_kl")
    assert found.pairs == 0 and np.isnan(found.concordance) and np.isnan(found.rank)
    assert agreement([], "edge_ece", "edge_kl").pairs == 0


def test_excess_nll_and_graphs_below_truth():
    rows = [row("truth", edge_nll=1.0, edge_ece=0.1), row("gcn", edge_nll=1.7, edge_kl=0.6, edge_ece=0.05)]
    ((found, excess),) = excess_edge_nll(rows)
    assert found.predictor == "gcn" and excess == pytest.approx(0.7)
    assert count_graphs_below_truth(rows, "gcn", "edge_ece") == (1, 1)


def test_csv_round_trip(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [row("gcn", edge_kl=0.3333333, edge_nll=np.inf), row("gat", 1, edge_ece=np.float64(1e-17))]
    write_rows(path, rows)
    assert read_rows(path) == rows
    assert read_rows(tmp_path / "none.csv") == []


def test_store_round_trip(tmp_path):
    rows = [row("gcn", edge_kl=0.3333333, edge_nll=np.inf), row("gat", 1, edge_ece=1e-17)]
    with StudyStore.writing(tmp_path) as store:
        store.add(rows[:1])
        store.add(rows[1:])
    with StudyStore.reading(tmp_path) as store:
        assert store.rows() == rows
    with pytest.raises(StoreError, match="edgewise study --out"):
        StudyStore.reading(tmp_path / "none")


def test_truncated_last_line_is_ignored(tmp_path):
    path = tmp_path / "rows.csv"
    write_rows(path, [row("gcn"), row("gat")])
    path.write_text(path.read_text()[:-9])
    assert [found.predictor for found in read_rows(path)] == ["gcn"]


def test_csv_with_other_columns_raises_value_error(tmp_path):
    path = tmp_path / ROWS_FILE
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="another folder"):
        read_rows(path)


def test_references_with_less_information_are_farther_from_the_truth():
    (truth, marginals, features, base) = study_graph(
        (
            GraphKey("mrf", "regular", 3.0, 2, 100, 0.6, 1.0, 0),
            ("truth", "true marginals", "features alone", "base rate"),
        )
    )
    assert truth.scores["edge_kl"] == truth.scores["edge_tv"] == 0.0
    assert marginals.scores["node_kl"] == pytest.approx(0.0, abs=1e-12)
    assert 0.0 < marginals.scores["edge_kl"] < features.scores["edge_kl"] < base.scores["edge_kl"]
    assert base.scores["edge_nll"] > truth.scores["edge_nll"]
    assert truth.scores["edge_ece_expected"] < 0.05
    assert all(found.scores["truth_r_hat"] < 1.1 for found in (truth, base))


def test_products_below_float32_have_finite_kl():
    graph = synthetic(50, 2, seed=0)
    extreme = IndependentPosterior(torch.tensor([1e-30, 1.0]).expand(50, 2))
    uniform = IndependentPosterior(torch.full((50, 2), 0.5))
    found = score_prediction(extreme, uniform, graph, graph.data.y >= 0)
    node_kl = math.log(0.5) - (math.log(1e-30) + math.log(1.0)) / 2
    assert found["node_kl"] == pytest.approx(node_kl, rel=1e-6)
    assert found["edge_kl"] == pytest.approx(2 * node_kl, rel=1e-6)


def test_study_writes_rows_and_resumes(two_graphs, tmp_path):
    calls = []
    rows = run_study(two_graphs, tmp_path, InProcessWorkers(), lambda *progress: calls.append(progress))
    assert [progress[:2] for progress in calls] == [(1, 2), (2, 2)]
    assert len(rows) == 6 and missing_jobs(two_graphs, rows) == []
    assert read_rows(tmp_path / ROWS_FILE) == rows
    assert (
        run_study(two_graphs, tmp_path, InProcessWorkers(), lambda *_: pytest.fail("a finished graph was run again"))
        == rows
    )
    assert [list(names) for _, names in missing_jobs(two_graphs, rows[:4])] == [["true marginals", "base rate"]]
    other = tmp_path / "other"
    with StudyStore.writing(other) as store:
        store.add(rows[4:])
    assert run_study(two_graphs, other, InProcessWorkers()) == rows  # in the order of the plan
    assert (other / ROWS_FILE).read_bytes() == (tmp_path / ROWS_FILE).read_bytes()


def test_csv_of_an_earlier_version_is_imported(two_graphs, tmp_path):
    imported = [row("truth")]  # of another plan
    write_rows(tmp_path / ROWS_FILE, imported)
    rows = run_study(two_graphs, tmp_path, InProcessWorkers())
    assert read_rows(tmp_path / ROWS_FILE) == rows + imported
    with StudyStore.reading(tmp_path) as store:
        assert store.rows() == imported + rows


JOBS = [(GraphKey("mrf", "regular", 3.0, 2, 100, 0.6, 1.0, seed), ("truth", "features alone")) for seed in range(2)]


def test_rows_are_the_same_after_pickling_jobs_and_results():
    function, (first, second) = pickle.loads(pickle.dumps((study_graph, JOBS)))
    rows = pickle.loads(pickle.dumps(function(second)))
    assert rows == study_graph(JOBS[1]) != study_graph(first)
    assert [found.graph for found in rows] == [JOBS[1][0]] * 2


@pytest.mark.slow
def test_worker_process_gives_the_same_rows():
    found = {outcome.job: outcome.result for outcome in LocalProcesses(1).execute(study_graph, JOBS)}
    assert found == {job: study_graph(job) for job in JOBS}


def test_failing_graph_does_not_affect_others(two_graphs, tmp_path, monkeypatch):
    def fail_at_low_homophily(job):
        if job[0].homophily == 0.2:
            raise ValueError("bad graph")
        return study_graph(job)

    monkeypatch.setattr(study, "study_graph", fail_at_low_homophily)
    with pytest.raises(ValueError, match=r"1 failed\. block_model of homophily 0\.2, .*bad graph"):
        run_study(two_graphs, tmp_path, InProcessWorkers())
    assert len(read_rows(tmp_path / ROWS_FILE)) == 3


@pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # a small graph, on purpose
def test_trained_predictors_have_finite_distances(monkeypatch):
    brief = {"GCN": {"max_epochs": 9}, "GAT": {"max_epochs": 9}, "GMNN": {"pretrain_epochs": 9, "round_epochs": 9}}
    brief |= {"EPFGNN": {"pretrain_epochs": 9, "rounds": 2, "steps": 9}, "JointGCN": {"max_epochs": 9, "folds": 2}}
    for name, epochs in brief.items():
        monkeypatch.setattr(study_predictors, name, partial(getattr(ew, name), **epochs))
    rows = study_graph((key()._replace(homophily=0.8), tuple(TRAINED_PREDICTORS)))
    assert [found.predictor for found in rows] == list(TRAINED_PREDICTORS)
    assert all(0.0 < found.scores["edge_kl"] < 10.0 for found in rows)
    assert all(0.0 < found.scores["edge_tv"] < 1.0 for found in rows)


def rows_ordered_by(metric):
    """Return rows in which one score orders predictors correctly and the others at random."""
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(20):
        for name in PREDICTORS:
            kl = 0.0 if name == "truth" else rng.random()
            values = {"edge_ece": rng.random(), "edge_ece_expected": rng.random(), "edge_nll": 1.0 + kl}
            rows.append(row(name, seed, **{**values, "edge_kl": kl, metric: 1.0 + kl}))
    return rows


def test_answer_matches_the_rows():
    random_ece, correct_ece = study_answer(rows_ordered_by("edge_nll")), study_answer(rows_ordered_by("edge_ece"))
    assert "hardly any evidence" in random_ece and "closer in 100% [100, 100]" in random_ece
    assert "differ by 0.000 nats" in random_ece and "rank correlation 1.000" in random_ece
    graphs = len({row.graph for row in rows_ordered_by("edge_ece")})
    pairs = graphs * math.comb(len(TRAINED_PREDICTORS), 2)
    assert f"in 100% [100, 100] of {pairs} pairs: strong evidence" in correct_ece
    assert study_text(rows_ordered_by("edge_nll")).splitlines()[1].startswith("truth")


def test_infinite_kl_is_excluded_from_the_mean_gap():
    rows = rows_ordered_by("edge_nll")
    far = row("gcn", seed=99, edge_kl=np.inf, edge_nll=np.inf)
    truth = row("truth", seed=99, edge_kl=0.0, edge_nll=1.0)
    assert "differ by 0.000 nats" in study_answer([*rows, truth, far])


def test_command_prints_the_answer_and_writes_files(two_graphs, tmp_path, monkeypatch):
    rows = rows_ordered_by("edge_nll")
    monkeypatch.setattr(study, "run_study", lambda plan, folder, workers, report: report(1, 1, rows[0].graph) or rows)
    result = run("study", "--out", tmp_path, "--quick")
    assert result.exit_code == 0, result.output
    assert study_answer(rows) in result.stdout
    assert "1/1 block_model, homophily 0.5" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"study.md", "study.png"}
    assert "![" in (tmp_path / "study.md").read_text(encoding="utf-8")


def rows_in(folder):
    """Return the rows of a study that may not have started yet."""
    try:
        with StudyStore.reading(folder) as store:
            return store.rows()
    except StoreError:
        return []


UNTRAINED = ("truth", "true marginals", "base rate")  # need no training: a graph takes less than a second


def check_finished_graphs(out, stderr, predictors):
    """Check what an interrupted command has left, and return the number of finished graphs."""
    assert "Finished graphs are saved" in stderr
    assert "Traceback" not in stderr
    assert ROWS_FILE not in {path.name for path in out.iterdir()}  # written only at the end
    per_graph = Counter(row.graph for row in rows_in(out))
    assert set(per_graph.values()) == {len(predictors)}
    return len(per_graph)


def test_ctrl_c_keeps_finished_graphs(tmp_path):
    def interrupt_at_third_graph():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
        calls = itertools.count(1)

        def study_or_interrupt(job):
            if next(calls) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return study_graph(job)

        study.study_graph = study_or_interrupt  # in a fork of this process
        study.PREDICTORS = {name: PREDICTORS[name] for name in UNTRAINED}
        workers.LocalProcesses = lambda count: InProcessWorkers()

    ended = command("study", "--out", tmp_path, "--nodes", 100, before=interrupt_at_third_graph)
    assert ended.code == 130
    assert check_finished_graphs(tmp_path, ended.stderr, UNTRAINED) == 2


COMMAND_WITH_PREDICTORS = """
from edgewise.__main__ import main
from edgewise.paper import study
study.PREDICTORS = {{name: study.PREDICTORS[name] for name in {}}}
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("predictors", [UNTRAINED, tuple(PREDICTORS)], ids=["untrained", "all"])
def test_ctrl_c_ends_worker_processes_and_keeps_finished_graphs(tmp_path, predictors):
    out, log = tmp_path / "study", tmp_path / "log"
    seeds = 1000  # more than finish before the interruption
    args = ["--out", out, "--nodes", 100, "--seeds", seeds, "--workers", 2]
    code = COMMAND_WITH_PREDICTORS.format(predictors)
    with started([sys.executable, "-c", code, "study", *map(str, args)], log) as process:
        assert wait_until(lambda: bool(rows_in(out)) or process.poll() is not None)
        pids = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(pids) >= 2
        os.killpg(process.pid, signal.SIGINT)  # to the whole group, as from a terminal
        assert process.wait(timeout=600) == 130
        assert wait_until_ended(pids)
    num_finished = check_finished_graphs(out, log.read_text(), predictors)
    assert num_finished < len(StudyPlan(100, seeds).graphs())


def test_command_with_too_few_nodes_exits_with_an_error(tmp_path):
    result = run("study", "--out", tmp_path, "--nodes", 5)
    assert result.exit_code == 2 and "nodes" in result.stderr


def test_documented_tables_match_the_documented_rows():
    folder = Path(__file__).parents[2] / "docs" / "study"
    assert (folder / "study.md").read_text(encoding="utf-8") == study_page(read_rows(folder / ROWS_FILE))


def test_numbers_on_the_page_match_the_documented_rows():
    docs = Path(__file__).parents[2] / "docs"
    page = docs / "study.md"
    rows = read_rows(docs / "study" / ROWS_FILE)
    graphs = {row.graph for row in rows}
    assert has_numbers(page, str(len(graphs)), str(len(PREDICTORS)), near="study.csv")
    assert len(rows) == len(graphs) * len(PREDICTORS)

    def percent(metric, predictors=TRAINED_PREDICTORS):
        return f"{agreement(select_rows(rows, predictors), metric, 'edge_kl').concordance:.0%}"

    trained = agreement(select_rows(rows, TRAINED_PREDICTORS), "edge_ece", "edge_kl")
    low, high = (f"{100 * limit:.0f}" for limit in trained.interval)
    uncalibrated = [name for name in TRAINED_PREDICTORS if not name.startswith("gcn, ")]
    others = agreement(select_rows(rows, uncalibrated), "edge_ece", "edge_kl")
    pairs_by_ece = f"{trained.concordance:.0%}", str(trained.pairs), "95%", low, high
    pairs_of_others = f"{others.concordance:.0%}", str(others.pairs)
    all_but_truth = [name for name in PREDICTORS if name != "truth"]
    by_other_scores = percent("edge_brier"), percent("edge_nll")
    of_all = percent("edge_ece", all_but_truth), percent("edge_nll", all_but_truth)
    assert has_numbers(page, *pairs_by_ece, *pairs_of_others, "50%", *by_other_scores, *of_all, near="edge ECE")
    assert has_numbers(page, percent("agree_ece"), percent("same_ece"), percent("disagree_ece"), near="agree ECE")
    assert has_numbers(page, percent("edge_ece_expected"), near="**The reason is not the sample size.**")

    kl = {name: {row.graph: row.scores["edge_kl"] for row in rows if row.predictor == name} for name in PREDICTORS}
    mean = {name: np.mean(list(of_graph.values())) for name, of_graph in kl.items()}
    below_truth = map(str, count_graphs_below_truth(rows, "base rate", "edge_ece"))
    assert has_numbers(
        page, *below_truth, f"{mean['base rate']:.2f}", f"{mean['features alone']:.2f}", near="base rate"
    )
    assert sum(mean[name] > mean["base rate"] for name in TRAINED_PREDICTORS) == 1  # "but one"

    def closer(one, other):
        return str(sum(kl[one][graph] < kl[other][graph] for graph in graphs))

    temperature, structured = "gcn, temperature", "gcn, structured"
    shown = {name: f"{value:.3f}" for name, value in mean.items()}
    after_temperature = shown["gcn"], shown[temperature], closer(temperature, "gcn"), str(len(graphs))
    after_structured = shown[structured], closer(structured, "gcn"), closer(structured, temperature)
    of_joint_gcn = shown["jointgcn"], closer("jointgcn", "gcn")
    assert has_numbers(page, *after_temperature, *after_structured, *of_joint_gcn, near="JointGCN")
    text = page.read_text(encoding="utf-8")
    for kind, homophily in {(graph.kind, graph.homophily) for graph in graphs}:
        alike = [graph for graph in graphs if (graph.kind, graph.homophily) == (kind, homophily)]
        assert len(alike) == 6
        names = ("gcn", temperature, structured, "jointgcn", "mlp")
        cells = (f"{np.mean([kl[name][graph] for graph in alike]):.2f}" for name in names)
        kind_on_page = {"block_model": "block model", "mrf": "Potts model"}[kind]
        assert f"| {kind_on_page}, {homophily:g} | {' | '.join(cells)} |" in text
    own_predictions = docs / "own-predictions.md"
    assert has_numbers(own_predictions, percent("edge_nll"), f"{trained.concordance:.0%}", near="[study](study.md)")


def test_column_names_are_unique():
    assert len(set(COLUMNS)) == len(COLUMNS)
