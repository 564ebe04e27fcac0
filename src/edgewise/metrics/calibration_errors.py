"""Calibration errors besides the binned one of a view: the smooth ECE, and the ECE of each class."""

from functools import lru_cache
from typing import get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.metrics.elements import CHUNK_ELEMENTS, Elements
from edgewise.metrics.forecasts import Keys, split_groups, unpack
from edgewise.metrics.scores import Norm, calibration_error
from edgewise.metrics.scoring_input import Binning, Closed, Kind, check_scoring_input
from edgewise.metrics.sums import bin_boundaries, bin_index, carry_tables, from_fixed_point, sum_elements, sum_groups
from edgewise.posterior import Belief
from edgewise.suggestions import suggest_keywords
from edgewise.validation import ArrayLike, as_tensor, check_number, check_option

MIN_BANDWIDTH = 1e-5  # needs a grid of a million points
MIN_CHOSEN_BANDWIDTH = 1e-3
NUM_HALVINGS = 10  # of the search for a bandwidth
DENSITY_FLOOR = 1e-4  # elements per unit of the forecast, as in the implementation of the authors
PROBABILITY_TOLERANCE = 1e-4  # for rounding

Spread = tuple[Float[np.ndarray, " grid"], Float[np.ndarray, " grid"]]


@suggest_keywords
def smooth_ece(confidence: ArrayLike, correct: ArrayLike, bandwidth: float | None = None) -> float:
    """Return the smooth expected calibration error, which needs no bins (Błasiok and Nakkiran 2023).

    The gaps between confidence and correctness are smoothed by a Gaussian kernel that is reflected at 0 and 1. The
    error is the integral of the absolute value of the result, ∫ |Σ_i (confidence_i - correct_i) K(t, confidence_i)| dt
    / n. By default the bandwidth σ is the one that equals its own error, σ = error(σ), to within 1/1024, but at least
    1/512. It takes O(n + m log m) for n elements and a grid of m points, as fine as that of the authors' package
    ``relplot``: m = max(1001, 10 / σ).

    Parameters
    ----------
    confidence
        Probabilities of n events, such as confidences of nodes.
    correct
        Whether each event occurred, as Booleans or numbers 0 and 1.
    bandwidth
        Standard deviation of the kernel, from 0.00001 to 1. By default it is chosen as above.

    Returns
    -------
    float
        The error, NaN without elements.

    Examples
    --------
    >>> round(smooth_ece([0.9, 0.8, 0.7, 0.6], [True, True, False, False], bandwidth=0.1), 3)
    0.289
    """
    p, occurred = _check_events(confidence, correct)
    if bandwidth is not None:
        check_number("bandwidth", bandwidth, least=MIN_BANDWIDTH, most=1)
    return _smooth_error(p, occurred, bandwidth)


def smooth_errors(keys: dict[str, Keys]) -> dict[str, float]:
    """Return the smooth ECE of each view. Edges are split by their group."""
    views = dict(keys)
    if "edgewise" in views:
        views["disagree"], views["agree"] = split_groups(views["edgewise"])
    return {view: _smooth_error(*unpack(of_view), None) for view, of_view in views.items()}


