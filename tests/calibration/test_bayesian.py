"""BayesianScaling against a reference with loops and autograd, and on data whose miscalibration is known."""

import math
from itertools import chain, combinations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from edgewise import BayesianScaling, TemperatureScaling
from edgewise.calibration.bayesian import LabeledNodes, keep_predicted_class, minimize_newton, weighted_nll

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose

# --- reference ---


def covariates(case):
    """Log spread and log(1 + degree) of each node, minus their means over all nodes."""
    neighbors = [set() for _ in case.logits]
    for i, j in case.data.edge_index.T.tolist():
        neighbors[i].add(j)
    spread = case.logits.std(1, correction=0).log()
    degree = torch.tensor([1.0 + len(others) for others in neighbors], dtype=torch.float64).log()
    return spread - spread.mean(), degree - degree.mean()


def probabilities(theta, centered, spread, degree, has_epsilon):
    """(1 - ε) softmax((1 + a) ∘ z̄ / exp(t + b spread + c degree) + s) + ε / C for θ = (t, b, c, e, a, s)."""
    num_classes = centered.shape[1]
    t, b, c, e = theta[:4]
    a, s = theta[4 : 4 + num_classes], theta[4 + num_classes :]
    epsilon = torch.sigmoid(e - 4) if has_epsilon else 0.0
    scaled = (1 + a) * centered / (t + b * spread + c * degree).exp()[:, None] + s
    return (1 - epsilon) * scaled.softmax(1) + epsilon / num_classes


def reference(case):
    """Return the averaged probabilities before the predicted class is kept, and the probability of each model."""
    logits, val, y = case.logits, case.split.val, case.data.y
    num_nodes, num_classes = logits.shape
    centered = logits - logits.mean(1, keepdim=True)
    spread, degree = covariates(case)
    omega = (degree[val] * 0.3).exp()
    omega = omega * omega.sum() / omega.square().sum()
    all_correct = bool((logits[val].argmax(1) == y[val]).all())
    deviations = torch.tensor([0.5, 0.5, 0.2, 1.5] + [0.25] * num_classes + [0.5] * num_classes, dtype=torch.float64)
    blocks = {"b": [1], "c": [2], "e": [3], "as": list(range(4, 4 + 2 * num_classes))}
    results = []
    for size in range(5):
        for chosen in combinations(blocks, size):
            free = sorted({0, *chain.from_iterable(blocks[name] for name in chosen)})
            precision = deviations[free] ** -2

            def full(values, free=free):
                return torch.zeros(len(deviations), dtype=torch.float64).index_put((torch.tensor(free),), values)

            def loss(values, chosen=chosen, full=full, precision=precision):
                p = probabilities(full(values), centered[val], spread[val], degree[val], "e" in chosen)
                nll = -(omega * p[torch.arange(len(p)), y[val]].log()).sum()
                if all_correct:  # half a pseudo-label, spread over all validation nodes and classes
                    nll = nll - 0.5 * p.log().mean()
                return nll + (precision * values.square()).sum() / 2

            def loss_and_gradient(values, loss=loss):
                values = torch.tensor(values, requires_grad=True)
                value = loss(values)
                return value.item(), torch.autograd.grad(value, values)[0].numpy()

            mode = minimize(loss_and_gradient, np.zeros(len(free)), jac=True, method="BFGS", options={"gtol": 1e-7}).x
            mode = torch.from_numpy(mode)
            curvature, directions = torch.linalg.eigh(torch.autograd.functional.hessian(loss, mode))
            curvature = curvature.clamp(min=precision.min() / 2)
            log_evidence = -loss(mode) - curvature.log().sum() / 2 - deviations[free].log().sum()
            p = torch.zeros(num_nodes, num_classes, dtype=torch.float64)
            for value, direction in zip(curvature, directions.T, strict=True):
                for sign in (-1, 1):
                    point = full(mode + sign * math.sqrt(len(free)) * value**-0.5 * direction)
                    p += probabilities(point, centered, spread, degree, "e" in chosen) / (2 * len(free))
            results.append((float(log_evidence), p))
    weight = torch.tensor([log_evidence for log_evidence, _ in results], dtype=torch.float64).softmax(0)
    weight = torch.where(weight < 0.003, 0.0, weight)
    weight = weight / weight.sum()
    return sum(w * p for w, (_, p) in zip(weight, results, strict=True)), weight


