"""Paired comparison of models: differences of scores, with intervals from resampled nodes.

All models are scored with the same resampled weights of nodes (see `edgewise.metrics.intervals`), so what they share,
such as nodes that every model gets wrong, cancels in the difference. Accuracy, NLL and Brier score are means, and their
differences get the basic bootstrap interval [2d - q(1-α/2), 2d - q(α/2)], for the quantiles q of resampled differences.

The difference of two calibration errors needs another one. Noise raises each error ‖g‖, a norm of the gaps g of its
bins, by a bias that depends on the true gaps. It is largest for a calibrated model and almost 0 for one whose gaps are
far above the noise. So the measured difference is biased if the models are not equally calibrated, and resamples show
only a part of it, because their gaps scatter about measured gaps, which are never zero. With the noise e = g* - g of
the resamples, two estimates of the bias of each model bound it:

- lower: E‖g + e‖ - ‖g‖, where the true gaps are the measured ones,
- upper: E‖c + e‖ - ‖c‖, where c is g with all gaps below two standard deviations of their noise set to zero.

The interval is that of the centered resampled differences, extended by all differences of biases in these ranges, and
to the measured difference where the biases are so large that it would lie outside. It is cautious for two models that
are nearly the same, whose biases are nearly the same too. scripts/difference_coverage.py
measures how often the intervals contain the true difference.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

from edgewise.conversion import EdgesLike, GraphLike, NameLike
from edgewise.data.edges import EdgeChoice
from edgewise.metrics.collect import ViewElements, elements_by_view, prepare, same_label_elements
from edgewise.metrics.evaluate import check_scoring_options, evaluate
from edgewise.metrics.evaluation import Evaluation
from edgewise.metrics.intervals import Resampled, norm_of_gaps, resample_models
from edgewise.metrics.model_comparison import COMPARED_EVENT_METRICS, EVENT, Comparison, Difference
from edgewise.metrics.scores import METRICS, Norm
from edgewise.metrics.scoring_input import Binning, Closed, Kind, check_scoring_input
from edgewise.metrics.sums import VIEWS
from edgewise.posterior import Belief, as_posterior
from edgewise.suggestions import NamedResults, suggest_keywords
from edgewise.validation import ArrayLike, check_whole_number

CLEAR_GAP = 2.0  # standard deviations of the noise of a bin


@suggest_keywords
def compare(
    models: Mapping[str, Belief],
    y: ArrayLike | GraphLike,
    edge_index: EdgesLike | None = None,
    *,
    mask: ArrayLike | None = None,
    class_names: NameLike | None = None,
    normalize: bool = False,
    n_bins: int = 15,
    binning: Kind = "width",
    norm: Norm = "l1",
    closed: Closed = "right",
    edge_choice: EdgeChoice = "both",
    same_label: bool = True,
    n_resamples: int = 1000,
    confidence_level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare the scores of two or more models on the same nodes and edges.

    Every score of `evaluate` is compared with that of the first model, the reference, and the difference gets a
    confidence interval from resampled nodes. The intervals measure the uncertainty due to the test nodes. They do not
    include that of another training: for this, compare many runs.

    Parameters
    ----------
    models
        Predictions by name, such as ``{"gcn": fitted, "gat": probs}``. Each is what `evaluate` accepts: probabilities
        (N, C), a `Posterior`, or an object with ``posterior()``. The first one is the reference.
    y
        True labels (N,), or a graph with labels and edges, as in `evaluate`.
    edge_index
        Edges (2, E), as in `evaluate`. With labels only, nodes are compared.
    mask
        Mask (N,) of the scored nodes. By default all nodes are scored.
    class_names
        Class of each column of all predictions (C,). By default the columns of each pandas table.
    normalize
        Divide probabilities by the sum of their row, if it is 1 within 2%.
    n_bins
        Number of confidence bins.
    binning
        Bins of equal "width", or of equal "mass". Bins of equal mass are separate for each model and view.
    norm
        Norm of the calibration error: "l1", "l2" or "max".
    closed
        Side on which bins are closed, "right" or "left".
    edge_choice
        Score edges with "both" ends in the mask, with "any" end in the mask, or "all" edges.
    same_label
        Also compare the event "both ends have the same label".
    n_resamples
        Number of resamples of the nodes, at least 1. All models are scored with the same resamples.
    confidence_level
        Nominal coverage of each interval.
    seed
        Random seed of the resamples.

    Returns
    -------
    Comparison
        The differences. ``print`` shows them as a table with a verdict in words.

    Raises
    ------
    ValueError
        If an input is invalid, or if models differ in the number of nodes or classes.

    Examples
    --------
    >>> y, edges = torch.tensor([0, 0, 1, 1]), torch.tensor([[0, 1, 2], [1, 2, 3]])
    >>> sharp = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.2, 0.8]])
    >>> result = compare({"sharp": sharp, "flat": torch.full((4, 2), 0.5)}, y, edges)
    >>> round(result.differences["flat"]["edgewise"]["nll"].value, 4), result.reference
    (0.8902, 'sharp')
    """
    bins = Binning(n_bins, binning, closed)
    check_whole_number("n_resamples", n_resamples, 1, 2**31 - 1)
    check_scoring_options(norm, edge_choice, n_resamples, confidence_level, seed)
    beliefs = _check_models(models, normalize)
    evaluations, elements, masks = {}, [], []
    for name, belief in beliefs.items():
        with _name_model_in_errors(name):
            evaluations[name] = evaluate(
                belief,
                y,
                edge_index,
                mask=mask,
                class_names=class_names,
                normalize=normalize,
                n_bins=n_bins,
                binning=binning,
                norm=norm,
                closed=closed,
                edge_choice=edge_choice,
                same_label=same_label,
            )
            inputs = check_scoring_input(belief, y, edge_index, mask, None, class_names, normalize)
        task = prepare(inputs, edge_choice)
        views = elements_by_view(task)
        if same_label:
            views[EVENT] = ViewElements(same_label_elements(task), views["edgewise"].nodes)
        elements.append(views)
        masks.append(inputs.mask)
    boundaries = [_boundaries(ev) for ev in evaluations.values()]
    first, *others = resample_models(elements, boundaries, masks[0], bins, n_resamples, seed)
    differences = NamedResults(
        {
            name: NamedResults(
                {view: _intervals(first[view], other[view], norm, confidence_level, view == EVENT) for view in other}
            )
            for name, other in zip(list(beliefs)[1:], others, strict=True)
        }
    )
    return Comparison(evaluations, differences, n_resamples, confidence_level, seed)


