"""Conformal sets of nodes against plain loops, and set by set against torchcp."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

import edgewise as ew
from edgewise.decisions import conformal_nodes
from edgewise.decisions.conformal_scores import private_generator, uniform_numbers
from helpers.reference import conformal as loops

NUM_NODES, NUM_CLASSES = 40, 4
OPTIONS = [
    {"score": "thr"},
    {"score": "aps"},
    {"score": "raps", "penalty": 0.0625, "k_reg": 2},
    {"score": "raps", "penalty": 0.25, "k_reg": 0},
    {"score": "thr", "diffusion": 0.5},
    {"score": "aps", "diffusion": 0.25},
    {"score": "aps", "diffusion": 1.0},
]


def draw(seed, num_nodes=NUM_NODES, num_classes=NUM_CLASSES):
    """Draw probabilities, a graph with an isolated node, and a calibration mask of half the nodes."""
    g = np.random.default_rng(seed)
    probs = torch.from_numpy(g.dirichlet(np.full(num_classes, 0.7), num_nodes))
    y = torch.tensor([g.choice(num_classes, p=p) for p in probs.numpy()])
    edges = torch.from_numpy(g.integers(0, num_nodes - 1, (2, 2 * num_nodes)))
    calibration = torch.from_numpy(g.permutation(num_nodes) < num_nodes // 2)
    return probs, Data(y=y, edge_index=edges, num_nodes=num_nodes), calibration


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("alpha", ["0.05", "0.1", "0.3"])
def test_sets_equal_the_loop(options, alpha):
    for seed in range(5):
        probs, data, calibration = draw(seed)
        sets = ew.ConformalNodes(alpha=float(alpha), **options).fit(probs, data, calibration=calibration, seed=seed)
        uniform = uniform_numbers(seed, NUM_NODES).tolist()
        penalty, k_reg = options.get("penalty", 0), options.get("k_reg", 0)
        scores = [
            [loops.node_score(p, k, options["score"], u, penalty, k_reg) for k in range(NUM_CLASSES)]
            for p, u in zip(probs.tolist(), uniform, strict=True)
        ]
        if "diffusion" in options:
            scores = loops.diffuse(scores, list(zip(*data.edge_index.tolist(), strict=True)), options["diffusion"])
        limit = loops.quantile([scores[i][data.y[i]] for i in calibration.nonzero().flatten().tolist()], alpha)
        distance = (torch.tensor(scores) - limit).abs()
        assert torch.equal(sets.sets, (torch.tensor(scores) <= limit + 1e-12)), distance.min()
        assert torch.equal(sets.sizes, sets.sets.sum(1))


@pytest.fixture
def torchcp(monkeypatch):
    """Return torchcp. Packages that only its training losses and its part for language models use may be missing."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(sys.prefix) / "torchcp")])  # where `make test-slow` puts it
    if find_spec("torchcp") is None:
        pytest.skip("torchcp is not installed: run make test-slow")
    for name in ("torchsort", "transformers"):
        if find_spec(name) is None:
            stub = ModuleType(name)
            stub.__getattr__ = lambda attribute: type(attribute, (), {})
            monkeypatch.setitem(sys.modules, name, stub)
    import torchcp.classification.score as scores
    import torchcp.graph.predictor as predictors
    import torchcp.graph.score as graph_scores

    return scores, graph_scores, predictors


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_sets_equal_torchcp(torchcp, options, monkeypatch):
    scores, graph_scores, predictors = torchcp
    torch.set_default_dtype(torch.float64)  # torchcp computes degrees in the default type
    try:
        for seed in range(10):
            probs, data, calibration = draw(seed)
            sets = ew.ConformalNodes(alpha=0.1, **options).fit(probs, data, calibration=calibration, seed=seed)
            uniform = uniform_numbers(seed, NUM_NODES)
            monkeypatch.setattr(torch, "rand", lambda shape, u=uniform, **_: u[:, None].expand(shape))
            score = {
                "thr": lambda: scores.LAC(score_type="identity"),
                "aps": lambda: scores.APS(score_type="identity"),
                "raps": lambda: scores.RAPS("identity", penalty=options["penalty"], kreg=options["k_reg"]),
            }[options["score"]]()
            edges = torch.cat([data.edge_index, data.edge_index.flip(0)], 1)
            edges = edges[:, edges[0] != edges[1]].unique(dim=1)
            graph = Data(x=probs, y=data.y, edge_index=edges, num_nodes=NUM_NODES)
            if "diffusion" in options:
                score = graph_scores.DAPS(graph, score, neigh_coef=options["diffusion"])
            predictor = predictors.SplitPredictor(graph, score, alpha=0.1)
            predictor.calculate_threshold(probs, calibration, torch.nn.functional.one_hot(data.y).bool())
            theirs = predictor.predict_with_logits(probs, torch.arange(NUM_NODES))
            assert torch.equal(sets.sets, theirs.bool())
    finally:
        torch.set_default_dtype(torch.float32)


