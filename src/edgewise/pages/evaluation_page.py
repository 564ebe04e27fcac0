"""The HTML page of one evaluation: the verdict in words, all views, reliability diagrams, and what to do next."""

import math
from pathlib import Path

import numpy
import torch

from edgewise.files.output import check_page_suffix
from edgewise.metrics.evaluation import Evaluation, Interval
from edgewise.metrics.groups import GROUP_VIEWS, Groups, GroupScores, GroupView
from edgewise.metrics.score_parts import PARTS
from edgewise.metrics.scores import METRICS, Scores
from edgewise.metrics.sums import VIEWS
from edgewise.pages.diagrams import (
    GroupError,
    axis_names,
    group_chart,
    predicted_and_observed,
    reliability_diagram,
    view_name,
)
from edgewise.pages.html_page import page_part, render_page, write_page
from edgewise.pages.next_steps import PREPARATION, Inputs, next_steps
from edgewise.pages.verdict import Finding, explain_views, find, headline, percent, sentence
from edgewise.plots.reliability_panels import MIN_BIN_COUNT, SAME_LABEL, Panel, elements_name, prepare_reliability
from edgewise.version import __version__

TITLE = "Are the probabilities right?"
MAX_GROUPS = 10  # of a chart; the table has all


def write_evaluation_page(ev: Evaluation, path: Path, title: str | None = None, inputs: Inputs | None = None) -> None:
    """Write the page atomically to a file that ends in .html or .htm."""
    check_page_suffix(path)
    write_page(path, evaluation_page(ev, title, inputs))


