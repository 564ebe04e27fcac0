from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import edgewise as ew
from edgewise.metrics.sums import VIEWS
from edgewise.paper.misplaced_evidence import posterior_with_misplaced_evidence
from edgewise.paper.readings import CALIBRATORS, KNOWN_MODELS, PREDICTIONS, READINGS
from edgewise.sweep.plan import Plan
from edgewise.sweep.run import RECIPES, FittedFiles, perform
from edgewise.sweep.runs import SAME_LABEL, Run, as_prediction
from edgewise.sweep.sources import Task
from edgewise.version import versions
from edgewise.workers.jobs import Job, task_of
from experiments.numbers import numbers


@pytest.fixture(scope="module")
def task(job: Job) -> Task:
    return task_of(job, "cora")


@pytest.fixture(scope="module")
def runs(task: Task) -> dict[str, Run]:
    """Give one run of each model, on the same fold; not the first, whose seed is 0."""
    keys = Plan(("cora",), KNOWN_MODELS, splits=2, folds=1, inits=1).runs()
    return {key.model: perform(key, task) for key in keys if key.split == 1}


def scored(task: Task, run: Run, posterior: object) -> str:
    """Score by hand; as text, in which NaN is like NaN."""
    split = task.splits[run.key.split, run.key.fold]
    ev = ew.evaluate(posterior, task.data.y, task.data.edge_index, mask=split.test, same_label=True)
    return repr(as_prediction(ev))


def fitted(model: ew.GCN, task: Task, run: Run) -> object:
    return model.fit(task.data, task.splits[run.key.split, run.key.fold], seed=run.key.seed)


def test_every_prediction_that_a_reading_asks_for_is_there(runs: dict[str, Run]) -> None:
    for rows in READINGS.values():
        for row, source in rows.items():
            assert source.prediction in runs[source.model].predictions, row


def test_every_prediction_is_explained_and_scored_on_every_view(runs: dict[str, Run]) -> None:
    found = {name for run in runs.values() for name in run.predictions}
    assert found == set(PREDICTIONS) - set(CALIBRATORS)
    for run in runs.values():
        assert set(run.predictions) == {name for recipe in RECIPES[run.key.model] for name in recipe.predictions}
        for prediction in run.predictions.values():
            assert set(prediction) == {*VIEWS, SAME_LABEL}
            assert all(result.count > 0 for result in prediction.values())


@pytest.mark.parametrize(("name", "model"), [("gcn", ew.GCN()), ("gat", ew.GAT())])
def test_gcn_and_gat_are_scored_with_products_of_node_marginals(
    name: str, model: ew.GCN, task: Task, runs: dict[str, Run]
) -> None:
    run = runs[name]
    node = fitted(model, task, run).posterior().node
    assert {key: repr(value) for key, value in run.predictions.items()} == {"product": scored(task, run, node)}


def test_gmnn_is_scored_in_three_ways(task: Task, runs: dict[str, Run]) -> None:
    run = runs["gmnn"]
    found = fitted(ew.GMNN(), task, run)
    mixture = found.posterior("mixture")
    expected = {
        "averaged_logits": scored(task, run, found.posterior("averaged_logits").node),
        "mixture_product": scored(task, run, mixture.node),
        "mixture": scored(task, run, mixture),
    }
    assert {key: repr(value) for key, value in run.predictions.items()} == expected
    product, joint = run.predictions["mixture_product"], run.predictions["mixture"]
    assert product["nodewise"] == joint["nodewise"]
    assert product["edgewise"] != joint["edgewise"]


