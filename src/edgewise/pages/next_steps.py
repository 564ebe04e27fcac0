"""What to do after an evaluation: steps with Python code and commands that run as they are shown."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from edgewise.metrics.evaluation import Evaluation, Scored
from edgewise.pages.verdict import Finding, find
from edgewise.plots.reliability_panels import SAME_LABEL, elements_name
from edgewise.small_samples import MIN_SAMPLE

PREPARATION = """\
import edgewise as ew, torch
from torch_geometric.data import Data

data = Data(y=torch.as_tensor(labels), edge_index=torch.as_tensor(edges), x=None)
split = ew.Split(train=train, val=val, test=test)
pairs = data.edge_index[:, data.edge_index[0] != data.edge_index[1]]"""
"""The variables of the Python code, made from arrays."""

# Options of ew.evaluate with their defaults, and the options of the command.
SCORING_OPTIONS: Mapping[str, tuple[object, str]] = {
    "n_bins": (15, "--bins"),
    "binning": ("width", "--binning"),
    "closed": ("right", "--closed"),
    "norm": ("l1", "--norm"),
    "edge_choice": ("both", "--edge-choice"),
    "same_label": (True, "--no-same-label"),
    "n_resamples": (0, "--resamples"),
    "chance": (0, "--chance"),
    "confidence_level": (0.95, "--confidence-level"),
    "seed": (0, "--seed"),
}


@dataclass(frozen=True)
class Step:
    """Something to do next: what, why, and the Python code and the command for it."""

    title: str
    reason: str
    python: str = ""
    command: str = ""


@dataclass(frozen=True)
class Inputs:
    """Input of the evaluation, which commands name.

    Attributes
    ----------
    files
        Names of files, by option of `edgewise evaluate` without its hyphens.
    scored
        What was scored, as in `EvaluationSettings`.
    normalize, selective
        Whether these options were given.
    columns
        The columns of tables that were told, such as ``("src=from", "dst=to")``.
    """

    files: Mapping[str, str | None]
    scored: Scored = "probs"
    normalize: bool = False
    selective: bool = False
    columns: tuple[str, ...] = ()

    def options(self, *names: str) -> str:
        """Return the options with their files, of those that were given."""
        given = ((name, self.files.get(name)) for name in names)
        return " ".join(f"--{name} {shlex.quote(file)}" for name, file in given if file)

    @property
    def predictions(self) -> str:
        """The options of the predictions."""
        return self.options("probs", "logits") + (" --normalize" if self.normalize else "")

    @property
    def graph(self) -> str:
        """The options of labels and edges."""
        return self.options("labels", "edges", "ids", "classes")

    @property
    def out(self) -> str:
        """The name of a file for calibrated predictions, which is no input."""
        used = {file.partition(":")[0] for file in self.files.values() if file}
        names = ("calibrated", *(f"calibrated{k}" for k in range(2, len(used) + 3)))
        return next(f"{name}.safetensors" for name in names if f"{name}.safetensors" not in used)


DEFAULT_FILES = {"probs": "probs.npy", "labels": "labels.npy", "edges": "edges.npy", "mask": "test.npy"}


def next_steps(ev: Evaluation, inputs: Inputs | None = None) -> list[Step]:
    """Return what to do next, which depends on the findings. Without inputs, commands name `DEFAULT_FILES`."""
    if inputs is None:
        given = {**DEFAULT_FILES, "edges": DEFAULT_FILES["edges"] if ev.edgewise.count else None}
        given |= {"predictions": "predictions.npy"} if ev.settings.predictions else {}
        inputs = Inputs(given, ev.settings.scored, ev.settings.normalize)
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
    wrong = any(finding.is_wrong for finding in (nodes, edges, same))
    source, options = _source(inputs), inputs.predictions
    if inputs.scored == "tables":
        return [*steps, *_steps_with_tables(ev, wrong, inputs)]
    if wrong and inputs.scored == "calibrated":
        steps.append(_stop_or_try_another())
    elif wrong:
        steps.append(_calibrate(nodes, edges, same, inputs, source))
        steps.append(_check_again(ev, inputs))
        source, options = "calibrated", f"--probs {inputs.out}"
    elif nodes.kind == "calibrated":
        reason = "No difference is larger than chance. Calibration would fit noise."
        if edges.kind == "few":
            intervals = "" if ev.intervals else ": compute intervals (n_resamples=200, or --resamples 200)"
            reason = (
                "The nodes show no difference larger than chance. For pairs, there are too few independent edges to "
                f"tell{intervals}."
            )
        steps.append(Step("Keep the probabilities", reason))
    if nodes.kind == "few":
        return steps
    return [*steps, _decide(source, options, inputs) if edges.count else _add_edges(ev, source, options, inputs)]


def _source(inputs: Inputs) -> str:
    """Return the predictions in Python code, as a calibrator takes them."""
    if inputs.files.get("logits"):
        return "ew.wrap(torch.as_tensor(logits).softmax(-1))"
    if inputs.scored != "probs":
        return inputs.scored
    return "ew.wrap(probs, normalize=True)" if inputs.normalize else "ew.wrap(probs)"


def _calibrate(nodes: Finding, edges: Finding, same: Finding, inputs: Inputs, source: str) -> Step:
    if not edges.count:
        reason = (
            "Temperature scaling corrects confidences with one parameter, learned from validation nodes, and keeps all "
            "predictions."
        )
        return Step(
            "Calibrate the nodes",
            reason,
            f"calibrated = ew.TemperatureScaling().fit({source}, data, split)",
            f"edgewise calibrate {inputs.predictions} {inputs.graph} --val val.npy --calibrator temperature "
            f"--out {inputs.out}",
        )
    pairs = [finding for finding in (edges, same) if finding.is_wrong]
    if nodes.is_wrong and pairs:
        reason = "Nodes and pairs are both off. The structured calibrator corrects the confidence of each node and"
    elif pairs:
        reason = "Nodes are calibrated, pairs are not. The structured calibrator"
    else:
        reason = "The structured calibrator corrects the confidence of each node and"
    reason += (
        " learns how much neighbors depend on each other. It keeps the predicted labels. Features are optional: "
        f"data.x, or --features x.npy. With fewer than about {MIN_SAMPLE} validation labels, use "
        "ew.TemperatureScaling(), or --calibrator temperature."
    )
    return Step(
        "Calibrate nodes and pairs",
        reason,
        f"calibrated = ew.StructuredCalibrator().fit({source}, data, split)",
        f"edgewise calibrate {inputs.predictions} {inputs.graph} --train train.npy --val val.npy --out {inputs.out}",
    )


def _steps_with_tables(ev: Evaluation, wrong: bool, inputs: Inputs) -> list[Step]:
    """Return steps for predictions that do not fit into memory: no calibrator reads tables."""
    columns = f" --columns {shlex.join(inputs.columns)}" if inputs.columns else ""
    files = f"{inputs.options('labels', 'edges', 'mask', 'classes')}{columns}{_scoring_options(ev)[1]}"
    predictions = " ".join(filter(None, (inputs.predictions, inputs.options("classes"))))
    steps = []
    if wrong:
        reason = (
            "Calibrators need arrays. Take the logits and labels of the validation nodes, as many as fit into memory, "
            "and fit a temperature to them, which needs no edges. Divide all logits by it where predictions are made."
        )
        python = (
            "import edgewise as ew, torch\n"
            "from torch_geometric.data import Data\n\n"
            "data = Data(y=torch.as_tensor(labels), edge_index=torch.empty(2, 0, dtype=torch.long))\n"
            "no_node = torch.zeros(len(labels), dtype=torch.bool)\n"
            "split = ew.Split(train=no_node, val=~no_node, test=no_node)\n"
            "print(ew.TemperatureScaling().fit(logits, data, split).parameters)"
        )
        steps.append(Step("Calibrate with a sample of validation nodes", reason, python))
        now = ev["edgewise" if ev.edgewise.count else "nodewise"].nll
        steps.append(
            Step(
                "Check the improvement",
                f"Score the new predictions. The {'edge' if ev.edgewise.count else 'node'} NLL, now {now:.3f}, should "
                "fall.",
                command=f"edgewise evaluate --probs calibrated/ {files} --html after.html",
            )
        )
    if ev.edgewise.count:
        steps.append(
            Step(
                "Predict pairs",
                "Write the probability of each event for any number of pairs, as Parquet parts.",
                command=f"edgewise predict {predictions}{columns} --pairs pairs.parquet --events same --out pairs",
            )
        )
    return steps


def _stop_or_try_another() -> Step:
    reason = (
        "These predictions are calibrated already, and calibrating them again on the same labels would not help. "
        "Calibrate the original predictions with more validation labels or with another calibrator "
        "(--calibrator in edgewise calibrate), and compare the edge NLL, or stop here."
    )
    return Step("Use more labels, another calibrator, or stop", reason)


def _check_again(ev: Evaluation, inputs: Inputs) -> Step:
    view, name = ("edgewise", "edge") if ev.edgewise.count else ("nodewise", "node")
    score = ev[view].nll
    now = f"now {score:.3f}" if math.isfinite(score) else "now infinite"
    reason = (
        f"Score the same test nodes again. The {name} NLL, {now}, should fall. Judge by it first: a model that says "
        "the same about everything can have a low ECE."
    )
    keywords, options = _scoring_options(ev)
    selective = " --selective" if inputs.selective else ""
    files = " ".join(filter(None, (inputs.graph, inputs.options("mask", "predictions"))))
    return Step(
        "Check the improvement",
        reason,
        f"ew.evaluate(calibrated, data, mask=split.test{keywords}).report('after.html')",
        f"edgewise evaluate --probs {inputs.out} {files}{options}{selective} --html after.html",
    )


def _scoring_options(ev: Evaluation) -> tuple[str, str]:
    """Return the options that differ from their defaults, as keywords of ew.evaluate and as options of the command."""
    settings, keywords, options = ev.settings, "", ""
    if settings.predictions:
        keywords = ", predictions=predictions"  # the command names their file
    used = {**ev.options, "same_label": ev.same_label is not None}
    if settings.n_resamples or settings.chance:
        used |= {name: getattr(settings, name) for name in ("n_resamples", "chance", "confidence_level", "seed")}
    for name, value in used.items():
        default, option = SCORING_OPTIONS[name]
        if value != default:
            keywords += f", {name}={value!r}"
            options += f" {option}" if value is False else f" {option} {value}"
    return keywords, options


def _decide(source: str, predictions: str, inputs: Inputs) -> Step:
    test = f" --test {shlex.quote(mask)}" if (mask := inputs.files.get("mask")) else ""
    return Step(
        "Decide about pairs",
        "Compute P(same label) of the pairs that matter, and choose a threshold on validation pairs, for a precision "
        "or a --cost.",
        f"table = ew.predict_edges({source}, pairs, events=('same',))\n"
        "ew.threshold_for_precision(*table.outcomes('same', data.y, split.val), 0.9)",
        f"edgewise predict {predictions} {inputs.graph} --val val.npy{test} --select same --precision 0.9 "
        "--out pairs.csv",
    )


def _add_edges(ev: Evaluation, source: str, predictions: str, inputs: Inputs) -> Step:
    keyword = ", predictions=predictions" if ev.settings.predictions else ""
    files = " ".join(filter(None, (inputs.graph, inputs.options("mask", "predictions"))))
    return Step(
        "Evaluate pairs too",
        "Without edges, nothing is known about pairs of neighbors, where most models are off. Pass the graph.",
        f"ew.evaluate({source}, data, mask=split.test{keyword}).report('pairs.html')",
        f"edgewise evaluate {predictions} {files} --edges edges.npy --html pairs.html",
    )
