"""GMNN: mixture of samples, averaged logits, EM rounds, and sampling of labels."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import one_hot

import edgewise as ew
from edgewise.models.gmnn import draw_classes, draw_labels
from edgewise.models.graph_pass import all_logits
from edgewise.models.seeds import generator
from edgewise.models.task import prepare_task
from helpers.block_graph import SMALL_MODELS, assert_same_bits, fitted_tensors, make_block_graph, make_split

DATA = make_block_graph()
SPLIT = make_split(DATA)
MODEL = SMALL_MODELS["gmnn"]


@pytest.fixture(scope="module")
def fitted():
    return replace(MODEL, learning_rate=0.05).fit(DATA, SPLIT)


@pytest.fixture(scope="module")
def task():
    return prepare_task(DATA, SPLIT, directed="refuse", num_classes=None, device="cpu")


def test_default_number_of_samples_is_32():
    assert ew.GMNN().samples == 32
    fitted = ew.GMNN(hidden=8, pretrain_epochs=2, round_epochs=2).fit(DATA, SPLIT)
    assert fitted.sample_logits.shape == (32, 90, 3)
    assert fitted.posterior().tensors()["samples"].shape == (32, 90, 3)


@pytest.mark.parametrize("samples", [1, 5])
def test_number_of_samples(samples):
    assert replace(MODEL, samples=samples).fit(DATA, SPLIT).sample_logits.shape == (samples, 90, 3)


def test_posterior_is_the_mixture_of_samples(fitted):
    posterior = fitted.posterior()
    samples = fitted.sample_logits.softmax(-1)
    assert isinstance(posterior, ew.MixturePosterior)
    torch.testing.assert_close(posterior.node, samples.mean(0))
    i, j = DATA.edge_index
    joint = (samples[:, i].unsqueeze(3) * samples[:, j].unsqueeze(2)).mean(0)
    torch.testing.assert_close(posterior.joint(DATA.edge_index), joint)


def test_joints_sum_to_node_marginals(fitted):
    posterior = fitted.posterior()
    joint, (i, j) = posterior.joint(DATA.edge_index), DATA.edge_index
    torch.testing.assert_close(joint.sum(2), posterior.node[i])
    torch.testing.assert_close(joint.sum(1), posterior.node[j])


def test_joints_are_not_products(fitted):
    """Samples differ, so neighbors are dependent."""
    posterior, (i, j) = fitted.posterior(), DATA.edge_index
    product = posterior.node[i].unsqueeze(2) * posterior.node[j].unsqueeze(1)
    assert (posterior.joint(DATA.edge_index) - product).abs().max() > 1e-4


def test_averaged_logits_as_posterior_option(fitted):
    averaged = fitted.posterior("averaged_logits")
    assert isinstance(averaged, ew.IndependentPosterior)
    torch.testing.assert_close(averaged.node, fitted.sample_logits.mean(0).softmax(-1))
    assert (averaged.node - fitted.posterior().node).abs().max() > 1e-5
    assert isinstance(fitted.posterior("mixture"), ew.MixturePosterior)


def test_averaged_logits_as_model_option(fitted):
    published = replace(fitted.model, prediction="averaged_logits").fit(DATA, SPLIT)
    assert torch.equal(published.sample_logits, fitted.sample_logits)
    assert torch.equal(published.posterior().node, fitted.posterior("averaged_logits").node)
    assert torch.equal(published.posterior("mixture").node, fitted.posterior().node)


def test_joint_of_one_sample_is_a_product():
    posterior = replace(MODEL, samples=1).fit(DATA, SPLIT).posterior()
    i, j = DATA.edge_index
    product = posterior.node[i].unsqueeze(2) * posterior.node[j].unsqueeze(1)
    torch.testing.assert_close(posterior.joint(DATA.edge_index), product)


def test_sample_logits_are_those_of_p_for_labels_drawn_from_q(fitted, task):
    """Draw labels from q, with true labels for training nodes, and run p. The first draw is that of the M step."""
    q, p = ({name[2:]: weight for name, weight in fitted.weights.items() if name[0] == net} for net in "qp")
    probs = all_logits(ew.GCN().forward, task, task.x, q).double().softmax(-1)
    draws = generator(0, "gmnn")
    torch.rand(90, 1, dtype=torch.float64, generator=draws)
    for logits in fitted.sample_logits:
        uniform = torch.rand(90, 1, dtype=torch.float64, generator=draws)
        labels = (probs.cumsum(1) <= uniform).sum(1).clamp(max=2)
        labels[SPLIT.train] = DATA.y[SPLIT.train]
        torch.testing.assert_close(logits, all_logits(ew.GCN().forward, task, one_hot(labels, 3).float(), p))


def test_weights_of_both_networks_are_stored(fitted):
    shapes = {name: tuple(weight.shape) for name, weight in fitted.weights.items()}
    hidden = {"bias_1": (8,), "weight_2": (8, 3), "bias_2": (3,)}
    assert shapes == {
        "q/weight_1": (30, 8),
        "p/weight_1": (3, 8),
        **{f"{net}/{name}": shape for net in "qp" for name, shape in hidden.items()},
    }


@pytest.mark.parametrize("rounds", [1, 3])
def test_each_round_has_m_and_e_step(rounds):
    phases = replace(MODEL, rounds=rounds).fit(DATA, SPLIT).history.phases
    assert phases == [("pretraining", 10)] + rounds * [("M step", 6), ("E step", 6)]


def test_rounds_have_different_dropout_masks():
    """Each step of each round has its own masks, so all losses differ although the weights stay the same."""
    history = replace(MODEL, rounds=2, learning_rate=1e-30).fit(DATA, SPLIT).history
    assert len(set(history.loss[10:])) == 24


def test_first_round_does_not_depend_on_number_of_rounds():
    one, two = (replace(MODEL, rounds=rounds).fit(DATA, SPLIT) for rounds in (1, 2))
    assert two.history.loss[:22] == one.history.loss


def test_same_seed_gives_same_bits():
    assert_same_bits(MODEL.fit(DATA, SPLIT), MODEL.fit(DATA, SPLIT))


# Sampling.


def test_drawn_labels_are_one_hot_and_true_for_training_nodes(task):
    logits = 3 * torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    drawn = draw_labels(task, logits, torch.Generator().manual_seed(1))
    assert drawn.shape == (90, 3)
    assert drawn.dtype == torch.float32
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert (drawn.sum(1) == 1).all()
    assert torch.equal(drawn.argmax(1)[SPLIT.train], DATA.y[SPLIT.train])
    assert not torch.equal(drawn.argmax(1), logits.argmax(1))


def test_clamp_sets_rows_of_training_nodes(task):
    rows = task.clamp(torch.full((90, 3), 1 / 3))
    assert torch.equal(rows[SPLIT.train], one_hot(DATA.y[SPLIT.train], 3).float())
    assert (rows[~SPLIT.train] == torch.tensor(1 / 3)).all()


@pytest.mark.parametrize(
    "probs", [[0.5, 0.5], [0.1, 0.2, 0.3, 0.4], [0.7, 0.0, 0.25, 0.05], [0.0, 0.001, 0.999, 0.0], [1.0]]
)
def test_draws_follow_the_distribution(probs):
    p, num = torch.tensor(probs, dtype=torch.float64), 100_000
    drawn = draw_classes(p.expand(num, -1), torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=len(p)).double()
    assert len(counts) == len(p)
    possible = p > 0
    assert (counts[~possible] == 0).all()
    chi_square = ((counts - num * p)[possible] ** 2 / (num * p[possible])).sum()
    assert chi_square < 16.3  # the 99.9% quantile for 3 degrees of freedom


def test_nodes_are_drawn_independently():
    """The frequencies of pairs of adjacent draws are products."""
    p = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    drawn = draw_classes(p.expand(90_000, -1), torch.Generator().manual_seed(3)).view(-1, 2)
    counts = torch.bincount(3 * drawn[:, 0] + drawn[:, 1], minlength=9).double()
    expected = len(drawn) * torch.outer(p, p).flatten()
    assert ((counts - expected) ** 2 / expected).sum() < 26.1  # the 99.9% quantile for 8 degrees of freedom


def test_certain_classes_are_drawn():
    certain = torch.eye(4, dtype=torch.float64).repeat(1000, 1)
    assert torch.equal(draw_classes(certain, torch.Generator().manual_seed(0)), torch.arange(4).repeat(1000))


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_extreme_uniform_numbers_select_possible_classes(uniform, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, generator: torch.full(shape, uniform, dtype=dtype))
    impossible_ends = torch.tensor([[0.0, 0.5, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    drawn = draw_classes(impossible_ends, torch.Generator())
    assert (impossible_ends.gather(1, drawn.unsqueeze(1)) > 0).all()


def test_draws_from_extreme_logits(task):
    logits = torch.tensor([1e4, -1e4, 0.0]).expand(90, 3)
    drawn = draw_labels(task, logits, torch.Generator().manual_seed(0)).argmax(1)
    assert (drawn[~SPLIT.train] == 0).all()


def test_every_tensor_is_finite(fitted):
    assert all(bool(tensor.isfinite().all()) for tensor in fitted_tensors(fitted).values())
