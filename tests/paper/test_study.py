import itertools
import math
import os
import signal
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy, kendalltau, spearmanr

import edgewise as ew
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
    scores,
)
from edgewise.paper.study_report import (
    agreement,
    chosen,
    count_graphs_below_truth,
    excess_edge_nll,
    rank_correlation,
    study_answer,
    study_page,
    study_text,
)
from edgewise.posterior import IndependentPosterior
from edgewise.simulation import synthetic
from edgewise.sweep.result_file import StoreError
from edgewise.workers import LocalProcesses
from helpers.fake_study import key, row
from helpers.in_process_workers import InProcessWorkers
from helpers.page_numbers import has_numbers
from helpers.processes import started, wait_until, wait_until_ended
from test_cli import run


def distributions(rows, entries, seed):
    return torch.tensor(np.random.default_rng(seed).dirichlet(np.ones(entries), size=rows))


@pytest.fixture
def two_graphs(monkeypatch):
    """A plan of two graphs of 100 nodes, and three predictors that are not trained."""
    monkeypatch.setattr(study, "QUICK_HOMOPHILIES", {"block_model": (0.2, 0.8)})
    few = {name: REFERENCE_PREDICTORS[name] for name in ("truth", "true marginals", "base rate")}
    monkeypatch.setattr(study, "PREDICTORS", few)
    monkeypatch.setattr(study, "SWEEPS", 50)
    monkeypatch.setattr(study, "MAX_RETRIES", 0)
    return StudyPlan(100, 1, quick=True)


def test_a_plan_lists_each_graph_once_and_all_can_be_drawn():
    graphs = StudyPlan(num_seeds=2).graphs()
    assert len(set(graphs)) == len(graphs) == 2 * (5 + 3) * 2
    assert len(StudyPlan(300, 1, quick=True).graphs()) == 3
    for sizes in ((99, 1), (100, 0), (100.0, 1)):
        with pytest.raises(ValueError, match="whole number"):
            StudyPlan(*sizes)


def test_divergence_and_variation_are_those_of_scipy_and_of_all_events():
    true, said = distributions(5, 4, 0), distributions(5, 4, 1)
    assert mean_kl(true, said) == pytest.approx(entropy(true.numpy(), said.numpy(), axis=1).mean())
    events = list(itertools.product([0.0, 1.0], repeat=4))
    worst = [
        max(abs(np.dot(event, p - q)) for event in events) for p, q in zip(true.numpy(), said.numpy(), strict=True)
    ]
    assert mean_total_variation(true, said) == pytest.approx(np.mean(worst))
    certain = torch.tensor([[1.0, 0.0]])
    assert mean_kl(certain, certain) == 0.0
    assert mean_kl(torch.tensor([[0.5, 0.5]]), certain) == np.inf


def test_divergence_is_the_expected_nll_above_that_of_the_truth():
    true, said = distributions(2, 9, 2).reshape(2, 3, 3)
    edge, excess = torch.tensor([[0], [1]]), 0.0
    for labels in itertools.product(range(3), repeat=2):
        nll = [
            evaluate(torch.stack([q.sum(1), q.sum(0)]), torch.tensor(labels), edge, edge_probs=q[None]).edgewise.nll
            for q in (said, true)
        ]
        excess += float(true[labels]) * (nll[0] - nll[1])
    assert excess == pytest.approx(mean_kl(true.reshape(1, 9), said.reshape(1, 9)), rel=1e-5)


def test_expected_ece_of_certain_labels_is_the_ece():
    num_edges = 40
    node = distributions(2 * num_edges, 3, 3)
    edges = torch.arange(2 * num_edges).reshape(2, -1)
    y = torch.from_numpy(np.random.default_rng(4).integers(3, size=2 * num_edges))
    said = node[edges[0]][:, :, None] * node[edges[1]][:, None, :]
    true = torch.zeros(num_edges, 3, 3, dtype=torch.float64)
    true[torch.arange(num_edges), y[edges[0]], y[edges[1]]] = 1.0
    ours = expected_ece(true, said, node[edges].argmax(-1))
    assert ours == pytest.approx(evaluate(node, y, edges).edgewise.ece)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_rank_correlation_is_that_of_scipy(pairs):
    a, b = np.array(pairs, dtype=float).T
    ours = rank_correlation(a, b)
    if np.ptp(a) and np.ptp(b):
        assert ours == pytest.approx(spearmanr(a, b).statistic)
    else:
        assert np.isnan(ours)


