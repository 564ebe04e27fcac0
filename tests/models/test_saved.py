"""Saving and loading of fitted models, and save_damaged files."""

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


def save_damaged(fitted, path, *, without=(), tensors=None, **metadata):
    """Save a fitted model with some tensors or metadata changed."""
    fitted.save(path)
    saved, saved_metadata = read(path)
    saved = {name: tensor for name, tensor in saved.items() if name not in without} | (tensors or {})
    save_file(
        saved, path, metadata={name: text for name, text in (saved_metadata | metadata).items() if text is not None}
    )
    return path


def hyperparameters_json(fitted, **entries):
    """Return hyperparameters as they are saved, with additional entries."""
    options = fitted.model.hyperparameters()
    options.get("classifier", {}).get("options", options).update(entries)
    return json.dumps(options)


def test_save_and_load_round_trip(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    again = ew.Fitted.load(path)
    assert type(again) is type(fitted)
    assert again.model == fitted.model
    assert again.history == fitted.history
    assert_same_bits(again, fitted)
    assert torch.equal(again.posterior().joint(DATA.edge_index), fitted.posterior().joint(DATA.edge_index))
    assert repr(again) == repr(fitted)


def test_all_hyperparameters_are_restored(tmp_path):
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
def test_numpy_hyperparameters_are_saved(options, tmp_path):
    fitted = replace(SMALL_MODELS["gcn"], max_epochs=1, **options).fit(DATA, SPLIT)
    fitted.save(tmp_path / "model")
    assert ew.Fitted.load(tmp_path / "model").model == fitted.model


def test_float64_round_trip(tmp_path):
    fitted = SMALL_MODELS["epfgnn"].fit(make_block_graph(dtype=torch.float64), SPLIT)
    fitted.save(tmp_path / "model")
    assert_same_bits(ew.Fitted.load(tmp_path / "model"), fitted)


def test_saving_a_loaded_model_gives_the_same_file_contents(fitted, tmp_path):
    fitted.save(tmp_path / "one")
    ew.Fitted.load(tmp_path / "one").save(str(tmp_path / "two"))
    (one, metadata), (two, other_metadata) = read(tmp_path / "one"), read(tmp_path / "two")
    assert metadata == other_metadata
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_save_overwrites_and_leaves_no_other_file(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("old content")
    fitted.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert ew.Fitted.load(path).model == fitted.model


def test_missing_folder_raises_and_leaves_no_file(fitted, tmp_path):
    with pytest.raises(ValueError, match=r"Expected to write .*model, but got: No such file or directory"):
        fitted.save(tmp_path / "nowhere" / "model")
    assert list(tmp_path.iterdir()) == []


def test_missing_file_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Expected a fitted model at .*gone, but there is no such file"):
        ew.Fitted.load(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="but there is no such file"):
        ew.Fitted.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 weights of a pickle", b"\xff" * 64])
def test_other_file_types_raise(content, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model to be a safetensors file"):
        ew.Fitted.load(path)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.99])
def test_truncated_file_raises(fitted, fraction, tmp_path):
    path = tmp_path / "model"
    fitted.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(ValueError, match=r"model to be a safetensors file"):
        ew.Fitted.load(path)


def test_other_safetensors_files_raise(fitted, tmp_path):
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
def test_unknown_format_raises(fits, metadata, tmp_path):
    with pytest.raises(ValueError, match=r"Expected a file that Fitted\.save wrote"):
        ew.Fitted.load(save_damaged(fits["gcn"], tmp_path / "model", **metadata))


@pytest.mark.parametrize(("name", "shown"), [("sage", "'sage'"), (None, "''"), ("s" * 400, f"'{'s' * 40}'")])
def test_unknown_model_raises(fits, name, shown, tmp_path):
    path = save_damaged(fits["gcn"], tmp_path / "model", model=name)
    with pytest.raises(ValueError, match="update edgewise") as caught:
        ew.Fitted.load(path)
    assert f" {shown}." in str(caught.value)
    assert all(known in str(caught.value) for known in SMALL_MODELS)


def define_model(own_name, module):
    """Define a custom model, as another package could: a GCN with another name and one more option."""

    @dataclass(frozen=True, kw_only=True)
    class Wide(ew.GCN):
        width: int = 3

        name = own_name

    Wide.__module__ = module
    return Wide


def test_custom_model_round_trip(tmp_path):
    kind = define_model("wide", "elsewhere")
    model = kind(hidden=4, max_epochs=2, width=5)
    model.fit(DATA, SPLIT).save(tmp_path / "model")
    again = ew.Fitted.load(tmp_path / "model")
    assert again.model == model and type(again.model) is kind
    anew = define_model("wide", "elsewhere")  # as when a notebook cell is run again
    assert type(ew.Fitted.load(tmp_path / "model").model) is anew


def test_two_models_with_one_name_raise(fits, tmp_path):
    kinds = [define_model("twin", module) for module in ("one.place", "another.place")]
    path = save_damaged(fits["gcn"], tmp_path / "model", model="twin")
    with pytest.raises(
        ValueError, match=r"one model named 'twin', but got one\.place\..*Wide and another\.place\..*Wide"
    ):
        ew.Fitted.load(path)
    assert len(kinds) == 2  # keep both classes alive
    fits["gcn"].save(path)
    assert ew.Fitted.load(path).model == fits["gcn"].model


def test_unknown_hyperparameters_raise(fitted, tmp_path):
    path = save_damaged(fitted, tmp_path / "model", hyperparameters=hyperparameters_json(fitted, layers=3))
    with pytest.raises(ValueError, match=rf"Expected a complete fitted {fitted.model.name} in .*model, but .*'layers'"):
        ew.Fitted.load(path)


def test_invalid_hyperparameters_raise(fitted, tmp_path):
    path = save_damaged(fitted, tmp_path / "model", hyperparameters=hyperparameters_json(fitted, dropout=1.5))
    with pytest.raises(ValueError, match=r"dropout .*got 1\.5"):
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
def test_damaged_metadata_raises(fits, metadata, tmp_path):
    with pytest.raises(ValueError, match=r"Expected a complete fitted gcn in .*model"):
        ew.Fitted.load(save_damaged(fits["gcn"], tmp_path / "model", **metadata))


def test_missing_tensors_raise(fitted, tmp_path):
    for name in fitted.parts:
        with pytest.raises(ValueError, match=rf"Expected a complete fitted {fitted.model.name} in .*'{name}'"):
            ew.Fitted.load(save_damaged(fitted, tmp_path / "model", without=[name]))


def test_additional_tensors_raise(fitted, tmp_path):
    path = save_damaged(fitted, tmp_path / "model", tensors={"biases": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"Expected a complete fitted .*'biases'"):
        ew.Fitted.load(path)


def test_missing_weights_raise(fitted, tmp_path):
    names = [f"weights/{name}" for name in fitted.weights]
    with pytest.raises(ValueError, match="Expected a complete fitted"):
        ew.Fitted.load(save_damaged(fitted, tmp_path / "model", without=names))
