"""GATS against a loop over nodes."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise import GATS, TemperatureScaling
from edgewise.calibration.calibration_input import predictions_on
from edgewise.calibration.graph_networks import _Neighborhoods

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose


def temperatures_loop(case, weights):
    """Compute T_i = max(0.01, T₀ + mean_h softplus(ω δ_i + Σ_j α_ij γ_j θ_h·z̃_j)), j = i and its neighbors."""
    z = case.logits.tolist()
    neighbors = [[i] for i in range(len(z))]
    for i, j in case.data.edge_index.T.tolist():
        if i != j and j not in neighbors[i]:
            neighbors[i].append(j)
            neighbors[j].append(i)
    confidence = [max(row) for row in case.logits.softmax(-1).tolist()]
    trained = case.split.train.tolist()
    gamma_trained, gamma_near = weights["gamma"].tolist()
    gamma = [
        gamma_trained if trained[i] else gamma_near if any(trained[j] for j in neighbors[i]) else 1.0
        for i in range(len(z))
    ]
    scaled = [sorted((value - min(row)) / (max(row) - min(row)) for value in row) for row in z]
    found = []
    for i in range(len(z)):
        scores = [sum(a * b for a, b in zip(z[i], z[j], strict=True)) / (gamma[i] * gamma[j]) for j in neighbors[i]]
        exponentials = [math.exp(score if score > 0 else 0.2 * score) for score in scores]
        attention = [value / sum(exponentials) for value in exponentials]
        relative_confidence = confidence[i] - sum(confidence[j] for j in neighbors[i]) / len(neighbors[i])
        heads = []
        for theta in weights["theta"].T.tolist():
            message_sum = sum(
                a * gamma[j] * sum(t * v for t, v in zip(theta, scaled[j], strict=True))
                for a, j in zip(attention, neighbors[i], strict=True)
            )
            heads.append(math.log1p(math.exp(float(weights["omega"]) * relative_confidence + message_sum)))
        found.append(max(0.01, float(weights["base"]) + sum(heads) / len(heads)))
    return torch.tensor(found, dtype=torch.float64)


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), heads=st.integers(1, 3), base=st.floats(-1.5, 2.0))
def test_temperatures_equal_loop(make_case, seed, heads, base):
    case = make_case(seed)
    case.logits = case.logits / 2
    g = torch.Generator().manual_seed(seed)
    weights = {
        "theta": torch.randn(3, heads, generator=g, dtype=torch.float64),
        "omega": 3 * torch.randn(1, generator=g, dtype=torch.float64),
        "gamma": 0.5 + torch.rand(2, generator=g, dtype=torch.float64),
        "base": torch.tensor([base], dtype=torch.float64),
    }
    expected = temperatures_loop(case, weights)
    for chosen in (torch.ones(60, dtype=torch.bool), case.split.val):
        neighborhoods = _Neighborhoods.create(predictions_on(case.logits, case.data), case.split.train, chosen)
        torch.testing.assert_close(neighborhoods.temperatures(weights), expected[chosen])


def test_case_has_training_neighboring_other_and_isolated_nodes(case):
    """The random case of the test above covers all values of γ."""
    predictions = predictions_on(case.logits, case.data)
    index = _Neighborhoods.create(predictions, case.split.train, torch.ones(60, dtype=torch.bool)).gamma_index[0]
    assert index.unique().tolist() == [0, 1, 2]
    assert predictions.degree[-2:].tolist() == [0.0, 0.0]


def test_initial_mean_temperature_is_that_of_temperature_scaling(case):
    start = TemperatureScaling().fit(case.logits, case.data, case.split).parameters["temperature"]
    found = GATS(epochs=1, learning_rate=1e-12).fit(case.logits, case.data, case.split).parameters["temperatures"]
    assert float(found[case.split.val].mean()) == pytest.approx(start, rel=1e-9)
    assert float(found.std()) > 1e-3


def test_predicted_labels_do_not_change_and_temperatures_are_positive(case):
    found = GATS(epochs=30, learning_rate=0.3).fit(case.logits, case.data, case.split)
    assert float(found.parameters["temperatures"].min()) >= 0.01
    assert torch.equal(found.posterior().node.argmax(1), case.logits.argmax(1))
    torch.testing.assert_close(
        found.posterior().node, (case.logits / found.parameters["temperatures"][:, None]).softmax(-1)
    )


def test_equal_logits_stay_uniform(case):
    case.logits[5:9] = 2.0
    found = GATS(epochs=3).fit(case.logits, case.data, case.split).posterior()
    torch.testing.assert_close(found.node[5:9], torch.full((4, 3), 1 / 3, dtype=torch.float64))


def test_seed_determines_the_result(case):
    def nodes(seed):
        return GATS(epochs=5, seed=seed).fit(case.logits, case.data, case.split).posterior().node

    assert torch.equal(nodes(3), nodes(3))
    assert not torch.equal(nodes(3), nodes(4))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"heads": 0}, "Expected heads to be a whole number from 1 to 1024, but got 0."),
        ({"patience": 0}, "Expected patience to be a whole number from 1 to"),
        ({"learning_rate": -0.1}, "Expected learning_rate to be a number above 0, but got -0.1."),
        ({"weight_decay": None}, "Expected weight_decay to be a number of at least 0, but got None."),
        ({"seed": 1.5}, "Expected seed to be a whole number from 0 to"),
    ],
)
def test_invalid_options_raise(options, match):
    with pytest.raises(ValueError, match=re.escape(match)):
        GATS(**options)
