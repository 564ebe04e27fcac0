"""What a notebook shows: tables and diagrams of scores, a comparison, pairs, a curve, a fit or a solver.

Colors are those of the notebook, light or dark. There is no script and no style sheet, and text is escaped.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from edgewise.decisions.edge_predictions import EdgePredictions, format_cell
from edgewise.decisions.risk_coverage import RiskCoverage
from edgewise.metrics.evaluation import Evaluation, Interval
from edgewise.metrics.groups import GROUP_VIEWS, Groups
from edgewise.metrics.joint_nll import JointNLL
from edgewise.metrics.model_comparison import Comparison
from edgewise.metrics.sums import VIEWS
from edgewise.models.fitted import Fitted
from edgewise.models.training import History
from edgewise.pages.diagrams import OVER, UNDER, Curve, histogram, line_chart, reliability_diagram, tag, view_name
from edgewise.pages.evaluation_page import (
    chance_rows,
    group_row,
    number,
    parts_rows,
    scores_of,
    shown_views,
    signed_points,
)
from edgewise.pages.verdict import find, headline, percent
from edgewise.plots.reliability_panels import prepare_reliability
from edgewise.posterior import Convergence
from edgewise.representation import changed_options

MAX_ROWS, MAX_COLUMNS = 10, 12
NUM_BARS = 20  # of a histogram
LEFT, RIGHT = "text-align:left", "text-align:right"
SOFT = "opacity:0.75;font-size:90%"
CURVE_COLORS = ("currentColor", OVER, UNDER, "#009E73", "#CC79A7")


def evaluation_html(ev: Evaluation) -> str:
    """Return the comparison in words, the scores of each view, and its reliability diagrams."""
    views = shown_views(ev)
    norm = "" if ev.options["norm"] == "l1" else f" ({ev.options['norm']})"
    header = ("", "count", "predicted", "observed", "gap", f"ECE{norm}", "NLL", "Brier", "K")
    rows = []
    for view in views:
        finding, scores = find(ev, view), scores_of(ev, view)
        fractions = [percent(finding.predicted, 1), percent(finding.observed, 1), signed_points(finding.gap)]
        numbers = [number(value, 4) for value in (scores.ece, scores.nll, scores.brier)]
        k_index = percent(ev.k_index[view]) if view in VIEWS[1:] else ""
        rows.append([view_name(view), f"{finding.count:,}", *fractions, *numbers, k_index])
    diagrams = [
        (view_name(panel.view), reliability_diagram(panel, f"reliability diagram: {view_name(panel.view)}", 0.84))
        for panel in prepare_reliability(ev, views)
        if not panel.is_empty
    ]
    note = "Gap: observed − predicted, in points. " + (
        "Point at a bin to see its numbers; ev.report('report.html') writes a page." if diagrams else ""
    )
    tables = [_table(header, rows), *_detail_tables(ev), *(groups_html(groups, 3) for groups in ev.groups.values())]
    return _show(tag("strong", headline(ev)), *tables, _side_by_side(diagrams), _note(note))


def _detail_tables(ev: Evaluation) -> list[Markup]:
    """Return what was computed on request: scores by chance, parts of scores, and smooth and classwise errors."""
    tables = []
    if chance := chance_rows(ev):
        header = ["by chance: mean (range), p", "accuracy or frequency", "NLL", "Brier", "ECE"]
        cells = [[", ".join(filter(None, (drawn, p))) for _, drawn, p in row] for _, row in chance]
        tables.append(_table(header, [[view, *row] for (view, _), row in zip(chance, cells, strict=True)]))
    if parts := [row for view in shown_views(ev) for row in parts_rows(ev, view)]:
        header = ["parts of the score", "score", "miscalibration", "discrimination", "uncertainty", "total"]
        rows = [[view, score, *numbers] for view, score, numbers in parts]
        tables.append(_table(header, rows, [True, True, False, False, False, False]))
    smooth = {view_name(view): scores_of(ev, view).smooth_ece for view in shown_views(ev)}
    errors = [f"smooth ECE: {name} {number(error, 4)}" for name, error in smooth.items() if error is not None]
    if ev.nodewise.classwise_ece is not None:
        errors.append(f"classwise ECE {number(ev.nodewise.classwise_ece, 4)}")
    return [*tables, *([_note("; ".join(errors))] if errors else [])]


def groups_html(groups: Groups, max_rows: int = MAX_ROWS) -> Markup:
    """Return the scores of the worst groups of nodes and of edges."""
    header = ["count", "predicted", "observed", "gap", f"ECE{'' if groups.norm == 'l1' else f' ({groups.norm})'}"]
    columns = ["count", "predicted", "observed", "gap", "ece"]
    if groups.norm == "l1":
        header, columns = [*header, "mean by chance"], [*columns, "chance"]
    tables = []
    for view in GROUP_VIEWS:
        if nonempty := groups.nonempty(view):
            rows = [group_row(scores, groups.norm == "l1") for scores in nonempty[:max_rows]]
            cells = [[str(row["group"]), *(str(row[name]) for name in columns)] for row in rows]
            tables.append(_table((view_name(view), *header), cells))
            if len(nonempty) > max_rows:
                tables.append(_note(f"{len(nonempty) - max_rows:,} more groups"))
    title = f"By {groups.name.replace('_', ' ')}, worst first{groups.note and f'; {groups.note}'}"
    return tag("div", tag("strong", title), *tables)


def comparison_html(comparison: Comparison) -> str:
    """Return the verdict, and the scores of each model next to those of the reference."""
    interval = f"{100 * comparison.confidence_level:g}% interval"
    header = ("model", "view", "score", comparison.reference, "score of model", "difference", interval, "")
    is_text = [True, True, True, False, False, False, False, True]
    rows = [
        [
            row.model,
            view_name(row.view),
            row.name.partition(" ")[2],
            number(row.reference_score, 4),
            number(row.score, 4),
            f"{row.difference.value:+.4f}",
            f"[{row.difference.low:+.4f}, {row.difference.high:+.4f}]",
            row.outcome,
        ]
        for row in comparison.scores()
    ]
    verdict = [tag("div", line) for line in comparison.verdict.splitlines()]
    note = "Difference: the model's score minus that of the reference. comparison.plot() draws the intervals."
    return _show(*verdict, _table(header, rows, is_text), _note(note))


def edge_predictions_html(table: EdgePredictions) -> str:
    """Return the first pairs, and a histogram of the probability of each event."""
    names = [name for name in table.table if name != "convergence"]
    shown, part = names[:MAX_COLUMNS], slice(0, MAX_ROWS)
    cells = [[format_cell(value) for value in table.table[name][part].tolist()] for name in shown]
    is_text = [table.table[name].names is not None for name in shown]
    histograms = []
    for event in table.events[:MAX_COLUMNS]:
        name = f"P({event.name})"
        bars = np.minimum((NUM_BARS * table[name]).astype(np.int64), NUM_BARS - 1)
        histograms.append((name, histogram(np.bincount(bars, minlength=NUM_BARS).tolist(), f"histogram of {name}")))
    title = tag("strong", f"{len(table):,} {'pair' if len(table) == 1 else 'pairs'}")
    hidden = [
        f"{len(table) - MAX_ROWS:,} more rows" if len(table) > MAX_ROWS else "",
        f"{len(names) - len(shown)} more columns" if len(names) > len(shown) else "",
        f"convergence: {table.convergence}",
        table.note,
    ]
    note = "; ".join(text for text in hidden if text)
    return _show(title, _table(shown, list(zip(*cells, strict=True)), is_text), _side_by_side(histograms), _note(note))


def risk_coverage_html(curves: Mapping[str, RiskCoverage]) -> str:
    """Return the areas and some risks of each curve, and a diagram of all."""
    coverages = (0.5, 0.8, 0.9)
    header = ("", "count", *(f"risk at {coverage:.0%}" for coverage in coverages), "full risk", "AURC", "excess AURC")
    rows = [
        [
            name,
            f"{curve.count:,}",
            *(percent(curve.risk_at(coverage), 1) for coverage in coverages),
            percent(curve.full_risk, 1),
            number(curve.aurc, 4),
            number(curve.excess_aurc, 4),
        ]
        for name, curve in curves.items()
    ]
    lines = [
        Curve(name, curve.coverage, curve.risk, CURVE_COLORS[n % len(CURVE_COLORS)])
        for n, (name, curve) in enumerate(curves.items())
        if curve.count
    ]
    chart = line_chart(lines, "risk against coverage", "coverage", x_format=".0%", y_format=".0%")
    note = "Risk: the error rate of the most confident elements. Coverage: their fraction."
    return _show(_table(header, rows), _side_by_side([("Risk", chart)] if lines else []), _note(note))


def joint_nll_html(result: JointNLL) -> str:
    """Return the joint NLL per node and its gain of each size, and a diagram of the NLL of joint and product."""

    def cell(value: float, interval: Interval) -> str:
        return f"{number(value, 4)} [{number(interval.low, 4)}, {number(interval.high, 4)}]"

    header = ("nodes per set", "sets", "NLL per node", "gain over marginals", "how")
    rows = [
        [f"{row.size}", f"{row.count:,}", cell(row.nll_per_node, row.nll_interval), cell(row.gain, row.gain_interval)]
        for row in result.rows
    ]
    notes = [row.note for row in result.rows]
    drawn = sorted((row for row in result.rows if math.isfinite(row.nll_per_node)), key=lambda row: row.size)
    sizes, nll = np.array([float(row.size) for row in drawn]), np.array([row.nll_per_node for row in drawn])
    product = nll + np.array([row.gain for row in drawn])
    curves = [Curve("joint", sizes, nll), Curve("product of the marginals", sizes, product, OVER)]
    chart = line_chart(curves, "NLL per node", "nodes per set", y_format=".2g") if len(drawn) > 1 else None
    table = _table(header, [[*row, note] for row, note in zip(rows, notes, strict=True)], [False] * 4 + [True])
    text = f"Sampler: {result.sampler}. In nats, with {result.confidence_level:.0%} intervals."
    return _show(table, _side_by_side([("NLL per node", chart)] if chart else []), _note(text))


def history_html(history: History) -> str:
    """Return the number of epochs, the scores of the kept one, and the training curves."""
    return _show(*_training(history))


def fitted_html(fitted: Fitted) -> str:
    """Return the model with its changed options, its size, and the training curves."""
    parameters = sum(weight.numel() for weight in fitted.weights.values())
    title = tag("strong", changed_options(fitted.model, 300))
    return _show(
        title, _note(f"{parameters:,} parameters; other options have their defaults"), *_training(fitted.history)
    )


def _training(history: History) -> list[Markup]:
    kept = history.kept - 1
    header = ["epochs", "kept epoch", "validation loss", "validation accuracy", "seconds"]
    has_kept = 0 <= kept < len(history.val_loss)
    row = [
        f"{history.epochs:,}",
        f"{history.kept:,}",
        number(history.val_loss[kept], 4) if has_kept else "–",
        percent(history.val_accuracy[kept], 1) if has_kept else "–",
        f"{history.seconds:.1f}",
    ]
    if len(history.phases) > 1:
        header.append("phases")
        row.append(", ".join(f"{name} {epochs}" for name, epochs in history.phases))
    epoch = np.arange(1, history.epochs + 1, dtype=np.float64)
    losses = [("training loss", history.loss, OVER), ("validation loss", history.val_loss, "currentColor")]
    charts = [
        ("Loss", [Curve(name, epoch, np.array(values), color) for name, values, color in losses], ".2g"),
        ("Validation accuracy", [Curve("accuracy", epoch, np.array(history.val_accuracy))], ".0%"),
    ]
    pictures = [
        (title, line_chart(curves, title, "epoch", y_format=form, marked=history.kept if has_kept else None))
        for title, curves, form in charts
        if history.epochs
    ]
    note = "The vertical line marks the kept epoch." if pictures else "No epochs."
    return [_table(header, [row], [False] * len(header)), _side_by_side(pictures), _note(note)]


def convergence_html(convergence: Convergence) -> str:
    """Return whether a solver converged, why it was chosen, and how to make it converge."""
    cells = {
        "converged": "yes" if convergence.converged else "no",
        "method": convergence.method or "–",
        "sweeps": f"{convergence.sweeps:,}",
        "residual": f"{convergence.residual:.3g}",
    }
    if convergence.disagreement is not None:
        cells["disagreement"] = f"{convergence.disagreement:.3g}"
    table = _table(list(cells), [list(cells.values())], [False] * len(cells))
    return _show(table, *(_note(text) for text in (convergence.reason, convergence.advice) if text))


def _show(*parts: Markup) -> str:
    """Return a plain string, because a notebook would call the HTML method of Markup again."""
    return str(tag("div", *(tag("div", part, style="margin:4px 0") for part in parts if part)))


def _note(text: str) -> Markup:
    return tag("span", text, style=SOFT)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], is_text: Sequence[bool] | None = None) -> Markup:
    """Return a table. By default the first column is text, on the left, and the others are numbers, on the right."""
    styles = [LEFT if text else RIGHT for text in is_text or [True, *[False] * (len(header) - 1)]]
    head = tag("tr", *(tag("th", name, style=style) for name, style in zip(header, styles, strict=True)))
    body = (tag("tr", *(tag("td", cell, style=style) for cell, style in zip(row, styles, strict=True))) for row in rows)
    return tag("table", tag("thead", head), tag("tbody", *body), cellpadding=4)


def _side_by_side(diagrams: Sequence[tuple[str, Markup]]) -> Markup:
    figures = (tag("div", tag("div", title, style="font-weight:bold"), picture) for title, picture in diagrams)
    return tag("div", *figures, style="display:flex;flex-wrap:wrap;gap:8px") if diagrams else Markup("")