def pool(p, predicted):
    """The predicted class and, in descending order, every class above the mean of those before get the mean."""
    if all(p[predicted] >= (1 + 1e-6) * p[k] for k in range(len(p)) if k != predicted):
        return p
    chosen = [predicted]
    for k in sorted(set(range(len(p))) - {predicted}, key=lambda k: -p[k]):
        if p[k] <= np.mean(p[chosen]):
            break
        chosen.append(k)
    pooled = p.copy()
    pooled[chosen] = np.mean(p[chosen])
    pooled[predicted] *= 1 + 1e-6
    return pooled / pooled.sum()


# --- against the reference ---


@pytest.mark.parametrize(("seed", "num_classes", "all_correct"), [(0, 3, False), (1, 2, False), (2, 4, True)])
def test_average_equals_the_reference(make_case, seed, num_classes, all_correct):
    case = make_case(seed, num_classes=num_classes, num_nodes=100)
    if all_correct:
        case.logits[case.split.val, case.data.y[case.split.val]] = case.logits[case.split.val].amax(1) + 0.1
    found = BayesianScaling().fit(case.logits, case.data, case.split)
    p, weight = reference(case)
    expected = np.stack([pool(row, int(z.argmax())) for row, z in zip(p.numpy(), case.logits, strict=True)])
    np.testing.assert_allclose(found.posterior().node, expected, atol=1e-6)
    uses = [found.parameters[f"uses_{name}"] for name in ("spread", "degree", "uniform", "classes")]
    subsets = [chosen for size in range(5) for chosen in combinations(range(4), size)]
    expected_uses = [sum(float(weight[m]) for m, chosen in enumerate(subsets) if k in chosen) for k in range(4)]
    np.testing.assert_allclose(uses, expected_uses, atol=1e-5)


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), num_classes=st.integers(1, 5), scale=st.floats(0.1, 5.0))
def test_derivatives_equal_those_of_autograd(seed, num_classes, scale):
    g = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    centered, theta = scale * random(9, num_classes), 0.5 * random(2, 4 + 2 * num_classes)
    centered = centered - centered.mean(1, keepdim=True)
    x = torch.cat([torch.ones(9, 1, dtype=torch.float64), random(9, 2)], dim=1)
    labels, weights = torch.randint(num_classes, (9,), generator=g), torch.rand(9, generator=g, dtype=torch.float64)
    found = weighted_nll(theta, LabeledNodes(centered, x, labels, weights))
    for model in range(2):

        def loss(values):
            p = probabilities(values, centered, x[:, 1], x[:, 2], has_epsilon=True)
            return -(weights * p[torch.arange(9), labels].log()).sum()

        torch.testing.assert_close(found.loss[model], loss(theta[model]))
        torch.testing.assert_close(found.gradient[model], torch.autograd.functional.jacobian(loss, theta[model]))
        hessian = torch.autograd.functional.hessian(loss, theta[model])
        torch.testing.assert_close(found.hessian[model], hessian, rtol=1e-6, atol=1e-9)


def test_newton_reaches_minima_of_losses_that_are_not_convex():
    """x⁴ / 4 - x² / 2 + y² has its minima at x = ±1; the Hessian at the start is indefinite."""

    def derivatives(point):
        x, y = point.T
        hessian = torch.diag_embed(torch.stack([3 * x**2 - 1, torch.full_like(y, 2.0)], dim=1))
        gradient = torch.stack([x**3 - x, 2 * y], dim=1)
        return SimpleNamespace(loss=x**4 / 4 - x**2 / 2 + y**2, gradient=gradient, hessian=hessian)

    start = torch.tensor([[0.1, 3.0], [-0.2, -1.0], [5.0, 0.0]], dtype=torch.float64)
    found, at_minimum = minimize_newton(derivatives, start)
    torch.testing.assert_close(found[:, 0], torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(at_minimum.loss, torch.full((3,), -0.25, dtype=torch.float64))


# --- predicted classes ---


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), num_classes=st.integers(1, 6), tied=st.booleans())
def test_pooled_probabilities_keep_the_predicted_class(seed, num_classes, tied):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(num_classes, 0.5), size=20)
    if tied:
        p[::2] = 1 / num_classes
        p[::4, 0] *= 1 + 1e-9  # lost in float32
    predicted = rng.integers(num_classes, size=20)
    found = keep_predicted_class(torch.from_numpy(p), torch.from_numpy(predicted)).numpy()
    expected = np.stack([pool(row, k) for row, k in zip(p, predicted, strict=True)])
    np.testing.assert_allclose(found, expected, atol=1e-15)
    np.testing.assert_array_equal(found.argmax(1), predicted)
    np.testing.assert_array_equal(torch.from_numpy(found).log().float().log_softmax(1).argmax(1), predicted)
    np.testing.assert_allclose(found.sum(1), 1.0)


