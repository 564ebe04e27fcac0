import dataclasses
import json
import subprocess
import sys
from collections import Counter

import pytest

from edgewise.models.fitted import FittedClassifier
from edgewise.models.gcn import GCN
from edgewise.paper.readings import CALIBRATED_MODELS, CALIBRATORS, KNOWN_MODELS, MODELS, READINGS
from edgewise.sweep import run as recipes
from edgewise.sweep.plan import DATASETS, KNOWN_DATASETS, TYPICAL_SECONDS, Plan, datasets_in_order
from edgewise.sweep.run import BY_NAME, RECIPES, Recipe, hyperparameters


def test_the_paper_is_900_runs_75_in_each_cell() -> None:
    runs = Plan().runs()
    assert len(runs) == len(set(runs)) == Plan().size == 900
    assert Counter(key.cell for key in runs) == {(dataset, model): 75 for dataset in DATASETS for model in MODELS}
    assert {(key.split, key.fold, key.init) for key in runs} == {
        (split, fold, init) for split in range(5) for fold in range(3) for init in range(5)
    }


@pytest.mark.parametrize("plan", [Plan(), Plan(("pubmed", "cora"), ("gmnn", "gat"), splits=2, folds=1, inits=3)])
def test_every_cell_gets_its_first_run_before_any_gets_its_second(plan: Plan) -> None:
    cells = [key.cell for key in plan.runs()]
    num_cells = len(plan.datasets) * len(plan.models)
    rounds = [cells[start : start + num_cells] for start in range(0, len(cells), num_cells)]
    assert all(sorted(a_round) == sorted(plan.cells) for a_round in rounds)
    assert all(TYPICAL_SECONDS[a] >= TYPICAL_SECONDS[b] for a, b in zip(plan.cells, plan.cells[1:], strict=False))


def test_a_plan_of_some_of_it() -> None:
    plan = Plan(("cora",), ("gcn", "gmnn"), splits=2, folds=1, inits=3)
    assert len(plan.runs()) == plan.size == 12
    assert {key.cell for key in plan.runs()} == {("cora", "gcn"), ("cora", "gmnn")}
    assert set(plan.runs()) < set(Plan().runs())  # so that a sweep can begin small and grow


def test_a_name_that_is_given_twice_counts_once() -> None:
    assert Plan(("cora", "cora"), ("gcn", "gat", "gcn"), splits=1, folds=1, inits=1).size == 2


def test_a_plan_says_what_it_is() -> None:
    plan = Plan(("cora", "pubmed"), ("gcn",), splits=2, folds=1, inits=3)
    assert str(plan) == "cora pubmed; gcn; splits 2, folds 1, inits 3"


def test_other_datasets_and_models_are_known_but_not_in_the_paper() -> None:
    assert (Plan().datasets, Plan().models) == (("cora", "citeseer", "pubmed"), ("gcn", "gat", "gmnn", "epfgnn"))
    assert set(Plan().datasets) < set(KNOWN_DATASETS)
    assert {"texas", "actor", "chameleon", "roman-empire", "questions"} < set(KNOWN_DATASETS)
    assert "jointgcn" in set(KNOWN_MODELS) - set(MODELS)
    plan = Plan(("texas", "synthetic-0.1"), splits=2)
    assert plan.size == len(plan.runs()) == 2 * 4 * 2 * 3 * 5
    hyper = {key.model: key.hyperparameters for key in Plan().runs()}
    assert all(key.hyperparameters == hyper[key.model] for key in plan.runs())


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
def test_a_dataset_has_one_name_in_keys(name: str, canonical: str) -> None:
    assert Plan((name, canonical)).datasets == (canonical,)


@pytest.mark.parametrize("name", ["synthetic", "synthetic-", "synthetic-0", "synthetic-1", "synthetic-nan", "synth-1"])
def test_no_graph_of_that_homophily(name: str) -> None:
    with pytest.raises(ValueError, match=rf"synthetic-H with a homophily H between 0 and 1 .*, but got '{name}'"):
        Plan((name,))


