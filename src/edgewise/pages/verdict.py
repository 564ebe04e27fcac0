"""Sentences about an evaluation: predicted and observed, and differences that chance explains."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgewise.metrics.evaluation import Evaluation
from edgewise.metrics.scores import Scores
from edgewise.metrics.sums import VIEWS
from edgewise.plots.reliability_panels import SAME_LABEL, elements_name
from edgewise.small_samples import MIN_SAMPLE

Z = 2.0  # standard errors
ABS_MEAN, ABS_VARIANCE = math.sqrt(2 / math.pi), 1 - 2 / math.pi  # of |x| for a standard normal x

Kind = Literal["empty", "few", "overconfident", "underconfident", "uneven", "calibrated"]


@dataclass(frozen=True)
class Finding:
    """Predictions of one view compared with observations, and the differences that chance alone would make.

    Attributes
    ----------
    count
        The number of elements.
    independent
        The number of independent elements that vary as much. NaN if it is unknown.
    predicted
        The mean confidence, or the mean probability of the event.
    observed
        The accuracy, or the frequency of the event.
    ece
        The expected calibration error, in the l1 norm.
    gap_by_chance
        Two standard errors of observed - predicted if the predictions are calibrated. With exact draws in
        ``ev.chance``, the largest difference within their range.
    ece_by_chance
        The mean plus two standard deviations of the measured ECE if the predictions are calibrated. With exact draws in
        ``ev.chance``, the upper end of their range.
    is_exact
        Whether these limits come from exact draws, which hold for few elements too.
    """

    view: str
    count: int
    independent: float
    predicted: float
    observed: float
    ece: float
    gap_by_chance: float
    ece_by_chance: float
    is_exact: bool = False

    @property
    def gap(self) -> float:
        """Observed minus predicted: below 0 if overconfident."""
        return self.observed - self.predicted

    @property
    def kind(self) -> Kind:
        """The verdict. "uneven" means calibrated on average, but not in each bin."""
        if not self.count:
            return "empty"
        is_few = not self.independent >= MIN_SAMPLE  # also if it is NaN
        if is_few and not self.is_exact:
            return "few"
        if abs(self.gap) > self.gap_by_chance:
            return "overconfident" if self.gap < 0 else "underconfident"
        if self.ece > self.ece_by_chance:
            return "uneven"
        return "few" if is_few else "calibrated"

    @property
    def is_wrong(self) -> bool:
        """Whether the predictions differ from the observations by more than chance."""
        return self.kind in ("overconfident", "underconfident", "uneven")


def find(ev: Evaluation, view: str) -> Finding:
    """Compare the predictions of a view with the observations.

    If the predictions are calibrated, the number of correct elements of bin k is random with variance n_k c_k (1 - c_k)
    at most, where c_k is the mean confidence, if the elements are independent. Edges share nodes. If nodes are
    independent and the two ends of an edge explain the same part of its variance v, an end explains at most v / 2. This
    is the covariance of two edges that share the end, so the variance of the sum over all E edges is at most

        E v + Σ_i d_i (d_i - 1) v / 2 = E v f,   f = Σ_i d_i² / Σ_i d_i,

    where d_i is the degree of node i and Σ_i d_i = 2 E. If bin k has a part p_k of the edges at each node, the factor
    is 1 + (f - 1) p_k within it. Bins vary together, because they share nodes, so the variance of the ECE has the
    factor f. If ``ev.chance`` has p-values, the range of its draws is used instead.
    """
    scores: Scores | None = ev.same_label if view == SAME_LABEL else ev[view]
    if scores is None or not scores.count:
        return Finding(view, 0, 0.0, *(math.nan,) * 5)
    bins, total = scores.reliability, scores.count
    filled = bins.filled
    count, confidence = bins.count[filled].double(), bins.confidence[filled].clamp(0, 1)
    factor = 1.0 if view == VIEWS[0] else ev.edgewise.count / ev.independent_edges
    variance = count * confidence * (1 - confidence)
    in_bin, in_sum = variance * (1 + (factor - 1) * count / total), factor * float(variance.sum())
    predicted, observed = float(bins.confidence_sum.sum()) / total, int(bins.correct_sum.sum()) / total
    ece_mean, ece_variance = ABS_MEAN * float(in_bin.sqrt().sum()), ABS_VARIANCE * in_sum
    gap_by_chance = Z * math.sqrt(in_sum) / total
    ece_by_chance = (ece_mean + Z * math.sqrt(ece_variance)) / total
    is_exact = ev.chance is not None and ev.chance.has_p_values
    if ev.chance is not None and is_exact:
        drawn = ev.chance[view]
        fraction = drawn["frequency" if view == SAME_LABEL else "accuracy"]
        gap_by_chance = max(abs(fraction.low - predicted), abs(fraction.high - predicted))
        if ev.options["norm"] == "l1":
            ece_by_chance = drawn["ece"].high
    return Finding(
        view,
        total,
        total / factor,
        predicted,
        observed,
        bins.calibration_error("l1"),
        gap_by_chance,
        ece_by_chance,
        is_exact,
    )


def percent(fraction: float, decimals: int = 0) -> str:
    """Format a fraction; "under 1%" and "over 99%" instead of a rounded 0% or 100%."""
    if math.isnan(fraction):
        return "–"
    text = f"{100 * fraction:.{decimals}f}"
    least = 10.0**-decimals
    if fraction > 0 and float(text) == 0:
        return f"under {least:g}%"
    if fraction < 1 and float(text) == 100:
        return f"over {100 - least:g}%"
    return f"{text}%"


def points(difference: float) -> str:
    """Format a difference of fractions in percentage points.

    >>> points(-0.0523), points(0.01)
    ('5.2 points', '1.0 points')
    """
    return f"{100 * abs(difference):.1f} points"


def headline(ev: Evaluation) -> str:
    """Return the largest difference that chance does not explain, in one sentence.

    If there is none, it is the comparison of neighbors, else of edges, else of nodes. Neighbors come first if others
    differ as much.
    """
    scored = [finding for view in (SAME_LABEL, "edgewise", "nodewise") if (finding := find(ev, view)).count]
    if not scored:
        return "Nothing was scored: the mask selects no node."
    differing = [finding for finding in scored if finding.kind in ("overconfident", "underconfident")]
    finding = max(differing or scored[:1], key=lambda finding: round(abs(finding.gap), 3))
    said, true = _pair(finding)
    text = {
        SAME_LABEL: f"Your model says that {said} of neighbors share a label; {true} do.",
        "edgewise": f"Your model says that it is right about both ends of {said} of the edges; "
        f"it is right about {true}.",
        "nodewise": f"Your model says that it is right about {said} of the nodes; it is right about {true}.",
    }
    return text[finding.view] + _too_few(finding)


def _too_few(finding: Finding) -> str:
    return f" But {_few_elements(finding)} are too few to tell." if finding.kind == "few" else ""


def _few_elements(finding: Finding) -> str:
    """Name the elements, and how many independent ones they are worth if they would be enough otherwise."""
    elements = f"{finding.count:,} {elements_name(finding.view, finding.count)}"
    if finding.count < MIN_SAMPLE:
        return elements
    if math.isnan(finding.independent):
        return f"{elements}, which share an unknown number of nodes,"
    return f"{elements} that share nodes, worth about {finding.independent:.0f} independent ones,"


def _pair(finding: Finding) -> tuple[str, str]:
    """Format predicted and observed, with a decimal if they would look equal."""
    pair = percent(finding.predicted), percent(finding.observed)
    if pair[0] == pair[1]:
        return percent(finding.predicted, 1), percent(finding.observed, 1)
    return pair


def sentence(finding: Finding) -> str:
    """Return the verdict on a view in one or two sentences."""
    elements = f"{finding.count:,} {elements_name(finding.view, finding.count)}"
    said, true = percent(finding.predicted, 1), percent(finding.observed, 1)
    event = finding.view == SAME_LABEL
    numbers = f"predicted {said}, observed {true}" if event else f"confidence {said}, accuracy {true}"
    match finding.kind:
        case "empty":
            return f"No {elements_name(finding.view, 0)} were scored."
        case "few":
            return f"Only {_few_elements(finding).removesuffix(',')}: too few to tell ({numbers})."
        case "overconfident" | "underconfident" if event:
            direction = "too high" if finding.gap < 0 else "too low"
            return f"P(same label) is {direction} by {points(finding.gap)}: {numbers}."
        case "overconfident" | "underconfident":
            return f"{finding.kind.capitalize()} by {points(finding.gap)}: {numbers}."
        case "uneven":
            average = f"Calibrated on average ({numbers}), but not at every confidence"
            return f"{average}: ECE {points(finding.ece)}, by chance up to {points(finding.ece_by_chance)}."
        case _:
            chance = f"chance explains {points(finding.gap_by_chance)}"
            return f"Calibrated, as far as {elements} can tell: {numbers}; {chance}."


def explain_views(ev: Evaluation) -> Sequence[tuple[str, str]]:
    """Return each view with an explanation in one line."""
    explained = {
        "nodewise": "Right if the most likely label is the true one.",
        "edgewise": "Right if both ends are.",
        "agree": "The true labels of both ends are the same.",
        "disagree": "The true labels of the ends differ.",
    }
    if ev.same_label is not None:
        explained[SAME_LABEL] = "Both ends have the same label."
    return list(explained.items())
