import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import edgewise as ew
from edgewise.metrics.sums import VIEWS
from edgewise.paper.readings import CALIBRATORS, KNOWN_MODELS, PREDICTIONS, READINGS
from edgewise.paper.recipes import RECIPES, paper_plan, posterior_with_misplaced_evidence
from edgewise.sweep.run import Runner
from edgewise.sweep.runs import SAME_LABEL, Run, as_prediction
from edgewise.sweep.sources import GraphWithSplits, load_once
from edgewise.version import versions
from helpers.run_numbers import numbers


@pytest.fixture(scope="module")
def graph(runner: Runner) -> GraphWithSplits:
    return load_once(runner.sources, "cora", runner.n_splits)


@pytest.fixture(scope="module")
def runs(runner: Runner) -> dict[str, Run]:
    """Give one run of each model, on the same fold; not the first, whose seed is 0."""
    keys = paper_plan(("cora",), KNOWN_MODELS, splits=2, folds=1, inits=1).runs()
    return {key.model: runner(key) for key in keys if key.split == 1}


def scored(graph: GraphWithSplits, run: Run, posterior: object) -> str:
    """Score by hand; as text, in which NaN is like NaN."""
    split = graph.splits[run.key.split, run.key.fold]
    ev = ew.evaluate(posterior, graph.data.y, graph.data.edge_index, mask=split.test, same_label=True)
    return repr(as_prediction(ev))


def fitted(model: ew.GCN, graph: GraphWithSplits, run: Run) -> object:
    return model.fit(graph.data, graph.splits[run.key.split, run.key.fold], seed=run.key.seed)


def test_every_prediction_that_a_reading_asks_for_is_there(runs: dict[str, Run]) -> None:
    for rows in READINGS.values():
        for row, source in rows.items():
            assert source.prediction in runs[source.model].predictions, row


def test_every_prediction_is_explained_and_scored_on_every_view(runs: dict[str, Run]) -> None:
    found = {name for run in runs.values() for name in run.predictions}
    assert found == set(PREDICTIONS) - set(CALIBRATORS)
    for run in runs.values():
        for prediction in run.predictions.values():
            assert set(prediction) == {*VIEWS, SAME_LABEL}
            assert all(result.count > 0 for result in prediction.values())


@pytest.mark.parametrize(("name", "model"), [("gcn", ew.GCN()), ("gat", ew.GAT())])
def test_gcn_and_gat_are_scored_with_products_of_node_marginals(
    name: str, model: ew.GCN, graph: GraphWithSplits, runs: dict[str, Run]
) -> None:
    run = runs[name]
    node = fitted(model, graph, run).posterior().node
    assert {key: repr(value) for key, value in run.predictions.items()} == {"product": scored(graph, run, node)}


def test_gmnn_is_scored_in_three_ways(graph: GraphWithSplits, runs: dict[str, Run]) -> None:
    run = runs["gmnn"]
    found = fitted(ew.GMNN(), graph, run)
    mixture = found.posterior("mixture")
    expected = {
        "averaged_logits": scored(graph, run, found.posterior("averaged_logits").node),
        "mixture_product": scored(graph, run, mixture.node),
        "mixture": scored(graph, run, mixture),
    }
    assert {key: repr(value) for key, value in run.predictions.items()} == expected
    product, joint = run.predictions["mixture_product"], run.predictions["mixture"]
    assert product["nodewise"] == joint["nodewise"]
    assert product["edgewise"] != joint["edgewise"]


def test_epfgnn_is_trained_and_scored_as_published_and_as_defined(graph: GraphWithSplits, runs: dict[str, Run]) -> None:
    run = runs["epfgnn"]
    published, defined = (fitted(model, graph, run) for model in (ew.EPFGNN(schedule="published"), ew.EPFGNN()))
    expected = {
        "published_misplaced_evidence": scored(graph, run, posterior_with_misplaced_evidence(published).node),
        "published_mean_field": scored(graph, run, published.posterior("mean_field").node),
        "published_sum_product": scored(graph, run, published.posterior("sum_product")),
        "mean_field": scored(graph, run, defined.posterior("mean_field").node),
        "sum_product": scored(graph, run, defined.posterior("sum_product")),
    }
    assert {key: repr(value) for key, value in run.predictions.items()} == expected
    assert len(set(expected.values())) == 5
    assert run.epochs == published.history.epochs + defined.history.epochs


