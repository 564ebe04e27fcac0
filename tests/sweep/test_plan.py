import dataclasses
import json
import subprocess
import sys
from collections import Counter
from itertools import groupby

import pytest

from edgewise.data.datasets import DATASET_NAMES
from edgewise.models import known_models
from edgewise.models.fitted import FittedClassifier
from edgewise.models.gcn import GCN
from edgewise.paper.published import DATASETS
from edgewise.paper.readings import CALIBRATED_MODELS, CALIBRATORS, KNOWN_MODELS, MODELS, READINGS
from edgewise.paper.recipes import RECIPES, paper_plan
from edgewise.sweep.plan import (
    Plan,
    Training,
    calibrators_of,
    hyperparameters,
    known_calibrators,
    sort_models,
    trainings_of,
)
from edgewise.sweep.sources import sort_datasets


def test_paper_plan_has_900_runs_75_per_cell() -> None:
    runs = paper_plan().runs()
    assert len(runs) == len(set(runs)) == paper_plan().size == 900
    assert Counter(key.cell for key in runs) == {(dataset, model): 75 for dataset in DATASETS for model in MODELS}
    assert {(key.split, key.fold, key.init) for key in runs} == {
        (split, fold, init) for split in range(5) for fold in range(3) for init in range(5)
    }


@pytest.mark.parametrize(
    "plan", [paper_plan(), paper_plan(("pubmed", "cora"), ("gmnn", "gat"), splits=2, folds=1, inits=3)]
)
def test_every_cell_gets_its_first_run_before_any_gets_its_second(plan: Plan) -> None:
    cells = [key.cell for key in plan.runs()]
    num_cells = len(plan.datasets) * len(plan.models)
    rounds = [cells[start : start + num_cells] for start in range(0, len(cells), num_cells)]
    assert all(len(set(one_round)) == num_cells for one_round in rounds)


def test_runs_that_share_work_follow_each_other_and_large_datasets_come_first() -> None:
    groups = [list(keys) for _, keys in groupby(paper_plan().runs(), lambda key: key.group)]
    assert len(groups) == len({keys[0].group for keys in groups}) == 225
    assert groups[0][0].dataset == "pubmed"
    for keys in groups:  # GCN continues the pretraining of GMNN and EPFGNN
        assert [key.model for key in keys] == ["gmnn", "epfgnn", "gcn", "gat"]


def test_smaller_plan_is_a_subset_of_the_paper() -> None:
    plan = paper_plan(("cora",), ("gcn", "gmnn"), splits=2, folds=1, inits=3)
    assert len(plan.runs()) == plan.size == 12
    assert {key.cell for key in plan.runs()} == {("cora", "gcn"), ("cora", "gmnn")}
    assert set(plan.runs()) < set(paper_plan().runs())  # so a sweep can start small and grow


def test_repeated_names_count_once() -> None:
    assert paper_plan(("cora", "cora"), ("gcn", "gat", "gcn"), splits=1, folds=1, inits=1).size == 2


def test_plan_as_text() -> None:
    plan = paper_plan(("cora", "pubmed"), ("gcn",), splits=2, folds=1, inits=3)
    assert str(plan) == "cora pubmed; gcn; splits 2, folds 1, inits 3"


def test_datasets_and_models_beyond_the_paper() -> None:
    assert (paper_plan().datasets, paper_plan().models) == (
        ("cora", "citeseer", "pubmed"),
        ("gcn", "gat", "gmnn", "epfgnn"),
    )
    assert set(paper_plan().datasets) < set(DATASET_NAMES)
    assert {"texas", "actor", "chameleon", "roman-empire", "questions"} < set(DATASET_NAMES)
    assert "jointgcn" in set(KNOWN_MODELS) - set(MODELS)
    plan = paper_plan(("texas", "synthetic-0.1"), splits=2)
    assert plan.size == len(plan.runs()) == 2 * 4 * 2 * 3 * 5


@pytest.mark.parametrize("model", sorted(known_models()))
def test_weight_decay_depends_on_the_dataset(model: str) -> None:
    """As in the scripts of GATS: 5e-4 on Cora, Citeseer and Pubmed, else 0."""
    datasets = ("cora", "citeseer", "pubmed", "synthetic-0.1", "photo", "cora-ml", "texas")
    of = {key.dataset: key.hyperparameters for key in paper_plan(datasets, (model,), 1, 1, 1).runs()}
    assert of["cora"] == of["citeseer"] == of["pubmed"] == of["synthetic-0.1"]
    assert of["photo"] == of["cora-ml"] == of["texas"] == of["cora"].replace("0.0005", "0.0") != of["cora"]


def test_recipes_keep_their_weight_decay_only_on_citation_graphs() -> None:
    recipes = {"gcn": (Training(GCN(weight_decay=0.1)),)}
    assert [trainings_of(name, "gcn", recipes)[0].model.weight_decay for name in ("cora", "photo")] == [0.1, 0.0]


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("Texas", "texas"),
        ("Roman_Empire", "roman-empire"),
        ("synthetic-0.10", "synthetic-0.1"),
        ("Synthetic_.5", "synthetic-0.5"),
        ("synthetic-9e-1", "synthetic-0.9"),
    ],
)
def test_dataset_names_are_canonical(name: str, canonical: str) -> None:
    assert paper_plan((name, canonical)).datasets == (canonical,)


