"""One run: training, predictions, calibration and scores."""

import pickle
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import edgewise as ew
from edgewise.metrics.sums import VIEWS
from edgewise.models.training import TrainingLoop
from edgewise.paper.readings import CALIBRATORS, KNOWN_MODELS, PREDICTIONS, READINGS
from edgewise.paper.recipes import RECIPES, posterior_with_misplaced_evidence
from edgewise.sweep.plan import Plan
from edgewise.sweep.run import Runner
from edgewise.sweep.runs import SAME_LABEL, Run, as_prediction
from edgewise.sweep.sources import GraphWithSplits, load_once, prepare_once
from edgewise.version import versions
from helpers.quick_recipes import QUICK_RECIPES
from helpers.run_numbers import numbers

# The workers of a sweep hide this warning; these tests call the runner without workers.
pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")

START = datetime.now(UTC).replace(microsecond=0)  # runs record whole seconds


def quick_plan(*models: str, calibrators: tuple[str, ...] = ()) -> Plan:
    return Plan(("cora",), models, splits=2, folds=1, inits=1, calibrators=calibrators, recipes=QUICK_RECIPES)


@pytest.fixture(scope="module")
def graph(runner: Runner) -> GraphWithSplits:
    return load_once(runner.sources, "cora", runner.n_splits)


@pytest.fixture(scope="module")
def runs(runner: Runner) -> dict[str, Run]:
    """One run of each model on the same fold, not the first one, whose seed is 0."""
    return {key.model: runner(key) for key in quick_plan(*KNOWN_MODELS).runs() if key.split == 1}


def scored(graph: GraphWithSplits, run: Run, posterior: object) -> str:
    """Score a posterior with `evaluate`. Return text, in which NaN equals NaN."""
    split = graph.splits[run.key.split, run.key.fold]
    ev = ew.evaluate(posterior, graph.data.y, graph.data.edge_index, mask=split.test, same_label=True)
    return repr(as_prediction(ev))


def fit_again(graph: GraphWithSplits, run: Run, training: int = 0) -> object:
    """Fit one of the trainings of a run."""
    model = QUICK_RECIPES[run.key.model][training].model
    return model.fit(graph.data, graph.splits[run.key.split, run.key.fold], seed=run.key.seed)


def test_runs_have_every_prediction_of_the_readings(runs: dict[str, Run]) -> None:
    for rows in READINGS.values():
        for row, source in rows.items():
            assert source.prediction in runs[source.model].predictions, row


def test_every_prediction_has_a_description_and_scores_of_every_view(runs: dict[str, Run]) -> None:
    names = {name for run in runs.values() for name in run.predictions}
    assert names == set(PREDICTIONS) - set(CALIBRATORS)
    for run in runs.values():
        for prediction in run.predictions.values():
            assert set(prediction) == {*VIEWS, SAME_LABEL}
            assert all(result.count > 0 for result in prediction.values())


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_gcn_and_gat_are_scored_with_products_of_node_marginals(
    name: str, graph: GraphWithSplits, runs: dict[str, Run]
) -> None:
    run = runs[name]
    node = fit_again(graph, run).posterior().node
    assert {key: repr(value) for key, value in run.predictions.items()} == {"product": scored(graph, run, node)}


def test_gmnn_has_three_predictions(graph: GraphWithSplits, runs: dict[str, Run]) -> None:
    run = runs["gmnn"]
    fitted = fit_again(graph, run)
    mixture = fitted.posterior("mixture")
    expected = {
        "averaged_logits": scored(graph, run, fitted.posterior("averaged_logits").node),
        "mixture_product": scored(graph, run, mixture.node),
        "mixture": scored(graph, run, mixture),
    }
    assert {key: repr(value) for key, value in run.predictions.items()} == expected
    product, joint = run.predictions["mixture_product"], run.predictions["mixture"]
    assert product["nodewise"] == joint["nodewise"]
    assert product["edgewise"] != joint["edgewise"]


def test_epfgnn_is_trained_and_scored_as_published_and_as_defined(graph: GraphWithSplits, runs: dict[str, Run]) -> None:
    run = runs["epfgnn"]
    schedules = [training.model.schedule for training in RECIPES["epfgnn"]]
    assert schedules == [training.model.schedule for training in QUICK_RECIPES["epfgnn"]] == ["published", "backbone"]
    published, defined = (fit_again(graph, run, training) for training in (0, 1))
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


def test_key_determines_the_run(runner: Runner, runs: dict[str, Run]) -> None:
    for model in ("gcn", "gmnn"):
        run = runs[model]
        again = runner(run.key)
        assert numbers([again]) == numbers([run])
        other = runner(replace(run.key, init=1))
        assert other.seed != run.seed
        for name, prediction in run.predictions.items():
            assert other.predictions[name]["nodewise"].nll != prediction["nodewise"].nll