def test_a_key_gives_the_same_run_again_and_another_initialization_another(
    runner: Runner, runs: dict[str, Run]
) -> None:
    for model in ("gcn", "gmnn"):
        run = runs[model]
        again = runner(run.key)
        assert numbers([again]) == numbers([run])
        other = runner(replace(run.key, init=1))
        assert other.seed != run.seed
        for name, prediction in run.predictions.items():
            assert other.predictions[name]["nodewise"].nll != prediction["nodewise"].nll


def test_a_run_tells_what_it_was_made_with(runs: dict[str, Run]) -> None:
    for model in KNOWN_MODELS:
        run = runs[model]
        assert run.versions == versions()
        assert run.versions["edgewise"] == ew.__version__
        assert set(run.versions) == {"edgewise", "python", "torch", "torch_geometric", "numpy", "scipy", "numba"}
        assert run.epochs > 100
        assert 0 < run.seconds < 600
        finished = datetime.fromisoformat(run.finished)
        assert timedelta() <= datetime.now(UTC) - finished < timedelta(hours=1)


def test_hyper_parameters_of_another_version_are_refused(runner: Runner, runs: dict[str, Run]) -> None:
    key = replace(runs["gcn"].key, hyperparameters='[{"hidden": 1}]')
    with pytest.raises(ValueError, match=r"hyper-parameters of this version, but got others for cora gcn split 1"):
        runner(key)


@pytest.fixture(scope="module")
def calibrated(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Runner]:
    """Give a GCN with all calibrators, whose training is kept."""
    plan = paper_plan(("cora",), ("gcn",), 2, 1, 1, calibrators=("all",))
    keeping = replace(runner, calibrators=plan.calibrators, fitted=str(tmp_path_factory.mktemp("fitted") / "new"))
    (key,) = (key for key in plan.runs() if key.split == 1)
    return keeping(key), keeping


def test_calibrators_add_predictions_and_change_nothing_else(
    calibrated: tuple[Run, Runner], runs: dict[str, Run], graph: GraphWithSplits
) -> None:
    run, _ = calibrated
    assert list(run.predictions) == ["product", *CALIBRATORS]
    assert set(CALIBRATORS) < set(PREDICTIONS)
    assert repr(run.predictions["product"]) == repr(runs["gcn"].predictions["product"])
    split = graph.splits[run.key.split, run.key.fold]
    temperature = ew.TemperatureScaling().fit(fitted(ew.GCN(), graph, run), graph.data, split)
    assert repr(run.predictions["temperature"]) == scored(graph, run, temperature)
    joint, local = run.predictions["structured"], run.predictions["local"]
    assert joint["nodewise"].nll == pytest.approx(local["nodewise"].nll)
    assert joint["edgewise"].nll != local["edgewise"].nll


def test_a_kept_model_is_not_trained_again(calibrated: tuple[Run, Runner], monkeypatch: pytest.MonkeyPatch) -> None:
    run, keeping = calibrated
    assert len(list(Path(keeping.fitted or "").iterdir())) == 1
    monkeypatch.setattr(ew.GCN, "fit", None)
    again = keeping(run.key)
    assert numbers([again]) == numbers([run])
    with pytest.raises(TypeError):  # another initialization is another training
        keeping(replace(run.key, init=1))


def test_another_set_of_calibrators_is_another_run(runs: dict[str, Run]) -> None:
    plain, one, all_of_them = (
        paper_plan(("cora",), ("gcn", "gmnn"), 1, 1, 1, calibrators=names).runs() for names in ((), ("gats",), ("all",))
    )
    of = {
        key.model: [key.hyperparameters, *more]
        for key, *more in zip(
            plain, (k.hyperparameters for k in one), (k.hyperparameters for k in all_of_them), strict=True
        )
    }
    assert len(set(of["gcn"])) == 3
    assert len(set(of["gmnn"])) == 1  # which is not calibrated
    assert of["gcn"][0] == runs["gcn"].key.hyperparameters


def test_what_workers_are_given_can_be_pickled(calibrated: tuple[Run, Runner]) -> None:
    run, keeping = calibrated
    assert numbers([pickle.loads(pickle.dumps(keeping))(run.key)]) == numbers([run])
    assert set(RECIPES) == {"epfgnn"}  # all other models are run by their defaults