def test_agreement_counts_pairs_as_kendall_does():
    rng = np.random.default_rng(0)
    ece, kl = rng.random((6, 5)), rng.random((6, 5))
    rows = [
        row(name, seed, edge_ece=ece[seed, k], edge_kl=kl[seed, k])
        for seed in range(6)
        for k, name in enumerate("abcde")
    ]
    found = agreement(rows, "edge_ece", "edge_kl")
    tau = [kendalltau(ece[seed], kl[seed]).statistic for seed in range(6)]
    assert found.right == pytest.approx((1 + np.mean(tau)) / 2)
    assert found.rank == pytest.approx(np.mean([spearmanr(ece[seed], kl[seed]).statistic for seed in range(6)]))
    assert found.rank_overall == pytest.approx(spearmanr(ece.flatten(), kl.flatten()).statistic)
    assert found.pairs == 60
    assert found.interval[0] < found.right < found.interval[1]


def test_equal_predictors_and_lonely_graphs_have_no_order():
    same = [row("gcn"), row("epfgnn")]
    found = agreement(same, "edge_ece", "edge_kl")
    assert found.pairs == 0 and np.isnan(found.right) and np.isnan(found.rank)
    assert agreement([], "edge_ece", "edge_kl").pairs == 0


def test_what_is_above_the_truth_and_what_is_below():
    rows = [row("truth", edge_nll=1.0, edge_ece=0.1), row("gcn", edge_nll=1.7, edge_kl=0.6, edge_ece=0.05)]
    ((found, excess),) = excess_edge_nll(rows)
    assert found.predictor == "gcn" and excess == pytest.approx(0.7)
    assert count_graphs_below_truth(rows, "gcn", "edge_ece") == (1, 1)


def test_rows_come_back_from_their_file(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [row("gcn", edge_kl=0.3333333, edge_nll=np.inf), row("gat", 1, edge_ece=np.float64(1e-17))]
    write_rows(path, rows)
    assert read_rows(path) == rows
    assert read_rows(tmp_path / "none.csv") == []


def test_rows_come_back_from_their_store(tmp_path):
    rows = [row("gcn", edge_kl=0.3333333, edge_nll=np.inf), row("gat", 1, edge_ece=1e-17)]
    with StudyStore.writing(tmp_path) as store:
        store.add(rows[:1])
        store.add(rows[1:])
    with StudyStore.reading(tmp_path) as store:
        assert store.rows() == rows
    with pytest.raises(StoreError, match="edgewise study --out"):
        StudyStore.reading(tmp_path / "none")


def test_a_line_that_was_cut_off_is_no_row(tmp_path):
    path = tmp_path / "rows.csv"
    write_rows(path, [row("gcn"), row("gat")])
    path.write_text(path.read_text()[:-9])
    assert [found.predictor for found in read_rows(path)] == ["gcn"]


def test_other_tables_are_refused(tmp_path):
    path = tmp_path / ROWS_FILE
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="Name another folder"):
        read_rows(path)


def test_references_are_as_far_from_the_truth_as_information_says():
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


def test_products_too_small_for_float32_are_not_impossible():
    graph = synthetic(50, 2, seed=0)
    sure = torch.tensor([1e-30, 1.0]).expand(50, 2)
    found = scores(IndependentPosterior(sure), IndependentPosterior(torch.full((50, 2), 0.5)), graph, graph.data.y >= 0)
    each = math.log(0.5) - (math.log(1e-30) + math.log(1.0)) / 2
    assert found["node_kl"] == pytest.approx(each, rel=1e-6)
    assert found["edge_kl"] == pytest.approx(2 * each, rel=1e-6)


def test_a_study_writes_rows_and_does_only_what_is_missing(two_graphs, tmp_path):
    told = []
    rows = run_study(two_graphs, tmp_path, InProcessWorkers(), lambda *progress: told.append(progress))
    assert [progress[:2] for progress in told] == [(1, 2), (2, 2)]
    assert len(rows) == 6 and missing_jobs(two_graphs, rows) == []
    assert read_rows(tmp_path / ROWS_FILE) == rows
    assert run_study(two_graphs, tmp_path, InProcessWorkers(), lambda *_: pytest.fail("was done again")) == rows
    assert [list(names) for _, names in missing_jobs(two_graphs, rows[:4])] == [["true marginals", "base rate"]]
    other = tmp_path / "other"
    with StudyStore.writing(other) as store:
        store.add(rows[4:])
    assert run_study(two_graphs, other, InProcessWorkers()) == rows  # in the order of the plan, whichever was first
    assert (other / ROWS_FILE).read_bytes() == (tmp_path / ROWS_FILE).read_bytes()


def test_a_table_of_an_earlier_version_is_gone_on_with(two_graphs, tmp_path):
    done = [row("truth")]  # of another plan
    write_rows(tmp_path / ROWS_FILE, done)
    rows = run_study(two_graphs, tmp_path, InProcessWorkers())
    assert read_rows(tmp_path / ROWS_FILE) == rows + done
    with StudyStore.reading(tmp_path) as store:
        assert store.rows() == done + rows


