"""Isotonic maps against scikit-learn."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from edgewise import IsotonicCalibration, isotonic_map

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose


def sklearn_map(p, happened):
    """Fit with scikit-learn, and clip the values at the knots to [1 / (n + 2), 1 - 1 / (n + 2)]."""
    fitted = IsotonicRegression(out_of_bounds="clip").fit(p, happened.astype(float))
    lowest = 1 / (len(p) + 2)
    knots, values = fitted.X_thresholds_, fitted.y_thresholds_.clip(lowest, 1 - lowest)
    return fitted, lambda at: np.interp(at, knots, values)


def random_observations(seed, observations, levels=None):
    rng = np.random.default_rng(seed)
    p = rng.random(observations)
    p = p if levels is None else np.round(p * levels) / levels
    return p, rng.random(observations) < p**2


@given(seed=st.integers(0, 10_000), observations=st.integers(1, 60), levels=st.sampled_from([None, 3, 10]))
def test_map_equals_scikit_learn(seed, observations, levels):
    p, happened = random_observations(seed, observations, levels)
    ours = isotonic_map(p, happened)
    fitted, their_map = sklearn_map(p, happened)
    at = np.linspace(0, 1, 101)
    np.testing.assert_allclose(ours(at), their_map(at), atol=1e-12)
    lowest = 1 / (observations + 2)
    np.testing.assert_allclose(ours(p), fitted.predict(p).clip(lowest, 1 - lowest), atol=1e-12)
    assert bool((ours(at).diff() >= 0).all())
    assert float(ours(at).min()) >= lowest - 1e-15 and float(ours(at).max()) <= 1 - lowest + 1e-15


def test_values_are_clipped_by_number_of_observations():
    always = isotonic_map(torch.tensor([0.2, 0.9, 0.9]), torch.tensor([True, True, True]))
    assert always(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)).tolist() == [0.8] * 3
    never = isotonic_map(torch.tensor([0.2, 0.9]), torch.tensor([False, False]))
    assert never(torch.tensor([0.3])).tolist() == [0.25]


def test_map_preserves_shape_and_dtype_and_accepts_rounding_errors():
    found = isotonic_map(torch.tensor([0.1, 0.8]), torch.tensor([False, True]))
    assert found(torch.rand(2, 3, 4)).shape == (2, 3, 4)
    assert found(torch.rand(5)).dtype == torch.float32
    assert found(np.array([1.0 + 1e-6])) == found(np.array([1.0]))


def test_node_probabilities_are_mapped_per_class_and_normalized(case):
    p, val, y = case.logits.softmax(-1).numpy(), case.split.val.numpy(), case.data.y.numpy()
    mapped = np.stack([sklearn_map(p[val, c], y[val] == c)[1](p[:, c]) for c in range(3)], axis=1)
    found = IsotonicCalibration().fit(case.logits, case.data, case.split).posterior()
    np.testing.assert_allclose(found.node, mapped / mapped.sum(1, keepdims=True), atol=1e-12)


@pytest.mark.parametrize(
    ("probability", "happened", "match"),
    [
        (torch.tensor([0.1, 0.2]), torch.tensor([True]), "shape (2,) of dtype torch.float32 and shape (1,)"),
        (torch.tensor([0.1]), torch.tensor([1]), "and shape (1,) of dtype torch.int64."),
        (torch.tensor([]), torch.tensor([], dtype=torch.bool), "but got shape (0,)"),
        (torch.tensor([[0.1]]), torch.tensor([[True]]), "but got shape (1, 1)"),
        (torch.tensor([1]), torch.tensor([True]), "dtype torch.int64."),
        (torch.tensor([1.5]), torch.tensor([True]), "but got 1.5."),
        (torch.tensor([0.2, -0.5]), torch.tensor([True, True]), "but got -0.5."),
        (torch.tensor([float("nan")]), torch.tensor([True]), "but got nan."),
        ({0.5}, torch.tensor([True]), "Expected probability to be an array"),
    ],
)
def test_invalid_observations_raise(probability, happened, match):
    with pytest.raises(ValueError, match=re.escape(match)):
        isotonic_map(probability, happened)


@pytest.mark.parametrize("at", [torch.tensor([2.0]), torch.tensor([float("nan")]), torch.tensor([0, 1])])
def test_map_of_invalid_probabilities_raises(at):
    with pytest.raises(ValueError, match="probabilities"):
        isotonic_map(torch.tensor([0.1, 0.8]), torch.tensor([False, True]))(at)