def test_epfgnn_is_trained_and_scored_as_published_and_as_defined(task: Task, runs: dict[str, Run]) -> None:
    run = runs["epfgnn"]
    published, defined = (fitted(model, task, run) for model in (ew.EPFGNN(schedule="published"), ew.EPFGNN()))
    expected = {
        "published_misplaced_evidence": scored(task, run, posterior_with_misplaced_evidence(published).node),
        "published_mean_field": scored(task, run, published.posterior("mean_field").node),
        "published_sum_product": scored(task, run, published.posterior("sum_product")),
        "mean_field": scored(task, run, defined.posterior("mean_field").node),
        "sum_product": scored(task, run, defined.posterior("sum_product")),
    }
    assert {key: repr(value) for key, value in run.predictions.items()} == expected
    assert len(set(expected.values())) == 5
    assert run.epochs == published.history.epochs + defined.history.epochs


def test_a_key_gives_the_same_run_again_and_another_initialisation_another(task: Task, runs: dict[str, Run]) -> None:
    for model in ("gcn", "gmnn"):
        run = runs[model]
        again = perform(run.key, task)
        assert numbers([again]) == numbers([run])
        other = perform(replace(run.key, init=1), task)
        assert other.seed != run.seed
        for name, prediction in run.predictions.items():
            assert other.predictions[name]["nodewise"].nll != prediction["nodewise"].nll


def test_a_run_tells_what_it_was_made_with(runs: dict[str, Run]) -> None:
    for model in KNOWN_MODELS:
        run = runs[model]
        assert run.versions == versions()
        assert run.versions["edgewise"] == ew.__version__
        assert set(run.versions) == {"edgewise", "python", "torch", "torch_geometric", "numpy", "numba"}
        assert run.epochs > 100
        assert 0 < run.seconds < 600
        finished = datetime.fromisoformat(run.finished)
        assert timedelta() <= datetime.now(UTC) - finished < timedelta(hours=1)


def test_hyper_parameters_of_another_version_are_refused(task: Task, runs: dict[str, Run]) -> None:
    key = replace(runs["gcn"].key, hyperparameters='[{"hidden": 1}]')
    with pytest.raises(ValueError, match=r"hyper-parameters of this version, but got others for cora gcn split 1"):
        perform(key, task)


@pytest.fixture(scope="module")
def calibrated(task: Task, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, FittedFiles]:
    """Give a GCN with all calibrators, whose training is kept."""
    files = FittedFiles(tmp_path_factory.mktemp("fitted") / "new")
    (key,) = (key for key in Plan(("cora",), ("gcn",), 2, 1, 1, calibrators=("all",)).runs() if key.split == 1)
    return perform(key, task, files), files


def test_calibrators_add_predictions_and_change_nothing_else(
    calibrated: tuple[Run, FittedFiles], runs: dict[str, Run], task: Task
) -> None:
    run, _ = calibrated
    assert list(run.predictions) == ["product", *CALIBRATORS]
    assert set(CALIBRATORS) < set(PREDICTIONS)
    assert repr(run.predictions["product"]) == repr(runs["gcn"].predictions["product"])
    split = task.splits[run.key.split, run.key.fold]
    temperature = ew.TemperatureScaling().fit(fitted(ew.GCN(), task, run), task.data, split).posterior()
    assert repr(run.predictions["temperature"]) == scored(task, run, temperature)
    joint, local = run.predictions["structured"], run.predictions["local"]
    assert joint["nodewise"].nll == pytest.approx(local["nodewise"].nll)
    assert joint["edgewise"].nll != local["edgewise"].nll


def test_a_kept_model_is_not_trained_again(
    calibrated: tuple[Run, FittedFiles], task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, files = calibrated
    assert len(list(files.folder.iterdir())) == 1
    monkeypatch.setattr(ew.GCN, "_trained", None)
    again = perform(run.key, task, files)
    assert numbers([again]) == numbers([run])
    with pytest.raises(TypeError):  # another initialisation is another training
        perform(replace(run.key, init=1), task, files)


def test_another_set_of_calibrators_is_another_run(runs: dict[str, Run]) -> None:
    plain, one, all_of_them = (
        Plan(("cora",), ("gcn", "gmnn"), 1, 1, 1, calibrators=names).runs() for names in ((), ("gats",), ("all",))
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