def _smooth_error(
    p: Float[np.ndarray, " elements"], occurred: Bool[np.ndarray, " elements"], bandwidth: float | None
) -> float:
    if len(p) == 0:
        return float("nan")
    spread = lru_cache(maxsize=1)(lambda cells: _spread_to_grid(p, occurred, cells))

    def error(sigma: float) -> float:
        return _error_on_grid(*spread(max(2000, round(20 / sigma)) // 2), sigma)

    if bandwidth is not None:
        return error(bandwidth)
    low, high = 0.0, 1.0
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        if middle < MIN_CHOSEN_BANDWIDTH or middle < error(middle):
            low = middle
        else:
            high = middle
    return error(high)


def _spread_to_grid(p: Float[np.ndarray, " elements"], occurred: Bool[np.ndarray, " elements"], cells: int) -> Spread:
    """Return Σ (p - occurred) and the count at each point of a grid. An element is split between its two neighbors."""
    gap, count = np.zeros(cells + 1), np.zeros(cells + 1)
    for lo in range(0, len(p), CHUNK_ELEMENTS):
        part = p[lo : lo + CHUNK_ELEMENTS]
        left = np.minimum((part * cells).astype(np.int64), cells - 1)
        right_share, gaps = part * cells - left, part - occurred[lo : lo + CHUNK_ELEMENTS]
        for position, share in ((left, 1 - right_share), (left + 1, right_share)):
            count += np.bincount(position, weights=share, minlength=cells + 1)
            gap += np.bincount(position, weights=share * gaps, minlength=cells + 1)
    return gap, count


def _error_on_grid(gap: Float[np.ndarray, " grid"], count: Float[np.ndarray, " grid"], sigma: float) -> float:
    """Return ∫ |smoothed gap| / ∫ smoothed count, as sums over max(200, 10 / σ) points from 0 to 1."""
    points = np.linspace(0, 1, max(200, round(10 / sigma)))
    gap_at, count_at = (np.interp(points, np.linspace(0, 1, len(gap)), _smooth(x, sigma)) for x in (gap, count))
    return float(np.abs(gap_at).sum() / (count_at + DENSITY_FLOOR).sum())


def _smooth(values: Float[np.ndarray, " grid"], sigma: float) -> Float[np.ndarray, " grid"]:
    """Convolve with a Gaussian kernel, cut off at a distance of 1/2, after reflection at both ends."""
    from scipy.signal import fftconvolve

    num = len(values)
    distance = np.linspace(0, 1, num) - 0.5
    kernel = np.exp(-0.5 * np.square(distance / sigma)) / (np.sqrt(2 * np.pi) * sigma)
    reflected = np.pad(values, num - 1, mode="reflect")
    return np.asarray(fftconvolve(reflected, kernel, mode="valid")[num // 2 : num // 2 + num])


def _check_events(
    confidence: ArrayLike, correct: ArrayLike
) -> tuple[Float[np.ndarray, " elements"], Bool[np.ndarray, " elements"]]:
    p, occurred = as_tensor(confidence, "confidence").double(), as_tensor(correct, "correct")
    if p.ndim != 1 or p.shape != occurred.shape:
        raise ValueError(
            "Expected confidence and correct with one number per element, but got shapes "
            f"{tuple(p.shape)} and {tuple(occurred.shape)}."
        )
    valid = (p >= -PROBABILITY_TOLERANCE) & (p <= 1 + PROBABILITY_TOLERANCE)  # false for NaN
    if not bool(valid.all()):
        i = int((~valid).nonzero()[0])
        raise ValueError(
            f"Expected confidence to hold probabilities from 0 to 1, but element {i} is {float(p[i]):.6g}. Convert "
            "logits with a softmax, and divide percentages by 100."
        )
    if not bool(((occurred == 0) | (occurred == 1)).all()):
        raise ValueError(
            "Expected correct to hold Booleans or numbers 0 and 1, but got other values. Pass predictions == y."
        )
    return p.clamp(0.0, 1.0).cpu().numpy(), (occurred == 1).cpu().numpy()


# ---- Classes ---------------------------------------------------------------------------------------------------------


@suggest_keywords
def classwise_ece(
    probs: Belief,
    y: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Kind = "width",
    norm: Norm = "l1",
    closed: Closed = "right",
) -> float:
    """Return the classwise expected calibration error of nodes (Kull et al. 2019).

    It is the mean over the C classes of the calibration error of the event "the node has label c" with the forecast
    p(c), on all scored nodes. ``ew.evaluate(…, classwise=True)`` also returns the error of each class, in
    ``ev.nodewise.class_ece``.

    Parameters
    ----------
    probs
        Probabilities (N, C), as in `evaluate`.
    y
        True labels (N,).
    mask
        Mask (N,) of the scored nodes. By default all nodes are scored.
    n_bins
        Number of bins of the probabilities of a class.
    binning
        Bins of equal "width", or of equal "mass", separate for each class.
    norm
        Norm of the calibration error: "l1", "l2" or "max".
    closed
        Side on which bins are closed, "right" or "left".

    Returns
    -------
    float
        The error, NaN without nodes.

    Examples
    --------
    >>> classwise_ece([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 0, 1], n_bins=1)
    0.0
    """
    bins = Binning(n_bins, binning, closed)
    check_option("norm", norm, get_args(Norm))
    inputs = check_scoring_input(probs, y, None, mask)
    return float(class_errors(inputs.probs, inputs.y, inputs.mask, bins, norm).mean())


def class_errors(
    probs: Float[Tensor, "nodes classes"],
    y: Int[Tensor, " nodes"],
    mask: Bool[Tensor, " nodes"],
    binning: Binning,
    norm: Norm,
) -> Float[Tensor, " classes"]:
    """Return the calibration error of the event "label c" of each class c, from exact sums."""
    nodes, num_classes, n_bins = mask.nonzero().squeeze(1), probs.shape[1], binning.n_bins
    if binning.kind == "mass":
        of_class = [_class_elements(probs[nodes, c], y[nodes] == c) for c in range(num_classes)]
        tables = torch.stack([sum_elements(elements, binning).table for elements in of_class])
    else:
        tables = torch.zeros(num_classes, n_bins + 2, 4, dtype=torch.long, device=probs.device)
        classes = torch.arange(num_classes, device=probs.device)
        for part in nodes.split(max(1, CHUNK_ELEMENTS // (4 * num_classes))):
            elements = _class_elements(probs[part].flatten(), (y[part, None] == classes).flatten())
            bins = bin_index(elements.confidence, binning, bin_boundaries(binning))
            tables += sum_groups(elements, bins, classes.repeat(len(part)), num_classes, n_bins)
    tables = carry_tables(tables, n_bins).cpu()
    in_bin = tables[:, :n_bins]
    return calibration_error(in_bin[..., 0], from_fixed_point(in_bin[..., 2:]), in_bin[..., 1], norm)


def _class_elements(p: Float[Tensor, " elements"], occurred: Bool[Tensor, " elements"]) -> Elements:
    zeros = torch.zeros(len(p), dtype=torch.float64, device=p.device)
    return Elements(p.double(), occurred, zeros, zeros)