def _boundaries(ev: Evaluation) -> dict[str, Tensor]:
    boundaries = {view: ev[view].reliability.boundaries for view in VIEWS}
    return boundaries if ev.same_label is None else {**boundaries, EVENT: ev.same_label.reliability.boundaries}


def _intervals(
    reference: Resampled, model: Resampled, norm: Norm, confidence_level: float, is_event: bool
) -> dict[str, Difference]:
    """Compute the difference of each metric of a view, and its interval."""
    tail = (1.0 - confidence_level) / 2
    levels = torch.tensor([tail, 1.0 - tail], dtype=torch.float64)
    scores, reference_scores = model.observed.scores(norm)[0], reference.observed.scores(norm)[0]
    value = scores - reference_scores
    resampled = model.resampled.scores(norm) - reference.resampled.scores(norm)
    # A resample without elements of a view has NaN scores, which are ignored.
    small, large = resampled.nanquantile(levels, dim=0)
    low, high = 2 * value - large, 2 * value - small
    ece = METRICS.index("ece")
    if bool((resampled[:, ece].nan_to_num() != 0).any()):
        mean = resampled[:, ece].nanmean()
        (least, most), (reference_least, reference_most) = bias_range(model, norm), bias_range(reference, norm)
        low[ece] = value[ece] - (large[ece] - mean) - (most - reference_least)
        high[ece] = value[ece] + (mean - small[ece]) - (least - reference_most)
        low[ece], high[ece] = torch.minimum(low[ece], value[ece]), torch.maximum(high[ece], value[ece])
    bounds = torch.where(value.isinf(), value, torch.stack((low, high)))
    bounds = torch.where(value.isnan(), value, bounds)
    return NamedResults(
        {
            metric: Difference(float(value[m]), *bounds[:, m].tolist())
            for m, metric in enumerate(METRICS)
            if not is_event or metric in COMPARED_EVENT_METRICS
        }
    )


def bias_range(view: Resampled, norm: Norm) -> tuple[float, float]:
    """Return a lower and an upper estimate of the upward bias of the calibration error."""
    gaps, noise = view.observed.gaps(norm)[0], view.noise(norm)
    noise = noise[~noise.isnan().any(1)]
    is_clear = gaps.abs() > CLEAR_GAP * noise.std(0, correction=0)

    def bias(true_gaps: Tensor) -> float:
        return float(norm_of_gaps(true_gaps + noise, norm).mean() - norm_of_gaps(true_gaps, norm))

    lower = bias(gaps)
    return lower, max(lower, bias(gaps * is_clear))


def _check_models(models: Mapping[str, Belief], normalize: bool) -> dict[str, Belief]:
    """Check names, number and shapes of the models, and call ``posterior()`` once where there is one."""
    example = 'such as {"gcn": probs, "gat": other_probs}'
    if not isinstance(models, Mapping):
        raise ValueError(f"Expected models by name, {example}, but got {type(models).__name__}. Pass a dict.")
    for name in models:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(
                f"Expected names of models as text, {example}, but got {name!r}. Pass text, "
                f"such as {f'model {name}'.strip()!r}."
            )
    if len(models) < 2:
        raise ValueError(
            f"Expected at least two models, {example}, but got {len(models)}. Add another one, or score a single model "
            "with ew.evaluate."
        )
    beliefs: dict[str, Belief] = {}
    shapes: dict[str, tuple[int, int]] = {}
    for name, belief in models.items():
        if isinstance(belief, Evaluation):
            raise ValueError(
                f"Expected the predictions of model {name!r}, but got an Evaluation, whose sums cannot be resampled. "
                "Pass what ew.evaluate got: probabilities, a posterior or a fitted model."
            )
        with _name_model_in_errors(name):
            if callable(posterior := getattr(belief, "posterior", None)):
                belief = cast(Belief, posterior())
            checked = as_posterior(belief, normalize=normalize)
        beliefs[name], shapes[name] = belief, (checked.num_nodes, checked.num_classes)
    reference = next(iter(shapes))
    for name, shape in shapes.items():
        if shape != shapes[reference]:
            way_out = "Predict all nodes of one graph with each model, and select the scored nodes with mask=."
            if shape[0] == shapes[reference][0]:
                way_out = "Give both one column per class in the same order, with probability 0 for a class it lacks."
            raise ValueError(
                f"Expected predictions of the same nodes and classes, but those of {reference!r} have shape (nodes, "
                f"classes) = {shapes[reference]} and those of {name!r} {shape}. {way_out}"
            )
    return beliefs


@contextmanager
def _name_model_in_errors(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"Model {name!r}: {error}") from error
