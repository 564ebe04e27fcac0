"""Vector scaling against a reference optimizer, and its limits for wide and narrow priors."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from edgewise import TemperatureScaling, VectorScaling

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose


def reference(case, temperature, prior):
    """Minimize the NLL of a ∘ z / T + b, with a penalty unless the prior is None, by conjugate gradients."""
    val = case.split.val
    z, y = case.logits[val].numpy() / temperature, case.data.y[val].numpy()
    z = z - z.mean(1, keepdims=True)
    classes = z.shape[1]

    def loss(parameters):
        log_p = log_softmax(z * parameters[:classes] + parameters[classes:], axis=1)
        gap = np.exp(log_p) - np.eye(classes)[y]
        deviation = parameters - np.repeat([1.0, 0.0], classes)
        penalty = 0.0 if prior is None else 1 / prior**2
        value = -log_p[np.arange(len(y)), y].sum() + penalty * (deviation**2).sum() / 2
        return value, np.concatenate([(gap * z).sum(0), gap.sum(0)]) + penalty * deviation

    start = np.repeat([1.0, 0.0], classes)
    found = minimize(loss, start, jac=True, method="CG", options={"gtol": 1e-7, "maxiter": 5000}).x
    centered = case.logits.numpy() - case.logits.numpy().mean(1, keepdims=True)
    return np.exp(log_softmax(centered / temperature * found[:classes] + found[classes:], axis=1))


@pytest.mark.parametrize("prior", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_result_minimizes_the_penalized_nll(make_case, prior, seed):
    case = make_case(seed)
    calibrated = VectorScaling(prior).fit(case.logits, case.data, case.split)
    posterior, parameters = calibrated.posterior(), calibrated.parameters
    np.testing.assert_allclose(posterior.node, reference(case, parameters["temperature"], prior), atol=1e-5)
    z = case.logits - case.logits.mean(1, keepdim=True)
    torch.testing.assert_close(posterior.node, (z * parameters["factor"] + parameters["shift"]).softmax(-1))


def test_wide_prior_gives_unpenalized_vector_scaling(make_case):
    case = make_case(3, num_nodes=200, signal_scale=0.5)  # the classes are not separable
    calibrated = VectorScaling(1e4).fit(case.logits, case.data, case.split)
    posterior, parameters = calibrated.posterior(), calibrated.parameters
    np.testing.assert_allclose(posterior.node, reference(case, parameters["temperature"], None), atol=1e-4)
    proportions = torch.bincount(case.data.y[case.split.val]) / int(case.split.val.sum())
    torch.testing.assert_close(posterior.node[case.split.val].mean(0), proportions.double(), atol=1e-4, rtol=0.0)


def test_narrow_prior_gives_temperature_scaling(case):
    narrow = VectorScaling(1e-4).fit(case.logits, case.data, case.split).posterior()
    one = TemperatureScaling().fit(case.logits, case.data, case.split).posterior()
    torch.testing.assert_close(narrow.node, one.node, atol=1e-5, rtol=0.0)


def test_shift_of_logits_does_not_matter(case):
    shift = torch.linspace(-50, 50, 60, dtype=torch.float64)[:, None]
    plain, shifted = (VectorScaling().fit(z, case.data, case.split) for z in (case.logits, case.logits + shift))
    torch.testing.assert_close(shifted.posterior().node, plain.posterior().node, atol=1e-6, rtol=0.0)


def test_nonpositive_prior_raises():
    with pytest.raises(ValueError, match="Expected prior to be a number above 0, but got -1"):
        VectorScaling(-1)