PROBS = st.integers(0, 2**32).map(draw)


@given(PROBS, st.sampled_from(["thr", "aps", "raps"]), st.sampled_from([0.0, 0.5]))
def test_sets_grow_as_alpha_falls(drawn, score, diffusion):
    probs, data, calibration = drawn
    before = None
    for alpha in (0.5, 0.3, 0.2, 0.1, 0.05):
        options = ew.ConformalNodes(alpha=alpha, score=score, diffusion=diffusion)
        sets = options.fit(probs, data, calibration=calibration).sets
        assert before is None or bool((sets | ~before).all())
        before = sets


@given(PROBS, st.randoms(use_true_random=False), st.sampled_from([0.0, 0.5]), st.sampled_from(["thr", "aps", "raps"]))
def test_numbering_of_nodes_and_classes_does_not_matter(drawn, random, diffusion, score):
    """The random numbers of "aps" and "raps" are permuted with the nodes. Otherwise other sets are drawn."""
    probs, data, calibration = drawn
    nodes, classes = (torch.tensor(random.sample(range(n), n)) for n in (NUM_NODES, NUM_CLASSES))
    options = ew.ConformalNodes(alpha=0.2, diffusion=diffusion, score=score)
    sets = options.fit(probs, data, calibration=calibration).sets
    y = classes.argsort()[data.y][nodes]
    permuted = Data(y=y, edge_index=nodes.argsort()[data.edge_index], num_nodes=NUM_NODES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conformal_nodes, "uniform_numbers", lambda seed, count: uniform_numbers(seed, count)[nodes])
        again = options.fit(probs[nodes][:, classes], permuted, calibration=calibration[nodes]).sets
    assert torch.equal(again, sets[nodes][:, classes])


def test_random_numbers_are_not_those_that_may_have_dealt_the_roles():
    """NumPy gives default_rng(0) and default_rng([0, 0]) the same numbers, so a list with the seed would not do."""
    drawn = [private_generator(0, stream).random() for stream in range(2)]
    drawn += [np.random.default_rng([0, k]).random() for k in range(9)]
    assert len(set(drawn)) == 11
    assert np.random.default_rng(0).random() in drawn


def test_labels_outside_of_calibration_are_not_used():
    probs, data, calibration = draw(0)
    sets = ew.ConformalNodes().fit(probs, data, calibration=calibration).sets
    unknown = Data(y=torch.where(calibration, data.y, -1), edge_index=data.edge_index, num_nodes=NUM_NODES)
    assert torch.equal(ew.ConformalNodes().fit(probs, unknown, calibration=calibration).sets, sets)


def test_equal_probabilities_give_full_sets():
    _, data, calibration = draw(0)
    sets = ew.ConformalNodes().fit(torch.full((NUM_NODES, NUM_CLASSES), 0.25), data, calibration=calibration)
    assert bool(sets.sets.all())


@pytest.mark.parametrize("score", ["thr", "aps", "raps"])
def test_one_class_is_always_in_the_set(score):
    data, calibration = Data(y=torch.zeros(20, dtype=torch.long)), torch.arange(20) < 10
    sets = ew.ConformalNodes(score=score, k_reg=1).fit(torch.ones(20, 1), data, calibration=calibration)
    assert sets.coverage(data.y, calibration) == 1.0
    assert score != "thr" or bool(sets.sets.all())


@pytest.mark.parametrize(
    ("count", "alpha", "required"), [(0, 0.1, "9"), (8, 0.1, "9"), (18, 0.05, "19"), (3, 0.2, "4")]
)
def test_too_few_calibration_nodes_raise_and_the_required_number_is_enough(count, alpha, required):
    probs, data, _ = draw(0)
    with pytest.raises(ValueError, match=rf"at least {required} calibration nodes .* but got {count}\."):
        ew.ConformalNodes(alpha=alpha).fit(probs, data, calibration=torch.arange(NUM_NODES) < count)
    ew.ConformalNodes(alpha=alpha).fit(probs, data, calibration=torch.arange(NUM_NODES) < int(required))


def test_suggested_alpha_is_large_enough():
    probs, data, _ = draw(0)
    few = torch.arange(NUM_NODES) < 6
    with pytest.raises(ValueError, match=r"alpha of at least 0\.1429\.$"):
        ew.ConformalNodes().fit(probs, data, calibration=few)
    ew.ConformalNodes(alpha=0.1429).fit(probs, data, calibration=few)


