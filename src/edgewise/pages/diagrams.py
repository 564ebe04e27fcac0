"""Small diagrams as inline SVG, for pages and notebooks.

Shapes have attributes that suit a light and a dark background, so a notebook needs no style sheet. They also have
classes, by which a page styles them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup, escape
from torch import Tensor

from edgewise.metrics.evaluation import Interval
from edgewise.metrics.sums import VIEWS
from edgewise.plots.reliability_panels import SAME_LABEL, Panel, elements_name

OVER, UNDER = "#E69F00", "#2E8BC8"  # orange and blue, for color-blind readers too, on light and on dark backgrounds
FIT = "#009E73"  # the isotonic fit, green as in the figures
GRID = {"stroke": "currentColor", "stroke_opacity": 0.15}


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """Return an element. Text and values are escaped, ``_`` in names becomes ``-``, and None leaves an attribute out.

    >>> print(tag("text", "1 < 2", font_size=10))
    <text font-size="10">1 &lt; 2</text>
    """
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    listed = Markup("").join(Markup(' {}="{}"').format(key, _short(value)) for key, value in pairs)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), listed, Markup("").join(map(escape, children)))


def _short(value: object) -> object:
    """Round to tenths: finer than a screen shows."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def axis_names(view: str) -> tuple[str, str]:
    """Return the names of what is predicted and of what is observed."""
    return ("predicted probability", "observed frequency") if view == SAME_LABEL else ("confidence", "accuracy")


# ---- Reliability -----------------------------------------------------------------------------------------------------

WIDTH, LEFT, TOP, SIDE, STRIP = 212, 46, 6, 160, 30
LOW = TOP + SIDE + 12 + STRIP  # y of the axis below the histogram
STEP = 2.0  # least distance of points of a curve


def describe_bin(panel: Panel, k: int) -> str:
    """Return the numbers of a bin as a sentence, such as "0.6 to 0.8: 12 nodes, confidence 0.710, accuracy 0.500"."""
    count, (predicted, observed) = int(panel.count[0, k]), axis_names(panel.view)
    between = f"{panel.boundaries[k]:.3g} to {panel.boundaries[k + 1]:.3g}"
    number = f"{count:,} {elements_name(panel.view, count)}"
    confidence, accuracy = panel.confidence[0, k], panel.accuracy[0, k]
    few = ", too few to tell" if panel.is_small[k] else ""
    return f"{between}: {number}, {predicted} {confidence:.3f}, {observed} {accuracy:.3f}{few}"


def reliability_diagram(panel: Panel, label: str, scale: float = 1.0) -> Markup:
    """Draw accuracy against confidence per bin, with bars to the diagonal and a histogram, for one run with elements.

    Bins with few elements are hollow, and no line passes through them. Pointing at a bin shows its numbers. If scores
    were decomposed, the isotonic fit is drawn with its band.
    """
    parts = (_grid(panel), _gap_bars(panel), _fit(panel), _bin_line(panel), _bin_points(panel), _histogram(panel))
    return _picture(WIDTH, LOW + 34, label, *parts, _bin_columns(panel), scale=scale)


def _x(value: float) -> float:
    return LEFT + SIDE * value


def _y(value: float) -> float:
    return TOP + SIDE * (1 - value)


def _grid(panel: Panel) -> Markup:
    ticks, (predicted, observed) = (0.0, 0.5, 1.0), axis_names(panel.view)
    lines = "".join(f"M{_x(v):g} {_y(0):g}V{_y(1):g}M{_x(0):g} {_y(v):g}H{_x(1):g}" for v in ticks)
    texts = [
        *(_text(f"{v:.0%}", LEFT - 6, _y(v) + 4, "end") for v in ticks),
        *(_text(f"{v:.0%}", _x(v), LOW + 15, "end" if v == 1 else None) for v in ticks),
        _text(f"{float(panel.fraction.max()):.0%}", LEFT - 6, LOW - STRIP + 9, "end"),
        _text(predicted, LEFT + SIDE / 2, LOW + 29),
        _text(observed, 0, 0, transform=f"translate(11 {TOP + SIDE / 2:g}) rotate(-90)"),
    ]
    diagonal = {"stroke": "currentColor", "stroke_opacity": 0.5, "stroke_dasharray": "4 3"}
    return Markup("").join(
        (
            tag("path", d=lines, class_="grid", **GRID),
            tag("path", d=f"M{_x(0):g} {_y(0):g}L{_x(1):g} {_y(1):g}", class_="diagonal", **diagonal),
            _texts(*texts),
        )
    )


