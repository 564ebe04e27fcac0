"""Scores of models beside published ones, as lines of text."""

from collections.abc import Mapping

from edgewise.data.statistics import MeanStd
from edgewise.metrics.evaluation import Evaluation
from edgewise.metrics.sums import VIEWS

WIDTH = 16


def scores_beside_published(
    runs: Mapping[str, Evaluation], published: Mapping[str, Mapping[str, Mapping[str, MeanStd]]]
) -> str:
    """Give a block of lines for each model: a line a metric, in percent, and the published one beneath it."""
    lines = [f"{'':22}" + "".join(f"{view:>{WIDTH}}" for view in VIEWS)]
    for model, run in runs.items():
        lines.append("")
        for metric, views in published[model].items():
            ours = (f"{100 * getattr(getattr(run, view), metric):.2f}{'':8}" for view in views)
            theirs = (f"{100 * cell.mean:.2f} ± {100 * cell.std:5.2f}" for cell in views.values())
            lines.append(f"{model:10}{metric:12}" + "".join(f"{cell:>{WIDTH}}" for cell in ours).rstrip())
            lines.append(f"{'':10}{'published':12}" + "".join(f"{cell:>{WIDTH}}" for cell in theirs))
    return "\n".join(lines)
