"""LocalScaling against a loss computed by a loop, and on special graphs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from edgewise import LocalScaling

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose


def covariates_loop(case):
    """Log spread and log(1 + degree) of each node, minus their means."""
    logits, edges = case.logits.numpy(), case.data.edge_index.T.tolist()
    neighbors = [set() for _ in logits]
    for i, j in edges:
        if i != j:
            neighbors[i].add(j)
            neighbors[j].add(i)
    spread = np.log([np.sqrt(np.mean((row - row.mean()) ** 2)) for row in logits])
    degree = np.log([1 + len(others) for others in neighbors])
    return spread - spread.mean(), degree - degree.mean()


def penalized_nll(case, exponents, deviations):
    spread, degree = covariates_loop(case)
    log_t, b, c = exponents
    total = 0.5 * sum((value / deviation) ** 2 for value, deviation in zip(exponents, deviations, strict=True))
    z = case.logits.numpy() / np.exp(log_t + b * spread + c * degree)[:, None]
    z = z - z.max(1, keepdims=True)
    val, y = case.split.val.nonzero().flatten().tolist(), case.data.y.numpy()
    for i in val:
        total += np.log(np.exp(z[i]).sum()) - z[i, y[i]]
    if all(z[i, y[i]] == 0 for i in val):  # add half a pseudo-label, spread over all nodes and classes
        total += 0.5 * np.mean([np.log(np.exp(z[i]).sum()) - z[i, label] for i in val for label in range(z.shape[1])])
    return total


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), deviations=st.tuples(*[st.floats(0.1, 3.0)] * 3), all_correct=st.booleans())
def test_result_minimizes_the_penalized_nll(make_case, seed, deviations, all_correct):
    case = make_case(seed)
    if all_correct:
        case.logits[case.split.val, case.data.y[case.split.val]] = case.logits[case.split.val].amax(1) + 0.1
    found = LocalScaling(*deviations).fit(case.logits, case.data, case.split)
    at = np.array([np.log(found.parameters["temperature"]), found.parameters["spread"], found.parameters["degree"]])
    minimum = penalized_nll(case, at, deviations)
    for step in 1e-3 * np.vstack([np.eye(3), -np.eye(3), [[1, 1, 1], [-1, 1, 0]]]):
        assert penalized_nll(case, at + step, deviations) > minimum
    slopes = [
        (penalized_nll(case, at + step, deviations) - penalized_nll(case, at - step, deviations)) / 2e-5
        for step in 1e-5 * np.eye(3)
    ]
    np.testing.assert_allclose(slopes, 0.0, atol=1e-4)
    spread, degree = covariates_loop(case)
    temperatures = np.exp(at[0] + at[1] * spread + at[2] * degree)
    expected = (case.logits / torch.from_numpy(temperatures)[:, None]).softmax(-1)
    torch.testing.assert_close(found.posterior().node, expected, atol=1e-9, rtol=0.0)
    assert torch.equal(found.posterior().node.argmax(1), case.logits.argmax(1))


def test_equal_spread_and_degree_give_temperature_scaling(case):
    case.logits = (case.logits - case.logits.mean(1, keepdim=True)) / case.logits.std(1, keepdim=True)
    ring = torch.arange(60)
    case.data.edge_index = torch.stack([ring, ring.roll(1)])
    found = LocalScaling(prior_log_temperature=0.7).fit(case.logits, case.data, case.split).parameters
    best = minimize_scalar(lambda t: penalized_nll(case, (t, 0.0, 0.0), (0.7, 1.0, 1.0)), bounds=(-5, 5)).x
    assert found["spread"] == pytest.approx(0.0, abs=1e-9)
    assert found["degree"] == pytest.approx(0.0, abs=1e-9)
    assert found["temperature"] == pytest.approx(np.exp(best), rel=1e-4)


def test_over_confident_hubs_give_positive_degree_exponent():
    """Labels of hubs are drawn with temperature 4, those of other nodes with temperature 1."""
    rng = np.random.default_rng(0)
    num_nodes = 400
    hubs = np.arange(num_nodes) < 40
    logits = rng.normal(scale=2.0, size=(num_nodes, 3))
    p = np.exp(logits / np.where(hubs, 4.0, 1.0)[:, None])
    y = torch.tensor([rng.choice(3, p=row / row.sum()) for row in p])
    ends = torch.stack([torch.arange(num_nodes).repeat(5), torch.from_numpy(rng.integers(40, size=5 * num_nodes))])
    nodes = torch.arange(num_nodes)
    split = type("Split", (), {"train": nodes % 4 == 0, "val": nodes % 4 != 0})
    data = type("Graph", (), {"y": y, "edge_index": ends})
    found = LocalScaling(prior_degree=1.0).fit(torch.from_numpy(logits), data, split).parameters
    assert found["degree"] > 0.2
    assert 0.8 < found["temperature"] < 2.0


@pytest.mark.parametrize("name", ["prior_log_temperature", "prior_spread", "prior_degree"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), True, "1"])
def test_priors_must_be_positive(name, value):
    with pytest.raises(ValueError, match=f"Expected {name} to be a number above 0, but got"):
        LocalScaling(**{name: value})