def _filled(panel: Panel) -> list[int]:
    return [int(k) for k in np.flatnonzero(panel.count[0])]


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"


def _gap_bars(panel: Panel) -> Markup:
    width = max(2.0, 0.6 * SIDE / len(panel.count[0]))
    boxes: dict[tuple[str, str, float], str] = {}
    for k in _filled(panel):
        confidence, accuracy = panel.confidence[0, k], panel.accuracy[0, k]
        kind, color = ("over", OVER) if accuracy < confidence else ("under", UNDER)
        key = (f"gap {kind}", color, 0.25 if panel.is_small[k] else 0.7)
        box = _box(_x(confidence) - width / 2, _y(max(confidence, accuracy)), width, SIDE * abs(confidence - accuracy))
        boxes[key] = boxes.get(key, "") + box
    paths = (
        tag("path", d=d, class_=kind, fill=color, fill_opacity=opacity) for (kind, color, opacity), d in boxes.items()
    )
    return Markup("").join(paths)


def _fit(panel: Panel) -> Markup:
    """Draw the isotonic regression of outcomes on forecasts, and its band if nodes were resampled."""
    if panel.curve is None:
        return Markup("")
    curve = panel.curve
    line = tag("path", d=f"M{_points(curve.forecast, curve.frequency)}", class_="fit", stroke=FIT, fill="none")
    if curve.low is None or curve.high is None:
        return line
    around = f"M{_points(curve.forecast, curve.low)}L{_points(curve.forecast.flip(0), curve.high.flip(0))}z"
    return tag("path", d=around, class_="fit-band", fill=FIT, fill_opacity=0.2) + line


