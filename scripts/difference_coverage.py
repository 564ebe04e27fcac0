"""Measure how often the intervals of `ew.compare` contain the true difference, on synthetic graphs.

python scripts/difference_coverage.py

Prints a table for docs/how-sure.md: the percentage of 95% intervals that contain the true difference to the reference,
of 200 graphs drawn with new labels and features. It takes about ten minutes.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

import edgewise as ew

# Options of ew.synthetic. With homophily 1/3, the labels of neighbors are independent.
GRAPHS: Mapping[str, Mapping[str, object]] = {
    "independent labels": {"homophily": 1 / 3},
    "homophily 0.8": {"homophily": 0.8},
    "homophily 0.8, hubs": {"homophily": 0.8, "degree_law": "power_law"},
}
MODELS = {
    "same quality": "the same features with other noise: no score differs",
    "overconfident": "logits of the reference × 2",
    "neighbors": "logits of the reference + mean probabilities of the neighbors × 3",
}
SCORES = [(view, metric) for view in ("nodewise", "edgewise") for metric in ("accuracy", "nll", "brier", "ece")]
NUM_NODES, NUM_CLASSES = 600, 3
NUM_TRUTH_DRAWS = 400
DRAW_SEED = 1_000_000  # of the draws that measure the true differences

Score = tuple[str, str, str]  # model, view, metric


class Draw(NamedTuple):
    """A graph with labels, and the probabilities of all models."""

    graph: ew.SyntheticGraph
    models: dict[str, Float[Tensor, "nodes classes"]]


def draw(options: Mapping[str, object], seed: int) -> Draw:
    """Draw a graph, labels and features, and predict the labels with all models. The first one is the reference."""
    graph = ew.synthetic(NUM_NODES, NUM_CLASSES, feature_noise=0.8, seed=seed, **options)  # type: ignore[arg-type]
    means, noise = graph.feature_means, graph.feature_noise
    generator = torch.Generator().manual_seed(seed)

    def logits(x: Tensor) -> Tensor:
        # Log-likelihoods of features with twice the variance, half of which is the noise that is added here.
        noisy = x.double() + noise * torch.randn(x.shape, generator=generator, dtype=torch.float64)
        return noisy @ means.double().T / (2 * noise**2)

    reference, other = logits(graph.data.x), logits(graph.data.x)
    start, end = graph.data.edge_index
    degree = torch.zeros(NUM_NODES, dtype=torch.float64).index_add(0, end, torch.ones(len(end), dtype=torch.float64))
    received = torch.zeros_like(reference).index_add(0, end, reference.softmax(-1)[start])
    around = received / degree.clamp(min=1)[:, None]
    logits_of = {"reference": reference, "same quality": other, "overconfident": 2 * reference}
    logits_of["neighbors"] = reference + 3 * around
    return Draw(graph, {name: values.softmax(-1) for name, values in logits_of.items()})


def true_differences(options: Mapping[str, object], num_draws: int = NUM_TRUTH_DRAWS) -> dict[Score, float]:
    """Return differences of scores over many draws.

    The sums of all draws are added, so calibration errors have almost no bias. Scores of models of the same quality do
    not differ.
    """
    totals: dict[str, ew.Evaluation] = {}
    for seed in range(DRAW_SEED, DRAW_SEED + num_draws):
        graph, models = draw(options, seed)
        for name, probs in models.items():
            ev = ew.evaluate(probs, graph.data, same_label=False)
            totals[name] = ev if name not in totals else totals[name] + ev
    return {
        (name, view, metric): 0.0 if name == "same quality" else total[view][metric] - totals["reference"][view][metric]
        for name, total in totals.items()
        if name != "reference"
        for view, metric in SCORES
    }


def coverage(
    options: Mapping[str, object], truth: Mapping[Score, float], num_draws: int, n_resamples: int
) -> dict[Score, float]:
    """Return the fraction of intervals that contain the true difference, for each model and score."""
    covered: Counter[Score] = Counter(dict.fromkeys(truth, 0))
    for seed in range(num_draws):
        graph, models = draw(options, seed)
        result = ew.compare(models, graph.data, same_label=False, n_resamples=n_resamples)
        for model, view, metric in truth:
            one = result.differences[model][view][metric]
            covered[model, view, metric] += one.low <= truth[model, view, metric] <= one.high
    return {score: count / num_draws for score, count in covered.items()}


def table(num_draws: int = 200, n_resamples: int = 300) -> str:
    """Return the table in Markdown, in percent."""
    header = ["Graph", "Model", *(f"{view.removesuffix('wise')} {metric}" for view, metric in SCORES)]
    lines = [header, ["---"] * len(header)]
    for name, options in GRAPHS.items():
        found = coverage(options, true_differences(options), num_draws, n_resamples)
        lines += [[name, model, *(f"{100 * found[model, *score]:.0f}" for score in SCORES)] for model in MODELS]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    print(table())
