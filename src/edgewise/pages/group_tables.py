"""Tables of groups for the page of an evaluation, the worst first."""

import math

from edgewise.metrics.evaluation import Evaluation
from edgewise.metrics.groups import GROUP_VIEWS, ORDER_NOTE, Groups, GroupScores, GroupView
from edgewise.pages.diagrams import view_name
from edgewise.pages.verdict import percent

MAX_GROUPS = 10  # rows of a table; the others are in ev.groups


def group_sections(ev: Evaluation) -> list[dict[str, object]]:
    """Return the name, the remark and the tables of each grouping."""
    return [
        {
            "name": groups.name.replace("_", " ") + ("" if groups.norm == "l1" else f", {ORDER_NOTE}"),
            "on_outcome": groups.conditions_on_outcome,
            "tables": [_table(groups, view) for view in GROUP_VIEWS if groups.shown(view)],
        }
        for groups in ev.groups.values()
    ]


def _table(groups: Groups, view: GroupView) -> dict[str, object]:
    shown = groups.shown(view)
    return {
        "name": view_name(view),
        "rows": [_row(scores, groups.norm == "l1") for scores in shown[:MAX_GROUPS]],
        "hidden": max(0, len(shown) - MAX_GROUPS),
    }


def _row(scores: GroupScores, has_chance: bool) -> dict[str, object]:
    interval = scores.intervals.get("ece")
    return {
        "group": scores.group,
        "count": f"{scores.count:,}",
        "said": percent(scores.confidence, 1),
        "true": percent(scores.accuracy, 1),
        "gap": "0.0" if abs(scores.gap) < 0.0005 else f"{100 * scores.gap:+.1f}".replace("-", "−"),
        "kind": "" if abs(scores.gap) < 0.0005 else "over" if scores.gap < 0 else "under",
        "ece": f"{scores.ece:.3f}",
        "interval": f"{interval.low:.3f} to {interval.high:.3f}" if interval and math.isfinite(interval.low) else "",
        "chance": f"{scores.chance_ece:.3f}" if has_chance else "–",
        "is_small": scores.is_small,
    }