def test_each_group_has_the_threshold_of_its_own_nodes():
    probs, data, calibration = draw(3, num_nodes=400)
    predicted = probs.argmax(1)
    sets = ew.ConformalNodes(alpha=0.2, groups="predicted_class").fit(probs, data, calibration=calibration)
    for label in range(NUM_CLASSES):
        own = calibration & (predicted == label)
        alone = ew.ConformalNodes(alpha=0.2).fit(probs, data, calibration=own)
        assert torch.equal(sets.sets[predicted == label], alone.sets[predicted == label])
    coverage = sets.coverage_by("predicted_class", data.y, ~calibration)
    assert sum(c.count for c in coverage.values()) == 200
    assert sum(c.covered for c in coverage.values()) / 200 == sets.coverage(data.y, ~calibration)
    of_degree = sets.coverage_by("degree", data.y, ~calibration)
    assert 2 <= len(of_degree) <= 4
    with pytest.raises(ValueError, match="nodes in the group '0'"):
        ew.ConformalNodes(groups="predicted_class").fit(probs, data, calibration=calibration & (predicted != 0))


def test_warning_where_calibration_meets_used_nodes():
    probs, data, calibration = draw(0)
    used = torch.arange(NUM_NODES) == int(calibration.nonzero()[0])
    with pytest.warns(ew.ExchangeabilityWarning, match="1 of 20 calibration nodes are among the used nodes"):
        ew.ConformalNodes().fit(probs, data, calibration=calibration, used=used)
    data.val_mask = used
    with pytest.warns(ew.ExchangeabilityWarning, match=r"among the nodes of data\.val_mask"):
        ew.ConformalNodes().fit(probs, data, calibration=calibration)
    ew.ConformalNodes().fit(probs, data, calibration=calibration, used=~calibration)


@pytest.mark.parametrize(
    "options", [*OPTIONS, {"groups": "degree", "alpha": 0.4}, {"groups": "predicted_class"}], ids=str
)
def test_saved_and_applied_sets_are_equal(options, tmp_path):
    probs, data, calibration = draw(1, num_nodes=400)
    sets = ew.ConformalNodes(**options).fit(probs, data, calibration=calibration, seed=5)
    sets.save(tmp_path / "sets.safetensors")
    loaded = ew.NodePredictionSets.load(tmp_path / "sets.safetensors")
    assert loaded.options == sets.options
    assert repr(loaded) == repr(sets)
    for applied in (sets.apply(probs, data), loaded.apply(probs, data), loaded):
        assert torch.equal(applied.sets, sets.sets)
    other, _, _ = draw(2, num_nodes=400)
    assert not torch.equal(loaded.apply(other, data).sets, sets.sets)


def test_missing_graph_raises_where_it_is_needed():
    probs, data, calibration = draw(0)
    no_graph = Data(y=data.y)
    for options in (ew.ConformalNodes(diffusion=0.5), ew.ConformalNodes(groups="degree")):
        with pytest.raises(ValueError, match="Expected data with edge_index"):
            options.fit(probs, no_graph, calibration=calibration)
    assert ew.ConformalNodes().fit(probs, no_graph, calibration=calibration).degree is None


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0},
        {"alpha": 1},
        {"score": "naps"},
        {"diffusion": 1.5},
        {"penalty": -1},
        {"k_reg": -1},
        {"groups": "agree"},
    ],
    ids=str,
)
def test_invalid_options_raise(options):
    with pytest.raises(ValueError, match=f"Expected {next(iter(options))} to be"):
        ew.ConformalNodes(**options)


def test_invalid_labels_masks_and_files_raise(tmp_path):
    probs, data, calibration = draw(0)
    with pytest.raises(ValueError, match="Expected calibration of shape"):
        ew.ConformalNodes().fit(probs, data, calibration=calibration[:-1])
    unknown = Data(y=torch.full((NUM_NODES,), -1))
    with pytest.raises(ValueError, match="calibration & "):
        ew.ConformalNodes().fit(probs, unknown, calibration=calibration)
    sets = ew.ConformalNodes().fit(probs, data, calibration=calibration)
    with pytest.raises(ValueError, match="of 4 classes, as in the fit"):
        sets.apply(probs[:, :1] * 0 + 1)
    ew.IndependentPosterior(probs).save(tmp_path / "posterior.safetensors")
    with pytest.raises(ValueError, match=r"NodePredictionSets\.save"):
        ew.NodePredictionSets.load(tmp_path / "posterior.safetensors")
    assert np.isnan(sets.coverage(data.y, torch.zeros(NUM_NODES, dtype=torch.bool)))