def test_predicted_classes_do_not_change(make_case):
    for seed in range(5):
        case = make_case(seed, num_classes=6, num_nodes=120, signal_scale=0.5)
        found = BayesianScaling().fit(case.logits, case.data, case.split).posterior()
        assert torch.equal(found.node.argmax(1), case.logits.argmax(1))


# --- known miscalibration ---


def drawn_case(distort, num_nodes=3000, hub=lambda nodes: nodes < 0):
    """Return logits, a graph and a split, where ``distort`` returns the true class probabilities from the logits."""
    rng = np.random.default_rng(0)
    nodes = torch.arange(num_nodes)
    logits = torch.from_numpy(rng.normal(scale=2.0, size=(num_nodes, 3)))
    is_hub = hub(nodes)
    p = distort(logits, is_hub).numpy()
    y = torch.tensor([rng.choice(3, p=row) for row in p])
    start = torch.cat([nodes, nodes[is_hub].repeat(30)])
    edge_index = torch.stack([start, torch.from_numpy(rng.integers(num_nodes, size=len(start)))])
    split = SimpleNamespace(train=nodes % 10 == 0, val=nodes % 10 == 1)
    return SimpleNamespace(logits=logits, data=SimpleNamespace(y=y, edge_index=edge_index), split=split), p


def is_hub(nodes):
    return nodes % 3 == 0


DISTORTIONS = {
    "nothing": (lambda z, hub: z.softmax(1), None),
    "temperature": (lambda z, hub: (z / 3).softmax(1), None),
    "spread": (lambda z, hub: (z / (0.5 * z.std(1, keepdim=True) ** 1.5)).softmax(1), "spread"),
    "degree": (lambda z, hub: (z / torch.where(hub, 4.0, 0.7)[:, None]).softmax(1), "degree"),
    "uniform": (lambda z, hub: 0.7 * (z * 2).softmax(1) + 0.1, "uniform"),
    "classes": (lambda z, hub: (z + torch.tensor([1.5, 0.0, -1.5])).softmax(1), "classes"),
}


@pytest.mark.parametrize(("distort", "needed"), DISTORTIONS.values(), ids=DISTORTIONS)
def test_the_needed_parameter_is_found(distort, needed):
    case, p = drawn_case(distort, hub=is_hub)
    found = BayesianScaling().fit(case.logits, case.data, case.split)
    assert needed is None or found.parameters[f"uses_{needed}"] > 0.95
    assert all(found.parameters[f"uses_{name}"] < 0.6 for name in {"degree", "uniform", "classes"} - {needed})
    # The expected NLL under the true probabilities is close to the entropy, and far below that of the logits.
    truth = torch.from_numpy(p)
    entropy, ours, raw = (
        float(-(truth * log_q).sum(1).mean())
        for log_q in (truth.log(), found.posterior().node.log(), case.logits.log_softmax(1))
    )
    # The predicted class stays, so a shift of classes is corrected only in part.
    share = 0.5 if needed == "classes" else 0.2
    assert ours - entropy < max(0.02, share * (raw - entropy))  # 10 parameters and 300 labels cost about 10 / 600
    if needed is None:
        assert found.parameters["temperature"] == pytest.approx(3.0 if raw - entropy > 0.1 else 1.0, rel=0.25)


def test_few_labels_give_probabilities_near_those_of_the_logits(make_case):
    """With one label the priors are left, whose mean of p is close to softmax, and each parameter is about even."""
    case = make_case(0, num_nodes=200)
    first = case.split.val.nonzero()[0]
    case.split.val = torch.zeros(200, dtype=torch.bool).index_fill(0, first, True)
    found = BayesianScaling().fit(case.logits, case.data, case.split)
    assert found.parameters["temperature"] == pytest.approx(1.0, abs=0.3)
    assert all(0.2 < found.parameters[f"uses_{name}"] < 0.8 for name in ("spread", "degree", "uniform", "classes"))
    assert float((found.posterior().node - case.logits.softmax(1)).abs().max()) < 0.2


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_logits_of_another_scale_are_calibrated_after_temperature_scaling(scale):
    """The prior expects temperatures near 1, and 25 labels do not outweigh it."""
    case, p = drawn_case(lambda z, hub: z.softmax(1), num_nodes=500)
    case.split.val &= torch.arange(500) % 20 == 1
    logits, truth = scale * case.logits, torch.from_numpy(p)
    temperature = TemperatureScaling().fit(logits, case.data, case.split)
    directly, after, one = (
        float(-(truth * fitted.posterior().node.log()).sum(1).mean())
        for fitted in (
            BayesianScaling().fit(logits, case.data, case.split),
            BayesianScaling().fit(temperature, case.data, case.split),
            temperature,
        )
    )
    assert after < one + 0.03 and directly > one + 0.1
