"""Ensemble and MCDropout: members and samples, joints, seeds, shared training, nested options and files."""

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import dropout
from torch_geometric.nn import GCNConv

import edgewise as ew
from edgewise.kernels.dropout import Dropout
from edgewise.models.seeds import Seeds, derive_seeds
from edgewise.models.task import prepare_task
from edgewise.sweep.plan import Training
from helpers.block_graph import assert_same_bits, make_block_graph, make_split

DATA = make_block_graph()
SPLIT = make_split(DATA)
GCN, GAT = ew.GCN(hidden=8, max_epochs=12), ew.GAT(hidden=8, heads=2, max_epochs=12)


class SmallNetwork(torch.nn.Module):
    def __init__(self, num_features, num_classes):
        super().__init__()
        self.first, self.second = GCNConv(num_features, 8), GCNConv(8, num_classes)

    def forward(self, x, edge_index):
        return self.second(dropout(self.first(x, edge_index).relu(), 0.5, self.training), edge_index)


CLASSIFIERS = [GCN, GAT, ew.Network(SmallNetwork, max_epochs=12)]
BOTH = [ew.Ensemble(GCN, members=3), ew.MCDropout(GCN, samples=5)]


@cache
def fit_once(model):
    """Fit with seed 3. The result is shared between tests."""
    return model.fit(DATA, SPLIT, seed=3)


def mean_of_products(samples):
    """Average the product joints of all edges over samples of node probabilities."""
    joints = torch.zeros(DATA.num_edges, 3, 3)
    for probs in samples:
        for e, (i, j) in enumerate(DATA.edge_index.T.tolist()):
            joints[e] += torch.outer(probs[i], probs[j]) / len(samples)
    return joints


# Ensembles.


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda model: model.name)
def test_members_are_fits_with_their_own_seeds(classifier):
    fitted, seeds = fit_once(ew.Ensemble(classifier, members=3)), Seeds(3, 3, 3)
    alone = [classifier.fit(DATA, SPLIT, seed=seeds)]
    alone += [classifier.fit(DATA, SPLIT, seed=derive_seeds(seeds, f"member {k}")) for k in (1, 2)]
    assert torch.equal(fitted.sample_logits, torch.stack([one.logits for one in alone]))
    assert fitted.history.loss == [loss for one in alone for loss in one.history.loss]
    for k, one in enumerate(alone):
        assert all(torch.equal(fitted.weights[f"{k}/{name}"], weight) for name, weight in one.weights.items())
    joints = fitted.posterior().joint(DATA.edge_index)
    torch.testing.assert_close(joints, mean_of_products([one.logits.softmax(1) for one in alone]))
    assert len({one.logits[0, 0].item() for one in alone}) == 3


def test_one_member_is_the_classifier():
    fitted, alone = fit_once(ew.Ensemble(GCN, members=1)), fit_once(GCN)
    torch.testing.assert_close(fitted.posterior().joint(DATA.edge_index), alone.posterior().joint(DATA.edge_index))


def test_more_members_keep_the_first_ones():
    few, many = fit_once(ew.Ensemble(GCN, members=2)), fit_once(ew.Ensemble(GCN, members=3))
    assert torch.equal(many.sample_logits[:2], few.sample_logits)


def test_joints_of_an_ensemble_are_not_products():
    posterior, (i, j) = fit_once(BOTH[0]).posterior(), DATA.edge_index
    product = posterior.node[i].unsqueeze(2) * posterior.node[j].unsqueeze(1)
    assert float((posterior.joint(DATA.edge_index) - product).abs().max()) > 1e-3


# Dropout at test time.


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda model: model.name)
def test_training_is_that_of_the_classifier_and_samples_are_reproducible(classifier):
    fitted, alone = fit_once(ew.MCDropout(classifier, samples=4)), fit_once(classifier)
    assert fitted.history.loss == alone.history.loss
    assert all(torch.equal(fitted.weights[name], weight) for name, weight in alone.weights.items())
    assert_same_bits(ew.MCDropout(classifier, samples=4).fit(DATA, SPLIT, seed=3), fitted)
    assert torch.equal(fit_once(ew.MCDropout(classifier, samples=6)).sample_logits[:4], fitted.sample_logits)
    assert len(set(fitted.sample_logits[:, 0, 0].tolist())) == len(set(fitted.sample_seeds.tolist())) == 4
    joints = fitted.posterior().joint(DATA.edge_index)
    torch.testing.assert_close(joints, mean_of_products(fitted.sample_logits.softmax(-1)))


def test_samples_are_those_of_a_plain_gcn_with_the_same_mean():
    """The logits of a GCN are linear in the masks, so their mean over masks is the logits without dropout."""
    fitted = fit_once(ew.MCDropout(GCN, samples=3000))
    spread = fitted.sample_logits.std(0)
    error = (fitted.sample_logits.mean(0) - fit_once(GCN).logits).abs()
    assert float((error / spread).max()) < 6 / 3000**0.5
    conv = GCNConv(30, 8, normalize=True)
    with torch.no_grad():
        conv.lin.weight.copy_(fitted.weights["weight_1"].T)
        conv.bias.copy_(fitted.weights["bias_1"])
        hidden, last = conv(DATA.x, DATA.edge_index).relu(), GCNConv(8, 3)
        last.lin.weight.copy_(fitted.weights["weight_2"].T)
        last.bias.copy_(fitted.weights["bias_2"])
        torch.manual_seed(0)
        plain = torch.stack([last(dropout(hidden, 0.5), DATA.edge_index) for _ in range(3000)])
    torch.testing.assert_close(plain.std(0), spread, rtol=0.15, atol=0.01)