@pytest.mark.parametrize("name", ["synthetic", "synthetic-", "synthetic-0", "synthetic-1", "synthetic-nan", "synth-1"])
def test_invalid_homophily_raises(name: str) -> None:
    with pytest.raises(ValueError, match=rf"between 0 and 1 .* got '{name}'"):
        paper_plan((name,))


def test_sort_datasets() -> None:
    names = {"synthetic-0.9", "actor", "pubmed", "synthetic-0.25", "texas", "mine", "cora"}
    assert sort_datasets(names) == ["cora", "pubmed", "texas", "actor", "mine", "synthetic-0.25", "synthetic-0.9"]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"datasets": ("cora", "karate")}, r"--datasets .*cora, .* got 'karate'"),
        ({"models": ("gpt",)}, f"--models .*{', '.join(KNOWN_MODELS)}.* got 'gpt'"),
        ({"datasets": ()}, r"--datasets.* got none"),
        ({"models": ()}, r"--models.* got none"),
        ({"folds": 4}, r"--folds .*3.* got 4"),
        ({"folds": 0}, r"--folds .* got 0"),
        ({"splits": 0}, r"--splits .* got 0"),
        ({"inits": 1001}, r"--inits .*1000.* got 1001"),
        ({"splits": 1.5}, r"--splits .* got 1\.5"),
    ],
)
def test_invalid_plan_raises_with_the_option(plan: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paper_plan(**plan)


def test_runs_of_a_cell_have_different_seeds() -> None:
    seeds = [key.seed for key in paper_plan(("cora",), ("gcn",), splits=1000, folds=3, inits=12).runs()]
    assert len(set(seeds)) == len(seeds)
    assert len({key.seed for key in paper_plan(("cora",), ("gcn",), splits=2, folds=3, inits=1000).runs()}) == 6000


def test_other_hyperparameters_change_the_key_but_not_the_seed() -> None:
    before = Plan(("cora",), ("gcn",)).runs()
    after = Plan(("cora",), ("gcn",), recipes={"gcn": (Training(GCN(learning_rate=0.02)),)}).runs()
    assert not set(before) & set(after)
    assert [key.seed for key in before] == [key.seed for key in after]


@pytest.mark.parametrize("model", KNOWN_MODELS)
def test_hyperparameters_are_complete_and_sorted(model: str) -> None:
    described = json.loads(hyperparameters("cora", model, RECIPES))
    assert described == [training.model.hyperparameters() for training in trainings_of("cora", model, RECIPES)]
    assert all(list(of_training) == sorted(of_training) for of_training in described)
    assert hyperparameters("cora", model, RECIPES) == hyperparameters("cora", model, RECIPES)


def test_keys_have_not_changed_since_the_first_version() -> None:
    (gcn,) = Plan(("cora",), ("gcn",), 1, 1, 1, calibrators=("temperature",)).runs()
    assert gcn.hyperparameters == (
        '[{"dropout": 0.5, "hidden": 64, "learning_rate": 0.01, "max_epochs": 2000, "patience": 100, "weight_decay": '
        '0.0005}, {"calibrators": {"temperature": "TemperatureScaling()"}}]'
    )
    (epfgnn,) = paper_plan(("cora",), ("epfgnn",), 1, 1, 1).runs()
    assert [entry["schedule"] for entry in json.loads(epfgnn.hyperparameters)] == ["published", "backbone"]


def test_key_has_every_hyperparameter_of_the_model() -> None:
    names = {field.name for field in dataclasses.fields(GCN)}
    assert {"hidden", "dropout", "learning_rate", "weight_decay"} <= names
    assert set(json.loads(hyperparameters("cora", "gcn", {}))[0]) == names


def test_models_and_calibrators_of_the_paper_exist() -> None:
    assert set(CALIBRATORS) <= set(known_calibrators())
    assert set(RECIPES) <= set(KNOWN_MODELS) <= set(known_models())
    assert KNOWN_MODELS[: len(MODELS)] == MODELS
    assert sort_models(sorted(KNOWN_MODELS)) == list(KNOWN_MODELS)
    for rows in READINGS.values():
        for source in rows.values():
            assert rows[source.model].model == source.model


def test_calibrated_models_have_logits() -> None:
    classifiers = {
        model
        for model in KNOWN_MODELS
        if all(training.model.fitted is FittedClassifier for training in trainings_of("cora", model, RECIPES))
    }
    calibrated = {name for name in KNOWN_MODELS if calibrators_of(hyperparameters("cora", name, RECIPES, CALIBRATORS))}
    assert set(CALIBRATED_MODELS) == classifiers == calibrated


def test_paper_plan_orders_calibrators_as_the_tables() -> None:
    assert paper_plan(calibrators=("gats", "temperature")).calibrators == ("temperature", "gats")
    assert paper_plan(calibrators=("all",)).calibrators[: len(CALIBRATORS)] == CALIBRATORS
    assert set(Plan(("cora",), ("gcn",), calibrators=("gats", "all")).calibrators) == set(known_calibrators())
    with pytest.raises(ValueError, match=r"--calibrators .* got 'platt'"):
        paper_plan(calibrators=("temperature", "platt"))


def test_importing_names_for_help_does_not_import_torch() -> None:
    code = "import sys, edgewise.paper.readings; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout.split()
    assert "edgewise.paper.readings" in loaded
    assert not {"torch", "numpy", "matplotlib", "edgewise.data", "edgewise.models"} & set(loaded)
