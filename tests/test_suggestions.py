"""Misspelled keywords, names and columns get a suggestion, and signatures stay readable."""

import inspect

import pytest

import edgewise as ew
from edgewise.metrics.module import OPTIONS

PROBS, Y, EDGES = [[0.9, 0.1], [0.4, 0.6]], [0, 1], [(0, 1)]

MISSPELLED = {
    "evaluate": (lambda: ew.evaluate(PROBS, Y, EDGES, edgeprobs=None), "edge_probs"),
    "predict_edges": (lambda: ew.predict_edges(PROBS, EDGES, nodeids=None), "node_ids"),
    "wrap": (lambda: ew.wrap(PROBS, normalise=True), "normalize"),
    "make_splits": (lambda: ew.make_splits(Y, nfolds=2), "n_folds"),
    "GCN": (lambda: ew.GCN(max_epoch=3), "max_epochs"),
    "fit": (lambda: ew.GCN().fit(None, None, num_clases=3), "num_classes"),
    "calibrator": (lambda: ew.CaGCN(hiden=3), "hidden"),
    "GraphCalibration": (lambda: ew.GraphCalibration(bins=3), "n_bins"),
}


@pytest.mark.parametrize("name", MISSPELLED)
def test_misspelled_keyword_gets_a_suggestion(name):
    call, suggestion = MISSPELLED[name]
    with pytest.raises(TypeError, match=f"unexpected keyword argument.*Did you mean '{suggestion}'"):
        call()


def test_misspelled_view_metric_and_column_get_a_suggestion():
    ev, table = ew.evaluate(PROBS, Y, EDGES), ew.predict_edges(PROBS, EDGES)
    for call, suggestion in (
        (lambda: ev["edgewse"], "edgewise"),
        (lambda: ev["edgewise"]["acuracy"], "accuracy"),
        (lambda: table["P(sam)"], r"P\(same\)"),
    ):
        with pytest.raises(KeyError, match=f"Did you mean '{suggestion}'"):
            call()
    with pytest.raises(ValueError, match="Did you mean 'cora'"):
        ew.load_dataset("corra")


def test_signatures_are_shown_with_all_names():
    assert list(inspect.signature(ew.evaluate).parameters)[:5] == ["probs", "y", "edge_index", "mask", "edge_probs"]
    assert "max_epochs" in inspect.signature(ew.GCN).parameters
    assert ew.evaluate.__name__ == "evaluate" and "Score node probabilities" in ew.evaluate.__doc__


def test_suggested_keywords_of_the_module_are_its_own():
    parameters = inspect.signature(ew.GraphCalibration).parameters.values()
    assert tuple(option.name for option in parameters if option.kind is not option.VAR_KEYWORD) == OPTIONS
    ew.GraphCalibration(sync_on_compute=False, compute_on_cpu=True, dist_sync_on_step=True)  # options of torchmetrics


def test_other_keywords_and_positions_still_raise():
    with pytest.raises(TypeError, match="unexpected keyword argument 'zzz'"):
        ew.evaluate(PROBS, Y, zzz=1)
    with pytest.raises(TypeError, match="missing"):
        ew.evaluate(PROBS)