@pytest.mark.parametrize("classifier", CLASSIFIERS[:2], ids=lambda model: model.name)
def test_a_classifier_without_dropout_raises(classifier):
    with pytest.raises(ValueError, match=r"with dropout=0.*MCDropout\(G.*\(dropout=0\.5\)\)"):
        ew.MCDropout(replace(classifier, dropout=0.0))


@pytest.mark.parametrize("classifier", CLASSIFIERS[:2], ids=lambda model: model.name)
def test_samples_do_not_repeat_the_masks_of_training(classifier, monkeypatch):
    keys, original = [], Dropout.__init__

    def record(self, rate, key):
        keys.append(key)
        original(self, rate, key)

    monkeypatch.setattr(Dropout, "__init__", record)
    classifier.fit(DATA, SPLIT, seed=3)
    in_training = set(keys)
    keys.clear()
    ew.MCDropout(classifier, samples=4).fit(DATA, SPLIT, seed=3)
    assert in_training and len(set(keys) - in_training) == 4


def test_samples_of_a_network_do_not_repeat_the_masks_of_training():
    network, masks = CLASSIFIERS[2], []

    class Recorded(SmallNetwork):
        def forward(self, x, edge_index):
            masks.append(dropout(torch.ones(100), 0.5, self.training))
            return super().forward(x, edge_index)

    ew.MCDropout(replace(network, make_module=Recorded), samples=4).fit(DATA, SPLIT, seed=3)
    drawn = [tuple(mask.tolist()) for mask in masks if not mask.all()]
    assert len(set(drawn)) == len(drawn) == 12 + 4


# Both.


@pytest.mark.parametrize("kind", [ew.Ensemble, ew.MCDropout])
def test_defaults_are_those_of_gcn(kind):
    assert kind().classifier == ew.GCN()
    assert kind() == kind(ew.GCN()) == kind(classifier=ew.GCN())


@pytest.mark.parametrize("model", BOTH, ids=lambda model: model.name)
def test_training_is_shared_on_a_task(model):
    task = prepare_task(DATA, SPLIT, directed="refuse", num_classes=None, device="cpu")
    gcn = GCN.fit_task(task, seed=3)
    loops = dict(task.training_loops)
    assert_same_bits(model.fit_task(task, seed=3), fit_once(model))
    assert all(task.training_loops[key] is loop for key, loop in loops.items())
    assert_same_bits(GCN.fit_task(task, seed=3), gcn)


@pytest.mark.parametrize("model", BOTH, ids=lambda model: model.name)
@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda model: model.name)
def test_save_load_and_apply(model, classifier, tmp_path):
    fitted = fit_once(replace(model, classifier=replace(classifier, learning_rate=0.02)))
    fitted.save(tmp_path / "model")
    again = ew.Fitted.load(tmp_path / "model")
    assert again.model == fitted.model and repr(again) == repr(fitted)
    assert_same_bits(again, fitted)
    unlabeled = SimpleNamespace(x=DATA.x, edge_index=DATA.edge_index)
    assert torch.equal(again.apply(unlabeled).sample_logits, fitted.sample_logits)
    part = SimpleNamespace(x=DATA.x[:5], edge_index=torch.tensor([[0, 1], [1, 0]]))
    assert again.apply(part).posterior().node.shape == (5, 3)
    with pytest.raises(ValueError, match=r"features.* as in training, but got 29"):
        fitted.apply(SimpleNamespace(x=DATA.x[:, 1:], edge_index=DATA.edge_index))


def test_own_classifiers_can_be_nested(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Nested(ew.GCN):
        extra: int = 3

        name = "nested_in_a_mixture"

    model = ew.Ensemble(Nested(hidden=4, max_epochs=2, extra=5), members=2)
    model.fit(DATA, SPLIT).save(tmp_path / "model")
    assert ew.Fitted.load(tmp_path / "model").model == model


@pytest.mark.parametrize("model", BOTH, ids=lambda model: model.name)
def test_weight_decay_is_that_of_the_classifier(model):
    assert model.with_weight_decay(0.0) == replace(model, classifier=replace(GCN, weight_decay=0.0))
    assert model.hyperparameters()["classifier"] == {"name": "gcn", "options": GCN.hyperparameters()}


@pytest.mark.parametrize("kind", [ew.Ensemble, ew.MCDropout])
@pytest.mark.parametrize("classifier", [ew.JointGCN(), ew.GMNN(), ew.SPN(), ew.Ensemble(), ew.GCN, "gcn", None])
def test_models_without_logits_raise(kind, classifier):
    with pytest.raises(ValueError, match=rf"ew\.GCN\(\).* but got .*ew\.{kind.__name__}\(ew\.GCN\(\)\)"):
        kind(classifier)


def test_numbers_are_checked():
    with pytest.raises(ValueError, match="members to be a whole number from 1"):
        ew.Ensemble(members=0)
    with pytest.raises(ValueError, match=r"samples to be a whole number from 1 .* got 2\.5"):
        ew.MCDropout(samples=2.5)
    with pytest.raises(TypeError, match="Did you mean 'members'"):
        ew.Ensemble(member=3)


def test_only_models_with_logits_of_independent_nodes_are_calibrated_in_a_sweep():
    assert Training(GCN).is_calibrated
    assert not any(Training(model).is_calibrated for model in (*BOTH, ew.SPN()))