def test_datasets_in_order() -> None:
    names = {"synthetic-0.9", "actor", "pubmed", "synthetic-0.25", "texas", "mine", "cora"}
    assert datasets_in_order(names) == ["cora", "pubmed", "texas", "actor", "mine", "synthetic-0.25", "synthetic-0.9"]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"datasets": ("cora", "karate")}, r"--datasets from cora, citeseer, pubmed, texas, .*, but got 'karate'"),
        ({"models": ("gpt",)}, f"Expected --models from {', '.join(KNOWN_MODELS)}, but got 'gpt'"),
        ({"datasets": ()}, r"at least one of cora, citeseer, pubmed for --datasets, but got none"),
        ({"models": ()}, r"at least one of gcn, .* for --models, but got none"),
        ({"folds": 4}, r"--folds .*3.* got 4"),
        ({"folds": 0}, r"--folds .* got 0"),
        ({"splits": 0}, r"--splits .* got 0"),
        ({"inits": 1001}, r"--inits .*1000.* got 1001"),
        ({"splits": 1.5}, r"--splits .* got 1\.5"),
    ],
)
def test_refusals_name_the_option(plan: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan(**plan)


def test_no_two_runs_of_a_model_on_a_dataset_share_a_seed() -> None:
    seeds = [key.seed for key in Plan(("cora",), ("gcn",), splits=1000, folds=3, inits=12).runs()]
    assert len(set(seeds)) == len(seeds)
    assert len({key.seed for key in Plan(("cora",), ("gcn",), splits=2, folds=3, inits=1000).runs()}) == 6000


def test_another_hyper_parameter_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Plan(("cora",), ("gcn",)).runs()
    (gcn,) = RECIPES["gcn"]
    other = Recipe(dataclasses.replace(gcn.model, learning_rate=0.02), gcn.predictions)
    monkeypatch.setattr(recipes, "RECIPES", {**RECIPES, "gcn": (other,)})
    after = Plan(("cora",), ("gcn",)).runs()
    assert not set(before) & set(after)
    assert [key.seed for key in before] == [key.seed for key in after]


@pytest.mark.parametrize("model", MODELS)
def test_hyper_parameters_are_all_there_in_one_order(model: str) -> None:
    described = json.loads(hyperparameters(model))
    assert described == [dataclasses.asdict(recipe.model) for recipe in RECIPES[model]]
    assert all(list(of_training) == sorted(of_training) for of_training in described)
    assert hyperparameters(model) == hyperparameters(model)


def test_every_hyper_parameter_of_a_model_is_in_its_key() -> None:
    names = {field.name for field in dataclasses.fields(GCN)}
    assert {"hidden", "dropout", "learning_rate", "weight_decay"} <= names
    assert set(json.loads(hyperparameters("gcn"))[0]) == names


def test_each_name_of_a_calibrator_has_one() -> None:
    assert set(BY_NAME) == set(CALIBRATORS)


def test_each_model_has_a_row_of_its_own_name_and_a_recipe_for_all_its_rows() -> None:
    assert set(RECIPES) == set(KNOWN_MODELS)
    assert KNOWN_MODELS[: len(MODELS)] == MODELS
    for rows in READINGS.values():
        for source in rows.values():
            assert rows[source.model].model == source.model
            assert any(source.prediction in recipe.predictions for recipe in RECIPES[source.model])


def test_what_is_calibrated_has_logits() -> None:
    classifiers = {
        model for model, several in RECIPES.items() if all(one.model.fitted is FittedClassifier for one in several)
    }
    assert (
        set(CALIBRATED_MODELS)
        == classifiers
        == {name for name in RECIPES if "calibrators" in hyperparameters(name, CALIBRATORS)}
    )


def test_help_texts_do_not_wait_for_the_names() -> None:
    code = "import sys, edgewise.paper.readings; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.split()
    assert "edgewise.paper.readings" in loaded
    assert not {"torch", "numpy", "matplotlib", "edgewise.data", "edgewise.models"} & set(loaded)