def _points(x: Float[Tensor, " points"], y: Float[Tensor, " points"]) -> str:
    """Return a path through the first and the last finite point, and others at a distance of `STEP` or more."""
    points = [(_x(a), _y(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True) if isfinite(b)]
    kept = points[:1]
    for point in points[1:-1]:
        if max(abs(point[0] - kept[-1][0]), abs(point[1] - kept[-1][1])) >= STEP:
            kept.append(point)
    return "L".join(f"{a:.1f} {b:.1f}" for a, b in (*kept, *points[-1:]))


def _bin_line(panel: Panel) -> Markup:
    """Connect neighboring bins that have enough elements."""
    drawn = set(_filled(panel)) - {int(k) for k in np.flatnonzero(panel.is_small)}
    path = ""
    for k in sorted(drawn):
        step = "L" if k - 1 in drawn else "M"
        path += f"{step}{_x(panel.confidence[0, k]):.1f} {_y(panel.accuracy[0, k]):.1f}"
    return tag("path", d=path, class_="link", stroke="currentColor", stroke_width=1.5, fill="none")


def _bin_points(panel: Panel) -> Markup:
    groups: dict[bool, list[Markup]] = {False: [], True: []}
    for k in _filled(panel):
        at = {"cx": float(_x(panel.confidence[0, k])), "cy": float(_y(panel.accuracy[0, k]))}
        groups[bool(panel.is_small[k])].append(tag("circle", r=3, **at))
    enough, few = groups[False], groups[True]
    return tag("g", *enough, class_="bin-point", fill="currentColor", stroke="currentColor") + tag(
        "g", *few, class_="bin-point few", fill="none", stroke="currentColor", stroke_opacity=0.6
    )


def _histogram(panel: Panel) -> Markup:
    highest, path = float(panel.fraction.max()), ""
    for k in _filled(panel):
        left, right = _x(panel.boundaries[k]), _x(panel.boundaries[k + 1])
        height = max(1.0, STRIP * float(panel.fraction[k]) / highest)
        path += _box(left + 0.5, LOW - height, max(0.5, right - left - 1.0), height)
    axis = tag("path", d=f"M{_x(0):g} {LOW}H{_x(1):g}", class_="frame", stroke="currentColor", stroke_opacity=0.4)
    return tag("path", d=path, class_="bar", fill="currentColor", fill_opacity=0.4) + axis


def _bin_columns(panel: Panel) -> Markup:
    """Return an invisible column per filled bin, to point at. Its title has the numbers of the bin."""
    columns = []
    for k in _filled(panel):
        left, right = float(_x(panel.boundaries[k])), float(_x(panel.boundaries[k + 1]))
        box = {"x": left, "y": TOP, "width": max(1.0, right - left), "height": LOW - TOP}
        columns.append(tag("rect", tag("title", describe_bin(panel, k)), **box))
    return tag("g", *columns, class_="bins", fill_opacity=0)


# ---- Lines, bars, and predicted against observed ---------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A line of a chart."""

    name: str
    x: Float[np.ndarray, " points"]
    y: Float[np.ndarray, " points"]
    color: str = "currentColor"
    dash: str | None = None

    @property
    def stroke(self) -> dict[str, object]:
        """Attributes of the line."""
        return {"stroke": self.color, "stroke_width": 1.5, "stroke_dasharray": self.dash}


MAX_CURVE_POINTS = 160
CHART_WIDTH, CHART_HEIGHT, CHART_LEFT = 300, 150, 44
CHART_RIGHT, CHART_TOP, CHART_LOW = CHART_WIDTH - 10, 8, CHART_HEIGHT - 46


def line_chart(
    curves: Sequence[Curve],
    label: str,
    x_name: str,
    *,
    x_format: str = ".0f",
    y_format: str = ".2g",
    marked: float | None = None,
) -> Markup:
    """Draw curves from 0 to the largest finite values, with a vertical line at ``marked``."""
    shown = [_thin(curve) for curve in curves]
    x_max, y_max = (
        max((float(getattr(curve, axis).max()) for curve in shown if len(curve.x)), default=1.0) or 1.0 for axis in "xy"
    )

    def x_at(x: float) -> float:
        return CHART_LEFT + (CHART_RIGHT - CHART_LEFT) * x / x_max

    def y_at(y: float) -> float:
        return CHART_LOW - (CHART_LOW - CHART_TOP) * y / y_max

    ticks = (0.0, y_max / 2, y_max)
    texts = [_text(f"{y:{y_format}}", CHART_LEFT - 6, y_at(y) + 4, "end") for y in ticks]
    texts += [_text(f"{0:{x_format}}", CHART_LEFT, CHART_LOW + 15, "start")]
    texts += [_text(f"{x_max:{x_format}}", CHART_RIGHT, CHART_LOW + 15, "end")]
    texts += [_text(x_name, (CHART_LEFT + CHART_RIGHT) / 2, CHART_LOW + 15)]
    parts = [tag("path", d="".join(f"M{CHART_LEFT} {y_at(y):.1f}H{CHART_RIGHT}" for y in ticks), **GRID)]
    if marked is not None:
        parts.append(
            tag("path", d=f"M{x_at(marked):.1f} {CHART_TOP}V{CHART_LOW}", stroke="currentColor", stroke_opacity=0.5)
        )
    for curve in shown:
        points = " ".join(f"{x_at(float(x)):.1f},{y_at(float(y)):.1f}" for x, y in zip(curve.x, curve.y, strict=True))
        parts.append(tag("polyline", tag("title", curve.name), points=points, fill="none", **curve.stroke))
    step = (CHART_WIDTH - 10) / max(1, len(curves))
    for n, curve in enumerate(curves):
        x, y = 10 + n * step, CHART_HEIGHT - 8
        parts.append(tag("path", d=f"M{x:.1f} {y - 4}h18", **curve.stroke))
        texts.append(_text(_cut(curve.name, max(6, int(step / 6) - 4)), x + 23, y, "start"))
    return _picture(CHART_WIDTH, CHART_HEIGHT, label, *parts, _texts(*texts))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _thin(curve: Curve) -> Curve:
    """Keep finite points, and at most `MAX_CURVE_POINTS` of them, including both ends."""
    finite = np.flatnonzero(np.isfinite(curve.x) & np.isfinite(curve.y))
    if len(finite) > MAX_CURVE_POINTS:
        finite = finite[np.linspace(0, len(finite) - 1, MAX_CURVE_POINTS).round().astype(int)]
    return Curve(curve.name, curve.x[finite], curve.y[finite], curve.color, curve.dash)


@dataclass(frozen=True)
class ForestRow:
    """A value with its interval. ``kind`` is "over" or "under" for a color, or "" for gray and a hollow mark."""

    name: str
    value: float
    low: float
    high: float
    kind: str = ""


FOREST_WIDTH, FOREST_LEFT, FOREST_ROW = 300, 110, 20


def forest_chart(rows: Sequence[ForestRow], label: str) -> Markup:
    """Draw each value as a mark with its interval, next to a line at 0. Infinite and missing values are omitted."""
    drawn = [row for row in rows if isfinite(row.value) and isfinite(row.low) and isfinite(row.high)]
    low, high = min([0.0, *(row.low for row in drawn)]), max([0.0, *(row.high for row in drawn)])
    reach, height = (high - low) or 1.0, FOREST_ROW * len(rows)

    def x_at(value: float) -> float:
        return FOREST_LEFT + (FOREST_WIDTH - FOREST_LEFT - 12) * (value - low) / reach

    zero = tag("path", d=f"M{x_at(0):.1f} 2V{height + 2}", class_="frame", stroke="currentColor", stroke_opacity=0.4)
    parts, texts = [zero], []
    for k, row in enumerate(rows):
        y = FOREST_ROW * (k + 0.5) + 2
        texts.append(_text(_cut(row.name, 17), FOREST_LEFT - 8, y + 4, "end"))
        if row in drawn:
            color = {"over": OVER, "under": UNDER}.get(row.kind, "currentColor")
            caption = tag("title", f"{row.name}: {row.value:+.4f}, interval {row.low:+.4f} to {row.high:+.4f}")
            line = tag("path", d=f"M{x_at(row.low):.1f} {y:.1f}H{x_at(row.high):.1f}", stroke=color, stroke_width=2)
            fill = color if row.kind else "none"
            mark = tag("circle", cx=x_at(row.value), cy=y, r=4, fill=fill, stroke=color, stroke_width=1.5)
            parts.append(tag("g", caption, line, mark, class_=f"forest-row {row.kind}".rstrip()))
    ends = [(low, "start" if low < 0 else "middle"), (high, "end" if high > 0 else "middle")]
    texts += [_text(f"{value:+.2g}" if value else "0", x_at(value), height + 18, anchor) for value, anchor in ends]
    if low < 0 < high and min(x_at(0) - x_at(low), x_at(high) - x_at(0)) > 40:
        texts.append(_text("0", x_at(0), height + 18))
    return _picture(FOREST_WIDTH, height + 24, label, *parts, _texts(*texts))


def histogram(counts: Sequence[int], label: str) -> Markup:
    """Draw bars of counts in bins of equal width from 0 to 1."""
    width, height, low = 180, 74, 56
    highest, step = max(1, *counts), (width - 20) / len(counts)
    parts = [tag("line", x1=10, x2=width - 10, y1=low, y2=low, stroke="currentColor", stroke_opacity=0.4)]
    for k, count in enumerate(counts):
        bar = max(1.0, (low - 6) * count / highest) if count else 0.0
        caption = tag("title", f"{k / len(counts):.3g} to {(k + 1) / len(counts):.3g}: {count:,}")
        box = {"x": 10 + k * step + 0.5, "y": low - bar, "width": step - 1, "height": bar}
        parts.append(tag("rect", caption, fill="currentColor", fill_opacity=0.45, **box))
    places = ((0, "start"), (0.5, "middle"), (1, "end"))
    texts = (_text(f"{value:.0%}", 10 + value * (width - 20), low + 14, anchor) for value, anchor in places)
    return _picture(width, height, label, *parts, _texts(*texts))


def predicted_and_observed(predicted: float, observed: float, label: str, width: str = "100%") -> Markup:
    """Draw a hollow mark at the predicted and a filled mark at the observed fraction, from 0 to 1.

    Positions are percentages, so the picture has any width and its marks stay round. Marks at the ends reach beyond it.
    """
    y, color = 11, OVER if predicted > observed else UNDER
    parts = [tag("line", x1="1%", x2="99%", y1=y, y2=y, stroke="currentColor", stroke_opacity=0.2, class_="grid")]
    if isfinite(predicted) and isfinite(observed):
        start, end = (f"{1 + 98 * value:.2f}%" for value in (predicted, observed))
        kind = "over" if predicted > observed else "under"
        parts.append(tag("line", x1=start, x2=end, y1=y, y2=y, stroke=color, stroke_width=5, class_=f"reach {kind}"))
        parts.append(
            tag("circle", cx=start, cy=y, r=5, stroke="currentColor", stroke_width=2, fill="none", class_="predicted")
        )
        parts.append(tag("circle", cx=end, cy=y, r=5.5, fill="currentColor", class_="observed"))
    return tag("svg", *parts, width=width, height=22, overflow="visible", role="img", aria_label=label)


@dataclass(frozen=True)
class GroupError:
    """The calibration error of a group in a chart. ``by_chance`` is NaN if it is not drawn."""

    name: str
    count: str
    error: float
    interval: Interval | None
    by_chance: float
    is_overconfident: bool
    is_small: bool


GROUP_WIDTH, GROUP_LEFT, GROUP_RIGHT, GROUP_STEP = 340, 110, 285, 18


def group_chart(groups: Sequence[GroupError], label: str) -> Markup:
    """Draw the error of each group with its interval, a line at the mean by chance, and the number of elements."""
    bounds = [group.interval.high for group in groups if group.interval is not None]
    values = [*bounds, *(group.error for group in groups), *(group.by_chance for group in groups)]
    highest = max((value for value in values if isfinite(value)), default=1.0) or 1.0
    low = 6 + GROUP_STEP * len(groups)

    def x_at(value: float) -> float:
        return GROUP_LEFT + (GROUP_RIGHT - GROUP_LEFT) * value / highest

    ticks = (0.0, highest / 2, highest)
    parts = [tag("path", d="".join(f"M{x_at(tick):.1f} 4V{low}" for tick in ticks), **GRID)]
    texts = [_text(f"{tick:.3f}", x_at(tick), low + 14) for tick in ticks]
    for n, group in enumerate(groups):
        y = 4 + GROUP_STEP * (n + 0.5)
        kind, color = ("over", OVER) if group.is_overconfident else ("under", UNDER)
        caption = f"{group.name}: {group.count}, ECE {group.error:.3f}"
        marks = []
        if group.interval is not None and isfinite(group.interval.low):
            ends = {"x1": x_at(group.interval.low), "x2": x_at(group.interval.high), "y1": y, "y2": y}
            marks.append(tag("line", class_=f"reach {kind}", stroke=color, stroke_width=4, stroke_opacity=0.5, **ends))
            caption += f" ({group.interval.low:.3f} to {group.interval.high:.3f})"
        if isfinite(group.by_chance):
            x = x_at(group.by_chance)
            marks.append(tag("path", d=f"M{x:.1f} {y - 6:g}v12", stroke="currentColor", stroke_width=1.5))
            caption += f", mean by chance {group.by_chance:.3f}"
        mark = {"cx": x_at(group.error), "cy": y, "r": 4, "class_": f"error {kind}"}
        marks.append(tag("circle", stroke=color, fill="none" if group.is_small else color, **mark))
        parts.append(tag("g", tag("title", caption), *marks))
        texts += [
            _text(_cut(group.name, 17), GROUP_LEFT - 8, y + 4, "end"),
            _text(group.count, GROUP_WIDTH, y + 4, "end"),
        ]
    return _picture(GROUP_WIDTH, low + 20, label, *parts, _texts(*texts))


def _text(text: str, x: float, y: float, anchor: str | None = None, **attributes: object) -> Markup:
    return tag("text", text, x=x, y=y, text_anchor=anchor, **attributes)


def _texts(*texts: Markup) -> Markup:
    return tag("g", *texts, class_="texts", fill="currentColor", fill_opacity=0.75, font_size=11, text_anchor="middle")


def _picture(width: int, height: int, label: str, *parts: str, scale: float = 1.0) -> Markup:
    size: dict[str, Any] = {"width": scale * width, "height": scale * height, "viewBox": f"0 0 {width} {height}"}
    return tag("svg", *parts, role="img", aria_label=label, font_family="sans-serif", **size)


def view_name(view: str) -> str:
    """Return the name of a view in a heading."""
    names = dict(zip(VIEWS, ("Nodes", "Edges", "Agree", "Disagree"), strict=True))
    return names.get(view, view.replace("_", " ").capitalize())