def test_processes_give_the_same_rows():
    key = GraphKey("mrf", "regular", 3.0, 2, 100, 0.6, 1.0, 0)
    jobs = [(key._replace(seed=seed), ("truth", "features alone")) for seed in range(2)]
    found = {outcome.job: outcome.result for outcome in LocalProcesses(2).execute(study_graph, jobs)}
    assert found == {job: study_graph(job) for job in jobs}


def test_a_graph_that_fails_costs_only_itself(two_graphs, tmp_path, monkeypatch):
    def unlucky(job):
        if job[0].homophily == 0.2:
            raise ValueError("no luck")
        return study_graph(job)

    monkeypatch.setattr(study, "study_graph", unlucky)
    message = r"2 graphs, but 1 of them failed\. block_model of homophily 0\.2, .*no luck\. Finished graphs are safe"
    with pytest.raises(ValueError, match=message):
        run_study(two_graphs, tmp_path, InProcessWorkers())
    assert len(read_rows(tmp_path / ROWS_FILE)) == 3


def test_every_predictor_gives_beliefs_about_all_nodes(monkeypatch):
    brief = {"GCN": {"max_epochs": 9}, "GAT": {"max_epochs": 9}, "GMNN": {"pretrain_epochs": 9, "round_epochs": 9}}
    brief["EPFGNN"] = {"pretrain_epochs": 9, "rounds": 2, "steps": 9}
    for name, epochs in brief.items():
        monkeypatch.setattr(study_predictors, name, partial(getattr(ew, name), **epochs))
    rows = study_graph((key()._replace(homophily=0.8), tuple(TRAINED_PREDICTORS)))
    assert [found.predictor for found in rows] == list(TRAINED_PREDICTORS)
    assert all(0.0 < found.scores["edge_kl"] < 10.0 for found in rows)
    assert all(0.0 < found.scores["edge_tv"] < 1.0 for found in rows)


def rows_ordered_by(metric):
    """Make rows in which one score is always right, and the other orders at random."""
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(20):
        for name in PREDICTORS:
            kl = 0.0 if name == "truth" else rng.random()
            chance = {"edge_ece": rng.random(), "edge_ece_expected": rng.random(), "edge_nll": 1.0 + kl}
            rows.append(row(name, seed, **{**chance, "edge_kl": kl, metric: 1.0 + kl}))
    return rows


def test_the_answer_follows_the_rows():
    by_chance, by_ece = study_answer(rows_ordered_by("edge_nll")), study_answer(rows_ordered_by("edge_ece"))
    assert "hardly any evidence" in by_chance and "By the edge NLL it is 100% [100, 100]" in by_chance
    assert "differ by 0.000 nats" in by_chance and "rank correlation 1.000" in by_chance
    graphs = len({row.graph for row in rows_ordered_by("edge_ece")})
    pairs = graphs * math.comb(len(TRAINED_PREDICTORS), 2)
    assert f"in 100% [100, 100] of {pairs} pairs: strong evidence" in by_ece
    assert study_text(rows_ordered_by("edge_nll")).splitlines()[1].startswith("truth")


def test_what_is_infinitely_far_is_left_out_of_means_of_gaps():
    rows = rows_ordered_by("edge_nll")
    far = row("gcn", seed=99, edge_kl=np.inf, edge_nll=np.inf)
    truth = row("truth", seed=99, edge_kl=0.0, edge_nll=1.0)
    assert "differ by 0.000 nats" in study_answer([*rows, truth, far])


def test_the_command_prints_the_answer_and_writes_its_files(two_graphs, tmp_path, monkeypatch):
    done = rows_ordered_by("edge_nll")
    monkeypatch.setattr(study, "run_study", lambda plan, folder, workers, tell: tell(1, 1, done[0].graph) or done)
    result = run("study", "--out", tmp_path, "--quick")
    assert result.exit_code == 0, result.output
    assert "Does a lower edge ECE mean a joint nearer to the truth?" in result.stdout
    assert "1/1 block_model, homophily 0.5" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"study.md", "study.png"}
    assert "![" in (tmp_path / "study.md").read_text(encoding="utf-8")


def rows_in(folder):
    """Read the rows of a study that may be at its beginning."""
    try:
        with StudyStore.reading(folder) as store:
            return store.rows()
    except StoreError:
        return []


