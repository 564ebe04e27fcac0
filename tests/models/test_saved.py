"""Fitted values on disk: the same bits come back, and what is no fitted value is refused in words."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import edgewise as ew
from helpers.block_graph import SMALL_MODELS, assert_same_bits, make_block_graph, make_split

DATA = make_block_graph()
SPLIT = make_split(DATA)


@pytest.fixture(scope="module")
def fits():
    return {name: model.fit(DATA, SPLIT) for name, model in SMALL_MODELS.items()}


@pytest.fixture(params=SMALL_MODELS)
def fitted(request, fits):
    return fits[request.param]


def read(path):
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in list(file.keys())}, file.metadata()


def damaged(fitted, path, *, without=(), tensors=None, **metadata):
    """Save a fitted value with some of it changed."""
    fitted.save(path)
    own, told = read(path)
    own = {name: tensor for name, tensor in own.items() if name not in without} | (tensors or {})
    save_file(own, path, metadata={name: text for name, text in (told | metadata).items() if text is not None})
    return path


def edited(fitted, **entries):
    """Give hyper-parameters as they are saved, with others besides."""
    return json.dumps({"hidden": fitted.model.hidden, **entries})


def test_the_same_comes_back(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    again = ew.Fitted.load(path)
    assert type(again) is type(fitted)
    assert again.model == fitted.model
    assert again.history == fitted.history
    assert_same_bits(again, fitted)
    assert torch.equal(again.posterior().joint(DATA.edge_index), fitted.posterior().joint(DATA.edge_index))
    assert repr(again) == repr(fitted)


def test_every_hyper_parameter_comes_back(tmp_path):
    models = [
        ew.GCN(hidden=3, dropout=0.0, learning_rate=1 / 3, weight_decay=0.0, max_epochs=2, patience=1),
        ew.GAT(hidden=6, heads=3, dropout=0.1, learning_rate=1e-7, weight_decay=1e-300, max_epochs=2, patience=1),
        replace(SMALL_MODELS["gmnn"], rounds=2, prediction="averaged_logits"),
        replace(SMALL_MODELS["epfgnn"], schedule="published", inference="mean_field", evidence=False),
    ]
    for model in models:
        model.fit(DATA, SPLIT).save(tmp_path / "model")
        assert ew.Fitted.load(tmp_path / "model").model == model


@pytest.mark.parametrize("options", [{"hidden": np.int64(4)}, {"learning_rate": np.float32(0.5)}])
def test_numbers_of_numpy_are_saved(options, tmp_path):
    fitted = replace(SMALL_MODELS["gcn"], max_epochs=1, **options).fit(DATA, SPLIT)
    fitted.save(tmp_path / "model")
    assert ew.Fitted.load(tmp_path / "model").model == fitted.model


def test_float64_comes_back(tmp_path):
    fitted = SMALL_MODELS["epfgnn"].fit(make_block_graph(dtype=torch.float64), SPLIT)
    fitted.save(tmp_path / "model")
    assert_same_bits(ew.Fitted.load(tmp_path / "model"), fitted)


def test_a_loaded_value_is_saved_as_it_was(fitted, tmp_path):
    fitted.save(tmp_path / "one")
    ew.Fitted.load(tmp_path / "one").save(str(tmp_path / "two"))
    (one, told), (two, said) = read(tmp_path / "one"), read(tmp_path / "two")
    assert told == said
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_only_the_file_is_left(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("what was here before")
    fitted.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert ew.Fitted.load(path).model == fitted.model


def test_a_missing_folder_is_refused_and_nothing_left(fitted, tmp_path):
    with pytest.raises(ValueError, match=r"Expected to write .*model, but got: No such file or directory"):
        fitted.save(tmp_path / "nowhere" / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Expected a fitted model at .*gone, but there is no such file"):
        ew.Fitted.load(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="but there is no such file"):
        ew.Fitted.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 weights of a pickle", b"\xff" * 64])
def test_no_safetensors(content, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model to be a safetensors file"):
        ew.Fitted.load(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_file(fitted, share, tmp_path):
    path = tmp_path / "model"
    fitted.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"model to be a safetensors file"):
        ew.Fitted.load(path)


def test_files_of_others(fitted, tmp_path):
    path = tmp_path / "belief"
    fitted.posterior().save(path)
    with pytest.raises(ValueError, match=r"that Fitted\.save wrote \(edgewise fitted 1\), but .*edgewise poster"):
        ew.Fitted.load(path)
    save_file({"logits": torch.zeros(3, 2)}, path)
    with pytest.raises(ValueError, match=r"that Fitted\.save wrote .* no metadata"):
        ew.Fitted.load(path)
    fitted.save(path)
    with pytest.raises(ValueError, match=r"Expected a file that Posterior\.save wrote"):
        ew.Posterior.load(path)


@pytest.mark.parametrize("metadata", [{"format": "edgewise fitted 2"}, {"format": None}])
def test_other_formats(fits, metadata, tmp_path):
    with pytest.raises(ValueError, match=r"Expected a file that Fitted\.save wrote"):
        ew.Fitted.load(damaged(fits["gcn"], tmp_path / "model", **metadata))


@pytest.mark.parametrize(("name", "shown"), [("sage", "'sage'"), (None, "''"), ("s" * 400, f"'{'s' * 40}'")])
def test_a_model_that_is_not_known_here(fits, name, shown, tmp_path):
    path = damaged(fits["gcn"], tmp_path / "model", model=name)
    with pytest.raises(ValueError, match=r"Expected a fitted model of .*, but .* is of .*") as refused:
        ew.Fitted.load(path)
    words = str(refused.value)
    assert all(f" {known}," in words for known in SMALL_MODELS)
    assert words.endswith(
        f"model is of {shown}. Import the module that defines it before you load it, or update edgewise."
    )


def kind_named(own_name, module):
    """Define a model as a package that is not ours would: a GCN of another name, that has one more option."""

    @dataclass(frozen=True, kw_only=True)
    class Wide(ew.GCN):
        width: int = 3

        name = own_name

    Wide.__module__ = module
    return Wide


def test_a_model_of_another_package_comes_back(tmp_path):
    kind = kind_named("wide", "elsewhere")
    model = kind(hidden=4, max_epochs=2, width=5)
    model.fit(DATA, SPLIT).save(tmp_path / "model")
    again = ew.Fitted.load(tmp_path / "model")
    assert again.model == model and type(again.model) is kind
    anew = kind_named("wide", "elsewhere")  # as when a cell of a notebook is run again
    assert type(ew.Fitted.load(tmp_path / "model").model) is anew


def test_two_models_of_one_name_are_refused_by_their_paths(fits, tmp_path):
    kinds = [kind_named("twin", module) for module in ("one.place", "another.place")]
    path = damaged(fits["gcn"], tmp_path / "model", model="twin")
    with pytest.raises(
        ValueError, match=r"one model named 'twin', but got one\.place\..*Wide and another\.place\..*Wide"
    ):
        ew.Fitted.load(path)
    assert len(kinds) == 2  # kept until here
    fits["gcn"].save(path)
    assert ew.Fitted.load(path).model == fits["gcn"].model


def test_unknown_hyper_parameters(fitted, tmp_path):
    path = damaged(fitted, tmp_path / "model", hyperparameters=edited(fitted, layers=3))
    with pytest.raises(ValueError, match=rf"Expected a whole fitted {fitted.model.name} in .*model, but .*'layers'"):
        ew.Fitted.load(path)


def test_impossible_hyper_parameters(fitted, tmp_path):
    path = damaged(fitted, tmp_path / "model", hyperparameters=edited(fitted, dropout=1.5))
    with pytest.raises(
        ValueError, match="but it cannot be read: Expected dropout to be a number of at least 0 and below 1"
    ):
        ew.Fitted.load(path)


@pytest.mark.parametrize(
    "metadata",
    [
        {"hyperparameters": None},
        {"hyperparameters": "{"},
        {"hyperparameters": "[1, 2]"},
        {"history": None},
        {"history": "{}"},
        {"history": "3"},
        {"history": '{"phases": []}'},
    ],
)
def test_damaged_metadata(fits, metadata, tmp_path):
    with pytest.raises(ValueError, match=r"Expected a whole fitted gcn in .*model, but it cannot be read"):
        ew.Fitted.load(damaged(fits["gcn"], tmp_path / "model", **metadata))


def test_missing_beliefs(fitted, tmp_path):
    for name in fitted.parts:
        with pytest.raises(ValueError, match=rf"Expected a whole fitted {fitted.model.name} in .*'{name}'"):
            ew.Fitted.load(damaged(fitted, tmp_path / "model", without=[name]))


def test_tensors_that_are_too_many(fitted, tmp_path):
    path = damaged(fitted, tmp_path / "model", tensors={"biases": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"Expected a whole fitted .*'biases'"):
        ew.Fitted.load(path)


def test_missing_weights(fitted, tmp_path):
    names = [f"weights/{name}" for name in fitted.weights]
    with pytest.raises(ValueError, match="Expected a whole fitted"):
        ew.Fitted.load(damaged(fitted, tmp_path / "model", without=names))