def evaluation_page(ev: Evaluation, title: str | None = None, inputs: Inputs | None = None) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    ev
        The evaluation.
    title
        The title of the page, such as the name of the model.
    inputs
        The input files, for the commands of the page.
    """
    views = shown_views(ev)
    findings = {view: find(ev, view) for view in views}
    panels = prepare_reliability(ev, views)
    steps = next_steps(ev, inputs)
    judged = [view for view in ("nodewise", "edgewise", SAME_LABEL) if view in findings]
    return render_page(
        page_part("evaluation.html.j2"),
        title=title or TITLE,
        style=page_part("evaluation.css"),
        script=page_part("evaluation.js"),
        filters={"wrap_command": wrap_command},
        headline=headline(ev),
        verdicts=[(view_name(view), sentence(findings[view]), findings[view]) for view in judged],
        comparisons=[_comparison(findings[view]) for view in judged if findings[view].count],
        rows=[
            _row(ev, view, explanation, findings[view])
            for view, explanation in explain_views(ev)
            if view == VIEWS[0] or ev.edgewise.count
        ],
        chance_rows=chance_rows(ev),
        parts=[row for view in views for row in parts_rows(ev, view)],
        no_log_parts=[
            (view_name(view), reason)
            for view in views
            if scores_of(ev, view).count and (reason := scores_of(ev, view).log_decomposition_reason)
        ],
        smooth=[(view_name(view), number(error, 4)) for view in views if (error := _smooth_ece(ev, view)) is not None],
        class_errors=[f"{label} {number(e, 4)}" for label, e in ev.nodewise.details.class_errors().items()],
        classwise=number(ev.nodewise.classwise_ece or 0.0, 4),
        diagrams=[_diagram(panel) for panel in panels if not panel.is_empty],
        has_fit=any(panel.curve is not None for panel in panels),
        has_band=any(panel.curve is not None and panel.curve.low is not None for panel in panels),
        bins=[row for panel in panels for row in _bin_rows(panel)],
        groups=group_sections(ev),
        steps=steps,
        preparation=PREPARATION if any(step.python for step in steps) and ev.settings.scored != "tables" else "",
        names_model=any("(model," in step.python for step in steps),
        has_edges=bool(ev.edgewise.count),
        homophily=percent(ev.homophily, 1),
        min_bin_count=MIN_BIN_COUNT,
        options=", ".join(f"{name} {value}" for name, value in ev.options.items()),
        settings=ev.settings,
        chance=ev.chance,
        norm=ev.options["norm"],
        versions=f"edgewise {__version__}, torch {torch.__version__}, NumPy {numpy.__version__}",
        version=__version__,
    )


def shown_views(ev: Evaluation) -> tuple[str, ...]:
    """Return the four views, and "same_label" if it was scored."""
    return VIEWS if ev.same_label is None else (*VIEWS, SAME_LABEL)


def scores_of(ev: Evaluation, view: str) -> Scores:
    """Return the scores of a view or of the event."""
    return ev.same_label if view == SAME_LABEL and ev.same_label is not None else ev[view]


def number(value: float, digits: int = 3) -> str:
    """Format a score: a dash if it is undefined, ∞ if it is infinite."""
    if math.isnan(value):
        return "–"
    return f"{value:.{digits}f}" if math.isfinite(value) else "∞"


def signed_points(gap: float) -> str:
    """Format observed minus predicted in points, with its sign.

    >>> signed_points(0.052), signed_points(-0.0001), signed_points(float("nan"))
    ('+5.2', '0.0', '–')
    """
    if math.isnan(gap):
        return "–"
    text = f"{100 * gap:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def wrap_command(command: str, width: int = 74) -> str:
    r"""Break a command before options, so that lines have at most ``width`` characters where possible.

    >>> print(wrap_command("edgewise evaluate --probs probs.npy --labels y.npy", 40))
    edgewise evaluate --probs probs.npy \
      --labels y.npy
    """
    lines = [""]
    for n, part in enumerate(command.split(" --")):
        option = f" --{part}" if n else part
        if n and len(lines[-1]) + len(option) > width - 2:
            lines.append(" ")
        lines[-1] += option
    return " \\\n".join(lines)


def _comparison(finding: Finding) -> dict[str, object]:
    name = {"nodewise": "A node is right", "edgewise": "Both ends are right", SAME_LABEL: "The ends share a label"}
    predicted, observed = percent(finding.predicted), percent(finding.observed)
    label = f"predicted {predicted}, observed {observed}"
    picture = predicted_and_observed(finding.predicted, finding.observed, label)
    return {"name": name[finding.view], "predicted": predicted, "observed": observed, "picture": picture}


def _row(ev: Evaluation, view: str, explanation: str, finding: Finding) -> dict[str, object]:
    scores = scores_of(ev, view)
    intervals = ev.intervals.get(view, {})
    return {
        "name": view_name(view),
        "explanation": explanation,
        "count": f"{finding.count:,}",
        "predicted": percent(finding.predicted, 1),
        "observed": percent(finding.observed, 1),
        "gap": signed_points(finding.gap),
        "kind": "" if not finding.count or abs(finding.gap) < 0.0005 else "over" if finding.gap < 0 else "under",
        "scores": [
            (number(value, 3), _interval_text(interval))
            for value, interval in (
                (scores.ece, intervals.get("ece")),
                (scores.nll, intervals.get("nll")),
                (scores.brier, intervals.get("brier")),
            )
        ],
        "chance": _chance_text(ev, view, finding),
        "k_index": percent(ev.k_index[view]) if view in VIEWS[1:] else "",
    }


def _chance_text(ev: Evaluation, view: str, finding: Finding) -> tuple[str, str]:
    """Return the largest ECE by chance, and its p-value if labelings were drawn exactly."""
    if ev.chance is None:
        # Agree and disagree are chosen by the true labels, so no ECE is expected of a calibrated model there.
        return "–" if view in VIEWS[2:] else number(finding.ece_by_chance, 3), ""
    drawn = ev.chance[view]["ece"]
    return number(drawn.high, 3), "" if drawn.p_value is None else f"p {number(drawn.p_value, 3)}"


def chance_rows(ev: Evaluation) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return the name of each view and, for each score, the observed value, the drawn ones, and the p-value."""
    if ev.chance is None:
        return []
    rows = []
    for view in shown_views(ev):
        scores = scores_of(ev, view)
        cells = [
            (
                number(float(getattr(scores, metric)), 4),
                f"{number(drawn.mean, 4)} ({number(drawn.low, 4)} to {number(drawn.high, 4)})",
                "" if drawn.p_value is None else f"p {number(drawn.p_value, 3)}",
            )
            for metric, drawn in ev.chance[view].items()
        ]
        if scores.count:
            rows.append((view_name(view), cells))
    return rows