def test_ctrl_c_leaves_whole_graphs_to_go_on_with(tmp_path):
    out, log = tmp_path / "study", tmp_path / "log"
    args = ["--out", out, "--nodes", 100, "--seeds", 1, "--workers", 2]
    with started([sys.executable, "-m", "edgewise", "study", *map(str, args)], log) as process:
        assert wait_until(lambda: bool(rows_in(out)) or process.poll() is not None)
        workers = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(workers) >= 2
        os.killpg(process.pid, signal.SIGINT)  # all get it, as from a terminal
        assert process.wait(timeout=600) == 130
        assert wait_until_ended(workers)
    assert "Finished graphs are saved" in log.read_text()
    assert "Traceback" not in log.read_text()
    per_graph = Counter(row.graph for row in rows_in(out))
    assert set(per_graph.values()) == {len(PREDICTORS)}
    assert len(per_graph) < len(StudyPlan(100, 1).graphs())
    assert ROWS_FILE not in {path.name for path in out.iterdir()}  # which is written in the end


def test_the_command_refuses_small_graphs(tmp_path):
    result = run("study", "--out", tmp_path, "--nodes", 5)
    assert result.exit_code == 2 and "nodes" in result.stderr


def test_the_documented_tables_are_what_the_documented_rows_say():
    folder = Path(__file__).parents[2] / "docs" / "study"
    assert (folder / "study.md").read_text(encoding="utf-8") == study_page(read_rows(folder / ROWS_FILE))


def test_numbers_on_the_page_are_those_of_the_documented_rows():
    docs = Path(__file__).parents[2] / "docs"
    page = docs / "study.md"
    rows = read_rows(docs / "study" / ROWS_FILE)
    graphs = {row.graph for row in rows}
    assert has_numbers(page, str(len(graphs)), str(len(PREDICTORS)))
    assert len(rows) == len(graphs) * len(PREDICTORS)

    def percent(metric, predictors=TRAINED_PREDICTORS):
        return f"{agreement(chosen(rows, predictors), metric, 'edge_kl').right:.0%}"

    learned = agreement(chosen(rows, TRAINED_PREDICTORS), "edge_ece", "edge_kl")
    low, high = (f"{100 * limit:.0f}" for limit in learned.interval)
    uncalibrated = [name for name in TRAINED_PREDICTORS if not name.startswith("gcn, ")]
    others = agreement(chosen(rows, uncalibrated), "edge_ece", "edge_kl")
    pairs_by_ece = f"{learned.right:.0%}", str(learned.pairs), "95%", low, high
    pairs_of_others = f"{others.right:.0%}", str(others.pairs)
    all_but_truth = [name for name in PREDICTORS if name != "truth"]
    by_other_scores = percent("edge_brier"), percent("edge_nll")
    of_all = percent("edge_ece", all_but_truth), percent("edge_nll", all_but_truth)
    assert has_numbers(page, *pairs_by_ece, *pairs_of_others, "50%", *by_other_scores, *of_all)
    assert has_numbers(page, percent("agree_ece"), percent("same_ece"), percent("disagree_ece"))
    assert has_numbers(page, percent("edge_ece_expected"))

    kl = {name: {row.graph: row.scores["edge_kl"] for row in rows if row.predictor == name} for name in PREDICTORS}
    mean = {name: f"{np.mean(list(of_graph.values())):.3f}" for name, of_graph in kl.items()}

    def closer(one, other):
        return str(sum(kl[one][graph] < kl[other][graph] for graph in graphs))

    temperature, structured = "gcn, temperature", "gcn, structured"
    after_temperature = mean["gcn"], mean[temperature], closer(temperature, "gcn"), str(len(graphs))
    after_structured = mean[structured], closer(structured, "gcn"), closer(structured, temperature)
    of_joint_gcn = mean["jointgcn"], closer("jointgcn", "gcn")
    assert has_numbers(page, *after_temperature, *after_structured, *of_joint_gcn)
    text = page.read_text(encoding="utf-8")
    for kind, homophily in {(graph.kind, graph.homophily) for graph in graphs}:
        alike = [graph for graph in graphs if (graph.kind, graph.homophily) == (kind, homophily)]
        assert len(alike) == 6
        names = ("gcn", temperature, structured, "jointgcn", "mlp")
        cells = (f"{np.mean([kl[name][graph] for graph in alike]):.2f}" for name in names)
        kind_on_page = {"block_model": "block model", "mrf": "Potts model"}[kind]
        assert f"| {kind_on_page}, {homophily:g} | {' | '.join(cells)} |" in text
    assert has_numbers(docs / "own-predictions.md", percent("edge_nll"), f"{learned.right:.0%}")
    assert sum(mean[name] > mean["base rate"] for name in TRAINED_PREDICTORS) == 1


def test_columns_have_distinct_names():
    assert len(set(COLUMNS)) == len(COLUMNS)
