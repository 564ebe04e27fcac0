"""Sentences about an evaluation: predicted and observed, differences that chance explains, and what to do next."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from edgewise.metrics.evaluation import Evaluation
from edgewise.metrics.scores import Scores
from edgewise.metrics.sums import VIEWS
from edgewise.pages.diagrams import elements_name
from edgewise.plots.reliability_panels import SAME_LABEL
from edgewise.small_samples import MIN_SAMPLE

Z = 2.0  # standard errors
ABS_MEAN, ABS_VARIANCE = math.sqrt(2 / math.pi), 1 - 2 / math.pi  # of |x| for a standard normal x

Kind = Literal["empty", "few", "overconfident", "underconfident", "uneven", "calibrated"]


@dataclass(frozen=True)
class Finding:
    """Predictions of one view compared with observations, and the differences that chance alone would make.

    Attributes
    ----------
    predicted
        The mean confidence, or the mean probability of the event.
    observed
        The accuracy, or the frequency of the event.
    ece
        The expected calibration error, in the l1 norm.
    gap_by_chance
        Two standard errors of observed - predicted if the predictions are calibrated.
    ece_by_chance
        The mean plus two standard deviations of the measured ECE if the predictions are calibrated.
    """

    view: str
    count: int
    predicted: float
    observed: float
    ece: float
    gap_by_chance: float
    ece_by_chance: float

    @property
    def gap(self) -> float:
        """Predicted minus observed: above 0 if overconfident."""
        return self.predicted - self.observed

    @property
    def kind(self) -> Kind:
        """The verdict. "uneven" means right on average, but not in each bin."""
        if self.count < MIN_SAMPLE:
            return "few" if self.count else "empty"
        if abs(self.gap) > self.gap_by_chance:
            return "overconfident" if self.gap > 0 else "underconfident"
        return "uneven" if self.ece > self.ece_by_chance else "calibrated"

    @property
    def is_wrong(self) -> bool:
        """Whether the predictions differ from the observations by more than chance."""
        return self.kind in ("overconfident", "underconfident", "uneven")


def find(ev: Evaluation, view: str) -> Finding:
    """Compare the predictions of a view with the observations.

    If the predictions are calibrated, the number of correct elements of bin k is random with variance n_k c_k (1 - c_k)
    at most, where c_k is the mean confidence. Edges share nodes. On a regular graph, E edges between n nodes are worth
    n / 2 independent ones, so variances of edges are multiplied by 2 E / n.
    """
    scores: Scores | None = ev.same_label if view == SAME_LABEL else ev[view]
    if scores is None or not scores.count:
        return Finding(view, 0, *(math.nan,) * 5)
    bins, total = scores.reliability, scores.count
    filled = bins.filled
    count, confidence = bins.count[filled].double(), bins.confidence[filled].clamp(0, 1)
    variance = count * confidence * (1 - confidence) * total / independent_elements(ev, view)
    predicted, observed = float(bins.confidence_sum.sum()) / total, int(bins.correct_sum.sum()) / total
    ece_mean, ece_variance = ABS_MEAN * float(variance.sqrt().sum()), ABS_VARIANCE * float(variance.sum())
    return Finding(
        view,
        total,
        predicted,
        observed,
        bins.calibration_error("l1"),
        Z * math.sqrt(float(variance.sum())) / total,
        (ece_mean + Z * math.sqrt(ece_variance)) / total,
    )


def independent_elements(ev: Evaluation, view: str) -> float:
    """Return the number of independent elements that a view is worth: its nodes, or half of the nodes of its edges."""
    if view == VIEWS[0]:
        return ev.nodewise.count
    of_edges = ev.edgewise if view == SAME_LABEL else ev[view]
    num_nodes = ev.k_index["edgewise" if view == SAME_LABEL else view] * ev.nodewise.count
    return min(float(of_edges.count), max(1.0, num_nodes / 2))


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
    """Return the most important comparison in one sentence: of neighbors, else of edges, else of nodes."""
    same, edges, nodes = (find(ev, view) for view in (SAME_LABEL, "edgewise", "nodewise"))
    if same.count:
        said, true = _pair(same)
        return f"Of neighbors, your model says that {said} share a label; {true} do.{_too_few(same)}"
    if edges.count:
        said, true = _pair(edges)
        text = f"Your model says that it is right about both ends of {said} of the edges; it is right about {true}."
        return text + _too_few(edges)
    if nodes.count:
        said, true = _pair(nodes)
        text = f"Your model says that it is right about {said} of the nodes; it is right about {true}."
        return text + _too_few(nodes)
    return "Nothing was scored: the mask selects no node."


def _too_few(finding: Finding) -> str:
    elements = f"{finding.count:,} {elements_name(finding.view, finding.count)}"
    return f" But {elements} are too few to tell." if finding.kind == "few" else ""


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
            return f"Only {elements}: too few to tell ({numbers})."
        case "overconfident" | "underconfident" if event:
            direction = "too high" if finding.gap > 0 else "too low"
            return f"P(same label) is {direction} by {points(finding.gap)}: {numbers}."
        case "overconfident" | "underconfident":
            return f"{finding.kind.capitalize()} by {points(finding.gap)}: {numbers}."
        case "uneven":
            average = f"Right on average ({numbers}), but not at every confidence"
            return f"{average}: ECE {points(finding.ece)}, by chance up to {points(finding.ece_by_chance)}."
        case _:
            chance = f"chance explains {points(finding.gap_by_chance)}"
            return f"Calibrated, as far as {elements} can tell: {numbers}; {chance}."


@dataclass(frozen=True)
class Step:
    """Something to do next: what, why, and the Python code and the command for it."""

    title: str
    reason: str
    python: str = ""
    command: str = ""


DEFAULT_FILES = {"probs": "probs.npy", "labels": "labels.npy", "edges": "edges.npy", "mask": "test.npy"}
GRAPH_OPTIONS = ("labels", "edges", "ids", "classes")


def next_steps(ev: Evaluation, files: Mapping[str, str | None] = MappingProxyType({})) -> list[Step]:
    """Return what to do next, which depends on the findings.

    Commands name the files, by option of `edgewise evaluate`. Without files, they name `DEFAULT_FILES`.
    """
    given = {name: file for name, file in files.items() if file} or DEFAULT_FILES
    nodes, edges, same = (find(ev, view) for view in ("nodewise", "edgewise", SAME_LABEL))
    if nodes.kind == "empty":
        return [Step("Score some nodes", "The mask selects no node. Pass the mask of the test nodes, or none.")]
    steps = []
    if ev.nodewise.zero_probability:
        number = ev.nodewise.zero_probability
        reason = (
            f"The true label of {number:,} {elements_name('nodewise', number)} has probability 0, so the NLL is "
            "infinite. Compute probabilities with softmax and do not round them. A calibrator gives no label "
            "probability 0."
        )
        steps.append(Step("Remove zero probabilities", reason))
    if nodes.kind == "few":
        reason = f"{nodes.count:,} {elements_name('nodewise', nodes.count)} cannot show whether a model is calibrated."
        steps.append(Step(f"Score at least {MIN_SAMPLE} labeled nodes", reason))
    wrong = [finding for finding in (nodes, edges, same) if finding.is_wrong]
    if wrong:
        steps.append(_calibrate(nodes, edges, same, _options(given, "probs", "logits", *GRAPH_OPTIONS)))
        steps.append(_check_again(ev, _options(given, *GRAPH_OPTIONS, "mask")))
    elif nodes.kind == "calibrated":
        reason = "No difference is larger than chance. Calibration would fit noise."
        steps.append(Step("Keep the probabilities", reason))
    if nodes.kind == "few":
        return steps
    if edges.count:
        probs = "--probs calibrated.safetensors" if wrong else _options(given, "probs", "logits")
        steps.append(
            _decide("calibrated" if wrong else "probs", f"{probs} {_options(given, 'edges', 'ids', 'classes')}")
        )
    else:
        steps.append(_add_edges())
    return steps


def _calibrate(nodes: Finding, edges: Finding, same: Finding, inputs: str) -> Step:
    if not edges.count:
        reason = (
            "Temperature scaling corrects confidences with one parameter, learned from validation nodes, and keeps all "
            "predictions."
        )
        python = "calibrated = ew.TemperatureScaling().fit(ew.wrap(probs), data, split)"
        return Step("Calibrate the nodes", reason, python)
    pairs = [finding for finding in (edges, same) if finding.is_wrong]
    if nodes.is_wrong and pairs:
        reason = "Nodes and pairs are both off. The structured calibrator corrects the confidence of each node and"
    elif pairs:
        reason = "Nodes are calibrated, pairs are not. The structured calibrator"
    else:
        reason = "The structured calibrator corrects the confidence of each node and"
    reason += (
        " learns how much neighbors depend on each other. It keeps the predicted labels. With fewer than about "
        f"{MIN_SAMPLE} validation labels, use temperature scaling."
    )
    return Step(
        "Calibrate nodes and pairs",
        reason,
        "calibrated = ew.StructuredCalibrator().fit(ew.wrap(probs), data, split)",
        f"edgewise calibrate {inputs} --train train.npy --val val.npy --out calibrated.safetensors",
    )


def _check_again(ev: Evaluation, inputs: str) -> Step:
    view, name = ("edgewise", "edge") if ev.edgewise.count else ("nodewise", "node")
    score = ev[view].nll
    now = f"now {score:.3f}" if math.isfinite(score) else "now infinite"
    reason = (
        f"Score the same test nodes again. The {name} NLL, {now}, should fall. Judge by it first: a model that says "
        "the same about everything can have a low ECE."
    )
    return Step(
        "Check the improvement",
        reason,
        "ew.evaluate(calibrated, data, mask=split.test).report('after.html')",
        f"edgewise evaluate --probs calibrated.safetensors {inputs} --html after.html" if ev.edgewise.count else "",
    )


def _options(files: Mapping[str, str], *names: str) -> str:
    return " ".join(f"--{name} {shlex.quote(files[name])}" for name in names if name in files)


def _decide(name: str, inputs: str) -> Step:
    return Step(
        "Decide about pairs",
        "Compute P(same label) of the pairs that matter, and choose a threshold for a precision or a cost.",
        f"ew.predict_edges({name}, pairs, events=('same',))",
        f"edgewise predict {inputs} --events same --out pairs.csv",
    )


def _add_edges() -> Step:
    reason = "Without edges, nothing is known about pairs of neighbors, where most models are off. Pass the graph."
    return Step("Evaluate pairs too", reason, "ew.evaluate(probs, data, mask=split.test)")


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