def parts_rows(ev: Evaluation, view: str) -> list[tuple[str, str, list[str]]]:
    """Return the name of a view, the score, and its parts, for each score that was decomposed."""
    scores = scores_of(ev, view)
    decompositions = (("Brier", scores.decomposition), ("log", scores.log_decomposition))
    return [
        (view_name(view), name, [number(getattr(parts, part), 4) for part in (*PARTS, "score")])
        for name, parts in decompositions
        if parts is not None and scores.count
    ]


def _smooth_ece(ev: Evaluation, view: str) -> float | None:
    scores = scores_of(ev, view)
    return scores.smooth_ece if scores.count else None


def _interval_text(interval: Interval | None) -> str:
    if interval is None or not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return ""
    return f"{interval.low:.3f} to {interval.high:.3f}"


def _diagram(panel: Panel) -> dict[str, object]:
    count = int(panel.count.sum())
    predicted, observed = axis_names(panel.view)
    name, elements = view_name(panel.view), f"{count:,} {elements_name(panel.view, count)}"
    return {
        "name": name,
        "remark": f"{elements}, ECE {panel.ece[0]:.3f}",
        "picture": reliability_diagram(panel, f"{name}: {observed} against {predicted}"),
    }


def _bin_rows(panel: Panel) -> list[tuple[str, str, list[str]]]:
    """Return the view, the limits, and the numbers of each filled bin: count, predicted, observed and gap."""
    rows = []
    for k in panel.count[0].nonzero()[0].tolist():
        predicted, observed = float(panel.confidence[0, k]), float(panel.accuracy[0, k])
        limits = f"{panel.boundaries[k]:.3g} to {panel.boundaries[k + 1]:.3g}"
        numbers = [
            f"{int(panel.count[0, k]):,}",
            number(predicted),
            number(observed),
            signed_points(observed - predicted),
        ]
        rows.append((view_name(panel.view), limits, numbers))
    return rows


def group_sections(ev: Evaluation) -> list[dict[str, object]]:
    """Return the name, the note, the charts and the tables of each grouping."""
    return [
        {
            "name": groups.name.replace("_", " "),
            "note": groups.note,
            "views": [_group_view(groups, view) for view in GROUP_VIEWS if groups.nonempty(view)],
        }
        for groups in ev.groups.values()
    ]


def _group_view(groups: Groups, view: GroupView) -> dict[str, object]:
    """Return a chart of the worst groups of nodes or edges, and the numbers of all."""
    nonempty = groups.nonempty(view)
    shown, has_chance = nonempty[:MAX_GROUPS], groups.norm == "l1"
    bars = [
        GroupError(
            scores.group,
            f"{scores.count:,}",
            scores.ece,
            scores.intervals.get("ece"),
            scores.chance_ece if has_chance else math.nan,
            scores.gap < 0,
            scores.is_small,
        )
        for scores in shown
    ]
    name, elements = view_name(view), "nodes" if view == "nodewise" else "edges"
    return {
        "name": name,
        "picture": group_chart(bars, f"calibration error of {elements} by {groups.name}"),
        "remark": f"the {len(shown)} worst of {len(nonempty)} groups" if len(shown) < len(nonempty) else "",
        "rows": [group_row(scores, has_chance) for scores in nonempty],
    }


def group_row(scores: GroupScores, has_chance: bool) -> dict[str, object]:
    """Return the formatted numbers of a group."""
    metrics = {metric: (number(scores[metric]), _interval_text(scores.intervals.get(metric))) for metric in METRICS}
    return {
        "group": scores.group,
        "count": f"{scores.count:,}",
        "predicted": percent(scores.confidence, 1),
        "observed": percent(scores.accuracy, 1),
        "gap": signed_points(scores.gap),
        "kind": "" if abs(scores.gap) < 0.0005 else "over" if scores.gap < 0 else "under",
        "ece": number(scores.ece),
        "scores": [metrics[metric] for metric in ("accuracy", "ece", "nll", "brier")],
        "chance": number(scores.chance_ece) if has_chance else "–",
        "excess": number(scores.excess_ece) if has_chance else "–",
        "is_small": scores.is_small,
    }