@pytest.mark.parametrize("reverse", [False, True], ids=["order of a sweep", "reverse order"])
def test_numbers_do_not_depend_on_which_runs_are_done_together(
    reverse: bool, runner: Runner, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs: list[TrainingLoop] = []
    train_epoch = TrainingLoop._train_epoch
    monkeypatch.setattr(TrainingLoop, "_train_epoch", lambda loop: (epochs.append(loop), train_epoch(loop))[1])
    keys = sorted((run.key for run in runs.values()), reverse=reverse)
    alone = []
    for key in keys:
        prepare_once.cache_clear()
        alone.append(runner(key))
    epochs_alone = len(epochs)
    prepare_once.cache_clear()
    together = [runner(key) for key in keys]
    assert numbers(together) == numbers(alone)
    assert epochs_alone < len(epochs) < 2 * epochs_alone  # some epochs are shared


def test_run_records_versions_epochs_and_time(runs: dict[str, Run]) -> None:
    for model in KNOWN_MODELS:
        run = runs[model]
        assert run.versions == versions()
        assert run.versions["edgewise"] == ew.__version__
        assert set(run.versions) == {"edgewise", "python", "torch", "torch_geometric", "numpy", "scipy", "numba"}
        assert run.epochs > 0 and run.seconds > 0
        assert START <= datetime.fromisoformat(run.finished) <= datetime.now(UTC)


def test_key_with_hyperparameters_of_another_version_raises(runner: Runner, runs: dict[str, Run]) -> None:
    key = replace(runs["gcn"].key, hyperparameters='[{"hidden": 1}]')
    with pytest.raises(ValueError, match=r"hyperparameters .* cora gcn split 1"):
        runner(key)


@pytest.fixture(scope="module")
def calibrated(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Runner]:
    """A run of GCN with all calibrators, and its runner, which saves the fitted model."""
    plan = quick_plan("gcn", calibrators=(*CALIBRATORS, "all"))
    saving = replace(runner, calibrators=plan.calibrators, fitted=str(tmp_path_factory.mktemp("fitted") / "new"))
    (key,) = (key for key in plan.runs() if key.split == 1)
    return saving(key), saving


def test_calibrators_only_add_predictions(
    calibrated: tuple[Run, Runner], runs: dict[str, Run], graph: GraphWithSplits
) -> None:
    run, _ = calibrated
    assert list(run.predictions) == ["product", *CALIBRATORS]
    assert set(CALIBRATORS) < set(PREDICTIONS)
    assert repr(run.predictions["product"]) == repr(runs["gcn"].predictions["product"])
    split = graph.splits[run.key.split, run.key.fold]
    temperature = ew.TemperatureScaling().fit(fit_again(graph, run), graph.data, split)
    assert repr(run.predictions["temperature"]) == scored(graph, run, temperature)
    joint, nodes = run.predictions["structured"], run.predictions["bayesian"]
    assert joint["nodewise"].nll == pytest.approx(nodes["nodewise"].nll)
    assert joint["edgewise"].nll != nodes["edgewise"].nll


def test_saved_model_is_not_trained_again(calibrated: tuple[Run, Runner], monkeypatch: pytest.MonkeyPatch) -> None:
    run, saving = calibrated
    assert len(list(Path(saving.fitted or "").iterdir())) == 1
    monkeypatch.setattr(ew.GCN, "fit_task", None)
    again = saving(run.key)
    assert numbers([again]) == numbers([run])
    with pytest.raises(TypeError):  # another initialization must be trained
        saving(replace(run.key, init=1))


def test_other_calibrators_change_the_key(runs: dict[str, Run]) -> None:
    plain, one, all_of_them = (
        quick_plan("gcn", "gmnn", calibrators=names).runs() for names in ((), ("gats",), ("all",))
    )
    hyperparameters = {
        key.model: [key.hyperparameters, *more]
        for key, *more in zip(
            plain, (k.hyperparameters for k in one), (k.hyperparameters for k in all_of_them), strict=True
        )
    }
    assert len(set(hyperparameters["gcn"])) == 3
    assert len(set(hyperparameters["gmnn"])) == 1  # GMNN is not calibrated
    assert hyperparameters["gcn"][0] == runs["gcn"].key.hyperparameters


def test_runner_can_be_pickled(calibrated: tuple[Run, Runner]) -> None:
    run, saving = calibrated
    assert numbers([pickle.loads(pickle.dumps(saving))(run.key)]) == numbers([run])
    assert set(RECIPES) == {"epfgnn"}  # all other models are trained with their defaults
